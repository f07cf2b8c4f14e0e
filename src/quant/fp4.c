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

static void ints_mxfp4(const uint8_t *src, int8_t *q, float *scale, float *min) {
    (void)min;
    unpack(q, src + 1, 16);
    *scale = ldexpf(1, src[0] - 128);
}
LM_DECODE_INTS(decode_mxfp4, ints_mxfp4, LM_QK, 32, MXFP4_BYTES, false)

static float half_ue4m3(uint8_t b) {
    int e = b >> 3 & 15, m = b & 7;
    if (b == 0x7f) return 0;
    return e ? ldexpf((float)(8 + m), e - 11) : ldexpf((float)m, -10);
}
static void ints_nvfp4(const uint8_t *src, int8_t *q, float *scale, float *min) {
    (void)min;
    for (int g = 0; g < 4; g++) {
        unpack(q + 16 * g, src + 4 + 8 * g, 8);
        scale[g] = half_ue4m3(src[g]);
    }
}
LM_DECODE_INTS(decode_nvfp4, ints_nvfp4, NVFP4_BLOCK, 16, NVFP4_BYTES, false)

const lm_dtype lm_dtype_MXFP4 = {
    .name = "MXFP4", .gguf_id = 39, .block = LM_QK, .bytes = MXFP4_BYTES, .decode = decode_mxfp4,
    .ints = ints_mxfp4, .group = 32,
};
const lm_dtype lm_dtype_NVFP4 = {
    .name = "NVFP4", .gguf_id = 40, .block = NVFP4_BLOCK, .bytes = NVFP4_BYTES, .decode = decode_nvfp4,
    .ints = ints_nvfp4, .group = 16,
};
