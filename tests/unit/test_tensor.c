/* tensor/: shapes and rows. The storage type here is the test's own: pairs of bytes with a step. */
#include "check.h"

#include "tensor/tensor.h"

static void pair_decode(const uint8_t *src, double *dst, size_t n_blocks) {
    for (size_t i = 0; i < n_blocks; i++, src += 3)
        for (int k = 0; k < 2; k++) dst[2 * i + (size_t)k] = (src[1 + k] - 128) * (double)src[0];
}
static const lm_dtype pair = {.name = "PAIR", .gguf_id = LM_NO_ID, .block = 2, .bytes = 3, .decode = pair_decode};
static const lm_dtype single = {.name = "SINGLE", .gguf_id = LM_NO_ID, .block = 1, .bytes = 3, .decode = pair_decode};

#define D(...) ((const uint64_t[]){__VA_ARGS__})

static void counts(void **state) {
    (void)state;
    uint64_t n = 77;
    assert_true(lm_shape_count(0, NULL, &n) && n == 1);
    assert_true(lm_shape_count(3, D(2, 3, 4), &n) && n == 24);
    assert_true(lm_shape_count(2, D(1ull << 31, 1ull << 32), &n) && n == 1ull << 63);
    n = 77;
    assert_false(lm_shape_count(2, D(1ull << 32, 1ull << 32), &n));
    assert_false(lm_shape_count(5, D(1ull << 13, 1ull << 13, 1ull << 13, 1ull << 13, 1ull << 13), &n));
    assert_false(lm_shape_count(2, D(3, 0), &n));
    assert_false(lm_shape_count(2, D(0, 3), &n));
    assert_false(lm_shape_count(3, D(1ull << 32, 1ull << 32, 0), &n));
    assert_false(lm_shape_count(LM_MAX_RANK + 1, D(1, 1, 1, 1, 1, 1), &n));
    assert_int_equal(n, 77);
}

static void bytes(void **state) {
    (void)state;
    uint64_t n = 77;
    assert_true(lm_shape_bytes(&pair, 2, D(5, 8), &n) && n == 60);
    assert_true(lm_shape_bytes(&single, 0, NULL, &n) && n == 3);
    n = 77;
    assert_false(lm_shape_bytes(&pair, 0, NULL, &n));    /* one element is half a block */
    assert_false(lm_shape_bytes(&pair, 2, D(8, 5), &n)); /* whole in total, but its rows are not */
    assert_false(lm_shape_bytes(&single, 1, D(1ull << 63), &n));
    assert_false(lm_shape_bytes(&single, 2, D(1ull << 63, 2), &n));
    assert_int_equal(n, 77);
}

static void text(void **state) {
    (void)state;
    char buf[128];
    assert_string_equal(lm_shape_text(2, D(320, 96), buf, sizeof buf), "[320, 96]");
    assert_string_equal(lm_shape_text(0, NULL, buf, sizeof buf), "[]");
    assert_string_equal(lm_shape_text(1, D(UINT64_MAX), buf, sizeof buf), "[18446744073709551615]");
    for (size_t n = 1; n < 12; n++) { /* cut, never overrun */
        memset(buf, '#', sizeof buf);
        lm_shape_text(2, D(320, 96), buf, n);
        assert_int_equal(strlen(buf), n <= 9 ? n - 1 : 9);
        assert_memory_equal(buf, "[320, 96]", strlen(buf));
        for (size_t i = n > 10 ? 10 : n; i < sizeof buf; i++) assert_int_equal(buf[i], '#');
    }
    buf[0] = '#';
    lm_shape_text(1, D(1), buf, 0);
    assert_int_equal(buf[0], '#');
}

static void rows(void **state) {
    (void)state;
    uint8_t data[1 + 3 * 2 * 2 * 3];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(40 * i + 7);
    lm_tensor t = {.name = "t", .type = &pair, .rank = 3, .dim = {3, 2, 4}, .data = data + 1, .bytes = sizeof data - 1};
    assert_int_equal(lm_tensor_rows(&t), 6);
    assert_int_equal(lm_tensor_cols(&t), 4);
    double whole[24];
    pair_decode(t.data, whole, 12);
    for (uint64_t r = 0; r < 6; r++) {
        double d[5] = {0, 0, 0, 0, 99};
        float f[5] = {0, 0, 0, 0, 99};
        lm_tensor_row_f64(&t, r, d);
        lm_tensor_row_f32(&t, r, f);
        for (int i = 0; i < 4; i++) assert_true(d[i] == whole[4 * r + (uint64_t)i] && f[i] == (float)d[i]);
        assert_true(d[4] == 99 && f[4] == 99);
    }
    t.rank = 1;
    t.dim[0] = 24;
    assert_true(lm_tensor_rows(&t) == 1 && lm_tensor_cols(&t) == 24);
    t.rank = 0;
    assert_true(lm_tensor_rows(&t) == 1 && lm_tensor_cols(&t) == 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(counts), cmocka_unit_test(bytes), cmocka_unit_test(text), cmocka_unit_test(rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
