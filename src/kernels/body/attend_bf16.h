/* Lane bf16's attention over one page (lane_bf16.h has the contract, kv.h the layout): after a level's v16.h, maths.h and bf16.h. The level brings
 *     k_scores(a, u, ahead)    scores of all queries and the 32 keys of tile u, to a->s as [2u, 2u + 2)[n][16]
 *     k_values(N, p, unit, plane, j0, j1, ahead, o, ldo)    32 columns: +0 and the sums over pairs [j0, j1) of N queries; query i's weights of
 *                              pair j are word p[(j/16)·unit + 16i + j%16]
 *     k_weights(x0, x1, to, l) 32 weights rounded to the 16 words of their pairs; returns l and, lane by lane, the odd one, then the even one. */
#include "kernels/body/seen.h"
#include "kernels/body/turn.h"

/* So few queries meet keys and values sooner than memory brings them: in a full page they ask for what comes so many bytes later. */
#define K_FEW 4
#define K_AHEAD 8192
#define K_ROW (4 * LM_KV_SPAN) /* bytes from a pair to the next one, of keys and of values */
#define K_UNIT(n) (32 * (size_t)(n)) /* words from 32 keys' scores, whose first half becomes their weights, to the next ones' */

/* x[k] = 2^x[k] for x ≤ 0, off by 3e-6 of itself at most; below −125 it stays. */
LM_INLINE void k_pow2(int K, vf *x) {
    const vf magic = v_set(12582912.0f); /* 1.5·2^23: adding it rounds to an integer, to nearest even */
    vf t[8], q[8];
    LM_UNROLL for (int k = 0; k < K; k++) x[k] = v_max(v_set(-125.0f), x[k]); /* x second: a NaN stays */
    LM_UNROLL for (int k = 0; k < K; k++) t[k] = v_add(x[k], magic);
    LM_UNROLL for (int k = 0; k < K; k++) x[k] = v_sub(x[k], v_sub(t[k], magic));
    LM_UNROLL for (int k = 0; k < K; k++) q[k] = v_fma(v_set(0x1.3a02ccp-7f), x[k], v_set(0x1.c9fc46p-5f));
    LM_UNROLL for (int k = 0; k < K; k++) q[k] = v_fma(q[k], x[k], v_set(0x1.ec0378p-3f));
    LM_UNROLL for (int k = 0; k < K; k++) q[k] = v_fma(q[k], x[k], v_set(0x1.62e12cp-1f));
    LM_UNROLL for (int k = 0; k < K; k++) q[k] = v_fma(q[k], x[k], v_set(1.0f));
    LM_UNROLL for (int k = 0; k < K; k++) x[k] = v_float(i_add(v_bits(q[k]), i_sll(v_bits(t[k]), 23)));
}
/* Units go by all queries, one after the other: what a query leaves of one, its greatest scores and its weights' sums, waits in memory. */
typedef struct k_rows {
    vf top[LM_BF16_QUERIES], l[LM_BF16_QUERIES];
} k_rows;
/* The greatest of unit u's scores joins those before it; `whole`: all queries see all of it. */
LM_INLINE void k_tops(bool whole, const lm_attend *a, uint32_t u, k_rows *r) {
    const float *p = a->s + K_UNIT(a->n) * u, *const other = p + 16 * (size_t)a->n;
    for (uint32_t i = 0; i < a->n; i++) {
        vf x = v_load(p + 16 * i), y = v_load(other + 16 * i);
        if (!whole) {
            const vf low = v_set(-__builtin_inff());
            x = attend_mask(a, i, 2 * u, x, low), y = attend_mask(a, i, 2 * u + 1, y, low);
        }
        r->top[i] = v_max(y, v_max(x, r->top[i])); /* a NaN leaves it */
    }
}
static void k_cap(const lm_attend *a, uint32_t u) {
    const vf scale = v_set(a->scale), cap = v_set(a->softcap);
    float *p = a->s + K_UNIT(a->n) * u;
    for (uint32_t j = 0; j < K_UNIT(a->n); j += 16) v_store(p + j, v_mul(cap, v_tanh(v_div(v_mul(v_load(p + j), scale), cap))));
}
/* Scores of K queries from i on and unit u to weights, +0 what they don't see; c: what is added to each. */
LM_INLINE void k_soften(int K, bool whole, const lm_attend *a, uint32_t i, uint32_t u, vf by, const float *c, k_rows *r) {
    float *p = a->s + K_UNIT(a->n) * u + 16 * i;
    const size_t half = 16 * (size_t)a->n;
    vf x[8];
    LM_UNROLL for (int k = 0; k < 2 * K; k++) x[k] = v_fma(v_load(p + 16 * (k / 2) + half * (k % 2)), by, v_set(c[i + (uint32_t)k / 2]));
    k_pow2(2 * K, x);
    if (!whole) LM_UNROLL for (int k = 0; k < 2 * K; k++) x[k] = attend_mask(a, i + (uint32_t)k / 2, 2 * u + (uint32_t)k % 2, x[k], v_set(0.0f));
    LM_UNROLL for (int k = 0; k < K; k++) r->l[i + (uint32_t)k] = k_weights(x[2 * k], x[2 * k + 1], (uint32_t *)(void *)(p + 16 * k), r->l[i + (uint32_t)k]);
}
/* m and l of all queries, and their weights of units [from, to), of which all see [full0, full1) as a whole. */
static void k_softmax(const lm_attend *a, uint32_t from, uint32_t to, uint32_t full0, uint32_t full1, k_rows *r) {
    const float by = a->softcap != 0 ? 1.0f : a->scale, by2 = by * 0x1.715476p+0f;
    const vf b = v_set(by2);
    float c[LM_BF16_QUERIES];
    for (uint32_t i = 0; i < a->n; i++) {
        const float top = v_most(r->top[i]);
        c[i] = -(top * by2);
        r->l[i] = v_set(0.0f);
        if (a->lo[i] < a->hi[i]) a->m[i] = top * by;
    }
    for (uint32_t u = from; u < to; u++) {
        uint32_t i = 0;
        if (u >= full0 && u < full1) {
            for (; i + 2 <= a->n; i += 2) k_soften(2, true, a, i, u, b, c, r);
            for (; i < a->n; i++) k_soften(1, true, a, i, u, b, c, r);
        } else {
            for (; i < a->n; i++) k_soften(1, false, a, i, u, b, c, r);
        }
    }
    for (uint32_t i = 0; i < a->n; i++)
        if (a->lo[i] < a->hi[i]) a->l[i] = v_tree(r->l[i]);
}

/* ---- what is not finite ----------------------------------------------------------------------------------------------------------*/
/* A weight of +0 by a finite value changes no sum but for the sign of a zero, which the last +0 takes away: so queries go through the values
 * together. Are those of pairs [j0, j1) finite? */
static bool k_finite(const lm_attend *a, uint32_t j0, uint32_t j1) {
    const vf zero = v_set(0.0f);
    vf z = zero;
    const uint8_t *plane = a->values;
    for (uint32_t c = 0; c < a->dv; c += LM_KV_SPAN, plane += lm_kv_plane(LM_KV_BF16X2))
        for (const uint8_t *p = plane + j0 * K_ROW, *end = plane + j1 * K_ROW; p < end; p += 64) {
            const vi u = i_load(p);
            z = v_fma(v_float(i_sll(u, 16)), zero, z);
            z = v_fma(v_float(i_and(u, i_set((int32_t)0xffff0000u))), zero, z);
        }
    return v_tree(z) == 0;
}
/* Values of which some are not finite: query by query, what it doesn't see taken as +0. */
static void k_seen(const lm_attend *a, const uint8_t *plane, float *o) {
    for (uint32_t i = 0; i < a->n; i++) {
        uint32_t mine[LM_KV_PAGE / 2 * LM_KV_SPAN];
        const uint32_t j0 = a->lo[i] / 2, j1 = (a->hi[i] + 1) / 2;
        for (uint32_t j = j0; j < j1; j++) {
            uint32_t mask = 0, u;
            for (uint32_t h = 0; h < 2; h++)
                if (2 * j + h >= a->lo[i] && 2 * j + h < a->hi[i] && (!a->keep || a->keep[2 * j + h])) mask |= 0xffffu << 16 * h;
            for (uint32_t c = 0; c < LM_KV_SPAN; c++) {
                memcpy(&u, plane + j * K_ROW + 4 * c, 4);
                mine[j * LM_KV_SPAN + c] = u & mask;
            }
        }
        k_values(1, (const uint32_t *)(const void *)a->s + 16 * i, K_UNIT(a->n), (const uint8_t *)mine, j0, j1, 0, o + i * a->ldo, a->ldo);
    }
}

static void k_attend(const lm_attend *a) {
    const attend_range r = attend_range_of(a, a->n);
    const uint32_t from = r.first / 32, to = (r.end + 31) / 32, j0 = r.first / 2, j1 = (r.end + 1) / 2, c0 = (r.lo + 1) / 2, c1 = r.hi / 2;
    const size_t ahead = a->n <= K_FEW && a->hi[0] == LM_KV_PAGE ? K_AHEAD : 0;
    const uint32_t full0 = a->keep ? to : (r.lo + 31) / 32, full1 = r.hi / 32; /* units that all queries see as a whole */
    k_rows rows;
    for (uint32_t i = 0; i < a->n; i++) rows.top[i] = v_set(-__builtin_inff());
    for (uint32_t u = from; u < to; u++) {
        k_scores(a, u, ahead);
        if (a->softcap != 0) k_cap(a, u);
        if (u >= full0 && u < full1) k_tops(true, a, u, &rows);
        else k_tops(false, a, u, &rows);
    }
    k_softmax(a, from, to, full0, full1, &rows);
    const bool finite = a->keep || c0 >= c1 ? k_finite(a, j0, j1) : k_finite(a, j0, c0) && k_finite(a, c1, j1);
    const uint8_t *plane = a->values;
    for (uint32_t c = 0; c < a->dv; c += LM_KV_SPAN, plane += lm_kv_plane(LM_KV_BF16X2)) {
        if (finite) k_values(a->n, (const uint32_t *)(const void *)a->s, K_UNIT(a->n), plane, j0, j1, ahead, a->o + c, a->ldo);
        else k_seen(a, plane, a->o + c);
    }
}

/* ---- storing ---------------------------------------------------------------------------------------------------------------------*/
/* n positions, `at` of a tile on, all of that tile */
static void k_store_keys(const float *k, size_t ldk, uint32_t n, uint32_t at, uint32_t dk, uint8_t *tile) {
    for (uint32_t d0 = 0; d0 < dk; d0 += 32) {
        const uint32_t m = dk - d0 < 32 ? dk - d0 : 32, pairs = (m + 1) / 2;
        uint16_t t[LM_KV_SPAN][32];
        for (uint32_t j = 0; j < n; j++) {
            t[j][2 * pairs - 1] = 0;
            k_round(k + j * ldk + d0, m, t[j]);
        }
        uint32_t *to = (uint32_t *)(void *)(tile + (size_t)d0 / 2 * K_ROW) + at;
        if (n < 4 || pairs < 4) {
            for (uint32_t d = 0; d < pairs; d++)
                for (uint32_t j = 0; j < n; j++) memcpy(&to[d * LM_KV_SPAN + j], &t[j][2 * d], 4);
            continue;
        }
        for (uint32_t d = 0; d < pairs; d += 4) /* the last four may be some of those before again */
            for (uint32_t j = 0; j < n; j += 4) {
                const uint32_t d4 = d + 4 <= pairs ? d : pairs - 4, j4 = j + 4 <= n ? j : n - 4;
                lm_turn(t[j4] + 2 * d4, 32, to + d4 * LM_KV_SPAN + j4, LM_KV_SPAN);
            }
    }
}
/* Positions `at` and, where n is 2, the next one, which is odd: 32 columns of a plane */
static void k_store_values(const float *v, size_t ldv, uint32_t n, uint32_t at, uint32_t columns, uint8_t *plane) {
    uint16_t t[2][LM_KV_SPAN] = {0};
    uint8_t *to = plane + at / 2 * K_ROW;
    for (uint32_t j = 0; j < n; j++) k_round(v + j * ldv, columns, t[j]);
    for (uint32_t c = 0; n == 2 && c < LM_KV_SPAN; c++) {
        const uint32_t u = t[0][c] | (uint32_t)t[1][c] << 16;
        memcpy(to + 4 * c, &u, 4);
    }
    for (uint32_t c = 0; n == 1 && c < LM_KV_SPAN; c++) memcpy(to + 4 * c + 2 * (at % 2), &t[0][c], 2);
}
static void k_store(const lm_kv_rows *r) {
    for (uint32_t i = 0, n; i < r->n; i += n) {
        const uint32_t at = r->at + i, in = at % LM_KV_SPAN;
        n = r->n - i < LM_KV_SPAN - in ? r->n - i : LM_KV_SPAN - in;
        k_store_keys(r->k + i * r->ldk, r->ldk, n, in, r->dk, r->keys + at / LM_KV_SPAN * lm_kv_tile(LM_KV_BF16X2, r->dk));
    }
    for (uint32_t i = 0, n; i < r->n; i += n) {
        const uint32_t at = r->at + i;
        n = at % 2 == 0 && r->n - i > 1 ? 2 : 1;
        for (uint32_t c = 0; c < r->dv; c += LM_KV_SPAN)
            k_store_values(r->v + i * r->ldv + c, r->ldv, n, at, r->dv - c < LM_KV_SPAN ? r->dv - c : LM_KV_SPAN,
                           r->values + c / LM_KV_SPAN * lm_kv_plane(LM_KV_BF16X2));
    }
}
