/* LINEAR and EXPERTS: a task decodes a block of weight rows into its thread's scratch and multiplies it with every input row. The
 * 8-segment tree of `split` belongs to tensor parallelism, which the arbiter has not. */
#include "backend/f64/f64.h"
#include <string.h>

/* Rows decoded at a time: about half a MiB. No sum depends on it. */
static uint32_t block_rows(uint64_t cols) {
    uint64_t r = 65536 / cols;
    return r < 4 ? 4 : r > 32 ? 32 : (uint32_t)r;
}
static uint32_t blocks_of(uint64_t rows, uint32_t per) { return (uint32_t)((rows + per - 1) / per); }
static uint32_t block_at(uint64_t rows, uint32_t per, uint32_t task, uint32_t *count) {
    uint64_t r0 = (uint64_t)task * per, left = rows - r0;
    *count = left < per ? (uint32_t)left : per;
    return (uint32_t)r0;
}
static void decode(const lm_f64 *f, const lm_weight *w, uint32_t m, uint32_t r0, uint32_t count, double *dst) {
    for (uint32_t r = 0; r < count; r++) lm_f64_weight_row(f, w, m, r0 + r, dst + (size_t)r * w->cols);
}

static void linear_task(void *ctx, uint32_t task, uint32_t thread) {
    const lm_f64_job *job = ctx;
    const lm_f64 *f = job->f;
    const lm_op *op = job->op;
    const lm_weight *w = f->d->weight[op->w];
    const double *bias = lm_f64_vec(f, op->v), *x[LM_F64_GROUP];
    double *mem = lm_f64_scratch(f, thread);
    uint32_t count, r0 = block_at(w->rows, block_rows(w->cols), task, &count), width = lm_f64_width(f, op->out);
    decode(f, w, 0, r0, count, mem);
    for (uint32_t i = 0, n; i < f->n; i += n) {
        n = f->n - i < LM_F64_GROUP ? f->n - i : LM_F64_GROUP;
        for (uint32_t j = 0; j < n; j++) x[j] = lm_f64_at(f, op->a, i + j);
        double *out = lm_f64_at(f, op->out, i) + r0;
        lm_f64_dots(mem, w->cols, count, x, n, w->cols, out, width);
        for (uint32_t j = 0; bias && j < n; j++)
            for (uint32_t r = 0; r < count; r++) out[(size_t)j * width + r] += bias[r0 + r];
    }
}
void lm_f64_linear(const lm_f64 *f, const lm_op *op) {
    const lm_weight *w = f->d->weight[op->w];
    lm_f64_job job = {f, op, 0};
    lm_pool_run(f->d->pool, linear_task, &job, blocks_of(w->rows, block_rows(w->cols)));
}
bool lm_f64_linear_need(const lm_f64 *f, const lm_op *op, lm_f64_need *out) {
    uint64_t cols = f->d->weight[op->w]->cols;
    return lm_mul(block_rows(cols), cols, &out->thread);
}

/* ---- experts: one at a time in ascending id, over the rows that chose it -----------------------------------------------------*/
typedef struct experts_job {
    const lm_f64 *f;
    const lm_op *op;
    uint32_t e, n;         /* expert, rows that chose it */
    double *row, *by;      /* [n] which rows, with what weight */
    double *hidden;        /* [n][inner] */
} experts_job;

static void gate_up_task(void *ctx, uint32_t task, uint32_t thread) {
    const experts_job *job = ctx;
    const lm_f64 *f = job->f;
    const lm_op *op = job->op;
    const lm_weight *w = f->d->weight[op->w], *w2 = f->d->weight[op->w2];
    uint32_t per = block_rows(w->cols), count, r0 = block_at(w->rows, per, task, &count);
    double *mem = lm_f64_scratch(f, thread), *mem2 = mem + per * w->cols, *gate = mem2 + per * w->cols, *up = gate + per * LM_F64_GROUP;
    const double *bg = lm_f64_vec(f, op->v), *bu = lm_f64_vec(f, op->v2), *x[LM_F64_GROUP];
    size_t at = (size_t)job->e * w->rows + r0;
    decode(f, w, job->e, r0, count, mem);
    decode(f, w2, job->e, r0, count, mem2);
    for (uint32_t i = 0, n; i < job->n; i += n) {
        n = job->n - i < LM_F64_GROUP ? job->n - i : LM_F64_GROUP;
        for (uint32_t j = 0; j < n; j++) x[j] = lm_f64_at(f, op->a, (uint32_t)job->row[i + j]);
        lm_f64_dots(mem, w->cols, count, x, n, w->cols, gate, per);
        lm_f64_dots(mem2, w->cols, count, x, n, w->cols, up, per);
        for (uint32_t j = 0; j < n; j++)
            for (uint32_t r = 0; r < count; r++) {
                double g = gate[j * per + r] + (bg ? bg[at + r] : 0.0), u = up[j * per + r] + (bu ? bu[at + r] : 0.0);
                job->hidden[(size_t)(i + j) * w->rows + r0 + r] = lm_f64_gate(op->experts.act, op->experts.limit, op->experts.alpha, g, u);
            }
    }
}
static void down_task(void *ctx, uint32_t task, uint32_t thread) {
    const experts_job *job = ctx;
    const lm_f64 *f = job->f;
    const lm_op *op = job->op;
    const lm_weight *w = f->d->weight[op->w3];
    uint32_t per = block_rows(w->cols), count, r0 = block_at(w->rows, per, task, &count);
    double *mem = lm_f64_scratch(f, thread), *y = mem + per * w->cols;
    const double *bias = lm_f64_vec(f, op->v3), *x[LM_F64_GROUP];
    size_t at = (size_t)job->e * w->rows + r0;
    decode(f, w, job->e, r0, count, mem);
    for (uint32_t i = 0, n; i < job->n; i += n) {
        n = job->n - i < LM_F64_GROUP ? job->n - i : LM_F64_GROUP;
        for (uint32_t j = 0; j < n; j++) x[j] = job->hidden + (size_t)(i + j) * w->cols;
        lm_f64_dots(mem, w->cols, count, x, n, w->cols, y, per);
        for (uint32_t j = 0; j < n; j++) {
            double *out = lm_f64_at(f, op->out, (uint32_t)job->row[i + j]) + r0, by = job->by[i + j];
            for (uint32_t r = 0; r < count; r++) out[r] += by * (y[j * per + r] + (bias ? bias[at + r] : 0.0));
        }
    }
}

void lm_f64_experts(const lm_f64 *f, const lm_op *op) {
    const lm_weight *up = f->d->weight[op->w], *down = f->d->weight[op->w3];
    uint32_t k = op->experts.k;
    experts_job job = {.f = f, .op = op, .row = f->shared, .by = f->shared + f->n, .hidden = f->shared + 2 * (size_t)f->n};
    memset(f->val[op->out], 0, (size_t)f->n * lm_f64_width(f, op->out) * sizeof(double));
    for (job.e = 0; job.e < op->experts.n; job.e++) {
        job.n = 0;
        for (uint32_t i = 0; i < f->n; i++) {
            const double *route = lm_f64_at(f, op->b, i);
            for (uint32_t j = 0; j < k; j++) {
                if (route[j] != (double)job.e) continue;
                job.row[job.n] = i;
                job.by[job.n++] = route[k + j];
                break; /* ids are distinct */
            }
        }
        if (!job.n) continue;
        lm_pool_run(f->d->pool, gate_up_task, &job, blocks_of(up->rows, block_rows(up->cols)));
        lm_pool_run(f->d->pool, down_task, &job, blocks_of(down->rows, block_rows(down->cols)));
    }
}
bool lm_f64_experts_need(const lm_f64 *f, const lm_op *op, lm_f64_need *out) {
    const lm_weight *up = f->d->weight[op->w], *down = f->d->weight[op->w3];
    uint64_t a, b, hidden;
    if (!lm_mul(2 * block_rows(up->cols), up->cols + LM_F64_GROUP, &a)) return false;
    if (!lm_mul(block_rows(down->cols), down->cols + LM_F64_GROUP, &b)) return false;
    out->thread = a > b ? a : b;
    return lm_mul(f->n, up->rows, &hidden) && lm_add(hidden, 2 * (uint64_t)f->n, &out->shared);
}
