/* Gemma 3n and 4: what their configs may leave out, spell otherwise or must not say, and the parts of their programs that no other family
 * has. The numbers themselves are checked against the fixtures' traces by `lemma verify`. */
#include "check.h"
#include "arch/common/arch.h"
#include "base/smallfloat.h"
#include <stdio.h>
#include <stdlib.h>

enum { MAX_EDITS = 8 };
typedef struct edit {
    const char *key;
    lm_value value;
    bool drop; /* of the key and of everything below it */
} edit;
#define INTEGER(x) {.kind = LM_V_INT, .i = (x), .u = (uint64_t)(int64_t)(x)}
#define NUMBER(x) {.kind = LM_V_FLOAT, .f = (x)}
#define TEXT(x) {.kind = LM_V_STRING, .str = {(x), sizeof(x) - 1}}
#define TRUTH(x) {.kind = LM_V_BOOL, .b = (x)}
#define NOTHING {.kind = LM_V_NULL}

static int by_key(const void *a, const void *b) { return strcmp(((const lm_meta_entry *)a)->key, ((const lm_meta_entry *)b)->key); }
static bool below(const char *key, const char *top) {
    size_t n = strlen(top);
    return !strncmp(key, top, n) && (!key[n] || key[n] == '.');
}

/* The fixture's program under an edited config; the source stays open in *src for as long as the program is used. */
static lm_status build(const char *fixture, const edit *e, size_t n, lm_source **src, lm_program **p, lm_error *err) {
    char path[128];
    snprintf(path, sizeof path, "tests/fixtures/%s", fixture);
    assert_int_equal(lm_source_open(path, src, err), LM_OK);
    lm_source s = **src;
    lm_meta_entry *all = calloc(s.meta.n + MAX_EDITS, sizeof *all);
    assert_non_null(all);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s.meta.n; i++) {
        bool gone = false;
        for (size_t k = 0; k < n; k++) gone |= below(s.meta.entry[i].key, e[k].key);
        if (!gone) all[kept++] = s.meta.entry[i];
    }
    for (size_t k = 0; k < n; k++)
        if (!e[k].drop) all[kept++] = (lm_meta_entry){e[k].key, e[k].value};
    qsort(all, kept, sizeof *all, by_key);
    s.meta = (lm_meta){all, kept};
    lm_status got = lm_arch_build(&s, p, NULL, NULL, NULL, err);
    free(all);
    return got;
}

static lm_program *built(const char *fixture, const edit *e, size_t n, lm_source **src) {
    lm_error err = {0};
    char line[1500];
    lm_program *p = NULL;
    if (build(fixture, e, n, src, &p, &err) != LM_OK) fail_msg("%s: %s", fixture, lm_error_line(&err, line, sizeof line));
    return p;
}
static void done(lm_program *p, lm_source *s) {
    lm_program_free(p);
    lm_source_close(s);
}
static const lm_op *op_of(const lm_program *p, const char *name) {
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (!strcmp(p->op[i].name, name)) return &p->op[i];
    fail_msg("the program has no op '%s'", name);
    return NULL;
}

/* ---- configs ---------------------------------------------------------------------------------------------------------------------*/
typedef struct refusal {
    const char *fixture;
    edit edit;
    const char *names, *says;
} refusal;
static const refusal refusals[] = {
    {"gemma4", {"final_logit_softcapping", INTEGER(0)}, "final_logit_softcapping", "positive"},
    {"gemma4", {"final_logit_softcapping", NUMBER(-0.0)}, "final_logit_softcapping", "positive"},
    {"gemma4", {"final_logit_softcapping", NUMBER(-3.0)}, "final_logit_softcapping", "positive"},
    {"gemma4", {"final_logit_softcapping", NUMBER(INFINITY)}, "final_logit_softcapping", "finite"},
    {"gemma4", {"final_logit_softcapping", NUMBER(NAN)}, "final_logit_softcapping", "finite"},
    {"gemma4", {"final_logit_softcapping", TEXT("30")}, "final_logit_softcapping", "number"},
    {"gemma4", {"final_logit_softcapping", TRUTH(true)}, "final_logit_softcapping", "number"},
    {"gemma3n", {"final_logit_softcapping", NUMBER(-1.0)}, "final_logit_softcapping", "positive"},
    {"gemma3n", {"final_logit_softcapping", NOTHING}, "final_logit_softcapping", "is null"}, /* its class takes a number only */
    {"gemma4", {"use_bidirectional_attention", TEXT("all")}, "use_bidirectional_attention", "all"},
    {"gemma4", {"a_key_of_tomorrow", INTEGER(1)}, "a_key_of_tomorrow", "not understood"},
    {"gemma4", {"rope_theta", NUMBER(1e4)}, "rope_theta", "not understood"},
    {"gemma4", {"rope_parameters.full_attention", .drop = true}, "rope_parameters", "full_attention"},
    {"gemma4", {"rope_parameters.full_attention.rope_type", TEXT("dynamic")}, "rope_type", "dynamic"},
    {"gemma4", {"sliding_window", INTEGER(0)}, "sliding_window", "between 1"},
    {"gemma4", {"num_kv_shared_layers", INTEGER(7)}, "num_kv_shared_layers", "between 0 and 6"},
    {"gemma4", {"num_kv_shared_layers", INTEGER(6)}, "num_kv_shared_layers", "kind"},
    {"gemma4", {"num_global_key_value_heads", INTEGER(3)}, "num_global_key_value_heads", "divide"},
    {"gemma4", {"attention_k_eq_v", TRUTH(false)}, "v_proj", "missing"},
    {"gemma4", {"attention_bias", TRUTH(true)}, "bias", "missing"},
    {"gemma4", {"global_head_dim", INTEGER(64)}, "q_proj", "wants shape"},
    {"gemma4", {"enable_moe_block", TRUTH(true)}, "num_experts", "missing"},
    {"gemma4", {"enable_moe_block", TEXT("yes")}, "enable_moe_block", "true or false"},
    {"gemma4", {"hidden_size_per_layer_input", .drop = true}, "embed_tokens_per_layer", "missing"}, /* 256 when absent */
    {"gemma4_unified", {"hidden_size_per_layer_input", INTEGER(16)}, "hidden_size_per_layer_input", "between 0 and 0"},
    {"gemma4_unified", {"enable_moe_block", TRUTH(true)}, "enable_moe_block", "no experts"},
    {"gemma4_e2b", {"use_double_wide_mlp", TRUTH(false)}, "gate_proj", "wants shape"},
    {"gemma4_e2b", {"num_kv_shared_layers", INTEGER(2)}, "k_proj", "missing"},
    {"gemma4_e2b", {"vocab_size_per_layer_input", INTEGER(100)}, "vocab_size_per_layer_input", "less than"},
    {"gemma4_moe", {"top_k_experts", INTEGER(9)}, "num_experts", "9 of 8"},
    {"gemma4_moe", {"moe_intermediate_size", INTEGER(16)}, "gate_up_proj", "wants shape"},
    {"gemma3n", {"altup_active_idx", INTEGER(4)}, "altup_active_idx", "between 0 and 3"},
    {"gemma3n", {"altup_num_inputs", INTEGER(3)}, "wants shape", "[3, 64]"},
    {"gemma3n", {"altup_num_inputs", INTEGER(1)}, "altup_num_inputs", "between 2"},
    {"gemma3n", {"laurel_rank", INTEGER(9)}, "linear_left", "wants shape"},
    {"gemma3n", {"vocab_size_per_layer_input", INTEGER(305)}, "embed_tokens_per_layer", "wants shape"},
    {"gemma3n", {"num_kv_shared_layers", INTEGER(8)}, "num_kv_shared_layers", "kind"},
    {"gemma3n", {"activation_sparsity_pattern", NUMBER(1.0)}, "activation_sparsity_pattern", "[0, 1)"},
    {"gemma3n", {"rope_parameters.rope_type", TEXT("default")}, "rope_parameters", "sliding_attention"},
    {"gguf/gemma4.gguf", {"gemma4.attention.key_length_swa", INTEGER(32)}, "attn_q", "wants shape"},
    {"gguf/gemma4.gguf", {"gemma4.rope.scaling.type", TEXT("odd")}, "rope.scaling.type", "odd"},
    {"gguf/gemma4.gguf", {"gemma4.attention.head_count_kv", INTEGER(3)}, "head_count_kv", "divide"},
};
static void refused_by_name(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const refusal *r = &refusals[i];
        lm_source *src = NULL;
        lm_program *p = NULL;
        lm_error err = {0};
        char line[1500];
        if (build(r->fixture, &r->edit, 1, &src, &p, &err) == LM_OK) fail_msg("%s with %s edited was accepted", r->fixture, r->edit.key);
        lm_error_line(&err, line, sizeof line);
        if (!strstr(line, r->names) || !strstr(line, r->says))
            fail_msg("%s, %s: '%s' lacks '%s' or '%s'", r->fixture, r->edit.key, line, r->names, r->says);
        assert_null(strchr(line, '\n'));
        lm_source_close(src);
    }
}

/* Two programs that compute the same: ops, widths, geometry, rotation, constants. */
static void same_program(const lm_program *a, const lm_program *b, bool same_names) {
    assert_int_equal(a->n_ops, b->n_ops);
    assert_int_equal(a->n_slots, b->n_slots);
    assert_memory_equal(a->slot, b->slot, a->n_slots * sizeof *a->slot);
    for (uint32_t i = 0; i < a->n_ops; i++) {
        const lm_op *x = &a->op[i], *y = &b->op[i];
        if (same_names) assert_string_equal(x->name, y->name);
        assert_int_equal(x->kind, y->kind);
        assert_int_equal(a->value[x->out].width, b->value[y->out].width);
        const lm_val in_x[] = {x->a, x->b, x->c, x->d}, in_y[] = {y->a, y->b, y->c, y->d};
        assert_memory_equal(in_x, in_y, sizeof in_x);
        if (x->kind == LM_OP_ATTENTION) assert_memory_equal(&x->attn, &y->attn, sizeof x->attn);
        if (x->kind == LM_OP_SCALE) assert_true(x->scale.c == y->scale.c && x->scale.bf16 == y->scale.bf16);
        if (x->kind == LM_OP_SPARSIFY) assert_true(x->sparsify.c == y->sparsify.c);
        if (x->kind == LM_OP_SOFTCAP) assert_true(x->softcap.c == y->softcap.c);
        if (x->kind != LM_OP_ROPE) continue;
        const lm_rope *r = &a->rope[x->rope.rope], *s = &b->rope[y->rope.rope];
        assert_int_equal(r->n_pairs, s->n_pairs);
        assert_memory_equal(r->inv_freq, s->inv_freq, r->n_pairs * sizeof *r->inv_freq);
    }
}

typedef struct spelling {
    const char *fixture;
    size_t n;
    edit edit[MAX_EDITS];
} spelling;
static const spelling spellings[] = {
    {"gemma4",
     5,
     {{"layer_types", .drop = true},
      {"num_kv_shared_layers", .drop = true},
      {"use_double_wide_mlp", .drop = true},
      {"hidden_activation", .drop = true},
      {"tie_word_embeddings", .drop = true}}},
    {"gemma4", 3, {{"enable_moe_block", .drop = true}, {"num_experts", NOTHING}, {"use_bidirectional_attention", NOTHING}}},
    {"gemma4",
     6,
     {{"global_head_dim", .drop = true},
      {"num_global_key_value_heads", .drop = true},
      {"per_layer_config.5.head_dim", INTEGER(32)},
      {"per_layer_config.5.num_key_value_heads", INTEGER(2)},
      {"per_layer_config.6.head_dim", INTEGER(32)},
      {"per_layer_config.6.num_key_value_heads", INTEGER(2)}}},
    {"gemma4_unified",
     3,
     {{"use_bidirectional_attention", .drop = true}, {"hidden_size_per_layer_input", INTEGER(0)}, {"enable_moe_block", TRUTH(false)}}},
    {"gemma3n",
     5,
     {{"altup_num_inputs", .drop = true},
      {"altup_active_idx", .drop = true},
      {"altup_correct_scale", .drop = true},
      {"altup_coef_clip", .drop = true},
      {"rope_theta", .drop = true}}},
    {"gemma3n",
     5,
     {{"rope_theta", .drop = true},
      {"rope_local_base_freq", .drop = true},
      {"rope_parameters.full_attention.rope_type", TEXT("default")},
      {"rope_parameters.sliding_attention.rope_type", TEXT("default")},
      {"rope_parameters.sliding_attention.rope_theta", NUMBER(1e4)}}},
    {"gemma3n", 1, {{"intermediate_size", INTEGER(64)}}},
};
static void left_out_or_spelled_otherwise(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        lm_source *s = NULL, *t = NULL;
        lm_program *a = built(spellings[i].fixture, NULL, 0, &s), *b = built(spellings[i].fixture, spellings[i].edit, spellings[i].n, &t);
        same_program(a, b, true);
        done(a, s);
        done(b, t);
    }
}

static void gguf_is_the_same_program(void **state) {
    (void)state;
    lm_source *s = NULL, *t = NULL;
    lm_program *a = built("gemma4", NULL, 0, &s), *b = built("gguf/gemma4.gguf", NULL, 0, &t);
    same_program(a, b, true);
    done(a, s);
    done(b, t);
}

static void softcap_absent_and_null(void **state) {
    (void)state;
    const edit absent = {"final_logit_softcapping", .drop = true}, null = {"final_logit_softcapping", NOTHING};
    const struct { const char *fixture; const edit *e; double cap; } cases[] = {
        {"gemma4", &absent, 0}, {"gemma4", &null, 0}, {"gemma3n", &absent, 30}, {"gemma2", &absent, 30}, {"gemma2", &null, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lm_source *s = NULL;
        lm_program *p = built(cases[i].fixture, cases[i].e, 1, &s);
        const lm_op *last = &p->op[p->n_ops - 1];
        if (cases[i].cap == 0) assert_int_equal(last->kind, LM_OP_LINEAR);
        else assert_true(last->kind == LM_OP_SOFTCAP && last->softcap.c == cases[i].cap);
        done(p, s);
    }
}

static void window_by_class(void **state) {
    (void)state;
    const edit absent = {"sliding_window", .drop = true};
    const struct { const char *fixture; uint32_t window; } cases[] = {{"gemma4", 512}, {"gemma4_unified", 1024}, {"gemma3n", 512}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lm_source *s = NULL;
        lm_program *p = built(cases[i].fixture, &absent, 1, &s);
        assert_int_equal(op_of(p, "layer.0.attn.ctx")->attn.window, cases[i].window);
        done(p, s);
    }
}

/* ---- programs ----------------------------------------------------------------------------------------------------------------------*/
static void embedding_scale(void **state) {
    (void)state;
    const struct { double hidden, bf16; } sizes[] = {{3840, 62.0}, {3072, 55.5}, {96, 9.8125}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        assert_true(lm_bf16_to_f32(lm_f32_to_bf16((float)sqrt(sizes[i].hidden))) == (float)sizes[i].bf16);
    lm_source *s = NULL;
    lm_program *p = built("tower", NULL, 0, &s);
    const lm_op *o = op_of(p, "embed");
    assert_int_equal(o->kind, LM_OP_SCALE);
    assert_true(o->scale.c == sqrt(96.0) && o->scale.bf16);
    assert_int_equal(p->n_layers, 48);
    done(p, s);
}

static void keys_are_values(void **state) {
    (void)state;
    lm_source *s = NULL;
    lm_program *p = built("gemma4", NULL, 0, &s);
    const lm_op *full = op_of(p, "layer.5.attn.v_norm"), *windowed = op_of(p, "layer.4.attn.v_norm");
    assert_string_equal(p->value[full->a].name, "layer.5.attn.k"); /* the projection, before its norm and rope */
    assert_string_equal(p->value[windowed->a].name, "layer.4.attn.v");
    assert_int_equal(full->v, LM_NONE);
    assert_true(op_of(p, "layer.5.attn.ctx")->attn.scale == 1.0);
    assert_int_equal(op_of(p, "layer.5.attn.ctx")->attn.dk, 32);
    assert_int_equal(op_of(p, "layer.4.attn.ctx")->attn.dk, 16);
    const lm_rope *r = &p->rope[op_of(p, "layer.5.attn.q_rope")->rope.rope]; /* half of 16 pairs turn, by exponents over all of them */
    assert_true(r->n_pairs == 16 && r->inv_freq[8] == 0.0 && r->inv_freq[7] == (double)(float)pow(2000.0, -14.0 / 32.0));
    done(p, s);
}

static void shared_caches(void **state) {
    (void)state;
    const struct {
        const char *fixture;
        uint32_t reader, owner;
    } cases[] = {{"gemma4_e2b", 4, 3}, {"gemma4_e2b", 5, 2}, {"gemma4_e2b", 6, 2}, {"gemma3n", 6, 4}, {"gemma3n", 7, 4}, {"gemma3n", 8, 5}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lm_source *s = NULL;
        lm_program *p = built(cases[i].fixture, NULL, 0, &s);
        char reader[64], owner[64];
        snprintf(reader, sizeof reader, "layer.%u.attn.ctx", cases[i].reader);
        snprintf(owner, sizeof owner, "layer.%u.attn.ctx", cases[i].owner);
        const lm_op *r = op_of(p, reader), *o = op_of(p, owner);
        assert_true(!r->attn.store && o->attn.store && r->attn.slot == o->attn.slot && r->attn.window == o->attn.window);
        assert_true(r->b == LM_NONE && r->c == LM_NONE);
        done(p, s);
    }
}

/* Gemma 3n stores its prediction coefficients [out][in], the program takes them [in][out]; its token table is shorter than the vocabulary.
 */
static void gemma3n_row_maps(void **state) {
    (void)state;
    lm_source *s = NULL;
    lm_program *p = built("gemma3n", NULL, 0, &s);
    const lm_weight *w = &p->weight[op_of(p, "layer.0.altup.predict_coefs")->w], *table = &p->weight[op_of(p, "layer_input.lookup")->w];
    const lm_tensor *t;
    uint64_t row;
    for (uint32_t in = 0; in < 4; in++)
        for (uint32_t out = 0; out < 4; out++) {
            lm_weight_row(w, 0, in * 4 + out, &t, &row);
            assert_int_equal(row, out * 4 + in);
        }
    assert_int_equal(table->rows, 320);
    const uint64_t rows[][2] = {{0, 0}, {1, 1}, {303, 303}, {304, 0}, {305, 0}, {319, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lm_weight_row(table, 0, rows[i][0], &t, &row);
        assert_int_equal(row, rows[i][1]);
    }
    assert_int_equal(p->value[p->embed].width, 4 * 64);
    assert_int_equal(p->value[p->layer_out[0]].width, 4 * 64);
    done(p, s);
}

static void sparsity_cut(void **state) {
    (void)state;
    lm_source *s = NULL;
    lm_program *p = built("gemma3n", NULL, 0, &s);
    assert_true(fabs(op_of(p, "layer.0.ffn.sparse")->sparsify.c - 1.6448536) < 5e-7);
    done(p, s);
    const struct { double p, cut; } cases[] = {{0.5, 0.0}, {0.3, -0.5244005}, {0.99, 2.3263479}, {0.999999, 4.7534243}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const edit e = {"activation_sparsity_pattern", NUMBER(cases[i].p)};
        p = built("gemma3n", &e, 1, &s);
        /* p is a float32 */
        assert_true(fabs(op_of(p, "layer.8.ffn.sparse")->sparsify.c - cases[i].cut) < (cases[i].p > 0.9999 ? 0.01 : 2e-6));
        done(p, s);
    }
    const edit none = {"activation_sparsity_pattern", NUMBER(0.0)};
    p = built("gemma3n", &none, 1, &s);
    for (uint32_t i = 0; i < p->n_ops; i++) assert_int_not_equal(p->op[i].kind, LM_OP_SPARSIFY);
    done(p, s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_by_name),   cmocka_unit_test(left_out_or_spelled_otherwise), cmocka_unit_test(gguf_is_the_same_program),
        cmocka_unit_test(softcap_absent_and_null), cmocka_unit_test(window_by_class),         cmocka_unit_test(embedding_scale),
        cmocka_unit_test(keys_are_values),   cmocka_unit_test(shared_caches),                 cmocka_unit_test(gemma3n_row_maps),
        cmocka_unit_test(sparsity_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
