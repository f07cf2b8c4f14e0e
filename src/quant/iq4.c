/* IQ4_NL: half d, 16 bytes of nibbles; 32 elements, d*level.   IQ4_XS: half d, 16 bits and 4 bytes of six-bit scales, 128 bytes of nibbles;
 * 256 elements in groups of 32, d*(scale - 32)*level.   The sixteen levels are not evenly spaced. */
#include "quant/blocks.h"

enum { IQ4_NL_BYTES = 18, IQ4_XS_BYTES = 136 };

static const int8_t levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void unpack(int8_t *q, const uint8_t *src) {
    lm_nibbles(q, src, 16);
    for (int i = 0; i < LM_QK; i++) q[i] = levels[q[i]];
}

static void ints_nl(const uint8_t *src, int8_t *q, float *scale, float *min) {
    (void)min;
    unpack(q, src + 2);
    *scale = lm_load_half(src);
}
LM_DECODE_INTS(decode_nl, ints_nl, LM_QK, 32, IQ4_NL_BYTES, false)
static void ints_xs(const uint8_t *src, int8_t *q, float *scale, float *min) {
    (void)min;
    float d = lm_load_half(src);
    int high = lm_load16(src + 2);
    for (int g = 0; g < 8; g++, q += LM_QK) {
        int s = (src[4 + g / 2] >> (g % 2 * 4) & 15) | (high >> (2 * g) & 3) << 4;
        unpack(q, src + 8 + 16 * g);
        scale[g] = d * (float)(s - 32);
    }
}
LM_DECODE_INTS(decode_xs, ints_xs, LM_QK_K, 32, IQ4_XS_BYTES, false)

const lm_dtype lm_dtype_IQ4_NL = {
    .name = "IQ4_NL", .gguf_id = 20, .block = LM_QK, .bytes = IQ4_NL_BYTES, .decode = decode_nl,
    .ints = ints_nl, .group = 32,
};
const lm_dtype lm_dtype_IQ4_XS = {
    .name = "IQ4_XS", .gguf_id = 23, .block = LM_QK_K, .bytes = IQ4_XS_BYTES, .decode = decode_xs,
    .ints = ints_xs, .group = 32,
};
