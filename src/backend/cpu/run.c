/* One run: check, reserve, make room, then the body over all rows, the head over blocks of wanted rows, and at the very end the commit.
 * Rows are stored in pages past the states' lengths and recurrent blocks are worked on as copies, so that a run that stops anywhere leaves
 * the states as they were. */
#include "backend/cpu/cpu.h"
#include <string.h>

/* ---- buffers ---------------------------------------------------------------------------------------------------------------------*/
void lm_cpu_shrink(lm_cpu_buf *b) {
    if (b->p) lm_pages_free(b->p, b->bytes);
    *b = (lm_cpu_buf){0};
}
lm_status lm_cpu_grow(lm_cpu_buf *b, uint64_t bytes, const char *what, lm_error *err) {
    if (bytes <= b->bytes) return LM_OK;
    lm_cpu_shrink(b);
    if (bytes > SIZE_MAX / 2 || !(b->p = lm_pages_alloc((size_t)bytes, true))) return lm_fail_nomem(err, what, bytes);
    b->bytes = bytes;
    return LM_OK;
}

static const lm_cpu_fn *const fns[LM_OP_COUNT] = {
    [LM_OP_LINEAR] = &lm_cpu_linear, [LM_OP_EXPERTS] = &lm_cpu_experts, [LM_OP_ATTENTION] = &lm_cpu_attention, [LM_OP_MLA] = &lm_cpu_mla,
    [LM_OP_INDEX] = &lm_cpu_index,   [LM_OP_ROUTE] = &lm_cpu_route,     [LM_OP_CONV] = &lm_cpu_conv,           [LM_OP_DELTA] = &lm_cpu_delta,
};
static bool need_of(const lm_cpu *f, const lm_op *op, lm_cpu_need *out) {
    if (!fns[op->kind]) return lm_cpu_rows_need(f, op, out);
    return !fns[op->kind]->need || fns[op->kind]->need(f, op, out);
}

/* ---- before ----------------------------------------------------------------------------------------------------------------------*/
static lm_status check_tables(const lm_program *p, const lm_batch *b, lm_error *err) {
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lm_op *op = &p->op[i];
        if (op->kind != LM_OP_EMBED) continue;
        const uint64_t rows = p->weight[op->w].rows;
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
static lm_status check_batch(const lm_device *d, const lm_batch *b, lm_error *err) {
    uint32_t row = 0;
    if (!b->n_rows) return lm_fail(err, LM_USAGE, "an empty batch: give at least one row");
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const lm_seq *s = &b->seq[i];
        if (s->row0 != row || !s->n || s->n > b->n_rows - row) return lm_fail(err, LM_USAGE, "sequence %u: its rows do not follow on", i);
        if (lm_state_type(s->state) != d->cache)
            return lm_fail(err, LM_STATE, "sequence %u: its cache holds %s, this device's %s: make it anew", i, lm_state_type(s->state)->name,
                           (d->cache)->name);
        if (s->pos0 != lm_state_length(s->state))
            return lm_fail(err, LM_USAGE, "sequence %u: starts at %u but its state holds %u positions", i, s->pos0, lm_state_length(s->state));
        if ((uint64_t)s->pos0 + s->n > s->length) return lm_fail(err, LM_USAGE, "sequence %u: announced %u positions, has more", i, s->length);
        for (uint32_t j = 0; j < i; j++)
            if (b->seq[j].state == s->state) return lm_fail(err, LM_USAGE, "sequences %u and %u share a state: fork it", j, i);
        row += s->n;
    }
    return row == b->n_rows ? LM_OK : lm_fail(err, LM_USAGE, "the sequences have %u rows, the batch %u", row, b->n_rows);
}
static int rope_set(const lm_program *p, const lm_seq *s) {
    for (uint32_t i = 0; i < p->n_ropes; i++)
        if (p->rope[i].border && s->length > p->rope[i].border) return 1;
    return 0;
}
static bool recurrent(const lm_cache_slot *c) { return c->kind == LM_CACHE_CONV || c->kind == LM_CACHE_DELTA; }
static uint64_t block_floats(const lm_cache_slot *c) { return (uint64_t)(c->kind == LM_CACHE_DELTA ? c->heads : 1) * c->dk * c->dv; }

/* Pages for the new rows; every page that a row may look at must be there. */
static lm_status reserve(const lm_program *p, const lm_batch *b, lm_error *err) {
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const lm_seq *s = &b->seq[i];
        const int have = lm_state_rope_set(s->state), set = rope_set(p, s);
        if (have >= 0 && have != set)
            return lm_fail(err, LM_STATE, "sequence %u: %u positions need the %s rope set, its cache was made with the other: rebuild it", i,
                           s->length, set ? "long" : "short");
        LM_TRY(lm_state_reserve(s->state, s->n, err));
        for (uint32_t j = 0; j < p->n_slots; j++) {
            const lm_cache_slot *c = &p->slot[j];
            if (recurrent(c)) continue;
            uint32_t page = c->window && s->pos0 >= c->window ? (s->pos0 - c->window + 1) / LM_PAGE : 0;
            for (; (uint64_t)page * LM_PAGE < (uint64_t)s->pos0 + s->n; page++)
                if (!lm_state_keys(s->state, j, page, 0)) return lm_fail(err, LM_STATE, "sequence %u: cache page %u is missing", i, page);
        }
    }
    return LM_OK;
}

/* ---- room ------------------------------------------------------------------------------------------------------------------------*/
/* Pointers and row tables, then the ropes' cosines and sines, in one buffer. */
typedef struct tables {
    uint8_t *at;
    uint64_t bytes;
} tables;
static void *take(tables *t, uint64_t n, uint64_t size) {
    void *p = t->at ? t->at + t->bytes : NULL;
    t->bytes += (n * size + 63) & ~(uint64_t)63;
    return p;
}
static void lay_out(lm_cpu *f, tables *t) {
    const lm_program *p = f->p;
    const uint64_t n = f->b->n_rows;
    f->pos = take(t, n, sizeof *f->pos);
    f->seq = take(t, n, sizeof *f->seq);
    f->row = take(t, n > LM_CPU_HEAD_ROWS ? n : LM_CPU_HEAD_ROWS, sizeof *f->row);
    f->val = take(t, p->n_values, sizeof *f->val);
    f->block = take(t, (uint64_t)f->b->n_seqs * p->n_slots, sizeof *f->block);
    f->cos = take(t, p->n_ropes, sizeof *f->cos);
    f->sin = take(t, p->n_ropes, sizeof *f->sin);
    for (uint32_t i = 0; i < p->n_ropes; i++) {
        float *c = take(t, n * p->rope[i].n_pairs, sizeof *c), *s = take(t, n * p->rope[i].n_pairs, sizeof *s);
        if (!t->at) continue;
        f->cos[i] = c;
        f->sin[i] = s;
    }
}
/* The long set turns every row of a sequence whose announced length passes the border. */
static void rope_task(void *ctx, uint32_t row, uint32_t thread) {
    (void)thread;
    const lm_cpu *f = ctx;
    for (uint32_t i = 0; i < f->p->n_ropes; i++) {
        const lm_rope *r = &f->p->rope[i];
        const double *freq = r->border && f->b->seq[f->seq[row]].length > r->border ? r->inv_freq_long : r->inv_freq;
        f->k->turns(f->cos[i] + (size_t)row * r->n_pairs, f->sin[i] + (size_t)row * r->n_pairs, f->pos[row], freq, r->factor, r->n_pairs);
    }
}

static lm_status make_blocks(lm_cpu *f, lm_error *err) {
    const lm_program *p = f->p;
    uint64_t all = 0, floats;
    for (uint32_t j = 0; j < p->n_slots; j++)
        if (recurrent(&p->slot[j])) all += (block_floats(&p->slot[j]) + 15) & ~(uint64_t)15;
    if (!lm_mul(all, f->b->n_seqs, &floats) || floats > SIZE_MAX / 8) return lm_fail_nomem(err, "a run's recurrent state", UINT64_MAX);
    LM_TRY(lm_cpu_grow(&f->d->blocks, floats * sizeof(float), "a run's recurrent state", err));
    float *at = f->d->blocks.p;
    for (uint32_t i = 0; i < f->b->n_seqs; i++)
        for (uint32_t j = 0; j < p->n_slots; j++) {
            float **to = &f->block[(size_t)i * p->n_slots + j];
            *to = NULL;
            if (!recurrent(&p->slot[j])) continue;
            const uint64_t n = block_floats(&p->slot[j]);
            const float *from = lm_state_block(f->b->seq[i].state, j);
            if (!from) return lm_fail_nomem(err, "a run's recurrent state", n * sizeof *from);
            memcpy(at, from, n * sizeof *at);
            *to = at;
            at += (n + 15) & ~(uint64_t)15;
        }
    return LM_OK;
}

/* The most that any op needs, which decoding asks for once a page: it depends on the rows and positions alone. */
static lm_status find_needs(const lm_cpu *f, lm_error *err) {
    lm_device *d = f->d;
    const lm_program *p = f->p;
    lm_cpu most = *f;
    most.max_len = (f->max_len + LM_PAGE - 1) / LM_PAGE * LM_PAGE;
    if (d->need_n == f->n && d->need_len == most.max_len) return LM_OK;
    d->need_n = 0;
    d->need = (lm_cpu_need){0, 0};
    for (uint32_t i = 0; i < p->n_ops; i++) {
        lm_cpu_need need = {0, 0};
        if (!need_of(&most, &p->op[i], &need))
            return lm_fail_at(err, LM_RANGE, NULL, LM_NO_OFFSET, p->op[i].name, "%u rows are too many for one run: use smaller chunks", f->n);
        d->need.thread = need.thread > d->need.thread ? need.thread : d->need.thread;
        d->need.shared = need.shared > d->need.shared ? need.shared : d->need.shared;
    }
    d->need_n = f->n;
    d->need_len = most.max_len;
    return LM_OK;
}
static lm_status make_room(lm_cpu *f, lm_error *err) {
    lm_device *d = f->d;
    const lm_program *p = f->p;
    uint64_t body, all;
    LM_TRY(find_needs(f, err));
    const uint64_t thread = d->need.thread, shared = d->need.shared;
    f->thread_need = (thread + 31) & ~(uint64_t)31; /* threads don't share cache lines */
    if (!lm_mul(d->body_width, f->n, &body) || !lm_mul(f->thread_need, lm_pool_size(d->pool), &all) || (body | all | shared) > SIZE_MAX / 8)
        return lm_fail_nomem(err, "a run's values (use smaller chunks)", UINT64_MAX);
    LM_TRY(lm_cpu_grow(&d->body, body * sizeof(float), "a run's values (use smaller chunks)", err));
    LM_TRY(lm_cpu_grow(&d->thread, all * sizeof(float), "the threads' scratch", err));
    LM_TRY(lm_cpu_grow(&d->shared, shared * sizeof(float), "a run's scratch (use smaller chunks)", err));
    tables t = {NULL, 0};
    lay_out(f, &t);
    LM_TRY(lm_cpu_grow(&d->tables, t.bytes, "a run's tables", err));
    t = (tables){d->tables.p, 0};
    lay_out(f, &t);
    f->thread_mem = d->thread.p;
    f->shared = d->shared.p;
    for (uint32_t i = 0; i < f->b->n_seqs; i++)
        for (uint32_t j = 0; j < f->b->seq[i].n; j++) {
            const uint32_t row = f->b->seq[i].row0 + j;
            f->pos[row] = f->b->seq[i].pos0 + j;
            f->seq[row] = i;
            f->row[row] = row;
        }
    for (uint32_t i = 0; i < p->head_first; i++) f->val[p->op[i].out] = (float *)d->body.p + d->at[p->op[i].out] * f->n;
    return make_blocks(f, err);
}

/* ---- during ----------------------------------------------------------------------------------------------------------------------*/
/* Decoding: by the next token weights have pushed the ops' descriptions out of the caches, and the caller met them one after the other, alone. So they
 * are asked for: op i's own, and what belongs to the one that was asked for some ops before. */
#define SOON 8u /* ops from the one that runs */
#define NEAR 4u
static void ask_op(const lm_cpu *f, uint32_t i) {
    const lm_op *op = &f->p->op[i];
    const lm_cpu_op *aux = lm_cpu_aux(f, op);
    __builtin_prefetch(op), __builtin_prefetch((const char *)(op + 1) - 1);
    __builtin_prefetch(aux), __builtin_prefetch((const char *)(aux + 1) - 1);
    if (i < NEAR) return;
    const lm_op *near = op - NEAR;
    if (near->w != LM_NONE) __builtin_prefetch(&f->d->weight[near->w]);
    if (near->v != LM_NONE) __builtin_prefetch(&f->d->vec[near->v]);
    __builtin_prefetch(&f->val[near->out]), __builtin_prefetch(&f->p->value[near->out]);
}
static lm_status run_ops(lm_cpu *f, uint32_t from, uint32_t to, const lm_run *r, lm_error *err) {
    f->packed = LM_NONE;
    for (uint32_t i = from, asked = from; i < to; i++) {
        const lm_op *op = &f->p->op[i];
        if (r->interrupted && r->interrupted(r->interrupted_ctx)) return lm_fail(err, LM_INTERRUPTED, "interrupted before %s", op->name);
        if (f->n <= LM_INT_GEMV) {
            for (; asked < to && asked < i + SOON; asked++) ask_op(f, asked);
            lm_pool_ask(f->d->pool);
        }
        if (!r->tap && lm_cpu_gates(f, op)) {
            lm_cpu_ahead(f, i + 3);
            lm_cpu_run_gated(f, op);
            i += 2;
            continue;
        }
        const uint32_t n = r->tap ? 1 : lm_cpu_aux(f, op)->run;
        if (lm_cpu_reads(f, op)) lm_cpu_ahead(f, i + n);
        if (!fns[op->kind]) lm_cpu_rows(f, op, n);
        else if (op->kind == LM_OP_LINEAR) lm_cpu_run_products(f, op, n);
        else fns[op->kind]->run(f, op);
        i += n - 1;
        if (op->kind == LM_OP_EXPERTS || op->kind == LM_OP_MLA) f->packed = LM_NONE; /* they use the same memory */
        const lm_rows rows = {f->val[op->out], false, f->n, lm_cpu_width(f, op->out), f->row};
        if (r->tap && !r->tap(r->tap_ctx, f->p, op, &rows)) return lm_fail(err, LM_INTERRUPTED, "stopped by the tap at %s", op->name);
    }
    return LM_OK;
}

static lm_status run_head(lm_cpu *f, const lm_run *r, lm_error *err) {
    lm_device *d = f->d;
    const lm_program *p = f->p;
    const lm_batch *b = f->b;
    uint32_t wanted = 0;
    for (uint32_t i = 0; b->want && i < b->n_rows; i++) wanted += b->want[i] != 0;
    if (!wanted || (!r->logits && !r->tap)) return LM_OK;
    if (r->head) r->head(r->head_ctx);
    const uint64_t rows = wanted < LM_CPU_HEAD_ROWS ? wanted : LM_CPU_HEAD_ROWS;
    LM_TRY(lm_cpu_grow(&d->head, d->head_width * rows * sizeof(float), "the head's rows", err));
    float *const head = d->head.p;
    for (uint32_t i = p->head_first; i < p->n_ops; i++) f->val[p->op[i].out] = head + d->at[p->op[i].out] * rows;
    for (uint32_t next = 0; next < b->n_rows;) {
        for (f->n = 0; next < b->n_rows && f->n < LM_CPU_HEAD_ROWS; next++)
            if (b->want[next]) f->row[f->n++] = next;
        if (!f->n) break;
        for (uint32_t i = 0; i < d->n_gathered; i++) {
            const lm_val v = d->gathered[i];
            const size_t width = lm_cpu_width(f, v);
            const float *body = (const float *)d->body.p + d->at[v] * b->n_rows;
            f->val[v] = head + d->gather_at[i] * rows;
            for (uint32_t j = 0; j < f->n; j++) memcpy(lm_cpu_at(f, v, j), body + f->row[j] * width, width * sizeof *body);
        }
        LM_TRY(run_ops(f, p->head_first, p->n_ops, r, err));
        const lm_rows out = {f->val[p->logits], false, f->n, p->vocab, f->row};
        if (r->logits && !r->logits(r->logits_ctx, &out)) return lm_fail(err, LM_INTERRUPTED, "interrupted while logits were being read");
    }
    return LM_OK;
}

static void commit(const lm_cpu *f) {
    for (uint32_t i = 0; i < f->b->n_seqs; i++) {
        const lm_seq *s = &f->b->seq[i];
        for (uint32_t j = 0; j < f->p->n_slots; j++) {
            const float *from = f->block[(size_t)i * f->p->n_slots + j];
            if (from) memcpy(lm_state_block(s->state, j), from, block_floats(&f->p->slot[j]) * sizeof *from);
        }
        lm_state_commit(s->state, s->n);
        lm_state_set_rope_set(s->state, rope_set(f->p, s));
    }
}

lm_status lm_cpu_run(lm_device *d, const lm_batch *b, const lm_run *r, lm_error *err) {
    const lm_program *p = d->program;
    if (!p) return lm_fail(err, LM_STATE, "the cpu device has no program: configure it first");
    if (r->edit) return lm_fail(err, LM_UNSUPPORTED, "only the f64 backend lets a caller edit a run's values");
    if (!lm_fp_env_ok()) lm_fp_env_set();
    LM_TRY(check_batch(d, b, err));
    LM_TRY(check_tables(p, b, err));
    LM_TRY(reserve(p, b, err));
    lm_cpu f = {.d = d, .k = d->k, .p = p, .b = b, .n = b->n_rows, .tapped = r->tap};
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const uint64_t len = (uint64_t)b->seq[i].pos0 + b->seq[i].n;
        f.max_len = len > f.max_len ? len : f.max_len;
    }
    LM_TRY(make_room(&f, err));
    lm_pool_run(d->pool, rope_task, &f, p->n_ropes ? b->n_rows : 0);
    LM_TRY(run_ops(&f, 0, p->head_first, r, err));
    LM_TRY(run_head(&f, r, err));
    commit(&f);
    return LM_OK;
}
