/* Products and attention in bfloat16: the kernels of lane bf16, and of the attention of lanes i8 and mixed where keys and values are bf16.
 *
 * Weights. The packed form is LM_PACK_BF16X2 (pack.h): what the file stores, rounded once at load (F32, F16; BF16 is what it is). Block-quantized
 *   weights are refused: rounding what they decode to would quantize them a second time.
 * Rounding. To nearest even; a subnormal float32 or bfloat16 counts as a zero of its sign, a NaN stays one.
 * Product. Elements go in pairs (2j, 2j+1) counted from the row's start; a row of odd length is continued by one +0 on both sides. In a segment,
 *   blocks of 256 elements are counted from its start: blk = +0, then for each pair in ascending order
 *       blk = ftz(fma(w[2j+1], x[2j+1], blk));  blk = ftz(fma(w[2j], x[2j], blk))
 *   where ftz makes a zero of the same sign of a result that is subnormal when rounded to 24 bits with no bound on the exponent (as MXCSR's FTZ
 *   does). total = the first blk, then total = total + blk, subnormals kept. Segments, their tree and the bias are lane f32's (kernels.h).
 * Attention, in lanes bf16, i8 and mixed where keys and values are bfloat16 (kv.h's BF16X2), follows kernels.h but for a page's sums.
 *   Queries and weights are rounded as a product's input is. q·k is such a product over dk elements, unsplit. s = q·k and a = scale (with a
 *   softcap as there); m = (max s)·a;
 *       y = max(fma(s, b, −((max s)·b)), −125), b = a·log2 e in float32;  n = y rounded to an integer;  p = bf16(2^n·c(y − n)),
 *   c of degree 4 by Horner in fmas, within 3e-6 of the power: what it is off by is lost in the rounding to bfloat16.
 *   Keys go in pairs (2j, 2j+1) counted from the page's start; a key that is not seen has weight +0, and its value counts as +0.
 *   l, which is of the rounded weights: 16 virtual lanes from +0, pair j in lane j mod 16, the odd one, then the even one; their tree.
 *   o[d] = +0 + blk, blk from +0 over the page's pairs in ascending order: blk = ftz(fma(v[2j+1], p[2j+1], blk)), then the same with 2j.
 *   (So a zero's sign tells nothing, and pairs that nobody sees may be in the sum or not.) Pages are merged in float32.
 * That is what vdpbf16ps computes (found by tests, compared again at start-up: lm_bf16_pick); the other levels compute it from fmas.
 */
#ifndef LM_KERNELS_LANE_BF16_H
#define LM_KERNELS_LANE_BF16_H
#include "kernels/kernels.h"

/* n_c ≤ LM_STRIP_GROUP strips, strip_bytes apart, by n_t ≤ LM_TILE tokens: the products w[pairs][16][2]·x[pairs][n_t][2], by blocks of
 * LM_BLK/2 pairs (the last may be short), enter total[(c*ld + t)*16 + row], the first block as what it is when `first`. Then `joins` times
 * the total is added to the one `slot` floats before it, which takes its place. The result is left there or, where y is not NULL, written to
 * y[t*ldy + c*16 + row], plus bias[c*16 + row] where that is not NULL. The bytes from `ahead` on, `step` a pair, will be needed soon; ahead
 * may lie outside of all memory. */
typedef struct lm_bf16_tile {
    const uint8_t *w;
    size_t strip_bytes;
    const uint32_t *x;
    uint32_t n_c, pairs, n_t, joins;
    bool first;
    float *total;
    size_t ld, slot;
    float *y;
    size_t ldy;
    const float *bias;
    const uint8_t *ahead;
    size_t step;
} lm_bf16_tile;
typedef struct lm_bf16_kernels {
    const char *level;
    void (*tile)(const lm_bf16_tile *a);
    void (*round)(const float *x, uint32_t n, uint16_t *dst);
    /* as lm_kernels', for BF16X2, LM_BF16_QUERIES queries at most */
    void (*attend)(const lm_attend *a);
    void (*store)(const lm_kv_rows *r);
} lm_bf16_kernels;
#define LM_BF16_QUERIES 12u

/* The fastest at or below a level, each tried once against plain C on numbers at the edges (subnormals, cancellation, infinities): one whose
 * bits differ is passed over. *passed_over, where not NULL, names it (or is NULL). */
const lm_bf16_kernels *lm_bf16_pick(const lm_kernels *level, const char **passed_over);
/* All that this CPU can run, the plain one first; NULL past the end. For tests. */
const lm_bf16_kernels *lm_bf16_nth(uint32_t i);
/* Whether `k` gives plain C's bits on the numbers that lm_bf16_pick tries. */
bool lm_bf16_agrees(const lm_bf16_kernels *k);
/* acc[t][16] += pairs of w, `step` bytes apart, by x[j*xj + t*xt] for T tokens, in plain C: for levels that leave edges to it. */
void lm_bf16_chain_c(const uint8_t *w, size_t step, uint32_t pairs, const uint32_t *x, size_t xj, size_t xt, uint32_t T, float *acc);

/* Pairs [0, n) of w rows, ld numbers apart, as dst[n][w]. */
void lm_bf16_turn(const uint16_t *rows, size_t ld, uint32_t w, uint32_t n, uint32_t *dst);
/* As lm_x_pack, to pairs: tile i of width w at word first(i)·⌈K/2⌉, [⌈K/2⌉][w][2]. */
void lm_bf16_pack(const lm_bf16_kernels *k, const float *x, size_t ldx, const uint32_t *row, uint32_t n_t, uint32_t i, uint32_t K, void *xp);
/* The same of tile i's rows alone: src holds them. */
void lm_bf16_pack_rows(const lm_bf16_kernels *k, const float *const *src, uint32_t n_t, uint32_t i, uint32_t K, void *xp);

extern const lm_bf16_kernels lm_bf16_c;
#if defined(__x86_64__)
extern const lm_bf16_kernels lm_bf16_avx2, lm_bf16_dp;
#elif defined(__aarch64__)
extern const lm_bf16_kernels lm_bf16_neon;
#endif
#endif
