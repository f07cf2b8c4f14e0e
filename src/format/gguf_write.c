#include "format/gguf_write.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>

enum { U32 = 4, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 };
enum { ALIGN = 32, BUFFER = 1 << 20 };

typedef struct bytes {
    uint8_t *p;
    size_t n, cap;
    bool failed; /* out of memory: everything after is dropped */
} bytes;

static void put(bytes *b, const void *data, size_t n) {
    if (b->failed) return;
    if (n > b->cap - b->n) {
        size_t cap = (b->cap + n) * 2;
        uint8_t *more = lm_realloc(b->p, cap);
        if (!more) {
            b->failed = true;
            return;
        }
        b->p = more;
        b->cap = cap;
    }
    if (n) memcpy(b->p + b->n, data, n);
    b->n += n;
}

static void put_int(bytes *b, uint64_t v, unsigned size) {
    uint8_t le[8];
    for (unsigned i = 0; i < size; i++) le[i] = (uint8_t)(v >> (8 * i));
    put(b, le, size);
}

static void put_str(bytes *b, const char *s, uint64_t n) {
    put_int(b, n, 8);
    put(b, s, (size_t)n);
}

static void put_float(bytes *b, double v, uint32_t type) {
    float f = (float)v;
    uint32_t u32;
    uint64_t u64;
    memcpy(&u32, &f, sizeof u32);
    memcpy(&u64, &v, sizeof u64);
    put_int(b, type == F32 ? u32 : u64, type == F32 ? 4 : 8);
}

/* One number, string or truth value; false when the type isn't one that is written. */
static bool put_scalar(bytes *b, const lm_value *v, uint32_t type) {
    if (v->kind == LM_V_INT && (type == U32 || type == I32)) put_int(b, (uint64_t)v->i, 4);
    else if (v->kind == LM_V_INT && (type == U64 || type == I64)) put_int(b, type == U64 ? v->u : (uint64_t)v->i, 8);
    else if (v->kind == LM_V_FLOAT && (type == F32 || type == F64)) put_float(b, v->f, type);
    else if (v->kind == LM_V_BOOL && type == BOOL) put_int(b, v->b, 1);
    else if (v->kind == LM_V_STRING && type == STRING) put_str(b, v->str.s, v->str.len);
    else return false;
    return true;
}

static lm_value element(const lm_value *v, uint64_t i) {
    lm_value e = {.kind = v->elem};
    if (v->elem == LM_V_INT) e.i = ((const int64_t *)v->arr.data)[i], e.u = (uint64_t)e.i;
    else if (v->elem == LM_V_FLOAT) e.f = ((const double *)v->arr.data)[i];
    else if (v->elem == LM_V_BOOL) e.b = ((const uint8_t *)v->arr.data)[i] != 0;
    else e.str.s = ((const lm_str *)v->arr.data)[i].s, e.str.len = ((const lm_str *)v->arr.data)[i].len;
    return e;
}

static bool put_value(bytes *b, const lm_value *v) {
    if (v->kind != LM_V_ARRAY) {
        put_int(b, v->gguf_type, 4);
        return put_scalar(b, v, v->gguf_type);
    }
    put_int(b, ARRAY, 4);
    put_int(b, v->gguf_type, 4);
    put_int(b, v->arr.n, 8);
    for (uint64_t i = 0; i < v->arr.n; i++) {
        lm_value e = element(v, i);
        if (!put_scalar(b, &e, v->gguf_type)) return false;
    }
    return true;
}

static uint64_t padded(uint64_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

/* Everything before the data; *total: the bytes of the data, padding included. */
static lm_status make_header(bytes *h, const char *path, const lm_meta_entry *kv, uint32_t n_kv, const lm_gguf_out *t, uint32_t n,
                             uint64_t *total, lm_error *err) {
    put(h, "GGUF", 4);
    put_int(h, 3, 4);
    put_int(h, n, 8);
    put_int(h, n_kv, 8);
    for (uint32_t i = 0; i < n_kv; i++) {
        put_str(h, kv[i].key, strlen(kv[i].key));
        if (!put_value(h, &kv[i].value))
            return lm_fail_at(err, LM_USAGE, path, LM_NO_OFFSET, kv[i].key, "a value that GGUF type %u can't hold", kv[i].value.gguf_type);
    }
    uint64_t at = 0, size;
    for (uint32_t i = 0; i < n; i++) {
        if (strlen(t[i].name) > 63)
            return lm_fail_at(err, LM_UNSUPPORTED, path, LM_NO_OFFSET, t[i].name, "GGUF tensor names have at most 63 bytes");
        if (!t[i].rank || t[i].rank > 4 || t[i].type->gguf_id == LM_NO_ID || !lm_shape_bytes(t[i].type, t[i].rank, t[i].dim, &size))
            return lm_fail_at(err, LM_USAGE, path, LM_NO_OFFSET, t[i].name, "not a shape that GGUF can hold as %s", t[i].type->name);
        put_str(h, t[i].name, strlen(t[i].name));
        put_int(h, t[i].rank, 4);
        for (uint32_t d = t[i].rank; d-- > 0;) put_int(h, t[i].dim[d], 8);
        put_int(h, t[i].type->gguf_id, 4);
        put_int(h, at, 8);
        if (!lm_add(at, size, &at) || !lm_add(at, ALIGN, &at))
            return lm_fail_at(err, LM_RANGE, path, LM_NO_OFFSET, t[i].name, "the file would be too large");
        at = padded(at - ALIGN);
    }
    static const uint8_t zeros[ALIGN];
    put(h, zeros, padded(h->n) - h->n);
    *total = at;
    return h->failed ? lm_fail_nomem(err, "a GGUF header", h->n) : LM_OK;
}

/* ---- the file ------------------------------------------------------------------------------------------------------------------------*/
typedef struct out {
    int fd;
    const char *path;
    uint8_t *buf; /* [BUFFER] */
    size_t n;
    uint64_t done, total;
    const lm_gguf_rows *rows;
} out;

static lm_status flush(out *o, const uint8_t *p, size_t n, lm_error *err) {
    while (n) {
        ssize_t k = write(o->fd, p, n);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return lm_fail_at(err, LM_IO, o->path, LM_NO_OFFSET, NULL, "cannot write the file: %s", strerror(errno));
        p += k;
        n -= (size_t)k;
    }
    return LM_OK;
}

static lm_status flush_buffer(out *o, lm_error *err) {
    size_t n = o->n;
    o->n = 0;
    LM_TRY(flush(o, o->buf, n, err));
    o->done += n;
    if (o->rows->progress && !o->rows->progress(o->rows->ctx, o->done < o->total ? o->done : o->total, o->total))
        return lm_fail_at(err, LM_INTERRUPTED, o->path, LM_NO_OFFSET, NULL, "interrupted; nothing was written");
    return LM_OK;
}

static lm_status write_tensor(out *o, const lm_gguf_out *t, uint32_t i, lm_error *err) {
    uint64_t size = 0, rows = 1;
    if (!lm_shape_bytes(t->type, t->rank, t->dim, &size)) return lm_fail(err, LM_INTERNAL, "a shape that was checked");
    for (uint32_t d = 0; d + 1 < t->rank; d++) rows *= t->dim[d];
    size_t row = (size_t)(size / rows);
    uint8_t *wide = row > BUFFER ? lm_malloc(row) : NULL;
    if (row > BUFFER && !wide) return lm_fail_nomem(err, "a row", row);
    lm_status s = LM_OK;
    for (uint64_t r = 0; r < rows && s == LM_OK; r++) {
        if (wide || o->n + row > BUFFER) s = flush_buffer(o, err);
        if (s == LM_OK) s = o->rows->row(o->rows->ctx, i, r, wide ? wide : o->buf + o->n, err);
        if (s != LM_OK) break;
        if (wide) {
            s = flush(o, wide, row, err);
            o->done += row;
        } else {
            o->n += row;
        }
    }
    lm_free(wide);
    if (s == LM_OK && o->n + ALIGN > BUFFER) s = flush_buffer(o, err);
    size_t pad = (size_t)(padded(size) - size);
    memset(o->buf + o->n, 0, s == LM_OK ? pad : 0);
    o->n += s == LM_OK ? pad : 0;
    return s;
}

static lm_status write_all(out *o, const bytes *h, const lm_gguf_out *t, uint32_t n, lm_error *err) {
    LM_TRY(flush(o, h->p, h->n, err));
    for (uint32_t i = 0; i < n; i++) LM_TRY(write_tensor(o, &t[i], i, err));
    return flush_buffer(o, err);
}

static lm_status write_file(out *o, char *temporary, const bytes *h, const lm_gguf_out *t, uint32_t n, lm_error *err) {
    o->fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (o->fd < 0) return lm_fail_at(err, LM_IO, o->path, LM_NO_OFFSET, NULL, "cannot create a file beside it: %s", strerror(errno));
    lm_status s = write_all(o, h, t, n, err);
    if (close(o->fd) != 0 && s == LM_OK)
        s = lm_fail_at(err, LM_IO, o->path, LM_NO_OFFSET, NULL, "cannot write the file: %s", strerror(errno));
    if (s == LM_OK && rename(temporary, o->path) != 0)
        s = lm_fail_at(err, LM_IO, o->path, LM_NO_OFFSET, NULL, "cannot write the file: %s", strerror(errno));
    if (s != LM_OK) unlink(temporary);
    return s;
}

lm_status lm_gguf_write(const char *path, const lm_meta_entry *kv, uint32_t n_kv, const lm_gguf_out *t, uint32_t n,
                        const lm_gguf_rows *rows, lm_error *err) {
    bytes h = {0};
    out o = {.fd = -1, .path = path, .rows = rows};
    size_t room = strlen(path) + 32;
    char *temporary = NULL;
    lm_status s = lm_target_check(path, NULL, err);
    if (s == LM_OK) s = make_header(&h, path, kv, n_kv, t, n, &o.total, err);
    if (s == LM_OK) {
        temporary = lm_malloc(room);
        o.buf = lm_malloc(BUFFER);
        if (!temporary || !o.buf) s = lm_fail_nomem(err, "a buffer", BUFFER);
    }
    if (s == LM_OK) {
        snprintf(temporary, room, "%s.tmp-%ld", path, (long)getpid());
        s = write_file(&o, temporary, &h, t, n, err);
    }
    lm_free(temporary);
    lm_free(o.buf);
    lm_free(h.p);
    return s;
}
