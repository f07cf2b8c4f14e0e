/* Llama 1–3, TinyLlama, SmolLM, Mistral and Mixtral: RMS norm, grouped queries, half-split rope (llama3 scaling), gated SiLU, one block
 * shape; Mistral adds a window on every layer, Mixtral experts. All three share GGUF's "llama". */
#include "arch/common/arch.h"
#include <string.h>

static const lm_name names[] = {
    {"moe.router", "model.layers.{l}.block_sparse_moe.gate|model.layers.{l}.mlp.gate", "blk.{l}.ffn_gate_inp"},
    {"moe.gate", "model.layers.{l}.block_sparse_moe.experts.{e}.w1", "blk.{l}.ffn_gate_exps"},
    {"moe.up", "model.layers.{l}.block_sparse_moe.experts.{e}.w3", "blk.{l}.ffn_up_exps"},
    {"moe.down", "model.layers.{l}.block_sparse_moe.experts.{e}.w2", "blk.{l}.ffn_down_exps"},
    {NULL, NULL, NULL},
};

static void experts(lm_b *b) {
    lm_hparams *h = &b->hp;
    uint32_t n = lm_cfg_u32(b, "num_local_experts", "expert_count", b->gguf ? 0 : 8, 0, 4096);
    if (!n) {
        lm_cfg_ignore(b, NULL, "expert_used_count");
        return;
    }
    uint32_t k = lm_cfg_u32(b, "num_experts_per_tok", "expert_used_count", b->gguf ? LM_REQUIRED : 2, 1, n);
    h->moe = (lm_moe_hp){.n = n,
                         .k = k,
                         .ffn = lm_cfg_u32(b, NULL, "expert_feed_forward_length", h->ffn, 1, 1 << 20),
                         .score = LM_ROUTE_SOFTMAX,
                         .renorm = true,
                         .scale = 1.0};
    for (uint32_t l = 0; l < h->n_layers; l++) h->layer[l].moe = true;
}

static void params(lm_b *b) {
    lm_hparams *h = &b->hp;
    bool mixtral = !strcmp(b->arch->name, "mixtral"), mistral = !strcmp(b->arch->name, "mistral");
    lm_rope_all(b, mixtral ? 1e6 : 1e4, 1.0);
    if (b->gguf || mixtral) experts(b);
    /* an absent key means Mistral's class default; null, no window */
    bool absent = mistral && !lm_meta_get(&b->src->meta, "sliding_window") && !lm_meta_get(&b->src->meta, "text_config.sliding_window");
    if (b->gguf || mistral || mixtral) {
        uint32_t w = lm_cfg_u32(b, "sliding_window", "attention.sliding_window", absent ? 4096 : 0, b->gguf ? 0 : 1, INT32_MAX);
        for (uint32_t l = 0; l < h->n_layers; l++) h->layer[l].window = w;
    }
    if (!b->gguf) {
        h->attn_bias = h->o_bias = !mistral && !mixtral && lm_cfg_bool(b, "attention_bias", NULL, false);
        h->mlp_bias = !mistral && !mixtral && lm_cfg_bool(b, "mlp_bias", NULL, false);
    }
}

const lm_arch lm_arch_llama = {
    .name = "llama",
    .model_types = (const char *const[]){"llama", NULL},
    .nullable = "head_dim|num_key_value_heads",
    .gguf = "llama",
    .gguf_permuted_qk = true,
    .bf16 = {.known = true, .norm_cast_first = true},
    .params = params,
};
const lm_arch lm_arch_mistral = {
    .name = "mistral",
    .model_types = (const char *const[]){"mistral", NULL},
    .nullable = "head_dim|sliding_window",
    .gguf = "llama",
    .gguf_alias = true,
    .gguf_permuted_qk = true,
    .bf16 = {.known = true, .norm_cast_first = true},
    .params = params,
};
const lm_arch lm_arch_mixtral = {
    .name = "mixtral",
    .model_types = (const char *const[]){"mixtral", NULL},
    .nullable = "head_dim|sliding_window",
    .gguf = "llama",
    .gguf_alias = true,
    .gguf_permuted_qk = true,
    .names = names,
    .eps_default = 1e-5,
    .params = params,
};
