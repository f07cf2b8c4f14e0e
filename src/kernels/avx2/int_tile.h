/* The integer tile on 256-bit vectors. The including file gives `dots`: with LM_DOTS_T tokens at most,
 *   dots(T, q, v, apart, step, n, out): out[t][0..1] = Σ over n quads of q[16 rows][4]·v[t][4], q 128 bytes and v `step` bytes from one quad to
 * the next, v `apart` bytes from one token to the next. */

/* The exact integers of 16 rows and T tokens over quads [j0, j0+n) of a block; c holds the correction for the 128 that q carries. */
LM_INLINE void block_ints(int T, bool wide, const uint8_t *q, const float *x, const uint8_t *tail, uint32_t w, uint32_t j0, uint32_t n,
                          const int32_t *c, __m256i out[LM_DOTS_T][2]) {
    const uint8_t *v = (const uint8_t *)(x + 4 * w);
    if (!wide)
        dots(T, q + 128 * j0, v + (size_t)j0 * w * 4, 4, w * 4, n, out);
    else {
        __m256i hi[LM_DOTS_T][2];
        dots(T, q + 128 * j0, v + (size_t)j0 * w * 4, 4, w * 4, n, hi);
        dots(T, q + 128 * j0, tail + 8 + 4 * j0, LM_INT_TAIL, 4, n, out);
        LM_UNROLL for (int t = 0; t < T; t++) {
            const vi high = high_part((vi){hi[t][0], hi[t][1]}, x + t);
            out[t][0] = _mm256_add_epi32(out[t][0], high.a);
            out[t][1] = _mm256_add_epi32(out[t][1], high.b);
        }
    }
    LM_UNROLL for (int t = 0; t < T; t++) LM_UNROLL for (int h = 0; h < 2; h++) out[t][h] =
        _mm256_add_epi32(out[t][h], _mm256_set1_epi32(c[t]));
}
/* x is token t0's place in the tile's first array (dx), tail its tail; wide: there are tails. */
LM_INLINE void add_block(int T, bool wide, const lm_int_plane *p, uint32_t b, uint32_t slot, const float *x, const uint8_t *tail, uint32_t w,
                         __m256 acc[LM_DOTS_T][2]) {
    const uint8_t *q = p->q + (size_t)b * 1024 + slot * 64;
    const float *d = p->scale + (size_t)b * p->halves * 32 + slot * 16, *m = p->min + (size_t)b * p->halves * 32 + slot * 16;
    float dx[LM_DOTS_T];
    int32_t c[2][LM_DOTS_T]; /* of the halves; with one scale c[0] is the whole's */
    for (int t = 0; t < T; t++) {
        int32_t all, first;
        memcpy(&all, wide ? (const void *)(tail + LM_INT_TAIL * (uint32_t)t) : x + 2 * w + t, 4);
        memcpy(&first, wide ? (const void *)(tail + LM_INT_TAIL * (uint32_t)t + 4) : x + 3 * w + t, 4);
        dx[t] = wide ? __builtin_fabsf(x[t]) : x[t];
        c[0][t] = p->halves == 1 ? all : first;
        c[1][t] = all - first;
    }
    __m256i i0[LM_DOTS_T][2], i1[LM_DOTS_T][2];
    block_ints(T, wide, q, x, tail, w, 0, p->halves == 1 ? 8 : 4, c[0], i0);
    if (p->halves == 2) block_ints(T, wide, q, x, tail, w, 4, 4, c[1], i1);
    LM_UNROLL for (int t = 0; t < T; t++) LM_UNROLL for (int h = 0; h < 2; h++) {
        __m256 f = _mm256_mul_ps(_mm256_cvtepi32_ps(i0[t][h]), _mm256_loadu_ps(d + 8 * h));
        if (p->halves == 2) f = _mm256_fmadd_ps(_mm256_cvtepi32_ps(i1[t][h]), _mm256_loadu_ps(d + 32 + 8 * h), f);
        acc[t][h] = _mm256_fmadd_ps(f, _mm256_set1_ps(dx[t]), acc[t][h]);
        if (!p->has_min) continue;
        const float s0 = p->halves == 1 ? x[w + t] : dx[t] * (float)(c[0][t] / -128);
        acc[t][h] = _mm256_fmadd_ps(_mm256_loadu_ps(m + 8 * h), _mm256_set1_ps(s0), acc[t][h]);
        if (p->halves == 2)
            acc[t][h] = _mm256_fmadd_ps(_mm256_loadu_ps(m + 32 + 8 * h), _mm256_set1_ps(dx[t] * (float)(c[1][t] / -128)), acc[t][h]);
    }
}
LM_INLINE void tile_part(int T, bool wide, const lm_int_plane *p, uint32_t slot, const uint8_t *x, uint32_t w, uint32_t t0,
                         const lm_int_segments *g, float *out, size_t ld) {
    const size_t step = (size_t)w * LM_INT_FRONT, tail = (size_t)w * LM_INT_TAIL;
    const uint8_t *tails = x + g->bound[g->n] * step + LM_INT_TAIL * t0;
    __m256 waiting[LM_INT_WAITING][LM_DOTS_T][2], acc[LM_DOTS_T][2];
    LM_UNROLL for (int t = 0; t < T; t++) acc[t][0] = acc[t][1] = _mm256_setzero_ps();
    for (uint32_t s = 0, n = 0;;) {
        for (uint32_t b = g->bound[s]; b < g->bound[s + 1]; b++)
            add_block(T, wide, p, b, slot, (const float *)(const void *)(x + b * step) + t0, tails + b * tail, w, acc);
        for (uint32_t j = g->joins[s]; j > 0; j--, n--)
            LM_UNROLL for (int t = 0; t < T; t++) LM_UNROLL for (int h = 0; h < 2; h++) acc[t][h] =
                _mm256_add_ps(waiting[n - 1][t][h], acc[t][h]);
        if (++s == g->n) break;
        LM_UNROLL for (int t = 0; t < T; t++) LM_UNROLL for (int h = 0; h < 2; h++) {
            waiting[n][t][h] = acc[t][h];
            acc[t][h] = _mm256_setzero_ps();
        }
        n++;
    }
    LM_UNROLL for (int t = 0; t < T; t++) LM_UNROLL for (int h = 0; h < 2; h++)
        _mm256_storeu_ps(out + (t0 + (uint32_t)t) * ld + slot * 16 + 8 * h, acc[t][h]);
}
/* Each kind of weight gets its own loop: halves and minima are constants in it. */
LM_INLINE void tile_kind(int T, bool wide, const lm_int_plane *w, uint32_t slot, const uint8_t *x, uint32_t n_t, uint32_t t0,
                         const lm_int_segments *g, float *out, size_t ld) {
    if (w->halves == 1 && !w->has_min)
        tile_part(T, wide, &(lm_int_plane){w->q, w->scale, w->min, 1, false}, slot, x, n_t, t0, g, out, ld);
    else if (w->halves == 1)
        tile_part(T, wide, &(lm_int_plane){w->q, w->scale, w->min, 1, true}, slot, x, n_t, t0, g, out, ld);
    else if (!w->has_min)
        tile_part(T, wide, &(lm_int_plane){w->q, w->scale, w->min, 2, false}, slot, x, n_t, t0, g, out, ld);
    else
        tile_part(T, wide, &(lm_int_plane){w->q, w->scale, w->min, 2, true}, slot, x, n_t, t0, g, out, ld);
}
#define LM_TILE_PART(T) \
    if (lane == LM_INT_8) \
        tile_kind(T, false, w, slot, x, n_t, t, g, out, ld); \
    else \
        tile_kind(T, true, w, slot, x, n_t, t, g, out, ld);
static void int_tile(lm_int_lane lane, const lm_int_plane *w, const uint8_t *x, uint32_t n_t, const lm_int_segments *g, float *out,
                     size_t ld) {
    for (uint32_t slot = 0; slot < 2; slot++)
        for (uint32_t t = 0; t < n_t; t += LM_DOTS_T) {
            if (n_t - t >= LM_DOTS_T) {
                LM_TILE_PART(LM_DOTS_T)
            }
#if LM_DOTS_T > 2
            else if (n_t - t == 2) {
                LM_TILE_PART(2)
            }
#endif
            else {
                LM_TILE_PART(1)
            }
        }
}
