/* Attention over a page, in every element type: what is stored, and what a query gets, at every level: the bits of kernels.h's words written out
 * plainly, near double precision; nothing that a query doesn't see matters, not even a NaN.
 * --bench: the speed of full pages, on one thread at the best level. */
#include "kern.h"
#include "base/threads.h"
#include "kernels/lane_bf16.h"

static const lm_kernels *level[3];
static uint32_t n_levels;
static int setup(void **state) {
    n_levels = kern_levels(level);
    return kern_print_seed(state);
}

/* ---- storing ---------------------------------------------------------------------------------------------------------------------*/
typedef struct page {
    lm_kv type;
    uint32_t dk, dv;
    size_t bytes, keys;
    uint8_t *at; /* ends at a guard page */
} page;
static page new_page(lm_kv type, uint32_t dk, uint32_t dv) {
    page p = {type, dk, dv, lm_kv_keys(type, dk) + lm_kv_values(type, dv), lm_kv_keys(type, dk), NULL};
    assert_int_equal(p.bytes % 64, 0);
    p.at = kern_guard(p.bytes);
    memset(p.at, 0xff, p.bytes); /* NaNs of every type, in the scales too */
    return p;
}
static void store(const lm_kernels *k, const page *p, const float *x, size_t ld, uint32_t n, uint32_t at) {
    const lm_kv_rows r = {x, x + p->dk, ld, ld, n, at, p->dk, p->dv, p->at, p->at + p->keys};
    k->store[p->type](&r);
}
static float half_at(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return lm_f16_to_f32(h);
}
/* Position `at` as floats, read out of its row. */
static void load(const page *p, uint32_t at, float *out) {
    uint8_t row[4 * 600 + 80];
    const uint32_t n[2] = {p->dk, p->dv};
    assert_true(lm_kv_row(p->type, p->dk, p->dv) <= sizeof row);
    lm_kv_get(p->type, p->at, p->at + p->keys, p->dk, p->dv, at, row);
    const uint8_t *b = row;
    for (int part = 0; part < 2; part++) {
        for (uint32_t d = 0; d < n[part]; d++, out++) switch (p->type) {
            case LM_KV_F32: memcpy(out, b + 4 * d, 4); break;
            case LM_KV_F16: *out = half_at(b + 2 * d); break;
            case LM_KV_BF16: *out = lm_bf16_to_f32((uint16_t)(b[2 * d] | b[2 * d + 1] << 8)); break;
            default: *out = (float)(int8_t)b[d] * half_at(b + n[part] + 2 * (d / 32));
            }
        b += p->type == LM_KV_Q8_0 ? n[part] + 2 * lm_kv_spans(n[part]) : n[part] * lm_kv_elem(p->type);
    }
}
static void should_hold(lm_kv type, const float *x, uint32_t n, uint32_t d, float got) {
    float want = x[d];
    if (type == LM_KV_F16) want = lm_f16_to_f32(lm_f32_to_f16(want));
    if (type == LM_KV_BF16) want = lm_bf16_to_f32(lm_f32_to_bf16(want));
    if (type == LM_KV_Q8_0) {
        const uint32_t b = d / 32 * 32, m = n - b < 32 ? n - b : 32;
        float most = 0;
        bool odd = false;
        for (uint32_t i = 0; i < m; i++) {
            most = fabsf(x[b + i]) > most ? fabsf(x[b + i]) : most;
            odd = odd || !isfinite(x[b + i]);
        }
        const float scale = lm_f16_to_f32(lm_f32_to_f16(most / 127));
        want = odd || isinf(scale) ? NAN : scale == 0 ? 0 : fmaxf(-127, fminf(127, rintf(want / scale))) * scale;
    }
    if (memcmp(&want, &got, 4) != 0 && !(isnan(want) && isnan(got)) && !(want == 0 && got == 0))
        fail_msg("%s: %a was stored as %a, not %a", lm_kv_name(type), (double)x[d], (double)got, (double)want);
}
static void stores(void **state) {
    (void)state;
    static const uint32_t dims[][2] = {{64, 64}, {1, 1}, {80, 128}, {20, 24}, {33, 16}, {256, 200}};
    for (lm_kv type = 0; type < LM_KV_BF16X2; type++) /* lane bf16's: test_attend_bf16.c */
        for (int turn = 0; turn < 6; turn++) {
            const uint32_t dk = dims[turn][0], dv = dims[turn][1], ld = dk + dv + turn;
            float *x = malloc(sizeof *x * 256 * ld), *y = malloc(sizeof *x * (dk + dv));
            for (uint32_t i = 0; i < 256 * ld; i++) x[i] = kern_normal() * (i % 7 ? 1.0f : 1e-6f);
            static const float odd[] = {INFINITY, -INFINITY, NAN, 65519.0f, 65520.0f, -3e38f, 0x1p-149f, 0x1p-25f, 0x1.8p-24f, 3.3895e38f, 9e6f};
            for (uint32_t i = 0; i < 11; i++) x[(3 + 11 * i) * ld + i % dk] = odd[i];
            memset(x + 7 * ld, 0, sizeof *x * (dk + dv));
            page p[3] = {0};
            for (uint32_t l = 0; l < n_levels; l++) {
                p[l] = new_page(type, dk, dv);
                for (uint32_t at = 0, n; at < 256; at += n) { /* in pieces of every size: the same bytes */
                    n = l ? 1 + kern_below(60) : 1;
                    n = n < 256 - at ? n : 256 - at;
                    store(level[l], &p[l], x + at * ld, ld, n, at);
                }
                for (uint32_t at = 0; at < 256; at++) {
                    load(&p[l], at, y);
                    for (uint32_t d = 0; d < dk + dv; d++) should_hold(type, d < dk ? x + at * ld : x + at * ld + dk, d < dk ? dk : dv, d < dk ? d : d - dk, y[d]);
                    uint8_t a[4 * 600 + 80], b[sizeof a];
                    lm_kv_get(type, p[0].at, p[0].at + p[0].keys, dk, dv, at, a);
                    lm_kv_get(type, p[l].at, p[l].at + p[l].keys, dk, dv, at, b);
                    if (memcmp(a, b, lm_kv_row(type, dk, dv)) != 0) fail_msg("%s, %s: position %u", lm_kv_name(type), level[l]->level, at);
                }
            }
            page copy = new_page(type, dk, dv);
            for (uint32_t at = 0; at < 256; at++) { /* out and in again */
                uint8_t a[4 * 600 + 80], b[sizeof a];
                lm_kv_get(type, p[0].at, p[0].at + p[0].keys, dk, dv, at, a);
                lm_kv_put(type, copy.at, copy.at + copy.keys, dk, dv, at, a);
                lm_kv_get(type, copy.at, copy.at + copy.keys, dk, dv, at, b);
                assert_memory_equal(a, b, lm_kv_row(type, dk, dv));
            }
            kern_guard_free(copy.at, copy.bytes);
            for (uint32_t l = 0; l < n_levels; l++) kern_guard_free(p[l].at, p[l].bytes);
            free(x), free(y);
        }
}

/* ---- attention -------------------------------------------------------------------------------------------------------------------*/
static float plain_exp(float x) {
    if (x < -87) x = -87;
    const float t = fmaf(x, 0x1.715476p+0f, 12582912.0f), n = t - 12582912.0f, r = fmaf(n, -0x1.7f7d1cp-20f, fmaf(n, -0x1.62e4p-1f, x));
    const float q = fmaf(fmaf(fmaf(fmaf(0.0013950471f, r, 0.008368883f), r, 0.041666206f), r, 0.16666518f), r, 0.5f);
    return ldexpf(fmaf(r * r, q, r) + 1, (int)n);
}
/* One query: kernels.h's words. kv: [256][dk + dv]; seen: [256]. Far: the worst distance from double precision, in units of its bound. */
static double plain(const float *q, const float *kv, const uint8_t *seen, uint32_t dk, uint32_t dv, float scale, float cap, float *m, float *l, float *o) {
    float s[256], lane[16] = {0}, top = -INFINITY;
    double exact[256], most = -INFINITY, sum = 0, far = 0, err = 0;
    for (uint32_t j = 0; j < 256; j++) {
        if (!seen[j]) continue;
        const float *k = kv + (size_t)j * (dk + dv);
        double size = 0;
        exact[j] = 0;
        for (uint32_t d0 = 0; d0 < dk; d0 += 32) {
            float blk = 0;
            for (uint32_t d = d0; d < dk && d < d0 + 32; d++) {
                blk = fmaf(q[d], k[d], blk);
                exact[j] += (double)q[d] * k[d], size += fabs((double)q[d] * k[d]);
            }
            s[j] = d0 ? s[j] + blk : blk;
        }
        if (!(fabs(s[j] - exact[j]) <= (32 + dk / 32 + 2) * 0x1p-24 * size)) fail_msg("a score is %g, not %g", (double)s[j], exact[j]);
        err = fmax(err, fabs(s[j] - exact[j]) * scale);
        exact[j] *= scale;
        if (cap != 0) {
            const float x = s[j] * scale;
            level[0]->softcap(&s[j], &x, cap, 1);
            exact[j] = cap * tanh(exact[j] / cap);
        }
        top = s[j] > top ? s[j] : top;
        most = fmax(most, exact[j]);
    }
    const float by = cap != 0 ? 1 : scale;
    *m = top * by;
    for (uint32_t j = 0; j < 256; j++) {
        if (!seen[j]) continue;
        s[j] = plain_exp(fmaf(s[j], by, -*m));
        lane[j % 16] += s[j];
        sum += exact[j] = exp(exact[j] - most);
    }
    for (int h = 8; h; h /= 2)
        for (int i = 0; i < h; i++) lane[i] += lane[i + h];
    *l = lane[0];
    const double tol = 2 * err + 8 * 0x1p-24 * (1 + fabs(most)); /* relative, of a weight */
    if (!(fabs(*l - sum) <= (tol + 20 * 0x1p-24) * sum)) fail_msg("l is %g, not %g", (double)*l, sum);
    for (uint32_t d = 0; d < dv; d++) {
        double want = 0, size = 0;
        o[d] = 0;
        for (uint32_t b = 0; b < 256; b += 32) {
            float blk = 0;
            for (uint32_t j = b; j < b + 32; j++) {
                if (!seen[j]) continue;
                const float v = kv[(size_t)j * (dk + dv) + dk + d];
                blk = fmaf(s[j], v, blk);
                want += exact[j] * v, size += exact[j] * fabs((double)v);
            }
            o[d] = o[d] + blk;
        }
        far = fmax(far, fabs(o[d] - want) / ((tol + 42 * 0x1p-24) * size + 1e-36));
    }
    return far;
}
static void check(lm_kv type, uint32_t dk, uint32_t dv, uint32_t n, float cap, bool listed) {
    const uint32_t last = 1 + kern_below(256), padded = lm_kv_spans(dv) * 32;
    float *x = malloc(sizeof *x * 256 * (dk + dv)), *q = malloc(sizeof *q * n * dk), *want = malloc(sizeof *x * n * (padded + 2));
    uint8_t keep[256], seen[12][256];
    uint32_t lo[12], hi[12], step = kern_below(3), window = kern_below(2) ? 1 + kern_below(256) : 256;
    const bool positive = kern_below(2);
    for (uint32_t i = 0; i < 256 * (dk + dv); i++) x[i] = positive ? fabsf(kern_normal()) : kern_normal();
    for (uint32_t i = 0; i < n * dk; i++) q[i] = kern_normal();
    for (uint32_t j = 0; j < 256; j++) keep[j] = kern_below(3) == 0;
    for (uint32_t i = 0; i < n; i++) {
        hi[i] = last + i * step < 256 ? last + i * step : 256;
        lo[i] = hi[i] > window ? hi[i] - window : 0;
        keep[lo[i] + kern_below(hi[i] - lo[i])] = 1;
    }
    if (n > 2 && kern_below(3) == 0) lo[0] = 0, hi[0] = 0; /* one that sees nothing */
    if (type != LM_KV_Q8_0 && kern_below(3) == 0) /* what only some see may not be finite: the others' sums stay what they are */
        x[(size_t)(kern_below(2) ? hi[n - 1] - 1 : lo[n / 2]) * (dk + dv) + dk + kern_below(dv)] = INFINITY;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < 256; j++) seen[i][j] = j >= lo[i] && j < hi[i] && (!listed || keep[j]);
    const float scale = 1.3f / sqrtf((float)dk);
    for (uint32_t l = 0; l < n_levels; l++) {
        page p = new_page(type, dk, dv);
        for (uint32_t j = 0; j < 256; j++) /* only what somebody sees is there */
            for (uint32_t i = 0; i < n; i++)
                if (seen[i][j]) {
                    store(level[l], &p, x + (size_t)j * (dk + dv), dk + dv, 1, j);
                    break;
                }
        const uint32_t at_once = level[l]->attend_n, each = at_once < 1 + kern_below(12) ? at_once : 1 + kern_below(at_once);
        for (uint32_t i0 = 0, k; i0 < n; i0 += k) {
            k = n - i0 < each ? n - i0 : each;
            bool any = false;
            for (uint32_t i = 0; i < k; i++) any = any || lo[i0 + i] < hi[i0 + i];
            if (!any) continue;
            const size_t qn = sizeof(float) * k * lm_kv_spans(dk) * 32, sn = sizeof(float) * 256 * k, on = sizeof(float) * k * padded;
            float *qp = kern_guard(qn), *s = kern_guard(sn), *o = kern_guard(on), m[12], sum[12];
            memset(qp, 0xff, qn);
            for (uint32_t i = 0; i < k; i++)
                for (uint32_t d = 0; d < dk; d++) qp[(d / 32 * k + i) * 32 + d % 32] = q[(i0 + i) * dk + d];
            memset(s, 0xff, sn), memset(o, 0xff, on);
            const lm_attend a = {.n = k, .dk = dk, .dv = dv, .q = qp, .lo = lo + i0, .hi = hi + i0, .keep = listed ? keep : NULL, .keys = p.at,
                                 .values = p.at + p.keys, .scale = scale, .softcap = cap, .s = s, .m = m, .l = sum, .o = o, .ldo = padded};
            level[l]->attend[type](&a);
            for (uint32_t i = 0; i < k; i++) {
                if (lo[i0 + i] >= hi[i0 + i]) continue;
                float *w = want + (size_t)(i0 + i) * (padded + 2);
                if (l == 0) {
                    float *kv = malloc(sizeof *kv * 256 * (dk + dv));
                    for (uint32_t j = 0; j < 256; j++) load(&p, j, kv + (size_t)j * (dk + dv));
                    const double far = plain(q + (i0 + i) * dk, kv, seen[i0 + i], dk, dv, scale, cap, w, w + 1, w + 2);
                    if (!(far <= 1)) fail_msg("%s dk %u dv %u: %.2f times as far from double precision as the bound", lm_kv_name(type), dk, dv, far);
                    free(kv);
                }
                char what[120];
                snprintf(what, sizeof what, "%s %s dk %u dv %u query %u of %u, cap %g, list %d", lm_kv_name(type), level[l]->level, dk, dv, i0 + i, n,
                         (double)cap, listed);
                ASSERT_SAME(w, &m[i], 1u, what);
                ASSERT_SAME(w + 1, &sum[i], 1u, what);
                ASSERT_SAME(w + 2, o + (size_t)i * padded, (size_t)dv, what);
            }
            kern_guard_free(qp, qn), kern_guard_free(s, sn), kern_guard_free(o, on);
        }
        kern_guard_free(p.at, p.bytes);
    }
    free(x), free(q), free(want);
}
static void attends(void **state) {
    (void)state;
    static const uint32_t dims[][2] = {{64, 64}, {1, 1}, {80, 128}, {20, 24}, {33, 16}, {256, 200}, {128, 128}};
    for (lm_kv type = 0; type < LM_KV_BF16X2; type++) /* lane bf16's: test_attend_bf16.c */
        for (int turn = 0; turn < 42; turn++) check(type, dims[turn % 7][0], dims[turn % 7][1], 1 + turn % 12, turn % 3 == 2 ? 1.5f : 0, turn % 5 == 4);
}
/* What a weight is: over the whole range, against double precision. */
static void weights(void **state) {
    (void)state;
    double worst = 0;
    for (int turn = 0; turn < 400; turn++) {
        page p = new_page(LM_KV_F32, 1, 1);
        const float one = 1;
        float x[2] = {0, 1}, s[256], m, l, o[32];
        const uint32_t lo = 0, hi = 2;
        const float gap = turn < 300 ? (float)turn * 0.3f : (float)exp(-0.1 * (turn - 300));
        store(level[0], &p, x, 2, 1, 0);
        x[0] = -gap;
        store(level[0], &p, x, 2, 1, 1);
        const lm_attend a = {.n = 1, .dk = 1, .dv = 1, .q = &one, .lo = &lo, .hi = &hi, .keys = p.at, .values = p.at + p.keys, .scale = 1, .s = s, .m = &m,
                             .l = &l, .o = o, .ldo = 32};
        for (uint32_t i = 0; i < n_levels; i++) {
            level[i]->attend[LM_KV_F32](&a);
            assert_true(s[0] == 1 && m == 0);
            const double want = exp(-fmin((double)gap, 87));
            worst = fmax(worst, fabs(s[1] - want) / want);
        }
        kern_guard_free(p.at, p.bytes);
    }
    if (worst > 1.3e-7) fail_msg("a weight is off by %g of itself", worst);
}

/* ---- --bench ---------------------------------------------------------------------------------------------------------------------*/
/* Seconds of full pages by n queries, the best of some tries. */
static double bench_page(lm_kv type, uint32_t n, void (*attend)(const lm_attend *), void (*put)(const lm_kv_rows *), uint32_t dk, uint32_t dv) {
    enum { PAGES = 2, TURNS = 40, TRIES = 25 };
    float *x = malloc(sizeof *x * 256 * (dk + dv)), *q = malloc(sizeof *q * n * dk), *s = malloc(sizeof *s * 256 * n), *o = malloc(sizeof *o * n * dv);
    float m[12], l[12];
    uint32_t lo[12] = {0}, hi[12];
    for (uint32_t i = 0; i < n; i++) hi[i] = 256;
    for (uint32_t i = 0; i < 256 * (dk + dv); i++) x[i] = kern_normal();
    for (uint32_t i = 0; i < n * dk; i++) q[i] = kern_normal();
    page p[PAGES];
    for (int i = 0; i < PAGES; i++) {
        p[i] = new_page(type, dk, dv);
        const lm_kv_rows r = {x, x + dk, dk + dv, dk + dv, 256, 0, dk, dv, p[i].at, p[i].at + p[i].keys};
        put(&r);
    }
    double best = 1e9;
    for (int try = 0; try < TRIES; try++) {
        const double t = lm_now();
        for (int turn = 0; turn < TURNS; turn++) {
            const page *at = &p[turn % PAGES];
            const lm_attend a = {.n = n, .dk = dk, .dv = dv, .q = q, .lo = lo, .hi = hi, .keys = at->at, .values = at->at + at->keys, .scale = 0.1f, .s = s,
                                 .m = m, .l = l, .o = o, .ldo = dv};
            attend(&a);
        }
        best = fmin(best, (lm_now() - t) / TURNS);
    }
    for (int i = 0; i < PAGES; i++) kern_guard_free(p[i].at, p[i].bytes);
    free(x), free(q), free(s), free(o);
    return best;
}
static int bench(void) {
    const lm_kernels *k = level[kern_levels(level) - 1];
    const lm_bf16_kernels *pairs = lm_bf16_pick(k, NULL);
    static const uint32_t dims[] = {64, 128, 256};
    for (lm_kv type = 0; type < LM_KV_COUNT; type++) {
        const bool own = type == LM_KV_BF16X2;
        const uint32_t n = own ? LM_BF16_QUERIES : k->attend_n;
        printf("%s, %s%s, GFLOPS of full pages by %u queries:", own ? pairs->level : k->level, lm_kv_name(type), own ? " in bfloat16" : "", n);
        for (int i = 0; i < 3; i++)
            printf("  %u: %.1f", dims[i],
                   4e-9 * 256 * dims[i] * n / bench_page(type, n, own ? pairs->attend : k->attend[type], own ? pairs->store : k->store[type], dims[i], dims[i]));
        printf("\n");
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) return bench();
    const struct CMUnitTest tests[] = {cmocka_unit_test(stores), cmocka_unit_test(attends), cmocka_unit_test(weights)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
