/* Lane hf-bf16: where transformers' bfloat16 run (eager attention) rounds. Inside an op torch accumulates in float32, and its order is its
 * own; here sums are exact, so that what is left between the two is that order and what it sets off. Elements are computed in float32 as
 * torch does wherever that is one operation. What families differ in stands in the program (lm_bf16_rules); an op whose rounding points
 * have not been read off transformers' source is refused, a family too. */
#include "backend/f64/f64.h"
#include <string.h>

bool lm_f64_bf16_supports(const lm_op *op) {
    switch (op->kind) {
    case LM_OP_EMBED:
    case LM_OP_SCALE:
    case LM_OP_ADD:
    case LM_OP_LINEAR:
    case LM_OP_ROPE:
    case LM_OP_SOFTCAP:
    case LM_OP_SLICE:
    case LM_OP_CONCAT: return true;
    case LM_OP_NORM: return op->norm.norm != LM_NORM_L2;
    case LM_OP_ACT:
    case LM_OP_GATED: return op->act.act != LM_ACT_SWIGLU_OAI;
    case LM_OP_ATTENTION: return op->v == LM_NONE && op->d == LM_NONE;
    default: return false;
    }
}

/* ---- weights -------------------------------------------------------------------------------------------------------------------*/
void lm_f64_weight_row(const lm_f64 *f, const lm_weight *w, uint32_t m, uint64_t r, double *dst) {
    lm_weight_row_f64(w, m, r, dst);
    for (uint64_t i = 0; f->d->bf16 && i < w->cols; i++) dst[i] = lm_f64_to_bf16(dst[i]);
}

static bool is_norm(const lm_program *p, uint32_t vec) {
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->op[i].kind == LM_OP_NORM && p->op[i].v == vec) return true;
    return false;
}

lm_status lm_f64_bf16_configure(const lm_program *p, double ***out, lm_error *err) {
    if (!p->bf16.known)
        return lm_fail_at(err, LM_UNSUPPORTED, NULL, LM_NO_OFFSET, "lane",
                          "hf-bf16 doesn't know where transformers rounds in family '%s': use lane f64", p->arch);
    uint64_t cells = 0, table, bytes;
    bool ok = lm_mul(p->n_vecs + 1, sizeof(double *), &table);
    for (uint32_t v = 0; ok && v < p->n_vecs; v++) ok = lm_add(cells, p->vec[v].n, &cells);
    ok = ok && lm_mul(cells, sizeof(double), &bytes) && lm_add(bytes, table, &bytes);
    double **vec = ok ? lm_malloc(bytes) : NULL;
    if (!vec) return lm_fail_nomem(err, "the rounded vectors", ok ? bytes : UINT64_MAX);
    double *at = (double *)(vec + p->n_vecs + 1);
    for (uint32_t v = 0; v < p->n_vecs; v++) {
        const double one = p->bf16.norm_plus_one && is_norm(p, v) ? 1 : 0;
        vec[v] = at;
        for (uint64_t i = 0; i < p->vec[v].n; i++) *at++ = lm_f64_to_bf16(p->vec[v].v[i] - one) + one;
    }
    *out = vec;
    return LM_OK;
}

/* ---- results -------------------------------------------------------------------------------------------------------------------*/
static void round_row(const lm_f64 *f, const lm_op *op, uint32_t i) {
    double *o = lm_f64_at(f, op->out, i);
    for (uint32_t j = 0; j < lm_f64_width(f, op->out); j++) o[j] = lm_f64_to_bf16(o[j]);
}
static void round_task(void *ctx, uint32_t i, uint32_t thread) {
    const lm_f64_job *job = ctx;
    (void)thread;
    round_row(job->f, job->op, i);
}
void lm_f64_bf16_store(const lm_f64 *f, const lm_op *op) {
    lm_f64_job job = {f, op, 0};
    if (lm_f64_bf16_row_fns[op->kind] || op->kind == LM_OP_SLICE || op->kind == LM_OP_CONCAT) return;
    lm_pool_run(f->d->pool, round_task, &job, f->n);
}

/* A factor that the reference holds as a tensor is a bfloat16; one that it holds as a number is a float. */
static void row_scale(const lm_f64 *f, const lm_op *op, uint32_t i) {
    const double *a = lm_f64_at(f, op->a, i), *v = lm_f64_vec(f, op->v);
    const double c = op->scale.bf16 ? lm_f64_to_bf16(op->scale.c) : (float)op->scale.c;
    double *o = lm_f64_at(f, op->out, i);
    const bool one = v && f->p->vec[op->v].n == 1;
    for (uint32_t j = 0; j < lm_f64_width(f, op->out); j++) o[j] = lm_f64_to_bf16(a[j] * (!v ? c : one ? v[0] : v[j]));
}

/* torch's own layer norm rounds once; RMS norms are written out in each family's file, in float32. */
static void row_norm(const lm_f64 *f, const lm_op *op, uint32_t i) {
    if (op->norm.norm == LM_NORM_LAYER) {
        lm_f64_row_fns[LM_OP_NORM](f, op, i);
        round_row(f, op, i);
        return;
    }
    const uint32_t groups = op->norm.groups, n = lm_f64_width(f, op->a) / groups;
    const double *w = lm_f64_vec(f, op->v);
    for (uint32_t g = 0; g < groups; g++) {
        const double *a = lm_f64_at(f, op->a, i) + (size_t)g * n;
        double *o = lm_f64_at(f, op->out, i) + (size_t)g * n;
        const float mean = (float)(lm_f64_dot(a, a, n) / n), under = mean + (float)op->norm.eps, r = (float)(1.0 / sqrt((double)under));
        const double *gw = w && f->p->vec[op->v].n != n ? w + (size_t)g * n : w;
        for (uint32_t j = 0; j < n; j++) {
            const double x = (float)(a[j] * r);
            o[j] = lm_f64_to_bf16((f->p->bf16.norm_cast_first ? lm_f64_to_bf16(x) : x) * (gw ? gw[j] : 1.0));
        }
    }
}

static void row_gated(const lm_f64 *f, const lm_op *op, uint32_t i) {
    const double *a = lm_f64_at(f, op->a, i), *b = lm_f64_at(f, op->b, i);
    double *o = lm_f64_at(f, op->out, i);
    for (uint32_t j = 0; j < lm_f64_width(f, op->out); j++) o[j] = lm_f64_to_bf16(lm_f64_to_bf16(lm_f64_act(op->act.act, a[j])) * b[j]);
}

/* The angle is a float, so are its cosine and sine; then they are bfloat16, and so is each product and their sum. */
static void row_rope(const lm_f64 *f, const lm_op *op, uint32_t i) {
    const lm_rope *r = &f->p->rope[op->rope.rope];
    const uint32_t at = f->row[i], half = op->rope.n_rot / 2, pos = f->pos[at];
    const bool is_long = r->border && f->b->seq[f->seq[at]].length > r->border, wide = f->p->bf16.rope_wide;
    const double *freq = is_long ? r->inv_freq_long : r->inv_freq;
    double *o = lm_f64_at(f, op->out, i);
    memcpy(o, lm_f64_at(f, op->a, i), lm_f64_width(f, op->out) * sizeof *o);
    for (uint32_t k = 0; k < half; k++) {
        const float angle = (float)(pos * freq[k]), c32 = (float)cos((double)angle) * (float)r->factor,
                    s32 = (float)sin((double)angle) * (float)r->factor;
        const double c = wide ? c32 : lm_f64_to_bf16(c32), s = wide ? s32 : lm_f64_to_bf16(s32);
        const uint32_t x = op->rope.offset + (op->rope.interleaved ? 2 * k : k), y = x + (op->rope.interleaved ? 1 : half);
        for (uint32_t h = 0; h < op->rope.heads; h++) {
            double *head = o + (size_t)h * op->rope.head_dim, p = head[x], q = head[y];
            const double pc = p * c, qs = q * s, qc = q * c, ps = p * s;
            if (wide) {
                head[x] = lm_f64_to_bf16((float)pc - (float)qs);
                head[y] = lm_f64_to_bf16((float)qc + (float)ps);
            } else {
                head[x] = lm_f64_to_bf16(lm_f64_to_bf16(pc) - lm_f64_to_bf16(qs));
                head[y] = lm_f64_to_bf16(lm_f64_to_bf16(qc) + lm_f64_to_bf16(ps));
            }
        }
    }
}

const lm_f64_row_fn lm_f64_bf16_row_fns[LM_OP_COUNT] = {
    [LM_OP_SCALE] = row_scale,
    [LM_OP_NORM] = row_norm,
    [LM_OP_GATED] = row_gated,
    [LM_OP_ROPE] = row_rope,
};
