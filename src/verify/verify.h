/* The inner contracts of src/verify. The public face is lemma/verify.h.
 *
 * Rows stream: logits come one row at a time through the engine's callback, are turned into doubles and measured against the trace's row,
 * which is read from the mapped file. Nothing of size T×V is held.
 */
#ifndef LM_VERIFY_VERIFY_H
#define LM_VERIFY_VERIFY_H
#include "base/hash.h"
#include "engine/model.h"
#include "lemma/verify.h"

/* ---- trace.c: the reader ------------------------------------------------------------------------------------------------------- */
typedef struct lm_gate2 { /* cK.gate: the bounds of the tower gate */
    bool present;
    double top1_min, top1_quarter_min, max_dlogprob;
} lm_gate2;

/* Tensors are NULL where the trace has none; their shapes and types have been checked against the program. */
typedef struct lm_trace_case {
    uint32_t k; /* its number in the file */
    const int32_t *ids;
    uint32_t n;
    const char *text; /* NULL when absent */
    size_t text_n;
    const lm_tensor **hidden; /* [n_layers + 2]: embed, layers, norm */
    uint32_t n_hidden;        /* how many of them are there */
    /* top_rest: log of the mass that top_logprobs leaves */
    const lm_tensor *logits, *logits_last, *top_logprobs, *top_rest, *greedy_logits;
    const int32_t *argmax;  /* [n] */
    const int32_t *top_ids; /* [n][n_top] */
    uint32_t n_top;
    const int32_t *greedy; /* [n_greedy] */
    uint32_t n_greedy;
    uint32_t scored_from; /* `lemma ppl` measures rows from here on; 0: all */
    lm_gate2 gate;
} lm_trace_case;

typedef struct lm_trace {
    lm_source *file;
    lm_arena *arena;
    char sha256[65];            /* of the trace file */
    const char *weights_sha256; /* NULL: unbound */
    const char *dtype;          /* what the reference computed in; "" when it doesn't say */
    double noise;               /* the larger of the recorded numeric ones; 0: none recorded */
    double float64_noise;       /* how far the reference's own float64 run was from it; 0: not recorded */
    double embed_scale_bf16;    /* NAN: not recorded; the next, too */
    double final_softcap;
    lm_trace_case *c;
    uint32_t n_cases;
    uint32_t n_layers;
} lm_trace;

/* Every tensor's name, shape and type, every id and every number of the metadata is checked; an unknown tensor is refused. */
lm_status lm_trace_open(const char *path, const lm_program *p, lm_trace **out, lm_error *err);
void lm_trace_close(lm_trace *t);
const char *lm_trace_hidden_name(const lm_trace *t, uint32_t slot, char buf[32]); /* "layer.3" */
/* The program's value behind hidden slot 0 … n_layers+1. */
lm_val lm_hidden_value(const lm_program *p, uint32_t slot);

/* ---- compare.c: the numbers, free of everything else. A NaN or an infinity on either side gives NaN (or LM_NO_ID) ------------------- */
void lm_rows_f64(const lm_rows *r, uint32_t i, double *dst); /* row i */
bool lm_finite(const double *x, uint64_t n);
double lm_cosine(const double *a, const double *b, uint64_t n);
double lm_max_diff(const double *a, const double *b, uint64_t n,
                   uint64_t *at);                    /* at: where, the first of equals, or the first non-finite */
uint32_t lm_argmax_row(const double *x, uint32_t n); /* the lowest id among equals */
double lm_log_sum_exp(const double *x, uint32_t n);
/* The k ids of the largest values, equal ones in id order; k ≤ n, all finite. */
void lm_top_row(const double *x, uint32_t n, uint32_t k, int32_t *ids);

/* ---- record.c: lm_dump of an engine that is open (and, in tests, mutated) ---------------------------------------------------------- */
lm_status lm_dump_engine(lm_engine *e, const lm_dump_options *o, char hash[65], lm_error *err);

/* ---- ledger.c ---------------------------------------------------------------------------------------------------------------------*/
/* For the page: one hidden state over a case, or one position of it. */
typedef struct lm_depth {
    uint32_t k;           /* case */
    const char *name;     /* "layer.3" */
    double off, max_abs;  /* 1 − the least cosine; the largest difference */
} lm_depth;
typedef struct lm_spot {
    uint32_t k, position;
    double off;  /* the largest |Δlogprob| over the trace's top ids, or |Δlogit|; NAN: neither is there */
    bool flip;   /* the arg-max differs */
} lm_spot;

struct lm_ledger {
    lm_arena *arena;
    lm_claim *claim;
    uint32_t n, cap;
    const char *subject, *arch, *backend, *lane, *weights_sha256, *trace_sha256, *logits_sha256; /* "" until known */
    lm_depth *depth; /* in the order of cases and depth */
    lm_spot *spot;   /* in the order of cases and positions */
    uint32_t n_depth, cap_depth, n_spots, cap_spots;
    bool portable;
    void (*fn)(void *ctx, const lm_claim *c);
    void *ctx;
    bool nomem; /* sticky: lm_ledger_add reports it */
};
lm_status lm_ledger_create(lm_ledger **out, lm_error *err);
LM_PRINTF(2, 3) const char *lm_say(lm_ledger *l, const char *fmt, ...);  /* one line in the ledger's arena */
lm_status lm_ledger_add(lm_ledger *l, const lm_claim *c, lm_error *err); /* copies the strings; NULL becomes "" */
lm_status lm_ledger_depth(lm_ledger *l, const lm_depth *d, lm_error *err); /* copies the name */
lm_status lm_ledger_spot(lm_ledger *l, const lm_spot *s, lm_error *err);

/* ---- the run: what the gates share --------------------------------------------------------------------------------------------------*/
typedef struct lm_judge {
    lm_engine *e;
    lm_engine_options eo;
    const lm_verify_options *o;
    const char *model, *trace_path;
    const lm_trace *t;
    lm_ledger *l;
    bool f64;           /* the arbiter itself is on trial */
    bool hf_bf16;       /* lane hf-bf16 is */
    lm_sha256 logits;   /* of the prompts' logits so far */
    bool any_logits;
    double *ours, *ref; /* [widest row] */
    double *last;       /* [vocab]: ours at the latest position */
} lm_judge;

/* Claims of one case, named after it: section, name "cK what", witness the trace. note may be NULL. */
lm_status lm_judge_claim(lm_judge *j, const lm_trace_case *c, const char *section, lm_verdict v, const char *what, const char *bound,
                         const char *measured, const char *note, lm_error *err);
/* The same for a claim that has a number, or differs in another way: name, witness and its hash are filled in, gate where it measured. */
lm_status lm_judge_add(lm_judge *j, const lm_trace_case *c, const char *what, lm_claim claim, lm_error *err);
bool lm_judge_progress(const lm_judge *j, const char *what, uint64_t done, uint64_t total);
/* Bounds on a logit's and a log-probability's difference, from the trace's noise. */
double lm_logit_bound(const lm_trace *t);
double lm_logprob_bound(const lm_trace *t);

/* One pass over a case's prompt in a fresh session, everything that the trace has measured on the way; see forward.c. */
typedef struct lm_worst {
    double value; /* NAN once anything was not finite */
    uint32_t at, position;
    double ours, ref;
    bool any;
} lm_worst;
typedef struct lm_forward {
    lm_judge *j;
    const lm_trace_case *c;
    const char *stage;
    lm_worst cosine, logit, last, logprob;              /* at: the hidden slot, or the token id */
    double logprob_sum;                                 /* Σ |Δlogprob| over the top ids */
    uint32_t equal;                                     /* positions where all of them are equal to float32's last digit */
    uint32_t flips, flip_position, flip_ours, flip_ref; /* arg-max: how many differ, and the first */
    uint32_t *top_wrong;                                /* G2: per quarter, positions whose top-1 differs; [4] */
    uint32_t quarter;                                   /* G2: its length */
    bool again;                                         /* a second run of the case: its logits don't count for the ledger's hash */
    bool not_finite, stray;                             /* stray: a row came that wasn't asked for */
    uint32_t bad_position;
    uint32_t *seen;    /* hidden rows that came, per slot */
    double *off, *max_abs; /* of them: 1 − the least cosine, the largest difference */
    lm_spot *spot;     /* [n] of the case */
    uint32_t rows;  /* logits rows that came */
    lm_sha256 hash; /* of the logits' bytes */
} lm_forward;
lm_status lm_forward_run(lm_forward *f, lm_session *s, lm_error *err);
const char *lm_say_cosine(lm_ledger *l, double cosine); /* "1 - 2.1e-12" */
bool lm_forward_has_argmax(const lm_trace_case *c);

/* arbiter.c. Appends n tokens to a session of the model under test or of another; `length` as in lm_eval. The last row to dst[vocab]. */
lm_status lm_judge_append(const lm_judge *j, lm_session *s, const int32_t *id, uint32_t n, uint32_t length, double *dst, lm_error *err);
/* The logits of another backend, in its own lane, at an absolute position of the case's prompt or of the continuation after it. */
lm_status lm_judge_truth(lm_judge *j, const lm_trace_case *c, const char *backend, uint32_t position, double *dst, lm_error *err);
typedef enum lm_disputed { LM_DISPUTED_LOGIT, LM_DISPUTED_LAST, LM_DISPUTED_LOGPROB, LM_DISPUTED_GREEDY } lm_disputed;
/* A claim whose worst difference misses its bound: adds to its note the counterexample and which side is nearer the arbiter, and fills in
 * the distances. Its verdict stays. Uses j->ref. */
lm_status lm_judge_nearer(lm_judge *j, const lm_trace_case *c, lm_disputed kind, const lm_worst *w, double bound, lm_claim *claim,
                          lm_error *err);
lm_status lm_judge_g1(lm_judge *j, const lm_trace_case *c, lm_error *err);                                         /* forward.c */
lm_status lm_judge_greedy(lm_judge *j, const lm_trace_case *c, const char *section, lm_session *s, lm_error *err); /* greedy.c */
lm_status lm_judge_cacheless(lm_judge *j, const lm_trace_case *c, lm_error *err);                                  /* greedy.c */
lm_status lm_judge_g2(lm_judge *j, const lm_trace_case *c, lm_error *err);                                         /* tower.c */
/* met.c: how closely lane hf-bf16 meets a bfloat16 trace, and how much of what is left the order of float32 sums explains. */
lm_status lm_judge_met(const lm_forward *f, lm_error *err);
lm_status lm_judge_met_fits(const lm_judge *j, lm_error *err); /* refuses a trace that the lane doesn't imitate */
bool lm_lane_rounds(const char *lane); /* lane.c: i8, i16, mixed, bf16: judged by G3, in place of G1 and G2 */
lm_status lm_judge_g3(lm_judge *j, lm_error *err);
lm_status lm_judge_tower_claims(lm_judge *j, lm_error *err); /* tower.c: claims of the whole file */
lm_status lm_judge_determinism(lm_judge *j, lm_error *err);  /* determinism.c */
#endif
