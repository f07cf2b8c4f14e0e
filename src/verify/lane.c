/* G3: a lane that rounds what goes into its products, against the arbiter over the same file; and against what such rounding costs.
 *
 * The trace gives the ids: each case's prompt and continuation. Three runs go side by side, piece by piece, as many rows as PIECE_BYTES
 * hold: the lane; the arbiter with the lane's rounding imitated, by noise on the inputs of its products, and of attention where it is in
 * bfloat16, of the size that the lane rounds to (envelope.c); and the arbiter, each row of which is compared with both as it comes. The
 * imitation shares no code with the lane: a lane that is farther from the arbiter than TIMES the imitation does something else than round.
 * Both means have their standard errors allowed for: where a choice of experts flips, a few positions make most of a mean.
 */
#include "verify/diff.h"
#include "verify/quality.h"
#include <math.h>
#include <string.h>

enum { PIECE_BYTES = 32 << 20, MOST_ROWS = 256, SEED = 1 };
static const double TIMES = 4; /* in mean KL divergence: twice the error */

bool lm_lane_rounds(const char *lane) {
    return lane && (!strcmp(lane, "i8") || !strcmp(lane, "i16") || !strcmp(lane, "mixed") || !strcmp(lane, "bf16"));
}

typedef struct beside {
    lm_judge *j;
    lm_engine *exact;
    const lm_trace_case *c;
    int32_t *id; /* [length] */
    uint32_t length, vocab, room;
    lm_quality q, imitated;
    float *own, *noisy;            /* [room][vocab] each: rows of the piece */
    double *x, *e, *ref, *scratch; /* [vocab] each */
    double *saved;                 /* an operand before it was disturbed: [room][the widest] */
    lm_noise noise;
    uint32_t from, next;           /* the piece's first position, the one that must come */
    uint64_t done, total;
    lm_status st; /* of what went wrong in a callback */
    lm_error *err;
} beside;

static bool in_turn(beside *b, uint32_t position) {
    if (position != b->next++) b->st = lm_fail(b->err, LM_INTERNAL, "c%u: a row that wasn't asked for", b->c->k);
    return b->st == LM_OK;
}

static bool on_lane(void *ctx, const lm_rows *rows) {
    beside *b = ctx;
    for (uint32_t i = 0; i < rows->n; i++) {
        if (!in_turn(b, rows->row[i])) return false;
        const float *row = (const float *)rows->data + (size_t)i * rows->width;
        memcpy(b->own + (size_t)(rows->row[i] - b->from) * b->vocab, row, b->vocab * sizeof *row);
        if (rows->row[i] >= b->c->n) continue;
        lm_sha256_update(&b->j->logits, row, b->vocab * sizeof *row);
        b->j->any_logits = true;
    }
    return true;
}

/* A batch's rows count from the piece's start, a session's are positions. */
static bool on_noisy(void *ctx, const lm_rows *rows) {
    beside *b = ctx;
    for (uint32_t i = 0; i < rows->n; i++) {
        if (!in_turn(b, b->from + rows->row[i])) return false;
        for (uint32_t v = 0; v < b->vocab; v++) b->noisy[(size_t)rows->row[i] * b->vocab + v] = (float)lm_rows_at(rows, i, v);
    }
    return true;
}

static lm_status compare(beside *b, const float *own, uint32_t position, lm_quality *to) {
    lm_apart a;
    for (uint32_t v = 0; v < b->vocab; v++) b->x[v] = (double)own[v];
    const double lse = lm_shares(b->x, b->vocab, b->e);
    if (!lm_apart_whole(b->ref, b->x, lse, b->vocab, b->scratch, &a)) /* fails its gate outright */
        a = (lm_apart){.kl = INFINITY, .dlogprob = INFINITY, .dlogprob_id = LM_NO_ID, .top = {0, 1}};
    return lm_quality_add(to, &a, b->c->k, position, b->err);
}
static bool on_exact(void *ctx, const lm_rows *rows) {
    beside *b = ctx;
    for (uint32_t i = 0; i < rows->n && b->st == LM_OK; i++) {
        const size_t at = (size_t)(rows->row[i] - b->from) * b->vocab;
        if (!in_turn(b, rows->row[i])) return false;
        lm_rows_f64(rows, i, b->ref);
        b->st = compare(b, b->own + at, rows->row[i], &b->q);
        if (b->st == LM_OK) b->st = compare(b, b->noisy + at, rows->row[i], &b->imitated);
    }
    b->done += rows->n;
    if (b->st == LM_OK && !lm_judge_progress(b->j, "beside the arbiter", b->done, b->total))
        b->st = lm_fail(b->err, LM_INTERRUPTED, "interrupted in c%u", b->c->k);
    return b->st == LM_OK;
}

/* Lane bf16 rounds weights that are stored in another type. */
static bool rounds_weight(const beside *b, const lm_program *p, const lm_op *op) {
    return b->noise.prec == LM_PREC_BF16 && strcmp(p->weight[op->w].type->name, "BF16") != 0;
}
/* Attention in bfloat16 rounds what it multiplies: q, k, v and the softmax's weights. The last is imitated by a second noise on the values,
 * which moves a sum as much as one on the weights that multiply them. */
static bool rounds_attention(const beside *b, const lm_op *op) {
    const lm_cache_type *t = b->j->e->backend->cache(b->j->e->device);
    return op->kind == LM_OP_ATTENTION && t->tiled && t->kv == LM_KV_BF16X2;
}
static void disturb_attention(beside *b, const lm_program *p, uint32_t at, const lm_edit *e) {
    const lm_val in[3] = {e->op->a, e->op->b, e->op->c};
    const lm_noise once = {LM_PREC_BF16, SEED, 0}, more = {LM_PREC_BF16, SEED, 1}; /* whatever the lane's products round to */
    double *keep = b->saved;
    for (uint32_t k = 0; k < 3; k++) { /* where b and c are none, the keys and values are another op's */
        if (in[k] == LM_NONE) continue;
        const uint32_t width = p->value[in[k]].width;
        for (uint32_t i = 0; i < e->n; i++, keep += width) {
            double *x = e->in[k] + (size_t)i * width;
            memcpy(e->before ? keep : x, e->before ? x : keep, width * sizeof *x);
            if (!e->before) continue;
            lm_noise_operand(&once, p, at, k, b->from + e->row[i], x);
            if (k == 2) lm_noise_operand(&more, p, at, k, b->from + e->row[i], x);
        }
    }
}
/* The lane's rounding, put on the inputs of products with weights: once, and once more for that of the weights; experts' inner inputs by
 * way of their result, embeddings' rows too. */
static bool on_edit(void *ctx, const lm_program *p, const lm_edit *e) {
    beside *b = ctx;
    const uint32_t at = (uint32_t)(e->op - p->op);
    const bool embed = e->op->kind == LM_OP_EMBED;
    if (rounds_attention(b, e->op)) {
        disturb_attention(b, p, at, e);
        return true;
    }
    if (!embed && e->op->kind != LM_OP_LINEAR && e->op->kind != LM_OP_EXPERTS) return true;
    const bool weights = rounds_weight(b, p, e->op);
    const lm_noise more = {b->noise.prec, SEED, 1};
    if (embed) {
        for (uint32_t i = 0; !e->before && weights && i < e->n; i++)
            lm_noise_result(&b->noise, p, at, b->from + e->row[i], e->out + (size_t)i * p->value[e->op->out].width);
        return true;
    }
    const uint32_t width = p->value[e->op->a].width, out = p->value[e->op->out].width;
    if (e->before) memcpy(b->saved, e->in[0], (size_t)e->n * width * sizeof *b->saved);
    for (uint32_t i = 0; i < e->n; i++) {
        const uint32_t position = b->from + e->row[i];
        if (e->before) {
            lm_noise_operand(&b->noise, p, at, 0, position, e->in[0] + (size_t)i * width);
            if (weights) lm_noise_operand(&more, p, at, 0, position, e->in[0] + (size_t)i * width);
        } else if (e->op->kind == LM_OP_EXPERTS)
            lm_noise_result(&b->noise, p, at, position, e->out + (size_t)i * out);
    }
    if (!e->before) memcpy(e->in[0], b->saved, (size_t)e->n * width * sizeof *b->saved);
    return true;
}

/* ---- running ----------------------------------------------------------------------------------------------------------------------*/
static lm_status all_came(const beside *b, uint32_t n, lm_status st, lm_error *err) {
    if (b->st != LM_OK) return b->st;
    if (st == LM_OK && b->next != b->from + n) return lm_fail(err, LM_INTERNAL, "c%u: %u rows came of %u", b->c->k, b->next - b->from, n);
    return st;
}
static lm_status piece(beside *b, lm_session *s, uint32_t n, lm_logits_fn fn, lm_error *err) {
    const lm_eval ev = {.id = b->id + b->from, .n = n, .length = b->length, .want = LM_WANT_ALL, .logits = fn, .logits_ctx = b};
    b->next = b->from;
    return all_came(b, n, lm_session_eval(s, &ev, err), err);
}
static lm_status noisy_piece(beside *b, lm_state *state, uint32_t n, lm_error *err) {
    uint8_t want[MOST_ROWS];
    memset(want, 1, sizeof want);
    const lm_seq seq = {.state = state, .row0 = 0, .n = n, .pos0 = b->from, .length = b->length};
    const lm_batch batch = {.n_rows = n, .n_seqs = 1, .id = b->id + b->from, .want = want, .seq = &seq};
    const lm_run run = {.edit = on_edit, .edit_ctx = b, .logits = on_noisy, .logits_ctx = b, .interrupted = b->j->eo.interrupted,
                        .interrupted_ctx = b->j->eo.interrupted_ctx};
    b->next = b->from;
    return all_came(b, n, b->exact->backend->run(b->exact->device, &batch, &run, err), err);
}
static lm_status run_case(beside *b, const lm_trace_case *c, lm_error *err) {
    lm_session *lane = NULL, *exact = NULL;
    lm_state *noisy = NULL;
    b->c = c;
    b->length = c->n + c->n_greedy;
    b->id = lm_malloc(b->length * sizeof *b->id);
    if (!b->id) return lm_fail_nomem(err, "a case's ids", b->length * sizeof *b->id);
    memcpy(b->id, c->ids, c->n * sizeof *b->id);
    if (c->n_greedy) memcpy(b->id + c->n, c->greedy, c->n_greedy * sizeof *b->id);
    lm_status st = lm_session_create(b->j->e, b->j->o->run.chunk, &lane, err);
    if (st == LM_OK) st = lm_session_create(b->exact, 0, &exact, err);
    if (st == LM_OK) st = lm_state_create(b->exact->program, b->exact->backend->cache(b->exact->device), &noisy, err);
    for (b->from = 0; st == LM_OK && b->from < b->length; b->from += b->room) {
        const uint32_t n = b->length - b->from < b->room ? b->length - b->from : b->room;
        st = piece(b, lane, n, on_lane, err);
        if (st == LM_OK) st = noisy_piece(b, noisy, n, err);
        if (st == LM_OK) st = piece(b, exact, n, on_exact, err);
    }
    lm_state_free(noisy);
    lm_session_free(exact);
    lm_session_free(lane);
    lm_free(b->id);
    return st;
}

/* ---- the claims -------------------------------------------------------------------------------------------------------------------*/
static lm_status add(const beside *b, bool good, const char *name, const char *bound, const char *measured, const char *note,
                     lm_error *err) {
    const lm_claim c = {.verdict = good ? LM_PROVEN : LM_REFUTED, .gate = true, .section = "G3", .name = name, .bound = bound,
                        .measured = measured, .witness = b->j->trace_path, .sha256 = b->j->t->sha256, .note = note};
    return lm_ledger_add(b->j->l, &c, err);
}
static lm_status claims(const beside *b, lm_error *err) {
    static const double share = 0.99;
    lm_ledger *l = b->j->l;
    const lm_quality *q = &b->q;
    const lm_mean kl = lm_quality_kl(q), top = lm_quality_top1(q), own = lm_quality_kl(&b->imitated),
                  own_top = lm_quality_top1(&b->imitated);
    double p99, own_p99;
    LM_TRY(lm_quality_quantiles(q, &share, 1, &p99, err));
    LM_TRY(lm_quality_quantiles(&b->imitated, &share, 1, &own_p99, err));
    const double se = own.n > 1 ? own.se : 0;
    const bool explained = kl.value - (kl.n > 1 ? 2 * kl.se : 0) <= TIMES * (own.value + se);
    LM_TRY(add(b, explained, "mean KL to the arbiter",
               lm_say(l, "<= %g x (%.3g + %.2g), the arbiter's own with the lane's rounding imitated, two standard errors aside", TIMES,
                      own.value, se),
               lm_say(l, "%.3g +- %.2g over %llu positions", kl.value, kl.n > 1 ? kl.se : 0.0, (unsigned long long)kl.n),
               lm_say(l, "the largest: %.3g in c%u, position %u", q->max_kl, q->max_at[0], q->max_at[1]), err));
    LM_TRY(add(b, isfinite(p99), "p99 KL (reported)", "finite", lm_say(l, "%.3g (imitated: %.3g)", p99, own_p99), NULL, err));
    LM_TRY(add(b, isfinite(q->max_kl), "top-1 (reported)", "finite",
               lm_say(l, "%.4f, %llu of %llu (imitated: %.4f)", top.value, (unsigned long long)q->same, (unsigned long long)q->n,
                      own_top.value),
               NULL, err));
    return add(b, isfinite(q->dlogprob), "max |dlogprob|, top 64 (reported)", "finite",
               lm_say(l, "%.3g in c%u, position %u, id %u (imitated: %.3g)", q->dlogprob, q->dlogprob_at[0], q->dlogprob_at[1],
                      q->dlogprob_id, b->imitated.dlogprob),
               NULL, err);
}

static lm_status alloc(beside *b, lm_error *err) {
    const lm_program *p = b->j->e->program;
    const uint64_t row = (uint64_t)b->vocab * sizeof *b->own, fits = PIECE_BYTES / row;
    uint64_t widest = 1, saved;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lm_op *op = &p->op[i];
        uint64_t n = 0;
        if (op->kind == LM_OP_LINEAR || op->kind == LM_OP_EXPERTS) n = p->value[op->a].width;
        if (rounds_attention(b, op)) {
            n = p->value[op->a].width;
            if (op->b != LM_NONE) n += (uint64_t)p->value[op->b].width + p->value[op->c].width;
        }
        widest = n > widest ? n : widest;
    }
    b->room = fits < 1 ? 1 : fits < MOST_ROWS ? (uint32_t)fits : MOST_ROWS;
    if (!lm_mul(b->room, widest, &saved)) return lm_fail_nomem(err, "rows", UINT64_MAX);
    b->own = lm_calloc(b->room, row);
    b->noisy = lm_calloc(b->room, row);
    b->x = lm_calloc(4 * (uint64_t)b->vocab, sizeof *b->x);
    b->saved = lm_calloc(saved, sizeof *b->saved);
    if (!b->own || !b->noisy || !b->x || !b->saved) return lm_fail_nomem(err, "rows of logits", 2 * b->room * row);
    b->e = b->x + b->vocab, b->ref = b->e + b->vocab, b->scratch = b->ref + b->vocab;
    return LM_OK;
}

lm_status lm_judge_g3(lm_judge *j, lm_error *err) {
    beside b = {.j = j, .vocab = j->e->program->vocab, .err = err, .noise = {.seed = SEED}};
    const lm_engine_options eo = {.backend = "f64", .device = {.threads = j->eo.device.threads}, .interrupted = j->eo.interrupted,
                                  .interrupted_ctx = j->eo.interrupted_ctx};
    if (!lm_prec_of_lane(j->eo.device.lane, &b.noise.prec))
        return lm_fail(err, LM_INTERNAL, "no noise is known for lane %.40s", j->eo.device.lane);
    for (uint32_t i = 0; i < j->t->n_cases; i++) b.total += (uint64_t)j->t->c[i].n + j->t->c[i].n_greedy;
    lm_status st = alloc(&b, err);
    if (st == LM_OK) st = lm_engine_share(j->e, &eo, &b.exact, err);
    for (uint32_t i = 0; st == LM_OK && i < j->t->n_cases; i++) st = run_case(&b, &j->t->c[i], err);
    if (st == LM_OK) st = claims(&b, err);
    lm_engine_close(b.exact);
    lm_quality_free(&b.q);
    lm_quality_free(&b.imitated);
    lm_free(b.saved);
    lm_free(b.x);
    lm_free(b.noisy);
    lm_free(b.own);
    return st;
}
