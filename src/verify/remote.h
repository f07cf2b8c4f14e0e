/* A running server as a source of log-probabilities: llama.cpp's /completion, or an OpenAI-compatible /v1/completions. The prompt goes over
 * as ids, so that the server's tokenizer has no part in it; what comes back is its few best next tokens. */
#ifndef LM_VERIFY_REMOTE_H
#define LM_VERIFY_REMOTE_H
#include "tokenizer/tokenizer.h"
#include "verify/http.h"

enum { LM_REMOTE_TOP = 64 };
typedef struct lm_remote_row {
    uint32_t n;                /* 1 … LM_REMOTE_TOP */
    int32_t id[LM_REMOTE_TOP]; /* the best first, the lower id among equals */
    float lp[LM_REMOTE_TOP];
    bool best_known; /* false: the very best is a text that is no one token of this vocabulary, and is not listed */
} lm_remote_row;

typedef struct lm_remote lm_remote;
/* tok: for servers that answer with texts instead of ids; may be NULL (they are then refused). Nothing is sent yet. */
lm_status lm_remote_open(const char *url, const lm_http *how, const lm_tokenizer *tok, uint32_t vocab, lm_remote **out, lm_error *err);
/* What follows ids[0..n). Everything in the answer is checked: shapes, ids, numbers, that the probabilities are some. */
lm_status lm_remote_next(lm_remote *r, const int32_t *ids, uint32_t n, lm_remote_row *out, lm_error *err);
const char *lm_remote_kind(const lm_remote *r); /* "llama.cpp", "OpenAI"; "server" until it has answered */
void lm_remote_close(lm_remote *r);
#endif
