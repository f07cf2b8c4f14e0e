/* Opening models: good files made by the formats' own packages (tools/make_format_data.py), split files, folders, and everything that can
 * be wrong with a folder. */
#include "check.h"
#include "format/parse.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define DATA "tests/data/format/"

static char dir[64]; /* a temporary folder, emptied after each test */

static int make_dir(void **state) {
    (void)state;
    strcpy(dir, "/tmp/lm_source_XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}
static int remove_dir(void **state) {
    (void)state;
    DIR *d = opendir(dir);
    for (struct dirent *e; (e = readdir(d));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
    return rmdir(dir);
}
static const char *at(const char *name) {
    static char path[4][400];
    static unsigned k;
    k = (k + 1) % 4;
    snprintf(path[k], sizeof path[k], "%s/%s", dir, name);
    return path[k];
}
static void put(const char *name, const void *p, size_t n) {
    FILE *f = fopen(at(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    fclose(f);
}
static void text(const char *name, const char *s) { put(name, s, strlen(s)); }
static void copy(const char *from, const char *name) {
    lm_map m;
    assert_int_equal(lm_map_open(from, &m, NULL), LM_OK);
    put(name, m.data, m.size);
    lm_map_close(&m);
}
/* a safetensors file of the tensors named, one float each */
static void shard(const char *name, const char *const *tensor, uint32_t n) {
    static const float one = 1;
    lm_st_out t[8];
    for (uint32_t i = 0; i < n; i++) t[i] = (lm_st_out){tensor[i], "F32", 1, {1}, &one, 4};
    assert_int_equal(lm_safetensors_write(at(name), t, n, NULL, NULL), LM_OK);
}
#define SHARD(name, ...) shard(name, (const char *[]){__VA_ARGS__}, sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *))

static void expect_bad(const char *path, lm_status code, const char *file, const char *field, const char *message) {
    lm_source *s = NULL;
    lm_error err = {0};
    char line[1200];
    lm_status st = lm_source_open(path, &s, &err);
    lm_error_line(&err, line, sizeof line);
    if (st == LM_OK) lm_source_close(s);
    bool ok = st == code && err.code == code && strstr(err.file, file) && !strcmp(err.field, field) && strstr(err.message, message);
    if (!ok) fail_msg("got %s \"%s\", wanted %s, field %s, \"%s\"", lm_status_name(st), line, lm_status_name(code), field, message);
}
static lm_source *opened(const char *path) {
    lm_source *s = NULL;
    lm_error err = {0};
    if (lm_source_open(path, &s, &err) != LM_OK) fail_msg("%s: %s: %s", err.file, err.field, err.message);
    return s;
}

/* ---- GGUF ---- */
static void test_gguf_values(void **state) {
    (void)state;
    lm_source *s = opened(DATA "all_types.gguf");
    static const struct {
        const char *key;
        int64_t v;
        uint32_t type;
    } ints[] = {{"t.u8", 255, 0},         {"t.i8", -128, 1},       {"t.u16", 65535, 2},      {"t.i16", -32768, 3},
                {"t.u32", UINT32_MAX, 4}, {"t.i32", INT32_MIN, 5}, {"t.u64", INT64_MAX, 10}, {"t.i64", INT64_MIN, 11}};
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) {
        const lm_value *v = lm_meta_get(&s->meta, ints[i].key);
        assert_true(v && v->kind == LM_V_INT && v->i == ints[i].v && v->gguf_type == ints[i].type);
    }
    assert_true(lm_meta_get(&s->meta, "t.u64")->u == UINT64_MAX);
    assert_true(lm_meta_get(&s->meta, "t.f32")->f == (double)0.1f && lm_meta_get(&s->meta, "t.f64")->f == 0.1);
    assert_true(lm_meta_get(&s->meta, "t.bool")->kind == LM_V_BOOL && lm_meta_get(&s->meta, "t.bool")->b);
    assert_string_equal(lm_meta_get(&s->meta, "t.str")->str.s, "é😀\n");
    const lm_value *v = lm_meta_get(&s->meta, "a.i32");
    assert_true(v->kind == LM_V_ARRAY && v->arr.n == 3 && ((const int64_t *)v->arr.data)[0] == -5);
    assert_true(((const int64_t *)lm_meta_get(&s->meta, "a.i8")->arr.data)[0] == -1);
    assert_true(((const double *)lm_meta_get(&s->meta, "a.f32")->arr.data)[1] == -2.0);
    assert_string_equal(((const lm_str *)lm_meta_get(&s->meta, "a.str")->arr.data)[2].s, "ü");
    const lm_tensor *w = lm_source_tensor(s, "blk.0.w"), *q = lm_source_tensor(s, "q");
    float row[4];
    assert_true(w && w->rank == 2 && w->dim[0] == 3 && w->dim[1] == 4 && s->n_tensors == 3 && s->gguf_version == 3 &&
                s->gguf_alignment == 32);
    lm_tensor_row_f32(w, 2, row);
    assert_true(row[0] == 8 && row[3] == 11);
    assert_true(q && q->type == lm_dtype_by_name("Q8_0") && q->bytes == 68);
    lm_source_release(s, w);
    lm_tensor_row_f32(w, 1, row);
    assert_true(row[0] == 4);
    assert_null(lm_source_tensor(s, "absent"));
    lm_source_close(s);
}

static const char *const shard_name[] = {"split-00001-of-00003.gguf", "split-00002-of-00003.gguf", "split-00003-of-00003.gguf"};

static void test_split(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        char path[100];
        snprintf(path, sizeof path, DATA "%s", shard_name[i]);
        lm_source *s = opened(path);
        assert_true(s->n_files == 3 && s->n_tensors == 4);
        assert_string_equal(lm_meta_get(&s->meta, "general.architecture")->str.s, "llama");
        for (uint32_t t = 0; t < 4; t++) {
            float v[3];
            lm_tensor_row_f32(&s->tensor[t], 0, v);
            assert_true(v[2] == (float)t && s->tensor[t].file == (t < 2 ? 0 : t - 1));
        }
        lm_source_close(s);
    }
}

static void test_split_faults(void **state) {
    (void)state;
    copy(DATA "split-00002-of-00003.gguf", shard_name[1]);
    expect_bad(at(shard_name[1]), LM_IO, shard_name[1], "",
               "2 of 3 weight files missing: split-00001-of-00003.gguf, split-00003-of-00003.gguf");
    copy(DATA "split-00001-of-00003.gguf", shard_name[0]);
    copy(DATA "split-00002-of-00003.gguf", shard_name[2]);
    expect_bad(at(shard_name[0]), LM_FORMAT, shard_name[2], "split.no", "1 in the file named as shard 2");
    static const char key[] = "split.tensors.count";
    uint8_t d[4096];
    lm_map m;
    assert_int_equal(lm_map_open(DATA "split-00001-of-00003.gguf", &m, NULL), LM_OK);
    size_t n_bytes = m.size;
    memcpy(d, m.data, n_bytes);
    lm_map_close(&m);
    uint8_t *value = memmem(d, n_bytes, key, sizeof key - 1);
    assert_non_null(value);
    value[sizeof key - 1 + 4]++; /* after the key and its type */
    put(shard_name[0], d, n_bytes);
    copy(DATA "split-00003-of-00003.gguf", shard_name[2]);
    expect_bad(at(shard_name[0]), LM_FORMAT, shard_name[0], "split.tensors.count", "5 tensors promised, 4 found");
    copy(DATA "all_types.gguf", shard_name[2]);
    expect_bad(at(shard_name[0]), LM_FORMAT, shard_name[2], "split.count", "-1 where the other shards say 3");
    copy(DATA "split-00001-of-00003.gguf", "renamed.gguf");
    expect_bad(at("renamed.gguf"), LM_FORMAT, "renamed.gguf", "split.count", "NAME-00001-of-00003.gguf");
    size_t stem;
    uint32_t no, n;
    assert_true(lm_split_name("a/b-00002-of-00010.gguf", &stem, &no, &n) && stem == 3 && no == 2 && n == 10);
    static const char *const bad[] = {"-00001-of-00002.gguf", "a-00000-of-00002.gguf", "a-00003-of-00002.gguf",
                                      "a-0001-of-00002.gguf", "a-00001-of-00002.GGUF", "a"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(lm_split_name(bad[i], &stem, &no, &n));
}

/* A GGUF of nothing but string keys. */
static void gguf_of_strings(const char *name, const char *const *kv, uint32_t n) {
    uint8_t d[1024] = "GGUF\3";
    size_t k = 24;
    d[16] = (uint8_t)n;
    for (uint32_t i = 0; i < 2 * n; i++) {
        d[k] = (uint8_t)strlen(kv[i]);
        memcpy(d + k + 8, kv[i], d[k]);
        k += 8 + (size_t)d[k];
        if (i % 2 == 0) {
            d[k] = 8;
            k += 4;
        }
    }
    put(name, d, k);
}

static void test_no_model(void **state) {
    (void)state;
    static const struct {
        const char *kv[4];
        uint32_t n;
        lm_status code;
        const char *field, *message;
    } c[] = {{{"general.name", "x"}, 1, LM_FORMAT, "general.architecture", "missing"},
             {{"general.architecture", ""}, 1, LM_FORMAT, "general.architecture", "non-empty"},
             {{"general.architecture", "clip"}, 1, LM_UNSUPPORTED, "general.architecture", "multimodal projector"},
             {{"general.architecture", "llama", "general.type", "adapter"}, 2, LM_UNSUPPORTED, "general.type", "adapter (LoRA)"},
             {{"general.architecture", "clip", "general.type", "mmproj"}, 2, LM_UNSUPPORTED, "general.type", "projector"},
             {{"general.type", "imatrix"}, 1, LM_UNSUPPORTED, "general.type", "importance matrix"},
             {{"general.architecture", "llama", "general.type", "novel"}, 2, LM_UNSUPPORTED, "general.type", "(\"novel\")"}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        gguf_of_strings("m.gguf", c[i].kv, c[i].n);
        expect_bad(at("m.gguf"), c[i].code, "m.gguf", c[i].field, c[i].message);
    }
    text("page", "<!DOCTYPE html><html></html>");
    expect_bad(at("page"), LM_UNSUPPORTED, "page", "magic", "HTML page");
    text("empty", "");
    expect_bad(at("empty"), LM_UNSUPPORTED, "empty", "magic", "empty file");
    expect_bad(at("absent"), LM_IO, "absent", "", "cannot open");
    assert_int_equal(mkfifo(at("fifo"), 0600), 0);
    expect_bad(at("fifo"), LM_IO, "fifo", "", "regular file");
}

/* ---- folders ---- */
static void test_fixture(void **state) {
    (void)state;
    lm_source *s = opened("tests/fixtures/llama3"), *trace = NULL;
    char hex[65];
    assert_true(s->kind == LM_SOURCE_HF && s->n_files == 2 && s->n_tensors == 57);
    assert_int_equal(lm_source_sha256(s, hex, NULL, NULL, NULL), LM_OK);
    assert_int_equal(lm_safetensors_open("tests/fixtures/llama3/oracle.safetensors", &trace, NULL), LM_OK);
    assert_string_equal(hex, lm_meta_get(&trace->meta, "weights_sha256")->str.s);
    assert_string_equal(lm_meta_get(&s->meta, "model_type")->str.s, "llama");
    assert_non_null(lm_meta_get(&s->generation, "bos_token_id"));
    for (uint32_t i = 0; i < s->n_tensors; i++) assert_ptr_equal(lm_source_tensor(s, s->tensor[i].name), &s->tensor[i]);
    lm_source_close(trace);
    lm_source_close(s);
}

static void test_safetensors_package(void **state) {
    (void)state;
    lm_source *s = NULL;
    assert_int_equal(lm_safetensors_open(DATA "all_types.safetensors", &s, NULL), LM_OK);
    const lm_tensor *w = lm_source_tensor(s, "w"), *i = lm_source_tensor(s, "i"), *one = lm_source_tensor(s, "s");
    double v[3];
    lm_tensor_row_f64(w, 1, v);
    assert_true(v[0] == 3 && v[2] == 5);
    lm_tensor_row_f64(i, 0, v);
    assert_true(v[0] == -1 && v[1] == 0x1p40);
    lm_tensor_row_f64(one, 0, v);
    assert_true(one->rank == 0 && v[0] == 7);
    assert_string_equal(lm_meta_get(&s->meta, "é")->str.s, "\"q\"");
    lm_source_close(s);
    lm_error err;
    assert_int_equal(lm_safetensors_open(DATA "all_types.gguf", &s, &err), LM_FORMAT);
    assert_non_null(strstr(err.message, "GGUF"));
}

static void test_folder_faults(void **state) {
    (void)state;
    expect_bad(dir, LM_UNSUPPORTED, dir, "config.json", "missing: give a folder that holds config.json");
    text("x.gguf", "");
    expect_bad(dir, LM_UNSUPPORTED, dir, "config.json", "give one of them (x.gguf)");
    text("adapter_config.json", "{}");
    expect_bad(dir, LM_UNSUPPORTED, dir, "config.json", "LoRA");
    text("config.json", "[1]");
    expect_bad(dir, LM_FORMAT, "config.json", "", "object was expected");
    text("config.json", "{\"n\":9223372036854775808}");
    expect_bad(dir, LM_FORMAT, "config.json", "n", "out of range");
    text("config.json", "{\"model_type\":\"llama\"}");
    expect_bad(dir, LM_IO, dir, "", "model.safetensors.index.json is missing");
    text("pytorch_model.bin", "PK");
    expect_bad(dir, LM_UNSUPPORTED, dir, "", "only PyTorch weights (pytorch_model.bin)");
    SHARD("adapter_model.safetensors", "a");
    expect_bad(dir, LM_UNSUPPORTED, dir, "", "LoRA");
    unlink(at("adapter_model.safetensors"));
    SHARD("any.safetensors", "a");
    lm_source *s = opened(dir);
    assert_true(s->n_tensors == 1 && s->n_files == 1);
    lm_source_close(s);
    SHARD("other.safetensors", "b");
    expect_bad(dir, LM_IO, dir, "", "2 .safetensors files and no model.safetensors.index.json");
    text("generation_config.json", "{");
    expect_bad(dir, LM_FORMAT, "generation_config.json", "", "ends too early");
    text("generation_config.json", "{\"eos_token_id\":[1,2]}");
    shard("model.safetensors", NULL, 0);
    expect_bad(dir, LM_FORMAT, "model.safetensors", "", "no tensors");
    SHARD("model.safetensors", "a");
    s = opened(dir);
    assert_true(s->n_files == 1 && lm_meta_get(&s->generation, "eos_token_id")->arr.n == 2);
    lm_source_close(s);
}

static void test_index(void **state) {
    (void)state;
    text("config.json", "{}");
    text("model.safetensors.index.json",
         "{\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\",\"c\":\"m-3.safetensors\",\"d\":\"m-2.safetensors\"}}");
    SHARD("m-2.safetensors", "d", "b");
    SHARD("stray.safetensors", "stray"); /* not in the map: never opened */
    expect_bad(dir, LM_IO, "index.json", "", "2 of 3 weight files missing: m-1.safetensors, m-3.safetensors");
    SHARD("m-1.safetensors", "a");
    SHARD("m-3.safetensors", "c");
    lm_source *s = opened(dir);
    assert_true(s->n_files == 3 && s->n_tensors == 4 && lm_source_tensor(s, "d")->file == 1 && !lm_source_tensor(s, "stray"));
    lm_source_close(s);
    SHARD("m-3.safetensors", "c", "e");
    expect_bad(dir, LM_FORMAT, "m-3.safetensors", "e", "doesn't list");
    SHARD("m-3.safetensors", "e");
    expect_bad(dir, LM_FORMAT, "index.json", "c", "puts it in m-3.safetensors, which doesn't hold it");
    SHARD("m-3.safetensors", "c", "b");
    expect_bad(dir, LM_FORMAT, "m-3.safetensors", "b", "duplicate tensor");
    SHARD("m-1.safetensors", "c");
    SHARD("m-3.safetensors", "a");
    expect_bad(dir, LM_FORMAT, "index.json", "a", "puts it in m-1.safetensors, but it is in m-3.safetensors");
    text("m-3.safetensors", "junk");
    expect_bad(dir, LM_FORMAT, "m-3.safetensors", "header length", "no safetensors file");
    text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"../m.safetensors\"}}");
    expect_bad(dir, LM_FORMAT, "index.json", "a", "plain name");
}

static void test_many_missing(void **state) {
    (void)state;
    char json[20000];
    size_t n = (size_t)sprintf(json, "{\"weight_map\":{");
    for (int i = 0; i < 200; i++) n += (size_t)sprintf(json + n, "%s\"t%d\":\"model-%05d-of-00200.safetensors\"", i ? "," : "", i, i + 1);
    sprintf(json + n, "}}");
    text("config.json", "{}");
    text("model.safetensors.index.json", json);
    expect_bad(dir, LM_IO, "index.json", "", "200 of 200 weight files missing: model-00001-of-00200.safetensors, model-00002");
    expect_bad(dir, LM_IO, "index.json", "", " more");
}

/* ---- hashing, memory ---- */
static bool stop(void *ctx, uint64_t done, uint64_t total) {
    uint64_t *got = ctx;
    got[0] = done;
    got[1] = total;
    return false;
}
static void test_sha256_stops(void **state) {
    (void)state;
    lm_source *s = opened(DATA "all_types.gguf");
    uint64_t got[2] = {0};
    char hex[65];
    assert_int_equal(lm_source_sha256(s, hex, stop, got, NULL), LM_INTERRUPTED);
    assert_true(got[0] == got[1] && got[1] == s->file[0].size);
    assert_int_equal(lm_source_sha256(s, hex, NULL, NULL, NULL), LM_OK);
    assert_string_equal(hex, "98555d09512445016ec9042601e84699685a774b3e762ec7ae535d014ae43c14");
    lm_source_close(s);
}

static void test_allocation_failures(void **state) {
    (void)state;
    static const char *const path[] = {DATA "all_types.gguf", DATA "split-00002-of-00003.gguf", "tests/fixtures/llama3"};
    for (size_t i = 0; i < 3; i++) {
        lm_status st = LM_NOMEM;
        for (uint64_t k = 1; st != LM_OK; k++) {
            lm_source *s = NULL;
            lm_error err = {0};
            lm_alloc_fail_after(k);
            st = lm_source_open(path[i], &s, &err);
            lm_alloc_fail_after(0);
            assert_true(st == LM_OK ? k > 4 : st == LM_NOMEM);
            lm_source_close(s);
        }
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_dir, remove_dir)
int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_gguf_values),         TEST(test_split),         TEST(test_split_faults), TEST(test_no_model),     TEST(test_fixture),
        TEST(test_safetensors_package), TEST(test_folder_faults), TEST(test_index),        TEST(test_many_missing), TEST(test_sha256_stops),
        TEST(test_allocation_failures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
