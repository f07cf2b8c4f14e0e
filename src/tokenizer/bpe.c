/* Byte-pair encoding of one piece: the pair with the lowest rank is merged first, the leftmost of equals, until no pair has a merge.
 * A heap of candidates over a linked list of symbols: O(n log n) for a piece of n characters, however long.
 * With scores instead of merges (SentencePiece) any two neighbours whose joined text is a token may merge, the highest score first. */
#include "tokenizer/tok.h"
#include <string.h>

static uint32_t hash_pair(int32_t a, int32_t b) {
    uint64_t k = ((uint64_t)(uint32_t)a << 32 | (uint32_t)b) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(k >> 32) ^ (uint32_t)(k >> 15);
}

lm_status lm_merges_reserve(lm_tokenizer *t, uint64_t n, lm_error *err) {
    if (n > UINT32_C(1) << 26) return lm_fail(err, LM_RANGE, "%llu merges; at most 2^26 are supported", (unsigned long long)n);
    uint32_t size = 16;
    while (n > size / 4 * 3) size *= 2;
    t->merge = lm_malloc(size * sizeof *t->merge);
    if (!t->merge) return lm_fail_nomem(err, "the merges", size * sizeof *t->merge);
    for (uint32_t i = 0; i < size; i++) t->merge[i] = (lm_merge){.left = -1};
    t->merge_mask = size - 1;
    return LM_OK;
}

static lm_merge *merge_slot(const lm_tokenizer *t, int32_t a, int32_t b) {
    uint32_t at = hash_pair(a, b) & t->merge_mask;
    while (t->merge[at].left >= 0 && (t->merge[at].left != a || t->merge[at].right != b)) at = (at + 1) & t->merge_mask;
    return &t->merge[at];
}

const lm_merge *lm_merge_find(const lm_tokenizer *t, int32_t a, int32_t b) {
    const lm_merge *m = a < 0 || b < 0 ? NULL : merge_slot(t, a, b);
    return m && m->left >= 0 ? m : NULL;
}

lm_status lm_merges_add(lm_tokenizer *t, uint32_t rank, const char *a, size_t an, const char *b, size_t bn, lm_error *err) {
    char small[256], *joined = small;
    uint64_t n;
    if (!lm_add(an, bn, &n)) return lm_fail(err, LM_FORMAT, "merge %u is too long", rank);
    if (n > sizeof small && !(joined = lm_malloc(n))) return lm_fail_nomem(err, "a merge", n);
    memcpy(joined, a, an);
    memcpy(joined + an, b, bn);
    int32_t l = lm_vocab_find(t, a, an), r = lm_vocab_find(t, b, bn), id = lm_vocab_find(t, joined, n);
    if (joined != small) lm_free(joined);
    if (l < 0 || r < 0 || id < 0)
        return lm_fail(err, LM_FORMAT, "merge %u: %s is no token of the vocabulary", rank,
                       l < 0   ? "its left part"
                       : r < 0 ? "its right part"
                               : "its result");
    *merge_slot(t, l, r) = (lm_merge){l, r, rank, id};
    return LM_OK;
}

/* ---- the heap: lowest rank, then lowest position, on top ---- */
static bool before(const lm_candidate *a, const lm_candidate *b) { return a->rank != b->rank ? a->rank < b->rank : a->pos < b->pos; }

static bool heap_push(lm_encoder *e, lm_candidate c) {
    void *p = e->heap;
    if (!lm_tok_grow(&p, &e->cap_heap, e->n_heap + 1, sizeof c)) return false;
    e->heap = p;
    size_t i = e->n_heap++;
    for (; i && before(&c, &e->heap[(i - 1) / 2]); i = (i - 1) / 2) e->heap[i] = e->heap[(i - 1) / 2];
    e->heap[i] = c;
    return true;
}

static lm_candidate heap_pop(lm_encoder *e) {
    lm_candidate top = e->heap[0], last = e->heap[--e->n_heap];
    size_t i = 0;
    for (;;) {
        size_t k = 2 * i + 1;
        if (k >= e->n_heap) break;
        if (k + 1 < e->n_heap && before(&e->heap[k + 1], &e->heap[k])) k++;
        if (!before(&e->heap[k], &last)) break;
        e->heap[i] = e->heap[k];
        i = k;
    }
    e->heap[i] = last;
    return top;
}

/* ---- symbols ---- */
static bool add_symbol(lm_encoder *e, int32_t id, size_t off, size_t len) {
    void *p = e->sym;
    if (!lm_tok_grow(&p, &e->cap_sym, e->n_sym + 1, sizeof *e->sym)) return false;
    e->sym = p;
    int32_t i = (int32_t)e->n_sym++;
    e->sym[i] = (lm_symbol){id, i - 1, i + 1, (uint32_t)off, (uint32_t)len};
    return true;
}

/* A character that is no token: its bytes' tokens, if all are there; else the unknown token; else nothing at all, as the reference has it.
 */
static bool add_unknown(lm_encoder *e, const char *s, size_t off, size_t len, bool *in_unk) {
    const lm_tokenizer *t = e->t;
    bool all = t->byte_fallback;
    for (size_t k = 0; k < len && all; k++) all = t->byte_id[(uint8_t)s[off + k]] >= 0;
    if (all) {
        *in_unk = false;
        for (size_t k = 0; k < len; k++)
            if (!add_symbol(e, t->byte_id[(uint8_t)s[off + k]], off + k, 1)) return false;
        return true;
    }
    if (t->unk < 0) return true;
    if (*in_unk && t->fuse_unk) {
        e->sym[e->n_sym - 1].len += (uint32_t)len;
        return true;
    }
    *in_unk = true;
    return add_symbol(e, t->unk, off, len);
}

static bool add_symbols(lm_encoder *e, const char *s, size_t n) {
    const lm_tokenizer *t = e->t;
    bool in_unk = false;
    e->n_sym = 0;
    for (size_t i = 0, k; i < n; i += k) {
        uint32_t c = lm_char_at(s + i, n - i, &k);
        int32_t id = c < 512 ? t->char_id[c] : lm_vocab_find(t, s + i, k);
        if (id >= 0 || t->score) {
            in_unk = false;
            if (!add_symbol(e, id, i, k)) return false;
        } else if (!add_unknown(e, s, i, k, &in_unk))
            return false;
    }
    if (e->n_sym) e->sym[e->n_sym - 1].next = -1;
    return true;
}

/* Scores order like ranks when turned round: the bits of a float, made monotonic, then inverted. */
static uint32_t score_rank(float f) {
    uint32_t u;
    if (f == 0.0f) f = 0.0f; /* −0 and 0 are one score */
    memcpy(&u, &f, 4);
    u = u & 0x80000000u ? ~u : u | 0x80000000u;
    return ~u;
}

static bool consider(lm_encoder *e, const char *s, int32_t i) {
    const lm_tokenizer *t = e->t;
    if (i < 0 || e->sym[i].next < 0) return true;
    const lm_symbol *a = &e->sym[i], *b = &e->sym[a->next];
    lm_candidate c = {.pos = (uint32_t)i, .len = a->len + b->len};
    if (t->score) {
        c.id = lm_vocab_find(t, s + a->off, c.len);
        if (c.id < 0) return true;
        c.rank = score_rank(t->score[c.id]);
    } else {
        const lm_merge *m = merge_slot(t, a->id, b->id);
        if (m->left < 0) return true;
        c.rank = m->rank;
        c.id = m->id;
    }
    return heap_push(e, c);
}

static bool merge_all(lm_encoder *e, const char *s) {
    e->n_heap = 0;
    for (size_t i = 0; i + 1 < e->n_sym; i++)
        if (!consider(e, s, (int32_t)i)) return false;
    while (e->n_heap) {
        lm_candidate c = heap_pop(e);
        lm_symbol *a = &e->sym[c.pos];
        /* Symbols only grow: the two that made this candidate stand unchanged if and only if their joined length does. */
        if (!a->len || a->next < 0 || a->len + e->sym[a->next].len != c.len) continue;
        lm_symbol *b = &e->sym[a->next];
        a->id = c.id;
        a->len = c.len;
        a->next = b->next;
        b->len = 0;
        if (a->next >= 0) e->sym[a->next].prev = (int32_t)c.pos;
        if (!consider(e, s, a->prev) || !consider(e, s, (int32_t)c.pos)) return false;
    }
    return true;
}

static bool emit(lm_encoder *e, const char *s) {
    const lm_tokenizer *t = e->t;
    for (int32_t i = e->n_sym ? 0 : -1; i >= 0; i = e->sym[i].next) {
        const lm_symbol *a = &e->sym[i];
        if (a->id >= 0) {
            if (!lm_ids_put(e->out, a->id)) return false;
            continue;
        }
        for (uint32_t k = 0; k < a->len; k++) { /* only with scores: a character that is no token */
            int32_t id = t->byte_id[(uint8_t)s[a->off + k]];
            if (id < 0) id = t->unk;
            if (id >= 0 && !lm_ids_put(e->out, id)) return false;
        }
    }
    return true;
}

lm_status lm_bpe_encode(lm_encoder *e, const char *s, size_t n) {
    const lm_tokenizer *t = e->t;
    if (t->ignore_merges) {
        int32_t id = lm_vocab_find(t, s, n);
        if (id >= 0) return lm_ids_put(e->out, id) ? LM_OK : lm_fail_nomem(e->err, "the token ids", e->out->n);
    }
    if (!add_symbols(e, s, n) || !merge_all(e, s) || !emit(e, s)) return lm_fail_nomem(e->err, "encoding a piece of text", n);
    return LM_OK;
}
