/* Reports as one self-contained HTML page: nothing is fetched and nothing runs (no script; a content policy says so), light and dark as the
 * reader has it, and it prints. Whatever comes from a file (names of tensors, texts of tokens, paths) goes through lm_html_text. The same
 * run gives the same page: no date. */
#ifndef LM_VERIFY_HTML_H
#define LM_VERIFY_HTML_H
#include "base/status.h"
#include <stdio.h>

/* s[0..n) as text of an element or of a quoted attribute: markup escaped, what is no UTF-8 or no printable character replaced. */
void lm_html_bytes(FILE *f, const char *s, size_t n);
void lm_html_text(FILE *f, const char *s);
/* Up to the first section. tone: "good", "open" or "bad", of the verdict. */
void lm_html_begin(FILE *f, const char *title, const char *tone, const char *verdict);
void lm_html_end(FILE *f);
void lm_html_heading(FILE *f, const char *fmt, ...) LM_PRINTF(2, 3);
/* A table of keys and values: begin, rows, end. A value that is "" is left out. */
void lm_html_facts(FILE *f);
void lm_html_fact(FILE *f, const char *key, const char *fmt, ...) LM_PRINTF(3, 4);
void lm_html_facts_end(FILE *f);
void lm_html_build(FILE *f); /* facts: version, commit, contract, the machine's level */

typedef struct lm_line {
    const char *name;
    const double *y; /* [n]; what is not finite or not above 0 is left out */
    bool area;       /* filled down to the axis: a band */
    int colour;      /* 0 … 3 */
} lm_line;
/* Lines over n named places, y in powers of ten. Nothing when no line has a point. */
void lm_html_chart(FILE *f, const char *what, const char *const *place, uint32_t n, const lm_line *line, uint32_t n_lines);
/* A cell of a heat strip: 0 … 9, 9 the worst; marked ones stand out. Between lm_html_strip and lm_html_strip_end. */
void lm_html_strip(FILE *f, const char *what);
void lm_html_cell(FILE *f, int heat, bool marked, const char *fmt, ...) LM_PRINTF(4, 5);
void lm_html_strip_end(FILE *f);
int lm_html_heat(double value, double least, double most); /* by its logarithm between the two */
#endif
