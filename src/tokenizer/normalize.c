/* The normaliser's steps over one run of text between added tokens. */
#include "tokenizer/tok.h"
#include <string.h>
#include <utf8proc.h>

static lm_status oom(lm_encoder *e, size_t n) { return lm_fail_nomem(e->err, "normalising text", n); }

static lm_status unicode_form(lm_encoder *e, int form, const lm_tbuf *in, lm_tbuf *out) {
    bool ascii = true;
    for (size_t i = 0; i < in->n && ascii; i++) ascii = (uint8_t)in->s[i] < 0x80;
    if (ascii) return lm_tbuf_put(out, in->s, in->n) ? LM_OK : oom(e, in->n);
    utf8proc_uint8_t *u = NULL;
    utf8proc_ssize_t k =
        utf8proc_map((const utf8proc_uint8_t *)in->s, (utf8proc_ssize_t)in->n, &u, (utf8proc_option_t)(form | UTF8PROC_STABLE));
    lm_status st = LM_OK;
    if (k == UTF8PROC_ERROR_NOMEM)
        st = oom(e, in->n);
    else if (k < 0)
        st = lm_fail(e->err, LM_INTERNAL, "normalising text: %s", utf8proc_errmsg(k));
    else if (!lm_tbuf_put(out, u, (size_t)k))
        st = oom(e, in->n);
    lm_free(u); /* utf8proc allocates with malloc */
    return st;
}

static lm_status replace(lm_encoder *e, const lm_norm_step *st, const lm_tbuf *in, lm_tbuf *out) {
    size_t done = 0, at = 0;
    while (at <= in->n && in->n) {
        lm_span m = {0};
        bool found = false;
        if (st->re)
            LM_TRY(lm_pattern_next(e, st->re, in->s, in->n, at, &found, &m));
        else if (st->from_n) {
            const char *hit = memmem(in->s + at, in->n - at, st->from, st->from_n);
            found = hit != NULL;
            if (hit) m = (lm_span){(size_t)(hit - in->s), st->from_n};
        }
        if (!found) break;
        if (!lm_tbuf_put(out, in->s + done, m.off - done) || !lm_tbuf_put(out, st->to, st->to_n)) return oom(e, in->n);
        done = m.off + m.len;
        size_t k = 0;
        if (!m.len && done < in->n) lm_char_at(in->s + done, in->n - done, &k);
        at = m.len ? done : done + (k ? k : 1);
    }
    return lm_tbuf_put(out, in->s + done, in->n - done) ? LM_OK : oom(e, in->n);
}

static lm_status strip(lm_encoder *e, const lm_norm_step *st, const lm_tbuf *in, lm_tbuf *out) {
    size_t a = in->n, end = 0; /* first and past-the-last character that is no space */
    for (size_t i = 0, k; i < in->n; i += k)
        if (!lm_char_space(lm_char_at(in->s + i, in->n - i, &k))) {
            if (a == in->n) a = i;
            end = i + k;
        }
    if (!st->left) a = 0;
    if (!st->right) end = in->n;
    return end <= a || lm_tbuf_put(out, in->s + a, end - a) ? LM_OK : oom(e, in->n);
}

static lm_status lowercase(lm_encoder *e, const lm_tbuf *in, lm_tbuf *out) {
    for (size_t i = 0, k; i < in->n; i += k) {
        uint32_t c = lm_char_at(in->s + i, in->n - i, &k);
        uint8_t u[4];
        bool ok;
        if (c == 0x130)
            ok = lm_tbuf_put(out, "i\xcc\x87", 3); /* the one letter whose small form is two characters */
        else
            ok = lm_tbuf_put(out, u, (size_t)lm_utf8_encode((uint32_t)utf8proc_tolower((utf8proc_int32_t)c), u));
        if (!ok) return oom(e, in->n);
    }
    return LM_OK;
}

lm_status lm_normalize(lm_encoder *e, const char *s, size_t n, lm_tbuf *out) {
    out->n = 0;
    if (!lm_tbuf_put(out, s, n)) return oom(e, n);
    for (uint32_t i = 0; i < e->t->n_norm; i++) {
        const lm_norm_step *st = &e->t->norm[i];
        lm_tbuf *to = &e->spare;
        to->n = 0;
        if (out->n > LM_TOK_MAX_TEXT) return lm_fail(e->err, LM_RANGE, "the normalised text exceeds 1 GiB; split the text");
        switch (st->kind) {
        case LM_NORM_UNICODE: LM_TRY(unicode_form(e, st->form, out, to)); break;
        case LM_NORM_PREPEND:
            if (out->n && (!lm_tbuf_put(to, st->to, st->to_n) || !lm_tbuf_put(to, out->s, out->n))) return oom(e, n);
            break;
        case LM_NORM_REPLACE: LM_TRY(replace(e, st, out, to)); break;
        case LM_NORM_STRIP: LM_TRY(strip(e, st, out, to)); break;
        case LM_NORM_LOWERCASE: LM_TRY(lowercase(e, out, to)); break;
        }
        lm_tbuf swap = *out;
        *out = *to;
        *to = swap;
    }
    return LM_OK;
}
