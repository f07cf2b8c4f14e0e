/* What a query sees of a page, and the greatest score of that: for attention's bodies, after maths.h. Scores lie as [tile of 16 keys][n][16]. */
static const float attend_lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
/* x where query i sees key 16t + lane, else y */
LM_INLINE vf attend_mask(const lm_attend *a, uint32_t i, uint32_t t, vf x, vf y) {
    const vf lane = v_load(attend_lane);
    x = v_less(lane, v_set((float)a->hi[i] - 16.0f * (float)t), x, y);
    x = v_less(lane, v_set((float)a->lo[i] - 16.0f * (float)t), y, x);
    return a->keep ? v_less(v_set(0.0f), v_cvt(i_load_u8(a->keep + 16 * t)), x, y) : x;
}
/* Keys [first, end) are seen by some query, [lo, hi) of them by all; end is 0 where none sees any. */
typedef struct attend_range {
    uint32_t first, end, lo, hi;
} attend_range;
LM_INLINE attend_range attend_range_of(const lm_attend *a, uint32_t n) {
    attend_range r = {LM_KV_PAGE, 0, 0, LM_KV_PAGE};
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t lo = a->lo[i], hi = a->hi[i];
        r.lo = lo > r.lo ? lo : r.lo;
        r.hi = hi < r.hi ? hi : r.hi;
        if (lo >= hi) continue;
        r.first = lo < r.first ? lo : r.first;
        r.end = hi > r.end ? hi : r.end;
    }
    return r;
}
/* A query's tiles of 16 keys: those that it sees some of, of these the ones that it sees as a whole, and where the first one's scores are. */
typedef struct attend_tiles {
    uint32_t t0, t1, full0, full1;
    float *p;
} attend_tiles;
LM_INLINE attend_tiles attend_tiles_of(const lm_attend *a, uint32_t i) {
    const uint32_t t0 = a->lo[i] / 16, t1 = (a->hi[i] + 15) / 16;
    return (attend_tiles){t0, t1, a->keep ? t1 : (a->lo[i] + 15) / 16, a->hi[i] / 16, a->s + 16 * ((size_t)i + (size_t)t0 * a->n)};
}
/* Query i's greatest score; with a soft-cap the scores, in place. */
LM_INLINE float attend_top(const lm_attend *a, uint32_t i) {
    const attend_tiles at = attend_tiles_of(a, i);
    const vf low = v_set(-__builtin_inff());
    const size_t step = 16 * (size_t)a->n;
    vf top = low, other = low;
    if (a->softcap != 0) {
        const vf scale = v_set(a->scale), cap = v_set(a->softcap);
        float *p = at.p;
        for (uint32_t t = at.t0; t < at.t1; t++, p += step) v_store(p, v_mul(cap, v_tanh(v_div(v_mul(v_load(p), scale), cap))));
    }
    const float *p = at.p;
    uint32_t t = at.t0;
    for (; t < at.full0 && t < at.t1; t++, p += step) top = v_max(attend_mask(a, i, t, v_load(p), low), top); /* a NaN leaves it */
    for (; t + 2 <= at.full1; t += 2, p += 2 * step) top = v_max(v_load(p), top), other = v_max(v_load(p + step), other);
    for (; t < at.full1; t++, p += step) top = v_max(v_load(p), top);
    for (; t < at.t1; t++, p += step) top = v_max(attend_mask(a, i, t, v_load(p), low), top);
    return v_most(v_max(other, top));
}
