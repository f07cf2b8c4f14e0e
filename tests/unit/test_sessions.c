/* Sessions of every fixture, on both backends: however a sequence came to be (chunks, token by token, saved and restored, forked, cut and
 * refilled, grown across a longrope border or around a window's ring), its logits are those of one whole run, bit for bit. */
#include "base/mem.h"
#include "check.h"
#include "engine/model.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char *const backends[] = {"cpu", "f64"};
enum { T_CPU = 280 /* past a page of 256 */, T_F64 = 44, MAX_CUTS = 24 };

typedef struct bench {
    const char *what; /* fixture and backend, for messages */
    lm_engine *e;
    uint32_t n, vocab, element; /* tokens, row width, bytes of a logit */
    int32_t *id;
    uint8_t *whole; /* [n][vocab] logits of one run over all n */
    uint8_t *got;
    uint32_t cut[MAX_CUTS], n_cuts;
    uint32_t border; /* of a longrope table; 0: none */
} bench;

static void must(const bench *b, const char *step, lm_status s, const lm_error *err) {
    if (s != LM_OK) fail_msg("%s, %s: %s %s", b->what, step, err->field, err->message);
}

typedef struct sink { const bench *b; uint8_t *out; } sink;
static bool take(void *ctx, const lm_rows *rows) {
    sink *s = ctx;
    size_t row = (size_t)s->b->vocab * s->b->element;
    for (uint32_t i = 0; i < rows->n; i++) memcpy(s->out + rows->row[i] * row, (const uint8_t *)rows->data + i * row, row);
    return true;
}
/* Tokens [from, to) of `id` into s; their logits into out. length: what is announced (0: nothing). */
static void eval_ids(const bench *b, lm_session *s, const int32_t *id, uint32_t from, uint32_t to, uint32_t length, uint8_t *out) {
    lm_error err = {0};
    sink k = {b, out};
    lm_eval ev = {.id = id + from, .n = to - from, .length = length, .want = LM_WANT_ALL, .logits = take, .logits_ctx = &k};
    if (from < to) must(b, "eval", lm_session_eval(s, &ev, &err), &err);
}
static void eval(const bench *b, lm_session *s, uint32_t from, uint32_t to) { eval_ids(b, s, b->id, from, to, b->n, b->got); }

static lm_session *fresh(const bench *b, uint32_t chunk) {
    lm_session *s = NULL;
    lm_error err = {0};
    must(b, "session", lm_session_create(b->e, chunk, &s, &err), &err);
    return s;
}
static void forget(bench *b) { memset(b->got, 0xEE, (size_t)b->n * b->vocab * b->element); }
/* Rows [from, to) of got are those of `want`. */
static void same_as(const bench *b, const uint8_t *want, uint32_t from, uint32_t to, const char *what, uint32_t at) {
    size_t row = (size_t)b->vocab * b->element;
    for (uint32_t i = from; i < to; i++)
        if (memcmp(b->got + i * row, want + i * row, row))
            fail_msg("%s: %s %u: the logits at position %u of %u differ from one whole run's", b->what, what, at, i, b->n);
}
static void same(const bench *b, uint32_t from, uint32_t to, const char *what, uint32_t at) { same_as(b, b->whole, from, to, what, at); }

/* ---- a fixture, opened ------------------------------------------------------------------------------------------------------------*/
static void add_cut(bench *b, uint32_t at) {
    for (uint32_t i = 0; i < b->n_cuts; i++)
        if (b->cut[i] == at) return;
    if (at && at < b->n && b->n_cuts < MAX_CUTS) b->cut[b->n_cuts++] = at;
}
static void add_around(bench *b, uint32_t at) {
    for (uint32_t d = 0; d < 3; d++) add_cut(b, at + d - 1);
}

static void open_bench(bench *b, const char *path, const char *backend, const char *what) {
    lm_error err = {0};
    *b = (bench){.what = what};
    lm_engine_options o = {.backend = backend, .device = {.threads = 2}};
    must(b, "open", lm_engine_open(path, &o, &b->e, &err), &err);
    const lm_program *p = b->e->program;
    bool arbiter = !strcmp(backend, "f64");
    b->vocab = p->vocab;
    b->element = arbiter ? sizeof(double) : sizeof(float);
    b->n = arbiter ? T_F64 : T_CPU;
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->op[i].kind == LM_OP_EMBED && p->op[i].embed.by_position && p->op[i].embed.max_position < b->n)
            b->n = p->op[i].embed.max_position;
    b->id = calloc(b->n, sizeof *b->id);
    for (uint32_t i = 0; i < b->n; i++) b->id[i] = (int32_t)((i * 7919u + i * i * 31u + 5) % (b->vocab - 16));
    b->whole = calloc((size_t)b->n * b->vocab, b->element);
    b->got = calloc((size_t)b->n * b->vocab, b->element);
    add_cut(b, 1);
    add_cut(b, b->n - 1);
    for (uint32_t i = 0; i < p->n_slots; i++)
        if (p->slot[i].window) add_around(b, p->slot[i].window), add_around(b, 2 * p->slot[i].window);
    for (uint32_t i = 0; i < p->n_ropes; i++)
        if (p->rope[i].border) add_around(b, b->border = p->rope[i].border);
    add_around(b, 256);
    add_cut(b, 37);
    lm_session *s = fresh(b, 0);
    eval_ids(b, s, b->id, 0, b->n, b->n, b->whole);
    lm_session_free(s);
}
static void close_bench(bench *b) {
    lm_engine_close(b->e);
    free(b->id);
    free(b->whole);
    free(b->got);
}

/* ---- what is done to it ---------------------------------------------------------------------------------------------------------------*/
static void chunks(bench *b) {
    const uint32_t size[] = {7, 32, 1};
    for (int i = 0; i < 3; i++) {
        lm_session *s = fresh(b, size[i]);
        forget(b);
        eval(b, s, 0, b->n);
        same(b, 0, b->n, "chunks of", size[i]);
        lm_session_free(s);
    }
    lm_session *s = fresh(b, 0);
    forget(b);
    for (uint32_t i = 0; i < b->n; i++) eval(b, s, i, i + 1);
    same(b, 0, b->n, "token by token", 1);
    lm_session_free(s);
}

static void saved(bench *b) {
    lm_error err = {0};
    for (uint32_t i = 0; i < b->n_cuts; i++) {
        uint32_t k = b->cut[i];
        lm_session *s = fresh(b, 0), *t = fresh(b, 0);
        uint8_t *bytes = NULL;
        uint64_t n = 0;
        eval(b, s, 0, k);
        must(b, "save", lm_session_save(s, &bytes, &n, &err), &err);
        lm_session_free(s);
        must(b, "restore", lm_session_restore(t, bytes, n, &err), &err);
        lm_free(bytes);
        assert_int_equal(lm_session_length(t), k);
        forget(b);
        eval(b, t, k, b->n);
        same(b, k, b->n, "saved and restored at", k);
        lm_session_free(t);
    }
}

/* At the cut a second sequence leaves with other tokens, turn by turn; neither changes the other. */
static void forked(bench *b) {
    lm_error err = {0};
    size_t all = (size_t)b->n * b->vocab * b->element;
    uint8_t *other = calloc(1, all), *mine = calloc(1, all), *swap = b->got;
    int32_t *id = calloc(b->n, sizeof *id);
    for (uint32_t i = 0; i < b->n_cuts; i++) {
        uint32_t k = b->cut[i], mid = k + (b->n - k) / 2;
        for (uint32_t j = 0; j < b->n; j++) id[j] = j < k ? b->id[j] : (b->id[j] + 3) % (int32_t)(b->vocab - 16);
        lm_session *alone = fresh(b, 0), *s = fresh(b, 0), *t = NULL;
        eval_ids(b, alone, id, 0, b->n, b->n, other);
        lm_session_free(alone);
        eval(b, s, 0, k);
        must(b, "fork", lm_session_fork(s, &t, &err), &err);
        forget(b);
        eval_ids(b, t, id, k, mid, b->n, mine);
        eval(b, s, k, mid);
        eval_ids(b, t, id, mid, b->n, b->n, mine);
        eval(b, s, mid, b->n);
        same(b, k, b->n, "the sequence forked from at", k);
        b->got = mine;
        same_as(b, other, k, b->n, "the fork at", k);
        b->got = swap;
        lm_session_free(s);
        lm_session_free(t);
    }
    free(id);
    free(mine);
    free(other);
}

static void truncated(bench *b) {
    lm_error err = {0};
    lm_session *s = fresh(b, 0);
    eval(b, s, 0, b->n);
    for (uint32_t i = 0; i <= b->n_cuts; i++) {
        uint32_t k = i < b->n_cuts ? b->cut[i] : 0;
        must(b, "truncate", lm_session_truncate(s, k, &err), &err);
        assert_int_equal(lm_session_length(s), k);
        forget(b);
        eval(b, s, k, b->n);
        same(b, k, b->n, "cut back and refilled from", k);
    }
    for (uint32_t k = b->n; k > 1; k -= 1 + k / 5) { /* ever shorter, and only then refilled */
        must(b, "truncate", lm_session_truncate(s, k - 1, &err), &err);
        eval(b, s, k - 1, k);
        same(b, k - 1, k, "cut back step by step to", k - 1);
    }
    lm_session_free(s);
}

/* Unannounced growth across the border: each length's last row is that of a fresh run at that length. */
static void grown(bench *b) {
    if (!b->border) return;
    lm_session *s = fresh(b, 0);
    size_t all = (size_t)b->n * b->vocab * b->element;
    uint8_t *want = calloc(1, all);
    eval_ids(b, s, b->id, 0, b->border - 2, 0, b->got);
    for (uint32_t k = b->border - 1; k <= b->border + 2; k++) {
        lm_session *alone = fresh(b, 0);
        eval_ids(b, alone, b->id, 0, k, 0, want);
        lm_session_free(alone);
        eval_ids(b, s, b->id, k - 1, k, 0, b->got);
        same_as(b, want, k - 1, k, "grown over the longrope border to", k);
    }
    if (!memcmp(b->got + (size_t)(b->border - 2) * b->vocab * b->element, b->whole + (size_t)(b->border - 2) * b->vocab * b->element,
                (size_t)b->vocab * b->element))
        fail_msg("%s: the two longrope sets give the same logits", b->what);
    free(want);
    lm_session_free(s);
}

/* One engine at another level with other threads keeps its weights; in a lane that packs them otherwise, and back, it doesn't: the same
 * bits. */
static void changed(bench *b) {
    const bool cpu = strstr(b->what, " on cpu") != NULL;
    const lm_device_options way[] = {
        {.threads = 3, .cpu_level = cpu ? "c" : NULL}, {.threads = 1, .lane = cpu ? "bf16" : NULL}, {.threads = 2}};
    const uint32_t n = b->n < 40 ? b->n : 40;
    if (b->border) return; /* fewer tokens have the other longrope set */
    for (uint32_t i = 0; i < sizeof way / sizeof *way; i++) {
        lm_error err = {0};
        const lm_engine_options o = {.backend = cpu ? "cpu" : "f64", .device = way[i]};
        bool kept = !cpu;
        const uint64_t bytes = b->e->backend->memory(b->e->device);
        const lm_status st = lm_engine_change(b->e, &o, &kept, &err);
        if (i == 1 && st == LM_UNSUPPORTED) return; /* of weights of other types */
        must(b, "change", st, &err);
        if (kept != (cpu && !i)) fail_msg("%s: change %u %s the weights", b->what, i, kept ? "kept" : "did not keep");
        if (!i && b->e->backend->memory(b->e->device) != bytes) fail_msg("%s: other threads, other memory", b->what);
        if (i == 1 && cpu) continue;
        lm_session *s = fresh(b, 0);
        forget(b);
        eval_ids(b, s, b->id, 0, n, 0, b->got);
        same(b, 0, n, "change", i);
        lm_session_free(s);
    }
}

/* A change that fails at any allocation leaves an engine that can be closed. */
static void change_fails(void **state) {
    (void)state;
    const char *const lane[] = {"i8", "bf16", "f33"};
    for (uint32_t l = 0; l < 3; l++)
        for (uint64_t n = 1, failed = 1; failed; n++) {
            bench b = {.what = "llama"};
            lm_error err = {0};
            lm_engine_options o = {.backend = "cpu", .device = {.threads = 2}};
            must(&b, "open", lm_engine_open("tests/fixtures/llama", &o, &b.e, &err), &err);
            bool kept;
            o.device.lane = lane[l];
            lm_alloc_fail_after(n);
            const lm_status st = lm_engine_change(b.e, &o, &kept, &err);
            lm_alloc_fail_after(0);
            failed = st == LM_NOMEM;
            if (!failed && st != (l == 2 ? LM_UNSUPPORTED : LM_OK)) fail_msg("lane %s: %s", lane[l], err.message);
            lm_engine_close(b.e);
        }
}

/* A step of decoding allocates nothing, unless it opens a page of the cache. */
static void allocates_nothing(bench *b) {
    if (strstr(b->what, " on f64") || b->n < 60 || b->border) return; /* the arbiter dequantizes as it goes; a border rebuilds the cache */
    lm_session *s = fresh(b, 0);
    lm_error err = {0};
    sink k = {b, b->got};
    eval(b, s, 0, 30);
    for (uint32_t i = 30; i < 60; i++) {
        const uint64_t before = lm_alloc_count();
        lm_eval ev = {.id = b->id + i, .n = 1, .want = LM_WANT_LAST, .logits = take, .logits_ctx = &k};
        must(b, "eval", lm_session_eval(s, &ev, &err), &err);
        if (i > 31 && lm_alloc_count() != before)
            fail_msg("%s: decoding at %u allocates %llu times", b->what, i, (unsigned long long)(lm_alloc_count() - before));
    }
    lm_session_free(s);
}

/* A recurrent state's runs end on page borders, where it can be gone back to; nobody else's are cut there. */
typedef struct runs { uint32_t n, across; } runs;
static bool count_runs(void *ctx, const lm_program *p, const lm_op *op, const lm_rows *rows) {
    runs *r = ctx;
    if (op != p->op) return true;
    r->n++;
    r->across += rows->row[0] / 256 != rows->row[rows->n - 1] / 256;
    return true;
}
static void cut_at_pages(bench *b) {
    if (b->n <= 256) return;
    bool recurrent = false;
    for (uint32_t i = 0; i < b->e->program->n_slots; i++)
        recurrent = recurrent || b->e->program->slot[i].kind == LM_CACHE_CONV || b->e->program->slot[i].kind == LM_CACHE_DELTA;
    lm_session *s = fresh(b, b->n);
    lm_error err = {0};
    runs r = {0, 0};
    must(b, "eval", lm_session_eval(s, &(lm_eval){.id = b->id, .n = b->n, .tap = count_runs, .tap_ctx = &r}, &err), &err);
    if (r.n != (recurrent ? 2 : 1) || r.across == recurrent) fail_msg("%s: %u runs, %u across a border", b->what, r.n, r.across);
    lm_session_free(s);
}

/* ---- the fixtures -------------------------------------------------------------------------------------------------------------------*/
static void each(void (*fn)(bench *)) {
    const char *root = "tests/fixtures";
    DIR *d = opendir(root);
    if (!d) fail_msg("cannot list %s: run the tests from the repository root", root);
    uint32_t done = 0;
    for (struct dirent *e; (e = readdir(d));) {
        char path[512], config[600], what[600];
        snprintf(path, sizeof path, "%s/%s", root, e->d_name);
        snprintf(config, sizeof config, "%s/config.json", path);
        /* the tower: 48 layers of what gemma has */
        if (e->d_name[0] == '.' || !strcmp(e->d_name, "tower") || access(config, R_OK)) continue;
        for (int i = 0; i < 2; i++) {
            bench b;
            snprintf(what, sizeof what, "%s on %s", e->d_name, backends[i]);
            open_bench(&b, path, backends[i], what);
            fn(&b);
            close_bench(&b);
            done++;
        }
    }
    closedir(d);
    assert_true(done >= 60);
}
static void in_chunks(void **state) { (void)state; each(chunks); }
static void saved_and_restored(void **state) { (void)state; each(saved); }
static void forked_and_diverged(void **state) { (void)state; each(forked); }
static void truncated_and_refilled(void **state) { (void)state; each(truncated); }
static void runs_end_on_pages(void **state) { (void)state; each(cut_at_pages); }
static void without_allocation(void **state) { (void)state; each(allocates_nothing); }
static void over_the_border(void **state) { (void)state; each(grown); }
static void device_changed(void **state) { (void)state; each(changed); }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_chunks),           cmocka_unit_test(saved_and_restored), cmocka_unit_test(forked_and_diverged),
        cmocka_unit_test(truncated_and_refilled), cmocka_unit_test(over_the_border),  cmocka_unit_test(without_allocation),
        cmocka_unit_test(device_changed),      cmocka_unit_test(change_fails),       cmocka_unit_test(runs_end_on_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
