/* Sixteen lanes in plain C: what every other level's primitives must equal, bit for bit. */
#ifndef LM_KERNELS_V16_H
#define LM_KERNELS_V16_H
#include "base/smallfloat.h"
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LM_INLINE static inline __attribute__((unused))
#define LM_CHAINS 1
/* gcc's vector extension: the compiler lowers whole-vector operations to what the base instruction set has, element by element the same. */
typedef float vf __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t vu __attribute__((vector_size(64), aligned(4), may_alias));
#define LM_EACH(T, expr) \
    T r; \
    for (int i = 0; i < 16; i++) r[i] = expr; \
    return r

LM_INLINE vf v_load(const float *p) { LM_EACH(vf, p[i]); }
LM_INLINE void v_store(float *p, vf a) { memcpy(p, &a, sizeof a); }
LM_INLINE vf v_load_n(const float *p, uint32_t n) { LM_EACH(vf, (uint32_t)i < n ? p[i] : 0.0f); } /* the first n, then +0 */
LM_INLINE void v_store_n(float *p, vf a, uint32_t n) { memcpy(p, &a, n * sizeof *p); }
LM_INLINE vf v_set(float a) { LM_EACH(vf, a); }
LM_INLINE vf v_fma(vf a, vf b, vf c) { LM_EACH(vf, fmaf(a[i], b[i], c[i])); }
LM_INLINE vf v_add(vf a, vf b) { return a + b; }
LM_INLINE vf v_sub(vf a, vf b) { return a - b; }
LM_INLINE vf v_mul(vf a, vf b) { return a * b; }
LM_INLINE vf v_div(vf a, vf b) { return a / b; }
LM_INLINE vf v_pick(vi mask, vf x, vf y) { return (vf)(((vi)x & mask) | ((vi)y & ~mask)); }
LM_INLINE vf v_max(vf a, vf b) { return v_pick(a > b, a, b); } /* a NaN on either side gives b */
LM_INLINE vf v_min(vf a, vf b) { return v_pick(a < b, a, b); }
LM_INLINE vf v_less(vf a, vf b, vf x, vf y) { return v_pick(a < b, x, y); }
LM_INLINE vi v_bits(vf a) { return (vi)a; }
LM_INLINE vf v_float(vi a) { return (vf)a; }
LM_INLINE vf v_cvt(vi a) { return __builtin_convertvector(a, vf); }
LM_INLINE vi i_set(int32_t a) { LM_EACH(vi, a); }
LM_INLINE vi i_load(const uint8_t *p) {
    vi r;
    memcpy(&r, p, sizeof r);
    return r;
}
LM_INLINE void i_store(uint8_t *p, vi a) { memcpy(p, &a, sizeof a); }
LM_INLINE vi i_add(vi a, vi b) { return (vi)((vu)a + (vu)b); }
LM_INLINE vi i_sub(vi a, vi b) { return (vi)((vu)a - (vu)b); }
LM_INLINE vi i_and(vi a, vi b) { return a & b; }
LM_INLINE vi i_or(vi a, vi b) { return a | b; }
LM_INLINE vi i_sllv(vi a, vi n) { return (vi)((vu)a << (vu)n); }
LM_INLINE vi i_srl(vi a, int n) { return (vi)((vu)a >> (uint32_t)n); }
LM_INLINE vi i_sll(vi a, int n) { return (vi)((vu)a << (uint32_t)n); }
LM_INLINE vi i_sra(vi a, int n) { return a >> n; }
LM_INLINE uint16_t lm_u16_at(const uint8_t *p, int i) { return (uint16_t)(p[2 * i] | p[2 * i + 1] << 8); }
LM_INLINE vf v_load_f16(const uint8_t *p) { LM_EACH(vf, lm_f16_to_f32(lm_u16_at(p, i))); }
LM_INLINE vf v_load_bf16(const uint8_t *p) { LM_EACH(vf, lm_bf16_to_f32(lm_u16_at(p, i))); }
LM_INLINE vi i_load_u8(const uint8_t *p) { LM_EACH(vi, p[i]); }
LM_INLINE vi i_load_s8(const uint8_t *p) { LM_EACH(vi, (int8_t)p[i]); }
LM_INLINE vi i_load_u8x2(const uint8_t *p, int odd) { LM_EACH(vi, p[2 * i + odd]); } /* bytes 2i + odd */
LM_INLINE vf v_nibble(vi a) { LM_EACH(vf, (float)(a[i] & 15)); }          /* the low four bits */
LM_INLINE vf v_nibble_m8(vi a) { LM_EACH(vf, (float)((a[i] & 15) - 8)); } /* minus 8 */
LM_INLINE void v_store_f16(uint16_t *p, vf a) {
    for (int i = 0; i < 16; i++) p[i] = lm_f32_to_f16(a[i]);
}
LM_INLINE float v_most(vf a) { /* the greatest; there is no NaN */
    float m = a[0];
    for (int i = 1; i < 16; i++) m = a[i] > m ? a[i] : m;
    return m;
}
/* the fixed tree: i and i+8, i+4, i+2, i+1 */
LM_INLINE float v_tree(vf a) {
    for (int h = 8; h; h /= 2)
        for (int i = 0; i < h; i++) a[i] += a[i + h];
    return a[0];
}
LM_INLINE void v_tree4(vf a, vf b, vf c, vf d, float *out) {
    out[0] = v_tree(a), out[1] = v_tree(b), out[2] = v_tree(c), out[3] = v_tree(d);
}
#endif
