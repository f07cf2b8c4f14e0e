/* A model's files, any bytes in each: a folder with its shards and packed weights, a GGUF file in parts, the tokenizer of either. The input
 * is a list of files: a byte that picks the name, four of its length, what it holds (seeds.py writes such lists). */
#include "place.h"
#include "replay.h"
#include "speak.h"
#include "touch.h"

static const char *const names[] = {
    "config.json", "model.safetensors", "model.safetensors.index.json", "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf",
};
enum { CONFIG = 0, PART = 8, NAMES = sizeof names / sizeof *names };

/* The first and the last row of a tensor, decoded */
static void touch_rows(const lm_tensor *t) {
    const uint64_t rows = lm_tensor_rows(t), cols = lm_tensor_cols(t);
    double *v = rows && cols && cols <= 1u << 16 ? lm_malloc(cols * sizeof *v) : NULL;
    for (int last = 0; v && last < 2; last++) {
        lm_tensor_row_f64(t, last ? rows - 1 : 0, v);
        touch_sink += v[0] > v[cols - 1];
    }
    lm_free(v);
}
static void open_path(const char *path, const uint8_t *p, size_t n) {
    lm_source *s = NULL;
    lm_tokenizer *t = NULL;
    lm_error err = {0};
    lm_status st = lm_source_open(path, &s, &err);
    if (st != LM_OK) {
        if (st != LM_NOMEM && (err.code != st || !err.message[0] || strchr(err.message, '\n'))) abort();
        return;
    }
    touch_meta(&s->meta);
    touch_meta(&s->generation);
    for (uint32_t i = 0; i < s->n_tensors; i++) {
        if (lm_source_tensor(s, s->tensor[i].name) != &s->tensor[i]) abort();
        touch_rows(&s->tensor[i]);
    }
    st = lm_tokenizer_from_source(s, &t, &err);
    if (st == LM_OK) speak(t, p, n);
    lm_tokenizer_free(t);
    lm_source_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    const char *folder = place_new();
    char path[200];
    bool there[NAMES] = {false};
    for (size_t at = 0; n - at >= 5;) {
        const uint32_t name = p[at] % NAMES, all = (uint32_t)(p[at + 1] | p[at + 2] << 8 | p[at + 3] << 16) | (uint32_t)p[at + 4] << 24;
        at += 5;
        const size_t len = all < n - at ? all : n - at;
        place_file(names[name], p + at, len);
        there[name] = true;
        at += len;
    }
    if (there[CONFIG]) open_path(folder, p, n);
    snprintf(path, sizeof path, "%s/%s", folder, names[PART]);
    if (there[PART]) open_path(path, p, n);
    return 0;
}
