/* Signed bytes under one scale: Q8_0 (half d, 32 bytes), Q8_1 (float d, float sum, 32 bytes), Q8_K (float d, 256 bytes, 16 int16 sums).
 * The sums serve dot products and carry no value of their own. Q8_1 is laid out as the gguf package sizes it (40 bytes); inside
 * llama.cpp, where the type lives in memory only, the two floats are halves. */
#include <math.h>

#include "quant/blocks.h"

enum { Q8_0_BYTES = 34, Q8_1_BYTES = 40, Q8_K_BYTES = 292 };

static void decode_q8_0(const uint8_t *src, double *dst, size_t n) {
    for (; n; n--, src += Q8_0_BYTES, dst += LM_QK) lm_scale_f64(dst, lm_load_half(src), (const int8_t *)src + 2, LM_QK);
}
static void decode_q8_0_f32(const uint8_t *src, float *dst, size_t n) {
    for (; n; n--, src += Q8_0_BYTES, dst += LM_QK) lm_scale_f32(dst, lm_load_half(src), (const int8_t *)src + 2, LM_QK);
}
static void encode_q8_0(const float *src, uint8_t *dst, size_t n) {
    for (; n; n--, src += LM_QK, dst += Q8_0_BYTES) {
        float d = fabsf(lm_abs_peak(src, LM_QK)) / 127, id = lm_inverse(d);
        lm_store16(dst, lm_f32_to_f16(d));
        for (int i = 0; i < LM_QK; i++) {
            float v = roundf(src[i] * id); /* halves away from zero */
            dst[2 + i] = (uint8_t)(fabsf(v) < 128 ? (int)v : 0);
        }
    }
}

static void ints_q8_1(const uint8_t *src, int8_t *q, float *scale, float *min) {
    (void)min;
    memcpy(q, src + 8, LM_QK);
    *scale = lm_f32_from_bits(lm_load32(src));
}
LM_DECODE_INTS(decode_q8_1, ints_q8_1, LM_QK, 32, Q8_1_BYTES, false)
static void ints_q8_k(const uint8_t *src, int8_t *q, float *scale, float *min) {
    (void)min;
    memcpy(q, src + 4, LM_QK_K);
    for (int g = 0; g < 8; g++) scale[g] = lm_f32_from_bits(lm_load32(src));
}
LM_DECODE_INTS(decode_q8_k, ints_q8_k, LM_QK_K, 32, Q8_K_BYTES, false)

const lm_dtype lm_dtype_Q8_0 = {
    .name = "Q8_0", .gguf_id = 8, .block = LM_QK, .bytes = Q8_0_BYTES,
    .decode = decode_q8_0, .decode_f32 = decode_q8_0_f32, .encode = encode_q8_0,
};
const lm_dtype lm_dtype_Q8_1 = {
    .name = "Q8_1", .gguf_id = 9, .block = LM_QK, .bytes = Q8_1_BYTES, .decode = decode_q8_1,
    .ints = ints_q8_1, .group = 32,
};
const lm_dtype lm_dtype_Q8_K = {
    .name = "Q8_K", .gguf_id = 15, .block = LM_QK_K, .bytes = Q8_K_BYTES, .decode = decode_q8_k,
    .ints = ints_q8_k, .group = 32,
};
