#include "graph/builder.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

lm_status lm_graph_init(lm_graph *g, const char *arch, lm_error *err) {
    memset(g, 0, sizeof *g);
    g->layer = -1;
    lm_arena *a = lm_arena_create();
    if (!a) return lm_fail_nomem(err, "the program", 0);
    lm_program *p = lm_arena_alloc(a, sizeof *p);
    if (!p) {
        lm_arena_destroy(a);
        return lm_fail_nomem(err, "the program", sizeof *p);
    }
    p->arena = a;
    p->arch = arch;
    p->embed = p->norm = p->logits = LM_NONE;
    g->p = p;
    return LM_OK;
}

void lm_program_free(lm_program *p) {
    if (p) lm_arena_destroy(p->arena);
}

uint32_t lm_graph_fail(lm_graph *g, lm_status code, const char *field, const char *fmt, ...) {
    if (g->status != LM_OK) return LM_NONE;
    g->status = code;
    char text[sizeof g->err.message];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    lm_fail_at(&g->err, code, NULL, LM_NO_OFFSET, field, "%s", text);
    return LM_NONE;
}

/* Arena arrays grow by doubling; the old copy stays in the arena, which is small beside a model's weights. */
static void *grow(lm_graph *g, void *old, uint32_t n, uint32_t *cap, size_t size) {
    if (n < *cap) return old;
    uint32_t want = *cap ? *cap * 2 : 64;
    void *p = lm_arena_calloc(g->p->arena, want, size);
    if (!p) {
        lm_graph_fail(g, LM_NOMEM, "program", "out of memory building the program");
        return NULL;
    }
    if (n) memcpy(p, old, n * size);
    *cap = want;
    return p;
}

#define PUSH(array, count, cap, item) \
    do { \
        if (!lm_graph_ok(g)) return LM_NONE; \
        void *grown_ = grow(g, g->p->array, g->p->count, &g->cap, sizeof *g->p->array); \
        if (!grown_) return LM_NONE; \
        g->p->array = grown_; \
        g->p->array[g->p->count] = (item); \
        return g->p->count++; \
    } while (0)

uint32_t lm_graph_weight(lm_graph *g, const lm_weight *w) { PUSH(weight, n_weights, cap_weights, *w); }

uint32_t lm_graph_vec(lm_graph *g, const char *name, const double *v, uint64_t n) {
    PUSH(vec, n_vecs, cap_vecs, ((lm_vec){.name = name, .n = n, .v = v}));
}

static bool same_freqs(const double *a, const double *b, uint32_t n) {
    if (!a || !b) return a == b;
    return memcmp(a, b, n * sizeof *a) == 0;
}

uint32_t lm_graph_rope(lm_graph *g, const lm_rope *r) {
    for (uint32_t i = 0; lm_graph_ok(g) && i < g->p->n_ropes; i++) {
        const lm_rope *o = &g->p->rope[i];
        if (o->n_pairs == r->n_pairs && o->border == r->border && o->factor == r->factor &&
            same_freqs(o->inv_freq, r->inv_freq, r->n_pairs) && same_freqs(o->inv_freq_long, r->inv_freq_long, r->n_pairs))
            return i;
    }
    PUSH(rope, n_ropes, cap_ropes, *r);
}

uint32_t lm_graph_slot(lm_graph *g, lm_cache_kind kind, uint32_t heads, uint32_t dk, uint32_t dv, uint32_t window) {
    PUSH(slot, n_slots, cap_slots, ((lm_cache_slot){.kind = kind, .heads = heads, .dk = dk, .dv = dv, .window = window}));
}

static uint32_t push_trait(lm_graph *g, const lm_trait *t) { PUSH(trait, n_traits, cap_traits, *t); }

void lm_graph_trait(lm_graph *g, uint32_t min_tokens, const char *fmt, ...) {
    if (!lm_graph_ok(g)) return;
    char text[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (uint32_t i = 0; i < g->p->n_traits; i++)
        if (!strcmp(g->p->trait[i].name, text)) return;
    char *name = lm_arena_strndup(g->p->arena, text, strlen(text));
    if (!name)
        lm_graph_fail(g, LM_NOMEM, "program", "out of memory building the program");
    else
        push_trait(g, &(lm_trait){.name = name, .min_tokens = min_tokens});
}

uint32_t lm_width(const lm_graph *g, lm_val v) { return v < g->p->n_values ? g->p->value[v].width : 0; }

/* "attn.q" in layer 3 is "layer.3.attn.q" */
static char *full_name(lm_graph *g, int32_t layer, const char *name) {
    char *s = layer < 0 ? lm_arena_strndup(g->p->arena, name, strlen(name)) : lm_arena_printf(g->p->arena, "layer.%d.%s", layer, name);
    if (!s) lm_graph_fail(g, LM_NOMEM, name, "out of memory building the program");
    return s;
}

lm_val lm_rename(lm_graph *g, lm_val v, const char *name) {
    if (!lm_graph_ok(g) || v == LM_NONE) return LM_NONE;
    lm_op *op = &g->p->op[g->p->value[v].first];
    char *full = full_name(g, op->layer, name);
    if (!full) return LM_NONE;
    op->name = g->p->value[v].name = full;
    return v;
}

lm_op lm_op_blank(void) {
    lm_op o;
    memset(&o, 0, sizeof o);
    o.out = o.a = o.b = o.c = o.d = LM_NONE;
    o.w = o.w2 = o.w3 = o.v = o.v2 = o.v3 = LM_NONE;
    return o;
}

/* A name that is taken in its layer gets .2, .3 …: a trace holds every result under its name. The ops of a layer stand together. */
static bool taken(const lm_graph *g, const char *full) {
    for (uint32_t i = g->p->n_ops; i > 0 && (g->layer < 0 || g->p->op[i - 1].layer == g->layer); i--)
        if (!strcmp(g->p->op[i - 1].name, full)) return true;
    return false;
}
static char *free_name(lm_graph *g, const char *name) {
    char *first = full_name(g, g->layer, name), *full = first;
    for (uint32_t k = 2; full && taken(g, full); k++) full = lm_arena_printf(g->p->arena, "%s.%u", first, k);
    if (first && !full) lm_graph_fail(g, LM_NOMEM, name, "out of memory building the program");
    return full;
}

/* One op makes one value, so both arrays share an index. */
lm_val lm_op_custom(lm_graph *g, lm_op_kind kind, const char *name, uint32_t width, const lm_op *o) {
    if (!lm_graph_ok(g)) return LM_NONE;
    lm_program *p = g->p;
    const lm_val in[4] = {o->a, o->b, o->c, o->d};
    for (int i = 0; i < 4; i++)
        if (in[i] != LM_NONE && in[i] >= p->n_values) return lm_graph_fail(g, LM_INTERNAL, name, "operand %d of the op does not exist", i);
    if (!width) return lm_graph_fail(g, LM_INTERNAL, name, "the op's result has no width");
    char *full = free_name(g, name);
    if (!full) return LM_NONE;
    uint32_t cap = g->cap_ops;
    lm_op *ops = grow(g, p->op, p->n_ops, &cap, sizeof *ops);
    lm_value_info *vals = grow(g, p->value, p->n_ops, &g->cap_ops, sizeof *vals);
    if (!ops || !vals) return lm_graph_fail(g, LM_NOMEM, name, "out of memory building the program");
    p->op = ops;
    p->value = vals;
    lm_op op = *o;
    op.kind = kind;
    op.name = full;
    op.layer = g->layer;
    op.out = p->n_values;
    ops[p->n_ops] = op;
    vals[p->n_values] = (lm_value_info){.name = full, .width = width, .first = p->n_ops, .last = p->n_ops};
    p->n_ops++;
    return p->n_values++;
}

static lm_val unary(lm_graph *g, lm_op_kind kind, const char *name, lm_val a, lm_op *o) {
    if (!lm_graph_ok(g)) return LM_NONE;
    o->a = a;
    return lm_op_custom(g, kind, name, lm_width(g, a), o);
}

lm_val lm_op_embed(lm_graph *g, const char *name, uint32_t w, bool by_position) {
    if (!lm_graph_ok(g)) return LM_NONE;
    lm_op o = lm_op_blank();
    o.w = w;
    o.embed.by_position = by_position;
    o.embed.max_position = by_position ? (uint32_t)g->p->weight[w].rows : 0;
    return lm_op_custom(g, LM_OP_EMBED, name, (uint32_t)g->p->weight[w].cols, &o);
}

lm_val lm_op_scale(lm_graph *g, const char *name, lm_val a, double c) {
    lm_op o = lm_op_blank();
    o.scale.c = c;
    return unary(g, LM_OP_SCALE, name, a, &o);
}

lm_val lm_op_scale_vec(lm_graph *g, const char *name, lm_val a, uint32_t vec) {
    lm_op o = lm_op_blank();
    o.scale.c = 1.0;
    o.v = vec;
    return unary(g, LM_OP_SCALE, name, a, &o);
}

lm_val lm_op_add(lm_graph *g, const char *name, lm_val a, lm_val b) {
    if (!lm_graph_ok(g)) return LM_NONE;
    if (lm_width(g, a) != lm_width(g, b))
        return lm_graph_fail(g, LM_INTERNAL, name, "adding widths %u and %u", lm_width(g, a), lm_width(g, b));
    lm_op o = lm_op_blank();
    o.b = b;
    return unary(g, LM_OP_ADD, name, a, &o);
}

lm_val lm_op_mul(lm_graph *g, const char *name, lm_val a, lm_val b) {
    lm_op o = lm_op_blank();
    o.b = b;
    return unary(g, LM_OP_MUL, name, a, &o);
}

lm_val lm_op_norm(lm_graph *g, const char *name, lm_val a, lm_norm norm, uint32_t groups, double eps, uint32_t weight, uint32_t bias) {
    lm_op o = lm_op_blank();
    o.norm.norm = norm;
    o.norm.groups = groups;
    o.norm.eps = eps;
    o.v = weight;
    o.v2 = bias;
    return unary(g, LM_OP_NORM, name, a, &o);
}

lm_val lm_op_linear(lm_graph *g, const char *name, lm_val a, uint32_t w, uint32_t bias, bool split) {
    if (!lm_graph_ok(g)) return LM_NONE;
    const lm_weight *m = &g->p->weight[w];
    if (m->cols != lm_width(g, a))
        return lm_graph_fail(g, LM_INTERNAL, m->name, "%s: the weight takes %llu inputs, the value has %u", name,
                             (unsigned long long)m->cols, lm_width(g, a));
    lm_op o = lm_op_blank();
    o.a = a;
    o.w = w;
    o.v = bias;
    o.linear.split = split;
    return lm_op_custom(g, LM_OP_LINEAR, name, (uint32_t)m->rows, &o);
}

lm_val lm_op_act(lm_graph *g, const char *name, lm_val a, lm_act act) {
    lm_op o = lm_op_blank();
    o.act.act = act;
    return unary(g, LM_OP_ACT, name, a, &o);
}

lm_val lm_op_gated(lm_graph *g, const char *name, lm_val gate, lm_val up, lm_act act, double limit, double alpha) {
    lm_op o = lm_op_blank();
    o.b = up;
    o.act.act = act;
    o.act.limit = limit;
    o.act.alpha = alpha;
    return unary(g, LM_OP_GATED, name, gate, &o);
}

lm_val lm_op_rope(lm_graph *g, const char *name, lm_val a, uint32_t heads, uint32_t offset, uint32_t n_rot, uint32_t rope,
                  bool interleaved) {
    if (!lm_graph_ok(g)) return LM_NONE;
    lm_op o = lm_op_blank();
    o.rope.heads = heads;
    o.rope.head_dim = lm_width(g, a) / heads;
    o.rope.offset = offset;
    o.rope.n_rot = n_rot;
    o.rope.rope = rope;
    o.rope.interleaved = interleaved;
    if (n_rot != 2 * g->p->rope[rope].n_pairs || offset + n_rot > o.rope.head_dim)
        return lm_graph_fail(g, LM_INTERNAL, name, "rope of %u dims at %u, %u pairs, head of %u", n_rot, offset, g->p->rope[rope].n_pairs,
                             o.rope.head_dim);
    return unary(g, LM_OP_ROPE, name, a, &o);
}

lm_val lm_op_softcap(lm_graph *g, const char *name, lm_val a, double c) {
    lm_op o = lm_op_blank();
    o.softcap.c = c;
    return unary(g, LM_OP_SOFTCAP, name, a, &o);
}

lm_val lm_op_slice(lm_graph *g, const char *name, lm_val a, uint32_t offset, uint32_t group, uint32_t groups, uint32_t stride) {
    if (!lm_graph_ok(g)) return LM_NONE;
    if (!groups || !group || offset + (uint64_t)(groups - 1) * stride + group > lm_width(g, a))
        return lm_graph_fail(g, LM_INTERNAL, name, "slice past the end of a value of width %u", lm_width(g, a));
    lm_op o = lm_op_blank();
    o.a = a;
    o.slice.offset = offset;
    o.slice.group = group;
    o.slice.groups = groups;
    o.slice.stride = stride;
    return lm_op_custom(g, LM_OP_SLICE, name, group * groups, &o);
}

lm_val lm_op_concat(lm_graph *g, const char *name, lm_val a, lm_val b) {
    if (!lm_graph_ok(g)) return LM_NONE;
    lm_op o = lm_op_blank();
    o.a = a;
    o.b = b;
    return lm_op_custom(g, LM_OP_CONCAT, name, lm_width(g, a) + lm_width(g, b), &o);
}

static void keep_to_the_end(lm_program *p, lm_val v) {
    if (v != LM_NONE) p->value[v].last = p->n_ops;
}

lm_status lm_graph_finish(lm_graph *g, lm_program **out, lm_error *err) {
    lm_program *p = g->p;
    if (lm_graph_ok(g) && (p->embed == LM_NONE || p->norm == LM_NONE || p->logits == LM_NONE))
        lm_graph_fail(g, LM_INTERNAL, p->arch, "the architecture did not name its embedding, final norm and logits");
    if (!lm_graph_ok(g)) {
        if (err) *err = g->err;
        lm_status s = g->status;
        lm_program_free(p);
        g->p = NULL;
        return s;
    }
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lm_val in[4] = {p->op[i].a, p->op[i].b, p->op[i].c, p->op[i].d};
        for (int k = 0; k < 4; k++)
            if (in[k] != LM_NONE && p->value[in[k]].last < i) p->value[in[k]].last = i;
    }
    keep_to_the_end(p, p->logits);
    *out = p;
    return LM_OK;
}
