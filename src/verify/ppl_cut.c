/* Where the windows of a perplexity come from: a text, a list of ids, or a reference's cases. */
#include "tokenizer/tokenizer.h"
#include "verify/ppl.h"
#include <string.h>

enum { DEFAULT_CTX = 512 };

/* A text as it stands: special tokens written out in it are text. */
static lm_status encode(lm_ppl *p, lm_ids *ids, lm_error *err) {
    lm_tokenizer *tok = NULL;
    lm_status st = lm_tokenizer_from_source(p->e->src, &tok, err);
    if (st == LM_MISSING)
        return lm_fail_at(err, LM_USAGE, p->e->src->path, LM_NO_OFFSET, "text",
                          "the model carries no tokenizer; give token ids with --ids");
    if (st == LM_OK) st = lm_tokenizer_encode(tok, p->o->text, p->o->text_n, true, false, ids, err);
    if (st == LM_OK) p->bos = ids->n && lm_tokenizer_bos(tok) >= 0 && ids->id[0] == lm_tokenizer_bos(tok);
    lm_tokenizer_free(tok);
    return st;
}

static lm_status check_ids(const lm_ppl *p, const int32_t *id, size_t n, lm_error *err) {
    for (size_t i = 0; i < n; i++)
        if (id[i] < 0 || (uint32_t)id[i] >= p->e->program->vocab)
            return lm_fail_at(err, LM_RANGE, NULL, LM_NO_OFFSET, "token id", "%d at position %zu is outside the vocabulary of %u", id[i], i,
                              p->e->program->vocab);
    return LM_OK;
}

static lm_status cut(lm_ppl *p, const int32_t *id, size_t n, lm_error *err) {
    const lm_ppl_options *o = p->o;
    uint32_t ctx = o->ctx ? o->ctx : DEFAULT_CTX, stride = o->stride ? o->stride : ctx;
    if (ctx < 4) return lm_fail_at(err, LM_USAGE, NULL, LM_NO_OFFSET, "--ctx", "a window has 4 tokens or more");
    if (stride > ctx) return lm_fail_at(err, LM_USAGE, NULL, LM_NO_OFFSET, "--stride", "%u is longer than a window (%u)", stride, ctx);
    if (n < 4)
        return lm_fail_at(err, LM_USAGE, NULL, LM_NO_OFFSET, o->text ? "text" : "--ids",
                          "%zu token%s: too few to be scored, give 4 or more", n, n == 1 ? "" : "s");
    if (n < ctx) ctx = (uint32_t)n, stride = ctx;
    LM_TRY(check_ids(p, id, n, err));
    uint64_t count = 1 + (n - ctx) / stride;
    p->left_out = n - ctx - (count - 1) * stride;
    if (o->windows && count > o->windows) {
        p->left_out += (count - o->windows) * stride;
        count = o->windows;
    }
    p->n_tokens = n;
    p->ctx = ctx;
    p->stride = stride;
    p->w = lm_arena_calloc(p->arena, count, sizeof *p->w);
    int32_t *all = lm_arena_calloc(p->arena, count, ctx * sizeof *all);
    if (!p->w || !all || count > INT32_MAX) return lm_fail_nomem(err, "windows", count * (sizeof *p->w + ctx * sizeof *all));
    for (uint64_t k = 0; k < count; k++) {
        int32_t *to = all + k * ctx;
        memcpy(to, id + k * stride, ctx * sizeof *to);
        if (p->bos) to[0] = id[0];
        p->w[k] = (lm_window){.k = (uint32_t)k, .id = to, .n = ctx, .first = stride < ctx ? ctx - 1 - stride : ctx / 2, .last = ctx - 2};
    }
    p->n_windows = (uint32_t)count;
    return LM_OK;
}

static lm_status from_trace(lm_ppl *p, lm_error *err) {
    const lm_ppl_options *o = p->o;
    const uint32_t n = o->windows && o->windows < p->t->n_cases ? o->windows : p->t->n_cases;
    p->w = lm_arena_calloc(p->arena, n, sizeof *p->w);
    if (!p->w) return lm_fail_nomem(err, "windows", n * sizeof *p->w);
    for (uint32_t i = 0; i < n; i++) {
        const lm_trace_case *c = &p->t->c[i];
        if (!c->n) return lm_fail_at(err, LM_USAGE, o->reference, LM_NO_OFFSET, NULL, "case %u has no tokens", c->k);
        p->w[i] = (lm_window){.k = c->k, .id = c->ids, .n = c->n, .last = c->n - 1, .c = c};
        if (c->scored_from) p->w[i].first = c->scored_from, p->w[i].last = c->n - 2;
        p->n_tokens += c->n;
        p->ctx = c->n > p->ctx ? c->n : p->ctx;
    }
    p->n_windows = n;
    p->stride = p->ctx;
    return LM_OK;
}

/* The text's windows are the reference's cases: then its rows are taken. */
static lm_status match(lm_ppl *p, lm_error *err) {
    const char *path = p->o->reference;
    if (p->n_windows > p->t->n_cases)
        return lm_fail_at(err, LM_USAGE, path, LM_NO_OFFSET, NULL,
                          "has %u cases, the text %u windows: give the ctx and stride it was made with", p->t->n_cases, p->n_windows);
    for (uint32_t i = 0; i < p->n_windows; i++) {
        lm_window *w = &p->w[i];
        const lm_trace_case *c = &p->t->c[i];
        uint32_t at = 0;
        while (at < w->n && at < c->n && w->id[at] == c->ids[at]) at++;
        if (at < w->n && at < c->n)
            return lm_fail_at(err, LM_USAGE, path, LM_NO_OFFSET, NULL,
                              "case %u, position %u: the text gives token %d, the reference has %d", c->k, at, w->id[at], c->ids[at]);
        if (w->n != c->n || (c->scored_from && c->scored_from != w->first))
            return lm_fail_at(err, LM_USAGE, path, LM_NO_OFFSET, NULL,
                              "case %u: other windows than the text's: give the ctx and stride it was made with", c->k);
        w->k = c->k;
        w->c = c;
    }
    return LM_OK;
}

static lm_status cut_all(lm_ppl *p, lm_error *err) {
    const lm_ppl_options *o = p->o;
    lm_ids ids = {0};
    if (!o->text && !o->n_ids) {
        if (o->ctx || o->stride) return lm_fail(err, LM_USAGE, "a reference brings its own windows: leave --ctx and --stride out");
        return from_trace(p, err);
    }
    lm_status st = o->text ? encode(p, &ids, err) : LM_OK;
    if (st == LM_OK) st = o->text ? cut(p, ids.id, ids.n, err) : cut(p, o->ids, o->n_ids, err);
    lm_ids_free(&ids);
    return st == LM_OK && p->t ? match(p, err) : st;
}

lm_status lm_ppl_cut(lm_ppl *p, lm_error *err) {
    LM_TRY(cut_all(p, err));
    p->whole = p->t != NULL;
    for (uint32_t i = 0; i < p->n_windows && p->t; i++) {
        const lm_trace_case *c = p->w[i].c;
        if (!c->logits && !c->top_logprobs)
            return lm_fail_at(err, LM_USAGE, p->o->reference, LM_NO_OFFSET, NULL,
                              "case %u has neither logits nor top.ids and top.logprobs: nothing to compare with", c->k);
        p->whole &= c->logits != NULL;
    }
    return LM_OK;
}
