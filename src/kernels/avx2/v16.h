/* Sixteen lanes on AVX2, FMA and F16C: two halves. See ref/v16.h for what each primitive means. */
#ifndef LM_KERNELS_V16_H
#define LM_KERNELS_V16_H
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define LM_INLINE static inline __attribute__((always_inline, unused))
#define LM_CHAINS 2
typedef struct vf { __m256 a, b; } vf;
typedef struct vi { __m256i a, b; } vi;

LM_INLINE vf v_load(const float *p) { return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
LM_INLINE void v_store(float *p, vf x) { _mm256_storeu_ps(p, x.a), _mm256_storeu_ps(p + 8, x.b); }
LM_INLINE vf v_load_n(const float *p, uint32_t n) {
    float t[16] = {0};
    memcpy(t, p, n * sizeof *p);
    return v_load(t);
}
LM_INLINE void v_store_n(float *p, vf x, uint32_t n) {
    float t[16];
    v_store(t, x);
    memcpy(p, t, n * sizeof *p);
}
LM_INLINE vf v_set(float x) { return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
LM_INLINE vf v_fma(vf x, vf y, vf z) { return (vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
LM_INLINE vf v_add(vf x, vf y) { return (vf){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
LM_INLINE vf v_sub(vf x, vf y) { return (vf){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
LM_INLINE vf v_mul(vf x, vf y) { return (vf){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
LM_INLINE vf v_div(vf x, vf y) { return (vf){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
LM_INLINE vf v_max(vf x, vf y) { return (vf){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
LM_INLINE vf v_min(vf x, vf y) { return (vf){_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
LM_INLINE vf v_less(vf a, vf b, vf x, vf y) {
    return (vf){_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(a.a, b.a, _CMP_LT_OQ)), _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(a.b, b.b, _CMP_LT_OQ))};
}
LM_INLINE vi v_bits(vf x) { return (vi){_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
LM_INLINE vf v_float(vi x) { return (vf){_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
LM_INLINE vf v_cvt(vi x) { return (vf){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
LM_INLINE vi i_set(int32_t x) { return (vi){_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
LM_INLINE vi i_load(const uint8_t *p) { return (vi){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 32))}; }
LM_INLINE void i_store(uint8_t *p, vi x) { _mm256_storeu_si256((__m256i *)p, x.a), _mm256_storeu_si256((__m256i *)(p + 32), x.b); }
LM_INLINE vi i_add(vi x, vi y) { return (vi){_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
LM_INLINE vi i_sub(vi x, vi y) { return (vi){_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
LM_INLINE vi i_and(vi x, vi y) { return (vi){_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
LM_INLINE vi i_or(vi x, vi y) { return (vi){_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
LM_INLINE vi i_srl(vi x, int n) { return (vi){_mm256_srli_epi32(x.a, n), _mm256_srli_epi32(x.b, n)}; }
LM_INLINE vi i_sllv(vi x, vi n) { return (vi){_mm256_sllv_epi32(x.a, n.a), _mm256_sllv_epi32(x.b, n.b)}; }
LM_INLINE vi i_sll(vi x, int n) { return (vi){_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)}; }
LM_INLINE vi i_sra(vi x, int n) { return (vi){_mm256_srai_epi32(x.a, n), _mm256_srai_epi32(x.b, n)}; }
#define LM_LD128(p) _mm_loadu_si128((const __m128i *)(p))
#define LM_LD64(p) _mm_loadl_epi64((const __m128i *)(p))
LM_INLINE vf v_load_f16(const uint8_t *p) { return (vf){_mm256_cvtph_ps(LM_LD128(p)), _mm256_cvtph_ps(LM_LD128(p + 16))}; }
LM_INLINE vi i_load_u16(const uint8_t *p) { return (vi){_mm256_cvtepu16_epi32(LM_LD128(p)), _mm256_cvtepu16_epi32(LM_LD128(p + 16))}; }
LM_INLINE vf v_load_bf16(const uint8_t *p) { return v_float(i_sll(i_load_u16(p), 16)); }
LM_INLINE vi i_load_u8(const uint8_t *p) { return (vi){_mm256_cvtepu8_epi32(LM_LD64(p)), _mm256_cvtepu8_epi32(LM_LD64(p + 8))}; }
LM_INLINE vi i_load_s8(const uint8_t *p) { return (vi){_mm256_cvtepi8_epi32(LM_LD64(p)), _mm256_cvtepi8_epi32(LM_LD64(p + 8))}; }
LM_INLINE vi i_load_u8x2(const uint8_t *p, int odd) { return i_and(i_srl(i_load_u16(p), 8 * odd), i_set(255)); }
LM_INLINE vf v_nibble(vi x) { return v_cvt(i_and(x, i_set(15))); }
LM_INLINE vf v_nibble_m8(vi x) { return v_cvt(i_sub(i_and(x, i_set(15)), i_set(8))); }
LM_INLINE void v_store_f16(uint16_t *p, vf x) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
LM_INLINE float v_most(vf x) {
    const __m256 h = _mm256_max_ps(x.a, x.b);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}
LM_INLINE float v_tree(vf x) {
    __m256 h = _mm256_add_ps(x.a, x.b);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
LM_INLINE void v_tree4(vf a, vf b, vf c, vf d, float *out) {
    out[0] = v_tree(a), out[1] = v_tree(b), out[2] = v_tree(c), out[3] = v_tree(d);
}
#endif
