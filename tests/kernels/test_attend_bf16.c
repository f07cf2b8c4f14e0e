/* Lane bf16's attention over a page: what is stored, and what a query gets, at every level: the bits of lane_bf16.h's words written out plainly, near
 * double precision; every level as plain C where a product's edge decides; nothing that a query doesn't see matters, not even a NaN. */
#include "kern.h"
#include "kernels/lane_bf16.h"

/* ---- storing ---------------------------------------------------------------------------------------------------------------------*/
typedef struct page {
    uint32_t dk, dv;
    size_t bytes, keys;
    uint8_t *at; /* ends at a guard page */
} page;
static page new_page(uint32_t dk, uint32_t dv) {
    page p = {dk, dv, lm_kv_keys(LM_KV_BF16X2, dk) + lm_kv_values(LM_KV_BF16X2, dv), lm_kv_keys(LM_KV_BF16X2, dk), NULL};
    assert_int_equal(p.bytes % 64, 0);
    p.at = kern_guard(p.bytes);
    memset(p.at, 0xff, p.bytes); /* NaNs */
    return p;
}
static void store(const lm_bf16_kernels *k, const page *p, const float *x, size_t ld, uint32_t n, uint32_t at) {
    const lm_kv_rows r = {x, x + p->dk, ld, ld, n, at, p->dk, p->dv, p->at, p->at + p->keys};
    k->store(&r);
}
static void load_row(const page *p, uint32_t at, uint16_t *row) { lm_kv_get(LM_KV_BF16X2, p->at, p->at + p->keys, p->dk, p->dv, at, (uint8_t *)row); }
static void load(const page *p, uint32_t at, float *out) {
    uint16_t row[600];
    load_row(p, at, row);
    for (uint32_t d = 0; d < p->dk + p->dv; d++) out[d] = lm_bf16_to_f32(row[d]);
}
static uint16_t rounded(float x) {
    const uint32_t u = lm_f32_bits(x);
    return (u & 0x7f800000u) == 0 ? (uint16_t)(u >> 16 & 0x8000u) : lm_f32_to_bf16(x);
}
static void stores(void **state) {
    (void)state;
    static const uint32_t dims[][2] = {{64, 64}, {1, 1}, {80, 128}, {20, 24}, {33, 16}, {320, 200}};
    for (int turn = 0; turn < 6; turn++) {
        const uint32_t dk = dims[turn][0], dv = dims[turn][1], n = dk + dv, ld = n + turn;
        float *x = malloc(sizeof *x * 256 * ld);
        for (uint32_t i = 0; i < 256 * ld; i++) x[i] = kern_normal() * (i % 7 ? 1.0f : 1e-6f);
        static const float odd[] = {INFINITY, -INFINITY, NAN, -3e38f, 0x1p-149f, -0x1p-127f, 0x1.fep-127f, 3.3895e38f};
        for (uint32_t i = 0; i < 8; i++) x[(3 + 11 * i) * ld + i % dk] = x[(4 + 11 * i) * ld + dk + i % dv] = odd[i];
        uint16_t a[600], b[600];
        for (uint32_t l = 0; lm_bf16_nth(l); l++) {
            page p = new_page(dk, dv), copy = new_page(dk, dv);
            for (uint32_t at = 0, m; at < 256; at += m) { /* in pieces of every size */
                m = l ? 1 + kern_below(60) : 1;
                m = m < 256 - at ? m : 256 - at;
                store(lm_bf16_nth(l), &p, x + at * ld, ld, m, at);
            }
            for (uint32_t at = 0; at < 256; at++) {
                load_row(&p, at, a);
                for (uint32_t d = 0; d < n; d++)
                    if (a[d] != rounded(x[at * ld + d])) fail_msg("%s: %a was stored as %04x", lm_bf16_nth(l)->level, (double)x[at * ld + d], a[d]);
                lm_kv_put(LM_KV_BF16X2, copy.at, copy.at + copy.keys, dk, dv, at, (const uint8_t *)a);
            }
            for (uint32_t at = 0; at < 256; at++) { /* out and in again */
                load_row(&p, at, a), load_row(&copy, at, b);
                assert_memory_equal(a, b, n * sizeof *a);
            }
            assert_memory_equal(copy.at, p.at, p.keys); /* an odd dk's zeros too */
            for (uint32_t d = 0; d < n; d++) a[d] = d % 2 ? 0x8001 : 0x007f; /* a file may hold subnormals */
            lm_kv_put(LM_KV_BF16X2, copy.at, copy.at + copy.keys, dk, dv, 9, (const uint8_t *)a);
            load_row(&copy, 9, b);
            for (uint32_t d = 0; d < n; d++) assert_int_equal(b[d], d % 2 ? 0x8000 : 0);
            kern_guard_free(p.at, p.bytes), kern_guard_free(copy.at, copy.bytes);
        }
        free(x);
    }
}

/* ---- attention -------------------------------------------------------------------------------------------------------------------*/
static float plain_weight(float y) {
    if (y < -125) y = -125;
    const float n = rintf(y), r = y - n;
    const float c = fmaf(fmaf(fmaf(fmaf(0x1.3a02ccp-7f, r, 0x1.c9fc46p-5f), r, 0x1.ec0378p-3f), r, 0x1.62e12cp-1f), r, 1);
    return lm_bf16_to_f32(lm_f32_to_bf16(ldexpf(c, (int)n)));
}
/* One query: lane_bf16.h's words, for numbers that no flush meets. kv: [256][dk + dv]; seen: [256]. Far: the worst distance from double precision over
 * the same bfloat16 numbers, in units of its bound. */
static double plain(const float *q, const float *kv, const uint8_t *seen, uint32_t dk, uint32_t dv, float scale, float cap, float *m, float *l, float *o) {
    float s[256], p[256] = {0}, lane[16] = {0}, top = -INFINITY;
    double exact[256], most = -INFINITY, sum = 0, far = 0, err = 0;
    const lm_kernels *c;
    assert_int_equal(lm_kernels_pick("c", &c, NULL), LM_OK);
    for (uint32_t j = 0; j < 256; j++) {
        if (!seen[j]) continue;
        const float *k = kv + (size_t)j * (dk + dv);
        double size = 0;
        exact[j] = 0;
        for (uint32_t d0 = 0; d0 < dk; d0 += 256) {
            float blk = 0;
            for (uint32_t d = d0; d < dk && d < d0 + 256; d += 2) {
                blk = d + 1 < dk ? fmaf(q[d + 1], k[d + 1], blk) : blk + 0.0f;
                blk = fmaf(q[d], k[d], blk);
            }
            s[j] = d0 ? s[j] + blk : blk;
        }
        for (uint32_t d = 0; d < dk; d++) exact[j] += (double)q[d] * k[d], size += fabs((double)q[d] * k[d]);
        if (!(fabs(s[j] - exact[j]) <= (dk + 2) * 0x1p-24 * size)) fail_msg("a score is %g, not %g", (double)s[j], exact[j]);
        err = fmax(err, fabs(s[j] - exact[j]) * scale);
        exact[j] *= scale;
        if (cap != 0) {
            const float x = s[j] * scale;
            c->softcap(&s[j], &x, cap, 1);
            exact[j] = cap * tanh(exact[j] / cap);
        }
        top = s[j] > top ? s[j] : top;
        most = fmax(most, exact[j]);
    }
    const float by = cap != 0 ? 1 : scale, by2 = by * 0x1.715476p+0f;
    *m = top * by;
    for (uint32_t j = 0; j < 256; j++) {
        if (!seen[j]) continue;
        p[j] = plain_weight(fmaf(s[j], by2, -(top * by2)));
        sum += exact[j] = exp(exact[j] - most);
    }
    for (uint32_t j = 0; j < 256; j += 2) lane[j / 2 % 16] = lane[j / 2 % 16] + p[j + 1] + p[j];
    for (int h = 8; h; h /= 2)
        for (int i = 0; i < h; i++) lane[i] += lane[i + h];
    *l = lane[0];
    const double tol = 0x1p-8 + 3e-6 + 2 * err + 8 * 0x1p-24 * (1 + fabs(most)); /* relative, of a weight */
    if (!(fabs(*l - sum) <= (tol + 20 * 0x1p-24) * sum)) fail_msg("l is %g, not %g", (double)*l, sum);
    for (uint32_t d = 0; d < dv; d++) {
        double want = 0, size = 0;
        float blk = 0;
        for (uint32_t j = 0; j < 256; j += 2)
            for (uint32_t h = 2; h-- > 0;) {
                const float v = seen[j + h] ? kv[(size_t)(j + h) * (dk + dv) + dk + d] : 0;
                blk = fmaf(v, p[j + h], blk);
                if (seen[j + h]) want += exact[j + h] * v, size += exact[j + h] * fabs((double)v);
            }
        o[d] = 0 + blk;
        far = fmax(far, fabs(o[d] - want) / ((tol + 256 * 0x1p-24) * size + 1e-36));
    }
    return far;
}
static bool same_or_nan(const float *a, const float *b, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, sizeof *a) != 0 && !(isnan(a[i]) && isnan(b[i]))) return false;
    return true;
}
/* k queries by one level: results [k][padded + 2], m and l behind a query's values. */
static void attend(const lm_bf16_kernels *level, const page *p, const uint16_t *q, uint32_t k, const uint32_t *lo, const uint32_t *hi, const uint8_t *keep,
                   float scale, float cap, float *out) {
    const uint32_t pairs = (p->dk + 1) / 2, padded = lm_kv_spans(p->dv) * 32;
    const size_t qn = 4 * (size_t)pairs * k, sn = sizeof(float) * 256 * k, on = sizeof(float) * k * padded;
    uint16_t *qp = kern_guard(qn);
    float *s = kern_guard(sn), *o = kern_guard(on), m[12], sum[12];
    for (uint32_t i = 0; i < k; i++)
        for (uint32_t d = 0; d < 2 * pairs; d++) qp[(d / 2 * k + i) * 2 + d % 2] = d < p->dk ? q[i * p->dk + d] : 0;
    memset(s, 0xff, sn), memset(o, 0xff, on);
    const lm_attend a = {.n = k, .dk = p->dk, .dv = p->dv, .q = qp, .lo = lo, .hi = hi, .keep = keep, .keys = p->at, .values = p->at + p->keys,
                         .scale = scale, .softcap = cap, .s = s, .m = m, .l = sum, .o = o, .ldo = padded};
    level->attend(&a);
    for (uint32_t i = 0; i < k; i++, out += padded + 2) {
        memcpy(out, o + (size_t)i * padded, sizeof *o * padded);
        out[padded] = m[i], out[padded + 1] = sum[i];
    }
    kern_guard_free(qp, qn), kern_guard_free(s, sn), kern_guard_free(o, on);
}
static void check(uint32_t dk, uint32_t dv, uint32_t n, float cap, bool listed, bool edges) {
    const uint32_t last = 1 + kern_below(256), padded = lm_kv_spans(dv) * 32, each = padded + 2, ld = dk + dv;
    float *x = malloc(sizeof *x * 256 * ld), *kv = malloc(sizeof *x * 256 * ld), *want = malloc(sizeof *x * n * each), *got = malloc(sizeof *x * 12 * each);
    float *qf = malloc(sizeof *qf * n * dk);
    uint16_t *q = malloc(sizeof *q * n * dk);
    uint8_t keep[256], seen[12][256];
    uint32_t lo[12], hi[12], step = kern_below(3), window = kern_below(2) ? 1 + kern_below(256) : 256;
    const bool positive = kern_below(2);
    for (uint32_t i = 0; i < 256 * ld; i++) x[i] = positive ? fabsf(kern_normal()) : kern_normal();
    for (uint32_t j = 0; edges && j < 256; j++) /* by weights down to 2^-100 */
        for (uint32_t d = dk; d < ld; d++) x[j * ld + d] *= ldexpf(1, -50 - (int)kern_below(75));
    for (uint32_t i = 0; i < n * dk; i++) q[i] = rounded(kern_normal()), qf[i] = lm_bf16_to_f32(q[i]);
    for (uint32_t j = 0; j < 256; j++) keep[j] = kern_below(3) == 0;
    for (uint32_t i = 0; i < n; i++) {
        hi[i] = last + i * step < 256 ? last + i * step : 256;
        lo[i] = hi[i] > window ? hi[i] - window : 0;
        keep[lo[i] + kern_below(hi[i] - lo[i])] = 1;
    }
    if (n > 2 && kern_below(3) == 0) lo[0] = 0, hi[0] = 0; /* one that sees nothing */
    if (kern_below(3) == 0) /* what only some see may not be finite: the others' sums stay what they are */
        x[(size_t)(kern_below(2) ? hi[n - 1] - 1 : lo[n / 2]) * ld + dk + kern_below(dv)] = INFINITY;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < 256; j++) seen[i][j] = j >= lo[i] && j < hi[i] && (!listed || keep[j]);
    const float scale = (edges ? 30.0f : 1.3f) / sqrtf((float)dk);
    for (uint32_t l = 0; lm_bf16_nth(l); l++) {
        const lm_bf16_kernels *level = lm_bf16_nth(l);
        page p = new_page(dk, dv);
        for (uint32_t j = 0; j < 256; j++) /* only what somebody sees is there */
            for (uint32_t i = 0; i < n; i++)
                if (seen[i][j]) {
                    store(level, &p, x + (size_t)j * ld, ld, 1, j);
                    break;
                }
        for (uint32_t j = 0; j < 256; j++) load(&p, j, kv + (size_t)j * ld);
        for (uint32_t i = 0; l == 0 && i < n; i++) {
            float *w = want + (size_t)i * each;
            if (lo[i] >= hi[i]) continue;
            attend(level, &p, q + i * dk, 1, lo + i, hi + i, listed ? keep : NULL, scale, cap, w);
            if (edges) continue;
            float own[300], m, sum;
            const double far = plain(qf + i * dk, kv, seen[i], dk, dv, scale, cap, &m, &sum, own);
            if (!(far <= 1) && isfinite(far)) fail_msg("dk %u dv %u: %.2f times as far from double precision as the bound", dk, dv, far);
            if (!same_or_nan(own, w, dv) || !same_or_nan(&m, w + padded, 1) || !same_or_nan(&sum, w + padded + 1, 1))
                fail_msg("dk %u dv %u query %u of %u, cap %g, list %d: not the contract's words", dk, dv, i, n, (double)cap, listed);
        }
        const uint32_t some = 1 + kern_below(12);
        for (uint32_t i0 = 0, k; i0 < n; i0 += k) {
            k = n - i0 < some ? n - i0 : some;
            bool any = false;
            for (uint32_t i = 0; i < k; i++) any = any || lo[i0 + i] < hi[i0 + i];
            if (!any) continue;
            attend(level, &p, q + i0 * dk, k, lo + i0, hi + i0, listed ? keep : NULL, scale, cap, got);
            for (uint32_t i = 0; i < k; i++) {
                if (lo[i0 + i] >= hi[i0 + i]) continue;
                const float *a = want + (size_t)(i0 + i) * each, *b = got + (size_t)i * each;
                if (!same_or_nan(a, b, dv) || !same_or_nan(a + padded, b + padded, 2))
                    fail_msg("%s dk %u dv %u query %u of %u, cap %g, list %d, edges %d", level->level, dk, dv, i0 + i, n, (double)cap, listed, edges);
            }
        }
        kern_guard_free(p.at, p.bytes);
    }
    free(x), free(kv), free(q), free(qf), free(want), free(got);
}
static void attends(void **state) {
    (void)state;
    static const uint32_t dims[][2] = {{64, 64}, {1, 1}, {80, 128}, {20, 24}, {33, 16}, {320, 200}, {128, 128}};
    for (int turn = 0; turn < 84; turn++) check(dims[turn % 7][0], dims[turn % 7][1], 1 + turn % 12, turn % 3 == 2 ? 1.5f : 0, turn % 5 == 4, false);
    for (int turn = 0; turn < 24; turn++) check(dims[turn % 7][0], dims[turn % 7][1], 1 + turn % 12, 0, turn % 5 == 4, true);
}
/* The trial at start-up looks at attention too: one that is off by a bit is passed over. */
static void off_by_a_bit(const lm_attend *a) {
    lm_bf16_c.attend(a);
    a->o[a->ldo + 7] = nextafterf(a->o[a->ldo + 7], 1);
}
static void tried(void **state) {
    (void)state;
    lm_bf16_kernels k = lm_bf16_c;
    assert_true(lm_bf16_agrees(&k));
    k.attend = off_by_a_bit;
    assert_false(lm_bf16_agrees(&k));
    for (uint32_t l = 0; lm_bf16_nth(l); l++) assert_true(lm_bf16_agrees(lm_bf16_nth(l)));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(stores), cmocka_unit_test(attends), cmocka_unit_test(tried)};
    return cmocka_run_group_tests(tests, kern_print_seed, NULL);
}
