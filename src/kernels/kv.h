/* How the cpu engine keeps the keys and values of one head: pages of 256 positions, in one of four element types,
 * bf16 in two layouts: BF16X2 is for attention in bfloat16, which multiplies pairs (lane_bf16.h).
 *
 * Keys lie so that a score needs no sum across a vector: 8 tiles of 32 positions, element d of all 32 side by side.
 *     f32, f16, bf16: tile = [dk][32 positions]
 *     BF16X2:         tile = [⌈dk/2⌉][32 positions][2], elements 2j and 2j + 1 side by side; an odd dk is continued by +0
 *     q8_0:           tile = ⌈dk/32⌉ blocks of { f16 scale[32 positions], int8 [32 d][32 positions] }
 * Values lie in planes of 32 columns (the last one padded with zeros), so that a walk over positions is one stream:
 *     f32, f16, bf16: plane = [256 positions][32]
 *     BF16X2:         plane = [128][32][2], positions 2j and 2j + 1 side by side
 *     q8_0:           plane = { int8 [256 positions][32], f16 scale[256] }
 * An element's value is a float32: f16 and bf16 round the value that was stored to nearest even (BF16X2 has zeros for subnormals); q8_0 takes 32 elements along d at a time:
 *     scale = f16(max |x| / 127), i = x / scale rounded to nearest even (0 where scale is 0), value = i · scale, which is exact in float32.
 *     A block with something that is not finite, or whose scale would not be, is all NaN.
 * A position as a row (a saved session's form) is its elements in order: keys, then values; q8_0 with the blocks' scales after the integers.
 */
#ifndef LM_KERNELS_KV_H
#define LM_KERNELS_KV_H
#include "base/mem.h"

#define LM_KV_PAGE 256u
#define LM_KV_SPAN 32u /* positions of a key tile, columns of a value plane, elements of a q8_0 block and of a block of a score's sum */

typedef enum lm_kv { LM_KV_F32, LM_KV_F16, LM_KV_BF16, LM_KV_Q8_0, LM_KV_BF16X2, LM_KV_COUNT } lm_kv;

static inline uint32_t lm_kv_spans(uint32_t n) { return n / LM_KV_SPAN + (n % LM_KV_SPAN != 0); }
static inline uint32_t lm_kv_elem(lm_kv t) { return t == LM_KV_F32 ? 4 : t == LM_KV_Q8_0 ? 1 : 2; }
/* BF16X2 is "bf16" too; by that name comes BF16. Rows are the same in both. */
const char *lm_kv_name(lm_kv t);
bool lm_kv_by_name(const char *name, lm_kv *out);
/* Bytes of a key tile and of a value plane; a page of a head is 8 tiles, then the planes. */
static inline uint64_t lm_kv_tile(lm_kv t, uint32_t dk) {
    if (t == LM_KV_BF16X2) return ((uint64_t)dk + dk % 2) * LM_KV_SPAN * 2;
    return t == LM_KV_Q8_0 ? (uint64_t)lm_kv_spans(dk) * LM_KV_SPAN * (LM_KV_SPAN + 2) : (uint64_t)dk * LM_KV_SPAN * lm_kv_elem(t);
}
static inline uint64_t lm_kv_plane(lm_kv t) { return LM_KV_PAGE * (t == LM_KV_Q8_0 ? LM_KV_SPAN + 2u : LM_KV_SPAN * lm_kv_elem(t)); }
static inline uint64_t lm_kv_keys(lm_kv t, uint32_t dk) { return LM_KV_PAGE / LM_KV_SPAN * lm_kv_tile(t, dk); }
static inline uint64_t lm_kv_values(lm_kv t, uint32_t dv) { return lm_kv_spans(dv) * lm_kv_plane(t); }
/* A position's row, and copies of it out of and into a page. */
uint64_t lm_kv_row(lm_kv t, uint32_t dk, uint32_t dv);
void lm_kv_get(lm_kv t, const uint8_t *keys, const uint8_t *values, uint32_t dk, uint32_t dv, uint32_t at, uint8_t *row);
void lm_kv_put(lm_kv t, uint8_t *keys, uint8_t *values, uint32_t dk, uint32_t dv, uint32_t at, const uint8_t *row);
#endif
