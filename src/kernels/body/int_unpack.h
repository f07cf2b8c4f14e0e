/* Packed strips to planes of bytes (lane_int.h), the scales and minima as floats. Built on a level's sixteen-lane vectors; a line is 64 bytes,
 * [16 rows][4 k]. What is decoded is u = q + off, 0 and up; a plane holds q + 128, or what the level says:
 *   LM_PLANE_LINE(u, off): the line of a plane;
 *   LM_PLANE_WORD: what four q become by exclusive or, in types that come as q. */
#define LM_BYTES(b) i_set((int32_t)((b)*0x01010101u))
#ifndef LM_PLANE_LINE
#define LM_PLANE_LINE(u, off) ((off) == 128u ? (u) : i_add(u, LM_BYTES(128u - (off))))
#define LM_PLANE_WORD 0x80808080u
#endif

/* Where a block of a strip stands, and its line j (quad j of all 16 rows) as bytes: for what reads strips without a plane (int_gemv.h) */
typedef struct lm_int_place {
    const uint8_t *group, *line, *high; /* scales; low bits; high bits */
    int shift, high_shift, off;         /* of bits; u − q */
    bool has_min;
} lm_int_place;
typedef vi (*int_quad_fn)(const lm_int_place *p, uint32_t j);

/* What a token's high bytes add to its integers: 256 times x in a loud block, x in a quiet one. dx: where the block has the token's */
LM_INLINE vi high_part(vi x, const void *dx) {
    int32_t bits;
    memcpy(&bits, dx, sizeof bits);
    return i_sllv(x, i_and(i_srl(i_set(bits), 28), i_set(8)));
}

LM_INLINE void put_line(const lm_int_plane *o, uint32_t block, uint32_t quad, uint32_t slot, vi u, uint32_t off) {
    i_store(o->q + (size_t)block * 1024 + quad * 128 + slot * 64, LM_PLANE_LINE(u, off));
}
LM_INLINE void put_scale(const lm_int_plane *o, uint32_t block, uint32_t half, uint32_t slot, vf d) {
    v_store(o->scale + ((size_t)block * o->halves + half) * 32 + slot * 16, d);
}
LM_INLINE void put_min(const lm_int_plane *o, uint32_t block, uint32_t slot, vf m) { v_store(o->min + (size_t)block * 32 + slot * 16, m); }
/* Weights come from memory in an order that the hardware does not always foresee (high bits stand apart): block b, of `bytes` bytes, asks
 * for what comes a little later. */
#define LM_INT_AHEAD 7168
LM_INLINE void ask_ahead(const uint8_t *strip, uint32_t b, uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; i += 64) __builtin_prefetch(strip + (size_t)b * bytes + LM_INT_AHEAD + i);
}
LM_INLINE vi low_nibbles(vi x) { return i_and(x, LM_BYTES(15u)); }
LM_INLINE vi high_nibbles(vi x) { return i_and(i_srl(x, 4), LM_BYTES(15u)); }

static void int_unpack_q8_0(const lm_dtype *type, const uint8_t *strip, uint32_t n, uint32_t slot, const lm_int_plane *o) {
    (void)type;
    for (uint32_t b = 0; b < n; b++) {
        ask_ahead(strip, b, 544);
        const uint8_t *g = strip + (size_t)(b / 2) * 1088;
        for (uint32_t j = 0; j < 8; j++) put_line(o, b, j, slot, i_load(g + 64 + 512 * (b & 1) + 64 * j), 128);
        put_scale(o, b, 0, slot, v_load_f16(g + 32 * (b & 1)));
    }
}
static void int_unpack_q4_0(const lm_dtype *type, const uint8_t *strip, uint32_t n, uint32_t slot, const lm_int_plane *o) {
    (void)type;
    for (uint32_t b = 0; b < n; b++) {
        ask_ahead(strip, b, 288);
        const uint8_t *g = strip + (size_t)(b / 2) * 576;
        for (uint32_t j = 0; j < 4; j++) {
            const vi x = i_load(g + 64 + 256 * (b & 1) + 64 * j);
            put_line(o, b, j, slot, low_nibbles(x), 8);
            put_line(o, b, j + 4, slot, high_nibbles(x), 8);
        }
        put_scale(o, b, 0, slot, v_load_f16(g + 32 * (b & 1)));
    }
}
static void int_unpack_q5_0(const lm_dtype *type, const uint8_t *strip, uint32_t n, uint32_t slot, const lm_int_plane *o) {
    (void)type;
    for (uint32_t b = 0; b < n; b++) {
        ask_ahead(strip, b, 352);
        const uint8_t *g = strip + (size_t)(b / 2) * 704;
        const vi fifth = i_load(g + 576 + 64 * (b & 1));
        for (uint32_t j = 0; j < 8; j++) {
            const vi x = i_load(g + 64 + 256 * (b & 1) + 64 * (j & 3)), top = i_sll(i_and(i_srl(fifth, (int)j), LM_BYTES(1u)), 4);
            put_line(o, b, j, slot, i_or(j < 4 ? low_nibbles(x) : high_nibbles(x), top), 16);
        }
        put_scale(o, b, 0, slot, v_load_f16(g + 32 * (b & 1)));
    }
}
static void int_unpack_q4_1(const lm_dtype *type, const uint8_t *strip, uint32_t n, uint32_t slot, const lm_int_plane *o) {
    (void)type;
    for (uint32_t b = 0; b < n; b++) {
        ask_ahead(strip, b, 320);
        const uint8_t *g = strip + (size_t)(b / 2) * 640;
        for (uint32_t j = 0; j < 4; j++) {
            const vi x = i_load(g + 128 + 256 * (b & 1) + 64 * j);
            put_line(o, b, j, slot, low_nibbles(x), 0);
            put_line(o, b, j + 4, slot, high_nibbles(x), 0);
        }
        put_scale(o, b, 0, slot, v_load_f16(g + 32 * (b & 1)));
        put_min(o, b, slot, v_load_f16(g + 64 + 32 * (b & 1)));
    }
}
LM_INLINE void scales_k45(const uint8_t *g, uint32_t b, uint32_t slot, const lm_int_plane *o) {
    const uint32_t sub = b & 7;
    put_scale(o, b, 0, slot, v_mul(v_load_f16(g), v_cvt(i_load_u8(g + 64 + 16 * sub))));
    put_min(o, b, slot, v_neg(v_mul(v_load_f16(g + 32), v_cvt(i_load_u8x2(g + 192 + 32 * (sub / 2), sub & 1)))));
}
static void int_unpack_q4_k(const lm_dtype *type, const uint8_t *strip, uint32_t n, uint32_t slot, const lm_int_plane *o) {
    (void)type;
    for (uint32_t b = 0; b < n; b++) {
        ask_ahead(strip, b, 296);
        const uint8_t *g = strip + (size_t)(b / 8) * 2368, *line = g + 320 + 512 * (b / 2 & 3);
        for (uint32_t j = 0; j < 8; j++) {
            const vi x = i_load(line + 64 * j);
            put_line(o, b, j, slot, b & 1 ? high_nibbles(x) : low_nibbles(x), 0);
        }
        scales_k45(g, b, slot, o);
    }
}
static void int_unpack_q5_k(const lm_dtype *type, const uint8_t *strip, uint32_t n, uint32_t slot, const lm_int_plane *o) {
    (void)type;
    for (uint32_t b = 0; b < n; b++) {
        ask_ahead(strip, b, 360);
        const uint8_t *g = strip + (size_t)(b / 8) * 2880, *line = g + 320 + 512 * (b / 2 & 3);
        for (uint32_t j = 0; j < 8; j++) {
            const vi x = i_load(line + 64 * j), fifth = i_sll(i_and(i_srl(i_load(g + 2368 + 64 * j), (int)(b & 7)), LM_BYTES(1u)), 4);
            put_line(o, b, j, slot, i_or(b & 1 ? high_nibbles(x) : low_nibbles(x), fifth), 0);
        }
        scales_k45(g, b, slot, o);
    }
}
static void int_unpack_q6_k(const lm_dtype *type, const uint8_t *strip, uint32_t n, uint32_t slot, const lm_int_plane *o) {
    (void)type;
    for (uint32_t b = 0; b < n; b++) {
        ask_ahead(strip, b, 424);
        const uint32_t h = b / 4 & 1, c = b & 3;
        const uint8_t *g = strip + (size_t)(b / 8) * 3392, *line = g + 320 + 64 * (16 * h + 8 * (c & 1)),
                      *high = g + 320 + 64 * (32 + 8 * h);
        for (uint32_t j = 0; j < 8; j++) {
            const vi x = i_load(line + 64 * j), top = i_sll(i_and(i_srl(i_load(high + 64 * j), (int)(2 * c)), LM_BYTES(3u)), 4);
            put_line(o, b, j, slot, i_or(c >= 2 ? high_nibbles(x) : low_nibbles(x), top), 32);
        }
        for (uint32_t half = 0; half < 2; half++)
            put_scale(o, b, half, slot, v_mul(v_load_f16(g), v_cvt(i_load_s8(g + 64 + 16 * (2 * (b & 7) + half)))));
    }
}
/* Any type that says itself in integers: 16 rows' blocks, one by one. */
static void int_unpack_generic(const lm_dtype *type, const uint8_t *strip, uint32_t n, uint32_t slot, const lm_int_plane *o) {
    int8_t q[256];
    float d[16], m[16];
    const uint32_t per = type->block / 32;
    for (uint32_t b0 = 0; b0 < n; b0 += per)
        for (uint32_t r = 0; r < 16; r++, strip += type->bytes) {
            type->ints(strip, q, d, m);
            for (uint32_t i = 0; i < type->block; i += 4) {
                uint32_t word;
                memcpy(&word, q + i, 4);
                word ^= LM_PLANE_WORD;
                memcpy(o->q + (size_t)(b0 + i / 32) * 1024 + i / 4 % 8 * 128 + slot * 64 + 4 * r, &word, 4);
            }
            for (uint32_t g = 0; g < per * o->halves; g++) {
                o->scale[((size_t)b0 * o->halves + g) * 32 + slot * 16 + r] = d[g];
                if (o->has_min) o->min[((size_t)b0 * o->halves + g) * 32 + slot * 16 + r] = m[g];
            }
        }
}
#define LM_INT_UNPACK \
    { \
        int_unpack_generic, NULL, NULL, NULL, int_unpack_q4_0, int_unpack_q4_1, int_unpack_q8_0, int_unpack_q4_k, int_unpack_q5_k, \
            int_unpack_q6_k, int_unpack_q5_0 \
    }
