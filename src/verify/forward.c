/* One pass over a case's prompt, measured row by row against the trace; and the claims of G1 that it settles. */
#include "verify/verify.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

double lm_logit_bound(const lm_trace *t) { return t->noise > 0 && 5 * t->noise < 0.05 ? 5 * t->noise : 0.05; }
/* A log-probability moves by at most twice what the logits move by. Without recorded noise: the tower gate's bound for float32. */
double lm_logprob_bound(const lm_trace *t) { return t->noise > 0 ? 2 * lm_logit_bound(t) : 2e-3; }

bool lm_judge_progress(const lm_judge *j, const char *what, uint64_t done, uint64_t total) {
    return !j->o->run.progress || j->o->run.progress(j->o->run.progress_ctx, what, done, total);
}

lm_status lm_judge_claim(lm_judge *j, const lm_trace_case *c, const char *section, lm_verdict v, const char *what, const char *bound,
                         const char *measured, const char *note, lm_error *err) {
    return lm_judge_add(j, c, what, (lm_claim){.verdict = v, .section = section, .bound = bound, .measured = measured, .note = note}, err);
}

lm_status lm_judge_add(lm_judge *j, const lm_trace_case *c, const char *what, lm_claim claim, lm_error *err) {
    claim.gate = claim.measured && *claim.measured;
    claim.name = lm_say(j->l, "c%u %s", c->k, what);
    claim.witness = j->trace_path;
    claim.sha256 = j->t->sha256;
    return lm_ledger_add(j->l, &claim, err);
}

/* ---- collecting --------------------------------------------------------------------------------------------------------------- */
static void worst_take(lm_worst *w, double value, bool worse, uint32_t at, uint32_t position, double ours, double ref) {
    if (w->any && isnan(w->value)) return; /* the first non-finite value stays */
    if (w->any && !isnan(value) && !worse) return;
    *w = (lm_worst){.value = value, .at = at, .position = position, .ours = ours, .ref = ref, .any = true};
}

static double take_diff(lm_worst *w, const double *ours, const double *ref, uint32_t n, uint32_t position) {
    uint64_t at;
    double d = lm_max_diff(ours, ref, n, &at);
    worst_take(w, d, d > w->value, (uint32_t)at, position, ours[at], ref[at]);
    return d;
}

static void take_argmax(lm_forward *f, uint32_t position) {
    const lm_trace_case *c = f->c;
    uint32_t best = lm_argmax_row(f->j->ours, f->j->e->program->vocab), ref[3], n = 0;
    if (c->argmax) ref[n++] = (uint32_t)c->argmax[position];
    if (c->logits) ref[n++] = lm_argmax_row(f->j->ref, f->j->e->program->vocab);
    if (c->top_ids) ref[n++] = (uint32_t)c->top_ids[(size_t)position * c->n_top];
    bool wrong = false;
    for (uint32_t i = 0; i < n && !wrong; i++)
        if (ref[i] != best || best == LM_NO_ID) {
            wrong = true;
            if (!f->flips++) {
                f->flip_position = position;
                f->flip_ours = best;
                f->flip_ref = ref[i];
            }
        }
    f->spot[position].flip = wrong;
    if (f->quarter && wrong) f->top_wrong[position / f->quarter]++;
}

static void take_logprobs(lm_forward *f, uint32_t position) {
    const lm_trace_case *c = f->c;
    double *ref = f->j->ref, lse = lm_log_sum_exp(f->j->ours, f->j->e->program->vocab);
    double most = 0, far = 0;
    lm_tensor_row_f64(c->top_logprobs, position, ref);
    for (uint32_t i = 0; i < c->n_top; i++) {
        uint32_t id = (uint32_t)c->top_ids[(size_t)position * c->n_top + i];
        double ours = f->j->ours[id] - lse, d = fabs(ours - ref[i]);
        if (!isfinite(d)) d = NAN;
        worst_take(&f->logprob, d, d > f->logprob.value, id, position, ours, ref[i]);
        f->logprob_sum += d;
        far = d > far || isnan(d) ? d : far;
        const double steps = d / fmax(1, fabs(ref[i]));
        if (!(steps <= most)) most = steps;
    }
    f->equal += most <= 0x1p-23;
    f->spot[position].off = far;
}

static bool on_logits(void *ctx, const lm_rows *rows) {
    lm_forward *f = ctx;
    lm_judge *j = f->j;
    size_t bytes = (size_t)rows->n * rows->width * (rows->is_f64 ? sizeof(double) : sizeof(float));
    lm_sha256_update(&f->hash, rows->data, bytes);
    if (!f->again) {
        lm_sha256_update(&j->logits, rows->data, bytes);
        j->any_logits = true;
    }
    for (uint32_t i = 0; i < rows->n; i++) {
        uint32_t p = rows->row[i], vocab = rows->width;
        if (p >= f->c->n || vocab != j->e->program->vocab) return !(f->stray = true);
        lm_rows_f64(rows, i, j->ours);
        if (!lm_finite(j->ours, vocab) && !f->not_finite) {
            f->not_finite = true;
            f->bad_position = p;
        }
        if (f->c->logits) {
            lm_tensor_row_f64(f->c->logits, p, j->ref);
            f->spot[p].off = take_diff(&f->logit, j->ours, j->ref, vocab, p);
        }
        take_argmax(f, p);
        if (f->c->top_logprobs) take_logprobs(f, p);
        if (p + 1 == f->c->n) {
            memcpy(j->last, j->ours, vocab * sizeof *j->last);
            if (f->c->logits_last) {
                lm_tensor_row_f64(f->c->logits_last, 0, j->ref);
                take_diff(&f->last, j->ours, j->ref, vocab, p);
            }
        }
        f->rows++;
    }
    return lm_judge_progress(j, f->stage, f->rows, f->c->n);
}

static bool on_tap(void *ctx, const lm_program *p, const lm_op *op, const lm_rows *rows) {
    lm_forward *f = ctx;
    lm_judge *j = f->j;
    for (uint32_t slot = 0; slot < p->n_layers + 2; slot++) {
        if (!f->c->hidden[slot] || lm_hidden_value(p, slot) != op->out) continue;
        for (uint32_t i = 0; i < rows->n; i++) {
            uint32_t at = rows->row[i];
            if (at >= f->c->n) return !(f->stray = true);
            lm_rows_f64(rows, i, j->ours);
            lm_tensor_row_f64(f->c->hidden[slot], at, j->ref);
            double cosine = lm_cosine(j->ours, j->ref, rows->width);
            worst_take(&f->cosine, cosine, cosine < f->cosine.value, slot, at, cosine, 1);
            uint64_t where;
            const double off = 1 - cosine, most = lm_max_diff(j->ours, j->ref, rows->width, &where);
            if (!f->seen[slot] || isnan(off) || off > f->off[slot]) f->off[slot] = off;
            if (!f->seen[slot] || isnan(most) || most > f->max_abs[slot]) f->max_abs[slot] = most;
            f->seen[slot]++;
        }
    }
    return true;
}

bool lm_forward_has_argmax(const lm_trace_case *c) { return c->argmax || c->logits || c->top_ids; }

static void forget(lm_forward *f) {
    lm_free(f->seen);
    lm_free(f->off);
    lm_free(f->spot);
    f->seen = NULL;
    f->off = f->max_abs = NULL;
    f->spot = NULL;
}

/* For the page. */
static lm_status keep(lm_forward *f, uint32_t n_slots, bool every, lm_error *err) {
    char name[32];
    for (uint32_t i = 0; i < n_slots; i++)
        if (f->seen[i])
            LM_TRY(lm_ledger_depth(f->j->l, &(lm_depth){f->c->k, lm_trace_hidden_name(f->j->t, i, name), fmax(f->off[i], 0), f->max_abs[i]},
                                   err));
    for (uint32_t i = 0; i < f->c->n && every; i++) LM_TRY(lm_ledger_spot(f->j->l, &f->spot[i], err));
    return LM_OK;
}

/* The session must be fresh. `f` comes zeroed but for j, c, stage and (G2) quarter and top_wrong. */
lm_status lm_forward_run(lm_forward *f, lm_session *s, lm_error *err) {
    const lm_trace_case *c = f->c;
    uint32_t n_slots = f->j->t->n_layers + 2;
    bool every = lm_forward_has_argmax(c);
    f->seen = lm_calloc(n_slots, sizeof *f->seen);
    f->off = lm_calloc(n_slots, 2 * sizeof *f->off);
    f->spot = lm_calloc(c->n ? c->n : 1, sizeof *f->spot);
    if (!f->seen || !f->off || !f->spot) {
        forget(f);
        return lm_fail_nomem(err, "counters", n_slots * 20ull + c->n * sizeof *f->spot);
    }
    f->max_abs = f->off + n_slots;
    for (uint32_t i = 0; i < c->n; i++) f->spot[i] = (lm_spot){.k = c->k, .position = i, .off = NAN};
    lm_sha256_init(&f->hash);
    lm_eval ev = {.id = c->ids,
                  .n = c->n,
                  .want = every ? LM_WANT_ALL : LM_WANT_LAST,
                  .logits = on_logits,
                  .logits_ctx = f,
                  .tap = c->n_hidden ? on_tap : NULL,
                  .tap_ctx = f};
    lm_status st = lm_session_eval(s, &ev, err);
    if (f->stray) st = lm_fail(err, LM_INTERNAL, "case %u: a row of a position or width that wasn't asked for", c->k);
    for (uint32_t i = 0; i < n_slots && st == LM_OK; i++)
        if (c->hidden[i] && f->seen[i] != c->n)
            st = lm_fail(err, LM_INTERNAL, "case %u: %u of %u hidden rows were seen", c->k, f->seen[i], c->n);
    if (st == LM_OK && f->rows != (every ? c->n : 1))
        st = lm_fail(err, LM_INTERNAL, "case %u: %u logits rows came for %u tokens", c->k, f->rows, c->n);
    if (st == LM_OK && !f->again) st = keep(f, n_slots, every, err);
    forget(f);
    return st;
}

/* ---- claims ---------------------------------------------------------------------------------------------------------------------- */
const char *lm_say_cosine(lm_ledger *l, double cosine) {
    return cosine > 0.999 ? lm_say(l, "1 - %.2g", fmax(0, 1 - cosine)) : lm_say(l, "%.6f", cosine);
}

static lm_status claim_hidden(const lm_forward *f, lm_error *err) {
    lm_judge *j = f->j;
    char buf[32];
    const lm_worst *w = &f->cosine;
    double bound = j->f64 ? 0.999999 : 0.9999;
    bool ok = w->value >= bound;
    const char *where = lm_trace_hidden_name(j->t, w->at, buf);
    lm_claim claim = {
        .verdict = ok ? LM_PROVEN : LM_REFUTED,
        .section = "G1",
        .bound = lm_say(j->l, ">= %g", bound),
        .measured = lm_say(j->l, "%s at %s, position %u (%u states)", lm_say_cosine(j->l, w->value), where, w->position, f->c->n_hidden),
        .measure = LM_MEASURE_COSINE,
        .value = w->value,
        .limit = bound};
    if (!ok) claim.note = isnan(w->value) ? "a value that is not finite" : "the least cosine is the counterexample";
    return lm_judge_add(j, f->c, "hidden cosine", claim, err);
}

static lm_status claim_argmax(const lm_forward *f, lm_error *err) {
    lm_judge *j = f->j;
    const char *note = NULL;
    if (f->flips && f->flip_ours == LM_NO_ID)
        note = lm_say(j->l, "position %u: our logits are not finite", f->flip_position);
    else if (f->flips && f->flip_ref == LM_NO_ID)
        note = lm_say(j->l, "position %u: the trace's logits are not finite", f->flip_position);
    else if (f->flips)
        note = lm_say(j->l, "position %u: we choose %u, the trace %u", f->flip_position, f->flip_ours, f->flip_ref);
    return lm_judge_claim(j, f->c, "G1", f->flips ? LM_REFUTED : LM_PROVEN, "argmax", "every position",
                          lm_say(j->l, "%u of %u equal", f->c->n - f->flips, f->c->n), note, err);
}

static lm_status claim_diff(const lm_forward *f, lm_disputed kind, const lm_worst *w, const char *what, double bound, const char *scope,
                            lm_error *err) {
    lm_judge *j = f->j;
    bool ok = w->value <= bound;
    lm_claim claim = {.verdict = ok ? LM_PROVEN : LM_REFUTED,
                      .section = "G1",
                      .bound = lm_say(j->l, "<= %.3g (%s)", bound, scope),
                      .measured = lm_say(j->l, "%.3g at position %u, id %u", w->value, w->position, w->at),
                      .measure = LM_MEASURE_DIFFERENCE,
                      .value = w->value,
                      .limit = bound};
    if (!ok) LM_TRY(lm_judge_nearer(j, f->c, kind, w, bound, &claim, err));
    return lm_judge_add(j, f->c, what, claim, err);
}

static lm_status claim_finite(const lm_forward *f, lm_error *err) {
    lm_judge *j = f->j;
    if (!f->not_finite) return LM_OK;
    return lm_judge_claim(j, f->c, "G1", LM_REFUTED, "finite logits", "no NaN, no infinity",
                          lm_say(j->l, "not finite at position %u", f->bad_position), NULL, err);
}

static lm_status claim_all(const lm_forward *f, lm_error *err) {
    const lm_trace *t = f->j->t;
    const char *scope = t->noise > 0 ? "5 x the trace's noise, and 0.05" : "no noise recorded";
    LM_TRY(claim_finite(f, err));
    if (!f->cosine.any && !lm_forward_has_argmax(f->c) && !f->last.any && !f->c->n_greedy)
        return lm_judge_claim(f->j, f->c, "G1", LM_OPEN, "against the reference", NULL, NULL,
                              "needs a trace of more than ids, as tools/export_oracle.py writes it", err);
    if (f->cosine.any) LM_TRY(claim_hidden(f, err));
    if (lm_forward_has_argmax(f->c)) LM_TRY(claim_argmax(f, err));
    if (f->logit.any) LM_TRY(claim_diff(f, LM_DISPUTED_LOGIT, &f->logit, "max |dlogit|", lm_logit_bound(t), scope, err));
    if (f->last.any) LM_TRY(claim_diff(f, LM_DISPUTED_LAST, &f->last, "max |dlogit|, last position", lm_logit_bound(t), scope, err));
    if (f->logprob.any)
        LM_TRY(claim_diff(f, LM_DISPUTED_LOGPROB, &f->logprob, "max |dlogprob|, top ids", lm_logprob_bound(t),
                          t->noise > 0 ? "twice the logits' bound" : "no noise recorded", err));
    return LM_OK;
}

lm_status lm_judge_g1(lm_judge *j, const lm_trace_case *c, lm_error *err) {
    char stage[48];
    lm_session *s = NULL;
    snprintf(stage, sizeof stage, "case %u: forward", c->k);
    lm_forward f = {.j = j, .c = c, .stage = stage};
    LM_TRY(lm_session_create(j->e, j->o->run.chunk, &s, err));
    lm_status st = lm_forward_run(&f, s, err);
    if (st == LM_OK) st = claim_all(&f, err);
    if (st == LM_OK && c->n_greedy) st = lm_judge_greedy(j, c, "G1", s, err);
    lm_session_free(s);
    if (st == LM_OK) st = lm_judge_cacheless(j, c, err);
    return st;
}
