/* The program's small helpers: op names and the row map of a weight. */
#include "graph/program.h"

static const char *const op_names[] = {
    [LM_OP_EMBED] = "embed",       [LM_OP_SCALE] = "scale",         [LM_OP_ADD] = "add",     [LM_OP_MUL] = "mul",
    [LM_OP_NORM] = "norm",         [LM_OP_LINEAR] = "linear",       [LM_OP_ACT] = "act",     [LM_OP_GATED] = "gated",
    [LM_OP_ROPE] = "rope",         [LM_OP_ATTENTION] = "attention", [LM_OP_MLA] = "mla",     [LM_OP_INDEX] = "index",
    [LM_OP_ROUTE] = "route",       [LM_OP_EXPERTS] = "experts",     [LM_OP_CONV] = "conv",   [LM_OP_DECAY] = "decay",
    [LM_OP_DELTA] = "delta",       [LM_OP_SOFTCAP] = "softcap",     [LM_OP_SLICE] = "slice", [LM_OP_CONCAT] = "concat",
    [LM_OP_SPARSIFY] = "sparsify", [LM_OP_MATCH_RMS] = "match_rms", [LM_OP_MIX] = "mix",     [LM_OP_SPREAD] = "spread",
};
_Static_assert(sizeof op_names / sizeof op_names[0] == LM_OP_COUNT, "an op lacks its name");

const char *lm_op_name(lm_op_kind k) {
    return (unsigned)k < LM_OP_COUNT && op_names[k] ? op_names[k] : "unknown";
}

/* A converter that interleaves rotary halves stores element (half, i) of a head at 2i + half. */
static uint64_t interleaved_row(uint64_t r, uint32_t head) {
    uint64_t h = r / head, j = r % head, half = head / 2;
    return h * head + 2 * (j % half) + j / half;
}

void lm_weight_row(const lm_weight *w, uint32_t m, uint64_t r, const lm_tensor **t, uint64_t *row) {
    uint32_t i = 0;
    while (i + 1 < w->n_seg && r - w->seg[i].first >= w->seg[i].count) i++;
    const lm_segment *s = &w->seg[i];
    uint64_t q = r - s->first;
    if (s->rope_dim) q = interleaved_row(q, s->rope_dim);
    *t = s->per_mat ? s->per_mat[m] : s->t;
    *row = s->base + m * s->mat_stride + q / s->group * s->group_stride + q % s->group * s->step;
}

void lm_weight_row_f64(const lm_weight *w, uint32_t m, uint64_t r, double *dst) {
    const lm_tensor *t;
    uint64_t row;
    lm_weight_row(w, m, r, &t, &row);
    lm_tensor_row_f64(t, row, dst);
}

void lm_weight_row_f32(const lm_weight *w, uint32_t m, uint64_t r, float *dst) {
    const lm_tensor *t;
    uint64_t row;
    lm_weight_row(w, m, r, &t, &row);
    lm_tensor_row_f32(t, row, dst);
}
