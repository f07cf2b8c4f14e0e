/* What a model family is, and the tools its file is written with.
 *
 * A family is one file in src/arch/ exporting one `const lm_arch lm_arch_NAME`: which config it answers to, its tensors' names in both
 * formats, its hyper-parameters, flags for the default decoder recipe, and hooks for what the recipe can't say. Everything it reads is
 * marked as read; a config key or tensor that nothing read is refused by name (lm_arch_build), so nothing is silently ignored.
 *
 * Errors are sticky (see graph/builder.h): a family's file does not test for them.
 */
#ifndef LM_ARCH_ARCH_H
#define LM_ARCH_ARCH_H
#include "format/source.h"
#include "graph/builder.h"
#include <math.h>

typedef struct lm_b lm_b;
typedef struct lm_log lm_log;

/* ---- names: role → tensor name in each format, without ".weight"/".bias". {l} is the layer, {e} the expert; '|' separates spellings.
 * HF names are written with the plain "model." prefix; multimodal packaging ("model.language_model.", "language_model.model.") and
 * bare names are found out once per checkpoint. */
typedef struct lm_name {
    const char *role;      /* "attn.q": also the op's name */
    const char *hf, *gguf; /* NULL: this format has none */
} lm_name;

/* ---- hyper-parameters --------------------------------------------------------------------------------------------------------*/
typedef struct lm_layer_hp {
    uint32_t heads, kv_heads, dk, dv; /* attention geometry */
    uint32_t window;                  /* 0: full attention */
    uint32_t rope, n_rot;             /* rope table and rotated dims; rope LM_NONE: no rotation (NoPE) */
    uint32_t ffn;                     /* dense FFN width */
    double scale;                     /* of q·k */
    bool moe;                         /* this layer's FFN is a mixture of experts */
    bool recurrent;                   /* linear attention (delta rule) instead of softmax attention */
    int32_t kv_from;                  /* ≥ 0: shares that layer's cache and has no k, v of its own; −1: its own */
    uint32_t slot;                    /* its cache slot, filled in when its attention is built */
} lm_layer_hp;

typedef struct lm_moe_hp {
    uint32_t n, k, ffn, n_shared, shared_ffn, groups, topk_groups;
    lm_route_score score;
    lm_route_group group;
    bool renorm;
    double scale, renorm_eps;
    lm_act act; /* 0: the family's own */
    double limit, alpha;
} lm_moe_hp;

typedef enum lm_qk_norm { LM_QK_NONE, LM_QK_HEAD /* per head */, LM_QK_FULL /* over the whole projection */ } lm_qk_norm;

typedef struct lm_hparams {
    uint32_t n_layers, hidden, vocab, heads, kv_heads, head_dim, ffn, max_position;
    double eps;
    lm_act act;
    bool tied;                                       /* the head is the embedding matrix */
    double embed_scale, residual_scale, logit_scale; /* 1: none */
    double attn_softcap, final_softcap;              /* 0: none */
    int attn_bias;                                   /* 1: q, k, v have biases; 0: none; −1: as the tensors say */
    int o_bias, mlp_bias;
    lm_qk_norm qk_norm;
    lm_layer_hp *layer; /* [n_layers], filled with the above by default */
    lm_moe_hp moe;
} lm_hparams;

/* ---- the family ---------------------------------------------------------------------------------------------------------------*/
typedef struct lm_arch {
    const char *name;
    const char *const *model_types; /* HF model_type values (of the text config), NULL-terminated */
    const char *gguf;               /* general.architecture, or NULL */
    bool gguf_alias;                /* its GGUF is read by another family of the same general.architecture */
    const lm_name *names;           /* its own, before the common ones; ends with role NULL */
    const char *nullable; /* scalar config keys 'a|b' that transformers' class takes null for, beside the common ones (config.c) */
    const char *const *ignored; /* its config keys (HF, or GGUF without the prefix) that never change the maths; NULL-terminated or NULL */
    /* flags of the default recipe */
    lm_norm norm;
    bool norm_plus_one; /* HF norms multiply by 1 + w (GGUF stores 1 + w) */
    bool norm_bias;
    bool no_pre_norm;      /* olmo2: norms only after the sublayers */
    bool post_norm;        /* a norm after each sublayer, before the residual */
    bool parallel;         /* attention and FFN both from one norm */
    bool plain_ffn;        /* down(act(up x)), no gate */
    bool rope_interleaved; /* HF pairs (2i, 2i+1) */
    bool gguf_permuted_qk; /* its GGUF conversion interleaves q and k rows */
    lm_qk_norm qk_norm;
    bool tied_default;  /* the head is the embedding when the config does not say */
    const char *eps_key; /* what its HF config calls the norms' epsilon; NULL: rms_norm_eps */
    double eps_default;  /* 0: 1e-6 */
    const char *act_key; /* and the activation; NULL: hidden_act */
    lm_act act_default;  /* 0: silu */
    bool partial_rope;   /* its HF class can turn a part of each head (partial_rotary_factor) */
    lm_bf16_rules bf16; /* norm_plus_one is filled in from above */
    /* hooks, each NULL for the default */
    void (*params)(lm_b *b);                            /* after the common keys were read: the family's own */
    lm_val (*embed)(lm_b *b);                           /* what enters layer 0 */
    lm_val (*layer)(lm_b *b, uint32_t l, lm_val x);     /* a whole layer */
    lm_val (*attention)(lm_b *b, uint32_t l, lm_val x); /* normed x → attention's output */
    lm_val (*ffn)(lm_b *b, uint32_t l, lm_val x);       /* normed x → FFN's output */
    lm_val (*head)(lm_b *b, lm_val x);                  /* last layer → what the final norm gives; default: norm */
    void (*to_gguf)(lm_b *b);                           /* writing GGUF: what the log of the build can't know (export.h) */
} lm_arch;

extern const lm_arch *const lm_archs[]; /* NULL-terminated, generated */

struct lm_b {
    lm_graph g;
    const lm_source *src;
    const lm_arch *arch;
    lm_hparams hp;
    bool gguf;
    char prefix[64];                            /* of HF config keys: "" or "text_config." */
    char tensor_prefix[48];                     /* replaces "model." in HF names */
    uint8_t *key_used, *gen_used, *tensor_used; /* tensor_used: 1 read, 2 known and left unread (lm_unused) */
    uint32_t l;                                 /* current layer (roles' {l}) */
    void *own;                                  /* the family's own parameters, from the arena */
    lm_log *log;                                /* of what is read, for writing GGUF (export.h); NULL: none is kept */
};

/* The whole way: find the family, read the config, build, and refuse what nothing read. Skipped tensor groups (vision, audio, mtp …) are
 * reported through `skipped` (name prefix and count per group, in the program's arena), which may be NULL. */
typedef struct lm_skipped {
    const char *group;
    uint32_t count;
} lm_skipped;
lm_status lm_arch_build(const lm_source *src, lm_program **out, const lm_arch **arch, const lm_skipped **skipped, uint32_t *n_skipped,
                        lm_error *err);
const lm_arch *lm_arch_find(const lm_source *src, lm_error *err);

/* ---- config.c: typed, range-checked reads; a key that is read is marked. `hf` or `gguf` may be NULL, and may list spellings 'a|b'.
 * GGUF keys are relative to "ARCH."; a leading '=' makes one absolute. In a GGUF, "lemma.HFKEY"
 * (what lemma's own writer adds where GGUF has no key) comes first. JSON null counts as absent, but is refused
 * for a single value unless transformers takes it there. -----------------------------------------------*/
#define LM_REQUIRED INT64_MIN
bool lm_cfg_has(lm_b *b, const char *hf, const char *gguf);
const lm_value *lm_cfg_raw(lm_b *b, const char *hf, const char *gguf); /* NULL when absent */
uint32_t lm_cfg_u32(lm_b *b, const char *hf, const char *gguf, int64_t def, uint32_t min, uint32_t max);
double lm_cfg_f64(lm_b *b, const char *hf, const char *gguf, double def); /* NAN: required; must be finite */
bool lm_cfg_bool(lm_b *b, const char *hf, const char *gguf, bool def);
const char *lm_cfg_str(lm_b *b, const char *hf, const char *gguf, const char *def);
/* n values, one per layer (a scalar is spread); returns false (out untouched) when absent */
bool lm_cfg_u32s(lm_b *b, const char *hf, const char *gguf, uint32_t *out, uint32_t n);
bool lm_cfg_f64s(lm_b *b, const char *hf, const char *gguf, double *out, uint32_t n);
bool lm_cfg_bools(lm_b *b, const char *hf, const char *gguf, bool *out, uint32_t n);
bool lm_cfg_str_at(lm_b *b, const char *hf, const char *gguf, uint32_t i, const char **out); /* word i of a list; false: absent, or failed */
/* Refuses a null of one of these keys, unless transformers takes it (lm_arch.nullable): what a read of one value does itself. */
void lm_cfg_not_null(lm_b *b, const char *hf);
/* The key as this model's file spells it (the first spelling where it has none), for messages; lives as long as the program. */
const char *lm_cfg_name(lm_b *b, const char *hf, const char *gguf);
void lm_cfg_ignore(lm_b *b, const char *hf, const char *gguf); /* reads and drops a key that is known not to matter here */
/* Refuses unless the key is absent or holds that value. */
void lm_cfg_expect_bool(lm_b *b, const char *hf, const char *gguf, bool want);
void lm_cfg_expect_str(lm_b *b, const char *hf, const char *gguf, const char *want);
lm_act lm_cfg_act(lm_b *b, const char *hf, lm_act gguf_default); /* hidden_act and friends; an unknown name is refused */

/* ---- weights.c: role → weight or vector, shape-checked ("wanted [a, b], found [c, d]"), marked as consumed ---------------------------*/
typedef struct lm_part {
    uint64_t base, group, group_stride, step;
    uint32_t rope_dim;
} lm_part;                              /* rows taken from a larger tensor; zeros: all */
bool lm_has(lm_b *b, const char *role); /* the tensor exists (".weight" or bare) */
bool lm_has_bias(lm_b *b, const char *role);
uint32_t lm_mat(lm_b *b, const char *role, uint64_t rows, uint64_t cols);
/* `rows` rows of the tensor of `role`, which has `total` rows */
uint32_t lm_mat_part(lm_b *b, const char *role, uint64_t total, uint64_t cols, uint64_t rows, lm_part part);
/* The same from several parts of it, one below the other: count[i] rows by part[i]. */
uint32_t lm_mat_parts(lm_b *b, const char *role, uint64_t total, uint64_t cols, uint32_t n, const lm_part *part, const uint64_t *count);
/* [n][rows, cols] from a stacked tensor [n, total, cols], or one tensor per expert ({e} in the name) of total rows */
uint32_t lm_mat_stack(lm_b *b, const char *role, uint32_t n, uint64_t total, uint64_t cols, uint64_t rows, lm_part part);
/* Matrix i of such a stack. */
uint32_t lm_mat_of_stack(lm_b *b, const char *role, uint32_t n, uint32_t i, uint64_t rows, uint64_t cols);
/* A matrix stored [cols, rows] (gpt2's Conv1D): transposed into memory, floats only. */
uint32_t lm_mat_transposed(lm_b *b, const char *role, uint64_t rows, uint64_t cols);
/* Vectors: `suffix` ".weight", ".bias" or "" ; LM_NONE when `optional` and absent. plus_one adds 1 (HF norms of 1 + w). */
uint32_t lm_vec_of(lm_b *b, const char *role, const char *suffix, uint64_t n, bool plus_one, bool optional);
/* `count` elements of a vector (or [n_mat, total]) by the same row map as lm_mat_part/stack */
uint32_t lm_vec_part(lm_b *b, const char *role, const char *suffix, uint32_t n_mat, uint64_t total, uint64_t count, lm_part part,
                     bool optional);
/* The raw tensor (marked consumed), NULL when absent. */
const lm_tensor *lm_tensor_of(lm_b *b, const char *role, const char *suffix);
/* The family knows this tensor and never reads it: reported as skipped when it is there, not refused. */
void lm_unused(lm_b *b, const char *role, const char *suffix);
/* y = x·Wᵀ + bias. bias: 1 required, 0 none, −1 as the tensors say. */
lm_val lm_linear(lm_b *b, const char *role, lm_val x, uint64_t rows, int bias, bool split);

/* ---- rope.c ------------------------------------------------------------------------------------------------------------------------*/
typedef struct lm_rope_spec {
    const char *type; /* default, linear, llama3, yarn, longrope, proportional */
    double theta, partial, factor, low, high, beta_fast, beta_slow, mscale, mscale_all, attention_factor; /* NAN: not given */
    uint32_t original;
    uint32_t dims; /* rotated dims where the file says so outright (GGUF); 0: head_dim * partial */
    bool truncate;
    const double *short_factor, *long_factor; /* [n_factors], longrope */
    uint32_t n_factors;
} lm_rope_spec;
/* Reads rope settings in every spelling (rope_parameters, nested by `layer_type` when not NULL; rope_scaling; rope_theta; GGUF keys).
 * theta and partial: the family's defaults. */
lm_rope_spec lm_rope_read(lm_b *b, const char *layer_type, double theta, double partial);
/* Its table for heads of head_dim dims; *n_rot gets the rotated dims. */
uint32_t lm_rope_table(lm_b *b, const lm_rope_spec *s, uint32_t head_dim, uint32_t *n_rot);
/* One table for every layer, from the plain keys. */
lm_rope_spec lm_rope_all(lm_b *b, double theta, double partial);
void lm_rope_layer(lm_b *b, uint32_t l, const lm_rope_spec *s); /* layer l's table, for its dk */
double lm_yarn_mscale(double factor, double mscale);            /* 1 when factor ≤ 1, else 0.1·mscale·ln(factor) + 1 */

/* ---- layers.c: what differs from layer to layer -------------------------------------------------------------------------------------*/
/* Sets layer[].window: as layer_types (HF) or sliding_window_pattern (GGUF: a period, or a flag per layer) says, else every layer slides
 * but each period-th (period 0: all slide). */
void lm_windows(lm_b *b, uint32_t window, uint32_t period);

/* ---- recipe.c: the default decoder and its pieces ------------------------------------------------------------------------------------*/
void lm_common_params(lm_b *b);                                           /* the keys nearly every decoder shares, into hp */
lm_val lm_norm_of(lm_b *b, const char *role, lm_val x);                   /* the family's norm over the whole row */
lm_val lm_head_norm(lm_b *b, const char *role, lm_val x, uint32_t heads); /* RMS over each head, one weight of head_dim */
lm_val lm_attention(lm_b *b, uint32_t l, lm_val x);                       /* q, k, v, norms, rope, attention, output */
/* The part after the projections: qk-norm, rope, attention op; q, k, v values (k, v LM_NONE when the layer shares another's cache). */
lm_val lm_attention_core(lm_b *b, uint32_t l, lm_val q, lm_val k, lm_val v, uint32_t sinks);
lm_val lm_ffn(lm_b *b, uint32_t l, lm_val x); /* dense, or lm_moe where the layer says so */
lm_val lm_ffn_dense(lm_b *b, const char *gate, const char *up, const char *down, lm_val x, uint32_t width); /* gate NULL: plain */
lm_val lm_moe(lm_b *b, uint32_t l, lm_val x); /* router, experts, shared experts */
/* The experts alone, chosen by these router logits as hp.moe says; expert_scale: a vector of one factor per expert, or LM_NONE. */
lm_val lm_experts(lm_b *b, lm_val logits, lm_val x, uint32_t expert_scale);
lm_val lm_embed(lm_b *b); /* token embeddings, times embed_scale */
lm_val lm_layer(lm_b *b, uint32_t l, lm_val x);
void lm_decoder(lm_b *b);                                          /* everything, with the hooks */
lm_val lm_residual(lm_b *b, const char *name, lm_val x, lm_val y); /* x + residual_scale·y */
#endif
