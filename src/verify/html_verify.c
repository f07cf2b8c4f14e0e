/* A ledger as a page: the verdicts, the counterexamples, how close each measurement came to its bound, and what it all stands on. */
#include "verify/html.h"
#include "verify/verify.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_CELLS = 8192 };

static const char *tone(lm_verdict v) { return v == LM_PROVEN ? "good" : v == LM_OPEN ? "open" : "bad"; }

static void claims(FILE *f, const lm_ledger *l) {
    fputs("<div class=\"wide\"><table "
          "class=\"claims\"><tr><th>verdict</th><th>gate</th><th>claim</th><th>measured</th><th>bound</th><th>stands on</th></tr>\n",
          f);
    for (uint32_t i = 0; i < l->n; i++) {
        const lm_claim *c = &l->claim[i];
        const char *slash = strrchr(c->witness, '/');
        fprintf(f, "<tr><td class=\"k %s\">%s</td><td class=\"k\">", tone(c->verdict), lm_verdict_name(c->verdict));
        const char *const cell[] = {c->section, c->name, c->measured, c->bound, slash && slash[1] ? slash + 1 : c->witness};
        for (int k = 0; k < 5; k++) {
            if (k) fputs("</td><td>", f);
            lm_html_text(f, cell[k]);
        }
        if (c->sha256[0]) {
            fputs(" <code title=\"", f);
            lm_html_text(f, c->sha256);
            fputs("\">", f);
            lm_html_bytes(f, c->sha256, strnlen(c->sha256, 12));
            fputs("</code>", f);
        }
        fputs("</td></tr>\n", f);
        if (!c->note[0]) continue;
        fputs("<tr><td></td><td></td><td colspan=\"4\" class=\"soft\">", f);
        lm_html_text(f, c->note);
        fputs("</td></tr>\n", f);
    }
    fputs("</table></div>\n", f);
}

/* What was measured as a share of what is allowed, claim by claim: 1 is the bound. */
static void margins(FILE *f, const lm_ledger *l) {
    const char **place = lm_calloc(l->n + 1, sizeof *place);
    double *share = lm_calloc((size_t)l->n * 2 + 2, sizeof *share);
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->n && place && share; i++) {
        const lm_claim *c = &l->claim[i];
        double v = NAN;
        if (c->measure == LM_MEASURE_COSINE) v = (1 - c->value) / (1 - c->limit);
        if (c->measure == LM_MEASURE_DIFFERENCE) v = c->value / c->limit;
        if (!isfinite(v)) continue;
        place[n] = c->name;
        share[n++] = fmax(v, 1e-16);
    }
    if (n > 1) {
        double *one = share + n;
        for (uint32_t i = 0; i < n; i++) one[i] = 1;
        const lm_line line[] = {{"the bound", one, true, 3}, {"measured, as a share of what is allowed", share, false, 0}};
        lm_html_heading(f, "How near the bounds");
        lm_html_chart(f, "Distances of logits and log-probabilities, and 1 - cosine of hidden states, in the order of the table", place, n,
                      line, 2);
    }
    lm_free(place);
    lm_free(share);
}

static void along_depth(FILE *f, const lm_ledger *l) {
    for (uint32_t from = 0; from < l->n_depth;) {
        uint32_t n = 0;
        while (from + n < l->n_depth && l->depth[from + n].k == l->depth[from].k) n++;
        const char **place = lm_calloc(n, sizeof *place);
        double *y = lm_calloc((size_t)n * 2, sizeof *y);
        if (place && y) {
            for (uint32_t i = 0; i < n; i++) {
                place[i] = l->depth[from + i].name;
                y[i] = l->depth[from + i].off > 1e-15 ? l->depth[from + i].off : NAN; /* below it is the cosine's own rounding */
                y[n + i] = l->depth[from + i].max_abs;
            }
            const lm_line line[] = {{"1 - cosine", y, false, 0}, {"largest absolute difference", y + n, false, 1}};
            lm_html_heading(f, "Case %u: error along depth", l->depth[from].k);
            lm_html_chart(f, "Hidden states against the trace's, the worst over positions", place, n, line, 2);
        }
        lm_free(place);
        lm_free(y);
        from += n;
    }
}

static void positions(FILE *f, const lm_ledger *l) {
    for (uint32_t i = 0; i < l->n_spots && i < MOST_CELLS; i++) {
        const lm_spot *s = &l->spot[i];
        if (!i || s[-1].k != s->k) {
            if (i) lm_html_strip_end(f);
            else lm_html_heading(f, "Every position");
            char what[160];
            snprintf(what, sizeof what,
                     "Case %u, from left to right: the largest difference from the trace, pale below 1e-7, full from 1 on; framed where "
                     "the arg-max differs",
                     s->k);
            lm_html_strip(f, what);
        }
        lm_html_cell(f, lm_html_heat(s->off, 1e-7, 1), s->flip, "position %u: %.3g", s->position, s->off);
    }
    if (l->n_spots) lm_html_strip_end(f);
    if (l->n_spots > MOST_CELLS) fprintf(f, "<p class=\"soft\">%u more positions are not shown.</p>\n", l->n_spots - MOST_CELLS);
}

static void environment(FILE *f, const lm_ledger *l) {
    const lm_summary s = lm_ledger_summary(l);
    lm_html_heading(f, "Environment");
    lm_html_facts(f);
    lm_html_build(f);
    lm_html_fact(f, "subject", "%s", lm_ledger_subject(l));
    lm_html_fact(f, "backend, lane", "%s, %s", s.backend, s.lane);
    if (l->weights_sha256[0]) lm_html_fact(f, "weights' sha256", "%s", l->weights_sha256);
    if (s.trace_sha256[0]) lm_html_fact(f, "trace's sha256", "%s", s.trace_sha256);
    if (s.logits_sha256[0]) lm_html_fact(f, "logits' sha256", "%s%s", s.logits_sha256, s.portable ? "" : " (on this machine)");
    lm_html_facts_end(f);
}

char *lm_ledger_html(const lm_ledger *l) {
    char *text = NULL, says[120];
    size_t size = 0;
    uint32_t proven, open, refuted;
    FILE *f = open_memstream(&text, &size);
    if (!f) return NULL;
    lm_ledger_count(l, &proven, &open, &refuted);
    snprintf(says, sizeof says, "%u proven, %u open, %u refuted", proven, open, refuted);
    lm_html_begin(f, "lemma verify", tone(lm_ledger_summary(l).verdict), says);
    fputs("<p>", f);
    lm_html_text(f, lm_ledger_subject(l));
    fputs("</p>\n", f);
    claims(f, l);
    along_depth(f, l);
    positions(f, l);
    margins(f, l);
    environment(f, l);
    lm_html_end(f);
    if (fclose(f) != 0) {
        lm_free(text);
        return NULL;
    }
    return text;
}
