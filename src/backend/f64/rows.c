/* Ops that compute each row from the same row of their operands. */
#include "backend/f64/f64.h"
#include <math.h>
#include <string.h>

static void row_embed(const lm_f64 *f, const lm_op *op, uint32_t i) {
    uint32_t at = f->row[i];
    uint64_t r = op->embed.by_position ? f->pos[at] : (uint64_t)f->b->id[at];
    lm_f64_weight_row(f, f->d->weight[op->w], 0, r, lm_f64_at(f, op->out, i));
}
static void row_scale(const lm_f64 *f, const lm_op *op, uint32_t i) {
    const double *a = lm_f64_at(f, op->a, i), *v = lm_f64_vec(f, op->v);
    double *o = lm_f64_at(f, op->out, i);
    bool one = v && f->p->vec[op->v].n == 1;
    for (uint32_t j = 0; j < lm_f64_width(f, op->out); j++) o[j] = a[j] * (!v ? op->scale.c : one ? v[0] : v[j]);
}
static void row_add(const lm_f64 *f, const lm_op *op, uint32_t i) {
    const double *a = lm_f64_at(f, op->a, i), *b = lm_f64_at(f, op->b, i);
    double *o = lm_f64_at(f, op->out, i);
    for (uint32_t j = 0; j < lm_f64_width(f, op->out); j++) o[j] = a[j] + b[j];
}
static void row_mul(const lm_f64 *f, const lm_op *op, uint32_t i) {
    const double *a = lm_f64_at(f, op->a, i), *b = lm_f64_at(f, op->b, i);
    double *o = lm_f64_at(f, op->out, i);
    bool one = lm_f64_width(f, op->b) == 1;
    for (uint32_t j = 0; j < lm_f64_width(f, op->out); j++) o[j] = a[j] * (one ? b[0] : b[j]);
}

static double mean(const double *a, uint32_t n) {
    double s = 0;
    for (uint32_t j = 0; j < n; j++) s += a[j];
    return s / n;
}
static double variance(const double *a, uint32_t n, double m) {
    double s = 0;
    for (uint32_t j = 0; j < n; j++) s += (a[j] - m) * (a[j] - m);
    return s / n;
}
static void row_norm(const lm_f64 *f, const lm_op *op, uint32_t i) {
    uint32_t groups = op->norm.groups, n = lm_f64_width(f, op->a) / groups;
    const double *w = lm_f64_vec(f, op->v), *b = lm_f64_vec(f, op->v2);
    for (uint32_t g = 0; g < groups; g++) {
        const double *a = lm_f64_at(f, op->a, i) + (size_t)g * n;
        double *o = lm_f64_at(f, op->out, i) + (size_t)g * n;
        double m = op->norm.norm == LM_NORM_LAYER ? mean(a, n) : 0, under;
        if (op->norm.norm == LM_NORM_LAYER) under = variance(a, n, m);
        else under = op->norm.norm == LM_NORM_RMS ? lm_f64_dot(a, a, n) / n : lm_f64_dot(a, a, n);
        double r = 1.0 / sqrt(under + op->norm.eps);
        const double *gw = w && f->p->vec[op->v].n != n ? w + (size_t)g * n : w;
        const double *gb = b && f->p->vec[op->v2].n != n ? b + (size_t)g * n : b;
        for (uint32_t j = 0; j < n; j++) o[j] = (a[j] - m) * r * (gw ? gw[j] : 1.0) + (gb ? gb[j] : 0.0);
    }
}

static void row_act(const lm_f64 *f, const lm_op *op, uint32_t i) {
    const double *a = lm_f64_at(f, op->a, i);
    double *o = lm_f64_at(f, op->out, i);
    for (uint32_t j = 0; j < lm_f64_width(f, op->out); j++) o[j] = lm_f64_act(op->act.act, a[j]);
}
static void row_gated(const lm_f64 *f, const lm_op *op, uint32_t i) {
    const double *a = lm_f64_at(f, op->a, i), *b = lm_f64_at(f, op->b, i);
    double *o = lm_f64_at(f, op->out, i);
    for (uint32_t j = 0; j < lm_f64_width(f, op->out); j++) o[j] = lm_f64_gate(op->act.act, op->act.limit, op->act.alpha, a[j], b[j]);
}

/* The long set turns every row of a sequence whose announced length passes the border. */
static void row_rope(const lm_f64 *f, const lm_op *op, uint32_t i) {
    const lm_rope *r = &f->p->rope[op->rope.rope];
    uint32_t at = f->row[i], half = op->rope.n_rot / 2, pos = f->pos[at];
    bool is_long = r->border && f->b->seq[f->seq[at]].length > r->border;
    const double *freq = is_long ? r->inv_freq_long : r->inv_freq;
    double *o = lm_f64_at(f, op->out, i);
    memcpy(o, lm_f64_at(f, op->a, i), lm_f64_width(f, op->out) * sizeof *o);
    for (uint32_t k = 0; k < half; k++) {
        double angle = pos * freq[k], c = cos(angle) * r->factor, s = sin(angle) * r->factor;
        uint32_t x = op->rope.offset + (op->rope.interleaved ? 2 * k : k), y = x + (op->rope.interleaved ? 1 : half);
        for (uint32_t h = 0; h < op->rope.heads; h++) {
            double *head = o + (size_t)h * op->rope.head_dim, p = head[x], q = head[y];
            head[x] = p * c - q * s;
            head[y] = q * c + p * s;
        }
    }
}

static void row_decay(const lm_f64 *f, const lm_op *op, uint32_t i) {
    const double *a = lm_f64_at(f, op->a, i), *a_log = lm_f64_vec(f, op->v), *dt = lm_f64_vec(f, op->v2);
    double *o = lm_f64_at(f, op->out, i);
    for (uint32_t j = 0; j < lm_f64_width(f, op->out); j++) o[j] = -exp(a_log[j]) * lm_f64_act(LM_ACT_SOFTPLUS, a[j] + dt[j]);
}
static void row_softcap(const lm_f64 *f, const lm_op *op, uint32_t i) {
    const double *a = lm_f64_at(f, op->a, i);
    double *o = lm_f64_at(f, op->out, i), c = op->softcap.c;
    for (uint32_t j = 0; j < lm_f64_width(f, op->out); j++) o[j] = lm_f64_capped(f, a[j], c);
}
static void row_slice(const lm_f64 *f, const lm_op *op, uint32_t i) {
    const double *a = lm_f64_at(f, op->a, i) + op->slice.offset;
    double *o = lm_f64_at(f, op->out, i);
    for (uint32_t g = 0; g < op->slice.groups; g++)
        memcpy(o + (size_t)g * op->slice.group, a + (size_t)g * op->slice.stride, op->slice.group * sizeof *o);
}
static void row_concat(const lm_f64 *f, const lm_op *op, uint32_t i) {
    double *o = lm_f64_at(f, op->out, i);
    uint32_t na = lm_f64_width(f, op->a);
    memcpy(o, lm_f64_at(f, op->a, i), na * sizeof *o);
    memcpy(o + na, lm_f64_at(f, op->b, i), lm_f64_width(f, op->b) * sizeof *o);
}
static void row_sparsify(const lm_f64 *f, const lm_op *op, uint32_t i) {
    uint32_t n = lm_f64_width(f, op->a);
    const double *a = lm_f64_at(f, op->a, i);
    double *o = lm_f64_at(f, op->out, i), m = mean(a, n), cut = m + sqrt(variance(a, n, m)) * op->sparsify.c;
    for (uint32_t j = 0; j < n; j++) o[j] = a[j] < cut ? 0.0 : a[j] - cut;
}
/* gemma3n's floor is on the mean square of a, before its root; the target has none. */
static void row_match_rms(const lm_f64 *f, const lm_op *op, uint32_t i) {
    uint32_t n = lm_f64_width(f, op->a);
    const double *a = lm_f64_at(f, op->a, i), *b = lm_f64_at(f, op->b, i);
    double *o = lm_f64_at(f, op->out, i), target = sqrt(lm_f64_dot(b, b, n) / n), own = lm_f64_dot(a, a, n) / n;
    own = sqrt(own < op->match.eps ? op->match.eps : own);
    for (uint32_t j = 0; j < n; j++) o[j] = a[j] * target / own;
}
static void row_mix(const lm_f64 *f, const lm_op *op, uint32_t i) {
    uint32_t n = op->mix.n, h = lm_f64_width(f, op->a) / n;
    const double *a = lm_f64_at(f, op->a, i), *c = lm_f64_at(f, op->b, i);
    double *o = lm_f64_at(f, op->out, i);
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t x = 0; x < h; x++) {
            double s = 0;
            for (uint32_t j = 0; j < n; j++) s += c[j * n + k] * a[(size_t)j * h + x];
            o[(size_t)k * h + x] = op->mix.residual ? s + a[(size_t)k * h + x] : s;
        }
}
static void row_spread(const lm_f64 *f, const lm_op *op, uint32_t i) {
    uint32_t n = op->mix.n, h = lm_f64_width(f, op->b);
    const double *a = lm_f64_at(f, op->a, i), *b = lm_f64_at(f, op->b, i), *c = lm_f64_at(f, op->c, i);
    double *o = lm_f64_at(f, op->out, i);
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t x = 0; x < h; x++) o[(size_t)k * h + x] = a[(size_t)k * h + x] + c[k] * b[x];
}

const lm_f64_row_fn lm_f64_row_fns[LM_OP_COUNT] = {
    [LM_OP_EMBED] = row_embed,     [LM_OP_SCALE] = row_scale,     [LM_OP_ADD] = row_add,         [LM_OP_MUL] = row_mul,
    [LM_OP_NORM] = row_norm,       [LM_OP_ACT] = row_act,         [LM_OP_GATED] = row_gated,     [LM_OP_ROPE] = row_rope,
    [LM_OP_DECAY] = row_decay,     [LM_OP_SOFTCAP] = row_softcap,   [LM_OP_SLICE] = row_slice,         [LM_OP_CONCAT] = row_concat,
    [LM_OP_SPARSIFY] = row_sparsify, [LM_OP_MATCH_RMS] = row_match_rms, [LM_OP_MIX] = row_mix,       [LM_OP_SPREAD] = row_spread,
};
