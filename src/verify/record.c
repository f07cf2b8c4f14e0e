/* dump: a trace of what lemma itself computes, in the form that verify and diff read. Values are written as F32, whatever the backend
 * computed in; ids are chosen from what it computed.
 */
#include "format/json.h"
#include "tokenizer/tokenizer.h"
#include "verify/verify.h"
#include "version.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* As tools/export_oracle.py: a case with more logits keeps only its last row, one with more hidden values only five states. */
enum { LOGITS_MAX = 1 << 22, HIDDEN_MAX = 1 << 23, TOP = 64 };

typedef struct kept { /* the result of one op, for all rows */
    lm_val value;
    float *data;
    uint32_t width, rows;
} kept;

typedef struct recorder {
    lm_engine *e;
    const lm_dump_options *o;
    lm_arena *arena; /* everything that is written */
    lm_st_out *out;
    uint32_t n_out, cap_out;
    /* the case at hand */
    uint32_t k, n, n_greedy;
    const int32_t *id;
    kept *keep;
    uint32_t n_keep;
    lm_sha256 *print;  /* [n_ops] NULL: no fingerprints are wanted */
    uint32_t *printed; /* [n_ops] rows so far */
    float *logits, *logits_last, *greedy_logits, *top_lp;
    int32_t *argmax, *top_ids, *greedy;
    uint32_t n_top, step; /* step: of the greedy run */
    double *row;
    bool not_finite, stray; /* stray: a row came that wasn't asked for */
    lm_sha256 hash;
} recorder;

static void *get(recorder *r, uint64_t n, uint64_t size, lm_error *err) {
    void *p = lm_arena_calloc(r->arena, n, size);
    if (!p) lm_fail_nomem(err, "a trace", n * size);
    return p;
}

static lm_status put(recorder *r, const char *what, const char *type, uint32_t rank, uint64_t d0, uint64_t d1, const void *data,
                     lm_error *err) {
    if (r->n_out == r->cap_out) {
        uint32_t cap = r->cap_out ? 2 * r->cap_out : 64;
        lm_st_out *more = lm_realloc(r->out, cap * sizeof *more);
        if (!more) return lm_fail_nomem(err, "a trace", cap * sizeof *more);
        r->out = more;
        r->cap_out = cap;
    }
    const char *name = lm_arena_printf(r->arena, "c%u.%s", r->k, what);
    if (!name) return lm_fail_nomem(err, "a name", strlen(what));
    r->out[r->n_out++] =
        (lm_st_out){.name = name, .st_dtype = type, .rank = rank, .dim = {d0, d1}, .data = data, .bytes = 4 * d0 * (rank == 2 ? d1 : 1)};
    return LM_OK;
}

/* ---- what comes from the run ----------------------------------------------------------------------------------------------------------
 */
static void as_float(const lm_rows *rows, uint32_t i, float *dst) {
    for (uint32_t k = 0; k < rows->width; k++) dst[k] = (float)lm_rows_at(rows, i, k);
}

static bool hash_tap(recorder *r, uint32_t op, const lm_rows *rows) {
    for (uint32_t i = 0; i < rows->n; i++)
        if (rows->row[i] != r->printed[op] + i) return false;
    r->printed[op] += rows->n;
    lm_sha256_update(&r->print[op], rows->data, (size_t)rows->n * rows->width * (rows->is_f64 ? sizeof(double) : sizeof(float)));
    return true;
}

static bool on_tap(void *ctx, const lm_program *p, const lm_op *op, const lm_rows *rows) {
    recorder *r = ctx;
    if (r->print && !hash_tap(r, (uint32_t)(op - p->op), rows)) return !(r->stray = true);
    for (uint32_t k = 0; k < r->n_keep; k++) {
        kept *h = &r->keep[k];
        if (h->value != op->out || rows->width != h->width) continue;
        for (uint32_t i = 0; i < rows->n; i++) {
            if (rows->row[i] >= r->n) return !(r->stray = true);
            as_float(rows, i, h->data + (size_t)rows->row[i] * h->width);
            h->rows++;
        }
    }
    return true;
}

static void hash_rows(recorder *r, const lm_rows *rows) {
    lm_sha256_update(&r->hash, rows->data, (size_t)rows->n * rows->width * (rows->is_f64 ? sizeof(double) : sizeof(float)));
}

static bool on_prompt(void *ctx, const lm_rows *rows) {
    recorder *r = ctx;
    uint32_t vocab = rows->width;
    hash_rows(r, rows);
    for (uint32_t i = 0; i < rows->n; i++) {
        uint32_t at = rows->row[i];
        if (at >= r->n) return !(r->stray = true);
        lm_rows_f64(rows, i, r->row);
        if (r->logits) as_float(rows, i, r->logits + (size_t)at * vocab);
        if (at + 1 == r->n) as_float(rows, i, r->logits_last);
        double lse = lm_log_sum_exp(r->row, vocab);
        if (lse != lse) { /* no order among them: the run is at fault, and the dump says so */
            r->not_finite = true;
            return false;
        }
        int32_t *top = r->top_ids + (size_t)at * r->n_top;
        lm_top_row(r->row, vocab, r->n_top, top);
        for (uint32_t k = 0; k < r->n_top; k++) r->top_lp[(size_t)at * r->n_top + k] = (float)(r->row[top[k]] - lse);
        r->argmax[at] = top[0];
        if (at + 1 == r->n && r->n_greedy) {
            r->greedy[0] = top[0];
            as_float(rows, i, r->greedy_logits);
        }
    }
    return !r->o->run.progress || r->o->run.progress(r->o->run.progress_ctx, "prompt", rows->row[rows->n - 1] + 1, r->n);
}

static bool on_greedy(void *ctx, const lm_rows *rows) {
    recorder *r = ctx;
    hash_rows(r, rows);
    lm_rows_f64(rows, 0, r->row);
    uint32_t best = lm_argmax_row(r->row, rows->width);
    r->not_finite = best == LM_NO_ID;
    if (r->not_finite) return false;
    as_float(rows, 0, r->greedy_logits + (size_t)r->step * rows->width);
    r->greedy[r->step] = (int32_t)best;
    return !r->o->run.progress || r->o->run.progress(r->o->run.progress_ctx, "greedy", r->step + 1, r->n_greedy);
}

/* ---- what to keep -------------------------------------------------------------------------------------------------------------------- */
static lm_status keep_value(recorder *r, lm_val v, const char *name, lm_error *err) {
    kept *h = &r->keep[r->n_keep++];
    *h = (kept){.value = v, .width = r->e->program->value[v].width};
    h->data = get(r, r->n, (uint64_t)h->width * sizeof *h->data, err);
    if (!h->data) return LM_NOMEM;
    return put(r, name, "F32", 2, r->n, h->width, h->data, err);
}

static lm_status plan_values(recorder *r, lm_error *err) {
    const lm_program *p = r->e->program;
    uint32_t L = p->n_layers;
    char name[256];
    bool all = (uint64_t)r->n * p->hidden * (L + 2) <= HIDDEN_MAX;
    r->n_keep = 0;
    r->keep = get(r, (uint64_t)L + 2 + (r->o->taps ? p->n_ops : 0), sizeof *r->keep, err);
    if (!r->keep) return LM_NOMEM;
    for (uint32_t slot = 0; slot < L + 2; slot++) {
        bool some = slot <= 1 || slot == L / 2 + 1 || slot >= L; /* embed, first, middle, last, norm */
        if (!all && !some) continue;
        if (slot == 0 || slot > L)
            snprintf(name, sizeof name, "hidden.%s", slot ? "norm" : "embed");
        else
            snprintf(name, sizeof name, "hidden.layer.%u", slot - 1);
        LM_TRY(keep_value(r, lm_hidden_value(p, slot), name, err));
    }
    for (uint32_t i = 0; r->o->taps && i < p->n_ops; i++) {
        if (i >= p->head_first && !r->logits) continue; /* as large as the logits that are left out */
        snprintf(name, sizeof name, "tap.%s", p->op[i].name);
        LM_TRY(keep_value(r, p->op[i].out, name, err));
    }
    return LM_OK;
}

static lm_status plan_case(recorder *r, lm_error *err) {
    uint64_t n = r->n, vocab = r->e->program->vocab;
    bool all = n * vocab <= LOGITS_MAX;
    r->n_top = vocab < TOP ? (uint32_t)vocab : TOP;
    r->n_greedy = r->o->greedy;
    r->logits = all ? get(r, n, vocab * sizeof(float), err) : NULL;
    r->logits_last = get(r, vocab, sizeof(float), err);
    r->argmax = get(r, n, sizeof(int32_t), err);
    r->top_ids = get(r, n, r->n_top * sizeof(int32_t), err);
    r->top_lp = get(r, n, r->n_top * sizeof(float), err);
    r->greedy = get(r, (uint64_t)r->n_greedy + 1, sizeof(int32_t), err);
    r->greedy_logits = get(r, (uint64_t)r->n_greedy + 1, vocab * sizeof(float), err);
    if ((all && !r->logits) || !r->logits_last || !r->argmax || !r->top_ids || !r->top_lp || !r->greedy || !r->greedy_logits)
        return LM_NOMEM;
    LM_TRY(put(r, "ids", "I32", 1, n, 0, r->id, err));
    LM_TRY(put(r, "argmax", "I32", 1, n, 0, r->argmax, err));
    LM_TRY(put(r, "top.ids", "I32", 2, n, r->n_top, r->top_ids, err));
    LM_TRY(put(r, "top.logprobs", "F32", 2, n, r->n_top, r->top_lp, err));
    LM_TRY(all ? put(r, "logits", "F32", 2, n, vocab, r->logits, err) : put(r, "logits.last", "F32", 1, vocab, 0, r->logits_last, err));
    if (r->n_greedy) {
        LM_TRY(put(r, "greedy", "I32", 1, r->n_greedy, 0, r->greedy, err));
        LM_TRY(put(r, "greedy.logits", "F32", 2, r->n_greedy, vocab, r->greedy_logits, err));
    }
    return plan_values(r, err);
}

static lm_status plan_prints(recorder *r, lm_error *err) {
    const uint32_t n = r->e->program->n_ops;
    if (!r->o->fingerprint) return LM_OK;
    r->print = get(r, n, sizeof *r->print, err);
    r->printed = get(r, n, sizeof *r->printed, err);
    if (!r->print || !r->printed) return LM_NOMEM;
    for (uint32_t i = 0; i < n; i++) lm_sha256_init(&r->print[i]);
    return LM_OK;
}

static lm_status tell_prints(recorder *r, lm_error *err) {
    const lm_program *p = r->e->program;
    for (uint32_t i = 0; r->print && i < p->n_ops; i++) {
        uint8_t digest[32];
        char hex[65];
        if (r->printed[i] != r->n)
            return lm_fail(err, LM_INTERNAL, "case %u: %u of %u rows of %s were seen", r->k, r->printed[i], r->n, p->op[i].name);
        lm_sha256_final(&r->print[i], digest);
        lm_sha256_hex(digest, hex);
        r->o->fingerprint(r->o->fingerprint_ctx, &(lm_fingerprint){r->k, p->op[i].name, r->n, p->value[p->op[i].out].width, hex});
    }
    return LM_OK;
}

static lm_status run_case(recorder *r, uint32_t k, const int32_t *id, uint32_t n, lm_error *err) {
    lm_session *s = NULL;
    r->k = k;
    r->id = id;
    r->n = n;
    LM_TRY(plan_case(r, err));
    LM_TRY(plan_prints(r, err));
    LM_TRY(lm_session_create(r->e, r->o->run.chunk, &s, err));
    lm_eval ev = {.id = id, .n = n, .want = LM_WANT_ALL, .logits = on_prompt, .logits_ctx = r, .tap = on_tap, .tap_ctx = r};
    lm_status st = lm_session_eval(s, &ev, err);
    for (r->step = 1; st == LM_OK && r->step < r->n_greedy; r->step++) {
        ev = (lm_eval){.id = &r->greedy[r->step - 1], .n = 1, .want = LM_WANT_LAST, .logits = on_greedy, .logits_ctx = r};
        st = lm_session_eval(s, &ev, err);
    }
    lm_session_free(s);
    if (r->stray) return lm_fail(err, LM_INTERNAL, "case %u: a row of a position that wasn't asked for", k);
    if (r->not_finite) return lm_fail(err, LM_RANGE, "case %u: the logits are not finite; a trace can't be written", k);
    for (uint32_t i = 0; i < r->n_keep && st == LM_OK; i++)
        if (r->keep[i].rows != n) st = lm_fail(err, LM_INTERNAL, "case %u: %u of %u rows of an op were seen", k, r->keep[i].rows, n);
    return st == LM_OK ? tell_prints(r, err) : st;
}

/* ---- where the ids come from, and the file
 * ------------------------------------------------------------------------------------------------ */
static lm_status run_trace(recorder *r, lm_error *err) {
    lm_trace *t = NULL;
    LM_TRY(lm_trace_open(r->o->ids_from, r->e->program, &t, err));
    lm_status st = LM_OK;
    for (uint32_t i = 0; i < t->n_cases && st == LM_OK; i++) {
        uint32_t n = t->c[i].n;
        int32_t *id = get(r, n, sizeof *id, err);
        if (id) memcpy(id, t->c[i].ids, n * sizeof *id);
        st = id ? run_case(r, t->c[i].k, id, n, err) : LM_NOMEM;
    }
    lm_trace_close(t);
    return st;
}

static lm_status run_prompt(recorder *r, lm_error *err) {
    lm_tokenizer *tok = NULL;
    lm_ids ids = {0};
    lm_status st = lm_tokenizer_from_source(r->e->src, &tok, err);
    if (st == LM_MISSING)
        return lm_fail_at(err, LM_USAGE, r->e->src->path, LM_NO_OFFSET, "--prompt",
                          "the model carries no tokenizer; give token ids with --ids");
    if (st == LM_OK) st = lm_tokenizer_encode(tok, r->o->prompt, strlen(r->o->prompt), true, true, &ids, err);
    if (st == LM_OK && (!ids.n || ids.n > INT32_MAX))
        st = lm_fail_at(err, LM_USAGE, NULL, LM_NO_OFFSET, "--prompt", "the text gives %zu tokens", ids.n);
    int32_t *id = st == LM_OK ? get(r, ids.n, sizeof *id, err) : NULL;
    if (st == LM_OK && !id) st = LM_NOMEM;
    if (id) memcpy(id, ids.id, ids.n * sizeof *id);
    if (st == LM_OK) st = run_case(r, 0, id, (uint32_t)ids.n, err);
    lm_ids_free(&ids);
    lm_tokenizer_free(tok);
    return st;
}

static lm_status write_file(recorder *r, lm_error *err) {
    const lm_backend *b = r->e->backend;
    const lm_device_options *d = &r->e->opt.device;
    char weights[65];
    LM_TRY(lm_source_sha256(r->e->src, weights, NULL, NULL, err));
    const char *lane = d->lane ? d->lane : b->lanes[0];
    const char *meta[] = {"trace_version",
                          "1",
                          "made_by",
                          "lemma " LM_VERSION " " LM_COMMIT,
                          "backend",
                          b->name,
                          "lane",
                          lane,
                          "device",
                          b->describe(r->e->device),
                          "model_type",
                          r->e->program->arch,
                          "dtype",
                          b->cache(r->e->device)->elem_size == 8 ? "float64" : "float32",
                          "weights_sha256",
                          weights,
                          NULL};
    return lm_safetensors_write(r->o->out, r->out, r->n_out, meta, err);
}

static lm_status check_options(const lm_dump_options *o, lm_error *err) {
    int given = (o->n_ids > 0) + (o->ids_from != NULL) + (o->prompt != NULL);
    if (given != 1) return lm_fail(err, LM_USAGE, "give exactly one of --ids, --ids-from and --prompt");
    if (o->n_ids > INT32_MAX) return lm_fail_at(err, LM_USAGE, NULL, LM_NO_OFFSET, "--ids", "%zu ids are too many", o->n_ids);
    return o->out || o->fingerprint ? LM_OK : lm_fail_at(err, LM_USAGE, NULL, LM_NO_OFFSET, "-o", "name the file to write");
}

static lm_status record(recorder *r, lm_error *err) {
    const lm_dump_options *o = r->o;
    r->row = get(r, r->e->program->vocab, sizeof *r->row, err);
    if (!r->row) return LM_NOMEM;
    lm_sha256_init(&r->hash);
    LM_TRY(o->ids_from ? run_trace(r, err) : o->prompt ? run_prompt(r, err) : run_case(r, 0, o->ids, (uint32_t)o->n_ids, err));
    return o->out ? write_file(r, err) : LM_OK;
}

lm_status lm_dump(const char *model, const lm_dump_options *o, char hash[65], lm_error *err) {
    LM_TRY(check_options(o, err));
    lm_engine_options eo = {.backend = o->run.backend,
                            .device = {.threads = o->run.threads, .lane = o->run.lane, .kv = o->run.kv, .cpu_level = o->run.cpu_level},
                            .progress = {o->run.progress, o->run.progress_ctx},
                            .interrupted = o->run.interrupted,
                            .interrupted_ctx = o->run.interrupted_ctx};
    lm_engine *e = NULL;
    LM_TRY(lm_engine_open(model, &eo, &e, err));
    lm_status st = lm_dump_engine(e, o, hash, err);
    lm_engine_close(e);
    return st;
}

lm_status lm_dump_engine(lm_engine *e, const lm_dump_options *o, char hash[65], lm_error *err) {
    recorder r = {.o = o, .e = e, .arena = lm_arena_create()};
    if (!r.arena) return lm_fail_nomem(err, "a trace", sizeof r);
    lm_status st = o->out ? lm_target_check(o->out, e->src, err) : LM_OK;
    if (st == LM_OK) st = record(&r, err);
    if (st == LM_OK && hash) {
        uint8_t d[32];
        lm_sha256_final(&r.hash, d);
        lm_sha256_hex(d, hash);
    }
    lm_free(r.out);
    lm_arena_destroy(r.arena);
    return st;
}
