/* Reading a trace. Nothing is believed: a name that isn't known, a shape that doesn't fit the program, an id outside the vocabulary or a
 * number that is none is refused, with the file, the tensor or key, and what was expected.
 */
#include "format/json.h"
#include "verify/verify.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
    const char *path;
    const lm_program *p;
    lm_trace *t;
    lm_error *err;
} reader;

#define BAD(r, tensor, ...) lm_fail_at((r)->err, LM_FORMAT, (r)->path, (tensor)->offset, (tensor)->name, __VA_ARGS__)
#define BAD_META(r, key, ...) lm_fail_at((r)->err, LM_FORMAT, (r)->path, LM_NO_OFFSET, key, __VA_ARGS__)

lm_val lm_hidden_value(const lm_program *p, uint32_t slot) {
    return slot == 0 ? p->embed : slot <= p->n_layers ? p->layer_out[slot - 1] : p->norm;
}

const char *lm_trace_hidden_name(const lm_trace *t, uint32_t slot, char buf[32]) {
    if (slot == 0) return "embed";
    if (slot > t->n_layers) return "norm";
    snprintf(buf, 32, "layer.%u", slot - 1);
    return buf;
}

/* "c12.rest" → 12 and "rest"; NULL when the name isn't of that form (no leading zeros, below 2^31). */
static const char *case_name(const char *name, uint32_t *k) {
    uint64_t v = 0;
    const char *d = name + 1;
    if (name[0] != 'c' || (d[0] == '0' && d[1] != '.')) return NULL;
    while (*d >= '0' && *d <= '9' && v < INT32_MAX) v = v * 10 + (uint64_t)(*d++ - '0');
    if (d == name + 1 || *d != '.' || v > INT32_MAX) return NULL;
    *k = (uint32_t)v;
    return d + 1;
}

static bool is_float(const lm_tensor *t) {
    static const char *const names[] = {"F32", "F64", "BF16", "F16"};
    for (size_t i = 0; i < 4; i++)
        if (t->type->st_name && !strcmp(t->type->st_name, names[i])) return true;
    return false;
}

/* A float tensor of exactly this shape; rows 0: a vector. */
static lm_status want_floats(reader *r, const lm_tensor *t, uint64_t rows, uint64_t cols) {
    uint64_t want[2] = {rows ? rows : cols, cols};
    uint32_t rank = rows ? 2 : 1;
    char wanted[64], found[64];
    if (!is_float(t)) return BAD(r, t, "is of type %s; F32, F64, F16 or BF16 is expected", t->type->name);
    if (t->rank == rank && t->dim[0] == want[0] && (rank == 1 || t->dim[1] == want[1])) return LM_OK;
    return BAD(r, t, "wanted the shape %s, found %s", lm_shape_text(rank, want, wanted, sizeof wanted),
               lm_shape_text(t->rank, t->dim, found, sizeof found));
}

/* An integer tensor of the given rank whose values lie in [0, below), copied. */
static lm_status get_ints(reader *r, const lm_tensor *t, uint32_t rank, const int32_t **out) {
    uint64_t n;
    char shape[64];
    if (!t->type->st_name || (strcmp(t->type->st_name, "I32") && strcmp(t->type->st_name, "I64")))
        return BAD(r, t, "is of type %s; I32 is expected", t->type->name);
    if (t->rank != rank || !lm_shape_count(t->rank, t->dim, &n) || n > INT32_MAX)
        return BAD(r, t, "a tensor of %u dimension%s is expected, found %s", rank, rank == 1 ? "" : "s",
                   lm_shape_text(t->rank, t->dim, shape, sizeof shape));
    int32_t *id = lm_arena_calloc(r->t->arena, n, sizeof *id);
    if (!id) return lm_fail_nomem(r->err, "a trace's ids", n * sizeof *id);
    for (uint64_t i = 0; i < n; i++) {
        double v;
        t->type->decode(t->data + i * t->type->bytes, &v, 1);
        if (!(v >= 0 && v < (double)r->p->vocab))
            return lm_fail_at(r->err, LM_RANGE, r->path, t->offset + i * t->type->bytes, t->name, "id %.0f is outside the vocabulary of %u",
                              v, r->p->vocab);
        id[i] = (int32_t)v;
    }
    *out = id;
    return LM_OK;
}

static lm_status get_ids(reader *r, const lm_tensor *t, uint64_t want, const int32_t **out, uint32_t *n) {
    LM_TRY(get_ints(r, t, 1, out));
    if (want && t->dim[0] != want) return BAD(r, t, "wanted %" PRIu64 " ids, found %" PRIu64, want, t->dim[0]);
    if (n) *n = (uint32_t)t->dim[0];
    return LM_OK;
}

static lm_status get_top_ids(reader *r, lm_trace_case *c, const lm_tensor *t) {
    LM_TRY(get_ints(r, t, 2, &c->top_ids));
    if (t->dim[0] != c->n || t->dim[1] > r->p->vocab) return BAD(r, t, "wanted %u rows of at most %u ids", c->n, r->p->vocab);
    c->n_top = (uint32_t)t->dim[1];
    return LM_OK;
}

static lm_status get_hidden(reader *r, lm_trace_case *c, const lm_tensor *t, const char *rest) {
    uint32_t slot = 0, n_layers = r->p->n_layers;
    if (!strcmp(rest, "norm")) {
        slot = n_layers + 1;
    } else if (strcmp(rest, "embed")) {
        uint64_t v = 0;
        const char *d = strncmp(rest, "layer.", 6) ? "" : rest + 6;
        bool ok = *d && (d[0] != '0' || !d[1]);
        for (; *d >= '0' && *d <= '9' && v <= n_layers; d++) v = v * 10 + (uint64_t)(*d - '0');
        if (!ok || *d || v >= n_layers) return BAD(r, t, "the model has embed, layer.0 to layer.%u, and norm", n_layers - 1);
        slot = (uint32_t)v + 1;
    }
    LM_TRY(want_floats(r, t, c->n, r->p->value[lm_hidden_value(r->p, slot)].width));
    c->hidden[slot] = t;
    c->n_hidden++;
    return LM_OK;
}

/* Everything of a case but ids, greedy and top.ids, which the others' shapes lean on. */
static lm_status get_tensor(reader *r, lm_trace_case *c, const lm_tensor *t, const char *rest) {
    uint64_t vocab = r->p->vocab;
    if (!strcmp(rest, "ids") || !strcmp(rest, "greedy") || !strcmp(rest, "top.ids")) return LM_OK;
    if (!strncmp(rest, "hidden.", 7)) return get_hidden(r, c, t, rest + 7);
    if (!strcmp(rest, "argmax")) return get_ids(r, t, c->n, &c->argmax, NULL);
    if (!strcmp(rest, "logits")) return c->logits = t, want_floats(r, t, c->n, vocab);
    if (!strcmp(rest, "logits.last")) return c->logits_last = t, want_floats(r, t, 0, vocab);
    if (!strcmp(rest, "top.logprobs")) {
        if (!c->top_ids) return BAD(r, t, "has no top.ids beside it");
        return c->top_logprobs = t, want_floats(r, t, c->n, c->n_top);
    }
    if (!strcmp(rest, "top.rest")) {
        if (!c->top_ids) return BAD(r, t, "has no top.ids beside it");
        return c->top_rest = t, want_floats(r, t, 0, c->n);
    }
    if (!strcmp(rest, "greedy.logits")) {
        if (!c->greedy) return BAD(r, t, "has no greedy beside it");
        return c->greedy_logits = t, want_floats(r, t, c->n_greedy, vocab);
    }
    if (!strncmp(rest, "tap.", 4) && rest[4]) return want_floats(r, t, c->n, t->rank == 2 ? t->dim[1] : 1);
    return BAD(r, t, "is no tensor that a trace has");
}

static int by_number(const void *a, const void *b) {
    uint32_t x = ((const lm_trace_case *)a)->k, y = ((const lm_trace_case *)b)->k;
    return (x > y) - (x < y);
}

static lm_trace_case *find_case(const lm_trace *t, uint32_t k) {
    return bsearch(&(lm_trace_case){.k = k}, t->c, t->n_cases, sizeof *t->c, by_number);
}

/* Which cases there are: tensors are sorted by name, so those of a case stand together. */
static lm_status find_cases(reader *r) {
    const lm_source *f = r->t->file;
    uint32_t n = 0, k = 0;
    lm_trace_case *c = lm_arena_calloc(r->t->arena, (size_t)f->n_tensors + 1, sizeof *c);
    if (!c) return lm_fail_nomem(r->err, "a trace's cases", f->n_tensors * sizeof *c);
    for (uint32_t i = 0; i < f->n_tensors; i++) {
        if (!case_name(f->tensor[i].name, &k))
            return BAD(r, &f->tensor[i], "is no tensor that a trace has: names are cK.WHAT, K counting from 0");
        if (!n || c[n - 1].k != k) c[n++].k = k;
    }
    if (!n) return lm_fail_at(r->err, LM_FORMAT, r->path, LM_NO_OFFSET, "c0.ids", "the trace holds no case");
    qsort(c, n, sizeof *c, by_number);
    r->t->c = c;
    r->t->n_cases = n;
    return LM_OK;
}

static lm_status read_tensors(reader *r) {
    const lm_source *f = r->t->file;
    uint32_t k = 0;
    LM_TRY(find_cases(r));
    for (uint32_t i = 0; i < r->t->n_cases; i++) {
        lm_trace_case *c = &r->t->c[i];
        char name[32];
        const lm_tensor *t;
        c->hidden = lm_arena_calloc(r->t->arena, (size_t)r->p->n_layers + 2, sizeof *c->hidden);
        if (!c->hidden) return lm_fail_nomem(r->err, "a trace's cases", r->p->n_layers * sizeof *c->hidden);
        snprintf(name, sizeof name, "c%u.ids", c->k);
        if (!(t = lm_source_tensor(f, name)))
            return lm_fail_at(r->err, LM_FORMAT, r->path, LM_NO_OFFSET, name, "is missing: a case without token ids");
        LM_TRY(get_ids(r, t, 0, &c->ids, &c->n));
        snprintf(name, sizeof name, "c%u.greedy", c->k);
        if ((t = lm_source_tensor(f, name))) LM_TRY(get_ids(r, t, 0, &c->greedy, &c->n_greedy));
        snprintf(name, sizeof name, "c%u.top.ids", c->k);
        if ((t = lm_source_tensor(f, name))) LM_TRY(get_top_ids(r, c, t));
    }
    for (uint32_t i = 0; i < f->n_tensors; i++) {
        const char *rest = case_name(f->tensor[i].name, &k);
        LM_TRY(get_tensor(r, find_case(r->t, k), &f->tensor[i], rest));
    }
    return LM_OK;
}

/* ---- metadata ------------------------------------------------------------------------------------------------------------------ */
static const char *meta(const reader *r, const char *key) {
    const lm_value *v = lm_meta_get(&r->t->file->meta, key);
    return v && v->kind == LM_V_STRING ? v->str.s : NULL;
}

/* A finite number ≥ 0, or "n/a …", which counts as absent. */
static lm_status get_number(reader *r, const char *key, double *out) {
    const char *s = meta(r, key);
    char *end;
    if (!s || !strncmp(s, "n/a", 3)) return LM_OK;
    double v = strtod(s, &end);
    if (!*s || strspn(s, "+-.0123456789eE") != strlen(s) || *end || !isfinite(v) || v < 0)
        return BAD_META(r, key, "\"%.60s\" is neither a finite number from 0 up nor n/a", s);
    *out = v;
    return LM_OK;
}

static lm_status gate_number(reader *r, const char *key, json_t *o, const char *field, double max, double *out) {
    json_t *x = json_object_get(o, field);
    double v = json_is_number(x) ? json_number_value(x) : NAN;
    if (!(v >= 0 && v <= max)) return BAD_META(r, key, "%s must be a number from 0 to %g", field, max);
    *out = v;
    return LM_OK;
}

static lm_status get_gate(reader *r, const char *key, const char *text, size_t n, lm_gate2 *g) {
    json_t *o = NULL;
    LM_TRY(lm_json_parse((const uint8_t *)text, n, 0, r->path, &o, r->err));
    lm_status s = json_is_object(o) ? LM_OK : BAD_META(r, key, "must be a JSON object");
    if (s == LM_OK && json_object_size(o) != 3)
        s = BAD_META(r, key, "must have top1_min, top1_quarter_min and max_dlogprob, and nothing else");
    if (s == LM_OK) s = gate_number(r, key, o, "top1_min", 1, &g->top1_min);
    if (s == LM_OK) s = gate_number(r, key, o, "top1_quarter_min", 1, &g->top1_quarter_min);
    if (s == LM_OK) s = gate_number(r, key, o, "max_dlogprob", 1e6, &g->max_dlogprob);
    g->present = s == LM_OK;
    json_decref(o);
    return s;
}

/* How far the reference stands from its own kin, as recorded: the worst of both distances. */
static lm_status get_distance(reader *r, const char *key, const lm_value *v, double *top1, double *quarter, double *max) {
    json_t *o = NULL, *q, *x;
    size_t i;
    LM_TRY(lm_json_parse((const uint8_t *)v->str.s, v->str.len, 0, r->path, &o, r->err));
    double t = json_number_value(json_object_get(o, "top1")), d = json_number_value(json_object_get(o, "max_dlogprob_top64"));
    lm_status s =
        json_is_number(json_object_get(o, "top1")) && json_is_number(json_object_get(o, "max_dlogprob_top64")) && t >= 0 && t <= 1 && d >= 0
            ? LM_OK
            : BAD_META(r, key, "must record top1 (0 to 1) and max_dlogprob_top64");
    if (s == LM_OK && t < *top1) *top1 = t;
    if (s == LM_OK && d > *max) *max = d;
    q = json_object_get(o, "top1_by_quarter");
    json_array_foreach(q, i, x) if (json_is_number(x) && json_number_value(x) < *quarter) *quarter = json_number_value(x);
    json_decref(o);
    return s;
}

/* A trace may ask for less than the tower gate allows, never for more: a float32 reference is met exactly; a bfloat16 one to the distance
 * that the reference keeps from its own kin, with the slack that the tower's own bounds have (0.02, 0.05 of the arg-maxes, a quarter of the
 * log-probability). */
static lm_status check_gate(reader *r, const lm_trace_case *c) {
    char key[48];
    double top1 = 1, quarter = 1, max = 0.002;
    if (!strcmp(r->t->dtype, "bfloat16")) {
        static const char *const kin[] = {"baseline", "vs_float32"};
        max = 0;
        for (int i = 0; i < 2; i++) {
            snprintf(key, sizeof key, "c%u.%s", c->k, kin[i]);
            const lm_value *v = lm_meta_get(&r->t->file->meta, key);
            if (!v) return BAD_META(r, key, "is missing: a bfloat16 reference is judged by its own distances");
            LM_TRY(get_distance(r, key, v, &top1, &quarter, &max));
        }
        top1 -= 0.02, quarter -= 0.05, max *= 1.25;
    }
    const double rounding = 1e-4; /* the bounds are written with four decimals */
    snprintf(key, sizeof key, "c%u.gate", c->k);
    if (c->gate.top1_min < top1 - rounding || c->gate.top1_quarter_min < quarter - rounding || c->gate.max_dlogprob > max + rounding)
        return BAD_META(r, key, "is looser than the tower gate: it may ask for no less than top-1 %.4f, %.4f in each quarter, and %.4f",
                        top1, quarter, max);
    return LM_OK;
}

/* The first row that a perplexity counts; the last one has no token after it. */
static lm_status get_scored_from(reader *r, const lm_meta_entry *e, lm_trace_case *c) {
    const char *s = e->value.str.s;
    const size_t n = strspn(s, "0123456789");
    const unsigned long v = n && n < 10 && !s[n] ? strtoul(s, NULL, 10) : UINT32_MAX;
    if (v && (uint64_t)v + 1 >= c->n) return BAD_META(r, e->key, "\"%.40s\" is not a row of its case but the last", s);
    c->scored_from = (uint32_t)v;
    return LM_OK;
}

/* Keys of cases: cK.text, cK.gate are read, the recorded distances must at least be JSON, the rest is commentary. */
static lm_status get_case_meta(reader *r, const lm_meta_entry *e) {
    uint32_t k = 0;
    const char *rest = case_name(e->key, &k);
    if (!rest) return LM_OK;
    bool text = !strcmp(rest, "text"), gate = !strcmp(rest, "gate");
    lm_trace_case *c = find_case(r->t, k);
    if (!c && (text || gate)) return BAD_META(r, e->key, "belongs to a case that the trace doesn't have");
    if (text) {
        c->text = e->value.str.s;
        c->text_n = e->value.str.len;
    } else if (gate) {
        LM_TRY(get_gate(r, e->key, e->value.str.s, e->value.str.len, &c->gate));
        if (!c->top_ids || !c->top_logprobs) return BAD_META(r, e->key, "a case judged by the tower gate needs top.ids and top.logprobs");
    } else if (!strcmp(rest, "scored_from") && c) {
        LM_TRY(get_scored_from(r, e, c));
    } else if (!strcmp(rest, "baseline") || !strcmp(rest, "vs_float32")) {
        json_t *o = NULL;
        LM_TRY(lm_json_parse((const uint8_t *)e->value.str.s, e->value.str.len, 0, r->path, &o, r->err));
        json_decref(o);
    }
    return LM_OK;
}

static lm_status read_metadata(reader *r) {
    lm_trace *t = r->t;
    const char *version = meta(r, "trace_version"), *sha = meta(r, "weights_sha256");
    double a = 0, b = 0;
    if (!version) return BAD_META(r, "trace_version", "is missing: this is no trace");
    if (strcmp(version, "1"))
        return lm_fail_at(r->err, LM_UNSUPPORTED, r->path, LM_NO_OFFSET, "trace_version", "is \"%.40s\"; this lemma reads version 1",
                          version);
    if (sha && (strlen(sha) != 64 || strspn(sha, "0123456789abcdef") != 64))
        return BAD_META(r, "weights_sha256", "must be 64 lower-case hexadecimal digits");
    t->weights_sha256 = sha;
    t->dtype = meta(r, "dtype") ? meta(r, "dtype") : "";
    LM_TRY(get_number(r, "cached_vs_full_max_dlogit", &a));
    LM_TRY(get_number(r, "float64_max_dlogit", &b));
    t->noise = a > b ? a : b;
    t->float64_noise = b;
    LM_TRY(get_number(r, "embed_scale_bf16", &t->embed_scale_bf16));
    LM_TRY(get_number(r, "final_logit_softcapping", &t->final_softcap));
    for (uint32_t i = 0; i < t->file->meta.n; i++) LM_TRY(get_case_meta(r, &t->file->meta.entry[i]));
    for (uint32_t i = 0; i < t->n_cases; i++)
        if (t->c[i].gate.present) LM_TRY(check_gate(r, &t->c[i]));
    return LM_OK;
}

void lm_trace_close(lm_trace *t) {
    if (!t) return;
    if (t->file) lm_source_close(t->file);
    lm_arena_destroy(t->arena);
    lm_free(t);
}

lm_status lm_trace_open(const char *path, const lm_program *p, lm_trace **out, lm_error *err) {
    lm_trace *t = lm_calloc(1, sizeof *t);
    if (t) t->arena = lm_arena_create();
    if (!t || !t->arena) {
        lm_free(t);
        return lm_fail_nomem(err, "a trace", sizeof *t);
    }
    reader r = {.path = path, .p = p, .t = t, .err = err};
    t->embed_scale_bf16 = t->final_softcap = NAN;
    t->n_layers = p->n_layers;
    lm_status s = lm_safetensors_open(path, &t->file, err);
    if (s == LM_OK) s = read_tensors(&r);
    if (s == LM_OK) s = read_metadata(&r);
    if (s == LM_OK) s = lm_source_sha256(t->file, t->sha256, NULL, NULL, err);
    if (s != LM_OK) {
        lm_error_set_file(err, path);
        lm_trace_close(t);
        return s;
    }
    *out = t;
    return LM_OK;
}
