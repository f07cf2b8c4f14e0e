/* bfloat16 products in plain C: what every other level must equal, bit for bit. */
#include "kernels/lane_bf16.h"
/* the vectors first */
#include "kernels/ref/v16.h"

#include "kernels/body/maths.h"
#include "kernels/body/bf16.h"
#define LM_UNROLL

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

void lm_bf16_chain_c(const uint8_t *w, size_t step_w, uint32_t pairs, const uint32_t *x, size_t xj, size_t xt, uint32_t T, float *acc) {
    for (uint32_t j = 0; j < pairs; j++)
        for (uint32_t i = 0; i < T * 16; i++) {
            const uint32_t xv = x[j * xj + i / 16 * xt];
            uint32_t wv;
            memcpy(&wv, w + j * step_w + 4 * (i % 16), 4);
            acc[i] = step(low(wv), low(xv), step(high(wv), high(xv), acc[i]));
        }
}
#define k_chain lm_bf16_chain_c
#include "kernels/body/chain_bf16.h"
#include "kernels/body/attend_bf16.h"

const lm_bf16_kernels lm_bf16_c = {.level = "c", .tile = k_tile, .round = k_round, .attend = k_attend, .store = k_store};
