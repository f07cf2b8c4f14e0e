"""Fixture folders for the tests: copies, edited configs and tensors, lemma's verdict on them. Standard library only."""
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LEMMA = os.path.join(ROOT, os.environ.get("B") or "build", "lemma")
FIXTURES = os.path.join(ROOT, "tests/fixtures")
SIZE = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "U8": 1, "I32": 4}
CODE = {"F64": "d", "F32": "f", "F16": "e", "I32": "i", "U8": "B"}


# ---- counting -----------------------------------------------------------------------------------------------------------------
class Count:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def check(self, name, ok, why=""):
        if ok:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAILED {name}: {why}", flush=True)

    def skip(self, name, why):
        self.skipped += 1
        print(f"skipped {name}: {why}", flush=True)

    def end(self):
        """The closing line; the exit status."""
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        return self.failed > 0


# ---- safetensors ----------------------------------------------------------------------------------------------------------------
def read(path):
    """(tensors, metadata); a tensor is [dtype, shape, bytearray]."""
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    meta = header.pop("__metadata__", {})
    return {k: [v["dtype"], v["shape"], bytearray(data[slice(*v["data_offsets"])])] for k, v in header.items()}, meta


def write(path, tensors, meta):
    header, at = ({"__metadata__": meta} if meta else {}), 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    if os.path.lexists(path):
        os.remove(path)  # a copy's file may be a link into the tree
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            f.write(data)


def pack(dtype, values):
    if dtype == "BF16":  # exact for the few constants that tests write: the low half of the float32 is dropped
        return bytearray(b"".join(struct.pack("<f", v)[2:] for v in values))
    return bytearray(struct.pack(f"<{len(values)}{CODE[dtype]}", *values))


def fill(tensor, value):
    dtype, _, data = tensor
    tensor[2] = pack(dtype, [value]) * (len(data) // SIZE[dtype])


# ---- folders ---------------------------------------------------------------------------------------------------------------------
def write_json(path, value):
    if os.path.lexists(path):
        os.remove(path)
    with open(path, "w") as f:
        json.dump(value, f, indent=1)  # writes NaN and Infinity as they stand


def copy(folder, to):
    """The folder again: links to its files, which an edit replaces."""
    shutil.rmtree(to, ignore_errors=True)
    os.makedirs(to)
    for name in os.listdir(folder):
        os.symlink(os.path.join(os.path.abspath(folder), name), os.path.join(to, name))
    return to


def config(folder):
    with open(os.path.join(folder, "config.json")) as f:
        return json.load(f)


def set_config(folder, value):
    write_json(os.path.join(folder, "config.json"), value)


def weight_files(folder):
    return sorted(os.path.join(folder, n) for n in os.listdir(folder) if re.fullmatch(r"model.*\.safetensors", n))


def edit_tensors(folder, pattern, fn):
    """fn(tensor) on every tensor whose name matches; returns how many did. The folder's trace is bound to the new bytes."""
    n, digest = 0, hashlib.sha256()
    for path in weight_files(folder):
        tensors, meta = read(path)
        hit = [t for name, t in tensors.items() if re.search(pattern, name)]
        for t in hit:
            fn(t)
        if hit:
            write(path, tensors, meta)
        n += len(hit)
        with open(path, "rb") as f:
            digest.update(f.read())
    trace = os.path.join(folder, "oracle.safetensors")
    tensors, meta = read(trace)
    meta["weights_sha256"] = digest.hexdigest()
    write(trace, tensors, meta)
    return n


# ---- lemma -------------------------------------------------------------------------------------------------------------------------
def lemma(*args, timeout=120, **kw):
    return subprocess.run([LEMMA, *map(str, args)], capture_output=True, text=True, errors="replace", timeout=timeout, cwd=ROOT, **kw)


def verify(folder, *args, **kw):
    """(exit status, claims or None, stderr) of lemma verify --json."""
    r = lemma("verify", folder, "--json", *args, **kw)
    return r.returncode, json.loads(r.stdout)["claims"] if r.stdout else None, r.stderr.strip()


def refuted(claims, section=None):
    return [c for c in claims if c["verdict"] == "REFUTED" and section in (None, c["section"])]
