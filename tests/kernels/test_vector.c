/* Every kernel beside the product: equal bits on every level, near a double reference, nothing touched outside its ranges (inputs and outputs end
 * at guard pages). maths: exp and what is built on it, over the whole useful range. */
#include "kern.h"
#include "kernels/body/sincos.h"

static const lm_kernels *level[3];
static uint32_t n_levels;
static int setup(void **state) {
    n_levels = kern_levels(level);
    return kern_print_seed(state);
}

/* n floats before a guard page; `positive` makes them all so */
static float *numbers(size_t n, bool positive) {
    float *v = kern_guard(n * sizeof *v);
    for (size_t i = 0; i < n; i++) v[i] = positive ? fabsf(kern_normal()) : kern_normal();
    return v;
}
static void drop(float *v, size_t n) { kern_guard_free(v, n * sizeof *v); }
static void near_sum(double got, double exact, double size, double n, const char *what) {
    if (!(fabs(got - exact) <= 2 * sqrt(n + 4) * 0x1p-24 * size + 1e-37)) fail_msg("%s: %g, should be %g (sizes %g)", what, got, exact, size);
}

/* ---- exp and friends -----------------------------------------------------------------------------------------------------------*/
static double d_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double d_act(lm_kact a, double x) {
    switch (a) {
    case LM_KACT_SILU: return x * d_sigmoid(x);
    case LM_KACT_GELU: return 0.5 * x * erfc(-x / sqrt(2));
    case LM_KACT_GELU_TANH: return x * d_sigmoid(2 * 0.79788456080286535588 * (x + 0.044715 * x * x * x));
    case LM_KACT_RELU: return x > 0 ? x : 0;
    case LM_KACT_RELU2: return x > 0 ? x * x : 0;
    case LM_KACT_SIGMOID: return d_sigmoid(x);
    case LM_KACT_TANH: return tanh(x);
    case LM_KACT_SOFTPLUS: return fmax(x, 0) + log1p(exp(-fabs(x)));
    default: return x;
    }
}
static double ulps(float got, double exact) {
    if (exact == 0) return got == 0 ? 0 : 1e9;
    int e;
    frexp(exact, &e);
    if (e < -125) e = -125; /* subnormal spacing */
    return fabs((double)got - exact) / ldexp(1, e - 24);
}
enum { MANY = 1 << 16 };
static float xs[MANY], ys[3][MANY];
/* `of` is what is computed, act −1 for exp; the farthest of a sweep over [−span, span] and over small magnitudes */
static double sweep(int act, double span) {
    double most = 0;
    for (int part = 0; part < 2; part++) {
        for (int i = 0; i < MANY; i++) {
            double u = 2 * kern_uniform() - 1;
            xs[i] = (float)(part ? copysign(exp2(-30 + 33 * fabs(u)), u) : span * u);
        }
        for (uint32_t l = 0; l < n_levels; l++) {
            if (act < 0) level[l]->exp(ys[l], xs, MANY);
            else level[l]->act((lm_kact)act, ys[l], xs, MANY);
            ASSERT_SAME(ys[0], ys[l], (size_t)MANY, level[l]->level);
        }
        for (int i = 0; i < MANY; i++) {
            double u = ulps(ys[0][i], act < 0 ? exp((double)xs[i]) : d_act((lm_kact)act, xs[i]));
            if (u > most) most = u;
        }
    }
    return most;
}
static void maths(void **state) {
    (void)state;
    static const struct { int act; double span, bound; const char *name; } t[] = {
        {-1, 88, 1.5, "exp"},
        {LM_KACT_SIGMOID, 80, 3, "sigmoid"},
        {LM_KACT_SILU, 80, 3.5, "silu"},
        {LM_KACT_SOFTPLUS, 80, 3, "softplus"},
        {LM_KACT_TANH, 20, 3, "tanh"},
        {LM_KACT_GELU, 10, 6, "gelu"},
        {LM_KACT_RELU, 50, 0, "relu"},
        {LM_KACT_RELU2, 50, 0.5, "relu2"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        double u = sweep(t[i].act, t[i].span);
        printf("%s: %.2f ulp\n", t[i].name, u);
        if (!(u <= t[i].bound)) fail_msg("%s: %g ulp", t[i].name, u);
    }
    /* the cubic's rounding is magnified by the exponential in the far tail, where the result is nothing beside x: an absolute bound there */
    for (int i = 0; i < MANY; i++) xs[i] = (float)(24 * kern_uniform() - 12);
    for (uint32_t l = 0; l < n_levels; l++) {
        level[l]->act(LM_KACT_GELU_TANH, ys[l], xs, MANY);
        ASSERT_SAME(ys[0], ys[l], (size_t)MANY, "gelu_tanh");
    }
    for (int i = 0; i < MANY; i++)
        if (!(fabs(ys[0][i] - d_act(LM_KACT_GELU_TANH, xs[i])) <= 3 * 0x1p-24 * fabs(xs[i]))) fail_msg("gelu_tanh(%g) is %g", (double)xs[i], (double)ys[0][i]);
}
static void edges(void **state) {
    (void)state;
    float x[16] = {0, -0.0f, INFINITY, -INFINITY, NAN, 88.72f, 88.73f, 90, 1e30f, -87.4f, -103.9f, -104.1f, -200, -1e30f, 0x1p-140f, 1}, y[3][16];
    for (uint32_t l = 0; l < n_levels; l++) {
        level[l]->exp(y[l], x, 16);
        assert_true(y[l][0] == 1 && y[l][1] == 1 && y[l][2] == INFINITY && y[l][3] == 0 && isnan(y[l][4]));
        assert_true(isfinite(y[l][5]) && y[l][6] == INFINITY && y[l][7] == INFINITY && y[l][8] == INFINITY);
        assert_true(y[l][9] > 0 && y[l][9] < 0x1p-126f && y[l][10] == 0x1p-149f && y[l][11] == 0 && y[l][12] == 0 && y[l][13] == 0 && y[l][14] == 1);
        for (int a = 0; a <= LM_KACT_NONE; a++) {
            level[l]->act((lm_kact)a, y[l], x, 16);
            assert_true(isnan(y[l][4])); /* NaN in, NaN out */
        }
        level[l]->act(LM_KACT_TANH, y[l], x, 16);
        assert_true(y[l][2] == 1 && y[l][3] == -1 && y[l][14] == 0x1p-140f && signbit(y[l][1]));
        level[l]->act(LM_KACT_SIGMOID, y[l], x, 16);
        assert_true(y[l][2] == 1 && y[l][3] == 0 && y[l][0] == 0.5f);
        level[l]->act(LM_KACT_SOFTPLUS, y[l], x, 16);
        assert_true(y[l][2] == INFINITY && y[l][3] == 0 && y[l][8] == 1e30f);
    }
}
static void sines(void **state) {
    (void)state;
    double most = 0;
    for (int i = 0; i < 400000; i++) {
        const double x = i % 4 == 0 ? floor(kern_uniform() * 1e6) : (kern_uniform() - 0.3) * exp2(30 * kern_uniform());
        double s, c;
        lm_sincos(x, &s, &c);
        most = fmax(most, fmax(fabs(s - sin(x)), fabs(c - cos(x))));
    }
    printf("sincos: %.2g\n", most);
    assert_true(most < 4e-16);
    for (int i = 0; i < 2000; i++) {
        const double freq[5] = {1, 0.1 * kern_uniform(), 1e-3, 1e-5 * kern_uniform(), kern_uniform()}, at = floor(kern_uniform() * 1e6);
        for (uint32_t l = 0; l < n_levels; l++) {
            float cs[5], sn[5];
            level[l]->turns(cs, sn, at, freq, 1.25, 5);
            for (int j = 0; j < 5; j++) {
                double s, c;
                lm_sincos(at * freq[j], &s, &c);
                assert_true(cs[j] == (float)(c * 1.25) && sn[j] == (float)(s * 1.25));
            }
        }
    }
}

/* ---- rows -------------------------------------------------------------------------------------------------------------------------*/
static void sums(void **state) {
    (void)state;
    for (uint32_t n = 1; n < 700; n += n < 40 ? 1 : 53) {
        float *x = numbers(n, n & 1), first[2] = {0, 0};
        double sum = 0, size = 0, square = 0;
        const float mean = n % 3 ? 0.25f : 0;
        for (uint32_t i = 0; i < n; i++) {
            sum += x[i], size += fabsf(x[i]);
            square += ((double)x[i] - mean) * ((double)x[i] - mean);
        }
        /* the contract, plainly */
        float lane[2][16] = {{0}};
        for (uint32_t i = 0; i < n; i++) {
            lane[0][i % 16] += x[i];
            const float d = x[i] - mean;
            lane[1][i % 16] = fmaf(d, d, lane[1][i % 16]);
        }
        for (int k = 0; k < 2; k++) {
            for (int h = 8; h; h /= 2)
                for (int i = 0; i < h; i++) lane[k][i] += lane[k][i + h];
            first[k] = lane[k][0];
        }
        for (uint32_t l = 0; l < n_levels; l++) {
            const float got[2] = {level[l]->sum(x, n), level[l]->sum_squares(x, mean, n)};
            ASSERT_SAME(first, got, 2u, level[l]->level);
        }
        near_sum(first[0], sum, size, n, "sum");
        near_sum(first[1], square, 2 * square + size * 0.5 + n * 0.07, n, "sum of squares");
        drop(x, n);
    }
}
static void rows_of_squares(void **state) {
    (void)state;
    for (uint32_t n = 1; n < 300; n += n < 34 ? 1 : 61)
        for (uint32_t rows = 1; rows < 10; rows++) {
            float *x = numbers(rows * n, n & 1), first[9], got[10];
            for (uint32_t r = 0; r < rows; r++) first[r] = level[0]->sum_squares(x + r * n, 0, n);
            for (uint32_t l = 0; l < n_levels; l++) {
                got[rows] = 77;
                level[l]->squares(x, rows, n, got);
                ASSERT_SAME(first, got, rows, level[l]->level);
                assert_true(got[rows] == 77);
            }
            drop(x, rows * n);
        }
}
static void attention(void **state) {
    (void)state;
    static const uint32_t dims[] = {1, 5, 16, 20, 64, 80, 128, 130};
    for (int turn = 0; turn < 40; turn++) {
        const uint32_t d = dims[turn % 8], n_q = 1 + kern_below(9), n_k = 1 + kern_below(40), lds = n_k + kern_below(3);
        const size_t ldq = d + kern_below(4), ldk = d + kern_below(4);
        const size_t qn = (n_q - 1) * ldq + d, kn = (n_k - 1) * ldk + d, sn = (size_t)(n_q - 1) * lds + n_k, on = (n_q - 1) * ldq + d;
        float *q = numbers(qn, turn & 1), *k = numbers(kn, turn & 1), *s = numbers(sn, false), *o = numbers(on, turn & 1), *first = numbers(sn, false);
        float *o0 = malloc(on * sizeof *o0), *first_o = malloc(on * sizeof *o0);
        memcpy(o0, o, on * sizeof *o0);
        memcpy(first, s, sn * sizeof *s);
        for (uint32_t l = 0; l < n_levels; l++) {
            level[l]->dots(q, ldq, n_q, k, ldk, n_k, d, s, lds);
            if (l == 0) memcpy(first, s, sn * sizeof *s);
            ASSERT_SAME(first, s, sn, level[l]->level);
        }
        for (uint32_t i = 0; i < n_q; i++)
            for (uint32_t j = 0; j < n_k; j++) {
                double sum = 0, size = 0;
                float lane[16] = {0};
                for (uint32_t c = 0; c < d; c++) {
                    sum += (double)q[i * ldq + c] * k[j * ldk + c], size += fabs((double)q[i * ldq + c] * k[j * ldk + c]);
                    lane[c % 16] = fmaf(q[i * ldq + c], k[j * ldk + c], lane[c % 16]);
                }
                for (int h = 8; h; h /= 2)
                    for (int c = 0; c < h; c++) lane[c] += lane[c + h];
                near_sum(s[i * lds + j], sum, size, d, "dot");
                ASSERT_SAME(&lane[0], &s[i * lds + j], 1u, "dot's contract");
            }
        for (uint32_t l = 0; l < n_levels; l++) {
            memcpy(o, o0, on * sizeof *o);
            level[l]->accumulate(s, lds, n_q, k, ldk, n_k, d, o, ldq);
            if (l == 0) memcpy(first_o, o, on * sizeof *o);
            ASSERT_SAME(first_o, o, on, level[l]->level);
        }
        for (uint32_t i = 0; i < n_q; i++)
            for (uint32_t c = 0; c < d; c++) {
                float want = o0[i * ldq + c];
                for (uint32_t j = 0; j < n_k; j++) want = fmaf(s[i * lds + j], k[j * ldk + c], want);
                ASSERT_SAME(&want, &o[i * ldq + c], 1u, "accumulate");
            }
        free(o0), free(first_o);
        drop(q, qn), drop(k, kn), drop(s, sn), drop(o, on), drop(first, sn);
    }
}
static void softmax(void **state) {
    (void)state;
    for (uint32_t n = 1; n <= 256; n += n < 36 ? 1 : 19) {
        float *s = numbers(n, false), *s0 = malloc(n * sizeof *s0), *first = malloc(n * sizeof *s0), l0 = 0, m0 = 0;
        const float scale = 3, cap = n % 2 ? 2.5f : 0;
        memcpy(s0, s, n * sizeof *s);
        for (uint32_t l = 0; l < n_levels; l++) {
            float sum;
            memcpy(s, s0, n * sizeof *s);
            const float m = level[l]->page_softmax(s, n, scale, cap, &sum);
            if (l == 0) memcpy(first, s, n * sizeof *s), l0 = sum, m0 = m;
            ASSERT_SAME(first, s, (size_t)n, level[l]->level);
            assert_true(m == m0 && sum == l0);
        }
        double top = -1e9, total = 0;
        for (uint32_t i = 0; i < n; i++) {
            const double x = cap != 0 ? cap * tanh((double)s0[i] * scale / cap) : (double)s0[i] * scale;
            if (x > top) top = x; /* gcc 12 for AArch64 fails on an fmax here */
        }
        for (uint32_t i = 0; i < n; i++) {
            const double x = cap != 0 ? cap * tanh((double)s0[i] * scale / cap) : (double)s0[i] * scale, p = exp(x - top);
            total += p;
            assert_true(fabs(s[i] - p) <= 2e-6 * (p + 1e-3));
        }
        assert_true(fabs(l0 - total) <= 2e-6 * total && fabs(m0 - top) <= 1e-6 * (1 + fabs(top)));
        drop(s, n);
        free(s0), free(first);
    }
}

/* The element-wise kernels: inputs a, b, c, d of n numbers, output n. */
typedef enum which { MERGE, ADD, AXPY, NORMAL, NORMAL_W, NORMAL_B, NORMAL_WB, GATED_SILU, GATED_OAI, SOFTCAP, DECAY, ROPE, CONV, LAST } which;
static void call(const lm_kernels *k, which w, float *y, const float *a, const float *b, const float *c, const float *d, uint32_t n) {
    const float *const rows[3] = {a, b, c};
    switch (w) {
    case MERGE: k->merge(y, a, 0.7f, 0.3f, n); break;
    case ADD: k->add(y, a, b, n); break;
    case AXPY: k->axpy(y, 0.7f, a, n); break;
    case NORMAL: k->normalise(y, a, 0, 1.3f, NULL, NULL, n); break;
    case NORMAL_W: k->normalise(y, a, 0, 1.3f, b, NULL, n); break;
    case NORMAL_B: k->normalise(y, a, 0.1f, 1.3f, NULL, c, n); break;
    case NORMAL_WB: k->normalise(y, a, 0.1f, 1.3f, b, c, n); break;
    case GATED_SILU: k->gated(LM_KACT_SILU, y, a, b, 0, 0, n); break;
    case GATED_OAI: k->gated(LM_KACT_SWIGLU_OAI, y, a, b, 0.8f, 1.702f, n); break;
    case SOFTCAP: k->softcap(y, a, 1.5f, n); break;
    case DECAY: k->decay(y, a, b, c, n); break;
    case ROPE: k->rope(y, y + n / 2, a, a + n / 2, c, d, n / 2); break;
    default: k->conv(y, rows, d, a, 3, n / 3); /* d holds [3][n/3] */
    }
}
static double expect(which w, const float *y, const float *a, const float *b, const float *c, const float *d, uint32_t n, uint32_t i) {
    const double x = a[i], u = b[i];
    const uint32_t h = n / 2, t = n / 3;
    switch (w) {
    case MERGE: return x * 0.3f + (double)y[i] * 0.7f;
    case ADD: return x + u;
    case AXPY: return 0.7f * x + y[i];
    case NORMAL: return x * 1.3f;
    case NORMAL_W: return x * 1.3f * u;
    case NORMAL_B: return (x - 0.1f) * 1.3f + c[i];
    case NORMAL_WB: return (x - 0.1f) * 1.3f * u + c[i];
    case GATED_SILU: return x * d_sigmoid(x) * u;
    case GATED_OAI: {
        const double g = fmin(x, 0.8f), up = fmax(-0.8f, fmin(0.8f, u));
        return (up + 1) * g * d_sigmoid(1.702f * g);
    }
    case SOFTCAP: return 1.5 * tanh(x / 1.5);
    case DECAY: return u * (fmax(x + c[i], 0) + log1p(exp(-fabs(x + c[i]))));
    case ROPE: return i < h ? x * c[i] - (double)a[i + h] * d[i] : i < 2 * h ? x * c[i - h] + (double)a[i - h] * d[i - h] : y[i];
    default: return i >= t ? y[i] : x + (double)d[i] * a[i] + (double)d[t + i] * b[i] + (double)d[2 * t + i] * c[i];
    }
}
static void elementwise(void **state) {
    (void)state;
    for (uint32_t n = 3; n < 800; n += n < 70 ? 1 : 61)
        for (which w = MERGE; w < LAST; w++) {
            float *a = numbers(n, false), *b = numbers(n, false), *c = numbers(n, false), *d = numbers(n, false), *y = numbers(n, false);
            float *y0 = malloc(n * sizeof *y0), *first = malloc(n * sizeof *y0);
            memcpy(y0, y, n * sizeof *y);
            for (uint32_t l = 0; l < n_levels; l++) {
                memcpy(y, y0, n * sizeof *y);
                call(level[l], w, y, a, b, c, d, n);
                if (l == 0) memcpy(first, y, n * sizeof *y);
                ASSERT_SAME(first, y, (size_t)n, level[l]->level);
            }
            for (uint32_t i = 0; i < n; i++) {
                const double want = expect(w, y0, a, b, c, d, n, i);
                if (!(fabs(y[i] - want) <= 3e-6)) fail_msg("kernel %d, n %u: element %u is %g, not %g", (int)w, n, i, (double)y[i], want);
            }
            drop(a, n), drop(b, n), drop(c, n), drop(d, n), drop(y, n);
            free(y0), free(first);
        }
}
static void delta_rule(void **state) {
    (void)state;
    for (uint32_t dk = 1; dk < 70; dk += 13)
        for (uint32_t dv = 1; dv < 70; dv += 9) {
            const size_t n = (size_t)dk * dv;
            float *S = numbers(n, false), *q = numbers(dk, false), *k = numbers(dk, false), *v = numbers(dv, false), *o = numbers(dv, false);
            float *S0 = malloc(n * 4), *S1 = malloc(n * 4), o1[70];
            memcpy(S0, S, n * 4);
            for (uint32_t l = 0; l < n_levels; l++) {
                memcpy(S, S0, n * 4);
                level[l]->delta(S, q, k, v, 0.9f, 0.4f, 0.5f, dk, dv, o);
                if (l == 0) memcpy(S1, S, n * 4), memcpy(o1, o, dv * 4);
                ASSERT_SAME(S1, S, n, level[l]->level);
                ASSERT_SAME(o1, o, (size_t)dv, level[l]->level);
            }
            for (uint32_t c = 0; c < dv; c++) {
                double u = 0, out = 0;
                for (uint32_t i = 0; i < dk; i++) u += (double)S0[i * dv + c] * 0.9f * k[i];
                const double delta = (v[c] - u) * 0.4f;
                for (uint32_t i = 0; i < dk; i++) {
                    const double s = (double)S0[i * dv + c] * 0.9f + k[i] * delta;
                    assert_true(fabs(S[i * dv + c] - s) < 1e-5);
                    out += s * q[i] * 0.5f;
                }
                assert_true(fabs(o[c] - out) < 5e-5);
            }
            drop(S, n), drop(q, dk), drop(k, dk), drop(v, dv), drop(o, dv);
            free(S0), free(S1);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maths),   cmocka_unit_test(edges),       cmocka_unit_test(sines),     cmocka_unit_test(sums),
        cmocka_unit_test(rows_of_squares), cmocka_unit_test(attention),
        cmocka_unit_test(softmax), cmocka_unit_test(elementwise), cmocka_unit_test(delta_rule),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
