/* The public API's lm_stops: text passes through, a stop string and what follows it does not; what could still become one is held back. */
#include <string.h>

#include "base/mem.h"

struct lm_stops {
    char **stop;
    size_t *len;
    uint32_t n;
    char *buf; /* held back from before, then the new piece */
    size_t held, shown, cap;
    bool stopped;
};

lm_status lm_stops_create(const char *const *stops, uint32_t n, lm_stops **out, lm_error *err) {
    for (uint32_t i = 0; i < n; i++)
        if (!stops[i][0]) return lm_fail_at(err, LM_USAGE, NULL, LM_NO_OFFSET, "stop", "a stop string is empty: nothing would come out");
    lm_stops *s = lm_calloc(1, sizeof *s);
    if (!s) return lm_fail_nomem(err, "the stop strings", sizeof *s);
    s->stop = lm_calloc(n + 1ull, sizeof *s->stop);
    s->len = lm_calloc(n + 1ull, sizeof *s->len);
    bool ok = s->stop && s->len;
    for (; ok && s->n < n; s->n++) {
        s->stop[s->n] = lm_strdup(stops[s->n]);
        ok = s->stop[s->n] != NULL;
        if (ok) s->len[s->n] = strlen(stops[s->n]);
    }
    if (!ok) {
        lm_stops_free(s);
        return lm_fail_nomem(err, "the stop strings", n * sizeof *s->stop);
    }
    *out = s;
    return LM_OK;
}

void lm_stops_free(lm_stops *s) {
    if (!s) return;
    for (uint32_t i = 0; s->stop && i < s->n; i++) lm_free(s->stop[i]);
    lm_free(s->stop);
    lm_free(s->len);
    lm_free(s->buf);
    lm_free(s);
}

/* Length of the longest stop that ends at buf[end); 0: none. */
static size_t ends_here(const lm_stops *s, size_t end) {
    size_t best = 0;
    for (uint32_t i = 0; i < s->n; i++)
        if (s->len[i] > best && s->len[i] <= end && !memcmp(s->buf + end - s->len[i], s->stop[i], s->len[i])) best = s->len[i];
    return best;
}

/* Length of the longest tail of buf[0..n) that begins a stop. */
static size_t begun(const lm_stops *s, size_t n) {
    size_t best = 0;
    for (uint32_t i = 0; i < s->n; i++)
        for (size_t k = s->len[i] - 1 < n ? s->len[i] - 1 : n; k > best; k--)
            if (!memcmp(s->buf + n - k, s->stop[i], k)) best = k;
    return best;
}

/* The stop that is complete first, byte by byte, wins, the longest of those that end together: how the text was cut into pieces doesn't
 * matter. */
lm_status lm_stops_push(lm_stops *s, const char *piece, size_t n, const char **text, size_t *text_n, bool *stopped, lm_error *err) {
    if (s->held) memmove(s->buf, s->buf + s->shown, s->held);
    s->shown = 0;
    *stopped = s->stopped;
    *text = s->buf ? s->buf : "";
    *text_n = 0;
    if (s->stopped) return LM_OK;
    uint64_t need;
    if (!lm_add(s->held, n, &need) || !lm_add(need, 1, &need)) return lm_fail_nomem(err, "text", UINT64_MAX);
    if (need > s->cap) {
        char *b = lm_realloc(s->buf, need * 2);
        if (!b) return lm_fail_nomem(err, "text", need * 2);
        s->buf = b;
        s->cap = need * 2;
    }
    if (n) memcpy(s->buf + s->held, piece, n);
    size_t all = s->held + n;
    *text = s->buf;
    for (size_t end = s->held + 1; end <= all; end++) {
        size_t len = ends_here(s, end);
        if (!len) continue;
        s->held = 0;
        *stopped = s->stopped = true;
        *text_n = end - len;
        return LM_OK;
    }
    s->held = begun(s, all);
    *text_n = s->shown = all - s->held;
    return LM_OK;
}

void lm_stops_flush(lm_stops *s, const char **text, size_t *text_n) {
    *text = s->buf ? s->buf + s->shown : "";
    *text_n = s->held;
    s->held = 0;
}
