/* OLMo 2: norms only after the sublayers, q and k normalised over the whole projection. */
#include "arch/common/arch.h"

static const lm_name names[] = {
    {"attn.post_norm", "model.layers.{l}.post_attention_layernorm", "blk.{l}.post_attention_norm"},
    {NULL, NULL, NULL},
};

static void params(lm_b *b) {
    lm_rope_all(b, 1e4, 1.0);
    if (!b->gguf) b->hp.attn_bias = b->hp.o_bias = lm_cfg_bool(b, "attention_bias", NULL, false), b->hp.mlp_bias = 0;
}

const lm_arch lm_arch_olmo2 = {
    .name = "olmo2",
    .model_types = (const char *const[]){"olmo2", NULL},
    .gguf = "olmo2",
    .nullable = "num_key_value_heads",
    .names = names,
    .no_pre_norm = true,
    .post_norm = true,
    .qk_norm = LM_QK_FULL,
    .eps_default = 1e-5,
    .bf16 = {.known = true, .rope_wide = true},
    .params = params,
};
