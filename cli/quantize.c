/* lemma quantize: a Hugging Face folder to one GGUF file. */
#include "cli.h"

static void print_note(void *unused, const char *line) {
    (void)unused;
    lm_cli_progress_end();
    fprintf(stderr, "%s\n", line);
}

int lm_cli_quantize(int argc, char **argv) {
    bool json = false;
    lm_cli_args args;
    const lm_cli_opt opts[] = {LM_CLI_JSON_OPT(&json), {NULL}};
    int rc = lm_cli_parse("quantize",
                          "FOLDER OUT.gguf TYPE\n\nWrites a Hugging Face folder as one GGUF file that llama.cpp reads too.\n"
                          "TYPE: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1.\n"
                          "Vectors and routers stay f32; a row that is no whole number of blocks is stored as f16 (listed on stderr).",
                          opts, 3, 3, argc, argv, &args);
    if (rc != LM_CLI_GO) return rc;
    lm_quantize_options o = {.note = print_note, .progress = lm_cli_progress};
    lm_quantize_result r;
    lm_error err = {0};
    lm_cli_catch_interrupts();
    if (lm_quantize(args.s[0], args.s[1], args.s[2], &o, &r, &err) != LM_OK) return lm_cli_error("quantize", &err);
    lm_cli_progress_end();
    if (json)
        printf("{\"tensors\": %u, \"other_type\": %u, \"tensor_bytes\": %llu, \"standin_tokenizer\": %s}\n", r.tensors, r.other_type,
               (unsigned long long)r.bytes, r.standin_tokenizer ? "true" : "false");
    else
        fprintf(stderr, "%s written: %u tensors, %.1f MB%s\n", args.s[1], r.tensors, (double)r.bytes / 1e6,
                r.standin_tokenizer ? ", a stand-in tokenizer (the folder has none)" : "");
    return 0;
}
