/* The inner contracts of `lemma ppl`: windows, what is measured in them, and the compact reference that is written on the way. */
#ifndef LM_VERIFY_PPL_H
#define LM_VERIFY_PPL_H
#include "lemma/ppl.h"
#include "verify/quality.h"
#include "verify/verify.h"

typedef struct lm_window {
    uint32_t k; /* its number, the case's in a trace */
    const int32_t *id;
    uint32_t n, first, last; /* rows first … last are measured: row i is the distribution of the token after it */
    const lm_trace_case *c;  /* the reference's, or NULL */
    double nll;              /* summed over `scored` rows; row n−1 has no next token */
    uint32_t scored;
} lm_window;

struct lm_ppl {
    lm_arena *arena;
    const lm_ppl_options *o;
    lm_engine *e;
    lm_trace *t; /* the reference */
    lm_window *w;
    uint32_t n_windows, ctx, stride;
    uint64_t n_tokens, left_out; /* of the text; at its end, no whole window */
    bool bos;                    /* each window begins with it */
    double sum, squares;         /* of the negative log-likelihoods */
    uint64_t scored;
    lm_quality q;
    bool whole;         /* the reference's logits are whole, everywhere */
    const char *about;  /* "PATH (llama) on cpu, lane f32 (…)" */
    const char *ref_of; /* the reference in words */
    const char *ref_sha256, *logits_sha256;
};

/* ---- ppl_cut.c ---------------------------------------------------------------------------------------------------------------------- */
/* Fills in the windows from the options and the reference. */
lm_status lm_ppl_cut(lm_ppl *p, lm_error *err);

/* ---- ppl_save.c: a compact reference ----------------------------------------------------------------------------------------------- */
typedef struct lm_saved { /* one window's rows */
    int32_t *id;          /* [n][top] */
    float *lp, *rest;     /* [n][top], [n] */
} lm_saved;
lm_status lm_saved_create(const lm_ppl *p, const lm_window *w, lm_saved *out, lm_error *err);
/* Row `row`: x its logits, lse their log-sum-exp, e their shares. False: what remains has no mass. */
void lm_saved_row(const lm_ppl *p, lm_saved *s, uint32_t row, const double *x, double lse, const double *e);
lm_status lm_saved_write(const lm_ppl *p, const lm_saved *s, lm_error *err);
#endif
