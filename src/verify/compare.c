/* The numbers behind the gates: double precision, one plain loop each. */
#include "verify/verify.h"
#include <math.h>
#include <string.h>

void lm_rows_f64(const lm_rows *r, uint32_t i, double *dst) {
    size_t first = (size_t)i * r->width;
    if (r->is_f64) {
        memcpy(dst, (const double *)r->data + first, r->width * sizeof *dst);
        return;
    }
    const float *src = (const float *)r->data + first;
    for (uint32_t k = 0; k < r->width; k++) dst[k] = src[k];
}

bool lm_finite(const double *x, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return false;
    return true;
}

double lm_cosine(const double *a, const double *b, uint64_t n) {
    double ab = 0, aa = 0, bb = 0, big = 0;
    if (!lm_finite(a, n) || !lm_finite(b, n)) return NAN;
    for (uint64_t i = 0; i < n; i++) big = fmax(big, fmax(fabs(a[i]), fabs(b[i])));
    if (big == 0) return 1; /* two zero vectors are the same vector */
    for (uint64_t i = 0; i < n; i++) {
        double x = a[i] / big, y = b[i] / big; /* huge values don't overflow */
        ab += x * y;
        aa += x * x;
        bb += y * y;
    }
    return aa == 0 || bb == 0 ? 0 : ab / (sqrt(aa) * sqrt(bb));
}

double lm_max_diff(const double *a, const double *b, uint64_t n, uint64_t *at) {
    double worst = 0;
    *at = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i])) {
            *at = i;
            return NAN;
        }
        double d = fabs(a[i] - b[i]);
        if (d > worst) {
            worst = d;
            *at = i;
        }
    }
    return worst;
}

uint32_t lm_argmax_row(const double *x, uint32_t n) {
    uint32_t best = 0;
    if (!n || !lm_finite(x, n)) return LM_NO_ID;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

double lm_log_sum_exp(const double *x, uint32_t n) {
    uint32_t best = lm_argmax_row(x, n);
    if (best == LM_NO_ID) return NAN;
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += exp(x[i] - x[best]);
    return x[best] + log(sum);
}

void lm_top_row(const double *x, uint32_t n, uint32_t k, int32_t *ids) {
    uint32_t have = 0;
    for (uint32_t i = 0; i < n && k; i++) {
        if (have == k && x[i] <= x[ids[k - 1]]) continue; /* a later equal loses: its id is higher */
        uint32_t at = have < k ? have++ : k - 1;
        for (; at && x[ids[at - 1]] < x[i]; at--) ids[at] = ids[at - 1];
        ids[at] = (int32_t)i;
    }
}
