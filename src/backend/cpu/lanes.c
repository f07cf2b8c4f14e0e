/* Which products run on quantized or rounded activations, and the one face that all products show to LINEAR and EXPERTS. */
#include "backend/cpu/cpu.h"
#include <string.h>

/* Whether an op is one of the head: run for the rows whose logits are wanted, few of a prompt's. */
static bool of_head(const lm_program *p, const lm_op *op) { return (size_t)(op - p->op) >= p->head_first; }
/* mixed: a row's loud blocks in 16 bits, all of it in the head (docs/lanes.md has the table). */
void lm_cpu_choose_lane(const lm_device *d, const lm_program *p, const lm_op *op, lm_cpu_op *out) {
    const lm_packed_matrix *w = d->weight;
    const bool i8 = strcmp(d->lane, "i8") == 0, i16 = strcmp(d->lane, "i16") == 0, mixed = strcmp(d->lane, "mixed") == 0;
    const lm_int_lane lane = i8 ? LM_INT_8 : i16 ? LM_INT_16 : mixed ? LM_INT_MIXED : LM_INT_NONE;
    out->lane = out->down = LM_INT_NONE;
    if (d->bf16) out->lane = out->down = LM_INT_BF16;
    if (lane == LM_INT_NONE) return;
    if (op->kind == LM_OP_LINEAR && lm_int_fits(&w[op->w])) out->lane = lane == LM_INT_MIXED && of_head(p, op) ? LM_INT_16 : lane;
    if (op->kind != LM_OP_EXPERTS) return;
    if (lm_int_fits(&w[op->w]) && lm_int_fits(&w[op->w2])) out->lane = lane; /* they share their input */
    if (lm_int_fits(&w[op->w3])) out->down = lane;
}

static bool is_gate(const lm_program *p, const lm_cpu_op *ops, uint32_t i) {
    const lm_op *gate = &p->op[i], *up = gate + 1, *join = gate + 2;
    if (i + 2 >= p->n_ops || (i < p->head_first) != (i + 2 < p->head_first)) return false;
    if (gate->kind != LM_OP_LINEAR || up->kind != LM_OP_LINEAR || join->kind != LM_OP_GATED) return false;
    if (ops[i].lane == LM_INT_NONE || ops[i].lane != ops[i + 1].lane || gate->linear.split || up->linear.split) return false;
    return gate->a == up->a && join->a == gate->out && join->b == up->out && gate->out != up->out && p->value[gate->out].last == i + 2 &&
           p->value[up->out].last == i + 2;
}
/* What a gate feeds stands in its own value's place. That is the next product's input, and a gate's result may be put where its input stood: it is
 * read to the end there, so it is not fed. */
static bool feeds(const lm_program *p, const lm_cpu_op *ops, uint32_t i) {
    return ops[i].gates && ops[i + 2].packs && ops[i + 2].local && ops[i + 3].lane == ops[i].lane && ops[i].lane != LM_INT_MIXED &&
           p->value[p->op[i + 2].out].width % 32 == 0 && !is_gate(p, ops, i + 3);
}
void lm_cpu_find_gates(const lm_program *p, lm_cpu_op *ops) {
    for (uint32_t i = 0; i < p->n_ops; i++) {
        ops[i].gates = is_gate(p, ops, i);
        ops[i].feeds = feeds(p, ops, i);
    }
}

static lm_product as_float(const lm_cpu_product *p) {
    return (lm_product){p->f->k, p->w, p->mat, p->split, p->bias, p->xp, p->n_t, p->y, p->ldy, p->lane == LM_INT_BF16 ? p->f->d->bf16 : NULL,
                        p->gate, lm_pool_size(p->f->d->pool)};
}
static lm_int_product as_int(const lm_cpu_product *p) {
    return (lm_int_product){p->f->d->ik, p->lane, p->w, p->mat, p->split, p->bias, p->xp, p->n_t, p->y, p->ldy, p->gate, 0,
                            lm_pool_size(p->f->d->pool)};
}
uint64_t lm_cpu_product_scratch(lm_int_lane lane, uint32_t n_t, uint32_t K) {
    return lm_cpu_is_int(lane) ? lm_int_scratch(K, false) : lm_product_scratch(n_t);
}
uint32_t lm_cpu_product_tasks(const lm_cpu_product *p) {
    if (!lm_cpu_is_int(p->lane)) {
        const lm_product q = as_float(p);
        return lm_product_tasks(&q);
    }
    const lm_int_product q = as_int(p);
    return lm_int_tasks(&q);
}
void lm_cpu_product_run(const lm_cpu_product *p, uint32_t task, float *scratch) {
    if (!lm_cpu_is_int(p->lane)) {
        const lm_product q = as_float(p);
        lm_product_run(&q, task, scratch);
        return;
    }
    const lm_int_product q = as_int(p);
    lm_int_run(&q, task, scratch);
}
bool lm_cpu_gates(const lm_cpu *f, const lm_op *op) {
    const lm_cpu_op *aux = lm_cpu_aux(f, op);
    return aux->gates && (lm_cpu_is_int(aux->lane) || f->n > LM_TILE);
}
uint32_t lm_cpu_x_tiles(lm_int_lane lane, uint32_t n_t) { return lm_cpu_is_int(lane) ? lm_int_tiles(lane, n_t) : lm_x_tiles(n_t); }
uint32_t lm_cpu_x_first(lm_int_lane lane, uint32_t n_t, uint32_t i) {
    return lm_cpu_is_int(lane) ? lm_int_first(lane, n_t, i) : lm_x_first(n_t, i);
}
void lm_cpu_x_pack(const lm_cpu *f, lm_int_lane lane, const float *x, size_t ldx, const uint32_t *row, uint32_t n_t, uint32_t i, uint32_t K,
                   float *xp) {
    if (lane == LM_INT_NONE)
        lm_x_pack(x, ldx, row, n_t, i, K, xp);
    else if (lane == LM_INT_BF16)
        lm_bf16_pack(f->d->bf16, x, ldx, row, n_t, i, K, xp);
    else
        lm_int_pack(f->d->ik, lane, x, ldx, row, n_t, i, K, xp);
}
void lm_cpu_x_pack_rows(const lm_cpu *f, lm_int_lane lane, const float *const *src, uint32_t n_t, uint32_t i, uint32_t K, float *xp) {
    if (lane == LM_INT_BF16)
        lm_bf16_pack_rows(f->d->bf16, src, n_t, i, K, xp);
    else
        lm_int_pack_rows(f->d->ik, lane, src, n_t, i, K, xp);
}
