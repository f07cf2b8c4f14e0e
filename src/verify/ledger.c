/* The ledger: claims in the order in which they were settled, their strings in one arena. */
#include "verify/verify.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *lm_verdict_name(lm_verdict v) {
    static const char *const names[] = {"PROVEN", "OPEN", "REFUTED"};
    return (unsigned)v < 3 ? names[v] : "?";
}

lm_status lm_ledger_create(lm_ledger **out, lm_error *err) {
    lm_ledger *l = lm_calloc(1, sizeof *l);
    if (l) l->arena = lm_arena_create();
    if (!l || !l->arena) {
        lm_free(l);
        return lm_fail_nomem(err, "the ledger", sizeof *l);
    }
    l->subject = l->arch = l->backend = l->lane = l->trace_sha256 = l->weights_sha256 = l->logits_sha256 = "";
    *out = l;
    return LM_OK;
}

void lm_ledger_free(lm_ledger *l) {
    if (!l) return;
    lm_arena_destroy(l->arena);
    lm_free(l->claim);
    lm_free(l->depth);
    lm_free(l->spot);
    lm_free(l);
}

const char *lm_say(lm_ledger *l, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    const char *s = lm_arena_vprintf(l->arena, fmt, ap);
    va_end(ap);
    if (!s) l->nomem = true;
    return s ? s : "";
}

lm_status lm_ledger_add(lm_ledger *l, const lm_claim *c, lm_error *err) {
    if (l->n == l->cap) {
        uint32_t cap = l->cap ? l->cap * 2 : 64;
        lm_claim *more = lm_realloc(l->claim, cap * sizeof *more);
        if (!more) return lm_fail_nomem(err, "the ledger", cap * sizeof *more);
        l->claim = more;
        l->cap = cap;
    }
    lm_claim *to = &l->claim[l->n];
    *to = *c;
    const char **s[] = {&to->section, &to->name, &to->bound, &to->measured, &to->witness, &to->sha256, &to->note};
    for (size_t i = 0; i < sizeof s / sizeof *s; i++) /* the ledger outlives the model and the trace that some of them belong to */
        *s[i] = *s[i] && **s[i] ? lm_say(l, "%s", *s[i]) : "";
    if (l->nomem) return lm_fail_nomem(err, "a claim's text", 0);
    l->n++;
    if (l->fn) l->fn(l->ctx, to);
    return LM_OK;
}

lm_status lm_ledger_depth(lm_ledger *l, const lm_depth *d, lm_error *err) {
    if (l->n_depth == l->cap_depth) {
        const uint32_t cap = l->cap_depth ? 2 * l->cap_depth : 64;
        lm_depth *more = lm_realloc(l->depth, cap * sizeof *more);
        if (!more) return lm_fail_nomem(err, "the ledger", cap * sizeof *more);
        l->depth = more;
        l->cap_depth = cap;
    }
    l->depth[l->n_depth] = *d;
    l->depth[l->n_depth].name = lm_say(l, "%s", d->name);
    if (l->nomem) return lm_fail_nomem(err, "a name", 32);
    l->n_depth++;
    return LM_OK;
}

lm_status lm_ledger_spot(lm_ledger *l, const lm_spot *s, lm_error *err) {
    if (l->n_spots == l->cap_spots) {
        const uint32_t cap = l->cap_spots ? 2 * l->cap_spots : 256;
        lm_spot *more = lm_realloc(l->spot, cap * sizeof *more);
        if (!more) return lm_fail_nomem(err, "the ledger", cap * sizeof *more);
        l->spot = more;
        l->cap_spots = cap;
    }
    l->spot[l->n_spots++] = *s;
    return LM_OK;
}

uint32_t lm_ledger_size(const lm_ledger *l) { return l->n; }
const lm_claim *lm_ledger_claim(const lm_ledger *l, uint32_t i) { return i < l->n ? &l->claim[i] : NULL; }
const char *lm_ledger_subject(const lm_ledger *l) { return l->subject; }

void lm_ledger_count(const lm_ledger *l, uint32_t *proven, uint32_t *open, uint32_t *refuted) {
    uint32_t n[3] = {0};
    for (uint32_t i = 0; i < l->n; i++) n[l->claim[i].verdict]++;
    *proven = n[LM_PROVEN];
    *open = n[LM_OPEN];
    *refuted = n[LM_REFUTED];
}

/* A value that is not finite is worse than any; after that, `worse` decides. */
static void take_worst(lm_worst_value *w, const lm_claim *c, bool worse) {
    if (w->any && (isnan(w->value) || (!worse && !isnan(c->value)))) return;
    *w = (lm_worst_value){.any = true, .value = c->value, .limit = c->limit};
}

lm_summary lm_ledger_summary(const lm_ledger *l) {
    lm_summary s = {.verdict = lm_ledger_exit_code(l) == 1   ? LM_REFUTED
                               : lm_ledger_exit_code(l) == 0 ? LM_PROVEN
                                                             : LM_OPEN,
                    .arch = l->arch,
                    .backend = l->backend,
                    .lane = l->lane,
                    .trace_sha256 = l->trace_sha256,
                    .logits_sha256 = l->logits_sha256,
                    .portable = l->portable};
    for (uint32_t i = 0; i < l->n; i++) {
        const lm_claim *c = &l->claim[i];
        lm_worst_value *d = &s.difference;
        if (c->measure == LM_MEASURE_COSINE) take_worst(&s.cosine, c, c->value < s.cosine.value);
        if (c->measure == LM_MEASURE_AGREEMENT) take_worst(&s.agreement, c, c->value < s.agreement.value);
        if (c->measure == LM_MEASURE_DIFFERENCE) take_worst(d, c, c->value * d->limit > d->value * c->limit);
    }
    return s;
}

int lm_ledger_exit_code(const lm_ledger *l) {
    bool measured = false;
    for (uint32_t i = 0; i < l->n; i++) {
        if (l->claim[i].verdict == LM_REFUTED) return 1;
        measured |= l->claim[i].gate && l->claim[i].verdict == LM_PROVEN;
    }
    return measured ? 0 : 3;
}
