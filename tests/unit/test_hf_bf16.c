/* Lane hf-bf16, one rounding point at a time: each is moved or dropped, and the run must then be further from transformers' bfloat16 trace
 * than the lane is. */
#include "check.h"
#include "base/smallfloat.h"
#include "verify/verify.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { WIDEST = 1024, SHORT = 100 };

/* ---- what is dropped -------------------------------------------------------------------------------------------------------------- */
typedef struct drop {
    const char *fixture, *what;
    void (*rules)(lm_program *p);                            /* in the program, before the device sees it */
    void (*result)(const lm_program *p, const lm_edit *e);   /* of an op, after it: recomputed without the point */
} drop;

static void norm_cast(lm_program *p) { p->bf16.norm_cast_first = !p->bf16.norm_cast_first; }
static void rope_wide(lm_program *p) { p->bf16.rope_wide = !p->bf16.rope_wide; }
static void plus_one(lm_program *p) { p->bf16.norm_plus_one = !p->bf16.norm_plus_one; }
static void embed_scale(lm_program *p) {
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->op[i].kind == LM_OP_SCALE && p->op[i].out == p->embed) p->op[i].scale.bf16 = !p->op[i].scale.bf16;
}

static double *at(const lm_program *p, double *base, lm_val v, uint32_t i) { return base + (size_t)i * p->value[v].width; }
static void add(const lm_program *p, const lm_edit *e) {
    if (e->op->kind != LM_OP_ADD) return;
    for (size_t i = 0; i < (size_t)e->n * p->value[e->op->out].width; i++) e->out[i] = e->in[0][i] + e->in[1][i];
}
static double to_bf16(double x) { return lm_bf16_to_f32(lm_f32_to_bf16((float)x)); }
static void gated(const lm_program *p, const lm_edit *e) {
    if (e->op->kind != LM_OP_GATED) return;
    for (size_t i = 0; i < (size_t)e->n * p->value[e->op->out].width; i++) {
        const double g = e->in[0][i];
        e->out[i] = to_bf16(g / (1 + exp(-g)) * e->in[1][i]);
    }
}
static void softcap(const lm_program *p, const lm_edit *e) {
    if (e->op->kind != LM_OP_SOFTCAP) return;
    for (size_t i = 0; i < (size_t)e->n * p->value[e->op->out].width; i++)
        e->out[i] = to_bf16(e->op->softcap.c * tanh(e->in[0][i] / e->op->softcap.c));
}
static void linear(const lm_program *p, const lm_edit *e) {
    static double row[WIDEST];
    if (e->op->kind != LM_OP_LINEAR) return;
    const lm_weight *w = &p->weight[e->op->w];
    assert_true(w->cols <= WIDEST);
    for (uint32_t r = 0; r < w->rows; r++) {
        lm_weight_row_f64(w, 0, r, row);
        for (uint32_t i = 0; i < e->n; i++) {
            double s = e->op->v == LM_NONE ? 0 : p->vec[e->op->v].v[r];
            for (uint32_t j = 0; j < w->cols; j++) s += row[j] * at(p, e->in[0], e->op->a, i)[j];
            at(p, e->out, e->op->out, i)[r] = s;
        }
    }
}
/* Eager attention over a prompt that is one batch; `scores`, `weights`: whether they are rounded. */
static void attend(const lm_program *p, const lm_edit *e, bool scores, bool weights) {
    static double s[WIDEST];
    const lm_op *o = e->op;
    if (o->kind != LM_OP_ATTENTION || !o->attn.store) return;
    for (uint32_t i = 0; i < e->n; i++)
        for (uint32_t h = 0; h < o->attn.heads; h++) {
            const uint32_t kv = h / (o->attn.heads / o->attn.kv_heads),
                           first = o->attn.window && i >= o->attn.window ? i - o->attn.window + 1 : 0;
            const double *q = at(p, e->in[0], o->a, i) + h * o->attn.dk;
            double *out = at(p, e->out, o->out, i) + h * o->attn.dv, most = -INFINITY, sum = 0;
            for (uint32_t j = first; j <= i; j++) {
                const double *k = at(p, e->in[1], o->b, j) + kv * o->attn.dk;
                s[j] = 0;
                for (uint32_t x = 0; x < o->attn.dk; x++) s[j] += q[x] * k[x];
                s[j] = scores ? to_bf16(to_bf16(s[j]) * o->attn.scale) : s[j] * o->attn.scale;
                most = fmax(most, s[j]);
            }
            for (uint32_t j = first; j <= i; j++) sum += s[j] = exp(s[j] - most);
            memset(out, 0, o->attn.dv * sizeof *out);
            for (uint32_t j = first; j <= i; j++) {
                const double *v = at(p, e->in[2], o->c, j) + kv * o->attn.dv, w = weights ? to_bf16(s[j] / sum) : s[j] / sum;
                for (uint32_t x = 0; x < o->attn.dv; x++) out[x] += w * v[x];
            }
            for (uint32_t x = 0; x < o->attn.dv; x++) out[x] = to_bf16(out[x]);
        }
}
static void same(const lm_program *p, const lm_edit *e) { attend(p, e, true, true); }
static void scores(const lm_program *p, const lm_edit *e) { attend(p, e, false, true); }
static void weights(const lm_program *p, const lm_edit *e) { attend(p, e, true, false); }

/* ---- a run ------------------------------------------------------------------------------------------------------------------------- */
typedef struct met {
    const lm_trace_case *c;
    const drop *d;
    uint32_t vocab, equal, n;
    double sum;
} met;

static bool on_edit(void *ctx, const lm_program *p, const lm_edit *e) {
    const met *m = ctx;
    if (!e->before) m->d->result(p, e);
    return true;
}
static bool on_logits(void *ctx, const lm_rows *rows) {
    met *m = ctx;
    double *x = calloc(m->vocab, sizeof *x), *ref = calloc(m->c->n_top, sizeof *ref);
    for (uint32_t i = 0; i < rows->n; i++) {
        double most = 0;
        lm_rows_f64(rows, i, x);
        lm_tensor_row_f64(m->c->top_logprobs, rows->row[i], ref);
        const double lse = lm_log_sum_exp(x, m->vocab);
        for (uint32_t k = 0; k < m->c->n_top; k++) {
            const double d = fabs(x[m->c->top_ids[(size_t)rows->row[i] * m->c->n_top + k]] - lse - ref[k]);
            m->sum += d / m->c->n_top;
            most = fmax(most, d / fmax(1, fabs(ref[k])));
        }
        m->equal += most <= 0x1p-23;
        m->n++;
    }
    free(x);
    free(ref);
    return true;
}

static met run(const drop *d, bool dropped) {
    char model[128], path[128];
    lm_error err = {0};
    lm_engine *files = NULL, *e = NULL;
    lm_trace *t = NULL;
    const lm_engine_options f64 = {.backend = "f64", .device = {.threads = 1}},
                            lane = {.backend = "f64", .device = {.threads = 1, .lane = "hf-bf16"}};
    snprintf(model, sizeof model, "tests/fixtures/%s", d->fixture);
    snprintf(path, sizeof path, "tests/fixtures/bf16/%s.safetensors", d->fixture);
    if (!strcmp(d->fixture, "tower")) snprintf(path, sizeof path, "tests/fixtures/tower/oracle-bf16.safetensors");
    if (lm_engine_open(model, &f64, &files, &err) != LM_OK) fail_msg("%s: %s", model, err.message);
    if (dropped && d->rules) d->rules(files->program);
    if (lm_engine_share(files, &lane, &e, &err) != LM_OK || lm_trace_open(path, e->program, &t, &err) != LM_OK)
        fail_msg("%s: %s", path, err.message);
    met m = {.d = d, .vocab = e->program->vocab};
    for (uint32_t k = 0; k < t->n_cases; k++) {
        lm_state *state = NULL;
        m.c = &t->c[k];
        if (m.c->n > SHORT) continue;
        uint8_t *want = malloc(m.c->n);
        memset(want, 1, m.c->n);
        assert_int_equal(lm_state_create(e->program, e->backend->cache(e->device), &state, &err), LM_OK);
        const lm_seq seq = {.state = state, .n = m.c->n, .length = m.c->n};
        const lm_batch b = {.n_rows = m.c->n, .n_seqs = 1, .id = m.c->ids, .want = want, .seq = &seq};
        const lm_run r = {.edit = dropped && d->result ? on_edit : NULL, .edit_ctx = &m, .logits = on_logits, .logits_ctx = &m};
        if (e->backend->run(e->device, &b, &r, &err) != LM_OK) fail_msg("%s: %s", model, err.message);
        lm_state_free(state);
        free(want);
    }
    lm_trace_close(t);
    lm_engine_close(e);
    lm_engine_close(files);
    m.sum /= m.n;
    return m;
}

/* ---- the tests ---------------------------------------------------------------------------------------------------------------------- */
static const drop points[] = {
    {"llama", "a norm rounded once, after the weight", norm_cast, NULL},
    {"gemma2", "a norm rounded before the weight", norm_cast, NULL},
    {"gemma2", "a norm's 1 + w rounded as a whole", plus_one, NULL},
    {"qwen2", "rotation in float32", rope_wide, NULL},
    {"olmo2", "rotation in bfloat16", rope_wide, NULL},
    {"tower", "an embedding scale that isn't rounded", embed_scale, NULL}, /* the others' is 8 */
    {"qwen2", "residual sums", NULL, add},
    {"qwen2", "the activation before up", NULL, gated},
    {"qwen2", "products with weights", NULL, linear},
    {"qwen2", "attention's scores", NULL, scores},
    {"qwen2", "attention's weights", NULL, weights},
    {"tower", "the steps of the soft-cap", NULL, softcap},
};

static void each_point_counts(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        const met sound = run(&points[i], false), less = run(&points[i], true);
        print_message("%-14s %-42s %u of %u equal, mean %.4g; without: %u, %.4g\n", points[i].fixture, points[i].what, sound.equal, sound.n,
                      sound.sum, less.equal, less.sum);
        if (!(less.sum > sound.sum && 2 * less.equal < sound.equal))
            fail_msg("%s, %s: as close without it (%u and %u equal, mean %g and %g)", points[i].fixture, points[i].what, sound.equal,
                     less.equal, sound.sum, less.sum);
    }
}

/* The recomputation that drops attention's points is the lane's own when it drops none. */
static void recomputed_attention_is_the_same(void **state) {
    (void)state;
    const drop none = {"qwen2", "nothing", NULL, same};
    const met a = run(&none, false), b = run(&none, true);
    assert_int_equal(a.equal, b.equal);
    assert_true(a.sum == b.sum);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_point_counts),
        cmocka_unit_test(recomputed_attention_is_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
