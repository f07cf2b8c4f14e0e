/* The thread pool.
 *
 * A job is published through `cursor`: its epoch in the upper half, the number of tasks not yet taken in the lower one. Taking a task is
 * one compare-and-swap that lowers the count. A job ends only when every taken task has been counted off in `pending`, so a successful
 * swap proves that the job it belongs to is still running, and that fn, ctx and n_tasks, read just before, are that job's. A worker
 * that wakes late, even in the middle of a later job, finds either a count of 0 or a swap that fails: it never touches a finished job.
 */
#include "base/threads.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define MAX_THREADS 1024
#define SPIN_SECONDS 20e-6

typedef struct worker {
    lm_pool *pool;
    pthread_t thread;
    uint32_t index;
} worker;

struct lm_pool {
    uint32_t n;       /* threads, the caller's included */
    uint32_t started; /* workers that exist: n - 1 once created */
    bool spin;        /* only where each thread has a CPU of its own */
    worker *workers;
    /* the job */
    _Atomic(lm_task_fn) fn;
    _Atomic(void *) ctx;
    _Atomic uint32_t n_tasks;
    _Alignas(64) _Atomic uint64_t cursor;
    _Alignas(64) _Atomic uint32_t pending; /* tasks not finished; the caller waits for 0 */
    _Atomic uint32_t caller_sleeps;
    _Alignas(64) _Atomic uint32_t epoch; /* workers wait for it to change */
    _Atomic uint32_t sleepers;
    _Atomic uint32_t quit, ready, bad_env;
};

/* ---- waiting ----------------------------------------------------------------------------------------------------------------- */

#if defined(__linux__)
static void word_wait(_Atomic uint32_t *w, uint32_t seen) { syscall(SYS_futex, w, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0); }
static void word_wake(_Atomic uint32_t *w, uint32_t n) { syscall(SYS_futex, w, FUTEX_WAKE_PRIVATE, n > INT_MAX ? INT_MAX : (int)n, NULL, NULL, 0); }
#else
static pthread_mutex_t wait_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wait_cond = PTHREAD_COND_INITIALIZER;
static void word_wait(_Atomic uint32_t *w, uint32_t seen) {
    pthread_mutex_lock(&wait_lock);
    if (atomic_load(w) == seen) pthread_cond_wait(&wait_cond, &wait_lock);
    pthread_mutex_unlock(&wait_lock);
}
static void word_wake(_Atomic uint32_t *w, uint32_t n) {
    (void)w, (void)n; /* one condition for all words: everyone looks again */
    pthread_mutex_lock(&wait_lock);
    pthread_cond_broadcast(&wait_cond);
    pthread_mutex_unlock(&wait_lock);
}
#endif

static void cpu_pause(void) {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Waits until *w differs from `seen`; `asleep` tells whoever changes it that a wake-up is needed. */
static void wait_change(const lm_pool *p, _Atomic uint32_t *w, uint32_t seen, _Atomic uint32_t *asleep) {
    if (p->spin) {
        double until = lm_now() + SPIN_SECONDS;
        do {
            for (int i = 0; i < 32; i++) {
                if (atomic_load_explicit(w, memory_order_acquire) != seen) return;
                cpu_pause();
            }
        } while (lm_now() < until);
    }
    /* Sequentially consistent on both sides: either the waker sees `asleep`, or the kernel sees the new value and doesn't sleep. */
    atomic_fetch_add(asleep, 1);
    while (atomic_load(w) == seen) word_wait(w, seen);
    atomic_fetch_sub(asleep, 1);
}

/* ---- work -------------------------------------------------------------------------------------------------------------------- */

/* Runs tasks until none is left to take. */
static void work(lm_pool *p, uint32_t thread) {
    uint32_t done = 0;
    uint64_t c = atomic_load_explicit(&p->cursor, memory_order_acquire);
    while ((uint32_t)c != 0) {
        lm_task_fn fn = atomic_load_explicit(&p->fn, memory_order_relaxed);
        void *ctx = atomic_load_explicit(&p->ctx, memory_order_relaxed);
        uint32_t n = atomic_load_explicit(&p->n_tasks, memory_order_relaxed);
        if (!atomic_compare_exchange_weak_explicit(&p->cursor, &c, c - 1, memory_order_acq_rel, memory_order_acquire)) continue;
        fn(ctx, n - (uint32_t)c, thread);
        done++;
        c = atomic_load_explicit(&p->cursor, memory_order_acquire);
    }
    if (done == 0) return;
    if (atomic_fetch_sub(&p->pending, done) == done && atomic_load(&p->caller_sleeps)) word_wake(&p->pending, 1);
}

static void *worker_main(void *arg) {
    worker *me = arg;
    lm_pool *p = me->pool;
    lm_fp_env_set();
    if (!lm_fp_env_ok()) atomic_store(&p->bad_env, 1);
    atomic_fetch_add(&p->ready, 1);
    word_wake(&p->ready, 1);
    for (uint32_t seen = 0; !atomic_load(&p->quit);) {
        wait_change(p, &p->epoch, seen, &p->sleepers);
        seen = atomic_load_explicit(&p->epoch, memory_order_acquire);
        work(p, me->index);
    }
    return NULL;
}

static void announce(lm_pool *p, uint32_t n_wake) {
    atomic_fetch_add(&p->epoch, 1);
    if (atomic_load(&p->sleepers)) word_wake(&p->epoch, n_wake);
}

void lm_pool_run(lm_pool *p, lm_task_fn fn, void *ctx, uint32_t n_tasks) {
    if (!lm_fp_env_ok()) lm_fp_env_set(); /* the caller is thread 0 */
    if (p->n == 1 || n_tasks <= 1) {
        for (uint32_t i = 0; i < n_tasks; i++) fn(ctx, i, 0);
        return;
    }
    atomic_store_explicit(&p->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&p->ctx, ctx, memory_order_relaxed);
    atomic_store_explicit(&p->n_tasks, n_tasks, memory_order_relaxed);
    atomic_store_explicit(&p->pending, n_tasks, memory_order_relaxed);
    uint64_t epoch = (uint64_t)atomic_load_explicit(&p->epoch, memory_order_relaxed) + 1;
    atomic_store_explicit(&p->cursor, epoch << 32 | n_tasks, memory_order_release);
    announce(p, n_tasks - 1);
    work(p, 0);
    for (uint32_t left; (left = atomic_load(&p->pending)) != 0;) wait_change(p, &p->pending, left, &p->caller_sleeps);
}

/* ---- life -------------------------------------------------------------------------------------------------------------------- */

uint32_t lm_pool_size(const lm_pool *p) { return p->n; }

void lm_pool_destroy(lm_pool *p) {
    if (!p) return;
    atomic_store(&p->quit, 1);
    announce(p, UINT32_MAX);
    for (uint32_t i = 0; i < p->started; i++) pthread_join(p->workers[i].thread, NULL);
    lm_free(p->workers);
    lm_pages_free(p, sizeof *p);
}

static uint32_t usable_cpus(void);

static lm_status start_workers(lm_pool *p, lm_error *err) {
    for (uint32_t i = 0; i + 1 < p->n; i++) {
        worker *w = &p->workers[i];
        w->pool = p;
        w->index = i + 1;
        int e = pthread_create(&w->thread, NULL, worker_main, w);
        if (e) return lm_fail(err, LM_MISSING, "cannot start thread %u of %u: %s; ask for fewer threads", i + 2, p->n, strerror(e));
        p->started++;
    }
    for (uint32_t r; (r = atomic_load(&p->ready)) < p->started;) word_wait(&p->ready, r);
    if (atomic_load(&p->bad_env)) return lm_fail(err, LM_INTERNAL, "this machine does not keep denormals and round to nearest when told to");
    return LM_OK;
}

lm_status lm_pool_create(uint32_t n_threads, lm_pool **out, lm_error *err) {
    *out = NULL;
    if (n_threads > MAX_THREADS) return lm_fail(err, LM_RANGE, "%u threads asked for; at most %d are possible", n_threads, MAX_THREADS);
    lm_pool *p = lm_pages_alloc(sizeof *p, false); /* its alignment is more than malloc's */
    if (!p) return lm_fail_nomem(err, "a thread pool", sizeof *p);
    p->n = n_threads ? n_threads : lm_physical_cores();
    p->spin = p->n <= usable_cpus();
    p->workers = lm_calloc(p->n, sizeof *p->workers);
    lm_status s = p->workers ? start_workers(p, err) : lm_fail_nomem(err, "a thread pool", p->n * sizeof *p->workers);
    if (s != LM_OK) {
        lm_pool_destroy(p);
        return s;
    }
    *out = p;
    return LM_OK;
}

/* ---- the machine --------------------------------------------------------------------------------------------------------------- */

#if defined(__linux__)
static bool affinity(cpu_set_t *set) { return sched_getaffinity(0, sizeof *set, set) == 0; }

static uint32_t usable_cpus(void) {
    cpu_set_t set;
    long n = affinity(&set) ? CPU_COUNT(&set) : sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t)n : 1;
}

/* The lowest CPU of that CPU's core, which names the core; the CPU itself where the system doesn't say. */
static int core_of(int cpu) {
    char path[80];
    int first;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *f = fopen(path, "re");
    if (!f) return cpu;
    if (fscanf(f, "%d", &first) != 1 || first < 0 || first >= CPU_SETSIZE) first = cpu;
    fclose(f);
    return first;
}

uint32_t lm_physical_cores(void) {
    cpu_set_t set, cores;
    if (!affinity(&set)) return usable_cpus();
    CPU_ZERO(&cores);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &set)) CPU_SET(core_of(cpu), &cores);
    int n = CPU_COUNT(&cores);
    return n > 0 ? (uint32_t)n : 1;
}
#else
static uint32_t usable_cpus(void) {
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t)n : 1;
}
uint32_t lm_physical_cores(void) { return usable_cpus(); }
#endif

double lm_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#if defined(__x86_64__)
/* MXCSR: all exceptions masked (bits 7-12), rounding (13, 14) to nearest, no flush-to-zero (15), no denormals-are-zero (6) */
void lm_fp_env_set(void) { _mm_setcsr(0x1f80); }
bool lm_fp_env_ok(void) { return (_mm_getcsr() & 0xffc0u) == 0x1f80u; }
#elif defined(__aarch64__)
/* FPCR: 0 is nearest, no flush-to-zero (bits 19, 24), no default NaN (25), nothing trapped (8-15) */
void lm_fp_env_set(void) { __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0)); }
bool lm_fp_env_ok(void) {
    uint64_t v;
    __asm__ volatile("mrs %0, fpcr" : "=r"(v));
    return (v & 0x03c89f00u) == 0;
}
#else
void lm_fp_env_set(void) {}
bool lm_fp_env_ok(void) { return true; }
#endif
