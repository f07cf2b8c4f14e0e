/* What the bf16 files share: rounding, written so that a compiler makes vectors of it. The contract is in lane_bf16.h. */
#include "base/smallfloat.h"

static void k_round(const float *x, uint32_t n, uint16_t *dst) {
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t u = lm_f32_bits(x[i]), a = u & 0x7fffffffu;
        const uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1)) >> 16, zero = u >> 16 & 0x8000u, nan = u >> 16 | 0x40u;
        dst[i] = (uint16_t)(a < 0x00800000u ? zero : a > 0x7f800000u ? nan : rounded);
    }
}
