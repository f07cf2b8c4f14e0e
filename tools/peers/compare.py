#!/usr/bin/env python3
"""usage: tools/peers/compare.py LEMMA [FAMILY ...]      (run by `make test-peers`, with the Python of the peers' environment)

Writes every fixture as an f32 GGUF with `LEMMA quantize`, lets llama.cpp (as llama-cpp-python builds it; cache in f32, no flash attention)
continue each of the trace's prompts by 24 greedy tokens, and prints one row per family: equal ids, or why they can't be. A family that
parts without a known reason is a failure, and so is a known reason that no longer holds: the last line counts them.
"""
import glob
import os
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
from lib.fixture import read  # noqa: E402

# What llama.cpp does not read or cannot run of a fixture.
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
    import peer

    try:
        tensors, k = read(trace)[0], 0
        p = peer.Llama(model, exact=True)
        while f"c{k}.ids" in tensors:
            want = ints(tensors[f"c{k}.greedy"])
            got = p.greedy(ints(tensors[f"c{k}.ids"]), len(want))
            n = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), len(want))
            print(f"equal {n} of {len(want)}", flush=True)
            k += 1
    except peer.Failed as e:
        sys.exit(f"{e}")


def judge(lemma, folder, tmp):
    """(equal, what to say)"""
    source = os.path.join(tmp, "model")  # not the family's name, from which llama.cpp draws conclusions
    os.symlink(folder, source)
    out = os.path.join(tmp, "model.gguf")
    r = subprocess.run([lemma, "quantize", source, out, "f32"], capture_output=True, text=True)
    if r.returncode:
        return False, r.stderr.strip()
    try:
        r = subprocess.run([sys.executable, os.path.abspath(__file__), "--child", out, os.path.join(folder, "oracle.safetensors")], capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return False, "does not end"
    rows = [x for x in r.stdout.splitlines() if x.startswith("equal ")]
    if r.returncode or not rows:
        said = [x for x in r.stderr.splitlines() if "ASSERT" in x or "abort" in x] or r.stderr.strip().splitlines()[-1:]
        return False, f"does not run: {said[0].strip() if said else ''} (status {r.returncode})"
    return all(x == "equal 24 of 24" for x in rows), ", ".join(x[6:] for x in rows)


def main(lemma, wanted):
    r = subprocess.run([sys.executable, "-c", "import peer; print(peer.Llama.name(), peer.Llama.features(), sep=': ')"], cwd=os.path.dirname(os.path.abspath(__file__)), capture_output=True, text=True)
    if r.returncode:
        sys.exit(f"compare.py: {sys.executable} has no llama-cpp-python that works: {r.stderr.strip()[-300:]}")
    print(r.stdout, end="", flush=True)
    fine = wrong = known = 0
    for config in sorted(glob.glob(os.path.join(ROOT, "tests/fixtures/*/config.json"))):
        folder = os.path.dirname(config)
        name = os.path.basename(folder)
        if name in SKIP or (wanted and name not in wanted) or not os.path.exists(os.path.join(folder, "oracle.safetensors")):
            continue
        with tempfile.TemporaryDirectory() as tmp:
            equal, said = judge(lemma, folder, tmp)
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
