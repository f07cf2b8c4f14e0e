/* Rows to quantized tiles (lane_int.h) on AVX-512 VNNI: a block of all of a tile's tokens at a time, so that what is reduced within a token (its
 * largest magnitude, its sums) is reduced for eight tokens side by side, and lines leave whole. Tokens that a tile lacks are zero. */
#include "kernels/lane_int.h"
#include <immintrin.h>
#include <string.h>

#define LM_INLINE static inline __attribute__((always_inline, unused))
#define LM_UNROLL _Pragma("GCC unroll 16")

/* The tokens' largest magnitudes as bits, in order, twice. x: the block's place in each row. */
LM_INLINE __m512i largest(int W, const float *const *x, uint32_t k) {
    const __m512i sign = _mm512_set1_epi32(0x7fffffff);
    __m512i m[8], p[4];
    LM_UNROLL for (int t = 0; t < 8; t++) m[t] = t >= W ? _mm512_setzero_si512() :
        _mm512_max_epi32(_mm512_and_si512(_mm512_loadu_si512(x[t] + k), sign), _mm512_and_si512(_mm512_loadu_si512(x[t] + k + 16), sign));
    LM_UNROLL for (int i = 0; i < 4; i++) p[i] = /* two tokens, a half of the vector each */
        _mm512_max_epi32(_mm512_shuffle_i32x4(m[2 * i], m[2 * i + 1], 0x44), _mm512_shuffle_i32x4(m[2 * i], m[2 * i + 1], 0xee));
    LM_UNROLL for (int i = 0; i < 2; i++) p[i] = /* four, a quarter each */
        _mm512_max_epi32(_mm512_shuffle_i32x4(p[2 * i], p[2 * i + 1], 0x88), _mm512_shuffle_i32x4(p[2 * i], p[2 * i + 1], 0xdd));
    __m512i q = _mm512_max_epi32(_mm512_unpacklo_epi32(p[0], p[1]), _mm512_unpackhi_epi32(p[0], p[1]));
    q = _mm512_max_epi32(q, _mm512_shuffle_epi32(q, 0x4e));
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 4, 8, 12, 1, 5, 9, 13), q);
}
/* Four tokens' halves of a block, each of 16 integers that bytes hold: quarter i has their quads i side by side. */
LM_INLINE __m512i quads(__m512i ab, __m512i cd) { return _mm512_packs_epi16(ab, cd); }
/* Each quarter's sum over its four bytes, added over the quarters: [a of 4 tokens][b][c][d] */
LM_INLINE __m512i sums(__m512i a, __m512i b, __m512i c, __m512i d) {
    const __m512i ab = _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xee));
    const __m512i cd = _mm512_add_epi32(_mm512_shuffle_i32x4(c, d, 0x44), _mm512_shuffle_i32x4(c, d, 0xee));
    return _mm512_add_epi32(_mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xdd));
}
LM_INLINE __mmask16 first_n(int n) { return (__mmask16)(n >= 16 ? 0xffff : (1 << n) - 1); }
LM_INLINE void put_words(uint8_t *dst, __m512i v, int n) {
    if (n >= 16)
        _mm512_storeu_si512(dst, v);
    else if (n > 0)
        _mm512_mask_storeu_epi32(dst, first_n(n), v);
}
/* What the permutations below are made of: word o of what is stored, for each of its 16. */
#define LM_WORDS(E) \
    _mm512_setr_epi32(E(0), E(1), E(2), E(3), E(4), E(5), E(6), E(7), E(8), E(9), E(10), E(11), E(12), E(13), E(14), E(15))

/* dx, sx, c, ca. sum: Σh of each token's first halves, then of the second ones; dx and sx: one after the other */
LM_INLINE void put_head(int W, __m512i sum, __m512 dx_sx, uint8_t *dst) {
    const __m512i other = _mm512_shuffle_i64x2(sum, sum, 0x4e), all = _mm512_add_epi32(sum, other);
    const __m512i c = _mm512_slli_epi32(_mm512_sub_epi32(_mm512_setzero_si512(), _mm512_mask_mov_epi32(other, 0x00ff, all)), 7);
#define LM_AT(o) ((o) / W % 4 * 8 + (o) % W)
#define LM_LATER(o) LM_AT((o) + 16)
    put_words(dst, _mm512_permutex2var_epi32(_mm512_castps_si512(dx_sx), LM_WORDS(LM_AT), c), 4 * W);
    if (W > 4) put_words(dst + 64, _mm512_permutex2var_epi32(_mm512_castps_si512(dx_sx), LM_WORDS(LM_LATER), c), 4 * W - 16);
#undef LM_LATER
#undef LM_AT
}
/* The tails: sum of v as above; lo[h]: half h's low bytes of tokens 0…3 and 4…7. */
LM_INLINE void put_tails(int W, __m512i sum, __m512i lo[2][2], uint8_t *dst) {
    const __m512i other = _mm512_shuffle_i64x2(sum, sum, 0x4e);
    const __m512i all = _mm512_slli_epi32(_mm512_sub_epi32(_mm512_setzero_si512(), _mm512_add_epi32(sum, other)), 7);
    const __m512i first = _mm512_slli_epi32(_mm512_sub_epi32(_mm512_setzero_si512(), sum), 7);
    int32_t c[16], byte[16];
#define LM_AT(o) ((o) / 2 + (o) % 2 * 16)
    _mm512_storeu_si512(c, _mm512_permutex2var_epi32(all, LM_WORDS(LM_AT), first));
#undef LM_AT
    LM_UNROLL for (int t = 0; t < W; t++) memcpy(dst + LM_INT_TAIL * t, c + 2 * t, 8);
#define LM_AT(o) ((o) / 4 % 2 * 16 + (o) % 4 * 4 + (o) / 8) /* two tokens, eight words each */
    LM_UNROLL for (int t = 0; t < W; t += 2) {
        const __m512i k = _mm512_add_epi32(LM_WORDS(LM_AT), _mm512_set1_epi32(t % 4));
        _mm512_storeu_si512(byte, _mm512_permutex2var_epi32(lo[0][t / 4], k, lo[1][t / 4]));
        memcpy(dst + LM_INT_TAIL * t + 8, byte, 32);
        if (t + 1 < W) memcpy(dst + LM_INT_TAIL * (t + 1) + 8, byte + 8, 32);
    }
#undef LM_AT
}
/* Half a block's bytes: s has tokens 0…3 and 4…7. */
LM_INLINE void put_8(int W, const __m512i s[2], uint8_t *dst) {
#define LM_AT(o) ((o) % W / 4 * 16 + (o) / W % 4 * 4 + (o) % W % 4)
#define LM_LATER(o) LM_AT((o) + 16)
    put_words(dst, _mm512_permutex2var_epi32(s[0], LM_WORDS(LM_AT), s[1]), 4 * W);
    if (W > 4) put_words(dst + 64, _mm512_permutex2var_epi32(s[0], LM_WORDS(LM_LATER), s[1]), 4 * W - 16);
#undef LM_LATER
#undef LM_AT
}
/* One block by scales s[8], dx twice; wide: 16 bits, but tokens of `quiet` are by i8's rule. */
LM_INLINE void put_block(int W, bool wide, const float *const *x, uint32_t k, const float s[8], __m512 dx, __mmask16 quiet, uint8_t *dst,
                         uint8_t *tail) {
    const __m512i one = _mm512_set1_epi8(1), zero = _mm512_setzero_si512();
    __m512i d[2][2], e[2][2], lo[2][2];
    LM_UNROLL for (int h = 0; h < 2; h++) {
        __m512i v[8], w[4], a[2];
        LM_UNROLL for (int t = 0; t < 8; t++) {
            v[t] = t >= W ? zero : _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x[t] + k + 16 * h), _mm512_set1_ps(s[t])));
            if (wide && t < W) v[t] = _mm512_mask_slli_epi32(v[t], (__mmask16)-(quiet >> t & 1), v[t], 8);
        }
        LM_UNROLL for (int i = 0; i < 4; i++) w[i] = _mm512_packs_epi32(v[2 * i], v[2 * i + 1]);
        LM_UNROLL for (int i = 0; i < 2; i++) {
            const __m512i half = _mm512_set1_epi16(128);
            if (wide) {
                a[i] = quads(_mm512_srai_epi16(_mm512_add_epi16(w[2 * i], half), 8), _mm512_srai_epi16(_mm512_add_epi16(w[2 * i + 1], half), 8));
                lo[h][i] = quads(_mm512_srai_epi16(_mm512_slli_epi16(w[2 * i], 8), 8), _mm512_srai_epi16(_mm512_slli_epi16(w[2 * i + 1], 8), 8));
                e[h][i] = _mm512_dpbusd_epi32(zero, one, lo[h][i]);
            } else
                a[i] = quads(w[2 * i], w[2 * i + 1]);
            d[h][i] = _mm512_dpbusd_epi32(zero, one, a[i]);
        }
        put_8(W, a, dst + 16 * W + 16 * W * h);
    }
    const __m512i sum = sums(d[0][0], d[0][1], d[1][0], d[1][1]);
    __m512i v = sum;
    __m512 step = dx;
    if (wide) {
        const __m512i both = _mm512_add_epi32(_mm512_slli_epi32(sum, 8), sums(e[0][0], e[0][1], e[1][0], e[1][1]));
        const __mmask16 loud = (__mmask16)~(quiet | quiet << 8);
        v = _mm512_mask_mov_epi32(sum, loud, both);
        put_tails(W, v, lo, tail);
        step = _mm512_mask_xor_ps(dx, loud, dx, _mm512_set1_ps(-0.0f));
    }
    v = _mm512_add_epi32(v, _mm512_shuffle_i64x2(v, v, 0x4e));
    put_head(W, sum, _mm512_mask_mul_ps(step, 0xff00, dx, _mm512_cvtepi32_ps(v)), dst);
}
/* top / m, then m / top, of a block */
LM_INLINE __m512 scales(int W, const float *const *x, uint32_t k, __m512 top, __mmask16 *bad) {
    const __m512i bits = largest(W, x, k);
    const __m512 m = _mm512_castsi512_ps(bits);
    *bad |= _mm512_cmpge_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));
    const __mmask16 some = _mm512_cmp_ps_mask(m, _mm512_set1_ps(0x1p-100f), _CMP_GE_OQ);
    return _mm512_maskz_div_ps(some, _mm512_mask_mov_ps(top, 0xff00, m), _mm512_mask_mov_ps(m, 0xff00, top));
}
LM_INLINE void put_scaled(int W, bool wide, const float *const *x, uint32_t k, __m512 q, uint8_t *dst, uint8_t *tail) {
    float s[8];
    _mm256_storeu_ps(s, _mm512_castps512_ps256(q));
    __asm__("" : "+m"(s)); /* loads broadcast for nothing, shuffles of what is still in a register do not */
    put_block(W, wide, x, k, s, _mm512_shuffle_f32x4(q, q, 0xee), 0, dst, tail);
}
/* Blocks [0, K/32) by i8's rule where top is 127 and i16's where it is 32512; false where an element is not finite. A block's scales take long:
 * they are on their way while the block before is put. */
LM_INLINE bool plain(int W, bool wide, const float *const *x, uint32_t K, uint8_t *dst, uint8_t *tail) {
    const __m512 top = _mm512_set1_ps(wide ? 32512.0f : 127.0f);
    __mmask16 bad = 0;
    __m512 q = scales(W, x, 0, top, &bad);
    for (uint32_t k = 0; k + LM_INT_BLK < K; k += LM_INT_BLK, dst += W * LM_INT_FRONT, tail += W * LM_INT_TAIL) {
        const __m512 next = scales(W, x, k + LM_INT_BLK, top, &bad);
        put_scaled(W, wide, x, k, q, dst, tail);
        q = next;
    }
    put_scaled(W, wide, x, K - LM_INT_BLK, q, dst, tail);
    return !bad;
}
/* Loud blocks are known when all maxima are: these wait where dx will stand. */
LM_INLINE bool mixed(int W, const float *const *x, uint32_t K, uint8_t *dst, uint8_t *tail) {
    const __m512 low = _mm512_set1_ps(127.0f), high = _mm512_set1_ps(32512.0f), n = _mm512_set1_ps((float)(K / LM_INT_BLK));
    const __mmask16 tokens = first_n(W);
    __m512 sum = _mm512_setzero_ps();
    __mmask16 bad = 0;
    uint8_t *at = dst;
    for (uint32_t k = 0; k < K; k += LM_INT_BLK, at += W * LM_INT_FRONT) {
        const __m512i bits = largest(W, x, k);
        bad |= _mm512_cmpge_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));
        sum = _mm512_fmadd_ps(_mm512_castsi512_ps(bits), _mm512_castsi512_ps(bits), sum);
        _mm512_mask_storeu_epi32(at, tokens, bits);
    }
    const __m512 limit = _mm512_mul_ps(_mm512_set1_ps(LM_INT_LOUD), sum);
    for (uint32_t k = 0; k < K; k += LM_INT_BLK, dst += W * LM_INT_FRONT, tail += W * LM_INT_TAIL) {
        __m512 m = _mm512_maskz_loadu_ps(tokens, dst);
        m = _mm512_shuffle_f32x4(m, m, 0x44);
        const __mmask16 quiet = (__mmask16)~_mm512_cmp_ps_mask(_mm512_mul_ps(_mm512_mul_ps(m, m), n), limit, _CMP_GT_OQ);
        const __mmask16 some = _mm512_cmp_ps_mask(m, _mm512_set1_ps(0x1p-100f), _CMP_GE_OQ);
        const __m512 top = _mm512_mask_mov_ps(high, quiet, low);
        const __m512 q = _mm512_maskz_div_ps(some, _mm512_mask_mov_ps(top, 0xff00, m), _mm512_mask_mov_ps(m, 0xff00, top));
        float s[8];
        _mm256_storeu_ps(s, _mm512_castps512_ps256(q));
        put_block(W, true, x, k, s, _mm512_shuffle_f32x4(q, q, 0xee), quiet, dst, tail);
    }
    return !bad;
}
LM_INLINE bool any_lane(int W, lm_int_lane lane, const float *const *x, uint32_t K, uint8_t *dst, uint8_t *tail) {
    if (lane == LM_INT_8) return plain(W, false, x, K, dst, tail);
    return lane == LM_INT_16 ? plain(W, true, x, K, dst, tail) : mixed(W, x, K, dst, tail);
}
void lm_int_quantise_vnni(lm_int_lane lane, const float *const *x, uint32_t w, uint32_t K, uint8_t *dst, uint8_t *tail) {
    bool finite = false;
    switch (w) {
    case 1: finite = any_lane(1, lane, x, K, dst, tail); break;
    case 2: finite = any_lane(2, lane, x, K, dst, tail); break;
    case 3: finite = any_lane(3, lane, x, K, dst, tail); break;
    case 4: finite = any_lane(4, lane, x, K, dst, tail); break;
    case 5: finite = any_lane(5, lane, x, K, dst, tail); break;
    case 6: finite = any_lane(6, lane, x, K, dst, tail); break;
    default: break;
    }
    if (!finite) lm_int_quantise_avx2(lane, x, w, K, dst, tail); /* rare: all over, block by block */
}
