/* Quantized activations on NEON. Products of bytes are made in 16 bits and summed in 32: no step can overflow. */
#include "kernels/lane_int.h"
#include "base/smallfloat.h"
#include "kernels/neon/v16.h"
#include "kernels/body/maths.h"
#include "kernels/body/int_unpack.h"

#define LM_UNROLL _Pragma("GCC unroll 16")
#define LM_DOTS_T 2

/* Two rows a product; each row's four come out as two sums, joined at the end. */
LM_INLINE void dots(int T, const uint8_t *q, const uint8_t *v, size_t apart, size_t step, uint32_t n, vi *out) {
    int32x4_t acc[LM_DOTS_T][8];
    LM_UNROLL for (int t = 0; t < T; t++) LM_UNROLL for (int i = 0; i < 8; i++) acc[t][i] = vdupq_n_s32(0);
    __asm__("" : "+r"(n)); /* else the compiler unrolls the loop and spills it all */
    for (uint32_t j = 0; j < n; j++, q += 128, v += step) {
        int8x16_t x[LM_DOTS_T];
        LM_UNROLL for (int t = 0; t < T; t++) {
            uint32_t word;
            memcpy(&word, v + apart * (size_t)t, 4);
            x[t] = vreinterpretq_s8_u32(vdupq_n_u32(word));
        }
        LM_UNROLL for (int i = 0; i < 4; i++) {
            const int8x16_t w = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(q + 16 * i), vdupq_n_u8(128)));
            LM_UNROLL for (int t = 0; t < T; t++) {
                acc[t][2 * i] = vpadalq_s16(acc[t][2 * i], vmull_s8(vget_low_s8(w), vget_low_s8(x[t])));
                acc[t][2 * i + 1] = vpadalq_s16(acc[t][2 * i + 1], vmull_high_s8(w, x[t]));
            }
        }
    }
    LM_UNROLL for (int t = 0; t < T; t++)
        out[t] = (vi){vpaddq_s32(acc[t][0], acc[t][1]), vpaddq_s32(acc[t][2], acc[t][3]), vpaddq_s32(acc[t][4], acc[t][5]),
                      vpaddq_s32(acc[t][6], acc[t][7])};
}
#include "kernels/neon/int_tile.h"

#define LM_DP_WIDE 0 /* two products of 63 and 128 still fit 16 bits */
LM_INLINE vi i_dp(vi acc, vi u, int32_t word) {
    const int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(word));
#define PRODUCTS(b) vpaddq_s16(vmull_s8(vget_low_s8(b), vget_low_s8(x)), vmull_high_s8(b, x))
#define DP(s, b) vpadalq_s16(s, PRODUCTS(vreinterpretq_s8_s32(b)))
    return LM_Q2(vi, DP, acc, u);
#undef DP
#undef PRODUCTS
}
#include "kernels/body/int_gemv.h"

/* ---- activations -----------------------------------------------------------------------------------------------------------------*/
typedef int16x8_t small; /* a quarter of a block's integers */
/* 32 small integers to bytes; their eight quads `step` bytes apart */
LM_INLINE void put_bytes(const small v[4], uint8_t *dst, size_t step) {
    uint8_t byte[32];
    vst1q_u8(byte, vreinterpretq_u8_s8(vmovn_high_s16(vmovn_s16(v[0]), v[1])));
    vst1q_u8(byte + 16, vreinterpretq_u8_s8(vmovn_high_s16(vmovn_s16(v[2]), v[3])));
    LM_UNROLL for (uint32_t j = 0; j < 8; j++) memcpy(dst + j * step, byte + 4 * j, 4);
}
LM_INLINE float largest(const float *x) {
    uint32x4_t most = vdupq_n_u32(0);
    LM_UNROLL for (int i = 0; i < 8; i++) most = vmaxq_u32(most, vandq_u32(vreinterpretq_u32_f32(vld1q_f32(x + 4 * i)), vdupq_n_u32(0x7fffffff)));
    const uint32_t bits = vmaxvq_u32(most); /* in the order of magnitudes, NaN last */
    float m;
    memcpy(&m, &bits, sizeof m);
    return m;
}
/* −128 times the sum of 32 small integers, and that of the first 16 */
LM_INLINE void corrections(const small v[4], int32_t c[2]) {
    c[1] = -128 * (vaddlvq_s16(v[0]) + vaddlvq_s16(v[1]));
    c[0] = c[1] - 128 * (vaddlvq_s16(v[2]) + vaddlvq_s16(v[3]));
}
LM_INLINE void rounded(bool quiet, bool finite, const float *x, float s, small hi[4], small lo[4]) {
    LM_UNROLL for (int i = 0; i < 4; i++) {
        const int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 8 * i), s)), b = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 8 * i + 4), s));
        const int16x8_t v = finite ? vmovn_high_s32(vmovn_s32(a), b) : vdupq_n_s16(0);
        hi[i] = quiet ? v : vrshrq_n_s16(v, 8); /* (v + 128) >> 8, the sum not cut to 16 bits */
        lo[i] = quiet ? vdupq_n_s16(0) : vsubq_s16(v, vshlq_n_s16(hi[i], 8));
    }
}
#include "kernels/body/int_quantise.h"

void lm_int_quantise_neon(lm_int_lane lane, const float *const *x, uint32_t w, uint32_t K, uint8_t *dst, uint8_t *tail) {
    quantise_tile(lane, x, w, K, dst, tail);
}
const lm_int_kernels lm_int_neon = {.level = "neon", .quantise = lm_int_quantise_neon, .unpack = LM_INT_UNPACK, .tile = int_tile, .gemv = LM_INT_GEMVS};
