/* The tokenizer: goldens made by the `tokenizers` package (tools/make_tokenizer_goldens.py), its errors, and, where the environment's
 * SHARED names the folder, other people's tokenizers on 110 texts each and the texts of a real trace. */
#include "base/mem.h"
#include "base/utf8.h"
#include "check.h"
#include "tokenizer/tokenizer.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define DATA "tests/data/tokenizer/"

static void must(lm_status st, const lm_error *err) {
    char line[1400];
    if (st != LM_OK) fail_msg("%s", lm_error_line(err, line, sizeof line));
}

static lm_tokenizer *open_json(const char *path) {
    lm_error err = {0};
    lm_tokenizer *t = NULL;
    must(lm_tokenizer_from_json(path, &t, &err), &err);
    return t;
}

static json_t *load_cases(const char *path) {
    json_error_t e;
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &e);
    if (!root) fail_msg("%s: %s", path, e.text);
    return root;
}

static bool same_ids(const lm_ids *got, const json_t *want) {
    if (got->n != json_array_size(want)) return false;
    for (size_t i = 0; i < got->n; i++)
        if (got->id[i] != json_integer_value(json_array_get(want, i))) return false;
    return true;
}

static char *show(const lm_ids *ids) {
    static char buf[4096];
    size_t k = 0;
    buf[0] = 0;
    for (size_t i = 0; i < ids->n && k + 16 < sizeof buf; i++) k += (size_t)snprintf(buf + k, sizeof buf - k, "%d ", ids->id[i]);
    return buf;
}

/* Pushes the ids one by one: joined, they must be `whole`, and every piece whole characters. */
static void check_stream(const lm_tokenizer *t, const int32_t *id, size_t n, bool skip, const char *whole, size_t whole_n) {
    lm_error err = {0};
    lm_detok *d = NULL;
    size_t at = 0;
    must(lm_detok_create(t, skip, &d, &err), &err);
    for (size_t i = 0; i <= n; i++) {
        const char *p;
        size_t k;
        must(i < n ? lm_detok_push(d, id[i], &p, &k, &err) : lm_detok_flush(d, &p, &k, &err), &err);
        assert_true(lm_utf8_valid((const uint8_t *)p, k));
        assert_true(k <= whole_n - at);
        assert_memory_equal(p, whole + at, k);
        at += k;
    }
    assert_int_equal(at, whole_n);
    lm_detok_free(d);
}

/* One golden: its text gives the ids wanted, with specials those of `with`, and they decode as the case says. */
static bool check_case(const lm_tokenizer *t, const json_t *c, const json_t *ids_wanted, const json_t *with) {
    lm_error err = {0};
    const json_t *text = json_object_get(c, "text");
    const char *s = json_string_value(text), *dec = json_string_value(json_object_get(c, "decoded")), *bad = NULL;
    size_t n = json_string_length(text), out_n = 0;
    lm_ids ids = {0}, spec = {0};
    char *out = NULL;
    must(lm_tokenizer_encode(t, s, n, false, true, &ids, &err), &err);
    must(lm_tokenizer_encode(t, s, n, true, true, &spec, &err), &err);
    if (!same_ids(&ids, ids_wanted))
        bad = "ids";
    else if (!same_ids(&spec, with))
        bad = "ids_with_special";
    else {
        must(lm_tokenizer_decode(t, ids.id, ids.n, false, &out, &out_n, &err), &err);
        check_stream(t, ids.id, ids.n, false, out, out_n);
        if (dec && (out_n != json_string_length(json_object_get(c, "decoded")) || memcmp(out, dec, out_n) != 0)) bad = "decoded";
    }
    if (bad) print_error("%s differ for \"%s\": got %s\"%s\"\n", bad, s, show(bad[0] == 'i' && bad[3] ? &spec : &ids), out ? out : "");
    lm_free(out);
    lm_ids_free(&ids);
    lm_ids_free(&spec);
    return !bad;
}

static size_t run_cases(const lm_tokenizer *t, const char *path) {
    json_t *root = load_cases(path), *c;
    size_t i, failed = 0;
    json_array_foreach(json_object_get(root, "cases"), i, c) failed +=
        !check_case(t, c, json_object_get(c, "ids"), json_object_get(c, "ids_with_special"));
    assert_true(i > 0);
    json_decref(root);
    return failed;
}

/* ---- our own small tokenizers ---- */
static void goldens(void **state) {
    (void)state;
    static const char *const names[] = {"bytes", "patterns", "sentence", "merged", "fused", "added"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        char path[256];
        snprintf(path, sizeof path, DATA "%s.json", names[k]);
        lm_tokenizer *t = open_json(path);
        snprintf(path, sizeof path, DATA "%s.cases.json", names[k]);
        assert_int_equal(run_cases(t, path), 0);
        lm_tokenizer_free(t);
    }
}

/* Token sequences that never come from a text: bytes cut anywhere. */
static void decode_bytes(void **state) {
    (void)state;
    lm_tokenizer *t = open_json(DATA "bytes.json");
    json_t *root = load_cases(DATA "bytes.decode.json"), *c;
    size_t i;
    json_array_foreach(json_object_get(root, "cases"), i, c) {
        const json_t *list = json_object_get(c, "ids"), *want = json_object_get(c, "decoded");
        int32_t id[64];
        size_t n = json_array_size(list), out_n;
        assert_true(n <= 64);
        for (size_t k = 0; k < n; k++) id[k] = (int32_t)json_integer_value(json_array_get(list, k));
        bool skip = json_is_true(json_object_get(c, "skip_special"));
        lm_error err = {0};
        char *out;
        must(lm_tokenizer_decode(t, id, n, skip, &out, &out_n, &err), &err);
        if (out_n != json_string_length(want) || memcmp(out, json_string_value(want), out_n) != 0)
            fail_msg("case %zu: \"%s\", wanted \"%s\"", i, out, json_string_value(want));
        check_stream(t, id, n, skip, out, out_n);
        lm_free(out);
    }
    assert_true(i > 5);
    json_decref(root);
    lm_tokenizer_free(t);
}

static void bad_bytes_and_specials(void **state) {
    (void)state;
    lm_error err = {0};
    lm_tokenizer *t = open_json(DATA "bytes.json");
    lm_ids a = {0}, b = {0};
    /* bytes that are no UTF-8 encode as their repair does */
    must(lm_tokenizer_encode(t, "a\xed\xa0\x80z\xf0\x9f", 7, false, true, &a, &err), &err);
    must(lm_tokenizer_encode(t, "a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz\xef\xbf\xbd", 14, false, true, &b, &err), &err);
    assert_int_equal(a.n, b.n);
    assert_memory_equal(a.id, b.id, a.n * sizeof *a.id);
    /* a special token written out is text unless asked for */
    a.n = 0;
    b.n = 0;
    must(lm_tokenizer_encode(t, "<|end|>", 7, false, true, &a, &err), &err);
    must(lm_tokenizer_encode(t, "<|end|>", 7, false, false, &b, &err), &err);
    assert_int_equal(a.n, 1);
    assert_true(lm_tokenizer_is_special(t, a.id[0]));
    assert_true(b.n > 1);
    for (size_t i = 0; i < b.n; i++) assert_false(lm_tokenizer_is_special(t, b.id[i]));
    /* appended, not replaced; the empty text is nothing */
    size_t n = b.n;
    must(lm_tokenizer_encode(t, "", 0, false, true, &b, &err), &err);
    assert_int_equal(b.n, n);
    must(lm_tokenizer_encode(t, "x", 1, false, true, &b, &err), &err);
    assert_int_equal(b.n, n + 1);
    /* ids outside the vocabulary */
    int32_t out_of_range[] = {-1, (int32_t)lm_tokenizer_vocab(t), INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++) {
        char *out;
        assert_int_equal(lm_tokenizer_decode(t, &out_of_range[i], 1, false, &out, &n, &err), LM_RANGE);
        assert_null(lm_tokenizer_piece(t, out_of_range[i], &n));
        assert_false(lm_tokenizer_is_special(t, out_of_range[i]));
    }
    const int32_t *eos = lm_tokenizer_eos(t, &n);
    assert_int_equal(n, 1);
    assert_int_equal(eos[0], a.id[0]);
    assert_true(lm_tokenizer_bos(t) >= 0);
    lm_ids_free(&a);
    lm_ids_free(&b);
    lm_tokenizer_free(t);
}

/* One word of a megabyte, a megabyte of spaces: linear or nearly so, never a hang. */
static void long_texts(void **state) {
    (void)state;
    static const char *const files[] = {DATA "bytes.json", DATA "patterns.json"};
    static const char *const units[] = {"a", " ", "the", "\n", "1", "é", ".", "A", "\t\n "};
    size_t n = 1 << 20;
    char *s = malloc(n + 8);
    for (int f = 0; f < 2; f++) {
        lm_tokenizer *t = open_json(files[f]);
        for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
            size_t k = strlen(units[u]), len = 0;
            for (; len + k <= n; len += k) memcpy(s + len, units[u], k);
            lm_ids ids = {0};
            lm_error err = {0};
            char *out;
            clock_t begin = clock();
            must(lm_tokenizer_encode(t, s, len, false, true, &ids, &err), &err);
            assert_true(clock() - begin < 20 * CLOCKS_PER_SEC); /* quadratic would be hours */
            must(lm_tokenizer_decode(t, ids.id, ids.n, false, &out, &k, &err), &err);
            assert_int_equal(k, len);
            assert_memory_equal(out, s, len);
            lm_free(out);
            lm_ids_free(&ids);
        }
        lm_tokenizer_free(t);
    }
    free(s);
}

/* A pattern that backtracks without end is stopped and said so. */
static void hostile_pattern(void **state) {
    (void)state;
    char path[] = "/tmp/lemma-tokenizer-XXXXXX", text[4096];
    FILE *f = fdopen(mkstemp(path), "w");
    assert_non_null(f);
    fputs("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":"
          "{\"Regex\":\"(?:a+)+[cd]\"},\"behavior\":\"Isolated\",\"invert\":false}}",
          f);
    fclose(f);
    lm_tokenizer *t = open_json(path);
    remove(path);
    memset(text, 'a', sizeof text);
    lm_ids ids = {0};
    lm_error err = {0};
    assert_int_equal(lm_tokenizer_encode(t, "aacaaab", 7, false, true, &ids, &err), LM_OK);
    assert_int_equal(ids.n, 5);
    assert_int_equal(lm_tokenizer_encode(t, text, sizeof text, false, true, &ids, &err), LM_RANGE);
    assert_non_null(strstr(err.message, "pattern"));
    assert_int_equal(ids.n, 5); /* as before */
    lm_ids_free(&ids);
    lm_tokenizer_free(t);
}

/* Every allocation of load, encode and decode made to fail in turn: LM_NOMEM, and whatever ASan says about leaks. */
static void out_of_memory(void **state) {
    (void)state;
    lm_error err = {0};
    for (uint64_t k = 1;; k++) {
        lm_tokenizer *t = NULL;
        lm_ids ids = {0};
        char *out = NULL;
        size_t n;
        lm_alloc_fail_after(k);
        lm_status st = lm_tokenizer_from_json(DATA "added.json", &t, &err);
        if (st == LM_OK) st = lm_tokenizer_encode(t, "the <tool> caf\u00e9", 15, true, true, &ids, &err);
        if (st == LM_OK) st = lm_tokenizer_decode(t, ids.id, ids.n, false, &out, &n, &err);
        lm_alloc_fail_after(0);
        lm_free(out);
        lm_ids_free(&ids);
        lm_tokenizer_free(t);
        if (st == LM_OK) {
            assert_true(k > 20);
            return;
        }
        assert_int_equal(st, LM_NOMEM);
    }
}

/* ---- what is refused, by name ---- */
#define MODEL(x) "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]" x "}"
static void refusals(void **state) {
    (void)state;
    static const struct {
        const char *json;
        lm_status code;
        const char *word;
    } bad[] = {
        {"[]", LM_FORMAT, "model"},
        {"{}", LM_FORMAT, "model"},
        {"{\"model\":", LM_FORMAT, ""},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", LM_UNSUPPORTED, "Unigram"},
        {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}", LM_UNSUPPORTED, "WordPiece"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}", LM_FORMAT, "merges"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", LM_FORMAT, "twice"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", LM_RANGE, "-1"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":4611686018427387904},\"merges\":[]}}", LM_RANGE, "range"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1.5},\"merges\":[]}}", LM_FORMAT, "integer"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[\"a b\"]}}", LM_FORMAT, "result"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[\"ab\"]}}", LM_FORMAT, "merge 0"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[[\"a\"]]}}", LM_FORMAT, "merge 0"},
        {"{" MODEL(",\"dropout\":0.1") "}", LM_UNSUPPORTED, "dropout"},
        {"{" MODEL(",\"end_of_word_suffix\":\"</w>\"") "}", LM_UNSUPPORTED, "suffix"},
        {"{" MODEL(",\"unk_token\":\"?\"") "}", LM_FORMAT, "unk_token"},
        {"{" MODEL(",\"byte_fallback\":1") "}", LM_FORMAT, "byte_fallback"},
        {"{" MODEL("") ",\"normalizer\":{\"type\":\"Precompiled\"}}", LM_UNSUPPORTED, "Precompiled"},
        {"{" MODEL("") ",\"normalizer\":3}", LM_FORMAT, "normalizer"},
        {"{" MODEL("") ",\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}}", LM_UNSUPPORTED, "BertPreTokenizer"},
        {"{" MODEL("") ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\"}}", LM_FORMAT,
         "compile"},
        {"{" MODEL("") ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\h\"},\"behavior\":\"Isolated\"}}",
         LM_UNSUPPORTED, "\\h"},
        {"{" MODEL("") ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"},\"behavior\":\"Isolated\"}}",
         LM_UNSUPPORTED, "set"},
        {"{" MODEL("") ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?<x>a)\"},\"behavior\":\"Isolated\"}}",
         LM_UNSUPPORTED, "group"},
        {"{" MODEL("") ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Sideways\"}}", LM_UNSUPPORTED,
         "behavior"},
        {"{" MODEL("") ",\"post_processor\":{\"type\":\"BertProcessing\"}}", LM_UNSUPPORTED, "BertProcessing"},
        {"{" MODEL("") ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}}", LM_UNSUPPORTED, "sequence"},
        {"{" MODEL("") ",\"decoder\":{\"type\":\"WordPiece\"}}", LM_UNSUPPORTED, "WordPiece"},
        {"{" MODEL("") ",\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}}", LM_UNSUPPORTED, "Strip"},
        {"{" MODEL("") ",\"added_tokens\":[{\"id\":0,\"content\":\"z\"}]}", LM_FORMAT, "id 0"},
        {"{" MODEL("") ",\"added_tokens\":[{\"id\":99999999999,\"content\":\"z\"}]}", LM_RANGE, "added_tokens"},
    };
    char path[] = "/tmp/lemma-tokenizer-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *f = fdopen(fd, "w");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        lm_error err = {0};
        lm_tokenizer *t = NULL;
        char line[1400];
        assert_non_null(f = freopen(path, "w", f));
        fputs(bad[i].json, f);
        fflush(f);
        lm_status st = lm_tokenizer_from_json(path, &t, &err);
        lm_error_line(&err, line, sizeof line);
        if (st != bad[i].code || !strstr(line, bad[i].word) || !strstr(line, path) || strchr(line, '\n'))
            fail_msg("%s: %s (%s)", bad[i].json, lm_status_name(st), line);
    }
    fclose(f);
    remove(path);
    lm_error err = {0};
    lm_tokenizer *t;
    assert_int_equal(lm_tokenizer_from_json("/nonexistent/tokenizer.json", &t, &err), LM_IO);
}

/* ---- GGUF metadata, made here ---- */
typedef struct gguf_fake {
    lm_source s;
    lm_meta_entry e[16];
} gguf_fake;
#define STR(x) \
    { x, sizeof x - 1 }
static lm_value v_str(const char *s) { return (lm_value){.kind = LM_V_STRING, .str = {s, strlen(s)}}; }
static lm_value v_int(int64_t i) { return (lm_value){.kind = LM_V_INT, .i = i, .u = (uint64_t)i}; }
static lm_value v_bool(bool b) { return (lm_value){.kind = LM_V_BOOL, .b = b}; }
static lm_value v_arr(lm_value_kind k, const void *p, uint64_t n) { return (lm_value){.kind = LM_V_ARRAY, .elem = k, .arr = {p, n}}; }

static int by_key(const void *a, const void *b) { return strcmp(((const lm_meta_entry *)a)->key, ((const lm_meta_entry *)b)->key); }
static void set(gguf_fake *g, const char *key, lm_value v) {
    uint32_t i = 0;
    while (i < g->s.meta.n && strcmp(g->e[i].key, key) != 0) i++;
    if (i == g->s.meta.n) g->s.meta.n++;
    g->e[i] = (lm_meta_entry){key, v};
    qsort(g->e, g->s.meta.n, sizeof *g->e, by_key);
    g->s.meta.entry = g->e;
}

static const lm_str bpe_tokens[] = {STR("<s>"),
                                    STR("a"),
                                    STR("b"),
                                    STR("1"),
                                    STR("2"),
                                    STR("ab"),
                                    STR("12"),
                                    STR("\xc4\xa0"),
                                    STR("<end>"),
                                    STR("\xc3\xa9"),
                                    STR("\xc3\x83"),
                                    STR("\xc2\xa9"),
                                    STR("\xc4\xa0"
                                        "a")};
static const int64_t bpe_types[] = {3, 1, 1, 1, 1, 1, 1, 1, 3, 1, 1, 1, 1};
static const lm_str bpe_merges[] = {STR("a b"), STR("1 2"), STR("\xc4\xa0 a")};

static void fake_bpe(gguf_fake *g, const char *pre) {
    *g = (gguf_fake){.s = {.kind = LM_SOURCE_GGUF, .path = "fake.gguf"}};
    set(g, "tokenizer.ggml.model", v_str("gpt2"));
    set(g, "tokenizer.ggml.pre", v_str(pre));
    set(g, "tokenizer.ggml.tokens", v_arr(LM_V_STRING, bpe_tokens, 13));
    set(g, "tokenizer.ggml.token_type", v_arr(LM_V_INT, bpe_types, 13));
    set(g, "tokenizer.ggml.merges", v_arr(LM_V_STRING, bpe_merges, 3));
    set(g, "tokenizer.ggml.bos_token_id", v_int(0));
    set(g, "tokenizer.ggml.eos_token_id", v_int(8));
}

static void expect_ids(const lm_tokenizer *t, const char *text, bool special, const int32_t *want, size_t n) {
    lm_ids ids = {0};
    lm_error err = {0};
    must(lm_tokenizer_encode(t, text, strlen(text), special, true, &ids, &err), &err);
    if (ids.n != n || memcmp(ids.id, want, n * sizeof *want) != 0) fail_msg("\"%s\": %s", text, show(&ids));
    lm_ids_free(&ids);
}
#define EXPECT(t, text, special, ...) \
    do { \
        int32_t want_[] = {__VA_ARGS__}; \
        expect_ids(t, text, special, want_, sizeof want_ / sizeof *want_); \
    } while (0)

static void gguf_bpe(void **state) {
    (void)state;
    gguf_fake g;
    lm_error err = {0};
    lm_tokenizer *t = NULL;
    size_t n;
    fake_bpe(&g, "smollm");
    must(lm_tokenizer_from_source(&g.s, &t, &err), &err);
    EXPECT(t, "ab12 a<end>", true, 5, 3, 4, 12, 8); /* digits apart, no BOS */
    EXPECT(t, "\xc3\xa9", false, 10, 11);           /* its two bytes, though a token is written like it */
    assert_string_equal(lm_tokenizer_describe(t), "byte-level BPE, 13 tokens, pre-tokenizer smollm");
    lm_tokenizer_piece(t, 12, &n);
    assert_int_equal(n, 2);
    assert_memory_equal(lm_tokenizer_piece(t, 12, &n), " a", 2);
    lm_tokenizer_free(t);

    fake_bpe(&g, "gpt-2");
    set(&g, "tokenizer.ggml.add_bos_token", v_bool(true));
    set(&g, "tokenizer.ggml.add_eos_token", v_bool(true));
    set(&g, "tokenizer.ggml.eot_token_id", v_int(1));
    set(&g, "tokenizer.ggml.eom_token_id", v_int(8));
    must(lm_tokenizer_from_source(&g.s, &t, &err), &err);
    EXPECT(t, "ab12", true, 0, 5, 6, 8);
    EXPECT(t, "ab12", false, 5, 6);
    const int32_t *eos = lm_tokenizer_eos(t, &n);
    assert_int_equal(n, 2);
    assert_int_equal(eos[0], 8);
    assert_int_equal(eos[1], 1);
    lm_tokenizer_free(t);

    static const char *const pres[] = {"default", "phi-2",        "llama-bpe",      "qwen2",       "qwen35",    "tekken",
                                       "gpt-4o",  "deepseek-llm", "deepseek-coder", "deepseek-v3", "starcoder", "refact",
                                       "olmo",    "command-r",    "glm4",           "chatglm-bpe", "dbrx",      "stablelm2"};
    for (size_t i = 0; i < sizeof pres / sizeof *pres; i++) {
        fake_bpe(&g, pres[i]);
        must(lm_tokenizer_from_source(&g.s, &t, &err), &err);
        EXPECT(t, "ab", false, 5);
        lm_tokenizer_free(t);
    }
}

static void gguf_refusals(void **state) {
    (void)state;
    static const lm_str lone[] = {STR("ab"), STR("a b"), STR("a b")}, wrong[] = {STR("a zz")};
    static const int64_t types[] = {3, 1, 1, 1, 1, 1, 1, 1, 9, 1, 1, 1, 1};
    const struct {
        const char *key;
        lm_value v;
        lm_status code;
        const char *word;
    } bad[] = {
        {"tokenizer.ggml.pre", v_str("martian"), LM_UNSUPPORTED, "martian"},
        {"tokenizer.ggml.pre", v_int(3), LM_FORMAT, "string"},
        {"tokenizer.ggml.model", v_str("t5"), LM_UNSUPPORTED, "t5"},
        {"tokenizer.ggml.model", v_str("none"), LM_MISSING, "no tokenizer"},
        {"tokenizer.ggml.tokens", v_arr(LM_V_INT, bpe_types, 13), LM_FORMAT, "type"},
        {"tokenizer.ggml.tokens", v_arr(LM_V_STRING, bpe_tokens, 0), LM_FORMAT, "missing"},
        {"tokenizer.ggml.token_type", v_arr(LM_V_INT, bpe_types, 12), LM_FORMAT, "12"},
        {"tokenizer.ggml.token_type", v_arr(LM_V_INT, types, 13), LM_UNSUPPORTED, "type 9"},
        {"tokenizer.ggml.merges", v_arr(LM_V_STRING, lone, 3), LM_FORMAT, "merge 0"},
        {"tokenizer.ggml.merges", v_arr(LM_V_STRING, wrong, 1), LM_FORMAT, "right part"},
        {"tokenizer.ggml.eos_token_id", v_int(13), LM_RANGE, "13"},
        {"tokenizer.ggml.bos_token_id", v_bool(true), LM_FORMAT, "integer"},
        {"tokenizer.ggml.add_bos_token", v_int(1), LM_FORMAT, "boolean"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gguf_fake g;
        lm_error err = {0};
        lm_tokenizer *t;
        char line[1400];
        fake_bpe(&g, "gpt-2");
        set(&g, bad[i].key, bad[i].v);
        lm_status st = lm_tokenizer_from_source(&g.s, &t, &err);
        lm_error_line(&err, line, sizeof line);
        if (st != bad[i].code || !strstr(line, bad[i].word) || !strstr(line, bad[i].key) || !strstr(line, "fake.gguf"))
            fail_msg("row %zu: %s (%s)", i, lm_status_name(st), line);
    }
}

/* SentencePiece with scores: the highest score first, the leftmost of equals, bytes for what is no token. */
static void gguf_spm(void **state) {
    (void)state;
    static const lm_str tok[] = {STR("<unk>"),
                                 STR("<s>"),
                                 STR("</s>"),
                                 STR("<0xC3>"),
                                 STR("<0xA9>"),
                                 STR("\xe2\x96\x81"),
                                 STR("a"),
                                 STR("b"),
                                 STR("ab"),
                                 STR("ba"),
                                 STR("\xe2\x96\x81"
                                     "a"),
                                 STR("aa"),
                                 STR("\xe2\x96\x81\xe2\x96\x81")};
    static const int64_t types[] = {2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1, 1, 4};
    static const double score[] = {0, 0, 0, 0, 0, -9, -9, -9, -1, -2, -3, -1, -9};
    gguf_fake g = {.s = {.kind = LM_SOURCE_GGUF, .path = "fake.gguf"}};
    lm_error err = {0};
    lm_tokenizer *t;
    set(&g, "tokenizer.ggml.model", v_str("llama"));
    set(&g, "tokenizer.ggml.tokens", v_arr(LM_V_STRING, tok, 13));
    set(&g, "tokenizer.ggml.token_type", v_arr(LM_V_INT, types, 13));
    set(&g, "tokenizer.ggml.scores", v_arr(LM_V_FLOAT, score, 13));
    set(&g, "tokenizer.ggml.bos_token_id", v_int(1));
    set(&g, "tokenizer.ggml.eos_token_id", v_int(2));
    set(&g, "tokenizer.ggml.unknown_token_id", v_int(0));
    must(lm_tokenizer_from_source(&g.s, &t, &err), &err);
    EXPECT(t, "aba", true, 1, 5, 8, 6);    /* "ab" (-1) before "▁a" (-3) and "ba" (-2) */
    EXPECT(t, "aaa", false, 5, 11, 6);     /* the leftmost pair of equal scores */
    EXPECT(t, "\xc3\xa9", false, 5, 3, 4); /* byte tokens */
    EXPECT(t, "b  b</s>b", false, 5, 7, 12, 5, 7, 2, 5, 7);
    char *out;
    size_t n;
    int32_t ids[] = {10, 3, 4, 12, 7};
    must(lm_tokenizer_decode(t, ids, 5, false, &out, &n, &err), &err);
    assert_string_equal(out, "a\xc3\xa9  b");
    lm_free(out);
    lm_tokenizer_free(t);
    set(&g, "tokenizer.ggml.add_space_prefix", v_bool(false));
    set(&g, "tokenizer.ggml.add_bos_token", v_bool(false));
    must(lm_tokenizer_from_source(&g.s, &t, &err), &err);
    EXPECT(t, "aba", true, 8, 6);
    lm_tokenizer_free(t);
}

static void gguf_out_of_memory(void **state) {
    (void)state;
    gguf_fake g;
    fake_bpe(&g, "deepseek-v3");
    set(&g, "tokenizer.ggml.add_bos_token", v_bool(true));
    for (uint64_t k = 1;; k++) {
        lm_tokenizer *t = NULL;
        lm_error err = {0};
        lm_alloc_fail_after(k);
        lm_status st = lm_tokenizer_from_source(&g.s, &t, &err);
        lm_alloc_fail_after(0);
        lm_tokenizer_free(t);
        if (st == LM_OK) {
            assert_true(k > 10);
            return;
        }
        assert_int_equal(st, LM_NOMEM);
    }
}

/* ---- a model's folder ---- */
static void copy_file(const char *from, const char *to) {
    char buf[1 << 16];
    FILE *a = fopen(from, "rb"), *b = fopen(to, "wb");
    assert_true(a && b);
    for (size_t n; (n = fread(buf, 1, sizeof buf, a)) > 0;) assert_int_equal(fwrite(buf, 1, n, b), n);
    fclose(a);
    fclose(b);
}

static void folder(void **state) {
    (void)state;
    char dir[] = "/tmp/lemma-tokenizer-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    lm_meta_entry eos = {"eos_token_id", v_int(7)}, list = {"eos_token_id", {0}};
    static const int64_t ends[] = {9, 1, 9, 999999};
    list.value = v_arr(LM_V_INT, ends, 4);
    lm_source s = {.kind = LM_SOURCE_HF, .path = dir, .meta = {&eos, 1}};
    lm_error err = {0};
    lm_tokenizer *t = NULL;
    size_t n;
    assert_int_equal(lm_tokenizer_from_source(&s, &t, &err), LM_MISSING);
    snprintf(path, sizeof path, "%s/tokenizer.model", dir);
    copy_file(DATA "bytes.json", path);
    assert_int_equal(lm_tokenizer_from_source(&s, &t, &err), LM_UNSUPPORTED);
    assert_string_equal(err.field, "tokenizer.model");
    remove(path);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    copy_file(DATA "bytes.json", path);
    must(lm_tokenizer_from_source(&s, &t, &err), &err);
    assert_int_equal(lm_tokenizer_eos(t, &n)[0], 7); /* config.json's, no other being there */
    assert_int_equal(n, 1);
    assert_int_equal(lm_tokenizer_bos(t), -1);
    lm_tokenizer_free(t);
    s.generation = (lm_meta){&list, 1}; /* decides: each once, those of the vocabulary */
    must(lm_tokenizer_from_source(&s, &t, &err), &err);
    assert_int_equal(lm_tokenizer_eos(t, &n)[0], 9);
    assert_int_equal(n, 2);
    lm_tokenizer_free(t);
    remove(path);
    remove(dir);
}

/* ---- other people's tokenizers ---- */
static const char *shared(void) { return getenv("SHARED") && *getenv("SHARED") ? getenv("SHARED") : NULL; }

static void shared_json(void **state) {
    const char *name = *state, *dir = shared();
    char path[1024];
    if (!dir) {
        print_message("SHARED is not set: the cases of %s are skipped\n", name);
        skip();
    }
    snprintf(path, sizeof path, "%s/text/tokenizers/%s/tokenizer.json", dir, name);
    lm_tokenizer *t = open_json(path);
    snprintf(path, sizeof path, "%s/text/tokenizers/%s/cases.json", dir, name);
    assert_int_equal(run_cases(t, path), 0);
    lm_tokenizer_free(t);
}

/* The tokenizer of FILE in the folder that LEMMA_GGUF_DIR names; NULL: skip. */
static lm_tokenizer *shared_gguf(const char *file, lm_source **s) {
    lm_error err = {0};
    lm_tokenizer *t = NULL;
    char path[1024];
    const char *dir = getenv("LEMMA_GGUF_DIR");
    if (!shared() || !dir) {
        print_message("SHARED or LEMMA_GGUF_DIR is not set: the cases of %s are skipped\n", file);
        return NULL;
    }
    snprintf(path, sizeof path, "%s/%s", dir, file);
    if (!lm_is_file(path)) {
        print_message("%s is not there: its cases are skipped\n", path);
        return NULL;
    }
    must(lm_source_open(path, s, &err), &err);
    must(lm_tokenizer_from_source(*s, &t, &err), &err);
    return t;
}

static void shared_smollm2_gguf(void **state) {
    (void)state;
    lm_source *s;
    lm_tokenizer *t = shared_gguf("SmolLM2-135M-Instruct.Q4_1.gguf", &s);
    if (!t) skip();
    char path[1024];
    snprintf(path, sizeof path, "%s/text/tokenizers/smollm2/cases.json", shared());
    assert_int_equal(run_cases(t, path), 0);
    lm_tokenizer_free(t);
    lm_source_close(s);
}

static void shared_gemma3_gguf(void **state) {
    (void)state;
    lm_source *s;
    lm_tokenizer *t = shared_gguf("gemma3-270m-q4_k_m.gguf", &s);
    if (!t) skip();
    char path[1024];
    snprintf(path, sizeof path, "%s/text/tokenizers/gemma3/cases.json", shared());
    json_t *root = load_cases(path), *c;
    size_t i, failed = 0;
    /* The score merge is SentencePiece's own; the cases' ids are those of a merge list, which two texts tell apart. */
    json_array_foreach(json_object_get(root, "cases"), i, c) {
        json_t *ids = json_object_get(c, "ids_llamacpp_style"), *with = json_array();
        json_array_append_new(with, json_integer(lm_tokenizer_bos(t)));
        json_array_extend(with, ids);
        failed += !check_case(t, c, ids, with);
        json_decref(with);
    }
    json_decref(root);
    lm_tokenizer_free(t);
    lm_source_close(s);
    assert_int_equal(failed, 0);
}

/* The prompts of a real trace become exactly the ids that the trace ran. */
static void shared_trace(void **state) {
    (void)state;
    lm_source *s, *trace;
    lm_error err = {0};
    char path[1024], key[64];
    lm_tokenizer *t = shared_gguf("SmolLM2-135M-Instruct.Q4_1.gguf", &s);
    if (!t) skip();
    snprintf(path, sizeof path, "%s/real/smollm2-135m/oracle.safetensors", shared());
    must(lm_safetensors_open(path, &trace, &err), &err);
    uint32_t k = 0;
    for (;; k++) {
        snprintf(key, sizeof key, "c%u.text", k);
        const lm_value *v = lm_meta_get(&trace->meta, key);
        snprintf(key, sizeof key, "c%u.ids", k);
        const lm_tensor *ids = lm_source_tensor(trace, key);
        if (!v || !ids) break;
        lm_ids got = {0};
        must(lm_tokenizer_encode(t, v->str.s, v->str.len, true, true, &got, &err), &err);
        assert_int_equal(got.n, ids->dim[0]);
        for (size_t i = 0; i < got.n; i++) {
            int32_t want; /* int32 or int64, little-endian */
            memcpy(&want, ids->data + i * (ids->bytes / got.n), 4);
            assert_int_equal(got.id[i], want);
        }
        lm_ids_free(&got);
    }
    assert_true(k >= 4);
    lm_source_close(trace);
    lm_tokenizer_free(t);
    lm_source_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goldens),
        cmocka_unit_test(decode_bytes),
        cmocka_unit_test(bad_bytes_and_specials),
        cmocka_unit_test(long_texts),
        cmocka_unit_test(hostile_pattern),
        cmocka_unit_test(out_of_memory),
        cmocka_unit_test(refusals),
        cmocka_unit_test(gguf_bpe),
        cmocka_unit_test(gguf_refusals),
        cmocka_unit_test(gguf_spm),
        cmocka_unit_test(gguf_out_of_memory),
        cmocka_unit_test(folder),
        cmocka_unit_test_prestate(shared_json, "smollm2"),
        cmocka_unit_test_prestate(shared_json, "qwen3"),
        cmocka_unit_test_prestate(shared_json, "tekken"),
        cmocka_unit_test_prestate(shared_json, "mistral_v1"),
        cmocka_unit_test(shared_smollm2_gguf),
        cmocka_unit_test(shared_gemma3_gguf),
        cmocka_unit_test(shared_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
