/* G2, the tower gate: long prompts where even two backends of one library part. The bounds come with the trace. */
#include "base/smallfloat.h"
#include "verify/verify.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static lm_status claim_top1(const lm_forward *f, lm_error *err) {
    lm_judge *j = f->j;
    const lm_trace_case *c = f->c;
    const lm_gate2 *g = &c->gate;
    double share = (double)(c->n - f->flips) / c->n, least = 1;
    uint32_t worst = 0;
    for (uint32_t q = 0; q * f->quarter < c->n; q++) {
        uint32_t n = c->n - q * f->quarter < f->quarter ? c->n - q * f->quarter : f->quarter;
        double s = (double)(n - f->top_wrong[q]) / n;
        if (s < least) {
            least = s;
            worst = q;
        }
    }
    const char *first =
        f->flips ? lm_say(j->l, "first at position %u: we choose %d, the trace %u", f->flip_position, (int32_t)f->flip_ours, f->flip_ref)
                 : NULL;
    bool ok = share >= g->top1_min && !f->not_finite;
    lm_claim claim = {.verdict = ok ? LM_PROVEN : LM_REFUTED,
                      .section = "G2",
                      .bound = lm_say(j->l, ">= %g", g->top1_min),
                      .measured = lm_say(j->l, "%.4f (%u of %u)", share, c->n - f->flips, c->n),
                      .note = first,
                      .measure = LM_MEASURE_AGREEMENT,
                      .value = share,
                      .limit = g->top1_min};
    LM_TRY(lm_judge_add(j, c, "top-1 over all positions", claim, err));
    ok = least >= g->top1_quarter_min && !f->not_finite;
    claim.verdict = ok ? LM_PROVEN : LM_REFUTED;
    claim.bound = lm_say(j->l, ">= %g", g->top1_quarter_min);
    claim.measured = lm_say(j->l, "%.4f (from position %u)", least, worst * f->quarter);
    claim.note = NULL;
    claim.value = least;
    claim.limit = g->top1_quarter_min;
    return lm_judge_add(j, c, "top-1 in the worst quarter", claim, err);
}

static lm_status claim_case(const lm_forward *f, lm_error *err) {
    lm_judge *j = f->j;
    const lm_trace_case *c = f->c;
    const lm_worst *w = &f->logprob;
    LM_TRY(claim_top1(f, err));
    bool ok = w->value <= c->gate.max_dlogprob;
    lm_claim diff = {.verdict = ok ? LM_PROVEN : LM_REFUTED,
                     .section = "G2",
                     .bound = lm_say(j->l, "<= %g", c->gate.max_dlogprob),
                     .measured = lm_say(j->l, "%.4g at position %u, id %u", w->value, w->position, w->at),
                     .measure = LM_MEASURE_DIFFERENCE,
                     .value = w->value,
                     .limit = c->gate.max_dlogprob};
    if (!ok) LM_TRY(lm_judge_nearer(j, c, LM_DISPUTED_LOGPROB, w, c->gate.max_dlogprob, &diff, err));
    return lm_judge_add(j, c, "max |dlogprob|, top ids", diff, err);
}

static lm_status claim_cosine(const lm_forward *f, lm_error *err) {
    lm_judge *j = f->j;
    const lm_trace_case *c = f->c;
    char buf[32];
    if (!f->cosine.any) return LM_OK;
    /* reported, not gated; but a value that is not finite fails outright */
    lm_claim claim = {.verdict = isnan(f->cosine.value) ? LM_REFUTED : LM_PROVEN,
                      .section = "G2",
                      .name = lm_say(j->l, "c%u hidden cosine (reported)", c->k),
                      .bound = "finite",
                      .measured = lm_say(j->l, "%s at %s, position %u", lm_say_cosine(j->l, f->cosine.value),
                                         lm_trace_hidden_name(j->t, f->cosine.at, buf), f->cosine.position),
                      .witness = j->trace_path,
                      .sha256 = j->t->sha256,
                      .measure = LM_MEASURE_COSINE,
                      .value = f->cosine.value,
                      .limit = NAN};
    return lm_ledger_add(j->l, &claim, err);
}

static lm_status one_pass(lm_judge *j, const lm_trace_case *c, bool again, lm_forward *f, uint32_t wrong[4], lm_session **s,
                          lm_error *err) {
    char stage[48];
    snprintf(stage, sizeof stage, "case %u: %s", c->k, again ? "second run" : "forward");
    *f = (lm_forward){.j = j, .c = c, .stage = stage, .again = again, .top_wrong = wrong, .quarter = (c->n + 3) / 4};
    LM_TRY(lm_session_create(j->e, j->o->run.chunk, s, err));
    return lm_forward_run(f, *s, err);
}

static void digest(lm_forward *f, char hex[65]) {
    uint8_t d[32];
    lm_sha256_final(&f->hash, d);
    lm_sha256_hex(d, hex);
}

lm_status lm_judge_g2(lm_judge *j, const lm_trace_case *c, lm_error *err) {
    lm_forward f, again;
    uint32_t wrong[2][4] = {{0}};
    lm_session *s = NULL, *s2 = NULL;
    char a[65], b[65];
    lm_status st = one_pass(j, c, false, &f, wrong[0], &s, err);
    if (st == LM_OK && c->gate.present) st = claim_case(&f, err);
    if (st == LM_OK) st = claim_cosine(&f, err);
    if (st == LM_OK && j->hf_bf16) st = lm_judge_met(&f, err);
    /* an exact gate (a float32 reference) holds for the continuation too */
    if (st == LM_OK && c->n_greedy && c->gate.present && c->gate.top1_min >= 1) st = lm_judge_greedy(j, c, "G2", s, err);
    lm_session_free(s);
    if (st == LM_OK) st = one_pass(j, c, true, &again, wrong[1], &s2, err);
    lm_session_free(s2);
    LM_TRY(st);
    digest(&f, a);
    digest(&again, b);
    bool same = !strcmp(a, b);
    lm_claim claim = {.verdict = same ? LM_PROVEN : LM_REFUTED,
                      .section = "G2",
                      .name = lm_say(j->l, "c%u second run", c->k),
                      .bound = "the same bits",
                      .measured = same ? "equal logits" : "different logits",
                      .sha256 = lm_say(j->l, "%s", a),
                      .note = same ? NULL : lm_say(j->l, "the second run gives sha256 %s", b)};
    return lm_ledger_add(j->l, &claim, err);
}

/* The scale that the program applies to the embedding: 1 when it has none. */
static double embed_scale(const lm_program *p) {
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->op[i].out == p->embed && p->op[i].kind == LM_OP_SCALE && p->op[i].v == LM_NONE) return p->op[i].scale.c;
    return 1;
}

/* The soft-cap of the final logits: 0 when there is none. */
static double final_softcap(const lm_program *p) {
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->op[i].out == p->logits && p->op[i].kind == LM_OP_SOFTCAP) return p->op[i].softcap.c;
    return 0;
}

/* A cap that hardly bends the logits of a case, or a gate as wide as bfloat16's, would let another one pass. */
static lm_status claim_softcap(lm_judge *j, lm_error *err) {
    double want = j->t->final_softcap, c = final_softcap(j->e->program);
    if (isnan(want)) return LM_OK;
    lm_claim claim = {.verdict = c == want ? LM_PROVEN : LM_REFUTED,
                      .gate = true,
                      .section = "G2",
                      .name = "soft-cap of the final logits",
                      .bound = lm_say(j->l, "= %g", want),
                      .measured = c > 0 ? lm_say(j->l, "%g (from the config)", c) : "none (the config has none)",
                      .witness = j->trace_path,
                      .sha256 = j->t->sha256};
    return lm_ledger_add(j->l, &claim, err);
}

lm_status lm_judge_tower_claims(lm_judge *j, lm_error *err) {
    bool tower = false;
    for (uint32_t i = 0; i < j->t->n_cases; i++) tower |= j->t->c[i].gate.present;
    if (!isnan(j->t->embed_scale_bf16)) {
        double c = embed_scale(j->e->program), rounded = lm_bf16_to_f32(lm_f32_to_bf16((float)c));
        bool ok = rounded == j->t->embed_scale_bf16;
        lm_claim claim = {.verdict = ok ? LM_PROVEN : LM_REFUTED,
                          .gate = true,
                          .section = "G2",
                          .name = "embedding scale, as bfloat16",
                          .bound = lm_say(j->l, "= %g", j->t->embed_scale_bf16),
                          .measured = lm_say(j->l, "%g (%.9g from the config)", rounded, c),
                          .witness = j->trace_path,
                          .sha256 = j->t->sha256};
        LM_TRY(lm_ledger_add(j->l, &claim, err));
    }
    LM_TRY(claim_softcap(j, err));
    if (!tower) return LM_OK;
    uint32_t files;
    uint64_t bytes, total = 0;
    lm_engine_touched(j->e, &files, &bytes);
    for (uint32_t i = 0; i < j->e->src->n_tensors; i++) total += j->e->src->tensor[i].bytes;
    bool ok = files == j->e->src->n_files && bytes <= total;
    lm_claim claim = {
        .verdict = ok ? LM_PROVEN : LM_REFUTED,
        .section = "G2",
        .name = "files and bytes touched",
        .bound = "one load; what the forward reads",
        .measured = lm_say(j->l, "%u file%s, %" PRIu64 " of %" PRIu64 " bytes of tensors", files, files == 1 ? "" : "s", bytes, total),
        .witness = j->model};
    return lm_ledger_add(j->l, &claim, err);
}
