/* Four-bit floats (E2M1) under small float scales, as GGUF lays them out.
 * MXFP4: a byte e, 16 bytes of nibbles (low ones first); 32 elements, each 2^(e-127) times its E2M1 value. GGUF gives e = 255 the value
 * 2^128, where the OCP format has NaN.
 * NVFP4: 4 bytes of unsigned E4M3 scales, 4 times 8 bytes of nibbles; 64 elements in groups of 16. A scale of 0x7f counts as 0, and the
 * top bit is ignored otherwise. */
#include <math.h>

#include "quant/blocks.h"

enum { MXFP4_BYTES = 17, NVFP4_BYTES = 36, NVFP4_BLOCK = 64 };

/* twice the E2M1 values, so that they are integers */
static const int8_t e2m1_twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static void unpack(int8_t *q, const uint8_t *src, size_t n) {
    lm_nibbles(q, src, n);
    for (size_t i = 0; i < 2 * n; i++) q[i] = e2m1_twice[q[i]];
}

static void decode_mxfp4(const uint8_t *src, double *dst, size_t n) {
    int8_t q[LM_QK];
    for (; n; n--, src += MXFP4_BYTES, dst += LM_QK) {
        unpack(q, src + 1, 16);
        lm_scale_f64(dst, ldexp(1, src[0] - 128), q, LM_QK);
    }
}

static double half_ue4m3(uint8_t b) {
    int e = b >> 3 & 15, m = b & 7;
    if (b == 0x7f) return 0;
    return e ? ldexp(8 + m, e - 11) : ldexp(m, -10);
}
static void decode_nvfp4(const uint8_t *src, double *dst, size_t n) {
    int8_t q[16];
    for (; n; n--, src += NVFP4_BYTES, dst += NVFP4_BLOCK)
        for (int g = 0; g < 4; g++) {
            unpack(q, src + 4 + 8 * g, 8);
            lm_scale_f64(dst + 16 * g, half_ue4m3(src[g]), q, 16);
        }
}

const lm_dtype lm_dtype_MXFP4 = {
    .name = "MXFP4", .gguf_id = 39, .block = LM_QK, .bytes = MXFP4_BYTES, .decode = decode_mxfp4,
};
const lm_dtype lm_dtype_NVFP4 = {
    .name = "NVFP4", .gguf_id = 40, .block = NVFP4_BLOCK, .bytes = NVFP4_BYTES, .decode = decode_nvfp4,
};
