/* The cpu engine, inside. Weights are packed once at upload (kernels/pack.h); values are float rows in buffers planned at configure; an op is
 * one function that runs over all rows, in parallel over rows or output strips. Which thread computes what never shows in a bit.
 */
#ifndef LM_BACKEND_CPU_H
#define LM_BACKEND_CPU_H
#include "backend/backend.h"
#include "kernels/lane_bf16.h"
#include "kernels/lane_int.h"

#define LM_CPU_HEAD_ROWS 32u /* wanted rows computed together in the head */
#define LM_CPU_MOE_ROWS 256u /* rows whose experts are computed together */
#define LM_CPU_MLA_ROWS 128u /* rows whose absorbed queries are held together */
#define LM_CPU_PRODUCTS 8u   /* products that one job takes, at most */

/* A buffer that only grows, between runs; its contents do not survive growing. */
typedef struct lm_cpu_buf {
    void *p;
    uint64_t bytes;
} lm_cpu_buf;

/* What configure prepares for an op beside the program. */
typedef struct lm_cpu_op {
    float *vec;             /* CONV: the kernel as [taps][width]; DECAY: −exp(A_log) */
    lm_packed_matrix kt, v; /* MLA: per head, kv_b's key part turned [rank][nope], and its value part [dv][rank] */
    lm_int_lane lane, down; /* LINEAR, and EXPERTS' gate and up; EXPERTS' down: how the product's input is packed */
    bool gates;             /* LINEAR: it and the next two ops, LINEAR and GATED, can run as one: lm_cpu_gates */
    bool feeds;             /* and what they give can go right to the next product, as its input: no row of it need be whole */
    uint32_t start, run;    /* the first op of those that run as one with this, and how many of them there are from here on (1: this alone) */
    bool packs, local;      /* the last of such row ops: its result is the next product's input; and is seen by nobody else */
} lm_cpu_op;

/* What an op may need beside its operands, in floats: for each thread, and once. */
typedef struct lm_cpu_need {
    uint64_t thread, shared;
} lm_cpu_need;

struct lm_device {
    lm_pool *pool;
    const lm_kernels *k;
    const lm_int_kernels *ik;
    const lm_bf16_kernels *bf16;  /* products: lane bf16; NULL: another lane */
    const lm_bf16_kernels *pairs; /* attention in bfloat16: lanes bf16, i8 and mixed with keys and values as bf16; NULL: in float32 */
    const char *lane;
    const lm_cache_type *cache;
    char text[80];
    lm_slab *slab;              /* that weights are packed into */
    lm_packed_matrix *uploaded; /* data NULL: released */
    uint32_t n_uploaded, cap_uploaded;
    /* configured: NULL program when not */
    const lm_program *program;
    lm_packed_matrix *weight; /* [n_weights], views of uploaded ones */
    float **vec;              /* [n_vecs] */
    lm_cpu_op *op;            /* [n_ops] */
    uint64_t *at;             /* [n_values] floats per row before it, in the body's or the head's buffer */
    uint64_t body_width, head_width;
    lm_val *gathered;         /* values of the body that the head reads, their copies in the head's buffer at gather_at */
    uint64_t *gather_at;
    uint32_t n_gathered;
    lm_arena *plan; /* owns all of these but the packed matrices */
    lm_cpu_buf body, head, thread, shared, blocks, tables;
    uint64_t need_n, need_len; /* rows and positions that `need`, the most of all ops, was found for; 0: none */
    lm_cpu_need need;
};

/* One run's view, given to every op. In the body the rows are the batch's; in the head they are a block of wanted rows. */
typedef struct lm_cpu {
    lm_device *d;
    const lm_kernels *k;
    const lm_program *p;
    const lm_batch *b;
    uint32_t n;      /* rows computed */
    uint32_t *row;   /* [n] the batch row of each */
    uint32_t *pos;   /* [n_rows] position of each batch row */
    uint32_t *seq;   /* [n_rows] its sequence */
    uint64_t max_len;
    float **val;     /* [n_values] [n][width] */
    float **cos, **sin; /* [n_ropes] [n_rows][n_pairs], factor included */
    float **block;   /* [n_seqs][n_slots] the recurrent blocks that the run leaves behind */
    float *thread_mem, *shared;
    uint64_t thread_need;
    bool tapped;     /* somebody looks at every op's result: none is left out */
    lm_val packed;   /* the value whose packed rows stand at xp; LM_NONE */
    lm_int_lane packed_lane; /* how they are packed */
    float *xp;       /* `shared`, or the value's own place */
} lm_cpu;

static inline uint32_t lm_cpu_width(const lm_cpu *f, lm_val v) { return f->p->value[v].width; }
static inline float *lm_cpu_at(const lm_cpu *f, lm_val v, uint32_t i) { return f->val[v] + (size_t)i * lm_cpu_width(f, v); }
static inline const float *lm_cpu_vec(const lm_cpu *f, uint32_t v) { return v == LM_NONE ? NULL : f->d->vec[v]; }
static inline float *lm_cpu_scratch(const lm_cpu *f, uint32_t thread) { return f->thread_mem + (size_t)thread * f->thread_need; }
static inline lm_cpu_op *lm_cpu_aux(const lm_cpu *f, const lm_op *op) { return &f->d->op[op - f->p->op]; }
lm_kact lm_cpu_act(lm_act a);

/* An op's function, its need for n rows and sequences up to max_len (false on overflow; NULL: nothing). */
typedef struct lm_cpu_fn {
    void (*run)(lm_cpu *f, const lm_op *op);
    bool (*need)(const lm_cpu *f, const lm_op *op, lm_cpu_need *out);
} lm_cpu_fn;
/* rows.c: ops whose rows don't need each other; NULL for the others */
typedef void (*lm_cpu_row_fn)(const lm_cpu *f, const lm_op *op, uint32_t i, float *out, float *scratch);
extern const lm_cpu_row_fn lm_cpu_row_fns[LM_OP_COUNT];
/* n ops from op on, row by row; where they are a whole run, also the packing of the next product's input. */
void lm_cpu_rows(lm_cpu *f, const lm_op *op, uint32_t n);
bool lm_cpu_rows_need(const lm_cpu *f, const lm_op *op, lm_cpu_need *out);
/* linear.c */
void lm_cpu_run_products(lm_cpu *f, const lm_op *op, uint32_t n); /* n LINEARs of one input */
void lm_cpu_run_gated(lm_cpu *f, const lm_op *op); /* op and the two after it: aux says where that can be */
extern const lm_cpu_fn lm_cpu_linear, lm_cpu_experts, lm_cpu_attention, lm_cpu_mla, lm_cpu_index, lm_cpu_route, lm_cpu_conv, lm_cpu_delta;

/* ahead.c: tells the pool what the next op from `after` on that reads much, reads first. */
void lm_cpu_ahead(const lm_cpu *f, uint32_t after);
static inline bool lm_cpu_reads(const lm_cpu *f, const lm_op *op) {
    return op->kind == LM_OP_LINEAR || (op->kind == LM_OP_ATTENTION && f->n == 1 && op->attn.kv_heads > 1); /* one head is no job */
}
/* lanes.c: products in the lane that configure chose for them. */
/* How a device of its lane quantizes the inputs of an op's products. */
void lm_cpu_choose_lane(const lm_device *d, const lm_program *p, const lm_op *op, lm_cpu_op *out);
/* Once lanes are chosen, products found: where two products and the activation that joins them may run as one, their results seen by nobody. */
void lm_cpu_find_gates(const lm_program *p, lm_cpu_op *ops);
/* Whether a LINEAR and the next two ops run as one with so many rows: in lane bf16 those of a prompt only. */
bool lm_cpu_gates(const lm_cpu *f, const lm_op *op);
static inline bool lm_cpu_is_int(lm_int_lane lane) { return lane == LM_INT_8 || lane == LM_INT_16 || lane == LM_INT_MIXED; }
/* runs.c: what runs as one. Rows first, since values are placed by them; products once lanes are chosen. */
void lm_cpu_find_rows(const lm_program *p, lm_cpu_op *ops);
void lm_cpu_find_products(const lm_program *p, lm_cpu_op *ops);
typedef struct lm_cpu_product {
    const lm_cpu *f;
    lm_int_lane lane; /* LM_INT_NONE: float32 */
    const lm_packed_matrix *w;
    uint32_t mat;
    bool split;
    const float *bias;
    const float *xp; /* packed for the lane */
    uint32_t n_t;
    float *y;
    size_t ldy;
    const lm_gate *gate; /* where lm_cpu_gates says so; NULL: the product alone */
} lm_cpu_product;
uint64_t lm_cpu_product_scratch(lm_int_lane lane, uint32_t n_t, uint32_t K);
uint32_t lm_cpu_product_tasks(const lm_cpu_product *p);
void lm_cpu_product_run(const lm_cpu_product *p, uint32_t task, float *scratch);
/* Input rows to tiles for a lane, at most n_t·K floats: lm_x_pack, lm_int_pack or lm_bf16_pack. */
uint32_t lm_cpu_x_tiles(lm_int_lane lane, uint32_t n_t);
uint32_t lm_cpu_x_first(lm_int_lane lane, uint32_t n_t, uint32_t i); /* the first row of tile i */
void lm_cpu_x_pack(const lm_cpu *f, lm_int_lane lane, const float *x, size_t ldx, const uint32_t *row, uint32_t n_t, uint32_t i, uint32_t K, float *xp);
/* The same of tile i's rows alone, which src holds; not in float32. */
void lm_cpu_x_pack_rows(const lm_cpu *f, lm_int_lane lane, const float *const *src, uint32_t n_t, uint32_t i, uint32_t K, float *xp);

/* upload.c */
lm_status lm_cpu_pack(lm_device *d, const lm_weight *w, lm_packed_matrix *out, lm_error *err);
lm_status lm_cpu_pack_mla(lm_device *d, const lm_weight *kv_b, const lm_op *op, lm_cpu_op *out, lm_error *err);
/* One row of a packed matrix as float32; scratch holds LM_BLK·16 floats. */
void lm_cpu_unpack_row(const lm_kernels *k, const lm_packed_matrix *m, uint32_t mat, uint32_t row, float *dst, float *scratch);
/* plan.c */
lm_status lm_cpu_configure(lm_device *d, const lm_program *p, const uint32_t *handle, lm_error *err);
void lm_cpu_unconfigure(lm_device *d);
/* run.c */
lm_status lm_cpu_run(lm_device *d, const lm_batch *b, const lm_run *r, lm_error *err);
lm_status lm_cpu_grow(lm_cpu_buf *b, uint64_t bytes, const char *what, lm_error *err);
void lm_cpu_shrink(lm_cpu_buf *b);
#endif
