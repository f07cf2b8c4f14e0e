/* Speed, as a share of what this machine can do. `lm_bench` times whole prefills and decodes; `lm_profile` says where their time goes. Both
 * measure the machine's own limits in the same run: read bandwidth and the peak rates of multiply-adds, before, after and around each
 * repeat. Token ids are synthetic (a fixed seed), so that any model runs. Nothing here prints; results come through callbacks.
 *
 * Units: rates in tokens per second; GB = 10^9 bytes; an int8, bf16 or f32 multiply-add counts as two operations. Shares are of 1.
 */
#ifndef LEMMA_BENCH_H
#define LEMMA_BENCH_H
#include "lemma/lemma.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the machine can do with so many threads, as measured. Zero: this CPU has no such instruction. */
typedef struct lm_machine {
    uint32_t threads;
    double read_gbs; /* a stream of sums over buffer_bytes, which is far more than the caches hold */
    double int8_gops, bf16_gflops, f32_gflops;
    const char *read_how, *int8_how, *bf16_how, *f32_how; /* "avx512 vpdpbusd"; "" when zero */
    uint64_t buffer_bytes, cache_bytes;                   /* cache_bytes: the largest cache */
} lm_machine;

/* One way of running the model. Strings are valid during the callback. */
typedef struct lm_bench_config {
    const char *arch, *lane, *device; /* "llama", "f32", "cpu f32 avx512 2 threads" */
    uint32_t threads;
    double load_s;         /* opening, repacking included; once for all lanes and threads that keep weights alike */
    uint64_t weight_bytes; /* of the tensors that the program reads, as stored */
    bool cached;           /* they fit the largest cache: read bandwidth is no limit, and a share of it may pass 1 */
} lm_bench_config;

typedef struct lm_spread {
    double median, min, max;
} lm_spread;

typedef enum lm_bench_test { LM_BENCH_PREFILL, LM_BENCH_DECODE } lm_bench_test;
const char *lm_bench_test_name(lm_bench_test t); /* "prefill" */

typedef struct lm_bench_row {
    lm_bench_test test;
    uint32_t tokens;  /* PREFILL: of the prompt; DECODE: steps */
    uint32_t depth;   /* DECODE: positions in the cache when it begins */
    uint32_t batch;   /* sequences side by side */
    uint32_t repeats; /* timed, after a warm-up */
    lm_spread rate;   /* tok/s, of all sequences together */
    /* Products with weights alone. A decode step does them for `batch` rows, a prefill for all tokens but the head for the last one. */
    double ops;          /* of the whole repeat */
    double layers_ops;   /* PREFILL: without the head's; DECODE: 0 */
    double weight_bytes; /* as stored, read in one step (PREFILL: once) */
    double cache_bytes;  /* read by attention in one step, on average */
    lm_spread compute;   /* ops per second against the peak of the lane's own instructions: a share */
    lm_spread layers;    /* PREFILL: layers_ops over the time until the last layer was done, against the same peak; DECODE: not timed, 0 */
    lm_spread read;      /* weight_bytes per second against the read bandwidth: a share */
    lm_spread read_all;  /* the same, cache_bytes included */
    double peak_gops;    /* the medians of the limits, measured before and after each repeat */
    double read_gbs;
} lm_bench_row;

typedef struct lm_bench_options {
    /* how to run: a config is a lane with a thread count. Empty lists: the default alone. */
    const char *cpu_level; /* NULL: the best that this CPU has */
    const char *kv;        /* how keys and values are kept; NULL: the default */
    const char *const *lane;
    uint32_t n_lanes;
    const uint32_t *threads;
    uint32_t n_threads;
    uint32_t chunk; /* rows at a time; 0: a good size */
    /* what to time: prefills of prompt[] tokens; decodes of `predict` steps at every depth and batch */
    const uint32_t *prompt;
    uint32_t n_prompts;
    const uint32_t *depth;
    uint32_t n_depths;
    const uint32_t *batch;
    uint32_t n_batches;
    uint32_t predict;
    /* loops that compute without end beside each repeat, bound to CPUs from the last one down; not beside the limits */
    uint32_t neighbours;
    uint32_t repeats;                                                                      /* 1 … 1000 */
    void (*machine)(void *ctx, const lm_bench_config *c, const lm_machine *m, bool after); /* before a config's rows, and after them */
    void (*row)(void *ctx, const lm_bench_config *c, const lm_bench_row *r);               /* as each is measured */
    void *ctx;
    bool (*progress)(void *ctx, const char *what, uint64_t done, uint64_t total); /* false interrupts (LM_INTERRUPTED) */
    void *progress_ctx;
    bool (*interrupted)(void *ctx); /* polled while running */
    void *interrupted_ctx;
} lm_bench_options;
/* Callbacks may be NULL. The configs are opened one after another: one copy of the weights at a time. */
lm_status lm_bench(const char *model, const lm_bench_options *o, lm_error *err);

/* ---- where the time goes ------------------------------------------------------------------------------------------------------ */
typedef enum lm_profile_group {
    LM_PROFILE_KIND,  /* "linear" */
    LM_PROFILE_OP,    /* "attn.q": the results of all layers by that name */
    LM_PROFILE_LAYER, /* "layer.3", "outside" */
    LM_PROFILE_TOTAL
} lm_profile_group;
const char *lm_profile_group_name(lm_profile_group g); /* "kind" */

/* Sums over the phase. The bound is the least time that the limits allow, op by op: its multiply-adds at their peak, or its bytes at the
 * read bandwidth (no limit where the weights fit the cache), whichever takes longer, by the mean of the limits before and after. Ops
 * without either (norms, additions) have none. */
typedef struct lm_profile_row {
    lm_bench_test phase;
    lm_profile_group group;
    const char *name;
    uint32_t calls;
    double seconds;
    double share_of_time; /* of the phase's ops */
    double ops;           /* products with weights, and attention's */
    double weight_bytes, cache_bytes;
    double bound_s;
    double share_of_limit; /* bound_s / seconds; 0: no bound */
    double plain_s;        /* TOTAL: the same phase without taps, the backend free to fuse */
} lm_profile_row;

typedef struct lm_profile_options {
    const char *cpu_level, *lane, *kv; /* NULL: the default */
    uint32_t threads, chunk;      /* 0: the default */
    uint32_t prompt, predict;     /* tokens of the prefill, steps of the decode that follows it; 0: that phase is left out */
    void (*machine)(void *ctx, const lm_bench_config *c, const lm_machine *m, bool after);
    void (*row)(void *ctx, const lm_profile_row *r); /* a phase at a time; in it a group at a time, KIND and OP by time, LAYER in order */
    void *ctx;
    bool (*progress)(void *ctx, const char *what, uint64_t done, uint64_t total);
    void *progress_ctx;
    bool (*interrupted)(void *ctx);
    void *interrupted_ctx;
} lm_profile_options;
/* Times are taken by taps, from one op's end to the next one's: the preparation of a batch counts as part of its first op. */
lm_status lm_profile(const char *model, const lm_profile_options *o, lm_error *err);

#ifdef __cplusplus
}
#endif
#endif
