/* Configure: the program checked, its vectors made float, its values given places from their lives. */
#include "backend/cpu/cpu.h"
#include "graph/check.h"
#include <string.h>

void lm_cpu_unconfigure(lm_device *d) {
    for (uint32_t i = 0; d->op && d->program && i < d->program->n_ops; i++) {
        lm_packed_free(&d->op[i].kt);
        lm_packed_free(&d->op[i].v);
    }
    lm_arena_destroy(d->plan);
    d->plan = NULL;
    d->program = NULL;
    d->weight = NULL;
    d->vec = NULL;
    d->op = NULL;
    d->at = d->gather_at = NULL;
    d->gathered = NULL;
    d->n_gathered = 0;
    d->body_width = d->head_width = d->need_n = 0;
}

/* First fit: the lowest place that no value alive at the same time occupies. Values are placed in the order of their ops. Ops that run as one
 * count as one: what dies in the first is still read while the last is written, for other rows. */
typedef struct place {
    uint64_t at, width;
    uint32_t last;
} place;
static uint64_t fit(place *live, uint32_t *n, uint64_t width, uint32_t first, uint32_t last, uint64_t *total) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < *n; i++)
        if (live[i].last >= first) live[kept++] = live[i]; /* sorted by place */
    width = (width + 15) & ~(uint64_t)15;
    uint64_t at = 0;
    uint32_t i = 0;
    for (; i < kept && live[i].at - at < width; i++) at = live[i].at + live[i].width;
    memmove(&live[i + 1], &live[i], (kept - i) * sizeof *live);
    live[i] = (place){at, width, last};
    *n = kept + 1;
    if (at + width > *total) *total = at + width;
    return at;
}

/* An op whose result may stand where an operand that nothing reads any more stood, element for element: sums and ropes, which memory bounds. */
static lm_val in_place(const lm_program *p, uint32_t i) {
    const lm_op *op = &p->op[i];
    const lm_val from[2] = {op->a, op->kind == LM_OP_ADD ? op->b : LM_NONE};
    for (int k = 0; k < 2 && (op->kind == LM_OP_ADD || op->kind == LM_OP_ROPE); k++)
        if (from[k] != LM_NONE && p->value[from[k]].last == i && p->value[from[k]].width == p->value[op->out].width && op->a != op->b) return from[k];
    return LM_NONE;
}
static void plan_values(lm_device *d, const lm_program *p, place *live) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->head_first; i++) {
        const lm_value_info *v = &p->value[p->op[i].out];
        const lm_val over = in_place(p, i);
        uint32_t last = v->last >= p->head_first ? UINT32_MAX : v->last > i ? v->last : i; /* the head runs once per block: it must find it */
        if (over == LM_NONE) {
            d->at[p->op[i].out] = fit(live, &n, v->width, d->op[i].start, last, &d->body_width);
            continue;
        }
        for (uint32_t j = 0; j < n; j++)
            if (live[j].at == d->at[over]) live[j].last = last;
        d->at[p->op[i].out] = d->at[over];
    }
    n = 0;
    for (uint32_t i = p->head_first; i < p->n_ops; i++) {
        const lm_val in[4] = {p->op[i].a, p->op[i].b, p->op[i].c, p->op[i].d};
        for (int k = 0; k < 4; k++) {
            if (in[k] == LM_NONE || p->value[in[k]].first >= p->head_first) continue;
            bool seen = false;
            for (uint32_t g = 0; g < d->n_gathered; g++) seen |= d->gathered[g] == in[k];
            if (seen) continue;
            d->gathered[d->n_gathered] = in[k];
            d->gather_at[d->n_gathered++] = fit(live, &n, p->value[in[k]].width, 0, UINT32_MAX, &d->head_width);
        }
    }
    for (uint32_t i = p->head_first; i < p->n_ops; i++) {
        const lm_value_info *v = &p->value[p->op[i].out];
        uint32_t last = p->op[i].out == p->logits ? UINT32_MAX : v->last > i ? v->last : i;
        d->at[p->op[i].out] = fit(live, &n, v->width, d->op[i].start, last, &d->head_width);
    }
}

static lm_status plan_vectors(lm_device *d, const lm_program *p, lm_error *err) {
    for (uint32_t i = 0; i < p->n_vecs; i++) {
        float *v = d->vec[i] = lm_arena_calloc(d->plan, p->vec[i].n ? p->vec[i].n : 1, sizeof *v);
        if (!v) return lm_fail_nomem(err, "a vector", p->vec[i].n * sizeof *v);
        for (uint64_t j = 0; j < p->vec[i].n; j++) v[j] = (float)p->vec[i].v[j];
    }
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lm_op *op = &p->op[i];
        if (op->kind != LM_OP_CONV && op->kind != LM_OP_DECAY) continue;
        const uint64_t n = p->vec[op->v].n;
        const float *v = d->vec[op->v];
        float *t = d->op[i].vec = lm_arena_calloc(d->plan, n, sizeof *t);
        if (!t) return lm_fail_nomem(err, "a vector", n * sizeof *t);
        if (op->kind == LM_OP_DECAY) {
            d->k->exp(t, v, (uint32_t)n);
            for (uint64_t j = 0; j < n; j++) t[j] = -t[j];
            continue;
        }
        const uint64_t width = n / op->conv.kernel;
        for (uint64_t c = 0; c < width; c++)
            for (uint32_t j = 0; j < op->conv.kernel; j++) t[j * width + c] = v[c * op->conv.kernel + j];
    }
    return LM_OK;
}

static lm_status plan_weights(lm_device *d, const lm_program *p, const uint32_t *handle, lm_error *err) {
    for (uint32_t i = 0; i < p->n_weights; i++) {
        const lm_weight *w = &p->weight[i];
        const lm_packed_matrix *m = handle[i] < d->n_uploaded ? &d->uploaded[handle[i]] : NULL;
        if (!m || !m->data || m->n_mat != w->n_mat || m->rows != w->rows || m->K != w->cols)
            return lm_fail_at(err, LM_INTERNAL, NULL, LM_NO_OFFSET, w->name, "this weight was not uploaded");
        d->weight[i] = *m;
    }
    for (uint32_t i = 0; i < p->n_ops; i++) lm_cpu_choose_lane(d, p, &p->op[i], &d->op[i]);
    lm_cpu_find_products(p, d->op);
    lm_cpu_find_gates(p, d->op);
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->op[i].kind == LM_OP_MLA) LM_TRY(lm_cpu_pack_mla(d, &p->weight[p->op[i].w], &p->op[i], &d->op[i], err));
    return LM_OK;
}

static lm_status plan(lm_device *d, const lm_program *p, const uint32_t *handle, lm_error *err) {
    lm_arena *a = d->plan = lm_arena_create();
    if (!a) return lm_fail_nomem(err, "the program's plan", 0);
    d->weight = lm_arena_calloc(a, p->n_weights + 1, sizeof *d->weight);
    d->vec = lm_arena_calloc(a, p->n_vecs + 1, sizeof *d->vec);
    d->op = lm_arena_calloc(a, p->n_ops + 1, sizeof *d->op);
    d->at = lm_arena_calloc(a, p->n_values + 1, sizeof *d->at);
    d->gathered = lm_arena_calloc(a, p->n_values + 1, sizeof *d->gathered);
    d->gather_at = lm_arena_calloc(a, p->n_values + 1, sizeof *d->gather_at);
    place *live = lm_arena_calloc(a, 2 * (size_t)p->n_values + 1, sizeof *live);
    if (!d->weight || !d->vec || !d->op || !d->at || !d->gathered || !d->gather_at || !live) return lm_fail_nomem(err, "the program's plan", 0);
    d->program = p;
    lm_cpu_find_rows(p, d->op);
    plan_values(d, p, live);
    LM_TRY(plan_vectors(d, p, err));
    return plan_weights(d, p, handle, err);
}

lm_status lm_cpu_configure(lm_device *d, const lm_program *p, const uint32_t *handle, lm_error *err) {
    LM_TRY(lm_program_check(p, err));
    lm_cpu_unconfigure(d);
    lm_status s = plan(d, p, handle, err);
    if (s != LM_OK) lm_cpu_unconfigure(d);
    return s;
}
