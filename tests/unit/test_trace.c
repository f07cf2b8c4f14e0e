/* The trace reader against traces made here, right and wrong; and with memory that runs out at every point. */
#include "check.h"
#include "verify/verify.h"
#include <math.h>
#include <stdio.h>
#include <unistd.h>

enum { VOCAB = 10, WIDTH = 4, LAYERS = 2, T = 3 };

static lm_value_info value[4] = {{"embed", WIDTH}, {"layer.0.out", WIDTH}, {"layer.1.out", WIDTH}, {"norm", WIDTH}};
static lm_val layer_out[LAYERS] = {1, 2};
static const lm_program program = {
    .value = value, .n_values = 4, .embed = 0, .norm = 3, .layer_out = layer_out, .n_layers = LAYERS, .vocab = VOCAB};

static float zeros[T * VOCAB];
static int32_t ids[T] = {1, 9, 0};
static char path[64];

#define F32(n, r, a, b) \
    { .name = n, .st_dtype = "F32", .rank = r, .dim = {a, b}, .data = zeros, .bytes = 4 * (a) * ((r) == 2 ? (b) : 1) }
#define I32(n, r, a, b, p) \
    { .name = n, .st_dtype = "I32", .rank = r, .dim = {a, b}, .data = p, .bytes = 4 * (a) * ((r) == 2 ? (b) : 1) }

static lm_status opened(const lm_st_out *t, uint32_t n, const char *const *meta, lm_trace **out, lm_error *err) {
    static const char *const plain[] = {"trace_version", "1", NULL};
    *out = NULL;
    assert_int_equal(lm_safetensors_write(path, t, n, meta ? meta : plain, err), LM_OK);
    return lm_trace_open(path, &program, out, err);
}

static void test_all_there(void **state) {
    (void)state;
    const lm_st_out t[] = {I32("c10.ids", 1, T, 0, ids),          I32("c2.ids", 1, T, 0, ids),        F32("c2.hidden.embed", 2, T, WIDTH),
                           F32("c2.hidden.layer.1", 2, T, WIDTH), F32("c2.hidden.norm", 2, T, WIDTH), F32("c2.logits", 2, T, VOCAB),
                           F32("c2.logits.last", 1, VOCAB, 0),    I32("c2.argmax", 1, T, 0, ids),     I32("c2.top.ids", 2, T, 1, ids),
                           F32("c2.top.logprobs", 2, T, 1),       I32("c2.greedy", 1, 2, 0, ids),     F32("c2.greedy.logits", 2, 2, VOCAB),
                           F32("c2.tap.layer.0.attn.q", 2, T, 2)};
    const char *const meta[] = {"trace_version",
                                "1",
                                "c2.text",
                                "hello",
                                "c2.gate",
                                "{\"top1_min\": 0.5, \"top1_quarter_min\": 0.25, \"max_dlogprob\": 2}",
                                "cached_vs_full_max_dlogit",
                                "n/a (why)",
                                "float64_max_dlogit",
                                "2.5e-05",
                                "dtype",
                                "bfloat16",
                                "c2.baseline",
                                "{\"top1\": 0.52, \"top1_by_quarter\": [0.3, 0.9], \"max_dlogprob_top64\": 1.6}",
                                "c2.vs_float32",
                                "{\"top1\": 0.6, \"top1_by_quarter\": [0.4, 0.8], \"max_dlogprob_top64\": 0.5}",
                                "embed_scale_bf16",
                                "9.8125",
                                NULL};
    lm_trace *tr;
    lm_error err = {0};
    assert_int_equal(opened(t, sizeof t / sizeof *t, meta, &tr, &err), LM_OK);
    assert_int_equal(tr->n_cases, 2);
    const lm_trace_case *c = &tr->c[0];
    assert_int_equal(c->k, 2);
    assert_int_equal(tr->c[1].k, 10);
    assert_int_equal(c->n, T);
    assert_memory_equal(c->ids, ids, sizeof ids);
    assert_true(c->hidden[0] && !c->hidden[1] && c->hidden[2] && c->hidden[3]);
    assert_int_equal(c->n_hidden, 3);
    assert_true(c->logits && c->logits_last && c->argmax && c->top_ids && c->top_logprobs && c->greedy && c->greedy_logits);
    assert_int_equal(c->n_greedy, 2);
    assert_int_equal(c->n_top, 1);
    assert_string_equal(c->text, "hello");
    assert_true(c->gate.present && c->gate.top1_min == 0.5 && c->gate.top1_quarter_min == 0.25 && c->gate.max_dlogprob == 2);
    assert_true(tr->noise == 2.5e-5 && tr->embed_scale_bf16 == 9.8125);
    assert_null(tr->weights_sha256);
    assert_int_equal(strlen(tr->sha256), 64);
    char buf[32];
    assert_string_equal(lm_trace_hidden_name(tr, 0, buf), "embed");
    assert_string_equal(lm_trace_hidden_name(tr, 2, buf), "layer.1");
    assert_string_equal(lm_trace_hidden_name(tr, 3, buf), "norm");
    lm_trace_close(tr);
}

/* Each of these beside c0.ids is refused, and the message names it. */
static void test_refused_tensors(void **state) {
    (void)state;
    static int32_t bad[T] = {1, 10, 0}, minus[T] = {0, 1, -1};
    const lm_st_out wrong[] = {
        I32("c0.argmax", 1, T, 0, bad),
        I32("c0.greedy", 1, T, 0, minus),
        I32("c0.argmax", 1, 2, 0, ids),
        I32("c0.top.ids", 1, T, 0, ids),
        I32("c0.greedy", 2, T, 1, ids),
        F32("c0.argmax", 1, T, 0),
        F32("c0.logits", 2, 2, VOCAB),
        F32("c0.logits", 2, T, 9),
        F32("c0.logits", 1, VOCAB, 0),
        F32("c0.logits.last", 1, 9, 0),
        F32("c0.logits.last", 2, 1, VOCAB),
        F32("c0.hidden.embed", 2, T, 3),
        F32("c0.hidden.layer.2", 2, T, WIDTH),
        F32("c0.hidden.layer.00", 2, T, WIDTH),
        F32("c0.hidden.layer.", 2, T, WIDTH),
        F32("c0.hidden.layer.0x", 2, T, WIDTH),
        F32("c0.hidden.layer.18446744073709551616", 2, T, WIDTH),
        F32("c0.hidden.last", 2, T, WIDTH),
        F32("c0.top.logprobs", 2, T, 1),
        F32("c0.greedy.logits", 2, 1, VOCAB),
        F32("c0.tap.", 2, T, 1),
        F32("c0.tap.x", 1, T, 0),
        F32("c0.tap.x", 2, 2, 1),
        F32("c0.what", 1, T, 0),
        F32("c0.", 1, T, 0),
        F32("c.ids", 1, T, 0),
        F32("d0.ids", 1, T, 0),
        F32("c00.ids", 1, T, 0),
        F32("c2147483648.ids", 1, T, 0),
        F32("c1.logits", 2, T, VOCAB),
        F32("x", 1, 1, 0),
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const lm_st_out t[] = {I32("c0.ids", 1, T, 0, ids), wrong[i]};
        lm_trace *tr;
        lm_error err = {0};
        lm_status s = opened(t, 2, NULL, &tr, &err);
        if (s != LM_FORMAT && s != LM_RANGE) print_error("%s: status %s\n", wrong[i].name, lm_status_name(s));
        assert_true(s == LM_FORMAT || s == LM_RANGE);
        assert_null(tr);
        assert_string_equal(err.file, path);
        if (strcmp(wrong[i].name, "c1.logits")) assert_string_equal(err.field, wrong[i].name);
        assert_true(err.message[0]);
    }
}

static void test_refused_metadata(void **state) {
    (void)state;
    static const char *const wrong[][2] = {
        {"trace_version", "0"},
        {"trace_version", "1.0"},
        {"weights_sha256", ""},
        {"weights_sha256", "ABCDEF0123456789ABCDEF0123456789ABCDEF0123456789ABCDEF0123456789"},
        {"cached_vs_full_max_dlogit", "1e"},
        {"cached_vs_full_max_dlogit", "inf"},
        {"float64_max_dlogit", "-0.1"},
        {"embed_scale_bf16", "62,0"},
        {"c0.gate", "1"},
        {"c0.gate", "{}"},
        {"c0.gate", "{\"top1_min\": 1, \"top1_quarter_min\": 1, \"max_dlogprob\": 1}"},
        {"c0.baseline", "{\"top1\": }"},
        {"c0.vs_float32", ""},
        {"c1.text", "x"},
        {"c1.gate", "{}"},
    };
    const lm_st_out t[] = {I32("c0.ids", 1, T, 0, ids)};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        bool version = !strcmp(wrong[i][0], "trace_version");
        const char *const meta[] = {wrong[i][0], wrong[i][1], version ? NULL : "trace_version", "1", NULL};
        lm_trace *tr;
        lm_error err = {0};
        lm_status s = opened(t, 1, meta, &tr, &err);
        if (s != LM_FORMAT && s != LM_UNSUPPORTED) print_error("%s %s: status %s\n", wrong[i][0], wrong[i][1], lm_status_name(s));
        assert_true(s == LM_FORMAT || s == LM_UNSUPPORTED);
        assert_null(tr);
    }
    const char *const none[] = {"dtype", "float32", NULL};
    lm_trace *tr;
    assert_int_equal(opened(t, 1, none, &tr, NULL), LM_FORMAT);
}

static void test_out_of_memory(void **state) {
    (void)state;
    const lm_st_out t[] = {I32("c0.ids", 1, T, 0, ids), I32("c0.top.ids", 2, T, 1, ids), F32("c0.hidden.norm", 2, T, WIDTH),
                           I32("c0.greedy", 1, 2, 0, ids)};
    lm_trace *tr;
    lm_status s = LM_NOMEM;
    assert_int_equal(opened(t, 4, NULL, &tr, NULL), LM_OK);
    lm_trace_close(tr);
    for (uint64_t n = 1; s != LM_OK && n < 1000; n++) {
        tr = NULL;
        lm_alloc_fail_after(n);
        s = lm_trace_open(path, &program, &tr, NULL);
        lm_alloc_fail_after(0);
        assert_true(s == LM_OK || s == LM_NOMEM);
        assert_true((s == LM_OK) == (tr != NULL));
        lm_trace_close(tr);
    }
    assert_int_equal(s, LM_OK);
}

static int teardown(void **state) {
    (void)state;
    return unlink(path);
}

int main(void) {
    snprintf(path, sizeof path, "/tmp/lemma-test-trace-%ld", (long)getpid());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_there),
        cmocka_unit_test(test_refused_tensors),
        cmocka_unit_test(test_refused_metadata),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
