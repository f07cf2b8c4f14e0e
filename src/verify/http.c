#include "verify/http.h"
#include "base/threads.h"
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEADER_MOST = 64 << 10, SLICE_MS = 100 };

#define FAIL(...) lm_fail_at(err, LM_IO, c->h->host, LM_NO_OFFSET, c->h->port, __VA_ARGS__)

lm_status lm_http_parse(const char *url, lm_http *out, lm_error *err) {
    *out = (lm_http){.port = "80"};
    if (!strncmp(url, "https://", 8))
        return lm_fail_at(err, LM_UNSUPPORTED, url, LM_NO_OFFSET, NULL,
                          "https is not spoken here: name the server's plain http address, or a local proxy to it");
    if (strncmp(url, "http://", 7)) return lm_fail_at(err, LM_USAGE, url, LM_NO_OFFSET, NULL, "a server is http://HOST[:PORT][/PATH]");
    const char *host = url + 7, *path = host + strcspn(host, "/"), *colon = NULL;
    for (const char *s = host; s < path; s++)
        if ((unsigned char)*s <= ' ' || strchr("@?#\"\\", *s))
            return lm_fail_at(err, LM_USAGE, url, LM_NO_OFFSET, NULL, "'%c' can't stand in a server's name", *s);
    const char *end = *host == '[' ? memchr(host, ']', (size_t)(path - host)) : NULL; /* [::1] */
    for (const char *s = end ? end : host; s < path; s++)
        if (*s == ':') colon = s;
    const char *stop = colon ? colon : path, *from = end ? host + 1 : host;
    const size_t n = (size_t)((end ? end : stop) - from), ports = colon ? (size_t)(path - colon - 1) : 0;
    size_t prefix = strlen(path);
    while (prefix && path[prefix - 1] == '/') prefix--;
    if (!n || n >= sizeof out->host || prefix >= sizeof out->prefix || strcspn(path, " \r\n\t?#") < prefix)
        return lm_fail_at(err, LM_USAGE, url, LM_NO_OFFSET, NULL, "a server is http://HOST[:PORT][/PATH]");
    uint32_t port = 0; /* checked here: the C library takes a larger one modulo 65536 */
    for (size_t i = 0; i < ports && ports <= 5; i++)
        port = colon[1 + i] >= '0' && colon[1 + i] <= '9' ? 10 * port + (uint32_t)(colon[1 + i] - '0') : 65536;
    if (colon && (!port || port > 65535))
        return lm_fail_at(err, LM_USAGE, url, LM_NO_OFFSET, NULL, "the port after the colon must be a number from 1 to 65535");
    memcpy(out->host, from, n);
    if (colon) memcpy(out->port, colon + 1, ports), out->port[ports] = 0;
    memcpy(out->prefix, path, prefix);
    return LM_OK;
}

/* ---- a connection -----------------------------------------------------------------------------------------------------------------------
 */
typedef struct conn {
    const lm_http *h;
    int fd;
    double deadline;
    char *in; /* what came so far */
    size_t n, cap;
} conn;

static lm_status wait_for(conn *c, short what, const char *doing, lm_error *err) {
    for (;;) {
        struct pollfd p = {.fd = c->fd, .events = what};
        if (c->h->interrupted && c->h->interrupted(c->h->interrupted_ctx)) return lm_fail(err, LM_INTERRUPTED, "interrupted");
        const double left = c->deadline - lm_now();
        if (left <= 0) return FAIL("the server took more than %g s while %s", c->h->timeout, doing);
        const int k = poll(&p, 1, left * 1000 < SLICE_MS ? (int)(left * 1000) + 1 : SLICE_MS);
        if (k > 0) return LM_OK;
        if (k < 0 && errno != EINTR) return FAIL("waiting failed: %s", strerror(errno));
    }
}

static lm_status connect_to(conn *c, const struct addrinfo *a, lm_error *err) {
    int why = 0;
    socklen_t size = sizeof why;
    c->fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
    if (c->fd < 0) return FAIL("no socket: %s", strerror(errno));
    if (connect(c->fd, a->ai_addr, a->ai_addrlen) == 0) return LM_OK;
    if (errno != EINPROGRESS) return FAIL("cannot connect: %s; is the server running there?", strerror(errno));
    LM_TRY(wait_for(c, POLLOUT, "connecting", err));
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &why, &size) != 0) why = errno;
    return why ? FAIL("cannot connect: %s; is the server running there?", strerror(why)) : LM_OK;
}

static lm_status open_conn(conn *c, lm_error *err) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    const int rc = getaddrinfo(c->h->host, c->h->port, &hints, &list);
    if (rc != 0) return FAIL("the name is not known here: %s", gai_strerror(rc));
    lm_status st = LM_IO;
    for (const struct addrinfo *a = list; a && st != LM_OK && st != LM_INTERRUPTED; a = a->ai_next) {
        st = connect_to(c, a, err);
        if (st == LM_OK) break;
        if (c->fd >= 0) close(c->fd);
        c->fd = -1;
    }
    freeaddrinfo(list);
    return st;
}

static lm_status send_all(conn *c, const char *p, size_t n, lm_error *err) {
    while (n) {
        const ssize_t k = send(c->fd, p, n, MSG_NOSIGNAL);
        if (k > 0) {
            p += k;
            n -= (size_t)k;
        } else if (k < 0 && errno == EAGAIN) {
            LM_TRY(wait_for(c, POLLOUT, "reading the request", err));
        } else if (k < 0 && errno != EINTR) {
            return FAIL("sending failed: %s", strerror(errno));
        }
    }
    return LM_OK;
}

/* ---- an answer --------------------------------------------------------------------------------------------------------------------------
 */
typedef struct answer {
    size_t body; /* where it starts; 0: the header is not complete */
    int status;
    bool chunked, sized;
    uint64_t length;
} answer;

/* A header line's value, when the line is of that name. */
static const char *value_of(const char *line, const char *name) {
    const size_t n = strlen(name);
    if (strncasecmp(line, name, n) || line[n] != ':') return NULL;
    line += n + 1;
    return line + strspn(line, " \t");
}

static lm_status read_header(const conn *c, answer *a, lm_error *err) {
    const char *end = memmem(c->in, c->n < HEADER_MOST ? c->n : HEADER_MOST, "\r\n\r\n", 4);
    if (!end) return c->n >= HEADER_MOST ? FAIL("the answer's header is larger than %d bytes", HEADER_MOST) : LM_OK;
    const char *s = c->in;
    if (strncmp(s, "HTTP/1.", 7) || strspn(s + 7, "01") != 1 || s[8] != ' ' || strspn(s + 9, "0123456789") != 3)
        return FAIL("this is no HTTP/1.1 server");
    a->status = (s[9] - '0') * 100 + (s[10] - '0') * 10 + s[11] - '0';
    for (const char *line = s; (line = memmem(line, (size_t)(end - line), "\r\n", 2)) && line < end;) {
        line += 2;
        const char *v = value_of(line, "transfer-encoding"), *l = value_of(line, "content-length");
        if (v && strncasecmp(v, "chunked\r", 8)) return FAIL("the answer comes in a transfer encoding other than chunked");
        if (v) a->chunked = true;
        if (!l) continue;
        const size_t digits = strspn(l, "0123456789");
        if (!digits || digits > 12 || a->sized) return FAIL("the answer's content-length is no number");
        a->sized = true;
        for (size_t i = 0; i < digits; i++) a->length = 10 * a->length + (uint64_t)(l[i] - '0');
        if (a->length > LM_HTTP_MOST) return FAIL("the answer is larger than %u bytes", LM_HTTP_MOST);
    }
    a->body = (size_t)(end - c->in) + 4;
    return LM_OK;
}

/* Chunks in place of c->in's body; false when they are not whole. */
static bool join_chunks(conn *c, size_t body, size_t *length) {
    size_t at = body, to = body;
    for (;;) {
        uint64_t n = 0;
        size_t digits = 0;
        for (; at < c->n && digits < 8; at++, digits++) {
            const char ch = c->in[at];
            const int v = ch >= '0' && ch <= '9' ? ch - '0' : (ch | 32) >= 'a' && (ch | 32) <= 'f' ? (ch | 32) - 'a' + 10 : -1;
            if (v < 0) break;
            n = 16 * n + (uint64_t)v;
        }
        const char *line = at < c->n ? memmem(c->in + at, c->n - at, "\r\n", 2) : NULL;
        if (!digits || !line) return false;
        at = (size_t)(line - c->in) + 2;
        if (!n) break;
        if (n > c->n - at || c->n - at - n < 2 || memcmp(c->in + at + n, "\r\n", 2)) return false;
        memmove(c->in + to, c->in + at, n);
        to += n;
        at += n + 2;
    }
    *length = to - body;
    return true;
}

static bool complete(const conn *c, const answer *a) {
    if (!a->body) return false;
    if (a->chunked) return c->n - a->body >= 5 && !memcmp(c->in + c->n - 5, "0\r\n\r\n", 5);
    return a->sized && c->n - a->body >= a->length;
}

static lm_status receive(conn *c, answer *a, lm_error *err) {
    for (bool open = true; open && !complete(c, a);) {
        if (c->n + 1 >= c->cap) {
            const size_t cap = c->cap ? 2 * c->cap : 16 << 10;
            char *more = c->n < LM_HTTP_MOST ? lm_realloc(c->in, cap) : NULL;
            if (!more)
                return c->n < LM_HTTP_MOST ? lm_fail_nomem(err, "an answer", cap)
                                           : FAIL("the answer is larger than %u bytes", LM_HTTP_MOST);
            c->in = more;
            c->cap = cap;
        }
        LM_TRY(wait_for(c, POLLIN, "answering", err));
        const ssize_t k = recv(c->fd, c->in + c->n, c->cap - 1 - c->n, 0);
        if (k < 0 && errno != EAGAIN && errno != EINTR) return FAIL("the connection broke: %s", strerror(errno));
        if (k > 0) c->n += (size_t)k;
        open = k != 0;
        c->in[c->n] = 0;
        if (!a->body) LM_TRY(read_header(c, a, err));
    }
    return LM_OK;
}

static lm_status finish(conn *c, answer *a, char **out, size_t *n, lm_error *err) {
    size_t length = a->body ? c->n - a->body : 0;
    if (!a->body) return FAIL("the server closed the connection in the middle of its answer");
    if (a->chunked ? !join_chunks(c, a->body, &length) : a->sized && length < a->length)
        return FAIL("the answer is truncated: %zu bytes of it came", c->n - a->body);
    if (!a->chunked && a->sized) length = (size_t)a->length;
    memmove(c->in, c->in + a->body, length);
    c->in[length] = 0;
    *out = c->in;
    *n = length;
    c->in = NULL;
    return LM_OK;
}

lm_status lm_http_ask(const lm_http *h, const char *path, const char *body, size_t n, char **out, size_t *out_n, int *status,
                      lm_error *err) {
    conn conn_ = {.h = h, .fd = -1, .deadline = lm_now() + h->timeout}, *c = &conn_;
    answer a = {0};
    char head[1024];
    const bool v6 = strchr(h->host, ':') != NULL;
    const int k = snprintf(head, sizeof head,
                           "%s %s%s HTTP/1.1\r\nHost: %s%s%s:%s\r\nUser-Agent: lemma\r\nAccept: application/json\r\nConnection: close\r\n"
                           "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                           body ? "POST" : "GET", h->prefix, path, v6 ? "[" : "", h->host, v6 ? "]" : "", h->port, body ? n : 0);
    if (k < 0 || (size_t)k >= sizeof head) return FAIL("the request's header is too long");
    lm_status st = open_conn(c, err);
    if (st == LM_OK) st = send_all(c, head, (size_t)k, err);
    if (st == LM_OK && body) st = send_all(c, body, n, err);
    if (st == LM_OK) st = receive(c, &a, err);
    if (st == LM_OK) st = finish(c, &a, out, out_n, err);
    if (c->fd >= 0) close(c->fd);
    lm_free(c->in);
    *status = a.status;
    return st;
}
