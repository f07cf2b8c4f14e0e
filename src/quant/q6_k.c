/* Q6_K: 128 bytes of low nibbles, 64 bytes of high crumbs, 16 signed byte scales, half d; 256 elements in groups of 16.
 * d*scale*(q - 32). */
#include "quant/blocks.h"

enum { BYTES = 210 };

static inline void unpack(int8_t q[LM_QK_K], const uint8_t *src) {
    for (int c = 0; c < 2; c++) {
        const uint8_t *high = src + 128 + 32 * c;
        lm_nibbles(q + 128 * c, src + 64 * c, 64);
        for (int p = 0; p < 4; p++) {
            int8_t *r = q + 128 * c + 32 * p;
            for (int i = 0; i < 32; i++) r[i] = (int8_t)((r[i] | (high[i] >> (2 * p) & 3) << 4) - 32);
        }
    }
}

static void decode(const uint8_t *src, double *dst, size_t n) {
    int8_t q[LM_QK_K];
    for (; n; n--, src += BYTES, dst += LM_QK_K) {
        double d = lm_load_half(src + 208);
        unpack(q, src);
        for (int g = 0; g < 16; g++) lm_scale_f64(dst + 16 * g, d * (int8_t)src[192 + g], q + 16 * g, 16);
    }
}
static void decode_f32(const uint8_t *src, float *dst, size_t n) {
    int8_t q[LM_QK_K];
    for (; n; n--, src += BYTES, dst += LM_QK_K) {
        float d = lm_load_half(src + 208);
        unpack(q, src);
        for (int g = 0; g < 16; g++) lm_scale_f32(dst + 16 * g, d * (float)(int8_t)src[192 + g], q + 16 * g, 16);
    }
}

const lm_dtype lm_dtype_Q6_K = {
    .name = "Q6_K", .gguf_id = 14, .block = LM_QK_K, .bytes = BYTES, .decode = decode, .decode_f32 = decode_f32,
};
