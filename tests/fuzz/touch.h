/* Reads everything that a parse handed out, so that a sanitizer sees what points outside; aborts where a promise is broken. */
#ifndef LM_TESTS_FUZZ_TOUCH_H
#define LM_TESTS_FUZZ_TOUCH_H
#include "format/parse.h"
#include <stdlib.h>
#include <string.h>

static volatile uint64_t touch_sink;

static inline void touch_meta(const lm_meta *m) {
    for (uint32_t i = 0; i < m->n; i++) {
        const lm_value *v = &m->entry[i].value;
        if (i && strcmp(m->entry[i - 1].key, m->entry[i].key) >= 0) abort();
        if (lm_meta_get(m, m->entry[i].key) != v) abort();
        if (v->kind == LM_V_STRING) touch_sink += v->str.s[v->str.len];
        if (v->kind != LM_V_ARRAY) continue;
        for (uint64_t k = 0; k < v->arr.n; k++) {
            if (v->elem == LM_V_BOOL && ((const uint8_t *)v->arr.data)[k] > 1) abort();
            if (v->elem == LM_V_INT || v->elem == LM_V_FLOAT) touch_sink += ((const uint64_t *)v->arr.data)[k];
            if (v->elem == LM_V_STRING) touch_sink += ((const lm_str *)v->arr.data)[k].s[((const lm_str *)v->arr.data)[k].len];
        }
    }
}

static inline void touch_tensors(const lm_parsed *p, const uint8_t *bytes, size_t n) {
    for (uint32_t i = 0; i < p->n_tensors; i++) {
        const lm_tensor *t = &p->tensor[i];
        uint64_t want;
        if (i && strcmp(p->tensor[i - 1].name, t->name) >= 0) abort();
        if (!lm_shape_bytes(t->type, t->rank, t->dim, &want) || want != t->bytes || !want) abort();
        if (t->offset > n || t->bytes > n - t->offset || t->data != bytes + t->offset) abort();
        touch_sink += t->data[0] + t->data[t->bytes - 1];
    }
}

/* Every failure has a code, a file and one line of text; that an id or a number is out of range, only what knows the range says. */
static inline void touch_error(lm_status st, const lm_error *err) {
    if (st == LM_NOMEM) return;
    const bool known = st == LM_FORMAT || st == LM_UNSUPPORTED || st == LM_RANGE;
    if (!known || err->code != st || !err->file[0] || !err->message[0] || strchr(err->message, '\n')) abort();
}

/* A file of tensors, of any bytes: parsed, touched, let go. */
static inline int touch_file(lm_status (*parse)(const uint8_t *, uint64_t, const char *, lm_arena *, lm_parsed *, lm_error *),
                             const uint8_t *p, size_t n) {
    lm_arena *a = lm_arena_create();
    if (!a) return 0;
    lm_parsed out = {0};
    lm_error err = {0};
    const lm_status st = parse(p, n, "input", a, &out, &err);
    if (st == LM_OK) {
        touch_meta(&out.meta);
        touch_tensors(&out, p, n);
    } else {
        touch_error(st, &err);
    }
    if (lm_arena_bytes(a) > 65536 + 64 * n) abort(); /* memory in proportion to the file */
    lm_arena_destroy(a);
    return 0;
}
#endif
