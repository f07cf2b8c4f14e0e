/* A compact reference: a trace that has, of each position, the best ids, their log-probabilities, and the log of the mass of all others. */
#include "verify/ppl.h"
#include "version.h"
#include <math.h>
#include <stdio.h>

static uint32_t top_of(const lm_ppl *p) {
    const uint32_t top = p->o->top ? p->o->top : LM_QUALITY_TOP, vocab = p->e->program->vocab;
    return top < vocab ? top : vocab;
}

lm_status lm_saved_create(const lm_ppl *p, const lm_window *w, lm_saved *out, lm_error *err) {
    const uint64_t n = w->n, top = top_of(p);
    *out = (lm_saved){lm_arena_calloc(p->arena, n, top * sizeof *out->id), lm_arena_calloc(p->arena, n, top * sizeof *out->lp),
                      lm_arena_calloc(p->arena, n, sizeof *out->rest)};
    return out->id && out->lp && out->rest ? LM_OK : lm_fail_nomem(err, "a reference's rows", n * top * 8);
}

void lm_saved_row(const lm_ppl *p, lm_saved *s, uint32_t row, const double *x, double lse, const double *e) {
    const uint32_t vocab = p->e->program->vocab, top = top_of(p);
    int32_t *id = s->id + (size_t)row * top;
    lm_top_row(x, vocab, top, id);
    const double least = x[id[top - 1]];
    double rest = 0;
    for (uint32_t i = 0; i < top; i++) s->lp[(size_t)row * top + i] = (float)(x[id[i]] - lse);
    /* those below the last of the list, and its equals that the list doesn't have; summed without the large ones */
    uint32_t equal = 0, kept = 0;
    for (uint32_t i = 0; i < top; i++) kept += x[id[i]] == least;
    for (uint32_t v = 0; v < vocab; v++)
        if (x[v] < least || (x[v] == least && equal++ >= kept)) rest += e[v];
    /* where the shares underflow, the largest that remains can't be more than the last of the list */
    s->rest[row] = (float)(rest > 0 ? log(rest) : fmin(least - lse, -700));
}

typedef struct writing {
    const lm_ppl *p;
    lm_st_out *out;
    uint32_t n;
} writing;

static lm_status put(writing *w, uint32_t k, const char *what, const char *type, uint32_t rank, uint64_t d0, uint64_t d1, const void *data,
                     lm_error *err) {
    const char *name = lm_arena_printf(w->p->arena, "c%u.%s", k, what);
    if (!name) return lm_fail_nomem(err, "a name", 64);
    w->out[w->n++] =
        (lm_st_out){.name = name, .st_dtype = type, .rank = rank, .dim = {d0, d1}, .data = data, .bytes = 4 * d0 * (rank == 2 ? d1 : 1)};
    return LM_OK;
}

static lm_status tensors(writing *w, const lm_saved *s, lm_error *err) {
    const uint64_t top = top_of(w->p);
    for (uint32_t i = 0; i < w->p->n_windows; i++) {
        const lm_window *x = &w->p->w[i];
        LM_TRY(put(w, x->k, "ids", "I32", 1, x->n, 0, x->id, err));
        LM_TRY(put(w, x->k, "top.ids", "I32", 2, x->n, top, s[i].id, err));
        LM_TRY(put(w, x->k, "top.logprobs", "F32", 2, x->n, top, s[i].lp, err));
        if (top < w->p->e->program->vocab) LM_TRY(put(w, x->k, "top.rest", "F32", 1, x->n, 0, s[i].rest, err));
    }
    return LM_OK;
}

lm_status lm_saved_write(const lm_ppl *p, const lm_saved *s, lm_error *err) {
    const lm_backend *b = p->e->backend;
    const char *lane = p->e->opt.device.lane ? p->e->opt.device.lane : b->lanes[0];
    const char *fixed[] = {"trace_version",  "1",
                           "made_by",        "lemma " LM_VERSION " " LM_COMMIT,
                           "backend",        b->name,
                           "lane",           lane,
                           "device",         b->describe(p->e->device),
                           "model_type",     p->e->program->arch,
                           "dtype",          b->cache(p->e->device)->elem_size == 8 ? "float64" : "float32",
                           "weights_sha256", NULL};
    enum { FIXED = sizeof fixed / sizeof *fixed };
    char weights[65];
    LM_TRY(lm_source_sha256(p->e->src, weights, NULL, NULL, err));
    const char **meta = lm_arena_calloc(p->arena, FIXED + 2 * (size_t)p->n_windows + 1, sizeof *meta);
    writing w = {p, lm_arena_calloc(p->arena, p->n_windows, 4 * sizeof *w.out), 0};
    if (!meta || !w.out) return lm_fail_nomem(err, "a reference", p->n_windows * sizeof *w.out * 4);
    for (int i = 0; i < FIXED; i++) meta[i] = fixed[i] ? fixed[i] : weights;
    for (uint32_t i = 0; i < p->n_windows; i++) {
        const char **kv = meta + FIXED + 2 * (size_t)i;
        kv[0] = lm_arena_printf(p->arena, "c%u.scored_from", p->w[i].k);
        kv[1] = lm_arena_printf(p->arena, "%u", p->w[i].first);
        if (!kv[0] || !kv[1]) return lm_fail_nomem(err, "a name", 64);
    }
    LM_TRY(tensors(&w, s, err));
    return lm_safetensors_write(p->o->save, w.out, w.n, meta, err);
}
