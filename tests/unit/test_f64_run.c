/* The f64 backend's runs: the same bits for any chunks, threads, company and taps; failures that leave no trace; the head's blocks. */
#include "f64_rig.h"

enum { VOCAB = 29, HID = 32, LONGEST = 300 };

static lm_val custom(rig *r, lm_op_kind kind, const char *name, uint32_t width, lm_op o) {
    return lm_op_custom(&r->g, kind, name, width, &o);
}
static lm_val proj(rig *r, lm_val x, uint32_t out, uint64_t seed) {
    uint32_t in = lm_width(&r->g, x);
    double *w = rnd_n(&r->g, seed, (size_t)out * in);
    for (size_t i = 0; i < (size_t)out * in; i++) w[i] /= sqrt(in);
    return lm_op_linear(&r->g, "proj", x, rig_weight(&r->g, "w", 1, out, in, w), LM_NONE, false);
}
static lm_val norm(rig *r, lm_val x, uint32_t groups) {
    return lm_op_norm(&r->g, "norm", x, LM_NORM_RMS, groups, 1e-6, LM_NONE, LM_NONE);
}
static lm_val attn(rig *r, lm_val x, uint32_t window, lm_val list) {
    lm_op o = lm_op_blank();
    o.a = proj(r, x, 32, 11), o.b = proj(r, x, 16, 12), o.c = proj(r, x, 16, 13), o.d = list;
    static const double freq[4] = {1, 0.1, 0.01, 0.001};
    lm_rope rope = {.n_pairs = 4, .inv_freq = freq, .factor = 1};
    o.a = lm_op_rope(&r->g, "q", o.a, 4, 0, 8, lm_graph_rope(&r->g, &rope), false);
    o.b = lm_op_rope(&r->g, "k", o.b, 2, 0, 8, lm_graph_rope(&r->g, &rope), false);
    o.attn.heads = 4, o.attn.kv_heads = 2, o.attn.dk = 8, o.attn.dv = 8, o.attn.window = window, o.attn.scale = 0.4, o.attn.store = true;
    o.attn.slot = lm_graph_slot(&r->g, LM_CACHE_KV, 2, 8, 8, window);
    return proj(r, custom(r, LM_OP_ATTENTION, "attn", 32, o), HID, 14);
}
static lm_val index_of(rig *r, lm_val x) {
    lm_op o = lm_op_blank();
    o.a = proj(r, x, 8, 21), o.b = proj(r, x, 4, 22), o.c = proj(r, x, 2, 23);
    o.index.heads = 2, o.index.dim = 4, o.index.topk = 40, o.index.scale = 0.5;
    o.index.slot = lm_graph_slot(&r->g, LM_CACHE_INDEX, 1, 4, 0, 0);
    return custom(r, LM_OP_INDEX, "index", 40, o);
}
static lm_val mla(rig *r, lm_val x, lm_val list) {
    lm_op o = lm_op_blank();
    o.a = proj(r, x, 2 * 8, 31), o.b = norm(r, proj(r, x, 8, 32), 1), o.c = proj(r, x, 4, 33), o.d = list;
    o.mla.heads = 2, o.mla.nope = 4, o.mla.rope = 4, o.mla.dv = 6, o.mla.rank = 8, o.mla.scale = 0.4;
    o.mla.slot = lm_graph_slot(&r->g, LM_CACHE_LATENT, 1, 12, 0, 0);
    o.w = rig_weight(&r->g, "kv_b", 1, 20, 8, rnd_n(&r->g, 34, 160));
    return proj(r, custom(r, LM_OP_MLA, "mla", 12, o), HID, 35);
}
static lm_val gdn(rig *r, lm_val x) {
    lm_op c = lm_op_blank(), o = lm_op_blank(), y = lm_op_blank();
    c.a = proj(r, x, 2 * 8 + 16, 41);
    c.v = lm_graph_vec(&r->g, "conv", rnd_n(&r->g, 42, 32 * 4), 32 * 4);
    c.conv.kernel = 4, c.conv.act = LM_ACT_SILU, c.conv.slot = lm_graph_slot(&r->g, LM_CACHE_CONV, 1, 32, 3, 0);
    lm_val qkv = custom(r, LM_OP_CONV, "conv", 32, c);
    y.a = proj(r, x, 4, 43), y.v = lm_graph_vec(&r->g, "a_log", rnd_n(&r->g, 44, 4), 4);
    y.v2 = lm_graph_vec(&r->g, "dt", rnd_n(&r->g, 45, 4), 4);
    lm_val decay = custom(r, LM_OP_DECAY, "decay", 4, y), beta = lm_op_act(&r->g, "beta", proj(r, x, 4, 46), LM_ACT_SIGMOID);
    o.a = lm_op_norm(&r->g, "q", part(r, qkv, 0, 8), LM_NORM_L2, 2, 1e-6, LM_NONE, LM_NONE);
    o.b = lm_op_norm(&r->g, "k", part(r, qkv, 8, 8), LM_NORM_L2, 2, 1e-6, LM_NONE, LM_NONE);
    o.c = part(r, qkv, 16, 16), o.d = lm_op_concat(&r->g, "gates", decay, beta);
    o.delta.k_heads = 2, o.delta.v_heads = 4, o.delta.dk = 4, o.delta.dv = 4, o.delta.q_scale = 0.5;
    o.delta.slot = lm_graph_slot(&r->g, LM_CACHE_DELTA, 4, 4, 4, 0);
    return proj(r, custom(r, LM_OP_DELTA, "delta", 16, o), HID, 47);
}
static lm_val moe(rig *r, lm_val x) {
    lm_op t = lm_op_blank(), o = lm_op_blank();
    t.a = proj(r, x, 6, 51), t.route.n = 6, t.route.k = 2, t.route.scale = 1, t.route.renorm = true;
    o.a = x, o.b = custom(r, LM_OP_ROUTE, "route", 4, t);
    o.experts.n = 6, o.experts.k = 2, o.experts.act = LM_ACT_SILU;
    o.w = rig_weight(&r->g, "gate", 6, 20, HID, rnd_n(&r->g, 52, 6 * 20 * HID));
    o.w2 = rig_weight(&r->g, "up", 6, 20, HID, rnd_n(&r->g, 53, 6 * 20 * HID));
    o.w3 = rig_weight(&r->g, "down", 6, HID, 20, rnd_n(&r->g, 54, 6 * 20 * HID));
    return custom(r, LM_OP_EXPERTS, "experts", HID, o);
}
/* The head reads the final norm and the embedding: two gathered values. */
static lm_val head(rig *r, lm_val x) {
    lm_val t = lm_op_add(&r->g, "head.in", x, r->g.p->embed);
    return lm_op_softcap(&r->g, "logits", proj(r, t, VOCAB, 61), 5);
}
static void model(rig *r) {
    lm_val x = rig_open(r, VOCAB, HID, NULL);
    x = lm_op_add(&r->g, "add", x, attn(r, norm(r, x, 1), 0, LM_NONE));
    x = lm_op_add(&r->g, "add", x, gdn(r, norm(r, x, 1)));
    x = lm_op_add(&r->g, "add", x, attn(r, norm(r, x, 1), 20, LM_NONE));
    x = lm_op_add(&r->g, "add", x, moe(r, norm(r, x, 1)));
    lm_val h = norm(r, x, 1);
    x = lm_op_add(&r->g, "add", x, mla(r, h, index_of(r, h)));
    rig_finish(r, norm(r, x, 1), head);
}
static int32_t id_at(uint32_t seed, uint32_t i) { return (int32_t)(lm_uniform(3, seed, i) * VOCAB); }

/* Logits of all rows of a sequence, run in chunks. */
static void run_chunks(rig *r, uint32_t seed, uint32_t n, uint32_t chunk, bool tap, double *out) {
    lm_state *s = rig_state(r);
    int32_t ids[LONGEST];
    uint8_t want[LONGEST];
    memset(want, 1, sizeof want);
    for (uint32_t i = 0; i < n; i++) ids[i] = id_at(seed, i);
    for (uint32_t at = 0, k; at < n; at += k) {
        k = n - at < chunk ? n - at : chunk;
        rig_catch c = {LM_NONE, out + (size_t)at * VOCAB};
        lm_run run = {.tap = tap ? rig_tap : NULL, .tap_ctx = &c, .logits = rig_sink, .logits_ctx = &c};
        lm_seq seq = {s, 0, k, at, n};
        lm_batch b = {k, 1, ids + at, want, &seq};
        lm_error err;
        if (lm_backend_f64.run(r->d, &b, &run, &err) != LM_OK) fail_msg("%s: %s", err.field, err.message);
    }
    assert_int_equal(lm_state_length(s), n);
    lm_state_free(s);
}
static double whole[3][LONGEST * VOCAB], got[LONGEST * VOCAB];
static const uint32_t lengths[3] = {LONGEST, 1, 45};

static void same_bits(void **state) {
    (void)state;
    rig r;
    model(&r);
    for (uint32_t i = 0; i < 3; i++) run_chunks(&r, i, lengths[i], LONGEST, false, whole[i]);
    double sum = 0;
    for (uint32_t i = 0; i < LONGEST * VOCAB; i++) sum += fabs(whole[0][i]);
    assert_true(sum > 100 && sum < 5 * LONGEST * VOCAB); /* not zeros, not NaN */
    const uint32_t chunks[] = {1, 2, 3, 7, 16, 64, 255, 256, 257};
    for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
        run_chunks(&r, 0, LONGEST, chunks[c], c % 2, got);
        assert_memory_equal(got, whole[0], sizeof got);
    }
    for (uint32_t threads = 1; threads <= 4; threads++) {
        rig_device(&r, threads);
        run_chunks(&r, 0, LONGEST, 100, false, got);
        assert_memory_equal(got, whole[0], sizeof got);
    }
    rig_close(&r);
}
/* Three sequences side by side, in two batches, each equal to its lonely run. */
static void company(void **state) {
    (void)state;
    rig r;
    model(&r);
    for (uint32_t i = 0; i < 3; i++) run_chunks(&r, i, lengths[i], LONGEST, false, whole[i]);
    static int32_t ids[3 * LONGEST];
    static uint8_t want[3 * LONGEST];
    static double out[3 * LONGEST * VOCAB];
    memset(want, 1, sizeof want);
    lm_state *s[3];
    for (int i = 0; i < 3; i++) s[i] = rig_state(&r);
    for (int half = 0; half < 2; half++) {
        lm_seq seq[3];
        uint32_t rows = 0, n_seqs = 0;
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t have = lm_state_length(s[i]), n = half ? lengths[i] - have : lengths[i] / 2;
            if (!n) continue;
            seq[n_seqs++] = (lm_seq){s[i], rows, n, have, lengths[i]};
            for (uint32_t j = 0; j < n; j++) ids[rows + j] = id_at(i, have + j);
            rows += n;
        }
        rig_catch c = {LM_NONE, out};
        lm_run run = {.logits = rig_sink, .logits_ctx = &c};
        lm_batch b = {rows, n_seqs, ids, want, seq};
        assert_int_equal(lm_backend_f64.run(r.d, &b, &run, NULL), LM_OK);
        for (uint32_t q = 0; q < n_seqs; q++)
            for (uint32_t i = 0; i < 3; i++)
                if (seq[q].state == s[i])
                    assert_memory_equal(out + seq[q].row0 * VOCAB, whole[i] + seq[q].pos0 * VOCAB, seq[q].n * VOCAB * sizeof(double));
    }
    for (int i = 0; i < 3; i++) lm_state_free(s[i]);
    rig_close(&r);
}

/* ---- the head -----------------------------------------------------------------------------------------------------------------*/
typedef struct head_log {
    uint32_t row[LONGEST], n, blocks, tapped;
} head_log;
static bool log_sink(void *ctx, const lm_rows *rows) {
    head_log *l = ctx;
    assert_true(rows->n <= 32 && rows->is_f64 && rows->width == VOCAB);
    for (uint32_t i = 0; i < rows->n; i++) {
        l->row[l->n++] = rows->row[i];
        assert_memory_equal((const double *)rows->data + i * VOCAB, whole[0] + rows->row[i] * VOCAB, VOCAB * sizeof(double));
    }
    l->blocks++;
    return true;
}
static bool log_tap(void *ctx, const lm_program *p, const lm_op *op, const lm_rows *rows) {
    if (op->out == p->logits) ((head_log *)ctx)->tapped += rows->n;
    else if (op->out == p->norm) assert_int_equal(rows->n, 100);
    return true;
}
static void wanted_rows(void **state) {
    (void)state;
    rig r;
    model(&r);
    run_chunks(&r, 0, LONGEST, LONGEST, false, whole[0]);
    int32_t ids[100];
    uint8_t want[100];
    uint32_t wanted = 0;
    for (uint32_t i = 0; i < 100; i++) ids[i] = id_at(0, i), wanted += want[i] = i % 3 != 1;
    lm_state *s = rig_state(&r);
    head_log l = {.n = 0};
    lm_run run = {.tap = log_tap, .tap_ctx = &l, .logits = log_sink, .logits_ctx = &l};
    lm_seq seq = {s, 0, 100, 0, 100};
    lm_batch b = {100, 1, ids, want, &seq};
    assert_int_equal(lm_backend_f64.run(r.d, &b, &run, NULL), LM_OK);
    assert_true(l.n == wanted && l.tapped == wanted && l.blocks == (wanted + 31) / 32);
    for (uint32_t i = 0, j = 0; i < 100; i++)
        if (want[i]) assert_int_equal(l.row[j++], i);
    lm_state_free(s);
    rig_close(&r);
}

/* ---- failures -----------------------------------------------------------------------------------------------------------------*/
static bool stop_after(void *ctx) { return (*(int *)ctx)-- <= 0; }
static void interrupted(void **state) {
    (void)state;
    rig r;
    model(&r);
    int32_t ids[8];
    double out[8 * HID];
    uint8_t want[4] = {1, 1, 1, 1}, *before, *after;
    uint64_t n, m;
    for (uint32_t i = 0; i < 8; i++) ids[i] = id_at(0, i);
    lm_state *s = rig_state(&r);
    assert_int_equal(rig_try(&r, s, ids, 4, 0, out, NULL), LM_OK);
    assert_int_equal(lm_state_save(s, "t", &before, &n, NULL), LM_OK);
    int ops = 0;
    for (;; ops++) {
        int left = ops;
        rig_catch c = {LM_NONE, got};
        lm_run run = {.interrupted = stop_after, .interrupted_ctx = &left, .logits = rig_sink, .logits_ctx = &c};
        lm_seq seq = {s, 0, 4, 4, 8};
        lm_batch b = {4, 1, ids + 4, want, &seq};
        lm_error err;
        lm_status st = lm_backend_f64.run(r.d, &b, &run, &err);
        if (st == LM_OK) break;
        assert_int_equal(st, LM_INTERRUPTED);
        assert_int_equal(lm_state_save(s, "t", &after, &m, NULL), LM_OK);
        assert_int_equal(n, m);
        assert_memory_equal(before, after, n);
        lm_free(after);
    }
    assert_int_equal(ops, r.p->n_ops);
    run_chunks(&r, 0, 8, 8, false, whole[0]);
    assert_memory_equal(got, whole[0] + 4 * VOCAB, 4 * VOCAB * sizeof(double));
    lm_free(before);
    lm_state_free(s);
    rig_close(&r);
}
static void no_memory(void **state) {
    (void)state;
    rig r;
    model(&r);
    int32_t ids[300];
    static double out[300 * HID];
    uint8_t *before, *after;
    uint64_t n, m, at = 1;
    for (uint32_t i = 0; i < 300; i++) ids[i] = id_at(0, i);
    lm_state *s = rig_state(&r);
    assert_int_equal(rig_try(&r, s, ids, 250, 0, out, NULL), LM_OK);
    assert_int_equal(lm_state_save(s, "t", &before, &n, NULL), LM_OK);
    for (;; at++) {
        lm_error err;
        lm_alloc_fail_after(at);
        lm_status st = rig_try(&r, s, ids + 250, 50, 0, out, &err);
        lm_alloc_fail_after(0);
        if (st == LM_OK) break;
        assert_int_equal(st, LM_NOMEM);
        assert_int_equal(lm_state_save(s, "t", &after, &m, NULL), LM_OK);
        assert_int_equal(n, m);
        assert_memory_equal(before, after, n);
        lm_free(after);
    }
    assert_true(at > 6); /* table, four pages, the run: each failed once */
    lm_free(before);
    lm_state_free(s);
    for (at = 1;; at++) { /* configuring again: the old plan stays, or the new one works */
        uint32_t handle[64];
        for (uint32_t i = 0; i < r.p->n_weights; i++) handle[i] = i;
        lm_alloc_fail_after(at);
        lm_status st = lm_backend_f64.configure(r.d, r.p, handle, NULL);
        lm_alloc_fail_after(0);
        run_chunks(&r, 0, 2, 2, false, got);
        if (st == LM_OK) break;
        assert_int_equal(st, LM_NOMEM);
    }
    rig_close(&r);
}
static void bad_batches(void **state) {
    (void)state;
    rig r;
    model(&r);
    lm_state *s = rig_state(&r);
    int32_t ids[4] = {0, 1, 2, VOCAB};
    lm_seq seq[2] = {{s, 0, 2, 0, 2}, {s, 2, 1, 0, 1}};
    lm_run run = {0};
    lm_batch b = {3, 2, ids, NULL, seq};
    lm_error err;
    assert_int_equal(lm_backend_f64.run(r.d, &b, &run, &err), LM_USAGE); /* one state twice */
    b.n_seqs = 1;
    assert_int_equal(lm_backend_f64.run(r.d, &b, &run, &err), LM_USAGE); /* a row of nobody */
    b.n_rows = 2, seq[0].pos0 = 1, seq[0].length = 3;
    assert_int_equal(lm_backend_f64.run(r.d, &b, &run, &err), LM_USAGE);
    seq[0].pos0 = 0, seq[0].length = 1;
    assert_int_equal(lm_backend_f64.run(r.d, &b, &run, &err), LM_USAGE);
    seq[0].length = 2, b.id = ids + 2;
    assert_int_equal(lm_backend_f64.run(r.d, &b, &run, &err), LM_RANGE);
    lm_backend_f64.reset(r.d);
    assert_int_equal(lm_backend_f64.run(r.d, &b, &run, &err), LM_STATE);
    uint32_t id = 9;
    assert_int_equal(lm_backend_f64.upload(r.d, &r.p->weight[0], &id, &err), LM_OK);
    assert_int_equal(id, 0);
    lm_state_free(s);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits),   cmocka_unit_test(company),   cmocka_unit_test(wanted_rows),
        cmocka_unit_test(interrupted), cmocka_unit_test(no_memory), cmocka_unit_test(bad_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
