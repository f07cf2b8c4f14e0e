/* IQ1_S, IQ1_M: 256 elements as 32 vectors of 8 from a codebook of {-1, 0, 1}; d*(2*scale + 1)*(code ± 1/8).
 * S: half d; 32 index bytes; 8 times 16 bits {4 times three more index bits, a scale of three, the sign of the eighth} for 32 elements.
 * M: 32 index bytes; 32 nibbles {three more index bits, the sign of the eighth}; 4 times 16 bits {4 scales of three bits, a quarter of
 *    the half d}, each scale for 16 elements. */
#include "quant/blocks.h"
#include "quant/iq_grids.h"

enum { IQ1_S_BYTES = 50, IQ1_M_BYTES = 56 };

static void expand(double *dst, double scale, uint16_t codes, bool minus) {
    double delta = minus ? -0.125 : 0.125;
    for (int j = 0; j < 8; j++) dst[j] = scale * ((codes >> (2 * j) & 3) - 1 + delta);
}

static void decode_s(const uint8_t *src, double *dst, size_t n) {
    for (; n; n--, src += IQ1_S_BYTES) {
        double d = lm_load_half(src);
        for (int i = 0; i < 32; i++, dst += 8) {
            int tail = lm_load16(src + 34 + i / 4 * 2);
            int index = src[2 + i] | (tail >> (i % 4 * 3) & 7) << 8;
            expand(dst, d * (2 * (tail >> 12 & 7) + 1), lm_iq1_grid[index], tail >> 15);
        }
    }
}
static void decode_m(const uint8_t *src, double *dst, size_t n) {
    for (; n; n--, src += IQ1_M_BYTES) {
        const uint8_t *scales = src + 48;
        int half = 0;
        for (int k = 0; k < 4; k++) half |= lm_load16(scales + 2 * k) >> 12 << (4 * k);
        double d = lm_f16_to_f32((uint16_t)half);
        for (int i = 0; i < 32; i++, dst += 8) {
            int tail = src[32 + i / 2] >> (i % 2 * 4) & 15;
            int index = src[i] | (tail & 7) << 8;
            int s = lm_load16(scales + i / 8 * 2) >> (i / 2 % 4 * 3) & 7;
            expand(dst, d * (2 * s + 1), lm_iq1_grid[index], tail >> 3);
        }
    }
}

const lm_dtype lm_dtype_IQ1_S = {
    .name = "IQ1_S", .gguf_id = 19, .block = LM_QK_K, .bytes = IQ1_S_BYTES, .decode = decode_s,
};
const lm_dtype lm_dtype_IQ1_M = {
    .name = "IQ1_M", .gguf_id = 29, .block = LM_QK_K, .bytes = IQ1_M_BYTES, .decode = decode_m,
};
