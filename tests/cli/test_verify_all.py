#!/usr/bin/env python3
"""lemma verify --all and --ids --expect: tables, JSON, exit statuses. usage: B=build test_verify_all.py"""
import json
import os
import shutil
import struct
import sys
import tempfile

from drive import LLAMA, LLAMA_GGUF, ROOT, check, finish, lemma, refused, trace

sys.path.insert(0, os.path.join(ROOT, "tests"))
import trace_file as st  # noqa: E402

ORACLE = os.path.join(LLAMA, "oracle.safetensors")
OFF = ("--determinism", "off")


def all_json(name, code, *args):
    r = lemma("verify", "--all", *args, *OFF, "--json")
    ok = check(f"{name}: status {code}", r.returncode == code, f"status {r.returncode}\n{r.stdout[:500]}{r.stderr}")
    return (json.loads(r.stdout) if ok else {"rows": [], "proven": 0, "open": 0, "refuted": 0}), r.stderr


def model(folder, name, change=None):
    """A copy of the llama fixture, its trace changed."""
    to = os.path.join(folder, name)
    shutil.copytree(LLAMA, to)
    if change:
        tensors, meta = st.read(ORACLE)
        change(tensors, meta)
        st.write(os.path.join(to, "oracle.safetensors"), tensors, meta)
    return to


def tables(tmp):
    good = os.path.join(tmp, "good")
    os.mkdir(good)
    model(good, "one")
    shutil.copy(LLAMA_GGUF, os.path.join(good, "two.gguf"))
    with open(os.path.join(good, "traces.txt"), "w") as f:
        f.write("two.gguf | one/oracle.safetensors | converted\nelsewhere.gguf | - | same | make it\n")
    out, err = all_json("good", 0, good)
    rows = {(os.path.basename(r["model"]), r["backend"]): r for r in out["rows"]}
    check("one row each", sorted(rows) == [("elsewhere.gguf", ""), ("one", "cpu"), ("one", "f64"), ("two.gguf", "cpu"), ("two.gguf", "f64")] and not err,
          f"{list(rows)} {err}")
    one, two = rows.get(("one", "cpu"), {}), rows.get(("two.gguf", "cpu"), {})
    check("its numbers", one.get("verdict") == "PROVEN" and 0.9999 <= one["cosine"] <= 1 and 0 < one["difference"] <= one["difference_limit"]
          and one["agreement"] is None and one["portable"] and len(one["logits_sha256"]) == len(one["trace_sha256"]) == 64, one)
    check("the counts are the claims'", out["proven"] == sum(c["verdict"] == "PROVEN" for r in out["rows"] if r["ledger"] for c in r["ledger"]["claims"])
          and out["refuted"] == 0 and out["open"] == 3, (out["proven"], out["open"]))
    check("a conversion: the same bits, its binding open", two.get("logits_sha256") == one.get("logits_sha256") and
          [c["section"] for c in two["ledger"]["claims"] if c["verdict"] == "OPEN"] == ["binding"], two)
    check("the arbiter's bits are no promise", rows[("one", "f64")]["portable"] is False, "")
    check("what isn't here is open", rows[("elsewhere.gguf", "")]["note"] == "make it", "")
    only, _ = all_json("one backend", 0, good, "--backend", "cpu")
    check("one backend, the same hash", len(only["rows"]) == 3 and {r["logits_sha256"] for r in only["rows"] if r["ledger"]} == {one["logits_sha256"]}, "")

    r = lemma("verify", "--all", good, *OFF)
    lines = r.stdout.splitlines()
    check("text", r.returncode == 0 and lines[0].startswith("PROVEN ") and lines[-1] == f"{out['proven']} proven, 3 open, 0 refuted", r.stdout)
    r = lemma("verify", "--all", good, *OFF, "--markdown")
    check("Markdown", r.returncode == 0 and r.stdout.splitlines()[-1] == lines[-1] and "## Open claims" in r.stdout and "## Refuted" not in r.stdout
          and r.stdout.count("| PROVEN |") == 4 and "elsewhere.gguf | make it |" in r.stdout, r.stdout)


def bad_tables(tmp):
    bad = os.path.join(tmp, "bad")
    os.mkdir(bad)

    def wrong(t, m):
        struct.pack_into("<f", t["c1.logits"][2], 40, 77.0)
    model(bad, "wrong", wrong)
    out, _ = all_json("refuted", 1, bad)
    check("refuted on both", [r["verdict"] for r in out["rows"]] == ["REFUTED"] * 2 and out["refuted"] >= 2, "")
    for form in ((), ("--markdown",)):
        r = lemma("verify", "--all", bad, *OFF, *form)
        check(f"the counterexample is shown {form}", r.returncode == 1 and "max |dlogit|" in r.stdout and "the trace's 77" in r.stdout, r.stdout)
    model(bad, "not_finite", lambda t, m: struct.pack_into("<f", t["c1.logits"][2], 40, float("nan")))
    out, _ = all_json("a NaN", 1, bad)
    check("a NaN is no number", [r["difference"] for r in out["rows"] if r["model"].endswith("not_finite")] == [None, None], "")

    worse = os.path.join(tmp, "worse")
    os.mkdir(worse)
    model(worse, "good")
    with open(os.path.join(model(worse, "torn"), "model.safetensors"), "wb") as f:
        f.write(b"torn")
    with open(os.path.join(model(worse, "strange"), "config.json"), "w") as f:
        json.dump({"model_type": "strange"}, f)
    out, err = all_json("a file that is wrong: the rest is judged, and the status is 2", 2, worse)
    rows = {(os.path.basename(r["model"]), r["backend"]): r for r in out["rows"]}
    check("the rest", rows.get(("good", "cpu"), {}).get("verdict") == "PROVEN" and rows[("torn", "cpu")]["verdict"] == "OPEN"
          and "torn" in rows[("torn", "cpu")]["note"] and "strange" in rows[("strange", "f64")]["note"], rows)
    check("one line each for what is wrong", all(x.startswith("lemma verify: ") and "torn" in x for x in err.splitlines()) and err.count("\n") == 2, err)
    os.mkdir(os.path.join(tmp, "empty"))
    r = lemma("verify", "--all", os.path.join(tmp, "empty"))
    check("nothing there: status 3", r.returncode == 3 and r.stdout.endswith("0 proven, 0 open, 0 refuted\n"), r.stdout + r.stderr)


def ids():
    t = trace(ORACLE)
    prompt, want = (",".join(map(str, t[f"c1.{k}"])) for k in ("ids", "greedy"))
    n = len(t["c1.greedy"])
    r = lemma("verify", LLAMA, "--ids", prompt, "--expect", want)
    check("as expected", r.returncode == 0 and r.stdout.endswith("\n1 proven, 0 open, 0 refuted\n") and f"{n} of {n} equal" in r.stdout, r.stdout + r.stderr)
    for backend in ("cpu", "f64"):
        r = lemma("verify", LLAMA, "--ids", prompt, "--expect", want, "--topk", 5, "--json", "--backend", backend)
        out = json.loads(r.stdout)
        steps = out["steps"]
        check(f"JSON on {backend}", r.returncode == 0 and out["expect_match"] is True and out["generated_ids"] == out["expected_ids"] == t["c1.greedy"]
              and len(steps) == n, r.stdout[:500])
        ok = all(len(s["top"]) == 5 and s["top"][0]["id"] == s["id"] and s["top"][0]["logit"] == s["logit"] == s["expected_logit"] and
                 [x["logit"] for x in s["top"]] == sorted((x["logit"] for x in s["top"]), reverse=True) and -20 < s["logprob"] < 0 for s in steps)
        v = 320
        rows = t["c1.greedy.logits"] if "c1.greedy.logits" in t else None
        row = t["c1.logits"][-v:] if rows is None else rows[:v]
        best = sorted(range(v), key=lambda i: (-row[i], i))[:5]
        check(f"top-5 on {backend}", ok and [x["id"] for x in steps[0]["top"]] == best, steps[0])
    other = list(t["c1.greedy"])
    other[2] = (other[2] + 1) % 320
    r = lemma("verify", LLAMA, "--ids", prompt, "--expect", ",".join(map(str, other)), "--json")
    out = json.loads(r.stdout)
    check("a mismatch", r.returncode == 1 and out["expect_match"] is False and out["generated_ids"] == t["c1.greedy"] and out["expected_ids"] == other
          and out["steps"][2]["expected_logit"] < out["steps"][2]["logit"], r.stdout)
    r = lemma("verify", LLAMA, "--ids", prompt, "--expect", ",".join(map(str, other)))
    check("a mismatch in words", r.returncode == 1 and f"2 of {n} equal" in r.stdout and "step 2: the ids part here" in r.stdout
          and r.stdout.endswith("\n0 proven, 0 open, 1 refuted\n"), r.stdout)


with tempfile.TemporaryDirectory() as scratch:
    tables(scratch)
    bad_tables(scratch)
ids()
refused("verify", LLAMA, "--ids", "1,2", says=["--ids and --expect go together"])
refused("verify", LLAMA, "--expect", "1,2", says=["--ids and --expect go together"])
refused("verify", LLAMA, "--ids", "1,2", "--expect", "320", says=["--expect: id 320", "320"])
refused("verify", LLAMA, "--ids", "1,320", "--expect", "3", says=["320"])
refused("verify", LLAMA, "--ids", "1", "--expect", "1", "--topk", "321", says=["--topk", "320"])
refused("verify", LLAMA, "--topk", "3", says=["--topk goes with"])
refused("verify", LLAMA, ORACLE, "--ids", "1", "--expect", "1", says=["one argument too many"])
refused("verify", LLAMA, "--markdown", says=["--markdown goes with --all"])
refused("verify", LLAMA, "--models", "x", says=["--models goes with --all"])
refused("verify", "--all", LLAMA, "--json", "--markdown", says=["give one of them"])
refused("verify", "--all", LLAMA, "--ids", "1", "--expect", "1", says=["--all goes with"])
refused("verify", "--all", LLAMA, "--converted", says=["--all goes with"])
refused("verify", "--all", "./nowhere", says=["nowhere"])
r = lemma("verify", LLAMA_GGUF, ORACLE, *OFF)
check("a conversion: refuted by its hash", r.returncode == 1, r.stdout)
r = lemma("verify", LLAMA_GGUF, ORACLE, *OFF, "--converted")
check("and open when it is said to be one", r.returncode == 0 and "OPEN     binding" in r.stdout, r.stdout)
finish()
