#!/usr/bin/env python3
"""tests/fixtures/bf16: transformers' bfloat16 run (eager) of small fixtures, which lane hf-bf16 must meet.

usage: make_bf16.py [--out DIR] [NAME ...]                    default: tests/fixtures/bf16, and every family of FAMILIES

One trace a family, NAME.safetensors: the prompts of the fixture's own oracle.safetensors, whole logits and the best 64, no hidden states. Made
by tools/export_oracle.py, which see for what it needs.
"""
import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FAMILIES = ("llama", "llama3", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "smollm3", "granite", "olmo2", "starcoder2", "gemma4_unified")


def prompts(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    found = {}
    for name, t in header.items():
        if name.startswith("c") and name.endswith(".ids") and name.count(".") == 1:
            a, b = t["data_offsets"]
            found[int(name[1:-4])] = list(struct.unpack(f"<{(b - a) // 4}i", data[a:b]))
    return [found[k] for k in sorted(found)]


def main():
    ap = argparse.ArgumentParser(description="bfloat16 traces of small fixtures")
    ap.add_argument("--out", default=os.path.join(ROOT, "tests/fixtures/bf16"))
    ap.add_argument("name", nargs="*", default=FAMILIES)
    args = ap.parse_args()
    os.makedirs(args.out, exist_ok=True)
    for name in args.name:
        folder = os.path.join(ROOT, "tests/fixtures", name)
        with tempfile.TemporaryDirectory() as tmp:
            ids = os.path.join(tmp, "ids.json")
            with open(ids, "w") as f:
                json.dump(prompts(os.path.join(folder, "oracle.safetensors")), f)
            subprocess.run([sys.executable, os.path.join(ROOT, "tools/export_oracle.py"), "--model", folder, "--out", tmp, "--prompt-ids-json", ids,
                            "--dtype", "bfloat16", "--hidden", "none", "--greedy", "0", "--threads", "1"], check=True)
            with open(os.path.join(tmp, "oracle.safetensors"), "rb") as f, open(os.path.join(args.out, f"{name}.safetensors"), "wb") as to:
                to.write(f.read())


if __name__ == "__main__":
    main()
