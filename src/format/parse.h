/* The parsers behind a source: each is a pure function of (bytes, length). `file` is only the name that errors carry; nothing is opened,
 * and nothing is allocated that is not proportional to `n`. What they return lives in the arena `a` and, for tensor data, in the bytes.
 * On failure *out is left as it was; the arena may hold some dead memory. Private to src/format, its tests and its fuzz targets.
 */
#ifndef LM_FORMAT_PARSE_H
#define LM_FORMAT_PARSE_H
#include "format/source.h"

#define LM_MAX_ENTRIES 1048576u       /* metadata keys, and tensors, in one file: far above any real model */
#define LM_ST_MAX_HEADER 100000000u   /* bytes; the safetensors library's own limit */
#define LM_CONFIG_MAX_BYTES 16777216u /* of config.json and its like */
#define LM_CONFIG_MAX_VALUES 131072u
#define LM_CONFIG_MAX_DEPTH 16u
#define LM_CONFIG_MAX_PATH 512u /* bytes of a flattened path */

typedef struct lm_parsed {
    lm_meta meta;
    lm_tensor *tensor; /* sorted by name; .file is 0 */
    uint32_t n_tensors;
    uint32_t version, alignment; /* GGUF only */
} lm_parsed;

lm_status lm_gguf_parse(const uint8_t *p, uint64_t n, const char *file, lm_arena *a, lm_parsed *out, lm_error *err);
lm_status lm_safetensors_parse(const uint8_t *p, uint64_t n, const char *file, lm_arena *a, lm_parsed *out, lm_error *err);
/* config.json, generation_config.json: one object, flattened */
lm_status lm_config_parse(const uint8_t *p, uint64_t n, const char *file, lm_arena *a, lm_meta *out, lm_error *err);

/* model.safetensors.index.json: which shard holds which tensor */
typedef struct lm_st_index {
    const char **shard; /* distinct, in name order */
    uint32_t n_shards;
    struct lm_st_index_row {
        const char *tensor;
        uint32_t shard;
    } * row; /* sorted by tensor name */
    uint32_t n_rows;
} lm_st_index;
lm_status lm_st_index_parse(const uint8_t *p, uint64_t n, const char *file, lm_arena *a, lm_st_index *out, lm_error *err);

/* "model-00001-of-00003.gguf": the length of what stands before "-00001", the shard (from 1) and the count; false for any other name */
bool lm_split_name(const char *file, size_t *stem, uint32_t *no, uint32_t *count);
/* What a file that is no GGUF looks like, in words, from its first bytes. */
const char *lm_file_looks_like(const uint8_t *p, uint64_t n);

/* ---- shared by the parsers ---- */
/* Sorts the entries by key; a duplicate key is an error at at[] of the later one (offsets parallel to e before sorting, or NULL). */
lm_status lm_meta_finish(lm_meta_entry *e, const uint64_t *at, uint32_t n, const char *file, lm_meta *out, lm_error *err);
/* A tensor with the place of its header record, for errors. Refuses overlaps and duplicate names; copies, sorted by name, to the arena. */
typedef struct lm_tensor_rec {
    lm_tensor t;
    uint64_t at;
} lm_tensor_rec;
void lm_tensors_by_place(lm_tensor_rec *r, size_t n); /* sorts by offset in the file */
lm_status lm_tensors_finish(lm_tensor_rec *r, uint32_t n, const char *file, lm_arena *a, lm_parsed *out, lm_error *err);

/* ---- shared by the openers ---- */
/* Maps n files (paths are full paths, in name order) into s->file. */
lm_status lm_source_map(lm_source *s, const char *const *path, uint32_t n, lm_error *err);
/* Joins the tensors of the files (part[i] is file i) into s->tensor, sorted; a name in two files is an error. */
lm_status lm_source_join(lm_source *s, const lm_parsed *part, lm_error *err);
/* The error that lists every shard that isn't there, all at once; LM_OK when all are. path: full paths. */
lm_status lm_shards_present(const char *const *path, uint32_t n, const char *listed_in, lm_error *err);
lm_status lm_hf_open(lm_source *s, lm_error *err);   /* s->path is a folder */
lm_status lm_gguf_open(lm_source *s, lm_error *err); /* s->path is a file */
#endif
