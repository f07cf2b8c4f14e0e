/* Which of the quantized file's tensors stands for which of the original's: the two programs are the same, op for op, whatever the files
 * call their tensors and however they pack them. Rows are compared as the program sees them. */
#include "verify/quant.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static lm_status other_program(const lm_quant *q, const lm_op *op, const char *what, lm_error *err) {
    return lm_fail_at(err, LM_USAGE, q->d.side[1].path, LM_NO_OFFSET, op->name,
                      "is not the same program as %s: %s; --quant compares a model with a quantized file of itself", q->d.side[0].path,
                      what);
}

static bool map(uint32_t *to, uint32_t a, uint32_t b) {
    if ((a == LM_NONE) != (b == LM_NONE)) return false;
    if (a == LM_NONE || to[a] == b) return true;
    if (to[a] != LM_NONE) return false;
    to[a] = b;
    return true;
}

static bool shapes_fit(const lm_quant *q) {
    const lm_program *a = q->d.side[0].e->program, *b = q->d.side[1].e->program;
    for (uint32_t i = 0; i < a->n_weights; i++) {
        if (q->weight[i] == LM_NONE) continue;
        const lm_weight *x = &a->weight[i], *y = &b->weight[q->weight[i]];
        if (x->n_mat != y->n_mat || x->rows != y->rows || x->cols != y->cols) return false;
    }
    for (uint32_t i = 0; i < a->n_vecs; i++)
        if (q->vec[i] != LM_NONE && a->vec[i].n != b->vec[q->vec[i]].n) return false;
    return true;
}

lm_status lm_quant_match(lm_quant *q, lm_error *err) {
    const lm_program *a = q->d.side[0].e->program, *b = q->d.side[1].e->program;
    if (a->n_ops != b->n_ops)
        return lm_fail(
            err, LM_USAGE,
            "the two are not the same program (%s of %u ops, %s of %u): --quant compares a model with a quantized file of itself", a->arch,
            a->n_ops, b->arch, b->n_ops);
    q->weight = lm_arena_calloc(q->d.arena, a->n_weights + 1, sizeof *q->weight);
    q->vec = lm_arena_calloc(q->d.arena, a->n_vecs + 1, sizeof *q->vec);
    if (!q->weight || !q->vec) return lm_fail_nomem(err, "a map of weights", a->n_weights * sizeof *q->weight);
    memset(q->weight, 0xff, a->n_weights * sizeof *q->weight);
    memset(q->vec, 0xff, a->n_vecs * sizeof *q->vec);
    for (uint32_t i = 0; i < a->n_ops; i++) {
        const lm_op *x = &a->op[i], *y = &b->op[i];
        if (x->kind != y->kind || strcmp(x->name, y->name) || a->value[x->out].width != b->value[y->out].width)
            return other_program(q, x, "another op stands there", err);
        if (!map(q->weight, x->w, y->w) || !map(q->weight, x->w2, y->w2) || !map(q->weight, x->w3, y->w3) || !map(q->vec, x->v, y->v) ||
            !map(q->vec, x->v2, y->v2) || !map(q->vec, x->v3, y->v3))
            return other_program(q, x, "it reads other weights", err);
    }
    return shapes_fit(q) ? LM_OK : lm_fail(err, LM_USAGE, "the two models' weights have other shapes");
}

/* ---- groups ------------------------------------------------------------------------------------------------------------------------ */
static int32_t layer_of(const lm_program *p, uint32_t i, bool vec) {
    for (uint32_t k = 0; k < p->n_ops; k++) {
        const lm_op *o = &p->op[k];
        if (vec ? o->v == i || o->v2 == i || o->v3 == i : o->w == i || o->w2 == i || o->w3 == i) return o->layer;
    }
    return -1;
}

static lm_status group_of(lm_quant *q, const char *tensor, int32_t layer, uint32_t *out, lm_error *err) {
    const char *name = tensor;
    if (q->by == LM_QUANT_LAYER && layer >= 0 && !(name = lm_arena_printf(q->d.arena, "layer %d", layer)))
        return lm_fail_nomem(err, "a name", 16);
    for (*out = 0; *out < q->n_parts; ++*out)
        if (!strcmp(q->part[*out].name, name)) return LM_OK;
    q->part[q->n_parts++] = (lm_part_cost){.name = name};
    return LM_OK;
}

typedef struct sums { double diff, size; } sums;
static void add_row(sums *s, const float *a, const float *b, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        const double d = (double)b[i] - a[i];
        s->diff += d * d;
        s->size += (double)a[i] * a[i];
    }
}

static void take_type(const char **to, const char *type) { *to = !*to || !strcmp(*to, type) ? type : "..."; }

static uint64_t stored_bytes(const lm_weight *w) { return w->n_mat * w->rows * (w->cols / w->type->block) * w->type->bytes; }

static void take_weight(lm_quant *q, uint32_t i, float *x, float *y, sums *s) {
    const lm_weight *a = &q->d.side[0].e->program->weight[i], *b = &q->d.side[1].e->program->weight[q->weight[i]];
    lm_part_cost *part = &q->part[q->weight_group[i]];
    for (uint32_t k = 0; k < i; k++) /* a tied head is the embedding's tensor again */
        if (q->weight[k] != LM_NONE && lm_weight_same_rows(&q->d.side[1].e->program->weight[q->weight[k]], b)) return;
    for (uint32_t m = 0; m < a->n_mat; m++)
        for (uint64_t r = 0; r < a->rows; r++) {
            lm_weight_row_f32(a, m, r, x);
            lm_weight_row_f32(b, m, r, y);
            add_row(s, x, y, a->cols);
        }
    take_type(&part->was, a->type->name);
    take_type(&part->type, b->type->name);
    part->bytes += stored_bytes(b);
    part->was_bytes += stored_bytes(a);
    part->elements += a->n_mat * a->rows * a->cols;
}

static void take_vec(lm_quant *q, uint32_t i, sums *s) {
    const lm_vec *a = &q->d.side[0].e->program->vec[i], *b = &q->d.side[1].e->program->vec[q->vec[i]];
    lm_part_cost *part = &q->part[q->vec_group[i]];
    for (uint64_t k = 0; k < a->n; k++) {
        s->diff += (a->v[k] - b->v[k]) * (a->v[k] - b->v[k]);
        s->size += a->v[k] * a->v[k];
    }
    if (!part->type) part->type = part->was = "vector"; /* a norm, a bias: not counted as weights */
}

static lm_status measure(lm_quant *q, sums *s, lm_error *err) {
    const lm_program *a = q->d.side[0].e->program;
    const lm_evidence_options *o = &q->d.o->run;
    uint64_t widest = 1;
    for (uint32_t i = 0; i < a->n_weights; i++) widest = a->weight[i].cols > widest ? a->weight[i].cols : widest;
    float *x = lm_arena_calloc(q->d.arena, widest, sizeof *x), *y = lm_arena_calloc(q->d.arena, widest, sizeof *y);
    if (!x || !y) return lm_fail_nomem(err, "a row", widest * sizeof *x);
    for (uint32_t i = 0; i < a->n_weights; i++) {
        if (o->progress && !o->progress(o->progress_ctx, "comparing the weights", i, a->n_weights))
            return lm_fail(err, LM_INTERRUPTED, "interrupted");
        if (q->weight[i] != LM_NONE) take_weight(q, i, x, y, &s[q->weight_group[i]]);
    }
    for (uint32_t i = 0; i < a->n_vecs; i++)
        if (q->vec[i] != LM_NONE) take_vec(q, i, &s[q->vec_group[i]]);
    for (uint32_t g = 0; g < q->n_parts; g++) {
        q->part[g].error = s[g].diff > 0 ? (s[g].size > 0 ? sqrt(s[g].diff / s[g].size) : INFINITY) : s[g].diff == 0 ? 0 : NAN;
        q->n_unchanged += q->part[g].error == 0;
    }
    return LM_OK;
}

lm_status lm_quant_groups(lm_quant *q, lm_error *err) {
    const lm_program *a = q->d.side[0].e->program, *b = q->d.side[1].e->program;
    const size_t most = (size_t)a->n_weights + a->n_vecs + 1;
    q->part = lm_arena_calloc(q->d.arena, most, sizeof *q->part);
    q->weight_group = lm_arena_calloc(q->d.arena, most, sizeof *q->weight_group);
    q->vec_group = lm_arena_calloc(q->d.arena, most, sizeof *q->vec_group);
    sums *s = lm_arena_calloc(q->d.arena, most, sizeof *s);
    if (!q->part || !q->weight_group || !q->vec_group || !s) return lm_fail_nomem(err, "groups of weights", most * sizeof *q->part);
    for (uint32_t i = 0; i < a->n_weights; i++)
        if (q->weight[i] != LM_NONE)
            LM_TRY(group_of(q, b->weight[q->weight[i]].name, layer_of(a, i, false), &q->weight_group[i], err));
    for (uint32_t i = 0; i < a->n_vecs; i++)
        if (q->vec[i] != LM_NONE) LM_TRY(group_of(q, b->vec[q->vec[i]].name, layer_of(a, i, true), &q->vec_group[i], err));
    return measure(q, s, err);
}
