/* What export.c and log.c share: the log of one build. */
#ifndef LM_ARCH_LOG_H
#define LM_ARCH_LOG_H
#include "arch/common/export.h"

typedef struct lm_log_key {
    const char *key;
    lm_value value;
    bool keep;
} lm_log_key;
typedef struct lm_log_table {
    lm_rope_spec spec;
    uint32_t head_dim, n_rot, table;
} lm_log_table;

struct lm_log {
    lm_export *x;    /* what is being filled; NULL in a trial reading */
    uint8_t *used;   /* trial reading: gets which metadata entries were read, [meta.n] */
    lm_arena *arena; /* the program's */
    lm_log_key *key; /* candidates for "lemma.KEY" */
    lm_log_table *rope;
    struct {
        const char *role;
        uint32_t layer;
        uint32_t n;
    } fused; /* how often the latest fused tensor was fetched */
    uint32_t n_keys, cap_keys, n_ropes, cap_ropes;
};
#endif
