/* Decoding: what the next product, or the next attention of a single row, reads first is told to the pool while an op runs, so that the stream from
 * memory goes on while the caller computes what stands between two of them. It follows how linear.c and attention.c cut their work into tasks; where
 * it were wrong, only speed would be lost. */
#include "backend/cpu/cpu.h"

/* The next such op from op i on, from the start again past the end: the next token's. n_ops: there is none that this knows. */
static uint32_t next_reader(const lm_cpu *f, uint32_t i) {
    const uint32_t n = f->p->n_ops;
    for (uint32_t j = 0; j < n; j++, i++) {
        if (i >= n) i = 0;
        if (lm_cpu_reads(f, &f->p->op[i])) return i;
        if (f->p->op[i].kind == LM_OP_EXPERTS || f->p->op[i].kind == LM_OP_MLA) return n;
    }
    return n;
}
static uint32_t strips_of(const lm_cpu *f, const lm_packed_matrix *w, lm_int_lane lane) {
    if (!lm_cpu_is_int(lane)) return LM_STRIP_GROUP;
    const lm_int_product p = {.k = f->d->ik, .lane = lane, .w = w, .n_t = f->n, .threads = lm_pool_size(f->d->pool)};
    return lm_int_strips(&p);
}
/* Strips [s0, s1) of a matrix as one more span */
static uint32_t put(lm_span *span, uint32_t n, const lm_packed_matrix *w, uint64_t s0, uint64_t s1) {
    s1 = s1 < w->strips ? s1 : w->strips;
    if (n < LM_POOL_SPANS && s0 < s1) span[n++] = (lm_span){lm_packed_at(w, 0, (uint32_t)s0), (s1 - s0) * w->strip_bytes};
    return n;
}
/* A single row: a task is a key head, which starts with its first page's keys. */
static void keys_ahead(const lm_cpu *f, const lm_op *op) {
    const uint32_t pos = f->pos[0], first = op->attn.window && pos >= op->attn.window ? pos - op->attn.window + 1 : 0, page = first / LM_PAGE;
    const uint32_t seen = pos - page * LM_PAGE < LM_PAGE ? pos - page * LM_PAGE : LM_PAGE; /* the row's own key is new */
    const size_t bytes = lm_kv_spans(seen) * lm_kv_tile(f->d->cache->kv, op->attn.dk);
    for (uint32_t r = 0; r < lm_pool_ranges(f->d->pool); r++) {
        const uint32_t h1 = lm_pool_first(f->d->pool, op->attn.kv_heads, r + 1);
        lm_span span[LM_POOL_SPANS];
        uint32_t n = 0;
        for (uint32_t h = lm_pool_first(f->d->pool, op->attn.kv_heads, r); h < h1 && n < LM_POOL_SPANS; h++)
            span[n++] = (lm_span){lm_state_keys(f->b->seq[0].state, op->attn.slot, page, h), bytes};
        lm_pool_ahead(f->d->pool, r, span, n);
    }
}
void lm_cpu_ahead(const lm_cpu *f, uint32_t after) {
    const uint32_t first = next_reader(f, after);
    if (f->n > LM_INT_GEMV || first == f->p->n_ops) return;
    const lm_op *op = &f->p->op[first];
    if (op->kind == LM_OP_ATTENTION) {
        keys_ahead(f, op);
        return;
    }
    const lm_cpu_op *aux = lm_cpu_aux(f, op);
    const bool gates = lm_cpu_gates(f, op);
    const uint32_t n = gates ? 2 : aux->run;
    const lm_packed_matrix *w[LM_CPU_PRODUCTS];
    uint32_t per[LM_CPU_PRODUCTS], end[LM_CPU_PRODUCTS], tasks = 0; /* of each: strips of a task, its last task's successor */
    for (uint32_t i = 0; i < n; i++) {
        w[i] = &f->d->weight[op[i].w];
        per[i] = strips_of(f, w[i], aux->lane);
        if (i == 0 || !gates) tasks += (w[i]->strips + per[i] - 1) / per[i];
        end[i] = tasks;
    }
    for (uint32_t r = 0; r < lm_pool_ranges(f->d->pool); r++) {
        const uint32_t t0 = lm_pool_first(f->d->pool, tasks, r), t1 = lm_pool_first(f->d->pool, tasks, r + 1);
        lm_span span[LM_POOL_SPANS];
        uint32_t spans = 0;
        for (uint32_t t = t0; gates && t < t1 && spans < LM_POOL_SPANS; t++)
            for (uint32_t i = 0; i < n; i++) spans = put(span, spans, w[i], (uint64_t)t * per[0], (uint64_t)(t + 1) * per[0]);
        for (uint32_t i = 0, from = 0; !gates && i < n; from = end[i++])
            if (t0 < end[i] && t1 > from) spans = put(span, spans, w[i], (uint64_t)((t0 > from ? t0 : from) - from) * per[i], (uint64_t)((t1 < end[i] ? t1 : end[i]) - from) * per[i]);
        lm_pool_ahead(f->d->pool, r, span, spans);
    }
}
