/* Shape checks of a program, one function per op kind. */
#include "graph/check.h"

typedef struct op_check {
    const lm_program *p;
    const lm_op *op;
    lm_error *err;
} op_check;

static lm_status bad(const op_check *c, const char *what) {
    return lm_fail_at(c->err, LM_INTERNAL, NULL, LM_NO_OFFSET, c->op->name, "op %s: %s: the architecture file builds it wrongly",
                      lm_op_name(c->op->kind), what);
}
static lm_status equal(const op_check *c, const char *what, uint64_t got, uint64_t wanted) {
    if (got == wanted) return LM_OK;
    return lm_fail_at(c->err, LM_INTERNAL, NULL, LM_NO_OFFSET, c->op->name,
                      "op %s: %s is %llu, must be %llu: the architecture file builds it wrongly", lm_op_name(c->op->kind), what,
                      (unsigned long long)got, (unsigned long long)wanted);
}
/* 0 for an absent operand, which no check accepts */
static uint64_t width(const op_check *c, lm_val v) { return v == LM_NONE ? 0 : c->p->value[v].width; }
static uint64_t out_width(const op_check *c) { return width(c, c->op->out); }
static uint64_t prod(uint32_t a, uint64_t b) {
    uint64_t r;
    return lm_mul(a, b, &r) ? r : 0;
}
static lm_status vec(const op_check *c, const char *what, uint32_t v, uint64_t n, bool optional) {
    if (v == LM_NONE) return optional ? LM_OK : bad(c, "a vector is missing");
    return equal(c, what, c->p->vec[v].n, n);
}
static lm_status weight(const op_check *c, uint32_t w, uint64_t n_mat, uint64_t rows, uint64_t cols) {
    if (w == LM_NONE) return bad(c, "a weight is missing");
    LM_TRY(equal(c, "the weight's stack", c->p->weight[w].n_mat, n_mat));
    LM_TRY(equal(c, "the weight's rows", c->p->weight[w].rows, rows));
    return equal(c, "the weight's columns", c->p->weight[w].cols, cols);
}
static lm_status slot(const op_check *c, uint32_t i, lm_cache_kind kind, uint32_t heads, uint32_t dk, uint32_t dv) {
    if (i >= c->p->n_slots) return bad(c, "its cache slot does not exist");
    const lm_cache_slot *s = &c->p->slot[i];
    if (s->kind != kind) return bad(c, "its cache slot is of another kind");
    if (heads) LM_TRY(equal(c, "the cache slot's heads", s->heads, heads));
    LM_TRY(equal(c, "the cache slot's dk", s->dk, dk));
    return equal(c, "the cache slot's dv", s->dv, dv);
}
static lm_status same_width(const op_check *c) { return equal(c, "the result's width", out_width(c), width(c, c->op->a)); }
static lm_status act(const op_check *c, lm_act a, double limit, bool gated) {
    if ((unsigned)a > LM_ACT_SWIGLU_OAI || (a == LM_ACT_SWIGLU_OAI && !gated)) return bad(c, "an activation that it does not have");
    return limit != 0 && a != LM_ACT_SWIGLU_OAI ? bad(c, "a limit on an activation that has none") : LM_OK;
}

static lm_status check_embed(const op_check *c) {
    if (c->op->w == LM_NONE) return bad(c, "a weight is missing");
    return weight(c, c->op->w, 1, c->p->weight[c->op->w].rows, out_width(c));
}
static lm_status check_scale(const op_check *c) {
    uint32_t v = c->op->v;
    if (v != LM_NONE && c->p->vec[v].n != 1) LM_TRY(vec(c, "the vector's length", v, width(c, c->op->a), false));
    return same_width(c);
}
static lm_status check_add(const op_check *c) {
    LM_TRY(equal(c, "b's width", width(c, c->op->b), width(c, c->op->a)));
    return same_width(c);
}
static lm_status check_mul(const op_check *c) {
    if (width(c, c->op->b) != 1) return check_add(c);
    return same_width(c);
}
static lm_status check_norm(const op_check *c) {
    uint64_t w = width(c, c->op->a), groups = c->op->norm.groups;
    if (!groups || w % groups) return bad(c, "its groups do not divide the row");
    if ((unsigned)c->op->norm.norm > LM_NORM_L2) return bad(c, "an unknown norm");
    const uint32_t v[2] = {c->op->v, c->op->v2};
    for (int i = 0; i < 2; i++)
        if (v[i] != LM_NONE && c->p->vec[v[i]].n != w) LM_TRY(vec(c, "the norm's vector", v[i], w / groups, false));
    return same_width(c);
}
static lm_status check_linear(const op_check *c) {
    LM_TRY(weight(c, c->op->w, 1, out_width(c), width(c, c->op->a)));
    return vec(c, "the bias's length", c->op->v, out_width(c), true);
}
static lm_status check_act(const op_check *c) {
    LM_TRY(act(c, c->op->act.act, c->op->act.limit, false));
    return same_width(c);
}
static lm_status check_gated(const op_check *c) {
    LM_TRY(act(c, c->op->act.act, c->op->act.limit, true));
    return check_add(c);
}
static lm_status check_rope(const op_check *c) {
    uint64_t n = c->op->rope.n_rot;
    if (c->op->rope.rope >= c->p->n_ropes) return bad(c, "its rope table does not exist");
    if (n % 2 || c->op->rope.offset + n > c->op->rope.head_dim) return bad(c, "the rotated part does not fit its head");
    LM_TRY(equal(c, "the rope table's pairs", c->p->rope[c->op->rope.rope].n_pairs, n / 2));
    LM_TRY(equal(c, "a's width", width(c, c->op->a), prod(c->op->rope.heads, c->op->rope.head_dim)));
    return same_width(c);
}
static lm_status check_attention(const op_check *c) {
    const lm_op *o = c->op;
    if (!o->attn.kv_heads || o->attn.heads % o->attn.kv_heads) return bad(c, "its kv heads do not divide its heads");
    if (!(o->attn.scale > 0) || o->attn.softcap < 0) return bad(c, "its scale is not above 0, or its softcap is below");
    LM_TRY(equal(c, "q's width", width(c, o->a), prod(o->attn.heads, o->attn.dk)));
    LM_TRY(slot(c, o->attn.slot, LM_CACHE_KV, o->attn.kv_heads, o->attn.dk, o->attn.dv));
    uint32_t kept = c->p->slot[o->attn.slot].window;
    if (kept && (!o->attn.window || o->attn.window > kept)) return bad(c, "its window is wider than what its cache slot keeps");
    LM_TRY(equal(c, "k's width", width(c, o->b), o->attn.store ? prod(o->attn.kv_heads, o->attn.dk) : 0));
    LM_TRY(equal(c, "v's width", width(c, o->c), o->attn.store ? prod(o->attn.kv_heads, o->attn.dv) : 0));
    LM_TRY(vec(c, "the sinks' length", o->v, o->attn.heads, true));
    return equal(c, "the result's width", out_width(c), prod(o->attn.heads, o->attn.dv));
}
static lm_status check_mla(const op_check *c) {
    const lm_op *o = c->op;
    uint64_t qk = (uint64_t)o->mla.nope + o->mla.rope, kv = (uint64_t)o->mla.nope + o->mla.dv, dk = (uint64_t)o->mla.rank + o->mla.rope;
    LM_TRY(equal(c, "q's width", width(c, o->a), prod(o->mla.heads, qk)));
    LM_TRY(equal(c, "the latent's width", width(c, o->b), o->mla.rank));
    LM_TRY(equal(c, "the rope part's width", width(c, o->c), o->mla.rope));
    if (dk > UINT32_MAX) return bad(c, "its sizes overflow");
    LM_TRY(slot(c, o->mla.slot, LM_CACHE_LATENT, 1, (uint32_t)dk, 0));
    if (c->p->slot[o->mla.slot].window) return bad(c, "its cache slot has a window");
    LM_TRY(weight(c, o->w, 1, prod(o->mla.heads, kv), o->mla.rank));
    return equal(c, "the result's width", out_width(c), prod(o->mla.heads, o->mla.dv));
}
static lm_status check_index(const op_check *c) {
    const lm_op *o = c->op;
    LM_TRY(equal(c, "q's width", width(c, o->a), prod(o->index.heads, o->index.dim)));
    LM_TRY(equal(c, "k's width", width(c, o->b), o->index.dim));
    LM_TRY(equal(c, "the head weights' width", width(c, o->c), o->index.heads));
    LM_TRY(slot(c, o->index.slot, LM_CACHE_INDEX, 1, o->index.dim, 0));
    if (c->p->slot[o->index.slot].window) return bad(c, "its cache slot has a window");
    return equal(c, "the result's width", out_width(c), o->index.topk);
}
static lm_status check_route(const op_check *c) {
    const lm_op *o = c->op;
    uint32_t n = o->route.n, g = o->route.groups;
    LM_TRY(equal(c, "the logits' width", width(c, o->a), n));
    if (!o->route.k || o->route.k > n) return bad(c, "it chooses more experts than there are");
    if ((unsigned)o->route.score > LM_ROUTE_SOFTMAX_TOPK || (unsigned)o->route.group > LM_GROUP_TOP2) return bad(c, "an unknown rule");
    if (o->route.group != LM_GROUP_NONE) {
        if (!g || n % g || !o->route.topk_groups || o->route.topk_groups > g) return bad(c, "its groups do not divide the experts");
        if (o->route.group == LM_GROUP_TOP2 && n / g < 2) return bad(c, "its groups have fewer than two experts");
        if (o->route.score == LM_ROUTE_SOFTMAX_TOPK) return bad(c, "groups with a softmax over the chosen");
        if (o->route.group == LM_GROUP_TOP2 && (uint64_t)o->route.topk_groups * (n / g) < o->route.k)
            return bad(c, "the chosen groups have fewer experts than are chosen");
    }
    LM_TRY(vec(c, "the correction bias's length", o->v, n, true));
    LM_TRY(vec(c, "the expert scale's length", o->v2, n, true));
    return equal(c, "the result's width", out_width(c), 2 * (uint64_t)o->route.k);
}
static lm_status check_experts(const op_check *c) {
    const lm_op *o = c->op;
    uint32_t n = o->experts.n;
    LM_TRY(equal(c, "the route's width", width(c, o->b), 2 * (uint64_t)o->experts.k));
    if (o->w == LM_NONE) return bad(c, "a weight is missing");
    uint64_t inner = c->p->weight[o->w].rows;
    if (inner > UINT32_MAX) return bad(c, "its sizes overflow");
    LM_TRY(weight(c, o->w, n, inner, width(c, o->a)));
    LM_TRY(weight(c, o->w2, n, inner, width(c, o->a)));
    LM_TRY(weight(c, o->w3, n, out_width(c), inner));
    LM_TRY(vec(c, "the gate bias's length", o->v, prod(n, inner), true));
    LM_TRY(vec(c, "the up bias's length", o->v2, prod(n, inner), true));
    LM_TRY(vec(c, "the down bias's length", o->v3, prod(n, out_width(c)), true));
    return act(c, o->experts.act, o->experts.limit, true);
}
static lm_status check_conv(const op_check *c) {
    const lm_op *o = c->op;
    uint32_t k = o->conv.kernel;
    if (!k) return bad(c, "its kernel is empty");
    LM_TRY(slot(c, o->conv.slot, LM_CACHE_CONV, 0, (uint32_t)width(c, o->a), k - 1));
    LM_TRY(vec(c, "the kernel's length", o->v, prod(k, width(c, o->a)), false));
    LM_TRY(vec(c, "the bias's length", o->v2, width(c, o->a), true));
    LM_TRY(act(c, o->conv.act, 0, false));
    return same_width(c);
}
static lm_status check_decay(const op_check *c) {
    LM_TRY(vec(c, "A_log's length", c->op->v, width(c, c->op->a), false));
    LM_TRY(vec(c, "dt_bias's length", c->op->v2, width(c, c->op->a), false));
    return same_width(c);
}
static lm_status check_delta(const op_check *c) {
    const lm_op *o = c->op;
    uint32_t kh = o->delta.k_heads, vh = o->delta.v_heads;
    if (!kh || vh % kh) return bad(c, "its key heads do not divide its value heads");
    LM_TRY(equal(c, "q's width", width(c, o->a), prod(kh, o->delta.dk)));
    LM_TRY(equal(c, "k's width", width(c, o->b), prod(kh, o->delta.dk)));
    LM_TRY(equal(c, "v's width", width(c, o->c), prod(vh, o->delta.dv)));
    LM_TRY(equal(c, "the gates' width", width(c, o->d), 2 * (uint64_t)vh));
    LM_TRY(slot(c, o->delta.slot, LM_CACHE_DELTA, vh, o->delta.dk, o->delta.dv));
    return equal(c, "the result's width", out_width(c), prod(vh, o->delta.dv));
}
static lm_status check_slice(const op_check *c) {
    const lm_op *o = c->op;
    if (!o->slice.groups || !o->slice.group) return bad(c, "it takes nothing");
    uint64_t end = prod(o->slice.groups - 1, o->slice.stride) + o->slice.group + o->slice.offset;
    if (end > width(c, o->a)) return bad(c, "it reaches past its operand's end");
    return equal(c, "the result's width", out_width(c), prod(o->slice.groups, o->slice.group));
}
static lm_status check_concat(const op_check *c) {
    if (!width(c, c->op->b)) return bad(c, "b is missing");
    return equal(c, "the result's width", out_width(c), width(c, c->op->a) + width(c, c->op->b));
}
static lm_status check_mix(const op_check *c) {
    uint32_t n = c->op->mix.n;
    if (!n || width(c, c->op->a) % n) return bad(c, "its streams do not divide the row");
    LM_TRY(equal(c, "the coefficients' width", width(c, c->op->b), prod(n, n)));
    return same_width(c);
}
static lm_status check_spread(const op_check *c) {
    uint32_t n = c->op->mix.n;
    if (!n || width(c, c->op->a) % n) return bad(c, "its streams do not divide the row");
    LM_TRY(equal(c, "b's width", width(c, c->op->b), width(c, c->op->a) / n));
    LM_TRY(equal(c, "the coefficients' width", width(c, c->op->c), n));
    return same_width(c);
}

static lm_status (*const checks[LM_OP_COUNT])(const op_check *) = {
    [LM_OP_EMBED] = check_embed,       [LM_OP_SCALE] = check_scale,         [LM_OP_ADD] = check_add,      [LM_OP_MUL] = check_mul,
    [LM_OP_NORM] = check_norm,         [LM_OP_LINEAR] = check_linear,       [LM_OP_ACT] = check_act,      [LM_OP_GATED] = check_gated,
    [LM_OP_ROPE] = check_rope,         [LM_OP_ATTENTION] = check_attention, [LM_OP_MLA] = check_mla,      [LM_OP_INDEX] = check_index,
    [LM_OP_ROUTE] = check_route,       [LM_OP_EXPERTS] = check_experts,     [LM_OP_CONV] = check_conv,    [LM_OP_DECAY] = check_decay,
    [LM_OP_DELTA] = check_delta,       [LM_OP_SOFTCAP] = same_width,        [LM_OP_SLICE] = check_slice,  [LM_OP_CONCAT] = check_concat,
    [LM_OP_SPARSIFY] = same_width,     [LM_OP_MATCH_RMS] = check_add,       [LM_OP_MIX] = check_mix,      [LM_OP_SPREAD] = check_spread,
};

/* What every op has in common: indices in range, operands written before and still alive. */
static lm_status check_op(const op_check *c, uint32_t index) {
    const lm_program *p = c->p;
    const lm_op *o = c->op;
    if ((unsigned)o->kind >= LM_OP_COUNT) return bad(c, "an unknown kind");
    const uint32_t weights[3] = {o->w, o->w2, o->w3}, vecs[3] = {o->v, o->v2, o->v3};
    const lm_val in[4] = {o->a, o->b, o->c, o->d};
    for (int i = 0; i < 3; i++) {
        if (weights[i] != LM_NONE && weights[i] >= p->n_weights) return bad(c, "a weight that does not exist");
        if (vecs[i] != LM_NONE && vecs[i] >= p->n_vecs) return bad(c, "a vector that does not exist");
    }
    for (int i = 0; i < 4; i++) {
        if (in[i] == LM_NONE) continue;
        if (in[i] >= p->n_values || p->value[in[i]].first >= index || p->op[p->value[in[i]].first].out != in[i])
            return bad(c, "an operand that is not written before it");
        if (p->value[in[i]].last < index) return bad(c, "an operand whose life ends before it");
    }
    if (o->kind != LM_OP_EMBED && o->a == LM_NONE) return bad(c, "an operand is missing");
    if (o->out >= p->n_values || p->value[o->out].first != index || !p->value[o->out].width) return bad(c, "its result is not its own");
    bool stateful = o->kind == LM_OP_ATTENTION || o->kind == LM_OP_MLA || o->kind == LM_OP_INDEX || o->kind == LM_OP_CONV ||
                    o->kind == LM_OP_DELTA;
    if (stateful && index >= p->head_first) return bad(c, "it has a cache but stands in the head");
    return checks[o->kind](c);
}

static lm_status weight_fail(const lm_weight *w, lm_error *err, const char *what) {
    return lm_fail_at(err, LM_INTERNAL, NULL, LM_NO_OFFSET, w->name, "weight: %s: the architecture file maps its rows wrongly", what);
}
static lm_status check_tensor(const lm_weight *w, const lm_tensor *t, uint64_t end, lm_error *err) {
    if (!t || t->type != w->type || lm_tensor_cols(t) != w->cols) return weight_fail(w, err, "a tensor of another type or width");
    return lm_tensor_rows(t) < end ? weight_fail(w, err, "a row past its tensor's end") : LM_OK;
}
/* Every stored row that the map can name exists. */
static lm_status check_weight(const lm_weight *w, lm_error *err) {
    uint64_t at = 0;
    if (!w->type || !w->n_mat || !w->rows || !w->cols || w->cols % w->type->block) return weight_fail(w, err, "an empty shape");
    for (uint32_t i = 0; i < w->n_seg; i++) {
        const lm_segment *s = &w->seg[i];
        if (s->first != at || !s->count || !s->group || s->count > w->rows - at) return weight_fail(w, err, "segments that do not tile it");
        if (s->rope_dim % 2 || (s->rope_dim && s->count % s->rope_dim)) return weight_fail(w, err, "heads that do not divide it");
        at += s->count;
        uint64_t in_group = s->count < s->group ? s->count : s->group, groups, step, mats, end;
        if (!lm_mul((s->count - 1) / s->group, s->group_stride, &groups) || !lm_mul(in_group - 1, s->step, &step) ||
            !lm_mul(w->n_mat - 1, s->mat_stride, &mats) || !lm_add(groups, step, &end) || !lm_add(end, mats, &end) ||
            !lm_add(end, s->base, &end) || !lm_add(end, 1, &end))
            return weight_fail(w, err, "a row past its tensor's end");
        if (!s->per_mat) LM_TRY(check_tensor(w, s->t, end, err));
        for (uint32_t m = 0; s->per_mat && m < w->n_mat; m++)
            LM_TRY(check_tensor(w, s->per_mat[m], end - mats + m * s->mat_stride, err));
    }
    return at == w->rows ? LM_OK : weight_fail(w, err, "segments that do not tile it");
}

static lm_status check_ends(const lm_program *p, lm_error *err) {
    if (p->head_first > p->n_ops || p->logits >= p->n_values || p->value[p->logits].first < p->head_first)
        return lm_fail(err, LM_INTERNAL, "the program's logits do not stand in its head: the architecture file builds it wrongly");
    if (p->value[p->logits].width != p->vocab)
        return lm_fail(err, LM_INTERNAL, "the logits are %u wide, the vocabulary has %u: the architecture file builds them wrongly",
                       p->value[p->logits].width, p->vocab);
    uint32_t border = 0;
    for (uint32_t i = 0; i < p->n_ropes; i++) {
        if (!p->rope[i].border) continue;
        if (!p->rope[i].inv_freq_long || (border && border != p->rope[i].border))
            return lm_fail(err, LM_INTERNAL, "rope tables with different borders: the architecture file builds them wrongly");
        border = p->rope[i].border;
    }
    return LM_OK;
}

lm_status lm_program_check(const lm_program *p, lm_error *err) {
    for (uint32_t i = 0; i < p->n_weights; i++) LM_TRY(check_weight(&p->weight[i], err));
    for (uint32_t i = 0; i < p->n_ops; i++) {
        op_check c = {p, &p->op[i], err};
        LM_TRY(check_op(&c, i));
    }
    return check_ends(p, err);
}
