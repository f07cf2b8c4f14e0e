/* Shapes and rows. */
#include "tensor/tensor.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/mem.h"
#include "tensor/packed.h"

bool lm_shape_count(uint32_t rank, const uint64_t *dim, uint64_t *out) {
    uint64_t n = 1;
    if (rank > LM_MAX_RANK) return false;
    for (uint32_t i = 0; i < rank; i++)
        if (dim[i] == 0 || !lm_mul(n, dim[i], &n)) return false;
    *out = n;
    return true;
}

bool lm_shape_bytes(const lm_dtype *t, uint32_t rank, const uint64_t *dim, uint64_t *out) {
    uint64_t n;
    if (!lm_shape_count(rank, dim, &n)) return false;
    uint64_t last = rank ? dim[rank - 1] : 1;
    return last % t->block == 0 && lm_mul(n / t->block, t->bytes, out);
}

char *lm_shape_text(uint32_t rank, const uint64_t *dim, char *buf, size_t n) {
    size_t at = 0;
    if (n == 0) return buf;
    buf[0] = 0;
    for (uint32_t i = 0; i <= rank && at < n; i++) {
        const char *before = i == 0 ? "[" : i < rank ? ", " : "";
        int len = i < rank ? snprintf(buf + at, n - at, "%s%" PRIu64, before, dim[i]) : snprintf(buf + at, n - at, "%s]", before);
        at += len > 0 ? (size_t)len : 0;
    }
    return buf;
}

uint64_t lm_tensor_cols(const lm_tensor *t) { return t->rank ? t->dim[t->rank - 1] : 1; }

uint64_t lm_tensor_rows(const lm_tensor *t) {
    uint64_t n = 1; /* cannot overflow: the shape was checked when the tensor was made */
    for (uint32_t i = 0; i + 1 < t->rank; i++) n *= t->dim[i];
    return n;
}

uint64_t lm_tensor_row_size(const lm_tensor *t) { return lm_tensor_cols(t) / t->type->block * t->type->bytes; }

const uint8_t *lm_tensor_row_bytes(const lm_tensor *t, uint64_t row, uint8_t *scratch) {
    if (!t->packed) return t->data + row * lm_tensor_row_size(t);
    lm_packed_read(t, row, 0, lm_tensor_cols(t), scratch);
    return scratch;
}

/* A packed row, a few blocks at a time, so that no row-sized scratch is needed. */
enum { PIECE = 256 }; /* elements: a multiple of every block that packed tensors use, and of 8 bytes at most each */

void lm_tensor_row_f64(const lm_tensor *t, uint64_t row, double *dst) {
    const uint64_t cols = lm_tensor_cols(t);
    uint8_t blocks[PIECE * 8];
    if (!t->packed) {
        lm_dequant_f64(t->type, lm_tensor_row_bytes(t, row, NULL), dst, cols);
        return;
    }
    for (uint64_t k = 0, n; k < cols; k += n) {
        n = cols - k < PIECE ? cols - k : PIECE;
        lm_packed_read(t, row, k, n, blocks);
        lm_dequant_f64(t->type, blocks, dst + k, n);
    }
}

void lm_tensor_row_f32(const lm_tensor *t, uint64_t row, float *dst) {
    const uint64_t cols = lm_tensor_cols(t);
    uint8_t blocks[PIECE * 8];
    if (!t->packed) {
        lm_dequant_f32(t->type, lm_tensor_row_bytes(t, row, NULL), dst, cols);
        return;
    }
    for (uint64_t k = 0, n; k < cols; k += n) {
        n = cols - k < PIECE ? cols - k : PIECE;
        lm_packed_read(t, row, k, n, blocks);
        lm_dequant_f32(t->type, blocks, dst + k, n);
    }
}
