/* StarCoder 2: LayerNorm and biases everywhere, a plain GELU feed-forward, an optional window on every layer. */
#include "arch/common/arch.h"

static const lm_name names[] = {
    {"ffn.up", "model.layers.{l}.mlp.c_fc", "blk.{l}.ffn_up"},
    {"ffn.down", "model.layers.{l}.mlp.c_proj", "blk.{l}.ffn_down"},
    {NULL, NULL, NULL},
};

static void params(lm_b *b) {
    lm_hparams *h = &b->hp;
    lm_rope_all(b, 1e4, 1.0);
    uint32_t w = lm_cfg_u32(b, "sliding_window", "attention.sliding_window", 0, b->gguf ? 0 : 1, INT32_MAX);
    for (uint32_t l = 0; l < h->n_layers; l++) h->layer[l].window = w;
    lm_cfg_expect_str(b, "mlp_type", NULL, "default");
    lm_cfg_expect_str(b, "norm_type", NULL, "layer_norm");
    h->attn_bias = h->o_bias = h->mlp_bias = lm_cfg_bool(b, "use_bias", NULL, true);
}

const lm_arch lm_arch_starcoder2 = {
    .name = "starcoder2",
    .model_types = (const char *const[]){"starcoder2", NULL},
    .nullable = "head_dim|sliding_window|mlp_type|norm_type",
    .gguf = "starcoder2",
    .names = names,
    .norm = LM_NORM_LAYER,
    .norm_bias = true,
    .plain_ffn = true,
    .tied_default = true,
    .eps_key = "norm_epsilon",
    .eps_default = 1e-5,
    .act_default = LM_ACT_GELU_TANH,
    .bf16 = {.known = true},
    .params = params,
};
