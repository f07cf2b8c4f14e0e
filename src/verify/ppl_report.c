/* A perplexity as text and as JSON. */
#include "verify/ppl.h"
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>

typedef struct numbers {
    lm_mean nll, kl, top1;
    double ppl, ppl_se, windows_se; /* windows_se: of nll, each window taken as one observation */
    double median, p99;
} numbers;

static bool take(const lm_ppl *p, numbers *n) {
    const double share[] = {0.5, 0.99};
    double q[2], squares = 0;
    uint32_t with = 0;
    n->nll = lm_mean_of(p->sum, p->squares, p->scored);
    n->ppl = exp(n->nll.value);
    n->ppl_se = n->ppl * n->nll.se;
    for (uint32_t i = 0; i < p->n_windows; i++) {
        const double d = p->w[i].nll - (double)p->w[i].scored * n->nll.value;
        squares += d * d;
        with += p->w[i].scored > 0;
    }
    n->windows_se = with > 1 ? sqrt(squares * (double)with / (double)(with - 1)) / (double)p->scored : NAN;
    n->kl = lm_quality_kl(&p->q);
    n->top1 = lm_quality_top1(&p->q);
    if (lm_quality_quantiles(&p->q, share, 2, q, NULL) != LM_OK) return false;
    n->median = q[0];
    n->p99 = q[1];
    return true;
}

/* What was scored, in words. */
static void definition(FILE *f, const lm_ppl *p) {
    const bool own = p->t && !p->o->text && !p->o->n_ids;
    fprintf(f, "%" PRIu64 " tokens", p->n_tokens);
    if (own) {
        fprintf(f, ", the reference's %u case%s", p->n_windows, p->n_windows == 1 ? "" : "s");
    } else {
        fprintf(f, " in %u window%s of %u", p->n_windows, p->n_windows == 1 ? "" : "s", p->ctx);
        if (p->stride < p->ctx)
            fprintf(f, ", one every %u, the last %u of each scored", p->stride, p->stride);
        else
            fprintf(f, " side by side, the second half of each scored (%u tokens)", p->ctx - 1 - p->ctx / 2);
        if (p->bos) fprintf(f, ", each begins with BOS");
    }
    if (p->left_out) fprintf(f, "; the last %" PRIu64 " tokens are left out", p->left_out);
}

static void kl_lines(FILE *f, const lm_ppl *p, const numbers *n) {
    const lm_quality *q = &p->q;
    fprintf(f, "reference   %s, sha256:%.12s\n", p->ref_of, p->ref_sha256);
    fprintf(f, "KL          mean %.4g +- %.2g, median %.3g, p99 %.3g, largest %.3g at window %u, position %u\n", n->kl.value, n->kl.se,
            n->median, n->p99, q->max_kl, q->max_at[0], q->max_at[1]);
    if (!p->whole)
        fprintf(f, "            a lower bound: what the reference doesn't list, %.3g of its mass on the average, is one bucket\n",
                q->n ? q->rest / (double)q->n : NAN);
    fprintf(f, "top-1       %.4f +- %.2g equal (%" PRIu64 " of %" PRIu64 ")\n", n->top1.value, n->top1.se, q->same, q->n);
    fprintf(f, "|dlogprob|  largest %.4g at window %u, position %u, id %u (the reference's best %d)\n", q->dlogprob, q->dlogprob_at[0],
            q->dlogprob_at[1], q->dlogprob_id, LM_QUALITY_TOP);
}

char *lm_ppl_text(const lm_ppl *p) {
    char *text = NULL;
    size_t size = 0;
    numbers n;
    FILE *f = take(p, &n) ? open_memstream(&text, &size) : NULL;
    if (!f) return NULL;
    fprintf(f, "model       %s\nscored      ", p->about);
    definition(f, p);
    fprintf(f, "\nlogits      sha256:%s\n", p->logits_sha256);
    if (p->t) kl_lines(f, p, &n);
    if (p->scored) {
        fprintf(f, "nll         %.6f +- %.2g nats a token", n.nll.value, n.nll.se);
        if (!isnan(n.windows_se)) fprintf(f, " (by windows +- %.2g)", n.windows_se);
        fprintf(f, "\nperplexity  %.4f +- %.4f over %" PRIu64 " tokens\n", n.ppl, n.ppl_se, p->scored);
    } else {
        fprintf(f, "perplexity  none: no token follows a scored position\n");
    }
    if (fclose(f) != 0) {
        lm_free(text);
        return NULL;
    }
    return text;
}

static json_t *number(double v) { return isfinite(v) ? json_real(v) : json_null(); }

static json_t *kl_json(const lm_ppl *p, const numbers *n) {
    const lm_quality *q = &p->q;
    return json_pack("{s:s, s:s, s:b, s:I, s:o, s:o, s:o, s:o, s:o, s:i, s:i, s:o, s:o, s:o, s:o, s:i, s:i, s:i}", "reference", p->ref_of,
                     "sha256", p->ref_sha256, "lower_bound", !p->whole, "positions", (json_int_t)q->n, "mean", number(n->kl.value), "se",
                     number(n->kl.se), "median", number(n->median), "p99", number(n->p99), "max", number(q->max_kl), "max_window",
                     (int)q->max_at[0], "max_position", (int)q->max_at[1], "rest", number(q->n ? q->rest / (double)q->n : NAN), "top1",
                     number(n->top1.value), "top1_se", number(n->top1.se), "max_dlogprob", number(q->dlogprob), "max_dlogprob_window",
                     (int)q->dlogprob_at[0], "max_dlogprob_position", (int)q->dlogprob_at[1], "max_dlogprob_id", (int)q->dlogprob_id);
}

char *lm_ppl_json(const lm_ppl *p) {
    numbers n;
    char *text = NULL;
    size_t size = 0;
    if (!take(p, &n)) return NULL;
    FILE *f = open_memstream(&text, &size);
    if (!f) return NULL;
    definition(f, p);
    json_t *windows = fclose(f) == 0 ? json_array() : NULL;
    for (uint32_t i = 0; i < p->n_windows && windows; i++)
        json_array_append_new(windows, json_pack("{s:i, s:i, s:o}", "window", (int)p->w[i].k, "scored", (int)p->w[i].scored, "nll",
                                                 number(p->w[i].scored ? p->w[i].nll / (double)p->w[i].scored : NAN)));
    json_t *root = json_pack("{s:s, s:s, s:I, s:I, s:i, s:i, s:b, s:o, s:o, s:o, s:o, s:o, s:s, s:o, s:o}", "model", p->about, "definition",
                             text ? text : "", "tokens", (json_int_t)p->n_tokens, "scored", (json_int_t)p->scored, "ctx", (int)p->ctx,
                             "stride", (int)p->stride, "bos", p->bos, "perplexity", number(n.ppl), "perplexity_se", number(n.ppl_se), "nll",
                             number(n.nll.value), "nll_se", number(n.nll.se), "nll_se_windows", number(n.windows_se), "logits_sha256",
                             p->logits_sha256, "kl", p->t ? kl_json(p, &n) : json_null(), "windows", windows);
    lm_free(text);
    text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    return text;
}
