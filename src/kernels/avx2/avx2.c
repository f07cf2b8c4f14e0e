/* Level "avx2": AVX2, FMA and F16C. */
#include "kernels/kernels.h"
#include "kernels/avx2/v16.h"
#define LM_DOT_Q 1
#define LM_ACC_Q 2
#define LM_ACC_D 2
#define LM_ATTEND_N 6
#define LM_ATTEND_W 1
#include "kernels/body/maths.h"
#include "kernels/body/product.h"
#include "kernels/body/vector.h"
#include "kernels/body/attend.h"

/* 16 rows × T ≤ 6 tokens: 12 accumulators, two weights, one broadcast */
LM_INLINE void tile_body(int T, const float *w, uint32_t n, const float *x, uint32_t ldx, bool first, float *total) {
    for (uint32_t k = 0, end; k < n; first = false) {
        __m256 lo[6], hi[6];
        LM_UNROLL for (int t = 0; t < T; t++) lo[t] = hi[t] = _mm256_setzero_ps();
        for (end = n - k < LM_SUM ? n : k + LM_SUM; k < end; k++, w += 16, x += ldx) {
            const __m256 a = _mm256_loadu_ps(w), b = _mm256_loadu_ps(w + 8);
            LM_UNROLL for (int t = 0; t < T; t++) {
                const __m256 xv = _mm256_broadcast_ss(x + t);
                lo[t] = _mm256_fmadd_ps(a, xv, lo[t]);
                hi[t] = _mm256_fmadd_ps(b, xv, hi[t]);
            }
        }
        LM_UNROLL for (int t = 0; t < T; t++) {
            float *o = total + 16 * t;
            _mm256_storeu_ps(o, first ? lo[t] : _mm256_add_ps(_mm256_loadu_ps(o), lo[t]));
            _mm256_storeu_ps(o + 8, first ? hi[t] : _mm256_add_ps(_mm256_loadu_ps(o + 8), hi[t]));
        }
    }
}
#include "kernels/body/tile_6.h"
LM_TABLE(avx2);
