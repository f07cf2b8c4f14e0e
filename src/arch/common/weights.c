#include "arch/common/export.h"
#include <stdio.h>
#include <string.h>

/* ---- names -------------------------------------------------------------------------------------------------------------------*/
static const lm_name common_names[] = {
    {"embed", "model.embed_tokens", "token_embd"},
    {"norm", "model.norm", "output_norm"},
    {"head", "lm_head", "output"},
    {"attn.norm", "model.layers.{l}.input_layernorm", "blk.{l}.attn_norm"},
    {"attn.q", "model.layers.{l}.self_attn.q_proj", "blk.{l}.attn_q"},
    {"attn.k", "model.layers.{l}.self_attn.k_proj", "blk.{l}.attn_k"},
    {"attn.v", "model.layers.{l}.self_attn.v_proj", "blk.{l}.attn_v"},
    {"attn.o", "model.layers.{l}.self_attn.o_proj", "blk.{l}.attn_output"},
    {"attn.q_norm", "model.layers.{l}.self_attn.q_norm", "blk.{l}.attn_q_norm"},
    {"attn.k_norm", "model.layers.{l}.self_attn.k_norm", "blk.{l}.attn_k_norm"},
    {"attn.post_norm", "model.layers.{l}.post_attention_layernorm", "blk.{l}.post_attention_norm"},
    {"ffn.norm", "model.layers.{l}.post_attention_layernorm", "blk.{l}.ffn_norm"},
    {"ffn.gate", "model.layers.{l}.mlp.gate_proj", "blk.{l}.ffn_gate"},
    {"ffn.up", "model.layers.{l}.mlp.up_proj", "blk.{l}.ffn_up"},
    {"ffn.down", "model.layers.{l}.mlp.down_proj", "blk.{l}.ffn_down"},
    {"ffn.post_norm", "model.layers.{l}.post_feedforward_layernorm", "blk.{l}.post_ffw_norm"},
    {"moe.router", "model.layers.{l}.mlp.gate", "blk.{l}.ffn_gate_inp"},
    {"moe.bias", "model.layers.{l}.mlp.gate.e_score_correction_bias", "blk.{l}.exp_probs_b"},
    {"moe.gate", "model.layers.{l}.mlp.experts.{e}.gate_proj", "blk.{l}.ffn_gate_exps"},
    {"moe.up", "model.layers.{l}.mlp.experts.{e}.up_proj", "blk.{l}.ffn_up_exps"},
    {"moe.down", "model.layers.{l}.mlp.experts.{e}.down_proj", "blk.{l}.ffn_down_exps"},
    {"moe.gate_up", "model.layers.{l}.mlp.experts.gate_up_proj", "blk.{l}.ffn_gate_up_exps"},
    {"moe.down_all", "model.layers.{l}.mlp.experts.down_proj", NULL},
    {"moe.shared.gate", "model.layers.{l}.mlp.shared_experts.gate_proj|model.layers.{l}.mlp.shared_expert.gate_proj",
     "blk.{l}.ffn_gate_shexp"},
    {"moe.shared.up", "model.layers.{l}.mlp.shared_experts.up_proj|model.layers.{l}.mlp.shared_expert.up_proj", "blk.{l}.ffn_up_shexp"},
    {"moe.shared.down", "model.layers.{l}.mlp.shared_experts.down_proj|model.layers.{l}.mlp.shared_expert.down_proj",
     "blk.{l}.ffn_down_shexp"},
    {"moe.shared.router", "model.layers.{l}.mlp.shared_expert_gate", "blk.{l}.ffn_gate_inp_shexp"},
    {NULL, NULL, NULL},
};

static const lm_name *find_name(lm_b *b, const char *role) {
    for (const lm_name *n = b->arch->names; n && n->role; n++)
        if (!strcmp(n->role, role)) return n;
    for (const lm_name *n = common_names; n->role; n++)
        if (!strcmp(n->role, role)) return n;
    return NULL;
}

/* Writes one spelling with {l}, {e} and the tensor prefix filled in, plus suffix. */
static void expand(lm_b *b, const char *spelling, size_t len, uint32_t e, const char *suffix, char *buf, size_t n) {
    size_t at = 0;
    buf[0] = 0;
#define PUT(...) at += (size_t)snprintf(buf + at, at < n ? n - at : 0, __VA_ARGS__)
    if (!b->gguf && len >= 6 && !strncmp(spelling, "model.", 6)) {
        PUT("%s", b->tensor_prefix);
        spelling += 6;
        len -= 6;
    } else if (!b->gguf && !strncmp(spelling, "lm_head", 7) && !strcmp(b->tensor_prefix, "language_model.model.")) {
        PUT("language_model.");
    }
    for (size_t i = 0; i < len && at < n;) {
        if (!strncmp(spelling + i, "{l}", 3))
            PUT("%u", b->l), i += 3;
        else if (!strncmp(spelling + i, "{e}", 3))
            PUT("%u", e), i += 3;
        else
            PUT("%c", spelling[i]), i++;
    }
    PUT("%s", suffix);
#undef PUT
}

bool lm_gguf_name(lm_b *b, const char *role, const char *suffix, char *buf, size_t n) {
    const lm_name *nm = find_name(b, role);
    if (!nm || !nm->gguf) return false;
    expand(b, nm->gguf, strcspn(nm->gguf, "|"), 0, suffix, buf, n);
    return true;
}

/* The tensor of a role, NULL when absent; *shown gets the name first tried, for messages. suffix ".weight" also accepts the bare name. */
static const lm_tensor *lookup(lm_b *b, const char *role, uint32_t e, const char *suffix, char *shown, size_t n_shown) {
    if (shown) snprintf(shown, n_shown, "%s", role);
    const lm_name *nm = find_name(b, role);
    const char *list = nm ? (b->gguf ? nm->gguf : nm->hf) : NULL;
    char buf[256];
    for (bool first = true; list; first = false) {
        const char *bar = strchr(list, '|');
        size_t len = bar ? (size_t)(bar - list) : strlen(list);
        expand(b, list, len, e, suffix, buf, sizeof buf);
        if (first && shown) snprintf(shown, n_shown, "%s", buf);
        const lm_tensor *t = lm_source_tensor(b->src, buf);
        if (!t && !strcmp(suffix, ".weight")) {
            expand(b, list, len, e, "", buf, sizeof buf);
            t = lm_source_tensor(b->src, buf);
        }
        if (t) return t;
        list = bar ? bar + 1 : NULL;
    }
    return NULL;
}

static const lm_tensor *consume(lm_b *b, const lm_tensor *t) {
    if (t >= b->src->tensor && t < b->src->tensor + b->src->n_tensors) b->tensor_used[t - b->src->tensor] = 1;
    return t;
}

bool lm_has(lm_b *b, const char *role) { return lookup(b, role, 0, ".weight", NULL, 0) != NULL; }
bool lm_has_bias(lm_b *b, const char *role) { return lookup(b, role, 0, ".bias", NULL, 0) != NULL; }

const lm_tensor *lm_tensor_of(lm_b *b, const char *role, const char *suffix) {
    const lm_tensor *t = lookup(b, role, 0, suffix, NULL, 0);
    return t ? consume(b, t) : NULL;
}

void lm_unused(lm_b *b, const char *role, const char *suffix) {
    const lm_tensor *t = lookup(b, role, 0, suffix, NULL, 0);
    if (t) b->tensor_used[t - b->src->tensor] = 2;
}

static bool is_integer(const lm_dtype *t) {
    static const char *const names[] = {"I8", "I16", "I32", "I64", "U8", "BOOL"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(t->name, names[i])) return true;
    return false;
}

static const lm_tensor *need(lm_b *b, const char *role, uint32_t e, const char *suffix) {
    if (!lm_graph_ok(&b->g)) return NULL;
    char shown[256];
    const lm_tensor *t = lookup(b, role, e, suffix, shown, sizeof shown);
    if (!t) {
        lm_graph_fail(&b->g, LM_FORMAT, shown, "the tensor is missing from the model");
        return NULL;
    }
    if (is_integer(t->type)) {
        lm_graph_fail(&b->g, LM_UNSUPPORTED, t->name,
                      "is stored as plain integers (%s), which no weight is; quantized weights need their scales", t->type->name);
        return NULL;
    }
    return consume(b, t);
}

/* Shapes are compared without leading or trailing ones, so that [H] meets [1, H] and a conv's [C, 1, K] meets [C, K]. */
static bool want_shape(lm_b *b, const lm_tensor *t, uint32_t rank, const uint64_t *dim) {
    uint64_t a[LM_MAX_RANK], w[LM_MAX_RANK];
    uint32_t na = 0, nw = 0;
    for (uint32_t i = 0; i < t->rank; i++)
        if (t->dim[i] != 1) a[na++] = t->dim[i];
    for (uint32_t i = 0; i < rank; i++)
        if (dim[i] != 1) w[nw++] = dim[i];
    if (na == nw && !memcmp(a, w, na * sizeof *a)) return true;
    char found[96], wanted[96];
    lm_shape_text(rank, dim, wanted, sizeof wanted);
    lm_shape_text(t->rank, t->dim, found, sizeof found);
    lm_graph_fail(&b->g, LM_FORMAT, t->name, "the config wants shape %s, the file has %s", wanted, found);
    return false;
}

/* ---- matrices ------------------------------------------------------------------------------------------------------------------*/
static void set_segment(lm_segment *s, const lm_tensor *t, uint64_t first, uint64_t rows, lm_part p) {
    *s = (lm_segment){.t = t,
                      .first = first,
                      .count = rows,
                      .base = p.base,
                      .group = p.group ? p.group : rows,
                      .group_stride = p.group_stride,
                      .step = p.step ? p.step : 1,
                      .rope_dim = p.rope_dim};
}

static lm_segment *one_segment(lm_b *b, const lm_tensor *t, uint64_t rows, lm_part p) {
    lm_segment *s = lm_arena_alloc(b->g.p->arena, sizeof *s);
    if (!s) {
        lm_graph_fail(&b->g, LM_NOMEM, t->name, "out of memory reading the model");
        return NULL;
    }
    set_segment(s, t, 0, rows, p);
    return s;
}

uint32_t lm_mat_parts(lm_b *b, const char *role, uint64_t total, uint64_t cols, uint32_t n, const lm_part *part, const uint64_t *count) {
    const lm_tensor *t = need(b, role, 0, ".weight");
    if (!t || !want_shape(b, t, 2, (const uint64_t[]){total, cols})) return LM_NONE;
    lm_segment *s = lm_arena_calloc(b->g.p->arena, n, sizeof *s);
    if (!s) return lm_graph_fail(&b->g, LM_NOMEM, t->name, "out of memory reading the model");
    uint64_t rows = 0;
    for (uint32_t i = 0; i < n; rows += count[i++]) set_segment(&s[i], t, rows, count[i], part[i]);
    uint32_t w = lm_graph_weight(
        &b->g, &(lm_weight){.name = t->name, .type = t->type, .n_mat = 1, .rows = rows, .cols = cols, .n_seg = n, .seg = s});
    if (b->log) lm_log_matrix(b, role, t, NULL, 1, false, total, cols, w);
    return w;
}

uint32_t lm_mat_part(lm_b *b, const char *role, uint64_t total, uint64_t cols, uint64_t rows, lm_part part) {
    return lm_mat_parts(b, role, total, cols, 1, &part, &rows);
}

uint32_t lm_mat(lm_b *b, const char *role, uint64_t rows, uint64_t cols) { return lm_mat_part(b, role, rows, cols, rows, (lm_part){0}); }

/* A stack that HF stores as one tensor per matrix */
static bool is_apart(lm_b *b, const char *role) {
    const lm_name *nm = find_name(b, role);
    return !b->gguf && nm && nm->hf && strstr(nm->hf, "{e}") != NULL;
}

/* The whole stack of which one matrix was fetched: GGUF holds it as one tensor. */
static void log_stack(lm_b *b, const char *role, uint32_t n, uint64_t rows, uint64_t cols, const lm_tensor *first, bool apart, uint32_t w) {
    const lm_tensor **each = apart ? lm_arena_calloc(b->g.p->arena, n, sizeof *each) : NULL;
    if (apart && !each) lm_graph_fail(&b->g, LM_NOMEM, first->name, "out of memory");
    for (uint32_t e = 0; e < n && each; e++)
        if (!(each[e] = need(b, role, e, ".weight")) || !want_shape(b, each[e], 2, (const uint64_t[]){rows, cols})) return;
    lm_log_matrix(b, role, first, each, n, true, rows, cols, w);
}

uint32_t lm_mat_of_stack(lm_b *b, const char *role, uint32_t n, uint32_t i, uint64_t rows, uint64_t cols) {
    bool apart = is_apart(b, role);
    const lm_tensor *t = need(b, role, apart ? i : 0, ".weight");
    const uint64_t shape[3] = {n, rows, cols};
    if (!t || !want_shape(b, t, apart ? 2 : 3, apart ? shape + 1 : shape)) return LM_NONE;
    lm_segment *s = one_segment(b, t, rows, (lm_part){.base = apart ? 0 : i * rows});
    if (!s) return LM_NONE;
    uint32_t w = lm_graph_weight(
        &b->g, &(lm_weight){.name = t->name, .type = t->type, .n_mat = 1, .rows = rows, .cols = cols, .n_seg = 1, .seg = s});
    if (b->log && i == 0) log_stack(b, role, n, rows, cols, t, apart, w);
    return w;
}

uint32_t lm_mat_stack(lm_b *b, const char *role, uint32_t n, uint64_t total, uint64_t cols, uint64_t rows, lm_part part) {
    const lm_tensor *t = need(b, role, 0, ".weight");
    if (!t) return LM_NONE;
    bool apart = is_apart(b, role);
    lm_segment *s = one_segment(b, t, rows, part);
    if (!s) return LM_NONE;
    if (!apart) {
        if (!want_shape(b, t, 3, (const uint64_t[]){n, total, cols})) return LM_NONE;
        s->mat_stride = total;
    } else {
        const lm_tensor **each = lm_arena_calloc(b->g.p->arena, n, sizeof *each);
        if (!each) return lm_graph_fail(&b->g, LM_NOMEM, t->name, "out of memory reading the model");
        for (uint32_t e = 0; e < n; e++) {
            each[e] = need(b, role, e, ".weight");
            if (!each[e] || !want_shape(b, each[e], 2, (const uint64_t[]){total, cols})) return LM_NONE;
            if (each[e]->type != t->type)
                return lm_graph_fail(&b->g, LM_UNSUPPORTED, each[e]->name, "is %s while expert 0's is %s: one type per layer is needed",
                                     each[e]->type->name, t->type->name);
        }
        s->per_mat = each;
    }
    uint32_t w = lm_graph_weight(
        &b->g, &(lm_weight){.name = t->name, .type = t->type, .n_mat = n, .rows = rows, .cols = cols, .n_seg = 1, .seg = s});
    if (b->log) lm_log_matrix(b, role, t, s->per_mat, n, true, total, cols, w);
    return w;
}

uint32_t lm_mat_transposed(lm_b *b, const char *role, uint64_t rows, uint64_t cols) {
    const lm_tensor *t = need(b, role, 0, ".weight");
    if (!t || !want_shape(b, t, 2, (const uint64_t[]){cols, rows})) return LM_NONE;
    if (t->type->block != 1)
        return lm_graph_fail(&b->g, LM_UNSUPPORTED, t->name, "is stored transposed in a block type (%s)", t->type->name);
    size_t e = t->type->bytes;
    uint8_t *data = lm_arena_calloc(b->g.p->arena, rows * cols, e), *scratch = lm_arena_calloc(b->g.p->arena, rows, e);
    lm_tensor *own = lm_arena_alloc(b->g.p->arena, sizeof *own);
    if (!data || !scratch || !own) return lm_graph_fail(&b->g, LM_NOMEM, t->name, "out of memory transposing the tensor");
    for (uint64_t i = 0; i < cols; i++) {
        const uint8_t *row = lm_tensor_row_bytes(t, i, scratch);
        for (uint64_t o = 0; o < rows; o++) memcpy(data + (o * cols + i) * e, row + o * e, e);
    }
    *own = *t;
    own->dim[0] = rows;
    own->dim[1] = cols;
    own->data = data;
    own->packed = NULL;
    own->file = UINT32_MAX;
    lm_segment *s = one_segment(b, own, rows, (lm_part){0});
    if (!s) return LM_NONE;
    uint32_t w = lm_graph_weight(
        &b->g, &(lm_weight){.name = t->name, .type = t->type, .n_mat = 1, .rows = rows, .cols = cols, .n_seg = 1, .seg = s});
    if (b->log) lm_log_matrix(b, role, own, NULL, 1, false, rows, cols, w);
    return w;
}

/* ---- vectors -------------------------------------------------------------------------------------------------------------------*/
static double *decode_all(lm_b *b, const lm_tensor *t, uint64_t n) {
    uint64_t cols = lm_tensor_cols(t), rows = lm_tensor_rows(t);
    double *v = lm_arena_calloc(b->g.p->arena, n, sizeof *v);
    if (!v || rows * cols != n) {
        lm_graph_fail(&b->g, LM_NOMEM, t->name, "out of memory decoding the vector");
        return NULL;
    }
    for (uint64_t r = 0; r < rows; r++) lm_tensor_row_f64(t, r, v + r * cols);
    return v;
}

uint32_t lm_vec_part(lm_b *b, const char *role, const char *suffix, uint32_t n_mat, uint64_t total, uint64_t count, lm_part p,
                     bool optional) {
    if (!lm_graph_ok(&b->g)) return LM_NONE;
    if (optional && !lookup(b, role, 0, suffix, NULL, 0)) return LM_NONE;
    const lm_tensor *t = need(b, role, 0, suffix);
    if (!t || !want_shape(b, t, 2, (const uint64_t[]){n_mat, total})) return LM_NONE;
    double *all = decode_all(b, t, n_mat * total);
    double *v = all ? lm_arena_calloc(b->g.p->arena, n_mat * count, sizeof *v) : NULL;
    if (!v) return lm_graph_fail(&b->g, LM_NOMEM, t->name, "out of memory reading the model");
    uint64_t group = p.group ? p.group : count, step = p.step ? p.step : 1;
    for (uint64_t m = 0; m < n_mat; m++)
        for (uint64_t i = 0; i < count; i++) {
            uint64_t j = i;
            if (p.rope_dim) {
                uint64_t d = i % p.rope_dim, half = p.rope_dim / 2;
                j = i - d + (d < half ? 2 * d : 2 * (d - half) + 1);
            }
            v[m * count + i] = all[m * total + p.base + (j / group) * p.group_stride + (j % group) * step];
        }
    uint32_t vec = lm_graph_vec(&b->g, t->name, v, n_mat * count);
    if (b->log) lm_log_vector(b, role, suffix, n_mat, count, vec);
    return vec;
}

uint32_t lm_vec_of(lm_b *b, const char *role, const char *suffix, uint64_t n, bool plus_one, bool optional) {
    if (!lm_graph_ok(&b->g)) return LM_NONE;
    if (optional && !lookup(b, role, 0, suffix, NULL, 0)) return LM_NONE;
    const lm_tensor *t = need(b, role, 0, suffix);
    if (!t || !want_shape(b, t, 1, &n)) return LM_NONE;
    double *v = decode_all(b, t, n);
    if (!v) return LM_NONE;
    for (uint64_t i = 0; plus_one && i < n; i++) v[i] += 1.0;
    uint32_t vec = lm_graph_vec(&b->g, t->name, v, n);
    if (b->log) lm_log_vector(b, role, suffix, 1, n, vec);
    return vec;
}

lm_val lm_linear(lm_b *b, const char *role, lm_val x, uint64_t rows, int bias, bool split) {
    if (!lm_graph_ok(&b->g)) return LM_NONE;
    uint32_t w = lm_mat(b, role, rows, lm_width(&b->g, x));
    uint32_t v = bias ? lm_vec_of(b, role, ".bias", rows, false, bias < 0) : LM_NONE;
    return lm_op_linear(&b->g, role, x, w, v, split);
}
