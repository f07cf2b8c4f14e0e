/* Sequence states without a backend: what is written in a page, after which calls it is still there, and what no failure may change. */
#include "backend/state.h"
#include "base/mem.h"
#include "check.h"
#include <stdio.h>
#include <stdlib.h>

enum { WINDOW = 300 };
static lm_cache_slot slots[3] = {{LM_CACHE_KV, 2, 3, 2, 0}, {LM_CACHE_KV, 1, 2, 2, WINDOW}, {LM_CACHE_DELTA, 2, 2, 3, 0}};
static lm_program kv = {.arch = "test", .slot = slots, .n_slots = 1}, windowed = {.arch = "test", .slot = slots + 1, .n_slots = 1},
                  hybrid = {.arch = "test", .slot = slots, .n_slots = 3};

/* Positions [length, length+n) are written with numbers that name slot, head, position and element, plus `mark`. */
static void grow(lm_state *s, const lm_program *p, uint32_t n, double mark) {
    assert_int_equal(lm_state_reserve(s, n, NULL), LM_OK);
    uint32_t from = lm_state_length(s);
    for (uint32_t i = 0; i < p->n_slots; i++) {
        const lm_cache_slot *c = &p->slot[i];
        if (c->kind == LM_CACHE_DELTA) {
            double *b = lm_state_block(s, i);
            for (uint32_t j = 0; j < c->heads * c->dk * c->dv; j++) b[j] += (double)n * (double)(j + 1);
            continue;
        }
        for (uint32_t t = from; t < from + n; t++)
            for (uint32_t h = 0; h < c->heads; h++) {
                double *k = (double *)lm_state_keys(s, i, t / LM_PAGE, h) + (t % LM_PAGE) * c->dk;
                double *v = (double *)lm_state_values(s, i, t / LM_PAGE, h) + (t % LM_PAGE) * c->dv;
                for (uint32_t j = 0; j < c->dk; j++) k[j] = (double)(t * 10 + h * 5 + j) + mark;
                for (uint32_t j = 0; j < c->dv; j++) v[j] = -(double)(t * 10 + h * 5 + j) - mark;
            }
    }
    lm_state_commit(s, n);
}
/* Are positions [from, to) as grow left them? */
static void holds(lm_state *s, const lm_program *p, uint32_t from, uint32_t to, double mark) {
    for (uint32_t i = 0; i < p->n_slots; i++) {
        const lm_cache_slot *c = &p->slot[i];
        if (c->kind == LM_CACHE_DELTA) {
            const double *b = lm_state_block(s, i);
            for (uint32_t j = 0; j < c->heads * c->dk * c->dv; j++) assert_true(b[j] == (double)lm_state_length(s) * (double)(j + 1));
            continue;
        }
        uint32_t length = lm_state_length(s), t = c->window && length > c->window ? length - c->window : 0;
        for (t = t > from ? t : from; t < to; t++)
            for (uint32_t h = 0; h < c->heads; h++) {
                const double *k = (double *)lm_state_keys(s, i, t / LM_PAGE, h) + (t % LM_PAGE) * c->dk;
                const double *v = (double *)lm_state_values(s, i, t / LM_PAGE, h) + (t % LM_PAGE) * c->dv;
                for (uint32_t j = 0; j < c->dk; j++) assert_true(k[j] == (double)(t * 10 + h * 5 + j) + mark);
                for (uint32_t j = 0; j < c->dv; j++) assert_true(v[j] == -(double)(t * 10 + h * 5 + j) - mark);
            }
    }
}
static lm_state *fresh(const lm_program *p) {
    lm_state *s = NULL;
    assert_int_equal(lm_state_create(p, &lm_cache_f64, &s, NULL), LM_OK);
    return s;
}

static void pages(void **state) {
    (void)state;
    lm_state *s = fresh(&kv);
    assert_int_equal(lm_state_length(s), 0);
    assert_null(lm_state_keys(s, 0, 0, 0));
    grow(s, &kv, 255, 0);
    grow(s, &kv, 1, 0);
    assert_null(lm_state_keys(s, 0, 1, 0));
    grow(s, &kv, 1, 0);
    assert_non_null(lm_state_keys(s, 0, 1, 1));
    assert_null(lm_state_keys(s, 0, 1, 2));
    grow(s, &kv, 600, 0);
    holds(s, &kv, 0, 857, 0);
    assert_int_equal(lm_state_bytes(s), 4 * 2 * 256 * 5 * sizeof(double));
    assert_int_equal((uintptr_t)lm_state_keys(s, 0, 3, 0) % 64, 0);
    assert_int_equal(lm_state_reserve(s, UINT32_MAX - 100, NULL), LM_RANGE);
    lm_state_free(s);
    lm_state_free(NULL);
}
static void truncation(void **state) {
    (void)state;
    const uint32_t at[] = {255, 256, 257, 511, 512, 513, 1, 0};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        lm_state *s = fresh(&kv);
        grow(s, &kv, 600, 0);
        lm_state_set_rope_set(s, 1);
        assert_int_equal(lm_state_truncate(s, 601, NULL), LM_STATE);
        assert_int_equal(lm_state_reachable(s, at[i]), at[i]);
        assert_int_equal(lm_state_truncate(s, at[i], NULL), LM_OK);
        assert_int_equal(lm_state_length(s), at[i]);
        assert_int_equal(lm_state_rope_set(s), at[i] ? 1 : -1);
        assert_int_equal(lm_state_bytes(s), (at[i] + 255) / 256 * 2 * 256 * 5 * sizeof(double));
        holds(s, &kv, 0, at[i], 0);
        grow(s, &kv, 300, 0.5f);
        holds(s, &kv, 0, at[i], 0);
        holds(s, &kv, at[i], at[i] + 300, 0.5f);
        lm_state_free(s);
    }
}
static void window(void **state) {
    (void)state;
    lm_state *s = fresh(&windowed);
    uint32_t lost = 0;
    for (uint32_t n = 0; n < 2000; n++) {
        grow(s, &windowed, 1, 0);
        while (lost < 9 && !lm_state_keys(s, 0, lost, 0)) lost++;
        uint32_t length = n + 1;
        assert_true(length < WINDOW || lost * LM_PAGE <= length - WINDOW + 1); /* what the next query sees is there */
        assert_true(length < LM_PAGE || lm_state_reachable(s, length - LM_PAGE) == length - LM_PAGE);
    }
    holds(s, &windowed, 2000 - WINDOW, 2000, 0);
    assert_int_equal(lost, (2000 - WINDOW - LM_PAGE + 1) / LM_PAGE);
    uint32_t floor = lost * LM_PAGE + WINDOW - 1;
    lm_error err;
    assert_int_equal(lm_state_reachable(s, floor - 1), 0);
    assert_int_equal(lm_state_truncate(s, floor - 1, &err), LM_STATE);
    char text[16];
    snprintf(text, sizeof text, "%u", floor);
    assert_non_null(strstr(err.message, text));
    assert_int_equal(lm_state_length(s), 2000);
    assert_int_equal(lm_state_truncate(s, floor, &err), LM_OK);
    holds(s, &windowed, floor - WINDOW + 1, floor, 0);
    assert_int_equal(lm_state_truncate(s, 0, &err), LM_OK);
    assert_int_equal(lm_state_bytes(s), 0);
    grow(s, &windowed, 10, 0);
    holds(s, &windowed, 0, 10, 0);
    lm_state_free(s);
}
static void forks(void **state) {
    (void)state;
    const uint32_t at[] = {1, 255, 256, 257, 400};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        lm_state *a = fresh(&hybrid), *b, *c;
        grow(a, &hybrid, at[i], 0);
        assert_int_equal(lm_state_fork(a, &b, NULL), LM_OK);
        assert_ptr_equal(lm_state_keys(a, 0, 0, 0), lm_state_keys(b, 0, 0, 0)); /* shared, not copied */
        grow(a, &hybrid, 2, 1);
        grow(b, &hybrid, 3, 2);
        assert_int_equal(lm_state_fork(b, &c, NULL), LM_OK);
        holds(a, &hybrid, 0, at[i], 0);
        holds(b, &hybrid, 0, at[i], 0);
        holds(a, &hybrid, at[i], at[i] + 2, 1);
        holds(b, &hybrid, at[i], at[i] + 3, 2);
        lm_state_free(b);
        grow(c, &hybrid, 1, 3);
        holds(c, &hybrid, at[i], at[i] + 3, 2);
        holds(c, &hybrid, at[i] + 3, at[i] + 4, 3);
        lm_state_free(a);
        lm_state_free(c);
    }
}
static void checkpoints(void **state) {
    (void)state;
    lm_state *s = fresh(&hybrid), *f;
    lm_error err;
    grow(s, &hybrid, 256, 0);
    grow(s, &hybrid, 200, 0);
    grow(s, &hybrid, 56, 0);
    grow(s, &hybrid, 8, 0);
    assert_int_equal(lm_state_reachable(s, 519), 512);
    assert_int_equal(lm_state_reachable(s, 511), 256);
    assert_int_equal(lm_state_reachable(s, 255), 0);
    assert_int_equal(lm_state_truncate(s, 510, &err), LM_STATE);
    assert_non_null(strstr(err.message, "256"));
    assert_int_equal(lm_state_fork(s, &f, &err), LM_OK);
    assert_int_equal(lm_state_truncate(s, 256, &err), LM_OK);
    holds(s, &hybrid, 0, 256, 0); /* the block too */
    grow(s, &hybrid, 10, 1);
    holds(s, &hybrid, 0, 256, 0);
    assert_int_equal(lm_state_truncate(s, 256, &err), LM_OK); /* once more */
    holds(s, &hybrid, 0, 256, 0);
    grow(s, &hybrid, 300, 1); /* in one piece over 512 */
    assert_int_equal(lm_state_reachable(s, 555), 256); /* the old checkpoint at 512 was of another continuation */
    holds(f, &hybrid, 0, 520, 0);
    assert_int_equal(lm_state_truncate(f, 256, &err), LM_OK);
    holds(f, &hybrid, 0, 256, 0);
    while (lm_state_length(f) < 2048) grow(f, &hybrid, 256, 0);
    assert_int_equal(lm_state_reachable(f, 2047), 1792);
    assert_int_equal(lm_state_reachable(f, 1279), 0); /* the newest four: 2048, 1792, 1536, 1280 */
    assert_int_equal(lm_state_truncate(f, 0, &err), LM_OK);
    grow(f, &hybrid, 7, 0);
    holds(f, &hybrid, 0, 7, 0);
    lm_state_free(s);
    lm_state_free(f);
}

/* ---- bytes --------------------------------------------------------------------------------------------------------------------*/
static void same(lm_state *a, lm_state *b) {
    uint8_t *x, *y;
    uint64_t n, m;
    assert_int_equal(lm_state_save(a, "t", &x, &n, NULL), LM_OK);
    assert_int_equal(lm_state_save(b, "t", &y, &m, NULL), LM_OK);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    lm_free(x);
    lm_free(y);
}
static void saved(void **state) {
    (void)state;
    lm_state *s = fresh(&hybrid), *t = fresh(&hybrid), *u = fresh(&hybrid);
    lm_error err;
    uint8_t *b;
    uint64_t n;
    grow(s, &hybrid, 9, 0);
    lm_state_set_rope_set(s, 1);
    grow(t, &hybrid, 3, 0.5f);
    grow(u, &hybrid, 3, 0.5f);
    assert_int_equal(lm_state_save(s, "model f32", &b, &n, &err), LM_OK);
    for (uint64_t cut = 0; cut < n; cut++) {
        uint8_t *part = malloc(cut ? cut : 1); /* so that a read past it is seen */
        memcpy(part, b, cut);
        assert_int_equal(lm_state_restore(t, "model f32", part, cut, &err), LM_FORMAT);
        free(part);
    }
    for (uint64_t i = 0; i < n; i++)
        for (int bit = 0; bit < 8; bit += 7) {
            b[i] ^= (uint8_t)(1 << bit);
            assert_int_equal(lm_state_restore(t, "model f32", b, n, &err), LM_FORMAT);
            b[i] ^= (uint8_t)(1 << bit);
        }
    same(t, u); /* a failed restore changes nothing */
    assert_int_equal(lm_state_restore(t, "model bf16", b, n, &err), LM_UNSUPPORTED);
    assert_non_null(strstr(err.message, "model f32"));
    for (uint64_t at = 1;; at++) {
        lm_alloc_fail_after(at);
        lm_status st = lm_state_restore(t, "model f32", b, n, &err);
        lm_alloc_fail_after(0);
        if (st == LM_OK) break;
        assert_int_equal(st, LM_NOMEM);
        same(t, u);
    }
    same(s, t);
    assert_int_equal(lm_state_rope_set(t), 1);
    holds(t, &hybrid, 0, 9, 0);
    grow(t, &hybrid, 1, 0);
    holds(t, &hybrid, 0, 10, 0);
    lm_program other = hybrid;
    other.vocab = 7;
    lm_state *o = fresh(&other), *wide;
    assert_int_equal(lm_state_restore(o, "model f32", b, n, &err), LM_UNSUPPORTED);
    assert_int_equal(lm_state_create(&hybrid, &lm_cache_kv[LM_KV_F32], &wide, &err), LM_OK);
    assert_int_equal(lm_state_restore(wide, "model f32", b, n, &err), LM_UNSUPPORTED);
    lm_free(b);
    lm_state *all[5] = {s, t, u, o, wide};
    for (int i = 0; i < 5; i++) lm_state_free(all[i]);
}
static void saved_long(void **state) {
    (void)state;
    const uint32_t lengths[] = {0, 255, 256, 257, 1500};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        lm_state *s = fresh(&hybrid), *t = fresh(&hybrid);
        uint8_t *b;
        uint64_t n;
        while (lm_state_length(s) < lengths[i]) grow(s, &hybrid, lengths[i] - lm_state_length(s) < 256 ? lengths[i] % 256 : 256, 0);
        assert_int_equal(lm_state_save(s, NULL, &b, &n, NULL), LM_OK);
        assert_int_equal(lm_state_restore(t, "", b, n, NULL), LM_OK);
        same(s, t);
        const uint32_t back = lengths[i] / 256 * 256; /* its checkpoints came along */
        assert_int_equal(lm_state_truncate(t, back, NULL), LM_OK);
        holds(t, &hybrid, 0, back, 0);
        grow(t, &hybrid, 300, 0);
        holds(t, &hybrid, 0, back + 300, 0);
        lm_free(b);
        lm_state_free(s);
        lm_state_free(t);
    }
}

/* Keys and values in the kernels' layouts: saved position by position, whatever stands beside them. */
static void tiled(void **state) {
    (void)state;
    for (lm_kv type = 0; type < LM_KV_COUNT; type++)
        for (uint32_t length = 200; length <= 300; length += 100) {
            lm_state *s = NULL, *t = NULL, *f = NULL, *other = NULL;
            lm_error err;
            uint8_t *b, *c;
            uint64_t n, m;
            const lm_cache_type *kept = &lm_cache_kv[type];
            assert_int_equal(lm_state_create(&hybrid, kept, &s, NULL), LM_OK);
            assert_int_equal(lm_state_create(&hybrid, kept, &t, NULL), LM_OK);
            assert_int_equal(lm_state_create(&hybrid, &lm_cache_kv[(type + 1) % LM_KV_COUNT], &other, NULL), LM_OK);
            assert_true(lm_state_type(s) == kept);
            assert_int_equal(lm_state_reserve(s, length, NULL), LM_OK);
            for (uint32_t i = 0; i < 2; i++)
                for (uint32_t page = 0; page * LM_PAGE < length; page++)
                    for (uint32_t h = 0; h < slots[i].heads; h++) { /* all of the page, also where no position stands */
                        uint8_t *k = lm_state_keys(s, i, page, h), *v = lm_state_values(s, i, page, h);
                        assert_int_equal((uintptr_t)k % 64 + (uintptr_t)v % 64, 0);
                        assert_ptr_equal(v, k + lm_kv_keys(type, slots[i].dk));
                        for (uint64_t j = 0; j < lm_kv_keys(type, slots[i].dk) + lm_kv_values(type, slots[i].dv); j++)
                            k[j] = (uint8_t)(j * 7 + h + i + page) | (type == LM_KV_BF16X2 && j % 2); /* a run stores no subnormals there */
                    }
            lm_state_commit(s, length);
            assert_int_equal(lm_state_fork(s, &f, NULL), LM_OK);
            assert_true(lm_state_type(f) == kept);
            assert_int_equal(lm_state_save(s, "x", &b, &n, NULL), LM_OK);
            assert_true(n < length * (2 * lm_kv_row(type, 3, 2) + lm_kv_row(type, 2, 2)) + 600);
            assert_int_equal(lm_state_restore(t, "x", b, n, NULL), LM_OK);
            assert_int_equal(lm_state_restore(other, "x", b, n, &err), LM_UNSUPPORTED);
            assert_non_null(strstr(err.message, kept->name));
            assert_int_equal(lm_state_save(t, "x", &c, &m, NULL), LM_OK);
            assert_true(m == n && memcmp(b, c, n) == 0);
            for (uint32_t at = 0; at < length; at += 13)
                for (uint32_t i = 0; i < 2; i++)
                    for (uint32_t h = 0; h < slots[i].heads; h++) {
                        uint8_t x[64], y[64];
                        lm_kv_get(type, lm_state_keys(s, i, at / LM_PAGE, h), lm_state_values(s, i, at / LM_PAGE, h), slots[i].dk,
                                  slots[i].dv, at % LM_PAGE, x);
                        lm_kv_get(type, lm_state_keys(t, i, at / LM_PAGE, h), lm_state_values(t, i, at / LM_PAGE, h), slots[i].dk,
                                  slots[i].dv, at % LM_PAGE, y);
                        assert_memory_equal(x, y, lm_kv_row(type, slots[i].dk, slots[i].dv));
                    }
            for (uint64_t cut = 1; cut < n; cut += 97) assert_int_equal(lm_state_restore(t, "x", b, n - cut, NULL), LM_FORMAT);
            lm_free(b), lm_free(c);
            lm_state_free(s), lm_state_free(t), lm_state_free(f), lm_state_free(other);
        }
}

static void no_memory(void **state) {
    (void)state;
    lm_error err;
    for (uint64_t at = 1;; at++) {
        lm_state *s = NULL;
        lm_alloc_fail_after(at);
        lm_status st = lm_state_create(&hybrid, &lm_cache_f64, &s, &err);
        lm_alloc_fail_after(0);
        if (st == LM_OK) {
            lm_state_free(s);
            assert_true(at > 2);
            break;
        }
        assert_int_equal(st, LM_NOMEM);
    }
    lm_state *s = fresh(&hybrid), *twin = fresh(&hybrid), *f;
    grow(s, &hybrid, 300, 0);
    grow(twin, &hybrid, 300, 0);
    for (uint64_t at = 1;; at++) {
        lm_alloc_fail_after(at);
        lm_status st = lm_state_fork(s, &f, &err);
        lm_alloc_fail_after(0);
        if (st == LM_OK) break;
        assert_int_equal(st, LM_NOMEM);
    }
    for (uint64_t at = 1;; at++) { /* shared page and block to copy, new pages to make */
        lm_alloc_fail_after(at);
        lm_status st = lm_state_reserve(s, 1000, &err);
        lm_alloc_fail_after(0);
        if (st == LM_OK) {
            assert_true(at > 10);
            break;
        }
        assert_int_equal(st, LM_NOMEM);
        assert_null(lm_state_keys(s, 0, 2, 0));
        assert_ptr_equal(lm_state_keys(s, 0, 1, 0), lm_state_keys(f, 0, 1, 0));
        same(s, twin);
    }
    same(s, twin);
    same(f, twin);
    assert_ptr_not_equal(lm_state_keys(s, 0, 1, 0), lm_state_keys(f, 0, 1, 0));
    lm_state_free(s);
    lm_state_free(twin);
    lm_state_free(f);
}

/* Pages of 0.75 and 1 MiB: those made at once share a slab, and each can go while its neighbours stay. */
static void slabs(void **state) {
    (void)state;
    lm_cache_slot many[3] = {{LM_CACHE_KV, 3, 64, 64, 0}, {LM_CACHE_KV, 4, 64, 64, WINDOW}, {LM_CACHE_DELTA, 2, 2, 3, 0}};
    lm_program p = {.arch = "test", .slot = many, .n_slots = 2};
    lm_state *s = fresh(&p), *f = NULL;
    lm_error err;
    for (uint64_t at = 1;; at++) {
        lm_alloc_fail_after(at);
        lm_status st = lm_state_reserve(s, 600, &err);
        lm_alloc_fail_after(0);
        if (st == LM_OK) {
            assert_int_equal(at, 9); /* the slab, its memory, 6 bufs, and a call more; the tables are there from the tries before */
            break;
        }
        assert_int_equal(st, LM_NOMEM);
        assert_null(lm_state_keys(s, 0, 0, 0));
        assert_null(lm_state_keys(s, 1, 2, 3));
    }
    const size_t page = (size_t)3 * 256 * 128 * sizeof(double), page1 = page / 3 * 4;
    assert_ptr_equal((uint8_t *)lm_state_keys(s, 0, 1, 0), (uint8_t *)lm_state_keys(s, 0, 0, 0) + page);
    assert_int_equal((uintptr_t)lm_state_keys(s, 1, 2, 0) % 64, 0);
    grow(s, &p, 600, 0);
    holds(s, &p, 0, 600, 0);
    assert_int_equal(lm_state_bytes(s), 3 * (page + page1));
    assert_int_equal(lm_state_fork(s, &f, &err), LM_OK);
    assert_int_equal(lm_state_truncate(s, 200, &err), LM_OK); /* the fork holds the rest */
    holds(s, &p, 0, 200, 0);
    grow(s, &p, 500, 0.5);
    holds(s, &p, 0, 200, 0);
    holds(s, &p, 200, 700, 0.5);
    holds(f, &p, 0, 600, 0);
    lm_state_free(s);
    holds(f, &p, 0, 600, 0);
    assert_int_equal(lm_state_truncate(f, 300, &err), LM_OK);
    holds(f, &p, 0, 300, 0);
    for (uint32_t n = 0; n < 5; n++) grow(f, &p, 200, 0); /* pages leave the window one by one */
    holds(f, &p, 0, 1300, 0);
    assert_null(lm_state_keys(f, 1, 0, 0));
    lm_state_free(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages),       cmocka_unit_test(truncation), cmocka_unit_test(window),     cmocka_unit_test(forks),
        cmocka_unit_test(checkpoints), cmocka_unit_test(saved),      cmocka_unit_test(saved_long), cmocka_unit_test(no_memory),
        cmocka_unit_test(tiled),       cmocka_unit_test(slabs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
