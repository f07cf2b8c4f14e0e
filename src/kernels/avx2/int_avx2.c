/* Quantized activations on AVX2. Products of bytes are made in 16 bits: vpmaddubsw would saturate. */
#include "base/smallfloat.h"
#include "kernels/lane_int.h"
/* the vectors first, then what is built on them, in this order */
#include "kernels/avx2/v16.h"

#include "kernels/body/maths.h"

#include "kernels/body/int_unpack.h"

#define LM_UNROLL _Pragma("GCC unroll 16")
#define LM_DOTS_T 2

/* q is widened to four rows a vector, in two halves; pairs of sums are joined at the end. */
LM_INLINE void dots(int T, const uint8_t *q, const uint8_t *v, size_t apart, size_t step, uint32_t n, __m256i out[LM_DOTS_T][2]) {
    __m256i acc[LM_DOTS_T][4];
    LM_UNROLL for (int t = 0; t < T; t++) LM_UNROLL for (int i = 0; i < 4; i++) acc[t][i] = _mm256_setzero_si256();
    for (uint32_t j = 0; j < n; j++, q += 128, v += step) {
        __m256i x[LM_DOTS_T];
        LM_UNROLL for (int t = 0; t < T; t++) {
            int32_t word;
            memcpy(&word, v + apart * (size_t)t, 4);
            x[t] = _mm256_cvtepi8_epi16(_mm_set1_epi32(word));
        }
        LM_UNROLL for (int i = 0; i < 4; i++) {
            const __m256i w = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(q + 16 * i)));
            LM_UNROLL for (int t = 0; t < T; t++) acc[t][i] = _mm256_add_epi32(acc[t][i], _mm256_madd_epi16(w, x[t]));
        }
    }
    LM_UNROLL for (int t = 0; t < T; t++) LM_UNROLL for (int h = 0; h < 2; h++) out[t][h] =
        _mm256_permute4x64_epi64(_mm256_hadd_epi32(acc[t][2 * h], acc[t][2 * h + 1]), 0xd8);
}
#include "kernels/avx2/int_tile.h"

/* ---- activations -----------------------------------------------------------------------------------------------------------------*/
typedef __m256i small; /* a quarter of a block's integers */
/* four vectors of eight small integers to 32 bytes; quad j is word (j&1)·4 + j/2 */
LM_INLINE void put_bytes(const small v[4], uint8_t *dst, size_t step) {
    uint32_t word[8];
    _mm256_storeu_si256((__m256i *)word, _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3])));
    LM_UNROLL for (uint32_t j = 0; j < 8; j++) memcpy(dst + j * step, &word[(j & 1) * 4 + j / 2], 4);
}
LM_INLINE float largest(const float *x) {
    __m256i a[4];
    LM_UNROLL for (int i = 0; i < 4; i++) a[i] = _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + 8 * i)), _mm256_set1_epi32(0x7fffffff));
    a[0] = _mm256_max_epi32(_mm256_max_epi32(a[0], a[1]), _mm256_max_epi32(a[2], a[3]));
    __m128i m4 = _mm_max_epi32(_mm256_castsi256_si128(a[0]), _mm256_extracti128_si256(a[0], 1));
    m4 = _mm_max_epi32(m4, _mm_shuffle_epi32(m4, 0x4e));
    m4 = _mm_max_epi32(m4, _mm_shuffle_epi32(m4, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(m4));
}
/* −128 times the sum of 32 small integers, and that of the first 16 */
LM_INLINE void corrections(const small v[4], int32_t c[2]) {
    const __m256i h = _mm256_hadd_epi32(_mm256_add_epi32(v[0], v[1]), _mm256_add_epi32(v[2], v[3]));
    __m128i h4 = _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
    h4 = _mm_hadd_epi32(h4, h4);
    c[1] = -128 * _mm_cvtsi128_si32(h4);
    c[0] = c[1] - 128 * _mm_extract_epi32(h4, 1);
}
LM_INLINE void rounded(bool quiet, bool finite, const float *x, float s, small hi[4], small lo[4]) {
    LM_UNROLL for (int i = 0; i < 4; i++) {
        const __m256i r = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(s)));
        const __m256i v = finite ? r : _mm256_setzero_si256();
        hi[i] = quiet ? v : _mm256_srai_epi32(_mm256_add_epi32(v, _mm256_set1_epi32(128)), 8);
        lo[i] = quiet ? _mm256_setzero_si256() : _mm256_sub_epi32(v, _mm256_slli_epi32(hi[i], 8));
    }
}
#include "kernels/body/int_quantise.h"

void lm_int_quantise_avx2(lm_int_lane lane, const float *const *x, uint32_t w, uint32_t K, uint8_t *dst, uint8_t *tail) {
    quantise_tile(lane, x, w, K, dst, tail);
}
/* u up to 63: two products and their sum stay within 16 bits */
LM_INLINE vi i_dp(vi acc, vi u, int32_t x) {
    const __m256i v = _mm256_set1_epi32(x), one = _mm256_set1_epi16(1);
    return (vi){_mm256_add_epi32(acc.a, _mm256_madd_epi16(_mm256_maddubs_epi16(u.a, v), one)),
                _mm256_add_epi32(acc.b, _mm256_madd_epi16(_mm256_maddubs_epi16(u.b, v), one))};
}
#define LM_DP_WIDE 0
#include "kernels/body/int_gemv.h"

const lm_int_kernels lm_int_avx2 = {
    .level = "avx2", .quantise = lm_int_quantise_avx2, .unpack = LM_INT_UNPACK, .tile = int_tile, .gemv = LM_INT_GEMVS};
