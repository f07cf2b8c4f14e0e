/* bfloat16 products on NEON: two fused steps a pair, flushed by comparison. (FPCR's own flushing decides before rounding, which is another rule.)
 * A result of 2^-126 exactly may have to be flushed too; it is rare: the block is then computed in plain C. */
#include "kernels/lane_bf16.h"
/* the vectors first */
#include "kernels/neon/v16.h"

#include "kernels/body/bf16.h"
#define LM_UNROLL _Pragma("GCC unroll 16")

/* ftz(fma(a, b, c)) where no result has the size 2^-126, which *edge collects */
LM_INLINE float32x4_t step(float32x4_t a, float32x4_t b, float32x4_t c, uint32x4_t *edge) {
    const uint32x4_t u = vreinterpretq_u32_f32(vfmaq_f32(c, a, b)), least = vdupq_n_u32(0x00800000u);
    const uint32x4_t size = vandq_u32(u, vdupq_n_u32(0x7fffffffu));
    *edge = vorrq_u32(*edge, vceqq_u32(size, least));
    return vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(size, least), vandq_u32(u, vdupq_n_u32(0x80000000u)), u));
}
/* blk[16] of one token; false: an edge */
LM_INLINE bool chain(const uint8_t *w, uint32_t pairs, const uint32_t *x, uint32_t ldx, float *blk) {
    const uint32x4_t mask = vdupq_n_u32(0xffff0000u);
    float32x4_t acc[4];
    uint32x4_t edge[4];
    LM_UNROLL for (int i = 0; i < 4; i++) acc[i] = vdupq_n_f32(0), edge[i] = vdupq_n_u32(0);
    for (uint32_t j = 0; j < pairs; j++, w += 64, x += ldx) {
        const float32x4_t x0 = vdupq_n_f32(lm_f32_from_bits(*x << 16)), x1 = vdupq_n_f32(lm_f32_from_bits(*x & 0xffff0000u));
        LM_UNROLL for (int i = 0; i < 4; i++) {
            const uint32x4_t p = vreinterpretq_u32_u8(vld1q_u8(w + 16 * i));
            acc[i] = step(vreinterpretq_f32_u32(vandq_u32(p, mask)), x1, acc[i], &edge[i]);
            acc[i] = step(vreinterpretq_f32_u32(vshlq_n_u32(p, 16)), x0, acc[i], &edge[i]);
        }
    }
    LM_UNROLL for (int i = 0; i < 4; i++) vst1q_f32(blk + 4 * i, acc[i]);
    return vmaxvq_u32(vorrq_u32(vorrq_u32(edge[0], edge[1]), vorrq_u32(edge[2], edge[3]))) == 0;
}
static void tile(const lm_bf16_tile *a) {
    float blk[LM_TILE * 16];
    for (uint32_t c = 0; c < a->n_c; c++)
        for (uint32_t j = 0, n; j < a->pairs; j += n) {
            n = a->pairs - j < LM_BLK / 2 ? a->pairs - j : LM_BLK / 2;
            const uint8_t *w = a->w + c * a->strip_bytes + (size_t)j * 64;
            const uint32_t *x = a->x + (size_t)j * a->n_t;
            bool plain = true;
            for (uint32_t t = 0; t < a->n_t; t++) plain &= chain(w, n, x + t, a->n_t, blk + 16 * t);
            if (!plain) lm_bf16_c.tile(&(lm_bf16_tile){.w = w, .x = x, .n_c = 1, .pairs = n, .n_t = a->n_t, .first = true, .total = blk});
            k_enter(a, c, a->first && j == 0, j + n == a->pairs, blk);
        }
}
const lm_bf16_kernels lm_bf16_neon = {.level = "neon", .tile = tile, .round = k_round};
