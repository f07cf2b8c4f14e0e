/* Packed checkpoints: values against goldens (tools/make_packed_goldens.py), what is refused, memory. */
#include "check.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"
#include "format/source.h"
#include "quant/private.h"
#include "tensor/packed.h"

#define DATA "tests/data/packed/"

static lm_source *opened(const char *path) {
    lm_source *s = NULL;
    lm_error err = {0};
    if (lm_source_open(path, &s, &err) != LM_OK) fail_msg("%s: %s: %s", err.file, err.field, err.message);
    return s;
}
static bool same(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

/* ---- values --------------------------------------------------------------------------------------------------------------------*/
/* Every way to read a row gives the golden: exactly in double, rounded once in float. */
static void check_tensor(const char *folder, const lm_tensor *t, const lm_tensor *want) {
    const uint64_t rows = lm_tensor_rows(t), cols = lm_tensor_cols(t), size = lm_tensor_row_size(t);
    double *w = malloc(cols * 8), *d = malloc((cols + 1) * 8), *e = malloc(cols * 8);
    float *f = malloc((cols + 1) * 4);
    uint8_t *bytes = malloc(size);
    assert_true(w && d && e && f && bytes);
    if (t->rank != want->rank || memcmp(t->dim, want->dim, t->rank * sizeof *t->dim)) fail_msg("%s: %s: another shape", folder, t->name);
    for (uint64_t r = 0; r < rows; r++) {
        d[cols] = 12345;
        f[cols] = 54321;
        lm_tensor_row_f64(want, r, w);
        lm_tensor_row_f64(t, r, d);
        lm_tensor_row_f32(t, r, f);
        assert_ptr_equal(lm_tensor_row_bytes(t, r, bytes), bytes);
        lm_dequant_f64(t->type, bytes, e, cols);
        for (uint64_t k = 0; k < cols; k++)
            if (!same(w[k], d[k]) || !same(w[k], e[k]) || !same((float)w[k], f[k]))
                fail_msg("%s: %s [%d, %d]: want %a, got %a, %a, %a", folder, t->name, (int)r, (int)k, w[k], d[k], e[k], f[k]);
        assert_true(d[cols] == 12345 && f[cols] == 54321);
    }
    free(w), free(d), free(e), free(f), free(bytes);
}

static void check_folder(const char *folder, uint32_t n, const char *packing) {
    char path[200];
    lm_source *s, *want = NULL;
    lm_error err = {0};
    snprintf(path, sizeof path, DATA "%s", folder);
    s = opened(path);
    snprintf(path, sizeof path, DATA "%s/want.safetensors", folder);
    if (lm_safetensors_open(path, &want, &err) != LM_OK) fail_msg("%s", err.message);
    assert_int_equal(want->n_tensors, n);
    for (uint32_t i = 0; i < n; i++) {
        const lm_tensor *t = lm_source_tensor(s, want->tensor[i].name);
        if (!t) fail_msg("%s: no %s", folder, want->tensor[i].name);
        assert_true(t->packed && !t->data);
        check_tensor(folder, t, &want->tensor[i]);
        lm_source_release(s, t);
        check_tensor(folder, t, &want->tensor[i]); /* its pages come back */
    }
    uint32_t packed = 0;
    uint64_t bytes = 0, stored = 0;
    for (uint32_t i = 0; i < s->n_tensors; i++) {
        packed += s->tensor[i].packed != NULL;
        bytes += s->tensor[i].bytes;
        if (i) assert_true(strcmp(s->tensor[i - 1].name, s->tensor[i].name) < 0);
        for (uint32_t k = 0; s->tensor[i].packed && k < s->tensor[i].packed->n_parts; k++) stored += s->tensor[i].packed->part[k]->bytes;
        if (!s->tensor[i].packed) stored += s->tensor[i].bytes;
    }
    assert_int_equal(packed, n);
    assert_int_equal(bytes, stored);
    assert_true(strstr(s->packing, packing) != NULL);
    lm_source_close(want);
    lm_source_close(s);
}

static void test_goldens(void **state) {
    (void)state;
    check_folder("mxfp4", 1, "mxfp4: 1 weights");
    check_folder("fp8_block", 4, "its dynamic quantization of activations is not applied");
    check_folder("fp8_static", 3, "its static quantization of activations is not applied");
    check_folder("gptq4", 4, "gptq");
    check_folder("gptq4_sym", 2, "gptq");
    check_folder("gptq8", 2, "gptq");
    check_folder("gptq8_v2", 1, "gptq");
    check_folder("awq", 1, "awq");
    check_folder("ct_int4", 4, "compressed-tensors: 4 weights, dequantized exactly");
    check_folder("ct_int4_sym", 1, "compressed-tensors");
    check_folder("ct_int8_sym", 1, "compressed-tensors");
    check_folder("ct_int8", 4, "its dynamic quantization");
    check_folder("ct_fp8", 3, "its dynamic quantization");
}

/* Fast types where they hold the weight exactly, private ones else, floats where columns of a block differ in scale. */
static void test_types(void **state) {
    (void)state;
    static const char *const want[][3] = {
        {"mxfp4", "a.experts.up", "MXFP4"},
        {"fp8_block", "even.weight", "FP8_E4M3"},
        {"fp8_block", "ragged.weight", "F64"},
        {"fp8_block", "half.weight", "FP8_E4M3"},
        {"fp8_static", "rows.weight", "FP8_E5M2"},
        {"fp8_static", "list.weight", "F32"},
        {"gptq4", "plain.weight", "INT4"},
        {"gptq4", "act.weight", "F32"},
        {"gptq4", "wide.weight", "F64"},
        {"gptq4", "runs.weight", "INT4"},
        {"gptq4_sym", "a.weight", "Q4_0"},
        {"gptq4_sym", "b.weight", "Q4_0"},
        {"gptq8", "a.weight", "INT8"},
        {"gptq8", "b.weight", "F32"},
        {"awq", "a.weight", "INT4"},
        {"ct_int4", "sym.weight", "INT4"},
        {"ct_int4_sym", "a.weight", "Q4_0"},
        {"ct_int4", "channel.weight", "F64"},
        {"ct_int8_sym", "a.weight", "Q8_0"},
        {"ct_int8", "tensor.weight", "INT8"},
        {"ct_int8", "odd.weight", "F32"},
        {"ct_fp8", "block.weight", "FP8_E4M3"},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        char path[200];
        snprintf(path, sizeof path, DATA "%s", want[i][0]);
        lm_source *s = opened(path);
        const lm_tensor *t = lm_source_tensor(s, want[i][1]);
        if (!t || strcmp(t->type->name, want[i][2]))
            fail_msg("%s: %s is %s, want %s", want[i][0], want[i][1], t ? t->type->name : "-", want[i][2]);
        lm_source_close(s);
    }
    for (size_t i = 0; lm_dtypes[i]; i++) assert_true(lm_dtypes[i] != &lm_private_int4 && lm_dtypes[i] != &lm_private_e4m3);
    assert_null(lm_dtype_by_name("INT4"));
}

/* What transformers makes of the fixture's expert stacks. */
static void test_gpt_oss(void **state) {
    (void)state;
    lm_source *s = opened("tests/fixtures/gpt_oss");
    FILE *f = fopen(DATA "gpt_oss.sha256", "r");
    char name[200], want[65], got[65];
    uint8_t digest[32];
    static double row[128];
    uint32_t n = 0;
    assert_non_null(f);
    for (; fscanf(f, "%199s %64s", name, want) == 2; n++) {
        const lm_tensor *t = lm_source_tensor(s, name);
        assert_true(t && t->packed && lm_tensor_cols(t) <= 128);
        lm_sha256 h;
        lm_sha256_init(&h);
        for (uint64_t r = 0; r < lm_tensor_rows(t); r++) {
            lm_tensor_row_f64(t, r, row);
            for (uint64_t k = 0; k < lm_tensor_cols(t); k++) row[k] += 0.0;
            lm_sha256_update(&h, row, lm_tensor_cols(t) * 8);
        }
        lm_sha256_final(&h, digest);
        lm_sha256_hex(digest, got);
        if (strcmp(got, want)) fail_msg("%s differs from transformers' values", name);
    }
    fclose(f);
    assert_int_equal(n, 8);
    lm_source_close(s);
}

/* Private types: random blocks, float32 is the exact double rounded once. */
static void test_private_f32(void **state) {
    (void)state;
    const lm_dtype *const types[] = {&lm_private_int4, &lm_private_int8, &lm_private_e4m3, &lm_private_e5m2};
    uint8_t block[LM_INT8_BYTES];
    double d[32];
    float f[32];
    srand(7);
    for (size_t k = 0; k < 4; k++)
        for (int n = 0; n < 2000; n++) {
            for (size_t i = 0; i < sizeof block; i++) block[i] = (uint8_t)(rand() >> 7);
            if (k == 0) block[4] %= 17;
            if (k == 1) block[5] &= 0; /* zero points fit a byte and one more */
            types[k]->decode(block, d, 1);
            types[k]->decode_f32(block, f, 1);
            for (int i = 0; i < 32; i++) assert_true(same((float)d[i], f[i]));
            if (!types[k]->ints) continue;
            int8_t q[32];
            float scale, min;
            types[k]->ints(block, q, &scale, &min);
            for (int i = 0; i < 32; i++) assert_true(same((double)scale * q[i], d[i]));
        }
}

/* ---- what is refused -----------------------------------------------------------------------------------------------------------*/
static char dir[64];

static int make_dir(void **state) {
    (void)state;
    strcpy(dir, "/tmp/lm_packed_XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}
static int remove_dir(void **state) {
    (void)state;
    char path[200];
    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    unlink(path);
    return rmdir(dir);
}

typedef struct stored {
    const char *name, *type;
    uint32_t rank;
    uint64_t dim[4];
    int fill;
} stored;

static void checkpoint(const char *quantization, const stored *t, uint32_t n) {
    static uint8_t bytes[65536];
    char path[200];
    lm_st_out out[12];
    size_t at = 0;
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, quantization ? "{\"model_type\": \"llama\", \"quantization_config\": %s}" : "{\"model_type\": \"llama\"}", quantization);
    fclose(f);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t size;
        assert_true(lm_shape_bytes(lm_dtype_by_st(t[i].type), t[i].rank, t[i].dim, &size) && at + size <= sizeof bytes);
        memset(bytes + at, t[i].fill, size);
        if (!strcmp(t[i].type, "I64")) memcpy(bytes + at, (const int64_t[]){8, 64}, 16);
        out[i] = (lm_st_out){.name = t[i].name, .st_dtype = t[i].type, .rank = t[i].rank, .data = bytes + at, .bytes = size};
        memcpy(out[i].dim, t[i].dim, sizeof t[i].dim);
        at += size;
    }
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(lm_safetensors_write(path, out, n, NULL, NULL), LM_OK);
}

static void refused(const char *quantization, const stored *t, uint32_t n, lm_status code, const char *field, const char *message) {
    lm_source *s = NULL;
    lm_error err = {0};
    checkpoint(quantization, t, n);
    lm_status st = lm_source_open(dir, &s, &err);
    if (st == LM_OK) lm_source_close(s);
    if (st != code || strcmp(err.field, field) || !strstr(err.message, message) || strchr(err.message, '\n'))
        fail_msg("%s: got %s, %s: %s; wanted %s, %s: %s", quantization, lm_status_name(st), err.field, err.message, lm_status_name(code),
                 field, message);
}
static void accepted(const char *quantization, const stored *t, uint32_t n) {
    checkpoint(quantization, t, n);
    lm_source_close(opened(dir));
}
#define REFUSED(q, code, field, message, ...) \
    refused(q, (const stored[]){__VA_ARGS__}, sizeof((const stored[]){__VA_ARGS__}) / sizeof(stored), code, field, message)
#define ACCEPTED(q, ...) accepted(q, (const stored[]){__VA_ARGS__}, sizeof((const stored[]){__VA_ARGS__}) / sizeof(stored))

static const stored plain = {"x.weight", "F32", 2, {4, 4}, 0};

static void test_config(void **state) {
    (void)state;
    const char *const unknown[] = {"bitsandbytes", "hqq", "aqlm", "quanto", "torchao", "GPTQ", ""};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        char q[100], text[100];
        snprintf(q, sizeof q, "{\"quant_method\": \"%s\"}", unknown[i]);
        snprintf(text, sizeof text, "quantization method '%s' is not supported (supported: mxfp4, fp8, gptq, awq, compressed-tensors)",
                 unknown[i]);
        refused(q, &plain, 1, LM_UNSUPPORTED, "quantization_config.quant_method", text);
    }
    static const struct {
        const char *q, *key, *message;
        lm_status code;
    } bad[] = {
        {"{\"bits\": 4}", "quant_method", "'(none)' is not supported", LM_FORMAT},
        {"{\"quant_method\": \"mxfp4\", \"swizzle\": true}", "swizzle", "not understood", LM_UNSUPPORTED},
        {"{\"quant_method\": \"fp8\", \"activation_scheme\": \"odd\"}", "activation_scheme", "\"odd\" is not supported", LM_UNSUPPORTED},
        {"{\"quant_method\": \"fp8\", \"weight_block_size\": [128]}", "weight_block_size", "two positive integers", LM_FORMAT},
        {"{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 0]}", "weight_block_size", "two positive integers", LM_FORMAT},
        {"{\"quant_method\": \"fp8\", \"expert_dtype\": \"fp4\"}", "expert_dtype", "\"fp4\"", LM_UNSUPPORTED},
        {"{\"quant_method\": \"gptq\", \"bits\": 3, \"group_size\": 32}", "bits", "\"3\" is not supported", LM_UNSUPPORTED},
        {"{\"quant_method\": \"gptq\", \"bits\": \"4\", \"group_size\": 32}", "bits", "must be an integer", LM_FORMAT},
        {"{\"quant_method\": \"gptq\", \"group_size\": 32}", "bits", "must be an integer", LM_FORMAT},
        {"{\"quant_method\": \"gptq\", \"bits\": 4}", "group_size", "is missing", LM_FORMAT},
        {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 0}", "group_size", "must be a positive integer", LM_FORMAT},
        {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 32, \"checkpoint_format\": \"marlin\"}", "checkpoint_format",
         "\"marlin\"", LM_UNSUPPORTED},
        {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 32, \"dynamic\": {\"+:.*up.*\": {\"bits\": 8}}}",
         "dynamic.+:.*up.*.bits", "not understood", LM_UNSUPPORTED},
        {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 32, \"is_marlin_format\": true}", "is_marlin_format", "\"true\"",
         LM_UNSUPPORTED},
        {"{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 32, \"version\": \"gemv\"}", "version", "\"gemv\"", LM_UNSUPPORTED},
        {"{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 32, \"zero_point\": false}", "zero_point", "\"false\"", LM_UNSUPPORTED},
        {"{\"quant_method\": \"compressed-tensors\", \"format\": \"marlin-24\"}", "format", "\"marlin-24\"", LM_UNSUPPORTED},
        {"{\"quant_method\": \"compressed-tensors\", \"format\": \"nvfp4-pack-quantized\"}", "format", "\"nvfp4-pack-quantized\"",
         LM_UNSUPPORTED},
        {"{\"quant_method\": \"compressed-tensors\", \"quantization_status\": \"frozen\"}", "quantization_status", "\"frozen\"",
         LM_UNSUPPORTED},
        {"{\"quant_method\": \"compressed-tensors\", \"kv_cache_scheme\": {\"num_bits\": 8}}", "kv_cache_scheme.num_bits", "not understood",
         LM_UNSUPPORTED},
        {"{\"quant_method\": \"compressed-tensors\", \"sparsity_config\": {\"format\": \"sparse-bitmask\"}}", "sparsity_config.format",
         "\"sparse-bitmask\"", LM_UNSUPPORTED},
        {"{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"g\": {\"weights\": {\"num_bits\": 3}}}}",
         "config_groups.g.weights.num_bits", "\"3\"", LM_UNSUPPORTED},
        {"{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"g\": {\"weights\": {\"strategy\": \"odd\"}}}}",
         "config_groups.g.weights.strategy", "\"odd\"", LM_UNSUPPORTED},
        {"{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"g\": {\"output_activations\": {\"num_bits\": 8}}}}",
         "config_groups.g.output_activations.num_bits", "not understood", LM_UNSUPPORTED},
        {"{\"quant_method\": \"compressed-tensors\", \"transform_config\": {\"config_groups\": {\"u\": {\"type\": \"hadamard\"}}}}",
         "transform_config.config_groups.u.type", "not understood", LM_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char key[200];
        snprintf(key, sizeof key, "quantization_config.%s", bad[i].key);
        refused(bad[i].q, &plain, 1, bad[i].code, key, bad[i].message);
    }
    ACCEPTED("{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 32, \"dynamic\": {\"-:.*gate.*\": {}}, \"meta\": {\"quantizer\": "
             "[\"x\"]}, \"backend\": null}",
             plain);
}

/* checkpoint() puts the text after "quantization_config": another section may follow it. */
static void test_two_sections(void **state) {
    (void)state;
    REFUSED("{\"quant_method\": \"mxfp4\"}, \"compression_config\": {\"quant_method\": \"fp8\"}", LM_UNSUPPORTED, "compression_config.",
            "two quantization sections", plain);
    REFUSED("null, \"text_config\": {\"quantization_config\": {\"quant_method\": \"odd\"}}", LM_UNSUPPORTED,
            "text_config.quantization_config.quant_method", "'odd' is not supported", plain);
    REFUSED("null, \"compression_config\": {\"quant_method\": \"odd\"}", LM_UNSUPPORTED, "compression_config.quant_method",
            "'odd' is not supported", plain);
    /* null blocks are none, a missing key is transformers' 128 x 128 */
    const stored w = {"a.weight", "F8_E4M3", 2, {40, 256}, 1}, s = {"a.weight_scale_inv", "F32", 2, {1, 2}, 0};
    ACCEPTED("{\"quant_method\": \"fp8\"}", w, s);
    REFUSED("{\"quant_method\": \"fp8\", \"weight_block_size\": null}", LM_FORMAT, "a.weight_scale_inv", "doesn't fit", w, s);
}

static void test_no_section(void **state) {
    (void)state;
    REFUSED(NULL, LM_FORMAT, "quantization_config", "missing, but the tensor a.qweight", {"a.qweight", "I32", 2, {8, 8}, 0});
    REFUSED(NULL, LM_FORMAT, "quantization_config", "a.weight_scale_inv", {"a.weight", "F8_E4M3", 2, {8, 8}, 0},
            {"a.weight_scale_inv", "F32", 2, {1, 1}, 0});
    ACCEPTED(NULL, plain, {"a.weight", "F8_E4M3", 2, {8, 8}, 0}); /* plain FP8 numbers */
}

#define MX "{\"quant_method\": \"mxfp4\"}"
#define F8 "{\"quant_method\": \"fp8\", \"weight_block_size\": [16, 32]}"
static void test_shapes(void **state) {
    (void)state;
    REFUSED(MX, LM_FORMAT, "a_blocks", "its companion a_scales is missing", {"a_blocks", "U8", 4, {2, 3, 2, 16}, 0});
    REFUSED(MX, LM_FORMAT, "a_scales", "without the codes", {"a_scales", "U8", 3, {2, 3, 2}, 0});
    REFUSED(MX, LM_FORMAT, "a_scales", "U8 [2, 3, 3] doesn't fit the codes a_blocks U8 [2, 3, 2, 16]",
            {"a_blocks", "U8", 4, {2, 3, 2, 16}, 0}, {"a_scales", "U8", 3, {2, 3, 3}, 0});
    REFUSED(MX, LM_FORMAT, "a_blocks", "MXFP4 codes must be", {"a_blocks", "U8", 4, {2, 3, 2, 8}, 0}, {"a_scales", "U8", 3, {2, 3, 2}, 0});
    REFUSED(MX, LM_FORMAT, "a", "both packed and plain", {"a_blocks", "U8", 4, {2, 3, 2, 16}, 0}, {"a_scales", "U8", 3, {2, 3, 2}, 0},
            {"a", "F32", 1, {1}, 0});

    const stored w = {"a.weight", "F8_E4M3", 2, {40, 64}, 1};
    REFUSED(F8, LM_FORMAT, "a.weight", "its companion a.weight_scale is missing", w);
    REFUSED(F8, LM_FORMAT, "a.weight_scale_inv", "doesn't fit", w, {"a.weight_scale_inv", "F32", 2, {2, 2}, 0});
    REFUSED(F8, LM_FORMAT, "a.weight_scale_inv", "doesn't fit", w, {"a.weight_scale_inv", "F32", 1, {40}, 0});
    REFUSED(F8, LM_FORMAT, "a.weight_scale_inv", "doesn't fit", w, {"a.weight_scale_inv", "F32", 3, {2, 3, 2}, 0});
    REFUSED(F8, LM_FORMAT, "a.weight_scale_inv", "not a group size", w, {"a.weight_scale_inv", "F32", 2, {40, 2}, 0});
    REFUSED(F8, LM_FORMAT, "a.weight_scale_inv", "scales of type I8", w, {"a.weight_scale_inv", "I8", 2, {3, 2}, 0});
    REFUSED(F8, LM_FORMAT, "a.weight_scale_inv", "without the codes", {"a.weight_scale_inv", "F32", 2, {3, 2}, 0});
    REFUSED(F8, LM_FORMAT, "b.input_scale", "without the codes", w, {"a.weight_scale_inv", "F32", 2, {3, 2}, 0},
            {"b.input_scale", "F32", 0, {0}, 0});
    ACCEPTED(F8, w, {"a.weight_scale_inv", "F32", 2, {3, 2}, 0}, {"a.input_scale", "F32", 0, {0}, 0});
}

#define Q4 "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 32}"
#define AWQ "{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 32}"
static void test_gptq_shapes(void **state) {
    (void)state;
    const stored c = {"a.qweight", "I32", 2, {8, 16}, 0}, z = {"a.qzeros", "I32", 2, {2, 2}, 0}, s = {"a.scales", "F16", 2, {2, 16}, 0};
    ACCEPTED(Q4, c, z, s);
    REFUSED(Q4, LM_FORMAT, "a.qweight", "its companion a.qzeros is missing", c, s);
    REFUSED(Q4, LM_FORMAT, "a.qweight", "its companion a.scales is missing", c, z);
    REFUSED(Q4, LM_FORMAT, "a.qzeros", "without the codes", z);
    REFUSED(Q4, LM_FORMAT, "a.weight", "both packed and plain", c, z, s, {"a.weight", "F32", 2, {16, 64}, 0});
    REFUSED(Q4, LM_FORMAT, "a.qweight", "must be I32", {"a.qweight", "U8", 2, {8, 16}, 0}, z, s);
    REFUSED(Q4, LM_FORMAT, "a.qweight", "no whole number of words", {"a.qweight", "I32", 2, {8, 12}, 0}, z, s);
    REFUSED(Q4, LM_FORMAT, "a.qzeros", "doesn't fit", c, {"a.qzeros", "I32", 2, {2, 3}, 0}, s);
    REFUSED(Q4, LM_FORMAT, "a.scales", "doesn't fit", c, z, {"a.scales", "F16", 2, {2, 8}, 0});
    REFUSED(Q4, LM_FORMAT, "a.scales", "don't fit the config's group size", c, {"a.qzeros", "I32", 2, {4, 2}, 0},
            {"a.scales", "F16", 2, {4, 16}, 0});
    REFUSED(Q4, LM_FORMAT, "a.g_idx", "doesn't fit", c, z, s, {"a.g_idx", "I32", 1, {63}, 0});
    REFUSED(Q4, LM_FORMAT, "a.g_idx", "column 0 is in group 16843009, and there are 2 groups", c, z, s, {"a.g_idx", "I32", 1, {64}, 1});
    REFUSED(Q4, LM_FORMAT, "a.g_idx", "column 0 is in group -1", c, z, s, {"a.g_idx", "I32", 1, {64}, 255});
    const stored ac = {"a.qweight", "I32", 2, {64, 2}, 0};
    ACCEPTED(AWQ, ac, z, s);
    REFUSED(AWQ, LM_FORMAT, "a.scales", "doesn't fit", {"a.qweight", "I32", 2, {64, 3}, 0}, z, s);
}

#define CT(w) "{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"group_0\": {\"weights\": {" w "}}}}"
static void test_ct_shapes(void **state) {
    (void)state;
    const stored c = {"a.weight_packed", "I32", 2, {8, 8}, 0}, n = {"a.weight_shape", "I64", 1, {2}, 0},
                 s = {"a.weight_scale", "BF16", 2, {8, 2}, 0};
    const char *const sym = CT("\"group_size\": 32"), *const asym = CT("\"group_size\": 32, \"symmetric\": false");
    ACCEPTED(sym, c, n, s);
    ACCEPTED(asym, c, n, s, {"a.weight_zero_point", "I32", 2, {1, 2}, 0});
    REFUSED(asym, LM_FORMAT, "a.weight_packed", "zero points (a.weight_zero_point) are missing", c, n, s);
    REFUSED(sym, LM_FORMAT, "a.weight_packed", "its companion a.weight_shape is missing", c, s);
    REFUSED(sym, LM_FORMAT, "a.weight_shape", "doesn't fit", {"a.weight_packed", "I32", 2, {8, 9}, 0}, n, s);
    REFUSED(sym, LM_FORMAT, "a.weight_shape", "doesn't fit", {"a.weight_packed", "I32", 2, {7, 8}, 0}, n, s);
    REFUSED(sym, LM_FORMAT, "a.weight_scale", "not a group size", c, n, {"a.weight_scale", "BF16", 2, {8, 3}, 0});
    REFUSED(sym, LM_FORMAT, "a.weight_zero_point", "doesn't fit", c, n, s, {"a.weight_zero_point", "I32", 2, {2, 2}, 0});
    REFUSED(sym, LM_FORMAT, "a.weight_zero_point", "a zero point of 9 is outside 4 bits", c, n, s,
            {"a.weight_zero_point", "I8", 2, {8, 2}, 9});
    const stored i8 = {"a.weight", "I8", 2, {8, 64}, 0}, f8 = {"a.weight", "F8_E4M3", 2, {8, 64}, 0},
                 one = {"a.weight_scale", "F32", 2, {8, 1}, 0};
    ACCEPTED(sym, i8, one);
    ACCEPTED(sym, f8, one, {"a.weight_zero_point", "F8_E4M3", 2, {8, 1}, 0});
    REFUSED(asym, LM_FORMAT, "a.weight", "zero points", i8, one);
    REFUSED(sym, LM_FORMAT, "a.weight_zero_point", "other than 0", f8, one, {"a.weight_zero_point", "F8_E4M3", 2, {8, 1}, 3});
    REFUSED(sym, LM_FORMAT, "a.weight_zero_point", "without the codes", {"a.weight_zero_point", "I8", 2, {8, 1}, 0}, plain);
}

/* The type of a.weight: what the scales' values allow. */
static void read_as(const char *type, const char *quantization, const stored *t, uint32_t n) {
    checkpoint(quantization, t, n);
    lm_source *s = opened(dir);
    const lm_tensor *a = lm_source_tensor(s, "a.weight");
    if (!a || strcmp(a->type->name, type)) fail_msg("%s, want %s", a ? a->type->name : "none", type);
    lm_source_close(s);
}
#define READ_AS(type, q, ...) read_as(type, q, (const stored[]){__VA_ARGS__}, sizeof((const stored[]){__VA_ARGS__}) / sizeof(stored))

static void test_scale_values(void **state) {
    (void)state;
    const char *const sym = CT("\"group_size\": 32");
    const stored c = {"a.weight_packed", "I32", 2, {8, 8}, 0}, n = {"a.weight_shape", "I64", 1, {2}, 0};
    const stored half = {"a.weight_scale", "BF16", 2, {8, 2}, 0x3c}, tiny = {"a.weight_scale", "BF16", 2, {8, 2}, 1};
    READ_AS("Q4_0", sym, c, n, half);
    READ_AS("INT4", sym, c, n, tiny); /* 2^-126 is no half */
    READ_AS("INT4", sym, c, n, half, {"a.weight_zero_point", "I32", 2, {1, 2}, 0x87});
    /* one weight that isn't Q4_0 exactly, and none is: experts of a layer need one type */
    READ_AS("INT4", sym, c, n, half, {"b.weight_packed", "I32", 2, {8, 8}, 0}, {"b.weight_shape", "I64", 1, {2}, 0},
            {"b.weight_scale", "BF16", 2, {8, 2}, 1});
    const stored odd = {"a.weight", "I8", 2, {8, 40}, 1};
    READ_AS("F32", sym, odd, {"a.weight_scale", "BF16", 2, {8, 1}, 0x3c});
    READ_AS("F64", sym, odd, {"a.weight_scale", "BF16", 2, {8, 1}, 0x7f}); /* times 127 leaves float32 */
    READ_AS("F64", sym, odd, {"a.weight_scale", "F32", 2, {8, 1}, 0x3c});
}

static void test_out_of_memory(void **state) {
    (void)state;
    lm_error err;
    lm_status st = LM_NOMEM;
    for (uint64_t n = 1; st != LM_OK; n++) {
        lm_source *s = NULL;
        lm_alloc_fail_after(n);
        st = lm_source_open(DATA "gptq4", &s, &err);
        lm_alloc_fail_after(0);
        if (st == LM_OK)
            lm_source_close(s);
        else
            assert_int_equal(st, LM_NOMEM);
        assert_true(n < 10000);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_gpt_oss),
        cmocka_unit_test(test_private_f32),
        cmocka_unit_test_setup_teardown(test_config, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_two_sections, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_no_section, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_shapes, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_gptq_shapes, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_ct_shapes, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_scale_values, make_dir, remove_dir),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
