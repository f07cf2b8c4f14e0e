/* bfloat16 products by vdpbf16ps: two strips by up to 12 tokens, or four strips by one or two, in registers. */
#include "kernels/lane_bf16.h"
/* the vectors first */
#include "kernels/avx512/v16.h"

#include "kernels/body/bf16.h"
#define LM_UNROLL _Pragma("GCC unroll 16")

LM_INLINE void body(int C, int T, const uint8_t *w, size_t strip_bytes, uint32_t pairs, const uint32_t *x, bool first, float *total, size_t ld) {
    __m512 acc[4][12];
    LM_UNROLL for (int c = 0; c < C; c++) LM_UNROLL for (int t = 0; t < T; t++) acc[c][t] = _mm512_setzero_ps();
    for (uint32_t j = 0; j < pairs; j++, w += 64, x += T) {
        __m512bh wv[4];
        LM_UNROLL for (int c = 0; c < C; c++) wv[c] = (__m512bh)_mm512_loadu_si512(w + (size_t)c * strip_bytes);
        LM_UNROLL for (int t = 0; t < T; t++) {
            const __m512bh xv = (__m512bh)_mm512_set1_epi32((int32_t)x[t]);
            LM_UNROLL for (int c = 0; c < C; c++) acc[c][t] = _mm512_dpbf16_ps(acc[c][t], wv[c], xv);
        }
    }
    LM_UNROLL for (int c = 0; c < C; c++) LM_UNROLL for (int t = 0; t < T; t++) {
        float *o = total + ((size_t)c * ld + (size_t)t) * 16;
        _mm512_storeu_ps(o, first ? acc[c][t] : _mm512_add_ps(_mm512_loadu_ps(o), acc[c][t]));
    }
}
#define LM_CASE(C, T) \
    case T: body(C, T, w, strip_bytes, pairs, x, first, total, ld); break;
static void four(const uint8_t *w, size_t strip_bytes, uint32_t pairs, const uint32_t *x, uint32_t n_t, bool first, float *total, size_t ld) {
    switch (n_t) {
        LM_CASE(4, 1)
    default: body(4, 2, w, strip_bytes, pairs, x, first, total, ld);
    }
}
static void two(const uint8_t *w, size_t strip_bytes, uint32_t pairs, const uint32_t *x, uint32_t n_t, bool first, float *total, size_t ld) {
    switch (n_t) {
        LM_CASE(2, 1) LM_CASE(2, 2) LM_CASE(2, 3) LM_CASE(2, 4) LM_CASE(2, 5) LM_CASE(2, 6) LM_CASE(2, 7) LM_CASE(2, 8) LM_CASE(2, 9)
        LM_CASE(2, 10) LM_CASE(2, 11)
    default: body(2, 12, w, strip_bytes, pairs, x, first, total, ld);
    }
}
static void one(const uint8_t *w, uint32_t pairs, const uint32_t *x, uint32_t n_t, bool first, float *total) {
    const size_t strip_bytes = 0, ld = 0;
    switch (n_t) {
        LM_CASE(1, 1) LM_CASE(1, 2) LM_CASE(1, 3) LM_CASE(1, 4) LM_CASE(1, 5) LM_CASE(1, 6) LM_CASE(1, 7) LM_CASE(1, 8) LM_CASE(1, 9)
        LM_CASE(1, 10) LM_CASE(1, 11)
    default: body(1, 12, w, strip_bytes, pairs, x, first, total, ld);
    }
}
static void tile(const uint8_t *w, size_t strip_bytes, uint32_t n_c, uint32_t pairs, const uint32_t *x, uint32_t n_t, bool first, float *total,
                 size_t ld) {
    uint32_t c = 0;
    if (n_t <= 2)
        for (; c + 4 <= n_c; c += 4) four(w + c * strip_bytes, strip_bytes, pairs, x, n_t, first, total + c * ld * 16, ld);
    for (; c + 2 <= n_c; c += 2) two(w + c * strip_bytes, strip_bytes, pairs, x, n_t, first, total + c * ld * 16, ld);
    if (c < n_c) one(w + c * strip_bytes, pairs, x, n_t, first, total + c * ld * 16);
}
const lm_bf16_kernels lm_bf16_dp = {.level = "vdpbf16ps", .tile = tile, .round = k_round};
