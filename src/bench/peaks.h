/* Loops that do nothing but multiply-adds, one per kind of instruction: their rate is the peak that products are measured against. */
#ifndef LM_BENCH_PEAKS_H
#define LM_BENCH_PEAKS_H
#include <stdbool.h>
#include <stdint.h>

typedef enum lm_peak_kind { LM_PEAK_F32, LM_PEAK_BF16, LM_PEAK_INT8, LM_PEAK_COUNT } lm_peak_kind;

typedef struct lm_peak {
    lm_peak_kind kind;
    const char *how;   /* "avx512 vpdpbusd" */
    uint32_t macs;     /* multiply-adds of one step */
    bool (*has)(void); /* this CPU */
    /* `steps` steps of independent chains, each multiply-add of ones: the sum of all accumulators, macs*steps as long as steps ≤ 2^22 */
    uint64_t (*run)(uint64_t steps);
} lm_peak;

/* All of this build, better ones of a kind first; NULL past the end. */
const lm_peak *lm_peak_nth(uint32_t i);
/* The best that this CPU has; NULL: none (bf16). */
const lm_peak *lm_peak_best(lm_peak_kind kind);

/* The sum of n words of 64 bits, as a stream; n a multiple of 64. `how` names it. Once as the hardware foresees it, once asked for 2 KiB
 * ahead: which is faster depends on the CPU, by up to a factor of two. */
enum { LM_STREAM_FORMS = 2 };
typedef struct lm_stream {
    const char *how;
    bool (*has)(void);
    uint64_t (*sum[LM_STREAM_FORMS])(const uint64_t *p, uint64_t n);
} lm_stream;
const lm_stream *lm_stream_nth(uint32_t i);
const lm_stream *lm_stream_best(void);
#endif
