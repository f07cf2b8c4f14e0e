/* lemma verify --all: the ledger of all models below some folders, as text, JSON or Markdown. */
#include "verify.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One line of the table. Without a ledger it is OPEN: `why` says what would close it. */
typedef struct row {
    const lm_pair *pair;
    const char *backend; /* "": none, the pair can't be run here */
    lm_ledger *ledger;
    lm_summary s;
    uint32_t proven, open, refuted;
    char *why;
} row;

typedef struct table {
    row *row;
    uint32_t n;
    uint32_t proven, open, refuted; /* over all rows; a row without a ledger is one open claim */
    bool measured, failed;          /* failed: a model or a trace that is wrong */
} table;

static const char *last_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

/* ---- running -------------------------------------------------------------------------------------------------------- */
static bool is_wrong_input(lm_status s) { return s != LM_UNSUPPORTED && s != LM_MISSING; }

/* False: stop, *rc says why. */
static bool run_row(row *r, const lm_verify_options *options, table *t, int *rc) {
    lm_verify_options o = *options;
    lm_error err = {0};
    char line[2048];
    o.run.backend = r->backend;
    o.trace = r->pair->trace_path;
    o.converted = r->pair->converted;
    lm_status st = *r->pair->open ? LM_OK : lm_verify(r->pair->model_path, &o, &r->ledger, &err);
    lm_cli_progress_end();
    if (st == LM_INTERRUPTED || st == LM_NOMEM || st == LM_INTERNAL) {
        *rc = lm_cli_error("verify", &err);
        return false;
    }
    if (!r->ledger) {
        r->why = strdup(st == LM_OK ? r->pair->open : lm_error_line(&err, line, sizeof line));
        if (!r->why) {
            *rc = lm_cli_error("verify", &(lm_error){.code = LM_NOMEM, .offset = LM_NO_OFFSET});
            return false;
        }
        r->s = (lm_summary){.verdict = LM_OPEN, .arch = "", .backend = r->backend, .lane = "", .trace_sha256 = "", .logits_sha256 = ""};
        r->open = 1;
        if (st != LM_OK && is_wrong_input(st)) {
            t->failed = true;
            lm_cli_error("verify", &err);
        }
    } else {
        r->s = lm_ledger_summary(r->ledger);
        lm_ledger_count(r->ledger, &r->proven, &r->open, &r->refuted);
        t->measured |= lm_ledger_exit_code(r->ledger) == 0;
    }
    t->proven += r->proven;
    t->open += r->open;
    t->refuted += r->refuted;
    return true;
}

/* ---- numbers in words ----------------------------------------------------------------------------------------------- */
static const char *say_cosine(const lm_summary *s, char buf[48]) {
    const lm_worst_value *c = &s->cosine;
    const char *note = isnan(c->limit) ? " (reported)" : "";
    if (!c->any) return "-";
    if (isnan(c->value)) return "not finite";
    if (c->value > 0.999)
        snprintf(buf, 48, "1 - %.1e%s", fmax(0, 1 - c->value), note);
    else
        snprintf(buf, 48, "%.4f%s", c->value, note);
    return buf;
}

/* The largest difference, and what share of its bound that is. */
static const char *say_difference(const lm_summary *s, char buf[48]) {
    const lm_worst_value *d = &s->difference;
    if (!d->any) return "-";
    if (isnan(d->value)) return "not finite";
    snprintf(buf, 48, "%.2e (%.2g %% of %.3g)", d->value, d->limit > 0 ? 100 * d->value / d->limit : 0, d->limit);
    return buf;
}

static const char *say_agreement(const lm_summary *s, char buf[48]) {
    if (!s->agreement.any) return "-";
    snprintf(buf, 48, "%.4f (>= %g)", s->agreement.value, s->agreement.limit);
    return buf;
}

/* ---- text ----------------------------------------------------------------------------------------------------------- */
static void text_row(const row *r) {
    char cosine[48], difference[48];
    const lm_summary *s = &r->s;
    const char *trace = *r->pair->trace ? last_name(r->pair->trace) : "-";
    printf("%-7s  %-36s  %-23s  ", lm_verdict_name(s->verdict), r->pair->model, trace);
    if (!r->ledger) {
        printf("%s\n%9s%s\n", *r->backend ? r->backend : "-", "", r->why);
    } else {
        printf("%-3s %-4s  %3u proven, %2u open, %2u refuted  cosine %s", r->backend, s->lane, r->proven, r->open, r->refuted,
               say_cosine(s, cosine));
        printf("  worst difference %s", say_difference(s, difference));
        if (*s->logits_sha256) printf("  logits %.12s", s->logits_sha256);
        printf("  trace %.12s\n", s->trace_sha256);
    }
    fflush(stdout);
}

static void text_end(const table *t) {
    for (uint32_t i = 0; i < t->n; i++) {
        const row *r = &t->row[i];
        if (!r->refuted) continue;
        printf("\n%s\n", lm_ledger_subject(r->ledger));
        for (uint32_t k = 0; k < lm_ledger_size(r->ledger); k++) {
            const lm_claim *c = lm_ledger_claim(r->ledger, k);
            char *text = c->verdict == LM_REFUTED ? lm_claim_text(c) : NULL;
            if (text) fputs(text, stdout);
            lm_text_free(text);
        }
    }
    printf("\n%u proven, %u open, %u refuted\n", t->proven, t->open, t->refuted);
}

/* ---- JSON ----------------------------------------------------------------------------------------------------------- */
static void json_text(const char *key, const char *s, const char *after) {
    printf("\"%s\": ", key);
    lm_cli_json_text(stdout, s, strlen(s));
    fputs(after, stdout);
}

static void json_number(const char *key, bool any, double v, const char *after) {
    if (any && isfinite(v))
        printf("\"%s\": %.9g%s", key, v, after);
    else
        printf("\"%s\": null%s", key, after);
}

static bool json_row(const row *r) {
    const lm_summary *s = &r->s;
    fputs(" {", stdout);
    json_text("model", r->pair->model, ", ");
    json_text("trace", r->pair->trace, ", ");
    json_text("arch", s->arch, ", ");
    json_text("backend", r->backend, ", ");
    json_text("lane", s->lane, ", ");
    json_text("verdict", lm_verdict_name(s->verdict), ",\n  ");
    printf("\"proven\": %u, \"open\": %u, \"refuted\": %u, ", r->proven, r->open, r->refuted);
    json_number("cosine", s->cosine.any, s->cosine.value, ", ");
    json_number("difference", s->difference.any, s->difference.value, ", ");
    json_number("difference_limit", s->difference.any, s->difference.limit, ", ");
    json_number("agreement", s->agreement.any, s->agreement.value, ", ");
    json_number("agreement_limit", s->agreement.any, s->agreement.limit, ",\n  ");
    json_text("logits_sha256", s->logits_sha256, ", ");
    printf("\"portable\": %s, ", s->portable ? "true" : "false");
    json_text("trace_sha256", s->trace_sha256, ", ");
    json_text("note", r->why ? r->why : "", ",\n  ");
    char *text = r->ledger ? lm_ledger_json(r->ledger) : NULL;
    if (r->ledger && !text) return false;
    printf("\"ledger\": %s}", text ? text : "null");
    lm_text_free(text);
    return true;
}

static bool json_all(const table *t, int rc) {
    fputs("{\"rows\": [\n", stdout);
    for (uint32_t i = 0; i < t->n; i++) {
        if (!json_row(&t->row[i])) return false;
        puts(i + 1 < t->n ? "," : "");
    }
    printf("], \"proven\": %u, \"open\": %u, \"refuted\": %u, \"exit\": %d}\n", t->proven, t->open, t->refuted, rc);
    return true;
}

/* ---- Markdown ------------------------------------------------------------------------------------------------------- */
/* In a cell: bars would end it. */
static void cell(const char *s) {
    for (; *s; s++) {
        if (*s == '|') putchar('\\');
        putchar(*s);
    }
}

static void markdown_row(const row *r) {
    char a[48], b[48], c[48];
    const lm_summary *s = &r->s;
    printf("| %s | ", lm_verdict_name(s->verdict));
    cell(r->pair->model);
    printf(" | %s | %s %s | %u | %u | %u | %s | %s | %s | %.16s | %.16s |\n", last_name(r->pair->trace), s->backend, s->lane, r->proven,
           r->open, r->refuted, say_cosine(s, a), say_difference(s, b), say_agreement(s, c), s->portable ? s->logits_sha256 : "-",
           s->trace_sha256);
}

/* Claims of one verdict, a bullet each. */
static void markdown_claims(const table *t, lm_verdict v, const char *title) {
    bool any = false;
    for (uint32_t i = 0; i < t->n; i++)
        for (uint32_t k = 0; t->row[i].ledger && k < lm_ledger_size(t->row[i].ledger); k++) {
            const row *r = &t->row[i];
            const lm_claim *c = lm_ledger_claim(r->ledger, k);
            if (c->verdict != v) continue;
            if (!any) printf("\n## %s\n\n", title);
            any = true;
            printf("* %s, %s, %s %s: %s, %s", r->pair->model, last_name(r->pair->trace), r->s.backend, r->s.lane, c->section, c->name);
            if (*c->bound) printf(" [%s]", c->bound);
            if (*c->measured) printf(": %s", c->measured);
            printf("%s%s\n", *c->note ? ": " : "", c->note);
        }
}

static void markdown_all(const table *t) {
    bool any = false;
    puts("| verdict | model | trace | backend, lane | proven | open | refuted | least hidden cosine | worst difference, of its bound "
         "| least top-1 agreement | sha256 of the logits | sha256 of the trace |\n"
         "| --- | --- | --- | --- | ---: | ---: | ---: | --- | --- | --- | --- | --- |");
    for (uint32_t i = 0; i < t->n; i++)
        if (t->row[i].ledger) markdown_row(&t->row[i]);
    markdown_claims(t, LM_REFUTED, "Refuted");
    markdown_claims(t, LM_OPEN, "Open claims of the rows above");
    for (uint32_t i = 0; i < t->n; i++) {
        const row *r = &t->row[i];
        if (r->ledger) continue;
        if (!any) puts("\n## Open: not witnessed on this machine\n\n| model | what would close it |\n| --- | --- |");
        any = true;
        fputs("| ", stdout);
        cell(r->pair->model);
        printf("%s%s%s%s | ", *r->pair->trace ? ", " : "", last_name(r->pair->trace), *r->backend ? ", " : "", r->backend);
        cell(r->why);
        puts(" |");
    }
    printf("\n%u proven, %u open, %u refuted\n", t->proven, t->open, t->refuted);
}

/* ---- the whole ------------------------------------------------------------------------------------------------------ */
static int exit_status(const table *t) {
    if (t->refuted) return 1;
    return t->failed ? 2 : t->measured ? 0 : 3;
}

static int judge(table *t, const lm_pairs *pairs, lm_verify_options *o, lm_cli_format format) {
    const char *const backends[] = {LM_CLI_BACKENDS};
    uint32_t n = o->run.backend ? 1 : sizeof backends / sizeof *backends;
    int rc = 0;
    t->row = calloc((size_t)lm_pairs_size(pairs) * n + 1, sizeof *t->row);
    if (!t->row) return lm_cli_error("verify", &(lm_error){.code = LM_NOMEM, .offset = LM_NO_OFFSET});
    for (uint32_t i = 0; i < lm_pairs_size(pairs); i++) {
        const lm_pair *p = lm_pairs_get(pairs, i);
        for (uint32_t b = 0; b < (*p->open ? 1 : n); b++) {
            row *r = &t->row[t->n++];
            *r = (row){.pair = p, .backend = *p->open ? "" : o->run.backend ? o->run.backend : backends[b]};
            if (!run_row(r, o, t, &rc)) return rc;
            if (format == LM_CLI_TEXT) text_row(r);
        }
    }
    rc = exit_status(t);
    if (format == LM_CLI_TEXT)
        text_end(t);
    else if (format == LM_CLI_MARKDOWN)
        markdown_all(t);
    else if (!json_all(t, rc))
        return lm_cli_error("verify", &(lm_error){.code = LM_NOMEM, .offset = LM_NO_OFFSET});
    if (rc == 3) fputs("lemma verify: no gate could be evaluated: the folders hold no model with a trace\n", stderr);
    return rc;
}

int lm_cli_verify_all(const lm_cli_args *folders, const char *models, lm_verify_options *o, lm_cli_format format) {
    lm_pairs *pairs = NULL;
    lm_error err = {0};
    table t = {0};
    if (lm_pairs_find(folders->s, folders->n, models, &pairs, &err) != LM_OK) return lm_cli_error("verify", &err);
    int rc = judge(&t, pairs, o, format);
    for (uint32_t i = 0; i < t.n; i++) {
        lm_ledger_free(t.row[i].ledger);
        free(t.row[i].why);
    }
    free(t.row);
    lm_pairs_free(pairs);
    return rc;
}
