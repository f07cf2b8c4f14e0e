#include "bench/work.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/lane_int.h"

/* ---- which instruction a weight's products use ------------------------------------------------------------------------------------*/
/* Whether the integer lanes take a type, asked of the kernels themselves with the smallest matrix. */
static lm_status fits(const lm_dtype *t, bool *out, lm_error *err) {
    lm_packed_matrix m = {0};
    LM_TRY(lm_packed_create(t, 1, 16, 256, NULL, &m, err));
    *out = lm_int_fits(&m);
    lm_packed_free(&m);
    return LM_OK;
}

lm_status lm_worker_create(const lm_engine *e, lm_worker *out, lm_error *err) {
    const lm_program *p = e->program;
    const char *lane = e->opt.device.lane ? e->opt.device.lane : e->backend->lanes[0];
    const bool integer = !strcmp(lane, "i8") || !strcmp(lane, "i16") || !strcmp(lane, "mixed");
    const lm_peak_kind floats = !strcmp(lane, "bf16") && lm_peak_best(LM_PEAK_BF16) ? LM_PEAK_BF16 : LM_PEAK_F32;
    lm_worker w = {.e = e, .kind = lm_calloc(p->n_weights ? p->n_weights : 1, sizeof *w.kind), .kinds = 1u << LM_PEAK_F32};
    if (!w.kind) return lm_fail_nomem(err, "the weights' kinds", p->n_weights * sizeof *w.kind);
    for (uint32_t i = 0; i < p->n_weights; i++) {
        bool yes = false;
        const lm_status s = integer ? fits(p->weight[i].type, &yes, err) : LM_OK;
        if (s != LM_OK) {
            lm_free(w.kind);
            return s;
        }
        w.kind[i] = yes ? LM_PEAK_INT8 : floats;
        w.kinds |= 1u << w.kind[i];
    }
    *out = w;
    return LM_OK;
}
void lm_worker_free(lm_worker *w) {
    lm_free(w->kind);
    w->kind = NULL;
}

/* ---- one op -----------------------------------------------------------------------------------------------------------------------*/
static double row_bytes(const lm_weight *w) { return (double)w->cols / w->type->block * w->type->bytes; }

/* `rows` rows through one matrix of a weight, read once; `mats` of its matrices are read at all. */
static void product(const lm_worker *w, uint32_t weight, double rows, double mats, lm_work *to) {
    if (weight == LM_NONE) return;
    const lm_weight *m = &w->e->program->weight[weight];
    to->mac[w->kind[weight]] += rows * (double)m->rows * (double)m->cols;
    to->weight_bytes += mats * (double)m->rows * row_bytes(m);
}

/* Keys that a sequence's rows see, summed, and how many different ones. */
static void visible(const lm_work_shape *at, uint32_t window, uint32_t most, double *pairs, double *keys) {
    *pairs = 0;
    for (uint32_t i = 0; i < at->n; i++) {
        uint64_t see = (uint64_t)at->pos0 + i + 1;
        if (window && see > window) see = window;
        if (most && see > most) see = most;
        *pairs += (double)see;
    }
    const uint64_t all = (uint64_t)at->pos0 + at->n, reach = (uint64_t)window + at->n - 1;
    *keys = (double)(window && reach < all ? reach : all);
    if (most && *pairs < *keys) *keys = *pairs;
}

static void attention(const lm_worker *w, const lm_op *op, const lm_work_shape *at, lm_work *to) {
    const lm_program *p = w->e->program;
    const bool mla = op->kind == LM_OP_MLA, index = op->kind == LM_OP_INDEX;
    const lm_cache_slot *s = &p->slot[mla ? op->mla.slot : index ? op->index.slot : op->attn.slot];
    const uint32_t most = index || op->d == LM_NONE ? 0 : p->value[op->d].width; /* what an index lets through */
    double pairs, keys, per_pair;
    visible(at, mla || index ? 0 : op->attn.window, most, &pairs, &keys);
    if (mla)
        per_pair = (double)op->mla.heads * (2.0 * op->mla.rank + op->mla.rope);
    else if (index)
        per_pair = (double)op->index.heads * op->index.dim;
    else
        per_pair = (double)op->attn.heads * (op->attn.dk + (double)op->attn.dv);
    const lm_cache_type *t = w->e->backend->cache(w->e->device);
    const bool in_pairs = t->tiled && s->kind == LM_CACHE_KV && t->kv == LM_KV_BF16X2 && lm_peak_best(LM_PEAK_BF16);
    to->attention_mac += at->n_seqs * pairs * per_pair;
    if (in_pairs) to->pair_mac += at->n_seqs * pairs * per_pair;
    const double row = t->tiled && s->kind == LM_CACHE_KV ? (double)lm_kv_row(t->kv, s->dk, s->dv) : ((double)s->dk + s->dv) * t->elem_size;
    to->cache_bytes += at->n_seqs * keys * s->heads * row;
    if (mla) product(w, op->w, (double)at->n_seqs * at->n, 1, to);
}

void lm_work_add(const lm_worker *w, const lm_op *op, const lm_work_shape *at, lm_work *to) {
    const lm_program *p = w->e->program;
    const bool head = op >= p->op + p->head_first;
    const double rows = (double)at->n_seqs * (head ? at->wanted : at->n);
    if (rows == 0) return;
    switch (op->kind) {
    case LM_OP_LINEAR: product(w, op->w, rows, 1, to); break;
    case LM_OP_EMBED: to->weight_bytes += rows * row_bytes(&p->weight[op->w]); break;
    case LM_OP_EXPERTS: {
        const double n = op->experts.n, k = op->experts.k, chosen = n * (1 - pow(1 - k / n, rows));
        product(w, op->w, rows * k, chosen, to);
        product(w, op->w2, rows * k, chosen, to);
        product(w, op->w3, rows * k, chosen, to);
        break;
    }
    case LM_OP_ATTENTION:
    case LM_OP_MLA:
    case LM_OP_INDEX: attention(w, op, at, to); break;
    default: break; /* element-wise, or a state that stays in the caches */
    }
}

/* ---- against the limits ------------------------------------------------------------------------------------------------------------*/
double lm_work_macs(const lm_work *w) { return w->mac[LM_PEAK_F32] + w->mac[LM_PEAK_BF16] + w->mac[LM_PEAK_INT8]; }

double lm_work_product_time(const lm_work *w, const lm_reading *r) {
    double t = 0;
    for (int k = 0; k < LM_PEAK_COUNT; k++)
        if (w->mac[k] > 0) t += 2 * w->mac[k] / r->peak[k];
    return t;
}

double lm_work_bound(const lm_work *w, const lm_reading *r) {
    double compute = lm_work_product_time(w, r) + 2 * (w->attention_mac - w->pair_mac) / r->peak[LM_PEAK_F32];
    if (w->pair_mac > 0) compute += 2 * w->pair_mac / r->peak[LM_PEAK_BF16];
    const double memory = (w->weight_bytes + w->cache_bytes) / r->read;
    return compute > memory ? compute : memory;
}
