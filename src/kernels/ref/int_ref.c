/* Quantized activations in plain C: what every other level must equal, bit for bit. */
#include "base/smallfloat.h"
#include "kernels/lane_int.h"
/* the vectors first, then what is built on them, in this order */
#include "kernels/ref/v16.h"

#include "kernels/body/maths.h"

#include "kernels/body/int_unpack.h"

static float largest(const float *x) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < LM_INT_BLK; i++) {
        const uint32_t bits = lm_f32_bits(x[i]) & 0x7fffffffu; /* in the order of magnitudes, NaN last */
        if (bits > most) most = bits;
    }
    return lm_f32_from_bits(most);
}
/* quiet: by i8's rule. tail: NULL in i8 */
static void quantise_block(bool quiet, const float *x, uint32_t w, uint32_t t, uint8_t *dst, uint8_t *tail) {
    const uint32_t top = quiet ? 127 : 32512;
    const float m = largest(x);
    const bool finite = m < INFINITY, zero = finite && m < 0x1p-100f;
    const float dx = zero ? 0.0f : finite ? m / (float)top : NAN, s = zero || !finite ? 0.0f : (float)top / m;
    int32_t high[2] = {0, 0}, both[2] = {0, 0};
    for (uint32_t i = 0; i < LM_INT_BLK; i++) {
        const int32_t v = finite ? (int32_t)lrintf(x[i] * s) : 0, h = quiet ? v : (v + 128) >> 8, lo = quiet ? 0 : v - 256 * h;
        high[i / 16] += h, both[i / 16] += v;
        ((int8_t *)dst)[16 * w + (i / 4 * w + t) * 4 + i % 4] = (int8_t)h;
        if (tail) ((int8_t *)tail)[LM_INT_TAIL * t + 8 + i] = (int8_t)lo;
    }
    const float sx = dx * (float)(both[0] + both[1]), step = quiet || !finite ? dx : -dx;
    const int32_t c[4] = {-128 * (high[0] + high[1]), -128 * high[0], -128 * (both[0] + both[1]), -128 * both[0]};
    memcpy(dst + 4 * t, &step, 4);
    memcpy(dst + 4 * (w + t), &sx, 4);
    memcpy(dst + 4 * (2 * w + t), &c[0], 4);
    memcpy(dst + 4 * (3 * w + t), &c[1], 4);
    if (tail) memcpy(tail + LM_INT_TAIL * t, &c[2], 8);
}
static void quantise(lm_int_lane lane, const float *const *x, uint32_t w, uint32_t K, uint8_t *dst, uint8_t *tail) {
    const uint32_t n = K / LM_INT_BLK;
    for (uint32_t t = 0; t < w; t++) {
        float sum = 0;
        for (uint32_t k = 0; lane == LM_INT_MIXED && k < K; k += LM_INT_BLK) sum = fmaf(largest(x[t] + k), largest(x[t] + k), sum);
        for (uint32_t b = 0; b < n; b++) {
            const float *xb = x[t] + (size_t)b * LM_INT_BLK;
            const bool quiet = lane == LM_INT_8 || (lane == LM_INT_MIXED && !lm_int_loud(largest(xb), sum, n));
            quantise_block(quiet, xb, w, t, dst + (size_t)b * w * LM_INT_FRONT, lane == LM_INT_8 ? NULL : tail + (size_t)b * w * LM_INT_TAIL);
        }
    }
}

static float word_f(const uint8_t *p) {
    float f;
    memcpy(&f, p, 4);
    return f;
}
/* Token t's element i of a block; tail: NULL in i8 */
static int32_t value(const uint8_t *x, const uint8_t *tail, uint32_t w, uint32_t t, uint32_t i) {
    const int32_t h = ((const int8_t *)x)[16 * w + (i / 4 * w + t) * 4 + i % 4];
    return tail ? h * (signbit(word_f(x + 4 * t)) ? 256 : 1) + ((const int8_t *)tail)[LM_INT_TAIL * t + 8 + i] : h;
}
/* The exact integer of a row and a token over elements [i0, i1) of a block. */
static int32_t dot(const uint8_t *q, const uint8_t *x, const uint8_t *tail, uint32_t w, uint32_t t, uint32_t i0, uint32_t i1) {
    int32_t sum = 0;
    for (uint32_t i = i0; i < i1; i++) sum += (q[i / 4 * 128 + i % 4] - 128) * value(x, tail, w, t, i);
    return sum;
}
static float add_block(const lm_int_plane *w, uint32_t b, uint32_t r, const uint8_t *x, const uint8_t *tail, uint32_t n, uint32_t t, float acc) {
    const uint8_t *q = w->q + (size_t)b * 1024 + 4 * r; /* row r of 32: strip r/16 is 64 bytes on */
    const float dx = fabsf(word_f(x + 4 * t));
    const float *d = w->scale + (size_t)b * w->halves * 32 + r, *m = w->min + (size_t)b * w->halves * 32 + r;
    if (w->halves == 1) {
        acc = fmaf((float)dot(q, x, tail, n, t, 0, 32) * d[0], dx, acc);
        return w->has_min ? fmaf(m[0], word_f(x + 4 * (n + t)), acc) : acc;
    }
    const float a = (float)dot(q, x, tail, n, t, 0, 16), c = (float)dot(q, x, tail, n, t, 16, 32);
    acc = fmaf(fmaf(c, d[32], a * d[0]), dx, acc);
    if (!w->has_min) return acc;
    int32_t sum[2] = {0, 0};
    for (uint32_t i = 0; i < LM_INT_BLK; i++) sum[i / 16] += value(x, tail, n, t, i);
    acc = fmaf(m[0], dx * (float)sum[0], acc);
    return fmaf(m[32], dx * (float)sum[1], acc);
}
static void tile(lm_int_lane lane, const lm_int_plane *w, const uint8_t *x, uint32_t n_t, const lm_int_segments *g, float *out, size_t ld) {
    const size_t step = (size_t)n_t * LM_INT_FRONT, tail = (size_t)n_t * LM_INT_TAIL;
    const uint8_t *tails = x + g->bound[g->n] * step;
    for (uint32_t t = 0; t < n_t; t++)
        for (uint32_t r = 0; r < 32; r++) {
            float waiting[LM_INT_WAITING], acc = 0;
            for (uint32_t s = 0, n = 0; s < g->n; s++) {
                acc = 0;
                for (uint32_t b = g->bound[s]; b < g->bound[s + 1]; b++)
                    acc = add_block(w, b, r, x + b * step, lane == LM_INT_8 ? NULL : tails + b * tail, n_t, t, acc);
                for (uint32_t j = g->joins[s]; j > 0; j--) acc = waiting[--n] + acc;
                if (s + 1 < g->n) waiting[n++] = acc;
            }
            out[t * ld + r] = acc;
        }
}
const lm_int_kernels lm_int_c = {.level = "c", .quantise = quantise, .unpack = LM_INT_UNPACK, .tile = tile};
