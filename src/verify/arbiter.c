/* What the arbiter says of a disputed number: its own logits at that position, and how far each side is from them. A bound that is missed
 * stays missed; this says where to look. */
#include "verify/verify.h"
#include <math.h>
#include <stdio.h>

typedef struct one_row {
    double *dst;
    uint32_t width, n;
} one_row;

static bool keep_row(void *ctx, const lm_rows *rows) {
    one_row *o = ctx;
    if (rows->n != 1 || rows->width != o->width) return false;
    lm_rows_f64(rows, 0, o->dst);
    o->n++;
    return true;
}

lm_status lm_judge_append(const lm_judge *j, lm_session *s, const int32_t *id, uint32_t n, uint32_t length, double *dst, lm_error *err) {
    one_row o = {.dst = dst, .width = j->e->program->vocab};
    LM_TRY(lm_session_eval(s, &(lm_eval){.id = id, .n = n, .length = length, .want = LM_WANT_LAST, .logits = keep_row, .logits_ctx = &o},
                           err));
    return o.n == 1 ? LM_OK : lm_fail(err, LM_INTERNAL, "%u rows of logits came for the last position", o.n);
}

/* A row of the prompt is computed as the run under test computed it: the prompt's length announced (longrope). */
lm_status lm_judge_truth(lm_judge *j, const lm_trace_case *c, const char *backend, uint32_t position, double *dst, lm_error *err) {
    lm_engine_options eo = j->eo;
    lm_engine *e = NULL;
    lm_session *s = NULL;
    uint32_t more = position < c->n ? 0 : position - c->n + 1, n = more ? c->n : position + 1, length = more ? c->n + more : c->n;
    eo.backend = backend;
    eo.device = (lm_device_options){.threads = eo.device.threads};
    lm_status st = lm_engine_share(j->e, &eo, &e, err);
    if (st == LM_OK) st = lm_session_create(e, 0, &s, err);
    if (st == LM_OK && more) st = lm_session_eval(s, &(lm_eval){.id = c->ids, .n = n, .length = length, .want = LM_WANT_NONE}, err);
    if (st == LM_OK) st = more ? lm_judge_append(j, s, c->greedy, more, 0, dst, err) : lm_judge_append(j, s, c->ids, n, length, dst, err);
    lm_session_free(s);
    lm_engine_close(e);
    return st;
}

/* ---- a difference that misses its bound --------------------------------------------------------------------------------------------- */
/* The trace's row that `kind` compares at this position, into dst (by id; by place among the top ids for log-probabilities); its length. */
static uint32_t trace_row(const lm_judge *j, const lm_trace_case *c, lm_disputed kind, uint32_t position, double *dst) {
    const lm_tensor *t = kind == LM_DISPUTED_LOGIT     ? c->logits
                         : kind == LM_DISPUTED_LAST    ? c->logits_last
                         : kind == LM_DISPUTED_LOGPROB ? c->top_logprobs
                                                       : c->greedy_logits;
    uint32_t row = kind == LM_DISPUTED_LAST ? 0 : kind == LM_DISPUTED_GREEDY ? position - (c->n - 1) : position;
    lm_tensor_row_f64(t, row, dst);
    return kind == LM_DISPUTED_LOGPROB ? c->n_top : j->e->program->vocab;
}

typedef struct opinion {
    double value;        /* the arbiter's at the disputed id */
    uint32_t beyond, of; /* how many of the trace's numbers in that row are further from the arbiter than the bound */
} opinion;

static lm_status ask(lm_judge *j, const lm_trace_case *c, lm_disputed kind, const char *backend, const lm_worst *w, double bound,
                     opinion *o, lm_error *err) {
    uint32_t vocab = j->e->program->vocab;
    double *truth = lm_calloc(vocab, sizeof *truth);
    if (!truth) return lm_fail_nomem(err, "a row of logits", vocab * sizeof *truth);
    lm_status st = lm_judge_truth(j, c, backend, w->position, truth, err);
    if (st == LM_OK) {
        double lse = kind == LM_DISPUTED_LOGPROB ? lm_log_sum_exp(truth, vocab) : 0;
        *o = (opinion){.value = truth[w->at] - lse, .of = trace_row(j, c, kind, w->position, j->ref)};
        for (uint32_t i = 0; i < o->of; i++) {
            uint32_t id = kind == LM_DISPUTED_LOGPROB ? (uint32_t)c->top_ids[(size_t)w->position * c->n_top + i] : i;
            o->beyond += !(fabs(j->ref[i] - (truth[id] - lse)) <= bound);
        }
    }
    lm_free(truth);
    return st;
}

lm_status lm_judge_nearer(lm_judge *j, const lm_trace_case *c, lm_disputed kind, const lm_worst *w, double bound, lm_claim *claim,
                          lm_error *err) {
    const char *where = lm_say(j->l, "position %u, id %u: ours %.9g, the trace's %.9g", w->position, w->at, w->ours, w->ref);
    claim->note = claim->note ? lm_say(j->l, "%s; %s", claim->note, where) : where;
    if (!isfinite(w->ours) || !isfinite(w->ref)) return LM_OK;
    opinion o = {0};
    /* The arbiter can't judge itself. The fast engine shares the program, but none of the code that computes it. */
    LM_TRY(ask(j, c, kind, j->f64 ? "cpu" : "f64", w, bound, &o, err));
    claim->arbitrated = true;
    claim->ours_off = j->f64 ? 0 : fabs(w->ours - o.value);
    claim->reference_off = fabs(w->ref - (j->f64 ? w->ours : o.value));
    const char *nearer = claim->ours_off < claim->reference_off   ? "ours is nearer"
                         : claim->ours_off > claim->reference_off ? "the reference is nearer"
                                                                  : "neither is nearer";
    if (j->f64) {
        const char *own = j->t->float64_noise > 0
                              ? lm_say(j->l, "; the reference's own float64 run parts from it by up to %.3g", j->t->float64_noise)
                              : "";
        claim->note = lm_say(j->l, "%s; ours is the arbiter itself, the reference is %.3g from it, the cpu engine (lane f32) %.3g%s",
                             claim->note, claim->reference_off, fabs(o.value - w->ours), own);
        return LM_OK;
    }
    claim->note = lm_say(
        j->l, "%s; the arbiter's %.9g: the reference is %.3g from it, ours %.3g: %s; %u of the reference's %u there are beyond the bound",
        claim->note, o.value, claim->reference_off, claim->ours_off, nearer, o.beyond, o.of);
    return LM_OK;
}
