/* A bench for single ops and small programs on the f64 backend: token id t enters as row t of a table, so that a test chooses every
 * operand freely; slices of that row are the op's operands; the result is read by a tap. */
#ifndef LM_TESTS_F64_RIG_H
#define LM_TESTS_F64_RIG_H
#include "backend/backend.h"
#include "check.h"
#include "graph/builder.h"
#include "base/rng.h"
#include <math.h>
#include <stdlib.h>

static inline double rnd(uint64_t stream, uint64_t i) { return 2 * lm_uniform(7, stream, i) - 1; }
static inline double *rnd_n(lm_graph *g, uint64_t stream, size_t n) {
    double *v = lm_arena_calloc(g->p->arena, n, sizeof *v);
    for (size_t i = 0; i < n; i++) v[i] = rnd(stream, i);
    return v;
}

/* n_mat matrices [rows, cols] of doubles, stored as they are */
static inline uint32_t rig_weight(lm_graph *g, const char *name, uint32_t n_mat, uint64_t rows, uint64_t cols, const double *data) {
    lm_arena *a = g->p->arena;
    lm_tensor *t = lm_arena_alloc(a, sizeof *t);
    *t = (lm_tensor){.name = name, .type = lm_dtype_by_name("F64"), .rank = 2, .dim = {n_mat * rows, cols}, .data = (const uint8_t *)data,
                     .bytes = n_mat * rows * cols * sizeof(double), .file = UINT32_MAX};
    lm_segment *s = lm_arena_alloc(a, sizeof *s);
    *s = (lm_segment){.t = t, .count = rows, .mat_stride = rows, .group = rows, .step = 1};
    lm_weight w = {.name = name, .type = t->type, .n_mat = n_mat, .rows = rows, .cols = cols, .n_seg = 1, .seg = s};
    return lm_graph_weight(g, &w);
}

typedef struct rig {
    lm_graph g;
    lm_program *p;
    lm_device *d;
    lm_val watch; /* the value that runs give back */
    uint32_t n_ids;
} rig;

/* The table: `rows` tokens of `width` numbers. */
static inline lm_val rig_open(rig *r, uint32_t rows, uint32_t width, const double *table) {
    memset(r, 0, sizeof *r);
    assert_int_equal(lm_graph_init(&r->g, "test", NULL), LM_OK);
    double *t = lm_arena_calloc(r->g.p->arena, (size_t)rows * width, sizeof *t);
    for (size_t i = 0; i < (size_t)rows * width; i++) t[i] = table ? table[i] : rnd(1, i);
    r->n_ids = rows;
    return r->g.p->embed = lm_op_embed(&r->g, "embed", rig_weight(&r->g, "table", 1, rows, width, t), false);
}
static inline lm_val part(rig *r, lm_val x, uint32_t offset, uint32_t width) {
    return lm_op_slice(&r->g, "part", x, offset, width, 1, width);
}

static inline void rig_device(rig *r, uint32_t threads) {
    if (r->d) lm_backend_f64.destroy(r->d);
    lm_device_options o = {.threads = threads};
    lm_error err;
    uint32_t handle[64] = {0};
    assert_int_equal(lm_backend_f64.create(&o, &r->d, &err), LM_OK);
    for (uint32_t i = 0; i < r->p->n_weights; i++)
        assert_int_equal(lm_backend_f64.upload(r->d, &r->p->weight[i], &handle[i], &err), LM_OK);
    lm_status s = lm_backend_f64.configure(r->d, r->p, handle, &err);
    if (s != LM_OK) fail_msg("%s: %s", err.field, err.message);
}
/* Ends the program with `last` as the final norm and `logits` after it (LM_NONE: a copy of last). */
static inline void rig_finish(rig *r, lm_val last, lm_val (*head)(rig *, lm_val)) {
    lm_error err;
    r->watch = last;
    r->g.p->norm = last;
    r->g.p->head_first = r->g.p->n_ops;
    r->g.p->logits = head ? head(r, last) : lm_op_scale(&r->g, "logits", last, 1);
    r->g.p->vocab = lm_width(&r->g, r->g.p->logits);
    if (lm_graph_finish(&r->g, &r->p, &err) != LM_OK) fail_msg("%s: %s", err.field, err.message);
    rig_device(r, 2);
}
static inline void rig_close(rig *r) {
    lm_backend_f64.destroy(r->d);
    lm_program_free(r->p);
}

typedef struct rig_catch {
    lm_val want;
    double *out; /* [rows][width] by batch row */
} rig_catch;
static inline bool rig_sink(void *ctx, const lm_rows *rows) {
    rig_catch *c = ctx;
    for (uint32_t i = 0; i < rows->n; i++)
        for (uint32_t j = 0; j < rows->width; j++) c->out[(size_t)rows->row[i] * rows->width + j] = lm_rows_at(rows, i, j);
    return true;
}
static inline bool rig_tap(void *ctx, const lm_program *p, const lm_op *op, const lm_rows *rows) {
    (void)p;
    return op->out != ((rig_catch *)ctx)->want || rig_sink(ctx, rows);
}

static inline lm_state *rig_state(rig *r) {
    lm_state *s = NULL;
    assert_int_equal(lm_state_create(r->p, &lm_cache_f64, &s, NULL), LM_OK);
    return s;
}
/* Rows ids[0..n) appended to the state; the watched value into out[n][width]. */
static inline lm_status rig_try(rig *r, lm_state *s, const int32_t *ids, uint32_t n, uint32_t length, double *out, lm_error *err) {
    rig_catch c = {r->watch, out};
    lm_run run = {.tap = rig_tap, .tap_ctx = &c};
    lm_seq seq = {s, 0, n, lm_state_length(s), length ? length : lm_state_length(s) + n};
    lm_batch b = {.n_rows = n, .n_seqs = 1, .id = ids, .seq = &seq};
    return lm_backend_f64.run(r->d, &b, &run, err);
}
/* Tokens 0, 1, 2 … n−1 in one go from an empty state; the caller frees. */
static inline double *rig_eval(rig *r, uint32_t n) {
    double *out = calloc((size_t)n * r->p->value[r->watch].width, sizeof *out);
    int32_t *ids = calloc(n, sizeof *ids);
    for (uint32_t i = 0; i < n; i++) ids[i] = (int32_t)(i % r->n_ids);
    lm_state *s = rig_state(r);
    lm_error err;
    if (rig_try(r, s, ids, n, 0, out, &err) != LM_OK) fail_msg("%s: %s", err.field, err.message);
    lm_state_free(s);
    free(ids);
    return out;
}
static inline void near(double got, double wanted) {
    if (!(fabs(got - wanted) <= 1e-12 * (1 + fabs(wanted)))) fail_msg("got %.17g, wanted %.17g", got, wanted);
}
#endif
