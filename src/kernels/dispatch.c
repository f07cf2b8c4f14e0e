/* Which level runs: asked for by name, or the best that this CPU has. */
#include "kernels/kernels.h"
#include <string.h>

static bool always(void) { return true; }
#if defined(__x86_64__)
#define LM_LEVELS "c, avx2 or avx512"
static bool has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }
static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
#elif defined(__aarch64__)
#define LM_LEVELS "c or neon"
#else
#define LM_LEVELS "c"
#endif
/* best first; NEON belongs to every AArch64 CPU */
static const struct {
    const lm_kernels *k;
    bool (*has)(void);
} levels[] = {
#if defined(__x86_64__)
    {&lm_kernels_avx512, has_avx512},
    {&lm_kernels_avx2, has_avx2},
#elif defined(__aarch64__)
    {&lm_kernels_neon, always},
#endif
    {&lm_kernels_c, always},
};

lm_status lm_kernels_pick(const char *level, const lm_kernels **out, lm_error *err) {
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        if (level && strcmp(level, levels[i].k->level) != 0) continue;
        if (levels[i].has()) {
            *out = levels[i].k;
            return LM_OK;
        }
        if (level) return lm_fail(err, LM_UNSUPPORTED, "this CPU lacks level \"%s\": ask for a lower one, or for none to get its best", level);
    }
    return lm_fail(err, LM_UNSUPPORTED, "this build has no kernels of level \"%s\": ask for " LM_LEVELS ", or for none to get the best", level);
}
