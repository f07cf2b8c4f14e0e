/* lemma ppl: perplexity of a text, and KL against a reference. */
#include "lemma/ppl.h"
#include "cli.h"
#include <stdlib.h>
#include <string.h>

static int run(const char *model, const lm_ppl_options *o, bool json) {
    lm_ppl *p = NULL;
    lm_error err = {0};
    lm_cli_catch_interrupts();
    if (lm_ppl_run(model, o, &p, &err) != LM_OK) return lm_cli_error("ppl", &err);
    lm_cli_progress_end();
    char *text = json ? lm_ppl_json(p) : lm_ppl_text(p);
    const int rc = text ? 0 : lm_cli_error("ppl", &(lm_error){.code = LM_NOMEM, .offset = LM_NO_OFFSET});
    if (text) fputs(text, stdout);
    if (text && json) fputc('\n', stdout);
    if (o->save) fprintf(stderr, "%s written\n", o->save);
    lm_text_free(text);
    lm_ppl_free(p);
    return rc;
}

/* "1,2,3", or the name of a file of such numbers (commas, spaces and line breaks between them). */
static int read_ids(const char *arg, lm_cli_ids *out) {
    const bool list = arg[0] && strspn(arg, "0123456789, ") == strlen(arg);
    size_t n = strlen(arg), cap = 0;
    char *text = list ? strdup(arg) : lm_cli_read_file("ppl", arg, &n);
    if (!text) return list ? lm_cli_error("ppl", &(lm_error){.code = LM_NOMEM, .offset = LM_NO_OFFSET}) : 2;
    int rc = LM_CLI_GO;
    for (char *c = text + strspn(text, ", \t\r\n"); *c && rc == LM_CLI_GO; c += strspn(c, ", \t\r\n")) {
        char *end = c;
        const unsigned long v = *c >= '0' && *c <= '9' ? strtoul(c, &end, 10) : 0;
        if (end == c || v > INT32_MAX || (*end && !strchr(", \t\r\n", *end)))
            rc = lm_cli_usage("ppl", "--ids: '%.*s' is no token id; write them as 1,2,3, or name a file of them",
                              (int)strcspn(c, ", \t\r\n"), c);
        if (rc == LM_CLI_GO && out->n == cap) {
            int32_t *more = realloc(out->id, (cap = cap ? 2 * cap : 1024) * sizeof *more);
            if (more) out->id = more;
            else rc = lm_cli_error("ppl", &(lm_error){.code = LM_NOMEM, .offset = LM_NO_OFFSET});
        }
        if (rc == LM_CLI_GO) out->id[out->n++] = (int32_t)v;
        c = end;
    }
    free(text);
    if (rc == LM_CLI_GO && !out->n) rc = lm_cli_usage("ppl", "--ids: no token ids in '%.80s'", arg);
    return rc;
}

int lm_cli_ppl(int argc, char **argv) {
    lm_ppl_options o = {0};
    lm_cli_ids ids = {0};
    const char *list = NULL;
    char *text = NULL;
    bool json = false;
    lm_cli_args args;
    const lm_cli_opt opts[] = {
        {"--ctx", 'c', LM_CLI_U32, &o.ctx, "N", "tokens of a window (default 512; a shorter text is one window)", 4, 1 << 24},
        {"--stride", 0, LM_CLI_U32, &o.stride, "N", "a window begins every N tokens (default: ctx, side by side)", 1, 1 << 24},
        {"--windows", 0, LM_CLI_U32, &o.windows, "N", "at most so many windows (default: all)", 1, 1 << 24},
        {"--ids", 0, LM_CLI_STR, &list, "LIST|FILE", "token ids instead of a text: 1,2,3, or a file of them"},
        {"--kl", 0, LM_CLI_STR, &o.reference, "REF", "compare with a trace: whole logits, or a compact reference. Brings its own tokens"},
        {"--save", 0, LM_CLI_STR, &o.save, "REF", "write a compact reference: per position the best ids, and what remains"},
        {"--top", 0, LM_CLI_U32, &o.top, "K", "--save: so many best ids (default 64)", 1, 65536},
        LM_CLI_MODEL_OPTS(&o.run, "f32"),
        {"--chunk", 0, LM_CLI_U32, &o.run.chunk, "N", "rows at a time (default: a good size)", 1, 1 << 20},
        LM_CLI_JSON_OPT(&json),
        {NULL},
    };
    int rc = lm_cli_parse(
        "ppl",
        "MODEL TEXTFILE\n       lemma ppl MODEL --kl REF\n\n"
        "The perplexity of a text (-: stdin) with its standard error: exp of the mean negative log-likelihood of the\n"
        "scored tokens. The text is cut into windows of --ctx tokens, side by side, each scored on its second half; with a\n"
        "smaller --stride they overlap, each scored on its last --stride tokens. Where the tokenizer begins a text with BOS,\n"
        "every window begins with it. --kl adds KL(reference|model), top-1 agreement and the largest |dlogprob|.",
        opts, 1, 2, argc, argv, &args);
    if (rc != LM_CLI_GO) return rc;
    if (args.n > 1 && list)
        rc = lm_cli_usage("ppl", "give a text or --ids, not both");
    else if (args.n < 2 && !list && !o.reference)
        rc = lm_cli_usage("ppl", "nothing to score: name a text file, token ids with --ids, or a reference with --kl");
    else if (args.n > 1 && !(text = lm_cli_read_file("ppl", args.s[1], &o.text_n)))
        rc = 2;
    else if (list)
        rc = read_ids(list, &ids);
    if (rc == LM_CLI_GO) {
        o.text = text;
        o.ids = ids.id;
        o.n_ids = ids.n;
        o.run.progress = lm_cli_progress;
        o.run.interrupted = lm_cli_interrupted;
        rc = run(args.s[0], &o, json);
    }
    free(ids.id);
    free(text);
    return rc;
}
