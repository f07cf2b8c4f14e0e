/* Lane hf-bf16 against a bfloat16 trace: how closely it is met, and what explains the rest.
 *
 * The lane rounds where transformers rounds, but sums exactly where torch sums in float32, in an order of its own. A sum that lies next to
 * the border between two bfloat16 numbers then falls on the other side, and a deep model amplifies that. How far this alone leads is
 * measured: the lane runs once more with every operand disturbed by what a float32 sum may lose, still rounded at the same points, and is
 * held against itself. */
#include "verify/diff.h"
#include <math.h>
#include <string.h>

static const double TOP1 = 0.8, MEAN = 0.3, TIMES = 2.0;
/* Of fewer positions than FEW the share is reported, not gated: one flip is too much of it. A text shorter than MANY meets so few sums next
 * to a border that luck decides whether the trace, or the disturbed run, has one early: what follows is then reported, too. */
enum { FEW = 32, MANY = 256, ROWS = 256, SEED = 1 };

lm_status lm_judge_met_fits(const lm_judge *j, lm_error *err) {
    const lm_value *how = lm_meta_get(&j->t->file->meta, "attn_implementation"), *lane = lm_meta_get(&j->t->file->meta, "lane");
    const bool own = lane && lane->kind == LM_V_STRING && !strcmp(lane->str.s, "hf-bf16");
    if (!own && strcmp(j->t->dtype, "bfloat16"))
        return lm_fail_at(err, LM_USAGE, j->trace_path, LM_NO_OFFSET, "lane",
                          "hf-bf16 imitates a bfloat16 run of transformers, this trace's dtype is '%.40s': verify it in lane f64",
                          j->t->dtype);
    if (how && how->kind == LM_V_STRING && strcmp(how->str.s, "eager"))
        return lm_fail_at(err, LM_USAGE, j->trace_path, LM_NO_OFFSET, "lane",
                          "hf-bf16 rounds as transformers' eager attention does, this trace was made with '%.40s'", how->str.s);
    return LM_OK;
}

/* ---- the lane against itself ------------------------------------------------------------------------------------------------------ */
typedef struct self {
    const lm_trace_case *c;
    uint32_t vocab, from;
    bool noisy;
    double *top;   /* [n][n_top] undisturbed log-probabilities at the trace's top ids */
    double *row;   /* [vocab] */
    double *saved; /* operands before they were disturbed */
    double sum;
} self;

static bool on_edit(void *ctx, const lm_program *p, const lm_edit *e) {
    self *s = ctx;
    const lm_noise noise = {LM_PREC_F32, SEED, 0};
    const uint32_t at = (uint32_t)(e->op - p->op);
    const lm_val in[4] = {e->op->a, e->op->b, e->op->c, e->op->d};
    double *keep = s->saved;
    if (e->op->kind != LM_OP_LINEAR && e->op->kind != LM_OP_ATTENTION) return true; /* the rest is the same in any order, bit for bit */
    for (uint32_t k = 0; k < 4; k++) {
        bool again = in[k] == LM_NONE;
        for (uint32_t i = 0; i < k; i++) again |= in[i] == in[k];
        if (again) continue;
        const uint32_t width = p->value[in[k]].width;
        for (uint32_t i = 0; i < e->n; i++, keep += width) {
            double *x = e->in[k] + (size_t)i * width;
            if (!e->before) {
                memcpy(x, keep, width * sizeof *x);
                continue;
            }
            memcpy(keep, x, width * sizeof *x);
            lm_noise_operand(&noise, p, at, k, s->from + e->row[i], x);
        }
    }
    return true;
}

static bool on_logits(void *ctx, const lm_rows *rows) {
    self *s = ctx;
    const uint32_t n = s->c->n_top;
    for (uint32_t i = 0; i < rows->n; i++) {
        const uint32_t position = s->from + rows->row[i];
        lm_rows_f64(rows, i, s->row);
        const double lse = lm_log_sum_exp(s->row, s->vocab);
        for (uint32_t k = 0; k < n; k++) {
            double *own = s->top + (size_t)position * n + k, x = s->row[s->c->top_ids[(size_t)position * n + k]] - lse;
            if (s->noisy)
                s->sum += fabs(x - *own);
            else
                *own = x;
        }
    }
    return true;
}

static lm_status pass(lm_judge *j, self *s, const uint8_t *want, lm_error *err) {
    lm_state *state = NULL;
    lm_status st = lm_state_create(j->e->program, j->e->backend->cache(j->e->device), &state, err);
    for (s->from = 0; st == LM_OK && s->from < s->c->n; s->from += ROWS) {
        const uint32_t n = s->c->n - s->from < ROWS ? s->c->n - s->from : ROWS;
        const lm_seq seq = {.state = state, .row0 = 0, .n = n, .pos0 = s->from, .length = s->c->n};
        const lm_batch b = {.n_rows = n, .n_seqs = 1, .id = s->c->ids + s->from, .want = want, .seq = &seq};
        const lm_run run = {.edit = s->noisy ? on_edit : NULL,
                            .edit_ctx = s,
                            .logits = on_logits,
                            .logits_ctx = s,
                            .interrupted = j->eo.interrupted,
                            .interrupted_ctx = j->eo.interrupted_ctx};
        if (!lm_judge_progress(j, "the lane against itself", s->from, s->c->n)) st = lm_fail(err, LM_INTERRUPTED, "interrupted");
        if (st == LM_OK) st = j->e->backend->run(j->e->device, &b, &run, err);
    }
    lm_state_free(state);
    return st;
}

/* The mean |Δlogprob| at the trace's top ids between the lane and the lane with float32's losses put in. */
static lm_status against_itself(lm_judge *j, const lm_trace_case *c, double *mean, lm_error *err) {
    const lm_program *p = j->e->program;
    uint64_t most = 0, cells, saved;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lm_val in[4] = {p->op[i].a, p->op[i].b, p->op[i].c, p->op[i].d};
        uint64_t width = 0;
        for (int k = 0; k < 4; k++) width += in[k] == LM_NONE ? 0 : p->value[in[k]].width;
        most = width > most ? width : most;
    }
    if (!lm_mul(c->n, c->n_top, &cells) || !lm_mul(most, ROWS, &saved)) return lm_fail_nomem(err, "log-probabilities", UINT64_MAX);
    uint8_t want[ROWS];
    self s = {.c = c, .vocab = p->vocab, .top = lm_calloc(cells, sizeof *s.top), .row = lm_calloc(p->vocab, sizeof *s.row),
              .saved = lm_calloc(saved, sizeof *s.saved)};
    lm_status st = s.top && s.row && s.saved ? LM_OK : lm_fail_nomem(err, "log-probabilities", (cells + saved + p->vocab) * sizeof(double));
    memset(want, 1, sizeof want);
    if (st == LM_OK) st = pass(j, &s, want, err);
    s.noisy = true;
    if (st == LM_OK) st = pass(j, &s, want, err);
    *mean = s.sum / (double)cells;
    lm_free(s.top);
    lm_free(s.row);
    lm_free(s.saved);
    return st;
}

/* ---- claims ------------------------------------------------------------------------------------------------------------------------ */
static lm_status claim_top1(const lm_forward *f, lm_error *err) {
    lm_judge *j = f->j;
    const lm_trace_case *c = f->c;
    const bool gated = c->n >= FEW;
    const double share = (double)(c->n - f->flips) / c->n;
    const bool ok = (share >= TOP1 || !gated) && !f->not_finite;
    lm_claim claim = {.verdict = ok ? LM_PROVEN : LM_REFUTED,
                      .section = "G2",
                      .bound = gated ? lm_say(j->l, ">= %g", TOP1) : "reported: few positions",
                      .measured = lm_say(j->l, "%.4f (%u of %u)", share, c->n - f->flips, c->n),
                      .note = f->not_finite ? "our logits are not all finite" : NULL,
                      .measure = LM_MEASURE_AGREEMENT,
                      .value = share,
                      .limit = gated ? TOP1 : 0};
    return lm_judge_add(j, c, "top-1, met in lane hf-bf16", claim, err);
}

static lm_status claim_mean(const lm_forward *f, double mean, lm_error *err) {
    lm_judge *j = f->j;
    const lm_trace_case *c = f->c;
    const bool ok = mean <= MEAN;
    lm_claim claim = {.verdict = ok ? LM_PROVEN : LM_REFUTED,
                      .section = "G2",
                      .bound = lm_say(j->l, "<= %g", MEAN),
                      .measured = lm_say(j->l, "%.4g over %llu", mean, (unsigned long long)c->n * c->n_top),
                      .note = lm_say(j->l, "%u of %u positions equal to the last digit", f->equal, c->n),
                      .measure = LM_MEASURE_DIFFERENCE,
                      .value = mean,
                      .limit = MEAN};
    return lm_judge_add(j, c, "mean |dlogprob|, met in lane hf-bf16", claim, err);
}

static lm_status claim_rest(const lm_forward *f, double mean, lm_error *err) {
    lm_judge *j = f->j;
    const lm_trace_case *c = f->c;
    const bool gated = c->n >= MANY;
    double own;
    LM_TRY(against_itself(j, c, &own, err));
    const bool ok = mean <= TIMES * own || (!gated && isfinite(mean));
    lm_claim claim = {.verdict = ok ? LM_PROVEN : LM_REFUTED,
                      .section = "G2",
                      .bound = gated ? lm_say(j->l, "<= %g x %.4g, the lane against itself under float32's noise", TIMES, own)
                                     : lm_say(j->l, "reported: the lane against itself is at %.4g", own),
                      .measured = lm_say(j->l, "%.4g", mean),
                      .measure = LM_MEASURE_DIFFERENCE,
                      .value = mean,
                      .limit = gated ? TIMES * own : NAN};
    return lm_judge_add(j, c, "what is left is the order of float32 sums", claim, err);
}

lm_status lm_judge_met(const lm_forward *f, lm_error *err) {
    const lm_trace_case *c = f->c;
    if (!lm_forward_has_argmax(c) || !c->top_logprobs || !c->top_ids)
        return lm_judge_claim(f->j, c, "G2", LM_OPEN, "met in lane hf-bf16", "", "", "needs a trace with top.ids and top.logprobs", err);
    const double mean = f->logprob_sum / ((double)c->n * c->n_top);
    LM_TRY(claim_top1(f, err));
    LM_TRY(claim_mean(f, mean, err));
    return claim_rest(f, mean, err);
}
