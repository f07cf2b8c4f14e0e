/* Perplexity: window after window in a session of its own, every row measured as it comes. */
#include "verify/ppl.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

typedef struct counter {
    lm_ppl *p;
    lm_window *w;
    lm_saved *save; /* the window's, or NULL */
    double *x, *e, *ref, *scratch, *lp; /* [vocab] each */
    uint64_t done, total;
    uint32_t next; /* the row that must come */
    lm_sha256 hash;
    lm_status st; /* of what went wrong in the callback */
    lm_error *err;
} counter;

static lm_status not_finite(const counter *c, uint32_t row, bool own) {
    if (own) return lm_fail(c->err, LM_RANGE, "window %u, position %u: the model's logits are not finite", c->w->k, row);
    return lm_fail_at(c->err, LM_FORMAT, c->p->o->reference, LM_NO_OFFSET, NULL,
                      "case %u, position %u: is no distribution to compare with (a value that is not finite, an id that stands twice, "
                      "probabilities that don't add up to one, or no mass where the reference has some)",
                      c->w->k, row);
}

static lm_status compare(counter *c, uint32_t row, double lse) {
    lm_apart a;
    const lm_trace_case *t = c->w->c;
    const uint32_t vocab = c->p->e->program->vocab;
    bool ok;
    if (t->logits) {
        lm_tensor_row_f64(t->logits, row, c->ref);
        ok = lm_apart_whole(c->ref, c->x, lse, vocab, c->scratch, &a);
    } else {
        double rest = NAN;
        lm_tensor_row_f64(t->top_logprobs, row, c->lp);
        if (t->top_rest) t->top_rest->type->decode(t->top_rest->data + row * (uint64_t)t->top_rest->type->bytes, &rest, 1);
        const lm_listed l = {t->top_ids + (size_t)row * t->n_top, c->lp, t->n_top, rest};
        ok = lm_apart_listed(&l, c->x, lse, vocab, c->e, &a);
    }
    return ok ? lm_quality_add(&c->p->q, &a, c->w->k, row, c->err) : not_finite(c, row, false);
}

static lm_status measure(counter *c, uint32_t row) {
    lm_ppl *p = c->p;
    lm_window *w = c->w;
    const double lse = lm_shares(c->x, p->e->program->vocab, c->e);
    if (isnan(lse)) return not_finite(c, row, true);
    if (c->save) lm_saved_row(p, c->save, row, c->x, lse, c->e);
    if (row < w->first || row > w->last) return LM_OK;
    if (row + 1 < w->n) {
        const double nll = lse - c->x[w->id[row + 1]];
        p->sum += nll;
        p->squares += nll * nll;
        p->scored++;
        w->nll += nll;
        w->scored++;
    }
    return w->c ? compare(c, row, lse) : LM_OK;
}

static bool on_logits(void *ctx, const lm_rows *rows) {
    counter *c = ctx;
    const lm_evidence_options *o = &c->p->o->run;
    lm_sha256_update(&c->hash, rows->data, (size_t)rows->n * rows->width * (rows->is_f64 ? sizeof(double) : sizeof(float)));
    for (uint32_t i = 0; i < rows->n; i++) {
        if (rows->row[i] != c->next++) c->st = lm_fail(c->err, LM_INTERNAL, "window %u: a row that wasn't asked for", c->w->k);
        if (c->st != LM_OK) return false;
        lm_rows_f64(rows, i, c->x);
        if ((c->st = measure(c, rows->row[i])) != LM_OK) return false;
    }
    c->done += rows->n;
    if (o->progress && !o->progress(o->progress_ctx, "perplexity", c->done, c->total))
        c->st = lm_fail(c->err, LM_INTERRUPTED, "interrupted in window %u", c->w->k);
    return c->st == LM_OK;
}

/* Rows before the first measured one are computed, but their logits are not. */
static lm_status run_window(counter *c, lm_error *err) {
    lm_ppl *p = c->p;
    const lm_window *w = c->w;
    lm_session *s = NULL;
    const uint32_t from = c->save ? 0 : w->first, to = c->save ? w->n : w->last + 1;
    lm_status st = lm_session_create(p->e, p->o->run.chunk, &s, err);
    const lm_eval before = {.id = w->id, .n = from, .length = w->n, .want = LM_WANT_NONE};
    if (st == LM_OK && from) st = lm_session_eval(s, &before, err);
    c->next = from;
    const lm_eval rows = {.id = w->id + from, .n = to - from, .length = w->n, .want = LM_WANT_ALL, .logits = on_logits, .logits_ctx = c};
    if (st == LM_OK) st = lm_session_eval(s, &rows, err);
    lm_session_free(s);
    if (c->st != LM_OK) return c->st;
    if (st == LM_OK && c->next != to) st = lm_fail(err, LM_INTERNAL, "window %u: %u rows came of %u", w->k, c->next, to);
    return st;
}

static lm_status run_windows(lm_ppl *p, lm_error *err) {
    const uint64_t vocab = p->e->program->vocab;
    lm_error inner = {0};
    counter c = {.p = p, .err = &inner};
    lm_saved *save = p->o->save ? lm_arena_calloc(p->arena, p->n_windows, sizeof *save) : NULL;
    double **row[] = {&c.x, &c.e, &c.ref, &c.scratch, &c.lp};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        if (!(*row[i] = lm_arena_calloc(p->arena, vocab, sizeof(double))))
            return lm_fail_nomem(err, "a row of logits", vocab * sizeof(double));
    if (p->o->save && !save) return lm_fail_nomem(err, "a reference", p->n_windows * sizeof *save);
    for (uint32_t i = 0; i < p->n_windows; i++) c.total += save ? p->w[i].n : p->w[i].last + 1 - p->w[i].first;
    lm_sha256_init(&c.hash);
    for (uint32_t i = 0; i < p->n_windows; i++) {
        c.w = &p->w[i];
        if (save) LM_TRY(lm_saved_create(p, c.w, c.save = &save[i], err));
        const lm_status st = run_window(&c, err);
        if (c.st != LM_OK && err) *err = inner; /* says more than that the reader stopped it */
        LM_TRY(st);
    }
    char hex[65];
    uint8_t digest[32];
    lm_sha256_final(&c.hash, digest);
    lm_sha256_hex(digest, hex);
    if (!(p->logits_sha256 = lm_arena_strndup(p->arena, hex, 64))) return lm_fail_nomem(err, "a hash", 65);
    return save ? lm_saved_write(p, save, err) : LM_OK;
}

/* ---- the whole ------------------------------------------------------------------------------------------------------------------- */
static const char *meta(const lm_trace *t, const char *key) {
    const lm_value *v = lm_meta_get(&t->file->meta, key);
    return v && v->kind == LM_V_STRING ? v->str.s : NULL;
}

static lm_status describe(lm_ppl *p, const char *model, lm_error *err) {
    const lm_backend *b = p->e->backend;
    p->about = lm_arena_printf(p->arena, "%s (%s) on %s, lane %s (%s)", model, p->e->program->arch, b->name,
                               p->e->opt.device.lane ? p->e->opt.device.lane : b->lanes[0], b->describe(p->e->device));
    p->ref_of = p->ref_sha256 = "";
    if (p->t) {
        const char *by = meta(p->t, "made_by"), *lane = meta(p->t, "lane");
        p->ref_of = lm_arena_printf(p->arena, "%s%s%.60s%s%.20s", p->o->reference, by ? ", made by " : "", by ? by : "",
                                    lane ? ", lane " : "", lane ? lane : "");
        p->ref_sha256 = p->t->sha256;
    }
    return p->about && p->ref_of ? LM_OK : lm_fail_nomem(err, "a description", 512);
}

static lm_status check_options(const lm_ppl_options *o, lm_error *err) {
    if (o->text && o->n_ids) return lm_fail(err, LM_USAGE, "give a text or token ids, not both");
    if (!o->text && !o->n_ids && !o->reference)
        return lm_fail(err, LM_USAGE, "nothing to score: name a text, token ids with --ids, or a reference with --kl");
    if (o->top && !o->save) return lm_fail(err, LM_USAGE, "--top goes with --save");
    return LM_OK;
}

static lm_status run(lm_ppl *p, const char *model, lm_error *err) {
    const lm_evidence_options *r = &p->o->run;
    const lm_engine_options eo = {.backend = r->backend,
                                  .device = {.threads = r->threads, .lane = r->lane, .kv = r->kv, .cpu_level = r->cpu_level},
                                  .progress = {r->progress, r->progress_ctx},
                                  .interrupted = r->interrupted,
                                  .interrupted_ctx = r->interrupted_ctx};
    LM_TRY(lm_engine_open(model, &eo, &p->e, err));
    if (p->o->save) LM_TRY(lm_target_check(p->o->save, p->e->src, err));
    if (p->o->reference) LM_TRY(lm_trace_open(p->o->reference, p->e->program, &p->t, err));
    if (p->t && p->o->save) LM_TRY(lm_target_check(p->o->save, p->t->file, err)); /* the reference outlives what is measured by it */
    LM_TRY(lm_ppl_cut(p, err));
    LM_TRY(describe(p, model, err));
    return run_windows(p, err);
}

lm_status lm_ppl_run(const char *model, const lm_ppl_options *o, lm_ppl **out, lm_error *err) {
    LM_TRY(check_options(o, err));
    lm_ppl *p = lm_calloc(1, sizeof *p);
    if (p) p->arena = lm_arena_create();
    if (!p || !p->arena) {
        lm_free(p);
        return lm_fail_nomem(err, "a perplexity", sizeof *p);
    }
    p->o = o;
    const lm_status st = run(p, model, err);
    lm_engine_close(p->e); /* the trace's tensors stand on its own file */
    p->e = NULL;
    if (st != LM_OK) {
        lm_ppl_free(p);
        return st;
    }
    *out = p;
    return LM_OK;
}

void lm_ppl_free(lm_ppl *p) {
    if (!p) return;
    lm_engine_close(p->e);
    lm_trace_close(p->t);
    lm_quality_free(&p->q);
    lm_arena_destroy(p->arena);
    lm_free(p);
}
