/* The thread pool. Work is a number of independent tasks handed out dynamically; which thread runs a task never changes a bit of
 * its result. The calling thread takes part. One job at a time per pool; jobs don't nest.
 * Waiting is a bounded spin and then a futex, so that an idle pool costs nothing and a busy neighbour is not starved. A thread whose CPU is
 * taken by another process rests until its CPU is its own again; the others do its share. */
#ifndef LM_BASE_THREADS_H
#define LM_BASE_THREADS_H
#include "base/status.h"

typedef struct lm_pool lm_pool;
/* task: 0 ≤ task < n_tasks; thread: 0 ≤ thread < lm_pool_size(pool), for scratch */
typedef void (*lm_task_fn)(void *ctx, uint32_t task, uint32_t thread);

/* n_threads 0: one per physical core that the process may use. Each thread sets round-to-nearest with denormals kept and checks it. */
lm_status lm_pool_create(uint32_t n_threads, lm_pool **out, lm_error *err);
void lm_pool_destroy(lm_pool *p);
uint32_t lm_pool_size(const lm_pool *p);
uint32_t lm_pool_resting(const lm_pool *p); /* threads that rest at this moment */
/* For jobs whose tasks may wait for memory or files: until told otherwise no thread is sent to rest for being late. By the caller of run. */
void lm_pool_patient(lm_pool *p, bool on);
void lm_pool_run(lm_pool *p, lm_task_fn fn, void *ctx, uint32_t n_tasks);
/* What the next job will read. A job's tasks are cut into ranges of neighbours, [first(r), first(r + 1)), and thread r starts with range r: told
 * before the job at hand is run where the next one's range starts to read, threads that are done with the job and wait ask their CPUs for it once the
 * caller has done its own part of the job, so that memory does not stand still while the caller works alone. The caller's own thread does where it
 * calls ask, now and then, for a little at a time.
 * A job is one of more than one task. Hints: nothing is touched, so memory that is gone by then does no harm. By the caller of run. */
#define LM_POOL_SPANS 4u
typedef struct lm_span {
    const void *at;
    size_t bytes;
} lm_span;
uint32_t lm_pool_ranges(const lm_pool *p);
uint32_t lm_pool_first(const lm_pool *p, uint32_t n_tasks, uint32_t range);
void lm_pool_ahead(lm_pool *p, uint32_t range, const lm_span *span, uint32_t n); /* at most LM_POOL_SPANS, in the order of reading */
void lm_pool_ask(lm_pool *p);
uint32_t lm_physical_cores(void);
double lm_now(void); /* seconds, monotonic */
/* Sets MXCSR/FPCR of the calling thread to the arithmetic that the contract needs; the pool does it for its own threads. */
void lm_fp_env_set(void);
bool lm_fp_env_ok(void);
#endif
