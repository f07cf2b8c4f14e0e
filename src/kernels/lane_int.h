/* Products over quantized activations: the kernels of lanes i8, i16 and mixed.
 *
 * Activations. A row is quantized in blocks of 32 elements, counted from its start. For a block with m = max |x|:
 *   i8:  dx = m / 127,   s = 127 / m,   v = round(x·s) to nearest even: −127 … 127
 *   i16: dx = m / 32512, s = 32512 / m, v = round(x·s), held as v = 256·hi + lo with lo = −128 … 127, so hi = −127 … 127
 *   mixed: as i16 in the row's loud blocks, those with m² · n > 2 · Σm² (over its n blocks, Σ by fma from +0, ascending), as i8 in the others
 *   m < 2^−100 makes the block zero (dx = 0, v = 0); an element that is not finite makes it NaN (dx = NaN, v = 0).
 * Weights. Blocks of 32 too: element k of a row is d·q[k] + min with an integer q of 8 bits, one (d, min) per block or one per half of it
 *   (16 elements). d and min are the exact products of what is stored; types without minima have no such term at all.
 * Product. Per block, I = Σ q·v is an exact integer (of 32 bits), rounded once to float. With one scale t = float(I)·d, with two
 *   t = fma(float(I₁), d₁, float(I₀)·d₀). Then acc = fma(t, dx, acc), and with minima acc = fma(min, dx·float(Σv), acc), per half in order
 *   where there are two. acc starts at +0 in every segment and takes the segment's blocks in ascending order; segments, their tree and the
 *   bias are lane f32's (kernels.h).
 * Attention is lane f32's; in i8 and mixed, where keys and values are bfloat16, lane_bf16.h's.
 * So the bits are a function of K, the storage type and the lane alone. Integers may be summed in any order, which is all that the levels
 * and tiles do differently. Types that cannot be put so (lm_int_fits) run as in f32.
 */
#ifndef LM_KERNELS_LANE_INT_H
#define LM_KERNELS_LANE_INT_H
#include "kernels/kernels.h"
#include <math.h>

typedef enum lm_int_lane {
    LM_INT_NONE,
    LM_INT_8,
    LM_INT_16,
    LM_INT_MIXED,
    LM_INT_BF16 /* no integers: lane_bf16.h's products */
} lm_int_lane;

#define LM_INT_BLK 32u
#define LM_INT_GEMV 24u /* up to so many tokens may go straight from the packed form */
#define LM_INT_SEGMENTS 8u
#define LM_INT_WIDEST 6u /* tokens of a tile, at most */

/* Quantized rows: tiles of at most 6 (i8, mixed) or 4 (i16) tokens whose widths differ by one at most. Tile i starts at byte
 * first(i) · (K/32) · lm_int_token(lane) and holds, for each block of 32,
 *   float dx[W], float sx[W] = dx·float(Σv), int32 c[W] = −128·Σh, int32 ca[W] = the first half's part of c, int8 h[8 quads][W][4];
 * then, in i16 and mixed, for each block and each of its W tokens a tail: int32 −128·Σv, its first half's part, int8 lo[8 quads][4].
 * h is v in i8 and in the quiet blocks of mixed, which look like i8's and whose lo is 0; hi in i16 and in loud blocks, whose dx is negated
 * to tell (NaN is not, and all of its block's integers are 0). So a kernel that reads no tail where dx has no sign does i8's work there; one that
 * reads all tails takes 256·h + lo for v where dx has its sign, h where it has none. */
static inline uint32_t lm_int_width(lm_int_lane l) { return l == LM_INT_16 ? 4 : 6; }
#define LM_INT_FRONT 48u /* bytes of a token in a block, */
#define LM_INT_TAIL 40u  /* and those after all fronts */
static inline uint32_t lm_int_token(lm_int_lane l) { return l == LM_INT_8 ? LM_INT_FRONT : LM_INT_FRONT + LM_INT_TAIL; }
static inline uint32_t lm_int_tiles(lm_int_lane l, uint32_t n_t) { return (n_t + lm_int_width(l) - 1) / lm_int_width(l); }
static inline uint32_t lm_int_first(lm_int_lane l, uint32_t n_t, uint32_t i) {
    return (uint32_t)((uint64_t)i * n_t / lm_int_tiles(l, n_t));
}
/* Floats of room for n_t quantized rows; at most n_t·K. */
static inline uint64_t lm_int_floats(lm_int_lane l, uint64_t n_t, uint32_t K) { return n_t * (K / LM_INT_BLK) * (lm_int_token(l) / 4); }

/* A pair of strips (32 rows) as bytes, for blocks [0, n): q[n][8 quads][2 strips][16 rows][4], each q + 128 (on level avx2 what suits it better:
 * int_avx2.c); scale and min [n][halves][2][16]. */
typedef struct lm_int_plane {
    uint8_t *q;
    float *scale, *min;
    uint32_t halves; /* 1 or 2 */
    bool has_min;
    lm_pack pack; /* of the strips */
} lm_int_plane;

/* The segments of a product that hold blocks: segment s is blocks [bound[s], bound[s+1]). Their totals wait on a stack: when s is complete, the
 * topmost joins[s] are added to it in turn (waiting + total), then it waits itself; after the last one nothing waits. That is the tree of
 * kernels.h, with the few totals that wait at a time held next to the arithmetic. */
typedef struct lm_int_segments {
    uint32_t n, bound[LM_INT_SEGMENTS + 1];
    uint8_t joins[LM_INT_SEGMENTS];
} lm_int_segments;
#define LM_INT_WAITING 3u /* at most */
/* Whether a block whose largest magnitude is m is loud; sum is Σm² of the row's n blocks. */
#define LM_INT_LOUD 2.0f
static inline bool lm_int_loud(float m, float sum, uint32_t n) { return m * m * (float)n > LM_INT_LOUD * sum; }

/* Fills slot 0 or 1 of a plane from a strip's n blocks. */
typedef void (*lm_int_unpack_fn)(const lm_dtype *type, const uint8_t *strip, uint32_t n, uint32_t slot, const lm_int_plane *out);
/* out[t*ld + 0..16): a tile of n_t tokens by one packed strip */
typedef void (*lm_int_gemv_fn)(lm_int_lane lane, const uint8_t *strip, const uint8_t *x, uint32_t n_t, const lm_int_segments *g, float *out,
                               size_t ld);

typedef struct lm_int_kernels {
    const char *level;
    /* w rows (x[t] each of K elements) to a tile of width w, or to neighbouring blocks of one: their fronts to dst, their tails, where the lane has
     * some, to tail */
    void (*quantise)(lm_int_lane lane, const float *const *x, uint32_t w, uint32_t K, uint8_t *dst, uint8_t *tail);
    lm_int_unpack_fn unpack[LM_PACK_COUNT];
    /* out[t*ld + 0..32): a tile of n_t tokens by the plane's 32 rows */
    void (*tile)(lm_int_lane lane, const lm_int_plane *w, const uint8_t *x, uint32_t n_t, const lm_int_segments *g, float *out, size_t ld);
    lm_int_gemv_fn gemv[LM_PACK_COUNT]; /* NULL: unpack, then tile */
} lm_int_kernels;

/* The fastest integer kernels at or below a level: AVX-512 needs VNNI, AVX2 uses VNNI where the CPU has it. */
const lm_int_kernels *lm_int_pick(const lm_kernels *level);
/* All that this CPU can run, the plain one first; NULL past the end. For tests. */
const lm_int_kernels *lm_int_nth(uint32_t i);
/* Whether products with this weight run in integers. */
bool lm_int_fits(const lm_packed_matrix *w);

/* Quantizes tile i of n_t rows to its place in xq: src holds that tile's rows. */
void lm_int_pack_rows(const lm_int_kernels *k, lm_int_lane lane, const float *const *src, uint32_t n_t, uint32_t i, uint32_t K, void *xq);
/* The same of the rows x + t*ldx (or x + row[t]*ldx). */
void lm_int_pack(const lm_int_kernels *k, lm_int_lane lane, const float *x, size_t ldx, const uint32_t *row, uint32_t n_t, uint32_t i,
                 uint32_t K, void *xq);

typedef struct lm_int_product {
    const lm_int_kernels *k;
    lm_int_lane lane;
    const lm_packed_matrix *w;
    uint32_t mat;
    bool split;
    const float *bias; /* [rows] of this matrix, or NULL */
    const void *xq;    /* all n_t tokens, quantized */
    uint32_t n_t;
    float *y; /* y[t*ldy + row] */
    size_t ldy;
    const lm_gate *gate; /* NULL: the product alone. Its xq is for more than LM_INT_GEMV tokens and not in mixed, where a block's rule depends on its whole row. */
    uint32_t groups;         /* parts that the tiles are cut into; 0: lm_int_groups of this product */
    uint32_t threads;        /* that share the tasks; 0: one */
} lm_int_product;
size_t lm_int_scratch(uint32_t K, bool gate); /* floats of scratch that a thread needs */
/* Tasks of the first part of the tiles come first, one for every few strips, then those of the second part, and so on: as many in each. */
uint32_t lm_int_tasks(const lm_int_product *p);
uint32_t lm_int_strips(const lm_int_product *p); /* that a task takes: task i of a part from strip i·this on */
/* Parts for n products of one input whose tasks are handed out together. */
uint32_t lm_int_groups(const lm_int_product *p, uint32_t n);
void lm_int_run(const lm_int_product *p, uint32_t i, float *scratch);

extern const lm_int_kernels lm_int_c;
#if defined(__x86_64__)
extern const lm_int_kernels lm_int_avx2, lm_int_avxvnni, lm_int_vnni;
void lm_int_quantise_avx2(lm_int_lane lane, const float *const *x, uint32_t w, uint32_t K, uint8_t *dst, uint8_t *tail);
void lm_int_quantise_vnni(lm_int_lane lane, const float *const *x, uint32_t w, uint32_t K, uint8_t *dst, uint8_t *tail);
#elif defined(__aarch64__)
extern const lm_int_kernels lm_int_neon, lm_int_dotprod, lm_int_i8mm;
void lm_int_quantise_neon(lm_int_lane lane, const float *const *x, uint32_t w, uint32_t K, uint8_t *dst, uint8_t *tail);
#endif
#endif
