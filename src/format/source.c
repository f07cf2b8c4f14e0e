/* What both readers share: tensor tables, lookup, hashing, and opening by what a path is. */
#include "format/source.h"
#include "base/hash.h"
#include "format/parse.h"
#include "tensor/packed.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- tensor tables ---- */
static int rec_by_place(const void *a, const void *b) {
    const lm_tensor *x = &((const lm_tensor_rec *)a)->t, *y = &((const lm_tensor_rec *)b)->t;
    return (x->offset > y->offset) - (x->offset < y->offset);
}
static int rec_by_name(const void *a, const void *b) {
    const lm_tensor_rec *x = a, *y = b;
    int c = strcmp(x->t.name, y->t.name);
    return c ? c : (x->at > y->at) - (x->at < y->at);
}
static int tensor_by_name(const void *a, const void *b) { return strcmp(((const lm_tensor *)a)->name, ((const lm_tensor *)b)->name); }

void lm_tensors_by_place(lm_tensor_rec *r, size_t n) {
    if (n) qsort(r, n, sizeof *r, rec_by_place);
}

lm_status lm_tensors_finish(lm_tensor_rec *r, uint32_t n, const char *file, lm_arena *a, lm_parsed *out, lm_error *err) {
    lm_tensor *t = lm_arena_calloc(a, (size_t)n + 1, sizeof *t);
    if (!t) return lm_fail_nomem(err, "tensor table", (uint64_t)n * sizeof *t);
    lm_tensors_by_place(r, n);
    for (uint32_t i = 1; i < n; i++) {
        const lm_tensor *x = &r[i - 1].t, *y = &r[i].t;
        if (x->offset + x->bytes > y->offset)
            return lm_fail_at(err, LM_FORMAT, file, r[i].at, y->name,
                              "its data at byte %" PRIu64 " overlaps that of %.100s (%" PRIu64 " to %" PRIu64 ")", y->offset, x->name,
                              x->offset, x->offset + x->bytes);
    }
    if (n) qsort(r, n, sizeof *r, rec_by_name);
    for (uint32_t i = 0; i < n; i++) {
        if (i && !strcmp(r[i - 1].t.name, r[i].t.name)) return lm_fail_at(err, LM_FORMAT, file, r[i].at, r[i].t.name, "duplicate tensor");
        t[i] = r[i].t;
    }
    out->tensor = t;
    out->n_tensors = n;
    return LM_OK;
}

const lm_tensor *lm_source_tensor(const lm_source *s, const char *name) {
    lm_tensor want = {.name = name};
    return s->n_tensors ? bsearch(&want, s->tensor, s->n_tensors, sizeof want, tensor_by_name) : NULL;
}

lm_status lm_source_join(lm_source *s, const lm_parsed *part, lm_error *err) {
    uint64_t total = 0, k = 0;
    for (uint32_t i = 0; i < s->n_files; i++) total += part[i].n_tensors;
    if (total > LM_MAX_ENTRIES)
        return lm_fail_at(err, LM_FORMAT, s->path, LM_NO_OFFSET, NULL, "%" PRIu64 " tensors: over %u", total, LM_MAX_ENTRIES);
    lm_tensor *t = lm_arena_calloc(s->arena, total + 1, sizeof *t);
    if (!t) return lm_fail_nomem(err, "tensor table", total * sizeof *t);
    for (uint32_t i = 0; i < s->n_files; i++)
        for (uint32_t j = 0; j < part[i].n_tensors; j++, k++) {
            t[k] = part[i].tensor[j];
            t[k].file = i;
        }
    if (total) qsort(t, total, sizeof *t, tensor_by_name);
    for (uint64_t i = 1; i < total; i++)
        if (!strcmp(t[i - 1].name, t[i].name)) {
            uint32_t later = t[i - 1].file > t[i].file ? t[i - 1].file : t[i].file;
            return lm_fail_at(err, LM_FORMAT, s->file[later].path, LM_NO_OFFSET, t[i].name,
                              "duplicate tensor: it is in another file of the model too");
        }
    s->tensor = t;
    s->n_tensors = (uint32_t)total;
    return LM_OK;
}

/* ---- files ---- */
static lm_status new_source(const char *path, lm_source_kind kind, lm_source **out, lm_error *err) {
    lm_arena *a = lm_arena_create();
    if (!a) return lm_fail_nomem(err, "a source", sizeof **out);
    lm_source *s = lm_arena_alloc(a, sizeof *s);
    char *copy = lm_arena_strndup(a, path, strlen(path));
    if (!s || !copy) {
        lm_arena_destroy(a);
        return lm_fail_nomem(err, "a source", sizeof *s);
    }
    *s = (lm_source){.kind = kind, .path = copy, .arena = a};
    *out = s;
    return LM_OK;
}

void lm_source_close(lm_source *s) {
    if (!s) return;
    for (uint32_t i = 0; i < s->n_files; i++) lm_map_close(&s->file[i]);
    lm_arena_destroy(s->arena);
}

lm_status lm_source_map(lm_source *s, const char *const *path, uint32_t n, lm_error *err) {
    s->file = lm_arena_calloc(s->arena, n, sizeof *s->file);
    if (!s->file) return lm_fail_nomem(err, "a file table", (uint64_t)n * sizeof *s->file);
    for (uint32_t i = 0; i < n; i++) {
        LM_TRY(lm_map_open(path[i], &s->file[i], err));
        s->n_files = i + 1; /* close unmaps just these */
    }
    return LM_OK;
}

lm_status lm_shards_present(const char *const *path, uint32_t n, const char *listed_in, lm_error *err) {
    char list[480] = "";
    uint32_t missing = 0, named = 0;
    size_t o = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (lm_is_file(path[i])) continue;
        missing++;
        const char *base = strrchr(path[i], '/');
        base = base ? base + 1 : path[i];
        size_t len = strlen(base);
        if (named + 1 < missing || o + len + 32 > sizeof list) continue; /* the list is full */
        named++;
        o += (size_t)snprintf(list + o, sizeof list - o, "%s%s", o ? ", " : "", base);
    }
    if (!missing) return LM_OK;
    if (named < missing) snprintf(list + o, sizeof list - o, " and %u more", missing - named);
    return lm_fail_at(err, LM_IO, listed_in, LM_NO_OFFSET, NULL, "%u of %u weight files missing: %s: fetch what is missing into the folder",
                      missing, n, list);
}

/* ---- opening ---- */
static bool starts(const uint8_t *p, uint64_t n, const char *s) {
    size_t len = strlen(s);
    return n >= len && !strncasecmp((const char *)p, s, len);
}

const char *lm_file_looks_like(const uint8_t *p, uint64_t n) {
    static const struct {
        const char *magic;
        uint32_t len;
        const char *what;
    } magics[] = {{"GGUF", 4, "a GGUF file"},
                  {"FUGG", 4, "a byte-swapped (big-endian) GGUF file"},
                  {"PK\3\4", 4, "a zip archive (a PyTorch checkpoint, or a download that still has to be unpacked)"},
                  {"\x80\x02", 2, "a Python pickle (an old PyTorch checkpoint)"},
                  {"lmgg", 4, "a GGML model from before GGUF: convert the original model"},
                  {"ggml", 4, "a GGML model from before GGUF: convert the original model"},
                  {"fmgg", 4, "a GGMF model from before GGUF: convert the original model"},
                  {"ggmf", 4, "a GGMF model from before GGUF: convert the original model"},
                  {"tjgg", 4, "a GGJT model from before GGUF: convert the original model"},
                  {"ggjt", 4, "a GGJT model from before GGUF: convert the original model"},
                  {"algg", 4, "a GGLA adapter (LoRA) from before GGUF"},
                  {"ggla", 4, "a GGLA adapter (LoRA) from before GGUF"},
                  {"\x89HDF", 4, "an HDF5 file (a Keras checkpoint)"},
                  {"\x1f\x8b", 2, "a gzip archive"},
                  {"\x28\xb5\x2f\xfd", 4, "a zstd archive"},
                  {"\x7f"
                   "ELF",
                   4, "a program"}};
    if (n == 0) return "an empty file";
    for (size_t i = 0; i < sizeof magics / sizeof *magics; i++)
        if (n >= magics[i].len && !memcmp(p, magics[i].magic, magics[i].len)) return magics[i].what;
    if (starts(p, n, "version https://git-lfs")) return "a git-lfs pointer: the model itself was not downloaded (git lfs pull fetches it)";
    uint64_t i = 0;
    while (i < n && i < 64 && (p[i] == ' ' || p[i] == '\t' || p[i] == '\r' || p[i] == '\n')) i++;
    if (starts(p + i, n - i, "<!doctype") || starts(p + i, n - i, "<html")) return "an HTML page: the download fetched a web page";
    if (n >= 10 && p[8] == '{' && !p[6] && !p[7]) return "a safetensors file: give the folder that holds it and its config.json";
    if (i < n && p[i] == '{') return "a JSON file: give the folder that holds config.json and the weights";
    uint64_t text = 0;
    while (text < n && text < 64 && (p[text] >= ' ' ? p[text] != 0x7f : p[text] == '\t' || p[text] == '\n' || p[text] == '\r')) text++;
    return text == n || text == 64 ? "a text file" : "no known format";
}

static lm_status open_into(lm_source *s, lm_error *err) { return s->kind == LM_SOURCE_HF ? lm_hf_open(s, err) : lm_gguf_open(s, err); }

lm_status lm_source_open(const char *path, lm_source **out, lm_error *err) {
    lm_source *s = NULL;
    LM_TRY(new_source(path, lm_is_dir(path) ? LM_SOURCE_HF : LM_SOURCE_GGUF, &s, err));
    lm_status st = open_into(s, err);
    if (st != LM_OK) {
        lm_error_set_file(err, path);
        lm_source_close(s);
        return st;
    }
    *out = s;
    return LM_OK;
}

static lm_status st_into(lm_source *s, lm_error *err) {
    lm_parsed got = {0};
    LM_TRY(lm_source_map(s, &s->path, 1, err));
    LM_TRY(lm_safetensors_parse(s->file[0].data, s->file[0].size, s->path, s->arena, &got, err));
    s->meta = got.meta;
    return lm_source_join(s, &got, err);
}

lm_status lm_safetensors_open(const char *path, lm_source **out, lm_error *err) {
    lm_source *s = NULL;
    LM_TRY(new_source(path, LM_SOURCE_HF, &s, err));
    lm_status st = st_into(s, err);
    if (st != LM_OK) {
        lm_error_set_file(err, path);
        lm_source_close(s);
        return st;
    }
    *out = s;
    return LM_OK;
}

/* ---- uses ---- */
lm_status lm_source_sha256(const lm_source *s, char hex[65], bool (*progress)(void *, uint64_t, uint64_t), void *ctx, lm_error *err) {
    const uint64_t step = 4u << 20;
    uint64_t total = 0, done = 0;
    uint8_t digest[32];
    lm_sha256 h;
    for (uint32_t i = 0; i < s->n_files; i++) total += s->file[i].size;
    lm_sha256_init(&h);
    for (uint32_t i = 0; i < s->n_files; i++)
        for (uint64_t at = 0; at < s->file[i].size; at += step) {
            uint64_t n = s->file[i].size - at < step ? s->file[i].size - at : step;
            lm_sha256_update(&h, s->file[i].data + at, n);
            done += n;
            if (progress && !progress(ctx, done, total))
                return lm_fail_at(err, LM_INTERRUPTED, s->path, LM_NO_OFFSET, NULL,
                                  "hashing was stopped after %" PRIu64 " of %" PRIu64 " bytes", done, total);
        }
    lm_sha256_final(&h, digest);
    lm_sha256_hex(digest, hex);
    return LM_OK;
}

void lm_source_release(const lm_source *s, const lm_tensor *t) {
    for (uint32_t i = 0; t->packed && i < t->packed->n_parts; i++) lm_source_release(s, t->packed->part[i]);
    if (!t->packed && t->file < s->n_files) lm_map_release(&s->file[t->file], t->data, t->bytes);
}
