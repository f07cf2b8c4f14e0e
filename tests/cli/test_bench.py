#!/usr/bin/env python3
"""lemma bench and lemma profile: what comes out, in every form; exit statuses; and tools/bench_peers.py with a peer that plays its part."""
import csv
import io
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time

from drive import FIXTURES, LEMMA, LLAMA, LLAMA_GGUF, ROOT, check, finish, good, lemma, refused, skip

HYBRID = os.path.join(FIXTURES, "hybrid/hybrid-q4_k_m.gguf")
QUICK = ["-n", 4, "-r", 2, "--threads", 1]
SPREADS = ["tokens_per_second", "share_of_peak", "share_of_read", "share_of_read_with_cache"]
LIMITS = ["read_gbs", "int8_gops", "bf16_gflops", "f32_gflops"]
LAYERS = {"share_of_peak_layers", "layers_ops"}  # of a prefill
RESULT = set(SPREADS) | {"test", "lane", "device", "threads", "neighbours", "tokens", "depth", "batch", "repeats", "ops", "weight_bytes", "cache_bytes", "peak_gops", "read_gbs"}


def number(x):
    return isinstance(x, (int, float)) and not isinstance(x, bool) and x == x and abs(x) != float("inf")


def bench_json():
    start = time.time()
    d = json.loads(good("bench", LLAMA, "-p", "16,20", "--depth", "0,8", "--batch", "1,2", *QUICK, "--json"))
    check("a tiny run takes seconds", time.time() - start < 30, f"{time.time() - start:.1f} s")  # 1 s on a machine of its own
    check("the head", set(d) == {"model", "arch", "version", "commit", "cpu_level", "weight_bytes", "cached", "limits", "results"} and d["arch"] == "llama"
          and d["cached"] is True and d["model"] == LLAMA, str(d)[:300])
    check("limits before and after", [x["when"] for x in d["limits"]] == ["before", "after"] and all(x["threads"] == 1 for x in d["limits"]), str(d["limits"]))
    for x in d["limits"]:
        check("limits are numbers", all(number(x[k]) and x[k] > 0 for k in LIMITS if k != "bf16_gflops") and x["bf16_gflops"] >= 0 and x["read_how"] and x["int8_how"]
              and (x["bf16_how"] != "") == (x["bf16_gflops"] > 0) and x["buffer_bytes"] > x["cache_bytes"], str(x))
    r = d["results"]
    check("rows", [(x["test"], x["tokens"], x["depth"], x["batch"]) for x in r] ==
          [("prefill", 16, 0, 1), ("prefill", 20, 0, 1), ("decode", 4, 0, 1), ("decode", 4, 0, 2), ("decode", 4, 8, 1), ("decode", 4, 8, 2)], str(r))
    for x in r:
        check("a row's keys", set(x) == RESULT | (LAYERS if x["test"] == "prefill" else set()) and x["lane"] == "f32" and "1 thread" in x["device"] and x["repeats"] == 2, str(x))
        check("spreads", all(0 < x[s]["min"] <= x[s]["median"] <= x[s]["max"] for s in SPREADS), str(x))
        check("shares of the peak", 0 < x["share_of_peak"]["median"] < float("inf"), str(x))  # how large: the machine's affair
    layers, head = 4 * (96 * 128 * 2 + 2 * 96 * 32 + 3 * 96 * 112), 96 * 320
    check("operations by hand", r[0]["ops"] == 2 * (16 * layers + head) and r[3]["ops"] == 2 * 2 * 4 * (layers + head), str((r[0]["ops"], r[3]["ops"])))
    check("layers by hand", [x["layers_ops"] for x in r[:2]] == [2 * n * layers for n in (16, 20)], str(r[:2]))
    x = json.loads(good("bench", LLAMA, "-p", 2, "-n", 0, "-r", 1, "--threads", 1, "--json"))["results"][0]
    rest = x["share_of_peak_layers"]["median"] / x["share_of_peak"]["median"] * x["ops"] / x["layers_ops"]  # all of the time over the layers'
    check("the layers' time is a part of the whole", 1 < rest < 100, str(x))
    check("bytes by hand", r[2]["weight_bytes"] == 2 * (layers + head + 96), str(r[2]["weight_bytes"]))


def bench_lanes():
    d = json.loads(good("bench", HYBRID, "-p", 8, "-n", 2, "-r", 1, "--lanes", "f32,i8", "--threads", "1,2", "--json"))
    check("a config per lane and thread count", [(x["lane"], x["threads"]) for x in d["results"][::2]] == [("f32", 1), ("f32", 2), ("i8", 1), ("i8", 2)], str(d)[:300])
    check("lanes do the same work", len({x["ops"] for x in d["results"][::2]}) == 1)
    check("limits of each", len(d["limits"]) == 8)
    check("lanes that pack weights alike share them", len({x["load_s"] for x in d["limits"]}) == 1, str(d["limits"]))
    d = json.loads(good("bench", HYBRID, "-p", 8, "-n", 2, "-r", 1, "--lanes", "i8,i16,mixed", "--kv", "bf16", "--threads", 1, "--json"))
    check("whatever attention is in", len({x["load_s"] for x in d["limits"]}) == 1 and [x["device"].count("kv bf16 (") for x in d["results"][::2]] == [1, 0, 1], str(d)[:600])
    text = good("bench", LLAMA, "-p", 8, *QUICK, "--cpu-level", "c")
    check("the table says lane, threads, level, limits", all(s in text for s in ("lane f32, 1 thread: cpu f32 c 1 thread", "limits before", "limits after", "GOPS", "GB/s", "prefill 8",
                                                                              "decode 4 at 0, batch 1", "of peak", "of read   layers", "cached")), text)


def bench_neighbours():
    text = good("bench", LLAMA, "-p", 8, "-n", 2, "-r", 1, "--threads", "1,2", "--neighbours", 1)
    check("the table says what ran beside", text.count("beside 1 busy neighbour, which the limits are measured without") == 2, text)
    d = json.loads(good("bench", LLAMA, "-p", 0, *QUICK, "--neighbours", 3, "--json"))
    check("so does JSON", [x["neighbours"] for x in d["results"]] == [3], str(d["results"]))
    refused("bench", LLAMA, "--neighbours", 65, says=["--neighbours"])


def bench_csv():
    rows = list(csv.reader(io.StringIO(good("bench", LLAMA, "-p", 0, "--batch", "1,2", *QUICK, "--csv"))))
    head = ("test,lane,device,threads,neighbours,tokens,depth,batch,repeats,tok_s,tok_s_min,tok_s_max,share_of_peak,share_of_peak_min,share_of_peak_max,share_of_read,"
            "share_of_read_min,share_of_read_max,share_of_read_with_cache,ops,weight_bytes,cache_bytes,peak_gops,read_gbs,share_of_peak_layers,share_of_peak_layers_min,"
            "share_of_peak_layers_max,layers_ops").split(",")
    check("CSV columns", rows[0] == head and len(rows) == 3 and all(len(r) == len(head) for r in rows), str(rows))
    check("CSV values", [r[:2] + r[3:9] for r in rows[1:]] == [["decode", "f32", "1", "0", "4", "0", b, "2"] for b in "12"] and all(float(v) > 0 for r in rows[1:] for v in r[9:-4]) and all(r[-4:] == [""] * 4 for r in rows[1:]), str(rows))
    rows = list(csv.reader(io.StringIO(good("bench", LLAMA, "-p", 8, "-n", 0, "-r", 2, "--threads", 1, "--csv"))))
    check("CSV values of a prefill", rows[0] == head and len(rows) == 2 and rows[1][0] == "prefill" and all(float(v) > 0 for v in rows[1][9:]), str(rows))


def profile():
    d = json.loads(good("profile", LLAMA, "-p", 12, "-n", 3, "--threads", 1, "--json"))
    check("profile's head", set(d) == {"model", "arch", "lane", "device", "version", "commit", "threads", "load_s", "weight_bytes", "cached", "prompt", "predict", "rows", "limits"}
          and (d["prompt"], d["predict"], d["threads"]) == (12, 3, 1) and set(d["limits"]) == set(LIMITS), str(d)[:300])
    layers, head = 4 * (96 * 128 * 2 + 2 * 96 * 32 + 3 * 96 * 112), 96 * 320
    for phase, times, ops in (("prefill", 1, 12 * layers + head), ("decode", 3, 3 * (layers + head))):
        rows = [r for r in d["rows"] if r["phase"] == phase]
        total = [r for r in rows if r["group"] == "total"]
        check(f"{phase}: one total", len(total) == 1 and total[0]["plain_s"] > 0, str(total))
        for group in ("kind", "op", "layer"):
            g = [r for r in rows if r["group"] == group]
            check(f"{phase} by {group}: the parts make the whole", all(abs(sum(r[k] for r in g) - total[0][k]) <= 1e-4 * total[0][k] + 1e-9
                                                                       for k in ("seconds", "calls", "ops", "weight_bytes", "cache_bytes")), str(g))
            check(f"{phase} by {group}: times", all(r["seconds"] > 0 and 0 < r["share_of_time"] <= 1 and r["bound_s"] >= 0 for r in g))
        kinds = {r["name"]: r for r in rows if r["group"] == "kind"}
        check(f"{phase}: products", kinds["linear"]["calls"] == 29 * times and kinds["linear"]["ops"] == 2 * ops and kinds["norm"]["bound_s"] == 0, str(kinds["linear"]))
        check(f"{phase}: attention", kinds["attention"]["ops"] > 0 and kinds["attention"]["cache_bytes"] > 0 and kinds["attention"]["weight_bytes"] == 0)
        check(f"{phase}: layers in order", [r["name"] for r in rows if r["group"] == "layer"][-4:] == [f"layer.{i}" for i in range(4)])
        check(f"{phase}: ops without their layer", {"attn.q", "ffn.down", "logits"} <= {r["name"] for r in rows if r["group"] == "op"})
        check(f"{phase}: shares of the limit", all(0 <= r["share_of_limit"] for r in rows) and 0 < total[0]["share_of_limit"] < float("inf"), str(total))
    text = good("profile", LLAMA_GGUF, "-p", 8, "-n", 2, "--threads", 1)
    check("profile's table", all(s in text for s in ("by kind", "by op", "by layer", "of limit", "limits after", "prefill of 8 tokens", "decode, 2 steps after 8 tokens", "without taps")), text)
    text = good("profile", LLAMA_GGUF, "-p", 8, "-n", 0, "--threads", 1)
    check("no decode", not any(line.startswith("decode") for line in text.splitlines()), text)
    for family in ("deepseek_v32", "qwen3_next", "gpt_oss"):  # experts, MLA with an index, delta rule, convolutions, sinks
        d = json.loads(good("profile", os.path.join(FIXTURES, family), "-p", 20, "-n", 1, "--threads", 1, "--json"))
        check(f"{family}: numbers", all(number(r[k]) and r[k] >= 0 for r in d["rows"] for k in r if k not in ("phase", "group", "name")))


def usage():
    refused("bench", LLAMA, "-p", "x", says=["--prompt", "'x' is no whole number", "1,2,3"])
    refused("bench", LLAMA, "-p", "", says=["--prompt"])
    refused("bench", LLAMA, "-p", "1,,2", says=["--prompt"])
    refused("bench", LLAMA, "-p", "99999999999", says=["--prompt"])
    refused("bench", LLAMA, "--batch", "0", says=["--batch"])
    refused("bench", LLAMA, "--threads", "0", says=["--threads"])
    refused("bench", LLAMA, "--depth", "-1", says=["--depth"])
    refused("bench", LLAMA, "--depth", ",".join("1" * 17), says=["--depth", "more than 16"])
    refused("bench", LLAMA, "-r", 0, says=["--repeats"])
    refused("bench", LLAMA, "-r", 1001, says=["--repeats"])
    refused("bench", LLAMA, "-p", 0, "-n", 0, says=["nothing to measure"])
    refused("bench", LLAMA, "-p", "0,5", *QUICK, says=["a prompt of 0 tokens"])
    refused("bench", LLAMA, "--json", "--csv", says=["--json and --csv"])
    refused("bench", LLAMA, "--lanes", "f32,", says=["--lanes"])
    refused("bench", LLAMA, "--lanes", "f32,f33", says=["f33"])
    refused("bench", HYBRID, "-p", 8, *QUICK, "--lanes", "f32,bf16", says=["lane bf16 takes weights of type"])  # before f32 is measured
    refused("bench", LLAMA, "--cpu-level", "mmx", says=["mmx"])
    refused("bench", os.path.join(FIXTURES, "none"), says=["none"])
    refused("bench", says=["argument is missing"])
    refused("profile", LLAMA, "-p", 0, "-n", 0, says=["nothing to profile"])
    refused("profile", LLAMA, "--lane", "f33", says=["f33"])
    refused("profile", os.path.join(FIXTURES, "none"), says=["none"])
    r = lemma("bench", os.path.join(FIXTURES, "gpt2"), "-p", 100000, *QUICK)
    check("past the learned positions", r.returncode == 2 and r.stderr.count("\n") == 1 and "positions" in r.stderr, r.stderr)
    for verb in ("bench", "profile"):
        text = good(verb, "-h")
        check(f"{verb} -h", all(s in text for s in ("--prompt", "--predict", "--threads", "--json", "--cpu-level")), text)


def peers(*args):
    r = subprocess.run([sys.executable, os.path.join(ROOT, "tools/bench_peers.py"), *map(str, args)], capture_output=True, text=True, timeout=120, cwd=ROOT)
    return r.returncode, r.stdout, r.stderr


def beside_ik(tmp, kl):
    """Two engines: each with its best setting, and the best of both; one that computes another model is said and not counted."""
    quick = ["-p", 8, "-n", 0, "--threads", 1, "-r", 1, "--peer", "default,ik,ik-repack"]
    with open(kl, "w") as f:
        f.write('{"rows": [{"mean": 0.003, "wrong": false}]}')
    code, out, err = peers(LEMMA, LLAMA_GGUF, "--peers", tmp, *quick, "--json")
    c = json.loads(out or "{}").get("cells", [{}])[0]
    check("two engines", code == 0 and list(c["engines"]) == ["ik", "llama"] and c["engines"]["ik"]["setting"] == c["setting"] == "ik-repack" and
          c["engines"]["llama"]["peer"] == c["settings"]["default"] and abs(c["engines"]["llama"]["ratio"]["median"] * c["settings"]["default"][0] - c["lemma"][0]) < 1e-6 * c["lemma"][0], out + err)
    code, out, err = peers(LEMMA, LLAMA_GGUF, "--peers", tmp, *quick)
    check("a row of each", code == 0 and [x.split()[-1] for x in out.splitlines()[-2:]] == ["ik-repack", "default"], out + err)
    with open(kl, "w") as f:
        f.write('{"rows": [{"mean": 1.9, "wrong": true}]}')
    code, out, err = peers(LEMMA, LLAMA_GGUF, "--peers", tmp, *quick, "--json")
    d = json.loads(out or "{}")
    check("a wrong engine isn't counted", code == 0 and d["wrong"] == {"ik": 1.9} and list(d["cells"][0]["engines"]) == ["llama"] and list(d["cells"][0]["settings"]) == ["default"], out + err)
    code, out, err = peers(LEMMA, LLAMA_GGUF, "--peers", tmp, *quick)
    check("and that is said", code == 0 and "ik_llama.cpp computes another model" in out and "1.9" in out, out + err)
    code, out, err = peers(LEMMA, LLAMA_GGUF, "--peers", tmp, "--peer", "ik")
    check("none that is right", code == 1 and not out and err.count("\n") == 1 and "another model" in err, out + err)


def against_peers():
    code, out, err = peers(LEMMA, LLAMA_GGUF, "--peers", os.path.join(ROOT, "tests/none"))
    check("no peers: how to get them", code == 3 and not out and "tools/peers/install" in err and "llama-cpp-python" in err, err)
    code, out, err = peers(LEMMA, LLAMA_GGUF, "--peers", os.path.join(ROOT, "tests/none"), "--peer", "ik")
    check("no ik_llama.cpp: how to get it", code == 3 and not out and "tests/none ik" in err and "ik-llama-cpp-python" in err, err)
    code, out, err = peers(LEMMA, os.path.join(ROOT, "none.gguf"), "--peers", ROOT)
    check("no model", code == 2 and "none.gguf" in err and err.count("\n") == 1, err)
    with tempfile.TemporaryDirectory() as tmp:
        os.mkdir(os.path.join(tmp, "bin"))
        fake = os.path.join(tmp, "bin/python")
        folder = shlex.quote(tmp)
        with open(fake, "w") as f:  # the peer's every measurement: 50 tok/s, then 100, then 200 …
            f.write(f'#!/bin/sh\ncase "$*" in *import*) echo 0.0.0; exit 0 ;; *kl.py*) cat {folder}/kl; exit 0 ;; esac\nn=$(cat {folder}/n 2>/dev/null || echo 50)\necho $((n * 2)) >{folder}/n\necho "{{\\"tok_s\\": $n}}"\n')
        os.chmod(fake, 0o755)
        code, out, err = peers(LEMMA, LLAMA_GGUF, "--peers", tmp, "-p", 8, "-n", 2, "--threads", 1, "--batch", 1, "-r", 3, "--json")
        d = json.loads(out or "{}")
        check("two cells", code == 0 and [(c["test"], c["tokens"], c["batch"], c["threads"]) for c in d["cells"]] == [("prefill", 8, 1, 1), ("decode", 2, 1, 1)], out + err)
        check("every round", [c["peer"] for c in d["cells"]] == [[50, 100, 200], [400, 800, 1600]] and all(len(c["lemma"]) == 3 for c in d["cells"]), out)
        for c in d["cells"]:
            ratios = sorted(a / b for a, b in zip(c["lemma"], c["peer"]))
            check("ratios by round", abs(c["ratio"]["median"] - ratios[1]) < 1e-3 * ratios[1] and abs(c["ratio"]["max"] - ratios[2]) < 1e-3 * ratios[2], str(c))
        code, out, err = peers(LEMMA, LLAMA_GGUF, "--peers", tmp, "-p", 8, "-n", 0, "--threads", 1, "-r", 1)
        check("a table", code == 0 and "prefill 8" in out and "llama.cpp" in out, out + err)
        code, out, err = peers(LEMMA, LLAMA_GGUF, "--peers", tmp, "-p", 8, "-n", 0, "--threads", 1, "-r", 1, "--peer", "default,no-repack", "--json")
        c = json.loads(out or "{}").get("cells", [{}])[0]
        check("the peer's best setting counts", code == 0 and c["setting"] == "no-repack" and c["peer"] == c["settings"]["no-repack"] > c["settings"]["default"], out + err)
        beside_ik(tmp, os.path.join(tmp, "kl"))
        code, out, err = peers(LEMMA, LLAMA_GGUF, "--peers", tmp, "--peer", "turbo")
        check("no such setting", code == 2 and "turbo" in err and "no-flash" in err and err.count("\n") == 1, err)
        with open(fake, "w") as f:
            f.write('#!/bin/sh\ncase "$*" in *import*) echo 0.0.0; exit 0 ;; esac\necho "it broke" >&2\nexit 1\n')
        code, out, err = peers(LEMMA, LLAMA_GGUF, "--peers", tmp, "-p", 8, "-n", 0, "--threads", 1, "-r", 1)
        check("a peer that fails is said", code == 1 and "it broke" in err, out + err)


def synthetic():
    script = os.path.join(ROOT, "tools/make_synth.py")
    if subprocess.run([sys.executable, "-c", "import gguf, numpy"], capture_output=True).returncode:
        return skip("tools/make_synth.py", "the packages gguf and numpy aren't here")
    r = subprocess.run([sys.executable, script, "huge", LLAMA_GGUF, "out"], capture_output=True, text=True)
    check("no such shape", r.returncode == 2 and "1b, 3b" in r.stderr, r.stderr)
    with tempfile.TemporaryDirectory() as tmp:
        files = [os.path.join(tmp, x) for x in "abc"]
        for path, seed in zip(files, ("1", "1", "2")):
            r = subprocess.run([sys.executable, script, "tiny", LLAMA_GGUF, path, seed], capture_output=True, text=True)
            check("a synthetic model", r.returncode == 0, r.stderr)
        a, b, c = (open(path, "rb").read() for path in files)
        check("the seed makes the file", a == b != c and len(a) == len(c))
        d = json.loads(good("bench", files[0], "-p", 8, *QUICK, "--json"))
        check("it runs", d["results"][0]["ops"] == 2 * (8 * 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128) + 64 * 320), str(d["results"][0]))


bench_json()
bench_lanes()
bench_neighbours()
bench_csv()
profile()
usage()
against_peers()
synthetic()
finish()
