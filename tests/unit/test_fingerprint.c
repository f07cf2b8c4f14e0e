/* One build's fingerprint against another's (docs/versions.md): the first op whose hash differs is the one that was changed, for every
 * fault that can be planted; and a trace that the faulty build wrote is blamed at that op by the sound one. */
#include "check.h"
#include "verify/diff.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { N = 12, MOST_OPS = 4096 };
static char folder[] = "/tmp/lemma-fingerprint-XXXXXX";
static int32_t ids[N];

typedef struct prints {
    uint32_t n;
    char sha[MOST_OPS][65];
} prints;
static prints sound, faulty;

static void take(void *ctx, const lm_fingerprint *f) {
    prints *p = ctx;
    assert_true(p->n < MOST_OPS && f->rows == N && f->width);
    snprintf(p->sha[p->n++], 65, "%s", f->sha256);
}

/* The fingerprint of a model with fault m at its nth place, or of the sound one (m: LM_NONE). LM_NONE: there is no such place. */
static uint32_t print(const char *model, const char *cpu_level, uint32_t m, uint32_t nth, prints *to, const char *out, char op[96]) {
    lm_error err = {0};
    lm_engine *files = NULL, *e = NULL;
    char hash[65];
    const lm_engine_options f64 = {.backend = "f64", .device = {.threads = 1}},
                            cpu = {.backend = "cpu", .device = {.threads = 2, .cpu_level = cpu_level}};
    if (lm_engine_open(model, &f64, &files, &err) != LM_OK) fail_msg("%s: %s", model, err.message);
    for (uint32_t i = 0; i < N; i++) ids[i] = (int32_t)((i * 6007u + i * i * 17u + 3) % files->program->vocab);
    const uint32_t at = m == LM_NONE ? 0 : lm_mutation_place(files->program, m, nth);
    if (at != LM_NONE) {
        const lm_dump_options o = {.ids = ids,
                                   .n_ids = N,
                                   .run = {.chunk = m == LM_NONE ? 5 : 0},
                                   .fingerprint = take,
                                   .fingerprint_ctx = to,
                                   .taps = true,
                                   .out = out};
        to->n = 0;
        snprintf(op, 96, "%s", files->program->op[at].name);
        if ((m != LM_NONE && lm_mutate(files->program, at, m, &err) != LM_OK) || lm_engine_share(files, &cpu, &e, &err) != LM_OK ||
            lm_dump_engine(e, &o, hash, &err) != LM_OK)
            fail_msg("%s at %s: %s %s", model, op, err.field, err.message);
        assert_int_equal(to->n, files->program->n_ops);
        lm_engine_close(e);
    }
    lm_engine_close(files);
    return at;
}

static uint32_t first_difference(void) {
    assert_int_equal(sound.n, faulty.n);
    for (uint32_t i = 0; i < sound.n; i++)
        if (strcmp(sound.sha[i], faulty.sha[i])) return i;
    return LM_NONE;
}

static void names_the_op(void **state) {
    static const char *const models[] = {"tests/fixtures/llama", "tests/fixtures/gpt_oss", "tests/fixtures/qwen3_5",
                                         "tests/fixtures/deepseek_v3"};
    uint32_t planted = 0, silent = 0;
    char op[96];
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        print(models[i], NULL, LM_NONE, 0, &sound, NULL, op);
        print(models[i], "c", LM_NONE, 0, &faulty, NULL, op);
        assert_int_equal(first_difference(), LM_NONE); /* one build, another instruction set: every op's bits are the same */
        for (uint32_t m = 0; m < lm_mutations(); m++) {
            const uint32_t at = print(models[i], NULL, m, 0, &faulty, NULL, op);
            if (at == LM_NONE) continue;
            const uint32_t first = first_difference();
            planted++;
            silent += first == LM_NONE;
            if (first != at && first != LM_NONE)
                fail_msg("%s in %s: %s was planted at op %u, op %u differs first", lm_mutation_name(m), models[i], op, at, first);
        }
    }
    print_message("%u faults planted, %u without effect on 12 tokens\n", planted, silent);
    assert_true(planted > 80 && silent < planted / 8);
}

/* The recipe's second step: dump in one build, diff in the other. */
static void diff_blames_it(void **state) {
    static const char model[] = "tests/fixtures/llama";
    char trace[128], op[96];
    (void)state;
    snprintf(trace, sizeof trace, "%s/other.safetensors", folder);
    for (uint32_t m = 0, n = 0; m < lm_mutations() && n < 6; m++) {
        lm_diff *d = NULL;
        lm_error err = {0};
        int side = 0;
        const char *blamed = "";
        const lm_diff_options o = {.a = model, .b = trace, .run = {.threads = 2}, .greedy = LM_DIFF_AS_TRACE};
        if (print(model, NULL, m, 1, &faulty, trace, op) == LM_NONE) continue;
        print(model, NULL, LM_NONE, 0, &sound, NULL, (char[96]){0});
        if (first_difference() == LM_NONE) continue;
        n++;
        if (lm_diff_run(&o, &d, &err) != LM_OK) fail_msg("%s", err.message);
        if (lm_diff_exit_code(d) == 1) { /* a fault below what rounding explains is told by the hash alone */
            assert_true(lm_diff_first_fault(d, &side, &blamed));
            assert_int_equal(side, 1);
            assert_string_equal(blamed, op);
        }
        lm_diff_free(d);
    }
    unlink(trace);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(names_the_op), cmocka_unit_test(diff_blames_it)};
    if (!mkdtemp(folder)) return 1;
    const int rc = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder);
    return rc;
}
