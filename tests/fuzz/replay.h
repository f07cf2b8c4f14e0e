/* A fuzz target is LLVMFuzzerTestOneInput. Built with clang -fsanitize=fuzzer, libFuzzer brings main; built with gcc, this main replays
 * the files named on the command line (a corpus, or an input that once failed). */
#ifndef LM_TESTS_FUZZ_REPLAY_H
#define LM_TESTS_FUZZ_REPLAY_H
#include <stddef.h>
#include <stdint.h>
int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

#ifndef __clang__
#include "base/map.h"
#include <stdio.h>
int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        lm_map m;
        lm_error err;
        if (lm_map_open(argv[i], &m, &err) != LM_OK) {
            fprintf(stderr, "%s: %s\n", argv[i], err.message);
            return 2;
        }
        LLVMFuzzerTestOneInput(m.data, m.size);
        lm_map_close(&m);
    }
    return 0;
}
#endif
#endif
