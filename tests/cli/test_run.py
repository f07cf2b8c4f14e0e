#!/usr/bin/env python3
"""lemma run, and what all verbs share: greedy against the traces, hashes over threads, chunks and levels, sampling, stops, refusals."""
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import trace_file as st  # noqa: E402
from drive import FIXTURES, LEMMA, LLAMA, LLAMA_GGUF, check, demo_model, finish, good, lemma, refused, skip, trace

IDS = "1,7,300,42,9,17,250,3,88"


def ids_of(line):
    return [int(x) for x in line.split(",")]


def greedy():
    for family in ("llama", "llama3"):
        path = os.path.join(FIXTURES, family)
        t = trace(os.path.join(path, "oracle.safetensors"))
        for backend in ("cpu", "f64"):
            for c in ("c0", "c1", "c2"):
                want = t[c + ".greedy"]
                prompt = ",".join(map(str, t[c + ".ids"]))
                out = good("run", path, "--ids", prompt, "-n", len(want), "--ignore-eos", "--print-ids", "--backend", backend)
                check(f"greedy {family} {c} on {backend}", ids_of(out) == want, out)
    t = trace(os.path.join(LLAMA, "oracle.safetensors"))
    prompt = ",".join(map(str, t["c1.ids"]))
    out = good("run", LLAMA_GGUF, "--ids", prompt, "-n", 24, "--ignore-eos", "--print-ids")
    check("greedy from GGUF", ids_of(out) == t["c1.greedy"], out)


def hash_line(*args):
    last = good("run", *args, "--hash").rstrip("\n").split("\n")[-1]
    check("hash line", last.startswith("sha256:") and len(last) == 71, last)
    return last


def hashes():
    base = hash_line(LLAMA, "--ids", IDS, "-n", 12)
    for extra in (["--threads", 1], ["--threads", 2], ["--threads", 3], ["--threads", 8], ["--chunk", 1], ["--chunk", 7], ["--chunk", 32],
                  ["--cpu-level", "c"], ["--lane", "f32"], ["--backend=cpu"]):
        check(f"hash with {extra}", hash_line(LLAMA, "--ids", IDS, "-n", 12, *extra) == base)
    f64 = hash_line(LLAMA, "--ids", IDS, "-n", 12, "--backend", "f64")
    check("the arbiter's logits are others", f64 != base)
    check("the arbiter and threads", hash_line(LLAMA, "--ids", IDS, "-n", 12, "--backend", "f64", "--threads", 3, "--chunk", 2) == f64)
    phi3 = os.path.join(FIXTURES, "phi3")  # longrope: its set of factors goes by the sequence, not by the room for it
    check("five tokens in any context", len({hash_line(phi3, "--ids", "1,2,3,4,5", "-n", 1, *c) for c in ([], ["--ctx", 8], ["--ctx", 2048])}) == 1)
    check("other ids, other hash", hash_line(LLAMA, "--ids", IDS + ",5", "-n", 12) != base)
    # prefill = decode: a prompt that is the other run's prompt and text, with one token fewer to generate
    made = ids_of(good("run", LLAMA, "--ids", IDS, "-n", 12, "--print-ids", "--ignore-eos"))
    longer = IDS + "," + ",".join(map(str, made[:-1]))
    check("prefill equals decode", hash_line(LLAMA, "--ids", longer, "-n", 1) == hash_line(LLAMA, "--ids", IDS, "-n", 12, "--ignore-eos"))
    with tempfile.TemporaryDirectory() as tmp:
        out = os.path.join(tmp, "t.safetensors")
        r = lemma("dump", LLAMA, "--ids", IDS, "--out", out)
        if r.returncode == 2 and "not in this build" in r.stderr:
            skip("the hash is that of the rows", "this build has no dump")
        elif check("dump", r.returncode == 0, r.stderr):
            want = "sha256:" + hashlib.sha256(trace(out)["c0.logits.bytes"]).hexdigest()
            check("the hash is that of the rows", hash_line(LLAMA, "--ids", IDS, "-n", 1) == want)


def sampling():
    def sample(*args):
        return good("run", LLAMA, "--ids", IDS, "-n", 20, "--print-ids", "--ignore-eos", *args)
    a = sample("--temp", 1.5, "--seed", 42)
    check("a seed replays", sample("--temp", 1.5, "--seed", 42) == a)
    check("at every level", sample("--temp", 1.5, "--seed", 42, "--cpu-level", "c", "--threads", 3, "--chunk", 2) == a)
    check("another seed differs", sample("--temp", 1.5, "--seed", 43) != a)
    check("filters that drop nothing", sample("--temp", 1.5, "--seed", 42, "--top-k", 320, "--top-p", 1) == a)
    check("top-k 1 is greedy", sample("--temp", 1.5, "--seed", 42, "--top-k", 1) == sample("--greedy"))
    plain = ids_of(sample())
    check("a penalty of 1 is none", ids_of(sample("--repeat-penalty", 1)) == plain)
    check("a penalty changes the text", ids_of(sample("--repeat-penalty", 5)) != plain)
    x, y = (json.loads(good("run", LLAMA, "--ids", IDS, "-n", 4, "--temp", 1, "--json")) for _ in "ab")
    check("without a seed each run has its own", x["seed"] != y["seed"])
    z = json.loads(good("run", LLAMA, "--ids", IDS, "-n", 4, "--temp", 1, "--json", "--seed", x["seed"]))
    check("the seed that it says replays", z["ids"] == x["ids"] and z["seed"] == x["seed"])
    r = lemma("run", LLAMA, "--ids", IDS, "-n", 2, "--temp", 1, "--seed", 12345678901234567890)
    check("the seed is said on stderr", "seed 12345678901234567890" in r.stderr, r.stderr)


def text():
    for extra in ([], ["--temp", "2", "--seed", "1"]):  # hot: byte soup, with broken UTF-8
        r = lemma("run", LLAMA_GGUF, "-p", "hello", "-n", 60, "--ignore-eos", *extra, text=False)
        j = json.loads(good("run", LLAMA_GGUF, "-p", "hello", "-n", 60, "--ignore-eos", "--json", *extra))
        check(f"stdout is the JSON's text, and UTF-8 {extra}", r.stdout.decode("utf-8") == j["text"] + "\n", r.stdout)
        check(f"the decoder agrees {extra}",
              json.loads(good("tokenize", LLAMA_GGUF, "--no-special", "--json", "--decode", ",".join(map(str, j["ids"]))))["text"] == j["text"])
        check(f"no terminal, no bar {extra}", b"\r" not in r.stderr and b"\x1b" not in r.stderr, r.stderr)
        check("ids", ids_of(good("run", LLAMA_GGUF, "-p", "hello", "-n", 60, "--ignore-eos", "--print-ids", *extra)) == j["ids"])
    check("what JSON says", j["finish"] == "length" and j["timings"]["generated_tokens"] == 60 and j["lane"] == "f32" and j["backend"] == "cpu"
          and j["arch"] == "llama" and len(j["prompt_ids"]) == j["timings"]["prompt_tokens"], str(j))
    r = lemma("run", LLAMA_GGUF, "-p", "hello", "-n", 3)
    check("stderr names lane and backend", "backend cpu, lane f32" in r.stderr and "tok/s" in r.stderr, r.stderr)
    with tempfile.NamedTemporaryFile("w") as f:
        f.write("hello")
        f.flush()
        check("a prompt from a file", good("run", LLAMA_GGUF, "-f", f.name, "-n", 9) == good("run", LLAMA_GGUF, "-p", "hello", "-n", 9))


def stops():
    args = ["run", LLAMA_GGUF, "-p", "stop here", "-n", 80, "--ignore-eos", "--temp", "1", "--seed", "3", "--json"]
    full = json.loads(good(*args))["text"]
    for at in range(2, 40, 5):
        for n in (1, 2, 5):
            stop = full[at:at + n]
            if "\ufffd" in stop:
                continue
            j = json.loads(good(*args, "--stop", stop))
            check(f"stop {stop!r}", j["text"] == full[:full.index(stop)] and j["finish"] == "stop", str(j))
    a = full[10:12]
    j = json.loads(good(*args, "--stop", a, "--stop", a + full[12:14]))
    check("one stop a prefix of another", j["text"] == full[:full.index(a)], str(j))
    j = json.loads(good(*args, "--stop", full[-3:] + "never"))
    check("held back, then let go", j["text"] == full and j["finish"] == "length", str(j))
    refused(*args, "--stop", "", says=["stop"])
    refused("run", LLAMA, "--ids", IDS, "--stop", "a", says=["--stop"])


def end_of_generation():
    made = ids_of(good("run", LLAMA, "--ids", IDS, "-n", 20, "--print-ids", "--ignore-eos"))
    at = next(i for i in range(3, 20) if made[i] not in made[:i])
    for eos in (made[at], [311, made[at]]):
        with tempfile.TemporaryDirectory() as tmp:
            for f in ("config.json", "model.safetensors"):
                shutil.copy(os.path.join(LLAMA, f), tmp)
            with open(os.path.join(tmp, "generation_config.json"), "w") as f:
                json.dump({"eos_token_id": eos}, f)
            j = json.loads(good("run", tmp, "--ids", IDS, "-n", 20, "--json"))
            check(f"ends at {eos}", j["ids"] == made[:at + 1] and j["finish"] == "eos", str(j))
            j = json.loads(good("run", tmp, "--ids", IDS, "-n", 20, "--json", "--ignore-eos"))
            check(f"goes on after {eos}", j["ids"] == made and j["finish"] == "length", str(j))
    j = json.loads(good("run", LLAMA, "--ids", IDS, "-n", 20, "--json", "--ignore-eos", "--ctx", 12))
    check("the context ends it", j["ids"] == made[:4] and j["finish"] == "length", str(j))  # 3 more positions, and a last id
    j = json.loads(good("run", LLAMA, "--ids", IDS, "-n", 0, "--json", "--hash"))
    check("nothing to generate", j["ids"] == [] and j["hash"].startswith("sha256:"))


def refusals():
    run = ["run", LLAMA, "--ids", IDS]
    refused("run", LLAMA, "-p", "hello", says=["--ids"])
    refused("run", LLAMA, "--ids", "1,2,320", says=["320", "position 2"])
    refused("run", LLAMA, "--ids", "1,2,99999999999", says=["--ids"])
    for bad in ("", "1,,2", "-1", "a", "1,2,", "0x5", "1.5"):
        refused("run", LLAMA, "--ids=" + bad, says=["--ids"])
    refused(*run, "--ctx", 5, says=["9", "5"])
    gpt2 = os.path.join(FIXTURES, "gpt2")
    refused("run", gpt2, "--ids", "1", "--json", "--ctx", 129, says=["128 learned positions"])
    refused("run", gpt2, "--ids", ",".join("1" * 129), "--json", says=["129 tokens", "no more positions"])
    check("up to the last learned position", len(json.loads(good("run", gpt2, "--ids", "1,2", "--json", "--ignore-eos", "--ctx", 128))["ids"]) == 127)
    refused("run", LLAMA, "--ids", ",".join(["1"] * 4097), says=["4097", "4096"])
    refused("run", LLAMA, says=["-p TEXT"])
    refused(*run, "-p", "hello", says=["one prompt"])
    refused("run", says=["usage"])
    refused(*run, "more", says=["more"])
    refused(*run, "--nonsense", says=["--nonsense"])
    refused(*run, "-x", says=["-x"])
    refused(*run, "--seed", says=["--seed"])
    refused(*run, "--json=1", says=["--json"])
    for option, bad in (("-n", "x"), ("-n", "-1"), ("-n", ""), ("--threads", "0"), ("--threads", "9999"), ("--temp", "-1"), ("--temp", "nan"),
                        ("--temp", "inf"), ("--temp", "1e999"), ("--top-p", "2"), ("--top-p", "0"), ("--min-p", "1.5"), ("--ctx", "0"),
                        ("--chunk", "0"), ("--seed", "18446744073709551616"), ("--repeat-penalty", "0")):
        refused(*run, option, bad, says=[bad])
    refused(*run, "--top-k", 3, says=["--temp"])
    refused(*run, "--seed", 3, says=["--seed", "--temp"])
    refused(*run, "--seed", 3, "--temp", 0, says=["--seed", "--temp"])
    refused(*run, "--greedy", "--temp", 1, says=["--greedy"])
    refused(*run, "--print-ids", "--json", says=["--json"])
    refused(*run, "--backend", "abacus", says=["abacus"])
    refused(*run, "--lane", "f31", says=["f31"])
    refused(*run, "--cpu-level", "mmx", says=["mmx"])
    refused("run", os.path.join(FIXTURES, "none"), "--ids", "1", says=["none"])
    refused("run", os.path.join(FIXTURES, "DATA.md"), "--ids", "1", says=["DATA.md"])
    refused("run", "a\nb", "--ids", "1")
    refused("fly", says=["fly"])
    refused("--fly", says=["--fly"])
    for verb in ("quantize", "pull"):
        r = lemma(verb, "x")
        if "planned" in r.stderr:
            check(f"planned: {verb}", r.returncode == 2 and r.stderr.count("\n") == 1 and not r.stdout, r.stderr)


def not_finite():
    """Logits that are no numbers fail a run that samples nothing, too."""
    with tempfile.TemporaryDirectory() as tmp:
        model = os.path.join(tmp, "m")
        shutil.copytree(LLAMA, model)
        file = os.path.join(model, "model.safetensors")
        tensors, meta = st.read(file)
        tensors["model.norm.weight"][2][6:8] = b"\xc0\x7f"  # a NaN in bfloat16
        st.write(file, tensors, meta)
        for more in (["-n", 0, "--hash", "--print-ids"], ["-n", 0, "--print-ids"], ["-n", 4, "--print-ids"], ["-n", 0, "--hash", "--json", "--backend", "f64"]):
            refused("run", model, "--ids", IDS, *more, says=["logit of id", "position", "no finite number"])


def surroundings():
    r = lemma("--version")
    check("version", r.returncode == 0 and all(s in r.stdout for s in ("lemma 0.", "commit ", "contract version 6", "CPU level ")), r.stdout)
    check("help", all(v in good("-h") for v in ("run", "verify", "inspect", "tokenize", "--version")))
    out = good("run", "-h")
    check("a verb's help lists its options", all(o in out for o in ("--temp", "--top-k", "--top-p", "--min-p", "--seed", "--stop", "--ids", "--hash",
          "--json", "--backend", "--lane", "--threads", "--chunk", "--cpu-level", "--ctx", "--repeat-penalty", "--ignore-eos")), out)
    r = lemma()
    check("no verb", r.returncode == 2 and "verify" in r.stderr and not r.stdout)
    if os.path.exists("/dev/full"):
        with open("/dev/full", "w") as full:
            r = subprocess.run([LEMMA, "run", LLAMA, "--ids", IDS, "-n", "2"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        check("a full disk is noticed", r.returncode == 2 and "stdout" in r.stderr, r.stderr)


def interrupt():
    p = subprocess.Popen([LEMMA, "run", LLAMA, "--ids", IDS, "-n", "1000000", "--ctx", "1000000", "--ignore-eos", "--backend", "f64"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(1)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=30)
    check("Ctrl-C: status 130", p.returncode == 130, f"status {p.returncode}: {err}")
    check("Ctrl-C: what was made is shown", len(out.split(",")) > 3 and "interrupted" in err, err)


def memory():
    model = demo_model()
    if not model:
        skip("peak memory", "the demo's model is not in the cache: make demo fetches it")
        return
    if "ASAN_OPTIONS" in os.environ:
        skip("peak memory", "the sanitizer's own memory would be counted")
        return
    with tempfile.TemporaryFile() as out:
        p = subprocess.Popen([LEMMA, "run", model, "-p", "Once upon a time", "-n", "64", "--ignore-eos", "--json"], stdout=out,
                             stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        j = json.loads(out.read())
    peak, limit = usage.ru_maxrss * 1024, os.path.getsize(model) + j["cache_bytes"] + (64 << 20)
    print(f"peak memory {peak / 2**20:.1f} MiB, of file + cache + 64 MiB = {limit / 2**20:.1f} MiB")
    check("peak memory", p.returncode == 0 and peak <= limit, f"{peak} > {limit}")


def out_of_memory():
    """A limit on addresses that the file or its packed weights don't fit: status 3, one line with the bytes needed and those available."""
    if "ASAN_OPTIONS" in os.environ:
        skip("out of memory", "the sanitizer's shadow alone is larger than any limit")
        return
    model, seen = os.path.join(FIXTURES, "hybrid"), set()
    for mib in (16, 24, 32, 48):
        r = lemma("run", model, "--ids", IDS, "-n", 1, "-t", 1, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20)))
        m = re.fullmatch(r"lemma run: .*hybrid.*: out of memory: [1-9]\d* bytes needed for ([^,]+), \d+ available\n", r.stderr)
        check(f"out of memory in {mib} MiB", r.returncode == 3 and m and not r.stdout, f"status {r.returncode}: {r.stderr}")
        seen.add(m and m.group(1))
    check("out of memory: the file, then its weights", {"the file's addresses", "packed weights"} <= seen, str(seen))


# A context of 16 pages, whatever the threads and the chunks; keys and values in every type: the same bits at every level, others than f32's.
def caches():
    long = ",".join(str(3 + (7 * i * i + 11 * i) % 180) for i in range(4088))
    for kv in ("f32", "f16"):
        args = [LLAMA_GGUF, "--ids", long, "-n", 8, "--ignore-eos", "--kv", kv]
        first = hash_line(*args, "--threads", 1)
        for more in (("--threads", 2), ("--threads", 3, "--chunk", 32), ("--threads", 8, "--chunk", 1000), ("--chunk", 255)):
            check(f"4096 positions, kv {kv}, {more}", hash_line(*args, *more) == first)
    seen = set()
    for kv in ("f32", "f16", "bf16", "q8_0"):
        args = [LLAMA_GGUF, "--ids", long[:2000].rsplit(",", 1)[0], "-n", 8, "--ignore-eos", "--kv", kv]
        first = hash_line(*args)
        seen.add(first)
        for more in (("--cpu-level", "c", "--chunk", 33), ("--chunk", 1)):
            check(f"kv {kv}, {more}", hash_line(*args, *more) == first)
    check("kv types differ", len(seen) == 4)
    hybrid = os.path.join(FIXTURES, "hybrid/hybrid-q4_k_m.gguf")
    for lane in ("i8", "mixed"):  # with bf16 they attend in bfloat16, and a run says by which kernel
        args = [hybrid, "--ids", long[:1200].rsplit(",", 1)[0], "-n", 8, "--ignore-eos", "--lane", lane]
        first = hash_line(*args, "--kv", "bf16")
        check(f"{lane}, kv bf16 is not f16", hash_line(*args) != first)
        for more in (("--cpu-level", "c", "--chunk", 33), ("--threads", 3), ("--chunk", 1)):
            check(f"{lane}, kv bf16, {more}", hash_line(*args, "--kv", "bf16", *more) == first)
        j = json.loads(good("run", hybrid, "--ids", "1,2", "-n", 1, "--lane", lane, "--kv", "bf16", "--cpu-level", "c", "--json"))
        check(f"{lane}, kv bf16 is said", j["kv"] == "bf16" and j["device"].endswith(", kv bf16 (c)"), j)
    j = json.loads(good("run", hybrid, "--ids", "1,2", "-n", 1, "--lane", "i16", "--kv", "bf16", "--json"))
    check("i16, kv bf16 attends in float32", j["device"].endswith(", kv bf16"), j)
    j = json.loads(good("run", LLAMA_GGUF, "--ids", "1,2", "-n", 1, "--kv", "q8_0", "--json"))
    check("kv is said", j["kv"] == "q8_0" and "kv q8_0" in j["device"], j)
    for args, what in ((("--kv", "q9"), "f32, f16, bf16 or q8_0"), (("--kv", "f16", "--backend", "f64"), "f64")):
        r = lemma("run", LLAMA_GGUF, "--ids", "1,2", "-n", 1, *args)
        check(f"refused: {args}", r.returncode == 2 and what in r.stderr and r.stderr.count("\n") == 1, r.stderr)


greedy()
hashes()
caches()
sampling()
text()
stops()
end_of_generation()
refusals()
not_finite()
surroundings()
interrupt()
memory()
out_of_memory()
finish()
