/* UTF-8. Well-formed sequences: the Unicode Standard, table 3-7; replacement by maximal subparts: its section 3.9. */
#include "base/utf8.h"

#include <string.h>

#include "base/mem.h"

int lm_utf8_decode(const uint8_t *s, size_t n, uint32_t *cp) {
    if (n == 0) return 0;
    uint8_t b = s[0], lo = 0x80, hi = 0xbf; /* bounds of the second byte; the later ones are 80..BF */
    int len;
    if (b < 0x80) {
        *cp = b;
        return 1;
    } else if (b >= 0xc2 && b <= 0xdf) {
        len = 2;
    } else if (b >= 0xe0 && b <= 0xef) {
        len = 3;
        if (b == 0xe0) lo = 0xa0; /* shorter forms exist below */
        if (b == 0xed) hi = 0x9f; /* surrogates above */
    } else if (b >= 0xf0 && b <= 0xf4) {
        len = 4;
        if (b == 0xf0) lo = 0x90;
        if (b == 0xf4) hi = 0x8f; /* U+10FFFF is the last */
    } else {
        return -1;
    }
    uint32_t v = b & (0x7fu >> len);
    for (int i = 1; i < len; i++) {
        if ((size_t)i == n) return 0;
        if (s[i] < lo || s[i] > hi) return -i;
        v = v << 6 | (s[i] & 0x3fu);
        lo = 0x80, hi = 0xbf;
    }
    *cp = v;
    return len;
}

/* What is no scalar value (a surrogate, past U+10FFFF) is written as U+FFFD. */
int lm_utf8_encode(uint32_t cp, uint8_t out[4]) {
    if (cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff)) cp = 0xfffd;
    if (cp < 0x80) {
        out[0] = (uint8_t)cp;
        return 1;
    }
    int len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (int i = len - 1; i > 0; i--, cp >>= 6) out[i] = (uint8_t)(0x80 | (cp & 0x3f));
    out[0] = (uint8_t)((0xf00u >> len & 0xf0u) | cp);
    return len;
}

bool lm_utf8_valid(const uint8_t *s, size_t n) {
    for (size_t i = 0; i < n;) {
        uint64_t w;
        if (n - i >= 8 && (memcpy(&w, s + i, 8), (w & 0x8080808080808080u) == 0)) { /* eight ASCII bytes at a time */
            i += 8;
            continue;
        }
        uint32_t cp;
        int len = lm_utf8_decode(s + i, n - i, &cp);
        if (len <= 0) return false;
        i += (size_t)len;
    }
    return true;
}

size_t lm_utf8_pending(const uint8_t *s, size_t n) {
    for (size_t k = 1; k <= 3 && k <= n; k++) {
        uint8_t b = s[n - k];
        if (b >= 0x80 && b <= 0xbf) continue; /* a continuation byte: its lead stands further left */
        uint32_t cp;
        return lm_utf8_decode(s + n - k, k, &cp) == 0 ? k : 0;
    }
    return 0;
}

/* Writes the repaired text to dst where that is not NULL; its length either way. */
static size_t repair_into(const uint8_t *s, size_t n, uint8_t *dst) {
    size_t o = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int len = lm_utf8_decode(s + i, n - i, &cp);
        size_t from = len > 0 ? (size_t)len : len < 0 ? (size_t)-len : n - i;
        size_t to = len > 0 ? from : 3;
        if (dst) memcpy(dst + o, len > 0 ? s + i : (const uint8_t *)"\xef\xbf\xbd", to);
        i += from;
        o += to;
    }
    return o;
}

char *lm_utf8_repair(const uint8_t *s, size_t n, size_t *out_n) {
    if (n > PTRDIFF_MAX / 3) return NULL;
    size_t len = repair_into(s, n, NULL);
    char *d = lm_malloc(len + 1);
    if (!d) return NULL;
    repair_into(s, n, (uint8_t *)d);
    d[len] = 0;
    *out_n = len;
    return d;
}
