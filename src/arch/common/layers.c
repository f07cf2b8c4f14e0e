#include "arch/common/arch.h"
#include <string.h>

void lm_windows(lm_b *b, uint32_t window, uint32_t period) {
    lm_hparams *h = &b->hp;
    const lm_value *types = lm_cfg_raw(b, "layer_types", NULL),
                   *pattern = lm_cfg_raw(b, "sliding_window_pattern", "attention.sliding_window_pattern");
    if (!types) lm_cfg_not_null(b, "sliding_window_pattern");
    bool flags = pattern && pattern->kind == LM_V_ARRAY;
    if (types && (types->kind != LM_V_ARRAY || types->elem != LM_V_STRING || types->arr.n != h->n_layers)) {
        lm_graph_fail(&b->g, LM_FORMAT, "layer_types", "must name a type for each of the %u layers", h->n_layers);
        return;
    }
    if (flags && (pattern->elem != LM_V_BOOL || pattern->arr.n < h->n_layers)) {
        lm_graph_fail(&b->g, LM_FORMAT, "sliding_window_pattern", "must be a period or a flag for each of the %u layers", h->n_layers);
        return;
    }
    if (pattern && !flags) period = lm_cfg_u32(b, "sliding_window_pattern", "attention.sliding_window_pattern", period, 1, 512);
    for (uint32_t l = 0; l < h->n_layers; l++) {
        bool slides;
        if (types) {
            const char *t = ((const lm_str *)types->arr.data)[l].s;
            slides = !strcmp(t, "sliding_attention");
            if (!slides && strcmp(t, "full_attention")) {
                lm_graph_fail(&b->g, LM_UNSUPPORTED, "layer_types", "layer %u is of type '%.40s', which lemma's %s does not know", l, t,
                              b->arch->name);
                return;
            }
        } else {
            slides = flags ? ((const uint8_t *)pattern->arr.data)[l] != 0 : period == 0 || (l + 1) % period != 0;
        }
        if (slides && types && !window)
            lm_graph_fail(&b->g, LM_FORMAT, "layer_types",
                          "layer %u slides, but the config has no window (sliding_window, use_sliding_window)", l);
        h->layer[l].window = slides ? window : 0;
    }
}
