/* The parts of lemma diff: edits of the arbiter's runs, a lane's noise, distances and shares, tokens against margins, names; and the whole
 * with memory that runs out, interrupted, and with two sides that don't fit. */
#include "check.h"
#include "verify/diff.h"
#include <math.h>
#include <stdlib.h>

static const char llama[] = "tests/fixtures/llama", oracle[] = "tests/fixtures/llama/oracle.safetensors";
static const int32_t ids[] = {5, 17, 200, 3, 42, 99};
enum { N = sizeof ids / sizeof *ids };

static lm_engine *engine(const char *model, const char *backend) {
    lm_engine *e = NULL;
    lm_error err = {0};
    const lm_engine_options o = {.backend = backend, .device = {.threads = 1}};
    if (lm_engine_open(model, &o, &e, &err) != LM_OK) fail_msg("%s: %s", model, err.message);
    return e;
}

/* ---- edits -----------------------------------------------------------------------------------------------------------------------------
 */
typedef struct editor {
    const char *op; /* whose result is doubled, or NULL */
    bool operand;   /* rather its first operand, put back after it */
    uint32_t before, after;
    double *keep;
} editor;
static bool on_edit(void *ctx, const lm_program *p, const lm_edit *e) {
    editor *t = ctx;
    if (e->before)
        t->before++;
    else
        t->after++;
    if (!t->op || strcmp(t->op, e->op->name)) return true;
    double *x = t->operand ? e->in[0] : e->out;
    const size_t n = (size_t)e->n * p->value[t->operand ? e->op->a : e->op->out].width;
    if (t->operand && !e->before) memcpy(x, t->keep, n * sizeof *x);
    if (t->operand && e->before) memcpy(t->keep, x, n * sizeof *x);
    for (size_t i = 0; e->before == t->operand && i < n; i++) x[i] *= 2;
    return true;
}
typedef struct sink {
    double *to;
    uint32_t width, rows;
} sink;
static bool on_logits(void *ctx, const lm_rows *rows) {
    sink *s = ctx;
    for (uint32_t i = 0; i < rows->n; i++) lm_rows_f64(rows, i, s->to + (size_t)rows->row[i] * s->width);
    s->rows += rows->n;
    return true;
}
static lm_status run(lm_engine *e, editor *t, double *logits, lm_error *err) {
    lm_state *state = NULL;
    uint8_t want[N];
    sink s = {logits, e->program->vocab, 0};
    memset(want, 1, N);
    assert_int_equal(lm_state_create(e->program, e->backend->cache(e->device), &state, err), LM_OK);
    const lm_seq seq = {.state = state, .n = N, .length = N};
    const lm_batch b = {.n_rows = N, .n_seqs = 1, .id = ids, .want = want, .seq = &seq};
    const lm_run r = {.edit = t ? on_edit : NULL, .edit_ctx = t, .logits = on_logits, .logits_ctx = &s};
    const lm_status st = e->backend->run(e->device, &b, &r, err);
    if (st == LM_OK) assert_int_equal(s.rows, N);
    lm_state_free(state);
    return st;
}

static void test_edits(void **state) {
    (void)state;
    lm_engine *e = engine(llama, "f64"), *cpu = engine(llama, "cpu");
    const size_t n = (size_t)N * e->program->vocab;
    double *plain = calloc(n, sizeof *plain), *got = calloc(n, sizeof *got), *keep = calloc(1 << 16, sizeof *keep);
    lm_error err = {0};
    assert_int_equal(run(e, NULL, plain, &err), LM_OK);
    editor none = {0};
    assert_int_equal(run(e, &none, got, &err), LM_OK);
    assert_memory_equal(got, plain, n * sizeof *got);
    assert_int_equal(none.before, e->program->n_ops);
    assert_int_equal(none.after, e->program->n_ops);
    /* a result that is doubled reaches what follows: the logits are linear in the final norm's result */
    assert_int_equal(run(e, &(editor){.op = e->program->value[e->program->norm].name}, got, &err), LM_OK);
    for (size_t i = 0; i < n; i++) assert_true(fabs(got[i] - 2 * plain[i]) <= 1e-12 * fabs(plain[i]) + 1e-300);
    /* an operand that is put back is seen by this op alone: RMS norm doesn't care for its input's size, but for eps */
    assert_int_equal(run(e, &(editor){.op = "layer.1.attn.norm", .operand = true, .keep = keep}, got, &err), LM_OK);
    for (size_t i = 0; i < n; i++) assert_true(fabs(got[i] - plain[i]) < 1e-2);
    assert_int_equal(run(cpu, &none, got, &err), LM_UNSUPPORTED);
    free(plain);
    free(got);
    free(keep);
    lm_engine_close(e);
    lm_engine_close(cpu);
}

/* ---- noise -----------------------------------------------------------------------------------------------------------------------------
 */
static uint32_t op_of(const lm_program *p, lm_op_kind kind) {
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->op[i].kind == kind) return i;
    fail_msg("no %s", lm_op_name(kind));
    return 0;
}
static double moved(lm_prec prec, const lm_program *p, uint32_t op, uint32_t sample, double *x) {
    const uint32_t n = p->value[p->op[op].out].width;
    double most = 0;
    const lm_noise noise = {prec, 1, sample};
    for (uint32_t i = 0; i < n; i++) x[i] = 1 + i % 7;
    lm_noise_result(&noise, p, op, 3, x);
    for (uint32_t i = 0; i < n; i++) most = fmax(most, fabs(x[i] / (1 + i % 7) - 1));
    return most;
}

static void test_noise(void **state) {
    (void)state;
    lm_engine *e = engine("tests/fixtures/gpt_oss", "f64");
    const lm_program *p = e->program;
    const uint32_t add = op_of(p, LM_OP_ADD), route = op_of(p, LM_OP_ROUTE), n = p->value[p->op[add].out].width;
    double *x = calloc(1 << 16, sizeof *x), *y = calloc(1 << 16, sizeof *y);
    const double f32 = moved(LM_PREC_F32, p, add, 0, x), bf16 = moved(LM_PREC_BF16, p, add, 0, y);
    assert_true(f32 > 0.5 * 0x1p-24 && f32 <= 0x1p-24 * 1.0001); /* the widest rounding to nearest */
    assert_true(bf16 > 0.5 * 0x1p-9 && bf16 <= 0x1p-9 * 1.0001);
    moved(LM_PREC_F32, p, add, 0, y);
    assert_memory_equal(x, y, n * sizeof *x); /* a function of seed, sample, op and position */
    moved(LM_PREC_F32, p, add, 1, y);
    assert_memory_not_equal(x, y, n * sizeof *x);
    /* experts are chosen, not rounded: only their weights move */
    const uint32_t k = p->op[route].route.k;
    moved(LM_PREC_BF16, p, route, 0, x);
    assert_int_equal(lm_noise_first(p, p->op[route].out), k);
    for (uint32_t i = 0; i < k; i++) assert_true(x[i] == 1 + i % 7);
    assert_true(x[k] != 1 + k % 7);
    free(x);
    free(y);
    lm_engine_close(e);
    lm_prec prec;
    assert_true(lm_prec_of_lane("i8", &prec) && prec == LM_PREC_I8 && lm_prec_of_lane("f64", &prec) && prec == LM_PREC_F32);
    assert_false(lm_prec_of_lane("i7", &prec));
}

/* ---- numbers
 * ----------------------------------------------------------------------------------------------------------------------------- */
static void test_shares(void **state) {
    (void)state;
    const double a[] = {3, 0, 4}, z[] = {0, 0, 0}, bad[] = {0, NAN, 0};
    const lm_dist d = lm_distance(a, z, 3), none = {0, 0}, all = {INFINITY, INFINITY};
    assert_true(d.l2 == 5 && d.max == 4);
    assert_true(isinf(lm_distance(a, bad, 3).l2));
    assert_true(lm_share(none, none) == 0);
    assert_true(isinf(lm_share(d, none)));                                                     /* nothing explains anything */
    assert_true(lm_share(d, (lm_dist){5 / LM_BAND, 4}) == 1);                                  /* just inside in the sum */
    assert_true(lm_share(d, (lm_dist){5, 4 / (2 * LM_BAND)}) == 2);                            /* one element is outside */
    assert_true(lm_share(d, all) == 0 && isinf(lm_share((lm_dist){INFINITY, INFINITY}, all))); /* not a NaN, though */
    lm_diff_tap t = {0};
    const float x[] = {1, 1, 1, 1, 0.0f, NAN}, y[] = {1, 1.0000001192f, 1.0000003f, 2, -0.0f, 1};
    const double dx[] = {1, 1, 1, 1, 0, 0}, dy[] = {1, 1.0000001192, 1.0000003, 2, 0, 0};
    lm_diff_pair(&t, x, y, dx, dy, 6, 9);
    assert_true(t.ulp[0] == 2 && t.ulp[1] == 1 && t.ulp[2] == 1 && t.ulp[7] == 2); /* −0 is 0; a NaN is no neighbour */
    assert_true(t.both == 1 && t.max_abs == 1 && t.max_at == 9 && t.cosine < 1);
}

static void test_tokens(void **state) {
    (void)state;
    lm_program p = {.vocab = 4};
    lm_diff d = {.p = &p, .samples = 2};
    d.side[0] = (lm_side){.letter = 'A', .spec = "a"};
    d.side[1] = (lm_side){.letter = 'B', .spec = "b"};
    const double truth[] = {5, 4.999, 1, 0}, near[] = {4.9989, 4.9991, 1, 0}, far[] = {1, 2, 5, 0}, s1[] = {5.001, 4.999, 1, 0},
                 s2[] = {5, 5, 1.001, 0};
    const double *const x[2] = {near, far}, *const sample[] = {s1, s2}, *const *const both[2] = {sample, sample};
    double scratch[4];
    lm_diff_row r = {.kl = NAN, .dlogprob = NAN};
    lm_diff_choices(&d, &r, 0, x, truth, both, 2, scratch);
    assert_true(r.top[0] == 1 && r.top[1] == 2 && r.top[2] == 0 && r.runner_up == 1);
    assert_true(fabs(r.margin[2] - 0.001) < 1e-12 && fabs(r.deficit[0] - 0.001) < 1e-12 && r.deficit[1] == 4);
    assert_true(r.reach[0] >= 0.004 && r.reach[0] < 0.1); /* half of LM_BAND times 0.001, or the spread */
    assert_true(lm_diff_near_tie(&r, 0) && !lm_diff_near_tie(&r, 1));
    assert_true(fabs(r.distance[1] - 4) < 1e-12 && r.kl > 1 && r.dlogprob > 1);
}

/* ---- the whole
 * --------------------------------------------------------------------------------------------------------------------------- */
static lm_status diff(const lm_diff_options *o, int *rc, lm_error *err) {
    lm_diff *d = NULL;
    const lm_status s = lm_diff_run(o, &d, err);
    assert_true((s == LM_OK) == (d != NULL));
    *rc = d ? lm_diff_exit_code(d) : -1;
    lm_diff_free(d);
    return s;
}

static void test_out_of_memory(void **state) {
    (void)state;
    const lm_diff_options o = {
        .a = "tests/fixtures/llama:f64", .b = "tests/fixtures/llama:cpu", .ids = ids, .n_ids = 3, .samples = 1, .run = {.threads = 1}};
    lm_status s = LM_NOMEM;
    int rc = -1;
    for (uint64_t n = 1; s != LM_OK && n < 10000000; n += 1 + n / 8) {
        lm_alloc_fail_after(n);
        s = diff(&o, &rc, NULL);
        lm_alloc_fail_after(0);
        assert_true(s == LM_OK || s == LM_NOMEM);
    }
    assert_int_equal(s, LM_OK);
    assert_int_equal(rc, 0);
}

static bool stop(void *ctx, const char *what, uint64_t done, uint64_t total) {
    (void)done;
    (void)total;
    return strcmp(what, "comparing") || ++*(int *)ctx < 2;
}
static void test_interrupted(void **state) {
    (void)state;
    int calls = 0, rc;
    const lm_diff_options o = {
        .a = llama, .b = oracle, .greedy = LM_DIFF_AS_TRACE, .run = {.threads = 1, .progress = stop, .progress_ctx = &calls}};
    assert_int_equal(diff(&o, &rc, NULL), LM_INTERRUPTED);
}

static void test_refused(void **state) {
    (void)state;
    const struct {
        lm_diff_options o;
        const char *says;
    } cases[] = {
        {{.a = llama}, "two sides"},
        {{.a = "nowhere", .b = oracle}, "no such file"},
        {{.a = "tests/fixtures/llama:gpu", .b = oracle}, "backend"},
        {{.a = "tests/fixtures/llama:cpu:i7", .b = oracle}, "lane"},
        {{.a = llama, .b = llama}, "which tokens"},
        {{.a = oracle, .b = oracle}, "--model"},
        {{.a = llama, .b = oracle, .ids = ids, .n_ids = N}, "its own token ids"},
        {{.a = llama, .b = oracle, .model = llama}, "for two traces"},
        {{.a = llama, .b = "tests/fixtures/llama:f64", .ids = (const int32_t[]){1, 320}, .n_ids = 2}, "outside the vocabulary"},
        {{.a = llama, .b = "tests/fixtures/qwen2", .ids = ids, .n_ids = N}, "vocabularies"},
        {{.a = llama, .b = "tests/fixtures/qwen2/oracle.safetensors"}, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lm_error err = {0};
        int rc;
        assert_int_not_equal(diff(&cases[i].o, &rc, &err), LM_OK);
        if (!strstr(err.message, cases[i].says)) fail_msg("%zu: '%s' does not say '%s'", i, err.message, cases[i].says);
    }
}

static void test_same_on_any_threads(void **state) {
    (void)state;
    char *text[2];
    lm_error err = {0};
    for (int i = 0; i < 2; i++) { /* the report is the same, however many threads computed it */
        lm_diff *d = NULL;
        const lm_diff_options o = {.a = llama, .b = oracle, .greedy = LM_DIFF_AS_TRACE, .seed = 7, .run = {.threads = 1 + (uint32_t)i}};
        assert_int_equal(lm_diff_run(&o, &d, &err), LM_OK);
        text[i] = lm_diff_json(d);
        assert_non_null(text[i]);
        assert_int_equal(lm_diff_exit_code(d), 0);
        lm_diff_free(d);
    }
    assert_string_equal(strstr(text[0], "\"cases\""), strstr(text[1], "\"cases\""));
    lm_text_free(text[0]);
    lm_text_free(text[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_edits),         cmocka_unit_test(test_noise),
        cmocka_unit_test(test_shares),        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_out_of_memory), cmocka_unit_test(test_interrupted),
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_same_on_any_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
