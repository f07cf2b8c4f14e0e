/* Read-only file mappings. */
#include "base/map.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

static const char *kind_of(mode_t mode) {
    return S_ISDIR(mode)    ? "a directory"
           : S_ISFIFO(mode) ? "a FIFO"
           : S_ISCHR(mode)  ? "a character device"
           : S_ISBLK(mode)  ? "a block device"
           : S_ISSOCK(mode) ? "a socket"
                            : "something else";
}

static lm_status map_fd(int fd, const char *path, lm_map *out, lm_error *err) {
    struct stat st;
    if (fstat(fd, &st) != 0) return lm_fail_at(err, LM_IO, path, LM_NO_OFFSET, NULL, "cannot examine the file: %s", strerror(errno));
    if (!S_ISREG(st.st_mode))
        return lm_fail_at(err, LM_IO, path, LM_NO_OFFSET, NULL, "this is %s; a regular file is needed", kind_of(st.st_mode));
    uint64_t size = (uint64_t)st.st_size;
    if (size > SIZE_MAX) return lm_fail_at(err, LM_IO, path, LM_NO_OFFSET, NULL, "the file is too large for this machine's addresses");
    void *p = NULL;
    if (size > 0) {
        p = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            if (errno != ENOMEM)
                return lm_fail_at(err, LM_IO, path, LM_NO_OFFSET, NULL, "cannot map the file into memory: %s", strerror(errno));
            lm_fail_nomem(err, "the file's addresses", size);
            lm_error_set_file(err, path);
            return LM_NOMEM;
        }
    }
    out->data = p;
    out->size = size;
    return LM_OK;
}

/* What to do about a path that doesn't open, after the system's own words. */
static const char *advice(const char *path, int why) {
    if (why != ENOENT) return "";
    return strstr(path, "://") ? "; lemma reads files: download it, and give its path here" : "; check the path";
}

lm_status lm_map_open(const char *path, lm_map *out, lm_error *err) {
    *out = (lm_map){0};
    if (!*path) return lm_fail(err, LM_IO, "an empty path was given: name a file or a folder");
    /* O_NONBLOCK: opening a FIFO that nobody writes must not hang before fstat can refuse it. */
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return lm_fail_at(err, LM_IO, path, LM_NO_OFFSET, NULL, "cannot open the file: %s%s", strerror(errno), advice(path, errno));
    lm_status s = map_fd(fd, path, out, err);
    close(fd);
    LM_TRY(s);
    out->path = lm_strdup(path);
    if (!out->path) {
        lm_map_close(out);
        return lm_fail_nomem(err, "a file's path", strlen(path) + 1);
    }
    return LM_OK;
}

void lm_map_close(lm_map *m) {
    if (m->data) munmap((void *)(uintptr_t)m->data, (size_t)m->size);
    lm_free(m->path);
    *m = (lm_map){0};
}

/* [p, p+n) cut to the mapping, as offsets; false when nothing is left */
static bool clamp(const lm_map *m, const void *p, uint64_t n, uint64_t *from, uint64_t *to) {
    uintptr_t base = (uintptr_t)m->data, at = (uintptr_t)p;
    if (!m->data || at < base || at - base >= m->size) return false;
    *from = at - base;
    *to = n > m->size - *from ? m->size : *from + n;
    return true;
}

void lm_map_release(const lm_map *m, const void *p, uint64_t n) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), from, to;
    if (!clamp(m, p, n, &from, &to)) return;
    from = (from + page - 1) / page * page;
    to = to / page * page;
    /* A private mapping that was never written: dropping its pages loses nothing. */
    if (from < to) madvise((void *)(uintptr_t)(m->data + from), (size_t)(to - from), MADV_DONTNEED);
}

static mode_t mode_of(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 ? st.st_mode : 0;
}
bool lm_is_dir(const char *path) { return S_ISDIR(mode_of(path)); }
bool lm_is_file(const char *path) { return S_ISREG(mode_of(path)); }

char *lm_path_join(const char *dir, const char *name) {
    size_t d = strlen(dir), n = strlen(name);
    char *p = lm_malloc(d + n + 2);
    if (!p) return NULL;
    memcpy(p, dir, d);
    p[d] = '/';
    memcpy(p + d + 1, name, n + 1);
    return p;
}
