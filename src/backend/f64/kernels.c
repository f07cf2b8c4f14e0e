/* The arbiter's inner loops. Vectors of the compiler, so that any CPU and any width give the same lanes; a product and a sum are two
 * roundings (the build forbids contraction). */
#include "backend/f64/f64.h"
#include <math.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("avx2", "default")))
#else
#define CLONES
#endif

typedef double v4 __attribute__((vector_size(32), aligned(8), may_alias));
#define PARTS 4 /* v4 in LM_F64_LANES */

#define TILE 3 /* input rows that share a weight's load: 3 × 4 sums fit 16 registers */

/* n_x is a constant wherever this is inlined. */
static inline __attribute__((always_inline)) void tile(const double *w, const double *const *x, const int n_x, size_t n, double *out,
                                                       size_t out_stride) {
    v4 sum[TILE][PARTS];
    for (int t = 0; t < n_x; t++)
        for (int k = 0; k < PARTS; k++) sum[t][k] = (v4){0};
    size_t i = 0;
    for (; i + LM_F64_LANES <= n; i += LM_F64_LANES)
#pragma GCC unroll 4
        for (int k = 0; k < PARTS; k++) {
            const v4 a = *(const v4 *)(w + i + 4 * k);
#pragma GCC unroll 3
            for (int t = 0; t < n_x; t++) sum[t][k] += a * *(const v4 *)(x[t] + i + 4 * k);
        }
#pragma GCC unroll 3
    for (int t = 0; t < n_x; t++) {
        double s[LM_F64_LANES];
        memcpy(s, sum[t], sizeof s);
        for (size_t l = 0; i + l < n; l++) s[l] += w[i + l] * x[t][i + l];
        for (int half = LM_F64_LANES / 2; half; half /= 2)
            for (int l = 0; l < half; l++) s[l] += s[l + half];
        out[(size_t)t * out_stride] = s[0];
    }
}

CLONES void lm_f64_dots(const double *w, size_t w_stride, uint32_t n_w, const double *const *x, uint32_t n_x, size_t n, double *out,
                        size_t out_stride) {
    uint32_t t = 0;
    for (; t + TILE <= n_x; t += TILE)
        for (uint32_t r = 0; r < n_w; r++) tile(w + r * w_stride, x + t, TILE, n, out + t * out_stride + r, out_stride);
    for (; t < n_x; t++)
        for (uint32_t r = 0; r < n_w; r++) tile(w + r * w_stride, x + t, 1, n, out + t * out_stride + r, out_stride);
}

double lm_f64_dot(const double *a, const double *b, size_t n) {
    double s;
    lm_f64_dots(a, 0, 1, &b, 1, n, &s, 1);
    return s;
}

CLONES void lm_f64_axpy(double *y, double c, const double *x, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] += c * x[i];
}

static double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

double lm_f64_act(lm_act a, double x) {
    switch (a) {
    case LM_ACT_NONE: return x;
    case LM_ACT_SILU: return x * sigmoid(x);
    case LM_ACT_GELU: return 0.5 * x * (1.0 + erf(x * M_SQRT1_2));
    case LM_ACT_GELU_TANH: return 0.5 * x * (1.0 + tanh(M_2_SQRTPI * M_SQRT1_2 * (x + 0.044715 * x * x * x)));
    case LM_ACT_RELU: return x < 0 ? 0 : x;
    case LM_ACT_RELU2: return x < 0 ? 0 : x * x;
    case LM_ACT_SIGMOID: return sigmoid(x);
    case LM_ACT_TANH: return tanh(x);
    case LM_ACT_SOFTPLUS: return (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
    case LM_ACT_SWIGLU_OAI: break; /* two operands: lm_f64_gate */
    }
    return NAN;
}

double lm_f64_gate(lm_act a, double limit, double alpha, double gate, double up) {
    if (a != LM_ACT_SWIGLU_OAI) return lm_f64_act(a, gate) * up;
    if (limit > 0) {
        if (gate > limit) gate = limit;
        if (up > limit) up = limit;
        if (up < -limit) up = -limit;
    }
    return gate * sigmoid(alpha * gate) * (up + 1.0);
}
