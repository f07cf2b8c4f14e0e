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
/* One block with a scale per half: three values per output are alive, so T is half as large. */
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
LM_INLINE void tile_part(part p, int H, bool min, const lm_int_plane *w, const uint8_t *x, const lm_int_segments *g, float *out, size_t ld) {
    /* Rows come from the shared cache where K is large: i8's blocks are over soonest. Kinds with two scales read them twice, the second time near. */
    const size_t step = (size_t)p.W * (p.P == 1 ? 48 : 84), ahead = p.P == 1 && H == 1 ? 4608 : 2304;
    __m512 waiting[LM_INT_WAITING][2][6], acc[2][6];
    LM_UNROLL for (int t = 0; t < p.T; t++) acc[0][t] = acc[1][t] = _mm512_setzero_ps();
    for (uint32_t s = 0, n = 0;;) {
        for (uint32_t b = g->bound[s]; b < g->bound[s + 1]; b++) {
            LM_UNROLL for (size_t i = 0; i < step; i += 64) __builtin_prefetch(x + b * step + i + ahead);
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
/* Blocks [b, end) into the sums at out, which stay in registers in between. */
LM_INLINE void blocks(part p, int H, bool min, const lm_int_plane *w, const uint8_t *x, uint32_t b, uint32_t end, float out[6][32]) {
    const size_t step = (size_t)p.W * 84;
    __m512 acc[2][6];
    LM_UNROLL for (int t = 0; t < p.T; t++) LM_UNROLL for (int i = 0; i < 2; i++) acc[i][t] = _mm512_loadu_ps(&out[p.t0 + t][16 * i]);
    for (; b < end; b++) add_block(p, H, min, w, x + b * step, b, acc);
    LM_UNROLL for (int t = 0; t < p.T; t++) LM_UNROLL for (int i = 0; i < 2; i++) _mm512_storeu_ps(&out[p.t0 + t][16 * i], acc[i][t]);
}
/* Whether a token of the part has low bytes in this block */
LM_INLINE bool any_low(part p, const uint8_t *x) {
    int32_t any = 0, dh;
    LM_UNROLL for (int t = 0; t < p.T; t++) {
        memcpy(&dh, x + 80 * p.W + 4 * (p.t0 + t), 4);
        any |= dh;
    }
    return any < 0;
}
/* A segment of lane mixed: runs of blocks without low bytes, and single blocks with them. Both bytes of more than four tokens do not fit the
 * registers, so those go by halves. */
LM_INLINE void mixed_segment(part p, int H, bool min, const lm_int_plane *w, const uint8_t *x, uint32_t b, uint32_t stop, float out[6][32]) {
    const part high = {p.T, p.W, p.t0, 2, true};
    const part first = {p.T > 4 ? 3 : p.T, p.W, p.t0, 2, false}, rest = {p.T > 4 ? p.T - 3 : 0, p.W, p.t0 + 3, 2, false};
    const size_t step = (size_t)p.W * 84;
    while (b < stop) {
        uint32_t end = b;
        while (end < stop && !any_low(p, x + end * step)) end++;
        if (end > b)
            blocks(high, H, min, w, x, b, end, out);
        else {
            blocks(first, H, min, w, x, b, ++end, out);
            if (rest.T) blocks(rest, H, min, w, x, b, end, out);
        }
        b = end;
    }
}
LM_INLINE void mixed_part(part p, int H, bool min, const lm_int_plane *w, const uint8_t *x, const lm_int_segments *g, float *out, size_t ld) {
    float sum[LM_INT_WAITING + 1][6][32]; /* those that wait, then the segment's */
    uint32_t n = 0;
    for (uint32_t s = 0; s < g->n; s++, n++) {
        memset(sum[n], 0, sizeof sum[n]);
        mixed_segment(p, H, min, w, x, g->bound[s], g->bound[s + 1], sum[n]);
        for (uint32_t j = g->joins[s]; j > 0; j--, n--)
            LM_UNROLL for (int t = p.t0; t < p.t0 + p.T; t++) LM_UNROLL for (int i = 0; i < 32; i += 16)
                _mm512_storeu_ps(&sum[n - 1][t][i], _mm512_add_ps(_mm512_loadu_ps(&sum[n - 1][t][i]), _mm512_loadu_ps(&sum[n][t][i])));
    }
    LM_UNROLL for (int t = p.t0; t < p.t0 + p.T; t++) memcpy(out + (size_t)t * ld, sum[0][t], sizeof sum[0][t]);
}
/* Kinds with two scales take a tile of W tokens as A and W − A. */
#define LM_TILE_KIND(PART, W, P, A) \
    case W: \
        if (w->halves == 1 && !w->has_min) \
            PART((part){W, W, 0, P, false}, 1, false, w, x, g, out, ld); \
        else if (w->halves == 1) \
            PART((part){W, W, 0, P, false}, 1, true, w, x, g, out, ld); \
        else if (!w->has_min) { \
            PART((part){A, W, 0, P, false}, 2, false, w, x, g, out, ld); \
            if (W > A) PART((part){W - A, W, A, P, false}, 2, false, w, x, g, out, ld); \
        } else { \
            PART((part){A, W, 0, P, false}, 2, true, w, x, g, out, ld); \
            if (W > A) PART((part){W - A, W, A, P, false}, 2, true, w, x, g, out, ld); \
        } \
        break;
static void tile_8(const lm_int_plane *w, const uint8_t *x, uint32_t n_t, const lm_int_segments *g, float *out, size_t ld) {
    switch (n_t) {
        LM_TILE_KIND(tile_part, 1, 1, 1)
        LM_TILE_KIND(tile_part, 2, 1, 2)
        LM_TILE_KIND(tile_part, 3, 1, 3)
        LM_TILE_KIND(tile_part, 4, 1, 4)
        LM_TILE_KIND(tile_part, 5, 1, 5)
        LM_TILE_KIND(tile_part, 6, 1, 6)
    default: break;
    }
}
static void tile_16(const lm_int_plane *w, const uint8_t *x, uint32_t n_t, const lm_int_segments *g, float *out, size_t ld) {
    switch (n_t) {
        LM_TILE_KIND(tile_part, 1, 2, 1)
        LM_TILE_KIND(tile_part, 2, 2, 2)
        LM_TILE_KIND(tile_part, 3, 2, 3)
        LM_TILE_KIND(tile_part, 4, 2, 4)
    default: break;
    }
}
static void tile_mixed(const lm_int_plane *w, const uint8_t *x, uint32_t n_t, const lm_int_segments *g, float *out, size_t ld) {
    switch (n_t) {
        LM_TILE_KIND(mixed_part, 1, 2, 1)
        LM_TILE_KIND(mixed_part, 2, 2, 2)
        LM_TILE_KIND(mixed_part, 3, 2, 3)
        LM_TILE_KIND(mixed_part, 4, 2, 2)
        LM_TILE_KIND(mixed_part, 5, 2, 3)
        LM_TILE_KIND(mixed_part, 6, 2, 3)
    default: break;
    }
}
static void tile(lm_int_lane lane, const lm_int_plane *w, const uint8_t *x, uint32_t n_t, const lm_int_segments *g, float *out,
                 size_t ld) {
    if (lane == LM_INT_8)
        tile_8(w, x, n_t, g, out, ld);
    else if (lane == LM_INT_MIXED)
        tile_mixed(w, x, n_t, g, out, ld);
    else
        tile_16(w, x, n_t, g, out, ld);
}
/* ---- activations -----------------------------------------------------------------------------------------------------------------*/
LM_INLINE void put_quads(__m128i q, uint8_t *dst, size_t step) {
    const uint32_t word[4] = {(uint32_t)_mm_extract_epi32(q, 0), (uint32_t)_mm_extract_epi32(q, 1), (uint32_t)_mm_extract_epi32(q, 2),
                              (uint32_t)_mm_extract_epi32(q, 3)};
    LM_UNROLL for (int j = 0; j < 4; j++) memcpy(dst + (size_t)j * step, &word[j], 4);
}
/* Σ of 16 signed bytes, for each half */
LM_INLINE void sums(__m128i a, __m128i b, int32_t out[2]) {
    const __m256i q = _mm256_xor_si256(_mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1), _mm256_set1_epi8(-128));
    __m256i s = _mm256_sad_epu8(q, _mm256_setzero_si256());
    s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0x4e));
    out[0] = _mm_cvtsi128_si32(_mm256_castsi256_si128(s)) - 16 * 128;
    out[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(s, 1)) - 16 * 128;
}
/* dst is the token's place in the block's first array; k: all lanes where the block is finite, else none */
LM_INLINE void quantise_block(lm_int_lane lane, const float *x, __mmask16 k, float s, float dx, uint32_t w, uint8_t *dst) {
    const __m512 scale = _mm512_set1_ps(s);
    const __m512i v0 = _mm512_maskz_cvtps_epi32(k, _mm512_mul_ps(_mm512_loadu_ps(x), scale));
    const __m512i v1 = _mm512_maskz_cvtps_epi32(k, _mm512_mul_ps(_mm512_loadu_ps(x + 16), scale));
    const __m128i lo0 = _mm512_cvtepi32_epi8(v0), lo1 = _mm512_cvtepi32_epi8(v1);
    int32_t sum[2];
    sums(lo0, lo1, sum);
    uint8_t *q = dst + 16 * w;
    if (lane == LM_INT_8) {
        put_quads(lo0, q, w * 4);
        put_quads(lo1, q + w * 16, w * 4);
    } else {
        const __m512i half = _mm512_set1_epi32(128);
        const __m128i hi0 = _mm512_cvtepi32_epi8(_mm512_srai_epi32(_mm512_add_epi32(v0, half), 8));
        const __m128i hi1 = _mm512_cvtepi32_epi8(_mm512_srai_epi32(_mm512_add_epi32(v1, half), 8));
        int32_t high[2];
        sums(hi0, hi1, high);
        sum[0] += 256 * high[0], sum[1] += 256 * high[1];
        put_quads(hi0, q, w * 8);
        put_quads(hi1, q + w * 32, w * 8);
        put_quads(lo0, q + w * 4, w * 8); /* v − 256·hi is v's low byte */
        put_quads(lo1, q + w * 36, w * 8);
    }
    const int32_t all = sum[0] + sum[1], c = -128 * all, ca = -128 * sum[0];
    const float sx = dx * (float)all;
    memcpy(dst, &dx, 4);
    memcpy(dst + 4 * w, &sx, 4);
    memcpy(dst + 8 * w, &c, 4);
    memcpy(dst + 12 * w, &ca, 4);
    const float dh = -1.0f; /* lo is not left out */
    if (lane != LM_INT_8) memcpy(dst + 80 * w, &dh, 4);
}
/* n ≤ 16 blocks of one token: their scales are divided out side by side. */
LM_INLINE void quantise_blocks(lm_int_lane lane, const float *x, uint32_t n, uint32_t w, uint8_t *dst) {
    int32_t most[16] = {0};
    float s[16], dx[16];
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    for (uint32_t b = 0; b < n; b++)
        most[b] = _mm512_reduce_max_epi32(_mm512_max_epi32(_mm512_and_si512(_mm512_loadu_si512(x + 32 * b), magnitude),
                                                           _mm512_and_si512(_mm512_loadu_si512(x + 32 * b + 16), magnitude)));
    const __m512i bits = _mm512_loadu_si512(most);
    const __m512 m = _mm512_castsi512_ps(bits), top = _mm512_set1_ps(lane == LM_INT_8 ? 127.0f : 32512.0f);
    const __mmask16 finite = _mm512_cmplt_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));
    const __mmask16 some = finite & (__mmask16)~_mm512_cmp_ps_mask(m, _mm512_set1_ps(0x1p-100f), _CMP_LT_OQ);
    _mm512_storeu_ps(s, _mm512_maskz_div_ps(some, top, m));
    _mm512_storeu_ps(dx, _mm512_mask_mov_ps(_mm512_set1_ps(__builtin_nanf("")), finite, _mm512_maskz_div_ps(some, m, top)));
    for (uint32_t b = 0; b < n; b++, dst += (size_t)w * lm_int_token(lane))
        quantise_block(lane, x + 32 * b, finite >> b & 1 ? 0xffff : 0, s[b], dx[b], w, dst);
}
static void quantise(lm_int_lane lane, const float *const *x, uint32_t w, uint32_t K, uint8_t *dst) {
    if (lane == LM_INT_MIXED) {
        lm_int_quantise_avx2(lane, x, w, K, dst);
        return;
    }
    for (uint32_t b = 0; b < K / LM_INT_BLK; b += 16) {
        const uint32_t n = K / LM_INT_BLK - b < 16 ? K / LM_INT_BLK - b : 16;
        for (uint32_t t = 0; t < w; t++) {
            uint8_t *to = dst + (size_t)b * w * lm_int_token(lane) + 4 * t;
            if (lane == LM_INT_8)
                quantise_blocks(LM_INT_8, x[t] + 32 * b, n, w, to);
            else
                quantise_blocks(LM_INT_16, x[t] + 32 * b, n, w, to);
        }
    }
}

LM_INLINE vi i_dp(vi acc, vi u, int32_t x) { return _mm512_dpbusd_epi32(acc, u, _mm512_set1_epi32(x)); }
#define LM_DP_WIDE 1
#include "kernels/body/int_gemv.h"

const lm_int_kernels lm_int_vnni = {
    .level = "vnni", .quantise = quantise, .unpack = LM_INT_UNPACK, .tile = tile, .gemv = LM_INT_GEMVS};
