"""What the command line's tests share: running lemma, checks that count, the closing line. Standard library only."""
import json
import os
import struct
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LEMMA = os.path.join(ROOT, os.environ.get("B") or "build", "lemma")
FIXTURES = os.path.join(ROOT, "tests/fixtures")
LLAMA = os.path.join(FIXTURES, "llama")               # no tokenizer
LLAMA_GGUF = os.path.join(FIXTURES, "gguf/llama.gguf")  # a byte tokenizer
count = {"passed": 0, "failed": 0, "skipped": 0}


def check(name, ok, detail=""):
    count["passed" if ok else "failed"] += 1
    if not ok:
        print(f"FAILED {name}: {detail}")
    return ok


def skip(name, why):
    count["skipped"] += 1
    print(f"skipped {name}: {why}")


def lemma(*args, text=True, timeout=300, **kw):
    return subprocess.run([LEMMA, *map(str, args)], capture_output=True, text=text, timeout=timeout, cwd=ROOT, **kw)


def refused(*args, says=(), code=2):
    """Exit status `code`, nothing on stdout, one line on stderr that holds every string of `says`."""
    r = lemma(*args)
    ok = r.returncode == code and not r.stdout and r.stderr.count("\n") == 1 and r.stderr.endswith("\n") and all(s in r.stderr for s in says)
    return check(f"refused: {' '.join(map(str, args))[:120]}", ok, f"status {r.returncode}, stdout {r.stdout[:200]!r}, stderr {r.stderr!r}")


def good(*args):
    """stdout of a run that must succeed."""
    r = lemma(*args)
    check(f"runs: {' '.join(map(str, args))[:120]}", r.returncode == 0, f"status {r.returncode}: {r.stderr}")
    return r.stdout


def trace(path):
    """name -> list of numbers, for the tensors of a safetensors file with int32 or float32 elements; bytes under name + '.bytes'."""
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        head, data = json.loads(f.read(n)), f.read()
    out = {}
    for name, t in head.items():
        if name != "__metadata__" and t["dtype"] in ("I32", "F32"):
            raw = data[slice(*t["data_offsets"])]
            out[name] = list(struct.unpack(f"<{len(raw) // 4}{'i' if t['dtype'] == 'I32' else 'f'}", raw))
            out[name + ".bytes"] = raw
    return out


def demo_model():
    """The demo's model where it is kept, or None."""
    cache = os.environ.get("LEMMA_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "lemma")
    path = os.path.join(cache, "SmolLM2-135M-Instruct.Q4_1.gguf")
    return path if os.path.isfile(path) else None


def finish():
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    sys.exit(count["failed"] > 0)
