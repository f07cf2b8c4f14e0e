#!/usr/bin/env python3
"""lemma verify: the gates pass on an honest trace, and every kind of doctored trace is refuted or refused. usage: B=build test_verify.py"""

import json
import os
import re
import struct
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import trace_file as st  # noqa: E402
from drive import ROOT, check, finish, lemma  # noqa: E402

MODEL = os.path.join(ROOT, "tests/fixtures/llama")
ORACLE = os.path.join(MODEL, "oracle.safetensors")
VOCAB, HIDDEN, NOISE = 320, 96, 5.221e-05
folder = tempfile.TemporaryDirectory()


def verify(*args):
    return lemma("verify", *args)


def refuted(out):
    return [line for line in out.splitlines() if line.startswith("REFUTED")]


def notes(out):
    """REFUTED rows with the line of their counterexample."""
    lines = out.splitlines()
    return [line + " // " + lines[i + 1].strip() for i, line in enumerate(lines) if line.startswith("REFUTED") and i + 1 < len(lines)]


def doctored(change, source=ORACLE):
    tensors, meta = st.read(source)
    change(tensors, meta)
    return st.write(os.path.join(folder.name, "doctored.safetensors"), tensors, meta)


def expect(name, change, wanted, source=ORACLE, model=MODEL, extra=("--determinism", "off")):
    """The doctored trace is REFUTED, in exactly the rows that `wanted` matches, in order."""
    r = verify(model, doctored(change, source), *extra)
    got = notes(r.stdout)
    ok = r.returncode == 1 and len(got) == len(wanted) and all(re.search(w, g) for w, g in zip(wanted, got))
    check(name, ok and r.stdout.rstrip().endswith(f"{len(wanted)} refuted"), f"status {r.returncode}, {got}\n{r.stdout}{r.stderr}")


def refused(name, change, wanted, status=2, extra=("--determinism", "off")):
    r = verify(MODEL, doctored(change), *extra)
    ok = r.returncode == status and len(r.stderr.splitlines()) == 1 and re.search(wanted, r.stderr) and not r.stdout
    check(name, ok, f"status {r.returncode}\n{r.stdout}{r.stderr}")


def holds(name, change, wanted=(), unwanted=(), source=ORACLE, extra=("--determinism", "off"), status=0):
    r = verify(MODEL, doctored(change, source), *extra)
    ok = (
        r.returncode == status
        and not refuted(r.stdout)
        and all(re.search(w, r.stdout, re.M) for w in wanted)
        and not any(re.search(w, r.stdout, re.M) for w in unwanted)
    )
    check(name, ok, f"status {r.returncode}\n{r.stdout}{r.stderr}")


def add_logit(position, i, by):
    def change(t, m):
        at = position * VOCAB + i
        st.put(t["c1.logits"], at, st.get(t["c1.logits"], at) + by)

    return change


def setter(name, i, v):
    return lambda t, m: st.put(t[name], i, v)


def drop(*patterns):
    def change(t, m):
        for k in [k for k in t if any(re.search(p, k) for p in patterns)]:
            del t[k]

    return change


def keep(*patterns):
    def change(t, m):
        for k in [k for k in t if not any(re.search(p, k) for p in patterns)]:
            del t[k]

    return change


def metadata(key, value):
    def change(t, m):
        m.pop(key, None)
        if value is not None:
            m[key] = value

    return change


# ---- an honest trace ----
def honest():
    for args in ([], ["--backend", "f64"], ["--threads", "1", "--chunk", "3"]):
        r = verify(MODEL, *args)
        check(
            f"honest {args}",
            r.returncode == 0 and re.search(r"^\d+ proven, \d+ open, 0 refuted$", r.stdout.splitlines()[-1]) and not r.stderr,
            r.stdout + r.stderr,
        )
        for row in (
            "binding",
            "trait",
            "G1 +c2 hidden cosine",
            "G1 +c2 argmax",
            "G1 +c2 max",
            "G1 +c2 greedy",
            "G1 +c2 prefill",
            "G4 +threads +1, 2, 3, 8",
            "G4 +chunks +1, 7, 32, whole",
            "G4 +company",
            "G4 +sessions",
            "G4 +taps",
        ):
            check(f"honest {args}: {row}", re.search(f"^PROVEN +{row}", r.stdout, re.M), r.stdout)
    r = verify(MODEL, "--json")
    check("json", r.returncode == 0, r.stderr)
    d = json.loads(r.stdout)
    verdicts = [c["verdict"] for c in d["claims"]]
    check(
        "json counts",
        r.returncode == 0
        and d["exit"] == 0
        and [verdicts.count(v) for v in ("PROVEN", "OPEN", "REFUTED")] == [d["proven"], d["open"], d["refuted"]],
        r.stdout,
    )
    check("json witnesses", all(len(c["sha256"]) == 64 for c in d["claims"] if c["verdict"] == "PROVEN"), r.stdout)
    hashes = {c["sha256"] for c in d["claims"] if c["section"] == "G4" and c["verdict"] == "PROVEN"}
    check("one hash of logits", len(hashes) == 1, str(hashes))
    r = verify(MODEL, "--determinism", "full")
    check(
        "the grid", r.returncode == 0 and re.search(r"^PROVEN +G4 +the whole grid +\d+ configurations", r.stdout, re.M), r.stdout + r.stderr
    )


# ---- doctored: refuted, with the counterexample ----
def refutations():
    nan, inf = float("nan"), float("inf")
    g = st.values(st.read(ORACLE)[0]["c1.greedy"])
    expect(
        "a greedy id flipped",
        setter("c1.greedy", 5, (g[5] + 1) % VOCAB),
        [
            rf"c1 greedy continuation .*5 of 24 equal.*step 5: we choose {g[5]}, the trace {(g[5] + 1) % VOCAB}"
            r".*the arbiter's margin.*for ours.*not a near-tie"
        ],
    )
    expect("the first greedy id flipped", setter("c1.greedy", 0, (g[0] + 1) % VOCAB), [r"step 0: we choose .*the arbiter's margin"])
    expect(
        "a greedy id flipped, f64",
        setter("c1.greedy", 5, (g[5] + 1) % VOCAB),
        [r"c1 greedy continuation .*step 5"],
        extra=("--determinism", "off", "--backend", "f64"),
    )
    expect(
        "a NaN among the logits",
        setter("c1.logits", 4 * VOCAB + 7, nan),
        [r"c1 argmax .*position 4: the trace's logits are not finite", r"c1 max \|dlogit\| +-?nan at position 4, id 7"],
    )
    expect(
        "an infinity among the logits", setter("c1.logits", 4 * VOCAB + 7, -inf), [r"c1 argmax", r"c1 max \|dlogit\| .*position 4, id 7"]
    )
    expect(
        "a NaN in a hidden state",
        setter("c1.hidden.layer.2", 3 * HIDDEN + 5, nan),
        [r"c1 hidden cosine +-?nan at layer.2, position 3.*not finite"],
    )
    expect(
        "a logit off by ten bounds",
        add_logit(6, 11, 10 * 5 * NOISE),
        [
            r"c1 max \|dlogit\| +0.0026\d* at position 6, id 11 .*ours .*, the trace's .*; the arbiter's .*: the reference is 0.0026\d* from it"
            r", ours [\d.]+e-0\d: ours is nearer; 1 of the reference's 320 there are beyond the bound"
        ],
    )
    expect(
        "a logit off by ten bounds, f64",
        add_logit(6, 11, 10 * 5 * NOISE),
        [
            r"c1 max \|dlogit\| .*position 6, id 11.*ours is the arbiter itself, the reference is 0.0026\d* from it, the cpu engine "
            r"\(lane f32\) [\d.]+e-0\d; the reference's own float64 run parts from it by up to"
        ],
        extra=("--determinism", "off", "--backend", "f64"),
    )

    def shift(t, m):
        data = t["c2.hidden.layer.1"][2]
        data[20 * 4 * HIDDEN : 21 * 4 * HIDDEN] = data[19 * 4 * HIDDEN : 20 * 4 * HIDDEN]

    expect("a hidden row shifted", shift, [r"c2 hidden cosine .* at layer.1, position 20"])

    def swap(t, m):  # another winner at one position, and its logits too
        row = [st.get(t["c1.logits"], 2 * VOCAB + i) for i in range(VOCAB)]
        best = row.index(max(row))
        other = (best + 100) % VOCAB
        st.put(t["c1.logits"], 2 * VOCAB + other, row[best] + 1)

    expect("another winner", swap, [r"c1 argmax .*8 of 9 equal.*position 2: we choose", r"c1 max \|dlogit\| .*position 2"])
    expect("other weights", metadata("weights_sha256", "0" * 64), [r"binding .*the trace was made from weights 0000000000000000"])

    def argmax(t, m):
        rows = [st.values(t["c1.logits"])[VOCAB * p : VOCAB * (p + 1)] for p in range(9)]
        best = [r.index(max(r)) for r in rows]
        best[8] ^= 1
        t["c1.argmax"] = st.tensor("I32", [9], best)

    expect("an arg-max flipped", argmax, [r"c1 argmax .*position 8"])

    def noise(t, m):  # the bound is the trace's own
        m["cached_vs_full_max_dlogit"] = m["float64_max_dlogit"] = "1e-9"

    r = verify(MODEL, doctored(noise), "--determinism", "off")
    check("noise sets the bound", r.returncode == 1 and all("max |dlogit|" in x and "<= 5e-09" in x for x in refuted(r.stdout)), r.stdout)


# ---- doctored: refused ----
def refusals():
    refused("an id outside the vocabulary", setter("c1.ids", 2, VOCAB), r"c1\.ids: id 320 is outside the vocabulary of 320")
    refused("a negative id", setter("c0.ids", 0, -1), r"c0\.ids: id -1 is outside")
    refused("a greedy id outside", setter("c2.greedy", 3, 1 << 30), r"c2\.greedy: id 1073741824")
    refused("a case without ids", drop(r"c1\.ids"), r"c1\.ids: is missing")
    refused(
        "a tensor too short",
        lambda t, m: t.__setitem__("c1.logits", ["F32", [8, VOCAB], t["c1.logits"][2][: 8 * VOCAB * 4]]),
        r"c1\.logits: wanted the shape \[9, 320\], found \[8, 320\]",
    )
    refused(
        "a hidden layer too many",
        lambda t, m: t.__setitem__("c1.hidden.layer.4", t["c1.hidden.layer.3"]),
        r"c1\.hidden\.layer\.4: the model has",
    )
    refused(
        "a hidden state of another width",
        lambda t, m: t.__setitem__("c0.hidden.embed", ["F32", [2, 48], t["c0.hidden.embed"][2]]),
        r"wanted the shape \[1, 96\]",
    )
    refused("an unknown tensor", lambda t, m: t.__setitem__("c1.logit", t["c1.logits"]), r"c1\.logit: is no tensor that a trace has")
    refused("a name of no case", lambda t, m: t.__setitem__("c01.ids", t["c1.ids"]), r"c01\.ids: is no tensor")
    refused("ids of another type", lambda t, m: t.__setitem__("c1.ids", ["F32", [9], t["c1.ids"][2]]), r"c1\.ids: is of type F32")
    refused(
        "logits of another type",
        lambda t, m: t.__setitem__("c1.logits", ["I32", [9, VOCAB], t["c1.logits"][2]]),
        r"c1\.logits: is of type I32",
    )
    refused("no case", keep("nothing"), r"c0\.ids: the trace holds no case")
    refused(
        "log-probabilities without ids",
        lambda t, m: t.__setitem__("c1.top.logprobs", t["c1.logits"]),
        r"c1\.top\.logprobs: has no top\.ids",
    )
    refused("no version", metadata("trace_version", None), r"trace_version: is missing")
    refused("another version", metadata("trace_version", "2"), r"trace_version: is \"2\"; this lemma reads version 1")
    refused("a bad hash", metadata("weights_sha256", "abc"), r"weights_sha256: must be 64")
    for bad in ("", "nan", "-1", "1e999", "0x1p3", "1e-5 "):
        refused(f"noise {bad!r}", metadata("float64_max_dlogit", bad), r"float64_max_dlogit: ")
    for bad in (
        "{",
        "[]",
        '{"top1_min": 1.0}',
        '{"top1_min": 2, "top1_quarter_min": 1, "max_dlogprob": 1}',
        '{"top1_min": "1", "top1_quarter_min": 1, "max_dlogprob": 1}',
    ):
        refused(f"gate {bad}", metadata("c1.gate", bad), r"doctored\.safetensors: ")
    refused(
        "a gate without top ids",
        metadata("c1.gate", '{"top1_min": 1, "top1_quarter_min": 1, "max_dlogprob": 1}'),
        r"c1\.gate: .*needs top\.ids",
    )
    refused("a text of no case", metadata("c7.text", "hello"), r"c7\.text: belongs to a case")


# ---- partial traces are judged on what they have ----
def partial():
    holds("unbound", metadata("weights_sha256", None), [r"^OPEN +binding +.*unbound"])
    rows = [r"^PROVEN +G1 +c1 prefill", "^OPEN +G1 +c0 prefill", r"^OPEN +G1 +c1 against the reference.*\n +needs a trace of more than ids"]
    holds("only ids: nothing is compared", keep(r"ids$"), rows, ["argmax", "hidden", "greedy cont"], status=3)
    holds("only ids, with determinism", keep(r"ids$"), rows + [r"^PROVEN +G4"], status=3, extra=())
    holds("one token and nothing else", keep(r"^c0\.ids$"), [r"^OPEN +G1 +c0 prefill"], status=3)
    holds("some hidden states", drop(r"hidden\.layer\.[02]", r"hidden\.embed"), [r"c1 hidden cosine .*\(3 states\)"])
    holds(
        "n/a noise",
        lambda t, m: (m.update(cached_vs_full_max_dlogit="n/a (why)"), m.pop("float64_max_dlogit")),
        [r"<= 0.05 \(no noise recorded\)"],
    )

    def last(t, m):
        rows = st.values(t["c1.logits"])
        t["c1.logits.last"] = st.tensor("F32", [VOCAB], rows[-VOCAB:])
        keep(r"^c1\.(ids|logits\.last)$")(t, m)

    holds("only the last logits", last, [r"^PROVEN +G1 +c1 max \|dlogit\|, last position"], ["argmax"])

    def last_off(t, m):
        last(t, m)
        st.put(t["c1.logits.last"], 9, st.get(t["c1.logits.last"], 9) + 0.1)

    expect("the last logits off", last_off, [r"c1 max \|dlogit\|, last position +0.1 at position 8, id 9.*the reference is 0.1 from it.*ours is nearer"])
    r = verify(
        os.path.join(ROOT, "tests/fixtures/mistral"),
        doctored(keep(r"^c0\.(ids|logits)$"), os.path.join(ROOT, "tests/fixtures/mistral/oracle.safetensors")),
        "--determinism",
        "off",
    )
    check(
        "a trait that no case exercises",
        r.returncode == 0 and re.search(r"^OPEN +trait +sliding window.*\n +needs a case of \d+ tokens", r.stdout, re.M),
        r.stdout + r.stderr,
    )


# ---- the tower gate, top-64 rows: on a trace of lemma's own ----
def tower():
    own = os.path.join(folder.name, "own.safetensors")
    r = lemma("dump", MODEL, "--ids-from", ORACLE, "--backend", "f64", "--greedy", "4", "-o", own)
    check("dump for the tower gate", r.returncode == 0, r.stderr)
    gate = metadata("c2.gate", '{"top1_min": 1.0, "top1_quarter_min": 1.0, "max_dlogprob": 0.002}')
    rows = [
        r"^PROVEN +G2 +c2 top-1 over all positions +1.0000 \(37 of 37\)",
        r"^PROVEN +G2 +c2 top-1 in the worst quarter",
        r"^PROVEN +G2 +c2 max \|dlogprob\|",
        r"^PROVEN +G2 +c2 second run",
        r"^PROVEN +G2 +files and bytes touched +1 file",
    ]
    holds("the tower gate", gate, rows, [r"G1 +c2"], source=own)

    def with_gate(change):
        return lambda t, m: (gate(t, m), change(t, m))

    def top(position):  # the two best change places
        def change(t, m):
            for name in ("c2.top.ids", "c2.top.logprobs"):
                a, b = st.get(t[name], 64 * position), st.get(t[name], 64 * position + 1)
                st.put(t[name], 64 * position, b)
                st.put(t[name], 64 * position + 1, a)

        return change

    expect(
        "a top-1 flipped",
        with_gate(top(15)),
        [r"c2 top-1 over all positions +0.9730 .*first at position 15", r"c2 top-1 in the worst quarter +0.9000 \(from position 10\)"],
        source=own,
    )
    # bounds with room in them are a bfloat16 reference's, by the distances that it records
    kin = '{"top1": 0.92, "top1_by_quarter": [1.0, 0.9, 1.0, 1.0], "max_dlogprob_top64": 0.0016}'
    loose = {"dtype": "bfloat16", "c2.baseline": kin, "c2.vs_float32": kin, "c2.gate": '{"top1_min": 0.9, "top1_quarter_min": 0.85, "max_dlogprob": 0.002}'}
    damaged = with_gate(lambda t, m: (m.update(loose), top(31)(t, m), top(33)(t, m)))
    expect("a damaged stretch", damaged, [r"c2 top-1 in the worst quarter +0.7143 \(from position 30\)"], source=own)
    expect(
        "a log-probability off",
        with_gate(lambda t, m: st.put(t["c2.top.logprobs"], 64 * 3 + 9, st.get(t["c2.top.logprobs"], 64 * 3 + 9) + 0.01)),
        [r"c2 max \|dlogprob\|, top ids +(0.01|0.0099\d*|0.0100\d*) at position 3.*ours is nearer; 1 of the reference's 64"],
        source=own,
    )
    expect(
        "a log-probability off, G1",
        lambda t, m: st.put(t["c2.top.logprobs"], 64 * 3 + 9, float("nan")),
        [r"c2 max \|dlogprob\|, top ids +-?nan at position 3"],
        source=own,
    )
    holds("an embedding scale", metadata("embed_scale_bf16", "1.0"), [r"^PROVEN +G2 +embedding scale"], source=own)
    expect("another embedding scale", metadata("embed_scale_bf16", "9.8125"), [r"embedding scale, as bfloat16 +1 "], source=own)
    expect(
        "greedy logits off",
        lambda t, m: st.put(t["c1.greedy.logits"], 2 * VOCAB + 5, 99.0),
        [r"c1 max \|dlogit\|, greedy .*step 2, id 5.*ours is nearer; 1 of the reference's 320"],
        source=own,
    )


def rounding_lanes():
    """G3: a lane that rounds is held against the arbiter; the trace's own numbers, however wrong, say nothing about it."""
    hybrid = os.path.join(ROOT, "tests/fixtures/hybrid/hybrid-q4_k_m.gguf")
    wrong = doctored(setter("c1.logits", 5, 99.0))
    for model, trace, lane, more in (
        (hybrid, None, "i8", ["--converted"]),
        (hybrid, None, "i16", ["--converted"]),
        (hybrid, None, "mixed", ["--converted", "--kv", "bf16"]),
        (MODEL, wrong, "bf16", []),
    ):
        r = verify(model, *([trace] if trace else []), "--lane", lane, "--json", *more)
        d = json.loads(r.stdout) if r.stdout else {"claims": []}
        rows = [c for c in d["claims"] if c["section"] == "G3"]
        names = [c["claim"] for c in rows]
        check(f"{lane}: G3's rows", r.returncode == 0 and len(rows) == 4 and all(any(w in n for n in names) for w in ("mean KL", "p99 KL", "top-1", "dlogprob")), r.stdout[:2000] + r.stderr)
        check(f"{lane}: no G1", not any(c["section"] in ("G1", "G2") for c in d["claims"]), names)
        ran = [c for c in d["claims"] if c["claim"] == f"lane {lane} really ran"]
        levels = [c for c in d["claims"] if c["claim"].startswith("CPU level") and c["verdict"] == "PROVEN"]
        check(f"{lane}: G4", ran and ran[0]["verdict"] == "PROVEN" and levels and all(c["verdict"] != "REFUTED" for c in d["claims"]), d["claims"])
    r = verify(hybrid, "--lane", "bf16", "--converted")
    check("bf16 refuses blocks by name", r.returncode == 2 and "lane bf16 takes weights" in r.stderr and "i16" in r.stderr, r.stderr)


def nearer():
    """A bound that is missed says which side the arbiter is nearer to: the arbiter's own rows, and weights that were damaged."""
    model, own = os.path.join(ROOT, "tests/fixtures/hybrid/hybrid-q4_k_m.gguf"), os.path.join(folder.name, "hybrid.safetensors")
    r = lemma("dump", model, "--backend", "f64", "--ids", "5,9,2,77,31", "--greedy", "4", "-o", own)
    check("dump for the arbiter", r.returncode == 0, r.stderr)
    r = verify(model, doctored(metadata("float64_max_dlogit", "1e-6"), own), "--determinism", "off", "--json")
    d = json.loads(r.stdout) if r.stdout else {"claims": []}
    rows = [c for c in d["claims"] if c["verdict"] == "REFUTED" and "max |dlogit|" in c["claim"]]
    ok = rows and all(c["arbiter"] and 0 <= c["arbiter"]["reference"] < c["arbiter"]["ours"] and "the reference is nearer; 0 of the" in c["note"] for c in rows)
    check("float32 against the arbiter's rows", r.returncode == 1 and ok and all(c["arbiter"] is None for c in d["claims"] if c["verdict"] != "REFUTED"), r.stdout[:3000] + r.stderr)
    # a weight of the last norm doubled: both of lemma's engines run it, and the reference is far from both, in every row
    out = os.path.join(folder.name, "damaged")
    os.makedirs(out)
    for name in ("config.json", "model.safetensors"):
        with open(os.path.join(MODEL, name), "rb") as f, open(os.path.join(out, name), "wb") as g:
            g.write(f.read())
    tensors, meta = st.read(os.path.join(out, "model.safetensors"))
    data = tensors["model.norm.weight"][2]
    data[6:8] = struct.pack("<H", struct.unpack("<H", data[6:8])[0] + 0x80)  # bfloat16
    st.write(os.path.join(out, "model.safetensors"), tensors, meta)
    r = verify(out, ORACLE, "--converted", "--determinism", "off")
    got = [x for x in notes(r.stdout) if "c1 max |dlogit|" in x]
    m = re.search(r"ours is nearer; (\d+) of the reference's 320", got[0]) if got else None
    check("damaged weights", r.returncode == 1 and m and int(m[1]) > 200, r.stdout + r.stderr)


def near_tie():
    """Where the two best are close, the other one is a flip that rounding explains, when the trace's noise is large enough."""
    own = os.path.join(folder.name, "greedy.safetensors")
    r = lemma("dump", MODEL, "--ids-from", ORACLE, "--backend", "f64", "--greedy", "24", "-o", own)
    check("dump for the near-tie", r.returncode == 0, r.stderr)
    tensors, _ = st.read(own)
    margins = []
    for k in range(3):
        rows = st.values(tensors[f"c{k}.greedy.logits"])
        for step in range(24):
            row = rows[VOCAB * step : VOCAB * (step + 1)]
            a, b = sorted(range(VOCAB), key=lambda i: -row[i])[:2]
            margins.append((row[a] - row[b], k, step, a, b))
    margin, k, step, best, other = min(margins)
    check("close enough", margin < 0.05, str(margin))
    for noise, call in (("0.02", r"[^t] a near-tie \(rounding explains 0.1\)"), ("1e-5", r"not a near-tie \(rounding explains 0.0001\)")):

        def change(t, m):
            st.put(t[f"c{k}.greedy"], step, other)
            m["float64_max_dlogit"] = noise

        r = verify(MODEL, doctored(change, own), "--determinism", "off")
        wanted = (
            rf"c{k} greedy continuation .*step {step}: we choose {best}, the trace {other}; our margin {margin:.2g}"
            r".*for ours; from the arbiter: ours .*e-\d+, the trace .*"
            + call
        )
        check(
            f"a near-tie, noise {noise}", r.returncode == 1 and any(re.search(wanted, x) for x in notes(r.stdout)), wanted + "\n" + r.stdout
        )


def texts():
    gguf, own = os.path.join(ROOT, "tests/fixtures/gguf/llama.gguf"), os.path.join(folder.name, "text.safetensors")
    r = lemma("dump", gguf, "--prompt", "hello world", "-o", own)
    check("dump of a text", r.returncode == 0, r.stderr)
    r = verify(gguf, doctored(metadata("c0.text", "hello world"), own), "--determinism", "off")
    check("a text", r.returncode == 0 and re.search(r"^PROVEN +text +c0", r.stdout, re.M), r.stdout + r.stderr)
    expect(
        "another text",
        metadata("c0.text", "hello worlt"),
        [r"text +c0 tokens of its text .*position \d+: the tokenizer gives"],
        source=own,
        model=gguf,
    )
    expect(
        "a longer text", metadata("c0.text", "hello worlds"), [r"text +c0 tokens of its text .*the tokenizer gives"], source=own, model=gguf
    )
    holds("a text and no tokenizer", metadata("c1.text", "hello"), [r"^OPEN +text +.*\n +needs a tokenizer"])


def usage():
    for name, args, status, wanted in [
        ("no model", [], 2, "an argument is missing"),
        ("a model that isn't there", [os.path.join(folder.name, "none")], 2, "none"),
        ("a trace that isn't there", [MODEL, os.path.join(folder.name, "none")], 2, "none"),
        ("a trace that is none", [MODEL, os.path.join(MODEL, "config.json")], 2, "config.json"),
        ("a checkpoint for a trace", [MODEL, os.path.join(MODEL, "model.safetensors")], 2, "is no tensor that a trace has"),
        ("no trace beside", [os.path.join(ROOT, "tests/fixtures/gguf/llama.gguf")], 3, "no trace beside the model"),
        ("an unknown backend", [MODEL, "--backend", "abacus"], 2, "abacus"),
        ("an unknown lane", [MODEL, "--lane", "f17"], 2, "f17"),
        ("an unknown level", [MODEL, "--cpu-level", "mmx"], 2, "mmx"),
        ("an unknown way", [MODEL, "--determinism", "some"], 2, "none of quick, full, off"),
        ("an unknown option", [MODEL, "--fast"], 2, "--fast"),
        ("too many arguments", [MODEL, ORACLE, ORACLE], 2, "one argument too many"),
    ]:
        r = verify(*args)
        check(
            name,
            r.returncode == status and len(r.stderr.splitlines()) == 1 and wanted in r.stderr and not r.stdout,
            f"status {r.returncode}\n{r.stdout}{r.stderr}",
        )
    r = verify("-h")
    check(
        "help",
        r.returncode == 0
        and all(x in r.stdout for x in ("--backend", "--lane", "--determinism", "--json", "--threads", "--chunk", "--cpu-level")),
        r.stdout,
    )


honest()
refutations()
refusals()
partial()
tower()
rounding_lanes()
nearer()
near_tie()
texts()
usage()
folder.cleanup()
finish()
