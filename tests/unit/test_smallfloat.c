/* base/smallfloat against values computed from the formats' definitions with ldexp, and roundings against searches in double. */
#include "check.h"

#include <math.h>

#include "base/rng.h"
#include "base/smallfloat.h"

/* sign, exponent, fraction with a bias; `top` says what the all-ones exponent means: 0 numbers, 1 infinity and NaN */
static double value(uint32_t v, int ebits, int mbits, int bias, int top) {
    int e = (int)(v >> mbits) & ((1 << ebits) - 1), m = (int)(v & ((1u << mbits) - 1));
    double sign = v >> (ebits + mbits) & 1 ? -1 : 1;
    if (top && e == (1 << ebits) - 1) return m ? NAN : sign * INFINITY;
    return sign * (e ? ldexp((1 << mbits) + m, e - bias - mbits) : ldexp(m, 1 - bias - mbits));
}

static void same(double want, float got, uint32_t pattern) {
    if (isnan(want) ? !isnan(got) : (double)got != want || !signbit(got) != !signbit(want))
        fail_msg("%x: %a instead of %a", pattern, got, want);
}

static void to_float(void **state) {
    (void)state;
    for (uint32_t v = 0; v < 65536; v++) {
        same(value(v, 5, 10, 15, 1), lm_f16_to_f32((uint16_t)v), v);
        float b = lm_bf16_to_f32((uint16_t)v);
        same(value(v, 8, 7, 127, 1), b, v);
    }
    for (uint32_t v = 0; v < 256; v++) {
        same((v & 127) == 127 ? NAN : value(v, 4, 3, 7, 0), lm_e4m3_to_f32((uint8_t)v), v);
        same(value(v, 5, 2, 15, 1), lm_e5m2_to_f32((uint8_t)v), v);
    }
    /* landmarks, from the OCP documents */
    assert_true(lm_e4m3_to_f32(0x7e) == 448 && lm_e5m2_to_f32(0x7b) == 57344 && lm_f16_to_f32(0x7bff) == 65504);
}

static void there_and_back(void **state) {
    (void)state;
    for (uint32_t v = 0; v < 65536; v++) {
        float h = lm_f16_to_f32((uint16_t)v), b = lm_bf16_to_f32((uint16_t)v);
        if (!isnan(h)) assert_int_equal(lm_f32_to_f16(h), v);
        if (!isnan(b)) assert_int_equal(lm_f32_to_bf16(b), v);
        if (isnan(h)) assert_true(isnan(lm_f16_to_f32(lm_f32_to_f16(h))) && (lm_f32_to_f16(h) & 0x8000u) == (v & 0x8000u));
        if (isnan(b)) assert_true(isnan(lm_bf16_to_f32(lm_f32_to_bf16(b))));
    }
}

/* The nearest of the format's finite values and infinity, ties to even, by bisection over its ordered patterns. Infinity stands where
 * the next exponent's first value would. */
static uint32_t nearest(double x, int ebits, int mbits, int bias) {
    uint32_t sign = signbit(x) ? 1u << (ebits + mbits) : 0, lo = 0, hi = ((1u << ebits) - 1) << mbits;
    x = fabs(x);
    while (hi - lo > 1) {
        uint32_t mid = (lo + hi) / 2;
        if (value(mid, ebits, mbits, bias, 0) <= x)
            lo = mid;
        else
            hi = mid;
    }
    double a = value(lo, ebits, mbits, bias, 0), b = value(hi, ebits, mbits, bias, 0);
    if (x >= b) return sign | hi;
    uint32_t r = x - a < b - x ? lo : x - a > b - x ? hi : lo % 2 ? hi : lo;
    return sign | r;
}

static void check_round(uint32_t bits) {
    float f = lm_f32_from_bits(bits);
    if (isnan(f)) {
        assert_true(isnan(lm_f16_to_f32(lm_f32_to_f16(f))) && isnan(lm_bf16_to_f32(lm_f32_to_bf16(f))));
        return;
    }
    uint32_t h = nearest(f, 5, 10, 15), b = nearest(f, 8, 7, 127);
    if (isinf(f)) h = (bits >> 16 & 0x8000u) | 0x7c00u, b = (bits >> 16 & 0x8000u) | 0x7f80u;
    if (lm_f32_to_f16(f) != h) fail_msg("half of %a: %x instead of %x", f, lm_f32_to_f16(f), h);
    if (lm_f32_to_bf16(f) != b) fail_msg("bf16 of %a: %x instead of %x", f, lm_f32_to_bf16(f), b);
}

static void rounding(void **state) {
    (void)state;
    /* each value of both formats, each midpoint between neighbours, and the floats beside them */
    for (uint32_t v = 0; v < 65536; v++)
        for (int d = -1; d <= 1; d++) {
            check_round((v << 16) + (uint32_t)d);
            check_round((v << 16 | 0x8000u) + (uint32_t)d);
            double x = value(v, 5, 10, 15, 0), y = value(v ^ 1u, 5, 10, 15, 0), z = value(v == 0x7fff ? v : v + 1, 5, 10, 15, 0);
            check_round(lm_f32_bits((float)x) + (uint32_t)d);
            check_round(lm_f32_bits((float)((x + y) / 2)) + (uint32_t)d);
            check_round(lm_f32_bits((float)((x + z) / 2)) + (uint32_t)d);
        }
    for (uint32_t i = 0; i < 500000; i++) {
        uint32_t w[4];
        lm_philox(3, 1, i, w);
        check_round(w[0]);
        check_round((w[1] & 0x807fffffu) | (98 + w[2] % 18) << 23); /* about the half's small numbers */
        check_round((w[3] & 0x80ffffffu) | 0x47000000u);            /* and its large ones */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(to_float), cmocka_unit_test(there_and_back), cmocka_unit_test(rounding)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
