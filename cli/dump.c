/* lemma dump: what a run computes, as a trace. */
#include "cli.h"
#include "lemma/verify.h"
#include <stdlib.h>
#include <string.h>

typedef struct prints {
    bool json, any;
} prints;

static void print_fingerprint(void *ctx, const lm_fingerprint *f) {
    prints *p = ctx;
    lm_cli_progress_end();
    if (p->json)
        printf("%s\n {\"case\": %u, \"op\": \"%s\", \"shape\": [%u, %u], \"sha256\": \"%s\"}", p->any ? "," : "{\"taps\": [", f->k, f->op,
               f->rows, f->width, f->sha256);
    else
        printf("c%u %-32s [%u, %u] %s\n", f->k, f->op, f->rows, f->width, f->sha256);
    p->any = true;
}

static int dump(const char *model, lm_dump_options *o, bool hash, bool json) {
    char hex[65];
    lm_error err = {0};
    prints p = {json, false};
    lm_cli_catch_interrupts();
    if (hash && !o->out) {
        o->fingerprint = print_fingerprint;
        o->fingerprint_ctx = &p;
    }
    if (lm_dump(model, o, hex, &err) != LM_OK) {
        if (p.any) putchar('\n');
        return lm_cli_error("dump", &err);
    }
    lm_cli_progress_end();
    if (json) {
        fputs(p.any ? "],\n " : "{", stdout);
        if (o->out) {
            fputs("\"trace\": ", stdout);
            lm_cli_json_text(stdout, o->out, strlen(o->out));
            fputs(", ", stdout);
        }
        printf("\"logits_sha256\": \"%s\"}\n", hex);
    } else {
        if (o->out) fprintf(stderr, "%s written\n", o->out);
        if (hash) printf("sha256:%s\n", hex);
    }
    return 0;
}

int lm_cli_dump(int argc, char **argv) {
    lm_dump_options o = {0};
    lm_cli_ids ids = {0};
    bool hash = false, json = false;
    lm_cli_args args;
    const lm_cli_opt opts[] = {
        {"--ids", 0, LM_CLI_IDS, &ids, "LIST", "token ids of the one case: 1,2,3"},
        {"--ids-from", 0, LM_CLI_STR, &o.ids_from, "TRACE", "the token ids of a trace's cases"},
        {"--prompt", 'p', LM_CLI_STR, &o.prompt, "TEXT", "a text (the model must carry its tokenizer)"},
        {"--greedy", 0, LM_CLI_U32, &o.greedy, "N", "tokens of the bare arg-max run (default 0)", 0, 1 << 20},
        {"--taps", 0, LM_CLI_FLAG, &o.taps, NULL, "every op's result"},
        {"--out", 'o', LM_CLI_STR, &o.out, "FILE", "the safetensors file to write"},
        LM_CLI_MODEL_OPTS(&o.run, "f32"),
        {"--chunk", 0, LM_CLI_U32, &o.run.chunk, "N", "rows at a time (default: a good size)", 1, 1 << 20},
        {"--hash", 0, LM_CLI_FLAG, &hash, NULL,
         "last line: sha256 of all logits; without -o, before it a line for every op"},
        LM_CLI_JSON_OPT(&json),
        {NULL},
    };
    int rc = lm_cli_parse(
        "dump",
        "MODEL (--ids LIST | --ids-from TRACE | --prompt TEXT) (-o FILE | --hash)\n\nWrites a trace of what MODEL computes, for "
        "lemma verify and lemma diff, or prints\nits fingerprint: the sha256 of every op's result (docs/versions.md).",
        opts, 1, 1, argc, argv, &args);
    if (rc == LM_CLI_GO) {
        o.ids = ids.id;
        o.n_ids = ids.n;
        o.run.progress = lm_cli_progress;
        o.run.interrupted = lm_cli_interrupted;
        rc = dump(args.s[0], &o, hash, json);
    }
    free(ids.id);
    return rc;
}
