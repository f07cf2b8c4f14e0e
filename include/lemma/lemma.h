/* lemma: an LLM inference engine that can prove it is right.
 *
 * The one public header. Every fallible function returns an lm_status and, where `err` is not NULL, fills it with what
 * went wrong, where, and what to do about it. The library never aborts, exits, prints or reads the environment.
 */
#ifndef LEMMA_LEMMA_H
#define LEMMA_LEMMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* name, what it means in one phrase, the exit status a command line should use */
#define LM_STATUS_LIST(X) \
    X(OK, "ok", 0) \
    X(USAGE, "the call or the option is wrong", 2) \
    X(IO, "a file could not be opened or read", 2) \
    X(FORMAT, "a file is malformed", 2) \
    X(UNSUPPORTED, "this model or option is not supported", 2) \
    X(RANGE, "a value is out of range", 2) \
    X(STATE, "the call does not fit the object's state", 2) \
    X(NOMEM, "out of memory", 3) \
    X(MISSING, "a resource is missing on this machine", 3) \
    X(INTERRUPTED, "interrupted", 130) \
    X(INTERNAL, "an invariant of lemma itself does not hold", 70)

typedef enum lm_status {
#define LM_STATUS_ENUM(name, text, code) LM_##name,
    LM_STATUS_LIST(LM_STATUS_ENUM)
#undef LM_STATUS_ENUM
} lm_status;

#define LM_NO_OFFSET UINT64_MAX

/* What went wrong. Strings are NUL-terminated and truncated to fit; `file` and `field` may be empty. */
typedef struct lm_error {
    lm_status code;
    uint64_t offset;   /* byte offset in `file`, or LM_NO_OFFSET */
    char file[512];    /* path of the file concerned */
    char field[160];   /* the tensor, metadata key or option concerned */
    char message[640]; /* what is wrong and what to do */
} lm_error;

const char *lm_status_name(lm_status s);
const char *lm_status_text(lm_status s);
int lm_status_exit_code(lm_status s);
/* One line "file: at byte N: field: message" into buf[n]; returns buf. */
char *lm_error_line(const lm_error *err, char *buf, size_t n);

#ifdef __cplusplus
}
#endif
#endif
