/* ROUTE: router logits to chosen experts. Ties go to the lowest id; a NaN is chosen last. */
#include "backend/cpu/cpu.h"
#include <math.h>
#include <string.h>

/* Index of the greatest s[i] that is not among out[0..n_out) yet, the lowest among equals. */
static uint32_t best(const float *s, uint32_t n, const float *out, uint32_t n_out) {
    uint32_t at = UINT32_MAX;
    for (uint32_t i = 0; i < n; i++) {
        if (at != UINT32_MAX && !(s[i] > s[at] || (isnan(s[at]) && !isnan(s[i])))) continue;
        bool taken = false;
        for (uint32_t j = 0; j < n_out; j++) taken |= out[j] == (float)i;
        if (!taken) at = i;
    }
    return at;
}
static void softmax(const lm_kernels *k, const float *a, uint32_t n, float *out) {
    float sum;
    memmove(out, a, n * sizeof *out);
    k->page_softmax(out, n, 1.0f, 0.0f, &sum);
    for (uint32_t i = 0; i < n; i++) out[i] /= sum;
}
static float group_score(const lm_op *op, const float *s, uint32_t n) {
    const uint32_t a = best(s, n, NULL, 0);
    const float first = (float)a;
    return op->route.group == LM_GROUP_MAX ? s[a] : s[a] + s[best(s, n, &first, 1)];
}
/* Experts outside the best groups score 0 (MAX: in their weights too, as the reference does) or −∞ (TOP2). */
static void mask_groups(const lm_op *op, float *score, float *choice, float *mem) {
    const uint32_t groups = op->route.groups, per = op->route.n / groups;
    float *of = mem, *kept = mem + groups;
    for (uint32_t g = 0; g < groups; g++) of[g] = group_score(op, choice + (size_t)g * per, per);
    for (uint32_t g = 0; g < op->route.topk_groups; g++) kept[g] = (float)best(of, groups, kept, g);
    for (uint32_t g = 0; g < groups; g++) {
        bool in = false;
        for (uint32_t j = 0; j < op->route.topk_groups; j++) in |= kept[j] == (float)g;
        for (uint32_t i = g * per; !in && i < (g + 1) * per; i++) {
            if (op->route.group == LM_GROUP_MAX) score[i] = choice[i] = 0;
            else choice[i] = -INFINITY;
        }
    }
}

typedef struct route_job {
    const lm_cpu *f;
    const lm_op *op;
} route_job;
static void route_task(void *ctx, uint32_t i, uint32_t thread) {
    const route_job *job = ctx;
    const lm_cpu *f = job->f;
    const lm_op *op = job->op;
    const uint32_t n = op->route.n, k = op->route.k;
    const float *a = lm_cpu_at(f, op->a, i), *bias = lm_cpu_vec(f, op->v), *scale = lm_cpu_vec(f, op->v2);
    float *score = lm_cpu_scratch(f, thread), *choice = score + n, *id = lm_cpu_at(f, op->out, i), *weight = id + k;
    if (op->route.score == LM_ROUTE_SOFTMAX) softmax(f->k, a, n, score);
    else if (op->route.score == LM_ROUTE_SIGMOID) f->k->act(LM_KACT_SIGMOID, score, a, n);
    else memcpy(score, a, n * sizeof *score);
    for (uint32_t e = 0; e < n; e++) choice[e] = bias ? score[e] + bias[e] : score[e];
    if (op->route.group != LM_GROUP_NONE) mask_groups(op, score, choice, choice + n);
    for (uint32_t j = 0; j < k; j++) {
        id[j] = (float)best(choice, n, id, j);
        weight[j] = score[(uint32_t)id[j]];
    }
    if (op->route.score == LM_ROUTE_SOFTMAX_TOPK) softmax(f->k, weight, k, weight);
    const float sum = f->k->sum(weight, k) + (float)op->route.renorm_eps;
    for (uint32_t j = 0; j < k; j++) {
        if (op->route.renorm) weight[j] /= sum;
        weight[j] *= (float)op->route.scale;
        if (scale) weight[j] *= scale[(uint32_t)id[j]];
    }
}
static void run_route(lm_cpu *f, const lm_op *op) {
    route_job job = {f, op};
    lm_pool_run(f->d->pool, route_task, &job, f->n);
}
static bool need_route(const lm_cpu *f, const lm_op *op, lm_cpu_need *out) {
    (void)f;
    out->thread = 4 * (uint64_t)op->route.n; /* scores, choices, at most n groups and n chosen ones */
    return true;
}
const lm_cpu_fn lm_cpu_route = {run_route, need_route};
