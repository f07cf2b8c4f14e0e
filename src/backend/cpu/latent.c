/* MLA and INDEX, whose keys are rows of floats in every cache type. All rows of the batch are stored first; then each row attends, page by page,
 * to what it may see. Neither the rows that share a task nor the chunk shows in the result: a row's pages, and the keys summed in each, depend
 * on its position alone. */
#include "backend/cpu/cpu.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define QUERIES 16u /* of a task, about: rows × heads that share their keys */

static lm_state *state_of(const lm_cpu *f, uint32_t i) { return f->b->seq[f->seq[i]].state; }

/* ---- the core: some rows × heads over one head of keys --------------------------------------------------------------------------*/
typedef struct attend {
    const lm_cpu *f;
    uint32_t slot, dk, dv, window;
    bool latent;             /* values are the first dv numbers of the keys */
    float scale, softcap;
    const float *sinks;      /* [heads of the op]; NULL */
    lm_val list;             /* INDEX result; LM_NONE */
    const float *q;          /* rows q_row apart (from row `base` on), heads q_head apart */
    size_t q_row, q_head;
    float *out;
    size_t out_row, out_head;
    uint32_t base;           /* the row at q and out */
    uint32_t kv_heads, group, chunk; /* query heads of a key head, and how many of them a task takes */
    uint32_t rows_per_task, row_end;
} attend;

/* A task's memory; queries are numbered row-major: (row, head). */
typedef struct work {
    float *q, *o, *page, *s, *m, *l, *k, *v;
    uint8_t *mark;
} work;
static uint64_t work_floats(uint64_t nq, uint64_t dk, uint64_t dv, bool listed, uint64_t max_len) {
    uint64_t n = nq * (dk + 2 * dv + LM_PAGE + 2);
    return listed ? n + LM_PAGE * (dk + dv) + max_len / 4 + 1 : n;
}
static work work_at(const attend *a, uint32_t nq, float *mem) {
    work w = {.q = mem};
    w.o = w.q + (size_t)nq * a->dk;
    w.page = w.o + (size_t)nq * a->dv;
    w.s = w.page + (size_t)nq * a->dv;
    w.m = w.s + (size_t)nq * LM_PAGE;
    w.l = w.m + nq;
    w.k = w.l + nq;
    w.v = w.k + (size_t)LM_PAGE * a->dk;
    w.mark = (uint8_t *)(w.v + (size_t)LM_PAGE * a->dv);
    return w;
}

/* Scores of `page` are in s; query i sees [lo, hi) of them. Softmax, weighted values, merge. */
static void soften(const attend *a, const work *w, uint32_t i, uint32_t lo, uint32_t hi, float *m, float *l) {
    *m = a->f->k->page_softmax(w->s + (size_t)i * LM_PAGE + lo, hi - lo, a->scale, a->softcap, l);
}
static void merge(const attend *a, const work *w, uint32_t i, float m, float l) {
    const lm_kernels *k = a->f->k;
    float *o = w->o + (size_t)i * a->dv, *p = w->page + (size_t)i * a->dv;
    if (w->l[i] < 0) { /* the first page of this query */
        memcpy(o, p, a->dv * sizeof *o);
        w->m[i] = m, w->l[i] = l;
        return;
    }
    const float top = w->m[i] > m ? w->m[i] : m, d[2] = {w->m[i] - top, m - top};
    float e[2];
    k->exp(e, d, 2);
    k->merge(o, p, e[0], e[1], a->dv);
    w->l[i] = fmaf(l, e[1], w->l[i] * e[0]);
    w->m[i] = top;
}

/* Rows [r0, r1) with visible keys [lo[r], hi[r]) of a page: the keys that all see go through together, the rest one row at a time, each row's
 * keys still in ascending order. */
static void values_of_page(const attend *a, const work *w, uint32_t r0, uint32_t r1, uint32_t heads, const uint32_t *lo, const uint32_t *hi,
                           const float *v, size_t ldv) {
    const lm_kernels *k = a->f->k;
    uint32_t clo = 0, chi = LM_PAGE;
    for (uint32_t r = r0; r < r1; r++) {
        clo = lo[r] > clo ? lo[r] : clo;
        chi = hi[r] < chi ? hi[r] : chi;
    }
    memset(w->page + (size_t)r0 * heads * a->dv, 0, (size_t)(r1 - r0) * heads * a->dv * sizeof(float));
    const bool common = clo < chi;
    for (uint32_t pass = 0; pass < 3; pass++) {
        if (pass == 1) {
            const size_t i = (size_t)r0 * heads;
            if (common)
                k->accumulate(w->s + i * LM_PAGE + clo, LM_PAGE, (r1 - r0) * heads, v + clo * ldv, ldv, chi - clo, a->dv,
                              w->page + i * a->dv, a->dv);
            continue;
        }
        for (uint32_t r = r0; r < r1; r++) {
            const uint32_t from = pass == 0 ? lo[r] : chi, to = pass == 2 ? hi[r] : common ? clo : hi[r];
            const size_t i = (size_t)r * heads;
            if (from < to && (common || pass == 0))
                k->accumulate(w->s + i * LM_PAGE + from, LM_PAGE, heads, v + from * ldv, ldv, to - from, a->dv, w->page + i * a->dv, a->dv);
        }
    }
}

static void page_of_keys(const attend *a, const work *w, uint32_t n_rows, uint32_t heads, const uint32_t *lo, const uint32_t *hi, const float *key,
                         size_t ldk, const float *value, size_t ldv) {
    uint32_t r0 = 0, r1 = n_rows, first = LM_PAGE, end = 0;
    while (r0 < r1 && lo[r0] >= hi[r0]) r0++; /* rows see ranges that only move forward */
    while (r1 > r0 && lo[r1 - 1] >= hi[r1 - 1]) r1--;
    for (uint32_t r = r0; r < r1; r++) {
        first = lo[r] < first ? lo[r] : first;
        end = hi[r] > end ? hi[r] : end;
    }
    if (r0 == r1) return;
    const uint32_t i0 = r0 * heads, i1 = r1 * heads;
    a->f->k->dots(w->q + (size_t)i0 * a->dk, a->dk, i1 - i0, key + first * ldk, ldk, end - first, a->dk,
                  w->s + (size_t)i0 * LM_PAGE + first, LM_PAGE);
    float m[2 * QUERIES], l[2 * QUERIES];
    for (uint32_t i = i0; i < i1; i++) soften(a, w, i, lo[i / heads], hi[i / heads], &m[i], &l[i]);
    values_of_page(a, w, r0, r1, heads, lo, hi, value, ldv);
    for (uint32_t i = i0; i < i1; i++) merge(a, w, i, m[i], l[i]);
}

/* One row by a list of positions: what it sees of each page is copied together, in ascending order. */
static void listed_pages(const attend *a, const work *w, uint32_t row, uint32_t kv, uint32_t heads) {
    const lm_cpu *f = a->f;
    const uint32_t pos = f->pos[row], first = a->window && pos >= a->window ? pos - a->window + 1 : 0;
    const float *at = lm_cpu_at(f, a->list, row);
    memset(w->mark, 0, (size_t)pos + 1);
    for (uint32_t j = 0; j < lm_cpu_width(f, a->list); j++)
        if (at[j] >= (float)first && at[j] <= (float)pos) w->mark[(uint32_t)at[j]] = 1;
    for (uint32_t page = first / LM_PAGE; page <= pos / LM_PAGE; page++) {
        const float *k = lm_state_keys(state_of(f, row), a->slot, page, kv),
                    *v = a->latent ? k : lm_state_values(state_of(f, row), a->slot, page, kv);
        const size_t ldv = a->latent ? a->dk : a->dv;
        const uint32_t none = 0;
        uint32_t n = 0;
        for (uint32_t j = 0; j < LM_PAGE && page * LM_PAGE + j <= pos; j++) {
            if (!w->mark[page * LM_PAGE + j]) continue;
            memcpy(w->k + (size_t)n * a->dk, k + (size_t)j * a->dk, a->dk * sizeof *k);
            memcpy(w->v + (size_t)n++ * a->dv, v + j * ldv, a->dv * sizeof *v);
        }
        page_of_keys(a, w, 1, heads, &none, &n, w->k, a->dk, w->v, a->dv);
    }
}
static void dense_pages(const attend *a, const work *w, uint32_t row, uint32_t n_rows, uint32_t kv, uint32_t heads) {
    const lm_cpu *f = a->f;
    const uint32_t pos = f->pos[row], last = pos + n_rows - 1, first = a->window && pos >= a->window ? pos - a->window + 1 : 0;
    for (uint32_t page = first / LM_PAGE; page <= last / LM_PAGE; page++) {
        const float *k = lm_state_keys(state_of(f, row), a->slot, page, kv), *v = a->latent ? k : lm_state_values(state_of(f, row), a->slot, page, kv);
        const uint32_t at = page * LM_PAGE;
        uint32_t lo[QUERIES], hi[QUERIES];
        for (uint32_t r = 0; r < n_rows; r++) {
            const uint32_t p = pos + r, from = a->window && p >= a->window ? p - a->window + 1 : 0;
            lo[r] = from > at ? (from - at < LM_PAGE ? from - at : LM_PAGE) : 0;
            hi[r] = p + 1 > at ? (p + 1 - at < LM_PAGE ? p + 1 - at : LM_PAGE) : 0;
        }
        page_of_keys(a, w, n_rows, heads, lo, hi, k, a->dk, v, a->latent ? a->dk : a->dv);
    }
}

/* Rows [row, row + n_rows) of one sequence, heads [h0, h0 + heads) of key head kv's group. */
static void attend_rows(const attend *a, uint32_t row, uint32_t n_rows, uint32_t kv, uint32_t h0, uint32_t heads, float *mem) {
    const uint32_t nq = n_rows * heads, first_head = kv * a->group + h0;
    const work w = work_at(a, nq, mem);
    for (uint32_t i = 0; i < nq; i++) {
        memcpy(w.q + (size_t)i * a->dk, a->q + (row - a->base + i / heads) * a->q_row + (first_head + i % heads) * a->q_head,
               a->dk * sizeof(float));
        w.l[i] = -1; /* nothing seen yet */
    }
    if (a->list != LM_NONE) listed_pages(a, &w, row, kv, heads);
    else dense_pages(a, &w, row, n_rows, kv, heads);
    for (uint32_t i = 0; i < nq; i++) {
        float *to = a->out + (row - a->base + i / heads) * a->out_row + (first_head + i % heads) * a->out_head,
              *o = w.o + (size_t)i * a->dv;
        if (w.l[i] < 0) memset(o, 0, a->dv * sizeof *o), w.m[i] = -INFINITY, w.l[i] = 0; /* an empty list: only a sink can be seen */
        float scale = 1, l = w.l[i];
        if (a->sinks) {
            const float sink = a->sinks[first_head + i % heads], top = w.m[i] > sink ? w.m[i] : sink, d[2] = {w.m[i] - top, sink - top};
            float e[2];
            a->f->k->exp(e, d, 2);
            scale = e[0];
            l = fmaf(l, e[0], e[1]);
        }
        for (uint32_t c = 0; c < a->dv; c++) to[c] = a->sinks ? o[c] * scale / l : o[c] / l;
    }
}

/* Tasks: (rows, key head, chunk of its heads). A task's rows are of one sequence. */
static void attend_task(void *ctx, uint32_t task, uint32_t thread) {
    const attend *a = ctx;
    const lm_cpu *f = a->f;
    const uint32_t chunks = (a->group + a->chunk - 1) / a->chunk, part = task % (a->kv_heads * chunks),
                   block = task / (a->kv_heads * chunks);
    const uint32_t kv = part / chunks, h0 = part % chunks * a->chunk, heads = a->group - h0 < a->chunk ? a->group - h0 : a->chunk;
    uint32_t row = a->base + block * a->rows_per_task, end = row + a->rows_per_task < a->row_end ? row + a->rows_per_task : a->row_end;
    while (row < end) {
        const lm_seq *s = &f->b->seq[f->seq[row]];
        const uint32_t stop = s->row0 + s->n < end ? s->row0 + s->n : end;
        attend_rows(a, row, stop - row, kv, h0, heads, lm_cpu_scratch(f, thread));
        row = stop;
    }
}
static uint32_t chunk_of(uint32_t group) { return group < QUERIES ? group : QUERIES; }
static uint32_t rows_of(uint32_t group, bool listed) { return listed || group >= QUERIES ? 1 : QUERIES / group; }
static void attend_all(attend *a) {
    const uint32_t chunks = (a->group + a->chunk - 1) / a->chunk, blocks = (a->row_end - a->base + a->rows_per_task - 1) / a->rows_per_task;
    lm_pool_run(a->f->d->pool, attend_task, a, blocks * a->kv_heads * chunks);
}

/* ---- attention -------------------------------------------------------------------------------------------------------------------*/
static void store(const lm_cpu *f, uint32_t slot, uint32_t i, const float *k, const float *v) {
    const lm_cache_slot *c = &f->p->slot[slot];
    const uint32_t page = f->pos[i] / LM_PAGE, at = f->pos[i] % LM_PAGE;
    for (uint32_t h = 0; h < c->heads; h++) {
        memcpy((float *)lm_state_keys(state_of(f, i), slot, page, h) + (size_t)at * c->dk, k + (size_t)h * c->dk, c->dk * sizeof *k);
        if (v)
            memcpy((float *)lm_state_values(state_of(f, i), slot, page, h) + (size_t)at * c->dv, v + (size_t)h * c->dv, c->dv * sizeof *v);
    }
}
/* ---- MLA, absorbed: the query meets the latent itself; one key head for all ------------------------------------------------------*/
typedef struct mla {
    const lm_cpu *f;
    const lm_op *op;
    uint32_t r0, n;               /* rows of this pass */
    float *xp, *q, *latent, *lp;  /* [heads][n·nope] packed; [n][heads][rank+rope]; [n][heads][rank]; [heads][n·rank] packed */
} mla;
static void mla_query_task(void *ctx, uint32_t h, uint32_t thread) {
    const mla *m = ctx;
    const lm_cpu *f = m->f;
    const lm_op *op = m->op;
    const uint32_t heads = op->mla.heads, nope = op->mla.nope, rope = op->mla.rope, rank = op->mla.rank;
    const size_t ldq = (size_t)heads * (nope + rope), ldo = (size_t)heads * (rank + rope);
    const float *q = lm_cpu_at(f, op->a, m->r0) + (size_t)h * (nope + rope);
    float *xp = m->xp + (size_t)h * m->n * nope, *to = m->q + (size_t)h * (rank + rope);
    for (uint32_t i = 0; i < lm_x_tiles(m->n); i++) lm_x_pack(q, ldq, NULL, m->n, i, nope, xp);
    lm_product p = {f->k, &lm_cpu_aux(f, op)->kt, h, false, NULL, xp, m->n, to, ldo};
    for (uint32_t i = 0, tasks = lm_product_tasks(&p); i < tasks; i++) lm_product_run(&p, i, lm_cpu_scratch(f, thread));
    for (uint32_t t = 0; t < m->n; t++) memcpy(to + t * ldo + rank, q + t * ldq + nope, rope * sizeof *to);
}
static void mla_value_task(void *ctx, uint32_t h, uint32_t thread) {
    const mla *m = ctx;
    const lm_cpu *f = m->f;
    const lm_op *op = m->op;
    const uint32_t heads = op->mla.heads, rank = op->mla.rank, dv = op->mla.dv;
    float *xp = m->lp + (size_t)h * m->n * rank;
    for (uint32_t i = 0; i < lm_x_tiles(m->n); i++) lm_x_pack(m->latent + (size_t)h * rank, (size_t)heads * rank, NULL, m->n, i, rank, xp);
    lm_product p = {
        f->k, &lm_cpu_aux(f, op)->v, h, false, NULL, xp, m->n, lm_cpu_at(f, op->out, m->r0) + (size_t)h * dv, (size_t)heads * dv};
    for (uint32_t i = 0, tasks = lm_product_tasks(&p); i < tasks; i++) lm_product_run(&p, i, lm_cpu_scratch(f, thread));
}
static uint32_t mla_rows(const lm_cpu *f) { return f->n < LM_CPU_MLA_ROWS ? f->n : LM_CPU_MLA_ROWS; }
static void run_mla(lm_cpu *f, const lm_op *op) {
    const uint32_t heads = op->mla.heads, rank = op->mla.rank, rope = op->mla.rope, dk = rank + rope;
    for (uint32_t i = 0; i < f->n; i++) {
        float *to = lm_state_keys(state_of(f, i), op->mla.slot, f->pos[i] / LM_PAGE, 0);
        to += (size_t)(f->pos[i] % LM_PAGE) * dk;
        memcpy(to, lm_cpu_at(f, op->b, i), rank * sizeof *to);
        memcpy(to + rank, lm_cpu_at(f, op->c, i), rope * sizeof *to);
    }
    mla m = {.f = f, .op = op};
    const size_t each = (size_t)mla_rows(f) * heads;
    m.xp = f->shared;
    m.q = m.xp + each * op->mla.nope;
    m.latent = m.q + each * dk;
    m.lp = m.latent + each * rank;
    for (m.r0 = 0; m.r0 < f->n; m.r0 += m.n) {
        m.n = f->n - m.r0 < LM_CPU_MLA_ROWS ? f->n - m.r0 : LM_CPU_MLA_ROWS;
        lm_pool_run(f->d->pool, mla_query_task, &m, heads);
        attend a = {.f = f, .slot = op->mla.slot, .dk = dk, .dv = rank, .latent = true, .scale = (float)op->mla.scale, .list = op->d, .q = m.q,
                    .q_row = (size_t)heads * dk, .q_head = dk, .out = m.latent, .out_row = (size_t)heads * rank, .out_head = rank, .base = m.r0,
                    .kv_heads = 1, .group = heads, .chunk = chunk_of(heads), .rows_per_task = rows_of(heads, op->d != LM_NONE), .row_end = m.r0 + m.n};
        attend_all(&a);
        lm_pool_run(f->d->pool, mla_value_task, &m, heads);
    }
}
static bool need_mla(const lm_cpu *f, const lm_op *op, lm_cpu_need *out) {
    const uint64_t dk = (uint64_t)op->mla.rank + op->mla.rope;
    const uint64_t attend_floats = work_floats(QUERIES, dk, op->mla.rank, op->d != LM_NONE, f->max_len),
                   product = lm_product_scratch(mla_rows(f));
    out->thread = attend_floats > product ? attend_floats : product;
    return lm_mul((uint64_t)mla_rows(f) * op->mla.heads, op->mla.nope + dk + 2 * (uint64_t)op->mla.rank, &out->shared);
}
const lm_cpu_fn lm_cpu_mla = {run_mla, need_mla};

/* ---- the sparse indexer ----------------------------------------------------------------------------------------------------------*/
typedef struct ranked {
    float score;
    uint32_t pos;
} ranked;
/* The higher score first, then the lower position; NaN last. */
static int by_rank(const void *pa, const void *pb) {
    const ranked *a = pa, *b = pb;
    if (isnan(a->score) != isnan(b->score)) return isnan(a->score) ? 1 : -1;
    if (a->score > b->score) return -1;
    if (a->score < b->score) return 1;
    return a->pos < b->pos ? -1 : a->pos > b->pos;
}
typedef struct index_job {
    const lm_cpu *f;
    const lm_op *op;
} index_job;
static void index_task(void *ctx, uint32_t i, uint32_t thread) {
    const index_job *job = ctx;
    const lm_cpu *f = job->f;
    const lm_op *op = job->op;
    const uint32_t n = f->pos[i] + 1, dim = op->index.dim, heads = op->index.heads;
    const float *c = lm_cpu_at(f, op->c, i);
    float *s = lm_cpu_scratch(f, thread), *out = lm_cpu_at(f, op->out, i); /* s: [heads][256] of a page */
    ranked *r = (ranked *)(void *)(s + (size_t)heads * LM_PAGE);
    for (uint32_t j0 = 0; j0 < n; j0 += LM_PAGE) {
        const uint32_t m = n - j0 < LM_PAGE ? n - j0 : LM_PAGE;
        f->k->dots(lm_cpu_at(f, op->a, i), dim, heads, lm_state_keys(state_of(f, i), op->index.slot, j0 / LM_PAGE, 0), dim, m, dim, s,
                   LM_PAGE);
        for (uint32_t j = 0; j < m; j++) {
            float sum = 0;
            for (uint32_t h = 0; h < heads; h++) {
                const float d = s[(size_t)h * LM_PAGE + j];
                sum = fmaf(c[h], d < 0 ? 0 : d, sum);
            }
            r[j0 + j] = (ranked){sum * (float)op->index.scale, j0 + j};
        }
    }
    qsort(r, n, sizeof *r, by_rank);
    for (uint32_t j = 0; j < op->index.topk; j++) out[j] = j < n ? (float)r[j].pos : -1.0f;
}
static void run_index(lm_cpu *f, const lm_op *op) {
    index_job job = {f, op};
    for (uint32_t i = 0; i < f->n; i++) store(f, op->index.slot, i, lm_cpu_at(f, op->b, i), NULL);
    lm_pool_run(f->d->pool, index_task, &job, f->n);
}
static bool need_index(const lm_cpu *f, const lm_op *op, lm_cpu_need *out) {
    out->thread = (uint64_t)op->index.heads * LM_PAGE + 2 * f->max_len;
    return true;
}
const lm_cpu_fn lm_cpu_index = {run_index, need_index};
