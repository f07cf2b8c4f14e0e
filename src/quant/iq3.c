/* IQ3_XXS, IQ3_S: 256 elements as 64 vectors of 4 from a codebook of magnitudes, with signs for each pair of vectors.
 * XXS: half d; 64 index bytes; 8 times {4 seven-bit signs and a four-bit scale in 32 bits}; d/2*(1/2 + scale)*(±magnitude).
 * S:   half d; 64 index bytes; 64 ninth index bits; 32 sign bytes; 8 scale nibbles; d*(1 + 2*scale)*(±magnitude). */
#include "quant/blocks.h"
#include "quant/iq_grids.h"

enum { IQ3_XXS_BYTES = 98, IQ3_S_BYTES = 110 };

/* signs: the low four bits */
static void expand(int8_t *q, uint16_t codes, const int8_t magnitude[8], int signs) {
    for (int j = 0; j < 4; j++) {
        int m = magnitude[codes >> (4 * j) & 7];
        q[j] = (int8_t)(signs >> j & 1 ? -m : m);
    }
}

static void ints_xxs(const uint8_t *src, int8_t *q, float *scale, float *min) {
    static const int8_t magnitude[8] = {4, 12, 20, 28, 36, 44, 52, 62};
    (void)min;
    for (int i = 0; i < 64; i++, q += 4) {
        uint32_t tail = lm_load32(src + 66 + i / 8 * 4);
        int signs = lm_iq_signs(tail >> (i / 2 % 4 * 7)) >> (i % 2 * 4);
        scale[i / 8] = lm_load_half(src) * (0.5f + (float)(tail >> 28)) * 0.5f;
        expand(q, lm_iq3_xxs_grid[src[2 + i]], magnitude, signs);
    }
}
LM_DECODE_INTS(decode_xxs, ints_xxs, LM_QK_K, 32, IQ3_XXS_BYTES, false)
static void ints_s(const uint8_t *src, int8_t *q, float *scale, float *min) {
    static const int8_t magnitude[8] = {1, 3, 5, 7, 9, 11, 13, 15};
    (void)min;
    for (int i = 0; i < 64; i++, q += 4) {
        int index = src[2 + i] | (src[66 + i / 8] >> (i % 8) & 1) << 8;
        scale[i / 8] = lm_load_half(src) * (float)(1 + 2 * (src[106 + i / 16] >> (i / 8 % 2 * 4) & 15));
        expand(q, lm_iq3_s_grid[index], magnitude, src[74 + i / 2] >> (i % 2 * 4));
    }
}
LM_DECODE_INTS(decode_s, ints_s, LM_QK_K, 32, IQ3_S_BYTES, false)

const lm_dtype lm_dtype_IQ3_XXS = {
    .name = "IQ3_XXS", .gguf_id = 18, .block = LM_QK_K, .bytes = IQ3_XXS_BYTES, .decode = decode_xxs,
    .ints = ints_xxs, .group = 32,
};
const lm_dtype lm_dtype_IQ3_S = {
    .name = "IQ3_S", .gguf_id = 21, .block = LM_QK_K, .bytes = IQ3_S_BYTES, .decode = decode_s,
    .ints = ints_s, .group = 32,
};
