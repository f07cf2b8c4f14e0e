/* CONV and DELTA: along every sequence. They leave the new state in the run's copies of the blocks; commit moves those into the states. */
#include "backend/cpu/cpu.h"
#include <string.h>

static float *block_of(const lm_cpu *f, uint32_t seq, uint32_t slot) { return f->block[(size_t)seq * f->p->n_slots + slot]; }

typedef struct rec_job {
    const lm_cpu *f;
    const lm_op *op;
} rec_job;

/* The input `past − j` rows before row i of its sequence: a row of the batch, or one that the state remembers. */
static const float *conv_input(const lm_cpu *f, const lm_op *op, const float *block, uint32_t row0, uint32_t t, uint32_t past, uint32_t j) {
    if (t + j < past) return block + (size_t)(t + j) * lm_cpu_width(f, op->a);
    return lm_cpu_at(f, op->a, row0 + t + j - past);
}
static void conv_task(void *ctx, uint32_t i, uint32_t thread) {
    const rec_job *job = ctx;
    const lm_cpu *f = job->f;
    const lm_op *op = job->op;
    const lm_seq *s = &f->b->seq[f->seq[i]];
    const uint32_t past = op->conv.kernel - 1, width = lm_cpu_width(f, op->a);
    const float *block = block_of(f, f->seq[i], op->conv.slot), **in = (const float **)(void *)lm_cpu_scratch(f, thread);
    for (uint32_t j = 0; j <= past; j++) in[j] = conv_input(f, op, block, s->row0, i - s->row0, past, j);
    float *o = lm_cpu_at(f, op->out, i);
    f->k->conv(o, in, lm_cpu_aux(f, op)->vec, lm_cpu_vec(f, op->v2), op->conv.kernel, width);
    if (op->conv.act != LM_ACT_NONE) f->k->act(lm_cpu_act(op->conv.act), o, o, width);
}
static void run_conv(lm_cpu *f, const lm_op *op) {
    rec_job job = {f, op};
    const uint32_t past = op->conv.kernel - 1, width = lm_cpu_width(f, op->a);
    lm_pool_run(f->d->pool, conv_task, &job, f->n);
    for (uint32_t q = 0; q < f->b->n_seqs; q++) {
        const lm_seq *s = &f->b->seq[q];
        float *block = block_of(f, q, op->conv.slot);
        for (uint32_t j = 0; j < past; j++) /* ascending: what is read stands after what was written */
            memmove(block + (size_t)j * width, conv_input(f, op, block, s->row0, s->n, past, j), width * sizeof *block);
    }
}
static bool need_conv(const lm_cpu *f, const lm_op *op, lm_cpu_need *out) {
    (void)f;
    out->thread = 2 * (uint64_t)op->conv.kernel; /* pointers */
    return true;
}
const lm_cpu_fn lm_cpu_conv = {run_conv, need_conv};

static void delta_task(void *ctx, uint32_t task, uint32_t thread) {
    (void)thread;
    const rec_job *job = ctx;
    const lm_cpu *f = job->f;
    const lm_op *op = job->op;
    const uint32_t heads = op->delta.v_heads, h = task % heads, dk = op->delta.dk, dv = op->delta.dv;
    const uint32_t kh = op->delta.tiled ? h % op->delta.k_heads : h / (heads / op->delta.k_heads);
    const lm_seq *s = &f->b->seq[task / heads];
    float *S = block_of(f, task / heads, op->delta.slot) + (size_t)h * dk * dv;
    for (uint32_t i = s->row0; i < s->row0 + s->n; i++) {
        const float *gates = lm_cpu_at(f, op->d, i);
        float decay;
        f->k->exp(&decay, &gates[h], 1);
        f->k->delta(S, lm_cpu_at(f, op->a, i) + (size_t)kh * dk, lm_cpu_at(f, op->b, i) + (size_t)kh * dk, lm_cpu_at(f, op->c, i) + (size_t)h * dv,
                    decay, gates[heads + h], (float)op->delta.q_scale, dk, dv, lm_cpu_at(f, op->out, i) + (size_t)h * dv);
    }
}
static void run_delta(lm_cpu *f, const lm_op *op) {
    rec_job job = {f, op};
    lm_pool_run(f->d->pool, delta_task, &job, f->b->n_seqs * op->delta.v_heads);
}
const lm_cpu_fn lm_cpu_delta = {run_delta, NULL};
