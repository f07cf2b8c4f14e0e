/* Lookups and the generic dequantizer. A NaN stays a NaN, but its payload is not part of the contract: through double it is quieted. */
#include "quant/dtype.h"

#include <string.h>
#include <strings.h>

#include "dtype_list.h"

const lm_dtype *const lm_dtypes[] = {LM_DTYPE_LIST NULL};

const lm_dtype *lm_dtype_by_gguf(uint32_t id) {
    if (id == LM_NO_ID) return NULL; /* what types without a number carry */
    for (const lm_dtype *const *t = lm_dtypes; *t; t++)
        if ((*t)->gguf_id == id) return *t;
    return NULL;
}

const lm_dtype *lm_dtype_by_st(const char *st_name) {
    if (!st_name) return NULL;
    for (const lm_dtype *const *t = lm_dtypes; *t; t++)
        if ((*t)->st_name && strcmp((*t)->st_name, st_name) == 0) return *t;
    return NULL;
}

const lm_dtype *lm_dtype_by_name(const char *name) {
    if (!name) return NULL;
    for (const lm_dtype *const *t = lm_dtypes; *t; t++)
        if (strcasecmp((*t)->name, name) == 0) return *t;
    return NULL;
}

void lm_dequant_f64(const lm_dtype *t, const uint8_t *src, double *dst, size_t n) { t->decode(src, dst, n / t->block); }

void lm_dequant_f32(const lm_dtype *t, const uint8_t *src, float *dst, size_t n) {
    enum { CHUNK = 256 }; /* the largest block */
    size_t blocks = n / t->block, step = CHUNK / t->block;
    if (t->decode_f32) {
        t->decode_f32(src, dst, blocks);
        return;
    }
    double buf[CHUNK];
    for (size_t b = 0; b < blocks; b += step) {
        size_t k = blocks - b < step ? blocks - b : step;
        t->decode(src + b * t->bytes, buf, k);
        for (size_t i = 0; i < k * t->block; i++) dst[b * t->block + i] = (float)buf[i];
    }
}
