/* lm_safetensors_parse on any bytes. */
#include "replay.h"
#include "touch.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    lm_arena *a = lm_arena_create();
    if (!a) return 0;
    lm_parsed out = {0};
    lm_error err = {0};
    lm_status st = lm_safetensors_parse(p, n, "input", a, &out, &err);
    if (st == LM_OK) {
        touch_meta(&out.meta);
        touch_tensors(&out, p, n);
    } else {
        touch_error(st, &err);
    }
    if (lm_arena_bytes(a) > 65536 + 64 * n) abort(); /* memory in proportion to the file */
    lm_arena_destroy(a);
    return 0;
}
