/* Quantized activations: every storage type in lanes i8, i16 and mixed at every level, against plain C bit for bit, and against the exact product
 * of the quantized problem within what the float accumulation may lose.
 * --bench [TYPE…]: the speed of what is checked, on one thread, as a share of the int8 peak and of the bandwidth measured beside it. */
#include "kern.h"
#include "base/mem.h"
#include "base/threads.h"
#include "bench/peaks.h"
#include "kernels/lane_int.h"
#include "quant/private.h"

static const double top[3] = {0, 127, 32512};

/* Rows of random bytes whose values are finite and moderate. */
static uint8_t *random_rows(const lm_dtype *t, uint32_t rows, uint32_t K) {
    const size_t blocks = (size_t)rows * (K / t->block);
    uint8_t *raw = malloc(blocks * t->bytes);
    double v[256];
    for (size_t b = 0; b < blocks; b++) {
        uint8_t *p = raw + b * t->bytes;
        bool good = false;
        for (int tries = 0; !good; tries++) {
            if (tries == 20000) fail_msg("%s: no moderate block found", t->name);
            for (uint32_t i = 0; i < t->bytes; i++) p[i] = (uint8_t)kern_below(256);
            if (t == &lm_private_int4) p[4] = (uint8_t)kern_below(17);
            lm_dequant_f64(t, p, v, t->block);
            good = true;
            for (uint32_t i = 0; i < t->block; i++) good = good && fabs(v[i]) < 1e4;
        }
    }
    return raw;
}
/* x with blocks of zeros, of huge and of tiny numbers, and (where asked) one that is not finite */
static void random_x(float *x, uint32_t K) {
    for (uint32_t k = 0; k < K; k += 32) {
        const uint32_t kind = kern_below(8);
        const float scale = kind == 0 ? 0.0f : kind == 1 ? 1e4f : kind == 2 ? 0x1p-110f : kind == 3 ? 0x1p-95f : 1.0f;
        for (uint32_t i = 0; i < 32; i++) x[k + i] = kern_normal() * scale;
        if (kind == 4) x[k + kern_below(32)] *= 1000;
    }
}
static float largest(const float *x) {
    float m = 0;
    for (uint32_t i = 0; i < 32; i++) m = fmaxf(m, fabsf(x[i]));
    return m;
}
/* The lane by whose rule block b of a row is rounded. */
static lm_int_lane rule(lm_int_lane lane, const float *x, uint32_t K, uint32_t b) {
    if (lane != LM_INT_MIXED) return lane;
    float sum = 0;
    for (uint32_t k = 0; k < K; k += 32) sum = fmaf(largest(x + k), largest(x + k), sum);
    const float m = largest(x + 32 * b);
    return m * m * (float)(K / 32) > 2 * sum ? LM_INT_16 : LM_INT_8;
}
/* What lane_int.h says blocks [k0, k1) of the row x[K] become, in double. */
static void quantised(lm_int_lane row_lane, const float *x, uint32_t K, uint32_t k0, uint32_t k1, double *out, double *dx) {
    for (uint32_t k = k0; k < k1; k += 32) {
        const lm_int_lane lane = rule(row_lane, x, K, k / 32);
        const float m = largest(x + k);
        const bool zero = m < 0x1p-100f;
        const float s = (float)top[lane] / m;
        dx[(k - k0) / 32] = zero ? 0 : m / (float)top[lane];
        for (uint32_t i = 0; i < 32; i++) out[k - k0 + i] = zero ? 0 : (double)lrintf(x[k + i] * s);
    }
}

typedef struct problem {
    const lm_dtype *t;
    uint32_t rows, K, T;
    bool split;
    lm_packed_matrix m;
    uint8_t *raw;
    float *x, *bias;
} problem;

static float *run_gated(const problem *p, const lm_int_kernels *k, lm_int_lane lane, const lm_gate *gate) {
    const size_t xn = (size_t)lm_int_floats(lane, p->T, p->K) * sizeof(float), sn = lm_int_scratch(p->K, gate) * sizeof(float),
                 yn = sizeof(float) * p->rows * p->T;
    float *xq = kern_guard(xn), *scratch = kern_guard(sn), *y = kern_guard(yn);
    memset(xq, 0xff, xn), memset(scratch, 0xff, sn), memset(y, 0xff, yn);
    for (uint32_t i = lm_int_tiles(lane, p->T); i-- > 0;) lm_int_pack(k, lane, p->x, p->K, NULL, p->T, i, p->K, xq);
    const lm_int_product q = {k, lane, &p->m, 0, p->split, p->bias, xq, p->T, y, p->rows, gate};
    for (uint32_t i = lm_int_tasks(&q); i-- > 0;) lm_int_run(&q, i, scratch); /* any order */
    float *copy = malloc(yn);
    memcpy(copy, y, yn);
    kern_guard_free(xq, xn), kern_guard_free(scratch, sn), kern_guard_free(y, yn);
    return copy;
}
static float *run(const problem *p, const lm_int_kernels *k, lm_int_lane lane) { return run_gated(p, k, lane, NULL); }
/* What a gate gives for the next product is what packing its rows gives. */
static void feeds_its_rows(const problem *p, const lm_int_kernels *k, lm_int_lane lane, lm_gate gate, const float *rows) {
    const size_t n = (size_t)lm_int_floats(lane, p->T, p->rows) * sizeof(float);
    float *const want = malloc(n);
    for (uint32_t i = 0; i < lm_int_tiles(lane, p->T); i++) lm_int_pack(k, lane, rows, p->rows, NULL, p->T, i, p->rows, want);
    gate.xq = kern_guard(n);
    free(run_gated(p, k, lane, &gate));
    ASSERT_SAME(want, (float *)gate.xq, n / sizeof(float), k->level);
    kern_guard_free(gate.xq, n), free(want);
}
static void pack_weights(problem *p);
/* A gate equals its parts: the second product's weights are the first one's a row further on, without its bias. */
static void gate_is_its_parts(const problem *p, const lm_int_kernels *k, lm_int_lane lane, const float *with_bias) {
    const size_t n = (size_t)p->rows * p->T, row = (size_t)(p->K / p->t->block) * p->t->bytes;
    const lm_kernels *fk;
    assert_int_equal(lm_kernels_pick(NULL, &fk, NULL), LM_OK);
    problem second = *p;
    second.bias = NULL, second.raw = malloc(p->rows * row);
    memcpy(second.raw, p->raw + row, (p->rows - 1) * row), memcpy(second.raw + (p->rows - 1) * row, p->raw, row);
    pack_weights(&second);
    const lm_gate gate = {fk, &second.m, NULL, LM_KACT_SILU, 0, 0, NULL};
    float *const got = run_gated(p, k, lane, &gate), *const want = malloc(n * sizeof *want), *const up = run(&second, k, lane);
    lm_kernels_c.gated(LM_KACT_SILU, want, with_bias, up, 0, 0, (uint32_t)n);
    ASSERT_SAME(want, got, n, k->level);
    if (p->T > LM_INT_GEMV && p->rows % 32 == 0 && lane != LM_INT_MIXED) feeds_its_rows(p, k, lane, gate, got);
    lm_packed_free(&second.m);
    free(second.raw), free(up), free(want), free(got);
}
static void near_exact(const problem *p, lm_int_lane lane, const float *y) {
    double *w = malloc(sizeof(double) * p->K), *v = malloc(sizeof(double) * p->K), dx[96];
    for (uint32_t t = 0; t < p->T; t++) {
        quantised(lane, p->x + (size_t)t * p->K, p->K, 0, p->K, v, dx);
        for (uint32_t r = 0; r < p->rows; r++) {
            lm_dequant_f64(p->t, p->raw + (size_t)r * (p->K / p->t->block) * p->t->bytes, w, p->K);
            double exact = p->bias ? p->bias[r] : 0, size = fabs(exact);
            for (uint32_t k = 0; k < p->K; k++) {
                exact += w[k] * v[k] * dx[k / 32];
                size += fabs(w[k] * v[k] * dx[k / 32]);
            }
            if (p->t->has_min || strchr("14K", p->t->name[3])) /* minima are added apart: q·v and min·v may cancel */
                for (uint32_t k = 0; k < p->K; k++) size += 64 * fabs(w[k - k % 32]) * fabs(v[k]) * dx[k / 32];
            const double bound = (p->K / 32 * 2 + 12) * 0x1p-24 * size + 1e-37, got = (double)y[(size_t)t * p->rows + r];
            if (!(fabs(got - exact) <= bound))
                fail_msg("%s lane %d row %u token %u: %g, exact %g, bound %g", p->t->name, lane, r, t, got, exact, bound);
        }
    }
    free(w), free(v);
}
/* lane_int.h's words, one output at a time, for the types that say themselves in integers. */
static float plain_segment(const problem *p, lm_int_lane lane, uint32_t row, uint32_t token, uint32_t b0, uint32_t b1) {
    const lm_dtype *t = p->t;
    const uint8_t *raw = p->raw + (size_t)row * (p->K / t->block) * t->bytes;
    const float *x = p->x + (size_t)token * p->K;
    float acc = 0;
    for (uint32_t b = b0; b < b1; b++) {
        int8_t q[256];
        float scale[16], min[16], part[2] = {0}, sum[2] = {0};
        double v[32], dx;
        quantised(lane, x, p->K, b * 32, b * 32 + 32, v, &dx);
        t->ints(raw + (size_t)(b * 32 / t->block) * t->bytes, q, scale, min);
        const uint32_t in = b * 32 % t->block, halves = 32 / t->group, g = in / t->group;
        for (uint32_t h = 0; h < halves; h++) {
            double integer = 0, total = 0;
            for (uint32_t i = 0; i < t->group; i++) integer += q[in + h * t->group + i] * v[h * t->group + i], total += v[h * t->group + i];
            part[h] = (float)integer, sum[h] = (float)dx * (float)total;
        }
        float f = part[0] * scale[g];
        if (halves == 2) f = fmaf(part[1], scale[g + 1], f);
        acc = fmaf(f, (float)dx, acc);
        for (uint32_t h = 0; t->has_min && h < halves; h++) acc = fmaf(min[g + h], sum[h], acc);
    }
    return acc;
}
static bool plain_tree(const problem *p, lm_int_lane lane, uint32_t row, uint32_t token, uint32_t lo, uint32_t hi, float *y) {
    const uint32_t blocks = p->K / 32, unit = p->t->block / 32, n = blocks / unit;
    if (hi - lo == 1) {
        const uint32_t b0 = lo * n / 8 * unit, b1 = hi * n / 8 * unit;
        if (b0 < b1) *y = plain_segment(p, lane, row, token, b0, b1);
        return b0 < b1;
    }
    float a = 0, b = 0;
    const uint32_t mid = (lo + hi) / 2;
    const bool left = plain_tree(p, lane, row, token, lo, mid, &a), right = plain_tree(p, lane, row, token, mid, hi, &b);
    *y = left && right ? a + b : left ? a : b;
    return left || right;
}
static void is_the_contract(const problem *p, lm_int_lane lane, const float *y) {
    if (!p->t->ints) return;
    for (uint32_t t = 0; t < p->T; t++)
        for (uint32_t r = 0; r < p->rows; r += 1 + r % 3) {
            float want;
            if (p->split)
                plain_tree(p, lane, r, t, 0, 8, &want);
            else
                want = plain_segment(p, lane, r, t, 0, p->K / 32);
            if (p->bias) want += p->bias[r];
            const float got = y[(size_t)t * p->rows + r];
            if (memcmp(&want, &got, 4) != 0)
                fail_msg("%s lane %d row %u token %u K %u: %a, contract %a", p->t->name, lane, r, t, p->K, (double)got, (double)want);
        }
}
/* raw to strips */
static void pack_weights(problem *p) {
    lm_error err;
    if (lm_packed_create(p->t, 1, p->rows, p->K, NULL, &p->m, &err) != LM_OK) fail_msg("%s", err.message);
    assert_true(lm_int_fits(&p->m));
    const size_t row_bytes = (size_t)(p->K / p->t->block) * p->t->bytes;
    for (uint32_t s = 0; s < p->m.strips; s++) {
        const uint8_t *row[16];
        for (uint32_t r = 0; r < 16; r++) row[r] = s * 16 + r < p->rows ? p->raw + (s * 16 + r) * row_bytes : NULL;
        lm_packed_strip(&p->m, 0, s, row);
    }
}
static void check(const lm_dtype *t, uint32_t rows, uint32_t K, uint32_t T, bool split, bool with_bias) {
    problem p = {.t = t, .rows = rows, .K = K, .T = T, .split = split, .raw = random_rows(t, rows, K)};
    pack_weights(&p);
    uint8_t *data = p.m.data;
    p.m.data = kern_guard(p.m.bytes);
    memcpy(p.m.data, data, p.m.bytes);
    p.x = malloc(sizeof(float) * T * K);
    for (uint32_t i = 0; i < T; i++) random_x(p.x + (size_t)i * K, K);
    if (with_bias) {
        p.bias = malloc(sizeof(float) * rows);
        for (uint32_t i = 0; i < rows; i++) p.bias[i] = kern_normal();
    }
    for (lm_int_lane lane = LM_INT_8; lane <= LM_INT_MIXED; lane++) {
        float *plain = run(&p, lm_int_nth(0), lane);
        near_exact(&p, lane, plain);
        is_the_contract(&p, lane, plain);
        for (uint32_t i = 1; lm_int_nth(i); i++) {
            float *y = run(&p, lm_int_nth(i), lane);
            char what[120];
            snprintf(what, sizeof what, "%s %s lane %d rows %u K %u T %u split %d", t->name, lm_int_nth(i)->level, lane, rows, K, T, split);
            ASSERT_SAME(plain, y, (size_t)rows * T, what);
            free(y);
            gate_is_its_parts(&p, lm_int_nth(i), lane, plain);
        }
        gate_is_its_parts(&p, lm_int_nth(0), lane, plain);
        free(plain);
    }
    kern_guard_free(p.m.data, p.m.bytes);
    p.m.data = data;
    lm_packed_free(&p.m);
    free(p.x), free(p.bias), free(p.raw);
}

static bool in_integers(const lm_dtype *t) {
    static const char *const plane[] = {"Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"};
    for (size_t i = 0; i < 6; i++)
        if (strcmp(t->name, plane[i]) == 0) return true;
    return t->ints != NULL;
}
static void every_type(void **state) {
    (void)state;
    uint32_t n_types = 0;
    const lm_dtype *t;
    for (uint32_t i = 0; (t = lm_dtypes[i]); i++) {
        if (t->block == 1) continue;
        if (!in_integers(t)) fail_msg("%s has no integers", t->name);
        n_types++;
        for (uint32_t T = 1; T <= 9; T++) {
            const uint32_t K = t->block * (1 + kern_below(1100 / t->block));
            check(t, 1 + kern_below(50), K, T, T & 1, kern_below(2));
        }
        check(t, 33, t->block * (1100 / t->block), 2, true, false);
    }
    assert_true(n_types >= 22);
    check(&lm_private_int4, 20, 320, 7, true, true);
}
static void token_counts(void **state) {
    (void)state;
    static const uint32_t T[] = {10, 11, 12, 13, 17, 24, 25, 44, 45, 255, 256, 257, 300};
    static const char *const type[] = {"Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "Q2_K", "Q5_0"};
    for (size_t i = 0; i < sizeof T / sizeof *T; i++) {
        const lm_dtype *t = lm_dtype_by_name(type[i % 7]);
        check(t, T[i] == 25 || T[i] % 2 == 0 ? 64 : T[i] > 40 ? 17 : 70, t->block == 256 ? 512 : 32 * (1 + kern_below(12)), T[i], i & 1, i & 2);
    }
    check(lm_dtype_by_name("Q6_K"), 32, 2560, 26, true, true); /* two planes side by side in i16, */
    check(lm_dtype_by_name("Q8_0"), 32, 2752, 26, true, true); /* and one after the other */
}
/* Every K of a 32-block type: segments of all sizes, empty ones too. */
static void every_length(void **state) {
    (void)state;
    for (uint32_t K = 32; K <= 1024; K += 32) check(lm_dtype_by_name(K & 32 ? "Q4_0" : "Q8_0"), 19, K, 1 + K / 32 % 5, true, false);
}
static void same_at_every_level(const problem *p, lm_int_lane lane, const float *plain) {
    for (uint32_t i = 1; lm_int_nth(i); i++) {
        float *y = run(p, lm_int_nth(i), lane);
        ASSERT_SAME(plain, y, (size_t)p->rows * p->T, lm_int_nth(i)->level);
        free(y);
    }
}
/* MXFP4's largest scales: what a block overflows at is its own integer by its scale, however the level makes the integer. No weight and no
 * element is negative, so that infinities meet nothing that makes NaN of them. */
static void huge_scales(void **state) {
    (void)state;
    enum { ROWS = 56, K = 256 };
    uint8_t raw[ROWS][K / 32][17];
    for (uint32_t T = 1; T <= 26; T += T < 7 ? 1 : 19) {
        problem p = {.t = lm_dtype_by_name("MXFP4"), .rows = ROWS, .K = K, .T = T, .raw = raw[0][0], .x = malloc(sizeof(float) * T * K)};
        for (uint32_t r = 0; r < ROWS; r++) /* every other row of one small element a block, as large as can be without overflow */
            for (uint32_t b = 0; b < K / 32; b++) {
                raw[r][b][0] = (uint8_t)(200 + r);
                for (uint32_t i = 1; i < 17; i++) raw[r][b][i] = r & 1 ? i == 1 + b : (uint8_t)(kern_below(256) & 0x77);
            }
        for (uint32_t i = 0; i < T * K; i++) p.x[i] = 0.5f + 0.5f * (float)kern_uniform(); /* quiet */
        for (uint32_t t = 1; t < T; t += 2) p.x[t * K + 32 * (t % 8) + 5] = 100; /* and a loud block of every other token */
        pack_weights(&p);
        for (lm_int_lane lane = LM_INT_8; lane <= LM_INT_MIXED; lane++) {
            float *plain = run(&p, lm_int_nth(0), lane);
            is_the_contract(&p, lane, plain);
            if (lane == LM_INT_MIXED) assert_true(isfinite(plain[49]) && plain[49] > 0 && isinf(plain[48])); /* token 0, quiet, scales of 2^122 */
            same_at_every_level(&p, lane, plain);
            free(plain);
        }
        lm_packed_free(&p.m);
        free(p.x);
    }
}
/* Integers as large as they come, of either sign: sums that a level keeps in 16 bits must fit there. Every block has all its bits 0, all 1 or a mixture
 * (|q| is greatest at one of them), every token is one value, so that v is 127, −127, or of i16's 127·256 − 128, whose low byte is −128. */
static void extremes(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint32_t scale[2], n; /* where a block's halves stand, that its numbers are multiplied by */
    } types[] = {{"Q4_0", {0, 0}, 1}, {"Q4_1", {0, 2}, 2}, {"Q5_0", {0, 0}, 1}, {"Q8_0", {0, 0}, 1}, {"Q4_K", {0, 2}, 2}, {"Q5_K", {0, 2}, 2},
                 {"Q6_K", {208, 208}, 1}, {"Q3_K", {108, 108}, 1}, {"IQ4_NL", {0, 0}, 1}};
    static const uint8_t fill[] = {0x00, 0xff, 0x80, 0x7f, 0xf0, 0x0f};
    enum { ROWS = 48, K = 512 };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (uint32_t T = 1; T <= 30; T += T < 7 ? 1 : 23) {
            const lm_dtype *t = lm_dtype_by_name(types[i].name);
            const size_t blocks = ROWS * (K / t->block);
            problem p = {.t = t, .rows = ROWS, .K = K, .T = T, .raw = malloc(blocks * t->bytes), .x = malloc(sizeof(float) * T * K)};
            for (size_t b = 0; b < blocks; b++) {
                uint8_t *const raw = p.raw + b * t->bytes;
                memset(raw, fill[b / (K / t->block) % sizeof fill], t->bytes);
                for (uint32_t j = 0; j < types[i].n; j++) raw[types[i].scale[j]] = 0, raw[types[i].scale[j] + 1] = 0x2c; /* 2^-4 */
            }
            for (uint32_t k = 0; k < T * K; k++) {
                const uint32_t kind = k / K % 4;
                p.x[k] = kind == 0 ? 32512 : kind == 1 ? -32512 : k % 32 == 31 ? 32512 : kind == 2 ? 32384 : -32384;
            }
            pack_weights(&p);
            for (lm_int_lane lane = LM_INT_8; lane <= LM_INT_MIXED; lane++) {
                float *plain = run(&p, lm_int_nth(0), lane);
                near_exact(&p, lane, plain);
                is_the_contract(&p, lane, plain);
                same_at_every_level(&p, lane, plain);
                free(plain);
            }
            lm_packed_free(&p.m);
            free(p.raw), free(p.x);
        }
}
/* Tiles of all widths, byte for byte at every level. */
static void all_quantise(const float *const *row, uint32_t K) {
    uint8_t *plain = malloc(6 * (K / 32) * lm_int_token(LM_INT_16));
    for (lm_int_lane lane = LM_INT_8; lane <= LM_INT_MIXED; lane++)
        for (uint32_t w = 1; w <= lm_int_width(lane); w++) {
            const size_t n = (size_t)w * (K / 32) * lm_int_token(lane);
            uint8_t *got = kern_guard(n);
            lm_int_nth(0)->quantise(lane, row, w, K, plain, plain + w * (K / 32) * LM_INT_FRONT);
            for (uint32_t i = 1; lm_int_nth(i); i++) {
                lm_int_nth(i)->quantise(lane, row, w, K, got, got + w * (K / 32) * LM_INT_FRONT);
                for (size_t b = 0; b < n; b += 4) {
                    float p, g;
                    memcpy(&p, plain + b, 4), memcpy(&g, got + b, 4);
                    if (memcmp(plain + b, got + b, 4) != 0 && !(isnan(p) && isnan(g)))
                        fail_msg("%s lane %d, %u tokens: byte %zu", lm_int_nth(i)->level, lane, w, b);
                }
            }
            kern_guard_free(got, n);
        }
    free(plain);
}
/* Rounding, the extremes and what is not finite. */
static void quantises(void **state) {
    (void)state;
    enum { K = 256 };
    float x[6][K];
    const float *row[6];
    for (uint32_t t = 0; t < 6; t++) {
        row[t] = x[t];
        random_x(x[t], K);
        for (uint32_t i = 0; i < 32; i++)
            x[t][i] = (float)((int)i - 16) * 0.5f + (t ? 0 : 135.0f) * (i == 0); /* row 0: up to 127, so halves stay halves */
    }
    x[3][100] = 3e38f, x[4][130] = 0x1p-149f;
    all_quantise(row, K); /* then with what is not finite, which may be a path of its own */
    x[1][40] = INFINITY, x[2][70] = -NAN, x[5][32] = -INFINITY;
    all_quantise(row, K);
    float dx; /* a row with an infinite element says so */
    uint8_t plain[(K / 32) * 48];
    lm_int_nth(0)->quantise(LM_INT_8, &row[1], 1, K, plain, NULL);
    memcpy(&dx, plain + 48, 4);
    assert_true(isnan(dx));
}
static void what_does_not_fit(void **state) {
    (void)state;
    static const lm_dtype *const none[] = {&lm_private_int8, &lm_private_e4m3};
    lm_packed_matrix m;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(lm_packed_create(none[i], 1, 4, 64, NULL, &m, NULL), LM_OK);
        assert_false(lm_int_fits(&m));
        lm_packed_free(&m);
    }
    assert_int_equal(lm_packed_create(lm_dtype_by_name("BF16"), 1, 4, 64, NULL, &m, NULL), LM_OK);
    assert_false(lm_int_fits(&m));
    lm_packed_free(&m);
}

/* ---- --bench ---------------------------------------------------------------------------------------------------------------------*/
enum { BENCH_T = 512, BENCH_TRIES = 5 };
static double peak_gops(void) {
    const lm_peak *p = lm_peak_best(LM_PEAK_INT8);
    double best = 0;
    for (int i = 0; i < 4; i++) {
        const double t = lm_now();
        if (p->run(1u << 18) == 0) fail();
        const double rate = 2.0 * p->macs * (1u << 18) / (lm_now() - t) * 1e-9;
        best = rate > best ? rate : best;
    }
    return best;
}
static double read_gbs(const void *p, size_t bytes) {
    double best = 0;
    for (int i = 0; i < 3 * LM_STREAM_FORMS; i++) {
        const double t = lm_now();
        if (lm_stream_best()->sum[i % LM_STREAM_FORMS](p, bytes / 512 * 64) == 0) fail();
        const double rate = (double)bytes / (lm_now() - t) * 1e-9;
        best = rate > best ? rate : best;
    }
    return best;
}
/* A matrix whose strips are all filled from the same 16 rows. */
static void bench_matrix(const lm_dtype *t, uint32_t rows, uint32_t K, lm_packed_matrix *m) {
    uint8_t *raw = random_rows(t, 16, K);
    lm_error err;
    if (lm_packed_create(t, 1, rows, K, NULL, m, &err) != LM_OK) fail_msg("%s", err.message);
    const uint8_t *row[16];
    for (uint32_t r = 0; r < 16; r++) row[r] = raw + r * (size_t)(K / t->block) * t->bytes;
    for (uint32_t s = 0; s < m->strips; s++) lm_packed_strip(m, 0, s, row);
    free(raw);
}
/* Seconds of one product, the best of some tries, and of packing its input. */
static double bench_product(const lm_packed_matrix *m, lm_int_lane lane, uint32_t T, bool split, double *pack) {
    const lm_int_kernels *k = lm_int_nth(0);
    for (uint32_t i = 0; lm_int_nth(i); i++) k = lm_int_nth(i);
    const size_t x_bytes = sizeof(float) * T * m->K, y_bytes = sizeof(float) * T * m->rows, scratch_bytes = sizeof(float) * lm_int_scratch(m->K, false);
    float *x = lm_pages_alloc(x_bytes, true), *y = lm_pages_alloc(y_bytes, true);
    float *xq = lm_pages_alloc(x_bytes, true), *scratch = lm_pages_alloc(scratch_bytes, true);
    if (!x || !y || !xq || !scratch) fail();
    for (size_t i = 0; i < (size_t)T * m->K; i += LM_INT_BLK) { /* of one block in twenty, loud in mixed */
        const float size = kern_below(20) == 0 ? 4 : 1;
        for (size_t j = 0; j < LM_INT_BLK; j++) x[i + j] = kern_normal() * size;
    }
    const lm_int_product q = {k, lane, m, 0, split, NULL, xq, T, y, m->rows, NULL};
    double best = 1e9;
    *pack = 1e9;
    for (int i = 0; i < BENCH_TRIES; i++) {
        double t = lm_now();
        for (uint32_t j = 0; j < lm_int_tiles(lane, T); j++) lm_int_pack(k, lane, x, m->K, NULL, T, j, m->K, xq);
        *pack = fmin(*pack, lm_now() - t);
        t = lm_now();
        for (uint32_t j = 0; j < lm_int_tasks(&q); j++) lm_int_run(&q, j, scratch);
        best = fmin(best, lm_now() - t);
    }
    lm_pages_free(x, x_bytes), lm_pages_free(y, y_bytes), lm_pages_free(xq, x_bytes), lm_pages_free(scratch, scratch_bytes);
    return best;
}
static void bench_type(const lm_dtype *t) {
    static const struct {
        uint32_t rows, K;
        bool split;
    } shape[] = {{1024, 2048, false}, {1024, 2048, true}, {512, 8192, true}, {768, 576, false}, {576, 1536, true}};
    printf("%-7s prefill %% of int8 peak:", t->name);
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        const uint32_t K = shape[i].K / t->block * t->block, rows = shape[i].rows;
        lm_packed_matrix m;
        bench_matrix(t, rows, K, &m);
        double pack;
        const double ops = 2.0 * rows * K * BENCH_T * 1e-9, before = peak_gops();
        double share[4];
        for (lm_int_lane l = LM_INT_8; l <= LM_INT_MIXED; l++) share[l] = 100 * ops / bench_product(&m, l, BENCH_T, shape[i].split, &pack);
        const double peak = fmax(before, peak_gops());
        printf("  %u%s: %.1f, i16 %.1f, mixed %.1f", K, shape[i].split ? " split" : "", share[LM_INT_8] / peak, share[LM_INT_16] / peak,
               share[LM_INT_MIXED] / peak);
        lm_packed_free(&m);
    }
    lm_packed_matrix m;
    bench_matrix(t, 8192 * 4, 2048, &m);
    printf("\n        %% of read bandwidth, i8 (i16), tokens");
    for (uint32_t T = 1; T <= 8; T *= 2) {
        double pack;
        const double before = read_gbs(m.data, m.bytes), i8 = bench_product(&m, LM_INT_8, T, false, &pack), i16 = bench_product(&m, LM_INT_16, T, false, &pack);
        const double read = fmax(before, read_gbs(m.data, m.bytes)), gb = (double)m.bytes * 1e-9;
        printf("  %u: %.1f (%.1f)", T, 100 * gb / i8 / read, 100 * gb / i16 / read);
    }
    printf("\n");
    lm_packed_free(&m);
}
static int bench(int n, char **name) {
    for (uint32_t i = 0; lm_dtypes[i]; i++) {
        const lm_dtype *t = lm_dtypes[i];
        bool wanted = n == 0;
        for (int j = 0; j < n; j++) wanted |= strcmp(name[j], t->name) == 0;
        if (t->block > 1 && wanted) bench_type(t), fflush(stdout);
    }
    lm_packed_matrix m;
    double pack8, pack16;
    bench_matrix(lm_dtype_by_name("Q8_0"), 16, 2048, &m);
    bench_product(&m, LM_INT_8, BENCH_T, false, &pack8), bench_product(&m, LM_INT_16, BENCH_T, false, &pack16);
    printf("quantizing: i8 %.2f, i16 %.2f ns an element\n", pack8 / (BENCH_T * 2048) * 1e9, pack16 / (BENCH_T * 2048) * 1e9);
    lm_packed_free(&m);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) return bench(argc - 2, argv + 2);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantises),    cmocka_unit_test(every_type),        cmocka_unit_test(token_counts),
        cmocka_unit_test(every_length), cmocka_unit_test(what_does_not_fit), cmocka_unit_test(huge_scales), cmocka_unit_test(extremes),
    };
    return cmocka_run_group_tests(tests, kern_print_seed, NULL);
}
