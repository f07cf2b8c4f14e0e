/* G4: the same bits, whatever is changed around the computation. One axis at a time against one baseline run: threads, chunks, CPU levels,
 * company in the batch, sessions cut, forked and restored, taps. `full` adds the grid. Every logit's bytes go into a sha256, and into one
 * per position, so that a difference is found without holding the logits.
 */
#include "verify/verify.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { POSITIONS = 64, COPIES = 4 };

typedef enum mode { COLD, TAPS, TRUNCATED, FORKED, RESTORED, COMPANY, COPIED } mode;

typedef struct config {
    uint32_t threads;  /* 0: the baseline's */
    const char *level; /* NULL: the baseline's */
    const char *lane;  /* NULL: the baseline's */
    uint32_t chunk;    /* 0: the baseline's */
    mode mode;
    const char *name;
} config;

typedef struct stream {
    uint8_t row[POSITIONS][32];
    uint32_t rows; /* that came, in order */
    bool stray;    /* one came out of turn */
    lm_sha256 all;
    char hex[65];
    double *keep; /* when set, row keep_at goes here */
    uint32_t keep_at;
} stream;

typedef struct grid {
    lm_judge *j;
    int32_t id[POSITIONS], other[POSITIONS];
    uint32_t n;
    stream base;
    lm_engine *e; /* the engine of a config that differs from the baseline's, kept while configs go on asking for it */
    config of;
    uint32_t runs, expected;
} grid;

static bool on_logits(void *ctx, const lm_rows *rows) {
    stream *s = ctx;
    size_t bytes = (size_t)rows->width * (rows->is_f64 ? sizeof(double) : sizeof(float));
    for (uint32_t i = 0; i < rows->n; i++) {
        const uint8_t *p = (const uint8_t *)rows->data + i * bytes;
        lm_sha256 h;
        if (s->rows >= POSITIONS || rows->row[i] != s->rows) return !(s->stray = true);
        lm_sha256_init(&h);
        lm_sha256_update(&h, p, bytes);
        lm_sha256_final(&h, s->row[s->rows]);
        lm_sha256_update(&s->all, p, bytes);
        if (s->keep && s->keep_at == s->rows) lm_rows_f64(rows, i, s->keep);
        s->rows++;
    }
    return true;
}

static bool ignore_logits(void *ctx, const lm_rows *rows) { return ctx == NULL && rows != NULL; }

static bool ignore_tap(void *ctx, const lm_program *p, const lm_op *op, const lm_rows *rows) {
    (void)ctx;
    return p && op && rows;
}

static void begin(stream *s) {
    s->rows = 0;
    s->stray = false;
    lm_sha256_init(&s->all);
}

static lm_status end(stream *s, uint32_t n, lm_error *err) {
    uint8_t d[32];
    if (s->rows != n) return lm_fail(err, LM_INTERNAL, "%u rows of logits came for %u positions", s->rows, n);
    lm_sha256_final(&s->all, d);
    lm_sha256_hex(d, s->hex);
    return LM_OK;
}

/* ---- one configuration ----------------------------------------------------------------------------------------------------------- */
static lm_eval part(const grid *g, const int32_t *id, uint32_t from, uint32_t to, stream *s) {
    return (lm_eval){.id = id + from,
                     .n = to - from,
                     .length = g->n,
                     .want = s ? LM_WANT_ALL : LM_WANT_NONE,
                     .logits = s ? on_logits : NULL,
                     .logits_ctx = s};
}

static lm_status eval(const grid *g, lm_session *x, const int32_t *id, uint32_t from, uint32_t to, stream *s, lm_error *err) {
    lm_eval ev = part(g, id, from, to, s);
    return lm_session_eval(x, &ev, err);
}

static lm_status restored(const grid *g, lm_session *x, lm_session *y, stream *s, lm_error *err) {
    uint32_t half = g->n / 2;
    uint8_t *bytes = NULL;
    uint64_t n = 0;
    LM_TRY(eval(g, x, g->id, 0, half, s, err));
    LM_TRY(lm_session_save(x, &bytes, &n, err));
    lm_status st = lm_session_restore(y, bytes, n, err);
    lm_free(bytes);
    LM_TRY(st);
    return eval(g, y, g->id, half, g->n, s, err);
}

/* The second half after a detour; what the first half left in the cache serves both. */
static lm_status by_session(const grid *g, lm_engine *e, const config *c, stream *s, lm_error *err) {
    uint32_t half = g->n / 2;
    lm_session *x = NULL, *y = NULL;
    lm_status st = lm_session_create(e, c->chunk, &x, err);
    if (st == LM_OK && c->mode == RESTORED) {
        st = lm_session_create(e, c->chunk, &y, err);
        if (st == LM_OK) st = restored(g, x, y, s, err);
    } else if (st == LM_OK) {
        st = eval(g, x, g->id, 0, half, s, err);
        if (st == LM_OK && c->mode == FORKED) st = lm_session_fork(x, &y, err);
        if (st == LM_OK) st = eval(g, x, g->other, half, g->n, NULL, err);
        if (st == LM_OK && c->mode == TRUNCATED) st = lm_session_truncate(x, half, err);
        if (st == LM_OK) st = eval(g, y ? y : x, g->id, half, g->n, s, err);
    }
    lm_session_free(y);
    lm_session_free(x);
    return st;
}

/* The sequence in the middle of a batch, with two others of other lengths or with copies of itself; in two steps. */
static lm_status in_company(const grid *g, lm_engine *e, const config *c, stream *s, lm_error *err) {
    bool copies = c->mode == COPIED;
    uint32_t n = copies ? COPIES : 3, half = g->n / 2;
    lm_session *x[COPIES] = {0};
    lm_eval ev[COPIES];
    stream mine[COPIES];
    lm_status st = LM_OK;
    for (uint32_t i = 0; i < n && st == LM_OK; i++) {
        mine[i] = *s;
        begin(&mine[i]);
        st = lm_session_create(e, c->chunk, &x[i], err);
    }
    for (uint32_t step = 0; step < 2 && st == LM_OK; step++) {
        for (uint32_t i = 0; i < n; i++) {
            bool target = copies || i == 1;
            uint32_t from = step ? half : 0, to = step ? g->n : half;
            if (!target && i == 2) to = from + (to - from + 2) / 3; /* a shorter neighbour */
            ev[i] = part(g, target ? g->id : g->other, from, to, target ? &mine[i] : NULL);
            if (target) continue;
            ev[i].want = LM_WANT_ALL;
            ev[i].logits = ignore_logits;
        }
        st = lm_sessions_eval(x, ev, n, err);
    }
    for (uint32_t i = 0; i < n; i++) lm_session_free(x[i]);
    for (uint32_t i = 0; i < n; i++) s->stray |= mine[i].stray;
    LM_TRY(st);
    uint32_t pick = copies ? n - 1 : 1;
    for (uint32_t i = 0; copies && i < n; i++)
        if (memcmp(mine[i].row, g->base.row, g->n * sizeof *mine[i].row)) pick = i; /* one that differs, if any does */
    *s = mine[pick];
    return LM_OK;
}

static bool same_engine(const config *a, const config *b) { return a->threads == b->threads && a->level == b->level && a->lane == b->lane; }

static lm_status engine_for(grid *g, const config *c, lm_engine **out, lm_error *err) {
    if (!c->threads && !c->level && !c->lane) return *out = g->j->e, LM_OK;
    if (!g->e || !same_engine(&g->of, c)) {
        lm_engine_options eo = g->j->eo;
        lm_engine_close(g->e);
        g->e = NULL;
        if (c->threads) eo.device.threads = c->threads;
        if (c->level) eo.device.cpu_level = c->level;
        if (c->lane) eo.device.lane = c->lane;
        LM_TRY(lm_engine_share(g->j->e, &eo, &g->e, err));
        g->of = *c;
    }
    return *out = g->e, LM_OK;
}

static lm_status run_config(grid *g, const config *c, stream *s, lm_error *err) {
    lm_engine *e;
    lm_status st;
    LM_TRY(engine_for(g, c, &e, err));
    if (!lm_judge_progress(g->j, "determinism", g->runs < g->expected ? g->runs : g->expected, g->expected))
        return lm_fail(err, LM_INTERRUPTED, "interrupted");
    g->runs++;
    begin(s);
    if (c->mode == COMPANY || c->mode == COPIED) {
        st = in_company(g, e, c, s, err);
    } else if (c->mode != COLD && c->mode != TAPS) {
        st = by_session(g, e, c, s, err);
    } else {
        lm_session *x = NULL;
        lm_eval ev = part(g, g->id, 0, g->n, s);
        if (c->mode == TAPS) ev.tap = ignore_tap;
        st = lm_session_create(e, c->chunk, &x, err);
        if (st == LM_OK) st = lm_session_eval(x, &ev, err);
        lm_session_free(x);
    }
    if (s->stray) return lm_fail(err, LM_INTERNAL, "logits of position %u came out of turn", s->rows);
    return st == LM_OK ? end(s, g->n, err) : st;
}

/* ---- claims -------------------------------------------------------------------------------------------------------------------------- */
static lm_status claim(grid *g, lm_verdict v, const char *name, const char *measured, const char *sha, const char *note, lm_error *err) {
    lm_claim c = {.verdict = v,
                  .section = "G4",
                  .name = name,
                  .bound = measured ? "the same bits" : "",
                  .measured = measured,
                  .sha256 = sha,
                  .note = note};
    return lm_ledger_add(g->j->l, &c, err);
}

/* Both runs again, for the values at the first position that differs. */
static const char *counterexample(grid *g, const config *c, const stream *s, lm_error *err, lm_status *st) {
    lm_judge *j = g->j;
    uint32_t at = 0, vocab = j->e->program->vocab, id = 0;
    while (at < g->n && !memcmp(s->row[at], g->base.row[at], 32)) at++;
    stream a = {.keep = j->ours, .keep_at = at}, b = {.keep = j->ref, .keep_at = at};
    *st = run_config(g, c, &a, err);
    if (*st == LM_OK) *st = run_config(g, &(config){.mode = COLD}, &b, err);
    if (*st != LM_OK) return "";
    while (id < vocab && !memcmp(&j->ours[id], &j->ref[id], sizeof *j->ref)) id++;
    if (id == vocab) return lm_say(j->l, "%s: position %u differed once and agreed when run again", c->name, at);
    return lm_say(j->l, "%s: position %u, id %u: %.9g, alone and at once %.9g", c->name, at, id, j->ours[id], j->ref[id]);
}

static lm_status axis(grid *g, const char *name, const config *c, uint32_t n, lm_error *err) {
    const char *names = "";
    for (uint32_t i = 0; i < n; i++) {
        stream s = {0};
        LM_TRY(run_config(g, &c[i], &s, err));
        names = lm_say(g->j->l, "%s%s%s", names, i ? ", " : "", c[i].name);
        if (!memcmp(s.row, g->base.row, g->n * sizeof *s.row) && !strcmp(s.hex, g->base.hex)) continue;
        lm_status st;
        const char *note = counterexample(g, &c[i], &s, err, &st);
        LM_TRY(st);
        return claim(g, LM_REFUTED, name, lm_say(g->j->l, "%s differs", c[i].name), s.hex[0] ? lm_say(g->j->l, "%s", s.hex) : NULL, note,
                     err);
    }
    return claim(g, LM_PROVEN, name, lm_say(g->j->l, "%s", names), lm_say(g->j->l, "%s", g->base.hex), NULL, err);
}

static const uint32_t thread_counts[] = {1, 2, 3, 8};
static const char *const levels[] = {"c", "avx2", "avx512", "neon"};
#if defined(__x86_64__)
enum { FIRST_FOREIGN = 3, LAST_FOREIGN = 3 };
#else
enum { FIRST_FOREIGN = 1, LAST_FOREIGN = 2 };
#endif

static bool foreign(uint32_t level) { return level >= FIRST_FOREIGN && level <= LAST_FOREIGN; }

/* Lanes whose bits don't depend on the instruction set (D5). */
static bool has_levels(const grid *g) { return strcmp(g->j->e->backend->name, "f64") != 0; }

static bool lane_is_portable(const lm_judge *j) {
    const char *lane = j->eo.device.lane;
    return !lane || !strcmp(lane, "f32") || !strcmp(lane, "i16") || !strcmp(lane, "mixed") || !strcmp(lane, "i8") || !strcmp(lane, "bf16");
}

static bool unavailable(lm_status st) { return st == LM_MISSING || st == LM_UNSUPPORTED; }

static lm_status level_axis(grid *g, lm_error *err) {
    for (uint32_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        const char *name = lm_say(g->j->l, "CPU level %s", levels[i]);
        config c = {.level = levels[i], .name = levels[i]};
        lm_engine *e;
        lm_error why = {0};
        if (foreign(i)) {
            LM_TRY(claim(g, LM_OPEN, name, NULL, NULL, i == 3 ? "needs an AArch64 machine, or qemu-user" : "needs an x86-64 machine", err));
            continue;
        }
        lm_status st = engine_for(g, &c, &e, &why);
        if (unavailable(st)) {
            LM_TRY(claim(g, LM_OPEN, name, NULL, NULL, lm_say(g->j->l, "needs a CPU with %s: %s", levels[i], why.message), err));
        } else if (st != LM_OK) {
            if (err) *err = why;
            return st;
        } else {
            LM_TRY(axis(g, name, &c, 1, err));
        }
    }
    return LM_OK;
}

static uint32_t chunk_configs(grid *g, config out[4]) {
    static const uint32_t chunks[] = {1, 7, 32};
    uint32_t n = 0;
    for (uint32_t i = 0; i < 3; i++)
        if (chunks[i] < g->n) out[n++] = (config){.chunk = chunks[i], .name = lm_say(g->j->l, "%u", chunks[i])};
    out[n++] = (config){.chunk = g->n, .name = "whole"};
    return n;
}

/* That a lane of quantized activations really ran: its logits are not those of f32. */
static lm_status lane_axis(grid *g, lm_error *err) {
    const char *lane = g->j->eo.device.lane;
    config c = {.lane = "f32", .name = "lane f32"};
    stream s = {0};
    if (!lane || !strcmp(lane, "f32")) return LM_OK;
    LM_TRY(run_config(g, &c, &s, err));
    if (strcmp(s.hex, g->base.hex))
        return claim(g, LM_PROVEN, lm_say(g->j->l, "lane %s really ran", lane), "its logits differ from lane f32's",
                     lm_say(g->j->l, "%s", g->base.hex), NULL, err);
    return claim(g, LM_OPEN, lm_say(g->j->l, "lane %s really ran", lane), NULL, NULL,
                 "its logits equal lane f32's: needs a model with products that concern the lane", err);
}

static lm_status one_axis_at_a_time(grid *g, lm_error *err) {
    static const config session[] = {{.mode = TRUNCATED, .name = "cut and refilled"},
                                     {.mode = FORKED, .name = "forked"},
                                     {.mode = RESTORED, .name = "saved and restored"}};
    static const config company[] = {{.mode = COMPANY, .name = "two others"}, {.mode = COPIED, .name = "four copies"}};
    static const config taps = {.mode = TAPS, .name = "all on"}, again = {.mode = COLD, .name = "cold"};
    config c[4];
    LM_TRY(axis(g, "second run", &again, 1, err));
    for (uint32_t i = 0; i < 4; i++) c[i] = (config){.threads = thread_counts[i], .name = lm_say(g->j->l, "%u", thread_counts[i])};
    LM_TRY(axis(g, "threads", c, 4, err));
    uint32_t n = chunk_configs(g, c);
    LM_TRY(axis(g, "chunks", c, n, err));
    LM_TRY(axis(g, "company in the batch", company, 2, err));
    LM_TRY(axis(g, "sessions", session, 3, err));
    LM_TRY(axis(g, "taps", &taps, 1, err));
    if (!has_levels(g)) return LM_OK;
    if (lane_is_portable(g->j)) LM_TRY(level_axis(g, err));
    LM_TRY(lane_axis(g, err));
    return claim(g, LM_OPEN, "tensor-parallel degree", NULL, NULL, "needs a build that runs over several ranks", err);
}

/* Every combination of level, threads and chunk with taps off and on, and of level and threads with every session and company. */
static lm_status whole_grid(grid *g, lm_error *err) {
    static const mode modes[] = {TAPS, TRUNCATED, FORKED, RESTORED, COMPANY, COPIED};
    uint32_t n_levels = !has_levels(g) || !lane_is_portable(g->j) ? 1 : (uint32_t)(sizeof levels / sizeof *levels), n_configs = 0;
    for (uint32_t l = 0; l < n_levels; l++) {
        if (n_levels > 1 && foreign(l)) continue;
        for (uint32_t t = 0; t < 4; t++) {
            config all[16], chunk[4];
            uint32_t n = chunk_configs(g, chunk), k = 0;
            config like = {.level = n_levels > 1 ? levels[l] : NULL, .threads = thread_counts[t]};
            lm_engine *e;
            lm_error why = {0};
            if (unavailable(engine_for(g, &like, &e, &why))) break;
            for (uint32_t i = 0; i < 2 * n + 5; i++) {
                config *c = &all[k++];
                *c = like;
                c->chunk = i < 2 * n ? chunk[i / 2].chunk : 0;
                c->mode = i < 2 * n ? (i % 2 ? TAPS : COLD) : modes[i - 2 * n + 1];
                c->name = lm_say(g->j->l, "level %s, %u threads, chunk %u, way %u", like.level ? like.level : "best", like.threads,
                                 c->chunk, (unsigned)c->mode);
            }
            for (uint32_t i = 0; i < k; i++) {
                stream s = {0};
                lm_status st;
                LM_TRY(run_config(g, &all[i], &s, err));
                n_configs++;
                if (!strcmp(s.hex, g->base.hex)) continue;
                const char *note = counterexample(g, &all[i], &s, err, &st);
                LM_TRY(st);
                return claim(g, LM_REFUTED, "the whole grid", lm_say(g->j->l, "%s differs", all[i].name), lm_say(g->j->l, "%s", s.hex),
                             note, err);
            }
        }
    }
    return claim(g, LM_PROVEN, "the whole grid", lm_say(g->j->l, "%u configurations", n_configs), lm_say(g->j->l, "%s", g->base.hex), NULL,
                 err);
}

lm_status lm_judge_determinism(lm_judge *j, lm_error *err) {
    const lm_trace_case *c = &j->t->c[0];
    grid g = {.j = j, .expected = j->o->determinism == LM_DETERMINISM_FULL ? 180 : 20};
    for (uint32_t i = 1; i < j->t->n_cases; i++)
        if (j->t->c[i].n > c->n) c = &j->t->c[i];
    for (; g.n < POSITIONS && g.n < c->n + c->n_greedy; g.n++) g.id[g.n] = g.n < c->n ? c->ids[g.n] : c->greedy[g.n - c->n];
    if (g.n < 2) return claim(&g, LM_OPEN, "determinism", NULL, NULL, "needs a case of two tokens or more", err);
    for (uint32_t i = 0; i < g.n; i++) g.other[i] = g.id[g.n - 1 - i];
    lm_status st =
        j->e->backend->exact ? LM_OK : claim(&g, LM_OPEN, "determinism", NULL, NULL, "an approximate mode: it promises replay only", err);
    if (st == LM_OK) st = run_config(&g, &(config){.mode = COLD}, &g.base, err);
    if (st == LM_OK && j->e->backend->exact) st = one_axis_at_a_time(&g, err);
    if (st == LM_OK && j->e->backend->exact && j->o->determinism == LM_DETERMINISM_FULL) st = whole_grid(&g, err);
    if (st == LM_OK && !lm_judge_progress(j, "determinism", g.expected, g.expected)) st = lm_fail(err, LM_INTERRUPTED, "interrupted");
    lm_engine_close(g.e);
    return st;
}
