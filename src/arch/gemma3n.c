/* Gemma 3n: the stream is a stack of n streams (AltUp). A layer predicts all of them from all, computes on one, and corrects all by what
 * came out. Beside attention runs a low-rank residual (LAuReL); the first layers keep only the strongest of their FFN's gates; per-layer
 * inputs and shared caches as in the small Gemma 4. */
#include "arch/common/gemma.h"
#include <string.h>

typedef struct gemma3n {
    uint32_t streams, active, laurel;
    uint32_t layer_input, layer_input_table;
    lm_val layer_inputs;
    bool correct_scale;
    uint32_t ones; /* vector: the correction coefficients' 1 + */
    double *cut;   /* [n_layers] standard deviations above the mean that a gate must reach; −∞: no sparsity */
} gemma3n;

static const lm_name names[] = {
    {"attn.post_norm", "model.layers.{l}.post_attention_layernorm", "blk.{l}.post_attention_norm"},
    {"ffn.norm", "model.layers.{l}.pre_feedforward_layernorm", "blk.{l}.ffn_norm"},
    {"altup.projection", "model.altup_projections.{e}", "altup_proj"},
    {"altup.unprojection", "model.altup_unembed_projections.{e}", "altup_unembd_proj"},
    {"altup.router_norm", "model.layers.{l}.altup.router_norm", "blk.{l}.altup_router_norm"},
    {"altup.router", "model.layers.{l}.altup.modality_router", "blk.{l}.altup_router"},
    {"altup.predict", "model.layers.{l}.altup.prediction_coefs", "blk.{l}.altup_predict_coef"},
    {"altup.correct", "model.layers.{l}.altup.correction_coefs", "blk.{l}.altup_correct_coef"},
    {"altup.scale", "model.layers.{l}.altup.correct_output_scale", "blk.{l}.altup_correct_scale"},
    {"laurel.left", "model.layers.{l}.laurel.linear_left", "blk.{l}.laurel_l"},
    {"laurel.right", "model.layers.{l}.laurel.linear_right", "blk.{l}.laurel_r"},
    {"laurel.norm", "model.layers.{l}.laurel.post_laurel_norm", "blk.{l}.laurel_post_norm"},
    LM_GEMMA_LAYER_INPUT_NAMES,
    {NULL, NULL, NULL},
};
static const char *const ignored[] = {"altup_coef_clip" /* training only */, NULL};

/* ---- parameters ------------------------------------------------------------------------------------------------------------------*/
/* Φ⁻¹(p) for p in (0, 1). Newton's steps from the middle go to the root from one side, as Φ is concave above it and convex below. */
static double normal_quantile(double p) {
    double x = 0.0;
    for (int i = 0; i < 200; i++) {
        double step = (p - 0.5 * erfc(-x * M_SQRT1_2)) * sqrt(2.0 * M_PI) * exp(0.5 * x * x);
        x += step;
        if (fabs(step) < 1e-15) break;
    }
    return x;
}

static void sparsity(lm_b *b, gemma3n *o) {
    uint32_t n = b->hp.n_layers;
    const lm_value *scale = b->gguf ? lm_cfg_raw(b, NULL, "activation_sparsity_scale") : NULL; /* Φ⁻¹ already, −∞ for none */
    if (scale) {
        if (scale->kind != LM_V_ARRAY || scale->elem != LM_V_FLOAT || scale->arr.n != n) {
            lm_graph_fail(&b->g, LM_FORMAT, "activation_sparsity_scale", "must list a number for each of the %u layers", n);
            return;
        }
        for (uint32_t l = 0; l < n; l++) {
            o->cut[l] = ((const double *)scale->arr.data)[l];
            if (!(o->cut[l] < INFINITY)) lm_graph_fail(&b->g, LM_RANGE, "activation_sparsity_scale", "is %g in layer %u", o->cut[l], l);
        }
    } else {
        for (uint32_t l = 0; l < n; l++) o->cut[l] = n > 10 && l < 10 ? 0.95 : 0.0;
        lm_cfg_f64s(b, "activation_sparsity_pattern", NULL, o->cut, n);
        for (uint32_t l = 0; l < n; l++) {
            double p = (double)(float)o->cut[l]; /* the reference takes it in float32, and the result too */
            if (!(p >= 0.0 && p < 1.0))
                lm_graph_fail(&b->g, LM_RANGE, "activation_sparsity_pattern", "is %g in layer %u; it must be in [0, 1)", p, l);
            else
                o->cut[l] = p > 0.0 ? (double)(float)normal_quantile(p) : -INFINITY;
        }
    }
    for (uint32_t l = 0; l < n; l++)
        if (o->cut[l] > -INFINITY) lm_graph_trait(&b->g, 1, "FFN sparsity, gates above mean + %.3g deviations", o->cut[l]);
}

static void ropes(lm_b *b) {
    lm_gemma_rope_spelling(b);
    lm_hparams *h = &b->hp;
    bool nested = lm_cfg_has(b,
                             "rope_parameters.full_attention.rope_type|rope_parameters.full_attention.rope_theta|rope_parameters.sliding_"
                             "attention.rope_type|rope_parameters.sliding_attention.rope_theta",
                             NULL);
    double full_theta = lm_cfg_f64(b, "rope_theta", NULL, 1e6),
           local_theta = lm_cfg_f64(b, "rope_local_base_freq", "rope.freq_base_swa", 1e4);
    if (lm_cfg_has(b, "rope_parameters.rope_type|rope_parameters.rope_theta", NULL))
        lm_graph_fail(&b->g, LM_UNSUPPORTED, "rope_parameters", "must have a part for each of 'full_attention' and 'sliding_attention'");
    lm_rope_spec full = lm_rope_read(b, nested ? "full_attention" : NULL, full_theta, 1.0);
    lm_rope_spec local = {
        .type = "default", .theta = local_theta, .partial = 1.0, .factor = 1.0, .attention_factor = NAN, .dims = full.dims};
    if (nested) local = lm_rope_read(b, "sliding_attention", local_theta, 1.0);
    for (uint32_t l = 0; l < h->n_layers; l++) lm_rope_layer(b, l, h->layer[l].window ? &local : &full);
    lm_graph_trait(&b->g, 2, "two rope bases, %g and %g", full.theta, local.theta);
}

static void altup(lm_b *b, gemma3n *o) {
    o->streams = lm_cfg_u32(b, "altup_num_inputs", "altup.num_inputs", 4, 2, 64);
    o->active = lm_cfg_u32(b, "altup_active_idx", "altup.active_idx", 0, 0, o->streams - 1);
    o->correct_scale = lm_cfg_bool(b, "altup_correct_scale", NULL, true);
    const lm_tensor *left = b->gguf ? lm_tensor_of(b, "laurel.left", ".weight") : NULL; /* GGUF has no key for the rank */
    uint64_t rows = left ? lm_tensor_rows(left) : 64;
    o->laurel = lm_cfg_u32(b, "laurel_rank", NULL, rows <= 1 << 16 ? (int64_t)rows : 0, 1, 1 << 16);
    double *one = lm_arena_calloc(b->g.p->arena, o->streams, sizeof *one);
    if (!one) {
        lm_graph_fail(&b->g, LM_NOMEM, "program", "out of memory building the program");
        return;
    }
    for (uint32_t i = 0; i < o->streams; i++) one[i] = 1.0;
    o->ones = lm_graph_vec(&b->g, "altup.one", one, o->streams);
    lm_graph_trait(&b->g, 1, "AltUp, %u streams", o->streams);
}

static void params(lm_b *b) {
    lm_hparams *h = &b->hp;
    gemma3n *o = b->own = lm_arena_calloc(b->g.p->arena, 1, sizeof *o);
    if (o) o->cut = lm_arena_calloc(b->g.p->arena, h->n_layers, sizeof *o->cut);
    if (!o || !o->cut) {
        lm_graph_fail(&b->g, LM_NOMEM, "program", "out of memory building the program");
        return;
    }
    h->embed_scale = sqrt((double)h->hidden);
    h->final_softcap = lm_gemma_softcap(b, "final_logit_softcapping", "final_logit_softcapping", 30.0);
    if (!b->gguf) h->attn_bias = h->o_bias = lm_cfg_bool(b, "attention_bias", NULL, false), h->mlp_bias = 0;
    o->layer_input = lm_cfg_u32(b, "hidden_size_per_layer_input", "embedding_length_per_layer_input", 256, 1, 1 << 16);
    o->layer_input_table = lm_cfg_u32(b, "vocab_size_per_layer_input", NULL, b->gguf ? h->vocab : 262144, 1, 1 << 24);
    lm_gemma_defaults(b, 2, 256, 16384);
    lm_windows(b, lm_cfg_u32(b, "sliding_window", "attention.sliding_window", 512, 1, INT32_MAX), 5);
    altup(b, o);
    sparsity(b, o);
    if (!lm_graph_ok(&b->g)) return;
    lm_gemma_share_kv(b, lm_cfg_u32(b, "num_kv_shared_layers", "attention.shared_kv_layers", 15, 0, h->n_layers - 1));
    ropes(b);
}

/* ---- streams ---------------------------------------------------------------------------------------------------------------------*/
static lm_val stream(lm_b *b, const char *name, lm_val x, uint32_t i) {
    uint32_t h = b->hp.hidden;
    return lm_op_slice(&b->g, name, x, i * h, h, 1, h);
}

/* A matrix of the stack applied to x, the result brought to the magnitude of `to`. */
static lm_val project(lm_b *b, const char *role, uint32_t i, lm_val x, lm_val to) {
    const gemma3n *o = b->own;
    if (!lm_graph_ok(&b->g)) return LM_NONE;
    uint32_t w = lm_mat_of_stack(b, role, o->streams - 1, i, b->hp.hidden, b->hp.hidden);
    lm_op m = lm_op_blank();
    m.a = lm_op_linear(&b->g, role, x, w, LM_NONE, false);
    m.b = to;
    m.match.eps = 1e-5;
    return lm_op_custom(&b->g, LM_OP_MATCH_RMS, "altup.matched", b->hp.hidden, &m);
}

static lm_val embed(lm_b *b) {
    gemma3n *o = b->own;
    lm_val x = lm_rename(&b->g, lm_embed(b), "embed.active"), all = x;
    o->layer_inputs = lm_gemma_layer_inputs(b, x, o->layer_input, o->layer_input_table, true);
    for (uint32_t i = 1; i < o->streams; i++)
        all = lm_op_concat(&b->g, i + 1 < o->streams ? "embed.stack" : "embed", all, project(b, "altup.projection", i - 1, x, x));
    return all;
}

/* tanh(router(norm(x) / H)): one number per stream */
static lm_val modalities(lm_b *b, const char *name, lm_val x, uint32_t norm, uint32_t router) {
    lm_graph *g = &b->g;
    lm_val r = lm_op_norm(g, "altup.router_norm", x, LM_NORM_RMS, 1, b->hp.eps, norm, LM_NONE);
    r = lm_gemma_scale(b, "altup.router_input", r, 1.0 / b->hp.hidden, true);
    return lm_op_act(g, name, lm_op_linear(g, "altup.router", r, router, LM_NONE, false), LM_ACT_TANH);
}

static lm_val predict(lm_b *b, lm_val x, uint32_t norm, uint32_t router) {
    const gemma3n *o = b->own;
    uint32_t n = o->streams;
    lm_val m = modalities(b, "altup.predict_modalities", stream(b, "altup.active", x, o->active), norm, router);
    /* stored [out][in], MIX takes [in][out] */
    uint32_t w = lm_mat_part(b, "altup.predict", (uint64_t)n * n, n, (uint64_t)n * n, (lm_part){.group = n, .group_stride = 1, .step = n});
    if (!lm_graph_ok(&b->g)) return LM_NONE;
    lm_op mix = lm_op_blank();
    mix.a = x;
    mix.b = lm_op_linear(&b->g, "altup.predict_coefs", m, w, LM_NONE, false);
    mix.mix.n = n;
    mix.mix.residual = true;
    return lm_op_custom(&b->g, LM_OP_MIX, "altup.predicted", lm_width(&b->g, x), &mix);
}

/* x: predictions, p: the active one, y: what the layer made of it */
static lm_val correct(lm_b *b, lm_val x, lm_val p, lm_val y, uint32_t norm, uint32_t router) {
    const gemma3n *o = b->own;
    lm_graph *g = &b->g;
    lm_val m = modalities(b, "altup.correct_modalities", y, norm, router);
    uint32_t w = lm_mat(b, "altup.correct", o->streams, o->streams);
    if (!lm_graph_ok(g)) return LM_NONE;
    lm_op spread = lm_op_blank();
    spread.a = x;
    spread.b = lm_op_add(g, "altup.innovation", y, lm_op_scale(g, "altup.minus", p, -1.0));
    spread.c = lm_op_linear(g, "altup.correct_coefs", m, w, o->ones, false);
    spread.mix.n = o->streams;
    return lm_op_custom(g, LM_OP_SPREAD, "altup.corrected", lm_width(g, x), &spread);
}

/* The per-layer input goes to every stream but the first, whichever is active. */
static lm_val add_layer_input(lm_b *b, uint32_t l, lm_val x) {
    const gemma3n *o = b->own;
    lm_graph *g = &b->g;
    uint32_t h = b->hp.hidden, rest = (o->streams - 1) * h;
    lm_val s = stream(b, "layer_input.stream", x, o->active);
    if (o->correct_scale)
        s = lm_op_scale_vec(g, "altup.scaled", s, lm_vec_of(b, "altup.scale", ".weight", h, false, false));
    else
        lm_unused(b, "altup.scale", ".weight");
    lm_val u = lm_gemma_layer_input(b, l, s, o->layer_inputs, o->layer_input);
    u = lm_op_slice(g, "layer_input.each", u, 0, h, o->streams - 1, 0); /* a stride of nothing: the same columns again */
    lm_val others = lm_op_add(g, "layer_input.residual", lm_op_slice(g, "altup.others", x, h, rest, 1, rest), u);
    return lm_op_concat(g, "out", stream(b, "altup.first", x, 0), others);
}

/* ---- a layer, and the end -----------------------------------------------------------------------------------------------------------*/
static lm_val sparse_ffn(lm_b *b, uint32_t l, lm_val x) {
    const gemma3n *o = b->own;
    uint32_t width = b->hp.layer[l].ffn;
    lm_val gate = lm_linear(b, "ffn.gate", x, width, 0, false), up = lm_linear(b, "ffn.up", x, width, 0, false);
    lm_op s = lm_op_blank();
    s.a = gate;
    s.sparsify.c = o->cut[l];
    if (o->cut[l] > -INFINITY) gate = lm_op_custom(&b->g, LM_OP_SPARSIFY, "ffn.sparse", width, &s);
    return lm_linear(b, "ffn.down", lm_op_gated(&b->g, "ffn.act", gate, up, b->hp.act, 0.0, 0.0), b->hp.hidden, 0, true);
}

static lm_val layer(lm_b *b, uint32_t l, lm_val x) {
    const gemma3n *o = b->own;
    lm_graph *g = &b->g;
    uint32_t h = b->hp.hidden, norm = lm_vec_of(b, "altup.router_norm", ".weight", h, false, false),
             router = lm_mat(b, "altup.router", o->streams, h);
    lm_val all = predict(b, x, norm, router), p = stream(b, "altup.prediction", all, o->active);
    lm_val n = lm_norm_of(b, "attn.norm", p);
    lm_val low = lm_linear(b, "laurel.right", lm_linear(b, "laurel.left", n, o->laurel, 0, false), h, 0, false);
    low = lm_op_add(g, "laurel", n, lm_norm_of(b, "laurel.norm", low));
    lm_val y = lm_norm_of(b, "attn.post_norm", lm_gemma_attention(b, l, n, false));
    y = lm_op_add(g, "attn.sum", lm_op_add(g, "attn.gated", p, y), low);
    y = lm_op_scale(g, "attn.residual", y, M_SQRT1_2);
    lm_val f = lm_norm_of(b, "ffn.post_norm", sparse_ffn(b, l, lm_norm_of(b, "ffn.norm", y)));
    y = lm_op_add(g, "ffn.residual", y, f);
    return add_layer_input(b, l, correct(b, all, p, y, norm, router));
}

static lm_val head(lm_b *b, lm_val x) {
    const gemma3n *o = b->own;
    lm_val first = stream(b, "head.first", x, 0), sum = first;
    for (uint32_t i = 1; i < o->streams; i++)
        sum = lm_op_add(&b->g, "head.sum", sum, project(b, "altup.unprojection", i - 1, stream(b, "head.stream", x, i), first));
    return lm_norm_of(b, "norm", lm_op_scale(&b->g, "head.mean", sum, 1.0 / o->streams));
}

static void to_gguf(lm_b *b) {
    const gemma3n *o = b->own;
    lm_gemma_to_gguf(b);
    lm_export_array(b, "activation_sparsity_scale", LM_V_FLOAT, o->cut, b->hp.n_layers);
}

const lm_arch lm_arch_gemma3n = {
    .name = "gemma3n",
    .model_types = (const char *const[]){"gemma3n_text", "gemma3n", NULL},
    .gguf = "gemma3n",
    .names = names,
    .ignored = ignored,
    .qk_norm = LM_QK_HEAD,
    .tied_default = true,
    .act_key = "hidden_activation",
    .act_default = LM_ACT_GELU_TANH,
    .params = params,
    .embed = embed,
    .layer = layer,
    .head = head,
    .to_gguf = to_gguf,
};
