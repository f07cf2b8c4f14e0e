#!/usr/bin/env python3
"""usage: tools/peers/kl.py LEMMA MODEL.gguf TEXT [--ctx 512] [--windows 4] [--lanes f32,i8] [--peers llama,ik] [--ref FILE] [--json]
(with the Python of the peers' environment, which tools/peers/install makes)

How far llama.cpp, ik_llama.cpp and lemma's lanes are from what the file's weights say: mean KL from the f64 arbiter's distribution, over the
scored half of each window, and how often the best id is the same. The reference is what `LEMMA ppl --backend f64 --save` writes (the best 64
ids and the rest as one: docs/quality.md); --ref keeps it, or uses it where it is there. The peers run as they come: cache in f16, flash
attention where they like. An engine whose mean is above 0.1 computes another model than the file's, and is marked WRONG; exit status 1 is for
a lane of lemma's that is."""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
import numpy as np  # noqa: E402
import peer  # noqa: E402
from lib.fixture import read  # noqa: E402


WRONG = 0.1  # nats: 8-bit activations cost some 0.003


def run(*command):
    r = subprocess.run([str(x) for x in command], capture_output=True, text=True)
    if r.returncode:
        sys.exit(f"kl.py: {' '.join(map(str, command))[:200]}: status {r.returncode}: {r.stderr.strip()}")
    return r.stdout


def array(tensor):
    return np.frombuffer(bytes(tensor[2]), "<i4" if tensor[0] == "I32" else "<f4").reshape(tensor[1])


def divergence(row, ids, listed, rest):
    """KL of the reference (log-probabilities of ids, and of all others as one) from the logits of a row, in double precision."""
    x = np.frombuffer(row, "<f4").astype(np.float64)
    x -= x.max()
    x -= math.log(np.exp(x).sum())
    tail = np.delete(x, ids)
    total = float(np.exp(listed) @ (listed - x[ids]))
    return total + (math.exp(rest) * (rest - math.log(np.exp(tail).sum())) if len(tail) else 0)


def child(engine, model, threads, ref):
    """In a process of its own: two engines can't share one, and either may abort."""
    tensors, meta = read(ref)
    kl, same, k = [], 0, 0
    try:
        p = peer.engine(engine)(model, int(threads), length=max(len(array(t)) for n, t in tensors.items() if n.count(".") == 1))
        while f"c{k}.ids" in tensors:
            ids, top, lp, rest = (array(tensors[f"c{k}.{x}"]) for x in ("ids", "top.ids", "top.logprobs", "top.rest"))
            first = int(meta[f"c{k}.scored_from"])
            p.clear()
            for at in range(0, len(ids), p.n_batch):
                part = ids[at : at + p.n_batch]
                p.decode([(0, at + i, int(t), True) for i, t in enumerate(part)])
                for i in range(len(part)):
                    if first <= at + i < len(ids) - 1:
                        row = bytes(p.logits(i))
                        kl.append(divergence(row, top[at + i], lp[at + i].astype(np.float64), float(rest[at + i])))
                        same += int(np.frombuffer(row, "<f4").argmax()) == int(top[at + i][0])
            k += 1
    except peer.Failed as e:
        sys.exit(f"{engine}: {e}")
    print(json.dumps({"engine": p.name(), "mean": float(np.mean(kl)), "p99": float(np.quantile(kl, 0.99)), "top1": same / len(kl), "tokens": len(kl)}))


def main(argv):
    if argv[:1] == ["--child"]:
        return child(*argv[1:])
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("lemma")
    a.add_argument("model")
    a.add_argument("text")
    a.add_argument("--ctx", type=int, default=512)
    a.add_argument("--windows", type=int, default=4)
    a.add_argument("--lanes", type=lambda x: [y for y in x.split(",") if y], default=["f32", "i8"])
    a.add_argument("--peers", type=lambda x: x.split(","), default=["llama"])
    a.add_argument("--threads", type=int, default=os.cpu_count())
    a.add_argument("--ref")
    a.add_argument("--json", action="store_true")
    o = a.parse_args(argv)
    with tempfile.TemporaryDirectory() as tmp:
        ref = o.ref or os.path.join(tmp, "ref.safetensors")
        if not os.path.exists(ref):
            run(o.lemma, "ppl", o.model, o.text, "--backend", "f64", "-c", o.ctx, "--windows", o.windows, "--threads", o.threads, "--save", ref)
        rows = []
        for lane in o.lanes:
            d = json.loads(run(o.lemma, "ppl", o.model, "--kl", ref, "--lane", lane, "--threads", o.threads, "--json"))
            rows.append({"engine": f"lemma {lane}", **{k: d["kl"][k] for k in ("mean", "p99", "top1")}, "tokens": d["kl"]["positions"]})
        for engine in o.peers:
            rows.append(json.loads(run(sys.executable, os.path.abspath(__file__), "--child", engine, o.model, o.threads, ref)))
    for r in rows:
        r["wrong"] = not r["mean"] <= WRONG
    bad = any(r["wrong"] for r in rows[: len(o.lanes)])
    if o.json:
        print(json.dumps({"model": o.model, "text": o.text, "rows": rows}))
        return bad
    print(f"{o.model}, {o.text}: KL from the f64 arbiter\n\n{'':<44} {'mean':>10} {'p99':>10} {'top-1':>8} {'tokens':>7}")
    for r in rows:
        print(f"{r['engine']:<44} {r['mean']:>10.3g} {r['p99']:>10.3g} {100 * r['top1']:>7.2f}% {r['tokens']:>7}{'  WRONG' if r['wrong'] else ''}")
    return bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
