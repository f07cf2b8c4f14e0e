/* Level "neon": AArch64's own vectors, which every such CPU has. */
#include "kernels/kernels.h"
#include "kernels/neon/v16.h"
#define LM_DOT_Q 1
#define LM_ACC_Q 2
#define LM_ACC_D 2
#define LM_ATTEND_N 6
#define LM_ATTEND_W 1
#include "kernels/body/maths.h"
#include "kernels/body/product.h"
#include "kernels/body/vector.h"
#include "kernels/body/attend.h"

/* 16 rows × T ≤ 6 tokens: 24 accumulators of the 32 registers, four weights, one activation */
LM_INLINE void tile_body(int T, const float *w, uint32_t n, const float *x, uint32_t ldx, bool first, float *total) {
    for (uint32_t k = 0, end; k < n; first = false) {
        vf acc[6];
        LM_UNROLL for (int t = 0; t < T; t++) acc[t] = v_set(0.0f);
        for (end = n - k < LM_SUM ? n : k + LM_SUM; k < end; k++, w += 16, x += ldx) {
            const vf wv = v_load(w);
            LM_UNROLL for (int t = 0; t < T; t++) acc[t] = v_fma(wv, v_set(x[t]), acc[t]);
        }
        LM_UNROLL for (int t = 0; t < T; t++) {
            float *o = total + 16 * t;
            v_store(o, first ? acc[t] : v_add(v_load(o), acc[t]));
        }
    }
}
static void tile(const float *w, uint32_t n, const float *x, uint32_t n_t, bool first, float *total) {
    for (uint32_t t = 0; t < n_t;) {
        const uint32_t left = n_t - t, T = left <= 6 ? left : left < 12 ? (left + 1) / 2 : 6;
        switch (T) {
        case 1: tile_body(1, w, n, x + t, n_t, first, total + 16 * t); break;
        case 2: tile_body(2, w, n, x + t, n_t, first, total + 16 * t); break;
        case 3: tile_body(3, w, n, x + t, n_t, first, total + 16 * t); break;
        case 4: tile_body(4, w, n, x + t, n_t, first, total + 16 * t); break;
        case 5: tile_body(5, w, n, x + t, n_t, first, total + 16 * t); break;
        default: tile_body(6, w, n, x + t, n_t, first, total + 16 * t);
        }
        t += T;
    }
}
static void k_tile(const float *w, const float *w1, uint32_t n, const float *x, uint32_t n_t, bool first, float *total, float *total1) {
    tile(w, n, x, n_t, first, total);
    if (w1) tile(w1, n, x, n_t, first, total1);
}
LM_TABLE(neon);
