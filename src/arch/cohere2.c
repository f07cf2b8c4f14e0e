/* Cohere 2 (Command R7B): attention and FFN side by side from one LayerNorm without bias; windowed layers have interleaved rope, full ones
 * none. */
#include "arch/common/arch.h"

static const char *const ignored[] = {"rotary_pct",  "position_embedding_type", "order_of_interleaved_layers",
                                      "use_qk_norm", "use_parallel_block",      "use_parallel_embedding",
                                      NULL};

static void params(lm_b *b) {
    lm_hparams *h = &b->hp;
    h->logit_scale = lm_cfg_f64(b, "logit_scale", "logit_scale", 0.0625);
    lm_windows(b, lm_cfg_u32(b, "sliding_window", "attention.sliding_window", 4096, 1, INT32_MAX), 4);
    lm_rope_spec s = lm_rope_read(b, NULL, 1e4, 1.0);
    for (uint32_t l = 0; l < h->n_layers; l++)
        if (h->layer[l].window) lm_rope_layer(b, l, &s);
    if (!b->gguf) h->attn_bias = h->o_bias = lm_cfg_bool(b, "attention_bias", NULL, false), h->mlp_bias = 0;
}

const lm_arch lm_arch_cohere2 = {
    .name = "cohere2",
    .model_types = (const char *const[]){"cohere2", NULL},
    .gguf = "cohere2",
    .nullable = "num_key_value_heads",
    .ignored = ignored,
    .norm = LM_NORM_LAYER,
    .parallel = true,
    .rope_interleaved = true,
    .tied_default = true,
    .eps_key = "layer_norm_eps",
    .eps_default = 1e-5,
    .params = params,
};
