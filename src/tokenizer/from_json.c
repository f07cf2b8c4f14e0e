/* A tokenizer from a folder's tokenizer.json, with what tokenizer_config.json, generation_config.json and config.json add to it. */
#include "tokenizer/json_read.h"
#include <string.h>

lm_status lm_json_bad(lm_json_reader *r, lm_status code, const char *where, const char *what) {
    return lm_fail_at(r->err, code, NULL, LM_NO_OFFSET, where, "%s", what);
}

lm_status lm_json_flag(lm_json_reader *r, const json_t *o, const char *where, const char *key, bool absent, bool *b) {
    const json_t *v = json_object_get(o, key);
    *b = absent;
    if (!v || json_is_null(v)) return LM_OK;
    if (!json_is_boolean(v)) return lm_fail_at(r->err, LM_FORMAT, NULL, LM_NO_OFFSET, where, "%s: a boolean is needed", key);
    *b = json_is_true(v);
    return LM_OK;
}

lm_status lm_json_text(lm_json_reader *r, const json_t *o, const char *where, const char *key, const char **s, size_t *n) {
    const json_t *v = json_object_get(o, key);
    if (!json_is_string(v)) return lm_fail_at(r->err, LM_FORMAT, NULL, LM_NO_OFFSET, where, "%s: a string is needed", key);
    *n = json_string_length(v);
    *s = lm_arena_strndup(r->t->arena, json_string_value(v), *n);
    return *s ? LM_OK : lm_fail_nomem(r->err, "the tokenizer", *n);
}

lm_status lm_json_id(lm_json_reader *r, const json_t *v, const char *where, uint32_t *id) {
    if (!json_is_integer(v)) return lm_json_bad(r, LM_FORMAT, where, "a token id is no integer");
    json_int_t i = json_integer_value(v);
    if (i < 0 || i >= (json_int_t)LM_TOK_MAX_IDS)
        return lm_fail_at(r->err, LM_RANGE, NULL, LM_NO_OFFSET, where, "the token id %lld is out of range", (long long)i);
    *id = (uint32_t)i;
    return LM_OK;
}

/* ---- the vocabulary, the added tokens among it ---- */
static lm_status vocab_size(lm_json_reader *r, json_t *vocab, const json_t *added, uint32_t *n) {
    const char *key;
    json_t *v;
    uint32_t id = 0;
    size_t i;
    *n = 0;
    json_object_foreach(vocab, key, v) {
        LM_TRY(lm_json_id(r, v, "model.vocab", &id));
        if (id >= *n) *n = id + 1;
    }
    json_array_foreach(added, i, v) {
        LM_TRY(lm_json_id(r, json_object_get(v, "id"), "added_tokens", &id));
        if (id >= *n) *n = id + 1;
    }
    return LM_OK;
}

static lm_status add_added(lm_json_reader *r, const json_t *v) {
    static const char where[] = "added_tokens";
    lm_tokenizer *t = r->t;
    lm_added *a = &t->added[t->n_added];
    uint32_t id = 0;
    size_t len;
    LM_TRY(lm_json_text(r, v, where, "content", &a->text, &len));
    LM_TRY(lm_json_id(r, json_object_get(v, "id"), where, &id));
    LM_TRY(lm_json_flag(r, v, where, "special", false, &a->special));
    LM_TRY(lm_json_flag(r, v, where, "lstrip", false, &a->lstrip));
    LM_TRY(lm_json_flag(r, v, where, "rstrip", false, &a->rstrip));
    LM_TRY(lm_json_flag(r, v, where, "single_word", false, &a->single_word));
    LM_TRY(lm_json_flag(r, v, where, "normalized", !a->special, &a->normalized));
    if (len > 1u << 20) return lm_json_bad(r, LM_RANGE, where, "an added token of more than a MiB");
    a->len = (uint32_t)len;
    a->id = (int32_t)id;
    t->n_added++;
    lm_tok_entry *e = &t->entry[id];
    if (!(e->flags & LM_TOK_PRESENT))
        LM_TRY(lm_vocab_set(t, id, a->text, len, 0, r->err));
    else if (e->text_len != len || memcmp(t->blob + e->text_off, a->text, len) != 0)
        return lm_fail_at(r->err, LM_FORMAT, NULL, LM_NO_OFFSET, where, "id %u has one text here and another in the vocabulary", id);
    e->flags |= LM_TOK_ADDED | (a->special ? LM_TOK_SPECIAL : 0);
    return LM_OK;
}

static lm_status read_vocab(lm_json_reader *r, json_t *vocab, const json_t *added) {
    lm_tokenizer *t = r->t;
    const char *key;
    json_t *v;
    uint32_t n, id = 0;
    size_t i, n_added = json_array_size(added);
    if (!json_is_object(vocab)) return lm_json_bad(r, LM_FORMAT, "model.vocab", "an object is needed");
    if (added && !json_is_null(added) && !json_is_array(added)) return lm_json_bad(r, LM_FORMAT, "added_tokens", "an array is needed");
    LM_TRY(vocab_size(r, vocab, added, &n));
    LM_TRY(lm_vocab_reserve(t, n, r->err));
    t->added = lm_arena_calloc(t->arena, n_added ? n_added : 1, sizeof *t->added);
    if (!t->added) return lm_fail_nomem(r->err, "the added tokens", n_added * sizeof *t->added);
    json_object_foreach(vocab, key, v) {
        LM_TRY(lm_json_id(r, v, "model.vocab", &id));
        lm_status st = lm_vocab_set(t, id, key, strlen(key), 0, r->err);
        if (st != LM_OK) lm_error_set_field(r->err, "model.vocab");
        LM_TRY(st);
    }
    json_array_foreach(added, i, v) LM_TRY(add_added(r, v));
    return lm_vocab_index(t, r->err);
}

/* ---- the model ---- */
static lm_status read_merge(lm_json_reader *r, const json_t *m, uint32_t rank) {
    const char *a, *b;
    size_t an, bn;
    if (json_is_string(m)) { /* "a b" */
        a = json_string_value(m);
        size_t n = json_string_length(m);
        const char *cut = n > 1 ? memchr(a + 1, ' ', n - 1) : NULL;
        if (!cut) return lm_fail_at(r->err, LM_FORMAT, NULL, LM_NO_OFFSET, "model.merges", "merge %u is not two tokens and a space", rank);
        an = (size_t)(cut - a);
        b = cut + 1;
        bn = n - an - 1;
    } else { /* ["a", "b"] */
        const json_t *ja = json_array_get(m, 0), *jb = json_array_get(m, 1);
        if (json_array_size(m) != 2 || !json_is_string(ja) || !json_is_string(jb))
            return lm_fail_at(r->err, LM_FORMAT, NULL, LM_NO_OFFSET, "model.merges", "merge %u is neither \"a b\" nor [\"a\", \"b\"]",
                              rank);
        a = json_string_value(ja);
        an = json_string_length(ja);
        b = json_string_value(jb);
        bn = json_string_length(jb);
    }
    lm_status st = lm_merges_add(r->t, rank, a, an, b, bn, r->err);
    if (st != LM_OK) lm_error_set_field(r->err, "model.merges");
    return st;
}

static bool empty_text(const json_t *v) { return !v || json_is_null(v) || (json_is_string(v) && json_string_length(v) == 0); }

static lm_status read_model(lm_json_reader *r, const json_t *model, const json_t *added) {
    lm_tokenizer *t = r->t;
    const char *type = json_string_value(json_object_get(model, "type"));
    const json_t *merges = json_object_get(model, "merges"), *m;
    if (!type && merges) type = "BPE"; /* old files leave it out */
    if (!type) return lm_json_bad(r, LM_FORMAT, "model.type", "missing");
    if (strcmp(type, "BPE") != 0)
        return lm_fail_at(r->err, LM_UNSUPPORTED, NULL, LM_NO_OFFSET, "model.type",
                          "the tokenizer model \"%.64s\" is not supported; BPE is", type);
    if (!empty_text(json_object_get(model, "continuing_subword_prefix")) || !empty_text(json_object_get(model, "end_of_word_suffix")))
        return lm_json_bad(r, LM_UNSUPPORTED, "model", "subword prefixes and suffixes are not supported");
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0)
        return lm_json_bad(r, LM_UNSUPPORTED, "model.dropout", "dropout would make encoding random");
    LM_TRY(lm_json_flag(r, model, "model", "byte_fallback", false, &t->byte_fallback));
    LM_TRY(lm_json_flag(r, model, "model", "fuse_unk", false, &t->fuse_unk));
    LM_TRY(lm_json_flag(r, model, "model", "ignore_merges", false, &t->ignore_merges));
    LM_TRY(read_vocab(r, json_object_get(model, "vocab"), added));
    const json_t *unk = json_object_get(model, "unk_token");
    if (json_is_string(unk)) {
        t->unk = lm_vocab_find(t, json_string_value(unk), json_string_length(unk));
        if (t->unk < 0) return lm_json_bad(r, LM_FORMAT, "model.unk_token", "is no token of the vocabulary");
    }
    if (!json_is_array(merges)) return lm_json_bad(r, LM_FORMAT, "model.merges", "an array is needed");
    LM_TRY(lm_merges_reserve(t, json_array_size(merges), r->err));
    size_t i;
    json_array_foreach(merges, i, m) LM_TRY(read_merge(r, m, (uint32_t)i));
    return LM_OK;
}

static lm_status read_tokenizer(lm_json_reader *r, const json_t *root) {
    lm_tokenizer *t = r->t;
    if (!json_is_object(root) || !json_is_object(json_object_get(root, "model")))
        return lm_json_bad(r, LM_FORMAT, "model", "missing: this is no tokenizer.json");
    LM_TRY(read_model(r, json_object_get(root, "model"), json_object_get(root, "added_tokens")));
    LM_TRY(lm_json_normalizer(r, json_object_get(root, "normalizer")));
    LM_TRY(lm_json_pre_tokenizer(r, json_object_get(root, "pre_tokenizer")));
    LM_TRY(lm_json_post_processor(r, json_object_get(root, "post_processor")));
    LM_TRY(lm_json_decoder(r, json_object_get(root, "decoder")));
    LM_TRY(lm_vocab_finish(t, r->err));
    bool bytes = t->n_pre && t->pre[t->n_pre - 1].kind == LM_PRE_BYTES;
    t->describe = lm_arena_printf(t->arena, "%s, %u tokens, pre-tokenizer from tokenizer.json", bytes ? "byte-level BPE" : "BPE", t->n);
    return t->describe ? LM_OK : lm_fail_nomem(r->err, "the tokenizer", 0);
}

static lm_status parse_file(const char *path, json_t **root, lm_error *err) {
    lm_map m;
    LM_TRY(lm_map_open(path, &m, err));
    lm_status st = lm_json_parse(m.data, m.size, 0, path, root, err);
    lm_map_close(&m);
    return st;
}

/* ---- tokenizer_config.json: the names of BOS and EOS ---- */
/* Its model_max_length is often 10^30, so integers are read as doubles here. */
static lm_status parse_config(const char *path, json_t **root, lm_error *err) {
    lm_map m;
    json_error_t e;
    LM_TRY(lm_map_open(path, &m, err));
    *root = json_loadb((const char *)m.data, m.size, JSON_DECODE_INT_AS_REAL | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    lm_map_close(&m);
    return *root ? LM_OK : lm_fail_at(err, LM_FORMAT, path, e.position > 0 ? (uint64_t)e.position : 0, NULL, "%s", e.text);
}

static int32_t named_token(const lm_tokenizer *t, const json_t *config, const char *key) {
    const json_t *v = json_object_get(config, key);
    if (json_is_object(v)) v = json_object_get(v, "content");
    return json_is_string(v) ? lm_vocab_find(t, json_string_value(v), json_string_length(v)) : -1;
}

static lm_status read_config(const char *path, lm_tokenizer *t, int32_t *eos, lm_error *err) {
    const char *slash = strrchr(path, '/');
    char *dir = lm_strndup(path, slash ? (size_t)(slash - path) : 0);
    char *name = dir ? (slash ? lm_path_join(dir, "tokenizer_config.json") : lm_strdup("tokenizer_config.json")) : NULL;
    lm_status st = name ? LM_OK : lm_fail_nomem(err, "a path", 0);
    json_t *config = NULL;
    if (st == LM_OK && lm_is_file(name)) st = parse_config(name, &config, err);
    if (st == LM_OK) {
        t->bos = named_token(t, config, "bos_token");
        *eos = named_token(t, config, "eos_token");
    }
    json_decref(config);
    lm_free(name);
    lm_free(dir);
    return st;
}

static lm_status from_json(const char *path, lm_tokenizer **out, int32_t *eos, lm_error *err) {
    json_t *root = NULL;
    LM_TRY(parse_file(path, &root, err));
    lm_tokenizer *t = lm_tokenizer_new();
    lm_json_reader r = {t, err};
    lm_status st = t ? read_tokenizer(&r, root) : lm_fail_nomem(err, "the tokenizer", 0);
    json_decref(root);
    if (st != LM_OK) lm_error_set_file(err, path);
    if (st == LM_OK) st = read_config(path, t, eos, err);
    if (st != LM_OK) {
        lm_tokenizer_free(t);
        return st;
    }
    *out = t;
    return LM_OK;
}

lm_status lm_tokenizer_from_json(const char *path, lm_tokenizer **out, lm_error *err) {
    int32_t eos = -1;
    lm_tokenizer *t;
    LM_TRY(from_json(path, &t, &eos, err));
    lm_status st = lm_eos_add(t, eos, err);
    if (st == LM_OK)
        *out = t;
    else
        lm_tokenizer_free(t);
    return st;
}

/* ---- a model's folder ---- */
static lm_status eos_from_meta(lm_tokenizer *t, const lm_meta *m, const char *key, lm_error *err) {
    const lm_value *v = lm_meta_get(m, key);
    if (v && v->kind == LM_V_INT) return lm_eos_add(t, v->i, err);
    if (v && v->kind == LM_V_ARRAY && v->elem == LM_V_INT)
        for (uint64_t i = 0; i < v->arr.n; i++) LM_TRY(lm_eos_add(t, ((const int64_t *)v->arr.data)[i], err));
    return LM_OK;
}

/* generation_config.json decides where it speaks; without it every end that the other files name ends a reply. */
static lm_status folder_ends(lm_tokenizer *t, const lm_source *s, int32_t eos, lm_error *err) {
    static const char *const keys[] = {"eos_token_id", "text_config.eos_token_id"};
    LM_TRY(eos_from_meta(t, &s->generation, "eos_token_id", err));
    if (!t->eos.n) {
        for (int i = 0; i < 2; i++) LM_TRY(eos_from_meta(t, &s->meta, keys[i], err));
        LM_TRY(lm_eos_add(t, eos, err));
    }
    const lm_value *bos = lm_meta_get(&s->meta, "bos_token_id");
    if (t->bos < 0 && bos && bos->kind == LM_V_INT && bos->i >= 0 && bos->i < (int64_t)t->n) t->bos = (int32_t)bos->i;
    return LM_OK;
}

static lm_status no_tokenizer(const lm_source *s, lm_error *err) {
    static const char *const other[] = {"tokenizer.model", "vocab.json", "vocab.txt", "tiktoken.model"};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        char *p = lm_path_join(s->path, other[i]);
        if (!p) return lm_fail_nomem(err, "a path", 0);
        bool there = lm_is_file(p);
        lm_free(p);
        if (there)
            return lm_fail_at(err, LM_UNSUPPORTED, s->path, LM_NO_OFFSET, other[i],
                              "this tokenizer is not supported as it is; save it as tokenizer.json (transformers: "
                              "AutoTokenizer.from_pretrained(…).save_pretrained(…))");
    }
    return lm_fail_at(err, LM_MISSING, s->path, LM_NO_OFFSET, "tokenizer.json",
                      "this folder carries no tokenizer: add its tokenizer.json, or give token ids instead of text");
}

static lm_status from_folder(const lm_source *s, lm_tokenizer **out, lm_error *err) {
    char *path = lm_path_join(s->path, "tokenizer.json");
    if (!path) return lm_fail_nomem(err, "a path", 0);
    int32_t eos = -1;
    lm_tokenizer *t = NULL;
    lm_status st = lm_is_file(path) ? from_json(path, &t, &eos, err) : no_tokenizer(s, err);
    lm_free(path);
    if (st == LM_OK) st = folder_ends(t, s, eos, err);
    if (st == LM_OK)
        *out = t;
    else
        lm_tokenizer_free(t);
    return st;
}

lm_status lm_tokenizer_from_source(const lm_source *s, lm_tokenizer **out, lm_error *err) {
    if (s->kind != LM_SOURCE_GGUF) return from_folder(s, out, err);
    lm_status st = lm_tokenizer_from_gguf(s, out, err);
    if (st != LM_OK) lm_error_set_file(err, s->path);
    return st;
}
