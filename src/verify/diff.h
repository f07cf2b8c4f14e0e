/* The inner contracts of `lemma diff`: sides, noise, the rig that runs the arbiter, and what is kept of it all.
 *
 * Positions are worked through in blocks. For each block both sides' values are put into float stores; then one batch of the arbiter
 * computes the same positions as several sequences at once (replay.c), and everything is measured while it runs, so that nothing grows with
 * the length of the text but a line per position.
 */
#ifndef LM_VERIFY_DIFF_H
#define LM_VERIFY_DIFF_H
#include "lemma/diff.h"
#include "tokenizer/tokenizer.h"
#include "verify/verify.h"

/* How many times the largest sample still counts as rounding. docs/envelope.md says what these were measured to give. */
#define LM_BAND 8.0  /* distances of values */
#define LM_REACH 6.0 /* margins between tokens, in standard deviations of a difference of two logits */

/* ---- envelope.c: a lane's noise ---------------------------------------------------------------------------------------------------- */
typedef enum lm_prec { LM_PREC_F32, LM_PREC_BF16, LM_PREC_I8, LM_PREC_I16, LM_PREC_MIXED } lm_prec;
bool lm_prec_of_lane(const char *lane, lm_prec *out); /* "f64" counts as f32: what is compared is stored so */
const char *lm_prec_name(lm_prec p);

typedef struct lm_noise {
    lm_prec prec;
    uint64_t seed;
    uint32_t sample;
} lm_noise;
/* Row x of the op's operand k (0 … 3) at a position: perturbed by what the op's own arithmetic on it may lose. */
void lm_noise_operand(const lm_noise *n, const lm_program *p, uint32_t op, uint32_t k, uint32_t position, double *x);
/* Row x of the op's result: perturbed by what rounding and storing it may lose. */
void lm_noise_result(const lm_noise *n, const lm_program *p, uint32_t op, uint32_t position, double *x);
/* What may be perturbed of a row of value v: the columns from *first on (a list of positions: none; experts' ids: not, their weights). */
uint32_t lm_noise_first(const lm_program *p, lm_val v);

/* ---- diff_side.c ----------------------------------------------------------------------------------------------------------------- */
typedef struct lm_side {
    char letter;
    const char *spec, *path; /* as given; without its suffixes */
    const char *about;       /* one line */
    bool is_trace;
    lm_engine *e; /* a run */
    bool owns_e;
    lm_trace *t; /* a trace */
    struct lm_remote *server; /* a server: what it says of a case is put in the form of a trace's (diff_server.c); is_trace holds */
    lm_tokenizer *tok;        /* its own */
    bool is_server, prec_given;
    lm_prec prec;
    /* the case at hand */
    const lm_trace_case *c; /* a trace's; NULL: the side has nothing to say about the case */
    const lm_tensor **tap;  /* [n_ops] of the case: whole values that the trace has */
    uint32_t n_taps;        /* ops of which every prompt row is known */
    lm_session *s;          /* a run's */
    const int32_t *greedy;  /* [n_greedy] */
    uint32_t n_greedy, n_prompt;
    /* the block at hand */
    float *store;   /* [n_ops][rows][width] */
    uint8_t *known; /* [n_ops][rows] */
} lm_side;

typedef struct lm_diff_tap {     /* one op over one case */
    uint32_t both;               /* rows that both sides know */
    double cosine, rel, max_abs; /* of A and B: the least, the greatest two; NAN once anything was not finite */
    uint32_t cosine_at, max_at;  /* positions */
    uint64_t ulp[8];             /* elements by distance in float32 steps: 0, 1, 2–3, 4–15, 16–255, 256–4095, 4096–65535, more */
    struct {
        uint32_t rows;              /* that the side knows */
        double drift, band, ratio;  /* from the arbiter, relative: the greatest; what rounding explains there; the greatest share of it */
        uint32_t at;                /* position of that share */
        uint32_t replayed;          /* rows recomputed from the side's own inputs */
        double err, allowed, local; /* the same for the replay */
        uint32_t local_at;
        bool forked; /* a choice (of experts, of visible positions) differs from the arbiter's */
    } s[2];
} lm_diff_tap;

enum { LM_BEST = 5 };
typedef struct lm_diff_best { /* a few of a row's best, for people */
    uint32_t n, id[LM_BEST];
    double logprob[LM_BEST];
} lm_diff_best;

typedef struct lm_diff_row { /* one position */
    uint32_t top[3];         /* A, B, the arbiter; LM_NO_ID: not known */
    double margin[3];        /* between the best and the second; NAN */
    double deficit[2];       /* the arbiter's logit of its best − of the side's choice */
    double reach[2];         /* how large a deficit rounding explains in the side's lane */
    double distance[2];      /* max |dlogit| from the arbiter; NAN */
    bool forked[2];          /* after a choice that differs from the arbiter's */
    uint32_t runner_up;      /* the arbiter's second */
    double kl, dlogprob;     /* KL(B‖A); max |Δlogprob| over the reference's best 64; NAN */
    uint32_t dlogprob_id;
    const lm_diff_best *best; /* [3] of A, B and the arbiter where A and B differ; else NULL */
} lm_diff_row;

typedef struct lm_diff_finding {
    uint32_t k; /* case */
    int side;
    const char *op;   /* the first op that is not explained */
    const char *text; /* one line */
} lm_diff_finding;

typedef struct lm_diff_case {
    uint32_t k, n_prompt, n; /* n: with the continuation that both sides share */
    lm_diff_tap *tap;        /* [n_ops] */
    lm_diff_row *row;        /* [n] */
    uint32_t n_taps[2], n_replayed[2];
    uint32_t greedy, greedy_same; /* compared, equal from the start on */
    const char *note;             /* "" or what could not be done */
} lm_diff_case;

struct lm_diff {
    lm_arena *arena;
    lm_diff_options opt;
    const lm_diff_options *o; /* &opt */
    lm_side side[2];
    lm_engine *arbiter, *model; /* model: opened for the arbiter alone */
    lm_program *p;
    uint32_t samples;
    bool ties, identical;
    lm_diff_case *c;
    uint32_t n_cases;
    lm_diff_finding *finding;
    uint32_t n_findings, cap_findings;
};

/* Which of the two a name is, its lane, and what it has; the model's side is opened, a trace needs the program first. */
lm_status lm_side_open_run(lm_diff *d, int side, lm_error *err);
lm_status lm_side_open_trace(lm_diff *d, int side, lm_error *err);
lm_status lm_side_parse(lm_diff *d, int side, const char *spec, lm_error *err);
void lm_side_close(lm_side *s);
/* Case k (as numbered): ids[0..n) is its prompt. */
lm_status lm_side_begin(lm_diff *d, lm_side *s, uint32_t k, const int32_t *ids, uint32_t n, uint32_t greedy, lm_arena *a, lm_error *err);
lm_status lm_side_restart(lm_side *s, lm_error *err);
/* Positions [from, from+n) of ids into the store, which has room for that block. */
lm_status lm_side_load(lm_diff *d, lm_side *s, const int32_t *ids, uint32_t from, uint32_t n, uint32_t total, lm_error *err);
void lm_side_end(lm_side *s);
/* The id that a side chooses at a position: LM_NO_ID when it doesn't say. row: its logits there, or NULL. */
uint32_t lm_side_choice(const lm_diff *d, const lm_side *s, uint32_t position, const double *row);

/* ---- diff_server.c ------------------------------------------------------------------------------------------------------------------- */
bool lm_side_is_server(const char *spec); /* "http://…" */
lm_status lm_side_parse_server(lm_diff *d, lm_side *s, lm_error *err);
lm_status lm_side_open_server(lm_diff *d, lm_side *s, lm_error *err);
/* Asks for every position of ids[0..n) and for the continuation: s->c, and s->greedy. */
lm_status lm_side_ask(lm_diff *d, lm_side *s, uint32_t k, const int32_t *ids, uint32_t n, uint32_t greedy, lm_arena *a, lm_error *err);
void lm_side_close_server(lm_side *s);

/* ---- replay.c ---------------------------------------------------------------------------------------------------------------------- */
/* Both sides' block stores have been loaded for each block in turn: fills in the case's taps and rows. */
lm_status lm_replay_case(lm_diff *d, lm_diff_case *c, const int32_t *ids, lm_error *err);

/* ---- diff_measure.c: plain numbers --------------------------------------------------------------------------------------------------- */
typedef struct lm_dist {
    double l2, max;
} lm_dist; /* of a difference; INFINITY where anything is not finite */
lm_dist lm_distance(const double *a, const double *b, uint32_t n);
/* err as a share of what LM_BAND times the noise explains. */
double lm_share(lm_dist err, lm_dist noise);
void lm_diff_pair(lm_diff_tap *t, const float *a, const float *b, const double *xa, const double *xb, uint32_t n, uint32_t position);
/* The position's line; a, b: logits or NULL; truth: the arbiter's; sample[0..n): the perturbed runs of the side's lane. */
void lm_diff_choices(const lm_diff *d, lm_diff_row *r, uint32_t position, const double *const x[2], const double *truth,
                     const double *const *const sample[2], uint32_t n, double *scratch);
/* A trace's best few log-probabilities against the arbiter's, as the drift of the logits. */
void lm_diff_top(const lm_diff *d, const lm_side *s, lm_diff_tap *t, uint32_t position, const double *truth, const double *const *sample,
                 uint32_t n);
void lm_diff_drift(lm_diff_tap *t, int side, lm_dist err, lm_dist noise, double size, uint32_t position);
void lm_diff_local(lm_diff_tap *t, int side, lm_dist err, lm_dist noise, double size, uint32_t position, double share);

LM_PRINTF(2, 3) const char *lm_diff_say(lm_diff *d, const char *fmt, ...); /* in the arena; "" when out of memory */
const char *lm_diff_judged(const lm_diff_row *r);  /* diff_report.c: what the arbiter says of a token that the sides dispute */
bool lm_diff_disputed(const lm_diff_row *r);       /* both sides choose, and differently */
bool lm_diff_near_tie(const lm_diff_row *r, int side); /* its choice differs from the arbiter's, and rounding explains it */

/* ---- mutate.c ---------------------------------------------------------------------------------------------------------------------- */
/* Plants a fault in an op of a program that no device has been configured with yet. */
uint32_t lm_mutations(void);
const char *lm_mutation_name(uint32_t m);
/* Which op of the program mutation m can be planted in: the nth; LM_NONE when there are no more. */
uint32_t lm_mutation_place(const lm_program *p, uint32_t m, uint32_t nth);
lm_status lm_mutate(lm_program *p, uint32_t op, uint32_t m, lm_error *err);
/* For tests: a diff with an engine already opened (and mutated) as side A and the arbiter, against the trace o->b. */
lm_status lm_diff_run_engine(lm_engine *e, const lm_diff_options *o, lm_diff **out, lm_error *err);
#endif
