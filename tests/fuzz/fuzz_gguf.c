/* lm_gguf_parse on any bytes. */
#include "replay.h"
#include "touch.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) { return touch_file(lm_gguf_parse, p, n); }
