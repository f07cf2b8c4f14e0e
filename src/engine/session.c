#include "base/hash.h"
#include "engine/model.h"
#include "tensor/packed.h"
#include <string.h>

/* A buffer that only grows: evaluating one more token allocates nothing. */
typedef struct room {
    void *p;
    uint64_t bytes;
} room;

struct lm_session {
    lm_engine *e;
    lm_state *state;
    int32_t *id; /* [length], capacity cap */
    uint32_t length, cap, chunk;
    room items, rows; /* of the batches that this session is the first of */
};

/* n·size zero bytes, which the next call of the same room takes back. */
static void *room_for(room *r, uint64_t n, uint64_t size, lm_error *err) {
    uint64_t bytes;
    if (!lm_mul(n, size, &bytes)) bytes = UINT64_MAX;
    if (bytes > r->bytes) {
        lm_free(r->p);
        r->p = bytes <= SIZE_MAX ? lm_malloc((size_t)bytes) : NULL;
        r->bytes = r->p ? bytes : 0;
    }
    if (!r->p) {
        lm_fail_nomem(err, "a batch", bytes);
        return NULL;
    }
    return memset(r->p, 0, (size_t)bytes);
}

enum { DEFAULT_CHUNK = 512, SAVE_VERSION = 6 /* lemma.h: LM_CONTRACT_VERSION */ };

lm_status lm_session_create(lm_engine *e, uint32_t chunk, lm_session **out, lm_error *err) {
    lm_session *s = lm_calloc(1, sizeof *s);
    if (!s) return lm_fail_nomem(err, "a session", sizeof *s);
    s->e = e;
    s->chunk = chunk ? chunk : DEFAULT_CHUNK;
    lm_status st = lm_state_create(e->program, e->backend->cache(e->device), &s->state, err);
    if (st != LM_OK) {
        lm_free(s);
        return st;
    }
    *out = s;
    return LM_OK;
}

void lm_session_free(lm_session *s) {
    if (!s) return;
    lm_state_free(s->state);
    lm_free(s->id);
    lm_free(s->items.p);
    lm_free(s->rows.p);
    lm_free(s);
}

uint32_t lm_session_length(const lm_session *s) { return s->length; }
uint64_t lm_session_bytes(const lm_session *s) { return lm_state_bytes(s->state); }

static lm_status grow_ids(lm_session *s, uint32_t n, lm_error *err) {
    if (n > INT32_MAX - s->length) return lm_fail(err, LM_RANGE, "%u more tokens on top of %u are too many", n, s->length);
    if (s->length + n <= s->cap) return LM_OK;
    uint64_t cap = s->cap ? s->cap : 256;
    while (cap < (uint64_t)s->length + n) cap *= 2;
    int32_t *p = lm_realloc(s->id, cap * sizeof *p);
    if (!p) return lm_fail_nomem(err, "token ids", cap * sizeof *p);
    s->id = p;
    s->cap = (uint32_t)cap;
    return LM_OK;
}

/* The longrope set a sequence of this length needs; −1 when the model has none. */
static int rope_set(const lm_program *p, uint32_t length) {
    for (uint32_t i = 0; i < p->n_ropes; i++)
        if (p->rope[i].border) return length > p->rope[i].border;
    return -1;
}

static bool is_recurrent(const lm_program *p) {
    for (uint32_t i = 0; i < p->n_slots; i++)
        if (p->slot[i].kind == LM_CACHE_CONV || p->slot[i].kind == LM_CACHE_DELTA) return true;
    return false;
}

static lm_status check_request(const lm_session *s, const lm_eval *ev, lm_error *err) {
    const lm_program *p = s->e->program;
    if (!ev->n) return lm_fail(err, LM_USAGE, "there are no tokens to evaluate");
    for (uint32_t i = 0; i < ev->n; i++)
        if (ev->id[i] < 0 || (uint32_t)ev->id[i] >= p->vocab)
            return lm_fail_at(err, LM_RANGE, NULL, LM_NO_OFFSET, "token id", "%d at position %u is outside the vocabulary of %u", ev->id[i],
                              s->length + i, p->vocab);
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->op[i].kind == LM_OP_EMBED && p->op[i].embed.by_position && (uint64_t)s->length + ev->n > p->op[i].embed.max_position)
            return lm_fail_at(err, LM_RANGE, NULL, LM_NO_OFFSET, "context", "%llu tokens, but the model has %u learned positions",
                              (unsigned long long)s->length + ev->n, p->op[i].embed.max_position);
    return LM_OK;
}

/* ---- one round: up to a chunk of rows of each session, in one batch -----------------------------------------------------------*/
typedef struct round_item {
    lm_session *s;
    const lm_eval *ev;
    lm_state *before; /* what the state was, for going back; NULL when one run does it all, which undoes itself */
    bool begun;
    uint32_t base;  /* session length before the call */
    uint32_t total; /* rows to run: replayed ones (a rebuilt cache) and the new ones */
    uint32_t skip;  /* of them, replayed */
    uint32_t done, n, row0, pos0, length;
} round_item;

typedef struct demux {
    round_item *item;
    uint32_t n_items;
    uint32_t *pos; /* scratch for absolute positions */
} demux;

static const round_item *item_of_row(const demux *d, uint32_t row) {
    for (uint32_t i = 0; i < d->n_items; i++)
        if (row >= d->item[i].row0 && row < d->item[i].row0 + d->item[i].n) return &d->item[i];
    return NULL;
}

/* Hands each session its own rows, with absolute positions. `call` gets one session's run of rows. */
static bool split_rows(demux *d, const lm_rows *rows, bool (*call)(const round_item *, const lm_rows *, void *), void *arg) {
    for (uint32_t i = 0; i < rows->n;) {
        const round_item *it = item_of_row(d, rows->row[i]);
        uint32_t k = i;
        for (; k < rows->n && item_of_row(d, rows->row[k]) == it; k++) d->pos[k - i] = it->pos0 + rows->row[k] - it->row0;
        /* rows that a rebuilt cache computes again were reported before */
        uint32_t first = i;
        while (first < k && d->pos[first - i] < it->base) first++;
        if (first < k) {
            size_t elem = rows->is_f64 ? sizeof(double) : sizeof(float);
            lm_rows part = *rows;
            part.data = (const char *)rows->data + (size_t)first * rows->width * elem;
            part.n = k - first;
            part.row = d->pos + (first - i);
            if (!call(it, &part, arg)) return false;
        }
        i = k;
    }
    return true;
}

static bool call_logits(const round_item *it, const lm_rows *rows, void *arg) {
    (void)arg;
    return !it->ev->logits || it->ev->logits(it->ev->logits_ctx, rows);
}
static bool on_logits(void *ctx, const lm_rows *rows) { return split_rows(ctx, rows, call_logits, NULL); }
static void on_head(void *ctx) {
    const demux *d = ctx;
    for (uint32_t i = 0; i < d->n_items; i++)
        if (d->item[i].n && d->item[i].ev->head) d->item[i].ev->head(d->item[i].ev->head_ctx);
}

typedef struct tap_arg {
    const lm_program *p;
    const lm_op *op;
} tap_arg;
static bool call_tap(const round_item *it, const lm_rows *rows, void *arg) {
    const tap_arg *t = arg;
    return !it->ev->tap || it->ev->tap(it->ev->tap_ctx, t->p, t->op, rows);
}
static bool on_tap(void *ctx, const lm_program *p, const lm_op *op, const lm_rows *rows) {
    return split_rows(ctx, rows, call_tap, &(tap_arg){p, op});
}

static lm_status run_round(lm_engine *e, room *mem, round_item *item, uint32_t n_items, lm_error *err) {
    uint32_t rows = 0, live = 0;
    bool taps = false, wanted = false;
    for (uint32_t i = 0; i < n_items; i++) rows += item[i].n;
    lm_seq *seq = room_for(mem, (uint64_t)n_items * sizeof *seq + rows * 9ull, 1, err);
    if (!seq) return LM_NOMEM;
    int32_t *id = (int32_t *)(seq + n_items);
    uint32_t *pos = (uint32_t *)(id + rows);
    uint8_t *want = (uint8_t *)(pos + rows);
    for (uint32_t i = 0, row = 0; i < n_items; i++) {
        round_item *it = &item[i];
        it->row0 = row;
        if (!it->n) continue;
        memcpy(id + row, it->s->id + it->pos0, it->n * sizeof *id);
        for (uint32_t k = 0; k < it->n; k++) {
            uint32_t at = it->done + k;
            want[row + k] =
                at >= it->skip && it->ev->logits && (it->ev->want == LM_WANT_ALL || (it->ev->want == LM_WANT_LAST && at + 1 == it->total));
            wanted |= want[row + k];
        }
        taps |= it->ev->tap != NULL;
        seq[live++] = (lm_seq){.state = it->s->state, .row0 = row, .n = it->n, .pos0 = it->pos0, .length = it->length};
        row += it->n;
    }
    demux d = {.item = item, .n_items = n_items, .pos = pos};
    lm_batch b = {.n_rows = rows, .n_seqs = live, .id = id, .want = wanted ? want : NULL, .seq = seq};
    lm_run r = {.tap = taps ? on_tap : NULL,
                .tap_ctx = &d,
                .logits = wanted ? on_logits : NULL,
                .logits_ctx = &d,
                .head = on_head,
                .head_ctx = &d,
                .interrupted = e->opt.interrupted,
                .interrupted_ctx = e->opt.interrupted_ctx};
    return e->backend->run(e->device, &b, &r, err);
}

/* Prepares a session: its new ids in place, its state kept for going back, its cache started afresh when a longrope border is crossed. */
static lm_status begin(round_item *it, lm_error *err) {
    lm_session *s = it->s;
    const lm_eval *ev = it->ev;
    LM_TRY(check_request(s, ev, err));
    LM_TRY(grow_ids(s, ev->n, err));
    memcpy(s->id + s->length, ev->id, ev->n * sizeof *s->id);
    it->base = s->length;
    it->length = s->length + ev->n;
    if (ev->length > it->length) it->length = ev->length;
    int set = rope_set(s->e->program, it->length);
    bool rebuild = set >= 0 && s->length && lm_state_rope_set(s->state) != set;
    it->skip = rebuild ? s->length : 0;
    it->total = it->skip + ev->n;
    it->begun = true;
    if (set >= 0 && !s->length) lm_state_set_rope_set(s->state, set);
    if (!rebuild && it->total <= s->chunk && (!is_recurrent(s->e->program) || s->length % LM_PAGE + it->total <= LM_PAGE)) return LM_OK;
    it->before = s->state;
    s->state = NULL;
    lm_status st = rebuild ? lm_state_create(s->e->program, s->e->backend->cache(s->e->device), &s->state, err)
                           : lm_state_fork(it->before, &s->state, err);
    if (st != LM_OK) {
        s->state = it->before;
        it->before = NULL;
        return st;
    }
    if (rebuild) lm_state_set_rope_set(s->state, set);
    return LM_OK;
}

lm_status lm_sessions_eval(lm_session *const *s, const lm_eval *ev, uint32_t n, lm_error *err) {
    if (!n) return lm_fail(err, LM_USAGE, "there are no sessions to evaluate");
    round_item *item = room_for(&s[0]->items, n, sizeof *item, err);
    if (!item) return LM_NOMEM;
    lm_status st = LM_OK;
    for (uint32_t i = 0; i < n && st == LM_OK; i++) {
        item[i].s = s[i];
        item[i].ev = &ev[i];
        if (s[i]->e != s[0]->e) st = lm_fail(err, LM_USAGE, "the sessions of a batch must share one engine");
        for (uint32_t k = 0; k < i && st == LM_OK; k++)
            if (s[k] == s[i]) st = lm_fail(err, LM_USAGE, "a session may stand in a batch once");
        if (st == LM_OK) st = begin(&item[i], err);
    }
    bool more = st == LM_OK, recurrent = is_recurrent(s[0]->e->program);
    while (more && st == LM_OK) {
        more = false;
        for (uint32_t i = 0; i < n; i++) {
            round_item *it = &item[i];
            uint32_t left = it->total - it->done;
            it->n = left < it->s->chunk ? left : it->s->chunk;
            it->pos0 = lm_state_length(it->s->state);
            /* a recurrent state is kept for going back only where a run ends on a page border */
            uint32_t to_border = LM_PAGE - it->pos0 % LM_PAGE;
            if (recurrent && it->n > to_border) it->n = to_border;
            more |= it->n > 0;
        }
        if (more) st = run_round(s[0]->e, &s[0]->rows, item, n, err);
        for (uint32_t i = 0; i < n; i++) item[i].done += item[i].n;
    }
    for (uint32_t i = 0; i < n; i++) {
        round_item *it = &item[i];
        if (it->begun && st == LM_OK) {
            it->s->length = it->base + it->ev->n;
            lm_state_free(it->before);
        } else if (it->before) {
            lm_state_free(it->s->state);
            it->s->state = it->before;
        }
    }
    return st;
}

lm_status lm_session_eval(lm_session *s, const lm_eval *ev, lm_error *err) { return lm_sessions_eval(&s, ev, 1, err); }

/* ---- cutting, copying, keeping ---------------------------------------------------------------------------------------------------*/
lm_status lm_session_truncate(lm_session *s, uint32_t length, lm_error *err) {
    if (length > s->length) return lm_fail(err, LM_RANGE, "can't cut a session of %u tokens to %u", s->length, length);
    if (length == s->length) return LM_OK;
    uint32_t reach = lm_state_reachable(s->state, length);
    int set = rope_set(s->e->program, length);
    if (set >= 0 && lm_state_rope_set(s->state) != set) reach = 0; /* back across the border */
    lm_state *cut = NULL;
    lm_status st = lm_state_fork(s->state, &cut, err);
    if (st == LM_OK) st = lm_state_truncate(cut, reach, err);
    if (st != LM_OK) {
        lm_state_free(cut);
        return st;
    }
    lm_state *old = s->state;
    uint32_t old_length = s->length;
    s->state = cut;
    s->length = reach;
    if (reach < length) { /* evaluated from a copy: eval writes its ids over the same place */
        uint32_t n = length - reach;
        int32_t *again = lm_malloc(n * sizeof *again);
        st = again ? LM_OK : lm_fail_nomem(err, "token ids", n * sizeof *again);
        if (again) memcpy(again, s->id + reach, n * sizeof *again);
        if (st == LM_OK) st = lm_session_eval(s, &(lm_eval){.id = again, .n = n}, err);
        lm_free(again);
    }
    if (st != LM_OK) {
        lm_state_free(s->state);
        s->state = old;
        s->length = old_length;
        return st;
    }
    lm_state_free(old);
    return LM_OK;
}

lm_status lm_session_fork(const lm_session *s, lm_session **out, lm_error *err) {
    lm_session *f = lm_calloc(1, sizeof *f);
    if (!f) return lm_fail_nomem(err, "a session", sizeof *f);
    f->e = s->e;
    f->chunk = s->chunk;
    lm_status st = lm_state_fork(s->state, &f->state, err);
    if (st == LM_OK) st = grow_ids(f, s->length, err);
    if (st != LM_OK) {
        lm_session_free(f);
        return st;
    }
    if (s->length) memcpy(f->id, s->id, s->length * sizeof *f->id);
    f->length = s->length;
    *out = f;
    return LM_OK;
}

/* What a saved session must match: the model's tensors (names, shapes, types and the start of each one's bytes) and the arithmetic. */
static void fingerprint(const lm_engine *e, char hex[65]) {
    lm_sha256 h;
    uint8_t d[32];
    lm_sha256_init(&h);
    for (uint32_t i = 0; i < e->src->n_tensors; i++) {
        const lm_tensor *t = &e->src->tensor[i];
        lm_sha256_update(&h, t->name, strlen(t->name) + 1);
        lm_sha256_update(&h, t->type->name, strlen(t->type->name) + 1);
        lm_sha256_update(&h, t->dim, t->rank * sizeof *t->dim);
        for (uint32_t k = 0; k < (t->packed ? t->packed->n_parts : 1); k++) {
            const lm_tensor *stored = t->packed ? t->packed->part[k] : t;
            lm_sha256_update(&h, stored->data, stored->bytes < 4096 ? stored->bytes : 4096);
        }
    }
    const char *lane = e->opt.device.lane ? e->opt.device.lane : e->backend->lanes[0];
    /* threads and instruction set don't matter: same bits */
    lm_sha256_update(&h, e->backend->name, strlen(e->backend->name) + 1);
    lm_sha256_update(&h, lane, strlen(lane) + 1);
    lm_sha256_final(&h, d);
    lm_sha256_hex(d, hex);
}

typedef struct save_head {
    char magic[8]; /* "LMSESS\0\0" */
    uint32_t version, length;
    uint64_t state_bytes;
    uint8_t sha[32]; /* of the ids and the state */
} save_head;

lm_status lm_session_save(const lm_session *s, uint8_t **bytes, uint64_t *n, lm_error *err) {
    char tag[65];
    fingerprint(s->e, tag);
    uint8_t *state = NULL;
    uint64_t n_state = 0;
    LM_TRY(lm_state_save(s->state, tag, &state, &n_state, err));
    uint64_t n_ids = (uint64_t)s->length * sizeof *s->id, total = sizeof(save_head) + n_ids + n_state;
    uint8_t *out = lm_malloc(total);
    if (!out) {
        lm_free(state);
        return lm_fail_nomem(err, "a saved session", total);
    }
    save_head h = {.magic = "LMSESS", .version = SAVE_VERSION, .length = s->length, .state_bytes = n_state};
    if (n_ids) memcpy(out + sizeof h, s->id, n_ids);
    memcpy(out + sizeof h + n_ids, state, n_state);
    lm_free(state);
    lm_sha256 sh;
    lm_sha256_init(&sh);
    lm_sha256_update(&sh, out + sizeof h, n_ids + n_state);
    lm_sha256_final(&sh, h.sha);
    memcpy(out, &h, sizeof h);
    *bytes = out;
    *n = total;
    return LM_OK;
}

lm_status lm_session_restore(lm_session *s, const uint8_t *bytes, uint64_t n, lm_error *err) {
    save_head h;
    if (n < sizeof h) return lm_fail(err, LM_FORMAT, "the saved session is cut short at %llu bytes", (unsigned long long)n);
    memcpy(&h, bytes, sizeof h);
    if (memcmp(h.magic, "LMSESS\0\0", 8)) return lm_fail(err, LM_FORMAT, "this is no saved session");
    if (h.version != SAVE_VERSION)
        return lm_fail(err, LM_UNSUPPORTED, "the session was saved under contract version %u, this is %u", h.version, SAVE_VERSION);
    uint64_t n_ids = (uint64_t)h.length * sizeof *s->id, want;
    if (!lm_add(sizeof h + n_ids, h.state_bytes, &want) || want != n)
        return lm_fail(err, LM_FORMAT, "the saved session has %llu bytes, its header says otherwise", (unsigned long long)n);
    lm_sha256 sh;
    uint8_t d[32];
    lm_sha256_init(&sh);
    lm_sha256_update(&sh, bytes + sizeof h, n - sizeof h);
    lm_sha256_final(&sh, d);
    if (memcmp(d, h.sha, 32)) return lm_fail(err, LM_FORMAT, "the saved session is damaged (checksum)");
    char tag[65];
    fingerprint(s->e, tag);
    int32_t *id = lm_malloc(n_ids ? n_ids : 1);
    lm_state *state = NULL;
    lm_status st = id ? lm_state_create(s->e->program, s->e->backend->cache(s->e->device), &state, err)
                      : lm_fail_nomem(err, "token ids", n_ids);
    if (st == LM_OK) st = lm_state_restore(state, tag, bytes + sizeof h + n_ids, h.state_bytes, err);
    if (st == LM_OK && lm_state_length(state) != h.length)
        st = lm_fail(err, LM_FORMAT, "the saved session's ids and caches differ in length");
    if (st == LM_OK) {
        memcpy(id, bytes + sizeof h, n_ids);
        for (uint32_t i = 0; i < h.length && st == LM_OK; i++)
            if (id[i] < 0 || (uint32_t)id[i] >= s->e->program->vocab)
                st = lm_fail(err, LM_FORMAT, "the saved session holds token %d, outside the vocabulary", id[i]);
    }
    if (st != LM_OK) {
        lm_state_free(state);
        lm_free(id);
        return st;
    }
    lm_state_free(s->state);
    lm_free(s->id);
    s->state = state;
    s->id = id;
    s->length = s->cap = h.length;
    return LM_OK;
}
