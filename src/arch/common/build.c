#include "arch/common/export.h"
#include "arch_list.h"
#include <stdio.h>
#include <string.h>

const lm_arch *const lm_archs[] = {LM_ARCH_LIST NULL};

/* Keys of a config that say nothing about the arithmetic: bookkeeping, training, and what the engine takes from elsewhere. */
static const char *const harmless[] = {"architectures",
                                       "model_type",
                                       "transformers_version",
                                       "torch_dtype",
                                       "dtype",
                                       "use_cache",
                                       "bos_token_id",
                                       "eos_token_id",
                                       "pad_token_id",
                                       "sep_token_id",
                                       "decoder_start_token_id",
                                       "initializer_range",
                                       "initializer_factor",
                                       "attention_dropout",
                                       "attn_pdrop",
                                       "embd_pdrop",
                                       "resid_pdrop",
                                       "hidden_dropout",
                                       "hidden_dropout_prob",
                                       "embedding_dropout",
                                       "residual_dropout",
                                       "classifier_dropout",
                                       "summary_activation",
                                       "summary_first_dropout",
                                       "summary_proj_to_labels",
                                       "summary_type",
                                       "summary_use_proj",
                                       "task_specific_params",
                                       "_name_or_path",
                                       "name_or_path",
                                       "pretraining_tp",
                                       "router_aux_loss_coef",
                                       "output_router_logits",
                                       "aux_loss_alpha",
                                       "seq_aux",
                                       "ep_size",
                                       "moe_layer_freq",
                                       "router_jitter_noise",
                                       "output_attentions",
                                       "output_hidden_states",
                                       "return_dict",
                                       "is_encoder_decoder",
                                       "id2label",
                                       "label2id",
                                       "problem_type",
                                       "unsloth_fixed",
                                       "unsloth_version",
                                       "auto_map",
                                       "_attn_implementation",
                                       "_attn_implementation_autoset",
                                       "cache_implementation",
                                       "attn_implementation",
                                       "gradient_checkpointing",
                                       "max_position_embeddings",
                                       "vocab_size",
                                       "chunk_size_feed_forward",
                                       "is_decoder",
                                       "add_cross_attention",
                                       "cross_attention_hidden_size",
                                       "tie_encoder_decoder",
                                       "prefix",
                                       "finetuning_task",
                                       "num_nextn_predict_layers",
                                       "mtp_num_hidden_layers",
                                       "mtp_use_dedicated_embeddings",
                                       "keys_to_ignore_at_inference",
                                       "n_ctx",
                                       "tf_legacy_loss",
                                       "use_bfloat16",
                                       "pruned_heads",
                                       "torchscript",
                                       NULL};
/* GGUF keys (relative to the architecture) of the same kind. */
static const char *const harmless_gguf[] = {"context_length",     "vocab_size",           "lemma.source_sha256",
                                            "tensor_data_layout", "nextn_predict_layers", "lemma.tokenizer.prepend_scheme", NULL};
/* Tensor groups of a checkpoint that are not the text model, by prefix: skipped, and counted by name. */
static const char *const not_text[] = {"visual.",
                                       "model.visual.",
                                       "vision_tower.",
                                       "model.vision_tower.",
                                       "vision_model.",
                                       "model.vision_model.",
                                       "multi_modal_projector.",
                                       "model.multi_modal_projector.",
                                       "model.embed_vision.",
                                       "embed_vision.",
                                       "audio_tower.",
                                       "model.audio_tower.",
                                       "model.embed_audio.",
                                       "embed_audio.",
                                       "mtp.",
                                       "model.mtp.",
                                       "v.",
                                       "mm.",
                                       "a.",
                                       NULL};
/* Tensors that are derived data a program makes itself. */
static const char *const derived[] = {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", NULL};

static bool starts(const char *s, const char *prefix) { return !strncmp(s, prefix, strlen(prefix)); }
static bool ends(const char *s, const char *suffix) {
    size_t a = strlen(s), n = strlen(suffix);
    return a >= n && !strcmp(s + a - n, suffix);
}
static bool listed(const char *const *list, const char *s) {
    for (; list && *list; list++)
        if (!strcmp(*list, s)) return true;
    return false;
}

static const char *meta_str(const lm_source *s, const char *key) {
    const lm_value *v = lm_meta_get(&s->meta, key);
    return v && v->kind == LM_V_STRING ? v->str.s : NULL;
}

/* The model type of the text model, and the prefix of its keys. */
static const char *text_type(const lm_source *s, const char **prefix) {
    *prefix = "";
    if (meta_str(s, "text_config.model_type")) {
        *prefix = "text_config.";
        return meta_str(s, "text_config.model_type");
    }
    return meta_str(s, "model_type");
}

const lm_arch *lm_arch_find(const lm_source *src, lm_error *err) {
    const char *prefix, *type = src->kind == LM_SOURCE_GGUF ? meta_str(src, "general.architecture") : text_type(src, &prefix);
    for (const lm_arch *const *a = lm_archs; type && *a; a++)
        if (src->kind == LM_SOURCE_GGUF ? (*a)->gguf && !(*a)->gguf_alias && !strcmp((*a)->gguf, type) : listed((*a)->model_types, type))
            return *a;
    char known[480] = "";
    for (const lm_arch *const *a = lm_archs; *a; a++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", known[0] ? ", " : "", (*a)->name);
    lm_fail_at(err, LM_UNSUPPORTED, src->path, LM_NO_OFFSET, src->kind == LM_SOURCE_GGUF ? "general.architecture" : "model_type",
               "architecture '%.60s' is not known to lemma (known: %s)", type ? type : "(none)", known);
    return NULL;
}

/* "model." as this checkpoint spells it: found by where its embedding is. */
static void find_tensor_prefix(lm_b *b) {
    static const char *const tries[] = {"model.", "model.language_model.", "language_model.model.", "language_model.", "transformer.", "",
                                        NULL};
    for (int i = 0; tries[i]; i++) {
        char e[96], w[96];
        snprintf(e, sizeof e, "%sembed_tokens.weight", tries[i]);
        snprintf(w, sizeof w, "%swte.weight", tries[i]);
        if (lm_source_tensor(b->src, e) || lm_source_tensor(b->src, w)) {
            snprintf(b->tensor_prefix, sizeof b->tensor_prefix, "%s", tries[i]);
            return;
        }
    }
    snprintf(b->tensor_prefix, sizeof b->tensor_prefix, "model.");
}

/* A key beside text_config that is about another modality, or that text_config says too (and is read there). */
static bool not_text_key(lm_b *b, const char *key) {
    static const char *const begins[] = {"vision",
                                         "image",
                                         "video",
                                         "audio",
                                         "speech",
                                         "mm_",
                                         "projector",
                                         "projection_dim",
                                         "multimodal_projector",
                                         "spatial_merge_size",
                                         "ignore_index",
                                         "language_model_only",
                                         NULL};
    static const char *const close[] = {"_token_id", "_token_ids", "_token_index", NULL};
    char inner[200];
    for (int i = 0; begins[i]; i++)
        if (starts(key, begins[i])) return true;
    for (int i = 0; close[i]; i++)
        if (ends(key, close[i])) return true;
    snprintf(inner, sizeof inner, "%s%s", b->prefix, key);
    return lm_meta_get(&b->src->meta, inner) != NULL;
}

/* Ids that end or begin a text say nothing about the maths, but what is no id of the vocabulary would be lost without a word. −1 (and, as
 * GGUF's writers have it, 2³² − 1) is how some say "none". */
static void check_ids(lm_b *b, const lm_meta *m) {
    static const char *const keys[] = {"eos_token_id",
                                       "text_config.eos_token_id",
                                       "bos_token_id",
                                       "text_config.bos_token_id",
                                       "tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.bos_token_id",
                                       "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const lm_value *v = lm_meta_get(m, keys[i]);
        bool list = v && v->kind == LM_V_ARRAY && v->elem == LM_V_INT;
        if (!v || v->kind == LM_V_NULL) continue;
        if (v->kind != LM_V_INT && !list) {
            lm_graph_fail(&b->g, LM_FORMAT, keys[i], "must be a token id, a list of them, or null");
            continue;
        }
        for (uint64_t k = 0; k < (list ? v->arr.n : 1); k++) {
            int64_t id = list ? ((const int64_t *)v->arr.data)[k] : v->i;
            if (id != -1 && !(b->gguf && id == (int64_t)UINT32_MAX) && (id < 0 || id >= (int64_t)b->hp.vocab))
                lm_graph_fail(&b->g, LM_RANGE, keys[i], "is the token id %lld in a vocabulary of %u", (long long)id, b->hp.vocab);
        }
    }
}

/* ---- nothing unread -----------------------------------------------------------------------------------------------------------*/
static void check_keys(lm_b *b) {
    size_t np = b->gguf ? strlen(b->arch->gguf) : strlen(b->prefix);
    for (uint32_t i = 0; i < b->src->meta.n && lm_graph_ok(&b->g); i++) {
        const char *key = b->src->meta.entry[i].key;
        if (b->key_used[i] || b->src->meta.entry[i].value.kind == LM_V_NULL) continue;
        const char *rel = key;
        if (b->gguf) {
            bool own = starts(key, "lemma."), model = !strncmp(key, b->arch->gguf, np) && key[np] == '.';
            if (!own && !model) continue; /* general., tokenizer., split. … : not the model's maths */
            rel = own ? key : key + np + 1;
            if (listed(harmless_gguf, rel)) continue;
        } else {
            bool text = !strncmp(key, b->prefix, np);
            /* how packed weights are stored: src/format read it, and refused what it didn't know */
            if (starts(key, "quantization_config") || starts(key, "text_config.quantization_config") || starts(key, "compression_config"))
                continue;
            rel = text ? key + np : key;
            if (listed(harmless, rel)) continue;
            if (np && !text && not_text_key(b, key)) continue;
            if (starts(rel, "id2label.") || starts(rel, "label2id.") || starts(rel, "task_specific_params.") || starts(rel, "auto_map.") ||
                starts(rel, "vision_config") || starts(rel, "audio_config"))
                continue;
        }
        if (listed(b->arch->ignored, rel)) continue;
        lm_graph_fail(&b->g, LM_UNSUPPORTED, key,
                      "this config key is not understood by lemma's %s; running without it could change the result", b->arch->name);
    }
}

/* How many layers past the last are there for multi-token prediction: what the config says, and no more. */
static uint32_t nextn_layers(const lm_b *b) {
    char key[96];
    if (b->gguf)
        snprintf(key, sizeof key, "%s.nextn_predict_layers", b->arch->gguf);
    else
        snprintf(key, sizeof key, "%snum_nextn_predict_layers", b->prefix);
    const lm_value *v = lm_meta_get(&b->src->meta, key);
    return v && v->kind == LM_V_INT && v->i > 0 ? (uint32_t)(v->i < 64 ? v->i : 64) : 0;
}

static const char *skip_group(lm_b *b, const char *name) {
    for (int i = 0; not_text[i]; i++)
        if (starts(name, not_text[i])) return not_text[i];
    for (int i = 0; derived[i]; i++)
        if (ends(name, derived[i])) return derived[i];
    for (uint32_t l = 0, n = nextn_layers(b); l < n; l++) {
        char next[96];
        snprintf(next, sizeof next, "%s%u.", b->gguf ? "blk." : "model.layers.", b->hp.n_layers + l);
        if (starts(name, next)) return "nextn layer";
    }
    return NULL;
}

static void check_tensors(lm_b *b, lm_skipped *skipped, uint32_t *n_skipped) {
    for (uint32_t i = 0; i < b->src->n_tensors && lm_graph_ok(&b->g); i++) {
        if (b->tensor_used[i] == 1) {
            b->g.p->bytes_used += b->src->tensor[i].bytes;
            continue;
        }
        const char *group = b->tensor_used[i] ? "weights that the architecture leaves unread" : skip_group(b, b->src->tensor[i].name);
        if (!group) {
            lm_graph_fail(&b->g, LM_UNSUPPORTED, b->src->tensor[i].name,
                          "this tensor is in the file but lemma's %s does not use it; running without it could change the result",
                          b->arch->name);
            return;
        }
        uint32_t k = 0;
        while (k < *n_skipped && strcmp(skipped[k].group, group)) k++;
        if (k == *n_skipped) skipped[(*n_skipped)++] = (lm_skipped){.group = group};
        skipped[k].count++;
    }
}

static lm_status build(const lm_source *src, lm_log *log, lm_program **out, const lm_arch **arch, const lm_skipped **skipped,
                       uint32_t *n_skipped, lm_error *err) {
    lm_b b = {.src = src, .gguf = src->kind == LM_SOURCE_GGUF, .log = log};
    b.arch = lm_arch_find(src, err);
    if (!b.arch) return LM_UNSUPPORTED;
    LM_TRY(lm_graph_init(&b.g, b.arch->name, err));
    const char *prefix = "";
    if (!b.gguf) text_type(src, &prefix);
    snprintf(b.prefix, sizeof b.prefix, "%s", prefix);
    lm_arena *a = b.g.p->arena;
    lm_skipped *skip = lm_arena_calloc(a, sizeof not_text / sizeof *not_text + 5, sizeof *skip);
    b.key_used = lm_arena_alloc(a, src->meta.n + 1);
    b.tensor_used = lm_arena_alloc(a, src->n_tensors + 1);
    uint32_t n_skip = 0;
    if (!skip || !b.key_used || !b.tensor_used) {
        lm_graph_fail(&b.g, LM_NOMEM, "program", "out of memory building the program");
    } else {
        find_tensor_prefix(&b);
        lm_common_params(&b);
        if (lm_graph_ok(&b.g) && b.arch->params) b.arch->params(&b);
        if (lm_graph_ok(&b.g)) lm_decoder(&b);
        if (log) lm_log_finish(&b);
        check_keys(&b);
        check_ids(&b, &src->meta);
        check_ids(&b, &src->generation);
        check_tensors(&b, skip, &n_skip);
    }
    lm_status s = lm_graph_finish(&b.g, out, err);
    if (s != LM_OK) {
        lm_error_set_file(err, src->path);
        return s;
    }
    if (arch) *arch = b.arch;
    if (skipped) *skipped = skip, *n_skipped = n_skip;
    return LM_OK;
}

lm_status lm_arch_build(const lm_source *src, lm_program **out, const lm_arch **arch, const lm_skipped **skipped, uint32_t *n_skipped,
                        lm_error *err) {
    return build(src, NULL, out, arch, skipped, n_skipped, err);
}

lm_status lm_arch_build_logged(const lm_source *src, lm_log *log, lm_program **out, lm_error *err) {
    return build(src, log, out, NULL, NULL, NULL, err);
}
