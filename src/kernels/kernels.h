/* The cpu kernels: one table of functions per instruction-set level, and the contract that makes their bits equal.
 *
 * Lane f32. For every level, number of tokens (1 included), tile, strip grouping and thread:
 *
 * Product  y = x · Wᵀ.  w is the float32 value of a weight, (float)decode. The reduced dimension K is cut into segments: one, [0, K), or,
 *   when the op's `split` is set, 8: segment i = units [⌊i·n/8⌋, ⌊(i+1)·n/8⌋), n = ⌈K/unit⌉, a unit being the type's block (16 for floats).
 *   Inside a segment, blocks of 32 elements are counted from its start:
 *       blk = +0;  blk = fma(w[k], x[k], blk) for ascending k;  total = the first blk, then total = total + blk.
 *   A row of 4096 is so a chain of 32 and one of 128, not one of 4096: what rounding adds stays below what the reference's own float32 does.
 *   Segment totals are summed ((01)(23))((45)(67)); an empty segment passes its sibling through. Then y = total + bias.
 *   16 outputs (a strip) go side by side through the vector: nothing is ever summed across lanes, so the vector's width does not matter.
 * Other sums (norms, sums of exponentials): 16 virtual lanes starting at +0; element i goes to lane i mod 16, by fma where
 *   it is a product, by add otherwise; the last 16 are padded with +0; then lanes i and i+8 are added, then i and i+4, i+2, i+1.
 * Attention: per query, pages of 256 keys aligned to absolute position; in a page, its keys j that the query sees, in the value that the cache
 *   holds (kv.h). q·k sums blocks of 32 elements: blk = +0, blk = fma(q[d], k[d], blk); the first blk, then total + blk. s = q·k and
 *   a = scale, or, with a softcap, s = c·tanh((q·k)·scale/c) and a = 1; m = (max s)·a (a NaN aside); p = exp(max(fma(s, a, −m), −87));
 *   l = Σp over 16 virtual lanes, p in lane j mod 16; o[d] = +0, then o + blk for each block of 32 keys (j from a multiple of 32 on),
 *   blk = +0, blk = fma(p, v[d], blk) for ascending j. 16 keys, or 16 columns of the values, go side by side through the vector. Keys that
 *   are not seen change no sum, whatever they hold.
 *   Over latents and index keys, which are rows: q·k over 16 virtual lanes, l too (element i is the i-th visible key), o = fma(p, v, o) from +0.
 *   Pages are merged in ascending order: M = max(m, m'), a = exp(m − M), b = exp(m' − M), l = fma(l', b, l·a), o = fma(o', b, o·a).
 *   A sink is merged last and into l only, by a of o. Result o·(a/l), a = 1 without a sink.
 * Experts: acc = fma(weight, y, acc) from +0 over ascending expert id inside a segment of ids; 8 segments, [⌊i·E/8⌋, ⌊(i+1)·E/8⌋), in the
 *   same tree, empty ones (no expert of it chosen) skipped. Each down product is itself split.
 * exp, tanh, sigmoid, … are the polynomials of body/maths.h: every branch is computed, then selected by comparisons, on every level alike.
 * Max(a, b) is a > b ? a : b. Square root and division are IEEE's. No reciprocal estimates; subnormals are kept.
 *
 * Lanes i8, i16 and mixed differ in the products with block-quantized weights only: lane_int.h has their contract and kernels. Lane bf16 differs
 * in all products with weights, and in attention where keys and values are bfloat16: lane_bf16.h.
 *
 * ref/ fills the whole table in plain C (fmaf is exact by IEEE, whatever the CPU); avx2/, avx512/ and neon/ build the same bodies (body/) on
 * their own sixteen-lane vectors. A level is one header of vector primitives (v16.h) and one table.
 * Buffers need no alignment; lengths need not be multiples of 16; nothing is read or written outside the stated ranges. None can fail.
 */
#ifndef LM_KERNELS_KERNELS_H
#define LM_KERNELS_KERNELS_H
#include "kernels/kv.h"
#include "kernels/pack.h"

#define LM_TILE 12u  /* tokens per tile of a prefill product, at most */
#define LM_GEMV 4u   /* up to so many tokens take the decode path */
#define LM_BLK 256u  /* elements that are decoded and multiplied at a time */
#define LM_SUM 32u   /* elements per block of a product's sum; LM_BLK is a multiple of it */

typedef enum lm_kact { LM_KACT_SILU, LM_KACT_GELU, LM_KACT_GELU_TANH, LM_KACT_RELU, LM_KACT_RELU2, LM_KACT_SIGMOID, LM_KACT_TANH, LM_KACT_SOFTPLUS,
               LM_KACT_NONE, LM_KACT_SWIGLU_OAI /* gated only */ } lm_kact;

/* Elements [k0, k0+n) of a strip as float32, dst[n][16]. k0 is a multiple of the type's block, n of it too (any for floats). */
typedef void (*lm_unpack_fn)(const lm_dtype *type, const uint8_t *strip, uint32_t k0, uint32_t n, float *dst);
/* The sums of n elements (blocks of LM_SUM, the last may be short) for n_t ≤ LM_GEMV tokens and n_c consecutive strips, straight from the packed
 * form: x[n][n_t] starts at k0's element; total[c*LM_GEMV*16 + t*16 + lane] starts with the first blk when `first`, else it is added to. */
typedef void (*lm_gemv_fn)(const uint8_t *strip, size_t strip_bytes, uint32_t n_c, uint32_t k0, uint32_t n, const float *x, uint32_t n_t,
                           bool first, float *total);

/* Some queries over one page of one head's keys and values. */
typedef struct lm_attend {
    uint32_t n, dk, dv;      /* n ≤ the level's attend_n */
    const void *q;           /* float [⌈dk/32⌉][n][32]; what stands behind dk is not read. Lane bf16: pairs [⌈dk/2⌉][n][2] */
    const uint32_t *lo, *hi; /* [n] each sees [lo, hi) of the page's positions; where lo ≥ hi, nothing is left in m and l; one at least sees some */
    const uint8_t *keep;     /* [256] of these, only where it is not 0; NULL: all */
    const uint8_t *keys, *values, *next; /* next: other keys, read soon after this call, which may ask its CPU for them; NULL */
    float scale, softcap;    /* scale above 0; softcap 0: none */
    float *s;                /* scratch: 256·n */
    float *m, *l;            /* [n] */
    float *o;                /* [n][ldo]; ldo at least dv rounded up to 32, all of which is written */
    size_t ldo;
} lm_attend;
/* Positions [at, at + n) of a page: their keys and values as float rows. */
typedef struct lm_kv_rows {
    const float *k, *v;
    size_t ldk, ldv;
    uint32_t n, at, dk, dv;
    uint8_t *keys, *values;
} lm_kv_rows;

typedef struct lm_kernels {
    const char *level;
    /* total[t][16] (= or +=) the sums of n elements, by blocks of LM_SUM, of w[k][16]·x[k][n_t], n_t ≤ LM_TILE; the same for a second strip, w1
     * and total1, where w1 is not NULL */
    void (*tile)(const float *w, const float *w1, uint32_t n, const float *x, uint32_t n_t, bool first, float *total, float *total1);
    lm_unpack_fn unpack[LM_PACK_COUNT];
    lm_gemv_fn gemv[LM_PACK_COUNT]; /* NULL: unpack, then tile */
    /* sums over 16 virtual lanes */
    float (*sum)(const float *x, uint32_t n);
    float (*sum_squares)(const float *x, float mean, uint32_t n); /* Σ (x − mean)² */
    void (*squares)(const float *x, uint32_t rows, uint32_t n, float *out); /* out[r] = Σ x[r*n + i]²: some rows side by side, each as above */
    /* attention over the cache's pages, by element type */
    uint32_t attend_n; /* queries that `attend` takes at a time */
    void (*attend[LM_KV_COUNT])(const lm_attend *a); /* NULL for BF16X2: lane_bf16.h */
    void (*store[LM_KV_COUNT])(const lm_kv_rows *r);
    /* s[i*lds + j] = q_i · k_j, over rows */
    void (*dots)(const float *q, size_t ldq, uint32_t n_q, const float *k, size_t ldk, uint32_t n_k, uint32_t d, float *s, size_t lds);
    /* o_i[c] = fma(p_i[j], v_j[c], o_i[c]) for ascending j */
    void (*accumulate)(const float *p, size_t ldp, uint32_t n_q, const float *v, size_t ldv, uint32_t n_k, uint32_t d, float *o, size_t ldo);
    /* in place: scores of a page's n visible keys to weights; returns m, *l the sum */
    float (*page_softmax)(float *s, uint32_t n, float scale, float softcap, float *l);
    void (*merge)(float *o, const float *page, float a, float b, uint32_t n); /* o = fma(page, b, o·a) */
    void (*add)(float *y, const float *a, const float *b, uint32_t n);        /* y = a + b */
    void (*axpy)(float *y, float a, const float *x, uint32_t n);              /* y = fma(a, x, y) */
    /* y = ((x − mean)·s)·w + b as ((x − mean)·s), ·w, then fma when b; w, b may be NULL. mean 0 leaves x as it is. y may be x. */
    void (*normalise)(float *y, const float *x, float mean, float s, const float *w, const float *b, uint32_t n);
    void (*exp)(float *y, const float *x, uint32_t n);
    void (*act)(lm_kact act, float *y, const float *x, uint32_t n);
    void (*gated)(lm_kact act, float *y, const float *gate, const float *up, float limit, float alpha, uint32_t n);
    void (*softcap)(float *y, const float *x, float c, uint32_t n); /* c·tanh(x / c) */
    void (*decay)(float *y, const float *a, const float *neg_exp_a, const float *bias, uint32_t n); /* neg_exp_a · softplus(a + bias) */
    /* y0 = fma(x0, cos, −(x1·sin)), y1 = fma(x1, cos, x0·sin) over n pairs whose members lie n apart */
    void (*rope)(float *y0, float *y1, const float *x0, const float *x1, const float *cos, const float *sin, uint32_t n);
    /* cos[j] and sin[j] of position·freq[j], in double, times factor */
    void (*turns)(float *cos, float *sin, double position, const double *freq, double factor, uint32_t n);
    /* y[c] = bias + Σ_j w[j][c]·row[j][c], j ascending by fma from +0; bias may be NULL */
    void (*conv)(float *y, const float *const *row, const float *w, const float *bias, uint32_t taps, uint32_t n);
    /* One step of the gated delta rule: S ← S·decay; Δ = (v − Sᵀk)·beta; S ← fma(k, Δ, S); o = Sᵀ(q·q_scale); S is [dk][dv] */
    void (*delta)(float *S, const float *q, const float *k, const float *v, float decay, float beta, float q_scale, uint32_t dk, uint32_t dv, float *o);
} lm_kernels;

/* "c", "avx2", "avx512", "neon"; NULL: the best this CPU has. A level that this build or CPU lacks is LM_UNSUPPORTED by name. */
lm_status lm_kernels_pick(const char *level, const lm_kernels **out, lm_error *err);

/* ---- the product over packed weights (product.c) ------------------------------------------------------------------------------
 * Activations are packed once per product: tiles of at most LM_TILE tokens, tile i holding tokens [first(i), first(i+1)) as [K][width]. */
static inline uint32_t lm_x_tiles(uint32_t n_t) { return (n_t + LM_TILE - 1) / LM_TILE; }
static inline uint32_t lm_x_first(uint32_t n_t, uint32_t i) { /* where tile i starts: widths differ by one at most */
    return (uint32_t)((uint64_t)i * n_t / lm_x_tiles(n_t));
}
/* Packs tile i of the rows x + t*ldx (or x + row[t]*ldx) to xp[n_t*K], at its place first(i)*K. */
void lm_x_pack(const float *x, size_t ldx, const uint32_t *row, uint32_t n_t, uint32_t i, uint32_t K, float *xp);

/* A second product of the same input, and what joins the two: y = gated(act, x·Wᵀ + bias, x·W2ᵀ + bias2), lm_kernels' gated. */
typedef struct lm_gate {
    const lm_kernels *k;
    const lm_packed_matrix *w; /* W2: as many matrices, rows and elements as W, and packed alike as far as the lane wants it */
    const float *bias;
    lm_kact act;
    float limit, alpha;
    void *xq; /* NULL: to y. Otherwise W's rows are a multiple of 32, and the results go here instead, packed as the input of the next product in this
               * lane, and nothing to y. */
} lm_gate;

/* y[t*ld + r] += bias[r] for n_t tokens and n rows; bias NULL: nothing */
static inline void lm_add_bias(const float *bias, uint32_t n, uint32_t n_t, size_t ld, float *y) {
    for (uint32_t t = 0; bias && t < n_t; t++)
        for (uint32_t r = 0; r < n; r++) y[t * ld + r] += bias[r];
}

struct lm_bf16_kernels;
typedef struct lm_product {
    const lm_kernels *k;
    const lm_packed_matrix *w;
    uint32_t mat;
    bool split;
    const float *bias; /* [rows] of this matrix, or NULL */
    const float *xp;   /* all n_t tokens, packed */
    uint32_t n_t;
    float *y;          /* y[t*ldy + row] */
    size_t ldy;
    const struct lm_bf16_kernels *bf16; /* lane bf16: w is of LM_PACK_BF16X2 and xp from lm_bf16_pack; NULL: lane f32 */
    const lm_gate *gate; /* NULL: the product alone. In lane bf16, not split, for more than LM_TILE tokens. */
    uint32_t threads;    /* that share the tasks; 0: one */
} lm_product;
#define LM_STRIP_GROUP 4u   /* strips that a task takes at a time, at most */
#define LM_TILE_GROUP 44u   /* tiles that a task takes at a time, at most */
/* Floats of scratch that a thread needs for lm_product_run. */
size_t lm_product_scratch(uint32_t n_t);
uint32_t lm_product_tasks(const lm_product *p);
/* Task i of the product: up to LM_STRIP_GROUP strips by up to LM_TILE_GROUP tiles. Tasks are independent and may run in any order. */
void lm_product_run(const lm_product *p, uint32_t i, float *scratch);

extern const lm_kernels lm_kernels_c;
#if defined(__x86_64__)
extern const lm_kernels lm_kernels_avx2, lm_kernels_avx512;
#elif defined(__aarch64__)
extern const lm_kernels lm_kernels_neon;
#endif
#endif
