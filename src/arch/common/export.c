/* From a logged build to GGUF: the rows of each tensor in their stored order, and the trial readings that settle which "lemma." keys the
 * file needs: lemma's reader must build the same program from it. */
#include "arch/common/log.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- rows --------------------------------------------------------------------------------------------------------------------------*/
/* Logical index of stored element s. */
static uint64_t tile(const lm_tiles *t, uint64_t s) {
    if (!t->per || s < t->first) return s;
    uint64_t block = (s - t->first) / t->size, at = (s - t->first) % t->size;
    return t->first + ((block % t->groups) * t->per + block / t->groups) * t->size + at;
}

static uint64_t logical(const lm_export_tensor *t, uint64_t s) {
    if (!t->rope_dim) return tile(&t->rows, s);
    uint64_t d = s % t->rope_dim;
    return s - d + (d % 2 ? t->rope_dim / 2 + d / 2 : d / 2);
}

uint64_t lm_export_scratch(const lm_export_tensor *t) {
    if (t->head_rows) return t->dim[1] * t->dim[2] + 1; /* a head's rows, and its number + 1 */
    return t->cols.per ? t->dim[t->rank - 1] : 0;
}

/* A row of a head's transposed k rows: the head is decoded once. */
static void transposed_row(const lm_export_tensor *t, uint64_t r, double *dst, double *scratch) {
    uint64_t rank = t->dim[1], n = t->dim[2], head = r / rank, at = r % rank;
    double *now = scratch + rank * n;
    if (*now != (double)(head + 1))
        for (uint64_t i = 0; i < n; i++) lm_weight_row_f64(t->w, 0, head * t->head_rows + i, scratch + i * rank);
    *now = (double)(head + 1);
    for (uint64_t i = 0; i < n; i++) dst[i] = scratch[i * rank + at];
}

void lm_export_row(const lm_export_tensor *t, uint64_t r, double *dst, double *scratch) {
    uint64_t n = t->dim[t->rank - 1];
    if (t->v) {
        for (uint64_t i = 0; i < n; i++) dst[i] = t->rank == 1 ? t->v[logical(t, i)] : t->v[logical(t, r) * n + i];
        for (uint64_t i = 0; t->neg_exp && i < n; i++) dst[i] = -exp(dst[i]);
    } else if (t->head_rows) {
        transposed_row(t, r, dst, scratch);
    } else {
        double *to = t->cols.per ? scratch : dst;
        lm_weight_row_f64(t->w, (uint32_t)(r / t->w->rows), logical(t, r % t->w->rows), to);
        for (uint64_t i = 0; t->cols.per && i < n; i++) dst[i] = scratch[tile(&t->cols, i)];
    }
}

/* ---- the same program? -------------------------------------------------------------------------------------------------------------*/
/* Numbers that went through float32 are the same to its precision. */
static bool near(double a, double b) { return a == b || fabs(a - b) <= 1e-6 * fmax(fabs(a), fabs(b)); }

static bool same_attention(const lm_op *x, const lm_op *y) {
    return x->attn.heads == y->attn.heads && x->attn.kv_heads == y->attn.kv_heads && x->attn.dk == y->attn.dk && x->attn.dv == y->attn.dv &&
           x->attn.window == y->attn.window && x->attn.slot == y->attn.slot && x->attn.store == y->attn.store &&
           near(x->attn.scale, y->attn.scale) && near(x->attn.softcap, y->attn.softcap);
}

static bool same_route(const lm_op *x, const lm_op *y) {
    return x->route.n == y->route.n && x->route.k == y->route.k && x->route.groups == y->route.groups &&
           x->route.topk_groups == y->route.topk_groups && x->route.score == y->route.score && x->route.group == y->route.group &&
           x->route.renorm == y->route.renorm && near(x->route.scale, y->route.scale);
}

static bool same_params(const lm_op *x, const lm_op *y) {
    switch (x->kind) {
    case LM_OP_EMBED: return x->embed.by_position == y->embed.by_position && x->embed.max_position == y->embed.max_position;
    case LM_OP_SCALE: return near(x->scale.c, y->scale.c) && x->scale.bf16 == y->scale.bf16;
    case LM_OP_NORM: return x->norm.norm == y->norm.norm && x->norm.groups == y->norm.groups && near(x->norm.eps, y->norm.eps);
    case LM_OP_LINEAR: return x->linear.split == y->linear.split;
    case LM_OP_ACT:
    case LM_OP_GATED: return x->act.act == y->act.act && near(x->act.limit, y->act.limit) && near(x->act.alpha, y->act.alpha);
    case LM_OP_ROPE:
        return x->rope.heads == y->rope.heads && x->rope.head_dim == y->rope.head_dim && x->rope.offset == y->rope.offset &&
               x->rope.n_rot == y->rope.n_rot && x->rope.rope == y->rope.rope && x->rope.interleaved == y->rope.interleaved;
    case LM_OP_ATTENTION: return same_attention(x, y);
    case LM_OP_MLA:
        return x->mla.heads == y->mla.heads && x->mla.nope == y->mla.nope && x->mla.rope == y->mla.rope && x->mla.dv == y->mla.dv &&
               x->mla.rank == y->mla.rank && x->mla.slot == y->mla.slot && near(x->mla.scale, y->mla.scale);
    case LM_OP_INDEX:
        return x->index.heads == y->index.heads && x->index.dim == y->index.dim && x->index.topk == y->index.topk &&
               x->index.slot == y->index.slot && near(x->index.scale, y->index.scale);
    case LM_OP_ROUTE: return same_route(x, y);
    case LM_OP_EXPERTS:
        return x->experts.n == y->experts.n && x->experts.k == y->experts.k && x->experts.act == y->experts.act &&
               near(x->experts.limit, y->experts.limit) && near(x->experts.alpha, y->experts.alpha);
    case LM_OP_CONV: return x->conv.kernel == y->conv.kernel && x->conv.slot == y->conv.slot && x->conv.act == y->conv.act;
    case LM_OP_DELTA: /* tiled is how the heads are stored */
        return x->delta.k_heads == y->delta.k_heads && x->delta.v_heads == y->delta.v_heads && x->delta.dk == y->delta.dk &&
               x->delta.dv == y->delta.dv && x->delta.slot == y->delta.slot && near(x->delta.q_scale, y->delta.q_scale);
    case LM_OP_SOFTCAP: return near(x->softcap.c, y->softcap.c);
    case LM_OP_SLICE:
        return x->slice.offset == y->slice.offset && x->slice.group == y->slice.group && x->slice.groups == y->slice.groups &&
               x->slice.stride == y->slice.stride;
    case LM_OP_SPARSIFY: return near(x->sparsify.c, y->sparsify.c);
    case LM_OP_MATCH_RMS: return near(x->match.eps, y->match.eps);
    case LM_OP_MIX:
    case LM_OP_SPREAD: return x->mix.n == y->mix.n && x->mix.residual == y->mix.residual;
    default: return true;
    }
}

static bool same_weight(const lm_program *a, uint32_t i, const lm_program *b, uint32_t k) {
    if (i == LM_NONE || k == LM_NONE) return i == k;
    const lm_weight *x = &a->weight[i], *y = &b->weight[k];
    return x->n_mat == y->n_mat && x->rows == y->rows && x->cols == y->cols;
}

static bool same_vec(const lm_program *a, uint32_t i, const lm_program *b, uint32_t k) {
    return i == LM_NONE || k == LM_NONE ? i == k : a->vec[i].n == b->vec[k].n;
}

static bool same_op(const lm_program *a, const lm_op *x, const lm_program *b, const lm_op *y) {
    return x->kind == y->kind && !strcmp(x->name, y->name) && x->out == y->out && x->a == y->a && x->b == y->b && x->c == y->c &&
           x->d == y->d && same_weight(a, x->w, b, y->w) && same_weight(a, x->w2, b, y->w2) && same_weight(a, x->w3, b, y->w3) &&
           same_vec(a, x->v, b, y->v) && same_vec(a, x->v2, b, y->v2) && same_vec(a, x->v3, b, y->v3) && same_params(x, y);
}

static bool same_rope(const lm_rope *x, const lm_rope *y) {
    if (x->n_pairs != y->n_pairs || x->border != y->border || !near(x->factor, y->factor)) return false;
    for (uint32_t i = 0; i < x->n_pairs; i++)
        if (!near(x->inv_freq[i], y->inv_freq[i]) || (x->border && !near(x->inv_freq_long[i], y->inv_freq_long[i]))) return false;
    return true;
}

/* But for storage. `where`: the first difference */
static bool same_program(const lm_program *a, const lm_program *b, char *where, size_t n) {
    snprintf(where, n, "the number of operations");
    if (a->n_ops != b->n_ops || a->n_ropes != b->n_ropes || a->n_slots != b->n_slots || a->max_position != b->max_position) return false;
    for (uint32_t i = 0; i < a->n_ops; i++) {
        snprintf(where, n, "%s", a->op[i].name);
        if (!same_op(a, &a->op[i], b, &b->op[i])) return false;
    }
    snprintf(where, n, "a rope table");
    for (uint32_t i = 0; i < a->n_ropes; i++)
        if (!same_rope(&a->rope[i], &b->rope[i])) return false;
    snprintf(where, n, "a cache");
    for (uint32_t i = 0; i < a->n_slots; i++) {
        const lm_cache_slot *x = &a->slot[i], *y = &b->slot[i];
        if (x->kind != y->kind || x->heads != y->heads || x->dk != y->dk || x->dv != y->dv || x->window != y->window) return false;
    }
    return true;
}

/* ---- trial readings: the GGUF as a source in memory. Vectors have their values; of a matrix, the reader looks at nothing but the shape,
 * and finds zeros. -------------------------------------------------------------------------------------------------------------------*/
typedef struct trial {
    lm_log *log;
    lm_source src;
    lm_tensor *tensor;
    lm_meta_entry *entry;
    uint8_t *used;
    float *values; /* of all vectors */
    void *zeros;
    uint64_t n_zeros;
} trial;

static int by_name(const void *a, const void *b) { return strcmp(((const lm_tensor *)a)->name, ((const lm_tensor *)b)->name); }
static int by_key(const void *a, const void *b) { return strcmp(((const lm_meta_entry *)a)->key, ((const lm_meta_entry *)b)->key); }

static void trial_free(trial *t) {
    lm_free(t->tensor);
    lm_free(t->entry);
    lm_free(t->used);
    lm_free(t->values);
    if (t->zeros) lm_pages_free(t->zeros, t->n_zeros);
}

/* Fills t->values and points the tensors at them, or at zeros. */
static lm_status trial_tensors(trial *t, const lm_export *x, lm_error *err) {
    const lm_dtype *f32 = lm_dtype_by_name("F32");
    uint64_t values = 0, widest = 0;
    for (uint32_t i = 0; i < x->n_tensors; i++) {
        const lm_export_tensor *e = &x->tensor[i];
        lm_tensor *to = &t->tensor[i];
        *to = (lm_tensor){.name = e->name, .type = f32, .rank = e->rank, .file = UINT32_MAX};
        memcpy(to->dim, e->dim, sizeof e->dim);
        if (!lm_shape_bytes(f32, to->rank, to->dim, &to->bytes))
            return lm_fail_at(err, LM_RANGE, NULL, LM_NO_OFFSET, e->name, "its shape is too large");
        if (e->v)
            values += to->bytes / sizeof(float);
        else if (to->bytes > t->n_zeros)
            t->n_zeros = to->bytes;
        if (e->v && e->dim[e->rank - 1] > widest) widest = e->dim[e->rank - 1];
    }
    t->values = lm_calloc(values + 1, sizeof *t->values);
    if (t->n_zeros) t->zeros = lm_pages_alloc(t->n_zeros, false);
    double *row = lm_calloc(widest + 1, sizeof *row);
    if (!t->values || !row || (t->n_zeros && !t->zeros)) {
        lm_free(row);
        return lm_fail_nomem(err, "a trial reading", t->n_zeros + values * sizeof(float));
    }
    float *at = t->values;
    for (uint32_t i = 0; i < x->n_tensors; i++) {
        const lm_export_tensor *e = &x->tensor[i];
        t->tensor[i].data = e->v ? (const uint8_t *)at : t->zeros;
        uint64_t n = e->dim[e->rank - 1], rows = e->v ? lm_tensor_rows(&t->tensor[i]) : 0;
        for (uint64_t r = 0; r < rows; r++) {
            lm_export_row(e, r, row, NULL);
            for (uint64_t k = 0; k < n; k++) *at++ = (float)row[k];
        }
    }
    lm_free(row);
    qsort(t->tensor, x->n_tensors, sizeof *t->tensor, by_name);
    return LM_OK;
}

static lm_status trial_init(trial *t, lm_log *log, const char *path, lm_error *err) {
    const lm_export *x = log->x;
    *t = (trial){.log = log};
    t->tensor = lm_calloc(x->n_tensors + 1, sizeof *t->tensor);
    t->entry = lm_calloc(x->n_kv + log->n_keys + 1, sizeof *t->entry);
    t->used = lm_calloc(x->n_kv + log->n_keys + 1, 1);
    if (!t->tensor || !t->entry || !t->used) return lm_fail_nomem(err, "a trial reading", x->n_tensors * sizeof *t->tensor);
    t->src = (lm_source){
        .kind = LM_SOURCE_GGUF, .path = path, .tensor = t->tensor, .n_tensors = x->n_tensors, .gguf_version = 3, .gguf_alignment = 32};
    return trial_tensors(t, x, err);
}

/* Reads with the keys that are kept now; *same: the program is the folder's. t->used tells which entries were read, also on failure. */
static lm_status trial_read(trial *t, bool *same, char *where, size_t n, lm_error *err) {
    const lm_export *x = t->log->x;
    uint32_t k = 0;
    for (uint32_t i = 0; i < x->n_kv; i++) t->entry[k++] = x->kv[i];
    for (uint32_t i = 0; i < t->log->n_keys; i++)
        if (t->log->key[i].keep) t->entry[k++] = (lm_meta_entry){.key = t->log->key[i].key, .value = t->log->key[i].value};
    qsort(t->entry, k, sizeof *t->entry, by_key);
    t->src.meta = (lm_meta){t->entry, k};
    memset(t->used, 0, k);
    lm_log log = {.used = t->used};
    lm_program *p = NULL;
    *same = false;
    lm_status s = lm_arch_build_logged(&t->src, &log, &p, err);
    if (s != LM_OK) return s;
    *same = same_program(x->program, p, where, n);
    lm_program_free(p);
    return LM_OK;
}

/* Which candidates does the reader ask for, and which of those does it need? */
static lm_status settle_keys(trial *t, lm_error *err) {
    lm_log *log = t->log;
    char where[160];
    bool same;
    lm_error unread = {0};
    lm_status s = trial_read(t, &same, where, sizeof where, &unread); /* fails where a key is none of the reader's */
    if (s == LM_NOMEM) return lm_fail_nomem(err, "a trial reading", 0);
    for (uint32_t i = 0; i < log->n_keys; i++)
        for (uint32_t k = 0; k < t->src.meta.n; k++)
            if (t->entry[k].key == log->key[i].key) log->key[i].keep = t->used[k] != 0;
    LM_TRY(trial_read(t, &same, where, sizeof where, err));
    if (!same)
        return lm_fail_at(err, LM_UNSUPPORTED, t->src.path, LM_NO_OFFSET, where,
                          "GGUF has no way to say this of %s: read back, the model would be another one", log->x->program->arch);
    for (uint32_t i = 0; i < log->n_keys; i++) {
        if (!log->key[i].keep) continue;
        log->key[i].keep = false;
        s = trial_read(t, &same, where, sizeof where, &unread);
        if (s == LM_NOMEM) return lm_fail_nomem(err, "a trial reading", 0);
        log->key[i].keep = s != LM_OK || !same;
    }
    return LM_OK;
}

/* ---- the whole ---------------------------------------------------------------------------------------------------------------------*/
/* Candidates are named as the reader looks them up, and the ones kept join the metadata. */
static lm_status name_keys(lm_log *log, lm_arena *a, lm_error *err) {
    for (uint32_t i = 0; i < log->n_keys; i++) {
        log->key[i].key = lm_arena_printf(a, "lemma.%s", log->key[i].key);
        if (!log->key[i].key) return lm_fail_nomem(err, "the metadata", 0);
    }
    return LM_OK;
}

static lm_status keep_keys(lm_log *log, lm_arena *a, lm_error *err) {
    lm_export *x = log->x;
    lm_meta_entry *kv = lm_arena_calloc(a, x->n_kv + log->n_keys + 2, sizeof *kv);
    if (!kv) return lm_fail_nomem(err, "the metadata", 0);
    memcpy(kv, x->kv, x->n_kv * sizeof *kv);
    for (uint32_t i = 0; i < log->n_keys; i++)
        if (log->key[i].keep) kv[x->n_kv++] = (lm_meta_entry){.key = log->key[i].key, .value = log->key[i].value};
    x->kv = kv;
    return LM_OK;
}

void lm_export_free(lm_export *x) {
    if (x) lm_program_free(x->program);
    lm_free(x);
}

static lm_status fill(const lm_source *src, const lm_arch *arch, lm_export *x, lm_error *err) {
    lm_log log = {.x = x};
    LM_TRY(lm_arch_build_logged(src, &log, &x->program, err));
    lm_arena *a = x->program->arena;
    x->arch = arch->gguf;
    LM_TRY(name_keys(&log, a, err));
    trial t;
    lm_status s = trial_init(&t, &log, src->path, err);
    if (s == LM_OK) s = settle_keys(&t, err);
    trial_free(&t);
    if (s == LM_OK) s = keep_keys(&log, a, err);
    return s;
}

lm_status lm_export_build(const lm_source *src, lm_export **out, lm_error *err) {
    if (src->kind != LM_SOURCE_HF)
        return lm_fail_at(err, LM_USAGE, src->path, LM_NO_OFFSET, NULL,
                          "is a GGUF file already; give the Hugging Face folder that it was made from");
    const lm_arch *arch = lm_arch_find(src, err);
    if (!arch) return LM_UNSUPPORTED;
    if (!arch->gguf)
        return lm_fail_at(err, LM_UNSUPPORTED, src->path, LM_NO_OFFSET, "model_type", "GGUF has no architecture for %s", arch->name);
    lm_export *x = lm_calloc(1, sizeof *x);
    if (!x) return lm_fail_nomem(err, "the export", sizeof *x);
    lm_status s = fill(src, arch, x, err);
    if (s != LM_OK) {
        lm_error_set_file(err, src->path);
        lm_export_free(x);
        return s;
    }
    *out = x;
    return LM_OK;
}
