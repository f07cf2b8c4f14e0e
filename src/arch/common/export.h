/* The way back: a Hugging Face folder's model as GGUF metadata and tensors.
 *
 * There are no converters per family. While a family's file builds its program from the folder, a log keeps what it read: each config value
 * under both of its keys, each weight under its role, each rope table. The log is then written under the GGUF spellings. What GGUF has no
 * key for goes into "lemma.HFKEY"; the fewest of these are kept with which lemma's own GGUF reader builds the same program again, and a
 * model for which no set of keys does so is refused. A family adds what the log can't know in its `to_gguf` hook.
 */
#ifndef LM_ARCH_EXPORT_H
#define LM_ARCH_EXPORT_H
#include "arch/common/arch.h"

/* Blocks of `size` rows from row `first` on, grouped in HF (block g*per + j belongs to group g), tiled in GGUF (block j*groups + g). */
typedef struct lm_tiles {
    uint64_t first, size, groups, per;
} lm_tiles;

typedef struct lm_export_tensor { /* rows in the order stored */
    const char *role, *name;
    uint32_t layer, rank;
    uint64_t dim[LM_MAX_RANK]; /* row-major: the last is the row */
    const lm_weight *w;        /* a matrix or a stack of them … */
    const double *v;           /* … or a vector, or a small table of float32 */
    bool f32;                  /* stays float32 whatever type is asked for */
    bool neg_exp;              /* stored as −exp of the value */
    uint32_t rope_dim;         /* each head's halves are stored interleaved */
    lm_tiles rows, cols;       /* per 0: none; rows: elements of a vector */
    uint32_t head_rows;        /* not 0: w is kv_b with so many rows per head, and the tensor each head's first dim[2], transposed */
} lm_export_tensor;

typedef struct lm_export {
    lm_program *program; /* owns everything here */
    const char *arch;    /* general.architecture */
    lm_meta_entry *kv;   /* under the architecture and "lemma."; not sorted */
    lm_export_tensor *tensor;
    uint32_t n_kv, n_tensors, cap_kv, cap_tensors;
} lm_export;

lm_status lm_export_build(const lm_source *src, lm_export **out, lm_error *err);
void lm_export_free(lm_export *x);
/* Row r of all rows of all its matrices; scratch: lm_export_scratch(t) doubles, the same ones from row to row, zeroed before the first. */
void lm_export_row(const lm_export_tensor *t, uint64_t r, double *dst, double *scratch);
uint64_t lm_export_scratch(const lm_export_tensor *t);

/* ---- for to_gguf hooks: later values replace earlier ones; keys are relative to the architecture -----------------------------------*/
void lm_export_u32(lm_b *b, const char *key, uint32_t v);
void lm_export_f32(lm_b *b, const char *key, double v);
void lm_export_array(lm_b *b, const char *key, lm_value_kind elem, const void *data,
                     uint64_t n);                                   /* int64_t[], double[] (as float32) or uint8_t (bool)[] */
void lm_export_layers(lm_b *b, const char *key, const uint32_t *v); /* one number where every layer's is the same, else one per layer */
void lm_export_forget(lm_b *b, const char *key);                    /* this key of the folder is said otherwise: there is no lemma.KEY */
void lm_export_rope_freqs(lm_b *b);                                 /* rope_freqs.weight even where there is nothing to divide */
lm_export_tensor *lm_export_find(lm_b *b, const char *role, uint32_t layer); /* NULL when there is none */
/* A new tensor under a role, for the hook to fill; NULL when there is one of that name, or no name. It may move the others. */
lm_export_tensor *lm_export_add(lm_b *b, const char *role, const char *suffix, uint32_t layer);
bool lm_export_name(lm_b *b, lm_export_tensor *t, const char *role, const char *suffix); /* gives it another role's name */
const lm_rope_spec *lm_export_rope(lm_b *b);                                             /* the main table's, NULL when there is none */

/* ---- the log, called by config.c, weights.c, rope.c and build.c when b->log is there
 * ---------------------------------------------------*/
void lm_log_value(lm_b *b, const char *gguf, lm_value v, bool found); /* the value in effect; found: the folder has the key */
void lm_log_raw(lm_b *b, const char *key, const lm_value *v);         /* a key of the folder for which GGUF has none */
/* A fetch of role's tensor t (or one per matrix) of n_mat × [total, cols]; w: what was made of it. */
void lm_log_matrix(lm_b *b, const char *role, const lm_tensor *t, const lm_tensor *const *per_mat, uint32_t n_mat, bool stack,
                   uint64_t total, uint64_t cols, uint32_t w);
void lm_log_vector(lm_b *b, const char *role, const char *suffix, uint32_t n_mat, uint64_t n, uint32_t vec);
void lm_log_rope(lm_b *b, const lm_rope_spec *s, uint32_t head_dim, uint32_t n_rot, uint32_t table);
void lm_log_finish(lm_b *b);
/* The name of a role in GGUF; false when it has none. */
bool lm_gguf_name(lm_b *b, const char *role, const char *suffix, char *buf, size_t n);
/* lm_arch_build with a log. */
lm_status lm_arch_build_logged(const lm_source *src, lm_log *log, lm_program **out, lm_error *err);
#endif
