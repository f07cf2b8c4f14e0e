/* Writing safetensors: the header is made in memory, then everything goes to a temporary beside the target, which takes its name at the
 * end. A reader never sees half a file. */
#include "base/utf8.h"
#include "format/parse.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct text {
    char *s;
    size_t n, cap;
    bool failed; /* out of memory: everything after is dropped */
} text;

static void put(text *t, const char *s, size_t n) {
    if (t->failed) return;
    if (n > t->cap - t->n) {
        size_t cap = (t->cap + n) * 2;
        char *more = lm_realloc(t->s, cap);
        if (!more) {
            t->failed = true;
            return;
        }
        t->s = more;
        t->cap = cap;
    }
    memcpy(t->s + t->n, s, n);
    t->n += n;
}

LM_PRINTF(2, 3) static void putf(text *t, const char *fmt, ...) {
    char buf[64];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(buf, sizeof buf, fmt, ap);
    va_end(ap);
    put(t, buf, (size_t)n);
}

static void put_string(text *t, const char *s) {
    put(t, "\"", 1);
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            putf(t, "\\%c", *s);
        else if ((unsigned char)*s < 0x20)
            putf(t, "\\u%04x", (unsigned)(unsigned char)*s);
        else
            put(t, s, 1);
    }
    put(t, "\"", 1);
}

static int name_cmp(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* UTF-8, and each name once; sorts them. */
static lm_status check_names(const char *path, const char **name, uint32_t n, const char *what, lm_error *err) {
    for (uint32_t i = 0; i < n; i++)
        if (!lm_utf8_valid((const uint8_t *)name[i], strlen(name[i])))
            return lm_fail_at(err, LM_USAGE, path, LM_NO_OFFSET, name[i], "%s is not valid UTF-8", what);
    if (n) qsort(name, n, sizeof *name, name_cmp);
    for (uint32_t i = 1; i < n; i++)
        if (!strcmp(name[i - 1], name[i])) return lm_fail_at(err, LM_USAGE, path, LM_NO_OFFSET, name[i], "%s is given twice", what);
    return LM_OK;
}

static lm_status check_tensors(const char *path, const lm_st_out *t, uint32_t n, lm_error *err) {
    for (uint32_t i = 0; i < n; i++) {
        const lm_dtype *type = lm_dtype_by_st(t[i].st_dtype);
        uint64_t bytes;
        if (!t[i].name[0] || !strcmp(t[i].name, "__metadata__"))
            return lm_fail_at(err, LM_USAGE, path, LM_NO_OFFSET, t[i].name, "not a name that a tensor can have");
        if (!type) return lm_fail_at(err, LM_UNSUPPORTED, path, LM_NO_OFFSET, t[i].name, "dtype %.40s is not supported", t[i].st_dtype);
        if (!lm_shape_bytes(type, t[i].rank, t[i].dim, &bytes) || bytes != t[i].bytes)
            return lm_fail_at(err, LM_USAGE, path, LM_NO_OFFSET, t[i].name, "the shape doesn't take the %" PRIu64 " bytes given",
                              t[i].bytes);
    }
    const char **name = lm_calloc(n, sizeof *name);
    if (!name) return lm_fail_nomem(err, "tensor names", n * sizeof *name);
    for (uint32_t i = 0; i < n; i++) name[i] = t[i].name;
    lm_status st = check_names(path, name, n, "a tensor's name", err);
    lm_free(name);
    return st;
}

static lm_status check_metadata(const char *path, const char *const *kv, lm_error *err) {
    uint32_t n = 0;
    while (kv && kv[2 * n]) n++;
    const char **key = lm_calloc(n, sizeof *key);
    if (!key) return lm_fail_nomem(err, "metadata keys", n * sizeof *key);
    lm_status st = LM_OK;
    for (uint32_t i = 0; i < n && st == LM_OK; i++) {
        key[i] = kv[2 * i];
        if (!lm_utf8_valid((const uint8_t *)kv[2 * i + 1], strlen(kv[2 * i + 1])))
            st = lm_fail_at(err, LM_USAGE, path, LM_NO_OFFSET, key[i], "the metadata value is not valid UTF-8");
    }
    if (st == LM_OK) st = check_names(path, key, n, "a metadata key", err);
    lm_free(key);
    return st;
}

/* The JSON, padded with spaces so that the data starts at a multiple of 8. */
static void make_header(text *h, const lm_st_out *t, uint32_t n, const char *const *kv) {
    uint64_t at = 0;
    put(h, "{", 1);
    if (kv && kv[0]) {
        put(h, "\"__metadata__\":{", 16);
        for (size_t i = 0; kv[i]; i += 2) {
            if (i) put(h, ",", 1);
            put_string(h, kv[i]);
            put(h, ":", 1);
            put_string(h, kv[i + 1]);
        }
        put(h, n ? "}," : "}", n ? 2 : 1);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (i) put(h, ",", 1);
        put_string(h, t[i].name);
        put(h, ":{\"dtype\":", 10);
        put_string(h, t[i].st_dtype);
        put(h, ",\"shape\":[", 10);
        for (uint32_t d = 0; d < t[i].rank; d++) putf(h, "%s%" PRIu64, d ? "," : "", t[i].dim[d]);
        putf(h, "],\"data_offsets\":[%" PRIu64, at);
        at += t[i].bytes;
        putf(h, ",%" PRIu64 "]}", at);
    }
    put(h, "}", 1);
    while (!h->failed && h->n % 8) put(h, " ", 1);
}

static bool write_all(int fd, const void *data, uint64_t n) {
    for (uint64_t done = 0; done < n;) {
        uint64_t left = n - done;
        ssize_t k = write(fd, (const char *)data + done, left < (1u << 30) ? left : 1u << 30);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        done += (uint64_t)k;
    }
    return true;
}

static bool write_file(int fd, const text *h, const lm_st_out *t, uint32_t n) {
    uint8_t len[8];
    for (unsigned i = 0; i < 8; i++) len[i] = (uint8_t)((uint64_t)h->n >> (8 * i));
    bool ok = write_all(fd, len, 8) && write_all(fd, h->s, h->n);
    for (uint32_t i = 0; i < n && ok; i++) ok = write_all(fd, t[i].data, t[i].bytes);
    return ok;
}

static lm_status write_and_rename(const char *path, char *temporary, const text *h, const lm_st_out *t, uint32_t n, lm_error *err) {
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return lm_fail_at(err, LM_IO, path, LM_NO_OFFSET, NULL, "cannot create a file beside it: %s", strerror(errno));
    bool ok = write_file(fd, h, t, n);
    int why = errno;
    if (close(fd) != 0 && ok) {
        ok = false;
        why = errno;
    }
    if (ok && rename(temporary, path) != 0) {
        ok = false;
        why = errno;
    }
    if (ok) return LM_OK;
    unlink(temporary);
    return lm_fail_at(err, LM_IO, path, LM_NO_OFFSET, NULL, "cannot write the file: %s", strerror(why));
}

lm_status lm_safetensors_write(const char *path, const lm_st_out *t, uint32_t n, const char *const *meta_kv, lm_error *err) {
    static _Atomic unsigned serial; /* two writers of one process may write one path */
    LM_TRY(lm_target_check(path, NULL, err));
    LM_TRY(check_tensors(path, t, n, err));
    LM_TRY(check_metadata(path, meta_kv, err));
    text h = {0};
    make_header(&h, t, n, meta_kv);
    size_t room = strlen(path) + 48;
    char *temporary = lm_malloc(room);
    lm_status st;
    if (h.failed || !temporary) {
        st = lm_fail_nomem(err, "a safetensors header", h.n + room);
    } else if (h.n > LM_ST_MAX_HEADER) {
        st = lm_fail_at(err, LM_RANGE, path, LM_NO_OFFSET, "header", "%zu bytes: at most %u are allowed", h.n, LM_ST_MAX_HEADER);
    } else {
        snprintf(temporary, room, "%s.tmp-%ld-%u", path, (long)getpid(), serial++);
        st = write_and_rename(path, temporary, &h, t, n, err);
    }
    lm_free(temporary);
    lm_free(h.s);
    return st;
}
