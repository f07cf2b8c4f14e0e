/* Sequence states: pages and blocks shared by reference count.
 *
 * A `buf` is a page of a paged slot or the whole block of a recurrent slot. One owner (count 1) may write; reserve copies what is about to
 * be written and shared. A block that was never made stands for zeros. A checkpoint is one more reference to each block: it costs nothing
 * until the next reserve, which then copies. The newest LM_CHECKPOINTS are kept. Pages made at once stand in one slab of huge pages: a page
 * of the system's own size costs a fault for each 4 KiB, one after the other, before a prompt can begin. A page is let go one page later
 * than its window strictly allows, so that going back by up to LM_PAGE positions never fails.
 */
#include "backend/state_impl.h"
#include <stdatomic.h>
#include <string.h>

#define SLAB_LEAST ((uint64_t)2 << 20) /* of pages made at once: a huge page */

struct lm_state_buf {
    atomic_uint refs;
    uint8_t *data; /* 64-byte aligned, in the slab or else in the same allocation */
    lm_slab *in;
    size_t bytes;
};
static uint64_t in_lines(uint64_t bytes) { return (bytes + 63) & ~(uint64_t)63; }

/* A zeroed buf, from a slab where there is one. */
static lm_state_buf *buf_new(lm_slab *slab, uint64_t bytes) {
    uint64_t total;
    if (!lm_add(bytes, sizeof(lm_state_buf) + 63, &total) || total > SIZE_MAX) return NULL;
    lm_state_buf *b = lm_calloc(1, slab ? sizeof *b : (size_t)total);
    if (!b) return NULL;
    atomic_init(&b->refs, 1);
    b->bytes = (size_t)bytes;
    b->in = slab;
    b->data = slab ? lm_slab_take(slab, b->bytes) : (uint8_t *)(((uintptr_t)(b + 1) + 63) & ~(uintptr_t)63);
    if (b->data) return b;
    lm_free(b);
    return NULL;
}
static lm_state_buf *buf_ref(lm_state_buf *b) {
    if (b) atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
    return b;
}
static void buf_unref(lm_state_buf *b) {
    if (!b || atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) != 1) return;
    if (b->in) lm_slab_free(b->in, b->data, b->bytes);
    lm_free(b);
}
static bool buf_shared(const lm_state_buf *b) { return atomic_load_explicit(&b->refs, memory_order_acquire) > 1; }
static lm_state_buf *buf_copy(const lm_state_buf *b, uint64_t bytes) {
    lm_state_buf *n = buf_new(NULL, bytes);
    if (n) memcpy(n->data, b->data, bytes);
    return n;
}
uint8_t *lm_state_buf_data(const lm_state_buf *b) { return b->data; }

bool lm_slot_paged(const lm_cache_slot *c) { return c->kind == LM_CACHE_KV || c->kind == LM_CACHE_LATENT || c->kind == LM_CACHE_INDEX; }

const lm_cache_type lm_cache_f64 = {"f64", sizeof(double), false, LM_KV_F32};
const lm_cache_type lm_cache_kv[LM_KV_COUNT] = {
    [LM_KV_F32] = {"f32", sizeof(float), true, LM_KV_F32},
    [LM_KV_F16] = {"f16", sizeof(float), true, LM_KV_F16},
    [LM_KV_BF16] = {"bf16", sizeof(float), true, LM_KV_BF16},
    [LM_KV_Q8_0] = {"q8_0", sizeof(float), true, LM_KV_Q8_0},
    [LM_KV_BF16X2] = {"bf16", sizeof(float), true, LM_KV_BF16X2},
};

/* Sizes of a page or of a block; false on overflow. */
static bool slot_sizes(const lm_cache_type *type, lm_state_slot *t) {
    const lm_cache_slot *c = &t->desc;
    uint64_t n = type->elem_size;
    if (c->kind == LM_CACHE_CONV) return lm_mul(n, c->dv, &n) && lm_mul(n, c->dk, &t->bytes);
    if (c->kind == LM_CACHE_DELTA) return lm_mul(n, c->heads, &n) && lm_mul(n, c->dk, &n) && lm_mul(n, c->dv, &t->bytes);
    t->tiled = type->tiled && c->kind == LM_CACHE_KV;
    t->keys = t->tiled ? lm_kv_keys(type->kv, c->dk) : n * LM_PAGE * c->dk; /* 2^43 at most */
    t->head = t->keys + (t->tiled ? lm_kv_values(type->kv, c->dv) : n * LM_PAGE * c->dv);
    return lm_mul(t->head, c->heads, &t->bytes);
}

static uint32_t pages_for(uint32_t length) { return length / LM_PAGE + (length % LM_PAGE != 0); }

lm_status lm_state_create(const lm_program *p, const lm_cache_type *type, lm_state **out, lm_error *err) {
    uint32_t n = p->n_slots;
    lm_state *s = lm_calloc(1, sizeof *s);
    if (!s) return lm_fail_nomem(err, "a sequence's state", sizeof *s);
    *s = (lm_state){.program = p, .type = type, .n_slots = n, .rope_set = -1};
    s->slot = lm_calloc(n ? n : 1, sizeof *s->slot);
    s->kept = lm_calloc((size_t)LM_CHECKPOINTS * (n ? n : 1), sizeof *s->kept);
    if (!s->slot || !s->kept) {
        lm_state_free(s);
        return lm_fail_nomem(err, "a sequence's state", n * sizeof *s->slot);
    }
    for (uint32_t i = 0; i < LM_CHECKPOINTS; i++) s->check[i].block = s->kept + (size_t)i * n;
    for (uint32_t i = 0; i < n; i++) {
        s->slot[i].desc = p->slot[i];
        if (!slot_sizes(type, &s->slot[i])) {
            lm_state_free(s);
            return lm_fail(err, LM_RANGE, "cache slot %u: its size overflows", i);
        }
        if (!lm_slot_paged(&p->slot[i])) s->recurrent = true;
    }
    *out = s;
    return LM_OK;
}

static void slot_clear(lm_state_slot *t) {
    for (uint32_t i = 0; i < t->n_pages; i++) buf_unref(t->page[i]);
    t->n_pages = t->first = 0;
    buf_unref(t->block);
    t->block = NULL;
}
static void check_drop(lm_state *s, lm_state_check *c) {
    for (uint32_t i = 0; i < s->n_slots; i++) {
        buf_unref(c->block[i]);
        c->block[i] = NULL;
    }
    c->used = false;
}

void lm_state_free(lm_state *s) {
    if (!s) return;
    for (uint32_t i = 0; i < LM_CHECKPOINTS; i++)
        if (s->check[i].used) check_drop(s, &s->check[i]);
    for (uint32_t i = 0; s->slot && i < s->n_slots; i++) {
        slot_clear(&s->slot[i]);
        lm_free(s->slot[i].page);
    }
    lm_free(s->slot);
    lm_free(s->kept);
    lm_free(s);
}

const lm_cache_type *lm_state_type(const lm_state *s) { return s->type; }
uint32_t lm_state_length(const lm_state *s) { return s->length; }
int lm_state_rope_set(const lm_state *s) { return s->rope_set; }
void lm_state_set_rope_set(lm_state *s, int set) { s->rope_set = set; }

uint64_t lm_state_bytes(const lm_state *s) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        const lm_state_slot *t = &s->slot[i];
        for (uint32_t j = 0; j < t->n_pages; j++) n += t->page[j] ? t->bytes : 0;
        n += t->block ? t->bytes : 0;
        for (uint32_t j = 0; j < LM_CHECKPOINTS; j++) n += s->check[j].used && s->check[j].block[i] ? t->bytes : 0;
    }
    return n;
}

/* Room for `n` pages in the slot's table; the table itself is no visible change. */
static bool table_grow(lm_state_slot *t, uint32_t n) {
    if (n <= t->cap_pages) return true;
    uint32_t cap = t->cap_pages < 4 ? 4 : t->cap_pages;
    while (cap < n) cap += cap / 2;
    lm_state_buf **q = lm_realloc(t->page, cap * sizeof *q);
    if (!q) return false;
    t->page = q;
    t->cap_pages = cap;
    return true;
}

/* One slot's part of a reserve: what it needs is put in fresh[], index 0 for a block, page − from for a page. */
static bool slot_stage(lm_state_slot *t, uint32_t from, uint32_t to, lm_slab *slab, lm_state_buf **fresh) {
    if (!lm_slot_paged(&t->desc)) {
        if (t->block && !buf_shared(t->block)) return true;
        fresh[0] = t->block ? buf_copy(t->block, t->bytes) : buf_new(NULL, t->bytes);
        return fresh[0] != NULL;
    }
    if (!table_grow(t, to)) return false;
    for (uint32_t i = from; i < to; i++) {
        lm_state_buf *old = i < t->n_pages ? t->page[i] : NULL;
        if (old && !buf_shared(old)) continue;
        fresh[i - from] = old ? buf_copy(old, t->bytes) : buf_new(slab, t->bytes);
        if (!fresh[i - from]) return false;
    }
    return true;
}
static void slot_install(lm_state_slot *t, uint32_t from, uint32_t to, lm_state_buf **fresh) {
    if (!lm_slot_paged(&t->desc)) {
        if (!fresh[0]) return;
        buf_unref(t->block);
        t->block = fresh[0];
        return;
    }
    while (t->n_pages < to) t->page[t->n_pages++] = NULL;
    for (uint32_t i = from; i < to; i++) {
        if (!fresh[i - from]) continue;
        buf_unref(t->page[i]);
        t->page[i] = fresh[i - from];
    }
}

/* Bytes of the pages [from, to) that are not there yet, each in whole lines; false on overflow */
static bool missing_bytes(const lm_state *s, uint32_t from, uint32_t to, uint64_t *bytes) {
    *bytes = 0;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        const lm_state_slot *t = &s->slot[i];
        uint64_t n = 0;
        if (!lm_slot_paged(&t->desc)) continue;
        for (uint32_t j = from; j < to; j++) n += j >= t->n_pages || !t->page[j];
        if (t->bytes > UINT64_MAX - 63 || !lm_mul(in_lines(t->bytes), n, &n) || !lm_add(*bytes, n, bytes)) return false;
    }
    return true;
}

#define FEW 256
lm_status lm_state_reserve(lm_state *s, uint32_t n, lm_error *err) {
    if (n > UINT32_MAX - LM_PAGE - s->length)
        return lm_fail(err, LM_RANGE, "%u positions after %u are more than a sequence can have", n, s->length);
    if (!n) return LM_OK;
    uint32_t from = s->length / LM_PAGE, to = pages_for(s->length + n), per = to - from;
    lm_state_buf *few[FEW] = {NULL}, **fresh = few; /* decoding asks for a page of each slot and usually has it: nothing is allocated */
    if ((uint64_t)per * s->n_slots > FEW) fresh = lm_calloc((size_t)per * s->n_slots, sizeof *fresh);
    uint64_t missing;
    bool ok = fresh && missing_bytes(s, from, to, &missing);
    lm_slab *slab = ok && missing >= SLAB_LEAST && missing <= SIZE_MAX ? lm_slab_create((size_t)missing) : NULL;
    ok = ok && (slab || missing < SLAB_LEAST);
    for (uint32_t i = 0; ok && i < s->n_slots; i++) ok = slot_stage(&s->slot[i], from, to, slab, fresh + (size_t)i * per);
    if (ok)
        for (uint32_t i = 0; i < s->n_slots; i++) slot_install(&s->slot[i], from, to, fresh + (size_t)i * per);
    else if (fresh)
        for (size_t i = 0; i < (size_t)per * s->n_slots; i++) buf_unref(fresh[i]);
    lm_slab_leave(&slab); /* its pages hold it now */
    if (fresh != few) lm_free(fresh);
    if (ok) return LM_OK;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->n_slots; i++) bytes += s->slot[i].bytes * (lm_slot_paged(&s->slot[i].desc) ? per : 1);
    return lm_fail_nomem(err, "the caches of a sequence", bytes);
}

/* Remembers the blocks at the present length, over the oldest checkpoint. */
static void check_take(lm_state *s) {
    lm_state_check *at = NULL;
    for (uint32_t i = 0; i < LM_CHECKPOINTS; i++)
        if (s->check[i].used && s->check[i].length == s->length) return;
    for (uint32_t i = 0; i < LM_CHECKPOINTS; i++) {
        lm_state_check *c = &s->check[i];
        if (!c->used) at = c;
        else if (!at || (at->used && c->length < at->length)) at = c;
    }
    if (at->used) check_drop(s, at);
    at->used = true;
    at->length = s->length;
    for (uint32_t i = 0; i < s->n_slots; i++) at->block[i] = buf_ref(s->slot[i].block);
}

void lm_state_commit(lm_state *s, uint32_t n) {
    s->length += n;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        lm_state_slot *t = &s->slot[i];
        uint64_t keep = (uint64_t)t->desc.window + LM_PAGE - 1; /* positions before the next one that stay */
        if (!lm_slot_paged(&t->desc) || !t->desc.window || s->length <= keep) continue;
        for (uint32_t first = (uint32_t)((s->length - keep) / LM_PAGE); t->first < first && t->first < t->n_pages; t->first++) {
            buf_unref(t->page[t->first]);
            t->page[t->first] = NULL;
        }
    }
    if (s->recurrent && n && s->length % LM_PAGE == 0) check_take(s);
}

lm_status lm_state_fork(const lm_state *s, lm_state **out, lm_error *err) {
    lm_state *f = NULL;
    LM_TRY(lm_state_create(s->program, s->type, &f, err));
    uint32_t held = pages_for(s->length);
    for (uint32_t i = 0; i < s->n_slots; i++) {
        const lm_state_slot *t = &s->slot[i];
        lm_state_slot *u = &f->slot[i];
        uint32_t n = t->n_pages < held ? t->n_pages : held;
        if (!table_grow(u, n)) {
            lm_state_free(f);
            return lm_fail_nomem(err, "a copy of a sequence's state", n * sizeof(void *));
        }
        for (uint32_t j = 0; j < n; j++) u->page[j] = buf_ref(t->page[j]);
        u->n_pages = n;
        u->first = t->first;
        u->block = buf_ref(t->block);
    }
    for (uint32_t i = 0; i < LM_CHECKPOINTS; i++) {
        if (!s->check[i].used) continue;
        f->check[i].used = true;
        f->check[i].length = s->check[i].length;
        for (uint32_t j = 0; j < s->n_slots; j++) f->check[i].block[j] = buf_ref(s->check[i].block[j]);
    }
    f->length = s->length;
    f->rope_set = s->rope_set;
    *out = f;
    return LM_OK;
}

/* The least length at which every window is still whole: a query there sees keys from length − window + 1 on. */
static uint32_t window_floor(const lm_state *s) {
    uint32_t floor = 0;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        const lm_state_slot *t = &s->slot[i];
        uint32_t least = t->first ? t->first * LM_PAGE + t->desc.window - 1 : 0;
        if (least > floor) floor = least;
    }
    return floor;
}
static lm_state_check *check_at(const lm_state *s, uint32_t length) {
    for (uint32_t i = 0; i < LM_CHECKPOINTS; i++)
        if (s->check[i].used && s->check[i].length == length) return (lm_state_check *)&s->check[i];
    return NULL;
}

uint32_t lm_state_reachable(const lm_state *s, uint32_t length) {
    if (length >= s->length) return s->length;
    uint32_t floor = window_floor(s), best = 0;
    if (length < floor) return 0;
    if (!s->recurrent) return length;
    for (uint32_t i = 0; i < LM_CHECKPOINTS; i++) {
        const lm_state_check *c = &s->check[i];
        if (c->used && c->length <= length && c->length >= floor && c->length > best) best = c->length;
    }
    return best;
}

/* The least length above zero that can be reached, for the message. */
static uint32_t least_reachable(const lm_state *s) {
    uint32_t floor = window_floor(s), least = s->recurrent ? s->length : floor;
    for (uint32_t i = 0; s->recurrent && i < LM_CHECKPOINTS; i++) {
        const lm_state_check *c = &s->check[i];
        if (c->used && c->length >= floor && c->length < least) least = c->length;
    }
    return least;
}

lm_status lm_state_truncate(lm_state *s, uint32_t length, lm_error *err) {
    if (length == s->length) return LM_OK;
    if (length > s->length)
        return lm_fail(err, LM_STATE, "a sequence of %u positions can't be cut to %u", s->length, length);
    if (lm_state_reachable(s, length) != length)
        return lm_fail(err, LM_STATE, "position %u is no longer held (least reachable besides 0: %u): run again from a reachable length",
                       length, least_reachable(s));
    const lm_state_check *at = length && s->recurrent ? check_at(s, length) : NULL;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        lm_state_slot *t = &s->slot[i];
        if (!length) {
            slot_clear(t);
        } else if (lm_slot_paged(&t->desc)) {
            while (t->n_pages > pages_for(length)) buf_unref(t->page[--t->n_pages]);
        } else {
            buf_unref(t->block);
            t->block = buf_ref(at->block[i]);
        }
    }
    for (uint32_t i = 0; i < LM_CHECKPOINTS; i++)
        if (s->check[i].used && s->check[i].length > length) check_drop(s, &s->check[i]);
    s->length = length;
    if (!length) s->rope_set = -1;
    return LM_OK;
}

static uint8_t *page_head(lm_state *s, uint32_t slot, uint32_t page, uint32_t head) {
    lm_state_slot *t = &s->slot[slot];
    if (!lm_slot_paged(&t->desc) || head >= t->desc.heads || page >= t->n_pages || !t->page[page]) return NULL;
    return t->page[page]->data + head * t->head;
}
void *lm_state_keys(lm_state *s, uint32_t slot, uint32_t page, uint32_t head) { return page_head(s, slot, page, head); }
void *lm_state_values(lm_state *s, uint32_t slot, uint32_t page, uint32_t head) {
    uint8_t *k = page_head(s, slot, page, head);
    return k ? k + s->slot[slot].keys : NULL;
}

void *lm_state_block(lm_state *s, uint32_t slot) {
    lm_state_slot *t = &s->slot[slot];
    if (lm_slot_paged(&t->desc)) return NULL;
    lm_state_buf *fresh = NULL;
    if (!slot_stage(t, 0, 0, NULL, &fresh)) return NULL; /* only without a reserve before */
    slot_install(t, 0, 0, &fresh);
    return t->block->data;
}

lm_state_buf *lm_state_buf_new(uint64_t bytes) { return buf_new(NULL, bytes); }
bool lm_state_table(lm_state_slot *t, uint32_t n) {
    if (!table_grow(t, n)) return false;
    while (t->n_pages < n) t->page[t->n_pages++] = NULL;
    return true;
}
