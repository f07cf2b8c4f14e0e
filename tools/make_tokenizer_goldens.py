#!/usr/bin/env python3
"""Makes tests/data/tokenizer/: small BPE tokenizers trained on the sentences below, and their goldens by the `tokenizers` package.

    python3 tools/make_tokenizer_goldens.py [OUT]      (made with tokenizers 0.23.3)

bytes      byte-level BPE with the GPT-2 pattern, digits apart, specials before and after
patterns   byte-level BPE with a Split by pattern, NFC, ignore_merges, merges as pairs
sentence   SentencePiece-like BPE: Metaspace, byte fallback, fused unknowns, the decoder that strips one space
merged     a chain of splits of every behavior, Replace, Strip and Lowercase, Metaspace decoder
fused      unknown characters fused, no byte fallback; matches that touch; Metaspace before the first piece only
added      added tokens with lstrip, rstrip, single_word, normalized
"""
import json
import os
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = sys.argv[1] if len(sys.argv) > 1 else "tests/data/tokenizer"

CORPUS = [
    "The keeper of the lighthouse counted the ships twice each evening, once at dusk and once when the fog came in.",
    "She'll say they've seen it; I'd rather we're sure. It's 2024, and 1234567 isn't 12345.67!",
    "def count(xs):\n    n = 0\n    for x in xs:\n        n += 1\n    return n\n",
    "Grüße aus Köln: der Fluß ist naß, die Straße heißt Müllergasse.",
    "Le café déjà vu; l'été à Besançon, où naît l'œuvre.",
    "今日は天気がいいですね。明日も晴れるでしょう。",
    "Привет, мир! Как дела? Хорошо, спасибо.",
    "the theme there then they these those though through the other others another",
    "🌍🚀 emoji 👩‍🚀 and 👍🏽 too, with \u200b and \u00a0 between",
] * 4

TEXTS = [
    "", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n \n  \n", "a", " a", "a ", "  a  b   c    ", "the", " the the", "The keeper's ship",
    "She'LL say they'VE seen it; I'd 'S 's's", "2024", "1234567.89", "x=1;y=22;z=333", "٣٤٥ ① ½ Ⅷ", "def f(x):\n\treturn x ** 2\n\n\n",
    "Grüße aus Köln", "Gru\u0308ße", "\u1e69 \u0073\u0323\u0307 \u0073\u0307\u0323", "각 각", "ﬁ ﬃ ① Å", "İI ıi ΑΣ", "今日は天気", "Привет, мир!",
    "🌍🚀", "👩‍🚀👍🏽", "a\u00a0b\u2003c\u3000d", "\u0085\u2028\u2029x", "\u180ex \u180e", "\u200b\u200d\u200c", "x\u0000y", "\u0001\u001f\u007f", "\ufffd", "\ufeffbom",
    "<|end|>", "<|begin|>hi<|end|>", "<|end|><|end|>", "<|end", "a<|end|>b <|end|> c", "<tool> <tool>x", "  <left>  x", "x  <right>  y", "word words word",
    "Word WORD a_word word.", "caf\u00e9 cafe\u0301 CAF\u00c9", "<left><right>", "foo  <left>  <right>  bar", "▁ lower ▁▁ block ▁", "-- — – ... !?", "snake_case camelCase HTTPServer",
    "\u0915\u094d\u0937\u0924\u094d\u0930\u093f\u092f \u0e44\u0e17\u0e22 \u0627\u0644\u0639\u0631\u0628\u064a\u0629", "ſhort K Å", "𝔘𝔫𝔦 𐐀𐐨 𠮷",
    "https://example.org/a?b=c&d=%20#e", "\"quoted\" 'single' `tick`", "a,b;c:d|e/f\\g", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "ééééé", "\u0301", "e\u0301\u0301", "①②③", "x́y̋",
    "the\u00adre", "ᾳ ŉ ΐ", "  \u3000  ", "\r\r\n\n\r", "don't DON'T don’t", "C'est l'été, n'est-ce pas?", "a..b...c. .", "--a--b - -c-", "日本a日本aa語", "bc++bc+bc",
]


def train(tok, size, **kw):
    tok.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=size, show_progress=False, **kw))
    return tok


def byte_alphabet():
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def make_bytes():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    t.decoder = decoders.ByteLevel()
    train(t, 420, initial_alphabet=byte_alphabet(), special_tokens=["<|begin|>", "<|end|>"])
    t.add_special_tokens(["<|é|>", "ø"])
    t.post_processor = processors.TemplateProcessing(single="<|begin|> $A <|end|>", special_tokens=[("<|begin|>", 0), ("<|end|>", 1)])
    return t


def make_patterns():
    t = Tokenizer(models.BPE(ignore_merges=True))
    t.normalizer = normalizers.NFC()
    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}{1,3}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    return train(t, 430, initial_alphabet=byte_alphabet())


def make_sentence():
    t = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    bytes_ = ["<0x%02X>" % b for b in range(256)]
    train(t, 520, special_tokens=["<unk>", "<s>", "</s>"] + bytes_, limit_alphabet=40)
    d = json.loads(t.to_str())
    d["added_tokens"] = [a for a in d["added_tokens"] if a["id"] < 3]
    t = Tokenizer.from_str(json.dumps(d))
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.post_processor = processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])])
    return t


def make_merged():
    t = Tokenizer(models.BPE(unk_token="?", fuse_unk=False))
    t.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace(Regex(r"\s+"), " "),
                                         normalizers.Replace("--", "—"), normalizers.Prepend(" ")])
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(";", "removed"), pre_tokenizers.Split(Regex(r"[.!?]+"), "merged_with_previous"), pre_tokenizers.Split("'", "merged_with_next"),
        pre_tokenizers.Split(Regex(r"\w+"), "contiguous", invert=True), pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Metaspace(prepend_scheme="never")])
    t.decoder = decoders.Metaspace(prepend_scheme="always")
    return train(t, 300, special_tokens=["?"], limit_alphabet=60)


def make_fused():
    t = Tokenizer(models.BPE(unk_token="?", fuse_unk=True))
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(".", "merged_with_previous"), pre_tokenizers.Split("-", "merged_with_next"), pre_tokenizers.Split("a", "contiguous"),
        pre_tokenizers.Split(Regex("[^+]"), "merged_with_next", invert=True),
        pre_tokenizers.Metaspace(prepend_scheme="first", split=False)])
    t.decoder = decoders.Metaspace(prepend_scheme="first")
    d = json.loads(train(t, 200, special_tokens=["?"], limit_alphabet=40).to_str())
    for a, b in ["..", "--", "a.", ".a", "-a", "a-", "b-", "++", "+b", "bc"]:  # merges that show where a piece was cut
        for c in (a, b, a + b):
            d["model"]["vocab"].setdefault(c, len(d["model"]["vocab"]))
        d["model"]["merges"].append([a, b])
    return Tokenizer.from_str(json.dumps(d))


def make_added():
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    t.decoder = decoders.ByteLevel()
    train(t, 380, initial_alphabet=byte_alphabet())
    t.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False), AddedToken("<|end|><|end|>", special=True, normalized=False)])
    t.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("<left>", lstrip=True, normalized=False), AddedToken("<right>", rstrip=True, normalized=False),
                  AddedToken("word", single_word=True, normalized=False), AddedToken("CAFÉ", normalized=True), AddedToken("  ", normalized=False)])
    return t


def main():
    os.makedirs(OUT, exist_ok=True)
    made = "tokenizers " + tokenizers.__version__
    for name, make in [("bytes", make_bytes), ("patterns", make_patterns), ("sentence", make_sentence), ("merged", make_merged),
                       ("fused", make_fused), ("added", make_added)]:
        t = make()
        d = json.loads(t.to_str())
        if name == "bytes":  # the older form of merges
            d["model"]["merges"] = [" ".join(m) for m in d["model"]["merges"]]
        t = Tokenizer.from_str(json.dumps(d))
        write(f"{name}.json", d)
        cases = []
        for text in TEXTS:
            ids = t.encode(text, add_special_tokens=False).ids
            cases.append({"text": text, "ids": ids, "ids_with_special": t.encode(text).ids, "decoded": t.decode(ids, skip_special_tokens=False)})
        write(f"{name}.cases.json", {"made_by": made, "cases": cases})
        if name == "bytes":
            write("bytes.decode.json", {"made_by": made, "cases": decodes(t)})


def decodes(t):
    """Byte tokens in orders that no text gives: characters cut short, stray continuations, surrogates, specials in between."""
    of = {c: t.token_to_id(c) for c in pre_tokenizers.ByteLevel.alphabet()}
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    rest = [b for b in range(256) if b not in keep]
    byte = {b: of[chr(b)] for b in keep} | {b: of[chr(256 + i)] for i, b in enumerate(rest)}
    runs = ["f09f9880", "f09f", "f09f98", "eda080", "61f09f9862", "c3", "c328", "e282", "e28228", "80", "fffe", "c0af", "e080af", "f08080af", "f4908080",
            "e4bda0e5a5", "f09f98f09f9880", "e2e2e282ac", "00c3a9ff", "f888808080"]
    cases = [[byte[b] for b in bytes.fromhex(r)] for r in runs]
    cases += [[byte[0xF0], byte[0x9F], 0, byte[0x98], byte[0x80]], [t.token_to_id("ø"), byte[0x61]], [t.token_to_id("<|é|>")], [1, 0, 1], []]
    return [{"ids": c, "skip_special": s, "decoded": t.decode(c, skip_special_tokens=s)} for c in cases for s in (False, True)]


def write(name, d):
    with open(os.path.join(OUT, name), "w", encoding="utf-8") as f:
        json.dump(d, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
