#!/usr/bin/env python3
"""usage: tools/peers/agreement.py LEMMA LANE MODEL.gguf TRACE [MODEL.gguf TRACE ...]      (with the Python of the peers' environment)

Where lemma and llama.cpp choose different tokens, and why: llama.cpp runs the token ids of TRACE's cases (tools/peers/trace.py), `lemma diff` holds
lemma's run in LANE against it, and one row per case counts the disagreements by the arbiter's verdict. Then, of each model, the disagreement that
lies furthest below the arbiter's best, beside what rounding reaches there. Exit status 1 when one is unexplained. docs/agreement.md has the table.
"""
import json
import os
import subprocess
import sys
import tempfile

HEAD = "| model | case | positions | the same token | near-ties | unexplained | largest difference of log-probabilities | greedy: equal from the start |"
FINE = ("a near-tie", "rounding flipped a choice of experts or positions before it")


def rows(name, diff):
    """Markdown rows of a diff's JSON, and how many differences are unexplained."""
    out, bad = [], 0
    for c in diff["cases"]:
        both = [r for r in c["rows"] if r["A"]["top"] is not None and r["B"]["top"] is not None]
        other = [r for r in both if r["A"]["top"] != r["B"]["top"]]
        ties = sum(r["verdict"] in FINE for r in other)
        wrong = len(other) - ties + sum(f["case"] == c["case"] for f in diff["findings"])
        most = max(r["dlogprob"] for r in both if r["dlogprob"] is not None)
        bad += wrong
        out.append(f"| {name} | {c['case']} ({c['prompt']} tokens) | {len(both)} | {len(both) - len(other)} | {ties} | {wrong} | {most:.2f} | {c['greedy_equal']} of {c['greedy']} |")
    return out, bad


def summary(name, diff):
    """How far below the arbiter's best a disputed token lies at most, and how much of its envelope each engine's best log-probabilities take."""
    parted = [(r[s]["deficit"], r[s]["reach"], c["case"], r["position"]) for c in diff["cases"] for r in c["rows"] for s in "AB"
              if None not in (r["A"]["top"], r["B"]["top"], r[s]["deficit"]) and r["A"]["top"] != r["B"]["top"]]
    far = "{0:.2f} (case {2}, position {3}), where rounding reaches {1:.2f}".format(*max(parted)) if parted else "none"
    taps = [t for c in diff["cases"] for t in c["taps"] if "envelope" in t.get("A", {}) and "envelope" in t.get("B", {})]
    lemma, peer = (max((t[s]["envelope"]["share"] for t in taps), default=0) for s in "AB")
    return f"{name}: the widest disagreement {far}; of the envelope lemma takes {lemma:.2f}, llama.cpp {peer:.2f}"


def main(lemma, lane, *pairs):
    here, bad = os.path.dirname(os.path.abspath(__file__)), 0
    far = []
    print(HEAD + "\n" + "| --- " * HEAD.count(" | ") + "| --- |")
    with tempfile.TemporaryDirectory() as folder:
        peer = os.path.join(folder, "peer.safetensors")
        for model, trace in zip(pairs[::2], pairs[1::2]):
            subprocess.run([sys.executable, os.path.join(here, "trace.py"), model, trace, peer], check=True)
            r = subprocess.run([lemma, "diff", f"{model}:cpu:{lane}", peer, "--json"], stdout=subprocess.PIPE, text=True)
            if r.returncode > 1:
                return r.returncode
            diff = json.loads(r.stdout)
            lines, n = rows(f"{os.path.basename(model)}, lane {lane}", diff)
            print("\n".join(lines), flush=True)
            far.append(summary(os.path.basename(model), diff))
            bad += n
    print("\n" + "\n".join(far))
    return bad > 0


if __name__ == "__main__":
    if len(sys.argv) < 5 or len(sys.argv) % 2 == 0:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
