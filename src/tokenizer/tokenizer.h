/* Text ↔ token ids, from a GGUF's own metadata or from a folder's tokenizer.json (and tokenizer_config.json).
 * Unknown means refused: a model type, pre-tokenizer, normaliser, decoder or post-processor step that is not understood is LM_UNSUPPORTED,
 * by name. Immutable after open; encode and decode are thread-safe. */
#ifndef LM_TOKENIZER_TOKENIZER_H
#define LM_TOKENIZER_TOKENIZER_H
#include "format/source.h"

typedef struct lm_tokenizer lm_tokenizer;

/* From a model's source. LM_MISSING (code) when the model carries no tokenizer at all: the caller goes on with bare ids. */
lm_status lm_tokenizer_from_source(const lm_source *s, lm_tokenizer **out, lm_error *err);
/* From a tokenizer.json (and the tokenizer_config.json beside it, if any). */
lm_status lm_tokenizer_from_json(const char *path, lm_tokenizer **out, lm_error *err);
void lm_tokenizer_free(lm_tokenizer *t);

typedef struct lm_ids {
    int32_t *id;
    size_t n, cap;
} lm_ids;
void lm_ids_free(lm_ids *ids);

/* Appends the ids of text[0..n) (bytes that are no UTF-8 are repaired first). `special`: add what the post-processor adds (BOS, EOS …);
 * special tokens written out in the text ("<|im_end|>") are recognised when `parse_special`. Added tokens that are not special (runs of
 * spaces, "<tool>") are part of the vocabulary and always are. On failure `out` is as before. A text over 1 GiB, or one that the
 * pre-tokenizer's pattern can't match within its limits, is LM_RANGE. */
lm_status lm_tokenizer_encode(const lm_tokenizer *t, const char *text, size_t n, bool special, bool parse_special, lm_ids *out,
                              lm_error *err);
/* The text of ids, exactly as the whole sequence decodes, lm_malloc'd and NUL-terminated; *out_n its length. An id outside the vocabulary
 * is LM_RANGE. What is no UTF-8 becomes U+FFFD by the maximal-subpart rule, for byte tokens ("<0xE4>") too, of which transformers gives one
 * each. */
lm_status lm_tokenizer_decode(const lm_tokenizer *t, const int32_t *ids, size_t n, bool skip_special, char **out, size_t *out_n,
                              lm_error *err);

/* Incremental decoding: feed ids one at a time; what comes out is whole UTF-8 characters only. The concatenation of all pieces and the
 * final flush equals lm_tokenizer_decode of all ids, bad bytes repaired by the maximal-subpart rule. */
typedef struct lm_detok lm_detok;
lm_status lm_detok_create(const lm_tokenizer *t, bool skip_special, lm_detok **out, lm_error *err);
void lm_detok_free(lm_detok *d);
/* *piece points into d until the next call; may be empty */
lm_status lm_detok_push(lm_detok *d, int32_t id, const char **piece, size_t *n, lm_error *err);
lm_status lm_detok_flush(lm_detok *d, const char **piece, size_t *n, lm_error *err);

/* The vocabulary. The piece is the token's own bytes as they stand in decoded text; NULL for an id out of range. */
uint32_t lm_tokenizer_vocab(const lm_tokenizer *t);
const char *lm_tokenizer_piece(const lm_tokenizer *t, int32_t id, size_t *n);
bool lm_tokenizer_is_special(const lm_tokenizer *t, int32_t id);
int32_t lm_tokenizer_bos(const lm_tokenizer *t);                   /* −1: none */
const int32_t *lm_tokenizer_eos(const lm_tokenizer *t, size_t *n); /* all end-of-generation ids */
const char *lm_tokenizer_describe(const lm_tokenizer *t);          /* "byte-level BPE, 49152 tokens, pre-tokenizer smollm" */
#endif
