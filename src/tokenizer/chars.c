/* Character classes by Unicode's properties (utf8proc's tables), and the byte-level alphabet of GPT-2. */
#include "tokenizer/tok.h"
#include <utf8proc.h>

uint32_t lm_char_at(const char *s, size_t n, size_t *len) {
    uint32_t c = 0xfffd;
    int k = lm_utf8_decode((const uint8_t *)s, n, &c);
    *len = k > 0 ? (size_t)k : 1;
    return c;
}

bool lm_char_space(uint32_t c) {
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
    if (c == 0x85) return true;
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_ZS || k == UTF8PROC_CATEGORY_ZL || k == UTF8PROC_CATEGORY_ZP;
}

bool lm_char_numeric(uint32_t c) {
    if (c < 0x80) return c >= '0' && c <= '9';
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool lm_char_punct(uint32_t c) {
    if (c < 0x80) return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

/* Alphabetic (letters, letter numbers, circled letters), marks, decimal digits, connectors, joiners: Unicode TR18, annex C. */
bool lm_char_word(uint32_t c) {
    if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
    if (c == 0x200c || c == 0x200d) return true;
    if ((c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189))
        return true;
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_ME) || k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL ||
           k == UTF8PROC_CATEGORY_PC;
}

/* Printable Latin-1 stands for itself; the other 68 bytes, in order, are U+0100 and up. */
static bool stands_for_itself(uint32_t b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255); }

uint32_t lm_bytes_to_char(uint8_t b) {
    if (stands_for_itself(b)) return b;
    if (b <= 32) return 0x100u + b;
    if (b <= 160) return 0x121u + (b - 127u);
    return 0x143;
}

int lm_bytes_from_char(uint32_t c) {
    if (c < 256) return stands_for_itself(c) ? (int)c : -1;
    if (c <= 0x120) return (int)(c - 0x100);
    if (c <= 0x142) return (int)(c - 0x121 + 127);
    return c == 0x143 ? 173 : -1;
}
