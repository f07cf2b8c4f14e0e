/* Where a file may be written. The writers put a new file in the place of an old one, so what stands at the path must be theirs to replace:
 * root's `-o /dev/null` would otherwise turn the device into a file, and a slip of the hand would replace the model by its own trace. */
#include "format/source.h"
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool same_file(const char *path, const struct stat *at) {
    struct stat st;
    return stat(path, &st) == 0 && st.st_dev == at->st_dev && st.st_ino == at->st_ino;
}

/* One of the folder's files that a model is read from, beside its weights. */
static lm_status check_folder(const char *folder, const struct stat *at, bool *hit, lm_error *err) {
    static const char *const names[] = {"config.json",           "generation_config.json",       "tokenizer.json",
                                        "tokenizer_config.json", "model.safetensors.index.json", "chat_template.jinja"};
    for (size_t i = 0; i < sizeof names / sizeof *names && !*hit; i++) {
        char *path = lm_path_join(folder, names[i]);
        if (!path) return lm_fail_nomem(err, "a path", strlen(folder));
        *hit = same_file(path, at);
        lm_free(path);
    }
    return LM_OK;
}

/* A new file's folder, now: who asks before an hour's computing wants to know it then. */
static lm_status check_parent(const char *path, lm_error *err) {
    const char *slash = strrchr(path, '/');
    const size_t n = slash == path ? 1 : slash ? (size_t)(slash - path) : 1;
    char *folder = lm_malloc(n + 1);
    if (!folder) return lm_fail_nomem(err, "a path", n);
    memcpy(folder, slash ? path : ".", n);
    folder[n] = 0;
    const int why = access(folder, W_OK | X_OK) == 0 ? 0 : errno;
    lm_free(folder);
    if (!why) return LM_OK;
    return lm_fail_at(err, LM_IO, path, LM_NO_OFFSET, NULL, "cannot create a file in that folder: %s; name one that can be written to",
                      strerror(why));
}

lm_status lm_target_check(const char *path, const lm_source *reading, lm_error *err) {
    struct stat at;
    bool hit = false;
    if (!*path) return lm_fail(err, LM_USAGE, "the file to write has an empty name");
    if (stat(path, &at) != 0) {
        if (errno == ENOENT) return check_parent(path, err); /* a new file, or a link to none */
        return lm_fail_at(err, LM_IO, path, LM_NO_OFFSET, NULL, "cannot write the file: %s", strerror(errno));
    }
    if (S_ISDIR(at.st_mode)) return lm_fail_at(err, LM_USAGE, path, LM_NO_OFFSET, NULL, "is a directory; name a file in it to write");
    if (!S_ISREG(at.st_mode))
        return lm_fail_at(err, LM_USAGE, path, LM_NO_OFFSET, NULL, "is a device or the like; name a regular file to write");
    if (!reading) return LM_OK;
    for (uint32_t i = 0; i < reading->n_files && !hit; i++) hit = same_file(reading->file[i].path, &at);
    if (!hit && reading->kind == LM_SOURCE_HF) LM_TRY(check_folder(reading->path, &at, &hit, err));
    return hit ? lm_fail_at(err, LM_USAGE, path, LM_NO_OFFSET, NULL, "is a file that is being read; write to another name")
               : LM_OK;
}
