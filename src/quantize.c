/* lm_quantize: a Hugging Face folder to one GGUF file. What is in the file comes from arch/common/export.h; here it gets its types. */
#include "arch/common/export.h"
#include "format/gguf_write.h"
#include "lemma/lemma.h"
#include "tokenizer/to_gguf.h"
#include <stdio.h>
#include <string.h>

enum { GGUF_U32 = 4, GGUF_STRING = 8, MAX_GENERAL = 8 };
static const float F16_MOST = 65504.0f; /* no type holds less */

/* general.file_type: llama.cpp's number for "mostly" this type */
static const struct { const char *name; uint32_t file_type; } targets[] = {
    {"F32", 0}, {"F16", 1}, {"Q4_0", 2}, {"Q4_1", 3}, {"Q8_0", 7}, {"Q5_0", 8}, {"Q5_1", 9}, {"BF16", 32},
};

typedef struct job {
    lm_source *src;
    lm_export *x;
    lm_quantize_options o;
    lm_quantize_result result;
    lm_meta_entry *kv;
    lm_gguf_out *out;
    uint32_t n_kv;
    double *row, *scratch; /* of the tensor being written */
    float *narrow;
    uint32_t current; /* which that is */
} job;

/* ---- metadata ------------------------------------------------------------------------------------------------------------------------*/
static void put_str(job *j, const char *key, const char *s) {
    j->kv[j->n_kv++] = (lm_meta_entry){key, {.kind = LM_V_STRING, .str = {s, strlen(s)}, .gguf_type = GGUF_STRING}};
}
static void put_u32(job *j, const char *key, uint32_t v) {
    j->kv[j->n_kv++] = (lm_meta_entry){key, {.kind = LM_V_INT, .i = v, .u = v, .gguf_type = GGUF_U32}};
}

static int32_t id_of(const lm_source *src, const char *key) {
    char text[80];
    snprintf(text, sizeof text, "text_config.%s", key);
    const lm_value *v = lm_meta_get(&src->meta, key);
    if (!v) v = lm_meta_get(&src->meta, text);
    int64_t id = v && v->kind == LM_V_INT ? v->i : -1;
    if (v && v->kind == LM_V_ARRAY && v->elem == LM_V_INT && v->arr.n) id = ((const int64_t *)v->arr.data)[0];
    return id >= 0 && id <= INT32_MAX ? (int32_t)id : -1;
}

/* The folder's last part, for general.name. */
static const char *folder_name(const char *path, lm_arena *a) {
    size_t end = strlen(path), at;
    while (end && path[end - 1] == '/') end--;
    for (at = end; at && path[at - 1] != '/';) at--;
    return lm_arena_strndup(a, path + at, end - at);
}

static bool hashing(void *ctx, uint64_t done, uint64_t total) {
    job *j = ctx;
    return !j->o.progress || j->o.progress(j->o.progress_ctx, "hashing the weights", done, total);
}

static lm_status make_metadata(job *j, uint32_t file_type, lm_error *err) {
    lm_arena *a = j->x->program->arena;
    lm_meta_entry *tok = NULL;
    uint32_t n_tok = 0, vocab = j->x->program->vocab;
    lm_status s = lm_tokenizer_to_gguf(j->src, a, vocab, &tok, &n_tok, err);
    j->result.standin_tokenizer = s == LM_MISSING;
    if (s == LM_MISSING) s = lm_standin_to_gguf(a, vocab, id_of(j->src, "bos_token_id"), id_of(j->src, "eos_token_id"), &tok, &n_tok, err);
    LM_TRY(s);
    char hex[65];
    LM_TRY(lm_source_sha256(j->src, hex, hashing, j, err));
    const char *name = folder_name(j->src->path, a), *sha = lm_arena_strndup(a, hex, 64);
    j->kv = lm_arena_calloc(a, (size_t)MAX_GENERAL + j->x->n_kv + n_tok, sizeof *j->kv);
    if (!j->kv || !name || !sha) return lm_fail_nomem(err, "the metadata", 0);
    put_str(j, "general.architecture", j->x->arch); /* first, as readers expect */
    put_str(j, "general.type", "model");
    put_str(j, "general.name", name[0] ? name : j->x->program->arch);
    for (uint32_t i = 0; i < j->x->n_kv; i++)
        if (strcmp(j->x->kv[i].key, "general.architecture")) j->kv[j->n_kv++] = j->x->kv[i];
    put_u32(j, "general.file_type", file_type);
    put_u32(j, "general.quantization_version", 2);
    memcpy(j->kv + j->n_kv, tok, n_tok * sizeof *tok);
    j->n_kv += n_tok;
    put_str(j, "lemma.source_sha256", sha);
    return LM_OK;
}

/* ---- types ---------------------------------------------------------------------------------------------------------------------------*/
static void note(job *j, const char *line) {
    if (j->o.note) j->o.note(j->o.note_ctx, line);
}

static lm_status choose_types(job *j, const lm_dtype *want, lm_error *err) {
    const lm_dtype *f32 = lm_dtype_by_name("F32"), *f16 = lm_dtype_by_name("F16");
    char line[320];
    j->out = lm_arena_calloc(j->x->program->arena, j->x->n_tensors + 1, sizeof *j->out);
    if (!j->out) return lm_fail_nomem(err, "the tensors", j->x->n_tensors * sizeof *j->out);
    for (uint32_t i = 0; i < j->x->n_tensors; i++) {
        const lm_export_tensor *t = &j->x->tensor[i];
        uint64_t cols = t->dim[t->rank - 1], bytes;
        bool raw = t->w && !strcmp(t->w->type->name, "MXFP4") && !t->cols.per && !t->head_rows;
        lm_gguf_out *o = &j->out[i];
        *o = (lm_gguf_out){.name = t->name, .type = raw ? t->w->type : t->f32 || t->rank == 1 ? f32 : want, .rank = t->rank};
        memcpy(o->dim, t->dim, sizeof t->dim);
        if (raw && want != o->type) {
            snprintf(line, sizeof line, "%s stays %s", t->name, o->type->name);
        } else if (cols % o->type->block) {
            snprintf(line, sizeof line, "%s is stored as f16: a row of %llu is no whole number of %u", t->name, (unsigned long long)cols,
                     o->type->block);
            o->type = f16;
        } else {
            line[0] = 0;
        }
        if (line[0]) note(j, line), j->result.other_type++;
        if (!lm_shape_bytes(o->type, o->rank, o->dim, &bytes))
            return lm_fail_at(err, LM_RANGE, j->src->path, LM_NO_OFFSET, t->name, "its shape is too large");
        j->result.bytes += bytes;
    }
    j->result.tensors = j->x->n_tensors;
    return LM_OK;
}

/* ---- rows ----------------------------------------------------------------------------------------------------------------------------*/
static void drop_buffers(job *j) {
    lm_free(j->row);
    lm_free(j->scratch);
    lm_free(j->narrow);
    j->row = j->scratch = NULL;
    j->narrow = NULL;
}

static lm_status take_buffers(job *j, uint32_t i, lm_error *err) {
    const lm_export_tensor *t = &j->x->tensor[i];
    uint64_t n = t->dim[t->rank - 1], scratch = lm_export_scratch(t);
    drop_buffers(j);
    j->current = i;
    j->row = lm_calloc(n, sizeof *j->row);
    j->narrow = lm_calloc(n, sizeof *j->narrow);
    if (scratch) j->scratch = lm_calloc(scratch, sizeof *j->scratch);
    return j->row && j->narrow && (!scratch || j->scratch) ? LM_OK : lm_fail_nomem(err, "a row", n * sizeof *j->row);
}

/* What a type can't hold (f16, and the f16 scales of blocks) becomes infinite as it is encoded. */
static lm_status check_held(job *j, const lm_export_tensor *t, const lm_dtype *type, uint64_t r, const uint8_t *row, lm_error *err) {
    uint64_t n = t->dim[t->rank - 1];
    double most = 0;
    for (uint64_t k = 0; k < n; k++) most = fmax(most, fabs(j->row[k]));
    lm_dequant_f64(type, row, j->row, n);
    for (uint64_t k = 0; k < n; k++)
        if (!isfinite(j->row[k]))
            return lm_fail_at(err, LM_RANGE, j->src->path, LM_NO_OFFSET, t->name, "row %llu holds %g, which %s can't; choose bf16 or f32",
                              (unsigned long long)r, most, type->name);
    return LM_OK;
}

static lm_status write_row(void *ctx, uint32_t i, uint64_t r, uint8_t *dst, lm_error *err) {
    job *j = ctx;
    const lm_export_tensor *t = &j->x->tensor[i];
    const lm_dtype *type = j->out[i].type;
    uint64_t n = t->dim[t->rank - 1];
    if (!j->row || j->current != i) LM_TRY(take_buffers(j, i, err));
    if (t->w && type == t->w->type && !type->encode) { /* as it is */
        const lm_tensor *from;
        uint64_t row;
        lm_weight_row(t->w, (uint32_t)(r / t->w->rows), r % t->w->rows, &from, &row);
        const uint8_t *bytes = lm_tensor_row_bytes(from, row, dst); /* dst itself, of a packed one */
        if (bytes != dst) memcpy(dst, bytes, (size_t)(n / type->block * type->bytes));
        return LM_OK;
    }
    lm_export_row(t, r, j->row, j->scratch);
    bool large = false;
    for (uint64_t k = 0; k < n; k++) {
        j->narrow[k] = (float)j->row[k];
        if (!isfinite(j->row[k]))
            return lm_fail_at(err, LM_RANGE, j->src->path, LM_NO_OFFSET, t->name, "row %llu, element %llu is %g: the checkpoint is damaged",
                              (unsigned long long)r, (unsigned long long)k, j->row[k]);
        large |= !(fabsf(j->narrow[k]) < F16_MOST);
    }
    type->encode(j->narrow, dst, (size_t)(n / type->block));
    return large ? check_held(j, t, type, r, dst, err) : LM_OK;
}

static bool writing(void *ctx, uint64_t done, uint64_t total) {
    job *j = ctx;
    return !j->o.progress || j->o.progress(j->o.progress_ctx, "writing", done, total);
}

/* ---- the whole ----------------------------------------------------------------------------------------------------------------------*/
static lm_status run(job *j, const char *folder, const char *out, const lm_dtype *want, uint32_t file_type, lm_error *err) {
    LM_TRY(lm_source_open(folder, &j->src, err));
    LM_TRY(lm_target_check(out, j->src, err));
    LM_TRY(lm_export_build(j->src, &j->x, err));
    LM_TRY(make_metadata(j, file_type, err));
    LM_TRY(choose_types(j, want, err));
    const lm_gguf_rows rows = {.row = write_row, .progress = writing, .ctx = j};
    return lm_gguf_write(out, j->kv, j->n_kv, j->out, j->x->n_tensors, &rows, err);
}

lm_status lm_quantize(const char *folder, const char *out, const char *type, const lm_quantize_options *options, lm_quantize_result *result,
                      lm_error *err) {
    const lm_dtype *want = lm_dtype_by_name(type);
    uint32_t k = 0, n = sizeof targets / sizeof *targets;
    while (k < n && (!want || strcmp(targets[k].name, want->name))) k++;
    if (k == n || !want->encode)
        return lm_fail_at(err, LM_USAGE, NULL, LM_NO_OFFSET, "type",
                          "'%.40s' is not a type that lemma writes (f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1)", type);
    job j = {.o = options ? *options : (lm_quantize_options){0}};
    lm_status s = run(&j, folder, out, want, targets[k].file_type, err);
    drop_buffers(&j);
    lm_export_free(j.x);
    if (j.src) lm_source_close(j.src);
    if (s == LM_OK && result) *result = j.result;
    return s;
}
