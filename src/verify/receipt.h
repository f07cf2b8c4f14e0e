/* A receipt in memory, and its file. The text is the format: receipt.c writes and reads it, receipt_judge.c runs it again. */
#ifndef LM_VERIFY_RECEIPT_H
#define LM_VERIFY_RECEIPT_H
#include "base/hash.h"
#include "base/mem.h"
#include "lemma/receipt.h"

#define LM_RECEIPT_MAX_IDS (1u << 24)

typedef struct lm_receipt_stepped {
    int32_t id;
    uint8_t logits[32]; /* sha256 of the row that it was drawn from, in the backend's own type, little-endian */
} lm_receipt_stepped;

/* The fields that decide what comes out, each with a digest of its own in the file, so that an edit can be named. */
#define LM_RECEIPT_FIELDS(X) \
    X(weights_sha256) \
    X(backend) X(lane) X(kv) X(contract) X(temperature) X(top_k) X(top_p) X(min_p) X(repeat_penalty) X(repeat_last_n) X(seed) X(prompt) \
        X(ids) X(logits)
enum {
#define LM_RECEIPT_ENUM(name) LM_RECEIPT_##name,
    LM_RECEIPT_FIELDS(LM_RECEIPT_ENUM)
#undef LM_RECEIPT_ENUM
        LM_RECEIPT_N_FIELDS
};
enum { LM_RECEIPT_DIGEST = 16 }; /* hexadecimal digits of a field's sha256 that are kept: against slips, not against forgers */

struct lm_receipt {
    lm_arena *arena;                                                            /* the strings and the prompt */
    const char *weights_sha256, *arch, *backend, *lane, *device, *kv, *made_by; /* kv: "" when there is none */
    uint32_t contract;
    lm_sampler_options sampler;
    const int32_t *prompt;
    uint32_t n_prompt;
    lm_receipt_stepped *step;
    uint32_t n_steps, cap_steps;
    char digest[LM_RECEIPT_N_FIELDS][LM_RECEIPT_DIGEST + 1]; /* as read from a file */
};
const char *lm_receipt_field_name(uint32_t field);
/* What the field's digest is now: differs from digest[field] where the file was edited. */
void lm_receipt_field_digest(const lm_receipt *r, uint32_t field, char out[LM_RECEIPT_DIGEST + 1]);
/* Every key, type and range is checked, the contract's version too. */
lm_status lm_receipt_read(const char *path, lm_receipt **out, lm_error *err);
#endif
