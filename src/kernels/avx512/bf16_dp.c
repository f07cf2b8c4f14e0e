/* bfloat16 products by vdpbf16ps: two strips by up to 12 tokens, or four strips by one or two, in registers. */
#include "kernels/lane_bf16.h"
/* the vectors first */
#include "kernels/avx512/v16.h"

#include "kernels/body/bf16.h"
#define LM_UNROLL _Pragma("GCC unroll 16")

LM_INLINE void body(int C, int T, const lm_bf16_tile *a, uint32_t c0) {
    const uint8_t *w = a->w + c0 * a->strip_bytes, *ahead = a->ahead;
    const size_t strip_bytes = a->strip_bytes, step = a->step, ld = a->ld * 16;
    const uint32_t *x = a->x;
    float *total = a->total + c0 * ld;
    __m512 acc[4][12];
    bool first = a->first;
    for (uint32_t left = a->pairs, n;; first = false) {
        LM_UNROLL for (int c = 0; c < C; c++) LM_UNROLL for (int t = 0; t < T; t++) acc[c][t] = _mm512_setzero_ps();
        n = left < LM_BLK / 2 ? left : LM_BLK / 2;
        for (const uint8_t *const end = w + (size_t)n * 64; w < end; w += 64, x += T, ahead += step) {
            __m512bh wv[4];
            if (T > 2) _mm_prefetch(ahead, _MM_HINT_T1); /* a stream of few tokens is left to the hardware */
            LM_UNROLL for (int c = 0; c < C; c++) wv[c] = (__m512bh)_mm512_loadu_si512(w + (size_t)c * strip_bytes);
            LM_UNROLL for (int t = 0; t < T; t++) {
                const __m512bh xv = (__m512bh)_mm512_set1_epi32((int32_t)x[t]);
                LM_UNROLL for (int c = 0; c < C; c++) acc[c][t] = _mm512_dpbf16_ps(acc[c][t], wv[c], xv);
            }
        }
        if (!(left -= n)) break;
        LM_UNROLL for (int c = 0; c < C; c++) LM_UNROLL for (int t = 0; t < T; t++) {
            float *o = total + (size_t)c * ld + t * 16;
            _mm512_storeu_ps(o, first ? acc[c][t] : _mm512_add_ps(_mm512_loadu_ps(o), acc[c][t]));
        }
    }
    for (uint32_t j = first ? 0 : 1, joins = a->joins;; j = 1, joins--) {
        if (j) {
            LM_UNROLL for (int c = 0; c < C; c++) LM_UNROLL for (int t = 0; t < T; t++)
                acc[c][t] = _mm512_add_ps(_mm512_loadu_ps(total + (size_t)c * ld + t * 16), acc[c][t]);
        }
        if (!joins) break;
        total -= a->slot;
    }
    if (a->bias) {
        LM_UNROLL for (int c = 0; c < C; c++) LM_UNROLL for (int t = 0; t < T; t++)
            acc[c][t] = _mm512_add_ps(acc[c][t], _mm512_loadu_ps(a->bias + (c0 + (uint32_t)c) * 16));
    }
    float *const o = a->y ? a->y + c0 * 16 : total;
    const size_t c_step = a->y ? 16 : ld, t_step = a->y ? a->ldy : 16;
    LM_UNROLL for (int c = 0; c < C; c++) LM_UNROLL for (int t = 0; t < T; t++) _mm512_storeu_ps(o + c * c_step + t * t_step, acc[c][t]);
}
#define LM_CASE(C, T) \
    case T: body(C, T, a, c); break;
static void four(const lm_bf16_tile *a, uint32_t c) {
    switch (a->n_t) {
        LM_CASE(4, 1)
    default: body(4, 2, a, c);
    }
}
static void two(const lm_bf16_tile *a, uint32_t c) {
    switch (a->n_t) {
        LM_CASE(2, 1) LM_CASE(2, 2) LM_CASE(2, 3) LM_CASE(2, 4) LM_CASE(2, 5) LM_CASE(2, 6) LM_CASE(2, 7) LM_CASE(2, 8) LM_CASE(2, 9)
        LM_CASE(2, 10) LM_CASE(2, 11)
    default: body(2, 12, a, c);
    }
}
static void one(const lm_bf16_tile *a, uint32_t c) {
    switch (a->n_t) {
        LM_CASE(1, 1) LM_CASE(1, 2) LM_CASE(1, 3) LM_CASE(1, 4) LM_CASE(1, 5) LM_CASE(1, 6) LM_CASE(1, 7) LM_CASE(1, 8) LM_CASE(1, 9)
        LM_CASE(1, 10) LM_CASE(1, 11)
    default: body(1, 12, a, c);
    }
}
static void tile(const lm_bf16_tile *a) {
    uint32_t c = 0;
    if (a->n_t <= 2)
        for (; c + 4 <= a->n_c; c += 4) four(a, c);
    for (; c + 2 <= a->n_c; c += 2) two(a, c);
    if (c < a->n_c) one(a, c);
}
const lm_bf16_kernels lm_bf16_dp = {.level = "vdpbf16ps", .tile = tile, .round = k_round};
