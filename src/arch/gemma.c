/* Gemma 2 and 3: embedding × √hidden, norms of 1 + w before and after each sublayer, windows on most layers, soft-caps (2), QK-norm and a
 * rope base of its own for the windowed layers (3). */
#include "arch/common/gemma.h"

static const lm_name names[] = {
    {"attn.post_norm", "model.layers.{l}.post_attention_layernorm", "blk.{l}.post_attention_norm"},
    {"ffn.norm", "model.layers.{l}.pre_feedforward_layernorm", "blk.{l}.ffn_norm"},
    {NULL, NULL, NULL},
};
static const char *const ignored[] = {"hidden_act", "attn_logit_softcapping", "_sliding_window_pattern", NULL};

/* q·k is scaled by query_pre_attn_scalar^−½; GGUF leaves it out: the head's size, but for one model of each generation. */
static void query_scale(lm_b *b, uint32_t odd_layers) {
    lm_hparams *h = &b->hp;
    double by_head = h->n_layers == odd_layers ? (double)h->hidden / h->heads : h->head_dim,
           s = lm_cfg_f64(b, "query_pre_attn_scalar", NULL, b->gguf ? by_head : 256.0);
    if (!(s > 0.0)) lm_graph_fail(&b->g, LM_RANGE, "query_pre_attn_scalar", "is %g; it must be positive", s);
    for (uint32_t l = 0; l < h->n_layers; l++) h->layer[l].scale = 1.0 / sqrt(s);
}

static void common(lm_b *b, uint32_t period, uint32_t odd_layers) {
    lm_hparams *h = &b->hp;
    h->embed_scale = sqrt((double)h->hidden);
    if (!lm_cfg_has(b, "head_dim", "attention.key_length"))
        for (uint32_t l = 0; l < h->n_layers; l++) h->layer[l].dk = h->layer[l].dv = h->head_dim = 256;
    query_scale(b, odd_layers);
    lm_windows(b, lm_cfg_u32(b, "sliding_window", "attention.sliding_window", 4096, 1, INT32_MAX), period);
    if (!b->gguf) h->attn_bias = h->o_bias = lm_cfg_bool(b, "attention_bias", NULL, false), h->mlp_bias = 0;
    lm_cfg_expect_bool(b, "use_bidirectional_attention", NULL, false);
}

static void params2(lm_b *b) {
    common(b, 2, 46);
    lm_rope_all(b, 1e4, 1.0);
    b->hp.attn_softcap = lm_gemma_softcap(b, "attn_logit_softcapping", "attn_logit_softcapping", 50.0);
    b->hp.final_softcap = lm_gemma_softcap(b, "final_logit_softcapping", "final_logit_softcapping", 30.0);
}

static void params3(lm_b *b) {
    lm_hparams *h = &b->hp;
    common(b, 6, 62);
    h->final_softcap = lm_gemma_softcap(b, "final_logit_softcapping", "final_logit_softcapping", 0.0);
    lm_gemma_rope_spelling(b);
    if (!b->gguf && lm_cfg_has(b, "rope_parameters.rope_theta|rope_parameters.rope_type", NULL))
        lm_graph_fail(&b->g, LM_UNSUPPORTED, "rope_parameters",
                      "is one set for every layer; %s has one for full_attention, one for sliding_attention", b->arch->name);
    bool nested = lm_cfg_has(b, "rope_parameters.full_attention.rope_theta", NULL) ||
                  lm_cfg_has(b, "rope_parameters.sliding_attention.rope_theta", NULL);
    lm_rope_spec full = lm_rope_read(b, nested ? "full_attention" : NULL, 1e6, 1.0);
    lm_rope_spec local = {.type = "default", .partial = 1.0, .factor = 1.0, .attention_factor = NAN, .dims = full.dims};
    if (nested)
        local = lm_rope_read(b, "sliding_attention", 1e4, 1.0);
    else
        local.theta = lm_cfg_f64(b, "rope_local_base_freq", "rope.freq_base_swa", 1e4);
    for (uint32_t l = 0; l < h->n_layers; l++) lm_rope_layer(b, l, h->layer[l].window ? &local : &full);
    lm_graph_trait(&b->g, 2, "two rope bases, %g and %g", full.theta, local.theta);
}

const lm_arch lm_arch_gemma2 = {
    .name = "gemma2",
    .model_types = (const char *const[]){"gemma2", NULL},
    .gguf = "gemma2",
    .nullable = "final_logit_softcapping",
    .names = names,
    .ignored = ignored,
    .norm_plus_one = true,
    .post_norm = true,
    .tied_default = true,
    .act_key = "hidden_activation",
    .act_default = LM_ACT_GELU_TANH,
    .bf16 = {.known = true},
    .params = params2,
};
const lm_arch lm_arch_gemma3 = {
    .name = "gemma3",
    .model_types = (const char *const[]){"gemma3_text", "gemma3", NULL},
    .gguf = "gemma3",
    .nullable = "final_logit_softcapping",
    .names = names,
    .ignored = ignored,
    .norm_plus_one = true,
    .post_norm = true,
    .qk_norm = LM_QK_HEAD,
    .tied_default = true,
    .act_key = "hidden_activation",
    .act_default = LM_ACT_GELU_TANH,
    .bf16 = {.known = true},
    .params = params3,
};
