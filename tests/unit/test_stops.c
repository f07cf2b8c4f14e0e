/* Stop strings: the result is a function of the text, however it comes in pieces; nothing is lost, no stop gets through. */
#include "base/mem.h"
#include "check.h"
#include "lemma/lemma.h"

/* What comes out for `text` fed in pieces of `step` bytes; true when a stop ended it. */
static bool feed(const char *const *stops, uint32_t n, const char *text, size_t step, char *out) {
    lm_stops *s = NULL;
    const char *t;
    size_t len = strlen(text), got;
    bool stopped = false;
    out[0] = 0;
    assert_int_equal(lm_stops_create(stops, n, &s, NULL), LM_OK);
    for (size_t i = 0; i < len && !stopped; i += step) {
        size_t k = len - i < step ? len - i : step;
        assert_int_equal(lm_stops_push(s, text + i, k, &t, &got, &stopped, NULL), LM_OK);
        strncat(out, t, got);
    }
    if (stopped) { /* nothing comes out any more */
        bool still = false;
        assert_int_equal(lm_stops_push(s, "more", 4, &t, &got, &still, NULL), LM_OK);
        assert_true(still && got == 0);
    }
    lm_stops_flush(s, &t, &got);
    assert_true(!stopped || got == 0);
    strncat(out, t, got);
    lm_stops_free(s);
    return stopped;
}

static void any_pieces_same_text(void **state) {
    (void)state;
    static const struct { const char *stop[3], *text, *want; bool stopped; } row[] = {
        {{"O P Q"}, "L M N O P Q R", "L M N ", true},
        {{"O P Q"}, "L M N O P R", "L M N O P R", false},
        {{"O P Q"}, "L M O P O P Q", "L M O P ", true},
        {{"?\n"}, "who? me?\nyes", "who? me", true},
        {{"?\n"}, "who? me?", "who? me?", false},
        {{"ab", "a"}, "xxab", "xx", true},
        {{"abc", "b"}, "xabd", "xa", true},    /* b is complete first */
        {{"ab", "b"}, "xabd", "x", true},      /* together: the longer */
        {{"aab"}, "aaaab", "aa", true},
        {{"END"}, "ENENDE", "EN", true},
        {{"\xf0\x9f\x98\x80"}, "a\xf0\x9f\x98\x81" "b\xf0\x9f\x98\x80" "c", "a\xf0\x9f\x98\x81" "b", true},
        {{"x"}, "x", "", true},
        {{NULL}, "anything", "anything", false},
    };
    char out[64];
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        uint32_t n = 0;
        while (n < 3 && row[i].stop[n]) n++;
        for (size_t step = 1; step <= strlen(row[i].text); step++) {
            assert_int_equal(feed(row[i].stop, n, row[i].text, step, out), row[i].stopped);
            assert_string_equal(out, row[i].want);
        }
    }
}

static void held_back_no_longer_than_needed(void **state) {
    (void)state;
    const char *stop[1] = {"</s>"};
    lm_stops *s = NULL;
    const char *t;
    size_t n;
    bool stopped;
    assert_int_equal(lm_stops_create(stop, 1, &s, NULL), LM_OK);
    assert_int_equal(lm_stops_push(s, "a</", 3, &t, &n, &stopped, NULL), LM_OK);
    assert_true(n == 1 && t[0] == 'a');
    assert_int_equal(lm_stops_push(s, "x<", 2, &t, &n, &stopped, NULL), LM_OK);
    assert_true(n == 3 && !memcmp(t, "</x", 3));
    assert_int_equal(lm_stops_push(s, "", 0, &t, &n, &stopped, NULL), LM_OK);
    assert_true(n == 0);
    lm_stops_flush(s, &t, &n);
    assert_true(n == 1 && t[0] == '<');
    lm_stops_free(s);
}

static void refused_and_out_of_memory(void **state) {
    (void)state;
    const char *empty[2] = {"a", ""}, *two[2] = {"a", "b"};
    lm_stops *s = NULL;
    assert_int_equal(lm_stops_create(empty, 2, &s, NULL), LM_USAGE);
    for (uint64_t k = 1; k <= 5; k++) {
        lm_alloc_fail_after(k);
        assert_int_equal(lm_stops_create(two, 2, &s, NULL), LM_NOMEM);
        lm_alloc_fail_after(0);
    }
    const char *t;
    size_t n;
    bool stopped;
    assert_int_equal(lm_stops_create(two, 2, &s, NULL), LM_OK);
    lm_alloc_fail_after(1);
    assert_int_equal(lm_stops_push(s, "xyz", 3, &t, &n, &stopped, NULL), LM_NOMEM);
    lm_alloc_fail_after(0);
    assert_int_equal(lm_stops_push(s, "xyz", 3, &t, &n, &stopped, NULL), LM_OK);
    assert_int_equal(n, 3);
    lm_stops_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_pieces_same_text),
        cmocka_unit_test(held_back_no_longer_than_needed),
        cmocka_unit_test(refused_and_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
