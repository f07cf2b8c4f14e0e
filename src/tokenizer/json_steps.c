/* The four pipelines of a tokenizer.json: normalizer, pre_tokenizer, post_processor, decoder. A step that is not known is refused by name.
 */
#include "tokenizer/json_read.h"
#include <string.h>
#include <utf8proc.h>

#define GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

typedef lm_status (*step_fn)(lm_json_reader *r, const json_t *v, const char *type);

static lm_status unknown(lm_json_reader *r, const char *where, const char *type) {
    return lm_fail_at(r->err, LM_UNSUPPORTED, NULL, LM_NO_OFFSET, where, "the step \"%.64s\" is not supported", type);
}

/* Calls `step` for v, or for each member of a Sequence of them, to any (sane) depth. */
static lm_status each(lm_json_reader *r, const json_t *v, const char *where, const char *members, int depth, step_fn step) {
    if (!v || json_is_null(v)) return LM_OK;
    const char *type = json_string_value(json_object_get(v, "type"));
    if (!type) return lm_json_bad(r, LM_FORMAT, where, "an object with a \"type\" is needed");
    if (strcmp(type, "Sequence") != 0) return step(r, v, type);
    const json_t *list = json_object_get(v, members);
    if (!json_is_array(list)) return lm_json_bad(r, LM_FORMAT, where, "a Sequence without its list");
    if (depth > 8) return lm_json_bad(r, LM_FORMAT, where, "Sequences nested too deep");
    for (size_t i = 0; i < json_array_size(list); i++) LM_TRY(each(r, json_array_get(list, i), where, members, depth + 1, step));
    return LM_OK;
}

/* {"String": s} or {"Regex": s} */
static lm_status pattern(lm_json_reader *r, const json_t *v, const char *where, pcre2_code **re, const char **s, size_t *n) {
    const json_t *p = json_object_get(v, "pattern"), *regex = json_object_get(p, "Regex");
    if (json_is_string(regex)) {
        lm_status st = lm_pattern_compile(json_string_value(regex), json_string_length(regex), re, r->err);
        if (st != LM_OK) lm_error_set_field(r->err, where);
        return st;
    }
    return lm_json_text(r, p, where, "String", s, n);
}

/* ---- normalizer ---- */
static lm_status norm_step(lm_json_reader *r, const json_t *v, const char *type) {
    static const char where[] = "normalizer";
    static const struct {
        const char *name;
        int form;
    } forms[] = {{"NFC", UTF8PROC_COMPOSE},
                 {"NFD", UTF8PROC_DECOMPOSE},
                 {"NFKC", UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
                 {"NFKD", UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT}};
    if (r->t->n_norm == LM_TOK_MAX_STEPS) return lm_json_bad(r, LM_UNSUPPORTED, where, "too many steps");
    lm_norm_step *st = &r->t->norm[r->t->n_norm++]; /* counted at once, so that a pattern is freed whatever fails */
    *st = (lm_norm_step){.kind = LM_NORM_UNICODE};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (strcmp(type, forms[i].name) == 0) {
            st->form = forms[i].form;
            return LM_OK;
        }
    if (strcmp(type, "Lowercase") == 0) {
        st->kind = LM_NORM_LOWERCASE;
    } else if (strcmp(type, "Prepend") == 0) {
        st->kind = LM_NORM_PREPEND;
        LM_TRY(lm_json_text(r, v, where, "prepend", &st->to, &st->to_n));
    } else if (strcmp(type, "Strip") == 0) {
        st->kind = LM_NORM_STRIP;
        LM_TRY(lm_json_flag(r, v, where, "strip_left", true, &st->left));
        LM_TRY(lm_json_flag(r, v, where, "strip_right", true, &st->right));
    } else if (strcmp(type, "Replace") == 0) {
        st->kind = LM_NORM_REPLACE;
        LM_TRY(lm_json_text(r, v, where, "content", &st->to, &st->to_n));
        LM_TRY(pattern(r, v, where, &st->re, &st->from, &st->from_n));
    } else
        return unknown(r, where, type);
    return LM_OK;
}

lm_status lm_json_normalizer(lm_json_reader *r, const json_t *v) { return each(r, v, "normalizer", "normalizers", 0, norm_step); }

/* ---- pre_tokenizer ---- */
static const char pre_where[] = "pre_tokenizer";

static lm_status pre_new(lm_json_reader *r, lm_pre_step step, lm_pre_step **out) {
    if (r->t->n_pre == LM_TOK_MAX_STEPS) return lm_json_bad(r, LM_UNSUPPORTED, pre_where, "too many steps");
    *out = &r->t->pre[r->t->n_pre++];
    **out = step;
    return LM_OK;
}

static lm_status behavior(lm_json_reader *r, const json_t *v, lm_split *how) {
    static const struct {
        const char *name;
        lm_split how;
    } all[] = {{"Isolated", LM_SPLIT_ISOLATED},
               {"Removed", LM_SPLIT_REMOVED},
               {"MergedWithPrevious", LM_SPLIT_PREVIOUS},
               {"MergedWithNext", LM_SPLIT_NEXT},
               {"Contiguous", LM_SPLIT_CONTIGUOUS}};
    const char *s = json_string_value(json_object_get(v, "behavior"));
    for (size_t i = 0; s && i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i].name, s) == 0) {
            *how = all[i].how;
            return LM_OK;
        }
    return lm_json_bad(r, LM_UNSUPPORTED, "pre_tokenizer.behavior", "a behavior that is not known");
}

static lm_status pre_byte_level(lm_json_reader *r, const json_t *v) {
    bool prefix, regex;
    lm_pre_step *st = NULL;
    LM_TRY(lm_json_flag(r, v, pre_where, "add_prefix_space", true, &prefix));
    LM_TRY(lm_json_flag(r, v, pre_where, "use_regex", true, &regex));
    if (prefix) LM_TRY(pre_new(r, (lm_pre_step){.kind = LM_PRE_PREFIX}, &st));
    if (regex) {
        LM_TRY(pre_new(r, (lm_pre_step){.kind = LM_PRE_PATTERN, .split = LM_SPLIT_ISOLATED}, &st));
        LM_TRY(lm_pattern_compile(GPT2_PATTERN, sizeof GPT2_PATTERN - 1, &st->re, r->err));
    }
    return pre_new(r, (lm_pre_step){.kind = LM_PRE_BYTES}, &st);
}

static lm_status pre_metaspace(lm_json_reader *r, const json_t *v) {
    lm_pre_step *st = NULL;
    bool old;
    LM_TRY(pre_new(r, (lm_pre_step){.kind = LM_PRE_METASPACE, .prepend = LM_PREPEND_ALWAYS}, &st));
    LM_TRY(lm_json_text(r, v, pre_where, "replacement", &st->s, &st->s_n));
    if (!st->s_n) return lm_json_bad(r, LM_FORMAT, pre_where, "an empty replacement");
    LM_TRY(lm_json_flag(r, v, pre_where, "split", true, &st->cut));
    LM_TRY(lm_json_flag(r, v, pre_where, "add_prefix_space", true, &old));
    const json_t *scheme = json_object_get(v, "prepend_scheme");
    const char *s = json_string_value(scheme);
    if (!s && !old)
        st->prepend = LM_PREPEND_NEVER; /* files from before prepend_scheme */
    else if (s && strcmp(s, "never") == 0)
        st->prepend = LM_PREPEND_NEVER;
    else if (s && strcmp(s, "first") == 0)
        st->prepend = LM_PREPEND_FIRST;
    else if (s && strcmp(s, "always") != 0)
        return lm_json_bad(r, LM_UNSUPPORTED, pre_where, "a prepend_scheme that is not known");
    return LM_OK;
}

static lm_status pre_split(lm_json_reader *r, const json_t *v) {
    lm_pre_step *st = NULL;
    LM_TRY(pre_new(r, (lm_pre_step){.kind = LM_PRE_PATTERN}, &st));
    LM_TRY(behavior(r, v, &st->split));
    LM_TRY(lm_json_flag(r, v, pre_where, "invert", false, &st->invert));
    LM_TRY(pattern(r, v, pre_where, &st->re, &st->s, &st->s_n));
    if (!st->re) st->kind = LM_PRE_LITERAL;
    return LM_OK;
}

static lm_status pre_step(lm_json_reader *r, const json_t *v, const char *type) {
    lm_pre_step *st = NULL;
    if (strcmp(type, "ByteLevel") == 0) return pre_byte_level(r, v);
    if (strcmp(type, "Metaspace") == 0) return pre_metaspace(r, v);
    if (strcmp(type, "Split") == 0) return pre_split(r, v);
    if (strcmp(type, "Digits") == 0) {
        bool each_alone;
        LM_TRY(lm_json_flag(r, v, pre_where, "individual_digits", false, &each_alone));
        return pre_new(r, (lm_pre_step){.kind = LM_PRE_DIGITS, .split = each_alone ? LM_SPLIT_ISOLATED : LM_SPLIT_CONTIGUOUS}, &st);
    }
    if (strcmp(type, "Punctuation") == 0) {
        lm_split how = LM_SPLIT_ISOLATED;
        if (json_object_get(v, "behavior")) LM_TRY(behavior(r, v, &how));
        return pre_new(r, (lm_pre_step){.kind = LM_PRE_PUNCTUATION, .split = how}, &st);
    }
    if (strcmp(type, "Whitespace") == 0) return pre_new(r, (lm_pre_step){.kind = LM_PRE_WORDS}, &st);
    if (strcmp(type, "WhitespaceSplit") == 0) return pre_new(r, (lm_pre_step){.kind = LM_PRE_SPACES, .split = LM_SPLIT_REMOVED}, &st);
    return unknown(r, pre_where, type);
}

lm_status lm_json_pre_tokenizer(lm_json_reader *r, const json_t *v) { return each(r, v, pre_where, "pretokenizers", 0, pre_step); }

/* ---- post_processor ---- */
static const char post_where[] = "post_processor";

/* The ids of a template's special token, appended to ids. */
static lm_status post_token(lm_json_reader *r, const json_t *v, const char *name, lm_ids *ids) {
    const json_t *list = json_object_get(json_object_get(json_object_get(v, "special_tokens"), name), "ids");
    if (!json_is_array(list)) return lm_json_bad(r, LM_FORMAT, post_where, "a special token of the template has no ids");
    for (size_t i = 0; i < json_array_size(list); i++) {
        uint32_t id;
        LM_TRY(lm_json_id(r, json_array_get(list, i), post_where, &id));
        if (id >= r->t->n) return lm_json_bad(r, LM_RANGE, post_where, "a special token's id is outside the vocabulary");
        if (!lm_ids_put(ids, (int32_t)id)) return lm_fail_nomem(r->err, "the tokenizer", 0);
    }
    return LM_OK;
}

static lm_status post_template(lm_json_reader *r, const json_t *v) {
    const json_t *single = json_object_get(v, "single");
    lm_ids before = {0}, after = {0};
    lm_status st =
        json_is_array(single) ? LM_OK : lm_json_bad(r, LM_FORMAT, post_where, "a TemplateProcessing without its list \"single\"");
    bool seen = false;
    for (size_t i = 0; st == LM_OK && i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i);
        const char *name = json_string_value(json_object_get(json_object_get(piece, "SpecialToken"), "id"));
        const char *seq = json_string_value(json_object_get(json_object_get(piece, "Sequence"), "id"));
        if (name)
            st = post_token(r, v, name, seen ? &after : &before);
        else if (seq && strcmp(seq, "A") == 0 && !seen)
            seen = true;
        else
            st = lm_json_bad(r, LM_UNSUPPORTED, post_where, "a template that is not special tokens around one sequence A");
    }
    if (st == LM_OK && !seen) st = lm_json_bad(r, LM_UNSUPPORTED, post_where, "a template without the sequence A");
    /* a later step wraps what the earlier ones made */
    lm_ids *p = &r->t->prefix, *s = &r->t->suffix;
    for (size_t i = 0; st == LM_OK && i < p->n; i++)
        if (!lm_ids_put(&before, p->id[i])) st = lm_fail_nomem(r->err, "the tokenizer", 0);
    for (size_t i = 0; st == LM_OK && i < after.n; i++)
        if (!lm_ids_put(s, after.id[i])) st = lm_fail_nomem(r->err, "the tokenizer", 0);
    if (st == LM_OK) {
        lm_ids swap = *p;
        *p = before;
        before = swap;
    }
    lm_ids_free(&before);
    lm_ids_free(&after);
    return st;
}

static lm_status post_step(lm_json_reader *r, const json_t *v, const char *type) {
    if (strcmp(type, "ByteLevel") == 0) return LM_OK; /* it moves offsets only */
    if (strcmp(type, "TemplateProcessing") == 0) return post_template(r, v);
    return unknown(r, post_where, type);
}

lm_status lm_json_post_processor(lm_json_reader *r, const json_t *v) { return each(r, v, post_where, "processors", 0, post_step); }

/* ---- decoder ---- */
static const char dec_where[] = "decoder";

static lm_status dec_replace(lm_json_reader *r, const json_t *v) {
    lm_decode_plan *p = &r->t->plan;
    if (json_object_get(json_object_get(v, "pattern"), "Regex")) return lm_json_bad(r, LM_UNSUPPORTED, dec_where, "a Replace by Regex");
    if (p->n_replace == LM_TOK_MAX_STEPS) return lm_json_bad(r, LM_UNSUPPORTED, dec_where, "too many steps");
    uint32_t i = p->n_replace++;
    LM_TRY(lm_json_text(r, json_object_get(v, "pattern"), dec_where, "String", &p->replace[i].from, &p->replace[i].from_n));
    return lm_json_text(r, v, dec_where, "content", &p->replace[i].to, &p->replace[i].to_n);
}

static lm_status dec_strip(lm_json_reader *r, const json_t *v) {
    lm_decode_plan *p = &r->t->plan;
    const char *c = json_string_value(json_object_get(v, "content"));
    json_int_t start = json_integer_value(json_object_get(v, "start")), stop = json_integer_value(json_object_get(v, "stop"));
    if (!c || strlen(c) != 1 || (uint8_t)c[0] >= 0x80 || start < 0 || start > 1000 || stop || p->strip_n)
        return lm_json_bad(r, LM_UNSUPPORTED, dec_where, "a Strip other than of one ASCII character at the start");
    p->strip = c[0];
    p->strip_n = (uint32_t)start;
    return LM_OK;
}

static lm_status dec_metaspace(lm_json_reader *r, const json_t *v) {
    lm_decode_plan *p = &r->t->plan;
    if (p->n_replace == LM_TOK_MAX_STEPS) return lm_json_bad(r, LM_UNSUPPORTED, dec_where, "too many steps");
    uint32_t i = p->n_replace++;
    LM_TRY(lm_json_text(r, v, dec_where, "replacement", &p->replace[i].from, &p->replace[i].from_n));
    p->replace[i].to = " ";
    p->replace[i].to_n = 1;
    const char *s = json_string_value(json_object_get(v, "prepend_scheme"));
    bool old;
    LM_TRY(lm_json_flag(r, v, dec_where, "add_prefix_space", true, &old));
    if (s ? strcmp(s, "never") == 0 : !old) return LM_OK;
    p->drop = p->replace[i].from;
    p->drop_n = p->replace[i].from_n;
    return p->drop_n ? LM_OK : lm_json_bad(r, LM_FORMAT, dec_where, "an empty replacement");
}

/* The steps come in an order that the plan can keep: per-token replacements, then byte fallback, Fuse, and a Strip of the whole. */
static lm_status dec_step(lm_json_reader *r, const json_t *v, const char *type) {
    enum { REPLACE, BYTES, FUSE, STRIP };
    lm_decode_plan *p = &r->t->plan;
    int stage;
    lm_status st = LM_OK;
    if (strcmp(type, "ByteLevel") == 0) {
        if (p->stage || p->n_replace) return lm_json_bad(r, LM_UNSUPPORTED, dec_where, "a ByteLevel after other steps");
        p->bytes = true;
        stage = FUSE; /* it joins the tokens, too */
    } else if (strcmp(type, "Replace") == 0) {
        st = dec_replace(r, v);
        stage = REPLACE;
    } else if (strcmp(type, "Metaspace") == 0) {
        st = dec_metaspace(r, v);
        stage = BYTES;
    } else if (strcmp(type, "ByteFallback") == 0) {
        p->byte_fallback = true;
        stage = BYTES;
    } else if (strcmp(type, "Fuse") == 0) {
        stage = FUSE;
    } else if (strcmp(type, "Strip") == 0) {
        st = dec_strip(r, v);
        stage = STRIP;
        if (p->stage < FUSE) return lm_json_bad(r, LM_UNSUPPORTED, dec_where, "a Strip before Fuse");
    } else
        return unknown(r, dec_where, type);
    if (st == LM_OK && stage < (int)p->stage) return lm_json_bad(r, LM_UNSUPPORTED, dec_where, "steps in an order that is not known");
    p->stage = (uint32_t)stage;
    return st;
}

lm_status lm_json_decoder(lm_json_reader *r, const json_t *v) {
    r->t->plan.join = !v || json_is_null(v);
    return each(r, v, dec_where, "decoders", 0, dec_step);
}
