/* A diff as a page: the verdict, what is not explained, error along depth beside what rounding explains, every position, disputed tokens.
 */
#include "tokenizer/tokenizer.h"
#include "verify/diff.h"
#include "verify/html.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { MOST_FLIPS = 64, MOST_CELLS = 8192, MOST_OPS = 8 };

typedef struct page {
    FILE *f;
    const lm_diff *d;
    const lm_tokenizer *tok; /* NULL: none, tokens are numbers */
} page;

static void token(const page *p, uint32_t id) {
    size_t n = 0;
    if (id == LM_NO_ID) {
        fputs("&ndash;", p->f);
        return;
    }
    const char *s = p->tok ? lm_tokenizer_piece(p->tok, (int32_t)id, &n) : NULL;
    fprintf(p->f, "%u", id);
    if (!s) return;
    fputs(" <code>", p->f);
    lm_html_bytes(p->f, s, n);
    fputs("</code>", p->f);
}

static void number_cell(FILE *f, double v) {
    if (isnan(v)) fputs("<td class=\"n\"></td>", f);
    else fprintf(f, "<td class=\"n\">%.3g</td>", v);
}

/* ---- depth --------------------------------------------------------------------------------------------------------------------------- */
static void depth(const page *p, const lm_diff_case *c) {
    const lm_program *g = p->d->p;
    const uint32_t n = g->n_layers + 3;
    double *y = lm_calloc((size_t)n * 7, sizeof *y);
    const char **place = lm_calloc(n, sizeof *place);
    for (uint32_t slot = 0; slot < n && y && place; slot++) {
        const lm_val v = slot < g->n_layers + 2 ? lm_hidden_value(g, slot) : g->logits;
        const lm_diff_tap *t = &c->tap[g->value[v].first];
        place[slot] = g->value[v].name;
        for (int s = 0; s < 2; s++) {
            y[(size_t)s * n + slot] = t->s[s].rows ? t->s[s].band : NAN;
            y[(size_t)(2 + s) * n + slot] = t->s[s].rows ? t->s[s].drift : NAN;
        }
        y[(size_t)4 * n + slot] = t->both ? t->rel : NAN;
        y[(size_t)5 * n + slot] = t->both && 1 - t->cosine > 1e-15 ? 1 - t->cosine : NAN; /* below it is the cosine's own rounding */
        y[(size_t)6 * n + slot] = t->both ? t->max_abs : NAN;
    }
    if (y && place) {
        const lm_line drift[] = {{"A: what rounding explains", y, true, 0},
                                 {"B: what rounding explains", y + n, true, 1},
                                 {"A: from the arbiter", y + 2 * n, false, 0},
                                 {"B: from the arbiter", y + 3 * n, false, 1},
                                 {"A from B", y + 4 * n, false, 2}};
        const lm_line both[] = {{"1 - cosine", y + 5 * n, false, 2}, {"largest absolute difference", y + 6 * n, false, 3}};
        lm_html_chart(p->f, "Relative difference of the values between the layers, the greatest over positions", place, n, drift, 5);
        lm_html_chart(p->f, "A and B beside each other: the worst over positions", place, n, both, 2);
    }
    lm_free(place);
    lm_free(y);
}

/* The ops whose own error is the largest share of what rounding explains. */
static void worst_ops(const page *p, const lm_diff_case *c) {
    FILE *f = p->f;
    bool any = false;
    for (uint32_t rank = 0; rank < MOST_OPS; rank++) {
        static const double never = -1;
        double best = never;
        uint32_t at = 0;
        int side = 0;
        for (uint32_t i = 0; i < p->d->p->n_ops; i++) /* the rank-th largest: those before it have been shown */
            for (int s = 0; s < 2; s++) {
                const double v = c->tap[i].s[s].replayed ? c->tap[i].s[s].local : never;
                uint32_t above = 0;
                for (uint32_t k = 0; k < p->d->p->n_ops; k++)
                    for (int z = 0; z < 2; z++) {
                        const double w = c->tap[k].s[z].replayed ? c->tap[k].s[z].local : never;
                        above += w > v || (w == v && (k < i || (k == i && z < s)));
                    }
                if (v > never && above == rank) best = v, at = i, side = s;
            }
        if (best == never) break;
        if (!any) fputs("<div class=\"wide\"><table class=\"ops\"><tr><th>op, replayed from its own inputs</th><th>kind</th><th>side</th>"
                        "<th class=\"n\">share of what rounding explains</th><th class=\"n\">position</th></tr>\n", f);
        any = true;
        fputs("<tr><td><code>", f);
        lm_html_text(f, p->d->p->op[at].name);
        fprintf(f, "</code></td><td>%s</td><td>%c</td><td class=\"n %s\">%.3g</td><td class=\"n\">%u</td></tr>\n",
                lm_op_name(p->d->p->op[at].kind), 'A' + side, best > 1 ? "bad" : "", best, c->tap[at].s[side].local_at);
    }
    if (any) fputs("</table></div>\n", f);
}

/* ---- positions --------------------------------------------------------------------------------------------------------------------- */
static void positions(const page *p, const lm_diff_case *c) {
    bool kl = false, lp = false;
    for (uint32_t i = 0; i < c->n; i++) kl |= !isnan(c->row[i].kl), lp |= !isnan(c->row[i].dlogprob);
    if (!kl && !lp) return;
    lm_html_strip(p->f, kl ? "Every position, from left to right: KL(B|A) by its colour, pale below 1e-10, full from 1 on; framed where A "
                             "and B choose differently"
                           : "Every position, from left to right: the largest |dlogprob|, pale below 1e-6, full from 1 on; framed where A "
                             "and B choose differently");
    for (uint32_t i = 0; i < c->n && i < MOST_CELLS; i++) {
        const lm_diff_row *r = &c->row[i];
        const double v = kl ? r->kl : r->dlogprob;
        lm_html_cell(p->f, lm_html_heat(v, kl ? 1e-10 : 1e-6, 1), lm_diff_disputed(r), "position %u: %s %.3g", i, kl ? "KL" : "|dlogprob|",
                     v);
    }
    lm_html_strip_end(p->f);
    if (c->n > MOST_CELLS) fprintf(p->f, "<p class=\"soft\">%u more positions are not shown.</p>\n", c->n - MOST_CELLS);
}

static void best_few(const page *p, const lm_diff_row *r) {
    static const char *const who[] = {"A", "B", "arbiter"};
    fputs("<tr><td></td><td colspan=\"7\"><table>", p->f);
    for (int s = 0; s < 3; s++) {
        const lm_diff_best *b = &r->best[s];
        if (!b->n) continue;
        fprintf(p->f, "<tr><th>%s</th><td>", who[s]);
        for (uint32_t i = 0; i < b->n; i++) {
            if (i) fputs(" &middot; ", p->f);
            token(p, b->id[i]);
            fprintf(p->f, " <span class=\"soft\">%.4f</span>", b->logprob[i]);
        }
        fputs("</td></tr>", p->f);
    }
    fputs("</table></td></tr>\n", p->f);
}

static void disputes(const page *p, const lm_diff_case *c) {
    uint32_t n = 0;
    FILE *f = p->f;
    for (uint32_t i = 0; i < c->n; i++) {
        const lm_diff_row *r = &c->row[i];
        if (!lm_diff_disputed(r) || ++n > MOST_FLIPS) continue;
        if (n == 1)
            fputs("<div class=\"wide\"><table class=\"disputes\"><tr><th class=\"n\">position</th><th>A</th><th "
                  "class=\"n\">margin</th><th>B</th><th class=\"n\">margin</th>"
                  "<th>the arbiter</th><th class=\"n\">margin</th><th>verdict</th></tr>\n",
                  f);
        fprintf(f, "<tr><td class=\"n\">%u</td>", i);
        for (uint32_t side = 0; side < 3; side++) {
            fputs("<td>", f);
            token(p, r->top[side]);
            fputs("</td>", f);
            number_cell(f, r->margin[side]);
        }
        fputs("<td>", f);
        lm_html_text(f, lm_diff_judged(r));
        fprintf(f, " <span class=\"soft\">(rounding reaches %.3g, %.3g)</span></td></tr>\n", r->reach[0], r->reach[1]);
        if (r->best) best_few(p, r);
    }
    if (n) fputs("</table></div>\n", f);
    if (n > MOST_FLIPS) fprintf(f, "<p class=\"soft\">%u more are not shown; <code>--json</code> has all.</p>\n", n - MOST_FLIPS);
}

/* ---- the page ---------------------------------------------------------------------------------------------------------------------- */
static void findings(const page *p) {
    const lm_diff *d = p->d;
    if (!d->n_findings) return;
    lm_html_heading(p->f, "What rounding does not explain");
    fputs("<div class=\"wide\"><table class=\"findings\"><tr><th>side</th><th>op</th><th>what</th></tr>\n", p->f);
    for (uint32_t i = 0; i < d->n_findings; i++) {
        fprintf(p->f, "<tr><td class=\"bad\">%c</td><td><code>", 'A' + d->finding[i].side);
        lm_html_text(p->f, d->finding[i].op);
        fputs("</code></td><td>", p->f);
        lm_html_text(p->f, d->finding[i].text);
        fputs("</td></tr>\n", p->f);
    }
    fputs("</table></div>\n", p->f);
}

static void cases(const page *p) {
    const lm_diff *d = p->d;
    for (uint32_t k = 0; k < d->n_cases; k++) {
        const lm_diff_case *c = &d->c[k];
        uint32_t flips = 0;
        for (uint32_t i = 0; i < c->n; i++) flips += lm_diff_disputed(&c->row[i]);
        lm_html_heading(p->f, "Case %u: %u tokens%s, %u disputed", c->k, c->n_prompt, c->n > c->n_prompt ? " and their continuation" : "",
                        flips);
        if (c->note[0]) {
            fputs("<p>", p->f);
            lm_html_text(p->f, c->note);
            fputs("</p>\n", p->f);
        }
        depth(p, c);
        worst_ops(p, c);
        positions(p, c);
        disputes(p, c);
    }
}

static void environment(const page *p) {
    const lm_diff *d = p->d;
    char hex[65];
    FILE *f = p->f;
    lm_html_heading(f, "Environment");
    lm_html_facts(f);
    lm_html_build(f);
    for (int s = 0; s < 2; s++) {
        const lm_side *side = &d->side[s];
        if (!side->spec) continue;
        lm_html_fact(f, s ? "B" : "A", "%s", side->about);
        if (side->t) lm_html_fact(f, "its sha256", "%s", side->t->sha256);
        else if (side->e && lm_source_sha256(side->e->src, hex, NULL, NULL, NULL) == LM_OK)
            lm_html_fact(f, "its weights' sha256", "%s", hex);
    }
    lm_html_fact(f, "the arbiter", "%s; %u samples per lane, seed %" PRIu64 "; a band is %g times the largest sample",
                 d->arbiter->backend->describe(d->arbiter->device), d->samples, d->o->seed, LM_BAND);
    lm_html_facts_end(f);
}

char *lm_diff_html(const lm_diff *d) {
    char *text = NULL;
    size_t size = 0;
    lm_tokenizer *tok = NULL;
    page p = {open_memstream(&text, &size), d, NULL};
    if (!p.f) return NULL;
    if (lm_tokenizer_from_source(d->arbiter->src, &tok, NULL) == LM_OK) p.tok = tok;
    const char *says = d->n_findings ? "Unexplained: a difference that rounding does not explain"
                       : d->ties     ? "Positions that rounding could flip"
                       : d->identical ? "Identical: every value and every token that both sides have"
                                      : "Explained: every difference is rounding, or a near-tie";
    lm_html_begin(p.f, "lemma diff", d->n_findings ? "bad" : "good", says);
    findings(&p);
    cases(&p);
    environment(&p);
    lm_html_end(p.f);
    lm_tokenizer_free(tok);
    if (fclose(p.f) != 0) {
        lm_free(text);
        return NULL;
    }
    return text;
}
