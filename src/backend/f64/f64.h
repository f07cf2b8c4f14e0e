/* The f64 arbiter, inside. In lane f64 every op is computed in double precision from the exactly decoded weights; a weight is decoded a few
 * rows at a time, never held. A row of a result depends on its own sequence alone: no sum is split by thread, block or batch. Lane hf-bf16
 * is the same, rounded to bfloat16 wherever a bfloat16 run of transformers rounds (bf16.c).
 */
#ifndef LM_BACKEND_F64_H
#define LM_BACKEND_F64_H
#include "backend/backend.h"
#include "base/smallfloat.h"
#include <math.h>

#define LM_F64_LANES 16u     /* virtual lanes of every dot product */
#define LM_F64_HEAD_ROWS 32u /* wanted rows computed together in the head */

/* What an op may need beside its operands, in doubles: for each thread, and once. */
typedef struct lm_f64_need {
    uint64_t thread, shared;
} lm_f64_need;

struct lm_device {
    lm_pool *pool;
    bool bf16;      /* lane hf-bf16 */
    char text[64];
    const lm_weight **uploaded; /* NULL: released */
    uint32_t n_uploaded, cap_uploaded;
    const lm_program *program; /* NULL: not configured */
    const lm_weight **weight;  /* [n_weights] of the program */
    double **vec;              /* [n_vecs] hf-bf16: the program's vectors, rounded; NULL otherwise */
    uint32_t *buf_of;          /* [n_values] which buffer holds a value */
    uint64_t *buf_width;       /* [n_bufs] its widest value */
    bool *buf_head;            /* [n_bufs] holds head rows (a block), not all rows */
    uint32_t n_bufs;
    uint32_t *gathered; /* values of the body that the head reads */
    uint32_t *gather_buf;
    uint32_t n_gathered;
};

/* One run's view, given to every op. In the body the rows are the batch's; in the head they are a block of wanted rows. */
typedef struct lm_f64 {
    const lm_device *d;
    const lm_program *p;
    const lm_batch *b;
    uint32_t n;          /* rows computed */
    const uint32_t *row; /* [n] the batch row of each */
    double **val;        /* [n_values] [n][width] */
    const uint32_t *pos; /* [n_rows] position of each batch row */
    const uint32_t *seq; /* [n_rows] its sequence */
    uint64_t max_len;    /* the longest pos0 + n */
    double **block;      /* [n_seqs][n_slots] working copies of the recurrent blocks */
    double *thread_mem;  /* [threads][thread_need] */
    uint64_t thread_need;
    double *shared;
} lm_f64;

static inline uint32_t lm_f64_width(const lm_f64 *f, lm_val v) { return f->p->value[v].width; }
static inline double *lm_f64_at(const lm_f64 *f, lm_val v, uint32_t i) { return f->val[v] + (size_t)i * lm_f64_width(f, v); }
static inline const double *lm_f64_vec(const lm_f64 *f, uint32_t v) {
    if (v == LM_NONE) return NULL;
    return f->d->vec ? f->d->vec[v] : f->p->vec[v].v;
}
static inline double *lm_f64_scratch(const lm_f64 *f, uint32_t thread) { return f->thread_mem + (size_t)thread * f->thread_need; }

/* kernels.c: out[t*out_stride + r] = w[r] · x[t] for n_w rows at w, w_stride apart, and n_x rows. Each dot product is 16 sums over
 * i mod 16, one rounding for the product and one for the sum, then the tree (8)(4)(2)(1): the same bits on every CPU. */
void lm_f64_dots(const double *w, size_t w_stride, uint32_t n_w, const double *const *x, uint32_t n_x, size_t n, double *out,
                 size_t out_stride);
double lm_f64_dot(const double *a, const double *b, size_t n);
/* y += c * x */
void lm_f64_axpy(double *y, double c, const double *x, size_t n);
double lm_f64_act(lm_act a, double x);
double lm_f64_gate(lm_act a, double limit, double alpha, double gate, double up);

/* bf16.c. As a float that is then rounded to bfloat16: torch computes bfloat16 elements in float32 and stores them so. */
static inline double lm_f64_to_bf16(double x) { return (double)lm_bf16_to_f32(lm_f32_to_bf16((float)x)); }
/* Rounded in lane hf-bf16, as it is in lane f64. */
static inline double lm_f64_stored(const lm_f64 *f, double x) { return f->d->bf16 ? lm_f64_to_bf16(x) : x; }
/* c·tanh(x/c) */
static inline double lm_f64_capped(const lm_f64 *f, double x, double c) {
    return lm_f64_stored(f, c * lm_f64_stored(f, tanh(lm_f64_stored(f, x / c))));
}
/* Row r of matrix m, decoded; in lane hf-bf16 as the bfloat16 that transformers would hold. */
void lm_f64_weight_row(const lm_f64 *f, const lm_weight *w, uint32_t m, uint64_t r, double *dst);
bool lm_f64_bf16_supports(const lm_op *op);
/* The program's vectors, rounded, in one block that starts at *out (lm_free). Refuses a family whose rounding points aren't known. */
lm_status lm_f64_bf16_configure(const lm_program *p, double ***out, lm_error *err);
/* Rounds the results of an op that doesn't round its own. */
void lm_f64_bf16_store(const lm_f64 *f, const lm_op *op);

/* rows.c: ops whose rows don't need each other; NULL for the others */
typedef void (*lm_f64_row_fn)(const lm_f64 *f, const lm_op *op, uint32_t i);
extern const lm_f64_row_fn lm_f64_row_fns[LM_OP_COUNT];
extern const lm_f64_row_fn lm_f64_bf16_row_fns[LM_OP_COUNT]; /* bf16.c: those that round inside; NULL: as above, then rounded */

/* the others run over all rows, using the pool */
typedef struct lm_f64_job {
    const lm_f64 *f;
    const lm_op *op;
    uint32_t x; /* the op's own */
} lm_f64_job;
void lm_f64_route(const lm_f64 *f, const lm_op *op);
void lm_f64_linear(const lm_f64 *f, const lm_op *op);
void lm_f64_experts(const lm_f64 *f, const lm_op *op);
void lm_f64_attention(const lm_f64 *f, const lm_op *op);
void lm_f64_mla(const lm_f64 *f, const lm_op *op);
void lm_f64_index(const lm_f64 *f, const lm_op *op);
void lm_f64_conv(const lm_f64 *f, const lm_op *op);
void lm_f64_delta(const lm_f64 *f, const lm_op *op);

/* What the op needs for n rows and sequences up to max_len; false on overflow. */
bool lm_f64_linear_need(const lm_f64 *f, const lm_op *op, lm_f64_need *out);
bool lm_f64_experts_need(const lm_f64 *f, const lm_op *op, lm_f64_need *out);
bool lm_f64_attention_need(const lm_f64 *f, const lm_op *op, lm_f64_need *out);
bool lm_f64_mla_need(const lm_f64 *f, const lm_op *op, lm_f64_need *out);
bool lm_f64_index_need(const lm_f64 *f, const lm_op *op, lm_f64_need *out);
bool lm_f64_route_need(const lm_f64 *f, const lm_op *op, lm_f64_need *out);
bool lm_f64_delta_need(const lm_f64 *f, const lm_op *op, lm_f64_need *out);

/* Rows whose addresses are gathered at a time for lm_f64_dots: a multiple of its tile. */
#define LM_F64_GROUP 48u

/* run.c */
lm_status lm_f64_run(lm_device *d, const lm_batch *b, const lm_run *r, lm_error *err);
#endif
