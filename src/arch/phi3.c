/* Phi-3, Phi-3.5, Phi-4-mini: fused q|k|v and gate|up, longrope in two factor sets, optional partial rotary and window. */
#include "arch/common/arch.h"
#include <string.h>

static const lm_name names[] = {
    {"attn.qkv", "model.layers.{l}.self_attn.qkv_proj", "blk.{l}.attn_qkv"},
    {"ffn.gate_up", "model.layers.{l}.mlp.gate_up_proj", "blk.{l}.ffn_up"},
    {NULL, NULL, NULL},
};
static const char *const ignored[] = {"attention_bias", NULL};

static void params(lm_b *b) {
    lm_hparams *h = &b->hp;
    if (!b->gguf && !h->max_position) h->max_position = 4096; /* the class default; longrope's scale is a ratio of it */
    lm_rope_spec s = lm_rope_read(b, NULL, 1e4, 1.0);
    if (!strcmp(s.type, "su") || !strcmp(s.type, "yarn")) s.type = "longrope";
    if (!b->gguf && strcmp(s.type, "longrope") && strcmp(s.type, "default"))
        lm_graph_fail(&b->g, LM_UNSUPPORTED, "rope_scaling", "'%.40s' is nothing that phi3 in transformers knows", s.type);
    /* the class's own key wins over one inside rope_scaling */
    if (!b->gguf) s.original = lm_cfg_u32(b, "original_max_position_embeddings", NULL, s.original ? s.original : 4096, 1, INT32_MAX);
    for (uint32_t l = 0; l < h->n_layers && lm_graph_ok(&b->g); l++) lm_rope_layer(b, l, &s);
    uint32_t w = lm_cfg_u32(b, "sliding_window", "attention.sliding_window", 0, b->gguf ? 0 : 1, INT32_MAX);
    for (uint32_t l = 0; l < h->n_layers; l++) h->layer[l].window = w;
}

static lm_val part(lm_b *b, const char *fused, const char *name, lm_val x, uint64_t total, uint64_t base, uint64_t rows) {
    if (!lm_graph_ok(&b->g)) return LM_NONE;
    uint32_t w = lm_mat_part(b, fused, total, lm_width(&b->g, x), rows, (lm_part){.base = base});
    return lm_op_linear(&b->g, name, x, w, LM_NONE, false);
}

static lm_val attention(lm_b *b, uint32_t l, lm_val x) {
    const lm_layer_hp *a = &b->hp.layer[l];
    if (lm_has(b, "attn.q")) return lm_attention(b, l, x); /* some files hold them apart */
    uint64_t nq = (uint64_t)a->heads * a->dk, nk = (uint64_t)a->kv_heads * a->dk, nv = (uint64_t)a->kv_heads * a->dv, all = nq + nk + nv;
    lm_val q = part(b, "attn.qkv", "attn.q", x, all, 0, nq), k = part(b, "attn.qkv", "attn.k", x, all, nq, nk),
           v = part(b, "attn.qkv", "attn.v", x, all, nq + nk, nv);
    return lm_linear(b, "attn.o", lm_attention_core(b, l, q, k, v, LM_NONE), b->hp.hidden, 0, true);
}

static lm_val ffn(lm_b *b, uint32_t l, lm_val x) {
    uint64_t f = b->hp.layer[l].ffn;
    lm_val gate = part(b, "ffn.gate_up", "ffn.gate", x, 2 * f, 0, f), up = part(b, "ffn.gate_up", "ffn.up", x, 2 * f, f, f);
    return lm_linear(b, "ffn.down", lm_op_gated(&b->g, "ffn.act", gate, up, b->hp.act, 0.0, 0.0), b->hp.hidden, 0, true);
}

const lm_arch lm_arch_phi3 = {
    .name = "phi3",
    .model_types = (const char *const[]){"phi3", NULL},
    .nullable = "sliding_window|attention_bias|num_key_value_heads",
    .gguf = "phi3",
    .names = names,
    .partial_rope = true,
    .ignored = ignored,
    .eps_default = 1e-5,
    .bf16 = {.known = true, .norm_cast_first = true},
    .params = params,
    .attention = attention,
    .ffn = ffn,
};
