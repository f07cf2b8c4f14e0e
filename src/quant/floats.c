/* F64, F32, F16, BF16: plain IEEE elements, little-endian. */
#include "quant/blocks.h"

static void decode_f64(const uint8_t *src, double *dst, size_t n) { memcpy(dst, src, n * sizeof *dst); }

static void decode_f32(const uint8_t *src, double *dst, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = lm_f32_from_bits(lm_load32(src + 4 * i));
}
static void decode_f32_f32(const uint8_t *src, float *dst, size_t n) { memcpy(dst, src, n * sizeof *dst); }
static void encode_f32(const float *src, uint8_t *dst, size_t n) { memcpy(dst, src, n * sizeof *src); }

static void decode_f16(const uint8_t *src, double *dst, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = lm_load_half(src + 2 * i);
}
static void decode_f16_f32(const uint8_t *src, float *dst, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = lm_load_half(src + 2 * i);
}
static void encode_f16(const float *src, uint8_t *dst, size_t n) {
    for (size_t i = 0; i < n; i++) lm_store16(dst + 2 * i, lm_f32_to_f16(src[i]));
}

static void decode_bf16(const uint8_t *src, double *dst, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = lm_bf16_to_f32(lm_load16(src + 2 * i));
}
static void decode_bf16_f32(const uint8_t *src, float *dst, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = lm_bf16_to_f32(lm_load16(src + 2 * i));
}
static void encode_bf16(const float *src, uint8_t *dst, size_t n) {
    for (size_t i = 0; i < n; i++) lm_store16(dst + 2 * i, lm_f32_to_bf16(src[i]));
}

const lm_dtype lm_dtype_F64 = {
    .name = "F64", .gguf_id = 28, .st_name = "F64", .block = 1, .bytes = 8, .is_float = true, .decode = decode_f64,
};
const lm_dtype lm_dtype_F32 = {
    .name = "F32", .gguf_id = 0, .st_name = "F32", .block = 1, .bytes = 4, .is_float = true,
    .decode = decode_f32, .decode_f32 = decode_f32_f32, .encode = encode_f32,
};
const lm_dtype lm_dtype_F16 = {
    .name = "F16", .gguf_id = 1, .st_name = "F16", .block = 1, .bytes = 2, .is_float = true,
    .decode = decode_f16, .decode_f32 = decode_f16_f32, .encode = encode_f16,
};
const lm_dtype lm_dtype_BF16 = {
    .name = "BF16", .gguf_id = 30, .st_name = "BF16", .block = 1, .bytes = 2, .is_float = true,
    .decode = decode_bf16, .decode_f32 = decode_bf16_f32, .encode = encode_bf16,
};
