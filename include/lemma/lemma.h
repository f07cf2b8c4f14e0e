/* lemma: an LLM inference engine that can prove it is right.
 *
 * The public header: models, sessions, tokenizers, sampling, inspection, writing GGUF. verify.h, receipt.h, diff.h and ppl.h beside it are
 * about evidence, bench.h about speed; docs/library.md has a whole example. Every fallible function returns an lm_status and, where `err` is not NULL, fills it with what
 * went wrong, where, and what to do about it. The library never aborts, exits, prints or reads the environment.
 */
#ifndef LEMMA_LEMMA_H
#define LEMMA_LEMMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* name, what it means in one phrase, the exit status a command line should use */
#define LM_STATUS_LIST(X) \
    X(OK, "ok", 0) \
    X(USAGE, "the call or the option is wrong", 2) \
    X(IO, "a file could not be opened or read", 2) \
    X(FORMAT, "a file is malformed", 2) \
    X(UNSUPPORTED, "this model or option is not supported", 2) \
    X(RANGE, "a value is out of range", 2) \
    X(STATE, "the call does not fit the object's state", 2) \
    X(NOMEM, "out of memory", 3) \
    X(MISSING, "a resource is missing on this machine", 3) \
    X(INTERRUPTED, "interrupted", 130) \
    X(INTERNAL, "an invariant of lemma itself does not hold", 70)

typedef enum lm_status {
#define LM_STATUS_ENUM(name, text, code) LM_##name,
    LM_STATUS_LIST(LM_STATUS_ENUM)
#undef LM_STATUS_ENUM
} lm_status;

#define LM_NO_OFFSET UINT64_MAX

/* What went wrong. Strings are NUL-terminated and truncated to fit; `file` and `field` may be empty. */
typedef struct lm_error {
    lm_status code;
    uint64_t offset;   /* byte offset in `file`, or LM_NO_OFFSET */
    char file[512];    /* path of the file concerned */
    char field[160];   /* the tensor, metadata key or option concerned */
    char message[640]; /* what is wrong and what to do */
} lm_error;

const char *lm_status_name(lm_status s);
const char *lm_status_text(lm_status s);
int lm_status_exit_code(lm_status s);
/* One line "file: at byte N: field: message" into buf[n]; returns buf. */
char *lm_error_line(const lm_error *err, char *buf, size_t n);

#define LM_CONTRACT_VERSION 6 /* of the determinism contract: the same version gives the same bits */
const char *lm_version(void);   /* "0.1.0" */
const char *lm_commit(void);    /* the source's revision, or "unknown" */
const char *lm_cpu_level(void); /* the best level this CPU has: "c", "avx2", "avx512", "neon" */
void lm_free(void *p);          /* frees what a call below says is the caller's; NULL is fine */

/* ---- models ----------------------------------------------------------------------------------------------------------------
 * A model is its files (a GGUF file, one shard of a split one, or a Hugging Face folder), mapped, and a backend that holds its weights.
 * One thread at a time may evaluate. It outlives its sessions and its tokenizer. */
typedef struct lm_model lm_model;

typedef struct lm_model_options { /* all zeros: the defaults */
    const char *backend;   /* "cpu" (the default) or "f64" */
    const char *lane;      /* NULL: on cpu "i8" where weights are block-quantized, else "f32"; on f64 "f64" */
    const char *kv;        /* how keys and values are kept: "f32", "f16", "bf16", "q8_0"; NULL: the lane's own, "f16" in i8 and mixed, "bf16" in bf16, else "f32".
                              With "bf16" these three attend in bfloat16, the others in float32
                              (f64 keeps doubles, and takes none) */
    const char *cpu_level; /* NULL: the best; "c", "avx2", "avx512", "neon" */
    uint32_t threads;      /* 0: one per physical core */
    /* while loading, done of total bytes; returning false stops it (LM_INTERRUPTED) */
    bool (*progress)(void *ctx, const char *what, uint64_t done, uint64_t total);
    void *progress_ctx;
    bool (*interrupted)(void *ctx); /* polled while evaluating: true stops it (LM_INTERRUPTED) */
    void *interrupted_ctx;
} lm_model_options;

typedef struct lm_skipped_group { const char *name; uint32_t tensors; } lm_skipped_group;
typedef struct lm_model_info { /* strings belong to the model */
    const char *arch;        /* "llama" */
    const char *backend;     /* "cpu" */
    const char *lane;        /* "f32" */
    const char *kv;          /* "f32": how keys and values are kept */
    const char *description; /* "cpu f32 avx512 2 threads" */
    uint32_t vocab, layers, hidden;
    uint32_t max_position;   /* 0: no limit known */
    uint32_t learned;        /* positions that are weights, beyond which nothing can be computed; 0: none are */
    uint32_t files;          /* weight files opened */
    uint64_t weight_bytes;   /* of tensors that the program reads */
    uint64_t held_bytes;     /* that the backend holds for them */
    uint32_t n_skipped;      /* tensor groups that text generation doesn't need (vision, audio …) */
} lm_model_info;

/* options may be NULL. *out is freed with lm_model_close; untouched on failure. */
lm_status lm_model_open(const char *path, const lm_model_options *options, lm_model **out, lm_error *err);
void lm_model_close(lm_model *m);
void lm_model_get_info(const lm_model *m, lm_model_info *out);
lm_skipped_group lm_model_skipped(const lm_model *m, uint32_t i); /* i < n_skipped */
/* sha256 over the weight files' bytes in name order, hex, as traces and receipts record it. Reads every byte. */
lm_status lm_model_sha256(const lm_model *m, char hex[65], lm_error *err);
/* Whether a file may be written at path: nothing is there and its folder can be written to, or a regular file that the model is not read from. */
lm_status lm_model_check_target(const lm_model *m, const char *path, lm_error *err);
/* End-of-generation ids: the tokenizer's, or the config's where there is no tokenizer. Belongs to the model. */
const int32_t *lm_model_eos(lm_model *m, size_t *n);

/* ---- sessions: one sequence and what the model remembers of it --------------------------------------------------------------- */
typedef struct lm_session lm_session;

/* Rows of logits, valid during the callback only: row i is the logits after the token at position[i]. */
typedef struct lm_logits {
    const void *data; /* float[rows][width], or double when is_f64 */
    bool is_f64;
    uint32_t rows, width;
    const uint32_t *position;
} lm_logits;
typedef bool (*lm_logits_cb)(void *ctx, const lm_logits *l); /* false stops the run (LM_INTERRUPTED) */
typedef enum lm_rows_wanted { LM_ROWS_NONE, LM_ROWS_LAST, LM_ROWS_ALL } lm_rows_wanted;

/* chunk: positions computed at a time, 0: a good size. Freed with lm_session_free, before the model is closed. */
lm_status lm_model_session(lm_model *m, uint32_t chunk, lm_session **out, lm_error *err);
void lm_session_free(lm_session *s);
uint32_t lm_session_length(const lm_session *s);
uint64_t lm_session_bytes(const lm_session *s); /* held by its caches */
/* Appends n ≥ 1 tokens and hands over the wanted rows of logits, in order. Ids are checked before anything is computed. On failure the
 * session is as it was before the call. */
lm_status lm_session_append(lm_session *s, const int32_t *ids, uint32_t n, lm_rows_wanted want, lm_logits_cb cb, void *ctx, lm_error *err);
lm_status lm_session_truncate(lm_session *s, uint32_t length, lm_error *err); /* back to `length` tokens */
lm_status lm_session_fork(const lm_session *s, lm_session **out, lm_error *err);

/* SHA-256 over rows of logits as they come: little-endian elements of the backend's type. */
typedef struct lm_logits_hash lm_logits_hash;
lm_status lm_logits_hash_create(lm_logits_hash **out, lm_error *err);
void lm_logits_hash_add(lm_logits_hash *h, const lm_logits *l);
void lm_logits_hash_hex(const lm_logits_hash *h, char hex[65]); /* of the rows so far; more may follow */
void lm_logits_hash_free(lm_logits_hash *h);

/* ---- tokenizers: immutable, thread-safe ------------------------------------------------------------------------------------- */
typedef struct lm_tokenizer lm_tokenizer;
/* The model's own, loaded at the first call and closed with it. LM_MISSING when its files hold none. */
lm_status lm_model_tokenizer(lm_model *m, const lm_tokenizer **out, lm_error *err);
/* From a model's path, without loading its weights, or from a tokenizer.json. Freed with lm_tokenizer_free. */
lm_status lm_tokenizer_open(const char *path, lm_tokenizer **out, lm_error *err);
void lm_tokenizer_free(lm_tokenizer *t);
/* Ids of text[0..n): special adds BOS and the like where the model wants them; parse_special recognises "<|im_end|>" and its kind written
 * out in the text. *ids is the caller's (lm_free). */
lm_status lm_text_encode(const lm_tokenizer *t, const char *text, size_t n, bool special, bool parse_special, int32_t **ids, size_t *n_ids,
                         lm_error *err);
/* The text of ids, NUL-terminated, the caller's (lm_free). */
lm_status lm_tokenizer_decode(const lm_tokenizer *t, const int32_t *ids, size_t n, bool skip_special, char **out, size_t *out_n,
                              lm_error *err);
uint32_t lm_tokenizer_vocab(const lm_tokenizer *t);
const char *lm_tokenizer_piece(const lm_tokenizer *t, int32_t id, size_t *n); /* its bytes as decoded; NULL: no such id */
bool lm_tokenizer_is_special(const lm_tokenizer *t, int32_t id);
int32_t lm_tokenizer_bos(const lm_tokenizer *t); /* −1: none */
const int32_t *lm_tokenizer_eos(const lm_tokenizer *t, size_t *n);
const char *lm_tokenizer_describe(const lm_tokenizer *t);
/* One id at a time to whole UTF-8 characters; pieces are valid until the next call. The pieces and the flush together equal the decoding of
 * all ids. */
typedef struct lm_detok lm_detok;
lm_status lm_detok_create(const lm_tokenizer *t, bool skip_special, lm_detok **out, lm_error *err);
lm_status lm_detok_push(lm_detok *d, int32_t id, const char **piece, size_t *n, lm_error *err);
lm_status lm_detok_flush(lm_detok *d, const char **piece, size_t *n, lm_error *err);
void lm_detok_free(lm_detok *d);

/* ---- sampling ---------------------------------------------------------------------------------------------------------------
 * Penalty, temperature, top-k, top-p, min-p, in this order, then a draw that is a function of the logits, the seed and the step alone:
 * the same on every machine. Among equals the lowest id goes first, everywhere. */
typedef struct lm_sampler lm_sampler;
typedef struct lm_sampler_options {
    double temperature;     /* 0: the arg-max */
    uint32_t top_k;         /* keep the k best; 0: all */
    double top_p;           /* keep the fewest best whose probabilities reach p; 1: all */
    double min_p;           /* keep those at least p times as probable as the best; 0: all */
    double repeat_penalty;  /* logits of recent ids: divided by it when positive, multiplied when negative; 1: none */
    uint32_t repeat_last_n; /* how many of the last ids count as recent */
    uint64_t seed;
} lm_sampler_options;
#define LM_SAMPLER_DEFAULTS {.temperature = 0, .top_p = 1, .repeat_penalty = 1, .repeat_last_n = 64}
/* LM_RANGE: an option out of range */
lm_status lm_sampler_create(const lm_sampler_options *o, uint32_t vocab, lm_sampler **out, lm_error *err);
/* Chooses from row `row` of l. recent[0..n): the ids so far, newest last. step: how many were drawn before with this seed. */
lm_status lm_sampler_pick(lm_sampler *s, const lm_logits *l, uint32_t row, const int32_t *recent, size_t n, uint64_t step, int32_t *id,
                          lm_error *err);
void lm_sampler_free(lm_sampler *s);

/* Stop strings over a stream of text: what may be shown comes out, a stop and what follows it never does, and what could still become a stop
 * is held back. Text is valid until the next call. */
typedef struct lm_stops lm_stops;
lm_status lm_stops_create(const char *const *stops, uint32_t n, lm_stops **out, lm_error *err);
lm_status lm_stops_push(lm_stops *s, const char *piece, size_t n, const char **text, size_t *text_n, bool *stopped, lm_error *err);
void lm_stops_flush(lm_stops *s, const char **text, size_t *text_n); /* the end came without a stop: what was held back */
void lm_stops_free(lm_stops *s);

/* ---- what a file holds, without running it -------------------------------------------------------------------------------------
 * Everything belongs to the lm_inspect. A model whose family is unknown or whose config is refused can be inspected all the same. */
typedef struct lm_inspect lm_inspect;
typedef struct lm_inspect_info {
    const char *kind; /* "GGUF 3", "Hugging Face folder" */
    const char *arch; /* as the file names it; NULL: not said */
    uint32_t files, tensors, metadata;
    uint64_t file_bytes, parameters; /* parameters: elements of all tensors */
    const char *tokenizer; /* what it is, or why there is none */
    bool tokenizer_ok;
    const char *refused;   /* NULL: it runs; else why it doesn't, and what follows is 0 */
    uint32_t ops, op_kinds, layers, hidden, vocab, max_position, traits, caches, skipped;
    uint64_t cache_bytes_per_token; /* at float32, over all caches that grow */
    uint64_t cache_bytes_fixed;     /* at float32, of those that don't: windows, recurrent states */
} lm_inspect_info;
typedef struct lm_inspect_tensor {
    const char *name, *type, *used_by; /* used_by: the op; "(no op)": read at load, or known not to matter; NULL: skipped */
    uint32_t rank, file;
    uint64_t dim[8];
    uint64_t offset, bytes; /* in its file */
} lm_inspect_tensor;
typedef struct lm_inspect_meta {
    const char *key, *type; /* type: "string", "int", "float", "bool", "array of string" … */
    const char *json;       /* the value; of a long array, its first elements, then "…" */
    uint64_t n;             /* elements of an array; else 1 */
} lm_inspect_meta;
typedef struct lm_inspect_count { const char *name; uint64_t n; } lm_inspect_count;
lm_status lm_inspect_open(const char *path, lm_inspect **out, lm_error *err);
void lm_inspect_close(lm_inspect *i);
void lm_inspect_get_info(const lm_inspect *i, lm_inspect_info *out);
/* k counts from 0; out of range: all zeros */
lm_inspect_tensor lm_inspect_get_tensor(const lm_inspect *i, uint32_t k);
lm_inspect_meta lm_inspect_get_meta(const lm_inspect *i, uint32_t k);
lm_inspect_count lm_inspect_get_op(const lm_inspect *i, uint32_t k);      /* op kind, how many; k < op_kinds */
lm_inspect_count lm_inspect_get_trait(const lm_inspect *i, uint32_t k);   /* trait, tokens from which it matters */
/* a cache slot in words, its bytes per token at float32 (0: fixed size) */
lm_inspect_count lm_inspect_get_cache(const lm_inspect *i, uint32_t k);
lm_inspect_count lm_inspect_get_skipped(const lm_inspect *i, uint32_t k); /* skipped tensor group, how many tensors */

/* ---- writing GGUF ---------------------------------------------------------------------------------------------------------------
 * A Hugging Face folder as one GGUF file, in the layout that llama.cpp reads. Vectors, routers and the like stay float32 whatever the type;
 * weights in MXFP4 stay so; a row that is no whole number of the type's blocks is stored as f16, and `note` says so. The file appears whole
 * or not at all. A model that the file could not describe so that it reads back as the same program is refused. */
typedef struct lm_quantize_options { /* all zeros: the defaults */
    void (*note)(void *ctx, const char *line); /* what differs from the type asked for; may be NULL */
    void *note_ctx;
    bool (*progress)(void *ctx, const char *what, uint64_t done, uint64_t total); /* false stops it (LM_INTERRUPTED) */
    void *progress_ctx;
} lm_quantize_options;
typedef struct lm_quantize_result { uint32_t tensors, other_type; uint64_t bytes; bool standin_tokenizer; } lm_quantize_result;
/* type: "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0" or "q5_1". options and result may be NULL. */
lm_status lm_quantize(const char *folder, const char *out, const char *type, const lm_quantize_options *options, lm_quantize_result *result, lm_error *err);

#ifdef __cplusplus
}
#endif
#endif
