/* IQ3_XXS, IQ3_S: 256 elements as 64 vectors of 4 from a codebook of magnitudes, with signs for each pair of vectors.
 * XXS: half d; 64 index bytes; 8 times {4 seven-bit signs and a four-bit scale in 32 bits}; d/2*(1/2 + scale)*(±magnitude).
 * S:   half d; 64 index bytes; 64 ninth index bits; 32 sign bytes; 8 scale nibbles; d*(1 + 2*scale)*(±magnitude). */
#include "quant/blocks.h"
#include "quant/iq_grids.h"

enum { IQ3_XXS_BYTES = 98, IQ3_S_BYTES = 110 };

/* signs: the low four bits */
static void expand(double *dst, double scale, uint16_t codes, const int8_t magnitude[8], int signs) {
    for (int j = 0; j < 4; j++) {
        int m = magnitude[codes >> (4 * j) & 7];
        dst[j] = scale * (signs >> j & 1 ? -m : m);
    }
}

static void decode_xxs(const uint8_t *src, double *dst, size_t n) {
    static const int8_t magnitude[8] = {4, 12, 20, 28, 36, 44, 52, 62};
    for (; n; n--, src += IQ3_XXS_BYTES) {
        double d = lm_load_half(src);
        for (int i = 0; i < 64; i++, dst += 4) {
            uint32_t tail = lm_load32(src + 66 + i / 8 * 4);
            int signs = lm_iq_signs(tail >> (i / 2 % 4 * 7)) >> (i % 2 * 4);
            expand(dst, d * (0.5 + (tail >> 28)) * 0.5, lm_iq3_xxs_grid[src[2 + i]], magnitude, signs);
        }
    }
}
static void decode_s(const uint8_t *src, double *dst, size_t n) {
    static const int8_t magnitude[8] = {1, 3, 5, 7, 9, 11, 13, 15};
    for (; n; n--, src += IQ3_S_BYTES) {
        double d = lm_load_half(src);
        for (int i = 0; i < 64; i++, dst += 4) {
            int index = src[2 + i] | (src[66 + i / 8] >> (i % 8) & 1) << 8;
            int s = src[106 + i / 16] >> (i / 8 % 2 * 4) & 15;
            expand(dst, d * (1 + 2 * s), lm_iq3_s_grid[index], magnitude, src[74 + i / 2] >> (i % 2 * 4));
        }
    }
}

const lm_dtype lm_dtype_IQ3_XXS = {
    .name = "IQ3_XXS", .gguf_id = 18, .block = LM_QK_K, .bytes = IQ3_XXS_BYTES, .decode = decode_xxs,
};
const lm_dtype lm_dtype_IQ3_S = {
    .name = "IQ3_S", .gguf_id = 21, .block = LM_QK_K, .bytes = IQ3_S_BYTES, .decode = decode_s,
};
