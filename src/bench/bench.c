/* lm_bench: every repeat is timed between two readings of the limits, and its share is of their mean: limits drift, and on some machines
 * bandwidth jumps between two values. The median share is therefore not the median rate over one limit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "bench/neighbours.h"
#include "bench/run.h"

enum { MAX_REPEATS = 1000, WARM_STEPS = 16 };

const char *lm_bench_test_name(lm_bench_test t) { return t == LM_BENCH_PREFILL ? "prefill" : "decode"; }

typedef struct bench {
    const lm_bench_options *o;
    lm_rig rig;
    lm_reading last;                                            /* the newest reading of the limits */
    double *rate, *compute, *layers, *read, *read_all, *peak, *read_gbs; /* [repeats] */
} bench;

/* ---- numbers ----------------------------------------------------------------------------------------------------------------------*/
static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static lm_spread spread(double *v, uint32_t n) {
    qsort(v, n, sizeof *v, compare);
    return (lm_spread){.median = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2, .min = v[0], .max = v[n - 1]};
}

static void add_work(const bench *b, const lm_work_shape *at, lm_work *to) {
    const lm_program *p = b->rig.engine->program;
    for (uint32_t i = 0; i < p->n_ops; i++) lm_work_add(&b->rig.worker, &p->op[i], at, to);
}

/* What a repeat took: all of it, and its layers where they were timed. */
typedef struct taken {
    double all, layers;
} taken;
/* One timed repeat: `work` in `steps` equal steps (cache_bytes: of all of them), the readings around it. layers: what of a step's work is
 * theirs; NULL: not timed */
static lm_status note(bench *b, uint32_t i, taken t, double tokens, const lm_work *step, const lm_work *layers, uint32_t steps,
                      double cache_bytes, lm_error *err) {
    const double seconds = t.all;
    const lm_reading before = b->last;
    LM_TRY(lm_meter_take(b->rig.meter, b->rig.worker.kinds, &b->last, err));
    lm_reading r = {.read = (before.read + b->last.read) / 2};
    for (int k = 0; k < LM_PEAK_COUNT; k++) r.peak[k] = (before.peak[k] + b->last.peak[k]) / 2;
    const double least = lm_work_product_time(step, &r) * steps;
    b->rate[i] = tokens / seconds;
    b->compute[i] = least / seconds;
    b->layers[i] = layers ? lm_work_product_time(layers, &r) * steps / t.layers : 0;
    b->read[i] = step->weight_bytes * steps / r.read / seconds;
    b->read_all[i] = (step->weight_bytes * steps + cache_bytes) / r.read / seconds;
    b->peak[i] = 2 * lm_work_macs(step) * steps / least / 1e9;
    b->read_gbs[i] = r.read / 1e9;
    return LM_OK;
}

static void report(bench *b, lm_bench_row row) {
    const uint32_t n = b->o->repeats;
    row.repeats = n;
    row.rate = spread(b->rate, n);
    row.compute = spread(b->compute, n);
    row.layers = spread(b->layers, n);
    row.read = spread(b->read, n);
    row.read_all = spread(b->read_all, n);
    row.peak_gops = spread(b->peak, n).median;
    row.read_gbs = spread(b->read_gbs, n).median;
    if (b->o->row) b->o->row(b->o->ctx, &b->rig.config, &row);
}

static lm_status say(const bench *b, const char *what, uint32_t done, lm_error *err) {
    const lm_bench_options *o = b->o;
    if (!o->progress || o->progress(o->progress_ctx, what, done, o->repeats)) return LM_OK;
    return lm_fail(err, LM_INTERRUPTED, "interrupted in %s", what);
}

/* ---- prefill ----------------------------------------------------------------------------------------------------------------------*/
static lm_status prefill_once(bench *b, uint32_t n, taken *t, lm_error *err) {
    lm_session *s = NULL;
    lm_neighbours *beside = NULL;
    LM_TRY(lm_session_create(b->rig.engine, b->o->chunk, &s, err));
    lm_status st = lm_neighbours_start(b->o->neighbours, &beside, err);
    const double start = lm_now();
    double at_head = start;
    if (st == LM_OK) st = lm_bench_step(&b->rig, &s, 1, n, true, &at_head, NULL, NULL, err);
    *t = (taken){lm_now() - start, at_head - start};
    lm_neighbours_stop(beside);
    lm_session_free(s);
    return st;
}

static lm_status prefill(bench *b, uint32_t n, lm_error *err) {
    char what[64];
    lm_work work = {0}, layers = {0};
    taken t;
    snprintf(what, sizeof what, "prefill %u, %s, %u threads", n, b->rig.config.lane, b->rig.config.threads);
    add_work(b, &(lm_work_shape){.n_seqs = 1, .n = n, .wanted = 1}, &work);
    add_work(b, &(lm_work_shape){.n_seqs = 1, .n = n, .wanted = 0}, &layers);
    LM_TRY(prefill_once(b, n, &t, err));
    LM_TRY(lm_meter_take(b->rig.meter, b->rig.worker.kinds, &b->last, err));
    for (uint32_t i = 0; i < b->o->repeats; i++) {
        LM_TRY(say(b, what, i, err));
        LM_TRY(prefill_once(b, n, &t, err));
        LM_TRY(note(b, i, t, n, &work, &layers, 1, work.cache_bytes, err));
    }
    LM_TRY(say(b, what, b->o->repeats, err));
    report(b, (lm_bench_row){.test = LM_BENCH_PREFILL,
                             .tokens = n,
                             .batch = 1,
                             .ops = 2 * lm_work_macs(&work),
                             .layers_ops = 2 * lm_work_macs(&layers),
                             .weight_bytes = work.weight_bytes,
                             .cache_bytes = work.cache_bytes});
    return LM_OK;
}

/* ---- decode -----------------------------------------------------------------------------------------------------------------------*/
static lm_status fork_all(const lm_session *base, lm_session **s, uint32_t n, lm_error *err) {
    for (uint32_t i = 0; i < n; i++) LM_TRY(lm_session_fork(base, &s[i], err));
    return LM_OK;
}
static void free_all(lm_session **s, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) lm_session_free(s[i]);
}

static lm_status decode_once(const bench *b, const lm_session *base, uint32_t batch, uint32_t steps, taken *t, lm_error *err) {
    lm_session **s = lm_calloc(batch, sizeof *s);
    if (!s) return lm_fail_nomem(err, "the sessions of a batch", batch * sizeof *s);
    lm_neighbours *beside = NULL;
    lm_status st = fork_all(base, s, batch, err);
    if (st == LM_OK) st = lm_neighbours_start(b->o->neighbours, &beside, err);
    const double start = lm_now();
    for (uint32_t i = 0; st == LM_OK && i < steps; i++) st = lm_bench_step(&b->rig, s, batch, 1, true, NULL, NULL, NULL, err);
    *t = (taken){.all = lm_now() - start};
    lm_neighbours_stop(beside);
    free_all(s, batch);
    lm_free(s);
    return st;
}

static lm_status decode(bench *b, const lm_session *base, uint32_t batch, lm_error *err) {
    const uint32_t steps = b->o->predict, depth = lm_session_length(base);
    char what[80];
    lm_work all = {0}, step = {0};
    taken t;
    snprintf(what, sizeof what, "decode at %u, batch %u, %s, %u threads", depth, batch, b->rig.config.lane, b->rig.config.threads);
    add_work(b, &(lm_work_shape){.n_seqs = batch, .n = 1, .pos0 = depth, .wanted = 1}, &step);
    for (uint32_t i = 0; i < steps; i++) add_work(b, &(lm_work_shape){.n_seqs = batch, .n = 1, .pos0 = depth + i, .wanted = 1}, &all);
    LM_TRY(decode_once(b, base, batch, steps < WARM_STEPS ? steps : WARM_STEPS, &t, err));
    LM_TRY(lm_meter_take(b->rig.meter, b->rig.worker.kinds, &b->last, err));
    for (uint32_t i = 0; i < b->o->repeats; i++) {
        LM_TRY(say(b, what, i, err));
        LM_TRY(decode_once(b, base, batch, steps, &t, err));
        LM_TRY(note(b, i, t, (double)steps * batch, &step, NULL, steps, all.cache_bytes, err));
    }
    LM_TRY(say(b, what, b->o->repeats, err));
    report(b, (lm_bench_row){.test = LM_BENCH_DECODE,
                             .tokens = steps,
                             .depth = depth,
                             .batch = batch,
                             .ops = 2 * lm_work_macs(&step) * steps,
                             .weight_bytes = step.weight_bytes,
                             .cache_bytes = all.cache_bytes / steps});
    return LM_OK;
}

static lm_status decode_at(bench *b, uint32_t depth, lm_error *err) {
    lm_session *base = NULL;
    LM_TRY(lm_session_create(b->rig.engine, b->o->chunk, &base, err));
    lm_status st = depth ? lm_bench_step(&b->rig, &base, 1, depth, false, NULL, NULL, NULL, err) : LM_OK;
    for (uint32_t i = 0; st == LM_OK && i < b->o->n_batches; i++) st = decode(b, base, b->o->batch[i], err);
    lm_session_free(base);
    return st;
}

/* ---- the whole --------------------------------------------------------------------------------------------------------------------*/
static lm_status machine(bench *b, bool after, lm_error *err) {
    lm_machine m;
    LM_TRY(lm_meter_machine(b->rig.meter, &m, err));
    if (b->o->machine) b->o->machine(b->o->ctx, &b->rig.config, &m, after);
    return LM_OK;
}

static lm_rig_options options(const lm_bench_options *o, uint32_t lane, uint32_t threads) {
    return (lm_rig_options){.cpu_level = o->cpu_level,
                            .lane = o->n_lanes ? o->lane[lane] : NULL,
                            .kv = o->kv,
                            .threads = o->n_threads ? o->threads[threads] : 0,
                            .progress = o->progress,
                            .progress_ctx = o->progress_ctx,
                            .interrupted = o->interrupted,
                            .interrupted_ctx = o->interrupted_ctx};
}

static lm_status config(bench *b, uint32_t lane, uint32_t threads, lm_error *err) {
    const lm_bench_options *o = b->o;
    const lm_rig_options ro = options(o, lane, threads);
    if (lane || threads) LM_TRY(lm_rig_change(&b->rig, &ro, err));
    LM_TRY(machine(b, false, err));
    for (uint32_t i = 0; i < o->n_prompts; i++) LM_TRY(prefill(b, o->prompt[i], err));
    for (uint32_t i = 0; o->predict && i < o->n_depths; i++) LM_TRY(decode_at(b, o->depth[i], err));
    return machine(b, true, err);
}

static lm_status check(const lm_bench_options *o, lm_error *err) {
    if (!o->repeats || o->repeats > MAX_REPEATS) return lm_fail(err, LM_RANGE, "%u repeats: give 1 to %d", o->repeats, MAX_REPEATS);
    if (!o->n_prompts && (!o->predict || !o->n_depths || !o->n_batches))
        return lm_fail(err, LM_USAGE, "there is nothing to measure: give prompt lengths, or steps to decode");
    for (uint32_t i = 0; i < o->n_prompts; i++)
        if (!o->prompt[i]) return lm_fail(err, LM_RANGE, "a prompt of 0 tokens has no speed");
    for (uint32_t i = 0; i < o->n_batches; i++)
        if (!o->batch[i]) return lm_fail(err, LM_RANGE, "a batch of 0 sequences has no speed");
    const char *const *known = lm_backend_by_name("cpu")->lanes;
    for (uint32_t i = 0, k; i < o->n_lanes; i++) { /* before the lanes in front of it are measured */
        for (k = 0; known[k] && strcmp(known[k], o->lane[i]);) k++;
        if (!known[k])
            return lm_fail_at(err, LM_USAGE, NULL, LM_NO_OFFSET, "lane",
                              "the cpu backend has no lane '%.40s': use f32, i16, mixed, i8 or bf16", o->lane[i]);
    }
    return LM_OK;
}

/* From the last lane to the first: what one of them refuses (the weights, say) is said before any is measured. */
static lm_status open_rig(bench *b, const char *model, lm_error *err) {
    uint32_t lane = b->o->n_lanes ? b->o->n_lanes - 1 : 0;
    lm_rig_options ro = options(b->o, lane, 0);
    LM_TRY(lm_rig_open(model, &ro, &b->rig, err));
    while (lane) {
        ro = options(b->o, --lane, 0);
        LM_TRY(lm_rig_change(&b->rig, &ro, err));
    }
    return LM_OK;
}

lm_status lm_bench(const char *model, const lm_bench_options *o, lm_error *err) {
    LM_TRY(check(o, err));
    double *v = lm_calloc((size_t)7 * o->repeats, sizeof *v);
    if (!v) return lm_fail_nomem(err, "the samples", 7 * o->repeats * sizeof *v);
    const size_t n = o->repeats;
    bench b = {.o = o, .rate = v, .compute = v + n, .read = v + 2 * n, .read_all = v + 3 * n, .peak = v + 4 * n, .read_gbs = v + 5 * n,
               .layers = v + 6 * n};
    lm_status st = open_rig(&b, model, err);
    for (uint32_t l = 0; st == LM_OK && l < (o->n_lanes ? o->n_lanes : 1); l++)
        for (uint32_t t = 0; st == LM_OK && t < (o->n_threads ? o->n_threads : 1); t++) st = config(&b, l, t, err);
    lm_rig_close(&b.rig);
    lm_free(v);
    return st;
}
