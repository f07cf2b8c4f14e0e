/* IQ2_XXS, IQ2_XS, IQ2_S: 256 elements as 32 vectors of 8 from a codebook of magnitudes, with signs; d/4*(1/2 + scale)*(±magnitude).
 * XXS: half d; 8 times {4 index bytes, 4 seven-bit signs and a four-bit scale in 32 bits}.
 * XS:  half d; 32 times {9 index bits, 7 sign bits}; 16 scale nibbles.
 * S:   half d; 32 index bytes; 32 sign bytes; 8 bytes of two more index bits each; 16 scale nibbles. */
#include "quant/blocks.h"
#include "quant/iq_grids.h"

enum { IQ2_XXS_BYTES = 66, IQ2_XS_BYTES = 74, IQ2_S_BYTES = 82 };

static void expand(int8_t *q, uint16_t codes, uint8_t signs) {
    static const int8_t magnitude[4] = {8, 25, 43, 0}; /* no entry uses code 3 */
    for (int j = 0; j < 8; j++) {
        int m = magnitude[codes >> (2 * j) & 3];
        q[j] = (int8_t)(signs >> j & 1 ? -m : m);
    }
}
static float scale_of(float d, int s) { return d * (0.5f + (float)s) * 0.25f; }

static void ints_xxs(const uint8_t *src, int8_t *q, float *scale, float *min) {
    (void)min;
    for (int g = 0; g < 8; g++) {
        const uint8_t *index = src + 2 + 8 * g;
        uint32_t tail = lm_load32(index + 4);
        scale[g] = scale_of(lm_load_half(src), (int)(tail >> 28));
        for (int k = 0; k < 4; k++, q += 8) expand(q, lm_iq2_xxs_grid[index[k]], lm_iq_signs(tail >> (7 * k)));
    }
}
LM_DECODE_INTS(decode_xxs, ints_xxs, LM_QK_K, 32, IQ2_XXS_BYTES, false)
static void ints_xs(const uint8_t *src, int8_t *q, float *scale, float *min) {
    (void)min;
    for (int i = 0; i < 32; i++, q += 8) {
        uint16_t v = lm_load16(src + 2 + 2 * i);
        scale[i / 2] = scale_of(lm_load_half(src), src[66 + i / 4] >> (i / 2 % 2 * 4) & 15);
        expand(q, lm_iq2_xs_grid[v & 511], lm_iq_signs(v >> 9));
    }
}
LM_DECODE_INTS(decode_xs, ints_xs, LM_QK_K, 16, IQ2_XS_BYTES, false)
static void ints_s(const uint8_t *src, int8_t *q, float *scale, float *min) {
    (void)min;
    for (int i = 0; i < 32; i++, q += 8) {
        int index = src[2 + i] | (src[66 + i / 4] >> (i % 4 * 2) & 3) << 8;
        scale[i / 2] = scale_of(lm_load_half(src), src[74 + i / 4] >> (i / 2 % 2 * 4) & 15);
        expand(q, lm_iq2_s_grid[index], src[34 + i]);
    }
}
LM_DECODE_INTS(decode_s, ints_s, LM_QK_K, 16, IQ2_S_BYTES, false)

const lm_dtype lm_dtype_IQ2_XXS = {
    .name = "IQ2_XXS", .gguf_id = 16, .block = LM_QK_K, .bytes = IQ2_XXS_BYTES, .decode = decode_xxs,
    .ints = ints_xxs, .group = 32,
};
const lm_dtype lm_dtype_IQ2_XS = {
    .name = "IQ2_XS", .gguf_id = 17, .block = LM_QK_K, .bytes = IQ2_XS_BYTES, .decode = decode_xs,
    .ints = ints_xs, .group = 16,
};
const lm_dtype lm_dtype_IQ2_S = {
    .name = "IQ2_S", .gguf_id = 22, .block = LM_QK_K, .bytes = IQ2_S_BYTES, .decode = decode_s,
    .ints = ints_s, .group = 16,
};
