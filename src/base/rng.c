/* Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
 * Key: the seed, low word first; counter words 0, 1: the counter; 2, 3: the stream. */
#include "base/rng.h"

void lm_philox(uint64_t seed, uint64_t stream, uint64_t counter, uint32_t out[4]) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)c0 * 0xD2511F53u, b = (uint64_t)c2 * 0xCD9E8D57u;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u; /* the golden ratio and √3 − 1 */
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

double lm_uniform(uint64_t seed, uint64_t stream, uint64_t counter) {
    uint32_t w[4];
    lm_philox(seed, stream, counter, w);
    return (double)(((uint64_t)w[1] << 32 | w[0]) >> 11) * 0x1p-53;
}
