/* Q4_K: half d, half dmin, 8 six-bit scales and 8 six-bit minima in 12 bytes, 128 bytes of nibbles.   Q5_K: the same with 32 bytes of
 * fifth bits before the nibbles.   256 elements in groups of 32; d*scale*q - dmin*minimum. */
#include "quant/blocks.h"

enum { Q4_K_BYTES = 144, Q5_K_BYTES = 176 };

/* Groups 0-3 have their six bits in one byte; groups 4-7 take four from the last row and two from the tops of the first two. */
static void scales_of(const uint8_t *s, int8_t scale[8], int8_t minimum[8]) {
    for (int g = 0; g < 4; g++) {
        scale[g] = (int8_t)(s[g] & 63);
        minimum[g] = (int8_t)(s[g + 4] & 63);
        scale[g + 4] = (int8_t)((s[g + 8] & 15) | (s[g] >> 6) << 4);
        minimum[g + 4] = (int8_t)((s[g + 8] >> 4) | (s[g + 4] >> 6) << 4);
    }
}
static inline void unpack_q4_k(int8_t q[LM_QK_K], const uint8_t *src) {
    for (int c = 0; c < 4; c++) lm_nibbles(q + 64 * c, src + 16 + 32 * c, 32);
}
static inline void unpack_q5_k(int8_t q[LM_QK_K], const uint8_t *src) {
    const uint8_t *high = src + 16;
    for (int c = 0; c < 4; c++) lm_nibbles(q + 64 * c, src + 48 + 32 * c, 32);
    for (int g = 0; g < 8; g++)
        for (int i = 0; i < 32; i++) q[32 * g + i] = (int8_t)(q[32 * g + i] | (high[i] >> g & 1) << 4);
}

/* q scaled by the header that both types share */
static inline void scale_f64(const uint8_t *src, const int8_t q[LM_QK_K], double *dst) {
    int8_t scale[8], minimum[8];
    double d = lm_load_half(src), dmin = lm_load_half(src + 2);
    scales_of(src + 4, scale, minimum);
    for (int g = 0; g < 8; g++) lm_affine_f64(dst + 32 * g, d * scale[g], q + 32 * g, -(dmin * minimum[g]), 32);
}
static inline void scale_f32(const uint8_t *src, const int8_t q[LM_QK_K], float *dst) {
    int8_t scale[8], minimum[8];
    float d = lm_load_half(src), dmin = lm_load_half(src + 2);
    scales_of(src + 4, scale, minimum);
    for (int g = 0; g < 8; g++) lm_affine_f32(dst + 32 * g, d * (float)scale[g], q + 32 * g, -(dmin * (float)minimum[g]), 32);
}

static void decode_q4_k(const uint8_t *src, double *dst, size_t n) {
    int8_t q[LM_QK_K];
    for (; n; n--, src += Q4_K_BYTES, dst += LM_QK_K) {
        unpack_q4_k(q, src);
        scale_f64(src, q, dst);
    }
}
static void decode_q4_k_f32(const uint8_t *src, float *dst, size_t n) {
    int8_t q[LM_QK_K];
    for (; n; n--, src += Q4_K_BYTES, dst += LM_QK_K) {
        unpack_q4_k(q, src);
        scale_f32(src, q, dst);
    }
}
static void decode_q5_k(const uint8_t *src, double *dst, size_t n) {
    int8_t q[LM_QK_K];
    for (; n; n--, src += Q5_K_BYTES, dst += LM_QK_K) {
        unpack_q5_k(q, src);
        scale_f64(src, q, dst);
    }
}
static void decode_q5_k_f32(const uint8_t *src, float *dst, size_t n) {
    int8_t q[LM_QK_K];
    for (; n; n--, src += Q5_K_BYTES, dst += LM_QK_K) {
        unpack_q5_k(q, src);
        scale_f32(src, q, dst);
    }
}

const lm_dtype lm_dtype_Q4_K = {
    .name = "Q4_K", .gguf_id = 12, .block = LM_QK_K, .bytes = Q4_K_BYTES, .decode = decode_q4_k, .decode_f32 = decode_q4_k_f32,
};
const lm_dtype lm_dtype_Q5_K = {
    .name = "Q5_K", .gguf_id = 13, .block = LM_QK_K, .bytes = Q5_K_BYTES, .decode = decode_q5_k, .decode_f32 = decode_q5_k_f32,
};
