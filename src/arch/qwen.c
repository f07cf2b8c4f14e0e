/* Qwen2/2.5 (biases on q, k, v), Qwen3 (QK-norm per head) and Qwen3-MoE (dense and sparse layers). */
#include "arch/common/arch.h"
#include <string.h>

/* The window is off unless use_sliding_window; then it holds from max_window_layers on (Qwen3-MoE: everywhere). */
static void windows(lm_b *b, bool everywhere) {
    bool on = lm_cfg_bool(b, "use_sliding_window", NULL, false);
    uint32_t w = lm_cfg_u32(b, "sliding_window", "attention.sliding_window", 4096, 0, INT32_MAX);
    uint32_t from = lm_cfg_u32(b, "max_window_layers", NULL, 28, 0, INT32_MAX);
    bool listed = lm_cfg_has(b, "layer_types", NULL) && !everywhere; /* whose class has no such list */
    if (listed) lm_windows(b, on ? w : 0, 0);
    for (uint32_t l = 0; l < b->hp.n_layers && on && !listed; l++) b->hp.layer[l].window = everywhere || l >= from ? w : 0;
}

static void experts(lm_b *b) {
    lm_hparams *h = &b->hp;
    uint32_t n = lm_cfg_u32(b, "num_experts", "expert_count", 128, 0, 4096),
             k = lm_cfg_u32(b, "num_experts_per_tok", "expert_used_count", 8, 1, 4096);
    uint32_t step = lm_cfg_u32(b, "decoder_sparse_step", NULL, 1, 1, 512);
    h->moe = (lm_moe_hp){.n = n,
                         .k = k,
                         .ffn = lm_cfg_u32(b, "moe_intermediate_size", "expert_feed_forward_length", 768, 1, 1 << 20),
                         .score = LM_ROUTE_SOFTMAX,
                         .renorm = lm_cfg_bool(b, "norm_topk_prob", NULL, b->gguf),
                         .scale = 1.0};
    for (uint32_t l = 0; l < h->n_layers; l++) h->layer[l].moe = n && (l + 1) % step == 0;
    const lm_value *only = lm_cfg_raw(b, "mlp_only_layers", NULL);
    for (uint64_t i = 0; only && only->kind == LM_V_ARRAY && only->elem == LM_V_INT && i < only->arr.n; i++) {
        int64_t l = ((const int64_t *)only->arr.data)[i];
        if (l >= 0 && l < h->n_layers) h->layer[l].moe = false;
    }
}

static void params(lm_b *b) {
    lm_hparams *h = &b->hp;
    bool moe = !strcmp(b->arch->name, "qwen3_moe"), qwen2 = !strcmp(b->arch->name, "qwen2");
    if (!strcmp(b->arch->name, "qwen3") && !b->gguf && !lm_cfg_has(b, "head_dim", NULL)) /* the class default, not hidden / heads */
        for (uint32_t l = 0; l < h->n_layers; l++) h->layer[l].dk = h->layer[l].dv = 128, h->layer[l].scale = 1.0 / sqrt(128.0);
    lm_rope_all(b, 1e4, 1.0);
    windows(b, moe);
    if (moe) experts(b);
    if (qwen2)
        h->attn_bias = 1, h->o_bias = h->mlp_bias = 0;
    else if (!b->gguf)
        h->attn_bias = h->o_bias = lm_cfg_bool(b, "attention_bias", NULL, false), h->mlp_bias = 0;
}

const lm_arch lm_arch_qwen2 = {
    .name = "qwen2",
    .model_types = (const char *const[]){"qwen2", NULL},
    .nullable = "sliding_window|num_key_value_heads",
    .gguf = "qwen2",
    .bf16 = {.known = true, .norm_cast_first = true},
    .params = params,
};
const lm_arch lm_arch_qwen3 = {
    .name = "qwen3",
    .model_types = (const char *const[]){"qwen3", NULL},
    .nullable = "sliding_window|num_key_value_heads",
    .gguf = "qwen3",
    .qk_norm = LM_QK_HEAD,
    .bf16 = {.known = true, .norm_cast_first = true},
    .params = params,
};
const lm_arch lm_arch_qwen3_moe = {
    .name = "qwen3_moe",
    .model_types = (const char *const[]){"qwen3_moe", NULL},
    .nullable = "sliding_window",
    .gguf = "qwen3moe",
    .qk_norm = LM_QK_HEAD,
    .params = params,
};
