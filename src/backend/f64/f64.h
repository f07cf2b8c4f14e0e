/* The f64 arbiter, inside. Every op is computed in double precision from the exactly decoded weights; a weight is decoded a few rows at
 * a time, never held. A row of a result depends on its own sequence alone: no sum is split by thread, block or batch.
 */
#ifndef LM_BACKEND_F64_H
#define LM_BACKEND_F64_H
#include "backend/backend.h"

#define LM_F64_LANES 16u     /* virtual lanes of every dot product */
#define LM_F64_HEAD_ROWS 32u /* wanted rows computed together in the head */

/* What an op may need beside its operands, in doubles: for each thread, and once. */
typedef struct lm_f64_need {
    uint64_t thread, shared;
} lm_f64_need;

struct lm_device {
    lm_pool *pool;
    char text[64];
    const lm_weight **uploaded; /* NULL: released */
    uint32_t n_uploaded, cap_uploaded;
    const lm_program *program; /* NULL: not configured */
    const lm_weight **weight;  /* [n_weights] of the program */
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
static inline const double *lm_f64_vec(const lm_f64 *f, uint32_t v) { return v == LM_NONE ? NULL : f->p->vec[v].v; }
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

/* rows.c: ops whose rows don't need each other; NULL for the others */
typedef void (*lm_f64_row_fn)(const lm_f64 *f, const lm_op *op, uint32_t i);
extern const lm_f64_row_fn lm_f64_row_fns[LM_OP_COUNT];

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
