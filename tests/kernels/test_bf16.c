/* Products in bfloat16: every level against plain C, the contract written out, and double precision; rounding; packing. */
#include "kern.h"
#include "kernels/lane_bf16.h"

static const lm_dtype *named(const char *n) {
    const lm_dtype *t = lm_dtype_by_name(n);
    assert_non_null(t);
    return t;
}
/* One call of a level's tile whose strips are n_t tokens wide and go to `total`. */
static void tile(const lm_bf16_kernels *k, const void *w, size_t strip_bytes, uint32_t n_c, uint32_t pairs, const uint32_t *x, uint32_t n_t,
                 float *total) {
    lm_bf16_tile a = {.w = w, .strip_bytes = strip_bytes, .x = x, .n_c = n_c, .pairs = pairs, .n_t = n_t, .total = total, .ld = n_t, .ahead = w};
    a.first = true;
    k->tile(&a);
}
static uint32_t bits(void) { return (uint32_t)(kern_uniform() * 0x1p32); }
static float real(uint16_t h) { return lm_bf16_to_f32(h); }

/* Numbers whose sums and products lie around the least normal one, where flushing decides; sometimes a special one. */
static uint16_t edge_number(void) {
    static const float special[] = {0.0f, -0.0f, 1.0f, 0x1p-126f, -0x1p-126f, 0x1p-63f, 0x1.fep127f};
    if (kern_below(8) == 0) return lm_f32_to_bf16(special[kern_below(7)]);
    return (uint16_t)(kern_below(2) << 15 | (54 + kern_below(20)) << 7 | (kern_below(3) ? 0 : kern_below(128)));
}
static void levels_agree_at_the_edges(void **state) {
    (void)state;
    uint16_t w[4][8 * 32], x[8 * LM_TILE * 2];
    uint32_t words[8 * LM_TILE];
    static float want[4 * LM_TILE * 16], got[4 * LM_TILE * 16];
    uint64_t flushed = 0, all = 0;
    for (uint32_t i = 0; i < 3000; i++) {
        const uint32_t pairs = 1 + kern_below(8), T = 1 + kern_below(LM_TILE), C = 1 + kern_below(4);
        for (uint32_t j = 0; j < 4 * 8 * 32; j++) w[j / 256][j % 256] = edge_number();
        for (uint32_t j = 0; j < 8 * LM_TILE * 2; j++) x[j] = edge_number();
        memcpy(words, x, sizeof x);
        tile(&lm_bf16_c, w, sizeof w[0], C, pairs, words, T, want);
        for (uint32_t j = 0; j < C * T * 16; j++) flushed += want[j] == 0, all++;
        for (uint32_t l = 1; lm_bf16_nth(l); l++) {
            const lm_bf16_kernels *k = lm_bf16_nth(l);
            tile(k, w, sizeof w[0], C, pairs, words, T, got);
            for (uint32_t j = 0; j < C * T * 16; j++)
                if (memcmp(&want[j], &got[j], 4) != 0 && !(isnan(want[j]) && isnan(got[j])))
                    fail_msg("%s: %u pairs, %u strips, %u tokens: element %u is %a, plain C's %a", k->level, pairs, C, T, j, (double)got[j], (double)want[j]);
        }
    }
    assert_true(flushed > 100 && flushed < all);
}
/* One result on either side of the border, by hand: 2^-126 − 2^-151 goes up, anything less is flushed. */
static void the_border(void **state) {
    (void)state;
    for (uint32_t l = 0; lm_bf16_nth(l); l++)
        for (int s = 0; s < 2; s++) {
            const float sign = s ? -1.0f : 1.0f;
            uint16_t w[2 * 32] = {0};
            float out[16];
            const float terms[] = {0x1p-91f, 0x1p-90f, 0x1.02p-91f, 0x1p-92f}; /* times 2^-60 */
            const bool kept[] = {true, false, false, true};
            for (int i = 0; i < 4; i++) {
                w[1] = lm_f32_to_bf16(sign * 0x1p-63f), w[33] = lm_f32_to_bf16(-sign * terms[i]);
                const uint32_t x[2] = {(uint32_t)lm_f32_to_bf16(0x1p-63f) << 16, (uint32_t)lm_f32_to_bf16(0x1p-60f) << 16};
                tile(lm_bf16_nth(l), w, 0, 1, 2, x, 1, out);
                const float want = kept[i] ? sign * 0x1p-126f : sign * 0.0f;
                /* an even zero·zero step follows, which makes +0 of -0 */
                if (!(out[0] == want)) fail_msg("%s: term %d: %a, wanted %a", lm_bf16_nth(l)->level, i, (double)out[0], (double)want);
            }
        }
}
static void rounding(void **state) {
    (void)state;
    float x[103];
    uint16_t got[103];
    for (int i = 0; i < 2000; i++) {
        for (int j = 0; j < 103; j++) x[j] = lm_f32_from_bits(kern_below(4) ? bits() : bits() & 0x80ffffffu);
        for (uint32_t l = 0; lm_bf16_nth(l); l++) {
            lm_bf16_nth(l)->round(x, 103, got);
            for (int j = 0; j < 103; j++) {
                const uint32_t u = lm_f32_bits(x[j]);
                const uint16_t want = (u & 0x7f800000u) == 0 ? (uint16_t)(u >> 16 & 0x8000u) : lm_f32_to_bf16(x[j]);
                if (want != got[j]) fail_msg("%s: %a to %04x, wanted %04x", lm_bf16_nth(l)->level, (double)x[j], got[j], want);
            }
        }
    }
}

/* lane_bf16.h's words for moderate numbers, one output at a time. */
static float plain_segment(const float *w, const float *x, uint32_t n) {
    float total = 0;
    for (uint32_t k0 = 0; k0 < n; k0 += 256) {
        float blk = 0;
        for (uint32_t k = k0; k < n && k < k0 + 256; k += 2) {
            blk = k + 1 < n ? fmaf(w[k + 1], x[k + 1], blk) : blk + 0.0f;
            blk = fmaf(w[k], x[k], blk);
        }
        total = k0 == 0 ? blk : total + blk;
    }
    return total;
}

/* Weights of type t; w and x become what the lane rounds them to. */
static void check(const char *type, uint32_t rows, uint32_t K, uint32_t T, bool split, bool with_bias) {
    const lm_dtype *t = named(type);
    float *w = malloc(sizeof(float) * rows * K), *x = malloc(sizeof(float) * T * K);
    uint8_t *raw = malloc((size_t)rows * K * t->bytes);
    for (size_t i = 0; i < (size_t)rows * K; i++) {
        const float v = kern_normal();
        const uint16_t h = lm_f32_to_f16(v), b = lm_f32_to_bf16(v);
        memcpy(raw + i * t->bytes, t->bytes == 4 ? (const void *)&v : type[0] == 'F' ? (const void *)&h : (const void *)&b, t->bytes);
        lm_dequant_f32(t, raw + i * t->bytes, &w[i], 1);
        w[i] = real(lm_f32_to_bf16(w[i]));
    }
    lm_packed_matrix m;
    lm_error err;
    if (lm_packed_create_bf16(t, 1, rows, K, NULL, &m, &err) != LM_OK) fail_msg("%s", err.message);
    for (uint32_t s = 0; s < m.strips; s++) {
        const uint8_t *row[16];
        for (uint32_t r = 0; r < 16; r++) row[r] = s * 16 + r < rows ? raw + (size_t)(s * 16 + r) * K * t->bytes : NULL;
        lm_packed_strip_bf16(&m, t, 0, s, row);
    }
    uint8_t *guarded = kern_guard(m.bytes), *data = m.data;
    memcpy(guarded, data, m.bytes);
    m.data = guarded;
    const bool positive = kern_below(2);
    for (size_t i = 0; i < (size_t)T * K; i++) {
        x[i] = kern_normal();
        if (positive) x[i] = copysignf(x[i], w[i % K]);
    }
    const size_t words = (size_t)T * ((K + 1) / 2), yn = (size_t)T * rows;
    uint32_t *xp = kern_guard(words * 4);
    float *bias = kern_guard(sizeof(float) * rows), *y = kern_guard(sizeof(float) * yn), unpacked[300 * 16];
    for (uint32_t i = 0; i < rows; i++) bias[i] = kern_normal();
    for (uint32_t l = 0; lm_bf16_nth(l); l++) {
        const lm_bf16_kernels *k = lm_bf16_nth(l);
        for (uint32_t i = 0; i < lm_x_tiles(T); i++) lm_bf16_pack(k, x, K, NULL, T, i, K, xp);
        memset(y, 0xff, sizeof(float) * yn);
        kern_run_product(&(lm_product){&lm_kernels_c, &m, 0, split, with_bias ? bias : NULL, (const float *)(const void *)xp, T, y, rows, k});
        for (size_t i = 0; i < yn; i++) {
            float xr[5000];
            const float *wr = w + (i % rows) * K, b = with_bias ? bias[i % rows] : 0;
            double exact = (double)b, size = fabs((double)b);
            for (uint32_t j = 0; j < K; j++) {
                xr[j] = real(lm_f32_to_bf16(x[i / rows * K + j]));
                exact += (double)wr[j] * xr[j], size += fabs((double)wr[j] * xr[j]);
            }
            const float want = kern_plain_product(plain_segment, wr, xr, K, 16, split) + b;
            if (memcmp(&want, &y[i], 4) != 0 && !(want == 0 && y[i] == 0))
                fail_msg("%s %s rows %u K %u T %u split %d: %zu is %a, contract %a", type, k->level, rows, K, T, split, i, (double)y[i], (double)want);
            const double bound = 2 * sqrt((double)K + 1) * 0x1p-24 * size + 1e-37;
            if (!(fabs(y[i] - exact) <= bound)) fail_msg("%s K %u: %g is %g from %g, bound %g", type, K, (double)y[i], fabs(y[i] - exact), exact, bound);
        }
    }
    const lm_kernels *level[3];
    for (uint32_t l = 0, n = kern_levels(level), k = K < 256 ? K : 256; l < n; l++) { /* and back to float */
        level[l]->unpack[m.pack](m.type, m.data, 0, k, unpacked);
        for (uint32_t j = 0; j < k; j++) assert_true(unpacked[j * 16] == w[j]);
    }
    kern_guard_free(guarded, m.bytes);
    m.data = data;
    lm_packed_free(&m);
    kern_guard_free(y, sizeof(float) * yn), kern_guard_free(xp, words * 4), kern_guard_free(bias, sizeof(float) * rows);
    free(x), free(raw), free(w);
}
static void products(void **state) {
    (void)state;
    static const char *const type[] = {"BF16", "F16", "F32"};
    static const uint32_t T[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 17, 24, 44, 45, 193};
    for (size_t i = 0; i < sizeof T / sizeof *T; i++)
        for (int j = 0; j < 3; j++) check(type[j], T[i] > 40 ? 17 : 1 + kern_below(100), 1 + kern_below(600), T[i], kern_below(2), kern_below(2));
    for (uint32_t K = 1; K <= 1100; K += K < 40 ? 1 : 53) check("BF16", 17, K, 1 + K % 3, K % 5 == 0 || K < 40, false);
    /* several passes, segments that end inside of one or go on in the next, tiles that ask ahead */
    for (uint32_t K = 2040; K <= 5000; K += 370)
        for (int split = 0; split < 2; split++) check("BF16", 16 + K % 50, K, 1 + K % 7 * (1 + K % 17), split, split);
    check("BF16", 100, 700, 110, true, true); /* four strips at a time, then three */
    check("BF16", 5, 4900, 500, true, false); /* and more rows than a task takes */
}
static lm_packed_matrix packed(uint32_t rows, uint32_t K) {
    const lm_dtype *t = named("BF16");
    lm_packed_matrix m;
    assert_int_equal(lm_packed_create_bf16(t, 1, rows, K, NULL, &m, NULL), LM_OK);
    uint16_t *raw = malloc(sizeof(uint16_t) * rows * K);
    for (size_t i = 0; i < (size_t)rows * K; i++) raw[i] = lm_f32_to_bf16(kern_normal());
    for (uint32_t s = 0; s < m.strips; s++) {
        const uint8_t *row[16];
        for (uint32_t r = 0; r < 16; r++) row[r] = s * 16 + r < rows ? (const uint8_t *)(raw + (size_t)(s * 16 + r) * K) : NULL;
        lm_packed_strip_bf16(&m, t, 0, s, row);
    }
    free(raw);
    return m;
}
/* A gate equals its parts, whole rows of it and the next product's input; so does a product that several threads share. */
static void gate(uint32_t rows, uint32_t K, uint32_t T, bool with_bias) {
    lm_packed_matrix m[2] = {packed(rows, K), packed(rows, K)};
    const size_t words = (size_t)T * ((K + 1) / 2), yn = (size_t)T * rows, fed = (size_t)T * ((rows + 1) / 2);
    float *x = malloc(sizeof(float) * T * K), *part[2], *want = malloc(sizeof(float) * yn), *y = kern_guard(sizeof(float) * yn);
    float bias[2][300];
    uint32_t *xp = kern_guard(words * 4), *xq = kern_guard(fed * 4), *want_xq = malloc(fed * 4);
    for (size_t i = 0; i < (size_t)T * K; i++) x[i] = kern_normal();
    for (uint32_t i = 0; i < rows; i++) bias[0][i] = kern_normal(), bias[1][i] = kern_normal();
    for (uint32_t l = 0; lm_bf16_nth(l); l++) {
        const lm_bf16_kernels *k = lm_bf16_nth(l);
        for (uint32_t i = 0; i < lm_x_tiles(T); i++) lm_bf16_pack(k, x, K, NULL, T, i, K, xp);
        lm_product p[2];
        for (int i = 0; i < 2; i++) {
            part[i] = malloc(sizeof(float) * yn);
            p[i] = (lm_product){&lm_kernels_c, &m[i], 0, false, with_bias ? bias[i] : NULL, (const float *)(const void *)xp, T, part[i], rows, k};
            kern_run_product(&p[i]);
        }
        lm_kernels_c.gated(LM_KACT_SILU, want, part[0], part[1], 0, 0, (uint32_t)yn);
        p[1].threads = 8, p[1].y = y, memset(y, 0xff, sizeof(float) * yn);
        kern_run_product(&p[1]);
        assert_memory_equal(y, part[1], sizeof(float) * yn);
        lm_gate g = {&lm_kernels_c, &m[1], p[1].bias, LM_KACT_SILU, 0, 0, NULL};
        p[0].gate = &g, p[0].y = y;
        for (p[0].threads = 0; p[0].threads < 9; p[0].threads += 4) {
            memset(y, 0xff, sizeof(float) * yn);
            kern_run_product(&p[0]);
            if (memcmp(y, want, sizeof(float) * yn) != 0) fail_msg("%s: a gate of %u rows, K %u, T %u differs from its parts", k->level, rows, K, T);
        }
        for (uint32_t i = 0; i < lm_x_tiles(T); i++) lm_bf16_pack(k, want, rows, NULL, T, i, rows, want_xq);
        g.xq = xq, p[0].y = NULL, memset(xq, 0xff, fed * 4);
        if (rows % 32 == 0) kern_run_product(&p[0]);
        if (rows % 32 == 0 && memcmp(xq, want_xq, fed * 4) != 0) fail_msg("%s: what a gate of %u rows feeds, K %u, T %u", k->level, rows, K, T);
        free(part[0]), free(part[1]);
    }
    kern_guard_free(y, sizeof(float) * yn), kern_guard_free(xp, words * 4), kern_guard_free(xq, fed * 4);
    free(x), free(want), free(want_xq), lm_packed_free(&m[0]), lm_packed_free(&m[1]);
}
static void gates(void **state) {
    (void)state;
    for (uint32_t T = 13; T < 30; T += 3) gate(32 + 32 * kern_below(4), 1 + kern_below(500), T, T & 1);
    for (uint32_t rows = 1; rows < 100; rows += 13) gate(rows, 1 + kern_below(500), 13 + kern_below(90), rows & 1);
    gate(96, 4500, 101, true); /* several passes, tiles that ask ahead */
    gate(64, 300, 530, false); /* and more than a task takes */
}
static void subnormals_are_zero(void **state) {
    (void)state;
    const uint16_t b[4] = {0x0001, 0x807f, 0x0080, 0x7fc0};
    const uint32_t f[4] = {0x007fffffu, 0x80000001u, 0x00800000u, 0xff800000u};
    const uint16_t want[2][4] = {{0x0000, 0x8000, 0x0080, 0x7fc0}, {0x0000, 0x8000, 0x0080, 0xff80}};
    const uint8_t *src[2] = {(const uint8_t *)b, (const uint8_t *)f};
    for (int i = 0; i < 2; i++) {
        const lm_dtype *t = named(i ? "F32" : "BF16");
        const uint8_t *row[16] = {src[i]};
        lm_packed_matrix m;
        assert_int_equal(lm_packed_create_bf16(t, 1, 1, 4, NULL, &m, NULL), LM_OK);
        lm_packed_strip_bf16(&m, t, 0, 0, row);
        assert_memory_equal(m.data, &want[i][0], 4);
        assert_memory_equal(m.data + 64, &want[i][2], 4);
        lm_packed_free(&m);
    }
}
static void damaged(const lm_bf16_tile *a) {
    assert_true(a->first && !a->joins && !a->y);
    for (uint32_t i = 0; i < a->n_c * a->n_t * 16; i++) { /* fused steps, but nothing flushed */
        const uint32_t c = i / 16 / a->n_t, n = i / 16 % a->n_t;
        float blk = 0;
        for (uint32_t j = 0; j < a->pairs; j++) {
            uint16_t pair[2], xj[2];
            memcpy(pair, a->w + c * a->strip_bytes + (j * 16 + i % 16) * 4, 4), memcpy(xj, &a->x[j * a->n_t + n], 4);
            blk = fmaf(real(pair[0]), real(xj[0]), fmaf(real(pair[1]), real(xj[1]), blk));
        }
        a->total[(c * a->ld + n) * 16 + i % 16] = blk;
    }
}
static void picks_and_refuses(void **state) {
    (void)state;
    const lm_kernels *level[3];
    const char *passed_over;
    for (uint32_t l = 0, n = kern_levels(level); l < n; l++) {
        const lm_bf16_kernels *k = lm_bf16_pick(level[l], &passed_over);
        printf("level %s: bf16 by %s\n", level[l]->level, k->level);
        assert_null(passed_over);
        assert_true(strcmp(level[l]->level, "c") != 0 || k == &lm_bf16_c);
        assert_true(lm_bf16_agrees(k));
    }
    lm_bf16_kernels bad = lm_bf16_c;
    bad.tile = damaged;
    assert_false(lm_bf16_agrees(&bad));
    lm_packed_matrix m;
    lm_error err;
    assert_int_equal(lm_packed_create_bf16(named("Q4_K"), 1, 16, 256, NULL, &m, &err), LM_UNSUPPORTED);
    assert_non_null(strstr(err.message, "Q4_K"));
    assert_int_equal(lm_packed_create_bf16(named("F32"), 1, 0, 256, NULL, &m, &err), LM_RANGE);
}
int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(levels_agree_at_the_edges), cmocka_unit_test(the_border), cmocka_unit_test(rounding),
                                       cmocka_unit_test(products), cmocka_unit_test(gates), cmocka_unit_test(subnormals_are_zero), cmocka_unit_test(picks_and_refuses)};
    return cmocka_run_group_tests(tests, kern_print_seed, NULL) != 0;
}
