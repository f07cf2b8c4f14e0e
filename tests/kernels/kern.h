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

/* kernels.h's words on a product: 8 segments of whole units where it is split, their totals in a tree, empty ones passed over. */
static inline bool kern_tree(const float *seg, const bool *has, uint32_t lo, uint32_t hi, float *out) {
    if (hi - lo == 1) {
        *out = seg[lo];
        return has[lo];
    }
    float a, b;
    const uint32_t mid = (lo + hi) / 2;
    const bool ha = kern_tree(seg, has, lo, mid, &a), hb = kern_tree(seg, has, mid, hi, &b);
    *out = ha && hb ? a + b : ha ? a : b;
    return ha || hb;
}
static inline float kern_plain_product(float (*segment)(const float *w, const float *x, uint32_t n), const float *w, const float *x, uint32_t K,
                                       uint32_t unit, bool split) {
    if (!split) return segment(w, x, K);
    const uint32_t n = (K + unit - 1) / unit;
    float seg[8], y = 0;
    bool has[8];
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t a = i * n / 8 * unit, b = (i + 1) * n / 8 * unit;
        if (b > K) b = K;
        has[i] = a < b;
        seg[i] = has[i] ? segment(w + a, x + a, b - a) : 0;
    }
    kern_tree(seg, has, 0, 8, &y);
    return y;
}
/* Its tasks, last one first: any order gives the same. */
static inline void kern_run_product(const lm_product *p) {
    const size_t n = lm_product_scratch(p->n_t) * sizeof(float);
    float *scratch = kern_guard(n);
    memset(scratch, 0xff, n);
    for (uint32_t i = lm_product_tasks(p); i-- > 0;) lm_product_run(p, i, scratch);
    kern_guard_free(scratch, n);
}
#endif
