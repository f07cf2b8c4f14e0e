/* Q5_0: half d, 32 fifth bits, 16 bytes of nibbles; d*(q - 16).   Q5_1: half d, half m, fifth bits, nibbles; d*q + m.   32 elements. */
#include "quant/blocks.h"

enum { Q5_0_BYTES = 22, Q5_1_BYTES = 24 };

/* src: 4 bytes of fifth bits, then 16 of nibbles */
static void unpack(int8_t q[LM_QK], const uint8_t *src, int offset) {
    uint32_t high = lm_load32(src);
    lm_nibbles(q, src + 4, 16);
    for (int i = 0; i < LM_QK; i++) q[i] = (int8_t)((q[i] | (int)(high >> i & 1) << 4) - offset);
}
static void pack(uint8_t *dst, const uint8_t q[LM_QK]) {
    uint32_t high = 0;
    for (int i = 0; i < LM_QK; i++) high |= (uint32_t)(q[i] >> 4) << i;
    memcpy(dst, &high, sizeof high);
    for (int i = 0; i < 16; i++) dst[4 + i] = (uint8_t)((q[i] & 15) | (q[i + 16] & 15) << 4);
}

static void ints_q5_0(const uint8_t *src, int8_t *q, float *scale, float *min) {
    (void)min;
    unpack(q, src + 2, 16);
    *scale = lm_load_half(src);
}
LM_DECODE_INTS(decode_q5_0, ints_q5_0, LM_QK, LM_QK, Q5_0_BYTES, false)
static void encode_q5_0(const float *src, uint8_t *dst, size_t n) {
    uint8_t q[LM_QK];
    for (; n; n--, src += LM_QK, dst += Q5_0_BYTES) {
        float d = lm_abs_peak(src, LM_QK) / -16, id = lm_inverse(d);
        for (int i = 0; i < LM_QK; i++) q[i] = lm_trunc_clip(src[i] * id + 16.5f, 31);
        lm_store16(dst, lm_f32_to_f16(d));
        pack(dst + 2, q);
    }
}

static void ints_q5_1(const uint8_t *src, int8_t *q, float *scale, float *min) {
    unpack(q, src + 4, 0);
    *scale = lm_load_half(src);
    *min = lm_load_half(src + 2);
}
LM_DECODE_INTS(decode_q5_1, ints_q5_1, LM_QK, LM_QK, Q5_1_BYTES, true)
static void encode_q5_1(const float *src, uint8_t *dst, size_t n) {
    uint8_t q[LM_QK];
    for (; n; n--, src += LM_QK, dst += Q5_1_BYTES) {
        float lo, hi;
        lm_min_max(src, LM_QK, &lo, &hi);
        float d = (hi - lo) / 31, id = lm_inverse(d);
        for (int i = 0; i < LM_QK; i++) q[i] = lm_trunc_clip((src[i] - lo) * id + 0.5f, 31);
        lm_store16(dst, lm_f32_to_f16(d));
        lm_store16(dst + 2, lm_f32_to_f16(lo));
        pack(dst + 4, q);
    }
}

const lm_dtype lm_dtype_Q5_0 = {
    .name = "Q5_0", .gguf_id = 6, .block = LM_QK, .bytes = Q5_0_BYTES, .decode = decode_q5_0, .encode = encode_q5_0,
    .ints = ints_q5_0, .group = LM_QK,
};
const lm_dtype lm_dtype_Q5_1 = {
    .name = "Q5_1", .gguf_id = 7, .block = LM_QK, .bytes = Q5_1_BYTES, .decode = decode_q5_1, .encode = encode_q5_1,
    .ints = ints_q5_1, .group = LM_QK, .has_min = true,
};
