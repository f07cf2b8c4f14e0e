/* Which bf16 kernels run, their trial against plain C, and the packing of their inputs. The contract is in lane_bf16.h. */
#include "kernels/lane_bf16.h"
#include "base/rng.h"
#include "base/smallfloat.h"
#include "kernels/body/turn.h"
#include <string.h>

#if defined(__x86_64__)
static bool has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
static bool has_dp(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16");
}
#endif
static bool always(void) { return true; }
/* Slowest first; `level` is the lowest at which one may run. */
static const struct {
    const lm_bf16_kernels *k;
    bool (*has)(void);
    const char *level;
} all[] = {
    {&lm_bf16_c, always, "c"},
#if defined(__x86_64__)
    {&lm_bf16_avx2, has_avx2, "avx2"},
    {&lm_bf16_dp, has_dp, "avx512"},
#elif defined(__aarch64__)
    {&lm_bf16_neon, always, "neon"},
#endif
};
enum { N_ALL = sizeof all / sizeof *all };

const lm_bf16_kernels *lm_bf16_nth(uint32_t i) {
    for (uint32_t j = 0; j < N_ALL; j++)
        if (all[j].has() && i-- == 0) return all[j].k;
    return NULL;
}

/* A bfloat16 number: in even rounds one whose products lie around 2^-126, in odd ones of any moderate size; some are special. */
static uint16_t odd_number(uint64_t round, uint64_t i) {
    static const float special[] = {0.0f, -0.0f, 1.0f, -1.0f, 0x1p-126f, -0x1p-126f, 0x1.fep+127f, 0x1p-63f};
    uint32_t r[4];
    lm_philox(round, 3, i, r);
    const uint32_t sign = r[0] & 0x8000, mantissa = r[0] >> 16 & (r[0] & 1 ? 0x7f : 0);
    if (r[1] % 16 == 0) return (uint16_t)(lm_f32_bits(special[r[2] % 8]) >> 16);
    return (uint16_t)(sign | (round & 1 ? 100 + r[2] % 60 : 56 + r[2] % 12) << 7 | mantissa);
}
static bool same(const float *a, const float *b, uint32_t n) {
    for (uint32_t j = 0; j < n; j++)
        if (lm_f32_bits(a[j]) != lm_f32_bits(b[j]) && !(a[j] != a[j] && b[j] != b[j])) return false;
    return true;
}
static bool tiles_agree(const lm_bf16_kernels *k) {
    enum { PAIRS = 4, T = 3, ROUNDS = 200 };
    uint16_t w[2][PAIRS * 32], x[PAIRS * T * 2];
    uint32_t words[PAIRS * T];
    float want[2 * T * 16], got[2 * T * 16];
    for (uint64_t i = 0; i < ROUNDS; i++) {
        const uint32_t pairs = 1 + (uint32_t)(i / 2 % PAIRS);
        for (uint32_t j = 0; j < 2 * PAIRS * 32; j++) w[j / (PAIRS * 32)][j % (PAIRS * 32)] = odd_number(i, j);
        for (uint32_t j = 0; j < PAIRS * T * 2; j++) x[j] = odd_number(i, 1000 + j);
        memcpy(words, x, sizeof x);
        lm_bf16_tile a = {.w = (const uint8_t *)w, .strip_bytes = sizeof w[0], .x = words, .n_c = 2, .pairs = pairs, .n_t = T, .first = true, .ld = T};
        a.ahead = a.w;
        a.total = want, lm_bf16_c.tile(&a);
        a.total = got, k->tile(&a);
        if (!same(want, got, 2 * T * 16)) return false;
    }
    return true;
}
/* Attention whose weights reach from 1 down to 2^-100, some of them by values that make a product's edge. */
static bool pages_agree(const lm_bf16_kernels *k) {
    enum { D = 8, N = 3, ROUNDS = 4 };
    static const uint32_t lo[N] = {0, 3, 30}, hi[N] = {LM_KV_PAGE, 200, 77};
    uint16_t q[D * N], keys[LM_KV_PAGE * D], values[LM_KV_PAGE * LM_KV_SPAN];
    float s[LM_KV_PAGE * N], want[N * (LM_KV_SPAN + 2)], got[N * (LM_KV_SPAN + 2)];
    uint32_t words[D / 2 * N], r[4];
    for (uint64_t i = 0; i < ROUNDS; i++) {
        for (uint32_t j = 0; j < LM_KV_PAGE * D; j++) {
            lm_philox(i, 4, j, r);
            keys[j] = (uint16_t)((r[0] & 0x8000) | (uint32_t)(126 + r[1] % 3) << 7 | r[2] % 128);
            if (j < D * N) q[j] = keys[j] & 0x7fff;
        }
        for (uint32_t j = 0; j < LM_KV_PAGE * LM_KV_SPAN; j++) values[j] = odd_number(i, j);
        memcpy(words, q, sizeof q);
        lm_attend a = {.n = N, .dk = D, .dv = LM_KV_SPAN, .q = words, .lo = lo, .hi = hi, .keys = (const uint8_t *)keys,
                       .values = (const uint8_t *)values, .scale = 2.0f, .s = s, .ldo = LM_KV_SPAN};
        a.o = want, a.m = want + N * LM_KV_SPAN, a.l = a.m + N, lm_bf16_c.attend(&a);
        a.o = got, a.m = got + N * LM_KV_SPAN, a.l = a.m + N, k->attend(&a);
        if (!same(want, got, N * (LM_KV_SPAN + 2))) return false;
    }
    return true;
}
bool lm_bf16_agrees(const lm_bf16_kernels *k) { return tiles_agree(k) && pages_agree(k); }
const lm_bf16_kernels *lm_bf16_pick(const lm_kernels *level, const char **passed_over) {
    const lm_bf16_kernels *best = &lm_bf16_c;
    const char *failed = NULL;
    for (uint32_t j = 1; j < N_ALL; j++) {
        const bool below = strcmp(all[j].level, level->level) == 0 || (strcmp(level->level, "avx512") == 0 && strcmp(all[j].level, "avx2") == 0);
        if (!below || !all[j].has()) continue;
        if (lm_bf16_agrees(all[j].k))
            best = all[j].k, failed = NULL;
        else
            failed = all[j].k->level;
    }
    if (passed_over) *passed_over = failed;
    return best;
}

void lm_bf16_turn(const uint16_t *rows, size_t ld, uint32_t w, uint32_t n, uint32_t *dst) {
    uint32_t j = 0;
    for (; w >= 4 && j + 4 <= n; j += 4)
        for (uint32_t t = 0; t < w; t += 4) { /* the last four may be some of those before again */
            const uint32_t t4 = t + 4 <= w ? t : w - 4;
            lm_turn(rows + t4 * ld + 2 * j, ld, dst + (size_t)j * w + t4, w);
        }
    for (; j < n; j++)
        for (uint32_t t = 0; t < w; t++) memcpy(&dst[(size_t)j * w + t], &rows[t * ld + 2 * j], 4);
}
void lm_bf16_pack(const lm_bf16_kernels *k, const float *x, size_t ldx, const uint32_t *row, uint32_t n_t, uint32_t i, uint32_t K, void *xp) {
    const uint32_t t0 = lm_x_first(n_t, i), w = lm_x_first(n_t, i + 1) - t0;
    const float *src[LM_TILE];
    for (uint32_t t = 0; t < w; t++) src[t] = x + (size_t)(row ? row[t0 + t] : t0 + t) * ldx;
    lm_bf16_pack_rows(k, src, n_t, i, K, xp);
}
void lm_bf16_pack_rows(const lm_bf16_kernels *k, const float *const *src, uint32_t n_t, uint32_t i, uint32_t K, void *xp) {
    enum { PIECE = 256 };
    const uint32_t t0 = lm_x_first(n_t, i), w = lm_x_first(n_t, i + 1) - t0;
    uint32_t *dst = (uint32_t *)xp + (size_t)t0 * ((K + 1) / 2);
    for (uint32_t k0 = 0; k0 < K; k0 += PIECE) {
        const uint32_t n = K - k0 < PIECE ? K - k0 : PIECE, m = (n + 1) / 2;
        uint16_t piece[LM_TILE][PIECE];
        for (uint32_t t = 0; t < w; t++) {
            k->round(src[t] + k0, n, piece[t]);
            if (n & 1) piece[t][n] = 0;
        }
        lm_bf16_turn(piece[0], PIECE, w, m, dst);
        dst += (size_t)m * w;
    }
}
