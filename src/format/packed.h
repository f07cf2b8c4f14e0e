/* Packed checkpoints: what config.json's quantization_config says, and the folding of stored tensors into logical ones. Private to
 * src/format and its tests.
 */
#ifndef LM_FORMAT_PACKED_H
#define LM_FORMAT_PACKED_H
#include "format/source.h"

typedef enum lm_quant_method { LM_QUANT_NONE, LM_QUANT_MXFP4, LM_QUANT_FP8, LM_QUANT_GPTQ, LM_QUANT_AWQ, LM_QUANT_CT } lm_quant_method;

enum { LM_QUANT_GROUPS = 16 };

typedef struct lm_quant_config {
    lm_quant_method method;
    const char *name;               /* quant_method, as written */
    uint32_t bits;                  /* GPTQ, AWQ; 0: told by the shapes */
    int64_t group[LM_QUANT_GROUPS]; /* the group sizes that occur; -1: the whole row. GPTQ and AWQ have just one */
    uint32_t n_groups;
    bool zero_is_less_one;      /* GPTQ's first format stores zero point - 1 */
    bool symmetric, asymmetric; /* compressed-tensors: some scheme has no zero points; some has */
    bool has_block;             /* FP8: scales of block[0] x block[1] elements */
    uint64_t block[2];
    const char *activations; /* how the checkpoint's authors run its activations ("dynamic"), or NULL */
} lm_quant_config;

/* Reads and checks every quantization_config.* key: what is not understood and could change the decoding is refused by name. `file` is
 * for errors. */
lm_status lm_quant_config_read(const lm_meta *m, const char *file, lm_quant_config *out, lm_error *err);

/* Replaces the tensor table by one in which each packed weight is one tensor. Runs once, when the files' own table is complete. */
lm_status lm_packed_fold(lm_source *s, const char *config_file, lm_error *err);
#endif
