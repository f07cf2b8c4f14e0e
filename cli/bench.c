/* lemma bench: speed, as a share of this machine's limits. */
#include "lemma/bench.h"
#include "cli.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LIST 16

static const char about[] =
    "MODEL [options]\n\nTimes prefills and decodes, and measures what this machine could do at most: its read bandwidth and its peak rates "
    "of\n"
    "multiply-adds, before, after and around each repeat. Prefill is a share of the peak of its lane's instructions (products with weights "
    "alone\n"
    "count), of the whole model and of its layers without the head; decode one of the bandwidth (bytes of weights,\n"
    "as stored). Token ids are synthetic. Lists are comma-separated.";

typedef struct list {
    uint32_t v[MAX_LIST], n;
} list;
typedef struct result {
    lm_bench_row row;
    char lane[16], device[80];
    uint32_t threads;
} result;
typedef struct limits {
    lm_machine m;
    bool after;
    char lane[16], device[80];
    double load_s;
} limits;

typedef struct bench {
    uint32_t neighbours;
    bool json, csv, cached, lost; /* lost: out of memory, a result could not be kept */
    const char *path;
    char arch[32];
    uint64_t weight_bytes;
    result *result;
    limits *limits;
    size_t n_results, n_limits;
} bench;

/* ---- options ----------------------------------------------------------------------------------------------------------------------*/
static int parse_list(const char *option, const char *s, uint32_t min, uint32_t max, list *out) {
    out->n = 0;
    for (;;) {
        const size_t len = strcspn(s, ",");
        char num[12] = "", *end = num;
        if (len && len < sizeof num && strspn(s, "0123456789") == len) memcpy(num, s, len);
        const unsigned long v = strtoul(num, &end, 10);
        if (end == num || v < min || v > max)
            return lm_cli_usage("bench", "%s: '%.*s' is no whole number from %u to %u; write several as 1,2,3", option,
                                (int)(len > 40 ? 40 : len), s, min, max);
        if (out->n == MAX_LIST) return lm_cli_usage("bench", "%s: more than %d values", option, MAX_LIST);
        out->v[out->n++] = (uint32_t)v;
        if (!s[len]) return LM_CLI_GO;
        s += len + 1;
    }
}

/* Cuts `text` (changed) at its commas. */
static int parse_names(const char *option, char *text, const char *name[MAX_LIST], uint32_t *n) {
    for (char *s = text; s;) {
        char *comma = strchr(s, ',');
        if (comma) *comma = 0;
        if (!*s) return lm_cli_usage("bench", "%s: an empty name; write several as f32,i8", option);
        if (*n == MAX_LIST) return lm_cli_usage("bench", "%s: more than %d values", option, MAX_LIST);
        name[(*n)++] = s;
        s = comma ? comma + 1 : NULL;
    }
    return LM_CLI_GO;
}

/* ---- a table, as it comes -----------------------------------------------------------------------------------------------------------*/
static void print_limits(const lm_bench_config *c, uint32_t neighbours, const lm_machine *m, bool after) {
    if (!after) {
        printf("lane %s, %u thread%s: %s; loaded in %.2f s\n", c->lane, c->threads, c->threads == 1 ? "" : "s", c->device, c->load_s);
        if (neighbours)
            printf("  beside %u busy neighbour%s, which the limits are measured without\n", neighbours, neighbours == 1 ? "" : "s");
    }
    printf("  limits %s: read %.1f GB/s (%s, %" PRIu64 " MiB), int8 %.0f GOPS (%s), ", after ? "after" : "before", m->read_gbs, m->read_how,
           m->buffer_bytes >> 20, m->int8_gops, m->int8_how);
    if (m->bf16_gflops > 0) printf("bf16 %.0f GFLOPS (%s), ", m->bf16_gflops, m->bf16_how);
    printf("f32 %.0f GFLOPS (%s)\n", m->f32_gflops, m->f32_how);
    if (!after)
        printf("  %-34s %10s  %-21s %8s %8s %8s  %s\n", "", "tok/s", "(min-max)", "of peak", "of read", "layers", "limits around it");
    else
        putchar('\n');
}

static void print_row(const lm_bench_config *c, const lm_bench_row *r) {
    char what[64], range[48], read[16] = "cached", layers[16] = "";
    if (r->test == LM_BENCH_PREFILL) {
        snprintf(what, sizeof what, "prefill %u", r->tokens);
        snprintf(layers, sizeof layers, "%.1f %%", 100 * r->layers.median);
    } else
        snprintf(what, sizeof what, "decode %u at %u, batch %u", r->tokens, r->depth, r->batch);
    snprintf(range, sizeof range, "(%.1f-%.1f)", r->rate.min, r->rate.max);
    if (!c->cached) snprintf(read, sizeof read, "%.1f %%", 100 * r->read.median);
    printf("  %-34s %10.1f  %-21s %6.1f %% %8s %8s  %.0f GOPS, %.1f GB/s\n", what, r->rate.median, range, 100 * r->compute.median, read, layers,
           r->peak_gops, r->read_gbs);
}

static void on_machine(void *ctx, const lm_bench_config *c, const lm_machine *m, bool after) {
    bench *b = ctx;
    lm_cli_progress_end();
    if (!b->n_limits++) {
        snprintf(b->arch, sizeof b->arch, "%s", c->arch);
        b->weight_bytes = c->weight_bytes;
        b->cached = c->cached;
        if (!b->json && !b->csv)
            printf("%s: %s, %.1f MB of weights; lemma %s, commit %s\n\n", b->path, c->arch, (double)c->weight_bytes / 1e6, lm_version(),
                   lm_commit());
    }
    if (!b->json && !b->csv) {
        print_limits(c, b->neighbours, m, after);
        fflush(stdout);
        return;
    }
    limits *l = realloc(b->limits, b->n_limits * sizeof *l);
    if (!l) {
        b->lost = true;
        b->n_limits--;
        return;
    }
    b->limits = l;
    l += b->n_limits - 1;
    *l = (limits){.m = *m, .after = after, .load_s = c->load_s};
    snprintf(l->lane, sizeof l->lane, "%s", c->lane);
    snprintf(l->device, sizeof l->device, "%s", c->device);
}

static void on_row(void *ctx, const lm_bench_config *c, const lm_bench_row *r) {
    bench *b = ctx;
    lm_cli_progress_end();
    if (!b->json && !b->csv) {
        print_row(c, r);
        fflush(stdout);
        return;
    }
    result *x = realloc(b->result, (b->n_results + 1) * sizeof *x);
    if (!x) {
        b->lost = true;
        return;
    }
    b->result = x;
    x += b->n_results++;
    *x = (result){.row = *r, .threads = c->threads};
    snprintf(x->lane, sizeof x->lane, "%s", c->lane);
    snprintf(x->device, sizeof x->device, "%s", c->device);
}

/* ---- JSON and CSV, at the end -------------------------------------------------------------------------------------------------------*/
static void put_text(const char *key, const char *value) {
    printf("\"%s\": ", key);
    lm_cli_json_text(stdout, value, strlen(value));
    fputs(", ", stdout);
}
static void put_spread(const char *key, lm_spread s) {
    printf("\"%s\": {\"median\": %.6g, \"min\": %.6g, \"max\": %.6g}, ", key, s.median, s.min, s.max);
}

static void put_limits(const limits *l) {
    const lm_machine *m = &l->m;
    printf("{");
    put_text("when", l->after ? "after" : "before");
    put_text("lane", l->lane);
    put_text("device", l->device);
    put_text("read_how", m->read_how);
    put_text("int8_how", m->int8_how);
    put_text("bf16_how", m->bf16_how);
    put_text("f32_how", m->f32_how);
    printf("\"threads\": %u, \"load_s\": %.6g, \"buffer_bytes\": %" PRIu64 ", \"cache_bytes\": %" PRIu64
           ", \"read_gbs\": %.6g, \"int8_gops\": %.6g, \"bf16_gflops\": %.6g, \"f32_gflops\": %.6g}",
           m->threads, l->load_s, m->buffer_bytes, m->cache_bytes, m->read_gbs, m->int8_gops, m->bf16_gflops, m->f32_gflops);
}

static void put_result(const result *x, uint32_t neighbours) {
    const lm_bench_row *r = &x->row;
    printf("{");
    put_text("test", lm_bench_test_name(r->test));
    put_text("lane", x->lane);
    put_text("device", x->device);
    put_spread("tokens_per_second", r->rate);
    put_spread("share_of_peak", r->compute);
    if (r->test == LM_BENCH_PREFILL) {
        put_spread("share_of_peak_layers", r->layers);
        printf("\"layers_ops\": %.17g, ", r->layers_ops);
    }
    put_spread("share_of_read", r->read);
    put_spread("share_of_read_with_cache", r->read_all);
    printf("\"threads\": %u, \"neighbours\": %u, \"tokens\": %u, \"depth\": %u, \"batch\": %u, \"repeats\": %u, \"ops\": %.17g, "
           "\"weight_bytes\": %.17g, \"cache_bytes\": %.17g, \"peak_gops\": %.6g, \"read_gbs\": %.6g}",
           x->threads, neighbours, r->tokens, r->depth, r->batch, r->repeats, r->ops, r->weight_bytes, r->cache_bytes, r->peak_gops,
           r->read_gbs);
}

static void print_json(const bench *b) {
    printf("{");
    put_text("model", b->path);
    put_text("arch", b->arch);
    put_text("version", lm_version());
    put_text("commit", lm_commit());
    put_text("cpu_level", lm_cpu_level());
    printf("\"weight_bytes\": %" PRIu64 ", \"cached\": %s, \"limits\": [", b->weight_bytes, b->cached ? "true" : "false");
    for (size_t i = 0; i < b->n_limits; i++) {
        if (i) fputs(", ", stdout);
        put_limits(&b->limits[i]);
    }
    printf("], \"results\": [");
    for (size_t i = 0; i < b->n_results; i++) {
        if (i) fputs(", ", stdout);
        put_result(&b->result[i], b->neighbours);
    }
    printf("]}\n");
}

static void print_csv(const bench *b) {
    puts("test,lane,device,threads,neighbours,tokens,depth,batch,repeats,tok_s,tok_s_min,tok_s_max,share_of_peak,share_of_peak_min,share_of_peak_max,"
         "share_of_read,"
         "share_of_read_min,share_of_read_max,share_of_read_with_cache,ops,weight_bytes,cache_bytes,peak_gops,read_gbs,"
         "share_of_peak_layers,share_of_peak_layers_min,share_of_peak_layers_max,layers_ops");
    for (size_t i = 0; i < b->n_results; i++) {
        const result *x = &b->result[i];
        const lm_bench_row *r = &x->row;
        printf("%s,%s,%s,%u,%u,%u,%u,%u,%u,", lm_bench_test_name(r->test), x->lane, x->device, x->threads, b->neighbours, r->tokens, r->depth,
               r->batch, r->repeats);
        printf("%.6g,%.6g,%.6g,", r->rate.median, r->rate.min, r->rate.max);
        printf("%.6g,%.6g,%.6g,", r->compute.median, r->compute.min, r->compute.max);
        printf("%.6g,%.6g,%.6g,%.6g,", r->read.median, r->read.min, r->read.max, r->read_all.median);
        printf("%.17g,%.17g,%.17g,%.6g,%.6g,", r->ops, r->weight_bytes, r->cache_bytes, r->peak_gops, r->read_gbs);
        if (r->test == LM_BENCH_PREFILL)
            printf("%.6g,%.6g,%.6g,%.17g\n", r->layers.median, r->layers.min, r->layers.max, r->layers_ops);
        else
            puts(",,,");
    }
}

/* ---- the verb -----------------------------------------------------------------------------------------------------------------------*/
typedef struct words {
    const char *prompt, *depth, *batch, *threads, *lanes;
} words;

static int execute(bench *b, lm_bench_options *o, const words *w) {
    list prompt, depth, batch, threads = {.n = 0};
    const char *lane[MAX_LIST];
    int rc = LM_CLI_GO;
    char *names = NULL;
    if (rc == LM_CLI_GO) rc = parse_list("--prompt", w->prompt, 0, 1u << 24, &prompt);
    if (rc == LM_CLI_GO) rc = parse_list("--depth", w->depth, 0, 1u << 24, &depth);
    if (rc == LM_CLI_GO) rc = parse_list("--batch", w->batch, 1, 4096, &batch);
    if (rc == LM_CLI_GO && w->threads) rc = parse_list("--threads", w->threads, 1, 1024, &threads);
    if (rc == LM_CLI_GO && w->lanes) {
        if (!(names = strdup(w->lanes))) return lm_cli_error("bench", &(lm_error){.code = LM_NOMEM, .offset = LM_NO_OFFSET});
        rc = parse_names("--lanes", names, lane, &o->n_lanes);
    }
    if (rc == LM_CLI_GO && prompt.n == 1 && !prompt.v[0]) prompt.n = 0; /* -p 0: no prefill */
    if (rc == LM_CLI_GO) {
        lm_error err = {0};
        o->lane = lane;
        o->threads = threads.v, o->n_threads = threads.n;
        o->prompt = prompt.v, o->n_prompts = prompt.n;
        o->depth = depth.v, o->n_depths = depth.n;
        o->batch = batch.v, o->n_batches = batch.n;
        lm_cli_catch_interrupts();
        const lm_status s = lm_bench(b->path, o, &err);
        lm_cli_progress_end();
        rc = s != LM_OK ? lm_cli_error("bench", &err)
             : b->lost  ? lm_cli_error("bench", &(lm_error){.code = LM_NOMEM, .offset = LM_NO_OFFSET})
                        : 0;
    }
    free(names);
    return rc;
}

int lm_cli_bench(int argc, char **argv) {
    bench b = {0};
    lm_bench_options o = {.predict = 128,
                          .repeats = 5,
                          .machine = on_machine,
                          .row = on_row,
                          .ctx = &b,
                          .progress = lm_cli_progress,
                          .interrupted = lm_cli_interrupted};
    words w = {.prompt = "512", .depth = "0", .batch = "1"};
    const lm_cli_opt opts[] = {
        {"--prompt", 'p', LM_CLI_STR, &w.prompt, "LIST", "prefills of so many tokens (default 512; 0: none)"},
        {"--predict", 'n', LM_CLI_U32, &o.predict, "N", "steps of a decode (default 128; 0: none)", 0, 1u << 24},
        {"--depth", 0, LM_CLI_STR, &w.depth, "LIST", "decodes that begin with so many tokens in the cache (default 0)"},
        {"--batch", 0, LM_CLI_STR, &w.batch, "LIST", "sequences decoded side by side (default 1)"},
        {"--lanes", 0, LM_CLI_STR, &w.lanes, "LIST", "arithmetic: f32, i8, i16, mixed, bf16 (default: i8, f32 if no weight is quantized)"},
        {"--threads", 't', LM_CLI_STR, &w.threads, "LIST", "thread counts (default: one per physical core)"},
        {"--neighbours", 0, LM_CLI_U32, &o.neighbours, "N", "busy loops beside each repeat, on CPUs from the last one down (default 0)", 0,
         64},
        {"--repeats", 'r', LM_CLI_U32, &o.repeats, "N", "timed repeats, after a warm-up (default 5)", 1, 1000},
        {"--chunk", 0, LM_CLI_U32, &o.chunk, "N", "prompt positions computed at a time", 1, 65536},
        LM_CLI_KV_OPT(&o.kv),
        {"--cpu-level", 0, LM_CLI_STR, &o.cpu_level, "LEVEL",
         "c, avx2, avx512 or neon (default: the best this CPU has); limits are always the CPU's own"},
        LM_CLI_JSON_OPT(&b.json),
        {"--csv", 0, LM_CLI_FLAG, &b.csv, NULL, "one line per result on stdout, after a line of names"},
        {0},
    };
    lm_cli_args args;
    int rc = lm_cli_parse("bench", about, opts, 1, 1, argc, argv, &args);
    if (rc == LM_CLI_GO && b.json && b.csv) rc = lm_cli_usage("bench", "--json and --csv both want stdout");
    if (rc != LM_CLI_GO) return rc;
    b.path = args.s[0];
    b.neighbours = o.neighbours;
    rc = execute(&b, &o, &w);
    if (rc == 0 && b.json) print_json(&b);
    if (rc == 0 && b.csv) print_csv(&b);
    free(b.result);
    free(b.limits);
    return rc;
}
