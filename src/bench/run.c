#include "bench/run.h"

#include "base/mem.h"
#include "base/rng.h"

#define SEED UINT64_C(0x6c656d6d61)

static lm_engine_options engine_options(const lm_rig_options *o) {
    return (lm_engine_options){
        .backend = "cpu",
        .fast = true,
        .device = {.threads = o->threads, .lane = o->lane, .kv = o->kv, .cpu_level = o->cpu_level},
        .progress = {o->progress, o->progress_ctx},
        .interrupted = o->interrupted,
        .interrupted_ctx = o->interrupted_ctx,
    };
}

/* What goes with the engine's device; a meter of as many threads is kept. */
static lm_status equip(lm_rig *r, uint32_t threads, double load, lm_error *err) {
    if (r->meter && r->config.threads != threads) {
        lm_meter_free(r->meter);
        r->meter = NULL;
    }
    if (!r->meter) LM_TRY(lm_meter_create(threads, &r->meter, err));
    lm_worker_free(&r->worker);
    LM_TRY(lm_worker_create(r->engine, &r->worker, err));
    uint32_t files;
    r->config = (lm_bench_config){
        .arch = r->engine->arch->name,
        .lane = r->engine->opt.device.lane ? r->engine->opt.device.lane : r->engine->backend->lanes[0],
        .device = r->engine->backend->describe(r->engine->device),
        .threads = threads,
        .load_s = load,
    };
    lm_engine_touched(r->engine, &files, &r->config.weight_bytes);
    r->config.cached = r->config.weight_bytes <= lm_meter_cache(r->meter);
    return LM_OK;
}

lm_status lm_rig_open(const char *model, const lm_rig_options *o, lm_rig *out, lm_error *err) {
    const lm_engine_options eo = engine_options(o);
    lm_rig r = {0};
    const double start = lm_now();
    LM_TRY(lm_engine_open(model, &eo, &r.engine, err));
    const lm_status s = equip(&r, o->threads ? o->threads : lm_physical_cores(), lm_now() - start, err);
    if (s != LM_OK) {
        lm_rig_close(&r);
        return s;
    }
    *out = r;
    return LM_OK;
}

lm_status lm_rig_change(lm_rig *r, const lm_rig_options *o, lm_error *err) {
    const lm_engine_options eo = engine_options(o);
    const double start = lm_now();
    bool kept;
    LM_TRY(lm_engine_change(r->engine, &eo, &kept, err));
    return equip(r, o->threads ? o->threads : lm_physical_cores(), kept ? r->config.load_s : lm_now() - start, err);
}

void lm_rig_close(lm_rig *r) {
    lm_worker_free(&r->worker);
    lm_meter_free(r->meter);
    lm_engine_close(r->engine);
    *r = (lm_rig){0};
}

int32_t lm_bench_id(const lm_rig *r, uint32_t sequence, uint32_t position) {
    return (int32_t)(lm_uniform(SEED, sequence, position) * r->engine->program->vocab);
}

static bool sink(void *ctx, const lm_rows *rows) {
    (void)ctx, (void)rows;
    return true;
}

static void note_time(void *ctx) { *(double *)ctx = lm_now(); }

lm_status lm_bench_step(const lm_rig *r, lm_session *const *s, uint32_t n_s, uint32_t n, bool logits, double *at_head, lm_tap_fn tap,
                        void *tap_ctx, lm_error *err) {
    uint64_t rows;
    if (!lm_mul(n_s, n, &rows) || rows > INT32_MAX)
        return lm_fail(err, LM_RANGE, "%u sequences of %u tokens are too many for one batch", n_s, n);
    int32_t *id = lm_calloc(rows, sizeof *id);
    lm_eval *ev = lm_calloc(n_s, sizeof *ev);
    lm_status st = id && ev ? LM_OK : lm_fail_nomem(err, "a batch", rows * sizeof *id);
    for (uint32_t i = 0; st == LM_OK && i < n_s; i++) {
        for (uint32_t j = 0; j < n; j++) id[(size_t)i * n + j] = lm_bench_id(r, i, lm_session_length(s[i]) + j);
        ev[i] = (lm_eval){.id = id + (size_t)i * n,
                          .n = n,
                          .want = logits ? LM_WANT_LAST : LM_WANT_NONE,
                          .logits = logits ? sink : NULL,
                          .head = at_head ? note_time : NULL,
                          .head_ctx = at_head,
                          .tap = tap,
                          .tap_ctx = tap_ctx};
    }
    if (st == LM_OK) st = lm_sessions_eval(s, ev, n_s, err);
    lm_free(id);
    lm_free(ev);
    return st;
}
