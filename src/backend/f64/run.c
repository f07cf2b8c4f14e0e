/* One run of the arbiter: check, reserve, allocate, then the body over all rows, the head over blocks of wanted rows, and only at the
 * very end the commit. Rows are stored in pages past the states' lengths and recurrent blocks are worked on as copies, so that a run that
 * stops anywhere leaves the states as they were. */
#include "backend/f64/f64.h"
#include <string.h>

typedef struct lm_f64_op {
    void (*run)(const lm_f64 *f, const lm_op *op);
    bool (*need)(const lm_f64 *f, const lm_op *op, lm_f64_need *out); /* NULL: nothing */
} lm_f64_op;
static const lm_f64_op ops[LM_OP_COUNT] = {
    [LM_OP_LINEAR] = {lm_f64_linear, lm_f64_linear_need},
    [LM_OP_ATTENTION] = {lm_f64_attention, lm_f64_attention_need},
    [LM_OP_MLA] = {lm_f64_mla, lm_f64_mla_need},
    [LM_OP_INDEX] = {lm_f64_index, lm_f64_index_need},
    [LM_OP_ROUTE] = {lm_f64_route, lm_f64_route_need},
    [LM_OP_EXPERTS] = {lm_f64_experts, lm_f64_experts_need},
    [LM_OP_CONV] = {lm_f64_conv, NULL},
    [LM_OP_DELTA] = {lm_f64_delta, lm_f64_delta_need},
};

static void row_task(void *ctx, uint32_t i, uint32_t thread) {
    const lm_f64_job *job = ctx;
    (void)thread;
    const lm_f64_row_fn own = job->f->d->bf16 ? lm_f64_bf16_row_fns[job->op->kind] : NULL;
    (own ? own : lm_f64_row_fns[job->op->kind])(job->f, job->op, i);
}
static void run_op(const lm_f64 *f, const lm_op *op) {
    lm_f64_job job = {f, op, 0};
    if (ops[op->kind].run) ops[op->kind].run(f, op);
    else lm_pool_run(f->d->pool, row_task, &job, f->n);
    if (f->d->bf16) lm_f64_bf16_store(f, op);
}

/* ---- before ------------------------------------------------------------------------------------------------------------------*/
static lm_status check_batch(const lm_program *p, const lm_batch *b, lm_error *err) {
    uint32_t row = 0;
    if (!b->n_rows) return lm_fail(err, LM_USAGE, "an empty batch: give at least one row");
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const lm_seq *s = &b->seq[i];
        if (s->row0 != row || !s->n || s->n > b->n_rows - row) return lm_fail(err, LM_USAGE, "sequence %u: its rows do not follow on", i);
        if (lm_state_type(s->state) != &lm_cache_f64)
            return lm_fail(err, LM_STATE, "sequence %u: its cache holds %s, this device's %s: make it anew", i,
                           lm_state_type(s->state)->name, (&lm_cache_f64)->name);
        if (s->pos0 != lm_state_length(s->state))
            return lm_fail(err, LM_USAGE, "sequence %u: starts at %u but its state holds %u positions", i, s->pos0,
                           lm_state_length(s->state));
        if ((uint64_t)s->pos0 + s->n > s->length)
            return lm_fail(err, LM_USAGE, "sequence %u: announced %u positions, has more", i, s->length);
        for (uint32_t j = 0; j < i; j++)
            if (b->seq[j].state == s->state) return lm_fail(err, LM_USAGE, "sequences %u and %u share a state: fork it", j, i);
        row += s->n;
    }
    if (row != b->n_rows) return lm_fail(err, LM_USAGE, "the sequences have %u rows, the batch %u", row, b->n_rows);
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lm_op *op = &p->op[i];
        if (op->kind != LM_OP_EMBED) continue;
        uint64_t rows = p->weight[op->w].rows;
        for (uint32_t j = 0; !op->embed.by_position && j < b->n_rows; j++)
            if (b->id[j] < 0 || (uint64_t)b->id[j] >= rows)
                return lm_fail_at(err, LM_RANGE, NULL, LM_NO_OFFSET, op->name, "token id %d is outside the table of %llu rows", b->id[j],
                                  (unsigned long long)rows);
        for (uint32_t j = 0; op->embed.by_position && j < b->n_seqs; j++)
            if ((uint64_t)b->seq[j].pos0 + b->seq[j].n > rows)
                return lm_fail_at(err, LM_RANGE, NULL, LM_NO_OFFSET, op->name, "position %llu is outside the table of %llu rows",
                                  (unsigned long long)b->seq[j].pos0 + b->seq[j].n - 1, (unsigned long long)rows);
    }
    return LM_OK;
}

static int rope_set(const lm_program *p, const lm_seq *s) {
    for (uint32_t i = 0; i < p->n_ropes; i++)
        if (p->rope[i].border && s->length > p->rope[i].border) return 1;
    return 0;
}

/* Pages for the new rows; every page that a row may look at must be there. */
static lm_status reserve(const lm_program *p, const lm_batch *b, lm_error *err) {
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const lm_seq *s = &b->seq[i];
        int have = lm_state_rope_set(s->state), set = rope_set(p, s);
        if (have >= 0 && have != set)
            return lm_fail(err, LM_STATE, "sequence %u: %u positions need the %s rope set, its cache has the other: rebuild it", i,
                           s->length, set ? "long" : "short");
        LM_TRY(lm_state_reserve(s->state, s->n, err));
        for (uint32_t j = 0; j < p->n_slots; j++) {
            const lm_cache_slot *c = &p->slot[j];
            if (c->kind == LM_CACHE_CONV || c->kind == LM_CACHE_DELTA) continue;
            uint32_t page = c->window && s->pos0 >= c->window ? (s->pos0 - c->window + 1) / LM_PAGE : 0;
            for (; (uint64_t)page * LM_PAGE < (uint64_t)s->pos0 + s->n; page++)
                if (!lm_state_keys(s->state, j, page, 0))
                    return lm_fail(err, LM_STATE, "sequence %u: cache page %u is missing", i, page);
        }
    }
    return LM_OK;
}

/* ---- memory: one arena a run ----------------------------------------------------------------------------------------------------*/
typedef struct run_mem {
    lm_arena *arena;
    uint32_t *row;   /* the rows of the body, or of a block of the head */
    double **body;   /* [n_values] where the body's values stand while the head runs */
    double **gather; /* [n_gathered] */
} run_mem;

static lm_status needs(lm_f64 *f, lm_f64_need *most, lm_error *err) {
    const lm_program *p = f->p;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        lm_f64_need need = {0, 0};
        if (!ops[p->op[i].kind].need) continue;
        if (!ops[p->op[i].kind].need(f, &p->op[i], &need))
            return lm_fail_at(err, LM_RANGE, NULL, LM_NO_OFFSET, p->op[i].name, "%u rows are too many for one run: use smaller chunks",
                              f->n);
        if (need.thread > most->thread) most->thread = need.thread;
        if (need.shared > most->shared) most->shared = need.shared;
    }
    most->thread = (most->thread + 7) & ~(uint64_t)7; /* threads don't share cache lines */
    return LM_OK;
}

static lm_status copy_blocks(lm_f64 *f, lm_arena *a, lm_error *err) {
    const lm_program *p = f->p;
    f->block = lm_arena_calloc(a, (size_t)f->b->n_seqs * (p->n_slots ? p->n_slots : 1), sizeof *f->block);
    if (!f->block) return lm_fail_nomem(err, "a run", 0);
    for (uint32_t i = 0; i < f->b->n_seqs; i++)
        for (uint32_t j = 0; j < p->n_slots; j++) {
            const lm_cache_slot *c = &p->slot[j];
            if (c->kind != LM_CACHE_CONV && c->kind != LM_CACHE_DELTA) continue;
            size_t bytes = (size_t)(c->kind == LM_CACHE_DELTA ? c->heads : 1) * c->dk * c->dv * sizeof(double);
            double *to = f->block[(size_t)i * p->n_slots + j] = lm_arena_alloc(a, bytes ? bytes : 1);
            const double *from = lm_state_block(f->b->seq[i].state, j);
            if (!to || !from) return lm_fail_nomem(err, "a run's recurrent state", bytes);
            memcpy(to, from, bytes);
        }
    return LM_OK;
}

static lm_status allocate(lm_f64 *f, run_mem *m, lm_error *err) {
    const lm_device *d = f->d;
    lm_arena *a = m->arena;
    lm_f64_need most = {0, 0};
    LM_TRY(needs(f, &most, err));
    uint32_t n = f->n, *pos = lm_arena_calloc(a, n, sizeof *pos), *seq = lm_arena_calloc(a, n, sizeof *seq);
    m->row = lm_arena_calloc(a, n > LM_F64_HEAD_ROWS ? n : LM_F64_HEAD_ROWS, sizeof *m->row);
    m->body = lm_arena_calloc(a, f->p->n_values, sizeof *m->body);
    m->gather = lm_arena_calloc(a, d->n_gathered ? d->n_gathered : 1, sizeof *m->gather);
    f->val = lm_arena_calloc(a, f->p->n_values, sizeof *f->val);
    double **buf = lm_arena_calloc(a, d->n_bufs, sizeof *buf);
    uint64_t all_threads;
    if (!lm_mul(most.thread, lm_pool_size(d->pool), &all_threads)) return lm_fail_nomem(err, "a run", UINT64_MAX);
    f->thread_need = most.thread;
    f->thread_mem = lm_arena_calloc(a, all_threads ? all_threads : 1, sizeof(double));
    f->shared = lm_arena_calloc(a, most.shared ? most.shared : 1, sizeof(double));
    bool ok = pos && seq && m->row && m->body && m->gather && f->val && buf && f->thread_mem && f->shared;
    for (uint32_t i = 0; ok && i < d->n_bufs; i++) {
        uint64_t cells;
        ok = lm_mul(d->buf_head[i] ? LM_F64_HEAD_ROWS : n, d->buf_width[i], &cells);
        buf[i] = ok ? lm_arena_calloc(a, cells, sizeof(double)) : NULL;
        ok = ok && buf[i];
    }
    if (!ok) return lm_fail_nomem(err, "a run's values (use smaller chunks)", n * sizeof(double));
    for (uint32_t i = 0; i < f->p->n_values; i++) f->val[i] = m->body[i] = buf[d->buf_of[i]];
    for (uint32_t i = 0; i < d->n_gathered; i++) m->gather[i] = buf[d->gather_buf[i]];
    for (uint32_t i = 0; i < f->b->n_seqs; i++)
        for (uint32_t j = 0; j < f->b->seq[i].n; j++) {
            pos[f->b->seq[i].row0 + j] = f->b->seq[i].pos0 + j;
            seq[f->b->seq[i].row0 + j] = i;
        }
    for (uint32_t i = 0; i < n; i++) m->row[i] = i;
    f->pos = pos;
    f->seq = seq;
    f->row = m->row;
    return copy_blocks(f, a, err);
}

/* ---- during ------------------------------------------------------------------------------------------------------------------*/
static bool edit(const lm_f64 *f, const lm_op *op, const lm_run *r, bool before) {
    const lm_val in[4] = {op->a, op->b, op->c, op->d};
    lm_edit e = {.op = op, .before = before, .n = f->n, .row = f->row, .out = f->val[op->out]};
    for (int k = 0; k < 4; k++) e.in[k] = in[k] == LM_NONE ? NULL : f->val[in[k]];
    return r->edit(r->edit_ctx, f->p, &e);
}

static lm_status run_ops(const lm_f64 *f, uint32_t from, uint32_t to, const lm_run *r, lm_error *err) {
    for (uint32_t i = from; i < to; i++) {
        const lm_op *op = &f->p->op[i];
        if (r->interrupted && r->interrupted(r->interrupted_ctx)) return lm_fail(err, LM_INTERRUPTED, "interrupted before %s", op->name);
        if (r->edit && !edit(f, op, r, true)) return lm_fail(err, LM_INTERRUPTED, "stopped by the edit before %s", op->name);
        run_op(f, op);
        if (r->edit && !edit(f, op, r, false)) return lm_fail(err, LM_INTERRUPTED, "stopped by the edit after %s", op->name);
        lm_rows rows = {f->val[op->out], true, f->n, lm_f64_width(f, op->out), f->row};
        if (r->tap && !r->tap(r->tap_ctx, f->p, op, &rows)) return lm_fail(err, LM_INTERRUPTED, "stopped by the tap at %s", op->name);
    }
    return LM_OK;
}

static lm_status run_head(lm_f64 *f, run_mem *m, const lm_run *r, lm_error *err) {
    const lm_program *p = f->p;
    const lm_batch *b = f->b;
    if (!b->want || (!r->logits && !r->tap && !r->edit)) return LM_OK;
    if (r->head) r->head(r->head_ctx);
    for (uint32_t next = 0; next < b->n_rows;) {
        for (f->n = 0; next < b->n_rows && f->n < LM_F64_HEAD_ROWS; next++)
            if (b->want[next]) m->row[f->n++] = next;
        if (!f->n) break;
        for (uint32_t i = 0; i < f->d->n_gathered; i++) {
            lm_val v = f->d->gathered[i];
            size_t width = lm_f64_width(f, v);
            f->val[v] = m->gather[i];
            for (uint32_t j = 0; j < f->n; j++) memcpy(f->val[v] + j * width, m->body[v] + m->row[j] * width, width * sizeof(double));
        }
        LM_TRY(run_ops(f, p->head_first, p->n_ops, r, err));
        lm_rows rows = {f->val[p->logits], true, f->n, p->vocab, m->row};
        if (r->logits && !r->logits(r->logits_ctx, &rows)) return lm_fail(err, LM_INTERRUPTED, "interrupted while logits were being read");
    }
    return LM_OK;
}

static void commit(const lm_f64 *f) {
    for (uint32_t i = 0; i < f->b->n_seqs; i++) {
        const lm_seq *s = &f->b->seq[i];
        for (uint32_t j = 0; j < f->p->n_slots; j++) {
            const lm_cache_slot *c = &f->p->slot[j];
            const double *from = f->block[(size_t)i * f->p->n_slots + j];
            if (!from) continue;
            memcpy(lm_state_block(s->state, j), from, (size_t)(c->kind == LM_CACHE_DELTA ? c->heads : 1) * c->dk * c->dv * sizeof *from);
        }
        lm_state_commit(s->state, s->n);
        lm_state_set_rope_set(s->state, rope_set(f->p, s));
    }
}

lm_status lm_f64_run(lm_device *d, const lm_batch *b, const lm_run *r, lm_error *err) {
    const lm_program *p = d->program;
    if (!p) return lm_fail(err, LM_STATE, "the f64 device has no program: configure it first");
    if (!lm_fp_env_ok()) lm_fp_env_set();
    LM_TRY(check_batch(p, b, err));
    LM_TRY(reserve(p, b, err));
    lm_f64 f = {.d = d, .p = p, .b = b, .n = b->n_rows};
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        uint64_t len = (uint64_t)b->seq[i].pos0 + b->seq[i].n;
        if (len > f.max_len) f.max_len = len;
    }
    run_mem m = {.arena = lm_arena_create()};
    if (!m.arena) return lm_fail_nomem(err, "a run", 0);
    lm_status s = allocate(&f, &m, err);
    if (s == LM_OK) s = run_ops(&f, 0, p->head_first, r, err);
    if (s == LM_OK) s = run_head(&f, &m, r, err);
    if (s == LM_OK) commit(&f);
    lm_arena_destroy(m.arena);
    return s;
}
