/* The builder: appends ops to a program. Errors are sticky: after the first failure every call returns LM_NONE and lm_graph_finish
 * gives the error, so that a model's file reads as the model. Result names are built from the current layer: "attn.q" in layer 3 is
 * "layer.3.attn.q". Widths are checked here, so that a wrong model is refused at load by the op's name. */
#ifndef LM_GRAPH_BUILDER_H
#define LM_GRAPH_BUILDER_H
#include "graph/program.h"

typedef struct lm_graph {
    lm_program *p;
    lm_status status;
    lm_error err;
    int32_t layer; /* −1 outside the layers */
    uint32_t cap_ops, cap_weights, cap_vecs, cap_ropes, cap_slots, cap_traits;
} lm_graph;

lm_status lm_graph_init(lm_graph *g, const char *arch, lm_error *err);
/* Fails the build (once); returns LM_NONE. */
uint32_t lm_graph_fail(lm_graph *g, lm_status code, const char *field, const char *fmt, ...) LM_PRINTF(4, 5);
static inline bool lm_graph_ok(const lm_graph *g) { return g->status == LM_OK; }
/* Liveness is filled in and the program handed over; on error the program is freed. */
lm_status lm_graph_finish(lm_graph *g, lm_program **out, lm_error *err);
void lm_program_free(lm_program *p);

/* ---- things ops refer to -----------------------------------------------------------------------------------------------------*/
uint32_t lm_graph_weight(lm_graph *g, const lm_weight *w);                         /* copied; segments must live in the arena */
uint32_t lm_graph_vec(lm_graph *g, const char *name, const double *v, uint64_t n); /* v must live in the arena */
uint32_t lm_graph_rope(lm_graph *g, const lm_rope *r);                             /* equal tables share an index */
uint32_t lm_graph_slot(lm_graph *g, lm_cache_kind kind, uint32_t heads, uint32_t dk, uint32_t dv, uint32_t window);
void lm_graph_trait(lm_graph *g, uint32_t min_tokens, const char *fmt, ...) LM_PRINTF(3, 4); /* equal names are kept once */
uint32_t lm_width(const lm_graph *g, lm_val v);
lm_val lm_rename(lm_graph *g, lm_val v, const char *name); /* of the op that made v */

/* ---- ops (see program.h for what each computes); name is relative to the layer -----------------------------------------------*/
lm_val lm_op_embed(lm_graph *g, const char *name, uint32_t w, bool by_position);
lm_val lm_op_scale(lm_graph *g, const char *name, lm_val a, double c);
lm_val lm_op_scale_vec(lm_graph *g, const char *name, lm_val a, uint32_t vec);
lm_val lm_op_add(lm_graph *g, const char *name, lm_val a, lm_val b);
lm_val lm_op_mul(lm_graph *g, const char *name, lm_val a, lm_val b);
lm_val lm_op_norm(lm_graph *g, const char *name, lm_val a, lm_norm norm, uint32_t groups, double eps, uint32_t weight, uint32_t bias);
lm_val lm_op_linear(lm_graph *g, const char *name, lm_val a, uint32_t w, uint32_t bias, bool split);
lm_val lm_op_act(lm_graph *g, const char *name, lm_val a, lm_act act);
lm_val lm_op_gated(lm_graph *g, const char *name, lm_val gate, lm_val up, lm_act act, double limit, double alpha);
lm_val lm_op_rope(lm_graph *g, const char *name, lm_val a, uint32_t heads, uint32_t offset, uint32_t n_rot, uint32_t rope,
                  bool interleaved);
/* `o` gives attn/mla/index/route/experts/conv/delta parameters, operands, weights and vectors; kind, name, width are set here. */
lm_val lm_op_custom(lm_graph *g, lm_op_kind kind, const char *name, uint32_t width, const lm_op *o);
lm_val lm_op_softcap(lm_graph *g, const char *name, lm_val a, double c);
lm_val lm_op_slice(lm_graph *g, const char *name, lm_val a, uint32_t offset, uint32_t group, uint32_t groups, uint32_t stride);
lm_val lm_op_concat(lm_graph *g, const char *name, lm_val a, lm_val b);
lm_op lm_op_blank(void); /* all operands absent */
#endif
