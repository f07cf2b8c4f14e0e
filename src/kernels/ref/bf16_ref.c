/* bfloat16 products in plain C: what every other level must equal, bit for bit. */
#include "kernels/lane_bf16.h"
#include "kernels/body/bf16.h"
#include <math.h>

static float low(uint32_t pair) { return lm_f32_from_bits(pair << 16); }
static float high(uint32_t pair) { return lm_f32_from_bits(pair & 0xffff0000u); }

/* ftz(fma(a, b, c)); a and b are bfloat16 and no subnormals, nor is c. fmaf rounds a subnormal result to a multiple of 2^-149: one that came
 * out as 2^-126 exactly may stand for something smaller. With 24 bits and no bound on the exponent the border is T = 2^-126 − 2^-151 (which itself
 * goes up, to even). a·b is exact in double; so is |c| − T, c being near 2^-126 where the sum is (a larger c cancels to a coarser grid). */
static float step(float a, float b, float c) {
    const float r = fmaf(a, b, c);
    const uint32_t u = lm_f32_bits(r), size = u & 0x7fffffffu, sign = u & 0x80000000u;
    if (size > 0x00800000u) return r;
    if (size == 0x00800000u) {
        const double s = sign ? -1 : 1;
        if ((s * (double)c - (0x1p-126 - 0x1p-151)) + s * (double)a * (double)b >= 0) return r;
    }
    return lm_f32_from_bits(sign);
}

static void tile(const lm_bf16_tile *a) {
    for (uint32_t c = 0; c < a->n_c; c++)
        for (uint32_t j0 = 0, j1; j0 < a->pairs; j0 = j1) {
            float blk[LM_TILE * 16] = {0};
            j1 = a->pairs - j0 < LM_BLK / 2 ? a->pairs : j0 + LM_BLK / 2;
            for (uint32_t j = j0; j < j1; j++)
                for (uint32_t i = 0; i < a->n_t * 16; i++) {
                    const uint32_t xj = a->x[(size_t)j * a->n_t + i / 16];
                    uint32_t wj;
                    memcpy(&wj, a->w + c * a->strip_bytes + ((size_t)j * 16 + i % 16) * 4, 4);
                    blk[i] = step(low(wj), low(xj), step(high(wj), high(xj), blk[i]));
                }
            k_enter(a, c, a->first && j0 == 0, j1 == a->pairs, blk);
        }
}
const lm_bf16_kernels lm_bf16_c = {.level = "c", .tile = tile, .round = k_round};
