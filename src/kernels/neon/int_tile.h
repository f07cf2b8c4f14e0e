/* The integer tile on 128-bit vectors. The including file gives `dots`: for T of 1, 2 and LM_DOTS_T tokens (2 or 4),
 *   dots(T, q, v, apart, step, n, out): out[t][0..3] = Σ over n quads of (q − 128)[16 rows][4]·v[t][4], q 128 bytes and v `step` bytes from one
 *   quad to the next, v `apart` bytes from one token to the next. Both sides are signed bytes here, so the tile's corrections for q + 128
 *   (lane_int.h) serve as the sums of v only. */

/* The exact integers of 16 rows and T tokens over quads [j0, j0+n) of a block. */
LM_INLINE void block_ints(int T, bool wide, const uint8_t *q, const float *x, const uint8_t *tail, uint32_t w, uint32_t j0, uint32_t n, vi *out) {
    const uint8_t *v = (const uint8_t *)(x + 4 * w);
    if (!wide) {
        dots(T, q + 128 * j0, v + (size_t)j0 * w * 4, 4, (size_t)w * 4, n, out);
        return;
    }
    vi hi[LM_DOTS_T];
    dots(T, q + 128 * j0, v + (size_t)j0 * w * 4, 4, (size_t)w * 4, n, hi);
    dots(T, q + 128 * j0, tail + 8 + 4 * j0, LM_INT_TAIL, 4, n, out);
    LM_UNROLL for (int t = 0; t < T; t++) out[t] = i_add(out[t], high_part(hi[t], x + t));
}
/* x is token t0's place in the tile's first array (dx), tail its tail; wide: there are tails. */
LM_INLINE void add_block(int T, bool wide, const lm_int_plane *p, uint32_t b, uint32_t slot, const float *x, const uint8_t *tail, uint32_t w,
                         vf *acc) {
    const uint8_t *q = p->q + (size_t)b * 1024 + slot * 64;
    const float *d = p->scale + (size_t)b * p->halves * 32 + slot * 16, *m = p->min + (size_t)b * p->halves * 32 + slot * 16;
    vi i0[LM_DOTS_T], i1[LM_DOTS_T];
    block_ints(T, wide, q, x, tail, w, 0, p->halves == 1 ? 8 : 4, i0);
    if (p->halves == 2) block_ints(T, wide, q, x, tail, w, 4, 4, i1);
    LM_UNROLL for (int t = 0; t < T; t++) {
        const float dx = wide ? __builtin_fabsf(x[t]) : x[t];
        vf f = v_mul(v_cvt(i0[t]), v_load(d));
        if (p->halves == 2) f = v_fma(v_cvt(i1[t]), v_load(d + 32), f);
        acc[t] = v_fma(f, v_set(dx), acc[t]);
        if (!p->has_min) continue;
        if (p->halves == 1) {
            acc[t] = v_fma(v_load(m), v_set(x[w + t]), acc[t]);
            continue;
        }
        int32_t all, first; /* −128 times the sums of v */
        memcpy(&all, wide ? (const void *)(tail + LM_INT_TAIL * (uint32_t)t) : x + 2 * w + t, 4);
        memcpy(&first, wide ? (const void *)(tail + LM_INT_TAIL * (uint32_t)t + 4) : x + 3 * w + t, 4);
        acc[t] = v_fma(v_load(m), v_set(dx * (float)(first / -128)), acc[t]);
        acc[t] = v_fma(v_load(m + 32), v_set(dx * (float)((all - first) / -128)), acc[t]);
    }
}
LM_INLINE void tile_part(int T, bool wide, const lm_int_plane *p, uint32_t slot, const uint8_t *x, uint32_t w, uint32_t t0,
                         const lm_int_segments *g, float *out, size_t ld) {
    const size_t step = (size_t)w * LM_INT_FRONT, tail = (size_t)w * LM_INT_TAIL;
    const uint8_t *tails = x + g->bound[g->n] * step + LM_INT_TAIL * t0;
    vf waiting[LM_INT_WAITING][LM_DOTS_T], acc[LM_DOTS_T];
    LM_UNROLL for (int t = 0; t < T; t++) acc[t] = v_set(0.0f);
    for (uint32_t s = 0, n = 0;;) {
        for (uint32_t b = g->bound[s]; b < g->bound[s + 1]; b++)
            add_block(T, wide, p, b, slot, (const float *)(const void *)(x + b * step) + t0, tails + b * tail, w, acc);
        for (uint32_t j = g->joins[s]; j > 0; j--, n--)
            LM_UNROLL for (int t = 0; t < T; t++) acc[t] = v_add(waiting[n - 1][t], acc[t]);
        if (++s == g->n) break;
        LM_UNROLL for (int t = 0; t < T; t++) {
            waiting[n][t] = acc[t];
            acc[t] = v_set(0.0f);
        }
        n++;
    }
    LM_UNROLL for (int t = 0; t < T; t++) v_store(out + (t0 + (uint32_t)t) * ld + slot * 16, acc[t]);
}
/* Each kind of weight gets its own loop: halves and minima are constants in it. */
LM_INLINE void tile_kind(int T, bool wide, const lm_int_plane *w, uint32_t slot, const uint8_t *x, uint32_t n_t, uint32_t t0,
                         const lm_int_segments *g, float *out, size_t ld) {
    if (w->halves == 1 && !w->has_min) tile_part(T, wide, &(lm_int_plane){w->q, w->scale, w->min, 1, false}, slot, x, n_t, t0, g, out, ld);
    else if (w->halves == 1) tile_part(T, wide, &(lm_int_plane){w->q, w->scale, w->min, 1, true}, slot, x, n_t, t0, g, out, ld);
    else if (!w->has_min) tile_part(T, wide, &(lm_int_plane){w->q, w->scale, w->min, 2, false}, slot, x, n_t, t0, g, out, ld);
    else tile_part(T, wide, &(lm_int_plane){w->q, w->scale, w->min, 2, true}, slot, x, n_t, t0, g, out, ld);
}
LM_INLINE void tile_tokens(int T, lm_int_lane lane, const lm_int_plane *w, uint32_t slot, const uint8_t *x, uint32_t n_t, uint32_t t0,
                           const lm_int_segments *g, float *out, size_t ld) {
    if (lane == LM_INT_8) tile_kind(T, false, w, slot, x, n_t, t0, g, out, ld);
    else tile_kind(T, true, w, slot, x, n_t, t0, g, out, ld);
}
static void int_tile(lm_int_lane lane, const lm_int_plane *w, const uint8_t *x, uint32_t n_t, const lm_int_segments *g, float *out, size_t ld) {
    for (uint32_t slot = 0; slot < 2; slot++) {
        uint32_t t = 0;
        for (; n_t - t >= LM_DOTS_T; t += LM_DOTS_T) tile_tokens(LM_DOTS_T, lane, w, slot, x, n_t, t, g, out, ld);
#if LM_DOTS_T > 2
        for (; n_t - t >= 2; t += 2) tile_tokens(2, lane, w, slot, x, n_t, t, g, out, ld);
#endif
        for (; t < n_t; t++) tile_tokens(1, lane, w, slot, x, n_t, t, g, out, ld);
    }
}
