/* CONV and DELTA: one row after another, in every sequence by itself. They work on the run's copies of the states' blocks, so that a run
 * that fails leaves the states alone. */
#include "backend/f64/f64.h"
#include <math.h>
#include <string.h>

#define CHANNELS 64u

static double *block_of(const lm_f64 *f, uint32_t seq, uint32_t slot) { return f->block[(size_t)seq * f->p->n_slots + slot]; }

static void conv_task(void *ctx, uint32_t task, uint32_t thread) {
    (void)thread;
    const lm_f64_job *job = ctx;
    const lm_f64 *f = job->f;
    const lm_op *op = job->op;
    const lm_seq *s = &f->b->seq[task / job->x];
    uint32_t width = lm_f64_width(f, op->a), past = op->conv.kernel - 1, c0 = task % job->x * CHANNELS;
    uint32_t c1 = width - c0 < CHANNELS ? width : c0 + CHANNELS;
    const double *w = lm_f64_vec(f, op->v), *bias = lm_f64_vec(f, op->v2);
    double *block = block_of(f, task / job->x, op->conv.slot);
    for (uint32_t c = c0; c < c1; c++) {
        for (uint32_t t = 0; t < s->n; t++) {
            double y = bias ? bias[c] : 0;
            for (uint32_t j = 0; j <= past; j++) { /* the input at t − past + j */
                double x = t + j < past ? block[(size_t)(t + j) * width + c] : lm_f64_at(f, op->a, s->row0 + t + j - past)[c];
                y += w[(size_t)c * op->conv.kernel + j] * x;
            }
            lm_f64_at(f, op->out, s->row0 + t)[c] = lm_f64_act(op->conv.act, y);
        }
        for (uint32_t j = 0; j < past; j++) { /* ascending: what is read stands at or after j */
            uint64_t from = (uint64_t)s->n + j;
            block[(size_t)j * width + c] =
                from < past ? block[from * width + c] : lm_f64_at(f, op->a, s->row0 + (uint32_t)(from - past))[c];
        }
    }
}
void lm_f64_conv(const lm_f64 *f, const lm_op *op) {
    lm_f64_job job = {f, op, (lm_f64_width(f, op->a) + CHANNELS - 1) / CHANNELS};
    lm_pool_run(f->d->pool, conv_task, &job, f->b->n_seqs * job.x);
}

static void delta_task(void *ctx, uint32_t task, uint32_t thread) {
    const lm_f64_job *job = ctx;
    const lm_f64 *f = job->f;
    const lm_op *op = job->op;
    uint32_t heads = op->delta.v_heads, h = task % heads, dk = op->delta.dk, dv = op->delta.dv;
    uint32_t kh = op->delta.tiled ? h % op->delta.k_heads : h / (heads / op->delta.k_heads);
    const lm_seq *s = &f->b->seq[task / heads];
    double *S = block_of(f, task / heads, op->delta.slot) + (size_t)h * dk * dv, *d = lm_f64_scratch(f, thread);
    for (uint32_t i = s->row0; i < s->row0 + s->n; i++) {
        const double *q = lm_f64_at(f, op->a, i) + (size_t)kh * dk, *k = lm_f64_at(f, op->b, i) + (size_t)kh * dk;
        const double *v = lm_f64_at(f, op->c, i) + (size_t)h * dv, *gates = lm_f64_at(f, op->d, i);
        double *o = lm_f64_at(f, op->out, i) + (size_t)h * dv, decay = exp(gates[h]), beta = gates[heads + h];
        for (size_t j = 0; j < (size_t)dk * dv; j++) S[j] *= decay;
        memset(d, 0, dv * sizeof *d);
        for (uint32_t j = 0; j < dk; j++) lm_f64_axpy(d, k[j], S + (size_t)j * dv, dv);
        for (uint32_t x = 0; x < dv; x++) d[x] = (v[x] - d[x]) * beta;
        for (uint32_t j = 0; j < dk; j++) lm_f64_axpy(S + (size_t)j * dv, k[j], d, dv);
        memset(o, 0, dv * sizeof *o);
        for (uint32_t j = 0; j < dk; j++) lm_f64_axpy(o, q[j] * op->delta.q_scale, S + (size_t)j * dv, dv);
    }
}
void lm_f64_delta(const lm_f64 *f, const lm_op *op) {
    lm_f64_job job = {f, op, 0};
    lm_pool_run(f->d->pool, delta_task, &job, f->b->n_seqs * op->delta.v_heads);
}
bool lm_f64_delta_need(const lm_f64 *f, const lm_op *op, lm_f64_need *out) {
    (void)f;
    out->thread = op->delta.dv;
    return true;
}
