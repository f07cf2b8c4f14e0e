/* ATTENTION. The batch's keys and values are stored first, in the cache's own element type (a single row's by the tasks that attend to them); then
 * each row attends, page by page, to what it may see. A task is some rows of one sequence by the query heads that share a key head; its queries meet a
 * page some at a time, while the page is in the cache. Neither the queries that go together nor the chunk shows in the result: a row's pages, and the
 * keys summed in each, depend on its position alone. */
#include "backend/cpu/cpu.h"
#include <math.h>
#include <string.h>

#define QUERIES 48u    /* of a task, about */
#define AT_ONCE 12u    /* of a kernel call, at most, on any level */
#define STORE_ROWS 32u /* of a storing task */

static lm_state *state_of(const lm_cpu *f, uint32_t i) { return f->b->seq[f->seq[i]].state; }
static lm_kv kv_of(const lm_cpu *f) { return f->d->cache->kv; }
static bool in_pairs(const lm_cpu *f) { return f->d->pairs; } /* keys and values are LM_KV_BF16X2 */
static uint32_t at_once(const lm_cpu *f) { return in_pairs(f) ? LM_BF16_QUERIES : f->k->attend_n; }

typedef struct attend {
    const lm_cpu *f;
    const lm_op *op;
    const float *sinks; /* [heads]; NULL */
    uint32_t group, rows_per_task, blocks, padded_k, padded; /* query heads of a key head; dk and dv as the kernels have them */
    bool stores; /* each task stores what it attends to before */
} attend;

/* A task's memory. Queries are numbered row-major, (row, head), and cut into blocks: block b has queries [first(b), first(b + 1)). */
typedef struct work {
    float *q, *o, *page, *s, *m, *l; /* [n][padded_k] by blocks as lm_attend has q; [n][padded]; of a block: [][padded], [][256]; [n]; [n] */
    uint8_t *mark;                   /* a list's positions, up to a whole page; NULL */
    uint32_t n, blocks, heads;
} work;
static uint64_t work_floats(uint64_t n, uint64_t padded_k, uint64_t padded, bool listed, uint64_t max_len) {
    return n * (padded_k + padded + 2) + AT_ONCE * (padded + LM_PAGE) + (listed ? max_len / 4 + LM_PAGE : 0);
}
static work work_at(const attend *a, uint32_t n_rows, float *mem) {
    work w = {.q = mem, .n = n_rows * a->group, .heads = a->group};
    w.blocks = (w.n + at_once(a->f) - 1) / at_once(a->f);
    w.o = w.q + (size_t)w.n * a->padded_k;
    w.m = w.o + (size_t)w.n * a->padded;
    w.l = w.m + w.n;
    w.page = w.l + w.n;
    w.s = w.page + (size_t)AT_ONCE * a->padded;
    if (a->op->d != LM_NONE) w.mark = (uint8_t *)(w.s + (size_t)AT_ONCE * LM_PAGE);
    return w;
}
static uint32_t first_of(const work *w, uint32_t block) { return (uint32_t)((uint64_t)block * w->n / w->blocks); }

/* ---- pages -----------------------------------------------------------------------------------------------------------------------*/
/* What the page left of queries [i0, i0 + n) joins what the pages before it left. */
static void merge(const attend *a, const work *w, uint32_t i0, uint32_t n, const uint32_t *lo, const uint32_t *hi, const float *m, const float *l) {
    float d[2 * AT_ONCE], e[2 * AT_ONCE];
    for (uint32_t i = 0; i < n; i++) {
        const float old = w->l[i0 + i] < 0 || lo[i] >= hi[i] ? 0 : w->m[i0 + i], new = w->l[i0 + i] < 0 || lo[i] >= hi[i] ? 0 : m[i];
        const float top = old > new ? old : new;
        d[2 * i] = old - top, d[2 * i + 1] = new - top;
    }
    a->f->k->exp(e, d, 2 * n);
    for (uint32_t i = 0; i < n; i++) {
        float *o = w->o + (size_t)(i0 + i) * a->padded, *p = w->page + (size_t)i * a->padded, *om = &w->m[i0 + i], *ol = &w->l[i0 + i];
        if (lo[i] >= hi[i]) continue;
        if (*ol < 0) { /* its first page */
            memcpy(o, p, a->padded * sizeof *o);
            *om = m[i], *ol = l[i];
            continue;
        }
        a->f->k->merge(o, p, e[2 * i], e[2 * i + 1], a->padded);
        *ol = fmaf(l[i], e[2 * i + 1], *ol * e[2 * i]);
        *om = *om > m[i] ? *om : m[i];
    }
}
/* One page for all queries of the task, whose first row stands at `pos`; next: what this thread may well read then. */
static void attend_page(const attend *a, const work *w, uint32_t pos, uint32_t page, const uint8_t *keys, const uint8_t *values,
                        const uint8_t *next) {
    const uint32_t at = page * LM_PAGE, window = a->op->attn.window;
    for (uint32_t b = 0; b < w->blocks; b++) {
        const uint32_t i0 = first_of(w, b), n = first_of(w, b + 1) - i0;
        uint32_t lo[AT_ONCE], hi[AT_ONCE];
        bool any = false;
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t p = pos + (i0 + i) / w->heads, from = window && p >= window ? p - window + 1 : 0;
            lo[i] = from > at ? (from - at < LM_PAGE ? from - at : LM_PAGE) : 0;
            hi[i] = p + 1 > at ? (p + 1 - at < LM_PAGE ? p + 1 - at : LM_PAGE) : 0;
            any = any || lo[i] < hi[i];
        }
        if (!any) continue;
        /* the first page of all these queries needs no joining */
        bool fresh = true;
        for (uint32_t i = 0; i < n; i++) fresh = fresh && w->l[i0 + i] < 0;
        float m[AT_ONCE], l[AT_ONCE];
        const lm_attend call = {.n = n, .dk = a->op->attn.dk, .dv = a->op->attn.dv, .q = w->q + (size_t)i0 * a->padded_k, .lo = lo, .hi = hi,
                                .keep = w->mark ? w->mark + at : NULL, .keys = keys, .values = values, .next = next, .scale = (float)a->op->attn.scale,
                                .softcap = (float)a->op->attn.softcap, .s = w->s, .m = fresh ? w->m + i0 : m, .l = fresh ? w->l + i0 : l,
                                .o = fresh ? w->o + (size_t)i0 * a->padded : w->page, .ldo = a->padded};
        if (in_pairs(a->f)) a->f->d->pairs->attend(&call);
        else a->f->k->attend[kv_of(a->f)](&call);
        if (!fresh) merge(a, w, i0, n, lo, hi, m, l);
    }
}
/* The positions that a row's list lets through; false for a page where it sees none. */
static void mark_list(const attend *a, const work *w, uint32_t row) {
    const uint32_t pos = a->f->pos[row];
    const float *at = lm_cpu_at(a->f, a->op->d, row);
    memset(w->mark, 0, ((size_t)pos / LM_PAGE + 1) * LM_PAGE);
    for (uint32_t j = 0; j < lm_cpu_width(a->f, a->op->d); j++)
        if (at[j] >= 0 && at[j] <= (float)pos) w->mark[(uint32_t)at[j]] = 1;
}
static bool marked(const work *w, uint32_t from, uint32_t to) {
    for (uint32_t j = from; j < to; j++)
        if (w->mark[j]) return true;
    return false;
}
/* The queries of block b, as lm_attend has them. */
static void place_queries(const attend *a, const work *w, uint32_t b, uint32_t row, uint32_t head) {
    const lm_cpu *f = a->f;
    const uint32_t i0 = first_of(w, b), n = first_of(w, b + 1) - i0, dk = a->op->attn.dk;
    const float *q[AT_ONCE];
    uint32_t at[AT_ONCE];
    float *to = w->q + (size_t)i0 * a->padded_k;
    for (uint32_t i = 0; i < n; i++) {
        at[i] = (row + (i0 + i) / w->heads) * a->op->attn.heads + head + (i0 + i) % w->heads;
        q[i] = f->val[a->op->a] + (size_t)at[i] * dk;
    }
    if (in_pairs(f)) {
        lm_bf16_pack(f->d->pairs, f->val[a->op->a], dk, at, n, 0, dk, to);
        return;
    }
    for (uint32_t i = 0; i < n; i++, to += LM_KV_SPAN) {
        uint32_t d = 0;
        for (; d + LM_KV_SPAN <= dk; d += LM_KV_SPAN) memcpy(to + (size_t)d * n, q[i] + d, LM_KV_SPAN * sizeof *to);
        if (d < dk) memcpy(to + (size_t)d * n, q[i] + d, (dk - d) * sizeof *to);
    }
}
/* Much of these rows may stand in another core's cache: all of it is asked for at once. */
static void ask_rows(const float *x, size_t ld, uint32_t width, uint32_t n) {
    for (uint32_t i = 0; i < n; i++, x += ld)
        for (uint32_t d = 0; d < width; d += 16) __builtin_prefetch(x + d);
}
static void ask_queries(const attend *a, uint32_t row, uint32_t n_rows, uint32_t head) {
    const uint32_t dk = a->op->attn.dk;
    ask_rows(lm_cpu_at(a->f, a->op->a, row) + (size_t)head * dk, lm_cpu_width(a->f, a->op->a), a->group * dk, n_rows);
}
/* Rows [row, row + n_rows) of one sequence, all heads of key head kv's group. */
static void attend_rows(const attend *a, uint32_t row, uint32_t n_rows, uint32_t kv, float *mem) {
    const lm_cpu *f = a->f;
    const lm_op *op = a->op;
    const uint32_t dv = op->attn.dv, window = op->attn.window, head = kv * a->group, pos = f->pos[row];
    const uint32_t last = pos + n_rows - 1, first = window && pos >= window ? pos - window + 1 : 0;
    const work w = work_at(a, n_rows, mem);
    ask_queries(a, row, n_rows, head);
    for (uint32_t b = 0; b < w.blocks; b++) place_queries(a, &w, b, row, head);
    for (uint32_t i = 0; i < w.n; i++) w.l[i] = -1; /* nothing seen yet */
    if (w.mark) mark_list(a, &w, row);
    if (row >= a->rows_per_task) ask_queries(a, row - a->rows_per_task, a->rows_per_task, head); /* the next task's, as a rule */
    for (uint32_t page = first / LM_PAGE; page <= last / LM_PAGE; page++) {
        const uint32_t from = page * LM_PAGE, to = last + 1 < from + LM_PAGE ? last + 1 : from + LM_PAGE;
        if (w.mark && !marked(&w, first > from ? first : from, to)) continue;
        lm_state *state = state_of(f, row);
        const uint8_t *next = page < last / LM_PAGE         ? lm_state_keys(state, op->attn.slot, page + 1, kv)
                              : kv + 1 < op->attn.kv_heads ? lm_state_keys(state, op->attn.slot, first / LM_PAGE, kv + 1)
                                                           : NULL;
        attend_page(a, &w, pos, page, lm_state_keys(state, op->attn.slot, page, kv), lm_state_values(state, op->attn.slot, page, kv), next);
    }
    for (uint32_t i = 0; i < w.n; i++) {
        float *to = lm_cpu_at(f, op->out, row + i / w.heads) + (size_t)(head + i % w.heads) * dv, *o = w.o + (size_t)i * a->padded;
        if (w.l[i] < 0) memset(o, 0, dv * sizeof *o), w.m[i] = -INFINITY, w.l[i] = 0; /* an empty list: only a sink can be seen */
        float scale = 1, l = w.l[i];
        if (a->sinks) {
            const float sink = a->sinks[head + i % w.heads], top = w.m[i] > sink ? w.m[i] : sink, d[2] = {w.m[i] - top, sink - top};
            float e[2];
            f->k->exp(e, d, 2);
            scale = e[0];
            l = fmaf(l, e[0], e[1]);
        }
        f->k->normalise(to, o, 0, scale / l, NULL, NULL, dv);
    }
}

/* ---- tasks -----------------------------------------------------------------------------------------------------------------------*/
static void store_task(void *ctx, uint32_t task, uint32_t thread) {
    (void)thread;
    const attend *a = ctx;
    const lm_cpu *f = a->f;
    const lm_op *op = a->op;
    const uint32_t h = task % op->attn.kv_heads, dk = op->attn.dk, dv = op->attn.dv;
    uint32_t row = task / op->attn.kv_heads * STORE_ROWS, end = f->n - row < STORE_ROWS ? f->n : row + STORE_ROWS;
    for (uint32_t n; row < end; row += n) {
        const lm_seq *s = &f->b->seq[f->seq[row]];
        const uint32_t at = f->pos[row] % LM_PAGE, page = f->pos[row] / LM_PAGE;
        n = (s->row0 + s->n < end ? s->row0 + s->n : end) - row;
        n = n < LM_PAGE - at ? n : LM_PAGE - at;
        const lm_kv_rows r = {.k = lm_cpu_at(f, op->b, row) + (size_t)h * dk, .v = lm_cpu_at(f, op->c, row) + (size_t)h * dv,
                              .ldk = lm_cpu_width(f, op->b), .ldv = lm_cpu_width(f, op->c), .n = n, .at = at, .dk = dk, .dv = dv,
                              .keys = lm_state_keys(s->state, op->attn.slot, page, h), .values = lm_state_values(s->state, op->attn.slot, page, h)};
        ask_rows(r.k, r.ldk, dk, n), ask_rows(r.v, r.ldv, dv, n);
        if (in_pairs(f)) f->d->pairs->store(&r);
        else f->k->store[kv_of(f)](&r);
    }
}
static void attend_task(void *ctx, uint32_t task, uint32_t thread) {
    const attend *a = ctx;
    const lm_cpu *f = a->f;
    if (a->stores) store_task(ctx, task, thread); /* one row: a task is a head */
    /* head by head, whose keys and values then stay near; of each the last rows of a prompt first, since they see the most: no thread ends with a
     * long task of its own */
    const uint32_t kv = task / a->blocks, block = a->blocks - 1 - task % a->blocks;
    uint32_t row = block * a->rows_per_task, end = f->n - row < a->rows_per_task ? f->n : row + a->rows_per_task;
    while (row < end) {
        const lm_seq *s = &f->b->seq[f->seq[row]];
        const uint32_t stop = s->row0 + s->n < end ? s->row0 + s->n : end;
        attend_rows(a, row, stop - row, kv, lm_cpu_scratch(f, thread));
        row = stop;
    }
}

static uint32_t rows_of(uint32_t group, bool listed) { return listed || group >= QUERIES ? 1 : QUERIES / group; }
static uint32_t padded_of(uint32_t n) { return lm_kv_spans(n) * LM_KV_SPAN; }
static void run_attention(lm_cpu *f, const lm_op *op) {
    const uint32_t heads = op->attn.kv_heads, group = op->attn.heads / heads;
    attend a = {.f = f, .op = op, .sinks = lm_cpu_vec(f, op->v), .group = group, .rows_per_task = rows_of(group, op->d != LM_NONE),
                .padded_k = padded_of(op->attn.dk), .padded = padded_of(op->attn.dv), .stores = op->attn.store && f->n == 1};
    const uint32_t stores = (f->n + STORE_ROWS - 1) / STORE_ROWS * heads;
    if (op->attn.store && f->n > 4)
        lm_pool_run(f->d->pool, store_task, &a, stores);
    else if (op->attn.store && !a.stores) /* not worth waking the others */
        for (uint32_t i = 0; i < stores; i++) store_task(&a, i, 0);
    while (a.rows_per_task > 1 && (uint64_t)f->n / a.rows_per_task * heads < 4 * (uint64_t)lm_pool_size(f->d->pool)) a.rows_per_task /= 2;
    a.blocks = (f->n + a.rows_per_task - 1) / a.rows_per_task;
    lm_pool_run(f->d->pool, attend_task, &a, a.blocks * heads);
}
static bool need_attention(const lm_cpu *f, const lm_op *op, lm_cpu_need *out) {
    const uint32_t group = op->attn.heads / op->attn.kv_heads;
    uint64_t tasks;
    out->thread = work_floats((uint64_t)rows_of(group, op->d != LM_NONE) * group, padded_of(op->attn.dk), padded_of(op->attn.dv), op->d != LM_NONE, f->max_len);
    return lm_mul(f->n, op->attn.kv_heads, &tasks) && tasks <= UINT32_MAX;
}
const lm_cpu_fn lm_cpu_attention = {run_attention, need_attention};
