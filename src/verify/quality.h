/* How far a run's next-token distributions are from a reference's, in numbers: docs/quality.md has the definitions.
 *
 * p is the reference's distribution, q the run's. The reference's is known whole (its logits), or as a list of its best ids with their
 * log-probabilities and the log of what remains: then everything that remains is one bucket, and the KL divergence is a lower bound.
 */
#ifndef LM_VERIFY_QUALITY_H
#define LM_VERIFY_QUALITY_H
#include "base/status.h"

enum { LM_QUALITY_TOP = 64 }; /* |Δlogprob| is taken over so many of the reference's best */

typedef struct lm_listed { /* what is known of p */
    const int32_t *id; /* [n], best first, each once */
    const double *lp;  /* [n] */
    uint32_t n;
    double rest; /* log of the mass of all others; NAN: not recorded, 1 − Σ is taken */
} lm_listed;

typedef struct lm_apart { /* one position */
    double kl;       /* KL(p‖q) ≥ 0, in nats */
    double rest;     /* p's mass in the bucket; 0 where p is known whole */
    double dlogprob; /* the largest |log p − log q| over p's best ids */
    uint32_t dlogprob_id, top[2]; /* top: p's best id, and q's */
} lm_apart;

/* The log-sum-exp of own[0..vocab), and in e (scratch, [vocab]) each element's share of it: q. NAN when anything is not finite. */
double lm_shares(const double *own, uint32_t vocab, double *e);
/* own: logits; lse, e: as lm_shares gave them (e is used up by lm_apart_listed). ref: p's logits, scratch: [vocab]. False: a number is not
 * finite, an id stands twice, or the list is empty or doesn't add up to one with what remains. */
bool lm_apart_whole(const double *ref, const double *own, double lse, uint32_t vocab, double *scratch, lm_apart *out);
bool lm_apart_listed(const lm_listed *ref, const double *own, double lse, uint32_t vocab, double *e, lm_apart *out);

/* ---- over positions ------------------------------------------------------------------------------------------------------------ */
typedef struct lm_mean { double value, se; uint64_t n; } lm_mean; /* se: standard error, positions taken as independent; NAN below two */
typedef struct lm_quality {
    double *kl; /* [n], as they came */
    uint64_t n, cap, same;
    double rest, dlogprob, max_kl; /* rest: the sum */
    uint32_t dlogprob_id, dlogprob_at[2], max_at[2]; /* case, position */
} lm_quality;
lm_status lm_quality_add(lm_quality *q, const lm_apart *a, uint32_t k, uint32_t position, lm_error *err);
void lm_quality_free(lm_quality *q);
lm_mean lm_quality_kl(const lm_quality *q);
lm_mean lm_quality_top1(const lm_quality *q); /* the share of positions where both choose the same */
/* The smallest value that at least share·n of the values don't exceed; NAN for none. Sorts a copy. */
lm_status lm_quality_quantiles(const lm_quality *q, const double *share, uint32_t n, double *out, lm_error *err);
lm_mean lm_mean_of(double sum, double sum_squares, uint64_t n);
#endif
