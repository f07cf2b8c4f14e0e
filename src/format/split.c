/* Opening GGUF files: one, or the shards that llama.cpp's gguf-split makes (NAME-00001-of-00003.gguf). Any shard stands for the whole. */
#include "format/parse.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_SHARDS 4096

static bool digits(const char *s, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < 5; i++) {
        if (s[i] < '0' || s[i] > '9') return false;
        *out = *out * 10 + (uint32_t)(s[i] - '0');
    }
    return true;
}

bool lm_split_name(const char *file, size_t *stem, uint32_t *no, uint32_t *count) {
    const size_t tail = strlen("-00001-of-00003.gguf");
    size_t len = strlen(file);
    if (len <= tail) return false;
    const char *t = file + len - tail;
    if (t[0] != '-' || memcmp(t + 6, "-of-", 4) || strcmp(t + 15, ".gguf")) return false;
    if (!digits(t + 1, no) || !digits(t + 10, count) || !*no || *no > *count) return false;
    *stem = len - tail;
    return true;
}

/* A non-negative integer key; `absent` when it isn't there. */
static lm_status count_key(const lm_meta *m, const char *key, int64_t absent, const char *file, int64_t *out, lm_error *err) {
    const lm_value *v = lm_meta_get(m, key);
    *out = absent;
    if (!v) return LM_OK;
    if (v->kind != LM_V_INT || v->i < 0) return lm_fail_at(err, LM_FORMAT, file, LM_NO_OFFSET, key, "must be a count");
    *out = v->i;
    return LM_OK;
}

/* Whether the metadata is that of a model: it has an architecture and isn't an adapter, a projector, an importance matrix … */
static lm_status check_model(const lm_meta *m, const char *file, lm_error *err) {
    static const struct {
        const char *type, *what;
    } others[] = {{"adapter", "an adapter (LoRA): merge it into its model"},
                  {"mmproj", "a multimodal projector"},
                  {"imatrix", "an importance matrix"}};
    const lm_value *type = lm_meta_get(m, "general.type"), *arch = lm_meta_get(m, "general.architecture");
    if (type && type->kind != LM_V_STRING) return lm_fail_at(err, LM_FORMAT, file, LM_NO_OFFSET, "general.type", "must be a string");
    if (type && strcmp(type->str.s, "model")) {
        const char *what = "something else";
        for (size_t i = 0; i < sizeof others / sizeof *others; i++)
            if (!strcmp(type->str.s, others[i].type)) what = others[i].what;
        return lm_fail_at(err, LM_UNSUPPORTED, file, LM_NO_OFFSET, "general.type", "not a language model: it is %s (\"%.80s\")", what,
                          type->str.s);
    }
    if (!arch)
        return lm_fail_at(err, LM_FORMAT, file, LM_NO_OFFSET, "general.architecture", "missing: the file doesn't say which model it is");
    if (arch->kind != LM_V_STRING || !arch->str.len)
        return lm_fail_at(err, LM_FORMAT, file, LM_NO_OFFSET, "general.architecture", "must be a non-empty string");
    if (!strcmp(arch->str.s, "clip"))
        return lm_fail_at(err, LM_UNSUPPORTED, file, LM_NO_OFFSET, "general.architecture",
                          "not a language model: it is a multimodal projector (\"clip\")");
    return LM_OK;
}

/* The paths of all shards, checked to be there. */
static lm_status shard_paths(lm_source *s, uint32_t count, const char ***out, lm_error *err) {
    size_t stem;
    uint32_t no, named;
    if (!lm_split_name(s->path, &stem, &no, &named) || named != count)
        return lm_fail_at(err, LM_FORMAT, s->path, LM_NO_OFFSET, "split.count",
                          "one of %u shards, which must be named NAME-00001-of-%05u.gguf: rename it back", count, count);
    const char **path = lm_arena_calloc(s->arena, count, sizeof *path);
    if (!path) return lm_fail_nomem(err, "shard names", (uint64_t)count * sizeof *path);
    for (uint32_t i = 0; i < count; i++)
        if (!(path[i] = lm_arena_printf(s->arena, "%.*s-%05u-of-%05u.gguf", (int)stem, s->path, i + 1, count)))
            return lm_fail_nomem(err, "shard names", stem);
    LM_TRY(lm_shards_present(path, count, s->path, err));
    *out = path;
    return LM_OK;
}

static lm_status check_shard(const lm_parsed *part, const char *file, uint32_t i, uint32_t count, lm_error *err) {
    int64_t no, n;
    LM_TRY(count_key(&part->meta, "split.no", -1, file, &no, err));
    LM_TRY(count_key(&part->meta, "split.count", -1, file, &n, err));
    if (n != count)
        return lm_fail_at(err, LM_FORMAT, file, LM_NO_OFFSET, "split.count", "%" PRId64 " where the other shards say %u", n, count);
    if (no != i)
        return lm_fail_at(err, LM_FORMAT, file, LM_NO_OFFSET, "split.no", "%" PRId64 " in the file named as shard %u (counted from 0)", no,
                          i);
    return LM_OK;
}

/* Tensors of every file, and the metadata of the first. */
static lm_status finish(lm_source *s, const lm_parsed *part, lm_error *err) {
    int64_t want;
    s->meta = part[0].meta;
    s->gguf_version = part[0].version;
    s->gguf_alignment = part[0].alignment;
    LM_TRY(check_model(&s->meta, s->file[0].path, err));
    LM_TRY(lm_source_join(s, part, err));
    LM_TRY(count_key(&s->meta, "split.tensors.count", s->n_tensors, s->file[0].path, &want, err));
    if (want != s->n_tensors)
        return lm_fail_at(err, LM_FORMAT, s->file[0].path, LM_NO_OFFSET, "split.tensors.count", "%" PRId64 " tensors promised, %u found",
                          want, s->n_tensors);
    return LM_OK;
}

static lm_status open_shards(lm_source *s, uint32_t count, lm_error *err) {
    const char **path = NULL;
    LM_TRY(shard_paths(s, count, &path, err));
    LM_TRY(lm_source_map(s, path, count, err));
    lm_parsed *part = lm_arena_calloc(s->arena, count, sizeof *part);
    if (!part) return lm_fail_nomem(err, "shards", (uint64_t)count * sizeof *part);
    for (uint32_t i = 0; i < count; i++) {
        LM_TRY(lm_gguf_parse(s->file[i].data, s->file[i].size, path[i], s->arena, &part[i], err));
        LM_TRY(check_shard(&part[i], path[i], i, count, err));
    }
    return finish(s, part, err);
}

lm_status lm_gguf_open(lm_source *s, lm_error *err) {
    lm_parsed got = {0};
    int64_t count;
    LM_TRY(lm_source_map(s, &s->path, 1, err));
    LM_TRY(lm_gguf_parse(s->file[0].data, s->file[0].size, s->path, s->arena, &got, err));
    LM_TRY(count_key(&got.meta, "split.count", 0, s->path, &count, err));
    if (count > MAX_SHARDS)
        return lm_fail_at(err, LM_FORMAT, s->path, LM_NO_OFFSET, "split.count", "%" PRId64 " shards: at most %d", count, MAX_SHARDS);
    if (count <= 1) return finish(s, &got, err);
    lm_map_close(&s->file[0]); /* one shard of several: map them all, in order */
    s->n_files = 0;
    return open_shards(s, (uint32_t)count, err);
}
