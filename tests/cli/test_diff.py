#!/usr/bin/env python3
"""lemma diff: clean sides are explained, a planted fault is named at its op, tokens are judged by the arbiter. usage: B=build test_diff.py"""

import json
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import trace_file as st  # noqa: E402
from drive import FIXTURES, LLAMA, LLAMA_GGUF, check, finish, lemma, refused  # noqa: E402

ORACLE = os.path.join(LLAMA, "oracle.safetensors")
IDS = "5,17,200,3,42,99,7,7,150,31"
folder = tempfile.TemporaryDirectory()


def path(name):
    return os.path.join(folder.name, name)


def diff(*args, code, last):
    """The JSON of a diff whose exit status and last line of text are these."""
    text, r = lemma("diff", *args), lemma("diff", *args, "--json")
    end = text.stdout.rstrip().split("\n")[-1]
    name = " ".join(os.path.basename(str(a)) for a in args)
    check(f"{name}: {last}", text.returncode == r.returncode == code and end.startswith(last), f"{text.returncode} {r.returncode}: {text.stdout}{text.stderr}")
    out = json.loads(r.stdout)
    check(f"{name}: JSON agrees", out["exit"] == code and bool(out["findings"]) == (code == 1) and out["verdict"] == last.split(":")[0].split(" ")[-1], str(out["verdict"]))
    return out


def doctored(name, source, change):
    tensors, meta = st.read(source)
    change(tensors, meta)
    return st.write(path(name), tensors, meta)


def blamed(out, side, op, says):
    f = out["findings"][0] if out["findings"] else {}
    check(f"blames {side} at {op}", f.get("side") == side and f.get("op") == op and says in f.get("text", ""), str(out["findings"]))


def clean():
    out = diff(LLAMA, ORACLE, code=0, last="explained: every difference is rounding")
    taps = {t["name"]: t for t in out["cases"][1]["taps"]}
    ops = [t for t in taps.values() if "replay" in t["A"]]
    check("every op is replayed", len(ops) == len(taps) > 50)
    check("hidden states of the trace too", sum("replay" in t.get("B", {}) for t in taps.values()) == 7)
    check("shares are below one", all(t["A"]["replay"]["share"] < 1 and t["A"]["envelope"]["share"] < 1 for t in ops))
    check("an op's own error is below its band", all(t["A"]["replay"]["error"] <= t["A"]["replay"]["explained"] for t in ops))
    grows = [taps[f"layer.{i}.out"]["A"]["envelope"]["band"] for i in range(4)]
    check("the band grows with depth", grows == sorted(grows), str(grows))
    check("greedy", all(c["greedy"] == c["greedy_equal"] == 24 for c in out["cases"]))
    rows = out["cases"][1]["rows"]
    check("a row for each position, the continuation's too", [r["position"] for r in rows] == list(range(9 + 23)))
    check("KL is tiny", all(0 <= r["kl"] < 1e-8 for r in rows[:9]))
    diff(ORACLE, ORACLE, "--model", LLAMA, code=0, last="identical: ")
    diff(LLAMA, LLAMA + ":cpu", "--ids", IDS, "--cpu-level", "c", "--greedy", "6", code=0, last="identical: ")
    diff(LLAMA + ":f64", LLAMA, "--ids", IDS, code=0, last="explained: ")
    diff(LLAMA_GGUF, LLAMA_GGUF + ":f64", "-p", "hello, world", code=0, last="explained: ")
    with open(path("text"), "w") as f:
        f.write("hello, world")
    diff(LLAMA_GGUF, LLAMA_GGUF + ":f64", "--text", path("text"), code=0, last="explained: ")


def faults_in_a_trace():
    taps = path("taps.safetensors")
    r = lemma("dump", LLAMA, "--ids", IDS, "--taps", "-o", taps)
    check("dump", r.returncode == 0, r.stderr)
    diff(LLAMA, taps, code=0, last="identical: ")

    def one_element(op, factor):
        def change(t, m):
            x = t[f"c0.tap.{op}"]
            st.put(x, 40, st.get(x, 40) * factor)

        return change

    out = diff(LLAMA, doctored("a.safetensors", taps, one_element("layer.2.ffn.down", 1.01)), code=1, last="unexplained: ")
    blamed(out, "B", "layer.2.ffn.down", "layer.2.ffn.down (linear)")
    out = diff(LLAMA, doctored("a.safetensors", taps, one_element("layer.1.attn.q_rope", float("nan"))), code=1, last="unexplained: ")
    blamed(out, "B", "layer.1.attn.q_rope", "position 0")

    def hidden(t, m):
        x = t["c1.hidden.layer.1"]
        for i in range(0, 96):
            st.put(x, i, st.get(x, i) * 1.001)

    out = diff(LLAMA, doctored("a.safetensors", ORACLE, hidden), code=1, last="unexplained: ")
    blamed(out, "B", "layer.1.out", "between layer.0.out and layer.1.out")
    check("the other cases are clean", {f["case"] for f in out["findings"]} == {1})

    def no_hidden(t, m):
        for k in [k for k in t if "hidden" in k]:
            del t[k]
        st.put(t["c1.logits"], 320 * 4 + 7, st.get(t["c1.logits"], 320 * 4 + 7) + 0.01)

    out = diff(LLAMA, doctored("a.safetensors", ORACLE, no_hidden), code=1, last="unexplained: ")
    blamed(out, "B", "logits", "between the token ids and logits: position 4")


def faults_in_the_best_few():
    full = path("full.safetensors")
    lemma("dump", LLAMA, "--ids", IDS, "-o", full)

    def keep(change):
        def f(t, m):
            for k in [k for k in t if k not in ("c0.ids", "c0.top.ids", "c0.top.logprobs", "c0.argmax")]:
                del t[k]
            change(t)

        return f

    out = diff(LLAMA, doctored("a.safetensors", full, keep(lambda t: None)), code=0, last="explained: ")
    rows = out["cases"][0]["rows"]
    check("no KL without logits, but log-probabilities", all(r["kl"] is None and r["dlogprob"] < 1e-5 for r in rows))
    x = lambda t: st.put(t["c0.top.logprobs"], 64 * 3, st.get(t["c0.top.logprobs"], 64 * 3) - 0.01)  # noqa: E731
    out = diff(LLAMA, doctored("a.safetensors", full, keep(x)), code=1, last="unexplained: ")
    blamed(out, "B", "logits", "position 3")


def tokens():
    def other(t, m):
        st.put(t["c1.greedy"], 5, (st.get(t["c1.greedy"], 5) + 1) % 320)

    out = diff(LLAMA, doctored("a.safetensors", ORACLE, other), code=1, last="unexplained: ")
    c = out["cases"][1]
    check("parts at step 5", c["greedy_equal"] == 5 and c["positions"] == 9 + 5)
    check("the reference is wrong", c["rows"][-1]["verdict"] == "B is wrong", str(c["rows"][-1]))
    blamed(out, "B", "logits", "B chooses")
    packed = path("gemma2.gguf")
    check("quantize", lemma("quantize", os.path.join(FIXTURES, "gemma2"), packed, "q4_0").returncode == 0)
    ids = ",".join(str((i * 6007 + i * i * 17 + 3) % 323) for i in range(60))
    out = diff(packed + ":cpu:i8", packed + ":f64", "--ids", ids, code=0, last="explained: rounding, and ")
    flips = [r for r in out["cases"][0]["rows"] if "verdict" in r]
    check("flips are near-ties", flips and all(r["verdict"] == "a near-tie" and r["A"]["deficit"] <= r["A"]["reach"] for r in flips), str(flips))
    check("the i8 band is wider than float32's", all(r["A"]["reach"] > 1000 * r["B"]["reach"] for r in out["cases"][0]["rows"]))
    r = lemma("diff", packed + ":cpu:i8", "--ties", "--ids", ids)
    ties = [line for line in r.stdout.split("\n") if line.startswith("  tie ")]
    want = {row["position"] for row in out["cases"][0]["rows"] if row["A"]["tie"]}
    got = {int(line.split("position ")[1].split(":")[0]) for line in ties}
    check("--ties lists them", r.returncode == 0 and got == want and {f["position"] for f in flips} <= got, r.stdout)
    check("--ties counts them", r.stdout.rstrip().endswith(f"{len(ties)} positions could be flipped by rounding"), r.stdout)


def another_model():
    """A port with a wrong number in its config, against the right one: the op that reads it is named."""
    for key, value, op in (("rms_norm_eps", 0.01, "layer.0.attn.norm"), ("hidden_act", "gelu", "layer.0.ffn.act")):
        bad = path("bad")
        shutil.rmtree(bad, ignore_errors=True)
        shutil.copytree(LLAMA, bad)
        with open(os.path.join(bad, "config.json")) as f:
            config = json.load(f)
        check(f"the config has {key}", key in config)
        config[key] = value
        with open(os.path.join(bad, "config.json"), "w") as f:
            json.dump(config, f)
        out = diff(LLAMA, bad, "--ids", IDS, code=1, last="unexplained: ")
        blamed(out, "B", op, op)
        late = next(t for t in out["cases"][0]["taps"] if t["name"] == "logits")["B"]
        check("what follows it is drift, and right by itself", late["envelope"]["share"] > 10 and late["replay"]["share"] < 1, str(late))
        out = diff(bad, ORACLE, code=1, last="unexplained: ")
        blamed(out, "B", "layer.0.out", "between embed and layer.0.out")


def refusals():
    refused("diff", LLAMA, says=["two sides"])
    refused("diff", "nowhere", ORACLE, says=["nowhere", "no such file"])
    refused("diff", LLAMA + ":cpu:i7", ORACLE, says=["i7", "lane"])
    refused("diff", ORACLE + ":f32:x", LLAMA, says=["one suffix"])
    refused("diff", LLAMA, LLAMA, says=["--ids"])
    refused("diff", LLAMA, LLAMA, "--ids", "1,2", "-p", "x", says=["at most one"])
    refused("diff", LLAMA, LLAMA, "--ids", "1,320", says=["320", "vocabulary"])
    refused("diff", LLAMA, LLAMA, "-p", "x", says=["tokenizer"], code=3)
    refused("diff", LLAMA, ORACLE, "--samples", "17", says=["--samples"])
    moe = os.path.join(FIXTURES, "gpt_oss")
    taps = path("moe.safetensors")
    check("dump", lemma("dump", moe, "--ids", "1,2,3", "--taps", "-o", taps).returncode == 0)
    route = next(k for k in st.read(taps)[0] if k.endswith(".route"))
    for bad in (-1.0, 99999.0, 0.5, float("nan")):
        change = lambda t, m: st.put(t[route], 0, bad)  # noqa: B023, E731
        refused("diff", moe, doctored("a.safetensors", taps, change), says=[route, "expert"])
    twice = lambda t, m: st.put(t[route], 1, st.get(t[route], 0))  # noqa: E731
    refused("diff", moe, doctored("a.safetensors", taps, twice), says=[route, "twice"])


clean()
faults_in_a_trace()
faults_in_the_best_few()
tokens()
another_model()
refusals()
folder.cleanup()
finish()
