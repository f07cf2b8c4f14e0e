#!/usr/bin/env python3
"""lemma ppl: its numbers equal those computed here from dumped logits, the compact reference bounds what the whole one gives, and nothing
depends on how it was run. usage: B=build test_ppl.py"""

import json
import math
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
import trace_file as st  # noqa: E402
from gguf_file import Reader  # noqa: E402
from drive import LEMMA, LLAMA, LLAMA_GGUF, ROOT, check, finish, good, lemma, refused  # noqa: E402

ORACLE = os.path.join(LLAMA, "oracle.safetensors")
IDS = [(i * 6007 + i * i * 17 + 3) % 320 for i in range(45)]
V = 320
folder = tempfile.TemporaryDirectory()


def path(name):
    return os.path.join(folder.name, name)


def listed(ids):
    return ",".join(map(str, ids))


def ppl(*args):
    return json.loads(good("ppl", *args, "--json"))


def close(a, b, rel=1e-9, least=1e-12):
    return a is not None and abs(a - b) <= rel * abs(b) + least


# ---- the numbers again, from logits -----------------------------------------------------------------------------------------------
def logits(model, ids):
    """[T][V] of what the model computes for these ids."""
    file = path("logits.safetensors")
    good("dump", model, "--ids", listed(ids), "-o", file)
    x = st.values(st.read(file)[0]["c0.logits"])
    return [x[i * V : i * V + V] for i in range(len(ids))]


def logprobs(row):
    most = max(row)
    lse = most + math.log(math.fsum(math.exp(x - most) for x in row))
    return [x - lse for x in row]


def windows(ids, ctx, stride):
    return [ids[at : at + ctx] for at in range(0, len(ids) - ctx + 1, stride)]


def nlls(model, ids, ctx, stride):
    """per window, the negative log-likelihoods of its scored tokens"""
    out = []
    for w in windows(ids, ctx, stride):
        rows = logits(model, w)
        first = ctx - 1 - stride if stride < ctx else ctx // 2
        out.append([-logprobs(rows[i])[w[i + 1]] for i in range(first, ctx - 1)])
    return out


def mean_se(x):
    mean = math.fsum(x) / len(x)
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in x) / len(x) / (len(x) - 1))


def kl(p, q):
    return math.fsum(math.exp(a) * (a - b) for a, b in zip(p, q))


def best(p, n):
    return sorted(range(len(p)), key=lambda v: (-p[v], v))[:n]


def kl_listed(p, q, n):
    """KL with all but p's n best ids in one bucket, and p's mass in it"""
    top = set(best(p, n))
    rest = [math.log(math.fsum(math.exp(x) for v, x in enumerate(d) if v not in top)) for d in (p, q)]
    return kl([p[v] for v in top] + rest[:1], [q[v] for v in top] + rest[1:]), math.exp(rest[0])


# ---- tests -------------------------------------------------------------------------------------------------------------------------
def perplexity():
    for ctx, stride in ((8, 8), (9, 9), (8, 3), (10, 9)):
        out = ppl(LLAMA, "--ids", listed(IDS), "--ctx", ctx, "--stride", stride)
        per = nlls(LLAMA, IDS, ctx, stride)
        flat = [x for w in per for x in w]
        mean, se = mean_se(flat)
        name = f"ctx {ctx}, stride {stride}"
        check(f"{name}: windows", [w["scored"] for w in out["windows"]] == [len(w) for w in per], str(out["windows"]))
        check(f"{name}: nll", close(out["nll"], mean) and close(out["nll_se"], se, 1e-6), f"{out['nll']} {mean} {out['nll_se']} {se}")
        check(f"{name}: perplexity", close(out["perplexity"], math.exp(mean)) and close(out["perplexity_se"], math.exp(mean) * se, 1e-6))
        check(f"{name}: each window", all(close(o["nll"], sum(w) / len(w)) for o, w in zip(out["windows"], per)))
        n = len(per)
        by = math.sqrt(sum((sum(w) - len(w) * mean) ** 2 for w in per) * n / (n - 1)) / len(flat)
        check(f"{name}: error by windows", close(out["nll_se_windows"], by, 1e-6), f"{out['nll_se_windows']} {by}")
    short = ppl(LLAMA, "--ids", "5,6,7,8,9")
    check("a short text is one window", short["ctx"] == 5 and short["scored"] == 2)
    two = ppl(LLAMA, "--ids", listed(IDS), "--ctx", 8, "--windows", 2)
    check("--windows", len(two["windows"]) == 2 and two["scored"] == 6)
    file = path("ids.txt")
    with open(file, "w") as f:
        f.write("\n".join(map(str, IDS)) + "\n")
    check("ids from a file", ppl(LLAMA, "--ids", file, "--ctx", 8) == ppl(LLAMA, "--ids", listed(IDS), "--ctx", 8))
    text = good("ppl", LLAMA, "--ids", file, "--ctx", 8)
    check("the text says what is scored", "5 windows of 8 side by side, the second half of each scored (3 tokens)" in text, text)
    check("and ends with the perplexity", text.rstrip().split("\n")[-1].startswith("perplexity  "), text)


def texts():
    text = path("text")
    with open(text, "w") as f:
        f.write("the quick brown fox <s> jumps over the lazy dog. " * 3)
    out = ppl(LLAMA_GGUF, text, "--ctx", 16)
    with open(text) as f:
        r = json.loads(good("tokenize", LLAMA_GGUF, f.read(), "--json"))
    ids = r["ids"] if isinstance(r, dict) else r
    check("tokens", len(ids) >= 16)
    check("same windows whatever way they come", out["scored"] == (out["tokens"] // 16) * 7)
    with open(text, "rb") as f:
        r = subprocess.run([LEMMA, "ppl", LLAMA_GGUF, "-", "--ctx", "16", "--json"], stdin=f, capture_output=True, text=True, timeout=60)
    check("from stdin", r.returncode == 0 and json.loads(r.stdout) == out, r.stderr)


def bos():
    """A tokenizer that begins a text with BOS: so does every window."""
    file, text, key = path("bos.gguf"), path("bos"), b"tokenizer.ggml.add_bos_token"
    g = Reader(LLAMA_GGUF)
    end, start = g.at, (g.at + 31) // 32 * 32
    head = g.data[:16] + struct.pack("<QQ", struct.unpack_from("<Q", g.data, 16)[0] + 1, len(key)) + key + struct.pack("<IB", 7, 1) + g.data[24:end]
    with open(file, "wb") as f:
        f.write(head + bytes(-len(head) % 32) + g.data[start:])
    with open(text, "w") as f:
        f.write("hello world, " * 12)
    firsts = []
    for model in (LLAMA_GGUF, file):
        out = ppl(model, text, "--ctx", 8, "--save", path("bos.st"))
        cases, _ = st.read(path("bos.st"))
        firsts.append({st.values(cases[f"c{k}.ids"])[0] for k in range(len(out["windows"]))})
        check(f"bos {out['bos']}", out["bos"] == (model == file))
    check("every window begins with it", len(firsts[0]) > 1 and len(firsts[1]) == 1, str(firsts))


def against_a_trace():
    out = ppl(LLAMA, "--kl", ORACLE)["kl"]
    check("transformers' own run", not out["lower_bound"] and out["max"] < 1e-8 and out["top1"] == 1 and out["max_dlogprob"] < 1e-4, str(out))
    rows = st.read(ORACLE)[0]
    check("every position of every case", out["positions"] == sum(len(st.values(rows[f"c{k}.ids"])) for k in range(3)))
    # another distribution: the reference's logits moved
    tensors, meta = st.read(ORACLE)
    x = st.values(tensors["c1.logits"])
    moved = [v + 0.6 * math.sin(1.7 * i) for i, v in enumerate(x)]
    tensors = {"c1.ids": tensors["c1.ids"], "c1.logits": st.tensor("F32", [len(x) // V, V], moved)}
    st.write(path("moved.st"), tensors, meta)
    ids = st.values(tensors["c1.ids"])
    own = [logprobs(r) for r in logits(LLAMA, ids)]
    moved = st.values(tensors["c1.logits"])
    ref = [logprobs(moved[i * V : i * V + V]) for i in range(len(ids))]
    per = [kl(p, q) for p, q in zip(ref, own)]
    out = ppl(LLAMA, "--kl", path("moved.st"))["kl"]
    mean, se = mean_se(per)
    check("mean KL", close(out["mean"], mean, 1e-6) and close(out["se"], se, 1e-5), f"{out} {mean} {se}")
    check("p99, median, max", close(out["p99"], sorted(per)[math.ceil(0.99 * len(per)) - 1], 1e-6) and close(out["max"], max(per), 1e-6)
          and close(out["median"], sorted(per)[math.ceil(len(per) / 2) - 1], 1e-6), str(out))
    check("where", out["max_window"] == 1 and out["max_position"] == per.index(max(per)))
    same = sum(best(p, 1) == best(q, 1) for p, q in zip(ref, own)) / len(per)
    check("top-1", close(out["top1"], same))
    far = max(abs(p[v] - q[v]) for p, q in zip(ref, own) for v in best(p, 64))
    check("largest |dlogprob| over the reference's best 64", close(out["max_dlogprob"], far, 1e-5), f"{out['max_dlogprob']} {far}")


def compact():
    ids = [(i * 131 + i * i * 7) % V for i in range(40)]
    packed, ref = path("q4.gguf"), path("compact.st")
    good("quantize", LLAMA, packed, "q4_0")
    good("ppl", LLAMA, "--ids", listed(ids), "--ctx", 20, "--save", ref, "--top", 12)
    good("diff", LLAMA, ref)  # a trace by its bytes, whatever its name
    tensors, meta = st.read(ref)
    check("what the reference has", sorted(tensors) == sorted(f"c{k}.{x}" for k in (0, 1) for x in ("ids", "top.ids", "top.logprobs", "top.rest")), str(list(tensors)))
    check("of each position so many", tensors["c0.top.ids"][1] == [20, 12] and tensors["c0.top.rest"][1] == [20] and meta["c0.scored_from"] == "10")
    whole, listed_kl, rest, far = [], [], [], 0
    for w in windows(ids, 20, 20):
        for p, q in list(zip(map(logprobs, logits(LLAMA, w)), map(logprobs, logits(packed, w))))[10:19]:
            whole.append(kl(p, q))
            a, b = kl_listed(p, q, 12)
            listed_kl.append(a)
            rest.append(b)
            far = max(far, max(abs(x - y) for x, y in zip(p, q)))
    out = ppl(packed, "--kl", ref)
    got = out["kl"]
    mean = sum(listed_kl) / len(whole)
    check("KL with one bucket", got["lower_bound"] and got["positions"] == 18 and close(got["mean"], mean, 1e-5), f"{got} {mean}")
    check("the bucket's mass", close(got["rest"], sum(rest) / len(rest), 1e-5) and got["rest"] > 0.01, f"{got['rest']} {sum(rest) / len(rest)}")
    full = sum(whole) / len(whole)
    check("the whole KL lies within the stated bound", got["mean"] <= full <= got["mean"] + 2 * far * got["rest"], f"{got['mean']} {full} {far}")
    check("and is not the same: the bound is put to the test", full > 1.02 * got["mean"], f"{full} {got['mean']}")
    check("each position, too", all(a <= b + 1e-12 <= a + 2 * far * r + 1e-12 for a, b, r in zip(listed_kl, whole, rest)))
    check("the perplexity is that of the text", out["perplexity"] == ppl(packed, "--ids", listed(ids), "--ctx", 20)["perplexity"])
    both = ppl(packed, "--ids", listed(ids), "--ctx", 20, "--kl", ref)
    check("tokens and reference together", both["kl"] == got)
    # against itself: rounding to float32 makes nothing up
    own = ppl(LLAMA, "--kl", ref)["kl"]
    check("nothing where there is nothing", 0 <= own["max"] < 1e-12 and own["top1"] == 1, str(own))
    # without the remainder recorded, it is what is missing to one
    for k in (0, 1):
        del tensors[f"c{k}.top.rest"]
    st.write(path("norest.st"), tensors, meta)
    less = ppl(packed, "--kl", path("norest.st"))["kl"]
    check("a list without a remainder", close(less["mean"], got["mean"], 1e-3), f"{less['mean']} {got['mean']}")
    # the whole vocabulary listed: no bucket, the whole KL
    good("ppl", LLAMA, "--ids", listed(ids), "--ctx", 20, "--save", ref, "--top", 65536)
    check("a list of all needs no remainder", "c0.top.rest" not in st.read(ref)[0])
    check("and gives the whole KL", close(ppl(packed, "--kl", ref)["kl"]["mean"], full, 1e-5))
    good("ppl", LLAMA, "--ids", listed(ids), "--ctx", 20, "--save", ref)
    r = lemma("verify", LLAMA, ref, "--determinism", "off")
    check("verify reads it", r.returncode == 0 and "0 refuted" in r.stdout, r.stdout + r.stderr)


def same_bits():
    want = ppl(LLAMA, "--ids", listed(IDS), "--ctx", 16)
    for args in (["--threads", "1"], ["--threads", "3", "--chunk", "5"], ["--cpu-level", "c"]):
        got = ppl(LLAMA, "--ids", listed(IDS), "--ctx", 16, *args)
        got["model"] = want["model"]
        check(f"the same with {args}", got == want, f"{got} {want}")
    other = ppl(LLAMA, "--ids", listed(IDS), "--ctx", 16, "--backend", "f64")
    check("the arbiter is near, not equal", other["nll"] != want["nll"] and close(other["nll"], want["nll"], 1e-6))


def interrupted():
    file, ref = path("many.txt"), path("never.st")
    with open(file, "w") as f:
        f.write(",".join(str(i * 7 % V) for i in range(400000)))
    p = subprocess.Popen([LEMMA, "ppl", LLAMA, "--ids", file, "--save", ref], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(1.0)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=60)
    check("Ctrl-C", p.returncode == 130 and not out and err.count("\n") == 1 and "interrupted" in err, f"{p.returncode} {out} {err}")
    check("leaves nothing behind", not [n for n in os.listdir(folder.name) if n.startswith("never")], str(os.listdir(folder.name)))


def refusals():
    refused("ppl", LLAMA, says=["nothing to score"])
    refused("ppl", LLAMA, path("nowhere"), says=["nowhere"])
    refused("ppl", LLAMA, os.path.join(ROOT, "README.md"), says=["no tokenizer", "--ids"])
    refused("ppl", LLAMA, os.path.join(ROOT, "README.md"), "--ids", "1,2,3,4", says=["not both"])
    refused("ppl", LLAMA, "--ids", "1,2,3", says=["3 tokens", "too few", "give 4 or more"])
    refused("ppl", LLAMA, "--ids", "1,2,3,320", says=["320 at position 3", "vocabulary of 320"])
    refused("ppl", LLAMA, "--ids", "1,2,x", says=["1,2,x"])
    refused("ppl", LLAMA, "--ids", listed(IDS), "--ctx", "8", "--stride", "9", says=["--stride", "longer than a window"])
    refused("ppl", LLAMA, "--ids", listed(IDS), "--top", "9", says=["--top goes with --save"])
    refused("ppl", LLAMA, "--ids", listed(IDS), "--save", os.path.join(LLAMA, "config.json"), says=["a file that is being read"])
    refused("ppl", LLAMA, "--ids", listed(IDS), "--save", path("no/where"), says=["no/where"])
    refused("ppl", LLAMA, "--kl", ORACLE, "--ctx", "8", says=["its own windows"])
    refused("ppl", LLAMA, "--kl", ORACLE, "--ids", listed(IDS), says=["case 0, position 0"])
    good("dump", LLAMA, "--ids", listed(IDS), "-o", path("few.st"))
    tensors, meta = st.read(path("few.st"))

    def bad(change, *says):
        t = {k: [v[0], list(v[1]), bytearray(v[2])] for k, v in tensors.items() if k in ("c0.ids", "c0.top.ids", "c0.top.logprobs")}
        m = dict(meta)
        change(t, m)
        st.write(path("bad.st"), t, m)
        refused("ppl", LLAMA, "--kl", path("bad.st"), says=says)

    n = len(st.values(tensors["c0.ids"]))
    bad(lambda t, m: (t.pop("c0.top.ids"), t.pop("c0.top.logprobs")), "nothing to compare with")
    bad(lambda t, m: st.put(t["c0.top.ids"], 1, st.get(t["c0.top.ids"], 0)), "stands twice")
    bad(lambda t, m: st.put(t["c0.top.logprobs"], 1, float("nan")), "not finite")
    bad(lambda t, m: t.update({"c0.top.rest": st.tensor("F32", [n], [float("nan")] * n)}) or st.put(t["c0.top.logprobs"], 1, 1e30), "no distribution")
    bad(lambda t, m: t.update({"c0.top.rest": st.tensor("F32", [n + 1], [0.0] * (n + 1))}), "c0.top.rest", "wanted the shape")
    for text in (str(n - 1), "x", "-1", "1.5", "99999999999"):
        bad(lambda t, m: m.update({"c0.scored_from": text}), "c0.scored_from", text)  # noqa: B023
    r = good("ppl", "-h")
    check("help", all(x in r for x in ("--ctx", "--stride", "--kl", "--save", "--top", "--ids", "--lane", "--json")), r)


perplexity()
texts()
bos()
against_a_trace()
compact()
same_bits()
interrupted()
refusals()
folder.cleanup()
finish()
