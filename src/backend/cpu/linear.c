/* LINEAR and EXPERTS: rows are packed into tiles once, then every task multiplies a few strips of the weight by all of them. */
#include "backend/cpu/cpu.h"
#include <string.h>

#define PACK_INLINE 32768u /* floats that are packed by the caller alone */

/* ---- linear ----------------------------------------------------------------------------------------------------------------------*/
typedef struct pack_job {
    const lm_cpu *f;
    lm_int_lane lane;
    const float *x;
    uint32_t n, K;
    float *xp;
} pack_job;
static void pack_task(void *ctx, uint32_t task, uint32_t thread) {
    (void)thread;
    const pack_job *p = ctx;
    lm_cpu_x_pack(p->f, p->lane, p->x, p->K, NULL, p->n, task, p->K, p->xp);
}
static void product_task(void *ctx, uint32_t task, uint32_t thread) {
    const lm_cpu_product *p = ctx;
    lm_cpu_product_run(p, task, lm_cpu_scratch(p->f, thread));
}
static void pack_input(lm_cpu *f, const lm_op *op, lm_int_lane lane) {
    if (f->packed == op->a && f->packed_lane == lane) return; /* q, k and v, gate and up share their input */
    const uint32_t K = f->d->weight[op->w].K, tiles = lm_cpu_x_tiles(lane, f->n);
    pack_job pack = {f, lane, f->val[op->a], f->n, K, f->shared};
    if ((uint64_t)f->n * K > PACK_INLINE)
        lm_pool_run(f->d->pool, pack_task, &pack, tiles);
    else
        for (uint32_t i = 0; i < tiles; i++) pack_task(&pack, i, 0);
    f->packed = op->a;
    f->packed_lane = lane;
    f->xp = f->shared;
}
/* Products whose tasks are handed out together, part by part of the tiles, so that neighbours among the tasks share their tokens. */
typedef struct products_job {
    const lm_cpu *f;
    uint32_t n, tasks; /* of one part */
    lm_int_product p[LM_CPU_PRODUCTS];
    uint32_t rows[LM_CPU_PRODUCTS]; /* tasks of each product in a part */
} products_job;
static void products_task(void *ctx, uint32_t task, uint32_t thread) {
    const products_job *job = ctx;
    uint32_t r = task % job->tasks, i = 0;
    for (; r >= job->rows[i]; i++) r -= job->rows[i];
    lm_int_run(&job->p[i], task / job->tasks * job->rows[i] + r, lm_cpu_scratch(job->f, thread));
}
void lm_cpu_run_products(lm_cpu *f, const lm_op *op, uint32_t n) {
    const lm_int_lane lane = lm_cpu_aux(f, op)->lane;
    if (n == 1) {
        lm_cpu_linear.run(f, op);
        return;
    }
    pack_input(f, op, lane);
    products_job job = {.f = f, .n = n};
    for (uint32_t i = 0; i < n; i++) {
        const lm_packed_matrix *w = &f->d->weight[op[i].w];
        job.p[i] = (lm_int_product){f->d->ik, lane, w, 0, op[i].linear.split, lm_cpu_vec(f, op[i].v), f->xp, f->n, f->val[op[i].out], w->rows, NULL, 0,
                                    lm_pool_size(f->d->pool)};
    }
    const uint32_t groups = lm_int_groups(job.p, n);
    for (uint32_t i = 0; i < n; i++) {
        job.p[i].groups = groups;
        job.tasks += job.rows[i] = lm_int_tasks(&job.p[i]) / groups;
    }
    lm_pool_run(f->d->pool, products_task, &job, job.tasks * groups);
}
static void run_linear(lm_cpu *f, const lm_op *op) {
    const lm_packed_matrix *w = &f->d->weight[op->w];
    const lm_int_lane lane = lm_cpu_aux(f, op)->lane;
    const bool plain = f->n == 1 && lane == LM_INT_NONE; /* one float row is packed as it stands */
    if (!plain) pack_input(f, op, lane);
    lm_cpu_product p = {f, lane, w, 0, op->linear.split, lm_cpu_vec(f, op->v), plain ? f->val[op->a] : f->xp, f->n, f->val[op->out], w->rows};
    lm_pool_run(f->d->pool, product_task, &p, lm_cpu_product_tasks(&p));
}
static bool need_linear(const lm_cpu *f, const lm_op *op, lm_cpu_need *out) {
    const uint32_t K = f->d->weight[op->w].K;
    const lm_cpu_op *aux = lm_cpu_aux(f, op);
    out->thread = aux->gates && lm_cpu_is_int(aux->lane) ? lm_int_scratch(K, true) : lm_cpu_product_scratch(aux->lane, f->n, K);
    return lm_mul(f->n, K, &out->shared);
}
void lm_cpu_run_gated(lm_cpu *f, const lm_op *op) {
    const lm_op *up = op + 1, *join = op + 2;
    const lm_packed_matrix *w = &f->d->weight[op->w];
    const lm_int_lane lane = lm_cpu_aux(f, op)->lane;
    const lm_gate gate = {f->k, &f->d->weight[up->w], lm_cpu_vec(f, up->v), lm_cpu_act(join->act.act), (float)join->act.limit,
                          (float)join->act.alpha, f->n > LM_INT_GEMV && lm_cpu_aux(f, op)->feeds ? f->val[join->out] : NULL};
    pack_input(f, op, lane);
    lm_cpu_product p = {f, lane, w, 0, false, lm_cpu_vec(f, op->v), f->xp, f->n, f->val[join->out], w->rows, &gate};
    lm_pool_run(f->d->pool, product_task, &p, lm_cpu_product_tasks(&p));
    if (!gate.xq) return;
    f->packed = join->out;
    f->packed_lane = lane;
    f->xp = gate.xq;
}
const lm_cpu_fn lm_cpu_linear = {run_linear, need_linear};

/* ---- experts ---------------------------------------------------------------------------------------------------------------------
 * The (row, choice) pairs of a block of rows are sorted by expert; pair numbers below count in that order. An expert's pairs are the tokens
 * of its products. */
typedef struct chosen {
    uint32_t e, first, n;        /* expert, its pairs [first, first + n) */
    uint32_t task_up, task_down; /* tasks of the experts before it */
} chosen;
typedef struct moe {
    const lm_cpu *f;
    const lm_op *op;
    lm_int_lane lane, down;
    uint32_t r0, rows, k, H, I, O;  /* rows of the value, widths */
    float *xp, *gate, *up, *hp, *y; /* [pairs][H], [I] ×3, [O]; xp and hp packed per expert */
    uint32_t *row, *place;          /* [pairs] the row of a pair; [rows][k] the pair of a row's choice */
    chosen *list;
    uint32_t n_list, up_tasks, down_tasks;
} moe;

static uint64_t up64(uint64_t floats) { return (floats + 15) & ~(uint64_t)15; }
static uint32_t moe_rows(const lm_cpu *f) { return f->n < LM_CPU_MOE_ROWS ? f->n : LM_CPU_MOE_ROWS; }
static bool need_experts(const lm_cpu *f, const lm_op *op, lm_cpu_need *out) {
    const lm_packed_matrix *up = &f->d->weight[op->w], *down = &f->d->weight[op->w3];
    const uint64_t per = up64((uint64_t)up->K + 3 * (uint64_t)up->rows + down->rows), most = moe_rows(f);
    uint64_t pairs = most * op->experts.k, n;
    if (!lm_mul(pairs, per + 8, &n) || pairs > UINT32_MAX) return false;
    const uint64_t first = lm_cpu_product_scratch(lm_cpu_aux(f, op)->lane, (uint32_t)most, up->K);
    const uint64_t second = lm_cpu_product_scratch(lm_cpu_aux(f, op)->down, (uint32_t)most, down->K);
    out->thread = first > second ? first : second;
    return lm_add(n, 256 + (uint64_t)op->experts.n * (sizeof(chosen) / 4 + 1), &out->shared);
}
static float *take(float **at, uint64_t n) {
    float *p = *at;
    *at += up64(n);
    return p;
}
static void moe_lay_out(moe *m) {
    float *at = m->f->shared;
    const uint64_t pairs = (uint64_t)m->rows * m->k;
    m->xp = take(&at, pairs * m->H);
    m->gate = take(&at, pairs * m->I);
    m->up = take(&at, pairs * m->I);
    m->hp = take(&at, pairs * m->I);
    m->y = take(&at, pairs * m->O);
    m->row = (uint32_t *)take(&at, pairs);
    m->place = (uint32_t *)take(&at, pairs);
    m->list = (chosen *)take(&at, (uint64_t)m->op->experts.n * (sizeof(chosen) / 4));
}
static void moe_sort(moe *m) {
    const lm_cpu *f = m->f;
    uint32_t pair = 0;
    m->n_list = m->up_tasks = m->down_tasks = 0;
    uint32_t *count = (uint32_t *)(m->list + m->op->experts.n); /* [n], room was asked for */
    memset(count, 0, m->op->experts.n * sizeof *count);
    for (uint32_t i = 0; i < m->rows; i++)
        for (uint32_t j = 0; j < m->k; j++) count[(uint32_t)lm_cpu_at(f, m->op->b, m->r0 + i)[j]]++;
    for (uint32_t e = 0; e < m->op->experts.n; e++) {
        const uint32_t n = count[e];
        count[e] = pair;
        if (!n) continue;
        chosen *c = &m->list[m->n_list++];
        *c = (chosen){e, pair, n, m->up_tasks, m->down_tasks};
        const lm_cpu_product up = {.f = f, .lane = m->lane, .w = &f->d->weight[m->op->w], .n_t = n};
        const lm_cpu_product up2 = {.f = f, .lane = m->lane, .w = &f->d->weight[m->op->w2], .n_t = n};
        const lm_cpu_product down = {.f = f, .lane = m->down, .w = &f->d->weight[m->op->w3], .n_t = n};
        const uint32_t a = lm_cpu_product_tasks(&up), b = lm_cpu_product_tasks(&up2);
        m->up_tasks += a > b ? a : b; /* the types may differ */
        m->down_tasks += lm_cpu_product_tasks(&down);
        pair += n;
    }
    for (uint32_t i = 0; i < m->rows; i++)
        for (uint32_t j = 0; j < m->k; j++) {
            const uint32_t at = count[(uint32_t)lm_cpu_at(f, m->op->b, m->r0 + i)[j]]++;
            m->row[at] = m->r0 + i;
            m->place[(size_t)i * m->k + j] = at;
        }
}
static void moe_pack_task(void *ctx, uint32_t task, uint32_t thread) {
    (void)thread;
    const moe *m = ctx;
    const chosen *c = &m->list[task];
    for (uint32_t i = 0; i < lm_cpu_x_tiles(m->lane, c->n); i++)
        lm_cpu_x_pack(m->f, m->lane, m->f->val[m->op->a], m->H, m->row + c->first, c->n, i, m->H, m->xp + (size_t)c->first * m->H);
}
/* The expert whose tasks hold `task`: the last that starts at or before it. */
static const chosen *find(const moe *m, uint32_t task, bool down) {
    uint32_t lo = 0, hi = m->n_list;
    while (hi - lo > 1) {
        const uint32_t mid = (lo + hi) / 2;
        if ((down ? m->list[mid].task_down : m->list[mid].task_up) <= task)
            lo = mid;
        else
            hi = mid;
    }
    return &m->list[lo];
}
static void moe_up_task(void *ctx, uint32_t task, uint32_t thread) {
    const moe *m = ctx;
    const lm_cpu *f = m->f;
    const bool up = task >= m->up_tasks;
    task -= up ? m->up_tasks : 0;
    const chosen *c = find(m, task, false);
    const float *bias = lm_cpu_vec(f, up ? m->op->v2 : m->op->v);
    lm_cpu_product p = {f,
                        m->lane,
                        &f->d->weight[up ? m->op->w2 : m->op->w],
                        c->e,
                        false,
                        bias ? bias + (size_t)c->e * m->I : NULL,
                        m->xp + (size_t)c->first * m->H,
                        c->n,
                        (up ? m->up : m->gate) + (size_t)c->first * m->I,
                        m->I};
    if (task - c->task_up < lm_cpu_product_tasks(&p)) lm_cpu_product_run(&p, task - c->task_up, lm_cpu_scratch(f, thread));
}
static void moe_act_task(void *ctx, uint32_t task, uint32_t thread) {
    (void)thread;
    const moe *m = ctx;
    const lm_op *op = m->op;
    const chosen *c = &m->list[task];
    float *gate = m->gate + (size_t)c->first * m->I;
    m->f->k->gated(lm_cpu_act(op->experts.act), gate, gate, m->up + (size_t)c->first * m->I, (float)op->experts.limit,
                   (float)op->experts.alpha, c->n * m->I);
    for (uint32_t i = 0; i < lm_cpu_x_tiles(m->down, c->n); i++)
        lm_cpu_x_pack(m->f, m->down, gate, m->I, NULL, c->n, i, m->I, m->hp + (size_t)c->first * m->I);
}
static void moe_down_task(void *ctx, uint32_t task, uint32_t thread) {
    const moe *m = ctx;
    const lm_cpu *f = m->f;
    const chosen *c = find(m, task, true);
    const float *bias = lm_cpu_vec(f, m->op->v3);
    lm_cpu_product p = {f,
                        m->down,
                        &f->d->weight[m->op->w3],
                        c->e,
                        true,
                        bias ? bias + (size_t)c->e * m->O : NULL,
                        m->hp + (size_t)c->first * m->I,
                        c->n,
                        m->y + (size_t)c->first * m->O,
                        m->O};
    lm_cpu_product_run(&p, task - c->task_down, lm_cpu_scratch(f, thread));
}
/* out = the tree over 8 segments of expert ids, of Σ weight·y in ascending id; columns in pieces that stay near. */
static void moe_sum_task(void *ctx, uint32_t task, uint32_t thread) {
    (void)thread;
    const moe *m = ctx;
    const lm_op *op = m->op;
    const uint32_t E = op->experts.n, k = m->k;
    const float *route = lm_cpu_at(m->f, op->b, m->r0 + task);
    for (uint32_t c0 = 0; c0 < m->O; c0 += 256) {
        const uint32_t n = m->O - c0 < 256 ? m->O - c0 : 256;
        float seg[8][256];
        bool has[8] = {false};
        for (uint32_t s = 0; s < 8; s++) {
            const uint32_t e0 = (uint32_t)((uint64_t)s * E / 8), e1 = (uint32_t)((uint64_t)(s + 1) * E / 8);
            for (float last = -1;;) { /* the next expert of the segment, in ascending id */
                uint32_t j = k;
                for (uint32_t i = 0; i < k; i++)
                    if (route[i] >= (float)e0 && route[i] < (float)e1 && route[i] > last && (j == k || route[i] < route[j])) j = i;
                if (j == k) break;
                last = route[j];
                if (!has[s]) memset(seg[s], 0, n * sizeof(float));
                has[s] = true;
                m->f->k->axpy(seg[s], route[k + j], m->y + (size_t)m->place[(size_t)task * k + j] * m->O + c0, n);
            }
        }
        for (uint32_t step = 1; step < 8; step *= 2)
            for (uint32_t s = 0; s < 8; s += 2 * step) {
                if (!has[s + step]) continue;
                if (!has[s])
                    memcpy(seg[s], seg[s + step], n * sizeof(float));
                else
                    for (uint32_t i = 0; i < n; i++) seg[s][i] += seg[s + step][i];
                has[s] = true;
            }
        memcpy(lm_cpu_at(m->f, op->out, m->r0 + task) + c0, seg[0], n * sizeof(float));
    }
}
static void run_experts(lm_cpu *f, const lm_op *op) {
    const lm_packed_matrix *up = &f->d->weight[op->w];
    for (uint32_t r0 = 0; r0 < f->n; r0 += LM_CPU_MOE_ROWS) {
        moe m = {.f = f,
                 .op = op,
                 .lane = lm_cpu_aux(f, op)->lane,
                 .down = lm_cpu_aux(f, op)->down,
                 .r0 = r0,
                 .rows = f->n - r0 < LM_CPU_MOE_ROWS ? f->n - r0 : LM_CPU_MOE_ROWS,
                 .k = op->experts.k,
                 .H = up->K,
                 .I = up->rows,
                 .O = f->d->weight[op->w3].rows};
        moe_lay_out(&m);
        moe_sort(&m);
        lm_pool_run(f->d->pool, moe_pack_task, &m, m.n_list);
        lm_pool_run(f->d->pool, moe_up_task, &m, 2 * m.up_tasks);
        lm_pool_run(f->d->pool, moe_act_task, &m, m.n_list);
        lm_pool_run(f->d->pool, moe_down_task, &m, m.down_tasks);
        lm_pool_run(f->d->pool, moe_sum_task, &m, m.rows);
    }
}
const lm_cpu_fn lm_cpu_experts = {run_experts, need_experts};
