/* The ledger as text and as JSON. The text names a witness by its last name and twelve digits of its hash; the JSON has both whole. */
#include "verify/verify.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

char *lm_claim_text(const lm_claim *c) {
    const char *slash = strrchr(c->witness, '/'), *witness = slash && slash[1] ? slash + 1 : c->witness;
    const char *space = witness[0] && c->sha256[0] ? " " : "";
    size_t n = strlen(c->section) + strlen(c->name) + strlen(c->bound) + strlen(c->measured) + strlen(witness) + strlen(c->note) + 256;
    char *s = lm_malloc(n);
    if (!s) return NULL;
    int at = snprintf(s, n, "%-7s  %-7s  %-32s", lm_verdict_name(c->verdict), c->section, c->name);
    if (c->measured[0]) at += snprintf(s + at, n - (size_t)at, "  %s", c->measured);
    if (c->bound[0]) at += snprintf(s + at, n - (size_t)at, "  [%s]", c->bound);
    if (witness[0] || c->sha256[0])
        at += snprintf(s + at, n - (size_t)at, "  %s%s%s%.12s", witness, space, c->sha256[0] ? "sha256:" : "", c->sha256);
    if (c->note[0]) at += snprintf(s + at, n - (size_t)at, "\n%-18s%s", "", c->note);
    snprintf(s + at, n - (size_t)at, "\n");
    return s;
}

void lm_text_free(char *text) { lm_free(text); }

static json_t *number(const lm_claim *c, double v) { return c->measure != LM_MEASURE_NONE && isfinite(v) ? json_real(v) : json_null(); }

static json_t *arbiter(const lm_claim *c) {
    return c->arbitrated ? json_pack("{s:f, s:f}", "ours", c->ours_off, "reference", c->reference_off) : json_null();
}

static json_t *claim_json(const lm_claim *c) {
    return json_pack("{s:s, s:s, s:s, s:b, s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:o}", "verdict", lm_verdict_name(c->verdict), "section",
                     c->section, "claim", c->name, "gate", c->gate, "bound", c->bound, "measured", c->measured, "witness", c->witness,
                     "sha256", c->sha256, "note", c->note, "value", number(c, c->value), "limit", number(c, c->limit), "arbiter",
                     arbiter(c));
}

char *lm_ledger_json(const lm_ledger *l) {
    uint32_t proven, open, refuted;
    lm_ledger_count(l, &proven, &open, &refuted);
    json_t *claims = json_array();
    for (uint32_t i = 0; i < l->n && claims; i++)
        if (json_array_append_new(claims, claim_json(&l->claim[i])) != 0) {
            json_decref(claims);
            claims = NULL;
        }
    if (!claims) return NULL;
    json_t *root = json_pack("{s:s, s:o, s:i, s:i, s:i, s:i}", "subject", l->subject, "claims", claims, "proven", (int)proven, "open",
                             (int)open, "refuted", (int)refuted, "exit", lm_ledger_exit_code(l));
    char *s = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    return s;
}
