/* Llama 1–3, TinyLlama, SmolLM and everything of that shape: RMS norm, grouped queries, half-split rope (llama3 scaling), gated SiLU. */
#include "arch/common/arch.h"

static void params(lm_b *b) {
    lm_hparams *h = &b->hp;
    lm_rope_spec spec = lm_rope_read(b, NULL, 10000.0, 1.0);
    uint32_t n_rot, rope = lm_rope_table(b, &spec, h->head_dim, &n_rot);
    for (uint32_t l = 0; l < h->n_layers; l++) {
        h->layer[l].rope = rope;
        h->layer[l].n_rot = n_rot;
    }
    if (!b->gguf) {
        h->attn_bias = h->o_bias = lm_cfg_bool(b, "attention_bias", NULL, false);
        h->mlp_bias = lm_cfg_bool(b, "mlp_bias", NULL, false);
    }
}

const lm_arch lm_arch_llama = {
    .name = "llama",
    .model_types = (const char *const[]){"llama", NULL},
    .gguf = "llama",
    .gguf_permuted_qk = true,
    .params = params,
};
