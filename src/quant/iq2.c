/* IQ2_XXS, IQ2_XS, IQ2_S: 256 elements as 32 vectors of 8 from a codebook of magnitudes, with signs; d/4*(1/2 + scale)*(±magnitude).
 * XXS: half d; 8 times {4 index bytes, 4 seven-bit signs and a four-bit scale in 32 bits}.
 * XS:  half d; 32 times {9 index bits, 7 sign bits}; 16 scale nibbles.
 * S:   half d; 32 index bytes; 32 sign bytes; 8 bytes of two more index bits each; 16 scale nibbles. */
#include "quant/blocks.h"
#include "quant/iq_grids.h"

enum { IQ2_XXS_BYTES = 66, IQ2_XS_BYTES = 74, IQ2_S_BYTES = 82 };

static void expand(double *dst, double scale, uint16_t codes, uint8_t signs) {
    static const int8_t magnitude[4] = {8, 25, 43, 0}; /* no entry uses code 3 */
    for (int j = 0; j < 8; j++) {
        int m = magnitude[codes >> (2 * j) & 3];
        dst[j] = scale * (signs >> j & 1 ? -m : m);
    }
}
static double scale_of(double d, int s) { return d * (0.5 + s) * 0.25; }

static void decode_xxs(const uint8_t *src, double *dst, size_t n) {
    for (; n; n--, src += IQ2_XXS_BYTES) {
        double d = lm_load_half(src);
        for (int g = 0; g < 8; g++) {
            const uint8_t *index = src + 2 + 8 * g;
            uint32_t tail = lm_load32(index + 4);
            double scale = scale_of(d, (int)(tail >> 28));
            for (int k = 0; k < 4; k++, dst += 8) expand(dst, scale, lm_iq2_xxs_grid[index[k]], lm_iq_signs(tail >> (7 * k)));
        }
    }
}
static void decode_xs(const uint8_t *src, double *dst, size_t n) {
    for (; n; n--, src += IQ2_XS_BYTES) {
        double d = lm_load_half(src);
        for (int i = 0; i < 32; i++, dst += 8) {
            uint16_t v = lm_load16(src + 2 + 2 * i);
            int s = src[66 + i / 4] >> (i / 2 % 2 * 4) & 15;
            expand(dst, scale_of(d, s), lm_iq2_xs_grid[v & 511], lm_iq_signs(v >> 9));
        }
    }
}
static void decode_s(const uint8_t *src, double *dst, size_t n) {
    for (; n; n--, src += IQ2_S_BYTES) {
        double d = lm_load_half(src);
        for (int i = 0; i < 32; i++, dst += 8) {
            int index = src[2 + i] | (src[66 + i / 4] >> (i % 4 * 2) & 3) << 8;
            int s = src[74 + i / 4] >> (i / 2 % 2 * 4) & 15;
            expand(dst, scale_of(d, s), lm_iq2_s_grid[index], src[34 + i]);
        }
    }
}

const lm_dtype lm_dtype_IQ2_XXS = {
    .name = "IQ2_XXS", .gguf_id = 16, .block = LM_QK_K, .bytes = IQ2_XXS_BYTES, .decode = decode_xxs,
};
const lm_dtype lm_dtype_IQ2_XS = {
    .name = "IQ2_XS", .gguf_id = 17, .block = LM_QK_K, .bytes = IQ2_XS_BYTES, .decode = decode_xs,
};
const lm_dtype lm_dtype_IQ2_S = {
    .name = "IQ2_S", .gguf_id = 22, .block = LM_QK_K, .bytes = IQ2_S_BYTES, .decode = decode_s,
};
