/* Level "avx512": AVX-512 F, BW, DQ and VL. */
#include "kernels/kernels.h"
#include "kernels/avx512/v16.h"
#define LM_DOT_Q 4
#define LM_ACC_Q 4
#define LM_ACC_D 4
#define LM_ATTEND_N 12
#define LM_ATTEND_W 2
#include "kernels/body/maths.h"
#include "kernels/body/product.h"
#include "kernels/body/vector.h"
#include "kernels/body/attend.h"

/* 16 rows × T ≤ 12 tokens: T accumulators, one weight vector, the activations as broadcast operands of the fma */
LM_INLINE void tile_body(int T, const float *w, uint32_t n, const float *x, bool first, float *total) {
    for (uint32_t k = 0, end; k < n; first = false) {
        __m512 acc[12];
        LM_UNROLL for (int t = 0; t < T; t++) acc[t] = _mm512_setzero_ps();
        for (end = n - k < LM_SUM ? n : k + LM_SUM; k < end; k++, w += 16, x += T) {
            const __m512 wv = _mm512_loadu_ps(w);
            LM_UNROLL for (int t = 0; t < T; t++) acc[t] = _mm512_fmadd_ps(wv, _mm512_set1_ps(x[t]), acc[t]);
        }
        LM_UNROLL for (int t = 0; t < T; t++) {
            float *o = total + 16 * t;
            _mm512_storeu_ps(o, first ? acc[t] : _mm512_add_ps(_mm512_loadu_ps(o), acc[t]));
        }
    }
}
/* Two strips side by side: each broadcast feeds two fmas, so that the loads no longer limit the tile */
LM_INLINE void tile2_body(int T, const float *w0, const float *w1, uint32_t n, const float *x, bool first, float *total0, float *total1) {
    for (uint32_t k = 0, end; k < n; first = false) {
        __m512 a[12], b[12];
        LM_UNROLL for (int t = 0; t < T; t++) a[t] = b[t] = _mm512_setzero_ps();
        for (end = n - k < LM_SUM ? n : k + LM_SUM; k < end; k++, w0 += 16, w1 += 16, x += T) {
            const __m512 u = _mm512_loadu_ps(w0), v = _mm512_loadu_ps(w1);
            LM_UNROLL for (int t = 0; t < T; t++) {
                const __m512 xv = _mm512_set1_ps(x[t]);
                a[t] = _mm512_fmadd_ps(u, xv, a[t]);
                b[t] = _mm512_fmadd_ps(v, xv, b[t]);
            }
        }
        LM_UNROLL for (int t = 0; t < T; t++) {
            float *o = total0 + 16 * t, *p = total1 + 16 * t;
            _mm512_storeu_ps(o, first ? a[t] : _mm512_add_ps(_mm512_loadu_ps(o), a[t]));
            _mm512_storeu_ps(p, first ? b[t] : _mm512_add_ps(_mm512_loadu_ps(p), b[t]));
        }
    }
}
#define LM_TILE_CASE(T) \
    case T: \
        if (w1) tile2_body(T, w, w1, n, x, first, total, total1); \
        else tile_body(T, w, n, x, first, total); \
        break;
static void k_tile(const float *w, const float *w1, uint32_t n, const float *x, uint32_t n_t, bool first, float *total, float *total1) {
    switch (n_t) {
        LM_TILE_CASE(1)
        LM_TILE_CASE(2)
        LM_TILE_CASE(3)
        LM_TILE_CASE(4)
        LM_TILE_CASE(5)
        LM_TILE_CASE(6)
        LM_TILE_CASE(7)
        LM_TILE_CASE(8)
        LM_TILE_CASE(9)
        LM_TILE_CASE(10)
        LM_TILE_CASE(11)
        LM_TILE_CASE(12)
    default: break;
    }
}
LM_TABLE(avx512);
