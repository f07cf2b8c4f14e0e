/* What a quantized file costs, as text and as JSON. */
#include "verify/quant.h"
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>

enum { MOST_LINES = 32 }; /* of a list in the text; the JSON has them all */

static void flips(FILE *f, const lm_quant *q) {
    for (uint32_t i = 0; i < q->n_flips && i < MOST_LINES / 4; i++)
        fprintf(f, "  flip         position %u: A %u, B %u, by A's margin of %.3g\n", q->flip[i].position, q->flip[i].a, q->flip[i].b,
                q->flip[i].margin);
    if (q->n_flips > MOST_LINES / 4) fprintf(f, "  and %u more positions (--json has all)\n", q->n_flips - MOST_LINES / 4);
}

static void parts(FILE *f, const lm_quant *q) {
    double sum = 0, bits = 0;
    uint32_t shown = 0;
    uint64_t elements = 0;
    const uint32_t changed = q->n_parts - q->n_unchanged;
    fprintf(f, "\n%9s %8s %9s %6s  %8s  %6s %9s  %s\n", "KL alone", "+-", "p99", "flips", "|dW|/|W|", "type", "MiB",
            q->by == LM_QUANT_LAYER ? "layer" : "tensor");
    for (uint32_t i = 0; i < q->n_parts; i++) {
        const lm_part_cost *c = &q->part[i];
        bits += 8.0 * (double)c->bytes;
        elements += c->elements;
        if (c->error == 0) continue;
        sum += c->kl.value;
        if (shown++ < MOST_LINES)
            fprintf(f, "%9.2e %8.1e %9.2e %6" PRIu64 "  %8.2e  %6s %9.3f  %s\n", c->kl.value, c->kl.se, c->p99, c->flips, c->error, c->type,
                    (double)c->bytes / (1 << 20), c->name);
    }
    if (shown > MOST_LINES) fprintf(f, "and %u more (--json has all)\n", shown - MOST_LINES);
    fprintf(f, "\n%u changed, %u as they were; %.3f bits a weight; their KLs add up to %.3g, all at once give %.3g\n", changed,
            q->n_unchanged, elements ? bits / (double)elements : 0, sum, lm_quality_kl(&q->q).value);
    if (q->same_lane && q->same_bits)
        fprintf(f, "A with all of them is B, bit for bit\n");
    else if (q->same_lane)
        fprintf(f, "A with all of them has KL %.6g, B %.6g: they differ in something that is no weight, too (lemma diff says where)\n",
                q->all, lm_quality_kl(&q->q).value);
}

char *lm_quant_text(const lm_quant *q) {
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f) return NULL;
    const lm_mean kl = lm_quality_kl(&q->q), top1 = lm_quality_top1(&q->q);
    for (int s = 0; s < 2; s++) fprintf(f, "%c        %s\n", q->d.side[s].letter, q->d.side[s].about);
    fprintf(f, "\n  positions    %u\n  KL(A|B)      mean %.4g +- %.2g, median %.3g, p99 %.3g, largest %.3g at position %u\n", q->n,
            kl.value, kl.se, q->p50, q->p99, q->q.max_kl, q->q.max_at[1]);
    fprintf(f, "  top-1        %.4f +- %.2g equal (%" PRIu64 " of %" PRIu64 ")\n", top1.value, top1.se, q->q.same, q->q.n);
    fprintf(f, "  |dlogprob|   largest %.4g at position %u, id %u (A's best %d)\n", q->q.dlogprob, q->q.dlogprob_at[1], q->q.dlogprob_id,
            LM_QUALITY_TOP);
    fprintf(f, "  nll          A %.4f, B %.4f nats a token: %+.4g +- %.2g\n", q->nll[0], q->nll[1], q->dnll, q->dnll_se);
    flips(f, q);
    if (q->by != LM_QUANT_WHOLE) parts(f, q);
    if (fclose(f) != 0) {
        lm_free(text);
        return NULL;
    }
    return text;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------------------------- */
static json_t *number(double v) { return isfinite(v) ? json_real(v) : json_null(); }

static json_t *part_json(const lm_part_cost *c) {
    const bool changed = c->error != 0;
    return json_pack("{s:s, s:b, s:s, s:s, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:I}", "name", c->name, "changed", changed, "type",
                     c->type ? c->type : "", "was", c->was ? c->was : "", "bytes", (json_int_t)c->bytes, "was_bytes",
                     (json_int_t)c->was_bytes, "elements", (json_int_t)c->elements, "weight_error", number(c->error), "kl",
                     number(changed ? c->kl.value : 0), "kl_se", number(changed ? c->kl.se : 0), "p99", number(c->p99), "max",
                     number(c->max_kl), "max_dlogprob", number(c->dlogprob), "flips", (json_int_t)c->flips);
}

char *lm_quant_json(const lm_quant *q) {
    const lm_mean kl = lm_quality_kl(&q->q), top1 = lm_quality_top1(&q->q);
    json_t *list = json_array(), *flip = json_array();
    for (uint32_t i = 0; i < q->n_parts; i++) json_array_append_new(list, part_json(&q->part[i]));
    for (uint32_t i = 0; i < q->n_flips; i++)
        json_array_append_new(flip, json_pack("{s:i, s:i, s:i, s:o, s:o}", "position", (int)q->flip[i].position, "A", (int)q->flip[i].a,
                                              "B", (int)q->flip[i].b, "margin", number(q->flip[i].margin), "kl", number(q->flip[i].kl)));
    json_t *root = json_pack(
        "{s:s, s:s, s:i, s:o, s:o, s:o, s:o, s:o, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:s, s:o, s:o, s:o}", "A",
        q->d.side[0].about, "B", q->d.side[1].about, "positions", (int)q->n, "mean", number(kl.value), "se", number(kl.se), "median",
        number(q->p50), "p99", number(q->p99), "max", number(q->q.max_kl), "max_position", (int)q->q.max_at[1], "top1", number(top1.value),
        "top1_se", number(top1.se), "max_dlogprob", number(q->q.dlogprob), "nll_a", number(q->nll[0]), "nll_b", number(q->nll[1]),
        "nll_difference", number(q->dnll), "nll_difference_se", number(q->dnll_se), "flips", flip, "by",
        q->by == LM_QUANT_WHOLE   ? "whole"
        : q->by == LM_QUANT_LAYER ? "layer"
                                  : "tensor",
        "parts", list, "all_equal_b", q->by != LM_QUANT_WHOLE && q->same_lane ? json_boolean(q->same_bits) : json_null(), "all_mean",
        number(q->all));
    char *s = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    return s;
}
