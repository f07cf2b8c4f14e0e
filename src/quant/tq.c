/* Ternary: TQ1_0 (52 bytes of five or four trits each, half d) and TQ2_0 (64 bytes of four 2-bit values, half d). 256 elements; d*(t - 1).
 * A byte of TQ1_0 is a fraction of 256 in base 3: times 3^k, modulo 256, brings trit k to the top, and times 3 again lifts it out. */
#include "quant/blocks.h"

enum { TQ1_0_BYTES = 54, TQ2_0_BYTES = 66 };

/* `trits` planes of n elements from n bytes */
static void unpack_trits(int8_t *q, const uint8_t *src, int n, int trits) {
    for (int k = 0, power = 1; k < trits; k++, power *= 3)
        for (int i = 0; i < n; i++) q[k * n + i] = (int8_t)(((uint8_t)(src[i] * power) * 3 >> 8) - 1);
}

static void ints_tq1_0(const uint8_t *src, int8_t *q, float *scale, float *min) {
    (void)min;
    unpack_trits(q, src, 32, 5);
    unpack_trits(q + 160, src + 32, 16, 5);
    unpack_trits(q + 240, src + 48, 4, 4);
    for (int g = 0; g < 8; g++) scale[g] = lm_load_half(src + 52);
}
LM_DECODE_INTS(decode_tq1_0, ints_tq1_0, LM_QK_K, 32, TQ1_0_BYTES, false)
static void ints_tq2_0(const uint8_t *src, int8_t *q, float *scale, float *min) {
    (void)min;
    lm_crumbs(q, src);
    for (int i = 0; i < LM_QK_K; i++) q[i] = (int8_t)(q[i] - 1);
    for (int g = 0; g < 8; g++) scale[g] = lm_load_half(src + 64);
}
LM_DECODE_INTS(decode_tq2_0, ints_tq2_0, LM_QK_K, 32, TQ2_0_BYTES, false)

const lm_dtype lm_dtype_TQ1_0 = {
    .name = "TQ1_0", .gguf_id = 34, .block = LM_QK_K, .bytes = TQ1_0_BYTES, .decode = decode_tq1_0,
    .ints = ints_tq1_0, .group = 32,
};
const lm_dtype lm_dtype_TQ2_0 = {
    .name = "TQ2_0", .gguf_id = 35, .block = LM_QK_K, .bytes = TQ2_0_BYTES, .decode = decode_tq2_0,
    .ints = ints_tq2_0, .group = 32,
};
