/* The codebooks of the IQ types: each entry is a vector of 8 (IQ1, IQ2: two bits an element) or 4 (IQ3: four bits an element) codes,
 * element 0 lowest. What a code stands for is the type's own affair. */
#ifndef LM_QUANT_IQ_GRIDS_H
#define LM_QUANT_IQ_GRIDS_H
#include <stdint.h>

extern const uint16_t lm_iq2_xxs_grid[256], lm_iq2_xs_grid[512], lm_iq2_s_grid[1024], lm_iq3_xxs_grid[256], lm_iq3_s_grid[512],
    lm_iq1_grid[2048];

/* Signs are stored as seven bits; the eighth makes their number even. */
static inline uint8_t lm_iq_signs(uint32_t bits) {
    bits &= 127;
    return (uint8_t)(bits | (uint32_t)__builtin_parity(bits) << 7);
}
#endif
