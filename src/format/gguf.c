/* GGUF, versions 2 and 3, little-endian. Source: the GGUF specification (ggml's docs/gguf.md).
 *
 *   "GGUF" u32 version, u64 tensors, u64 keys; then per key: string name, u32 type, value; per tensor: string name, u32 rank, u64 dims
 *   (innermost first), u32 type, u64 offset from the data section, which starts at the next multiple of general.alignment.
 *   A string is a u64 length and its bytes; an array is u32 element type, u64 length, elements.
 */
#include "base/utf8.h"
#include "format/parse.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_KEY 65535u /* the specification's limits */
#define MAX_NAME 63u
#define MAX_ALIGNMENT 1048576u
#define MIN_KEY_BYTES 14u    /* length, one byte of key, type, one byte of value */
#define MIN_TENSOR_BYTES 33u /* length, one byte of name, rank, one dimension, type, offset */

enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64, N_TYPES };
static const uint8_t width[N_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

typedef struct cursor {
    const uint8_t *p;
    uint64_t n, at;
    const char *file, *field;
    lm_arena *arena;
    lm_error *err;
} cursor;

#define BAD(c, where, ...) lm_fail_at((c)->err, LM_FORMAT, (c)->file, where, (c)->field, __VA_ARGS__)

static lm_status need(cursor *c, uint64_t bytes, const char *what) {
    if (bytes <= c->n - c->at) return LM_OK;
    return BAD(c, c->at, "truncated: %s needs %" PRIu64 " bytes and the file ends after %" PRIu64, what, bytes, c->n - c->at);
}

static uint64_t little(const uint8_t *p, unsigned bytes) {
    uint64_t v = 0;
    for (unsigned i = 0; i < bytes; i++) v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static lm_status get_u32(cursor *c, const char *what, uint32_t *out) {
    LM_TRY(need(c, 4, what));
    *out = (uint32_t)little(c->p + c->at, 4);
    c->at += 4;
    return LM_OK;
}

static lm_status get_u64(cursor *c, const char *what, uint64_t *out) {
    LM_TRY(need(c, 8, what));
    *out = little(c->p + c->at, 8);
    c->at += 8;
    return LM_OK;
}

/* A string in place: inside the file and UTF-8. */
static lm_status get_string(cursor *c, const char *what, lm_str *out) {
    uint64_t at = c->at, len;
    LM_TRY(get_u64(c, what, &len));
    if (len > c->n - c->at) return BAD(c, at, "%s of %" PRIu64 " bytes: the file ends after %" PRIu64, what, len, c->n - c->at);
    if (!lm_utf8_valid(c->p + c->at, len)) return BAD(c, c->at, "%s is not valid UTF-8", what);
    *out = (lm_str){(const char *)c->p + c->at, len};
    c->at += len;
    return LM_OK;
}

/* A name (of a key or tensor): a string of 1…max bytes without NUL, copied, so that it is NUL-terminated. */
static lm_status get_name(cursor *c, const char *what, uint64_t max, const char **out) {
    uint64_t at = c->at;
    lm_str s;
    LM_TRY(get_string(c, what, &s));
    if (!s.len) return BAD(c, at, "%s is empty", what);
    if (s.len > max) return BAD(c, at, "%s of %" PRIu64 " bytes: at most %" PRIu64 " are allowed", what, s.len, max);
    if (memchr(s.s, 0, s.len)) return BAD(c, at, "%s contains a NUL byte", what);
    *out = lm_arena_strndup(c->arena, s.s, s.len);
    return *out ? LM_OK : lm_fail_nomem(c->err, what, s.len);
}

/* ---- metadata values ---- */
static int64_t as_int(uint32_t type, uint64_t raw) {
    switch (type) {
    case I8: return (int8_t)raw;
    case I16: return (int16_t)raw;
    case I32: return (int32_t)raw;
    default: return (int64_t)raw;
    }
}

static double as_float(uint32_t type, uint64_t raw) {
    if (type == F32) {
        uint32_t u = (uint32_t)raw;
        float f;
        memcpy(&f, &u, 4);
        return f;
    }
    double d;
    memcpy(&d, &raw, 8);
    return d;
}

static lm_value_kind kind_of(uint32_t type) {
    switch (type) {
    case F32:
    case F64: return LM_V_FLOAT;
    case BOOL: return LM_V_BOOL;
    case STRING: return LM_V_STRING;
    case ARRAY: return LM_V_ARRAY;
    default: return LM_V_INT;
    }
}

static lm_status check_type(cursor *c, uint32_t type, uint64_t at) {
    if (type < N_TYPES) return LM_OK;
    return BAD(c, at, "value type %u is unknown (GGUF has 0 to %d)", type, N_TYPES - 1);
}

static lm_status scalar_value(cursor *c, uint32_t type, lm_value *v) {
    if (type == STRING) {
        lm_str s;
        LM_TRY(get_string(c, "the value", &s));
        v->str.s = lm_arena_strndup(c->arena, s.s, s.len);
        v->str.len = s.len;
        return v->str.s ? LM_OK : lm_fail_nomem(c->err, "a string", s.len);
    }
    LM_TRY(need(c, width[type], "the value"));
    uint64_t raw = little(c->p + c->at, width[type]);
    if (type == BOOL && raw > 1) return BAD(c, c->at, "a bool must be 0 or 1, not %" PRIu64, raw);
    c->at += width[type];
    if (v->kind == LM_V_BOOL) v->b = raw == 1;
    if (v->kind == LM_V_FLOAT) v->f = as_float(type, raw);
    if (v->kind == LM_V_INT) {
        v->i = type == U64 && raw > INT64_MAX ? INT64_MAX : as_int(type, raw); /* beyond int64: v->u tells */
        v->u = type == U64 ? raw : (uint64_t)v->i;
    }
    return LM_OK;
}

static lm_status number_array(cursor *c, uint32_t type, void *data, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        uint64_t raw = little(c->p + c->at, width[type]);
        if (type == BOOL) {
            if (raw > 1) return BAD(c, c->at, "element %" PRIu64 ": a bool must be 0 or 1, not %" PRIu64, i, raw);
            ((uint8_t *)data)[i] = (uint8_t)raw;
        } else if (kind_of(type) == LM_V_FLOAT) {
            ((double *)data)[i] = as_float(type, raw);
        } else {
            if (type == U64 && raw > INT64_MAX) return BAD(c, c->at, "element %" PRIu64 " is over 2^63-1", i);
            ((int64_t *)data)[i] = as_int(type, raw);
        }
        c->at += width[type];
    }
    return LM_OK;
}

/* Two passes, so that one block holds all strings: a vocabulary has a quarter of a million. */
static lm_status string_array(cursor *c, lm_str *out, uint64_t n) {
    uint64_t start = c->at, total = 0;
    for (uint64_t i = 0; i < n; i++) {
        lm_str s;
        LM_TRY(get_string(c, "a string of the array", &s));
        total += s.len + 1;
    }
    char *blob = lm_arena_alloc(c->arena, total);
    if (!blob) return lm_fail_nomem(c->err, "strings", total);
    c->at = start;
    for (uint64_t i = 0; i < n; i++) {
        lm_str s;
        LM_TRY(get_string(c, "a string of the array", &s));
        out[i] = (lm_str){blob, s.len};
        memcpy(blob, s.s, s.len);
        blob += s.len + 1;
    }
    return LM_OK;
}

static lm_status array_value(cursor *c, lm_value *v) {
    uint64_t at = c->at, n;
    uint32_t type;
    LM_TRY(get_u32(c, "the array's element type", &type));
    LM_TRY(check_type(c, type, at));
    if (type == ARRAY) return BAD(c, at, "an array of arrays: nested arrays are not supported");
    at = c->at;
    LM_TRY(get_u64(c, "the array's length", &n));
    uint64_t least = type == STRING ? 8 : width[type];
    if (n > (c->n - c->at) / least)
        return BAD(c, at, "an array of %" PRIu64 " elements: the file ends after %" PRIu64 " bytes", n, c->n - c->at);
    v->elem = kind_of(type);
    v->gguf_type = type;
    size_t size = v->elem == LM_V_BOOL ? 1 : v->elem == LM_V_STRING ? sizeof(lm_str) : 8;
    void *data = n ? lm_arena_calloc(c->arena, n, size) : NULL;
    if (n && !data) return lm_fail_nomem(c->err, "an array", n * size);
    v->arr.data = data;
    v->arr.n = n;
    if (!n) return LM_OK;
    return type == STRING ? string_array(c, data, n) : number_array(c, type, data, n);
}

static lm_status get_entry(cursor *c, uint64_t i, lm_meta_entry *e) {
    char label[48];
    uint32_t type;
    snprintf(label, sizeof label, "metadata key %" PRIu64, i);
    c->field = label;
    LM_TRY(get_name(c, "the key", MAX_KEY, &e->key));
    c->field = e->key;
    uint64_t at = c->at;
    LM_TRY(get_u32(c, "the value's type", &type));
    LM_TRY(check_type(c, type, at));
    e->value = (lm_value){.kind = kind_of(type), .gguf_type = type};
    return type == ARRAY ? array_value(c, &e->value) : scalar_value(c, type, &e->value);
}

static lm_status get_metadata(cursor *c, uint64_t n, lm_parsed *out) {
    lm_meta_entry *e = lm_arena_calloc(c->arena, n + 1, sizeof *e);
    uint64_t *at = lm_arena_calloc(c->arena, n + 1, sizeof *at);
    if (!e || !at) return lm_fail_nomem(c->err, "metadata", n * (sizeof *e + sizeof *at));
    out->alignment = 32;
    for (uint64_t i = 0; i < n; i++) {
        at[i] = c->at;
        LM_TRY(get_entry(c, i, &e[i]));
        if (strcmp(e[i].key, "general.alignment")) continue;
        const lm_value *v = &e[i].value;
        if (v->gguf_type != U32 || v->kind != LM_V_INT) return BAD(c, at[i], "must be a uint32");
        if (v->u < 8 || v->u > MAX_ALIGNMENT || (v->u & (v->u - 1)))
            return BAD(c, at[i], "%" PRIu64 " is not a power of two from 8 to %u", v->u, MAX_ALIGNMENT);
        out->alignment = (uint32_t)v->u;
    }
    return lm_meta_finish(e, at, (uint32_t)n, c->file, &out->meta, c->err);
}

/* ---- tensors ---- */
/* Numbers that ggml gave out and that stand for no lm_dtype. */
static const char *foreign_type(uint32_t id) {
    static const struct {
        uint32_t id;
        const char *what;
    } known[] = {{4, "Q4_2, removed from ggml"},        {5, "Q4_3, removed from ggml"},        {31, "Q4_0_4_4, removed from ggml"},
                 {32, "Q4_0_4_8, removed from ggml"},   {33, "Q4_0_8_8, removed from ggml"},   {36, "IQ4_NL_4_4, removed from ggml"},
                 {37, "IQ4_NL_4_8, removed from ggml"}, {38, "IQ4_NL_8_8, removed from ggml"}, {41, "Q1_0"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].id == id) return known[i].what;
    return NULL;
}

static lm_status get_type(cursor *c, lm_tensor *t) {
    uint64_t at = c->at;
    uint32_t id;
    LM_TRY(get_u32(c, "the tensor's type", &id));
    t->type = lm_dtype_by_gguf(id);
    if (t->type) return LM_OK;
    const char *what = foreign_type(id);
    if (what)
        return lm_fail_at(c->err, LM_UNSUPPORTED, c->file, at, c->field, "tensor type %u (%s) is not supported: convert the model again",
                          id, what);
    return BAD(c, at, "tensor type %u is unknown", id);
}

static lm_status get_shape(cursor *c, lm_tensor *t, uint64_t *dims_at) {
    uint64_t at = c->at;
    LM_TRY(get_u32(c, "the number of dimensions", &t->rank));
    if (t->rank < 1 || t->rank > 4) return BAD(c, at, "%u dimensions: 1 to 4 are allowed", t->rank);
    *dims_at = c->at;
    for (uint32_t d = 0; d < t->rank; d++) {
        uint64_t v;
        at = c->at;
        LM_TRY(get_u64(c, "a dimension", &v));
        if (!v || v > INT64_MAX) return BAD(c, at, "dimension %u is %" PRId64 ": it must be positive", d, (int64_t)v);
        t->dim[t->rank - 1 - d] = v; /* the file has the innermost first */
    }
    return LM_OK;
}

/* One tensor's record; r->t.offset is still relative to the data section. */
static lm_status get_tensor(cursor *c, uint64_t i, lm_tensor_rec *r) {
    char label[32], shape[128];
    uint64_t dims_at = 0;
    lm_tensor *t = &r->t;
    snprintf(label, sizeof label, "tensor %" PRIu64, i);
    c->field = label;
    r->at = c->at;
    LM_TRY(get_name(c, "the tensor's name", MAX_NAME, &t->name));
    c->field = t->name;
    LM_TRY(get_shape(c, t, &dims_at));
    LM_TRY(get_type(c, t));
    uint64_t row = t->dim[t->rank - 1];
    if (row % t->type->block)
        return BAD(c, dims_at, "a row of %" PRIu64 " elements is no whole number of %s blocks of %u", row, t->type->name, t->type->block);
    if (!lm_shape_bytes(t->type, t->rank, t->dim, &t->bytes))
        return BAD(c, dims_at, "the shape %s overflows 64 bits", lm_shape_text(t->rank, t->dim, shape, sizeof shape));
    return get_u64(c, "the tensor's offset", &t->offset);
}

/* From an offset in the data section to a place in the file, checked. */
static lm_status place(cursor *c, lm_tensor_rec *r, uint64_t data, uint32_t alignment, uint64_t offset_at) {
    lm_tensor *t = &r->t;
    uint64_t end;
    c->field = t->name;
    if (t->offset % alignment) return BAD(c, offset_at, "the offset %" PRIu64 " is no multiple of the alignment %u", t->offset, alignment);
    if (!lm_add(data, t->offset, &t->offset) || !lm_add(t->offset, t->bytes, &end) || end > c->n)
        return BAD(c, offset_at,
                   "%" PRIu64 " bytes of data at offset %" PRIu64 " end past the file's %" PRIu64
                   " bytes: truncated or damaged: download it again", t->bytes,
                   little(c->p + offset_at, 8), c->n);
    t->data = c->p + t->offset;
    return LM_OK;
}

static lm_status get_tensors(cursor *c, uint64_t n, lm_tensor_rec *r, uint64_t *offset_at, lm_parsed *out) {
    for (uint64_t i = 0; i < n; i++) {
        LM_TRY(get_tensor(c, i, &r[i]));
        offset_at[i] = c->at - 8;
    }
    uint64_t data = (c->at + out->alignment - 1) / out->alignment * out->alignment; /* no overflow: at is inside a file */
    for (uint64_t i = 0; i < n; i++) LM_TRY(place(c, &r[i], data, out->alignment, offset_at[i]));
    return lm_tensors_finish(r, (uint32_t)n, c->file, c->arena, out, c->err);
}

/* ---- the file ---- */
static lm_status check_version(cursor *c, uint32_t v) {
    c->field = "version";
    if (v == 2 || v == 3) return LM_OK;
    if (!(v & 0xffffu) && v)
        return lm_fail_at(c->err, LM_UNSUPPORTED, c->file, 4, c->field, "a big-endian GGUF (version %u): convert it for little-endian",
                          __builtin_bswap32(v));
    if (v == 1) return lm_fail_at(c->err, LM_UNSUPPORTED, c->file, 4, c->field, "GGUF version 1 is obsolete: convert the model again");
    return lm_fail_at(c->err, LM_UNSUPPORTED, c->file, 4, c->field, "GGUF version %u is unknown: 2 and 3 are supported", v);
}

static lm_status check_count(cursor *c, const char *field, uint64_t count, uint64_t at, uint64_t least) {
    c->field = field;
    if (count > LM_MAX_ENTRIES || count > (c->n - 24) / least)
        return BAD(c, at, "%" PRIu64 " entries: a file of %" PRIu64 " bytes can't hold them (the most allowed is %u): truncated or damaged",
                   count, c->n, LM_MAX_ENTRIES);
    return LM_OK;
}

lm_status lm_gguf_parse(const uint8_t *p, uint64_t n, const char *file, lm_arena *a, lm_parsed *out, lm_error *err) {
    cursor c = {.p = p, .n = n, .file = file, .field = "magic", .arena = a, .err = err};
    lm_parsed got = {0};
    uint64_t n_tensors, n_keys;
    if (n < 4 || memcmp(p, "GGUF", 4))
        return lm_fail_at(err, LM_UNSUPPORTED, file, 0, c.field, "not a GGUF file: it looks like %s", lm_file_looks_like(p, n));
    c.at = 4;
    c.field = "version";
    LM_TRY(get_u32(&c, "the version", &got.version));
    LM_TRY(check_version(&c, got.version));
    c.field = "tensor count";
    LM_TRY(get_u64(&c, "the tensor count", &n_tensors));
    c.field = "key count";
    LM_TRY(get_u64(&c, "the key count", &n_keys));
    LM_TRY(check_count(&c, "tensor count", n_tensors, 8, MIN_TENSOR_BYTES));
    LM_TRY(check_count(&c, "key count", n_keys, 16, MIN_KEY_BYTES));
    LM_TRY(get_metadata(&c, n_keys, &got));
    lm_tensor_rec *r = lm_calloc(n_tensors + 1, sizeof *r);
    uint64_t *offset_at = lm_calloc(n_tensors + 1, sizeof *offset_at);
    lm_status st =
        r && offset_at ? get_tensors(&c, n_tensors, r, offset_at, &got) : lm_fail_nomem(err, "tensor records", n_tensors * sizeof *r);
    lm_free(r);
    lm_free(offset_at);
    if (st == LM_OK) *out = got;
    return st;
}
