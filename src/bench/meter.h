/* The machine's own limits, read again and again in the course of a run: what a result is a share of. */
#ifndef LM_BENCH_METER_H
#define LM_BENCH_METER_H
#include "base/status.h"
#include "bench/peaks.h"
#include "lemma/bench.h"

typedef struct lm_meter lm_meter;

/* One reading. Peaks are operations per second (a multiply-add is two), read is bytes per second; 0 where not asked for or not there. */
typedef struct lm_reading {
    double read, peak[LM_PEAK_COUNT];
} lm_reading;

/* Threads of its own, as many, and a buffer several times the size of the last cache, filled. */
lm_status lm_meter_create(uint32_t threads, lm_meter **out, lm_error *err);
void lm_meter_free(lm_meter *m);
uint64_t lm_meter_cache(const lm_meter *m); /* bytes of the largest cache */
/* Some tens of milliseconds: the best of a few passes each. `kinds`: bit k asks for peak k. LM_INTERNAL when a kernel's sum is wrong. */
lm_status lm_meter_take(lm_meter *m, unsigned kinds, lm_reading *out, lm_error *err);
/* All of them, with names. */
lm_status lm_meter_machine(lm_meter *m, lm_machine *out, lm_error *err);
#endif
