/* Quantized activations on AVX-512 VNNI: 32 rows by up to 6 (i8) or 4 (i16) tokens in registers. A broadcast activation serves two weight
 * vectors, so that loads (two a cycle at best) don't bound the dot products (two a cycle). */
#include "base/smallfloat.h"
#include "kernels/lane_int.h"
/* the vectors first, then what is built on them, in this order */
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
/* A part of a tile: T of its W tokens, from the t0-th; P bytes of 8 bits make an activation, of which the low one is left out where `high` is
 * set. All constants where they are inlined. */
typedef struct part {
    int T, W, t0, P;
    bool high;
} part;
/* i[s][t] += Σ over quads [j0, j1) of a block, of the byte `plane` of the activations */
LM_INLINE void dots(part p, int plane, const uint8_t *q, const uint8_t *x, int j0, int j1, __m512i i[2][6]) {
    LM_UNROLL for (int j = j0; j < j1; j++) {
        const __m512i w0 = _mm512_loadu_si512(q + 128 * j), w1 = _mm512_loadu_si512(q + 128 * j + 64);
        LM_UNROLL for (int t = 0; t < p.T; t++) {
            const __m512i v = word(x + (size_t)(4 * p.W + (j * p.P + plane) * p.W + p.t0 + t) * 4);
            i[0][t] = _mm512_dpbusd_epi32(i[0][t], w0, v);
            i[1][t] = _mm512_dpbusd_epi32(i[1][t], w1, v);
        }
    }
}
/* f = float of the exact integers over quads [j0, j1): the accumulators start from the correction c for the 128 that q carries. */
LM_INLINE void ints(part p, const uint8_t *q, const uint8_t *x, int j0, int j1, const __m512i c[6], __m512 f[2][6]) {
    __m512i i[2][6];
    LM_UNROLL for (int t = 0; t < p.T; t++) i[0][t] = i[1][t] = c[t];
    if (p.high) { /* a 256th of the integers, to meet 256·dx */
        LM_UNROLL for (int t = 0; t < p.T; t++) i[0][t] = i[1][t] = _mm512_srai_epi32(c[t], 8);
        dots(p, 0, q, x, j0, j1, i);
    } else if (p.P == 2) {
        __m512i hi[2][6];
        LM_UNROLL for (int t = 0; t < p.T; t++) hi[0][t] = hi[1][t] = _mm512_setzero_si512();
        LM_UNROLL for (int j = j0; j < j1; j++) {
            dots(p, 0, q, x, j, j + 1, hi);
            dots(p, 1, q, x, j, j + 1, i);
        }
        LM_UNROLL for (int s = 0; s < 2; s++) LM_UNROLL for (int t = 0; t < p.T; t++) i[s][t] =
            _mm512_add_epi32(i[s][t], _mm512_slli_epi32(hi[s][t], 8));
    } else
        dots(p, 0, q, x, j0, j1, i);
    LM_UNROLL for (int s = 0; s < 2; s++) LM_UNROLL for (int t = 0; t < p.T; t++) f[s][t] = _mm512_cvtepi32_ps(i[s][t]);
}
/* Row `a` of the tile's four (dx, sx, c, ca), token t */
LM_INLINE const uint8_t *head(part p, const uint8_t *x, int a, int t) { return x + 4 * (a * p.W + p.t0 + t); }
/* dx, in the measure that `ints` gives */
LM_INLINE __m512 step_of(part p, const uint8_t *x, int t) { return real(p.high ? x + 80 * p.W + 4 * (p.t0 + t) : head(p, x, 0, t)); }

/* One block with one scale */
LM_INLINE void block_1(part p, bool min, const uint8_t *q, const float *d, const float *m, const uint8_t *x, __m512 acc[2][6]) {
    __m512i c[6];
    __m512 f[2][6];
    LM_UNROLL for (int t = 0; t < p.T; t++) c[t] = word(head(p, x, 2, t));
    ints(p, q, x, 0, 8, c, f);
    const __m512 d0 = _mm512_loadu_ps(d), d1 = _mm512_loadu_ps(d + 16);
    LM_UNROLL for (int t = 0; t < p.T; t++) {
        const __m512 dx = step_of(p, x, t);
        acc[0][t] = _mm512_fmadd_ps(_mm512_mul_ps(f[0][t], d0), dx, acc[0][t]);
        acc[1][t] = _mm512_fmadd_ps(_mm512_mul_ps(f[1][t], d1), dx, acc[1][t]);
    }
    if (!min) return;
    const __m512 m0 = _mm512_loadu_ps(m), m1 = _mm512_loadu_ps(m + 16);
    LM_UNROLL for (int t = 0; t < p.T; t++) {
        const __m512 sx = real(head(p, x, 1, t));
        acc[0][t] = _mm512_fmadd_ps(m0, sx, acc[0][t]);
        acc[1][t] = _mm512_fmadd_ps(m1, sx, acc[1][t]);
    }
}
/* One block with a scale per half: three values per output are alive, and of six tokens some spill. */
LM_INLINE void block_2(part p, bool min, const uint8_t *q, const float *d, const float *m, const uint8_t *x, __m512 acc[2][6]) {
    __m512i c[6];
    __m512 f[2][6], g[2][6];
    LM_UNROLL for (int t = 0; t < p.T; t++) c[t] = word(head(p, x, 3, t));
    ints(p, q, x, 0, 4, c, f);
    LM_UNROLL for (int s = 0; s < 2; s++) LM_UNROLL for (int t = 0; t < p.T; t++) f[s][t] =
        _mm512_mul_ps(f[s][t], _mm512_loadu_ps(d + 16 * s));
    LM_UNROLL for (int t = 0; t < p.T; t++) c[t] = _mm512_sub_epi32(word(head(p, x, 2, t)), word(head(p, x, 3, t)));
    ints(p, q, x, 4, 8, c, g);
    LM_UNROLL for (int s = 0; s < 2; s++) LM_UNROLL for (int t = 0; t < p.T; t++) acc[s][t] =
        _mm512_fmadd_ps(_mm512_fmadd_ps(g[s][t], _mm512_loadu_ps(d + 32 + 16 * s), f[s][t]), step_of(p, x, t), acc[s][t]);
    if (!min) return;
    LM_UNROLL for (int t = 0; t < p.T; t++) { /* Σv of the halves from their corrections, exactly */
        const __m512i first = word(head(p, x, 3, t)), second = _mm512_sub_epi32(word(head(p, x, 2, t)), first);
        const __m512 dx = real(head(p, x, 0, t)), unit = _mm512_set1_ps(-0x1p-7f);
        const __m512 s0 = _mm512_mul_ps(dx, _mm512_mul_ps(_mm512_cvtepi32_ps(first), unit));
        const __m512 s1 = _mm512_mul_ps(dx, _mm512_mul_ps(_mm512_cvtepi32_ps(second), unit));
        LM_UNROLL for (int s = 0; s < 2; s++) {
            acc[s][t] = _mm512_fmadd_ps(_mm512_loadu_ps(m + 16 * s), s0, acc[s][t]);
            acc[s][t] = _mm512_fmadd_ps(_mm512_loadu_ps(m + 32 + 16 * s), s1, acc[s][t]);
        }
    }
}
/* Block b of the plane; x is its place in the tile. */
LM_INLINE void add_block(part p, int H, bool min, const lm_int_plane *w, const uint8_t *x, uint32_t b, __m512 acc[2][6]) {
    const float *d = w->scale + (size_t)b * H * 32, *m = w->min + (size_t)b * H * 32;
    if (H == 1)
        block_1(p, min, w->q + (size_t)b * 1024, d, m, x, acc);
    else
        block_2(p, min, w->q + (size_t)b * 1024, d, m, x, acc);
}
/* Whether a token of the part has low bytes in this block (lane mixed) */
LM_INLINE bool any_low(part p, const uint8_t *x) {
    const __m256i dh = _mm256_maskz_loadu_epi32((__mmask8)((1u << p.T) - 1), x + 80 * p.W + 4 * p.t0);
    return _mm256_movepi32_mask(dh) != 0;
}
/* A block with low bytes. Both bytes of more than four tokens do not fit the registers, so those go by halves. */
LM_INLINE void add_loud(part p, int H, bool min, const lm_int_plane *w, const uint8_t *x, uint32_t b, __m512 acc[2][6]) {
    const part first = {p.T > 4 ? 3 : p.T, p.W, p.t0, 2, false}, rest = {p.T > 4 ? p.T - 3 : 0, p.W, p.t0 + 3, 2, false};
    __m512 part_acc[2][6];
    LM_UNROLL for (int i = 0; i < 2; i++) LM_UNROLL for (int t = 0; t < first.T; t++) part_acc[i][t] = acc[i][t];
    add_block(first, H, min, w, x, b, part_acc);
    LM_UNROLL for (int i = 0; i < 2; i++) LM_UNROLL for (int t = 0; t < first.T; t++) acc[i][t] = part_acc[i][t];
    if (!rest.T) return;
    LM_UNROLL for (int i = 0; i < 2; i++) LM_UNROLL for (int t = 0; t < rest.T; t++) part_acc[i][t] = acc[i][3 + t];
    add_block(rest, H, min, w, x, b, part_acc);
    LM_UNROLL for (int i = 0; i < 2; i++) LM_UNROLL for (int t = 0; t < rest.T; t++) acc[i][3 + t] = part_acc[i][t];
}
LM_INLINE void tile_part(part p, int H, bool min, const lm_int_plane *w, const uint8_t *x, const lm_int_segments *g, float *out, size_t ld) {
    /* Rows come from the shared cache where K is large: i8's blocks with one scale are over soonest. */
    const size_t step = (size_t)p.W * (p.P == 1 ? 48 : 84), ahead = p.P == 1 && H == 1 ? 4608 : 2304;
    __m512 waiting[LM_INT_WAITING][2][6], acc[2][6];
    LM_UNROLL for (int t = 0; t < p.T; t++) acc[0][t] = acc[1][t] = _mm512_setzero_ps();
    for (uint32_t s = 0, n = 0;;) {
        for (uint32_t b = g->bound[s]; b < g->bound[s + 1]; b++) {
            LM_UNROLL for (size_t i = 0; i < step; i += 64) __builtin_prefetch(x + b * step + i + ahead);
            if (p.high && __builtin_expect(any_low(p, x + b * step), 0))
                add_loud(p, H, min, w, x + b * step, b, acc);
            else
                add_block(p, H, min, w, x + b * step, b, acc);
        }
        for (uint32_t j = g->joins[s]; j > 0; j--, n--)
            LM_UNROLL for (int t = 0; t < p.T; t++) LM_UNROLL for (int i = 0; i < 2; i++) acc[i][t] =
                _mm512_add_ps(waiting[n - 1][i][t], acc[i][t]);
        if (++s == g->n) break;
        LM_UNROLL for (int t = 0; t < p.T; t++) LM_UNROLL for (int i = 0; i < 2; i++) {
            waiting[n][i][t] = acc[i][t];
            acc[i][t] = _mm512_setzero_ps();
        }
        n++;
    }
    LM_UNROLL for (int t = 0; t < p.T; t++) LM_UNROLL for (int i = 0; i < 2; i++)
        _mm512_storeu_ps(out + (size_t)(p.t0 + t) * ld + 16 * i, acc[i][t]);
}
/* Tiles of W tokens, P bytes an activation; HIGH: lane mixed. */
#define LM_TILE_KIND(W, P, HIGH) \
    case W: \
        if (w->halves == 1 && !w->has_min) \
            tile_part((part){W, W, 0, P, HIGH}, 1, false, w, x, g, out, ld); \
        else if (w->halves == 1) \
            tile_part((part){W, W, 0, P, HIGH}, 1, true, w, x, g, out, ld); \
        else if (!w->has_min) \
            tile_part((part){W, W, 0, P, HIGH}, 2, false, w, x, g, out, ld); \
        else \
            tile_part((part){W, W, 0, P, HIGH}, 2, true, w, x, g, out, ld); \
        break;
#define LM_TILE_KINDS_4(P, HIGH) LM_TILE_KIND(1, P, HIGH) LM_TILE_KIND(2, P, HIGH) LM_TILE_KIND(3, P, HIGH) LM_TILE_KIND(4, P, HIGH)
#define LM_TILE_KINDS_6(P, HIGH) LM_TILE_KINDS_4(P, HIGH) LM_TILE_KIND(5, P, HIGH) LM_TILE_KIND(6, P, HIGH)
#define LM_TILE_FN(NAME, KINDS, P, HIGH) \
    static void NAME(const lm_int_plane *w, const uint8_t *x, uint32_t n_t, const lm_int_segments *g, float *out, size_t ld) { \
        switch (n_t) { \
            KINDS(P, HIGH) \
        default: break; \
        } \
    }
LM_TILE_FN(tile_8, LM_TILE_KINDS_6, 1, false)
LM_TILE_FN(tile_16, LM_TILE_KINDS_4, 2, false)
LM_TILE_FN(tile_mixed, LM_TILE_KINDS_6, 2, true)
static void tile(lm_int_lane lane, const lm_int_plane *w, const uint8_t *x, uint32_t n_t, const lm_int_segments *g, float *out,
                 size_t ld) {
    if (lane == LM_INT_8)
        tile_8(w, x, n_t, g, out, ld);
    else if (lane == LM_INT_MIXED)
        tile_mixed(w, x, n_t, g, out, ld);
    else
        tile_16(w, x, n_t, g, out, ld);
}
LM_INLINE vi i_dp(vi acc, vi u, int32_t x) { return _mm512_dpbusd_epi32(acc, u, _mm512_set1_epi32(x)); }
#define LM_DP_WIDE 1
#include "kernels/body/int_gemv.h"

const lm_int_kernels lm_int_vnni = {
    .level = "vnni", .quantise = lm_int_quantise_vnni, .unpack = LM_INT_UNPACK, .tile = tile, .gemv = LM_INT_GEMVS};
