/* Status codes and the rich error, for the library's own use.
 *
 * Idiom: a function that can fail takes `lm_error *err` last and returns lm_status;
 *     LM_TRY(step(..., err));                      passes a failure on
 *     return lm_fail(err, LM_FORMAT, "…", …);      makes one
 *     return lm_fail_at(err, LM_FORMAT, file, offset, field, "…", …);
 * An error that has no file yet gets one with lm_error_set_file on the way up. err may be NULL everywhere.
 */
#ifndef LM_BASE_STATUS_H
#define LM_BASE_STATUS_H
#include "lemma/lemma.h"

#define LM_TRY(expr) \
    do { \
        lm_status lm_try_s_ = (expr); \
        if (lm_try_s_ != LM_OK) return lm_try_s_; \
    } while (0)

#define LM_PRINTF(f, a) __attribute__((format(printf, f, a)))

lm_status lm_fail(lm_error *err, lm_status code, const char *fmt, ...) LM_PRINTF(3, 4);
/* file and field may be NULL; offset LM_NO_OFFSET when there is none. field is escaped: control bytes and invalid UTF-8 shown as \xNN. */
lm_status lm_fail_at(lm_error *err, lm_status code, const char *file, uint64_t offset, const char *field, const char *fmt, ...)
    LM_PRINTF(6, 7);
/* LM_NOMEM, with the bytes needed (0: not known, UINT64_MAX: past counting) and those available. */
lm_status lm_fail_nomem(lm_error *err, const char *what, uint64_t bytes);
/* Fills in the file (or field) only where the error has none. */
void lm_error_set_file(lm_error *err, const char *file);
void lm_error_set_field(lm_error *err, const char *field);
#endif
