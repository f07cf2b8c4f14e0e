/* Which models and traces are found below folders, and what traces.txt adds; with memory that runs out at every point. */
#include "base/mem.h"
#include "check.h"
#include "lemma/verify.h"
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64];

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st, (void)type, (void)at;
    return remove(path);
}

static int begin(void **state) {
    (void)state;
    snprintf(root, sizeof root, "/tmp/lemma-pairs-XXXXXX");
    return mkdtemp(root) == NULL;
}

static int end(void **state) {
    (void)state;
    return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* root/name with its folders */
static void put(const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *s = path + strlen(root) + 1; (s = strchr(s, '/')); *s++ = '/') {
        *s = 0;
        mkdir(path, 0700);
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static lm_pairs *found(const char *sub, const char *models) {
    char dir[128], m[128];
    lm_pairs *p = NULL;
    lm_error err = {0};
    snprintf(dir, sizeof dir, "%s%s", root, sub);
    snprintf(m, sizeof m, "%s/%s", root, models ? models : "");
    const char *d = dir;
    if (lm_pairs_find(&d, 1, models ? m : NULL, &p, &err) != LM_OK) fail_msg("%s: %s", err.file, err.message);
    return p;
}

/* "model > trace (converted) [open]", below root */
static const char *line(const lm_pairs *p, uint32_t i) {
    static char buf[512];
    const lm_pair *q = lm_pairs_get(p, i);
    size_t n = strlen(root) + 1;
    assert_non_null(q);
    snprintf(buf, sizeof buf, "%s > %s%s%s%s", strncmp(q->model, root, n - 1) ? q->model : q->model + n,
             strncmp(q->trace, root, n - 1) ? q->trace : q->trace + n, q->converted ? " converted" : "", *q->open ? " " : "", q->open);
    return buf;
}

static void test_beside(void **state) {
    (void)state;
    put("a/config.json", "{}");
    put("a/oracle.safetensors", "");
    put("a/oracle-bf16.safetensors", "");
    put("a/other.safetensors", "");
    put("a/inside.gguf", ""); /* in a model's folder: the folder's traces are not its */
    put("a/with.gguf", "");
    put("a/with.oracle.safetensors", "");
    put("b/x.gguf", "");
    put("b/y-00001-of-00002.gguf", "");
    put("b/y-00002-of-00002.gguf", "");
    put("b/oracle.safetensors", "");
    put(".hidden/config.json", "{}");
    lm_pairs *p = found("/", NULL);
    const char *const want[] = {"a > a/oracle-bf16.safetensors",
                                "a > a/oracle.safetensors",
                                "a/inside.gguf >  needs a trace: tools/export_oracle.py writes one with transformers",
                                "a/with.gguf > a/with.oracle.safetensors",
                                "b/x.gguf > b/oracle.safetensors",
                                "b/y-00001-of-00002.gguf > b/oracle.safetensors"};
    assert_int_equal(lm_pairs_size(p), 6);
    for (uint32_t i = 0; i < 6; i++) assert_string_equal(line(p, i), want[i]);
    assert_null(lm_pairs_get(p, 6));
    lm_pairs_free(p);
}

static void test_links_are_not_entered(void **state) {
    (void)state;
    char link[128];
    put("a/config.json", "{}");
    snprintf(link, sizeof link, "%s/a/loop", root);
    assert_int_equal(symlink("..", link), 0);
    lm_pairs *p = found("", NULL);
    assert_int_equal(lm_pairs_size(p), 1);
    lm_pairs_free(p);
}

static void test_list(void **state) {
    (void)state;
    put("m/config.json", "{}");
    put("m/oracle.safetensors", "");
    put("g/m.gguf", "");
    put("g/traces.txt", "# a comment\n\n m.gguf |../m/oracle.safetensors|  converted \r\n"
                        "far.gguf | ../m/oracle.safetensors | same | fetch it | or make it\n"
                        "near.gguf | ../m/oracle.safetensors | same\n"
                        "own/folder | - | same\nabsent | - | same | run this");
    put("models/near.gguf", "");
    put("models/folder/oracle.safetensors", "");
    lm_pairs *p = found("/g", "models");
    /* by model: paths, which start with a slash here, before the names of models that are elsewhere */
    const char *const want[] = {"g/m.gguf > m/oracle.safetensors converted", "absent >  run this",
                                "far.gguf > m/oracle.safetensors fetch it | or make it", "near.gguf > m/oracle.safetensors",
                                "own/folder > oracle.safetensors"};
    char path[128];
    assert_int_equal(lm_pairs_size(p), 5);
    for (uint32_t i = 0; i < 5; i++) assert_string_equal(line(p, i), want[i]);
    snprintf(path, sizeof path, "%s/models/near.gguf", root);
    assert_string_equal(lm_pairs_get(p, 3)->model_path, path);
    snprintf(path, sizeof path, "%s/models/folder/oracle.safetensors", root);
    assert_string_equal(lm_pairs_get(p, 4)->trace_path, path);
    lm_pairs_free(p);
    p = found("/g", NULL); /* nowhere else to look: near.gguf isn't here */
    assert_string_equal(line(p, 3), "near.gguf > m/oracle.safetensors needs the model's file near.gguf");
    lm_pairs_free(p);
}

static void test_wrong_lists(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"a.gguf\n", "line 1: wanted"},
        {"# x\na.gguf | t\n", "line 2: wanted"},
        {"a.gguf | t | alike\n", "line 1: 'alike' is neither"},
        {" | t | same\n", "line 1: wanted"},
        {"a | b | same\n\xff\n", "no UTF-8"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        lm_pairs *p = NULL;
        lm_error err = {0};
        const char *dir = root;
        put("traces.txt", bad[i].text);
        assert_int_equal(lm_pairs_find(&dir, 1, NULL, &p, &err), LM_FORMAT);
        assert_non_null(strstr(err.message, bad[i].says));
        assert_non_null(strstr(err.file, "traces.txt"));
        assert_null(p);
    }
    const char *none = "/nonexistent";
    lm_pairs *p = NULL;
    lm_error err = {0};
    assert_int_equal(lm_pairs_find(&none, 1, NULL, &p, &err), LM_IO);
}

static void test_out_of_memory(void **state) {
    (void)state;
    put("m/config.json", "{}");
    put("m/oracle.safetensors", "");
    put("g/m.gguf", "");
    put("g/traces.txt", "m.gguf | ../m/oracle.safetensors | converted\nz | - | same | run this\n");
    const char *dir = root;
    bool done = false;
    for (uint64_t n = 1; n < 1000 && !done; n++) {
        lm_pairs *p = NULL;
        lm_error err = {0};
        lm_alloc_fail_after(n);
        lm_status st = lm_pairs_find(&dir, 1, NULL, &p, &err);
        lm_alloc_fail_after(0);
        done = st == LM_OK;
        assert_true(done || st == LM_NOMEM);
        lm_pairs_free(p);
    }
    assert_true(done);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_beside, begin, end),
        cmocka_unit_test_setup_teardown(test_links_are_not_entered, begin, end),
        cmocka_unit_test_setup_teardown(test_list, begin, end),
        cmocka_unit_test_setup_teardown(test_wrong_lists, begin, end),
        cmocka_unit_test_setup_teardown(test_out_of_memory, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
