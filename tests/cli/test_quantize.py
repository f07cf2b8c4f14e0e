#!/usr/bin/env python3
"""lemma quantize from outside: types, notes, refusals, atomic writing, tokenizers. usage: B=build SHARED=dir test_quantize.py"""
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
from lib.fixture import LEMMA, FIXTURES, Count, fill, pack, read, write, SIZE  # noqa: E402
from lib.gguf_file import Reader  # noqa: E402

SHARED = os.environ.get("SHARED", "")
LLAMA = os.path.join(FIXTURES, "llama")
GGML = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "bf16": 30}
FILE_TYPE = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 8, "q5_1": 9, "q8_0": 7, "bf16": 32}
TEXTS = ["Hello, World's 12345 tests\n\n  x=1 <|im_end|> na\u00efve", "\u65e5\u672c\u8a9e \u30c6\u30b9\u30c8 one", "  a\t\tb   ", "I'LL DON'T 3.14"]
with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
    TEXTS.append(f.read())
count = Count()
tmp = tempfile.mkdtemp()
out = os.path.join(tmp, "out.gguf")


def lemma(*args):
    return subprocess.run([LEMMA, *args], capture_output=True, text=True, timeout=300)


def folder(name, tensors=None, **config):
    """A copy of the llama fixture with other tensors and config keys."""
    to = os.path.join(tmp, name)
    os.makedirs(to)
    old, meta = read(os.path.join(LLAMA, "model.safetensors"))
    write(os.path.join(to, "model.safetensors"), {**old, **(tensors or {})}, meta)
    with open(os.path.join(LLAMA, "config.json")) as f:
        config = {**json.load(f), **config}
    with open(os.path.join(to, "config.json"), "w") as f:
        json.dump(config, f)
    return to


def refused(what, args, words, code=2):
    """One line, the exit status, and no file, whole or half."""
    before = set(os.listdir(tmp))
    r = lemma("quantize", *args)
    lines = [x for x in r.stderr.splitlines() if "is stored as f16" not in x]
    count.check(what, r.returncode == code and len(lines) == 1 and all(w in lines[0] for w in words) and set(os.listdir(tmp)) == before, (r.returncode, r.stderr))


def types():
    for kind, ggml in GGML.items():
        r = lemma("quantize", LLAMA, out, kind)
        file = Reader(out)
        short = {n for n, (_, dims, _) in file.tensors.items() if len(dims) > 1 and dims[0] % 32 and kind[0] == "q"}
        matrices = {n: t for n, (t, dims, _) in file.tensors.items() if len(dims) > 1}
        count.check(f"{kind}: matrices", all(t == (1 if n in short else ggml) for n, t in matrices.items()), matrices)
        count.check(f"{kind}: vectors stay f32", all(t == 0 for t, dims, _ in file.tensors.values() if len(dims) == 1))
        count.check(f"{kind}: file type", file.keys["general.file_type"] == (4, FILE_TYPE[kind]), file.keys["general.file_type"])
        told = {x.split()[0] for x in r.stderr.splitlines() if "is stored as f16" in x}
        count.check(f"{kind}: short rows are listed", told == short and bool(short) == (kind[0] == "q"), (told, short))
    r = lemma("quantize", LLAMA, out, "Q8_0", "--json")
    count.check("--json", json.loads(r.stdout)["tensors"] == len(Reader(out).tensors) and json.loads(r.stdout)["standin_tokenizer"], r.stdout)
    count.check("architecture comes first", Reader(out).order[0] == "general.architecture", Reader(out).order[:3])


def refusals():
    refused("unknown type", [LLAMA, out + "x", "q4_k"], ["'q4_k' is not a type that lemma writes", "q8_0"])
    refused("a GGUF", [os.path.join(FIXTURES, "gguf/llama.gguf"), out + "x", "f16"], ["is a GGUF file already"])
    refused("no folder", [os.path.join(tmp, "nowhere"), out + "x", "f16"], ["nowhere"])
    refused("no place", [LLAMA, os.path.join(tmp, "no/where.gguf"), "f16"], ["no/where.gguf", "No such file"])
    refused("two arguments", [LLAMA, out + "x"], ["an argument is missing"])
    t, _ = read(os.path.join(LLAMA, "model.safetensors"))
    big = t["model.layers.0.mlp.up_proj.weight"]
    fill(big, 131072.0)
    hot = folder("hot", {"model.layers.0.mlp.up_proj.weight": big})
    refused("beyond f16", [hot, out + "x", "f16"], ["blk.0.ffn_up.weight", "131072", "bf16"])
    huge = t["model.layers.0.self_attn.o_proj.weight"]
    fill(huge, 1e9)
    hot = folder("hotter", {"model.layers.0.self_attn.o_proj.weight": huge})
    for kind in ("q8_0", "q4_0", "q5_1"):
        refused(f"scales beyond f16, {kind}", [hot, out + "x", kind], ["blk.0.attn_output.weight", "9.98244e+08", kind.upper(), "bf16"])
    hot = os.path.join(tmp, "hot")
    # what is no number is refused by tensor and element, in every type, a copy of the source's own included
    for name, tensor, code, said in (("nan", "model.layers.1.self_attn.q_proj.weight", b"\xc0\x7f", "nan"), ("inf", "model.norm.weight", b"\x80\xff", "-inf")):
        bad = read(os.path.join(LLAMA, "model.safetensors"))[0][tensor]
        bad[2][10:12] = code
        bad = folder(name, {tensor: bad})
        for kind in ("f32", "bf16", "q8_0"):
            gguf = {"model.norm.weight": "output_norm.weight"}.get(tensor, "blk.1.attn_q.weight")
            refused(f"{name} to {kind}", [bad, out + "x", kind], [gguf, "row 0, element 5", said])
    count.check("within bf16", lemma("quantize", hot, out, "bf16").returncode == 0)
    before = open(out, "rb").read()
    lemma("quantize", hot, out, "f16")
    count.check("a failure leaves the old file", open(out, "rb").read() == before)


def interrupted():
    """A signal while it writes to a file that was there: the file is the old one and nothing lies beside it."""
    n = 1 << 17
    dtype = read(os.path.join(LLAMA, "model.safetensors"))[0]["model.embed_tokens.weight"][0]
    with open(os.path.join(LLAMA, "config.json")) as f:
        hidden = json.load(f)["hidden_size"]
    large = folder("large", {"model.embed_tokens.weight": [dtype, [n, hidden], pack(dtype, [0.5]) * (n * hidden)]}, vocab_size=n)
    place = os.path.join(tmp, "place")
    os.makedirs(place)
    target = os.path.join(place, "t.gguf")
    with open(target, "wb") as f:
        f.write(b"old")
    p = subprocess.Popen([LEMMA, "quantize", large, target, "q5_1"], stderr=subprocess.PIPE, text=True)
    while p.poll() is None and os.listdir(place) == ["t.gguf"]:
        time.sleep(0.002)
    p.send_signal(signal.SIGINT)
    _, err = p.communicate(timeout=60)
    if p.returncode == 0:
        count.skip("interrupted", "it was done before the signal came")
        return
    count.check("interrupted", p.returncode == 130 and "interrupted" in err and os.listdir(place) == ["t.gguf"] and open(target, "rb").read() == b"old", (p.returncode, err, os.listdir(place)))


def speaks(name, path, vocab):
    """The written file's tokenizer gives the folder's ids."""
    dtype, (_, hidden), data = read(os.path.join(LLAMA, "model.safetensors"))[0]["model.embed_tokens.weight"]
    where = folder("speaks-" + name, {"model.embed_tokens.weight": [dtype, [vocab, hidden], bytearray(vocab * hidden * SIZE[dtype])]}, vocab_size=vocab)
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        source = os.path.join(path, file) if os.path.isdir(path) else path if file == "tokenizer.json" else ""
        if os.path.exists(source):
            shutil.copyfile(source, os.path.join(where, file))
    r = lemma("quantize", where, out, "q8_0")
    count.check(f"{name}: written", r.returncode == 0 and "stand-in" not in r.stderr, r.stderr)
    for text in TEXTS if r.returncode == 0 else ():
        a, b = lemma("tokenize", where, text), lemma("tokenize", out, text)
        count.check(f"{name}: {text!r}", a.returncode == 0 and a.stdout == b.stdout and a.stdout, (a.stdout, b.stdout, b.stderr))
    shutil.rmtree(where)


def sentencepiece():
    """BPE with byte fallback becomes scores, where they give the same ids; what they can't say is refused."""
    mark, level = "\u2581", {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    special = ["<unk>", "<s>", "</s>"]
    chars = [mark] + [chr(c) for c in range(33, 127)]
    base = special + [f"<0x{b:02X}>" for b in range(256)] + chars

    def make(name, merges, **changes):
        words = [a + b for a, b in merges]
        vocab = {w: i for i, w in enumerate(dict.fromkeys(base + words))}
        t = {"version": "1.0", "added_tokens": [{"id": i, "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for i, s in enumerate(special)],
             "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": mark}, {"type": "Replace", "pattern": {"String": " "}, "content": mark}]},
             "pre_tokenizer": None, "post_processor": None, "decoder": level,
             "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True,
                       "vocab": vocab, "merges": [list(m) for m in merges]}, **changes}
        path = os.path.join(tmp, name + ".json")
        with open(path, "w") as f:
            json.dump(t, f)
        return path, len(vocab)

    good = [("t", "h"), ("th", "e"), ("l", "l"), (mark, "t"), (mark + "t", "h"), (mark, "th"), ("o", "r"), ("l", "d"), (mark, mark)]
    speaks("scores", *make("scores", good))
    speaks("scores, first", *make("first", good, normalizer=None, pre_tokenizer={"type": "Metaspace", "replacement": mark, "prepend_scheme": "first", "split": False}))
    count.check("the prefix that GGUF has no key for", Reader(out).keys["lemma.tokenizer.prepend_scheme"][1] == b"first", Reader(out).keys.get("lemma.tokenizer.prepend_scheme"))
    for name, merges, why in (
        ("gap", [("b", "c"), ("a", "b"), ("ab", "c")], "two neighbours that make a token have no merge"),
        ("apart", [("a", "b"), ("b", "c"), ("ab", "c"), ("x", "y"), ("a", "bc")], "don't stand together"),
        ("bytes", [("<0x41>", "<0x42>")], "byte tokens"),
    ):
        path, n = make(name, merges)
        where = folder("mute-" + name, {"model.embed_tokens.weight": ["BF16", [n, 96], bytearray(n * 96 * 2)]}, vocab_size=n)
        shutil.copyfile(path, os.path.join(where, "tokenizer.json"))
        refused(f"{name}: refused", [where, out + "x", "f16"], ["tokenizer.json", "scores can't say", why])


def tokenizers():
    data = os.path.join(ROOT, "tests/data/tokenizer")
    speaks("bytes", os.path.join(data, "bytes.json"), 512)
    speaks("sentence", os.path.join(data, "sentence.json"), 520)
    for name, words in (("patterns", ["no name for what its pre-tokenizer does"]),):
        where = folder("mute-" + name, {"model.embed_tokens.weight": ["BF16", [600, 96], bytearray(600 * 96 * 2)]}, vocab_size=600)
        shutil.copyfile(os.path.join(data, name + ".json"), os.path.join(where, "tokenizer.json"))
        refused(f"{name}: refused", [where, out + "x", "f16"], ["tokenizer.json"] + words)
    sentencepiece()
    for path in sorted(glob.glob(os.path.join(SHARED, "text/tokenizers/*"))) if SHARED else []:
        if os.path.basename(path) not in ("qwen3", "smollm2", "tekken", "mistral_v1"):
            continue
        with open(os.path.join(path, "tokenizer.json")) as f:
            t = json.load(f)
        speaks(os.path.basename(path), path, 1 + max(list(t["model"]["vocab"].values()) + [a["id"] for a in t["added_tokens"]]))


try:
    types()
    refusals()
    interrupted()
    tokenizers()
finally:
    shutil.rmtree(tmp)
sys.exit(count.end())
