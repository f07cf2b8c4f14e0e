/* What the bf16 files share, written so that a compiler makes vectors of it: rounding, and where sums go. The contract is in lane_bf16.h. */
#include "base/smallfloat.h"

static void k_round(const float *x, uint32_t n, uint16_t *dst) {
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t u = lm_f32_bits(x[i]), a = u & 0x7fffffffu;
        const uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1)) >> 16, zero = u >> 16 & 0x8000u, nan = u >> 16 | 0x40u;
        dst[i] = (uint16_t)(a < 0x00800000u ? zero : a > 0x7f800000u ? nan : rounded);
    }
}

/* One block of strip c, blk[n_t][16], enters its total; after the last one the totals are joined and written. */
static inline void k_enter(const lm_bf16_tile *a, uint32_t c, bool first, bool last, const float *blk) {
    for (uint32_t t = 0; t < a->n_t; t++, blk += 16) {
        float *total = a->total + (c * a->ld + t) * 16;
        for (uint32_t r = 0; r < 16; r++) total[r] = first ? blk[r] : total[r] + blk[r];
        if (!last) continue;
        for (uint32_t j = 0; j < a->joins; j++, total -= a->slot)
            for (uint32_t r = 0; r < 16; r++) total[r - a->slot] += total[r];
        for (uint32_t r = 0; a->y && r < 16; r++) a->y[t * a->ldy + c * 16 + r] = a->bias ? total[r] + a->bias[c * 16 + r] : total[r];
    }
}
