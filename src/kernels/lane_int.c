/* The product over quantized activations: tasks, segments and the tree, for any level. The contract is in lane_int.h. */
#include "kernels/lane_int.h"
#include <string.h>
#if defined(__linux__) && defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#define PAIR 32u /* rows of a pair of strips */
#define TILE_FLOATS (LM_INT_WIDEST * PAIR)
#define GROUP 528u       /* tokens that a task takes at a time, at most */
#define LEAST_TILES 11u /* that are worth unpacking a pair of strips */
#define DIRECT 8u /* strips that a task takes straight from the packed form, at most */
#define DIRECT_FLOATS (LM_INT_GEMV * DIRECT * 16u)
#define PLANE_FLOATS 32768u /* of a plane that stays in the second-nearest cache with another one and the tiles between them */
#define PAGE_FLOATS 1024u /* the most that aligning scratch to a page takes */
#define TASKS 24u  /* wanted of a product for each thread, at least, */
#define STREAMS 6u /* where they are streams */

/* ---- which kernels ---------------------------------------------------------------------------------------------------------------*/
#if defined(__x86_64__)
static bool has_vnni(void) { return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw"); }
static bool has_avxvnni(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("avxvnni");
}
static bool has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }
#elif defined(__linux__) && defined(__aarch64__)
static bool has_dotprod(void) { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
static bool has_i8mm(void) { return has_dotprod() && (getauxval(AT_HWCAP2) >> 13 & 1) != 0; } /* HWCAP2_I8MM */
#elif defined(__aarch64__)
static bool has_dotprod(void) { return false; } /* not asked for elsewhere */
static bool has_i8mm(void) { return false; }
#endif
static bool always(void) { return true; }
/* best last; `level` is the least level of the float kernels that goes with it */
static const struct {
    const lm_int_kernels *k;
    const char *level;
    bool (*has)(void);
} all[] = {
    {&lm_int_c, "c", always},
#if defined(__x86_64__)
    {&lm_int_avx2, "avx2", has_avx2},
    {&lm_int_avxvnni, "avx2", has_avxvnni},
    {&lm_int_vnni, "avx512", has_vnni},
#elif defined(__aarch64__)
    {&lm_int_neon, "neon", always},
    {&lm_int_dotprod, "neon", has_dotprod},
    {&lm_int_i8mm, "neon", has_i8mm},
#endif
};
static int rank(const char *level) { return strcmp(level, "c") == 0 ? 0 : strcmp(level, "avx512") == 0 ? 2 : 1; }
const lm_int_kernels *lm_int_pick(const lm_kernels *level) {
    const lm_int_kernels *best = &lm_int_c;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (rank(all[i].level) <= rank(level->level) && all[i].has()) best = all[i].k;
    return best;
}
const lm_int_kernels *lm_int_nth(uint32_t n) {
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].has() && n-- == 0) return all[i].k;
    return NULL;
}

/* ---- weights ---------------------------------------------------------------------------------------------------------------------*/
static bool two_scales(const lm_packed_matrix *w) {
    return w->pack == LM_PACK_Q6_K || (w->pack == LM_PACK_GENERIC && w->type->group == 16);
}
static bool minima(const lm_packed_matrix *w) {
    return w->pack == LM_PACK_Q4_1 || w->pack == LM_PACK_Q4_K || w->pack == LM_PACK_Q5_K ||
           (w->pack == LM_PACK_GENERIC && w->type->has_min);
}
bool lm_int_fits(const lm_packed_matrix *w) {
    if (w->pack == LM_PACK_GENERIC) return w->type->ints != NULL;
    return w->pack >= LM_PACK_Q4_0;
}

/* ---- activations -----------------------------------------------------------------------------------------------------------------*/
void lm_int_pack(const lm_int_kernels *k, lm_int_lane lane, const float *x, size_t ldx, const uint32_t *row, uint32_t n_t, uint32_t i,
                 uint32_t K, void *xq) {
    const uint32_t t0 = lm_int_first(lane, n_t, i), w = lm_int_first(lane, n_t, i + 1) - t0;
    const float *src[LM_INT_WIDEST];
    for (uint32_t t = 0; t < w; t++) src[t] = x + (size_t)(row ? row[t0 + t] : t0 + t) * ldx;
    lm_int_pack_rows(k, lane, src, n_t, i, K, xq);
}
void lm_int_pack_rows(const lm_int_kernels *k, lm_int_lane lane, const float *const *src, uint32_t n_t, uint32_t i, uint32_t K, void *xq) {
    const uint32_t t0 = lm_int_first(lane, n_t, i), w = lm_int_first(lane, n_t, i + 1) - t0;
    const size_t blocks = K / LM_INT_BLK;
    uint8_t *dst = (uint8_t *)xq + t0 * blocks * lm_int_token(lane);
    k->quantise(lane, src, w, K, dst, dst + w * blocks * LM_INT_FRONT);
}

/* ---- tasks -----------------------------------------------------------------------------------------------------------------------*/
static bool direct(const lm_int_product *p) {
    return p->n_t <= LM_INT_GEMV && p->k->gemv[p->w->pack] && (!p->gate || p->k->gemv[p->gate->w->pack]);
}
/* Decoding, so many that all threads have work to the end, but of long streams: strips that follow each other come faster than parts of many. */
uint32_t lm_int_strips(const lm_int_product *p) {
    const uint32_t n = p->w->strips / (STREAMS * (p->threads ? p->threads : 1));
    return !direct(p) || n < 2 ? 2 : n > DIRECT ? DIRECT : n;
}
static uint32_t row_tasks(const lm_int_product *p) {
    const uint32_t per = lm_int_strips(p);
    return (p->w->strips + per - 1) / per;
}

/* Tiles are handed out in groups of one strip pair: as many as there are up to GROUP tokens, since a task unpacks its weights anew, but so few that
 * all threads have work to the end: i16's tiles take twice as long, so its tasks are twice as many. mixed takes half as many tokens: with all of them
 * it was 13 % slower, asked for ahead or not. */
uint32_t lm_int_groups(const lm_int_product *p, uint32_t n) {
    uint32_t rows = 0;
    for (uint32_t i = 0; i < n; i++) rows += row_tasks(&p[i]);
    const uint32_t tiles = lm_int_tiles(p->lane, p->n_t), full = (p->lane == LM_INT_MIXED ? GROUP / 2 : GROUP) / lm_int_width(p->lane);
    const uint32_t least = (tiles + full - 1) / full;
    const uint32_t wanted = p->threads > 1 ? (uint32_t)(((uint64_t)TASKS * (p->lane == LM_INT_16 ? 2 : 1) * p->threads + rows - 1) / rows) : 1;
    const uint32_t most = (tiles + LEAST_TILES - 1) / LEAST_TILES;
    return p->n_t <= LM_INT_GEMV || wanted <= least ? least : wanted < most ? wanted : most;
}
static uint32_t tile_groups(const lm_int_product *p) { return p->groups ? p->groups : lm_int_groups(p, 1); }
uint32_t lm_int_tasks(const lm_int_product *p) { return row_tasks(p) * tile_groups(p); }
static size_t plane_floats(uint32_t K) { return (size_t)(K / LM_INT_BLK) * (256 + 4 * PAIR); }
static bool two_planes(uint32_t K) { return plane_floats(K) <= PLANE_FLOATS; }
size_t lm_int_scratch(uint32_t K, bool gate) {
    const size_t tiles = TILE_FLOATS + (gate ? GROUP * PAIR : TILE_FLOATS) + (gate && two_planes(K) ? 2 : 1) * plane_floats(K);
    return PAGE_FLOATS + (tiles > 2 * DIRECT_FLOATS ? tiles : 2 * DIRECT_FLOATS);
}

static void segments_of(const lm_int_product *p, lm_int_segments *g) {
    const uint32_t unit = lm_pack_unit(p->w->type) / LM_INT_BLK, blocks = p->w->K / LM_INT_BLK;
    *g = (lm_int_segments){.n = 0, .bound = {0}};
    if (!p->split) {
        g->n = 1, g->bound[1] = blocks;
        return;
    }
    const uint64_t n = (blocks + unit - 1) / unit;
    uint32_t waits = 0; /* bit l: a finished left subtree of 2^l segments waits for its sibling */
    for (uint32_t i = 0; i < LM_INT_SEGMENTS; i++) {
        uint64_t end = (i + 1) * n / LM_INT_SEGMENTS * unit;
        if (end > blocks) end = blocks;
        bool has = end > g->bound[g->n];
        if (has) g->bound[++g->n] = (uint32_t)end;
        uint32_t l = 0;
        for (; l < LM_INT_WAITING && (i >> l & 1); l++) {
            if (!(waits >> l & 1)) continue; /* an empty sibling: the subtree passes through */
            g->joins[g->n - 1] += has;
            has = true;
            waits &= ~(1u << l);
        }
        if (has) waits |= 1u << l;
    }
}
/* ---- outputs: [n_t][ld] in scratch, of the rows from `row` on -------------------------------------------------------------------------*/
static uint32_t width(const lm_int_product *p, uint32_t row, uint32_t ld) { return p->w->rows - row < ld ? p->w->rows - row : ld; }
static void put(const lm_int_product *p, uint32_t row, uint32_t t0, uint32_t n_t, uint32_t ld, const float *out) {
    const uint32_t n = width(p, row, ld);
    for (uint32_t t = 0; t < n_t; t++, out += ld) memcpy(p->y + (t0 + t) * p->ldy + row, out, n * sizeof *out);
}
/* A tile's rows are a block of the next product's input. */
static void put_quantised(const lm_int_product *p, uint32_t row, uint32_t t0, uint32_t n_t, const float *out) {
    const float *src[LM_INT_WIDEST];
    for (uint32_t t = 0; t < n_t; t++) src[t] = out + t * PAIR;
    const size_t blocks = p->w->rows / LM_INT_BLK, b = row / LM_INT_BLK;
    uint8_t *tile = (uint8_t *)p->gate->xq + t0 * blocks * lm_int_token(p->lane);
    p->k->quantise(p->lane, src, n_t, LM_INT_BLK, tile + b * n_t * LM_INT_FRONT, tile + blocks * n_t * LM_INT_FRONT + b * n_t * LM_INT_TAIL);
}
/* out2: the gate's second product */
static void finish(const lm_int_product *p, uint32_t row, uint32_t t0, uint32_t n_t, uint32_t ld, float *out, float *out2) {
    const lm_gate *g = p->gate;
    lm_add_bias(p->bias ? p->bias + row : NULL, width(p, row, ld), n_t, ld, out);
    if (g) {
        lm_add_bias(g->bias ? g->bias + row : NULL, width(p, row, ld), n_t, ld, out2);
        g->k->gated(g->act, out, out, out2, g->limit, g->alpha, n_t * ld);
    }
    if (g && g->xq) put_quantised(p, row, t0, n_t, out);
    else put(p, row, t0, n_t, ld, out);
}
/* Whether outputs can be written where they belong at once. */
static bool in_place(const lm_int_product *p, uint32_t row, uint32_t ld) { return !p->bias && !p->gate && row + ld <= p->w->rows; }
static const uint8_t *tile_at(const lm_int_product *p, uint32_t t0) {
    return (const uint8_t *)p->xq + (size_t)t0 * (p->w->K / LM_INT_BLK) * lm_int_token(p->lane);
}

/* ---- a task ----------------------------------------------------------------------------------------------------------------------*/
/* Strips [s0, s1) of a matrix by all tokens; row r of token t to y[t*ld + r − 16·s0]. */
static void strips_direct(const lm_int_product *p, const lm_packed_matrix *w, uint32_t s0, uint32_t s1, const lm_int_segments *g, float *y,
                          size_t ld) {
    const uint32_t tiles = lm_int_tiles(p->lane, p->n_t);
    const lm_int_gemv_fn gemv = p->k->gemv[w->pack];
    const uint8_t *strip = lm_packed_at(w, p->mat, s0);
    uint32_t first[LM_INT_GEMV + 1] = {0}; /* tokens of the tiles */
    for (uint32_t j = 1; j < tiles; j++) first[j] = lm_int_first(p->lane, p->n_t, j);
    first[tiles] = p->n_t;
    for (uint32_t s = s0; s < s1; s++, y += 16, strip += w->strip_bytes)
        for (uint32_t j = 0; j < tiles; j++)
            gemv(p->lane, strip, tile_at(p, first[j]), first[j + 1] - first[j], g, y + first[j] * ld, ld);
}
/* Two products one after the other, not strip by strip: each is a stream of neighbouring strips that way. */
static void run_direct(const lm_int_product *p, uint32_t i, const lm_int_segments *g, float *out) {
    const uint32_t per = lm_int_strips(p), s0 = i * per, s1 = p->w->strips - s0 < per ? p->w->strips : s0 + per;
    const uint32_t row = s0 * 16, ld = (s1 - s0) * 16;
    float *out2 = out + DIRECT_FLOATS;
    if (in_place(p, row, ld)) {
        strips_direct(p, p->w, s0, s1, g, p->y + row, p->ldy);
        return;
    }
    strips_direct(p, p->w, s0, s1, g, out, ld);
    if (p->gate) strips_direct(p, p->gate->w, s0, s1, g, out2, ld);
    finish(p, row, 0, p->n_t, ld, out, out2);
}
/* The pair of strips from s on, unpacked to scratch; a last strip without a partner is its own. */
static lm_int_plane unpack(const lm_int_product *p, const lm_packed_matrix *w, uint32_t s, float *scratch) {
    const uint32_t blocks = w->K / LM_INT_BLK;
    float *min = scratch + (size_t)blocks * 2 * PAIR;
    const lm_int_plane plane = {(uint8_t *)(min + (size_t)blocks * 2 * PAIR), scratch, min, two_scales(w) ? 2 : 1, minima(w), w->pack};
    for (uint32_t slot = 0; slot < 2; slot++)
        p->k->unpack[w->pack](w->type, lm_packed_at(w, p->mat, s + 1 < w->strips ? s + slot : s), blocks, slot, &plane);
    return plane;
}
/* What is unpacked next, by this thread more often than not: memory brings it while there is arithmetic, a part with each tile. */
typedef struct later {
    const uint8_t *at, *end;
    size_t step;
} later;
static later later_of(const lm_int_product *p, const lm_packed_matrix *w, uint32_t s, uint32_t tiles) {
    if (s >= w->strips) return (later){NULL, NULL, 0};
    const uint8_t *at = lm_packed_at(w, p->mat, s);
    const size_t bytes = (w->strips - s < 2 ? 1 : 2) * w->strip_bytes;
    return (later){at, at + bytes, (bytes / tiles + 64) / 64 * 64};
}
static void ask(later *l) {
    const uint8_t *to = (size_t)(l->end - l->at) < l->step ? l->end : l->at + l->step;
    for (; l->at < to; l->at += 64) __builtin_prefetch(l->at, 0, 2);
    l->at = to;
}
/* Task i: the pair of strips from s on, by tiles [i0, i1) */
typedef struct part {
    uint32_t s, i0, i1;
} part;
static part part_of(const lm_int_product *p, uint32_t i) {
    const uint32_t rows = row_tasks(p), tiles = lm_int_tiles(p->lane, p->n_t), groups = tile_groups(p), g = i / rows;
    return (part){i % rows * 2, (uint32_t)((uint64_t)g * tiles / groups), (uint32_t)((uint64_t)(g + 1) * tiles / groups)};
}
/* Two products one after the other here too: one plane of unpacked weights fits the nearest caches, two do not. What the first gives waits. */
static void run_tiles(const lm_int_product *p, uint32_t i, const lm_int_segments *g, float *scratch) {
    const part at = part_of(p, i);
    const uint32_t s = at.s, i0 = at.i0, i1 = at.i1, row = s * 16;
    float *second = scratch + plane_floats(p->w->K), *out = second + TILE_FLOATS;
    const uint32_t first_t = lm_int_first(p->lane, p->n_t, i0);
    const bool there = in_place(p, row, PAIR);
    for (int pass = 0; pass <= (p->gate != NULL); pass++) {
        const lm_int_plane w = unpack(p, pass ? p->gate->w : p->w, s, scratch);
        later next = p->gate && !pass ? later_of(p, p->gate->w, s, i1 - i0) : later_of(p, p->w, s + 2, i1 - i0);
        for (uint32_t j = i0, t0 = first_t, n_t; j < i1; j++, t0 += n_t) {
            ask(&next);
            n_t = lm_int_first(p->lane, p->n_t, j + 1) - t0;
            float *const first = out + (p->gate ? (t0 - first_t) * PAIR : 0), *const to = pass ? second : first;
            p->k->tile(p->lane, &w, tile_at(p, t0), n_t, g, there ? p->y + t0 * p->ldy + row : to, there ? p->ldy : PAIR);
            if (!there && (pass || !p->gate)) finish(p, row, t0, n_t, PAIR, first, second);
        }
    }
}
/* i16's tiles are nearly twice as large and come from the shared cache for each plane: where both planes fit, a tile goes by the two of them
 * at once (Q6_K 1 to 2 % faster, Q4_K no slower; of K = 8192 it would be 3 % slower). */
static bool side_by_side(const lm_int_product *p) { return p->gate && p->lane == LM_INT_16 && two_planes(p->w->K); }
static void run_both(const lm_int_product *p, uint32_t i, const lm_int_segments *g, float *scratch) {
    const part at = part_of(p, i);
    const uint32_t s = at.s, i0 = at.i0, i1 = at.i1;
    const lm_packed_matrix *const w[2] = {p->w, p->gate->w};
    float *const out = scratch + 2 * plane_floats(p->w->K), *const to[2] = {out, out + TILE_FLOATS};
    lm_int_plane plane[2];
    later next[2];
    for (int k = 0; k < 2; k++) {
        plane[k] = unpack(p, w[k], s, scratch + (size_t)k * plane_floats(p->w->K));
        next[k] = later_of(p, w[k], s + 2, i1 - i0);
    }
    for (uint32_t j = i0; j < i1; j++) {
        const uint32_t t0 = lm_int_first(p->lane, p->n_t, j), n_t = lm_int_first(p->lane, p->n_t, j + 1) - t0;
        for (int k = 0; k < 2; k++) {
            ask(&next[k]);
            p->k->tile(p->lane, &plane[k], tile_at(p, t0), n_t, g, to[k], PAIR);
        }
        finish(p, s * 16, t0, n_t, PAIR, to[0], to[1]);
    }
}
void lm_int_run(const lm_int_product *p, uint32_t i, float *scratch) {
    lm_int_segments g;
    segments_of(p, &g); /* not returned: a copy would wait for what was just written piece by piece */
    scratch += (4096 - (uintptr_t)scratch % 4096) % 4096 / sizeof *scratch; /* elsewhere in a page mixed was 4 % slower */
    if (direct(p))
        run_direct(p, i, &g, scratch);
    else if (side_by_side(p))
        run_both(p, i, &g, scratch);
    else
        run_tiles(p, i, &g, scratch);
}
