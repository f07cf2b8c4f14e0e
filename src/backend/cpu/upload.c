/* Weights to packed matrices, in parallel, straight from the file's rows: no second copy is made. */
#include "backend/cpu/cpu.h"
#include "base/smallfloat.h"
#include <string.h>

/* Rows of a weight as bytes of its type: in place, or, where a checkpoint keeps their scales in companion tensors, put together in the
 * thread's scratch. */
typedef struct packing {
    const lm_weight *w;
    lm_packed_matrix *m;
    uint8_t *scratch;      /* [threads][16] rows; NULL: all rows are in place */
    size_t row_bytes;
    uint32_t first, stack; /* row 0 of matrix j is the weight's row first + j·stack; 0: the weight's own matrices */
} packing;

static const uint8_t *row_bytes(const packing *p, uint32_t mat, uint32_t r, uint8_t *scratch) {
    uint64_t row = p->stack ? (uint64_t)mat * p->stack + p->first + r : r, stored;
    const lm_tensor *t;
    lm_weight_row(p->w, p->stack ? 0 : mat, row, &t, &stored);
    return lm_tensor_row_bytes(t, stored, scratch);
}
static void pack_task(void *ctx, uint32_t task, uint32_t thread) {
    const packing *p = ctx;
    const uint32_t mat = task / p->m->strips, s = task % p->m->strips;
    uint8_t *scratch = p->scratch ? p->scratch + (size_t)thread * 16 * p->row_bytes : NULL;
    const uint8_t *row[16];
    for (uint32_t r = 0; r < 16; r++)
        row[r] = s * 16 + r < p->m->rows ? row_bytes(p, mat, s * 16 + r, scratch ? scratch + r * p->row_bytes : NULL) : NULL;
    if (p->m->pack == LM_PACK_BF16X2)
        lm_packed_strip_bf16(p->m, p->w->type, mat, s, row);
    else
        lm_packed_strip(p->m, mat, s, row);
}
static bool in_place(const lm_weight *w) {
    for (uint32_t i = 0; i < w->n_seg; i++)
        for (uint32_t m = 0; m < (w->seg[i].per_mat ? w->n_mat : 1); m++)
            if ((w->seg[i].per_mat ? w->seg[i].per_mat[m] : w->seg[i].t)->packed) return false;
    return true;
}

static lm_status pack_rows(lm_device *d, const lm_weight *w, uint64_t n_mat, uint64_t rows, uint32_t first, uint32_t stack, lm_packed_matrix *out,
                           lm_error *err) {
    packing p = {.w = w, .m = out, .row_bytes = w->cols / w->type->block * w->type->bytes, .first = first, .stack = stack};
    const bool plain = in_place(w);
    LM_TRY((d->bf16 ? lm_packed_create_bf16 : lm_packed_create)(w->type, n_mat, rows, w->cols, &d->slab, out, err));
    uint64_t tasks = n_mat * out->strips, bytes = (uint64_t)lm_pool_size(d->pool) * 16 * p.row_bytes;
    if (!plain) p.scratch = lm_malloc(bytes);
    if (tasks > UINT32_MAX || (!plain && !p.scratch)) {
        lm_packed_free(out);
        return tasks > UINT32_MAX ? lm_fail(err, LM_RANGE, "a weight of more than 2^36 rows") : lm_fail_nomem(err, "rows being packed", bytes);
    }
    lm_pool_patient(d->pool, true); /* a page's first touch may take longer than all the rest */
    lm_pool_run(d->pool, pack_task, &p, (uint32_t)tasks);
    lm_pool_patient(d->pool, false);
    lm_free(p.scratch);
    return LM_OK;
}

lm_status lm_cpu_pack(lm_device *d, const lm_weight *w, lm_packed_matrix *out, lm_error *err) {
    return pack_rows(d, w, w->n_mat, w->rows, 0, 0, out, err);
}

void lm_cpu_unpack_row(const lm_kernels *k, const lm_packed_matrix *m, uint32_t mat, uint32_t row, float *dst, float *scratch) {
    const uint8_t *strip = lm_packed_at(m, mat, row / 16);
    for (uint32_t k0 = 0; k0 < m->K; k0 += LM_BLK) {
        const uint32_t n = m->K - k0 < LM_BLK ? m->K - k0 : LM_BLK;
        k->unpack[m->pack](m->type, strip, k0, n, scratch);
        for (uint32_t i = 0; i < n; i++) dst[k0 + i] = scratch[(size_t)i * 16 + row % 16];
    }
}

/* kv_b holds, per head, nope key rows and dv value rows over the latent. The absorbed form multiplies a query by the key part's transpose,
 * which is kept as float32; the value part keeps its type. */
lm_status lm_cpu_pack_mla(lm_device *d, const lm_weight *kv_b, const lm_op *op, lm_cpu_op *out, lm_error *err) {
    const uint32_t heads = op->mla.heads, nope = op->mla.nope, rank = op->mla.rank, per = nope + op->mla.dv;
    LM_TRY(pack_rows(d, kv_b, heads, op->mla.dv, nope, per, &out->v, err));
    LM_TRY(lm_packed_create(lm_dtype_by_name("F32"), heads, rank, nope, &d->slab, &out->kt, err));
    float *row = lm_malloc(rank * sizeof *row);
    if (!row) return lm_fail_nomem(err, "a row of kv_b", rank * sizeof *row);
    for (uint32_t h = 0; h < heads; h++)
        for (uint32_t k = 0; k < nope; k++) { /* the float layout is [k][16]: row k of the file is line k of every strip */
            lm_weight_row_f32(kv_b, 0, (uint64_t)h * per + k, row);
            for (uint32_t r = 0; d->bf16 && r < rank; r++) row[r] = lm_bf16_to_f32(lm_f32_to_bf16(row[r]));
            for (uint32_t r = 0; r < rank; r++)
                memcpy(out->kt.data + ((size_t)h * out->kt.strips + r / 16) * out->kt.strip_bytes + ((size_t)k * 16 + r % 16) * 4, &row[r], 4);
        }
    lm_free(row);
    return LM_OK;
}
