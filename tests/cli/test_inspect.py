#!/usr/bin/env python3
"""lemma inspect: the fixtures in both formats, unknown and broken files."""
import json
import os
import shutil
import struct
import tempfile

from drive import FIXTURES, LLAMA, LLAMA_GGUF, check, finish, good, lemma, refused

with open(os.path.join(LLAMA, "model.safetensors"), "rb") as f:
    n = struct.unpack("<Q", f.read(8))[0]
    head = json.loads(f.read(n))
    head.pop("__metadata__", None)

j = json.loads(good("inspect", LLAMA, "--json", "--tensors", "--meta"))
elements = 0
for t in head.values():
    k = 1
    for d in t["shape"]:
        k *= d
    elements += k
check("kind and arch", j["kind"] == "Hugging Face folder" and j["arch"] == "llama" and j["refused"] is None, str(j)[:300])
check("parameters", j["parameters"] == elements and j["tensors"] == len(head))
check("every tensor, as the file has it", {t["name"]: (t["type"], t["shape"], t["offset"] - 8 - n, t["bytes"]) for t in j["tensor_list"]} ==
      {k: (t["dtype"], t["shape"], t["data_offsets"][0], t["data_offsets"][1] - t["data_offsets"][0]) for k, t in head.items()})
check("types add up", sum(t["tensors"] for t in j["types"]) == j["tensors"] and sum(t["bytes"] for t in j["types"]) ==
      sum(t["bytes"] for t in j["tensor_list"]))
check("metadata", j["metadata"]["hidden_size"] == {"type": "int", "n": 1, "value": 96}, str(j["metadata"].get("hidden_size")))
p = j["program"]
check("program", p["layers"] == 4 and p["hidden"] == 96 and p["vocab"] == 320 and sum(k["ops"] for k in p["kinds"]) == p["ops"])
check("cache bytes", p["cache_bytes_per_token"] == sum(c["bytes_per_token"] for c in p["caches"]) > 0)
by = {t["name"]: t["used_by"] for t in j["tensor_list"]}
check("who uses what", by["model.layers.2.self_attn.q_proj.weight"] == "layer.2.attn.q" and by["model.embed_tokens.weight"] == "embed"
      and all(by.values()), str(by)[:400])
check("no tokenizer", j["tokenizer_ok"] is False and j["tokenizer"])

g = json.loads(good("inspect", LLAMA_GGUF, "--json", "--tensors", "--meta"))
check("GGUF", g["kind"].startswith("GGUF ") and g["parameters"] == j["parameters"] and g["program"]["ops"] == p["ops"] and g["tokenizer_ok"], str(g)[:300])
tokens = g["metadata"]["tokenizer.ggml.tokens"]
check("long arrays are abbreviated", tokens["type"] == "array of string" and tokens["n"] > 200 and len(tokens["value"]) == 9 and
      tokens["value"][-1] == "…", str(tokens)[:200])

for name in sorted(os.listdir(FIXTURES)):
    if os.path.isfile(os.path.join(FIXTURES, name, "config.json")):
        r = lemma("inspect", os.path.join(FIXTURES, name), "--json", "--tensors", "--meta")
        ok = r.returncode == 0 and json.loads(r.stdout)["tensors"] > 0
        check(f"inspects {name}", ok, r.stderr)

out = good("inspect", LLAMA, "--tensors", "--meta")
check("text", all(s in out for s in ("Hugging Face folder", "parameters  283488", "BF16", "63 ops", "hidden_size = 96", "-> layer.3.ffn.down",
                                      "skipped     nothing")), out[:600])

with tempfile.TemporaryDirectory() as tmp:  # an unknown family can be looked at, and says why it doesn't run
    for f in ("config.json", "model.safetensors"):
        shutil.copy(os.path.join(LLAMA, f), tmp)
    path = os.path.join(tmp, "config.json")
    with open(path) as f:
        config = json.load(f)
    config["model_type"] = "hovercraft"
    with open(path, "w") as f:
        json.dump(config, f)
    j = json.loads(good("inspect", tmp, "--json"))
    check("an unknown family", "hovercraft" in j["refused"] and j["tensors"] == len(head) and "program" not in j, str(j)[:300])
    config["model_type"] = "evil\x1b[2J\nname"
    with open(path, "w") as f:
        json.dump(config, f)
    out = good("inspect", tmp, "--meta")
    check("no control characters reach the terminal", "\x1b" not in out and "\nname" not in out, repr(out[:300]))

    broken = os.path.join(tmp, "broken.gguf")
    with open(LLAMA_GGUF, "rb") as f:
        data = f.read()
    for cut in (0, 3, 10, 24, 1000, len(data) // 2, len(data) - 1):
        with open(broken, "wb") as f:
            f.write(data[:cut])
        refused("inspect", broken, says=["broken.gguf"])
    refused("inspect", os.path.join(tmp, "none"), says=["none"])
    refused("inspect", tmp + "/config.json", says=["config.json"])
refused("inspect", says=["usage"])
refused("inspect", LLAMA, "--what", says=["--what"])
check("help", "--tensors" in good("inspect", "-h"))
finish()
