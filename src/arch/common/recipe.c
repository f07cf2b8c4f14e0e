#include "arch/common/arch.h"
#include <stdio.h>
#include <string.h>

/* The default decoder: what most families are, with flags for what three or more of them share, and hooks for the rest. */

enum { MAX_LAYERS = 512, MAX_WIDTH = 1 << 20, MAX_HEADS = 1 << 16, MAX_VOCAB = 1 << 24 };

/* The family's own spelling of a key counts. Another family's beside it is as inert as it is in transformers; alone it stays unread, which
 * is refused. */
static const char *own_key(lm_b *b, const char *own, const char *others) {
    if (!b->gguf && lm_cfg_has(b, own, NULL)) lm_cfg_ignore(b, others, NULL);
    return own;
}

void lm_common_params(lm_b *b) {
    lm_hparams *h = &b->hp;
    h->n_layers = lm_cfg_u32(b, "num_hidden_layers|n_layer", "block_count", LM_REQUIRED, 1, MAX_LAYERS);
    h->hidden = lm_cfg_u32(b, "hidden_size|n_embd", "embedding_length", LM_REQUIRED, 1, MAX_WIDTH);
    h->heads = lm_cfg_u32(b, "num_attention_heads|n_head", "attention.head_count", LM_REQUIRED, 1, MAX_HEADS);
    if (!lm_graph_ok(&b->g)) return;
    const char *kv_hf = "num_key_value_heads", *kv_gguf = "attention.head_count_kv";
    uint32_t *kv = lm_arena_calloc(b->g.p->arena, h->n_layers, sizeof *kv); /* one number, or one per layer */
    if (!kv) {
        lm_graph_fail(&b->g, LM_NOMEM, "layers", "out of memory");
        return;
    }
    for (uint32_t l = 0; l < h->n_layers; l++) kv[l] = h->heads;
    lm_cfg_u32s(b, kv_hf, kv_gguf, kv, h->n_layers);
    lm_cfg_not_null(b, kv_hf);
    h->kv_heads = kv[0];
    bool own_dim = lm_cfg_has(b, "head_dim", "attention.key_length");
    if (!own_dim && h->hidden % h->heads)
        lm_graph_fail(&b->g, LM_FORMAT, lm_cfg_name(b, "num_attention_heads|n_head", "attention.head_count"),
                      "%u heads don't divide the hidden size %u", h->heads, h->hidden);
    h->head_dim = lm_cfg_u32(b, "head_dim", "attention.key_length", h->hidden / h->heads, 1, MAX_WIDTH);
    uint32_t dv = lm_cfg_u32(b, NULL, "attention.value_length", h->head_dim, 1, MAX_WIDTH);
    for (uint32_t l = 0; l < h->n_layers; l++)
        if (!kv[l] || h->heads % kv[l])
            lm_graph_fail(&b->g, LM_FORMAT, lm_cfg_name(b, kv_hf, kv_gguf), "%u key/value heads of layer %u don't divide %u heads",
                          kv[l], l, h->heads);
    h->max_position = lm_cfg_u32(b, "max_position_embeddings|n_positions", "context_length", 0, 1, INT32_MAX);
    const char *eps_key = own_key(b, b->arch->eps_key ? b->arch->eps_key : "rms_norm_eps",
                                  "rms_norm_eps|layer_norm_eps|norm_epsilon|layer_norm_epsilon|norm_eps"),
               *act_key = own_key(b, b->arch->act_key ? b->arch->act_key : "hidden_act",
                                  "hidden_activation|hidden_act|activation_function");
    h->eps = lm_cfg_f64(b, eps_key, "attention.layer_norm_rms_epsilon|attention.layer_norm_epsilon",
                        b->gguf                    ? NAN /* a GGUF says it */
                        : b->arch->eps_default > 0 ? b->arch->eps_default
                                                   : 1e-6);
    if (!(h->eps > 0.0))
        lm_graph_fail(&b->g, LM_RANGE, lm_cfg_name(b, eps_key, "attention.layer_norm_rms_epsilon"), "is %g; it must be positive", h->eps);
    h->act = lm_cfg_act(b, act_key, b->arch->act_default ? b->arch->act_default : LM_ACT_SILU);
    h->qk_norm = b->arch->qk_norm;
    h->embed_scale = h->residual_scale = h->logit_scale = 1.0;
    h->attn_bias = h->o_bias = h->mlp_bias = -1;
    /* the vocabulary is the embedding's rows; a config that says otherwise is refused where the tensor is read */
    const lm_tensor *e = lm_tensor_of(b, "embed", ".weight");
    if (!e || e->rank != 2)
        lm_graph_fail(&b->g, LM_FORMAT, b->gguf ? "token_embd.weight" : "embed_tokens.weight",
                      "the embedding matrix is missing or no matrix");
    else
        h->vocab = lm_cfg_u32(b, "vocab_size", "vocab_size", (int64_t)(e->dim[0] <= MAX_VOCAB ? e->dim[0] : 0), 1, MAX_VOCAB);
    h->tied = b->gguf ? !lm_has(b, "head") : lm_cfg_bool(b, "tie_word_embeddings", NULL, b->arch->tied_default);
    if (lm_has(b, "head")) h->tied = false; /* a head of its own in the file is the one that is used */
    h->layer = lm_arena_calloc(b->g.p->arena, h->n_layers, sizeof *h->layer);
    if (!h->layer) {
        lm_graph_fail(&b->g, LM_NOMEM, "layers", "out of memory");
        return;
    }
    /* without a fixed width (some families have none, or one per layer) the hook fills it in */
    uint32_t ffn = 0;
    const lm_value *f = lm_cfg_raw(b, "intermediate_size|n_inner", "feed_forward_length");
    lm_cfg_not_null(b, "intermediate_size|n_inner");
    if (f && f->kind == LM_V_INT) ffn = lm_cfg_u32(b, "intermediate_size|n_inner", "feed_forward_length", 0, 1, MAX_WIDTH);
    h->ffn = ffn;
    for (uint32_t l = 0; l < h->n_layers; l++)
        h->layer[l] = (lm_layer_hp){.heads = h->heads,
                                    .kv_heads = kv[l],
                                    .dk = h->head_dim,
                                    .dv = dv,
                                    .rope = LM_NONE,
                                    .ffn = ffn,
                                    .scale = 1.0 / sqrt((double)h->head_dim),
                                    .kv_from = -1,
                                    .slot = LM_NONE};
    h->moe = (lm_moe_hp){.scale = 1.0, .groups = 1, .topk_groups = 1};
}

/* ---- norms ---------------------------------------------------------------------------------------------------------------------*/
static bool plus_one(const lm_b *b) { return b->arch->norm_plus_one && !b->gguf; }

lm_val lm_norm_of(lm_b *b, const char *role, lm_val x) {
    if (!lm_graph_ok(&b->g)) return LM_NONE;
    uint32_t n = lm_width(&b->g, x), w = lm_vec_of(b, role, ".weight", n, plus_one(b), false), bias = LM_NONE;
    if (b->arch->norm == LM_NORM_LAYER) bias = lm_vec_of(b, role, ".bias", n, false, !b->arch->norm_bias);
    return lm_op_norm(&b->g, role, x, b->arch->norm, 1, b->hp.eps, w, bias);
}

lm_val lm_head_norm(lm_b *b, const char *role, lm_val x, uint32_t heads) {
    if (!lm_graph_ok(&b->g)) return LM_NONE;
    uint32_t w = lm_vec_of(b, role, ".weight", lm_width(&b->g, x) / heads, plus_one(b), false);
    return lm_op_norm(&b->g, role, x, LM_NORM_RMS, heads, b->hp.eps, w, LM_NONE);
}

lm_val lm_residual(lm_b *b, const char *name, lm_val x, lm_val y) {
    if (b->hp.residual_scale != 1.0) {
        char scaled[64];
        snprintf(scaled, sizeof scaled, "%s.scaled", name);
        y = lm_op_scale(&b->g, scaled, y, b->hp.residual_scale);
    }
    return lm_op_add(&b->g, name, x, y);
}

/* ---- attention -----------------------------------------------------------------------------------------------------------------*/
static lm_val qk_norm(lm_b *b, const char *role, lm_val x, uint32_t heads) {
    if (b->hp.qk_norm == LM_QK_NONE) return x;
    lm_graph_trait(&b->g, 1, "QK-norm %s", b->hp.qk_norm == LM_QK_HEAD ? "per head" : "over the projection");
    return lm_head_norm(b, role, x, b->hp.qk_norm == LM_QK_HEAD ? heads : 1);
}

lm_val lm_attention_core(lm_b *b, uint32_t l, lm_val q, lm_val k, lm_val v, uint32_t sinks) {
    lm_layer_hp *a = &b->hp.layer[l];
    lm_graph *g = &b->g;
    bool own = a->kv_from < 0;
    q = qk_norm(b, "attn.q_norm", q, a->heads);
    if (own) k = qk_norm(b, "attn.k_norm", k, a->kv_heads);
    if (a->rope != LM_NONE) {
        q = lm_op_rope(g, "attn.q_rope", q, a->heads, 0, a->n_rot, a->rope, b->arch->rope_interleaved);
        if (own) k = lm_op_rope(g, "attn.k_rope", k, a->kv_heads, 0, a->n_rot, a->rope, b->arch->rope_interleaved);
    } else {
        lm_graph_trait(g, 2, "layers without rope");
    }
    a->slot = own ? lm_graph_slot(g, LM_CACHE_KV, a->kv_heads, a->dk, a->dv, a->window) : b->hp.layer[a->kv_from].slot;
    lm_op o = lm_op_blank();
    o.a = q;
    o.b = own ? k : LM_NONE;
    o.c = own ? v : LM_NONE;
    o.v = sinks;
    o.attn.heads = a->heads;
    o.attn.kv_heads = a->kv_heads;
    o.attn.dk = a->dk;
    o.attn.dv = a->dv;
    o.attn.window = a->window;
    o.attn.slot = a->slot;
    o.attn.scale = a->scale;
    o.attn.softcap = b->hp.attn_softcap;
    o.attn.store = own;
    if (a->window) lm_graph_trait(g, a->window + 1, "sliding window %u", a->window);
    if (a->kv_heads < a->heads) lm_graph_trait(g, 1, "grouped queries %u:%u", a->heads, a->kv_heads);
    if (b->hp.attn_softcap != 0.0) lm_graph_trait(g, 1, "attention soft-cap %g", b->hp.attn_softcap);
    if (sinks != LM_NONE) lm_graph_trait(g, 1, "attention sinks");
    if (!own) lm_graph_trait(g, 1, "shared KV layers");
    return lm_op_custom(g, LM_OP_ATTENTION, "attn.ctx", a->heads * a->dv, &o);
}

/* A q or k projection; a converter that interleaved the halves of each head is undone by the row map. */
static lm_val qk_linear(lm_b *b, const char *role, lm_val x, uint32_t heads, uint32_t dk) {
    lm_part part = {.rope_dim = b->gguf && b->arch->gguf_permuted_qk ? dk : 0};
    uint64_t rows = (uint64_t)heads * dk;
    if (!lm_graph_ok(&b->g)) return LM_NONE;
    uint32_t w = lm_mat_part(b, role, rows, lm_width(&b->g, x), rows, part);
    uint32_t bias = b->hp.attn_bias ? lm_vec_part(b, role, ".bias", 1, rows, rows, part, b->hp.attn_bias < 0) : LM_NONE;
    return lm_op_linear(&b->g, role, x, w, bias, false);
}

lm_val lm_attention(lm_b *b, uint32_t l, lm_val x) {
    const lm_layer_hp *a = &b->hp.layer[l];
    bool own = a->kv_from < 0;
    lm_val q = qk_linear(b, "attn.q", x, a->heads, a->dk);
    lm_val k = own ? qk_linear(b, "attn.k", x, a->kv_heads, a->dk) : LM_NONE;
    lm_val v = own ? lm_linear(b, "attn.v", x, (uint64_t)a->kv_heads * a->dv, b->hp.attn_bias, false) : LM_NONE;
    lm_val ctx = lm_attention_core(b, l, q, k, v, LM_NONE);
    return lm_linear(b, "attn.o", ctx, b->hp.hidden, b->hp.o_bias, true);
}

/* ---- feed-forward ---------------------------------------------------------------------------------------------------------------*/
lm_val lm_ffn_dense(lm_b *b, const char *gate, const char *up, const char *down, lm_val x, uint32_t width) {
    lm_graph *g = &b->g;
    if (!width) {
        const char *hf = "intermediate_size|n_inner", *gguf = "feed_forward_length";
        return lm_graph_fail(g, LM_FORMAT, lm_cfg_name(b, hf, gguf), "%s",
                             lm_cfg_has(b, hf, gguf) ? "should be an integer" : "is missing from the model's config");
    }
    char act[64];
    snprintf(act, sizeof act, "%.*s.act", (int)strcspn(down, ".") == 0 ? 3 : (int)(strrchr(down, '.') - down), down);
    lm_val u, h;
    if (gate) {
        lm_val t = lm_linear(b, gate, x, width, b->hp.mlp_bias, false);
        u = lm_linear(b, up, x, width, b->hp.mlp_bias, false);
        h = lm_op_gated(g, act, t, u, b->hp.act, 0.0, 0.0);
    } else {
        u = lm_linear(b, up, x, width, b->hp.mlp_bias, false);
        h = lm_op_act(g, act, u, b->hp.act);
    }
    return lm_linear(b, down, h, b->hp.hidden, b->hp.mlp_bias, true);
}

/* The experts' three stacks, however they are packaged: one by one, stacked apart, or gate|up fused. */
static void expert_weights(lm_b *b, lm_op *o) {
    const lm_moe_hp *m = &b->hp.moe;
    uint64_t h = b->hp.hidden, f = m->ffn;
    if (lm_has(b, "moe.gate_up")) {
        o->w = lm_mat_stack(b, "moe.gate_up", m->n, 2 * f, h, f, (lm_part){.base = 0});
        o->w2 = lm_mat_stack(b, "moe.gate_up", m->n, 2 * f, h, f, (lm_part){.base = f});
        o->w3 = lm_mat_stack(b, b->gguf ? "moe.down" : "moe.down_all", m->n, h, f, h, (lm_part){0});
    } else {
        o->w = lm_mat_stack(b, "moe.gate", m->n, f, h, f, (lm_part){0});
        o->w2 = lm_mat_stack(b, "moe.up", m->n, f, h, f, (lm_part){0});
        o->w3 = lm_mat_stack(b, "moe.down", m->n, h, f, h, (lm_part){0});
    }
}

lm_val lm_experts(lm_b *b, lm_val logits, lm_val x, uint32_t expert_scale) {
    const lm_moe_hp *m = &b->hp.moe;
    lm_graph *g = &b->g;
    if (!m->n || !m->k || m->k > m->n || !m->ffn)
        return lm_graph_fail(g, LM_FORMAT, lm_cfg_name(b, "num_experts", "expert_count"), "%u of %u experts of width %u make no mixture",
                             m->k, m->n, m->ffn);
    lm_op r = lm_op_blank(), e = lm_op_blank();
    r.a = logits;
    r.v2 = expert_scale;
    r.v = lm_has_bias(b, "moe.bias") ? lm_vec_of(b, "moe.bias", ".bias", m->n, false, false)
                                     : lm_vec_of(b, "moe.bias", "", m->n, false, true);
    r.route.n = m->n;
    r.route.k = m->k;
    r.route.groups = m->groups ? m->groups : 1;
    r.route.topk_groups = m->topk_groups ? m->topk_groups : 1;
    r.route.score = m->score;
    r.route.group = m->group;
    r.route.renorm = m->renorm;
    r.route.scale = m->scale;
    r.route.renorm_eps = m->renorm_eps;
    if (r.route.groups > m->n || m->n % r.route.groups || r.route.topk_groups > r.route.groups)
        return lm_graph_fail(g, LM_FORMAT, "n_group", "%u of %u groups don't fit %u experts", r.route.topk_groups, r.route.groups, m->n);
    if (m->group == LM_GROUP_TOP2) { /* a group's rank is the sum of its best two */
        uint32_t each = m->n / r.route.groups;
        if (each < 2)
            return lm_graph_fail(g, LM_FORMAT, "n_group", "%u groups of %u experts have fewer than two each", r.route.groups, m->n);
        if ((uint64_t)r.route.topk_groups * each < m->k)
            return lm_graph_fail(g, LM_FORMAT, "topk_group", "%u groups of %u experts hold fewer than the %u chosen", r.route.topk_groups,
                                 each, m->k);
    }
    e.a = x;
    e.b = lm_op_custom(g, LM_OP_ROUTE, "moe.route", 2 * m->k, &r);
    expert_weights(b, &e);
    e.experts.n = m->n;
    e.experts.k = m->k;
    e.experts.act = m->act ? m->act : b->hp.act;
    e.experts.limit = m->limit;
    e.experts.alpha = m->alpha;
    lm_val y = lm_op_custom(g, LM_OP_EXPERTS, "moe.out", b->hp.hidden, &e);
    lm_graph_trait(g, 1, "experts, %u of %u", m->k, m->n);
    if (m->group != LM_GROUP_NONE) lm_graph_trait(g, 1, "expert groups, %u of %u", m->topk_groups, m->groups);
    if (r.v != LM_NONE) lm_graph_trait(g, 1, "router correction bias");
    return y;
}

lm_val lm_moe(lm_b *b, uint32_t l, lm_val x) {
    (void)l;
    const lm_moe_hp *m = &b->hp.moe;
    lm_graph *g = &b->g;
    lm_val y = lm_experts(b, lm_linear(b, "moe.router", x, m->n, 0, false), x, LM_NONE);
    if (!m->n_shared) return y;
    lm_val s = lm_ffn_dense(b, "moe.shared.gate", "moe.shared.up", "moe.shared.down", x, m->shared_ffn);
    if (lm_has(b, "moe.shared.router")) {
        lm_val t = lm_linear(b, "moe.shared.router", x, 1, 0, false);
        s = lm_op_mul(g, "moe.shared.gated", s, lm_op_act(g, "moe.shared.weight", t, LM_ACT_SIGMOID));
    }
    return lm_op_add(g, "moe.sum", y, s);
}

lm_val lm_ffn(lm_b *b, uint32_t l, lm_val x) {
    if (b->hp.layer[l].moe) return lm_moe(b, l, x);
    return lm_ffn_dense(b, b->arch->plain_ffn ? NULL : "ffn.gate", "ffn.up", "ffn.down", x, b->hp.layer[l].ffn);
}

/* ---- a layer, and the whole ------------------------------------------------------------------------------------------------------*/
lm_val lm_layer(lm_b *b, uint32_t l, lm_val x) {
    const lm_arch *f = b->arch;
    lm_val (*attention)(lm_b *, uint32_t, lm_val) = f->attention ? f->attention : lm_attention;
    lm_val (*ffn)(lm_b *, uint32_t, lm_val) = f->ffn ? f->ffn : lm_ffn;
    lm_val n = f->no_pre_norm ? x : lm_norm_of(b, "attn.norm", x);
    lm_val a = attention(b, l, n);
    if (f->parallel) {
        lm_val y = lm_op_add(&b->g, "sublayers", a, ffn(b, l, n));
        return lm_residual(b, "out", x, y);
    }
    if (f->post_norm) a = lm_norm_of(b, "attn.post_norm", a);
    x = lm_residual(b, "attn.residual", x, a);
    n = f->no_pre_norm ? x : lm_norm_of(b, "ffn.norm", x);
    lm_val y = ffn(b, l, n);
    if (f->post_norm) y = lm_norm_of(b, "ffn.post_norm", y);
    return lm_residual(b, "out", x, y);
}

lm_val lm_embed(lm_b *b) {
    bool scaled = b->hp.embed_scale != 1.0;
    lm_val x = lm_op_embed(&b->g, scaled ? "embed.lookup" : "embed", lm_mat(b, "embed", b->hp.vocab, b->hp.hidden), false);
    if (!scaled) return x;
    x = lm_op_scale(&b->g, "embed", x, b->hp.embed_scale);
    if (lm_graph_ok(&b->g)) b->g.p->op[b->g.p->n_ops - 1].scale.bf16 = !b->arch->bf16.embed_scale_wide;
    return x;
}

void lm_decoder(lm_b *b) {
    lm_graph *g = &b->g;
    lm_program *p = g->p;
    lm_hparams *h = &b->hp;
    p->bf16 = b->arch->bf16;
    p->bf16.norm_plus_one = b->arch->norm_plus_one;
    lm_val x = b->arch->embed ? b->arch->embed(b) : lm_embed(b);
    p->embed = x;
    p->layer_out = lm_arena_calloc(p->arena, h->n_layers, sizeof *p->layer_out);
    if (!p->layer_out) lm_graph_fail(g, LM_NOMEM, "layers", "out of memory");
    for (uint32_t l = 0; l < h->n_layers && lm_graph_ok(g); l++) {
        b->l = l;
        g->layer = (int32_t)l;
        x = b->arch->layer ? b->arch->layer(b, l, x) : lm_layer(b, l, x);
        p->layer_out[l] = x;
    }
    g->layer = -1;
    if (!lm_graph_ok(g)) return;
    p->norm = b->arch->head ? b->arch->head(b, x) : lm_norm_of(b, "norm", x);
    p->head_first = p->n_ops;
    uint32_t w = lm_mat(b, h->tied ? "embed" : "head", h->vocab, h->hidden);
    x = lm_op_linear(g, "logits", p->norm, w, h->tied ? LM_NONE : lm_vec_of(b, "head", ".bias", h->vocab, false, true), false);
    if (h->logit_scale != 1.0) x = lm_op_scale(g, "logits.scaled", lm_rename(g, x, "logits.raw"), h->logit_scale);
    if (h->final_softcap != 0.0) {
        x = lm_op_softcap(g, "logits", h->logit_scale != 1.0 ? x : lm_rename(g, x, "logits.raw"), h->final_softcap);
        lm_graph_trait(g, 1, "final logit soft-cap %g", h->final_softcap);
    }
    if (lm_graph_ok(g)) lm_rename(g, x, "logits");
    p->logits = x;
    p->n_layers = h->n_layers;
    p->vocab = h->vocab;
    p->hidden = h->hidden;
    p->max_position = h->max_position;
}
