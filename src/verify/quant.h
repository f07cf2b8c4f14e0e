/* The inner contracts of `lemma diff ORIGINAL QUANTIZED --quant`: what a quantized file costs, and which of its tensors cost it. */
#ifndef LM_VERIFY_QUANT_H
#define LM_VERIFY_QUANT_H
#include "verify/diff.h"
#include "verify/quality.h"

typedef struct lm_part_cost { /* some of the quantized file's tensors, in the original's place */
    const char *name;         /* the tensor's in the quantized file, or "layer 3" */
    const char *type, *was;   /* storage type there, and in the original; "…" where there are several */
    uint64_t bytes, was_bytes, elements; /* of its matrices */
    double error; /* ‖W_q − W‖ / ‖W‖ over all its elements; 0: nothing changed, and it was not run */
    lm_mean kl;
    double p99, max_kl, dlogprob;
    uint64_t flips;
} lm_part_cost;

typedef struct lm_flip { uint32_t position, a, b; double margin, kl; } lm_flip; /* margin: the original's, between the two */

struct lm_quant {
    lm_diff d; /* its sides, options, arena */
    lm_quant_by by;
    const int32_t *id;
    uint32_t n; /* positions */
    double *ref; /* [n][vocab]: the original's logits */
    double *x, *e, *scratch; /* [vocab] */
    uint32_t *weight, *vec; /* [n_weights], [n_vecs] of A: which of B's stands for it */
    /* groups */
    uint32_t *weight_group, *vec_group;
    lm_part_cost *part;
    uint32_t n_parts, n_unchanged;
    /* the quantized model itself */
    lm_quality q;
    double nll[2], dnll, dnll_se; /* mean over n − 1 positions: A, B; B − A and its standard error */
    double p50, p99;
    lm_flip *flip;
    uint32_t n_flips;
    bool same_lane, same_bits; /* A's program with all of B's weights gave B's logits, bit for bit */
    double all;                /* its mean KL; NAN: not run */
};

lm_status lm_quant_match(lm_quant *q, lm_error *err);  /* quant_match.c: which of B's tensors is which of A's */
lm_status lm_quant_groups(lm_quant *q, lm_error *err); /* quant_match.c: what is swapped together, and how far the weights are apart */
#endif
