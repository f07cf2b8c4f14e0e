/* What the verbs share: the verb table, options, the interrupt flag, the progress bar, errors.
 *
 * A verb is one file cli/NAME.c with `int lm_cli_NAME(int argc, char **argv)`: argv[0] is the verb, the result the exit status. It is found
 * by its name; a verb of the list without a file says that it is planned. Results go to stdout, everything else to stderr.
 */
#ifndef LM_CLI_CLI_H
#define LM_CLI_CLI_H
#include <stdio.h>
#include "lemma/lemma.h"

/* name, arguments, what it does */
#define LM_VERB_LIST(X) \
    X(run, "MODEL -p TEXT", "generate text") \
    X(chat, "MODEL", "talk to a model") \
    X(serve, "MODEL", "an OpenAI-compatible server") \
    X(inspect, "FILE|DIR", "what a model's files hold") \
    X(tokenize, "MODEL TEXT", "ids and pieces of a text") \
    X(render, "MODEL", "apply a chat template") \
    X(quantize, "FOLDER OUT TYPE", "write a Hugging Face folder as GGUF") \
    X(verify, "MODEL [TRACE]", "run the gates, or check a receipt: what is proven, open, refuted") \
    X(dump, "MODEL --ids LIST", "write a trace") \
    X(diff, "A B", "where two runs part, and why; what a quantized file costs") \
    X(bench, "MODEL", "speed, as a share of this machine's limit") \
    X(profile, "MODEL", "where the time goes, op by op") \
    X(ppl, "MODEL FILE", "perplexity, and KL against a reference") \
    X(constrain, "", "check a schema or a grammar") \
    X(pull, "NAME", "download a model, resume, check")
#define LM_VERB_PROTO(name, args, text) int lm_cli_##name(int argc, char **argv);
LM_VERB_LIST(LM_VERB_PROTO)
#undef LM_VERB_PROTO

/* ---- options ---------------------------------------------------------------------------------------------------------------- */
typedef enum lm_cli_kind {
    LM_CLI_FLAG, /* bool *: set to true */
    LM_CLI_STR,  /* const char ** */
    LM_CLI_U32,  /* uint32_t *, within [min, max] */
    LM_CLI_U64,  /* uint64_t * */
    LM_CLI_F64,  /* double *, finite, within [min, max] */
    LM_CLI_STRS, /* lm_cli_strs *: may be given again */
    LM_CLI_IDS   /* lm_cli_ids *: "1,2,3" */
} lm_cli_kind;
#define LM_CLI_MAX_STRS 16
typedef struct lm_cli_strs { const char *s[LM_CLI_MAX_STRS]; uint32_t n; } lm_cli_strs;
typedef struct lm_cli_ids { int32_t *id; uint32_t n; } lm_cli_ids; /* id: malloc'd, the verb frees it */

typedef struct lm_cli_opt {
    const char *name; /* "--top-k" */
    char letter;      /* 'n' for -n; 0: none */
    lm_cli_kind kind;
    void *to;
    const char *arg;  /* "N" in the help; NULL for flags */
    const char *help;
    double min, max;  /* U32 and F64; both 0: any value */
    bool *given;      /* set when the option appears; may be NULL */
} lm_cli_opt;

/* Arguments that are no options, at most LM_CLI_MAX_ARGS. */
#define LM_CLI_MAX_ARGS 4
typedef struct lm_cli_args { const char *s[LM_CLI_MAX_ARGS]; uint32_t n; } lm_cli_args;

#define LM_CLI_GO (-1) /* lm_cli_parse: nothing to say, go on */
/* Options ("--name value", "--name=value", "-n value"; "--" ends them) into opts (which ends with a NULL name), the rest into args, whose
 * number must lie in [min_args, max_args]. -h prints the help of `verb` (its options, after `about`). LM_CLI_GO, or the exit status. */
int lm_cli_parse(const char *verb, const char *about, const lm_cli_opt *opts, uint32_t min_args, uint32_t max_args, int argc, char **argv,
                 lm_cli_args *args);
#define LM_CLI_KV_OPT(text) \
    {"--kv", 0, LM_CLI_STR, (text), "TYPE", "how keys and values are kept: f32, f16, bf16 or q8_0 (default: f32; f16 in lanes i8, mixed; bf16 in bf16); " \
     "with bf16 these three attend in bfloat16"}
/* What opens a model, in every verb that does: goes into its option table; own_lane: a string, the lane on cpu where none is named. */
#define LM_CLI_MODEL_OPTS(o, own_lane) \
    {"--backend", 0, LM_CLI_STR, &(o)->backend, "NAME", "cpu (default) or f64, the arbiter"}, \
    {"--lane", 0, LM_CLI_STR, &(o)->lane, "NAME", "cpu: f32, i16, mixed, i8, bf16 (default: " own_lane "); f64: f64 (default), hf-bf16"}, \
    LM_CLI_KV_OPT(&(o)->kv), \
    {"--threads", 't', LM_CLI_U32, &(o)->threads, "N", "threads (default: one per physical core)", 1, 1024}, \
    {"--cpu-level", 0, LM_CLI_STR, &(o)->cpu_level, "LEVEL", "c, avx2, avx512 or neon (default: the best this CPU has)"}
#define LM_CLI_JSON_OPT(flag) {"--json", 0, LM_CLI_FLAG, (flag), NULL, "one JSON object on stdout"}

/* ---- errors: one line on stderr --------------------------------------------------------------------------------------------------- */
/* Says "lemma VERB: line" and returns the error's exit status. */
int lm_cli_error(const char *verb, const lm_error *err);
/* A usage error; returns 2. */
int lm_cli_usage(const char *verb, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- interrupts and progress ------------------------------------------------------------------------------------------------------ */
/* From now on Ctrl-C (and SIGTERM) sets a flag, and a second one ends the process. */
void lm_cli_catch_interrupts(void);
bool lm_cli_interrupted(void *unused); /* fits lm_model_options.interrupted */
/* Draws a bar on stderr when that is a terminal and the step has taken over a second; false once interrupted. Fits
 * lm_model_options.progress. total 0: how much there is isn't known, the seconds are shown. */
bool lm_cli_progress(void *unused, const char *what, uint64_t done, uint64_t total);
void lm_cli_progress_end(void); /* wipes the bar, if there is one: before anything else is printed */
double lm_cli_now(void);        /* seconds, monotonic */
/* o's callbacks: the progress bar and the interrupt flag. */
void lm_cli_model_callbacks(lm_model_options *o);

/* ---- text -------------------------------------------------------------------------------------------------------------------- */
/* s[0..n) as a JSON string with its quotes; bytes that are no UTF-8 become U+FFFD. */
void lm_cli_json_text(FILE *f, const char *s, size_t n);
/* The whole file (or stdin for "-"), malloc'd and NUL-terminated; NULL after one line on stderr. */
char *lm_cli_read_file(const char *verb, const char *path, size_t *n);
/* Whether a report may be written to `path`: nothing is there, or a page (it is replaced; nothing else is). LM_CLI_GO, or 2 after one line. */
int lm_cli_html_check(const char *verb, const char *path);
/* html: freed with lm_text_free; NULL: out of memory. LM_CLI_GO, or the exit status after one line. */
int lm_cli_html_write(const char *verb, const char *path, char *html);
#endif
