/* Sixteen lanes on NEON (AArch64): four quarters. See ref/v16.h for what each primitive means. */
#ifndef LM_KERNELS_V16_H
#define LM_KERNELS_V16_H
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#define LM_INLINE static inline __attribute__((always_inline, unused))
#define LM_CHAINS 2
typedef struct vf { float32x4_t a, b, c, d; } vf;
typedef struct vi { int32x4_t a, b, c, d; } vi;
/* the same operation on each quarter of one, two or three operands */
#define LM_Q1(T, f, x) (T){f((x).a), f((x).b), f((x).c), f((x).d)}
#define LM_Q2(T, f, x, y) (T){f((x).a, (y).a), f((x).b, (y).b), f((x).c, (y).c), f((x).d, (y).d)}
#define LM_Q3(T, f, x, y, z) (T){f((x).a, (y).a, (z).a), f((x).b, (y).b, (z).b), f((x).c, (y).c, (z).c), f((x).d, (y).d, (z).d)}

LM_INLINE vf v_load(const float *p) { return (vf){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}; }
LM_INLINE void v_store(float *p, vf x) { vst1q_f32(p, x.a), vst1q_f32(p + 4, x.b), vst1q_f32(p + 8, x.c), vst1q_f32(p + 12, x.d); }
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
LM_INLINE vf v_set(float x) {
    const float32x4_t v = vdupq_n_f32(x);
    return (vf){v, v, v, v};
}
LM_INLINE vf v_fma(vf x, vf y, vf z) { return LM_Q3(vf, vfmaq_f32, z, x, y); }
LM_INLINE vf v_add(vf x, vf y) { return LM_Q2(vf, vaddq_f32, x, y); }
LM_INLINE vf v_sub(vf x, vf y) { return LM_Q2(vf, vsubq_f32, x, y); }
LM_INLINE vf v_mul(vf x, vf y) { return LM_Q2(vf, vmulq_f32, x, y); }
LM_INLINE vf v_div(vf x, vf y) { return LM_Q2(vf, vdivq_f32, x, y); }
/* Selected by a comparison: FMAX and FMIN would return the NaN of either side. */
LM_INLINE float32x4_t lm_q_max(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
LM_INLINE float32x4_t lm_q_min(float32x4_t x, float32x4_t y) { return vbslq_f32(vcltq_f32(x, y), x, y); }
LM_INLINE vf v_max(vf x, vf y) { return LM_Q2(vf, lm_q_max, x, y); }
LM_INLINE vf v_min(vf x, vf y) { return LM_Q2(vf, lm_q_min, x, y); }
LM_INLINE vf v_less(vf a, vf b, vf x, vf y) {
    return (vf){vbslq_f32(vcltq_f32(a.a, b.a), x.a, y.a), vbslq_f32(vcltq_f32(a.b, b.b), x.b, y.b), vbslq_f32(vcltq_f32(a.c, b.c), x.c, y.c),
                vbslq_f32(vcltq_f32(a.d, b.d), x.d, y.d)};
}
LM_INLINE vi v_bits(vf x) { return LM_Q1(vi, vreinterpretq_s32_f32, x); }
LM_INLINE vf v_float(vi x) { return LM_Q1(vf, vreinterpretq_f32_s32, x); }
LM_INLINE vf v_cvt(vi x) { return LM_Q1(vf, vcvtq_f32_s32, x); }
LM_INLINE vi i_set(int32_t x) {
    const int32x4_t v = vdupq_n_s32(x);
    return (vi){v, v, v, v};
}
#define LM_LDQ(p) vreinterpretq_s32_u8(vld1q_u8(p)) /* from anywhere */
LM_INLINE vi i_load(const uint8_t *p) { return (vi){LM_LDQ(p), LM_LDQ(p + 16), LM_LDQ(p + 32), LM_LDQ(p + 48)}; }
LM_INLINE void lm_q_store(uint8_t *p, int32x4_t x) { vst1q_u8(p, vreinterpretq_u8_s32(x)); }
LM_INLINE void i_store(uint8_t *p, vi x) { lm_q_store(p, x.a), lm_q_store(p + 16, x.b), lm_q_store(p + 32, x.c), lm_q_store(p + 48, x.d); }
LM_INLINE vi i_add(vi x, vi y) { return LM_Q2(vi, vaddq_s32, x, y); }
LM_INLINE vi i_sub(vi x, vi y) { return LM_Q2(vi, vsubq_s32, x, y); }
LM_INLINE vi i_and(vi x, vi y) { return LM_Q2(vi, vandq_s32, x, y); }
LM_INLINE vi i_or(vi x, vi y) { return LM_Q2(vi, vorrq_s32, x, y); }
/* Shifts by the compiler's operators: the intrinsics with an immediate want a literal, and n is one only after inlining. */
#define LM_Q_SRL(x) ((int32x4_t)((uint32x4_t)(x) >> (uint32_t)n))
#define LM_Q_SLL(x) ((int32x4_t)((uint32x4_t)(x) << (uint32_t)n))
#define LM_Q_SRA(x) ((x) >> n)
LM_INLINE vi i_sllv(vi x, vi n) { return LM_Q2(vi, vshlq_s32, x, n); }
LM_INLINE vi i_srl(vi x, int n) { return LM_Q1(vi, LM_Q_SRL, x); }
LM_INLINE vi i_sll(vi x, int n) { return LM_Q1(vi, LM_Q_SLL, x); }
LM_INLINE vi i_sra(vi x, int n) { return LM_Q1(vi, LM_Q_SRA, x); }
LM_INLINE float32x4_t lm_q_f16(const uint8_t *p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
LM_INLINE float32x4_t lm_q_bf16(const uint8_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16)); }
LM_INLINE vf v_load_f16(const uint8_t *p) { return (vf){lm_q_f16(p), lm_q_f16(p + 8), lm_q_f16(p + 16), lm_q_f16(p + 24)}; }
LM_INLINE vf v_load_bf16(const uint8_t *p) { return (vf){lm_q_bf16(p), lm_q_bf16(p + 8), lm_q_bf16(p + 16), lm_q_bf16(p + 24)}; }
LM_INLINE vi lm_i_widen_s8(int8x16_t x) {
    const int16x8_t lo = vmovl_s8(vget_low_s8(x)), hi = vmovl_high_s8(x);
    return (vi){vmovl_s16(vget_low_s16(lo)), vmovl_high_s16(lo), vmovl_s16(vget_low_s16(hi)), vmovl_high_s16(hi)};
}
LM_INLINE vi lm_i_widen_u8(uint8x16_t x) {
    const int16x8_t lo = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(x))), hi = vreinterpretq_s16_u16(vmovl_high_u8(x));
    return (vi){vmovl_s16(vget_low_s16(lo)), vmovl_high_s16(lo), vmovl_s16(vget_low_s16(hi)), vmovl_high_s16(hi)};
}
LM_INLINE vi i_load_u8(const uint8_t *p) { return lm_i_widen_u8(vld1q_u8(p)); }
LM_INLINE vi i_load_s8(const uint8_t *p) { return lm_i_widen_s8(vreinterpretq_s8_u8(vld1q_u8(p))); }
LM_INLINE vi i_load_u8x2(const uint8_t *p, int odd) {
    const uint8x16x2_t x = vld2q_u8(p);
    return lm_i_widen_u8(odd ? x.val[1] : x.val[0]);
}
LM_INLINE vf v_nibble(vi x) { return v_cvt(i_and(x, i_set(15))); }
LM_INLINE vf v_nibble_m8(vi x) { return v_cvt(i_sub(i_and(x, i_set(15)), i_set(8))); }
LM_INLINE void v_store_f16(uint16_t *p, vf x) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x.a))), vst1_u16(p + 4, vreinterpret_u16_f16(vcvt_f16_f32(x.b)));
    vst1_u16(p + 8, vreinterpret_u16_f16(vcvt_f16_f32(x.c))), vst1_u16(p + 12, vreinterpret_u16_f16(vcvt_f16_f32(x.d)));
}
LM_INLINE float v_most(vf x) { return vmaxvq_f32(lm_q_max(lm_q_max(x.a, x.b), lm_q_max(x.c, x.d))); }
/* lanes i and i+8, then i+4: what is left is four lanes */
LM_INLINE float32x4_t lm_q_fold(vf x) { return vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d)); }
LM_INLINE float v_tree(vf x) {
    const float32x4_t q = lm_q_fold(x);
    return vpadds_f32(vadd_f32(vget_low_f32(q), vget_high_f32(q)));
}
/* lanes i and i+2 of two vectors: x's two sums, y's two sums */
LM_INLINE float32x4_t lm_q_halves(float32x4_t x, float32x4_t y) {
    return vaddq_f32(vcombine_f32(vget_low_f32(x), vget_low_f32(y)), vcombine_f32(vget_high_f32(x), vget_high_f32(y)));
}
LM_INLINE void v_tree4(vf a, vf b, vf c, vf d, float *out) {
    vst1q_f32(out, vpaddq_f32(lm_q_halves(lm_q_fold(a), lm_q_fold(b)), lm_q_halves(lm_q_fold(c), lm_q_fold(d))));
}
#endif
