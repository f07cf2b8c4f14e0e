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
/* quiet: by i8's rule; held as a multiple of 256 unless the lane is i8 */
static void quantise_block(lm_int_lane lane, bool quiet, const float *x, uint32_t w, uint32_t t, uint8_t *dst) {
    const uint32_t top = quiet ? 127 : 32512;
    const int32_t unit = quiet && lane != LM_INT_8 ? 256 : 1;
    const float m = largest(x);
    const bool finite = m < INFINITY, zero = finite && m < 0x1p-100f;
    const float dx = (zero ? 0.0f : finite ? m / (float)top : NAN) / (float)unit, s = zero || !finite ? 0.0f : (float)top / m;
    int32_t sum[2] = {0, 0};
    int8_t *q = (int8_t *)dst + 16 * w;
    for (uint32_t i = 0; i < LM_INT_BLK; i++) {
        const int32_t v = finite ? (int32_t)lrintf(x[i] * s) * unit : 0;
        sum[i / 16] += v;
        const uint32_t quad = i / 4, in = t * 4 + i % 4;
        if (lane == LM_INT_8)
            q[quad * w * 4 + in] = (int8_t)v;
        else {
            const int32_t hi = (v + 128) >> 8;
            q[(2 * quad) * w * 4 + in] = (int8_t)hi;
            q[(2 * quad + 1) * w * 4 + in] = (int8_t)(v - 256 * hi);
        }
    }
    const float sx = dx * (float)(sum[0] + sum[1]);
    const int32_t c = -128 * (sum[0] + sum[1]), ca = -128 * sum[0];
    memcpy(dst + 4 * t, &dx, 4);
    memcpy(dst + 4 * (w + t), &sx, 4);
    memcpy(dst + 4 * (2 * w + t), &c, 4);
    memcpy(dst + 4 * (3 * w + t), &ca, 4);
    const float dh = quiet ? 256 * dx : -1.0f;
    if (lane != LM_INT_8) memcpy(dst + 80 * w + 4 * t, &dh, 4);
}
static void quantise(lm_int_lane lane, const float *const *x, uint32_t w, uint32_t K, uint8_t *dst) {
    for (uint32_t t = 0; t < w; t++) {
        uint8_t *to = dst;
        float sum = 0;
        for (uint32_t k = 0; lane == LM_INT_MIXED && k < K; k += LM_INT_BLK) sum = fmaf(largest(x[t] + k), largest(x[t] + k), sum);
        for (uint32_t k = 0; k < K; k += LM_INT_BLK, to += (size_t)w * lm_int_token(lane)) {
            const bool quiet = lane == LM_INT_8 || (lane == LM_INT_MIXED && !lm_int_loud(largest(x[t] + k), sum, K / LM_INT_BLK));
            quantise_block(lane, quiet, x[t] + k, w, t, to);
        }
    }
}

/* The exact integer of a row and a token over quads [j0, j1) of a block. */
static int32_t dot(lm_int_lane lane, const uint8_t *q, const int8_t *v, uint32_t w, uint32_t t, uint32_t j0, uint32_t j1) {
    int32_t sum = 0;
    for (uint32_t j = j0; j < j1; j++)
        for (uint32_t i = 0; i < 4; i++) {
            const int32_t a = q[j * 128 + i] - 128;
            if (lane == LM_INT_8)
                sum += a * v[(j * w + t) * 4 + i];
            else
                sum += a * (256 * v[(2 * j * w + t) * 4 + i] + v[((2 * j + 1) * w + t) * 4 + i]);
        }
    return sum;
}
static float word_f(const uint8_t *p) {
    float f;
    memcpy(&f, p, 4);
    return f;
}
static int32_t word_i(const uint8_t *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return v;
}
static float add_block(lm_int_lane lane, const lm_int_plane *w, uint32_t b, uint32_t r, const uint8_t *x, uint32_t n, uint32_t t,
                       float acc) {
    const uint8_t *q = w->q + (size_t)b * 1024 + 4 * r; /* row r of 32: strip r/16 is 64 bytes on */
    const int8_t *v = (const int8_t *)x + 16 * n;
    const float dx = word_f(x + 4 * t), *d = w->scale + (size_t)b * w->halves * 32 + r, *m = w->min + (size_t)b * w->halves * 32 + r;
    if (w->halves == 1) {
        acc = fmaf((float)dot(lane, q, v, n, t, 0, 8) * d[0], dx, acc);
        return w->has_min ? fmaf(m[0], word_f(x + 4 * (n + t)), acc) : acc;
    }
    const float a = (float)dot(lane, q, v, n, t, 0, 4), c = (float)dot(lane, q, v, n, t, 4, 8);
    acc = fmaf(fmaf(c, d[32], a * d[0]), dx, acc);
    if (!w->has_min) return acc;
    const int32_t sum = word_i(x + 4 * (2 * n + t)) / -128, first = word_i(x + 4 * (3 * n + t)) / -128;
    acc = fmaf(m[0], dx * (float)first, acc);
    return fmaf(m[32], dx * (float)(sum - first), acc);
}
static void tile(lm_int_lane lane, const lm_int_plane *w, const uint8_t *x, uint32_t n_t, const lm_int_segments *g, float *out, size_t ld) {
    const size_t step = (size_t)n_t * lm_int_token(lane);
    for (uint32_t t = 0; t < n_t; t++)
        for (uint32_t r = 0; r < 32; r++) {
            float waiting[LM_INT_WAITING], acc = 0;
            for (uint32_t s = 0, n = 0; s < g->n; s++) {
                acc = 0;
                for (uint32_t b = g->bound[s]; b < g->bound[s + 1]; b++) acc = add_block(lane, w, b, r, x + b * step, n_t, t, acc);
                for (uint32_t j = g->joins[s]; j > 0; j--) acc = waiting[--n] + acc;
                if (s + 1 < g->n) waiting[n++] = acc;
            }
            out[t * ld + r] = acc;
        }
}
const lm_int_kernels lm_int_c = {.level = "c", .quantise = quantise, .unpack = LM_INT_UNPACK, .tile = tile};
