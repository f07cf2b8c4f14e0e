/* Busy neighbours: threads that compute without end, each bound to a CPU, from the last one that the process may use downwards. What a
 * speed beside them is worth can be seen without another program. */
#ifndef LM_BENCH_NEIGHBOURS_H
#define LM_BENCH_NEIGHBOURS_H
#include "base/status.h"

enum { LM_MOST_NEIGHBOURS = 64 };

typedef struct lm_neighbours lm_neighbours;
/* All of them run when it returns. Where the system can't bind a thread to a CPU, LM_UNSUPPORTED. n 0: none, *out is NULL. */
lm_status lm_neighbours_start(uint32_t n, lm_neighbours **out, lm_error *err);
void lm_neighbours_stop(lm_neighbours *b); /* NULL is fine */
#endif
