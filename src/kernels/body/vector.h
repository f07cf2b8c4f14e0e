/* Sums, attention, norms and the element-wise kernels over sixteen virtual lanes. */
#include "kernels/body/sincos.h"

#define LM_FOR16(i, n) for (uint32_t i = 0; i < (n); i += 16)
LM_INLINE uint32_t lm_left(uint32_t n, uint32_t i) { return n - i < 16 ? n - i : 16; }
LM_INLINE vf v_get(const float *p, uint32_t left) { return left == 16 ? v_load(p) : v_load_n(p, left); }
LM_INLINE void v_put(float *p, vf a, uint32_t left) {
    if (left == 16) v_store(p, a);
    else v_store_n(p, a, left);
}

static float k_sum(const float *x, uint32_t n) {
    vf s = v_set(0.0f);
    LM_FOR16(i, n) s = v_add(s, v_get(x + i, lm_left(n, i)));
    return v_tree(s);
}
static float k_sum_squares(const float *x, float mean, uint32_t n) {
    vf s = v_set(0.0f), m = v_set(mean);
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        vf d = v_sub(v_load(x + i), m);
        s = v_fma(d, d, s);
    }
    if (i < n) { /* the padding must be zero after the mean is taken off */
        float t[16] = {0};
        for (uint32_t j = 0; i + j < n; j++) t[j] = x[i + j] - mean;
        vf d = v_load(t);
        s = v_fma(d, d, s);
    }
    return v_tree(s);
}
/* One row's sum waits for each of its steps: four rows' go on meanwhile. */
static void k_squares(const float *x, uint32_t rows, uint32_t n, float *out) {
    for (; rows >= 4; rows -= 4, x += 4 * (size_t)n, out += 4) {
        vf s[4];
        LM_UNROLL for (int r = 0; r < 4; r++) s[r] = v_set(0.0f);
        LM_FOR16(i, n) {
            const uint32_t left = lm_left(n, i);
            LM_UNROLL for (int r = 0; r < 4; r++) {
                const vf v = v_get(x + r * (size_t)n + i, left);
                s[r] = v_fma(v, v, s[r]);
            }
        }
        v_tree4(s[0], s[1], s[2], s[3], out);
    }
    for (uint32_t r = 0; r < rows; r++) out[r] = k_sum_squares(x + (size_t)r * n, 0.0f, n);
}

/* ---- attention -------------------------------------------------------------------------------------------------------------------*/
/* Four keys by Q queries at a time: the loads are shared, each score keeps its own sixteen lanes. */
LM_INLINE void dots_4(int Q, const float *q, size_t ldq, const float *k, size_t ldk, uint32_t d, float *s, size_t lds) {
    vf acc[4][4];
    LM_UNROLL for (int i = 0; i < Q; i++) LM_UNROLL for (int j = 0; j < 4; j++) acc[i][j] = v_set(0.0f);
    LM_FOR16(c, d) {
        uint32_t left = lm_left(d, c);
        vf kv[4];
        LM_UNROLL for (int j = 0; j < 4; j++) kv[j] = v_get(k + (size_t)j * ldk + c, left);
        LM_UNROLL for (int i = 0; i < Q; i++) {
            vf qv = v_get(q + (size_t)i * ldq + c, left);
            LM_UNROLL for (int j = 0; j < 4; j++) acc[i][j] = v_fma(qv, kv[j], acc[i][j]);
        }
    }
    LM_UNROLL for (int i = 0; i < Q; i++) v_tree4(acc[i][0], acc[i][1], acc[i][2], acc[i][3], s + (size_t)i * lds);
}
static void k_dots(const float *q, size_t ldq, uint32_t n_q, const float *k, size_t ldk, uint32_t n_k, uint32_t d, float *s, size_t lds) {
    for (uint32_t i = 0; i < n_q;) {
        const uint32_t Q = n_q - i >= LM_DOT_Q ? LM_DOT_Q : 1;
        const float *qi = q + i * ldq;
        float *si = s + i * lds;
        uint32_t j = 0;
        for (; j + 4 <= n_k; j += 4) {
            if (Q == 1) dots_4(1, qi, ldq, k + j * ldk, ldk, d, si + j, lds);
            else dots_4(LM_DOT_Q, qi, ldq, k + j * ldk, ldk, d, si + j, lds);
        }
        for (; j < n_k; j++)
            for (uint32_t r = 0; r < Q; r++) {
                vf a = v_set(0.0f);
                LM_FOR16(c, d) {
                    uint32_t left = lm_left(d, c);
                    a = v_fma(v_get(qi + r * ldq + c, left), v_get(k + j * ldk + c, left), a);
                }
                si[r * lds + j] = v_tree(a);
            }
        i += Q;
    }
}

/* Q queries by D·16 columns in registers over all keys */
LM_INLINE void accumulate_tile(int Q, int D, const float *p, size_t ldp, const float *v, size_t ldv, uint32_t n_k, float *o, size_t ldo) {
    vf acc[4][4];
    LM_UNROLL for (int i = 0; i < Q; i++) LM_UNROLL for (int c = 0; c < D; c++) acc[i][c] = v_load(o + (size_t)i * ldo + 16 * c);
    for (uint32_t j = 0; j < n_k; j++, v += ldv) {
        vf vv[4];
        LM_UNROLL for (int c = 0; c < D; c++) vv[c] = v_load(v + 16 * c);
        LM_UNROLL for (int i = 0; i < Q; i++) {
            vf w = v_set(p[(size_t)i * ldp + j]);
            LM_UNROLL for (int c = 0; c < D; c++) acc[i][c] = v_fma(w, vv[c], acc[i][c]);
        }
    }
    LM_UNROLL for (int i = 0; i < Q; i++) LM_UNROLL for (int c = 0; c < D; c++) v_store(o + (size_t)i * ldo + 16 * c, acc[i][c]);
}
static void k_accumulate(const float *p, size_t ldp, uint32_t n_q, const float *v, size_t ldv, uint32_t n_k, uint32_t d, float *o, size_t ldo) {
    for (uint32_t i = 0; i < n_q;) {
        const uint32_t Q = n_q - i >= LM_ACC_Q ? LM_ACC_Q : 1;
        uint32_t c = 0;
        for (; c + 16 * LM_ACC_D <= d; c += 16 * LM_ACC_D) {
            if (Q == 1) accumulate_tile(1, LM_ACC_D, p + i * ldp, ldp, v + c, ldv, n_k, o + i * ldo + c, ldo);
            else accumulate_tile(LM_ACC_Q, LM_ACC_D, p + i * ldp, ldp, v + c, ldv, n_k, o + i * ldo + c, ldo);
        }
        for (; c < d; c += 16) {
            uint32_t left = lm_left(d, c);
            for (uint32_t r = i; r < i + Q; r++) {
                vf a = v_get(o + r * ldo + c, left);
                for (uint32_t j = 0; j < n_k; j++) a = v_fma(v_set(p[r * ldp + j]), v_get(v + j * ldv + c, left), a);
                v_put(o + r * ldo + c, a, left);
            }
        }
        i += Q;
    }
}
static float k_page_softmax(float *s, uint32_t n, float scale, float softcap, float *l) {
    vf top = v_set(-__builtin_inff());
    LM_FOR16(i, n) {
        uint32_t left = lm_left(n, i);
        vf x = v_mul(v_get(s + i, left), v_set(scale));
        if (softcap != 0) x = v_mul(v_set(softcap), v_tanh(v_div(x, v_set(softcap))));
        v_put(s + i, x, left);
        if (left == 16) top = v_max(x, top);
    }
    float t[16], m = -__builtin_inff();
    v_store(t, top);
    for (uint32_t i = 0; i < 16; i++) m = t[i] > m ? t[i] : m;
    for (uint32_t i = n / 16 * 16; i < n; i++) m = s[i] > m ? s[i] : m;
    vf sum = v_set(0.0f);
    LM_FOR16(i, n) {
        uint32_t left = lm_left(n, i);
        vf p = v_exp(v_sub(v_get(s + i, left), v_set(m)));
        v_put(s + i, p, left);
        sum = v_add(sum, left == 16 ? p : v_get(s + i, left));
    }
    *l = v_tree(sum);
    return m;
}
static void k_merge(float *o, const float *page, float a, float b, uint32_t n) {
    LM_FOR16(i, n) {
        uint32_t left = lm_left(n, i);
        v_put(o + i, v_fma(v_get(page + i, left), v_set(b), v_mul(v_get(o + i, left), v_set(a))), left);
    }
}

/* ---- rows ------------------------------------------------------------------------------------------------------------------------*/
static void k_add(float *y, const float *a, const float *b, uint32_t n) {
    LM_FOR16(i, n) {
        const uint32_t left = lm_left(n, i);
        v_put(y + i, v_add(v_get(a + i, left), v_get(b + i, left)), left);
    }
}
static void k_axpy(float *y, float a, const float *x, uint32_t n) {
    LM_FOR16(i, n) {
        uint32_t left = lm_left(n, i);
        v_put(y + i, v_fma(v_set(a), v_get(x + i, left), v_get(y + i, left)), left);
    }
}
static void k_normalise(float *y, const float *x, float mean, float s, const float *w, const float *b, uint32_t n) {
    const uint32_t whole = w && !b ? n / 16 * 16 : 0;
    LM_FOR16(i, whole) v_store(y + i, v_mul(v_mul(v_sub(v_load(x + i), v_set(mean)), v_set(s)), v_load(w + i)));
    for (uint32_t i = whole; i < n; i += 16) {
        uint32_t left = lm_left(n, i);
        vf v = v_mul(v_sub(v_get(x + i, left), v_set(mean)), v_set(s));
        if (w && b) v = v_fma(v, v_get(w + i, left), v_get(b + i, left));
        else if (w) v = v_mul(v, v_get(w + i, left));
        else if (b) v = v_add(v, v_get(b + i, left));
        v_put(y + i, v, left);
    }
}
static void k_exp(float *y, const float *x, uint32_t n) {
    LM_FOR16(i, n) v_put(y + i, v_exp(v_get(x + i, lm_left(n, i))), lm_left(n, i));
}
#define LM_ACT_LOOP(KIND) \
    case KIND: \
        LM_FOR16(i, n) v_put(y + i, v_act(KIND, v_get(x + i, lm_left(n, i))), lm_left(n, i)); \
        break;
static void k_act(lm_kact act, float *y, const float *x, uint32_t n) {
    switch (act) {
        LM_ACT_LOOP(LM_KACT_SILU)
        LM_ACT_LOOP(LM_KACT_GELU)
        LM_ACT_LOOP(LM_KACT_GELU_TANH)
        LM_ACT_LOOP(LM_KACT_RELU)
        LM_ACT_LOOP(LM_KACT_RELU2)
        LM_ACT_LOOP(LM_KACT_SIGMOID)
        LM_ACT_LOOP(LM_KACT_TANH)
        LM_ACT_LOOP(LM_KACT_SOFTPLUS)
    default: memmove(y, x, n * sizeof *y);
    }
}
/* min(g, limit)·σ(alpha·min(g, limit)) · (clamp(up, ±limit) + 1); limit 0: none. A NaN stays. */
static void gated_oai(float *y, const float *gate, const float *up, float limit, float alpha, uint32_t n) {
    const float top = limit != 0 ? limit : __builtin_inff();
    LM_FOR16(i, n) {
        uint32_t left = lm_left(n, i);
        vf g = v_min(v_set(top), v_get(gate + i, left));
        vf u = v_max(v_set(-top), v_min(v_set(top), v_get(up + i, left)));
        vf h = v_mul(g, v_sigmoid(v_mul(v_set(alpha), g)));
        v_put(y + i, v_mul(h, v_add(u, v_set(1.0f))), left);
    }
}
#define LM_GATED_LOOP(KIND) \
    case KIND: \
        for (; LM_ACTS > 1 && i + 16 * LM_ACTS <= n; i += 16 * LM_ACTS) { \
            vf a[LM_ACTS]; \
            LM_SIDE(j, LM_ACTS) a[j] = v_load(gate + i + 16 * j); \
            v_acts(KIND, LM_ACTS, a); \
            LM_SIDE(j, LM_ACTS) v_store(y + i + 16 * j, v_mul(a[j], v_load(up + i + 16 * j))); \
        } \
        for (; i + 16 <= n; i += 16) v_store(y + i, v_mul(v_act(KIND, v_load(gate + i)), v_load(up + i))); \
        if (i < n) v_store_n(y + i, v_mul(v_act(KIND, v_load_n(gate + i, n - i)), v_load_n(up + i, n - i)), n - i); \
        break;
static void k_gated(lm_kact act, float *y, const float *gate, const float *up, float limit, float alpha, uint32_t n) {
    uint32_t i = 0;
    switch (act) {
        LM_GATED_LOOP(LM_KACT_SILU)
        LM_GATED_LOOP(LM_KACT_GELU)
        LM_GATED_LOOP(LM_KACT_GELU_TANH)
        LM_GATED_LOOP(LM_KACT_RELU)
        LM_GATED_LOOP(LM_KACT_RELU2)
        LM_GATED_LOOP(LM_KACT_SIGMOID)
        LM_GATED_LOOP(LM_KACT_TANH)
        LM_GATED_LOOP(LM_KACT_SOFTPLUS)
    case LM_KACT_SWIGLU_OAI: gated_oai(y, gate, up, limit, alpha, n); break;
    default:
        for (; i < n; i++) y[i] = gate[i] * up[i];
    }
}
static void k_softcap(float *y, const float *x, float c, uint32_t n) {
    LM_FOR16(i, n) {
        uint32_t left = lm_left(n, i);
        v_put(y + i, v_mul(v_set(c), v_tanh(v_div(v_get(x + i, left), v_set(c)))), left);
    }
}
static void k_decay(float *y, const float *a, const float *neg_exp_a, const float *bias, uint32_t n) {
    LM_FOR16(i, n) {
        uint32_t left = lm_left(n, i);
        vf s = v_get(a + i, left);
        if (bias) s = v_add(s, v_get(bias + i, left));
        v_put(y + i, v_mul(v_get(neg_exp_a + i, left), v_softplus(s)), left);
    }
}
static void k_turns(float *cs, float *sn, double position, const double *freq, double factor, uint32_t n) {
    for (uint32_t j = 0; j < n; j++) {
        double s, c;
        lm_sincos(position * freq[j], &s, &c);
        cs[j] = (float)(c * factor);
        sn[j] = (float)(s * factor);
    }
}
static void k_rope(float *y0, float *y1, const float *x0, const float *x1, const float *cs, const float *sn, uint32_t n) {
    LM_FOR16(i, n) {
        uint32_t left = lm_left(n, i);
        vf a = v_get(x0 + i, left), b = v_get(x1 + i, left), c = v_get(cs + i, left), s = v_get(sn + i, left);
        v_put(y0 + i, v_fma(a, c, v_neg(v_mul(b, s))), left);
        v_put(y1 + i, v_fma(b, c, v_mul(a, s)), left);
    }
}
static void k_conv(float *y, const float *const *row, const float *w, const float *bias, uint32_t taps, uint32_t n) {
    LM_FOR16(i, n) {
        uint32_t left = lm_left(n, i);
        vf a = v_set(0.0f);
        for (uint32_t j = 0; j < taps; j++) a = v_fma(v_get(w + (size_t)j * n + i, left), v_get(row[j] + i, left), a);
        if (bias) a = v_add(a, v_get(bias + i, left));
        v_put(y + i, a, left);
    }
}
static void k_delta(float *S, const float *q, const float *k, const float *v, float decay, float beta, float q_scale, uint32_t dk, uint32_t dv, float *o) {
    LM_FOR16(c, dv) {
        uint32_t left = lm_left(dv, c);
        vf u = v_set(0.0f), g = v_set(decay);
        for (uint32_t i = 0; i < dk; i++) {
            float *p = S + (size_t)i * dv + c;
            vf s = v_mul(v_get(p, left), g);
            v_put(p, s, left);
            u = v_fma(s, v_set(k[i]), u);
        }
        vf delta = v_mul(v_sub(v_get(v + c, left), u), v_set(beta)), out = v_set(0.0f);
        for (uint32_t i = 0; i < dk; i++) {
            float *p = S + (size_t)i * dv + c;
            vf s = v_fma(v_set(k[i]), delta, v_get(p, left));
            v_put(p, s, left);
            out = v_fma(s, v_set(q[i] * q_scale), out);
        }
        v_put(o + c, out, left);
    }
}

#ifndef LM_NO_GEMV
#define LM_GEMVS gemv_f32, gemv_f16, gemv_bf16, gemv_q4_0, gemv_q4_1, gemv_q8_0, gemv_q4_k, gemv_q5_k, gemv_q6_k, gemv_q5_0
#else
#define LM_GEMVS NULL
#endif
#define LM_TABLE(LEVEL) \
    const lm_kernels lm_kernels_##LEVEL = { \
        .level = #LEVEL, .tile = k_tile, \
        .unpack = {unpack_generic, unpack_f32, unpack_f16, unpack_bf16, unpack_q4_0, unpack_q4_1, unpack_q8_0, unpack_q4_k, unpack_q5_k, unpack_q6_k, \
                   unpack_q5_0, unpack_bf16x2}, \
        .gemv = {NULL, LM_GEMVS}, \
        .attend_n = LM_ATTEND_N, .attend = {attend_f32, attend_f16, attend_bf16, attend_q8_0}, \
        .store = {store_f32, store_f16, store_bf16, store_q8_0}, \
        .sum = k_sum, .sum_squares = k_sum_squares, .squares = k_squares, .dots = k_dots, .accumulate = k_accumulate, .page_softmax = k_page_softmax, .merge = k_merge, \
        .add = k_add, .axpy = k_axpy, .normalise = k_normalise, .exp = k_exp, .act = k_act, .gated = k_gated, .softcap = k_softcap, .decay = k_decay, \
        .rope = k_rope, .turns = k_turns, .conv = k_conv, .delta = k_delta, \
    }
