#include "bench/neighbours.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"

struct lm_neighbours {
    uint32_t n;
    pthread_t thread[LM_MOST_NEIGHBOURS];
    _Atomic uint32_t running, stop;
};

#if defined(__linux__)
static void *neighbour(void *arg) {
    lm_neighbours *b = arg;
    atomic_fetch_add(&b->running, 1);
    while (!atomic_load_explicit(&b->stop, memory_order_relaxed)) {
    }
    return NULL;
}

/* The CPU `steps` before the last of the set, counting round. */
static int nth_last(const cpu_set_t *set, uint32_t steps) {
    steps %= (uint32_t)CPU_COUNT(set);
    for (int cpu = CPU_SETSIZE - 1; cpu >= 0; cpu--)
        if (CPU_ISSET(cpu, set) && steps-- == 0) return cpu;
    return 0;
}
static int start_one(lm_neighbours *b, const cpu_set_t *all) {
    cpu_set_t one;
    pthread_attr_t attr;
    CPU_ZERO(&one);
    CPU_SET(nth_last(all, b->n), &one);
    int e = pthread_attr_init(&attr);
    if (e) return e;
    e = pthread_attr_setaffinity_np(&attr, sizeof one, &one);
    if (!e) e = pthread_create(&b->thread[b->n], &attr, neighbour, b);
    pthread_attr_destroy(&attr);
    if (!e) b->n++;
    return e;
}

lm_status lm_neighbours_start(uint32_t n, lm_neighbours **out, lm_error *err) {
    *out = NULL;
    if (!n) return LM_OK;
    if (n > LM_MOST_NEIGHBOURS) return lm_fail(err, LM_RANGE, "%u busy neighbours: at most %d are possible", n, LM_MOST_NEIGHBOURS);
    cpu_set_t all;
    if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) == 0)
        return lm_fail(err, LM_UNSUPPORTED, "this system does not say which CPUs a busy neighbour could be bound to");
    lm_neighbours *b = lm_calloc(1, sizeof *b);
    if (!b) return lm_fail_nomem(err, "busy neighbours", sizeof *b);
    for (uint32_t i = 0; i < n; i++) {
        const int e = start_one(b, &all);
        if (!e) continue;
        lm_neighbours_stop(b);
        return lm_fail(err, LM_MISSING, "cannot start busy neighbour %u of %u: %s", i + 1, n, strerror(e));
    }
    while (atomic_load(&b->running) < n) sched_yield();
    *out = b;
    return LM_OK;
}
#else
lm_status lm_neighbours_start(uint32_t n, lm_neighbours **out, lm_error *err) {
    *out = NULL;
    return n ? lm_fail(err, LM_UNSUPPORTED, "busy neighbours need a system that binds threads to CPUs: leave them out") : LM_OK;
}
#endif

void lm_neighbours_stop(lm_neighbours *b) {
    if (!b) return;
    atomic_store(&b->stop, 1);
    for (uint32_t i = 0; i < b->n; i++) pthread_join(b->thread[i], NULL);
    lm_free(b);
}
