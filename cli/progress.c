/* The progress bar, the interrupt flag, and small things on text that the verbs share. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "cli.h"

static volatile sig_atomic_t interrupted;

static void on_signal(int sig) {
    (void)sig;
    interrupted = 1;
}

void lm_cli_catch_interrupts(void) {
    /* RESETHAND: the second one ends the process, whatever it is doing */
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&sa.sa_mask);
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
}

bool lm_cli_interrupted(void *unused) {
    (void)unused;
    return interrupted != 0;
}

double lm_cli_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static struct {
    char what[64];
    double start, last; /* of this step; when the bar was last drawn, 0: it isn't there */
} bar;

void lm_cli_progress_end(void) {
    if (bar.last != 0) fputs("\r\033[K", stderr);
    bar.last = 0;
    bar.what[0] = 0;
}

bool lm_cli_progress(void *unused, const char *what, uint64_t done, uint64_t total) {
    (void)unused;
    double now = lm_cli_now();
    if (strncmp(bar.what, what, sizeof bar.what - 1)) {
        lm_cli_progress_end();
        snprintf(bar.what, sizeof bar.what, "%s", what);
        bar.start = now;
    }
    bool due = isatty(2) && now - bar.start > 1 && now - bar.last > 0.1;
    if (due && !total) {
        fprintf(stderr, "\r%s: %.0f s\033[K", bar.what, now - bar.start);
        bar.last = now;
    } else if (due) {
        char cells[25];
        double share = done < total ? (double)done / (double)total : 1;
        size_t full = (size_t)(share * (sizeof cells - 1));
        memset(cells, '.', sizeof cells - 1);
        memset(cells, '#', full);
        cells[sizeof cells - 1] = 0;
        fprintf(stderr, "\r%s [%s] %3.0f%%\033[K", bar.what, cells, 100 * share);
        bar.last = now;
    }
    if (total && done >= total) lm_cli_progress_end();
    return !interrupted;
}

void lm_cli_model_callbacks(lm_model_options *o) {
    o->progress = lm_cli_progress;
    o->interrupted = lm_cli_interrupted;
}

/* Length of the valid UTF-8 sequence at s, 0 where there is none. Second bytes are narrowed so that overlong forms, surrogates and
 * code points beyond U+10FFFF are none. */
static size_t utf8_len(const unsigned char *s, size_t n) {
    if (s[0] < 0x80) return 1;
    size_t len = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    unsigned char lo = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80, hi = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
    if (s[0] < 0xc2 || s[0] > 0xf4 || len > n || s[1] < lo || s[1] > hi) return 0;
    for (size_t i = 2; i < len; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    return len;
}

void lm_cli_json_text(FILE *f, const char *s, size_t n) {
    fputc('"', f);
    for (size_t i = 0; i < n;) {
        size_t len = utf8_len((const unsigned char *)s + i, n - i);
        unsigned char c = (unsigned char)s[i];
        if (!len) {
            fputs("\xef\xbf\xbd", f);
            i++;
            continue;
        }
        if (c == '"' || c == '\\') fprintf(f, "\\%c", c);
        else if (c == '\n') fputs("\\n", f);
        else if (c == '\t') fputs("\\t", f);
        else if (c == '\r') fputs("\\r", f);
        else if (c < 0x20 || c == 0x7f) fprintf(f, "\\u%04x", c);
        else fwrite(s + i, 1, len, f);
        i += len;
    }
    fputc('"', f);
}

char *lm_cli_read_file(const char *verb, const char *path, size_t *n) {
    FILE *f = strcmp(path, "-") ? fopen(path, "rb") : stdin;
    size_t cap = 0, len = 0;
    char *s = NULL;
    int e = f ? 0 : errno;
    while (f && !e) {
        if (cap - len < 2) {
            char *t = realloc(s, cap = cap ? 2 * cap : 65536);
            if (!t) {
                e = ENOMEM;
                break;
            }
            s = t;
        }
        size_t got = fread(s + len, 1, cap - len - 1, f);
        len += got;
        if (!got) {
            if (ferror(f)) e = errno ? errno : EIO;
            break;
        }
    }
    if (f && f != stdin) fclose(f);
    if (e) {
        lm_cli_usage(verb, "%.400s: could not be read: %s", path, strerror(e));
        free(s);
        return NULL;
    }
    s[len] = 0;
    *n = len;
    return s;
}
