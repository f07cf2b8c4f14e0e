/* A lane's noise, as the arbiter imitates it. An op loses accuracy in two places: inside, while it accumulates, which is put in as noise on
 * its operands (so that what cancels in a sum is hit as hard as in the real one), and when its result is rounded and stored. The second
 * is uniform, of the width that rounding to nearest has at most. The first is the sum of many roundings and a sign decides: were it uniform
 * too, a sum that one huge term dominates (an attention sink's) would look exact whenever that one draw happened to be small. All is drawn
 * from a counter: the same seed gives the same samples at any block size.
 */
#include "base/rng.h"
#include "verify/diff.h"
#include <math.h>
#include <string.h>

/* half a unit in the last place of float32, bfloat16 and float16, relative */
static const double U32 = 0x1p-24, U16 = 0x1p-9, UHALF = 0x1p-12;

static const struct {
    const char *lane, *name;
    lm_prec prec;
} lanes[] = {
    {"f32", "float32", LM_PREC_F32},          {"f64", "float32", LM_PREC_F32}, {"bf16", "bfloat16", LM_PREC_BF16},
    {"hf-bf16", "bfloat16", LM_PREC_BF16},    {"i8", "i8", LM_PREC_I8},        {"i16", "i16", LM_PREC_I16},
    {"mixed", "mixed i8/i16", LM_PREC_MIXED},
};
bool lm_prec_of_lane(const char *lane, lm_prec *out) {
    for (size_t i = 0; i < sizeof lanes / sizeof *lanes; i++)
        if (!strcmp(lanes[i].lane, lane)) return *out = lanes[i].prec, true;
    return false;
}
const char *lm_prec_name(lm_prec p) {
    for (size_t i = 0; i < sizeof lanes / sizeof *lanes; i++)
        if (lanes[i].prec == p) return lanes[i].name;
    return "?";
}

/* ---- how much --------------------------------------------------------------------------------------------------------------------- */
/* Terms that the op adds up for one element of its result. */
static double terms(const lm_program *p, const lm_op *op, uint32_t position) {
    const uint32_t width = op->a == LM_NONE ? 1 : p->value[op->a].width;
    switch (op->kind) {
    case LM_OP_LINEAR: return width;
    case LM_OP_EXPERTS: return (double)width + (double)p->weight[op->w].rows;
    case LM_OP_ATTENTION: return op->attn.dk + (position < 256 ? position : 256);
    case LM_OP_MLA: return (double)op->mla.nope + op->mla.rope + op->mla.rank + (position < 256 ? position : 256);
    case LM_OP_INDEX: return (double)op->index.dim + op->index.heads;
    case LM_OP_CONV: return op->conv.kernel;
    case LM_OP_DELTA: return 2.0 * op->delta.dk;
    case LM_OP_NORM: return width / (16.0 * (op->norm.groups ? op->norm.groups : 1));
    case LM_OP_SPARSIFY:
    case LM_OP_MATCH_RMS: return width / 16.0;
    case LM_OP_MIX:
    case LM_OP_SPREAD: return op->mix.n;
    default: return 1;
    }
}
/* n roundings of growing partial sums weigh like noise of √(n/2) units on each term. */
static double inside(const lm_program *p, const lm_op *op, uint32_t position) { return 2 + sqrt(terms(p, op, position) / 2); }

/* Units of rounding between an op's exact result and what is stored: the library functions in it, and how many results it rounds on the
 * way. */
static double stored(lm_op_kind k) {
    switch (k) {
    case LM_OP_EMBED:
    case LM_OP_ADD:
    case LM_OP_SLICE:
    case LM_OP_CONCAT: return 1;
    case LM_OP_SCALE:
    case LM_OP_MUL:
    case LM_OP_LINEAR: return 2;
    case LM_OP_ROUTE:
    case LM_OP_DECAY: return 8;
    default: return 4;
    }
}

/* A weight that the quantized-activation lanes multiply in integers. */
static bool integer_type(const lm_weight *w) {
    static const char *const own[] = {"Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"};
    if (w->type->is_float || w->cols % 32) return false;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (!strcmp(w->type->name, own[i])) return true;
    return w->type->ints != NULL;
}
/* Steps on either side of zero to which the lane quantizes the op's input, in its quiet blocks; 0: it doesn't. */
static double levels(lm_prec prec, const lm_program *p, const lm_op *op, bool inner) {
    if (prec != LM_PREC_I8 && prec != LM_PREC_I16 && prec != LM_PREC_MIXED) return 0;
    if (op->kind == LM_OP_LINEAR && integer_type(&p->weight[op->w]))
        return prec == LM_PREC_I16 || (prec == LM_PREC_MIXED && (size_t)(op - p->op) >= p->head_first) ? 32512 : 127;
    if (op->kind != LM_OP_EXPERTS || !integer_type(&p->weight[inner ? op->w3 : op->w])) return 0;
    return prec == LM_PREC_I16 ? 32512 : 127;
}

/* ---- the draws --------------------------------------------------------------------------------------------------------------------- */
typedef struct draw {
    uint64_t seed, stream, counter;
    uint32_t out[4], at;
} draw;
static draw draws(const lm_noise *n, uint32_t op, uint32_t what, uint32_t position) {
    return (draw){n->seed, (uint64_t)n->sample << 40 | (uint64_t)op << 3 | what, (uint64_t)position << 32, {0}, 4};
}
static double next(draw *d) { /* −1 … 1 */
    if (d->at == 4) {
        lm_philox(d->seed, d->stream, d->counter++, d->out);
        d->at = 0;
    }
    return d->out[d->at++] * 0x1p-31 - 1;
}

static double sign(draw *d) { return next(d) < 0 ? -0.75 : 0.75; }

uint32_t lm_noise_first(const lm_program *p, lm_val v) {
    const lm_op *from = &p->op[p->value[v].first];
    if (from->kind == LM_OP_INDEX) return p->value[v].width;
    return from->kind == LM_OP_ROUTE ? from->route.k : 0;
}

static double largest(const double *x, uint32_t n) {
    double m = 0;
    for (uint32_t j = 0; j < n; j++) m = fmax(m, fabs(x[j]));
    return m;
}
/* Blocks of 32; where `loud`, those with more than twice the mean square of the largest magnitudes have 256 times the steps (lane mixed).
 */
static void quantize(draw *d, double *x, uint32_t n, double steps, bool loud) {
    double sum = 0;
    for (uint32_t i = 0; loud && i < n; i += 32) sum += pow(largest(x + i, n - i < 32 ? n - i : 32), 2);
    for (uint32_t i = 0; i < n; i += 32) {
        const double m = largest(x + i, n - i < 32 ? n - i : 32), unit = m / (loud && m * m * (n / 32.0) > 2 * sum ? 256 * steps : steps);
        for (uint32_t j = i; j < i + 32 && j < n; j++)
            if (x[j] != 0) x[j] += unit * 0.5 * next(d);
    }
}

void lm_noise_operand(const lm_noise *n, const lm_program *p, uint32_t op_at, uint32_t k, uint32_t position, double *x) {
    const lm_op *op = &p->op[op_at];
    const lm_val in[4] = {op->a, op->b, op->c, op->d};
    const uint32_t width = p->value[in[k]].width;
    const bool rounds_input =
        n->prec == LM_PREC_BF16 && (op->kind == LM_OP_LINEAR || op->kind == LM_OP_ATTENTION || op->kind == LM_OP_EXPERTS);
    /* lanes i8 and mixed keep keys and values as float16 */
    const bool half_kv = (n->prec == LM_PREC_I8 || n->prec == LM_PREC_MIXED) && op->kind == LM_OP_ATTENTION && (k == 1 || k == 2);
    const double steps = k == 0 ? levels(n->prec, p, op, false) : 0;
    const double rel = U32 * inside(p, op, position) + (rounds_input ? U16 : half_kv ? UHALF : 0);
    draw d = draws(n, op_at, k, position);
    for (uint32_t i = lm_noise_first(p, in[k]); i < width; i++) x[i] += x[i] * rel * sign(&d);
    if (steps > 0) quantize(&d, x, width, steps, n->prec == LM_PREC_MIXED && steps == 127);
}

void lm_noise_result(const lm_noise *n, const lm_program *p, uint32_t op_at, uint32_t position, double *x) {
    const lm_op *op = &p->op[op_at];
    const uint32_t width = p->value[op->out].width;
    const double steps = levels(n->prec, p, op, true), rel = (n->prec == LM_PREC_BF16 ? U16 : U32) * stored(op->kind);
    double even = 0; /* an expert's inner activations are quantized too: what that does to each sum is even over the row */
    draw d = draws(n, op_at, 4, position);
    if (op->kind == LM_OP_EXPERTS && steps > 0) {
        for (uint32_t i = 0; i < width; i++) even += x[i] * x[i];
        even = sqrt(even / width) * 2.5 / steps; /* the largest of 32 is about 5 times their root mean square */
    }
    for (uint32_t i = lm_noise_first(p, op->out); i < width; i++) x[i] += x[i] * rel * next(&d) + even * next(&d);
}
