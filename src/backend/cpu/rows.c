/* Ops that compute each row from the same row of their operands. */
#include "backend/cpu/cpu.h"
#include <math.h>
#include <string.h>

lm_kact lm_cpu_act(lm_act a) {
    static const lm_kact of[] = {
        [LM_ACT_NONE] = LM_KACT_NONE,       [LM_ACT_SILU] = LM_KACT_SILU,       [LM_ACT_GELU] = LM_KACT_GELU,
        [LM_ACT_GELU_TANH] = LM_KACT_GELU_TANH, [LM_ACT_RELU] = LM_KACT_RELU,   [LM_ACT_RELU2] = LM_KACT_RELU2,
        [LM_ACT_SIGMOID] = LM_KACT_SIGMOID, [LM_ACT_TANH] = LM_KACT_TANH,       [LM_ACT_SOFTPLUS] = LM_KACT_SOFTPLUS,
        [LM_ACT_SWIGLU_OAI] = LM_KACT_SWIGLU_OAI,
    };
    return of[a];
}

static void row_embed(const lm_cpu *f, const lm_op *op, uint32_t i, float *scratch) {
    const uint32_t at = f->row[i];
    lm_cpu_unpack_row(f->k, &f->d->weight[op->w], 0, op->embed.by_position ? f->pos[at] : (uint32_t)f->b->id[at], lm_cpu_at(f, op->out, i), scratch);
}
static void row_scale(const lm_cpu *f, const lm_op *op, uint32_t i, float *scratch) {
    (void)scratch;
    const uint32_t n = lm_cpu_width(f, op->out);
    const float *a = lm_cpu_at(f, op->a, i), *v = lm_cpu_vec(f, op->v);
    const bool one = !v || f->p->vec[op->v].n == 1;
    const float c = v ? v[0] : (float)op->scale.c;
    float *o = lm_cpu_at(f, op->out, i);
    for (uint32_t j = 0; j < n; j++) o[j] = a[j] * (one ? c : v[j]);
}
static void row_add(const lm_cpu *f, const lm_op *op, uint32_t i, float *scratch) {
    (void)scratch;
    const uint32_t n = lm_cpu_width(f, op->out);
    const float *a = lm_cpu_at(f, op->a, i), *b = lm_cpu_at(f, op->b, i);
    float *o = lm_cpu_at(f, op->out, i);
    for (uint32_t j = 0; j < n; j++) o[j] = a[j] + b[j];
}
static void row_mul(const lm_cpu *f, const lm_op *op, uint32_t i, float *scratch) {
    (void)scratch;
    const uint32_t n = lm_cpu_width(f, op->out);
    const float *a = lm_cpu_at(f, op->a, i), *b = lm_cpu_at(f, op->b, i);
    const bool one = lm_cpu_width(f, op->b) == 1;
    float *o = lm_cpu_at(f, op->out, i);
    for (uint32_t j = 0; j < n; j++) o[j] = a[j] * (one ? b[0] : b[j]);
}
static void row_norm(const lm_cpu *f, const lm_op *op, uint32_t i, float *scratch) {
    (void)scratch;
    const uint32_t groups = op->norm.groups, n = lm_cpu_width(f, op->a) / groups;
    const float *w = lm_cpu_vec(f, op->v), *b = lm_cpu_vec(f, op->v2);
    for (uint32_t g = 0; g < groups; g++) {
        const float *a = lm_cpu_at(f, op->a, i) + (size_t)g * n;
        const float mean = op->norm.norm == LM_NORM_LAYER ? f->k->sum(a, n) / (float)n : 0;
        float under = f->k->sum_squares(a, mean, n);
        if (op->norm.norm != LM_NORM_L2) under /= (float)n;
        const float s = 1.0f / sqrtf(under + (float)op->norm.eps);
        const float *gw = w && f->p->vec[op->v].n != n ? w + (size_t)g * n : w, *gb = b && f->p->vec[op->v2].n != n ? b + (size_t)g * n : b;
        f->k->normalise(lm_cpu_at(f, op->out, i) + (size_t)g * n, a, mean, s, gw, gb, n);
    }
}
static void row_act(const lm_cpu *f, const lm_op *op, uint32_t i, float *scratch) {
    (void)scratch;
    f->k->act(lm_cpu_act(op->act.act), lm_cpu_at(f, op->out, i), lm_cpu_at(f, op->a, i), lm_cpu_width(f, op->out));
}
static void row_gated(const lm_cpu *f, const lm_op *op, uint32_t i, float *scratch) {
    (void)scratch;
    f->k->gated(lm_cpu_act(op->act.act), lm_cpu_at(f, op->out, i), lm_cpu_at(f, op->a, i), lm_cpu_at(f, op->b, i), (float)op->act.limit,
                (float)op->act.alpha, lm_cpu_width(f, op->out));
}
/* Interleaved pairs are parted, turned and joined again: scratch holds two runs of n_pairs. */
static void row_rope(const lm_cpu *f, const lm_op *op, uint32_t i, float *scratch) {
    const uint32_t half = op->rope.n_rot / 2, width = lm_cpu_width(f, op->out);
    const float *cs = f->cos[op->rope.rope] + (size_t)f->row[i] * half, *sn = f->sin[op->rope.rope] + (size_t)f->row[i] * half;
    const float *a = lm_cpu_at(f, op->a, i);
    float *o = lm_cpu_at(f, op->out, i), *x0 = scratch, *x1 = x0 + half;
    memcpy(o, a, width * sizeof *o);
    for (uint32_t h = 0; h < op->rope.heads; h++) {
        const size_t at = (size_t)h * op->rope.head_dim + op->rope.offset;
        if (!op->rope.interleaved) {
            f->k->rope(o + at, o + at + half, a + at, a + at + half, cs, sn, half);
            continue;
        }
        for (uint32_t j = 0; j < half; j++) x0[j] = a[at + 2 * j], x1[j] = a[at + 2 * j + 1];
        f->k->rope(x0, x1, x0, x1, cs, sn, half);
        for (uint32_t j = 0; j < half; j++) o[at + 2 * j] = x0[j], o[at + 2 * j + 1] = x1[j];
    }
}
static void row_decay(const lm_cpu *f, const lm_op *op, uint32_t i, float *scratch) {
    (void)scratch;
    f->k->decay(lm_cpu_at(f, op->out, i), lm_cpu_at(f, op->a, i), lm_cpu_aux(f, op)->vec, lm_cpu_vec(f, op->v2), lm_cpu_width(f, op->out));
}
static void row_softcap(const lm_cpu *f, const lm_op *op, uint32_t i, float *scratch) {
    (void)scratch;
    f->k->softcap(lm_cpu_at(f, op->out, i), lm_cpu_at(f, op->a, i), (float)op->softcap.c, lm_cpu_width(f, op->out));
}
static void row_slice(const lm_cpu *f, const lm_op *op, uint32_t i, float *scratch) {
    (void)scratch;
    const float *a = lm_cpu_at(f, op->a, i) + op->slice.offset;
    float *o = lm_cpu_at(f, op->out, i);
    for (uint32_t g = 0; g < op->slice.groups; g++)
        memcpy(o + (size_t)g * op->slice.group, a + (size_t)g * op->slice.stride, op->slice.group * sizeof *o);
}
static void row_concat(const lm_cpu *f, const lm_op *op, uint32_t i, float *scratch) {
    (void)scratch;
    const uint32_t na = lm_cpu_width(f, op->a);
    float *o = lm_cpu_at(f, op->out, i);
    memcpy(o, lm_cpu_at(f, op->a, i), na * sizeof *o);
    memcpy(o + na, lm_cpu_at(f, op->b, i), lm_cpu_width(f, op->b) * sizeof *o);
}
static void row_sparsify(const lm_cpu *f, const lm_op *op, uint32_t i, float *scratch) {
    (void)scratch;
    const uint32_t n = lm_cpu_width(f, op->a);
    const float *a = lm_cpu_at(f, op->a, i);
    float *o = lm_cpu_at(f, op->out, i);
    const float mean = f->k->sum(a, n) / (float)n, cut = fmaf(sqrtf(f->k->sum_squares(a, mean, n) / (float)n), (float)op->sparsify.c, mean);
    for (uint32_t j = 0; j < n; j++) o[j] = a[j] < cut ? 0.0f : a[j] - cut;
}
/* gemma3n's floor is on the mean square of a, before its root; the target has none. */
static void row_match_rms(const lm_cpu *f, const lm_op *op, uint32_t i, float *scratch) {
    (void)scratch;
    const uint32_t n = lm_cpu_width(f, op->a);
    const float *a = lm_cpu_at(f, op->a, i), target = sqrtf(f->k->sum_squares(lm_cpu_at(f, op->b, i), 0, n) / (float)n);
    const float square = f->k->sum_squares(a, 0, n) / (float)n, floor = (float)op->match.eps, own = sqrtf(square < floor ? floor : square);
    float *o = lm_cpu_at(f, op->out, i);
    for (uint32_t j = 0; j < n; j++) o[j] = a[j] * target / own;
}
static void row_mix(const lm_cpu *f, const lm_op *op, uint32_t i, float *scratch) {
    (void)scratch;
    const uint32_t n = op->mix.n, h = lm_cpu_width(f, op->a) / n;
    const float *a = lm_cpu_at(f, op->a, i), *c = lm_cpu_at(f, op->b, i);
    for (uint32_t k = 0; k < n; k++) {
        float *o = lm_cpu_at(f, op->out, i) + (size_t)k * h;
        memset(o, 0, h * sizeof *o);
        for (uint32_t j = 0; j < n; j++) f->k->axpy(o, c[j * n + k], a + (size_t)j * h, h);
        for (uint32_t x = 0; op->mix.residual && x < h; x++) o[x] += a[(size_t)k * h + x];
    }
}
static void row_spread(const lm_cpu *f, const lm_op *op, uint32_t i, float *scratch) {
    (void)scratch;
    const uint32_t n = op->mix.n, h = lm_cpu_width(f, op->b);
    const float *c = lm_cpu_at(f, op->c, i);
    float *o = lm_cpu_at(f, op->out, i);
    memcpy(o, lm_cpu_at(f, op->a, i), (size_t)n * h * sizeof *o);
    for (uint32_t k = 0; k < n; k++) f->k->axpy(o + (size_t)k * h, c[k], lm_cpu_at(f, op->b, i), h);
}

const lm_cpu_row_fn lm_cpu_row_fns[LM_OP_COUNT] = {
    [LM_OP_EMBED] = row_embed,       [LM_OP_SCALE] = row_scale,         [LM_OP_ADD] = row_add,   [LM_OP_MUL] = row_mul,
    [LM_OP_NORM] = row_norm,         [LM_OP_ACT] = row_act,             [LM_OP_GATED] = row_gated, [LM_OP_ROPE] = row_rope,
    [LM_OP_DECAY] = row_decay,       [LM_OP_SOFTCAP] = row_softcap,     [LM_OP_SLICE] = row_slice, [LM_OP_CONCAT] = row_concat,
    [LM_OP_SPARSIFY] = row_sparsify, [LM_OP_MATCH_RMS] = row_match_rms, [LM_OP_MIX] = row_mix,   [LM_OP_SPREAD] = row_spread,
};

/* Rows of a task: enough that handing it out costs little. */
#define TASK_FLOATS 8192u
typedef struct rows_job {
    const lm_cpu *f;
    const lm_op *op;
    uint32_t per;
} rows_job;
static void rows_task(void *ctx, uint32_t task, uint32_t thread) {
    const rows_job *job = ctx;
    const uint32_t i0 = task * job->per, i1 = job->f->n - i0 < job->per ? job->f->n : i0 + job->per;
    for (uint32_t i = i0; i < i1; i++) lm_cpu_row_fns[job->op->kind](job->f, job->op, i, lm_cpu_scratch(job->f, thread));
}
void lm_cpu_rows(lm_cpu *f, const lm_op *op) {
    const uint32_t width = lm_cpu_width(f, op->out);
    rows_job job = {f, op, width >= TASK_FLOATS ? 1 : TASK_FLOATS / width};
    lm_pool_run(f->d->pool, rows_task, &job, (f->n + job.per - 1) / job.per);
}
bool lm_cpu_rows_need(const lm_cpu *f, const lm_op *op, lm_cpu_need *out) {
    (void)f;
    if (op->kind == LM_OP_EMBED) out->thread = LM_BLK * 16;
    if (op->kind == LM_OP_ROPE) out->thread = op->rope.n_rot;
    return true;
}
