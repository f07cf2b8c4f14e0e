/* A tokenizer from a GGUF's metadata: byte-level BPE ("gpt2") and SentencePiece with scores ("llama"). */
#include "tokenizer/tok.h"
#include <stdio.h>
#include <string.h>

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE }; /* tokenizer.ggml.token_type */
#define SPACE_MARK "\xe2\x96\x81"                                                        /* U+2581, SentencePiece's space */

static lm_status bad(lm_error *err, lm_status code, const char *key, const char *what) {
    return lm_fail_at(err, code, NULL, LM_NO_OFFSET, key, "%s", what);
}

/* *v: the array at `key`, of the kind wanted and, where n is not UINT64_MAX, of n elements; NULL when absent. */
static lm_status get_array(const lm_source *s, const char *key, lm_value_kind elem, uint64_t n, const lm_value **v, lm_error *err) {
    *v = lm_meta_get(&s->meta, key);
    if (!*v) return LM_OK;
    if ((*v)->kind != LM_V_ARRAY || ((*v)->elem != elem && (*v)->arr.n))
        return bad(err, LM_FORMAT, key, "an array of another type is needed");
    if (n != UINT64_MAX && (*v)->arr.n != n)
        return lm_fail_at(err, LM_FORMAT, NULL, LM_NO_OFFSET, key, "%llu elements for %llu tokens", (unsigned long long)(*v)->arr.n,
                          (unsigned long long)n);
    return LM_OK;
}

static lm_status get_id(const lm_source *s, const char *key, uint32_t n, int32_t *id, lm_error *err) {
    const lm_value *v = lm_meta_get(&s->meta, key);
    *id = -1;
    if (!v) return LM_OK;
    if (v->kind != LM_V_INT) return bad(err, LM_FORMAT, key, "an integer is needed");
    /* −1 is how some writers say "none" */
    if (v->i == -1 || v->u == UINT32_MAX) return LM_OK;
    if (v->i < 0 || v->i >= (int64_t)n)
        return lm_fail_at(err, LM_RANGE, NULL, LM_NO_OFFSET, key, "token id %lld in a vocabulary of %u", (long long)v->i, n);
    *id = (int32_t)v->i;
    return LM_OK;
}

static lm_status get_flag(const lm_source *s, const char *key, bool *b, lm_error *err) {
    const lm_value *v = lm_meta_get(&s->meta, key);
    if (v && v->kind != LM_V_BOOL) return bad(err, LM_FORMAT, key, "a boolean is needed");
    if (v) *b = v->b;
    return LM_OK;
}

/* Control, unknown and user-defined tokens are looked for in the text; the first two are special. A user-defined token of SentencePiece is
 * written with the space mark or with spaces; in the text it has spaces. */
static lm_status add_token(lm_tokenizer *t, uint32_t id, const lm_str *s, int64_t type, bool marks, lm_error *err) {
    uint32_t flags = 0;
    if (type == TYPE_CONTROL || type == TYPE_UNKNOWN)
        flags = LM_TOK_SPECIAL | LM_TOK_ADDED;
    else if (type == TYPE_USER)
        flags = LM_TOK_ADDED;
    else if (type < TYPE_NORMAL || type > TYPE_BYTE)
        return lm_fail_at(err, LM_UNSUPPORTED, NULL, LM_NO_OFFSET, "tokenizer.ggml.token_type", "token %u has the unknown type %lld", id,
                          (long long)type);
    LM_TRY(lm_vocab_set(t, id, s->s, (size_t)s->len, flags, err));
    if (!flags || !s->len) return LM_OK;
    char *text = lm_arena_strndup(t->arena, s->s, (size_t)s->len);
    if (!text) return lm_fail_nomem(err, "an added token", s->len);
    size_t n = (size_t)s->len, k = 0;
    if (marks && type == TYPE_USER) {
        for (size_t i = 0; i < n; k++) {
            bool hit = n - i >= 3 && memcmp(text + i, SPACE_MARK, 3) == 0;
            text[k] = hit ? ' ' : text[i];
            i += hit ? 3 : 1;
        }
        n = k;
    }
    t->added[t->n_added++] = (lm_added){.text = text, .len = (uint32_t)n, .id = (int32_t)id, .special = (flags & LM_TOK_SPECIAL) != 0};
    return LM_OK;
}

static lm_status load_tokens(const lm_source *s, lm_tokenizer *t, bool marks, lm_error *err) {
    const lm_value *tok, *type;
    LM_TRY(get_array(s, "tokenizer.ggml.tokens", LM_V_STRING, UINT64_MAX, &tok, err));
    if (!tok || !tok->arr.n) return bad(err, LM_FORMAT, "tokenizer.ggml.tokens", "the vocabulary is missing");
    if (tok->arr.n > LM_TOK_MAX_IDS)
        return lm_fail_at(err, LM_RANGE, NULL, LM_NO_OFFSET, "tokenizer.ggml.tokens", "%llu tokens; at most %u are supported",
                          (unsigned long long)tok->arr.n, LM_TOK_MAX_IDS);
    uint32_t n = (uint32_t)tok->arr.n, n_added = 0;
    LM_TRY(get_array(s, "tokenizer.ggml.token_type", LM_V_INT, n, &type, err));
    const int64_t *types = type ? type->arr.data : NULL;
    for (uint32_t i = 0; types && i < n; i++) n_added += types[i] == TYPE_CONTROL || types[i] == TYPE_UNKNOWN || types[i] == TYPE_USER;
    LM_TRY(lm_vocab_reserve(t, n, err));
    t->added = lm_arena_calloc(t->arena, n_added ? n_added : 1, sizeof *t->added);
    if (!t->added) return lm_fail_nomem(err, "the added tokens", (uint64_t)n_added * sizeof *t->added);
    const lm_str *text = tok->arr.data;
    for (uint32_t i = 0; i < n; i++) LM_TRY(add_token(t, i, &text[i], types ? types[i] : TYPE_NORMAL, marks, err));
    return lm_vocab_index(t, err);
}

static lm_status load_merges(const lm_source *s, lm_tokenizer *t, lm_error *err) {
    const lm_value *v;
    LM_TRY(get_array(s, "tokenizer.ggml.merges", LM_V_STRING, UINT64_MAX, &v, err));
    if (!v) return bad(err, LM_FORMAT, "tokenizer.ggml.merges", "the merges are missing");
    LM_TRY(lm_merges_reserve(t, v->arr.n, err));
    const lm_str *m = v->arr.data;
    for (uint64_t i = 0; i < v->arr.n; i++) {
        /* the first space that is not the first byte: a token may be a space itself */
        const char *cut = m[i].len > 1 ? memchr(m[i].s + 1, ' ', (size_t)m[i].len - 1) : NULL;
        if (!cut)
            return lm_fail_at(err, LM_FORMAT, NULL, LM_NO_OFFSET, "tokenizer.ggml.merges", "merge %llu is not two tokens and a space",
                              (unsigned long long)i);
        size_t an = (size_t)(cut - m[i].s), bn = (size_t)m[i].len - an - 1;
        lm_status st = lm_merges_add(t, (uint32_t)i, m[i].s, an, cut + 1, bn, err);
        if (st != LM_OK) lm_error_set_field(err, "tokenizer.ggml.merges");
        LM_TRY(st);
    }
    return LM_OK;
}

static lm_status load_bpe(const lm_source *s, lm_tokenizer *t, bool *add_bos, lm_error *err) {
    const lm_value *v = lm_meta_get(&s->meta, "tokenizer.ggml.pre");
    if (v && v->kind != LM_V_STRING) return bad(err, LM_FORMAT, "tokenizer.ggml.pre", "a string is needed");
    const char *pre = v ? v->str.s : "default"; /* files from before the key: what their readers do */
    LM_TRY(load_tokens(s, t, false, err));
    LM_TRY(load_merges(s, t, err));
    LM_TRY(lm_pre_by_name(t, pre, err, add_bos));
    t->plan.bytes = true;
    t->describe = lm_arena_printf(t->arena, "byte-level BPE, %u tokens, pre-tokenizer %s", t->n, pre);
    return LM_OK;
}

/* Where the space before a text goes, which GGUF has no key for: lemma's own says it. */
static lm_status prepend_scheme(const lm_source *s, lm_prepend *how, lm_error *err) {
    static const char key[] = "lemma.tokenizer.prepend_scheme";
    const lm_value *v = lm_meta_get(&s->meta, key);
    if (!v) return LM_OK;
    if (v->kind == LM_V_STRING && strcmp(v->str.s, "first") == 0) return *how = LM_PREPEND_FIRST, LM_OK;
    if (v->kind == LM_V_STRING && strcmp(v->str.s, "always") == 0) return *how = LM_PREPEND_ALWAYS, LM_OK;
    return bad(err, LM_UNSUPPORTED, key, "must be \"first\" or \"always\"");
}

static lm_status load_spm(const lm_source *s, lm_tokenizer *t, bool *add_bos, lm_error *err) {
    bool prefix = true;
    const lm_value *score;
    LM_TRY(get_flag(s, "tokenizer.ggml.add_space_prefix", &prefix, err));
    LM_TRY(load_tokens(s, t, true, err));
    LM_TRY(get_array(s, "tokenizer.ggml.scores", LM_V_FLOAT, t->n, &score, err));
    if (!score) return bad(err, LM_FORMAT, "tokenizer.ggml.scores", "the scores are missing");
    t->score = lm_malloc(t->n * sizeof *t->score);
    if (!t->score) return lm_fail_nomem(err, "the scores", t->n * sizeof *t->score);
    for (uint32_t i = 0; i < t->n; i++) {
        double f = ((const double *)score->arr.data)[i];
        if (f != f)
            return lm_fail_at(err, LM_FORMAT, NULL, LM_NO_OFFSET, "tokenizer.ggml.scores", "token %u has no number as its score", i);
        t->score[i] = (float)f;
    }
    LM_TRY(get_id(s, "tokenizer.ggml.unknown_token_id", t->n, &t->unk, err));
    lm_prepend how = prefix ? LM_PREPEND_SPM : LM_PREPEND_NEVER;
    LM_TRY(prepend_scheme(s, &how, err));
    t->pre[t->n_pre++] = (lm_pre_step){.kind = LM_PRE_METASPACE, .prepend = how, .s = SPACE_MARK, .s_n = 3};
    t->plan.byte_fallback = true;
    t->plan.n_replace = 1;
    t->plan.replace[0].from = SPACE_MARK;
    t->plan.replace[0].from_n = 3;
    t->plan.replace[0].to = " ";
    t->plan.replace[0].to_n = 1;
    t->plan.strip = ' ';
    t->plan.strip_n = prefix ? 1 : 0;
    *add_bos = true;
    t->describe = lm_arena_printf(t->arena, "SentencePiece BPE, %u tokens", t->n);
    return LM_OK;
}

static lm_status load_ends(const lm_source *s, lm_tokenizer *t, bool add_bos, lm_error *err) {
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    bool add_eos = false;
    int32_t eos = -1;
    LM_TRY(get_flag(s, "tokenizer.ggml.add_bos_token", &add_bos, err));
    LM_TRY(get_flag(s, "tokenizer.ggml.add_eos_token", &add_eos, err));
    LM_TRY(get_id(s, "tokenizer.ggml.bos_token_id", t->n, &t->bos, err));
    for (int i = 0; i < 3; i++) {
        int32_t id;
        LM_TRY(get_id(s, ends[i], t->n, &id, err));
        if (i == 0) eos = id;
        LM_TRY(lm_eos_add(t, id, err));
    }
    if (add_bos && t->bos < 0) return bad(err, LM_FORMAT, "tokenizer.ggml.bos_token_id", "missing, and this tokenizer adds one");
    if (add_eos && eos < 0) return bad(err, LM_FORMAT, ends[0], "missing, and add_eos_token is true");
    if ((add_bos && !lm_ids_put(&t->prefix, t->bos)) || (add_eos && !lm_ids_put(&t->suffix, eos)))
        return lm_fail_nomem(err, "the tokenizer", 0);
    return LM_OK;
}

static lm_status load(const lm_source *s, lm_tokenizer *t, const char *model, lm_error *err) {
    bool add_bos = false;
    if (strcmp(model, "gpt2") == 0)
        LM_TRY(load_bpe(s, t, &add_bos, err));
    else if (strcmp(model, "llama") == 0)
        LM_TRY(load_spm(s, t, &add_bos, err));
    else
        return lm_fail_at(err, LM_UNSUPPORTED, NULL, LM_NO_OFFSET, "tokenizer.ggml.model",
                          "the tokenizer model \"%.64s\" is not supported; gpt2 and llama are", model);
    if (!t->describe) return lm_fail_nomem(err, "the tokenizer", 0);
    LM_TRY(lm_vocab_finish(t, err));
    return load_ends(s, t, add_bos, err);
}

lm_status lm_tokenizer_from_gguf(const lm_source *s, lm_tokenizer **out, lm_error *err) {
    const lm_value *v = lm_meta_get(&s->meta, "tokenizer.ggml.model");
    if (v && v->kind != LM_V_STRING) return bad(err, LM_FORMAT, "tokenizer.ggml.model", "a string is needed");
    if (!v || strcmp(v->str.s, "none") == 0 || strcmp(v->str.s, "no_vocab") == 0)
        return lm_fail_at(err, LM_MISSING, NULL, LM_NO_OFFSET, "tokenizer.ggml.model",
                          "this file carries no tokenizer: give token ids instead of text");
    lm_tokenizer *t = lm_tokenizer_new();
    if (!t) return lm_fail_nomem(err, "the tokenizer", sizeof *t);
    lm_status st = load(s, t, v->str.s, err);
    if (st != LM_OK) {
        lm_tokenizer_free(t);
        return st;
    }
    *out = t;
    return LM_OK;
}
