/* Attention of a few queries over one page of keys and values (kernels.h has the contract, kv.h the layout). Each level sets
 * LM_ATTEND_N, the queries that it keeps in registers, and LM_ATTEND_W, the vectors of keys or of value columns beside them. */
#include "base/smallfloat.h"
#include "kernels/body/seen.h"

#define LM_ATTEND_STEP (16 * LM_ATTEND_W) /* keys, or columns, at a time: 32 or 16 */
/* So few queries meet keys and values sooner than memory brings them: they ask for what they reach so many bytes later,
 * in whole rows. */
#define LM_ATTEND_FEW 4
#define LM_ATTEND_AHEAD 8192

/* What they reach, as blocks of 32 rows: the keys' tiles, their values plane by plane, then a->next; of tiles, planes those that hold a key that is
 * seen. Hints: the keys of a dk that is not whole blocks lie nearer than this says. */
typedef struct attend_walk {
    const uint8_t *keys, *values, *next;
    uint32_t tiles, n_keys, n_values, ahead; /* of a plane; blocks; blocks from what is read to what is asked for, no more than the keys have */
} attend_walk;
LM_INLINE uint32_t attend_block(lm_kv type) { return LM_KV_SPAN * LM_KV_SPAN * lm_kv_elem(type); }
LM_INLINE attend_walk attend_walk_of(lm_kv type, const lm_attend *a, uint32_t first, uint32_t end) {
    const uint32_t t0 = first / LM_KV_SPAN, tiles = lm_kv_spans(end) - t0, most = LM_ATTEND_AHEAD / attend_block(type);
    const uint32_t keys = tiles * lm_kv_spans(a->dk), values = tiles * lm_kv_spans(a->dv);
    attend_walk w = {.keys = a->keys + t0 * lm_kv_tile(type, a->dk), .values = a->values + t0 * attend_block(type), .tiles = tiles, .n_keys = keys,
                     .n_values = values, .ahead = keys < most ? keys : most};
    w.next = a->next ? a->next : w.values;
    return w;
}
/* What block b's rows ask for */
LM_INLINE const uint8_t *attend_later(lm_kv type, const attend_walk *w, uint32_t b) {
    const size_t keys = attend_block(type) + (type == LM_KV_Q8_0 ? 2 * LM_KV_SPAN : 0);
    b += w->ahead;
    if (b < w->n_keys) return w->keys + b * keys;
    b -= w->n_keys;
    if (b < w->n_values) return w->values + b / w->tiles * lm_kv_plane(type) + b % w->tiles * attend_block(type);
    return w->next + (b - w->n_values) * keys;
}
/* A row of 32 elements, or half of it */
LM_INLINE void attend_ask(lm_kv type, int W, const uint8_t *row) {
    __builtin_prefetch(row);
    if (W == 2 && lm_kv_elem(type) == 4) __builtin_prefetch(row + 64);
}

/* Sixteen elements as float32 */
LM_INLINE vf kv_load(lm_kv type, const uint8_t *p, vf scale) {
    switch (type) {
    case LM_KV_F32: return v_load((const float *)(const void *)p);
    case LM_KV_F16: return v_load_f16(p);
    case LM_KV_BF16: return v_load_bf16(p);
    default: return v_mul(v_cvt(i_load_s8(p)), scale);
    }
}

/* Scores of N queries and 16·W keys from `half` of a tile on: s[w][N][16]. Elements of d are summed in blocks of 32; `at` is the first one's
 * place in the walk. */
LM_INLINE void attend_scores(lm_kv type, int N, int W, const float *q, uint32_t dk, const uint8_t *tile, uint32_t half, const attend_walk *walk,
                             uint32_t at, float *s) {
    const uint32_t elem = lm_kv_elem(type);
    for (uint32_t d0 = 0; d0 < dk; d0 += LM_KV_SPAN) {
        const uint32_t n = dk - d0 < LM_KV_SPAN ? dk - d0 : LM_KV_SPAN;
        const uint8_t *k = tile + half * elem, *ask = N <= LM_ATTEND_FEW ? attend_later(type, walk, at + d0 / LM_KV_SPAN) + half * elem : NULL;
        vf acc[12][LM_ATTEND_W], scale[LM_ATTEND_W];
        LM_UNROLL for (int w = 0; w < W; w++) scale[w] = type == LM_KV_Q8_0 ? v_load_f16(tile + 2 * half + 32 * w) : v_set(0.0f);
        if (type == LM_KV_Q8_0) k += 2 * LM_KV_SPAN;
        LM_UNROLL for (int i = 0; i < N; i++) LM_UNROLL for (int w = 0; w < W; w++) acc[i][w] = v_set(0.0f);
        for (const float *end = q + n; q < end; q++, k += LM_KV_SPAN * elem) {
            if (N <= LM_ATTEND_FEW) attend_ask(type, W, ask), ask += LM_KV_SPAN * elem;
            vf kv[LM_ATTEND_W];
            LM_UNROLL for (int w = 0; w < W; w++) kv[w] = kv_load(type, k + 16 * (uint32_t)w * elem, scale[w]);
            LM_UNROLL for (int i = 0; i < N; i++) {
                const vf x = v_set(q[LM_KV_SPAN * (uint32_t)i]);
                LM_UNROLL for (int w = 0; w < W; w++) acc[i][w] = v_fma(x, kv[w], acc[i][w]);
            }
        }
        LM_UNROLL for (int w = 0; w < W; w++) LM_UNROLL for (int i = 0; i < N; i++) {
            float *to = s + 16 * (w * N + i);
            v_store(to, d0 ? v_add(v_load(to), acc[i][w]) : acc[i][w]);
        }
        q += LM_KV_SPAN * (uint32_t)N - n;
        tile += type == LM_KV_Q8_0 ? LM_KV_SPAN * (LM_KV_SPAN + 2) : LM_KV_SPAN * LM_KV_SPAN * elem;
    }
}

/* ---- values ----------------------------------------------------------------------------------------------------------------------*/
LM_INLINE vf attend_scale(lm_kv type, const uint8_t *half) {
    if (type != LM_KV_Q8_0) return v_set(0.0f);
    uint16_t h;
    memcpy(&h, half, 2);
    return v_set(lm_f16_to_f32(h));
}
/* Where a plane has element c of key j, and the key's scale */
LM_INLINE const uint8_t *attend_at(lm_kv type, const uint8_t *plane, uint32_t j, uint32_t c) {
    return plane + (j * LM_KV_SPAN + c) * lm_kv_elem(type);
}
LM_INLINE const uint8_t *attend_half(const uint8_t *plane, uint32_t j) { return plane + LM_KV_PAGE * LM_KV_SPAN + 2 * j; }

/* Columns [c, c + LM_ATTEND_STEP) of a plane, keys [first, end): each by all queries, whose weights of keys that they don't see are +0 and the
 * keys' values finite. That changes no bit: such a product is a zero, which at most turns the sign of a block's sum that is zero itself, and
 * `sum`, which starts from +0, is never −0. The sums stand in an array of their own, whose places are constants to the compiler; pointers walk,
 * since gcc keeps what it derives from an index in vector registers. */
LM_INLINE void attend_values(lm_kv type, int N, const lm_attend *a, uint32_t first, uint32_t end, const uint8_t *plane, uint32_t c,
                             const attend_walk *walk, uint32_t block, float *o) {
    const float *p = a->s + (size_t)(first / 16) * 16 * (size_t)N + first % 16;
    const uint8_t *at = attend_at(type, plane, first, c), *half = attend_half(plane, first);
    vf sum[12][LM_ATTEND_W];
    LM_UNROLL for (int i = 0; i < N; i++) LM_UNROLL for (int w = 0; w < LM_ATTEND_W; w++) sum[i][w] = v_set(0.0f);
    for (uint32_t j = first; j < end;) {
        const uint32_t stop = end - j < LM_KV_SPAN - j % LM_KV_SPAN ? end : j + LM_KV_SPAN - j % LM_KV_SPAN;
        vf acc[12][LM_ATTEND_W];
        const uint8_t *ask = N <= LM_ATTEND_FEW ? attend_later(type, walk, block++) + c * lm_kv_elem(type) : NULL;
        LM_UNROLL for (int i = 0; i < N; i++) LM_UNROLL for (int w = 0; w < LM_ATTEND_W; w++) acc[i][w] = v_set(0.0f);
        for (uint32_t n; j < stop; j += n, p += 16 * N - 16) { /* tile by tile of 16 weights */
            n = stop - j < 16 - j % 16 ? stop - j : 16 - j % 16;
            for (const float *const to = p + n; p < to; p++, at += LM_KV_SPAN * lm_kv_elem(type), half += 2) {
                if (N <= LM_ATTEND_FEW) attend_ask(type, LM_ATTEND_W, ask), ask += LM_KV_SPAN * lm_kv_elem(type);
                const vf scale = attend_scale(type, half);
                vf v[LM_ATTEND_W];
                LM_UNROLL for (int w = 0; w < LM_ATTEND_W; w++) v[w] = kv_load(type, at + 16 * (uint32_t)w * lm_kv_elem(type), scale);
                LM_UNROLL for (int i = 0; i < N; i++) {
                    const vf x = v_set(p[16 * i]);
                    LM_UNROLL for (int w = 0; w < LM_ATTEND_W; w++) acc[i][w] = v_fma(x, v[w], acc[i][w]);
                }
            }
        }
        LM_UNROLL for (int i = 0; i < N; i++) LM_UNROLL for (int w = 0; w < LM_ATTEND_W; w++) sum[i][w] = v_add(sum[i][w], acc[i][w]);
    }
    LM_UNROLL for (int i = 0; i < N; i++)
        LM_UNROLL for (int w = 0; w < LM_ATTEND_W; w++) v_store(o + (size_t)i * a->ldo + 16 * (uint32_t)w, sum[i][w]);
}
/* The same for any queries and values, reading none that a query doesn't see: lists, and what is not finite. */
LM_INLINE void attend_seen(lm_kv type, const lm_attend *a, const uint8_t *plane, uint32_t c, float *o) {
    for (uint32_t i = 0; i < a->n; i++) {
        vf sum[LM_ATTEND_W];
        LM_UNROLL for (int w = 0; w < LM_ATTEND_W; w++) sum[w] = v_set(0.0f);
        for (uint32_t j = a->lo[i], stop; j < a->hi[i]; j = stop) {
            stop = a->hi[i] - j < LM_KV_SPAN - j % LM_KV_SPAN ? a->hi[i] : j + LM_KV_SPAN - j % LM_KV_SPAN;
            vf acc[LM_ATTEND_W];
            LM_UNROLL for (int w = 0; w < LM_ATTEND_W; w++) acc[w] = v_set(0.0f);
            for (uint32_t k = j; k < stop; k++) {
                if (a->keep && !a->keep[k]) continue;
                const vf x = v_set(a->s[16 * ((size_t)(k / 16) * a->n + i) + k % 16]), scale = attend_scale(type, attend_half(plane, k));
                const uint8_t *at = attend_at(type, plane, k, c);
                LM_UNROLL for (int w = 0; w < LM_ATTEND_W; w++)
                    acc[w] = v_fma(x, kv_load(type, at + 16 * (uint32_t)w * lm_kv_elem(type), scale), acc[w]);
            }
            LM_UNROLL for (int w = 0; w < LM_ATTEND_W; w++) sum[w] = v_add(sum[w], acc[w]);
        }
        LM_UNROLL for (int w = 0; w < LM_ATTEND_W; w++) v_store(o + (size_t)i * a->ldo + 16 * (uint32_t)w, sum[w]);
    }
}
/* Are the values of keys [from, to) finite? */
LM_INLINE bool attend_finite(lm_kv type, const lm_attend *a, uint32_t from, uint32_t to) {
    const vf zero = v_set(0.0f);
    vf z[2] = {zero, zero};
    const uint8_t *plane = a->values;
    for (uint32_t c = 0; c < a->dv; c += LM_KV_SPAN, plane += lm_kv_plane(type))
        for (uint32_t j = from; j < to; j++) {
            const vf scale = attend_scale(type, attend_half(plane, j));
            z[0] = v_fma(kv_load(type, attend_at(type, plane, j, 0), scale), zero, z[0]);
            if (a->dv - c > 16) z[1] = v_fma(kv_load(type, attend_at(type, plane, j, 16), scale), zero, z[1]);
        }
    return v_tree(v_add(z[0], z[1])) == 0;
}

/* ---- weights ---------------------------------------------------------------------------------------------------------------------*/
#define LM_ATTEND_EXP (LM_ATTEND_W == 2 ? 4 : 1) /* vectors of exponentials side by side, to hide their latency */
/* x[k] = e^x[k] for x ≤ 0, as v_exp has it but from −87 on, below which it stays: the power of two goes into the exponent by one addition. */
LM_INLINE void attend_exp(int K, vf x[LM_ATTEND_EXP]) {
    const vf magic = v_set(12582912.0f);
    vf t[LM_ATTEND_EXP], n[LM_ATTEND_EXP], q[LM_ATTEND_EXP];
    LM_UNROLL for (int k = 0; k < K; k++) x[k] = v_max(v_set(-87.0f), x[k]); /* x second: a NaN stays */
    LM_UNROLL for (int k = 0; k < K; k++) t[k] = v_fma(x[k], v_set(0x1.715476p+0f), magic);
    LM_UNROLL for (int k = 0; k < K; k++) n[k] = v_sub(t[k], magic);
    LM_UNROLL for (int k = 0; k < K; k++) x[k] = v_fma(n[k], v_set(-0x1.62e4p-1f), x[k]);
    LM_UNROLL for (int k = 0; k < K; k++) x[k] = v_fma(n[k], v_set(-0x1.7f7d1cp-20f), x[k]);
    LM_UNROLL for (int k = 0; k < K; k++) q[k] = v_fma(v_set(0.0013950471f), x[k], v_set(0.008368883f));
    LM_UNROLL for (int k = 0; k < K; k++) q[k] = v_fma(q[k], x[k], v_set(0.041666206f));
    LM_UNROLL for (int k = 0; k < K; k++) q[k] = v_fma(q[k], x[k], v_set(0.16666518f));
    LM_UNROLL for (int k = 0; k < K; k++) q[k] = v_fma(q[k], x[k], v_set(0.5f));
    LM_UNROLL for (int k = 0; k < K; k++) q[k] = v_fma(v_mul(x[k], x[k]), q[k], x[k]);
    LM_UNROLL for (int k = 0; k < K; k++) x[k] = v_float(i_add(v_bits(v_add(q[k], v_set(1.0f))), i_sll(v_bits(t[k]), 23)));
}
/* K tiles of scores to weights, +0 what the query doesn't see */
LM_INLINE vf attend_some(int K, const lm_attend *a, uint32_t i, uint32_t t, float *p, vf by, vf minus_m, vf sum) {
    const size_t step = 16 * (size_t)a->n;
    vf x[LM_ATTEND_EXP];
    LM_UNROLL for (int k = 0; k < K; k++) x[k] = v_fma(v_load(p + k * step), by, minus_m);
    attend_exp(K, x);
    LM_UNROLL for (int k = 0; k < K; k++) x[k] = attend_mask(a, i, t + (uint32_t)k, x[k], v_set(0.0f));
    LM_UNROLL for (int k = 0; k < K; k++) v_store(p + k * step, x[k]);
    LM_UNROLL for (int k = 0; k < K; k++) sum = v_add(sum, x[k]);
    return sum;
}
/* Query i's scores to weights, in place; returns their sum. What it doesn't see of tiles [from, to) becomes +0. */
LM_INLINE float attend_weights(const lm_attend *a, uint32_t i, vf by, vf minus_m, uint32_t from, uint32_t to) {
    const attend_tiles at = attend_tiles_of(a, i);
    const size_t step = 16 * (size_t)a->n;
    float *p = at.p;
    uint32_t t = at.t0;
    vf sum = v_set(0.0f);
    for (; t < at.full0 && t < at.t1; t++, p += step) sum = attend_some(1, a, i, t, p, by, minus_m, sum);
    for (; t + LM_ATTEND_EXP <= at.full1; t += LM_ATTEND_EXP, p += LM_ATTEND_EXP * step) {
        vf x[LM_ATTEND_EXP];
        LM_UNROLL for (int k = 0; k < LM_ATTEND_EXP; k++) x[k] = v_fma(v_load(p + k * step), by, minus_m);
        attend_exp(LM_ATTEND_EXP, x);
        LM_UNROLL for (int k = 0; k < LM_ATTEND_EXP; k++) v_store(p + k * step, x[k]);
        LM_UNROLL for (int k = 0; k < LM_ATTEND_EXP; k++) sum = v_add(sum, x[k]);
    }
#if LM_ATTEND_W == 2
    switch (at.t1 - t) {
    case 1: sum = attend_some(1, a, i, t, p, by, minus_m, sum); break;
    case 2: sum = attend_some(2, a, i, t, p, by, minus_m, sum); break;
    case 3: sum = attend_some(3, a, i, t, p, by, minus_m, sum); break;
    case 4: sum = attend_some(4, a, i, t, p, by, minus_m, sum); break;
    default: break;
    }
#else
    for (; t < at.t1; t++, p += step) sum = attend_some(1, a, i, t, p, by, minus_m, sum);
#endif
    for (t = from; t < to; t++)
        if (t < at.t0 || t >= at.t1) v_store(a->s + 16 * ((size_t)i + (size_t)t * a->n), v_set(0.0f));
    return v_tree(sum);
}
/* m and l of all queries, and their weights over keys [first, end). All of m first: a query's weights wait for its own, and so need not. */
static void attend_softmax(const lm_attend *a, uint32_t first, uint32_t end) {
    const float by = a->softcap != 0 ? 1.0f : a->scale;
    const uint32_t from = first / 16, to = (end + 15) / 16;
    for (uint32_t i = 0; i < a->n; i++)
        if (a->lo[i] < a->hi[i]) a->m[i] = attend_top(a, i) * by;
    for (uint32_t i = 0; i < a->n; i++) {
        if (a->lo[i] < a->hi[i]) {
            a->l[i] = attend_weights(a, i, v_set(by), v_set(-a->m[i]), from, to);
            continue;
        }
        for (uint32_t t = from; t < to; t++) v_store(a->s + 16 * ((size_t)i + (size_t)t * a->n), v_set(0.0f));
    }
}

LM_INLINE void attend_n(lm_kv type, int N, const lm_attend *a) {
    const attend_range r = attend_range_of(a, (uint32_t)N);
    const uint32_t first = r.first, end = r.end;
    const attend_walk walk = attend_walk_of(type, a, first, end);
    for (uint32_t j = first / LM_ATTEND_STEP * LM_ATTEND_STEP; j < end; j += LM_ATTEND_STEP) {
        const uint8_t *tile = a->keys + j / LM_KV_SPAN * lm_kv_tile(type, a->dk);
        const uint32_t block = (j / LM_KV_SPAN - first / LM_KV_SPAN) * lm_kv_spans(a->dk);
        float *s = a->s + (size_t)j * (size_t)N;
        if (LM_ATTEND_W == 2 && N == LM_ATTEND_N && end - j <= 16) attend_scores(type, N, 1, a->q, a->dk, tile, 0, &walk, block, s);
        else attend_scores(type, N, LM_ATTEND_W, a->q, a->dk, tile, j % LM_KV_SPAN, &walk, block, s);
    }
    attend_softmax(a, first, end);
    const bool all = r.lo <= first && r.hi >= end, some = r.lo < r.hi;
    const bool finite = !a->keep && (all || (some ? attend_finite(type, a, first, r.lo) && attend_finite(type, a, r.hi, end)
                                                  : attend_finite(type, a, first, end)));
    for (uint32_t c = 0; c < a->dv; c += LM_ATTEND_STEP) {
        const uint8_t *plane = a->values + c / LM_KV_SPAN * lm_kv_plane(type);
        const uint32_t block = walk.n_keys + c / LM_KV_SPAN * walk.tiles;
        if (finite) attend_values(type, N, a, first, end, plane, c % LM_KV_SPAN, &walk, block, a->o + c);
        else attend_seen(type, a, plane, c % LM_KV_SPAN, a->o + c);
    }
}
#define LM_ATTEND_CASE(TYPE, N) \
    case N: attend_n(TYPE, N, a); break;
#if LM_ATTEND_N == 12
#define LM_ATTEND_CASES(TYPE) \
    LM_ATTEND_CASE(TYPE, 1) LM_ATTEND_CASE(TYPE, 2) LM_ATTEND_CASE(TYPE, 3) LM_ATTEND_CASE(TYPE, 4) LM_ATTEND_CASE(TYPE, 5) LM_ATTEND_CASE(TYPE, 6) \
    LM_ATTEND_CASE(TYPE, 7) LM_ATTEND_CASE(TYPE, 8) LM_ATTEND_CASE(TYPE, 9) LM_ATTEND_CASE(TYPE, 10) LM_ATTEND_CASE(TYPE, 11) LM_ATTEND_CASE(TYPE, 12)
#elif LM_ATTEND_N == 6
#define LM_ATTEND_CASES(TYPE) \
    LM_ATTEND_CASE(TYPE, 1) LM_ATTEND_CASE(TYPE, 2) LM_ATTEND_CASE(TYPE, 3) LM_ATTEND_CASE(TYPE, 4) LM_ATTEND_CASE(TYPE, 5) LM_ATTEND_CASE(TYPE, 6)
#else
#define LM_ATTEND_CASES(TYPE) LM_ATTEND_CASE(TYPE, 1) LM_ATTEND_CASE(TYPE, 2)
#endif
#define LM_ATTEND_FN(NAME, TYPE) \
    static void NAME(const lm_attend *a) { \
        switch (a->n) { \
            LM_ATTEND_CASES(TYPE) \
        default: break; \
        } \
    }
LM_ATTEND_FN(attend_f32, LM_KV_F32)
LM_ATTEND_FN(attend_f16, LM_KV_F16)
LM_ATTEND_FN(attend_bf16, LM_KV_BF16)
LM_ATTEND_FN(attend_q8_0, LM_KV_Q8_0)

/* ---- storing ---------------------------------------------------------------------------------------------------------------------*/
/* Sixteen numbers (the first n of x, then zeros) as 16-bit elements */
LM_INLINE void kv_halves(lm_kv type, const float *x, uint32_t n, uint16_t out[16]) {
    if (type == LM_KV_F16) {
        v_store_f16(out, v_get(x, n));
        return;
    }
    const vi u = v_bits(v_get(x, n)), top = i_srl(u, 16);
    const vi odd = i_and(top, i_set(1)), nan = i_srl(i_add(i_and(u, i_set(0x7fffff)), i_set(0x7fffff)), 23); /* 1: the fraction is not 0 */
    uint32_t near[16], as_is[16], t[16];
    i_store((uint8_t *)near, i_srl(i_add(u, i_add(i_set(0x7fff), odd)), 16));
    i_store((uint8_t *)as_is, i_or(top, i_sll(nan, 6)));
    i_store((uint8_t *)t, i_and(u, i_set(0x7f800000)));
    for (int i = 0; i < 16; i++) out[i] = (uint16_t)(t[i] == 0x7f800000 ? as_is[i] : near[i]);
}
/* A q8_0 block of n ≤ 32 numbers; returns its scale */
LM_INLINE uint16_t kv_ints(const float *x, uint32_t n, int8_t out[32]) {
    const vf a = v_get(x, n < 16 ? n : 16), b = n > 16 ? v_get(x + 16, n - 16) : v_set(0.0f);
    /* inf · 0 and NaN · 0 are NaN, and so is their sum with anything: one look at a sum tells of all */
    const float odd = v_tree(v_add(v_mul(a, v_set(0.0f)), v_mul(b, v_set(0.0f)))), most = v_most(v_max(v_abs(a), v_abs(b)));
    const uint16_t scale = lm_f32_to_f16(most / 127.0f);
    const float s = lm_f16_to_f32(scale);
    memset(out, 0, 32);
    if (odd != odd || s > 65504.0f) return 0x7e00;
    if (s == 0) return 0;
    float t[32];
    const vf magic = v_set(12582912.0f); /* 1.5·2^23: adding it rounds to an integer, to nearest even */
    v_store(t, v_sub(v_add(v_div(a, v_set(s)), magic), magic));
    v_store(t + 16, v_sub(v_add(v_div(b, v_set(s)), magic), magic));
    for (int i = 0; i < 32; i++) out[i] = (int8_t)(t[i] > 127 ? 127 : t[i] < -127 ? -127 : t[i]);
    return scale;
}
/* n positions, `at` of a tile on, all of that tile */
LM_INLINE void kv_store_keys(lm_kv type, const float *k, size_t ldk, uint32_t n, uint32_t at, uint32_t dk, uint8_t *tile) {
    for (uint32_t d0 = 0; type == LM_KV_F32 && d0 < dk; d0++)
        for (uint32_t j = 0; j < n; j++) ((float *)(void *)tile)[d0 * LM_KV_SPAN + at + j] = k[j * ldk + d0];
    for (uint32_t d0 = 0; (type == LM_KV_F16 || type == LM_KV_BF16) && d0 < dk; d0 += 16) {
        const uint32_t m = dk - d0 < 16 ? dk - d0 : 16;
        uint16_t t[LM_KV_SPAN][16], *to = (uint16_t *)(void *)tile + d0 * LM_KV_SPAN + at;
        for (uint32_t j = 0; j < n; j++) kv_halves(type, k + j * ldk + d0, m, t[j]);
        for (uint32_t d = 0; d < m; d++)
            for (uint32_t j = 0; j < n; j++) to[d * LM_KV_SPAN + j] = t[j][d];
    }
    for (uint32_t d0 = 0; type == LM_KV_Q8_0 && d0 < dk; d0 += LM_KV_SPAN, tile += LM_KV_SPAN * (LM_KV_SPAN + 2)) {
        const uint32_t m = dk - d0 < LM_KV_SPAN ? dk - d0 : LM_KV_SPAN;
        for (uint32_t j = 0; j < n; j++) {
            int8_t t[LM_KV_SPAN], *to = (int8_t *)tile + 2 * LM_KV_SPAN + at + j;
            const uint16_t scale = kv_ints(k + j * ldk + d0, m, t);
            memcpy(tile + 2 * (at + j), &scale, 2);
            for (uint32_t d = 0; d < LM_KV_SPAN; d++) to[d * LM_KV_SPAN] = t[d];
        }
    }
}
LM_INLINE void kv_store_values(lm_kv type, const float *v, uint32_t at, uint32_t dv, uint8_t *plane) {
    for (uint32_t c = 0; c < dv; c += LM_KV_SPAN, plane += lm_kv_plane(type)) {
        const uint32_t n = dv - c < LM_KV_SPAN ? dv - c : LM_KV_SPAN;
        uint8_t *to = plane + (size_t)at * LM_KV_SPAN * lm_kv_elem(type);
        if (type == LM_KV_F32) {
            memcpy(to, v + c, n * sizeof *v);
        } else if (type == LM_KV_Q8_0) {
            const uint16_t scale = kv_ints(v + c, n, (int8_t *)to);
            memcpy(plane + LM_KV_PAGE * LM_KV_SPAN + 2 * at, &scale, 2);
        } else {
            kv_halves(type, v + c, n < 16 ? n : 16, (uint16_t *)(void *)to);
            if (n > 16) kv_halves(type, v + c + 16, n - 16, (uint16_t *)(void *)to + 16);
        }
    }
}
LM_INLINE void kv_store(lm_kv type, const lm_kv_rows *r) {
    for (uint32_t i = 0, n; i < r->n; i += n) {
        const uint32_t at = r->at + i, in = at % LM_KV_SPAN;
        n = r->n - i < LM_KV_SPAN - in ? r->n - i : LM_KV_SPAN - in;
        kv_store_keys(type, r->k + i * r->ldk, r->ldk, n, in, r->dk, r->keys + at / LM_KV_SPAN * lm_kv_tile(type, r->dk));
    }
    for (uint32_t i = 0; i < r->n; i++) kv_store_values(type, r->v + i * r->ldv, r->at + i, r->dv, r->values);
}
static void store_f32(const lm_kv_rows *r) { kv_store(LM_KV_F32, r); }
static void store_f16(const lm_kv_rows *r) { kv_store(LM_KV_F16, r); }
static void store_bf16(const lm_kv_rows *r) { kv_store(LM_KV_BF16, r); }
static void store_q8_0(const lm_kv_rows *r) { kv_store(LM_KV_Q8_0, r); }
