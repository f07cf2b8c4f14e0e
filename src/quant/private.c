/* See private.h. A float times a small integer, or times an FP8 value, rounds once in float32 just as its exact double does. */
#include "quant/private.h"

#include "quant/blocks.h"

static float scale_of(const uint8_t *src) { return lm_f32_from_bits(lm_load32(src)); }

static void int4_codes(const uint8_t *src, int8_t *q) {
    lm_nibbles(q, src + 5, 16);
    for (int i = 0; i < LM_PRIVATE_BLOCK; i++) q[i] = (int8_t)(q[i] - src[4]); /* z is at most 16 */
}
static void ints_int4(const uint8_t *src, int8_t *q, float *scale, float *min) {
    (void)min;
    int4_codes(src, q);
    *scale = scale_of(src);
}
LM_DECODE_INTS(decode_int4, ints_int4, LM_PRIVATE_BLOCK, 32, LM_INT4_BYTES, false)
static void decode_int4_f32(const uint8_t *src, float *dst, size_t n) {
    int8_t q[LM_PRIVATE_BLOCK];
    for (; n; n--, src += LM_INT4_BYTES, dst += LM_PRIVATE_BLOCK) {
        int4_codes(src, q);
        lm_scale_f32(dst, scale_of(src), q, LM_PRIVATE_BLOCK);
    }
}

static void decode_int8(const uint8_t *src, double *dst, size_t n) {
    for (; n; n--, src += LM_INT8_BYTES, dst += LM_PRIVATE_BLOCK)
        for (int i = 0; i < LM_PRIVATE_BLOCK; i++) dst[i] = (double)scale_of(src) * (src[6 + i] - (int16_t)lm_load16(src + 4));
}
static void decode_int8_f32(const uint8_t *src, float *dst, size_t n) {
    for (; n; n--, src += LM_INT8_BYTES, dst += LM_PRIVATE_BLOCK)
        for (int i = 0; i < LM_PRIVATE_BLOCK; i++) dst[i] = scale_of(src) * (float)(src[6 + i] - (int16_t)lm_load16(src + 4));
}

static void decode_e4m3(const uint8_t *src, double *dst, size_t n) {
    for (; n; n--, src += LM_FP8_BYTES, dst += LM_PRIVATE_BLOCK)
        for (int i = 0; i < LM_PRIVATE_BLOCK; i++) dst[i] = (double)scale_of(src) * lm_e4m3_to_f32(src[4 + i]);
}
static void decode_e4m3_f32(const uint8_t *src, float *dst, size_t n) {
    for (; n; n--, src += LM_FP8_BYTES, dst += LM_PRIVATE_BLOCK)
        for (int i = 0; i < LM_PRIVATE_BLOCK; i++) dst[i] = scale_of(src) * lm_e4m3_to_f32(src[4 + i]);
}
static void decode_e5m2(const uint8_t *src, double *dst, size_t n) {
    for (; n; n--, src += LM_FP8_BYTES, dst += LM_PRIVATE_BLOCK)
        for (int i = 0; i < LM_PRIVATE_BLOCK; i++) dst[i] = (double)scale_of(src) * lm_e5m2_to_f32(src[4 + i]);
}
static void decode_e5m2_f32(const uint8_t *src, float *dst, size_t n) {
    for (; n; n--, src += LM_FP8_BYTES, dst += LM_PRIVATE_BLOCK)
        for (int i = 0; i < LM_PRIVATE_BLOCK; i++) dst[i] = scale_of(src) * lm_e5m2_to_f32(src[4 + i]);
}

const lm_dtype lm_private_int4 = {
    .name = "INT4",
    .gguf_id = LM_NO_ID,
    .block = LM_PRIVATE_BLOCK,
    .bytes = LM_INT4_BYTES,
    .decode = decode_int4,
    .decode_f32 = decode_int4_f32,
    .ints = ints_int4,
    .group = 32,
};
const lm_dtype lm_private_int8 = {
    .name = "INT8",
    .gguf_id = LM_NO_ID,
    .block = LM_PRIVATE_BLOCK,
    .bytes = LM_INT8_BYTES,
    .decode = decode_int8,
    .decode_f32 = decode_int8_f32,
};
const lm_dtype lm_private_e4m3 = {
    .name = "FP8_E4M3",
    .gguf_id = LM_NO_ID,
    .block = LM_PRIVATE_BLOCK,
    .bytes = LM_FP8_BYTES,
    .decode = decode_e4m3,
    .decode_f32 = decode_e4m3_f32,
};
const lm_dtype lm_private_e5m2 = {
    .name = "FP8_E5M2",
    .gguf_id = LM_NO_ID,
    .block = LM_PRIVATE_BLOCK,
    .bytes = LM_FP8_BYTES,
    .decode = decode_e5m2,
    .decode_f32 = decode_e5m2_f32,
};
