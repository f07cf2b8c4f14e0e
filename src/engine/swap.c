#include "engine/swap.h"
#include <string.h>

void lm_swap_free(lm_swap *s) {
    if (!s) return;
    lm_free(s->p.weight);
    lm_free(s->p.vec);
    lm_free(s->handle);
    lm_free(s->uploaded);
    lm_free(s);
}

static lm_status create(const lm_program *p, const uint32_t *handle, lm_swap **out, lm_error *err) {
    lm_swap *s = lm_calloc(1, sizeof *s);
    if (!s) return lm_fail_nomem(err, "swapped weights", sizeof *s);
    s->p = *p;
    const size_t nw = p->n_weights ? p->n_weights : 1, nv = p->n_vecs ? p->n_vecs : 1;
    s->p.weight = lm_calloc(nw, sizeof *s->p.weight);
    s->p.vec = lm_calloc(nv, sizeof *s->p.vec);
    s->handle = lm_calloc(nw, sizeof *s->handle);
    s->uploaded = lm_calloc(nw, sizeof *s->uploaded);
    if (!s->p.weight || !s->p.vec || !s->handle || !s->uploaded) {
        lm_swap_free(s);
        return lm_fail_nomem(err, "swapped weights", nw * sizeof(lm_weight));
    }
    memcpy(s->p.weight, p->weight, p->n_weights * sizeof *p->weight);
    memcpy(s->p.vec, p->vec, p->n_vecs * sizeof *p->vec);
    memcpy(s->handle, handle, p->n_weights * sizeof *handle);
    *out = s;
    return LM_OK;
}

static lm_status fits(const lm_program *p, const lm_program *other, const uint32_t *weight, const uint32_t *vec, lm_error *err) {
    for (uint32_t i = 0; i < p->n_weights; i++) {
        const lm_weight *a = &p->weight[i], *b = weight[i] < other->n_weights ? &other->weight[weight[i]] : NULL;
        if (weight[i] == LM_NONE) continue;
        if (!b || a->n_mat != b->n_mat || a->rows != b->rows || a->cols != b->cols)
            return lm_fail_at(err, LM_USAGE, NULL, LM_NO_OFFSET, a->name, "the other model has no weight of this shape in its place");
    }
    for (uint32_t i = 0; i < p->n_vecs; i++)
        if (vec[i] != LM_NONE && (vec[i] >= other->n_vecs || p->vec[i].n != other->vec[vec[i]].n))
            return lm_fail_at(err, LM_USAGE, NULL, LM_NO_OFFSET, p->vec[i].name,
                              "the other model has no vector of this length in its place");
    return LM_OK;
}

static lm_status upload(lm_engine *e, lm_swap *s, const lm_program *other, const uint32_t *weight, lm_error *err) {
    for (uint32_t i = 0; i < s->p.n_weights; i++) {
        if (weight[i] == LM_NONE) continue;
        const lm_weight *w = &other->weight[weight[i]];
        uint32_t k = 0;
        while (k < i && (weight[k] == LM_NONE || !lm_weight_same_rows(&other->weight[weight[k]], w))) k++;
        s->p.weight[i] = *w;
        if (k < i) {
            s->handle[i] = s->handle[k];
            continue;
        }
        LM_TRY(e->backend->upload(e->device, w, &s->handle[i], err));
        s->uploaded[s->n_uploaded++] = s->handle[i];
    }
    return LM_OK;
}

/* The swapped program lives until the device has taken its own again. */
static lm_status own_again(lm_engine *e, lm_error *err) {
    LM_TRY(e->backend->configure(e->device, e->program, e->handle, err));
    for (uint32_t i = 0; i < e->swap->n_uploaded; i++) e->backend->release(e->device, e->swap->uploaded[i]);
    lm_swap_free(e->swap);
    e->swap = NULL;
    return LM_OK;
}

lm_status lm_engine_swap(lm_engine *e, const lm_program *other, const uint32_t *weight, const uint32_t *vec, lm_error *err) {
    lm_swap *s = NULL;
    if (e->swap) LM_TRY(own_again(e, err));
    if (!other) return LM_OK;
    LM_TRY(fits(e->program, other, weight, vec, err));
    LM_TRY(create(e->program, e->handle, &s, err));
    for (uint32_t i = 0; i < s->p.n_vecs; i++)
        if (vec[i] != LM_NONE) s->p.vec[i] = other->vec[vec[i]];
    lm_status st = upload(e, s, other, weight, err);
    e->swap = s;
    if (st == LM_OK) st = e->backend->configure(e->device, &s->p, s->handle, err);
    if (st != LM_OK) own_again(e, NULL);
    return st;
}
