/* Private to src/tokenizer: reading a tokenizer.json. The JSON tree lives only while loading. Errors name the place as a JSON pointer. */
#ifndef LM_TOKENIZER_JSON_READ_H
#define LM_TOKENIZER_JSON_READ_H
#include "format/json.h"
#include "tokenizer/tok.h"

/* What the file's steps need to know while they are read. */
typedef struct lm_json_reader {
    lm_tokenizer *t;
    lm_error *err;
} lm_json_reader;

lm_status lm_json_bad(lm_json_reader *r, lm_status code, const char *where, const char *what);
/* *b: the boolean at `key`, `absent` when it is not there or null. */
lm_status lm_json_flag(lm_json_reader *r, const json_t *o, const char *where, const char *key, bool absent, bool *b);
/* A string of `o`, copied into the tokenizer's arena. */
lm_status lm_json_text(lm_json_reader *r, const json_t *o, const char *where, const char *key, const char **s, size_t *n);
lm_status lm_json_id(lm_json_reader *r, const json_t *v, const char *where, uint32_t *id);

lm_status lm_json_normalizer(lm_json_reader *r, const json_t *v);
lm_status lm_json_pre_tokenizer(lm_json_reader *r, const json_t *v);
lm_status lm_json_post_processor(lm_json_reader *r, const json_t *v);
lm_status lm_json_decoder(lm_json_reader *r, const json_t *v);
#endif
