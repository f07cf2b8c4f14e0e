/* lemma verify --ids --expect: does the bare arg-max run after these ids give those? */
#include "verify.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct candidate {
    uint32_t id;
    double logit;
} candidate;

typedef struct step {
    int32_t ours;
    double logit, expected_logit, log_sum; /* log_sum: of the exponentials, so that logit - log_sum is a log-probability */
    candidate *top;
    bool finite;
} step;

typedef struct greedy {
    const lm_cli_ids *expect;
    uint32_t topk, n; /* n: steps so far */
    step *step;
    candidate *top; /* [steps][topk] */
    lm_logits_hash *hash;
} greedy;

static double at(const lm_logits *l, uint32_t i) { return l->is_f64 ? ((const double *)l->data)[i] : (double)((const float *)l->data)[i]; }

/* The topk best, the lowest id first among equals. */
static void take_top(step *s, uint32_t k, const lm_logits *l) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->width && k; i++) {
        double v = at(l, i);
        if (n == k && !(v > s->top[n - 1].logit)) continue;
        uint32_t p = n < k ? n++ : n - 1;
        for (; p && v > s->top[p - 1].logit; p--) s->top[p] = s->top[p - 1];
        s->top[p] = (candidate){i, v};
    }
}

static bool on_row(void *ctx, const lm_logits *l) {
    greedy *g = ctx;
    step *s = &g->step[g->n];
    double sum = 0;
    *s = (step){.finite = true, .top = g->top + (size_t)g->n * g->topk};
    lm_logits_hash_add(g->hash, l);
    for (uint32_t i = 0; i < l->width; i++) {
        double v = at(l, i);
        if (!isfinite(v)) s->finite = false;
        if (i == 0 || v > s->logit) {
            s->logit = v;
            s->ours = (int32_t)i;
        }
    }
    for (uint32_t i = 0; i < l->width; i++) sum += exp(at(l, i) - s->logit);
    s->log_sum = s->logit + log(sum);
    s->expected_logit = at(l, (uint32_t)g->expect->id[g->n]);
    if (s->finite) take_top(s, g->topk, l);
    g->n++;
    return s->finite; /* a NaN has no arg-max: the run ends here */
}

/* ---- output --------------------------------------------------------------------------------------------------------- */
static void json_ids(const char *key, const greedy *g, bool ours, uint32_t n) {
    printf("\"%s\": [", key);
    for (uint32_t i = 0; i < n; i++) printf("%s%d", i ? ", " : "", ours ? g->step[i].ours : g->expect->id[i]);
    fputs("], ", stdout);
}

static void print_json(const greedy *g, const lm_model_info *info, uint32_t done, bool match, const char *hex) {
    printf("{\"backend\": \"%s\", \"lane\": \"%s\", ", info->backend, info->lane);
    json_ids("generated_ids", g, true, done);
    json_ids("expected_ids", g, false, g->expect->n);
    printf("\"expect_match\": %s, \"logits_sha256\": \"%s\",\n \"steps\": [", match ? "true" : "false", hex);
    for (uint32_t i = 0; i < done; i++) {
        const step *s = &g->step[i];
        printf("%s\n  {\"id\": %d, \"logit\": %.9g, \"logprob\": %.9g, \"expected\": %d, \"expected_logit\": %.9g, \"expected_logprob\": "
               "%.9g, \"top\": [",
               i ? "," : "", s->ours, s->logit, s->logit - s->log_sum, g->expect->id[i], s->expected_logit, s->expected_logit - s->log_sum);
        for (uint32_t k = 0; k < g->topk; k++)
            printf("%s{\"id\": %u, \"logit\": %.9g, \"logprob\": %.9g}", k ? ", " : "", s->top[k].id, s->top[k].logit,
                   s->top[k].logit - s->log_sum);
        fputs("]}", stdout);
    }
    printf("],\n \"proven\": %d, \"open\": 0, \"refuted\": %d}\n", match, !match);
}

static void print_text(const greedy *g, const lm_model_info *info, const char *model, uint32_t done, bool match, const char *hex) {
    uint32_t equal = 0;
    printf("%s (%s) on %s, lane %s (%s)\n\n", model, info->arch, info->backend, info->lane, info->description);
    while (equal < done && g->step[equal].ours == g->expect->id[equal]) equal++;
    for (uint32_t i = 0; i < done; i++) {
        const step *s = &g->step[i];
        bool same = s->ours == g->expect->id[i];
        printf("step %u: %d at logit %.6g (log-probability %.4g)", i, s->ours, s->logit, s->logit - s->log_sum);
        if (!same) printf("; expected %d at %.6g (%.4g)", g->expect->id[i], s->expected_logit, s->expected_logit - s->log_sum);
        putchar('\n');
        for (uint32_t k = 0; k < g->topk; k++)
            printf("    %u. %u at logit %.6g (%.4g)\n", k + 1, s->top[k].id, s->top[k].logit, s->top[k].logit - s->log_sum);
    }
    lm_claim c = {.verdict = match ? LM_PROVEN : LM_REFUTED,
                  .gate = true,
                  .section = "ids",
                  .name = "greedy continuation",
                  .bound = "equal, token for token",
                  .sha256 = hex,
                  .witness = "",
                  .note = ""};
    char measured[64], note[96];
    snprintf(measured, sizeof measured, "%u of %u equal", equal, g->expect->n);
    snprintf(note, sizeof note, "step %u: %s", equal, done < g->expect->n && equal == done ? "a logit is not finite" : "the ids part here");
    c.measured = measured;
    if (!match) c.note = note;
    char *text = lm_claim_text(&c);
    putchar('\n');
    if (text) fputs(text, stdout);
    lm_text_free(text);
    printf("\n%d proven, 0 open, %d refuted\n", match, !match);
}

/* ---- the run -------------------------------------------------------------------------------------------------------- */
static lm_status run(greedy *g, lm_session *s, const lm_cli_ids *ids, bool *finite, lm_error *err) {
    *finite = true;
    while (g->n < g->expect->n) {
        bool first = g->n == 0;
        const int32_t *id = first ? ids->id : &g->step[g->n - 1].ours;
        uint32_t n = g->n;
        lm_status st = lm_session_append(s, id, first ? ids->n : 1, LM_ROWS_LAST, on_row, g, err);
        if (g->n > n && !g->step[n].finite) {
            *finite = false;
            return LM_OK;
        }
        if (st != LM_OK) return st;
        if (!lm_cli_progress(NULL, "greedy", g->n, g->expect->n)) {
            *err = (lm_error){.code = LM_INTERRUPTED, .offset = LM_NO_OFFSET, .message = "interrupted"};
            return LM_INTERRUPTED;
        }
    }
    return LM_OK;
}

static int report(const greedy *g, lm_model *m, const char *model, bool finite, bool json) {
    uint32_t done = finite ? g->n : g->n - 1; /* the row that is not finite is no step */
    bool match = finite;
    char hex[65];
    lm_model_info info;
    lm_model_get_info(m, &info);
    lm_logits_hash_hex(g->hash, hex);
    lm_cli_progress_end();
    for (uint32_t i = 0; i < done; i++) match &= g->step[i].ours == g->expect->id[i];
    if (json)
        print_json(g, &info, done, match, hex);
    else
        print_text(g, &info, model, done, match, hex);
    return !match;
}

static int check(const lm_model *m, const lm_cli_ids *expect, uint32_t topk) {
    lm_model_info info;
    lm_model_get_info(m, &info);
    for (uint32_t i = 0; i < expect->n; i++)
        if ((uint32_t)expect->id[i] >= info.vocab)
            return lm_cli_usage("verify", "--expect: id %d is outside the vocabulary of %u", expect->id[i], info.vocab);
    if (topk > info.vocab) return lm_cli_usage("verify", "--topk: the vocabulary has only %u ids", info.vocab);
    return LM_CLI_GO;
}

static int with_model(lm_model *m, greedy *g, const char *model, const lm_evidence_options *o, const lm_cli_ids *ids, bool json) {
    lm_session *s = NULL;
    lm_error err = {0};
    bool finite;
    int rc = check(m, g->expect, g->topk);
    if (rc != LM_CLI_GO) return rc;
    g->step = calloc(g->expect->n, sizeof *g->step);
    g->top = calloc((size_t)g->expect->n * g->topk + 1, sizeof *g->top);
    lm_status st = g->step && g->top ? lm_logits_hash_create(&g->hash, &err) : LM_NOMEM;
    err.code = st;
    if (st == LM_OK) st = lm_model_session(m, o->chunk, &s, &err);
    if (st == LM_OK) st = run(g, s, ids, &finite, &err);
    lm_session_free(s);
    rc = st == LM_OK ? report(g, m, model, finite, json) : lm_cli_error("verify", &err);
    lm_logits_hash_free(g->hash);
    free(g->step);
    free(g->top);
    return rc;
}

int lm_cli_verify_ids(const char *model, const lm_evidence_options *run_options, const lm_cli_ids *ids, const lm_cli_ids *expect,
                      uint32_t topk, bool json) {
    const bool cpu = !run_options->backend || !strcmp(run_options->backend, "cpu");
    const char *lane = run_options->lane ? run_options->lane : cpu ? "f32" : NULL; /* a verdict's lane, not the one to generate in */
    lm_model_options mo = {.backend = run_options->backend,
                           .lane = lane,
                           .kv = run_options->kv,
                           .cpu_level = run_options->cpu_level,
                           .threads = run_options->threads};
    lm_model *m = NULL;
    lm_error err = {0};
    greedy g = {.expect = expect, .topk = topk};
    lm_cli_model_callbacks(&mo);
    if (lm_model_open(model, &mo, &m, &err) != LM_OK) return lm_cli_error("verify", &err);
    int rc = with_model(m, &g, model, run_options, ids, json);
    lm_model_close(m);
    return rc;
}
