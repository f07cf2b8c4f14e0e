/* Writing GGUF version 3: header, metadata, tensor records, then the tensors' rows as they are asked for, one at a time. Everything goes to
 * a temporary beside the target, which takes its name at the end: a reader never sees half a file. */
#ifndef LM_FORMAT_GGUF_WRITE_H
#define LM_FORMAT_GGUF_WRITE_H
#include "format/source.h"

typedef struct lm_gguf_out {
    const char *name;
    const lm_dtype *type;
    uint32_t rank; /* 1 … 4 */
    uint64_t dim[LM_MAX_RANK]; /* row-major, as in lm_tensor */
} lm_gguf_out;

typedef struct lm_gguf_rows {
    /* Row r of tensor i (all rows of all its matrices, counted through) to dst, in the tensor's type. */
    lm_status (*row)(void *ctx, uint32_t i, uint64_t r, uint8_t *dst, lm_error *err);
    bool (*progress)(void *ctx, uint64_t done, uint64_t total); /* may be NULL; false stops it (LM_INTERRUPTED) */
    void *ctx;
} lm_gguf_rows;

/* Metadata values are written in their gguf_type (of an array: its elements' type). */
lm_status lm_gguf_write(const char *path, const lm_meta_entry *kv, uint32_t n_kv, const lm_gguf_out *t, uint32_t n,
                        const lm_gguf_rows *rows, lm_error *err);
#endif
