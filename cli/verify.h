/* What the forms of lemma verify share: cli/verify.c judges one model, cli/verify_all.c what lies below folders, cli/verify_ids.c a list of
 * token ids. */
#ifndef LM_CLI_VERIFY_H
#define LM_CLI_VERIFY_H
#include "cli.h"
#include "lemma/verify.h"

typedef enum lm_cli_format { LM_CLI_TEXT, LM_CLI_JSON, LM_CLI_MARKDOWN } lm_cli_format;
#define LM_CLI_BACKENDS "cpu", "f64" /* what a ledger runs when no backend is named */

/* Each of the folders' models against each of its traces, on o->run.backend or, where that is NULL, on all of LM_CLI_BACKENDS. Returns the
 * exit status. */
int lm_cli_verify_all(const lm_cli_args *folders, const char *models, lm_verify_options *o, lm_cli_format format);
/* The bare arg-max run after `ids`, as long as `expect`, against it; the `topk` best of each step are shown. Returns the exit status. */
int lm_cli_verify_ids(const char *model, const lm_evidence_options *run, const lm_cli_ids *ids, const lm_cli_ids *expect, uint32_t topk,
                      bool json);
#endif
