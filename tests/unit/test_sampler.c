/* The sampler: each step against hand-computed sets, ties, the same draws everywhere, refusals, running out of memory. */
#include <math.h>
#include "base/math.h"
#include "base/mem.h"
#include "base/rng.h"
#include "check.h"
#include "lemma/lemma.h"

static const lm_sampler_options defaults = LM_SAMPLER_DEFAULTS;
static const uint32_t position[1] = {7};
static lm_logits row_of(const float *v, uint32_t n) {
    return (lm_logits){.data = v, .rows = 1, .width = n, .position = position};
}
static int32_t pick(const lm_sampler_options *o, const float *v, uint32_t n, const int32_t *recent, size_t n_recent, uint64_t step) {
    lm_sampler *s = NULL;
    lm_logits l = row_of(v, n);
    int32_t id = -1;
    assert_int_equal(lm_sampler_create(o, n, &s, NULL), LM_OK);
    assert_int_equal(lm_sampler_pick(s, &l, 0, recent, n_recent, step, &id, NULL), LM_OK);
    lm_sampler_free(s);
    return id;
}
/* The ids that 4000 draws reach, as a bit set; counts in n[] when given. */
static uint32_t reached(lm_sampler_options o, const float *v, uint32_t width, int *count) {
    lm_sampler *s = NULL;
    lm_logits l = row_of(v, width);
    uint32_t set = 0;
    assert_int_equal(lm_sampler_create(&o, width, &s, NULL), LM_OK);
    for (uint64_t step = 0; step < 4000; step++) {
        int32_t id = -1;
        assert_int_equal(lm_sampler_pick(s, &l, 0, NULL, 0, step, &id, NULL), LM_OK);
        set |= 1u << id;
        if (count) count[id]++;
    }
    lm_sampler_free(s);
    return set;
}

static void greedy_is_the_lowest_best(void **state) {
    (void)state;
    const float v[6] = {1, 5, -2, 5, 5, 0}, z[3] = {-0.0f, 0.0f, -1};
    assert_int_equal(pick(&defaults, v, 6, NULL, 0, 0), 1);
    assert_int_equal(pick(&defaults, z, 3, NULL, 0, 0), 0);
    const double d[3] = {1, 1 + 1e-12, 1}; /* as floats all three would be equal */
    lm_logits l = {.data = d, .is_f64 = true, .rows = 1, .width = 3, .position = position};
    lm_sampler *s = NULL;
    int32_t id = -1;
    assert_int_equal(lm_sampler_create(&defaults, 3, &s, NULL), LM_OK);
    assert_int_equal(lm_sampler_pick(s, &l, 0, NULL, 0, 0, &id, NULL), LM_OK);
    assert_int_equal(id, 1);
    lm_sampler_free(s);
}

static void second_row(void **state) {
    (void)state;
    const float v[6] = {9, 0, 0, 0, 0, 9};
    const uint32_t pos[2] = {0, 1};
    lm_logits l = {.data = v, .rows = 2, .width = 3, .position = pos};
    lm_sampler *s = NULL;
    int32_t id = -1;
    assert_int_equal(lm_sampler_create(&defaults, 3, &s, NULL), LM_OK);
    assert_int_equal(lm_sampler_pick(s, &l, 1, NULL, 0, 0, &id, NULL), LM_OK);
    assert_int_equal(id, 2);
    assert_int_equal(lm_sampler_pick(s, &l, 2, NULL, 0, 0, &id, NULL), LM_USAGE);
    lm_sampler_free(s);
}

static void repeat_penalty(void **state) {
    (void)state;
    const float v[4] = {4, 3, -1, -3};
    lm_sampler_options o = defaults;
    o.repeat_penalty = 2;
    const int32_t zero[3] = {0, 0, 0}, far[3] = {0, 2, 3}, odd[3] = {-1, 4, 0};
    assert_int_equal(pick(&o, v, 4, zero, 3, 0), 1); /* 4/2 < 3, however often it occurred: not 4/8 only */
    assert_int_equal(pick(&o, v, 4, odd, 3, 0), 1);  /* ids outside are passed over */
    o.repeat_last_n = 2;
    assert_int_equal(pick(&o, v, 4, far, 3, 0), 0); /* 0 is too long ago */
    const float n[2] = {-1, -1.5f};
    const int32_t first[1] = {0};
    assert_int_equal(pick(&o, n, 2, first, 1, 0), 1); /* negative: multiplied */
    o.repeat_penalty = 1.4;
    assert_int_equal(pick(&o, n, 2, first, 1, 0), 0);
    const float twice[2] = {3.5f, 1};
    o.repeat_penalty = 2;
    o.repeat_last_n = 64;
    assert_int_equal(pick(&o, twice, 2, zero, 3, 0), 0); /* once: 1.75 > 1; per occurrence it would be 0.44 */
}

static void filters(void **state) {
    (void)state;
    /* probabilities 0.4, 0.1, 0.3, 0.2 */
    const float v[4] = {logf(0.4f), logf(0.1f), logf(0.3f), logf(0.2f)};
    lm_sampler_options o = defaults;
    o.temperature = 1;
    assert_int_equal(reached(o, v, 4, NULL), 0xf);
    o.top_k = 2;
    assert_int_equal(reached(o, v, 4, NULL), 0x5);
    o.top_k = 0, o.top_p = 0.65;
    assert_int_equal(reached(o, v, 4, NULL), 0x5);
    o.top_p = 0.75;
    assert_int_equal(reached(o, v, 4, NULL), 0xd);
    o.top_p = 1e-9; /* at least one */
    assert_int_equal(reached(o, v, 4, NULL), 0x1);
    o.top_p = 1, o.min_p = 0.6; /* of 0.4: 0.24 */
    assert_int_equal(reached(o, v, 4, NULL), 0x5);
    o.top_k = 3, o.top_p = 0.7, o.min_p = 0; /* p is of what top-k left: 0.4/0.9, 0.7/0.9 */
    assert_int_equal(reached(o, v, 4, NULL), 0x5);
}

static void ties_keep_the_lowest(void **state) {
    (void)state;
    const float v[6] = {1, 2, 2, 2, 2, 0};
    lm_sampler_options o = defaults;
    o.temperature = 1;
    o.top_k = 2;
    assert_int_equal(reached(o, v, 6, NULL), 0x6);
    o.top_k = 0, o.top_p = 0.25; /* the four of 2 hold 0.21 each */
    assert_int_equal(reached(o, v, 6, NULL), 0x6);
}

static void temperature_and_frequencies(void **state) {
    (void)state;
    const float v[3] = {0, logf(4), logf(4)};
    int n[3] = {0};
    lm_sampler_options o = defaults;
    o.temperature = 2; /* weights 1, 2, 2 */
    reached(o, v, 3, n);
    assert_in_range(n[0], 700, 900); /* 800 ± 4σ */
    assert_in_range(n[1], 1470, 1730);
    o.temperature = 1e-300; /* the quotient overflows: the best remain */
    assert_int_equal(reached(o, v, 3, NULL), 0x6);
    const float masked[3] = {-INFINITY, 0, -INFINITY};
    assert_int_equal(reached(o, masked, 3, NULL), 0x2);
}

/* The draw is lm_uniform(seed, 0, step) over the kept ids in id order; a filter that drops nothing changes nothing. */
static void draws_replay(void **state) {
    (void)state;
    float v[50];
    for (int i = 0; i < 50; i++) v[i] = (float)((i * 37) % 50) / 10;
    lm_sampler_options a = defaults, b = defaults;
    a.temperature = b.temperature = 0.9;
    a.seed = b.seed = 42;
    b.top_k = 50, b.top_p = 1, b.min_p = 1e-12;
    uint32_t differ = 0;
    lm_sampler_options c = a;
    c.seed = 43;
    for (uint64_t step = 0; step < 200; step++) {
        double w[50], sum = 0, at = 0;
        for (int i = 0; i < 50; i++) sum += w[i] = exp((v[i] - (double)4.9f) / 0.9);
        double u = lm_uniform(42, 0, step) * sum;
        int32_t want = 0;
        while (want < 49 && !(u < (at += w[want]))) want++;
        assert_int_equal(pick(&a, v, 50, NULL, 0, step), want);
        assert_int_equal(pick(&b, v, 50, NULL, 0, step), want);
        differ += pick(&c, v, 50, NULL, 0, step) != want;
    }
    assert_true(differ > 100);
}

static void own_exp(void **state) {
    (void)state;
    double worst = 0;
    for (int i = -74000; i < 70900; i++) {
        double x = i * 0.01 + 0.00123, want = exp(x), got = lm_exp(x);
        double ulp = nextafter(want, INFINITY) - want, e = fabs(got - want) / ulp;
        if (e > worst) worst = e;
    }
    assert_true(worst <= 1);
    assert_true(lm_exp(0) == 1 && lm_exp(-INFINITY) == 0 && lm_exp(-746) == 0);
    assert_true(lm_exp(INFINITY) == INFINITY && lm_exp(710) == INFINITY && lm_exp(709.7) < INFINITY && isnan(lm_exp(NAN)));
    assert_true(lm_exp(-745.1) == 0x1p-1074);
    /* its own bits (two of them 1 ulp off), so that another machine's fma or rounding shows */
    assert_true(lm_exp(1) == 0x1.5bf0a8b14576ap+1 && lm_exp(-1) == 0x1.78b56362cef38p-2 && lm_exp(-20.5) == 0x1.57a3afeed00acp-30);
}

static void refusals(void **state) {
    (void)state;
    const struct {
        double t, p, m, r;
        const char *field;
    } bad[] = {
        {-1, 1, 0, 1, "temperature"},
        {NAN, 1, 0, 1, "temperature"},
        {INFINITY, 1, 0, 1, "temperature"},
        {1, 0, 0, 1, "top_p"},
        {1, 1.01, 0, 1, "top_p"},
        {1, NAN, 0, 1, "top_p"},
        {1, 1, -0.1, 1, "min_p"},
        {1, 1, 1.1, 1, "min_p"},
        {1, 1, NAN, 1, "min_p"},
        {1, 1, 0, 0, "repeat_penalty"},
        {1, 1, 0, INFINITY, "repeat_penalty"},
        {1, 1, 0, NAN, "repeat_penalty"},
    };
    lm_sampler *s = NULL;
    lm_error e;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        lm_sampler_options o = {.temperature = bad[i].t, .top_p = bad[i].p, .min_p = bad[i].m, .repeat_penalty = bad[i].r};
        assert_int_equal(lm_sampler_create(&o, 4, &s, &e), LM_RANGE);
        assert_string_equal(e.field, bad[i].field);
    }
    assert_int_equal(lm_sampler_create(&defaults, 0, &s, &e), LM_RANGE);
    const float rows[3][2] = {{1, NAN}, {INFINITY, 1}, {-INFINITY, -INFINITY}};
    const char *say[3] = {"id 1 at position 7 is NaN", "id 0 at position 7 is infinite", "position 7 is minus infinity"};
    assert_int_equal(lm_sampler_create(&defaults, 2, &s, &e), LM_OK);
    for (int i = 0; i < 3; i++) {
        lm_logits l = row_of(rows[i], 2);
        int32_t id = -7;
        assert_int_equal(lm_sampler_pick(s, &l, 0, NULL, 0, 0, &id, &e), LM_RANGE);
        assert_non_null(strstr(e.message, say[i]));
        assert_int_equal(id, -7);
    }
    lm_logits wide = row_of(rows[0], 1);
    int32_t id;
    assert_int_equal(lm_sampler_pick(s, &wide, 0, NULL, 0, 0, &id, &e), LM_USAGE);
    lm_sampler_free(s);
}

static void out_of_memory(void **state) {
    (void)state;
    for (uint64_t n = 1; n <= 5; n++) {
        lm_sampler *s = NULL;
        lm_alloc_fail_after(n);
        assert_int_equal(lm_sampler_create(&defaults, 100, &s, NULL), LM_NOMEM);
        assert_null(s);
        lm_alloc_fail_after(0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_is_the_lowest_best), cmocka_unit_test(second_row),   cmocka_unit_test(repeat_penalty),
        cmocka_unit_test(filters),                   cmocka_unit_test(ties_keep_the_lowest), cmocka_unit_test(temperature_and_frequencies),
        cmocka_unit_test(draws_replay),              cmocka_unit_test(own_exp),      cmocka_unit_test(refusals),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
