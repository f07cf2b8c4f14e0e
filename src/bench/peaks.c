#include "bench/peaks.h"

#include <stddef.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#endif

static bool always(void) { return true; }

/* A kernel: N chains of vectors V with L lanes of E. Where the chains start is hidden from the compiler, which would merge equal ones, and
 * so are the operands, anew in every step, or it would multiply once. N chains cover the instruction's latency and leave registers for the
 * operands. The unroll count is N. */
#define LM_DO_PRAGMA(x) _Pragma(#x)
#define LM_PEAK_FN(name, attr, N, V, E, L, A, B, ones_a, ones_b, zero, reg, step, store) \
    attr static uint64_t name(uint64_t steps) { \
        V acc[N]; \
        A a = ones_a; \
        B b = ones_b; \
        LM_DO_PRAGMA(GCC unroll N) for (int i = 0; i < N; i++) { \
            acc[i] = zero; \
            __asm__ volatile("" : "+" reg(acc[i])); \
        } \
        for (; steps; steps--) { \
            __asm__ volatile("" : "+" reg(a), "+" reg(b)); \
            LM_DO_PRAGMA(GCC unroll N) for (int i = 0; i < N; i++) acc[i] = step(acc[i], a, b); \
        } \
        uint64_t sum = 0; \
        for (int i = 0; i < N; i++) { \
            E lane[L]; \
            store((void *)lane, acc[i]); \
            for (int j = 0; j < L; j++) sum += (uint64_t)lane[j]; \
        } \
        return sum; \
    }
/* AHEAD: bytes ahead that memory is asked; 0: the hardware alone has to foresee what comes */
#define LM_STREAM_FN(name, attr, AHEAD) \
    attr static uint64_t name(const uint64_t *p, uint64_t n) { \
        typedef uint64_t v8 __attribute__((vector_size(64), aligned(8), may_alias)); \
        v8 s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0}; \
        for (uint64_t i = 0; i < n; i += 64) { \
            const v8 *v = (const v8 *)(p + i); \
            for (int j = 0; AHEAD && j < 8; j++) __builtin_prefetch((const char *)(v + j) + AHEAD); \
            s0 += v[0] + v[4], s1 += v[1] + v[5], s2 += v[2] + v[6], s3 += v[3] + v[7]; \
        } \
        s0 += s1 + (s2 + s3); \
        uint64_t sum = 0; \
        for (int j = 0; j < 8; j++) sum += s0[j]; \
        return sum; \
    }
#define LM_STREAM_FNS(name, attr) LM_STREAM_FN(name, attr, 0) LM_STREAM_FN(name##_ahead, attr, 2048)

/* ---- plain C: what the compiler makes of a loop ------------------------------------------------------------------------------------*/
static uint64_t f32_c(uint64_t steps) {
    float acc[32] = {0}, a[32], b[32];
    for (int i = 0; i < 32; i++) a[i] = b[i] = 1;
    for (; steps; steps--) {
        __asm__ volatile("" : "+m"(a), "+m"(b));
        for (int i = 0; i < 32; i++) acc[i] += a[i] * b[i];
    }
    uint64_t sum = 0;
    for (int i = 0; i < 32; i++) sum += (uint64_t)acc[i];
    return sum;
}
static uint64_t int8_c(uint64_t steps) {
    int32_t acc[32] = {0};
    int8_t a[32], b[32];
    for (int i = 0; i < 32; i++) a[i] = b[i] = 1;
    for (; steps; steps--) {
        __asm__ volatile("" : "+m"(a), "+m"(b));
        for (int i = 0; i < 32; i++) acc[i] += a[i] * b[i];
    }
    uint64_t sum = 0;
    for (int i = 0; i < 32; i++) sum += (uint64_t)acc[i];
    return sum;
}
LM_STREAM_FNS(stream_c, )

#if defined(__x86_64__)
/* ---- AVX-512 and AVX2 -----------------------------------------------------------------------------------------------------------*/
#define LM_TARGET(t) __attribute__((target(t)))
static bool has_avx512(void) { return __builtin_cpu_supports("avx512f"); }
static bool has_vnni512(void) { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }
static bool has_bf16(void) { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
static bool has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
static bool has_avxvnni(void) {
    unsigned a, b, c, d; /* leaf 7.1, EAX bit 4: a name that gcc 12's own check lacks */
    __asm__("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(7), "c"(1));
    return has_avx2() && (a >> 4 & 1);
}

#define FMA512(acc, a, b) _mm512_fmadd_ps(a, b, acc)
LM_PEAK_FN(f32_avx512, LM_TARGET("avx512f"), 16, __m512, float, 16, __m512, __m512, _mm512_set1_ps(1), _mm512_set1_ps(1),
           _mm512_setzero_ps(), "v", FMA512, _mm512_storeu_ps)
#define ONES_BF16 (__m512bh) _mm512_set1_epi16(0x3f80)
LM_PEAK_FN(bf16_avx512, LM_TARGET("avx512f,avx512bw,avx512bf16"), 16, __m512, float, 16, __m512bh, __m512bh, ONES_BF16, ONES_BF16,
           _mm512_setzero_ps(), "v", _mm512_dpbf16_ps, _mm512_storeu_ps)
LM_PEAK_FN(int8_avx512, LM_TARGET("avx512f,avx512bw,avx512vnni"), 16, __m512i, int32_t, 16, __m512i, __m512i, _mm512_set1_epi8(1),
           _mm512_set1_epi8(1), _mm512_setzero_si512(), "v", _mm512_dpbusd_epi32, _mm512_storeu_si512)

#define FMA256(acc, a, b) _mm256_fmadd_ps(a, b, acc)
LM_PEAK_FN(f32_avx2, LM_TARGET("avx2,fma"), 12, __m256, float, 8, __m256, __m256, _mm256_set1_ps(1), _mm256_set1_ps(1), _mm256_setzero_ps(),
           "x", FMA256, _mm256_storeu_ps)
LM_PEAK_FN(int8_avxvnni, LM_TARGET("avx2,avxvnni"), 12, __m256i, int32_t, 8, __m256i, __m256i, _mm256_set1_epi8(1), _mm256_set1_epi8(1),
           _mm256_setzero_si256(), "x", _mm256_dpbusd_avx_epi32, _mm256_storeu_si256)
/* Bytes to pairs of 16 bits, eight of which are added up before they are widened, as kernels do with weights of 4 bits. Each product is of
 * operands hidden anew: it would be computed once for all chains. */
LM_TARGET("avx2") static inline __m256i dot256(__m256i acc, __m256i a, __m256i b) {
    __m256i sum = _mm256_setzero_si256();
    LM_DO_PRAGMA(GCC unroll 8) for (int i = 0; i < 8; i++) {
        __asm__ volatile("" : "+x"(a));
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, b));
    }
    return _mm256_add_epi32(acc, _mm256_madd_epi16(sum, _mm256_set1_epi16(1)));
}
LM_PEAK_FN(int8_avx2, LM_TARGET("avx2"), 6, __m256i, int32_t, 8, __m256i, __m256i, _mm256_set1_epi8(1), _mm256_set1_epi8(1),
           _mm256_setzero_si256(), "x", dot256, _mm256_storeu_si256)
LM_STREAM_FNS(stream_avx512, LM_TARGET("avx512f"))
LM_STREAM_FNS(stream_avx2, LM_TARGET("avx2"))

#elif defined(__aarch64__)
/* ---- NEON -----------------------------------------------------------------------------------------------------------------------*/
#define LM_TARGET(t) __attribute__((target(t)))
#if defined(__linux__)
static bool has_dotprod(void) { return getauxval(AT_HWCAP) >> 20 & 1; } /* HWCAP_ASIMDDP */
static bool has_bf16(void) { return getauxval(AT_HWCAP2) >> 14 & 1; }   /* HWCAP2_BF16 */
static bool has_i8mm(void) { return getauxval(AT_HWCAP2) >> 13 & 1; }   /* HWCAP2_I8MM */
#else
static bool has_dotprod(void) { return true; } /* every Apple CPU of this architecture; what only newer ones have isn't asked for */
static bool has_bf16(void) { return false; }
static bool has_i8mm(void) { return false; }
#endif
#define STORE_F32(p, v) vst1q_f32(p, v)
#define STORE_S32(p, v) vst1q_s32(p, v)
LM_PEAK_FN(f32_neon, , 16, float32x4_t, float, 4, float32x4_t, float32x4_t, vdupq_n_f32(1), vdupq_n_f32(1), vdupq_n_f32(0), "w", vfmaq_f32,
           STORE_F32)
static inline uint16_t bf16_one(void) { /* hidden: gcc 12 makes an fmov of half floats of it, which is another number */
    uint32_t v = 0x3f80;
    __asm__ volatile("" : "+r"(v));
    return (uint16_t)v;
}
#define ONES_BF16 vreinterpretq_bf16_u16(vdupq_n_u16(bf16_one()))
LM_PEAK_FN(bf16_neon, LM_TARGET("arch=armv8.2-a+bf16"), 16, float32x4_t, float, 4, bfloat16x8_t, bfloat16x8_t, ONES_BF16, ONES_BF16,
           vdupq_n_f32(0), "w", vbfdotq_f32, STORE_F32)
LM_PEAK_FN(int8_neon, LM_TARGET("arch=armv8.2-a+dotprod"), 16, int32x4_t, int32_t, 4, int8x16_t, int8x16_t, vdupq_n_s8(1), vdupq_n_s8(1),
           vdupq_n_s32(0), "w", vdotq_s32, STORE_S32)
LM_PEAK_FN(int8_i8mm, LM_TARGET("arch=armv8.2-a+i8mm"), 16, int32x4_t, int32_t, 4, int8x16_t, int8x16_t, vdupq_n_s8(1), vdupq_n_s8(1),
           vdupq_n_s32(0), "w", vmmlaq_s32, STORE_S32)
#endif

static const lm_peak peaks[] = {
#if defined(__x86_64__)
    {LM_PEAK_F32, "avx512 vfmadd", 16 * 16, has_avx512, f32_avx512},
    {LM_PEAK_F32, "avx2 vfmadd", 12 * 8, has_avx2, f32_avx2},
    {LM_PEAK_BF16, "avx512 vdpbf16ps", 16 * 32, has_bf16, bf16_avx512},
    {LM_PEAK_INT8, "avx512 vpdpbusd", 16 * 64, has_vnni512, int8_avx512},
    {LM_PEAK_INT8, "avx2 vpdpbusd", 12 * 32, has_avxvnni, int8_avxvnni},
    {LM_PEAK_INT8, "avx2 vpmaddubsw", 6 * 8 * 32, has_avx2, int8_avx2},
#elif defined(__aarch64__)
    {LM_PEAK_F32, "neon fmla", 16 * 4, always, f32_neon},
    {LM_PEAK_BF16, "neon bfdot", 16 * 8, has_bf16, bf16_neon},
    {LM_PEAK_INT8, "neon smmla", 16 * 32, has_i8mm, int8_i8mm},
    {LM_PEAK_INT8, "neon sdot", 16 * 16, has_dotprod, int8_neon},
#endif
    {LM_PEAK_F32, "plain C", 32, always, f32_c},
    {LM_PEAK_INT8, "plain C", 32, always, int8_c},
};
static const lm_stream streams[] = {
#if defined(__x86_64__)
    {"avx512 loads", has_avx512, {stream_avx512, stream_avx512_ahead}},
    {"avx2 loads", has_avx2, {stream_avx2, stream_avx2_ahead}},
#endif
    {"plain C", always, {stream_c, stream_c_ahead}},
};

const lm_peak *lm_peak_nth(uint32_t i) { return i < sizeof peaks / sizeof *peaks ? &peaks[i] : NULL; }
const lm_peak *lm_peak_best(lm_peak_kind kind) {
    for (uint32_t i = 0; i < sizeof peaks / sizeof *peaks; i++)
        if (peaks[i].kind == kind && peaks[i].has()) return &peaks[i];
    return NULL;
}
const lm_stream *lm_stream_nth(uint32_t i) { return i < sizeof streams / sizeof *streams ? &streams[i] : NULL; }
const lm_stream *lm_stream_best(void) {
    uint32_t i = 0;
    while (!streams[i].has()) i++; /* the last one always runs */
    return &streams[i];
}
