/* UTF-8: strict decoding (no surrogates, no overlong forms, ≤ U+10FFFF) and repair by the maximal-subpart rule. */
#ifndef LM_BASE_UTF8_H
#define LM_BASE_UTF8_H
#include "base/status.h"

/* Decodes one code point from s[0..n). Returns its length 1–4; 0 when the bytes so far are a proper prefix of a valid sequence
 * (more input needed; also for n == 0); −len when they are invalid, len ≥ 1 being the maximal subpart to be replaced by one U+FFFD. */
int lm_utf8_decode(const uint8_t *s, size_t n, uint32_t *cp);
int lm_utf8_encode(uint32_t cp, uint8_t out[4]); /* length */
bool lm_utf8_valid(const uint8_t *s, size_t n);
/* How many trailing bytes of s[0..n) are an unfinished but so far valid sequence (0–3): what a stream must hold back. */
size_t lm_utf8_pending(const uint8_t *s, size_t n);
/* s with every maximal invalid subpart replaced by U+FFFD, allocated with lm_malloc; *out_n its length. NULL: out of memory. */
char *lm_utf8_repair(const uint8_t *s, size_t n, size_t *out_n);
#endif
