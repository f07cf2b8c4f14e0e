/* lm_profile: a tap takes the time from the end of one op to the end of the next. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "bench/run.h"

const char *lm_profile_group_name(lm_profile_group g) {
    static const char *const names[] = {"kind", "op", "layer", "total"};
    return names[g];
}

typedef struct cell { /* one op of the program */
    double seconds;
    uint32_t calls;
    lm_work work;
} cell;

typedef struct profile {
    const lm_profile_options *o;
    lm_rig rig;
    lm_reading limits;
    cell *cell; /* [n_ops] */
    double last;
} profile;

static bool on_op(void *ctx, const lm_program *p, const lm_op *op, const lm_rows *rows) {
    profile *f = ctx;
    cell *c = &f->cell[op - p->op];
    lm_work w = {0};
    c->seconds += lm_now() - f->last;
    c->calls++;
    lm_work_add(&f->rig.worker, op, &(lm_work_shape){.n_seqs = 1, .n = rows->n, .pos0 = rows->row[0], .wanted = rows->n}, &w);
    for (int k = 0; k < LM_PEAK_COUNT; k++) c->work.mac[k] += w.mac[k];
    c->work.attention_mac += w.attention_mac;
    c->work.pair_mac += w.pair_mac;
    c->work.weight_bytes += w.weight_bytes;
    c->work.cache_bytes += w.cache_bytes;
    f->last = lm_now(); /* what the tap itself took is nobody's */
    return true;
}

/* ---- rows -------------------------------------------------------------------------------------------------------------------------*/
/* "layer.3.attn.q" is op "attn.q" of "layer.3". */
static const char *role(const lm_op *op) {
    const char *dot = op->layer >= 0 && !strncmp(op->name, "layer.", 6) ? strchr(op->name + 6, '.') : NULL;
    return dot ? dot + 1 : op->name;
}
static bool together(lm_profile_group g, const lm_op *a, const lm_op *b) {
    switch (g) {
    case LM_PROFILE_KIND: return a->kind == b->kind;
    case LM_PROFILE_OP: return !strcmp(role(a), role(b));
    case LM_PROFILE_LAYER: return a->layer == b->layer;
    default: return true;
    }
}

static lm_profile_row sum(const profile *f, lm_bench_test phase, lm_profile_group g, const lm_op *first, char layer[24]) {
    const lm_program *p = f->rig.engine->program;
    lm_profile_row r = {.phase = phase, .group = g};
    for (const lm_op *op = first; op < p->op + p->n_ops; op++) {
        const cell *c = &f->cell[op - p->op];
        if (!together(g, first, op)) continue;
        r.calls += c->calls;
        r.seconds += c->seconds;
        r.ops += 2 * (lm_work_macs(&c->work) + c->work.attention_mac);
        r.weight_bytes += c->work.weight_bytes;
        r.cache_bytes += c->work.cache_bytes;
        r.bound_s += lm_work_bound(&c->work, &f->limits);
    }
    snprintf(layer, 24, first->layer < 0 ? "outside" : "layer.%d", first->layer);
    r.name = g == LM_PROFILE_KIND ? lm_op_name(first->kind) : g == LM_PROFILE_OP ? role(first) : g == LM_PROFILE_LAYER ? layer : "all ops";
    r.share_of_limit = r.seconds > 0 ? r.bound_s / r.seconds : 0;
    return r;
}

static int slower_first(const void *a, const void *b) {
    const lm_profile_row *x = a, *y = b;
    return (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

static lm_status report(const profile *f, lm_bench_test phase, double plain, lm_error *err) {
    const lm_program *p = f->rig.engine->program;
    lm_profile_row *row = lm_calloc(p->n_ops, sizeof *row);
    char(*layer)[24] = lm_calloc(p->n_ops, sizeof *layer), unused[24];
    if (!row || !layer) {
        lm_free(row);
        lm_free(layer);
        return lm_fail_nomem(err, "the profile's rows", p->n_ops * sizeof *row);
    }
    lm_profile_row total = sum(f, phase, LM_PROFILE_TOTAL, p->op, unused);
    total.plain_s = plain;
    total.share_of_time = 1;
    for (lm_profile_group g = LM_PROFILE_KIND; g < LM_PROFILE_TOTAL; g++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < p->n_ops; i++) {
            bool seen = false;
            for (uint32_t j = 0; j < i && !seen; j++) seen = together(g, &p->op[j], &p->op[i]);
            if (seen) continue;
            row[n] = sum(f, phase, g, &p->op[i], layer[n]);
            row[n].share_of_time = total.seconds > 0 ? row[n].seconds / total.seconds : 0;
            n++;
        }
        if (g != LM_PROFILE_LAYER) qsort(row, n, sizeof *row, slower_first);
        for (uint32_t i = 0; i < n; i++)
            if (f->o->row && row[i].calls) f->o->row(f->o->ctx, &row[i]);
    }
    if (f->o->row) f->o->row(f->o->ctx, &total);
    lm_free(row);
    lm_free(layer);
    return LM_OK;
}

/* ---- phases -----------------------------------------------------------------------------------------------------------------------*/
static lm_status once(profile *f, lm_session *s, lm_bench_test phase, uint32_t n, bool taps, double *seconds, lm_error *err) {
    const uint32_t runs = phase == LM_BENCH_DECODE ? n : 1, each = phase == LM_BENCH_DECODE ? 1 : n;
    const double start = lm_now();
    for (uint32_t i = 0; i < runs; i++) {
        f->last = lm_now();
        LM_TRY(lm_bench_step(&f->rig, &s, 1, each, true, NULL, taps ? on_op : NULL, f, err));
    }
    *seconds = lm_now() - start;
    return LM_OK;
}

/* The mean of the limits before and after; none on reading where the weights stay in the cache. */
static void set_limits(profile *f, const lm_reading *a, const lm_reading *b) {
    f->limits.read = f->rig.config.cached ? INFINITY : (a->read + b->read) / 2;
    for (int k = 0; k < LM_PEAK_COUNT; k++) f->limits.peak[k] = (a->peak[k] + b->peak[k]) / 2;
}

/* The phase from `base` on: a warm-up, once plain, once with taps. */
static lm_status phase_from(profile *f, const lm_session *base, lm_bench_test phase, uint32_t n, lm_error *err) {
    const lm_program *p = f->rig.engine->program;
    double plain = 0, tapped;
    lm_reading before, after;
    memset(f->cell, 0, p->n_ops * sizeof *f->cell);
    LM_TRY(lm_meter_take(f->rig.meter, f->rig.worker.kinds, &before, err));
    for (int i = 0; i < 3; i++) {
        lm_session *s = NULL;
        if (f->o->progress && !f->o->progress(f->o->progress_ctx, lm_bench_test_name(phase), (uint64_t)i, 3))
            return lm_fail(err, LM_INTERRUPTED, "interrupted");
        LM_TRY(lm_session_fork(base, &s, err));
        const lm_status st = once(f, s, phase, n, i == 2, i == 2 ? &tapped : &plain, err);
        lm_session_free(s);
        if (st != LM_OK) return st;
    }
    if (f->o->progress) f->o->progress(f->o->progress_ctx, lm_bench_test_name(phase), 3, 3);
    LM_TRY(lm_meter_take(f->rig.meter, f->rig.worker.kinds, &after, err));
    set_limits(f, &before, &after);
    return report(f, phase, plain, err);
}

static lm_status machine(const profile *f, bool after, lm_error *err) {
    lm_machine m;
    LM_TRY(lm_meter_machine(f->rig.meter, &m, err));
    if (f->o->machine) f->o->machine(f->o->ctx, &f->rig.config, &m, after);
    return LM_OK;
}

static lm_status phases(profile *f, lm_error *err) {
    const lm_profile_options *o = f->o;
    lm_session *s = NULL;
    LM_TRY(machine(f, false, err));
    LM_TRY(lm_session_create(f->rig.engine, o->chunk, &s, err));
    lm_status st = o->prompt ? phase_from(f, s, LM_BENCH_PREFILL, o->prompt, err) : LM_OK;
    if (st == LM_OK && o->predict && o->prompt) st = lm_bench_step(&f->rig, &s, 1, o->prompt, false, NULL, NULL, NULL, err);
    if (st == LM_OK && o->predict) st = phase_from(f, s, LM_BENCH_DECODE, o->predict, err);
    lm_session_free(s);
    return st == LM_OK ? machine(f, true, err) : st;
}

lm_status lm_profile(const char *model, const lm_profile_options *o, lm_error *err) {
    profile f = {.o = o};
    if (!o->prompt && !o->predict) return lm_fail(err, LM_USAGE, "there is nothing to profile: give a prompt's length, or steps to decode");
    const lm_rig_options ro = {o->cpu_level, o->lane, o->kv, o->threads, o->progress, o->progress_ctx, o->interrupted, o->interrupted_ctx};
    LM_TRY(lm_rig_open(model, &ro, &f.rig, err));
    f.cell = lm_calloc(f.rig.engine->program->n_ops, sizeof *f.cell);
    const lm_status st = f.cell ? phases(&f, err) : lm_fail_nomem(err, "the profile", f.rig.engine->program->n_ops * sizeof *f.cell);
    lm_free(f.cell);
    lm_rig_close(&f.rig);
    return st;
}
