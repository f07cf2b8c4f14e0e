/* IQ1_S, IQ1_M: 256 elements as 32 vectors of 8 from a codebook of {-1, 0, 1}; d*(2*scale + 1)*(code ± 1/8).
 * S: half d; 32 index bytes; 8 times 16 bits {4 times three more index bits, a scale of three, the sign of the eighth} for 32 elements.
 * M: 32 index bytes; 32 nibbles {three more index bits, the sign of the eighth}; 4 times 16 bits {4 scales of three bits, a quarter of
 *    the half d}, each scale for 16 elements. */
#include "quant/blocks.h"
#include "quant/iq_grids.h"

enum { IQ1_S_BYTES = 50, IQ1_M_BYTES = 56 };

/* eight times the values, so that they are integers */
static void expand(int8_t *q, uint16_t codes, bool minus) {
    for (int j = 0; j < 8; j++) q[j] = (int8_t)(((codes >> (2 * j) & 3) - 1) * 8 + (minus ? -1 : 1));
}

static void ints_s(const uint8_t *src, int8_t *q, float *scale, float *min) {
    (void)min;
    float d = lm_load_half(src) / 8;
    for (int i = 0; i < 32; i++, q += 8) {
        int tail = lm_load16(src + 34 + i / 4 * 2);
        int index = src[2 + i] | (tail >> (i % 4 * 3) & 7) << 8;
        scale[i / 4] = d * (float)(2 * (tail >> 12 & 7) + 1);
        expand(q, lm_iq1_grid[index], tail >> 15);
    }
}
LM_DECODE_INTS(decode_s, ints_s, LM_QK_K, 32, IQ1_S_BYTES, false)
static void ints_m(const uint8_t *src, int8_t *q, float *scale, float *min) {
    (void)min;
    const uint8_t *scales = src + 48;
    int half = 0;
    for (int k = 0; k < 4; k++) half |= lm_load16(scales + 2 * k) >> 12 << (4 * k);
    float d = lm_f16_to_f32((uint16_t)half) / 8;
    for (int i = 0; i < 32; i++, q += 8) {
        int tail = src[32 + i / 2] >> (i % 2 * 4) & 15;
        int index = src[i] | (tail & 7) << 8;
        scale[i / 2] = d * (float)(2 * (lm_load16(scales + i / 8 * 2) >> (i / 2 % 4 * 3) & 7) + 1);
        expand(q, lm_iq1_grid[index], tail >> 3);
    }
}
LM_DECODE_INTS(decode_m, ints_m, LM_QK_K, 16, IQ1_M_BYTES, false)

const lm_dtype lm_dtype_IQ1_S = {
    .name = "IQ1_S", .gguf_id = 19, .block = LM_QK_K, .bytes = IQ1_S_BYTES, .decode = decode_s,
    .ints = ints_s, .group = 32,
};
const lm_dtype lm_dtype_IQ1_M = {
    .name = "IQ1_M", .gguf_id = 29, .block = LM_QK_K, .bytes = IQ1_M_BYTES, .decode = decode_m,
    .ints = ints_m, .group = 16,
};
