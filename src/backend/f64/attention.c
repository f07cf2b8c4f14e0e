/* ATTENTION, MLA and INDEX. All rows of the batch are stored first; then each row attends to what it may see, in two passes (scores and
 * their softmax; the weighted sum in ascending position), so that neither pages nor chunks show in the result. */
#include "backend/f64/f64.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HEADS 16u /* query heads of one key head that a task takes */

static lm_state *state_of(const lm_f64 *f, uint32_t i) { return f->b->seq[f->seq[i]].state; }

/* Row i of values k and v (LM_NONE: none) into a slot's pages, heads side by side. */
static void store(const lm_f64 *f, uint32_t slot, uint32_t i, const double *k, const double *v) {
    const lm_cache_slot *c = &f->p->slot[slot];
    uint32_t page = f->pos[i] / LM_PAGE, at = f->pos[i] % LM_PAGE;
    for (uint32_t h = 0; h < c->heads; h++) {
        double *to = lm_state_keys(state_of(f, i), slot, page, h);
        memcpy(to + (size_t)at * c->dk, k + (size_t)h * c->dk, c->dk * sizeof *to);
        if (!v) continue;
        to = lm_state_values(state_of(f, i), slot, page, h);
        memcpy(to + (size_t)at * c->dv, v + (size_t)h * c->dv, c->dv * sizeof *to);
    }
}

/* Marks the listed positions that are at most `last`; NULL when there is no list. */
static const uint8_t *listed(const lm_f64 *f, lm_val list, uint32_t i, uint32_t last, uint8_t *mark) {
    if (list == LM_NONE) return NULL;
    const double *at = lm_f64_at(f, list, i);
    memset(mark, 0, (size_t)last + 1);
    for (uint32_t j = 0; j < lm_f64_width(f, list); j++)
        if (at[j] >= 0 && at[j] <= last) mark[(uint32_t)at[j]] = 1;
    return mark;
}

/* s[0..n), the scores of positions first … first+n−1, become weights; those that `mark` leaves out become −1. In lane hf-bf16 each score
 * is rounded as it is computed, scaled and capped, and each weight is. */
static void soften(const lm_f64 *f, double *s, uint32_t first, uint32_t n, const uint8_t *mark, double scale, double softcap,
                   const double *sink) {
    double m = sink ? *sink : -INFINITY, sum = 0;
    for (uint32_t j = 0; j < n; j++) {
        s[j] = lm_f64_stored(f, lm_f64_stored(f, s[j]) * scale);
        if (softcap > 0) s[j] = lm_f64_capped(f, s[j], softcap);
        if (mark && !mark[first + j]) continue;
        if (s[j] > m) m = s[j];
    }
    for (uint32_t j = 0; j < n; j++) {
        if (mark && !mark[first + j]) continue;
        s[j] = exp(s[j] - m);
        sum += s[j];
    }
    if (sink) sum += exp(*sink - m);
    for (uint32_t j = 0; j < n; j++) s[j] = mark && !mark[first + j] ? -1 : lm_f64_stored(f, s[j] / sum);
}

/* ---- attention ---------------------------------------------------------------------------------------------------------------*/
static uint32_t chunks_of(const lm_op *op) { return (op->attn.heads / op->attn.kv_heads + HEADS - 1) / HEADS; }

static void attend_task(void *ctx, uint32_t task, uint32_t thread) {
    const lm_f64_job *job = ctx;
    const lm_f64 *f = job->f;
    const lm_op *op = job->op;
    uint32_t chunks = chunks_of(op), group = op->attn.heads / op->attn.kv_heads, dk = op->attn.dk, dv = op->attn.dv;
    uint32_t i = task / (op->attn.kv_heads * chunks), kv = task / chunks % op->attn.kv_heads, h0 = task % chunks * HEADS;
    uint32_t heads = group - h0 < HEADS ? group - h0 : HEADS, pos = f->pos[i], window = op->attn.window;
    uint32_t first = window && pos >= window ? pos - window + 1 : 0, n = pos - first + 1;
    double *score = lm_f64_scratch(f, thread), *out = lm_f64_at(f, op->out, i) + (size_t)(kv * group + h0) * dv;
    const double *q[HEADS], *sinks = lm_f64_vec(f, op->v);
    const uint8_t *mark = listed(f, op->d, i, pos, (uint8_t *)(score + HEADS * f->max_len));
    for (uint32_t h = 0; h < heads; h++) q[h] = lm_f64_at(f, op->a, i) + (size_t)(kv * group + h0 + h) * dk;
    for (uint32_t j = first, end; j <= pos; j = end) {
        end = (j / LM_PAGE + 1) * LM_PAGE;
        if (end > pos + 1) end = pos + 1;
        const double *k = lm_state_keys(state_of(f, i), op->attn.slot, j / LM_PAGE, kv);
        lm_f64_dots(k + (size_t)(j % LM_PAGE) * dk, dk, end - j, q, heads, dk, score + (j - first), n);
    }
    for (uint32_t h = 0; h < heads; h++)
        soften(f, score + (size_t)h * n, first, n, mark, op->attn.scale, op->attn.softcap, sinks ? sinks + kv * group + h0 + h : NULL);
    memset(out, 0, (size_t)heads * dv * sizeof *out);
    for (uint32_t j = 0; j < n; j++) {
        if (score[j] < 0) continue;
        const double *v = lm_state_values(state_of(f, i), op->attn.slot, (first + j) / LM_PAGE, kv);
        for (uint32_t h = 0; h < heads; h++)
            lm_f64_axpy(out + (size_t)h * dv, score[(size_t)h * n + j], v + (size_t)((first + j) % LM_PAGE) * dv, dv);
    }
}
void lm_f64_attention(const lm_f64 *f, const lm_op *op) {
    lm_f64_job job = {f, op, 0};
    for (uint32_t i = 0; op->attn.store && i < f->n; i++) store(f, op->attn.slot, i, lm_f64_at(f, op->b, i), lm_f64_at(f, op->c, i));
    lm_pool_run(f->d->pool, attend_task, &job, f->n * op->attn.kv_heads * chunks_of(op));
}
bool lm_f64_attention_need(const lm_f64 *f, const lm_op *op, lm_f64_need *out) {
    uint64_t tasks;
    out->thread = (HEADS + 1) * f->max_len;
    return lm_mul((uint64_t)f->n * chunks_of(op), op->attn.kv_heads, &tasks) && tasks <= UINT32_MAX;
}

/* ---- MLA, expanded: keys and values of a head are computed from the latent of every visible position --------------------------*/
static void mla_expand(const lm_f64 *f, const lm_op *op, lm_state *s, uint32_t head, uint32_t len, double *rows, double *kv) {
    const lm_weight *w = f->d->weight[op->w];
    uint32_t per = op->mla.nope + op->mla.dv, rank = op->mla.rank, dk = rank + op->mla.rope;
    const double *x[LM_F64_GROUP];
    for (uint32_t r = 0; r < per; r++) lm_weight_row_f64(w, 0, (uint64_t)head * per + r, rows + (size_t)r * rank);
    for (uint32_t j = 0, n; j < len; j += n) {
        n = len - j < LM_F64_GROUP ? len - j : LM_F64_GROUP;
        for (uint32_t t = 0; t < n; t++) {
            const double *page = lm_state_keys(s, op->mla.slot, (j + t) / LM_PAGE, 0);
            x[t] = page + (size_t)((j + t) % LM_PAGE) * dk;
        }
        lm_f64_dots(rows, rank, per, x, n, rank, kv + (size_t)j * per, per);
    }
}
static void mla_task(void *ctx, uint32_t task, uint32_t thread) {
    const lm_f64_job *job = ctx;
    const lm_f64 *f = job->f;
    const lm_op *op = job->op;
    const lm_seq *s = &f->b->seq[task / op->mla.heads];
    uint32_t head = task % op->mla.heads, nope = op->mla.nope, rope = op->mla.rope, dv = op->mla.dv, per = nope + dv;
    uint32_t rank = op->mla.rank, len = s->pos0 + s->n;
    double *rows = lm_f64_scratch(f, thread), *kv = rows + (size_t)per * rank, *score = kv + (size_t)per * f->max_len;
    double *score2 = score + f->max_len;
    uint8_t *marks = (uint8_t *)(score2 + f->max_len);
    mla_expand(f, op, s->state, head, len, rows, kv);
    for (uint32_t i = s->row0; i < s->row0 + s->n; i++) {
        uint32_t n = f->pos[i] + 1;
        const double *q = lm_f64_at(f, op->a, i) + (size_t)head * (nope + rope), *q_rope = q + nope;
        double *out = lm_f64_at(f, op->out, i) + (size_t)head * dv;
        const uint8_t *mark = listed(f, op->d, i, n - 1, marks);
        lm_f64_dots(kv, per, n, &q, 1, nope, score, 1);
        for (uint32_t j = 0; j < n; j++) score2[j] = 0;
        for (uint32_t j = 0; j < n; j += LM_PAGE) {
            const double *page = lm_state_keys(s->state, op->mla.slot, j / LM_PAGE, 0);
            uint32_t count = n - j < LM_PAGE ? n - j : LM_PAGE;
            lm_f64_dots(page + rank, rank + rope, count, &q_rope, 1, rope, score2 + j, 1);
        }
        for (uint32_t j = 0; j < n; j++) score[j] += score2[j];
        soften(f, score, 0, n, mark, op->mla.scale, 0, NULL);
        memset(out, 0, dv * sizeof *out);
        for (uint32_t j = 0; j < n; j++)
            if (!(score[j] < 0)) lm_f64_axpy(out, score[j], kv + (size_t)j * per + nope, dv);
    }
}
void lm_f64_mla(const lm_f64 *f, const lm_op *op) {
    uint32_t rank = op->mla.rank, rope = op->mla.rope;
    lm_f64_job job = {f, op, 0};
    for (uint32_t i = 0; i < f->n; i++) {
        double *to = lm_state_keys(state_of(f, i), op->mla.slot, f->pos[i] / LM_PAGE, 0);
        to += (size_t)(f->pos[i] % LM_PAGE) * (rank + rope);
        memcpy(to, lm_f64_at(f, op->b, i), rank * sizeof *to);
        memcpy(to + rank, lm_f64_at(f, op->c, i), rope * sizeof *to);
    }
    lm_pool_run(f->d->pool, mla_task, &job, f->b->n_seqs * op->mla.heads);
}
bool lm_f64_mla_need(const lm_f64 *f, const lm_op *op, lm_f64_need *out) {
    uint64_t per = (uint64_t)op->mla.nope + op->mla.dv, rows, kv, tasks;
    return lm_mul(per, op->mla.rank, &rows) && lm_mul(per + 3, f->max_len, &kv) && lm_add(rows, kv, &out->thread) &&
           lm_mul(f->b->n_seqs, op->mla.heads, &tasks) && tasks <= UINT32_MAX;
}

/* ---- the sparse indexer ---------------------------------------------------------------------------------------------------------*/
typedef struct ranked {
    double score, pos;
} ranked;
/* The higher score first, then the lower position; NaN last. */
static int by_rank(const void *pa, const void *pb) {
    const ranked *a = pa, *b = pb;
    if (isnan(a->score) != isnan(b->score)) return isnan(a->score) ? 1 : -1;
    if (a->score > b->score) return -1;
    if (a->score < b->score) return 1;
    return a->pos < b->pos ? -1 : a->pos > b->pos;
}
static void index_task(void *ctx, uint32_t i, uint32_t thread) {
    const lm_f64_job *job = ctx;
    const lm_f64 *f = job->f;
    const lm_op *op = job->op;
    uint32_t n = f->pos[i] + 1, dim = op->index.dim, topk = op->index.topk;
    double *dot = lm_f64_scratch(f, thread), *out = lm_f64_at(f, op->out, i);
    ranked *r = (ranked *)(dot + f->max_len);
    const double *by = lm_f64_at(f, op->c, i);
    for (uint32_t j = 0; j < n; j++) r[j] = (ranked){0, j};
    for (uint32_t h = 0; h < op->index.heads; h++) {
        const double *q = lm_f64_at(f, op->a, i) + (size_t)h * dim;
        for (uint32_t j = 0; j < n; j += LM_PAGE) {
            const double *page = lm_state_keys(state_of(f, i), op->index.slot, j / LM_PAGE, 0);
            lm_f64_dots(page, dim, n - j < LM_PAGE ? n - j : LM_PAGE, &q, 1, dim, dot + j, 1);
        }
        for (uint32_t j = 0; j < n; j++) r[j].score += by[h] * ((dot[j] < 0 ? 0 : dot[j]) * op->index.scale);
    }
    qsort(r, n, sizeof *r, by_rank);
    for (uint32_t j = 0; j < topk; j++) out[j] = j < n ? r[j].pos : -1;
}
void lm_f64_index(const lm_f64 *f, const lm_op *op) {
    lm_f64_job job = {f, op, 0};
    for (uint32_t i = 0; i < f->n; i++) store(f, op->index.slot, i, lm_f64_at(f, op->b, i), NULL);
    lm_pool_run(f->d->pool, index_task, &job, f->n);
}
bool lm_f64_index_need(const lm_f64 *f, const lm_op *op, lm_f64_need *out) {
    (void)op;
    out->thread = 3 * f->max_len;
    return true;
}
