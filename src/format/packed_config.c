/* config.json's quantization_config. Each method has a table of the keys it may have and of the values that lemma follows; the tables come
 * from transformers' quantization_config.py, AutoGPTQ/GPTQModel, AutoAWQ and compressed_tensors' QuantizationConfig. */
#include "format/packed.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct rule {
    const char *key;    /* relative; a '*' at the end stands for anything */
    const char *values; /* "a|b", compared without case; NULL: any value (it doesn't change how weights decode) */
} rule;

static const rule mxfp4_rules[] = {{"modules_to_not_convert", NULL}, {"dequantize", NULL}, {NULL, NULL}};
static const rule fp8_rules[] = {
    {"activation_scheme", "dynamic|static"},
    {"weight_block_size", NULL}, /* read below */
    {"fmt", "e4m3|e5m2|float8_e4m3fn|float8_e5m2"},
    {"scale_fmt", "float|ue8m0"}, /* of ue8m0 the stored float32 scales are powers of two */
    {"expert_dtype", "fp8"},
    {"modules_to_not_convert", NULL},
    {"modules_to_convert", NULL},
    {"ignored_layers", NULL},
    {"dequantize", NULL},
    {NULL, NULL},
};
/* GPTQ and AWQ: how the quantizer went about it, and which kernels its makers like. */
static const rule how_rules[] = {
    {"modules_to_not_convert", NULL},
    {"backend", NULL},
    {"exllama_config*", NULL},
    {"use_exllama", NULL},
    {"disable_exllama", NULL},
    {"max_input_length", NULL},
    {"dataset", NULL},
    {"tokenizer", NULL},
    {"batch_size", NULL},
    {"pad_token_id", NULL},
    {"meta*", NULL},
    {"damp_percent", NULL},
    {"damp_auto_increment", NULL},
    {"true_sequential", NULL},
    {"static_groups", NULL},
    {"desc_act", NULL},
    {"act_group_aware", NULL},
    {"sym", NULL},
    {"mse", NULL},
    {"model_seqlen", NULL},
    {"block_name_to_quantize", NULL},
    {"cache_block_outputs", NULL},
    {"module_name_preceding_first_block", NULL},
    {"modules_in_block_to_quantize", NULL},
    {"model_name_or_path", NULL},
    {"model_file_base_name", NULL},
    {"modules_to_fuse", NULL},
    {"do_fuse", NULL},
    {"fuse_max_seq_len", NULL},
    {"lm_head", NULL},
    {"use_cuda_fp16", NULL},
    {NULL, NULL},
};
static const rule gptq_rules[] = {
    {"bits", "4|8"},
    {"group_size", NULL}, /* read below */
    {"checkpoint_format", "gptq|gptq_v2"},
    {"format", "gptq|gptq_v2"},
    {"method", "gptq"},
    {"is_marlin_format", "false"},
    {"pack_dtype", "int32"},
    {"dynamic.-:*", NULL}, /* modules left alone; any other rule of `dynamic` changes bits or groups */
    {"rotation", ""},
    {"adapter", ""},
    {NULL, NULL},
};
static const rule awq_rules[] = {
    {"bits", "4"},          {"group_size", NULL}, /* read below */
    {"zero_point", "true"}, {"version", "gemm"},  {"format", "gemm"}, {"method", "awq"}, {NULL, NULL},
};
static const rule ct_rules[] = {
    {"format", "int-quantized|float-quantized|naive-quantized|pack-quantized|mixed-precision|dense"},
    {"quantization_status", "compressed"},
    {"sparsity_config.format", "dense"},
    {"sparsity_config*", NULL},
    {"transform_config", "{}"},
    {"global_compression_ratio", NULL},
    {"ignore", NULL},
    {"version", NULL},
    {"run_compressed", NULL},
    {"dequantize", NULL},
    {"use_optimized_inference", NULL},
    {"config_groups", "{}"},
    {NULL, NULL},
};
static const rule ct_group_rules[] = {
    /* below config_groups.NAME. */
    {"targets", NULL},
    {"format", "int-quantized|float-quantized|naive-quantized|pack-quantized|dense"},
    {"weights.num_bits", "4|8"},
    {"weights.type", "int|float"},
    {"weights.symmetric", "true|false"},
    {"weights.strategy", "tensor|channel|group|block"},
    {"weights.dynamic", "false"},
    {"weights.group_size", NULL},      /* read below */
    {"weights.block_structure", NULL}, /* read below */
    {"weights.actorder", NULL},        /* its effect is in weight_g_idx */
    {"weights.observer*", NULL},
    {"weights.scale_dtype", NULL},
    {"weights.zp_dtype", NULL},
    {"input_activations*", NULL}, /* reported */
    {NULL, NULL},
};

static const struct method {
    const char *name;
    lm_quant_method method;
    const rule *rules, *more; /* more may be NULL */
} methods[] = {
    {"mxfp4", LM_QUANT_MXFP4, mxfp4_rules, NULL},        {"fp8", LM_QUANT_FP8, fp8_rules, NULL},
    {"gptq", LM_QUANT_GPTQ, gptq_rules, how_rules},      {"awq", LM_QUANT_AWQ, awq_rules, how_rules},
    {"compressed-tensors", LM_QUANT_CT, ct_rules, NULL},
};
enum { METHODS = sizeof methods / sizeof *methods };

typedef struct reader {
    const lm_meta *m;
    const char *file, *prefix;
    lm_quant_config *q;
    const struct method *method;
    lm_error *err;
} reader;

/* A value as the tables write it. */
static const char *text_of(const lm_value *v, char buf[32]) {
    switch (v->kind) {
    case LM_V_STRING: return v->str.s;
    case LM_V_BOOL: return v->b ? "true" : "false";
    case LM_V_INT: snprintf(buf, 32, "%" PRId64, v->i); return buf;
    case LM_V_FLOAT: snprintf(buf, 32, "%.17g", v->f); return buf;
    case LM_V_ARRAY: return v->arr.n ? "[...]" : "";
    case LM_V_OTHER: return "{}"; /* or an array of objects, which nothing below allows either */
    case LM_V_NULL: break;
    }
    return "null";
}

static bool allowed(const char *values, const char *text) {
    for (size_t n = strlen(text); values; values = strchr(values, '|') ? strchr(values, '|') + 1 : NULL)
        if (!strncasecmp(values, text, n) && (values[n] == '|' || !values[n])) return true;
    return false;
}

static bool key_is(const char *pattern, const char *key) {
    size_t n = strlen(pattern);
    return n && pattern[n - 1] == '*' ? !strncmp(pattern, key, n - 1) : !strcmp(pattern, key);
}

static const rule *find(const rule *rules, const char *rel) {
    for (; rules && rules->key; rules++)
        if (key_is(rules->key, rel)) return rules;
    return NULL;
}

static lm_status check(const reader *r, const rule *rules, const lm_meta_entry *e, const char *rel) {
    char buf[32];
    const rule *x = find(rules, rel);
    if (!x) x = find(r->method->more, rel);
    if (!x)
        return lm_fail_at(r->err, LM_UNSUPPORTED, r->file, LM_NO_OFFSET, e->key,
                          "this key of a %s checkpoint is not understood by lemma; reading the weights without it could change them",
                          r->method->name);
    if (!x->values || allowed(x->values, text_of(&e->value, buf))) return LM_OK;
    return lm_fail_at(r->err, LM_UNSUPPORTED, r->file, LM_NO_OFFSET, e->key,
                      "\"%.60s\" is not supported in a %s checkpoint (supported: %s)", text_of(&e->value, buf), r->method->name,
                      *x->values ? x->values : "nothing");
}

static lm_status add_group(const reader *r, const lm_meta_entry *e) {
    lm_quant_config *q = r->q;
    if (e->value.kind != LM_V_INT || e->value.i < -1 || e->value.i == 0)
        return lm_fail_at(r->err, LM_FORMAT, r->file, LM_NO_OFFSET, e->key, "must be a positive integer, or -1 for whole rows");
    for (uint32_t i = 0; i < q->n_groups; i++)
        if (q->group[i] == e->value.i) return LM_OK;
    if (q->n_groups == LM_QUANT_GROUPS)
        return lm_fail_at(r->err, LM_UNSUPPORTED, r->file, LM_NO_OFFSET, e->key, "over %d group sizes in one checkpoint", LM_QUANT_GROUPS);
    q->group[q->n_groups++] = e->value.i;
    return LM_OK;
}

static lm_status set_block(const reader *r, const lm_meta_entry *e) {
    lm_quant_config *q = r->q;
    const lm_value *v = &e->value;
    const int64_t *b = v->kind == LM_V_ARRAY && v->elem == LM_V_INT && v->arr.n == 2 ? v->arr.data : NULL;
    if (!b || b[0] < 1 || b[1] < 1) return lm_fail_at(r->err, LM_FORMAT, r->file, LM_NO_OFFSET, e->key, "must be two positive integers");
    if (q->has_block && q->method == LM_QUANT_CT && (q->block[0] != (uint64_t)b[0] || q->block[1] != (uint64_t)b[1]))
        return lm_fail_at(r->err, LM_UNSUPPORTED, r->file, LM_NO_OFFSET, e->key, "two block sizes in one checkpoint are not supported");
    q->has_block = true;
    q->block[0] = (uint64_t)b[0];
    q->block[1] = (uint64_t)b[1];
    return LM_OK;
}

static bool ends(const char *s, const char *tail) {
    size_t n = strlen(s), t = strlen(tail);
    return n >= t && !strcmp(s + n - t, tail);
}

/* One key below the prefix. */
static lm_status one_key(const reader *r, const lm_meta_entry *e, const char *rel) {
    lm_quant_config *q = r->q;
    const char *group = q->method == LM_QUANT_CT && !strncmp(rel, "config_groups.", 14) ? strchr(rel + 14, '.') : NULL;
    if (!strcmp(rel, "weight_block_size") && e->value.kind == LM_V_NULL && q->method == LM_QUANT_FP8) q->has_block = false;
    if (!strcmp(rel, "quant_method") || e->value.kind == LM_V_NULL) return LM_OK;
    LM_TRY(group ? check(r, ct_group_rules, e, group + 1) : check(r, r->method->rules, e, rel));
    if (ends(rel, "group_size") && (group ? !strcmp(group + 1, "weights.group_size") : !strcmp(rel, "group_size"))) return add_group(r, e);
    if (!strcmp(rel, "weight_block_size") || (group && !strcmp(group + 1, "weights.block_structure"))) return set_block(r, e);
    if (!strcmp(rel, "bits") && e->value.kind == LM_V_INT) q->bits = (uint32_t)e->value.i;
    if (!strcmp(rel, "activation_scheme")) q->activations = e->value.str.s;
    if (group && !strcmp(group + 1, "input_activations.dynamic"))
        q->activations = e->value.kind == LM_V_BOOL && !e->value.b ? "static" : "dynamic";
    if (group && !strcmp(group + 1, "weights.symmetric"))
        *(e->value.kind == LM_V_BOOL && !e->value.b ? &q->asymmetric : &q->symmetric) = true;
    return LM_OK;
}

static lm_status read_keys(const reader *r) {
    const size_t np = strlen(r->prefix);
    for (uint32_t i = 0; i < r->m->n; i++) {
        const lm_meta_entry *e = &r->m->entry[i];
        if (!strncmp(e->key, r->prefix, np)) LM_TRY(one_key(r, e, e->key + np));
    }
    return LM_OK;
}

static const lm_value *get(const reader *r, const char *rel) {
    char key[128];
    snprintf(key, sizeof key, "%s%s", r->prefix, rel);
    return lm_meta_get(r->m, key);
}

static lm_status finish(const reader *r) {
    lm_quant_config *q = r->q;
    char key[128];
    if (q->method != LM_QUANT_GPTQ && q->method != LM_QUANT_AWQ) return LM_OK;
    snprintf(key, sizeof key, "%sbits", r->prefix);
    if (!q->bits) return lm_fail_at(r->err, LM_FORMAT, r->file, LM_NO_OFFSET, key, "must be an integer: the width of a code");
    if (!q->n_groups) {
        snprintf(key, sizeof key, "%sgroup_size", r->prefix);
        return lm_fail_at(r->err, LM_FORMAT, r->file, LM_NO_OFFSET, key, "is missing: the columns that share a scale");
    }
    if (q->method == LM_QUANT_GPTQ) {
        const lm_value *f = get(r, "checkpoint_format");
        if (!f || f->kind == LM_V_NULL) f = get(r, "format");
        q->zero_is_less_one = !f || f->kind != LM_V_STRING || strcasecmp(f->str.s, "gptq_v2") != 0;
    }
    return LM_OK;
}

/* Where the section stands; compressed-tensors once had its own name for it. */
static lm_status find_prefix(reader *r) {
    static const char *const places[] = {"quantization_config.", "text_config.quantization_config.", "compression_config."};
    for (size_t p = 0; p < sizeof places / sizeof *places; p++) {
        bool here = false;
        for (uint32_t i = 0; i < r->m->n && !here; i++) here = !strncmp(r->m->entry[i].key, places[p], strlen(places[p]));
        if (here && r->prefix)
            return lm_fail_at(r->err, LM_UNSUPPORTED, r->file, LM_NO_OFFSET, places[p], "two quantization sections: %s and %s", r->prefix,
                              places[p]);
        if (here) r->prefix = places[p];
    }
    return LM_OK;
}

lm_status lm_quant_config_read(const lm_meta *m, const char *file, lm_quant_config *out, lm_error *err) {
    char key[128], known[128] = "";
    *out = (lm_quant_config){.method = LM_QUANT_NONE};
    reader r = {.m = m, .file = file, .q = out, .err = err};
    LM_TRY(find_prefix(&r));
    if (!r.prefix) return LM_OK;
    const lm_value *v = get(&r, "quant_method");
    const char *name = v && v->kind == LM_V_STRING ? v->str.s : NULL;
    for (int i = 0; i < METHODS; i++) {
        if (name && !strcmp(name, methods[i].name)) r.method = &methods[i];
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", methods[i].name);
    }
    snprintf(key, sizeof key, "%squant_method", r.prefix);
    if (!r.method)
        return lm_fail_at(err, name ? LM_UNSUPPORTED : LM_FORMAT, file, LM_NO_OFFSET, key,
                          "quantization method '%.60s' is not supported (supported: %s): use another version of the model",
                          name ? name : "(none)", known);
    out->method = r.method->method;
    out->name = r.method->name;
    if (out->method == LM_QUANT_FP8) { /* transformers' default */
        out->has_block = true;
        out->block[0] = out->block[1] = 128;
        out->activations = "dynamic";
    }
    LM_TRY(read_keys(&r));
    out->symmetric |= !out->asymmetric; /* the default */
    return finish(&r);
}
