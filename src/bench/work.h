/* What an op has to do, at least: the multiply-adds and the bytes that no implementation can avoid. */
#ifndef LM_BENCH_WORK_H
#define LM_BENCH_WORK_H
#include "bench/meter.h"
#include "engine/model.h"

/* Rows of a run: n_seqs sequences of n consecutive rows each, the first at position pos0; of each, the last `wanted` go through the head.
 */
typedef struct lm_work_shape {
    uint32_t n_seqs, n, pos0, wanted;
} lm_work_shape;

/* Multiply-adds with weights by the instruction they use, attention's, and bytes read. */
typedef struct lm_work {
    double mac[LM_PEAK_COUNT];
    double attention_mac; /* all of it */
    double pair_mac;      /* of it what is in bfloat16; the rest is in float32 */
    double weight_bytes;  /* as stored; of experts those that so many rows choose if every choice is equally likely */
    double cache_bytes;
} lm_work;

/* How an engine's lane computes its products. */
typedef struct lm_worker {
    const lm_engine *e;
    lm_peak_kind *kind; /* [n_weights] */
    unsigned kinds;     /* bit k: some weight's product is of kind k; F32 always */
} lm_worker;
lm_status lm_worker_create(const lm_engine *e, lm_worker *out, lm_error *err);
void lm_worker_free(lm_worker *w);

/* Adds one op's work. */
void lm_work_add(const lm_worker *w, const lm_op *op, const lm_work_shape *at, lm_work *to);
/* Seconds that the limits of r allow for the multiply-adds with weights, and for all of them. */
double lm_work_product_time(const lm_work *w, const lm_reading *r);
/* The larger of the times for all multiply-adds and for all bytes. */
double lm_work_bound(const lm_work *w, const lm_reading *r);
double lm_work_macs(const lm_work *w); /* with weights */
#endif
