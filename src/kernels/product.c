/* The product over packed weights: blocks, segments and the tree, for any level. The contract is in kernels.h. */
#include "kernels/lane_bf16.h"
#include <string.h>

#define SEGMENTS 8u
#define DEPTH 4u /* a segment's total and three waiting for their siblings */
#define PASS 8u  /* blocks that a tile goes through before the next tile does */
#define LATE 8u  /* tiles at a pass's end that ask for the next weights; sooner, the rows that stream by would push them out again */
#define START 1024u /* bytes of each next strip that a task of one tile asks for */

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

/* One task: strips [s0, s0 + n_s), tiles [i0, i1). A pass takes every tile through the same few blocks: the strips' weights come from memory once,
 * in one stream, and then from the second cache; a tile's totals stay in the first. Its results are written when its last block is done, so
 * that their way to memory is covered by the next tile's arithmetic. */
typedef struct task {
    const lm_product *p;
    uint32_t s0, n_s, i0, i1;
    uint32_t slot;  /* floats of a total: [n_s][ld][16] */
    uint32_t ld;    /* tokens of a strip in it */
    float *totals;  /* [tile][DEPTH][slot] */
    float *decoded; /* [PASS][n_s][LM_BLK][16] */
} task;

/* Few rows take more strips at a time: nothing is shared between them but the row. */
static uint32_t strips_of(uint32_t n_t) { return n_t <= LM_TILE ? LM_STRIP_GROUP : 2; }
static uint32_t tiles_of(uint32_t n_t) { return lm_x_tiles(n_t) < LM_TILE_GROUP ? lm_x_tiles(n_t) : LM_TILE_GROUP; }
static uint32_t strip_groups(const lm_product *p) { return (p->w->strips + strips_of(p->n_t) - 1) / strips_of(p->n_t); }
uint32_t lm_product_tasks(const lm_product *p) { return strip_groups(p) * ((lm_x_tiles(p->n_t) + LM_TILE_GROUP - 1) / LM_TILE_GROUP); }
size_t lm_product_scratch(uint32_t n_t) {
    return (size_t)strips_of(n_t) * 16 * (DEPTH * (size_t)tiles_of(n_t) * LM_TILE + (size_t)PASS * LM_BLK);
}
static bool by_gemv(const lm_product *p) { return !p->bf16 && p->n_t <= LM_GEMV && p->k->gemv[p->w->pack]; }

/* ---- where a sum stands ------------------------------------------------------------------------------------------------------------
 * Segments arrive in order, so the tree is a binary counter: bit l of `waiting` is a finished left subtree of 2^l segments. Their totals
 * are a stack, the smallest last, with the running segment's on top; the result ends up at the bottom. */
typedef struct place {
    uint32_t k, end; /* the next element, the end of its segment */
    uint32_t seg, waiting;
    bool first;      /* the next block is its segment's first */
    bool onto;       /* and its only one: it is added right to the sibling that waits */
} place;
static uint32_t n_segments(const lm_product *p) { return p->split ? SEGMENTS : 1; }
static uint32_t depth_of(const place *a) { return (uint32_t)__builtin_popcount(a->waiting); }
/* The end of a segment, of which there is a total when `some`. Where totals is NULL, nothing is added. */
static void close_segment(const task *k, place *a, bool some, float *totals) {
    uint32_t l = 0;
    for (; a->seg >> l & 1; l++) {
        if (!(a->waiting >> l & 1)) continue;
        a->waiting &= ~(1u << l);
        float *sibling = totals ? totals + depth_of(a) * k->slot : NULL;
        if (some && totals && !(l == 0 && a->onto)) k->p->k->axpy(sibling, 1.0f, sibling + k->slot, k->slot); /* fma(1, x, y) is x + y */
        some = true;
    }
    if (some && a->seg + 1 < n_segments(k->p)) a->waiting |= 1u << l;
    a->seg++;
}
/* To the first block of the next segment that has one. */
static void open_segment(const task *k, place *a, float *totals) {
    const lm_packed_matrix *w = k->p->w;
    const uint64_t unit = lm_pack_unit(w->type), n = (w->K + unit - 1) / unit, segs = n_segments(k->p);
    for (; a->seg < segs; close_segment(k, a, false, totals)) {
        const uint64_t end = (a->seg + 1) * n / segs * unit;
        a->end = end < w->K ? (uint32_t)end : w->K;
        a->first = true;
        a->onto = (a->seg & 1) && (a->waiting & 1) && a->end - a->k <= (k->p->bf16 ? LM_BLK : LM_SUM);
        if (a->k < a->end) return;
    }
}
static uint32_t block_of(const place *a) { return a->end - a->k < LM_BLK ? a->end - a->k : LM_BLK; }
static void advance(const task *k, place *a, float *totals) {
    a->k += block_of(a);
    a->first = false;
    if (a->k < a->end) return;
    close_segment(k, a, true, totals);
    open_segment(k, a, totals);
}

/* ---- a pass --------------------------------------------------------------------------------------------------------------------------*/
static const uint8_t *strip_at(const task *k, uint32_t s) { return lm_packed_at(k->p->w, k->p->mat, k->s0 + s); }
static float *decoded_at(const task *k, uint32_t b, uint32_t s) { return k->decoded + (size_t)(b * k->n_s + s) * LM_BLK * 16; }
static const float *weights_at(const task *k, const place *a, uint32_t b, uint32_t s) {
    return k->p->w->pack == LM_PACK_F32 ? (const float *)(const void *)strip_at(k, s) + (size_t)a->k * 16 : decoded_at(k, b, s);
}
/* The blocks of a pass that starts at a, decoded where a tile needs floats; a moves to the next pass. */
static void prepare(const task *k, place *a) {
    const lm_product *p = k->p;
    const bool decode = !p->bf16 && !by_gemv(p) && p->w->pack != LM_PACK_F32;
    for (uint32_t b = 0; b < PASS && a->seg < n_segments(p); b++, advance(k, a, NULL))
        for (uint32_t s = 0; decode && s < k->n_s; s++) p->k->unpack[p->w->pack](p->w->type, strip_at(k, s), a->k, block_of(a), decoded_at(k, b, s));
}
/* One share of what comes next, the strips' next pass or the next strips (this thread's next task more often than not), at most `most` bytes of
 * each: until the CPU has noticed their streams, every line would be waited for. */
static void ask_ahead(const task *k, const place *here, const place *next, uint64_t most, uint32_t share, uint32_t shares) {
    const lm_packed_matrix *w = k->p->w;
    const bool last = next->seg == n_segments(k->p);
    const uint32_t s0 = k->s0 + (last ? k->n_s : 0), k0 = last ? 0 : next->k, left = w->K - k0, n = next->k - here->k;
    const uint64_t bytes = (uint64_t)(n < left ? n : left) * w->strip_bytes / w->K, lines = (bytes < most ? bytes : most) / 64;
    for (uint32_t s = s0; s < s0 + k->n_s && s < w->strips; s++) {
        const uint8_t *from = lm_packed_at(w, k->p->mat, s) + (uint64_t)k0 * w->strip_bytes / w->K;
        for (uint64_t l = share * lines / shares; l < (share + 1) * lines / shares; l++) __builtin_prefetch(from + 64 * l, 0, 2);
    }
}
static void tile_block(const task *k, const place *a, uint32_t b, uint32_t t, uint32_t width, float *total) {
    const lm_product *p = k->p;
    const lm_packed_matrix *w = p->w;
    const uint32_t n = block_of(a);
    const bool first = a->first && !a->onto;
    if (p->bf16) {
        const uint32_t *x = (const uint32_t *)(const void *)p->xp + (size_t)t * ((w->K + 1) / 2) + (size_t)(a->k / 2) * width;
        p->bf16->tile(strip_at(k, 0) + (size_t)a->k * 32, w->strip_bytes, k->n_s, (n + 1) / 2, x, width, first, total, k->ld);
        return;
    }
    const float *x = p->xp + (size_t)t * w->K + (size_t)a->k * width;
    if (by_gemv(p)) {
        p->k->gemv[w->pack](strip_at(k, 0), w->strip_bytes, k->n_s, a->k, n, x, width, first, total);
        return;
    }
    for (uint32_t s = 0; s < k->n_s; s += 2, total += (size_t)2 * k->ld * 16) {
        const bool two = s + 1 < k->n_s;
        p->k->tile(weights_at(k, a, b, s), two ? weights_at(k, a, b, s + 1) : NULL, n, x, width, first, total, total + (size_t)k->ld * 16);
    }
}
static void write_tile(const task *k, uint32_t t0, uint32_t width, const float *total) {
    const lm_product *p = k->p;
    for (uint32_t t = 0; t < width; t++)
        for (uint32_t s = 0; s < k->n_s; s++) {
            const uint32_t row = (k->s0 + s) * 16, n = p->w->rows - row;
            const float *src = total + ((size_t)s * k->ld + t) * 16, *bias = p->bias ? p->bias + row : NULL;
            float *y = p->y + (size_t)(t0 + t) * p->ldy + row;
            if (n >= 16 && !bias) memcpy(y, src, 16 * sizeof *y); /* of constant size: one store */
            else
                for (uint32_t r = 0; r < n && r < 16; r++) y[r] = bias ? src[r] + bias[r] : src[r];
        }
}

void lm_product_run(const lm_product *p, uint32_t i, float *scratch) {
    const uint32_t groups = strip_groups(p), tiles = lm_x_tiles(p->n_t), n_s = strips_of(p->n_t), segs = n_segments(p);
    task k = {.p = p, .s0 = i % groups * n_s, .i0 = i / groups * LM_TILE_GROUP, .totals = scratch};
    k.n_s = p->w->strips - k.s0 < n_s ? p->w->strips - k.s0 : n_s;
    k.i1 = tiles - k.i0 < LM_TILE_GROUP ? tiles : k.i0 + LM_TILE_GROUP;
    k.ld = by_gemv(p) ? LM_GEMV : LM_TILE;
    k.slot = k.n_s * k.ld * 16;
    const size_t per_tile = (p->split ? DEPTH : 1) * (size_t)k.slot;
    k.decoded = scratch + (k.i1 - k.i0) * per_tile;
    const uint32_t late = k.i1 - k.i0 < LATE ? k.i1 - k.i0 : LATE;
    place here = {0}, next;
    for (open_segment(&k, &here, NULL); here.seg < segs; here = next) {
        next = here;
        prepare(&k, &next);
        for (uint32_t j = k.i0; j < k.i1; j++) {
            const uint32_t t = lm_x_first(p->n_t, j), width = lm_x_first(p->n_t, j + 1) - t;
            float *totals = scratch + (j - k.i0) * per_tile;
            place a = here;
            if (tiles == 1 && next.seg == segs) ask_ahead(&k, &here, &next, START, 0, 1);
            for (uint32_t b = 0; b < PASS && a.seg < segs; b++, advance(&k, &a, totals)) {
                if (tiles > 1 && j + late >= k.i1) ask_ahead(&k, &here, &next, UINT64_MAX, (j + late - k.i1) * PASS + b, late * PASS);
                tile_block(&k, &a, b, t, width, totals + (depth_of(&a) - a.onto) * k.slot);
            }
            if (a.seg == segs) write_tile(&k, t, width, totals);
        }
    }
}
