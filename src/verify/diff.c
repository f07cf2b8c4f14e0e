/* lemma diff: sides, cases, and what is made of the measurements. */
#include "verify/diff.h"
#include "tokenizer/tokenizer.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { DEFAULT_SAMPLES = 3, MOST_SAMPLES = 16 };

const char *lm_diff_say(lm_diff *d, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    const char *s = lm_arena_vprintf(d->arena, fmt, ap);
    va_end(ap);
    return s ? s : "";
}

/* ---- findings ---------------------------------------------------------------------------------------------------------------------------
 */
static lm_status find(lm_diff *d, uint32_t k, int side, const char *op, const char *text, lm_error *err) {
    if (d->n_findings == d->cap_findings) {
        const uint32_t cap = d->cap_findings ? 2 * d->cap_findings : 16;
        lm_diff_finding *more = lm_realloc(d->finding, cap * sizeof *more);
        if (!more) return lm_fail_nomem(err, "findings", cap * sizeof *more);
        d->finding = more;
        d->cap_findings = cap;
    }
    if (!*text) return lm_fail_nomem(err, "a finding", 0);
    d->finding[d->n_findings++] = (lm_diff_finding){k, side, op, text};
    return LM_OK;
}

/* The last op before `op` that the side knows: where the stretch begins that a fault lies in. NULL: the side knows every op. */
static const char *known_before(const lm_diff *d, const lm_diff_case *c, int s, uint32_t op) {
    uint32_t gap = op;
    while (gap && !c->tap[gap - 1].s[s].replayed) gap--;
    if (gap == op) return NULL;
    return gap ? d->p->op[gap - 1].name : "the token ids";
}

/* The first op whose values don't follow from the side's own inputs to it. */
static lm_status find_local(lm_diff *d, const lm_diff_case *c, int s, bool *found, lm_error *err) {
    for (uint32_t i = 0; i < d->p->n_ops; i++) {
        const lm_diff_tap *t = &c->tap[i];
        if (!t->s[s].replayed || !(t->s[s].local > 1)) continue;
        *found = true;
        const char *from = known_before(d, c, s, i), *name = d->p->op[i].name;
        const char *what =
            from ? lm_diff_say(d, "between %s and %s", from, name) : lm_diff_say(d, "%s (%s)", name, lm_op_name(d->p->op[i].kind));
        return find(
            d, c->k, s, name,
            lm_diff_say(d,
                        "case %u: %c does not follow from its own inputs at %s: position %u is off by %.3g, rounding in %s explains %.3g",
                        c->k, d->side[s].letter, what, t->s[s].local_at, t->s[s].err, lm_prec_name(d->side[s].prec), t->s[s].allowed),
            err);
    }
    return LM_OK;
}

/* The first value outside the envelope that no replay reaches (a trace's best few log-probabilities). Where the replay does reach, it has
 * the word: if every step follows from the side's own inputs, what lies outside the band is rounding that the model amplified. */
static lm_status find_drift(lm_diff *d, const lm_diff_case *c, int s, bool *found, lm_error *err) {
    for (uint32_t i = 0; i < d->p->n_ops; i++) {
        const lm_diff_tap *t = &c->tap[i];
        if (!t->s[s].rows || t->s[s].replayed || !(t->s[s].ratio > 1)) continue;
        *found = true;
        return find(
            d, c->k, s, d->p->op[i].name,
            lm_diff_say(
                d, "case %u: %c leaves the envelope at %s: position %u is %.3g times as far from the arbiter as rounding in %s explains",
                c->k, d->side[s].letter, d->p->op[i].name, t->s[s].at, t->s[s].ratio, lm_prec_name(d->side[s].prec)),
            err);
    }
    return LM_OK;
}

/* A token that rounding does not explain. Where both sides are wrong, each is told so. */
static lm_status find_choice(lm_diff *d, const lm_diff_case *c, int s, lm_error *err) {
    for (uint32_t i = 0; i < c->n; i++) {
        const lm_diff_row *r = &c->row[i];
        if (r->top[s] == LM_NO_ID || r->top[s] == r->top[2] || r->forked[s] || lm_diff_near_tie(r, s)) continue;
        return find(d, c->k, s, d->p->op[d->p->value[d->p->logits].first].name,
                    lm_diff_say(d, "case %u: %c chooses %u at position %u, the arbiter %u by a margin of %.3g; rounding explains %.3g",
                                c->k, d->side[s].letter, r->top[s], i, r->top[2], r->deficit[s], r->reach[s]),
                    err);
    }
    return LM_OK;
}

static lm_status judge(lm_diff *d, lm_diff_case *c, lm_error *err) {
    for (int s = 0; s < 2; s++) {
        bool found = false;
        if (!d->side[s].spec) continue;
        LM_TRY(find_local(d, c, s, &found, err));
        if (!found) LM_TRY(find_drift(d, c, s, &found, err));
        if (!found) LM_TRY(find_choice(d, c, s, err));
        for (uint32_t i = 0; i < d->p->n_ops; i++) {
            c->n_replayed[s] += c->tap[i].s[s].replayed > 0;
            for (int k = 1; k < 8; k++) d->identical &= !c->tap[i].ulp[k];
        }
    }
    bool compared = false;
    for (uint32_t i = 0; i < c->n; i++) {
        const lm_diff_row *r = &c->row[i];
        if (r->top[0] != LM_NO_ID && r->top[1] != LM_NO_ID) d->identical &= r->top[0] == r->top[1];
        if (r->dlogprob > 0) d->identical = false;
        compared |= !isnan(r->dlogprob) || (r->top[0] != LM_NO_ID && r->top[1] != LM_NO_ID);
    }
    for (uint32_t i = 0; i < d->p->n_ops; i++) compared |= c->tap[i].both > 0;
    if (!d->ties && !compared)
        return lm_fail(err, LM_USAGE, "case %u: the two sides have nothing in common to compare: no value, no token", c->k);
    return LM_OK;
}

/* ---- cases ------------------------------------------------------------------------------------------------------------------------------
 */
/* A longrope border may not be crossed by a continuation: the prompt's rows would then be other ones than the sides computed. */
static uint32_t up_to_border(const lm_program *p, uint32_t n, uint32_t with) {
    for (uint32_t i = 0; i < p->n_ropes; i++)
        if (p->rope[i].border && n <= p->rope[i].border && with > p->rope[i].border) with = p->rope[i].border;
    return with;
}

/* The prompt, then the continuation up to the token at which the sides part: they choose it at the last position. */
static lm_status extend(lm_diff *d, lm_diff_case *c, const int32_t *ids, int32_t **out, lm_error *err) {
    const lm_side *a = &d->side[0], *b = &d->side[1];
    const bool two = b->spec != NULL;
    c->greedy = !two || b->n_greedy > a->n_greedy ? a->n_greedy : b->n_greedy;
    if (!two) c->greedy = a->n_greedy;
    while (two && c->greedy_same < c->greedy && a->greedy[c->greedy_same] == b->greedy[c->greedy_same]) c->greedy_same++;
    if (!two) c->greedy_same = c->greedy;
    uint32_t more = c->greedy_same < c->greedy ? c->greedy_same : c->greedy ? c->greedy - 1 : 0;
    const uint32_t n = up_to_border(d->p, c->n_prompt, c->n_prompt + more);
    if (n < c->n_prompt + more)
        c->note = "the continuation crosses the border of the long rope factors: past it only its tokens are compared";
    more = n - c->n_prompt;
    if (!(*out = lm_arena_calloc(d->arena, n, sizeof **out))) return lm_fail_nomem(err, "token ids", n * sizeof **out);
    memcpy(*out, ids, c->n_prompt * sizeof **out);
    if (more) memcpy(*out + c->n_prompt, a->greedy, more * sizeof **out);
    c->n = n;
    return LM_OK;
}

static lm_status run_case(lm_diff *d, uint32_t k, const int32_t *ids, uint32_t n, uint32_t greedy, lm_error *err) {
    lm_diff_case *c = &d->c[d->n_cases];
    int32_t *all = NULL;
    *c = (lm_diff_case){.k = k, .n_prompt = n, .note = ""};
    if (!n) return lm_fail(err, LM_USAGE, "case %u has no tokens", k);
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= d->p->vocab)
            return lm_fail_at(err, LM_RANGE, NULL, LM_NO_OFFSET, "token id", "%d at position %u is outside the vocabulary of %u", ids[i], i,
                              d->p->vocab);
    for (int s = 0; s < 2; s++) {
        LM_TRY(lm_side_begin(d, &d->side[s], k, ids, n, greedy, d->arena, err));
        c->n_taps[s] = d->side[s].n_taps;
        if (d->side[s].is_trace && !d->side[s].c) return LM_OK; /* only the other trace has this case */
    }
    LM_TRY(extend(d, c, ids, &all, err));
    c->tap = lm_arena_calloc(d->arena, d->p->n_ops, sizeof *c->tap);
    c->row = lm_arena_calloc(d->arena, c->n, sizeof *c->row);
    if (!c->tap || !c->row) return lm_fail_nomem(err, "a case", d->p->n_ops * sizeof *c->tap + c->n * sizeof *c->row);
    for (uint32_t i = 0; i < c->n; i++) {
        lm_diff_row *r = &c->row[i];
        r->top[0] = r->top[1] = r->top[2] = r->runner_up = LM_NO_ID;
        r->margin[0] = r->margin[1] = r->margin[2] = r->deficit[0] = r->deficit[1] = r->reach[0] = r->reach[1] = NAN;
        r->distance[0] = r->distance[1] = r->kl = r->dlogprob = NAN;
    }
    LM_TRY(lm_replay_case(d, c, all, err));
    LM_TRY(judge(d, c, err));
    d->n_cases++;
    return LM_OK;
}

static lm_status run_cases(lm_diff *d, lm_error *err) {
    const lm_diff_options *o = d->o;
    const lm_trace *t = d->side[0].t ? d->side[0].t : d->side[1].t;
    lm_ids from_text = {0};
    if (!(d->c = lm_arena_calloc(d->arena, t ? t->n_cases : 1, sizeof *d->c))) return lm_fail_nomem(err, "cases", 0);
    for (uint32_t i = 0; t && i < t->n_cases; i++) {
        uint32_t greedy = o->greedy;
        if (greedy == LM_DIFF_AS_TRACE) greedy = t->c[i].n_greedy;
        LM_TRY(run_case(d, t->c[i].k, t->c[i].ids, t->c[i].n, greedy, err));
    }
    if (t) return d->n_cases ? LM_OK : lm_fail(err, LM_USAGE, "the two traces have no case in common");
    lm_status st = LM_OK;
    const int32_t *ids = o->ids;
    size_t n = o->n_ids;
    if (o->text) {
        lm_tokenizer *tok = NULL;
        st = lm_tokenizer_from_source(d->arbiter->src, &tok, err);
        if (st == LM_OK) st = lm_tokenizer_encode(tok, o->text, o->text_n, true, true, &from_text, err);
        lm_tokenizer_free(tok);
        ids = from_text.id;
        n = from_text.n;
    }
    if (st == LM_OK && n > INT32_MAX) st = lm_fail(err, LM_RANGE, "%zu tokens are too many", n);
    if (st == LM_OK) st = run_case(d, 0, ids, (uint32_t)n, o->greedy == LM_DIFF_AS_TRACE ? 0 : o->greedy, err);
    lm_ids_free(&from_text);
    return st;
}

/* ---- the whole
 * ---------------------------------------------------------------------------------------------------------------------------- */
static lm_status check_options(const lm_diff *d, lm_error *err) {
    const lm_diff_options *o = d->o;
    const bool trace = (d->side[0].is_trace && !d->side[0].is_server) || (d->side[1].spec && d->side[1].is_trace && !d->side[1].is_server);
    const bool run = !d->side[0].is_trace || (d->side[1].spec && !d->side[1].is_trace);
    if (o->ids && o->text) return lm_fail(err, LM_USAGE, "give token ids or a text, not both");
    if (trace && (o->ids || o->text))
        return lm_fail(err, LM_USAGE, "a trace brings its own token ids: leave --ids, --prompt and --text out");
    if (!trace && !o->n_ids && !o->text)
        return lm_fail(err, LM_USAGE, "no side is a trace: say which tokens to run, with --ids, --prompt or --text");
    if (!run && !o->model)
        return lm_fail(err, LM_USAGE, "neither side is run here: name the model that they are of with --model, for the arbiter");
    if (run && o->model)
        return lm_fail(err, LM_USAGE, "--model is for two traces or servers; here the arbiter takes the weights of the side that is run");
    if (o->samples > MOST_SAMPLES) return lm_fail(err, LM_USAGE, "%u samples are too many: at most %u", o->samples, (uint32_t)MOST_SAMPLES);
    return LM_OK;
}

static lm_status open_all(lm_diff *d, lm_engine *given, lm_error *err) {
    const lm_diff_options *o = d->o;
    lm_engine *base = NULL;
    lm_engine_options eo = {.backend = "f64",
                            .device = {.threads = o->run.threads},
                            .progress = {o->run.progress, o->run.progress_ctx},
                            .interrupted = o->run.interrupted,
                            .interrupted_ctx = o->run.interrupted_ctx};
    for (int s = 0; s < 2; s++) {
        lm_side *side = &d->side[s];
        if (!side->spec || side->is_trace) continue;
        if (given && !s) {
            side->e = given;
            side->about = side->spec;
        } else {
            LM_TRY(lm_side_open_run(d, s, err));
        }
        if (!base) base = side->e;
    }
    if (!base) {
        LM_TRY(lm_engine_open(o->model, &eo, &d->model, err));
        base = d->model;
    }
    LM_TRY(lm_engine_share(base, &eo, &d->arbiter, err));
    d->p = d->arbiter->program;
    for (int s = 0; s < 2; s++)
        if (d->side[s].e && d->side[s].e->program->vocab != d->p->vocab)
            return lm_fail(err, LM_USAGE, "the two models have vocabularies of %u and %u tokens", d->p->vocab,
                           d->side[s].e->program->vocab);
    for (int s = 0; s < 2; s++)
        if (d->side[s].spec && d->side[s].is_trace)
            LM_TRY(d->side[s].is_server ? lm_side_open_server(d, &d->side[s], err) : lm_side_open_trace(d, s, err));
    return LM_OK;
}

static lm_status run(lm_engine *given, const lm_diff_options *o, lm_diff **out, lm_error *err) {
    lm_diff *d = lm_calloc(1, sizeof *d);
    if (d) d->arena = lm_arena_create();
    if (!d || !d->arena) {
        lm_free(d);
        return lm_fail_nomem(err, "a diff", sizeof *d);
    }
    d->opt = *o;
    d->o = &d->opt;
    d->samples = o->samples ? o->samples : DEFAULT_SAMPLES;
    d->ties = o->ties;
    d->identical = !o->ties;
    lm_status st = !o->a || (!o->b && !o->ties) ? lm_fail(err, LM_USAGE, "two sides are wanted") : LM_OK;
    if (st == LM_OK && given) d->side[0] = (lm_side){.letter = 'A', .spec = o->a, .path = o->a};
    if (st == LM_OK && !given) st = lm_side_parse(d, 0, o->a, err);
    if (st == LM_OK && o->b) st = lm_side_parse(d, 1, o->b, err);
    if (st == LM_OK) st = check_options(d, err);
    if (st == LM_OK) st = open_all(d, given, err);
    if (st == LM_OK) st = run_cases(d, err);
    if (st != LM_OK) {
        lm_diff_free(d);
        return st;
    }
    *out = d;
    return LM_OK;
}

lm_status lm_diff_run(const lm_diff_options *o, lm_diff **out, lm_error *err) { return run(NULL, o, out, err); }
lm_status lm_diff_run_engine(lm_engine *e, const lm_diff_options *o, lm_diff **out, lm_error *err) { return run(e, o, out, err); }

void lm_diff_free(lm_diff *d) {
    if (!d) return;
    lm_engine_close(d->arbiter);
    for (int s = 1; s >= 0; s--) lm_side_close(&d->side[s]); /* B may share A's files */
    lm_engine_close(d->model);
    lm_free(d->finding);
    lm_arena_destroy(d->arena);
    lm_free(d);
}

int lm_diff_exit_code(const lm_diff *d) { return d->n_findings ? 1 : 0; }

bool lm_diff_first_fault(const lm_diff *d, int *side, const char **op) {
    if (!d->n_findings) return false;
    *side = d->finding[0].side;
    *op = d->finding[0].op;
    return true;
}
