/* Q2_K: 16 bytes of (scale, minimum) nibbles, 64 bytes of 2-bit quants, half d, half dmin; 256 elements in groups of 16.
 * d*scale*q - dmin*minimum. */
#include "quant/blocks.h"

enum { BYTES = 84 };

static void decode(const uint8_t *src, double *dst, size_t n) {
    int8_t q[LM_QK_K];
    for (; n; n--, src += BYTES, dst += LM_QK_K) {
        double d = lm_load_half(src + 80), dmin = lm_load_half(src + 82);
        lm_crumbs(q, src + 16);
        for (int g = 0; g < 16; g++) lm_affine_f64(dst + 16 * g, d * (src[g] & 15), q + 16 * g, -(dmin * (src[g] >> 4)), 16);
    }
}

const lm_dtype lm_dtype_Q2_K = {
    .name = "Q2_K", .gguf_id = 10, .block = LM_QK_K, .bytes = BYTES, .decode = decode,
};
