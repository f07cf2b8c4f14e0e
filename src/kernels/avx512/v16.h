/* Sixteen lanes on AVX-512 (F, BW, DQ, VL): the primitives that the bodies are built on. See ref/v16.h for what each means. */
#ifndef LM_KERNELS_V16_H
#define LM_KERNELS_V16_H
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define LM_INLINE static inline __attribute__((always_inline, unused))
#define LM_CHAINS 4 /* strips that a one-token gemv runs side by side */
typedef __m512 vf;
typedef __m512i vi;

LM_INLINE vf v_load(const float *p) { return _mm512_loadu_ps(p); }
LM_INLINE void v_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
LM_INLINE vf v_load_n(const float *p, uint32_t n) { return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p); }
LM_INLINE void v_store_n(float *p, vf a, uint32_t n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a); }
LM_INLINE vf v_set(float a) { return _mm512_set1_ps(a); }
LM_INLINE vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
LM_INLINE vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
LM_INLINE vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
LM_INLINE vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
LM_INLINE vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
LM_INLINE vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
LM_INLINE vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }
LM_INLINE vf v_less(vf a, vf b, vf x, vf y) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x); }
LM_INLINE vi v_bits(vf a) { return _mm512_castps_si512(a); }
LM_INLINE vf v_float(vi a) { return _mm512_castsi512_ps(a); }
LM_INLINE vf v_cvt(vi a) { return _mm512_cvtepi32_ps(a); }
LM_INLINE vi i_set(int32_t a) { return _mm512_set1_epi32(a); }
LM_INLINE vi i_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
LM_INLINE void i_store(uint8_t *p, vi a) { _mm512_storeu_si512(p, a); }
LM_INLINE vi i_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
LM_INLINE vi i_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
LM_INLINE vi i_and(vi a, vi b) { return _mm512_and_si512(a, b); }
LM_INLINE vi i_or(vi a, vi b) { return _mm512_or_si512(a, b); }
LM_INLINE vi i_srl(vi a, int n) { return _mm512_srli_epi32(a, (unsigned)n); }
LM_INLINE vi i_sllv(vi a, vi n) { return _mm512_sllv_epi32(a, n); }
LM_INLINE vi i_sll(vi a, int n) { return _mm512_slli_epi32(a, (unsigned)n); }
LM_INLINE vi i_sra(vi a, int n) { return _mm512_srai_epi32(a, (unsigned)n); }
LM_INLINE vf v_load_f16(const uint8_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
LM_INLINE vf v_load_bf16(const uint8_t *p) {
    return v_float(i_sll(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
LM_INLINE vi i_load_u8(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
LM_INLINE vi i_load_s8(const uint8_t *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)); }
LM_INLINE vi i_load_u8x2(const uint8_t *p, int odd) { /* bytes 2i + odd */
    return i_and(i_srl(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 8 * odd), i_set(255));
}
/* The permutation reads only the low four bits of its index: no masking is needed. */
LM_INLINE vf v_nibble(vi a) {
    return _mm512_permutexvar_ps(a, _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}
LM_INLINE vf v_nibble_m8(vi a) {
    return _mm512_permutexvar_ps(a, _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7));
}
LM_INLINE void v_store_f16(uint16_t *p, vf a) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); }
#ifndef LM_ACTS
#define LM_ACTS 4
#endif
#define LM_SCALE 1
LM_INLINE vf v_scale(vf p, vf t, vf n) {
    (void)t;
    return _mm512_scalef_ps(p, n);
}
LM_INLINE float v_most(vf a) { return _mm512_reduce_max_ps(a); } /* the greatest; there is no NaN */
/* the fixed tree: i and i+8, i+4, i+2, i+1 */
LM_INLINE float v_tree(vf a) {
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
/* Four trees at once: out[j*stride] = v_tree(a[j]) */
LM_INLINE void v_tree4(vf a, vf b, vf c, vf d, float *out) {
    __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee)); /* a' b' in halves */
    __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    __m512 q = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd)); /* a b c d in quarters */
    q = _mm512_add_ps(q, _mm512_permute_ps(q, 0x4e));
    q = _mm512_add_ps(q, _mm512_permute_ps(q, 0xb1));
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12), q)));
}
#endif
