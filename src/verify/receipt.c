/* A receipt's file: written field by field, read with every key checked. */
#include "verify/receipt.h"
#include "base/map.h"
#include "base/utf8.h"
#include "format/json.h"
#include "format/source.h"
#include "version.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const field_name[] = {
#define NAME(name) #name,
    LM_RECEIPT_FIELDS(NAME)
#undef NAME
};
const char *lm_receipt_field_name(uint32_t field) { return field < LM_RECEIPT_N_FIELDS ? field_name[field] : "?"; }

/* ---- making one ------------------------------------------------------------------------------------------------------------------- */
static bool plain(const char *s) {
    for (; s && *s; s++)
        if (*s < ' ' || *s > '~' || *s == '"' || *s == '\\') return false;
    return s != NULL;
}

static const char *keep(lm_receipt *r, const char *s, bool *ok) {
    const char *copy = plain(s) ? lm_arena_strndup(r->arena, s, strlen(s)) : NULL;
    if (!copy) *ok = false;
    return copy;
}

static lm_receipt *empty(lm_error *err) {
    lm_receipt *r = lm_calloc(1, sizeof *r);
    if (r) r->arena = lm_arena_create();
    if (r && r->arena) return r;
    lm_free(r);
    lm_fail_nomem(err, "a receipt", sizeof *r);
    return NULL;
}

lm_status lm_receipt_create(const lm_receipt_about *a, lm_receipt **out, lm_error *err) {
    if (!a->n_prompt || a->n_prompt > LM_RECEIPT_MAX_IDS)
        return lm_fail(err, LM_RANGE, "a receipt wants a prompt of 1 to %u ids, not %u", LM_RECEIPT_MAX_IDS, a->n_prompt);
    lm_receipt *r = empty(err);
    if (!r) return LM_NOMEM;
    bool ok = true;
    r->weights_sha256 = keep(r, a->weights_sha256, &ok);
    r->arch = keep(r, a->arch, &ok);
    r->backend = keep(r, a->backend, &ok);
    r->lane = keep(r, a->lane, &ok);
    r->device = keep(r, a->device, &ok);
    r->kv = keep(r, a->kv ? a->kv : "", &ok);
    r->made_by = keep(r, "lemma " LM_VERSION " " LM_COMMIT, &ok);
    r->contract = LM_CONTRACT_VERSION;
    r->sampler = a->sampler;
    int32_t *prompt = lm_arena_calloc(r->arena, a->n_prompt, sizeof *prompt);
    if (!ok || !prompt) {
        lm_receipt_free(r);
        return ok ? lm_fail_nomem(err, "a receipt", a->n_prompt * sizeof *prompt)
                  : lm_fail(err, LM_USAGE, "a receipt's names must be printable ASCII");
    }
    memcpy(prompt, a->prompt, a->n_prompt * sizeof *prompt);
    r->prompt = prompt;
    r->n_prompt = a->n_prompt;
    *out = r;
    return LM_OK;
}

void lm_receipt_free(lm_receipt *r) {
    if (!r) return;
    lm_arena_destroy(r->arena);
    lm_free(r->step);
    lm_free(r);
}

static lm_receipt_stepped *next_step(lm_receipt *r, lm_error *err) {
    if (r->n_steps == r->cap_steps) {
        const uint32_t cap = r->cap_steps ? 2 * r->cap_steps : 256;
        lm_receipt_stepped *more = r->n_steps < LM_RECEIPT_MAX_IDS ? lm_realloc(r->step, cap * sizeof *more) : NULL;
        if (!more) {
            lm_fail_nomem(err, "a receipt's steps", cap * sizeof *more);
            return NULL;
        }
        r->step = more;
        r->cap_steps = cap;
    }
    return &r->step[r->n_steps++];
}

lm_status lm_receipt_step(lm_receipt *r, const lm_logits *l, uint32_t row, int32_t id, lm_error *err) {
    lm_receipt_stepped *s = next_step(r, err);
    if (!s) return LM_NOMEM;
    const size_t bytes = (size_t)l->width * (l->is_f64 ? sizeof(double) : sizeof(float));
    lm_sha256 h;
    lm_sha256_init(&h);
    lm_sha256_update(&h, (const uint8_t *)l->data + row * bytes, bytes);
    lm_sha256_final(&h, s->logits);
    s->id = id;
    return LM_OK;
}

/* The shortest text that reads back as the same double. */
static int real(double v, char *buf, size_t n) {
    const int k = snprintf(buf, n, "%.15g", v);
    return strtod(buf, NULL) == v ? k : snprintf(buf, n, "%.17g", v);
}

/* ---- the fields ---------------------------------------------------------------------------------------------------------------------- */
/* A field's value as its digest sees it, but for the three lists. */
static int scalar(const lm_receipt *r, uint32_t field, char *buf, size_t n) {
    const lm_sampler_options *o = &r->sampler;
    switch (field) {
    case LM_RECEIPT_weights_sha256: return snprintf(buf, n, "\"%s\"", r->weights_sha256);
    case LM_RECEIPT_backend: return snprintf(buf, n, "\"%s\"", r->backend);
    case LM_RECEIPT_lane: return snprintf(buf, n, "\"%s\"", r->lane);
    case LM_RECEIPT_kv: return snprintf(buf, n, "\"%s\"", r->kv);
    case LM_RECEIPT_contract: return snprintf(buf, n, "%u", r->contract);
    case LM_RECEIPT_temperature: return real(o->temperature, buf, n);
    case LM_RECEIPT_top_k: return snprintf(buf, n, "%u", o->top_k);
    case LM_RECEIPT_top_p: return real(o->top_p, buf, n);
    case LM_RECEIPT_min_p: return real(o->min_p, buf, n);
    case LM_RECEIPT_repeat_penalty: return real(o->repeat_penalty, buf, n);
    case LM_RECEIPT_repeat_last_n: return snprintf(buf, n, "%u", o->repeat_last_n);
    case LM_RECEIPT_seed: return snprintf(buf, n, "\"%" PRIu64 "\"", o->seed);
    default: return 0;
    }
}

static void add_id(lm_sha256 *h, int32_t id) {
    char buf[16];
    lm_sha256_update(h, buf, (size_t)snprintf(buf, sizeof buf, "%d,", id));
}

void lm_receipt_field_digest(const lm_receipt *r, uint32_t field, char out[LM_RECEIPT_DIGEST + 1]) {
    char buf[256], hex[65];
    uint8_t digest[32];
    lm_sha256 h;
    lm_sha256_init(&h);
    lm_sha256_update(&h, buf, (size_t)snprintf(buf, sizeof buf, "%s=", lm_receipt_field_name(field)));
    lm_sha256_update(&h, buf, (size_t)scalar(r, field, buf, sizeof buf));
    for (uint32_t i = 0; field == LM_RECEIPT_prompt && i < r->n_prompt; i++) add_id(&h, r->prompt[i]);
    for (uint32_t i = 0; field == LM_RECEIPT_ids && i < r->n_steps; i++) add_id(&h, r->step[i].id);
    for (uint32_t i = 0; field == LM_RECEIPT_logits && i < r->n_steps; i++) lm_sha256_update(&h, r->step[i].logits, 32);
    lm_sha256_final(&h, digest);
    lm_sha256_hex(digest, hex);
    memcpy(out, hex, LM_RECEIPT_DIGEST);
    out[LM_RECEIPT_DIGEST] = 0;
}

/* ---- writing ------------------------------------------------------------------------------------------------------------------------- */
static void put_fields(FILE *f, const lm_receipt *r, uint32_t from, uint32_t to) {
    char buf[256];
    for (uint32_t i = from; i <= to; i++) {
        scalar(r, i, buf, sizeof buf);
        fprintf(f, "%s\"%s\": %s", i > from ? ", " : "", lm_receipt_field_name(i), buf);
    }
}

char *lm_receipt_json(const lm_receipt *r, const char *finish) {
    char *text = NULL, hex[65];
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f) return NULL;
    fprintf(f, "{\"receipt_version\": %d,\n \"made_by\": \"%s\", \"device\": \"%s\", \"arch\": \"%s\",\n ", LM_RECEIPT_VERSION, r->made_by,
            r->device, r->arch);
    put_fields(f, r, LM_RECEIPT_weights_sha256, LM_RECEIPT_contract);
    fprintf(f, ",\n \"sampler\": {");
    put_fields(f, r, LM_RECEIPT_temperature, LM_RECEIPT_seed);
    fprintf(f, "},\n \"prompt\": [");
    for (uint32_t i = 0; i < r->n_prompt; i++) fprintf(f, "%s%d", i ? ", " : "", r->prompt[i]);
    fprintf(f, "],\n \"steps\": [");
    for (uint32_t i = 0; i < r->n_steps; i++) {
        lm_sha256_hex(r->step[i].logits, hex);
        fprintf(f, "%s\n  {\"id\": %d, \"logits\": \"%s\"}", i ? "," : "", r->step[i].id, hex);
    }
    fprintf(f, "],\n \"finish\": \"%s\",\n \"digests\": {", plain(finish) ? finish : "");
    for (uint32_t i = 0; i < LM_RECEIPT_N_FIELDS; i++) {
        char digest[LM_RECEIPT_DIGEST + 1];
        lm_receipt_field_digest(r, i, digest);
        fprintf(f, "%s\"%s\": \"%s\"", i ? ", " : "", lm_receipt_field_name(i), digest);
    }
    fprintf(f, "}}\n");
    if (fclose(f) != 0) {
        lm_free(text);
        return NULL;
    }
    return text;
}

static lm_status write_text(const char *path, const char *temporary, const char *text, lm_error *err) {
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return lm_fail_at(err, LM_IO, path, LM_NO_OFFSET, NULL, "cannot create a file beside it: %s", strerror(errno));
    bool ok = true;
    for (size_t n = strlen(text), at = 0; ok && at < n;) {
        ssize_t k = write(fd, text + at, n - at);
        if (k > 0)
            at += (size_t)k;
        else
            ok = k < 0 && errno == EINTR;
    }
    int why = errno;
    if (close(fd) != 0 && ok) ok = false, why = errno;
    if (ok && rename(temporary, path) != 0) ok = false, why = errno;
    if (ok) return LM_OK;
    unlink(temporary);
    return lm_fail_at(err, LM_IO, path, LM_NO_OFFSET, NULL, "cannot write the file: %s", strerror(why));
}

lm_status lm_receipt_write(const lm_receipt *r, const char *finish, const char *path, lm_error *err) {
    static _Atomic unsigned serial;
    LM_TRY(lm_target_check(path, NULL, err));
    const size_t room = strlen(path) + 48;
    char *text = lm_receipt_json(r, finish), *temporary = lm_malloc(room);
    lm_status st = text && temporary ? LM_OK : lm_fail_nomem(err, "a receipt", room);
    if (st == LM_OK) {
        snprintf(temporary, room, "%s.tmp-%ld-%u", path, (long)getpid(), serial++);
        st = write_text(path, temporary, text, err);
    }
    lm_free(temporary);
    lm_free(text);
    return st;
}

/* ---- reading ------------------------------------------------------------------------------------------------------------------------- */
typedef struct reader {
    lm_receipt *r;
    const char *path;
    json_t *root;
    lm_error *err;
} reader;
#define BAD(d, key, ...) lm_fail_at((d)->err, LM_FORMAT, (d)->path, LM_NO_OFFSET, key, __VA_ARGS__)

static lm_status get_string(reader *d, const json_t *from, const char *key, const char **out) {
    const char *s = json_string_value(json_object_get(from, key));
    bool ok = s != NULL;
    if (!s) return BAD(d, key, "is missing, or no string");
    *out = strlen(s) < 200 ? keep(d->r, s, &ok) : NULL;
    return *out ? LM_OK : BAD(d, key, "must be a short string of printable ASCII");
}

static lm_status get_count(reader *d, const json_t *from, const char *key, uint32_t *out) {
    const json_t *v = json_object_get(from, key);
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > UINT32_MAX)
        return BAD(d, key, "is missing, or not an integer from 0 to %u", UINT32_MAX);
    *out = (uint32_t)json_integer_value(v);
    return LM_OK;
}

static lm_status get_real(reader *d, const json_t *from, const char *key, double *out) {
    const json_t *v = json_object_get(from, key);
    if (!json_is_number(v)) return BAD(d, key, "is missing, or no number");
    *out = json_number_value(v);
    return LM_OK;
}

static lm_status get_seed(reader *d, const json_t *from, uint64_t *out) {
    const char *s = json_string_value(json_object_get(from, "seed"));
    uint64_t v = 0, more;
    bool ok = s && *s && (s[0] != '0' || !s[1]);
    for (; ok && *s; s++) ok = *s >= '0' && *s <= '9' && lm_mul(v, 10, &more) && lm_add(more, (uint64_t)(*s - '0'), &v);
    if (!ok) return BAD(d, "seed", "must be a string of decimal digits, below 2^64");
    *out = v;
    return LM_OK;
}

static bool get_id(const json_t *v, int32_t *out) {
    const json_int_t i = json_integer_value(v);
    if (!json_is_integer(v) || i < 0 || i > INT32_MAX) return false;
    *out = (int32_t)i;
    return true;
}

static lm_status get_prompt(reader *d) {
    const json_t *a = json_object_get(d->root, "prompt");
    const size_t n = json_array_size(a);
    int32_t *id = NULL;
    if (!n || n > LM_RECEIPT_MAX_IDS) return BAD(d, "prompt", "must be a list of 1 to %u ids", LM_RECEIPT_MAX_IDS);
    if (!(id = lm_arena_calloc(d->r->arena, n, sizeof *id))) return lm_fail_nomem(d->err, "a prompt", n * sizeof *id);
    for (size_t i = 0; i < n; i++)
        if (!get_id(json_array_get(a, i), &id[i])) return BAD(d, "prompt", "entry %zu is no token id", i);
    d->r->prompt = id;
    d->r->n_prompt = (uint32_t)n;
    return LM_OK;
}

static bool get_hex(const char *s, uint8_t out[32]) {
    if (!s || strlen(s) != 64 || strspn(s, "0123456789abcdef") != 64) return false;
    for (int i = 0; i < 64; i++) {
        const int digit = s[i] <= '9' ? s[i] - '0' : s[i] - 'a' + 10;
        out[i / 2] = (uint8_t)(i % 2 ? out[i / 2] | digit : digit << 4);
    }
    return true;
}

static lm_status get_steps(reader *d) {
    const json_t *a = json_object_get(d->root, "steps");
    const size_t n = json_array_size(a);
    if (!json_is_array(a) || n > LM_RECEIPT_MAX_IDS) return BAD(d, "steps", "must be a list of at most %u steps", LM_RECEIPT_MAX_IDS);
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_array_get(a, i);
        lm_receipt_stepped *to = next_step(d->r, d->err);
        if (!to) return LM_NOMEM;
        if (!get_id(json_object_get(s, "id"), &to->id) || !get_hex(json_string_value(json_object_get(s, "logits")), to->logits) ||
            json_object_size(s) != 2)
            return BAD(d, "steps", "step %zu must be an id and the sha256 of its logits, 64 lower-case hexadecimal digits", i);
    }
    return LM_OK;
}

static lm_status get_digests(reader *d) {
    const json_t *o = json_object_get(d->root, "digests");
    if (json_object_size(o) != LM_RECEIPT_N_FIELDS)
        return BAD(d, "digests", "must have one digest for each of %d fields", LM_RECEIPT_N_FIELDS);
    for (uint32_t i = 0; i < LM_RECEIPT_N_FIELDS; i++) {
        const char *s = json_string_value(json_object_get(o, lm_receipt_field_name(i)));
        if (!s || strlen(s) != LM_RECEIPT_DIGEST)
            return BAD(d, "digests", "%s must have a digest of %d digits", lm_receipt_field_name(i), LM_RECEIPT_DIGEST);
        memcpy(d->r->digest[i], s, LM_RECEIPT_DIGEST + 1);
    }
    return LM_OK;
}

static lm_status known_keys(reader *d, const json_t *o, const char *const *known, size_t n) {
    const char *key;
    const json_t *v;
    json_object_foreach((json_t *)(uintptr_t)o, key, v) {
        size_t i = 0;
        while (i < n && strcmp(known[i], key)) i++;
        if (i == n) return BAD(d, key, "is no key of a receipt of version %d", LM_RECEIPT_VERSION);
    }
    return LM_OK;
}

static lm_status get_all(reader *d) {
    static const char *const top[] = {"receipt_version", "made_by", "device", "arch",  "weights_sha256", "backend", "lane", "kv",
                                      "contract",        "sampler", "prompt", "steps", "finish",         "digests"};
    lm_receipt *r = d->r;
    const json_t *s = json_object_get(d->root, "sampler");
    uint32_t version = 0;
    uint8_t sha[32];
    const char *finish;
    if (!json_is_object(d->root) || !json_object_get(d->root, "receipt_version"))
        return BAD(d, "receipt_version", "is missing: this is no receipt");
    LM_TRY(get_count(d, d->root, "receipt_version", &version));
    LM_TRY(get_string(d, d->root, "made_by", &r->made_by));
    LM_TRY(get_count(d, d->root, "contract", &r->contract));
    if (version != LM_RECEIPT_VERSION)
        return lm_fail_at(d->err, LM_UNSUPPORTED, d->path, LM_NO_OFFSET, "receipt_version", "is %u; this lemma reads version %d", version,
                          LM_RECEIPT_VERSION);
    if (r->contract != LM_CONTRACT_VERSION)
        return lm_fail_at(d->err, LM_UNSUPPORTED, d->path, LM_NO_OFFSET, "contract",
                          "was made under version %u of the determinism contract, this lemma keeps version %d: check it with a build of "
                          "that version (%s)",
                          r->contract, LM_CONTRACT_VERSION, r->made_by);
    LM_TRY(known_keys(d, d->root, top, sizeof top / sizeof *top));
    LM_TRY(known_keys(d, s, field_name + LM_RECEIPT_temperature, LM_RECEIPT_seed - LM_RECEIPT_temperature + 1));
    LM_TRY(get_string(d, d->root, "device", &r->device));
    LM_TRY(get_string(d, d->root, "arch", &r->arch));
    LM_TRY(get_string(d, d->root, "weights_sha256", &r->weights_sha256));
    LM_TRY(get_string(d, d->root, "backend", &r->backend));
    LM_TRY(get_string(d, d->root, "lane", &r->lane));
    LM_TRY(get_string(d, d->root, "kv", &r->kv));
    LM_TRY(get_string(d, d->root, "finish", &finish));
    if (!get_hex(r->weights_sha256, sha)) return BAD(d, "weights_sha256", "must be 64 lower-case hexadecimal digits");
    LM_TRY(get_real(d, s, "temperature", &r->sampler.temperature));
    LM_TRY(get_count(d, s, "top_k", &r->sampler.top_k));
    LM_TRY(get_real(d, s, "top_p", &r->sampler.top_p));
    LM_TRY(get_real(d, s, "min_p", &r->sampler.min_p));
    LM_TRY(get_real(d, s, "repeat_penalty", &r->sampler.repeat_penalty));
    LM_TRY(get_count(d, s, "repeat_last_n", &r->sampler.repeat_last_n));
    LM_TRY(get_seed(d, s, &r->sampler.seed));
    LM_TRY(get_prompt(d));
    LM_TRY(get_steps(d));
    return get_digests(d);
}

lm_status lm_receipt_read(const char *path, lm_receipt **out, lm_error *err) {
    lm_map map;
    LM_TRY(lm_map_open(path, &map, err));
    reader d = {.r = empty(err), .path = path, .err = err};
    lm_status st = d.r ? lm_json_parse(map.data, map.size, 0, path, &d.root, err) : LM_NOMEM;
    if (st == LM_OK) st = get_all(&d);
    json_decref(d.root);
    lm_map_close(&map);
    if (st != LM_OK) {
        lm_receipt_free(d.r);
        return st;
    }
    *out = d.r;
    return LM_OK;
}
