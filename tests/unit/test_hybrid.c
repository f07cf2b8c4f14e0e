/* The hybrid against llama.cpp's run of the same file: which difference between two engines moves the logits, and by how much. One at a
 * time is put into the arbiter, by editing operands or results, over the peer's own tokens (prompt and continuation). A few prompts are a
 * test; with --table, all thirty, as the table of docs/hybrid.md. With --swing MODEL TRACE N: how far 8-bit activations move the margin
 * between the two best tokens of another model, over the first N tokens of each of the trace's prompts.
 */
#include "check.h"
#include "base/smallfloat.h"
#include "verify/verify.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define MODEL "tests/fixtures/hybrid/hybrid-q4_k_m.gguf"
#define PEER "tests/fixtures/hybrid/peer.safetensors"
enum { BEST = 64, CHUNK = 64, MOST = 64 }; /* MOST: dims of a head */

/* ---- candidates --------------------------------------------------------------------------------------------------------------------- */
enum {
    /* inputs of products with quantized weights, as llama.cpp rounds them: blocks of 256 (Q8_K) for K-quants, else 32 */
    Q8 = 1 << 0,
    INPUT_BF16 = 1 << 1,   /* inputs of all products */
    RESULT_F32 = 1 << 2,   /* every op's result */
    SCAN_F32 = 1 << 3,     /* the delta rule, one token at a time, in float32 */
    CHUNKED_F64 = 1 << 4,  /* by chunks of 64, in double */
    CHUNKED_F32 = 1 << 5,
    STATE_F16 = 1 << 6,    /* the delta rule's state after each token */
    STATE_BF16 = 1 << 7,
    CONV_F16 = 1 << 8,     /* what the convolution remembers and reads */
    CONV_BF16 = 1 << 9,
    KV_F16 = 1 << 10,
    KV_BF16 = 1 << 11,
};
typedef struct candidate {
    const char *name, *backend, *lane;
    unsigned edits;
} candidate;
static const candidate all[] = {
    {"nothing: the arbiter", "f64", NULL, 0},
    {"**order of the scan**: chunks of 64, in double", "f64", NULL, CHUNKED_F64},
    {"the scan in float32, token by token", "f64", NULL, SCAN_F32},
    {"the scan in float32, chunks of 64", "f64", NULL, CHUNKED_F32},
    {"**accumulation**: every result rounded to float32, exact sums", "f64", NULL, RESULT_F32},
    {"float32 sums too: `cpu`, lane `f32`", "cpu", "f32", 0},
    {"**activation rounding**: 16 bits, blocks of 32: `cpu`, lane `i16`", "cpu", "i16", 0},
    {"bfloat16, inputs of products", "f64", NULL, INPUT_BF16},
    {"8 bits, blocks of 32: `cpu`, lane `i8`", "cpu", "i8", 0},
    {"8 bits, blocks of 256 (Q8_K, as llama.cpp)", "f64", NULL, Q8},
    {"**caches**: keys and values in float16", "f64", NULL, KV_F16},
    {"keys and values in bfloat16", "f64", NULL, KV_BF16},
    {"convolution's memory in float16", "f64", NULL, CONV_F16},
    {"convolution's memory in bfloat16", "f64", NULL, CONV_BF16},
    {"delta rule's state in float16", "f64", NULL, STATE_F16},
    {"delta rule's state in bfloat16", "f64", NULL, STATE_BF16},
    {"**llama.cpp's together**: Q8_K, float32 results, chunks in float32", "f64", NULL, Q8 | RESULT_F32 | CHUNKED_F32},
};
enum { N_ALL = sizeof all / sizeof *all };

static double f16(double x) { return lm_f16_to_f32(lm_f32_to_f16((float)x)); }
static double bf16(double x) { return lm_bf16_to_f32(lm_f32_to_bf16((float)x)); }
static double wide(double x) { return x; }
static double f32(double x) { return (float)x; }
typedef double (*rounding)(double);

static void round_all(double *x, size_t n, rounding r) {
    for (size_t i = 0; i < n; i++) x[i] = r(x[i]);
}
/* A block's scale is −127 over its element of largest magnitude. */
static void round_q8_k(double *x, size_t n) {
    for (size_t b = 0; b < n; b += 256) {
        float most = 0;
        for (size_t i = b; i < b + 256; i++)
            if (fabsf((float)x[i]) > fabsf(most)) most = (float)x[i];
        if (most == 0) continue;
        const float scale = -127.f / most;
        for (size_t i = b; i < b + 256; i++) x[i] = fmin(127, rint((double)(scale * (float)x[i]))) * (double)(1 / scale);
    }
}

/* The scale is stored as a half, the integers are made with it as it was. */
static void round_q8_0(double *x, size_t n) {
    for (size_t b = 0; b < n; b += 32) {
        float most = 0;
        for (size_t i = b; i < b + 32; i++) most = fmaxf(most, fabsf((float)x[i]));
        const float scale = most / 127, by = scale > 0 ? 1 / scale : 0;
        for (size_t i = b; i < b + 32; i++) x[i] = (double)roundf((float)x[i] * by) * f16((double)scale);
    }
}

/* ---- the delta rule, again -------------------------------------------------------------------------------------------------------- */
typedef struct head { /* one head's rows */
    uint32_t n, dk, dv;
    const double *q[512], *k[512], *v[512];
    double g[512], beta[512], *out[512], q_scale;
} head;

/* r: after every operation; keep: what the state is stored as after each token. */
static void scan(const head *h, rounding r, rounding keep) {
    static double S[MOST][MOST], d[MOST];
    memset(S, 0, sizeof S);
    for (uint32_t t = 0; t < h->n; t++) {
        const double decay = r(exp(h->g[t]));
        memset(d, 0, sizeof d);
        for (uint32_t j = 0; j < h->dk; j++)
            for (uint32_t x = 0; x < h->dv; x++) {
                S[j][x] = r(S[j][x] * decay);
                d[x] = r(d[x] + r(S[j][x] * h->k[t][j]));
            }
        for (uint32_t x = 0; x < h->dv; x++) d[x] = r(r(h->v[t][x] - d[x]) * h->beta[t]), h->out[t][x] = 0;
        for (uint32_t j = 0; j < h->dk; j++)
            for (uint32_t x = 0; x < h->dv; x++) {
                S[j][x] = r(S[j][x] + r(h->k[t][j] * d[x]));
                h->out[t][x] = r(h->out[t][x] + r(S[j][x] * r(h->q[t][j] * h->q_scale)));
                S[j][x] = keep(S[j][x]);
            }
    }
}

static double dot(const double *a, const double *b, uint32_t n, rounding r) {
    double s = 0;
    for (uint32_t i = 0; i < n; i++) s = r(s + r(a[i] * b[i]));
    return s;
}
/* Tokens c … c+n−1 of the head, after state S: the updates of the chunk come from a triangular system instead of one another. */
static void chunk(const head *h, uint32_t c, uint32_t n, double S[MOST][MOST], rounding r) {
    static double u[CHUNK][MOST], w[CHUNK][MOST], cum[CHUNK], pair[CHUNK][CHUNK];
    for (uint32_t i = 0; i < n; i++) cum[i] = r((i ? cum[i - 1] : 0) + h->g[c + i]);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j <= i; j++) pair[i][j] = r(exp(r(cum[i] - cum[j])));
        for (uint32_t x = 0; x < h->dv; x++) u[i][x] = r(h->v[c + i][x] * h->beta[c + i]);
        for (uint32_t x = 0; x < h->dk; x++) w[i][x] = r(r(h->k[c + i][x] * h->beta[c + i]) * r(exp(cum[i])));
        for (uint32_t j = 0; j < i; j++) {
            const double a = r(r(h->beta[c + i] * dot(h->k[c + i], h->k[c + j], h->dk, r)) * pair[i][j]);
            for (uint32_t x = 0; x < h->dv; x++) u[i][x] = r(u[i][x] - r(a * u[j][x]));
            for (uint32_t x = 0; x < h->dk; x++) w[i][x] = r(w[i][x] - r(a * w[j][x]));
        }
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t x = 0; x < h->dv; x++) {
            double s = 0;
            for (uint32_t j = 0; j < h->dk; j++) s = r(s + r(w[i][j] * S[j][x]));
            u[i][x] = r(u[i][x] - s);
        }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t x = 0; x < h->dv; x++) {
            double s = 0;
            for (uint32_t j = 0; j < h->dk; j++) s = r(s + r(r(r(h->q[c + i][j] * h->q_scale) * r(exp(cum[i]))) * S[j][x]));
            h->out[c + i][x] = s;
        }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j <= i; j++) {
            const double a = r(r(dot(h->q[c + i], h->k[c + j], h->dk, r) * h->q_scale) * pair[i][j]);
            for (uint32_t x = 0; x < h->dv; x++) h->out[c + i][x] = r(h->out[c + i][x] + r(a * u[j][x]));
        }
    for (uint32_t j = 0; j < h->dk; j++)
        for (uint32_t x = 0; x < h->dv; x++) {
            double s = r(S[j][x] * r(exp(cum[n - 1])));
            for (uint32_t i = 0; i < n; i++) s = r(s + r(r(h->k[c + i][j] * pair[n - 1][i]) * u[i][x]));
            S[j][x] = s;
        }
}
static void chunks(const head *h, rounding r) {
    static double S[MOST][MOST];
    memset(S, 0, sizeof S);
    for (uint32_t c = 0; c < h->n; c += CHUNK) chunk(h, c, h->n - c < CHUNK ? h->n - c : CHUNK, S, r);
}

static void delta(const lm_program *p, const lm_edit *e, unsigned edits) {
    static head h;
    const lm_op *op = e->op;
    const uint32_t heads = op->delta.v_heads;
    assert_true(e->n <= 512 && op->delta.dk <= MOST && op->delta.dv <= MOST);
    for (uint32_t i = 0; i < heads; i++) {
        const uint32_t kh = op->delta.tiled ? i % op->delta.k_heads : i / (heads / op->delta.k_heads);
        h.n = e->n, h.dk = op->delta.dk, h.dv = op->delta.dv, h.q_scale = op->delta.q_scale;
        for (uint32_t t = 0; t < e->n; t++) {
            h.q[t] = e->in[0] + (size_t)t * p->value[op->a].width + (size_t)kh * h.dk;
            h.k[t] = e->in[1] + (size_t)t * p->value[op->b].width + (size_t)kh * h.dk;
            h.v[t] = e->in[2] + (size_t)t * p->value[op->c].width + (size_t)i * h.dv;
            h.g[t] = e->in[3][(size_t)t * 2 * heads + i];
            h.beta[t] = e->in[3][(size_t)t * 2 * heads + heads + i];
            h.out[t] = e->out + (size_t)t * p->value[op->out].width + (size_t)i * h.dv;
        }
        if (edits & CHUNKED_F64) chunks(&h, wide);
        if (edits & CHUNKED_F32) chunks(&h, f32);
        if (edits & SCAN_F32) scan(&h, f32, wide);
        if (edits & STATE_F16) scan(&h, wide, f16);
        if (edits & STATE_BF16) scan(&h, wide, bf16);
    }
}

/* ---- a run over one prompt --------------------------------------------------------------------------------------------------------- */
typedef struct text {
    const lm_trace_case *c;
    int32_t *id; /* prompt and the peer's continuation, but its last token */
    uint32_t n;
} text;
typedef struct run {
    const text *t;
    unsigned edits;
    uint32_t vocab;
    double *saved, *logits; /* [n_greedy][vocab] */
} run;

static bool on_edit(void *ctx, const lm_program *p, const lm_edit *e) {
    const run *r = ctx;
    const lm_op *op = e->op;
    const unsigned x = r->edits;
    const bool product = op->kind == LM_OP_LINEAR, q8 = product && x & Q8 && p->weight[op->w].type->block > 1;
    const rounding kv = x & KV_F16 ? f16 : x & KV_BF16 ? bf16 : NULL, conv = x & CONV_F16 ? f16 : x & CONV_BF16 ? bf16 : NULL;
    const size_t a = (size_t)e->n * (op->a == LM_NONE ? 0 : p->value[op->a].width);
    const bool input = q8 || (product && x & INPUT_BF16) || (op->kind == LM_OP_CONV && conv);
    if (e->before && input) {
        memcpy(r->saved, e->in[0], a * sizeof(double));
        if (q8) (p->weight[op->w].type->block == 256 ? round_q8_k : round_q8_0)(e->in[0], a);
        else round_all(e->in[0], a, product ? bf16 : conv);
    }
    if (e->before && op->kind == LM_OP_ATTENTION && kv) {
        round_all(e->in[1], (size_t)e->n * p->value[op->b].width, kv);
        round_all(e->in[2], (size_t)e->n * p->value[op->c].width, kv);
    }
    if (e->before) return true;
    if (input) memcpy(e->in[0], r->saved, a * sizeof(double));
    if (op->kind == LM_OP_DELTA) delta(p, e, x);
    if (x & RESULT_F32) round_all(e->out, (size_t)e->n * p->value[op->out].width, f32);
    return true;
}
static bool on_logits(void *ctx, const lm_rows *rows) {
    run *r = ctx;
    for (uint32_t i = 0; i < rows->n; i++) lm_rows_f64(rows, i, r->logits + (size_t)(rows->row[i] - (r->t->c->n - 1)) * r->vocab);
    return true;
}

static void evaluate(lm_engine *e, const text *t, unsigned edits, double *logits) {
    lm_error err = {0};
    lm_state *state = NULL;
    uint32_t widest = 1;
    for (uint32_t v = 0; v < e->program->n_values; v++) widest = e->program->value[v].width > widest ? e->program->value[v].width : widest;
    run r = {.t = t, .edits = edits, .vocab = e->program->vocab, .logits = logits, .saved = calloc((size_t)t->n * widest, sizeof(double))};
    uint8_t *want = calloc(t->n, 1);
    memset(want + t->c->n - 1, 1, t->n - t->c->n + 1);
    if (lm_state_create(e->program, e->backend->cache(e->device), &state, &err) != LM_OK) fail_msg("%s", err.message);
    const lm_seq seq = {.state = state, .n = t->n, .length = t->n};
    const lm_batch b = {.n_rows = t->n, .n_seqs = 1, .id = t->id, .want = want, .seq = &seq};
    const lm_run how = {.edit = edits ? on_edit : NULL, .edit_ctx = &r, .logits = on_logits, .logits_ctx = &r};
    if (e->backend->run(e->device, &b, &how, &err) != LM_OK) fail_msg("%s", err.message);
    lm_state_free(state);
    free(want);
    free(r.saved);
}

/* ---- measuring --------------------------------------------------------------------------------------------------------------------- */
typedef struct sums {
    double max, sum;      /* |Δlogprob| from the arbiter at its best 64 */
    double peer_max, peer_sum; /* from the peer, at the same */
    double swing, swing_max;   /* of the margin between the arbiter's best two: Σ of squares, the largest */
    uint64_t terms;
    uint32_t rows, flips, peer_flips;
} sums;

static void measure(sums *s, const double *x, const double *truth, const double *peer, uint32_t vocab) {
    int32_t best[BEST];
    const double lx = lm_log_sum_exp(x, vocab), lt = lm_log_sum_exp(truth, vocab), lp = lm_log_sum_exp(peer, vocab);
    lm_top_row(truth, vocab, BEST, best);
    for (uint32_t k = 0; k < BEST; k++) {
        const double own = x[best[k]] - lx, d = fabs(own - (truth[best[k]] - lt)), q = fabs(own - (peer[best[k]] - lp));
        s->max = fmax(s->max, d), s->sum += d;
        s->peer_max = fmax(s->peer_max, q), s->peer_sum += q;
    }
    const double swing = fabs(x[best[0]] - x[best[1]] - (truth[best[0]] - truth[best[1]]));
    s->swing += swing * swing, s->swing_max = fmax(s->swing_max, swing);
    s->terms += BEST;
    s->rows++;
    s->flips += lm_argmax_row(x, vocab) != lm_argmax_row(truth, vocab);
    s->peer_flips += lm_argmax_row(x, vocab) != lm_argmax_row(peer, vocab);
}

typedef struct rig {
    lm_engine *f64;
    lm_trace *peer;
    uint32_t vocab;
} rig;
static rig open_rig(void) {
    rig g = {0};
    lm_error err = {0};
    const lm_engine_options o = {.backend = "f64", .device = {.threads = 2}};
    if (lm_engine_open(MODEL, &o, &g.f64, &err) != LM_OK || lm_trace_open(PEER, g.f64->program, &g.peer, &err) != LM_OK)
        fail_msg("%s", err.message);
    g.vocab = g.f64->program->vocab;
    return g;
}
static void close_rig(rig *g) {
    lm_trace_close(g->peer);
    lm_engine_close(g->f64);
}

/* Candidate c over the first `cases` prompts. truth: [cases][n_greedy][vocab], filled in by candidate 0. */
static sums judge(const rig *g, const candidate *c, uint32_t cases, double **truth) {
    lm_error err = {0};
    lm_engine *e = g->f64, *own = NULL;
    sums s = {0};
    const lm_engine_options o = {.backend = c->backend, .device = {.threads = 2, .lane = c->lane}};
    if (strcmp(c->backend, "f64") && lm_engine_share(g->f64, &o, &own, &err) != LM_OK) fail_msg("%s: %s", c->name, err.message);
    if (own) e = own;
    for (uint32_t i = 0; i < cases; i++) {
        const lm_trace_case *k = &g->peer->c[i];
        text t = {.c = k, .n = k->n + k->n_greedy - 1, .id = calloc(k->n + k->n_greedy, sizeof(int32_t))};
        memcpy(t.id, k->ids, k->n * sizeof *t.id);
        memcpy(t.id + k->n, k->greedy, (k->n_greedy - 1) * sizeof *t.id);
        double *x = calloc((size_t)k->n_greedy * g->vocab, sizeof *x), *peer = calloc(g->vocab, sizeof *peer);
        evaluate(e, &t, c->edits, x);
        if (!truth[i]) {
            truth[i] = calloc((size_t)k->n_greedy * g->vocab, sizeof *x);
            memcpy(truth[i], x, (size_t)k->n_greedy * g->vocab * sizeof *x);
        }
        for (uint32_t r = 0; r < k->n_greedy; r++) {
            lm_tensor_row_f64(k->greedy_logits, r, peer);
            measure(&s, x + (size_t)r * g->vocab, truth[i] + (size_t)r * g->vocab, peer, g->vocab);
        }
        free(t.id);
        free(x);
        free(peer);
    }
    lm_engine_close(own);
    return s;
}

static void table(void) {
    rig g = open_rig();
    double **truth = calloc(g.peer->n_cases, sizeof *truth);
    puts("| switched in the arbiter | mean \\|Δlogprob\\| | max | flips | margin's swing: rms | max | from llama.cpp: mean | max | flips "
         "|\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for (size_t i = 0; i < N_ALL; i++) {
        const sums s = judge(&g, &all[i], g.peer->n_cases, truth);
        printf("| %s | %.2g | %.2g | %u of %u | %.2g | %.2g | %.3f | %.2f | %u |\n", all[i].name, s.sum / (double)s.terms, s.max, s.flips,
               s.rows, sqrt(s.swing / s.rows), s.swing_max, s.peer_sum / (double)s.terms, s.peer_max, s.peer_flips);
        fflush(stdout);
    }
    double **q8 = calloc(g.peer->n_cases, sizeof *q8);
    for (size_t i = 0; i < N_ALL; i++)
        if (all[i].edits == Q8) judge(&g, &all[i], g.peer->n_cases, q8);
    const sums s = judge(&g, &all[N_ALL - 1], g.peer->n_cases, q8);
    printf("\nThe last row from the row of Q8_K: mean %.2g, max %.2g, %u of %u flips.\n", s.sum / (double)s.terms, s.max, s.flips, s.rows);
    for (uint32_t i = 0; i < g.peer->n_cases; i++) free(truth[i]), free(q8[i]);
    free(truth);
    free(q8);
    close_rig(&g);
}

/* 8-bit activations on another model. */
static void swing(const char *model, const char *trace, uint32_t most) {
    lm_error err = {0};
    lm_engine *e = NULL;
    lm_trace *t = NULL;
    sums s = {0};
    const lm_engine_options o = {.backend = "f64", .device = {.threads = 2}};
    if (lm_engine_open(model, &o, &e, &err) != LM_OK || lm_trace_open(trace, e->program, &t, &err) != LM_OK) fail_msg("%s", err.message);
    const uint32_t vocab = e->program->vocab;
    for (uint32_t k = 0; k < t->n_cases; k++) {
        const lm_trace_case first = {.n = 1};
        const text x = {.c = &first, .n = t->c[k].n < most ? t->c[k].n : most, .id = (int32_t *)(uintptr_t)t->c[k].ids};
        double *truth = calloc((size_t)x.n * vocab, sizeof *truth), *rounded = calloc((size_t)x.n * vocab, sizeof *rounded);
        evaluate(e, &x, 0, truth);
        evaluate(e, &x, Q8, rounded);
        for (size_t r = 0; r < x.n; r++) measure(&s, rounded + r * vocab, truth + r * vocab, truth + r * vocab, vocab);
        free(truth);
        free(rounded);
    }
    printf("%u positions: mean |dlogprob| %.3g, max %.3g; the margin of the best two swings by %.3g rms, %.3g at most; %u flips\n", s.rows,
           s.sum / (double)s.terms, s.max, sqrt(s.swing / s.rows), s.swing_max, s.flips);
    lm_trace_close(t);
    lm_engine_close(e);
}

/* ---- the tests ---------------------------------------------------------------------------------------------------------------------- */
static void what_moves_the_logits(void **state) {
    (void)state;
    enum { CASES = 3 };
    rig g = open_rig();
    double *truth[CASES] = {0}, mean[N_ALL], peer[N_ALL];
    sums s[N_ALL];
    for (size_t i = 0; i < N_ALL; i++) {
        s[i] = judge(&g, &all[i], CASES, truth);
        mean[i] = s[i].sum / (double)s[i].terms, peer[i] = s[i].peer_sum / (double)s[i].terms;
    }
    for (size_t i = 0; i < N_ALL; i++) {
        const unsigned x = all[i].edits;
        if (!x && !strcmp(all[i].backend, "f64")) assert_true(mean[i] == 0);
        if (x == CHUNKED_F64) assert_true(mean[i] > 0 && s[i].max < 1e-9); /* the same function, in another order */
        if (x == SCAN_F32 || x == CHUNKED_F32 || x == RESULT_F32) assert_true(mean[i] > 1e-9 && mean[i] < 1e-4 && s[i].flips == 0);
        if (x == Q8) assert_true(mean[i] > 1e-3 && peer[i] < 0.9 * peer[0]); /* what makes the peer's difference */
    }
    for (uint32_t i = 0; i < CASES; i++) free(truth[i]);
    close_rig(&g);
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "--table")) return table(), 0;
    if (argc == 5 && !strcmp(argv[1], "--swing")) return swing(argv[2], argv[3], (uint32_t)strtoul(argv[4], NULL, 10)), 0;
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_moves_the_logits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
