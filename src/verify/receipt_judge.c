/* A receipt checked: one pass over its ids, in which every step's logits are hashed and its id is drawn again as the rows come. */
#include "base/map.h"
#include "verify/receipt.h"
#include "verify/verify.h"
#include <stdio.h>
#include <string.h>

typedef struct again { /* a step, run again */
    bool same_logits;
    int32_t id; /* drawn now; −1: nothing could be */
} again;

typedef struct check {
    lm_engine *e;
    lm_engine_options eo;
    const lm_verify_options *o;
    const char *model, *path;
    lm_receipt *r;
    lm_ledger *l;
    lm_pool *pool;
    lm_sampler **sampler;         /* one per thread of the pool */
    again *again;                 /* [n_steps] */
    bool stray;                   /* a row came that was not asked for */
    int32_t *id;                  /* [n_prompt + n_steps] */
    char sha256[65], witness[65]; /* of the weights here; of the receipt's file */
    bool weights_differ;
    char edited[256]; /* "" or the names of the fields that were changed */
    bool edited_field[LM_RECEIPT_N_FIELDS];
    uint32_t same_logits, same_ids; /* how many steps are right */
    uint32_t bad_logits, bad_id;    /* the first that isn't; LM_NO_ID: all are */
    uint32_t seen;
} check;

/* ---- the pass --------------------------------------------------------------------------------------------------------------------------
 */
typedef struct block { /* the rows of one callback; each is a task of the pool */
    check *c;
    const lm_rows *rows;
    uint32_t first_step;
} block;

static void check_row(void *ctx, uint32_t i, uint32_t thread) {
    const block *b = ctx;
    check *c = b->c;
    const lm_rows *rows = b->rows;
    const uint32_t step = b->first_step + i;
    const size_t bytes = (size_t)rows->width * (rows->is_f64 ? sizeof(double) : sizeof(float));
    const lm_logits l = {.data = rows->data, .is_f64 = rows->is_f64, .rows = rows->n, .width = rows->width, .position = rows->row};
    again *a = &c->again[step];
    uint8_t digest[32];
    lm_sha256 h;
    lm_sha256_init(&h);
    lm_sha256_update(&h, (const uint8_t *)rows->data + i * bytes, bytes);
    lm_sha256_final(&h, digest);
    a->same_logits = !memcmp(digest, c->r->step[step].logits, sizeof digest);
    if (lm_sampler_pick(c->sampler[thread], &l, i, c->id, c->r->n_prompt + step, step, &a->id, NULL) != LM_OK)
        a->id = -1; /* from such logits (a NaN among them) nothing can be drawn */
}

static bool on_rows(void *ctx, const lm_rows *rows) {
    check *c = ctx;
    const uint32_t first = c->r->n_prompt - 1;
    for (uint32_t i = 0; i < rows->n; i++)
        if (rows->row[i] != first + c->seen + i || c->seen + i >= c->r->n_steps) return !(c->stray = true);
    block b = {c, rows, c->seen};
    lm_pool_run(c->pool, check_row, &b, rows->n);
    c->seen += rows->n;
    return !c->o->run.progress || c->o->run.progress(c->o->run.progress_ctx, "checking the receipt", c->seen, c->r->n_steps);
}

static void count(check *c) {
    for (uint32_t i = 0; i < c->r->n_steps; i++) {
        const bool same_id = c->again[i].id == c->r->step[i].id;
        c->same_logits += c->again[i].same_logits;
        c->same_ids += same_id;
        if (!c->again[i].same_logits && c->bad_logits == LM_NO_ID) c->bad_logits = i;
        if (!same_id && c->bad_id == LM_NO_ID) c->bad_id = i;
    }
}

/* Where the run was made, no row past a longrope border was computed with the factors of before it, nor the reverse: the pass stops there.
 */
static uint32_t next_stop(const lm_program *p, uint32_t at, uint32_t n) {
    for (uint32_t i = 0; i < p->n_ropes; i++)
        if (p->rope[i].border > at && p->rope[i].border < n) n = p->rope[i].border;
    return n;
}

static lm_status pass(check *c, lm_error *err) {
    const uint32_t first = c->r->n_prompt - 1, n = first + c->r->n_steps;
    lm_session *s = NULL;
    LM_TRY(lm_session_create(c->e, c->o->run.chunk, &s, err));
    lm_status st = LM_OK;
    if (first) st = lm_session_eval(s, &(lm_eval){.id = c->id, .n = first, .length = c->r->n_prompt, .want = LM_WANT_NONE}, err);
    for (uint32_t at = first, to; st == LM_OK && at < n; at = to) {
        to = next_stop(c->e->program, at, n);
        st = lm_session_eval(s, &(lm_eval){.id = c->id + at, .n = to - at, .want = LM_WANT_ALL, .logits = on_rows, .logits_ctx = c}, err);
    }
    lm_session_free(s);
    if (c->stray) return lm_fail(err, LM_INTERNAL, "a row of logits came that was not asked for");
    if (st == LM_OK && c->seen != c->r->n_steps) st = lm_fail(err, LM_INTERNAL, "%u of %u rows of logits came", c->seen, c->r->n_steps);
    if (st == LM_OK) count(c);
    return st;
}

/* ---- the claims ------------------------------------------------------------------------------------------------------------------------
 */
static lm_status add(check *c, bool ok, bool gate, const char *section, const char *name, const char *bound, const char *measured,
                     const char *note, lm_error *err) {
    const lm_claim claim = {.verdict = ok ? LM_PROVEN : LM_REFUTED,
                            .gate = gate,
                            .section = section,
                            .name = name,
                            .bound = bound,
                            .measured = measured,
                            .witness = c->path,
                            .sha256 = c->witness,
                            .note = ok ? NULL : note};
    return lm_ledger_add(c->l, &claim, err);
}

static lm_status judge_edits(check *c, lm_error *err) {
    uint32_t n = 0;
    size_t at = 0;
    for (uint32_t i = 0; i < LM_RECEIPT_N_FIELDS; i++) {
        char now[LM_RECEIPT_DIGEST + 1];
        lm_receipt_field_digest(c->r, i, now);
        c->edited_field[i] = strcmp(now, c->r->digest[i]) != 0;
        if (!c->edited_field[i]) continue;
        at += (size_t)snprintf(c->edited + at, sizeof c->edited - at, "%s%s", n++ ? ", " : "", lm_receipt_field_name(i));
    }
    return add(c, !n, false, "receipt", "as it was made", "every field's digest",
               lm_say(c->l, "%u of %d fields", LM_RECEIPT_N_FIELDS - n, LM_RECEIPT_N_FIELDS),
               lm_say(c->l, "changed after the receipt was made: %s", c->edited), err);
}

static bool on_hash(void *ctx, uint64_t done, uint64_t total) {
    const lm_evidence_options *o = &((const check *)ctx)->o->run;
    return !o->progress || o->progress(o->progress_ctx, "hashing the weights", done, total);
}

static lm_status judge_weights(check *c, lm_error *err) {
    LM_TRY(lm_source_sha256(c->e->src, c->sha256, on_hash, c, err));
    c->weights_differ = strcmp(c->sha256, c->r->weights_sha256) != 0;
    return add(c, !c->weights_differ, false, "binding", "the receipt is of these weights", "equal sha256", lm_say(c->l, "%.16s", c->sha256),
               lm_say(c->l, "the receipt was made with weights %.16s", c->r->weights_sha256), err);
}

/* Why the logits of step k are others, as far as the receipt tells. */
static const char *why_logits(check *c, uint32_t k) {
    const lm_receipt *r = c->r;
    if (c->weights_differ) return "the weights are others";
    if (c->bad_id != LM_NO_ID && c->bad_id < k)
        return lm_say(c->l, "they follow from id %d at step %u, which was not drawn there", r->step[c->bad_id].id, c->bad_id);
    static const uint32_t causes[] = {LM_RECEIPT_weights_sha256, LM_RECEIPT_backend, LM_RECEIPT_lane, LM_RECEIPT_kv,
                                      LM_RECEIPT_prompt,         LM_RECEIPT_logits};
    for (size_t i = 0; i < sizeof causes / sizeof *causes; i++)
        if (c->edited_field[causes[i]]) return lm_say(c->l, "%s was changed after the receipt was made", lm_receipt_field_name(causes[i]));
    return lm_say(c->l, "equal weights, lane and ids must give equal bits: %s (%s) and this build differ", r->made_by, r->device);
}

/* Why these logits draw another id at step k: if those after it follow from the receipt's id, that one was drawn, with other parameters. */
static const char *why_id(check *c, uint32_t k) {
    const lm_sampler_options *o = &c->r->sampler;
    const char *what = NULL;
    if (c->bad_logits != LM_NO_ID && c->bad_logits <= k) return "the logits are others";
    for (uint32_t i = LM_RECEIPT_temperature; i <= LM_RECEIPT_seed && !what; i++)
        if (c->edited_field[i]) what = lm_say(c->l, "%s was changed after the receipt was made", lm_receipt_field_name(i));
    if (what) return what;
    if (c->edited_field[LM_RECEIPT_ids] || c->bad_logits == k + 1) return lm_say(c->l, "the id was changed");
    return lm_say(c->l, "it was not drawn with temperature %g, top-k %u, top-p %g, min-p %g, repeat penalty %g over %u, seed %llu",
                  o->temperature, o->top_k, o->top_p, o->min_p, o->repeat_penalty, o->repeat_last_n, (unsigned long long)o->seed);
}

static lm_status judge_steps(check *c, lm_error *err) {
    const lm_receipt *r = c->r;
    const char *logits = "", *ids = "", *first;
    if (c->bad_logits != LM_NO_ID)
        logits = lm_say(c->l, "step %u (position %u): the logits are other bits: %s", c->bad_logits, r->n_prompt - 1 + c->bad_logits,
                        why_logits(c, c->bad_logits));
    if (c->bad_id != LM_NO_ID)
        ids = lm_say(c->l, "step %u: the receipt has id %d, these logits and parameters draw %s: %s", c->bad_id, r->step[c->bad_id].id,
                     c->again[c->bad_id].id < 0 ? "none" : lm_say(c->l, "%d", c->again[c->bad_id].id), why_id(c, c->bad_id));
    LM_TRY(add(c, !*logits, true, "receipt", "logits of every step", "equal sha256",
               lm_say(c->l, "%u of %u equal", c->same_logits, r->n_steps), logits, err));
    LM_TRY(add(c, !*ids, true, "receipt", "ids of every step", "drawn again", lm_say(c->l, "%u of %u equal", c->same_ids, r->n_steps), ids,
               err));
    first = c->bad_id < c->bad_logits ? ids : logits;
    if (!*first && c->weights_differ) first = "every step is the same, but the weights are others";
    if (!*first && c->edited[0]) first = "every step follows, but the receipt was changed after it was made";
    return add(c, !*first, true, "receipt", "reproduced", "every step, and nothing changed",
               *first ? "parts" : lm_say(c->l, "%u steps", r->n_steps), first, err);
}

/* ---- the whole -------------------------------------------------------------------------------------------------------------------------
 */
/* Backend and lane are the receipt's; an option may only say the same. */
static lm_status choose(check *c, lm_error *err) {
    const lm_evidence_options *o = &c->o->run;
    if (o->backend && strcmp(o->backend, c->r->backend))
        return lm_fail_at(err, LM_USAGE, c->path, LM_NO_OFFSET, "backend", "the receipt was made on %s: leave --backend %.40s out",
                          c->r->backend, o->backend);
    if (o->lane && strcmp(o->lane, c->r->lane))
        return lm_fail_at(err, LM_USAGE, c->path, LM_NO_OFFSET, "lane", "the receipt was made in lane %s: leave --lane %.40s out",
                          c->r->lane, o->lane);
    /* what cpu kept when receipts first said nothing of it */
    const char *kv = c->r->kv[0] ? c->r->kv : strcmp(c->r->backend, "cpu") ? NULL : "f32";
    if (o->kv && (!kv || strcmp(o->kv, kv)))
        return lm_fail_at(err, LM_USAGE, c->path, LM_NO_OFFSET, "kv", "the receipt's keys and values were kept as %s: leave --kv %.40s out",
                          kv ? kv : "the backend does", o->kv);
    c->eo = (lm_engine_options){.backend = c->r->backend,
                                .device = {.threads = o->threads, .lane = c->r->lane, .kv = kv, .cpu_level = o->cpu_level},
                                .progress = {o->progress, o->progress_ctx},
                                .interrupted = o->interrupted,
                                .interrupted_ctx = o->interrupted_ctx};
    return LM_OK;
}

static lm_status check_ids(check *c, lm_error *err) {
    const uint32_t vocab = c->e->program->vocab, n = c->r->n_prompt + c->r->n_steps;
    c->id = lm_calloc(n, sizeof *c->id);
    if (!c->id) return lm_fail_nomem(err, "ids", n * sizeof *c->id);
    memcpy(c->id, c->r->prompt, c->r->n_prompt * sizeof *c->id);
    for (uint32_t i = 0; i < c->r->n_steps; i++) c->id[c->r->n_prompt + i] = c->r->step[i].id;
    for (uint32_t i = 0; i < n; i++)
        if ((uint32_t)c->id[i] >= vocab)
            return lm_fail_at(err, LM_RANGE, c->path, LM_NO_OFFSET, i < c->r->n_prompt ? "prompt" : "steps",
                              "token id %d at position %u is outside the model's vocabulary of %u", c->id[i], i, vocab);
    return LM_OK;
}

static lm_status open_samplers(check *c, lm_error *err) {
    LM_TRY(lm_pool_create(c->o->run.threads, &c->pool, err));
    c->sampler = lm_calloc(lm_pool_size(c->pool), sizeof *c->sampler);
    c->again = lm_calloc((size_t)c->r->n_steps + 1, sizeof *c->again);
    if (!c->sampler || !c->again) return lm_fail_nomem(err, "the steps", c->r->n_steps * sizeof *c->again);
    for (uint32_t i = 0; i < lm_pool_size(c->pool); i++) {
        const lm_status st = lm_sampler_create(&c->r->sampler, c->e->program->vocab, &c->sampler[i], err);
        if (st == LM_OK) continue;
        lm_error_set_file(err, c->path);
        return st;
    }
    return LM_OK;
}

static lm_status witness(check *c, lm_error *err) {
    lm_map map;
    uint8_t digest[32];
    lm_sha256 h;
    LM_TRY(lm_map_open(c->path, &map, err));
    lm_sha256_init(&h);
    lm_sha256_update(&h, map.data, map.size);
    lm_sha256_final(&h, digest);
    lm_sha256_hex(digest, c->witness);
    lm_map_close(&map);
    return LM_OK;
}

static lm_status run(check *c, lm_error *err) {
    LM_TRY(lm_receipt_read(c->path, &c->r, err));
    LM_TRY(witness(c, err));
    LM_TRY(choose(c, err));
    LM_TRY(lm_engine_open(c->model, &c->eo, &c->e, err));
    LM_TRY(check_ids(c, err));
    LM_TRY(open_samplers(c, err));
    LM_TRY(lm_ledger_create(&c->l, err));
    c->l->fn = c->o->claim;
    c->l->ctx = c->o->claim_ctx;
    c->l->arch = lm_say(c->l, "%s", c->e->program->arch);
    c->l->backend = lm_say(c->l, "%s", c->r->backend);
    c->l->lane = lm_say(c->l, "%s", c->r->lane);
    c->l->subject = lm_say(c->l, "%s (%s) on %s, lane %s (%s), against the receipt %s made by %s on %s", c->model, c->e->program->arch,
                           c->r->backend, c->r->lane, c->e->backend->describe(c->e->device), c->path, c->r->made_by, c->r->device);
    if (c->o->subject) c->o->subject(c->o->claim_ctx, c->l->subject);
    LM_TRY(judge_edits(c, err));
    LM_TRY(judge_weights(c, err));
    if (!c->r->n_steps) return LM_OK; /* nothing was generated: nothing to prove */
    LM_TRY(pass(c, err));
    return judge_steps(c, err);
}

lm_status lm_verify_receipt(const char *model, const char *receipt, const lm_verify_options *o, lm_ledger **out, lm_error *err) {
    check c = {.o = o, .model = model, .path = receipt, .bad_logits = LM_NO_ID, .bad_id = LM_NO_ID};
    lm_status st = run(&c, err);
    for (uint32_t i = 0; c.sampler && i < lm_pool_size(c.pool); i++) lm_sampler_free(c.sampler[i]);
    lm_free(c.sampler);
    lm_free(c.again);
    lm_pool_destroy(c.pool);
    lm_engine_close(c.e);
    lm_receipt_free(c.r);
    lm_free(c.id);
    if (st != LM_OK) {
        lm_ledger_free(c.l);
        return st;
    }
    *out = c.l;
    return LM_OK;
}
