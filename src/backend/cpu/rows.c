/* Ops that compute each row from the same row of their operands. */
#include "backend/cpu/cpu.h"
#include <math.h>
#include <string.h>

lm_kact lm_cpu_act(lm_act a) {
    static const lm_kact of[] = {
        [LM_ACT_NONE] = LM_KACT_NONE,       [LM_ACT_SILU] = LM_KACT_SILU,       [LM_ACT_GELU] = LM_KACT_GELU,
        [LM_ACT_GELU_TANH] = LM_KACT_GELU_TANH, [LM_ACT_RELU] = LM_KACT_RELU,   [LM_ACT_RELU2] = LM_KACT_RELU2,
        [LM_ACT_SIGMOID] = LM_KACT_SIGMOID, [LM_ACT_TANH] = LM_KACT_TANH,       [LM_ACT_SOFTPLUS] = LM_KACT_SOFTPLUS,
        [LM_ACT_SWIGLU_OAI] = LM_KACT_SWIGLU_OAI,
    };
    return of[a];
}

static void row_embed(const lm_cpu *f, const lm_op *op, uint32_t i, float *o, float *scratch) {
    const uint32_t at = f->row[i];
    lm_cpu_unpack_row(f->k, &f->d->weight[op->w], 0, op->embed.by_position ? f->pos[at] : (uint32_t)f->b->id[at], o, scratch);
}
static void row_scale(const lm_cpu *f, const lm_op *op, uint32_t i, float *o, float *scratch) {
    (void)scratch;
    const uint32_t n = lm_cpu_width(f, op->out);
    const float *a = lm_cpu_at(f, op->a, i), *v = lm_cpu_vec(f, op->v);
    const bool one = !v || f->p->vec[op->v].n == 1;
    const float c = v ? v[0] : (float)op->scale.c;
    for (uint32_t j = 0; j < n; j++) o[j] = a[j] * (one ? c : v[j]);
}
static void row_add(const lm_cpu *f, const lm_op *op, uint32_t i, float *o, float *scratch) {
    (void)scratch;
    f->k->add(o, lm_cpu_at(f, op->a, i), lm_cpu_at(f, op->b, i), lm_cpu_width(f, op->out));
}
static void row_mul(const lm_cpu *f, const lm_op *op, uint32_t i, float *o, float *scratch) {
    (void)scratch;
    const uint32_t n = lm_cpu_width(f, op->out);
    const float *a = lm_cpu_at(f, op->a, i), *b = lm_cpu_at(f, op->b, i);
    const bool one = lm_cpu_width(f, op->b) == 1;
    for (uint32_t j = 0; j < n; j++) o[j] = a[j] * (one ? b[0] : b[j]);
}
/* n_rows of them from row i on: groups of elements that follow one another, whatever rows they stand in. Their sums go side by side. */
#define NORMS 8u
static void norm_rows(const lm_cpu *f, const lm_op *op, uint32_t i, uint32_t n_rows, float *o) {
    const uint32_t groups = op->norm.groups, n = lm_cpu_width(f, op->a) / groups, all = n_rows * groups;
    const float *a = lm_cpu_at(f, op->a, i), *w = lm_cpu_vec(f, op->v), *b = lm_cpu_vec(f, op->v2);
    const bool each_w = w && f->p->vec[op->v].n != n, each_b = b && f->p->vec[op->v2].n != n;
    for (uint32_t r0 = 0; r0 < all; r0 += NORMS) {
        const uint32_t some = all - r0 < NORMS ? all - r0 : NORMS;
        float mean[NORMS] = {0}, under[NORMS];
        if (op->norm.norm == LM_NORM_LAYER)
            for (uint32_t r = 0; r < some; r++) {
                const float *ar = a + (size_t)(r0 + r) * n;
                mean[r] = f->k->sum(ar, n) / (float)n;
                under[r] = f->k->sum_squares(ar, mean[r], n);
            }
        else
            f->k->squares(a + (size_t)r0 * n, some, n, under);
        for (uint32_t r = 0; r < some; r++) {
            if (op->norm.norm != LM_NORM_L2) under[r] /= (float)n;
            const float s = 1.0f / sqrtf(under[r] + (float)op->norm.eps);
            const size_t at = (size_t)(r0 + r) * n, g = (r0 + r) % groups * (size_t)n;
            f->k->normalise(o + at, a + at, mean[r], s, each_w ? w + g : w, each_b ? b + g : b, n);
        }
    }
}
static void row_norm(const lm_cpu *f, const lm_op *op, uint32_t i, float *o, float *scratch) {
    (void)scratch;
    norm_rows(f, op, i, 1, o);
}
static void row_act(const lm_cpu *f, const lm_op *op, uint32_t i, float *o, float *scratch) {
    (void)scratch;
    f->k->act(lm_cpu_act(op->act.act), o, lm_cpu_at(f, op->a, i), lm_cpu_width(f, op->out));
}
static void row_gated(const lm_cpu *f, const lm_op *op, uint32_t i, float *o, float *scratch) {
    (void)scratch;
    f->k->gated(lm_cpu_act(op->act.act), o, lm_cpu_at(f, op->a, i), lm_cpu_at(f, op->b, i), (float)op->act.limit,
                (float)op->act.alpha, lm_cpu_width(f, op->out));
}
/* Interleaved pairs are parted, turned and joined again: scratch holds two runs of n_pairs. */
static void row_rope(const lm_cpu *f, const lm_op *op, uint32_t i, float *o, float *scratch) {
    const uint32_t half = op->rope.n_rot / 2, width = lm_cpu_width(f, op->out);
    const float *cs = f->cos[op->rope.rope] + (size_t)f->row[i] * half, *sn = f->sin[op->rope.rope] + (size_t)f->row[i] * half;
    const float *a = lm_cpu_at(f, op->a, i);
    float *x0 = scratch, *x1 = x0 + half;
    if (o != a && width != op->rope.heads * op->rope.n_rot) memcpy(o, a, width * sizeof *o); /* what does not turn */
    for (uint32_t h = 0; h < op->rope.heads; h++) {
        const size_t at = (size_t)h * op->rope.head_dim + op->rope.offset;
        if (!op->rope.interleaved) {
            f->k->rope(o + at, o + at + half, a + at, a + at + half, cs, sn, half);
            continue;
        }
        for (uint32_t j = 0; j < half; j++) x0[j] = a[at + 2 * j], x1[j] = a[at + 2 * j + 1];
        f->k->rope(x0, x1, x0, x1, cs, sn, half);
        for (uint32_t j = 0; j < half; j++) o[at + 2 * j] = x0[j], o[at + 2 * j + 1] = x1[j];
    }
}
static void row_decay(const lm_cpu *f, const lm_op *op, uint32_t i, float *o, float *scratch) {
    (void)scratch;
    f->k->decay(o, lm_cpu_at(f, op->a, i), lm_cpu_aux(f, op)->vec, lm_cpu_vec(f, op->v2), lm_cpu_width(f, op->out));
}
static void row_softcap(const lm_cpu *f, const lm_op *op, uint32_t i, float *o, float *scratch) {
    (void)scratch;
    f->k->softcap(o, lm_cpu_at(f, op->a, i), (float)op->softcap.c, lm_cpu_width(f, op->out));
}
static void row_slice(const lm_cpu *f, const lm_op *op, uint32_t i, float *o, float *scratch) {
    (void)scratch;
    const float *a = lm_cpu_at(f, op->a, i) + op->slice.offset;
    for (uint32_t g = 0; g < op->slice.groups; g++)
        memcpy(o + (size_t)g * op->slice.group, a + (size_t)g * op->slice.stride, op->slice.group * sizeof *o);
}
static void row_concat(const lm_cpu *f, const lm_op *op, uint32_t i, float *o, float *scratch) {
    (void)scratch;
    const uint32_t na = lm_cpu_width(f, op->a);
    memcpy(o, lm_cpu_at(f, op->a, i), na * sizeof *o);
    memcpy(o + na, lm_cpu_at(f, op->b, i), lm_cpu_width(f, op->b) * sizeof *o);
}
static void row_sparsify(const lm_cpu *f, const lm_op *op, uint32_t i, float *o, float *scratch) {
    (void)scratch;
    const uint32_t n = lm_cpu_width(f, op->a);
    const float *a = lm_cpu_at(f, op->a, i);
    const float mean = f->k->sum(a, n) / (float)n, cut = fmaf(sqrtf(f->k->sum_squares(a, mean, n) / (float)n), (float)op->sparsify.c, mean);
    for (uint32_t j = 0; j < n; j++) o[j] = a[j] < cut ? 0.0f : a[j] - cut;
}
/* gemma3n's floor is on the mean square of a, before its root; the target has none. */
static void row_match_rms(const lm_cpu *f, const lm_op *op, uint32_t i, float *o, float *scratch) {
    (void)scratch;
    const uint32_t n = lm_cpu_width(f, op->a);
    const float *a = lm_cpu_at(f, op->a, i), target = sqrtf(f->k->sum_squares(lm_cpu_at(f, op->b, i), 0, n) / (float)n);
    const float square = f->k->sum_squares(a, 0, n) / (float)n, floor = (float)op->match.eps, own = sqrtf(square < floor ? floor : square);
    for (uint32_t j = 0; j < n; j++) o[j] = a[j] * target / own;
}
static void row_mix(const lm_cpu *f, const lm_op *op, uint32_t i, float *o, float *scratch) {
    (void)scratch;
    const uint32_t n = op->mix.n, h = lm_cpu_width(f, op->a) / n;
    const float *a = lm_cpu_at(f, op->a, i), *c = lm_cpu_at(f, op->b, i);
    for (uint32_t k = 0; k < n; k++) {
        float *ok = o + (size_t)k * h;
        memset(ok, 0, h * sizeof *ok);
        for (uint32_t j = 0; j < n; j++) f->k->axpy(ok, c[j * n + k], a + (size_t)j * h, h);
        for (uint32_t x = 0; op->mix.residual && x < h; x++) ok[x] += a[(size_t)k * h + x];
    }
}
static void row_spread(const lm_cpu *f, const lm_op *op, uint32_t i, float *o, float *scratch) {
    (void)scratch;
    const uint32_t n = op->mix.n, h = lm_cpu_width(f, op->b);
    const float *c = lm_cpu_at(f, op->c, i);
    memcpy(o, lm_cpu_at(f, op->a, i), (size_t)n * h * sizeof *o);
    for (uint32_t k = 0; k < n; k++) f->k->axpy(o + (size_t)k * h, c[k], lm_cpu_at(f, op->b, i), h);
}

const lm_cpu_row_fn lm_cpu_row_fns[LM_OP_COUNT] = {
    [LM_OP_EMBED] = row_embed,       [LM_OP_SCALE] = row_scale,         [LM_OP_ADD] = row_add,   [LM_OP_MUL] = row_mul,
    [LM_OP_NORM] = row_norm,         [LM_OP_ACT] = row_act,             [LM_OP_GATED] = row_gated, [LM_OP_ROPE] = row_rope,
    [LM_OP_DECAY] = row_decay,       [LM_OP_SOFTCAP] = row_softcap,     [LM_OP_SLICE] = row_slice, [LM_OP_CONCAT] = row_concat,
    [LM_OP_SPARSIFY] = row_sparsify, [LM_OP_MATCH_RMS] = row_match_rms, [LM_OP_MIX] = row_mix,   [LM_OP_SPREAD] = row_spread,
};

/* Rows of a task: enough that handing it out costs little. Those that are packed after go tile by tile. */
#define TASK_FLOATS 8192u
#define FROM 6u
#define LATER_FLOATS 2048u
#define TOGETHER_FLOATS 6144u /* of rows that stay in the nearest cache with those of a few values */
#define INLINE_FLOATS 32768u /* rows that the caller computes alone */
typedef struct rows_job {
    const lm_cpu *f;
    const lm_op *op;
    uint32_t n, per, K;
    const lm_op *product; /* NULL: nothing is packed */
    lm_int_lane lane;
    bool local;
    uint32_t n_from, later; /* values that stand in memory, read or made; how many rows before a row is computed its own are asked for */
    uint32_t together;      /* rows that go through the ops at a time */
    lm_val from[FROM];
} rows_job;
static uint32_t local_floats(const lm_cpu *f, const lm_op *op) {
    return lm_cpu_aux(f, op)->local ? (LM_TILE * lm_cpu_width(f, op->out) + 15) & ~15u : 0;
}
/* Rows may stand in another core's cache, and each is too short for the CPU to see where it leads. Those that are made are asked for too: a store
 * waits for its line as long, and what follows with it. */
static void find_from(rows_job *job) {
    for (uint32_t i = 0; i < job->n; i++) {
        const lm_val operand[3] = {job->op[i].a, job->op[i].b, job->local && i + 1 == job->n ? LM_NONE : job->op[i].out};
        for (int k = 0; k < 3; k++) {
            bool made = operand[k] == LM_NONE;
            for (uint32_t j = 0; j < i; j++) made = made || job->op[j].out == operand[k];
            for (uint32_t j = 0; j < job->n_from; j++) made = made || job->from[j] == operand[k];
            if (!made && job->n_from < FROM) job->from[job->n_from++] = operand[k];
        }
    }
}
static void ask(const rows_job *job, uint32_t i) {
    if (i >= job->f->n) return;
    for (uint32_t j = 0; j < job->n_from; j++) {
        const float *row = lm_cpu_at(job->f, job->from[j], i);
        for (uint32_t k = 0; k < lm_cpu_width(job->f, job->from[j]); k += 16) __builtin_prefetch(row + k);
    }
}
/* Op by op over a few rows, so that what one row waits for leaves time for the others. */
static void rows_of(const rows_job *job, uint32_t i0, uint32_t i1, float *local, float *scratch) {
    for (uint32_t i = i0, n; i < i1; i += n) {
        n = i1 - i < job->together ? i1 - i : job->together;
        for (const lm_op *op = job->op; op < job->op + job->n; op++) {
            const size_t width = lm_cpu_width(job->f, op->out);
            float *o = local && op == job->op + job->n - 1 ? local + (i - i0) * width : lm_cpu_at(job->f, op->out, i);
            if (op->kind == LM_OP_NORM) norm_rows(job->f, op, i, n, o);
            for (uint32_t j = 0; j < n; j++) {
                if (op->kind != LM_OP_NORM) lm_cpu_row_fns[op->kind](job->f, op, i + j, o + j * width, scratch);
                if (op == job->op) ask(job, i + j + job->later);
            }
        }
    }
}
static void rows_task(void *ctx, uint32_t task, uint32_t thread) {
    const rows_job *job = ctx;
    const uint32_t i0 = task * job->per, i1 = job->f->n - i0 < job->per ? job->f->n : i0 + job->per;
    rows_of(job, i0, i1, NULL, lm_cpu_scratch(job->f, thread));
}
static void packed_task(void *ctx, uint32_t task, uint32_t thread) {
    const rows_job *job = ctx;
    const lm_cpu *f = job->f;
    const uint32_t i0 = lm_cpu_x_first(job->lane, f->n, task), i1 = lm_cpu_x_first(job->lane, f->n, task + 1);
    float *mem = lm_cpu_scratch(f, thread), *local = job->local ? mem : NULL;
    rows_of(job, i0, i1, local, mem + local_floats(f, job->product - 1));
    if (!local) {
        lm_cpu_x_pack(f, job->lane, f->val[job->product->a], job->K, NULL, f->n, task, job->K, f->shared);
        return;
    }
    const float *src[LM_TILE]; /* the widest of all lanes */
    for (uint32_t i = i0; i < i1; i++) src[i - i0] = local + (size_t)(i - i0) * job->K;
    lm_cpu_x_pack_rows(f, job->lane, src, f->n, task, job->K, f->shared);
}
void lm_cpu_rows(lm_cpu *f, const lm_op *op, uint32_t n) {
    const lm_op *last = op + n - 1;
    const lm_cpu_op *aux = lm_cpu_aux(f, last);
    rows_job job = {.f = f, .op = op, .n = n};
    uint32_t width = 1;
    for (uint32_t i = 0; i < n; i++) width = lm_cpu_width(f, op[i].out) > width ? lm_cpu_width(f, op[i].out) : width;
    job.per = width >= TASK_FLOATS ? 1 : TASK_FLOATS / width;
    job.together = width >= TOGETHER_FLOATS ? 1 : TOGETHER_FLOATS / width < LM_INT_WIDEST ? TOGETHER_FLOATS / width : LM_INT_WIDEST;
    job.later = width >= LATER_FLOATS ? 1 : LATER_FLOATS / width;
    if (job.later < job.together) job.later = job.together;
    lm_task_fn task = rows_task;
    uint32_t tasks = (f->n + job.per - 1) / job.per;
    const lm_int_lane lane = aux->packs ? lm_cpu_aux(f, last + 1)->lane : LM_INT_NONE;
    if (aux->packs && !f->tapped && (f->n > 1 || lane != LM_INT_NONE)) {
        job.product = last + 1, job.lane = lane, job.local = aux->local, job.K = lm_cpu_width(f, last->out);
        f->packed = last->out, f->packed_lane = lane, f->xp = f->shared;
        task = packed_task, tasks = lm_cpu_x_tiles(lane, f->n);
    }
    find_from(&job);
    if ((uint64_t)f->n * width > INLINE_FLOATS)
        lm_pool_run(f->d->pool, task, &job, tasks);
    else
        for (uint32_t i = 0; i < tasks; i++) task(&job, i, 0);
}
static uint32_t own_need(const lm_op *op) { return op->kind == LM_OP_EMBED ? LM_BLK * 16 : op->kind == LM_OP_ROPE ? op->rope.n_rot : 0; }
/* An op of a run finds its scratch behind the rows that the run's last keeps there. */
bool lm_cpu_rows_need(const lm_cpu *f, const lm_op *op, lm_cpu_need *out) {
    const lm_op *last = op + lm_cpu_aux(f, op)->run - 1;
    out->thread = (uint64_t)own_need(op) + local_floats(f, last);
    return true;
}
