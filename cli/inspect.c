/* lemma inspect: what a model's files hold, and what a run would do with it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "cli.h"

static const char about[] = "FILE|DIR [options]\n\nSays what is in a model without running it.";

/* Names and values come out of the file: on a terminal they must stay text. */
static void put_safe(const char *s) {
    for (; *s; s++) putchar((unsigned char)*s < 0x20 || *s == 0x7f ? '?' : *s);
}
static void put_json(const char *s) {
    if (s) lm_cli_json_text(stdout, s, strlen(s));
    else fputs("null", stdout);
}

/* ---- tensor types, most bytes first ----------------------------------------------------------------------------------------------*/
typedef struct type_row { const char *name; uint64_t tensors, bytes; } type_row;
#define MAX_TYPES 64

static int by_bytes(const void *a, const void *b) {
    const type_row *x = a, *y = b;
    return x->bytes != y->bytes ? (x->bytes < y->bytes) - (x->bytes > y->bytes) : strcmp(x->name, y->name);
}

static uint32_t count_types(const lm_inspect *in, uint32_t tensors, type_row row[MAX_TYPES]) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < tensors; i++) {
        lm_inspect_tensor t = lm_inspect_get_tensor(in, i);
        uint32_t k = 0;
        while (k < n && strcmp(row[k].name, t.type)) k++;
        if (k == MAX_TYPES) continue; /* there are fewer types than that */
        if (k == n) row[n++] = (type_row){.name = t.type};
        row[k].tensors++;
        row[k].bytes += t.bytes;
    }
    qsort(row, n, sizeof *row, by_bytes);
    return n;
}

/* ---- text ---------------------------------------------------------------------------------------------------------------------------*/
static void put_shape(const lm_inspect_tensor *t, const char *separator) {
    putchar('[');
    for (uint32_t d = 0; d < t->rank; d++) printf("%s%" PRIu64, d ? separator : "", t->dim[d]);
    putchar(']');
}

static void text_program(const lm_inspect *in, const lm_inspect_info *o) {
    if (o->refused) {
        printf("program     none: ");
        put_safe(o->refused);
        putchar('\n');
        return;
    }
    printf("program     %u ops, %u layers, hidden %u, vocabulary %u", o->ops, o->layers, o->hidden, o->vocab);
    if (o->max_position) printf(", %u positions", o->max_position);
    printf("\n            ");
    for (uint32_t i = 0; i < o->op_kinds; i++) {
        lm_inspect_count c = lm_inspect_get_op(in, i);
        printf("%s%s %" PRIu64, i ? ", " : "", c.name, c.n);
    }
    putchar('\n');
    for (uint32_t i = 0; i < o->traits; i++) {
        lm_inspect_count c = lm_inspect_get_trait(in, i);
        printf("trait       %s (matters from %" PRIu64 " tokens on)\n", c.name, c.n);
    }
    printf("caches      %u, %" PRIu64 " bytes per token and %" PRIu64 " fixed, at float32\n", o->caches, o->cache_bytes_per_token,
           o->cache_bytes_fixed);
    if (!o->skipped) printf("skipped     nothing\n");
    for (uint32_t i = 0; i < o->skipped; i++) {
        lm_inspect_count c = lm_inspect_get_skipped(in, i);
        printf("skipped     %s: %" PRIu64 " tensors that text generation does not need\n", c.name, c.n);
    }
}

static void text(const lm_inspect *in, const lm_inspect_info *o, const char *path, bool tensors, bool meta) {
    type_row row[MAX_TYPES];
    uint32_t types = count_types(in, o->tensors, row);
    printf("file        ");
    put_safe(path);
    printf(": %s, %u weight file%s, %" PRIu64 " bytes\n", o->kind, o->files, o->files == 1 ? "" : "s", o->file_bytes);
    printf("arch        ");
    put_safe(o->arch ? o->arch : "not said");
    printf("\nparameters  %" PRIu64 " in %u tensors\n", o->parameters, o->tensors);
    for (uint32_t i = 0; i < types; i++)
        printf("type        %-8s %6" PRIu64 " tensors %14" PRIu64 " bytes\n", row[i].name, row[i].tensors, row[i].bytes);
    printf("tokenizer   %s", o->tokenizer_ok ? "" : "none: ");
    put_safe(o->tokenizer);
    putchar('\n');
    text_program(in, o);
    for (uint32_t i = 0; meta && i < o->metadata; i++) {
        lm_inspect_meta m = lm_inspect_get_meta(in, i);
        printf("meta        ");
        put_safe(m.key);
        printf(" = ");
        put_safe(m.json);
        if (!strncmp(m.type, "array", 5)) printf(" (%" PRIu64 ")", m.n);
        putchar('\n');
    }
    for (uint32_t i = 0; tensors && i < o->tensors; i++) {
        lm_inspect_tensor t = lm_inspect_get_tensor(in, i);
        printf("tensor      ");
        put_safe(t.name);
        printf(" %s ", t.type);
        put_shape(&t, ", ");
        printf(" file %u at %" PRIu64 ", %" PRIu64 " bytes", t.file, t.offset, t.bytes);
        if (!o->refused) printf(" -> %s", t.used_by ? t.used_by : "skipped");
        putchar('\n');
    }
}

/* ---- JSON ---------------------------------------------------------------------------------------------------------------------------*/
static void json_counts(const lm_inspect *in, const char *key, uint32_t n, lm_inspect_count (*get)(const lm_inspect *, uint32_t),
                        const char *number) {
    printf(", \"%s\": [", key);
    for (uint32_t i = 0; i < n; i++) {
        lm_inspect_count c = get(in, i);
        printf("%s{\"name\": ", i ? ", " : "");
        put_json(c.name);
        printf(", \"%s\": %" PRIu64 "}", number, c.n);
    }
    putchar(']');
}

static void json_program(const lm_inspect *in, const lm_inspect_info *o) {
    printf(", \"refused\": ");
    put_json(o->refused);
    if (o->refused) return;
    printf(", \"program\": {\"ops\": %u, \"layers\": %u, \"hidden\": %u, \"vocab\": %u, \"max_position\": %u", o->ops, o->layers, o->hidden,
           o->vocab, o->max_position);
    printf(", \"cache_bytes_per_token\": %" PRIu64 ", \"cache_bytes_fixed\": %" PRIu64, o->cache_bytes_per_token, o->cache_bytes_fixed);
    json_counts(in, "kinds", o->op_kinds, lm_inspect_get_op, "ops");
    json_counts(in, "traits", o->traits, lm_inspect_get_trait, "min_tokens");
    json_counts(in, "caches", o->caches, lm_inspect_get_cache, "bytes_per_token");
    json_counts(in, "skipped", o->skipped, lm_inspect_get_skipped, "tensors");
    putchar('}');
}

static void json_tensors(const lm_inspect *in, uint32_t n) {
    printf(", \"tensor_list\": [");
    for (uint32_t i = 0; i < n; i++) {
        lm_inspect_tensor t = lm_inspect_get_tensor(in, i);
        printf("%s{\"name\": ", i ? ", " : "");
        put_json(t.name);
        printf(", \"type\": \"%s\", \"shape\": ", t.type);
        put_shape(&t, ", ");
        printf(", \"file\": %u, \"offset\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"used_by\": ", t.file, t.offset, t.bytes);
        put_json(t.used_by);
        putchar('}');
    }
    putchar(']');
}

static void json(const lm_inspect *in, const lm_inspect_info *o, const char *path, bool tensors, bool meta) {
    type_row row[MAX_TYPES];
    uint32_t types = count_types(in, o->tensors, row);
    printf("{\"path\": ");
    put_json(path);
    printf(", \"kind\": \"%s\", \"arch\": ", o->kind);
    put_json(o->arch);
    printf(", \"files\": %u, \"file_bytes\": %" PRIu64 ", \"parameters\": %" PRIu64 ", \"tensors\": %u, \"types\": [", o->files,
           o->file_bytes, o->parameters, o->tensors);
    for (uint32_t i = 0; i < types; i++)
        printf("%s{\"name\": \"%s\", \"tensors\": %" PRIu64 ", \"bytes\": %" PRIu64 "}", i ? ", " : "", row[i].name, row[i].tensors,
               row[i].bytes);
    printf("], \"tokenizer\": ");
    put_json(o->tokenizer);
    printf(", \"tokenizer_ok\": %s", o->tokenizer_ok ? "true" : "false");
    json_program(in, o);
    if (meta) printf(", \"metadata\": {");
    for (uint32_t i = 0; meta && i < o->metadata; i++) {
        lm_inspect_meta m = lm_inspect_get_meta(in, i);
        printf("%s", i ? ", " : "");
        put_json(m.key);
        printf(": {\"type\": \"%s\", \"n\": %" PRIu64 ", \"value\": %s}", m.type, m.n, m.json);
    }
    if (meta) putchar('}');
    if (tensors) json_tensors(in, o->tensors);
    printf("}\n");
}

int lm_cli_inspect(int argc, char **argv) {
    bool as_json = false, tensors = false, meta = false;
    const lm_cli_opt opts[] = {
        {"--tensors", 0, LM_CLI_FLAG, &tensors, NULL, "every tensor: type, shape, place, and the op that uses it"},
        {"--meta", 0, LM_CLI_FLAG, &meta, NULL, "all metadata; long arrays are abbreviated"},
        LM_CLI_JSON_OPT(&as_json),
        {0},
    };
    lm_cli_args args;
    int rc = lm_cli_parse("inspect", about, opts, 1, 1, argc, argv, &args);
    if (rc != LM_CLI_GO) return rc;
    lm_error err = {0};
    lm_inspect *in = NULL;
    if (lm_inspect_open(args.s[0], &in, &err) != LM_OK) return lm_cli_error("inspect", &err);
    lm_inspect_info info;
    lm_inspect_get_info(in, &info);
    (as_json ? json : text)(in, &info, args.s[0], tensors, meta);
    lm_inspect_close(in);
    return 0;
}
