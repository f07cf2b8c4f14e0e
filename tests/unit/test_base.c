/* base/: errors, memory, maps, SHA-256, Philox. */
#include "check.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.c" /* the file itself: both of its block functions are tested, whatever this CPU would pick */
#include "base/map.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"

/* ---- status ------------------------------------------------------------------------------------------------------------------ */

static void status_table(void **state) {
    (void)state;
    assert_string_equal(lm_status_name(LM_OK), "OK");
    assert_string_equal(lm_status_name(LM_NOMEM), "NOMEM");
    assert_string_equal(lm_status_text(LM_FORMAT), "a file is malformed");
    assert_int_equal(lm_status_exit_code(LM_OK), 0);
    assert_int_equal(lm_status_exit_code(LM_USAGE), 2);
    assert_int_equal(lm_status_exit_code(LM_MISSING), 3);
    assert_int_equal(lm_status_exit_code((lm_status)99), 70);
    assert_non_null(lm_status_name((lm_status)-1));
    assert_non_null(lm_status_text((lm_status)99));
}

static void error_lines(void **state) {
    (void)state;
    lm_error e;
    char line[2000];
    assert_int_equal(lm_fail(&e, LM_RANGE, "%d is too much", 7), LM_RANGE);
    assert_string_equal(lm_error_line(&e, line, sizeof line), "7 is too much");
    lm_error_set_file(&e, "a.gguf");
    lm_error_set_file(&e, "later.gguf");
    lm_error_set_field(&e, "k\n\xff\xe2\x82");
    lm_error_set_field(&e, "later");
    assert_string_equal(lm_error_line(&e, line, sizeof line), "a.gguf: k\\x0a\\xff\\xe2\\x82: 7 is too much");
    assert_int_equal(lm_fail_at(&e, LM_FORMAT, "b\n.gguf", 24, "n\xc3\xa4me", "bad\r\nthing \xe0\x80"), LM_FORMAT);
    assert_string_equal(e.file, "b\n.gguf"); /* the path itself can still be opened */
    assert_string_equal(lm_error_line(&e, line, sizeof line), "b\\x0a.gguf: at byte 24: n\xc3\xa4me: bad\\x0d\\x0athing \\xe0\\x80");
    assert_int_equal(lm_fail_nomem(&e, "a buffer", 123456), LM_NOMEM);
    assert_non_null(strstr(e.message, "123456 bytes needed for a buffer, "));
    assert_non_null(strstr(e.message, " available"));
    lm_fail_nomem(&e, "a buffer", 0);
    assert_non_null(strstr(e.message, "no room for a buffer, "));
    lm_fail_nomem(&e, "a buffer", UINT64_MAX);
    assert_non_null(strstr(e.message, "a buffer would take more bytes than can be counted"));
    /* an argument may be part of the same error */
    lm_fail_at(&e, LM_IO, "f", 0, "g", "first");
    lm_fail_at(&e, LM_FORMAT, e.file, e.offset, e.field, "then %s", e.message);
    assert_string_equal(lm_error_line(&e, line, sizeof line), "f: at byte 0: g: then first");
    /* no error wanted, no room for one */
    assert_int_equal(lm_fail(NULL, LM_IO, "x"), LM_IO);
    assert_int_equal(lm_fail_at(NULL, LM_IO, NULL, 0, NULL, "x"), LM_IO);
    lm_error_set_file(NULL, "x");
    char small[4] = "abc";
    assert_ptr_equal(lm_error_line(&e, small, 0), small);
    assert_string_equal(small, "abc");
    assert_string_equal(lm_error_line(&e, small, 4), "f: ");
}

static void error_truncation(void **state) {
    (void)state;
    char big[6000];
    lm_error e;
    for (size_t shift = 0; shift < 3; shift++) { /* a three-byte character never survives in part */
        memset(big, 'x', shift);
        for (size_t i = shift; i + 3 < sizeof big; i += 3) memcpy(big + i, "\xe2\x82\xac", 4);
        lm_fail_at(&e, LM_IO, NULL, 0, big, "%s", big);
        assert_in_range(strlen(e.message), sizeof e.message - 4, sizeof e.message - 1);
        assert_true(lm_utf8_valid((uint8_t *)e.message, strlen(e.message)));
        assert_true(lm_utf8_valid((uint8_t *)e.field, strlen(e.field)));
        assert_null(strstr(e.message, "\\x"));
        for (size_t n = 1; n < 40; n++) {
            char line[40];
            lm_error_line(&e, line, n);
            assert_true(strlen(line) < n && lm_utf8_valid((uint8_t *)line, strlen(line)));
        }
    }
    memset(big, 'p', sizeof big - 1);
    big[sizeof big - 1] = 0;
    lm_fail_at(&e, LM_IO, big, 0, NULL, "x");
    assert_int_equal(strlen(e.file), sizeof e.file - 1);
}

/* ---- memory ------------------------------------------------------------------------------------------------------------------ */

static void checked_sizes(void **state) {
    (void)state;
    uint64_t r = 5;
    assert_true(lm_mul(1ull << 31, 1ull << 32, &r));
    assert_true(r == 1ull << 63);
    assert_false(lm_mul(1ull << 32, 1ull << 32, &r));
    assert_true(r == 1ull << 63);
    assert_true(lm_add(UINT64_MAX, 0, &r));
    assert_false(lm_add(UINT64_MAX, 1, &r));
    assert_true(r == UINT64_MAX);
}

static void allocation(void **state) {
    (void)state;
    void *p = lm_malloc(0);
    assert_non_null(p);
    lm_free(p);
    lm_free(NULL);
    volatile size_t huge = SIZE_MAX;
    assert_null(lm_malloc(huge));
    assert_null(lm_calloc(huge / 2, 3));
    assert_null(lm_calloc(1ull << 33, 1ull << 31));
    assert_null(lm_strndup("x", huge));
    assert_null(lm_pages_alloc(huge, false));
    assert_null(lm_pages_alloc(huge, true));
    p = lm_calloc(10, 10);
    for (int i = 0; i < 100; i++) assert_int_equal(((char *)p)[i], 0);
    assert_null(lm_realloc(p, huge)); /* p lives on */
    p = lm_realloc(p, 1000);
    assert_non_null(p);
    lm_free(p);
    char *s = lm_strndup("ab\0cd", 5);
    assert_memory_equal(s, "ab\0cd", 6);
    lm_free(s);
    s = lm_strdup("");
    assert_string_equal(s, "");
    lm_free(s);
}

static void failing_allocation(void **state) {
    (void)state;
    for (unsigned n = 1; n <= 4; n++) {
        lm_alloc_fail_after(n);
        for (unsigned i = 1; i <= 6; i++) {
            void *p = i % 2 ? lm_malloc(8) : lm_calloc(1, 8);
            assert_true((p == NULL) == (i == n));
            lm_free(p);
        }
    }
    lm_alloc_fail_after(1);
    assert_null(lm_pages_alloc(1, false));
    lm_alloc_fail_after(1);
    assert_null(lm_realloc(NULL, 1));
    lm_alloc_fail_after(2);
    lm_alloc_fail_after(0);
    for (int i = 0; i < 3; i++) lm_free(memset(lm_malloc(1), 0, 1));
    lm_alloc_fail_after(1);
    assert_null(lm_arena_create());
    lm_arena *a = lm_arena_create();
    lm_alloc_fail_after(1);
    assert_null(lm_arena_alloc(a, 10));
    assert_non_null(lm_arena_alloc(a, 10));
    lm_alloc_fail_after(1);
    assert_null(lm_arena_printf(a, "%*d", 1 << 20, 1));
    lm_alloc_fail_after(0);
    lm_arena_destroy(a);
    lm_arena_destroy(NULL);
}

static void pages(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 4096, 4097, (2u << 20) - 1, 2u << 20, (2u << 20) + 1, 5u << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int huge = 0; huge < 2; huge++) {
            uint8_t *p = lm_pages_alloc(sizes[i], huge);
            assert_non_null(p);
            assert_int_equal((uintptr_t)p % (huge && sizes[i] >= 2u << 20 ? 2u << 20 : 64), 0);
            for (size_t k = 0; k < sizes[i]; k += 1021) assert_int_equal(p[k], 0);
            if (sizes[i]) p[0] = p[sizes[i] - 1] = 1;
            lm_pages_free(p, sizes[i]);
            unsigned char there;
            assert_int_equal(mincore(p, 1, &there), -1); /* ENOMEM: gone */
        }
    lm_pages_free(NULL, 1);
}

/* Blocks follow each other in a slab; large ones have their own; each is zero, and its pages go when it is freed, the slab's when all are.
 */
static void slabs(void **state) {
    (void)state;
    enum { N = 24 };
    const size_t small = (3u << 20) + 5, large = 40u << 20;
    lm_slab *at = NULL, *of[N], *alone, *none = NULL;
    uint8_t *p[N];
    for (int i = 0; i < N; i++) {
        assert_non_null(p[i] = lm_slab_alloc(&at, small, &of[i]));
        assert_int_equal((uintptr_t)p[i] % 64, 0);
        assert_ptr_equal(of[i], at);
        for (size_t k = 0; k < small; k += 1021) assert_int_equal(p[i][k], 0);
        memset(p[i], i + 1, small);
        if (i && of[i] == of[i - 1]) assert_ptr_equal(p[i], p[i - 1] + small / 64 * 64 + 64);
    }
    assert_ptr_not_equal(of[0], of[N - 1]);
    uint8_t *q = lm_slab_alloc(&at, large, &alone);
    assert_non_null(q);
    assert_ptr_not_equal(alone, at);
    q[large - 1] = 1;
    for (uint64_t n = 1; n <= 2; n++) {
        lm_slab *s;
        lm_alloc_fail_after(n);
        assert_null(lm_slab_alloc(&none, small, &s));
        assert_null(none);
        lm_alloc_fail_after(0);
    }
    assert_int_equal(lm_slab_asks(small), 64u << 20);
    assert_int_equal(lm_slab_asks(large), large);
    lm_slab *s;
    volatile size_t most = SIZE_MAX;
    assert_null(lm_slab_alloc(&at, most, &s));
    lm_slab_free(of[1], p[1], small); /* its neighbours stay as they are */
    for (int i = 0; i < N; i++)
        if (i != 1) assert_true(p[i][0] == i + 1 && p[i][small - 1] == i + 1);
    lm_slab_leave(&at);
    assert_null(at);
    lm_slab_leave(&at);
    lm_slab_free(alone, q, large);
    for (int i = 0; i < N; i++)
        if (i != 1) lm_slab_free(of[i], p[i], small);
}

static void arenas(void **state) {
    (void)state;
    lm_arena *a = lm_arena_create();
    uint8_t *at[300];
    size_t len[300], sum = 0;
    for (size_t i = 0; i < 300; i++) {
        uint32_t w[4];
        lm_philox(1, 2, i, w);
        len[i] = i % 50 == 49 ? 300000 : w[0] % 700;
        if (i % 3 == 0) {
            char text[700];
            memset(text, (int)i, sizeof text);
            if (len[i] > sizeof text) len[i] = 0;
            at[i] = (uint8_t *)lm_arena_strndup(a, text, len[i]);
            assert_int_equal(at[i][len[i]], 0);
        } else {
            at[i] = i % 3 == 1 ? lm_arena_alloc(a, len[i]) : lm_arena_calloc(a, len[i], 1);
            assert_int_equal((uintptr_t)at[i] % 64, 0);
            for (size_t k = 0; k < len[i]; k++) assert_int_equal(at[i][k], 0);
            memset(at[i], (int)i, len[i]);
        }
        sum += len[i];
    }
    for (size_t i = 0; i < 300; i++) /* nothing overlapped anything */
        for (size_t k = 0; k < len[i]; k++) assert_int_equal(at[i][k], (uint8_t)i);
    assert_true(lm_arena_bytes(a) >= sum && lm_arena_bytes(a) < 3 * sum);
    char *s = lm_arena_printf(a, "%s.%d", "layer", 12);
    assert_string_equal(s, "layer.12");
    volatile size_t most = SIZE_MAX;
    assert_null(lm_arena_alloc(a, most));
    assert_null(lm_arena_calloc(a, most / 2, 3));
    assert_null(lm_arena_strndup(a, "x", most));
    for (int i = 0; i < 100000; i++) { /* up to each chunk's last byte (the address sanitizer sees one more) */
        char *c = lm_arena_strndup(a, "", 0);
        assert_int_equal(*c, 0);
        *c = 1;
    }
    lm_arena_destroy(a);
}

/* ---- maps -------------------------------------------------------------------------------------------------------------------- */

static char dir[] = "/tmp/lemma-test-XXXXXX";
static int make_dir(void **state) {
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}
static int remove_dir(void **state) {
    (void)state;
    return rmdir(dir);
}

static char *make_file(const char *name, const void *data, size_t n) {
    char *path = lm_path_join(dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
    return path;
}

static void maps(void **state) {
    (void)state;
    size_t n = 5 * 4096 + 100;
    uint8_t *data = lm_malloc(n);
    for (size_t i = 0; i < n; i++) data[i] = (uint8_t)(i * 31 + i / 256);
    char *path = make_file("f", data, n);
    lm_map m;
    lm_error e;
    assert_true(lm_is_file(path) && !lm_is_dir(path) && lm_is_dir(dir) && !lm_is_file(dir));
    assert_int_equal(lm_map_open(path, &m, &e), LM_OK);
    assert_int_equal(m.size, n);
    assert_string_equal(m.path, path);
    assert_memory_equal(m.data, data, n);
    for (size_t from = 0; from <= n + 10; from += 777)
        for (uint64_t len = 0; len <= n; len += 1111) lm_map_release(&m, m.data + from, len);
    lm_map_release(&m, m.data + 1, UINT64_MAX);
    lm_map_release(&m, m.data - 1, UINT64_MAX);
    lm_map_release(&m, NULL, 10);
    assert_memory_equal(m.data, data, n);
    lm_alloc_fail_after(1);
    lm_map other;
    assert_int_equal(lm_map_open(path, &other, &e), LM_NOMEM);
    assert_null(other.data);
    lm_map_close(&m);
    assert_null(m.data);
    lm_map_close(&m); /* harmless */
    unlink(path);
    lm_free(path);
    path = make_file("empty", "", 0);
    assert_int_equal(lm_map_open(path, &m, &e), LM_OK);
    assert_true(m.data == NULL && m.size == 0);
    lm_map_release(&m, m.data, 0);
    lm_map_close(&m);
    unlink(path);
    lm_free(path);
    lm_free(data);
}

/* Which pages of a mapping are present in this process, a bit each; false where the system doesn't tell. */
static bool present(const uint8_t *p, size_t pages_n, uint32_t *bits) {
    long page = sysconf(_SC_PAGESIZE);
    int fd = open("/proc/self/pagemap", O_RDONLY);
    *bits = 0;
    for (size_t i = 0; fd >= 0 && i < pages_n; i++) {
        uint64_t entry;
        if (pread(fd, &entry, 8, (off_t)((uintptr_t)p / (uintptr_t)page + i) * 8) == 8 && entry >> 63) *bits |= 1u << i;
    }
    if (fd >= 0) close(fd);
    return *bits == (1u << pages_n) - 1;
}

static void release(void **state) {
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = 6 * page;
    uint8_t *data = lm_calloc(6, page);
    char *path = make_file("r", data, n);
    lm_map m;
    uint32_t bits;
    volatile uint8_t sum = 0;
    assert_int_equal(lm_map_open(path, &m, NULL), LM_OK);
    for (size_t i = 0; i < n; i += page) sum += m.data[i];
    bool told = present(m.data, 6, &bits);
    if (told) { /* only the pages wholly inside go */
        lm_map_release(&m, m.data + 1, 3 * page);
        present(m.data, 6, &bits);
        assert_int_equal(bits, 0x39);
        lm_map_release(&m, m.data + 3 * page, 2 * page - 1);
        present(m.data, 6, &bits);
        assert_int_equal(bits, 0x31);
    }
    assert_memory_equal(m.data, data, n);
    lm_map_close(&m);
    /* a neighbour keeps its bytes, whatever n says */
    uint8_t *two = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(two, MAP_FAILED);
    two[page] = 77;
    m = (lm_map){.data = two, .size = page};
    lm_map_release(&m, two, 2 * page);
    assert_int_equal(two[page], 77);
    munmap(two, 2 * page);
    unlink(path);
    lm_free(path);
    lm_free(data);
    if (!told) skip();
}

static void not_maps(void **state) {
    (void)state;
    lm_map m;
    lm_error e;
    char line[1200];
    char *fifo = lm_path_join(dir, "fifo");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(lm_map_open(fifo, &m, &e), LM_IO); /* and doesn't hang */
    assert_non_null(strstr(lm_error_line(&e, line, sizeof line), "a FIFO"));
    assert_non_null(strstr(line, fifo));
    unlink(fifo);
    lm_free(fifo);
    assert_int_equal(lm_map_open(dir, &m, &e), LM_IO);
    assert_non_null(strstr(e.message, "a directory"));
    assert_int_equal(lm_map_open("/dev/zero", &m, &e), LM_IO);
    assert_non_null(strstr(e.message, "device"));
    assert_int_equal(lm_map_open("tests/no such file", &m, &e), LM_IO);
    assert_non_null(strstr(e.message, "No such file"));
    assert_string_equal(e.file, "tests/no such file");
    assert_int_equal(lm_map_open("", &m, NULL), LM_IO);
    assert_true(m.data == NULL && m.path == NULL);
    assert_false(lm_is_file("tests/no such file") || lm_is_dir("tests/no such file"));
}

/* ---- SHA-256: vectors of FIPS 180 and of NIST's example pages ---------------------------------------------------------------------- */

typedef void block_fn(uint32_t h[8], const uint8_t *p, size_t n);

static void hash_pieces(const uint8_t *p, size_t n, size_t piece, char out[65]) {
    lm_sha256 s;
    uint8_t d[32];
    lm_sha256_init(&s);
    for (size_t i = 0; i < n; i += piece) lm_sha256_update(&s, p + i, n - i < piece ? n - i : piece);
    lm_sha256_final(&s, d);
    lm_sha256_hex(d, out);
}

static void sha256_vectors(void **state) {
    (void)state;
    static const struct {
        const char *text, *hex;
    } v[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
         "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
    };
    char hex[65];
    for (size_t i = 0; i < sizeof v / sizeof *v; i++)
        for (size_t piece = 1; piece < 130; piece++) {
            hash_pieces((const uint8_t *)v[i].text, strlen(v[i].text), piece, hex);
            assert_string_equal(hex, v[i].hex);
        }
    uint8_t *a = lm_malloc(1000000);
    memset(a, 'a', 1000000);
    static const size_t pieces[] = {1000000, 999983, 4096, 100, 63};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        hash_pieces(a, 1000000, pieces[i], hex);
        assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    }
    lm_free(a);
}

static void sha256_both_paths(void **state) {
    (void)state;
#if defined(__x86_64__)
    if (!have_sha_ni()) skip();
    uint8_t data[64 * 20 + 1];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * i * 7 + i / 3);
    for (size_t n = 0; n <= 20; n++) {
        uint32_t x[8], y[8];
        for (uint32_t i = 0; i < 8; i++) x[i] = y[i] = 0x9e3779b9u * (i + 1 + (uint32_t)n);
        blocks_c(x, data + 1, n);
        blocks_ni(y, data + 1, n);
        assert_memory_equal(x, y, sizeof x);
    }
#else
    skip();
#endif
}

static void sha256_plain_vector(void **state) {
    (void)state;
    uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    static const uint32_t want[8] = {0xba7816bf, 0x8f01cfea, 0x414140de, 0x5dae2223, 0xb00361a3, 0x96177a9c, 0xb410ff61, 0xf20015ad};
    uint8_t block[64] = "abc\x80";
    block[63] = 24;
    blocks_c(h, block, 1);
    assert_memory_equal(h, want, sizeof h);
}

/* ---- random numbers: the known answers of the Random123 library ------------------------------------------------------------------ */

static void philox_vectors(void **state) {
    (void)state;
    static const struct {
        uint64_t seed, stream, counter;
        uint32_t want[4];
    } v[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < 3; i++) {
        uint32_t w[4];
        lm_philox(v[i].seed, v[i].stream, v[i].counter, w);
        assert_memory_equal(w, v[i].want, sizeof w);
    }
}

static void uniforms(void **state) {
    (void)state;
    /* the top 53 bits of words 1 and 0 of the first vector above */
    assert_true(lm_uniform(0, 0, 0) == (double)(0xe169c58d6627e8d5u >> 11) / 9007199254740992.0);
    double sum = 0, squares = 0;
    int n = 200000, low = 0;
    for (int i = 0; i < n; i++) {
        double u = lm_uniform(42, 7, (uint64_t)i);
        assert_true(u >= 0 && u < 1);
        sum += u;
        squares += u * u;
        low += ((uint64_t)(u * 9007199254740992.0) & 1) != 0; /* the last bit lives too */
    }
    assert_true(fabs(sum / n - 0.5) < 4 * 0.2887 / sqrt(n));
    assert_true(fabs(squares / n - 1 / 3.0) < 4 * 0.2981 / sqrt(n));
    assert_true(fabs((double)low / n - 0.5) < 4 * 0.5 / sqrt(n));
    assert_true(lm_uniform(42, 7, 5) != lm_uniform(42, 8, 5) && lm_uniform(42, 7, 5) != lm_uniform(43, 7, 5));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_table),     cmocka_unit_test(error_lines),        cmocka_unit_test(error_truncation),
        cmocka_unit_test(checked_sizes),    cmocka_unit_test(allocation),         cmocka_unit_test(failing_allocation),
        cmocka_unit_test(pages),            cmocka_unit_test(arenas),             cmocka_unit_test(maps),
        cmocka_unit_test(slabs),
        cmocka_unit_test(release),
        cmocka_unit_test(not_maps),         cmocka_unit_test(sha256_vectors),     cmocka_unit_test(sha256_both_paths),
        cmocka_unit_test(sha256_plain_vector), cmocka_unit_test(philox_vectors),  cmocka_unit_test(uniforms),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
