#!/usr/bin/env python3
"""lemma dump: what it writes is what transformers computed, and what it computes depends on nothing else. usage: B=build test_dump.py"""

import json
import os
import re
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import trace_file as st  # noqa: E402
from drive import ROOT, check, finish, lemma  # noqa: E402

MODEL = os.path.join(ROOT, "tests/fixtures/llama")
ORACLE = os.path.join(MODEL, "oracle.safetensors")
folder = tempfile.TemporaryDirectory()


def path(name):
    return os.path.join(folder.name, name)


def dump(name, *args):
    """A dump of the oracle's cases: its path and the hash of its logits."""
    r = lemma("dump", MODEL, "--ids-from", ORACLE, "--greedy", "24", "--hash", "-o", path(name), *args)
    check(f"dump {name} {args}", r.returncode == 0 and re.fullmatch(r"sha256:[0-9a-f]{64}\n", r.stdout), r.stdout + r.stderr)
    return path(name), r.stdout.strip()


def far(a, b):
    return max(abs(x - y) for x, y in zip(st.values(a), st.values(b)))


def fingerprints():
    """A line for every op, equal over levels, threads and chunks; the first that differs is the op that was changed."""
    args = ["dump", MODEL, "--ids", "5,17,200,3,42,99,7,7,150,31", "--hash"]
    want = lemma(*args)
    lines = want.stdout.split("\n")
    check("a line for every op", want.returncode == 0 and len(lines) > 50 and all(re.fullmatch(r"c0 [\w.]+ +\[10, \d+\] [0-9a-f]{64}", x) for x in lines[:-2]), want.stdout)
    check("the last is of the logits", re.fullmatch(r"sha256:[0-9a-f]{64}", lines[-2]), lines[-2])
    for more in (["--cpu-level", "c"], ["--threads", "3"], ["--chunk", "3"]):
        got = lemma(*args, *more)
        check(f"the same fingerprint with {more}", got.stdout == want.stdout, got.stderr)
    out = json.loads(lemma(*args, "--json").stdout)
    check("the JSON has the same", [f"c{t['case']} {t['op']:<32} [{t['shape'][0]}, {t['shape'][1]}] {t['sha256']}" for t in out["taps"]] == lines[:-2]
          and "sha256:" + out["logits_sha256"] == lines[-2], str(out)[:300])
    other = path("other_theta")
    shutil.copytree(MODEL, other)
    with open(os.path.join(other, "config.json")) as f:
        text = f.read()
    with open(os.path.join(other, "config.json"), "w") as f:
        f.write(text.replace('"rope_theta": 10000.0', '"rope_theta": 100000.0'))
    got = lemma("dump", other, *args[2:]).stdout.split("\n")
    first = next((a for a, b in zip(lines, got) if a != b), "")
    check("the first op that differs is the changed one", first.startswith("c0 layer.0.attn.q_rope "), first)
    f64 = lemma(*args, "--backend", "f64").stdout
    check("the arbiter has its own", f64.count("\n") == len(lines) - 1 and f64 != want.stdout, f64)


def against_transformers(backend, file):
    own, meta = st.read(file)
    ref, ref_meta = st.read(ORACLE)
    for name, t in ref.items():
        check(f"{backend}: {name} is there", name in own and own[name][:2] == t[:2], str(own.get(name, [None])[:2]))
        if name.endswith(("ids", "greedy")):
            check(f"{backend}: {name} equal", own[name] == t)
        else:
            d = far(own[name], t)
            check(f"{backend}: {name} close", d < 5e-4, str(d))
    for k in range(3):
        T, V = own[f"c{k}.logits"][1]
        rows = st.values(own[f"c{k}.logits"])
        best = [max(range(V), key=lambda i: (rows[V * p + i], -i)) for p in range(T)]
        top = st.values(own[f"c{k}.top.ids"])
        lps = st.values(own[f"c{k}.top.logprobs"])
        check(f"{backend}: c{k}.argmax", st.values(own[f"c{k}.argmax"]) == best and top[::64] == best)
        check(f"{backend}: c{k}.top in order", all((-lps[64 * p + i], 0) <= (-lps[64 * p + i + 1], 1) for p in range(T) for i in range(63)))
        check(f"{backend}: c{k}.top ids are distinct", all(len(set(top[64 * p : 64 * p + 64])) == 64 for p in range(T)))
        check(
            f"{backend}: c{k}.greedy.logits",
            own[f"c{k}.greedy.logits"][1] == [24, V] and st.values(own[f"c{k}.greedy.logits"])[:V] == rows[-V:],
        )
    check(
        f"{backend}: metadata",
        meta["trace_version"] == "1"
        and meta["weights_sha256"] == ref_meta["weights_sha256"]
        and meta["backend"] == backend
        and meta["made_by"].startswith("lemma "),
        str(meta),
    )
    r = lemma("verify", MODEL, file, "--determinism", "off")
    check(f"{backend}: verify reads it", r.returncode == 0, r.stdout + r.stderr)


def same_bits():
    plain, want = dump("plain")
    for i, args in enumerate((["--taps"], ["--chunk", "1"], ["--chunk", "7", "--threads", "3"], ["--cpu-level", "c"])):
        other, got = dump(f"other{i}", *args)
        check(f"the same hash with {args}", got == want, f"{got} {want}")
        a, b = st.read(plain)[0], st.read(other)[0]
        check(f"the same values with {args}", all(b[k] == v for k, v in a.items()))
    taps = st.read(path("other0"))[0]
    check(
        "taps", all(f"c1.tap.{x}" in taps for x in ("embed", "layer.3.attn.q", "norm", "logits")), str([k for k in taps if "tap" in k][:9])
    )
    check("taps are the hidden states", taps["c1.tap.norm"] == taps["c1.hidden.norm"] and taps["c1.tap.logits"] == taps["c1.logits"])
    _, arbiter = dump("arbiter", "--backend", "f64")
    check("the arbiter has other bits", arbiter != want)


def sources():
    r = lemma("dump", MODEL, "--ids", "5,6,7", "-o", path("ids"))
    t, _ = st.read(path("ids"))
    check("ids", r.returncode == 0 and not r.stdout and st.values(t["c0.ids"]) == [5, 6, 7] and "c0.greedy" not in t, r.stderr)
    r = lemma("dump", MODEL, "--ids", "5,6,7", "-o", path("ids"), "--json")
    check("json", r.returncode == 0 and len(json.loads(r.stdout)["logits_sha256"]) == 64, r.stdout + r.stderr)
    r = lemma("dump", os.path.join(ROOT, "tests/fixtures/gguf/llama.gguf"), "--prompt", "hello", "-o", path("text"))
    check("prompt", r.returncode == 0 and len(st.values(st.read(path("text"))[0]["c0.ids"])) >= 2, r.stderr)
    r = lemma("dump", MODEL, "--ids-from", ORACLE, "-o", path("again"))
    check(
        "the cases keep their numbers",
        r.returncode == 0 and all(st.read(path("again"))[0][f"c{k}.ids"] == st.read(ORACLE)[0][f"c{k}.ids"] for k in range(3)),
    )


def usage():
    out = path("never")
    for name, args, wanted in [
        ("no ids", ["-o", out], "exactly one of --ids"),
        ("two sources", ["--ids", "1", "--prompt", "x", "-o", out], "exactly one of --ids"),
        ("no file", ["--ids", "1"], "-o"),
        ("no file, but taps", ["--ids", "1", "--taps"], "-o"),
        ("an id outside", ["--ids", "1,320", "-o", out], "320 at position 1 is outside the vocabulary of 320"),
        ("no tokenizer", ["--prompt", "x", "-o", out], "give token ids with --ids"),
        ("no such trace", ["--ids-from", path("none"), "-o", out], "none"),
        ("no such folder", ["--ids", "1", "-o", path("no/where")], "no/where"),
        ("no such backend", ["--ids", "1", "--backend", "abacus", "-o", out], "abacus"),
        ("no number", ["--ids", "1", "--greedy", "x", "-o", out], "--greedy"),
    ]:
        r = lemma("dump", MODEL, *args)
        check(
            name,
            r.returncode == 2 and len(r.stderr.splitlines()) == 1 and wanted in r.stderr and not r.stdout and not os.path.exists(out),
            f"status {r.returncode}\n{r.stdout}{r.stderr}",
        )
    r = lemma("dump", "-h")
    check(
        "help",
        r.returncode == 0
        and all(x in r.stdout for x in ("--ids", "--ids-from", "--prompt", "--greedy", "--taps", "--hash", "--backend", "--lane", "--out")),
        r.stdout,
    )


for b in ("cpu", "f64"):
    against_transformers(b, dump(b, "--backend", b)[0])
same_bits()
sources()
usage()
fingerprints()
folder.cleanup()
finish()
