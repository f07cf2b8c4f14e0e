/* Evidence: traces and verdicts. A trace is a safetensors file of what a run computed (docs/gates.md); `lm_verify` judges a model against
 * one and reports claims, `lm_dump` writes one. Nothing here prints: a ledger is turned into text or JSON, and the caller shows it.
 */
#ifndef LEMMA_VERIFY_H
#define LEMMA_VERIFY_H
#include "lemma/lemma.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum lm_verdict { LM_PROVEN, LM_OPEN, LM_REFUTED } lm_verdict;
const char *lm_verdict_name(lm_verdict v); /* "PROVEN" */

/* A claim's measurement as a number; which way its limit bounds it. */
typedef enum lm_measure {
    LM_MEASURE_NONE,
    LM_MEASURE_COSINE,     /* of hidden states: the least; limit: at least this, NAN where it is reported and not gated */
    LM_MEASURE_DIFFERENCE, /* of logits or log-probabilities: the largest; limit: at most this */
    LM_MEASURE_AGREEMENT   /* a share of positions, 0 to 1; limit: at least this */
} lm_measure;

/* One claim. Every string is one line, NUL-terminated, owned by the ledger, "" where it has nothing to say. */
typedef struct lm_claim {
    lm_verdict verdict;
    bool gate;            /* compared with the reference; bindings, traits, reports, and what lemma is held against itself are not */
    const char *section;  /* "binding", "trait", "text", "G1", "G2", "G4" */
    const char *name;     /* "c1 hidden cosine" */
    const char *bound;    /* ">= 0.9999" */
    const char *measured; /* "0.99999998 (layer.3, position 7)" */
    const char *witness;  /* the file that the claim stands on */
    const char *sha256;   /* of the witness; in G4, of all logits */
    const char *note;     /* OPEN: what would close it. REFUTED: the counterexample. PROVEN: a remark */
    lm_measure measure;   /* what `value` is, when it is anything */
    double value, limit;  /* NAN where a value was not finite */
    bool arbitrated;      /* a difference that missed its bound: how far each side is from the arbiter's number, in the next two */
    double ours_off, reference_off; /* ours is 0 where the arbiter itself is on trial */
} lm_claim;

typedef struct lm_ledger lm_ledger;
void lm_ledger_free(lm_ledger *l);
uint32_t lm_ledger_size(const lm_ledger *l);
const lm_claim *lm_ledger_claim(const lm_ledger *l, uint32_t i);
void lm_ledger_count(const lm_ledger *l, uint32_t *proven, uint32_t *open, uint32_t *refuted);
const char *lm_ledger_subject(const lm_ledger *l); /* "MODEL: llama on cpu, lane f32 (…), against TRACE" */
/* 0: something was compared with the reference and nothing is refuted; 1: something is refuted; 3: nothing could be compared. */
int lm_ledger_exit_code(const lm_ledger *l);
typedef struct lm_worst_value {
    bool any;            /* false: no claim has such a number */
    double value, limit; /* as in the claim */
} lm_worst_value;
/* A ledger in a line. Strings belong to the ledger, "" where there is nothing to say. */
typedef struct lm_summary {
    lm_verdict verdict; /* REFUTED: a claim is; PROVEN: a gate measured something; else OPEN */
    const char *arch, *backend, *lane;
    const char *trace_sha256;
    const char *logits_sha256; /* of the prompts' logits, case after case, in the backend's own precision */
    bool portable;             /* the contract promises these bits on any machine (the arbiter's lean on the C library's exp and sin) */
    lm_worst_value cosine, difference, agreement; /* the least, the one that is the largest share of its limit, the least */
} lm_summary;
lm_summary lm_ledger_summary(const lm_ledger *l);
/* One claim as lines of text; the whole as one JSON object. lm_text_free what they return; NULL: out of memory. */
char *lm_claim_text(const lm_claim *c);
char *lm_ledger_json(const lm_ledger *l);
char *lm_ledger_html(const lm_ledger *l); /* one self-contained page */
void lm_text_free(char *text);

/* What both commands take. Strings may be NULL: the default. */
typedef struct lm_evidence_options {
    const char *backend;                                                          /* "cpu" */
    const char *lane;                                                             /* the backend's own: "f32", "f64" */
    const char *kv;                                                               /* lm_model_options' */
    const char *cpu_level;                                                        /* the best that this CPU has */
    uint32_t threads;                                                             /* 0: physical cores */
    uint32_t chunk;                                                               /* rows at a time; 0: a good size */
    bool (*progress)(void *ctx, const char *what, uint64_t done, uint64_t total); /* false interrupts (LM_INTERRUPTED) */
    void *progress_ctx;
    bool (*interrupted)(void *ctx); /* polled while running */
    void *interrupted_ctx;
} lm_evidence_options;

typedef enum lm_determinism {
    LM_DETERMINISM_QUICK /* one axis at a time */,
    LM_DETERMINISM_FULL /* the grid too */,
    LM_DETERMINISM_OFF
} lm_determinism;

typedef struct lm_verify_options {
    lm_evidence_options run;
    const char *trace; /* NULL: oracle.safetensors beside the model */
    bool converted;    /* the model was converted from the weights that the trace is of: another sha256 leaves the binding OPEN */
    lm_determinism determinism;
    void (*subject)(void *ctx, const char *subject); /* called once, before the first claim; may be NULL */
    void (*claim)(void *ctx, const lm_claim *c);     /* called as each claim is settled; may be NULL */
    void *claim_ctx;
} lm_verify_options;
/* *out is set on LM_OK, whatever the verdicts are. */
lm_status lm_verify(const char *model, const lm_verify_options *o, lm_ledger **out, lm_error *err);

/* ---- many at once: which model below some folders goes with which trace (docs/gates.md has the rules) ---------------------------- */
typedef struct lm_pair { /* strings belong to the lm_pairs, "" where there is nothing to say */
    const char *model, *trace;           /* as a table should show them */
    const char *model_path, *trace_path; /* to open */
    bool converted;                      /* for lm_verify_options */
    const char *open;                    /* not "": it can't be run here, and this would close it */
} lm_pair;
typedef struct lm_pairs lm_pairs;
/* Everything below dir[0..n), in the order of names. `models` (may be NULL): a folder where a traces.txt's models are looked for, too. */
lm_status lm_pairs_find(const char *const *dir, uint32_t n, const char *models, lm_pairs **out, lm_error *err);
void lm_pairs_free(lm_pairs *p);
uint32_t lm_pairs_size(const lm_pairs *p);
const lm_pair *lm_pairs_get(const lm_pairs *p, uint32_t i);

/* One op's result over a case's prompt, as bits. Strings are valid during the callback. */
typedef struct lm_fingerprint {
    uint32_t k; /* case */
    const char *op;
    uint32_t rows, width;
    const char *sha256; /* hex, of the rows in order, little-endian elements of the backend's type */
} lm_fingerprint;

/* Exactly one of ids, ids_from and prompt. */
typedef struct lm_dump_options {
    lm_evidence_options run;
    const int32_t *ids;
    size_t n_ids;
    const char *ids_from; /* a trace: the ids of all its cases, under their numbers */
    const char *prompt;   /* needs the model's tokenizer */
    uint32_t greedy;      /* so many tokens of the bare arg-max run */
    bool taps;            /* every op's result */
    const char *out;      /* the file to write; may be NULL with `fingerprint` */
    void (*fingerprint)(void *ctx, const lm_fingerprint *f); /* called for every op of a case, in order; may be NULL */
    void *fingerprint_ctx;
} lm_dump_options;
/* `hash`, when not NULL, gets the sha256 (hex) of all prompt and greedy logits, row after row, in the backend's own precision. */
lm_status lm_dump(const char *model, const lm_dump_options *o, char hash[65], lm_error *err);

#ifdef __cplusplus
}
#endif
#endif
