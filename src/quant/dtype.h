/* Storage types. One file per type (or per close family) exports `const lm_dtype lm_dtype_NAME`; its address is its identity.
 * The list is generated from the folder (build/gen/dtype_list.h), so adding a type touches one file.
 *
 * `decode` gives the exact real value of each element as a double: the product of the stored scales, integers and table entries with
 * nothing rounded. The float32 value, everywhere in lemma, is (float)decoded: rounded once, to nearest even. It equals the gguf package's
 * dequantize bit for bit (tests/unit/test_quant.c has the goldens).
 */
#ifndef LM_QUANT_DTYPE_H
#define LM_QUANT_DTYPE_H
#include "base/status.h"

#define LM_NO_ID UINT32_MAX

typedef struct lm_dtype {
    const char *name;    /* GGUF's spelling: "Q4_K", "F32", "BF16" */
    uint32_t gguf_id;    /* ggml type number, or LM_NO_ID */
    const char *st_name; /* safetensors dtype string ("F32", "BF16", "F8_E4M3"), or NULL */
    uint32_t block;      /* elements per block: 1 for floats */
    uint32_t bytes;      /* bytes per block */
    bool is_float;       /* plain float or integer element, no scales */
    /* n_blocks blocks from src (any alignment) to dst[n_blocks*block]. Never fails: every bit pattern has a value (NaN included). */
    void (*decode)(const uint8_t *src, double *dst, size_t n_blocks);
    /* The same rounded to float32, faster where a type has its own; NULL: through decode. Bits equal (float)decode. */
    void (*decode_f32)(const uint8_t *src, float *dst, size_t n_blocks);
    /* float32 to blocks, as llama.cpp's reference quantizer does (bit for bit); NULL: lemma does not write this type. */
    void (*encode)(const float *src, uint8_t *dst, size_t n_blocks);
    /* One block as small integers: element i is exactly scale[i/group]*q[i] (+ min[i/group] where has_min; min is left alone otherwise).
     * NULL: a float type, one whose values are no small integers, or one that lemma's kernels unpack themselves. */
    void (*ints)(const uint8_t *src, int8_t *q, float *scale, float *min);
    uint32_t group; /* 16 or 32 where ints is set */
    bool has_min;
} lm_dtype;

extern const lm_dtype *const lm_dtypes[]; /* NULL-terminated, generated */
const lm_dtype *lm_dtype_by_gguf(uint32_t id);
const lm_dtype *lm_dtype_by_st(const char *st_name);
const lm_dtype *lm_dtype_by_name(const char *name); /* case-insensitive */
/* n elements (n a multiple of block) to float32 / double */
void lm_dequant_f32(const lm_dtype *t, const uint8_t *src, float *dst, size_t n);
void lm_dequant_f64(const lm_dtype *t, const uint8_t *src, double *dst, size_t n);
#endif
