/* Quantized activations on AVX2 with the VNNI extension in its 256-bit VEX form. */
#include "base/smallfloat.h"
#include "kernels/lane_int.h"
/* the vectors first, then what is built on them, in this order */
#include "kernels/avx2/v16.h"

#include "kernels/body/maths.h"

#include "kernels/body/int_unpack.h"

#define LM_UNROLL _Pragma("GCC unroll 16")
#define LM_DOTS_T 3

LM_INLINE void dots(int T, const uint8_t *q, const uint8_t *v, size_t apart, size_t step, uint32_t n, __m256i out[LM_DOTS_T][2]) {
    LM_UNROLL for (int t = 0; t < T; t++) out[t][0] = out[t][1] = _mm256_setzero_si256();
    LM_UNROLL for (uint32_t j = 0; j < n; j++, q += 128, v += step) {
        const __m256i a = _mm256_loadu_si256((const __m256i *)q), b = _mm256_loadu_si256((const __m256i *)(q + 32));
        LM_UNROLL for (int t = 0; t < T; t++) {
            int32_t word;
            memcpy(&word, v + apart * (size_t)t, 4);
            const __m256i x = _mm256_set1_epi32(word);
            out[t][0] = _mm256_dpbusd_avx_epi32(out[t][0], a, x);
            out[t][1] = _mm256_dpbusd_avx_epi32(out[t][1], b, x);
        }
    }
}
#include "kernels/avx2/int_tile.h"

LM_INLINE vi i_dp(vi acc, vi u, int32_t x) {
    const __m256i v = _mm256_set1_epi32(x);
    return (vi){_mm256_dpbusd_avx_epi32(acc.a, u.a, v), _mm256_dpbusd_avx_epi32(acc.b, u.b, v)};
}
#define LM_DP_WIDE 1
#include "kernels/body/int_gemv.h"

const lm_int_kernels lm_int_avxvnni = {
    .level = "avxvnni", .quantise = lm_int_quantise_avx2, .unpack = LM_INT_UNPACK, .tile = int_tile, .gemv = LM_INT_GEMVS};
