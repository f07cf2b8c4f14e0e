#include "arch/common/export.h"
#include <stdio.h>
#include <string.h>

/* Sources: the behaviour of transformers' rope utilities (config keys, defaults, formulas) and GGUF's rope.* keys. */

double lm_yarn_mscale(double factor, double mscale) { return factor <= 1.0 ? 1.0 : 0.1 * mscale * log(factor) + 1.0; }

static const double *read_list(lm_b *b, const char *key, uint32_t *n) {
    const lm_value *v = lm_cfg_raw(b, key, NULL);
    if (!v || v->kind != LM_V_ARRAY) return NULL;
    double *out = lm_arena_calloc(b->g.p->arena, v->arr.n ? v->arr.n : 1, sizeof *out);
    if (!out || v->arr.n > 4096) return (void)lm_graph_fail(&b->g, LM_FORMAT, key, "is too long a list of rope factors"), NULL;
    if (!lm_cfg_f64s(b, key, NULL, out, (uint32_t)v->arr.n)) return NULL;
    for (uint64_t i = 0; i < v->arr.n; i++)
        if (!(out[i] > 0)) return (void)lm_graph_fail(&b->g, LM_RANGE, key, "holds a rope factor that is not positive"), NULL;
    if (*n && *n != v->arr.n) return (void)lm_graph_fail(&b->g, LM_FORMAT, key, "short and long factors differ in number"), NULL;
    *n = (uint32_t)v->arr.n;
    return out;
}

static const double *factors_tensor(lm_b *b, const char *name, uint32_t *n) {
    const lm_tensor *t = lm_source_tensor(b->src, name);
    if (!t) return NULL;
    b->tensor_used[t - b->src->tensor] = 1;
    if (t->rank != 1 || t->dim[0] > 4096)
        return (void)lm_graph_fail(&b->g, LM_FORMAT, name, "should be a short vector of rope factors"), NULL;
    double *v = lm_arena_calloc(b->g.p->arena, t->dim[0], sizeof *v);
    if (!v) return (void)lm_graph_fail(&b->g, LM_NOMEM, name, "out of memory"), NULL;
    lm_tensor_row_f64(t, 0, v);
    for (uint64_t i = 0; i < t->dim[0]; i++)
        if (!(v[i] > 0)) return (void)lm_graph_fail(&b->g, LM_RANGE, name, "holds a rope factor that is not positive"), NULL;
    *n = (uint32_t)t->dim[0];
    return v;
}

#define TYPE_NAME lm_cfg_name(b, "rope_scaling", "rope.scaling.type")
#define LENGTH_NAME lm_cfg_name(b, "original_max_position_embeddings", "rope.scaling.original_context_length")
static lm_rope_spec read_gguf(lm_b *b, lm_rope_spec s) {
    s.theta = lm_cfg_f64(b, NULL, "rope.freq_base", s.theta);
    const char *type = lm_cfg_str(b, NULL, "rope.scaling.type", "linear"); /* "none" lets no factor count */
    s.factor = lm_cfg_f64(b, NULL, "rope.scaling.factor|rope.scale_linear", 1.0);
    s.original = lm_cfg_u32(b, NULL, "rope.scaling.original_context_length", 0, 0, UINT32_MAX);
    lm_cfg_ignore(b, NULL, "rope.scaling.finetuned");
    s.dims = lm_cfg_u32(b, NULL, "rope.dimension_count", 0, 1, 65536);
    uint32_t n = 0;
    if (!strcmp(type, "none") || !strcmp(type, "linear")) {
        if (!strcmp(type, "none")) s.factor = 1.0;
        s.type = s.factor != 1.0 ? "linear" : "default";
    } else if (!strcmp(type, "yarn")) {
        s.type = "yarn";
        s.beta_fast = lm_cfg_f64(b, NULL, "rope.scaling.yarn_beta_fast", 32.0);
        s.beta_slow = lm_cfg_f64(b, NULL, "rope.scaling.yarn_beta_slow", 1.0);
        double own = lm_cfg_f64(b, "rope_attention_factor", NULL, -1.0); /* GGUF has keys for neither */
        if (own >= 0.0) s.attention_factor = own;
        s.truncate = lm_cfg_bool(b, "rope_truncate", NULL, true);
    } else if (!strcmp(type, "longrope")) {
        s.type = "longrope";
    } else {
        lm_graph_fail(&b->g, LM_UNSUPPORTED, TYPE_NAME, "rope scaling '%.40s' is not known to lemma", type);
    }
    const double *freqs = factors_tensor(b, "rope_freqs.weight", &n);
    if (freqs) {
        if (strcmp(s.type, "default") && strcmp(s.type, "linear"))
            lm_graph_fail(&b->g, LM_UNSUPPORTED, "rope_freqs.weight", "stands beside rope scaling '%s'", s.type);
        s.short_factor = freqs; /* plain divisors of the frequencies: llama3's scaling, or gemma4's unrotated tail */
        s.n_factors = n;
        return s;
    }
    uint32_t ns = 0, nl = 0;
    s.short_factor = factors_tensor(b, "rope_factors_short.weight", &ns);
    s.long_factor = factors_tensor(b, "rope_factors_long.weight", &nl);
    if (ns != nl) lm_graph_fail(&b->g, LM_FORMAT, "rope_factors_long.weight", "short and long factors differ in number");
    s.n_factors = ns;
    if (ns && !strcmp(s.type, "yarn"))
        lm_graph_fail(&b->g, LM_UNSUPPORTED, "rope_factors_short.weight", "stands beside rope scaling 'yarn'");
    if (ns) s.type = "longrope"; /* converters leave the type out */
    return s;
}

/* llama.cpp multiplies any rotation by this, yarn's own magnitude too. Converters write it for longrope. */
static void read_magnitude(lm_b *b, lm_rope_spec *s) {
    const char *key = "rope.scaling.attn_factor", *name = lm_cfg_name(b, NULL, key);
    double m = lm_cfg_f64(b, NULL, key, 1.0);
    if (!(m > 0.0)) lm_graph_fail(&b->g, LM_RANGE, name, "is %g; it must be positive", m);
    if (!strcmp(s->type, "longrope")) {
        if (lm_cfg_has(b, NULL, key)) s->attention_factor = m;
    } else if (m != 1.0) {
        lm_graph_fail(&b->g, LM_UNSUPPORTED, name, "is %g, which lemma knows with longrope alone", m);
    }
}

/* Does the config hold an object of that name? (JSON null is none.) */
static bool has_group(const lm_b *b, const char *name) {
    const lm_meta *m = &b->src->meta;
    char own[120], top[80];
    snprintf(own, sizeof own, "%s%s.", b->prefix, name);
    snprintf(top, sizeof top, "%s.", name);
    for (uint64_t i = 0; i < m->n; i++)
        if (!strncmp(m->entry[i].key, own, strlen(own)) || !strncmp(m->entry[i].key, top, strlen(top))) return true;
    return false;
}

lm_rope_spec lm_rope_read(lm_b *b, const char *layer_type, double theta, double partial) {
    lm_rope_spec s = {.type = "default",
                      .theta = theta,
                      .partial = partial,
                      .factor = 1.0,
                      .low = NAN,
                      .high = NAN,
                      .beta_fast = NAN,
                      .beta_slow = NAN,
                      .mscale = NAN,
                      .mscale_all = NAN,
                      .attention_factor = NAN,
                      .truncate = true};
    if (b->gguf) {
        s = read_gguf(b, s);
        read_magnitude(b, &s);
        return s;
    }
    char base[120], spell[260];
    snprintf(base, sizeof base, "rope_parameters%s%s", layer_type ? "." : "", layer_type ? layer_type : "");
    /* The older rope_scaling wins as a whole: what stands in rope_parameters beside it is left unread, and so refused. A nested
     * rope_parameters has no counterpart there. */
    if (!layer_type && has_group(b, "rope_scaling")) snprintf(base, sizeof base, "rope_scaling");
#define KEY(k) (snprintf(spell, sizeof spell, "%s." k, base), spell)
#define KEY_OR_TOP(k) (snprintf(spell, sizeof spell, "%s." k "%s", base, layer_type ? "" : "|" k), spell)
#define TYPE_KEY (snprintf(spell, sizeof spell, "%s.rope_type|%s.type", base, base), spell)
    s.type = lm_cfg_str(b, TYPE_KEY, NULL, "default");
    bool typed = lm_cfg_has(b, TYPE_KEY, NULL);
    s.theta = lm_cfg_f64(b, KEY_OR_TOP("rope_theta"), NULL, theta);
    s.partial = lm_cfg_f64(b, KEY_OR_TOP("partial_rotary_factor"), NULL, partial);
    if (s.partial != 1.0 && !b->arch->partial_rope)
        lm_graph_fail(&b->g, LM_UNSUPPORTED, "partial_rotary_factor", "is %g, but %s in transformers turns whole heads", s.partial,
                      b->arch->name);
    s.factor = lm_cfg_f64(b, KEY("factor"), NULL, 1.0);
    s.low = lm_cfg_f64(b, KEY("low_freq_factor"), NULL, 1.0);
    s.high = lm_cfg_f64(b, KEY("high_freq_factor"), NULL, 4.0);
    s.beta_fast = lm_cfg_f64(b, KEY("beta_fast"), NULL, 32.0);
    s.beta_slow = lm_cfg_f64(b, KEY("beta_slow"), NULL, 1.0);
    if (s.beta_fast == 0.0) s.beta_fast = 32.0; /* transformers takes 0 for not given */
    if (s.beta_slow == 0.0) s.beta_slow = 1.0;
    s.mscale = lm_cfg_f64(b, KEY("mscale"), NULL, 0.0);
    s.mscale_all = lm_cfg_f64(b, KEY("mscale_all_dim"), NULL, 0.0);
    double attn = lm_cfg_f64(b, KEY("attention_factor"), NULL, -1.0);
    if (attn >= 0.0) s.attention_factor = attn;
    s.truncate = lm_cfg_bool(b, KEY("truncate"), NULL, true);
    uint32_t own = lm_cfg_u32(b, KEY("original_max_position_embeddings"), NULL, 0, 0, UINT32_MAX),
             top = lm_cfg_u32(b, "original_max_position_embeddings", NULL, 0, 0, UINT32_MAX);
    s.original = top && !layer_type ? top : own; /* beside the scaling it wins over the one within */
    if (!layer_type) {
        s.short_factor = read_list(b, KEY("short_factor"), &s.n_factors);
        s.long_factor = read_list(b, KEY("long_factor"), &s.n_factors);
    }
    bool factor = lm_cfg_has(b, KEY("factor"), NULL), factors = factor || s.short_factor || s.long_factor,
         needed = !strcmp(s.type, "linear") || !strcmp(s.type, "llama3") || !strcmp(s.type, "yarn");
    if (needed && !factor) lm_graph_fail(&b->g, LM_FORMAT, "rope_scaling", "'%s' needs a factor", s.type);
    if (!strcmp(s.type, "llama3") && !(lm_cfg_has(b, KEY("low_freq_factor"), NULL) && lm_cfg_has(b, KEY("high_freq_factor"), NULL)))
        lm_graph_fail(&b->g, LM_FORMAT, "rope_scaling", "'llama3' needs low_freq_factor and high_freq_factor");
    if (factors && !typed) lm_graph_fail(&b->g, LM_FORMAT, "rope_scaling", "has a factor but no rope_type that says what to do with it");
#undef KEY
#undef KEY_OR_TOP
#undef TYPE_KEY
    return s;
}

/* Frequencies are float32 in the reference: rounded once from double here. */
static double as_f32(double x) { return (double)(float)x; }

static void llama3(const lm_rope_spec *s, double *inv, uint32_t n) {
    double low_wave = s->original / s->low, high_wave = s->original / s->high;
    for (uint32_t i = 0; i < n; i++) {
        double wave = 2.0 * M_PI / inv[i];
        if (wave > low_wave)
            inv[i] /= s->factor;
        else if (wave >= high_wave) {
            double t = (s->original / wave - s->low) / (s->high - s->low);
            inv[i] = (1.0 - t) * inv[i] / s->factor + t * inv[i];
        }
    }
}

static double yarn_dim(double rotations, double dim, double theta, double original) {
    return dim * log(original / (rotations * 2.0 * M_PI)) / (2.0 * log(theta));
}

static void yarn(const lm_rope_spec *s, double *inv, uint32_t n) {
    double dim = 2.0 * n, low = yarn_dim(s->beta_fast, dim, s->theta, s->original),
           high = yarn_dim(s->beta_slow, dim, s->theta, s->original);
    if (s->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0.0);
    high = fmin(high, dim - 1.0);
    if (low == high) high += 0.001;
    for (uint32_t i = 0; i < n; i++) {
        double ramp = fmin(fmax((i - low) / (high - low), 0.0), 1.0);
        inv[i] = inv[i] / s->factor * ramp + inv[i] * (1.0 - ramp);
    }
}

static double yarn_attention(const lm_rope_spec *s) {
    if (!isnan(s->attention_factor)) return s->attention_factor;
    if (s->mscale != 0.0 && s->mscale_all != 0.0 && !isnan(s->mscale))
        return lm_yarn_mscale(s->factor, s->mscale) / lm_yarn_mscale(s->factor, s->mscale_all);
    return lm_yarn_mscale(s->factor, 1.0);
}

static uint32_t longrope(lm_b *b, const lm_rope_spec *s, lm_rope *r, double *inv, uint32_t n) {
    if (!s->short_factor || !s->long_factor || s->n_factors != n || !s->original)
        return lm_graph_fail(&b->g, LM_FORMAT, TYPE_NAME, "longrope needs %s and %u short and long factors, found %u", LENGTH_NAME, n,
                             s->n_factors);
    double *inv_long = lm_arena_calloc(b->g.p->arena, n, sizeof *inv_long);
    if (!inv_long) return lm_graph_fail(&b->g, LM_NOMEM, "rope", "out of memory");
    for (uint32_t i = 0; i < n; i++) {
        inv_long[i] = as_f32(inv[i] / s->long_factor[i]);
        inv[i] = as_f32(inv[i] / s->short_factor[i]);
    }
    double factor = (double)b->hp.max_position / s->original;
    r->inv_freq_long = inv_long;
    r->border = s->original;
    r->factor = !isnan(s->attention_factor) ? s->attention_factor
                : factor <= 1.0             ? 1.0
                                            : sqrt(1.0 + log(factor) / log((double)s->original));
    lm_graph_trait(&b->g, 2, "longrope, short factors");
    lm_graph_trait(&b->g, s->original + 1, "longrope, long factors past %u tokens", s->original);
    return lm_graph_rope(&b->g, r);
}

static uint32_t make_table(lm_b *b, const lm_rope_spec *s, uint32_t head_dim, uint32_t *n_rot) {
    *n_rot = 0;
    if (!lm_graph_ok(&b->g)) return LM_NONE;
    bool proportional = !strcmp(s->type, "proportional");
    if (!(s->partial > 0.0 && s->partial <= 1.0))
        return lm_graph_fail(&b->g, LM_RANGE, "partial_rotary_factor", "is %g; it must be in (0, 1]", s->partial);
    if (!(s->theta > 0.0))
        return lm_graph_fail(&b->g, LM_RANGE, lm_cfg_name(b, "rope_theta", "rope.freq_base"), "is %g; it must be positive", s->theta);
    if (!(s->factor > 0.0))
        return lm_graph_fail(&b->g, LM_RANGE, lm_cfg_name(b, "rope_scaling.factor", "rope.scaling.factor"), "is %g; it must be positive",
                             s->factor);
    uint32_t dim = s->dims ? s->dims : proportional ? head_dim : (uint32_t)(head_dim * s->partial), n = dim / 2;
    if (!n || dim % 2 || dim > head_dim)
        return lm_graph_fail(&b->g, LM_UNSUPPORTED, lm_cfg_name(b, "head_dim", "rope.dimension_count"),
                             "%u rotary dims of %u can't be paired", dim, head_dim);
    double *inv = lm_arena_calloc(b->g.p->arena, n, sizeof *inv);
    if (!inv) return lm_graph_fail(&b->g, LM_NOMEM, "rope", "out of memory");
    for (uint32_t i = 0; i < n; i++) inv[i] = 1.0 / pow(s->theta, 2.0 * i / dim);
    lm_rope r = {.n_pairs = n, .inv_freq = inv, .factor = 1.0};
    *n_rot = dim;
    bool scaled = !strcmp(s->type, "llama3") || !strcmp(s->type, "yarn");
    if (scaled && !s->original)
        return lm_graph_fail(&b->g, LM_FORMAT, TYPE_NAME, "'%s' needs %s", s->type, LENGTH_NAME);
    if (!strcmp(s->type, "longrope")) return longrope(b, s, &r, inv, n);
    if (!strcmp(s->type, "llama3")) {
        if (!(s->low > 0)) return lm_graph_fail(&b->g, LM_RANGE, "low_freq_factor", "is %g; it must be above 0", s->low);
        if (!(s->high > s->low)) return lm_graph_fail(&b->g, LM_RANGE, "high_freq_factor", "must be above low_freq_factor");
        llama3(s, inv, n);
    } else if (!strcmp(s->type, "yarn")) {
        yarn(s, inv, n);
        r.factor = yarn_attention(s);
    } else if (proportional) {
        uint32_t turned = (uint32_t)(s->partial * head_dim / 2.0);
        for (uint32_t i = 0; i < n; i++) inv[i] = i < turned ? inv[i] / s->factor : 0.0;
    } else if (!strcmp(s->type, "linear")) {
        for (uint32_t i = 0; i < n; i++) inv[i] /= s->factor;
    } else if (strcmp(s->type, "default") && strcmp(s->type, "mrope")) {
        return lm_graph_fail(&b->g, LM_UNSUPPORTED, "rope_type", "rope type '%.40s' is not known to lemma", s->type);
    }
    if (s->short_factor) { /* GGUF's rope_freqs: llama3's scaling as divisors */
        if (s->n_factors != n) return lm_graph_fail(&b->g, LM_FORMAT, "rope_freqs.weight", "has %u factors for %u pairs", s->n_factors, n);
        for (uint32_t i = 0; i < n; i++) inv[i] = s->short_factor[i] >= 1e29 ? 0.0 : inv[i] / s->short_factor[i];
        lm_graph_trait(&b->g, 2, "rope frequency factors");
    }
    for (uint32_t i = 0; i < n; i++) inv[i] = as_f32(inv[i]);
    if (strcmp(s->type, "default")) lm_graph_trait(&b->g, 2, "rope scaling %s", s->type);
    if (dim < head_dim) lm_graph_trait(&b->g, 2, "partial rotary %u of %u", dim, head_dim);
    return lm_graph_rope(&b->g, &r);
}

uint32_t lm_rope_table(lm_b *b, const lm_rope_spec *s, uint32_t head_dim, uint32_t *n_rot) {
    uint32_t table = make_table(b, s, head_dim, n_rot);
    if (b->log) lm_log_rope(b, s, head_dim, *n_rot, table);
    return table;
}

void lm_rope_layer(lm_b *b, uint32_t l, const lm_rope_spec *s) {
    b->hp.layer[l].rope = lm_rope_table(b, s, b->hp.layer[l].dk, &b->hp.layer[l].n_rot);
}

lm_rope_spec lm_rope_all(lm_b *b, double theta, double partial) {
    lm_rope_spec s = lm_rope_read(b, NULL, theta, partial);
    for (uint32_t l = 0; l < b->hp.n_layers && lm_graph_ok(&b->g); l++) lm_rope_layer(b, l, &s);
    return s;
}
