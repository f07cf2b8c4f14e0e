/* The determinism contract at the engine: a sequence's logits do not depend on copies of it in the batch, on what a prefix was shared with,
 * on chunks, threads, or the number of rows that are computed together. One fixture per mechanism, on both backends. */
#include "check.h"
#include "engine/model.h"
#include <stdio.h>
#include <stdlib.h>

/* llama: plain; gemma3: windows, two ropes; gpt_oss: sinks, MXFP4 experts; qwen3_5: delta rule; deepseek_v32: MLA with an index; phi3:
 * longrope */
static const char *const fixtures[] = {"llama", "gemma3", "gpt_oss", "qwen3_5", "deepseek_v32", "phi3"};
static const char *const backends[] = {"cpu", "f64"};
/* a delta-rule hybrid in Q4_K and Q6_K: the lanes of quantized activations, with bf16 those that then attend in bfloat16 */
static const char *const quantized = "hybrid/hybrid-q4_k_m.gguf";
static const struct { const char *lane, *kv; } lanes[] = {{"i8", NULL}, {"i16", NULL}, {"mixed", NULL}, {"i8", "bf16"}, {"mixed", "bf16"}};
enum { N = 60, ROWS = 257 };

typedef struct bench {
    char what[80];
    lm_engine *e;
    const char *lane, *kv; /* NULL: the backend's own; the lane's */
    uint32_t vocab;
    size_t row; /* bytes of a row of logits */
    int32_t id[ROWS];
} bench;

static void must(const bench *b, lm_status s, const lm_error *err) {
    if (s != LM_OK) fail_msg("%s: %s %s", b->what, err->field, err->message);
}
static void open_bench(bench *b, const char *fixture, const char *backend, const char *lane, const char *kv) {
    char path[80];
    lm_error err = {0};
    *b = (bench){.lane = lane, .kv = kv};
    snprintf(b->what, sizeof b->what, "%s on %s %s %s", fixture, backend, lane ? lane : "", kv ? kv : "");
    snprintf(path, sizeof path, "tests/fixtures/%s", fixture);
    lm_engine_options o = {.backend = backend, .device = {.threads = 2, .lane = lane, .kv = kv}};
    must(b, lm_engine_open(path, &o, &b->e, &err), &err);
    b->vocab = b->e->program->vocab;
    b->row = b->vocab * (strcmp(backend, "f64") ? sizeof(float) : sizeof(double));
    for (uint32_t i = 0; i < ROWS; i++) b->id[i] = (int32_t)((i * 6007u + i * i * 17u + 3) % b->vocab);
}

typedef struct sink { const bench *b; uint8_t *out; } sink;
static bool take(void *ctx, const lm_rows *rows) {
    sink *s = ctx;
    for (uint32_t i = 0; i < rows->n; i++)
        memcpy(s->out + rows->row[i] * s->b->row, (const uint8_t *)rows->data + i * s->b->row, s->b->row);
    return true;
}
static lm_eval appended(const int32_t *id, uint32_t from, uint32_t to, uint32_t length, sink *k) {
    return (lm_eval){.id = id + from, .n = to - from, .length = length, .want = LM_WANT_ALL, .logits = take, .logits_ctx = k};
}
static lm_session *session(const bench *b, lm_engine *e, uint32_t chunk) {
    lm_session *s = NULL;
    lm_error err = {0};
    must(b, lm_session_create(e, chunk, &s, &err), &err);
    return s;
}
static void eval(const bench *b, lm_session *s, const int32_t *id, uint32_t from, uint32_t to, uint32_t length, uint8_t *out) {
    lm_error err = {0};
    sink k = {b, out};
    lm_eval ev = appended(id, from, to, length, &k);
    must(b, lm_session_eval(s, &ev, &err), &err);
}
/* Rows [0, n) of tokens id[0..n), announced as `length`, from an empty session of engine e. */
static uint8_t *alone(const bench *b, lm_engine *e, const int32_t *id, uint32_t n, uint32_t length, uint32_t chunk) {
    lm_session *s = session(b, e, chunk);
    uint8_t *out = calloc(n, b->row);
    eval(b, s, id, 0, n, length, out);
    lm_session_free(s);
    return out;
}
static void equal(const bench *b, const uint8_t *got, const uint8_t *want, uint32_t from, uint32_t to, const char *what, uint32_t which) {
    for (uint32_t i = from; i < to; i++)
        if (memcmp(got + i * b->row, want + i * b->row, b->row)) fail_msg("%s: %s %u: row %u differs", b->what, what, which, i);
}

/* One prompt eight times in one batch, and eight greedy steps after it: one text, equal bits. */
static void eightfold(bench *b) {
    enum { COPIES = 8, STEPS = 8, LEN = 13 + STEPS };
    lm_error err = {0};
    lm_session *s[COPIES];
    lm_eval ev[COPIES];
    sink k[COPIES];
    uint8_t *out[COPIES];
    int32_t id[LEN];
    memcpy(id, b->id, sizeof id);
    for (int i = 0; i < COPIES; i++) s[i] = session(b, b->e, 5), out[i] = calloc(LEN, b->row), k[i] = (sink){b, out[i]};
    for (uint32_t at = 0; at < LEN;) {
        uint32_t to = at ? at + 1 : LEN - STEPS;
        for (int i = 0; i < COPIES; i++) ev[i] = appended(id, at, to, LEN, &k[i]);
        must(b, lm_sessions_eval(s, ev, COPIES, &err), &err);
        at = to;
        uint32_t best = 0;
        for (uint32_t v = 1; v < b->vocab; v++) {
            const uint8_t *last = out[0] + (to - 1) * b->row;
            bool is_f64 = b->row == b->vocab * sizeof(double);
            best = is_f64 ? (((const double *)(const void *)last)[v] > ((const double *)(const void *)last)[best] ? v : best)
                          : (((const float *)(const void *)last)[v] > ((const float *)(const void *)last)[best] ? v : best);
        }
        if (at < LEN) id[at] = (int32_t)best;
    }
    uint8_t *want = alone(b, b->e, id, LEN, LEN, 0);
    for (uint32_t i = 0; i < COPIES; i++) {
        equal(b, out[i], want, 0, LEN, "copy", i);
        lm_session_free(s[i]);
        free(out[i]);
    }
    free(want);
}

/* Cold, warm (a fork of the same prompt's prefix), and after another prompt with a shared prefix. */
static void prefixes(bench *b) {
    lm_error err = {0};
    int32_t other[N];
    uint8_t *want = alone(b, b->e, b->id, N, N, 0), *got = calloc(N, b->row), *junk = calloc(N, b->row);
    const uint32_t cut[] = {1, 15, 16, 17, 32, 59};
    for (size_t i = 0; i < sizeof cut / sizeof *cut; i++) {
        uint32_t c = cut[i];
        lm_session *s = session(b, b->e, 0), *warm = NULL, *shared = NULL;
        eval(b, s, b->id, 0, c, N, junk);
        must(b, lm_session_fork(s, &warm, &err), &err);
        eval(b, warm, b->id, c, N, N, got);
        equal(b, got, want, c, N, "warm from", c);
        for (uint32_t j = 0; j < N; j++) other[j] = j < c ? b->id[j] : (b->id[j] + 1) % (int32_t)b->vocab;
        eval(b, s, other, c, N, N, junk);
        must(b, lm_session_fork(s, &shared, &err), &err);
        must(b, lm_session_truncate(shared, c, &err), &err);
        eval(b, shared, b->id, c, N, N, got);
        equal(b, got, want, c, N, "after another prompt that shares", c);
        lm_session_free(s);
        lm_session_free(warm);
        lm_session_free(shared);
    }
    free(want);
    free(got);
    free(junk);
}

static void chunks_and_threads(bench *b) {
    lm_error err = {0};
    uint8_t *want = alone(b, b->e, b->id, N, N, 0);
    for (uint32_t threads = 1; threads <= 8; threads++) {
        lm_engine *e = NULL;
        lm_engine_options o = {.backend = b->e->backend->name, .device = {.threads = threads, .lane = b->lane, .kv = b->kv}};
        must(b, lm_engine_share(b->e, &o, &e, &err), &err);
        const uint32_t chunk[] = {1, 2, 3, 7, 16, N};
        for (size_t i = 0; i < sizeof chunk / sizeof *chunk; i++) {
            uint8_t *got = alone(b, e, b->id, N, N, chunk[i]);
            equal(b, got, want, 0, N, "chunk and threads", chunk[i] * 100 + threads);
            free(got);
        }
        lm_engine_close(e);
    }
    free(want);
}

/* n rows together: as one sequence, and as n sequences of one row each. */
static void batches(bench *b) {
    lm_error err = {0};
    const uint32_t size[] = {1, 2, 8, 44, 45, 255, 256, 257};
    uint8_t *want = alone(b, b->e, b->id, ROWS, ROWS, 1), *got = calloc(ROWS, b->row), *step = calloc(ROWS, b->row), *last[4];
    enum { PREFIX = 6 };
    int32_t id[PREFIX + 1];
    memcpy(id, b->id, sizeof id);
    for (int32_t v = 0; v < 4; v++) { /* the prefix followed by one of four tokens */
        id[PREFIX] = v;
        last[v] = alone(b, b->e, id, PREFIX + 1, PREFIX + 1, 0);
    }
    lm_session *base = session(b, b->e, 0), **s = calloc(ROWS, sizeof *s);
    lm_eval *ev = calloc(ROWS, sizeof *ev);
    sink *k = calloc(ROWS, sizeof *k);
    uint8_t *out = calloc((size_t)ROWS * (PREFIX + 1), b->row);
    eval(b, base, b->id, 0, PREFIX, PREFIX + 1, step);
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        uint32_t n = size[i];
        lm_session *one = session(b, b->e, n);
        eval(b, one, b->id, 0, n, ROWS, got);
        equal(b, got, want, 0, n, "one sequence, rows at once:", n);
        lm_session_free(one);
        for (uint32_t j = 0; j < n; j++) {
            static const int32_t next[4] = {0, 1, 2, 3};
            must(b, lm_session_fork(base, &s[j], &err), &err);
            k[j] = (sink){b, out + (size_t)j * (PREFIX + 1) * b->row};
            ev[j] = appended(next, j % 4, j % 4 + 1, PREFIX + 1, &k[j]);
        }
        must(b, lm_sessions_eval(s, ev, n, &err), &err);
        for (uint32_t j = 0; j < n; j++) {
            equal(b, k[j].out, last[j % 4], PREFIX, PREFIX + 1, "sequences of a row:", n);
            lm_session_free(s[j]);
        }
    }
    lm_session_free(base);
    for (int v = 0; v < 4; v++) free(last[v]);
    free(want), free(got), free(step), free(s), free(ev), free(k), free(out);
}

static void each(void (*fn)(bench *)) {
    for (size_t f = 0; f < sizeof fixtures / sizeof *fixtures; f++)
        for (int i = 0; i < 2; i++) {
            bench b;
            open_bench(&b, fixtures[f], backends[i], NULL, NULL);
            fn(&b);
            lm_engine_close(b.e);
        }
    for (size_t i = 0; i < sizeof lanes / sizeof *lanes; i++) {
        bench b;
        open_bench(&b, quantized, "cpu", lanes[i].lane, lanes[i].kv);
        fn(&b);
        lm_engine_close(b.e);
    }
}
static void one_prompt_eight_times(void **state) { (void)state; each(eightfold); }
static void cold_warm_shared(void **state) { (void)state; each(prefixes); }
static void chunks_by_threads(void **state) { (void)state; each(chunks_and_threads); }
static void batch_sizes(void **state) { (void)state; each(batches); }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_prompt_eight_times),
        cmocka_unit_test(cold_warm_shared),
        cmocka_unit_test(chunks_by_threads),
        cmocka_unit_test(batch_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
