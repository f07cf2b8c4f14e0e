#!/usr/bin/env python3
"""lemma diff ORIGINAL QUANTIZED --quant, --per-tensor, --per-layer: the numbers again from dumped logits, and a tensor that was damaged on
purpose is found. usage: B=build test_quant_diff.py"""

import json
import math
import os
import shutil
import struct
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE), os.path.join(os.path.dirname(HERE), "lib")]
import trace_file as st  # noqa: E402
from drive import FIXTURES, LLAMA, LLAMA_GGUF, check, finish, good, lemma, refused  # noqa: E402
from gguf_file import Reader  # noqa: E402

V = 320
IDS = [(i * 6007 + i * i * 17 + 3) % V for i in range(32)]
folder = tempfile.TemporaryDirectory()


def path(name):
    return os.path.join(folder.name, name)


def listed(ids):
    return ",".join(map(str, ids))


def cost(*args):
    return json.loads(good("diff", *args, "--json"))


def logprobs(model):
    good("dump", model, "--ids", listed(IDS), "-o", path("logits.st"))
    x = st.values(st.read(path("logits.st"))[0]["c0.logits"])
    out = []
    for i in range(len(IDS)):
        row = x[i * V : i * V + V]
        most = max(row)
        lse = most + math.log(math.fsum(math.exp(v - most) for v in row))
        out.append([v - lse for v in row])
    return out


def close(a, b, rel=1e-6, least=1e-12):
    return abs(a - b) <= rel * abs(b) + least


def whole(packed):
    a, b = logprobs(LLAMA), logprobs(packed)
    kl = [math.fsum(math.exp(x) * (x - y) for x, y in zip(p, q)) for p, q in zip(a, b)]
    best = [(min(range(V), key=lambda v: (-p[v], v)), min(range(V), key=lambda v: (-q[v], v))) for p, q in zip(a, b)]
    out = cost(LLAMA, packed, "--quant", "--ids", listed(IDS))
    check("mean KL(A|B)", close(out["mean"], sum(kl) / len(kl)), f"{out['mean']} {sum(kl) / len(kl)}")
    check("largest and p99", close(out["max"], max(kl)) and close(out["p99"], max(kl)) and out["max_position"] == kl.index(max(kl)))
    check("flips", [(f["position"], f["A"], f["B"]) for f in out["flips"]] == [(i, p, q) for i, (p, q) in enumerate(best) if p != q], str(out["flips"]))
    check("top-1", close(out["top1"], sum(p == q for p, q in best) / len(best)))
    nll = [[-r[IDS[i + 1]] for i, r in enumerate(x[:-1])] for x in (a, b)]
    check("likelihoods", close(out["nll_a"], sum(nll[0]) / 31) and close(out["nll_b"], sum(nll[1]) / 31) and close(out["nll_difference"], out["nll_b"] - out["nll_a"], 1e-5))
    check("no parts unless asked for", out["parts"] == [] and out["by"] == "whole" and out["all_equal_b"] is None)
    none = cost(LLAMA, LLAMA, "--per-tensor", "--ids", listed(IDS))
    check("a model against itself", none["mean"] == 0 and none["top1"] == 1 and not any(p["changed"] for p in none["parts"]) and none["all_equal_b"], str(none["mean"]))


def damaged(source, tensor, name):
    """source with that Q8_0 tensor's scales of every fourth block doubled"""
    g = Reader(source)
    start = (g.at + 31) // 32 * 32
    kind, dims, data = g.tensors[tensor]
    check(f"{tensor} is Q8_0", kind == 8)
    at = start + bytes(g.data[start:]).index(bytes(data))
    out = bytearray(g.data)
    for block in range(0, dims[0] * dims[1] // 32, 4):
        scale = struct.unpack_from("<e", out, at + 34 * block)[0]
        struct.pack_into("<e", out, at + 34 * block, 2 * scale)
    with open(path(name), "wb") as f:
        f.write(out)
    return path(name)


def parts(packed):
    out = cost(LLAMA, packed, "--per-tensor", "--ids", listed(IDS))
    names = [p["name"] for p in out["parts"]]
    check("every tensor of the file once", sorted(names) == sorted(Reader(packed).tensors), str(names))
    check("the dearest first", [p["kl"] for p in out["parts"]] == sorted((p["kl"] for p in out["parts"]), reverse=True))
    check("norms are as they were", all(not p["changed"] and p["kl"] == 0 for p in out["parts"] if "norm" in p["name"]))
    check("quantized ones are not", all(p["changed"] and p["kl"] > 0 and p["weight_error"] > 1e-3 for p in out["parts"] if p["type"] == "Q8_0"))
    check("all together are B, bit for bit", out["all_equal_b"] is True)
    check("and cost what B costs", out["mean"] == cost(LLAMA, packed, "--quant", "--ids", listed(IDS))["mean"])
    layers = cost(LLAMA, packed, "--per-layer", "--ids", listed(IDS))
    check("layers", {p["name"] for p in layers["parts"]} == {"layer 0", "layer 1", "layer 2", "layer 3", "token_embd.weight", "output_norm.weight"}, str([p["name"] for p in layers["parts"]]))
    alone = next(p for p in out["parts"] if p["name"] == "token_embd.weight")
    check("a part alone is the same however the rest is grouped", alone in layers["parts"])
    check("a layer's tensors together", all(p["bytes"] == sum(t["bytes"] for t in out["parts"] if t["name"].startswith(f"blk.{p['name'][6:]}.")) for p in layers["parts"] if p["name"].startswith("layer")))
    same = cost(LLAMA, packed, "--per-tensor", "--ids", listed(IDS), "--threads", "3", "--cpu-level", "c")
    check("the same on other threads and level", same["parts"] == out["parts"] and same["mean"] == out["mean"])
    for tensor in ("blk.2.ffn_up.weight", "blk.3.attn_k.weight"):
        bad = damaged(packed, tensor, "damaged.gguf")
        got = cost(LLAMA, bad, "--per-tensor", "--ids", listed(IDS))
        was = {p["name"]: p["kl"] for p in out["parts"]}
        top = got["parts"][0]
        check(f"{tensor} tops the list", top["name"] == tensor and top["kl"] > 10 * was[tensor] and top["weight_error"] > 0.1, str(got["parts"][:2]))
        check("the others cost what they did", all(p["kl"] == was[p["name"]] for p in got["parts"][1:]))
        text = good("diff", LLAMA, bad, "--per-layer", "--ids", listed(IDS))
        lines = text.split("\n")
        first = lines[next(i for i, line in enumerate(lines) if line.startswith(" KL alone")) + 1]
        check("the text's first line is its layer", first.endswith(f"layer {tensor[4]}"), text)
        check("the text ends with the check", lines[-2] == "A with all of them is B, bit for bit", text)


def families():
    """Fused, stacked, permuted, tied, latent and recurrent weights: the two programs meet whatever the files call their tensors."""
    for family in ("phi3", "gpt_oss", "deepseek_v3", "qwen3_next", "gemma3"):
        packed = path(f"{family}.gguf")
        good("quantize", os.path.join(FIXTURES, family), packed, "q4_0")
        out = cost(os.path.join(FIXTURES, family), packed, "--per-tensor", "--ids", "5,17,200,3,42,99,7,7,150,31,11,12")
        if family == "phi3":  # its rope factors are float32 in the file
            check("phi3: all together are nearly B", not out["all_equal_b"] and close(out["all_mean"], out["mean"], 1e-3), str(out["all_mean"]))
        else:
            check(f"{family}: all together are B", out["all_equal_b"] is True and out["all_mean"] == out["mean"])
        check(f"{family}: something changed", out["parts"][0]["kl"] > 0)


def another_program(packed):
    """What is not a quantized file of the original is told apart."""
    bad = path("bad")
    shutil.copytree(LLAMA, bad)
    with open(os.path.join(bad, "config.json")) as f:
        config = json.load(f)
    config["rms_norm_eps"] = 0.01
    with open(os.path.join(bad, "config.json"), "w") as f:
        json.dump(config, f)
    out = cost(bad, packed, "--per-tensor", "--ids", listed(IDS))
    check("other numbers in the config show", out["all_equal_b"] is False)
    text = good("diff", bad, packed, "--per-tensor", "--ids", listed(IDS))
    check("and are said", "something that is no weight" in text, text[-300:])
    refused("diff", os.path.join(FIXTURES, "mistral"), packed, "--quant", "--ids", "1,2,3", says=["not the same program"])
    refused("diff", LLAMA, LLAMA_GGUF, "--quant", says=["--ids"])
    refused("diff", LLAMA, os.path.join(LLAMA, "oracle.safetensors"), "--quant", "--ids", "1,2", says=["no model to run"])
    refused("diff", LLAMA, "--quant", "--ids", "1,2", says=["two sides"])
    refused("diff", LLAMA, packed, "--quant", "--ids", "1", says=["1 of them: give 2 to"])
    refused("diff", LLAMA, packed, "--quant", "--ids", "1,320", says=["320 at position 1"])
    refused("diff", LLAMA, packed, "--per-tensor", "--per-layer", "--ids", "1,2", says=["one of"])
    refused("diff", LLAMA, packed, "--quant", "--samples", "2", "--ids", "1,2", says=["--samples"])


packed = path("q8.gguf")
good("quantize", LLAMA, packed, "q8_0")
whole(packed)
parts(packed)
families()
another_program(packed)
folder.cleanup()
finish()
