/* What each tokenizer.ggml.pre stands for: patterns applied one after another, each isolating its matches, then the byte-level alphabet.
 * The patterns are those of the models' own tokenizer.json files; nfc: their normaliser. ignore_merges and add_bos are what llama.cpp's
 * reader takes for granted with the name when the file does not say. */
#include "tokenizer/tok.h"
#include <string.h>
#include <utf8proc.h>

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define LLAMA3 CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL
#define QWEN2 CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL
#define QWEN35 CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" TAIL
#define TEKKEN \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" TAIL
#define GPT4O \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" CONTRACTIONS "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" CONTRACTIONS \
    "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" TAIL
#define DEEPSEEK3 \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*" TAIL
#define DEEPSEEK_WORDS \
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\\x{1f7d}ᾀ-" \
    "ᾴᾶ-ᾼ\\x{1fbe}ῂ-ῄῆ-ῌῐ-\\x{1fd3}ῖ-\\x{1fdb}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\\x{2126}ℨ\\x{212a}-ℭℯ-ℴℹ" \
    "ℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]" \
    "+"
#define CJK "[一-龥ࠀ-一가-\\x{d7ff}]+"

typedef struct pre_name {
    const char *name;
    bool nfc, ignore_merges, add_bos;
    const char *pattern[6];
} pre_name;

static const pre_name names[] = {
    {"default", 0, 0, 0, {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {"gpt-2", 0, 0, 0, {GPT2}},
    {"phi-2", 0, 0, 0, {GPT2}},
    {"mpt", 1, 0, 0, {GPT2}},
    {"olmo", 1, 0, 0, {GPT2}},
    {"smollm", 0, 0, 0, {"\\p{N}", GPT2}},
    {"starcoder", 0, 0, 0, {"\\p{N}", GPT2}},
    {"refact", 0, 0, 0, {"\\p{N}", GPT2}},
    {"command-r", 1, 0, 0, {"\\p{N}", GPT2}},
    {"llama-bpe", 0, 1, 1, {LLAMA3}},
    {"llama3", 0, 1, 1, {LLAMA3}},
    {"llama-v3", 0, 1, 1, {LLAMA3}},
    {"lfm2", 0, 1, 1, {LLAMA3}},
    {"smaug-bpe", 0, 0, 0, {LLAMA3}},
    {"dbrx", 0, 0, 0, {LLAMA3}},
    {"glm4", 0, 0, 0, {LLAMA3}},
    {"chatglm-bpe", 0, 0, 0, {LLAMA3}},
    {"qwen2", 1, 0, 0, {QWEN2}},
    {"deepseek-r1-qwen", 0, 0, 0, {QWEN2}},
    {"stablelm2", 1, 0, 0, {QWEN2}},
    {"qwen35", 1, 0, 0, {QWEN35}},
    {"tekken", 0, 1, 1, {TEKKEN}},
    {"gpt-4o", 0, 0, 0, {GPT4O}},
    {"llama4", 0, 0, 0, {GPT4O}},
    {"deepseek-llm", 0, 0, 0, {"[\\r\\n]", DEEPSEEK_WORDS, "\\s?[!-/:-~！-／：-～‘-‟　-。]+", "\\s+$", CJK, "\\p{N}+"}},
    {"deepseek-coder", 0, 0, 0, {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", CJK, "\\p{N}"}},
    {"deepseek-v3", 0, 0, 0, {"\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3}},
};

const char *lm_pre_name(uint32_t i) { return i < sizeof names / sizeof *names ? names[i].name : NULL; }

lm_status lm_pre_by_name(lm_tokenizer *t, const char *name, lm_error *err, bool *add_bos) {
    const pre_name *p = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i].name, name) == 0) p = &names[i];
    if (!p)
        return lm_fail_at(err, LM_UNSUPPORTED, NULL, LM_NO_OFFSET, "tokenizer.ggml.pre",
                          "the pre-tokenizer \"%.64s\" is not supported; use a folder with its tokenizer.json", name);
    t->ignore_merges = p->ignore_merges;
    *add_bos = p->add_bos;
    if (p->nfc) t->norm[t->n_norm++] = (lm_norm_step){.kind = LM_NORM_UNICODE, .form = UTF8PROC_COMPOSE};
    for (int i = 0; i < 6 && p->pattern[i]; i++) {
        lm_pre_step *st = &t->pre[t->n_pre++];
        *st = (lm_pre_step){.kind = LM_PRE_PATTERN, .split = LM_SPLIT_ISOLATED};
        LM_TRY(lm_pattern_compile(p->pattern[i], strlen(p->pattern[i]), &st->re, err));
    }
    t->pre[t->n_pre++] = (lm_pre_step){.kind = LM_PRE_BYTES};
    return LM_OK;
}
