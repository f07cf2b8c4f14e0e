/* The product over packed weights: blocks, segments and the tree, for any level. The contract is in kernels.h. */
#include "kernels/lane_bf16.h"
#include <string.h>

#define SEGMENTS 8u
#define DEPTH 4u /* a segment's total and three waiting for their siblings */
#define PASS 8u  /* blocks that a tile goes through before the next tile does */
#define LATE 8u  /* tiles at a pass's end that ask for the next weights; sooner, the rows that stream by would push them out again */
#define ROWS (9u << 19) /* bytes of a task's rows, or thereabouts: 44 tiles of 2048 floats */
#define TASKS 24u   /* of each thread, wanted of many rows of bfloat16 */
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

/* One task: strips [s0, s0 + n_c), of both weights where a gate joins two, and tiles [i0, i1). A pass takes every tile through the same few
 * blocks: the strips' weights come from memory once, in one stream, and then from the second cache; a tile's totals stay in the first. Its results
 * are written when its last block is done, so that their way to memory is covered by the next tile's arithmetic. */
typedef struct task {
    const lm_product *p;
    uint32_t s0, n_c, i0, i1;
    uint32_t n_s;   /* strips in all: the gate's n_c come first */
    uint32_t slot;  /* floats of a total: [n_s][ld][16] */
    uint32_t ld;    /* tokens of a strip in it */
    float *decoded; /* [PASS][n_s][LM_BLK][16] */
} task;

/* A single tile of rows takes more strips at a time: nothing is shared between them but the rows. So do many rows of bfloat16, whose tiles
 * are so fast that they would wait for the next rows. A task's rows, a part of which each of its passes reads, are so few that they stay in
 * the last cache, though others use it too. Where threads would wait for the last of few tasks, each takes fewer rows still. */
static uint32_t strips_of(const lm_product *p) {
    return !p->gate && (p->n_t <= LM_TILE || (p->bf16 && p->n_t > LATE * LM_TILE)) ? LM_STRIP_GROUP : 2;
}
static uint32_t strip_groups(const lm_product *p) {
    const uint32_t n = strips_of(p);
    return (p->w->strips + n - 1) / n;
}
static uint32_t tiles_of(const lm_product *p) {
    const uint64_t fit = ROWS / ((uint64_t)LM_TILE * p->w->K * (p->bf16 ? 2 : 4));
    const uint32_t most = fit < LATE ? LATE : fit < LM_TILE_GROUP ? (uint32_t)fit : LM_TILE_GROUP;
    if (!p->bf16 || p->threads < 2) return most;
    const uint32_t tiles = lm_x_tiles(p->n_t), wanted = (TASKS * p->threads + strip_groups(p) - 1) / strip_groups(p);
    const uint32_t parts = wanted < tiles / (2 * LATE) ? wanted : tiles / (2 * LATE), part = parts ? (tiles + parts - 1) / parts : tiles;
    return part < most ? part : most;
}
uint32_t lm_product_tasks(const lm_product *p) { return strip_groups(p) * ((lm_x_tiles(p->n_t) + tiles_of(p) - 1) / tiles_of(p)); }
size_t lm_product_scratch(uint32_t n_t) {
    const uint32_t tiles = lm_x_tiles(n_t) < LM_TILE_GROUP ? lm_x_tiles(n_t) : LM_TILE_GROUP;
    return (size_t)LM_STRIP_GROUP * 16 * (DEPTH * (size_t)tiles * LM_TILE + (size_t)PASS * LM_BLK);
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
/* The end of a segment, of which there is a total when `some`; returns how often the last total is then added to the one before it. */
static uint32_t close_segment(const lm_product *p, place *a, bool some) {
    uint32_t l = 0, joins = 0;
    for (; a->seg >> l & 1; l++) {
        if (!(a->waiting >> l & 1)) continue;
        a->waiting &= ~(1u << l);
        joins += some && !(l == 0 && a->onto);
        some = true;
    }
    if (some && a->seg + 1 < n_segments(p)) a->waiting |= 1u << l;
    a->seg++;
    return joins;
}
/* To the first block of the next segment that has one. */
static uint32_t open_segment(const lm_product *p, place *a) {
    const uint64_t unit = lm_pack_unit(p->w->type), n = (p->w->K + unit - 1) / unit, segs = n_segments(p);
    uint32_t joins = 0;
    for (; a->seg < segs; joins += close_segment(p, a, false)) {
        const uint64_t end = (a->seg + 1) * n / segs * unit;
        a->end = end < p->w->K ? (uint32_t)end : p->w->K;
        a->first = true;
        a->onto = (a->seg & 1) && (a->waiting & 1) && a->end - a->k <= (p->bf16 ? LM_BLK : LM_SUM);
        if (a->k < a->end) break;
    }
    return joins;
}

/* ---- a pass --------------------------------------------------------------------------------------------------------------------------*/
/* What every tile does with a block: its sum enters total `at` of the stack, as the first of it or not; then the stack's top is added `joins`
 * times to the total below it. */
typedef struct block {
    uint32_t k, n, at, joins;
    bool first;
} block;
/* Strip s of the task's, or of the task's that comes `on` strips later */
static const uint8_t *strip_at(const task *k, uint32_t s, uint32_t on) {
    const bool second = s >= k->n_c;
    return lm_packed_at(second ? k->p->gate->w : k->p->w, k->p->mat, k->s0 + on + s - (second ? k->n_c : 0));
}
static float *decoded_at(const task *k, uint32_t b, uint32_t s) { return k->decoded + (size_t)(b * k->n_s + s) * LM_BLK * 16; }
/* The pass that starts at a: its blocks, decoded where a tile needs floats; a moves to the next one. Returns how many; the bf16 kernels take
 * those of a segment as one. */
static uint32_t prepare(const task *k, place *a, block blk[PASS]) {
    const lm_product *p = k->p;
    const bool decode = !p->bf16 && !by_gemv(p) && p->w->pack != LM_PACK_F32;
    uint32_t n = 0;
    for (uint32_t left = PASS; left && a->seg < n_segments(p); n++) {
        const uint32_t most = (p->bf16 ? left : 1) * LM_BLK, m = a->end - a->k < most ? a->end - a->k : most;
        const uint32_t at = (uint32_t)__builtin_popcount(a->waiting) - a->onto;
        left -= (m + LM_BLK - 1) / LM_BLK;
        for (uint32_t s = 0; decode && s < k->n_s; s++)
            p->k->unpack[p->w->pack](p->w->type, strip_at(k, s, 0), a->k, m, decoded_at(k, n, s));
        blk[n] = (block){a->k, m, at, 0, a->first && !a->onto};
        a->k += m;
        a->first = false;
        if (a->k < a->end) continue;
        blk[n].joins = close_segment(p, a, true);
        blk[n].joins += open_segment(p, a);
    }
    return n;
}
/* What comes next, the strips' next pass or the next strips (this thread's next task more often than not): until the CPU has noticed their
 * streams, every line would be waited for. */
typedef struct ahead {
    const uint8_t *from[LM_STRIP_GROUP];
    uint32_t strip, strips; /* those before `strip` have been asked for */
    uint64_t lines, done;   /* of each strip */
} ahead;
/* After a pass [k0, next->k) */
static ahead look_ahead(const task *k, uint32_t k0, const place *next) {
    const lm_packed_matrix *w = k->p->w;
    const bool last = next->seg == n_segments(k->p);
    const uint32_t on = last ? k->n_c : 0, from = last ? 0 : next->k, left = w->K - from, n = next->k - k0;
    ahead a = {.lines = (uint64_t)(n < left ? n : left) * w->strip_bytes / w->K / 64};
    for (uint32_t s = 0; s < k->n_s; s++)
        if (k->s0 + on + s % k->n_c < w->strips) a.from[a.strips++] = strip_at(k, s, on) + (uint64_t)from * w->strip_bytes / w->K;
    return a;
}
static void ask(ahead *a, uint64_t lines) {
    const uint64_t end = a->lines - a->done < lines ? a->lines : a->done + lines;
    for (uint32_t s = 0; s < a->strips; s++)
        for (uint64_t l = a->done; l < end; l++) __builtin_prefetch(a->from[s] + 64 * l, 0, 2);
    a->done = end;
}
/* So many lines of one strip, for a kernel to ask for; NULL: there are none. */
static const uint8_t *stretch(ahead *a, uint64_t lines) {
    if (!lines || a->strip == a->strips) return NULL;
    const uint8_t *at = a->from[a->strip] + 64 * a->done;
    a->done += lines;
    if (a->done >= a->lines) a->done = 0, a->strip++;
    return at;
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
/* What a gate's two products join to, strip by strip: rows of y, or pairs of the next product's input. */
static void write_gated(const task *k, uint32_t t0, uint32_t width, float *total) {
    const lm_product *p = k->p;
    const lm_gate *g = p->gate;
    for (uint32_t s = 0; s < k->n_c; s++, total += (size_t)k->ld * 16) {
        const uint32_t row = (k->s0 + s) * 16, n = p->w->rows - row < 16 ? p->w->rows - row : 16;
        float *up = total + (size_t)k->n_c * k->ld * 16;
        lm_add_bias(p->bias ? p->bias + row : NULL, n, width, 16, total);
        lm_add_bias(g->bias ? g->bias + row : NULL, n, width, 16, up);
        g->k->gated(g->act, total, total, up, g->limit, g->alpha, width * 16);
        if (g->xq) {
            uint16_t rounded[LM_TILE * 16];
            p->bf16->round(total, width * 16, rounded);
            lm_bf16_turn(rounded, 16, width, 8, (uint32_t *)g->xq + (size_t)t0 * (p->w->rows / 2) + (size_t)(row / 2) * width);
        } else
            for (uint32_t t = 0; t < width; t++) memcpy(p->y + (size_t)(t0 + t) * p->ldy + row, total + t * 16, n * sizeof *p->y);
    }
}
static void float_tile(const task *k, const block *blk, uint32_t b, uint32_t t, uint32_t width, float *total) {
    const lm_product *p = k->p;
    const lm_packed_matrix *w = p->w;
    const float *x = p->xp + (size_t)t * w->K + (size_t)blk->k * width;
    if (by_gemv(p)) {
        p->k->gemv[w->pack](strip_at(k, 0, 0), w->strip_bytes, k->n_s, blk->k, blk->n, x, width, blk->first, total);
        return;
    }
    for (uint32_t s = 0; s < k->n_s; s += 2, total += (size_t)2 * k->ld * 16) {
        const float *two[2] = {NULL, NULL};
        for (uint32_t i = 0; i < 2 && s + i < k->n_s; i++) {
            const float *f32 = (const float *)(const void *)strip_at(k, s + i, 0);
            two[i] = w->pack == LM_PACK_F32 ? f32 + (size_t)blk->k * 16 : decoded_at(k, b, s + i);
        }
        p->k->tile(two[0], two[1], blk->n, x, width, blk->first, total, total + (size_t)k->ld * 16);
    }
}
static void float_pass(const task *k, const block *blk, uint32_t n, uint32_t t, uint32_t width, float *totals, ahead *next,
                       uint64_t lines, bool last) {
    for (uint32_t b = 0; b < n; b++) {
        if (lines) ask(next, lines);
        float *top = totals + blk[b].at * (size_t)k->slot;
        float_tile(k, &blk[b], b, t, width, top);
        for (uint32_t j = 0; j < blk[b].joins; j++, top -= k->slot)
            k->p->k->axpy(top - k->slot, 1.0f, top, k->slot); /* fma(1, x, y) is x + y */
    }
    if (last) write_tile(k, t, width, totals);
}
/* A step of `ahead` bytes a pair, 0: none. The last blocks' results go straight to y where whole strips do. */
static void bf16_pass(const task *k, const block *blk, uint32_t n, uint32_t t, uint32_t width, float *totals, ahead *next, size_t step,
                      bool last) {
    const lm_product *p = k->p;
    const lm_packed_matrix *w = p->w;
    const bool whole = !p->gate && (uint64_t)(k->s0 + k->n_s) * 16 <= w->rows;
    lm_bf16_tile a = {.strip_bytes = w->strip_bytes, .n_c = k->n_c, .n_t = width, .ld = k->ld, .slot = k->slot, .ldy = p->ldy};
    for (uint32_t s = 0; s < k->n_s; s += k->n_c)
        for (uint32_t b = 0; b < n; b++) {
            a.w = strip_at(k, s, 0) + (size_t)blk[b].k * 32;
            a.x = (const uint32_t *)(const void *)p->xp + (size_t)t * ((w->K + 1) / 2) + (size_t)(blk[b].k / 2) * width;
            a.pairs = (blk[b].n + 1) / 2;
            a.joins = blk[b].joins;
            a.first = blk[b].first;
            a.total = totals + blk[b].at * (size_t)k->slot + (size_t)s * k->ld * 16;
            if (last && whole && b + 1 == n) {
                a.y = p->y + (size_t)t * p->ldy + (size_t)k->s0 * 16;
                a.bias = p->bias ? p->bias + (size_t)k->s0 * 16 : NULL;
            }
            a.ahead = stretch(next, step * a.pairs / 64);
            a.step = a.ahead ? step : 0;
            if (!a.ahead) a.ahead = a.w;
            p->bf16->tile(&a);
        }
    if (last && p->gate) write_gated(k, t, width, totals);
    else if (last && !whole) write_tile(k, t, width, totals);
}

void lm_product_run(const lm_product *p, uint32_t i, float *scratch) {
    const uint32_t groups = strip_groups(p), tiles = lm_x_tiles(p->n_t), n_c = strips_of(p), segs = n_segments(p);
    const uint32_t most = tiles_of(p);
    task k = {.p = p, .s0 = i % groups * n_c, .i0 = i / groups * most};
    k.n_c = p->w->strips - k.s0 < n_c ? p->w->strips - k.s0 : n_c;
    k.n_s = p->gate ? 2 * k.n_c : k.n_c;
    k.i1 = tiles - k.i0 < most ? tiles : k.i0 + most;
    k.ld = by_gemv(p) ? LM_GEMV : LM_TILE;
    k.slot = k.n_s * k.ld * 16;
    const size_t per_tile = (p->split ? DEPTH : 1) * (size_t)k.slot;
    k.decoded = scratch + (k.i1 - k.i0) * per_tile;
    const uint32_t late = k.i1 - k.i0 < LATE ? k.i1 - k.i0 : LATE;
    place at = {0};
    for (open_segment(p, &at); at.seg < segs;) {
        block blk[PASS];
        const uint32_t k0 = at.k, n = prepare(&k, &at, blk);
        const bool last = at.seg == segs;
        ahead next = look_ahead(&k, k0, &at);
        if (tiles == 1) ask(&next, last ? START / 64 : 0);
        for (uint32_t j = k.i0; j < k.i1; j++) {
            const uint32_t t = lm_x_first(p->n_t, j), width = lm_x_first(p->n_t, j + 1) - t;
            const bool asking = tiles > 1 && j + late >= k.i1;
            float *totals = scratch + (j - k.i0) * per_tile;
            if (p->bf16)
                bf16_pass(&k, blk, n, t, width, totals, &next, asking ? (k.n_c * 64 + late - 1) / late : 0, last);
            else
                float_pass(&k, blk, n, t, width, totals, &next, asking ? (next.lines + late * n - 1) / (late * n) : 0, last);
        }
    }
}
