/* lemma bench: the loops that measure the limits compute what they must, work is counted as it is by hand, shares are what the rows say. */
#include "base/mem.h"
#include "bench/run.h"
#include "check.h"
#include "bench/neighbours.h"
#include <math.h>
#include <stdio.h>
#include <time.h>

#define LLAMA "tests/fixtures/llama"

static void peaks_add_up(void **state) {
    (void)state;
    uint32_t kinds = 0, ran = 0;
    const lm_peak *p;
    for (uint32_t i = 0; (p = lm_peak_nth(i)); i++) {
        kinds |= 1u << p->kind;
        if (!p->has()) continue;
        static const uint64_t steps[] = {0, 1, 2, 1000, 100001};
        for (size_t k = 0; k < sizeof steps / sizeof *steps; k++)
            if (p->run(steps[k]) != steps[k] * p->macs)
                fail_msg("%s: %llu steps give %llu, not %llu", p->how, (unsigned long long)steps[k], (unsigned long long)p->run(steps[k]),
                         (unsigned long long)(steps[k] * p->macs));
        ran++;
    }
    assert_true(ran >= 2 && (kinds & 1u << LM_PEAK_F32) && (kinds & 1u << LM_PEAK_INT8));
    assert_non_null(lm_peak_best(LM_PEAK_F32));
    assert_non_null(lm_peak_best(LM_PEAK_INT8));
}

static void streams_add_up(void **state) {
    (void)state;
    enum { N = 64 * 65 };
    uint64_t *v = lm_malloc((N + 1) * sizeof *v), want = 0;
    assert_non_null(v);
    for (uint32_t i = 0; i < N; i++) want += v[i] = (uint64_t)i * i * UINT64_C(0x9e3779b97f4a7c15);
    v[N] = 1;
    const lm_stream *s;
    for (uint32_t i = 0; (s = lm_stream_nth(i)); i++) {
        for (int f = 0; s->has() && f < LM_STREAM_FORMS; f++) {
            if (s->sum[f](v, N) != want) fail_msg("%s, form %d: a wrong sum", s->how, f);
            assert_int_equal(s->sum[f](v, 0), 0);
            v[77]++; /* each word counts */
            assert_int_equal(s->sum[f](v, N), want + 1);
            v[77]--;
        }
    }
    lm_free(v);
}

static void meter_reads(void **state) {
    (void)state;
    lm_meter *m = NULL;
    lm_error err = {0};
    lm_reading r;
    lm_machine all;
    assert_int_equal(lm_meter_create(2, &m, &err), LM_OK);
    assert_int_equal(lm_meter_take(m, 1u << LM_PEAK_F32, &r, &err), LM_OK);
    assert_true(r.read > 1e8 && r.read < 1e14 && r.peak[LM_PEAK_F32] > 1e7 && r.peak[LM_PEAK_F32] < 1e15);
    assert_true(r.peak[LM_PEAK_INT8] == 0 && r.peak[LM_PEAK_BF16] == 0); /* not asked for */
    assert_int_equal(lm_meter_machine(m, &all, &err), LM_OK);
    assert_true(all.threads == 2 && all.read_gbs > 0 && all.int8_gops > 0 && all.f32_gflops > 0 && *all.int8_how && *all.f32_how);
    assert_true((all.bf16_gflops > 0) == (lm_peak_best(LM_PEAK_BF16) != NULL) && (all.bf16_gflops > 0) == (*all.bf16_how != 0));
    assert_true(all.buffer_bytes >= 4 * all.cache_bytes || all.buffer_bytes == UINT64_C(512) << 20);
    lm_meter_free(m);
    for (uint64_t i = 1;; i++) { /* every allocation failing in turn leaves nothing behind */
        lm_alloc_fail_after(i);
        lm_status s = lm_meter_create(1, &m, &err);
        lm_alloc_fail_after(0);
        if (s == LM_OK) break;
        assert_int_equal(s, LM_NOMEM);
    }
    lm_meter_free(m);
}

/* ---- work -------------------------------------------------------------------------------------------------------------------------*/
static lm_work work_in(const char *path, const char *lane, const char *kv, const lm_work_shape *at) {
    lm_engine *e = NULL;
    lm_worker w;
    lm_error err = {0};
    lm_work sum = {0};
    if (lm_engine_open(path, &(lm_engine_options){.device = {.threads = 1, .lane = lane, .kv = kv}}, &e, &err) != LM_OK)
        fail_msg("%s: %s", path, err.message);
    assert_int_equal(lm_worker_create(e, &w, &err), LM_OK);
    for (uint32_t i = 0; i < e->program->n_ops; i++) lm_work_add(&w, &e->program->op[i], at, &sum);
    lm_worker_free(&w);
    lm_engine_close(e);
    return sum;
}
static lm_work work_of(const char *path, const char *lane, const lm_work_shape *at) { return work_in(path, lane, NULL, at); }

/* hidden 96, 4 layers of 8 heads and 2 kv heads of 16, FFN 112, vocabulary 320, head tied, bfloat16 */
static void work_of_llama(void **state) {
    (void)state;
    const double layer = 96 * 128 + 2 * 96 * 32 + 128 * 96 + 3 * 96 * 112, head = 96 * 320;
    lm_work w = work_of(LLAMA, NULL, &(lm_work_shape){.n_seqs = 1, .n = 7, .pos0 = 0, .wanted = 1});
    assert_true(w.mac[LM_PEAK_F32] == 7 * 4 * layer + head && w.mac[LM_PEAK_INT8] == 0 && lm_work_macs(&w) == w.mac[LM_PEAK_F32]);
    assert_true(w.weight_bytes == 2 * (4 * layer + head + 7 * 96));
    assert_true(w.attention_mac == 4.0 * 8 * 32 * (7 * 8 / 2) && w.cache_bytes == 4.0 * 2 * 32 * 4 * 7);
    w = work_of(LLAMA, NULL, &(lm_work_shape){.n_seqs = 3, .n = 1, .pos0 = 10, .wanted = 1});
    assert_true(lm_work_macs(&w) == 3 * (4 * layer + head) && w.weight_bytes == 2 * (4 * layer + head + 3 * 96));
    assert_true(w.attention_mac == 3 * 4.0 * 8 * 32 * 11 && w.cache_bytes == 3 * 4.0 * 2 * 32 * 4 * 11);
    w = work_of(LLAMA, NULL, &(lm_work_shape){.n_seqs = 1, .n = 7, .pos0 = 0, .wanted = 0}); /* no row of logits: no head */
    assert_true(lm_work_macs(&w) == 7 * 4 * layer);
    w = work_of(LLAMA, "bf16", &(lm_work_shape){.n_seqs = 3, .n = 1, .pos0 = 10, .wanted = 1}); /* keys and values in bfloat16 */
    assert_true(w.attention_mac == 3 * 4.0 * 8 * 32 * 11 && w.cache_bytes == 3 * 4.0 * 2 * 32 * 2 * 11);
    assert_true(w.pair_mac == (lm_peak_best(LM_PEAK_BF16) ? w.attention_mac : 0));
    w = work_of(LLAMA, "i8", &(lm_work_shape){.n_seqs = 1, .n = 7, .pos0 = 0, .wanted = 1}); /* float weights run as in f32 */
    assert_true(w.mac[LM_PEAK_INT8] == 0 && w.mac[LM_PEAK_F32] == 7 * 4 * layer + head);
}

static void work_of_quantized(void **state) {
    (void)state;
    const lm_work_shape at = {.n_seqs = 1, .n = 5, .pos0 = 0, .wanted = 1};
    const lm_work f = work_of("tests/fixtures/hybrid/hybrid-q4_k_m.gguf", "f32", &at),
                  i = work_of("tests/fixtures/hybrid/hybrid-q4_k_m.gguf", "i8", &at);
    assert_true(f.mac[LM_PEAK_INT8] == 0 && i.mac[LM_PEAK_INT8] > 0.5 * lm_work_macs(&i) && lm_work_macs(&i) == lm_work_macs(&f));
    static const struct { const char *lane, *kv; bool pairs; } in[] = { /* which attend in bfloat16 */
        {"i8", "bf16", true}, {"mixed", "bf16", true}, {"i16", "bf16", false}, {"i8", "f16", false}};
    for (size_t k = 0; k < sizeof in / sizeof *in; k++) {
        const lm_work w = work_in("tests/fixtures/hybrid/hybrid-q4_k_m.gguf", in[k].lane, in[k].kv, &at);
        assert_true(w.attention_mac == f.attention_mac && w.pair_mac == (in[k].pairs && lm_peak_best(LM_PEAK_BF16) ? w.attention_mac : 0));
    }
    const lm_reading r = {.read = 10, .peak = {100, 100, 400}};
    assert_true(fabs(lm_work_product_time(&f, &r) - 2 * lm_work_macs(&f) / 100) < 1e-9 * lm_work_macs(&f));
    assert_true(fabs(lm_work_product_time(&i, &r) - (2 * i.mac[LM_PEAK_F32] / 100 + 2 * i.mac[LM_PEAK_INT8] / 400)) <
                1e-9 * lm_work_macs(&f));
    assert_true(lm_work_bound(&f, &r) >= (f.weight_bytes + f.cache_bytes) / 10);
}

/* qwen3_moe: 8 experts, 2 of them per row, 64 → 32, in layers 1 and 5; a step of one row reads two of them */
static void work_of_experts(void **state) {
    (void)state;
    const lm_work one = work_of("tests/fixtures/qwen3_moe", NULL, &(lm_work_shape){.n_seqs = 1, .n = 1, .wanted = 1});
    const lm_work two = work_of("tests/fixtures/qwen3_moe", NULL, &(lm_work_shape){.n_seqs = 2, .n = 1, .wanted = 1});
    const double moe = 2, expert = 3 * 64 * 32 * 2 /* bytes of bfloat16 */;
    assert_true(lm_work_macs(&two) == 2 * lm_work_macs(&one));
    /* 8·(1 − (6/8)²) = 3.5 experts expected, and one more row of the embedding */
    assert_true(fabs(two.weight_bytes - one.weight_bytes - (moe * 1.5 * expert + 64 * 2)) < 1e-6);
}

/* gemma3: layers whose window is shorter than the sequence read the window only */
static void work_of_windows(void **state) {
    (void)state;
    const lm_work a = work_of("tests/fixtures/gemma3", NULL, &(lm_work_shape){.n_seqs = 1, .n = 1, .pos0 = 1000, .wanted = 1});
    const lm_work b = work_of("tests/fixtures/gemma3", NULL, &(lm_work_shape){.n_seqs = 1, .n = 1, .pos0 = 2000, .wanted = 1});
    assert_true(b.cache_bytes > a.cache_bytes && b.cache_bytes < 1.99 * a.cache_bytes && b.attention_mac < 1.99 * a.attention_mac);
}

/* ---- rows -------------------------------------------------------------------------------------------------------------------------*/
typedef struct seen {
    uint32_t before, after, rows;
    lm_bench_row row[8];
} seen;
static void on_machine(void *ctx, const lm_bench_config *c, const lm_machine *m, bool after) {
    seen *s = ctx;
    assert_string_equal(c->arch, "llama");
    assert_string_equal(c->lane, "f32");
    assert_true(c->threads == 1 && m->threads == 1 && c->cached && c->load_s > 0);
    if (after)
        s->after++;
    else
        s->before++;
}
static void on_row(void *ctx, const lm_bench_config *c, const lm_bench_row *r) {
    seen *s = ctx;
    (void)c;
    assert_true(s->before == 1 && s->after == 0 && s->rows < 8);
    s->row[s->rows++] = *r;
}

static void bench_rows(void **state) {
    (void)state;
    seen s = {0};
    lm_error err = {0};
    const uint32_t threads[] = {1}, prompt[] = {5}, depth[] = {0, 9}, batch[] = {1, 3};
    lm_bench_options o = {.threads = threads,
                          .n_threads = 1,
                          .prompt = prompt,
                          .n_prompts = 1,
                          .depth = depth,
                          .n_depths = 2,
                          .batch = batch,
                          .n_batches = 2,
                          .predict = 4,
                          .repeats = 2,
                          .machine = on_machine,
                          .row = on_row,
                          .ctx = &s};
    if (lm_bench(LLAMA, &o, &err) != LM_OK) fail_msg("%s", err.message);
    assert_true(s.before == 1 && s.after == 1 && s.rows == 5 && s.row[0].test == LM_BENCH_PREFILL && s.row[0].tokens == 5);
    for (uint32_t i = 0; i < s.rows; i++) {
        const lm_bench_row *r = &s.row[i];
        assert_true(r->rate.min > 0 && r->rate.min <= r->rate.median && r->rate.median <= r->rate.max && r->repeats == 2);
        /* how large a share is, is this machine's affair at this moment: no test asserts it */
        assert_true(r->compute.median > 0 && isfinite(r->compute.median) && r->read.median > 0 && r->read_all.median > r->read.median);
        assert_true(r->peak_gops > 0 && r->read_gbs > 0 && r->ops > 0);
        /* the share is the rate over the limit, up to the limit's own drift */
        const double runs = r->rate.median / ((double)r->batch * r->tokens), share = r->ops * runs / r->peak_gops / 1e9;
        assert_true(share > 0.2 * r->compute.min && share < 5 * r->compute.max);
        if (!i)
            assert_true(r->layers_ops == 2 * 5 * 4 * (96 * 128 + 2 * 96 * 32 + 128 * 96 + 3 * 96 * 112) && r->layers.min > 0 &&
                        isfinite(r->layers.max));
        else
            assert_true(r->layers_ops == 0 && r->layers.max == 0 &&
                        r->test == LM_BENCH_DECODE && r->depth == depth[(i - 1) / 2] && r->batch == batch[(i - 1) % 2] && r->tokens == 4);
    }
    assert_true(s.row[2].ops == 3 * s.row[1].ops && s.row[3].cache_bytes > s.row[1].cache_bytes);
    o.repeats = 0;
    assert_int_equal(lm_bench(LLAMA, &o, &err), LM_RANGE);
    o.repeats = 1, o.n_prompts = 0, o.predict = 0;
    assert_int_equal(lm_bench(LLAMA, &o, &err), LM_USAGE);
    assert_int_equal(lm_profile(LLAMA, &(lm_profile_options){0}, &err), LM_USAGE);
}

/* The head's beginning: after the last layer's last op, before the head's first, once in each chunk that has wanted rows. */
typedef struct order {
    const lm_op *last;
    uint32_t heads, after_layers, taps;
} order;
static bool on_op(void *ctx, const lm_program *p, const lm_op *op, const lm_rows *rows) {
    order *o = ctx;
    (void)p, (void)rows;
    o->last = op, o->taps++;
    return true;
}
static void on_head(void *ctx) {
    order *o = ctx;
    o->heads++;
    o->after_layers = o->taps;
}
static bool on_logits(void *ctx, const lm_rows *rows) {
    (void)ctx, (void)rows;
    return true;
}
static void head_begins(void **state) {
    (void)state;
    static const char *const backends[] = {"cpu", "f64"};
    for (size_t k = 0; k < 2; k++) {
        lm_engine *e = NULL;
        lm_session *s = NULL;
        lm_error err = {0};
        order o = {0};
        const int32_t ids[7] = {1, 2, 3, 4, 5, 6, 7};
        assert_int_equal(lm_engine_open(LLAMA, &(lm_engine_options){.backend = backends[k], .device = {.threads = 1}}, &e, &err), LM_OK);
        assert_int_equal(lm_session_create(e, 4, &s, &err), LM_OK);
        lm_eval ev = {.id = ids, .n = 7, .want = LM_WANT_LAST, .logits = on_logits, .head = on_head, .head_ctx = &o,
                      .tap = on_op, .tap_ctx = &o};
        assert_int_equal(lm_session_eval(s, &ev, &err), LM_OK);
        const uint32_t first = e->program->head_first, n = e->program->n_ops;
        assert_true(o.heads == 1 && o.after_layers == 2 * first && o.taps == 2 * first + n - first && o.last == &e->program->op[n - 1]);
        ev.want = LM_WANT_NONE;
        assert_int_equal(lm_session_eval(s, &ev, &err), LM_OK);
        assert_int_equal(o.heads, 1);
        ev.head = NULL, ev.want = LM_WANT_ALL;
        assert_int_equal(lm_session_eval(s, &ev, &err), LM_OK);
        lm_session_free(s);
        lm_engine_close(e);
    }
}

static double cpu_seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }
static void neighbours_compute(void **state) {
    (void)state;
    lm_neighbours *b;
    lm_error err = {0};
    assert_int_equal(lm_neighbours_start(0, &b, &err), LM_OK);
    assert_null(b);
    lm_neighbours_stop(b);
    assert_int_equal(lm_neighbours_start(LM_MOST_NEIGHBOURS + 1, &b, &err), LM_RANGE);
    assert_null(b);
    assert_int_equal(lm_neighbours_start(3, &b, &err), LM_OK);
    const double t = cpu_seconds(), until = lm_now() + 20;
    while (cpu_seconds() < t + 0.05 && lm_now() < until) nanosleep(&(struct timespec){0, 10000000}, NULL);
    assert_true(cpu_seconds() >= t + 0.05); /* this thread slept */
    lm_neighbours_stop(b);
    lm_alloc_fail_after(1);
    assert_int_equal(lm_neighbours_start(1, &b, &err), LM_NOMEM);
    lm_alloc_fail_after(0);
}

static void ids_are_fixed(void **state) {
    (void)state;
    lm_rig r = {0};
    lm_error err = {0};
    assert_int_equal(lm_rig_open(LLAMA, &(lm_rig_options){.threads = 1}, &r, &err), LM_OK);
    const int32_t a = lm_bench_id(&r, 0, 0), b = lm_bench_id(&r, 0, 1), c = lm_bench_id(&r, 1, 0);
    assert_true(a == lm_bench_id(&r, 0, 0) && (a != b || a != c));
    for (uint32_t i = 0; i < 1000; i++) assert_in_range(lm_bench_id(&r, i % 3, i), 0, 319);
    lm_rig_close(&r);
    lm_rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peaks_add_up),    cmocka_unit_test(streams_add_up),    cmocka_unit_test(meter_reads),
        cmocka_unit_test(work_of_llama),   cmocka_unit_test(work_of_quantized), cmocka_unit_test(work_of_experts),
        cmocka_unit_test(work_of_windows), cmocka_unit_test(bench_rows),        cmocka_unit_test(ids_are_fixed),
        cmocka_unit_test(neighbours_compute), cmocka_unit_test(head_begins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
