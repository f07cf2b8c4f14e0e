/* Metadata tables: lookup, sorting, and a JSON object flattened into one. */
#include "format/json.h"
#include "format/parse.h"
#include <stdlib.h>
#include <string.h>

static int entry_cmp(const void *a, const void *b) { return strcmp(((const lm_meta_entry *)a)->key, ((const lm_meta_entry *)b)->key); }

const lm_value *lm_meta_get(const lm_meta *m, const char *key) {
    lm_meta_entry want = {.key = key};
    if (!m->n) return NULL;
    const lm_meta_entry *e = bsearch(&want, m->entry, m->n, sizeof *m->entry, entry_cmp);
    return e ? &e->value : NULL;
}

/* The place of the later of two entries of one key; only on the error path, so a scan of the unsorted keys is fine. */
typedef struct placed {
    const char *key;
    uint64_t at;
} placed;
static int placed_cmp(const void *a, const void *b) {
    const placed *x = a, *y = b;
    int c = strcmp(x->key, y->key);
    return c ? c : (x->at > y->at) - (x->at < y->at);
}

static lm_status duplicates(const lm_meta_entry *e, const uint64_t *at, uint32_t n, const char *file, lm_error *err) {
    placed *q = lm_calloc(n, sizeof *q);
    if (!q) return lm_fail_nomem(err, "metadata keys", (uint64_t)n * sizeof *q);
    for (uint32_t i = 0; i < n; i++) q[i] = (placed){e[i].key, at ? at[i] : LM_NO_OFFSET};
    qsort(q, n, sizeof *q, placed_cmp);
    lm_status st = LM_OK;
    for (uint32_t i = 1; i < n && st == LM_OK; i++)
        if (!strcmp(q[i - 1].key, q[i].key)) st = lm_fail_at(err, LM_FORMAT, file, q[i].at, q[i].key, "duplicate key");
    lm_free(q);
    return st;
}

lm_status lm_meta_finish(lm_meta_entry *e, const uint64_t *at, uint32_t n, const char *file, lm_meta *out, lm_error *err) {
    if (n) {
        LM_TRY(duplicates(e, at, n, file, err));
        qsort(e, n, sizeof *e, entry_cmp);
    }
    *out = (lm_meta){e, n};
    return LM_OK;
}

/* ---- JSON ---- */
typedef struct flat {
    lm_arena *a;
    lm_meta_entry *e;
    uint32_t n;
    const char *file;
    const uint8_t *text;
    uint64_t text_n;
    lm_error *err;
    char path[LM_CONFIG_MAX_PATH + 1];
} flat;

/* Where the top-level key of the current path stands in the text. */
static uint64_t here(flat *f) {
    char top[LM_CONFIG_MAX_PATH + 1];
    memcpy(top, f->path, sizeof top);
    uint64_t at = lm_json_key_offset(f->text, f->text_n, top);
    char *dot = strchr(top, '.');
    if (at || !dot) return at;
    *dot = 0;
    return lm_json_key_offset(f->text, f->text_n, top);
}

#define FLAT_FAIL(f, code, ...) lm_fail_at((f)->err, code, (f)->file, here(f), (f)->path, __VA_ARGS__)

/* The kind that all elements share: INT and REAL together are FLOAT; anything else mixed, null or nested is OTHER. */
static lm_value_kind array_kind(json_t *arr) {
    lm_value_kind kind = LM_V_NULL;
    for (size_t i = 0; i < json_array_size(arr); i++) {
        json_t *x = json_array_get(arr, i);
        lm_value_kind k = json_is_boolean(x)   ? LM_V_BOOL
                          : json_is_integer(x) ? LM_V_INT
                          : json_is_real(x)    ? LM_V_FLOAT
                          : json_is_string(x)  ? LM_V_STRING
                                               : LM_V_OTHER;
        bool both_numbers = (k == LM_V_INT || k == LM_V_FLOAT) && (kind == LM_V_INT || kind == LM_V_FLOAT);
        if (kind == LM_V_NULL)
            kind = k;
        else if (kind != k)
            kind = both_numbers ? LM_V_FLOAT : LM_V_OTHER;
        if (kind == LM_V_OTHER) break;
    }
    return kind == LM_V_NULL ? LM_V_INT : kind;
}

static lm_status strings_value(flat *f, json_t *arr, lm_str *s) {
    size_t n = json_array_size(arr), total = 0;
    for (size_t i = 0; i < n; i++) total += json_string_length(json_array_get(arr, i)) + 1;
    char *blob = lm_arena_alloc(f->a, total);
    if (!blob) return lm_fail_nomem(f->err, "strings", total);
    for (size_t i = 0; i < n; i++) {
        json_t *x = json_array_get(arr, i);
        s[i] = (lm_str){blob, json_string_length(x)};
        memcpy(blob, json_string_value(x), s[i].len);
        blob += s[i].len + 1;
    }
    return LM_OK;
}

static lm_status array_value(flat *f, json_t *arr, lm_value *v) {
    size_t n = json_array_size(arr);
    lm_value_kind kind = array_kind(arr);
    if (kind == LM_V_OTHER) {
        v->kind = LM_V_OTHER;
        return LM_OK;
    }
    size_t width = kind == LM_V_BOOL ? 1 : kind == LM_V_STRING ? sizeof(lm_str) : 8;
    void *data = n ? lm_arena_calloc(f->a, n, width) : NULL;
    if (n && !data) return lm_fail_nomem(f->err, "an array", n * width);
    v->kind = LM_V_ARRAY;
    v->elem = kind;
    v->arr.data = data;
    v->arr.n = n;
    if (kind == LM_V_STRING) return strings_value(f, arr, data);
    for (size_t i = 0; i < n; i++) {
        json_t *x = json_array_get(arr, i);
        if (kind == LM_V_BOOL) ((uint8_t *)data)[i] = json_is_true(x);
        if (kind == LM_V_INT) ((int64_t *)data)[i] = json_integer_value(x);
        if (kind != LM_V_FLOAT) continue;
        double d = json_number_value(x);
        if (json_is_integer(x) && (d >= 0x1p63 || (json_int_t)d != json_integer_value(x)))
            return FLAT_FAIL(f, LM_FORMAT, "element %zu is an integer among floats that no double holds exactly", i);
        ((double *)data)[i] = d;
    }
    return LM_OK;
}

static lm_status value(flat *f, json_t *j, lm_value *v) {
    *v = (lm_value){.kind = LM_V_OTHER, .gguf_type = UINT32_MAX};
    switch (json_typeof(j)) {
    case JSON_NULL: v->kind = LM_V_NULL; break;
    case JSON_TRUE:
    case JSON_FALSE:
        v->kind = LM_V_BOOL;
        v->b = json_is_true(j);
        break;
    case JSON_INTEGER:
        v->kind = LM_V_INT;
        v->i = json_integer_value(j);
        v->u = (uint64_t)v->i;
        break;
    case JSON_REAL:
        v->kind = LM_V_FLOAT;
        v->f = json_real_value(j);
        break;
    case JSON_STRING:
        v->kind = LM_V_STRING;
        v->str.len = json_string_length(j);
        v->str.s = lm_arena_strndup(f->a, json_string_value(j), v->str.len);
        if (!v->str.s) return lm_fail_nomem(f->err, "a string", v->str.len);
        break;
    case JSON_ARRAY: return array_value(f, j, v);
    case JSON_OBJECT: break; /* an empty one */
    }
    return LM_OK;
}

static lm_status flatten(flat *f, json_t *obj, size_t at, unsigned depth) {
    const char *key;
    json_t *j;
    json_object_foreach(obj, key, j) {
        size_t len = strlen(key), dot = at ? 1 : 0;
        if (len > LM_CONFIG_MAX_PATH - at - dot || at + dot > LM_CONFIG_MAX_PATH)
            return FLAT_FAIL(f, LM_FORMAT, "a key's path is longer than %u bytes", LM_CONFIG_MAX_PATH);
        if (dot) f->path[at] = '.';
        memcpy(f->path + at + dot, key, len + 1);
        if (!len) return FLAT_FAIL(f, LM_FORMAT, "an empty key");
        if (json_is_object(j) && json_object_size(j)) {
            if (depth == LM_CONFIG_MAX_DEPTH) return FLAT_FAIL(f, LM_FORMAT, "too deep: over %u levels of objects", LM_CONFIG_MAX_DEPTH);
            LM_TRY(flatten(f, j, at + dot + len, depth + 1));
        } else {
            lm_meta_entry *e = &f->e[f->n++];
            e->key = lm_arena_strndup(f->a, f->path, at + dot + len);
            if (!e->key) return lm_fail_nomem(f->err, "a key", at + dot + len);
            LM_TRY(value(f, j, &e->value));
        }
        f->path[at] = 0;
    }
    return LM_OK;
}

/* Entries that flatten will make, down to its depth limit. */
static uint64_t count_leaves(json_t *obj, unsigned depth) {
    uint64_t n = 0;
    const char *key;
    json_t *j;
    json_object_foreach(obj, key, j) n +=
        json_is_object(j) && json_object_size(j) && depth < LM_CONFIG_MAX_DEPTH ? count_leaves(j, depth + 1) : 1;
    return n;
}

static lm_status flatten_root(flat *f, json_t *root, lm_meta *out) {
    if (!json_is_object(root)) return lm_fail_at(f->err, LM_FORMAT, f->file, 0, NULL, "a JSON object was expected at the top");
    uint64_t n = count_leaves(root, 1);
    if (n > LM_CONFIG_MAX_VALUES) return lm_fail_at(f->err, LM_FORMAT, f->file, 0, NULL, "over %u values", LM_CONFIG_MAX_VALUES);
    if (n && !(f->e = lm_arena_calloc(f->a, n, sizeof *f->e))) return lm_fail_nomem(f->err, "metadata", n * sizeof *f->e);
    LM_TRY(flatten(f, root, 0, 1));
    return lm_meta_finish(f->e, NULL, f->n, f->file, out, f->err);
}

lm_status lm_config_parse(const uint8_t *p, uint64_t n, const char *file, lm_arena *a, lm_meta *out, lm_error *err) {
    if (n > LM_CONFIG_MAX_BYTES)
        return lm_fail_at(err, LM_FORMAT, file, LM_CONFIG_MAX_BYTES, NULL, "a configuration file over %u bytes", LM_CONFIG_MAX_BYTES);
    json_t *root = NULL;
    LM_TRY(lm_json_parse(p, n, 0, file, &root, err));
    flat f = {.a = a, .file = file, .text = p, .text_n = n, .err = err};
    lm_status st = flatten_root(&f, root, out);
    json_decref(root);
    return st;
}
