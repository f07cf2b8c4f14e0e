/* lemma verify: the gates, as a table of claims or as JSON. */
#include "verify.h"
#include "lemma/receipt.h"
#include <stdlib.h>
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
    if (!s) return LM_CLI_GO; /* quick */
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
    if (rc == 3) fputs("lemma verify: no gate could be evaluated: there is nothing to compare with\n", stderr);
    return rc;
}

/* Against the trace that o names, or against a receipt. */
static int judge_one(const char *model, const char *receipt, const char *html, lm_verify_options *o, bool json) {
    lm_ledger *l = NULL;
    lm_error err = {0};
    if (!json) {
        o->subject = print_subject;
        o->claim = print_claim;
    }
    if ((receipt ? lm_verify_receipt(model, receipt, o, &l, &err) : lm_verify(model, o, &l, &err)) != LM_OK)
        return lm_cli_error("verify", &err);
    lm_cli_progress_end();
    int rc = report(l, json);
    const int wrote = html ? lm_cli_html_write("verify", html, lm_ledger_html(l)) : LM_CLI_GO;
    if (wrote != LM_CLI_GO) rc = wrote;
    lm_ledger_free(l);
    return rc;
}

typedef struct form { /* what says which form of the verb is meant */
    bool all, markdown, json, determinism;
    const char *models, *receipt, *html;
    lm_cli_ids ids, expect;
    uint32_t topk;
} form;

static int run_form(const form *f, const lm_cli_args *args, lm_verify_options *o) {
    bool listed = f->ids.n || f->expect.n;
    if (f->markdown && f->json) return lm_cli_usage("verify", "--markdown and --json: give one of them");
    if (f->all && (listed || o->converted)) return lm_cli_usage("verify", "--all goes with neither --ids, --expect nor --converted");
    if (!f->all && (f->markdown || f->models)) return lm_cli_usage("verify", "%s goes with --all", f->markdown ? "--markdown" : "--models");
    if (listed && (!f->ids.n || !f->expect.n)) return lm_cli_usage("verify", "--ids and --expect go together");
    if (f->topk && !listed) return lm_cli_usage("verify", "--topk goes with --ids and --expect");
    if (f->receipt && (f->all || listed || o->converted))
        return lm_cli_usage("verify", "--receipt goes with neither --all, --ids nor --converted");
    if (f->determinism && (f->receipt || listed)) return lm_cli_usage("verify", "--determinism goes with neither --receipt nor --ids");
    if (f->html && (f->all || listed)) return lm_cli_usage("verify", "--html goes with neither --all nor --ids");
    if (f->html && lm_cli_html_check("verify", f->html) != LM_CLI_GO) return 2;
    uint32_t most = listed || f->receipt ? 1 : 2;
    if (!f->all && args->n > most)
        return lm_cli_usage("verify", "'%.80s' is one argument too many: %s is wanted", args->s[most],
                            most == 1 ? "one MODEL" : "MODEL [TRACE]");
    lm_cli_catch_interrupts();
    if (f->all) return lm_cli_verify_all(args, f->models, o, f->markdown ? LM_CLI_MARKDOWN : f->json ? LM_CLI_JSON : LM_CLI_TEXT);
    if (listed) return lm_cli_verify_ids(args->s[0], &o->run, &f->ids, &f->expect, f->topk, f->json);
    o->trace = args->n > 1 ? args->s[1] : NULL;
    return judge_one(args->s[0], f->receipt, f->html, o, f->json);
}

int lm_cli_verify(int argc, char **argv) {
    lm_verify_options o = {0};
    const char *determinism = NULL;
    form f = {0};
    lm_cli_args args;
    const lm_cli_opt opts[] = {
        LM_CLI_MODEL_OPTS(&o.run, "f32"),
        {"--chunk", 0, LM_CLI_U32, &o.run.chunk, "N", "rows at a time (default: a good size)", 1, 1 << 20},
        {"--determinism", 0, LM_CLI_STR, &determinism, "HOW", "quick: one axis at a time (default); full: the grid too; off"},
        {"--converted", 0, LM_CLI_FLAG, &o.converted, NULL, "MODEL was converted from TRACE's weights: the binding is OPEN, not REFUTED"},
        {"--all", 0, LM_CLI_FLAG, &f.all, NULL, "every model below the folders, on cpu and f64 unless --backend says one"},
        {"--models", 0, LM_CLI_STR, &f.models, "DIR", "--all: where models that a traces.txt names are looked for, too"},
        {"--markdown", 0, LM_CLI_FLAG, &f.markdown, NULL, "--all: a Markdown table on stdout"},
        {"--receipt", 0, LM_CLI_STR, &f.receipt, "FILE", "a receipt of lemma run: run its ids again, draw every id again"},
        {"--ids", 0, LM_CLI_IDS, &f.ids, "LIST", "the prompt's token ids: 1,2,3"},
        {"--expect", 0, LM_CLI_IDS, &f.expect, "LIST", "what the bare arg-max run after --ids must give"},
        {"--topk", 0, LM_CLI_U32, &f.topk, "N", "--expect: the N best at each step (default 0)", 0, 1000},
        {"--html", 0, LM_CLI_STR, &f.html, "FILE", "a report too: one self-contained page"},
        LM_CLI_JSON_OPT(&f.json),
        {NULL},
    };
    int rc = lm_cli_parse(
        "verify",
        "MODEL [TRACE]\n       lemma verify --all DIR...\n       lemma verify MODEL --ids LIST --expect LIST\n"
        "       lemma verify MODEL --receipt FILE\n\n"
        "Judges MODEL against TRACE (default: oracle.safetensors beside the model) and says of each claim whether it is\n"
        "PROVEN, OPEN or REFUTED; with --all every model below DIR against each of its traces; with --ids the greedy\n"
        "continuation against a list; with --receipt what a run with --receipt claims. The last line counts the claims. Exit status:\n"
        "0 something was compared with the reference and nothing is refuted, 1 a claim is refuted, 2 a usage or input error, 3 a\n"
        "resource is missing or nothing could be compared.",
        opts, 1, LM_CLI_MAX_ARGS, argc, argv, &args);
    if (rc == LM_CLI_GO) rc = parse_determinism(determinism, &o.determinism);
    f.determinism = determinism != NULL;
    o.run.progress = lm_cli_progress;
    o.run.interrupted = lm_cli_interrupted;
    if (rc == LM_CLI_GO) rc = run_form(&f, &args, &o);
    free(f.ids.id);
    free(f.expect.id);
    return rc;
}
