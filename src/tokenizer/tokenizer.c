/* Making, freeing and asking a tokenizer; encoding. */
#include "tokenizer/tok.h"
#include <string.h>

lm_tokenizer *lm_tokenizer_new(void) {
    lm_tokenizer *t = lm_calloc(1, sizeof *t);
    if (!t) return NULL;
    t->arena = lm_arena_create();
    if (!t->arena) {
        lm_free(t);
        return NULL;
    }
    t->unk = t->bos = -1;
    return t;
}

void lm_tokenizer_free(lm_tokenizer *t) {
    if (!t) return;
    for (uint32_t i = 0; i < t->n_norm; i++)
        if (t->norm[i].re) pcre2_code_free(t->norm[i].re);
    for (uint32_t i = 0; i < t->n_pre; i++)
        if (t->pre[i].re) pcre2_code_free(t->pre[i].re);
    lm_free(t->entry);
    lm_free(t->blob);
    lm_free(t->index);
    lm_free(t->merge);
    lm_free(t->score);
    lm_ids_free(&t->prefix);
    lm_ids_free(&t->suffix);
    lm_ids_free(&t->eos);
    lm_arena_destroy(t->arena);
    lm_free(t);
}

lm_status lm_eos_add(lm_tokenizer *t, int64_t id, lm_error *err) {
    if (id < 0 || id >= (int64_t)t->n) return LM_OK;
    for (size_t i = 0; i < t->eos.n; i++)
        if (t->eos.id[i] == id) return LM_OK;
    return lm_ids_put(&t->eos, (int32_t)id) ? LM_OK : lm_fail_nomem(err, "the tokenizer", 0);
}

uint32_t lm_tokenizer_vocab(const lm_tokenizer *t) { return t->n; }
int32_t lm_tokenizer_bos(const lm_tokenizer *t) { return t->bos; }
const char *lm_tokenizer_describe(const lm_tokenizer *t) { return t->describe; }

const char *lm_tokenizer_piece(const lm_tokenizer *t, int32_t id, size_t *n) {
    *n = 0;
    if (id < 0 || (uint32_t)id >= t->n) return NULL;
    *n = t->entry[id].piece_len;
    return t->blob + t->entry[id].piece_off;
}

bool lm_tokenizer_is_special(const lm_tokenizer *t, int32_t id) {
    return id >= 0 && (uint32_t)id < t->n && (t->entry[id].flags & LM_TOK_SPECIAL);
}

const int32_t *lm_tokenizer_eos(const lm_tokenizer *t, size_t *n) {
    *n = t->eos.n;
    return t->eos.id;
}

/* ---- encoding ---- */
static lm_status encode_plain(lm_encoder *e, const char *s, size_t n, bool first) {
    e->text.n = 0;
    if (!n) return LM_OK;
    if (!lm_tbuf_put(&e->text, s, n)) return lm_fail_nomem(e->err, "encoding text", n);
    LM_TRY(lm_pretokenize(e, first));
    for (size_t i = 0; i < e->span.n; i++) LM_TRY(lm_bpe_encode(e, e->text.s + e->span.v[i].off, e->span.v[i].len));
    return LM_OK;
}

static bool word_before(const char *s, size_t at) {
    size_t a = at, k;
    if (!at) return false;
    do a--;
    while (a && ((uint8_t)s[a] & 0xc0) == 0x80);
    return lm_char_word(lm_char_at(s + a, at - a, &k));
}

static bool word_after(const char *s, size_t n, size_t at) {
    size_t k;
    return at < n && lm_char_word(lm_char_at(s + at, n - at, &k));
}

/* Where the match [*a, *b) of an added token really begins and ends, the spaces that it takes along included; false: it does not count. */
static bool accept(const lm_encoder *e, const lm_added *ad, const char *s, size_t n, size_t from, size_t *a, size_t *b) {
    if (ad->special && !e->parse_special) return false;
    if (ad->single_word && (word_before(s, *a) || word_after(s, n, *b))) return false;
    if (ad->lstrip) {
        size_t i = *a; /* walk back over whole spaces, not past what is taken already */
        while (i > from) {
            size_t c = i - 1, k;
            while (c > from && ((uint8_t)s[c] & 0xc0) == 0x80) c--;
            if (!lm_char_space(lm_char_at(s + c, i - c, &k))) break;
            i = c;
        }
        *a = i;
    }
    if (ad->rstrip)
        for (size_t k; *b < n && lm_char_space(lm_char_at(s + *b, n - *b, &k)); *b += k) {}
    return true;
}

typedef lm_status (*run_fn)(lm_encoder *e, const char *s, size_t n, bool first);

/* Cuts the added tokens of `set` out of s[0..n); the runs between them go to `run`. `first`: s stands at the start of the input. */
static lm_status cut_added(lm_encoder *e, const lm_added_set *set, const char *s, size_t n, bool first, run_fn run) {
    size_t from = 0;
    if (!set->n) return run(e, s, n, first);
    for (size_t at = 0; at < n;) {
        size_t len = 0;
        int64_t i = lm_added_match(set, s + at, n - at, &len);
        if (i < 0) {
            at++;
            continue;
        }
        const lm_added *ad = &e->t->added[i];
        size_t a = at, b = at + len;
        at = b;
        if (!accept(e, ad, s, n, from, &a, &b)) continue;
        if (a > from) LM_TRY(run(e, s + from, a - from, first && from == 0));
        if (!lm_ids_put(e->out, ad->id)) return lm_fail_nomem(e->err, "the token ids", e->out->n);
        from = b; /* the search goes on at the match's own end: a token of spaces is found among those that were taken along, as the
                     reference has it */
    }
    return from < n ? run(e, s + from, n - from, first && from == 0) : LM_OK;
}

static lm_status encode_raw(lm_encoder *e, const char *s, size_t n, bool first) {
    if (!e->t->n_norm) return cut_added(e, &e->t->normal, s, n, first, encode_plain);
    lm_tbuf b = {0};
    lm_status st = lm_normalize(e, s, n, &b);
    if (st == LM_OK) st = cut_added(e, &e->t->normal, b.s, b.n, first, encode_plain);
    lm_free(b.s);
    return st;
}

static lm_status encode_all(lm_encoder *e, const char *s, size_t n, bool special) {
    const lm_tokenizer *t = e->t;
    for (size_t i = 0; special && i < t->prefix.n; i++)
        if (!lm_ids_put(e->out, t->prefix.id[i])) return lm_fail_nomem(e->err, "the token ids", e->out->n);
    LM_TRY(lm_pattern_begin(e));
    LM_TRY(cut_added(e, &t->raw, s, n, true, encode_raw));
    for (size_t i = 0; special && i < t->suffix.n; i++)
        if (!lm_ids_put(e->out, t->suffix.id[i])) return lm_fail_nomem(e->err, "the token ids", e->out->n);
    return LM_OK;
}

lm_status lm_tokenizer_encode(const lm_tokenizer *t, const char *text, size_t n, bool special, bool parse_special, lm_ids *out,
                              lm_error *err) {
    if (n > LM_TOK_MAX_TEXT) return lm_fail(err, LM_RANGE, "a text of %zu bytes; at most 1 GiB is encoded at once", n);
    lm_encoder e = {.t = t, .out = out, .err = err, .parse_special = parse_special};
    size_t before = out->n;
    char *fixed = NULL;
    if (!lm_utf8_valid((const uint8_t *)text, n)) {
        fixed = lm_utf8_repair((const uint8_t *)text, n, &n);
        if (!fixed) return lm_fail_nomem(err, "repairing text", n);
        text = fixed;
    }
    lm_status st = encode_all(&e, text, n, special);
    if (st != LM_OK) out->n = before;
    lm_pattern_end(&e);
    lm_free(e.text.s);
    lm_free(e.spare.s);
    lm_free(e.span.v);
    lm_free(e.span2.v);
    lm_free(e.sym);
    lm_free(e.heap);
    lm_free(fixed);
    return st;
}
