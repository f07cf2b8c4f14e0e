/* Q4_0: half d, 16 bytes of nibbles; d*(q - 8).   Q4_1: half d, half m, 16 bytes of nibbles; d*q + m.   32 elements a block. */
#include "quant/blocks.h"

enum { Q4_0_BYTES = 18, Q4_1_BYTES = 20 };

static inline void unpack_q4_0(int8_t q[LM_QK], const uint8_t *src) {
    lm_nibbles(q, src + 2, 16);
    for (int i = 0; i < LM_QK; i++) q[i] = (int8_t)(q[i] - 8);
}

static void decode_q4_0(const uint8_t *src, double *dst, size_t n) {
    int8_t q[LM_QK];
    for (; n; n--, src += Q4_0_BYTES, dst += LM_QK) {
        unpack_q4_0(q, src);
        lm_scale_f64(dst, lm_load_half(src), q, LM_QK);
    }
}
static void decode_q4_0_f32(const uint8_t *src, float *dst, size_t n) {
    int8_t q[LM_QK];
    for (; n; n--, src += Q4_0_BYTES, dst += LM_QK) {
        unpack_q4_0(q, src);
        lm_scale_f32(dst, lm_load_half(src), q, LM_QK);
    }
}
/* The scale comes from the element of largest magnitude, so that it maps to exactly -8. */
static void encode_q4_0(const float *src, uint8_t *dst, size_t n) {
    for (; n; n--, src += LM_QK, dst += Q4_0_BYTES) {
        float d = lm_abs_peak(src, LM_QK) / -8, id = lm_inverse(d);
        lm_store16(dst, lm_f32_to_f16(d));
        for (int i = 0; i < 16; i++) {
            uint8_t lo = lm_trunc_clip(src[i] * id + 8.5f, 15), hi = lm_trunc_clip(src[i + 16] * id + 8.5f, 15);
            dst[2 + i] = (uint8_t)(lo | hi << 4);
        }
    }
}

static void decode_q4_1(const uint8_t *src, double *dst, size_t n) {
    int8_t q[LM_QK];
    for (; n; n--, src += Q4_1_BYTES, dst += LM_QK) {
        lm_nibbles(q, src + 4, 16);
        lm_affine_f64(dst, lm_load_half(src), q, lm_load_half(src + 2), LM_QK);
    }
}
static void decode_q4_1_f32(const uint8_t *src, float *dst, size_t n) {
    int8_t q[LM_QK];
    for (; n; n--, src += Q4_1_BYTES, dst += LM_QK) {
        lm_nibbles(q, src + 4, 16);
        lm_affine_f32(dst, lm_load_half(src), q, lm_load_half(src + 2), LM_QK);
    }
}
static void encode_q4_1(const float *src, uint8_t *dst, size_t n) {
    for (; n; n--, src += LM_QK, dst += Q4_1_BYTES) {
        float lo, hi;
        lm_min_max(src, LM_QK, &lo, &hi);
        float d = (hi - lo) / 15, id = lm_inverse(d);
        lm_store16(dst, lm_f32_to_f16(d));
        lm_store16(dst + 2, lm_f32_to_f16(lo));
        for (int i = 0; i < 16; i++) {
            uint8_t a = lm_trunc_clip((src[i] - lo) * id + 0.5f, 15), b = lm_trunc_clip((src[i + 16] - lo) * id + 0.5f, 15);
            dst[4 + i] = (uint8_t)(a | b << 4);
        }
    }
}

const lm_dtype lm_dtype_Q4_0 = {
    .name = "Q4_0", .gguf_id = 2, .block = LM_QK, .bytes = Q4_0_BYTES,
    .decode = decode_q4_0, .decode_f32 = decode_q4_0_f32, .encode = encode_q4_0,
};
const lm_dtype lm_dtype_Q4_1 = {
    .name = "Q4_1", .gguf_id = 3, .block = LM_QK, .bytes = Q4_1_BYTES,
    .decode = decode_q4_1, .decode_f32 = decode_q4_1_f32, .encode = encode_q4_1,
};
