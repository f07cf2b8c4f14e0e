/* Packed weights: the private layout of the cpu backend, shared by its lanes.
 *
 * A matrix [rows, K] is a sequence of strips of 16 rows; a strip is one contiguous stream over K. Rows past the matrix's end are zero bytes.
 *   GENERIC, F32, F16, BF16:  [block][16 rows][the block's raw bytes]; for floats (block 1) that is [k][16]
 *   BF16X2 (lane bf16's form of every float type): [⌈K/2⌉][16 rows][2], an odd row continued by a zero
 *   The planes of the block types have the 16 rows' scales side by side, then lines of 64 bytes, [16 rows][4 bytes]:
 *   Q8_0 per 64 k (1088 B): d f16 [2][16]; 2×8 lines, line j of a 32-block = its k 4j…4j+3, q + 128
 *   Q4_0 per 64 k (576 B):  d f16 [2][16]; 2×4 lines, line j = low nibbles k 4j…, high nibbles k 16+4j…
 *   Q4_1 per 64 k (640 B):  d f16 [2][16], m f16 [2][16]; lines as Q4_0
 *   Q5_0 per 64 k (704 B):  d f16 [2][16]; lines as Q4_0; 2 lines of fifth bits: bit s of a byte = k 4s…
 *   Q4_K per 256 k (2368 B): d, dmin f16 [16]; scales u8 [8][16]; mins u8 [4][16][2]; 32 lines, line j = low nibbles k 64⌊j/8⌋+4(j%8)…, high k 32 further
 *   Q5_K per 256 k (2880 B): as Q4_K, then 8 lines of fifth bits: line j, bit s of a byte = k 32s+4j…
 *   Q6_K per 256 k (3392 B): d f16 [16], 32 B zero; scales s8 [16][16]; 32 lines of low nibbles and 16 of high bits, the rows' raw words in order
 */
#ifndef LM_KERNELS_PACK_H
#define LM_KERNELS_PACK_H
#include "base/mem.h"
#include "quant/dtype.h"

typedef enum lm_pack {
    LM_PACK_GENERIC, LM_PACK_F32, LM_PACK_F16, LM_PACK_BF16, LM_PACK_Q4_0, LM_PACK_Q4_1, LM_PACK_Q8_0, LM_PACK_Q4_K, LM_PACK_Q5_K, LM_PACK_Q6_K,
    LM_PACK_Q5_0, LM_PACK_BF16X2, LM_PACK_COUNT
} lm_pack;

typedef struct lm_packed_matrix {
    const lm_dtype *type;
    lm_pack pack;
    uint32_t n_mat, rows, K, strips; /* strips of one matrix */
    size_t strip_bytes, bytes;
    uint8_t *data; /* matrix m, strip s at (m*strips + s)*strip_bytes; 64-byte aligned */
    lm_slab *slab; /* that data was taken from; NULL: pages of its own */
} lm_packed_matrix;

/* Geometry and memory of a packed matrix; K a multiple of the type's block, the block a divisor of 256. The bytes are zero. They are taken from
 * *slab (mem.h), which the caller leaves in the end; slab NULL: they have pages of their own. */
lm_status lm_packed_create(const lm_dtype *type, uint64_t n_mat, uint64_t rows, uint64_t K, lm_slab **slab, lm_packed_matrix *out,
                           lm_error *err);
/* The same for lane bf16, filled by lm_packed_strip_bf16; `type` becomes BF16. LM_UNSUPPORTED for a type that is no float of 16 or 32 bits. */
lm_status lm_packed_create_bf16(const lm_dtype *from, uint64_t n_mat, uint64_t rows, uint64_t K, lm_slab **slab, lm_packed_matrix *out,
                           lm_error *err);
void lm_packed_free(lm_packed_matrix *m);
/* Fills strip s of matrix mat from 16 rows of file bytes (row[r] NULL: past the end). Different strips may be filled by different threads. */
void lm_packed_strip(lm_packed_matrix *m, uint32_t mat, uint32_t s, const uint8_t *const row[16]);
/* As lm_packed_strip, from rows of type `from`: rounded to nearest even, subnormals to zero. BF16 is what it is. */
void lm_packed_strip_bf16(lm_packed_matrix *m, const lm_dtype *from, uint32_t mat, uint32_t s, const uint8_t *const row[16]);
static inline const uint8_t *lm_packed_at(const lm_packed_matrix *m, uint32_t mat, uint32_t s) {
    return m->data + ((size_t)mat * m->strips + s) * m->strip_bytes;
}
/* The unit in which a split product's segments are counted. */
static inline uint32_t lm_pack_unit(const lm_dtype *t) { return t->block == 1 ? 16 : t->block; }
#endif
