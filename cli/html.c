/* Where a report goes: a file of its own, never another's. */
#include "cli.h"
#include "lemma/verify.h"
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char mark[] = "<!doctype html>";

int lm_cli_html_check(const char *verb, const char *path) {
    char head[sizeof mark] = "";
    struct stat st;
    if (!path) return LM_CLI_GO;
    if (stat(path, &st) != 0) {
        const char *slash = strrchr(path, '/');
        char folder[4096];
        snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path + 1) : 1, slash ? path : ".");
        if (*path && errno == ENOENT && access(folder, W_OK | X_OK) == 0) return LM_CLI_GO;
        return lm_cli_usage(verb, "--html: no file can be made at '%.400s': %s; name another", path, strerror(errno));
    }
    FILE *f = S_ISREG(st.st_mode) ? fopen(path, "rb") : NULL;
    const size_t n = f ? fread(head, 1, sizeof mark - 1, f) : 0;
    if (f) fclose(f);
    if (f && (!st.st_size || (n == sizeof mark - 1 && !memcmp(head, mark, n)))) return LM_CLI_GO;
    return lm_cli_usage(verb, "--html: %.400s is there and is no page; name another file", path);
}

int lm_cli_html_write(const char *verb, const char *path, char *html) {
    if (!html) return lm_cli_error(verb, &(lm_error){.code = LM_NOMEM, .offset = LM_NO_OFFSET});
    char beside[4400]; /* a page that was there stays until the new one is whole */
    const int room = snprintf(beside, sizeof beside, "%s.tmp-%ld", path, (long)getpid());
    FILE *f = room < (int)sizeof beside ? fopen(beside, "wbx") : NULL;
    bool ok = f && fputs(html, f) >= 0;
    int why = room < (int)sizeof beside ? errno : ENAMETOOLONG;
    if (f && fclose(f) != 0 && ok) ok = false, why = errno;
    if (ok && rename(beside, path) != 0) ok = false, why = errno;
    if (f && !ok) unlink(beside);
    lm_text_free(html);
    return ok ? LM_CLI_GO : lm_cli_usage(verb, "--html: %.400s: could not be written: %s", path, strerror(why));
}
