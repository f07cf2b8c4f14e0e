/* Growing buffers of the encoder. */
#include "tokenizer/tok.h"
#include <string.h>

bool lm_tok_grow(void **p, size_t *cap, size_t want, size_t size) {
    if (want <= *cap) return true;
    size_t c = *cap < 16 ? 16 : *cap;
    while (c < want) {
        if (c > SIZE_MAX / 2) return false;
        c *= 2;
    }
    uint64_t bytes;
    if (!lm_mul(c, size, &bytes)) return false;
    void *q = lm_realloc(*p, bytes);
    if (!q) return false;
    *p = q;
    *cap = c;
    return true;
}

bool lm_tbuf_put(lm_tbuf *b, const void *s, size_t n) {
    uint64_t want;
    if (!lm_add(b->n, n, &want)) return false;
    void *p = b->s;
    if (!lm_tok_grow(&p, &b->cap, want, 1)) return false;
    b->s = p;
    if (n) memcpy(b->s + b->n, s, n);
    b->n = want;
    return true;
}

bool lm_spans_put(lm_spans *sp, size_t off, size_t len) {
    if (!len) return true;
    void *p = sp->v;
    if (!lm_tok_grow(&p, &sp->cap, sp->n + 1, sizeof *sp->v)) return false;
    sp->v = p;
    sp->v[sp->n++] = (lm_span){off, len};
    return true;
}

bool lm_ids_put(lm_ids *ids, int32_t id) {
    void *p = ids->id;
    if (!lm_tok_grow(&p, &ids->cap, ids->n + 1, sizeof *ids->id)) return false;
    ids->id = p;
    ids->id[ids->n++] = id;
    return true;
}

void lm_ids_free(lm_ids *ids) {
    if (!ids) return;
    lm_free(ids->id);
    *ids = (lm_ids){0};
}
