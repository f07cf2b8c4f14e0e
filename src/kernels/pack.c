/* Packing: file rows to strips. See pack.h for the layouts. */
#include "kernels/pack.h"
#include "base/smallfloat.h"
#include <string.h>

/* One entry per pack: the dtype it serves, k per group and bytes per group of 16 rows (0: raw blocks). */
static const struct {
    const char *type;
    uint32_t k, bytes;
} layout[LM_PACK_COUNT] = {
    [LM_PACK_GENERIC] = {"", 0, 0},       [LM_PACK_F32] = {"F32", 0, 0},        [LM_PACK_F16] = {"F16", 0, 0},
    [LM_PACK_BF16] = {"BF16", 0, 0},      [LM_PACK_Q4_0] = {"Q4_0", 64, 576},   [LM_PACK_Q4_1] = {"Q4_1", 64, 640},
    [LM_PACK_Q8_0] = {"Q8_0", 64, 1088},  [LM_PACK_Q4_K] = {"Q4_K", 256, 2368}, [LM_PACK_Q5_K] = {"Q5_K", 256, 2880},
    [LM_PACK_Q6_K] = {"Q6_K", 256, 3392}, [LM_PACK_Q5_0] = {"Q5_0", 64, 704},   [LM_PACK_BF16X2] = {"", 2, 64},
};

static lm_pack pack_of(const lm_dtype *type) {
    for (int i = 1; i < LM_PACK_COUNT; i++)
        if (strcmp(layout[i].type, type->name) == 0) return (lm_pack)i;
    return LM_PACK_GENERIC;
}

static lm_status create(const lm_dtype *type, lm_pack pack, uint64_t n_mat, uint64_t rows, uint64_t K, lm_slab **slab, lm_packed_matrix *out,
                        lm_error *err) {
    if (type->block == 0 || 256 % type->block != 0)
        return lm_fail(err, LM_UNSUPPORTED, "the cpu backend packs blocks that divide 256; %s has blocks of %u: use --backend f64", type->name, type->block);
    if (n_mat == 0 || rows == 0 || K == 0 || K % type->block != 0 || n_mat > UINT32_MAX || rows > UINT32_MAX - 16 || K > UINT32_MAX - 256)
        return lm_fail(err, LM_RANGE, "a %s weight of %llu x [%llu, %llu] is empty, too large, or no whole number of blocks", type->name,
                       (unsigned long long)n_mat, (unsigned long long)rows, (unsigned long long)K);
    lm_packed_matrix m = {.type = type, .pack = pack, .n_mat = (uint32_t)n_mat, .rows = (uint32_t)rows, .K = (uint32_t)K};
    m.strips = (m.rows + 15) / 16;
    uint64_t groups = K / type->block, per = (uint64_t)type->bytes * 16, strip, n;
    if (layout[m.pack].k) groups = (K + layout[m.pack].k - 1) / layout[m.pack].k, per = layout[m.pack].bytes;
    if (!lm_mul(groups, per, &strip) || !lm_mul(n_mat, m.strips, &n) || !lm_mul(n, strip, &n) || n > SIZE_MAX / 2)
        return lm_fail(err, LM_RANGE, "a %s weight of %llu x [%llu, %llu] does not fit an address space", type->name, (unsigned long long)n_mat,
                       (unsigned long long)rows, (unsigned long long)K);
    m.strip_bytes = (size_t)strip;
    m.bytes = (size_t)n;
    m.data = slab ? lm_slab_alloc(slab, m.bytes, &m.slab) : lm_pages_alloc(m.bytes, true);
    if (!m.data) return lm_fail_nomem(err, "packed weights", slab ? lm_slab_asks(m.bytes) : m.bytes);
    *out = m;
    return LM_OK;
}

lm_status lm_packed_create(const lm_dtype *type, uint64_t n_mat, uint64_t rows, uint64_t K, lm_slab **slab, lm_packed_matrix *out,
                           lm_error *err) {
    return create(type, pack_of(type), n_mat, rows, K, slab, out, err);
}
lm_status lm_packed_create_bf16(const lm_dtype *from, uint64_t n_mat, uint64_t rows, uint64_t K, lm_slab **slab, lm_packed_matrix *out,
                           lm_error *err) {
    static const char *const floats[] = {"F32", "F16", "BF16"};
    bool good = false;
    for (int i = 0; i < 3; i++) good |= strcmp(from->name, floats[i]) == 0;
    if (!good)
        return lm_fail(err, LM_UNSUPPORTED, "lane bf16 takes weights of type BF16, F16 or F32, not %s, which it would have to round a second time: use "
                       "lane f32, or i8, i16 or mixed", from->name);
    return create(lm_dtype_by_name("BF16"), LM_PACK_BF16X2, n_mat, rows, K, slab, out, err);
}

void lm_packed_free(lm_packed_matrix *m) {
    if (m->data && m->slab)
        lm_slab_free(m->slab, m->data, m->bytes);
    else if (m->data)
        lm_pages_free(m->data, m->bytes);
    m->data = NULL;
}

/* words of 4 bytes of one row to lines of 16 rows: line j, row r = word j of the row */
static void put_words(uint8_t *lines, uint32_t r, const uint8_t *src, uint32_t n_words, uint32_t flip) {
    for (uint32_t j = 0; j < n_words; j++) {
        uint32_t w;
        memcpy(&w, src + 4 * j, 4);
        w ^= flip;
        memcpy(lines + 64 * (size_t)j + 4 * r, &w, 4);
    }
}

/* 32-blocks in groups of two: `planes` half-floats in front, then the quants */
static void put_32(uint8_t *dst, uint32_t r, const uint8_t *src, uint32_t n_blocks, uint32_t planes, uint32_t words, uint32_t group_bytes) {
    const uint32_t block_bytes = planes * 2 + words * 4, flip = words == 8 ? 0x80808080u : 0;
    for (uint32_t b = 0; b < n_blocks; b++, src += block_bytes) {
        uint8_t *g = dst + (size_t)(b / 2) * group_bytes;
        for (uint32_t p = 0; p < planes; p++) memcpy(g + p * 64 + (b & 1) * 32 + 2 * r, src + 2 * p, 2);
        put_words(g + planes * 64 + (size_t)(b & 1) * words * 64, r, src + planes * 2, words, flip);
    }
}

/* Q5_0: as Q4_0; a row's 32 fifth bits are regrouped by k mod 4 */
static void put_q5_0(uint8_t *dst, uint32_t r, const uint8_t *src, uint32_t n_blocks) {
    for (uint32_t b = 0; b < n_blocks; b++, src += 22) {
        uint8_t *g = dst + (size_t)(b / 2) * 704, fifth[4] = {0};
        memcpy(g + (b & 1) * 32 + 2 * r, src, 2);
        put_words(g + 64 + (size_t)(b & 1) * 256, r, src + 6, 4, 0);
        for (uint32_t k = 0; k < 32; k++) fifth[k % 4] |= (uint8_t)((src[2 + k / 8] >> (k % 8) & 1) << (k / 4));
        put_words(g + 576 + (size_t)(b & 1) * 64, r, fifth, 1, 0);
    }
}

/* Q4_K and Q5_K: 8 six-bit scales and mins in 12 bytes */
static void put_k45(uint8_t *dst, uint32_t r, const uint8_t *src, uint32_t n_blocks, bool five) {
    for (uint32_t b = 0; b < n_blocks; b++, src += five ? 176 : 144, dst += five ? 2880 : 2368) {
        memcpy(dst + 2 * r, src, 2);
        memcpy(dst + 32 + 2 * r, src + 2, 2);
        const uint8_t *q = src + 4;
        for (uint32_t j = 0; j < 8; j++) {
            uint8_t sc = j < 4 ? q[j] & 63 : (uint8_t)((q[j + 4] & 15) | ((q[j - 4] >> 6) << 4));
            uint8_t mn = j < 4 ? q[j + 4] & 63 : (uint8_t)((q[j + 4] >> 4) | ((q[j] >> 6) << 4));
            dst[64 + 16 * j + r] = sc;
            dst[192 + 32 * (j / 2) + 2 * r + (j & 1)] = mn;
        }
        put_words(dst + 320, r, src + (five ? 48 : 16), 32, 0);
        if (five) put_words(dst + 2368, r, src + 16, 8, 0);
    }
}

static void put_q6_k(uint8_t *dst, uint32_t r, const uint8_t *src, uint32_t n_blocks) {
    for (uint32_t b = 0; b < n_blocks; b++, src += 210, dst += 3392) {
        memcpy(dst + 2 * r, src + 208, 2);
        for (uint32_t j = 0; j < 16; j++) dst[64 + 16 * j + r] = src[192 + j];
        put_words(dst + 320, r, src, 48, 0);
    }
}

void lm_packed_strip(lm_packed_matrix *m, uint32_t mat, uint32_t s, const uint8_t *const row[16]) {
    uint8_t *dst = m->data + ((size_t)mat * m->strips + s) * m->strip_bytes;
    const uint32_t n = m->K / m->type->block, bytes = m->type->bytes;
    for (uint32_t r = 0; r < 16; r++) {
        const uint8_t *src = row[r];
        if (!src) continue;
        switch (m->pack) {
        case LM_PACK_Q4_0: put_32(dst, r, src, n, 1, 4, 576); break;
        case LM_PACK_Q4_1: put_32(dst, r, src, n, 2, 4, 640); break;
        case LM_PACK_Q5_0: put_q5_0(dst, r, src, n); break;
        case LM_PACK_Q8_0: put_32(dst, r, src, n, 1, 8, 1088); break;
        case LM_PACK_Q4_K: put_k45(dst, r, src, n, false); break;
        case LM_PACK_Q5_K: put_k45(dst, r, src, n, true); break;
        case LM_PACK_Q6_K: put_q6_k(dst, r, src, n); break;
        default:
            for (uint32_t b = 0; b < n; b++) memcpy(dst + ((size_t)b * 16 + r) * bytes, src + (size_t)b * bytes, bytes);
        }
    }
}

/* n elements of type `from` to bfloat16; a loop a type, so that each becomes vectors */
static void to_bf16(const lm_dtype *from, const uint8_t *src, uint32_t n, uint16_t *dst) {
    if (from->name[0] == 'B')
        memcpy(dst, src, n * sizeof *dst);
    else {
        float f[256];
        lm_dequant_f32(from, src, f, n);
        for (uint32_t i = 0; i < n; i++) dst[i] = lm_f32_bits(f[i]) & 0x7f800000u ? lm_f32_to_bf16(f[i]) : (uint16_t)(lm_f32_bits(f[i]) >> 16 & 0x8000u);
    }
    for (uint32_t i = 0; i < n; i++) dst[i] = dst[i] & 0x7f80u ? dst[i] : dst[i] & 0x8000u;
}
void lm_packed_strip_bf16(lm_packed_matrix *m, const lm_dtype *from, uint32_t mat, uint32_t s, const uint8_t *const row[16]) {
    enum { PIECE = 256 };
    uint8_t *dst = m->data + ((size_t)mat * m->strips + s) * m->strip_bytes;
    for (uint32_t k0 = 0; k0 < m->K; k0 += PIECE) {
        const uint32_t n = m->K - k0 < PIECE ? m->K - k0 : PIECE;
        uint16_t piece[PIECE + 1];
        for (uint32_t r = 0; r < 16; r++) {
            if (!row[r]) continue;
            to_bf16(from, row[r] + (size_t)k0 * from->bytes, n, piece);
            piece[n] = 0;
            put_words(dst + (size_t)k0 * 32, r, (const uint8_t *)piece, (n + 1) / 2, 0);
        }
    }
}
