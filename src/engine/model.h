/* A model ready to run: its files, its program, and a device that holds its weights. Immutable once open, except for the device's scratch:
 * one thread at a time may evaluate (the pool inside uses the cores). Sessions hold what a sequence remembers. */
#ifndef LM_ENGINE_MODEL_H
#define LM_ENGINE_MODEL_H
#include "arch/common/arch.h"
#include "backend/backend.h"

typedef struct lm_progress {
    bool (*fn)(void *ctx, const char *what, uint64_t done, uint64_t total); /* false interrupts (LM_INTERRUPTED); may be NULL */
    void *ctx;
} lm_progress;

typedef struct lm_engine_options {
    const char *backend; /* NULL: "cpu" */
    bool fast;           /* where no lane is named, the one to generate in (docs/lanes.md): i8 on cpu for block-quantized weights */
    lm_device_options device;
    lm_progress progress;
    bool (*interrupted)(void *); /* polled while running; may be NULL */
    void *interrupted_ctx;
} lm_engine_options;

typedef struct lm_engine {
    lm_source *src;
    lm_program *program;
    const lm_arch *arch;
    const lm_skipped *skipped;
    uint32_t n_skipped;
    const lm_backend *backend;
    lm_device *device;
    lm_engine_options opt;
    bool owner; /* of the files and the program */
    uint32_t *handle;     /* [program->n_weights]: where the device has them */
    struct lm_swap *swap; /* NULL: the weights are its own */
} lm_engine;

/* Opens the files, builds the program, uploads every weight (letting go of file pages as they are repacked). */
lm_status lm_engine_open(const char *path, const lm_engine_options *opt, lm_engine **out, lm_error *err);
/* Another device (backend, lane, threads, level) on the same files and program. Closing either leaves the other whole: the files and the
 * program belong to the first, which must outlive the others. */
lm_status lm_engine_share(const lm_engine *e, const lm_engine_options *opt, lm_engine **out, lm_error *err);
void lm_engine_close(lm_engine *e);
/* e in another lane, at another level, with other threads: its weights stay where they are if the new device keeps them as the old one did
 * (*kept), and are let go and uploaded anew if not. No session of e may exist, nor another engine's device stand on it. After a failure e
 * is only to be closed. */
lm_status lm_engine_change(lm_engine *e, const lm_engine_options *opt, bool *kept, lm_error *err);
/* Do two weights read the same rows of the same tensors? (A tied head and its embedding do.) */
bool lm_weight_same_rows(const lm_weight *a, const lm_weight *b);
/* Another model's weights in the place of some of e's own, until the next call. `other` is the same program over other files, and outlives
 * the swap; weight[i] (vec[i]) is which of its weights (vectors) stands for e's i, LM_NONE where e keeps its own. `other` NULL: all its own
 * again. No session may hold tokens over it. After a failure it is to be called again (or the engine closed) before anything is run. */
lm_status lm_engine_swap(lm_engine *e, const lm_program *other, const uint32_t *weight, const uint32_t *vec, lm_error *err);
/* Files opened and bytes of tensors that the program reads. */
void lm_engine_touched(const lm_engine *e, uint32_t *files, uint64_t *bytes);

/* ---- sessions ------------------------------------------------------------------------------------------------------------------*/
typedef struct lm_session lm_session;
typedef enum lm_want { LM_WANT_NONE, LM_WANT_LAST, LM_WANT_ALL } lm_want;

typedef struct lm_eval {
    const int32_t *id;
    uint32_t n;
    uint32_t length; /* the length to announce (longrope); 0: what it will be after this call */
    lm_want want;
    lm_logits_fn logits; /* rows' row[] are absolute positions, here and in taps */
    void *logits_ctx;
    void (*head)(void *ctx); /* NULL, or called when the layers are done and the head begins, in every chunk that has wanted rows */
    void *head_ctx;
    lm_tap_fn tap;
    void *tap_ctx;
} lm_eval;

lm_status lm_session_create(lm_engine *e, uint32_t chunk /* rows at a time; 0: a good size */, lm_session **out, lm_error *err);
void lm_session_free(lm_session *s);
uint32_t lm_session_length(const lm_session *s);
/* Appends n tokens. Ids are checked against the vocabulary, and the length against the model's positions where it has a hard limit
 * (learned position tables), before anything is computed. Crossing a longrope border rebuilds the cache, unseen. On failure the session
 * is as it was before the call. */
lm_status lm_session_eval(lm_session *s, const lm_eval *ev, lm_error *err);
/* Back to `length` tokens; what can't be cut is replayed from the nearest reachable point. */
lm_status lm_session_truncate(lm_session *s, uint32_t length, lm_error *err);
lm_status lm_session_fork(const lm_session *s, lm_session **out, lm_error *err);
lm_status lm_session_save(const lm_session *s, uint8_t **bytes, uint64_t *n, lm_error *err); /* lm_free(*bytes) */
lm_status lm_session_restore(lm_session *s, const uint8_t *bytes, uint64_t n, lm_error *err);
uint64_t lm_session_bytes(const lm_session *s);

/* Several sessions of one engine in one batch: ev[i] belongs to s[i]; the rows of all go through the program together, a chunk of each at
 * a time. Same bits as one by one. */
lm_status lm_sessions_eval(lm_session *const *s, const lm_eval *ev, uint32_t n, lm_error *err);
#endif
