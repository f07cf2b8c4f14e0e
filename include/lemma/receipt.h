/* Receipts: what a generation was, so that anyone can check it. A receipt is a JSON file (docs/receipts.md) of the weights' sha256, the
 * lane, the contract's version, the sampling parameters and seed, the prompt's ids, and for each step the id that was drawn and the sha256
 * of the logits that it was drawn from. Because prefill and decode give the same bits, checking one is a prefill.
 */
#ifndef LEMMA_RECEIPT_H
#define LEMMA_RECEIPT_H
#include "lemma/verify.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LM_RECEIPT_VERSION 1

/* ---- making one: any generation loop can ------------------------------------------------------------------------------------------ */
typedef struct lm_receipt lm_receipt;
typedef struct lm_receipt_about { /* strings: printable ASCII without quotes, as lm_model_get_info and lm_model_sha256 give them */
    const char *weights_sha256, *arch, *backend, *lane, *device;
    const char *kv; /* how keys and values are stored on cpu; NULL on f64 */
    lm_sampler_options sampler;
    const int32_t *prompt; /* [n_prompt ≥ 1], copied */
    uint32_t n_prompt;
} lm_receipt_about;
lm_status lm_receipt_create(const lm_receipt_about *about, lm_receipt **out, lm_error *err);
/* The next step: `id` was drawn from row `row` of l, by lm_sampler_pick over all ids before it, with the step's number. */
lm_status lm_receipt_step(lm_receipt *r, const lm_logits *l, uint32_t row, int32_t id, lm_error *err);
/* The whole as JSON text, NUL-terminated: lm_text_free it; NULL: out of memory. finish: why it ended ("eos", "length" …). */
char *lm_receipt_json(const lm_receipt *r, const char *finish);
/* Into a file, which appears whole or not at all. */
lm_status lm_receipt_write(const lm_receipt *r, const char *finish, const char *path, lm_error *err);
void lm_receipt_free(lm_receipt *r);

/* ---- checking one ------------------------------------------------------------------------------------------------------------------ */
/* Runs `model` over the receipt's ids, in the receipt's lane, and draws every id again. Of the options: threads, cpu_level, chunk and the
 * callbacks; backend and lane may only repeat what the receipt says. The claims: that the receipt is as it was made, of these weights, that
 * every step's logits are the same bits, that every id is drawn again, and the sum of it. LM_UNSUPPORTED: another version of the contract
 * or of the format. *out is set on LM_OK, whatever the verdicts are. */
lm_status lm_verify_receipt(const char *model, const char *receipt, const lm_verify_options *o, lm_ledger **out, lm_error *err);

#ifdef __cplusplus
}
#endif
#endif
