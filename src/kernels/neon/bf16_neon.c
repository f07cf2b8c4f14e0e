/* bfloat16 products on NEON: two fused steps a pair, flushed by comparison. (FPCR's own flushing decides before rounding, which is another rule.)
 * A result of 2^-126 exactly may have to be flushed too; it is rare: the block is then computed in plain C. */
#include "kernels/lane_bf16.h"
/* the vectors first */
#include "kernels/neon/v16.h"

#include "kernels/body/maths.h"
#include "kernels/body/bf16.h"
#define LM_UNROLL _Pragma("GCC unroll 16")

/* ftz(fma(a, b, c)) where no result has the size 2^-126, which *edge collects */
LM_INLINE float32x4_t step(float32x4_t a, float32x4_t b, float32x4_t c, uint32x4_t *edge) {
    const uint32x4_t u = vreinterpretq_u32_f32(vfmaq_f32(c, a, b)), least = vdupq_n_u32(0x00800000u);
    const uint32x4_t size = vandq_u32(u, vdupq_n_u32(0x7fffffffu));
    *edge = vorrq_u32(*edge, vceqq_u32(size, least));
    return vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(size, least), vandq_u32(u, vdupq_n_u32(0x80000000u)), u));
}
/* acc[16] of one token; false: an edge, and acc stays as it is */
LM_INLINE bool chain(const uint8_t *w, size_t step_w, uint32_t pairs, const uint32_t *x, size_t xj, float *to) {
    const uint32x4_t mask = vdupq_n_u32(0xffff0000u);
    float32x4_t acc[4];
    uint32x4_t edge[4];
    LM_UNROLL for (int i = 0; i < 4; i++) acc[i] = vld1q_f32(to + 4 * i), edge[i] = vdupq_n_u32(0);
    for (uint32_t j = 0; j < pairs; j++, w += step_w, x += xj) {
        const float32x4_t x0 = vdupq_n_f32(lm_f32_from_bits(*x << 16)), x1 = vdupq_n_f32(lm_f32_from_bits(*x & 0xffff0000u));
        LM_UNROLL for (int i = 0; i < 4; i++) {
            const uint32x4_t p = vreinterpretq_u32_u8(vld1q_u8(w + 16 * i));
            acc[i] = step(vreinterpretq_f32_u32(vandq_u32(p, mask)), x1, acc[i], &edge[i]);
            acc[i] = step(vreinterpretq_f32_u32(vshlq_n_u32(p, 16)), x0, acc[i], &edge[i]);
        }
    }
    if (vmaxvq_u32(vorrq_u32(vorrq_u32(edge[0], edge[1]), vorrq_u32(edge[2], edge[3]))) != 0) return false;
    LM_UNROLL for (int i = 0; i < 4; i++) vst1q_f32(to + 4 * i, acc[i]);
    return true;
}
static void k_chain(const uint8_t *w, size_t step_w, uint32_t pairs, const uint32_t *x, size_t xj, size_t xt, uint32_t T, float *acc) {
    for (uint32_t t = 0; t < T; t++, x += xt, acc += 16)
        if (!chain(w, step_w, pairs, x, xj, acc)) lm_bf16_chain_c(w, step_w, pairs, x, xj, xt, 1, acc);
}
#include "kernels/body/chain_bf16.h"
#include "kernels/body/attend_bf16.h"

const lm_bf16_kernels lm_bf16_neon = {.level = "neon", .tile = k_tile, .round = k_round, .attend = k_attend, .store = k_store};
