/* What a model's files hold: named tensors and typed metadata, the same for a GGUF file and a Hugging Face folder. Immutable once open.
 * Nothing here knows an architecture. Every offset, size, count and string has been checked against the files before it can be seen.
 */
#ifndef LM_FORMAT_SOURCE_H
#define LM_FORMAT_SOURCE_H
#include "base/map.h"
#include "base/mem.h"
#include "tensor/tensor.h"

typedef enum lm_source_kind { LM_SOURCE_GGUF, LM_SOURCE_HF } lm_source_kind;

/* ---- metadata: a flat table of path → typed value --------------------------------------------------------------------------
 * GGUF: the keys as they stand ("llama.block_count"). HF: config.json flattened, nested objects joined with '.'
 * ("rope_parameters.rope_theta", "text_config.hidden_size"); an empty object or an array of objects/arrays is LM_V_OTHER. */
typedef enum lm_value_kind { LM_V_NULL, LM_V_BOOL, LM_V_INT, LM_V_FLOAT, LM_V_STRING, LM_V_ARRAY, LM_V_OTHER } lm_value_kind;

typedef struct lm_value {
    lm_value_kind kind;
    lm_value_kind elem; /* of an ARRAY: BOOL, INT, FLOAT or STRING (INT when empty); a JSON array of mixed ints and floats is FLOAT */
    union {
        bool b;
        int64_t i;
        double f;
        struct { const char *s; uint64_t len; } str; /* NUL-terminated too; UTF-8 checked */
        struct { const void *data; uint64_t n; } arr; /* int64_t[], double[], uint8_t (bool)[], lm_str[] */
    };
    uint32_t gguf_type; /* the value's own GGUF type number (element type for arrays), UINT32_MAX for JSON */
    uint64_t u;         /* INT beyond int64 (GGUF uint64): the unsigned value; else equal to i */
} lm_value;
typedef struct lm_str { const char *s; uint64_t len; } lm_str;

typedef struct lm_meta_entry { const char *key; lm_value value; } lm_meta_entry;
typedef struct lm_meta {
    const lm_meta_entry *entry; /* sorted by key (bytewise) */
    uint32_t n;
} lm_meta;
const lm_value *lm_meta_get(const lm_meta *m, const char *key); /* NULL when absent */

/* ---- source ----------------------------------------------------------------------------------------------------------------- */
typedef struct lm_source {
    lm_source_kind kind;
    const char *path;  /* as given */
    lm_arena *arena;   /* owns everything below */
    lm_map *file;      /* the weight files, in name order */
    uint32_t n_files;
    lm_meta meta;      /* GGUF metadata, or config.json */
    lm_meta generation; /* generation_config.json (HF), empty otherwise */
    const lm_tensor *tensor; /* sorted by name */
    uint32_t n_tensors;
    const char *packing; /* how packed weights are stored and what is read of them, one line for people; NULL: none are packed */
    uint32_t gguf_version;
    uint32_t gguf_alignment;
} lm_source;

/* PATH: a folder with config.json, or a file that its magic says is GGUF (or one shard of a split GGUF: all are opened).
 * Errors name file, offset and field. LM_UNSUPPORTED when the file is something else (the message says what it looks like). */
lm_status lm_source_open(const char *path, lm_source **out, lm_error *err);
void lm_source_close(lm_source *s);
const lm_tensor *lm_source_tensor(const lm_source *s, const char *name); /* NULL when absent */
/* sha256 over the weight files' bytes in name order, hex. Reads every byte; progress(ctx, done, total) may be NULL and may stop it by
 * returning false. */
lm_status lm_source_sha256(const lm_source *s, char hex[65], bool (*progress)(void *, uint64_t, uint64_t), void *ctx, lm_error *err);
/* Lets go of the resident file pages of a tensor (after it was repacked). */
void lm_source_release(const lm_source *s, const lm_tensor *t);

/* A bare safetensors file (a trace): tensors, and __metadata__ as a flat table of strings. */
lm_status lm_safetensors_open(const char *path, lm_source **out, lm_error *err);

/* Whether a file may be written at `path`: nothing is there and its folder can be written to, or a regular file that is none of
 * `reading`'s (NULL: nothing is being read).
 * Both writers ask it; who computes before writing asks it first. */
lm_status lm_target_check(const char *path, const lm_source *reading, lm_error *err);

/* Writes a safetensors file: header, then tensors in the order given; atomically (a temporary beside it, then rename). */
typedef struct lm_st_out {
    const char *name;
    const char *st_dtype;
    uint32_t rank;
    uint64_t dim[LM_MAX_RANK];
    const void *data;
    uint64_t bytes;
} lm_st_out;
lm_status lm_safetensors_write(const char *path, const lm_st_out *t, uint32_t n, const char *const *meta_kv /* k,v,k,v,NULL */,
                               lm_error *err);
#endif
