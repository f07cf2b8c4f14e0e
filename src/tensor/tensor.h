/* A tensor: dtype + shape + bytes, row-major, last dimension contiguous ([out, in] for a linear's weight, both formats). */
#ifndef LM_TENSOR_TENSOR_H
#define LM_TENSOR_TENSOR_H
#include "quant/dtype.h"

#define LM_MAX_RANK 5

typedef struct lm_tensor {
    const char *name;
    const lm_dtype *type;
    uint32_t rank; /* 0 (one element) … LM_MAX_RANK */
    uint64_t dim[LM_MAX_RANK];
    const uint8_t *data; /* inside a file's map, or owned by whoever made the tensor; any alignment; NULL when packed */
    uint64_t bytes;      /* stored ones: of a packed tensor, those of all its parts */
    uint32_t file;   /* index into the source's files; UINT32_MAX when not in a file */
    uint64_t offset; /* of data in that file */
    /* Companion tensors of packed checkpoints (FP8 scales, GPTQ qzeros …) are folded in by format/: see tensor/packed.h. */
    const struct lm_packed *packed; /* NULL for plain storage */
} lm_tensor;

/* Elements; false on overflow or a zero dimension. */
bool lm_shape_count(uint32_t rank, const uint64_t *dim, uint64_t *out);
/* Bytes of a tensor of that type and shape; false on overflow or when the last dimension is no whole number of blocks. */
bool lm_shape_bytes(const lm_dtype *t, uint32_t rank, const uint64_t *dim, uint64_t *out);
/* "[320, 96]" into buf */
char *lm_shape_text(uint32_t rank, const uint64_t *dim, char *buf, size_t n);
/* Row r of a rank ≥ 1 tensor seen as [rows, last dimension]; row lengths are whole blocks. Works for packed tensors too. */
uint64_t lm_tensor_rows(const lm_tensor *t);
uint64_t lm_tensor_cols(const lm_tensor *t);
uint64_t lm_tensor_row_size(const lm_tensor *t); /* bytes of a row in the tensor's type */
/* A row's bytes in the tensor's type: a pointer into data, or, of a packed tensor, converted into scratch (lm_tensor_row_size bytes). */
const uint8_t *lm_tensor_row_bytes(const lm_tensor *t, uint64_t row, uint8_t *scratch);
void lm_tensor_row_f64(const lm_tensor *t, uint64_t row, double *dst);
void lm_tensor_row_f32(const lm_tensor *t, uint64_t row, float *dst);
#endif
