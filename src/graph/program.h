/* The program: a model as a flat array of ops with named results.
 *
 * An op says what is computed and on which weights, never how. The program is built once at load and never changes: no op is added or
 * skipped per step. Every value is a matrix [rows, width] of activations, a row being one token of one sequence at one position;
 * `width` is fixed at build time. A backend computes the values in its own precision (double for f64, float for cpu).
 *
 * Conventions: heads are laid out head-major inside a row ([head][dim]). `lm_val` is an index into value[], LM_NONE where an operand is
 * absent. Weights are indices into weight[] (matrices) or vec[] (vectors, already decoded exactly to double).
 */
#ifndef LM_GRAPH_PROGRAM_H
#define LM_GRAPH_PROGRAM_H
#include "base/mem.h"
#include "tensor/tensor.h"

typedef uint32_t lm_val;
#define LM_NONE UINT32_MAX

/* ---- weights ----------------------------------------------------------------------------------------------------------------
 * A weight is a stack of n_mat logical matrices [rows, cols], a row being a whole row of some stored tensor: whatever a checkpoint's
 * packaging did (fused q|k|v, gate|up halves or interleaved, experts one by one or stacked, permuted q/k rows) is undone by the row map,
 * without a copy. Row r of matrix m is in the segment that holds r: tensor `t` (or tensor_of_mat[m] when experts are separate files),
 * stored row  base + m*mat_stride + ((r' / group) * group_stride + (r' % group) * step),  r' = r − first, then unpermuted if `rope_dim`. */
typedef struct lm_segment {
    const lm_tensor *t;
    const lm_tensor *const *per_mat; /* n_mat tensors, or NULL: all matrices in t */
    uint64_t first, count;           /* logical rows [first, first+count) */
    uint64_t base, mat_stride, group, group_stride, step;
    uint32_t rope_dim; /* non-zero: rows come in heads of rope_dim whose halves a converter interleaved; logical order is half-split */
} lm_segment;

typedef struct lm_weight {
    const char *name;     /* the (first) stored tensor's name */
    const lm_dtype *type; /* of all its rows */
    uint32_t n_mat;
    uint64_t rows, cols;
    uint32_t n_seg;
    lm_segment *seg;
} lm_weight;
/* Where row r of matrix m is stored. */
void lm_weight_row(const lm_weight *w, uint32_t m, uint64_t r, const lm_tensor **t, uint64_t *row);
void lm_weight_row_f64(const lm_weight *w, uint32_t m, uint64_t r, double *dst);
void lm_weight_row_f32(const lm_weight *w, uint32_t m, uint64_t r, float *dst);

/* A vector (norm weight, bias, scalar, table of n_mat×n): decoded exactly, with `1 +` already added where the family's norm is 1 + w. */
typedef struct lm_vec {
    const char *name;
    uint64_t n;
    const double *v;
} lm_vec;

/* ---- rope -------------------------------------------------------------------------------------------------------------------
 * Pair i of a rotated head turns by position * inv_freq[i]; cos and sin are multiplied by `factor`. A longrope table has a second set,
 * used for the whole sequence when its length exceeds `border` (0: no second set). inv_freq are float32 values, as the reference stores. */
typedef struct lm_rope {
    uint32_t n_pairs;
    const double *inv_freq;
    const double *inv_freq_long;
    uint32_t border;
    double factor;
} lm_rope;

/* ---- caches: what a sequence remembers between steps ---------------------------------------------------------------------------*/
typedef enum lm_cache_kind {
    LM_CACHE_KV,     /* keys [heads][dk] and values [heads][dv] per position, pages of 256; window > 0: only the last `window` matter */
    LM_CACHE_LATENT, /* MLA: heads = 1, dk = kv_lora_rank + rope dim, dv = 0 */
    LM_CACHE_INDEX,  /* sparse indexer: heads = 1, dk = index head dim, dv = 0 */
    LM_CACHE_CONV,   /* the last dv inputs of width dk (dv = kernel − 1) */
    LM_CACHE_DELTA   /* a matrix [dk][dv] per head */
} lm_cache_kind;
typedef struct lm_cache_slot {
    lm_cache_kind kind;
    uint32_t heads, dk, dv;
    uint32_t window; /* 0: everything is kept */
} lm_cache_slot;

/* ---- ops ----------------------------------------------------------------------------------------------------------------------*/
#define LM_OP_LIST(X) \
    X(EMBED)     /* row of a table, by token id or by position */ \
    X(SCALE)     /* a * c, or a * vec (width or 1 long) */ \
    X(ADD)       /* a + b */ \
    X(MUL)       /* a * b; b may be 1 wide: a scalar per row */ \
    X(NORM)      /* RMS, layer or L2 norm over each of `groups` equal parts of the row */ \
    X(LINEAR)    /* a · Wᵀ + bias */ \
    X(ACT)       /* act(a) */ \
    X(GATED)     /* act(gate) * up, with the clamped form of gpt-oss */ \
    X(ROPE)      /* rotate `n_rot` dims at `offset` of every head */ \
    X(ATTENTION) /* store k, v in the cache; softmax(q·kᵀ) v over what is visible */ \
    X(MLA)       /* latent attention */ \
    X(INDEX)     /* sparse indexer: the positions that a later ATTENTION/MLA may see */ \
    X(ROUTE)     /* router logits → chosen expert ids and weights */ \
    X(EXPERTS)   /* Σ weight_e · down_e(act(gate_e x) * up_e x) over the chosen, in the tree over expert ids */ \
    X(CONV)      /* causal depthwise convolution along the sequence, with state */ \
    X(DECAY)     /* −exp(A_log) * softplus(a + dt_bias) */ \
    X(DELTA)     /* gated delta rule, recurrent */ \
    X(SOFTCAP)   /* c * tanh(a / c) */ \
    X(SLICE)     /* groups of columns, copied out */ \
    X(CONCAT)    /* a | b */ \
    X(SPARSIFY)  /* relu(a − (mean + std * c)): gemma3n's activation sparsity */ \
    X(MATCH_RMS) /* a * √mean(b²) / √max(mean(a²), eps): gemma3n's magnitude matching */ \
    X(MIX)       /* streams of width H mixed by per-row coefficients: out_i = Σ_j coef[j*n+i] a_j (+ a_i) */ \
    X(SPREAD)    /* out_i = a_i + coef_i * b : one vector b spread over n streams */

typedef enum lm_op_kind {
#define LM_OP_ENUM(k) LM_OP_##k,
    LM_OP_LIST(LM_OP_ENUM)
#undef LM_OP_ENUM
        LM_OP_COUNT
} lm_op_kind;
const char *lm_op_name(lm_op_kind k); /* "attention" */

typedef enum lm_act {
    LM_ACT_NONE,
    LM_ACT_SILU,
    LM_ACT_GELU,
    LM_ACT_GELU_TANH,
    LM_ACT_RELU,
    LM_ACT_RELU2,
    LM_ACT_SIGMOID,
    LM_ACT_TANH,
    LM_ACT_SOFTPLUS,
    LM_ACT_SWIGLU_OAI /* GATED only: min(g,limit)·σ(alpha·min(g,limit)) · (clamp(up,±limit)+1) */
} lm_act;
typedef enum lm_norm { LM_NORM_RMS, LM_NORM_LAYER, LM_NORM_L2 /* x / sqrt(Σx² + eps) */ } lm_norm;
/* How experts are chosen: scores from logits, who is chosen, with what weight. */
typedef enum lm_route_score {
    LM_ROUTE_SOFTMAX,
    LM_ROUTE_SIGMOID,
    LM_ROUTE_SOFTMAX_TOPK /* softmax over the chosen logits only */
} lm_route_score;
typedef enum lm_route_group {
    LM_GROUP_NONE,
    LM_GROUP_MAX /* group score = its best; others masked to 0 */,
    LM_GROUP_TOP2 /* = sum of its two best, bias included; others masked to −inf */
} lm_route_group;

typedef struct lm_op {
    lm_op_kind kind;
    const char *name;       /* of the result: "layer.3.attn.q_norm" */
    int32_t layer;          /* −1 outside the layers */
    lm_val out, a, b, c, d; /* operands; meaning per kind below */
    uint32_t w, w2, w3;     /* weights, LM_NONE when absent */
    uint32_t v, v2, v3;     /* vectors, LM_NONE when absent */
    union {
        struct {
            bool by_position;
            uint32_t max_position;
        } embed; /* w table */
        struct {
            double c;
            bool bf16;
        } scale; /* v: vector instead of c; bf16: c is rounded to bfloat16 in bfloat16 lanes */
        struct {
            lm_norm norm;
            uint32_t groups;
            double eps;
        } norm; /* a; v weight, v2 bias; v is per group (width/groups long) or, when longer, per row */
        struct {
            bool split;
        } linear; /* a; w, v bias; split: 8-segment tree (attention output, FFN down) */
        struct {
            lm_act act;
            double limit, alpha;
        } act; /* ACT: a. GATED: a gate, b up; limit 0: none */
        struct {
            uint32_t heads, head_dim, offset, n_rot, rope;
            bool interleaved;
        } rope; /* a; pairs (i, i+n_rot/2), or (2i, 2i+1) when interleaved */
        struct {
            uint32_t heads, kv_heads, dk, dv, window, slot;
            double scale, softcap;
            bool store;
        } attn; /* a q, b k, c v (LM_NONE when !store: reads another layer's slot), d INDEX result or LM_NONE; v sinks */
        struct {
            uint32_t heads, nope, rope, dv, rank, slot;
            double scale;
        } mla; /* a q [heads][nope+rope] (rotated), b latent (normed) [rank], c k rope part (rotated) [rope], d INDEX result; w kv_b: rows
                  heads*(nope+dv), cols rank */
        struct {
            uint32_t heads, dim, topk, slot;
            double scale;
        } index; /* a q [heads][dim], b k [dim], c head weights [heads]; out: topk positions ascending by rank of score, −1 padded. score =
                    Σ_h c_h·relu(q_h·k)·scale */
        struct {
            uint32_t n, k, groups, topk_groups;
            lm_route_score score;
            lm_route_group group;
            bool renorm;
            double scale, renorm_eps;
        } route; /* a logits; v correction bias (choice only), v2 per-expert scale; out: k ids then k weights */
        struct {
            uint32_t n, k;
            lm_act act;
            double limit, alpha;
        } experts; /* a x, b ROUTE result; w gate, w2 up, w3 down (n_mat = n); v, v2, v3 their biases (n × rows) */
        struct {
            uint32_t kernel, slot;
            lm_act act;
        } conv; /* a; v weight [width][kernel], v2 bias */
        struct {
            uint32_t k_heads, v_heads, dk, dv, slot;
            bool tiled;
            double q_scale;
        } delta; /* a q, b k, c v, d [v_heads log-decay | v_heads beta]; v head h uses k head h / (v_heads/k_heads), or h % k_heads when
                    tiled */
        struct {
            double c;
        } softcap;
        struct {
            uint32_t offset, group, groups, stride;
        } slice; /* out column g*group+i = a column offset + g*stride + i */
        struct {
            double c;
        } sparsify; /* c = Φ⁻¹(sparsity) */
        struct {
            double eps;
        } match;
        struct {
            uint32_t n;
            bool residual;
        } mix; /* a streams [n][H], b coefficients; MIX: [n*n], SPREAD: a [n][H], b [H], c [n] */
    };
} lm_op;
/* DECAY: a; v A_log, v2 dt_bias. MATCH_RMS: a, b ref. CONCAT: a, b. */

typedef struct lm_value_info {
    const char *name; /* its op's name */
    uint32_t width;
    uint32_t first, last; /* op indices: written at, last read at */
} lm_value_info;

/* A trait the config turns on, and what exercises it: `verify` reports a trait that no case reaches as OPEN. */
typedef struct lm_trait {
    const char *name;    /* "sliding window 16" */
    uint32_t min_tokens; /* a case exercises it when it has at least this many tokens (prompt, or prompt + greedy) */
} lm_trait;

/* Where transformers' bfloat16 run of a family rounds, as far as families differ in it (lane hf-bf16; docs/lanes.md has the whole). */
typedef struct lm_bf16_rules {
    bool known;            /* read off transformers' source; false: the lane is refused */
    bool norm_cast_first;  /* RMS norms round the normalized row, then the product with the weight (llama); else only the latter (gemma) */
    bool norm_plus_one;    /* norms' vectors hold 1 + w where w is what the checkpoint has */
    bool embed_scale_wide; /* the embedding's factor is a number (granite), not a tensor (gemma): it isn't rounded */
    bool rope_wide;        /* rotation in float32 with cos and sin unrounded, one rounding at the end (olmo2) */
} lm_bf16_rules;

typedef struct lm_program {
    lm_arena *arena; /* owns everything */
    const char *arch;
    lm_bf16_rules bf16;
    lm_op *op;
    uint32_t n_ops;
    uint32_t head_first; /* ops from here on (final norm excluded) are run only for rows whose logits are wanted, in row blocks */
    lm_value_info *value;
    uint32_t n_values;
    lm_weight *weight;
    uint32_t n_weights;
    lm_vec *vec;
    uint32_t n_vecs;
    lm_rope *rope;
    uint32_t n_ropes;
    lm_cache_slot *slot;
    uint32_t n_slots;
    lm_trait *trait;
    uint32_t n_traits;
    lm_val embed, norm, logits;                     /* what enters layer 0, the final norm's result, the last value */
    lm_val *layer_out;                              /* [n_layers] */
    uint32_t n_layers, vocab, hidden, max_position; /* max_position 0: no limit known */
    uint64_t bytes_used;                            /* of the tensors that it reads, as stored */
} lm_program;

#endif
