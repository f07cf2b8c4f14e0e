/* One packed strip by a tile of quantized tokens, decoded in registers. The including file gives
 *   i_dp(acc, u, x): acc[r] + Σ u[r][i]·x[i] over four bytes, u unsigned, x signed and the same for all 16 rows;
 *   LM_DP_WIDE: whether u may pass 63;
 * or, with LM_INT_SUMS, what is built on i_dp here (block_rows, strip_ints) in a way of its own.
 * A type is a `place` (where block b's lines stand), a `quad` (line j as unsigned bytes, `most` at most; 128: of 8 bits), and its scales. The `off`
 * (128, 8, 32 or another) that an unsigned q is too large by is taken off through the tile's −128·Σv. */
#ifndef LM_INT_SUMS
#define LM_INT_SUMS 0
#endif
typedef lm_int_place (*int_place_fn)(const uint8_t *strip, uint32_t b);
typedef vf (*int_scale_fn)(const lm_int_place *p, uint32_t b, uint32_t half);

LM_INLINE lm_int_place place_q8_0(const uint8_t *s, uint32_t b) {
    const uint8_t *g = s + (size_t)(b / 2) * 1088;
    return (lm_int_place){.group = g + 32 * (b & 1), .line = g + 64 + 512 * (b & 1), .off = LM_INT_SUMS ? 0 : 128};
}
LM_INLINE vi quad_q8(const lm_int_place *p, uint32_t j) { return i_load(p->line + 64 * j); }
#if LM_INT_SUMS
LM_INLINE vi quad_s8(const lm_int_place *p, uint32_t j) { return signed_bytes(i_load(p->line + 64 * j)); }
#endif
LM_INLINE lm_int_place place_q4_0(const uint8_t *s, uint32_t b) {
    const uint8_t *g = s + (size_t)(b / 2) * 576;
    return (lm_int_place){.group = g + 32 * (b & 1), .line = g + 64 + 256 * (b & 1), .off = 8};
}
LM_INLINE lm_int_place place_q5_0(const uint8_t *s, uint32_t b) {
    const uint8_t *g = s + (size_t)(b / 2) * 704;
    return (lm_int_place){.group = g + 32 * (b & 1), .line = g + 64 + 256 * (b & 1), .high = g + 576 + 64 * (b & 1), .off = 16};
}
LM_INLINE lm_int_place place_q4_1(const uint8_t *s, uint32_t b) {
    const uint8_t *g = s + (size_t)(b / 2) * 640;
    return (lm_int_place){.group = g + 32 * (b & 1), .line = g + 128 + 256 * (b & 1), .has_min = true};
}
LM_INLINE vi quad_q4(const lm_int_place *p, uint32_t j) {
    const vi x = i_load(p->line + 64 * (j & 3));
    return j < 4 ? low_nibbles(x) : high_nibbles(x);
}
LM_INLINE vi quad_q5_0(const lm_int_place *p, uint32_t j) {
    return i_or(quad_q4(p, j), i_sll(i_and(i_srl(i_load(p->high), (int)j), LM_BYTES(1u)), 4));
}
LM_INLINE vf half_scale(const lm_int_place *p, uint32_t b, uint32_t half) {
    (void)b, (void)half;
    return v_load_f16(p->group);
}
LM_INLINE vf min_q4_1(const lm_int_place *p, uint32_t b, uint32_t half) {
    (void)b, (void)half;
    return v_load_f16(p->group + 64);
}
LM_INLINE lm_int_place place_q4_k(const uint8_t *s, uint32_t b) {
    const uint8_t *g = s + (size_t)(b / 8) * 2368;
    return (lm_int_place){.group = g, .line = g + 320 + 512 * (b / 2 & 3), .shift = b & 1 ? 4 : 0, .has_min = true};
}
LM_INLINE vi quad_q4_k(const lm_int_place *p, uint32_t j) { return low_nibbles(i_srl(i_load(p->line + 64 * j), p->shift)); }
LM_INLINE lm_int_place place_q5_k(const uint8_t *s, uint32_t b) {
    const uint8_t *g = s + (size_t)(b / 8) * 2880;
    return (lm_int_place){
        .group = g, .line = g + 320 + 512 * (b / 2 & 3), .high = g + 2368, .shift = b & 1 ? 4 : 0, .high_shift = (int)(b & 7), .has_min = true};
}
LM_INLINE vi quad_q5_k(const lm_int_place *p, uint32_t j) {
    const vi high = i_sll(i_and(i_srl(i_load(p->high + 64 * j), p->high_shift), LM_BYTES(1u)), 4);
    return i_or(low_nibbles(i_srl(i_load(p->line + 64 * j), p->shift)), high);
}
LM_INLINE vf scale_k45(const lm_int_place *p, uint32_t b, uint32_t half) {
    (void)half;
    return v_mul(v_load_f16(p->group), v_cvt(i_load_u8(p->group + 64 + 16 * (b & 7))));
}
LM_INLINE vf min_k45(const lm_int_place *p, uint32_t b, uint32_t half) {
    (void)half;
    return v_neg(v_mul(v_load_f16(p->group + 32), v_cvt(i_load_u8x2(p->group + 192 + 32 * (b / 2 & 3), b & 1))));
}
LM_INLINE lm_int_place place_q6_k(const uint8_t *s, uint32_t b) {
    const uint32_t h = b / 4 & 1, c = b & 3;
    const uint8_t *g = s + (size_t)(b / 8) * 3392;
    return (lm_int_place){.group = g,
                          .line = g + 320 + 64 * (16 * h + 8 * (c & 1)),
                          .high = g + 320 + 64 * (32 + 8 * h),
                          .shift = c >= 2 ? 4 : 0,
                          .high_shift = (int)(2 * c),
                          .off = 32};
}
LM_INLINE vi quad_q6_k(const lm_int_place *p, uint32_t j) {
    const vi high = i_sll(i_and(i_srl(i_load(p->high + 64 * j), p->high_shift), LM_BYTES(3u)), 4);
    return i_or(low_nibbles(i_srl(i_load(p->line + 64 * j), p->shift)), high);
}
LM_INLINE vf scale_q6_k(const lm_int_place *p, uint32_t b, uint32_t half) {
    return v_mul(v_load_f16(p->group), v_cvt(i_load_s8(p->group + 64 + 16 * (2 * (b & 7) + half))));
}

LM_INLINE int32_t word_at(const uint8_t *p, uint32_t i) {
    int32_t v;
    memcpy(&v, p + 4 * i, 4);
    return v;
}
LM_INLINE float float_at(const uint8_t *p, uint32_t i) { return lm_f32_from_bits((uint32_t)word_at(p, i)); }

#if !LM_INT_SUMS
/* A block's part of the tile and that of its tails */
typedef struct block_rows {
    const uint8_t *x, *tail;
} block_rows;
LM_INLINE void take_rows(int most, uint32_t W, uint32_t t0, int T, int P, const uint8_t *x, const uint8_t *tail, block_rows *r) {
    (void)most, (void)W, (void)t0, (void)T, (void)P; /* all of the tile */
    *r = (block_rows){x, tail};
}
/* f[t] = float(I) over quads [j0, j1), c[t] what their offset takes off. Each line is decoded once for all tokens and both bytes of i16. */
LM_INLINE void strip_ints(int_quad_fn quad, int most, const lm_int_place *p, int T, int P, uint32_t j0, uint32_t j1, const int32_t c[6],
                          const block_rows *r, vf f[6]) {
    (void)most;
    const uint8_t *v = r->x + 16 * T, *tail = r->tail;
    vi lo[6], hi[6];
    LM_UNROLL for (int t = 0; t < T; t++) lo[t] = i_set(c[t]), hi[t] = i_set(0);
    LM_UNROLL for (uint32_t j = j0; j < j1; j++) {
        const vi u = quad(p, j);
        LM_UNROLL for (int t = 0; t < T; t++) {
            if (P == 2) hi[t] = i_dp(hi[t], u, word_at(v, j * (uint32_t)T + (uint32_t)t));
            lo[t] = i_dp(lo[t], u, P == 2 ? word_at(tail + LM_INT_TAIL * t, 2 + j) : word_at(v, j * (uint32_t)T + (uint32_t)t));
        }
    }
    LM_UNROLL for (int t = 0; t < T; t++) f[t] = v_cvt(P == 2 ? i_add(lo[t], high_part(hi[t], r->x + 4 * t)) : lo[t]);
}
#endif
/* −off·Σv from −128·Σv */
LM_INLINE int32_t times_off(int32_t sum, int off) { return off == 128 ? sum : off == 0 ? 0 : sum / 128 * off; }
/* acc[t] += one block by tokens [t0, t0 + T) of the tile's W, whose front is xb. P 1: by the fronts' bytes, 2: by both. */
LM_INLINE void strip_block(int_quad_fn quad, int_scale_fn scale, int_scale_fn min, int most, uint32_t H, uint32_t W, uint32_t t0, int T, int P,
                           const lm_int_place *p, uint32_t b, const uint8_t *xb, const uint8_t *tail, vf acc[6]) {
    int32_t all[6], first[6], c[2][6]; /* −128·Σv of all and of the first half; −off·Σv of the halves, or of all */
    float dx[6];
    vf f[6];
    block_rows rows;
    if (LM_INT_SUMS && T > 2) __asm__ volatile("" : "+m"(*(vf(*)[6])acc)); /* wait in memory: the integers need all registers */
    take_rows(most, W, t0, T, P, xb, tail, &rows);
    LM_UNROLL for (int t = 0; t < T; t++) {
        const uint32_t i = t0 + (uint32_t)t;
        all[t] = P == 2 ? word_at(tail + LM_INT_TAIL * i, 0) : word_at(xb, 2 * W + i);
        first[t] = P == 2 ? word_at(tail + LM_INT_TAIL * i, 1) : word_at(xb, 3 * W + i);
        c[0][t] = times_off(H == 1 ? all[t] : first[t], p->off);
        c[1][t] = times_off(all[t] - first[t], p->off);
        dx[t] = float_at(xb, i);
        if (P == 2) dx[t] = __builtin_fabsf(dx[t]);
    }
    strip_ints(quad, most, p, T, P, 0, H == 1 ? 8 : 4, c[0], &rows, f);
    const vf d = scale(p, b, 0);
    LM_UNROLL for (int t = 0; t < T; t++) f[t] = v_mul(f[t], d);
    if (H == 2) {
        vf h[6];
        strip_ints(quad, most, p, T, P, 4, 8, c[1], &rows, h);
        const vf e = scale(p, b, 1);
        LM_UNROLL for (int t = 0; t < T; t++) f[t] = v_fma(h[t], e, f[t]);
    }
    LM_UNROLL for (int t = 0; t < T; t++) acc[t] = v_fma(f[t], v_set(dx[t]), acc[t]);
    if (!p->has_min) return;
    LM_UNROLL for (uint32_t h = 0; h < H; h++) {
        const vf m = min(p, b, h);
        LM_UNROLL for (int t = 0; t < T; t++) {
            const float sum = H == 1 ? float_at(xb, W + t0 + (uint32_t)t) : dx[t] * (float)((h ? all[t] - first[t] : first[t]) / -128);
            acc[t] = v_fma(m, v_set(sum), acc[t]);
        }
    }
}
/* A block of mixed that has low bytes: its tokens one by one */
#define LM_INT_LOUD_FN(NAME, PLACE, QUAD, SCALE, MIN, MOST, H) \
    static __attribute__((noinline)) void NAME(uint32_t W, const lm_int_place *p, uint32_t b, const uint8_t *xb, const uint8_t *tail, vf acc[6]) { \
        for (uint32_t t = 0; t < W; t++) { \
            if (word_at(xb, t) < 0) \
                strip_block(QUAD, SCALE, MIN, MOST, H, W, t, 1, 2, p, b, xb, tail, acc + t); \
            else \
                strip_block(QUAD, SCALE, MIN, MOST, H, W, t, 1, 1, p, b, xb, tail, acc + t); \
        } \
    }
typedef void (*int_loud_fn)(uint32_t W, const lm_int_place *p, uint32_t b, const uint8_t *xb, const uint8_t *tail, vf acc[6]);
LM_INLINE bool any_loud(int T, const uint8_t *xb) {
    int32_t signs = 0;
    LM_UNROLL for (int t = 0; t < T; t++) signs |= word_at(xb, (uint32_t)t);
    return signs < 0;
}
/* H scales and `bytes` bytes a block (0: nothing to ask ahead for). loud: of mixed, whose other blocks go as i8's; NULL: there are none. */
LM_INLINE void gemv_strip(int_place_fn place, int_quad_fn quad, int_scale_fn scale, int_scale_fn min, int most, uint32_t H, uint32_t bytes,
                          int T, int P, int_loud_fn loud, const uint8_t *strip, const uint8_t *x, const lm_int_segments *g, float *out,
                          size_t ld) {
    const size_t step = (size_t)T * LM_INT_FRONT;
    const uint8_t *tails = x + g->bound[g->n] * step;
    vf waiting[LM_INT_WAITING][6], acc[6];
    LM_UNROLL for (int t = 0; t < T; t++) acc[t] = v_set(0.0f);
    for (uint32_t s = 0, n = 0;;) {
        for (uint32_t b = g->bound[s]; b < g->bound[s + 1]; b++) {
            const lm_int_place p = place(strip, b);
            /* one token by Q8_0: lines in order, little work between them; hardware of the AVX-512 kind foresees them better than it can be told */
            if (bytes && (LM_INT_SUMS || T > 1 || P > 1 || most < 128)) ask_ahead(strip, b, bytes);
            const uint8_t *xb = x + b * step, *tail = tails + (size_t)b * LM_INT_TAIL * (size_t)T;
            if (P == 1 && loud && any_loud(T, xb)) {
                vf sum[6]; /* acc itself stays in registers otherwise */
                LM_UNROLL for (int t = 0; t < T; t++) sum[t] = acc[t];
                loud((uint32_t)T, &p, b, xb, tail, sum);
                LM_UNROLL for (int t = 0; t < T; t++) acc[t] = sum[t];
            } else
                strip_block(quad, scale, min, most, H, (uint32_t)T, 0, T, P, &p, b, xb, tail, acc);
        }
        for (uint32_t j = g->joins[s]; j > 0; j--, n--)
            LM_UNROLL for (int t = 0; t < T; t++) acc[t] = v_add(waiting[n - 1][t], acc[t]);
        if (++s == g->n) break;
        LM_UNROLL for (int t = 0; t < T; t++) {
            waiting[n][t] = acc[t];
            acc[t] = v_set(0.0f);
        }
        n++;
    }
    LM_UNROLL for (int t = 0; t < T; t++) v_store(out + (size_t)t * ld, acc[t]);
}
/* A function of a type by lanes and the widths of their tiles. Mixed goes as i16 where LM_INT_SUMS is 0. */
#define LM_INT_CASE(AT, T, P, LOUD, ...) \
    case AT + T: \
        gemv_strip(__VA_ARGS__, T, P, LOUD, strip, x, g, out, ld); \
        break;
#define LM_INT_CASES_4(AT, P, LOUD, ...) \
    LM_INT_CASE(AT, 1, P, LOUD, __VA_ARGS__) LM_INT_CASE(AT, 2, P, LOUD, __VA_ARGS__) LM_INT_CASE(AT, 3, P, LOUD, __VA_ARGS__) \
    LM_INT_CASE(AT, 4, P, LOUD, __VA_ARGS__)
#define LM_INT_CASES_6(AT, P, LOUD, ...) \
    LM_INT_CASES_4(AT, P, LOUD, __VA_ARGS__) LM_INT_CASE(AT, 5, P, LOUD, __VA_ARGS__) LM_INT_CASE(AT, 6, P, LOUD, __VA_ARGS__)
#if LM_INT_SUMS
#define LM_INT_STRIP_FN(NAME, PLACE, QUAD, SCALE, MIN, MOST, H, BYTES) \
    LM_INT_LOUD_FN(NAME##_loud, PLACE, QUAD, SCALE, MIN, MOST, H) \
    static void NAME(lm_int_lane lane, const uint8_t *strip, const uint8_t *x, uint32_t n_t, const lm_int_segments *g, float *out, size_t ld) { \
        const int_loud_fn loud = lane == LM_INT_MIXED ? NAME##_loud : NULL; \
        switch ((lane == LM_INT_16 ? 8 : 0) + n_t) { \
            LM_INT_CASES_6(0, 1, loud, PLACE, QUAD, SCALE, MIN, MOST, H, BYTES) \
            LM_INT_CASES_4(8, 2, NULL, PLACE, QUAD, SCALE, MIN, MOST, H, BYTES) \
        default: break; \
        } \
    }
#else
#define LM_INT_STRIP_FN(NAME, PLACE, QUAD, SCALE, MIN, MOST, H, BYTES) \
    static void NAME(lm_int_lane lane, const uint8_t *strip, const uint8_t *x, uint32_t n_t, const lm_int_segments *g, float *out, size_t ld) { \
        switch ((lane == LM_INT_8 ? 0 : 8) + n_t) { \
            LM_INT_CASES_6(0, 1, NULL, PLACE, QUAD, SCALE, MIN, MOST, H, BYTES) \
            LM_INT_CASES_6(8, 2, NULL, PLACE, QUAD, SCALE, MIN, MOST, H, BYTES) \
        default: break; \
        } \
    }
#endif
LM_INT_STRIP_FN(int_gemv_q4_0, place_q4_0, quad_q4, half_scale, NULL, 15, 1, 288)
LM_INT_STRIP_FN(int_gemv_q5_0, place_q5_0, quad_q5_0, half_scale, NULL, 31, 1, 352)
LM_INT_STRIP_FN(int_gemv_q4_1, place_q4_1, quad_q4, half_scale, min_q4_1, 15, 1, 320)
LM_INT_STRIP_FN(int_gemv_q4_k, place_q4_k, quad_q4_k, scale_k45, min_k45, 15, 1, 296)
LM_INT_STRIP_FN(int_gemv_q5_k, place_q5_k, quad_q5_k, scale_k45, min_k45, 31, 1, 360)
LM_INT_STRIP_FN(int_gemv_q6_k, place_q6_k, quad_q6_k, scale_q6_k, NULL, 63, 2, 424)
#if LM_INT_SUMS
LM_INT_STRIP_FN(int_gemv_q8_0, place_q8_0, quad_s8, half_scale, NULL, 128, 1, 544)
#elif LM_DP_WIDE
LM_INT_STRIP_FN(int_gemv_q8_0, place_q8_0, quad_q8, half_scale, NULL, 128, 1, 544)
#endif
#if LM_INT_SUMS || LM_DP_WIDE
#define LM_INT_GEMV_Q8 int_gemv_q8_0
#else
#define LM_INT_GEMV_Q8 NULL
#endif
#define LM_INT_GEMVS \
    { NULL, NULL, NULL, NULL, int_gemv_q4_0, int_gemv_q4_1, LM_INT_GEMV_Q8, int_gemv_q4_k, int_gemv_q5_k, int_gemv_q6_k, int_gemv_q5_0 }
