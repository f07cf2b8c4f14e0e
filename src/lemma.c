/* The public API: models, sessions, tokenizers and hashes over the engine. Nothing is computed here. */
#include "lemma/lemma.h"

#include <string.h>

#include "base/hash.h"
#include "engine/model.h"
#include "kernels/kernels.h"
#include "tokenizer/tokenizer.h"
#include "version.h"

struct lm_model {
    lm_engine *engine;
    lm_tokenizer *tokenizer; /* NULL until asked for */
    int32_t *eos;            /* where there is no tokenizer */
    size_t n_eos;
    bool eos_read;
};

const char *lm_version(void) { return LM_VERSION; }
const char *lm_commit(void) { return LM_COMMIT; }
const char *lm_cpu_level(void) {
    const lm_kernels *k = NULL;
    return lm_kernels_pick(NULL, &k, NULL) == LM_OK ? k->level : "none";
}

/* ---- models -----------------------------------------------------------------------------------------------------------------*/
lm_status lm_model_open(const char *path, const lm_model_options *options, lm_model **out, lm_error *err) {
    lm_model_options o = options ? *options : (lm_model_options){0};
    lm_engine_options eo = {
        .backend = o.backend,
        .fast = true,
        .device = {.threads = o.threads, .lane = o.lane, .kv = o.kv, .cpu_level = o.cpu_level},
        .progress = {o.progress, o.progress_ctx},
        .interrupted = o.interrupted,
        .interrupted_ctx = o.interrupted_ctx,
    };
    lm_model *m = lm_calloc(1, sizeof *m);
    if (!m) return lm_fail_nomem(err, "the model", sizeof *m);
    lm_status s = lm_engine_open(path, &eo, &m->engine, err);
    if (s != LM_OK) {
        lm_free(m);
        return s;
    }
    *out = m;
    return LM_OK;
}

void lm_model_close(lm_model *m) {
    if (!m) return;
    lm_tokenizer_free(m->tokenizer);
    lm_free(m->eos);
    lm_engine_close(m->engine);
    lm_free(m);
}

void lm_model_get_info(const lm_model *m, lm_model_info *out) {
    const lm_engine *e = m->engine;
    *out = (lm_model_info){
        .arch = e->arch->name,
        .backend = e->backend->name,
        .lane = e->opt.device.lane ? e->opt.device.lane : e->backend->lanes[0],
        .kv = e->backend->cache(e->device)->name,
        .description = e->backend->describe(e->device),
        .vocab = e->program->vocab,
        .layers = e->program->n_layers,
        .hidden = e->program->hidden,
        .max_position = e->program->max_position,
        .held_bytes = e->backend->memory(e->device),
        .n_skipped = e->n_skipped,
    };
    for (uint32_t i = 0; i < e->program->n_ops; i++)
        if (e->program->op[i].kind == LM_OP_EMBED && e->program->op[i].embed.by_position)
            out->learned = e->program->op[i].embed.max_position;
    lm_engine_touched(e, &out->files, &out->weight_bytes);
}

lm_skipped_group lm_model_skipped(const lm_model *m, uint32_t i) {
    if (i >= m->engine->n_skipped) return (lm_skipped_group){0};
    return (lm_skipped_group){m->engine->skipped[i].group, m->engine->skipped[i].count};
}

static bool hashing(void *ctx, uint64_t done, uint64_t total) {
    const lm_progress *p = ctx;
    return !p->fn || p->fn(p->ctx, "hashing the weights", done, total);
}
lm_status lm_model_sha256(const lm_model *m, char hex[65], lm_error *err) {
    lm_progress p = m->engine->opt.progress;
    return lm_source_sha256(m->engine->src, hex, hashing, &p, err);
}

lm_status lm_model_check_target(const lm_model *m, const char *path, lm_error *err) { return lm_target_check(path, m->engine->src, err); }

/* The ids of a metadata value, an integer or an array of them. */
static bool read_ids(lm_model *m, const lm_value *v) {
    if (!v || (v->kind != LM_V_INT && (v->kind != LM_V_ARRAY || v->elem != LM_V_INT || !v->arr.n))) return false;
    size_t n = v->kind == LM_V_INT ? 1 : (size_t)v->arr.n;
    m->eos = lm_calloc(n, sizeof *m->eos);
    if (!m->eos) return false;
    for (size_t i = 0; i < n; i++) {
        int64_t id = v->kind == LM_V_INT ? v->i : ((const int64_t *)v->arr.data)[i];
        if (id >= 0 && id <= INT32_MAX) m->eos[m->n_eos++] = (int32_t)id;
    }
    return true;
}

const int32_t *lm_model_eos(lm_model *m, size_t *n) {
    const lm_tokenizer *t = NULL;
    if (lm_model_tokenizer(m, &t, NULL) == LM_OK) return lm_tokenizer_eos(t, n);
    const lm_source *s = m->engine->src;
    static const char *const keys[] = {"eos_token_id", "text_config.eos_token_id", "tokenizer.ggml.eos_token_id"};
    if (!m->eos_read) {
        bool found = read_ids(m, lm_meta_get(&s->generation, keys[0]));
        for (size_t i = 0; !found && i < sizeof keys / sizeof *keys; i++) found = read_ids(m, lm_meta_get(&s->meta, keys[i]));
        m->eos_read = true;
    }
    *n = m->n_eos;
    return m->eos;
}

/* ---- sessions ----------------------------------------------------------------------------------------------------------------*/
lm_status lm_model_session(lm_model *m, uint32_t chunk, lm_session **out, lm_error *err) {
    return lm_session_create(m->engine, chunk, out, err);
}

typedef struct adapter { lm_logits_cb cb; void *ctx; } adapter;
static bool hand_over(void *ctx, const lm_rows *r) {
    const adapter *a = ctx;
    lm_logits l = {.data = r->data, .is_f64 = r->is_f64, .rows = r->n, .width = r->width, .position = r->row};
    return a->cb(a->ctx, &l);
}

lm_status lm_session_append(lm_session *s, const int32_t *ids, uint32_t n, lm_rows_wanted want, lm_logits_cb cb, void *ctx, lm_error *err) {
    static const lm_want wants[] = {[LM_ROWS_NONE] = LM_WANT_NONE, [LM_ROWS_LAST] = LM_WANT_LAST, [LM_ROWS_ALL] = LM_WANT_ALL};
    if ((unsigned)want >= sizeof wants / sizeof *wants || (want != LM_ROWS_NONE && !cb))
        return lm_fail(err, LM_USAGE, "rows of logits are wanted, but there is no callback to take them");
    adapter a = {cb, ctx};
    lm_eval ev = {.id = ids, .n = n, .want = wants[want], .logits = cb ? hand_over : NULL, .logits_ctx = &a};
    return lm_session_eval(s, &ev, err);
}

/* ---- hash --------------------------------------------------------------------------------------------------------------------*/
struct lm_logits_hash { lm_sha256 sha; };

lm_status lm_logits_hash_create(lm_logits_hash **out, lm_error *err) {
    lm_logits_hash *h = lm_calloc(1, sizeof *h);
    if (!h) return lm_fail_nomem(err, "a hash", sizeof *h);
    lm_sha256_init(&h->sha);
    *out = h;
    return LM_OK;
}

void lm_logits_hash_add(lm_logits_hash *h, const lm_logits *l) {
    size_t elem = l->is_f64 ? sizeof(double) : sizeof(float);
    lm_sha256_update(&h->sha, l->data, (size_t)l->rows * l->width * elem);
}

void lm_logits_hash_hex(const lm_logits_hash *h, char hex[65]) {
    lm_sha256 copy = h->sha;
    uint8_t digest[32];
    lm_sha256_final(&copy, digest);
    lm_sha256_hex(digest, hex);
}

void lm_logits_hash_free(lm_logits_hash *h) { lm_free(h); }

/* ---- tokenizers --------------------------------------------------------------------------------------------------------------*/
lm_status lm_model_tokenizer(lm_model *m, const lm_tokenizer **out, lm_error *err) {
    if (!m->tokenizer) LM_TRY(lm_tokenizer_from_source(m->engine->src, &m->tokenizer, err));
    *out = m->tokenizer;
    return LM_OK;
}

lm_status lm_tokenizer_open(const char *path, lm_tokenizer **out, lm_error *err) {
    size_t n = strlen(path);
    if (n > 5 && !strcmp(path + n - 5, ".json")) return lm_tokenizer_from_json(path, out, err);
    lm_source *src = NULL;
    LM_TRY(lm_source_open(path, &src, err));
    lm_status s = lm_tokenizer_from_source(src, out, err);
    lm_error_set_file(s == LM_OK ? NULL : err, path);
    lm_source_close(src);
    return s;
}

lm_status lm_text_encode(const lm_tokenizer *t, const char *text, size_t n, bool special, bool parse_special, int32_t **ids, size_t *n_ids,
                         lm_error *err) {
    lm_ids list = {0};
    lm_status s = lm_tokenizer_encode(t, text, n, special, parse_special, &list, err);
    if (s != LM_OK) {
        lm_ids_free(&list);
        return s;
    }
    *ids = list.id;
    *n_ids = list.n;
    return LM_OK;
}
