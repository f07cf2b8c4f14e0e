/* Decoding: one stream for both forms, so that pieces joined equal the whole by construction. */
#include "tokenizer/tok.h"
#include <string.h>

struct lm_detok {
    const lm_tokenizer *t;
    bool skip_special, started;
    uint32_t strip_left;
    lm_tbuf pend; /* bytes taken and not yet given out: at most an unfinished character between calls */
    lm_tbuf out;
};

static lm_status oom(lm_error *err) { return lm_fail_nomem(err, "decoding", 0); }

/* Moves whole characters from pend to out, each maximal ill-formed part as one U+FFFD; `all`: the unfinished tail too. */
static bool move(lm_detok *d, bool all) {
    size_t i = 0, n = d->pend.n;
    const uint8_t *s = (const uint8_t *)d->pend.s;
    while (i < n) {
        uint32_t c;
        int k = lm_utf8_decode(s + i, n - i, &c);
        if (k == 0 && !all) break;
        if (k > 0 ? !lm_tbuf_put(&d->out, s + i, (size_t)k) : !lm_tbuf_put(&d->out, "\xef\xbf\xbd", 3)) return false;
        i += k > 0 ? (size_t)k : k < 0 ? (size_t)-k : n - i;
    }
    if (i) memmove(d->pend.s, d->pend.s + i, n - i);
    d->pend.n = n - i;
    return true;
}

static bool take(lm_detok *d, const char *s, size_t n) {
    while (d->strip_left && n) {
        if (*s == d->t->plan.strip) {
            s++;
            n--;
            d->strip_left--;
        } else
            d->strip_left = 0;
    }
    return lm_tbuf_put(&d->pend, s, n);
}

/* Metaspace: the first token loses its marks wherever they stand. */
static bool take_first(lm_detok *d, const lm_tok_entry *e) {
    const lm_decode_plan *p = &d->t->plan;
    const char *s = d->t->blob + e->text_off;
    for (size_t i = 0, n = e->text_len; i < n;) {
        bool hit = n - i >= p->drop_n && memcmp(s + i, p->drop, p->drop_n) == 0;
        if (!hit && !take(d, s + i, 1)) return false;
        i += hit ? p->drop_n : 1;
    }
    return true;
}

static lm_status feed(lm_detok *d, int32_t id, lm_error *err) {
    const lm_tokenizer *t = d->t;
    if (id < 0 || (uint32_t)id >= t->n) return lm_fail(err, LM_RANGE, "token id %d in a vocabulary of %u", (int)id, t->n);
    const lm_tok_entry *e = &t->entry[id];
    if (!(e->flags & LM_TOK_PRESENT) || (d->skip_special && (e->flags & LM_TOK_SPECIAL))) return LM_OK;
    bool first = !d->started;
    d->started = true;
    if (t->plan.join && !first && !take(d, " ", 1)) return oom(err);
    bool ok = first && t->plan.drop ? take_first(d, e) : take(d, t->blob + e->piece_off, e->piece_len);
    return ok && move(d, false) ? LM_OK : oom(err);
}

static void begin(lm_detok *d, const lm_tokenizer *t, bool skip_special) {
    *d = (lm_detok){.t = t, .skip_special = skip_special, .strip_left = t->plan.strip_n};
}

lm_status lm_tokenizer_decode(const lm_tokenizer *t, const int32_t *ids, size_t n, bool skip_special, char **out, size_t *out_n,
                              lm_error *err) {
    lm_detok d;
    begin(&d, t, skip_special);
    lm_status st = LM_OK;
    for (size_t i = 0; i < n && st == LM_OK; i++) st = feed(&d, ids[i], err);
    if (st == LM_OK && !(move(&d, true) && lm_tbuf_put(&d.out, "", 1))) st = oom(err);
    lm_free(d.pend.s);
    if (st != LM_OK) {
        lm_free(d.out.s);
        return st;
    }
    *out = d.out.s;
    *out_n = d.out.n - 1;
    return LM_OK;
}

lm_status lm_detok_create(const lm_tokenizer *t, bool skip_special, lm_detok **out, lm_error *err) {
    lm_detok *d = lm_malloc(sizeof *d);
    if (!d) return oom(err);
    begin(d, t, skip_special);
    *out = d;
    return LM_OK;
}

void lm_detok_free(lm_detok *d) {
    if (!d) return;
    lm_free(d->pend.s);
    lm_free(d->out.s);
    lm_free(d);
}

static lm_status give(lm_detok *d, const char **piece, size_t *n, lm_error *err) {
    if (!lm_tbuf_put(&d->out, "", 1)) return oom(err);
    *piece = d->out.s;
    *n = --d->out.n;
    return LM_OK;
}

lm_status lm_detok_push(lm_detok *d, int32_t id, const char **piece, size_t *n, lm_error *err) {
    d->out.n = 0;
    LM_TRY(feed(d, id, err));
    return give(d, piece, n, err);
}

lm_status lm_detok_flush(lm_detok *d, const char **piece, size_t *n, lm_error *err) {
    d->out.n = 0;
    if (!move(d, true)) return oom(err);
    return give(d, piece, n, err);
}
