/* Perplexity of a text under a model, and how far the model's distributions are from a reference's. docs/quality.md has the definitions.
 *
 * The text is cut into windows of `ctx` tokens that begin every `stride` tokens. Windows that don't overlap are scored on their second
 * half, overlapping ones on their last `stride` tokens. Nothing of the size tokens × vocabulary is held. Nothing here prints.
 */
#ifndef LEMMA_PPL_H
#define LEMMA_PPL_H
#include "lemma/verify.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lm_ppl_options {
    lm_evidence_options run;
    const char *text;   /* not NULL: text_n bytes; needs the model's tokenizer */
    size_t text_n;
    const int32_t *ids; /* or token ids; with `reference` neither is needed, and a text must give the reference's ids */
    size_t n_ids;
    uint32_t ctx, stride; /* 0: 512, and ctx. A text shorter than ctx is one window */
    uint32_t windows;     /* at most so many; 0: all */
    const char *reference; /* a trace with whole logits, or with the best ids of each position; NULL */
    const char *save;      /* write a compact reference: `top` ids a position and what remains; NULL */
    uint32_t top;          /* 0: 64 */
} lm_ppl_options;

typedef struct lm_ppl lm_ppl;
/* *out is set on LM_OK; the options must outlive it. LM_INTERRUPTED when the callbacks say so: nothing is written then. */
lm_status lm_ppl_run(const char *model, const lm_ppl_options *o, lm_ppl **out, lm_error *err);
void lm_ppl_free(lm_ppl *p);
/* As text or as one JSON object; lm_text_free them. NULL: out of memory. */
char *lm_ppl_text(const lm_ppl *p);
char *lm_ppl_json(const lm_ppl *p);

#ifdef __cplusplus
}
#endif
#endif
