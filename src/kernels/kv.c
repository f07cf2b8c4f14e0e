/* The cache's element types by name, and positions as rows. */
#include "kernels/kv.h"
#include <string.h>

static const char *const names[LM_KV_COUNT] = {[LM_KV_F32] = "f32", [LM_KV_F16] = "f16", [LM_KV_BF16] = "bf16", [LM_KV_Q8_0] = "q8_0",
                                                 [LM_KV_BF16X2] = "bf16"};
const char *lm_kv_name(lm_kv t) { return names[t]; }
bool lm_kv_by_name(const char *name, lm_kv *out) {
    for (int i = 0; i < LM_KV_COUNT; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (lm_kv)i;
            return true;
        }
    return false;
}

uint64_t lm_kv_row(lm_kv t, uint32_t dk, uint32_t dv) {
    const uint64_t scales = t == LM_KV_Q8_0 ? 2 * ((uint64_t)lm_kv_spans(dk) + lm_kv_spans(dv)) : 0;
    return ((uint64_t)dk + dv) * lm_kv_elem(t) + scales;
}

/* Where element d of a position lies, and a q8_0 block's scale. */
static uint64_t key_at(lm_kv t, uint32_t dk, uint32_t at, uint32_t d) {
    const uint64_t tile = at / LM_KV_SPAN * lm_kv_tile(t, dk), i = at % LM_KV_SPAN;
    if (t == LM_KV_BF16X2) return tile + ((uint64_t)(d / 2) * LM_KV_SPAN + i) * 4 + d % 2 * 2;
    if (t != LM_KV_Q8_0) return tile + ((uint64_t)d * LM_KV_SPAN + i) * lm_kv_elem(t);
    return tile + d / LM_KV_SPAN * (uint64_t)(LM_KV_SPAN * (LM_KV_SPAN + 2)) + 2 * LM_KV_SPAN + d % LM_KV_SPAN * (uint64_t)LM_KV_SPAN + i;
}
static uint64_t key_scale(uint32_t dk, uint32_t at, uint32_t block) {
    return at / LM_KV_SPAN * lm_kv_tile(LM_KV_Q8_0, dk) + block * (uint64_t)(LM_KV_SPAN * (LM_KV_SPAN + 2)) + 2 * (at % LM_KV_SPAN);
}
static uint64_t value_at(lm_kv t, uint32_t at, uint32_t d) {
    if (t == LM_KV_BF16X2) return d / LM_KV_SPAN * lm_kv_plane(t) + ((uint64_t)(at / 2) * LM_KV_SPAN + d % LM_KV_SPAN) * 4 + at % 2 * 2;
    return d / LM_KV_SPAN * lm_kv_plane(t) + ((uint64_t)at * LM_KV_SPAN + d % LM_KV_SPAN) * lm_kv_elem(t);
}
static uint64_t value_scale(uint32_t at, uint32_t block) { return block * lm_kv_plane(LM_KV_Q8_0) + LM_KV_PAGE * LM_KV_SPAN + 2 * (uint64_t)at; }

/* An element as a cache holds it. BF16X2 has zeros for subnormals: what a run stores has none, a file may say anything. */
static void put_element(lm_kv t, uint8_t *to, const uint8_t *from) {
    memcpy(to, from, lm_kv_elem(t));
    if (t != LM_KV_BF16X2) return;
    uint16_t h;
    memcpy(&h, to, 2);
    if (!(h & 0x7f80)) h &= 0x8000;
    memcpy(to, &h, 2);
}
void lm_kv_get(lm_kv t, const uint8_t *keys, const uint8_t *values, uint32_t dk, uint32_t dv, uint32_t at, uint8_t *row) {
    const uint32_t n = lm_kv_elem(t);
    for (uint32_t d = 0; d < dk; d++, row += n) memcpy(row, keys + key_at(t, dk, at, d), n);
    for (uint32_t b = 0; t == LM_KV_Q8_0 && b < lm_kv_spans(dk); b++, row += 2) memcpy(row, keys + key_scale(dk, at, b), 2);
    for (uint32_t d = 0; d < dv; d++, row += n) memcpy(row, values + value_at(t, at, d), n);
    for (uint32_t b = 0; t == LM_KV_Q8_0 && b < lm_kv_spans(dv); b++, row += 2) memcpy(row, values + value_scale(at, b), 2);
}
void lm_kv_put(lm_kv t, uint8_t *keys, uint8_t *values, uint32_t dk, uint32_t dv, uint32_t at, const uint8_t *row) {
    const uint32_t n = lm_kv_elem(t);
    if (t == LM_KV_BF16X2 && dk % 2) memset(keys + key_at(t, dk, at, dk), 0, n);
    for (uint32_t d = 0; d < dk; d++, row += n) put_element(t, keys + key_at(t, dk, at, d), row);
    for (uint32_t b = 0; t == LM_KV_Q8_0 && b < lm_kv_spans(dk); b++, row += 2) memcpy(keys + key_scale(dk, at, b), row, 2);
    for (uint32_t d = 0; d < dv; d++, row += n) put_element(t, values + value_at(t, at, d), row);
    for (uint32_t b = 0; t == LM_KV_Q8_0 && b < lm_kv_spans(dv); b++, row += 2) memcpy(values + value_scale(at, b), row, 2);
}
