/* What the storage types' files share: little-endian loads at any alignment, and the last step of every block format, which is
 * to scale small integers. All of it is exact in double; in float32 a product of a half scale, a block scale and a quant has at
 * most 24 significant bits, so only the addition of a minimum rounds, and it rounds once.
 */
#ifndef LM_QUANT_BLOCKS_H
#define LM_QUANT_BLOCKS_H
#include "base/smallfloat.h"
#include "quant/dtype.h"

enum { LM_QK = 32, LM_QK_K = 256 }; /* elements per block: the simple types, the K-quants and their kin */

static inline uint16_t lm_load16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint32_t lm_load32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void lm_store16(uint8_t *p, uint16_t v) { memcpy(p, &v, sizeof v); }
static inline float lm_load_half(const uint8_t *p) { return lm_f16_to_f32(lm_load16(p)); }

/* dst[i] = d*q[i] */
static inline void lm_scale_f64(double *dst, double d, const int8_t *q, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = d * q[i];
}
static inline void lm_scale_f32(float *dst, float d, const int8_t *q, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = d * (float)q[i];
}
/* dst[i] = d*q[i] + m */
static inline void lm_affine_f64(double *dst, double d, const int8_t *q, double m, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = d * q[i] + m;
}
static inline void lm_affine_f32(float *dst, float d, const int8_t *q, float m, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = d * (float)q[i] + m;
}

/* decode by way of `ints`: what a type's integers, scales and minima say, in double */
#define LM_DECODE_INTS(NAME, INTS, BLOCK, GROUP, BLOCK_BYTES, HAS_MIN) \
    static void NAME(const uint8_t *src, double *dst, size_t n) { \
        int8_t q[BLOCK]; \
        float scale[(BLOCK) / (GROUP)], min[(BLOCK) / (GROUP)]; \
        for (; n; n--, src += (BLOCK_BYTES)) { \
            INTS(src, q, scale, min); \
            for (int g = 0; g < (BLOCK) / (GROUP); g++, dst += (GROUP)) { \
                if (HAS_MIN) lm_affine_f64(dst, scale[g], q + (GROUP) * g, min[g], GROUP); \
                else lm_scale_f64(dst, scale[g], q + (GROUP) * g, GROUP); \
            } \
        } \
    }

/* n bytes to 2n nibbles: the low ones first, then the high ones */
static inline void lm_nibbles(int8_t *q, const uint8_t *src, size_t n) {
    for (size_t i = 0; i < n; i++) {
        q[i] = (int8_t)(src[i] & 15);
        q[i + n] = (int8_t)(src[i] >> 4);
    }
}
/* 64 bytes to 256 two-bit values: each run of 32 bytes holds four planes of 32 */
static inline void lm_crumbs(int8_t *q, const uint8_t *src) {
    for (int c = 0; c < 8; c++)
        for (int i = 0; i < 32; i++) q[32 * c + i] = (int8_t)(src[c / 4 * 32 + i] >> (c % 4 * 2) & 3);
}

/* The quantizers' conversion of a scaled value: truncated and clipped to 0..hi. What is not finite becomes 0, as the reference's
 * conversion does on x86. */
static inline uint8_t lm_trunc_clip(float v, int hi) {
    if (!(v >= 0 && v < 256)) return 0;
    return (uint8_t)((int)v > hi ? hi : (int)v);
}
/* The first element of largest magnitude, with its sign; the smallest and the largest. NaN is passed over unless it is first. */
static inline float lm_abs_peak(const float *x, int n) {
    float peak = x[0];
    for (int i = 1; i < n; i++)
        if (lm_f32_bits(x[i]) << 1 > lm_f32_bits(peak) << 1) peak = x[i];
    return peak;
}
static inline void lm_min_max(const float *x, int n, float *lo, float *hi) {
    *lo = *hi = x[0];
    for (int i = 1; i < n; i++) {
        if (x[i] < *lo) *lo = x[i];
        if (x[i] > *hi) *hi = x[i];
    }
}
static inline float lm_inverse(float d) { return d == 0 ? 0 : 1 / d; }
#endif
