/* Inside a sequence state, for state.c and state_file.c only. */
#ifndef LM_BACKEND_STATE_IMPL_H
#define LM_BACKEND_STATE_IMPL_H
#include "backend/state.h"

typedef struct lm_state_buf lm_state_buf; /* a reference-counted page or block */

typedef struct lm_state_slot {
    lm_cache_slot desc;
    uint64_t bytes;      /* of a page, or of the block */
    uint64_t head, keys; /* of a page's head, and of its keys */
    bool tiled;
    lm_state_buf **page; /* by absolute page number; NULL: let go */
    uint32_t n_pages, cap_pages;
    uint32_t first;      /* pages below were let go */
    lm_state_buf *block; /* recurrent slots; NULL: zeros, not made yet */
} lm_state_slot;

typedef struct lm_state_check {
    bool used;
    uint32_t length;
    lm_state_buf **block; /* [n_slots], NULL for paged slots */
} lm_state_check;

struct lm_state {
    const lm_program *program;
    const lm_cache_type *type;
    uint32_t n_slots, length;
    int rope_set;
    bool recurrent; /* has a conv or delta slot */
    lm_state_slot *slot;
    lm_state_buf **kept; /* the checkpoints' block tables, one allocation */
    lm_state_check check[LM_CHECKPOINTS];
};

bool lm_slot_paged(const lm_cache_slot *c);
lm_state_buf *lm_state_buf_new(uint64_t bytes); /* zeroed, count 1; NULL when out of memory */
uint8_t *lm_state_buf_data(const lm_state_buf *b);
bool lm_state_table(lm_state_slot *t, uint32_t n); /* n_pages ≥ n, new entries NULL; false when out of memory */
#endif
