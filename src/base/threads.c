/* The thread pool.
 *
 * A job's tasks are cut into ranges of neighbours, one per thread (many threads share some): a thread works through its own range, so that
 * it reads memory in one stream, then helps with the others'. A job is its number, its epoch, and its number of tasks in one word, so that nobody
 * sees one without the other. A range's `cursor` has the epoch of the job that it was last used in, and how many of its tasks are not yet taken; a
 * cursor of an earlier job stands for a range that nobody has touched in this one (an empty range is marked by the caller), so that a worker finds its
 * own where it left it, in its cache. Taking a task is one compare-and-swap, which lowers the count. A job ends only when all that were taken have been
 * counted in `finished`: so a swap that succeeds proves that its job is still running, whose fn and ctx, read just before, these then are. A worker that
 * wakes late, even in the middle of a later job, finds a count of 0, or a later epoch: it never touches a finished job.
 *
 * A task that was taken must be waited for, and a thread whose CPU goes to another process in the middle of one keeps the whole job waiting
 * for a time slice, which is as long as many jobs of decoding. So a worker that kept the caller waiting for longer than sharing had saved, and
 * that for a good part of the time, or that cannot get off the caller's own CPU, rests: it takes no tasks. From time to time the caller sends a resting
 * worker to watch the clock on its CPU for a while; when little of that CPU is taken away, the worker comes back. A busy neighbour so costs the
 * thread that shares its CPU, and no waiting. None of this applies to a pool of more threads than CPUs, whose threads take turns by design.
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
#define MAX_RANGES 16
/* Longer than what lies between two tokens: their logits, the choice. */
#define SPIN_SECONDS 100e-6
#define MEASURE_SECONDS 100e-6 /* of the ticks' clock, when a pool is made */
/* Of what the next job reads: asked for by a thread that waits, in all and at a time. A CPU drops what it is asked for while its queue of misses is
 * full, so there is a pause after each step, which then takes about as long as memory takes for it. The caller, which has other work to do between,
 * asks for as many steps at once as the queue takes. */
#define AHEAD_BYTES (128u << 10)
#define AHEAD_STEP 1024u
#define AHEAD_AT_ONCE 4
/* Late is a wait of more than LATE_TASKS tasks and LATE_SECONDS. */
#define LATE_TASKS 4
#define LATE_SECONDS 200e-6
/* Waiting that a worker may cost: so much at once, and in the long run this share of the time. A host that takes a CPU away now and then stays below
 * it, a process that shares it does not. */
#define LOST_SECONDS 12e-3
#define LOST_SHARE 0.3
/* So long after a rest without a late job, it did help. */
#define AGAIN_SECONDS 50e-3
/* A rest, doubled when it did not help; the watch that ends it, how much of it may be lost to others, and what counts as that. */
#define REST_SECONDS 20e-3
#define REST_MOST 320e-3
#define WATCH_SECONDS 10e-3
#define WATCH_LOST 2e-3
#define WATCH_PAUSE 50e-6

typedef struct worker {
    lm_pool *pool;
    pthread_t thread;
    uint32_t index;
    _Atomic uint32_t resting; /* 0: takes tasks; REST: sleeps until told; WATCH: to watch its CPU, or doing so */
    /* the caller's */
    double rest_until, rest, late_at, lost; /* late_at: when it was last late, or came back; lost: what it cost, less its share of the time since */
} worker;
enum { WORK, REST, WATCH };

/* Spans that a range of the next job starts with, and how far a thread has got with them. What is read while it is written may be of two jobs: a
 * wrong hint. */
typedef struct ahead {
    _Alignas(64) _Atomic uint32_t version;
    _Atomic uint32_t n;
    _Atomic(const char *) at[LM_POOL_SPANS];
    _Atomic size_t bytes[LM_POOL_SPANS];
} ahead;
typedef struct asked {
    const ahead *of; /* NULL: of nothing */
    uint32_t version, span;
    size_t at, all;
} asked;

typedef struct range {
    _Alignas(64) _Atomic uint64_t cursor;
} range;

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a job's epoch is the first half of its word");
struct lm_pool {
    double tick;      /* seconds of a tick */
    uint32_t n;       /* threads, the caller's included */
    uint32_t started; /* workers that exist: n - 1 once created */
    uint32_t n_ranges;
    bool patient;
    bool spread; /* each thread has a CPU of its own: spin before sleeping, and let late workers rest */
    worker *workers;
    /* The job, in one line: a worker that sees a new epoch, which it waits for, has the rest too. Written by the caller alone. */
    _Alignas(64) union {
        _Atomic uint64_t word; /* the tasks in the upper half, which is the later one in memory */
        _Atomic uint32_t epoch;
    } job;
    _Atomic(lm_task_fn) fn;
    _Atomic(void *) ctx;
    _Atomic int caller_cpu;
    range range[MAX_RANGES];
    ahead ahead[MAX_RANGES];
    asked asked; /* by the caller */
    struct { /* what becomes `ahead` when the caller has done its part of the job at hand */
        uint32_t n;
        lm_span span[LM_POOL_SPANS];
    } next[MAX_RANGES];
    bool told;
    uint32_t before; /* `finished` when the job started; the caller's */
    _Alignas(64) _Atomic uint32_t finished; /* by the workers, of all jobs */
    _Atomic uint32_t caller_sleeps;
    _Atomic uint32_t last; /* the worker that counted last */
    _Alignas(64) _Atomic uint32_t rest; /* workers that rest */
    _Atomic uint32_t sleepers;
    _Atomic uint32_t quit, ready, bad_env;
};

static void cpu_pause(void) {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* A clock that costs little to read, for what is decided job by job; its ticks are measured when a pool is made. */
static uint64_t ticks(void) {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t t;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(t));
    return t;
#else
    return (uint64_t)(lm_now() * 1e9);
#endif
}

static double span(const lm_pool *p, uint64_t from, uint64_t to) { return (double)(int64_t)(to - from) * p->tick; }
static void measure_tick(lm_pool *p) {
    const double from = lm_now();
    const uint64_t start = ticks();
    double to;
    while ((to = lm_now()) - from < MEASURE_SECONDS) cpu_pause();
    const uint64_t n = ticks() - start;
    p->tick = n ? (to - from) / (double)n : 1e-9;
}

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

#if defined(__linux__)
static int this_cpu(void) { return sched_getcpu(); }
/* Moves to another CPU that this thread may use, if there is one; it may come back later. */
static void leave_cpu(int cpu) {
    cpu_set_t all, others;
    if (cpu < 0 || cpu >= CPU_SETSIZE || sched_getaffinity(0, sizeof all, &all) != 0) return;
    others = all;
    CPU_CLR(cpu, &others);
    if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof others, &others) != 0) return;
    sched_setaffinity(0, sizeof all, &all);
}
#else
static int this_cpu(void) { return -1; }
static void leave_cpu(int cpu) { (void)cpu; }
#endif
/* A worker in the caller's way. */
static bool in_the_way(const lm_pool *p) {
    const int cpu = this_cpu();
    return p->spread && cpu >= 0 && cpu == atomic_load_explicit(&p->caller_cpu, memory_order_relaxed);
}

/* Asks for the next few lines of what comes, where any are left and not yet enough are here. */
static void ask_ahead(asked *a) {
    if (!a->of) return;
    const uint32_t version = atomic_load_explicit(&a->of->version, memory_order_acquire);
    if (version != a->version) a->version = version, a->span = 0, a->at = a->all = 0;
    if (a->all >= AHEAD_BYTES || a->span >= atomic_load_explicit(&a->of->n, memory_order_relaxed)) return;
    const char *p = atomic_load_explicit(&a->of->at[a->span], memory_order_relaxed) + a->at;
    const size_t left = atomic_load_explicit(&a->of->bytes[a->span], memory_order_relaxed) - a->at;
    for (size_t i = 0; i < AHEAD_STEP && i < left; i += 64) __builtin_prefetch(p + i, 0, 2);
    a->at += AHEAD_STEP, a->all += AHEAD_STEP;
    if (left <= AHEAD_STEP) a->span++, a->at = 0;
}

/* Waits until *w differs from `seen`; `asleep` tells whoever changes it that a wake-up is needed. */
static void wait_change(const lm_pool *p, _Atomic uint32_t *w, uint32_t seen, _Atomic uint32_t *asleep, bool spin, asked *a) {
    if (spin) {
        uint64_t start = 0;
        do {
            for (int i = 0; i < 32; i++) {
                if (atomic_load_explicit(w, memory_order_acquire) != seen) return;
                ask_ahead(a);
                cpu_pause();
            }
            if (!start) start = ticks();
        } while (span(p, start, ticks()) < SPIN_SECONDS);
    }
    /* Sequentially consistent on both sides: either the waker sees `asleep`, or the kernel sees the new value and doesn't sleep. */
    atomic_fetch_add(asleep, 1);
    while (atomic_load(w) == seen) word_wait(w, seen);
    atomic_fetch_sub(asleep, 1);
}

/* ---- work -------------------------------------------------------------------------------------------------------------------- */

static uint32_t range_size(const lm_pool *p, uint64_t n_tasks, uint32_t r) {
    return (uint32_t)((r + 1) * n_tasks / p->n_ranges - r * n_tasks / p->n_ranges);
}
/* What a cursor says to those that run job `epoch`, of n_tasks: the count of a range of this job, whole where it is untouched. */
static uint32_t left_of(const lm_pool *p, uint64_t cursor, uint32_t epoch, uint32_t n_tasks, uint32_t r, uint32_t thread) {
    const uint32_t of = (uint32_t)(cursor >> 32);
    if (of == epoch) return (uint32_t)cursor;
    /* the caller knows that its job is the last there is, however long ago a range was used */
    return thread && (int32_t)(epoch - of) < 0 ? 0 : range_size(p, n_tasks, r);
}
/* Runs tasks of a range until none is left to take; returns how many. */
static uint32_t take(lm_pool *p, uint64_t job, uint32_t r, uint32_t thread) {
    const uint32_t epoch = (uint32_t)job, n_tasks = (uint32_t)(job >> 32), end = (uint32_t)((r + 1) * (uint64_t)n_tasks / p->n_ranges);
    _Atomic uint64_t *cursor = &p->range[r].cursor;
    uint32_t done = 0;
    uint64_t c = atomic_load_explicit(cursor, memory_order_acquire);
    for (uint32_t left; (left = left_of(p, c, epoch, n_tasks, r, thread)) != 0;) {
        lm_task_fn fn = atomic_load_explicit(&p->fn, memory_order_relaxed);
        void *ctx = atomic_load_explicit(&p->ctx, memory_order_relaxed);
        const uint64_t next = (uint64_t)epoch << 32 | (left - 1);
        if (!atomic_compare_exchange_weak_explicit(cursor, &c, next, memory_order_acq_rel, memory_order_acquire)) continue;
        fn(ctx, end - left, thread);
        done++;
        c = next; /* most often */
    }
    return done;
}
static uint32_t range_after(const lm_pool *p, uint32_t r) { return r + 1 < p->n_ranges ? r + 1 : 0; }
/* By a worker. */
static void count_off(lm_pool *p, uint32_t thread, uint32_t done) {
    if (done == 0) return;
    /* Overwritten only by workers that count later; the caller reads it when all have. */
    atomic_store_explicit(&p->last, thread, memory_order_relaxed);
    atomic_fetch_add(&p->finished, done);
    if (atomic_load(&p->caller_sleeps)) word_wake(&p->finished, 1);
}

/* A worker's part of a job: what it did of its own range is counted before it looks for others' work, which may be far away. */
static void work(lm_pool *p, uint64_t job, uint32_t thread) {
    const uint32_t own = thread % p->n_ranges;
    count_off(p, thread, take(p, job, own, thread));
    for (uint32_t r = range_after(p, own); r != own; r = range_after(p, r)) count_off(p, thread, take(p, job, r, thread));
}

/* ---- rest -------------------------------------------------------------------------------------------------------------------- */

/* Whether little takes this thread's CPU away, which is another one than the caller's where that is possible. */
static bool undisturbed(const lm_pool *p) {
    double last = lm_now(), lost = 0;
    for (const double end = last + WATCH_SECONDS; last < end && !atomic_load_explicit(&p->quit, memory_order_relaxed);) {
        for (int i = 0; i < 32; i++) cpu_pause();
        const double now = lm_now();
        if (now - last > WATCH_PAUSE && (lost += now - last) > WATCH_LOST) return false;
        if (in_the_way(p)) leave_cpu(atomic_load_explicit(&p->caller_cpu, memory_order_relaxed));
        last = now;
    }
    return true;
}
static void rest(lm_pool *p, worker *me) {
    for (uint32_t r; (r = atomic_load(&me->resting)) != WORK && !atomic_load(&p->quit);) {
        if (r == REST) {
            word_wait(&me->resting, REST);
            continue;
        }
        const bool good = undisturbed(p);
        if (good) atomic_fetch_sub(&p->rest, 1);
        atomic_store(&me->resting, good ? WORK : REST);
    }
}
/* By the caller (a worker that it waited for) or by the worker itself. */
static void send_to_rest(lm_pool *p, worker *w) {
    uint32_t was = WORK;
    if (!p->spread || !atomic_compare_exchange_strong(&w->resting, &was, REST)) return;
    atomic_fetch_add(&p->rest, 1);
}

/* Some systems wake a thread where it slept, though the caller is there now and other CPUs idle. */
static void step_aside(lm_pool *p, worker *me) {
    leave_cpu(atomic_load_explicit(&p->caller_cpu, memory_order_relaxed));
    if (in_the_way(p)) send_to_rest(p, me);
}

/* A new epoch, with or without tasks. */
static uint64_t announce(lm_pool *p, uint32_t n_tasks, uint32_t n_wake) {
    const uint64_t job = (uint64_t)n_tasks << 32 | (atomic_load_explicit(&p->job.epoch, memory_order_relaxed) + 1);
    atomic_store(&p->job.word, job);
    if (atomic_load(&p->sleepers)) word_wake(&p->job.epoch, n_wake);
    return job;
}

static double longer(double span) { return span < REST_SECONDS ? REST_SECONDS : span < REST_MOST / 2 ? 2 * span : REST_MOST; }
static void was_late(lm_pool *p, worker *w, double now, double waited) {
    const double since = now - w->late_at;
    if (since >= AGAIN_SECONDS) w->rest = 0;
    w->lost = (w->lost > LOST_SHARE * since ? w->lost - LOST_SHARE * since : 0) + waited;
    w->late_at = now;
    if (w->lost <= LOST_SECONDS) return;
    w->lost = 0;
    send_to_rest(p, w);
}

/* The caller looks after the resting workers: each rests for its time, then watches. */
static void look_after(lm_pool *p, double now) {
    for (uint32_t i = 0; i < p->started; i++) {
        worker *w = &p->workers[i];
        if (atomic_load_explicit(&w->resting, memory_order_relaxed) != REST) {
            if (w->rest_until > 0 && atomic_load_explicit(&w->resting, memory_order_relaxed) == WORK) w->rest_until = 0, w->late_at = now;
            continue;
        }
        if (w->rest_until <= 0) { /* a new rest */
            w->rest = longer(w->rest);
            w->rest_until = now + w->rest;
        } else if (now >= w->rest_until) {
            w->rest = longer(w->rest);
            w->rest_until = now + WATCH_SECONDS + w->rest;
            atomic_store(&w->resting, WATCH);
            word_wake(&w->resting, 1);
            announce(p, 0, UINT32_MAX); /* it may still be waiting for a job */
        }
    }
}

/* ---- the workers, and the caller ----------------------------------------------------------------------------------------------- */

static void *worker_main(void *arg) {
    worker *me = arg;
    lm_pool *p = me->pool;
    lm_fp_env_set();
    if (!lm_fp_env_ok()) atomic_store(&p->bad_env, 1);
    atomic_fetch_add(&p->ready, 1);
    word_wake(&p->ready, 1);
    asked a = {.of = me->index < p->n_ranges ? &p->ahead[me->index] : NULL};
    for (uint32_t seen = 0; !atomic_load(&p->quit);) {
        wait_change(p, &p->job.epoch, seen, &p->sleepers, p->spread && !in_the_way(p), &a);
        const uint64_t job = atomic_load_explicit(&p->job.word, memory_order_acquire);
        seen = (uint32_t)job;
        if (in_the_way(p)) step_aside(p, me);
        if (atomic_load_explicit(&me->resting, memory_order_relaxed) != WORK)
            rest(p, me);
        else
            work(p, job, me->index);
    }
    return NULL;
}

/* What was told before this job is what comes after it. */
static void tell(lm_pool *p) {
    if (!p->told) return;
    p->told = false;
    for (uint32_t r = 0; r < p->n_ranges; r++) {
        ahead *a = &p->ahead[r];
        for (uint32_t i = 0; i < p->next[r].n; i++) {
            atomic_store_explicit(&a->at[i], p->next[r].span[i].at, memory_order_relaxed);
            atomic_store_explicit(&a->bytes[i], p->next[r].span[i].bytes, memory_order_relaxed);
        }
        atomic_store_explicit(&a->n, p->next[r].n, memory_order_relaxed);
        atomic_store_explicit(&a->version, atomic_load_explicit(&a->version, memory_order_relaxed) + 1, memory_order_release);
    }
}

static uint64_t publish(lm_pool *p, lm_task_fn fn, void *ctx, uint32_t n_tasks) {
    atomic_store_explicit(&p->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&p->ctx, ctx, memory_order_relaxed);
    const uint64_t epoch = atomic_load_explicit(&p->job.epoch, memory_order_relaxed) + 1;
    for (uint32_t r = 0; n_tasks < p->n_ranges && r < p->n_ranges; r++)
        if (range_size(p, n_tasks, r) == 0) atomic_store_explicit(&p->range[r].cursor, epoch << 32, memory_order_relaxed);
    return announce(p, n_tasks, n_tasks - 1);
}

void lm_pool_run(lm_pool *p, lm_task_fn fn, void *ctx, uint32_t n_tasks) {
    if (!lm_fp_env_ok()) lm_fp_env_set(); /* the caller is thread 0 */
    const bool watched = p->n > 1 && n_tasks > 1 && p->spread;
    const uint64_t start = watched ? ticks() : 0;
    if (watched) {
        atomic_store_explicit(&p->caller_cpu, this_cpu(), memory_order_relaxed);
        look_after(p, (double)start * p->tick);
    }
    if (p->n == 1 || n_tasks <= 1 || atomic_load_explicit(&p->rest, memory_order_relaxed) == p->n - 1) {
        for (uint32_t i = 0; i < n_tasks; i++) fn(ctx, i, 0);
        if (n_tasks > 1) tell(p);
        return;
    }
    const uint64_t job = publish(p, fn, ctx, n_tasks);
    uint32_t own = take(p, job, 0, 0);
    tell(p); /* not sooner: the lines are the workers', and the caller's first task would wait for them */
    for (uint32_t r = 1; r < p->n_ranges && atomic_load(&p->finished) != p->before + (n_tasks - own); r++) own += take(p, job, r, 0);
    p->before += n_tasks - own; /* what `finished` will be */
    if (atomic_load(&p->finished) == p->before) return;
    const uint64_t mine = watched ? ticks() : 0;
    for (uint32_t seen; (seen = atomic_load(&p->finished)) != p->before;)
        wait_change(p, &p->finished, seen, &p->caller_sleeps, p->spread, &p->asked);
    if (!watched) return;
    const uint64_t now = ticks();
    const double waited = span(p, mine, now), each = own ? span(p, start, mine) / own : 0;
    const uint32_t last = atomic_load_explicit(&p->last, memory_order_relaxed);
    if (!p->patient && last && waited > LATE_SECONDS + LATE_TASKS * each && waited > (n_tasks - own) * each)
        was_late(p, &p->workers[last - 1], (double)now * p->tick, waited);
}

uint32_t lm_pool_ranges(const lm_pool *p) { return p->n_ranges; }
uint32_t lm_pool_first(const lm_pool *p, uint32_t n_tasks, uint32_t r) { return (uint32_t)((uint64_t)r * n_tasks / p->n_ranges); }
void lm_pool_ahead(lm_pool *p, uint32_t r, const lm_span *span, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) p->next[r].span[i] = span[i];
    p->next[r].n = n;
    p->told = true;
}
void lm_pool_ask(lm_pool *p) {
    for (int i = 0; i < AHEAD_AT_ONCE; i++) ask_ahead(&p->asked);
}

/* ---- life -------------------------------------------------------------------------------------------------------------------- */

uint32_t lm_pool_size(const lm_pool *p) { return p->n; }
void lm_pool_patient(lm_pool *p, bool on) { p->patient = on; }
uint32_t lm_pool_resting(const lm_pool *p) { return atomic_load_explicit(&p->rest, memory_order_relaxed); }

void lm_pool_destroy(lm_pool *p) {
    if (!p) return;
    atomic_store(&p->quit, 1);
    announce(p, 0, UINT32_MAX);
    for (uint32_t i = 0; i < p->started; i++) {
        atomic_store(&p->workers[i].resting, WATCH);
        word_wake(&p->workers[i].resting, 1);
    }
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
    p->n_ranges = p->n < MAX_RANGES ? p->n : MAX_RANGES;
    p->asked.of = &p->ahead[0];
    p->spread = p->n <= usable_cpus();
    p->caller_cpu = -1;
    p->workers = lm_calloc(p->n, sizeof *p->workers);
    if (p->n > 1) measure_tick(p);
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
