/* Which ops of a program run as one, where nobody looks in between (taps): rows go through several ops one after the other while they are near,
 * and through the packing of what the next product reads; products of one input share a job. No bit depends on it. */
#include "backend/cpu/cpu.h"

static bool is_row_op(const lm_op *op) { return lm_cpu_row_fns[op->kind] != NULL; }
/* The end of the part, body or head, that op i stands in */
static uint32_t part_end(const lm_program *p, uint32_t i) { return i < p->head_first ? p->head_first : p->n_ops; }
static bool reads(const lm_op *op, lm_val v) { return op->a == v || op->b == v || op->c == v || op->d == v; }

void lm_cpu_find_rows(const lm_program *p, lm_cpu_op *ops) {
    for (uint32_t i = 0; i < p->n_ops;) {
        uint32_t end = i + 1;
        while (is_row_op(&p->op[i]) && end < part_end(p, i) && is_row_op(&p->op[end])) end++;
        for (uint32_t j = i; j < end; j++) ops[j].start = i, ops[j].run = end - j;
        i = end;
    }
}
/* Whether a value is seen by ops [i, end) alone. */
static bool seen_only_by(const lm_program *p, lm_val v, uint32_t i, uint32_t end) {
    for (uint32_t j = 0; j < p->n_ops; j++)
        if ((j < i || j >= end) && reads(&p->op[j], v)) return false;
    return v != p->logits && v != p->norm && v != p->embed;
}
void lm_cpu_find_products(const lm_program *p, lm_cpu_op *ops) {
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (p->op[i].kind != LM_OP_LINEAR || ops[i].start != i) continue;
        uint32_t end = i + 1;
        while (end < part_end(p, i) && end - i < LM_CPU_PRODUCTS && lm_cpu_is_int(ops[i].lane) && p->op[end].kind == LM_OP_LINEAR &&
               p->op[end].a == p->op[i].a && ops[end].lane == ops[i].lane)
            end++;
        for (uint32_t j = i; j < end; j++) ops[j].start = i, ops[j].run = end - j;
        if (!i || part_end(p, i - 1) != part_end(p, i) || !is_row_op(&p->op[i - 1]) || p->op[i - 1].out != p->op[i].a) continue;
        ops[i - 1].packs = true;
        ops[i - 1].local = ops[i].lane != LM_INT_NONE && seen_only_by(p, p->op[i].a, i, end);
    }
}
