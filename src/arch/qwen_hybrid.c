/* Qwen3-Next and Qwen3.5/3.6 (dense and MoE): three layers of gated delta rule to one of gated attention. Norms multiply by 1 + w, but for
 * the one inside the linear attention. Qwen3-Next packs its projections per key head; Qwen3.5 holds them apart, and its GGUF conversion
 * stores value heads tiled (head h uses key head h % k_heads) instead of grouped. */
#include "arch/common/export.h"
#include <string.h>

#define LIN "model.layers.{l}.linear_attn."
static const lm_name names[] = {
    {"ffn.norm", "model.layers.{l}.post_attention_layernorm", "blk.{l}.post_attention_norm"},
    {"delta.qkvz", LIN "in_proj_qkvz", "blk.{l}.ssm_in"},
    {"delta.ba", LIN "in_proj_ba", "blk.{l}.ssm_ba"},
    {"delta.qkv", LIN "in_proj_qkv", "blk.{l}.attn_qkv"},
    {"delta.z", LIN "in_proj_z", "blk.{l}.attn_gate"},
    {"delta.a", LIN "in_proj_a", "blk.{l}.ssm_alpha"},
    {"delta.b", LIN "in_proj_b", "blk.{l}.ssm_beta"},
    {"delta.A_log", LIN "A_log", "blk.{l}.ssm_a"},
    {"delta.dt", LIN "dt_bias", "blk.{l}.ssm_dt"},
    {"delta.conv", LIN "conv1d", "blk.{l}.ssm_conv1d"},
    {"delta.norm", LIN "norm", "blk.{l}.ssm_norm"},
    {"delta.out", LIN "out_proj", "blk.{l}.ssm_out"},
    {NULL, NULL, NULL},
};
static const char *const ignored[] = {"rope_parameters.mrope_section",
                                      "rope_parameters.mrope_interleaved",
                                      "rope_scaling.mrope_section",
                                      "rope_scaling.mrope_interleaved",
                                      "attn_output_gate",
                                      "mamba_ssm_dtype",
                                      "rope.dimension_sections",
                                      "use_sliding_window",
                                      "sliding_window",
                                      "max_window_layers",
                                      "intermediate_size",
                                      "full_attention_interval",
                                      "layer_types",
                                      NULL};

typedef struct gdn {
    uint32_t kernel, nk, nv, dk, dv;
    bool tiled;
} gdn;

static bool is(const lm_b *b, const char *name) { return !strcmp(b->arch->name, name); }

static void experts(lm_b *b) {
    lm_hparams *h = &b->hp;
    bool next = is(b, "qwen3_next");
    uint32_t n = lm_cfg_u32(b, "num_experts", "expert_count", next ? 512 : 256, 0, 65536),
             step = lm_cfg_u32(b, "decoder_sparse_step", NULL, 1, 1, 512);
    if (!n) return;
    h->moe =
        (lm_moe_hp){.n = n,
                    .k = lm_cfg_u32(b, "num_experts_per_tok", "expert_used_count", next ? 10 : 8, 1, n),
                    .ffn = lm_cfg_u32(b, "moe_intermediate_size", "expert_feed_forward_length", 512, 1, 1 << 20),
                    .n_shared = 1,
                    .shared_ffn = lm_cfg_u32(b, "shared_expert_intermediate_size", "expert_shared_feed_forward_length", 512, 1, 1 << 20),
                    .score = LM_ROUTE_SOFTMAX,
                    .renorm = next ? lm_cfg_bool(b, "norm_topk_prob", NULL, true) : true,
                    .scale = 1.0};
    for (uint32_t l = 0; l < h->n_layers; l++) h->layer[l].moe = (l + 1) % step == 0;
    const lm_value *only = lm_cfg_raw(b, "mlp_only_layers", NULL);
    for (uint64_t i = 0; only && only->kind == LM_V_ARRAY && only->elem == LM_V_INT && i < only->arr.n; i++) {
        int64_t l = ((const int64_t *)only->arr.data)[i];
        if (l >= 0 && l < h->n_layers) h->layer[l].moe = false;
    }
}

static void layer_kinds(lm_b *b) {
    lm_hparams *h = &b->hp;
    uint32_t every = lm_cfg_u32(b, "full_attention_interval", "full_attention_interval", 4, 1, 512);
    bool *recurrent = lm_arena_alloc(b->g.p->arena, h->n_layers);
    if (!recurrent) {
        lm_graph_fail(&b->g, LM_NOMEM, "layer_types", "out of memory");
        return;
    }
    for (uint32_t l = 0; l < h->n_layers; l++) recurrent[l] = (l + 1) % every != 0;
    lm_cfg_bools(b, NULL, "attention.recurrent_layers", recurrent, h->n_layers);
    const char *type;
    for (uint32_t l = 0; l < h->n_layers; l++) {
        if (lm_cfg_str_at(b, "layer_types", NULL, l, &type)) {
            recurrent[l] = !strcmp(type, "linear_attention");
            if (!recurrent[l] && strcmp(type, "full_attention"))
                lm_graph_fail(&b->g, LM_UNSUPPORTED, "layer_types", "layer %u is of type '%.40s', which lemma's %s does not know", l, type,
                              b->arch->name);
        }
        h->layer[l].recurrent = recurrent[l];
    }
}

static void params(lm_b *b) {
    lm_hparams *h = &b->hp;
    gdn *d = b->own = lm_arena_alloc(b->g.p->arena, sizeof *d);
    if (!d) {
        lm_graph_fail(&b->g, LM_NOMEM, "parameters", "out of memory");
        return;
    }
    if (!lm_cfg_has(b, "head_dim", "attention.key_length"))
        for (uint32_t l = 0; l < h->n_layers; l++) h->layer[l].dk = h->layer[l].dv = 256, h->layer[l].scale = 1.0 / 16.0;
    lm_rope_all(b, 1e4, 0.25);
    if (!is(b, "qwen3_next")) lm_cfg_not_null(b, "rope_parameters.mrope_section|rope_scaling.mrope_section");
    layer_kinds(b);
    d->kernel = lm_cfg_u32(b, "linear_conv_kernel_dim", "ssm.conv_kernel", 4, 2, 64);
    d->dk = lm_cfg_u32(b, "linear_key_head_dim", "ssm.state_size", 128, 1, 4096);
    d->nk = lm_cfg_u32(b, "linear_num_key_heads", "ssm.group_count", 16, 1, 4096);
    d->nv = lm_cfg_u32(b, "linear_num_value_heads", "ssm.time_step_rank", 32, 1, 4096);
    if (d->nv % d->nk)
        lm_graph_fail(&b->g, LM_FORMAT, "linear_num_value_heads", "%u value heads are no multiple of %u key heads", d->nv, d->nk);
    if (b->gguf)
        d->dv = lm_cfg_u32(b, NULL, "ssm.inner_size", LM_REQUIRED, d->nv, 1 << 24) / d->nv;
    else
        d->dv = lm_cfg_u32(b, "linear_value_head_dim", NULL, 128, 1, 4096);
    d->tiled = b->gguf && !is(b, "qwen3_next");
    if (!is(b, "qwen3_5")) experts(b);
    lm_graph_trait(&b->g, 2, "gated delta rule, %u heads of %ux%u", d->nv, d->dk, d->dv);
    lm_graph_trait(&b->g, d->kernel, "short convolution over %u tokens", d->kernel);
    lm_graph_trait(&b->g, 1, "gated attention output");
    if (h->act != LM_ACT_SILU) /* transformers' convolution takes it too, its gated norm does not */
        lm_graph_fail(&b->g, LM_UNSUPPORTED, "hidden_act", "is not silu, the only one that lemma's %s knows", b->arch->name);
    if (!b->gguf) h->attn_bias = h->o_bias = lm_cfg_bool(b, "attention_bias", NULL, false), h->mlp_bias = 0;
}

/* The four projections as logical matrices, whatever the packaging. */
static void projections(lm_b *b, const gdn *d, lm_val x, lm_val *qkv, lm_val *z, lm_val *a, lm_val *beta) {
    uint64_t h = b->hp.hidden, r = d->nv / d->nk, q = (uint64_t)d->nk * d->dk, v = (uint64_t)d->nv * d->dv, rv = r * d->dv;
    lm_graph *g = &b->g;
    if (lm_has(b, "delta.qkvz")) { /* per key head: [q | k | v of its value heads | z of them] */
        uint64_t per = 2 * d->dk + 2 * rv, all = per * d->nk;
        const lm_part parts[3] = {{.base = 0, .group = d->dk, .group_stride = per},
                                  {.base = d->dk, .group = d->dk, .group_stride = per},
                                  {.base = 2 * d->dk, .group = rv, .group_stride = per}};
        *qkv =
            lm_op_linear(g, "delta.qkv", x, lm_mat_parts(b, "delta.qkvz", all, h, 3, parts, (const uint64_t[]){q, q, v}), LM_NONE, false);
        *z = lm_op_linear(g, "delta.z", x,
                          lm_mat_part(b, "delta.qkvz", all, h, v, (lm_part){.base = 2 * d->dk + rv, .group = rv, .group_stride = per}),
                          LM_NONE, false);
    } else {
        *qkv = lm_linear(b, "delta.qkv", x, 2 * q + v, 0, false);
        *z = lm_linear(b, "delta.z", x, v, 0, false);
    }
    if (lm_has(b, "delta.ba")) { /* per key head: [b of its value heads | a of them] */
        *beta = lm_op_linear(g, "delta.b", x,
                             lm_mat_part(b, "delta.ba", 2 * d->nv, h, d->nv, (lm_part){.base = 0, .group = r, .group_stride = 2 * r}),
                             LM_NONE, false);
        *a = lm_op_linear(g, "delta.a", x,
                          lm_mat_part(b, "delta.ba", 2 * d->nv, h, d->nv, (lm_part){.base = r, .group = r, .group_stride = 2 * r}), LM_NONE,
                          false);
    } else {
        *beta = lm_linear(b, "delta.b", x, d->nv, 0, false);
        *a = lm_linear(b, "delta.a", x, d->nv, 0, false);
    }
}

/* −exp(A_log) is what GGUF stores; A_log is what the op takes. */
static uint32_t decay_rate(lm_b *b, const gdn *d) {
    uint32_t v = lm_vec_of(b, "delta.A_log", "", d->nv, false, false);
    if (!b->gguf || v == LM_NONE) return v;
    double *w = lm_arena_calloc(b->g.p->arena, d->nv, sizeof *w);
    if (!w) return lm_graph_fail(&b->g, LM_NOMEM, "ssm_a", "out of memory");
    for (uint32_t i = 0; i < d->nv; i++) {
        double a = b->g.p->vec[v].v[i];
        if (!(a < 0.0)) return lm_graph_fail(&b->g, LM_RANGE, b->g.p->vec[v].name, "holds %g; a decay rate must be negative", a);
        w[i] = log(-a);
    }
    return lm_graph_vec(&b->g, b->g.p->vec[v].name, w, d->nv);
}

static lm_val linear_attention(lm_b *b, lm_val x) {
    const gdn *d = b->own;
    lm_graph *g = &b->g;
    uint32_t q_w = d->nk * d->dk, v_w = d->nv * d->dv, c = 2 * q_w + v_w;
    lm_val qkv, z, a, beta;
    projections(b, d, x, &qkv, &z, &a, &beta);
    lm_op conv = lm_op_blank(), decay = lm_op_blank(), o = lm_op_blank();
    conv.a = qkv;
    conv.v = lm_vec_part(b, "delta.conv", ".weight", c, d->kernel, d->kernel, (lm_part){0}, false);
    conv.conv.kernel = d->kernel;
    conv.conv.act = LM_ACT_SILU;
    conv.conv.slot = lm_graph_slot(g, LM_CACHE_CONV, 1, c, d->kernel - 1, 0);
    lm_val u = lm_op_custom(g, LM_OP_CONV, "delta.conv", c, &conv);
    lm_val q = lm_op_norm(g, "delta.q", lm_op_slice(g, "delta.q_raw", u, 0, q_w, 1, q_w), LM_NORM_L2, d->nk, 1e-6, LM_NONE, LM_NONE);
    lm_val k = lm_op_norm(g, "delta.k", lm_op_slice(g, "delta.k_raw", u, q_w, q_w, 1, q_w), LM_NORM_L2, d->nk, 1e-6, LM_NONE, LM_NONE);
    decay.a = a;
    decay.v = decay_rate(b, d);
    decay.v2 = b->gguf ? lm_vec_of(b, "delta.dt", ".bias", d->nv, false, false) : lm_vec_of(b, "delta.dt", "", d->nv, false, false);
    lm_val rate = lm_op_custom(g, LM_OP_DECAY, "delta.decay", d->nv, &decay);
    o.a = q;
    o.b = k;
    o.c = lm_op_slice(g, "delta.v", u, 2 * q_w, v_w, 1, v_w);
    o.d = lm_op_concat(g, "delta.gates", rate, lm_op_act(g, "delta.beta", beta, LM_ACT_SIGMOID));
    o.delta.k_heads = d->nk;
    o.delta.v_heads = d->nv;
    o.delta.dk = d->dk;
    o.delta.dv = d->dv;
    o.delta.tiled = d->tiled;
    o.delta.q_scale = 1.0 / sqrt((double)d->dk);
    o.delta.slot = lm_graph_slot(g, LM_CACHE_DELTA, d->nv, d->dk, d->dv, 0);
    lm_val y = lm_op_custom(g, LM_OP_DELTA, "delta.state", v_w, &o);
    y = lm_op_norm(g, "delta.norm", y, LM_NORM_RMS, d->nv, b->hp.eps, lm_vec_of(b, "delta.norm", ".weight", d->dv, false, false), LM_NONE);
    y = lm_op_gated(g, "delta.gated", z, y, LM_ACT_SILU, 0.0, 0.0);
    return lm_linear(b, "delta.out", y, b->hp.hidden, 0, true);
}

static lm_val attention(lm_b *b, uint32_t l, lm_val x) {
    const lm_layer_hp *a = &b->hp.layer[l];
    if (a->recurrent) return linear_attention(b, x);
    lm_graph *g = &b->g;
    lm_val both = lm_rename(g, lm_linear(b, "attn.q", x, 2 * (uint64_t)a->heads * a->dk, b->hp.attn_bias, false), "attn.q_gate");
    lm_val q = lm_op_slice(g, "attn.q", both, 0, a->dk, a->heads, 2 * a->dk),
           gate = lm_op_slice(g, "attn.gate", both, a->dk, a->dk, a->heads, 2 * a->dk);
    lm_val k = lm_linear(b, "attn.k", x, (uint64_t)a->kv_heads * a->dk, b->hp.attn_bias, false),
           v = lm_linear(b, "attn.v", x, (uint64_t)a->kv_heads * a->dv, b->hp.attn_bias, false);
    lm_val ctx = lm_op_gated(g, "attn.gated", gate, lm_attention_core(b, l, q, k, v, LM_NONE), LM_ACT_SIGMOID, 0.0, 0.0);
    return lm_linear(b, "attn.o", ctx, b->hp.hidden, b->hp.o_bias, true);
}

/* Qwen3.5's conversion tiles whatever comes by value head. */
static void tile(lm_b *b, const gdn *d, const char *role, uint32_t l, uint64_t first, uint64_t size, bool columns) {
    lm_export_tensor *t = lm_export_find(b, role, l);
    lm_tiles tiles = {.first = first, .size = size, .groups = d->nk, .per = d->nv / d->nk};
    if (t && columns)
        t->cols = tiles;
    else if (t)
        t->rows = tiles;
}

static void sections(lm_b *b) {
    int64_t s[4] = {11, 11, 10, 0}; /* the class default */
    const lm_value *v = lm_cfg_raw(b, "rope_parameters.mrope_section|rope_scaling.mrope_section", "rope.dimension_sections");
    for (uint64_t i = 0; v && v->kind == LM_V_ARRAY && v->elem == LM_V_INT && i < v->arr.n && i < 4; i++)
        s[i] = ((const int64_t *)v->arr.data)[i];
    lm_export_array(b, "rope.dimension_sections", LM_V_INT, s, 4);
}

static void to_gguf(lm_b *b) {
    const gdn *d = b->own;
    uint32_t n = b->hp.n_layers, qk = 2 * d->nk * d->dk;
    bool tiled = !is(b, "qwen3_next");
    lm_export_u32(b, "ssm.inner_size", d->nv * d->dv);
    uint8_t *recurrent = lm_arena_alloc(b->g.p->arena, n);
    for (uint32_t l = 0; l < n && recurrent; l++) {
        recurrent[l] = b->hp.layer[l].recurrent;
        lm_export_tensor *a = lm_export_find(b, "delta.A_log", l);
        if (a) a->neg_exp = true;
        if (!tiled || !recurrent[l]) continue;
        tile(b, d, "delta.qkv", l, qk, d->dv, false);
        tile(b, d, "delta.conv", l, qk, d->dv, false);
        tile(b, d, "delta.z", l, 0, d->dv, false);
        tile(b, d, "delta.a", l, 0, 1, false);
        tile(b, d, "delta.b", l, 0, 1, false);
        tile(b, d, "delta.A_log", l, 0, 1, false);
        tile(b, d, "delta.dt", l, 0, 1, false);
        tile(b, d, "delta.out", l, 0, d->dv, true);
    }
    if (!tiled || !recurrent) return;
    lm_export_array(b, "attention.recurrent_layers", LM_V_BOOL, recurrent, n);
    sections(b);
}

#define HYBRID \
    .to_gguf = to_gguf, .names = names, .ignored = ignored, .norm_plus_one = true, .qk_norm = LM_QK_HEAD, \
    .partial_rope = true, .params = params, .attention = attention
const lm_arch lm_arch_qwen3_next = {
    .name = "qwen3_next",
    .model_types = (const char *const[]){"qwen3_next", NULL},
    .gguf = "qwen3next",
    HYBRID,
};
const lm_arch lm_arch_qwen3_5 = {
    .name = "qwen3_5",
    .model_types = (const char *const[]){"qwen3_5_text", "qwen3_5", NULL},
    .gguf = "qwen35",
    HYBRID,
};
const lm_arch lm_arch_qwen3_5_moe = {
    .name = "qwen3_5_moe",
    .model_types = (const char *const[]){"qwen3_5_moe_text", "qwen3_5_moe", NULL},
    .gguf = "qwen35moe",
    HYBRID,
};
