/* gpt-oss: sinks, windows on every other layer, yarn without truncation, experts in MXFP4 with biases and the clamped SwiGLU. In HF the
 * experts' gate and up rows alternate (even, odd); GGUF holds them apart. */
#include "arch/common/arch.h"

static const lm_name names[] = {
    {"attn.sinks", "model.layers.{l}.self_attn.sinks", "blk.{l}.attn_sinks"},
    {"ffn.norm", "model.layers.{l}.post_attention_layernorm", "blk.{l}.post_attention_norm"},
    {"moe.router", "model.layers.{l}.mlp.router", "blk.{l}.ffn_gate_inp"},
    {NULL, NULL, NULL},
};
static const char *const ignored[] = {"initial_context_length", "experts_per_token", "hidden_act", NULL};

static void params(lm_b *b) {
    lm_hparams *h = &b->hp;
    if (!lm_cfg_has(b, "head_dim", "attention.key_length"))
        for (uint32_t l = 0; l < h->n_layers; l++) h->layer[l].dk = h->layer[l].dv = 64, h->layer[l].scale = 0.125;
    lm_rope_spec s = lm_rope_read(b, NULL, 150000.0, 1.0);
    bool given = lm_cfg_has(b, "rope_scaling.rope_type|rope_scaling.type|rope_parameters.rope_type", "rope.scaling.type");
    if (!given) s.type = "yarn", s.factor = 32.0, s.original = 4096;
    s.truncate = b->gguf ? lm_cfg_bool(b, "rope_truncate", NULL, false) : given && s.truncate;
    for (uint32_t l = 0; l < h->n_layers && lm_graph_ok(&b->g); l++) lm_rope_layer(b, l, &s);
    lm_windows(b, lm_cfg_u32(b, "sliding_window", "attention.sliding_window", 128, 1, INT32_MAX), 2);
    uint32_t n = lm_cfg_u32(b, "num_local_experts", "expert_count", 128, 1, 4096);
    h->moe = (lm_moe_hp){.n = n,
                         .k = lm_cfg_u32(b, "num_experts_per_tok", "expert_used_count", 4, 1, n),
                         .ffn = lm_cfg_u32(b, NULL, "expert_feed_forward_length", h->ffn, 1, 1 << 20),
                         .score = LM_ROUTE_SOFTMAX_TOPK,
                         .scale = 1.0,
                         .act = LM_ACT_SWIGLU_OAI,
                         .limit = lm_cfg_f64(b, "swiglu_limit", NULL, 7.0),
                         .alpha = lm_cfg_f64(b, "swiglu_alpha", NULL, 1.702)};
    if (!(h->moe.limit > 0.0)) lm_graph_fail(&b->g, LM_RANGE, "swiglu_limit", "is %g; it must be above 0", h->moe.limit);
    h->attn_bias = h->o_bias = lm_cfg_bool(b, "attention_bias", NULL, true);
}

static lm_val attention(lm_b *b, uint32_t l, lm_val x) {
    const lm_layer_hp *a = &b->hp.layer[l];
    lm_val q = lm_linear(b, "attn.q", x, (uint64_t)a->heads * a->dk, b->hp.attn_bias, false),
           k = lm_linear(b, "attn.k", x, (uint64_t)a->kv_heads * a->dk, b->hp.attn_bias, false);
    lm_val v = lm_linear(b, "attn.v", x, (uint64_t)a->kv_heads * a->dv, b->hp.attn_bias, false);
    uint32_t sinks = lm_has(b, "attn.sinks") ? lm_vec_of(b, "attn.sinks", ".weight", a->heads, false, true) : LM_NONE;
    if (sinks == LM_NONE) sinks = lm_vec_of(b, "attn.sinks", "", a->heads, false, false);
    return lm_linear(b, "attn.o", lm_attention_core(b, l, q, k, v, sinks), b->hp.hidden, b->hp.o_bias, true);
}

static lm_val ffn(lm_b *b, uint32_t l, lm_val x) {
    (void)l;
    const lm_moe_hp *m = &b->hp.moe;
    lm_op r = lm_op_blank(), e = lm_op_blank();
    uint64_t h = b->hp.hidden, f = m->ffn;
    r.a = lm_linear(b, "moe.router", x, m->n, 1, false);
    r.route.n = m->n;
    r.route.k = m->k;
    r.route.groups = r.route.topk_groups = 1;
    r.route.score = m->score;
    r.route.scale = 1.0;
    e.a = x;
    e.b = lm_op_custom(&b->g, LM_OP_ROUTE, "moe.route", 2 * m->k, &r);
    if (b->gguf) {
        e.w = lm_mat_stack(b, "moe.gate", m->n, f, h, f, (lm_part){0});
        e.w2 = lm_mat_stack(b, "moe.up", m->n, f, h, f, (lm_part){0});
        e.w3 = lm_mat_stack(b, "moe.down", m->n, h, f, h, (lm_part){0});
        e.v = lm_vec_part(b, "moe.gate", ".bias", m->n, f, f, (lm_part){0}, false);
        e.v2 = lm_vec_part(b, "moe.up", ".bias", m->n, f, f, (lm_part){0}, false);
        e.v3 = lm_vec_part(b, "moe.down", ".bias", m->n, h, h, (lm_part){0}, false);
    } else {
        lm_part even = {.step = 2}, odd = {.base = 1, .step = 2};
        e.w = lm_mat_stack(b, "moe.gate_up", m->n, 2 * f, h, f, even);
        e.w2 = lm_mat_stack(b, "moe.gate_up", m->n, 2 * f, h, f, odd);
        e.w3 = lm_mat_stack(b, "moe.down_all", m->n, h, f, h, (lm_part){0});
        e.v = lm_vec_part(b, "moe.gate_up", "_bias", m->n, 2 * f, f, even, false);
        e.v2 = lm_vec_part(b, "moe.gate_up", "_bias", m->n, 2 * f, f, odd, false);
        e.v3 = lm_vec_part(b, "moe.down_all", "_bias", m->n, h, h, (lm_part){0}, false);
    }
    e.experts.n = m->n;
    e.experts.k = m->k;
    e.experts.act = m->act;
    e.experts.limit = m->limit;
    e.experts.alpha = m->alpha;
    lm_graph_trait(&b->g, 1, "experts, %u of %u", m->k, m->n);
    lm_graph_trait(&b->g, 1, "clamped SwiGLU, limit %g", m->limit);
    return lm_op_custom(&b->g, LM_OP_EXPERTS, "moe.out", b->hp.hidden, &e);
}

const lm_arch lm_arch_gpt_oss = {
    .name = "gpt_oss",
    .model_types = (const char *const[]){"gpt_oss", NULL},
    .gguf = "gpt-oss",
    .names = names,
    .ignored = ignored,
    .eps_default = 1e-5,
    .params = params,
    .attention = attention,
    .ffn = ffn,
};
