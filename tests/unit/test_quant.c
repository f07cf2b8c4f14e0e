/* Storage types: goldens from the gguf package (tests/data/quant), exactness, fast paths, encoders, lookups. */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/rng.h"
#include "base/smallfloat.h"
#include "quant/dtype.h"

#define DIR "tests/data/quant/"
enum { MAX_N = 8 * 256 }; /* the largest record */

static uint8_t *data;
static size_t data_size;

static int load(void **state) {
    (void)state;
    FILE *f = fopen(DIR "goldens.bin", "rb");
    if (!f) return -1;
    data = malloc(1 << 20);
    data_size = data ? fread(data, 1, 1 << 20, f) : 0;
    fclose(f);
    return data_size ? 0 : -1;
}
static int unload(void **state) {
    (void)state;
    free(data);
    return 0;
}
static const uint8_t *at(size_t off, size_t n) {
    assert_true(off <= data_size && n <= data_size - off);
    return data + off;
}

/* Equal bits, or both NaN: a NaN's payload is nobody's promise. */
static void same_f32(const char *name, const char *what, const float *want, const float *got, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (lm_f32_bits(want[i]) != lm_f32_bits(got[i]) && !(isnan(want[i]) && isnan(got[i])))
            fail_msg("%s, %s, element %zu: want %a, got %a", name, what, i, want[i], got[i]);
}

static void check_hash(const char *name, const double *v, size_t n, const char *want) {
    lm_sha256 s;
    uint8_t digest[32];
    char hex[65];
    lm_sha256_init(&s);
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = UINT64_C(0x7ff8) << 48;
        if (!isnan(v[i])) memcpy(&bits, v + i, 8);
        lm_sha256_update(&s, &bits, 8);
    }
    lm_sha256_final(&s, digest);
    lm_sha256_hex(digest, hex);
    if (strcmp(hex, want) != 0) fail_msg("%s: the exact values hash to %s, want %s", name, hex, want);
}

static void check_decode(const lm_dtype *t, size_t blocks, const uint8_t *raw, const float *want, const char *hash) {
    static double d[MAX_N + 1];
    static float f[MAX_N + 1];
    size_t n = blocks * t->block;
    assert_true(n <= MAX_N);
    lm_dequant_f64(t, raw, d, n);
    check_hash(t->name, d, n, hash);
    for (size_t i = 0; i < n; i++) f[i] = (float)d[i];
    same_f32(t->name, "decode rounded", want, f, n);

    /* every number of blocks, every alignment, and nothing written past the end; the source is exactly as long as it must be */
    for (size_t k = 0; k <= blocks; k += t->block == 1 ? 37 : 1) {
        size_t shift = k % 8, m = k * t->block;
        uint8_t *copy = malloc(shift + k * t->bytes ? shift + k * t->bytes : 1), *src = copy + shift;
        assert_non_null(copy);
        memcpy(src, raw, k * t->bytes);
        f[m] = 12345;
        d[m] = 54321;
        lm_dequant_f32(t, src, f, m);
        lm_dequant_f64(t, src, d, m);
        same_f32(t->name, "dequant_f32", want, f, m);
        assert_true(f[m] == 12345 && d[m] == 54321);
        free(copy);
    }
}

static void test_goldens(void **state) {
    (void)state;
    FILE *f = fopen(DIR "goldens.txt", "r");
    assert_non_null(f);
    char line[256], name[16], id[16], hash[65];
    unsigned block, bytes;
    size_t blocks, raw, values, seen = 0, types = 0;
    static float want[MAX_N];
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "decode %15s %15s %u %u %zu %zu %zu %64s", name, id, &block, &bytes, &blocks, &raw, &values, hash) != 8) continue;
        const lm_dtype *t = lm_dtype_by_name(name);
        if (!t) fail_msg("%s is unknown", name);
        assert_int_equal(t->block, block);
        assert_int_equal(t->bytes, bytes);
        assert_int_equal(t->gguf_id, id[0] == '-' ? LM_NO_ID : (uint32_t)atoi(id));
        memcpy(want, at(values, blocks * block * 4), blocks * block * 4);
        check_decode(t, blocks, at(raw, blocks * bytes), want, hash);
        seen++;
    }
    fclose(f);
    while (lm_dtypes[types]) types++;
    assert_int_equal(seen, types); /* no type without a golden */
}

static void test_encode_goldens(void **state) {
    (void)state;
    FILE *f = fopen(DIR "goldens.txt", "r");
    assert_non_null(f);
    char line[256], name[16];
    size_t blocks, src, raw, seen = 0;
    static float x[MAX_N];
    static uint8_t out[4 * MAX_N + 1];
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "encode %15s %zu %zu %zu", name, &blocks, &src, &raw) != 4) continue;
        const lm_dtype *t = lm_dtype_by_name(name);
        assert_non_null(t);
        assert_non_null(t->encode);
        size_t n = blocks * t->block, bytes = blocks * t->bytes;
        assert_true(n <= MAX_N);
        memcpy(x, at(src, n * 4), n * 4);
        out[bytes] = 0xa5;
        t->encode(x, out, blocks);
        const uint8_t *want = at(raw, bytes);
        for (size_t i = 0; i < bytes; i++)
            if (out[i] != want[i])
                fail_msg("%s: byte %zu of block %zu: want %02x, got %02x", name, i % t->bytes, i / t->bytes, want[i], out[i]);
        assert_int_equal(out[bytes], 0xa5);
        seen++;
    }
    fclose(f);
    assert_int_equal(seen, 8);
}

/* No input makes an encoder misbehave; what it writes decodes. */
static void test_encode_not_finite(void **state) {
    (void)state;
    const float odd[] = {NAN, INFINITY, -INFINITY, 0x1p-149f, -0.0f, 3e38f};
    for (size_t k = 0; lm_dtypes[k]; k++) {
        const lm_dtype *t = lm_dtypes[k];
        if (!t->encode) continue;
        for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
            for (int fill = 0; fill < 2; fill++) {
                float x[256], y[256];
                uint8_t out[1024];
                for (int j = 0; j < 256; j++) x[j] = fill ? odd[i] : (float)j - 100;
                x[5] = odd[i];
                t->encode(x, out, 256 / t->block);
                lm_dequant_f32(t, out, y, 256);
            }
    }
}

/* float32 equals the exact value rounded once, for any bytes */
static void test_f32_is_rounded_f64(void **state) {
    (void)state;
    enum { N = 64 * 256 };
    uint32_t *bytes = malloc(N * 8);
    float *f = malloc(N * 4), *want = malloc(N * 4);
    double *d = malloc(N * 8);
    assert_true(bytes && f && want && d);
    for (size_t k = 0; lm_dtypes[k]; k++) {
        const lm_dtype *t = lm_dtypes[k];
        for (uint64_t i = 0; i < N / 2; i++) lm_philox(7, k, i, bytes + 4 * i);
        lm_dequant_f64(t, (const uint8_t *)bytes + 1, d, N - 256);
        for (size_t i = 0; i < N - 256; i++) want[i] = (float)d[i];
        lm_dequant_f32(t, (const uint8_t *)bytes + 1, f, N - 256);
        same_f32(t->name, "random bytes", want, f, N - 256);
    }
    free(bytes);
    free(f);
    free(want);
    free(d);
}

/* Sums of a large and a tiny term, by hand: the double holds every bit. */
static void test_decode_is_exact(void **state) {
    (void)state;
    double d[256];
    uint8_t b[292];
    const double big = 65504, tiny = 0x1p-24; /* the largest half and the smallest */

    memset(b, 0xff, sizeof b);
    memcpy(b, (const uint8_t[]){0xff, 0x7b, 0x01, 0x00}, 4);
    lm_dequant_f64(lm_dtype_by_name("Q4_1"), b, d, 32);
    assert_true(d[0] == big * 15 + tiny && d[0] != big * 15);
    lm_dequant_f64(lm_dtype_by_name("Q4_K"), b, d, 256); /* all scales and minima 63, all quants 15 */
    assert_true(d[0] == big * 63 * 15 - tiny * 63 && d[255] == d[0] && d[0] != big * 63 * 15);
    lm_dequant_f64(lm_dtype_by_name("Q5_K"), b, d, 256);
    assert_true(d[0] == big * 63 * 31 - tiny * 63 && d[0] != big * 63 * 31);

    memset(b, 0xff, sizeof b);
    memcpy(b + 80, (const uint8_t[]){0xff, 0x7b, 0x01, 0x00}, 4);
    lm_dequant_f64(lm_dtype_by_name("Q2_K"), b, d, 256);
    assert_true(d[0] == big * 15 * 3 - tiny * 15 && d[0] != big * 15 * 3);

    float scale = 1 + 0x1p-23f;
    memcpy(b, &scale, 4);
    memset(b + 4, 127, 256);
    lm_dequant_f64(lm_dtype_by_name("Q8_K"), b, d, 256);
    assert_true(d[9] == 127 + 127 * 0x1p-23);

    memset(b, 0x77, sizeof b); /* MXFP4's largest element, 6 * 2^128: finite as a double, infinite as a float */
    b[0] = 255;
    float f[32];
    lm_dequant_f64(lm_dtype_by_name("MXFP4"), b, d, 32);
    lm_dequant_f32(lm_dtype_by_name("MXFP4"), b, f, 32);
    assert_true(d[31] == 6 * 0x1p128 && isinf(f[31]));
}

static void test_lookups(void **state) {
    (void)state;
    for (size_t k = 0; lm_dtypes[k]; k++) {
        const lm_dtype *t = lm_dtypes[k];
        assert_ptr_equal(lm_dtype_by_name(t->name), t);
        if (t->gguf_id != LM_NO_ID) assert_ptr_equal(lm_dtype_by_gguf(t->gguf_id), t);
        if (t->st_name) assert_ptr_equal(lm_dtype_by_st(t->st_name), t);
        assert_true(t->st_name || t->gguf_id != LM_NO_ID);
        assert_true(t->block && t->bytes && t->decode && 256 % t->block == 0);
        assert_int_equal(t->is_float, t->block == 1);
    }
    assert_ptr_equal(lm_dtype_by_name("q4_k"), lm_dtype_by_gguf(12));
    assert_ptr_equal(lm_dtype_by_name("bF16"), lm_dtype_by_st("BF16"));
    assert_ptr_equal(lm_dtype_by_st("F32"), lm_dtype_by_gguf(0));

    const char *const st[] = {"F64", "F32", "F16", "BF16", "I8", "I16", "I32", "I64", "U8", "BOOL", "F8_E4M3", "F8_E5M2"};
    for (size_t i = 0; i < sizeof st / sizeof *st; i++) assert_non_null(lm_dtype_by_st(st[i]));
    assert_null(lm_dtype_by_st("f32")); /* safetensors' names are exact */
    assert_null(lm_dtype_by_st("Q4_K"));
    assert_null(lm_dtype_by_st("F4"));
    assert_null(lm_dtype_by_st(""));
    assert_null(lm_dtype_by_st(NULL));
    assert_null(lm_dtype_by_name("Q4_2"));
    assert_null(lm_dtype_by_name("Q4"));
    assert_null(lm_dtype_by_name(""));
    assert_null(lm_dtype_by_name(NULL));
}

/* The numbers of removed types, and those past the last, are no types; nor is the mark of a type without one. */
static void test_unknown_ids(void **state) {
    (void)state;
    const uint32_t removed[] = {4, 5, 31, 32, 33, 36, 37, 38, 1000, 0x7fffffff, UINT32_MAX - 1, LM_NO_ID};
    for (size_t i = 0; i < sizeof removed / sizeof *removed; i++)
        if (lm_dtype_by_gguf(removed[i])) fail_msg("id %u is %s", removed[i], lm_dtype_by_gguf(removed[i])->name);
    for (uint32_t id = 41; id < 300; id++) assert_null(lm_dtype_by_gguf(id));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_encode_goldens),
        cmocka_unit_test(test_encode_not_finite),
        cmocka_unit_test(test_f32_is_rounded_f64),
        cmocka_unit_test(test_decode_is_exact),
        cmocka_unit_test(test_lookups),
        cmocka_unit_test(test_unknown_ids),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
