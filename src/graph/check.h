/* The whole program checked once, when a backend is configured: every operand exists, was written before, and is as wide as its op's
 * parameters, weights and cache slot demand. After it, a backend may index without asking. A failure is LM_INTERNAL (an architecture
 * file is wrong, or a check before it is missing) and names the op. */
#ifndef LM_GRAPH_CHECK_H
#define LM_GRAPH_CHECK_H
#include "graph/program.h"

lm_status lm_program_check(const lm_program *p, lm_error *err);
#endif
