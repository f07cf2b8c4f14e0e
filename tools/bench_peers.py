#!/usr/bin/env python3
"""lemma and llama.cpp on the same GGUF file, in turns: each round measures a cell with one, then with the other, so that both see the same
machine. Prints both rates and their ratio (medians over the rounds; the ratio's spread is of the rounds' own ratios). Every measurement is a
process of its own, with a warm-up before its one timed run; llama.cpp runs through llama-cpp-python, with its defaults.

Exit status: 0, 1 when a measurement failed, 2 a usage error, 3 when the peer isn't installed."""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time

PACKAGE = "llama-cpp-python"


# ---- the peer, in its own Python ------------------------------------------------------------------------------------------------------
class Llama:
    """llama.cpp with room for `batch` sequences of `length` tokens."""

    def __init__(self, path, threads, batch, length):
        import llama_cpp as c
        self.c, self.n_seq = c, batch
        self.quiet = c.llama_log_callback(lambda level, text, data: None)
        c.llama_log_set(self.quiet, None)
        c.llama_backend_init()
        mp = c.llama_model_default_params()
        mp.n_gpu_layers = 0
        self.model = c.llama_model_load_from_file(path.encode(), mp)
        if not self.model:
            sys.exit(f"llama.cpp can't read {path}")
        cp = c.llama_context_default_params()
        cp.n_ctx = batch * (-(-length // 256) * 256)
        cp.n_batch = max(512, length, batch)
        cp.n_seq_max = batch
        cp.n_threads = cp.n_threads_batch = threads
        self.ctx = c.llama_init_from_model(self.model, cp)
        if not self.ctx:
            sys.exit("llama.cpp can't make a context")
        self.memory = c.llama_get_memory(self.ctx)
        self.vocab = c.llama_vocab_n_tokens(c.llama_model_get_vocab(self.model))
        self.rows = c.llama_batch_init(cp.n_batch, 0, 1)

    def decode(self, rows):
        """rows: (sequence, position, logits wanted)."""
        b = self.rows
        b.n_tokens = len(rows)
        for i, (seq, pos, wanted) in enumerate(rows):
            b.token[i] = random.Random(seq << 32 | pos).randrange(self.vocab)
            b.pos[i], b.n_seq_id[i], b.logits[i] = pos, 1, wanted
            b.seq_id[i][0] = seq
        start = time.perf_counter()
        if self.c.llama_decode(self.ctx, b):
            sys.exit("llama_decode failed")
        self.c.llama_synchronize(self.ctx)
        return time.perf_counter() - start

    def clear(self):
        self.c.llama_memory_clear(self.memory, True)

    def prefill(self, n):
        self.clear()
        return self.decode([(0, i, i + 1 == n) for i in range(n)])

    def steps(self, depth, n):
        self.clear()
        if depth:
            self.decode([(0, i, 0) for i in range(depth)])
            for s in range(1, self.n_seq):
                self.c.llama_memory_seq_cp(self.memory, 0, s, -1, -1)
        return sum(self.decode([(s, depth + i, 1) for s in range(self.n_seq)]) for i in range(n))


def child(spec):
    s = json.loads(spec)
    p = Llama(s["model"], s["threads"], s["batch"], s["depth"] + s["tokens"])
    if s["test"] == "prefill":
        p.prefill(s["tokens"])
        seconds = p.prefill(s["tokens"])
    else:
        p.steps(s["depth"], min(s["tokens"], 16))
        seconds = p.steps(s["depth"], s["tokens"])
    print(json.dumps({"tok_s": s["batch"] * s["tokens"] / seconds}))


# ---- both, in turns ---------------------------------------------------------------------------------------------------------------------
def run(command):
    r = subprocess.run(command, capture_output=True, text=True)
    if r.returncode:
        sys.exit(f"bench_peers: {' '.join(command)[:200]}: status {r.returncode}: {r.stderr.strip() or 'nothing said'}")
    return json.loads(r.stdout)


def measure_lemma(o, cell):
    what = ["-p", str(cell["tokens"]), "-n", "0"] if cell["test"] == "prefill" else \
           ["-p", "0", "-n", str(cell["tokens"]), "--depth", str(cell["depth"]), "--batch", str(cell["batch"])]
    lane = ["--lanes", o.lane] if o.lane else []
    return run([o.lemma, "bench", o.model, *what, "--threads", str(cell["threads"]), "-r", "1", "--json", *lane])["results"][0]


def measure_peer(o, cell):
    return run([os.path.join(o.peers, "bin/python"), os.path.abspath(__file__), "--child", json.dumps(dict(cell, model=o.model))])["tok_s"]


def compare(o, cell):
    cell = dict(cell, lemma=[], peer=[], share=[])
    for _ in range(o.rounds):
        row = measure_lemma(o, {k: cell[k] for k in ("test", "tokens", "depth", "batch", "threads")})
        cell["lane"] = row["lane"]
        cell["lemma"].append(row["tokens_per_second"]["median"])
        cell["share"].append(row["share_of_peak" if cell["test"] == "prefill" else "share_of_read"]["median"])
        cell["peer"].append(measure_peer(o, {k: cell[k] for k in ("test", "tokens", "depth", "batch", "threads")}))
    ratios = [a / b for a, b in zip(cell["lemma"], cell["peer"])]
    cell["ratio"] = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
    return cell


def show(c):
    name = f"prefill {c['tokens']}" if c["test"] == "prefill" else f"decode {c['tokens']} at {c['depth']}, batch {c['batch']}"
    limit = "peak" if c["test"] == "prefill" else "read"
    r = c["ratio"]
    print(f"{name:<32} {c['lane']:<6} {c['threads']:>7} {statistics.median(c['lemma']):>10.1f} {100 * statistics.median(c['share']):>6.1f} % of {limit} "
          f"{statistics.median(c['peer']):>10.1f} {r['median']:>8.2f}  ({r['min']:.2f}-{r['max']:.2f})", flush=True)


def numbers(text):
    return [int(x) for x in text.split(",")]


def options(argv):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("lemma", help="the program, build/lemma")
    p.add_argument("model", help="a GGUF file")
    p.add_argument("--peers", default=os.path.expanduser("~/.cache/lemma/peers"), help="a Python environment that has " + PACKAGE)
    p.add_argument("-p", "--prompt", type=numbers, default=[512], help="prefills (default 512; 0: none)")
    p.add_argument("-n", "--predict", type=int, default=64, help="steps of a decode (default 64; 0: none)")
    p.add_argument("--depth", type=numbers, default=[0])
    p.add_argument("--batch", type=numbers, default=[1, 8])
    p.add_argument("--threads", type=numbers, default=[1, 2])
    p.add_argument("--lane", help="lemma's (default: its own)")
    p.add_argument("-r", "--rounds", type=int, default=5)
    p.add_argument("--json", action="store_true")
    o = p.parse_args(argv)
    if not os.path.isfile(o.model):
        p.exit(2, f"bench_peers: {o.model}: no such file\n")
    if o.rounds < 1:
        p.exit(2, "bench_peers: -r: give one round at least\n")
    return o


def main(argv):
    if argv[:1] == ["--child"]:
        return child(argv[1])
    o = options(argv)
    python = os.path.join(o.peers, "bin/python")
    have = os.access(python, os.X_OK) and subprocess.run([python, "-c", "import llama_cpp; print(llama_cpp.__version__)"], capture_output=True, text=True)
    if not have or have.returncode:
        print(f"bench_peers: {o.peers} has no {PACKAGE}. To make it (llama.cpp is built from source, for this CPU):\n"
              f"    python3 -m venv {o.peers} && {o.peers}/bin/pip install {PACKAGE}", file=sys.stderr)
        return 3
    cells = [{"test": "prefill", "tokens": n, "depth": 0, "batch": 1, "threads": t} for t in o.threads for n in o.prompt if n]
    cells += [{"test": "decode", "tokens": o.predict, "depth": d, "batch": b, "threads": t} for t in o.threads for d in o.depth for b in o.batch if o.predict]
    if not o.json:
        print(f"{o.model}: lemma against llama.cpp ({PACKAGE} {have.stdout.strip()}), {o.rounds} rounds in turns; medians\n")
        print(f"{'':<32} {'lane':<6} {'threads':>7} {'lemma':>10} {'of its limit':>16} {'llama.cpp':>10} {'ratio':>8}  (min-max)")
    done = []
    for c in cells:
        done.append(compare(o, c))
        if not o.json:
            show(done[-1])
    if o.json:
        print(json.dumps({"model": o.model, "peer": f"{PACKAGE} {have.stdout.strip()}", "rounds": o.rounds, "cells": done}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
