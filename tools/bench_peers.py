#!/usr/bin/env python3
"""lemma and llama.cpp, or its fork ik_llama.cpp, on the same GGUF file, in turns: each round measures a cell with one, then with the other, so
that both see the same machine. Prints both rates and their ratio (medians over the rounds; the ratio's spread is of the rounds' own ratios), of
two peers both. Every measurement is a process of its own, with a warm-up before its one timed run; the peers run through Python packages
(tools/peers/peer.py). ik_llama.cpp counts only where it computes the file's model: its KL to the arbiter is measured first (tools/peers/kl.py).

Exit status: 0, 1 when a measurement failed, 2 a usage error, 3 when the peer isn't installed."""
import argparse
import json
import os
import statistics
import subprocess
import sys

PEERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers")
SETTINGS = {
    "default": ("llama", {}),
    "flash": ("llama", {"flash": True}),
    "no-flash": ("llama", {"flash": False}),
    "no-repack": ("llama", {"repack": False}),
    "ik": ("ik", {}),
    "ik-no-flash": ("ik", {"flash": False}),
    "ik-repack": ("ik", {"repack": True}),
}
NAMES = {"llama": "llama.cpp", "ik": "ik_llama.cpp"}
PACKAGES = {"llama": "llama-cpp-python", "ik": "ik-llama-cpp-python"}


# ---- the peer, in its own Python ------------------------------------------------------------------------------------------------------
def child(spec):
    sys.path.insert(0, PEERS)
    import peer

    s = json.loads(spec)
    engine, how = SETTINGS[s["setting"]]
    try:
        p = peer.engine(engine)(s["model"], s["threads"], s["batch"], s["depth"] + s["tokens"], **how)
        if s["test"] == "prefill":
            p.prefill(min(s["tokens"], 512))
            seconds = p.prefill(s["tokens"])
        else:
            p.steps(s["depth"], min(s["tokens"], 16))
            seconds = p.steps(s["depth"], s["tokens"])
    except peer.Failed as e:
        sys.exit(f"{NAMES[engine]}: {e}")
    print(json.dumps({"tok_s": s["batch"] * s["tokens"] / seconds}))


# ---- all, in turns ---------------------------------------------------------------------------------------------------------------------
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


def measure_peer(o, cell, setting):
    return run([os.path.join(o.peers, "bin/python"), os.path.abspath(__file__), "--child", json.dumps(dict(cell, model=o.model, setting=setting))])["tok_s"]


def distance(o, engine):
    """Mean KL of the engine from the arbiter on a short text."""
    text = os.path.join(PEERS, "../../README.md")
    return run([os.path.join(o.peers, "bin/python"), os.path.join(PEERS, "kl.py"), o.lemma, o.model, text, "--ctx", "128", "--windows", "1", "--lanes", "", "--peers", engine, "--json"])["rows"][0]


def compare(o, cell):
    """Each engine counts with the setting that is best over the rounds, and the best engine stands for all."""
    what = dict(cell)
    cell.update(lemma=[], share=[], settings={x: [] for x in o.peer})
    for _ in range(o.rounds):
        row = measure_lemma(o, what)
        cell["lane"] = row["lane"]
        cell["lemma"].append(row["tokens_per_second"]["median"])
        cell["share"].append(row["share_of_peak" if cell["test"] == "prefill" else "share_of_read"]["median"])
        for x in o.peer:
            cell["settings"][x].append(measure_peer(o, what, x))
    cell["engines"] = {}
    for x in sorted(o.peer, key=lambda x: -statistics.median(cell["settings"][x])):
        ratios = [a / b for a, b in zip(cell["lemma"], cell["settings"][x])]
        ratio = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
        cell["engines"].setdefault(SETTINGS[x][0], {"setting": x, "peer": cell["settings"][x], "ratio": ratio})
    cell.update(next(iter(cell["engines"].values())))
    return cell


def show(c):
    name = f"prefill {c['tokens']}" if c["test"] == "prefill" else f"decode {c['tokens']} at {c['depth']}, batch {c['batch']}"
    limit = "peak" if c["test"] == "prefill" else "read"
    left = f"{name:<32} {c['lane']:<6} {c['threads']:>7} {statistics.median(c['lemma']):>10.1f} {100 * statistics.median(c['share']):>6.1f} % of {limit}"
    for e in c["engines"].values():
        r = e["ratio"]
        print(f"{left:<73} {statistics.median(e['peer']):>12.1f} {r['median']:>8.2f}  ({r['min']:.2f}-{r['max']:.2f})"
              f"{'  ' + e['setting'] if len(c['settings']) > 1 else ''}", flush=True)
        left = ""


def described(o, engine):
    """Name, version and what it was built for; nothing where it isn't installed."""
    python = os.path.join(o.peers, "bin/python")
    if not os.access(python, os.X_OK):
        return None
    r = subprocess.run([python, "-c", f"import peer; e = peer.engine('{engine}'); print(e.name(), e.features(), sep=': ')"], cwd=PEERS, capture_output=True, text=True)
    return r.stdout.strip() if not r.returncode else None


def numbers(text):
    return [int(x) for x in text.split(",")]


def options(argv):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("lemma", help="the program, build/lemma")
    p.add_argument("model", help="a GGUF file")
    p.add_argument("--peers", default=os.path.expanduser("~/.cache/lemma/peers"), help="a Python environment that has llama-cpp-python (and ik-llama-cpp-python)")
    p.add_argument("--peer", type=lambda x: x.split(","), default=["default"], metavar="SETTINGS", help="llama.cpp's: default, flash, no-flash, no-repack; ik_llama.cpp's: ik, ik-no-flash, ik-repack; of several the best counts (default: default)")
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
    for x in set(o.peer) - set(SETTINGS):
        p.exit(2, f"bench_peers: --peer: '{x}' is none of {', '.join(SETTINGS)}\n")
    if o.rounds < 1:
        p.exit(2, "bench_peers: -r: give one round at least\n")
    return o


def main(argv):
    if argv[:1] == ["--child"]:
        return child(argv[1])
    o = options(argv)
    names, wrong = {}, {}
    for engine in dict.fromkeys(SETTINGS[x][0] for x in o.peer):
        names[engine] = described(o, engine)
        if not names[engine]:
            extra = " ik" if engine == "ik" else ""
            print(f"bench_peers: {o.peers} has no {PACKAGES[engine]}. To make it ({NAMES[engine]} is built from source, for this CPU):\n    tools/peers/install {o.peers}{extra}", file=sys.stderr)
            return 3
        if engine != "llama":  # which `make test-peers` holds on every fixture
            d = distance(o, engine)
            if d["wrong"]:
                wrong[engine] = d["mean"]
    o.peer = [x for x in o.peer if SETTINGS[x][0] not in wrong]
    said = [f"{NAMES[e]} computes another model than {o.model}: mean KL {wrong[e]:.2g} to the arbiter; it is not counted" for e in wrong]
    if not o.peer:
        print(f"bench_peers: {said[0]}", file=sys.stderr)
        return 1
    cells = [{"test": "prefill", "tokens": n, "depth": 0, "batch": 1, "threads": t} for t in o.threads for n in o.prompt if n]
    cells += [{"test": "decode", "tokens": o.predict, "depth": d, "batch": b, "threads": t} for t in o.threads for d in o.depth for b in o.batch if o.predict]
    if not o.json:
        engines = {SETTINGS[x][0] for x in o.peer}
        peer = NAMES[engines.pop()] if len(engines) == 1 else "the peer"
        print(f"{o.model}: lemma against {' and '.join(names[e] for e in names if e not in wrong)}, {o.rounds} rounds in turns; medians")
        print("\n".join(said + [""]))
        print(f"{'':<32} {'lane':<6} {'threads':>7} {'lemma':>10} {'of its limit':>16} {peer:>12} {'ratio':>8}  (min-max)")
    done = []
    for c in cells:
        done.append(compare(o, c))
        if not o.json:
            show(done[-1])
    if o.json:
        print(json.dumps({"model": o.model, "peers": names, "wrong": wrong, "rounds": o.rounds, "cells": done}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
