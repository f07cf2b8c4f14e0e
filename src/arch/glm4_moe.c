/* GLM-4.5/4.6: biased q, k, v, optional QK-norm, half of each head rotated, sigmoid routing with a correction bias and a shared expert. */
#include "arch/common/arch.h"

static const lm_name names[] = {
    {"ffn.norm", "model.layers.{l}.post_attention_layernorm", "blk.{l}.post_attention_norm"},
    {NULL, NULL, NULL},
};

static void params(lm_b *b) {
    lm_hparams *h = &b->hp;
    lm_rope_all(b, 1e4, 0.5);
    bool normed = b->gguf ? lm_has(b, "attn.q_norm") : lm_cfg_bool(b, "use_qk_norm", NULL, false);
    h->qk_norm = normed ? LM_QK_HEAD : LM_QK_NONE;
    uint32_t nextn = lm_cfg_u32(b, NULL, "nextn_predict_layers", 0, 0, 64);
    if (nextn < h->n_layers) h->n_layers -= nextn; /* GGUF counts them */
    uint32_t n = lm_cfg_u32(b, "n_routed_experts", "expert_count", 128, 1, 4096),
             dense = lm_cfg_u32(b, "first_k_dense_replace", "leading_dense_block_count", 1, 0, 512);
    uint32_t f = lm_cfg_u32(b, "moe_intermediate_size", "expert_feed_forward_length", 1408, 1, 1 << 20),
             shared = lm_cfg_u32(b, "n_shared_experts", "expert_shared_count", 1, 0, 256);
    if (lm_cfg_u32(b, NULL, "expert_gating_func", 2, 0, 16) != 2)
        lm_graph_fail(&b->g, LM_UNSUPPORTED, "expert_gating_func", "is not sigmoid (2)");
    h->moe = (lm_moe_hp){.n = n,
                         .k = lm_cfg_u32(b, "num_experts_per_tok", "expert_used_count", 8, 1, n),
                         .ffn = f,
                         .n_shared = shared,
                         .shared_ffn = f * shared,
                         .groups = lm_cfg_u32(b, "n_group", "expert_group_count", 1, 1, n),
                         .topk_groups = lm_cfg_u32(b, "topk_group", "expert_group_used_count", 1, 1, n),
                         .score = LM_ROUTE_SIGMOID,
                         .group = LM_GROUP_TOP2,
                         .renorm = lm_cfg_bool(b, "norm_topk_prob", "expert_weights_norm", true),
                         .scale = lm_cfg_f64(b, "routed_scaling_factor", "expert_weights_scale", 1.0),
                         .renorm_eps = 1e-20};
    if (h->moe.groups == 1) h->moe.group = LM_GROUP_NONE;
    for (uint32_t l = 0; l < h->n_layers; l++) h->layer[l].moe = l >= dense;
    if (!b->gguf) h->attn_bias = lm_cfg_bool(b, "attention_bias", NULL, false), h->o_bias = h->mlp_bias = 0;
}

const lm_arch lm_arch_glm4_moe = {
    .name = "glm4_moe",
    .model_types = (const char *const[]){"glm4_moe", NULL},
    .gguf = "glm4moe",
    .names = names,
    .partial_rope = true,
    .eps_default = 1e-5,
    .params = params,
};
