/* Files for what opens paths: any bytes under a name of their own, in a folder that the process keeps and empties each time. */
#ifndef LM_TESTS_FUZZ_PLACE_H
#define LM_TESTS_FUZZ_PLACE_H
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char place[64];

static inline void place_empty(void) {
    char path[400];
    struct dirent *e;
    DIR *d = opendir(place);
    if (!d) abort();
    while ((e = readdir(d)))
        if (e->d_name[0] != '.') {
            snprintf(path, sizeof path, "%s/%s", place, e->d_name);
            unlink(path);
        }
    closedir(d);
}
static inline void place_end(void) {
    place_empty();
    rmdir(place);
}
/* The folder, empty. */
static inline const char *place_new(void) {
    if (place[0]) {
        place_empty();
        return place;
    }
    strcpy(place, access("/dev/shm", W_OK) == 0 ? "/dev/shm/lemma-fuzz-XXXXXX" : "/tmp/lemma-fuzz-XXXXXX");
    if (!mkdtemp(place)) abort();
    atexit(place_end);
    return place;
}
/* The path of a new file in it, until the next call. */
static inline const char *place_file(const char *name, const void *p, size_t n) {
    static char path[200];
    snprintf(path, sizeof path, "%s/%s", place, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(p, 1, n, f) != n || fclose(f) != 0) abort();
    return path;
}
#endif
