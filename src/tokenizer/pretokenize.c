/* The pre-tokenizer's steps: each splits every piece that it is given, or rewrites the text of all. */
#include "tokenizer/tok.h"
#include <string.h>

static lm_status oom(lm_encoder *e) { return lm_fail_nomem(e->err, "splitting text", e->text.n); }

/* Where a piece is cut: runs that match and runs that don't, in order, without gaps. Handed one by one to `part`. */
typedef struct cutter {
    lm_encoder *e;
    lm_split how;
    bool invert;
    size_t base;        /* of the piece in the text */
    lm_span held;       /* being grown, not yet put */
    bool any, previous; /* held is in use; whether the run before matched */
} cutter;

static bool hold(cutter *c, size_t off, size_t len) {
    bool ok = !c->any || lm_spans_put(&c->e->span2, c->base + c->held.off, c->held.len);
    c->held = (lm_span){off, len};
    c->any = true;
    return ok;
}

static bool part(cutter *c, size_t off, size_t len, bool match) {
    match ^= c->invert;
    bool ok = true, join = false;
    switch (c->how) {
    case LM_SPLIT_ISOLATED: break;
    case LM_SPLIT_REMOVED:
        if (match) return true;
        break;
    case LM_SPLIT_CONTIGUOUS: join = c->any && match == c->previous; break;
    case LM_SPLIT_PREVIOUS: join = c->any && match && !c->previous; break;
    /* a match starts a piece that the following non-match joins; two matches in a row are two pieces */
    case LM_SPLIT_NEXT: join = c->any && !match && c->previous; break;
    }
    if (join)
        c->held.len += len;
    else
        ok = hold(c, off, len);
    c->previous = match;
    return ok;
}

static bool finish(cutter *c) { return !c->any || lm_spans_put(&c->e->span2, c->base + c->held.off, c->held.len); }

static lm_status cut_by_pattern(cutter *c, const lm_pre_step *st, const char *s, size_t n) {
    size_t done = 0, at = 0;
    while (at <= n) {
        lm_span m = {0};
        bool found = false;
        if (st->kind == LM_PRE_PATTERN)
            LM_TRY(lm_pattern_next(c->e, st->re, s, n, at, &found, &m));
        else if (st->s_n) {
            const char *hit = memmem(s + at, n - at, st->s, st->s_n);
            found = hit != NULL;
            if (hit) m = (lm_span){(size_t)(hit - s), st->s_n};
        }
        if (!found) break;
        if (m.off > done && !part(c, done, m.off - done, false)) return oom(c->e);
        if (!part(c, m.off, m.len, true)) return oom(c->e);
        done = m.off + m.len;
        size_t k = 0;
        if (!m.len && done < n) lm_char_at(s + done, n - done, &k);
        at = m.len ? done : done + (k ? k : 1);
    }
    return done == n || part(c, done, n - done, false) ? LM_OK : oom(c->e);
}

static bool in_class(const lm_pre_step *st, uint32_t ch) {
    switch (st->kind) {
    case LM_PRE_DIGITS: return lm_char_numeric(ch);
    case LM_PRE_SPACES: return lm_char_space(ch);
    case LM_PRE_PUNCTUATION: return lm_char_punct(ch);
    default: return false;
    }
}

/* Every character of the class is a match of its own. */
static lm_status cut_by_class(cutter *c, const lm_pre_step *st, const char *s, size_t n) {
    size_t done = 0;
    for (size_t i = 0, k; i < n; i += k) {
        if (!in_class(st, lm_char_at(s + i, n - i, &k))) continue;
        if (i > done && !part(c, done, i - done, false)) return oom(c->e);
        if (!part(c, i, k, true)) return oom(c->e);
        done = i + k;
    }
    return done == n || part(c, done, n - done, false) ? LM_OK : oom(c->e);
}

/* Runs of word characters and runs of what is neither word nor space; spaces go. */
static lm_status cut_words(cutter *c, const char *s, size_t n) {
    size_t from = 0;
    int was = 0;
    for (size_t i = 0, k = 0; i <= n; i += k) {
        uint32_t ch = i < n ? lm_char_at(s + i, n - i, &k) : ' ';
        int now = i == n || lm_char_space(ch) ? 0 : lm_char_word(ch) ? 1 : 2;
        if (now != was) {
            if (was && !part(c, from, i - from, false)) return oom(c->e);
            from = i;
            was = now;
        }
        if (i == n) break;
    }
    return LM_OK;
}

static void swap_spans(lm_encoder *e) {
    lm_spans s = e->span;
    e->span = e->span2;
    e->span2 = s;
    e->span2.n = 0;
}

static lm_status split(lm_encoder *e, const lm_pre_step *st) {
    e->span2.n = 0;
    for (size_t i = 0; i < e->span.n; i++) {
        lm_span p = e->span.v[i];
        cutter c = {.e = e, .how = st->split, .invert = st->invert, .base = p.off};
        const char *s = e->text.s + p.off;
        if (st->kind == LM_PRE_PATTERN || st->kind == LM_PRE_LITERAL)
            LM_TRY(cut_by_pattern(&c, st, s, p.len));
        else if (st->kind == LM_PRE_WORDS)
            LM_TRY(cut_words(&c, s, p.len));
        else
            LM_TRY(cut_by_class(&c, st, s, p.len));
        if (!finish(&c)) return oom(e);
    }
    swap_spans(e);
    return LM_OK;
}

/* The whole text in the byte-level alphabet. */
static bool rewrite_bytes(lm_encoder *e, lm_span p) {
    for (size_t k = 0; k < p.len; k++) {
        uint8_t u[4];
        if (!lm_tbuf_put(&e->spare, u, (size_t)lm_utf8_encode(lm_bytes_to_char((uint8_t)e->text.s[p.off + k]), u))) return false;
    }
    return true;
}

static bool rewrite_metaspace(lm_encoder *e, const lm_pre_step *st, lm_span p, bool first) {
    const char *s = e->text.s + p.off;
    bool has = p.len && (s[0] == ' ' || (p.len >= st->s_n && memcmp(s, st->s, st->s_n) == 0));
    bool prefix =
        st->prepend == LM_PREPEND_SPM || (st->prepend == LM_PREPEND_ALWAYS && !has) || (st->prepend == LM_PREPEND_FIRST && first && !has);
    if (prefix && !lm_tbuf_put(&e->spare, st->s, st->s_n)) return false;
    for (size_t k = 0; k < p.len; k++)
        if (!lm_tbuf_put(&e->spare, s[k] == ' ' ? st->s : s + k, s[k] == ' ' ? st->s_n : 1)) return false;
    return true;
}

static lm_status rewrite(lm_encoder *e, const lm_pre_step *st, bool first) {
    e->span2.n = 0;
    e->spare.n = 0;
    for (size_t i = 0; i < e->span.n; i++) {
        lm_span p = e->span.v[i];
        size_t off = e->spare.n;
        bool ok;
        if (st->kind == LM_PRE_BYTES)
            ok = rewrite_bytes(e, p);
        else if (st->kind == LM_PRE_METASPACE)
            ok = rewrite_metaspace(e, st, p, first && i == 0);
        else
            ok = (e->text.s[p.off] == ' ' || lm_tbuf_put(&e->spare, " ", 1)) && lm_tbuf_put(&e->spare, e->text.s + p.off, p.len);
        if (!ok || !lm_spans_put(&e->span2, off, e->spare.n - off)) return oom(e);
    }
    lm_tbuf b = e->text;
    e->text = e->spare;
    e->spare = b;
    swap_spans(e);
    return LM_OK;
}

lm_status lm_pretokenize(lm_encoder *e, bool first) {
    e->span.n = 0;
    if (!lm_spans_put(&e->span, 0, e->text.n)) return oom(e);
    for (uint32_t i = 0; i < e->t->n_pre; i++) {
        const lm_pre_step *st = &e->t->pre[i];
        if (e->text.n > LM_TOK_MAX_TEXT) return lm_fail(e->err, LM_RANGE, "the text exceeds 1 GiB; split it");
        bool rewrites = st->kind == LM_PRE_BYTES || st->kind == LM_PRE_PREFIX || st->kind == LM_PRE_METASPACE;
        LM_TRY(rewrites ? rewrite(e, st, first) : split(e, st));
        if (st->kind != LM_PRE_METASPACE || !st->cut) continue;
        lm_pre_step cut = {.kind = LM_PRE_LITERAL, .split = LM_SPLIT_NEXT, .s = st->s, .s_n = st->s_n};
        LM_TRY(split(e, &cut));
    }
    return LM_OK;
}
