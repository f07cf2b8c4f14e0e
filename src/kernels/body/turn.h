#ifndef LM_KERNELS_TURN_H
#define LM_KERNELS_TURN_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Four pairs of each of four rows, turned: dst[4][w], row by row a pair of each. */
typedef uint32_t lm_quad __attribute__((vector_size(16)));
static inline void lm_turn(const uint16_t *src, size_t ld, uint32_t *dst, size_t w) {
    lm_quad r[4];
    for (int i = 0; i < 4; i++) memcpy(&r[i], src + (size_t)i * ld, sizeof r[i]);
    const lm_quad a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5), b = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
    const lm_quad c = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7), d = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
    const lm_quad out[4] = {__builtin_shufflevector(a, b, 0, 1, 4, 5), __builtin_shufflevector(a, b, 2, 3, 6, 7),
                         __builtin_shufflevector(c, d, 0, 1, 4, 5), __builtin_shufflevector(c, d, 2, 3, 6, 7)};
    for (int i = 0; i < 4; i++) memcpy(dst + (size_t)i * w, &out[i], sizeof out[i]);
}
#endif
