/* exp and what is built on it, sixteen lanes at a time, included once by each level after its v16.h. Errors measured over every float of the
 * useful range by tests/kernels/test_maths.c. NaN in, NaN out. */

/* e^x: x = n·ln 2 + r, |r| ≤ ln 2 / 2, in two exact steps; e^r = 1 + r + r²·q(r); times 2^n in two factors, so that a subnormal result is
 * rounded once. Below −104 the result is 0, above 89 infinity. */
#ifndef LM_ACTS
#define LM_ACTS 1 /* vectors that activations go side by side */
#endif
#define LM_SIDE(i, n) _Pragma("GCC unroll 8") for (int i = 0; i < (n); i++)
#ifndef LM_SCALE /* p·2^n of an integer n, which the number t holds in its low bits, rounded once */
LM_INLINE vf v_scale(vf p, vf t, vf n) {
    (void)n;
    const vi k = i_sub(v_bits(t), i_set(0x4b400000)), k1 = i_sra(k, 1), k2 = i_sub(k, k1);
    return v_mul(v_mul(p, v_float(i_sll(i_add(k1, i_set(127)), 23))), v_float(i_sll(i_add(k2, i_set(127)), 23)));
}
#endif
/* N at a time, step by step: what one waits for leaves time for the others. */
LM_INLINE void v_exps(int N, vf *x) {
    const vf magic = v_set(12582912.0f); /* 1.5·2^23: adding it rounds to an integer, to nearest even */
    vf t[LM_ACTS], n[LM_ACTS], q[LM_ACTS];
    LM_SIDE(i, N) x[i] = v_max(v_set(-104.0f), v_min(v_set(89.0f), x[i])); /* x second: a NaN stays */
    LM_SIDE(i, N) t[i] = v_fma(x[i], v_set(0x1.715476p+0f), magic);
    LM_SIDE(i, N) n[i] = v_sub(t[i], magic);
    LM_SIDE(i, N) x[i] = v_fma(n[i], v_set(-0x1.62e4p-1f), x[i]);
    LM_SIDE(i, N) x[i] = v_fma(n[i], v_set(-0x1.7f7d1cp-20f), x[i]);
    LM_SIDE(i, N) q[i] = v_fma(v_set(0.0013950471f), x[i], v_set(0.008368883f));
    LM_SIDE(i, N) q[i] = v_fma(q[i], x[i], v_set(0.041666206f));
    LM_SIDE(i, N) q[i] = v_fma(q[i], x[i], v_set(0.16666518f));
    LM_SIDE(i, N) q[i] = v_fma(q[i], x[i], v_set(0.5f));
    LM_SIDE(i, N) x[i] = v_add(v_fma(v_mul(x[i], x[i]), q[i], x[i]), v_set(1.0f));
    LM_SIDE(i, N) x[i] = v_scale(x[i], t[i], n[i]);
}
LM_INLINE vf v_exp(vf x) {
    v_exps(1, &x);
    return x;
}
LM_INLINE vf v_abs(vf x) { return v_float(i_and(v_bits(x), i_set(0x7fffffff))); }
LM_INLINE vf v_neg(vf x) { return v_sub(v_set(-0.0f), x); }
LM_INLINE vf v_sign_of(vf magnitude, vf x) { return v_float(i_or(v_bits(magnitude), i_and(v_bits(x), i_set(INT32_MIN)))); }

/* From e^−|x|, so that neither tail loses its last bits. */
LM_INLINE void v_sigmoids(int N, vf *x) {
    vf e[LM_ACTS];
    LM_SIDE(i, N) e[i] = v_neg(v_abs(x[i]));
    v_exps(N, e);
    LM_SIDE(i, N) x[i] = v_less(x[i], v_set(0.0f), e[i], v_set(1.0f));
    LM_SIDE(i, N) x[i] = v_div(x[i], v_add(v_set(1.0f), e[i]));
}
LM_INLINE vf v_sigmoid(vf x) {
    v_sigmoids(1, &x);
    return x;
}
/* max(x, 0) + log(1 + e), e = e^−|x| ≤ 1; log(1 + e) = 2·atanh(s), s = e / (2 + e) ≤ 1/3 */
LM_INLINE vf v_softplus(vf x) {
    vf e = v_exp(v_neg(v_abs(x)));
    vf s = v_div(e, v_add(v_set(2.0f), e)), z = v_mul(s, s);
    vf p = v_set(1.0f / 15);
    p = v_fma(p, z, v_set(1.0f / 13));
    p = v_fma(p, z, v_set(1.0f / 11));
    p = v_fma(p, z, v_set(1.0f / 9));
    p = v_fma(p, z, v_set(1.0f / 7));
    p = v_fma(p, z, v_set(1.0f / 5));
    p = v_fma(p, z, v_set(1.0f / 3));
    vf s2 = v_add(s, s);
    vf log1p = v_fma(v_mul(s2, z), p, s2);
    return v_add(v_max(v_set(0.0f), x), log1p);
}
LM_INLINE vf v_tanh(vf x) {
    vf a = v_abs(x), z = v_mul(a, a);
    vf p = v_set(-0.0057170587f);
    p = v_fma(p, z, v_set(0.020650601f));
    p = v_fma(p, z, v_set(-0.053743504f));
    p = v_fma(p, z, v_set(0.13331491f));
    p = v_fma(p, z, v_set(-0.33333284f));
    vf small = v_fma(v_mul(a, z), p, a);
    vf e = v_exp(v_mul(v_set(-2.0f), a));
    vf large = v_div(v_sub(v_set(1.0f), e), v_add(v_set(1.0f), e));
    return v_sign_of(v_less(a, v_set(0.625f), small, large), x);
}
/* x·Φ(x), the exact GELU: x/2 · erfc(−x/√2). erfc(u) = e^−u² · g(t) / (1 + 2u), t = (u − 2)/(u + 2), u = |x|/√2; u² = x²/2 is carried with its
 * rounding error so that the far tail keeps its bits. */
LM_INLINE vf v_gelu(vf x) {
    vf a = v_min(v_set(15.0f), v_abs(x)), u = v_mul(a, v_set(0.70710678f));
    vf t = v_div(v_sub(u, v_set(2.0f)), v_add(u, v_set(2.0f)));
    vf g = v_set(-0.0003908745f);
    g = v_fma(g, t, v_set(-0.0012141918f));
    g = v_fma(g, t, v_set(0.0013106747f));
    g = v_fma(g, t, v_set(0.0086185f));
    g = v_fma(g, t, v_set(-0.00806151f));
    g = v_fma(g, t, v_set(-0.054200828f));
    g = v_fma(g, t, v_set(0.1640559f));
    g = v_fma(g, t, v_set(-0.16603172f));
    g = v_fma(g, t, v_set(-0.09276401f));
    g = v_fma(g, t, v_set(1.2769784f));
    vf s = v_mul(a, a), lost = v_fma(a, a, v_neg(s)), half = v_set(0.5f);
    vf e = v_exp(v_neg(v_mul(half, s)));
    e = v_fma(v_neg(v_mul(half, lost)), e, e);
    vf erfc = v_div(v_mul(e, g), v_fma(v_set(2.0f), u, v_set(1.0f)));
    vf phi2 = v_less(x, v_set(0.0f), erfc, v_sub(v_set(2.0f), erfc)); /* 2·Φ(x) */
    return v_mul(v_mul(half, x), phi2);
}
/* x·σ(x), and x/2·(1 + tanh(z)) = x·σ(2z), z = √(2/π)·(x + 0.044715·x³) */
LM_INLINE void v_silus(int N, vf *x) {
    vf s[LM_ACTS];
    LM_SIDE(i, N) s[i] = x[i];
    v_sigmoids(N, s);
    LM_SIDE(i, N) x[i] = v_mul(x[i], s[i]);
}
LM_INLINE void v_gelu_tanhs(int N, vf *x) {
    vf z[LM_ACTS];
    LM_SIDE(i, N) z[i] = v_mul(v_set(1.5957691f), v_fma(v_mul(v_mul(x[i], x[i]), x[i]), v_set(0.044715f), x[i]));
    v_sigmoids(N, z);
    LM_SIDE(i, N) x[i] = v_mul(x[i], z[i]);
}
/* The kind is a constant where it is inlined. */
LM_INLINE vf v_act(lm_kact act, vf x) {
    switch (act) {
    case LM_KACT_SILU: v_silus(1, &x); return x;
    case LM_KACT_GELU: return v_gelu(x);
    case LM_KACT_GELU_TANH: v_gelu_tanhs(1, &x); return x;
    case LM_KACT_RELU: return v_max(v_set(0.0f), x);
    case LM_KACT_RELU2: return v_mul(v_max(v_set(0.0f), x), v_max(v_set(0.0f), x));
    case LM_KACT_SIGMOID: return v_sigmoid(x);
    case LM_KACT_TANH: return v_tanh(x);
    case LM_KACT_SOFTPLUS: return v_softplus(x);
    default: return x;
    }
}
/* N of them */
LM_INLINE void v_acts(lm_kact act, int N, vf *x) {
    switch (act) {
    case LM_KACT_SILU: v_silus(N, x); break;
    case LM_KACT_GELU_TANH: v_gelu_tanhs(N, x); break;
    default: LM_SIDE(i, N) x[i] = v_act(act, x[i]);
    }
}
