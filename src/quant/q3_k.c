/* Q3_K: 32 bytes of third bits, 64 bytes of 2-bit quants, 16 six-bit scales in 12 bytes, half d; 256 elements in groups of 16.
 * d*(scale - 32)*q, where a clear third bit takes 4 off q. */
#include "quant/blocks.h"

enum { BYTES = 110 };

/* The low nibbles of 8 bytes, then their high nibbles; two more bits each from 4 further bytes, plane by plane. */
static int scale_of(const uint8_t *s, int g) {
    int low = s[g % 8] >> (g / 8 * 4) & 15, high = s[8 + g % 4] >> (g / 4 * 2) & 3;
    return (low | high << 4) - 32;
}

static void ints(const uint8_t *src, int8_t *q, float *scale, float *min) {
    (void)min;
    float d = lm_load_half(src + 108);
    lm_crumbs(q, src + 32);
    for (int c = 0; c < 8; c++)
        for (int i = 0; i < 32; i++) q[32 * c + i] = (int8_t)(q[32 * c + i] - (src[i] >> c & 1 ? 0 : 4));
    for (int g = 0; g < 16; g++) scale[g] = d * (float)scale_of(src + 96, g);
}
LM_DECODE_INTS(decode, ints, LM_QK_K, 16, BYTES, false)

const lm_dtype lm_dtype_Q3_K = {
    .name = "Q3_K", .gguf_id = 11, .block = LM_QK_K, .bytes = BYTES, .decode = decode,
    .ints = ints, .group = 16,
};
