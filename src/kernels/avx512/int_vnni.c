/* Quantized activations on AVX-512 VNNI: 32 rows by up to 6 (i8) or 4 (i16) tokens in registers. A broadcast activation serves two weight
 * vectors, so that loads (two a cycle at best) don't bound the dot products (two a cycle). */
#include "kernels/lane_int.h"
#include "base/smallfloat.h"
#include "kernels/avx512/v16.h"
#include "kernels/body/maths.h"
#include "kernels/body/int_unpack.h"

#define LM_UNROLL _Pragma("GCC unroll 16")

LM_INLINE __m512i word(const uint8_t *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}
LM_INLINE __m512 real(const uint8_t *p) { return _mm512_castsi512_ps(word(p)); }
/* i[s][t] (+)= Σ over quads [j0, j1) of a block; the lanes' bytes lie P·T words apart */
LM_INLINE void dots(int T, int S, int P, const uint8_t *q, const uint8_t *v, int j0, int j1, __m512i i[2][6]) {
    LM_UNROLL for (int j = j0; j < j1; j++) {
        __m512i w[2];
        LM_UNROLL for (int s = 0; s < S; s++) w[s] = _mm512_loadu_si512(q + 128 * j + 64 * s);
        LM_UNROLL for (int t = 0; t < T; t++) {
            const __m512i x = word(v + (size_t)(j * P * T + t) * 4);
            LM_UNROLL for (int s = 0; s < S; s++) i[s][t] = _mm512_dpbusd_epi32(i[s][t], w[s], x);
        }
    }
}
/* The exact integers of S strips and T tokens over quads [j0, j1): the accumulators start from the correction c for the 128 that q carries. */
LM_INLINE void ints(int T, int S, int P, const uint8_t *q, const uint8_t *v, int j0, int j1, const __m512i c[6], __m512i i[2][6]) {
    LM_UNROLL for (int s = 0; s < S; s++) LM_UNROLL for (int t = 0; t < T; t++) i[s][t] = c[t];
    if (P == 1) {
        dots(T, S, 1, q, v, j0, j1, i);
        return;
    }
    __m512i hi[2][6];
    LM_UNROLL for (int s = 0; s < S; s++) LM_UNROLL for (int t = 0; t < T; t++) hi[s][t] = _mm512_setzero_si512();
    LM_UNROLL for (int j = j0; j < j1; j++) {
        dots(T, S, 2, q, v, j, j + 1, hi);
        dots(T, S, 2, q, v + (size_t)T * 4, j, j + 1, i);
    }
    LM_UNROLL for (int s = 0; s < S; s++) LM_UNROLL for (int t = 0; t < T; t++)
        i[s][t] = _mm512_add_epi32(i[s][t], _mm512_slli_epi32(hi[s][t], 8));
}
/* One block with one scale */
LM_INLINE void block_1(int T, int P, bool min, const uint8_t *q, const float *d, const float *m, const uint8_t *x, __m512 acc[2][6]) {
    __m512i c[6], i[2][6];
    LM_UNROLL for (int t = 0; t < T; t++) c[t] = word(x + 8 * T + 4 * t);
    ints(T, 2, P, q, x + 16 * T, 0, 8, c, i);
    const __m512 d0 = _mm512_loadu_ps(d), d1 = _mm512_loadu_ps(d + 16);
    LM_UNROLL for (int t = 0; t < T; t++) {
        const __m512 dx = real(x + 4 * t);
        acc[0][t] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(i[0][t]), d0), dx, acc[0][t]);
        acc[1][t] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(i[1][t]), d1), dx, acc[1][t]);
    }
    if (!min) return;
    const __m512 m0 = _mm512_loadu_ps(m), m1 = _mm512_loadu_ps(m + 16);
    LM_UNROLL for (int t = 0; t < T; t++) {
        const __m512 sx = real(x + 4 * T + 4 * t);
        acc[0][t] = _mm512_fmadd_ps(m0, sx, acc[0][t]);
        acc[1][t] = _mm512_fmadd_ps(m1, sx, acc[1][t]);
    }
}
/* One block with a scale per half, one strip at a time: three values per output are alive */
LM_INLINE void block_2(int T, int P, bool min, const uint8_t *q, const float *d, const float *m, const uint8_t *x, __m512 acc[2][6]) {
    LM_UNROLL for (int s = 0; s < 2; s++) {
        __m512i c[6], a[2][6], b[2][6];
        LM_UNROLL for (int t = 0; t < T; t++) c[t] = word(x + 12 * T + 4 * t);
        ints(T, 1, P, q + 64 * s, x + 16 * T, 0, 4, c, a);
        LM_UNROLL for (int t = 0; t < T; t++) c[t] = _mm512_sub_epi32(word(x + 8 * T + 4 * t), word(x + 12 * T + 4 * t));
        ints(T, 1, P, q + 64 * s, x + 16 * T, 4, 8, c, b);
        const __m512 d0 = _mm512_loadu_ps(d + 16 * s), d1 = _mm512_loadu_ps(d + 32 + 16 * s);
        LM_UNROLL for (int t = 0; t < T; t++) {
            const __m512 f = _mm512_fmadd_ps(_mm512_cvtepi32_ps(b[0][t]), d1, _mm512_mul_ps(_mm512_cvtepi32_ps(a[0][t]), d0));
            acc[s][t] = _mm512_fmadd_ps(f, real(x + 4 * t), acc[s][t]);
        }
        if (!min) continue;
        const __m512 m0 = _mm512_loadu_ps(m + 16 * s), m1 = _mm512_loadu_ps(m + 32 + 16 * s);
        LM_UNROLL for (int t = 0; t < T; t++) { /* Σv of the halves from their corrections, exactly */
            const __m512 unit = _mm512_set1_ps(-0x1p-7f), ca = _mm512_cvtepi32_ps(word(x + 12 * T + 4 * t));
            const __m512 cb = _mm512_cvtepi32_ps(_mm512_sub_epi32(word(x + 8 * T + 4 * t), word(x + 12 * T + 4 * t)));
            acc[s][t] = _mm512_fmadd_ps(m0, _mm512_mul_ps(real(x + 4 * t), _mm512_mul_ps(ca, unit)), acc[s][t]);
            acc[s][t] = _mm512_fmadd_ps(m1, _mm512_mul_ps(real(x + 4 * t), _mm512_mul_ps(cb, unit)), acc[s][t]);
        }
    }
}
LM_INLINE void tile_body(int T, int P, int H, bool min, const lm_int_plane *w, const uint8_t *x, const uint32_t *bound, uint32_t n_seg, float *out) {
    const size_t step = (size_t)T * (P == 1 ? 48 : 80);
    for (uint32_t s = 0; s < n_seg; s++, out += 32 * T) {
        __m512 acc[2][6];
        LM_UNROLL for (int t = 0; t < T; t++) acc[0][t] = acc[1][t] = _mm512_setzero_ps();
        for (uint32_t b = bound[s]; b < bound[s + 1]; b++) {
            const float *d = w->scale + (size_t)b * H * 32, *m = w->min + (size_t)b * H * 32;
            if (H == 1) block_1(T, P, min, w->q + (size_t)b * 1024, d, m, x + b * step, acc);
            else block_2(T, P, min, w->q + (size_t)b * 1024, d, m, x + b * step, acc);
        }
        LM_UNROLL for (int t = 0; t < T; t++) {
            _mm512_storeu_ps(out + 32 * t, acc[0][t]);
            _mm512_storeu_ps(out + 32 * t + 16, acc[1][t]);
        }
    }
}
#define LM_TILE_KIND(T, P) \
    case T: \
        if (w->halves == 1 && !w->has_min) tile_body(T, P, 1, false, w, x, bound, n_seg, out); \
        else if (w->halves == 1) tile_body(T, P, 1, true, w, x, bound, n_seg, out); \
        else if (!w->has_min) tile_body(T, P, 2, false, w, x, bound, n_seg, out); \
        else tile_body(T, P, 2, true, w, x, bound, n_seg, out); \
        break;
static void tile_8(const lm_int_plane *w, const uint8_t *x, uint32_t n_t, const uint32_t *bound, uint32_t n_seg, float *out) {
    switch (n_t) {
        LM_TILE_KIND(1, 1)
        LM_TILE_KIND(2, 1)
        LM_TILE_KIND(3, 1)
        LM_TILE_KIND(4, 1)
        LM_TILE_KIND(5, 1)
        LM_TILE_KIND(6, 1)
    default: break;
    }
}
static void tile_16(const lm_int_plane *w, const uint8_t *x, uint32_t n_t, const uint32_t *bound, uint32_t n_seg, float *out) {
    switch (n_t) {
        LM_TILE_KIND(1, 2)
        LM_TILE_KIND(2, 2)
        LM_TILE_KIND(3, 2)
        LM_TILE_KIND(4, 2)
    default: break;
    }
}
static void tile(lm_int_lane lane, const lm_int_plane *w, const uint8_t *x, uint32_t n_t, const uint32_t *bound, uint32_t n_seg, float *out) {
    if (lane == LM_INT_8) tile_8(w, x, n_t, bound, n_seg, out);
    else tile_16(w, x, n_t, bound, n_seg, out);
}
LM_INLINE vi i_dp(vi acc, vi u, int32_t x) { return _mm512_dpbusd_epi32(acc, u, _mm512_set1_epi32(x)); }
#define LM_DP_WIDE 1
#include "kernels/body/int_gemv.h"

const lm_int_kernels lm_int_vnni = {.level = "vnni", .quantise = lm_int_quantise_avx2, .unpack = LM_INT_UNPACK, .tile = tile, .gemv = LM_INT_GEMVS};
