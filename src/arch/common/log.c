/* The log of a build from a Hugging Face folder, turned into GGUF keys and tensors as it is kept. */
#include "arch/common/log.h"
#include <stdio.h>
#include <string.h>

enum { GGUF_U32 = 4, GGUF_I32 = 5, GGUF_F32 = 6, GGUF_BOOL = 7, GGUF_STRING = 8, GGUF_I64 = 11, GGUF_F64 = 12 };

/* Room for one more element of `size` bytes in *list; false after failing the build. */
static bool grow(lm_b *b, void *list, uint32_t n, uint32_t *cap, size_t size) {
    if (n < *cap) return true;
    uint32_t more = *cap ? 2 * *cap : 64;
    void *p = lm_arena_calloc(b->g.p->arena, more, size), *old;
    if (!p) {
        lm_graph_fail(&b->g, LM_NOMEM, "export", "out of memory");
        return false;
    }
    memcpy(&old, list, sizeof old);
    if (n) memcpy(p, old, n * size);
    memcpy(list, &p, sizeof p);
    *cap = more;
    return true;
}

/* ---- metadata --------------------------------------------------------------------------------------------------------------------*/
static const char *keep_text(lm_b *b, const char *s) {
    char *own = lm_arena_strndup(b->g.p->arena, s, strlen(s));
    if (!own) lm_graph_fail(&b->g, LM_NOMEM, "export", "out of memory");
    return own;
}

/* key: relative to the architecture, or absolute after '='. */
static void put(lm_b *b, const char *key, lm_value v) {
    char full[200];
    bool absolute = key[0] == '=';
    snprintf(full, sizeof full, "%s%s%s", absolute ? "" : b->arch->gguf, absolute ? "" : ".", key + absolute);
    lm_export *x = b->log->x;
    uint32_t i = 0;
    while (i < x->n_kv && strcmp(x->kv[i].key, full)) i++;
    if (i == x->n_kv) {
        if (!grow(b, &x->kv, x->n_kv, &x->cap_kv, sizeof *x->kv)) return;
        const char *own = keep_text(b, full);
        if (!own) return;
        x->kv[x->n_kv++].key = own;
    }
    x->kv[i].value = v;
}

void lm_export_u32(lm_b *b, const char *key, uint32_t v) {
    put(b, key, (lm_value){.kind = LM_V_INT, .i = v, .u = v, .gguf_type = GGUF_U32});
}
void lm_export_f32(lm_b *b, const char *key, double v) {
    put(b, key, (lm_value){.kind = LM_V_FLOAT, .f = (double)(float)v, .gguf_type = GGUF_F32});
}
static void put_str(lm_b *b, const char *key, const char *s) {
    put(b, key, (lm_value){.kind = LM_V_STRING, .str = {s, strlen(s)}, .gguf_type = GGUF_STRING});
}

void lm_export_array(lm_b *b, const char *key, lm_value_kind elem, const void *data, uint64_t n) {
    size_t bytes = (size_t)n * (elem == LM_V_BOOL ? 1 : sizeof(int64_t)); /* or double */
    void *own = lm_arena_alloc(b->g.p->arena, bytes ? bytes : 1);
    if (!own) {
        lm_graph_fail(&b->g, LM_NOMEM, key, "out of memory");
        return;
    }
    memcpy(own, data, bytes);
    for (uint64_t i = 0; elem == LM_V_FLOAT && i < n; i++) ((double *)own)[i] = (double)(float)((double *)own)[i];
    put(b, key,
        (lm_value){.kind = LM_V_ARRAY,
                   .elem = elem,
                   .arr = {own, n},
                   .gguf_type = elem == LM_V_BOOL    ? GGUF_BOOL
                                : elem == LM_V_FLOAT ? GGUF_F32
                                                     : GGUF_I32});
}

void lm_export_layers(lm_b *b, const char *key, const uint32_t *v) {
    uint32_t n = b->hp.n_layers;
    int64_t *all = lm_arena_calloc(b->g.p->arena, n, sizeof *all);
    bool same = true;
    for (uint32_t l = 0; l < n && all; l++) all[l] = v[l], same &= v[l] == v[0];
    if (!all)
        lm_graph_fail(&b->g, LM_NOMEM, key, "out of memory");
    else if (same)
        lm_export_u32(b, key, v[0]);
    else
        lm_export_array(b, key, LM_V_INT, all, n);
}

void lm_export_forget(lm_b *b, const char *key) {
    lm_log *l = b->log;
    for (uint32_t i = 0; i < l->n_keys; i++)
        if (!strcmp(l->key[i].key, key)) l->key[i] = l->key[--l->n_keys];
}

/* Of "a|b": the first, but for the one key that says which norm it is about. */
static void spelling(lm_b *b, const char *list, char *buf, size_t n) {
    if (strstr(list, "layer_norm_epsilon") && strchr(list, '|'))
        snprintf(buf, n, "%s", b->arch->norm == LM_NORM_LAYER ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon");
    else
        snprintf(buf, n, "%.*s", (int)strcspn(list, "|"), list);
}

void lm_log_value(lm_b *b, const char *gguf, lm_value v, bool found) {
    char key[120];
    if (!b->log->x || gguf[0] == '=') return;
    spelling(b, gguf, key, sizeof key);
    if (!strcmp(key, "attention.sliding_window") || !strcmp(key, "attention.key_length") || !strcmp(key, "attention.value_length") ||
        !strcmp(key, "expert_gating_func"))
        return; /* finish_common */
    if (v.kind == LM_V_INT && !v.i && !found && strcmp(key, "nextn_predict_layers")) return;
    if (v.kind == LM_V_FLOAT && v.f == 0.0 && (!found || strstr(key, "softcapping"))) return;
    if (v.kind == LM_V_INT)
        lm_export_u32(b, key, (uint32_t)v.i);
    else if (v.kind == LM_V_FLOAT)
        lm_export_f32(b, key, v.f);
    else if (v.kind == LM_V_BOOL)
        put(b, key, (lm_value){.kind = LM_V_BOOL, .b = v.b, .gguf_type = GGUF_BOOL});
    else if (v.kind == LM_V_ARRAY && (v.elem == LM_V_INT || v.elem == LM_V_BOOL)) {
        const int64_t *a = v.arr.data;
        bool same = v.elem == LM_V_INT && v.arr.n > 0;
        for (uint64_t i = 1; same && i < v.arr.n; i++) same = a[i] == a[0];
        if (same)
            lm_export_u32(b, key, (uint32_t)a[0]);
        else
            lm_export_array(b, key, v.elem, v.arr.data, v.arr.n);
    }
}

static void candidate_of(lm_b *b, const char *key, lm_value v) {
    lm_log *l = b->log;
    for (uint32_t i = 0; i < l->n_keys; i++)
        if (!strcmp(l->key[i].key, key)) return;
    bool big = false;
    for (uint64_t i = 0; v.kind == LM_V_ARRAY && v.elem == LM_V_INT && i < v.arr.n; i++)
        big |= ((const int64_t *)v.arr.data)[i] != (int32_t)((const int64_t *)v.arr.data)[i];
    if (v.kind == LM_V_INT) big = v.i != (int32_t)v.i;
    switch (v.kind == LM_V_ARRAY ? v.elem : v.kind) {
    case LM_V_BOOL: v.gguf_type = GGUF_BOOL; break;
    case LM_V_INT: v.gguf_type = big ? GGUF_I64 : GGUF_I32; break;
    case LM_V_FLOAT: v.gguf_type = GGUF_F64; break;
    case LM_V_STRING: v.gguf_type = GGUF_STRING; break;
    default: return;
    }
    const char *own = keep_text(b, key);
    if (!own || !grow(b, &l->key, l->n_keys, &l->cap_keys, sizeof *l->key)) return;
    l->key[l->n_keys++] = (lm_log_key){.key = own, .value = v, .keep = true};
}

void lm_log_raw(lm_b *b, const char *key, const lm_value *v) {
    /* rope settings are written from the tables that came of them */
    static const char *const rope[] = {"rope_scaling", "rope_parameters", "rope_theta", "partial_rotary_factor",
                                       "original_max_position_embeddings"};
    if (!b->log->x) return;
    for (size_t i = 0; i < sizeof rope / sizeof *rope; i++)
        if (!strncmp(key, rope[i], strlen(rope[i]))) return;
    candidate_of(b, key, *v);
}

/* ---- tensors ---------------------------------------------------------------------------------------------------------------------*/
/* Roles that are written as they are used, not as they are stored: the n-th fetch of the first is the n-th of the others. */
static const struct {
    const char *role, *apart[2];
} split[] = {
    {"moe.gate_up", {"moe.gate", "moe.up"}},
    {"moe.down_all", {"moe.down", "moe.down"}},
    {"delta.qkvz", {"delta.qkv", "delta.z"}},
    {"layer_input.table", {"layer_input.table", "layer_input.table"}}, /* a row for every id, also where HF takes row 0 */
};
/* Suffixes that differ from HF's. */
static const struct {
    const char *role, *suffix;
} suffixes[] = {{"moe.bias", ".bias"}, {"attn.sinks", ".weight"}, {"delta.dt", ".bias"},
                {"delta.A_log", ""},   {"moe.router_norm", ""},   {"moe.expert_scale", ""}};
/* llama.cpp wants these in float32. */
static const char *const float_roles[] = {"moe.router",   "moe.shared.router", "positions",    "delta.conv",
                                          "altup.router", "altup.predict",     "altup.correct"};

/* Role in GGUF of this fetch; *apart: it is stored as one logical matrix. */
static const char *gguf_role(lm_b *b, const char *role, const char *suffix, bool *apart) {
    lm_log *l = b->log;
    *apart = false;
    for (size_t i = 0; i < sizeof split / sizeof *split; i++) {
        if (strcmp(role, split[i].role)) continue;
        char id[64];
        snprintf(id, sizeof id, "%s%s", role, suffix);
        if (!l->fused.role || strcmp(l->fused.role, id) || l->fused.layer != b->l)
            l->fused.role = keep_text(b, id), l->fused.layer = b->l, l->fused.n = 0;
        *apart = true;
        return split[i].apart[l->fused.n++ ? 1 : 0];
    }
    return role;
}

static lm_export_tensor *add(lm_b *b, const char *role, const char *suffix) {
    lm_export *x = b->log->x;
    char name[160];
    if (!lm_gguf_name(b, role, suffix, name, sizeof name)) {
        lm_graph_fail(&b->g, LM_UNSUPPORTED, role, "GGUF has no name for this tensor of %s", b->arch->name);
        return NULL;
    }
    for (uint32_t i = x->n_tensors; i-- > 0;)
        if (!strcmp(x->tensor[i].name, name)) return NULL; /* a part of a tensor that is written whole, or a tied head */
    const char *own = keep_text(b, name), *own_role = keep_text(b, role);
    if (!own || !own_role || !grow(b, &x->tensor, x->n_tensors, &x->cap_tensors, sizeof *x->tensor)) return NULL;
    lm_export_tensor *t = &x->tensor[x->n_tensors++];
    *t = (lm_export_tensor){.role = own_role, .name = own, .layer = b->l};
    for (size_t i = 0; i < sizeof float_roles / sizeof *float_roles; i++) t->f32 |= !strcmp(role, float_roles[i]);
    if (b->arch->gguf_permuted_qk && (!strcmp(role, "attn.q") || !strcmp(role, "attn.k"))) t->rope_dim = b->hp.layer[b->l].dk;
    return t;
}

/* The whole stored tensor as a weight. */
static const lm_weight *whole(lm_b *b, const lm_tensor *t, const lm_tensor *const *per_mat, uint32_t n_mat, uint64_t total, uint64_t cols) {
    lm_segment *s = lm_arena_alloc(b->g.p->arena, sizeof *s);
    lm_weight *w = lm_arena_alloc(b->g.p->arena, sizeof *w);
    if (!s || !w) {
        lm_graph_fail(&b->g, LM_NOMEM, t->name, "out of memory");
        return NULL;
    }
    *s = (lm_segment){.t = t, .per_mat = per_mat, .count = total, .group = total, .mat_stride = per_mat ? 0 : total, .step = 1};
    *w = (lm_weight){.name = t->name, .type = t->type, .n_mat = n_mat, .rows = total, .cols = cols, .n_seg = 1, .seg = s};
    return w;
}

void lm_log_matrix(lm_b *b, const char *role, const lm_tensor *t, const lm_tensor *const *per_mat, uint32_t n_mat, bool stack,
                   uint64_t total, uint64_t cols, uint32_t w) {
    if (!b->log->x || w == LM_NONE || !lm_graph_ok(&b->g)) return;
    bool apart;
    const char *as = gguf_role(b, role, "", &apart);
    lm_export_tensor *e = add(b, as, ".weight");
    if (!e) return;
    if (apart) {
        lm_weight *own = lm_arena_alloc(b->g.p->arena, sizeof *own);
        if (own) *own = b->g.p->weight[w];
        e->w = own;
    } else {
        e->w = whole(b, t, per_mat, n_mat, total, cols);
    }
    if (!e->w) {
        lm_graph_fail(&b->g, LM_NOMEM, e->name, "out of memory");
        return;
    }
    uint64_t rows = e->w->rows;
    if (stack) e->dim[e->rank++] = n_mat;
    if (stack || rows > 1 || strcmp(role, "moe.shared.router")) e->dim[e->rank++] = rows; /* that one is a vector in GGUF */
    e->dim[e->rank++] = cols;
}

void lm_log_vector(lm_b *b, const char *role, const char *suffix, uint32_t n_mat, uint64_t n, uint32_t vec) {
    if (!b->log->x || vec == LM_NONE || !lm_graph_ok(&b->g)) return;
    bool apart;
    const char *as = gguf_role(b, role, suffix, &apart);
    if (apart) suffix = ".bias";
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (!strcmp(suffixes[i].role, as)) suffix = suffixes[i].suffix;
    lm_export_tensor *e = add(b, as, suffix);
    if (!e) return;
    e->v = b->g.p->vec[vec].v;
    e->f32 = true;
    if (n_mat > 1) e->dim[e->rank++] = n_mat;
    e->dim[e->rank++] = n;
}

lm_export_tensor *lm_export_find(lm_b *b, const char *role, uint32_t layer) {
    lm_export *x = b->log->x;
    for (uint32_t i = 0; i < x->n_tensors; i++)
        if (x->tensor[i].layer == layer && !strcmp(x->tensor[i].role, role)) return &x->tensor[i];
    return NULL;
}

lm_export_tensor *lm_export_add(lm_b *b, const char *role, const char *suffix, uint32_t layer) {
    b->l = layer;
    return add(b, role, suffix);
}

bool lm_export_name(lm_b *b, lm_export_tensor *t, const char *role, const char *suffix) {
    char name[160];
    b->l = t->layer;
    if (!lm_gguf_name(b, role, suffix, name, sizeof name)) return false;
    t->name = keep_text(b, name);
    t->role = role;
    return t->name != NULL;
}

/* ---- rope ------------------------------------------------------------------------------------------------------------------------*/
void lm_log_rope(lm_b *b, const lm_rope_spec *s, uint32_t head_dim, uint32_t n_rot, uint32_t table) {
    lm_log *l = b->log;
    if (!l->x || table == LM_NONE) return;
    for (uint32_t i = 0; i < l->n_ropes; i++)
        if (l->rope[i].table == table) return;
    if (!grow(b, &l->rope, l->n_ropes, &l->cap_ropes, sizeof *l->rope)) return;
    l->rope[l->n_ropes++] = (lm_log_table){.spec = *s, .head_dim = head_dim, .n_rot = n_rot, .table = table};
}

/* The table of full attention, where windowed layers have their own. */
static const lm_log_table *main_table(lm_b *b) {
    lm_log *l = b->log;
    for (uint32_t i = 0; i < b->hp.n_layers; i++)
        for (uint32_t k = 0; k < l->n_ropes; k++)
            if (!b->hp.layer[i].window && b->hp.layer[i].rope == l->rope[k].table) return &l->rope[k];
    return l->n_ropes ? &l->rope[0] : NULL;
}

const lm_rope_spec *lm_export_rope(lm_b *b) {
    const lm_log_table *t = main_table(b);
    return t ? &t->spec : NULL;
}

static void factors(lm_b *b, const char *name, const double *v, uint32_t n) {
    lm_export *x = b->log->x;
    if (!grow(b, &x->tensor, x->n_tensors, &x->cap_tensors, sizeof *x->tensor)) return;
    x->tensor[x->n_tensors++] =
        (lm_export_tensor){.role = "rope", .name = name, .layer = UINT32_MAX, .rank = 1, .dim = {n}, .v = v, .f32 = true};
}

/* The divisor that takes 1/theta^(2i/dim) to this frequency, exactly if some float32 does: 1 and the factor are tried first. */
static double divisor(double base, double want, double factor) {
    const double plain[2] = {1.0, factor};
    for (int i = 0; i < 2; i++)
        if ((double)(float)(base / plain[i]) == want) return plain[i];
    float d = (float)(base / want), up = d, down = d;
    for (int i = 0; i < 16; i++) {
        if ((double)(float)(base / up) == want) return up;
        if ((double)(float)(base / down) == want) return down;
        up = nextafterf(up, INFINITY);
        down = nextafterf(down, 0.0f);
    }
    return d;
}

/* Frequencies that no key describes, as divisors; one that doesn't turn has the divisor 1e30. */
static void frequencies(lm_b *b, const lm_log_table *t) {
    const lm_rope *r = &b->g.p->rope[t->table];
    double *d = lm_arena_calloc(b->g.p->arena, r->n_pairs, sizeof *d), theta = (double)(float)t->spec.theta;
    if (!d) {
        lm_graph_fail(&b->g, LM_NOMEM, "rope_freqs.weight", "out of memory");
        return;
    }
    for (uint32_t i = 0; i < r->n_pairs; i++)
        d[i] = r->inv_freq[i] == 0.0 ? 1e30 : divisor(1.0 / pow(theta, 2.0 * i / t->n_rot), r->inv_freq[i], t->spec.factor);
    factors(b, "rope_freqs.weight", d, r->n_pairs);
}

void lm_export_rope_freqs(lm_b *b) {
    const lm_log_table *t = main_table(b);
    const lm_export *x = b->log->x;
    for (uint32_t i = 0; i < x->n_tensors; i++)
        if (!strcmp(x->tensor[i].name, "rope_freqs.weight")) return;
    if (t) frequencies(b, t);
}

static void finish_rope(lm_b *b) {
    const lm_log_table *t = main_table(b);
    if (!t) return;
    const lm_rope_spec *s = &t->spec;
    const lm_rope *r = &b->g.p->rope[t->table];
    lm_export_f32(b, "rope.freq_base", s->theta);
    lm_export_u32(b, "rope.dimension_count", t->n_rot);
    bool yarn = !strcmp(s->type, "yarn");
    if (yarn || (!strcmp(s->type, "linear") && s->factor != 1.0)) {
        put_str(b, "rope.scaling.type", s->type);
        lm_export_f32(b, "rope.scaling.factor", s->factor);
    }
    if (yarn) {
        lm_export_u32(b, "rope.scaling.original_context_length", s->original);
        lm_export_f32(b, "rope.scaling.yarn_beta_fast", s->beta_fast);
        lm_export_f32(b, "rope.scaling.yarn_beta_slow", s->beta_slow);
        candidate_of(b, "rope_attention_factor", (lm_value){.kind = LM_V_FLOAT, .f = r->factor});
        candidate_of(b, "rope_truncate", (lm_value){.kind = LM_V_BOOL, .b = s->truncate});
    } else if (!strcmp(s->type, "longrope")) {
        lm_export_u32(b, "rope.scaling.original_context_length", r->border);
        lm_export_f32(b, "rope.scaling.attn_factor", r->factor);
        factors(b, "rope_factors_long.weight", s->long_factor, s->n_factors);
        factors(b, "rope_factors_short.weight", s->short_factor, s->n_factors);
    } else if (!strcmp(s->type, "llama3") || !strcmp(s->type, "proportional")) {
        frequencies(b, t);
    }
    for (uint32_t i = 0; i < b->log->n_ropes; i++)
        if (&b->log->rope[i] != t) lm_export_f32(b, "rope.freq_base_swa", b->log->rope[i].spec.theta);
}

/* ---- what the log can't know -----------------------------------------------------------------------------------------------------*/
static void finish_common(lm_b *b) {
    lm_hparams *h = &b->hp;
    const lm_layer_hp *a = &h->layer[0];
    put_str(b, "=general.architecture", b->arch->gguf);
    lm_export_u32(b, "vocab_size", h->vocab);
    if (h->max_position) lm_export_u32(b, "context_length", h->max_position);
    if (a->dk != h->hidden / h->heads || a->dv != a->dk || lm_cfg_has(b, "head_dim", "attention.key_length")) {
        lm_export_u32(b, "attention.key_length", a->dk);
        lm_export_u32(b, "attention.value_length", a->dv);
    }
    if (a->ffn) lm_export_u32(b, "feed_forward_length", a->ffn);
    for (uint32_t l = 0; l < h->n_layers; l++)
        if (h->layer[l].window) lm_export_u32(b, "attention.sliding_window", h->layer[l].window);
    if (h->moe.n && h->moe.score == LM_ROUTE_SIGMOID) lm_export_u32(b, "expert_gating_func", 2);
}

void lm_log_finish(lm_b *b) {
    if (b->log->used) memcpy(b->log->used, b->key_used, b->src->meta.n);
    if (!b->log->x || !lm_graph_ok(&b->g)) return;
    finish_common(b);
    finish_rope(b);
    if (b->arch->to_gguf) b->arch->to_gguf(b);
}
