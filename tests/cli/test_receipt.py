#!/usr/bin/env python3
"""Receipts: what lemma run --receipt wrote is reproduced on other threads, chunks and instruction sets; what was changed is caught and
named, the digests forged with it or not; a hostile receipt is refused. usage: B=build test_receipt.py"""
import hashlib
import json
import os
import shutil
import tempfile

from drive import FIXTURES, LLAMA_GGUF, check, demo_model, finish, good, lemma, refused, skip, trace

HYBRID = os.path.join(FIXTURES, "hybrid/hybrid-q4_k_m.gguf")
PHI = os.path.join(FIXTURES, "phi3")
IDS = "5,17,200,3,42,99,7,7,150,31"
SAMPLED = ["--temp", "0.9", "--top-k", "40", "--top-p", "0.95", "--min-p", "0.01", "--repeat-penalty", "1.1", "--seed", "18446744073709551615"]
folder = tempfile.TemporaryDirectory()


def path(name):
    return os.path.join(folder.name, name)


def make(name, model, *args, ids=IDS, n=24):
    out = path(name)
    good("run", model, "--ids", ids, "-n", n, "--ignore-eos", "--print-ids", "--receipt", out, *args)
    with open(out) as f:
        return out, json.load(f)


def verify(model, receipt, *args):
    r = lemma("verify", model, "--receipt", receipt, "--json", *args)
    return r.returncode, json.loads(r.stdout) if r.stdout else {"claims": []}, r.stderr


def reproduced(name, model, receipt, *args):
    rc, out, err = verify(model, receipt, *args)
    check(f"{name} is reproduced {args}", rc == 0 and len(out["claims"]) == 5 and out["proven"] == 5, f"{rc} {err} {out}")


def levels():
    return [v for v in ("c", "avx2", "avx512", "neon") if lemma("run", LLAMA_GGUF, "--ids", "1", "-n", "1", "--cpu-level", v).returncode == 0]


# ---- made and checked ---------------------------------------------------------------------------------------------------------------
def elsewhere():
    have = levels()
    for model, lane in ((LLAMA_GGUF, "f32"), (HYBRID, "mixed"), (HYBRID, "i8")):
        name = f"{os.path.basename(model)} {lane}"
        receipt, r = make("a.json", model, "--lane", lane, *SAMPLED, n=256)
        check(f"{name}: 256 steps", len(r["steps"]) == 256 and r["lane"] == lane and r["contract"] > 0 and r["sampler"]["seed"] == SAMPLED[-1])
        for level in have:
            reproduced(name, model, receipt, "--cpu-level", level)
        reproduced(name, model, receipt, "--threads", "3", "--chunk", "7")
    receipt, r = make("a.json", LLAMA_GGUF)
    check("greedy", r["sampler"]["temperature"] == 0)
    reproduced("greedy", LLAMA_GGUF, receipt)
    receipt, r = make("a.json", LLAMA_GGUF, *SAMPLED, ids="7", n=9)
    reproduced("a prompt of one id", LLAMA_GGUF, receipt, "--backend", "cpu", "--lane", "f32")
    receipt, r = make("a.json", LLAMA_GGUF, "--backend", "f64", *SAMPLED)
    reproduced("the arbiter's", LLAMA_GGUF, receipt)
    text = good("verify", LLAMA_GGUF, "--receipt", receipt)
    check("the text", "PROVEN   receipt  reproduced                        24 steps" in text and text.endswith("5 proven, 0 open, 0 refuted\n"), text)


def generated_equals_receipt():
    out = path("a.json")
    ids = [int(v) for v in good("run", LLAMA_GGUF, "--ids", IDS, "-n", 16, "--print-ids", "--receipt", out, *SAMPLED).strip().split(",")]
    with open(out) as f:
        r = json.load(f)
    check("the receipt's ids are the run's", [s["id"] for s in r["steps"]] == ids and r["prompt"] == [int(v) for v in IDS.split(",")])
    with open(LLAMA_GGUF, "rb") as f:
        check("the weights' sha256", r["weights_sha256"] == hashlib.sha256(f.read()).hexdigest())
    hashed = path("h.safetensors")
    good("dump", LLAMA_GGUF, "--ids", IDS, "-o", hashed)
    t = trace(hashed)
    width = len(t["c0.logits"]) // len(t["c0.ids"])
    check("the first hash is of the prompt's last row", r["steps"][0]["logits"] == hashlib.sha256(t["c0.logits.bytes"][-4 * width:]).hexdigest())


def over_a_border():
    """The long rope factors take over in mid-generation: rows before and after follow their own."""
    receipt, r = make("a.json", PHI, *SAMPLED, n=60)
    reproduced("across the longrope border", PHI, receipt)
    reproduced("across the longrope border", PHI, receipt, "--chunk", "5", "--cpu-level", "c")
    receipt, r = make("a.json", PHI, *SAMPLED, ids=",".join(str(i % 90 + 3) for i in range(70)), n=9)
    reproduced("past the border from the start", PHI, receipt)


# ---- changed ----------------------------------------------------------------------------------------------------------------------------
def forge(r):
    """The digests of the fields as they are now."""
    s, h = r["sampler"], {}

    def real(v):
        return f"{v:.15g}" if float(f"{v:.15g}") == v else f"{v:.17g}"

    text = {k: json.dumps(r[k]) for k in ("weights_sha256", "backend", "lane", "kv", "contract")}
    text.update({k: real(s[k]) for k in ("temperature", "top_p", "min_p", "repeat_penalty")})
    text.update({k: json.dumps(s[k]) for k in ("top_k", "repeat_last_n", "seed")})
    text["prompt"] = "".join(f"{i}," for i in r["prompt"])
    text["ids"] = "".join(f"{t['id']}," for t in r["steps"])
    for k, v in text.items():
        h[k] = hashlib.sha256(f"{k}={v}".encode()).hexdigest()[:16]
    h["logits"] = hashlib.sha256(b"logits=" + b"".join(bytes.fromhex(t["logits"]) for t in r["steps"])).hexdigest()[:16]
    return h


def changed(name, receipt, change, says, forged_says, model=LLAMA_GGUF):
    """REFUTED, and every string of `says` in the notes; with forged digests every one of `forged_says`."""
    for forged in (False, True):
        with open(receipt) as f:
            r = json.load(f)
        change(r)
        if forged:
            r["digests"] = forge(r)
        with open(path("changed.json"), "w") as f:
            json.dump(r, f)
        rc, out, err = verify(model, path("changed.json"))
        notes = "\n".join(c["note"] for c in out["claims"] if c["verdict"] == "REFUTED")
        last = out["claims"][-1] if out["claims"] else {}
        wanted = forged_says if forged else says
        ok = rc == 1 and all(s in notes for s in wanted) and last.get("claim") == "reproduced" and last["verdict"] == "REFUTED"
        check(f"{name} is named{' under forged digests' if forged else ''}", ok, f"{rc} {err}\n{notes}")


def put(key, value):
    return lambda r: (r["sampler"] if key in r["sampler"] else r).__setitem__(key, value)


def put_step(k, key, value):
    return lambda r: r["steps"][k].__setitem__(key, value)


def tampered():
    receipt, r = make("t.json", LLAMA_GGUF, *SAMPLED, n=200)
    check("forge() is what lemma writes", forge(r) == r["digests"], f"{forge(r)} {r['digests']}")
    other = (r["steps"][100]["id"] + 1) % 300
    changed("an id", receipt, put_step(100, "id", other), ["changed after the receipt was made: ids", f"step 100: the receipt has id {other}", "the id was changed"],
            [f"step 100: the receipt has id {other}", "the id was changed", "step 101 (position 110): the logits are other bits: they follow from id"])
    changed("the last id", receipt, put_step(199, "id", other), ["changed after the receipt was made: ids", "step 199"], [f"step 199: the receipt has id {other}"])
    changed("a prompt's id", receipt, lambda d: d["prompt"].__setitem__(3, 8), ["made: prompt", "step 0 (position 9)", "prompt was changed"], ["step 0 (position 9)"])
    changed("a hash", receipt, put_step(7, "logits", "0" * 64), ["made: logits", "step 7 (position 16): the logits are other bits: logits was changed"],
            ["step 7 (position 16): the logits are other bits", "and this build differ"])
    for key, value in (("temperature", 1.3), ("top_k", 3), ("top_p", 0.5), ("min_p", 0.2), ("repeat_penalty", 1.6), ("seed", "5")):
        changed(key, receipt, put(key, value), [f"changed after the receipt was made: {key}", f"{key} was changed after", "the receipt has id"],
                ["these logits and parameters draw", "it was not drawn with temperature"])
    changed("repeat_last_n", receipt, put("repeat_last_n", 1), ["made: repeat_last_n"], ["it was not drawn with temperature"])
    quantized, _ = make("q.json", HYBRID, *SAMPLED, n=30)
    changed("the lane", quantized, put("lane", "i16"), ["made: lane", "step 0", "lane was changed"], ["step 0 (position 9): the logits are other bits"], HYBRID)
    changed("how keys and values are kept", receipt, put("kv", "q8_0"), ["made: kv", "step 0", "kv was changed"], ["step 0 (position 9): the logits are other bits"])
    changed("the weights' sha256", receipt, put("weights_sha256", "ab" * 32), ["made: weights_sha256", "made with weights abababab"], ["made with weights abababab"])
    flipped = path("flipped.gguf")
    with open(LLAMA_GGUF, "rb") as f:
        data = bytearray(f.read())
    data[-1000] ^= 4
    with open(flipped, "wb") as f:
        f.write(data)
    changed("one flipped byte of the weights", receipt, lambda d: None, ["the receipt was made with weights", "the weights are others"],
            ["the receipt was made with weights", "the weights are others"], model=flipped)


def without_effect():
    """A change that no step shows is told by its digest; forged too, the receipt's claim is true."""
    receipt, r = make("t.json", LLAMA_GGUF)
    r["sampler"]["seed"] = "99"
    with open(receipt, "w") as f:
        json.dump(r, f)
    rc, out, _ = verify(LLAMA_GGUF, receipt)
    check("a seed that nothing was drawn with", rc == 1 and "every step follows, but the receipt was changed" in out["claims"][-1]["note"], str(out))


# ---- refused ------------------------------------------------------------------------------------------------------------------------------
def hostile():
    receipt, r = make("h.json", LLAMA_GGUF, *SAMPLED, n=3)
    with open(receipt) as f:
        text = f.read()

    def refuses(change, *says):
        d = json.loads(text)
        change(d)
        with open(path("bad.json"), "w") as f:
            json.dump(d, f)
        refused("verify", LLAMA_GGUF, "--receipt", path("bad.json"), says=says)

    refuses(put("contract", 99), "contract", "version 99", "lemma 0.1.0")
    refuses(put("receipt_version", 9), "receipt_version", "9")
    refuses(put("kv", "q8"), "kv", "q8")
    refuses(put("lane", "i4"), "i4")
    refuses(put("backend", "tpu"), "tpu")
    refuses(put("temperature", -1), "temperature")
    refuses(put("temperature", "hot"), "temperature")
    refuses(put("top_p", 0), "top_p")
    refuses(put("top_k", 2 ** 40), "top_k")
    for seed in ("18446744073709551616", "-1", "", "1x", "01", 7):
        refuses(put("seed", seed), "seed")
    refuses(put("prompt", []), "prompt")
    refuses(put("prompt", [1, -1]), "prompt")
    refuses(put("prompt", [1, 2.5]), "prompt")
    refuses(put("prompt", [1, 100000]), "100000", "vocabulary")
    refuses(put("steps", [5]), "steps")
    refuses(put_step(1, "logits", "AB" * 32), "steps", "step 1")
    refuses(put_step(1, "id", 2 ** 31), "steps", "step 1")
    refuses(put("surprise", 1), "surprise")
    refuses(lambda d: d["sampler"].__setitem__("typical_p", 0.5), "typical_p")
    refuses(lambda d: d["digests"].pop("ids"), "digests")
    refuses(lambda d: d.pop("steps"), "steps")
    refuses(lambda d: d.pop("receipt_version"), "this is no receipt")
    refuses(put("made_by", 'a"b'), "made_by")
    for cut in (0, 1, len(text) // 2, len(text) - 3):
        with open(path("bad.json"), "w") as f:
            f.write(text[:cut])
        refused("verify", LLAMA_GGUF, "--receipt", path("bad.json"), says=("bad.json",))
    with open(path("bad.json"), "w") as f:
        f.write("[" * 100000)
    refused("verify", LLAMA_GGUF, "--receipt", path("bad.json"), says=("deep",))
    refused("verify", LLAMA_GGUF, "--receipt", path("none.json"), says=("none.json",))
    refused("verify", LLAMA_GGUF, "--receipt", receipt, "--lane", "i8", says=("lane f32", "--lane i8"))
    refused("verify", LLAMA_GGUF, "--receipt", receipt, "--backend", "f64", says=("made on cpu",))
    refused("verify", LLAMA_GGUF, "--receipt", receipt, "--kv", "f16", says=("kept as f32", "--kv f16"))
    reproduced("keys and values as they were", LLAMA_GGUF, receipt, "--kv", "f32")
    double, _ = make("f64.json", LLAMA_GGUF, "--backend", "f64", n=2)
    refused("verify", LLAMA_GGUF, "--receipt", double, "--kv", "f32", says=("kept as the backend does",))
    _, r = make("old.json", HYBRID, "--lane", "i8", "--kv", "f32", n=8)
    r["kv"] = ""  # as it stood there when f32 was the default of every lane
    r["digests"] = forge(r)
    with open(path("old.json"), "w") as f:
        json.dump(r, f)
    reproduced("a receipt that names no type", HYBRID, path("old.json"))
    refused("verify", LLAMA_GGUF, "--receipt", receipt, "--determinism", "full", says=("--determinism goes with",))
    refused("verify", LLAMA_GGUF, "trace.safetensors", "--receipt", receipt, says=("one argument too many",))
    refused("verify", LLAMA_GGUF, "--receipt", receipt, "--ids", "1", "--expect", "2", says=("--receipt goes with",))
    copy = shutil.copy(LLAMA_GGUF, path("own.gguf"))
    refused("run", copy, "--ids", "1", "-n", "1", "--receipt", copy, says=("own.gguf", "that is being read"))
    refused("run", copy, "--ids", "1", "-n", "1", "--receipt", "/dev/null", says=("/dev/null",))
    receipt, r = make("none.json", LLAMA_GGUF, n=0)
    rc, out, err = verify(LLAMA_GGUF, receipt)
    check("nothing generated proves nothing", rc == 3 and "no gate" in err, f"{rc} {err}")


elsewhere()
generated_equals_receipt()
over_a_border()
tampered()
without_effect()
hostile()
model = demo_model()
if model:
    receipt, _ = make("smol.json", model, "--lane", "i8", *SAMPLED, n=24)
    reproduced("SmolLM2", model, receipt, "--cpu-level", "c")
else:
    skip("SmolLM2", "make demo fetches it")
finish()
