/* What grows a sequence: the greedy continuation against the trace's, with the arbiter's word on a flip; and prefill through the cache
 * against a fresh session per prefix. */
#include "verify/verify.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a flip and what the arbiter says of it --------------------------------------------------------------------------------------- */
typedef struct flip {
    uint32_t step, ours, ref;
    double margin;                 /* ours: logit of our choice − logit of the trace's */
    double ref_margin;             /* the trace's: its choice − ours; NAN without greedy.logits */
    double true_margin;            /* the arbiter's: our choice − the trace's */
    double distance, ref_distance; /* max |dlogit| from the arbiter; NAN where not known */
} flip;

static lm_status ask_arbiter(lm_judge *j, const lm_trace_case *c, flip *f, lm_error *err) {
    uint32_t vocab = j->e->program->vocab;
    uint64_t at;
    double *truth = lm_calloc(vocab, sizeof *truth);
    if (!truth) return lm_fail_nomem(err, "a row of logits", vocab * sizeof *truth);
    lm_status st = LM_OK;
    if (j->f64)
        memcpy(truth, j->last, vocab * sizeof *truth); /* it is its own */
    else
        st = lm_judge_truth(j, c, "f64", c->n - 1 + f->step, truth, err);
    if (st == LM_OK) {
        f->true_margin = truth[f->ours] - truth[f->ref];
        f->distance = lm_max_diff(j->last, truth, vocab, &at);
        if (c->greedy_logits) {
            lm_tensor_row_f64(c->greedy_logits, f->step, j->ref);
            f->ref_distance = lm_max_diff(j->ref, truth, vocab, &at);
        }
    }
    lm_free(truth);
    return st;
}

static const char *describe_flip(lm_judge *j, const flip *f) {
    const char *head = lm_say(j->l, "step %u: we choose %u, the trace %u; our margin %.3g", f->step, f->ours, f->ref, f->margin);
    if (!isnan(f->ref_margin)) head = lm_say(j->l, "%s, the trace's %.3g", head, f->ref_margin);
    /* two engines, each off by no more than rounding allows, can disagree on no more than twice that */
    double envelope = j->t->noise > 0 ? 2 * lm_logit_bound(j->t) : 1e-3;
    const char *sides = f->true_margin > 0 ? "for ours" : f->true_margin < 0 ? "for the trace's" : "a tie";
    const char *far = isnan(f->ref_distance) ? "" : lm_say(j->l, ", the trace %.3g", f->ref_distance);
    return lm_say(j->l, "%s; the arbiter's margin %.3g %s; from the arbiter: ours %.3g%s; %s (rounding explains %.3g)", head,
                  fabs(f->true_margin), sides, f->distance, far, fabs(f->true_margin) <= envelope ? "a near-tie" : "not a near-tie",
                  envelope);
}

static lm_status judge_flip(lm_judge *j, const lm_trace_case *c, const char *section, flip *f, lm_error *err) {
    const char *measured = lm_say(j->l, "%u of %u equal", f->step, c->n_greedy), *note;
    f->ref_margin = f->true_margin = f->distance = f->ref_distance = NAN;
    if (f->ours == LM_NO_ID) {
        note = lm_say(j->l, "step %u: our logits are not finite", f->step);
    } else {
        f->margin = j->last[f->ours] - j->last[f->ref];
        if (c->greedy_logits) {
            lm_tensor_row_f64(c->greedy_logits, f->step, j->ref);
            f->ref_margin = j->ref[f->ref] - j->ref[f->ours];
        }
        LM_TRY(ask_arbiter(j, c, f, err));
        note = describe_flip(j, f);
    }
    return lm_judge_claim(j, c, section, LM_REFUTED, "greedy continuation", "equal, token for token", measured, note, err);
}

/* ---- greedy: the bare arg-max run. j->last holds the prompt's last row, the session the prompt. ----------------------------------------
 */
lm_status lm_judge_greedy(lm_judge *j, const lm_trace_case *c, const char *section, lm_session *s, lm_error *err) {
    char stage[48];
    uint32_t vocab = j->e->program->vocab, step = 0;
    lm_worst worst = {0};
    flip f = {0};
    snprintf(stage, sizeof stage, "case %u: greedy", c->k);
    for (; step < c->n_greedy; step++) {
        if (step) LM_TRY(lm_judge_append(j, s, &c->greedy[step - 1], 1, 0, j->last, err));
        if (!lm_judge_progress(j, stage, step + 1, c->n_greedy)) return lm_fail(err, LM_INTERRUPTED, "interrupted");
        if (c->greedy_logits && !isnan(worst.value)) {
            uint64_t at;
            lm_tensor_row_f64(c->greedy_logits, step, j->ref);
            double d = lm_max_diff(j->last, j->ref, vocab, &at);
            if (isnan(d) || d > worst.value)
                worst = (lm_worst){.value = d, .at = (uint32_t)at, .position = c->n - 1 + step, .ours = j->last[at], .ref = j->ref[at]};
        }
        uint32_t best = lm_argmax_row(j->last, vocab);
        if (best == (uint32_t)c->greedy[step]) continue;
        f = (flip){.step = step, .ours = best, .ref = (uint32_t)c->greedy[step]};
        break;
    }
    bool flipped = step < c->n_greedy;
    if (flipped)
        LM_TRY(judge_flip(j, c, section, &f, err));
    else
        LM_TRY(lm_judge_claim(j, c, section, LM_PROVEN, "greedy continuation", "equal, token for token",
                              lm_say(j->l, "%u of %u equal", c->n_greedy, c->n_greedy), NULL, err));
    if (!c->greedy_logits) return LM_OK;
    double bound = lm_logit_bound(j->t);
    bool ok = worst.value <= bound;
    lm_claim claim = {.verdict = ok ? LM_PROVEN : LM_REFUTED,
                      .section = section,
                      .bound = lm_say(j->l, "<= %.3g", bound),
                      .measured = lm_say(j->l, "%.3g at step %u, id %u", worst.value, worst.position - (c->n - 1), worst.at),
                      .note = flipped ? "up to the step where the continuations part" : NULL,
                      .measure = LM_MEASURE_DIFFERENCE,
                      .value = worst.value,
                      .limit = bound};
    if (!ok) LM_TRY(lm_judge_nearer(j, c, LM_DISPUTED_GREEDY, &worst, bound, &claim, err));
    return lm_judge_add(j, c, "max |dlogit|, greedy", claim, err);
}

/* ---- through the cache, against no cache
 * --------------------------------------------------------------------------------------------------- */
enum { MIN_LENGTHS = 5, MAX_LENGTHS = 6, LONGEST_PREFIX = 64 };

/* Up to six prefix lengths of n tokens, ascending, all different: all of a few, else 1, 2, the thirds, n − 1, n. */
static uint32_t pick_lengths(uint32_t n, uint32_t out[MAX_LENGTHS]) {
    uint32_t want[MAX_LENGTHS] = {1, 2, n / 3, 2 * (n / 3), n - 1, n}, have = 0;
    for (uint32_t i = 0; n <= MAX_LENGTHS && i < MAX_LENGTHS; i++) want[i] = i + 1;
    for (uint32_t i = 0; i < MAX_LENGTHS; i++)
        if (want[i] > (have ? out[have - 1] : 0) && want[i] <= n) out[have++] = want[i];
    return have;
}

typedef struct prefixes {
    const int32_t *id;
    uint32_t length[MAX_LENGTHS], n;
    double worst, ours, fresh; /* the worst difference, and where */
    uint32_t at_length, at_id;
    bool differs;
} prefixes;

static lm_status compare_prefixes(lm_judge *j, prefixes *p, lm_session *cached, lm_error *err) {
    uint32_t vocab = j->e->program->vocab;
    for (uint32_t i = 0; i < p->n; i++) {
        uint32_t from = i ? p->length[i - 1] : 0;
        uint64_t at;
        lm_session *fresh = NULL;
        LM_TRY(lm_judge_append(j, cached, p->id + from, p->length[i] - from, 0, j->ours, err));
        LM_TRY(lm_session_create(j->e, p->length[i], &fresh, err));
        lm_status st = lm_judge_append(j, fresh, p->id, p->length[i], 0, j->ref, err);
        lm_session_free(fresh);
        LM_TRY(st);
        double d = lm_max_diff(j->ours, j->ref, vocab, &at);
        if (memcmp(j->ours, j->ref, vocab * sizeof *j->ref)) p->differs = true; /* −0 and 0 too */
        if (!isnan(p->worst) && (isnan(d) || d > p->worst)) {
            p->worst = d;
            p->at_length = p->length[i];
            p->at_id = (uint32_t)at;
            p->ours = j->ours[at];
            p->fresh = j->ref[at];
        }
    }
    return LM_OK;
}

/* The prompt goes on into its greedy continuation where it is too short for five lengths. Long prompts: their first 64 tokens. */
lm_status lm_judge_cacheless(lm_judge *j, const lm_trace_case *c, lm_error *err) {
    uint32_t n = c->n + (c->n < LONGEST_PREFIX ? c->n_greedy : 0);
    if (n > LONGEST_PREFIX) n = LONGEST_PREFIX;
    int32_t id[LONGEST_PREFIX];
    prefixes p = {.id = id};
    lm_session *cached = NULL;
    for (uint32_t i = 0; i < n; i++) id[i] = i < c->n ? c->ids[i] : c->greedy[i - c->n];
    p.n = pick_lengths(n, p.length);
    if (p.n < MIN_LENGTHS)
        return lm_judge_claim(j, c, "G1", LM_OPEN, "prefill through the cache", "five lengths or more", NULL,
                              "needs a case of five tokens or more, its continuation included", err);
    LM_TRY(lm_session_create(j->e, j->o->run.chunk, &cached, err));
    lm_status st = compare_prefixes(j, &p, cached, err);
    lm_session_free(cached);
    LM_TRY(st);
    bool bits = j->e->backend->exact && !j->f64, ok = bits ? !p.differs && !isnan(p.worst) : p.worst <= 1e-4;
    const char *note =
        ok ? NULL : lm_say(j->l, "length %u, id %u: through the cache %.9g, without %.9g", p.at_length, p.at_id, p.ours, p.fresh);
    /* no gate of the trace's: lemma is held against itself */
    lm_claim claim = {.verdict = ok ? LM_PROVEN : LM_REFUTED,
                      .section = "G1",
                      .name = lm_say(j->l, "c%u prefill through the cache", c->k),
                      .bound = bits ? "0, bit for bit" : "<= 1e-4",
                      .measured = lm_say(j->l, "%.3g over %u lengths up to %u", p.worst, p.n, n),
                      .witness = j->trace_path,
                      .sha256 = j->t->sha256,
                      .note = note};
    return lm_ledger_add(j->l, &claim, err);
}
