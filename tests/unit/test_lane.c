/* G3: a lane that rounds its products' inputs is PROVEN by what such rounding costs, and REFUTED when it does more. */
#include "backend/cpu/cpu.h"
#include "check.h"
#include "verify/verify.h"
#include <stdio.h>
#include <string.h>

static const lm_bf16_kernels *true_bf16;
static const lm_int_kernels *true_int;

/* The lowest four bits of each input are lost: a bfloat16 with three bits of mantissa. */
static void coarse_tile(const lm_bf16_tile *a) {
    uint32_t *y = lm_malloc((size_t)a->pairs * a->n_t * sizeof *y);
    assert_non_null(y);
    for (uint32_t i = 0; i < a->pairs * a->n_t; i++) y[i] = a->x[i] & 0xfff0fff0u;
    lm_bf16_tile coarse = *a;
    coarse.x = y;
    true_bf16->tile(&coarse);
    lm_free(y);
}
/* Four bits of mantissa, then quantized. */
static void coarse_quantise(lm_int_lane lane, const float *const *x, uint32_t w, uint32_t K, uint8_t *dst, uint8_t *tail) {
    float *y = lm_malloc((size_t)w * K * sizeof *y);
    const float *row[6];
    assert_non_null(y);
    for (uint32_t t = 0; t < w; t++) {
        row[t] = y + (size_t)t * K;
        for (uint32_t k = 0; k < K; k++) {
            uint32_t u;
            memcpy(&u, &x[t][k], 4);
            u &= 0xfff80000u;
            memcpy(&y[(size_t)t * K + k], &u, 4);
        }
    }
    true_int->quantise(lane, row, w, K, dst, tail);
    lm_free(y);
}

typedef struct outcome {
    lm_verdict verdict;
    uint32_t n;
    char bound[160];
} outcome;
static outcome judge(const char *model, const char *trace, const char *lane, const char *kv, bool damage) {
    lm_error err = {0};
    const lm_verify_options o = {0};
    lm_trace *t = NULL;
    lm_judge j = {.o = &o, .model = model, .trace_path = trace, .eo = {.device = {.threads = 2, .lane = lane, .kv = kv}}};
    if (lm_engine_open(model, &j.eo, &j.e, &err) != LM_OK) fail_msg("%s", err.message);
    if (lm_trace_open(trace, j.e->program, &t, &err) != LM_OK) fail_msg("%s", err.message);
    assert_int_equal(lm_ledger_create(&j.l, &err), LM_OK);
    j.t = t;
    lm_sha256_init(&j.logits);
    lm_device *d = j.e->device;
    true_bf16 = d->bf16, true_int = d->ik;
    lm_bf16_kernels bad_bf16 = d->bf16 ? *d->bf16 : (lm_bf16_kernels){0};
    lm_int_kernels bad_int = *d->ik;
    bad_bf16.tile = coarse_tile, bad_int.quantise = coarse_quantise;
    if (damage && d->bf16) d->bf16 = &bad_bf16;
    if (damage) d->ik = &bad_int;
    if (lm_judge_g3(&j, &err) != LM_OK) fail_msg("%s", err.message);
    const lm_claim *c = lm_ledger_claim(j.l, 0);
    outcome r = {c->verdict, lm_ledger_size(j.l), ""};
    snprintf(r.bound, sizeof r.bound, "%s", c->bound);
    printf("%s%s%s%s: %s: %s [%s]\n", lane, kv ? " kv " : "", kv ? kv : "", damage ? ", damaged" : "", lm_verdict_name(c->verdict),
           c->measured, c->bound);
    for (uint32_t i = 0; i < r.n; i++) {
        c = lm_ledger_claim(j.l, i);
        assert_string_equal(c->section, "G3");
        assert_true(c->gate && *c->measured && (i == 0 || c->verdict == LM_PROVEN));
    }
    lm_ledger_free(j.l);
    lm_trace_close(t);
    lm_engine_close(j.e);
    return r;
}
#define LLAMA "tests/fixtures/llama", "tests/fixtures/llama/oracle.safetensors"
#define HYBRID "tests/fixtures/hybrid/hybrid-q4_k_m.gguf", "tests/fixtures/hybrid/oracle.safetensors"
static void whole_lanes_are_proven(void **state) {
    (void)state;
    static const char *const lanes[] = {"i8", "i16", "mixed"};
    for (int i = 0; i < 3; i++) {
        const outcome r = judge(HYBRID, lanes[i], NULL, false);
        assert_int_equal(r.verdict, LM_PROVEN);
        assert_int_equal(r.n, 4);
        const outcome half = judge(HYBRID, lanes[i], "bf16", false);
        if (i == 1) { /* attends in float32: how keys and values are stored is imitated in no lane */
            assert_string_equal(half.bound, r.bound);
            continue;
        }
        assert_int_equal(half.verdict, LM_PROVEN); /* in bfloat16, which is */
        assert_string_not_equal(half.bound, r.bound);
    }
    assert_int_equal(judge(LLAMA, "bf16", NULL, false).verdict, LM_PROVEN);
}
static void damaged_lanes_are_refuted(void **state) {
    (void)state;
    assert_int_equal(judge(LLAMA, "bf16", NULL, true).verdict, LM_REFUTED);
    assert_int_equal(judge(HYBRID, "i8", NULL, true).verdict, LM_REFUTED);
    assert_int_equal(judge(HYBRID, "i16", NULL, true).verdict, LM_REFUTED);
}
static void names_its_lanes(void **state) {
    (void)state;
    assert_true(lm_lane_rounds("i8") && lm_lane_rounds("i16") && lm_lane_rounds("mixed") && lm_lane_rounds("bf16"));
    assert_false(lm_lane_rounds(NULL) || lm_lane_rounds("f32") || lm_lane_rounds("f64") || lm_lane_rounds("hf-bf16"));
}
int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(whole_lanes_are_proven), cmocka_unit_test(damaged_lanes_are_refuted),
                                       cmocka_unit_test(names_its_lanes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
