/* What the kernel tests share: a printed seed, buffers that end at a guard page, the levels this CPU has. */
#ifndef LM_TESTS_KERN_H
#define LM_TESTS_KERN_H
#include "check.h"
#include "base/rng.h"
#include "base/smallfloat.h"
#include "kernels/kernels.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static uint64_t kern_seed = 20260203, kern_count;
static inline double kern_uniform(void) { return lm_uniform(kern_seed, 1, kern_count++); }
static inline uint32_t kern_below(uint32_t n) { return (uint32_t)(kern_uniform() * n); }
static inline float kern_normal(void) { /* near enough */
    double s = 0;
    for (int i = 0; i < 4; i++) s += kern_uniform() - 0.5;
    return (float)(s * 1.7);
}
static inline int kern_print_seed(void **state) {
    (void)state;
    printf("seed %llu\n", (unsigned long long)kern_seed);
    return 0;
}

/* n bytes that end right before an unreadable page; kern_guard_free takes the same n */
static inline void *kern_guard(size_t n) {
    size_t body = (n + 4095) / 4096 * 4096;
    uint8_t *p = mmap(NULL, body + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) abort();
    mprotect(p + body, 4096, PROT_NONE);
    return p + body - n;
}
static inline void kern_guard_free(void *q, size_t n) {
    size_t body = (n + 4095) / 4096 * 4096;
    munmap((uint8_t *)q + n - body, body + 4096);
}

static inline uint32_t kern_levels(const lm_kernels *out[3]) {
    static const char *const name[] = {"c", "avx2", "avx512", "neon"}; /* three at most on one machine */
    uint32_t n = 0;
    for (int i = 0; i < 4; i++)
        if (lm_kernels_pick(name[i], &out[n], NULL) == LM_OK) n++;
    return n;
}
#define ASSERT_SAME(a, b, n, what) \
    do { \
        if (memcmp((a), (b), (n) * sizeof *(a)) != 0) { \
            for (size_t i_ = 0; i_ < (n); i_++) \
                if (memcmp(&(a)[i_], &(b)[i_], sizeof *(a)) != 0) fail_msg("%s: element %zu: %a and %a", (what), i_, (double)(a)[i_], (double)(b)[i_]); \
        } \
    } while (0)
#endif
