/* Small float formats, exact and branch-light: IEEE half, bfloat16, FP8 E4M3 (fn) and E5M2, E8M0, FP4 E2M1. To float is exact; from
 * float rounds to nearest even. Half: subnormals, infinities and NaN as IEEE. E4M3: 0x7f/0xff NaN, no infinity. */
#ifndef LM_BASE_SMALLFLOAT_H
#define LM_BASE_SMALLFLOAT_H
#include <stdint.h>
#include <string.h>

static inline float lm_f32_from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint32_t lm_f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
static inline float lm_bf16_to_f32(uint16_t h) { return lm_f32_from_bits((uint32_t)h << 16); }
static inline uint16_t lm_f32_to_bf16(float f) {
    uint32_t u = lm_f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
static inline float lm_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = (h >> 10) & 31u, m = h & 0x3ffu;
    if (e == 31) return lm_f32_from_bits(sign | 0x7f800000u | (m << 13));
    if (e) return lm_f32_from_bits(sign | ((e + 112u) << 23) | (m << 13));
    float f = (float)m * 0x1p-24f; /* subnormal or zero, exact */
    return lm_f32_from_bits(lm_f32_bits(f) | sign);
}
static inline uint16_t lm_f32_to_f16(float f) {
    uint32_t u = lm_f32_bits(f), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to infinity */
    if (a < 0x38800000u) {                                   /* half subnormal: let the FPU round at 2^-24 */
        float r = lm_f32_from_bits(a) + 0.5f;                /* ulp of [0.5,1) is 2^-24 */
        return (uint16_t)(sign | (lm_f32_bits(r) - 0x3f000000u));
    }
    a += 0xfffu + ((a >> 13) & 1u);
    return (uint16_t)(sign | ((a - 0x38000000u) >> 13));
}
float lm_e4m3_to_f32(uint8_t b);
float lm_e5m2_to_f32(uint8_t b);
#endif
