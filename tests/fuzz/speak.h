/* A text to ids and back, whole and piece by piece, which must agree. */
#ifndef LM_TESTS_FUZZ_SPEAK_H
#define LM_TESTS_FUZZ_SPEAK_H
#include "base/mem.h"
#include "tokenizer/tokenizer.h"
#include <stdlib.h>
#include <string.h>

static inline void speak_back(const lm_tokenizer *t, const lm_ids *ids) {
    char *whole = NULL;
    size_t n = 0, at = 0;
    lm_detok *d = NULL;
    if (lm_tokenizer_decode(t, ids->id, ids->n, false, &whole, &n, NULL) != LM_OK) abort(); /* its own ids */
    if (whole[n] != 0) abort();
    if (lm_detok_create(t, false, &d, NULL) == LM_OK) {
        for (size_t i = 0; i <= ids->n; i++) {
            const char *piece;
            size_t m;
            const lm_status st = i < ids->n ? lm_detok_push(d, ids->id[i], &piece, &m, NULL) : lm_detok_flush(d, &piece, &m, NULL);
            if (st != LM_OK || m > n - at || (m && memcmp(piece, whole + at, m) != 0)) abort();
            at += m;
        }
        if (at != n) abort();
        lm_detok_free(d);
    }
    lm_free(whole);
}
/* p[0..n): some of it is spoken too. */
static inline void speak(const lm_tokenizer *t, const uint8_t *p, size_t n) {
    char text[300] = "Hello, w\xc3\xb6rld! 123\n\n  <s>\xf0\x9f\x98\x80\xff the end";
    const size_t k = strlen(text), more = n < sizeof text - k ? n : sizeof text - k;
    memcpy(text + k, p + (n - more) / 2, more);
    lm_ids ids = {0};
    for (int way = 0; way < 4; way++) {
        ids.n = 0;
        if (lm_tokenizer_encode(t, text, k + more, way & 1, way & 2, &ids, NULL) != LM_OK) continue;
        for (size_t i = 0; i < ids.n; i++)
            if (ids.id[i] < 0 || (uint32_t)ids.id[i] >= lm_tokenizer_vocab(t)) abort();
        speak_back(t, &ids);
    }
    lm_ids_free(&ids);
}
#endif
