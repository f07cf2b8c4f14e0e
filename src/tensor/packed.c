#include "tensor/packed.h"

#include "quant/blocks.h"
#include "quant/private.h"

enum { CHUNK = LM_PRIVATE_BLOCK };

float lm_packed_scale_at(const lm_tensor *scale, uint64_t i) {
    const uint8_t *p = scale->data + i * scale->type->bytes;
    if (scale->type->bytes == 4) return lm_f32_from_bits(lm_load32(p));
    return scale->type->name[0] == 'B' ? lm_bf16_to_f32(lm_load16(p)) : lm_load_half(p);
}

static uint32_t word(const lm_tensor *t, uint64_t i) { return lm_load32(t->data + 4 * i); }

/* The place of row r in AWQ's word: the nibbles hold rows 0 2 4 6 1 3 5 7. */
static uint32_t awq_shift(uint64_t r) { return (uint32_t)(4 * (r % 8 / 2 + 4 * (r % 2))); }

static uint64_t group_at(const lm_packed *p, uint64_t col) { return p->g_idx ? word(p->g_idx, col) : col / p->group; }

static uint64_t scale_index(const lm_packed *p, uint64_t row, uint64_t g) {
    return row / p->rows * p->mat_stride + row % p->rows / p->row_div * p->row_stride + g * p->group_stride;
}

static int32_t zero_at(const lm_packed *p, uint64_t row, uint64_t g) {
    const uint32_t per = 32 / p->bits, mask = (1u << p->bits) - 1;
    uint32_t w, shift;
    switch (p->zeros) {
    case LM_ZEROS_ACROSS:
        w = word(p->zero, g * (p->rows / per) + row / per);
        shift = p->layout == LM_CODES_AWQ ? awq_shift(row) : (uint32_t)(row % per) * p->bits;
        return (int32_t)(w >> shift & mask) + p->zero_base;
    case LM_ZEROS_DOWN: w = word(p->zero, row / per * p->groups + g); return (int32_t)(w >> (row % per * p->bits) & mask) + p->zero_base;
    case LM_ZEROS_I8: return (int8_t)p->zero->data[scale_index(p, row, g)] + p->zero_base;
    case LM_ZEROS_NONE: break;
    }
    return p->zero_base;
}

/* n codes from column col on; n is at most 32, col a multiple of 32 */
static void read_codes(const lm_packed *p, uint64_t row, uint64_t cols, uint64_t col, uint32_t n, uint8_t q[CHUNK]) {
    const uint32_t per = p->bits ? 32 / p->bits : 1, mask = (1u << p->bits) - 1;
    const uint64_t per_row = (cols + per - 1) / per;
    switch (p->layout) {
    case LM_CODES_COLUMNS:
    case LM_CODES_ROWS:
        for (uint32_t i = 0; i < n; i += per) {
            uint64_t k = (col + i) / per;
            uint32_t w = word(p->codes, p->layout == LM_CODES_ROWS ? row * per_row + k : k * p->rows + row);
            for (uint32_t j = 0; j < per; j++, w >>= p->bits) q[i + j] = (uint8_t)(w & mask); /* i + j < 32: per divides 32 */
        }
        break;
    case LM_CODES_AWQ:
        for (uint32_t i = 0; i < n; i++) q[i] = word(p->codes, (col + i) * (p->rows / 8) + row / 8) >> awq_shift(row) & 15;
        break;
    case LM_CODES_I8:
        for (uint32_t i = 0; i < n; i++) q[i] = p->codes->data[row * cols + col + i] ^ 0x80;
        break;
    case LM_CODES_FP8: memcpy(q, p->codes->data + row * cols + col, n); break;
    case LM_CODES_MXFP4: break; /* has its own reader */
    }
}

static void put_f32(uint8_t *dst, float v) { memcpy(dst, &v, sizeof v); }
static void put_nibbles(uint8_t *dst, const uint8_t *q) {
    for (int i = 0; i < 16; i++) dst[i] = (uint8_t)(q[i] | q[i + 16] << 4);
}

/* One block of 32 in its group's scale and zero point; returns the bytes written. */
static size_t put_block(const lm_packed *p, const uint8_t *q, float d, int32_t z, uint8_t *dst) {
    switch (p->emit) {
    case LM_EMIT_Q4_0:
        lm_store16(dst, lm_f32_to_f16(d));
        put_nibbles(dst + 2, q);
        return 18;
    case LM_EMIT_INT4:
        put_f32(dst, d);
        dst[4] = (uint8_t)z;
        put_nibbles(dst + 5, q);
        return LM_INT4_BYTES;
    case LM_EMIT_Q8_0:
        lm_store16(dst, lm_f32_to_f16(d));
        for (int i = 0; i < CHUNK; i++) dst[2 + i] = q[i] ^ 0x80;
        return 34;
    case LM_EMIT_INT8:
        put_f32(dst, d);
        lm_store16(dst + 4, (uint16_t)z);
        memcpy(dst + 6, q, CHUNK);
        return LM_INT8_BYTES;
    default:
        put_f32(dst, d);
        memcpy(dst + 4, q, CHUNK);
        return LM_FP8_BYTES;
    }
}

/* Each element in its own group. */
static size_t put_elements(const lm_packed *p, uint64_t row, uint64_t col, uint32_t n, const uint8_t *q, uint8_t *dst) {
    const size_t size = p->emit == LM_EMIT_F32 ? 4 : 8;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t g = group_at(p, col + i);
        double v = p->layout != LM_CODES_FP8 ? q[i] - zero_at(p, row, g) : p->e5m2 ? lm_e5m2_to_f32(q[i]) : lm_e4m3_to_f32(q[i]);
        v *= lm_packed_scale_at(p->scale, scale_index(p, row, g));
        float f = (float)v;
        memcpy(dst + size * i, size == 4 ? (const void *)&f : (const void *)&v, size);
    }
    return size * n;
}

/* Hugging Face's blocks hold neighbours in a byte, GGUF's hold elements 16 apart. */
static void read_mxfp4(const lm_packed *p, uint64_t block, uint64_t n, uint8_t *dst) {
    for (uint64_t end = block + n; block < end; block++, dst += 17) {
        const uint8_t *s = p->codes->data + 16 * block;
        dst[0] = p->scale->data[block];
        for (int i = 0; i < 8; i++) {
            dst[1 + 2 * i] = (uint8_t)((s[i] & 15) | (s[i + 8] & 15) << 4);
            dst[2 + 2 * i] = (uint8_t)(s[i] >> 4 | (s[i + 8] & 0xf0));
        }
    }
}

void lm_packed_read(const lm_tensor *t, uint64_t row, uint64_t col, uint64_t n, uint8_t *dst) {
    const lm_packed *p = t->packed;
    const uint64_t cols = lm_tensor_cols(t);
    if (p->emit == LM_EMIT_MXFP4) {
        read_mxfp4(p, row * (cols / CHUNK) + col / CHUNK, n / CHUNK, dst);
        return;
    }
    for (uint64_t k = col; k < col + n; k += CHUNK) {
        const uint32_t m = col + n - k < CHUNK ? (uint32_t)(col + n - k) : CHUNK;
        uint8_t q[CHUNK];
        read_codes(p, row, cols, k, m, q);
        if (p->emit == LM_EMIT_F32 || p->emit == LM_EMIT_F64) {
            dst += put_elements(p, row, k, m, q, dst);
            continue;
        }
        uint64_t g = group_at(p, k); /* that of all 32: whoever chose the dtype saw to it */
        dst +=
            put_block(p, q, lm_packed_scale_at(p->scale, scale_index(p, row, g)), p->layout == LM_CODES_FP8 ? 0 : zero_at(p, row, g), dst);
    }
}
