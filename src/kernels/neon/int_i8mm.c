/* Quantized activations on NEON with the matrix-multiply extension (I8MM, ARMv8.6): two rows by two tokens by eight k in one instruction. */
#include "kernels/lane_int.h"
#include "base/smallfloat.h"
#include "kernels/neon/v16.h"
#include "kernels/body/maths.h"
#include "kernels/body/int_unpack.h"

#define LM_UNROLL _Pragma("GCC unroll 16")
#define LM_DOTS_T 4

/* Eight k of four rows, two rows to a vector: words of quads j and j + 1 side by side */
LM_INLINE void rows_4(const uint8_t *q, int8x16_t w[2]) {
    const int32x4_t a = vreinterpretq_s32_u8(veorq_u8(vld1q_u8(q), vdupq_n_u8(128)));
    const int32x4_t b = vreinterpretq_s32_u8(veorq_u8(vld1q_u8(q + 128), vdupq_n_u8(128)));
    w[0] = vreinterpretq_s8_s32(vzip1q_s32(a, b));
    w[1] = vreinterpretq_s8_s32(vzip2q_s32(a, b));
}
/* The same of two tokens, or of one twice */
LM_INLINE int8x16_t tokens_2(const uint8_t *v, size_t apart, size_t step, bool one) {
    if (step == 4) return vreinterpretq_s8_u8(vcombine_u8(vld1_u8(v), vld1_u8(one ? v : v + apart)));
    uint32_t word[2];
    uint32x2_t a, b;
    if (one) {
        memcpy(word, v, 4);
        memcpy(word + 1, v + step, 4);
        a = vdup_n_u32(word[0]), b = vdup_n_u32(word[1]);
    } else
        a = vreinterpret_u32_u8(vld1_u8(v)), b = vreinterpret_u32_u8(vld1_u8(v + step));
    return vreinterpretq_s8_u32(vcombine_u32(vzip1_u32(a, b), vzip2_u32(a, b)));
}
/* Eight rows at a time: their sums, four vectors to a pair of tokens, stay in registers if the loop stays one. */
LM_INLINE void eight_rows(int T, const uint8_t *q, const uint8_t *v, size_t apart, size_t step, uint32_t n, int32x4_t out[LM_DOTS_T][2]) {
    const int pairs = (T + 1) / 2;
    int32x4_t acc[LM_DOTS_T / 2][4];
    LM_UNROLL for (int p = 0; p < pairs; p++) LM_UNROLL for (int r = 0; r < 4; r++) acc[p][r] = vdupq_n_s32(0);
    __asm__("" : "+r"(n)); /* else the compiler unrolls the loop and spills it all */
    for (uint32_t j = 0; j < n; j += 2, q += 256, v += 2 * step) {
        int8x16_t w[4];
        rows_4(q, w);
        rows_4(q + 16, w + 2);
        LM_UNROLL for (int p = 0; p < pairs; p++) {
            const int8x16_t x = tokens_2(v + 2 * apart * (size_t)p, apart, step, T - 2 * p == 1);
            LM_UNROLL for (int r = 0; r < 4; r++) acc[p][r] = vmmlaq_s32(acc[p][r], w[r], x);
        }
    }
    LM_UNROLL for (int t = 0; t < T; t++) LM_UNROLL for (int i = 0; i < 2; i++) {
        const int32x4_t a = acc[t / 2][2 * i], b = acc[t / 2][2 * i + 1];
        out[t][i] = t % 2 ? vuzp2q_s32(a, b) : vuzp1q_s32(a, b);
    }
}
LM_INLINE void dots(int T, const uint8_t *q, const uint8_t *v, size_t apart, size_t step, uint32_t n, vi *out) {
    int32x4_t half[2][LM_DOTS_T][2];
    eight_rows(T, q, v, apart, step, n, half[0]);
    eight_rows(T, q + 32, v, apart, step, n, half[1]);
    LM_UNROLL for (int t = 0; t < T; t++) out[t] = (vi){half[0][t][0], half[0][t][1], half[1][t][0], half[1][t][1]};
}
#include "kernels/neon/int_tile.h"

/* One token at a time has no use for a second: sums of four. */
#include "kernels/neon/int_sdot.h"

#include "kernels/body/int_gemv.h"

const lm_int_kernels lm_int_i8mm = {.level = "i8mm", .quantise = lm_int_quantise_neon, .unpack = LM_INT_UNPACK, .tile = int_tile, .gemv = LM_INT_GEMVS};
