/* The public API's lm_inspect: what a model's files hold, and what the program that they give does with it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "arch/common/arch.h"
#include "format/source.h"
#include "tokenizer/tokenizer.h"

enum { SHOWN_ELEMENTS = 8 };

struct lm_inspect {
    lm_source *src;
    lm_program *program; /* NULL: refused */
    lm_arena *arena;     /* every string made here */
    lm_tokenizer *tokenizer;
    const lm_skipped *skipped;
    uint32_t n_skipped;
    const char **used_by; /* [n_tensors] */
    const char **json;    /* [meta.n] */
    lm_inspect_count *op, *cache; /* [op_kinds], [n_slots] */
    lm_inspect_info info;
};

/* ---- metadata as text ---------------------------------------------------------------------------------------------------------*/
typedef struct text { char *s; size_t n, cap; } text;

/* What doesn't fit is cut: the buffer is made large enough for the values that are shown. */
static void put(text *t, const char *s, size_t n) {
    if (n > t->cap - t->n - 1) n = t->cap - t->n - 1;
    memcpy(t->s + t->n, s, n);
    t->n += n;
    t->s[t->n] = 0;
}
static void put_string(text *t, const char *s, uint64_t n) {
    put(t, "\"", 1);
    for (uint64_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        char esc[8];
        if (c == '"' || c == '\\') put(t, (char[]){'\\', (char)c}, 2);
        else if (c < 0x20 || c == 0x7f) put(t, esc, (size_t)snprintf(esc, sizeof esc, "\\u%04x", c));
        else put(t, s + i, 1);
    }
    put(t, "\"", 1);
}
static void put_int(text *t, int64_t i) {
    char b[24];
    put(t, b, (size_t)snprintf(b, sizeof b, "%" PRId64, i));
}
static void put_float(text *t, double d) {
    char b[32];
    int n = d - d != 0 ? snprintf(b, sizeof b, "\"%f\"", d) : snprintf(b, sizeof b, "%.9g", d); /* JSON has no infinity */
    put(t, b, (size_t)n);
}
static void put_bool(text *t, bool b) { put(t, b ? "true" : "false", b ? 4 : 5); }

static void put_element(text *t, const lm_value *v, uint64_t i) {
    const void *a = v->arr.data;
    switch (v->elem) {
    case LM_V_BOOL: put_bool(t, ((const uint8_t *)a)[i] != 0); break;
    case LM_V_INT: put_int(t, ((const int64_t *)a)[i]); break;
    case LM_V_FLOAT: put_float(t, ((const double *)a)[i]); break;
    case LM_V_STRING: put_string(t, ((const lm_str *)a)[i].s, ((const lm_str *)a)[i].len); break;
    default: put(t, "null", 4);
    }
}

static size_t room(const lm_value *v) { /* the most that its text takes: every byte of a string may become \u00XX */
    if (v->kind == LM_V_STRING) return v->str.len * 6 + 8;
    size_t n = 64;
    for (uint64_t i = 0; v->kind == LM_V_ARRAY && i < v->arr.n && i < SHOWN_ELEMENTS; i++)
        n += v->elem == LM_V_STRING ? ((const lm_str *)v->arr.data)[i].len * 6 + 8 : 40;
    return n;
}

static const char *value_json(lm_arena *a, const lm_value *v) {
    text t = {.cap = room(v)};
    t.s = lm_arena_alloc(a, t.cap);
    if (!t.s) return NULL;
    switch (v->kind) {
    case LM_V_BOOL: put_bool(&t, v->b); break;
    case LM_V_INT:
        if (v->i < 0 || v->u <= INT64_MAX) put_int(&t, v->i);
        else t.n += (size_t)snprintf(t.s, t.cap, "%" PRIu64, v->u);
        break;
    case LM_V_FLOAT: put_float(&t, v->f); break;
    case LM_V_STRING: put_string(&t, v->str.s, v->str.len); break;
    case LM_V_ARRAY:
        put(&t, "[", 1);
        for (uint64_t i = 0; i < v->arr.n && i < SHOWN_ELEMENTS; i++) {
            if (i) put(&t, ", ", 2);
            put_element(&t, v, i);
        }
        if (v->arr.n > SHOWN_ELEMENTS) put(&t, ", \"…\"", strlen(", \"…\""));
        put(&t, "]", 1);
        break;
    default: put(&t, "null", 4);
    }
    return t.s;
}

static const char *type_name(const lm_value *v) {
    static const char *const plain[] = {[LM_V_NULL] = "null",     [LM_V_BOOL] = "bool",   [LM_V_INT] = "int",    [LM_V_FLOAT] = "float",
                                        [LM_V_STRING] = "string", [LM_V_ARRAY] = "array", [LM_V_OTHER] = "other"};
    static const char *const array[] = {[LM_V_BOOL] = "array of bool", [LM_V_INT] = "array of int", [LM_V_FLOAT] = "array of float",
                                        [LM_V_STRING] = "array of string"};
    return v->kind == LM_V_ARRAY && v->elem >= LM_V_BOOL && v->elem <= LM_V_STRING ? array[v->elem] : plain[v->kind];
}

/* ---- who uses a tensor ---------------------------------------------------------------------------------------------------------*/
static void mark(lm_inspect *in, const char *tensor, const char *op) {
    const lm_tensor *t = lm_source_tensor(in->src, tensor);
    if (t && !in->used_by[t - in->src->tensor]) in->used_by[t - in->src->tensor] = op;
}

static void mark_weight(lm_inspect *in, uint32_t w, const char *op) {
    if (w == LM_NONE) return;
    const lm_weight *p = &in->program->weight[w];
    for (uint32_t i = 0; i < p->n_seg; i++) {
        const lm_segment *s = &p->seg[i];
        if (s->t) mark(in, s->t->name, op);
        for (uint32_t m = 0; s->per_mat && m < p->n_mat; m++) mark(in, s->per_mat[m]->name, op);
    }
}

/* The skipped group that an unused tensor belongs to: groups are prefixes or suffixes, but for layers past the last. */
static bool skipped(const lm_inspect *in, const char *name) {
    size_t n = strlen(name);
    for (uint32_t i = 0; i < in->n_skipped; i++) {
        const char *g = in->skipped[i].group;
        size_t k = strlen(g);
        if (!strncmp(name, g, k) || (n >= k && !strcmp(name + n - k, g))) return true;
        char layer[24];
        snprintf(layer, sizeof layer, ".%u.", in->program->n_layers);
        if (!strcmp(g, "nextn layer") && strstr(name, layer)) return true;
    }
    return false;
}

static void mark_all(lm_inspect *in) {
    const lm_program *p = in->program;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lm_op *op = &p->op[i];
        const uint32_t w[3] = {op->w, op->w2, op->w3}, v[3] = {op->v, op->v2, op->v3};
        for (int k = 0; k < 3; k++) {
            mark_weight(in, w[k], op->name);
            if (v[k] != LM_NONE) mark(in, p->vec[v[k]].name, op->name);
        }
    }
    for (uint32_t i = 0; i < in->src->n_tensors; i++)
        if (!in->used_by[i] && !skipped(in, in->src->tensor[i].name))
            in->used_by[i] = "(no op)"; /* rope factors, and what the family knows it doesn't need */
}

/* ---- the program in numbers ----------------------------------------------------------------------------------------------------*/
static lm_status summarize(lm_inspect *in, lm_error *err) {
    const lm_program *p = in->program;
    lm_inspect_info *o = &in->info;
    uint64_t count[LM_OP_COUNT] = {0};
    for (uint32_t i = 0; i < p->n_ops; i++) count[p->op[i].kind]++;
    in->op = lm_arena_calloc(in->arena, LM_OP_COUNT, sizeof *in->op);
    in->cache = lm_arena_calloc(in->arena, p->n_slots + 1, sizeof *in->cache);
    if (!in->op || !in->cache) return lm_fail_nomem(err, "the summary", sizeof *in->op * LM_OP_COUNT);
    for (int k = 0; k < LM_OP_COUNT; k++)
        if (count[k]) in->op[o->op_kinds++] = (lm_inspect_count){lm_op_name((lm_op_kind)k), count[k]};
    for (uint32_t i = 0; i < p->n_slots; i++) {
        static const char *const kinds[] = {[LM_CACHE_KV] = "keys and values", [LM_CACHE_LATENT] = "latent", [LM_CACHE_INDEX] = "index",
                                            [LM_CACHE_CONV] = "convolution", [LM_CACHE_DELTA] = "delta rule"};
        const lm_cache_slot *s = &p->slot[i];
        bool fixed = s->kind == LM_CACHE_CONV || s->kind == LM_CACHE_DELTA;
        uint64_t per = 4ull * s->heads * ((uint64_t)s->dk + s->dv), window = s->window;
        if (fixed) per = 0, o->cache_bytes_fixed += 4ull * s->heads * s->dk * s->dv;
        else if (window) o->cache_bytes_fixed += per * window;
        else o->cache_bytes_per_token += per;
        char tail[32] = "";
        if (window) snprintf(tail, sizeof tail, ", window %u", s->window);
        const char *name = lm_arena_printf(in->arena, "%s, %u × (%u + %u)%s", kinds[s->kind], s->heads, s->dk, s->dv, tail);
        if (!name) return lm_fail_nomem(err, "the summary", 64);
        in->cache[i] = (lm_inspect_count){name, per};
    }
    o->ops = p->n_ops;
    o->layers = p->n_layers;
    o->hidden = p->hidden;
    o->vocab = p->vocab;
    o->max_position = p->max_position;
    o->traits = p->n_traits;
    o->caches = p->n_slots;
    o->skipped = in->n_skipped;
    return LM_OK;
}

static const char *error_text(lm_arena *a, const lm_error *e) {
    char line[2048];
    lm_error at = *e;
    at.file[0] = 0; /* the file is the one that is inspected */
    lm_error_line(&at, line, sizeof line);
    return lm_arena_strndup(a, line, strlen(line));
}

static const char *arch_name(const lm_source *s) {
    static const char *const keys[] = {"general.architecture", "text_config.model_type", "model_type"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const lm_value *v = lm_meta_get(&s->meta, keys[i]);
        if (v && v->kind == LM_V_STRING) return v->str.s;
    }
    return NULL;
}

static lm_status fill(lm_inspect *in, lm_error *err) {
    const lm_source *s = in->src;
    lm_inspect_info *o = &in->info;
    lm_error e = {0};
    o->kind = s->kind == LM_SOURCE_GGUF ? lm_arena_printf(in->arena, "GGUF %u", s->gguf_version) : "Hugging Face folder";
    o->arch = arch_name(s);
    o->files = s->n_files;
    o->tensors = s->n_tensors;
    o->metadata = s->meta.n;
    in->used_by = lm_arena_calloc(in->arena, s->n_tensors + 1ull, sizeof *in->used_by);
    in->json = lm_arena_calloc(in->arena, s->meta.n + 1ull, sizeof *in->json);
    if (!o->kind || !in->used_by || !in->json) return lm_fail_nomem(err, "the inspection", s->n_tensors * sizeof *in->used_by);
    for (uint32_t i = 0; i < s->n_files; i++) o->file_bytes += s->file[i].size;
    for (uint32_t i = 0; i < s->n_tensors; i++) {
        uint64_t n = 0;
        if (lm_shape_count(s->tensor[i].rank, s->tensor[i].dim, &n)) o->parameters += n;
    }
    for (uint32_t i = 0; i < s->meta.n; i++)
        if (!(in->json[i] = value_json(in->arena, &s->meta.entry[i].value))) return lm_fail_nomem(err, "the metadata's text", 64);
    lm_status st = lm_tokenizer_from_source(s, &in->tokenizer, &e);
    if (st == LM_NOMEM) return *err = e, st;
    o->tokenizer_ok = st == LM_OK;
    o->tokenizer = st == LM_OK ? lm_tokenizer_describe(in->tokenizer) : error_text(in->arena, &e);
    st = lm_arch_build(s, &in->program, NULL, &in->skipped, &in->n_skipped, &e);
    if (st == LM_NOMEM) return *err = e, st;
    if (st != LM_OK) o->refused = error_text(in->arena, &e);
    if (!o->tokenizer || (st != LM_OK && !o->refused)) return lm_fail_nomem(err, "the inspection", 256);
    if (st != LM_OK) return LM_OK;
    mark_all(in);
    return summarize(in, err);
}

lm_status lm_inspect_open(const char *path, lm_inspect **out, lm_error *err) {
    lm_error own;
    if (!err) err = &own;
    lm_inspect *in = lm_calloc(1, sizeof *in);
    if (!in) return lm_fail_nomem(err, "the inspection", sizeof *in);
    lm_status s = lm_source_open(path, &in->src, err);
    if (s == LM_OK && !(in->arena = lm_arena_create())) s = lm_fail_nomem(err, "the inspection", 4096);
    if (s == LM_OK) s = fill(in, err);
    if (s != LM_OK) {
        lm_inspect_close(in);
        return s;
    }
    *out = in;
    return LM_OK;
}

void lm_inspect_close(lm_inspect *in) {
    if (!in) return;
    lm_program_free(in->program);
    lm_tokenizer_free(in->tokenizer);
    lm_source_close(in->src);
    lm_arena_destroy(in->arena);
    lm_free(in);
}

void lm_inspect_get_info(const lm_inspect *in, lm_inspect_info *out) { *out = in->info; }

lm_inspect_tensor lm_inspect_get_tensor(const lm_inspect *in, uint32_t k) {
    if (k >= in->src->n_tensors) return (lm_inspect_tensor){0};
    const lm_tensor *t = &in->src->tensor[k];
    lm_inspect_tensor o = {.name = t->name, .type = t->type->name, .used_by = in->used_by[k], .rank = t->rank, .file = t->file,
                           .offset = t->offset, .bytes = t->bytes};
    memcpy(o.dim, t->dim, t->rank * sizeof *t->dim);
    return o;
}

lm_inspect_meta lm_inspect_get_meta(const lm_inspect *in, uint32_t k) {
    if (k >= in->src->meta.n) return (lm_inspect_meta){0};
    const lm_value *v = &in->src->meta.entry[k].value;
    return (lm_inspect_meta){in->src->meta.entry[k].key, type_name(v), in->json[k], v->kind == LM_V_ARRAY ? v->arr.n : 1};
}

lm_inspect_count lm_inspect_get_op(const lm_inspect *in, uint32_t k) {
    return k < in->info.op_kinds ? in->op[k] : (lm_inspect_count){0};
}
lm_inspect_count lm_inspect_get_trait(const lm_inspect *in, uint32_t k) {
    if (k >= in->info.traits) return (lm_inspect_count){0};
    return (lm_inspect_count){in->program->trait[k].name, in->program->trait[k].min_tokens};
}
lm_inspect_count lm_inspect_get_cache(const lm_inspect *in, uint32_t k) {
    return k < in->info.caches ? in->cache[k] : (lm_inspect_count){0};
}
lm_inspect_count lm_inspect_get_skipped(const lm_inspect *in, uint32_t k) {
    if (k >= in->info.skipped) return (lm_inspect_count){0};
    return (lm_inspect_count){in->skipped[k].group, in->skipped[k].count};
}
