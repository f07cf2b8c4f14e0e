/* Granite 3: Llama with four multipliers: embedding, attention (in place of head_dim^−½), residual, and logits divided by a scale. */
#include "arch/common/arch.h"

static void params(lm_b *b) {
    lm_hparams *h = &b->hp;
    lm_rope_all(b, 1e4, 1.0);
    h->embed_scale = lm_cfg_f64(b, "embedding_multiplier", "embedding_scale", 1.0);
    h->residual_scale = lm_cfg_f64(b, "residual_multiplier", "residual_scale", 1.0);
    double logits = lm_cfg_f64(b, "logits_scaling", "logit_scale", 1.0),
           attn = lm_cfg_f64(b, "attention_multiplier", "attention.scale", 1.0);
    if (logits == 0.0) lm_graph_fail(&b->g, LM_RANGE, "logits_scaling", "is 0; logits are divided by it");
    if (attn <= 0.0)
        lm_graph_fail(&b->g, LM_RANGE, "attention_multiplier", "is %g; lemma's attention multiplies scores by a number above 0", attn);
    h->logit_scale = 1.0 / logits;
    for (uint32_t l = 0; l < h->n_layers; l++) h->layer[l].scale = attn;
    lm_graph_trait(&b->g, 1, "multipliers: embedding %g, residual %g, attention %g, logits 1/%g", h->embed_scale, h->residual_scale, attn,
                   logits);
    if (!b->gguf) {
        h->attn_bias = h->o_bias = lm_cfg_bool(b, "attention_bias", NULL, false);
        h->mlp_bias = lm_cfg_bool(b, "mlp_bias", NULL, false);
    }
}

const lm_arch lm_arch_granite = {
    .name = "granite",
    .model_types = (const char *const[]){"granite", NULL},
    .gguf = "granite",
    .nullable = "num_key_value_heads",
    .gguf_permuted_qk = true,
    .bf16 = {.known = true, .norm_cast_first = true, .embed_scale_wide = true},
    .params = params,
};
