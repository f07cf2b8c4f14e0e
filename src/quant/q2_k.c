/* Q2_K: 16 bytes of (scale, minimum) nibbles, 64 bytes of 2-bit quants, half d, half dmin; 256 elements in groups of 16.
 * d*scale*q - dmin*minimum. */
#include "quant/blocks.h"

enum { BYTES = 84 };

static void ints(const uint8_t *src, int8_t *q, float *scale, float *min) {
    float d = lm_load_half(src + 80), dmin = lm_load_half(src + 82);
    lm_crumbs(q, src + 16);
    for (int g = 0; g < 16; g++) {
        scale[g] = d * (float)(src[g] & 15);
        min[g] = -(dmin * (float)(src[g] >> 4));
    }
}
LM_DECODE_INTS(decode, ints, LM_QK_K, 16, BYTES, true)

const lm_dtype lm_dtype_Q2_K = {
    .name = "Q2_K", .gguf_id = 10, .block = LM_QK_K, .bytes = BYTES, .decode = decode,
    .ints = ints, .group = 16, .has_min = true,
};
