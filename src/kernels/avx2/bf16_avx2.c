/* bfloat16 products on AVX2 and FMA: two fused steps a pair, with MXCSR's own flushing (FTZ and DAZ), which is that of the contract. It is on
 * inside `chain` only: a function of its own, not inlined, so that no floating-point operation can move across the switch. */
#include "kernels/lane_bf16.h"
/* the vectors first */
#include "kernels/avx2/v16.h"

#include "kernels/body/maths.h"
#include "kernels/body/bf16.h"
#define LM_UNROLL _Pragma("GCC unroll 16")

/* acc[t][16] of T ≤ 4 tokens */
LM_INLINE void chain_body(int T, const uint8_t *w, size_t step, uint32_t pairs, const uint32_t *x, size_t xj, size_t xt, float *acc) {
    const __m256i mask = _mm256_set1_epi32((int32_t)0xffff0000u);
    __m256 a[4], b[4];
    LM_UNROLL for (int t = 0; t < T; t++) a[t] = _mm256_loadu_ps(acc + 16 * t), b[t] = _mm256_loadu_ps(acc + 16 * t + 8);
    for (uint32_t j = 0; j < pairs; j++, w += step, x += xj) {
        const __m256i u = _mm256_loadu_si256((const __m256i *)w), v = _mm256_loadu_si256((const __m256i *)(w + 32));
        const __m256 u1 = _mm256_castsi256_ps(_mm256_and_si256(u, mask)), v1 = _mm256_castsi256_ps(_mm256_and_si256(v, mask));
        const __m256 u0 = _mm256_castsi256_ps(_mm256_slli_epi32(u, 16)), v0 = _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
        LM_UNROLL for (int t = 0; t < T; t++) {
            const __m256i p = _mm256_set1_epi32((int32_t)x[(size_t)t * xt]);
            const __m256 x1 = _mm256_castsi256_ps(_mm256_and_si256(p, mask)), x0 = _mm256_castsi256_ps(_mm256_slli_epi32(p, 16));
            a[t] = _mm256_fmadd_ps(u0, x0, _mm256_fmadd_ps(u1, x1, a[t]));
            b[t] = _mm256_fmadd_ps(v0, x0, _mm256_fmadd_ps(v1, x1, b[t]));
        }
    }
    LM_UNROLL for (int t = 0; t < T; t++) _mm256_storeu_ps(acc + 16 * t, a[t]), _mm256_storeu_ps(acc + 16 * t + 8, b[t]);
}
static __attribute__((noinline)) void chain(const uint8_t *w, size_t step, uint32_t pairs, const uint32_t *x, size_t xj, size_t xt, uint32_t T,
                                            float *acc) {
    switch (T) {
    case 1: chain_body(1, w, step, pairs, x, xj, xt, acc); break;
    case 2: chain_body(2, w, step, pairs, x, xj, xt, acc); break;
    case 3: chain_body(3, w, step, pairs, x, xj, xt, acc); break;
    default: chain_body(4, w, step, pairs, x, xj, xt, acc);
    }
}
static void k_chain(const uint8_t *w, size_t step, uint32_t pairs, const uint32_t *x, size_t xj, size_t xt, uint32_t T, float *acc) {
    const uint32_t kept = _mm_getcsr();
    _mm_setcsr(kept | 0x8040u);
    for (uint32_t t = 0; t < T; t += 4) chain(w, step, pairs, x + t * xt, xj, xt, T - t < 4 ? T - t : 4, acc + 16 * t);
    _mm_setcsr(kept);
}
#include "kernels/body/chain_bf16.h"
#include "kernels/body/attend_bf16.h"

const lm_bf16_kernels lm_bf16_avx2 = {.level = "avx2", .tile = k_tile, .round = k_round, .attend = k_attend, .store = k_store};
