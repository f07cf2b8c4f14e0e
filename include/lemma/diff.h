/* Where two runs part, and why. A and B are each a trace or a run of a model; the double-precision arbiter computes the same tokens beside
 * them, estimates at every op what rounding alone explains (the envelope) and recomputes every op from each side's own inputs (the replay).
 * docs/envelope.md has the method. Nothing here prints.
 */
#ifndef LEMMA_DIFF_H
#define LEMMA_DIFF_H
#include "lemma/verify.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One side is
 *   FILE.safetensors[:LANE]   a trace; LANE (f32, bf16, i8, i16, mixed): what it was computed in, where it doesn't say so itself
 *   MODEL[:BACKEND[:LANE]]    a GGUF file or a folder, run here
 *   http://HOST[:PORT][:LANE] a llama.cpp server or an OpenAI-compatible one: the log-probabilities of its best few tokens. LANE: what
 *                             it computes in, as far as is known; by default i8 where weights are block-quantized (as llama.cpp does),
 *                             else bf16
 * A name that exists as it stands is taken as it stands, colons and all. */
typedef struct lm_diff_options {
    lm_evidence_options run; /* threads, cpu_level, progress and interrupted; backend and lane are the sides' own */
    const char *a, *b;       /* b may be NULL with `ties` */
    const char *model;       /* the arbiter's model: needed when neither side is run here */
    const int32_t *ids;      /* exactly one of ids and text, unless a side is a trace: then neither */
    size_t n_ids;
    const char *text; /* needs the model's tokenizer */
    size_t text_n;
    uint32_t greedy;  /* tokens of the bare arg-max run; LM_DIFF_AS_TRACE: as many as the traces have */
    uint32_t samples; /* perturbed runs per lane; 0: 3 */
    uint64_t seed;    /* of the perturbations */
    uint32_t timeout; /* seconds that a server may take for one answer; 0: 60 */
    bool ties;        /* list the positions at which rounding could flip the choice of a side's lane */
} lm_diff_options;
#define LM_DIFF_AS_TRACE UINT32_MAX

typedef struct lm_diff lm_diff;
/* *out is set on LM_OK, whatever was found. The options' strings must outlive it. */
lm_status lm_diff_run(const lm_diff_options *o, lm_diff **out, lm_error *err);
void lm_diff_free(lm_diff *d);
/* The whole as text, the verdict on the last line, or as one JSON object. lm_text_free them; NULL: out of memory. */
char *lm_diff_text(const lm_diff *d);
char *lm_diff_json(const lm_diff *d);
char *lm_diff_html(const lm_diff *d); /* one self-contained page */
/* 0: every difference is explained as rounding or a near-tie; 1: one is not. */
int lm_diff_exit_code(const lm_diff *d);
/* The op that the first finding names ("layer.1.attn.q_norm"), and the side (0: A, 1: B); false: nothing is unexplained. */
bool lm_diff_first_fault(const lm_diff *d, int *side, const char **op);

/* ---- what a quantized file costs (docs/quality.md) ------------------------------------------------------------------------------------
 * a: the original model, b: a quantized file of it; each MODEL[:BACKEND[:LANE]]. Of the options, run, a, b, ids and text count. With TENSOR
 * or LAYER, each tensor (layer) of b that differs is put into a alone, and what that does is measured in a's lane. */
typedef enum lm_quant_by { LM_QUANT_WHOLE, LM_QUANT_TENSOR, LM_QUANT_LAYER } lm_quant_by;
typedef struct lm_quant lm_quant;
lm_status lm_quant_run(const lm_diff_options *o, lm_quant_by by, lm_quant **out, lm_error *err);
void lm_quant_free(lm_quant *q);
char *lm_quant_text(const lm_quant *q); /* lm_text_free them */
char *lm_quant_json(const lm_quant *q);

#ifdef __cplusplus
}
#endif
#endif
