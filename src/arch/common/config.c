#include "arch/common/export.h"
#include <stdio.h>
#include <string.h>

/* Copies the next spelling of "a|b|c" to buf; returns the rest, or NULL after the last. */
static const char *next_spelling(const char *list, char *buf, size_t n) {
    const char *bar = strchr(list, '|');
    size_t len = bar ? (size_t)(bar - list) : strlen(list);
    if (len >= n) len = n - 1;
    memcpy(buf, list, len);
    buf[len] = 0;
    return bar ? bar + 1 : NULL;
}

static const lm_value *take(lm_b *b, const char *key) {
    const lm_value *v = lm_meta_get(&b->src->meta, key);
    if (!v) return NULL;
    const lm_meta_entry *e = (const lm_meta_entry *)((const char *)v - offsetof(lm_meta_entry, value));
    b->key_used[e - b->src->meta.entry] = 1;
    return v->kind == LM_V_NULL ? NULL : v;
}

/* One spelling as the file's keys have it */
static void whole_key(const lm_b *b, const char *one, char *key, size_t n) {
    if (!b->gguf) snprintf(key, n, "%s%s", b->prefix, one);
    else if (one[0] == '=') snprintf(key, n, "%s", one + 1);
    else snprintf(key, n, "%s.%s", b->arch->gguf, one);
}
/* The name under which the key was looked up, for messages: the spelling that the file has, or the first. */
static void shown_name(lm_b *b, const char *hf, const char *gguf, char *buf, size_t n) {
    const char *const all = b->gguf ? gguf : hf;
    char one[120];
    for (const char *list = all; list;) {
        list = next_spelling(list, one, sizeof one);
        whole_key(b, one, buf, n);
        if (lm_meta_get(&b->src->meta, buf)) return;
    }
    next_spelling(all ? all : "?", one, sizeof one);
    whole_key(b, one, buf, n);
}

const char *lm_cfg_name(lm_b *b, const char *hf, const char *gguf) {
    char name[200];
    shown_name(b, hf, gguf, name, sizeof name);
    const char *own = lm_arena_strndup(b->g.p->arena, name, strlen(name));
    return own ? own : "config";
}

const lm_value *lm_cfg_raw(lm_b *b, const char *hf, const char *gguf) {
    const char *list = b->gguf ? gguf : hf;
    const lm_value *found = NULL;
    char one[120], key[200];
    for (const char *own = b->gguf ? hf : NULL; own;) {
        own = next_spelling(own, one, sizeof one);
        snprintf(key, sizeof key, "lemma.%s", one);
        const lm_value *v = take(b, key);
        if (v && !found) found = v;
    }
    while (list) {
        list = next_spelling(list, one, sizeof one);
        whole_key(b, one, key, sizeof key);
        const lm_value *v = take(b, key);
        if (!v && !b->gguf && b->prefix[0]) v = take(b, one); /* a multimodal config says some things at the top only */
        if (v && !found) {
            found = v;
            if (b->log && !gguf) lm_log_raw(b, one, v);
        }
    }
    return found;
}

/* Scalars that transformers takes null for in any family: none, or as the rest says. Lists and groups may be null, but for the few that
 * lm_cfg_not_null is asked about. */
static const char nullable[] =
    "attn_logit_softcapping|use_bidirectional_attention|beta_fast|beta_slow|mscale|mscale_all_dim|attention_factor";
static bool is_one_of(const char *list, const char *key) {
    char one[120];
    while (list) {
        list = next_spelling(list, one, sizeof one);
        if (!strcmp(one, key)) return true;
    }
    return false;
}
static bool is_null(const lm_b *b, const char *key) {
    char full[200];
    snprintf(full, sizeof full, "%s%s", b->prefix, key);
    const lm_value *v = lm_meta_get(&b->src->meta, full);
    return v && v->kind == LM_V_NULL;
}
void lm_cfg_not_null(lm_b *b, const char *hf) {
    char key[120];
    for (const char *list = b->gguf ? NULL : hf; list;) {
        list = next_spelling(list, key, sizeof key);
        const char *dot = strrchr(key, '.'), *leaf = dot ? dot + 1 : key;
        if (!is_null(b, key) || is_one_of(nullable, leaf) || (b->arch->nullable && is_one_of(b->arch->nullable, leaf))) continue;
        lm_graph_fail(&b->g, LM_FORMAT, key, "is null, and %s needs a value: leave the key out for its default", b->arch->name);
    }
}
/* lm_cfg_raw for one value. */
static const lm_value *scalar(lm_b *b, const char *hf, const char *gguf) {
    const lm_value *v = lm_cfg_raw(b, hf, gguf);
    if (!v) lm_cfg_not_null(b, hf);
    return v;
}

bool lm_cfg_has(lm_b *b, const char *hf, const char *gguf) { return lm_cfg_raw(b, hf, gguf) != NULL; }
void lm_cfg_ignore(lm_b *b, const char *hf, const char *gguf) { (void)lm_cfg_raw(b, hf, gguf); }

static uint32_t wrong_type(lm_b *b, const char *hf, const char *gguf, const char *want) {
    char name[200];
    shown_name(b, hf, gguf, name, sizeof name);
    return lm_graph_fail(&b->g, LM_FORMAT, name, "should be %s", want);
}

/* An integer, also when a writer spelled it 8.0. */
static bool as_int(const lm_value *v, int64_t *out) {
    if (v->kind == LM_V_INT && (v->i >= 0) == (v->u == (uint64_t)v->i)) return *out = v->i, true;
    if (v->kind == LM_V_FLOAT && v->f == floor(v->f) && fabs(v->f) < 9e15) return *out = (int64_t)v->f, true;
    return false;
}

static uint32_t read_u32(lm_b *b, const char *hf, const char *gguf, const lm_value *v, int64_t def, uint32_t min, uint32_t max) {
    char name[200];
    int64_t i;
    if (!v) {
        if (def != LM_REQUIRED || !lm_graph_ok(&b->g)) return def == LM_REQUIRED ? min : (uint32_t)def;
        shown_name(b, hf, gguf, name, sizeof name);
        lm_graph_fail(&b->g, LM_FORMAT, name, "is missing from the model's config");
        return min;
    }
    /* a GGUF's array that says the same for every layer stands for one number */
    lm_value first = *v;
    if (b->gguf && v->kind == LM_V_ARRAY && v->elem == LM_V_INT && v->arr.n > 0) {
        const int64_t *a = v->arr.data;
        first.kind = LM_V_INT;
        first.i = a[0];
        first.u = (uint64_t)a[0];
        for (uint64_t k = 1; k < v->arr.n; k++)
            if (a[k] != a[0]) first.kind = LM_V_OTHER;
    }
    if (!as_int(&first, &i)) {
        wrong_type(b, hf, gguf, "an integer");
        return min;
    }
    if (i < (int64_t)min || i > (int64_t)max) {
        shown_name(b, hf, gguf, name, sizeof name);
        lm_graph_fail(&b->g, LM_RANGE, name, "is %lld; it must be between %u and %u", (long long)i, min, max);
        return min;
    }
    return (uint32_t)i;
}

uint32_t lm_cfg_u32(lm_b *b, const char *hf, const char *gguf, int64_t def, uint32_t min, uint32_t max) {
    const lm_value *v = scalar(b, hf, gguf);
    uint32_t u = read_u32(b, hf, gguf, v, def, min, max);
    if (b->log && gguf) lm_log_value(b, gguf, (lm_value){.kind = LM_V_INT, .i = u, .u = u}, v != NULL);
    return u;
}

static double read_f64(lm_b *b, const char *hf, const char *gguf, const lm_value *v, double def) {
    char name[200];
    if (!v) {
        if (!isnan(def)) return def;
        shown_name(b, hf, gguf, name, sizeof name);
        lm_graph_fail(&b->g, LM_FORMAT, name, "is missing from the model's config");
        return 1.0;
    }
    double f = v->kind == LM_V_INT ? (double)v->i : v->f;
    if (v->kind != LM_V_INT && v->kind != LM_V_FLOAT) {
        wrong_type(b, hf, gguf, "a number");
        return 1.0;
    }
    if (!isfinite(f)) {
        shown_name(b, hf, gguf, name, sizeof name);
        lm_graph_fail(&b->g, LM_RANGE, name, "is not a finite number");
        return 1.0;
    }
    return f;
}

double lm_cfg_f64(lm_b *b, const char *hf, const char *gguf, double def) {
    const lm_value *v = scalar(b, hf, gguf);
    double f = read_f64(b, hf, gguf, v, def);
    if (b->log && gguf) lm_log_value(b, gguf, (lm_value){.kind = LM_V_FLOAT, .f = f}, v != NULL);
    return f;
}

static bool read_bool(lm_b *b, const char *hf, const char *gguf, const lm_value *v, bool def) {
    if (!v) return def;
    if (v->kind != LM_V_BOOL) {
        wrong_type(b, hf, gguf, "true or false");
        return def;
    }
    return v->b;
}

bool lm_cfg_bool(lm_b *b, const char *hf, const char *gguf, bool def) {
    const lm_value *v = scalar(b, hf, gguf);
    bool on = read_bool(b, hf, gguf, v, def);
    if (b->log && gguf) lm_log_value(b, gguf, (lm_value){.kind = LM_V_BOOL, .b = on}, v != NULL);
    return on;
}

const char *lm_cfg_str(lm_b *b, const char *hf, const char *gguf, const char *def) {
    const lm_value *v = scalar(b, hf, gguf);
    if (!v) return def;
    if (v->kind != LM_V_STRING) {
        wrong_type(b, hf, gguf, "a string");
        return def;
    }
    return v->str.s;
}

static bool check_count(lm_b *b, const char *hf, const char *gguf, const lm_value *v, uint32_t n) {
    if (v->arr.n == n) return true;
    char name[200];
    shown_name(b, hf, gguf, name, sizeof name);
    lm_graph_fail(&b->g, LM_FORMAT, name, "lists %llu values, the model needs %u", (unsigned long long)v->arr.n, n);
    return false;
}

bool lm_cfg_u32s(lm_b *b, const char *hf, const char *gguf, uint32_t *out, uint32_t n) {
    const lm_value *v = lm_cfg_raw(b, hf, gguf);
    if (!v) return false;
    if (b->log && gguf) lm_log_value(b, gguf, *v, true);
    int64_t i = 0;
    if (v->kind == LM_V_ARRAY && v->elem == LM_V_INT) {
        if (!check_count(b, hf, gguf, v, n)) return false;
        for (uint32_t k = 0; k < n; k++) {
            i = ((const int64_t *)v->arr.data)[k];
            if (i < 0 || i > INT32_MAX) return (void)wrong_type(b, hf, gguf, "a list of integers from 0 to 2^31-1"), false;
            out[k] = (uint32_t)i;
        }
        return true;
    }
    if (!as_int(v, &i) || i < 0 || i > INT32_MAX) return (void)wrong_type(b, hf, gguf, "an integer or one per layer"), false;
    for (uint32_t k = 0; k < n; k++) out[k] = (uint32_t)i;
    return true;
}

bool lm_cfg_f64s(lm_b *b, const char *hf, const char *gguf, double *out, uint32_t n) {
    const lm_value *v = lm_cfg_raw(b, hf, gguf);
    if (!v) return false;
    if (v->kind == LM_V_ARRAY && (v->elem == LM_V_FLOAT || v->elem == LM_V_INT)) {
        if (!check_count(b, hf, gguf, v, n)) return false;
        for (uint32_t k = 0; k < n; k++)
            out[k] = v->elem == LM_V_INT ? (double)((const int64_t *)v->arr.data)[k] : ((const double *)v->arr.data)[k];
    } else if (v->kind == LM_V_INT || v->kind == LM_V_FLOAT) {
        for (uint32_t k = 0; k < n; k++) out[k] = v->kind == LM_V_INT ? (double)v->i : v->f;
    } else {
        return (void)wrong_type(b, hf, gguf, "a number or a list of numbers"), false;
    }
    for (uint32_t k = 0; k < n; k++)
        if (!isfinite(out[k])) return (void)wrong_type(b, hf, gguf, "a list of finite numbers"), false;
    return true;
}

bool lm_cfg_bools(lm_b *b, const char *hf, const char *gguf, bool *out, uint32_t n) {
    const lm_value *v = lm_cfg_raw(b, hf, gguf);
    if (!v) return false;
    if (b->log && gguf) lm_log_value(b, gguf, *v, true);
    if (v->kind != LM_V_ARRAY || v->elem != LM_V_BOOL) return (void)wrong_type(b, hf, gguf, "a list of booleans"), false;
    if (!check_count(b, hf, gguf, v, n)) return false;
    for (uint32_t k = 0; k < n; k++) out[k] = ((const uint8_t *)v->arr.data)[k] != 0;
    return true;
}

bool lm_cfg_str_at(lm_b *b, const char *hf, const char *gguf, uint32_t i, const char **out) {
    const lm_value *v = lm_cfg_raw(b, hf, gguf);
    if (!v) return false;
    if (v->kind != LM_V_ARRAY || v->elem != LM_V_STRING || i >= v->arr.n) {
        wrong_type(b, hf, gguf, "a list with a string for each layer");
        return false;
    }
    *out = ((const lm_str *)v->arr.data)[i].s;
    return true;
}

void lm_cfg_expect_bool(lm_b *b, const char *hf, const char *gguf, bool want) {
    if (lm_cfg_bool(b, hf, gguf, want) == want) return;
    char name[200];
    shown_name(b, hf, gguf, name, sizeof name);
    lm_graph_fail(&b->g, LM_UNSUPPORTED, name, "is %s; lemma's %s knows only %s", want ? "false" : "true", b->arch->name,
                  want ? "true" : "false");
}

void lm_cfg_expect_str(lm_b *b, const char *hf, const char *gguf, const char *want) {
    const char *s = lm_cfg_str(b, hf, gguf, want);
    if (!s || !strcmp(s, want)) return;
    char name[200];
    shown_name(b, hf, gguf, name, sizeof name);
    lm_graph_fail(&b->g, LM_UNSUPPORTED, name, "is '%.60s'; lemma's %s knows only '%s'", s, b->arch->name, want);
}

lm_act lm_cfg_act(lm_b *b, const char *hf, lm_act def) {
    static const struct {
        const char *name;
        lm_act act;
    } known[] = {
        {"silu", LM_ACT_SILU},
        {"swish", LM_ACT_SILU},
        {"gelu", LM_ACT_GELU},
        {"gelu_new", LM_ACT_GELU_TANH},
        {"gelu_pytorch_tanh", LM_ACT_GELU_TANH},
        {"relu", LM_ACT_RELU},
        {"relu2", LM_ACT_RELU2},
        {"sigmoid", LM_ACT_SIGMOID},
        {"tanh", LM_ACT_TANH},
    };
    const char *s = b->gguf ? NULL : lm_cfg_str(b, hf, NULL, NULL);
    if (!s) return def;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(s, known[i].name)) return known[i].act;
    char name[200];
    shown_name(b, hf, NULL, name, sizeof name);
    lm_graph_fail(&b->g, LM_UNSUPPORTED, name, "activation '%.60s' is not known to lemma", s);
    return def;
}
