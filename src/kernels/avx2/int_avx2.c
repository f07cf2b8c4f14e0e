/* Quantized activations on AVX2 without VNNI. vpmaddubsw adds pairs of products of an unsigned and a signed byte in 16 bits, and would saturate
 * where they are large. So a plane's bytes stay as small as the type allows (u = q + off from 0 up, not q + 128), and as many of the pairs' sums are added
 * up in 16 bits as fit there, before vpmaddwd widens them: eight quads with u up to 15, four up to 31, two up to 63 (127·2·u each). Bytes of 8 bits
 * go as |q| by v with q's sign, 128·127·2 at most. i16's v are words, which vpmaddwd takes as they are, by the bytes of u widened in place: its
 * even bytes and its odd ones. */
#include "base/smallfloat.h"
#include "kernels/lane_int.h"
/* the vectors first, then what is built on them, in this order */
#include "kernels/avx2/v16.h"

#include "kernels/body/maths.h"

#define LM_PLANE_LINE(u, off) ((off) == 128u ? signed_bytes(u) : (u))
#define LM_PLANE_WORD 0u
/* q + 128 to q */
LM_INLINE vi signed_bytes(vi u) {
    const __m256i top = _mm256_set1_epi8(-128);
    return (vi){_mm256_xor_si256(u.a, top), _mm256_xor_si256(u.b, top)};
}
#include "kernels/body/int_unpack.h"

#define LM_UNROLL _Pragma("GCC unroll 16")
#define LM_ROLLED _Pragma("GCC unroll 1")

/* ---- activations -----------------------------------------------------------------------------------------------------------------*/
typedef __m256i small; /* a quarter of a block's integers */
/* four vectors of eight small integers to 32 bytes; quad j is word (j&1)·4 + j/2 */
LM_INLINE void put_bytes(const small v[4], uint8_t *dst, size_t step) {
    uint32_t word[8];
    _mm256_storeu_si256((__m256i *)word, _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3])));
    LM_UNROLL for (uint32_t j = 0; j < 8; j++) memcpy(dst + j * step, &word[(j & 1) * 4 + j / 2], 4);
}
LM_INLINE float largest(const float *x) {
    __m256i a[4];
    LM_UNROLL for (int i = 0; i < 4; i++) a[i] = _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + 8 * i)), _mm256_set1_epi32(0x7fffffff));
    a[0] = _mm256_max_epi32(_mm256_max_epi32(a[0], a[1]), _mm256_max_epi32(a[2], a[3]));
    __m128i m4 = _mm_max_epi32(_mm256_castsi256_si128(a[0]), _mm256_extracti128_si256(a[0], 1));
    m4 = _mm_max_epi32(m4, _mm_shuffle_epi32(m4, 0x4e));
    m4 = _mm_max_epi32(m4, _mm_shuffle_epi32(m4, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(m4));
}
/* −128 times the sum of 32 small integers, and that of the first 16 */
LM_INLINE void corrections(const small v[4], int32_t c[2]) {
    const __m256i h = _mm256_hadd_epi32(_mm256_add_epi32(v[0], v[1]), _mm256_add_epi32(v[2], v[3]));
    __m128i h4 = _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
    h4 = _mm_hadd_epi32(h4, h4);
    c[1] = -128 * _mm_cvtsi128_si32(h4);
    c[0] = c[1] - 128 * _mm_extract_epi32(h4, 1);
}
LM_INLINE void rounded(bool quiet, bool finite, const float *x, float s, small hi[4], small lo[4]) {
    LM_UNROLL for (int i = 0; i < 4; i++) {
        const __m256i r = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(s)));
        const __m256i v = finite ? r : _mm256_setzero_si256();
        hi[i] = quiet ? v : _mm256_srai_epi32(_mm256_add_epi32(v, _mm256_set1_epi32(128)), 8);
        lo[i] = quiet ? _mm256_setzero_si256() : _mm256_sub_epi32(v, _mm256_slli_epi32(hi[i], 8));
    }
}
#include "kernels/body/int_quantise.h"

void lm_int_quantise_avx2(lm_int_lane lane, const float *const *x, uint32_t w, uint32_t K, uint8_t *dst, uint8_t *tail) {
    quantise_tile(lane, x, w, K, dst, tail);
}

/* ---- the integers of a block -----------------------------------------------------------------------------------------------------*/
#define LM_INT_SUMS 1
LM_INLINE __m256i word_of(const void *p) {
    int32_t w;
    memcpy(&w, p, 4);
    return _mm256_set1_epi32(w);
}
LM_INLINE vi i_ones(void) { return (vi){_mm256_set1_epi16(1), _mm256_set1_epi16(1)}; }
LM_INLINE vi i_madd(vi x, vi y) { return (vi){_mm256_madd_epi16(x.a, y.a), _mm256_madd_epi16(x.b, y.b)}; }
LM_INLINE vi i_add16(vi x, vi y) { return (vi){_mm256_add_epi16(x.a, y.a), _mm256_add_epi16(x.b, y.b)}; }
/* pairs of u·x in 16 bits */
LM_INLINE vi i_pairs(vi u, __m256i x) { return (vi){_mm256_maddubs_epi16(u.a, x), _mm256_maddubs_epi16(u.b, x)}; }
/* |q|·x by q's sign */
LM_INLINE vi i_signed_pairs(vi size, vi q, __m256i x) {
    return (vi){_mm256_maddubs_epi16(size.a, _mm256_sign_epi8(x, q.a)), _mm256_maddubs_epi16(size.b, _mm256_sign_epi8(x, q.b))};
}

/* Tokens of a block: where the first one's bytes stand; as words a quad's elements 0 and 2, and 1 and 3 */
typedef struct block_rows {
    const uint8_t *v, *tail;
    uint32_t W; /* tokens of the tile */
    int32_t even[4][8], odd[4][8];
} block_rows;
/* Few tokens by small bytes take each byte for itself: widening pays from three on. */
LM_INLINE bool by_words(int most, int T) { return most == 128 || T > 2; }
LM_INLINE void take_rows(int most, uint32_t W, uint32_t t0, int T, int P, const uint8_t *x, const uint8_t *tail, block_rows *r) {
    r->v = x + 16 * W + 4 * t0;
    r->W = W;
    r->tail = tail + LM_INT_TAIL * t0 + 8;
    if (P != 2 || !by_words(most, T)) return;
    LM_UNROLL for (int t = 0; t < T; t++) {
        int32_t h[8];
        LM_UNROLL for (uint32_t j = 0; j < 8; j++) memcpy(&h[j], r->v + 4 * (j * W + (uint32_t)t), 4);
        const __m256i high = _mm256_setr_epi32(h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7]), top = _mm256_set1_epi16((int16_t)0xff00);
        const __m256i low = _mm256_loadu_si256((const __m256i *)(tail + LM_INT_TAIL * (t0 + (uint32_t)t) + 8));
        const __m256i even = _mm256_add_epi16(_mm256_slli_epi16(high, 8), _mm256_srai_epi16(_mm256_slli_epi16(low, 8), 8));
        const __m256i odd = _mm256_add_epi16(_mm256_and_si256(high, top), _mm256_srai_epi16(low, 8));
        _mm256_storeu_si256((__m256i *)r->even[t], even);
        _mm256_storeu_si256((__m256i *)r->odd[t], odd);
    }
}
LM_INLINE __m256i word_at_quad(const block_rows *r, uint32_t j, int t) { return word_of(r->v + 4 * (j * r->W + (uint32_t)t)); }
/* What follows adds quads to i[t] for tokens [t0, t1), one quad or as many as 16 bits hold at a time. */
LM_INLINE void bytes_of_quad(vi u, uint32_t j, int t0, int t1, const block_rows *r, vi sum[6]) {
    LM_UNROLL for (int t = t0; t < t1; t++) sum[t] = i_add16(sum[t], i_pairs(u, word_at_quad(r, j, t)));
}
LM_INLINE void add_bytes(int_quad_fn quad, const lm_int_place *p, int t0, int t1, uint32_t j, uint32_t n, const block_rows *r, vi i[6]) {
    vi sum[6];
    const vi u = quad(p, j);
    LM_UNROLL for (int t = t0; t < t1; t++) sum[t] = i_pairs(u, word_at_quad(r, j, t));
    if (n == 2 || t1 <= 2)
        LM_UNROLL for (uint32_t k = j + 1; k < j + n; k++) bytes_of_quad(quad(p, k), k, t0, t1, r, sum);
    else
        LM_ROLLED for (uint32_t k = j + 1; k < j + n; k++) bytes_of_quad(quad(p, k), k, t0, t1, r, sum);
    LM_UNROLL for (int t = t0; t < t1; t++) i[t] = i_add(i[t], i_madd(sum[t], i_ones()));
}
LM_INLINE void add_signed(int_quad_fn quad, const lm_int_place *p, int t0, int t1, uint32_t j, const block_rows *r, vi i[6]) {
    const vi q = quad(p, j), size = {_mm256_abs_epi8(q.a), _mm256_abs_epi8(q.b)};
    LM_UNROLL for (int t = t0; t < t1; t++) i[t] = i_add(i[t], i_madd(i_signed_pairs(size, q, word_at_quad(r, j, t)), i_ones()));
}
/* Eight rows of a quad by words: halves one after the other leave registers for four tokens' sums. */
LM_INLINE __m256i words_by(__m256i even, __m256i odd, const block_rows *r, uint32_t j, int t, __m256i sum) {
    const __m256i s = _mm256_add_epi32(sum, _mm256_madd_epi16(even, word_of(&r->even[t][j])));
    return _mm256_add_epi32(s, _mm256_madd_epi16(odd, word_of(&r->odd[t][j])));
}
LM_INLINE __m256i even_bytes(__m256i u, bool is_signed) {
    return is_signed ? _mm256_srai_epi16(_mm256_slli_epi16(u, 8), 8) : _mm256_and_si256(u, _mm256_set1_epi16(0xff));
}
LM_INLINE __m256i odd_bytes(__m256i u, bool is_signed) { return is_signed ? _mm256_srai_epi16(u, 8) : _mm256_srli_epi16(u, 8); }
LM_INLINE void add_words(int_quad_fn quad, int most, const lm_int_place *p, int t0, int t1, uint32_t j, const block_rows *r, vi i[6]) {
    const vi u = quad(p, j);
    const __m256i e0 = even_bytes(u.a, most == 128), o0 = odd_bytes(u.a, most == 128);
    LM_UNROLL for (int t = t0; t < t1; t++) i[t].a = words_by(e0, o0, r, j, t, i[t].a);
    const __m256i e1 = even_bytes(u.b, most == 128), o1 = odd_bytes(u.b, most == 128);
    LM_UNROLL for (int t = t0; t < t1; t++) i[t].b = words_by(e1, o1, r, j, t, i[t].b);
}
/* Both bytes, high and low sums apart: hi[t] for 256·i. The low byte is −128 at the least, and 128·2·u fits as often. */
LM_INLINE void add_both(int_quad_fn quad, const lm_int_place *p, int T, uint32_t j, uint32_t n, const block_rows *r, vi lo[6], vi hi[6]) {
    vi high[6], low[6];
    LM_UNROLL for (uint32_t k = j; k < j + n; k++) {
        const vi u = quad(p, k);
        LM_UNROLL for (int t = 0; t < T; t++) {
            const vi h = i_pairs(u, word_at_quad(r, k, t)), l = i_pairs(u, word_of(r->tail + (size_t)t * LM_INT_TAIL + 4 * k));
            high[t] = k == j ? h : i_add16(high[t], h);
            low[t] = k == j ? l : i_add16(low[t], l);
        }
    }
    LM_UNROLL for (int t = 0; t < T; t++) {
        hi[t] = i_add(hi[t], i_madd(high[t], i_ones()));
        lo[t] = i_add(lo[t], i_madd(low[t], i_ones()));
    }
}
LM_INLINE void add_quads(int_quad_fn quad, int most, const lm_int_place *p, int P, int t0, int t1, uint32_t j, uint32_t n, const block_rows *r,
                         vi i[6]) {
    if (P == 2) add_words(quad, most, p, t0, t1, j, r, i);
    else if (most == 128) add_signed(quad, p, t0, t1, j, r, i);
    else add_bytes(quad, p, t0, t1, j, n, r, i);
}
/* f[t] = float(I) over quads [j0, j1), c[t] what their offset takes off. As many tokens at once as registers hold. */
LM_INLINE void strip_ints(int_quad_fn quad, int most, const lm_int_place *p, int T, int P, uint32_t j0, uint32_t j1, const int32_t c[6],
                          const block_rows *r, vf f[6]) {
    const int at_once = P == 2 ? 4 : most > 31 ? 3 : 6;
    const uint32_t n = most == 128 || (P == 2 && by_words(most, T)) ? 1 : most > 31 ? 2 : most > 15 ? 4 : 8; /* quads that 16 bits hold */
    vi i[6], hi[6];
    LM_UNROLL for (int t = 0; t < T; t++) i[t] = i_set(c[t]), hi[t] = i_set(0);
    if (P == 2 && !by_words(most, T)) {
        LM_UNROLL for (uint32_t j = j0; j < j1; j += n) add_both(quad, p, T, j, n, r, i, hi);
        LM_UNROLL for (int t = 0; t < T; t++) f[t] = v_cvt(i_add(i[t], i_sll(hi[t], 8)));
        return;
    }
    LM_UNROLL for (int t = 0; t < T; t += at_once) {
        const int end = t + at_once < T ? t + at_once : T;
        if (end - t <= 2)
            LM_UNROLL for (uint32_t j = j0; j < j1; j += n) add_quads(quad, most, p, P, t, end, j, n, r, i);
        else
            LM_ROLLED for (uint32_t j = j0; j < j1; j += n) add_quads(quad, most, p, P, t, end, j, n, r, i);
    }
    LM_UNROLL for (int t = 0; t < T; t++) f[t] = v_cvt(i[t]);
}
#include "kernels/body/int_gemv.h"

/* ---- tiles: a plane's strip goes as a packed one does -----------------------------------------------------------------------------------*/
typedef struct plane_strip {
    const lm_int_plane *w;
    uint32_t slot;
    int off;
} plane_strip;
LM_INLINE lm_int_place place_plane(const uint8_t *strip, uint32_t b, uint32_t H) {
    const plane_strip *s = (const void *)strip;
    const size_t at = (size_t)b * H * 32 + s->slot * 16;
    return (lm_int_place){.group = (const void *)(s->w->scale + at),
                          .line = s->w->q + (size_t)b * 1024 + s->slot * 64,
                          .high = (const void *)(s->w->min + at),
                          .off = s->off,
                          .has_min = s->w->has_min};
}
LM_INLINE lm_int_place place_plane_1(const uint8_t *strip, uint32_t b) { return place_plane(strip, b, 1); }
LM_INLINE lm_int_place place_plane_2(const uint8_t *strip, uint32_t b) { return place_plane(strip, b, 2); }
LM_INLINE vi quad_plane(const lm_int_place *p, uint32_t j) { return i_load(p->line + 128 * j); }
LM_INLINE vf scale_plane(const lm_int_place *p, uint32_t b, uint32_t half) {
    (void)b;
    return v_load((const float *)(const void *)p->group + 32 * half);
}
LM_INLINE vf min_plane(const lm_int_place *p, uint32_t b, uint32_t half) {
    (void)b;
    return v_load((const float *)(const void *)p->high + 32 * half);
}
LM_INT_STRIP_FN(tile_4, place_plane_1, quad_plane, scale_plane, min_plane, 15, 1, 0)
LM_INT_STRIP_FN(tile_5, place_plane_1, quad_plane, scale_plane, min_plane, 31, 1, 0)
LM_INT_STRIP_FN(tile_6, place_plane_2, quad_plane, scale_plane, min_plane, 63, 2, 0)
LM_INT_STRIP_FN(tile_8, place_plane_1, quad_plane, scale_plane, min_plane, 128, 1, 0)
LM_INT_STRIP_FN(tile_8x2, place_plane_2, quad_plane, scale_plane, min_plane, 128, 2, 0)
static lm_int_gemv_fn tile_of(const lm_int_plane *w, int *off) {
    *off = w->pack == LM_PACK_Q4_0 ? 8 : w->pack == LM_PACK_Q5_0 ? 16 : w->pack == LM_PACK_Q6_K ? 32 : 0;
    switch (w->pack) {
    case LM_PACK_Q4_0:
    case LM_PACK_Q4_1:
    case LM_PACK_Q4_K: return tile_4;
    case LM_PACK_Q5_0:
    case LM_PACK_Q5_K: return tile_5;
    case LM_PACK_Q6_K: return tile_6;
    default: return w->halves == 1 ? tile_8 : tile_8x2;
    }
}
static void int_tile(lm_int_lane lane, const lm_int_plane *w, const uint8_t *x, uint32_t n_t, const lm_int_segments *g, float *out,
                     size_t ld) {
    plane_strip strip = {.w = w};
    const lm_int_gemv_fn tile = tile_of(w, &strip.off);
    for (; strip.slot < 2; strip.slot++) tile(lane, (const void *)&strip, x, n_t, g, out + 16 * strip.slot, ld);
}

const lm_int_kernels lm_int_avx2 = {
    .level = "avx2", .quantise = lm_int_quantise_avx2, .unpack = LM_INT_UNPACK, .tile = int_tile, .gemv = LM_INT_GEMVS};
