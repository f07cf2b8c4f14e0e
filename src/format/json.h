/* JSON by jansson, with this library's errors: file, byte offset, the key concerned, and one line of text. */
#ifndef LM_FORMAT_JSON_H
#define LM_FORMAT_JSON_H
#include "base/status.h"
#include <jansson.h>

/* p[0..n) as one JSON value: strict, duplicate keys refused, at most 2048 levels, integers within int64. `base` is the place of p in the
 * file. *out is a new reference (json_decref it). */
lm_status lm_json_parse(const uint8_t *p, uint64_t n, uint64_t base, const char *file, json_t **out, lm_error *err);
/* Where the top-level key stands in the text, for errors; 0 when it isn't found (written with escapes). */
uint64_t lm_json_key_offset(const uint8_t *p, uint64_t n, const char *key);
#endif
