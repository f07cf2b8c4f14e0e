/* lemma diff: where two runs part, and whether rounding explains it. */
#include "lemma/diff.h"
#include "cli.h"
#include <stdlib.h>
#include <string.h>

static int diff(const lm_diff_options *o, const char *html, bool json) {
    lm_diff *d = NULL;
    lm_error err = {0};
    lm_cli_catch_interrupts();
    if (lm_diff_run(o, &d, &err) != LM_OK) return lm_cli_error("diff", &err);
    lm_cli_progress_end();
    char *text = json ? lm_diff_json(d) : lm_diff_text(d);
    int rc = text ? lm_diff_exit_code(d) : lm_cli_error("diff", &(lm_error){.code = LM_NOMEM, .offset = LM_NO_OFFSET});
    if (text) fputs(text, stdout);
    if (text && json) fputc('\n', stdout);
    lm_text_free(text);
    const int wrote = html && text ? lm_cli_html_write("diff", html, lm_diff_html(d)) : LM_CLI_GO;
    if (wrote != LM_CLI_GO) rc = wrote;
    lm_diff_free(d);
    return rc;
}

static int quant(const lm_diff_options *o, lm_quant_by by, bool json) {
    lm_quant *q = NULL;
    lm_error err = {0};
    lm_cli_catch_interrupts();
    if (lm_quant_run(o, by, &q, &err) != LM_OK) return lm_cli_error("diff", &err);
    lm_cli_progress_end();
    char *text = json ? lm_quant_json(q) : lm_quant_text(q);
    const int rc = text ? 0 : lm_cli_error("diff", &(lm_error){.code = LM_NOMEM, .offset = LM_NO_OFFSET});
    if (text) fputs(text, stdout);
    if (text && json) fputc('\n', stdout);
    lm_text_free(text);
    lm_quant_free(q);
    return rc;
}

int lm_cli_diff(int argc, char **argv) {
    lm_diff_options o = {.greedy = LM_DIFF_AS_TRACE};
    lm_cli_ids ids = {0};
    const char *prompt = NULL, *file = NULL, *html = NULL;
    char *text = NULL;
    bool json = false, whole = false, tensors = false, layers = false;
    lm_cli_args args;
    const lm_cli_opt opts[] = {
        {"--ids", 0, LM_CLI_IDS, &ids, "LIST", "token ids to run: 1,2,3 (a trace brings its own)"},
        {"--prompt", 'p', LM_CLI_STR, &prompt, "TEXT", "a text to run (the model must carry its tokenizer)"},
        {"--text", 0, LM_CLI_STR, &file, "FILE", "a text to run, from a file (-: stdin)"},
        {"--greedy", 0, LM_CLI_U32, &o.greedy, "N", "tokens of the bare arg-max run (default: as many as the trace has)", 0, 1 << 20},
        {"--ties", 0, LM_CLI_FLAG, &o.ties, NULL, "list the positions whose token rounding could flip; B may be left out"},
        {"--model", 0, LM_CLI_STR, &o.model, "MODEL", "what two traces or servers are of"},
        {"--timeout", 0, LM_CLI_U32, &o.timeout, "S", "seconds that a server may take for one answer (default 60)", 1, 86400},
        {"--quant", 0, LM_CLI_FLAG, &whole, NULL, "A is a model, B a quantized file of it: what the quantization costs"},
        {"--per-tensor", 0, LM_CLI_FLAG, &tensors, NULL, "the same, and what each tensor of B costs alone, the dearest first"},
        {"--per-layer", 0, LM_CLI_FLAG, &layers, NULL, "the same, layer by layer"},
        {"--samples", 0, LM_CLI_U32, &o.samples, "N", "perturbed runs per lane (default 3)", 1, 16},
        {"--seed", 0, LM_CLI_U64, &o.seed, "N", "of the perturbations (default 0)"},
        {"--threads", 't', LM_CLI_U32, &o.run.threads, "N", "threads (default: one per physical core)", 1, 1024},
        {"--cpu-level", 0, LM_CLI_STR, &o.run.cpu_level, "LEVEL", "c, avx2, avx512 or neon (default: the best this CPU has)"},
        {"--html", 0, LM_CLI_STR, &html, "FILE", "a report too: one self-contained page"},
        LM_CLI_JSON_OPT(&json),
        {NULL},
    };
    int rc = lm_cli_parse(
        "diff",
        "A [B]\n\nEach side is a trace (FILE.safetensors[:LANE]), a run (MODEL[:BACKEND[:LANE]]: model.gguf:cpu:i8, folder:f64) or a\n"
        "server (http://HOST:PORT[:LANE], llama.cpp's or OpenAI-compatible: log-probabilities of its best few tokens).\n"
        "Says where the two part, at which op, and whether rounding explains it; B is the reference. The last line is the\n"
        "verdict. Exit status: 0 every difference is rounding or a near-tie, 1 one is not, 2 a usage or input error.",
        opts, 1, 2, argc, argv, &args);
    if (rc != LM_CLI_GO) return free(ids.id), rc;
    if (args.n < 2 && !o.ties)
        rc = lm_cli_usage("diff", "name two sides (or one, with --ties)");
    else if ((ids.n > 0) + (prompt != NULL) + (file != NULL) > 1)
        rc = lm_cli_usage("diff", "give at most one of --ids, --prompt and --text");
    else if (html && (whole || tensors || layers))
        rc = lm_cli_usage("diff", "--html does not go with --quant, --per-tensor and --per-layer");
    else if (html && lm_cli_html_check("diff", html) != LM_CLI_GO)
        rc = 2;
    else if (tensors && layers)
        rc = lm_cli_usage("diff", "give one of --per-tensor and --per-layer");
    else if ((whole || tensors || layers) && (o.ties || o.model || o.greedy != LM_DIFF_AS_TRACE || o.samples || o.seed || o.timeout))
        rc = lm_cli_usage(
            "diff", "--quant takes two models and their tokens: leave --ties, --model, --greedy, --samples, --seed and --timeout out");
    else if (file && !(text = lm_cli_read_file("diff", file, &o.text_n)))
        rc = 2;
    if (rc == LM_CLI_GO) {
        o.a = args.s[0];
        o.b = args.n > 1 ? args.s[1] : NULL;
        o.ids = ids.id;
        o.n_ids = ids.n;
        o.text = text ? text : prompt;
        if (!text && prompt) o.text_n = strlen(prompt);
        o.run.progress = lm_cli_progress;
        o.run.interrupted = lm_cli_interrupted;
        if (whole || tensors || layers)
            rc = quant(&o, tensors ? LM_QUANT_TENSOR : layers ? LM_QUANT_LAYER : LM_QUANT_WHOLE, json);
        else
            rc = diff(&o, html, json);
    }
    free(ids.id);
    free(text);
    return rc;
}
