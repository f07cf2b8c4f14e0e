/* What one sequence remembers: its caches, one per slot of the program, the same structure for every host backend.
 *
 * KV, latent and index caches are pages of 256 positions aligned to absolute position; a page holds, for each head, its keys, then its
 * values: [256][dk] and [256][dv] in the backend's floats, or, in the KV slots of a tiled type, as kernels/kv.h lays them out. Pages are
 * reference-counted and copied on write, so a fork is cheap. A page that lies wholly before a slot's window is let go, one page late, so
 * that going back by up to 256 positions is always possible. Recurrent caches (conv, delta) are blocks of state that the backend reads and
 * writes in place; they can't be rolled back, so checkpoints are kept: at every commit that ends on a multiple of 256 positions (so whoever
 * cuts the chunks ends them there), the newest LM_CHECKPOINTS. A backend that can fail after writing a block works on a copy.
 * Not thread-safe, except that different sequences' states may be used from different threads (shared pages are counted atomically).
 */
#ifndef LM_BACKEND_STATE_H
#define LM_BACKEND_STATE_H
#include "graph/program.h"
#include "kernels/kv.h"

#define LM_PAGE LM_KV_PAGE
#define LM_CHECKPOINTS 4u

/* How a backend keeps what it caches. */
typedef struct lm_cache_type {
    const char *name;   /* of the keys and values: "f64", "f32", "f16" … */
    uint32_t elem_size; /* of latents, index keys and recurrent blocks: 8 or 4 */
    bool tiled;         /* keys and values of KV slots lie as kv.h says for `kv`; false: rows of elem_size bytes an element */
    lm_kv kv;
} lm_cache_type;
extern const lm_cache_type lm_cache_f64, lm_cache_kv[LM_KV_COUNT];

typedef struct lm_state lm_state;

/* `type` outlives the state. */
lm_status lm_state_create(const lm_program *p, const lm_cache_type *type, lm_state **out, lm_error *err);
const lm_cache_type *lm_state_type(const lm_state *s);
void lm_state_free(lm_state *s);
uint32_t lm_state_length(const lm_state *s); /* positions held */
uint64_t lm_state_bytes(const lm_state *s);
/* Makes room for positions [length, length+n): pages allocated, shared ones copied. On failure nothing has changed that can be seen. */
lm_status lm_state_reserve(lm_state *s, uint32_t n, lm_error *err);
/* After the rows were written: length += n; pages before the windows are let go; recurrent checkpoints are taken where due. */
void lm_state_commit(lm_state *s, uint32_t n);
lm_status lm_state_fork(const lm_state *s, lm_state **out, lm_error *err);
/* Back to `length` positions. LM_STATE, with the least reachable length in the message, when a window's pages or a recurrent
 * checkpoint for it are gone. A recurrent state goes back to a checkpoint at exactly that length only. */
lm_status lm_state_truncate(lm_state *s, uint32_t length, lm_error *err);
/* The greatest length ≤ `length` that lm_state_truncate can reach (0 always can). */
uint32_t lm_state_reachable(const lm_state *s, uint32_t length);
/* To go back to any other length is the session's job: truncate to a reachable one and run the rest again. */

/* Page `page` of a paged slot: keys of head h at k, values at v. NULL when it was let go or never made. */
void *lm_state_keys(lm_state *s, uint32_t slot, uint32_t page, uint32_t head);
void *lm_state_values(lm_state *s, uint32_t slot, uint32_t page, uint32_t head);
/* The block of a recurrent slot, unshared, writable: CONV [dv][dk] oldest first (zeros at the start), DELTA [heads][dk][dv]. */
void *lm_state_block(lm_state *s, uint32_t slot);
/* Which longrope set the cached keys were made with: 0 short, 1 long; −1 nothing cached yet. */
int lm_state_rope_set(const lm_state *s);
void lm_state_set_rope_set(lm_state *s, int set);

/* Everything, as bytes (magic, contract version, program fingerprint, length, pages, blocks, checksum). Restore is all or nothing:
 * any damage is LM_FORMAT and `s` is unchanged. Another program, lane or contract version is refused by name. */
lm_status lm_state_save(const lm_state *s, const char *tag, uint8_t **bytes, uint64_t *n, lm_error *err); /* lm_free(*bytes) */
lm_status lm_state_restore(lm_state *s, const char *tag, const uint8_t *bytes, uint64_t n, lm_error *err);
#endif
