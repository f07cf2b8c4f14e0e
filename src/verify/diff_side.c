/* One side of a diff: what a name stands for, and its values, block by block. */
#include "base/map.h"
#include "verify/diff.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- names --------------------------------------------------------------------------------------------------------------------------- */
static bool exists(const char *path) { return lm_is_dir(path) || lm_is_file(path); }
static bool ends_in(const char *s, const char *end) {
    const size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

/* By its bytes, whatever its name: a length, then a JSON object. A file that can't be read is none: whoever opens it next says why. */
static lm_status is_safetensors(const char *path, bool *yes, lm_error *err) {
    lm_map m;
    *yes = false;
    const lm_status st = lm_is_file(path) ? lm_map_open(path, &m, err) : LM_IO;
    if (st != LM_OK) return st == LM_NOMEM ? st : LM_OK;
    *yes = m.size > 8 && m.data[8] == '{' && memcmp(m.data, "GGUF", 4);
    lm_map_close(&m);
    return LM_OK;
}

/* The longest start of spec, up to two ":suffixes" left off, that exists. */
static lm_status split(lm_diff *d, lm_side *s, const char *suffix[2], uint32_t *n, lm_error *err) {
    char *path = lm_arena_strndup(d->arena, s->spec, strlen(s->spec));
    if (!path) return lm_fail_nomem(err, "a path", strlen(s->spec));
    while (!exists(path) && *n < 2) {
        char *colon = strrchr(path, ':');
        if (!colon) break;
        *colon = 0;
        suffix[1] = suffix[0];
        suffix[0] = colon + 1;
        ++*n;
    }
    s->path = path;
    if (exists(path)) return LM_OK;
    return lm_fail_at(err, LM_IO, s->spec, LM_NO_OFFSET, NULL,
                      "there is no such file or folder; a side is TRACE[:LANE], MODEL[:BACKEND[:LANE]] or http://SERVER");
}

lm_status lm_side_parse(lm_diff *d, int side, const char *spec, lm_error *err) {
    lm_side *s = &d->side[side];
    const char *suffix[2] = {NULL, NULL};
    uint32_t n = 0;
    *s = (lm_side){.letter = (char)('A' + side), .spec = spec, .about = ""};
    if (lm_side_is_server(spec)) return lm_side_parse_server(d, s, err);
    LM_TRY(split(d, s, suffix, &n, err));
    s->is_trace = ends_in(s->path, ".safetensors") && !lm_is_dir(s->path);
    if (!s->is_trace) LM_TRY(is_safetensors(s->path, &s->is_trace, err));
    const char *lane = s->is_trace ? suffix[0] : suffix[1];
    if (s->is_trace && n > 1) return lm_fail_at(err, LM_USAGE, spec, LM_NO_OFFSET, NULL, "a trace takes one suffix, its lane");
    if (!s->is_trace && n && !lm_backend_by_name(suffix[0]))
        return lm_fail_at(err, LM_USAGE, spec, LM_NO_OFFSET, NULL, "'%.40s' is not a backend of lemma (f64, cpu)", suffix[0]);
    if (lane && !lm_prec_of_lane(lane, &s->prec))
        return lm_fail_at(err, LM_USAGE, spec, LM_NO_OFFSET, NULL, "'%.40s' is not a lane (f32, bf16, i8, i16, mixed)", lane);
    s->tap = NULL;
    return LM_OK;
}

/* ---- opening ------------------------------------------------------------------------------------------------------------------------- */
static const char *suffix_of(const lm_side *s) { return s->spec[strlen(s->path)] ? s->spec + strlen(s->path) + 1 : NULL; }

lm_status lm_side_open_run(lm_diff *d, int side, lm_error *err) {
    lm_side *s = &d->side[side];
    const lm_evidence_options *r = &d->o->run;
    const char *suffix = suffix_of(s), *lane = suffix ? strchr(suffix, ':') : NULL;
    const char *backend = suffix ? lm_arena_strndup(d->arena, suffix, lane ? (size_t)(lane - suffix) : strlen(suffix)) : "cpu";
    if (!backend) return lm_fail_nomem(err, "a name", strlen(suffix));
    const bool cpu = !strcmp(backend, "cpu");
    lm_engine_options eo = {.backend = backend,
                            .device = {.threads = r->threads, .lane = lane ? lane + 1 : NULL, .cpu_level = cpu ? r->cpu_level : NULL},
                            .progress = {r->progress, r->progress_ctx},
                            .interrupted = r->interrupted,
                            .interrupted_ctx = r->interrupted_ctx};
    const lm_side *other = &d->side[0];
    if (side && other->e && !strcmp(other->path, s->path))
        LM_TRY(lm_engine_share(other->e, &eo, &s->e, err)); /* one copy of the files */
    else
        LM_TRY(lm_engine_open(s->path, &eo, &s->e, err));
    s->owns_e = true;
    const char *name = eo.device.lane ? eo.device.lane : s->e->backend->lanes[0];
    if (!lm_prec_of_lane(name, &s->prec))
        return lm_fail_at(err, LM_UNSUPPORTED, s->spec, LM_NO_OFFSET, NULL, "no envelope is known for lane '%.40s'", name);
    s->about = lm_diff_say(d, "%s (%s) on %s, lane %s (%s)", s->path, s->e->program->arch, s->e->backend->name, name,
                           s->e->backend->describe(s->e->device));
    return LM_OK;
}

static const char *binding(lm_diff *d, const lm_trace *t, lm_error *err) {
    char hex[65];
    const lm_source *src = d->arbiter->src;
    if (!t->weights_sha256) return "says nothing of its weights";
    const lm_value *from = lm_meta_get(&src->meta, "lemma.source_sha256"); /* in a GGUF that lemma wrote: what it was made from */
    if (from && from->kind == LM_V_STRING && !strcmp(from->str.s, t->weights_sha256))
        return "of the weights that the model was converted from";
    if (lm_source_sha256(src, hex, NULL, NULL, err) != LM_OK) return NULL;
    return strcmp(hex, t->weights_sha256) ? "OF OTHER WEIGHTS than the arbiter's" : "of these weights";
}

lm_status lm_side_open_trace(lm_diff *d, int side, lm_error *err) {
    lm_side *s = &d->side[side];
    LM_TRY(lm_trace_open(s->path, d->p, &s->t, err));
    const lm_value *lane = lm_meta_get(&s->t->file->meta, "lane");
    if (suffix_of(s))
        lm_prec_of_lane(suffix_of(s), &s->prec);
    else if (lane && lane->kind == LM_V_STRING && lm_prec_of_lane(lane->str.s, &s->prec)) {
    } else if (!strncmp(s->t->dtype, "bfloat16", 8))
        s->prec = LM_PREC_BF16;
    const char *bound = binding(d, s->t, err);
    if (!bound) return LM_IO;
    s->about = lm_diff_say(d, "%s, a trace in %s, %s", s->path, lm_prec_name(s->prec), bound);
    return LM_OK;
}

void lm_side_close(lm_side *s) {
    lm_side_end(s);
    if (s->owns_e) lm_engine_close(s->e);
    lm_trace_close(s->t);
    lm_side_close_server(s);
    *s = (lm_side){0};
}

/* ---- a case -------------------------------------------------------------------------------------------------------------------------- */
/* The trace's whole values, by the op that makes each: taps by name, hidden states, logits. */
static lm_status find_taps(lm_diff *d, lm_side *s, lm_arena *a, lm_error *err) {
    const lm_program *p = d->p;
    s->tap = lm_arena_calloc(a, p->n_ops, sizeof *s->tap);
    if (!s->tap) return lm_fail_nomem(err, "taps", p->n_ops * sizeof *s->tap);
    for (uint32_t i = 0; i < p->n_ops; i++) {
        char name[256];
        snprintf(name, sizeof name, "c%u.tap.%s", s->c->k, p->op[i].name);
        const lm_tensor *t = s->t ? lm_source_tensor(s->t->file, name) : NULL;
        for (uint32_t slot = 0; !t && slot < p->n_layers + 2; slot++)
            if (lm_hidden_value(p, slot) == p->op[i].out) t = s->c->hidden[slot];
        if (!t && p->op[i].out == p->logits) t = s->c->logits;
        if (t && lm_tensor_cols(t) != p->value[p->op[i].out].width)
            return lm_fail_at(err, LM_FORMAT, s->path, t->offset, t->name, "has rows of %llu, the model's are %u wide",
                              (unsigned long long)lm_tensor_cols(t), p->value[p->op[i].out].width);
        s->tap[i] = t;
        s->n_taps += t != NULL;
    }
    return LM_OK;
}

typedef struct grow {
    uint32_t best, n;
} grow;
static bool take_best(void *ctx, const lm_rows *rows) {
    grow *g = ctx;
    const uint32_t last = rows->n - 1;
    g->best = 0;
    for (uint32_t v = 1; v < rows->width; v++)
        if (lm_rows_at(rows, last, v) > lm_rows_at(rows, last, g->best)) g->best = v;
    g->n++;
    return true;
}
/* The bare arg-max run. */
static lm_status run_greedy(lm_side *s, const int32_t *ids, uint32_t n, uint32_t greedy, lm_arena *a, lm_error *err) {
    int32_t *out = lm_arena_calloc(a, greedy, sizeof *out);
    lm_session *own = NULL;
    if (!out) return lm_fail_nomem(err, "a continuation", greedy * sizeof *out);
    LM_TRY(lm_session_create(s->e, 0, &own, err));
    lm_status st = LM_OK;
    for (uint32_t i = 0; i < greedy && st == LM_OK; i++) {
        grow g = {0, 0};
        st = lm_session_eval(
            own, &(lm_eval){.id = i ? &out[i - 1] : ids, .n = i ? 1 : n, .want = LM_WANT_LAST, .logits = take_best, .logits_ctx = &g}, err);
        if (st == LM_OK && !g.n) st = lm_fail(err, LM_INTERNAL, "no logits came for the last position");
        out[i] = (int32_t)g.best;
    }
    lm_session_free(own);
    s->greedy = out;
    s->n_greedy = greedy;
    return st;
}

lm_status lm_side_begin(lm_diff *d, lm_side *s, uint32_t k, const int32_t *ids, uint32_t n, uint32_t greedy, lm_arena *a, lm_error *err) {
    s->c = NULL;
    s->n_taps = s->n_greedy = 0;
    s->greedy = NULL;
    s->n_prompt = n;
    if (!s->spec) return LM_OK;
    if (!s->is_trace) {
        for (uint32_t i = 0; i < d->p->n_ops; i++) s->n_taps++;
        return greedy ? run_greedy(s, ids, n, greedy, a, err) : LM_OK;
    }
    if (s->is_server) {
        LM_TRY(lm_side_ask(d, s, k, ids, n, greedy, a, err));
        return find_taps(d, s, a, err);
    }
    for (uint32_t i = 0; i < s->t->n_cases; i++)
        if (s->t->c[i].k == k) s->c = &s->t->c[i];
    if (!s->c) return LM_OK;
    if (s->c->n != n || memcmp(s->c->ids, ids, n * sizeof *ids)) {
        s->c = NULL;
        return lm_fail_at(err, LM_USAGE, s->path, LM_NO_OFFSET, NULL, "its case %u has other token ids than the other side's", k);
    }
    s->greedy = s->c->greedy;
    s->n_greedy = s->c->n_greedy < greedy ? s->c->n_greedy : greedy;
    return find_taps(d, s, a, err);
}

lm_status lm_side_restart(lm_side *s, lm_error *err) {
    lm_session_free(s->s);
    s->s = NULL;
    return s->spec && !s->is_trace ? lm_session_create(s->e, 0, &s->s, err) : LM_OK;
}
void lm_side_end(lm_side *s) {
    lm_session_free(s->s);
    s->s = NULL;
    s->c = NULL;
}

/* ---- a block ------------------------------------------------------------------------------------------------------------------------- */
typedef struct filler {
    lm_diff *d;
    lm_side *s;
    uint32_t from, n, hint; /* hint: the op that came last, for looking names up in another program */
} filler;

static float *room(const lm_program *p, const lm_side *s, uint32_t op, uint32_t n) {
    size_t at = 0;
    for (uint32_t i = 0; i < op; i++) at += p->value[p->op[i].out].width;
    return s->store + at * n;
}

/* Which op of the arbiter's program this is: the same, unless the side is another model. */
static uint32_t same_op(filler *f, const lm_program *p, const lm_op *op) {
    const lm_program *own = f->d->p;
    if (p == own) return (uint32_t)(op - p->op);
    for (uint32_t i = 0; i < own->n_ops; i++) {
        const uint32_t at = (f->hint + 1 + i) % own->n_ops;
        if (strcmp(own->op[at].name, op->name)) continue;
        f->hint = at;
        return own->op[at].kind == op->kind && own->value[own->op[at].out].width == p->value[op->out].width ? at : LM_NONE;
    }
    return LM_NONE;
}

static bool on_tap(void *ctx, const lm_program *p, const lm_op *op, const lm_rows *rows) {
    filler *f = ctx;
    const uint32_t at = same_op(f, p, op);
    if (at == LM_NONE) return true;
    float *to = room(f->d->p, f->s, at, f->n);
    for (uint32_t i = 0; i < rows->n; i++) {
        if (rows->row[i] < f->from || rows->row[i] >= f->from + f->n) return false;
        const uint32_t r = rows->row[i] - f->from;
        for (uint32_t k = 0; k < rows->width; k++) to[(size_t)r * rows->width + k] = (float)lm_rows_at(rows, i, k);
        f->s->known[(size_t)at * f->n + r] = 1;
    }
    return true;
}
static bool no_logits(void *ctx, const lm_rows *rows) {
    (void)ctx;
    (void)rows;
    return true;
}

/* The ids of a ROUTE become indices of experts in a replay: they are checked like any other input. */
static lm_status check_choice(const lm_side *s, const lm_op *op, const lm_tensor *t, const float *x, uint32_t row, lm_error *err) {
    for (uint32_t i = 0; op->kind == LM_OP_ROUTE && i < op->route.k; i++) {
        bool ok = x[i] >= 0 && x[i] < (float)op->route.n && x[i] == floorf(x[i]);
        for (uint32_t j = 0; j < i; j++) ok = ok && x[j] != x[i];
        if (!ok)
            return lm_fail_at(err, LM_FORMAT, s->path, t->offset, t->name, "row %u: %g is no expert of %u, or stands twice", row,
                              (double)x[i], op->route.n);
    }
    return LM_OK;
}

static lm_status load_trace(const lm_diff *d, lm_side *s, uint32_t from, uint32_t n, lm_error *err) {
    const lm_program *p = d->p;
    const lm_trace_case *c = s->c;
    float *to = s->store;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const uint32_t width = p->value[p->op[i].out].width;
        for (uint32_t r = 0; r < n; r++, to += width) {
            const uint32_t at = from + r;
            const lm_tensor *t = at < c->n ? s->tap[i] : NULL;
            uint32_t row = at;
            if (!t && p->op[i].out == p->logits) {
                if (at + 1 == c->n && c->logits_last)
                    t = c->logits_last, row = 0;
                else if (at + 1 >= c->n && at + 1 - c->n < c->n_greedy && c->greedy_logits)
                    t = c->greedy_logits, row = at + 1 - c->n;
            }
            if (t) {
                lm_tensor_row_f32(t, row, to);
                LM_TRY(check_choice(s, &p->op[i], t, to, row, err));
            }
            s->known[(size_t)i * n + r] = t != NULL;
        }
    }
    return LM_OK;
}

lm_status lm_side_load(lm_diff *d, lm_side *s, const int32_t *ids, uint32_t from, uint32_t n, uint32_t total, lm_error *err) {
    memset(s->known, 0, (size_t)d->p->n_ops * n);
    if (s->is_trace) return s->c ? load_trace(d, s, from, n, err) : LM_OK;
    if (!s->s) return LM_OK;
    filler f = {d, s, from, n, d->p->n_ops - 1};
    lm_eval ev = {.id = ids + from, .n = n, .length = total, .want = LM_WANT_ALL, .logits = no_logits, .tap = on_tap, .tap_ctx = &f};
    return lm_session_eval(s->s, &ev, err);
}

uint32_t lm_side_choice(const lm_diff *d, const lm_side *s, uint32_t position, const double *row) {
    if (row) return lm_argmax_row(row, d->p->vocab);
    if (!s->c) return LM_NO_ID;
    if (position < s->c->n && s->c->argmax) return (uint32_t)s->c->argmax[position];
    if (position < s->c->n && s->c->top_ids) return (uint32_t)s->c->top_ids[(size_t)position * s->c->n_top];
    if (position + 1 >= s->c->n && position + 1 - s->c->n < s->c->n_greedy) return (uint32_t)s->c->greedy[position + 1 - s->c->n];
    return LM_NO_ID;
}
