/* The GGUF parser on good, hostile, cut and flipped files. Hostile files are written here, in memory, each with one fault; the parser must
 * name the file, the byte and the field, and allocate nothing that the file's size doesn't justify. */
#include "check.h"
#include "format/parse.h"
#include <stdio.h>
#include <stdlib.h>

/* ---- a small writer ---- */
typedef struct buf {
    uint8_t d[2048];
    size_t n, mark; /* mark: the byte that the error should name */
} buf;
static void raw(buf *b, const void *p, size_t n) {
    assert_true(b->n + n <= sizeof b->d);
    memcpy(b->d + b->n, p, n);
    b->n += n;
}
static void u8(buf *b, uint8_t v) { raw(b, &v, 1); }
static void u32(buf *b, uint32_t v) { raw(b, (uint8_t[]){(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)}, 4); }
static void u64(buf *b, uint64_t v) {
    u32(b, (uint32_t)v);
    u32(b, (uint32_t)(v >> 32));
}
static void str(buf *b, const char *s, size_t n) {
    u64(b, n);
    raw(b, s, n);
}
static void cstr(buf *b, const char *s) { str(b, s, strlen(s)); }
static void mark(buf *b) { b->mark = b->n; }
static void head(buf *b, uint32_t version, uint64_t tensors, uint64_t keys) {
    raw(b, "GGUF", 4);
    u32(b, version);
    u64(b, tensors);
    u64(b, keys);
}
static void key(buf *b, const char *k, uint32_t type) {
    cstr(b, k);
    u32(b, type);
}
static void arch(buf *b) {
    key(b, "general.architecture", 8);
    cstr(b, "llama");
}
static void tensor(buf *b, const char *name, uint32_t rank, const uint64_t *dim, uint32_t type, uint64_t offset) {
    cstr(b, name);
    u32(b, rank);
    for (uint32_t i = 0; i < rank; i++) u64(b, dim[i]);
    u32(b, type);
    u64(b, offset);
}
static void data(buf *b, size_t alignment, size_t bytes) {
    while (b->n % alignment) u8(b, 0);
    while (bytes--) u8(b, 0x55);
}

static lm_status parse(const buf *b, lm_parsed *out, lm_error *err, lm_arena **a) {
    uint8_t *exact = malloc(b->n ? b->n : 1); /* its own block, so that ASan sees a read past the end */
    memcpy(exact, b->d, b->n);
    *a = lm_arena_create();
    *err = (lm_error){0};
    lm_status st = lm_gguf_parse(exact, b->n, "bad.gguf", *a, out, err);
    free(exact);
    return st;
}

static void expect_bad(const char *what, const buf *b, lm_status code, const char *field, const char *text) {
    lm_parsed out = {0};
    lm_error err;
    lm_arena *a;
    lm_status st = parse(b, &out, &err, &a);
    char line[1024];
    lm_error_line(&err, line, sizeof line);
    bool ok = st == code && err.code == code && !strcmp(err.file, "bad.gguf") && err.offset == b->mark && !strcmp(err.field, field) &&
              strstr(err.message, text) && !strchr(line, '\n');
    if (!ok)
        fail_msg("%s: got %s, \"%s\"; wanted %s at byte %zu, field %s, \"%s\"", what, lm_status_name(st), line, lm_status_name(code),
                 b->mark, field, text);
    if (lm_arena_bytes(a) > 32768) fail_msg("%s: %zu bytes held for a file of %zu", what, lm_arena_bytes(a), b->n);
    lm_arena_destroy(a);
}

/* ---- the header ---- */
static void test_header(void **state) {
    (void)state;
    static const struct {
        const char *what;
        uint32_t version;
        uint64_t tensors, keys;
        size_t at;
        lm_status code;
        const char *field, *text;
    } c[] = {{"version 0", 0, 0, 0, 4, LM_UNSUPPORTED, "version", "unknown"},
             {"version 1", 1, 0, 0, 4, LM_UNSUPPORTED, "version", "version 1 is obsolete"},
             {"version 4", 4, 0, 0, 4, LM_UNSUPPORTED, "version", "unknown"},
             {"version 99", 99, 0, 0, 4, LM_UNSUPPORTED, "version", "version 99 is unknown"},
             {"big-endian", 0x03000000, 0, 0, 4, LM_UNSUPPORTED, "version", "big-endian GGUF (version 3)"},
             {"keys 1 in no file", 3, 0, 1, 16, LM_FORMAT, "key count", "can't hold"},
             {"keys 2^40", 3, 0, 1ull << 40, 16, LM_FORMAT, "key count", "can't hold"},
             {"keys 2^63", 3, 0, 1ull << 63, 16, LM_FORMAT, "key count", "can't hold"},
             {"keys -1", 3, 0, UINT64_MAX, 16, LM_FORMAT, "key count", "can't hold"},
             {"tensors 1 in no file", 3, 1, 0, 8, LM_FORMAT, "tensor count", "can't hold"},
             {"tensors 2^40", 3, 1ull << 40, 0, 8, LM_FORMAT, "tensor count", "can't hold"},
             {"tensors 2^63", 3, 1ull << 63, 0, 8, LM_FORMAT, "tensor count", "can't hold"}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        buf b = {.mark = c[i].at};
        head(&b, c[i].version, c[i].tensors, c[i].keys);
        expect_bad(c[i].what, &b, c[i].code, c[i].field, c[i].text);
    }
}

/* ---- metadata: one bad entry after a good one, as bytes ---- */
#define LEN(x) x "\0\0\0\0\0\0\0" /* a u64 under 256 */
#define TYPE(x) x "\0\0\0"
#define K LEN("\1") "k"
#define ARRAY_OF(type) K TYPE("\x9") TYPE(type)
#define TWO63 "\0\0\0\0\0\0\0\x80"
#define CASE(what, bytes, at, field, text) \
    { what, bytes, sizeof(bytes) - 1, at, field, text }

static void test_metadata(void **state) {
    (void)state;
    /* at: the byte that the error names, counted from the entry's start */
    static const struct {
        const char *what, *bytes;
        size_t n, at;
        const char *field, *text;
    } c[] = {CASE("empty key", LEN("\0") TYPE("\4") TYPE("\1"), 0, "metadata key 1", "is empty"),
             CASE("key with NUL", LEN("\3") "a\0b" TYPE("\4") TYPE("\1"), 0, "metadata key 1", "NUL"),
             CASE("key not UTF-8", LEN("\2") "a\xff" TYPE("\4") TYPE("\1"), 8, "metadata key 1", "UTF-8"),
             CASE("key of 2^63", TWO63 "abcdefgh", 0, "metadata key 1", "9223372036854775808 bytes"),
             CASE("duplicate key", LEN("\x14") "general.architecture" TYPE("\4") TYPE("\1"), 0, "general.architecture", "duplicate key"),
             CASE("value type 255", K TYPE("\xff") "abcdefgh", 9, "k", "value type 255"),
             CASE("value type 13", K TYPE("\xd") "abcdefgh", 9, "k", "value type 13"),
             CASE("string of 2^63", K TYPE("\x8") TWO63 "abc", 13, "k", "9223372036854775808 bytes"),
             CASE("string of 1 GiB",
                  K TYPE("\x8") "\0\0\0\x40\0\0\0\0"
                                "abc",
                  13, "k", "1073741824 bytes"),
             CASE("string one byte short", K TYPE("\x8") LEN("\4") "abc", 13, "k", "ends after 3"),
             CASE("a surrogate", K TYPE("\x8") LEN("\3") "\xed\xa0\x80", 21, "k", "UTF-8"),
             CASE("overlong", K TYPE("\x8") LEN("\2") "\xc0\x80", 21, "k", "UTF-8"),
             CASE("array of 2^63", ARRAY_OF("\4") TWO63 "abcd", 17, "k", "9223372036854775808 elements"),
             CASE("array of 2^61: bytes wrap",
                  ARRAY_OF("\xa") "\0\0\0\0\0\0\0\x20"
                                  "abcdefgh",
                  17, "k", "elements"),
             CASE("array of 2^29",
                  ARRAY_OF("\0") "\0\0\0\x20\0\0\0\0"
                                 "abcd",
                  17, "k", "536870912 elements"),
             CASE("array one element short", ARRAY_OF("\4") LEN("\2") "abcd", 17, "k", "2 elements"),
             CASE("three strings in 16 bytes", ARRAY_OF("\x8") LEN("\3") LEN("\0") LEN("\0"), 17, "k", "3 elements"),
             CASE("nested array", ARRAY_OF("\x9") LEN("\1") TYPE("\4") LEN("\1") "abcd", 13, "k", "nested"),
             CASE("element type 255", ARRAY_OF("\xff") LEN("\1") "abcd", 13, "k", "type 255"),
             CASE("bool 2", K TYPE("\7") "\2", 13, "k", "0 or 1, not 2"),
             CASE("bool 255", K TYPE("\7") "\xff", 13, "k", "not 255"),
             CASE("bool 2 in an array", ARRAY_OF("\7") LEN("\2") "\1\2", 26, "k", "element 1: a bool must be 0 or 1, not 2"),
             CASE("string in an array not UTF-8", ARRAY_OF("\x8") LEN("\1") LEN("\1") "\xff", 33, "k", "UTF-8"),
             CASE("string in an array too long", ARRAY_OF("\x8") LEN("\1") TWO63, 25, "k", "9223372036854775808 bytes"),
             CASE("uint64 over int64 in an array", ARRAY_OF("\xa") LEN("\1") TWO63, 25, "k", "element 0 is over"),
             CASE("no value", K TYPE("\4") "ab", 13, "k", "truncated: the value needs 4 bytes"),
             CASE("no type", K "ab", 9, "k", "truncated: the value's type")};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        buf b = {0};
        head(&b, 3, 0, 2);
        arch(&b);
        b.mark = b.n + c[i].at;
        raw(&b, c[i].bytes, c[i].n);
        expect_bad(c[i].what, &b, LM_FORMAT, c[i].field, c[i].text);
    }
}

static void test_alignment(void **state) {
    (void)state;
    static const struct {
        uint32_t type;
        uint64_t v;
        bool good;
    } c[] = {{4, 0, false},  {4, 1, false},  {4, 3, false}, {4, 4, false}, {4, 24, false}, {4, 1u << 31, false}, {10, 32, false},
             {5, 32, false}, {6, 32, false}, {8, 0, false}, {4, 8, true},  {4, 64, true},  {4, 4096, true}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        buf b = {0};
        head(&b, 3, 0, 1);
        mark(&b);
        key(&b, "general.alignment", c[i].type);
        if (c[i].type == 10 || c[i].type == 8)
            u64(&b, c[i].v);
        else
            u32(&b, (uint32_t)c[i].v);
        if (c[i].good) {
            lm_parsed out;
            lm_error err;
            lm_arena *a;
            assert_int_equal(parse(&b, &out, &err, &a), LM_OK);
            assert_int_equal(out.alignment, c[i].v);
            lm_arena_destroy(a);
        } else {
            expect_bad("alignment", &b, LM_FORMAT, "general.alignment", c[i].type == 4 ? "power of two" : "uint32");
        }
    }
}

/* ---- tensors ---- */
/* at: which part the error names: 'n'ame, name 'b'ytes, 'r'ank, 'd'imension 0…3, 't'ype, 'o'ffset, 'h' (record) */
typedef struct tcase {
    const char *what;
    const char *name;
    size_t name_n;
    uint32_t rank;
    uint64_t dim[5];
    uint32_t type;
    uint64_t offset;
    char at;
    int d;
    lm_status code;
    const char *field, *text;
} tcase;
#define NAME_64 "a123456789b123456789c123456789d123456789e123456789f123456789abcd"

static void tensor_case(const tcase *c) {
    buf b = {0};
    head(&b, 3, 2, 1);
    arch(&b);
    tensor(&b, "first", 1, (uint64_t[]){8}, 0, 0);
    size_t at[256] = {['h'] = b.n, ['n'] = b.n};
    u64(&b, c->name_n);
    at['b'] = b.n;
    raw(&b, c->name, c->name_n < 100 ? c->name_n : strlen(c->name));
    at['r'] = b.n;
    u32(&b, c->rank);
    at['d'] = b.n + 8 * (size_t)c->d;
    for (uint32_t i = 0; i < c->rank && i < 5; i++) u64(&b, c->dim[i]);
    at['t'] = b.n;
    u32(&b, c->type);
    at['o'] = b.n;
    u64(&b, c->offset);
    data(&b, 32, 64);
    b.mark = at[(unsigned char)c->at];
    if (c->text) {
        expect_bad(c->what, &b, c->code, c->field, c->text);
        return;
    }
    lm_parsed out;
    lm_error err = {0};
    lm_arena *a;
    if (parse(&b, &out, &err, &a) != LM_OK) fail_msg("%s: %s", c->what, err.message);
    assert_int_equal(out.n_tensors, 2);
    lm_arena_destroy(a);
}

static void test_tensors(void **state) {
    (void)state;
    static const tcase c[] = {
        {"good", "w", 1, 2, {4, 2}, 0, 32, 'h', 0, LM_OK, NULL, NULL},
        {"63 bytes", NAME_64, 63, 1, {8}, 0, 32, 'n', 0, LM_FORMAT, "tensor 1", NULL},
        {"64 bytes", NAME_64, 64, 1, {8}, 0, 32, 'n', 0, LM_FORMAT, "tensor 1", "64 bytes: at most 63"},
        {"empty name", "", 0, 1, {8}, 0, 32, 'n', 0, LM_FORMAT, "tensor 1", "is empty"},
        {"NUL in name", "a\0b", 3, 1, {8}, 0, 32, 'n', 0, LM_FORMAT, "tensor 1", "NUL"},
        {"name not UTF-8", "a\xf8", 2, 1, {8}, 0, 32, 'b', 0, LM_FORMAT, "tensor 1", "UTF-8"},
        {"name 2^63", "a", 1ull << 63, 1, {8}, 0, 32, 'n', 0, LM_FORMAT, "tensor 1", "9223372036854775808 bytes"},
        {"rank 0", "w", 1, 0, {0}, 0, 32, 'r', 0, LM_FORMAT, "w", "0 dimensions"},
        {"rank 4", "w", 1, 4, {2, 2, 2, 1}, 0, 32, 'r', 0, LM_OK, "w", NULL},
        {"rank 5", "w", 1, 5, {8, 1, 1, 1, 1}, 0, 32, 'r', 0, LM_FORMAT, "w", "5 dimensions"},
        {"rank 2^31", "w", 1, 1u << 31, {8}, 0, 32, 'r', 0, LM_FORMAT, "w", "2147483648 dimensions"},
        {"zero dimension", "w", 1, 2, {8, 0}, 0, 32, 'd', 1, LM_FORMAT, "w", "dimension 1 is 0"},
        {"negative dimension", "w", 1, 2, {(uint64_t)-8, 1}, 0, 32, 'd', 0, LM_FORMAT, "w", "dimension 0 is -8"},
        {"2^42+1", "w", 1, 1, {(1ull << 42) + 1}, 0, 32, 'o', 0, LM_FORMAT, "w", "past the file"},
        {"2^62 floats", "w", 1, 1, {1ull << 62}, 0, 32, 'd', 0, LM_FORMAT, "w", "overflows"},
        {"2^33 x 2^31", "w", 1, 2, {1ull << 33, 1ull << 31}, 0, 32, 'd', 0, LM_FORMAT, "w", "overflows"},
        {"wraps to 32", "w", 1, 3, {1ull << 32, 1ull << 32, 8}, 0, 32, 'd', 0, LM_FORMAT, "w", "overflows"},
        {"type 4", "w", 1, 1, {32}, 4, 32, 't', 0, LM_UNSUPPORTED, "w", "type 4 (Q4_2, removed"},
        {"type 5", "w", 1, 1, {32}, 5, 32, 't', 0, LM_UNSUPPORTED, "w", "type 5 (Q4_3, removed"},
        {"type 31", "w", 1, 1, {32}, 31, 32, 't', 0, LM_UNSUPPORTED, "w", "type 31 (Q4_0_4_4"},
        {"type 33", "w", 1, 1, {32}, 33, 32, 't', 0, LM_UNSUPPORTED, "w", "type 33"},
        {"type 36", "w", 1, 1, {32}, 36, 32, 't', 0, LM_UNSUPPORTED, "w", "type 36"},
        {"type 38", "w", 1, 1, {32}, 38, 32, 't', 0, LM_UNSUPPORTED, "w", "type 38"},
        {"type 1000", "w", 1, 1, {32}, 1000, 32, 't', 0, LM_FORMAT, "w", "type 1000 is unknown"},
        {"type -1", "w", 1, 1, {32}, UINT32_MAX, 32, 't', 0, LM_FORMAT, "w", "unknown"},
        {"Q4_K row of 100", "w", 1, 2, {100, 2}, 12, 32, 'd', 0, LM_FORMAT, "w", "100 elements is no whole number of Q4_K"},
        {"Q8_0 row of 16", "w", 1, 2, {16, 2}, 8, 32, 'd', 0, LM_FORMAT, "w", "blocks of 32"},
        {"unaligned", "w", 1, 1, {8}, 0, 16, 'o', 0, LM_FORMAT, "w", "no multiple of the alignment 32"},
        {"past the end", "w", 1, 1, {9}, 0, 32, 'o', 0, LM_FORMAT, "w", "past the file"},
        {"offset past the end", "w", 1, 1, {8}, 0, 64, 'o', 0, LM_FORMAT, "w", "past the file"},
        {"2^64-32", "w", 1, 1, {8}, 0, (uint64_t)-32, 'o', 0, LM_FORMAT, "w", "past the file"},
        {"overlap", "w", 1, 1, {8}, 0, 0, 'h', 0, LM_FORMAT, "w", "overlaps that of first"},
        {"duplicate", "first", 5, 1, {8}, 0, 32, 'h', 0, LM_FORMAT, "first", "duplicate tensor"}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) tensor_case(&c[i]);
}

/* ---- whole files ---- */
/* A file with a bit of everything. */
static void good(buf *b) {
    head(b, 3, 2, 6);
    arch(b);
    key(b, "general.alignment", 4);
    u32(b, 64);
    key(b, "llama.block_count", 10);
    u64(b, UINT64_MAX);
    key(b, "f", 6);
    u32(b, 0x3fc00000);
    key(b, "s", 9);
    u32(b, 8);
    u64(b, 2);
    cstr(b, "a");
    cstr(b, "");
    key(b, "b", 9);
    u32(b, 7);
    u64(b, 2);
    u8(b, 1);
    u8(b, 0);
    tensor(b, "z", 2, (uint64_t[]){4, 2}, 0, 0);
    tensor(b, "a.weight", 1, (uint64_t[]){32}, 8, 64);
    data(b, 64, 98);
}

static void test_good(void **state) {
    (void)state;
    buf b = {0};
    good(&b);
    lm_parsed out;
    lm_error err;
    lm_arena *a;
    assert_int_equal(parse(&b, &out, &err, &a), LM_OK);
    assert_int_equal(out.alignment, 64);
    assert_int_equal(out.n_tensors, 2);
    assert_string_equal(out.tensor[0].name, "a.weight");
    assert_int_equal(out.tensor[0].bytes, 34);
    assert_string_equal(out.tensor[1].name, "z");
    assert_int_equal(out.tensor[1].dim[0], 2); /* row-major: [2, 4] */
    assert_int_equal(out.tensor[1].dim[1], 4);
    const lm_value *v = lm_meta_get(&out.meta, "llama.block_count");
    assert_true(v && v->kind == LM_V_INT && v->i == INT64_MAX && v->u == UINT64_MAX);
    v = lm_meta_get(&out.meta, "s");
    assert_true(v && v->kind == LM_V_ARRAY && v->elem == LM_V_STRING && v->arr.n == 2);
    assert_string_equal(((const lm_str *)v->arr.data)[0].s, "a");
    assert_string_equal(((const lm_str *)v->arr.data)[1].s, "");
    assert_null(lm_meta_get(&out.meta, "absent"));
    lm_arena_destroy(a);
}

/* Reads what a parse gave: every string, the first and last byte of every tensor. */
static uint64_t walk(const lm_parsed *p) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < p->meta.n; i++) {
        const lm_value *v = &p->meta.entry[i].value;
        sum += strlen(p->meta.entry[i].key);
        if (v->kind == LM_V_STRING) sum += strlen(v->str.s);
        for (uint64_t k = 0; v->kind == LM_V_ARRAY && v->elem == LM_V_STRING && k < v->arr.n; k++)
            sum += strlen(((const lm_str *)v->arr.data)[k].s);
    }
    for (uint32_t i = 0; i < p->n_tensors; i++) sum += p->tensor[i].data[0] + p->tensor[i].data[p->tensor[i].bytes - 1];
    return sum;
}

static void survives(const buf *b, bool may_pass) {
    uint8_t *exact = malloc(b->n ? b->n : 1);
    memcpy(exact, b->d, b->n);
    lm_arena *a = lm_arena_create();
    lm_parsed out = {0};
    lm_error err = {0};
    lm_status st = lm_gguf_parse(exact, b->n, "x", a, &out, &err);
    assert_true((may_pass && st == LM_OK) || st == LM_FORMAT || st == LM_UNSUPPORTED);
    if (st == LM_OK)
        walk(&out);
    else
        assert_true(err.code == st && err.message[0] && err.file[0]);
    assert_true(lm_arena_bytes(a) < 32768);
    lm_arena_destroy(a);
    free(exact);
}

static void test_flips(void **state) {
    (void)state;
    buf b = {0};
    good(&b);
    for (size_t i = 0; i < b.n; i++)
        for (int k = 0; k < 256; k++) {
            buf c = b;
            c.d[i] = (uint8_t)k;
            survives(&c, true);
        }
}

static void test_truncations(void **state) {
    (void)state;
    buf b = {0};
    good(&b);
    for (size_t n = 0; n < b.n; n++) {
        buf c = b;
        c.n = n;
        survives(&c, false);
    }
}

static void test_allocation_failures(void **state) {
    (void)state;
    buf b = {0};
    good(&b);
    for (uint64_t k = 1;; k++) {
        lm_arena *a = lm_arena_create();
        lm_parsed out;
        lm_error err = {0};
        lm_alloc_fail_after(k);
        lm_status st = lm_gguf_parse(b.d, b.n, "x", a, &out, &err);
        lm_alloc_fail_after(0);
        lm_arena_destroy(a);
        if (st == LM_OK) {
            assert_true(k > 3);
            return;
        }
        assert_int_equal(st, LM_NOMEM);
    }
}

static void test_looks_like(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        const char *text;
    } c[] = {{"", 0, "empty file"},
             {"PK\3\4....", 8, "zip"},
             {"\x80\x02}q", 4, "pickle"},
             {"lmgg\1\0\0\0", 8, "GGML"},
             {"tjgg\3\0\0\0", 8, "GGJT"},
             {"ggjt\3\0\0\0", 8, "GGJT"},
             {"<!DOCTYPE html><html>", 21, "HTML"},
             {"\n <html>", 8, "HTML"},
             {"version https://git-lfs.x/spec/v1\n", 34, "git-lfs"},
             {"\x20\0\0\0\0\0\0\0{\"a\":1}", 15, "safetensors"},
             {"{\"a\":1}", 7, "JSON"},
             {"FUGG", 4, "big-endian"},
             {"GGU", 3, "a text file"},
             {"hello world, \xc3\xa9\n", 16, "a text file"},
             {"hello\1world", 11, "no known"}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        buf b = {0};
        raw(&b, c[i].bytes, c[i].n);
        expect_bad(c[i].text, &b, LM_UNSUPPORTED, "magic", c[i].text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_header),      cmocka_unit_test(test_metadata),
                                       cmocka_unit_test(test_alignment),   cmocka_unit_test(test_tensors),
                                       cmocka_unit_test(test_good),        cmocka_unit_test(test_flips),
                                       cmocka_unit_test(test_truncations), cmocka_unit_test(test_allocation_failures),
                                       cmocka_unit_test(test_looks_like)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
