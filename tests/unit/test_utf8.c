/* base/utf8 against the definition: the set of all well-formed sequences, built here by plain arithmetic over every scalar value. */
#include "check.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/utf8.h"

/* is[k][bytes]: 1 a proper prefix of a well-formed sequence, 2 one itself; bytes big-endian, k of them */
static uint8_t *is[4];

static int spell(uint32_t cp, uint8_t b[4]) {
    if (cp < 128) return b[0] = (uint8_t)cp, 1;
    if (cp < 2048) return b[0] = (uint8_t)(192 + cp / 64), b[1] = (uint8_t)(128 + cp % 64), 2;
    if (cp < 65536)
        return b[0] = (uint8_t)(224 + cp / 4096), b[1] = (uint8_t)(128 + cp / 64 % 64), b[2] = (uint8_t)(128 + cp % 64), 3;
    b[0] = (uint8_t)(240 + cp / 262144), b[1] = (uint8_t)(128 + cp / 4096 % 64);
    return b[2] = (uint8_t)(128 + cp / 64 % 64), b[3] = (uint8_t)(128 + cp % 64), 4;
}

static int build(void **state) {
    (void)state;
    for (int k = 1; k < 4; k++)
        if (!(is[k] = calloc(1u << 8 * k, 1))) return -1;
    for (uint32_t cp = 0; cp <= 0x10ffff; cp++) {
        if (cp >= 0xd800 && cp < 0xe000) continue;
        uint8_t b[4];
        int len = spell(cp, b);
        uint32_t key = 0;
        for (int k = 1; k <= len && k < 4; k++) {
            key = key << 8 | b[k - 1];
            is[k][key] = k == len ? 2 : 1;
        }
    }
    return 0;
}
static int tear_down(void **state) {
    (void)state;
    for (int k = 1; k < 4; k++) free(is[k]);
    return 0;
}

/* what lm_utf8_decode must return for n ≤ 3 bytes */
static int wanted(const uint8_t *s, int n) {
    uint32_t key = 0;
    for (int k = 1; k <= n; k++) {
        key = key << 8 | s[k - 1];
        if (is[k][key] == 2) return k;
        if (is[k][key] == 0) return k == 1 ? -1 : -(k - 1);
    }
    return 0;
}

static void every_scalar(void **state) {
    (void)state;
    for (uint32_t cp = 0; cp <= 0x10ffff; cp++) {
        if (cp >= 0xd800 && cp < 0xe000) continue;
        uint8_t b[5] = {0, 0, 0, 0, 'x'}, mine[4] = {0};
        int len = spell(cp, b);
        uint32_t back = UINT32_MAX;
        assert_int_equal(lm_utf8_encode(cp, mine), len);
        assert_memory_equal(mine, b, (size_t)len);
        assert_int_equal(lm_utf8_decode(b, 5, &back), len);
        assert_int_equal(back, cp);
        for (size_t n = 0; n < (size_t)len; n++) {
            assert_int_equal(lm_utf8_decode(b, n, &back), 0);
            assert_int_equal(lm_utf8_pending(b, n), n);
        }
        assert_int_equal(lm_utf8_pending(b, (size_t)len), 0);
    }
    static const uint32_t none[] = {0xd800, 0xdfff, 0x110000, UINT32_MAX};
    for (size_t i = 0; i < 4; i++) {
        uint8_t b[4];
        assert_int_equal(lm_utf8_encode(none[i], b), 3);
        assert_memory_equal(b, "\xef\xbf\xbd", 3);
    }
}

static void every_three_bytes(void **state) {
    (void)state;
    for (uint32_t key = 0; key < 1u << 24; key++) {
        uint8_t s[4] = {(uint8_t)(key >> 16), (uint8_t)(key >> 8), (uint8_t)key, 0};
        uint32_t cp;
        int got = lm_utf8_decode(s, 3, &cp), want = wanted(s, 3);
        if (got != want) fail_msg("%06x: %d instead of %d", key, got, want);
        if (want == 0) /* three bytes of four: every fourth */
            for (int b = 0; b < 256; b++) {
                s[3] = (uint8_t)b;
                got = lm_utf8_decode(s, 4, &cp);
                if (got != (b >= 128 && b < 192 ? 4 : -3)) fail_msg("%06x %02x: %d", key, b, got);
            }
    }
}

/* A slow repair by the definition: at each place, the longest thing that is a prefix of something well-formed. */
static size_t slow_repair(const uint8_t *s, size_t n, uint8_t *dst) {
    size_t o = 0;
    for (size_t i = 0; i < n;) {
        int left = n - i > 3 ? 3 : (int)(n - i), w = wanted(s + i, left);
        if (w == 0 && left == 3 && n - i > 3) w = s[i + 3] >= 128 && s[i + 3] < 192 ? 4 : -3;
        if (w == 0) w = -left;
        if (w > 0) {
            memcpy(dst + o, s + i, (size_t)w);
            o += (size_t)w;
        } else {
            memcpy(dst + o, "\xef\xbf\xbd", 3);
            o += 3;
        }
        i += (size_t)abs(w);
    }
    return o;
}

static void repairs(void **state) {
    (void)state;
    static const uint8_t pool[] = {'a',  0,    0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc2,
                                   0xdf, 0xe0, 0xe1, 0xed, 0xef, 0xf0, 0xf1, 0xf4, 0xf5, 0xff};
    uint32_t seed = 12345;
    for (int round = 0; round < 200000; round++) {
        uint8_t s[24], want[72];
        size_t n = (size_t)(round % 24), len;
        for (size_t i = 0; i < n; i++) {
            seed = seed * 1664525u + 1013904223u;
            s[i] = pool[(seed >> 16) % sizeof pool];
        }
        size_t w = slow_repair(s, n, want);
        char *r = lm_utf8_repair(s, n, &len);
        assert_non_null(r);
        assert_int_equal(len, w);
        assert_memory_equal(r, want, w);
        assert_int_equal(r[len], 0);
        assert_true(lm_utf8_valid((uint8_t *)r, len));
        bool same = len == n && memcmp(r, s, n) == 0;
        assert_int_equal(lm_utf8_valid(s, n), same);
        lm_free(r);
    }
    size_t len;
    lm_alloc_fail_after(1);
    assert_null(lm_utf8_repair((const uint8_t *)"x", 1, &len));
}

static void by_name(void **state) {
    (void)state;
    static const struct {
        const char *in, *out;
        size_t pending;
    } v[] = {
        {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80", 0},
        {"a\xf0\x9f", "a\xef\xbf\xbd", 2},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 0},
        {"\xe2\x82", "\xef\xbf\xbd", 2},
        {"\xe2\x82" "a", "\xef\xbf\xbd" "a", 0},
        {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd", 0},
        {"\xf4\x90", "\xef\xbf\xbd\xef\xbf\xbd", 0},
        {"\xe0", "\xef\xbf\xbd", 1},
        {"\xe0\x80", "\xef\xbf\xbd\xef\xbf\xbd", 0},
        {"\xf1\x80\x80\xe1\x80\xc2", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 1},
        {"plain ASCII, longer than eight bytes", "plain ASCII, longer than eight bytes", 0},
        {"longer than eight bytes and then \xff", "longer than eight bytes and then \xef\xbf\xbd", 0},
        {"\x80\x80\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 0},
    };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        size_t n = strlen(v[i].in), len;
        char *r = lm_utf8_repair((const uint8_t *)v[i].in, n, &len);
        assert_string_equal(r, v[i].out);
        assert_int_equal(len, strlen(r));
        assert_int_equal(lm_utf8_pending((const uint8_t *)v[i].in, n), v[i].pending);
        lm_free(r);
    }
}

static void one_bad_byte(void **state) {
    (void)state;
    for (size_t n = 1; n <= 40; n++)
        for (size_t at = 0; at < n; at++) {
            uint8_t s[40];
            memset(s, 'a', sizeof s);
            assert_true(lm_utf8_valid(s, n));
            s[at] = 0x80;
            assert_false(lm_utf8_valid(s, n));
        }
}

/* Cut anywhere, hold back what is pending, join: the parts before the cut are whole characters. */
static void streams(void **state) {
    (void)state;
    const uint8_t *s = (const uint8_t *)"a\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80z";
    size_t n = strlen((const char *)s);
    for (size_t cut = 0; cut <= n; cut++) {
        size_t held = lm_utf8_pending(s, cut);
        assert_true(lm_utf8_valid(s, cut - held));
        assert_true(lm_utf8_valid(s + cut - held, n - cut + held));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_scalar), cmocka_unit_test(every_three_bytes), cmocka_unit_test(repairs),
        cmocka_unit_test(by_name),      cmocka_unit_test(streams),          cmocka_unit_test(one_bad_byte),
    };
    return cmocka_run_group_tests(tests, build, tear_down);
}
