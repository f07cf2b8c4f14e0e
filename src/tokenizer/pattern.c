/* Patterns: Oniguruma's dialect (what tokenizer.json is written for) on PCRE2. What the two read alike passes; \s and \w, which they read
 * differently (U+180E, marks, connectors), are spelled out; an escape, group or set operation that is not known to agree is refused. */
#include "tokenizer/tok.h"
#include <stdio.h>
#include <string.h>

#define SPACE "\\t-\\r\\x{85}\\p{Z}"
#define WORD "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"

static bool put(lm_tbuf *b, const char *s) { return lm_tbuf_put(b, s, strlen(s)); }

/* The escape at p[i] == '\\'; *used the bytes it takes. What is no letter or digit stands for itself. */
static lm_status escape(const char *p, size_t n, size_t i, bool in_class, lm_tbuf *out, size_t *used, lm_error *err) {
    if (i + 1 >= n) return lm_fail(err, LM_FORMAT, "a pattern ends in a backslash");
    char c = p[i + 1];
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'), ok = true;
    *used = 2;
    if (c == 's')
        ok = put(out, in_class ? SPACE : "[" SPACE "]");
    else if (c == 'w')
        ok = put(out, in_class ? WORD : "[" WORD "]");
    else if (c == 'S' && !in_class)
        ok = put(out, "[^" SPACE "]");
    else if (c == 'W' && !in_class)
        ok = put(out, "[^" WORD "]");
    else if (letter && !strchr("rntfvdDSxpP", c))
        return lm_fail(err, LM_UNSUPPORTED, "the escape \\%c at byte %zu of a pattern is not supported", c, i);
    else if (c == 'v')
        ok = put(out, "\\x0b"); /* a vertical tab there, any vertical space in PCRE2 */
    else if ((unsigned char)c >= 0x80)
        *used = 1; /* the backslash says nothing */
    else {
        const char *close = strchr("xpP", c) && i + 2 < n && p[i + 2] == '{' ? memchr(p + i, '}', n - i) : NULL;
        if (close) *used = (size_t)(close - (p + i)) + 1;
        ok = lm_tbuf_put(out, p + i, *used);
    }
    return ok ? LM_OK : lm_fail_nomem(err, "a pattern", n);
}

static lm_status group_ok(const char *p, size_t n, size_t i, lm_error *err) {
    static const char *const known[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:", "(?i)", NULL};
    if (i + 1 < n && p[i + 1] == '*') return lm_fail(err, LM_UNSUPPORTED, "the verb at byte %zu of a pattern is not supported", i);
    if (i + 1 >= n || p[i + 1] != '?') return LM_OK;
    for (int k = 0; known[k]; k++) {
        size_t m = strlen(known[k]);
        if (n - i >= m && memcmp(p + i, known[k], m) == 0) return LM_OK;
    }
    return lm_fail(err, LM_UNSUPPORTED, "the group at byte %zu of a pattern is not supported", i);
}

static lm_status translate(const char *p, size_t n, lm_tbuf *out, lm_error *err) {
    bool in_class = false;
    size_t class_at = 0, used;
    for (size_t i = 0; i < n; i += used) {
        used = 1;
        if (p[i] == '\\') {
            LM_TRY(escape(p, n, i, in_class, out, &used, err));
            continue;
        }
        if (in_class) {
            if (p[i] == '[' || (p[i] == '&' && i + 1 < n && p[i + 1] == '&'))
                return lm_fail(err, LM_UNSUPPORTED, "the set operation at byte %zu of a pattern is not supported", i);
            if (p[i] == ']' && i > class_at) in_class = false;
        } else if (p[i] == '[') {
            in_class = true;
            class_at = i + 1 + (i + 1 < n && p[i + 1] == '^');
        } else if (p[i] == '(')
            LM_TRY(group_ok(p, n, i, err));
        else if (p[i] == '}' && i + 1 < n && p[i + 1] == '+') /* a possessive interval here, a repeated one there */
            return lm_fail(err, LM_UNSUPPORTED, "the interval at byte %zu of a pattern is not supported", i);
        if (!lm_tbuf_put(out, p + i, 1)) return lm_fail_nomem(err, "a pattern", n);
    }
    return LM_OK;
}

/* PCRE2's memory goes through ours, so that its failures are tested too. */
static void *pcre_alloc(size_t n, void *ctx) {
    (void)ctx;
    return lm_malloc(n);
}
static void pcre_free(void *p, void *ctx) {
    (void)ctx;
    lm_free(p);
}

lm_status lm_pattern_compile(const char *pattern, size_t n, pcre2_code **out, lm_error *err) {
    lm_tbuf b = {0};
    lm_status st = translate(pattern, n, &b, err);
    pcre2_general_context *g = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    pcre2_compile_context *c = g ? pcre2_compile_context_create(g) : NULL;
    if (st == LM_OK && !c) st = lm_fail_nomem(err, "a pattern", n);
    if (st == LM_OK) {
        int code = 0;
        PCRE2_SIZE at = 0;
        pcre2_set_newline(c, PCRE2_NEWLINE_LF);
        pcre2_set_parens_nest_limit(c, 100);
        pcre2_code *re = pcre2_compile((PCRE2_SPTR)(b.s ? b.s : ""), b.n, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                                       &code, &at, c);
        char msg[160] = "";
        if (!re) pcre2_get_error_message(code, (PCRE2_UCHAR *)msg, sizeof msg);
        if (!re)
            st = code == PCRE2_ERROR_HEAP_FAILED ? lm_fail_nomem(err, "a pattern", n)
                                                 : lm_fail(err, LM_FORMAT, "a pattern does not compile: %s", msg);
        if (re) pcre2_jit_compile(re, PCRE2_JIT_COMPLETE); /* without it the interpreter matches, equally */
        *out = re;
    }
    if (c) pcre2_compile_context_free(c);
    if (g) pcre2_general_context_free(g);
    lm_free(b.s);
    return st;
}

lm_status lm_pattern_begin(lm_encoder *e) {
    pcre2_general_context *g = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    if (g) {
        e->match = pcre2_match_data_create(1, g);
        e->limits = pcre2_match_context_create(g);
        pcre2_general_context_free(g);
    }
    if (!e->match || !e->limits) return lm_fail_nomem(e->err, "matching patterns", 0);
    return LM_OK;
}

void lm_pattern_end(lm_encoder *e) {
    if (e->match) pcre2_match_data_free(e->match);
    if (e->limits) pcre2_match_context_free(e->limits);
    e->match = NULL;
    e->limits = NULL;
}

lm_status lm_pattern_next(lm_encoder *e, const pcre2_code *re, const char *s, size_t n, size_t at, bool *found, lm_span *m) {
    /* Backtracking over one long run is linear in it and allowed; what needs more than that is refused, not guessed at. */
    uint64_t limit = 1000000u + 8u * (uint64_t)n;
    pcre2_set_match_limit(e->limits, limit > UINT32_MAX ? UINT32_MAX : (uint32_t)limit);
    pcre2_set_heap_limit(e->limits, 256u * 1024u); /* KiB */
    uint32_t opt = PCRE2_NO_UTF_CHECK;             /* checked once, for the whole text */
    int rc = pcre2_match(re, (PCRE2_SPTR)s, n, at, opt, e->match, e->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) rc = pcre2_match(re, (PCRE2_SPTR)s, n, at, opt | PCRE2_NO_JIT, e->match, e->limits);
    *found = false;
    if (rc == PCRE2_ERROR_NOMATCH) return LM_OK;
    if (rc == PCRE2_ERROR_NOMEMORY) return lm_fail_nomem(e->err, "matching a pattern", 0);
    if (rc < 0) {
        char msg[160] = "";
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)msg, sizeof msg);
        return lm_fail(e->err, LM_RANGE, "the pre-tokenizer's pattern can't be matched in a text of %zu bytes (%s); split the text", n,
                       msg);
    }
    PCRE2_SIZE *ov = pcre2_get_ovector_pointer(e->match);
    *m = (lm_span){ov[0], ov[1] - ov[0]};
    *found = true;
    return LM_OK;
}
