/* The cpu backend on whole programs that use every op: near the f64 arbiter op by op, and the same bits for any threads, chunks, batch company,
 * taps and instruction set; a run that fails leaves nothing behind. */
#include "backend/cpu/cpu.h"
#include "graph/builder.h"
#include "kern.h"

enum { VOCAB = 61, HID = 64, FFN = 256, LONGEST = 300, MAX_WEIGHTS = 96 };

/* ---- a random program ------------------------------------------------------------------------------------------------------------*/
static lm_graph g;
static uint32_t next_stream, next_proj; /* from the same start in every model: all are one */

static double *numbers(size_t n, double scale) {
    double *v = lm_arena_calloc(g.p->arena, n, sizeof *v);
    next_stream++;
    for (size_t i = 0; i < n; i++) v[i] = (double)(float)(scale * (2 * lm_uniform(kern_seed, next_stream, i) - 1));
    return v;
}
static uint32_t vec(size_t n, double scale) { return lm_graph_vec(&g, "v", numbers(n, scale), n); }
/* Random blocks with small scales: d (and dmin) lead a Q4_K or Q5_K block and end a Q6_K one. */
static void k_quant(uint8_t *bytes, size_t blocks, const lm_dtype *d) {
    const bool six = strcmp(d->name, "Q6_K") == 0;
    const uint16_t scale = lm_f32_to_f16(six ? 5e-5f : 4e-4f), min = lm_f32_to_f16(3e-3f);
    next_stream++;
    for (size_t i = 0; i < blocks * d->bytes; i++) bytes[i] = (uint8_t)(256 * lm_uniform(kern_seed, next_stream, i));
    for (size_t b = 0; b < blocks; b++) {
        memcpy(bytes + b * d->bytes + (six ? 208 : 0), &scale, 2);
        if (!six) memcpy(bytes + b * d->bytes + 2, &min, 2);
    }
}
static bool floats; /* every weight is of a float type: lane bf16 takes no other */
static uint32_t weight(const char *type, uint32_t n_mat, uint64_t rows, uint64_t cols) {
    static const char *const other[] = {"BF16", "F32", "F16"};
    if (floats) type = other[strlen(type) % 3];
    const lm_dtype *d = lm_dtype_by_name(type);
    lm_arena *a = g.p->arena;
    const size_t n = n_mat * rows * cols;
    double *v = numbers(n, 1.7 / sqrt((double)cols));
    float *f = lm_arena_calloc(a, n, sizeof *f);
    for (size_t i = 0; i < n; i++) f[i] = (float)v[i];
    uint8_t *bytes = lm_arena_alloc(a, n / d->block * d->bytes);
    if (strcmp(type, "F32") == 0) memcpy(bytes, f, n * sizeof *f);
    else if (type[strlen(type) - 1] == 'K') k_quant(bytes, n / 256, d);
    else d->encode(f, bytes, n / d->block);
    lm_tensor *t = lm_arena_alloc(a, sizeof *t);
    *t = (lm_tensor){.name = "w", .type = d, .rank = 2, .dim = {n_mat * rows, cols}, .data = bytes, .bytes = n / d->block * d->bytes, .file = UINT32_MAX};
    lm_segment *s = lm_arena_alloc(a, sizeof *s);
    *s = (lm_segment){.t = t, .count = rows, .mat_stride = rows, .group = rows, .step = 1};
    const lm_weight w = {.name = "w", .type = d, .n_mat = n_mat, .rows = rows, .cols = cols, .n_seg = 1, .seg = s};
    return lm_graph_weight(&g, &w);
}
static lm_val custom(lm_op_kind kind, const char *name, uint32_t width, lm_op o) { return lm_op_custom(&g, kind, name, width, &o); }
static lm_val proj(const char *type, lm_val x, uint32_t out) {
    const uint32_t n = ++next_proj;
    return lm_op_linear(&g, "proj", x, weight(type, 1, out, lm_width(&g, x)), n % 3 == 0 ? vec(out, 0.1) : LM_NONE, n % 2);
}
static lm_val norm(lm_val x) { return lm_op_norm(&g, "norm", x, LM_NORM_RMS, 1, 1e-6, vec(lm_width(&g, x), 2), LM_NONE); }

static lm_val attention(lm_val x, uint32_t window, double softcap, bool sinks, bool interleaved, lm_val list) {
    static const double freq[6] = {1, 0.3, 0.1, 0.03, 0.01, 0.003}, slow[6] = {0.5, 0.1, 0.04, 0.01, 0.004, 0.001};
    const lm_rope rope = {.n_pairs = 6, .inv_freq = freq, .inv_freq_long = slow, .border = 200, .factor = 1.1};
    lm_op o = lm_op_blank();
    const uint32_t r = lm_graph_rope(&g, &rope);
    o.a = lm_op_rope(&g, "q", proj("Q8_0", x, 6 * 20), 6, 4, 12, r, interleaved);
    o.b = lm_op_rope(&g, "k", proj("BF16", x, 2 * 20), 2, 4, 12, r, interleaved);
    o.c = proj("Q4_0", x, 2 * 24), o.d = list;
    o.attn.heads = 6, o.attn.kv_heads = 2, o.attn.dk = 20, o.attn.dv = 24, o.attn.window = window, o.attn.scale = 0.7, o.attn.store = true;
    o.attn.softcap = softcap;
    if (sinks) o.v = vec(6, 1);
    o.attn.slot = lm_graph_slot(&g, LM_CACHE_KV, 2, 20, 24, window);
    return proj("F16", custom(LM_OP_ATTENTION, "attn", 6 * 24, o), HID);
}
static lm_val index_of(lm_val x) {
    lm_op o = lm_op_blank();
    o.a = proj("F32", x, 3 * 24), o.b = proj("F32", x, 24), o.c = proj("F32", x, 3);
    o.index.heads = 3, o.index.dim = 24, o.index.topk = 40, o.index.scale = 0.5, o.index.slot = lm_graph_slot(&g, LM_CACHE_INDEX, 1, 24, 0, 0);
    return custom(LM_OP_INDEX, "index", 40, o);
}
static lm_val mla(lm_val x, lm_val list) {
    lm_op o = lm_op_blank();
    o.a = proj("F32", x, 5 * 28), o.b = norm(proj("BF16", x, 32)), o.c = proj("F32", x, 12), o.d = list;
    o.mla.heads = 5, o.mla.nope = 16, o.mla.rope = 12, o.mla.dv = 18, o.mla.rank = 32, o.mla.scale = 0.4;
    o.mla.slot = lm_graph_slot(&g, LM_CACHE_LATENT, 1, 44, 0, 0);
    o.w = weight("Q8_0", 1, 5 * 34, 32);
    return proj("F32", custom(LM_OP_MLA, "mla", 5 * 18, o), HID);
}
static lm_val delta(lm_val x, bool tiled) {
    lm_op c = lm_op_blank(), o = lm_op_blank(), y = lm_op_blank();
    c.a = proj("Q8_0", x, 2 * 2 * 12 + 4 * 20), c.v = vec(128 * 4, 1), c.v2 = vec(128, 0.2);
    c.conv.kernel = 4, c.conv.act = LM_ACT_SILU, c.conv.slot = lm_graph_slot(&g, LM_CACHE_CONV, 1, 128, 3, 0);
    const lm_val qkv = custom(LM_OP_CONV, "conv", 128, c);
    y.a = proj("F32", x, 4), y.v = vec(4, 1), y.v2 = vec(4, 1);
    const lm_val decay = custom(LM_OP_DECAY, "decay", 4, y), beta = lm_op_act(&g, "beta", proj("F32", x, 4), LM_ACT_SIGMOID);
    o.a = lm_op_norm(&g, "q", lm_op_slice(&g, "q", qkv, 0, 24, 1, 24), LM_NORM_L2, 2, 1e-6, LM_NONE, LM_NONE);
    o.b = lm_op_norm(&g, "k", lm_op_slice(&g, "k", qkv, 24, 24, 1, 24), LM_NORM_L2, 2, 1e-6, LM_NONE, LM_NONE);
    o.c = lm_op_slice(&g, "v", qkv, 48, 80, 1, 80), o.d = lm_op_concat(&g, "gates", decay, beta);
    o.delta.k_heads = 2, o.delta.v_heads = 4, o.delta.dk = 12, o.delta.dv = 20, o.delta.q_scale = 0.3, o.delta.tiled = tiled;
    o.delta.slot = lm_graph_slot(&g, LM_CACHE_DELTA, 4, 12, 20, 0);
    return proj("F32", custom(LM_OP_DELTA, "delta", 80, o), HID);
}
static lm_val moe(lm_val x, uint32_t n, uint32_t k, lm_route_score score, lm_route_group group, bool bias, lm_act act) {
    lm_op t = lm_op_blank(), o = lm_op_blank();
    t.a = proj("F32", x, n), t.route.n = n, t.route.k = k, t.route.scale = 1.5, t.route.renorm = score != LM_ROUTE_SOFTMAX_TOPK;
    t.route.renorm_eps = 1e-20, t.route.score = score, t.route.group = group, t.route.groups = 4, t.route.topk_groups = 2;
    if (bias) t.v = vec(n, 0.5);
    else t.v2 = vec(n, 1);
    o.a = x, o.b = custom(LM_OP_ROUTE, "route", 2 * k, t);
    o.experts.n = n, o.experts.k = k, o.experts.act = act;
    if (act == LM_ACT_SWIGLU_OAI) o.experts.limit = 1.5, o.experts.alpha = 1.702;
    o.w = weight("Q4_0", n, 96, HID), o.w2 = weight("Q8_0", n, 96, HID), o.w3 = weight("Q4_1", n, HID, 96);
    if (bias) o.v = vec(n * 96, 0.3), o.v2 = vec(n * 96, 0.3), o.v3 = vec(n * HID, 0.3);
    return custom(LM_OP_EXPERTS, "experts", HID, o);
}
static lm_val ffn(lm_val x, const char *up, const char *down, lm_act act) {
    return proj(down, lm_op_gated(&g, "gated", proj(up, x, FFN), proj(up, x, FFN), act, 0, 0), HID);
}
/* Neither product split, the gate first: the cpu takes the two and what joins them in one job. */
static lm_val gated(lm_val x, const char *up, lm_act act) {
    const uint32_t width = lm_width(&g, x);
    const lm_val gate = lm_op_linear(&g, "gate", x, weight(up, 1, FFN, width), act == LM_ACT_GELU ? vec(FFN, 0.1) : LM_NONE, false);
    return lm_op_gated(&g, "gated", gate, lm_op_linear(&g, "up", x, weight(up, 1, FFN, width), vec(FFN, 0.1), false), act, 0, 0);
}
static lm_val gated_ffn(lm_val x, const char *up, const char *down, lm_act act) { return proj(down, gated(x, up, act), HID); }
/* gemma3n's oddities and the plain element-wise ops */
static lm_val odds(lm_val x) {
    lm_op m = lm_op_blank(), s = lm_op_blank(), z = lm_op_blank(), r = lm_op_blank();
    m.a = x, m.b = proj("F32", x, 16), m.mix.n = 4, m.mix.residual = true;
    s.a = custom(LM_OP_MIX, "mix", HID, m), s.b = proj("F32", x, 16), s.c = proj("F32", x, 4), s.mix.n = 4;
    const lm_val streams = custom(LM_OP_SPREAD, "spread", HID, s);
    z.a = streams, z.sparsify.c = 0.3;
    r.a = custom(LM_OP_SPARSIFY, "sparsify", HID, z), r.b = x, r.match.eps = 1e-5;
    lm_val y = custom(LM_OP_MATCH_RMS, "match", HID, r);
    y = lm_op_norm(&g, "layer_norm", y, LM_NORM_LAYER, 2, 1e-5, vec(32, 2), vec(HID, 1));
    static const lm_act acts[] = {LM_ACT_SILU, LM_ACT_GELU, LM_ACT_GELU_TANH, LM_ACT_RELU, LM_ACT_RELU2, LM_ACT_TANH, LM_ACT_SOFTPLUS};
    lm_val sum = lm_op_scale_vec(&g, "scale_vec", y, vec(HID, 1));
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++) sum = lm_op_add(&g, "sum", sum, lm_op_act(&g, "act", y, acts[i]));
    return lm_op_mul(&g, "mul", lm_op_scale(&g, "scale", sum, 0.4), proj("F32", y, 1));
}
static lm_program *model(void) {
    lm_error err;
    lm_program *p;
    next_stream = 100, next_proj = 0;
    assert_int_equal(lm_graph_init(&g, "test", NULL), LM_OK);
    lm_val x = lm_op_embed(&g, "embed", weight("Q8_0", 1, VOCAB, HID), false);
    x = lm_op_add(&g, "in", x, lm_op_embed(&g, "position", weight("F32", 1, 600, HID), true));
    const lm_val first = g.p->embed = x;
    x = lm_op_add(&g, "x", x, attention(norm(x), 0, 0, false, false, LM_NONE));
    x = lm_op_add(&g, "x", x, ffn(norm(x), "BF16", "Q4_K", LM_ACT_SILU));
    x = lm_op_add(&g, "x", x, attention(norm(x), 20, 3, true, true, LM_NONE));
    x = lm_op_add(&g, "x", x, ffn(norm(x), "Q4_0", "Q6_K", LM_ACT_GELU_TANH));
    x = lm_op_add(&g, "x", x, delta(norm(x), false));
    x = lm_op_add(&g, "x", x, moe(norm(x), 8, 2, LM_ROUTE_SIGMOID, LM_GROUP_TOP2, true, LM_ACT_SWIGLU_OAI));
    lm_val h = norm(x);
    x = lm_op_add(&g, "x", x, mla(h, index_of(h)));
    x = lm_op_add(&g, "x", x, moe(norm(x), 20, 3, LM_ROUTE_SOFTMAX, LM_GROUP_MAX, false, LM_ACT_SILU));
    x = lm_op_add(&g, "x", x, attention(norm(x), 0, 0, true, false, index_of(norm(x))));
    x = lm_op_add(&g, "x", x, mla(norm(x), LM_NONE));
    x = lm_op_add(&g, "x", x, moe(norm(x), 5, 5, LM_ROUTE_SOFTMAX_TOPK, LM_GROUP_NONE, false, LM_ACT_GELU));
    x = lm_op_add(&g, "x", x, delta(norm(x), true));
    x = lm_op_add(&g, "x", x, gated_ffn(norm(x), "Q8_0", "Q5_K", LM_ACT_GELU));
    x = lm_op_add(&g, "x", x, gated_ffn(norm(x), "Q4_0", "F16", LM_ACT_GELU_TANH));
    x = lm_op_add(&g, "x", x, gated_ffn(gated_ffn(norm(x), "Q4_0", "Q6_K", LM_ACT_SILU), "Q8_0", "Q4_1", LM_ACT_SILU));
    x = lm_op_add(&g, "x", x, proj("Q5_0", gated(gated(norm(x), "Q8_0", LM_ACT_SILU), "Q4_K", LM_ACT_SILU), HID)); /* one right after the other */
    x = lm_op_add(&g, "x", x, odds(norm(x)));
    g.p->norm = norm(x);
    g.p->head_first = g.p->n_ops;
    h = lm_op_add(&g, "head.in", g.p->norm, first);
    g.p->logits = lm_op_softcap(&g, "logits", proj("BF16", h, VOCAB), 5);
    g.p->vocab = VOCAB;
    if (lm_graph_finish(&g, &p, &err) != LM_OK) fail_msg("%s: %s", err.field, err.message);
    assert_true(p->n_weights <= MAX_WEIGHTS);
    return p;
}

/* ---- running ---------------------------------------------------------------------------------------------------------------------*/
static const char *lane; /* of the cpu devices; NULL: f32 */
static lm_kv kv = LM_KV_F32; /* theirs too */
static const lm_cache_type *cache_of(const lm_backend *b) {
    const bool pairs = kv == LM_KV_BF16 && lane && (strcmp(lane, "bf16") == 0 || strcmp(lane, "i8") == 0 || strcmp(lane, "mixed") == 0);
    return b == &lm_backend_f64 ? &lm_cache_f64 : &lm_cache_kv[pairs ? LM_KV_BF16X2 : kv];
}
static lm_device *device(const lm_backend *b, const lm_program *p, const char *level, uint32_t threads) {
    lm_device *d;
    lm_error err;
    uint32_t handle[MAX_WEIGHTS];
    const lm_device_options o = {.threads = threads, .cpu_level = level, .lane = b == &lm_backend_cpu ? lane : NULL,
                                 .kv = b == &lm_backend_cpu ? lm_kv_name(kv) : NULL};
    if (b->create(&o, &d, &err) != LM_OK) return NULL;
    assert_ptr_equal(b->cache(d), cache_of(b));
    for (uint32_t i = 0; i < p->n_weights; i++)
        if (b->upload(d, &p->weight[i], &handle[i], &err) != LM_OK) fail_msg("%s", err.message);
    if (b->configure(d, p, handle, &err) != LM_OK) fail_msg("%s: %s", err.field, err.message);
    return d;
}
typedef struct catch {
    const lm_program *p;
    double **out;  /* [n_values] [LONGEST][width]; a tap fills them */
    float *logits; /* [rows][VOCAB] by batch row */
    uint32_t row0;
    const char *stop; /* NULL, or the op at which the tap stops the run */
} catch;
static bool on_tap(void *ctx, const lm_program *p, const lm_op *op, const lm_rows *rows) {
    catch *c = ctx;
    (void)p;
    for (uint32_t i = 0; c->out && i < rows->n; i++)
        for (uint32_t j = 0; j < rows->width; j++) c->out[op->out][(size_t)(c->row0 + rows->row[i]) * rows->width + j] = lm_rows_at(rows, i, j);
    return !c->stop || strcmp(op->name, c->stop) != 0;
}
static bool on_logits(void *ctx, const lm_rows *rows) {
    catch *c = ctx;
    for (uint32_t i = 0; i < rows->n; i++)
        for (uint32_t j = 0; j < rows->width; j++) c->logits[(size_t)(c->row0 + rows->row[i]) * VOCAB + j] = (float)lm_rows_at(rows, i, j);
    return true;
}
static int32_t id_at(uint32_t seq, uint32_t i) { return (int32_t)(lm_uniform(kern_seed, 7 + seq, i) * VOCAB); }
static uint8_t all_wanted[4 * LONGEST];
static lm_state *state_of(const lm_backend *b, const lm_program *p) {
    lm_state *s = NULL;
    assert_int_equal(lm_state_create(p, cache_of(b), &s, NULL), LM_OK);
    return s;
}
/* Sequence `seq` of n tokens in chunks; the logits of all its rows. */
static void run_chunks(const lm_backend *b, lm_device *d, const lm_program *p, uint32_t seq, uint32_t n, uint32_t chunk, bool tap, double **values,
                       float *logits) {
    int32_t ids[LONGEST];
    lm_state *s = state_of(b, p);
    lm_error err;
    for (uint32_t i = 0; i < n; i++) ids[i] = id_at(seq, i);
    for (uint32_t at = 0, k; at < n; at += k) {
        k = n - at < chunk ? n - at : chunk;
        catch c = {p, values, logits, at, NULL};
        const lm_run run = {.tap = tap ? on_tap : NULL, .tap_ctx = &c, .logits = on_logits, .logits_ctx = &c};
        const lm_seq q = {s, 0, k, at, n};
        const lm_batch batch = {k, 1, ids + at, all_wanted, &q};
        if (b->run(d, &batch, &run, &err) != LM_OK) fail_msg("%s: %s", err.field, err.message);
    }
    lm_state_free(s);
}
static const uint32_t lengths[3] = {LONGEST, 1, 45};
static float want[3][LONGEST * VOCAB], got[4 * LONGEST * VOCAB];

/* What a value's error in a row is measured by: the row's largest; a row may be small by cancellation, its error is then that of the others. */
static double size_of(const lm_program *p, double *const *a, lm_val v, uint32_t r) {
    const uint32_t width = p->value[v].width;
    double size = 0;
    for (size_t j = 0; j < (size_t)LONGEST * width; j++) size += fabs(a[v][j]) / ((double)LONGEST * width);
    for (uint32_t j = 0; j < width; j++) size = fmax(size, fabs(a[v][(size_t)r * width + j]));
    return size;
}
/* Every op of every row, against double precision. The first op whose inputs differ by rounding must not differ by more. */
static void near_the_arbiter(void **state) {
    (void)state;
    lm_program *p = model();
    double **a = calloc(p->n_values, sizeof *a), **b = calloc(p->n_values, sizeof *b);
    for (uint32_t i = 0; i < p->n_values; i++) {
        a[i] = calloc((size_t)LONGEST * p->value[i].width, sizeof **a);
        b[i] = calloc((size_t)LONGEST * p->value[i].width, sizeof **b);
    }
    lm_device *exact = device(&lm_backend_f64, p, NULL, 2), *fast = device(&lm_backend_cpu, p, NULL, 2);
    run_chunks(&lm_backend_f64, exact, p, 0, LONGEST, 97, true, a, got);
    run_chunks(&lm_backend_cpu, fast, p, 0, LONGEST, LONGEST, true, b, got);
    double most = 0;
    for (uint32_t i = 0; i < p->n_values; i++) {
        const uint32_t width = p->value[i].width;
        const lm_op *op = &p->op[p->value[i].first];
        for (uint32_t r = 0; r < LONGEST; r++) {
            double size = size_of(p, a, i, r), far = 0;
            if (op->kind == LM_OP_MUL) size = fmax(size, size_of(p, a, op->a, r) * size_of(p, a, op->b, r)); /* off by one factor's error times the other */
            for (uint32_t j = 0; j < width; j++) {
                const double x = a[i][(size_t)r * width + j], y = b[i][(size_t)r * width + j];
                far = fmax(far, isnan(y) ? 1e9 : fabs(x - y));
            }
            most = fmax(most, far / size);
            if (far > 2e-4 * size) fail_msg("%s (op %u) row %u: off by %g of %g", p->value[i].name, p->value[i].first, r, far, size);
        }
    }
    printf("farthest from the arbiter: %.2g of a row's largest\n", most);
    lm_backend_f64.destroy(exact), lm_backend_cpu.destroy(fast);
    for (uint32_t i = 0; i < p->n_values; i++) free(a[i]), free(b[i]);
    free(a), free(b);
    lm_program_free(p);
}

static void reference(lm_device *d, const lm_program *p) {
    for (uint32_t i = 0; i < 3; i++) run_chunks(&lm_backend_cpu, d, p, i, lengths[i], LONGEST, false, NULL, want[i]);
}
static void same_bits_in_lane(void) {
    lm_program *p = model();
    lm_device *d = device(&lm_backend_cpu, p, NULL, 1);
    reference(d, p);
    static const uint32_t chunks[] = {1, 7, 32, 100, 255, 256, 257, LONGEST};
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++)
        for (int tap = 0; tap < 2; tap++) {
            run_chunks(&lm_backend_cpu, d, p, 0, LONGEST, chunks[i], tap, NULL, got);
            char what[64];
            snprintf(what, sizeof what, "chunks of %u, taps %d", chunks[i], tap);
            ASSERT_SAME(want[0], got, LONGEST * (size_t)VOCAB, what);
        }
    lm_backend_cpu.destroy(d);
    static const uint32_t threads[] = {2, 3, 8};
    for (size_t i = 0; i < 3; i++) {
        d = device(&lm_backend_cpu, p, NULL, threads[i]);
        run_chunks(&lm_backend_cpu, d, p, 0, LONGEST, 64, false, NULL, got);
        ASSERT_SAME(want[0], got, LONGEST * (size_t)VOCAB, "threads");
        lm_backend_cpu.destroy(d);
    }
    static const char *const level[] = {"c", "avx2", "avx512", "neon"};
    for (size_t i = 0; i < 4; i++) {
        if (!(d = device(&lm_backend_cpu, p, level[i], 2))) continue;
        run_chunks(&lm_backend_cpu, d, p, 0, LONGEST, i == 0 ? LONGEST : 19, false, NULL, got);
        ASSERT_SAME(want[0], got, LONGEST * (size_t)VOCAB, level[i]);
        run_chunks(&lm_backend_cpu, d, p, 0, 40, 1, false, NULL, got);
        lm_backend_cpu.destroy(d);
    }
    lm_program_free(p);
}
/* Also in the lanes with quantized activations, each of which must really have run: its logits are its own. */
static const char *const lanes[] = {NULL, "i8", "i16", "mixed"};
static void same_bits(void **state) {
    (void)state;
    static float of[4][LONGEST * VOCAB];
    for (int i = 0; i < 4; i++) {
        lane = lanes[i];
        same_bits_in_lane();
        memcpy(of[i], want[0], sizeof want[0]);
    }
    lane = NULL;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++)
            for (uint32_t row = 0; row < LONGEST; row++)
                if (memcmp(of[i] + row * VOCAB, of[j] + row * VOCAB, VOCAB * sizeof(float)) == 0) fail_msg("lanes %d and %d agree in row %u", i, j, row);
}
static void all_rows_differ(const float *a, const float *b, uint32_t from, const char *what) {
    for (uint32_t row = from; row < LONGEST; row++)
        if (memcmp(a + row * VOCAB, b + row * VOCAB, VOCAB * sizeof(float)) == 0) fail_msg("%s: the same in row %u", what, row);
}
/* In lane bf16 with both kinds of attention, and over the same weights in f32: the logits are others each time. */
static void same_bits_in_bf16(void **state) {
    (void)state;
    static float of[LONGEST * VOCAB], half[LONGEST * VOCAB];
    floats = true, lane = "bf16", kv = LM_KV_BF16;
    same_bits_in_lane();
    memcpy(of, want[0], sizeof want[0]);
    kv = LM_KV_F16;
    same_bits_in_lane();
    memcpy(half, want[0], sizeof want[0]);
    all_rows_differ(of, half, 1, "lane bf16, keys and values as bf16 and f16");
    lane = NULL, kv = LM_KV_F32;
    lm_program *p = model();
    lm_device *d = device(&lm_backend_cpu, p, NULL, 2);
    reference(d, p);
    all_rows_differ(of, want[0], 0, "lanes bf16 and f32");
    lm_backend_cpu.destroy(d);
    lm_program_free(p);
    floats = false;
}
/* Lanes i8 and mixed attend in bfloat16 where keys and values are bf16: not as with float16, nor in float32 over what is stored. */
static void same_bits_in_pairs(void **state) {
    (void)state;
    static float of[LONGEST * VOCAB], got_f32[LONGEST * VOCAB];
    for (int i = 1; i < 4; i += 2) {
        lane = lanes[i], kv = LM_KV_BF16;
        same_bits_in_lane();
        memcpy(of, want[0], sizeof want[0]);
        lm_program *p = model();
        lm_device *d = device(&lm_backend_cpu, p, NULL, 2);
        assert_true(d->pairs && !d->bf16);
        lm_state *s = NULL;
        d->pairs = NULL, d->cache = &lm_cache_kv[LM_KV_BF16];
        assert_int_equal(lm_state_create(p, d->cache, &s, NULL), LM_OK);
        int32_t ids[LONGEST];
        for (uint32_t j = 0; j < LONGEST; j++) ids[j] = id_at(0, j);
        catch c = {p, NULL, got_f32, 0, NULL};
        const lm_run run = {.logits = on_logits, .logits_ctx = &c};
        const lm_seq q = {s, 0, LONGEST, 0, LONGEST};
        assert_int_equal(lm_backend_cpu.run(d, &(lm_batch){LONGEST, 1, ids, all_wanted, &q}, &run, NULL), LM_OK);
        all_rows_differ(of, got_f32, 1, "keys and values as bf16, attention in bfloat16 and in float32");
        lm_state_free(s);
        lm_backend_cpu.destroy(d);
        kv = LM_KV_F16;
        d = device(&lm_backend_cpu, p, NULL, 2);
        reference(d, p);
        all_rows_differ(of, want[0], 1, "keys and values as bf16 and f16");
        lm_backend_cpu.destroy(d);
        lm_program_free(p);
    }
    lane = NULL, kv = LM_KV_F32;
}
/* And with keys and values kept in fewer bits, which must show. */
static void same_bits_in_kv(void **state) {
    (void)state;
    static float first[LONGEST * VOCAB];
    for (kv = LM_KV_F32; kv < LM_KV_BF16X2; kv++) {
        same_bits_in_lane();
        if (kv == LM_KV_F32) memcpy(first, want[0], sizeof first);
        else if (memcmp(first + 40 * VOCAB, want[0] + 40 * VOCAB, VOCAB * sizeof(float)) == 0) fail_msg("kv %s changes nothing", lm_kv_name(kv));
    }
    kv = LM_KV_F32;
}
/* Three sequences side by side, in two batches, each equal to its lonely run; only some rows wanted. */
static void company_in_lane(void) {
    lm_program *p = model();
    lm_device *d = device(&lm_backend_cpu, p, NULL, 2);
    reference(d, p);
    static int32_t ids[3 * LONGEST];
    uint8_t some[3 * LONGEST];
    lm_state *s[3];
    for (int i = 0; i < 3; i++) s[i] = state_of(&lm_backend_cpu, p);
    for (uint32_t part = 0; part < 2; part++) {
        lm_seq seq[3];
        uint32_t rows = 0, n_seqs = 0;
        for (uint32_t i = 0; i < 3; i++) {
            const uint32_t half = lengths[i] / 2, n = part ? lengths[i] - half : half;
            if (!n) continue;
            seq[n_seqs++] = (lm_seq){s[i], rows, n, part ? half : 0, lengths[i]};
            for (uint32_t j = 0; j < n; j++) ids[rows + j] = id_at(i, (part ? half : 0) + j);
            rows += n;
        }
        for (uint32_t i = 0; i < rows; i++) some[i] = i % 3 != 1;
        catch c = {p, NULL, got, 0, NULL};
        memset(got, 0, sizeof got);
        lm_error err;
        const lm_run run = {.logits = on_logits, .logits_ctx = &c};
        const lm_batch b = {rows, n_seqs, ids, some, seq};
        if (lm_backend_cpu.run(d, &b, &run, &err) != LM_OK) fail_msg("%s", err.message);
        for (uint32_t q = 0; q < n_seqs; q++) {
            uint32_t i = 0;
            while (s[i] != seq[q].state) i++;
            for (uint32_t j = 0; j < seq[q].n; j++)
                if (some[seq[q].row0 + j])
                    ASSERT_SAME(want[i] + (size_t)(seq[q].pos0 + j) * VOCAB, got + (size_t)(seq[q].row0 + j) * VOCAB, (size_t)VOCAB, "company");
        }
    }
    for (int i = 0; i < 3; i++) lm_state_free(s[i]);
    lm_backend_cpu.destroy(d);
    lm_program_free(p);
}
static void company(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        lane = lanes[i];
        company_in_lane();
    }
    kv = LM_KV_BF16;
    for (int i = 1; i < 4; i += 2) {
        lane = lanes[i];
        company_in_lane();
    }
    floats = true, lane = "bf16", kv = LM_KV_BF16;
    company_in_lane();
    floats = false, lane = NULL, kv = LM_KV_F32;
}
/* A run stopped at any op, then the whole: the same bits as if it had never been tried. */
static void stopped_runs_leave_nothing(void **state) {
    (void)state;
    lm_program *p = model();
    lm_device *d = device(&lm_backend_cpu, p, NULL, 2);
    reference(d, p);
    lm_state *s = state_of(&lm_backend_cpu, p);
    int32_t ids[LONGEST];
    lm_error err;
    for (uint32_t i = 0; i < LONGEST; i++) ids[i] = id_at(0, i);
    for (uint32_t at = 0; at < LONGEST; at += 100) {
        const lm_seq q = {s, 0, 100, at, LONGEST};
        const lm_batch b = {100, 1, ids + at, all_wanted, &q};
        for (uint32_t i = 0; i <= p->n_ops; i += i + 9 < p->n_ops ? 9 : 1) {
            catch c = {p, NULL, got, at, i < p->n_ops ? p->op[i].name : NULL};
            const lm_run run = {.tap = on_tap, .tap_ctx = &c, .logits = on_logits, .logits_ctx = &c};
            assert_int_equal(lm_backend_cpu.run(d, &b, &run, &err), i < p->n_ops ? LM_INTERRUPTED : LM_OK);
        }
    }
    ASSERT_SAME(want[0], got, LONGEST * (size_t)VOCAB, "after stopped runs");
    const lm_seq short_length = {s, 0, 1, LONGEST, LONGEST}, other_rope = {s, 0, 1, LONGEST, 100000};
    lm_batch b = {1, 1, ids, all_wanted, &short_length};
    const lm_run run = {.logits = on_logits, .logits_ctx = &(catch){p, NULL, got, 0, NULL}};
    assert_int_equal(lm_backend_cpu.run(d, &b, &run, &err), LM_USAGE);
    b.seq = &other_rope;
    assert_int_equal(lm_backend_cpu.run(d, &b, &run, &err), LM_OK);
    lm_state_free(s);
    s = state_of(&lm_backend_cpu, p); /* a short sequence grows past the longrope border */
    const lm_seq is_short = {s, 0, 1, 0, 10}, grown = {s, 0, 1, 1, 201};
    b.seq = &is_short;
    assert_int_equal(lm_backend_cpu.run(d, &b, &run, &err), LM_OK);
    b.seq = &grown;
    assert_int_equal(lm_backend_cpu.run(d, &b, &run, &err), LM_STATE);
    lm_state_free(s);
    lm_backend_cpu.destroy(d);
    lm_program_free(p);
}
/* Every allocation fails once: LM_NOMEM, nothing lost, and the next try works. */
static void survives_failing_allocations(void **state) {
    (void)state;
    lm_program *p = model();
    lm_error err;
    uint32_t handle[MAX_WEIGHTS];
    bool done = false;
    for (uint64_t n = 1; !done; n += 1 + n / 8) {
        lm_device *d = NULL;
        lm_state *s = state_of(&lm_backend_cpu, p);
        const lm_device_options o = {.threads = 1};
        const int32_t ids[3] = {1, 2, 3};
        const lm_seq q = {s, 0, 3, 0, 3};
        const lm_batch b = {3, 1, ids, all_wanted, &q};
        const lm_run run = {.logits = on_logits, .logits_ctx = &(catch){p, NULL, got, 0, NULL}};
        lm_alloc_fail_after(n);
        lm_status st = lm_backend_cpu.create(&o, &d, &err);
        for (uint32_t i = 0; st == LM_OK && i < p->n_weights; i++) st = lm_backend_cpu.upload(d, &p->weight[i], &handle[i], &err);
        if (st == LM_OK) st = lm_backend_cpu.configure(d, p, handle, &err);
        if (st == LM_OK) st = lm_backend_cpu.run(d, &b, &run, &err);
        lm_alloc_fail_after(0);
        if (st != LM_OK) assert_int_equal(st, LM_NOMEM);
        assert_int_equal(lm_state_length(s), st == LM_OK ? 3 : 0);
        done = st == LM_OK;
        if (d) lm_backend_cpu.destroy(d);
        lm_state_free(s);
    }
    lm_program_free(p);
}
/* What was refused is the slab, not the little that was wanted of it. */
static void out_of_memory_names_the_slab(void **state) {
    (void)state;
    lm_slab *slab = NULL;
    lm_packed_matrix m;
    lm_error err;
    static const char *const says[] = {": 67108864 bytes needed for packed weights", ": 1088 bytes needed for packed weights"};
    for (int alone = 0; alone < 2; alone++) {
        lm_alloc_fail_after(1);
        assert_int_equal(lm_packed_create(lm_dtype_by_name("Q8_0"), 1, 16, 64, alone ? NULL : &slab, &m, &err), LM_NOMEM);
        lm_alloc_fail_after(0);
        if (!strstr(err.message, says[alone])) fail_msg("%s", err.message);
    }
}
static void refuses_by_name(void **state) {
    (void)state;
    lm_device *d;
    lm_error err;
    assert_int_equal(lm_backend_cpu.create(&(lm_device_options){.threads = 1, .lane = "i7"}, &d, &err), LM_UNSUPPORTED);
    assert_non_null(strstr(err.message, "i7"));
    assert_int_equal(lm_backend_cpu.create(&(lm_device_options){.threads = 1, .cpu_level = "neon9"}, &d, &err), LM_UNSUPPORTED);
    assert_non_null(strstr(err.message, "neon9"));
}
static int setup(void **state) {
    memset(all_wanted, 1, sizeof all_wanted);
    return kern_print_seed(state);
}
int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(near_the_arbiter), cmocka_unit_test(same_bits), cmocka_unit_test(same_bits_in_bf16), cmocka_unit_test(same_bits_in_kv),
        cmocka_unit_test(same_bits_in_pairs), cmocka_unit_test(company), cmocka_unit_test(stopped_runs_leave_nothing),
        cmocka_unit_test(survives_failing_allocations), cmocka_unit_test(refuses_by_name),
        cmocka_unit_test(out_of_memory_names_the_slab),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
