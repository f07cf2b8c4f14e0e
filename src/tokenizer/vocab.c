/* The vocabulary: all token texts in one block, an index by text, and the added tokens to look for in raw and in normalised text. */
#include "tokenizer/tok.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

lm_status lm_vocab_reserve(lm_tokenizer *t, uint32_t n, lm_error *err) {
    if (n > LM_TOK_MAX_IDS) return lm_fail(err, LM_RANGE, "token ids up to %u; at most %u are supported", n - 1, LM_TOK_MAX_IDS - 1);
    t->entry = lm_calloc(n ? n : 1, sizeof *t->entry);
    if (!t->entry) return lm_fail_nomem(err, "the vocabulary", (uint64_t)n * sizeof *t->entry);
    t->n = n;
    return LM_OK;
}

static lm_status blob_put(lm_tokenizer *t, const char *s, size_t n, uint32_t *off, lm_error *err) {
    lm_tbuf b = {t->blob, t->blob_n, t->blob_cap};
    if (n > UINT32_MAX / 2 || b.n > UINT32_MAX / 2) return lm_fail(err, LM_RANGE, "the vocabulary's texts exceed 2 GiB");
    if (!lm_tbuf_put(&b, s, n)) return lm_fail_nomem(err, "the vocabulary's texts", b.n + n);
    *off = (uint32_t)t->blob_n;
    t->blob = b.s;
    t->blob_n = b.n;
    t->blob_cap = b.cap;
    return LM_OK;
}

lm_status lm_vocab_set(lm_tokenizer *t, uint32_t id, const char *s, size_t n, uint32_t flags, lm_error *err) {
    lm_tok_entry *e = &t->entry[id];
    if (e->flags & LM_TOK_PRESENT) return lm_fail(err, LM_FORMAT, "token id %u stands twice in the vocabulary", id);
    LM_TRY(blob_put(t, s, n, &e->text_off, err));
    e->text_len = (uint32_t)n;
    e->flags = flags | LM_TOK_PRESENT;
    return LM_OK;
}

static uint64_t hash_text(const char *s, size_t n) { /* FNV-1a, its high bits folded in */
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n; i++) h = (h ^ (uint8_t)s[i]) * UINT64_C(0x100000001b3);
    return h ^ (h >> 29);
}

lm_status lm_vocab_index(lm_tokenizer *t, lm_error *err) {
    uint32_t size = 16;
    while (size < t->n + t->n / 2) size *= 2;
    t->index = lm_calloc(size, sizeof *t->index);
    if (!t->index) return lm_fail_nomem(err, "the vocabulary's index", (uint64_t)size * sizeof *t->index);
    t->index_mask = size - 1;
    for (uint32_t id = 0; id < t->n; id++) {
        const lm_tok_entry *e = &t->entry[id];
        if (!(e->flags & LM_TOK_PRESENT)) continue;
        const char *s = t->blob + e->text_off;
        uint32_t at = (uint32_t)hash_text(s, e->text_len) & t->index_mask;
        for (; t->index[at]; at = (at + 1) & t->index_mask) {
            const lm_tok_entry *o = &t->entry[t->index[at] - 1];
            if (o->text_len == e->text_len && memcmp(t->blob + o->text_off, s, e->text_len) == 0) break;
        }
        t->index[at] = id + 1;
    }
    return LM_OK;
}

int32_t lm_vocab_find(const lm_tokenizer *t, const char *s, size_t n) {
    for (uint32_t at = (uint32_t)hash_text(s, n) & t->index_mask; t->index[at]; at = (at + 1) & t->index_mask) {
        const lm_tok_entry *o = &t->entry[t->index[at] - 1];
        if (o->text_len == n && memcmp(t->blob + o->text_off, s, n) == 0) return (int32_t)(t->index[at] - 1);
    }
    return -1;
}

/* ---- pieces ---- */
static int hex_digit(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int byte_token(const char *s, size_t n) { /* "<0x0A>" → 10; −1: something else */
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') return -1;
    int hi = hex_digit(s[3]), lo = hex_digit(s[4]);
    return hi < 0 || lo < 0 ? -1 : hi * 16 + lo;
}

/* Byte-level text → bytes; false when a character is not of the alphabet: such a token stands for itself. */
static bool bytes_of(const char *s, size_t n, lm_tbuf *out, bool *oom) {
    out->n = 0;
    for (size_t i = 0, k; i < n; i += k) {
        int b = lm_bytes_from_char(lm_char_at(s + i, n - i, &k));
        if (b < 0) return false;
        uint8_t c = (uint8_t)b;
        if (!lm_tbuf_put(out, &c, 1)) {
            *oom = true;
            return false;
        }
    }
    return true;
}

static bool replace_in(lm_tbuf *b, lm_tbuf *tmp, const char *from, size_t from_n, const char *to, size_t to_n) {
    tmp->n = 0;
    for (size_t i = 0; i < b->n;) {
        bool hit = from_n && b->n - i >= from_n && memcmp(b->s + i, from, from_n) == 0;
        if (!lm_tbuf_put(tmp, hit ? to : b->s + i, hit ? to_n : 1)) return false;
        i += hit ? from_n : 1;
    }
    lm_tbuf swap = *b;
    *b = *tmp;
    *tmp = swap;
    return true;
}

/* e's piece, from the text s[0..n) that the decoder is given for it */
static lm_status set_piece(lm_tokenizer *t, lm_tok_entry *e, const char *s, size_t n, lm_tbuf *b, lm_tbuf *tmp, lm_error *err) {
    const lm_decode_plan *p = &t->plan;
    bool oom = false;
    b->n = 0;
    int byte = p->byte_fallback ? byte_token(s, n) : -1;
    if (byte >= 0) {
        uint8_t c = (uint8_t)byte;
        oom = !lm_tbuf_put(b, &c, 1);
    } else if (!(p->bytes && bytes_of(s, n, b, &oom)) && !oom) {
        b->n = 0;
        oom = !lm_tbuf_put(b, s, n);
        for (uint32_t i = 0; i < p->n_replace && !oom; i++)
            oom = !replace_in(b, tmp, p->replace[i].from, p->replace[i].from_n, p->replace[i].to, p->replace[i].to_n);
    }
    if (oom) return lm_fail_nomem(err, "a token's text", n);
    e->piece_off = e->text_off;
    e->piece_len = (uint32_t)b->n;
    if (b->n == e->text_len && (!b->n || memcmp(b->s, t->blob + e->text_off, b->n) == 0)) return LM_OK;
    return blob_put(t, b->s, b->n, &e->piece_off, err);
}

static lm_status set_pieces(lm_tokenizer *t, lm_error *err) {
    lm_tbuf b = {0}, tmp = {0};
    lm_status st = LM_OK;
    for (uint32_t id = 0; id < t->n && st == LM_OK; id++) {
        lm_tok_entry *e = &t->entry[id];
        if (e->text_len) st = set_piece(t, e, t->blob + e->text_off, e->text_len, &b, &tmp, err);
    }
    /* an added token that is looked for in normalised text decodes as its normalised form, as the reference has it */
    for (uint32_t i = 0; i < t->normal.n && st == LM_OK; i++) {
        const lm_added_key *k = &t->normal.key[i];
        st = set_piece(t, &t->entry[t->added[k->added].id], k->s, k->len, &b, &tmp, err);
    }
    lm_free(b.s);
    lm_free(tmp.s);
    char *fit = st == LM_OK ? lm_realloc(t->blob, t->blob_n ? t->blob_n : 1) : NULL;
    if (fit) {
        t->blob = fit;
        t->blob_cap = t->blob_n;
    }
    return st;
}

/* ---- added tokens ---- */
static int by_text(const void *pa, const void *pb) {
    const lm_added_key *a = pa, *b = pb;
    size_t n = a->len < b->len ? a->len : b->len;
    int c = memcmp(a->s, b->s, n);
    if (c) return c;
    return a->len != b->len ? (a->len < b->len ? -1 : 1) : (a->added < b->added ? -1 : a->added > b->added);
}

static lm_status normalized_key(lm_tokenizer *t, const lm_added *a, lm_added_key *k, lm_error *err) {
    lm_ids none = {0};
    lm_encoder e = {.t = t, .out = &none, .err = err};
    lm_tbuf out = {0};
    lm_status st = lm_pattern_begin(&e);
    if (st == LM_OK) st = lm_normalize(&e, a->text, a->len, &out);
    if (st == LM_OK) {
        k->len = (uint32_t)out.n;
        k->s = lm_arena_strndup(t->arena, out.s ? out.s : "", out.n);
        if (!k->s) st = lm_fail_nomem(err, "an added token", out.n);
    }
    lm_pattern_end(&e);
    lm_free(e.spare.s);
    lm_free(out.s);
    return st;
}

static lm_status build_set(lm_tokenizer *t, bool normalized, lm_added_set *set, lm_error *err) {
    set->key = lm_arena_calloc(t->arena, t->n_added ? t->n_added : 1, sizeof *set->key);
    if (!set->key) return lm_fail_nomem(err, "the added tokens", (uint64_t)t->n_added * sizeof *set->key);
    for (uint32_t i = 0; i < t->n_added; i++) {
        const lm_added *a = &t->added[i];
        if (a->normalized != normalized || !a->len) continue;
        lm_added_key k = {a->text, a->len, i};
        if (normalized && t->n_norm) LM_TRY(normalized_key(t, a, &k, err));
        if (!k.len) continue;
        set->key[set->n++] = k;
        set->first[(uint8_t)k.s[0]] = true;
    }
    qsort(set->key, set->n, sizeof *set->key, by_text);
    return LM_OK;
}

int64_t lm_added_match(const lm_added_set *set, const char *s, size_t n, size_t *len) {
    if (!n || !set->first[(uint8_t)s[0]]) return -1;
    uint32_t lo = 0, hi = set->n; /* keys that agree with s[0..k) */
    int64_t best = -1;
    for (size_t k = 0; k < n && lo < hi; k++) {
        uint8_t c = (uint8_t)s[k];
        while (lo < hi && set->key[lo].len <= k) lo++; /* ended before k: recorded already */
        uint32_t a = lo, b = hi;
        while (a < b) { /* first key whose byte k is not below c */
            uint32_t m = a + (b - a) / 2;
            if ((uint8_t)set->key[m].s[k] < c)
                a = m + 1;
            else
                b = m;
        }
        lo = a;
        b = hi;
        while (a < b) {
            uint32_t m = a + (b - a) / 2;
            if ((uint8_t)set->key[m].s[k] <= c)
                a = m + 1;
            else
                b = m;
        }
        hi = a;
        if (lo < hi && set->key[lo].len == k + 1) {
            best = set->key[lo].added;
            *len = k + 1;
        }
    }
    return best;
}

lm_status lm_vocab_finish(lm_tokenizer *t, lm_error *err) {
    for (uint32_t c = 0; c < 512; c++) {
        uint8_t u[4];
        t->char_id[c] = lm_vocab_find(t, (const char *)u, (size_t)lm_utf8_encode(c, u));
    }
    for (unsigned b = 0; b < 256; b++) {
        char s[8];
        snprintf(s, sizeof s, "<0x%02X>", b);
        t->byte_id[b] = lm_vocab_find(t, s, 6);
    }
    LM_TRY(build_set(t, false, &t->raw, err));
    LM_TRY(build_set(t, true, &t->normal, err));
    return set_pieces(t, err);
}
