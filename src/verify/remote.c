#include "verify/remote.h"
#include "format/json.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum dialect { UNKNOWN, LLAMA_CPP, OPENAI } dialect;
typedef struct piece {
    const char *s;
    size_t n;
    int32_t id; /* −1: several tokens are written so */
} piece;

struct lm_remote {
    lm_http http;
    dialect dialect;
    uint32_t vocab, variant; /* variant: which of the OpenAI requests the server takes */
    const lm_tokenizer *tok;
    piece *piece; /* sorted; made when the first text comes */
    uint32_t n_pieces;
    char url[512], model[256];
    bool named; /* its model's name has been asked for */
};
#define BAD(r, ...) lm_fail_at(err, LM_FORMAT, (r)->url, LM_NO_OFFSET, NULL, __VA_ARGS__)

lm_status lm_remote_open(const char *url, const lm_http *how, const lm_tokenizer *tok, uint32_t vocab, lm_remote **out, lm_error *err) {
    lm_remote *r = lm_calloc(1, sizeof *r);
    if (!r) return lm_fail_nomem(err, "a server's side", sizeof *r);
    const lm_status st = lm_http_parse(url, &r->http, err);
    if (st != LM_OK) {
        lm_free(r);
        return st;
    }
    r->http.timeout = how->timeout;
    r->http.interrupted = how->interrupted;
    r->http.interrupted_ctx = how->interrupted_ctx;
    r->tok = tok;
    r->vocab = vocab;
    snprintf(r->url, sizeof r->url, "%s", url);
    const size_t n = strlen(r->http.prefix);
    if (n >= 3 && !strcmp(r->http.prefix + n - 3, "/v1")) {
        r->http.prefix[n - 3] = 0;
        r->dialect = OPENAI;
    }
    *out = r;
    return LM_OK;
}

void lm_remote_close(lm_remote *r) {
    if (!r) return;
    lm_free(r->piece);
    lm_free(r);
}

const char *lm_remote_kind(const lm_remote *r) {
    return r->dialect == LLAMA_CPP ? "llama.cpp" : r->dialect == OPENAI ? "OpenAI" : "server";
}

/* ---- texts to ids
 * ------------------------------------------------------------------------------------------------------------------------ */
static int piece_cmp(const void *a, const void *b) {
    const piece *x = a, *y = b;
    const int c = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

static lm_status list_pieces(lm_remote *r, lm_error *err) {
    if (r->piece) return LM_OK;
    if (!r->tok) return BAD(r, "its answer has texts instead of token ids, and the model has no tokenizer to look them up");
    const uint32_t n = lm_tokenizer_vocab(r->tok);
    uint32_t kept = 0;
    if (!(r->piece = lm_calloc((size_t)n + 1, sizeof *r->piece))) return lm_fail_nomem(err, "pieces", n * sizeof *r->piece);
    for (uint32_t i = 0; i < n; i++) {
        piece p = {.id = (int32_t)i};
        p.s = lm_tokenizer_piece(r->tok, p.id, &p.n);
        if (p.s && i < r->vocab) r->piece[kept++] = p;
    }
    if (kept) qsort(r->piece, kept, sizeof *r->piece, piece_cmp);
    for (uint32_t i = 0; i < kept; i++) {
        if (r->n_pieces && !piece_cmp(&r->piece[r->n_pieces - 1], &r->piece[i]))
            r->piece[r->n_pieces - 1].id = -1;
        else
            r->piece[r->n_pieces++] = r->piece[i];
    }
    return LM_OK;
}

static lm_status id_of_text(lm_remote *r, const char *s, size_t n, int32_t *id, lm_error *err) {
    *id = -1;
    if (n > 9 && n < 19 && !memcmp(s, "token_id:", 9) && strspn(s + 9, "0123456789") == n - 9) { /* vLLM, when asked */
        const long long v = strtoll(s + 9, NULL, 10);
        if (v < (long long)r->vocab) *id = (int32_t)v;
        return LM_OK;
    }
    LM_TRY(list_pieces(r, err));
    const piece key = {s, n, 0}, *found = r->n_pieces ? bsearch(&key, r->piece, r->n_pieces, sizeof key, piece_cmp) : NULL;
    if (found) *id = found->id;
    return LM_OK;
}

/* ---- a row
 * ------------------------------------------------------------------------------------------------------------------------------- */
typedef struct entry {
    int32_t id; /* −1: unknown */
    double lp;
} entry;
typedef struct entries {
    entry e[1024];
    uint32_t n;
} entries;

static lm_status take(const lm_remote *r, entries *all, int32_t id, const json_t *lp, lm_error *err) {
    const double v = json_number_value(lp);
    if (!json_is_number(lp) || !isfinite(v) || v > 1e-3)
        return BAD(r, "its answer has a log-probability that is none: it must be a finite number, at most 0");
    for (uint32_t i = 0; i < all->n && id >= 0; i++)
        if (all->e[i].id == id) return BAD(r, "its answer lists token %d twice", id);
    if (all->n == sizeof all->e / sizeof *all->e)
        return BAD(r, "its answer lists more than %zu tokens for a position", sizeof all->e / sizeof *all->e);
    if (v > -1e4) all->e[all->n++] = (entry){id, v}; /* less is how some write minus infinity */
    return LM_OK;
}

static int entry_cmp(const void *a, const void *b) {
    const entry *x = a, *y = b;
    return x->lp != y->lp ? (x->lp < y->lp) - (x->lp > y->lp) : (x->id > y->id) - (x->id < y->id);
}

static lm_status settle(const lm_remote *r, entries *all, lm_remote_row *out, lm_error *err) {
    double sum = 0;
    for (uint32_t i = 0; i < all->n; i++) sum += exp(all->e[i].lp);
    if (sum > 1.01) return BAD(r, "its answer's probabilities add up to %.3g", sum);
    if (all->n) qsort(all->e, all->n, sizeof *all->e, entry_cmp);
    out->n = 0;
    out->best_known = all->n && all->e[0].id >= 0;
    for (uint32_t i = 0; i < all->n && out->n < LM_REMOTE_TOP; i++) {
        if (all->e[i].id < 0) continue;
        out->id[out->n] = all->e[i].id;
        out->lp[out->n++] = (float)all->e[i].lp;
    }
    return out->n ? LM_OK
                  : BAD(r, "its answer names no token of this model's vocabulary: does it run the same model, and give log-probabilities?");
}

/* {"id": 5, "logprob": -0.1, …} or {"token": " a", "bytes": [32, 97], "logprob": -0.1} */
static lm_status take_object(lm_remote *r, entries *all, const json_t *o, lm_error *err) {
    const json_t *id = json_object_get(o, "id"), *bytes = json_object_get(o, "bytes"), *text = json_object_get(o, "token");
    int32_t v = -1;
    if (!json_is_object(o)) return BAD(r, "its answer lists something that is no token");
    if (id) {
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= (json_int_t)r->vocab)
            return BAD(r, "its answer has a token id outside the model's vocabulary of %u", r->vocab);
        v = (int32_t)json_integer_value(id);
    } else if (json_is_array(bytes) && json_array_size(bytes) < 256) {
        char s[256];
        const size_t n = json_array_size(bytes);
        for (size_t i = 0; i < n; i++) s[i] = (char)json_integer_value(json_array_get(bytes, i));
        LM_TRY(id_of_text(r, s, n, &v, err));
    } else if (json_is_string(text)) {
        LM_TRY(id_of_text(r, json_string_value(text), json_string_length(text), &v, err));
    } else {
        return BAD(r, "its answer lists a token without an id or a text");
    }
    return take(r, all, v, json_object_get(o, "logprob"), err);
}

static lm_status take_list(lm_remote *r, const json_t *list, lm_remote_row *out, lm_error *err) {
    entries all;
    all.n = 0;
    if (json_is_array(list)) {
        for (size_t i = 0; i < json_array_size(list); i++) LM_TRY(take_object(r, &all, json_array_get(list, i), err));
    } else if (json_is_object(list)) { /* OpenAI's older shape: text → log-probability */
        const char *key;
        json_t *v;
        json_object_foreach((json_t *)(uintptr_t)list, key, v) {
            int32_t id;
            LM_TRY(id_of_text(r, key, strlen(key), &id, err));
            LM_TRY(take(r, &all, id, v, err));
        }
    } else {
        return BAD(r, "its answer has no list of log-probabilities");
    }
    return settle(r, &all, out, err);
}

/* ---- asking
 * ------------------------------------------------------------------------------------------------------------------------------ */
/* The server's own words about a refusal, or the start of what it said. */
static lm_status refused(const lm_remote *r, int status, const char *answer, lm_error *err) {
    char line[160];
    size_t n = 0;
    for (const char *s = answer; *s && n + 1 < sizeof line; s++)
        if ((unsigned char)*s >= ' ' && (unsigned char)*s < 127) line[n++] = *s;
    line[n] = 0;
    return lm_fail_at(err, LM_IO, r->url, LM_NO_OFFSET, NULL, "the server answers with status %d: %s", status, line);
}

static char *request(const lm_remote *r, const int32_t *ids, uint32_t n, size_t *size) {
    static const struct {
        int top;
        const char *more;
    } variant[] = {{20, ", \"return_tokens_as_token_ids\": true"}, {20, ""}, {5, ""}};
    char *text = NULL;
    FILE *f = open_memstream(&text, size);
    if (!f) return NULL;
    fprintf(f, "{\"prompt\": [");
    for (uint32_t i = 0; i < n; i++) fprintf(f, "%s%d", i ? "," : "", ids[i]);
    if (r->dialect == OPENAI) {
        fprintf(f, "], \"max_tokens\": 1, \"temperature\": 0, \"stream\": false, \"logprobs\": %d%s", variant[r->variant].top,
                variant[r->variant].more);
        if (r->model[0]) fprintf(f, ", \"model\": \"%s\"", r->model);
    } else {
        fprintf(f,
                "], \"n_predict\": 1, \"temperature\": 0, \"stream\": false, \"cache_prompt\": true, \"n_probs\": %d, "
                "\"post_sampling_probs\": false",
                LM_REMOTE_TOP);
    }
    fputc('}', f);
    if (fclose(f) == 0) return text;
    lm_free(text);
    return NULL;
}

static lm_status ask(const lm_remote *r, const int32_t *ids, uint32_t n, char **answer, size_t *answer_n, int *status, lm_error *err) {
    size_t size = 0;
    char *body = request(r, ids, n, &size);
    if (!body) return lm_fail_nomem(err, "a request", n);
    const lm_status st =
        lm_http_ask(&r->http, r->dialect == OPENAI ? "/v1/completions" : "/completion", body, size, answer, answer_n, status, err);
    lm_free(body);
    return st;
}

/* Servers of several models want its name: the first that they list. One that lists none is asked without. */
static lm_status find_model(lm_remote *r, lm_error *err) {
    char *answer = NULL;
    size_t n = 0;
    int status = 0;
    json_t *root = NULL;
    r->named = true;
    LM_TRY(lm_http_ask(&r->http, "/v1/models", NULL, 0, &answer, &n, &status, err));
    if (status == 200 && lm_json_parse((const uint8_t *)answer, n, 0, r->url, &root, NULL) == LM_OK) {
        const char *id = json_string_value(json_object_get(json_array_get(json_object_get(root, "data"), 0), "id"));
        bool plain = id && strlen(id) < sizeof r->model;
        for (const char *s = id; plain && *s; s++) plain = (unsigned char)*s >= ' ' && *s != '"' && *s != '\\';
        if (plain) snprintf(r->model, sizeof r->model, "%s", id);
    }
    json_decref(root);
    lm_free(answer);
    return LM_OK;
}

/* The first answer settles the dialect, and which form of the request the server takes. */
static lm_status ask_until_taken(lm_remote *r, const int32_t *ids, uint32_t n, char **answer, size_t *answer_n, lm_error *err) {
    for (;;) {
        int status = 0;
        if (r->dialect == OPENAI && !r->named) LM_TRY(find_model(r, err));
        LM_TRY(ask(r, ids, n, answer, answer_n, &status, err));
        if (status == 200) {
            if (r->dialect == UNKNOWN) r->dialect = LLAMA_CPP;
            return LM_OK;
        }
        if (r->dialect == UNKNOWN && (status == 404 || status == 405 || status == 501)) {
            r->dialect = OPENAI;
        } else if (r->dialect == OPENAI && (status == 400 || status == 422) && r->variant < 2) {
            r->variant++;
        } else {
            return refused(r, status, *answer, err);
        }
        lm_free(*answer);
        *answer = NULL;
    }
}

/* Where texts are keys, two tokens that are written alike become one entry, and the best may be the one that is lost: the log-probability
 * of the token that was chosen stands beside. */
static void check_best(const lm_remote *r, const json_t *root, lm_remote_row *out) {
    const json_t *lp = json_object_get(json_array_get(json_object_get(root, "choices"), 0), "logprobs");
    const json_t *chosen = json_array_get(json_object_get(lp, "token_logprobs"), 0);
    if (r->dialect == OPENAI && json_is_number(chosen) && json_number_value(chosen) > out->lp[0] + 1e-4) out->best_known = false;
}

/* The list of the one position's candidates within an answer; NULL: there is none. */
static const json_t *find_list(const lm_remote *r, const json_t *root) {
    if (r->dialect == LLAMA_CPP)
        return json_object_get(json_array_get(json_object_get(root, "completion_probabilities"), 0), "top_logprobs");
    const json_t *lp = json_object_get(json_array_get(json_object_get(root, "choices"), 0), "logprobs");
    const json_t *content = json_array_get(json_object_get(lp, "content"), 0);
    return content ? json_object_get(content, "top_logprobs") : json_array_get(json_object_get(lp, "top_logprobs"), 0);
}

lm_status lm_remote_next(lm_remote *r, const int32_t *ids, uint32_t n, lm_remote_row *out, lm_error *err) {
    char *answer = NULL;
    size_t size = 0;
    json_t *root = NULL;
    lm_status st = ask_until_taken(r, ids, n, &answer, &size, err);
    if (st == LM_OK) st = lm_json_parse((const uint8_t *)answer, size, 0, r->url, &root, err);
    if (st == LM_OK) {
        const json_t *list = find_list(r, root);
        st = list ? take_list(r, list, out, err)
                  : BAD(r, "its answer has no log-probabilities of tokens: a llama.cpp of December 2024 or newer, or an OpenAI-compatible "
                           "/v1/completions with logprobs, is wanted");
    }
    if (st == LM_OK) check_best(r, root, out);
    json_decref(root);
    lm_free(answer);
    return st;
}
