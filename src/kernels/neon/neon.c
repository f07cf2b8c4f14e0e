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
#include "kernels/body/tile_6.h"
LM_TABLE(neon);
