/* The 8- and 4-bit floats. Formats: OCP 8-bit Floating Point and Microscaling (MX) specifications. */
#include "base/smallfloat.h"

float lm_e4m3_to_f32(uint8_t b) { /* 1-4-3, bias 7, "fn": all ones is NaN, there is no infinity */
    uint32_t sign = (uint32_t)(b & 0x80u) << 24, e = (b >> 3) & 15u, m = b & 7u;
    if ((b & 0x7fu) == 0x7fu) return lm_f32_from_bits(sign | 0x7fc00000u);
    if (e) return lm_f32_from_bits(sign | ((e + 120u) << 23) | (m << 20));
    return lm_f32_from_bits(lm_f32_bits((float)m * 0x1p-9f) | sign);
}

float lm_e5m2_to_f32(uint8_t b) { return lm_f16_to_f32((uint16_t)((uint32_t)b << 8)); } /* a half's upper byte */
