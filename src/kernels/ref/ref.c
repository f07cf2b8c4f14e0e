/* Level "c": the whole table in plain C. */
#include "kernels/kernels.h"
#include "kernels/ref/v16.h"
#define LM_NO_GEMV
#define LM_UNROLL
#define LM_DOT_Q 1
#define LM_ACC_Q 1
#define LM_ACC_D 1
#define LM_ATTEND_N 2
#define LM_ATTEND_W 1
#include "kernels/body/maths.h"
#include "kernels/body/product.h"
#include "kernels/body/vector.h"
#include "kernels/body/attend.h"

static void tile(const float *w, uint32_t n, const float *x, uint32_t n_t, bool first, float *total) {
    for (uint32_t k0 = 0; k0 < n; k0 += LM_SUM, first = false)
        for (uint32_t t = 0; t < n_t; t++) {
            const uint32_t end = n - k0 < LM_SUM ? n : k0 + LM_SUM;
            float acc[16] = {0};
            for (uint32_t k = k0; k < end; k++) {
                const float xk = x[(size_t)k * n_t + t];
                for (uint32_t r = 0; r < 16; r++) acc[r] = fmaf(w[(size_t)k * 16 + r], xk, acc[r]);
            }
            for (uint32_t r = 0; r < 16; r++) total[t * 16 + r] = first ? acc[r] : total[t * 16 + r] + acc[r];
        }
}
static void k_tile(const float *w, const float *w1, uint32_t n, const float *x, uint32_t n_t, bool first, float *total, float *total1) {
    tile(w, n, x, n_t, first, total);
    if (w1) tile(w1, n, x, n_t, first, total1);
}
LM_TABLE(c);
