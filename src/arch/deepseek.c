/* DeepSeek V2 (and Lite), V3, V3.2 and GLM-5: latent attention (MLA); V3.2 and GLM-5 add a sparse indexer (DSA) that picks the keys.
 * The attention scale is (nope+rope)^−½ times the square of yarn's mscale_all_dim magnitude; the latent norms use eps 1e-6 always. */
#include "arch/common/export.h"
#include <string.h>

#define BLK "model.layers.{l}.self_attn."
static const lm_name names[] = {
    {"attn.q_a", BLK "q_a_proj", "blk.{l}.attn_q_a"},
    {"attn.q_a_norm", BLK "q_a_layernorm", "blk.{l}.attn_q_a_norm"},
    {"attn.q_b", BLK "q_b_proj", "blk.{l}.attn_q_b"},
    {"attn.kv_a", BLK "kv_a_proj_with_mqa", "blk.{l}.attn_kv_a_mqa"},
    {"attn.kv_a_norm", BLK "kv_a_layernorm", "blk.{l}.attn_kv_a_norm"},
    {"attn.kv_b", BLK "kv_b_proj", "blk.{l}.attn_kv_b"},
    {"attn.k_b", NULL, "blk.{l}.attn_k_b"},
    {"attn.v_b", NULL, "blk.{l}.attn_v_b"},
    {"index.q", BLK "indexer.wq_b", "blk.{l}.indexer.attn_q_b"},
    {"index.k", BLK "indexer.wk", "blk.{l}.indexer.attn_k"},
    {"index.k_norm", BLK "indexer.k_norm", "blk.{l}.indexer.k_norm"},
    {"index.weights", BLK "indexer.weights_proj", "blk.{l}.indexer.proj"},
    {NULL, NULL, NULL},
};
static const char *const ignored[] = {"head_dim",
                                      "qk_head_dim",
                                      "rope_interleave",
                                      "topk_method",
                                      "scoring_func",
                                      "moe_layer_freq",
                                      "layer_types",
                                      "attention.key_length",
                                      "attention.value_length",
                                      "first_k_dense_replace",
                                      "n_group",
                                      "topk_group",
                                      "norm_topk_prob",
                                      "num_key_value_heads",
                                      NULL};

typedef struct mla {
    uint32_t q_rank, rank, nope, rope, dv, table, n_rot;
    double scale;
    int bias; /* of q_a, kv_a and o */
    uint32_t index_heads, index_dim, index_topk;
    bool index_interleaved;
    lm_val index; /* the last full indexer's choice */
} mla;

static bool is(const lm_b *b, const char *name) { return !strcmp(b->arch->name, name); }

/* Layer l's word in a list that has one for each layer: yes or no; -1 where the config has no such list. */
static int word_at(lm_b *b, const char *key, uint32_t l, const char *yes, const char *no) {
    const char *s;
    if (!lm_cfg_str_at(b, key, NULL, l, &s)) return -1;
    if (strcmp(s, yes) && strcmp(s, no))
        lm_graph_fail(&b->g, LM_UNSUPPORTED, key, "layer %u is '%.40s'; lemma knows %s and %s", l, s, yes, no);
    return !strcmp(s, yes);
}

static void moe(lm_b *b) {
    lm_hparams *h = &b->hp;
    bool v2 = is(b, "deepseek_v2") && !b->gguf;
    uint32_t n = lm_cfg_u32(b, "n_routed_experts", "expert_count", v2 ? 64 : 256, 0, 65536);
    if (!n) return;
    uint32_t f = lm_cfg_u32(b, "moe_intermediate_size", "expert_feed_forward_length", v2 ? 1407 : 2048, 1, 1 << 20),
             shared = lm_cfg_u32(b, "n_shared_experts", "expert_shared_count", v2 ? 2 : 1, 0, 256);
    uint32_t gating = lm_cfg_u32(b, NULL, "expert_gating_func", is(b, "deepseek_v2") && b->gguf ? 1 : 2, 0, 16);
    bool sigmoid = b->gguf ? gating == 2 : !v2;
    if (b->gguf && gating != 1 && gating != 2)
        lm_graph_fail(&b->g, LM_UNSUPPORTED, "expert_gating_func", "is %u; lemma knows softmax (1) and sigmoid (2)", gating);
    lm_moe_hp m = {.n = n,
                   .k = lm_cfg_u32(b, "num_experts_per_tok", "expert_used_count", LM_REQUIRED, 1, n),
                   .ffn = f,
                   .n_shared = shared,
                   .shared_ffn = f * shared,
                   .scale = lm_cfg_f64(b, "routed_scaling_factor", "expert_weights_scale", v2 || b->gguf ? 1.0 : 2.5)};
    m.groups = lm_cfg_u32(b, "n_group", "expert_group_count", v2 || b->gguf || is(b, "glm_moe_dsa") ? 1 : 8, 1, n);
    m.topk_groups = lm_cfg_u32(b, "topk_group", "expert_group_used_count", v2 || b->gguf || is(b, "glm_moe_dsa") ? 1 : 4, 1, n);
    if (sigmoid) {
        m.score = LM_ROUTE_SIGMOID;
        m.group = m.groups > 1 ? LM_GROUP_TOP2 : LM_GROUP_NONE;
        m.renorm = lm_cfg_bool(b, "norm_topk_prob", "expert_weights_norm", true);
        m.renorm_eps = 1e-20;
    } else { /* V2 ignores norm_topk_prob; groups only when the method says so */
        const char *method = lm_cfg_str(b, "topk_method", NULL, b->gguf && m.groups > 1 ? "group_limited_greedy" : "greedy");
        m.score = LM_ROUTE_SOFTMAX;
        m.renorm = lm_cfg_bool(b, NULL, "expert_weights_norm", false);
        m.group = !strcmp(method, "group_limited_greedy") ? LM_GROUP_MAX : LM_GROUP_NONE;
        if (m.group == LM_GROUP_NONE && strcmp(method, "greedy"))
            lm_graph_fail(&b->g, LM_UNSUPPORTED, "topk_method", "'%.40s' is not known to lemma", method);
    }
    if (m.topk_groups > m.groups)
        lm_graph_fail(&b->g, LM_RANGE, "topk_group", "is %u; there are %u groups", m.topk_groups, m.groups);
    if (v2 && m.group == LM_GROUP_MAX && !lm_cfg_has(b, "topk_group", NULL))
        lm_graph_fail(&b->g, LM_FORMAT, "topk_group", "is missing from the model's config");
    if (m.group == LM_GROUP_NONE) m.groups = m.topk_groups = 1;
    h->moe = m;
    uint32_t dense = lm_cfg_u32(b, "first_k_dense_replace", "leading_dense_block_count", v2 ? 0 : 3, 0, 512);
    for (uint32_t l = 0; l < h->n_layers; l++) {
        int sparse = word_at(b, "mlp_layer_types", l, "sparse", "dense");
        h->layer[l].moe = sparse >= 0 ? sparse : l >= dense;
    }
}

static void index_params(lm_b *b, mla *m) {
    m->index_topk = lm_cfg_u32(b, "index_topk", "attention.indexer.top_k", 2048, 1, 1 << 20);
    m->index_heads = lm_cfg_u32(b, "index_n_heads", "attention.indexer.head_count", is(b, "glm_moe_dsa") ? 32 : 64, 1, 4096);
    m->index_dim = lm_cfg_u32(b, "index_head_dim", "attention.indexer.key_length", 128, 1, 4096);
    m->index_interleaved = is(b, "glm_moe_dsa");
    if (m->index_dim < m->rope)
        lm_graph_fail(&b->g, LM_FORMAT, "index_head_dim", "is %u, less than the %u rotated dims", m->index_dim, m->rope);
    lm_graph_trait(&b->g, m->index_topk + 1, "sparse index, top %u", m->index_topk);
}

static void params(lm_b *b) {
    lm_hparams *h = &b->hp;
    mla *m = b->own = lm_arena_alloc(b->g.p->arena, sizeof *m);
    if (!m) {
        lm_graph_fail(&b->g, LM_NOMEM, "parameters", "out of memory");
        return;
    }
    bool v2 = is(b, "deepseek_v2");
    m->index = LM_NONE;
    m->q_rank = lm_cfg_u32(b, "q_lora_rank", "attention.q_lora_rank", 0, 0, 1 << 20);
    m->rank = lm_cfg_u32(b, "kv_lora_rank", "attention.kv_lora_rank", 512, 1, 1 << 20);
    m->rope = lm_cfg_u32(b, "qk_rope_head_dim", "rope.dimension_count", 64, 2, 4096);
    m->dv = lm_cfg_u32(b, "v_head_dim", "attention.value_length_mla|attention.value_length", 128, 1, 1 << 16);
    m->nope = b->gguf ? lm_cfg_u32(b, NULL, "attention.key_length_mla|attention.key_length", LM_REQUIRED, m->rope + 1, 1 << 16) - m->rope
                      : lm_cfg_u32(b, "qk_nope_head_dim", NULL, is(b, "glm_moe_dsa") ? 192 : 128, 1, 1 << 16);
    m->bias = b->gguf ? -1 : lm_cfg_bool(b, "attention_bias", NULL, false);
    lm_rope_spec s = lm_rope_read(b, NULL, 1e4, 1.0);
    double mscale = 1.0;
    if (b->gguf) { /* the magnitude of all dims as a multiplier of ln(factor); that of rope is taken as equal */
        double mult = lm_cfg_f64(b, "mscale_all_dim", "rope.scaling.yarn_log_multiplier", 0.0);
        if (mult != 0.0) s.mscale_all = mult * 10.0;
        s.mscale = s.mscale_all;
    }
    if (strcmp(s.type, "default") && !isnan(s.mscale_all) && s.mscale_all != 0.0) mscale = lm_yarn_mscale(s.factor, s.mscale_all);
    s.partial = 1.0;
    s.dims = m->rope;
    m->table = lm_rope_table(b, &s, m->rope, &m->n_rot);
    m->scale = mscale * mscale / sqrt((double)(m->nope + m->rope));
    if (mscale != 1.0) lm_graph_trait(&b->g, 1, "yarn softmax scale × %.4f", mscale * mscale);
    lm_graph_trait(&b->g, 1, "latent attention, rank %u", m->rank);
    if (is(b, "deepseek_v3") && !b->gguf) lm_cfg_expect_bool(b, "rope_interleave", NULL, true);
    if (!b->gguf && h->kv_heads != h->heads)
        lm_graph_fail(&b->g, LM_FORMAT, "num_key_value_heads", "is %u of %u heads; latent attention has as many", h->kv_heads, h->heads);
    if (!v2) lm_cfg_expect_str(b, "topk_method", NULL, "noaux_tc");
    if (!b->gguf) lm_cfg_expect_str(b, "scoring_func", NULL, v2 ? "softmax" : "sigmoid");
    moe(b);
    if (is(b, "deepseek_v32") || is(b, "glm_moe_dsa")) index_params(b, m);
    h->attn_bias = 0;
    h->o_bias = m->bias;
    if (!b->gguf) h->mlp_bias = 0;
}

/* GLM-5: which layers have an indexer of their own. */
static bool has_index(lm_b *b, uint32_t l) {
    int full = word_at(b, "indexer_types", l, "full", "shared");
    if (full >= 0) return full;
    const char *type;
    const lm_value *pattern = lm_cfg_raw(b, "index_topk_pattern", NULL);
    if (pattern && pattern->kind == LM_V_STRING && pattern->str.len) return pattern->str.s[l % pattern->str.len] == 'F';
    if (pattern && lm_cfg_str_at(b, "index_topk_pattern", NULL, l, &type)) return type[0] == 'F';
    uint32_t freq = lm_cfg_u32(b, "index_topk_freq", NULL, 1, 1, 512), skip = lm_cfg_u32(b, "index_skip_topk_offset", NULL, 2, 0, 512);
    return l + 1 <= skip || (l + 1 - skip) % freq == 0;
}

static lm_val indexer(lm_b *b, const mla *m, lm_val x, lm_val q_resid) {
    lm_graph *g = &b->g;
    lm_val q = lm_linear(b, "index.q", q_resid, (uint64_t)m->index_heads * m->index_dim, 0, false),
           k = lm_linear(b, "index.k", x, m->index_dim, 0, false);
    k = lm_op_norm(g, "index.k_norm", k, LM_NORM_LAYER, 1, 1e-6, lm_vec_of(b, "index.k_norm", ".weight", m->index_dim, false, false),
                   lm_vec_of(b, "index.k_norm", ".bias", m->index_dim, false, false));
    q = lm_op_rope(g, "index.q_rope", q, m->index_heads, 0, m->n_rot, m->table, m->index_interleaved);
    k = lm_op_rope(g, "index.k_rope", k, 1, 0, m->n_rot, m->table, m->index_interleaved);
    lm_op o = lm_op_blank();
    o.a = q;
    o.b = k;
    o.c = lm_linear(b, "index.weights", x, m->index_heads, 0, false);
    o.index.heads = m->index_heads;
    o.index.dim = m->index_dim;
    o.index.topk = m->index_topk;
    o.index.scale = 1.0 / sqrt((double)m->index_heads * m->index_dim);
    o.index.slot = lm_graph_slot(g, LM_CACHE_INDEX, 1, m->index_dim, 0, 0);
    return lm_op_custom(g, LM_OP_INDEX, "index.topk", m->index_topk, &o);
}

/* GGUF holds kv_b as two stacks, k's transposed: [heads][rank][nope] and [heads][dv][rank]. Put together again as kv_b's rows: turned
 * into memory in double, so that
 * nothing is rounded. */
static uint32_t split_kv_b(lm_b *b, const mla *m) {
    uint32_t heads = b->hp.heads, kv = m->nope + m->dv;
    const lm_tensor *k = lm_tensor_of(b, "attn.k_b", ".weight"), *v = lm_tensor_of(b, "attn.v_b", ".weight");
    lm_arena *a = b->g.p->arena;
    if (!k || !v) return lm_graph_fail(&b->g, LM_FORMAT, "attn_v_b", "stands alone: k_b and v_b must both be there");
    if (k->rank != 3 || k->dim[0] != heads || k->dim[1] != m->rank || k->dim[2] != m->nope)
        return lm_graph_fail(&b->g, LM_FORMAT, k->name, "the config wants shape [%u, %u, %u]", heads, m->rank, m->nope);
    if (v->rank != 3 || v->dim[0] != heads || v->dim[1] != m->dv || v->dim[2] != m->rank)
        return lm_graph_fail(&b->g, LM_FORMAT, v->name, "the config wants shape [%u, %u, %u]", heads, m->dv, m->rank);
    uint64_t n = (uint64_t)heads * kv * m->rank;
    double *all = lm_arena_calloc(a, n, sizeof *all), *row = lm_arena_calloc(a, m->nope, sizeof *row);
    lm_tensor *own = lm_arena_alloc(a, sizeof *own);
    lm_segment *s = lm_arena_alloc(a, sizeof *s);
    if (!all || !row || !own || !s) return lm_graph_fail(&b->g, LM_NOMEM, k->name, "out of memory transposing the tensor");
    for (uint64_t h = 0; h < heads; h++) {
        double *to = all + h * kv * m->rank;
        for (uint64_t r = 0; r < m->rank; r++) {
            lm_tensor_row_f64(k, h * m->rank + r, row);
            for (uint64_t i = 0; i < m->nope; i++) to[i * m->rank + r] = row[i];
        }
        for (uint64_t i = 0; i < m->dv; i++) lm_tensor_row_f64(v, h * m->dv + i, to + (m->nope + i) * m->rank);
    }
    *own = (lm_tensor){.name = k->name,
                       .type = lm_dtype_by_name("F64"),
                       .rank = 2,
                       .dim = {(uint64_t)heads * kv, m->rank},
                       .data = (const uint8_t *)all,
                       .bytes = n * sizeof *all,
                       .file = UINT32_MAX};
    *s = (lm_segment){.t = own, .count = own->dim[0], .group = own->dim[0], .step = 1};
    return lm_graph_weight(
        &b->g, &(lm_weight){.name = k->name, .type = own->type, .n_mat = 1, .rows = own->dim[0], .cols = m->rank, .n_seg = 1, .seg = s});
}

static lm_val attention(lm_b *b, uint32_t l, lm_val x) {
    lm_graph *g = &b->g;
    mla *m = b->own;
    uint32_t heads = b->hp.heads, kv = m->nope + m->dv;
    lm_val q, resid = LM_NONE;
    if (m->q_rank) {
        resid = lm_linear(b, "attn.q_a", x, m->q_rank, m->bias, false);
        resid = lm_op_norm(g, "attn.q_a_norm", resid, LM_NORM_RMS, 1, 1e-6,
                           lm_vec_of(b, "attn.q_a_norm", ".weight", m->q_rank, false, false), LM_NONE);
        q = lm_linear(b, "attn.q_b", resid, (uint64_t)heads * (m->nope + m->rope), 0, false);
    } else {
        q = lm_linear(b, "attn.q", x, (uint64_t)heads * (m->nope + m->rope), 0, false);
    }
    q = lm_op_rope(g, "attn.q_rope", q, heads, m->nope, m->n_rot, m->table, true);
    lm_val a = lm_linear(b, "attn.kv_a", x, m->rank + m->rope, m->bias, false);
    lm_val latent = lm_op_slice(g, "attn.latent", a, 0, m->rank, 1, m->rank),
           k = lm_op_slice(g, "attn.k_pe", a, m->rank, m->rope, 1, m->rope);
    latent = lm_op_norm(g, "attn.kv_a_norm", latent, LM_NORM_RMS, 1, 1e-6, lm_vec_of(b, "attn.kv_a_norm", ".weight", m->rank, false, false),
                        LM_NONE);
    k = lm_op_rope(g, "attn.k_rope", k, 1, 0, m->n_rot, m->table, true);
    lm_op o = lm_op_blank();
    if (m->index_topk) {
        if (has_index(b, l)) m->index = indexer(b, m, x, resid);
        if (m->index == LM_NONE)
            return lm_graph_fail(g, LM_FORMAT, "indexer_types", "layer %u shares an index that no earlier layer has", l);
        o.d = m->index;
    }
    o.a = q;
    o.b = latent;
    o.c = k;
    o.mla.heads = heads;
    o.mla.nope = m->nope;
    o.mla.rope = m->rope;
    o.mla.dv = m->dv;
    o.mla.rank = m->rank;
    o.mla.scale = m->scale;
    o.mla.slot = lm_graph_slot(g, LM_CACHE_LATENT, 1, m->rank + m->rope, 0, 0);
    o.w = b->gguf && lm_has(b, "attn.k_b") ? split_kv_b(b, m) : lm_mat(b, "attn.kv_b", (uint64_t)heads * kv, m->rank);
    lm_val ctx = lm_op_custom(g, LM_OP_MLA, "attn.ctx", heads * m->dv, &o);
    return lm_linear(b, "attn.o", ctx, b->hp.hidden, m->bias, true);
}

/* GGUF says the absorbed form's geometry, and holds kv_b apart: each head's k rows transposed, and its v rows. */
static void split_for_gguf(lm_b *b, const mla *m, lm_export_tensor *k) {
    uint64_t heads = b->hp.heads, kv = m->nope + m->dv;
    lm_segment *s = lm_arena_alloc(b->g.p->arena, sizeof *s);
    lm_weight *w = lm_arena_alloc(b->g.p->arena, sizeof *w);
    lm_export_tensor *v = lm_export_add(b, "attn.v_b", ".weight", k->layer);
    k = lm_export_find(b, "attn.kv_b", k->layer); /* adding may have moved it */
    if (!s || !w || !v || !k || !lm_export_name(b, k, "attn.k_b", ".weight")) {
        lm_graph_fail(&b->g, LM_NOMEM, "attn_kv_b", "out of memory");
        return;
    }
    *s = *k->w->seg;
    *w = *k->w;
    s->base = m->nope;
    s->group = m->dv;
    s->group_stride = kv;
    s->count = w->rows = heads * m->dv;
    w->seg = s;
    v->w = w;
    v->rank = k->rank = 3;
    memcpy(v->dim, (const uint64_t[]){heads, m->dv, m->rank}, 3 * sizeof(uint64_t));
    memcpy(k->dim, (const uint64_t[]){heads, m->rank, m->nope}, 3 * sizeof(uint64_t));
    k->head_rows = (uint32_t)kv;
}

static void to_gguf(lm_b *b) {
    const mla *m = b->own;
    const lm_rope_spec *s = lm_export_rope(b);
    lm_export_u32(b, "attention.head_count_kv", 1);
    lm_export_u32(b, "attention.key_length", m->rank + m->rope);
    lm_export_u32(b, "attention.value_length", m->rank);
    lm_export_u32(b, "attention.key_length_mla", m->nope + m->rope);
    lm_export_u32(b, "attention.value_length_mla", m->dv);
    if (s && strcmp(s->type, "default") && s->mscale_all != 0.0) lm_export_f32(b, "rope.scaling.yarn_log_multiplier", 0.1 * s->mscale_all);
    for (uint32_t l = 0; l < b->hp.n_layers; l++) {
        lm_export_tensor *k = lm_export_find(b, "attn.kv_b", l);
        if (k) split_for_gguf(b, m, k);
    }
}

const lm_arch lm_arch_deepseek_v2 = {
    .name = "deepseek_v2",
    .model_types = (const char *const[]){"deepseek_v2", NULL},
    .nullable = "head_dim|num_key_value_heads|q_lora_rank|n_group|topk_group|scoring_func",
    .gguf = "deepseek2",
    .to_gguf = to_gguf,
    .names = names,
    .ignored = ignored,
    .params = params,
    .attention = attention,
};
const lm_arch lm_arch_deepseek_v3 = {
    .name = "deepseek_v3",
    .model_types = (const char *const[]){"deepseek_v3", NULL},
    .nullable = "num_key_value_heads|q_lora_rank|topk_method|scoring_func",
    .gguf = "deepseek2",
    .to_gguf = to_gguf,
    .gguf_alias = true,
    .names = names,
    .ignored = ignored,
    .params = params,
    .attention = attention,
};
const lm_arch lm_arch_deepseek_v32 = {
    .name = "deepseek_v32",
    .model_types = (const char *const[]){"deepseek_v32", NULL},
    .nullable = "topk_method|scoring_func",
    .names = names,
    .ignored = ignored,
    .params = params,
    .attention = attention,
};
const lm_arch lm_arch_glm_moe_dsa = {
    .name = "glm_moe_dsa",
    .model_types = (const char *const[]){"glm_moe_dsa", NULL},
    .nullable = "topk_method|scoring_func",
    .gguf = "glm-dsa",
    .to_gguf = to_gguf,
    .names = names,
    .ignored = ignored,
    .eps_default = 1e-5,
    .params = params,
    .attention = attention,
};
