/* Which model goes with which trace. A walk over folders, in the order of names; then what each folder's traces.txt adds.
 *
 * A folder with config.json is a model, and so is each GGUF file (of a split one, the first shard). A trace beside it is its own: for a
 * folder oracle*.safetensors; for NAME.gguf NAME.oracle*.safetensors and, where the folder isn't itself a model, oracle*.safetensors. A
 * model with no trace at all is listed with what it lacks. Folders that are links, and hidden ones, are not entered.
 */
#include "base/map.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "lemma/verify.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_DEPTH = 32, MAX_FIELDS = 4, MAX_LIST = 1 << 20 };
#define LIST "traces.txt"
#define NEEDS_TRACE "needs a trace: tools/export_oracle.py writes one with transformers"

struct lm_pairs {
    lm_arena *arena;
    lm_pair *pair;
    uint32_t n, cap;
};

typedef struct names {
    char **s;
    uint32_t n, cap;
} names;

typedef struct walk {
    lm_pairs *p;
    const char *models; /* NULL: nowhere else */
    names lists;        /* the folders with a traces.txt */
    lm_error *err;
} walk;

static lm_status no_memory(walk *w) { return lm_fail_nomem(w->err, "the list of models", 0); }

/* ---- text ----------------------------------------------------------------------------------------------------------- */
static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), k = strlen(end);
    return n >= k && !strcmp(s + n - k, end);
}

static bool starts_with(const char *s, const char *start) { return !strncmp(s, start, strlen(start)); }

/* dir/name with "." and "x/.." taken out, in the arena; NULL: out of memory. An absolute name stays as it is. */
static const char *join(lm_arena *a, const char *dir, const char *name) {
    char *path = name[0] == '/' || !strcmp(dir, ".") ? lm_arena_printf(a, "%s", name) : lm_arena_printf(a, "%s/%s", dir, name);
    if (!path) return NULL;
    char *to = path, *root = path + (path[0] == '/');
    for (char *from = path; *from;) {
        size_t n = strcspn(from, "/"), step = n + (from[n] == '/');
        bool first = from == path && n == 0;
        if (!first && (n == 0 || (n == 1 && from[0] == '.'))) {
            from += step;
            continue;
        }
        char *last = to; /* of what is kept so far, where its last part starts */
        if (last > root) last--;
        while (last > root && last[-1] != '/') last--;
        bool up = n == 2 && from[0] == '.' && from[1] == '.';
        if (up && to > root && strncmp(last, "../", 3)) {
            to = last;
        } else {
            memmove(to, from, step);
            to += step;
        }
        from += step;
    }
    if (to > root && to[-1] == '/') to--;
    *to = 0;
    if (!*path) return ".";
    return path;
}

/* ---- lists of names ------------------------------------------------------------------------------------------------- */
static bool names_add(names *l, const char *s) {
    if (l->n == l->cap) {
        uint32_t cap = l->cap ? 2 * l->cap : 32;
        char **more = lm_realloc(l->s, cap * sizeof *more);
        if (!more) return false;
        l->s = more;
        l->cap = cap;
    }
    l->s[l->n] = lm_strdup(s);
    return l->s[l->n] && ++l->n;
}

static void names_free(names *l) {
    for (uint32_t i = 0; i < l->n; i++) lm_free(l->s[i]);
    lm_free(l->s);
    *l = (names){0};
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* The names in a folder, sorted, without the hidden ones. */
static lm_status read_dir(walk *w, const char *dir, names *out) {
    DIR *d = opendir(dir);
    if (!d) return lm_fail_at(w->err, LM_IO, dir, LM_NO_OFFSET, NULL, "the folder can't be read: %s", strerror(errno));
    bool ok = true;
    for (struct dirent *e; ok && (e = readdir(d));)
        if (e->d_name[0] != '.') ok = names_add(out, e->d_name);
    closedir(d);
    if (!ok) return no_memory(w);
    if (out->n) qsort(out->s, out->n, sizeof *out->s, by_name);
    return LM_OK;
}

/* ---- pairs ---------------------------------------------------------------------------------------------------------- */
static lm_status add(walk *w, const lm_pair *pair) {
    lm_pairs *p = w->p;
    if (!pair->model || !pair->model_path || !pair->trace || !pair->trace_path || !pair->open) return no_memory(w);
    for (uint32_t i = 0; i < p->n; i++) /* named by a list, too */
        if (*pair->trace && !strcmp(p->pair[i].model, pair->model) && !strcmp(p->pair[i].trace, pair->trace)) return LM_OK;
    if (p->n == p->cap) {
        uint32_t cap = p->cap ? 2 * p->cap : 64;
        lm_pair *more = lm_realloc(p->pair, cap * sizeof *more);
        if (!more) return no_memory(w);
        p->pair = more;
        p->cap = cap;
    }
    p->pair[p->n++] = *pair;
    return LM_OK;
}

/* Every trace of the folder whose name starts with `prefix` as a pair of the model; a model that has none gets a line all the same. */
static lm_status pair_beside(walk *w, const char *dir, const names *files, const char *model, const char *prefix, const char *prefix2) {
    bool any = false;
    for (uint32_t i = 0; i < files->n; i++) {
        const char *f = files->s[i];
        if (!ends_with(f, ".safetensors") || !(starts_with(f, prefix) || (prefix2 && starts_with(f, prefix2)))) continue;
        const char *trace = join(w->p->arena, dir, f);
        LM_TRY(add(w, &(lm_pair){.model = model, .model_path = model, .trace = trace, .trace_path = trace, .open = ""}));
        any = true;
    }
    return any ? LM_OK : add(w, &(lm_pair){.model = model, .model_path = model, .trace = "", .trace_path = "", .open = NEEDS_TRACE});
}

/* "x-00002-of-00005.gguf": any shard but the first */
static bool later_shard(const char *name) {
    const char *of = strstr(name, "-of-");
    return of && of - name >= 6 && of[-6] == '-' && strspn(of - 5, "0123456789") == 5 && strncmp(of - 5, "00001", 5) != 0;
}

static lm_status pair_gguf(walk *w, const char *dir, const names *files, const char *name, bool in_model) {
    if (!ends_with(name, ".gguf") || later_shard(name)) return LM_OK;
    const char *prefix = lm_arena_printf(w->p->arena, "%.*s.oracle", (int)(strlen(name) - 5), name), *path = join(w->p->arena, dir, name);
    if (!prefix || !path) return no_memory(w);
    return pair_beside(w, dir, files, path, prefix, in_model ? NULL : "oracle");
}

static bool is_real_dir(const char *path) {
    struct stat st;
    return !lstat(path, &st) && S_ISDIR(st.st_mode);
}

static lm_status visit(walk *w, const char *dir, uint32_t depth);

static lm_status visit_files(walk *w, const char *dir, const names *files, uint32_t depth) {
    bool model = false;
    for (uint32_t i = 0; i < files->n; i++) {
        model |= !strcmp(files->s[i], "config.json");
        if (!strcmp(files->s[i], LIST) && !names_add(&w->lists, dir)) return no_memory(w);
    }
    if (model) LM_TRY(pair_beside(w, dir, files, dir, "oracle", NULL));
    for (uint32_t i = 0; i < files->n; i++) {
        LM_TRY(pair_gguf(w, dir, files, files->s[i], model));
        const char *path = join(w->p->arena, dir, files->s[i]);
        if (!path) return no_memory(w);
        if (is_real_dir(path)) LM_TRY(visit(w, path, depth + 1));
    }
    return LM_OK;
}

static lm_status visit(walk *w, const char *dir, uint32_t depth) {
    names files = {0};
    if (depth > MAX_DEPTH) return lm_fail_at(w->err, LM_RANGE, dir, LM_NO_OFFSET, NULL, "folders are nested more than %d deep", MAX_DEPTH);
    lm_status st = read_dir(w, dir, &files);
    if (st == LM_OK) st = visit_files(w, dir, &files, depth);
    names_free(&files);
    return st;
}

/* ---- traces.txt ----------------------------------------------------------------------------------------------------- */
/* The model of a line: beside the list, or in the folder of models under its own last name. *path "": not here. */
static lm_status find_model(walk *w, const char *dir, const char *name, const char **shown, const char **path) {
    const char *slash = strrchr(name, '/');
    *shown = *path = join(w->p->arena, dir, name);
    if (!*path) return no_memory(w);
    if (lm_is_file(*path) || lm_is_dir(*path)) return LM_OK;
    *shown = name;
    *path = w->models ? join(w->p->arena, w->models, slash ? slash + 1 : name) : "";
    if (!*path) return no_memory(w);
    if (!lm_is_file(*path) && !lm_is_dir(*path)) *path = "";
    return LM_OK;
}

/* What the line says takes the place of "this model has no trace". */
static void forget_lonely(lm_pairs *p, const char *model) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n; i++)
        if (p->pair[i].trace[0] || strcmp(p->pair[i].model, model)) p->pair[n++] = p->pair[i];
    p->n = n;
}

/* The trace of a line; "-" is DIR/oracle.safetensors or NAME.oracle.safetensors, as beside any model. *path "": not here. */
static lm_status find_trace(walk *w, const char *dir, const char *name, const char *model, const char **shown, const char **path) {
    lm_arena *a = w->p->arena;
    if (strcmp(name, "-")) {
        *shown = *path = join(a, dir, name);
    } else if (*model) {
        size_t n = strlen(model) - (ends_with(model, ".gguf") ? 5 : 0);
        *path = lm_arena_printf(a, "%.*s%soracle.safetensors", (int)n, model, lm_is_dir(model) ? "/" : ".");
        *shown = *path ? strrchr(*path, '/') ? strrchr(*path, '/') + 1 : *path : NULL;
    }
    if (!*path) return no_memory(w);
    if (!lm_is_file(*path)) {
        *path = "";
        if (!strcmp(name, "-")) *shown = "";
    }
    return LM_OK;
}

static lm_status add_line(walk *w, const char *dir, const char *list, uint64_t at, uint32_t line, char *f[MAX_FIELDS], uint32_t n) {
    lm_arena *a = w->p->arena;
    lm_pair p = {.trace = "", .trace_path = "", .open = ""};
    if (n < 3 || !*f[0] || !*f[1])
        return lm_fail_at(w->err, LM_FORMAT, list, at, NULL, "line %u: wanted MODEL | TRACE | same or converted | what would close it",
                          line);
    p.converted = !strcmp(f[2], "converted");
    if (!p.converted && strcmp(f[2], "same"))
        return lm_fail_at(w->err, LM_FORMAT, list, at, NULL, "line %u: '%.40s' is neither same nor converted", line, f[2]);
    LM_TRY(find_model(w, dir, f[0], &p.model, &p.model_path));
    LM_TRY(find_trace(w, dir, f[1], p.model_path, &p.trace, &p.trace_path));
    if (!*p.model_path || !*p.trace_path) {
        if (n > 3 && *f[3])
            p.open = lm_arena_printf(a, "%s", f[3]);
        else if (!*p.model_path)
            p.open = lm_arena_printf(a, "needs the model's file %s", f[0]);
        else
            p.open = *p.trace ? lm_arena_printf(a, "needs the trace %s", p.trace) : NEEDS_TRACE;
    }
    p.model = lm_arena_printf(a, "%s", p.model);
    if (!p.model || !p.open) return no_memory(w);
    forget_lonely(w->p, p.model);
    return add(w, &p);
}

/* text[0..n) is NUL-terminated and ours to cut up. */
static lm_status read_lines(walk *w, const char *dir, const char *list, char *text, size_t n) {
    char *next;
    uint32_t line = 1;
    if (memchr(text, 0, n) || !lm_utf8_valid((const uint8_t *)text, n))
        return lm_fail_at(w->err, LM_FORMAT, list, LM_NO_OFFSET, NULL, "is no UTF-8 text");
    for (char *s = text; s; s = next, line++) {
        char *f[MAX_FIELDS], *start = s;
        uint32_t fields = 0;
        if ((next = strchr(s, '\n'))) *next++ = 0;
        if (s[strspn(s, " \t\r")] == 0 || *s == '#') continue;
        for (char *bar = s; bar && fields < MAX_FIELDS; s = bar) {
            bar = fields + 1 < MAX_FIELDS ? strchr(s, '|') : NULL; /* the last field may have bars of its own */
            if (bar) *bar++ = 0;
            s += strspn(s, " \t\r");
            size_t len = strlen(s);
            while (len && strchr(" \t\r", s[len - 1])) s[--len] = 0;
            f[fields++] = s;
        }
        LM_TRY(add_line(w, dir, list, (uint64_t)(start - text), line, f, fields));
    }
    return LM_OK;
}

static lm_status read_list(walk *w, const char *dir) {
    lm_map m;
    const char *list = join(w->p->arena, dir, LIST);
    if (!list) return no_memory(w);
    LM_TRY(lm_map_open(list, &m, w->err));
    lm_status st = LM_OK;
    if (m.size > MAX_LIST) st = lm_fail_at(w->err, LM_RANGE, list, LM_NO_OFFSET, NULL, "is larger than %d bytes", MAX_LIST);
    char *text = st == LM_OK ? lm_strndup((const char *)m.data, m.size) : NULL;
    if (st == LM_OK) st = text ? read_lines(w, dir, list, text, m.size) : no_memory(w);
    lm_free(text);
    lm_map_close(&m);
    return st;
}

/* ---- the whole ------------------------------------------------------------------------------------------------------ */
static int by_model(const void *a, const void *b) {
    const lm_pair *x = a, *y = b;
    int d = strcmp(x->model, y->model);
    return d ? d : strcmp(x->trace, y->trace);
}

lm_status lm_pairs_find(const char *const *dir, uint32_t n, const char *models, lm_pairs **out, lm_error *err) {
    lm_pairs *p = lm_calloc(1, sizeof *p);
    if (p) p->arena = lm_arena_create();
    walk w = {.p = p, .models = models, .err = err};
    lm_status st = p && p->arena ? LM_OK : no_memory(&w);
    for (uint32_t i = 0; i < n && st == LM_OK; i++) {
        const char *d = join(p->arena, dir[i], ".");
        st = !d ? no_memory(&w) : visit(&w, d, 0);
    }
    for (uint32_t i = 0; i < w.lists.n && st == LM_OK; i++) st = read_list(&w, w.lists.s[i]);
    names_free(&w.lists);
    if (st != LM_OK) {
        lm_pairs_free(p);
        return st;
    }
    if (p->n) qsort(p->pair, p->n, sizeof *p->pair, by_model);
    *out = p;
    return LM_OK;
}

void lm_pairs_free(lm_pairs *p) {
    if (!p) return;
    if (p->arena) lm_arena_destroy(p->arena);
    lm_free(p->pair);
    lm_free(p);
}

uint32_t lm_pairs_size(const lm_pairs *p) { return p->n; }
const lm_pair *lm_pairs_get(const lm_pairs *p, uint32_t i) { return i < p->n ? &p->pair[i] : NULL; }
