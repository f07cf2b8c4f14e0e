/* lm_tokenizer_from_json on any bytes, and a text through what it made. */
#include "place.h"
#include "replay.h"
#include "speak.h"
#include "touch.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    place_new();
    lm_tokenizer *t = NULL;
    lm_error err = {0};
    const lm_status st = lm_tokenizer_from_json(place_file("tokenizer.json", p, n), &t, &err);
    if (st != LM_OK) {
        touch_error(st, &err);
        return 0;
    }
    speak(t, p, n);
    lm_tokenizer_free(t);
    return 0;
}
