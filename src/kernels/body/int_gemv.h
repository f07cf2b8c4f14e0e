/* One packed strip by a tile of quantized tokens, decoded in registers. The including file gives
 *   i_dp(acc, u, x): acc[r] + Σ u[r][i]·x[i] over four bytes, u unsigned, x signed and the same for all 16 rows;
 *   LM_DP_WIDE: whether u may pass 63.
 * A type is a `place` (where block b's lines stand), a `quad` (line j as unsigned bytes) and its scales. The 128 (or 8, or 32) that an
 * unsigned q is too large by is taken off through the tile's −128·Σv, which starts the accumulators. */
typedef struct lm_int_place {
    const uint8_t *group, *line, *high; /* scales; low bits; high bits */
    int shift, high_shift;
} lm_int_place;
typedef lm_int_place (*int_place_fn)(const uint8_t *strip, uint32_t b);
typedef vi (*int_quad_fn)(const lm_int_place *p, uint32_t j);
typedef vf (*int_scale_fn)(const lm_int_place *p, uint32_t b, uint32_t half);

LM_INLINE lm_int_place place_q8_0(const uint8_t *s, uint32_t b) {
    const uint8_t *g = s + (size_t)(b / 2) * 1088;
    return (lm_int_place){.group = g + 32 * (b & 1), .line = g + 64 + 512 * (b & 1)};
}
LM_INLINE vi quad_q8(const lm_int_place *p, uint32_t j) { return i_load(p->line + 64 * j); }
LM_INLINE lm_int_place place_q4_0(const uint8_t *s, uint32_t b) {
    const uint8_t *g = s + (size_t)(b / 2) * 576;
    return (lm_int_place){.group = g + 32 * (b & 1), .line = g + 64 + 256 * (b & 1)};
}
LM_INLINE lm_int_place place_q5_0(const uint8_t *s, uint32_t b) {
    const uint8_t *g = s + (size_t)(b / 2) * 704;
    return (lm_int_place){.group = g + 32 * (b & 1), .line = g + 64 + 256 * (b & 1), .high = g + 576 + 64 * (b & 1)};
}
LM_INLINE lm_int_place place_q4_1(const uint8_t *s, uint32_t b) {
    const uint8_t *g = s + (size_t)(b / 2) * 640;
    return (lm_int_place){.group = g + 32 * (b & 1), .line = g + 128 + 256 * (b & 1)};
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
    return (lm_int_place){.group = g, .line = g + 320 + 512 * (b / 2 & 3), .shift = b & 1 ? 4 : 0};
}
LM_INLINE vi quad_q4_k(const lm_int_place *p, uint32_t j) { return low_nibbles(i_srl(i_load(p->line + 64 * j), p->shift)); }
LM_INLINE lm_int_place place_q5_k(const uint8_t *s, uint32_t b) {
    const uint8_t *g = s + (size_t)(b / 8) * 2880;
    return (lm_int_place){
        .group = g, .line = g + 320 + 512 * (b / 2 & 3), .high = g + 2368, .shift = b & 1 ? 4 : 0, .high_shift = (int)(b & 7)};
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
                          .high_shift = (int)(2 * c)};
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

/* f[t] = float(I) over quads [j0, j1); x is the block's part of the tile, tail that of its tails. Each line is decoded
 * once for all tokens and both bytes of i16. */
LM_INLINE void gemv_ints(int_quad_fn quad, const lm_int_place *p, int T, int P, uint32_t j0, uint32_t j1, const int32_t c[6],
                         const uint8_t *x, const uint8_t *tail, vf f[6]) {
    const uint8_t *v = x + 16 * T;
    vi lo[6], hi[6];
    LM_UNROLL for (int t = 0; t < T; t++) lo[t] = i_set(c[t]), hi[t] = i_set(0);
    LM_UNROLL for (uint32_t j = j0; j < j1; j++) {
        const vi u = quad(p, j);
        LM_UNROLL for (int t = 0; t < T; t++) {
            if (P == 2) hi[t] = i_dp(hi[t], u, word_at(v, j * (uint32_t)T + (uint32_t)t));
            lo[t] = i_dp(lo[t], u, P == 2 ? word_at(tail + LM_INT_TAIL * t, 2 + j) : word_at(v, j * (uint32_t)T + (uint32_t)t));
        }
    }
    LM_UNROLL for (int t = 0; t < T; t++) f[t] = v_cvt(P == 2 ? i_add(lo[t], high_part(hi[t], x + 4 * t)) : lo[t]);
}
/* −off·Σv from −128·Σv */
LM_INLINE int32_t times_off(int32_t sum, int off) { return off == 128 ? sum : off == 0 ? 0 : sum / 128 * off; }
/* off: −off·Σv is what the unsigned quads need taken off; min NULL: the type has none. H scales and `bytes` bytes a block. */
LM_INLINE void gemv_strip(int_place_fn place, int_quad_fn quad, int_scale_fn scale, int_scale_fn min, int off, uint32_t H, uint32_t bytes,
                          int T, int P, const uint8_t *strip, const uint8_t *x, const lm_int_segments *g, float *out, size_t ld) {
    const size_t step = (size_t)T * LM_INT_FRONT;
    const uint8_t *tails = x + g->bound[g->n] * step;
    vf waiting[LM_INT_WAITING][6], acc[6];
    LM_UNROLL for (int t = 0; t < T; t++) acc[t] = v_set(0.0f);
    for (uint32_t s = 0, n = 0;;) {
        for (uint32_t b = g->bound[s]; b < g->bound[s + 1]; b++) {
            const lm_int_place p = place(strip, b);
            /* one token by Q8_0: lines in order, little work between them; the hardware foresees them better than it can be told */
            if (T > 1 || P > 1 || quad != quad_q8) ask_ahead(strip, b, bytes);
            const uint8_t *xb = x + b * step, *tail = tails + (size_t)b * LM_INT_TAIL * (size_t)T;
            int32_t c[2][6];
            vf f[6];
            LM_UNROLL for (uint32_t t = 0; t < (uint32_t)T; t++) {
                const uint8_t *sums = P == 2 ? tail + LM_INT_TAIL * t : xb + 4 * (2 * (uint32_t)T + t);
                const int32_t all = times_off(word_at(sums, 0), off);
                c[0][t] = H == 1 ? all : times_off(word_at(sums, P == 2 ? 1 : (uint32_t)T), off);
                c[1][t] = all - c[0][t];
            }
            gemv_ints(quad, &p, T, P, 0, H == 1 ? 8 : 4, c[0], xb, tail, f);
            const vf d = scale(&p, b, 0);
            LM_UNROLL for (int t = 0; t < T; t++) f[t] = v_mul(f[t], d);
            if (H == 2) {
                vf h[6];
                gemv_ints(quad, &p, T, P, 4, 8, c[1], xb, tail, h);
                const vf e = scale(&p, b, 1);
                LM_UNROLL for (int t = 0; t < T; t++) f[t] = v_fma(h[t], e, f[t]);
            }
            LM_UNROLL for (int t = 0; t < T; t++) {
                const float dx = float_at(xb, (uint32_t)t);
                acc[t] = v_fma(f[t], v_set(P == 2 ? __builtin_fabsf(dx) : dx), acc[t]);
            }
            if (!min) continue;
            const vf m = min(&p, b, 0);
            LM_UNROLL for (int t = 0; t < T; t++) acc[t] = v_fma(m, v_set(float_at(xb, (uint32_t)(T + t))), acc[t]);
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
#define LM_INT_GEMV_8(T, PLACE, QUAD, SCALE, MIN, OFF, H, BYTES) \
    case T: \
        gemv_strip(PLACE, QUAD, SCALE, MIN, OFF, H, BYTES, T, 1, strip, x, g, out, ld); \
        break;
#define LM_INT_GEMV_16(T, PLACE, QUAD, SCALE, MIN, OFF, H, BYTES) \
    case 8 + T: \
        gemv_strip(PLACE, QUAD, SCALE, MIN, OFF, H, BYTES, T, 2, strip, x, g, out, ld); \
        break;
#define LM_INT_GEMV_TYPE(NAME, PLACE, QUAD, SCALE, MIN, OFF, H, BYTES) \
    static void int_gemv_##NAME(lm_int_lane lane, const uint8_t *strip, const uint8_t *x, uint32_t n_t, const lm_int_segments *g, \
                                float *out, size_t ld) { \
        switch (lane == LM_INT_8 ? n_t : 8 + n_t) { \
            LM_INT_GEMV_8(1, PLACE, QUAD, SCALE, MIN, OFF, H, BYTES) \
            LM_INT_GEMV_8(2, PLACE, QUAD, SCALE, MIN, OFF, H, BYTES) \
            LM_INT_GEMV_8(3, PLACE, QUAD, SCALE, MIN, OFF, H, BYTES) \
            LM_INT_GEMV_8(4, PLACE, QUAD, SCALE, MIN, OFF, H, BYTES) \
            LM_INT_GEMV_8(5, PLACE, QUAD, SCALE, MIN, OFF, H, BYTES) \
            LM_INT_GEMV_8(6, PLACE, QUAD, SCALE, MIN, OFF, H, BYTES) \
            LM_INT_GEMV_16(1, PLACE, QUAD, SCALE, MIN, OFF, H, BYTES) \
            LM_INT_GEMV_16(2, PLACE, QUAD, SCALE, MIN, OFF, H, BYTES) \
            LM_INT_GEMV_16(3, PLACE, QUAD, SCALE, MIN, OFF, H, BYTES) \
            LM_INT_GEMV_16(4, PLACE, QUAD, SCALE, MIN, OFF, H, BYTES) \
            LM_INT_GEMV_16(5, PLACE, QUAD, SCALE, MIN, OFF, H, BYTES) \
            LM_INT_GEMV_16(6, PLACE, QUAD, SCALE, MIN, OFF, H, BYTES) \
        default: break; \
        } \
    }
LM_INT_GEMV_TYPE(q4_0, place_q4_0, quad_q4, half_scale, NULL, 8, 1, 288)
LM_INT_GEMV_TYPE(q5_0, place_q5_0, quad_q5_0, half_scale, NULL, 16, 1, 352)
LM_INT_GEMV_TYPE(q4_1, place_q4_1, quad_q4, half_scale, min_q4_1, 0, 1, 320)
LM_INT_GEMV_TYPE(q4_k, place_q4_k, quad_q4_k, scale_k45, min_k45, 0, 1, 296)
LM_INT_GEMV_TYPE(q5_k, place_q5_k, quad_q5_k, scale_k45, min_k45, 0, 1, 360)
LM_INT_GEMV_TYPE(q6_k, place_q6_k, quad_q6_k, scale_q6_k, NULL, 32, 2, 424)
#if LM_DP_WIDE
LM_INT_GEMV_TYPE(q8_0, place_q8_0, quad_q8, half_scale, NULL, 128, 1, 544)
#define LM_INT_GEMV_Q8 int_gemv_q8_0
#else
#define LM_INT_GEMV_Q8 NULL
#endif
#define LM_INT_GEMVS \
    { NULL, NULL, NULL, NULL, int_gemv_q4_0, int_gemv_q4_1, LM_INT_GEMV_Q8, int_gemv_q4_k, int_gemv_q5_k, int_gemv_q6_k, int_gemv_q5_0 }
