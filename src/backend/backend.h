/* The backend interface: one vtable. f64 (the arbiter), cpu (the fast engine), and later opencl, cuda, metal.
 *
 * A device holds what was uploaded and runs one program on batches of rows. It never sees text, files or architectures.
 */
#ifndef LM_BACKEND_BACKEND_H
#define LM_BACKEND_BACKEND_H
#include "base/threads.h"
#include "graph/program.h"
#include "backend/state.h"

typedef struct lm_device lm_device; /* each backend's own */

typedef struct lm_device_options {
    uint32_t threads;      /* 0: physical cores */
    const char *lane;      /* NULL: the backend's default ("f64"; cpu: "f32") */
    const char *kv;        /* how keys and values are kept: "f32", "f16", "bf16", "q8_0"; NULL: as the lane has it */
    const char *cpu_level; /* "c", "avx2", "avx512", "neon"; NULL: the best this CPU has */
} lm_device_options;

/* ---- the batch: rows of one or more sequences -----------------------------------------------------------------------------*/
typedef struct lm_seq {
    lm_state *state;   /* its caches; the run appends n positions to them */
    uint32_t row0, n;  /* its rows of the batch, consecutive positions pos0 … pos0+n−1 */
    uint32_t pos0;     /* = positions already in the state */
    uint32_t length;   /* the sequence's length as announced (≥ pos0+n): longrope chooses by it */
} lm_seq;
typedef struct lm_batch {
    uint32_t n_rows, n_seqs;
    const int32_t *id;      /* [n_rows], checked against the vocabulary by the caller */
    const uint8_t *want;    /* [n_rows] 1: logits of this row are wanted; NULL: none */
    const lm_seq *seq;      /* covering all rows in order */
} lm_batch;

/* Rows of a value as a backend has them: float, or double when is_f64. Valid during the callback only. */
typedef struct lm_rows {
    const void *data;
    bool is_f64;
    uint32_t n, width;
    const uint32_t *row; /* [n] batch row of each */
} lm_rows;
static inline double lm_rows_at(const lm_rows *r, uint32_t i, uint32_t j) {
    size_t k = (size_t)i * r->width + j;
    return r->is_f64 ? ((const double *)r->data)[k] : (double)((const float *)r->data)[k];
}
/* After an op (taps), and for each block of wanted logits rows in order (sink). Returning false interrupts the run (LM_INTERRUPTED). */
typedef bool (*lm_tap_fn)(void *ctx, const lm_program *p, const lm_op *op, const lm_rows *rows);
typedef bool (*lm_logits_fn)(void *ctx, const lm_rows *rows);
/* Around each op, with everything that it reads and writes in the caller's hands: how the envelope perturbs a run, and how a replay puts
 * another engine's values in the place of its own. What is done to an operand before the op is seen by later ops too, unless it is undone
 * after it; what is done to the result after it is what later ops (and the logits) see. The arbiter alone allows it. */
typedef struct lm_edit {
    const lm_op *op;
    bool before;         /* the op has not run yet: `out` is undefined */
    uint32_t n;          /* rows */
    const uint32_t *row; /* [n] batch row of each */
    double *in[4];       /* a, b, c, d: [n][width of the value]; NULL where absent, equal where an operand stands twice */
    double *out;
} lm_edit;
typedef bool (*lm_edit_fn)(void *ctx, const lm_program *p, const lm_edit *e); /* false interrupts the run */
typedef struct lm_run {
    lm_tap_fn tap; /* NULL: no taps, and the backend may fuse; called after an edit, with what it left */
    void *tap_ctx;
    lm_edit_fn edit; /* f64 only: LM_UNSUPPORTED elsewhere; may be NULL */
    void *edit_ctx;
    lm_logits_fn logits; /* NULL: none wanted */
    void *logits_ctx;
    void (*head)(void *); /* called when the layers are done and the head begins, where some logits are wanted; may be NULL */
    void *head_ctx;
    bool (*interrupted)(void *); /* polled between ops; may be NULL */
    void *interrupted_ctx;
} lm_run;

typedef struct lm_backend {
    const char *name;
    bool exact; /* keeps D1–D3 and D5 (false: an approx mode that promises replay only) */
    const char *const *lanes; /* NULL-terminated; the first is the default */
    /* lifecycle */
    bool (*compiled)(void);
    bool (*available)(void);
    lm_status (*create)(const lm_device_options *o, lm_device **out, lm_error *err);
    void (*destroy)(lm_device *d);
    uint64_t (*memory)(const lm_device *d); /* bytes held for weights */
    const char *(*describe)(const lm_device *d); /* "cpu f32 avx512 2 threads" */
    /* storage: a weight's handle counts from 0; reset frees all */
    lm_status (*upload)(lm_device *d, const lm_weight *w, uint32_t *id, lm_error *err);
    void (*release)(lm_device *d, uint32_t id);
    void (*reset)(lm_device *d);
    /* d, fresh, takes the weights of another device of this backend, handles and all, where it keeps weights as that one does: `from` is
     * reset then. False: it doesn't, and nothing has changed. NULL: never does. */
    bool (*inherit)(lm_device *d, lm_device *from);
    /* program: handle[i] is weight i's. The program outlives the device. */
    bool (*supports)(const lm_device *d, const lm_op *op);
    lm_status (*configure)(lm_device *d, const lm_program *p, const uint32_t *handle, lm_error *err);
    const lm_cache_type *(*cache)(const lm_device *d); /* how the states that it runs on are kept */
    /* Runs the batch; on failure the states are as they were before. */
    lm_status (*run)(lm_device *d, const lm_batch *b, const lm_run *r, lm_error *err);
} lm_backend;

extern const lm_backend lm_backend_f64, lm_backend_cpu;
extern const lm_backend *const lm_backends[]; /* NULL-terminated */
const lm_backend *lm_backend_by_name(const char *name);
#endif
