/* A program whose weights are partly another's: what lm_engine_swap configures the device with. */
#ifndef LM_ENGINE_SWAP_H
#define LM_ENGINE_SWAP_H
#include "engine/model.h"

typedef struct lm_swap {
    lm_program p; /* the engine's, with its own weight and vec tables */
    uint32_t *handle, *uploaded, n_uploaded; /* handle: [n_weights] */
} lm_swap;
void lm_swap_free(lm_swap *s); /* after the device has been given another program, or is gone */
#endif
