/* Distances between distributions, hand-computed; and the perplexity with memory that runs out. */
#include "check.h"
#include "verify/html.h"
#include "verify/ppl.h"
#include "verify/quant.h"
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#define NEAR(a, b) assert_true(fabs((a) - (b)) < 1e-12)

static void test_whole(void **state) {
    (void)state;
    const double p[] = {log(0.5), log(0.25), log(0.25)}, q[] = {3 + log(0.25), 3 + log(0.5), 3 + log(0.25)}, bad[] = {0, NAN, 0};
    double e[3], scratch[3];
    lm_apart a;
    const double lse = lm_shares(q, 3, e);
    NEAR(lse, 3);
    NEAR(e[1], 0.5);
    assert_true(lm_apart_whole(p, q, lse, 3, scratch, &a));
    NEAR(a.kl, 0.5 * log(2) - 0.25 * log(2));
    NEAR(a.dlogprob, log(2));
    assert_true(a.top[0] == 0 && a.top[1] == 1 && a.dlogprob_id == 0 && a.rest == 0);
    assert_true(lm_apart_whole(q, q, lse, 3, scratch, &a) && a.kl == 0 && a.dlogprob == 0);
    assert_true(isnan(lm_shares(bad, 3, e)));
    assert_false(lm_apart_whole(bad, q, lse, 3, scratch, &a));
}

static void test_listed(void **state) {
    (void)state;
    const double lp[] = {log(0.5), log(0.25)}, q[] = {log(0.25), log(0.5), log(0.125), log(0.125)};
    const int32_t id[] = {0, 1}, twice[] = {0, 0}, outside[] = {0, 4};
    double e[4];
    lm_apart a;
    lm_listed l = {id, lp, 2, log(0.25)};
    double lse = lm_shares(q, 4, e);
    assert_true(lm_apart_listed(&l, q, lse, 4, e, &a));
    NEAR(a.kl, 0.25 * log(2)); /* the two buckets of what remains have the same mass */
    NEAR(a.rest, 0.25);
    l.rest = NAN;
    lse = lm_shares(q, 4, e);
    assert_true(lm_apart_listed(&l, q, lse, 4, e, &a));
    NEAR(a.kl, 0.25 * log(2));
    /* float32's rounding of the list makes up nothing: the KL of a distribution with itself is of the second order in it */
    const double rounded[] = {(float)log(0.25), (float)log(0.5)};
    lse = lm_shares(q, 4, e);
    assert_true(lm_apart_listed(&(lm_listed){id, rounded, 2, (float)log(0.25)}, q, lse, 4, e, &a));
    assert_true(a.kl >= 0 && a.kl < 1e-14);
    /* refused: an id twice, one outside, no list, what doesn't add up */
    const lm_listed bad[] = {
        {twice, lp, 2, log(0.25)}, {outside, lp, 2, log(0.25)}, {id, lp, 0, 0}, {id, lp, 2, 0}, {id, (double[]){1e30, 0}, 2, 0}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        lse = lm_shares(q, 4, e);
        assert_false(lm_apart_listed(&bad[i], q, lse, 4, e, &a));
    }
}

static void test_statistics(void **state) {
    (void)state;
    lm_quality q = {0};
    lm_error err = {0};
    const double share[] = {0.5, 0.99, 1};
    double out[3];
    assert_true(isnan(lm_quality_kl(&q).value) && lm_quality_quantiles(&q, share, 3, out, &err) == LM_OK && isnan(out[0]));
    for (uint32_t i = 0; i < 200; i++) { /* 1 … 200 in another order */
        const lm_apart a = {.kl = (i * 77) % 200 + 1, .dlogprob = i == 123, .dlogprob_id = i, .top = {1, i % 4 ? 1 : 2}};
        assert_int_equal(lm_quality_add(&q, &a, i / 50, i % 50, &err), LM_OK);
    }
    assert_int_equal(lm_quality_quantiles(&q, share, 3, out, &err), LM_OK);
    assert_true(out[0] == 100 && out[1] == 198 && out[2] == 200 && q.max_kl == 200);
    assert_true((q.max_at[0] * 50 + q.max_at[1]) * 77 % 200 == 199);
    assert_true(q.dlogprob_id == 123 && q.dlogprob_at[0] == 2 && q.dlogprob_at[1] == 23);
    const lm_mean m = lm_quality_kl(&q), t = lm_quality_top1(&q);
    NEAR(m.value, 100.5);
    assert_true(fabs(m.se - sqrt((200.0 * 200 - 1) / 12 / 199)) < 1e-9);
    NEAR(t.value, 0.75);
    NEAR(t.se, sqrt(0.75 * 0.25 / 199));
    lm_quality_free(&q);
}

/* ---- the whole, when memory runs out ------------------------------------------------------------------------------------------------- */
static const char llama[] = "tests/fixtures/llama";
static bool stop(void *ctx, const char *what, uint64_t done, uint64_t total) {
    (void)ctx;
    (void)total;
    return strcmp(what, "perplexity") || done < 8;
}

static void test_failures(void **state) {
    (void)state;
    int32_t ids[24];
    char file[] = "/tmp/lemma-quality-XXXXXX";
    const int fd = mkstemp(file);
    assert_true(fd >= 0);
    close(fd);
    for (int i = 0; i < 24; i++) ids[i] = (i * 37) % 320;
    lm_ppl_options o = {.run = {.threads = 1}, .ids = ids, .n_ids = 24, .ctx = 8, .save = file};
    lm_ppl *p = NULL;
    lm_error err = {0};
    assert_int_equal(lm_ppl_run(llama, &o, &p, &err), LM_OK);
    lm_ppl_free(p);
    o.save = NULL;
    o.reference = file;
    uint64_t n = 1, failed = 0;
    for (;; n += n < 40 ? 1 : 17) {
        p = NULL;
        lm_alloc_fail_after(n);
        const lm_status st = lm_ppl_run(llama, &o, &p, &err);
        char *text = p ? lm_ppl_text(p) : NULL;
        lm_alloc_fail_after(0);
        lm_text_free(text);
        lm_ppl_free(p);
        assert_true(st == LM_OK || (st == LM_NOMEM && !p));
        failed += st != LM_OK;
        if (st == LM_OK && text) break;
        assert_true(n < 100000);
    }
    assert_true(failed > 20);
    o.run.progress = stop;
    p = NULL;
    assert_int_equal(lm_ppl_run(llama, &o, &p, &err), LM_INTERRUPTED);
    assert_null(p);
    unlink(file);
}

/* ---- a quantized file, tensor by tensor -------------------------------------------------------------------------------------------- */
static bool stop_parts(void *ctx, const char *what, uint64_t done, uint64_t total) {
    (void)ctx;
    (void)total;
    return strcmp(what, "tensor by tensor") || done < 3;
}

static void test_quant_failures(void **state) {
    (void)state;
    int32_t ids[6] = {1, 2, 3, 4, 5, 6};
    char file[] = "/tmp/lemma-quality-XXXXXX";
    const int fd = mkstemp(file);
    lm_quant *q = NULL;
    lm_error err = {0};
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(lm_quantize(llama, file, "q8_0", NULL, NULL, &err), LM_OK);
    lm_diff_options o = {.run = {.threads = 1}, .a = llama, .b = file, .ids = ids, .n_ids = 6};
    const uint64_t before = lm_alloc_count();
    assert_int_equal(lm_quant_run(&o, LM_QUANT_TENSOR, &q, &err), LM_OK);
    const uint64_t calls = lm_alloc_count() - before;
    assert_true(q->same_bits && q->n_parts == 38);
    lm_quant_free(q);
    assert_true(calls > 500);
    for (uint64_t n = 1; n <= calls; n += n < 400 ? 3 : 7) { /* wherever memory runs out, swaps too, nothing is left behind */
        q = NULL;
        lm_alloc_fail_after(n);
        const lm_status st = lm_quant_run(&o, LM_QUANT_TENSOR, &q, &err);
        lm_alloc_fail_after(0);
        assert_true(st == LM_NOMEM && !q);
    }
    o.run.progress = stop_parts;
    q = NULL;
    assert_int_equal(lm_quant_run(&o, LM_QUANT_TENSOR, &q, &err), LM_INTERRUPTED);
    assert_null(q);
    unlink(file);
}

/* ---- pages ------------------------------------------------------------------------------------------------------------------------- */
static void test_html(void **state) {
    (void)state;
    static const struct { const char *in; size_t n; const char *out; } c[] = {
        {"<script>", 8, "&lt;script&gt;"},
        {"\"'&", 3, "&quot;&#39;&amp;"},
        {"a\nb\tc", 5, "a\xe2\x8f\x8e" "b\tc"},
        {"\0\x1b", 2, "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xff<", 2, "\xef\xbf\xbd&lt;"},          /* no UTF-8 */
        {"\xe2\x82", 2, "\xef\xbf\xbd"},            /* half a character */
        {"\xe2\x80\xae" "x", 4, "\xef\xbf\xbd" "x"}, /* the text's direction is not turned round */
        {"\xc3\xa9\xf0\x9f\x98\x80", 6, "\xc3\xa9\xf0\x9f\x98\x80"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        char *text = NULL;
        size_t n = 0;
        FILE *f = open_memstream(&text, &n);
        assert_non_null(f);
        lm_html_bytes(f, c[i].in, c[i].n);
        fclose(f);
        assert_string_equal(text, c[i].out);
        free(text);
    }
    assert_int_equal(lm_html_heat(NAN, 1e-8, 1), 0);
    assert_int_equal(lm_html_heat(0, 1e-8, 1), 0);
    assert_int_equal(lm_html_heat(1e-4, 1e-8, 1), 5);
    assert_int_equal(lm_html_heat(INFINITY, 1e-8, 1), 9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_listed),
        cmocka_unit_test(test_statistics),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_quant_failures),
        cmocka_unit_test(test_html),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
