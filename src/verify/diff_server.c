/* A server as a side of a diff: its answers, one position after the other, in the form of a trace's case. Everything else treats it as a
 * trace that has nothing but its best few log-probabilities. */
#include "verify/diff.h"
#include "verify/remote.h"
#include <string.h>

enum { TIMEOUT = 60 };

bool lm_side_is_server(const char *spec) { return !strncmp(spec, "http://", 7) || !strncmp(spec, "https://", 8); }

lm_status lm_side_parse_server(lm_diff *d, lm_side *s, lm_error *err) {
    char *url = lm_arena_strndup(d->arena, s->spec, strlen(s->spec));
    lm_http http;
    if (!url) return lm_fail_nomem(err, "a URL", strlen(s->spec));
    char *colon = strrchr(url, ':');
    s->prec_given = lm_prec_of_lane(colon + 1, &s->prec);
    if (s->prec_given) *colon = 0;
    s->is_trace = s->is_server = true;
    s->path = url;
    return lm_http_parse(url, &http, err);
}

static bool block_quantized(const lm_program *p) {
    for (uint32_t i = 0; i < p->n_weights; i++)
        if (p->weight[i].type->block > 1) return true;
    return false;
}

lm_status lm_side_open_server(lm_diff *d, lm_side *s, lm_error *err) {
    const lm_diff_options *o = d->o;
    const lm_http how = {
        .timeout = o->timeout ? o->timeout : TIMEOUT, .interrupted = o->run.interrupted, .interrupted_ctx = o->run.interrupted_ctx};
    if (!s->prec_given) s->prec = block_quantized(d->p) ? LM_PREC_I8 : LM_PREC_BF16;
    if (lm_tokenizer_from_source(d->arbiter->src, &s->tok, NULL) != LM_OK) s->tok = NULL; /* only servers that speak in texts need it */
    LM_TRY(lm_remote_open(s->path, &how, s->tok, d->p->vocab, &s->server, err));
    s->about = lm_diff_say(d, "%s, a server, taken to compute in %s%s", s->path, lm_prec_name(s->prec),
                           s->prec_given ? "" : " (URL:LANE says otherwise)");
    return LM_OK;
}

void lm_side_close_server(lm_side *s) {
    lm_remote_close(s->server);
    lm_tokenizer_free(s->tok);
}

/* Rows as a trace has them: all of one length, the shortest that came. */
static lm_status keep_rows(lm_trace_case *c, const lm_remote_row *row, uint32_t n, lm_arena *a, lm_error *err) {
    uint32_t top = LM_REMOTE_TOP;
    for (uint32_t i = 0; i < n; i++) top = row[i].n < top ? row[i].n : top;
    int32_t *argmax = lm_arena_calloc(a, n, sizeof *argmax), *id = lm_arena_calloc(a, (size_t)n * top, sizeof *id);
    float *lp = lm_arena_calloc(a, (size_t)n * top, sizeof *lp);
    lm_tensor *t = lm_arena_calloc(a, 1, sizeof *t);
    if (!argmax || !id || !lp || !t) return lm_fail_nomem(err, "a server's answers", (uint64_t)n * top * 8);
    for (uint32_t i = 0; i < n; i++) {
        argmax[i] = row[i].best_known ? row[i].id[0] : -1; /* LM_NO_ID */
        memcpy(id + (size_t)i * top, row[i].id, top * sizeof *id);
        memcpy(lp + (size_t)i * top, row[i].lp, top * sizeof *lp);
    }
    *t = (lm_tensor){.name = "the server's log-probabilities",
                     .type = lm_dtype_by_st("F32"),
                     .rank = 2,
                     .dim = {n, top},
                     .data = (const uint8_t *)lp,
                     .bytes = (uint64_t)n * top * sizeof *lp,
                     .file = UINT32_MAX,
                     .offset = LM_NO_OFFSET};
    c->argmax = argmax;
    c->top_ids = id;
    c->n_top = top;
    c->top_logprobs = t;
    return LM_OK;
}

static lm_status ask_all(lm_diff *d, lm_side *s, const int32_t *ids, uint32_t n, uint32_t greedy, lm_remote_row *row, int32_t *all,
                         lm_error *err) {
    const lm_evidence_options *o = &d->o->run;
    memcpy(all, ids, n * sizeof *all);
    for (uint32_t i = 0; i < n + greedy; i++) {
        if (i == n + greedy - 1 && greedy) break; /* the last continued token: nothing follows it */
        if (o->progress && !o->progress(o->progress_ctx, "asking the server", i, n + greedy))
            return lm_fail(err, LM_INTERRUPTED, "interrupted");
        LM_TRY(lm_remote_next(s->server, all, i + 1, &row[i], err));
        if (i + 1 < n || i + 1 - n >= greedy) continue;
        if (!row[i].best_known) return LM_OK; /* the continuation ends where the choice is no known token */
        all[i + 1] = row[i].id[0];
        s->n_greedy++;
    }
    return LM_OK;
}

lm_status lm_side_ask(lm_diff *d, lm_side *s, uint32_t k, const int32_t *ids, uint32_t n, uint32_t greedy, lm_arena *a, lm_error *err) {
    const uint64_t all = (uint64_t)n + greedy;
    lm_trace_case *c = lm_arena_calloc(a, 1, sizeof *c);
    int32_t *id = lm_arena_calloc(a, all, sizeof *id);
    lm_remote_row *row = lm_calloc(all, sizeof *row);
    const lm_tensor **hidden = lm_arena_calloc(a, (size_t)d->p->n_layers + 2, sizeof *hidden);
    lm_status st = c && id && row && hidden ? LM_OK : lm_fail_nomem(err, "a server's answers", all * sizeof *row);
    if (st == LM_OK) st = ask_all(d, s, ids, n, greedy, row, id, err);
    if (st == LM_OK) st = keep_rows(c, row, n, a, err);
    lm_free(row);
    if (st != LM_OK) return st;
    c->k = k;
    c->ids = id;
    c->n = n;
    c->hidden = hidden;
    c->greedy = s->greedy = id + n;
    c->n_greedy = s->n_greedy;
    s->c = c;
    s->about = lm_diff_say(d, "%s, a server (%s), taken to compute in %s%s", s->path, lm_remote_kind(s->server), lm_prec_name(s->prec),
                           s->prec_given ? "" : " (URL:LANE says otherwise)");
    return LM_OK;
}
