/* A read-only memory-mapped file. A file that shrinks under us is a fault of the machine; everything else is checked here.
 * Only regular files are mapped (a FIFO or a device would hang): anything else is LM_IO. An empty file has data NULL, size 0. */
#ifndef LM_BASE_MAP_H
#define LM_BASE_MAP_H
#include "base/status.h"

typedef struct lm_map {
    const uint8_t *data;
    uint64_t size;
    char *path; /* as given */
} lm_map;

lm_status lm_map_open(const char *path, lm_map *out, lm_error *err);
void lm_map_close(lm_map *m);
/* Lets go of the resident pages wholly inside [p, p+n): the next read faults them in again. */
void lm_map_release(const lm_map *m, const void *p, uint64_t n);
bool lm_is_dir(const char *path);
bool lm_is_file(const char *path);
/* dir + "/" + name, allocated; NULL when out of memory */
char *lm_path_join(const char *dir, const char *name);
#endif
