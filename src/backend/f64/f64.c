/* The f64 device: its life, its weights (remembered, never copied) and the plan of its values' buffers. */
#include "backend/f64/f64.h"
#include "graph/check.h"
#include <stdio.h>
#include <string.h>

static const char *const lanes[] = {"f64", "hf-bf16", NULL};
static bool yes(void) { return true; }

static lm_status create(const lm_device_options *o, lm_device **out, lm_error *err) {
    const bool bf16 = o->lane && strcmp(o->lane, lanes[1]) == 0;
    if (o->lane && !bf16 && strcmp(o->lane, lanes[0]) != 0)
        return lm_fail_at(err, LM_UNSUPPORTED, NULL, LM_NO_OFFSET, "lane", "the f64 backend has no lane '%.40s': use f64 or hf-bf16",
                          o->lane);
    if (o->cpu_level)
        return lm_fail_at(err, LM_UNSUPPORTED, NULL, LM_NO_OFFSET, "cpu-level", "the f64 backend has no CPU levels: leave the option out");
    if (o->kv)
        return lm_fail_at(err, LM_UNSUPPORTED, NULL, LM_NO_OFFSET, "kv",
                          "the f64 backend keeps its caches in double: leave the option out");
    lm_device *d = lm_calloc(1, sizeof *d);
    if (!d) return lm_fail_nomem(err, "the f64 device", sizeof *d);
    lm_status s = lm_pool_create(o->threads, &d->pool, err);
    if (s != LM_OK) {
        lm_free(d);
        return s;
    }
    uint32_t n = lm_pool_size(d->pool);
    d->bf16 = bf16;
    snprintf(d->text, sizeof d->text, "f64%s %u thread%s", bf16 ? " hf-bf16" : "", n, n == 1 ? "" : "s");
    *out = d;
    return LM_OK;
}

typedef struct plan {
    const lm_weight **weight;
    double **vec;
    uint32_t *buf_of, *gathered, *gather_buf, n_bufs, n_gathered;
    uint64_t *buf_width;
    bool *buf_head;
    bool *busy; /* while planning */
} plan;
static void plan_free(plan *n) {
    lm_free(n->weight);
    lm_free(n->vec);
    lm_free(n->buf_of);
    lm_free(n->gathered);
    lm_free(n->gather_buf);
    lm_free(n->buf_width);
    lm_free(n->buf_head);
    lm_free(n->busy);
}
static void unconfigure(lm_device *d) {
    plan old = {d->weight, d->vec, d->buf_of, d->gathered, d->gather_buf, 0, 0, d->buf_width, d->buf_head, NULL};
    plan_free(&old);
    d->program = NULL;
    d->weight = NULL;
    d->vec = NULL;
    d->buf_of = d->gathered = d->gather_buf = NULL;
    d->buf_width = NULL;
    d->buf_head = NULL;
    d->n_bufs = d->n_gathered = 0;
}

static void reset(lm_device *d) {
    unconfigure(d);
    d->n_uploaded = 0;
}
static void destroy(lm_device *d) {
    if (!d) return;
    unconfigure(d);
    lm_free(d->uploaded);
    lm_pool_destroy(d->pool);
    lm_free(d);
}
static uint64_t memory(const lm_device *d) { return (uint64_t)d->cap_uploaded * sizeof *d->uploaded; }
static const char *describe(const lm_device *d) { return d->text; }

static lm_status upload(lm_device *d, const lm_weight *w, uint32_t *id, lm_error *err) {
    if (d->n_uploaded == d->cap_uploaded) {
        uint32_t cap = d->cap_uploaded ? 2 * d->cap_uploaded : 64;
        const lm_weight **q = lm_realloc(d->uploaded, cap * sizeof *q);
        if (!q) return lm_fail_nomem(err, "the weights' table", cap * sizeof *q);
        d->uploaded = q;
        d->cap_uploaded = cap;
    }
    *id = d->n_uploaded;
    d->uploaded[d->n_uploaded++] = w;
    return LM_OK;
}
static void release(lm_device *d, uint32_t id) {
    if (id < d->n_uploaded) d->uploaded[id] = NULL;
}

static bool supports(const lm_device *d, const lm_op *op) {
    return (unsigned)op->kind < LM_OP_COUNT && (!d->bf16 || lm_f64_bf16_supports(op));
}

/* The narrowest free buffer that is wide enough, else the widest free one made wider, else a new one. */
static uint32_t buf_take(plan *n, uint64_t width, bool head) {
    uint32_t at = UINT32_MAX;
    for (uint32_t i = 0; i < n->n_bufs; i++) {
        if (n->busy[i] || n->buf_head[i] != head) continue;
        uint64_t a = n->buf_width[i], b = at == UINT32_MAX ? 0 : n->buf_width[at];
        if (at == UINT32_MAX || (b < width ? a > b : a >= width && a < b)) at = i;
    }
    if (at == UINT32_MAX) {
        at = n->n_bufs++;
        n->buf_head[at] = head;
    }
    n->busy[at] = true;
    if (n->buf_width[at] < width) n->buf_width[at] = width;
    return at;
}

/* What the head reads of the body is gathered into a block of its own. */
static void plan_gather(plan *n, const lm_program *p, lm_val v) {
    if (v == LM_NONE || p->value[v].first >= p->head_first) return;
    for (uint32_t g = 0; g < n->n_gathered; g++)
        if (n->gathered[g] == v) return;
    n->gathered[n->n_gathered] = v;
    n->gather_buf[n->n_gathered++] = buf_take(n, p->value[v].width, true);
}
/* Which buffer each value lives in: from its first op to its last. */
static void plan_values(plan *n, const lm_program *p) {
    for (uint32_t i = p->head_first; i < p->n_ops; i++) { /* filled before the head starts, so taken before its values */
        const lm_val in[4] = {p->op[i].a, p->op[i].b, p->op[i].c, p->op[i].d};
        for (int k = 0; k < 4; k++) plan_gather(n, p, in[k]);
    }
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lm_op *op = &p->op[i];
        bool head = i >= p->head_first;
        n->buf_of[op->out] = buf_take(n, p->value[op->out].width, head);
        const lm_val in[5] = {op->a, op->b, op->c, op->d, op->out};
        for (int k = 0; k < 5; k++) {
            if (in[k] == LM_NONE || in[k] == p->logits) continue;
            if (p->value[in[k]].last <= i) n->busy[n->buf_of[in[k]]] = false;
        }
    }
}

static lm_status configure(lm_device *d, const lm_program *p, const uint32_t *handle, lm_error *err) {
    LM_TRY(lm_program_check(p, err));
    size_t most = 2 * (size_t)p->n_values + 1; /* a buffer for each value, and for each gathered one */
    plan n = {.weight = lm_calloc(p->n_weights + 1, sizeof *n.weight),
              .buf_of = lm_calloc(p->n_values + 1, sizeof *n.buf_of),
              .gathered = lm_calloc(p->n_values + 1, sizeof *n.gathered),
              .gather_buf = lm_calloc(p->n_values + 1, sizeof *n.gather_buf),
              .buf_width = lm_calloc(most, sizeof *n.buf_width),
              .buf_head = lm_calloc(most, sizeof *n.buf_head),
              .busy = lm_calloc(most, sizeof *n.busy)};
    lm_status s = LM_OK;
    if (!n.weight || !n.buf_of || !n.gathered || !n.gather_buf || !n.buf_width || !n.buf_head || !n.busy)
        s = lm_fail_nomem(err, "the program's plan", most * 32);
    for (uint32_t i = 0; s == LM_OK && i < p->n_weights; i++) {
        n.weight[i] = handle[i] < d->n_uploaded ? d->uploaded[handle[i]] : NULL;
        const lm_weight *a = n.weight[i], *b = &p->weight[i];
        if (!a || a->n_mat != b->n_mat || a->rows != b->rows || a->cols != b->cols)
            s = lm_fail_at(err, LM_INTERNAL, NULL, LM_NO_OFFSET, b->name, "this weight was not uploaded");
    }
    if (s == LM_OK && d->bf16) s = lm_f64_bf16_configure(p, &n.vec, err);
    if (s != LM_OK) {
        plan_free(&n);
        return s;
    }
    plan_values(&n, p);
    lm_free(n.busy);
    unconfigure(d);
    d->weight = n.weight;
    d->vec = n.vec;
    d->buf_of = n.buf_of;
    d->gathered = n.gathered;
    d->gather_buf = n.gather_buf;
    d->buf_width = n.buf_width;
    d->buf_head = n.buf_head;
    d->n_bufs = n.n_bufs;
    d->n_gathered = n.n_gathered;
    d->program = p;
    return LM_OK;
}

static const lm_cache_type *cache(const lm_device *d) {
    (void)d;
    return &lm_cache_f64;
}

const lm_backend lm_backend_f64 = {
    .name = "f64",
    .exact = true,
    .lanes = lanes,
    .compiled = yes,
    .available = yes,
    .create = create,
    .destroy = destroy,
    .memory = memory,
    .describe = describe,
    .upload = upload,
    .release = release,
    .reset = reset,
    .supports = supports,
    .configure = configure,
    .cache = cache,
    .run = lm_f64_run,
};
