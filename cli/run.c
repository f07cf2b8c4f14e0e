/* lemma run: text or ids in, text or ids out. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "cli.h"
#include "lemma/receipt.h"

static const char about[] =
    "MODEL -p TEXT [options]\n\nGenerates text after a prompt: greedily, or sampled with --temp. Text goes to stdout, timings to stderr.";

typedef struct run {
    /* what was asked for */
    const char *path, *prompt, *file, *receipt_path;
    lm_model_options model_opt;
    lm_sampler_options sampler_opt;
    lm_cli_strs stop;
    lm_cli_ids ids;
    uint32_t n_predict, chunk, ctx;
    bool given_temp, given_filter, given_seed, print_ids, ignore_eos, greedy, hash, json;
    /* what runs */
    lm_model *model;
    lm_model_info info;
    const lm_tokenizer *tokenizer; /* NULL: the model has none */
    lm_session *session;
    lm_sampler *sampler;
    lm_detok *detok;
    lm_stops *stops;
    lm_logits_hash *hasher;
    lm_receipt *receipt;
    lm_logits row; /* the last one, copied */
    uint32_t row_position;
    void *row_data;
    bool not_finite; /* a row came with no order in it: at bad_position, the logit of bad_id */
    uint32_t bad_position, bad_id;
    int32_t *id; /* the prompt, then what was generated */
    uint32_t n_prompt, n, cap;
    char *text; /* for --json */
    size_t text_n, text_cap;
    bool generating;
    const char *finish; /* "eos", "stop", "length", "interrupted" */
    double prompt_s, generate_s;
} run;

static void release(run *r) {
    lm_stops_free(r->stops);
    lm_detok_free(r->detok);
    lm_sampler_free(r->sampler);
    lm_logits_hash_free(r->hasher);
    lm_receipt_free(r->receipt);
    lm_session_free(r->session);
    lm_model_close(r->model);
    free(r->row_data);
    free(r->id);
    free(r->text);
    free(r->ids.id);
}

static lm_status no_memory(lm_error *err) {
    *err = (lm_error){.code = LM_NOMEM, .offset = LM_NO_OFFSET};
    return LM_NOMEM;
}

/* ---- the prompt -----------------------------------------------------------------------------------------------------------------*/
static int text_prompt(run *r, lm_error *err) {
    char *from_file = NULL;
    size_t n = r->prompt ? strlen(r->prompt) : 0;
    if (r->file && !(from_file = lm_cli_read_file("run", r->file, &n))) return 2;
    size_t n_ids = 0;
    lm_status s = lm_text_encode(r->tokenizer, from_file ? from_file : r->prompt, n, true, true, &r->id, &n_ids, err);
    free(from_file);
    if (s != LM_OK) return lm_cli_error("run", err);
    if (n_ids > INT32_MAX) return lm_cli_usage("run", "the prompt has %zu tokens: too many", n_ids);
    r->n = (uint32_t)n_ids;
    return LM_CLI_GO;
}

static int prepare_prompt(run *r, lm_error *err) {
    bool text = r->prompt || r->file;
    if (text && !r->tokenizer && err->code == LM_MISSING) return lm_cli_usage("run", "%s: %.200s (--ids 1,2,3)", r->path, err->message);
    if (text && !r->tokenizer)
        return lm_cli_usage("run", "%s has no tokenizer that lemma can use (%.200s); give the prompt as ids: --ids 1,2,3", r->path,
                            err->message);
    if (text) {
        int rc = text_prompt(r, err);
        if (rc != LM_CLI_GO) return rc;
    } else {
        r->id = r->ids.id;
        r->n = r->ids.n;
        r->ids = (lm_cli_ids){0};
    }
    r->n_prompt = r->cap = r->n;
    if (!r->n) return lm_cli_usage("run", "the prompt is empty, and the model has no token that begins a text: give it something to go on");
    for (uint32_t i = 0; i < r->n; i++)
        if ((uint32_t)r->id[i] >= r->info.vocab)
            return lm_cli_usage("run", "token id %d at position %u is outside the vocabulary of %u", r->id[i], i, r->info.vocab);
    if (r->info.learned && r->ctx > r->info.learned)
        return lm_cli_usage("run", "--ctx %u: the model has %u learned positions and can't go beyond them: give at most that", r->ctx,
                            r->info.learned);
    uint32_t limit = r->ctx ? r->ctx : r->info.max_position;
    if (limit && r->n > limit) {
        const char *hint = r->info.learned == limit ? "shorten it: the model has no more positions"
                           : r->ctx                 ? "raise --ctx or shorten the prompt"
                                                    : "shorten it, or go beyond what the model was made for with --ctx";
        return lm_cli_usage("run", "the prompt has %u tokens, the context %u: %s", r->n, limit, hint);
    }
    r->ctx = limit;
    return LM_CLI_GO;
}

/* ---- generation ------------------------------------------------------------------------------------------------------------------*/
static double logit_at(const lm_logits *l, size_t i) {
    return l->is_f64 ? ((const double *)l->data)[i] : (double)((const float *)l->data)[i];
}

/* As the sampler has it: -infinity is a logit. A run that samples nothing must not pass over what a sampler would refuse. */
static bool rows_finite(run *r, const lm_logits *l) {
    for (uint32_t row = 0; row < l->rows; row++)
        for (uint32_t i = 0; i < l->width; i++)
            if (!(logit_at(l, (size_t)row * l->width + i) < INFINITY)) {
                r->not_finite = true;
                r->bad_position = l->position[row];
                r->bad_id = i;
                return false;
            }
    return true;
}

static bool on_logits(void *ctx, const lm_logits *l) {
    run *r = ctx;
    if (!rows_finite(r, l)) return false;
    if (r->hasher) lm_logits_hash_add(r->hasher, l);
    size_t bytes = (size_t)l->width * (l->is_f64 ? sizeof(double) : sizeof(float));
    memcpy(r->row_data, (const char *)l->data + (l->rows - 1) * bytes, bytes);
    r->row_position = l->position[l->rows - 1];
    r->row = (lm_logits){.data = r->row_data, .is_f64 = l->is_f64, .rows = 1, .width = l->width, .position = &r->row_position};
    return true;
}

/* Polled while computing. The prompt may take long; what is generated shows by itself. */
static bool poll(void *ctx) {
    const run *r = ctx;
    return r->generating ? lm_cli_interrupted(NULL) : !lm_cli_progress(NULL, "reading the prompt", 0, 0);
}

static lm_status show(run *r, const char *s, size_t n, lm_error *err) {
    if (!n) return LM_OK;
    if (r->json) {
        if (r->text_n + n > r->text_cap) {
            char *t = realloc(r->text, r->text_cap = 2 * (r->text_n + n));
            if (!t) return no_memory(err);
            r->text = t;
        }
        memcpy(r->text + r->text_n, s, n);
        r->text_n += n;
    } else if (!r->print_ids) {
        fwrite(s, 1, n, stdout);
        fflush(stdout);
    }
    return LM_OK;
}

/* A new id's text, past the stop strings. An id that the tokenizer doesn't know (a padded vocabulary) has none. */
static lm_status show_id(run *r, int32_t id, bool *stopped, lm_error *err) {
    const char *piece, *text;
    size_t n;
    *stopped = false;
    if (!r->detok || !lm_tokenizer_piece(r->tokenizer, id, &n)) return LM_OK;
    lm_status s = lm_detok_push(r->detok, id, &piece, &n, err);
    if (s == LM_OK) s = lm_stops_push(r->stops, piece, n, &text, &n, stopped, err);
    return s == LM_OK ? show(r, text, n, err) : s;
}

/* What the decoder and the stop strings still hold when the end came otherwise. */
static lm_status show_rest(run *r, lm_error *err) {
    const char *piece, *text;
    size_t n;
    bool stopped;
    if (!r->detok) return LM_OK;
    lm_status s = lm_detok_flush(r->detok, &piece, &n, err);
    if (s == LM_OK) s = lm_stops_push(r->stops, piece, n, &text, &n, &stopped, err);
    if (s == LM_OK) s = show(r, text, n, err);
    if (s != LM_OK) return s;
    if (stopped) {
        r->finish = "stop";
        return LM_OK;
    }
    lm_stops_flush(r->stops, &text, &n);
    return show(r, text, n, err);
}

static bool is_eos(run *r, int32_t id) {
    size_t n = 0;
    const int32_t *eos = lm_model_eos(r->model, &n);
    for (size_t i = 0; i < n && !r->ignore_eos; i++)
        if (eos[i] == id) return true;
    return false;
}

static lm_status keep_id(run *r, int32_t id, lm_error *err) {
    if (r->n == r->cap) {
        int32_t *p = realloc(r->id, (r->cap = 2 * r->cap + 64) * sizeof *p);
        if (!p) return no_memory(err);
        r->id = p;
    }
    r->id[r->n++] = id;
    return LM_OK;
}

static lm_status generate(run *r, lm_error *err) {
    double start = lm_cli_now();
    lm_status s = lm_session_append(r->session, r->id, r->n, r->hash ? LM_ROWS_ALL : LM_ROWS_LAST, on_logits, r, err);
    lm_cli_progress_end();
    r->prompt_s = lm_cli_now() - start;
    start = lm_cli_now();
    r->generating = true;
    r->finish = "length";
    for (uint32_t step = 0; s == LM_OK && step < r->n_predict; step++) {
        int32_t id;
        bool stopped = false;
        if (step) {
            if (r->ctx && r->n > r->ctx) break; /* the last id has no place any more */
            s = lm_session_append(r->session, &r->id[r->n - 1], 1, LM_ROWS_LAST, on_logits, r, err);
            if (s != LM_OK) break;
        }
        s = lm_sampler_pick(r->sampler, &r->row, 0, r->id, r->n, step, &id, err);
        if (s == LM_OK) s = keep_id(r, id, err);
        if (s == LM_OK && r->receipt) s = lm_receipt_step(r->receipt, &r->row, 0, id, err);
        if (s != LM_OK) break;
        if (is_eos(r, id)) {
            r->finish = "eos";
            break;
        }
        s = show_id(r, id, &stopped, err);
        if (stopped) r->finish = "stop";
        if (stopped) break;
    }
    if (r->not_finite) {
        *err = (lm_error){.code = LM_RANGE, .offset = LM_NO_OFFSET};
        snprintf(err->message, sizeof err->message, "the logit of id %u at position %u is no finite number", r->bad_id, r->bad_position);
        return LM_RANGE;
    }
    if (s == LM_INTERRUPTED) r->finish = "interrupted";
    if ((s == LM_OK || s == LM_INTERRUPTED) && strcmp(r->finish, "stop")) {
        lm_status rest = show_rest(r, err);
        if (rest != LM_OK) s = rest;
    }
    r->generate_s = lm_cli_now() - start;
    return s;
}

/* ---- what comes out ----------------------------------------------------------------------------------------------------------------*/
static void put_ids(const int32_t *id, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) printf("%s%d", i ? "," : "", id[i]);
}

static void json_member(const char *key, const char *value) {
    printf("\"%s\": ", key);
    lm_cli_json_text(stdout, value, strlen(value));
    fputs(", ", stdout);
}

static double rate(double n, double s) { return s > 0 ? n / s : 0; }

static void print_json(const run *r, const char *hash) {
    printf("{");
    json_member("model", r->path);
    json_member("arch", r->info.arch);
    json_member("backend", r->info.backend);
    json_member("lane", r->info.lane);
    json_member("kv", r->info.kv);
    json_member("device", r->info.description);
    printf("\"text\": ");
    if (r->detok)
        lm_cli_json_text(stdout, r->text ? r->text : "", r->text_n);
    else
        printf("null");
    printf(", \"ids\": [");
    put_ids(r->id + r->n_prompt, r->n - r->n_prompt);
    printf("], \"prompt_ids\": [");
    put_ids(r->id, r->n_prompt);
    printf("], ");
    json_member("finish", r->finish);
    printf("\"temperature\": %.9g, ", r->sampler_opt.temperature);
    if (r->sampler_opt.temperature > 0) printf("\"seed\": %llu, ", (unsigned long long)r->sampler_opt.seed);
    if (hash) json_member("hash", hash);
    printf("\"timings\": {\"prompt_tokens\": %u, \"prompt_s\": %.6f, \"generated_tokens\": %u, \"generate_s\": %.6f}, ", r->n_prompt,
           r->prompt_s, r->n - r->n_prompt, r->generate_s);
    printf("\"cache_bytes\": %llu, \"weight_bytes\": %llu}\n", (unsigned long long)lm_session_bytes(r->session),
           (unsigned long long)r->info.held_bytes);
}

static void print_summary(const run *r) {
    uint32_t made = r->n - r->n_prompt;
    fprintf(stderr, "lemma run: %s, backend %s, lane %s (%s)\n", r->info.arch, r->info.backend, r->info.lane, r->info.description);
    fprintf(stderr, "prompt %u tokens in %.2f s (%.1f tok/s), generated %u tokens in %.2f s (%.1f tok/s), finish: %s\n", r->n_prompt,
            r->prompt_s, rate(r->n_prompt, r->prompt_s), made, r->generate_s, rate(made, r->generate_s), r->finish);
    if (r->sampler_opt.temperature > 0)
        fprintf(stderr, "sampled: temperature %.9g, seed %llu\n", r->sampler_opt.temperature, (unsigned long long)r->sampler_opt.seed);
}

static void print_result(const run *r) {
    char hash[72] = "sha256:";
    if (r->hasher) lm_logits_hash_hex(r->hasher, hash + 7);
    if (r->json) {
        print_json(r, r->hasher ? hash : NULL);
    } else {
        if (r->print_ids) put_ids(r->id + r->n_prompt, r->n - r->n_prompt);
        putchar('\n'); /* after the text, which may or may not end its last line: what follows has a line of its own */
        if (r->hasher) printf("%s\n", hash);
    }
    fflush(stdout);
    print_summary(r);
}

/* ---- the whole way -------------------------------------------------------------------------------------------------------------------*/
static lm_status open_tools(run *r, lm_error *err) {
    lm_status s = lm_sampler_create(&r->sampler_opt, r->info.vocab, &r->sampler, err);
    if (s == LM_OK && r->tokenizer) s = lm_detok_create(r->tokenizer, true, &r->detok, err);
    if (s == LM_OK) s = lm_stops_create(r->stop.s, r->stop.n, &r->stops, err);
    if (s == LM_OK && r->hash) s = lm_logits_hash_create(&r->hasher, err);
    if (s == LM_OK && !(r->row_data = malloc((size_t)r->info.vocab * sizeof(double)))) s = no_memory(err);
    return s == LM_OK ? lm_model_session(r->model, r->chunk, &r->session, err) : s;
}

static lm_status open_receipt(run *r, lm_error *err) {
    char sha[65];
    lm_status s = lm_model_check_target(r->model, r->receipt_path, err);
    if (s == LM_OK) s = lm_model_sha256(r->model, sha, err);
    const lm_receipt_about what = {.weights_sha256 = sha,
                                    .arch = r->info.arch,
                                    .backend = r->info.backend,
                                    .lane = r->info.lane,
                                    .kv = !strcmp(r->info.kv, "f64") ? NULL : r->info.kv,
                                    .device = r->info.description,
                                    .sampler = r->sampler_opt,
                                    .prompt = r->id,
                                    .n_prompt = r->n_prompt};
    return s == LM_OK ? lm_receipt_create(&what, &r->receipt, err) : s;
}

static int execute(run *r) {
    lm_error err = {0};
    lm_cli_catch_interrupts();
    if (lm_model_open(r->path, &r->model_opt, &r->model, &err) != LM_OK) return lm_cli_error("run", &err);
    lm_model_get_info(r->model, &r->info);
    if (lm_model_tokenizer(r->model, &r->tokenizer, &err) != LM_OK) r->tokenizer = NULL;
    int rc = prepare_prompt(r, &err);
    if (rc != LM_CLI_GO) return rc;
    if (!r->tokenizer && r->stop.n) return lm_cli_usage("run", "--stop needs text, and %s has no tokenizer that lemma can use", r->path);
    if (!r->tokenizer && !r->print_ids && !r->json) {
        fprintf(stderr, "lemma run: no tokenizer: ids are printed instead of text\n");
        r->print_ids = true;
    }
    if (open_tools(r, &err) != LM_OK || (r->receipt_path && open_receipt(r, &err) != LM_OK)) return lm_cli_error("run", &err);
    lm_status s = generate(r, &err);
    if (s != LM_OK && s != LM_INTERRUPTED) {
        if (r->n > r->n_prompt && !r->json && !r->print_ids) putchar('\n');
        return lm_cli_error("run", &err);
    }
    print_result(r);
    if (r->receipt && lm_receipt_write(r->receipt, r->finish, r->receipt_path, &err) != LM_OK) return lm_cli_error("run", &err);
    return lm_status_exit_code(s);
}

static bool same_file(const char *a, const char *b) {
    struct stat x, y;
    return a && b && stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static int check(run *r) {
    if (!!r->prompt + !!r->file + (r->ids.n > 0) != 1) return lm_cli_usage("run", "give one prompt: -p TEXT, --file FILE or --ids 1,2,3");
    if (r->greedy && r->given_temp && r->sampler_opt.temperature > 0) return lm_cli_usage("run", "--greedy contradicts --temp");
    if (r->given_filter && r->sampler_opt.temperature == 0)
        return lm_cli_usage("run", "--top-k, --top-p and --min-p only matter when sampling: add --temp, for instance --temp 1");
    if (r->given_seed && r->sampler_opt.temperature == 0)
        return lm_cli_usage("run", "--seed only matters when sampling: add --temp, for instance --temp 1");
    if (same_file(r->file, r->receipt_path)) return lm_cli_usage("run", "--receipt would write over the prompt's file; name another");
    if (r->json && r->print_ids) return lm_cli_usage("run", "--print-ids and --json both want stdout; --json has the ids");
    if (!r->given_seed) { /* a fresh one, said at the end; below 2^53, so that it survives JSON */
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        r->sampler_opt.seed = ((uint64_t)t.tv_sec << 21 ^ (uint64_t)t.tv_nsec ^ (uint64_t)getpid() << 10) & ((UINT64_C(1) << 53) - 1);
    }
    return LM_CLI_GO;
}

int lm_cli_run(int argc, char **argv) {
    run r = {.sampler_opt = LM_SAMPLER_DEFAULTS, .n_predict = 256};
    lm_cli_model_callbacks(&r.model_opt);
    r.model_opt.interrupted = poll;
    r.model_opt.interrupted_ctx = &r;
    const lm_cli_opt opts[] = {
        {"--prompt", 'p', LM_CLI_STR, &r.prompt, "TEXT", "the prompt"},
        {"--file", 'f', LM_CLI_STR, &r.file, "FILE", "the prompt from a file (- is stdin)"},
        {"--ids", 0, LM_CLI_IDS, &r.ids, "LIST", "the prompt as token ids, 1,2,3; nothing is added to it"},
        {"--predict", 'n', LM_CLI_U32, &r.n_predict, "N", "tokens to generate at most (default 256)", 0, 1u << 30},
        {"--temp", 0, LM_CLI_F64, &r.sampler_opt.temperature, "T", "temperature (default 0: the most probable token)", 0, 1e6,
         &r.given_temp},
        {"--greedy", 0, LM_CLI_FLAG, &r.greedy, NULL, "the most probable token, always (the default)"},
        {"--top-k", 0, LM_CLI_U32, &r.sampler_opt.top_k, "K", "sample from the K most probable (0: all)", 0, UINT32_MAX, &r.given_filter},
        {"--top-p", 0, LM_CLI_F64, &r.sampler_opt.top_p, "P", "sample from the fewest whose probability reaches P", 1e-9, 1,
         &r.given_filter},
        {"--min-p", 0, LM_CLI_F64, &r.sampler_opt.min_p, "P", "sample from those at least P times as probable as the best", 0, 1,
         &r.given_filter},
        {"--seed", 0, LM_CLI_U64, &r.sampler_opt.seed, "S", "the same seed gives the same text (default: a fresh one)", 0, 0,
         &r.given_seed},
        {"--repeat-penalty", 0, LM_CLI_F64, &r.sampler_opt.repeat_penalty, "R", "make recent tokens less likely (1: no)", 1e-3, 1e3},
        {"--repeat-last-n", 0, LM_CLI_U32, &r.sampler_opt.repeat_last_n, "N", "how many tokens are recent (default 64)", 0, UINT32_MAX},
        {"--stop", 0, LM_CLI_STRS, &r.stop, "TEXT", "end before this text; may be given again"},
        {"--ignore-eos", 0, LM_CLI_FLAG, &r.ignore_eos, NULL, "go on after an end-of-generation token"},
        {"--print-ids", 0, LM_CLI_FLAG, &r.print_ids, NULL, "print the generated ids, not their text"},
        {"--hash", 0, LM_CLI_FLAG, &r.hash, NULL, "last line: sha256 of the logits of every position, in order"},
        {"--receipt", 0, LM_CLI_STR, &r.receipt_path, "FILE", "write a receipt, which lemma verify MODEL --receipt FILE checks"},
        LM_CLI_JSON_OPT(&r.json),
        {"--ctx", 0, LM_CLI_U32, &r.ctx, "N", "most positions (default: what the model was made for)", 1, 1u << 30},
        {"--chunk", 0, LM_CLI_U32, &r.chunk, "N", "prompt positions computed at a time", 1, 65536},
        LM_CLI_MODEL_OPTS(&r.model_opt, "i8, f32 if no weight is quantized"),
        {0},
    };
    lm_cli_args args;
    int rc = lm_cli_parse("run", about, opts, 1, 1, argc, argv, &args);
    if (rc == LM_CLI_GO) {
        r.path = args.s[0];
        rc = check(&r);
    }
    if (rc == LM_CLI_GO) rc = execute(&r);
    release(&r);
    return rc;
}
