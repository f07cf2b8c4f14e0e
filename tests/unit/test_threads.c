/* base/threads: each task once, on one thread at a time, all done at return, the arithmetic the contract needs, no idle burn. */
#include "check.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__linux__)
#include <sys/prctl.h>
#endif

#include "base/mem.h"
#include "base/threads.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define MOST 3000

typedef struct job {
    uint32_t n, threads;
    uint32_t runs[MOST]; /* plain: two threads in one task would be a data race */
    _Atomic uint32_t busy[64], bad;
    bool alive;
} job;

static void count(void *ctx, uint32_t task, uint32_t thread) {
    job *j = ctx;
    if (!j->alive || task >= j->n || thread >= j->threads) {
        atomic_fetch_add(&j->bad, 1);
        return;
    }
    if (atomic_exchange(&j->busy[thread], 1)) atomic_fetch_add(&j->bad, 1); /* one thread index, two tasks at once */
    j->runs[task]++;
    atomic_store(&j->busy[thread], 0);
}

static void each_task_once(void **state) {
    (void)state;
    static const uint32_t sizes[] = {0, 1, 2, 3, 7, 8, 9, 100, MOST};
    for (uint32_t threads = 1; threads <= 8; threads++) {
        lm_pool *p;
        assert_int_equal(lm_pool_create(threads, &p, NULL), LM_OK);
        assert_int_equal(lm_pool_size(p), threads);
        for (int round = 0; round < 30; round++)
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
                job *j = calloc(1, sizeof *j);
                j->n = sizes[s];
                j->threads = threads;
                j->alive = true;
                lm_pool_run(p, count, j, j->n);
                j->alive = false;
                for (uint32_t i = 0; i < j->n; i++) assert_int_equal(j->runs[i], 1);
                assert_int_equal(j->bad, 0);
                free(j);
            }
        lm_pool_destroy(p);
    }
}

/* Many tiny jobs back to back: a worker that comes late must find nothing of a job that is over. ctx dies with each job. */
static void late_workers(void **state) {
    (void)state;
    lm_pool *p;
    assert_int_equal(lm_pool_create(8, &p, NULL), LM_OK);
    for (uint32_t round = 0; round < 20000; round++) {
        job *j = malloc(sizeof *j);
        memset(j, 0, offsetof(job, runs) + 16);
        memset((void *)j->busy, 0, sizeof *j - offsetof(job, busy));
        j->n = 2 + round % 3;
        j->threads = 8;
        j->alive = true;
        lm_pool_run(p, count, j, j->n);
        assert_int_equal(j->bad, 0);
        for (uint32_t i = 0; i < j->n; i++) assert_int_equal(j->runs[i], 1);
        memset((void *)j, 0xee, offsetof(job, alive));
        j->alive = false;
        free(j);
    }
    lm_pool_destroy(p);
}

static void nap(long us) { nanosleep(&(struct timespec){0, us * 1000}, NULL); }

/* Uneven work with pauses, so that both sides really go to sleep. */
static void uneven(void *ctx, uint32_t task, uint32_t thread) {
    if (task % 5 == 0) nap(300);
    count(ctx, task, thread);
}
static void sleeping_and_waking(void **state) {
    (void)state;
    lm_pool *p;
    assert_int_equal(lm_pool_create(4, &p, NULL), LM_OK);
    static job j;
    for (int round = 0; round < 60; round++) {
        memset((void *)&j, 0, sizeof j);
        j.n = 11;
        j.threads = 4;
        j.alive = true;
        if (round % 3 == 0) nap(500);
        lm_pool_run(p, uneven, &j, j.n);
        for (uint32_t i = 0; i < j.n; i++) assert_int_equal(j.runs[i], 1);
    }
    lm_pool_destroy(p);
}

static void meet(void *ctx, uint32_t task, uint32_t thread) {
    (void)task;
    _Atomic uint32_t *here = ctx;
    atomic_fetch_or(here + 1, 1u << thread);
    atomic_fetch_add(here, 1);
    for (double until = lm_now() + 20; atomic_load(here) < atomic_load(here + 2) && lm_now() < until;) nap(50);
}
/* Tasks that wait for each other end only when as many threads take part. More threads than CPUs: none of them rests. */
static void all_take_part(void **state) {
    (void)state;
    const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    const uint32_t n = cpus < 4 ? 4 : (uint32_t)cpus + 1;
    if (n > 31) skip();
    lm_pool *p;
    assert_int_equal(lm_pool_create(n, &p, NULL), LM_OK);
    for (int round = 0; round < 20; round++) {
        _Atomic uint32_t here[3] = {0, 0, n};
        double t = lm_now();
        lm_pool_run(p, meet, (void *)here, n);
        assert_int_equal(here[0], n);
        assert_int_equal(here[1], (1u << n) - 1);
        assert_true(lm_now() - t < 15);
    }
    lm_pool_destroy(p);
}

static void idle_costs_nothing(void **state) {
    (void)state;
    lm_pool *p;
    assert_int_equal(lm_pool_create(2, &p, NULL), LM_OK);
    static job j = {.n = 100, .threads = 2, .alive = true};
    lm_pool_run(p, count, &j, j.n);
    nap(20000);
    struct rusage a, b;
    getrusage(RUSAGE_SELF, &a);
    nap(300000);
    getrusage(RUSAGE_SELF, &b);
    double used = (double)(b.ru_utime.tv_sec - a.ru_utime.tv_sec + b.ru_stime.tv_sec - a.ru_stime.tv_sec) +
                  (double)(b.ru_utime.tv_usec - a.ru_utime.tv_usec + b.ru_stime.tv_usec - a.ru_stime.tv_usec) * 1e-6;
    assert_true(used < 0.1);
    lm_pool_destroy(p);
}

/* A worker that is held up in the middle of a task, again and again: it must be left out, every task still runs once, and when nothing
 * holds it up any more it comes back. The caller's own tasks are short. */
static void held_up(void *ctx, uint32_t task, uint32_t thread) {
    if (thread) nap(5000);
    else nap(20); /* so that the worker gets to take one */
    count(ctx, task, thread);
}
static void late_worker_rests(void **state) {
    (void)state;
    if (lm_physical_cores() < 2) skip(); /* threads that share a CPU take turns */
    lm_pool *p;
    assert_int_equal(lm_pool_create(2, &p, NULL), LM_OK);
    static job j;
    double until = lm_now() + 10;
    while (lm_pool_resting(p) == 0 && lm_now() < until) {
        memset((void *)&j, 0, sizeof j);
        j = (job){.n = 8, .threads = 2, .alive = true};
        lm_pool_run(p, held_up, &j, j.n);
        for (uint32_t i = 0; i < j.n; i++) assert_int_equal(j.runs[i], 1);
        assert_int_equal(j.bad, 0);
    }
    assert_int_equal(lm_pool_resting(p), 1);
    const double t = lm_now();
    memset((void *)&j, 0, sizeof j);
    j = (job){.n = 50, .threads = 1, .alive = true}; /* thread 1 would be bad */
    lm_pool_run(p, held_up, &j, j.n);
    if (lm_now() - t < 0.015) /* or this process itself stood still for longer than the rest */
        assert_int_equal(j.bad, 0);
    for (uint32_t i = 0; i < j.n; i++) assert_int_equal(j.runs[i], 1);
    until = lm_now() + 10; /* a busy machine may keep it away: then nothing is learnt */
    while (lm_pool_resting(p) && lm_now() < until) {
        memset((void *)&j, 0, sizeof j);
        j = (job){.n = 8, .threads = 2, .alive = true};
        lm_pool_run(p, count, &j, j.n);
        for (uint32_t i = 0; i < j.n; i++) assert_int_equal(j.runs[i], 1);
    }
    lm_pool_destroy(p);
}
/* What a host takes away now and then is no neighbour: late by 8 milliseconds once, then by one in ten, a worker keeps its place. */
static void once_late(void *ctx, uint32_t task, uint32_t thread) {
    nap(thread ? 8000 : 20);
    count(ctx, task, thread);
}
static void sometimes_late(void *ctx, uint32_t task, uint32_t thread) {
    nap(thread ? 1000 : 20);
    count(ctx, task, thread);
}
static void a_little_late(void **state) {
    (void)state;
    if (lm_physical_cores() < 2) skip();
    bool kept = false;
    for (int attempt = 0; attempt < 5 && !kept; attempt++) { /* this machine may be busy */
        lm_pool *p;
        assert_int_equal(lm_pool_create(2, &p, NULL), LM_OK);
        kept = true;
        for (int i = 0; i < 20 && kept; i++) {
            static job j;
            memset((void *)&j, 0, sizeof j);
            j = (job){.n = 8, .threads = 2, .alive = true};
            lm_pool_run(p, i ? sometimes_late : once_late, &j, j.n);
            nap(10000);
            kept = lm_pool_resting(p) == 0;
        }
        lm_pool_destroy(p);
    }
    assert_true(kept);
}
/* Hints of any kind, of memory that is not there too, change nothing; ranges are where the jobs have them. */
static void hints(void **state) {
    (void)state;
    for (uint32_t threads = 1; threads <= 4; threads++) {
        lm_pool *p;
        assert_int_equal(lm_pool_create(threads, &p, NULL), LM_OK);
        const uint32_t ranges = lm_pool_ranges(p);
        assert_int_equal(lm_pool_first(p, 7, 0), 0);
        assert_int_equal(lm_pool_first(p, 7, ranges), 7);
        for (uint32_t round = 0; round < 200; round++) {
            static job j;
            char here[1000];
            const lm_span span[LM_POOL_SPANS] = {{here, sizeof here}, {NULL, 0}, {(void *)(uintptr_t)64, 1u << 20}, {&j, 1u << 30}};
            for (uint32_t r = 0; r < ranges; r++) lm_pool_ahead(p, r, span, round % (LM_POOL_SPANS + 1));
            memset((void *)&j, 0, sizeof j);
            j = (job){.n = 9, .threads = threads, .alive = true};
            lm_pool_run(p, count, &j, j.n);
            lm_pool_ask(p);
            for (uint32_t i = 0; i < j.n; i++) assert_int_equal(j.runs[i], 1);
            assert_int_equal(j.bad, 0);
        }
        lm_pool_destroy(p);
    }
}
static void destroyed_at_rest(void **state) {
    (void)state;
    if (lm_physical_cores() < 2) skip();
    for (int i = 0; i < 10; i++) {
        lm_pool *p;
        assert_int_equal(lm_pool_create(2, &p, NULL), LM_OK);
        static job j;
        for (const double until = lm_now() + 5; lm_pool_resting(p) == 0 && lm_now() < until;) {
            memset((void *)&j, 0, sizeof j);
            j = (job){.n = 4, .threads = 2, .alive = true};
            lm_pool_run(p, held_up, &j, j.n);
        }
        for (int k = 0; k < 10 * i; k++) { /* some are destroyed while they watch */
            memset((void *)&j, 0, sizeof j);
            j = (job){.n = 2, .threads = 2, .alive = true};
            nap(500);
            lm_pool_run(p, count, &j, j.n);
        }
        lm_pool_destroy(p);
    }
}

/* Bound to the last CPU that this process may use, a loop that never sleeps. Returns its process. */
static pid_t start_neighbour(void) {
    pid_t pid = fork();
    if (pid) return pid;
#if defined(__linux__)
    cpu_set_t all, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof all, &all) == 0)
        for (int cpu = CPU_SETSIZE - 1; cpu >= 0; cpu--)
            if (CPU_ISSET(cpu, &all)) {
                CPU_SET(cpu, &one);
                break;
            }
    sched_setaffinity(0, sizeof one, &one);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
    for (volatile uint64_t n = 0;; n++) {
    }
}
static void spin_task(void *ctx, uint32_t task, uint32_t thread) {
    volatile uint32_t x = 0;
    for (uint32_t i = 0; i < 20000; i++) x = x + i;
    count(ctx, task, thread);
}
static double jobs_per_second(uint32_t threads, double seconds) {
    lm_pool *p;
    assert_int_equal(lm_pool_create(threads, &p, NULL), LM_OK);
    static job j;
    uint32_t n = 0;
    const double t = lm_now();
    while (lm_now() < t + seconds) {
        memset((void *)&j, 0, sizeof j);
        j = (job){.n = 16, .threads = threads, .alive = true};
        lm_pool_run(p, spin_task, &j, j.n);
        for (uint32_t i = 0; i < j.n; i++) assert_int_equal(j.runs[i], 1);
        assert_int_equal(j.bad, 0);
        n++;
    }
    lm_pool_destroy(p);
    return n / seconds;
}
/* Beside a busy neighbour, jobs on all CPUs must stay near the speed of one thread. The bound is loose: the machine may have other
 * neighbours, and `lemma bench --neighbours` measures it properly. */
static void busy_neighbour(void **state) {
    (void)state;
    const uint32_t cores = lm_physical_cores();
    if (cores < 2 || cores > 8) skip();
    const pid_t pid = start_neighbour();
    assert_true(pid > 0);
    const double one = jobs_per_second(1, 0.3), all = jobs_per_second(cores, 0.6);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    print_message("jobs per second beside a busy neighbour: %.0f alone, %.0f with %u threads\n", one, all, cores);
    assert_true(all > 0.4 * one);
}

static void arithmetic(void *ctx, uint32_t task, uint32_t thread) {
    (void)thread;
    nap(200); /* so that every thread gets some */
    volatile float tiny = FLT_MIN, one = 1, ulp = 0x1p-24f;
    bool ok = lm_fp_env_ok();
    ok = ok && tiny / 4 == 0x1p-128f && tiny / 4 > 0;                       /* results are kept */
    ok = ok && (tiny / 4) * 4 == FLT_MIN;                                   /* operands too */
    ok = ok && one + ulp == 1 && one + 1.5f * ulp == 1 + 2 * ulp && -one - ulp == -1; /* to nearest, ties to even */
    ((bool *)ctx)[task] = ok;
}
static void floating_point(void **state) {
    (void)state;
    lm_pool *p;
    bool ok[64] = {0};
#if defined(__x86_64__)
    _mm_setcsr(0x1f80u | 0x8040u | 0x6000u); /* a host that flushes and truncates: threads would inherit it */
    assert_false(lm_fp_env_ok());
#endif
    assert_int_equal(lm_pool_create(4, &p, NULL), LM_OK);
    lm_pool_run(p, arithmetic, ok, 64);
    for (int i = 0; i < 64; i++) assert_true(ok[i]);
    assert_true(lm_fp_env_ok());
    lm_pool_destroy(p);
    lm_fp_env_set();
    assert_true(lm_fp_env_ok());
#if defined(__x86_64__)
    static const uint32_t bits[] = {0x8000, 0x0040, 0x2000, 0x4000};
    for (int i = 0; i < 4; i++) {
        _mm_setcsr(0x1f80u | bits[i]);
        assert_false(lm_fp_env_ok());
    }
    _mm_setcsr(0x1f80u | 0x3fu); /* flags that earlier operations raised mean nothing */
    assert_true(lm_fp_env_ok());
    lm_fp_env_set();
#endif
}

static void creation(void **state) {
    (void)state;
    lm_pool *p;
    lm_error e;
    assert_int_equal(lm_pool_create(100000, &p, &e), LM_RANGE);
    assert_null(p);
    for (uint64_t n = 1; n <= 2; n++) {
        lm_alloc_fail_after(n);
        assert_int_equal(lm_pool_create(2, &p, &e), LM_NOMEM);
        assert_null(p);
    }
    lm_alloc_fail_after(0);
    assert_int_equal(lm_pool_create(0, &p, &e), LM_OK);
    assert_int_equal(lm_pool_size(p), lm_physical_cores());
    lm_pool_destroy(p);
    lm_pool_destroy(NULL);
    for (int i = 0; i < 50; i++) { /* destroyed before its workers have slept once */
        assert_int_equal(lm_pool_create(3, &p, &e), LM_OK);
        lm_pool_destroy(p);
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    assert_in_range(lm_physical_cores(), 1, online);
    double a = lm_now();
    nap(2000);
    assert_in_range((uint64_t)((lm_now() - a) * 1e6), 2000, 5000000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_task_once),      cmocka_unit_test(late_workers),   cmocka_unit_test(sleeping_and_waking),
        cmocka_unit_test(all_take_part),       cmocka_unit_test(idle_costs_nothing), cmocka_unit_test(floating_point),
        cmocka_unit_test(creation),            cmocka_unit_test(late_worker_rests), cmocka_unit_test(destroyed_at_rest),
        cmocka_unit_test(a_little_late),       cmocka_unit_test(hints),             cmocka_unit_test(busy_neighbour),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
