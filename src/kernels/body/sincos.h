/* sin and cos of x in double, |x| up to 2^30, included by each level: Cody–Waite reduction by π/2 in three parts with fused steps (exact by IEEE, so the same bits on every CPU), then the
 * Taylor polynomials on |r| ≤ π/4, whose first dropped terms are below 2^-57. */
#include <math.h>

static inline void lm_sincos(double x, double *s, double *c) {
    const double magic = 0x1.8p52; /* adding it rounds to an integer, to nearest even */
    double n = fma(x, 0x1.45f306dc9c883p-1, magic) - magic;
    double r = fma(n, -0x1.921fb54442d18p+0, x);
    r = fma(n, -0x1.1a62633145c07p-54, r);
    r = fma(n, 0x1.f1976b7ed8fbcp-110, r);
    const double z = r * r;
    static const double S[] = {-1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800, 1.0 / 6227020800.0, -1.0 / 1307674368000.0,
                               1.0 / 355687428096000.0};
    static const double C[] = {1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800, 1.0 / 479001600, -1.0 / 87178291200.0, 1.0 / 20922789888000.0,
                               -1.0 / 6402373705728000.0};
    double p = S[7], q = C[7];
    for (int i = 6; i >= 0; i--) p = fma(p, z, S[i]), q = fma(q, z, C[i]);
    const double sn = fma(r * z, p, r), cs = fma(z * z, q, fma(-0.5, z, 1.0));
    switch ((int64_t)n & 3) {
    case 0: *s = sn, *c = cs; break;
    case 1: *s = cs, *c = -sn; break;
    case 2: *s = -sn, *c = -cs; break;
    default: *s = -cs, *c = sn;
    }
}
