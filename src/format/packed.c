/* Folds packed safetensors checkpoints: each weight that is stored as several tensors becomes one (tensor/packed.h reads it). The layouts:
 * - mxfp4 (gpt-oss): X_blocks U8 [E, rows, cols/32, 16] and X_scales U8 [E, rows, cols/32] become X [E, rows, cols]. A scale of 255 is
 *   2^128, as in transformers and GGUF (the OCP format has NaN there).
 * - fp8: X F8 [.., rows, cols] with X_scale_inv or X_scale: one number, or one per row, or one per block of weight_block_size; blocks
 *   at the edges are cut short (as in DeepSeek's reference; transformers' dequantizer divides the rows evenly).
 * - gptq: X.qweight I32 [cols/per, rows], X.qzeros I32 [groups, rows/per], X.scales [groups, rows], X.g_idx I32 [cols] become X.weight,
 *   (q - (z + 1)) * scale; gptq_v2: (q - z) * scale. A stored z of all ones counts as 2^bits, as in AutoGPTQ's own PyTorch path; other
 *   readers wrap it to 0 or carry into the next zero. Quantizers don't write it on purpose.
 * - awq (gemm): X.qweight I32 [cols, rows/8], X.qzeros I32 [groups, rows/8], X.scales [groups, rows] become X.weight, (q - z) * scale.
 * - compressed-tensors: X.weight I8 or F8 [rows, cols], or X.weight_packed I32 [rows, cols/per] with X.weight_shape; X.weight_scale per
 *   tensor, row, group or block; X.weight_zero_point I8, or packed I32 [rows/per, groups]; X.weight_g_idx I32 [cols].
 *
 * All of it is exact; the libraries compute in float16 or bfloat16 and round there. Scales of activations (X.input_scale …) are accepted
 * and left alone: they say how a kernel quantizes its input, and dequantizing weights, in transformers as here, doesn't read them.
 */
#include "format/packed.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/smallfloat.h"
#include "format/parse.h"
#include "quant/private.h"
#include "tensor/packed.h"

typedef struct fold {
    lm_source *s;
    lm_quant_config q;
    uint8_t *used; /* per stored tensor */
    lm_tensor *out;
    uint32_t n;
    lm_error *err;
} fold;

/* The weight at hand. */
typedef struct weight {
    fold *f;
    const lm_tensor *codes;
    const char *base; /* name without the suffix of its codes */
    lm_packed p;
    lm_tensor t;
} weight;

static lm_status bad(const fold *f, const lm_tensor *t, const char *fmt, ...) LM_PRINTF(3, 4);
static lm_status bad(const fold *f, const lm_tensor *t, const char *fmt, ...) {
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return lm_fail_at(f->err, LM_FORMAT, f->s->file[t->file].path, t->offset, t->name, "%s", text);
}

static bool ends(const char *s, const char *tail) {
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && !strcmp(s + n - k, tail);
}
static bool is_type(const lm_tensor *t, const char *name) { return !strcmp(t->type->name, name); }
static bool is_fp8(const lm_tensor *t) { return is_type(t, "F8_E4M3") || is_type(t, "F8_E5M2"); }
static bool shape_is(const lm_tensor *t, uint32_t rank, const uint64_t *dim) {
    return t->rank == rank && (!rank || !memcmp(t->dim, dim, rank * sizeof *dim));
}
#define SHAPE_IS(t, ...) shape_is(t, sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t), (const uint64_t[]){__VA_ARGS__})
static uint64_t ceil_div(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }

/* ---- parts ---------------------------------------------------------------------------------------------------------------------*/
static void take(weight *w, const lm_tensor *t) {
    w->f->used[t - w->f->s->tensor] = 1;
    w->p.part[w->p.n_parts++] = t;
    w->t.bytes += t->bytes; /* of one file set: no overflow */
}

/* The stored tensor base + suffix, `cut` bytes of the base left out; taken into the weight. NULL when it isn't there. */
static const lm_tensor *part_less(weight *w, size_t cut, const char *suffix) {
    char name[1024];
    snprintf(name, sizeof name, "%.*s%s", (int)(strlen(w->base) - cut), w->base, suffix); /* fits: the base's length was checked */
    const lm_tensor *t = lm_source_tensor(w->f->s, name);
    if (t) take(w, t);
    return t;
}
static const lm_tensor *part(weight *w, const char *suffix) { return part_less(w, 0, suffix); }

static lm_status need(weight *w, const char *suffix, const lm_tensor **out) {
    *out = part(w, suffix);
    return *out ? LM_OK : bad(w->f, w->codes, "its companion %.200s%s is missing", w->base, suffix);
}

static lm_status bad_shape(const weight *w, const lm_tensor *t) {
    char have[96], codes[96];
    lm_shape_text(t->rank, t->dim, have, sizeof have);
    lm_shape_text(w->codes->rank, w->codes->dim, codes, sizeof codes);
    return bad(w->f, t, "%s %s doesn't fit the codes %.120s %s %s", t->type->name, have, w->codes->name, w->codes->type->name, codes);
}

/* Kept for release and for counting, not for values. */
static void take_activation_scales(weight *w) {
    size_t cut = ends(w->base, ".weight") ? strlen("weight") : 0;
    part_less(w, cut, cut ? "input_scale" : "_input_scale");
    part_less(w, cut, cut ? "input_zero_point" : "_input_zero_point");
    part_less(w, cut, cut ? "activation_scale" : "_activation_scale");
}

/* ---- groups --------------------------------------------------------------------------------------------------------------------*/
/* Every column's group is in range. An index that says what k / group says, is none. */
static lm_status set_g_idx(weight *w, const lm_tensor *g, uint64_t cols) {
    bool plain = w->p.group != 0;
    if (!is_type(g, "I32") || !SHAPE_IS(g, cols)) return bad_shape(w, g);
    for (uint64_t k = 0; k < cols; k++) {
        int32_t i;
        memcpy(&i, g->data + 4 * k, 4);
        if (i < 0 || (uint64_t)i >= w->p.groups)
            return bad(w->f, g, "column %" PRIu64 " is in group %d, and there are %" PRIu64 " groups", k, i, w->p.groups);
        if (plain && (uint64_t)i != k / w->p.group) plain = false;
    }
    w->p.g_idx = plain ? NULL : g;
    return LM_OK;
}

/* The group size for `groups` groups of cols columns; 0 when none of the config's gives that. */
static uint64_t group_size(const fold *f, uint64_t cols, uint64_t groups) {
    if (groups == 1) return cols;
    for (uint32_t i = 0; i < f->q.n_groups; i++)
        if (f->q.group[i] > 0 && ceil_div(cols, (uint64_t)f->q.group[i]) == groups) return (uint64_t)f->q.group[i];
    return 0;
}

static bool float_type(const lm_tensor *t) { return is_type(t, "F32") || is_type(t, "F16") || is_type(t, "BF16"); }

/* The scales' grid over [mats, rows, cols], by their shape: one; a block grid; one per row; groups. */
static lm_status set_scale(weight *w, const lm_tensor *s, uint64_t mats, uint64_t rows, uint64_t cols) {
    const lm_quant_config *q = &w->f->q;
    lm_packed *p = &w->p;
    const uint64_t *d = s->dim + (s->rank == 3 ? 1 : 0);
    bool matrix = (s->rank == 2 && mats == 1) || (s->rank == 3 && s->dim[0] == mats);
    p->scale = s;
    p->row_div = 1;
    p->groups = 1;
    p->group = cols;
    if (!float_type(s)) return bad(w->f, s, "scales of type %s are not supported", s->type->name);
    if (s->rank == 0 || SHAPE_IS(s, 1) || SHAPE_IS(s, 1, 1)) return LM_OK;
    if (!matrix) return bad_shape(w, s);
    p->row_stride = d[1];
    p->mat_stride = d[0] * d[1];
    p->group_stride = 1;
    p->groups = d[1];
    if (q->has_block && d[0] == ceil_div(rows, q->block[0]) && d[1] == ceil_div(cols, q->block[1])) {
        p->row_div = q->block[0];
        p->group = q->block[1];
        return LM_OK;
    }
    if (d[0] != rows) return bad_shape(w, s);
    p->group = group_size(w->f, cols, d[1]);
    return p->group ? LM_OK : bad(w->f, s, "%" PRIu64 " groups of %" PRIu64 " columns: not a group size of the config's", d[1], cols);
}

/* ---- which dtype a weight is read as -------------------------------------------------------------------------------------------*/
/* Whether each aligned run of 32 columns is in one group. */
static bool whole_blocks(const lm_packed *p, uint64_t cols) {
    if (cols % LM_PRIVATE_BLOCK) return false;
    if (!p->g_idx) return p->group >= cols || p->group % LM_PRIVATE_BLOCK == 0;
    for (uint64_t k = 0; k < cols; k++)
        if (memcmp(p->g_idx->data + 4 * k, p->g_idx->data + 4 * (k - k % LM_PRIVATE_BLOCK), 4)) return false;
    return true;
}

static uint64_t n_scales(const lm_packed *p) { return p->scale->bytes / p->scale->type->bytes; }

/* Whether code times scale fits float32 whole: half and bfloat16 scales have few bits; what is left is the exponent. */
static bool exact_in_f32(const lm_packed *p) {
    if (is_type(p->scale, "F16")) return true;
    if (is_type(p->scale, "F32")) return false;
    for (uint64_t i = 0; i < n_scales(p); i++) {
        float s = lm_packed_scale_at(p->scale, i), a = s < 0 ? -s : s;
        if (!(a == 0 || (a > 0x1p-100f && a < 0x1p100f))) return false;
    }
    return true;
}

/* Whether the weight is one of the symmetric GGUF types exactly: its zero points are the middle, its scales halves. */
static bool is_symmetric_half(const lm_packed *p) {
    const int32_t middle = 1 << (p->bits - 1);
    if (p->zeros == LM_ZEROS_NONE && p->zero_base != middle) return false;
    if (p->zeros == LM_ZEROS_I8)
        for (uint64_t i = 0; i < p->zero->bytes; i++)
            if ((int8_t)p->zero->data[i] + p->zero_base != middle) return false;
    if (p->zeros == LM_ZEROS_ACROSS || p->zeros == LM_ZEROS_DOWN) {
        uint8_t want = (uint8_t)(middle - p->zero_base); /* as stored */
        if (p->bits == 4) want = (uint8_t)(want * 0x11);
        for (uint64_t i = 0; i < p->zero->bytes; i++)
            if (p->zero->data[i] != want) return false;
    }
    if (is_type(p->scale, "F16")) return true;
    for (uint64_t i = 0; i < n_scales(p); i++) {
        float s = lm_packed_scale_at(p->scale, i);
        if (lm_f16_to_f32(lm_f32_to_f16(s)) != s) return false;
    }
    return true;
}

static void choose_emit(weight *w, uint64_t cols) {
    lm_packed *p = &w->p;
    if (!whole_blocks(p, cols))
        p->emit = exact_in_f32(p) ? LM_EMIT_F32 : LM_EMIT_F64;
    else if (p->layout == LM_CODES_FP8)
        p->emit = LM_EMIT_FP8;
    else if (p->bits == 4)
        p->emit = is_symmetric_half(p) ? LM_EMIT_Q4_0 : LM_EMIT_INT4;
    else
        p->emit = is_symmetric_half(p) ? LM_EMIT_Q8_0 : LM_EMIT_INT8;
}

static const lm_dtype *emit_type(const lm_packed *p) {
    switch (p->emit) {
    case LM_EMIT_MXFP4: return lm_dtype_by_name("MXFP4");
    case LM_EMIT_INT4: return &lm_private_int4;
    case LM_EMIT_Q4_0: return lm_dtype_by_name("Q4_0");
    case LM_EMIT_INT8: return &lm_private_int8;
    case LM_EMIT_Q8_0: return lm_dtype_by_name("Q8_0");
    case LM_EMIT_FP8: return p->e5m2 ? &lm_private_e5m2 : &lm_private_e4m3;
    case LM_EMIT_F32: return lm_dtype_by_name("F32");
    case LM_EMIT_F64: break;
    }
    return lm_dtype_by_name("F64");
}

/* ---- the methods: codes and companions to p, and the logical shape ----------------------------------------------------------------*/
static lm_status fold_mxfp4(weight *w) {
    const lm_tensor *c = w->codes, *s;
    LM_TRY(need(w, "_scales", &s));
    if (!is_type(c, "U8") || (c->rank != 3 && c->rank != 4) || c->dim[c->rank - 1] != 16)
        return bad(w->f, c, "MXFP4 codes must be U8 [..., rows, blocks, 16]");
    if (!is_type(s, "U8") || !shape_is(s, c->rank - 1, c->dim)) return bad_shape(w, s);
    w->p.layout = LM_CODES_MXFP4;
    w->p.emit = LM_EMIT_MXFP4;
    w->p.scale = s;
    w->t.rank = c->rank - 1;
    memcpy(w->t.dim, c->dim, w->t.rank * sizeof *c->dim);
    if (!lm_mul(c->dim[c->rank - 2], 32, &w->t.dim[w->t.rank - 1])) return bad(w->f, c, "the shape overflows 64 bits");
    return LM_OK;
}

/* I8 or F8 [.., rows, cols] under fp8 and compressed-tensors */
static lm_status fold_bytes(weight *w) {
    const lm_tensor *c = w->codes, *s = part(w, "_scale_inv"), *z;
    lm_packed *p = &w->p;
    if (c->rank != 2 && c->rank != 3) return bad(w->f, c, "codes of %u dimensions: 2, or 3 for a stack of experts, are supported", c->rank);
    const uint64_t rows = c->dim[c->rank - 2], cols = c->dim[c->rank - 1], mats = c->rank == 3 ? c->dim[0] : 1;
    if (!s) LM_TRY(need(w, "_scale", &s));
    p->rows = rows;
    LM_TRY(set_scale(w, s, mats, rows, cols));
    p->layout = is_fp8(c) ? LM_CODES_FP8 : LM_CODES_I8;
    p->e5m2 = is_type(c, "F8_E5M2");
    p->bits = p->layout == LM_CODES_I8 ? 8 : 0;
    p->zero_base = p->layout == LM_CODES_I8 ? 128 : 0;
    if ((z = part(w, "_zero_point"))) {
        if (p->layout == LM_CODES_FP8) { /* only a zero changes nothing */
            for (uint64_t i = 0; i < z->bytes; i++)
                if (z->data[i] & 0x7f) return bad(w->f, z, "FP8 codes with a zero point other than 0");
        } else {
            if (!is_type(z, "I8") || !shape_is(z, s->rank, s->dim)) return bad_shape(w, z);
            p->zero = z;
            p->zeros = LM_ZEROS_I8;
        }
    } else if (w->f->q.method == LM_QUANT_CT && !w->f->q.symmetric && p->layout == LM_CODES_I8) {
        return bad(w->f, c, "its zero points (%.200s_zero_point) are missing, and the config says there are some", w->base);
    }
    const lm_tensor *g = part(w, "_g_idx");
    if (g) LM_TRY(set_g_idx(w, g, cols));
    take_activation_scales(w);
    w->t.rank = c->rank;
    memcpy(w->t.dim, c->dim, sizeof c->dim);
    choose_emit(w, cols);
    return LM_OK;
}

/* GPTQ and AWQ: codes, zeros [groups, rows/per], scales [groups, rows] */
static lm_status fold_gptq(weight *w) {
    const lm_quant_config *q = &w->f->q;
    const lm_tensor *c = w->codes, *z, *s, *g = NULL;
    lm_packed *p = &w->p;
    const bool awq = q->method == LM_QUANT_AWQ;
    const uint64_t per = 32 / q->bits;
    if (!is_type(c, "I32") || c->rank != 2) return bad(w->f, c, "packed codes must be I32 of 2 dimensions");
    uint64_t cols = c->dim[0], rows = c->dim[1];
    if (!lm_mul(awq ? rows : cols, per, awq ? &rows : &cols)) return bad(w->f, c, "the shape overflows 64 bits");
    if (rows % per) return bad(w->f, c, "%" PRIu64 " rows are no whole number of words", rows);
    LM_TRY(need(w, ".qzeros", &z));
    LM_TRY(need(w, ".scales", &s));
    uint64_t groups = s->dim[0];
    if (!float_type(s) || s->rank != 2 || s->dim[1] != rows) return bad_shape(w, s);
    if (!is_type(z, "I32") || !SHAPE_IS(z, groups, rows / per)) return bad_shape(w, z);
    p->layout = awq ? LM_CODES_AWQ : LM_CODES_COLUMNS;
    p->zeros = LM_ZEROS_ACROSS;
    p->zero = z;
    p->scale = s;
    p->bits = q->bits;
    p->zero_base = q->zero_is_less_one;
    p->rows = rows;
    p->row_div = p->row_stride = 1;
    p->group_stride = rows;
    p->groups = groups;
    p->group = group_size(w->f, cols, groups);
    if (!awq && (g = part(w, ".g_idx"))) LM_TRY(set_g_idx(w, g, cols));
    if (!p->group && !p->g_idx)
        return bad(w->f, s, "%" PRIu64 " groups of %" PRIu64 " columns don't fit the config's group size %" PRId64, groups, cols,
                   q->group[0]);
    w->t.rank = 2;
    w->t.dim[0] = rows;
    w->t.dim[1] = cols;
    choose_emit(w, cols);
    return LM_OK;
}

/* compressed-tensors' pack-quantized */
static lm_status read_shape(weight *w, const lm_tensor *t, uint64_t *rows, uint64_t *cols) {
    double v[2];
    if ((!is_type(t, "I64") && !is_type(t, "I32")) || !SHAPE_IS(t, 2)) return bad_shape(w, t);
    lm_dequant_f64(t->type, t->data, v, 2);
    for (int i = 0; i < 2; i++)
        if (!(v[i] >= 1 && v[i] < 0x1p40)) return bad(w->f, t, "a dimension of %g", v[i]);
    *rows = (uint64_t)v[0];
    *cols = (uint64_t)v[1];
    return LM_OK;
}

static lm_status set_packed_zeros(weight *w, const lm_tensor *z, const lm_tensor *s, uint64_t rows) {
    lm_packed *p = &w->p;
    p->zero = z;
    if (is_type(z, "I8") && shape_is(z, s->rank, s->dim)) { /* as they are, where the scale is that of the whole tensor */
        p->zeros = LM_ZEROS_I8;
        p->zero_base = 1 << (p->bits - 1);
        for (uint64_t i = 0; i < z->bytes; i++)
            if ((int8_t)z->data[i] < -p->zero_base || (int8_t)z->data[i] >= p->zero_base)
                return bad(w->f, z, "a zero point of %d is outside %u bits", (int8_t)z->data[i], p->bits);
        return LM_OK;
    }
    if (!is_type(z, "I32") || !SHAPE_IS(z, ceil_div(rows, 32 / p->bits), p->groups)) return bad_shape(w, z);
    p->zeros = LM_ZEROS_DOWN;
    p->zero_base = 0;
    return LM_OK;
}

static lm_status fold_words(weight *w) {
    const lm_tensor *c = w->codes, *n, *s, *z, *g;
    lm_packed *p = &w->p;
    uint64_t rows = 0, cols = 0;
    LM_TRY(need(w, "_shape", &n));
    LM_TRY(read_shape(w, n, &rows, &cols));
    if (!is_type(c, "I32") || c->rank != 2) return bad(w->f, c, "packed codes must be I32 of 2 dimensions");
    if (cols < 5) return bad(w->f, c, "rows of %" PRIu64 " elements: their shape doesn't tell 4 bits from 8", cols);
    p->bits = c->dim[1] == ceil_div(cols, 8) ? 4 : 8;
    if (c->dim[0] != rows || c->dim[1] != ceil_div(cols, 32 / p->bits)) return bad_shape(w, n);
    LM_TRY(need(w, "_scale", &s));
    p->rows = rows;
    p->layout = LM_CODES_ROWS;
    LM_TRY(set_scale(w, s, 1, rows, cols));
    p->zero_base = 1 << (p->bits - 1);
    if ((z = part(w, "_zero_point")))
        LM_TRY(set_packed_zeros(w, z, s, rows));
    else if (!w->f->q.symmetric)
        return bad(w->f, c, "its zero points (%.200s_zero_point) are missing, and the config says there are some", w->base);
    if ((g = part(w, "_g_idx"))) LM_TRY(set_g_idx(w, g, cols));
    take_activation_scales(w);
    w->t.rank = 2;
    w->t.dim[0] = rows;
    w->t.dim[1] = cols;
    choose_emit(w, cols);
    return LM_OK;
}

/* ---- the table -----------------------------------------------------------------------------------------------------------------*/
/* What the name and type of stored codes look like, per method; `cut` is taken off the name and `add` put on. */
static const struct kind {
    lm_quant_method method;
    const char *cut, *base_keeps, *add; /* base: the name less cut, plus base_keeps */
    lm_status (*fold)(weight *w);
} kinds[] = {
    {LM_QUANT_MXFP4, "_blocks", "", "", fold_mxfp4},
    {LM_QUANT_GPTQ, ".qweight", "", ".weight", fold_gptq},
    {LM_QUANT_AWQ, ".qweight", "", ".weight", fold_gptq},
    {LM_QUANT_CT, ".weight_packed", ".weight", "", fold_words},
};

/* Companions of each method: one left over when all codes are folded has lost its codes. */
static const struct companion {
    lm_quant_method method;
    const char *suffix;
} companions[] = {
    {LM_QUANT_MXFP4, "_scales"},        {LM_QUANT_FP8, "_scale_inv"},       {LM_QUANT_FP8, ".weight_scale"},
    {LM_QUANT_FP8, ".input_scale"},     {LM_QUANT_FP8, "activation_scale"}, {LM_QUANT_GPTQ, ".qzeros"},
    {LM_QUANT_GPTQ, ".scales"},         {LM_QUANT_GPTQ, ".g_idx"},          {LM_QUANT_AWQ, ".qzeros"},
    {LM_QUANT_AWQ, ".scales"},          {LM_QUANT_CT, ".weight_scale"},     {LM_QUANT_CT, ".weight_zero_point"},
    {LM_QUANT_CT, ".weight_shape"},     {LM_QUANT_CT, ".weight_g_idx"},     {LM_QUANT_CT, ".input_scale"},
    {LM_QUANT_CT, ".input_zero_point"},
};

static const struct companion *companion_of(const fold *f, const char *name) {
    for (size_t c = 0; c < sizeof companions / sizeof *companions; c++)
        if (companions[c].method == f->q.method && ends(name, companions[c].suffix)) return &companions[c];
    return NULL;
}

static lm_status fold_one(fold *f, const lm_tensor *codes, const struct kind *k, lm_status (*how)(weight *)) {
    lm_arena *a = f->s->arena;
    weight w = {.f = f, .codes = codes, .p = {.codes = codes}, .t = {.file = codes->file, .offset = codes->offset}};
    const int n = (int)(strlen(codes->name) - (k ? strlen(k->cut) : 0));
    if (strlen(codes->name) > 900) return bad(f, codes, "a name of over 900 bytes");
    w.base = lm_arena_printf(a, "%.*s%s", n, codes->name, k ? k->base_keeps : "");
    if (!w.base || !(w.t.name = lm_arena_printf(a, "%s%s", w.base, k ? k->add : "")))
        return lm_fail_nomem(f->err, "a tensor's name", (uint64_t)n);
    take(&w, codes);
    LM_TRY(how(&w));
    lm_packed *p = lm_arena_alloc(a, sizeof *p);
    if (!p) return lm_fail_nomem(f->err, "a packed tensor", sizeof *p);
    *p = w.p;
    w.t.packed = p;
    f->out[f->n++] = w.t; /* its type is set when all are known */
    return LM_OK;
}

static lm_status fold_codes(fold *f) {
    for (uint32_t i = 0; i < f->s->n_tensors; i++) {
        const lm_tensor *t = &f->s->tensor[i];
        const struct kind *k = NULL;
        for (size_t j = 0; j < sizeof kinds / sizeof *kinds; j++)
            if (kinds[j].method == f->q.method && ends(t->name, kinds[j].cut)) k = &kinds[j];
        bool bytes = (f->q.method == LM_QUANT_FP8 || f->q.method == LM_QUANT_CT) && is_fp8(t);
        bytes |= f->q.method == LM_QUANT_CT && is_type(t, "I8") && ends(t->name, ".weight");
        bytes &= !companion_of(f, t->name); /* zero points may be FP8 too */
        if (k || bytes) LM_TRY(fold_one(f, t, k, k ? k->fold : fold_bytes));
    }
    return LM_OK;
}

/* One dtype for all 4-bit weights, and one for all 8-bit ones: a layer's experts must not differ by their values. */
static lm_status set_types(fold *f) {
    bool all4 = true, all8 = true;
    for (uint32_t i = 0; i < f->n; i++) {
        all4 &= f->out[i].packed->emit != LM_EMIT_INT4;
        all8 &= f->out[i].packed->emit != LM_EMIT_INT8;
    }
    for (uint32_t i = 0; i < f->n; i++) {
        lm_tensor *t = &f->out[i];
        lm_packed *p = (lm_packed *)t->packed; /* ours until the table is handed out */
        uint64_t bytes;
        if (p->emit == LM_EMIT_Q4_0 && !all4) p->emit = LM_EMIT_INT4;
        if (p->emit == LM_EMIT_Q8_0 && !all8) p->emit = LM_EMIT_INT8;
        t->type = emit_type(p);
        if (!lm_shape_bytes(t->type, t->rank, t->dim, &bytes)) return bad(f, p->codes, "the shape overflows 64 bits");
    }
    return LM_OK;
}

static int by_name(const void *a, const void *b) { return strcmp(((const lm_tensor *)a)->name, ((const lm_tensor *)b)->name); }

/* The stored tensors that are no part of a packed one, and the folded ones. */
static lm_status finish(fold *f) {
    for (uint32_t i = 0; i < f->s->n_tensors; i++) {
        const lm_tensor *t = &f->s->tensor[i];
        if (f->used[i]) continue;
        const struct companion *c = companion_of(f, t->name);
        if (c) return bad(f, t, "a %s companion (*%s) without the codes it belongs to", f->q.name, c->suffix);
        f->out[f->n++] = *t;
    }
    qsort(f->out, f->n, sizeof *f->out, by_name);
    for (uint32_t i = 1; i < f->n; i++)
        if (!strcmp(f->out[i - 1].name, f->out[i].name)) return bad(f, &f->out[i], "this weight is stored both packed and plain");
    f->s->tensor = f->out;
    f->s->n_tensors = f->n;
    return LM_OK;
}

/* A checkpoint without a section must not have what looks packed. */
static lm_status check_plain(const lm_source *s, const char *config_file, lm_error *err) {
    static const char *const suffix[] = {".qweight", ".weight_packed", ".weight_scale_inv", ".quant_state.bitsandbytes__nf4"};
    for (uint32_t i = 0; i < s->n_tensors; i++)
        for (size_t k = 0; k < sizeof suffix / sizeof *suffix; k++)
            if (ends(s->tensor[i].name, suffix[k]))
                return lm_fail_at(err, LM_FORMAT, config_file, LM_NO_OFFSET, "quantization_config",
                                  "missing, but the tensor %.120s is a packed one: the section says how to read it", s->tensor[i].name);
    return LM_OK;
}

lm_status lm_packed_fold(lm_source *s, const char *config_file, lm_error *err) {
    fold f = {.s = s, .err = err};
    LM_TRY(lm_quant_config_read(&s->meta, config_file, &f.q, err));
    if (f.q.method == LM_QUANT_NONE) return check_plain(s, config_file, err);
    f.used = lm_calloc((size_t)s->n_tensors + 1, 1);
    f.out = lm_arena_calloc(s->arena, (size_t)s->n_tensors + 1, sizeof *f.out);
    lm_status st = f.used && f.out ? fold_codes(&f) : lm_fail_nomem(err, "tensor table", s->n_tensors * sizeof *f.out);
    if (st == LM_OK) st = set_types(&f);
    const uint32_t packed = f.n;
    if (st == LM_OK) st = finish(&f);
    lm_free(f.used);
    if (st != LM_OK) return st;
    const char *a = f.q.activations;
    s->packing = lm_arena_printf(s->arena, "%s: %u weights, dequantized exactly%s%s%s", f.q.name, packed, a ? "; its " : "", a ? a : "",
                                 a ? " quantization of activations is not applied" : "");
    return s->packing ? LM_OK : lm_fail_nomem(err, "a description", 100);
}
