#!/usr/bin/env python3
"""usage: tools/peers/compare.py LEMMA [FAMILY ...]      (run by `make test-peers`, with the Python of the peers' environment)

Writes every fixture as an f32 GGUF with `LEMMA quantize`, lets llama.cpp (the xllamacpp package's build) continue each of the trace's
prompts by 24 greedy tokens, and prints one row per family: equal ids, or why they can't be. A family that parts without a known reason is
a failure, and so is a known reason that no longer holds: the last line counts them.
"""
import glob
import json
import os
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
from lib.fixture import read  # noqa: E402

# What llama.cpp doesn't read or can't run of a fixture, checked with the build that the first line names.
WHY = {
    "deepseek_v2": "the magnitude of rope (mscale differs from mscale_all_dim) has no key",
    "deepseek_v2_lite": "q without a low rank is known in models of 26 or 27 layers only",
    "deepseek_v32": "no architecture in GGUF",
    "gemma2": "the query scale (query_pre_attn_scalar) has no key",
    "gemma3": "the query scale (query_pre_attn_scalar) has no key",
    "gemma3n": "per-layer inputs are taken to be 256 wide",
    "gemma4_e2b": "which layer's cache is shared is fixed",
    "glm_moe_dsa": "ends in an assertion",
    "gpt_oss": "the limit of the clamped SwiGLU (swiglu_limit) has no key",
    "mistral": "the window is not read for llama",
    "phi3": "the long factors are taken by the context allocated, not by the length of the sequence",
    "qwen3_moe": "dense layers among the sparse ones",
    "qwen3_next": "key and value heads are taken to be of one size",
    "smollm3": "which layers have no rope is fixed",
    "starcoder2": "the window is not read",
}
SKIP = {"tower"}  # 1024 tokens through 48 layers: no family of its own


def ints(tensor):
    return list(struct.unpack(f"<{len(tensor[2]) // 4}i", tensor[2]))


def child(model, trace):
    """In a process of its own, which llama.cpp may abort: prints "equal K of N" per case."""
    import xllamacpp as xl
    p = xl.CommonParams()
    p.model.path, p.n_ctx, p.n_parallel, p.warmup, p.cpuparams.n_threads = model, 2048, 1, False, 1
    p.cache_type_k = p.cache_type_v = xl.ggml_type.GGML_TYPE_F32
    p.flash_attn_type = xl.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xl.Server(p)
    tensors, k = read(trace)[0], 0
    while f"c{k}.ids" in tensors:
        want = ints(tensors[f"c{k}.greedy"])
        r = server.handle_completions({"prompt": ints(tensors[f"c{k}.ids"]), "max_tokens": len(want), "temperature": 0, "top_k": 1, "samplers": ["top_k"], "repeat_penalty": 1.0, "logprobs": 1, "cache_prompt": False})
        got = [c["id"] for c in r["choices"][0]["logprobs"]["content"]]
        n = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
        print(f"equal {n} of {len(want)}", flush=True)
        k += 1


def folder_for(name, folder, to):
    """The fixture with a vocabulary of plain words: the server leaves out tokens that are parts of a character. No id of the trace ends a reply."""
    os.makedirs(to)
    for f in os.listdir(folder):
        if f.startswith("model"):
            os.symlink(os.path.join(folder, f), os.path.join(to, f))
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    text = config.get("text_config", config)
    tensors = read(os.path.join(folder, "oracle.safetensors"))[0]
    seen = {i for k, t in tensors.items() if k.count(".") == 1 and k.endswith(("ids", "greedy")) for i in ints(t)}
    text["bos_token_id"] = text["eos_token_id"] = max(set(range(text["vocab_size"])) - seen)
    with open(os.path.join(to, "config.json"), "w") as f:
        json.dump(config, f)
    # the byte-level alphabet's ASCII half, then words
    letters = [chr(c) if 33 <= c < 127 else chr(256 + (c if c < 33 else 33)) for c in range(128)]
    vocab = {(letters[i] if i < 128 else f"w{i}."): i for i in range(text["vocab_size"])}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    with open(os.path.join(to, "tokenizer.json"), "w") as f:
        json.dump({"added_tokens": [], "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
                   "model": {"type": "BPE", "vocab": vocab, "merges": []}}, f)


def judge(lemma, name, folder, tmp):
    """(equal, what to say)"""
    source = os.path.join(tmp, "model")  # not the family's name, from which llama.cpp draws conclusions
    folder_for(name, folder, source)
    out = os.path.join(tmp, "model.gguf")
    r = subprocess.run([lemma, "quantize", source, out, "f32"], capture_output=True, text=True)
    if r.returncode:
        return False, r.stderr.strip()
    r = subprocess.run([sys.executable, os.path.abspath(__file__), "--child", out, os.path.join(folder, "oracle.safetensors")], capture_output=True, text=True, timeout=300)
    rows = [x for x in r.stdout.splitlines() if x.startswith("equal ")]
    if r.returncode or not rows:
        said = [x for x in (r.stderr + r.stdout).splitlines() if " E " in x or "ASSERT" in x]
        return False, "does not run: " + (said[0].split(" E ")[-1] if said else f"status {r.returncode}")
    return all(x == "equal 24 of 24" for x in rows), ", ".join(x[6:] for x in rows)


def main(lemma, wanted):
    import xllamacpp as xl
    print(f"llama.cpp as built into xllamacpp ({str(xl.BUILD_INFO)[:80]})")
    fine = wrong = known = 0
    for config in sorted(glob.glob(os.path.join(ROOT, "tests/fixtures/*/config.json"))):
        folder = os.path.dirname(config)
        name = os.path.basename(folder)
        if name in SKIP or (wanted and name not in wanted) or not os.path.exists(os.path.join(folder, "oracle.safetensors")):
            continue
        with tempfile.TemporaryDirectory() as tmp:
            equal, said = judge(lemma, name, folder, tmp)
        why = WHY.get(name)
        fine, known, wrong = fine + (equal and not why), known + (not equal and bool(why)), wrong + (equal == bool(why))
        verdict = "equal" if equal and not why else "parts" if not equal and why else "WRONG"
        print(f"{name:17} {verdict:6} {why + ': ' if why else ''}{said}", flush=True)
    print(f"{fine} equal, {known} part for a known reason, {wrong} wrong")
    return wrong > 0 or not fine


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        sys.exit(main(os.path.abspath(sys.argv[1]), set(sys.argv[2:])))
