/* Options from a table, help from the same table, and one-line errors. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "cli.h"

int lm_cli_error(const char *verb, const lm_error *err) {
    char line[4096];
    lm_cli_progress_end();
    fflush(stdout);
    fprintf(stderr, "lemma %s: %s\n", verb, lm_error_line(err, line, sizeof line));
    return lm_status_exit_code(err->code);
}

int lm_cli_usage(const char *verb, const char *fmt, ...) {
    lm_error e = {.code = LM_USAGE, .offset = LM_NO_OFFSET};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e.message, sizeof e.message, fmt, ap);
    va_end(ap);
    for (char *c = e.message; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?'; /* an argument's line breaks: the error stays one line */
    return lm_cli_error(verb, &e);
}

static void print_help(const char *verb, const char *about, const lm_cli_opt *opts) {
    printf("usage: lemma %s %s\n\n", verb, about);
    for (const lm_cli_opt *o = opts; o->name; o++) {
        char left[64];
        snprintf(left, sizeof left, "%c%c%s%s%s%s", o->letter ? '-' : ' ', o->letter ? o->letter : ' ', o->letter ? ", " : "  ", o->name,
                 o->arg ? " " : "", o->arg ? o->arg : "");
        printf("  %-26s %s\n", left, o->help);
    }
    printf("  %-26s %s\n", "-h, --help", "this");
}

/* Decimal digits only: no sign, no space, no hexadecimal. */
static bool parse_u64(const char *s, uint64_t *out) {
    if (!*s) return false;
    uint64_t v = 0;
    for (; *s; s++) {
        if (*s < '0' || *s > '9') return false;
        if (__builtin_mul_overflow(v, 10u, &v) || __builtin_add_overflow(v, (uint64_t)(*s - '0'), &v)) return false;
    }
    *out = v;
    return true;
}

static bool parse_f64(const char *s, double *out) {
    char *end;
    if (!*s || strspn(s, "+-.0123456789eE") != strlen(s)) return false;
    *out = strtod(s, &end);
    return !*end && isfinite(*out);
}

static int set_ids(const char *verb, const lm_cli_opt *o, const char *v) {
    lm_cli_ids *ids = o->to;
    size_t n = 1;
    for (const char *c = v; *c; c++) n += *c == ',';
    if (n > INT32_MAX) return lm_cli_usage(verb, "%s: too many ids", o->name);
    int32_t *id = malloc(n * sizeof *id);
    if (!id) return lm_cli_error(verb, &(lm_error){.code = LM_NOMEM, .offset = LM_NO_OFFSET});
    n = 0;
    for (const char *c = v;;) {
        size_t len = strcspn(c, ",");
        const char *d = c;
        size_t left = len;
        while (left && *d == ' ') d++, left--; /* "1, 2, 3" is fine */
        uint64_t x = 0;
        char num[24];
        bool ok = left > 0 && left < sizeof num;
        if (ok) {
            memcpy(num, d, left);
            num[left] = 0;
            ok = parse_u64(num, &x) && x <= INT32_MAX;
        }
        if (!ok) {
            free(id);
            return lm_cli_usage(verb, "%s: '%.*s' is no token id; write them as 1,2,3", o->name, (int)(len > 40 ? 40 : len), c);
        }
        id[n++] = (int32_t)x;
        if (!c[len]) break;
        c += len + 1;
    }
    free(ids->id);
    ids->id = id;
    ids->n = (uint32_t)n;
    return LM_CLI_GO;
}

static int set_number(const char *verb, const lm_cli_opt *o, const char *v) {
    uint64_t u = 0;
    double d = 0;
    bool real = o->kind == LM_CLI_F64, bounded = o->min != 0 || o->max != 0;
    bool ok = real ? parse_f64(v, &d) : parse_u64(v, &u);
    if (!real) d = (double)u;
    if (ok && o->kind == LM_CLI_U32) ok = u <= UINT32_MAX;
    if (ok && bounded) ok = d >= o->min && d <= o->max;
    if (!ok) {
        char range[80] = "";
        if (bounded) snprintf(range, sizeof range, " from %.15g to %.15g", o->min, o->max);
        return lm_cli_usage(verb, "%s: '%.60s' is no %s%s", o->name, v, real ? "number" : "whole number", range);
    }
    if (real) *(double *)o->to = d;
    else if (o->kind == LM_CLI_U64) *(uint64_t *)o->to = u;
    else *(uint32_t *)o->to = (uint32_t)u;
    return LM_CLI_GO;
}

static int set_value(const char *verb, const lm_cli_opt *o, const char *v) {
    if (o->given) *o->given = true;
    switch (o->kind) {
    case LM_CLI_FLAG: *(bool *)o->to = true; return LM_CLI_GO;
    case LM_CLI_STR: *(const char **)o->to = v; return LM_CLI_GO;
    case LM_CLI_STRS: {
        lm_cli_strs *l = o->to;
        if (l->n == LM_CLI_MAX_STRS) return lm_cli_usage(verb, "%s: given more than %d times", o->name, LM_CLI_MAX_STRS);
        l->s[l->n++] = v;
        return LM_CLI_GO;
    }
    case LM_CLI_IDS: return set_ids(verb, o, v);
    default: return set_number(verb, o, v);
    }
}

/* The option that `arg` names; *value: what follows its '=', or NULL. */
static const lm_cli_opt *find(const lm_cli_opt *opts, const char *arg, const char **value) {
    *value = NULL;
    for (const lm_cli_opt *o = opts; o->name; o++) {
        size_t n = strlen(o->name);
        if (o->letter && arg[1] == o->letter && !arg[2]) return o;
        if (strncmp(arg, o->name, n) || (arg[n] && arg[n] != '=')) continue;
        if (arg[n]) *value = arg + n + 1;
        return o;
    }
    return NULL;
}

int lm_cli_parse(const char *verb, const char *about, const lm_cli_opt *opts, uint32_t min_args, uint32_t max_args, int argc, char **argv,
                 lm_cli_args *args) {
    bool plain = false; /* after "--" */
    args->n = 0;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *value;
        if (!plain && !strcmp(a, "--")) {
            plain = true;
        } else if (!plain && (!strcmp(a, "-h") || !strcmp(a, "--help"))) {
            print_help(verb, about, opts);
            return 0;
        } else if (!plain && a[0] == '-' && a[1]) {
            const lm_cli_opt *o = find(opts, a, &value);
            if (!o) return lm_cli_usage(verb, "unknown option '%.80s'; lemma %s -h lists them", a, verb);
            if (o->kind == LM_CLI_FLAG) {
                if (value) return lm_cli_usage(verb, "%s takes no value", o->name);
            } else if (!value && (value = ++i < argc ? argv[i] : NULL) == NULL) {
                return lm_cli_usage(verb, "%s wants a value: %s", o->name, o->arg);
            }
            int rc = set_value(verb, o, value);
            if (rc != LM_CLI_GO) return rc;
        } else if (args->n == max_args || args->n == LM_CLI_MAX_ARGS) {
            return lm_cli_usage(verb, "'%.80s' is one argument too many; usage: lemma %s %.*s", a, verb, (int)strcspn(about, "\n"), about);
        } else {
            args->s[args->n++] = a;
        }
    }
    if (args->n < min_args)
        return lm_cli_usage(verb, "an argument is missing; usage: lemma %s %.*s", verb, (int)strcspn(about, "\n"), about);
    return LM_CLI_GO;
}
