/* base/threads: each task once, on one thread at a time, all done at return, the arithmetic the contract needs, no idle burn. */
#include "check.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

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
    for (double until = lm_now() + 20; atomic_load(here) < 4 && lm_now() < until;) nap(50);
}
/* four tasks that wait for each other end only when four threads take part */
static void all_take_part(void **state) {
    (void)state;
    lm_pool *p;
    assert_int_equal(lm_pool_create(4, &p, NULL), LM_OK);
    for (int round = 0; round < 20; round++) {
        _Atomic uint32_t here[2] = {0};
        double t = lm_now();
        lm_pool_run(p, meet, (void *)here, 4);
        assert_int_equal(here[0], 4);
        assert_int_equal(here[1], 0xf);
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
        cmocka_unit_test(creation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
