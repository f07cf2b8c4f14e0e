/* lemma profile: where a prefill's and a decode's time goes, by kind of op, by op and by layer. */
#include "cli.h"
#include "lemma/bench.h"
#include <string.h>

static const char about[] =
    "MODEL [options]\n\nTimes every op of one prefill and of the decode that follows it, and compares each with the least time that this "
    "machine's limits\n"
    "(read bandwidth, peak rates of multiply-adds, measured in the same run) allow for it. Token ids are synthetic.";

typedef struct profile {
    bool json, any;
    const char *path;
    uint32_t prompt, predict;
    lm_bench_test phase;
    lm_profile_group group;
} profile;

static void put_text(const char *key, const char *value) {
    printf("\"%s\": ", key);
    lm_cli_json_text(stdout, value, strlen(value));
    fputs(", ", stdout);
}

static void on_machine(void *ctx, const lm_bench_config *c, const lm_machine *m, bool after) {
    profile *f = ctx;
    lm_cli_progress_end();
    if (f->json && !after) {
        printf("{");
        put_text("model", f->path);
        put_text("arch", c->arch);
        put_text("lane", c->lane);
        put_text("device", c->device);
        put_text("version", lm_version());
        put_text("commit", lm_commit());
        printf("\"threads\": %u, \"load_s\": %.6g, \"weight_bytes\": %llu, \"cached\": %s, \"prompt\": %u, \"predict\": %u, \"rows\": [",
               c->threads, c->load_s, (unsigned long long)c->weight_bytes, c->cached ? "true" : "false", f->prompt, f->predict);
    } else if (f->json) {
        printf("], \"limits\": {\"read_gbs\": %.6g, \"int8_gops\": %.6g, \"bf16_gflops\": %.6g, \"f32_gflops\": %.6g}}\n", m->read_gbs,
               m->int8_gops, m->bf16_gflops, m->f32_gflops);
    } else {
        if (!after)
            printf("%s: %s, lane %s, %u thread%s (%s)\n", f->path, c->arch, c->lane, c->threads, c->threads == 1 ? "" : "s", c->device);
        printf("%slimits %s: read %.1f GB/s, int8 %.0f GOPS, bf16 %.0f GFLOPS, f32 %.0f GFLOPS\n", after ? "\n" : "",
               after ? "after" : "before", m->read_gbs, m->int8_gops, m->bf16_gflops, m->f32_gflops);
    }
}

static void row_json(profile *f, const lm_profile_row *r) {
    printf("%s{", f->any ? ", " : "");
    put_text("phase", lm_bench_test_name(r->phase));
    put_text("group", lm_profile_group_name(r->group));
    put_text("name", r->name);
    printf("\"calls\": %u, \"seconds\": %.9g, \"share_of_time\": %.6g, \"ops\": %.17g, \"weight_bytes\": %.17g, \"cache_bytes\": %.17g, "
           "\"bound_s\": %.9g, ",
           r->calls, r->seconds, r->share_of_time, r->ops, r->weight_bytes, r->cache_bytes, r->bound_s);
    if (r->group == LM_PROFILE_TOTAL) printf("\"plain_s\": %.9g, ", r->plain_s);
    printf("\"share_of_limit\": %.6g}", r->share_of_limit);
}

/* Times of a decode are those of one step. */
static void row_text(const profile *f, const lm_profile_row *r) {
    const bool decode = r->phase == LM_BENCH_DECODE, total = r->group == LM_PROFILE_TOTAL;
    const double per = decode ? f->predict : 1;
    char limit[16] = "-";
    const bool begins = !f->any || r->phase != f->phase;
    if (begins && decode)
        printf("\ndecode, %u steps after %u tokens: of one step\n", f->predict, f->prompt);
    else if (begins)
        printf("\nprefill of %u tokens\n", f->prompt);
    if (begins || r->group != f->group)
        printf("\n  %-28s %8s %10s %8s %10s %10s %9s\n",
               total                         ? ""
               : r->group == LM_PROFILE_KIND ? "by kind"
               : r->group == LM_PROFILE_OP   ? "by op"
                                             : "by layer",
               "calls", "ms", "of time", "Mop", "MB", "of limit");
    if (r->bound_s > 0) snprintf(limit, sizeof limit, "%.1f %%", 100 * r->share_of_limit);
    printf("  %-28s %8.0f %10.4f %6.1f %% %10.2f %10.3f %9s\n", r->name, r->calls / per, 1e3 * r->seconds / per, 100 * r->share_of_time,
           r->ops / 1e6 / per, (r->weight_bytes + r->cache_bytes) / 1e6 / per, limit);
    if (total) printf("  %-28s %8s %10.4f\n", "without taps", "", 1e3 * r->plain_s / per);
}

static void on_row(void *ctx, const lm_profile_row *r) {
    profile *f = ctx;
    lm_cli_progress_end();
    if (f->json)
        row_json(f, r);
    else
        row_text(f, r);
    f->any = true;
    f->phase = r->phase;
    f->group = r->group;
}

int lm_cli_profile(int argc, char **argv) {
    profile f = {0};
    lm_profile_options o = {.prompt = 512,
                            .predict = 32,
                            .machine = on_machine,
                            .row = on_row,
                            .ctx = &f,
                            .progress = lm_cli_progress,
                            .interrupted = lm_cli_interrupted};
    const lm_cli_opt opts[] = {
        {"--prompt", 'p', LM_CLI_U32, &o.prompt, "N", "tokens of the prefill (default 512; 0: none)", 0, 1u << 24},
        {"--predict", 'n', LM_CLI_U32, &o.predict, "N", "steps of the decode after it (default 32; 0: none)", 0, 1u << 24},
        {"--lane", 0, LM_CLI_STR, &o.lane, "NAME", "arithmetic: f32, i8, i16, mixed, bf16 (default: i8, f32 if no weight is quantized)"},
        {"--threads", 't', LM_CLI_U32, &o.threads, "N", "threads (default: one per physical core)", 1, 1024},
        {"--chunk", 0, LM_CLI_U32, &o.chunk, "N", "prompt positions computed at a time", 1, 65536},
        LM_CLI_KV_OPT(&o.kv),
        {"--cpu-level", 0, LM_CLI_STR, &o.cpu_level, "LEVEL", "c, avx2, avx512 or neon (default: the best this CPU has)"},
        LM_CLI_JSON_OPT(&f.json),
        {0},
    };
    lm_cli_args args;
    lm_error err = {0};
    const int rc = lm_cli_parse("profile", about, opts, 1, 1, argc, argv, &args);
    if (rc != LM_CLI_GO) return rc;
    f.path = args.s[0];
    f.prompt = o.prompt;
    f.predict = o.predict;
    lm_cli_catch_interrupts();
    const lm_status s = lm_profile(f.path, &o, &err);
    lm_cli_progress_end();
    return s == LM_OK ? 0 : lm_cli_error("profile", &err);
}
