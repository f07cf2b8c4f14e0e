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
