/* From a row of logits to one id: penalty, temperature, filters, draw. Everything is in double and in a fixed order, so that a sampled run
 * replays on any machine. A filter marks who is kept and reorders nothing: one that drops no id changes no draw. */
#include <math.h>
#include <string.h>

#include "base/math.h"
#include "base/mem.h"
#include "base/rng.h"

struct lm_sampler {
    lm_sampler_options opt;
    uint32_t vocab;
    double *score;   /* [vocab] logits, after the penalty */
    double *weight;  /* [vocab] e^((score − best) / temperature): 1 for the best */
    uint32_t *heap;  /* [vocab] ids, for taking the best first */
    uint8_t *keep;   /* [vocab] */
};

static lm_status check(const lm_sampler_options *o, lm_error *err) {
    const char *field = NULL, *want = NULL;
    if (!(o->temperature >= 0) || isinf(o->temperature)) field = "temperature", want = "0 (the arg-max) or more";
    else if (!(o->top_p > 0 && o->top_p <= 1)) field = "top_p", want = "above 0 and at most 1 (all)";
    else if (!(o->min_p >= 0 && o->min_p <= 1)) field = "min_p", want = "from 0 (all) to 1";
    else if (!(o->repeat_penalty > 0) || isinf(o->repeat_penalty)) field = "repeat_penalty", want = "above 0; 1 is none";
    return field ? lm_fail_at(err, LM_RANGE, NULL, LM_NO_OFFSET, field, "the value must be finite and %s", want) : LM_OK;
}

lm_status lm_sampler_create(const lm_sampler_options *o, uint32_t vocab, lm_sampler **out, lm_error *err) {
    LM_TRY(check(o, err));
    if (!vocab) return lm_fail(err, LM_RANGE, "a vocabulary of 0 ids has nothing to choose from");
    lm_sampler *s = lm_calloc(1, sizeof *s);
    if (s) {
        s->opt = *o;
        s->vocab = vocab;
        s->score = lm_calloc(vocab, sizeof *s->score);
        s->weight = lm_calloc(vocab, sizeof *s->weight);
        s->heap = lm_calloc(vocab, sizeof *s->heap);
        s->keep = lm_calloc(vocab, 1);
    }
    if (!s || !s->score || !s->weight || !s->heap || !s->keep) {
        lm_sampler_free(s);
        return lm_fail_nomem(err, "the sampler", (uint64_t)vocab * (2 * sizeof(double) + sizeof(uint32_t) + 1));
    }
    *out = s;
    return LM_OK;
}

void lm_sampler_free(lm_sampler *s) {
    if (!s) return;
    lm_free(s->score);
    lm_free(s->weight);
    lm_free(s->heap);
    lm_free(s->keep);
    lm_free(s);
}

static lm_status load(lm_sampler *s, const lm_logits *l, uint32_t row, lm_error *err) {
    if (l->width != s->vocab || row >= l->rows)
        return lm_fail(err, LM_USAGE, "row %u of %u, %u wide, given to a sampler for %u ids", row, l->rows, l->width, s->vocab);
    size_t at = (size_t)row * l->width;
    for (uint32_t i = 0; i < s->vocab; i++) {
        double v = l->is_f64 ? ((const double *)l->data)[at + i] : (double)((const float *)l->data)[at + i];
        if (!(v < INFINITY))
            return lm_fail(err, LM_RANGE, "the logit of id %u at position %u is %s", i, l->position[row], v != v ? "NaN" : "infinite");
        s->score[i] = v;
    }
    return LM_OK;
}

/* Each recent id once, however often it occurs. */
static void penalize(lm_sampler *s, const int32_t *recent, size_t n) {
    double p = s->opt.repeat_penalty;
    if (p == 1) return;
    size_t first = n > s->opt.repeat_last_n ? n - s->opt.repeat_last_n : 0;
    memset(s->keep, 0, s->vocab);
    for (size_t i = first; i < n; i++) {
        if (recent[i] < 0 || (uint32_t)recent[i] >= s->vocab) continue;
        uint32_t id = (uint32_t)recent[i];
        if (s->keep[id]) continue;
        s->keep[id] = 1;
        s->score[id] = s->score[id] > 0 ? s->score[id] / p : s->score[id] * p;
    }
}

static uint32_t best(const lm_sampler *s) {
    uint32_t b = 0;
    for (uint32_t i = 1; i < s->vocab; i++)
        if (s->score[i] > s->score[b]) b = i;
    return b;
}

/* ---- the best first: a heap by score, the lower id first among equals -------------------------------------------------------------*/
static bool before(const lm_sampler *s, uint32_t a, uint32_t b) {
    return s->score[a] > s->score[b] || (s->score[a] == s->score[b] && a < b);
}
static void sift(lm_sampler *s, uint32_t i, uint32_t n) {
    uint32_t id = s->heap[i];
    for (uint32_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && before(s, s->heap[c + 1], s->heap[c])) c++;
        if (!before(s, s->heap[c], id)) break;
        s->heap[i] = s->heap[c];
    }
    s->heap[i] = id;
}

/* Keeps, of those kept, the best `count`, or as many of the best as reach `mass`, whichever is fewer. */
static void keep_best(lm_sampler *s, uint32_t count, double mass) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->vocab; i++)
        if (s->keep[i]) s->heap[n++] = i;
    for (uint32_t i = n / 2; i-- > 0;) sift(s, i, n);
    memset(s->keep, 0, s->vocab);
    double sum = 0;
    for (uint32_t k = 0; n && k < count && sum < mass; k++) {
        uint32_t id = s->heap[0];
        s->keep[id] = 1;
        sum += s->weight[id];
        s->heap[0] = s->heap[--n];
        if (n) sift(s, 0, n);
    }
}

static double kept_mass(const lm_sampler *s) {
    double sum = 0;
    for (uint32_t i = 0; i < s->vocab; i++)
        if (s->keep[i]) sum += s->weight[i];
    return sum;
}

static void filter(lm_sampler *s) {
    const lm_sampler_options *o = &s->opt;
    memset(s->keep, 1, s->vocab);
    if (o->top_k && o->top_k < s->vocab) keep_best(s, o->top_k, INFINITY);
    if (o->top_p < 1) keep_best(s, UINT32_MAX, o->top_p * kept_mass(s));
    for (uint32_t i = 0; o->min_p > 0 && i < s->vocab; i++)
        if (s->weight[i] < o->min_p) s->keep[i] = 0;
}

static uint32_t draw(const lm_sampler *s, uint64_t step) {
    double at = lm_uniform(s->opt.seed, 0, step) * kept_mass(s), sum = 0;
    uint32_t id = 0;
    for (uint32_t i = 0; i < s->vocab; i++) {
        if (!s->keep[i] || s->weight[i] == 0) continue;
        id = i; /* the last one takes what rounding leaves over */
        sum += s->weight[i];
        if (at < sum) break;
    }
    return id;
}

lm_status lm_sampler_pick(lm_sampler *s, const lm_logits *l, uint32_t row, const int32_t *recent, size_t n, uint64_t step, int32_t *id,
                          lm_error *err) {
    LM_TRY(load(s, l, row, err));
    penalize(s, recent, n);
    uint32_t top = best(s);
    double max = s->score[top];
    if (max == -INFINITY) return lm_fail(err, LM_RANGE, "every logit at position %u is minus infinity: no id can follow", l->position[row]);
    if (s->opt.temperature > 0) {
        for (uint32_t i = 0; i < s->vocab; i++) s->weight[i] = lm_exp((s->score[i] - max) / s->opt.temperature);
        filter(s);
        top = draw(s, step);
    }
    *id = (int32_t)top;
    return LM_OK;
}
