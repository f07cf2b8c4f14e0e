/* bfloat16 products and attention by vdpbf16ps. Products: two strips by up to 12 tokens, or four strips by one or two, in registers. */
#include "kernels/lane_bf16.h"
/* the vectors first */
#include "kernels/avx512/v16.h"

#include "kernels/body/maths.h"
#define LM_UNROLL _Pragma("GCC unroll 16")

/* vcvtneps2bf16 rounds to nearest even, has zeros for subnormals and quiets a NaN, whatever MXCSR says. */
static void k_round(const float *x, uint32_t n, uint16_t *dst) {
    for (; n >= 16; n -= 16, x += 16, dst += 16) _mm256_storeu_si256((__m256i *)dst, (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x)));
    if (n) _mm256_mask_storeu_epi16(dst, (__mmask16)((1u << n) - 1), (__m256i)_mm512_cvtneps_pbh(v_load_n(x, n)));
}

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

/* ---- attention: up to 12 queries by 32 keys, or by 32 columns of the values, in registers ---------------------------------------------*/
LM_INLINE __m512bh pair_of(const uint32_t *x) { return (__m512bh)_mm512_set1_epi32((int32_t)*x); }
LM_INLINE __m512bh pairs_at(const uint8_t *p) { return (__m512bh)_mm512_loadu_si512(p); }

LM_INLINE void scores(int N, const uint32_t *q, uint32_t pairs, const uint8_t *k, size_t ahead, float *s) {
    for (uint32_t left = pairs, n; left; left -= n) {
        __m512 acc[12][2];
        LM_UNROLL for (int i = 0; i < N; i++) acc[i][0] = acc[i][1] = _mm512_setzero_ps();
        n = left < LM_BLK / 2 ? left : LM_BLK / 2;
        for (const uint32_t *const end = q + (size_t)n * (uint32_t)N; q < end; q += N, k += 128) {
            if (N <= 4) _mm_prefetch(k + ahead, _MM_HINT_T0), _mm_prefetch(k + ahead + 64, _MM_HINT_T0);
            const __m512bh k0 = pairs_at(k), k1 = pairs_at(k + 64);
            LM_UNROLL for (int i = 0; i < N; i++) {
                const __m512bh x = pair_of(q + i);
                acc[i][0] = _mm512_dpbf16_ps(acc[i][0], k0, x);
                acc[i][1] = _mm512_dpbf16_ps(acc[i][1], k1, x);
            }
        }
        LM_UNROLL for (int w = 0; w < 2; w++) LM_UNROLL for (int i = 0; i < N; i++) {
            float *at = s + 16 * (w * N + i);
            _mm512_storeu_ps(at, left < pairs ? _mm512_add_ps(_mm512_loadu_ps(at), acc[i][w]) : acc[i][w]);
        }
    }
}
LM_INLINE void values(int N, const uint32_t *p, size_t unit, const uint8_t *v, uint32_t pairs, uint32_t in, size_t ahead, float *o, size_t ldo) {
    __m512 acc[12][2];
    LM_UNROLL for (int i = 0; i < N; i++) acc[i][0] = acc[i][1] = _mm512_setzero_ps();
    for (uint32_t n; pairs; pairs -= n, p += unit - 16, in = 0) {
        n = pairs < 16 - in ? pairs : 16 - in;
        for (const uint32_t *const end = p + n; p < end; p++, v += 128) {
            if (N <= 4) _mm_prefetch(v + ahead, _MM_HINT_T0), _mm_prefetch(v + ahead + 64, _MM_HINT_T0);
            const __m512bh v0 = pairs_at(v), v1 = pairs_at(v + 64);
            LM_UNROLL for (int i = 0; i < N; i++) {
                const __m512bh x = pair_of(p + 16 * i);
                acc[i][0] = _mm512_dpbf16_ps(acc[i][0], v0, x);
                acc[i][1] = _mm512_dpbf16_ps(acc[i][1], v1, x);
            }
        }
    }
    const __m512 zero = _mm512_setzero_ps();
    LM_UNROLL for (int i = 0; i < N; i++)
        LM_UNROLL for (int w = 0; w < 2; w++) _mm512_storeu_ps(o + (size_t)i * ldo + 16 * w, _mm512_add_ps(zero, acc[i][w]));
}
#define LM_EACH_N(CASE) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11)
static void k_scores(const lm_attend *a, uint32_t u, size_t ahead) {
    const uint32_t *q = a->q, pairs = (a->dk + 1) / 2;
    const uint8_t *k = a->keys + u * lm_kv_tile(LM_KV_BF16X2, a->dk);
    float *s = a->s + 32 * (size_t)a->n * u;
#define LM_SCORES(N) \
    case N: scores(N, q, pairs, k, ahead, s); break;
    switch (a->n) {
        LM_EACH_N(LM_SCORES)
    default: scores(12, q, pairs, k, ahead, s);
    }
}
static void k_values(uint32_t N, const uint32_t *p, size_t unit, const uint8_t *plane, uint32_t j0, uint32_t j1, size_t ahead, float *o, size_t ldo) {
    const uint32_t in = j0 % 16, pairs = j1 - j0;
    p += j0 / 16 * unit + in;
    plane += 128 * (size_t)j0;
#define LM_VALUES(N) \
    case N: values(N, p, unit, plane, pairs, in, ahead, o, ldo); break;
    switch (N) {
        LM_EACH_N(LM_VALUES)
    default: values(12, p, unit, plane, pairs, in, ahead, o, ldo);
    }
}
LM_INLINE vf k_weights(vf x0, vf x1, uint32_t *to, vf l) {
    const __m512bh w = _mm512_cvtne2ps_pbh(x1, x0);
    _mm512_storeu_si512(to, (__m512i)w);
    return _mm512_dpbf16_ps(l, w, (__m512bh)_mm512_set1_epi32(0x3f803f80));
}
#include "kernels/body/attend_bf16.h"

const lm_bf16_kernels lm_bf16_dp = {.level = "vdpbf16ps", .tile = tile, .round = k_round, .attend = k_attend, .store = k_store};
