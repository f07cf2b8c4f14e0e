/* The rig: one batch of the arbiter that computes the same positions as several sequences, each in its own role.
 *
 *   the truth      as the program says, undisturbed
 *   free samples   the same with a lane's noise at every op: how far rounding alone may drift (the envelope)
 *   a replay       every value that the side has takes the place of the arbiter's own as soon as it has been compared with it, so that each
 * op is recomputed from the side's own inputs: what is left between the two is the op's own error (caches are the side's too) noisy replays
 * the same with the lane's noise: how large an op's own error may be
 *
 * Values in the body are measured while all sequences' rows stand side by side; the head runs over blocks of rows, so its values are kept.
 */
#include "verify/diff.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SAMPLES = 16, MAX_SEQS = 1 + 2 * MAX_SAMPLES + 2 * (1 + MAX_SAMPLES), MAX_BLOCK = 64 };
static const uint64_t MEMORY = 512u << 20; /* of stores and kept rows for one block */

typedef enum role_kind { TRUTH, FREE, REPLAY, NOISY } role_kind;
typedef struct role {
    role_kind kind;
    int side; /* whose values replace the arbiter's (REPLAY, NOISY) */
    lm_noise noise;
} role;

typedef struct rig {
    lm_diff *d;
    lm_diff_case *c;
    const lm_program *p;
    const int32_t *ids;
    role role[MAX_SEQS];
    uint32_t n_seqs, free_at[2], replay_at[2]; /* where a side's samples start; LM_NONE: it has none */
    lm_state *state[MAX_SEQS];
    uint32_t from, n;            /* the block */
    uint32_t *fork[2];           /* [n_ops]: from which position on a side's choice differs from the arbiter's */
    double *saved;               /* operands before they are perturbed */
    double *head;                /* [head ops][n_seqs][n][width] */
    double *row[2], *scratch[3]; /* a side's row; the widest value each */
    lm_arena *arena;
} rig;

static uint32_t width_of(const rig *r, uint32_t op) { return r->p->value[r->p->op[op].out].width; }
static bool known(const rig *r, int s, uint32_t op, uint32_t i) {
    const lm_side *side = &r->d->side[s];
    return side->spec && side->known[(size_t)op * r->n + i];
}
static const float *stored(const rig *r, int s, uint32_t op, uint32_t i) {
    size_t at = 0;
    for (uint32_t k = 0; k < op; k++) at += width_of(r, k);
    return r->d->side[s].store + at * r->n + (size_t)i * width_of(r, op);
}
static void widen(double *to, const float *from, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) to[i] = from[i];
}

/* ---- choices: ids of experts, visible positions ---------------------------------------------------------------------------------------
 */
static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
typedef struct choice {
    double id, weight;
} choice;
/* A ROUTE's or INDEX's row in an order of its own: ids ascending, then the weights in the order of their ids. */
static void canonical(const lm_op *op, const double *row, uint32_t width, double *to) {
    if (op->kind == LM_OP_INDEX) {
        memcpy(to, row, width * sizeof *to);
        qsort(to, width, sizeof *to, by_value);
        return;
    }
    const uint32_t k = op->route.k;
    for (uint32_t i = 0; i < k; i++) { /* few: insertion */
        uint32_t j = i;
        for (; j && to[j - 1] > row[i]; j--) to[j] = to[j - 1], to[k + j] = to[k + j - 1];
        to[j] = row[i];
        to[k + j] = row[k + i];
    }
}
static bool is_choice(const lm_op *op) { return op->kind == LM_OP_ROUTE || op->kind == LM_OP_INDEX; }
static uint32_t n_ids(const lm_op *op, uint32_t width) { return op->kind == LM_OP_ROUTE ? op->route.k : width; }

/* How far apart two experts' scores are, of which one side chose one and the arbiter the other, as a share of the scores' own size. */
static double route_gap(const rig *r, const lm_op *op, const double *a, const double *x, const double *y) {
    const lm_vec *bias = op->v == LM_NONE ? NULL : &r->p->vec[op->v];
    double most = 0, size = 0, sum = 0, top = -INFINITY;
    double *score = r->scratch[2];
    for (uint32_t e = 0; e < op->route.n; e++) top = fmax(top, a[e]);
    for (uint32_t e = 0; e < op->route.n; e++) sum += exp(a[e] - top);
    for (uint32_t e = 0; e < op->route.n; e++) {
        score[e] = op->route.score == LM_ROUTE_SOFTMAX   ? exp(a[e] - top) / sum
                   : op->route.score == LM_ROUTE_SIGMOID ? 1 / (1 + exp(-a[e]))
                                                         : a[e];
        if (bias) score[e] += bias->v[e];
        size = fmax(size, fabs(score[e]));
    }
    for (uint32_t i = 0; i < op->route.k; i++)
        for (uint32_t j = 0; j < op->route.k; j++) {
            bool in_y = false, in_x = false;
            for (uint32_t m = 0; m < op->route.k; m++) in_y |= y[m] == x[i], in_x |= x[m] == y[j];
            if (!in_y && !in_x) most = fmax(most, fabs(score[(uint32_t)x[i]] - score[(uint32_t)y[j]]));
        }
    return size > 0 ? most / size : INFINITY;
}

/* ---- measuring ------------------------------------------------------------------------------------------------------------------------
 */
typedef struct at_op {
    uint32_t op, width;
    const double *base;    /* [n_seqs][n][width] */
    const double *in;      /* the same of operand a, for ROUTE; NULL in the head */
    uint32_t fork_from[2]; /* rows from this position on follow an earlier choice that differs */
} at_op;
static const double *row_at(const rig *r, const at_op *m, uint32_t seq, uint32_t i) {
    return m->base + ((size_t)seq * r->n + i) * m->width;
}

/* The greatest distance of `count` sequences' rows from `centre`; INFINITY where one chose otherwise. */
static lm_dist row_spread(const rig *r, const at_op *m, const double *centre, uint32_t first, uint32_t count, uint32_t i) {
    const lm_op *op = &r->p->op[m->op];
    lm_dist most = {0, 0};
    for (uint32_t k = 0; k < count; k++) {
        const double *x = row_at(r, m, first + k, i);
        if (is_choice(op)) {
            canonical(op, x, m->width, r->scratch[1]);
            x = r->scratch[1];
            if (memcmp(x, centre, n_ids(op, m->width) * sizeof *x)) return (lm_dist){INFINITY, INFINITY};
        }
        const lm_dist e = lm_distance(x, centre, m->width);
        most.l2 = fmax(most.l2, e.l2);
        most.max = fmax(most.max, e.max);
    }
    return most;
}
/* A row of a few elements says little: a handful of draws may all have been small. Such ops take what the block's rows give on the average,
 * where that is more. */
static lm_dist spread(const rig *r, const at_op *m, const double *centre, uint32_t centre_seq, uint32_t first, uint32_t i) {
    enum { NARROW = 64 };
    const uint32_t count = r->d->samples;
    lm_dist own = row_spread(r, m, centre, first, count, i);
    if (m->width > NARROW || is_choice(&r->p->op[m->op])) return own;
    double l2 = 0, max = 0;
    for (uint32_t k = 0; k < r->n; k++) {
        const lm_dist e = row_spread(r, m, row_at(r, m, centre_seq, k), first, count, k);
        l2 += e.l2 * e.l2;
        max += e.max * e.max;
    }
    own.l2 = fmax(own.l2, sqrt(l2 / r->n));
    own.max = fmax(own.max, sqrt(max / r->n));
    return own;
}
static double size_of(const double *x, uint32_t n) {
    double s = 0;
    for (uint32_t i = 0; i < n; i++) s += x[i] * x[i];
    return sqrt(s);
}

/* Side s's row x (in canonical order for a choice) against the truth, and against its own replay. */
static void measure_side(rig *r, const at_op *m, int s, const double *x, uint32_t i) {
    const lm_op *op = &r->p->op[m->op];
    lm_diff_tap *t = &r->c->tap[m->op];
    const uint32_t position = r->from + i, ids = n_ids(op, m->width);
    const double *truth = row_at(r, m, 0, i);
    if (is_choice(op)) {
        canonical(op, truth, m->width, r->scratch[0]);
        truth = r->scratch[0];
    }
    const bool same = !is_choice(op) || !memcmp(truth, x, ids * sizeof *x);
    if (!same) {
        t->s[s].forked = true;
        if (position < r->fork[s][m->op]) r->fork[s][m->op] = position;
    }
    if (same && position < m->fork_from[s])
        lm_diff_drift(t, s, lm_distance(x, truth, m->width), spread(r, m, truth, 0, r->free_at[s], i), size_of(truth, m->width), position);
    if (r->replay_at[s] == LM_NONE) return;
    const double *own = row_at(r, m, r->replay_at[s], i);
    if (is_choice(op)) {
        canonical(op, own, m->width, r->scratch[0]);
        own = r->scratch[0];
    }
    const lm_dist noise = spread(r, m, own, r->replay_at[s], r->replay_at[s] + 1, i);
    lm_dist err = lm_distance(x, own, m->width);
    double share = lm_share(err, noise);
    if (is_choice(op) && memcmp(own, x, ids * sizeof *x)) { /* rounding explains another choice only where the two were about equal */
        const uint32_t a_width = r->p->value[op->a].width;
        const double gap =
            op->kind == LM_OP_ROUTE && m->in ? route_gap(r, op, m->in + ((size_t)r->replay_at[s] * r->n + i) * a_width, x, own) : 1;
        share = isinf(noise.l2) ? 0 : gap / (LM_BAND * 0x1p-21);
    }
    lm_diff_local(t, s, err, noise, size_of(own, m->width), position, share);
}

static void measure_logits(rig *r, const at_op *m, uint32_t i) {
    const double *sample[2][MAX_SAMPLES], *const *samples[2] = {sample[0], sample[1]}, *x[2];
    lm_diff_row *row = &r->c->row[r->from + i];
    for (int s = 0; s < 2; s++) {
        x[s] = known(r, s, m->op, i) ? r->row[s] : NULL;
        row->forked[s] = r->from + i >= m->fork_from[s];
        for (uint32_t k = 0; r->free_at[s] != LM_NONE && k < r->d->samples; k++) sample[s][k] = row_at(r, m, r->free_at[s] + k, i);
    }
    lm_diff_choices(r->d, row, r->from + i, x, row_at(r, m, 0, i), samples, r->d->samples, r->scratch[0]);
    for (int s = 0; s < 2; s++)
        if (!x[s] && r->d->side[s].c && !row->forked[s])
            lm_diff_top(r->d, &r->d->side[s], &r->c->tap[m->op], r->from + i, row_at(r, m, 0, i), samples[s], r->d->samples);
}

static void measure(rig *r, uint32_t op, const double *base, const double *in) {
    at_op m = {op, width_of(r, op), base, in, {UINT32_MAX, UINT32_MAX}};
    const lm_op *o = &r->p->op[op];
    for (uint32_t k = 0; k < op; k++)
        for (int s = 0; s < 2; s++) m.fork_from[s] = r->fork[s][k] < m.fork_from[s] ? r->fork[s][k] : m.fork_from[s];
    for (uint32_t i = 0; i < r->n; i++) {
        const bool both = known(r, 0, op, i) && known(r, 1, op, i);
        for (int s = 0; s < 2; s++)
            if (known(r, s, op, i)) {
                widen(r->scratch[1], stored(r, s, op, i), m.width);
                if (is_choice(o))
                    canonical(o, r->scratch[1], m.width, r->row[s]);
                else
                    memcpy(r->row[s], r->scratch[1], m.width * sizeof *r->row[s]);
            }
        for (int s = 0; s < 2; s++)
            if (known(r, s, op, i)) measure_side(r, &m, s, r->row[s], i);
        if (both) lm_diff_pair(&r->c->tap[op], stored(r, 0, op, i), stored(r, 1, op, i), r->row[0], r->row[1], m.width, r->from + i);
        if (o->out == r->p->logits) measure_logits(r, &m, i);
    }
}

/* ---- around each op ---------------------------------------------------------------------------------------------------------------------
 */
static bool noisy(const role *k) { return k->kind == FREE || k->kind == NOISY; }

/* Perturbs (or puts back) the operands of the sequences that have noise; what an op did to them must not reach the ops after it. */
static void operands(rig *r, uint32_t op, const lm_edit *e, bool put_back) {
    const lm_val in[4] = {e->op->a, e->op->b, e->op->c, e->op->d};
    double *keep = r->saved;
    for (uint32_t k = 0; k < 4; k++) {
        bool again = in[k] == LM_NONE;
        for (uint32_t j = 0; j < k; j++) again |= in[j] == in[k];
        if (again) continue;
        const uint32_t width = r->p->value[in[k]].width;
        for (uint32_t i = 0; i < e->n; i++) {
            const role *who = &r->role[e->row[i] / r->n];
            double *x = e->in[k] + (size_t)i * width;
            if (!noisy(who)) continue;
            if (put_back)
                memcpy(x, keep, width * sizeof *x);
            else {
                memcpy(keep, x, width * sizeof *x);
                lm_noise_operand(&who->noise, r->p, op, k, r->from + e->row[i] % r->n, x);
            }
            keep += width;
        }
    }
}

static void replace(rig *r, uint32_t op, const lm_edit *e) {
    const uint32_t width = width_of(r, op);
    for (uint32_t i = 0; i < e->n; i++) {
        const role *who = &r->role[e->row[i] / r->n];
        const uint32_t at = e->row[i] % r->n;
        if ((who->kind == REPLAY || who->kind == NOISY) && known(r, who->side, op, at))
            widen(e->out + (size_t)i * width, stored(r, who->side, op, at), width);
    }
}

static double *head_rows(rig *r, uint32_t op) {
    size_t at = 0;
    for (uint32_t k = r->p->head_first; k < op; k++) at += width_of(r, k);
    return r->head + at * r->n_seqs * r->n;
}

static bool on_edit(void *ctx, const lm_program *p, const lm_edit *e) {
    rig *r = ctx;
    const uint32_t op = (uint32_t)(e->op - p->op), width = width_of(r, op);
    operands(r, op, e, !e->before);
    if (e->before) return true;
    for (uint32_t i = 0; i < e->n; i++) {
        const role *who = &r->role[e->row[i] / r->n];
        if (noisy(who)) lm_noise_result(&who->noise, p, op, r->from + e->row[i] % r->n, e->out + (size_t)i * width);
    }
    if (op < p->head_first)
        measure(r, op, e->out, e->in[0]);
    else
        for (uint32_t i = 0; i < e->n; i++)
            memcpy(head_rows(r, op) + (size_t)e->row[i] * width, e->out + (size_t)i * width, width * sizeof(double));
    replace(r, op, e);
    return true;
}

/* ---- the block, the case
 * ------------------------------------------------------------------------------------------------------------------ */
static lm_status run_block(rig *r, lm_error *err) {
    const lm_engine *e = r->d->arbiter;
    const uint32_t rows = r->n_seqs * r->n;
    lm_seq seq[MAX_SEQS];
    int32_t *id = lm_calloc(rows, sizeof *id);
    uint8_t *want = lm_calloc(rows, 1);
    lm_status st = id && want ? LM_OK : lm_fail_nomem(err, "a batch", rows * 5ull);
    for (uint32_t i = 0; i < r->n_seqs && st == LM_OK; i++) {
        seq[i] = (lm_seq){.state = r->state[i], .row0 = i * r->n, .n = r->n, .pos0 = r->from, .length = r->c->n};
        memcpy(id + (size_t)i * r->n, r->ids + r->from, r->n * sizeof *id);
        memset(want + (size_t)i * r->n, 1, r->n);
    }
    const lm_batch b = {.n_rows = rows, .n_seqs = r->n_seqs, .id = id, .want = want, .seq = seq};
    const lm_run run = {.edit = on_edit, .edit_ctx = r, .interrupted = e->opt.interrupted, .interrupted_ctx = e->opt.interrupted_ctx};
    if (st == LM_OK) st = e->backend->run(e->device, &b, &run, err);
    for (uint32_t op = r->p->head_first; op < r->p->n_ops && st == LM_OK; op++) measure(r, op, head_rows(r, op), NULL);
    lm_free(id);
    lm_free(want);
    return st;
}

static void cast(rig *r) {
    const lm_diff *d = r->d;
    const uint32_t K = d->samples;
    r->role[r->n_seqs++] = (role){.kind = TRUTH};
    for (int s = 0; s < 2; s++) {
        r->free_at[s] = r->replay_at[s] = LM_NONE;
        if (!d->side[s].spec) continue;
        if (s && d->side[0].spec && d->side[0].prec == d->side[1].prec) {
            r->free_at[1] = r->free_at[0];
            continue;
        }
        r->free_at[s] = r->n_seqs;
        for (uint32_t k = 0; k < K; k++) r->role[r->n_seqs++] = (role){FREE, s, {d->side[s].prec, d->o->seed, k}};
    }
    for (int s = 0; s < 2; s++) {
        const lm_side *side = &d->side[s];
        if (!side->spec || !(side->n_taps || (side->c && (side->c->logits_last || side->c->greedy_logits)))) continue;
        r->replay_at[s] = r->n_seqs;
        r->role[r->n_seqs++] = (role){.kind = REPLAY, .side = s};
        for (uint32_t k = 0; k < K; k++) r->role[r->n_seqs++] = (role){NOISY, s, {side->prec, d->o->seed, MAX_SAMPLES + k}};
    }
}

/* How many positions at a time, and the memory for them. */
static lm_status make_room(rig *r, uint32_t *block, lm_error *err) {
    const lm_program *p = r->p;
    uint64_t all = 0, head = 0, most = 0, widest = 1;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lm_op *op = &p->op[i];
        const lm_val in[4] = {op->a, op->b, op->c, op->d};
        uint64_t sum = 0;
        for (int k = 0; k < 4; k++) sum += in[k] == LM_NONE ? 0 : p->value[in[k]].width;
        most = sum > most ? sum : most;
        widest = width_of(r, i) > widest ? width_of(r, i) : widest;
        all += width_of(r, i);
        head += i >= p->head_first ? width_of(r, i) : 0;
    }
    const uint64_t per = all * 2 * sizeof(float) + (head + most) * r->n_seqs * sizeof(double);
    uint64_t n = MEMORY / (per ? per : 1);
    n = n < 1 ? 1 : n > MAX_BLOCK ? MAX_BLOCK : n;
    if (n > r->c->n) n = r->c->n;
    *block = (uint32_t)n;
    r->saved = lm_arena_calloc(r->arena, n * r->n_seqs, most * sizeof(double));
    r->head = lm_arena_calloc(r->arena, n * r->n_seqs, head * sizeof(double));
    bool ok = r->saved && r->head;
    for (int i = 0; i < 3; i++) ok = (r->scratch[i] = lm_arena_calloc(r->arena, widest, sizeof(double))) && ok;
    for (int s = 0; s < 2; s++) {
        lm_side *side = &r->d->side[s];
        ok = (r->row[s] = lm_arena_calloc(r->arena, widest, sizeof(double))) && ok;
        ok = (r->fork[s] = lm_arena_calloc(r->arena, p->n_ops, sizeof(uint32_t))) && ok;
        ok = (side->store = lm_arena_calloc(r->arena, n, all * sizeof(float))) && ok;
        ok = (side->known = lm_arena_calloc(r->arena, n, p->n_ops)) && ok;
        for (uint32_t i = 0; ok && i < p->n_ops; i++) r->fork[s][i] = UINT32_MAX;
    }
    return ok ? LM_OK : lm_fail_nomem(err, "a block of positions", per * n);
}

static lm_status run_blocks(rig *r, lm_error *err) {
    uint32_t block;
    const lm_evidence_options *o = &r->d->o->run;
    LM_TRY(make_room(r, &block, err));
    for (uint32_t i = 0; i < r->n_seqs; i++)
        LM_TRY(lm_state_create(r->p, r->d->arbiter->backend->cache(r->d->arbiter->device), &r->state[i], err));
    for (int s = 0; s < 2; s++) LM_TRY(lm_side_restart(&r->d->side[s], err));
    for (r->from = 0; r->from < r->c->n; r->from += r->n) {
        r->n = r->c->n - r->from < block ? r->c->n - r->from : block;
        if (o->progress && !o->progress(o->progress_ctx, "comparing", r->from, r->c->n)) return lm_fail(err, LM_INTERRUPTED, "interrupted");
        for (int s = 0; s < 2; s++)
            if (r->d->side[s].spec) LM_TRY(lm_side_load(r->d, &r->d->side[s], r->ids, r->from, r->n, r->c->n, err));
        LM_TRY(run_block(r, err));
    }
    return LM_OK;
}

lm_status lm_replay_case(lm_diff *d, lm_diff_case *c, const int32_t *ids, lm_error *err) {
    rig *r = lm_calloc(1, sizeof *r);
    if (!r) return lm_fail_nomem(err, "the rig", sizeof *r);
    *r = (rig){.d = d, .c = c, .p = d->p, .ids = ids, .arena = lm_arena_create()};
    lm_status st = r->arena ? LM_OK : lm_fail_nomem(err, "the rig", 0);
    if (st == LM_OK) {
        cast(r);
        st = run_blocks(r, err);
    }
    for (uint32_t i = 0; i < r->n_seqs; i++) lm_state_free(r->state[i]);
    for (int s = 0; s < 2; s++) {
        d->side[s].store = NULL;
        d->side[s].known = NULL;
        lm_session_free(d->side[s].s);
        d->side[s].s = NULL;
    }
    lm_arena_destroy(r->arena);
    lm_free(r);
    return st;
}
