/* Distances between distributions: double precision, one plain loop each, summed in the order of ids and positions. */
#include "verify/quality.h"
#include "base/mem.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

double lm_shares(const double *own, uint32_t vocab, double *e) {
    double max = -INFINITY, sum = 0;
    for (uint32_t v = 0; v < vocab; v++) {
        if (!isfinite(own[v])) return NAN;
        max = own[v] > max ? own[v] : max;
    }
    for (uint32_t v = 0; v < vocab; v++) sum += e[v] = exp(own[v] - max);
    for (uint32_t v = 0; v < vocab; v++) e[v] /= sum;
    return vocab ? max + log(sum) : NAN;
}

static uint32_t best_of(const double *x, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t v = 1; v < n; v++)
        if (x[v] > x[best]) best = v;
    return best;
}

static void take_dlogprob(lm_apart *a, double lp, double lq, uint32_t id) {
    const double d = fabs(lp - lq);
    if (d > a->dlogprob || a->dlogprob_id == UINT32_MAX) {
        a->dlogprob = d;
        a->dlogprob_id = id;
    }
}

/* p's LM_QUALITY_TOP best ids, equal ones in id order. */
static uint32_t best_ids(const double *x, uint32_t n, uint32_t *id) {
    uint32_t have = 0;
    for (uint32_t v = 0; v < n; v++) {
        if (have == LM_QUALITY_TOP && x[v] <= x[id[have - 1]]) continue;
        uint32_t at = have < LM_QUALITY_TOP ? have++ : have - 1;
        for (; at && x[id[at - 1]] < x[v]; at--) id[at] = id[at - 1];
        id[at] = v;
    }
    return have;
}

bool lm_apart_whole(const double *ref, const double *own, double lse, uint32_t vocab, double *p, lm_apart *out) {
    uint32_t id[LM_QUALITY_TOP] = {0};
    const double lse_p = lm_shares(ref, vocab, p);
    if (isnan(lse_p) || isnan(lse)) return false;
    double kl = 0;
    for (uint32_t v = 0; v < vocab; v++)
        if (p[v] > 0) kl += p[v] * ((ref[v] - lse_p) - (own[v] - lse));
    const uint32_t n = best_ids(ref, vocab, id);
    *out = (lm_apart){.kl = fmax(kl, 0), .dlogprob_id = UINT32_MAX, .top = {id[0], best_of(own, vocab)}};
    for (uint32_t i = 0; i < n; i++) take_dlogprob(out, ref[id[i]] - lse_p, own[id[i]] - lse, id[i]);
    return true;
}

/* p·log(p/q) − p + q: the sum over all is the KL divergence, and no term is negative, so that rounded log-probabilities (which don't sum
 * to one) don't make a difference where there is none. */
static double term(double p, double lp, double q, double lq) { return p > 0 ? fmax(p * (lp - lq) - p + q, 0) : q; }

bool lm_apart_listed(const lm_listed *ref, const double *own, double lse, uint32_t vocab, double *e, lm_apart *out) {
    double kl = 0, listed = 0, q_rest = 0;
    if (isnan(lse) || !ref->n) return false;
    *out = (lm_apart){.dlogprob_id = UINT32_MAX, .top = {(uint32_t)ref->id[0], best_of(own, vocab)}};
    for (uint32_t i = 0; i < ref->n; i++) {
        const uint32_t id = (uint32_t)ref->id[i];
        const double lp = ref->lp[i], p = exp(lp);
        if (id >= vocab || e[id] < 0 || !isfinite(lp)) return false;
        kl += term(p, lp, e[id], own[id] - lse);
        listed += p;
        e[id] = -1; /* seen */
        if (i < LM_QUALITY_TOP) take_dlogprob(out, lp, own[id] - lse, id);
    }
    const double rest = ref->n == vocab ? 0 : isnan(ref->rest) ? fmax(1 - listed, 0) : exp(ref->rest);
    if (!(fabs(listed + rest - 1) < 1e-3)) return false;
    for (uint32_t v = 0; v < vocab; v++) q_rest += e[v] > 0 ? e[v] : 0;
    if (ref->n < vocab) {
        out->rest = rest;
        if (rest > 0 && !(q_rest > 0)) return false;
        kl += term(rest, log(rest), q_rest, log(q_rest));
    }
    out->kl = kl;
    return isfinite(kl);
}

/* ---- over positions -------------------------------------------------------------------------------------------------------------- */
lm_status lm_quality_add(lm_quality *q, const lm_apart *a, uint32_t k, uint32_t position, lm_error *err) {
    if (q->n == q->cap) {
        const uint64_t cap = q->cap ? 2 * q->cap : 1024;
        double *more = lm_realloc(q->kl, cap * sizeof *more);
        if (!more) return lm_fail_nomem(err, "KL divergences", cap * sizeof *more);
        q->kl = more;
        q->cap = cap;
    }
    if (!q->n || a->kl > q->max_kl) {
        q->max_kl = a->kl;
        q->max_at[0] = k, q->max_at[1] = position;
    }
    if (!q->n || a->dlogprob > q->dlogprob) {
        q->dlogprob = a->dlogprob;
        q->dlogprob_id = a->dlogprob_id;
        q->dlogprob_at[0] = k, q->dlogprob_at[1] = position;
    }
    q->kl[q->n++] = a->kl;
    q->same += a->top[0] == a->top[1];
    q->rest += a->rest;
    return LM_OK;
}

void lm_quality_free(lm_quality *q) {
    lm_free(q->kl);
    *q = (lm_quality){0};
}

lm_mean lm_mean_of(double sum, double sum_squares, uint64_t n) {
    if (!n) return (lm_mean){NAN, NAN, 0};
    const double mean = sum / (double)n, var = fmax(sum_squares / (double)n - mean * mean, 0);
    return (lm_mean){mean, n > 1 ? sqrt(var / (double)(n - 1)) : NAN, n};
}

lm_mean lm_quality_kl(const lm_quality *q) {
    double sum = 0, squares = 0;
    for (uint64_t i = 0; i < q->n; i++) {
        sum += q->kl[i];
        squares += q->kl[i] * q->kl[i];
    }
    return lm_mean_of(sum, squares, q->n);
}

lm_mean lm_quality_top1(const lm_quality *q) { return lm_mean_of((double)q->same, (double)q->same, q->n); }

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

lm_status lm_quality_quantiles(const lm_quality *q, const double *share, uint32_t n, double *out, lm_error *err) {
    for (uint32_t i = 0; i < n; i++) out[i] = NAN;
    if (!q->n) return LM_OK;
    double *x = lm_malloc(q->n * sizeof *x);
    if (!x) return lm_fail_nomem(err, "sorted KL divergences", q->n * sizeof *x);
    memcpy(x, q->kl, q->n * sizeof *x);
    qsort(x, q->n, sizeof *x, by_value);
    for (uint32_t i = 0; i < n; i++) {
        const double at = ceil(share[i] * (double)q->n);
        out[i] = x[at < 1 ? 0 : at > (double)q->n ? q->n - 1 : (uint64_t)at - 1];
    }
    lm_free(x);
    return LM_OK;
}
