/* Decoding of packed strips in registers: for each layout a `begin` (what holds for the next STEP·n elements) and a `quad` (the next few weights
 * of 16 rows), from which unpack and gemv are made. Weights come out as the float32 nearest to the exact decoded value: d·q is exact in float32
 * for these types (d has 11 bits, q and a K-quant's scale 13 more at most), and d·q − m is one fused operation. */

#ifndef LM_UNROLL
#define LM_UNROLL _Pragma("GCC unroll 16")
#endif
typedef struct lm_scales {
    vf a, b;              /* scale, minimum */
    const uint8_t *lines; /* of the low bits */
    uint32_t high;        /* bytes from there to the lines of high bits */
    int shift, high_shift;
} lm_scales;

/* ---- per layout: SUB elements between begins, STEP weights per quad ---------------------------------------------------------------*/
LM_INLINE lm_scales begin_f32(const uint8_t *s, uint32_t k) { return (lm_scales){.lines = s + (size_t)k * 64}; }
LM_INLINE void quad_f32(const lm_scales *s, uint32_t j, vf w[4]) { w[0] = v_load((const float *)(const void *)s->lines + 16 * j); }
LM_INLINE lm_scales begin_f16(const uint8_t *s, uint32_t k) { return (lm_scales){.lines = s + (size_t)k * 32}; }
LM_INLINE void quad_f16(const lm_scales *s, uint32_t j, vf w[4]) { w[0] = v_load_f16(s->lines + 32 * j); }
LM_INLINE void quad_bf16(const lm_scales *s, uint32_t j, vf w[4]) { w[0] = v_load_bf16(s->lines + 32 * j); }

/* 16 elements at a time: the low nibbles of a block's lines, then the high ones */
LM_INLINE lm_scales begin_q4_0(const uint8_t *s, uint32_t k) {
    const uint8_t *g = s + (size_t)(k / 64) * 576;
    uint32_t odd = k / 32 & 1;
    return (lm_scales){.a = v_load_f16(g + 32 * odd), .lines = g + 64 + 256 * odd, .shift = k & 16 ? 4 : 0};
}
LM_INLINE void quad_q4_0(const lm_scales *s, uint32_t j, vf w[4]) {
    vi x = i_srl(i_load(s->lines + 64 * j), s->shift);
    LM_UNROLL for (int b = 0; b < 4; b++) w[b] = v_mul(s->a, v_nibble_m8(i_srl(x, 8 * b)));
}
LM_INLINE lm_scales begin_q5_0(const uint8_t *s, uint32_t k) {
    const uint8_t *g = s + (size_t)(k / 64) * 704;
    uint32_t odd = k / 32 & 1;
    return (lm_scales){.a = v_load_f16(g + 32 * odd), .lines = g + 64 + 256 * odd, .high = 512 - 192 * odd};
}
LM_INLINE void quad_q5_0(const lm_scales *s, uint32_t j, vf w[4]) {
    vi x = i_srl(i_load(s->lines + 64 * (j & 3)), j >= 4 ? 4 : 0), h = i_srl(i_load(s->lines + s->high), (int)j);
    LM_UNROLL for (int b = 0; b < 4; b++) {
        vi q = i_or(i_and(i_srl(x, 8 * b), i_set(15)), i_and(i_sll(i_srl(h, 8 * b), 4), i_set(16)));
        w[b] = v_mul(s->a, v_cvt(i_sub(q, i_set(16))));
    }
}
LM_INLINE lm_scales begin_q4_1(const uint8_t *s, uint32_t k) {
    const uint8_t *g = s + (size_t)(k / 64) * 640;
    uint32_t odd = k / 32 & 1;
    return (lm_scales){.a = v_load_f16(g + 32 * odd), .b = v_load_f16(g + 64 + 32 * odd), .lines = g + 128 + 256 * odd, .shift = k & 16 ? 4 : 0};
}
LM_INLINE void quad_q4_1(const lm_scales *s, uint32_t j, vf w[4]) {
    vi x = i_srl(i_load(s->lines + 64 * j), s->shift);
    LM_UNROLL for (int b = 0; b < 4; b++) w[b] = v_fma(s->a, v_nibble(i_srl(x, 8 * b)), s->b);
}
LM_INLINE lm_scales begin_q8_0(const uint8_t *s, uint32_t k) {
    const uint8_t *g = s + (size_t)(k / 64) * 1088;
    uint32_t odd = k / 32 & 1;
    return (lm_scales){.a = v_load_f16(g + 32 * odd), .lines = g + 64 + 512 * odd};
}
LM_INLINE void quad_q8_0(const lm_scales *s, uint32_t j, vf w[4]) {
    vi x = i_load(s->lines + 64 * j);
    LM_UNROLL for (int b = 0; b < 4; b++)
        w[b] = v_mul(s->a, v_cvt(i_sub(i_and(i_srl(x, 8 * b), i_set(255)), i_set(128))));
}
/* Q4_K and Q5_K: sub-block k/32 of a superblock: w = (d·sc)·q − dmin·mn, both products exact */
LM_INLINE lm_scales begin_k45(const uint8_t *g, uint32_t sub) {
    vf d = v_load_f16(g), dmin = v_load_f16(g + 32);
    vf mn = v_mul(dmin, v_cvt(i_load_u8x2(g + 192 + 32 * (sub / 2), sub & 1)));
    return (lm_scales){.a = v_mul(d, v_cvt(i_load_u8(g + 64 + 16 * sub))), .b = v_neg(mn), .lines = g + 320 + 512 * (sub / 2), .shift = sub & 1 ? 4 : 0};
}
LM_INLINE lm_scales begin_q4_k(const uint8_t *s, uint32_t k) { return begin_k45(s + (size_t)(k / 256) * 2368, k / 32 & 7); }
LM_INLINE void quad_q4_k(const lm_scales *s, uint32_t j, vf w[4]) {
    vi x = i_srl(i_load(s->lines + 64 * j), s->shift);
    LM_UNROLL for (int b = 0; b < 4; b++) w[b] = v_fma(s->a, v_nibble(i_srl(x, 8 * b)), s->b);
}
LM_INLINE lm_scales begin_q5_k(const uint8_t *s, uint32_t k) {
    uint32_t sub = k / 32 & 7;
    lm_scales r = begin_k45(s + (size_t)(k / 256) * 2880, sub);
    r.high = 2048 - 512 * (sub / 2), r.high_shift = (int)sub; /* the fifth bits follow the superblock's 2048 nibble bytes */
    return r;
}
LM_INLINE void quad_q5_k(const lm_scales *s, uint32_t j, vf w[4]) {
    vi x = i_srl(i_load(s->lines + 64 * j), s->shift), h = i_srl(i_load(s->lines + s->high + 64 * j), s->high_shift);
    LM_UNROLL for (int b = 0; b < 4; b++) {
        vi q = i_or(i_and(i_srl(x, 8 * b), i_set(15)), i_and(i_sll(i_srl(h, 8 * b), 4), i_set(16)));
        w[b] = v_fma(s->a, v_cvt(q), s->b);
    }
}
/* Q6_K: 16 elements per scale. Half h = k/128; within it, quarter c = k/32 % 4: low nibbles of raw bytes 64h + 32(c&1)…, high nibbles for c ≥ 2;
 * high bits: byte 32h + l of the second part, bits 2c and 2c + 1. */
LM_INLINE lm_scales begin_q6_k(const uint8_t *s, uint32_t k) {
    const uint8_t *g = s + (size_t)(k / 256) * 3392;
    uint32_t in = k % 256, h = in / 128, c = in / 32 % 4, l = in % 32;
    vf sc = v_mul(v_load_f16(g), v_cvt(i_load_s8(g + 64 + 16 * (in / 16))));
    uint32_t low = 320 + 64 * (16 * h + 8 * (c & 1) + l / 4), high = 320 + 64 * (32 + 8 * h + l / 4);
    return (lm_scales){.a = sc, .lines = g + low, .high = high - low, .shift = c >= 2 ? 4 : 0, .high_shift = (int)(2 * c)};
}
LM_INLINE void quad_q6_k(const lm_scales *s, uint32_t j, vf w[4]) {
    vi x = i_srl(i_load(s->lines + 64 * j), s->shift), h = i_srl(i_load(s->lines + s->high + 64 * j), s->high_shift);
    LM_UNROLL for (int b = 0; b < 4; b++) {
        vi q = i_or(i_and(i_srl(x, 8 * b), i_set(15)), i_and(i_sll(i_srl(h, 8 * b), 4), i_set(48)));
        w[b] = v_mul(s->a, v_cvt(i_sub(q, i_set(32))));
    }
}

/* ---- what is made of them -------------------------------------------------------------------------------------------------------*/
/* C strips × T tokens in registers. C, T, SUB and STEP are constants where this is inlined. */
typedef lm_scales (*begin_fn)(const uint8_t *, uint32_t);
typedef void (*quad_fn)(const lm_scales *, uint32_t, vf *);
LM_INLINE void gemv_body(begin_fn begin, quad_fn quad, uint32_t sub, uint32_t step, int C, int T, const uint8_t *strip, size_t strip_bytes,
                         uint32_t k0, uint32_t n, const float *x, bool first, float *total) {
    for (uint32_t k = k0, end; k < k0 + n; first = false) {
        vf acc[4][4];
        LM_UNROLL for (int c = 0; c < C; c++) LM_UNROLL for (int t = 0; t < T; t++) acc[c][t] = v_set(0.0f);
        for (end = k0 + n - k < LM_SUM ? k0 + n : k + LM_SUM; k < end; k += sub) {
            lm_scales s[4];
            LM_UNROLL for (int c = 0; c < C; c++) s[c] = begin(strip + (size_t)c * strip_bytes, k);
            for (uint32_t j = 0; j < sub / step; j++, x += step * (uint32_t)T) {
                LM_UNROLL for (int c = 0; c < C; c++) {
                    vf w[4];
                    quad(&s[c], j, w);
                    LM_UNROLL for (uint32_t b = 0; b < step; b++)
                        LM_UNROLL for (int t = 0; t < T; t++) acc[c][t] = v_fma(w[b], v_set(x[b * (uint32_t)T + (uint32_t)t]), acc[c][t]);
                }
            }
        }
        LM_UNROLL for (int c = 0; c < C; c++) LM_UNROLL for (int t = 0; t < T; t++) {
            float *o = total + (c * (int)LM_GEMV + t) * 16;
            v_store(o, first ? acc[c][t] : v_add(v_load(o), acc[c][t]));
        }
    }
}
/* The decode path; a level without one (LM_NO_GEMV) unpacks and takes its tile. */
#ifndef LM_NO_GEMV
#define LM_GEMV_TYPE(NAME, BEGIN, QUAD, SUB, STEP) \
    static void gemv_##NAME(const uint8_t *strip, size_t strip_bytes, uint32_t n_c, uint32_t k0, uint32_t n, const float *x, uint32_t n_t, bool first, \
                            float *total) { \
        uint32_t c = 0; \
        if (n_t == 1) \
            for (; c + LM_CHAINS <= n_c; c += LM_CHAINS) \
                gemv_body(BEGIN, QUAD, SUB, STEP, LM_CHAINS, 1, strip + c * strip_bytes, strip_bytes, k0, n, x, first, total + c * LM_GEMV * 16); \
        if (n_t == 2 && LM_CHAINS > 2) \
            for (; c + 2 <= n_c; c += 2) \
                gemv_body(BEGIN, QUAD, SUB, STEP, 2, 2, strip + c * strip_bytes, strip_bytes, k0, n, x, first, total + c * LM_GEMV * 16); \
        for (; c < n_c; c++) { \
            const uint8_t *s = strip + c * strip_bytes; \
            float *o = total + c * LM_GEMV * 16; \
            switch (n_t) { \
            case 1: gemv_body(BEGIN, QUAD, SUB, STEP, 1, 1, s, 0, k0, n, x, first, o); break; \
            case 2: gemv_body(BEGIN, QUAD, SUB, STEP, 1, 2, s, 0, k0, n, x, first, o); break; \
            case 3: gemv_body(BEGIN, QUAD, SUB, STEP, 1, 3, s, 0, k0, n, x, first, o); break; \
            default: gemv_body(BEGIN, QUAD, SUB, STEP, 1, 4, s, 0, k0, n, x, first, o); \
            } \
        } \
    }
#else
#define LM_GEMV_TYPE(NAME, BEGIN, QUAD, SUB, STEP)
#endif
#define LM_UNPACK_TYPE(NAME, BEGIN, QUAD, SUB, STEP) \
    static void unpack_##NAME(const lm_dtype *type, const uint8_t *strip, uint32_t k0, uint32_t n, float *dst) { \
        (void)type; \
        for (uint32_t k = k0; k < k0 + n; k += SUB) { \
            lm_scales s = BEGIN(strip, k); \
            for (uint32_t j = 0; j < (SUB) / (STEP); j++, dst += 16 * (STEP)) { \
                vf w[4]; \
                QUAD(&s, j, w); \
                LM_UNROLL for (uint32_t b = 0; b < (STEP); b++) v_store(dst + 16 * b, w[b]); \
            } \
        } \
    }
#define LM_PACKED_TYPE(...) \
    LM_GEMV_TYPE(__VA_ARGS__) \
    LM_UNPACK_TYPE(__VA_ARGS__)
LM_PACKED_TYPE(f32, begin_f32, quad_f32, 1, 1)
LM_PACKED_TYPE(f16, begin_f16, quad_f16, 1, 1)
LM_PACKED_TYPE(bf16, begin_f16, quad_bf16, 1, 1)
LM_PACKED_TYPE(q4_0, begin_q4_0, quad_q4_0, 16, 4)
LM_PACKED_TYPE(q4_1, begin_q4_1, quad_q4_1, 16, 4)
LM_PACKED_TYPE(q8_0, begin_q8_0, quad_q8_0, 32, 4)
LM_PACKED_TYPE(q4_k, begin_q4_k, quad_q4_k, 32, 4)
LM_PACKED_TYPE(q5_k, begin_q5_k, quad_q5_k, 32, 4)
LM_PACKED_TYPE(q6_k, begin_q6_k, quad_q6_k, 16, 4)
LM_PACKED_TYPE(q5_0, begin_q5_0, quad_q5_0, 32, 4)

/* Pairs: n and k0 are whole pairs but at the end of an odd row. */
static void unpack_bf16x2(const lm_dtype *type, const uint8_t *strip, uint32_t k0, uint32_t n, float *dst) {
    (void)type;
    const uint8_t *src = strip + (size_t)k0 * 32;
    for (uint32_t k = 0; k < n; k += 2, src += 64, dst += 32) {
        const vi p = i_load(src);
        v_store(dst, v_float(i_sll(p, 16)));
        if (k + 1 < n) v_store(dst + 16, v_float(i_and(p, i_set((int32_t)0xffff0000u))));
    }
}
/* Any type: 16 rows' blocks, decoded one by one and turned. */
static void unpack_generic(const lm_dtype *type, const uint8_t *strip, uint32_t k0, uint32_t n, float *dst) {
    float block[256];
    const uint8_t *src = strip + (size_t)(k0 / type->block) * 16 * type->bytes;
    for (uint32_t k = 0; k < n; k += type->block, dst += 16 * type->block)
        for (uint32_t r = 0; r < 16; r++, src += type->bytes) {
            lm_dequant_f32(type, src, block, type->block);
            for (uint32_t i = 0; i < type->block; i++) dst[16 * i + r] = block[i];
        }
}
