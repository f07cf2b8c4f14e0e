/* Merges as scores. SentencePiece merges any two neighbours whose joined text is a token, the highest score first, the leftmost of equals;
 * a list of merges says which two may, and the lowest rank goes first. They give the same on every text when
 *   1. the merges into one token stand together in the list: the order of these groups is the order of the scores;
 *   2. no token's text ever comes down to two symbols that have no merge;
 *   3. no token is made, on its own text, of a part whose group comes later;
 *   4. where three neighbours l r x are reached with both l r and r x the same token, the left pair has the lower rank.
 * Merges never split, so what happens between two places of a text, while nothing has been merged across either, is what happens to that
 * stretch alone: each condition needs to be tried only on the texts of tokens, and on l r x.
 */
#include "tokenizer/tok.h"
#include <stdlib.h>
#include <string.h>

enum { MOST = 1024 }; /* characters of a text that is tried */

typedef struct part {
    int32_t id; /* -1: a character that is no token */
    size_t off, len;
} part;

typedef struct trial {
    const lm_tokenizer *t;
    part p[MOST];
    uint32_t n;
    int32_t left, right; /* of the last merge, -1: none */
} trial;

/* Merges s[0..n) by every rank below `limit`. False: the text is too long to be tried. */
static bool try_text(trial *x, const char *s, size_t n, uint32_t limit) {
    x->n = 0;
    x->left = x->right = -1;
    for (size_t i = 0, k; i < n; i += k) {
        if (x->n == MOST) return false;
        (void)lm_char_at(s + i, n - i, &k);
        x->p[x->n++] = (part){lm_vocab_find(x->t, s + i, k), i, k};
    }
    for (;;) {
        const lm_merge *best = NULL;
        uint32_t at = 0;
        for (uint32_t i = 0; i + 1 < x->n; i++) {
            const lm_merge *m = lm_merge_find(x->t, x->p[i].id, x->p[i + 1].id);
            if (m && m->rank < limit && (!best || m->rank < best->rank)) best = m, at = i;
        }
        if (!best) return true;
        x->left = best->left;
        x->right = best->right;
        x->p[at].id = best->id;
        x->p[at].len += x->p[at + 1].len;
        memmove(&x->p[at + 1], &x->p[at + 2], (x->n - at - 2) * sizeof *x->p);
        x->n--;
    }
}

static int by_rank(const void *a, const void *b) {
    uint32_t x = ((const lm_merge *)a)->rank, y = ((const lm_merge *)b)->rank;
    return x < y ? -1 : x > y;
}

static bool is_byte(const lm_tokenizer *t, int32_t id) {
    for (int b = 0; b < 256; b++)
        if (t->byte_id[b] == id) return true;
    return false;
}

/* Condition 1: first[id] is the first rank of the group that makes id, or UINT32_MAX. */
static const char *order_groups(const lm_tokenizer *t, const lm_merge *m, uint32_t n, uint32_t *first, double *score) {
    uint32_t groups = 0;
    for (uint32_t i = 0; i < t->n; i++) first[i] = UINT32_MAX;
    for (uint32_t i = 0; i < n; i++) {
        int32_t id = m[i].id;
        if (is_byte(t, id) || is_byte(t, m[i].left) || is_byte(t, m[i].right)) return "byte tokens merge in it";
        if (i && m[i - 1].id == id) continue;
        if (first[id] != UINT32_MAX) return "the merges that make one token don't stand together";
        first[id] = m[i].rank;
        score[id] = -(double)groups++;
    }
    for (uint32_t i = 0; i < t->n; i++)
        if (first[i] == UINT32_MAX) score[i] = -(double)groups; /* nothing merges into it */
    return NULL;
}

/* Conditions 2 and 3, of one token. */
static const char *check_token(trial *x, uint32_t id, const uint32_t *first) {
    const lm_tok_entry *e = &x->t->entry[id];
    if (!(e->flags & LM_TOK_PRESENT)) return NULL;
    if (!try_text(x, x->t->blob + e->text_off, e->text_len, UINT32_MAX)) return "a token is longer than 1024 characters";
    if (x->n == 2) return "two neighbours that make a token have no merge";
    if (x->n != 1 || x->left < 0) return NULL;
    uint32_t own = first[x->p[0].id], l = first[x->left], r = first[x->right];
    return (l != UINT32_MAX && l > own) || (r != UINT32_MAX && r > own) ? "a token is made before one of its parts" : NULL;
}

static const char *text_of(const lm_tokenizer *t, int32_t id, size_t *n) {
    *n = t->entry[id].text_len;
    return t->blob + t->entry[id].text_off;
}

/* Condition 4, of two merges of one group. */
static const char *check_overlap(trial *x, const lm_merge *p, const lm_merge *q, uint32_t first, lm_tbuf *b) {
    size_t n[3];
    const char *s[3] = {text_of(x->t, p->left, &n[0]), text_of(x->t, p->right, &n[1]), text_of(x->t, q->right, &n[2])};
    b->n = 0;
    for (int i = 0; i < 3; i++)
        if (!lm_tbuf_put(b, s[i], n[i])) return "no memory to try it";
    if (!try_text(x, b->s, b->n, first)) return "a token is longer than 1024 characters";
    bool reached = x->n == 3 && x->p[0].len == n[0] && x->p[1].len == n[1];
    return reached ? "of two overlapping pairs the right one merges first" : NULL;
}

static const char *check_overlaps(trial *x, const lm_merge *m, uint32_t n, const uint32_t *first, lm_tbuf *b) {
    const char *why = NULL;
    for (uint32_t from = 0, to; from < n && !why; from = to) {
        for (to = from; to < n && m[to].id == m[from].id;) to++;
        for (uint32_t p = from; p < to && !why; p++)
            for (uint32_t q = from; q < p && !why; q++)
                if (m[p].right == m[q].left) why = check_overlap(x, &m[p], &m[q], first[m[from].id], b);
    }
    return why;
}

lm_status lm_spm_scores(const lm_tokenizer *t, double *score, const char **why, lm_error *err) {
    uint32_t slots = t->merge ? t->merge_mask + 1 : 0, n = 0;
    lm_merge *m = lm_calloc((size_t)slots + 1, sizeof *m);
    uint32_t *first = lm_calloc((size_t)t->n + 1, sizeof *first);
    trial *x = lm_calloc(1, sizeof *x);
    lm_tbuf b = {0};
    lm_status st = m && first && x ? LM_OK : lm_fail_nomem(err, "the merges", slots * sizeof *m);
    *why = NULL;
    if (st == LM_OK) {
        x->t = t;
        for (uint32_t i = 0; i < slots; i++)
            if (t->merge[i].left >= 0) m[n++] = t->merge[i];
        if (n) qsort(m, n, sizeof *m, by_rank);
        for (int i = 0; i < 256 && !*why; i++)
            if (t->byte_id[i] < 0) *why = "it lacks a token for some byte";
        if (!*why) *why = order_groups(t, m, n, first, score);
        for (uint32_t id = 0; id < t->n && !*why; id++) *why = check_token(x, id, first);
        if (!*why) *why = check_overlaps(x, m, n, first, &b);
    }
    lm_free(b.s);
    lm_free(x);
    lm_free(first);
    lm_free(m);
    return st;
}
