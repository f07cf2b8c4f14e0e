/* The parts that every report is made of. */
#include "verify/html.h"
#include "base/utf8.h"
#include <math.h>
#include <stdarg.h>
#include <string.h>

static const char style[] =
    ":root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--soft:#57606a;--line:#d0d7de;--good:#1a7f37;--open:#9a6700;--bad:#cf222e;"
    "--c0:#0969da;--c1:#bc4c00;--c2:#8250df;--c3:#6e7781;--h0:#eef4fb;--h9:#a40e26}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#0d1117;--fg:#e6edf3;--soft:#9198a1;--line:#30363d;--good:#3fb950;--open:#d29922;"
    "--bad:#f85149;--c0:#58a6ff;--c1:#f0883e;--c2:#bc8cff;--c3:#8b949e;--h0:#182330;--h9:#ff7b72}}\n"
    "body{margin:0 auto;padding:1.5rem;max-width:62rem;background:var(--bg);color:var(--fg);font:15px/1.5 "
    "system-ui,sans-serif;overflow-wrap:break-word}\n"
    "h1{font-size:1.4rem;margin:0 0 .3rem}h2{font-size:1.1rem;margin:2rem 0 .6rem;border-bottom:1px solid "
    "var(--line);padding-bottom:.2rem}\n"
    ".verdict{font-weight:600;font-size:1.05rem;margin:.2rem 0 "
    "1rem;overflow-wrap:anywhere}.good{color:var(--good)}.open{color:var(--open)}.bad{color:var(--bad)}\n"
    ".wide{overflow-x:auto}.wide table{min-width:36rem}.wide table "
    "table{min-width:0}table{border-collapse:collapse;font-size:.88rem;width:100%}\n"
    "th,td{text-align:left;vertical-align:top;padding:.25rem .6rem .25rem 0;border-bottom:1px solid "
    "var(--line)}th{color:var(--soft);font-weight:600}\n"
    "td{overflow-wrap:anywhere}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}td.n{white-space:nowrap}td.k{white-space:"
    "nowrap}\n"
    "code,.m{font-family:ui-monospace,monospace;font-size:.92em;unicode-bidi:isolate;white-space:pre-wrap;overflow-wrap:anywhere}\n"
    ".soft{color:var(--soft)}figure{margin:.5rem 0 "
    "1rem}figcaption{color:var(--soft);font-size:.85rem}svg{display:block;width:100%;min-width:34rem;height:auto}\n"
    "svg text{fill:var(--soft);font:11px "
    "system-ui,sans-serif}.grid{stroke:var(--line)}circle{fill:var(--bg);stroke-width:1.6}.l{fill:none;stroke-width:1.8}.a{opacity:.18;"
    "stroke:none}\n";
static const char style_more[] =
    ".s0{stroke:var(--c0)}.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}.s3{stroke:var(--c3)}.f0{fill:var(--c0)}.f1{fill:var(--c1)}.f2{fill:"
    "var(--c2)}.f3{fill:var(--c3)}\n"
    ".key{display:inline-block;margin-right:1rem}.key "
    "i{display:inline-block;width:.9rem;height:.5rem;margin-right:.35rem;border-radius:2px}\n"
    ".b0{background:var(--c0)}.b1{background:var(--c1)}.b2{background:var(--c2)}.b3{background:var(--c3)}.band{opacity:.35}\n"
    ".strip{display:flex;flex-wrap:wrap;gap:2px}.strip i{width:11px;height:18px;border-radius:2px}.strip i.x{outline:2px solid "
    "var(--fg);outline-offset:-1px}\n"
    "i{print-color-adjust:exact;-webkit-print-color-adjust:exact}\n"
    "@media "
    "print{:root{color-scheme:light}body{max-width:none;padding:0}tr,figure{break-inside:avoid}h2{break-after:avoid}svg{min-width:0}}\n";

void lm_html_bytes(FILE *f, const char *s, size_t n) {
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        const int len = lm_utf8_decode((const uint8_t *)s + i, n - i, &cp);
        const size_t step = len > 0 ? (size_t)len : len < 0 ? (size_t)-len : n - i;
        const bool hidden = cp < 0x20 || (cp >= 0x7f && cp < 0xa0) || (cp >= 0x202a && cp <= 0x202e) || (cp >= 0x2066 && cp <= 0x2069);
        if (len <= 0 || (hidden && cp != '\n' && cp != '\t'))
            fputs("\xef\xbf\xbd", f);
        else if (cp == '&')
            fputs("&amp;", f);
        else if (cp == '<')
            fputs("&lt;", f);
        else if (cp == '>')
            fputs("&gt;", f);
        else if (cp == '"')
            fputs("&quot;", f);
        else if (cp == '\'')
            fputs("&#39;", f);
        else if (cp == '\n')
            fputs("\xe2\x8f\x8e", f);
        else
            fwrite(s + i, 1, step, f);
        i += step;
    }
}

void lm_html_text(FILE *f, const char *s) { lm_html_bytes(f, s, strlen(s)); }

static void text(FILE *f, const char *fmt, va_list ap) {
    char buf[2048];
    const int n = vsnprintf(buf, sizeof buf, fmt, ap);
    if (n > 0) lm_html_bytes(f, buf, (size_t)n < sizeof buf ? (size_t)n : sizeof buf - 1);
}

void lm_html_begin(FILE *f, const char *title, const char *tone, const char *verdict) {
    fputs("<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
          "content=\"width=device-width,initial-scale=1\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n<title>",
          f);
    lm_html_text(f, title);
    fprintf(f, "</title>\n<style>\n%s%s", style, style_more);
    for (int i = 0; i < 10; i++) fprintf(f, ".h%d{background:color-mix(in oklab,var(--h9) %d%%,var(--h0))}", i, i * 100 / 9);
    fputs("\n</style>\n<h1>", f);
    lm_html_text(f, title);
    fprintf(f, "</h1>\n<p class=\"verdict %s\">", tone);
    lm_html_text(f, verdict);
    fputs("</p>\n", f);
}

void lm_html_end(FILE *f) { fputs("</html>\n", f); }

void lm_html_heading(FILE *f, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fputs("<h2>", f);
    text(f, fmt, ap);
    fputs("</h2>\n", f);
    va_end(ap);
}

void lm_html_facts(FILE *f) { fputs("<table class=\"facts\">\n", f); }
void lm_html_facts_end(FILE *f) { fputs("</table>\n", f); }
void lm_html_fact(FILE *f, const char *key, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fputs("<tr><th>", f);
    lm_html_text(f, key);
    fputs("</th><td>", f);
    text(f, fmt, ap);
    fputs("</td></tr>\n", f);
    va_end(ap);
}

void lm_html_build(FILE *f) {
    lm_html_fact(f, "lemma", "%s, commit %s, contract version %d", lm_version(), lm_commit(), LM_CONTRACT_VERSION);
    lm_html_fact(f, "CPU level here", "%s", lm_cpu_level());
}

/* ---- charts ------------------------------------------------------------------------------------------------------------------------ */
enum { W = 760, H = 250, LEFT = 52, RIGHT = 12, TOP = 10, BOTTOM = 44 };

typedef struct scale { int least, most; uint32_t n; } scale; /* powers of ten */
static double x_of(const scale *s, uint32_t i) { return LEFT + (W - LEFT - RIGHT) * (s->n > 1 ? (double)i / (s->n - 1) : 0.5); }
static double y_of(const scale *s, double v) {
    const double share = (log10(v) - s->least) / (s->most - s->least);
    return H - BOTTOM - (H - TOP - BOTTOM) * fmin(fmax(share, 0), 1);
}
static bool has(const lm_line *l, uint32_t i) { return isfinite(l->y[i]) && l->y[i] > 0; }

static bool fit(scale *s, const lm_line *line, uint32_t n_lines) {
    double least = INFINITY, most = 0;
    for (uint32_t k = 0; k < n_lines; k++)
        for (uint32_t i = 0; i < s->n; i++)
            if (has(&line[k], i)) {
                least = fmin(least, line[k].y[i]);
                most = fmax(most, line[k].y[i]);
            }
    if (!(most > 0)) return false;
    s->least = (int)floor(log10(least));
    s->most = (int)ceil(log10(most));
    if (s->most == s->least) s->most++;
    return true;
}

static void axes(FILE *f, const scale *s, const char *const *place) {
    const int step = (s->most - s->least + 7) / 8;
    const uint32_t every = (s->n + 11) / 12;
    for (int e = s->least; e <= s->most; e += step) {
        const double y = y_of(s, pow(10, e));
        fprintf(
            f,
            "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">1e%d</text>\n",
            LEFT, W - RIGHT, y, y, LEFT - 6, y + 4, e);
    }
    for (uint32_t i = 0; i < s->n; i += every) {
        fprintf(f, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"%s\">", x_of(s, i), H - BOTTOM + 16,
                !i              ? "start"
                : i + 1 == s->n ? "end"
                                : "middle");
        lm_html_text(f, place[i]);
        fputs("</text>\n", f);
    }
}

static void draw(FILE *f, const scale *s, const lm_line *l, const char *const *place) {
    for (uint32_t i = 0; i < s->n;) {
        uint32_t to = i;
        while (to < s->n && has(l, to)) to++;
        if (to > i) {
            fprintf(f, "<path class=\"%s\" d=\"M", l->area ? "a" : "l");
            for (uint32_t k = i; k < to; k++) fprintf(f, "%s%.1f %.1f", k > i ? "L" : "", x_of(s, k), y_of(s, l->y[k]));
            if (l->area) fprintf(f, "L%.1f %dL%.1f %dZ", x_of(s, to - 1), H - BOTTOM, x_of(s, i), H - BOTTOM);
            fputs("\"/>\n", f);
        }
        for (uint32_t k = i; k < to && !l->area; k++) {
            fprintf(f, "<circle r=\"2.6\" cx=\"%.1f\" cy=\"%.1f\"><title>", x_of(s, k), y_of(s, l->y[k]));
            lm_html_text(f, place[k]);
            fprintf(f, ": %.3g</title></circle>\n", l->y[k]);
        }
        i = to + 1;
    }
}

void lm_html_chart(FILE *f, const char *what, const char *const *place, uint32_t n, const lm_line *line, uint32_t n_lines) {
    scale s = {.n = n};
    if (!n || !fit(&s, line, n_lines)) return;
    fputs("<figure><figcaption>", f);
    lm_html_text(f, what);
    fputs("<br>", f);
    for (uint32_t k = 0; k < n_lines; k++) {
        fprintf(f, "<span class=\"key\"><i class=\"b%d%s\"></i>", line[k].colour, line[k].area ? " band" : "");
        lm_html_text(f, line[k].name);
        fputs("</span>", f);
    }
    fprintf(f, "</figcaption>\n<div class=\"wide\"><svg viewBox=\"0 0 %d %d\" role=\"img\">\n", W, H);
    axes(f, &s, place);
    for (uint32_t k = 0; k < n_lines; k++) {
        fprintf(f, "<g class=\"%c%d\">\n", line[k].area ? 'f' : 's', line[k].colour);
        draw(f, &s, &line[k], place);
        fputs("</g>\n", f);
    }
    fputs("</svg></div></figure>\n", f);
}

/* ---- heat strips -------------------------------------------------------------------------------------------------------------------- */
int lm_html_heat(double value, double least, double most) {
    if (isnan(value)) return 0;
    if (!(value > least)) return 0;
    const double share = log(value / least) / log(most / least);
    return share >= 1 ? 9 : (int)(share * 10);
}
void lm_html_strip(FILE *f, const char *what) {
    fputs("<figure><figcaption>", f);
    lm_html_text(f, what);
    fputs("</figcaption>\n<div class=\"strip\">", f);
}
void lm_html_cell(FILE *f, int heat, bool marked, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fprintf(f, "<i class=\"h%d%s\" title=\"", heat, marked ? " x" : "");
    text(f, fmt, ap);
    fputs("\"></i>", f);
    va_end(ap);
}
void lm_html_strip_end(FILE *f) { fputs("</div></figure>\n", f); }
