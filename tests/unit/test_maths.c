/* Mechanisms that engines got wrong, each with a small input and the right answer, through the real config readers and both backends: rope
 * scalings, windows, soft-caps, routing, the clamped activation, the delta rule, ties, the embedding's scale. */
#include "arch/common/arch.h"
#include "backend/backend.h"
#include "base/rng.h"
#include "base/smallfloat.h"
#include "check.h"
#include "format/parse.h"
#include "lemma/lemma.h"
#include "verify/verify.h"
#include <stdio.h>
#include <stdlib.h>

static const char *const backends[] = {"cpu", "f64"};
static double rnd(uint64_t stream, uint64_t i) { return (double)(float)(2 * lm_uniform(5, stream, i) - 1); }

/* ---- a program of one op on the rows of a table --------------------------------------------------------------------------------------*/
typedef struct rig {
    lm_graph g;
    lm_val x;     /* row of the table, by token id */
    lm_val watch; /* what runs give back */
    lm_program *p;
    lm_device *d;
    const lm_backend *b;
    double *out;
} rig;

static void rig_open(rig *r, uint32_t rows, uint32_t width, const double *table) {
    memset(r, 0, sizeof *r);
    assert_int_equal(lm_graph_init(&r->g, "test", NULL), LM_OK);
    lm_arena *a = r->g.p->arena;
    float *data = lm_arena_calloc(a, (size_t)rows * width, sizeof *data);
    for (size_t i = 0; i < (size_t)rows * width; i++) data[i] = (float)table[i];
    lm_tensor *t = lm_arena_alloc(a, sizeof *t);
    *t = (lm_tensor){.name = "table", .type = lm_dtype_by_name("F32"), .rank = 2, .dim = {rows, width}, .data = (const uint8_t *)data,
                     .bytes = (uint64_t)rows * width * sizeof *data, .file = UINT32_MAX};
    lm_segment *s = lm_arena_alloc(a, sizeof *s);
    *s = (lm_segment){.t = t, .count = rows, .group = rows, .step = 1};
    lm_weight w = {.name = "table", .type = t->type, .n_mat = 1, .rows = rows, .cols = width, .n_seg = 1, .seg = s};
    r->x = r->g.p->embed = lm_op_embed(&r->g, "embed", lm_graph_weight(&r->g, &w), false);
}
static lm_val part(rig *r, uint32_t offset, uint32_t width) { return lm_op_slice(&r->g, "part", r->x, offset, width, 1, width); }
static uint32_t vec(rig *r, const double *v, uint32_t n) {
    double *own = lm_arena_calloc(r->g.p->arena, n, sizeof *own);
    memcpy(own, v, n * sizeof *own);
    return lm_graph_vec(&r->g, "vec", own, n);
}
static void rig_finish(rig *r, lm_val last) {
    lm_error err = {0};
    r->watch = r->g.p->norm = last;
    r->g.p->head_first = r->g.p->n_ops;
    r->g.p->logits = lm_op_scale(&r->g, "logits", last, 1);
    r->g.p->vocab = lm_width(&r->g, r->g.p->logits);
    if (lm_graph_finish(&r->g, &r->p, &err) != LM_OK) fail_msg("%s: %s", err.field, err.message);
}
static void rig_device(rig *r, const char *backend) {
    if (r->d) r->b->destroy(r->d);
    uint32_t handle[8] = {0};
    lm_device_options o = {.threads = 2};
    r->b = lm_backend_by_name(backend);
    assert_int_equal(r->b->create(&o, &r->d, NULL), LM_OK);
    for (uint32_t i = 0; i < r->p->n_weights; i++) assert_int_equal(r->b->upload(r->d, &r->p->weight[i], &handle[i], NULL), LM_OK);
    assert_int_equal(r->b->configure(r->d, r->p, handle, NULL), LM_OK);
}
static void rig_close(rig *r) {
    if (r->d) r->b->destroy(r->d);
    lm_program_free(r->p);
}

typedef struct got { const rig *r; double *out; uint32_t base; } got;
static bool tap(void *ctx, const lm_program *p, const lm_op *op, const lm_rows *rows) {
    (void)p;
    got *g = ctx;
    for (uint32_t i = 0; op->out == g->r->watch && i < rows->n; i++)
        for (uint32_t j = 0; j < rows->width; j++) g->out[(size_t)(g->base + rows->row[i]) * rows->width + j] = lm_rows_at(rows, i, j);
    return true;
}
/* Tokens id[0..n) in calls of `step`; the watched value, row by row. The caller frees. */
static double *run(rig *r, const int32_t *id, uint32_t n, uint32_t step, uint32_t length) {
    lm_state *s = NULL;
    double *out = calloc((size_t)n * r->p->value[r->watch].width, sizeof *out);
    assert_int_equal(lm_state_create(r->p, strcmp(r->b->name, "f64") ? &lm_cache_kv[LM_KV_F32] : &lm_cache_f64, &s, NULL), LM_OK);
    for (uint32_t at = 0; at < n; at += step) {
        uint32_t k = n - at < step ? n - at : step;
        got g = {r, out, at};
        lm_run how = {.tap = tap, .tap_ctx = &g};
        lm_seq seq = {s, 0, k, at, length ? length : n};
        lm_batch b = {.n_rows = k, .n_seqs = 1, .id = id + at, .seq = &seq};
        lm_error err = {0};
        if (r->b->run(r->d, &b, &how, &err) != LM_OK) fail_msg("%s: %s", err.field, err.message);
    }
    lm_state_free(s);
    return out;
}
static double *run_rows(rig *r, uint32_t n, uint32_t step) {
    int32_t *id = calloc(n, sizeof *id);
    for (uint32_t i = 0; i < n; i++) id[i] = (int32_t)i;
    double *y = run(r, id, n, step, 0);
    free(id);
    return y;
}
static void near_on(const rig *r, const char *what, double value, double want) {
    double bound = strcmp(r->b->name, "f64") ? 4e-6 : 1e-12;
    if (!(fabs(value - want) <= bound * (1 + fabs(want)))) fail_msg("%s on %s: %.17g, wanted %.17g", what, r->b->name, value, want);
}
#define EACH_BACKEND(r) for (int k_ = 0; k_ < 2 && (rig_device(r, backends[k_]), true); k_++)

/* ---- a config and a file's tensors, without a file -----------------------------------------------------------------------------------*/
typedef struct fake { lm_source src; lm_b b; uint8_t used[64], tensor_used[4]; lm_arch arch; } fake;
static void fake_open(fake *f, const char *json, const char *gguf) {
    lm_error err = {0};
    memset(f, 0, sizeof *f);
    f->arch = (lm_arch){.name = "test", .gguf = gguf};
    f->src.kind = gguf ? LM_SOURCE_GGUF : LM_SOURCE_HF;
    assert_int_equal(lm_graph_init(&f->b.g, "test", NULL), LM_OK);
    if (lm_config_parse((const uint8_t *)json, strlen(json), "config.json", f->b.g.p->arena, &f->src.meta, &err) != LM_OK)
        fail_msg("%s", err.message);
    assert_true(f->src.meta.n <= 64);
    f->b.src = &f->src, f->b.arch = &f->arch, f->b.gguf = gguf != NULL, f->b.key_used = f->used, f->b.tensor_used = f->tensor_used;
}
static const lm_rope *fake_rope(fake *f, uint32_t head_dim) {
    uint32_t n_rot;
    lm_rope_spec s = lm_rope_read(&f->b, NULL, 1e4, 1.0);
    uint32_t i = lm_rope_table(&f->b, &s, head_dim, &n_rot);
    return lm_graph_ok(&f->b.g) ? &f->b.g.p->rope[i] : NULL;
}
static void fake_close(fake *f) { lm_program_free(f->b.g.p); }

static double f32(double x) { return (double)(float)x; }
static double plain(double theta, uint32_t i, uint32_t dim) { return 1 / pow(theta, 2.0 * i / dim); }

/* ---- rope ---------------------------------------------------------------------------------------------------------------------------*/
static void check_llama3(const lm_rope *t) {
    assert_true(t->n_pairs == 32 && t->factor == 1 && !t->border);
    for (uint32_t i = 0; i < 32; i++) {
        double base = plain(5e5, i, 64), wave = 2 * M_PI / base, mix = (8192 / wave - 1) / (4 - 1);
        if (i < 15) assert_true(t->inv_freq[i] == f32(base));
        else if (i < 18) {
            assert_true(mix > 0 && mix < 1 && t->inv_freq[i] < base && t->inv_freq[i] > base / 32);
            assert_true(fabs(t->inv_freq[i] - ((1 - mix) * base / 32 + mix * base)) <= 1e-7 * base);
        } else assert_true(t->inv_freq[i] == f32(base / 32));
    }
}
static void llama3_rope(void **state) {
    (void)state;
    static const char *const spelling[] = {"{\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":32.0,\"low_freq_"
                                           "factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}}",
                                           "{\"rope_parameters\":{\"rope_type\":\"llama3\",\"rope_theta\":5e5,\"factor\":32,\"low_freq_"
                                           "factor\":1,\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}}"};
    fake f;
    for (int i = 0; i < 2; i++) {
        fake_open(&f, spelling[i], NULL);
        const lm_rope *t = fake_rope(&f, 64);
        assert_non_null(t);
        check_llama3(t);
        if (!i) {
            fake_close(&f);
            continue;
        }
        /* positions 0, 1 and 9000 of the same row, in one run */
        enum { N = 9001 };
        rig r;
        double x[64];
        for (int j = 0; j < 64; j++) x[j] = rnd(1, (uint64_t)j);
        rig_open(&r, 1, 64, x);
        r.x = lm_op_rope(&r.g, "op", r.x, 1, 0, 64, lm_graph_rope(&r.g, t), false);
        rig_finish(&r, r.x);
        int32_t *id = calloc(N, sizeof *id);
        EACH_BACKEND(&r) {
            double *y = run(&r, id, N, N, 0);
            const uint32_t at[3] = {0, 1, 9000};
            for (int q = 0; q < 3; q++)
                for (int k = 0; k < 32; k++) {
                    double a = at[q] * t->inv_freq[k], c = cos(a), s = sin(a), *row = y + (size_t)at[q] * 64;
                    near_on(&r, "rotated", row[k], x[k] * c - x[k + 32] * s);
                    near_on(&r, "rotated", row[k + 32], x[k + 32] * c + x[k] * s);
                }
            free(y);
        }
        free(id);
        rig_close(&r);
        fake_close(&f);
    }
    fake_open(&f, "{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":32.0}}", NULL); /* no original length */
    assert_null(fake_rope(&f, 64));
    fake_close(&f);
}

/* GGUF: llama3's scaling comes as divisors. Read and used, or refused. */
static void rope_freqs(void **state) {
    (void)state;
    for (int bad = 0; bad < 4; bad++) {
        fake f;
        fake_open(&f,
                  bad == 3 ? "{\"llama\":{\"rope\":{\"freq_base\":500000.0,\"scaling\":{\"type\":\"yarn\",\"factor\":4.0,\"original_"
                             "context_length\":64}}}}"
                           : "{\"llama\":{\"rope\":{\"freq_base\":500000.0}}}",
                  "llama");
        float v[32];
        for (int i = 0; i < 32; i++) v[i] = i < 15 ? 1 : 2 + (float)i;
        if (bad == 1) v[7] = 0;
        lm_tensor t = {.name = "rope_freqs.weight",
                       .type = lm_dtype_by_name("F32"),
                       .rank = 1,
                       .dim = {bad == 2 ? 31 : 32},
                       .data = (const uint8_t *)v,
                       .bytes = sizeof v};
        f.src.tensor = &t, f.src.n_tensors = 1;
        const lm_rope *r = fake_rope(&f, 64);
        assert_int_equal(f.tensor_used[0], 1);
        if (bad) assert_null(r);
        else {
            assert_non_null(r);
            for (uint32_t i = 0; i < 32; i++) assert_true(r->inv_freq[i] == f32(plain(5e5, i, 64) / (double)v[i]));
        }
        fake_close(&f);
    }
}

static void longrope(void **state) {
    (void)state;
    fake f;
    fake_open(&f,
              "{\"original_max_position_embeddings\":4096,\"max_position_embeddings\":131072,\"rope_scaling\":{\"type\":\"longrope\","
              "\"short_factor\":[1.0,1.5],\"long_factor\":[2.0,40.0]}}",
              NULL);
    f.b.hp.max_position = 131072;
    const lm_rope *t = fake_rope(&f, 4);
    assert_non_null(t);
    assert_true(fabs(t->factor - sqrt(1 + log(32) / log(4096))) < 1e-12 && fabs(t->factor - 1.1902) < 5e-5 && t->border == 4096);
    assert_true(t->inv_freq[1] == f32(plain(1e4, 1, 4) / 1.5) && t->inv_freq_long[1] == f32(plain(1e4, 1, 4) / 40) &&
                t->inv_freq_long[0] == 0.5);
    rig r;
    const double x[4] = {1, 0.5, -0.25, 2};
    rig_open(&r, 1, 4, x);
    r.x = lm_op_rope(&r.g, "op", r.x, 1, 0, 4, lm_graph_rope(&r.g, t), false);
    rig_finish(&r, r.x);
    const int32_t id[5] = {0};
    EACH_BACKEND(&r)
    for (uint32_t length = 4095; length <= 4097; length++) { /* five tokens of a sequence that will be so long */
        double *y = run(&r, id, 5, 2, length);
        const double *freq = length > 4096 ? t->inv_freq_long : t->inv_freq;
        for (int p = 0; p < 5; p++)
            for (int k = 0; k < 2; k++)
                near_on(&r, "longrope", y[p * 4 + k], t->factor * (x[k] * cos(p * freq[k]) - x[k + 2] * sin(p * freq[k])));
        free(y);
    }
    rig_close(&r);
    fake_close(&f);
}

/* ---- what a family makes of an edited config ----------------------------------------------------------------------------------------*/
static lm_source *open_fixture(const char *path) {
    lm_source *s = NULL;
    lm_error err = {0};
    if (lm_source_open(path, &s, &err) != LM_OK) fail_msg("%s: %s", path, err.message);
    return s;
}
static lm_value *value_of(lm_source *s, const char *key) {
    for (uint32_t i = 0; i < s->meta.n; i++)
        if (!strcmp(s->meta.entry[i].key, key)) return (lm_value *)(uintptr_t)&s->meta.entry[i].value;
    fail_msg("the fixture has no %s", key);
    return NULL;
}
static lm_program *build(const lm_source *s) {
    lm_program *p = NULL;
    lm_error err = {0};
    if (lm_arch_build(s, &p, NULL, NULL, NULL, &err) != LM_OK) fail_msg("%s: %s", err.field, err.message);
    return p;
}
static const lm_op *find(const lm_program *p, lm_op_kind kind) {
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->op[i].kind == kind) return &p->op[i];
    return NULL;
}

static void yarn_magnitudes(void **state) {
    (void)state;
    const double one = 0.1 * log(40) + 1, v2 = 0.1 * 0.707 * log(40) + 1;
    const struct {
        double mscale, all, rope, softmax;
    } row[] = {{0.707, 0.707, 1, 1.5896}, {1, 1, 1, 1.8739}, {1, 0, one, 1}, {0.707, 1, v2 / one, 1.8739}};
    for (int f = 0; f < 2; f++) {
        lm_source *s = open_fixture(f ? "tests/fixtures/deepseek_v3" : "tests/fixtures/deepseek_v2_lite");
        for (int i = 0; i < 4; i++) {
            *value_of(s, "rope_scaling.factor") = (lm_value){.kind = LM_V_FLOAT, .f = 40};
            *value_of(s, "rope_scaling.mscale") = (lm_value){.kind = LM_V_FLOAT, .f = row[i].mscale};
            *value_of(s, "rope_scaling.mscale_all_dim") = (lm_value){.kind = LM_V_FLOAT, .f = row[i].all};
            lm_program *p = build(s);
            const lm_op *o = find(p, LM_OP_MLA);
            double softmax = o->mla.scale * sqrt((double)(o->mla.nope + o->mla.rope));
            if (fabs(p->rope[0].factor - row[i].rope) > 1e-12 || fabs(softmax - row[i].softmax) > 5e-5)
                fail_msg("mscale %g, %g: rope %g, softmax × %g", row[i].mscale, row[i].all, p->rope[0].factor, softmax);
            lm_program_free(p);
        }
        lm_source_close(s);
    }
}

static void softcaps(void **state) {
    (void)state;
    lm_source *s = open_fixture("tests/fixtures/gemma2");
    lm_value *last = value_of(s, "final_logit_softcapping"), *att = value_of(s, "attn_logit_softcapping");
    for (int i = 0; i < 2; i++) {
        *last = i ? (lm_value){.kind = LM_V_NULL} : (lm_value){.kind = LM_V_FLOAT, .f = 5};
        *att = i ? (lm_value){.kind = LM_V_NULL} : (lm_value){.kind = LM_V_FLOAT, .f = 2};
        lm_program *p = build(s);
        const lm_op *cap = find(p, LM_OP_SOFTCAP);
        if (i) assert_null(cap);
        else assert_true(cap && cap->softcap.c == 5);
        assert_true(find(p, LM_OP_ATTENTION)->attn.softcap == (i ? 0 : 2));
        lm_program_free(p);
    }
    lm_source_close(s);
    rig r;
    const double x[6] = {-100, -5, -0.01, 0, 3, 100};
    rig_open(&r, 1, 6, x);
    rig_finish(&r, lm_op_softcap(&r.g, "op", r.x, 5));
    EACH_BACKEND(&r) {
        double *y = run_rows(&r, 1, 1);
        for (int i = 0; i < 6; i++) near_on(&r, "5 tanh(x/5)", y[i], 5 * tanh(f32(x[i]) / 5));
        free(y);
    }
    rig_close(&r);
}

static void embedding_scale(void **state) {
    (void)state;
    assert_true(lm_bf16_to_f32(lm_f32_to_bf16((float)sqrt(3840))) == 62.0f && lm_bf16_to_f32(lm_f32_to_bf16((float)sqrt(3072))) == 55.5f);
    static const char *const family[] = {"tests/fixtures/gemma2", "tests/fixtures/gemma3"};
    for (int i = 0; i < 2; i++) {
        lm_source *s = open_fixture(family[i]);
        lm_program *p = build(s);
        const lm_op *o = &p->op[p->value[p->embed].first];
        assert_true(o->kind == LM_OP_SCALE && o->scale.bf16 && fabs(o->scale.c - sqrt(p->hidden)) < 1e-12);
        lm_program_free(p);
        lm_source_close(s);
    }
}

/* A trace with every op's result holds each under its name. */
static void names_are_unique(void **state) {
    (void)state;
    static const char *const family[] = {"tests/fixtures/gemma3n", "tests/fixtures/qwen3_5", "tests/fixtures/qwen3_next",
                                         "tests/fixtures/deepseek_v32", "tests/fixtures/gemma4_moe"};
    for (size_t f = 0; f < sizeof family / sizeof *family; f++) {
        lm_source *s = open_fixture(family[f]);
        lm_program *p = build(s);
        for (uint32_t i = 0; i < p->n_ops; i++) {
            assert_true(p->op[i].layer < 0 || !strncmp(p->op[i].name, "layer.", 6));
            for (uint32_t j = 0; j < i; j++)
                if (!strcmp(p->op[i].name, p->op[j].name)) fail_msg("%s: two results are called %s", family[f], p->op[i].name);
        }
        lm_program_free(p);
        lm_source_close(s);
    }
}

/* ---- attention ----------------------------------------------------------------------------------------------------------------------*/
/* Window 4 over 8 tokens (and 300, around pages and the ring): query p sees keys p−3 … p; caps go before the mask. */
static void windows(void **state) {
    (void)state;
    enum { N = 300, W = 3 * 4 };
    static double table[N * W];
    for (size_t i = 0; i < N * W; i++) table[i] = rnd(3, i);
    for (int cap = 0; cap < 2; cap++) {
        rig r;
        rig_open(&r, N, W, table);
        lm_op o = lm_op_blank();
        o.a = part(&r, 0, 4), o.b = part(&r, 4, 4), o.c = part(&r, 8, 4);
        o.attn.heads = o.attn.kv_heads = 1, o.attn.dk = o.attn.dv = 4, o.attn.window = 4, o.attn.scale = 3, o.attn.softcap = cap ? 2 : 0,
        o.attn.store = true;
        o.attn.slot = lm_graph_slot(&r.g, LM_CACHE_KV, 1, 4, 4, 4);
        rig_finish(&r, lm_op_custom(&r.g, LM_OP_ATTENTION, "op", 4, &o));
        EACH_BACKEND(&r)
        for (int how = 0; how < 6; how++) {
            const uint32_t n[6] = {8, 8, 8, N, N, N}, step[6] = {8, 1, 3, N, 1, 7};
            double *y = run_rows(&r, n[how], step[how]);
            for (uint32_t p = 0; p < n[how]; p++) {
                double sum = 0, out[4] = {0};
                for (uint32_t j = p < 3 ? 0 : p - 3; j <= p; j++) {
                    double s = 0;
                    for (int i = 0; i < 4; i++) s += 3 * table[p * W + (uint32_t)i] * table[j * W + 4 + (uint32_t)i];
                    if (cap) s = 2 * tanh(s / 2);
                    sum += exp(s);
                    for (int i = 0; i < 4; i++) out[i] += exp(s) * table[j * W + 8 + (uint32_t)i];
                }
                for (int i = 0; i < 4; i++) near_on(&r, "window 4", y[p * 4 + (uint32_t)i], out[i] / sum);
            }
            free(y);
        }
        rig_close(&r);
    }
}

/* ---- routing, activation, ties ------------------------------------------------------------------------------------------------------*/
static double sig(double x) { return 1 / (1 + exp(-x)); }
static void routing(void **state) {
    (void)state;
    /* σ + bias chooses 4 (0.62 + 0.5) and 1 (0.73 + 0.5) of eight; their weights are of σ alone. Row 2: all tied, the lowest two. */
    const double logit[2][8] = {{2, 1, 1.5, -1, 0.5, 0, -2, 1.9}, {1, 1, 1, 1, 1, 1, 1, 1}},
                 bias[8] = {-0.5, 0.5, -0.5, 0.5, 0.5, -0.5, 0.5, -0.5}, none[8] = {0};
    for (int tie = 0; tie < 2; tie++)
        for (int renorm = 0; renorm < 2; renorm++) {
            rig r;
            rig_open(&r, 1, 8, logit[tie]);
            lm_op o = lm_op_blank();
            o.a = r.x, o.v = vec(&r, tie ? none : bias, 8);
            o.route.n = 8, o.route.k = 2, o.route.groups = o.route.topk_groups = 1, o.route.score = LM_ROUTE_SIGMOID,
            o.route.renorm = renorm;
            o.route.renorm_eps = 1e-20, o.route.scale = 2.5;
            rig_finish(&r, lm_op_custom(&r.g, LM_OP_ROUTE, "op", 4, &o));
            EACH_BACKEND(&r) {
                double *y = run_rows(&r, 1, 1), all = renorm ? (tie ? 2 * sig(1) : sig(1) + sig(0.5)) : 1;
                assert_true(y[0] == (tie ? 0 : 1) && y[1] == (tie ? 1 : 4));
                near_on(&r, "weight", y[2], 2.5 * sig(1) / all);
                near_on(&r, "weight", y[3], 2.5 * sig(tie ? 1 : 0.5) / all);
                free(y);
            }
            rig_close(&r);
        }
}

static void clamped_swiglu(void **state) {
    (void)state;
    const double g[8] = {20, 20, -20, -20, 7, 7.5, 0.5, -7}, u[8] = {20, -20, 20, -20, 7, -7.5, 0.25, 7};
    double x[16];
    memcpy(x, g, sizeof g);
    memcpy(x + 8, u, sizeof u);
    rig r;
    rig_open(&r, 1, 16, x);
    rig_finish(&r, lm_op_gated(&r.g, "op", part(&r, 0, 8), part(&r, 8, 8), LM_ACT_SWIGLU_OAI, 7, 1.702));
    EACH_BACKEND(&r) {
        double *y = run_rows(&r, 1, 1);
        for (int i = 0; i < 8; i++) {
            double a = fmin(g[i], 7), b = fmax(-7, fmin(u[i], 7));
            near_on(&r, "(up + 1) g σ(1.702 g)", y[i], (b + 1) * a * sig(1.702 * a));
        }
        free(y);
    }
    rig_close(&r);
}

static void ties(void **state) {
    (void)state;
    const double row[6] = {1, 4, 4, -1, 4, 0}, nan_row[3] = {NAN, 2, 2};
    assert_int_equal(lm_argmax_row(row, 6), 1);
    assert_int_equal(lm_argmax_row(nan_row, 3), LM_NO_ID);
    const float f[6] = {1, 4, 4, -1, 4, 0};
    const uint32_t position = 0;
    lm_logits l = {.data = f, .rows = 1, .width = 6, .position = &position};
    lm_sampler *s = NULL;
    int32_t id;
    lm_sampler_options o = LM_SAMPLER_DEFAULTS;
    assert_int_equal(lm_sampler_create(&o, 6, &s, NULL), LM_OK);
    assert_int_equal(lm_sampler_pick(s, &l, 0, NULL, 0, 0, &id, NULL), LM_OK);
    assert_int_equal(id, 1);
    lm_sampler_free(s);
    o.temperature = 1, o.top_k = 2; /* the last place goes to 2, never to 4 */
    assert_int_equal(lm_sampler_create(&o, 6, &s, NULL), LM_OK);
    uint32_t seen = 0;
    for (uint64_t step = 0; step < 200; step++) {
        assert_int_equal(lm_sampler_pick(s, &l, 0, NULL, 0, step, &id, NULL), LM_OK);
        seen |= 1u << id;
    }
    assert_int_equal(seen, 6);
    lm_sampler_free(s);
}

/* ---- the delta rule -----------------------------------------------------------------------------------------------------------------*/
static void delta_rule(void **state) {
    (void)state;
    enum { KH = 1, VH = 2, K = 16, V = 20, W = 2 * K + VH * V + 2 * VH, N = 130 };
    static double table[N * W];
    for (int t = 0; t < N; t++)
        for (int i = 0; i < W; i++) {
            double x = rnd(4, (uint64_t)(t * W + i));
            /* log-decay < 0, 0 < beta < 1 */
            table[t * W + i] = f32(i < 2 * K ? x / 3 : i < W - 2 * VH ? x : i < W - VH ? -fabs(x) : fabs(x));
        }
    rig r;
    rig_open(&r, N, W, table);
    lm_op o = lm_op_blank();
    o.a = part(&r, 0, K), o.b = part(&r, K, K), o.c = part(&r, 2 * K, VH * V), o.d = part(&r, 2 * K + VH * V, 2 * VH);
    o.delta.k_heads = KH, o.delta.v_heads = VH, o.delta.dk = K, o.delta.dv = V, o.delta.q_scale = 0.25;
    o.delta.slot = lm_graph_slot(&r.g, LM_CACHE_DELTA, VH, K, V, 0);
    rig_finish(&r, lm_op_custom(&r.g, LM_OP_DELTA, "op", VH * V, &o));
    EACH_BACKEND(&r) {
        double *longest = run_rows(&r, N, N);
        for (int h = 0; h < VH; h++) { /* the recurrence, written out */
            double S[K][V] = {{0}};
            for (int t = 0; t < N; t++) {
                const double *in = table + t * W, *q = in, *k = in + K, *v = in + 2 * K + h * V, *g = in + 2 * K + VH * V;
                for (int j = 0; j < V; j++) {
                    double seen = 0, out = 0;
                    for (int i = 0; i < K; i++) seen += (S[i][j] *= exp(g[h])) * k[i];
                    for (int i = 0; i < K; i++) S[i][j] += k[i] * (v[j] - seen) * g[VH + h];
                    for (int i = 0; i < K; i++) out += S[i][j] * q[i] * 0.25;
                    near_on(&r, "delta", longest[t * VH * V + h * V + j], out);
                }
            }
        }
        const uint32_t length[] = {5, 63, 64, 65, 128, 129}, split[] = {1, 2, 5, 31, 63, 64, 65};
        for (size_t a = 0; a < sizeof length / sizeof *length; a++)
            for (size_t b = 0; b < sizeof split / sizeof *split; b++) {
                double *y = run_rows(&r, length[a], split[b]);
                if (memcmp(y, longest, (size_t)length[a] * VH * V * sizeof *y))
                    fail_msg("delta on %s: %u tokens by %u differ from the whole", r.b->name, length[a], split[b]);
                free(y);
            }
        free(longest);
    }
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama3_rope), cmocka_unit_test(rope_freqs),      cmocka_unit_test(longrope), cmocka_unit_test(yarn_magnitudes),
        cmocka_unit_test(softcaps),    cmocka_unit_test(embedding_scale), cmocka_unit_test(windows),  cmocka_unit_test(routing),
        cmocka_unit_test(clamped_swiglu), cmocka_unit_test(ties),         cmocka_unit_test(delta_rule), cmocka_unit_test(names_are_unique),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
