/* Private to src/tokenizer: what a tokenizer is made of, and the steps of encoding and decoding.
 *
 * Encoding: repair UTF-8 → cut out added tokens → normalise → pre-tokenize into pieces → BPE each piece → post-processor's ids around it.
 * Decoding: every token's bytes are known at load; the stream strips what the decoder strips and repairs what is no UTF-8.
 */
#ifndef LM_TOKENIZER_TOK_H
#define LM_TOKENIZER_TOK_H
#define PCRE2_CODE_UNIT_WIDTH 8
#include "base/mem.h"
#include "base/utf8.h"
#include "tokenizer/tokenizer.h"
#include <pcre2.h>

#define LM_TOK_MAX_IDS (1u << 22) /* no vocabulary is near it; it bounds what a hostile file can make us allocate */
#define LM_TOK_MAX_STEPS 16       /* steps of one kind (normaliser, pre-tokenizer …) */
#define LM_TOK_MAX_TEXT (UINT32_C(1) << 30)

enum { LM_TOK_PRESENT = 1, LM_TOK_SPECIAL = 2, LM_TOK_ADDED = 4 };
typedef struct lm_tok_entry {
    uint32_t text_off, text_len;   /* as the vocabulary writes it */
    uint32_t piece_off, piece_len; /* as it stands in decoded text */
    uint32_t flags;
} lm_tok_entry;

typedef struct lm_merge {
    int32_t left, right;
    uint32_t rank;
    int32_t id;
} lm_merge; /* left −1: an empty slot */

typedef struct lm_added {
    const char *text; /* as written */
    uint32_t len;
    int32_t id;
    bool special, lstrip, rstrip, single_word, normalized;
} lm_added;
/* Added tokens in bytewise order of the text to look for: a match narrows a range of it byte by byte. */
typedef struct lm_added_key {
    const char *s;
    uint32_t len, added;
} lm_added_key;
typedef struct lm_added_set {
    lm_added_key *key;
    uint32_t n;
    bool first[256];
} lm_added_set;

typedef enum lm_norm_kind { LM_NORM_UNICODE, LM_NORM_PREPEND, LM_NORM_REPLACE, LM_NORM_STRIP, LM_NORM_LOWERCASE } lm_norm_kind;
typedef struct lm_norm_step {
    lm_norm_kind kind;
    int form;         /* UNICODE: utf8proc's options */
    bool left, right; /* STRIP */
    pcre2_code *re;   /* REPLACE by pattern, else by text */
    const char *from, *to;
    size_t from_n, to_n;
} lm_norm_step;

typedef enum lm_split { LM_SPLIT_ISOLATED, LM_SPLIT_REMOVED, LM_SPLIT_PREVIOUS, LM_SPLIT_NEXT, LM_SPLIT_CONTIGUOUS } lm_split;
typedef enum lm_pre_kind {
    LM_PRE_BYTES,
    LM_PRE_PREFIX,
    LM_PRE_PATTERN,
    LM_PRE_LITERAL,
    LM_PRE_DIGITS,
    LM_PRE_METASPACE,
    LM_PRE_WORDS,
    LM_PRE_SPACES,
    LM_PRE_PUNCTUATION
} lm_pre_kind;
typedef enum lm_prepend { LM_PREPEND_NEVER, LM_PREPEND_FIRST, LM_PREPEND_ALWAYS, LM_PREPEND_SPM } lm_prepend;
/* BYTES maps bytes to the byte-level alphabet; PREFIX puts a space before a piece that has none; PATTERN and LITERAL split. */
typedef struct lm_pre_step {
    lm_pre_kind kind;
    lm_split split;
    bool invert;
    lm_prepend prepend; /* METASPACE */
    bool cut;           /* METASPACE: split before each replacement */
    pcre2_code *re;
    const char *s; /* LITERAL: what to find; METASPACE: the replacement */
    size_t s_n;
} lm_pre_step;

/* What the decoder does, reduced to what each token's bytes are and what the stream does with its first bytes. */
typedef struct lm_decode_plan {
    bool bytes;         /* byte-level alphabet → bytes */
    bool byte_fallback; /* "<0x0A>" → the byte */
    bool join;          /* no decoder: tokens joined by a space */
    uint32_t stage;     /* while it is read: how far the order of steps has come */
    uint32_t n_replace;
    struct {
        const char *from, *to;
        size_t from_n, to_n;
    } replace[LM_TOK_MAX_STEPS];
    char strip; /* this character, up to strip_n times, goes from the start of the text */
    uint32_t strip_n;
    const char *drop; /* Metaspace: goes from the first token wherever it stands in it */
    size_t drop_n;
} lm_decode_plan;

struct lm_tokenizer {
    lm_arena *arena;
    uint32_t n; /* ids 0 … n−1 */
    lm_tok_entry *entry;
    char *blob;
    size_t blob_n, blob_cap;
    uint32_t *index, index_mask; /* text → id + 1, open addressing */

    lm_merge *merge;
    uint32_t merge_mask;
    float *score; /* SentencePiece: instead of merges; NULL otherwise */
    bool ignore_merges, byte_fallback, fuse_unk;
    int32_t unk;
    int32_t byte_id[256]; /* "<0x00>" …, −1 */
    int32_t char_id[512]; /* the ids of single code points below 512, −1 */

    lm_added *added;
    uint32_t n_added;
    lm_added_set raw, normal;

    lm_norm_step norm[LM_TOK_MAX_STEPS];
    lm_pre_step pre[LM_TOK_MAX_STEPS];
    uint32_t n_norm, n_pre;
    lm_decode_plan plan;

    lm_ids prefix, suffix; /* what the post-processor adds */
    int32_t bos;
    lm_ids eos;
    char *describe;
};

/* ---- buffers (buffer.c): false is "out of memory" ---- */
typedef struct lm_tbuf {
    char *s;
    size_t n, cap;
} lm_tbuf;
typedef struct lm_span {
    size_t off, len;
} lm_span;
typedef struct lm_spans {
    lm_span *v;
    size_t n, cap;
} lm_spans;
bool lm_tbuf_put(lm_tbuf *b, const void *s, size_t n);
bool lm_spans_put(lm_spans *p, size_t off, size_t len); /* an empty span is left out */
bool lm_ids_put(lm_ids *ids, int32_t id);
/* Makes room for `want` elements of `size` bytes in *p, *cap being how many there is room for. */
bool lm_tok_grow(void **p, size_t *cap, size_t want, size_t size);

/* ---- characters (chars.c), by Unicode's properties ---- */
bool lm_char_space(uint32_t c);   /* White_Space */
bool lm_char_word(uint32_t c);    /* what \w is in the engines that patterns were written for */
bool lm_char_numeric(uint32_t c); /* Nd, Nl, No */
bool lm_char_punct(uint32_t c);   /* ASCII punctuation and P* */
/* The code point at s[0..n) of valid UTF-8, n > 0; *len its length. */
uint32_t lm_char_at(const char *s, size_t n, size_t *len);
/* The byte-level alphabet: every byte as a printable code point below 512. */
uint32_t lm_bytes_to_char(uint8_t b);
int lm_bytes_from_char(uint32_t c); /* −1: not in the alphabet */

/* ---- vocabulary (vocab.c) ---- */
/* Room for ids 0 … n−1, none present. */
lm_status lm_vocab_reserve(lm_tokenizer *t, uint32_t n, lm_error *err);
lm_status lm_vocab_set(lm_tokenizer *t, uint32_t id, const char *s, size_t n, uint32_t flags, lm_error *err);
/* Builds the index; a text that stands twice belongs to the highest id. */
lm_status lm_vocab_index(lm_tokenizer *t, lm_error *err);
int32_t lm_vocab_find(const lm_tokenizer *t, const char *s, size_t n); /* −1: none */
/* After the vocabulary, the added tokens and the plan are there: every token's piece, single characters, byte tokens, added sets. */
lm_status lm_vocab_finish(lm_tokenizer *t, lm_error *err);
/* The longest added token of `set` that starts at s[0..n): its index in t->added, or −1; *len the bytes matched. */
int64_t lm_added_match(const lm_added_set *set, const char *s, size_t n, size_t *len);

/* ---- merges and BPE (bpe.c) ---- */
lm_status lm_merges_reserve(lm_tokenizer *t, uint64_t n, lm_error *err);
/* Merge number `rank`: the texts a and b. LM_FORMAT when a, b or ab is no token. */
lm_status lm_merges_add(lm_tokenizer *t, uint32_t rank, const char *a, size_t an, const char *b, size_t bn, lm_error *err);

const lm_merge *lm_merge_find(const lm_tokenizer *t, int32_t a, int32_t b); /* NULL: the two don't merge */
/* spm_scores.c: scores with which merging by score (any two neighbours whose joined text is a token) gives, on every text, what the
 * tokenizer's merges give. *why: NULL, or what it is that no scores can say. score[t->n]. */
lm_status lm_spm_scores(const lm_tokenizer *t, double *score, const char **why, lm_error *err);

typedef struct lm_symbol {
    int32_t id, prev, next;
    uint32_t off, len;
} lm_symbol;
typedef struct lm_candidate {
    uint32_t rank, pos, len;
    int32_t id;
} lm_candidate;
/* What one call of encode works in. */
typedef struct lm_encoder {
    const lm_tokenizer *t;
    lm_ids *out;
    lm_error *err;
    bool parse_special;
    lm_tbuf text, spare;
    lm_spans span, span2;
    lm_symbol *sym;
    size_t n_sym, cap_sym;
    lm_candidate *heap;
    size_t n_heap, cap_heap;
    pcre2_match_data *match;
    pcre2_match_context *limits;
} lm_encoder;
lm_status lm_bpe_encode(lm_encoder *e, const char *s, size_t n);

/* ---- patterns (pattern.c) ---- */
/* Compiles a pattern of a tokenizer.json, whose dialect is Oniguruma's: what means another thing there is translated, what can't be is
 * refused. */
lm_status lm_pattern_compile(const char *pattern, size_t n, pcre2_code **out, lm_error *err);
/* The next match in s[0..n) at or after *at. LM_OK with *found false when there is none; LM_RANGE when the matcher's limits were reached.
 */
lm_status lm_pattern_next(lm_encoder *e, const pcre2_code *re, const char *s, size_t n, size_t at, bool *found, lm_span *m);
lm_status lm_pattern_begin(lm_encoder *e);
void lm_pattern_end(lm_encoder *e);

/* ---- the steps (normalize.c, pretokenize.c) ---- */
/* s[0..n) normalised into out (which is emptied first). */
lm_status lm_normalize(lm_encoder *e, const char *s, size_t n, lm_tbuf *out);
/* e->text cut into e->span, and rewritten where a step rewrites. `first`: the text stands at the very start of the input. */
lm_status lm_pretokenize(lm_encoder *e, bool first);

/* ---- loading ---- */
/* The steps that tokenizer.ggml.pre stands for. */
lm_status lm_pre_by_name(lm_tokenizer *t, const char *name, lm_error *err, bool *add_bos);
const char *lm_pre_name(uint32_t i); /* the names that are known, in order; NULL after the last */
lm_status lm_tokenizer_from_gguf(const lm_source *s, lm_tokenizer **out, lm_error *err);
lm_tokenizer *lm_tokenizer_new(void);
lm_status lm_eos_add(lm_tokenizer *t, int64_t id, lm_error *err); /* once each; an id out of range is left out */
#endif
