/* What bench and profile share: a configured engine with a meter, synthetic ids, and one timed evaluation. */
#ifndef LM_BENCH_RUN_H
#define LM_BENCH_RUN_H
#include "bench/work.h"

typedef struct lm_rig {
    lm_engine *engine;
    lm_meter *meter;
    lm_worker worker;
    lm_bench_config config;
} lm_rig;
typedef struct lm_rig_options {
    const char *cpu_level, *lane, *kv;
    uint32_t threads;
    bool (*progress)(void *ctx, const char *what, uint64_t done, uint64_t total);
    void *progress_ctx;
    bool (*interrupted)(void *ctx);
    void *interrupted_ctx;
} lm_rig_options;
lm_status lm_rig_open(const char *model, const lm_rig_options *o, lm_rig *out, lm_error *err);
/* The same model by other options. Weights that are packed alike stay: config.load_s is of the time that they were loaded. */
lm_status lm_rig_change(lm_rig *r, const lm_rig_options *o, lm_error *err);
void lm_rig_close(lm_rig *r); /* zeros are fine */

/* The id at a position of a sequence: the same in every run, different in every sequence. */
int32_t lm_bench_id(const lm_rig *r, uint32_t sequence, uint32_t position);
/* Appends n rows to each of n_s sessions in one batch, with the last row's logits where `logits`. Ids continue by the sessions' lengths.
 * at_head: NULL, or set to the moment (lm_now) when the last layer was done and the head began; left alone where no logits are wanted. */
lm_status lm_bench_step(const lm_rig *r, lm_session *const *s, uint32_t n_s, uint32_t n, bool logits, double *at_head, lm_tap_fn tap,
                        void *tap_ctx, lm_error *err);
#endif
