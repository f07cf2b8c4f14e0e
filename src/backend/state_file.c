/* A state as bytes. Little-endian:
 *     "LMSTATE\n", u32 contract version, u32 name length, name of the cache type, fingerprint[32], u32 tag length, tag,
 *     u32 length, i32 rope set, u32 slots,
 *     per slot: paged: u32 first page, u32 pages, then per page and head the positions in use: all keys, then all values, or, in
 *               a tiled type, position by position as rows (kernels/kv.h);
 *               recurrent: u32 present, then the block,
 *     u32 checkpoints, each: u32 place, u32 length, per recurrent slot u32 present and the block,
 *     SHA-256 of all that stands before.
 * The digest ends every version's file, so that damage is told from another version. Restoring builds a whole new state first.
 */
#include "backend/state_impl.h"
#include "base/hash.h"
#include <string.h>

#define STATE_VERSION 3u
static const char magic[8] = "LMSTATE\n";
#define DIGEST 32u

/* What the caches' meaning depends on: shapes, ops and the weights' identity as far as the program knows it. */
static void fingerprint(const lm_program *p, uint8_t out[DIGEST]) {
    lm_sha256 h;
    lm_sha256_init(&h);
    uint32_t head[6] = {p->n_ops, p->n_slots, p->n_weights, p->n_layers, p->vocab, p->hidden};
    lm_sha256_update(&h, p->arch ? p->arch : "", p->arch ? strlen(p->arch) + 1 : 1);
    lm_sha256_update(&h, head, sizeof head);
    for (uint32_t i = 0; i < p->n_slots; i++) {
        uint32_t d[5] = {p->slot[i].kind, p->slot[i].heads, p->slot[i].dk, p->slot[i].dv, p->slot[i].window};
        lm_sha256_update(&h, d, sizeof d);
    }
    for (uint32_t i = 0; i < p->n_ops; i++) {
        uint32_t kind = p->op[i].kind;
        lm_sha256_update(&h, &kind, sizeof kind);
        if (p->op[i].name) lm_sha256_update(&h, p->op[i].name, strlen(p->op[i].name) + 1);
    }
    for (uint32_t i = 0; i < p->n_weights; i++) {
        const lm_weight *w = &p->weight[i];
        uint64_t d[3] = {w->n_mat, w->rows, w->cols};
        lm_sha256_update(&h, d, sizeof d);
        if (w->type) lm_sha256_update(&h, w->type->name, strlen(w->type->name) + 1);
        if (w->name) lm_sha256_update(&h, w->name, strlen(w->name) + 1);
    }
    for (uint32_t i = 0; i < p->n_ropes; i++) lm_sha256_update(&h, p->rope[i].inv_freq, p->rope[i].n_pairs * sizeof(double));
    lm_sha256_final(&h, out);
}

/* ---- writing: a first pass with at == NULL counts ----------------------------------------------------------------------------*/
typedef struct writer {
    uint8_t *at;
    uint64_t n;
} writer;
static void put(writer *w, const void *p, uint64_t n) {
    if (w->at) memcpy(w->at + w->n, p, n);
    w->n += n;
}
static void put_u32(writer *w, uint32_t v) {
    uint8_t b[4] = {(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};
    put(w, b, 4);
}
static uint32_t rows_in(uint32_t length, uint32_t page) {
    uint32_t left = length - page * LM_PAGE;
    return left < LM_PAGE ? left : LM_PAGE;
}
/* Bytes of a position of one head */
static uint64_t row_bytes(const lm_state *s, const lm_state_slot *t) {
    return t->tiled ? lm_kv_row(s->type->kv, t->desc.dk, t->desc.dv) : ((uint64_t)t->desc.dk + t->desc.dv) * s->type->elem_size;
}
static void put_block(writer *w, const lm_state_buf *b, uint64_t bytes) {
    put_u32(w, b != NULL);
    if (b) put(w, lm_state_buf_data(b), bytes);
}
static void put_slot(writer *w, const lm_state *s, const lm_state_slot *t) {
    if (!lm_slot_paged(&t->desc)) {
        put_block(w, s->length ? t->block : NULL, t->bytes);
        return;
    }
    uint32_t pages = s->length / LM_PAGE + (s->length % LM_PAGE != 0);
    const uint32_t dk = t->desc.dk, dv = t->desc.dv;
    const uint64_t row = row_bytes(s, t), k = (uint64_t)dk * s->type->elem_size;
    put_u32(w, t->first);
    put_u32(w, pages);
    for (uint32_t i = t->first; i < pages; i++) {
        uint32_t rows = rows_in(s->length, i);
        for (uint32_t h = 0; h < t->desc.heads; h++) {
            const uint8_t *p = lm_state_buf_data(t->page[i]) + h * t->head;
            if (!t->tiled) {
                put(w, p, rows * k);
                put(w, p + t->keys, rows * (row - k));
                continue;
            }
            for (uint32_t j = 0; j < rows; j++, w->n += row)
                if (w->at) lm_kv_get(s->type->kv, p, p + t->keys, dk, dv, j, w->at + w->n);
        }
    }
}
static void put_all(writer *w, const lm_state *s, const char *tag, const uint8_t print[DIGEST]) {
    put(w, magic, sizeof magic);
    put_u32(w, STATE_VERSION);
    put_u32(w, (uint32_t)strlen(s->type->name));
    put(w, s->type->name, strlen(s->type->name));
    put(w, print, DIGEST);
    put_u32(w, (uint32_t)strlen(tag));
    put(w, tag, strlen(tag));
    put_u32(w, s->length);
    put_u32(w, (uint32_t)s->rope_set);
    put_u32(w, s->n_slots);
    for (uint32_t i = 0; i < s->n_slots; i++) put_slot(w, s, &s->slot[i]);
    uint32_t n = 0;
    for (uint32_t i = 0; i < LM_CHECKPOINTS; i++) n += s->check[i].used;
    put_u32(w, n);
    for (uint32_t i = 0; i < LM_CHECKPOINTS; i++) {
        if (!s->check[i].used) continue;
        put_u32(w, i);
        put_u32(w, s->check[i].length);
        for (uint32_t j = 0; j < s->n_slots; j++)
            if (!lm_slot_paged(&s->slot[j].desc)) put_block(w, s->check[i].block[j], s->slot[j].bytes);
    }
}

lm_status lm_state_save(const lm_state *s, const char *tag, uint8_t **bytes, uint64_t *n, lm_error *err) {
    uint8_t print[DIGEST];
    fingerprint(s->program, print);
    writer count = {NULL, 0};
    put_all(&count, s, tag ? tag : "", print);
    writer w = {lm_malloc(count.n + DIGEST), 0};
    if (!w.at) return lm_fail_nomem(err, "a saved session", count.n + DIGEST);
    put_all(&w, s, tag ? tag : "", print);
    lm_sha256 h;
    lm_sha256_init(&h);
    lm_sha256_update(&h, w.at, w.n);
    lm_sha256_final(&h, w.at + w.n);
    *bytes = w.at;
    *n = w.n + DIGEST;
    return LM_OK;
}

/* ---- reading: `ok` is sticky, nothing is read past the end -------------------------------------------------------------------*/
typedef struct reader {
    const uint8_t *at;
    uint64_t left;
    bool ok, nomem;
} reader;
static const uint8_t *take(reader *r, uint64_t n) {
    if (!r->ok || n > r->left) {
        r->ok = false;
        return NULL;
    }
    const uint8_t *p = r->at;
    r->at += n;
    r->left -= n;
    return p;
}
static uint32_t take_u32(reader *r) {
    const uint8_t *p = take(r, 4);
    return p ? (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24 : 0;
}
static void take_block(reader *r, lm_state_buf **out, uint64_t bytes) {
    if (!take_u32(r)) return;
    const uint8_t *p = take(r, bytes);
    if (!p) return;
    *out = lm_state_buf_new(bytes);
    if (*out) memcpy(lm_state_buf_data(*out), p, bytes);
    else r->ok = false, r->nomem = true;
}
static void take_page(reader *r, const lm_state *s, lm_state_slot *t, uint32_t page) {
    uint32_t rows = rows_in(s->length, page);
    const uint64_t row = row_bytes(s, t), k = (uint64_t)t->desc.dk * s->type->elem_size;
    uint64_t need;
    if (!lm_mul((uint64_t)rows * t->desc.heads, row, &need) || need > r->left) r->ok = false;
    if (!r->ok) return;
    lm_state_buf *b = t->page[page] = lm_state_buf_new(t->bytes);
    if (!b) {
        r->ok = false, r->nomem = true;
        return;
    }
    for (uint32_t h = 0; h < t->desc.heads; h++) {
        uint8_t *p = lm_state_buf_data(b) + h * t->head;
        if (!t->tiled) {
            memcpy(p, take(r, rows * k), rows * k);
            memcpy(p + t->keys, take(r, rows * (row - k)), rows * (row - k));
            continue;
        }
        for (uint32_t j = 0; j < rows; j++) lm_kv_put(s->type->kv, p, p + t->keys, t->desc.dk, t->desc.dv, j, take(r, row));
    }
}
static void take_slot(reader *r, lm_state *s, lm_state_slot *t) {
    if (!lm_slot_paged(&t->desc)) {
        take_block(r, &t->block, t->bytes);
        return;
    }
    uint32_t pages = s->length / LM_PAGE + (s->length % LM_PAGE != 0);
    t->first = take_u32(r);
    /* pages that the window still needs can't be missing */
    uint32_t most = t->desc.window && s->length >= t->desc.window ? (s->length - t->desc.window + 1) / LM_PAGE : 0;
    if (take_u32(r) != pages || t->first > most || (uint64_t)(pages - t->first) > r->left) r->ok = false;
    if (!r->ok) {
        t->first = 0;
        return;
    }
    if (!lm_state_table(t, pages)) {
        r->ok = false, r->nomem = true;
        return;
    }
    for (uint32_t i = t->first; i < pages && r->ok; i++) take_page(r, s, t, i);
}
static void take_checks(reader *r, lm_state *s) {
    uint32_t n = take_u32(r);
    if (n > LM_CHECKPOINTS) r->ok = false;
    for (uint32_t i = 0; r->ok && i < n; i++) {
        uint32_t place = take_u32(r), length = take_u32(r);
        if (place >= LM_CHECKPOINTS || s->check[place].used || !s->recurrent || !length || length > s->length) {
            r->ok = false;
            return;
        }
        s->check[place].used = true;
        s->check[place].length = length;
        for (uint32_t j = 0; j < s->n_slots; j++)
            if (!lm_slot_paged(&s->slot[j].desc)) take_block(r, &s->check[place].block[j], s->slot[j].bytes);
    }
}
static void take_body(reader *r, lm_state *s) {
    s->length = take_u32(r);
    s->rope_set = (int)take_u32(r);
    if (take_u32(r) != s->n_slots || s->length > UINT32_MAX - LM_PAGE || s->rope_set < -1 || s->rope_set > 1) r->ok = false;
    for (uint32_t i = 0; r->ok && i < s->n_slots; i++) take_slot(r, s, &s->slot[i]);
    take_checks(r, s);
    if (r->left) r->ok = false;
}

/* Undamaged, of this version, this program and this lane? Leaves the reader at the body. */
static lm_status take_header(reader *r, const lm_state *s, const char *tag, lm_error *err) {
    const uint8_t *whole = r->at;
    if (r->left < sizeof magic + 4 + DIGEST || memcmp(take(r, sizeof magic), magic, sizeof magic) != 0)
        return lm_fail(err, LM_FORMAT, "this is no saved session (or it is cut short): save it again");
    uint8_t digest[DIGEST];
    lm_sha256 h;
    r->left -= DIGEST;
    lm_sha256_init(&h);
    lm_sha256_update(&h, whole, sizeof magic + r->left);
    lm_sha256_final(&h, digest);
    if (memcmp(digest, r->at + r->left, DIGEST) != 0)
        return lm_fail(err, LM_FORMAT, "the saved session is damaged (its checksum does not match): save it again");
    uint32_t version = take_u32(r);
    if (version != STATE_VERSION)
        return lm_fail(err, LM_UNSUPPORTED, "the saved session has contract version %u, this build reads %u: save it again", version,
                       STATE_VERSION);
    const uint32_t n_type = take_u32(r);
    const uint8_t *type = take(r, n_type), *print = take(r, DIGEST);
    uint32_t n_tag = take_u32(r);
    const uint8_t *t = take(r, n_tag);
    if (!t || n_type > 16 || memchr(type, 0, n_type) || memchr(t, 0, n_tag))
        return lm_fail(err, LM_FORMAT, "the saved session's header is malformed: save it again");
    int shown = n_tag > 200 ? 200 : (int)n_tag;
    if (n_tag != strlen(tag) || memcmp(t, tag, n_tag) != 0)
        return lm_fail(err, LM_UNSUPPORTED, "the session was saved for '%.*s', this is '%.200s': restore it there", shown,
                       (const char *)t, tag);
    if (n_type != strlen(s->type->name) || memcmp(type, s->type->name, n_type) != 0)
        return lm_fail(err, LM_UNSUPPORTED,
                       "the session's keys and values are %.*s, this run's %s: use the backend, lane and --kv it was saved with",
                       (int)n_type, (const char *)type, s->type->name);
    uint8_t mine[DIGEST];
    fingerprint(s->program, mine);
    if (memcmp(mine, print, DIGEST) != 0)
        return lm_fail(err, LM_UNSUPPORTED, "the session was saved for another model than this %s: use the model it was made with",
                       s->program->arch ? s->program->arch : "one");
    return LM_OK;
}

lm_status lm_state_restore(lm_state *s, const char *tag, const uint8_t *bytes, uint64_t n, lm_error *err) {
    reader r = {bytes, n, true, false};
    LM_TRY(take_header(&r, s, tag ? tag : "", err));
    lm_state *f = NULL;
    LM_TRY(lm_state_create(s->program, s->type, &f, err));
    take_body(&r, f);
    if (!r.ok) {
        lm_state_free(f);
        if (r.nomem) return lm_fail_nomem(err, "a restored session", n);
        return lm_fail(err, LM_FORMAT, "the saved session is malformed: save it again");
    }
    lm_state old = *s;
    *s = *f;
    *f = old;
    lm_state_free(f);
    return LM_OK;
}
