/* The product over quantized activations: tasks, segments and the tree, for any level. The contract is in lane_int.h. */
#include "kernels/lane_int.h"
#include <string.h>
#if defined(__linux__) && defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#define PAIR 32u /* rows of a pair of strips */
#define TILE_FLOATS (6u * PAIR)

/* ---- which kernels ---------------------------------------------------------------------------------------------------------------*/
#if defined(__x86_64__)
static bool has_vnni(void) { return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw"); }
static bool has_avxvnni(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("avxvnni");
}
static bool has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }
#elif defined(__linux__) && defined(__aarch64__)
static bool has_dotprod(void) { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
#elif defined(__aarch64__)
static bool has_dotprod(void) { return false; } /* not asked for elsewhere */
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
    const float *src[6];
    for (uint32_t t = 0; t < w; t++) src[t] = x + (size_t)(row ? row[t0 + t] : t0 + t) * ldx;
    k->quantise(lane, src, w, K, (uint8_t *)xq + (size_t)t0 * (K / LM_INT_BLK) * lm_int_token(lane));
}

/* ---- tasks -----------------------------------------------------------------------------------------------------------------------*/
static bool direct(const lm_int_product *p) { return p->n_t <= LM_INT_GEMV && p->k->gemv[p->w->pack]; }
/* strips that a task takes: decoding, enough that handing a task out costs little, few enough that all threads have work */
static uint32_t strips_per_task(const lm_int_product *p) {
    const uint32_t n = p->w->strips / 12;
    return !direct(p) || n < 2 ? 2 : n > 8 ? 8 : n;
}
static uint32_t row_tasks(const lm_int_product *p) {
    const uint32_t per = strips_per_task(p);
    return (p->w->strips + per - 1) / per;
}
uint32_t lm_int_tasks(const lm_int_product *p) {
    return row_tasks(p) * ((lm_int_tiles(p->lane, p->n_t) + LM_INT_GROUP - 1) / LM_INT_GROUP);
}
size_t lm_int_scratch(uint32_t K) { return 16 + (size_t)(K / LM_INT_BLK) * (256 + 4 * PAIR) + LM_INT_SEGMENTS * TILE_FLOATS; }

/* The segments that have blocks: bound[0..n], in blocks; which[s] the number that segment s has in the tree. */
typedef struct segments {
    uint32_t n, bound[LM_INT_SEGMENTS + 1], which[LM_INT_SEGMENTS];
} segments;
static segments segments_of(const lm_int_product *p) {
    segments g = {.n = 0, .bound = {0}};
    const uint32_t unit = lm_pack_unit(p->w->type) / LM_INT_BLK, blocks = p->w->K / LM_INT_BLK;
    const uint64_t n = (blocks + unit - 1) / unit;
    if (!p->split) {
        g.bound[g.n++] = 0;
        g.bound[1] = blocks;
        return g;
    }
    for (uint32_t i = 0; i < LM_INT_SEGMENTS; i++) {
        const uint64_t end = (i + 1) * n / LM_INT_SEGMENTS * unit;
        if (end <= g.bound[g.n]) continue;
        g.which[g.n++] = i;
        g.bound[g.n] = end < blocks ? (uint32_t)end : blocks;
    }
    return g;
}
/* ((01)(23))((45)(67)) over the segments that are there, each of n floats; returns the sum's place */
static const float *sum_segments(const segments *g, float *out, size_t n) {
    if (g->n == 1) return out;
    float *at[LM_INT_SEGMENTS] = {NULL};
    for (uint32_t i = 0; i < g->n; i++) at[g->which[i]] = out + i * n;
    for (uint32_t step = 1; step < LM_INT_SEGMENTS; step *= 2)
        for (uint32_t s = 0; s < LM_INT_SEGMENTS; s += 2 * step) {
            if (!at[s + step]) continue;
            if (!at[s])
                at[s] = at[s + step];
            else
                for (size_t j = 0; j < n; j++) at[s][j] += at[s + step][j];
        }
    return at[0];
}
/* src[t*ld + 0..16) of n_t tokens to the outputs of a strip */
static void put(const lm_int_product *p, uint32_t strip, uint32_t t0, uint32_t n_t, const float *src, uint32_t ld) {
    const uint32_t row = strip * 16, n = p->w->rows - row < 16 ? p->w->rows - row : 16;
    for (uint32_t t = 0; t < n_t; t++, src += ld) {
        float *y = p->y + (t0 + t) * p->ldy + row;
        if (!p->bias && n == 16)
            memcpy(y, src, 16 * sizeof *y);
        else if (!p->bias)
            memcpy(y, src, n * sizeof *y);
        else
            for (uint32_t r = 0; r < n; r++) y[r] = src[r] + p->bias[row + r];
    }
}

static void run_direct(const lm_int_product *p, uint32_t i, const segments *g, float *out) {
    const uint32_t per = strips_per_task(p), s0 = i * per, s1 = p->w->strips - s0 < per ? p->w->strips : s0 + per;
    const uint32_t tiles = lm_int_tiles(p->lane, p->n_t);
    for (uint32_t s = s0; s < s1; s++)
        for (uint32_t j = 0; j < tiles; j++) {
            const uint32_t t0 = lm_int_first(p->lane, p->n_t, j), n_t = lm_int_first(p->lane, p->n_t, j + 1) - t0;
            const uint8_t *x = (const uint8_t *)p->xq + (size_t)t0 * (p->w->K / LM_INT_BLK) * lm_int_token(p->lane);
            p->k->gemv[p->w->pack](p->lane, lm_packed_at(p->w, p->mat, s), x, n_t, g->bound, g->n, out);
            put(p, s, t0, n_t, sum_segments(g, out, (size_t)n_t * 16), 16);
        }
}

void lm_int_run(const lm_int_product *p, uint32_t i, float *scratch) {
    const segments g = segments_of(p);
    scratch += (64 - (uintptr_t)scratch % 64) % 64 / sizeof *scratch; /* lines are read whole */
    if (direct(p)) {
        run_direct(p, i, &g, scratch);
        return;
    }
    const lm_packed_matrix *w = p->w;
    const uint32_t blocks = w->K / LM_INT_BLK, groups = row_tasks(p), tiles = lm_int_tiles(p->lane, p->n_t);
    const uint32_t s = i % groups * 2, i0 = i / groups * LM_INT_GROUP, i1 = tiles - i0 < LM_INT_GROUP ? tiles : i0 + LM_INT_GROUP;
    const bool both = s + 1 < w->strips;
    float *out = scratch, *scale = out + LM_INT_SEGMENTS * TILE_FLOATS, *min = scale + (size_t)blocks * 2 * PAIR;
    const lm_int_plane plane = {(uint8_t *)(min + (size_t)blocks * 2 * PAIR), scale, min, two_scales(w) ? 2 : 1, minima(w)};
    for (uint32_t slot = 0; slot < 2; slot++) /* a last strip without a partner is its own */
        p->k->unpack[w->pack](w->type, lm_packed_at(w, p->mat, both ? s + slot : s), blocks, slot, &plane);
    for (uint32_t j = i0; j < i1; j++) {
        const uint32_t t0 = lm_int_first(p->lane, p->n_t, j), n_t = lm_int_first(p->lane, p->n_t, j + 1) - t0;
        p->k->tile(p->lane, &plane, (const uint8_t *)p->xq + (size_t)t0 * blocks * lm_int_token(p->lane), n_t, g.bound, g.n, out);
        const float *y = sum_segments(&g, out, (size_t)n_t * PAIR);
        put(p, s, t0, n_t, y, PAIR);
        if (both) put(p, s + 1, t0, n_t, y + 16, PAIR);
    }
}
