/* The product over packed weights: blocks, segments and the tree, for any level. The contract is in kernels.h. */
#include "kernels/lane_bf16.h"
#include <string.h>

#define TOKENS (LM_TILE * LM_TILE_GROUP) /* of a task, at most */
#define SEGMENTS 8u
#define DEPTH 4u /* a segment's total and three waiting for their siblings */

void lm_x_pack(const float *x, size_t ldx, const uint32_t *row, uint32_t n_t, uint32_t i, uint32_t K, float *xp) {
    const uint32_t t0 = lm_x_first(n_t, i), w = lm_x_first(n_t, i + 1) - t0;
    const float *src[LM_TILE];
    for (uint32_t t = 0; t < w; t++) src[t] = x + (size_t)(row ? row[t0 + t] : t0 + t) * ldx;
    float *dst = xp + (size_t)t0 * K;
    if (w == 1) {
        memcpy(dst, src[0], K * sizeof *dst);
        return;
    }
    for (uint32_t k = 0; k < K; k++, dst += w)
        for (uint32_t t = 0; t < w; t++) dst[t] = src[t][k];
}

/* Scratch: DEPTH × (LM_STRIP_GROUP × tokens × 16) totals, then LM_STRIP_GROUP blocks of decoded weights. A decode task's totals are
 * [strip][LM_GEMV][16] whatever the number of tokens. */
static size_t level_floats(uint32_t n_t) {
    uint32_t t = n_t < TOKENS ? n_t : TOKENS;
    return (size_t)LM_STRIP_GROUP * (t < LM_GEMV ? LM_GEMV : t) * 16;
}
size_t lm_product_scratch(uint32_t n_t) { return DEPTH * level_floats(n_t) + (size_t)LM_STRIP_GROUP * LM_BLK * 16; }

static uint32_t strip_groups(const lm_product *p) { return (p->w->strips + LM_STRIP_GROUP - 1) / LM_STRIP_GROUP; }
uint32_t lm_product_tasks(const lm_product *p) { return strip_groups(p) * ((lm_x_tiles(p->n_t) + LM_TILE_GROUP - 1) / LM_TILE_GROUP); }

/* One task: strips [s0, s0+n_s), tiles [i0, i1), tokens [t0, t1) */
typedef struct task {
    const lm_product *p;
    uint32_t s0, n_s, i0, i1, t0, t1;
    uint32_t ld; /* tokens per strip in a totals level */
    float *decoded;
} task;

/* While tile i is computed, its share of the next block of bfloat16 weights comes into the cache: the first tile would wait for all of it. */
static void ask_ahead(const task *k, uint32_t k0, uint32_t i) {
    const lm_packed_matrix *w = k->p->w;
    if (k0 >= w->K) return;
    const uint32_t lines = ((w->K - k0 < LM_BLK ? w->K - k0 : LM_BLK) + 1) / 2, n = k->i1 - k->i0; /* a line: 16 rows, two elements */
    for (uint32_t s = 0; s < k->n_s; s++) {
        const uint8_t *strip = lm_packed_at(w, k->p->mat, k->s0 + s) + (size_t)k0 * 32;
        for (uint32_t l = (i - k->i0) * lines / n, end = (i - k->i0 + 1) * lines / n; l < end; l++) __builtin_prefetch(strip + 64 * (size_t)l, 0, 2);
    }
}
static void add_block(const task *k, uint32_t k0, uint32_t n, bool first, float *total) {
    const lm_product *p = k->p;
    const lm_packed_matrix *w = p->w;
    const uint8_t *strip = lm_packed_at(w, p->mat, k->s0);
    if (p->bf16) {
        const uint32_t all = (w->K + 1) / 2, pairs = (n + 1) / 2;
        for (uint32_t i = k->i0; i < k->i1; i++) {
            ask_ahead(k, k0 + n, i);
            const uint32_t t = lm_x_first(p->n_t, i), width = lm_x_first(p->n_t, i + 1) - t;
            const uint32_t *x = (const uint32_t *)(const void *)p->xp + (size_t)t * all + (size_t)(k0 / 2) * width;
            p->bf16->tile(strip + (size_t)k0 * 32, w->strip_bytes, k->n_s, pairs, x, width, first, total + (size_t)(t - k->t0) * 16, k->ld);
        }
        return;
    }
    if (p->n_t <= LM_GEMV && p->k->gemv[w->pack]) {
        p->k->gemv[w->pack](strip, w->strip_bytes, k->n_s, k0, n, p->xp + (size_t)k0 * p->n_t, p->n_t, first, total);
        return;
    }
    const float *dec[LM_STRIP_GROUP];
    for (uint32_t s = 0; s < k->n_s; s++, strip += w->strip_bytes) {
        if (w->pack == LM_PACK_F32) {
            dec[s] = (const float *)(const void *)strip + (size_t)k0 * 16;
            continue;
        }
        float *d = k->decoded + (size_t)s * LM_BLK * 16;
        p->k->unpack[w->pack](w->type, strip, k0, n, d);
        dec[s] = d;
    }
    for (uint32_t i = k->i0; i < k->i1; i++) {
        const uint32_t t = lm_x_first(p->n_t, i), width = lm_x_first(p->n_t, i + 1) - t;
        const float *x = p->xp + (size_t)t * w->K + (size_t)k0 * width;
        for (uint32_t s = 0; s < k->n_s; s += 2) {
            const bool two = s + 1 < k->n_s;
            float *to = total + ((size_t)s * k->ld + (t - k->t0)) * 16;
            p->k->tile(dec[s], two ? dec[s + 1] : NULL, n, x, width, first, to, to + (size_t)k->ld * 16);
        }
    }
}

static void segment(const task *k, uint32_t begin, uint32_t end, float *total) {
    for (uint32_t k0 = begin; k0 < end; k0 += LM_BLK) add_block(k, k0, end - k0 < LM_BLK ? end - k0 : LM_BLK, k0 == begin, total);
}

/* The totals of the whole row: `level` holds DEPTH buffers; returns the one with the result. Segments arrive in order, so the tree is a binary
 * counter: waiting[l] is a finished left subtree of 2^l segments (NULL: empty). */
static float *sum_segments(const task *k, float *scratch, size_t level) {
    const lm_packed_matrix *w = k->p->w;
    if (!k->p->split) {
        segment(k, 0, w->K, scratch);
        return scratch;
    }
    const uint64_t unit = lm_pack_unit(w->type), n = (w->K + unit - 1) / unit;
    float *waiting[3] = {NULL, NULL, NULL}, *result = scratch;
    for (uint32_t i = 0; i < SEGMENTS; i++) {
        uint64_t begin = i * n / SEGMENTS * unit, end = (i + 1) * n / SEGMENTS * unit;
        if (end > w->K) end = w->K;
        float *cur = NULL;
        if (begin < end) {
            for (uint32_t b = 0; b < DEPTH && !cur; b++) { /* a buffer that nothing waits in */
                cur = scratch + b * level;
                for (uint32_t l = 0; l < 3; l++)
                    if (waiting[l] == cur) cur = NULL;
            }
            segment(k, (uint32_t)begin, (uint32_t)end, cur);
        }
        uint32_t l = 0;
        for (; l < 3 && (i >> l & 1); l++) {
            if (!waiting[l]) continue;
            if (cur)
                for (size_t j = 0; j < level; j++) waiting[l][j] += cur[j];
            cur = waiting[l];
            waiting[l] = NULL;
        }
        if (l < 3) waiting[l] = cur;
        else result = cur;
    }
    return result;
}

void lm_product_run(const lm_product *p, uint32_t i, float *scratch) {
    const uint32_t groups = strip_groups(p), tiles = lm_x_tiles(p->n_t);
    task k = {.p = p, .s0 = i % groups * LM_STRIP_GROUP, .i0 = i / groups * LM_TILE_GROUP};
    k.n_s = p->w->strips - k.s0 < LM_STRIP_GROUP ? p->w->strips - k.s0 : LM_STRIP_GROUP;
    k.i1 = tiles - k.i0 < LM_TILE_GROUP ? tiles : k.i0 + LM_TILE_GROUP;
    k.t0 = lm_x_first(p->n_t, k.i0), k.t1 = lm_x_first(p->n_t, k.i1);
    k.ld = k.t1 - k.t0 < LM_GEMV ? LM_GEMV : k.t1 - k.t0;
    const size_t level = level_floats(p->n_t);
    k.decoded = scratch + DEPTH * level;
    const float *total = sum_segments(&k, scratch, level);
    for (uint32_t s = 0; s < k.n_s; s++) {
        const uint32_t row = (k.s0 + s) * 16, n = p->w->rows - row < 16 ? p->w->rows - row : 16;
        for (uint32_t t = k.t0; t < k.t1; t++) {
            const float *src = total + ((size_t)s * k.ld + (t - k.t0)) * 16;
            float *y = p->y + t * p->ldy + row;
            for (uint32_t r = 0; r < n; r++) y[r] = p->bias ? src[r] + p->bias[row + r] : src[r];
        }
    }
}
