/* lemma verify: the gates, as a table of claims or as JSON. */
#include "lemma/verify.h"
#include "cli.h"
#include <string.h>

static void print_subject(void *unused, const char *subject) {
    (void)unused;
    lm_cli_progress_end();
    printf("%s\n\n", subject);
}

static void print_claim(void *unused, const lm_claim *c) {
    (void)unused;
    char *text = lm_claim_text(c);
    lm_cli_progress_end();
    if (text) fputs(text, stdout);
    fflush(stdout);
    lm_text_free(text);
}

static int parse_determinism(const char *s, lm_determinism *out) {
    static const char *const names[] = {"quick", "full", "off"};
    for (int i = 0; i < 3; i++)
        if (!strcmp(s, names[i])) {
            *out = (lm_determinism)i;
            return LM_CLI_GO;
        }
    return lm_cli_usage("verify", "--determinism: '%.60s' is none of quick, full, off", s);
}

static int report(const lm_ledger *l, bool json) {
    uint32_t proven, open, refuted;
    if (json) {
        char *text = lm_ledger_json(l);
        if (!text) return lm_cli_error("verify", &(lm_error){.code = LM_NOMEM, .offset = LM_NO_OFFSET});
        puts(text);
        lm_text_free(text);
    } else {
        lm_ledger_count(l, &proven, &open, &refuted);
        printf("\n%u proven, %u open, %u refuted\n", proven, open, refuted);
    }
    int rc = lm_ledger_exit_code(l);
    if (rc == 3) fputs("lemma verify: no gate could be evaluated: the trace has nothing to compare with\n", stderr);
    return rc;
}

int lm_cli_verify(int argc, char **argv) {
    lm_verify_options o = {0};
    const char *determinism = "quick";
    bool json = false;
    lm_cli_args args;
    const lm_cli_opt opts[] = {
        LM_CLI_MODEL_OPTS(&o.run),
        {"--chunk", 0, LM_CLI_U32, &o.run.chunk, "N", "rows at a time (default: a good size)", 1, 1 << 20},
        {"--determinism", 0, LM_CLI_STR, &determinism, "HOW", "quick: one axis at a time (default); full: the grid too; off"},
        LM_CLI_JSON_OPT(&json),
        {NULL},
    };
    int rc = lm_cli_parse(
        "verify",
        "MODEL [TRACE]\n\nJudges MODEL against TRACE (default: oracle.safetensors beside the model) and says of each claim whether it is\n"
        "PROVEN, OPEN or REFUTED. The last line counts them. Exit status: 0 something was measured and nothing is refuted,\n"
        "1 a claim is refuted, 2 a usage or input error, 3 a resource is missing or no gate could be evaluated.",
        opts, 1, 2, argc, argv, &args);
    if (rc == LM_CLI_GO) rc = parse_determinism(determinism, &o.determinism);
    if (rc != LM_CLI_GO) return rc;
    if (args.n > 1) o.trace = args.s[1];
    o.run.progress = lm_cli_progress;
    o.run.interrupted = lm_cli_interrupted;
    if (!json) {
        o.subject = print_subject;
        o.claim = print_claim;
    }
    lm_cli_catch_interrupts();
    lm_ledger *l = NULL;
    lm_error err = {0};
    if (lm_verify(args.s[0], &o, &l, &err) != LM_OK) return lm_cli_error("verify", &err);
    lm_cli_progress_end();
    rc = report(l, json);
    lm_ledger_free(l);
    return rc;
}
