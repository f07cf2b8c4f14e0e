/* Planted faults: lemma diff must notice each that can be seen in the logits, and name the op it was planted in; and it must stay silent
 * over clean runs. Without arguments a part of it, as a test. With --all: every fault over every fixture (or over those that are named
 * after it), and clean runs over families, storage types and lanes, as the tables of docs/envelope.md.
 */
#include "check.h"
#include "verify/diff.h"
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { N = 40, MOST = 64 };
static char folder[] = "/tmp/lemma-mutations-XXXXXX";
static char trace[128], packed[128];
static int32_t ids[N];

static void prompt(uint32_t vocab) {
    for (uint32_t i = 0; i < N; i++) ids[i] = (int32_t)((i * 6007u + i * i * 17u + 3) % vocab);
}

typedef struct outcome {
    bool flagged, named, seen,
        alarm; /* seen: its effect on the logits is over three times the envelope; alarm: the faithful side was blamed */
    char op[96], said[96];
} outcome;

static double effect(const lm_diff *d, const lm_diff_case *c) {
    double most = c->tap[d->p->value[d->p->logits].first].s[1].ratio;
    for (uint32_t i = 0; i < c->n; i++)
        if (c->row[i].distance[1] / c->row[i].reach[1] > most) most = c->row[i].distance[1] / c->row[i].reach[1];
    return most;
}

/* Fault m at its nth place in the model: A runs the faulty program, B is the trace of the sound one. False: there is no such place. */
static bool plant(const char *model, uint32_t m, uint32_t nth, outcome *out) {
    lm_error err = {0};
    lm_engine *files = NULL, *e = NULL;
    lm_diff *d = NULL;
    const lm_engine_options f64 = {.backend = "f64", .device = {.threads = 1}}, cpu = {.backend = "cpu", .device = {.threads = 1}};
    const lm_diff_options o = {.a = "the faulty program", .b = trace, .run = {.threads = 2}, .greedy = LM_DIFF_AS_TRACE};
    if (lm_engine_open(model, &f64, &files, &err) != LM_OK) fail_msg("%s: %s", model, err.message);
    const uint32_t op = lm_mutation_place(files->program, m, nth);
    if (op == LM_NONE) {
        lm_engine_close(files);
        return false;
    }
    *out = (outcome){0};
    snprintf(out->op, sizeof out->op, "%s", files->program->op[op].name);
    if (lm_mutate(files->program, op, m, &err) != LM_OK || lm_engine_share(files, &cpu, &e, &err) != LM_OK ||
        lm_diff_run_engine(e, &o, &d, &err) != LM_OK)
        fail_msg("%s, %s at %s: %s %s", model, lm_mutation_name(m), out->op, err.field, err.message);
    out->flagged = lm_diff_exit_code(d) == 1;
    out->seen = effect(d, &d->c[0]) > 3;
    for (uint32_t i = 0; i < d->n_findings; i++) out->alarm |= d->finding[i].side == 0;
    for (uint32_t i = 0; i < d->n_findings && !*out->said; i++)
        if (d->finding[i].side == 1) snprintf(out->said, sizeof out->said, "%s", d->finding[i].op);
    out->named = !strcmp(out->op, out->said);
    lm_diff_free(d);
    lm_engine_close(e);
    lm_engine_close(files);
    return true;
}

static bool record(const char *model) {
    lm_error err = {0};
    lm_engine *e = NULL;
    const lm_engine_options f64 = {.backend = "f64", .device = {.threads = 1}};
    if (lm_engine_open(model, &f64, &e, &err) != LM_OK) return false;
    prompt(e->program->vocab);
    lm_engine_close(e);
    const lm_dump_options o = {.run = {.threads = 2}, .ids = ids, .n_ids = N, .taps = true, .out = trace};
    if (lm_dump(model, &o, NULL, &err) != LM_OK) fail_msg("%s: %s", model, err.message);
    return true;
}

/* ---- the test --------------------------------------------------------------------------------------------------------------------------
 */
/* One of each mechanism: windows and soft-caps, sinks and experts, MLA and grouped routing, the delta rule, biases and layer norm. */
static const char *const few[] = {"gemma2", "gpt_oss", "deepseek_v3", "qwen3_5", "starcoder2"};

static void test_faults_are_named(void **state) {
    (void)state;
    uint32_t seen = 0, named = 0, faults = 0;
    for (size_t k = 0; k < sizeof few / sizeof *few; k++) {
        char model[128];
        snprintf(model, sizeof model, "tests/fixtures/%s", few[k]);
        assert_true(record(model));
        for (uint32_t m = 0; m < lm_mutations(); m++) {
            outcome r;
            if (!plant(model, m, 1, &r) && !plant(model, m, 0, &r)) continue;
            faults++;
            if (r.alarm) fail_msg("%s, %s at %s: the faithful side was blamed", few[k], lm_mutation_name(m), r.op);
            if (r.seen && !r.flagged) fail_msg("%s, %s at %s: missed", few[k], lm_mutation_name(m), r.op);
            if (r.flagged && !r.named) print_message("%s, %s at %s: blamed %s\n", few[k], lm_mutation_name(m), r.op, r.said);
            seen += r.flagged;
            named += r.flagged && r.named;
        }
    }
    print_message("%u faults, %u flagged, %u named right\n", faults, seen, named);
    assert_true(faults >= 100 && seen * 10 >= faults * 8 && named * 100 >= seen * 95);
}

/* ---- the tables
 * --------------------------------------------------------------------------------------------------------------------------- */
static uint32_t fixtures(char name[MOST][64]) {
    uint32_t n = 0;
    struct dirent **list = NULL;
    const int all = scandir("tests/fixtures", &list, NULL, alphasort);
    for (int i = 0; i < all; i++) {
        char path[320];
        snprintf(path, sizeof path, "tests/fixtures/%s/config.json", list[i]->d_name);
        if (n < MOST && strcmp(list[i]->d_name, "tower") && access(path, R_OK) == 0) snprintf(name[n++], 64, "%.63s", list[i]->d_name);
        free(list[i]);
    }
    free(list);
    return n;
}

static void table_of_faults(char name[MOST][64], uint32_t n) {
    uint32_t all[5] = {0}, *of = calloc(lm_mutations() * 5, sizeof *of);
    for (uint32_t k = 0; k < n; k++) {
        char model[128];
        snprintf(model, sizeof model, "tests/fixtures/%.63s", name[k]);
        if (!record(model)) continue;
        for (uint32_t m = 0; m < lm_mutations(); m++)
            for (uint32_t nth = 0; nth < 3; nth += 2) {
                outcome r;
                if (!plant(model, m, nth, &r)) break;
                uint32_t *t = of + m * 5;
                const uint32_t row[5] = {1, r.seen, r.seen && r.flagged, r.flagged, r.flagged && r.named};
                for (int i = 0; i < 5; i++) t[i] += row[i], all[i] += row[i];
                if (r.alarm || (r.seen && !r.flagged) || (r.flagged && !r.named))
                    fprintf(stderr, "%s, %s at %s: %s, blamed %s%s\n", name[k], lm_mutation_name(m), r.op, r.flagged ? "flagged" : "missed",
                            r.said, r.alarm ? ", FALSE ALARM on the other side" : "");
            }
        fprintf(stderr, "%s done\n", name[k]);
    }
    printf("| fault | planted | seen in the logits | of them flagged | flagged in all | op named right |\n| --- | --- | --- | --- | --- | "
           "--- |\n");
    for (uint32_t m = 0; m < lm_mutations(); m++) {
        const uint32_t *t = of + m * 5;
        printf("| %s | %u | %u | %u | %u | %u |\n", lm_mutation_name(m), t[0], t[1], t[2], t[3], t[4]);
    }
    printf("| **all** | %u | %u | %u | %u | %u |\n", all[0], all[1], all[2], all[3], all[4]);
    free(of);
}

static void clean_run(const char *a, const char *b, uint32_t *runs, uint32_t *alarms) {
    lm_error err = {0};
    lm_diff *d = NULL;
    const bool is_trace = strstr(b, ".safetensors") != NULL;
    const lm_diff_options o = {.a = a,
                               .b = b,
                               .run = {.threads = 2},
                               .ids = is_trace ? NULL : ids,
                               .n_ids = is_trace ? 0 : N,
                               .greedy = is_trace ? LM_DIFF_AS_TRACE : 12};
    if (lm_diff_run(&o, &d, &err) != LM_OK) {
        fprintf(stderr, "%s: %s\n", a, err.message);
        return;
    }
    ++*runs;
    if (lm_diff_exit_code(d)) {
        ++*alarms;
        fprintf(stderr, "FALSE ALARM %s: %s\n", a, d->finding[0].text);
    }
    lm_diff_free(d);
}

static void table_of_clean_runs(char name[MOST][64], uint32_t n) {
    static const char *const types[] = {"q8_0", "q4_0", "q4_1"}, *const lanes[] = {"f32", "i8", "i16", "mixed"};
    uint32_t runs[5] = {0}, alarms[5] = {0};
    for (uint32_t k = 0; k < n; k++) {
        char model[128], side[2][192];
        lm_error err = {0};
        snprintf(model, sizeof model, "tests/fixtures/%.63s", name[k]);
        if (!record(model)) continue;
        snprintf(side[1], sizeof side[1], "%s/oracle.safetensors", model);
        clean_run(model, side[1], &runs[0], &alarms[0]);
        for (int t = 0; t < 3; t++) {
            if (lm_quantize(model, packed, types[t], NULL, NULL, &err) != LM_OK) continue;
            for (int l = 0; l < 4; l++) {
                snprintf(side[0], sizeof side[0], "%s:cpu:%s", packed, lanes[l]);
                snprintf(side[1], sizeof side[1], "%s:f64", packed);
                clean_run(side[0], side[1], &runs[1 + l], &alarms[1 + l]);
            }
        }
        fprintf(stderr, "%s clean\n", name[k]);
    }
    printf("\n| clean runs | runs | false alarms |\n| --- | --- | --- |\n| transformers' float32 against lane f32 | %u | %u |\n", runs[0],
           alarms[0]);
    for (int l = 0; l < 4; l++)
        printf("| lane %s against the arbiter, Q8_0, Q4_0 and Q4_1 | %u | %u |\n", lanes[l], runs[1 + l], alarms[1 + l]);
}

int main(int argc, char **argv) {
    if (!mkdtemp(folder)) return 1;
    snprintf(trace, sizeof trace, "%s/trace.safetensors", folder);
    snprintf(packed, sizeof packed, "%s/packed.gguf", folder);
    int rc = 0;
    if (argc > 1 && !strcmp(argv[1], "--all")) {
        static char name[MOST][64];
        uint32_t n = argc > 2 ? 0 : fixtures(name);
        for (int i = 2; i < argc && n < MOST; i++) snprintf(name[n++], 64, "%.63s", argv[i]);
        table_of_faults(name, n);
        table_of_clean_runs(name, n);
    } else {
        const struct CMUnitTest tests[] = {cmocka_unit_test(test_faults_are_named)};
        rc = cmocka_run_group_tests(tests, NULL, NULL);
    }
    unlink(trace);
    unlink(packed);
    rmdir(folder);
    return rc;
}
