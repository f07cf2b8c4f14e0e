/* A Hugging Face folder: config.json, generation_config.json, and the weights: model.safetensors, or the shards that
 * model.safetensors.index.json names, or the one *.safetensors that is there. Nothing else in the folder is opened. */
#include "format/json.h"
#include "format/packed.h"
#include "format/parse.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char index_name[] = "model.safetensors.index.json";

static lm_status in_folder(lm_source *s, const char *name, const char **out, lm_error *err) {
    *out = lm_arena_printf(s->arena, "%s/%s", s->path, name);
    return *out ? LM_OK : lm_fail_nomem(err, "a path", strlen(s->path) + strlen(name));
}

/* ---- the index ---- */
typedef struct lm_st_index_row row;
static int row_cmp(const void *a, const void *b) { return strcmp(((const row *)a)->tensor, ((const row *)b)->tensor); }
static int name_cmp(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static bool plain_name(const char *s) {
    size_t n = strlen(s), tail = strlen(".safetensors");
    return n > tail && n < 256 && s[0] != '.' && !strchr(s, '/') && !strchr(s, '\\') && !strcmp(s + n - tail, ".safetensors");
}

/* shard[0..n) sorted, each name once; returns how many are left */
static uint32_t sort_unique(const char **shard, uint32_t n) {
    uint32_t k = 0;
    qsort(shard, n, sizeof *shard, name_cmp);
    for (uint32_t i = 0; i < n; i++)
        if (!k || strcmp(shard[k - 1], shard[i])) shard[k++] = shard[i];
    return k;
}

static lm_status index_rows(json_t *map, const uint8_t *p, uint64_t n, const char *file, lm_arena *a, lm_st_index *out, lm_error *err) {
    uint32_t count = (uint32_t)json_object_size(map), i = 0;
    const char *tensor, **shard = lm_arena_calloc(a, count, sizeof *shard), **named = lm_arena_calloc(a, count, sizeof *named);
    row *r = lm_arena_calloc(a, count, sizeof *r);
    json_t *v;
    if (!shard || !named || !r) return lm_fail_nomem(err, "a weight map", count * (sizeof *r + 2 * sizeof *shard));
    json_object_foreach(map, tensor, v) {
        const char *s = json_string_value(v);
        if (!s || !plain_name(s))
            return lm_fail_at(err, LM_FORMAT, file, lm_json_key_offset(p, n, "weight_map"), tensor,
                              "must map to the plain name of a .safetensors file in the folder");
        r[i].tensor = lm_arena_strndup(a, tensor, strlen(tensor));
        shard[i] = named[i] = lm_arena_strndup(a, s, strlen(s));
        if (!r[i].tensor || !shard[i]) return lm_fail_nomem(err, "a weight map", strlen(s));
        i++;
    }
    lm_st_index got = {.shard = shard, .n_shards = sort_unique(shard, count), .row = r, .n_rows = count};
    for (i = 0; i < count; i++) {
        const char **at = bsearch(&named[i], shard, got.n_shards, sizeof *shard, name_cmp);
        r[i].shard = (uint32_t)(at - shard);
    }
    qsort(r, count, sizeof *r, row_cmp);
    *out = got;
    return LM_OK;
}

lm_status lm_st_index_parse(const uint8_t *p, uint64_t n, const char *file, lm_arena *a, lm_st_index *out, lm_error *err) {
    if (n > LM_ST_MAX_HEADER) return lm_fail_at(err, LM_FORMAT, file, LM_ST_MAX_HEADER, NULL, "an index over %u bytes", LM_ST_MAX_HEADER);
    json_t *root = NULL;
    LM_TRY(lm_json_parse(p, n, 0, file, &root, err));
    json_t *map = json_object_get(root, "weight_map");
    size_t count = json_object_size(map);
    lm_status st = json_is_object(map) && count && count <= LM_MAX_ENTRIES
                       ? index_rows(map, p, n, file, a, out, err)
                       : lm_fail_at(err, LM_FORMAT, file, lm_json_key_offset(p, n, "weight_map"), "weight_map",
                                    "must be an object of 1 to %u tensors", LM_MAX_ENTRIES);
    json_decref(root);
    return st;
}

/* ---- the weights ---- */
static lm_status map_weights(lm_source *s, const char *const *path, uint32_t n, lm_error *err) {
    LM_TRY(lm_source_map(s, path, n, err));
    lm_parsed *part = lm_arena_calloc(s->arena, n, sizeof *part);
    if (!part) return lm_fail_nomem(err, "shards", n * sizeof *part);
    for (uint32_t i = 0; i < n; i++) LM_TRY(lm_safetensors_parse(s->file[i].data, s->file[i].size, path[i], s->arena, &part[i], err));
    LM_TRY(lm_source_join(s, part, err));
    if (!s->n_tensors) return lm_fail_at(err, LM_FORMAT, path[0], LM_NO_OFFSET, NULL, "holds no tensors");
    return LM_OK;
}

/* Both are sorted by name: the map and the shards must hold the same tensors, each in the shard that the map says. */
static lm_status check_index(const lm_source *s, const lm_st_index *x, const char *file, lm_error *err) {
    for (uint32_t i = 0; i < x->n_rows; i++) {
        const lm_tensor *t = lm_source_tensor(s, x->row[i].tensor);
        if (!t)
            return lm_fail_at(err, LM_FORMAT, file, LM_NO_OFFSET, x->row[i].tensor, "the index puts it in %s, which doesn't hold it",
                              x->shard[x->row[i].shard]);
        if (t->file != x->row[i].shard)
            return lm_fail_at(err, LM_FORMAT, file, LM_NO_OFFSET, t->name, "the index puts it in %s, but it is in %s",
                              x->shard[x->row[i].shard], x->shard[t->file]);
    }
    for (uint32_t i = 0; i < s->n_tensors; i++) {
        row want = {.tensor = s->tensor[i].name};
        if (!bsearch(&want, x->row, x->n_rows, sizeof want, row_cmp))
            return lm_fail_at(err, LM_FORMAT, s->file[s->tensor[i].file].path, s->tensor[i].offset, s->tensor[i].name,
                              "the index doesn't list this tensor");
    }
    return LM_OK;
}

static lm_status open_index(lm_source *s, const char *file, lm_error *err) {
    lm_map m;
    lm_st_index x = {0};
    LM_TRY(lm_map_open(file, &m, err));
    lm_status st = lm_st_index_parse(m.data, m.size, file, s->arena, &x, err);
    lm_map_close(&m);
    LM_TRY(st);
    const char **path = lm_arena_calloc(s->arena, x.n_shards, sizeof *path);
    if (!path) return lm_fail_nomem(err, "shard names", x.n_shards * sizeof *path);
    for (uint32_t i = 0; i < x.n_shards; i++) LM_TRY(in_folder(s, x.shard[i], &path[i], err));
    LM_TRY(lm_shards_present(path, x.n_shards, file, err));
    LM_TRY(map_weights(s, path, x.n_shards, err));
    return check_index(s, &x, file, err);
}

/* ---- what a folder holds ---- */
typedef struct listing {
    struct kind {
        char name[256];
        uint32_t n;
    } st, gguf, pytorch; /* of each kind: how many, and the first by name */
} listing;

static bool ends(const char *s, const char *tail) {
    size_t n = strlen(s), t = strlen(tail);
    return n >= t && !strcasecmp(s + n - t, tail);
}

static lm_status list(const char *path, listing *out, lm_error *err) {
    *out = (listing){0};
    DIR *d = opendir(path);
    if (!d) return lm_fail_at(err, LM_IO, path, LM_NO_OFFSET, NULL, "cannot list the folder: %s", strerror(errno));
    for (struct dirent *e; (e = readdir(d));) {
        const char *name = e->d_name; /* at most 255 bytes */
        bool pt = ends(name, ".bin") || ends(name, ".pt") || ends(name, ".pth") || ends(name, ".ckpt");
        struct kind *k = ends(name, ".safetensors") ? &out->st : ends(name, ".gguf") ? &out->gguf : pt ? &out->pytorch : NULL;
        if (!k) continue;
        if (!k->n++ || strcmp(name, k->name) < 0) memcpy(k->name, name, strlen(name) + 1);
    }
    closedir(d);
    return LM_OK;
}

static lm_status no_config(const lm_source *s, const listing *l, lm_error *err) {
    static const struct {
        const char *name, *what;
    } others[] = {{"adapter_config.json", "an adapter (LoRA): merge it into its model"},
                  {"model_index.json", "a diffusers pipeline, not a language model"},
                  {"params.json", "a checkpoint in its maker's own format: use the Hugging Face version"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        char *p = lm_path_join(s->path, others[i].name);
        if (!p) return lm_fail_nomem(err, "a path", strlen(s->path));
        bool found = lm_is_file(p);
        lm_free(p);
        if (found)
            return lm_fail_at(err, LM_UNSUPPORTED, s->path, LM_NO_OFFSET, "config.json", "missing; the folder holds %s: it is %s",
                              others[i].name, others[i].what);
    }
    if (l->gguf.n)
        return lm_fail_at(err, LM_UNSUPPORTED, s->path, LM_NO_OFFSET, "config.json",
                          "missing; the folder holds GGUF files: give one of them (%s)", l->gguf.name);
    return lm_fail_at(err, LM_UNSUPPORTED, s->path, LM_NO_OFFSET, "config.json",
                      "missing: give a folder that holds config.json and the model's .safetensors files, or a GGUF file");
}

static lm_status open_weights(lm_source *s, const listing *l, lm_error *err) {
    const char *one, *index;
    LM_TRY(in_folder(s, "model.safetensors", &one, err));
    if (lm_is_file(one)) return map_weights(s, &one, 1, err);
    LM_TRY(in_folder(s, index_name, &index, err));
    if (lm_is_file(index)) return open_index(s, index, err);
    if (l->st.n > 1)
        return lm_fail_at(err, LM_IO, s->path, LM_NO_OFFSET, NULL, "%u .safetensors files and no %s to say which are the model's: fetch it",
                          l->st.n, index_name);
    if (l->st.n == 1 && strcmp(l->st.name, "adapter_model.safetensors")) {
        LM_TRY(in_folder(s, l->st.name, &one, err));
        return map_weights(s, &one, 1, err);
    }
    if (l->st.n) return lm_fail_at(err, LM_UNSUPPORTED, s->path, LM_NO_OFFSET, NULL, "only %s: an adapter (LoRA), not a model", l->st.name);
    if (l->pytorch.n)
        return lm_fail_at(err, LM_UNSUPPORTED, s->path, LM_NO_OFFSET, NULL,
                          "only PyTorch weights (%s), which are pickled programs and never loaded: fetch or make the safetensors version",
                          l->pytorch.name);
    return lm_fail_at(err, LM_IO, s->path, LM_NO_OFFSET, NULL, "no weights: model.safetensors or %s is missing: fetch it into the folder",
                      index_name);
}

static lm_status read_config(lm_source *s, const char *path, lm_meta *out, lm_error *err) {
    lm_map m;
    LM_TRY(lm_map_open(path, &m, err));
    lm_status st = lm_config_parse(m.data, m.size, path, s->arena, out, err);
    lm_map_close(&m);
    return st;
}

lm_status lm_hf_open(lm_source *s, lm_error *err) {
    const char *config, *generation;
    listing l;
    LM_TRY(in_folder(s, "config.json", &config, err));
    LM_TRY(in_folder(s, "generation_config.json", &generation, err));
    LM_TRY(list(s->path, &l, err));
    if (!lm_is_file(config)) return no_config(s, &l, err);
    LM_TRY(read_config(s, config, &s->meta, err));
    if (lm_is_file(generation)) LM_TRY(read_config(s, generation, &s->generation, err));
    LM_TRY(open_weights(s, &l, err));
    return lm_packed_fold(s, config, err);
}
