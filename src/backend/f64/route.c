/* ROUTE: router logits to chosen experts. Ties go to the lowest id; a NaN is chosen last. */
#include "backend/f64/f64.h"
#include <math.h>

/* Index of the greatest s[i] not yet taken, the lowest among equals; taken entries are marked by ids already in out[0..n_out). */
static uint32_t best(const double *s, uint32_t n, const double *out, uint32_t n_out) {
    uint32_t at = UINT32_MAX;
    for (uint32_t i = 0; i < n; i++) {
        bool taken = false;
        for (uint32_t j = 0; j < n_out; j++) taken |= out[j] == (double)i;
        if (!taken && (at == UINT32_MAX || s[i] > s[at] || (isnan(s[at]) && !isnan(s[i])))) at = i;
    }
    return at;
}

static void softmax(const double *a, uint32_t n, double *out) {
    double m = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++) m = a[i] > m ? a[i] : m;
    for (uint32_t i = 0; i < n; i++) sum += out[i] = exp(a[i] - m);
    for (uint32_t i = 0; i < n; i++) out[i] /= sum;
}

static double group_score(const lm_op *op, const double *s, uint32_t n) {
    uint32_t a = best(s, n, NULL, 0);
    double first = a;
    return op->route.group == LM_GROUP_MAX ? s[a] : s[a] + s[best(s, n, &first, 1)];
}

/* Scores of experts outside the best groups become 0 (MAX: weights too, as the reference does) or −∞ (TOP2). */
static void mask_groups(const lm_op *op, double *score, double *choice, double *mem) {
    uint32_t groups = op->route.groups, per = op->route.n / groups;
    double *of = mem, *kept = mem + groups;
    for (uint32_t g = 0; g < groups; g++) of[g] = group_score(op, choice + (size_t)g * per, per);
    for (uint32_t g = 0; g < op->route.topk_groups; g++) kept[g] = best(of, groups, kept, g);
    for (uint32_t g = 0; g < groups; g++) {
        bool in = false;
        for (uint32_t j = 0; j < op->route.topk_groups; j++) in |= kept[j] == (double)g;
        for (uint32_t i = g * per; !in && i < (g + 1) * per; i++) {
            if (op->route.group == LM_GROUP_MAX) score[i] = choice[i] = 0;
            else choice[i] = -INFINITY;
        }
    }
}

static void route_row(void *ctx, uint32_t i, uint32_t thread) {
    const lm_f64_job *job = ctx;
    const lm_f64 *f = job->f;
    const lm_op *op = job->op;
    uint32_t n = op->route.n, k = op->route.k;
    const double *a = lm_f64_at(f, op->a, i), *bias = lm_f64_vec(f, op->v), *scale = lm_f64_vec(f, op->v2);
    double *score = lm_f64_scratch(f, thread), *choice = score + n, *id = lm_f64_at(f, op->out, i), *weight = id + k;
    if (op->route.score == LM_ROUTE_SOFTMAX) softmax(a, n, score);
    else
        for (uint32_t e = 0; e < n; e++) score[e] = op->route.score == LM_ROUTE_SIGMOID ? lm_f64_act(LM_ACT_SIGMOID, a[e]) : a[e];
    for (uint32_t e = 0; e < n; e++) choice[e] = bias ? score[e] + bias[e] : score[e];
    if (op->route.group != LM_GROUP_NONE) mask_groups(op, score, choice, choice + n);
    for (uint32_t j = 0; j < k; j++) {
        id[j] = best(choice, n, id, j);
        weight[j] = score[(uint32_t)id[j]];
    }
    if (op->route.score == LM_ROUTE_SOFTMAX_TOPK) softmax(weight, k, weight);
    double sum = 0;
    for (uint32_t j = 0; j < k; j++) sum += weight[j];
    for (uint32_t j = 0; j < k; j++) {
        if (op->route.renorm) weight[j] /= sum + op->route.renorm_eps;
        weight[j] *= op->route.scale;
        if (scale) weight[j] *= scale[(uint32_t)id[j]];
    }
}

void lm_f64_route(const lm_f64 *f, const lm_op *op) {
    lm_f64_job job = {f, op, 0};
    lm_pool_run(f->d->pool, route_row, &job, f->n);
}
bool lm_f64_route_need(const lm_f64 *f, const lm_op *op, lm_f64_need *out) {
    (void)f;
    out->thread = 4 * (uint64_t)op->route.n; /* scores, choices, at most n groups and chosen groups */
    return true;
}
