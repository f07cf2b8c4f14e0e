/* What Gemma families share beyond the recipe: soft-caps (2, 3, 3n, 4); in 3n and 4, attention with a normed value, shared caches,
 * per-layer inputs. */
#ifndef LM_ARCH_GEMMA_H
#define LM_ARCH_GEMMA_H
#include "arch/common/export.h"

/* A soft-cap: `absent` when the config has no such key, none when it says null; else it must be positive and finite. */
double lm_gemma_softcap(lm_b *b, const char *hf, const char *gguf, double absent);

/* Refuses a rope_scaling that says `type`: transformers' classes of Gemma pass it over. */
void lm_gemma_rope_spelling(lm_b *b);

/* What stands in the class for keys that the config leaves out: key/value heads, head size, FFN width; all read again into the layers. */
void lm_gemma_defaults(lm_b *b, uint32_t kv_heads, uint32_t head_dim, uint32_t ffn);

/* The last `shared` layers read the cache of the last layer of their own kind (windowed or full) before them. */
void lm_gemma_share_kv(lm_b *b, uint32_t shared);

/* q, k, v (k_is_v: k's projection, raw), q and k normed per head, v normed without a weight, rope, attention, output. */
lm_val lm_gemma_attention(lm_b *b, uint32_t l, lm_val x, bool k_is_v);

/* Per-layer inputs: for each layer `width` values of a token, from a table of its own (of `table` rows; ids past them read row 0) and from
 * the embedding x. `bf16_scales`: the reference keeps its scales in the model's type. Result: [n_layers][width]. */
lm_val lm_gemma_layer_inputs(lm_b *b, lm_val x, uint32_t width, uint32_t table, bool bf16_scales);
/* Layer l's part of them, gated by x: what is added to the stream. */
lm_val lm_gemma_layer_input(lm_b *b, uint32_t l, lm_val x, lm_val inputs, uint32_t width);
#define LM_GEMMA_LAYER_INPUT_NAMES \
    {"layer_input.table", "model.embed_tokens_per_layer", "per_layer_token_embd"}, \
        {"layer_input.context", "model.per_layer_model_projection", "per_layer_model_proj"}, \
        {"layer_input.context_norm", "model.per_layer_projection_norm", "per_layer_proj_norm"}, \
        {"layer_input.gate", "model.layers.{l}.per_layer_input_gate", "blk.{l}.inp_gate"}, \
        {"layer_input.out", "model.layers.{l}.per_layer_projection", "blk.{l}.proj"}, { \
        "layer_input.norm", "model.layers.{l}.post_per_layer_input_norm", "blk.{l}.post_norm" \
    }

/* Writing GGUF: which layers slide, and what differs from layer to layer. */
void lm_gemma_to_gguf(lm_b *b);

/* a * c, c rounded to bfloat16 in bfloat16 lanes when the reference rounds it. */
lm_val lm_gemma_scale(lm_b *b, const char *name, lm_val a, double c, bool bf16);
#endif
