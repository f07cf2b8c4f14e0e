/* A saved session's body, any bytes in it: the header and the digest are made right, since the digest is against slips, not forgers.
 * What is restored can be saved, and restores to the same. */
#include "backend/state.h"
#include "base/hash.h"
#include "base/mem.h"
#include "replay.h"
#include <stdlib.h>
#include <string.h>

enum { BODY = 12 + 8 + 8 + 4 + 4, DIGEST = 32 }; /* of an empty state: length, rope set and slots; each slot; no checkpoints */
static lm_cache_slot slots[3] = {{LM_CACHE_KV, 2, 3, 2, 0}, {LM_CACHE_KV, 1, 2, 2, 300}, {LM_CACHE_DELTA, 2, 2, 3, 0}};
static const lm_program program = {.arch = "test", .slot = slots, .n_slots = 3};

static void restore(const lm_cache_type *type, const uint8_t *p, size_t n) {
    lm_state *s = NULL;
    lm_error err = {0};
    uint8_t *head = NULL, *again = NULL, *twice = NULL;
    uint64_t n_head = 0, n_again = 0, n_twice = 0;
    if (lm_state_create(&program, type, &s, &err) != LM_OK || lm_state_save(s, "fuzz", &head, &n_head, &err) != LM_OK) abort();
    n_head -= BODY + DIGEST;
    uint8_t *file = malloc(n_head + n + DIGEST);
    memcpy(file, head, n_head);
    memcpy(file + n_head, p, n);
    lm_sha256 h;
    lm_sha256_init(&h);
    lm_sha256_update(&h, file, n_head + n);
    lm_sha256_final(&h, file + n_head + n);
    const lm_status st = lm_state_restore(s, "fuzz", file, n_head + n + DIGEST, &err);
    if (st == LM_OK) {
        if (lm_state_save(s, "fuzz", &again, &n_again, &err) != LM_OK) abort();
        if (lm_state_restore(s, "fuzz", again, n_again, &err) != LM_OK) abort();
        if (lm_state_save(s, "fuzz", &twice, &n_twice, &err) != LM_OK) abort();
        if (n_twice != n_again || memcmp(again, twice, n_again) != 0) abort();
        if (lm_state_reserve(s, 1, &err) == LM_OK) lm_state_commit(s, 1);
        lm_state_truncate(s, lm_state_reachable(s, lm_state_length(s) / 2), &err);
    } else if (st != LM_FORMAT && st != LM_NOMEM) {
        abort();
    } else if (lm_state_length(s) != 0) {
        abort();
    }
    lm_free(head), lm_free(again), lm_free(twice), free(file);
    lm_state_free(s);
}
/* The first byte picks the type. */
int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    if (n) restore(p[0] % 6 == 5 ? &lm_cache_f64 : &lm_cache_kv[p[0] % 6], p + 1, n - 1);
    return 0;
}
