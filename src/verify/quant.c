/* What a quantized file costs: the original's distributions are kept for every position, the quantized file is run beside them, and then,
 * for each tensor or layer that differs, the original with only that taken from the quantized file. Every run is in the original's lane. */
#include "verify/quant.h"
#include "tokenizer/tokenizer.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 1 << 30 }; /* of the original's logits */

typedef struct run_of {
    lm_quant *q;
    lm_quality *to; /* NULL: the original itself, whose logits are kept */
    bool all;       /* what is more than a part's numbers: flips, likelihoods */

    lm_sha256 hash;
    uint32_t next;
    double sum, squares; /* of the difference of the negative log-likelihoods */
    lm_status st;
    lm_error *err;
} run_of;

static double likelihood(const double *x, double lse, uint32_t id) { return lse - x[id]; }

static lm_status compare(run_of *r, uint32_t row) {
    lm_quant *q = r->q;
    lm_apart a;
    const uint32_t vocab = q->d.p->vocab;
    const double *ref = q->ref + (size_t)row * vocab, lse = lm_shares(q->x, vocab, q->e);
    if (!lm_apart_whole(ref, q->x, lse, vocab, q->scratch, &a))
        return lm_fail(r->err, LM_RANGE, "position %u: logits that are not finite", row);
    LM_TRY(lm_quality_add(r->to, &a, 0, row, r->err));
    if (!r->all) return LM_OK;
    if (a.top[0] != a.top[1])
        q->flip[q->n_flips++] = (lm_flip){row, a.top[0], a.top[1], ref[a.top[0]] - ref[a.top[1]], a.kl};
    if (row + 1 < q->n) {
        const uint32_t id = (uint32_t)q->id[row + 1];
        const double own = likelihood(q->x, lse, id), its = likelihood(ref, lm_log_sum_exp(ref, vocab), id), d = own - its;
        q->nll[0] += its;
        q->nll[1] += own;
        r->sum += d;
        r->squares += d * d;
    }
    return LM_OK;
}

static bool on_logits(void *ctx, const lm_rows *rows) {
    run_of *r = ctx;
    lm_quant *q = r->q;
    lm_sha256_update(&r->hash, rows->data, (size_t)rows->n * rows->width * (rows->is_f64 ? sizeof(double) : sizeof(float)));
    for (uint32_t i = 0; i < rows->n && r->st == LM_OK; i++) {
        if (rows->row[i] != r->next++) return r->st = lm_fail(r->err, LM_INTERNAL, "a row that wasn't asked for"), false;
        if (r->to) {
            lm_rows_f64(rows, i, q->x);
            r->st = compare(r, rows->row[i]);
        } else {
            lm_rows_f64(rows, i, q->ref + (size_t)rows->row[i] * rows->width);
        }
    }
    return r->st == LM_OK;
}

static lm_status run_once(lm_engine *e, run_of *r, lm_error *err) {
    lm_session *s = NULL;
    lm_error inner = {0};
    r->err = &inner;
    lm_sha256_init(&r->hash);
    LM_TRY(lm_session_create(e, r->q->d.o->run.chunk, &s, err));
    const lm_eval ev = {.id = r->q->id, .n = r->q->n, .want = LM_WANT_ALL, .logits = on_logits, .logits_ctx = r};
    lm_status st = lm_session_eval(s, &ev, err);
    lm_session_free(s);
    if (r->st != LM_OK && err) *err = inner;
    if (r->st != LM_OK) return r->st;
    return st == LM_OK && r->next != r->q->n ? lm_fail(err, LM_INTERNAL, "%u rows came of %u", r->next, r->q->n) : st;
}

static bool same_hash(run_of *a, run_of *b) {
    uint8_t x[32], y[32];
    lm_sha256_final(&a->hash, x);
    lm_sha256_final(&b->hash, y);
    return !memcmp(x, y, sizeof x);
}

/* ---- the parts ------------------------------------------------------------------------------------------------------------------- */
static lm_status swap(lm_quant *q, uint32_t group, bool all, lm_error *err) {
    const lm_engine *a = q->d.side[0].e, *b = q->d.side[1].e;
    const size_t n = (size_t)a->program->n_weights + a->program->n_vecs + 1;
    uint32_t *map = lm_malloc(n * sizeof *map);
    if (!map) return lm_fail_nomem(err, "a map of weights", n * sizeof *map);
    memset(map, 0xff, n * sizeof *map);
    uint32_t *vec = map + a->program->n_weights;
    for (uint32_t i = 0; i < a->program->n_weights; i++)
        if (q->weight[i] != LM_NONE && (all || q->weight_group[i] == group)) map[i] = q->weight[i];
    for (uint32_t i = 0; i < a->program->n_vecs; i++)
        if (q->vec[i] != LM_NONE && (all || q->vec_group[i] == group)) vec[i] = q->vec[i];
    const lm_status st = lm_engine_swap(q->d.side[0].e, b->program, map, vec, err);
    lm_free(map);
    return st;
}

static lm_status run_part(lm_quant *q, uint32_t g, lm_error *err) {
    lm_part_cost *part = &q->part[g];
    lm_quality x = {0};
    run_of r = {.q = q, .to = &x};
    const double share = 0.99;
    lm_status st = swap(q, g, false, err);
    if (st == LM_OK) st = run_once(q->d.side[0].e, &r, err);
    if (st == LM_OK) st = lm_quality_quantiles(&x, &share, 1, &part->p99, err);
    part->kl = lm_quality_kl(&x);
    part->max_kl = x.max_kl;
    part->dlogprob = x.dlogprob;
    part->flips = x.n - x.same;
    lm_quality_free(&x);
    return st;
}

static int by_cost(const void *a, const void *b) {
    const lm_part_cost *x = a, *y = b;
    if (x->kl.value != y->kl.value) return x->kl.value < y->kl.value ? 1 : -1;
    return strcmp(x->name, y->name);
}

static lm_status run_parts(lm_quant *q, run_of *whole, lm_error *err) {
    const lm_evidence_options *o = &q->d.o->run;
    lm_quality x = {0};
    run_of all = {.q = q, .to = &x};
    const uint32_t total = q->n_parts - q->n_unchanged + 1;
    for (uint32_t g = 0, done = 0; g < q->n_parts; g++) {
        if (q->part[g].error == 0) continue;
        if (o->progress && !o->progress(o->progress_ctx, q->by == LM_QUANT_LAYER ? "layer by layer" : "tensor by tensor", done++, total))
            return lm_fail(err, LM_INTERRUPTED, "interrupted");
        LM_TRY(run_part(q, g, err));
    }
    if (q->same_lane) { /* the check on the whole method: all of them together are the quantized model */
        lm_status st = swap(q, 0, true, err);
        if (st == LM_OK) st = run_once(q->d.side[0].e, &all, err);
        q->all = lm_quality_kl(&x).value;
        lm_quality_free(&x);
        LM_TRY(st);
        q->same_bits = same_hash(&all, whole);
    }
    LM_TRY(lm_engine_swap(q->d.side[0].e, NULL, NULL, NULL, err));
    qsort(q->part, q->n_parts, sizeof *q->part, by_cost);
    return LM_OK;
}

/* ---- the whole --------------------------------------------------------------------------------------------------------------------- */
static lm_status get_ids(lm_quant *q, lm_error *err) {
    const lm_diff_options *o = q->d.o;
    lm_ids from_text = {0};
    const int32_t *id = o->ids;
    size_t n = o->n_ids;
    lm_status st = LM_OK;
    if (o->text) {
        lm_tokenizer *tok = NULL;
        st = lm_tokenizer_from_source(q->d.side[0].e->src, &tok, err);
        if (st == LM_MISSING) st = lm_tokenizer_from_source(q->d.side[1].e->src, &tok, err);
        if (st == LM_OK) st = lm_tokenizer_encode(tok, o->text, o->text_n, true, true, &from_text, err);
        lm_tokenizer_free(tok);
        id = from_text.id;
        n = from_text.n;
    }
    const uint64_t most = MOST_BYTES / sizeof(double) / (q->d.p->vocab ? q->d.p->vocab : 1);
    if (st == LM_OK && (n < 2 || n > most))
        st = lm_fail_at(err, LM_USAGE, NULL, LM_NO_OFFSET, "tokens", "%zu of them: give 2 to %llu (the original's logits are kept)", n,
                        (unsigned long long)most);
    for (size_t i = 0; st == LM_OK && i < n; i++)
        if (id[i] < 0 || (uint32_t)id[i] >= q->d.p->vocab)
            st = lm_fail_at(err, LM_RANGE, NULL, LM_NO_OFFSET, "token id", "%d at position %zu is outside the vocabulary of %u", id[i], i,
                            q->d.p->vocab);
    int32_t *own = st == LM_OK ? lm_arena_calloc(q->d.arena, n, sizeof *own) : NULL;
    if (st == LM_OK && !own) st = lm_fail_nomem(err, "token ids", n * sizeof *own);
    if (own) memcpy(own, id, n * sizeof *own);
    lm_ids_free(&from_text);
    q->id = own;
    q->n = (uint32_t)n;
    return st;
}

static lm_status make_room(lm_quant *q, lm_error *err) {
    const uint64_t vocab = q->d.p->vocab;
    q->ref = lm_arena_calloc(q->d.arena, q->n, vocab * sizeof *q->ref);
    q->flip = lm_arena_calloc(q->d.arena, q->n, sizeof *q->flip);
    double **row[] = {&q->x, &q->e, &q->scratch};
    bool ok = q->ref && q->flip;
    for (int i = 0; i < 3; i++) ok = (*row[i] = lm_arena_calloc(q->d.arena, vocab, sizeof(double))) && ok;
    return ok ? LM_OK : lm_fail_nomem(err, "the original's logits", q->n * vocab * sizeof *q->ref);
}

static lm_status open_sides(lm_quant *q, lm_error *err) {
    lm_diff *d = &q->d;
    if (!d->o->a || !d->o->b) return lm_fail(err, LM_USAGE, "--quant takes two models: the original, and a quantized file of it");
    if (d->o->ids && d->o->text) return lm_fail(err, LM_USAGE, "give token ids or a text, not both");
    if (!d->o->n_ids && !d->o->text) return lm_fail(err, LM_USAGE, "say which tokens to run, with --ids, --prompt or --text");
    LM_TRY(lm_side_parse(d, 0, d->o->a, err));
    LM_TRY(lm_side_parse(d, 1, d->o->b, err));
    for (int s = 0; s < 2; s++)
        if (d->side[s].is_trace)
            return lm_fail_at(err, LM_USAGE, d->side[s].spec, LM_NO_OFFSET, NULL,
                              "is no model to run: --quant takes two (a trace: lemma ppl --kl)");
    LM_TRY(lm_side_open_run(d, 0, err));
    LM_TRY(lm_side_open_run(d, 1, err));
    d->p = d->side[0].e->program;
    q->same_lane = d->side[0].prec == d->side[1].prec && d->side[0].e->backend == d->side[1].e->backend;
    return lm_quant_match(q, err);
}

static lm_status run(lm_quant *q, lm_error *err) {
    const double share[] = {0.5, 0.99};
    double out[2];
    LM_TRY(open_sides(q, err));
    LM_TRY(get_ids(q, err));
    LM_TRY(make_room(q, err));
    run_of original = {.q = q}, whole = {.q = q, .to = &q->q, .all = true};
    LM_TRY(run_once(q->d.side[0].e, &original, err));
    LM_TRY(run_once(q->d.side[1].e, &whole, err));
    LM_TRY(lm_quality_quantiles(&q->q, share, 2, out, err));
    q->p50 = out[0];
    q->p99 = out[1];
    const double pairs = q->n - 1;
    const lm_mean d = lm_mean_of(whole.sum, whole.squares, q->n - 1);
    q->nll[0] /= pairs;
    q->nll[1] /= pairs;
    q->dnll = d.value;
    q->dnll_se = d.se;
    if (q->by == LM_QUANT_WHOLE) return LM_OK;
    LM_TRY(lm_quant_groups(q, err));
    return run_parts(q, &whole, err);
}

lm_status lm_quant_run(const lm_diff_options *o, lm_quant_by by, lm_quant **out, lm_error *err) {
    lm_quant *q = lm_calloc(1, sizeof *q);
    if (q) q->d.arena = lm_arena_create();
    if (!q || !q->d.arena) {
        lm_free(q);
        return lm_fail_nomem(err, "a comparison", sizeof *q);
    }
    q->d.opt = *o;
    q->d.o = &q->d.opt;
    q->by = by;
    q->all = NAN;
    const lm_status st = run(q, err);
    if (st != LM_OK) {
        lm_quant_free(q);
        return st;
    }
    *out = q;
    return LM_OK;
}

void lm_quant_free(lm_quant *q) {
    if (!q) return;
    for (int s = 1; s >= 0; s--) lm_side_close(&q->d.side[s]); /* B may share A's files */
    lm_quality_free(&q->q);
    lm_arena_destroy(q->d.arena);
    lm_free(q);
}
