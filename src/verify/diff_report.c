/* A diff as text and as JSON. */
#include "verify/diff.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_LINES = 12 }; /* of a list in the text; the JSON has them all */

bool lm_diff_disputed(const lm_diff_row *r) { return r->top[0] != LM_NO_ID && r->top[1] != LM_NO_ID && r->top[0] != r->top[1]; }
static const char *verdict(const lm_diff *d) {
    return d->n_findings ? "unexplained" : d->ties ? "ties" : d->identical ? "identical" : "explained";
}

/* What the arbiter says of a token that the sides dispute. */
const char *lm_diff_judged(const lm_diff_row *r) {
    bool fine[2];
    for (int s = 0; s < 2; s++) fine[s] = r->top[s] == r->top[2] || lm_diff_near_tie(r, s) || r->forked[s];
    if (fine[0] && fine[1])
        return r->forked[0] || r->forked[1] ? "rounding flipped a choice of experts or positions before it" : "a near-tie";
    return fine[0] ? "B is wrong" : fine[1] ? "A is wrong" : "both are wrong";
}
static const char *flip_text(const lm_diff *d, const lm_diff_row *r, uint32_t position, char *buf, size_t n) {
    char what[2][160];
    for (int s = 0; s < 2; s++) {
        int at = snprintf(what[s], sizeof what[s], "%c %u", d->side[s].letter, r->top[s]);
        if (!isnan(r->margin[s])) at += snprintf(what[s] + at, sizeof what[s] - (size_t)at, " (margin %.3g", r->margin[s]);
        if (!isnan(r->margin[s]))
            at +=
                snprintf(what[s] + at, sizeof what[s] - (size_t)at, isnan(r->distance[s]) ? ")" : ", %.3g from the truth)", r->distance[s]);
    }
    snprintf(buf, n, "position %u: %s, %s, the arbiter %u (margin %.3g over %u; rounding reaches %.3g for A, %.3g for B): %s", position,
             what[0], what[1], r->top[2], r->margin[2], r->runner_up, r->reach[0], r->reach[1], lm_diff_judged(r));
    return buf;
}

/* ---- text
 * --------------------------------------------------------------------------------------------------------------------------------- */
static void known_line(FILE *f, const lm_diff *d, const lm_diff_case *c) {
    fprintf(f, "  known        ");
    for (int s = 0; s < 2; s++) {
        if (!d->side[s].spec) continue;
        if (c->n_taps[s] == d->p->n_ops)
            fprintf(f, "%s%c every op (%u)", s ? "; " : "", d->side[s].letter, d->p->n_ops);
        else
            fprintf(f, "%s%c %u values of %u ops", s ? "; " : "", d->side[s].letter, c->n_taps[s], d->p->n_ops);
    }
    fputc('\n', f);
}

static void output_lines(FILE *f, const lm_diff_case *c) {
    uint32_t both = 0, equal = 0, n_kl = 0, kl_at = 0, lp_at = 0;
    double kl = -1, sum = 0, lp = -1;
    for (uint32_t i = 0; i < c->n; i++) {
        const lm_diff_row *r = &c->row[i];
        if (r->top[0] != LM_NO_ID && r->top[1] != LM_NO_ID) both++, equal += !lm_diff_disputed(r);
        if (!isnan(r->kl)) {
            n_kl++;
            sum += r->kl;
            if (r->kl > kl) kl = r->kl, kl_at = i;
        }
        if (!isnan(r->dlogprob) && r->dlogprob > lp) lp = r->dlogprob, lp_at = i;
    }
    if (both) fprintf(f, "  top-1        %u of %u equal\n", equal, both);
    if (n_kl) fprintf(f, "  KL(B|A)      mean %.3g, largest %.3g at position %u\n", sum / n_kl, kl, kl_at);
    if (lp >= 0)
        fprintf(f, "  |dlogprob|   largest %.3g at position %u, id %u (the reference's best 64)\n", lp, lp_at, c->row[lp_at].dlogprob_id);
    if (c->greedy)
        fprintf(f, "  greedy       %u of %u equal%s\n", c->greedy_same, c->greedy,
                c->greedy_same < c->greedy ? "; the last position below is where they part" : "");
    if (c->note[0]) fprintf(f, "  note         %s\n", c->note);
}

static void tap_line(FILE *f, const char *name, const lm_diff_tap *t) {
    char a[2][48] = {"", ""};
    for (int s = 0; s < 2; s++)
        if (t->s[s].rows) snprintf(a[s], sizeof a[s], "%9.2e %9.2e", t->s[s].drift, t->s[s].band);
    if (t->both)
        fprintf(f, "  %-24s %9.2e %9.2e %9.2e  %19s  %19s\n", name, fmax(0, 1 - t->cosine), t->rel, t->max_abs, a[0], a[1]);
    else
        fprintf(f, "  %-24s %9s %9s %9s  %19s  %19s\n", name, "", "", "", a[0], a[1]);
}

/* Growth with depth: the values between the layers, and the logits. */
static void growth(FILE *f, const lm_diff *d, const lm_diff_case *c) {
    const lm_program *p = d->p;
    fprintf(f, "  %-24s %9s %9s %9s  %19s  %19s\n", "with depth", "1-cosine", "relative", "max abs", "A: drift / band", "B: drift / band");
    for (uint32_t slot = 0; slot < p->n_layers + 3; slot++) {
        const lm_val v = slot < p->n_layers + 2 ? lm_hidden_value(p, slot) : p->logits;
        const lm_diff_tap *t = &c->tap[p->value[v].first];
        if (t->both || t->s[0].rows || t->s[1].rows) tap_line(f, p->value[v].name, t);
    }
}

static void ulp_line(FILE *f, const lm_diff *d, const lm_diff_case *c) {
    static const char *const name[] = {"0", "1", "2-3", "4-15", "16-255", "256-4095", "4096-65535", "more"};
    uint64_t all = 0, bin[8] = {0};
    for (uint32_t i = 0; i < d->p->n_ops; i++)
        for (int k = 0; k < 8; k++) bin[k] += c->tap[i].ulp[k], all += c->tap[i].ulp[k];
    if (!all) return;
    fprintf(f, "  float32 ulps");
    for (int k = 0; k < 8; k++)
        if (bin[k]) fprintf(f, " %s: %.2f %% ", name[k], 100.0 * (double)bin[k] / (double)all);
    fputc('\n', f);
}

static void envelope_lines(FILE *f, const lm_diff *d, const lm_diff_case *c) {
    for (int s = 0; s < 2; s++) {
        uint32_t at = 0, own = 0, forks = 0;
        if (!d->side[s].spec) continue;
        for (uint32_t i = 0; i < d->p->n_ops; i++) {
            if (c->tap[i].s[s].ratio > c->tap[at].s[s].ratio) at = i;
            if (c->tap[i].s[s].local > c->tap[own].s[s].local) own = i;
            forks += c->tap[i].s[s].forked;
        }
        const lm_diff_tap *t = &c->tap[at], *l = &c->tap[own];
        if (!t->s[s].rows && !l->s[s].replayed) continue;
        fprintf(f, "  envelope %c   ", d->side[s].letter);
        if (t->s[s].rows) fprintf(f, "at most %.3g of its band (%s, position %u); ", t->s[s].ratio, d->p->op[at].name, t->s[s].at);
        if (l->s[s].replayed)
            fprintf(f, "replayed from its own inputs at %u op%s: at most %.3g of what rounding explains (%s, position %u)",
                    c->n_replayed[s], c->n_replayed[s] == 1 ? "" : "s", l->s[s].local, d->p->op[own].name, l->s[s].local_at);
        if (t->s[s].ratio > 1 && t->s[s].replayed && l->s[s].local <= 1)
            fprintf(f, ": every step is right, the model amplified their rounding");
        if (forks)
            fprintf(f, "; chooses other experts or positions than the arbiter at %u op%s, and is not held to the band after that", forks,
                    forks == 1 ? "" : "s");
        fputc('\n', f);
    }
}

static void flip_lines(FILE *f, const lm_diff *d, const lm_diff_case *c) {
    uint32_t n = 0;
    char buf[512];
    for (uint32_t i = 0; i < c->n; i++)
        if (lm_diff_disputed(&c->row[i]) && n++ < MOST_LINES) fprintf(f, "  %s\n", flip_text(d, &c->row[i], i, buf, sizeof buf));
    if (n > MOST_LINES) fprintf(f, "  and %u more positions (--json has all)\n", n - MOST_LINES);
}

static bool tie(const lm_diff_row *r, int s) { return r->margin[2] <= r->reach[s]; }
static uint32_t tie_lines(FILE *f, const lm_diff *d, const lm_diff_case *c) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n; i++)
        for (int s = 0; s < 2; s++) {
            const lm_diff_row *r = &c->row[i];
            if (!d->side[s].spec || !tie(r, s)) continue;
            n++;
            fprintf(f, "  tie          position %u: %u over %u by %.3g; %s reaches %.3g%s\n", i, r->top[2], r->runner_up, r->margin[2],
                    lm_prec_name(d->side[s].prec), r->reach[s], r->top[s] != r->top[2] && r->top[s] != LM_NO_ID ? " (and flips it)" : "");
        }
    return n;
}

static void last_line(FILE *f, const lm_diff *d, uint32_t ties) {
    uint32_t flips = 0;
    for (uint32_t k = 0; k < d->n_cases; k++)
        for (uint32_t i = 0; i < d->c[k].n; i++) flips += lm_diff_disputed(&d->c[k].row[i]);
    if (d->n_findings)
        fprintf(f, "unexplained: %u difference%s that rounding does not explain\n", d->n_findings, d->n_findings == 1 ? "" : "s");
    else if (d->ties)
        fprintf(f, "%u position%s could be flipped by rounding\n", ties, ties == 1 ? "" : "s");
    else if (d->identical)
        fprintf(f, "identical: every value and every token that both sides have\n");
    else if (flips)
        fprintf(f, "explained: rounding, and %u near-tie%s\n", flips, flips == 1 ? "" : "s");
    else
        fprintf(f, "explained: every difference is rounding\n");
}

char *lm_diff_text(const lm_diff *d) {
    char *text = NULL;
    size_t n = 0;
    uint32_t ties = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f) return NULL;
    for (int s = 0; s < 2; s++)
        if (d->side[s].spec) fprintf(f, "%c        %s\n", d->side[s].letter, d->side[s].about);
    fprintf(f, "arbiter  %s, %u samples per lane, seed %llu; a band is %g times the largest sample\n",
            d->arbiter->backend->describe(d->arbiter->device), d->samples, (unsigned long long)d->o->seed, LM_BAND);
    for (uint32_t k = 0; k < d->n_cases; k++) {
        const lm_diff_case *c = &d->c[k];
        fprintf(f, "\ncase %u  %u tokens%s\n", c->k, c->n_prompt, c->n > c->n_prompt ? " and their shared continuation" : "");
        known_line(f, d, c);
        output_lines(f, c);
        growth(f, d, c);
        ulp_line(f, d, c);
        envelope_lines(f, d, c);
        flip_lines(f, d, c);
        if (d->ties) ties += tie_lines(f, d, c);
    }
    fputc('\n', f);
    for (uint32_t i = 0; i < d->n_findings; i++) fprintf(f, "%s\n", d->finding[i].text);
    last_line(f, d, ties);
    if (fclose(f) != 0) {
        lm_free(text);
        return NULL;
    }
    return text;
}

/* ---- JSON
 * ---------------------------------------------------------------------------------------------------------------------------------- */
static json_t *number(double v) { return isfinite(v) ? json_real(v) : isinf(v) ? json_string("inf") : json_null(); }
static json_t *token(uint32_t id) { return id == LM_NO_ID ? json_null() : json_integer(id); }

static json_t *side_json(const lm_diff_tap *t, int s) {
    json_t *o = json_object();
    if (t->s[s].rows)
        json_object_set_new(o, "envelope",
                            json_pack("{s:o, s:o, s:o, s:i}", "drift", number(t->s[s].drift), "band", number(t->s[s].band), "share",
                                      number(t->s[s].ratio), "position", (int)t->s[s].at));
    if (t->s[s].replayed)
        json_object_set_new(o, "replay",
                            json_pack("{s:o, s:o, s:o, s:i}", "error", number(t->s[s].err), "explained", number(t->s[s].allowed), "share",
                                      number(t->s[s].local), "position", (int)t->s[s].local_at));
    if (t->s[s].forked) json_object_set_new(o, "forked", json_true());
    return o;
}

static json_t *tap_json(const lm_diff *d, const lm_diff_case *c, uint32_t i) {
    const lm_diff_tap *t = &c->tap[i];
    json_t *o = json_pack("{s:s, s:s}", "name", d->p->op[i].name, "kind", lm_op_name(d->p->op[i].kind)), *ulp = json_array();
    for (int k = 0; k < 8; k++) json_array_append_new(ulp, json_integer((json_int_t)t->ulp[k]));
    if (t->both)
        json_object_set_new(o, "both",
                            json_pack("{s:o, s:i, s:o, s:o, s:i, s:o}", "cosine", number(t->cosine), "cosine_position", (int)t->cosine_at,
                                      "relative", number(t->rel), "max_abs", number(t->max_abs), "max_position", (int)t->max_at, "ulp",
                                      json_incref(ulp)));
    json_decref(ulp);
    for (int s = 0; s < 2; s++)
        if (t->s[s].rows || t->s[s].replayed) json_object_set_new(o, s ? "B" : "A", side_json(t, s));
    return o;
}

static json_t *row_json(const lm_diff *d, const lm_diff_row *r, uint32_t position) {
    json_t *o = json_pack("{s:i, s:o, s:o, s:o, s:o, s:o, s:o}", "position", (int)position, "kl", number(r->kl), "dlogprob",
                          number(r->dlogprob), "dlogprob_id", isnan(r->dlogprob) ? json_null() : json_integer(r->dlogprob_id), "top",
                          token(r->top[2]), "runner_up", token(r->runner_up), "margin", number(r->margin[2]));
    for (int s = 0; s < 2; s++)
        if (d->side[s].spec)
            json_object_set_new(o, s ? "B" : "A",
                                json_pack("{s:o, s:o, s:o, s:o, s:o, s:b, s:b}", "top", token(r->top[s]), "margin", number(r->margin[s]),
                                          "deficit", number(r->deficit[s]), "reach", number(r->reach[s]), "distance",
                                          number(r->distance[s]), "forked", r->forked[s], "tie", tie(r, s)));
    if (lm_diff_disputed(r)) json_object_set_new(o, "verdict", json_string(lm_diff_judged(r)));
    return o;
}

static json_t *case_json(const lm_diff *d, const lm_diff_case *c) {
    json_t *taps = json_array(), *rows = json_array();
    for (uint32_t i = 0; i < d->p->n_ops; i++)
        if (c->tap[i].both || c->tap[i].s[0].rows || c->tap[i].s[1].rows || c->tap[i].s[0].replayed || c->tap[i].s[1].replayed)
            json_array_append_new(taps, tap_json(d, c, i));
    for (uint32_t i = 0; i < c->n; i++) json_array_append_new(rows, row_json(d, &c->row[i], i));
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:s, s:o, s:o}", "case", (int)c->k, "prompt", (int)c->n_prompt, "positions", (int)c->n,
                     "greedy", (int)c->greedy, "greedy_equal", (int)c->greedy_same, "note", c->note, "rows", rows, "taps", taps);
}

char *lm_diff_json(const lm_diff *d) {
    json_t *cases = json_array(), *findings = json_array();
    for (uint32_t k = 0; k < d->n_cases; k++) json_array_append_new(cases, case_json(d, &d->c[k]));
    for (uint32_t i = 0; i < d->n_findings; i++) {
        const lm_diff_finding *g = &d->finding[i];
        json_array_append_new(
            findings, json_pack("{s:i, s:s, s:s, s:s}", "case", (int)g->k, "side", g->side ? "B" : "A", "op", g->op, "text", g->text));
    }
    json_t *root =
        json_pack("{s:s, s:s, s:i, s:o, s:o, s:s, s:i}", "A", d->side[0].about, "B", d->side[1].spec ? d->side[1].about : "", "samples",
                  (int)d->samples, "cases", cases, "findings", findings, "verdict", verdict(d), "exit", lm_diff_exit_code(d));
    char *s = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    return s;
}
