/* verify: binding, traits, texts, then the gates, case by case. */
#include "verify/verify.h"
#include "tokenizer/tokenizer.h"
#include <stdio.h>
#include <string.h>

static lm_status add(lm_judge *j, lm_verdict v, const char *section, const char *name, const char *bound, const char *measured,
                     const char *note, lm_error *err) {
    lm_claim c = {.verdict = v,
                  .section = section,
                  .name = name,
                  .bound = bound,
                  .measured = measured,
                  .witness = j->trace_path,
                  .sha256 = j->t->sha256,
                  .note = note};
    return lm_ledger_add(j->l, &c, err);
}

/* ---- binding: is this trace about these weights? ----------------------------------------------------------------------------------- */
static bool on_hash(void *ctx, uint64_t done, uint64_t total) { return lm_judge_progress(ctx, "hashing the weights", done, total); }

static lm_status judge_binding(lm_judge *j, bool *refuted, lm_error *err) {
    char hex[65];
    const char *want = j->t->weights_sha256;
    *refuted = false;
    if (!want)
        return add(j, LM_OPEN, "binding", "the trace is of these weights", "", "unbound", "needs a trace that records weights_sha256", err);
    const lm_value *from =
        lm_meta_get(&j->e->src->meta, "lemma.source_sha256"); /* in a GGUF that lemma wrote: the folder that it was made from */
    if (from && from->kind == LM_V_STRING && !strcmp(from->str.s, want))
        return add(j, LM_OPEN, "binding", "the trace is of these weights", "equal sha256", lm_say(j->l, "converted from %.16s", want),
                   "is the file's own word: needs the folder that it was converted from", err);
    LM_TRY(lm_source_sha256(j->e->src, hex, on_hash, j, err));
    j->l->weights_sha256 = lm_say(j->l, "%s", hex);
    if (strcmp(hex, want) && j->o->converted)
        return add(
            j, LM_OPEN, "binding", "the trace is of these weights", "equal sha256", lm_say(j->l, "%.16s", hex),
            lm_say(j->l, "said to be converted from weights %.16s: needs a conversion that records them (lemma quantize does)", want), err);
    *refuted = strcmp(hex, want) != 0;
    return add(j, *refuted ? LM_REFUTED : LM_PROVEN, "binding", "the trace is of these weights", "equal sha256", lm_say(j->l, "%.16s", hex),
               *refuted ? lm_say(j->l, "the trace was made from weights %.16s; give the model that it was made from", want) : NULL, err);
}

/* ---- traits ------------------------------------------------------------------------------------------------------------------------- */
static lm_status judge_traits(lm_judge *j, lm_error *err) {
    const lm_program *p = j->e->program;
    for (uint32_t i = 0; i < p->n_traits; i++) {
        const lm_trait *t = &p->trait[i];
        const lm_trace_case *by = NULL;
        bool continued = false;
        for (uint32_t k = 0; k < j->t->n_cases; k++) {
            const lm_trace_case *c = &j->t->c[k];
            bool alone = c->n >= t->min_tokens, with = (uint64_t)c->n + c->n_greedy >= t->min_tokens;
            if (!with || (by && (!continued || !alone))) continue;
            by = c;
            continued = !alone;
        }
        if (by)
            LM_TRY(add(j, LM_PROVEN, "trait", t->name, lm_say(j->l, ">= %u tokens", t->min_tokens),
                       lm_say(j->l, "exercised by c%u (%u tokens%s)", by->k, by->n, continued ? " and its continuation" : ""), NULL, err));
        else
            LM_TRY(add(j, LM_OPEN, "trait", t->name, lm_say(j->l, ">= %u tokens", t->min_tokens), "",
                       lm_say(j->l, "needs a case of %u tokens or more", t->min_tokens), err));
    }
    return LM_OK;
}

/* ---- texts: the tokenizer gives the trace's ids ----------------------------------------------------------------------------------------
 */
static lm_status judge_text(lm_judge *j, const lm_tokenizer *tok, const lm_trace_case *c, lm_error *err) {
    lm_ids ids = {0};
    lm_status st = lm_tokenizer_encode(tok, c->text, c->text_n, true, true, &ids, err);
    uint32_t at = 0;
    while (st == LM_OK && at < c->n && at < ids.n && ids.id[at] == c->ids[at]) at++;
    if (st == LM_OK) {
        bool same = ids.n == c->n && at == c->n;
        const char *note = NULL;
        if (!same && at < c->n && at < ids.n)
            note = lm_say(j->l, "position %u: the tokenizer gives %d, the trace has %d", at, ids.id[at], c->ids[at]);
        else if (!same)
            note = lm_say(j->l, "the tokenizer gives %zu ids, the trace has %u, the first %u are equal", ids.n, c->n, at);
        st = add(j, same ? LM_PROVEN : LM_REFUTED, "text", lm_say(j->l, "c%u tokens of its text", c->k), "equal ids",
                 lm_say(j->l, "%u of %u equal", at, c->n), note, err);
    }
    lm_ids_free(&ids);
    return st;
}

static lm_status judge_texts(lm_judge *j, lm_error *err) {
    uint32_t n = 0;
    lm_tokenizer *tok = NULL;
    lm_error why = {0};
    for (uint32_t i = 0; i < j->t->n_cases; i++) n += j->t->c[i].text != NULL;
    if (!n) return LM_OK;
    lm_status st = lm_tokenizer_from_source(j->e->src, &tok, &why);
    if (st == LM_MISSING || st == LM_UNSUPPORTED)
        return add(j, LM_OPEN, "text", "tokens of the cases' texts", "equal ids", "", lm_say(j->l, "needs a tokenizer: %s", why.message),
                   err);
    if (st != LM_OK) {
        if (err) *err = why;
        return st;
    }
    for (uint32_t i = 0; i < j->t->n_cases && st == LM_OK; i++)
        if (j->t->c[i].text) st = judge_text(j, tok, &j->t->c[i], err);
    lm_tokenizer_free(tok);
    return st;
}

/* ---- what can't be compared -----------------------------------------------------------------------------------------------------------
 */
/* A value that is no finite number fails its gate; here are those that no gate compares. */
static lm_status judge_finite(lm_judge *j, const lm_tensor *t, lm_error *err) {
    double row[256];
    for (uint64_t at = 0, n, all = t ? t->bytes / 4 : 0; at < all; at += n) {
        n = all - at < 256 ? all - at : 256;
        lm_dequant_f64(t->type, t->data + at * 4, row, n);
        for (uint64_t k = 0; k < n; k++)
            if (!isfinite(row[k]))
                return add(j, LM_REFUTED, "G1", lm_say(j->l, "%.80s is finite", t->name), "every value",
                           lm_say(j->l, "%g at element %llu", row[k], (unsigned long long)(at + k)),
                           "the reference itself holds no number there", err);
    }
    return LM_OK;
}

static lm_status judge_values(lm_judge *j, lm_error *err) {
    uint32_t taps = 0;
    for (uint32_t i = 0; i < j->t->n_cases; i++) {
        const lm_trace_case *c = &j->t->c[i];
        if (!c->gate.present) continue;
        LM_TRY(judge_finite(j, c->logits, err));
        LM_TRY(judge_finite(j, c->logits_last, err));
        LM_TRY(judge_finite(j, c->greedy_logits, err));
    }
    for (uint32_t i = 0; i < j->t->file->n_tensors; i++) {
        const lm_tensor *t = &j->t->file->tensor[i];
        if (!strstr(t->name, ".tap.")) continue;
        taps++;
        LM_TRY(judge_finite(j, t, err));
    }
    if (!taps) return LM_OK;
    return add(j, LM_OPEN, "trace", "tapped ops", "", lm_say(j->l, "%u tensors not compared", taps),
               "needs lemma diff, which compares op by op", err);
}

/* ---- the whole
 * ---------------------------------------------------------------------------------------------------------------------------- */
static lm_status judge_all(lm_judge *j, lm_error *err) {
    bool refuted;
    LM_TRY(judge_binding(j, &refuted, err));
    if (refuted) return LM_OK; /* nothing else that it says is about this model */
    LM_TRY(judge_values(j, err));
    LM_TRY(judge_traits(j, err));
    LM_TRY(judge_texts(j, err));
    LM_TRY(lm_judge_tower_claims(j, err));
    const bool rounds = lm_lane_rounds(j->eo.device.lane);
    if (rounds) LM_TRY(lm_judge_g3(j, err));
    for (uint32_t i = 0; i < j->t->n_cases && !rounds; i++) {
        const lm_trace_case *c = &j->t->c[i];
        if (c->gate.present || j->hf_bf16)
            LM_TRY(lm_judge_g2(j, c, err));
        else
            LM_TRY(lm_judge_g1(j, c, err));
    }
    return j->o->determinism == LM_DETERMINISM_OFF ? LM_OK : lm_judge_determinism(j, err);
}

static lm_status alloc_rows(lm_judge *j, lm_error *err) {
    const lm_program *p = j->e->program;
    uint64_t widest = p->vocab;
    for (uint32_t slot = 0; slot < p->n_layers + 2; slot++) {
        uint32_t w = p->value[lm_hidden_value(p, slot)].width;
        if (w > widest) widest = w;
    }
    j->ours = lm_calloc(widest, sizeof *j->ours);
    j->ref = lm_calloc(widest, sizeof *j->ref);
    j->last = lm_calloc(widest, sizeof *j->last);
    return j->ours && j->ref && j->last ? LM_OK : lm_fail_nomem(err, "rows", 3 * widest * sizeof *j->ours);
}

/* oracle.safetensors in the model's folder (beside the file, for a GGUF). lm_malloc'd. */
static char *trace_beside(const char *model) {
    if (lm_is_dir(model)) return lm_path_join(model, "oracle.safetensors");
    const char *slash = strrchr(model, '/');
    char *dir = slash ? lm_strndup(model, (size_t)(slash - model)) : lm_strdup(".");
    char *path = dir ? lm_path_join(dir, "oracle.safetensors") : NULL;
    lm_free(dir);
    return path;
}

static lm_status judge_with(lm_judge *j, lm_error *err) {
    lm_trace *t = NULL;
    const lm_backend *b = j->e->backend;
    LM_TRY(lm_trace_open(j->trace_path, j->e->program, &t, err));
    j->t = t;
    const char *lane = j->eo.device.lane ? j->eo.device.lane : b->lanes[0];
    j->l->arch = lm_say(j->l, "%s", j->e->program->arch);
    j->l->backend = lm_say(j->l, "%s", b->name);
    j->l->lane = lm_say(j->l, "%s", lane);
    j->l->trace_sha256 = lm_say(j->l, "%s", t->sha256);
    j->l->portable = b->exact && strcmp(b->name, "f64");
    j->l->subject = lm_say(j->l, "%s (%s) on %s, lane %s (%s), against %s", j->model, j->e->program->arch, b->name, lane,
                           b->describe(j->e->device), j->trace_path);
    if (j->o->subject) j->o->subject(j->o->claim_ctx, j->l->subject);
    lm_status st = j->hf_bf16 ? lm_judge_met_fits(j, err) : LM_OK;
    if (st == LM_OK) st = alloc_rows(j, err);
    lm_sha256_init(&j->logits);
    if (st == LM_OK) st = judge_all(j, err);
    if (st == LM_OK && j->any_logits) {
        uint8_t digest[32];
        char hex[65];
        lm_sha256_final(&j->logits, digest);
        lm_sha256_hex(digest, hex);
        j->l->logits_sha256 = lm_say(j->l, "%s", hex);
        if (j->l->nomem) st = lm_fail_nomem(err, "the ledger", sizeof hex);
    }
    lm_free(j->ours);
    lm_free(j->ref);
    lm_free(j->last);
    lm_trace_close(t);
    j->t = NULL;
    return st;
}

/* A lane of quantized activations is the f32 lane where no weight is block-quantized: a verdict in its name would be about nothing. */
static lm_status check_lane(const lm_judge *j, lm_error *err) {
    const char *lane = j->eo.device.lane;
    if (!lane || (strcmp(lane, "i8") && strcmp(lane, "i16") && strcmp(lane, "mixed"))) return LM_OK;
    const lm_program *p = j->e->program;
    for (uint32_t i = 0; i < p->n_weights; i++)
        if (p->weight[i].type->block > 1) return LM_OK;
    return lm_fail_at(err, LM_USAGE, j->model, LM_NO_OFFSET, "lane",
                      "%s concerns products with block-quantized weights, of which this model has none: verify it in lane f32", lane);
}

lm_status lm_verify(const char *model, const lm_verify_options *o, lm_ledger **out, lm_error *err) {
    lm_judge j = {.o = o, .model = model};
    j.eo = (lm_engine_options){.backend = o->run.backend,
                               .device = {.threads = o->run.threads, .lane = o->run.lane, .kv = o->run.kv, .cpu_level = o->run.cpu_level},
                               .progress = {o->run.progress, o->run.progress_ctx},
                               .interrupted = o->run.interrupted,
                               .interrupted_ctx = o->run.interrupted_ctx};
    char *beside = o->trace ? NULL : trace_beside(model);
    if (!o->trace && !beside) return lm_fail_nomem(err, "a path", strlen(model));
    lm_status st = lm_ledger_create(&j.l, err);
    if (st == LM_OK) {
        j.l->fn = o->claim;
        j.l->ctx = o->claim_ctx;
        j.trace_path = o->trace ? o->trace : beside;
        st = lm_engine_open(model, &j.eo, &j.e, err);
    }
    if (st == LM_OK && !o->trace && !lm_is_file(j.trace_path))
        st = lm_fail_at(err, LM_MISSING, j.trace_path, LM_NO_OFFSET, NULL,
                        "there is no trace beside the model; name one, or write one with tools/export_oracle.py");
    if (st == LM_OK) st = check_lane(&j, err);
    if (st == LM_OK) {
        j.hf_bf16 = o->run.lane && !strcmp(o->run.lane, "hf-bf16");
        j.f64 = !strcmp(j.e->backend->name, "f64") && !j.hf_bf16;
        st = judge_with(&j, err);
    }
    lm_engine_close(j.e);
    lm_free(beside);
    if (st != LM_OK) {
        lm_ledger_free(j.l);
        return st;
    }
    *out = j.l;
    return LM_OK;
}
