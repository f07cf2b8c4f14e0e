/* lm_config_parse and lm_st_index_parse on any bytes. */
#include "replay.h"
#include "touch.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    lm_arena *a = lm_arena_create();
    if (!a) return 0;
    lm_meta m = {0};
    lm_st_index x = {0};
    lm_error err = {0};
    lm_status st = lm_config_parse(p, n, "input", a, &m, &err);
    if (st == LM_OK)
        touch_meta(&m);
    else
        touch_error(st, &err);
    err = (lm_error){0};
    st = lm_st_index_parse(p, n, "input", a, &x, &err);
    if (st != LM_OK) touch_error(st, &err);
    for (uint32_t i = 0; i < x.n_rows; i++)
        if (x.row[i].shard >= x.n_shards || strchr(x.shard[x.row[i].shard], '/')) abort();
    lm_arena_destroy(a);
    return 0;
}
