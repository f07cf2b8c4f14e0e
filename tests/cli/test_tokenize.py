#!/usr/bin/env python3
"""lemma tokenize: round trips, forms of output, refusals."""
import json
import os
import struct
import tempfile

from drive import LLAMA, LLAMA_GGUF, ROOT, check, demo_model, finish, good, lemma, refused, skip, trace

TEXTS = ["hello", "a b  c\n\n\td", "Grüße 今日は 🌍👩‍🚀 — ¿Cómo? ไทย", "\"quoted\" \\ back", "x" * 300]

for t in TEXTS:
    ids = good("tokenize", LLAMA_GGUF, t, "--ids", "--no-special").strip()
    lines = [line.split("\t", 1) for line in good("tokenize", LLAMA_GGUF, t, "--no-special").split("\n")[:-1]]
    j = json.loads(good("tokenize", LLAMA_GGUF, t, "--json", "--no-special"))
    check(f"three forms agree: {t[:20]!r}", ids == ",".join(x[0] for x in lines) == ",".join(map(str, j["ids"])))
    check(f"pieces are JSON strings: {t[:20]!r}", [json.loads(x[1]) for x in lines] == j["pieces"])
    check(f"round trip: {t[:20]!r}", good("tokenize", LLAMA_GGUF, "--decode", ids) == t + "\n")
    check(f"round trip in JSON: {t[:20]!r}", json.loads(good("tokenize", LLAMA_GGUF, "--json", "--decode", ids))["text"] == t)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as f:
        f.write(t)
        f.flush()
        check(f"from a file: {t[:20]!r}", good("tokenize", LLAMA_GGUF, "--file", f.name, "--ids", "--no-special").strip() == ids)
        with open(f.name) as stdin:
            check(f"from stdin: {t[:20]!r}", lemma("tokenize", LLAMA_GGUF, "-f", "-", "--ids", "--no-special", stdin=stdin).stdout.strip() == ids)

refused("tokenize", LLAMA, "hello", says=["tokenizer"])
refused("tokenize", LLAMA_GGUF, says=["TEXT"])
refused("tokenize", says=["usage"])
refused("tokenize", LLAMA_GGUF, "a", "--decode", "1", says=["one of"])
refused("tokenize", LLAMA_GGUF, "--decode", "1", "--ids", says=["--ids"])
refused("tokenize", LLAMA_GGUF, "--decode", "99999999", says=["99999999"])
refused("tokenize", LLAMA_GGUF, "--file", "/nonexistent/file", says=["/nonexistent/file"])
refused("tokenize", LLAMA_GGUF, "a", "--what", says=["--what"])
refused("tokenize", os.path.join(LLAMA, "config.json"), "a", says=["config.json"])
check("help", "--decode" in good("tokenize", "-h"))

# a tokenizer.json that adds BOS and has a token to be recognised in text
SMALL = {
    "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "decoder": {"type": "ByteLevel"},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    "added_tokens": [{"id": i, "content": c, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
                     for i, c in ((4, "<s>"), (5, "<|end|>"))],
    "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                       "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [4], "tokens": ["<s>"]}}},
    "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
              "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": {"a": 0, "b": 1, "ab": 2, "aba": 3},
              "merges": ["a b", "ab a"]},
}
with tempfile.TemporaryDirectory() as tmp:
    small = os.path.join(tmp, "tokenizer.json")
    with open(small, "w") as f:
        json.dump(SMALL, f)
    check("BOS is added", good("tokenize", small, "abab<|end|>b", "--ids") == "4,2,2,5,1\n", good("tokenize", small, "abab<|end|>b", "--ids"))
    check("and left out", good("tokenize", small, "abab<|end|>b", "--ids", "--no-special") == "2,2,5,1\n")
    check("the lines", good("tokenize", small, "ab") == '4\t"<s>"\n2\t"ab"\n')
    check("decoding with and without", (good("tokenize", small, "--decode", "4,3,5"), good("tokenize", small, "--decode", "4, 3, 5",
          "--no-special")) == ("<s>aba<|end|>\n", "aba\n"))

# a real vocabulary: the ids that transformers' tokenizer gave
model = demo_model()
if model:
    path = os.path.join(ROOT, "tests/real/smollm2-135m/oracle.safetensors")
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        texts = json.loads(f.read(n))["__metadata__"]
    t = trace(path)
    for c in ("c0", "c1", "c2", "c3"):
        ids = json.loads(good("tokenize", model, texts[c + ".text"], "--json"))["ids"]
        check(f"{c} of the real trace", ids == t[c + ".ids"], f"{ids[:40]} {t[c + '.ids'][:40]}")
else:
    skip("a real vocabulary", "the demo's model is not in the cache: make demo fetches it")
finish()
