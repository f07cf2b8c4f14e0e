/* Status codes and the rich error. Every string that reaches an lm_error is one line of valid UTF-8: file contents end up in messages. */
#include "base/status.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

static const struct {
    const char *name, *text;
    int exit_code;
} statuses[] = {
#define LM_STATUS_ROW(name, text, code) {#name, text, code},
    LM_STATUS_LIST(LM_STATUS_ROW)
#undef LM_STATUS_ROW
};
#define N_STATUSES (sizeof statuses / sizeof *statuses)

static bool known(lm_status s) { return (unsigned)s < N_STATUSES; }
const char *lm_status_name(lm_status s) { return known(s) ? statuses[s].name : "UNKNOWN"; }
const char *lm_status_text(lm_status s) { return known(s) ? statuses[s].text : "an unknown status"; }
int lm_status_exit_code(lm_status s) { return known(s) ? statuses[s].exit_code : statuses[LM_INTERNAL].exit_code; }

static int is_control(uint32_t cp) {
    return cp < 0x20 || (cp >= 0x7f && cp < 0xa0) || cp == 0x2028 || cp == 0x2029;
}

/* src[0..n) into dst[cap], control characters and bytes that are no UTF-8 as \xNN; cut where the next unit would not fit. */
static void escape(char *dst, size_t cap, const char *src, size_t n) {
    static const char hex[] = "0123456789abcdef";
    const uint8_t *s = (const uint8_t *)src;
    size_t o = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        int len = lm_utf8_decode(s + i, n - i, &cp);
        bool raw = len > 0 && !is_control(cp);
        size_t take = len > 0 ? (size_t)len : len < 0 ? (size_t)-len : n - i;
        size_t need = raw ? take : 4 * take;
        if (o + need >= cap) break;
        for (size_t k = 0; k < take; k++, i++) {
            if (raw) {
                dst[o++] = src[i];
            } else {
                dst[o++] = '\\', dst[o++] = 'x';
                dst[o++] = hex[s[i] >> 4], dst[o++] = hex[s[i] & 15];
            }
        }
    }
    dst[o] = 0;
}

/* A path is kept as it is, since it may be opened again; only lm_error_line escapes it. */
static void copy_path(char *dst, size_t cap, const char *src) {
    size_t n = strnlen(src, cap - 1);
    memmove(dst, src, n);
    dst[n] = 0;
}

LM_PRINTF(6, 0)
static void fill(lm_error *err, lm_status code, const char *file, uint64_t offset, const char *field, const char *fmt, va_list ap) {
    lm_error e = {.code = code, .offset = offset}; /* built apart: an argument may point into *err */
    char text[sizeof e.message + 8] = ""; /* a character cut in half at its end is past what the message can hold */
    vsnprintf(text, sizeof text, fmt, ap);
    escape(e.message, sizeof e.message, text, strlen(text));
    if (file) copy_path(e.file, sizeof e.file, file);
    if (field) escape(e.field, sizeof e.field, field, strlen(field));
    *err = e;
}

lm_status lm_fail(lm_error *err, lm_status code, const char *fmt, ...) {
    if (!err) return code;
    va_list ap;
    va_start(ap, fmt);
    fill(err, code, NULL, LM_NO_OFFSET, NULL, fmt, ap);
    va_end(ap);
    return code;
}

lm_status lm_fail_at(lm_error *err, lm_status code, const char *file, uint64_t offset, const char *field, const char *fmt, ...) {
    if (!err) return code;
    va_list ap;
    va_start(ap, fmt);
    fill(err, code, file, offset, field, fmt, ap);
    va_end(ap);
    return code;
}

lm_status lm_fail_nomem(lm_error *err, const char *what, uint64_t bytes) {
    char left[48] = "";
    const uint64_t available = lm_memory_available();
    if (available != UINT64_MAX) snprintf(left, sizeof left, ", %" PRIu64 " available", available);
    if (!bytes) return lm_fail(err, LM_NOMEM, "out of memory: no room for %s%s%s", what, left, left[0] ? " bytes" : "");
    if (bytes == UINT64_MAX) return lm_fail(err, LM_NOMEM, "out of memory: %s would take more bytes than can be counted", what);
    return lm_fail(err, LM_NOMEM, "out of memory: %" PRIu64 " bytes needed for %s%s", bytes, what, left);
}

void lm_error_set_file(lm_error *err, const char *file) {
    if (err && file && !err->file[0]) copy_path(err->file, sizeof err->file, file);
}

void lm_error_set_field(lm_error *err, const char *field) {
    if (err && field && !err->field[0]) escape(err->field, sizeof err->field, field, strlen(field));
}

char *lm_error_line(const lm_error *err, char *buf, size_t n) {
    if (n == 0) return buf;
    char file[4 * sizeof err->file], at[40] = "";
    escape(file, sizeof file, err->file, strnlen(err->file, sizeof err->file));
    if (err->offset != LM_NO_OFFSET) snprintf(at, sizeof at, "at byte %" PRIu64 ": ", err->offset);
    const char *message = err->message[0] ? err->message : lm_status_text(err->code);
    int len = snprintf(buf, n, "%s%s%s%s%s%s", file, file[0] ? ": " : "", at, err->field, err->field[0] ? ": " : "", message);
    if (len > 0 && (size_t)len >= n) buf[n - 1 - lm_utf8_pending((const uint8_t *)buf, n - 1)] = 0;
    return buf;
}
