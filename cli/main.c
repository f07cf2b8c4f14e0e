/* lemma: picks the verb, and sees to it that what was printed arrived. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>
#include "cli.h"

/* A verb without a file of its own is NULL: planned. */
#define LM_VERB_WEAK(name, args, text) __attribute__((weak)) int lm_cli_##name(int argc, char **argv);
LM_VERB_LIST(LM_VERB_WEAK)

static const struct {
    const char *name, *args, *text;
    int (*run)(int argc, char **argv);
} verbs[] = {
#define LM_VERB_ROW(name, args, text) {#name, args, text, lm_cli_##name},
    LM_VERB_LIST(LM_VERB_ROW)
};
#define N_VERBS (sizeof verbs / sizeof *verbs)

static void help(FILE *f) {
    fprintf(f, "lemma %s: an LLM inference engine that can prove it is right\n\n", lm_version());
    for (size_t i = 0; i < N_VERBS; i++)
        fprintf(f, "  lemma %-9s %-18s %s%s\n", verbs[i].name, verbs[i].args, verbs[i].run ? "" : "planned: ", verbs[i].text);
    fprintf(f, "\nlemma VERB -h lists a verb's options. lemma --version says which build this is.\n"
               "Exit status: 0 good, 1 a claim refuted, 2 a usage or input error, 3 a resource is missing, 130 interrupted.\n");
}

static int dispatch(int argc, char **argv) {
    if (argc < 2) {
        help(stderr);
        return 2;
    }
    const char *v = argv[1];
    if (!strcmp(v, "-h") || !strcmp(v, "--help") || !strcmp(v, "help")) {
        help(stdout);
        return 0;
    }
    if (!strcmp(v, "--version")) {
        printf("lemma %s, commit %s, contract version %d, CPU level %s\n", lm_version(), lm_commit(), LM_CONTRACT_VERSION, lm_cpu_level());
        return 0;
    }
    for (size_t i = 0; i < N_VERBS; i++)
        if (!strcmp(v, verbs[i].name))
            return verbs[i].run ? verbs[i].run(argc - 1, argv + 1) : lm_cli_usage(v, "not in this build yet; planned: %s", verbs[i].text);
    if (access(v, F_OK) == 0) {
        fprintf(stderr, "lemma: '%s' is a path, and a verb comes first: lemma run %s -p TEXT; lemma -h lists the verbs\n", v, v);
        return 2;
    }
    fprintf(stderr, "lemma: unknown %s '%s'; lemma -h lists the verbs\n", v[0] == '-' ? "option" : "verb", v);
    return 2;
}

int main(int argc, char **argv) {
    signal(SIGXFSZ, SIG_IGN); /* a file that grows past the limit is a failed write: the verb says so, and takes its temporary away */
    int rc = dispatch(argc, argv);
    if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "lemma: stdout: could not be written: %s\n", strerror(errno));
        return rc ? rc : 2;
    }
    return rc;
}
