/* A folder's tokenizer as GGUF metadata ("tokenizer.ggml.…"). */
#ifndef LM_TOKENIZER_TO_GGUF_H
#define LM_TOKENIZER_TO_GGUF_H
#include "format/source.h"

/* A stand-in for a folder without a tokenizer: <pad>, <bos>, <eos>, <unk>, every byte, pairs of common letters, padding up to `vocab`
 * tokens; below 260, "no_vocab". bos, eos: the config's ids, −1: 1 and 2. *kv lives in the arena. */
lm_status lm_standin_to_gguf(lm_arena *a, uint32_t vocab, int32_t bos, int32_t eos, lm_meta_entry **kv, uint32_t *n, lm_error *err);
/* The folder's tokenizer.json, where GGUF can say what it does (byte-level BPE with a pre-tokenizer that has a name there; BPE with byte
 * fallback whose merges scores can stand for, spm_scores.c);
 * LM_MISSING when the folder has none, LM_UNSUPPORTED with the reason when GGUF can't. */
lm_status lm_tokenizer_to_gguf(const lm_source *src, lm_arena *a, uint32_t vocab, lm_meta_entry **kv, uint32_t *n, lm_error *err);
#endif
