/* The product: every storage type, every level, against the double reference and against the contract written out plainly. */
#include "kern.h"

/* Rows of random bytes whose values are finite and moderate. */
static uint8_t *random_rows(const lm_dtype *t, uint32_t rows, uint32_t K, float *w) {
    const size_t blocks = K / t->block;
    uint8_t *raw = malloc(rows * blocks * t->bytes);
    for (size_t b = 0; b < rows * blocks; b++) {
        uint8_t *p = raw + b * t->bytes;
        float *v = w + b * t->block;
        bool good = false;
        for (int tries = 0; !good; tries++) {
            if (tries == 20000) fail_msg("%s: no moderate block found", t->name);
            for (uint32_t i = 0; i < t->bytes; i++) p[i] = (uint8_t)kern_below(256);
            const float f = kern_normal();
            const double d = f / 3.0;
            if (strcmp(t->name, "F32") == 0) memcpy(p, &f, 4);
            if (strcmp(t->name, "F64") == 0) memcpy(p, &d, 8);
            if (t->name[0] == 'I' && t->block == 1) memset(p + 1, 0, t->bytes - 1); /* a small integer */
            lm_dequant_f32(t, p, v, t->block);
            good = true;
            for (uint32_t i = 0; i < t->block; i++) good = good && fabsf(v[i]) < 1e4f;
        }
    }
    return raw;
}

/* kernels.h's words, one output at a time. */
static float plain_segment(const float *w, const float *x, uint32_t n) {
    float total = 0;
    for (uint32_t k0 = 0; k0 < n; k0 += LM_SUM) {
        float blk = 0;
        for (uint32_t k = k0; k < n && k < k0 + LM_SUM; k++) blk = fmaf(w[k], x[k], blk);
        total = k0 == 0 ? blk : total + blk;
    }
    return total;
}

static void check(const lm_dtype *t, uint32_t rows, uint32_t K, uint32_t T, bool split, bool with_bias) {
    float *w = malloc(sizeof(float) * rows * K);
    uint8_t *raw = random_rows(t, rows, K, w);
    lm_packed_matrix m;
    lm_error err;
    if (lm_packed_create(t, 1, rows, K, NULL, &m, &err) != LM_OK) fail_msg("%s", err.message);
    const size_t row_bytes = (size_t)(K / t->block) * t->bytes;
    for (uint32_t s = 0; s < m.strips; s++) {
        const uint8_t *row[16];
        for (uint32_t r = 0; r < 16; r++) row[r] = s * 16 + r < rows ? raw + (s * 16 + r) * row_bytes : NULL;
        lm_packed_strip(&m, 0, s, row);
    }
    uint8_t *guarded = kern_guard(m.bytes), *data = m.data;
    memcpy(guarded, data, m.bytes);
    m.data = guarded;

    const size_t xn = (size_t)T * K, yn = (size_t)T * rows;
    float *x = malloc(sizeof(float) * xn), *xp = kern_guard(sizeof(float) * xn), *bias = kern_guard(sizeof(float) * rows);
    const bool positive = kern_below(2);
    const uint32_t r0 = kern_below(rows);
    for (size_t i = 0; i < xn; i++) {
        x[i] = kern_normal();
        if (positive) x[i] = copysignf(x[i], w[(size_t)r0 * K + i % K]); /* row r0's terms are all positive */
    }
    for (uint32_t i = 0; i < rows; i++) bias[i] = kern_normal();
    for (uint32_t i = 0; i < lm_x_tiles(T); i++) lm_x_pack(x, K, NULL, T, i, K, xp);

    const lm_kernels *level[3];
    float *y = kern_guard(sizeof(float) * yn), *first = malloc(sizeof(float) * yn);
    for (uint32_t l = 0, n = kern_levels(level); l < n; l++) {
        memset(y, 0xff, sizeof(float) * yn);
        kern_run_product(&(lm_product){level[l], &m, 0, split, with_bias ? bias : NULL, xp, T, y, rows});
        if (l == 0) memcpy(first, y, sizeof(float) * yn);
        char what[120];
        snprintf(what, sizeof what, "%s %s rows %u K %u T %u split %d", t->name, level[l]->level, rows, K, T, split);
        ASSERT_SAME(first, y, yn, what);
    }
    for (size_t i = 0; i < yn; i++) {
        const float *wr = w + (i % rows) * K, *xr = x + i / rows * K, b = with_bias ? bias[i % rows] : 0;
        float want = kern_plain_product(plain_segment, wr, xr, K, t->block == 1 ? 16 : t->block, split);
        if (with_bias) want += b;
        if (memcmp(&want, &y[i], 4) != 0) fail_msg("%s rows %u K %u T %u split %d: %zu is %a, contract %a", t->name, rows, K, T, split, i, (double)y[i], (double)want);
        double exact = (double)b, size = fabs((double)b);
        for (uint32_t k = 0; k < K; k++) exact += (double)wr[k] * xr[k], size += fabs((double)wr[k] * xr[k]);
        double bound = 2 * sqrt((double)K + 1) * 0x1p-24 * size + 1e-37;
        if (!(fabs(y[i] - exact) <= bound)) fail_msg("%s K %u: %g is %g from %g, bound %g", t->name, K, (double)y[i], fabs(y[i] - exact), exact, bound);
    }
    kern_guard_free(guarded, m.bytes);
    m.data = data;
    lm_packed_free(&m);
    kern_guard_free(y, sizeof(float) * yn), kern_guard_free(xp, sizeof(float) * xn), kern_guard_free(bias, sizeof(float) * rows);
    free(first), free(x), free(raw), free(w);
}

static const lm_dtype *named(const char *n) {
    const lm_dtype *t = lm_dtype_by_name(n);
    assert_non_null(t);
    return t;
}
static void every_type(void **state) {
    (void)state;
    for (uint32_t i = 0; lm_dtypes[i]; i++) {
        const lm_dtype *t = lm_dtypes[i];
        if (256 % t->block != 0) continue;
        const uint32_t step = t->block == 1 ? 1 : t->block;
        for (int n = 0; n < 6; n++) {
            uint32_t K = step * (1 + kern_below(1100 / step)), rows = 1 + kern_below(70), T = n < 4 ? 1 + (uint32_t)n : 5 + kern_below(20);
            check(t, rows, K, T, n & 1, kern_below(2));
        }
        check(t, 33, step * (1100 / step), 2, true, false);
    }
}
static void token_counts(void **state) {
    (void)state;
    static const uint32_t T[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 32, 44, 45, 255, 256, 257};
    static const char *const type[] = {"F32", "BF16", "F16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "Q3_K", "Q5_0"};
    for (size_t i = 0; i < sizeof T / sizeof *T; i++)
        for (size_t j = 0; j < sizeof type / sizeof *type; j++) {
            const lm_dtype *t = named(type[j]);
            uint32_t K = t->block == 1 ? 1 + kern_below(520) : t->block * (1 + kern_below(520 / t->block));
            check(t, T[i] > 40 ? 17 : 1 + kern_below(100), K, T[i], kern_below(2), kern_below(2));
        }
}
static void every_length(void **state) {
    (void)state;
    for (uint32_t K = 1; K <= 1100; K += K < 70 ? 1 : 37) check(named(K & 1 ? "F32" : "BF16"), 17, K, 1 + K % 3, K % 5 == 0 || K < 40, false);
    for (uint32_t K = 32; K <= 1100; K += 32) check(named(K & 32 ? "Q4_0" : "Q8_0"), 19, K, 1 + K / 32 % 6, true, false);
    for (uint32_t K = 2048; K <= 5120; K += 512) check(named(K & 512 ? "Q8_0" : "F32"), 35, K, 1 + K / 512 % 3 * 12, K & 1024, false); /* several passes */
}
/* Row tables (experts): a packed row is the row asked for. */
static void packs_rows_by_index(void **state) {
    (void)state;
    float x[5 * 7], xp[3 * 7];
    for (int i = 0; i < 35; i++) x[i] = (float)i;
    const uint32_t row[3] = {4, 0, 2};
    lm_x_pack(x, 7, row, 3, 0, 7, xp);
    for (uint32_t k = 0; k < 7; k++)
        for (uint32_t t = 0; t < 3; t++) assert_true(xp[k * 3 + t] == x[row[t] * 7 + k]);
}
static void refuses(void **state) {
    (void)state;
    lm_packed_matrix m;
    lm_error err;
    assert_int_equal(lm_packed_create(named("Q4_K"), 1, 4, 100, NULL, &m, &err), LM_RANGE);
    assert_int_equal(lm_packed_create(named("F32"), 1, 0, 100, NULL, &m, &err), LM_RANGE);
    assert_int_equal(lm_packed_create(named("F32"), UINT32_MAX, UINT32_MAX - 16, UINT32_MAX - 256, NULL, &m, &err), LM_RANGE);
    const lm_kernels *k;
    assert_int_equal(lm_kernels_pick("avx9", &k, &err), LM_UNSUPPORTED);
    assert_non_null(strstr(err.message, "avx9"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type),   cmocka_unit_test(token_counts), cmocka_unit_test(every_length),
        cmocka_unit_test(packs_rows_by_index), cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, kern_print_seed, NULL);
}
