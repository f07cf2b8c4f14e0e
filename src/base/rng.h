/* Counter-based random numbers (Philox 4x32-10): value i of stream (seed, stream) is a pure function of the three. */
#ifndef LM_BASE_RNG_H
#define LM_BASE_RNG_H
#include <stdint.h>
void lm_philox(uint64_t seed, uint64_t stream, uint64_t counter, uint32_t out[4]);
/* uniform in [0,1) with 53 bits */
double lm_uniform(uint64_t seed, uint64_t stream, uint64_t counter);
#endif
