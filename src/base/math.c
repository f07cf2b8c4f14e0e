#include "base/math.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

static double power_of_two(int n) { /* −1022 ≤ n ≤ 1023 */
    uint64_t bits = (uint64_t)(n + 1023) << 52;
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

static inline __attribute__((always_inline)) double exp_of(double x) {
    if (x != x) return x;
    if (x > 709.8) return INFINITY;
    if (x < -745.2) return 0;
    /* x = n·ln 2 + r, |r| ≤ ln 2 / 2, ln 2 in two parts; adding 1.5·2^52 rounds to an integer */
    double n = fma(x, 0x1.71547652b82fep+0, 0x1.8p52) - 0x1.8p52;
    double r = fma(n, -0x1.62e42fefa39efp-1, x);
    r = fma(n, -0x1.abc9e3b39803fp-56, r);
    /* Taylor's series to r^13: what is left out is under 2^-57 */
    double p = 1.0 / 6227020800;
    p = fma(p, r, 1.0 / 479001600);
    p = fma(p, r, 1.0 / 39916800);
    p = fma(p, r, 1.0 / 3628800);
    p = fma(p, r, 1.0 / 362880);
    p = fma(p, r, 1.0 / 40320);
    p = fma(p, r, 1.0 / 5040);
    p = fma(p, r, 1.0 / 720);
    p = fma(p, r, 1.0 / 120);
    p = fma(p, r, 1.0 / 24);
    p = fma(p, r, 1.0 / 6);
    p = fma(p, r, 0.5);
    p = fma(p * r, r, r) + 1;
    /* 2^n in two factors, so that a subnormal result is rounded once and n = 1024 is reached */
    int k = (int)n, half = k / 2;
    return p * power_of_two(half) * power_of_two(k - half);
}

#if defined(__x86_64__)
/* The same operations, the fused ones as instructions instead of calls: a sampler takes an exponential for every id. */
__attribute__((target("fma"))) static double exp_fma(double x) { return exp_of(x); }
double lm_exp(double x) { return __builtin_cpu_supports("fma") ? exp_fma(x) : exp_of(x); }
#else
double lm_exp(double x) { return exp_of(x); }
#endif
