#!/usr/bin/env python3
"""usage: tools/peers/trace.py MODEL.gguf TRACE OUT.safetensors [--greedy N] [--threads N]      (with the Python of the peers' environment)

Lets llama.cpp run the token ids of TRACE's cases and writes what it says as a trace that `lemma diff` reads: at every position the arg-max and
the 64 best log-probabilities (in double from its float32 logits), and the bare arg-max continuation of N tokens (default 32). Keys and values
in float32, no flash attention. Its products quantize the activations to 8 bits: the trace says lane i8.
"""
import argparse
import hashlib
import os
import sys

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
from lib.fixture import pack, read, write  # noqa: E402
import peer  # noqa: E402

TOP = 64


def row_of(logits):
    """(arg-max, the best ids, their log-probabilities): equal ones in id order."""
    x = np.frombuffer(logits, dtype=np.float32).astype(np.float64)
    if not np.isfinite(x).all():
        peer.fail("the logits are not finite")
    lse = x.max() + np.log(np.exp(x - x.max()).sum())
    near = np.argpartition(-x, 4 * TOP)[: 4 * TOP] if x.size > 4 * TOP else np.arange(x.size)
    best = sorted(near.tolist(), key=lambda i: (-x[i], i))[:TOP]
    return best[0], best, [float(x[i] - lse) for i in best]


def run_case(p, ids, greedy):
    rows, n = [], len(ids)
    p.clear()
    for at in range(0, n, p.n_batch):
        part = ids[at : at + p.n_batch]
        p.decode([(0, at + i, t, True) for i, t in enumerate(part)])
        rows += [row_of(p.logits(i)) for i in range(len(part))]
    out = []
    for i in range(greedy):
        out.append(rows[-1][0] if not i else row_of(p.logits())[0])
        if i + 1 < greedy:
            p.decode([(0, n + i, out[-1], True)])
    return rows, out


def main():
    a = argparse.ArgumentParser(usage=__doc__.split("\n")[0][7:])
    a.add_argument("model")
    a.add_argument("trace")
    a.add_argument("out")
    a.add_argument("--greedy", type=int, default=32)
    a.add_argument("--threads", type=int, default=1)
    o = a.parse_args()
    given, _ = read(o.trace)
    cases = {k.split(".")[0]: np.frombuffer(bytes(v[2]), dtype="<i4").tolist() for k, v in given.items() if k.endswith(".ids") and k.count(".") == 1}
    p = peer.Llama(o.model, threads=o.threads, length=max(map(len, cases.values())) + o.greedy, exact=True)
    tensors = {}
    for k, ids in cases.items():
        rows, out = run_case(p, ids, o.greedy)
        tensors[f"{k}.ids"] = ["I32", [len(ids)], pack("I32", ids)]
        tensors[f"{k}.argmax"] = ["I32", [len(ids)], pack("I32", [r[0] for r in rows])]
        tensors[f"{k}.top.ids"] = ["I32", [len(ids), TOP], pack("I32", [i for r in rows for i in r[1]])]
        tensors[f"{k}.top.logprobs"] = ["F32", [len(ids), TOP], pack("F32", [v for r in rows for v in r[2]])]
        if out:
            tensors[f"{k}.greedy"] = ["I32", [len(out)], pack("I32", out)]
    with open(o.model, "rb") as f:
        sha = hashlib.file_digest(f, "sha256").hexdigest()
    write(o.out, tensors, {"trace_version": "1", "made_by": p.name(), "lane": "i8", "dtype": "float32", "weights_sha256": sha})


if __name__ == "__main__":
    try:
        main()
    except peer.Failed as e:
        sys.exit(f"trace.py: {e}")
