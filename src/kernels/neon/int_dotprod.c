/* Quantized activations on NEON with the dot-product extension (ARMv8.2): four products and their sum in one instruction. */
#include "kernels/lane_int.h"
#include "base/smallfloat.h"
#include "kernels/neon/v16.h"
#include "kernels/body/maths.h"
#include "kernels/body/int_unpack.h"

#define LM_UNROLL _Pragma("GCC unroll 16")
#define LM_DOTS_T 2

LM_INLINE void dots(int T, const uint8_t *q, const uint8_t *v, size_t apart, size_t step, uint32_t n, vi *out) {
    LM_UNROLL for (int t = 0; t < T; t++) out[t] = i_set(0);
    __asm__("" : "+r"(n)); /* else the compiler unrolls the loop and spills it all */
    for (uint32_t j = 0; j < n; j++, q += 128, v += step) {
        int8x16_t w[4];
        LM_UNROLL for (int i = 0; i < 4; i++) w[i] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(q + 16 * i), vdupq_n_u8(128)));
        LM_UNROLL for (int t = 0; t < T; t++) {
            uint32_t word;
            memcpy(&word, v + apart * (size_t)t, 4);
            const int8x16_t x = vreinterpretq_s8_u32(vdupq_n_u32(word));
            out[t] = (vi){vdotq_s32(out[t].a, w[0], x), vdotq_s32(out[t].b, w[1], x), vdotq_s32(out[t].c, w[2], x), vdotq_s32(out[t].d, w[3], x)};
        }
    }
}
#include "kernels/neon/int_tile.h"

#include "kernels/neon/int_sdot.h"

#include "kernels/body/int_gemv.h"

const lm_int_kernels lm_int_dotprod = {.level = "dotprod", .quantise = lm_int_quantise_neon, .unpack = LM_INT_UNPACK, .tile = int_tile, .gemv = LM_INT_GEMVS};
