/* F8_E4M3 (the "fn" variant: no infinity) and F8_E5M2, as safetensors stores them; any scale is a tensor of its own. */
#include "quant/blocks.h"

static void decode_e4m3(const uint8_t *src, double *dst, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = lm_e4m3_to_f32(src[i]);
}
static void decode_e5m2(const uint8_t *src, double *dst, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = lm_e5m2_to_f32(src[i]);
}

const lm_dtype lm_dtype_F8_E4M3 = {
    .name = "F8_E4M3", .gguf_id = LM_NO_ID, .st_name = "F8_E4M3", .block = 1, .bytes = 1, .is_float = true, .decode = decode_e4m3,
};
const lm_dtype lm_dtype_F8_E5M2 = {
    .name = "F8_E5M2", .gguf_id = LM_NO_ID, .st_name = "F8_E5M2", .block = 1, .bytes = 1, .is_float = true, .decode = decode_e5m2,
};
