#include "arch/common/gemma.h"
#include <stdio.h>

double lm_gemma_softcap(lm_b *b, const char *hf, const char *gguf, double absent) {
    char key[96];
    snprintf(key, sizeof key, "%s%s", b->prefix, hf);
    lm_cfg_not_null(b, hf);
    bool written = !b->gguf && (lm_meta_get(&b->src->meta, hf) || lm_meta_get(&b->src->meta, key)); /* null is not absent here */
    if (!lm_cfg_has(b, hf, gguf)) return written ? 0.0 : absent;
    double c = lm_cfg_f64(b, hf, gguf, NAN);
    if (!(c > 0.0)) lm_graph_fail(&b->g, LM_RANGE, hf, "is %g; a soft-cap must be a positive number", c);
    return c;
}

void lm_gemma_rope_spelling(lm_b *b) {
    if (b->gguf || !lm_cfg_has(b, "rope_scaling.type", NULL) || lm_cfg_has(b, "rope_scaling.rope_type", NULL)) return;
    lm_graph_fail(&b->g, LM_UNSUPPORTED, "rope_scaling.type", "is a spelling that %s in transformers passes over: call it rope_type",
                  b->arch->name);
}

void lm_gemma_defaults(lm_b *b, uint32_t kv_heads, uint32_t head_dim, uint32_t ffn) {
    lm_hparams *h = &b->hp;
    bool no_kv = !lm_cfg_has(b, "num_key_value_heads", "attention.head_count_kv"),
         no_dim = !lm_cfg_has(b, "head_dim", "attention.key_length");
    if (no_kv && h->heads % kv_heads)
        lm_graph_fail(&b->g, LM_FORMAT, "num_key_value_heads", "is missing, and its default %u does not divide %u heads", kv_heads,
                      h->heads);
    uint32_t *widths = lm_arena_calloc(b->g.p->arena, h->n_layers, sizeof *widths);
    if (!widths) {
        lm_graph_fail(&b->g, LM_NOMEM, "layers", "out of memory");
        return;
    }
    bool own_width = lm_cfg_u32s(b, "intermediate_size", "feed_forward_length", widths, h->n_layers);
    for (uint32_t l = 0; l < h->n_layers; l++) {
        lm_layer_hp *a = &h->layer[l];
        if (no_kv) a->kv_heads = kv_heads;
        if (no_dim) a->dk = a->dv = head_dim;
        a->ffn = own_width ? widths[l] : ffn;
        a->scale = 1.0; /* the norms of q and k carry it */
        if (a->ffn > 1u << 24) lm_graph_fail(&b->g, LM_RANGE, "intermediate_size", "is %u in layer %u; that is too wide", a->ffn, l);
    }
}

void lm_gemma_share_kv(lm_b *b, uint32_t shared) {
    lm_hparams *h = &b->hp;
    uint32_t first = h->n_layers - shared;
    for (uint32_t l = first; l < h->n_layers; l++) {
        for (uint32_t from = first; from-- > 0 && h->layer[l].kv_from < 0;)
            if (!h->layer[from].window == !h->layer[l].window) h->layer[l].kv_from = (int32_t)from;
        if (h->layer[l].kv_from < 0)
            lm_graph_fail(&b->g, LM_FORMAT, "num_kv_shared_layers",
                          "is %u, but none of the first %u layers is of layer %u's kind (%s attention)", shared, first, l,
                          h->layer[l].window ? "sliding" : "full");
    }
}

lm_val lm_gemma_attention(lm_b *b, uint32_t l, lm_val x, bool k_is_v) {
    const lm_layer_hp *a = &b->hp.layer[l];
    int bias = b->hp.attn_bias;
    lm_val q = lm_linear(b, "attn.q", x, (uint64_t)a->heads * a->dk, bias, false), k = LM_NONE, v = LM_NONE;
    if (a->kv_from < 0) {
        k = lm_linear(b, "attn.k", x, (uint64_t)a->kv_heads * a->dk, bias, false);
        v = k_is_v ? k : lm_linear(b, "attn.v", x, (uint64_t)a->kv_heads * a->dv, bias, false);
        v = lm_op_norm(&b->g, "attn.v_norm", v, LM_NORM_RMS, a->kv_heads, b->hp.eps, LM_NONE, LM_NONE);
        if (k_is_v) lm_graph_trait(&b->g, 1, "keys used as values");
    } else { /* published files hold them all the same */
        static const char *const roles[] = {"attn.k", "attn.v", "attn.k_norm"};
        for (int i = 0; i < 3; i++) {
            lm_unused(b, roles[i], ".weight");
            lm_unused(b, roles[i], ".bias");
        }
    }
    lm_val ctx = lm_attention_core(b, l, q, k, v, LM_NONE);
    return lm_linear(b, "attn.o", ctx, b->hp.hidden, b->hp.o_bias, true);
}

lm_val lm_gemma_scale(lm_b *b, const char *name, lm_val a, double c, bool bf16) {
    lm_val y = lm_op_scale(&b->g, name, a, c);
    if (lm_graph_ok(&b->g)) b->g.p->op[b->g.p->n_ops - 1].scale.bf16 = bf16;
    return y;
}

/* ---- per-layer inputs ------------------------------------------------------------------------------------------------------------*/
lm_val lm_gemma_layer_inputs(lm_b *b, lm_val x, uint32_t width, uint32_t table, bool bf16_scales) {
    const lm_hparams *h = &b->hp;
    lm_graph *g = &b->g;
    uint64_t all = (uint64_t)h->n_layers * width;
    uint32_t known = table < h->vocab ? table : h->vocab;
    const lm_part parts[] = {{.base = 0}, {.group = 1}}; /* every id past the table is row 0: a stride of nothing */
    const uint64_t count[] = {known, h->vocab - known};
    uint32_t w = lm_mat_parts(b, "layer_input.table", table, all, known < h->vocab ? 2 : 1, parts, count);
    lm_val e = lm_gemma_scale(b, "layer_input.token", lm_op_embed(g, "layer_input.lookup", w, false), sqrt((double)width), true);
    lm_val c = lm_linear(b, "layer_input.context", x, all, 0, false);
    c = lm_gemma_scale(b, "layer_input.context_scaled", c, 1.0 / sqrt((double)h->hidden), bf16_scales);
    c = lm_op_norm(g, "layer_input.context_norm", c, LM_NORM_RMS, h->n_layers, h->eps,
                   lm_vec_of(b, "layer_input.context_norm", ".weight", width, false, false), LM_NONE);
    lm_graph_trait(g, 1, "per-layer inputs, %u wide", width);
    return lm_gemma_scale(b, "layer_inputs", lm_op_add(g, "layer_input.sum", c, e), M_SQRT1_2, bf16_scales);
}

lm_val lm_gemma_layer_input(lm_b *b, uint32_t l, lm_val x, lm_val inputs, uint32_t width) {
    lm_val own = lm_op_slice(&b->g, "layer_input", inputs, l * width, width, 1, width);
    lm_val u = lm_op_gated(&b->g, "layer_input.act", lm_linear(b, "layer_input.gate", x, width, 0, false), own, b->hp.act, 0.0, 0.0);
    return lm_norm_of(b, "layer_input.norm", lm_linear(b, "layer_input.out", u, b->hp.hidden, 0, false));
}

void lm_gemma_to_gguf(lm_b *b) {
    const lm_hparams *h = &b->hp;
    uint32_t *kv = lm_arena_calloc(b->g.p->arena, 2 * (size_t)h->n_layers, sizeof *kv), *ffn = kv ? kv + h->n_layers : NULL;
    uint8_t *slides = lm_arena_alloc(b->g.p->arena, h->n_layers);
    if (!kv || !slides) {
        lm_graph_fail(&b->g, LM_NOMEM, "layers", "out of memory");
        return;
    }
    for (uint32_t l = 0; l < h->n_layers; l++) {
        kv[l] = h->layer[l].kv_heads;
        ffn[l] = h->layer[l].ffn;
        slides[l] = h->layer[l].window != 0;
    }
    lm_export_layers(b, "attention.head_count_kv", kv);
    lm_export_layers(b, "feed_forward_length", ffn);
    lm_export_array(b, "attention.sliding_window_pattern", LM_V_BOOL, slides, h->n_layers);
    lm_export_forget(b, "use_double_wide_mlp");
    lm_export_forget(b, "vocab_size_per_layer_input");
}
