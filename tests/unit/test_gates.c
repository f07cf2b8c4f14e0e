/* The numbers behind the gates, the ledger and its reports; and verify with memory that runs out. */
#include "check.h"
#include "verify/verify.h"
#include <jansson.h>
#include <math.h>

static void test_cosine(void **state) {
    (void)state;
    const double a[] = {1, 2, 3}, b[] = {2, 4, 6}, c[] = {-1, -2, -3}, z[] = {0, 0, 0}, n[] = {1, NAN, 3}, i[] = {1, INFINITY, 3},
                 big[] = {1e300, 2e300, 3e300}, o[] = {3, 0, -1};
    assert_true(fabs(lm_cosine(a, b, 3) - 1) < 1e-15);
    assert_true(fabs(lm_cosine(a, c, 3) + 1) < 1e-15);
    assert_true(fabs(lm_cosine(a, o, 3)) < 1e-15);
    assert_true(fabs(lm_cosine(big, big, 3) - 1) < 1e-15);
    assert_true(lm_cosine(z, z, 3) == 1 && lm_cosine(a, z, 3) == 0);
    assert_true(isnan(lm_cosine(a, n, 3)) && isnan(lm_cosine(n, a, 3)) && isnan(lm_cosine(i, i, 3)));
}

static void test_max_diff(void **state) {
    (void)state;
    const double a[] = {1, 2, 3, 4}, b[] = {1, 2.5, 2.5, 4}, n[] = {9, 2, INFINITY, NAN};
    uint64_t at = 9;
    assert_true(lm_max_diff(a, b, 4, &at) == 0.5);
    assert_int_equal(at, 1); /* the first of equals */
    assert_true(lm_max_diff(a, a, 4, &at) == 0);
    assert_true(isnan(lm_max_diff(a, n, 4, &at)));
    assert_int_equal(at, 2);
    assert_true(isnan(lm_max_diff(n, n, 4, &at))); /* an infinity on both sides is no agreement */
}

static void test_argmax_and_top(void **state) {
    (void)state;
    const double x[] = {1, 5, 3, 5, -2, 3}, n[] = {1, 2, NAN}, i[] = {1, 2, -INFINITY};
    int32_t top[6];
    const int32_t want[] = {1, 3, 2, 5, 0, 4};
    assert_int_equal(lm_argmax_row(x, 6), 1);
    assert_int_equal(lm_argmax_row(n, 3), LM_NO_ID);
    assert_int_equal(lm_argmax_row(i, 3), LM_NO_ID);
    assert_int_equal(lm_argmax_row(x, 0), LM_NO_ID);
    for (uint32_t k = 1; k <= 6; k++) {
        lm_top_row(x, 6, k, top);
        assert_memory_equal(top, want, k * sizeof *top);
    }
}

static void test_log_sum_exp(void **state) {
    (void)state;
    const double x[] = {1000, 1000, 1000, 1000}, n[] = {0, NAN};
    assert_true(fabs(lm_log_sum_exp(x, 4) - 1000 - log(4)) < 1e-12);
    assert_true(isnan(lm_log_sum_exp(n, 2)));
}

static void test_bounds(void **state) {
    (void)state;
    lm_trace t = {.noise = 0};
    assert_true(lm_logit_bound(&t) == 0.05 && lm_logprob_bound(&t) == 2e-3);
    t.noise = 1e-5;
    assert_true(lm_logit_bound(&t) == 5e-5 && lm_logprob_bound(&t) == 1e-4);
    t.noise = 1; /* never looser than 0.05 */
    assert_true(lm_logit_bound(&t) == 0.05);
}

static lm_ledger *ledger_of(const lm_verdict *v, const bool *gate, uint32_t n) {
    lm_ledger *l = NULL;
    assert_int_equal(lm_ledger_create(&l, NULL), LM_OK);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(lm_ledger_add(l, &(lm_claim){.verdict = v[i], .gate = gate[i], .section = "G1", .name = "x"}, NULL), LM_OK);
    return l;
}

static void test_exit_code(void **state) {
    (void)state;
    static const struct {
        lm_verdict v[3];
        bool gate[3];
        uint32_t n;
        int code;
    } cases[] = {
        {{0}, {0}, 0, 3},
        {{LM_PROVEN}, {false}, 1, 3}, /* a binding is no gate */
        {{LM_OPEN, LM_PROVEN}, {true, false}, 2, 3},
        {{LM_OPEN, LM_PROVEN}, {false, true}, 2, 0},
        {{LM_PROVEN, LM_REFUTED}, {true, false}, 2, 1},
        {{LM_REFUTED}, {true}, 1, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lm_ledger *l = ledger_of(cases[i].v, cases[i].gate, cases[i].n);
        assert_int_equal(lm_ledger_exit_code(l), cases[i].code);
        lm_ledger_free(l);
    }
}

static void test_reports(void **state) {
    (void)state;
    char name[] = "c1 \"argmax\"";
    uint32_t proven, open, refuted;
    lm_ledger *l = NULL;
    assert_int_equal(lm_ledger_create(&l, NULL), LM_OK);
    lm_claim c = {.verdict = LM_REFUTED,
                  .gate = true,
                  .section = "G1",
                  .name = name,
                  .bound = "every position",
                  .measured = "8 of 9",
                  .witness = "a/b/t.st",
                  .sha256 = "0123456789abcdef",
                  .note = "why"};
    assert_int_equal(lm_ledger_add(l, &c, NULL), LM_OK);
    name[0] = 'X'; /* the ledger has its own copy */
    assert_int_equal(lm_ledger_size(l), 1);
    assert_null(lm_ledger_claim(l, 1));
    lm_ledger_count(l, &proven, &open, &refuted);
    assert_true(!proven && !open && refuted == 1);
    char *text = lm_claim_text(lm_ledger_claim(l, 0));
    assert_non_null(text);
    assert_non_null(strstr(text, "REFUTED  G1       c1 \"argmax\""));
    assert_non_null(strstr(text, "8 of 9  [every position]  t.st sha256:0123456789ab\n"));
    assert_non_null(strstr(text, " why\n"));
    lm_text_free(text);
    text = lm_ledger_json(l);
    assert_non_null(text);
    json_t *root = json_loads(text, 0, NULL), *claim = json_array_get(json_object_get(root, "claims"), 0);
    assert_string_equal(json_string_value(json_object_get(claim, "claim")), "c1 \"argmax\"");
    assert_string_equal(json_string_value(json_object_get(claim, "sha256")), "0123456789abcdef");
    assert_int_equal(json_integer_value(json_object_get(root, "refuted")), 1);
    assert_int_equal(json_integer_value(json_object_get(root, "exit")), 1);
    json_decref(root);
    lm_text_free(text);
    lm_ledger_free(l);
}

/* What verify says of a fixture, with memory failing at points all over the run: refused cleanly, or the whole verdict. */
static void test_verify_out_of_memory(void **state) {
    (void)state;
    const lm_verify_options o = {.run = {.backend = "f64", .threads = 1}, .determinism = LM_DETERMINISM_OFF};
    lm_status s = LM_NOMEM;
    for (uint64_t n = 1; s != LM_OK && n < 10000000; n += 1 + n / 8) {
        lm_ledger *l = NULL;
        lm_alloc_fail_after(n);
        s = lm_verify("tests/fixtures/llama", &o, &l, NULL);
        lm_alloc_fail_after(0);
        assert_true(s == LM_OK || s == LM_NOMEM);
        assert_true((s == LM_OK) == (l != NULL));
        if (l) assert_int_equal(lm_ledger_exit_code(l), 0);
        lm_ledger_free(l);
    }
    assert_int_equal(s, LM_OK);
}

static bool stop(void *ctx, const char *what, uint64_t done, uint64_t total) {
    (void)what;
    return done < total && ++*(int *)ctx < 5;
}

static void test_verify_interrupted(void **state) {
    (void)state;
    int calls = 0;
    const lm_verify_options o = {.run = {.backend = "f64", .threads = 1, .progress = stop, .progress_ctx = &calls},
                                 .determinism = LM_DETERMINISM_OFF};
    lm_ledger *l = NULL;
    assert_int_equal(lm_verify("tests/fixtures/llama", &o, &l, NULL), LM_INTERRUPTED);
    assert_null(l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cosine),
        cmocka_unit_test(test_max_diff),
        cmocka_unit_test(test_argmax_and_top),
        cmocka_unit_test(test_log_sum_exp),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_exit_code),
        cmocka_unit_test(test_reports),
        cmocka_unit_test(test_verify_out_of_memory),
        cmocka_unit_test(test_verify_interrupted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
