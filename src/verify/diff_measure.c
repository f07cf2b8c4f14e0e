/* What is measured between rows: distances against bands, tokens against margins. */
#include "verify/diff.h"
#include <float.h>
#include <math.h>
#include <string.h>

lm_dist lm_distance(const double *a, const double *b, uint32_t n) {
    double sum = 0, max = 0;
    for (uint32_t i = 0; i < n; i++) {
        double d = fabs(a[i] - b[i]);
        if (!isfinite(a[i]) || !isfinite(b[i])) return (lm_dist){INFINITY, INFINITY};
        sum += d * d;
        max = d > max ? d : max;
    }
    return (lm_dist){sqrt(sum), max};
}

static double share(double err, double noise) { return err <= FLT_MIN ? 0 : err / (LM_BAND * noise); /* noise 0: infinite */ }
double lm_share(lm_dist err, lm_dist noise) {
    if (isinf(noise.l2)) return isinf(err.l2) ? INFINITY : 0; /* a sample chose differently: anything may follow */
    return fmax(share(err.l2, noise.l2), share(err.max, noise.max));
}

void lm_diff_drift(lm_diff_tap *t, int side, lm_dist err, lm_dist noise, double size, uint32_t position) {
    const double r = lm_share(err, noise);
    if (!t->s[side].rows++ || r > t->s[side].ratio) {
        t->s[side].ratio = r;
        t->s[side].at = position;
    }
    if (!(size > 0)) return;
    t->s[side].drift = fmax(t->s[side].drift, err.l2 / size);
    if (isfinite(noise.l2)) t->s[side].band = fmax(t->s[side].band, LM_BAND * noise.l2 / size);
}

void lm_diff_local(lm_diff_tap *t, int side, lm_dist err, lm_dist noise, double size, uint32_t position, double r) {
    if (!t->s[side].replayed++ || r > t->s[side].local) {
        t->s[side].local = r;
        t->s[side].local_at = position;
        t->s[side].err = size > 0 ? err.l2 / size : err.l2;
        t->s[side].allowed = size > 0 ? LM_BAND * noise.l2 / size : LM_BAND * noise.l2;
    }
}

/* ---- A and B ------------------------------------------------------------------------------------------------------------------------- */
static uint32_t ulp_bin(float a, float b) {
    static const uint32_t to[] = {0, 1, 3, 15, 255, 4095, 65535};
    int32_t x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    if (a != a || b != b) return 7;
    const int64_t i = x < 0 ? -(int64_t)(x & INT32_MAX) : x, j = y < 0 ? -(int64_t)(y & INT32_MAX) : y, d = i > j ? i - j : j - i;
    for (uint32_t k = 0; k < 7; k++)
        if (d <= to[k]) return k;
    return 7;
}

void lm_diff_pair(lm_diff_tap *t, const float *a, const float *b, const double *xa, const double *xb, uint32_t n, uint32_t position) {
    double size = 0;
    const lm_dist d = lm_distance(xa, xb, n);
    const double cosine = lm_cosine(xa, xb, n);
    for (uint32_t i = 0; i < n; i++) {
        t->ulp[ulp_bin(a[i], b[i])]++;
        size += xb[i] * xb[i];
    }
    if (!t->both++) t->cosine = 1;
    if (isnan(cosine) || cosine < t->cosine) {
        t->cosine = cosine;
        t->cosine_at = position;
    }
    if (d.max > t->max_abs) {
        t->max_abs = d.max;
        t->max_at = position;
    }
    if (size > 0) t->rel = fmax(t->rel, d.l2 / sqrt(size));
}

/* ---- tokens ---------------------------------------------------------------------------------------------------------------------------
 */
static uint32_t second_of(const double *x, uint32_t n, uint32_t best) {
    uint32_t at = LM_NO_ID;
    for (uint32_t i = 0; i < n; i++)
        if (i != best && (at == LM_NO_ID || x[i] > x[at])) at = i;
    return at;
}

/* How far rounding can move the difference of two logits: as the samples moved this one, or the spread of what they did to all. */
static double reach(const double *truth, const double *const *sample, uint32_t n_samples, uint32_t vocab, uint32_t i, uint32_t j) {
    double most = 0, spread = 0;
    for (uint32_t k = 0; k < n_samples; k++) {
        double mean = 0, var = 0;
        for (uint32_t v = 0; v < vocab; v++) mean += sample[k][v] - truth[v];
        mean /= vocab;
        for (uint32_t v = 0; v < vocab; v++) {
            double d = sample[k][v] - truth[v] - mean;
            var += d * d;
        }
        spread = fmax(spread, sqrt(2 * var / vocab));
        if (j != LM_NO_ID) most = fmax(most, fabs((sample[k][i] - truth[i]) - (sample[k][j] - truth[j])));
    }
    return fmax(LM_REACH * spread, LM_BAND / 2 * most);
}

/* KL(B‖A), and the largest difference over the 64 best of the reference. */
static void compare_logits(const double *a, const double *b, uint32_t vocab, lm_diff_row *r) {
    enum { TOP = 64 };
    int32_t top[TOP];
    const double la = lm_log_sum_exp(a, vocab), lb = lm_log_sum_exp(b, vocab);
    if (isnan(la) || isnan(lb)) return;
    const uint32_t n = vocab < TOP ? vocab : TOP;
    double kl = 0;
    for (uint32_t v = 0; v < vocab; v++) {
        double lp = b[v] - lb;
        kl += exp(lp) * (lp - (a[v] - la));
    }
    r->kl = fmax(kl, 0);
    r->dlogprob = -1;
    lm_top_row(b, vocab, n, top);
    for (uint32_t k = 0; k < n; k++) {
        double d = fabs((a[top[k]] - la) - (b[top[k]] - lb));
        if (d > r->dlogprob) {
            r->dlogprob = d;
            r->dlogprob_id = (uint32_t)top[k];
        }
    }
}

/* The reference's listed few against the other side's logits. A server says no more than that: its KL is over
 * those few and the rest taken together, which is at most the whole. */
static void compare_listed(const double *x, const lm_side *s, uint32_t position, uint32_t vocab, double *lp, lm_diff_row *r) {
    const lm_trace_case *c = s->c;
    const double lse = lm_log_sum_exp(x, vocab), flip = s->letter == 'B' ? 1 : -1; /* KL(B‖A): whose probabilities weigh */
    double kl = 0, mine = 0, theirs = 0;
    if (isnan(lse)) return;
    lm_tensor_row_f64(c->top_logprobs, position, lp);
    r->dlogprob = -1;
    for (uint32_t k = 0; k < c->n_top; k++) {
        const uint32_t id = (uint32_t)c->top_ids[(size_t)position * c->n_top + k];
        const double own = x[id] - lse, d = fabs(own - lp[k]);
        mine += exp(own);
        theirs += exp(lp[k]);
        kl += exp(flip > 0 ? lp[k] : own) * flip * (lp[k] - own);
        if (d > r->dlogprob) {
            r->dlogprob = d;
            r->dlogprob_id = id;
        }
    }
    if (!s->is_server) return;
    const double p = 1 - (flip > 0 ? theirs : mine), q = 1 - (flip > 0 ? mine : theirs);
    if (p > 1e-6 && q > 1e-6) kl += p * log(p / q); /* below that, what float32 left of the sums is noise */
    r->kl = fmax(kl, 0);
}

static bool lists(const lm_side *s, uint32_t position) { return s->c && s->c->top_logprobs && position < s->c->n; }

/* For a token that the sides dispute: each side's best few, and the arbiter's. */
static void keep_best(const lm_diff *d, lm_diff_row *r, uint32_t position, const double *const x[3], double *scratch) {
    const uint32_t vocab = d->p->vocab;
    lm_diff_best *best = d->arena && lm_diff_disputed(r) ? lm_arena_calloc(d->arena, 3, sizeof *best) : NULL;
    r->best = best; /* out of memory: they are not shown */
    for (int s = 0; s < 3 && best; s++) {
        int32_t id[LM_BEST];
        const lm_trace_case *c = s < 2 ? d->side[s].c : NULL;
        const double lse = x[s] ? lm_log_sum_exp(x[s], vocab) : NAN;
        if (!isnan(lse)) {
            best[s].n = vocab < LM_BEST ? vocab : LM_BEST;
            lm_top_row(x[s], vocab, best[s].n, id);
        } else if (!x[s] && c && lists(&d->side[s], position)) {
            best[s].n = c->n_top < LM_BEST ? c->n_top : LM_BEST;
            memcpy(id, c->top_ids + (size_t)position * c->n_top, best[s].n * sizeof *id);
            lm_tensor_row_f64(c->top_logprobs, position, scratch);
        }
        for (uint32_t i = 0; i < best[s].n; i++) {
            best[s].id[i] = (uint32_t)id[i];
            best[s].logprob[i] = x[s] ? x[s][id[i]] - lse : scratch[i];
        }
    }
}

void lm_diff_choices(const lm_diff *d, lm_diff_row *r, uint32_t position, const double *const x[2], const double *truth,
                     const double *const *const sample[2], uint32_t n, double *scratch) {
    const uint32_t vocab = d->p->vocab, best = lm_argmax_row(truth, vocab);
    r->top[2] = best;
    r->runner_up = second_of(truth, vocab, best);
    r->margin[2] = best == LM_NO_ID || r->runner_up == LM_NO_ID ? NAN : truth[best] - truth[r->runner_up];
    for (int s = 0; s < 2; s++) {
        const lm_side *side = &d->side[s];
        if (!side->spec) continue;
        const uint32_t top = r->top[s] = lm_side_choice(d, side, position, x[s]);
        uint64_t at;
        if (x[s]) {
            const uint32_t second = second_of(x[s], vocab, top);
            r->margin[s] = top == LM_NO_ID || second == LM_NO_ID ? NAN : x[s][top] - x[s][second];
            r->distance[s] = lm_max_diff(x[s], truth, vocab, &at);
        } else if (lists(side, position) && side->c->n_top > 1) {
            lm_tensor_row_f64(side->c->top_logprobs, position, scratch);
            r->margin[s] = scratch[0] - scratch[1];
        }
        if (best == LM_NO_ID) continue;
        r->deficit[s] = top == LM_NO_ID ? NAN : truth[best] - truth[top];
        r->reach[s] = reach(truth, sample[s], n, vocab, best, top != LM_NO_ID && top != best ? top : r->runner_up);
    }
    if (x[0] && x[1])
        compare_logits(x[0], x[1], vocab, r);
    else if (x[0] && d->side[1].spec && lists(&d->side[1], position))
        compare_listed(x[0], &d->side[1], position, vocab, scratch, r);
    else if (x[1] && lists(&d->side[0], position))
        compare_listed(x[1], &d->side[0], position, vocab, scratch, r);
    keep_best(d, r, position, (const double *const[]){x[0], x[1], truth}, scratch);
}

void lm_diff_top(const lm_diff *d, const lm_side *s, lm_diff_tap *t, uint32_t position, const double *truth, const double *const *sample,
                 uint32_t n) {
    enum { MOST = 256 };
    double own[MOST], want[MOST], other[MOST], size = 0;
    const lm_trace_case *c = s->c;
    const uint32_t vocab = d->p->vocab, listed = lists(s, position) && c->n_top <= MOST ? c->n_top : 0;
    const double lse = lm_log_sum_exp(truth, vocab);
    if (!listed || isnan(lse)) return;
    const int32_t *id = c->top_ids + (size_t)position * c->n_top;
    lm_dist noise = {0, 0};
    lm_tensor_row_f64(c->top_logprobs, position, own);
    for (uint32_t k = 0; k < listed; k++) {
        want[k] = truth[id[k]] - lse;
        size += want[k] * want[k];
    }
    for (uint32_t i = 0; i < n; i++) {
        const double l = lm_log_sum_exp(sample[i], vocab);
        for (uint32_t k = 0; k < listed; k++) other[k] = sample[i][id[k]] - l;
        const lm_dist e = lm_distance(other, want, listed);
        noise.l2 = fmax(noise.l2, e.l2);
        noise.max = fmax(noise.max, e.max);
    }
    lm_diff_drift(t, s->letter - 'A', lm_distance(own, want, listed), noise, sqrt(size), position);
}

bool lm_diff_near_tie(const lm_diff_row *r, int side) {
    return r->top[side] != LM_NO_ID && r->top[side] != r->top[2] && r->deficit[side] <= r->reach[side];
}
