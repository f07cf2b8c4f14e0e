/* SmolLM3: Llama with layers that have no rope (no_rope_layers: 1 means rope is applied). */
#include "arch/common/arch.h"

static void params(lm_b *b) {
    lm_hparams *h = &b->hp;
    lm_rope_spec s = lm_rope_read(b, NULL, 2e6, 1.0);
    uint32_t every = lm_cfg_u32(b, "no_rope_layer_interval", NULL, 4, 1, 512),
             *turned = lm_arena_calloc(b->g.p->arena, h->n_layers, sizeof *turned);
    if (!turned) {
        lm_graph_fail(&b->g, LM_NOMEM, "no_rope_layers", "out of memory");
        return;
    }
    for (uint32_t l = 0; l < h->n_layers; l++) turned[l] = (l + 1) % every != 0;
    lm_cfg_u32s(b, "no_rope_layers", NULL, turned, h->n_layers);
    for (uint32_t l = 0; l < h->n_layers; l++)
        if (turned[l]) lm_rope_layer(b, l, &s);
    uint32_t w = lm_cfg_u32(b, "sliding_window", NULL, 0, 0, INT32_MAX);
    bool listed = lm_cfg_has(b, "layer_types", NULL);
    bool on = lm_cfg_bool(b, "use_sliding_window", NULL, false);
    if (listed) lm_windows(b, w, 0); /* whether it is on or not, as transformers masks */
    for (uint32_t l = 0; l < h->n_layers && !listed; l++) h->layer[l].window = on && !turned[l] ? w : 0;
    lm_cfg_ignore(b, "max_window_layers", NULL);
    if (!b->gguf) {
        h->attn_bias = h->o_bias = lm_cfg_bool(b, "attention_bias", NULL, false);
        h->mlp_bias = lm_cfg_bool(b, "mlp_bias", NULL, false);
    }
}

const lm_arch lm_arch_smollm3 = {
    .name = "smollm3",
    .model_types = (const char *const[]){"smollm3", NULL},
    .nullable = "sliding_window|num_key_value_heads",
    .gguf = "smollm3",
    .gguf_permuted_qk = true,
    .tied_default = true,
    .bf16 = {.known = true, .norm_cast_first = true},
    .params = params,
};
