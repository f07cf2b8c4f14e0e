/* lm_trace_open on any bytes, for a program of two layers. */
#include "place.h"
#include "replay.h"
#include "touch.h"
#include "verify/verify.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    static lm_value_info value[4] = {{.width = 8}, {.width = 8}, {.width = 8}, {.width = 8}};
    static lm_val out[2] = {1, 2};
    static const lm_program program = {
        .vocab = 16, .hidden = 8, .n_layers = 2, .value = value, .n_values = 4, .embed = 0, .layer_out = out, .norm = 3};
    place_new();
    lm_trace *t = NULL;
    lm_error err = {0};
    const lm_status st = lm_trace_open(place_file("trace.safetensors", p, n), &program, &t, &err);
    if (st != LM_OK) {
        touch_error(st, &err);
        return 0;
    }
    for (uint32_t i = 0; i < t->n_cases; i++) {
        const lm_trace_case *c = &t->c[i];
        for (uint32_t k = 0; k < c->n; k++) touch_sink += (uint64_t)c->ids[k];
        for (size_t k = 0; c->top_ids && k < (size_t)c->n * c->n_top; k++) touch_sink += (uint64_t)c->top_ids[k];
        for (uint32_t k = 0; k < c->n_greedy; k++) touch_sink += (uint64_t)c->greedy[k];
    }
    lm_trace_close(t);
    return 0;
}
