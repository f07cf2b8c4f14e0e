/* lemma tokenize: text to ids and pieces, ids to text; no weights are read. */
#include <stdlib.h>
#include <string.h>
#include "cli.h"

static const char about[] =
    "MODEL TEXT [options]\n\nPrints one token a line: its id, a tab, its text as a JSON string. MODEL may be a tokenizer.json.";

typedef struct tokenize {
    const char *file;
    lm_cli_ids decode;
    bool ids, no_special, json;
    lm_tokenizer *t;
} tokenize;

static int decode(const tokenize *o, lm_error *err) {
    char *text = NULL;
    size_t n = 0;
    if (lm_tokenizer_decode(o->t, o->decode.id, o->decode.n, o->no_special, &text, &n, err) != LM_OK) return lm_cli_error("tokenize", err);
    if (o->json) {
        printf("{\"text\": ");
        lm_cli_json_text(stdout, text, n);
        printf("}\n");
    } else {
        fwrite(text, 1, n, stdout);
        putchar('\n');
    }
    lm_free(text);
    return 0;
}

static void put_piece(const lm_tokenizer *t, int32_t id) {
    size_t n = 0;
    const char *s = lm_tokenizer_piece(t, id, &n);
    lm_cli_json_text(stdout, s ? s : "", s ? n : 0);
}

static int encode(const tokenize *o, const char *text, size_t n_text, lm_error *err) {
    int32_t *id = NULL;
    size_t n = 0;
    if (lm_text_encode(o->t, text, n_text, !o->no_special, true, &id, &n, err) != LM_OK) return lm_cli_error("tokenize", err);
    if (o->json) {
        printf("{\"ids\": [");
        for (size_t i = 0; i < n; i++) printf("%s%d", i ? ", " : "", id[i]);
        printf("], \"pieces\": [");
        for (size_t i = 0; i < n; i++) {
            if (i) printf(", ");
            put_piece(o->t, id[i]);
        }
        printf("]}\n");
    } else if (o->ids) {
        for (size_t i = 0; i < n; i++) printf("%s%d", i ? "," : "", id[i]);
        putchar('\n');
    } else {
        for (size_t i = 0; i < n; i++) {
            printf("%d\t", id[i]);
            put_piece(o->t, id[i]);
            putchar('\n');
        }
    }
    lm_free(id);
    return 0;
}

static int execute(tokenize *o, const lm_cli_args *args) {
    lm_error err = {0};
    bool text = args->n == 2;
    if (text + (o->file != NULL) + (o->decode.n > 0) != 1)
        return lm_cli_usage("tokenize", "give one of TEXT, --file FILE and --decode 1,2,3");
    if (o->ids && (o->json || o->decode.n)) return lm_cli_usage("tokenize", "--ids goes with neither --json nor --decode");
    if (lm_tokenizer_open(args->s[0], &o->t, &err) != LM_OK) {
        if (err.code == LM_MISSING) err.code = LM_USAGE; /* the wrong MODEL was named; nothing is missing on this machine */
        return lm_cli_error("tokenize", &err);
    }
    if (o->decode.n) return decode(o, &err);
    size_t n = text ? strlen(args->s[1]) : 0;
    char *from_file = NULL;
    if (!text && !(from_file = lm_cli_read_file("tokenize", o->file, &n))) return 2;
    int rc = encode(o, text ? args->s[1] : from_file, n, &err);
    free(from_file);
    return rc;
}

int lm_cli_tokenize(int argc, char **argv) {
    tokenize o = {0};
    const lm_cli_opt opts[] = {
        {"--file", 'f', LM_CLI_STR, &o.file, "FILE", "the text from a file (- is stdin)"},
        {"--ids", 0, LM_CLI_FLAG, &o.ids, NULL, "only the ids, 1,2,3"},
        {"--decode", 0, LM_CLI_IDS, &o.decode, "LIST", "the text of these ids"},
        {"--no-special", 0, LM_CLI_FLAG, &o.no_special, NULL, "add no BOS or the like; with --decode: leave special tokens out"},
        LM_CLI_JSON_OPT(&o.json),
        {0},
    };
    lm_cli_args args;
    int rc = lm_cli_parse("tokenize", about, opts, 1, 2, argc, argv, &args);
    if (rc == LM_CLI_GO) rc = execute(&o, &args);
    lm_tokenizer_free(o.t);
    free(o.decode.id);
    return rc;
}
