/* GPT-2: learned positions, LayerNorm with bias, one fused q|k|v projection, GELU. HF stores its matrices [in, out]; GGUF [out, in]. */
#include "arch/common/arch.h"

static const lm_name names[] = {
    {"embed", "model.wte", "token_embd"},
    {"positions", "model.wpe", "position_embd"},
    {"norm", "model.ln_f", "output_norm"},
    {"attn.norm", "model.h.{l}.ln_1", "blk.{l}.attn_norm"},
    {"attn.qkv", "model.h.{l}.attn.c_attn", "blk.{l}.attn_qkv"},
    {"attn.o", "model.h.{l}.attn.c_proj", "blk.{l}.attn_output"},
    {"ffn.norm", "model.h.{l}.ln_2", "blk.{l}.ffn_norm"},
    {"ffn.up", "model.h.{l}.mlp.c_fc", "blk.{l}.ffn_up"},
    {"ffn.down", "model.h.{l}.mlp.c_proj", "blk.{l}.ffn_down"},
    {NULL, NULL, NULL},
};
static const char *const ignored[] = {"reorder_and_upcast_attn", NULL};

static lm_val conv1d(lm_b *b, const char *role, lm_val x, uint64_t rows, bool split) {
    if (!lm_graph_ok(&b->g)) return LM_NONE;
    uint64_t cols = lm_width(&b->g, x);
    uint32_t w = b->gguf ? lm_mat(b, role, rows, cols) : lm_mat_transposed(b, role, rows, cols);
    return lm_op_linear(&b->g, role, x, w, lm_vec_of(b, role, ".bias", rows, false, false), split);
}

static void params(lm_b *b) {
    lm_hparams *h = &b->hp;
    if (!h->ffn) h->ffn = lm_cfg_u32(b, "n_inner", "feed_forward_length", 4 * (int64_t)h->hidden, 1, 1 << 20);
    bool scaled = lm_cfg_bool(b, "scale_attn_weights", NULL, true),
         by_layer = lm_cfg_bool(b, "scale_attn_by_inverse_layer_idx", NULL, false);
    lm_cfg_expect_bool(b, "add_cross_attention", NULL, false);
    h->kv_heads = h->heads; /* GPT-2 knows no groups, whatever the config says */
    for (uint32_t l = 0; l < h->n_layers; l++) {
        h->layer[l].kv_heads = h->layer[l].heads;
        h->layer[l].scale = (scaled ? 1.0 / sqrt((double)h->head_dim) : 1.0) / (by_layer ? l + 1 : 1);
        h->layer[l].ffn = h->ffn;
    }
}

static lm_val embed(lm_b *b) {
    lm_val t = lm_op_embed(&b->g, "embed.lookup", lm_mat(b, "embed", b->hp.vocab, b->hp.hidden), false);
    lm_val p = lm_op_embed(&b->g, "embed.position", lm_mat(b, "positions", b->hp.max_position, b->hp.hidden), true);
    lm_graph_trait(&b->g, 2, "learned positions, %u", b->hp.max_position);
    return lm_op_add(&b->g, "embed", t, p);
}

static lm_val attention(lm_b *b, uint32_t l, lm_val x) {
    uint32_t h = b->hp.hidden;
    lm_val qkv = conv1d(b, "attn.qkv", x, 3 * (uint64_t)h, false);
    lm_val q = lm_op_slice(&b->g, "attn.q", qkv, 0, h, 1, h), k = lm_op_slice(&b->g, "attn.k", qkv, h, h, 1, h),
           v = lm_op_slice(&b->g, "attn.v", qkv, 2 * h, h, 1, h);
    return conv1d(b, "attn.o", lm_attention_core(b, l, q, k, v, LM_NONE), h, true);
}

static lm_val ffn(lm_b *b, uint32_t l, lm_val x) {
    lm_val u = lm_op_act(&b->g, "ffn.act", conv1d(b, "ffn.up", x, b->hp.layer[l].ffn, false), b->hp.act);
    return conv1d(b, "ffn.down", u, b->hp.hidden, true);
}

const lm_arch lm_arch_gpt2 = {
    .name = "gpt2",
    .model_types = (const char *const[]){"gpt2", NULL},
    .nullable = "head_dim|num_key_value_heads|n_inner",
    .gguf = "gpt2",
    .names = names,
    .ignored = ignored,
    .norm = LM_NORM_LAYER,
    .norm_bias = true,
    .tied_default = true,
    .eps_key = "layer_norm_epsilon",
    .eps_default = 1e-5,
    .act_key = "activation_function",
    .act_default = LM_ACT_GELU_TANH,
    .params = params,
    .embed = embed,
    .attention = attention,
    .ffn = ffn,
};
