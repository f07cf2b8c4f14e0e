/* safetensors: u64 header length, a JSON header {"NAME": {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {string:
 * string}}, then the data, without holes. Source: the safetensors format description. */
#include "format/json.h"
#include "format/parse.h"
#include <inttypes.h>
#include <string.h>

typedef struct header {
    const uint8_t *p; /* the whole file */
    uint64_t n, json_n, data, data_n;
    const char *file, *name; /* name: of the tensor at hand */
    lm_arena *arena;
    lm_error *err;
} header;

static uint64_t at_key(const header *h, const char *key) { return 8 + lm_json_key_offset(h->p + 8, h->json_n, key); }

#define BAD(h, ...) lm_fail_at((h)->err, LM_FORMAT, (h)->file, at_key(h, (h)->name), (h)->name, __VA_ARGS__)

static lm_status get_dtype(header *h, json_t *entry, lm_tensor *t) {
    static const char *const foreign[] = {"U16", "U32", "U64", "F8_E8M0", "F4", "F6_E2M3", "F6_E3M2", "C64", "F8_E4M3FNUZ", "F8_E5M2FNUZ"};
    const char *s = json_string_value(json_object_get(entry, "dtype"));
    if (!s) return BAD(h, "dtype must be a string");
    t->type = lm_dtype_by_st(s);
    if (t->type) return LM_OK;
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (!strcmp(s, foreign[i]))
            return lm_fail_at(h->err, LM_UNSUPPORTED, h->file, at_key(h, h->name), h->name, "dtype %s is not supported", s);
    return BAD(h, "dtype \"%.40s\" is unknown", s);
}

static lm_status get_shape(header *h, json_t *entry, lm_tensor *t) {
    json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape)) return BAD(h, "shape must be an array");
    size_t rank = json_array_size(shape);
    if (rank > LM_MAX_RANK) return BAD(h, "a shape of %zu dimensions: at most %d are supported", rank, LM_MAX_RANK);
    t->rank = (uint32_t)rank;
    for (size_t d = 0; d < rank; d++) {
        json_t *x = json_array_get(shape, d);
        if (!json_is_integer(x)) return BAD(h, "dimension %zu of shape must be an integer", d);
        json_int_t v = json_integer_value(x);
        if (v == 0) return BAD(h, "zero dimension: dimension %zu of shape is 0", d);
        if (v < 0) return BAD(h, "dimension %zu of shape is negative", d);
        t->dim[d] = (uint64_t)v;
    }
    return LM_OK;
}

static lm_status get_place(header *h, json_t *entry, lm_tensor *t) {
    json_t *o = json_object_get(entry, "data_offsets");
    if (!json_is_array(o) || json_array_size(o) != 2) return BAD(h, "data_offsets must be an array of two integers");
    uint64_t at[2];
    for (size_t i = 0; i < 2; i++) {
        json_t *x = json_array_get(o, i);
        if (!json_is_integer(x) || json_integer_value(x) < 0) return BAD(h, "data_offsets must be two non-negative integers");
        at[i] = (uint64_t)json_integer_value(x);
    }
    if (at[0] > at[1]) return BAD(h, "data_offsets [%" PRIu64 ", %" PRIu64 "] are inverted", at[0], at[1]);
    if (at[1] > h->data_n)
        return BAD(h, "data_offsets [%" PRIu64 ", %" PRIu64 "] end past the file's %" PRIu64
                      " bytes of data: truncated or damaged: download it again", at[0], at[1], h->data_n);
    t->offset = h->data + at[0];
    t->data = h->p + t->offset;
    t->bytes = at[1] - at[0];
    return LM_OK;
}

static lm_status get_tensor(header *h, const char *name, json_t *entry, lm_tensor_rec *r) {
    static const char *const fields[] = {"dtype", "shape", "data_offsets"};
    char shape[128];
    lm_tensor *t = &r->t;
    h->name = name;
    if (!*name) return BAD(h, "a tensor without a name");
    if (!json_is_object(entry)) return BAD(h, "a tensor's entry must be an object");
    for (size_t i = 0; i < 3; i++)
        if (!json_object_get(entry, fields[i])) return BAD(h, "%s is missing", fields[i]);
    if (json_object_size(entry) != 3) return BAD(h, "an unknown field beside dtype, shape and data_offsets");
    r->at = 8; /* its place is looked up when an error needs it */
    LM_TRY(get_dtype(h, entry, t));
    LM_TRY(get_shape(h, entry, t));
    LM_TRY(get_place(h, entry, t));
    uint64_t want;
    lm_shape_text(t->rank, t->dim, shape, sizeof shape);
    if (!lm_shape_bytes(t->type, t->rank, t->dim, &want)) return BAD(h, "the shape %s overflows 64 bits", shape);
    if (want != t->bytes)
        return BAD(h, "%s of shape %s takes %" PRIu64 " bytes, but data_offsets give %" PRIu64, t->type->name, shape, want, t->bytes);
    t->name = lm_arena_strndup(h->arena, name, strlen(name));
    return t->name ? LM_OK : lm_fail_nomem(h->err, "a tensor's name", strlen(name));
}

static lm_status get_metadata(header *h, json_t *obj, lm_meta *out) {
    h->name = "__metadata__";
    if (!json_is_object(obj)) return BAD(h, "must be an object");
    size_t n = json_object_size(obj), i = 0;
    if (n > LM_MAX_ENTRIES) return BAD(h, "over %u keys", LM_MAX_ENTRIES);
    lm_meta_entry *e = lm_arena_calloc(h->arena, n + 1, sizeof *e);
    if (!e) return lm_fail_nomem(h->err, "metadata", n * sizeof *e);
    const char *key;
    json_t *x;
    json_object_foreach(obj, key, x) {
        if (!json_is_string(x)) return BAD(h, "the value of \"%.80s\" must be a string", key);
        size_t len = json_string_length(x);
        lm_value *v = &e[i].value;
        *v = (lm_value){.kind = LM_V_STRING, .gguf_type = UINT32_MAX};
        e[i].key = lm_arena_strndup(h->arena, key, strlen(key));
        v->str.s = lm_arena_strndup(h->arena, json_string_value(x), len);
        v->str.len = len;
        if (!e[i].key || !v->str.s) return lm_fail_nomem(h->err, "metadata", len);
        i++;
    }
    return lm_meta_finish(e, NULL, (uint32_t)n, h->file, out, h->err);
}

/* The tensors cover the data section from its first byte to its last, each byte once. */
static lm_status check_cover(header *h, lm_tensor_rec *r, size_t n) {
    uint64_t end = h->data;
    lm_tensors_by_place(r, n);
    for (size_t i = 0; i < n; i++) {
        const lm_tensor *t = &r[i].t;
        h->name = t->name;
        if (t->offset > end) return BAD(h, "a hole: bytes %" PRIu64 " to %" PRIu64 " before its data belong to no tensor", end, t->offset);
        if (t->offset < end) return BAD(h, "its data at byte %" PRIu64 " overlaps that of %.100s", t->offset, r[i - 1].t.name);
        end = t->offset + t->bytes;
    }
    if (end == h->n) return LM_OK;
    return lm_fail_at(h->err, LM_FORMAT, h->file, end, "data", "%" PRIu64 " trailing bytes belong to no tensor", h->n - end);
}

static lm_status get_all(header *h, json_t *root, lm_tensor_rec *r, lm_parsed *out) {
    size_t n = 0;
    const char *name;
    json_t *entry;
    json_object_foreach(root, name, entry) {
        if (!strcmp(name, "__metadata__"))
            LM_TRY(get_metadata(h, entry, &out->meta));
        else
            LM_TRY(get_tensor(h, name, entry, &r[n++]));
    }
    LM_TRY(check_cover(h, r, n));
    return lm_tensors_finish(r, (uint32_t)n, h->file, h->arena, out, h->err);
}

/* The header's length, and what follows from it. */
static lm_status get_length(header *h) {
    uint64_t len = 0;
    if (h->n < 8)
        return lm_fail_at(h->err, LM_FORMAT, h->file, 0, "header length",
                          "a file of %" PRIu64 " bytes is no safetensors file: it looks like %s", h->n, lm_file_looks_like(h->p, h->n));
    for (unsigned i = 0; i < 8; i++) len |= (uint64_t)h->p[i] << (8 * i);
    if (len > LM_ST_MAX_HEADER || len > h->n - 8)
        return lm_fail_at(h->err, LM_FORMAT, h->file, 0, "header length",
                          "%" PRIu64 " bytes: the file has %" PRIu64
                          " after it and %u are allowed (truncated, or not a safetensors file: it looks like %s)",
                          len, h->n - 8, LM_ST_MAX_HEADER, lm_file_looks_like(h->p, h->n));
    if (!len || h->p[8] != '{') return lm_fail_at(h->err, LM_FORMAT, h->file, 8, "header", "must begin with '{'");
    h->json_n = len;
    h->data = 8 + len;
    h->data_n = h->n - h->data;
    return LM_OK;
}

lm_status lm_safetensors_parse(const uint8_t *p, uint64_t n, const char *file, lm_arena *a, lm_parsed *out, lm_error *err) {
    header h = {.p = p, .n = n, .file = file, .arena = a, .err = err};
    lm_parsed got = {0};
    json_t *root = NULL;
    LM_TRY(get_length(&h));
    LM_TRY(lm_json_parse(p + 8, h.json_n, 8, file, &root, err));
    size_t count = json_object_size(root); /* an object: it begins with '{' */
    lm_tensor_rec *r = count <= LM_MAX_ENTRIES ? lm_calloc(count + 1, sizeof *r) : NULL;
    lm_status st = r                         ? get_all(&h, root, r, &got)
                   : count <= LM_MAX_ENTRIES ? lm_fail_nomem(err, "tensor records", count * sizeof *r)
                                             : lm_fail_at(err, LM_FORMAT, file, 8, "header", "over %u tensors", LM_MAX_ENTRIES);
    lm_free(r);
    json_decref(root);
    if (st == LM_OK) *out = got;
    return st;
}
