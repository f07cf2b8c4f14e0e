/* The backends of this build, the default first. */
#include "backend/backend.h"
#include <string.h>

const lm_backend *const lm_backends[] = {&lm_backend_cpu, &lm_backend_f64, NULL};

const lm_backend *lm_backend_by_name(const char *name) {
    for (const lm_backend *const *b = lm_backends; *b; b++)
        if (strcmp((*b)->name, name) == 0) return *b;
    return NULL;
}
