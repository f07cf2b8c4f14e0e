#include "tokenizer/to_gguf.h"
#include "tokenizer/tok.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { U32 = 4, I32 = 5, F32 = 6, BOOL = 7, STRING = 8 };                    /* GGUF's value types */
enum { NORMAL = 1, UNKNOWN, CONTROL, USER, UNUSED, BYTE };          /* tokenizer.ggml.token_type */
enum { SPECIALS = 4, BYTES = 256, LETTERS = 11, MAX_ENTRIES = 14 };

typedef struct out {
    lm_arena *a;
    lm_meta_entry *kv; /* [MAX_ENTRIES] */
    uint32_t n;
} out;

static void put(out *o, const char *key, lm_value v) { o->kv[o->n++] = (lm_meta_entry){.key = key, .value = v}; }
static void put_str(out *o, const char *key, const char *s) {
    put(o, key, (lm_value){.kind = LM_V_STRING, .str = {s, strlen(s)}, .gguf_type = STRING});
}
static void put_bool(out *o, const char *key, bool v) { put(o, key, (lm_value){.kind = LM_V_BOOL, .b = v, .gguf_type = BOOL}); }
static void put_id(out *o, const char *key, int32_t id) {
    if (id >= 0) put(o, key, (lm_value){.kind = LM_V_INT, .i = id, .u = (uint64_t)id, .gguf_type = U32});
}
static void put_strs(out *o, const char *key, const lm_str *s, uint64_t n) {
    put(o, key, (lm_value){.kind = LM_V_ARRAY, .elem = LM_V_STRING, .arr = {s, n}, .gguf_type = STRING});
}
static void put_types(out *o, const int64_t *t, uint64_t n) {
    put(o, "tokenizer.ggml.token_type", (lm_value){.kind = LM_V_ARRAY, .elem = LM_V_INT, .arr = {t, n}, .gguf_type = I32});
}

static lm_status out_init(out *o, lm_arena *a, lm_error *err) {
    *o = (out){.a = a, .kv = lm_arena_calloc(a, MAX_ENTRIES, sizeof(lm_meta_entry))};
    return o->kv ? LM_OK : lm_fail_nomem(err, "the tokenizer", 0);
}

/* ---- the stand-in ------------------------------------------------------------------------------------------------------------------*/
/* The byte alphabet in the order of its code points, as UTF-8. */
static uint32_t alphabet(lm_str *s, lm_arena *a) {
    uint32_t n = 0;
    for (uint32_t c = 0; c < 512; c++)
        if (lm_bytes_from_char(c) >= 0) {
            char u[3] = {(char)c, 0, 0};
            if (c >= 0x80) u[0] = (char)(0xc0 | c >> 6), u[1] = (char)(0x80 | (c & 63));
            s[n].s = lm_arena_strndup(a, u, strlen(u));
            s[n++].len = strlen(u);
        }
    return n;
}

lm_status lm_standin_to_gguf(lm_arena *a, uint32_t vocab, int32_t bos, int32_t eos, lm_meta_entry **kv, uint32_t *n, lm_error *err) {
    static const char *const special[SPECIALS] = {"<pad>", "<bos>", "<eos>", "<unk>"};
    static const char *const letter[LETTERS] = {"t", "h", "e", "a", "i", "n", "o", "r", "s", "d", "\xc4\xa0"};
    out o;
    LM_TRY(out_init(&o, a, err));
    *kv = o.kv;
    if (vocab < SPECIALS + BYTES) {
        put_str(&o, "tokenizer.ggml.model", "no_vocab");
        *n = o.n;
        return LM_OK;
    }
    uint32_t pairs = vocab - SPECIALS - BYTES < LETTERS * LETTERS ? vocab - SPECIALS - BYTES : LETTERS * LETTERS, at = SPECIALS + BYTES;
    lm_str *token = lm_arena_calloc(a, vocab, sizeof *token), *merge = lm_arena_calloc(a, pairs + 1, sizeof *merge);
    int64_t *type = lm_arena_calloc(a, vocab, sizeof *type);
    if (!token || !merge || !type) return lm_fail_nomem(err, "the tokenizer", vocab * sizeof *token);
    for (uint32_t i = 0; i < SPECIALS; i++) token[i] = (lm_str){special[i], strlen(special[i])}, type[i] = CONTROL;
    alphabet(token + SPECIALS, a);
    for (uint32_t i = 0; i < pairs; i++, at++) {
        const char *x = letter[i / LETTERS], *y = letter[i % LETTERS];
        token[at].s = lm_arena_printf(a, "%s%s", x, y);
        token[at].len = strlen(x) + strlen(y);
        merge[i].s = lm_arena_printf(a, "%s %s", x, y);
        merge[i].len = token[at].len + 1;
        if (!token[at].s || !merge[i].s) return lm_fail_nomem(err, "the tokenizer", 0);
    }
    for (uint32_t i = SPECIALS; i < at; i++) type[i] = NORMAL;
    for (; at < vocab; at++) {
        token[at].s = lm_arena_printf(a, "[PAD%u]", at);
        if (!token[at].s) return lm_fail_nomem(err, "the tokenizer", 0);
        token[at].len = strlen(token[at].s);
        type[at] = UNUSED;
    }
    put_str(&o, "tokenizer.ggml.model", "gpt2");
    put_str(&o, "tokenizer.ggml.pre", "gpt-2");
    put_strs(&o, "tokenizer.ggml.tokens", token, vocab);
    put_types(&o, type, vocab);
    put_strs(&o, "tokenizer.ggml.merges", merge, pairs);
    put_id(&o, "tokenizer.ggml.bos_token_id", bos >= 0 ? bos : 1);
    put_id(&o, "tokenizer.ggml.eos_token_id", eos >= 0 ? eos : 2);
    put_id(&o, "tokenizer.ggml.unknown_token_id", 3);
    put_id(&o, "tokenizer.ggml.padding_token_id", 0);
    *n = o.n;
    return LM_OK;
}

/* ---- a real one: byte-level BPE ------------------------------------------------------------------------------------------------------*/
static lm_status refuse(const lm_source *src, lm_error *err, const char *what) {
    return lm_fail_at(err, LM_UNSUPPORTED, src->path, LM_NO_OFFSET, "tokenizer.json", "%s", what);
}

static bool is_byte_token(const lm_tokenizer *t, uint32_t i) {
    for (int b = 0; b < 256; b++)
        if (t->byte_id[b] == (int32_t)i) return true;
    return false;
}

static lm_status put_tokens(out *o, const lm_tokenizer *t, uint32_t vocab, lm_error *err) {
    lm_str *token = lm_arena_calloc(o->a, vocab, sizeof *token);
    int64_t *type = lm_arena_calloc(o->a, vocab, sizeof *type);
    if (!token || !type) return lm_fail_nomem(err, "the tokenizer", vocab * sizeof *token);
    for (uint32_t i = 0; i < vocab; i++) {
        const lm_tok_entry *e = i < t->n ? &t->entry[i] : NULL;
        bool there = e && (e->flags & LM_TOK_PRESENT);
        token[i].s = there ? lm_arena_strndup(o->a, t->blob + e->text_off, e->text_len) : lm_arena_printf(o->a, "[PAD%u]", i);
        if (!token[i].s) return lm_fail_nomem(err, "the tokenizer", 0);
        token[i].len = there ? e->text_len : strlen(token[i].s);
        type[i] = !there ? UNUSED : e->flags & LM_TOK_SPECIAL ? CONTROL : e->flags & LM_TOK_ADDED ? USER : NORMAL;
        if (there && t->byte_fallback && (int32_t)i == t->unk) type[i] = UNKNOWN;
        if (there && t->byte_fallback && is_byte_token(t, i)) type[i] = BYTE;
    }
    put_strs(o, "tokenizer.ggml.tokens", token, vocab);
    put_types(o, type, vocab);
    return LM_OK;
}

static int by_rank(const void *a, const void *b) {
    uint32_t x = ((const lm_merge *)a)->rank, y = ((const lm_merge *)b)->rank;
    return x < y ? -1 : x > y;
}

static lm_status put_merges(out *o, const lm_tokenizer *t, lm_error *err) {
    uint32_t n = 0, slots = t->merge ? t->merge_mask + 1 : 0;
    lm_merge *m = lm_arena_calloc(o->a, (size_t)slots + 1, sizeof *m);
    lm_str *s = lm_arena_calloc(o->a, (size_t)slots + 1, sizeof *s);
    if (!m || !s) return lm_fail_nomem(err, "the merges", slots * sizeof *m);
    for (uint32_t i = 0; i < slots; i++)
        if (t->merge[i].left >= 0) m[n++] = t->merge[i];
    if (n) qsort(m, n, sizeof *m, by_rank);
    for (uint32_t i = 0; i < n; i++) {
        const lm_tok_entry *l = &t->entry[m[i].left], *r = &t->entry[m[i].right];
        s[i].s = lm_arena_printf(o->a, "%.*s %.*s", (int)l->text_len, t->blob + l->text_off, (int)r->text_len, t->blob + r->text_off);
        if (!s[i].s) return lm_fail_nomem(err, "the merges", 0);
        s[i].len = (uint64_t)l->text_len + r->text_len + 1;
    }
    put_strs(o, "tokenizer.ggml.merges", s, n);
    return LM_OK;
}

/* Texts on which pre-tokenizers part. */
static const char *const probes[] = {
    "Hello world's  end, we'LL see\n\n\n  indent\t\ttabs \r\n x",
    "1 12 123 1234 12345 3.14159 2\xc2\xb2 \xd9\xa3\xd9\xa4",
    "CamelCase XMLHttpRequest iPhone \xc3\x89\xc3\xa9 na\xc3\xafve I'M don't",
    "!!!??? ... $5 #tag a+b=c (x)[y]{z} <|> /path/to//file\n/x",
    "\xe4\xb8\xad\xe6\x96\x87\xe5\xad\x97\xe7\xac\xa6\xe6\xb5\x8b\xe8\xaf\x95\xe3\x80\x82\xe3\x81\xb2\xe3\x82\x89\xe3\x81\x8c\xe3\x81\xaa"
    "\xe3\x82\xab\xe3\x82\xbf \xed\x95\x9c\xea\xb5\xad\xec\x96\xb4",
    "e\xcc\x81"
    "a\xcc\x8a \xf0\x9f\x98\x80\xf0\x9f\x91\x8d\xf0\x9f\x8f\xbd \xe0\xa4\xa8\xe0\xa4\xae\xe0\xa4\xb8\xe0\xa5\x8d\xe0\xa4\xa4\xe0\xa5\x87",
    "   leading, trailing   ",
    "_under_score -dash- \xe2\x80\x94 \xe2\x80\x9cquoted\xe2\x80\x9d",
};

static void pieces_free(lm_encoder *e) {
    lm_pattern_end(e);
    lm_free(e->text.s);
    lm_free(e->spare.s);
    lm_free(e->span.v);
    lm_free(e->span2.v);
}

/* s as BPE gets it: normalised into e->text, cut into e->span. pieces_free(e), also on failure. */
static lm_status pieces(const lm_tokenizer *t, const char *s, lm_encoder *e, lm_error *err) {
    *e = (lm_encoder){.t = t, .err = err};
    if (t->n_norm) LM_TRY(lm_normalize(e, s, strlen(s), &e->text));
    else if (!lm_tbuf_put(&e->text, s, strlen(s))) return lm_fail_nomem(err, "the tokenizer", strlen(s));
    LM_TRY(lm_pattern_begin(e));
    return lm_pretokenize(e, true);
}

static bool same_pieces(const lm_encoder *x, const lm_encoder *y) {
    return x->text.n == y->text.n && !memcmp(x->text.s, y->text.s, x->text.n) && x->span.n == y->span.n &&
           !memcmp(x->span.v, y->span.v, x->span.n * sizeof *x->span.v);
}

/* *same: both normalise and cut the probes alike, whatever their vocabulary makes of the pieces. */
static lm_status agree(const lm_tokenizer *a, const lm_tokenizer *b, bool *same, lm_error *err) {
    lm_status s = LM_OK;
    *same = a->ignore_merges == b->ignore_merges;
    for (size_t i = 0; i < sizeof probes / sizeof *probes && *same && s == LM_OK; i++) {
        lm_encoder x, y = {0};
        s = pieces(a, probes[i], &x, err);
        if (s == LM_OK) s = pieces(b, probes[i], &y, err);
        *same = s == LM_OK && same_pieces(&x, &y);
        pieces_free(&x);
        pieces_free(&y);
    }
    return s;
}

static int by_key(const void *a, const void *b) { return strcmp(((const lm_meta_entry *)a)->key, ((const lm_meta_entry *)b)->key); }
/* The tokenizer that a reader makes of what is in `o`. sorted: [MAX_ENTRIES], to work in. */
static lm_status read_back(const out *o, lm_meta_entry *sorted, const lm_source *src, lm_tokenizer **back, lm_error *err) {
    memcpy(sorted, o->kv, o->n * sizeof *sorted);
    qsort(sorted, o->n, sizeof *sorted, by_key);
    const lm_source as = {.kind = LM_SOURCE_GGUF, .path = src->path, .meta = {sorted, o->n}};
    *back = NULL;
    return lm_tokenizer_from_gguf(&as, back, err);
}

/* The pre-tokenizer's name in GGUF: the first with which a reader cuts the probes as this tokenizer does. */
static lm_status find_pre(out *o, const lm_source *src, const lm_tokenizer *t, lm_error *err) {
    lm_meta_entry *sorted = lm_arena_calloc(o->a, MAX_ENTRIES, sizeof *sorted);
    if (!sorted) return lm_fail_nomem(err, "the tokenizer", 0);
    uint32_t at = o->n++;
    const char *name;
    for (uint32_t i = 0; (name = lm_pre_name(i)) != NULL; i++) {
        o->kv[at] = (lm_meta_entry){.key = "tokenizer.ggml.pre",
                                    .value = {.kind = LM_V_STRING, .str = {name, strlen(name)}, .gguf_type = STRING}};
        lm_tokenizer *back;
        bool same = false;
        LM_TRY(read_back(o, sorted, src, &back, err));
        lm_status s = agree(t, back, &same, err);
        lm_tokenizer_free(back);
        LM_TRY(s);
        if (same) return LM_OK;
    }
    return refuse(src, err, "GGUF has no name for what its pre-tokenizer does");
}

/* Both give s the same ids, and those the same text. */
static lm_status same_text(const lm_tokenizer *a, const lm_tokenizer *b, const char *s, bool *same, lm_error *err) {
    lm_ids x = {0}, y = {0};
    char *p = NULL, *q = NULL;
    size_t pn = 0, qn = 0;
    lm_status st = lm_tokenizer_encode(a, s, strlen(s), true, true, &x, err);
    if (st == LM_OK) st = lm_tokenizer_encode(b, s, strlen(s), true, true, &y, err);
    *same = st == LM_OK && x.n == y.n && !memcmp(x.id, y.id, x.n * sizeof *x.id);
    if (*same) st = lm_tokenizer_decode(a, x.id, x.n, false, &p, &pn, err);
    if (*same && st == LM_OK) st = lm_tokenizer_decode(b, y.id, y.n, false, &q, &qn, err);
    *same = *same && st == LM_OK && pn == qn && !memcmp(p, q, pn);
    lm_free(p);
    lm_free(q);
    lm_ids_free(&x);
    lm_ids_free(&y);
    return st;
}

/* The probes, and every added token between words and spaces. */
static lm_status same_texts(const lm_tokenizer *a, const lm_tokenizer *b, bool *same, lm_error *err) {
    *same = true;
    for (size_t i = 0; i < sizeof probes / sizeof *probes && *same; i++) LM_TRY(same_text(a, b, probes[i], same, err));
    for (uint32_t i = 0; i < a->n_added && *same; i++) {
        char s[512];
        if (a->added[i].len > 256 || memchr(a->added[i].text, 0, a->added[i].len)) {
            *same = false;
            break;
        }
        snprintf(s, sizeof s, "one%.*stwo %.*s  three%.*s", (int)a->added[i].len, a->added[i].text, (int)a->added[i].len, a->added[i].text,
                 (int)a->added[i].len, a->added[i].text);
        LM_TRY(same_text(a, b, s, same, err));
    }
    return LM_OK;
}

static lm_status put_ends(out *o, const lm_tokenizer *t) {
    size_t n_eos;
    const int32_t *eos = lm_tokenizer_eos(t, &n_eos);
    int32_t first = t->prefix.n ? t->prefix.id[0] : t->bos, last = t->suffix.n ? t->suffix.id[0] : n_eos ? eos[0] : -1;
    put_id(o, "tokenizer.ggml.bos_token_id", first);
    put_id(o, "tokenizer.ggml.eos_token_id", last);
    for (size_t i = 0, more = 0; i < n_eos && more < 2; i++)
        if (eos[i] != last) put_id(o, more++ ? "tokenizer.ggml.eom_token_id" : "tokenizer.ggml.eot_token_id", eos[i]);
    put_bool(o, "tokenizer.ggml.add_bos_token", t->prefix.n != 0);
    put_bool(o, "tokenizer.ggml.add_eos_token", t->suffix.n != 0);
    return LM_OK;
}

/* ---- SentencePiece-like BPE with byte fallback: as scores --------------------------------------------------------------------------- */
static lm_status convert_spm(out *o, const lm_source *src, const lm_tokenizer *t, uint32_t vocab, lm_error *err) {
    const char *why;
    double *score = lm_arena_calloc(o->a, vocab, sizeof *score);
    lm_meta_entry *sorted = lm_arena_calloc(o->a, MAX_ENTRIES, sizeof *sorted);
    if (!score || !sorted) return lm_fail_nomem(err, "the tokenizer", vocab * sizeof *score);
    if (t->ignore_merges) return refuse(src, err, "GGUF's scores can't say that whole words come before merges");
    LM_TRY(lm_spm_scores(t, score, &why, err));
    if (why)
        return lm_fail_at(err, LM_UNSUPPORTED, src->path, LM_NO_OFFSET, "tokenizer.json", "GGUF's scores can't say what its merges do: %s",
                          why);
    put_str(o, "tokenizer.ggml.model", "llama");
    LM_TRY(put_tokens(o, t, vocab, err));
    put(o, "tokenizer.ggml.scores", (lm_value){.kind = LM_V_ARRAY, .elem = LM_V_FLOAT, .arr = {score, vocab}, .gguf_type = F32});
    put_id(o, "tokenizer.ggml.unknown_token_id", t->unk);
    LM_TRY(put_ends(o, t));
    /* the two ways that GGUF's readers have, then those that only lemma's key can say */
    static const struct {
        bool prefix;
        const char *scheme;
    } ways[] = {{true, NULL}, {false, NULL}, {true, "first"}, {true, "always"}};
    const uint32_t at = o->n;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        o->n = at;
        put_bool(o, "tokenizer.ggml.add_space_prefix", ways[i].prefix);
        if (ways[i].scheme) put_str(o, "lemma.tokenizer.prepend_scheme", ways[i].scheme);
        lm_tokenizer *back;
        bool same = false;
        LM_TRY(read_back(o, sorted, src, &back, err));
        lm_status s = agree(t, back, &same, err);
        if (s == LM_OK && same) s = same_texts(t, back, &same, err);
        lm_tokenizer_free(back);
        LM_TRY(s);
        if (same) return LM_OK;
    }
    return refuse(src, err, "GGUF can't say how it treats spaces and added tokens");
}

static lm_status convert(out *o, const lm_source *src, const lm_tokenizer *t, uint32_t vocab, lm_error *err) {
    if (t->n > vocab)
        return lm_fail_at(err, LM_FORMAT, src->path, LM_NO_OFFSET, "tokenizer.json", "%u tokens for a vocabulary of %u", t->n, vocab);
    if (t->prefix.n > 1 || t->suffix.n > 1) return refuse(src, err, "GGUF can't say that more than one token is put around a text");
    if (!t->plan.bytes && t->byte_fallback && !t->score) return convert_spm(o, src, t, vocab, err);
    if (!t->plan.bytes || t->byte_fallback || t->score)
        return refuse(src, err, "only byte-level BPE, and BPE with byte fallback, are written to GGUF; this one is of another kind");
    put_str(o, "tokenizer.ggml.model", "gpt2");
    LM_TRY(put_tokens(o, t, vocab, err));
    LM_TRY(put_merges(o, t, err));
    LM_TRY(put_ends(o, t));
    return find_pre(o, src, t, err);
}

lm_status lm_tokenizer_to_gguf(const lm_source *src, lm_arena *a, uint32_t vocab, lm_meta_entry **kv, uint32_t *n, lm_error *err) {
    lm_tokenizer *t = NULL;
    out o;
    LM_TRY(lm_tokenizer_from_source(src, &t, err));
    lm_status s = out_init(&o, a, err);
    if (s == LM_OK) s = convert(&o, src, t, vocab, err);
    lm_tokenizer_free(t);
    if (s == LM_OK) *kv = o.kv, *n = o.n;
    return s;
}
