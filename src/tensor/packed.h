/* A weight that a checkpoint stores as several tensors (codes, scales, zero points, a group index), seen as one. format/ makes it at open
 * and has checked every shape and index; here a run of one row becomes blocks of the logical tensor's dtype. Immutable.
 *
 * The value of an element is (code - zero) * scale for integer codes and code * scale for FP8, exactly. A row's column k belongs to group
 * g_idx[k], or k / group.
 */
#ifndef LM_TENSOR_PACKED_H
#define LM_TENSOR_PACKED_H
#include "tensor/tensor.h"

typedef enum lm_packed_codes {
    LM_CODES_MXFP4,   /* U8 [..., cols/32, 16]: byte b holds elements 2b (low nibble) and 2b+1; scales are E8M0 bytes */
    LM_CODES_COLUMNS, /* I32 [cols/per, rows]: a word holds `per` consecutive columns, lowest bits first (GPTQ) */
    LM_CODES_AWQ,     /* I32 [cols, rows/8]: a word holds 8 rows, its nibbles rows 0 2 4 6 1 3 5 7 */
    LM_CODES_ROWS,    /* I32 [rows, ceil(cols/per)]: as COLUMNS, along the row */
    LM_CODES_I8,      /* I8 [..., rows, cols]; seen as unsigned with zero point 128 */
    LM_CODES_FP8,     /* F8_E4M3 or F8_E5M2 [..., rows, cols] */
} lm_packed_codes;

typedef enum lm_packed_zeros {
    LM_ZEROS_NONE,   /* zero_base is the zero point of all */
    LM_ZEROS_ACROSS, /* I32 [groups, rows/per]: a word holds `per` rows (GPTQ, and AWQ in its order); zero_base is added */
    LM_ZEROS_DOWN,   /* I32 [ceil(rows/per), groups]; zero_base is added */
    LM_ZEROS_I8,     /* I8, laid out as the scales are; zero_base is added */
} lm_packed_zeros;

typedef enum lm_packed_emit { /* the dtype that rows are written in */
                              LM_EMIT_MXFP4,
                              LM_EMIT_INT4,
                              LM_EMIT_Q4_0,
                              LM_EMIT_INT8,
                              LM_EMIT_Q8_0,
                              LM_EMIT_FP8,
                              LM_EMIT_F32, /* where it is exact */
                              LM_EMIT_F64,
} lm_packed_emit;

enum { LM_PACKED_PARTS = 8 };

typedef struct lm_packed {
    lm_packed_codes layout;
    lm_packed_zeros zeros;
    lm_packed_emit emit;
    uint32_t bits; /* of an integer code: 4 or 8 */
    bool e5m2;     /* FP8 codes: not E4M3 */
    int32_t zero_base;
    uint64_t rows;                                 /* of one matrix (a stack of experts has several) */
    uint64_t group;                                /* columns per group, without g_idx */
    const lm_tensor *codes, *scale, *zero, *g_idx; /* zero and g_idx may be NULL */
    /* the scale of (matrix m, row r, group g) is element m*mat_stride + r/row_div*row_stride + g*group_stride */
    uint64_t mat_stride, row_div, row_stride, group_stride, groups;
    const lm_tensor *part[LM_PACKED_PARTS]; /* every stored tensor it stands for, those that only activations need included */
    uint32_t n_parts;
} lm_packed;

/* Columns [col, col+n) of a row as blocks of t->type. col and n are multiples of 32, but that n may end with the row. */
void lm_packed_read(const lm_tensor *t, uint64_t row, uint64_t col, uint64_t n, uint8_t *dst);
float lm_packed_scale_at(const lm_tensor *scale, uint64_t i); /* F32, F16 or BF16, as a float */
#endif
