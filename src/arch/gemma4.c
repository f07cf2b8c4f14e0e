/* Gemma 4: full and windowed layers of different head sizes, a scalar on each layer's output, "proportional" rope; in some sizes keys that
 * are also the values, per-layer inputs, caches shared by the last layers, and a mixture of experts beside the dense FFN. */
#include "arch/common/gemma.h"
#include <stdio.h>
#include <string.h>

typedef struct gemma4 {
    uint32_t layer_input, layer_input_table; /* width (0: none) and rows */
    lm_val layer_inputs;
    bool k_is_v, moe;
} gemma4;

static const lm_name names[] = {
    {"attn.post_norm", "model.layers.{l}.post_attention_layernorm", "blk.{l}.post_attention_norm"},
    {"ffn.norm", "model.layers.{l}.pre_feedforward_layernorm", "blk.{l}.ffn_norm"},
    {"ffn.own_norm", "model.layers.{l}.post_feedforward_layernorm_1", "blk.{l}.post_ffw_norm_1"},
    {"moe.norm", "model.layers.{l}.pre_feedforward_layernorm_2", "blk.{l}.pre_ffw_norm_2"},
    {"moe.post_norm", "model.layers.{l}.post_feedforward_layernorm_2", "blk.{l}.post_ffw_norm_2"},
    {"moe.router", "model.layers.{l}.router.proj", "blk.{l}.ffn_gate_inp"},
    {"moe.router_norm", "model.layers.{l}.router.scale", "blk.{l}.ffn_gate_inp.scale"},
    {"moe.expert_scale", "model.layers.{l}.router.per_expert_scale", "blk.{l}.ffn_down_exps.scale"},
    {"moe.gate_up", "model.layers.{l}.experts.gate_up_proj", "blk.{l}.ffn_gate_up_exps"},
    {"moe.down_all", "model.layers.{l}.experts.down_proj", NULL},
    {"moe.gate", "model.layers.{l}.experts.{e}.gate_proj", "blk.{l}.ffn_gate_exps"},
    {"moe.up", "model.layers.{l}.experts.{e}.up_proj", "blk.{l}.ffn_up_exps"},
    {"moe.down", "model.layers.{l}.experts.{e}.down_proj", "blk.{l}.ffn_down_exps"},
    {"layer_scalar", "model.layers.{l}.layer_scalar", "blk.{l}.layer_output_scale"},
    LM_GEMMA_LAYER_INPUT_NAMES,
    {NULL, NULL, NULL},
};

/* ---- parameters ------------------------------------------------------------------------------------------------------------------*/
static bool has_layer_config(lm_b *b) {
    char key[96];
    size_t n = (size_t)snprintf(key, sizeof key, "%sper_layer_config.", b->prefix);
    for (uint32_t i = 0; i < b->src->meta.n; i++)
        if (!strncmp(b->src->meta.entry[i].key, key, n)) return true;
    return false;
}

/* Full layers have heads of their own size, and where keys are values a number of them. transformers writes this as per_layer_config when
 * it saves a model; published configs give the two numbers. */
static void geometry_hf(lm_b *b, gemma4 *o) {
    lm_hparams *h = &b->hp;
    bool listed = has_layer_config(b);
    uint32_t dim = lm_cfg_u32(b, "global_head_dim", NULL, 512, 1, 1 << 16),
             kv = lm_cfg_u32(b, "num_global_key_value_heads", NULL, 0, 1, 1 << 16);
    for (uint32_t l = 0; l < h->n_layers; l++) {
        lm_layer_hp *a = &h->layer[l];
        if (listed) {
            char dim_key[64], kv_key[64];
            snprintf(dim_key, sizeof dim_key, "per_layer_config.%u.head_dim", l);
            snprintf(kv_key, sizeof kv_key, "per_layer_config.%u.num_key_value_heads", l);
            a->dk = a->dv = lm_cfg_u32(b, dim_key, NULL, a->dk, 1, 1 << 16);
            a->kv_heads = lm_cfg_u32(b, kv_key, NULL, a->kv_heads, 1, 1 << 16);
        } else if (!a->window) {
            a->dk = a->dv = dim;
            if (o->k_is_v && kv) a->kv_heads = kv;
        }
        if (h->heads % a->kv_heads)
            lm_graph_fail(&b->g, LM_FORMAT, "num_global_key_value_heads", "%u key/value heads of layer %u don't divide %u heads",
                          a->kv_heads, l, h->heads);
    }
}

/* GGUF gives the full layers' size as the plain keys, the windowed ones' with _swa, and the number of heads per layer. */
static void geometry_gguf(lm_b *b) {
    lm_hparams *h = &b->hp;
    uint32_t dk = lm_cfg_u32(b, NULL, "attention.key_length_swa", h->layer[0].dk, 1, 1 << 16),
             dv = lm_cfg_u32(b, NULL, "attention.value_length_swa", dk, 1, 1 << 16);
    for (uint32_t l = 0; l < h->n_layers; l++)
        if (h->layer[l].window) h->layer[l].dk = dk, h->layer[l].dv = dv;
}

static lm_rope_spec rope_hf(lm_b *b, const char *layer_type, const char *keys, const lm_rope_spec *absent) {
    if (!lm_cfg_has(b,
                    "rope_parameters.full_attention.rope_type|rope_parameters.sliding_attention.rope_type|rope_parameters.full_attention."
                    "rope_theta|rope_parameters.sliding_attention.rope_theta",
                    NULL))
        return *absent;
    if (!lm_cfg_has(b, keys, NULL)) lm_graph_fail(&b->g, LM_FORMAT, "rope_parameters", "has nothing for '%s'", layer_type);
    lm_rope_spec s = lm_rope_read(b, layer_type, NAN, 1.0);
    if (!strcmp(s.type, "default")) s.partial = 1.0; /* only the scaled kinds are partial here */
    return s;
}

static void ropes(lm_b *b) {
    lm_hparams *h = &b->hp;
    lm_cfg_not_null(b, "rope_scaling"); /* which its class takes for rope_parameters, and then has none */
    lm_rope_spec full = {.type = "proportional", .theta = 1e6, .partial = 0.25, .factor = 1.0, .attention_factor = NAN};
    lm_rope_spec local = {.type = "default", .theta = 1e4, .partial = 1.0, .factor = 1.0, .attention_factor = NAN};
    if (b->gguf) {
        full = lm_rope_read(b, NULL, 1e6, 1.0);
        if (!full.short_factor)
            lm_graph_fail(&b->g, LM_FORMAT, "rope_freqs.weight",
                          "the tensor is missing: the full layers' partial rotation is written in it");
        local.theta = lm_cfg_f64(b, NULL, "rope.freq_base_swa", 1e4);
        local.dims = lm_cfg_u32(b, NULL, "rope.dimension_count_swa", 0, 0, 1 << 16);
    } else {
        full = rope_hf(b, "full_attention", "rope_parameters.full_attention.rope_type|rope_parameters.full_attention.rope_theta", &full);
        local = rope_hf(b, "sliding_attention", "rope_parameters.sliding_attention.rope_type|rope_parameters.sliding_attention.rope_theta",
                        &local);
    }
    for (uint32_t l = 0; l < h->n_layers; l++) lm_rope_layer(b, l, h->layer[l].window ? &local : &full);
    lm_graph_trait(&b->g, 2, "two rope bases, %g and %g", full.theta, local.theta);
}

static void experts(lm_b *b, gemma4 *o, bool unified) {
    lm_moe_hp *m = &b->hp.moe;
    o->moe = b->gguf ? lm_cfg_has(b, NULL, "expert_count") : lm_cfg_bool(b, "enable_moe_block", NULL, false);
    if (unified && o->moe) lm_graph_fail(&b->g, LM_UNSUPPORTED, "enable_moe_block", "is true, but gemma4_unified has no experts");
    int64_t need = o->moe ? LM_REQUIRED : 0;
    m->n = lm_cfg_u32(b, "num_experts", "expert_count", need, 0, 1 << 16);
    m->k = lm_cfg_u32(b, "top_k_experts", "expert_used_count", need, 0, 1 << 16);
    m->ffn = lm_cfg_u32(b, "moe_intermediate_size", "expert_feed_forward_length", need, 0, 1 << 24);
    m->score = LM_ROUTE_SOFTMAX;
    m->renorm = true;
    o->moe = o->moe && (!b->gguf || m->n);
}

static void params(lm_b *b, bool unified) {
    lm_hparams *h = &b->hp;
    gemma4 *o = b->own = lm_arena_calloc(b->g.p->arena, 1, sizeof *o);
    if (!o) {
        lm_graph_fail(&b->g, LM_NOMEM, "program", "out of memory building the program");
        return;
    }
    h->embed_scale = sqrt((double)h->hidden);
    h->final_softcap = lm_gemma_softcap(b, "final_logit_softcapping", "final_logit_softcapping", 0.0);
    if (!b->gguf) h->attn_bias = h->o_bias = lm_cfg_bool(b, "attention_bias", NULL, false), h->mlp_bias = 0;
    lm_cfg_expect_str(b, "use_bidirectional_attention", NULL, "vision"); /* which concerns images */
    o->k_is_v = lm_cfg_bool(b, "attention_k_eq_v", NULL, false);
    o->layer_input = lm_cfg_u32(b, "hidden_size_per_layer_input", "embedding_length_per_layer_input", unified || b->gguf ? 0 : 256, 0,
                                unified ? 0 : 1 << 16);
    o->layer_input_table = lm_cfg_u32(b, "vocab_size_per_layer_input", NULL, b->gguf ? h->vocab : 262144, 1, 1 << 24);
    if (o->layer_input && o->layer_input_table < h->vocab)
        lm_graph_fail(&b->g, LM_FORMAT, "vocab_size_per_layer_input", "is %u, less than the vocabulary of %u", o->layer_input_table,
                      h->vocab);
    experts(b, o, unified);
    lm_gemma_defaults(b, 4, 256, 9216);
    lm_windows(b, lm_cfg_u32(b, "sliding_window", "attention.sliding_window", unified ? 1024 : 512, 1, INT32_MAX), 6);
    if (!lm_graph_ok(&b->g)) return;
    if (!b->gguf) h->layer[h->n_layers - 1].window = 0; /* the last layer is full whatever the list says */
    if (b->gguf)
        geometry_gguf(b);
    else
        geometry_hf(b, o);
    uint32_t shared = lm_cfg_u32(b, "num_kv_shared_layers", "attention.shared_kv_layers", 0, 0, h->n_layers - 1);
    lm_gemma_share_kv(b, shared);
    if (lm_cfg_bool(b, "use_double_wide_mlp", NULL, false) && shared) {
        for (uint32_t l = h->n_layers - shared; l < h->n_layers; l++) h->layer[l].ffn *= 2;
        lm_graph_trait(&b->g, 1, "double-wide FFN of %u layers", shared);
    }
    ropes(b);
}
static void params_gemma4(lm_b *b) { params(b, false); }
static void params_unified(lm_b *b) { params(b, true); }

/* ---- the program -----------------------------------------------------------------------------------------------------------------*/
static lm_val embed(lm_b *b) {
    gemma4 *o = b->own;
    lm_val x = lm_embed(b);
    if (o->layer_input) o->layer_inputs = lm_gemma_layer_inputs(b, x, o->layer_input, o->layer_input_table, false);
    return x;
}

/* The router sees the residual stream by a norm of its own, the experts by another; h: the dense FFN's output. */
static lm_val add_experts(lm_b *b, lm_val x, lm_val h) {
    lm_graph *g = &b->g;
    const lm_hparams *p = &b->hp;
    lm_val r = lm_op_norm(g, "moe.router_norm", x, LM_NORM_RMS, 1, p->eps,
                          lm_vec_of(b, "moe.router_norm", ".weight", p->hidden, false, false), LM_NONE);
    r = lm_op_scale(g, "moe.router_input", r, 1.0 / sqrt((double)p->hidden));
    r = lm_linear(b, "moe.router", r, p->moe.n, 0, false);
    lm_val e = lm_experts(b, r, lm_norm_of(b, "moe.norm", x), lm_vec_of(b, "moe.expert_scale", ".weight", p->moe.n, false, false));
    e = lm_norm_of(b, "moe.post_norm", e);
    return lm_op_add(g, "moe.sum", lm_norm_of(b, "ffn.own_norm", h), e);
}

static lm_val layer(lm_b *b, uint32_t l, lm_val x) {
    gemma4 *o = b->own;
    lm_graph *g = &b->g;
    const lm_layer_hp *a = &b->hp.layer[l];
    bool k_is_v = b->gguf ? !lm_has(b, "attn.v") : o->k_is_v && !a->window;
    lm_val y = lm_gemma_attention(b, l, lm_norm_of(b, "attn.norm", x), k_is_v);
    x = lm_op_add(g, "attn.residual", x, lm_norm_of(b, "attn.post_norm", y));
    y = lm_ffn_dense(b, "ffn.gate", "ffn.up", "ffn.down", lm_norm_of(b, "ffn.norm", x), a->ffn);
    if (o->moe) y = add_experts(b, x, y);
    x = lm_op_add(g, "ffn.residual", x, lm_norm_of(b, "ffn.post_norm", y));
    if (o->layer_input) x = lm_op_add(g, "layer_input.residual", x, lm_gemma_layer_input(b, l, x, o->layer_inputs, o->layer_input));
    return lm_op_scale_vec(g, "out", x, lm_vec_of(b, "layer_scalar", ".weight", 1, false, false));
}

/* The plain keys are the full layers'. */
static void to_gguf(lm_b *b) {
    const lm_hparams *h = &b->hp;
    const gemma4 *o = b->own;
    lm_gemma_to_gguf(b);
    lm_export_u32(b, "embedding_length_per_layer_input", o->layer_input); /* both wanted by llama.cpp, 0 too */
    uint32_t shared = 0;
    for (uint32_t l = 0; l < h->n_layers; l++) shared += h->layer[l].kv_from >= 0;
    lm_export_u32(b, "attention.shared_kv_layers", shared);
    for (uint32_t l = 0; l < h->n_layers; l++) {
        const lm_layer_hp *a = &h->layer[l];
        lm_export_u32(b, a->window ? "attention.key_length_swa" : "attention.key_length", a->dk);
        lm_export_u32(b, a->window ? "attention.value_length_swa" : "attention.value_length", a->dv);
        if (a->window) lm_export_u32(b, "rope.dimension_count_swa", a->n_rot);
    }
    lm_export_rope_freqs(b);
}

const lm_arch lm_arch_gemma4 = {
    .name = "gemma4",
    .model_types = (const char *const[]){"gemma4_text", "gemma4", NULL},
    .nullable = "final_logit_softcapping|num_global_key_value_heads|num_experts|top_k_experts|moe_intermediate_size",
    .gguf = "gemma4",
    .names = names,
    .qk_norm = LM_QK_HEAD,
    .tied_default = true,
    .partial_rope = true,
    .act_key = "hidden_activation",
    .act_default = LM_ACT_GELU_TANH,
    .params = params_gemma4,
    .embed = embed,
    .layer = layer,
    .to_gguf = to_gguf,
};
const lm_arch lm_arch_gemma4_unified = {
    .name = "gemma4_unified",
    .model_types = (const char *const[]){"gemma4_unified_text", "gemma4_unified", NULL},
    .nullable = "final_logit_softcapping|num_global_key_value_heads|num_experts|top_k_experts|moe_intermediate_size",
    .gguf = "gemma4",
    .gguf_alias = true,
    .names = names,
    .qk_norm = LM_QK_HEAD,
    .tied_default = true,
    .partial_rope = true,
    .act_key = "hidden_activation",
    .act_default = LM_ACT_GELU_TANH,
    .bf16 = {.known = true},
    .params = params_unified,
    .embed = embed,
    .layer = layer,
    .to_gguf = to_gguf,
};
