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
/* A tile of W tokens and how its blocks are held, constants where they are inlined. In mixed a block without low bytes is i8's. */
typedef enum form { I8, I16, QUIET, LOUD } form; /* quiet, loud: a block of mixed without low bytes, with some */
typedef struct part {
    int W;
    form f;
} part;
/* A block of the tile: its front, its tails; bit t of `loud`: token t of a loud block has low bytes. */
typedef struct spot {
    const uint8_t *x, *tail;
    uint32_t loud;
} spot;
/* Row `a` of the block's four (dx, sx, c, ca), token t */
LM_INLINE const uint8_t *head(part p, const spot *b, int a, int t) { return b->x + 4 * (a * p.W + t); }
LM_INLINE const uint8_t *tail_of(const spot *b, int t) { return b->tail + LM_INT_TAIL * (size_t)t; }
/* What integers over quads [j0, j1) start from for the 128 that q carries, of −128·Σ over the whole block and over its first half */
LM_INLINE __m512i start(const uint8_t *all, const uint8_t *first, int j0, int j1) {
    return j0 > 0 ? _mm512_sub_epi32(word(all), word(first)) : word(j1 < 8 ? first : all);
}
/* i[s][t] += Σ over quads [j0, j1) of a block by the fronts' bytes */
LM_INLINE void dots(part p, const uint8_t *q, const spot *b, int j0, int j1, __m512i i[2][6]) {
    LM_UNROLL for (int j = j0; j < j1; j++) {
        const __m512i w0 = _mm512_loadu_si512(q + 128 * j), w1 = _mm512_loadu_si512(q + 128 * j + 64);
        LM_UNROLL for (int t = 0; t < p.W; t++) {
            const __m512i a = word(b->x + 16 * p.W + 4 * (j * p.W + t));
            i[0][t] = _mm512_dpbusd_epi32(i[0][t], w0, a);
            i[1][t] = _mm512_dpbusd_epi32(i[1][t], w1, a);
        }
    }
}
/* The same of tokens [t0, t1) by their tails' bytes */
LM_INLINE void dots_low(const uint8_t *q, const spot *b, int t0, int t1, int j0, int j1, __m512i i[2][6]) {
    LM_UNROLL for (int j = j0; j < j1; j++) {
        const __m512i w0 = _mm512_loadu_si512(q + 128 * j), w1 = _mm512_loadu_si512(q + 128 * j + 64);
        LM_UNROLL for (int t = t0; t < t1; t++) {
            const __m512i a = word(tail_of(b, t) + 8 + 4 * j);
            i[0][t] = _mm512_dpbusd_epi32(i[0][t], w0, a);
            i[1][t] = _mm512_dpbusd_epi32(i[1][t], w1, a);
        }
    }
}
/* i16: the integers of both bytes, side by side */
LM_INLINE void ints_16(part p, const uint8_t *q, const spot *b, int j0, int j1, __m512i i[2][6]) {
    __m512i hi[2][6];
    LM_UNROLL for (int t = 0; t < p.W; t++) {
        hi[0][t] = hi[1][t] = _mm512_setzero_si512();
        i[0][t] = i[1][t] = start(tail_of(b, t), tail_of(b, t) + 4, j0, j1);
    }
    LM_UNROLL for (int j = j0; j < j1; j++) {
        dots(p, q, b, j, j + 1, hi);
        dots_low(q, b, 0, p.W, j, j + 1, i);
    }
    LM_UNROLL for (int s = 0; s < 2; s++) LM_UNROLL for (int t = 0; t < p.W; t++) i[s][t] =
        _mm512_add_epi32(i[s][t], _mm512_slli_epi32(hi[s][t], 8));
}
/* A loud token's integers: what stands in i, begun with the front's correction, is its high part. */
LM_INLINE void add_low(part p, const uint8_t *q, const spot *b, int t, int j0, int j1, __m512i i[2][6]) {
    __asm__("" : "+r"(q)); /* that the weights are loaded anew, not held: no register is left for it */
    const __m512i front = start(head(p, b, 2, t), head(p, b, 3, t), j0, j1), both = start(tail_of(b, t), tail_of(b, t) + 4, j0, j1);
    LM_UNROLL for (int s = 0; s < 2; s++) i[s][t] = _mm512_add_epi32(_mm512_slli_epi32(_mm512_sub_epi32(i[s][t], front), 8), both);
    dots_low(q, b, t, t + 1, j0, j1, i);
}
/* f = float of the exact integers over quads [j0, j1) */
LM_INLINE void ints(part p, const uint8_t *q, const spot *b, int j0, int j1, __m512 f[2][6]) {
    __m512i i[2][6];
    if (p.f == I16)
        ints_16(p, q, b, j0, j1, i);
    else {
        LM_UNROLL for (int t = 0; t < p.W; t++) i[0][t] = i[1][t] = start(head(p, b, 2, t), head(p, b, 3, t), j0, j1);
        dots(p, q, b, j0, j1, i);
    }
    if (p.f == LOUD)
        LM_UNROLL for (int t = 0; t < p.W; t++)
            if (b->loud >> t & 1) add_low(p, q, b, t, j0, j1, i);
    LM_UNROLL for (int s = 0; s < 2; s++) LM_UNROLL for (int t = 0; t < p.W; t++) f[s][t] = _mm512_cvtepi32_ps(i[s][t]);
}
/* acc + f·dx. i16's dx is negated (lane_int.h), in a loud block some are. */
LM_INLINE __m512 add_scaled(part p, __m512 f, __m512 dx, __m512 acc) {
    return p.f == I16 ? _mm512_fnmadd_ps(f, dx, acc) : _mm512_fmadd_ps(f, dx, acc);
}
LM_INLINE __m512 step_of(part p, const spot *b, int t) {
    const __m512 dx = real(head(p, b, 0, t));
    return p.f == LOUD ? _mm512_abs_ps(dx) : dx;
}

/* One block with one scale */
LM_INLINE void block_1(part p, bool min, const uint8_t *q, const float *d, const float *m, const spot *b, __m512 acc[2][6]) {
    __m512 f[2][6];
    ints(p, q, b, 0, 8, f);
    const __m512 d0 = _mm512_loadu_ps(d), d1 = _mm512_loadu_ps(d + 16);
    LM_UNROLL for (int t = 0; t < p.W; t++) {
        const __m512 dx = step_of(p, b, t);
        acc[0][t] = add_scaled(p, _mm512_mul_ps(f[0][t], d0), dx, acc[0][t]);
        acc[1][t] = add_scaled(p, _mm512_mul_ps(f[1][t], d1), dx, acc[1][t]);
    }
    if (!min) return;
    __asm__ volatile("" : "+r"(m)); /* gcc would mix what follows with what precedes, 7 % slower in i16 */
    const __m512 m0 = _mm512_loadu_ps(m), m1 = _mm512_loadu_ps(m + 16);
    LM_UNROLL for (int t = 0; t < p.W; t++) {
        const __m512 sx = real(head(p, b, 1, t));
        acc[0][t] = _mm512_fmadd_ps(m0, sx, acc[0][t]);
        acc[1][t] = _mm512_fmadd_ps(m1, sx, acc[1][t]);
    }
}
/* One block with a scale per half: three values per output are alive, and of six tokens some spill. */
LM_INLINE void block_2(part p, bool min, const uint8_t *q, const float *d, const float *m, const spot *b, __m512 acc[2][6]) {
    __m512 f[2][6], g[2][6];
    ints(p, q, b, 0, 4, f);
    LM_UNROLL for (int s = 0; s < 2; s++) LM_UNROLL for (int t = 0; t < p.W; t++) f[s][t] =
        _mm512_mul_ps(f[s][t], _mm512_loadu_ps(d + 16 * s));
    ints(p, q, b, 4, 8, g);
    LM_UNROLL for (int s = 0; s < 2; s++) LM_UNROLL for (int t = 0; t < p.W; t++) acc[s][t] =
        add_scaled(p, _mm512_fmadd_ps(g[s][t], _mm512_loadu_ps(d + 32 + 16 * s), f[s][t]), step_of(p, b, t), acc[s][t]);
    if (!min) return;
    LM_UNROLL for (int t = 0; t < p.W; t++) { /* Σv of the halves from their corrections, exactly */
        __m512i v[2];
        LM_UNROLL for (int h = 0; h < 2; h++) {
            const bool wide = p.f == I16 || (p.f == LOUD && (b->loud >> t & 1));
            v[h] = wide ? start(tail_of(b, t), tail_of(b, t) + 4, 4 * h, 4 * h + 4) : start(head(p, b, 2, t), head(p, b, 3, t), 4 * h, 4 * h + 4);
        }
        const __m512 dx = _mm512_abs_ps(step_of(p, b, t)), unit = _mm512_set1_ps(-0x1p-7f);
        const __m512 s0 = _mm512_mul_ps(dx, _mm512_mul_ps(_mm512_cvtepi32_ps(v[0]), unit));
        const __m512 s1 = _mm512_mul_ps(dx, _mm512_mul_ps(_mm512_cvtepi32_ps(v[1]), unit));
        LM_UNROLL for (int s = 0; s < 2; s++) {
            acc[s][t] = _mm512_fmadd_ps(_mm512_loadu_ps(m + 16 * s), s0, acc[s][t]);
            acc[s][t] = _mm512_fmadd_ps(_mm512_loadu_ps(m + 32 + 16 * s), s1, acc[s][t]);
        }
    }
}
/* Block n of the plane */
LM_INLINE void add_block(part p, int H, bool min, const lm_int_plane *w, const spot *b, uint32_t n, __m512 acc[2][6]) {
    const float *d = w->scale + (size_t)n * H * 32, *m = w->min + (size_t)n * H * 32;
    if (H == 1)
        block_1(p, min, w->q + (size_t)n * 1024, d, m, b, acc);
    else
        block_2(p, min, w->q + (size_t)n * 1024, d, m, b, acc);
}
/* The tokens that have low bytes in a block of mixed */
LM_INLINE uint32_t loud_tokens(int W, const uint8_t *x) {
    return _mm256_movepi32_mask(_mm256_maskz_loadu_epi32((__mmask8)((1u << W) - 1), x));
}
LM_INLINE void tile_part(part p, int H, bool min, const lm_int_plane *w, const uint8_t *x, const lm_int_segments *g, float *out, size_t ld) {
    /* Rows come from the shared cache where K is large: i8's blocks with one scale are over soonest. */
    const size_t step = (size_t)p.W * LM_INT_FRONT, tail = (size_t)p.W * LM_INT_TAIL, ahead = p.f != I16 && H == 1 ? 4608 : 2304;
    const uint8_t *tails = x + g->bound[g->n] * step;
    __m512 waiting[LM_INT_WAITING][2][6], acc[2][6];
    LM_UNROLL for (int t = 0; t < p.W; t++) acc[0][t] = acc[1][t] = _mm512_setzero_ps();
    for (uint32_t s = 0, n = 0;;) {
        for (uint32_t b = g->bound[s]; b < g->bound[s + 1]; b++) {
            LM_UNROLL for (size_t i = 0; i < step; i += 64) __builtin_prefetch(x + b * step + i + ahead);
            spot at = {x + b * step, tails + b * tail, 0};
            if (p.f == I16)
                LM_UNROLL for (size_t i = 0; i < tail; i += 64) __builtin_prefetch(at.tail + i + 1920);
            if (p.f == QUIET) at.loud = loud_tokens(p.W, at.x);
            if (__builtin_expect(at.loud != 0, 0))
                add_block((part){p.W, LOUD}, H, min, w, &at, b, acc);
            else
                add_block(p, H, min, w, &at, b, acc);
        }
        for (uint32_t j = g->joins[s]; j > 0; j--, n--)
            LM_UNROLL for (int t = 0; t < p.W; t++) LM_UNROLL for (int i = 0; i < 2; i++) acc[i][t] =
                _mm512_add_ps(waiting[n - 1][i][t], acc[i][t]);
        if (++s == g->n) break;
        LM_UNROLL for (int t = 0; t < p.W; t++) LM_UNROLL for (int i = 0; i < 2; i++) {
            waiting[n][i][t] = acc[i][t];
            acc[i][t] = _mm512_setzero_ps();
        }
        n++;
    }
    LM_UNROLL for (int t = 0; t < p.W; t++) LM_UNROLL for (int i = 0; i < 2; i++)
        _mm512_storeu_ps(out + (size_t)t * ld + 16 * i, acc[i][t]);
}
/* Tiles of W tokens */
#define LM_TILE_KIND(W, FORM) \
    case W: \
        if (w->halves == 1 && !w->has_min) \
            tile_part((part){W, FORM}, 1, false, w, x, g, out, ld); \
        else if (w->halves == 1) \
            tile_part((part){W, FORM}, 1, true, w, x, g, out, ld); \
        else if (!w->has_min) \
            tile_part((part){W, FORM}, 2, false, w, x, g, out, ld); \
        else \
            tile_part((part){W, FORM}, 2, true, w, x, g, out, ld); \
        break;
#define LM_TILE_KINDS_4(FORM) LM_TILE_KIND(1, FORM) LM_TILE_KIND(2, FORM) LM_TILE_KIND(3, FORM) LM_TILE_KIND(4, FORM)
#define LM_TILE_KINDS_6(FORM) LM_TILE_KINDS_4(FORM) LM_TILE_KIND(5, FORM) LM_TILE_KIND(6, FORM)
#define LM_TILE_FN(NAME, KINDS, FORM) \
    static void NAME(const lm_int_plane *w, const uint8_t *x, uint32_t n_t, const lm_int_segments *g, float *out, size_t ld) { \
        switch (n_t) { \
            KINDS(FORM) \
        default: break; \
        } \
    }
LM_TILE_FN(tile_8, LM_TILE_KINDS_6, I8)
LM_TILE_FN(tile_16, LM_TILE_KINDS_4, I16)
LM_TILE_FN(tile_mixed, LM_TILE_KINDS_6, QUIET)
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
