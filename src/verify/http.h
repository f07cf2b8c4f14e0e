/* A small HTTP/1.1 client: one request per connection, plain http, bounded in time and size. For asking a server on this machine or this
 * network for log-probabilities; downloads from the world are another matter. */
#ifndef LM_VERIFY_HTTP_H
#define LM_VERIFY_HTTP_H
#include "base/mem.h"

#define LM_HTTP_MOST (32u << 20) /* bytes of an answer, its header included */

typedef struct lm_http {
    char host[256], port[8], prefix[256]; /* prefix: the URL's path without a slash at its end */
    double timeout;                       /* seconds for a whole request */
    bool (*interrupted)(void *ctx);       /* polled while waiting; may be NULL */
    void *interrupted_ctx;
} lm_http;
/* "http://host[:port][/path]". https and anything else is refused by name. Callbacks and the timeout are the caller's to set. */
lm_status lm_http_parse(const char *url, lm_http *out, lm_error *err);
/* POST body[0..n), or GET when body is NULL, to prefix + path. *answer is the decoded body, NUL-terminated, the caller's (lm_free). */
lm_status lm_http_ask(const lm_http *h, const char *path, const char *body, size_t n, char **answer, size_t *answer_n, int *status,
                      lm_error *err);
#endif
