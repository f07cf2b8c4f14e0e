/* lm_receipt_read on any bytes. */
#include "place.h"
#include "replay.h"
#include "touch.h"
#include "verify/receipt.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    place_new();
    lm_receipt *r = NULL;
    lm_error err = {0};
    char digest[LM_RECEIPT_DIGEST + 1];
    const lm_status st = lm_receipt_read(place_file("receipt.json", p, n), &r, &err);
    if (st != LM_OK) {
        touch_error(st, &err);
        return 0;
    }
    for (uint32_t i = 0; i < LM_RECEIPT_N_FIELDS; i++) {
        lm_receipt_field_digest(r, i, digest);
        touch_sink += strcmp(digest, r->digest[i]) == 0;
    }
    lm_receipt_free(r);
    return 0;
}
