/* Integer elements: I8 I16 I32 I64, and safetensors' U8 and BOOL (any byte but 0 is true). Exact, except that an I64 beyond 2^53 rounds
 * to the nearest double: no double holds it. */
#include "quant/blocks.h"

static void decode_i8(const uint8_t *src, double *dst, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = (int8_t)src[i];
}
static void decode_i16(const uint8_t *src, double *dst, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = (int16_t)lm_load16(src + 2 * i);
}
static void decode_i32(const uint8_t *src, double *dst, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = (int32_t)lm_load32(src + 4 * i);
}
static void decode_i64(const uint8_t *src, double *dst, size_t n) {
    for (size_t i = 0; i < n; i++) {
        int64_t v;
        memcpy(&v, src + 8 * i, sizeof v);
        dst[i] = (double)v;
    }
}
static void decode_u8(const uint8_t *src, double *dst, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = src[i];
}
static void decode_bool(const uint8_t *src, double *dst, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = src[i] != 0;
}

const lm_dtype lm_dtype_I8 = {
    .name = "I8", .gguf_id = 24, .st_name = "I8", .block = 1, .bytes = 1, .is_float = true, .decode = decode_i8,
};
const lm_dtype lm_dtype_I16 = {
    .name = "I16", .gguf_id = 25, .st_name = "I16", .block = 1, .bytes = 2, .is_float = true, .decode = decode_i16,
};
const lm_dtype lm_dtype_I32 = {
    .name = "I32", .gguf_id = 26, .st_name = "I32", .block = 1, .bytes = 4, .is_float = true, .decode = decode_i32,
};
const lm_dtype lm_dtype_I64 = {
    .name = "I64", .gguf_id = 27, .st_name = "I64", .block = 1, .bytes = 8, .is_float = true, .decode = decode_i64,
};
const lm_dtype lm_dtype_U8 = {
    .name = "U8", .gguf_id = LM_NO_ID, .st_name = "U8", .block = 1, .bytes = 1, .is_float = true, .decode = decode_u8,
};
const lm_dtype lm_dtype_BOOL = {
    .name = "BOOL", .gguf_id = LM_NO_ID, .st_name = "BOOL", .block = 1, .bytes = 1, .is_float = true, .decode = decode_bool,
};
