#include "bench/meter.h"

#include <stdatomic.h>
#include <stdio.h>

#include "base/mem.h"
#include "base/threads.h"

enum { PASSES = 3, PEAK_TASKS = 8 /* per thread */, SLICE = 4 << 20 /* bytes of a reading task */ };
#define MIN_BUFFER (UINT64_C(256) << 20)
#define MAX_BUFFER (UINT64_C(512) << 20)
#define USUAL_CACHE (UINT64_C(32) << 20) /* where the system doesn't say */

struct lm_meter {
    lm_pool *pool;
    uint64_t *buffer, words, sum; /* sum: what adding all words gives */
    uint64_t cache, steps_of[LM_PEAK_COUNT];
    /* of the job that runs */
    const lm_peak *peak;
    const lm_stream *stream;
    int form; /* of the stream */
    uint64_t steps;
    _Atomic uint64_t total;
};

/* Of the largest cache that the first CPU sees. The C library's own answer counts the caches of other CPUs on some machines. */
static uint64_t cache_bytes(void) {
    uint64_t most = 0;
    for (int i = 0; i < 8; i++) {
        char path[64], unit = 0;
        unsigned long n = 0;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        FILE *f = fopen(path, "r");
        if (!f) continue;
        if (fscanf(f, "%lu%c", &n, &unit) == 2 && n < (1u << 20)) {
            const uint64_t bytes = (uint64_t)n << (unit == 'K' ? 10 : unit == 'M' ? 20 : 0);
            most = bytes > most ? bytes : most;
        }
        fclose(f);
    }
    return most ? most : USUAL_CACHE;
}
static uint64_t buffer_bytes(uint64_t cache) {
    const uint64_t want = 8 * cache < MIN_BUFFER ? MIN_BUFFER : 8 * cache > MAX_BUFFER ? MAX_BUFFER : 8 * cache;
    return want / SLICE * SLICE;
}

/* Word i is i: wrong pages, skipped ones and ones read twice all change the sum. */
static void fill_task(void *ctx, uint32_t task, uint32_t thread) {
    lm_meter *m = ctx;
    (void)thread;
    const uint64_t n = SLICE / sizeof *m->buffer, first = task * n;
    for (uint64_t i = first; i < first + n; i++) m->buffer[i] = i;
}
static void read_task(void *ctx, uint32_t task, uint32_t thread) {
    lm_meter *m = ctx;
    (void)thread;
    const uint64_t n = SLICE / sizeof *m->buffer;
    atomic_fetch_add_explicit(&m->total, m->stream->sum[m->form](m->buffer + task * n, n), memory_order_relaxed);
}
static void peak_task(void *ctx, uint32_t task, uint32_t thread) {
    lm_meter *m = ctx;
    (void)task, (void)thread;
    atomic_fetch_add_explicit(&m->total, m->peak->run(m->steps), memory_order_relaxed);
}

lm_status lm_meter_create(uint32_t threads, lm_meter **out, lm_error *err) {
    lm_meter *m = lm_calloc(1, sizeof *m);
    if (!m) return lm_fail_nomem(err, "the meter", sizeof *m);
    m->cache = cache_bytes();
    const uint64_t bytes = buffer_bytes(m->cache);
    lm_status s = lm_pool_create(threads, &m->pool, err);
    m->words = bytes / sizeof *m->buffer;
    m->sum = m->words / 2 * (m->words - 1);
    m->stream = lm_stream_best();
    if (s == LM_OK && !(m->buffer = lm_pages_alloc(bytes, true))) s = lm_fail_nomem(err, "the buffer that measures read bandwidth", bytes);
    if (s != LM_OK) {
        lm_meter_free(m);
        return s;
    }
    lm_pool_run(m->pool, fill_task, m, (uint32_t)(bytes / SLICE));
    *out = m;
    return LM_OK;
}

void lm_meter_free(lm_meter *m) {
    if (!m) return;
    if (m->buffer) lm_pages_free(m->buffer, m->words * sizeof *m->buffer);
    lm_pool_destroy(m->pool);
    lm_free(m);
}

uint64_t lm_meter_cache(const lm_meter *m) { return m->cache; }

/* Runs the job PASSES times; the shortest time, or −1 when the total was not what it must be. */
static double best_time(lm_meter *m, lm_task_fn fn, uint32_t tasks, uint64_t want) {
    double best = 0;
    for (int i = 0; i < PASSES; i++) {
        atomic_store(&m->total, 0);
        const double start = lm_now();
        lm_pool_run(m->pool, fn, m, tasks);
        const double t = lm_now() - start;
        if (atomic_load(&m->total) != want) return -1;
        if (!i || t < best) best = t;
    }
    return best;
}

/* Steps that take some tenths of a millisecond: a task. */
static uint64_t find_steps(const lm_peak *p) {
    for (uint64_t n = 1 << 10;; n *= 2) {
        const double start = lm_now();
        p->run(n);
        if (lm_now() - start > 2e-4 || n == 1 << 20) return n;
    }
}

lm_status lm_meter_take(lm_meter *m, unsigned kinds, lm_reading *out, lm_error *err) {
    *out = (lm_reading){0};
    double t;
    for (m->form = 0; m->form < LM_STREAM_FORMS; m->form++) {
        t = best_time(m, read_task, (uint32_t)(m->words * sizeof *m->buffer / SLICE), m->sum);
        if (t <= 0) return lm_fail(err, LM_INTERNAL, "the loop that measures read bandwidth (%s) adds wrongly", m->stream->how);
        const double rate = (double)m->words * sizeof *m->buffer / t;
        out->read = rate > out->read ? rate : out->read;
    }
    for (int k = 0; k < LM_PEAK_COUNT; k++) {
        if (!(kinds >> k & 1) || !(m->peak = lm_peak_best((lm_peak_kind)k))) continue;
        const uint32_t tasks = PEAK_TASKS * lm_pool_size(m->pool);
        if (!m->steps_of[k]) m->steps_of[k] = find_steps(m->peak);
        m->steps = m->steps_of[k];
        t = best_time(m, peak_task, tasks, tasks * m->steps * m->peak->macs);
        if (t <= 0) return lm_fail(err, LM_INTERNAL, "the loop that measures a peak (%s) adds wrongly", m->peak->how);
        out->peak[k] = 2.0 * (double)(tasks * m->steps) * m->peak->macs / t;
    }
    return LM_OK;
}

lm_status lm_meter_machine(lm_meter *m, lm_machine *out, lm_error *err) {
    lm_reading r;
    const char *how[LM_PEAK_COUNT];
    LM_TRY(lm_meter_take(m, ~0u, &r, err));
    for (int k = 0; k < LM_PEAK_COUNT; k++) how[k] = r.peak[k] > 0 ? lm_peak_best((lm_peak_kind)k)->how : "";
    *out = (lm_machine){
        .threads = lm_pool_size(m->pool),
        .read_gbs = r.read / 1e9,
        .int8_gops = r.peak[LM_PEAK_INT8] / 1e9,
        .bf16_gflops = r.peak[LM_PEAK_BF16] / 1e9,
        .f32_gflops = r.peak[LM_PEAK_F32] / 1e9,
        .read_how = m->stream->how,
        .int8_how = how[LM_PEAK_INT8],
        .bf16_how = how[LM_PEAK_BF16],
        .f32_how = how[LM_PEAK_F32],
        .buffer_bytes = m->words * sizeof *m->buffer,
        .cache_bytes = m->cache,
    };
    return LM_OK;
}
