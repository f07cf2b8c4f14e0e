/* The JSON-headed formats: safetensors (parser and writer), config.json, and the shard index, on good, hostile, cut and flipped input. */
#include "check.h"
#include "format/parse.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* header text + data bytes as a file, in a block of its own, so that ASan sees a read past the end */
static uint8_t *file_of(const char *json, size_t json_n, uint64_t len, size_t data, size_t *n) {
    uint8_t *p = malloc(8 + json_n + data);
    for (unsigned i = 0; i < 8; i++) p[i] = (uint8_t)(len >> (8 * i));
    memcpy(p + 8, json, json_n);
    memset(p + 8 + json_n, 0x3c, data);
    *n = 8 + json_n + data;
    return p;
}

#define T(name, dtype, shape, offsets) "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
static const char good[] = "{\"__metadata__\":{\"format\":\"pt\",\"a\":\"\\u00e9\"}," T("w", "F32", "[2,3]", "[4,28]") "," T(
    "b", "BF16", "[2]", "[0,4]") "," T("s", "I64", "[]", "[28,36]") "}  ";
enum { GOOD_DATA = 36 };

static void expect_bad(const char *json, uint64_t len, size_t data, lm_status code, int64_t at, const char *field, const char *text) {
    size_t n, json_n = strlen(json);
    uint8_t *p = file_of(json, json_n, len == UINT64_MAX ? json_n : len, data, &n);
    lm_arena *a = lm_arena_create();
    lm_parsed out;
    lm_error err = {0};
    char line[1024];
    lm_status st = lm_safetensors_parse(p, n, "bad.st", a, &out, &err);
    lm_error_line(&err, line, sizeof line);
    bool ok = st == code && err.code == code && !strcmp(err.file, "bad.st") &&
              (at < 0 ? err.offset >= 8 && err.offset <= n : err.offset == (uint64_t)at) && !strcmp(err.field, field) &&
              strstr(err.message, text) && !strchr(line, '\n');
    if (!ok) fail_msg("%.80s: got %s \"%s\", wanted field %s \"%s\"", json, lm_status_name(st), line, field, text);
    if (lm_arena_bytes(a) > 65536) fail_msg("%.80s: %zu bytes held", json, lm_arena_bytes(a));
    lm_arena_destroy(a);
    free(p);
}

static void test_good(void **state) {
    (void)state;
    size_t n;
    uint8_t *p = file_of(good, sizeof good - 1, sizeof good - 1, GOOD_DATA, &n);
    lm_arena *a = lm_arena_create();
    lm_parsed out;
    lm_error err;
    assert_int_equal(lm_safetensors_parse(p, n, "x", a, &out, &err), LM_OK);
    assert_int_equal(out.n_tensors, 3);
    assert_string_equal(out.tensor[0].name, "b");
    assert_string_equal(out.tensor[2].name, "w");
    assert_int_equal(out.tensor[2].offset, 8 + sizeof good - 1 + 4);
    assert_ptr_equal(out.tensor[2].data, p + out.tensor[2].offset);
    assert_int_equal(out.tensor[2].dim[1], 3);
    assert_int_equal(out.tensor[1].rank, 0);
    const lm_value *v = lm_meta_get(&out.meta, "a");
    assert_true(v && v->kind == LM_V_STRING && v->str.len == 2);
    assert_string_equal(v->str.s, "\xc3\xa9");
    lm_arena_destroy(a);
    free(p);
}

static void test_lengths(void **state) {
    (void)state;
    static const uint64_t bad[] = {1ull << 63, UINT64_MAX - 1, 3, 4096, 100000001, (uint64_t)-8};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_bad("{}", bad[i], 0, LM_FORMAT, 0, "header length", "bytes: the file has 2 after it");
    expect_bad("", 0, 0, LM_FORMAT, 8, "header", "begin with");
    expect_bad("[]", UINT64_MAX, 0, LM_FORMAT, 8, "header", "begin with");
    expect_bad(" {}", UINT64_MAX, 0, LM_FORMAT, 8, "header", "begin with");
    lm_parsed out;
    lm_error err;
    assert_int_equal(lm_safetensors_parse((const uint8_t *)"1234567", 7, "x", NULL, &out, &err), LM_FORMAT);
    uint8_t *large = calloc(100000032, 1);           /* never touched but for its start */
    memcpy(large, "\x01\xe1\xf5\x05\0\0\0\0{}", 10); /* 100,000,001 */
    assert_int_equal(lm_safetensors_parse(large, 100000032, "x", NULL, &out, &err), LM_FORMAT);
    assert_string_equal(err.field, "header length");
    free(large);
    assert_int_equal(lm_safetensors_parse(NULL, 0, "x", NULL, &out, &err), LM_FORMAT);
    assert_non_null(strstr(err.message, "empty file"));
}

static void test_hostile(void **state) {
    (void)state;
    static const struct {
        const char *json;
        size_t data;
        lm_status code;
        int at;
        const char *field, *text;
    } c[] = {
        {"{" T("w", "F32", "[1]", "[]") "}", 4, LM_FORMAT, 9, "w", "array of two"},
        {"{" T("w", "F32", "[1]", "[0]") "}", 4, LM_FORMAT, 9, "w", "array of two"},
        {"{" T("w", "F32", "[1]", "[0,4,8]") "}", 4, LM_FORMAT, 9, "w", "array of two"},
        {"{" T("w", "F32", "[1]", "{}") "}", 4, LM_FORMAT, 9, "w", "array of two"},
        {"{" T("w", "F32", "[1]", "[0,4.0]") "}", 4, LM_FORMAT, 9, "w", "non-negative integers"},
        {"{" T("w", "F32", "[1]", "[-4,0]") "}", 4, LM_FORMAT, 9, "w", "non-negative integers"},
        {"{" T("w", "F32", "[1]", "[4,0]") "}", 4, LM_FORMAT, 9, "w", "inverted"},
        {"{" T("w", "F32", "[2]", "[0,8]") "}", 4, LM_FORMAT, 9, "w", "past the file's 4 bytes"},
        {"{" T("w", "F32", "[1]", "[4,8]") "}", 4, LM_FORMAT, 9, "w", "past the file's 4 bytes"},
        {"{" T("w", "F32", "[1]", "[0,9223372036854775807]") "}", 4, LM_FORMAT, 9, "w", "past the file"},
        {"{" T("w", "F32", "[1]", "[0,9223372036854775808]") "}", 4, LM_FORMAT, -1, "data_offsets", "out of range"},
        {"{" T("w", "F32", "[1e999]", "[0,4]") "}", 4, LM_FORMAT, -1, "shape", "out of range"},
        {"{" T("w", "F32", "[2]", "[0,4]") "}", 4, LM_FORMAT, 9, "w", "takes 8 bytes, but data_offsets give 4"},
        {"{" T("w", "F16", "[1]", "[0,4]") "}", 4, LM_FORMAT, 9, "w", "takes 2 bytes"},
        {"{" T("w", "F32", "[8589934592,2147483648]", "[0,0]") "}", 0, LM_FORMAT, 9, "w", "overflows"},
        {"{" T("w", "F32", "[4611686018427387904]", "[0,0]") "}", 0, LM_FORMAT, 9, "w", "overflows"},
        {"{" T("w", "F32", "[0]", "[0,0]") "}", 0, LM_FORMAT, 9, "w", "zero dimension"},
        {"{" T("w", "F32", "[-1]", "[0,4]") "}", 4, LM_FORMAT, 9, "w", "negative"},
        {"{" T("w", "F32", "[1.0]", "[0,4]") "}", 4, LM_FORMAT, 9, "w", "must be an integer"},
        {"{" T("w", "F32", "1", "[0,4]") "}", 4, LM_FORMAT, 9, "w", "shape must be an array"},
        {"{" T("w", "F32", "[1,1,1,1,1,1]", "[0,4]") "}", 4, LM_FORMAT, 9, "w", "6 dimensions"},
        {"{" T("w", "F33", "[1]", "[0,4]") "}", 4, LM_FORMAT, 9, "w", "\"F33\" is unknown"},
        {"{" T("w", "f32", "[1]", "[0,4]") "}", 4, LM_FORMAT, 9, "w", "\"f32\" is unknown"},
        {"{" T("w", "C64", "[1]", "[0,8]") "}", 8, LM_UNSUPPORTED, 9, "w", "C64 is not supported"},
        {"{\"w\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, LM_FORMAT, 9, "w", "dtype must be a string"},
        {"{\"w\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, LM_FORMAT, 9, "w", "dtype is missing"},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, LM_FORMAT, 9, "w", "data_offsets is missing"},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, LM_FORMAT, 9, "w", "unknown field"},
        {"{\"w\":[]}", 4, LM_FORMAT, 9, "w", "must be an object"},
        {"{" T("", "F32", "[1]", "[0,4]") "}", 4, LM_FORMAT, 9, "", "without a name"},
        {"{" T("w", "F32", "[1]", "[0,4]") "," T("w", "F32", "[1]", "[4,8]") "}", 8, LM_FORMAT, -1, "w", "duplicate key"},
        {"{\"w\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, LM_FORMAT, -1, "dtype", "duplicate key"},
        {"{" T("v", "F32", "[1]", "[0,4]") "," T("w", "F32", "[1]", "[8,12]") "}", 12, LM_FORMAT, 62, "w", "a hole"},
        {"{" T("w", "F32", "[1]", "[4,8]") "}", 8, LM_FORMAT, 9, "w", "a hole"},
        {"{" T("v", "F32", "[2]", "[0,8]") "," T("w", "F32", "[2]", "[4,12]") "}", 12, LM_FORMAT, 62, "w", "overlaps that of v"},
        {"{" T("v", "F32", "[1]", "[0,4]") "," T("w", "F32", "[1]", "[0,4]") "}", 4, LM_FORMAT, -1, "w", "overlaps that of v"},
        {"{" T("w", "F32", "[1]", "[0,4]") "}", 5, LM_FORMAT, -1, "data", "1 trailing bytes"},
        {"{}", 1, LM_FORMAT, 10, "data", "1 trailing bytes"},
        {"{\"__metadata__\":{\"a\":1}}", 0, LM_FORMAT, 9, "__metadata__", "\"a\" must be a string"},
        {"{\"__metadata__\":[]}", 0, LM_FORMAT, 9, "__metadata__", "must be an object"},
        {"{\"w\xff\":1}", 0, LM_FORMAT, -1, "w\\xff", "UTF-8"},
        {"{\"w\\u0000\":1}", 0, LM_FORMAT, -1, "w\\u0000", "NUL"},
        {"{\"w\":1", 0, LM_FORMAT, -1, "w", "ends too early"},
        {"{\"w\":1}}", 0, LM_FORMAT, -1, "w", "follows"},
        {"{\"w\":nan}", 0, LM_FORMAT, -1, "w", "not valid JSON"}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        expect_bad(c[i].json, UINT64_MAX, c[i].data, c[i].code, c[i].at, c[i].field, c[i].text);
}

static char *nested(size_t depth, char open) {
    char *s = malloc(depth * 6 + 16);
    size_t n = (size_t)sprintf(s, "{\"a\":");
    for (size_t i = 0; i < depth; i++) n += (size_t)sprintf(s + n, open == '[' ? "[" : "{\"a\":");
    return s;
}

static void test_deep(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        char *s = nested(100000, k ? '[' : '{');
        expect_bad(s, UINT64_MAX, 0, LM_FORMAT, -1, "a", "too deep");
        free(s);
    }
}

static uint64_t survives(const uint8_t *d, size_t n, bool may_pass) {
    uint8_t *p = malloc(n ? n : 1);
    memcpy(p, d, n);
    lm_arena *a = lm_arena_create();
    lm_parsed out = {0};
    lm_error err = {0};
    uint64_t sum = 0;
    lm_status st = lm_safetensors_parse(p, n, "x", a, &out, &err);
    assert_true((may_pass && st == LM_OK) || st == LM_FORMAT || st == LM_UNSUPPORTED);
    if (st == LM_OK)
        for (uint32_t i = 0; i < out.n_tensors; i++) sum += out.tensor[i].data[0] + out.tensor[i].data[out.tensor[i].bytes - 1];
    else
        assert_true(err.code == st && err.message[0] && err.file[0]);
    lm_arena_destroy(a);
    free(p);
    return sum;
}

static void test_flips_and_cuts(void **state) {
    (void)state;
    size_t n;
    uint8_t *p = file_of(good, sizeof good - 1, sizeof good - 1, GOOD_DATA, &n);
    for (size_t i = 0; i < 8 + sizeof good - 1; i++) {
        uint8_t was = p[i];
        for (int k = 0; k < 256; k++) {
            p[i] = (uint8_t)k;
            survives(p, n, true);
        }
        p[i] = was;
    }
    for (size_t i = 0; i < n; i++) survives(p, i, false);
    free(p);
}

static void test_allocation_failures(void **state) {
    (void)state;
    size_t n;
    uint8_t *p = file_of(good, sizeof good - 1, sizeof good - 1, GOOD_DATA, &n);
    lm_status st = LM_NOMEM;
    for (uint64_t k = 1; st != LM_OK; k++) {
        lm_arena *a = lm_arena_create();
        lm_parsed out;
        lm_error err = {0};
        lm_alloc_fail_after(k);
        st = lm_safetensors_parse(p, n, "x", a, &out, &err);
        lm_alloc_fail_after(0);
        lm_arena_destroy(a);
        assert_true(st == LM_OK ? k > 2 : st == LM_NOMEM);
    }
    free(p);
}

/* ---- config.json ---- */
static lm_status config(const char *json, lm_meta *m, lm_error *err, lm_arena **a) {
    *a = lm_arena_create();
    *err = (lm_error){0};
    return lm_config_parse((const uint8_t *)json, strlen(json), "config.json", *a, m, err);
}

static void test_config(void **state) {
    (void)state;
    lm_meta m;
    lm_error err;
    lm_arena *a;
    assert_int_equal(config("{\"b\":true,\"i\":-3,\"f\":1e-5,\"s\":\"x\",\"n\":null,\"o\":{\"p\":{\"q\":7}},\"e\":{},\"ai\":[1,2],\"af\":["
                            "1,2.5],\"as\":[\"u\",\"\"],"
                            "\"ab\":[true,false],\"an\":[1,null],\"ao\":[{}],\"am\":[1,\"a\"],\"a0\":[],\"big\":9223372036854775807}",
                            &m, &err, &a),
                     LM_OK);
    assert_int_equal(m.n, 16);
    assert_true(lm_meta_get(&m, "b")->b && lm_meta_get(&m, "i")->i == -3 && lm_meta_get(&m, "f")->f == 1e-5);
    assert_int_equal(lm_meta_get(&m, "n")->kind, LM_V_NULL);
    assert_int_equal(lm_meta_get(&m, "o.p.q")->i, 7);
    assert_null(lm_meta_get(&m, "o"));
    assert_int_equal(lm_meta_get(&m, "e")->kind, LM_V_OTHER);
    assert_int_equal(lm_meta_get(&m, "ai")->elem, LM_V_INT);
    const lm_value *v = lm_meta_get(&m, "af");
    assert_true(v->elem == LM_V_FLOAT && ((const double *)v->arr.data)[0] == 1 && ((const double *)v->arr.data)[1] == 2.5);
    v = lm_meta_get(&m, "as");
    assert_true(v->elem == LM_V_STRING && v->arr.n == 2 && !strcmp(((const lm_str *)v->arr.data)[0].s, "u"));
    v = lm_meta_get(&m, "ab");
    assert_true(v->elem == LM_V_BOOL && ((const uint8_t *)v->arr.data)[0] == 1 && ((const uint8_t *)v->arr.data)[1] == 0);
    assert_int_equal(lm_meta_get(&m, "an")->kind, LM_V_OTHER);
    assert_int_equal(lm_meta_get(&m, "ao")->kind, LM_V_OTHER);
    assert_int_equal(lm_meta_get(&m, "am")->kind, LM_V_OTHER);
    assert_true(lm_meta_get(&m, "a0")->kind == LM_V_ARRAY && lm_meta_get(&m, "a0")->arr.n == 0);
    assert_true(lm_meta_get(&m, "big")->i == INT64_MAX);
    lm_arena_destroy(a);
}

static void test_bad_config(void **state) {
    (void)state;
    char *deep = nested(100000, '{'), *deeper_than_configs = malloc(400), *wide = malloc(1200);
    size_t n = 0;
    for (int i = 0; i < 20; i++) n += (size_t)sprintf(deeper_than_configs + n, "{\"a\":");
    n += (size_t)sprintf(deeper_than_configs + n, "1");
    for (int i = 0; i < 20; i++) n += (size_t)sprintf(deeper_than_configs + n, "}");
    memset(wide, 'k', 1100);
    memcpy(wide, "{\"", 2);
    strcpy(wide + 1000, "\":1}");
    const struct {
        const char *json, *field, *text;
    } c[] = {{"", "", "empty"},
             {"[]", "", "object was expected"},
             {"3", "", "object was expected"},
             {"{", "", "ends too early"},
             {"{\"a\":1,\"a\":2}", "a", "duplicate key"},
             {"{\"a.b\":1,\"a\":{\"b\":2}}", "a.b", "duplicate key"},
             {"{\"\":1}", "", "empty key"},
             {"{\"x\":{\"n\":9223372036854775808}}", "n", "out of range"},
             {"{\"n\":1e400}", "n", "out of range"},
             {"{\"n\":[0.5,9007199254740993]}", "n", "element 1"},
             {"{\"n\":[0.5,9223372036854775807]}", "n", "element 1"},
             {"{\"n\":Infinity}", "n", "not valid JSON"},
             {"{\"a\":1}x", "a", "follows"},
             {deep, "a", "too deep"},
             {deeper_than_configs, "a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a", "too deep"},
             {wide, "", "longer than 512"}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        lm_meta m;
        lm_error err;
        lm_arena *a;
        lm_status st = config(c[i].json, &m, &err, &a);
        if (st != LM_FORMAT || strcmp(err.field, c[i].field) || !strstr(err.message, c[i].text) || strcmp(err.file, "config.json"))
            fail_msg("%.40s: got %s, %s: %s", c[i].json, lm_status_name(st), err.field, err.message);
        lm_arena_destroy(a);
    }
    free(deep);
    free(deeper_than_configs);
    free(wide);
}

static void test_index(void **state) {
    (void)state;
    static const struct {
        const char *json, *field, *text;
    } bad[] = {{"{}", "weight_map", "must be an object"},
               {"[]", "weight_map", "must be an object"},
               {"{\"weight_map\":{}}", "weight_map", "1 to"},
               {"{\"weight_map\":{\"w\":1}}", "w", "plain name"},
               {"{\"weight_map\":{\"w\":\"../x.safetensors\"}}", "w", "plain name"},
               {"{\"weight_map\":{\"w\":\"/x.safetensors\"}}", "w", "plain name"},
               {"{\"weight_map\":{\"w\":\"..\"}}", "w", "plain name"},
               {"{\"weight_map\":{\"w\":\"a/b.safetensors\"}}", "w", "plain name"},
               {"{\"weight_map\":{\"w\":\"x.bin\"}}", "w", "plain name"},
               {"{\"weight_map\":{\"w\":\"x.safetensors\",\"w\":\"y.safetensors\"}}", "w", "duplicate"}};
    lm_error err = {0};
    lm_st_index x;
    lm_arena *a = lm_arena_create();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        lm_status st = lm_st_index_parse((const uint8_t *)bad[i].json, strlen(bad[i].json), "i", a, &x, &err);
        if (st != LM_FORMAT || strcmp(err.field, bad[i].field) || !strstr(err.message, bad[i].text))
            fail_msg("%s: %s: %s", bad[i].json, err.field, err.message);
    }
    const char *ok = "{\"metadata\":{},\"weight_map\":{\"z\":\"2.safetensors\",\"y\":\"1.safetensors\",\"a\":\"2.safetensors\"}}";
    assert_int_equal(lm_st_index_parse((const uint8_t *)ok, strlen(ok), "i", a, &x, &err), LM_OK);
    assert_int_equal(x.n_shards, 2);
    assert_string_equal(x.shard[0], "1.safetensors");
    assert_string_equal(x.row[0].tensor, "a");
    assert_int_equal(x.row[0].shard, 1);
    assert_int_equal(x.row[1].shard, 0);
    lm_arena_destroy(a);
}

/* ---- the writer ---- */
static char dir[64];
static int make_dir(void **state) {
    (void)state;
    strcpy(dir, "/tmp/lm_st_XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}
static int files_in_dir(void) {
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}
static int remove_dir(void **state) {
    (void)state;
    return rmdir(dir);
}

static void test_write(void **state) {
    (void)state;
    char path[96];
    snprintf(path, sizeof path, "%s/t.safetensors", dir);
    static const float w[6] = {1, 2, 3, 4, 5, 6};
    static const uint8_t b[3] = {1, 0, 1};
    const lm_st_out t[] = {{"b \"q\" \\ \n\xc3\xa9", "U8", 1, {3}, b, 3}, {"w", "F32", 2, {2, 3}, w, 24}};
    const char *kv[] = {"trace_version", "1", "who", "a \"b\"\x01", NULL};
    lm_error err = {0};
    for (int twice = 0; twice < 2; twice++) assert_int_equal(lm_safetensors_write(path, t, 2, kv, &err), LM_OK);
    assert_int_equal(files_in_dir(), 1);
    lm_source *s;
    if (lm_safetensors_open(path, &s, &err) != LM_OK) fail_msg("%s", err.message);
    assert_int_equal(s->n_tensors, 2);
    const lm_tensor *x = lm_source_tensor(s, t[0].name), *y = lm_source_tensor(s, "w");
    assert_true(x && y && x->offset % 8 == 0 && x->offset < y->offset);
    assert_memory_equal(x->data, b, 3);
    assert_memory_equal(y->data, w, 24);
    assert_string_equal(lm_meta_get(&s->meta, "who")->str.s, kv[3]);
    lm_source_close(s);
    assert_int_equal(lm_safetensors_write(path, NULL, 0, NULL, &err), LM_OK);
    assert_int_equal(lm_safetensors_open(path, &s, &err), LM_OK);
    assert_int_equal(s->n_tensors, 0);
    lm_source_close(s);
    unlink(path);
}

static void test_write_failures(void **state) {
    (void)state;
    char path[96], taken[96];
    snprintf(path, sizeof path, "%s/t.safetensors", dir);
    static const float w[2] = {1, 2};
    static const struct {
        lm_st_out t[2];
        lm_status code;
        const char *text;
    } c[] = {{{{"w", "F32", 1, {2}, w, 8}, {"w", "F32", 1, {2}, w, 8}}, LM_USAGE, "twice"},
             {{{"", "F32", 1, {2}, w, 8}, {"v", "F32", 1, {2}, w, 8}}, LM_USAGE, "not a name"},
             {{{"__metadata__", "F32", 1, {2}, w, 8}, {"v", "F32", 1, {2}, w, 8}}, LM_USAGE, "not a name"},
             {{{"w", "F33", 1, {2}, w, 8}, {"v", "F32", 1, {2}, w, 8}}, LM_UNSUPPORTED, "F33"},
             {{{"w", "F32", 1, {3}, w, 8}, {"v", "F32", 1, {2}, w, 8}}, LM_USAGE, "8 bytes"},
             {{{"w\xff", "F32", 1, {2}, w, 8}, {"v", "F32", 1, {2}, w, 8}}, LM_USAGE, "UTF-8"}};
    lm_error err = {0};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        lm_status st = lm_safetensors_write(path, c[i].t, 2, NULL, &err);
        if (st != c[i].code || !strstr(err.message, c[i].text)) fail_msg("writer case %zu: %s", i, err.message);
    }
    const lm_st_out ok = {"w", "F32", 1, {2}, w, 8};
    assert_int_equal(lm_safetensors_write("/nonexistent/x", &ok, 1, NULL, &err), LM_IO);
    assert_int_equal(lm_safetensors_write(path, &ok, 1, (const char *const[]){"k", "1", "k", "2", NULL}, &err), LM_USAGE);
    snprintf(taken, sizeof taken, "%s/folder", dir); /* a folder in its place: refused before anything is written */
    assert_int_equal(mkdir(taken, 0700), 0);
    assert_int_equal(lm_safetensors_write(taken, &ok, 1, NULL, &err), LM_USAGE);
    assert_int_equal(files_in_dir(), 1);
    rmdir(taken);
    lm_status st = LM_NOMEM;
    for (uint64_t k = 1; st != LM_OK; k++) {
        lm_alloc_fail_after(k);
        st = lm_safetensors_write(path, &ok, 1, NULL, &err);
        lm_alloc_fail_after(0);
        assert_true(st == LM_OK ? k > 3 : st == LM_NOMEM && files_in_dir() == 0);
    }
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),   cmocka_unit_test(test_lengths),        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_deep),   cmocka_unit_test(test_flips_and_cuts), cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_config), cmocka_unit_test(test_bad_config),     cmocka_unit_test(test_index),
        cmocka_unit_test(test_write),  cmocka_unit_test(test_write_failures)};
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
