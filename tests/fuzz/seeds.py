#!/usr/bin/env python3
"""First inputs for the fuzz targets, from the tests' data, small ones. usage: seeds.py FOLDER (one folder a target below it)"""
import json
import os
import re
import shutil
import struct
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DATA, FIXTURES = os.path.join(ROOT, "tests/data"), os.path.join(ROOT, "tests/fixtures")
OUT = sys.argv[1]


def read(*path):
    with open(os.path.join(*path), "rb") as f:
        return f.read()


def seed(target, name, data):
    os.makedirs(os.path.join(OUT, target), exist_ok=True)
    with open(os.path.join(OUT, target, name), "wb") as f:
        f.write(data)


def names():
    """fuzz_files.c's own list."""
    table = re.search(r"names\[\] = \{(.*?)\};", read(ROOT, "tests/fuzz/fuzz_files.c").decode(), re.S)
    return re.findall(r'"([^"]+)"', table.group(1))


def files(name, parts):
    seed("files", name, b"".join(bytes([names().index(n)]) + struct.pack("<I", len(d)) + d for n, d in parts.items()))


def safetensors(tensors, metadata=None):
    """name -> (dtype, shape, bytes)"""
    head, data = {"__metadata__": metadata} if metadata else {}, b""
    for n, (dtype, shape, raw) in tensors.items():
        head[n] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + data


def models():
    shutil.copy(os.path.join(FIXTURES, "gguf/llama.gguf"), os.path.join(OUT, "gguf/llama.gguf"))
    seed("gguf", "all_types.gguf", read(DATA, "format/all_types.gguf"))
    seed("safetensors", "all_types.safetensors", read(DATA, "format/all_types.safetensors"))
    seed("safetensors", "llama.safetensors", read(FIXTURES, "llama/model.safetensors"))
    for d in sorted(os.listdir(FIXTURES)):
        if os.path.exists(os.path.join(FIXTURES, d, "config.json")):
            seed("config", d + ".json", read(FIXTURES, d, "config.json"))
    for d in sorted(os.listdir(os.path.join(DATA, "packed"))):
        if os.path.isdir(os.path.join(DATA, "packed", d)):
            files(d, {n: read(DATA, "packed", d, n) for n in ("config.json", "model.safetensors")})
    files("split", {f"m-0000{i}-of-00003.gguf": read(DATA, f"format/split-0000{i}-of-00003.gguf") for i in (1, 2, 3)})
    shard = [safetensors({n: ("F32", [4], bytes(16))}) for n in ("a.weight", "b.weight")]
    index = {"weight_map": {"a.weight": "model-00001-of-00002.safetensors", "b.weight": "model-00002-of-00002.safetensors"}}
    files("shards", {"config.json": b'{"model_type": "llama"}', "model.safetensors.index.json": json.dumps(index).encode(),
                     "model-00001-of-00002.safetensors": shard[0], "model-00002-of-00002.safetensors": shard[1]})
    text = {n: read(DATA, "tokenizer", n) for n in ("tokenizer_config.json",)}
    files("tokenizer", {"config.json": b'{"model_type": "llama"}', "model.safetensors": shard[0], "tokenizer.json": read(DATA, "tokenizer/added.json"), **text})


def tokenizers():
    for n in sorted(os.listdir(os.path.join(DATA, "tokenizer"))):
        if n.endswith(".json") and "cases" not in n and n != "tokenizer_config.json":
            seed("tokenizer", n, read(DATA, "tokenizer", n))


def states():
    """fuzz_state.c's program, 3 positions, in each of its six types: bytes of an element, and of a row that has scales."""
    for kind, (element, scales) in enumerate([(4, 0), (2, 0), (2, 0), (1, 4), (2, 0), (8, 0)]):
        wide = 8 if kind == 5 else 4
        paged = [struct.pack("<II", 0, 1) + bytes(3 * heads * (n * element + scales)) for heads, n in ((2, 5), (1, 4))]
        body = struct.pack("<IiI", 3, 0, 3) + b"".join(paged) + struct.pack("<I", 1) + bytes(12 * wide)
        check = struct.pack("<III", 0, 2, 1) + bytes(12 * wide)
        seed("state", f"none{kind}", bytes([kind]) + body + struct.pack("<I", 0))
        seed("state", f"one{kind}", bytes([kind]) + body + struct.pack("<I", 1) + check)


def evidence():
    version = int(re.search(rb"LM_CONTRACT_VERSION (\d+)", read(ROOT, "include/lemma/lemma.h")).group(1))
    fields = ("weights_sha256 backend lane kv contract temperature top_k top_p min_p repeat_penalty repeat_last_n seed prompt ids logits").split()
    sampler = {"temperature": 0.5, "top_k": 3, "top_p": 1, "min_p": 0, "repeat_penalty": 1, "repeat_last_n": 64, "seed": "7"}
    receipt = {"receipt_version": 1, "made_by": "x", "device": "cpu", "arch": "llama", "weights_sha256": "0" * 64, "backend": "cpu", "lane": "f32",
               "kv": "f16", "contract": version, "sampler": sampler, "prompt": [1, 2], "steps": [{"id": 3, "logits": "1" * 64}], "finish": "length",
               "digests": {f: "0" * 16 for f in fields}}
    seed("receipt", "receipt.json", json.dumps(receipt).encode())

    def numbers(*shape):
        n = 1
        for d in shape:
            n *= d
        return "F32", list(shape), struct.pack("<f", 0.25) * n

    def ids(*shape):
        n = 1
        for d in shape:
            n *= d
        return "I32", list(shape), struct.pack("<i", 3) * n
    tensors = {"c0.ids": ids(4), "c0.hidden.embed": numbers(4, 8), "c0.hidden.layer.0": numbers(4, 8), "c0.hidden.norm": numbers(4, 8),
               "c0.logits": numbers(4, 16), "c0.argmax": ids(4), "c0.greedy": ids(2), "c0.greedy.logits": numbers(2, 16), "c1.ids": ids(5),
               "c1.logits.last": numbers(16), "c1.top.logprobs": numbers(5, 1), "c1.top.ids": ids(5, 1), "c1.tap.embed": numbers(5, 8)}
    said = {"trace_version": "1", "weights_sha256": "0" * 64, "cached_vs_full_max_dlogit": "0.001", "dtype": "float32", "embed_scale_bf16": "2.0",
            "c1.gate": json.dumps({"top1_min": 1, "top1_quarter_min": 1, "max_dlogprob": 0.002})}
    seed("trace", "trace.safetensors", safetensors(tensors, said))


for target in ("gguf", "safetensors", "config"):
    os.makedirs(os.path.join(OUT, target), exist_ok=True)
models(), tokenizers(), states(), evidence()
