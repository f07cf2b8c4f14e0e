#include "format/json.h"
#include <stdio.h>
#include <string.h>

/* the index after the string that opens at i */
static uint64_t string_end(const uint8_t *p, uint64_t n, uint64_t i) {
    for (i++; i < n && p[i] != '"'; i++)
        if (p[i] == '\\') i++;
    return i < n ? i + 1 : n;
}

static bool colon_follows(const uint8_t *p, uint64_t n, uint64_t i) {
    while (i < n && (p[i] == ' ' || p[i] == '\t' || p[i] == '\n' || p[i] == '\r')) i++;
    return i < n && p[i] == ':';
}

/* The key nearest before byte pos, as written: jansson's errors don't say which value they are about. */
static void key_before(const uint8_t *p, uint64_t n, uint64_t pos, char *buf, size_t bn) {
    const char *key = "";
    uint64_t len = 0;
    for (uint64_t i = 0; i < n && i < pos;) {
        if (p[i] != '"') {
            i++;
            continue;
        }
        uint64_t e = string_end(p, n, i);
        if (e >= i + 2 && colon_follows(p, n, e)) {
            key = (const char *)p + i + 1;
            len = e - i - 2;
        }
        i = e;
    }
    snprintf(buf, bn, "%.*s", (int)(len < bn ? len : bn), key);
}

uint64_t lm_json_key_offset(const uint8_t *p, uint64_t n, const char *key) {
    size_t len = strlen(key);
    uint32_t depth = 0;
    for (uint64_t i = 0; i < n;) {
        if (p[i] == '{' || p[i] == '[') depth++;
        if ((p[i] == '}' || p[i] == ']') && depth) depth--;
        if (p[i] != '"') {
            i++;
            continue;
        }
        uint64_t e = string_end(p, n, i);
        if (depth == 1 && e - i == len + 2 && !memcmp(p + i + 1, key, len) && colon_follows(p, n, e)) return i;
        i = e;
    }
    return 0;
}

static const char *explain(enum json_error_code code) {
    switch (code) {
    case json_error_stack_overflow: return "the JSON is too deep: more than 2048 levels of nesting";
    case json_error_duplicate_key: return "duplicate key";
    case json_error_numeric_overflow: return "number out of range: integers must fit 64 bits (signed), others a double";
    case json_error_invalid_utf8: return "invalid UTF-8";
    case json_error_null_character:
    case json_error_null_byte_in_key: return "a NUL character in a string";
    case json_error_premature_end_of_input: return "the JSON ends too early: truncated";
    case json_error_end_of_input_expected: return "something follows the JSON value";
    default: return NULL;
    }
}

lm_status lm_json_parse(const uint8_t *p, uint64_t n, uint64_t base, const char *file, json_t **out, lm_error *err) {
    json_error_t e;
    if (n == 0) return lm_fail_at(err, LM_FORMAT, file, base, NULL, "empty where JSON was expected");
    json_t *j = json_loadb((const char *)p, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
    if (j) {
        *out = j;
        return LM_OK;
    }
    enum json_error_code code = json_error_code(&e);
    if (code == json_error_out_of_memory) return lm_fail_nomem(err, "parsing JSON", n);
    uint64_t pos = e.position > 0 ? (uint64_t)e.position : 0;
    if (pos > n) pos = n;
    char key[160];
    key_before(p, n, pos, key, sizeof key);
    const char *why = explain(code);
    if (why) return lm_fail_at(err, LM_FORMAT, file, base + pos, key, "%s", why);
    return lm_fail_at(err, LM_FORMAT, file, base + pos, key, "not valid JSON: %s", e.text);
}
