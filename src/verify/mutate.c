/* Planted faults: each changes one op of a program as a port of the model might have got it wrong. They are what the diff's own detection
 * is measured with (docs/envelope.md); nothing else uses them.
 */
#include "verify/diff.h"
#include <math.h>
#include <string.h>

typedef struct plant {
    lm_program *p;
    lm_op *op;
    lm_error *err;
} plant;
typedef struct mutation {
    const char *name;
    bool (*fits)(const lm_program *p, const lm_op *op);
    lm_status (*plant)(plant *m);
} mutation;

/* ---- what the faults need -------------------------------------------------------------------------------------------------------------
 */
/* A changed copy of a vector; other ops keep theirs. */
static lm_status own_vec(plant *m, uint32_t *v, double by, double times) {
    lm_program *p = m->p;
    const lm_vec *old = *v == LM_NONE ? NULL : &p->vec[*v];
    lm_vec *all = lm_arena_calloc(p->arena, (size_t)p->n_vecs + 1, sizeof *all);
    double *x = old ? lm_arena_calloc(p->arena, old->n, sizeof *x) : NULL;
    if (!all || !x) return lm_fail_nomem(m->err, "a vector", 0);
    memcpy(all, p->vec, p->n_vecs * sizeof *all);
    for (uint64_t i = 0; i < old->n; i++) x[i] = old->v[i] * times + by;
    all[p->n_vecs] = (lm_vec){old->name, old->n, x};
    p->vec = all;
    *v = p->n_vecs++;
    return LM_OK;
}
/* A changed copy of the op's rope table: pair i of n, from the given one on, turns base^(i/n) times as fast. */
static lm_status own_rope(plant *m, double base, double factor, uint32_t from) {
    lm_program *p = m->p;
    const lm_rope *old = &p->rope[m->op->rope.rope];
    lm_rope *all = lm_arena_calloc(p->arena, (size_t)p->n_ropes + 1, sizeof *all);
    double *f = lm_arena_calloc(p->arena, old->n_pairs, sizeof *f);
    if (!all || !f) return lm_fail_nomem(m->err, "a rope", 0);
    memcpy(all, p->rope, p->n_ropes * sizeof *all);
    for (uint32_t i = 0; i < old->n_pairs; i++) f[i] = i < from ? old->inv_freq[i] : old->inv_freq[i] * pow(base, (double)i / old->n_pairs);
    all[p->n_ropes] = *old;
    all[p->n_ropes].inv_freq = f;
    all[p->n_ropes].factor *= factor;
    p->rope = all;
    m->op->rope.rope = p->n_ropes++;
    return LM_OK;
}
static uint32_t width(const lm_program *p, lm_val v) { return v == LM_NONE ? 0 : p->value[v].width; }

#define FITS(name, test) \
    static bool fits_##name(const lm_program *p, const lm_op *op) { \
        (void)p; \
        return test; \
    }
#define PLANT(name, ...) \
    static lm_status plant_##name(plant *m) { \
        lm_op *op = m->op; \
        (void)op; \
        __VA_ARGS__; \
        return LM_OK; \
    }
#define VEC(name, which, by, times) \
    static lm_status plant_##name(plant *m) { return own_vec(m, &m->op->which, by, times); }

/* ---- the faults -------------------------------------------------------------------------------------------------------------------------
 */
FITS(rope, op->kind == LM_OP_ROPE)
static lm_status plant_rope_base(plant *m) { return own_rope(m, 0.1, 1, 0); }
static lm_status plant_rope_scaling(plant *m) { return own_rope(m, 0.5, 1, m->p->rope[m->op->rope.rope].n_pairs / 2); }
static lm_status plant_rope_factor(plant *m) { return own_rope(m, 1, 1.19, 0); }
PLANT(rope_pairs, op->rope.interleaved = !op->rope.interleaved)
FITS(rope_partial, op->kind == LM_OP_ROPE && op->rope.n_rot < op->rope.head_dim && op->rope.offset + op->rope.n_rot < op->rope.head_dim)
PLANT(rope_offset, op->rope.offset = op->rope.head_dim - op->rope.n_rot)

FITS(norm, op->kind == LM_OP_NORM)
FITS(norm_weight, op->kind == LM_OP_NORM && op->v != LM_NONE)
FITS(norm_bias, op->kind == LM_OP_NORM && op->v2 != LM_NONE)
PLANT(norm_eps_large, op->norm.eps = op->norm.eps > 0 ? op->norm.eps * 10 : 1e-5)
PLANT(norm_eps_none, op->norm.eps = 0)
VEC(norm_plus_one, v, 1, 1)
VEC(norm_minus_one, v, -1, 1)
PLANT(norm_weight_dropped, op->v = LM_NONE)
PLANT(norm_bias_dropped, op->v2 = LM_NONE)
PLANT(norm_kind, op->norm.norm = op->norm.norm == LM_NORM_RMS ? LM_NORM_LAYER : LM_NORM_RMS)
PLANT(norm_l2, op->norm.norm = LM_NORM_L2)
FITS(norm_grouped, op->kind == LM_OP_NORM && op->norm.groups > 1 && op->v == LM_NONE)
PLANT(norm_ungrouped, op->norm.groups = 1)

FITS(bias, op->kind == LM_OP_LINEAR && op->v != LM_NONE)
PLANT(bias_dropped, op->v = LM_NONE)
VEC(bias_twice, v, 0, 2)

FITS(attention, op->kind == LM_OP_ATTENTION)
FITS(window, op->kind == LM_OP_ATTENTION && op->attn.window > 1)
FITS(full, op->kind == LM_OP_ATTENTION && !op->attn.window)
FITS(sink, op->kind == LM_OP_ATTENTION && op->v != LM_NONE)
FITS(attn_cap, op->kind == LM_OP_ATTENTION && op->attn.softcap > 0)
PLANT(scale_dropped, op->attn.scale = 1)
PLANT(scale_dim, op->attn.scale *= 1.4142135623730951)
PLANT(window_shorter, op->attn.window--)
PLANT(window_one_past, op->attn.window -= op->attn.window > 2 ? 2 : 1)
PLANT(window_added, op->attn.window = 4)
PLANT(sink_dropped, op->v = LM_NONE)
VEC(sink_halved, v, 0, 0.5)
PLANT(attn_cap_dropped, op->attn.softcap = 0)
PLANT(attn_cap_other, op->attn.softcap *= 2)
PLANT(sees_itself_only, op->attn.window = 1)
PLANT(keys_and_values, const lm_val b = op->b; op->b = op->c; op->c = b)
FITS(same_kv, op->kind == LM_OP_ATTENTION && op->attn.store && op->attn.dk == op->attn.dv)
FITS(indexed, (op->kind == LM_OP_ATTENTION || op->kind == LM_OP_MLA) && op->d != LM_NONE)
PLANT(index_ignored, op->d = LM_NONE)

FITS(mla, op->kind == LM_OP_MLA)
PLANT(mscale, op->mla.scale *= 1.5896)
PLANT(mla_scale, op->mla.scale *= sqrt((double)(op->mla.nope + op->mla.rope) / op->mla.nope))

FITS(scaled, op->kind == LM_OP_SCALE && op->v == LM_NONE && op->scale.c != 1)
FITS(scale_vec, op->kind == LM_OP_SCALE && op->v != LM_NONE)
PLANT(scale_none, op->scale.c = 1)
PLANT(scale_inverse, op->scale.c = 1 / op->scale.c)
VEC(scale_vec_shifted, v, 1, 1)

FITS(softcap, op->kind == LM_OP_SOFTCAP)
PLANT(softcap_none, op->softcap.c = 1e30)
PLANT(softcap_other, op->softcap.c *= 2)

FITS(gated, op->kind == LM_OP_GATED)
FITS(gated_clamped, op->kind == LM_OP_GATED && op->act.limit > 0)
FITS(acts, op->kind == LM_OP_ACT || op->kind == LM_OP_GATED)
PLANT(act_other, op->act.act = op->act.act == LM_ACT_SILU ? LM_ACT_GELU_TANH : LM_ACT_SILU)
PLANT(act_exact, op->act.act = LM_ACT_GELU)
FITS(act_tanh, (op->kind == LM_OP_ACT || op->kind == LM_OP_GATED) && op->act.act == LM_ACT_GELU_TANH)
PLANT(gate_and_up, const lm_val a = op->a; op->a = op->b; op->b = a)
PLANT(clamp_dropped, op->act.limit = 0)

FITS(route, op->kind == LM_OP_ROUTE)
FITS(renorm, op->kind == LM_OP_ROUTE && op->route.score != LM_ROUTE_SOFTMAX_TOPK && op->route.k > 1)
FITS(route_bias, op->kind == LM_OP_ROUTE && op->v != LM_NONE)
FITS(route_scale, op->kind == LM_OP_ROUTE && op->route.scale != 1)
FITS(route_groups, op->kind == LM_OP_ROUTE && op->route.group != LM_GROUP_NONE && op->route.topk_groups < op->route.groups)
PLANT(renorm_flipped, op->route.renorm = !op->route.renorm)
PLANT(route_bias_dropped, op->v = LM_NONE)
PLANT(route_scale_dropped, op->route.scale = 1)
PLANT(route_groups_ignored, op->route.group = LM_GROUP_NONE)
PLANT(route_score, op->route.score = op->route.score == LM_ROUTE_SIGMOID ? LM_ROUTE_SOFTMAX : LM_ROUTE_SIGMOID)

FITS(experts, op->kind == LM_OP_EXPERTS)
FITS(expert_bias, op->kind == LM_OP_EXPERTS && op->v3 != LM_NONE)
FITS(expert_clamped, op->kind == LM_OP_EXPERTS && op->experts.limit > 0)
FITS(expert_plain, op->kind == LM_OP_EXPERTS && op->experts.act == LM_ACT_SILU)
PLANT(experts_swapped, const uint32_t w = op->w; op->w = op->w2; op->w2 = w)
PLANT(expert_bias_dropped, op->v3 = LM_NONE)
PLANT(expert_clamp_dropped, op->experts.limit = 1e30)
PLANT(expert_act, op->experts.act = LM_ACT_GELU_TANH)

FITS(conv, op->kind == LM_OP_CONV)
PLANT(conv_act, op->conv.act = op->conv.act == LM_ACT_SILU ? LM_ACT_NONE : LM_ACT_SILU)
VEC(conv_weight, v, 0, 0.5)
FITS(decay, op->kind == LM_OP_DECAY)
FITS(decay_bias, op->kind == LM_OP_DECAY && op->v2 != LM_NONE)
VEC(decay_sign, v, 0, -1)
PLANT(decay_bias_zero, LM_TRY(own_vec(m, &op->v2, 0, 0)))
FITS(delta, op->kind == LM_OP_DELTA)
FITS(delta_grouped, op->kind == LM_OP_DELTA && op->delta.k_heads > 1 && op->delta.k_heads < op->delta.v_heads)
PLANT(delta_scale, op->delta.q_scale = 1)
PLANT(delta_heads, op->delta.tiled = !op->delta.tiled)
FITS(same_qk, op->kind == LM_OP_DELTA && op->a != op->b)
PLANT(delta_qk, const lm_val a = op->a; op->a = op->b; op->b = a)

FITS(add, op->kind == LM_OP_ADD && width(p, op->a) == width(p, op->b) && op->a != op->b)
PLANT(residual_lost, op->b = op->a)
FITS(slice, op->kind == LM_OP_SLICE && op->slice.offset > 0)
PLANT(slice_first, op->slice.offset = 0)
FITS(sparsify, op->kind == LM_OP_SPARSIFY)
PLANT(sparsity, op->sparsify.c = 0)
FITS(mix, op->kind == LM_OP_MIX)
PLANT(mix_residual, op->mix.residual = !op->mix.residual)

static const mutation mutations[] = {
    {"rope base", fits_rope, plant_rope_base},
    {"rope scaling of the slow pairs", fits_rope, plant_rope_scaling},
    {"rope magnitude", fits_rope, plant_rope_factor},
    {"rope pairs interleaved or not", fits_rope, plant_rope_pairs},
    {"partial rope at the wrong end", fits_rope_partial, plant_rope_offset},
    {"norm eps ten times", fits_norm, plant_norm_eps_large},
    {"norm eps left out", fits_norm, plant_norm_eps_none},
    {"norm weight + 1", fits_norm_weight, plant_norm_plus_one},
    {"norm weight - 1", fits_norm_weight, plant_norm_minus_one},
    {"norm weight dropped", fits_norm_weight, plant_norm_weight_dropped},
    {"norm bias dropped", fits_norm_bias, plant_norm_bias_dropped},
    {"RMS norm for layer norm", fits_norm, plant_norm_kind},
    {"L2 norm for RMS norm", fits_norm, plant_norm_l2},
    {"norm over the row, not the heads", fits_norm_grouped, plant_norm_ungrouped},
    {"bias dropped", fits_bias, plant_bias_dropped},
    {"bias added twice", fits_bias, plant_bias_twice},
    {"attention scale dropped", fits_attention, plant_scale_dropped},
    {"attention scale of half the head", fits_attention, plant_scale_dim},
    {"window - 1", fits_window, plant_window_shorter},
    {"window - 2", fits_window, plant_window_one_past},
    {"window on a full layer", fits_full, plant_window_added},
    {"sinks dropped", fits_sink, plant_sink_dropped},
    {"sinks halved", fits_sink, plant_sink_halved},
    {"attention soft-cap missing", fits_attn_cap, plant_attn_cap_dropped},
    {"attention soft-cap doubled", fits_attn_cap, plant_attn_cap_other},
    {"mask: itself only", fits_attention, plant_sees_itself_only},
    {"keys for values", fits_same_kv, plant_keys_and_values},
    {"sparse index ignored", fits_indexed, plant_index_ignored},
    {"mscale in the softmax", fits_mla, plant_mscale},
    {"MLA scale without the rope part", fits_mla, plant_mla_scale},
    {"scale dropped", fits_scaled, plant_scale_none},
    {"scale inverted", fits_scaled, plant_scale_inverse},
    {"scale vector + 1", fits_scale_vec, plant_scale_vec_shifted},
    {"soft-cap missing", fits_softcap, plant_softcap_none},
    {"soft-cap doubled", fits_softcap, plant_softcap_other},
    {"SiLU for GELU or the reverse", fits_acts, plant_act_other},
    {"GELU exact for tanh", fits_act_tanh, plant_act_exact},
    {"gate and up swapped", fits_gated, plant_gate_and_up},
    {"clamp dropped", fits_gated_clamped, plant_clamp_dropped},
    {"router's renormalisation", fits_renorm, plant_renorm_flipped},
    {"router's bias dropped", fits_route_bias, plant_route_bias_dropped},
    {"router's scale dropped", fits_route_scale, plant_route_scale_dropped},
    {"router's groups ignored", fits_route_groups, plant_route_groups_ignored},
    {"router's score function", fits_route, plant_route_score},
    {"experts' gate and up swapped", fits_experts, plant_experts_swapped},
    {"experts' bias dropped", fits_expert_bias, plant_expert_bias_dropped},
    {"experts' clamp dropped", fits_expert_clamped, plant_expert_clamp_dropped},
    {"experts' activation", fits_expert_plain, plant_expert_act},
    {"convolution's activation", fits_conv, plant_conv_act},
    {"convolution's weight halved", fits_conv, plant_conv_weight},
    {"decay's A negated", fits_decay, plant_decay_sign},
    {"decay's bias dropped", fits_decay_bias, plant_decay_bias_zero},
    {"delta rule's query scale", fits_delta, plant_delta_scale},
    {"delta rule's head grouping", fits_delta_grouped, plant_delta_heads},
    {"delta rule's q for k", fits_same_qk, plant_delta_qk},
    {"residual lost", fits_add, plant_residual_lost},
    {"slice at the wrong columns", fits_slice, plant_slice_first},
    {"activation sparsity", fits_sparsify, plant_sparsity},
    {"streams' residual", fits_mix, plant_mix_residual},
};

uint32_t lm_mutations(void) { return sizeof mutations / sizeof *mutations; }
const char *lm_mutation_name(uint32_t m) { return mutations[m].name; }

uint32_t lm_mutation_place(const lm_program *p, uint32_t m, uint32_t nth) {
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (mutations[m].fits(p, &p->op[i]) && !nth--) return i;
    return LM_NONE;
}

lm_status lm_mutate(lm_program *p, uint32_t op, uint32_t m, lm_error *err) {
    plant where = {p, &p->op[op], err};
    return mutations[m].plant(&where);
}
