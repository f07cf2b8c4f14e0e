#!/usr/bin/env python3
"""D5 across architectures: the AArch64 build under qemu-user computes the native build's bits, at levels c and neon, with the matrix-multiply
extension, the dot-product one and neither. Builds build-aarch64 where it is missing or old; skipped without the cross compiler, qemu-user or the libraries.
usage: B=build test_aarch64.py"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

import drive

sys.path.insert(0, os.path.join(drive.ROOT, "tools"))
import make_random  # noqa: E402

BUILD = os.path.join(drive.ROOT, "build-aarch64")
CACHE = os.environ.get("LEMMA_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "lemma")
SYSROOT = os.path.join(CACHE, "aarch64-sysroot/usr")
QEMU = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
HYBRID = "hybrid/hybrid-q4_k_m.gguf"
INT_LANES = ("i8", "i16", "mixed")

folder = tempfile.TemporaryDirectory()


def missing():
    """Why nothing can be tested here, or None."""
    if not shutil.which("aarch64-linux-gnu-gcc"):
        return "no aarch64-linux-gnu-gcc: tools/setup cross"
    return None if QEMU else "no qemu-aarch64: tools/setup cross"


def build():
    """None, or what failed. The outer build's settings are not this one's."""
    outer = ("B", "SAN", "OPT", "CC", "AR", "CFLAGS", "LDFLAGS", "MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL")
    env = {k: v for k, v in os.environ.items() if k not in outer}
    r = subprocess.run(["make", "aarch64-kernels"], capture_output=True, text=True, cwd=drive.ROOT, env=env)
    return None if r.returncode == 0 else (r.stdout + r.stderr)[-3000:]


def qemu(program, *args, cpu="max"):
    libraries = os.path.join(SYSROOT, "lib/aarch64-linux-gnu")  # cmocka; the rest is in the program
    command = [QEMU, "-cpu", cpu, "-L", "/usr/aarch64-linux-gnu", "-E", f"LD_LIBRARY_PATH={libraries}", os.path.join(BUILD, program), *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=drive.ROOT, timeout=300)


def run(path, lane, ids, *more):
    return ["run", path, "--ids", ",".join(map(str, ids)), "-n", "0", "--lane", lane, "--threads", "1", "--hash", *more]


def fixtures():
    """(name, path, ids): every family's folder, with its longest short case."""
    for name in sorted(os.listdir(drive.FIXTURES)):
        path = os.path.join(drive.FIXTURES, name)
        if name == "tower" or not os.path.exists(os.path.join(path, "model.safetensors")) and not os.path.exists(os.path.join(path, "model.safetensors.index.json")):
            continue
        cases = [v for k, v in drive.trace(os.path.join(path, "oracle.safetensors")).items() if re.fullmatch(r"c\d+\.ids", k)]
        yield name, path, max((c for c in cases if len(c) <= 64), key=len)


def equal(name, args, ways):
    native = re.search(r"^sha256:[0-9a-f]{64}$", drive.good(*args), re.M)
    drive.check(f"native {name}", native, name)
    for level, cpu in ways if native else ():
        r = qemu("lemma", *args, "--cpu-level", level, cpu=cpu)
        drive.check(f"{name} level {level} on {cpu}", r.returncode == 0 and native.group(0) in r.stdout.split(), f"{r.stdout}{r.stderr}, native {native.group(0)}")


def equal_hashes():
    """Every family in lane f32, and random weights of every storage type in every lane, 23 tokens of them: NEON and the native build agree."""
    n = 0
    for name, path, ids in fixtures():
        equal(f"{name} f32", run(path, "f32", ids), [("neon", "max")] + ([("c", "max")] if name in ("llama", "gpt_oss", "deepseek_v3", "qwen3_5") else []))
        n += 1
    drive.check("the fixtures are there", n >= 31, n)
    for lane in INT_LANES:
        equal(f"hybrid {lane}", run(os.path.join(drive.FIXTURES, HYBRID), lane, range(3, 50)), [("c", "max"), ("neon", "max"), ("neon", "neoverse-n1"), ("neon", "cortex-a53")])
    for lane in ("i8", "mixed"):  # which then attend in bfloat16
        equal(f"hybrid {lane}, kv bf16", run(os.path.join(drive.FIXTURES, HYBRID), lane, range(3, 50), "--kv", "bf16"), [("c", "max"), ("neon", "max"), ("neon", "cortex-a53")])
    for kind in make_random.TYPES:
        path = os.path.join(folder.name, kind + ".gguf")
        with open(path, "wb") as f:
            f.write(make_random.model(kind))
        for lane in ("f32",) + INT_LANES + (("bf16",) if kind in ("F32", "F16", "BF16") else ()):
            equal(f"{kind} {lane}", run(path, lane, range(7, 30)), [("neon", "max")])


def receipts():
    """A receipt made natively is reproduced here, and one made here natively."""
    made = os.path.join(folder.name, "receipt.json")
    for model, lane in (("gguf/llama.gguf", "f32"), (HYBRID, "i8")):
        path = os.path.join(drive.FIXTURES, model)
        make = ["run", path, "--ids", "5,17,200,3,42", "-n", "256", "--temp", "0.9", "--top-p", "0.95", "--seed", "7", "--ignore-eos", "--print-ids",
                "--lane", lane, "--receipt", made]
        check = ["verify", path, "--receipt", made, "--threads", "1"]
        native = drive.good(*make)
        for level in ("c", "neon"):
            r = qemu("lemma", *check, "--cpu-level", level)
            drive.check(f"receipt of {model} {lane}: level {level}", r.returncode == 0 and r.stdout.endswith("5 proven, 0 open, 0 refuted\n"), r.stdout + r.stderr)
        r = qemu("lemma", *make)
        drive.check(f"made here: {model} {lane}", r.returncode == 0 and r.stdout == native, r.stderr)
        drive.good(*check)


def refuses_by_name():
    r = qemu("lemma", *run(drive.LLAMA, "f32", (1, 2)), "--cpu-level", "avx2")
    drive.check("avx2 is refused", r.returncode in (2, 3) and "avx2" in r.stderr and "c or neon" in r.stderr, f"{r.returncode} {r.stderr}")


def kernels():
    for name in ("product", "vector", "lane_int", "bf16", "attend_bf16"):
        r = qemu(f"tests/kernels/test_{name}")
        drive.check(f"kernels: {name}", r.returncode == 0, (r.stdout + r.stderr)[-2000:])


why = missing()
failed = None if why else build()
if why or (failed and not os.path.exists(os.path.join(SYSROOT, ".complete"))):
    drive.skip("everything", why or "no AArch64 libraries: tools/setup cross")
elif failed:
    drive.check("build-aarch64 is built", False, failed)
else:
    equal_hashes()
    receipts()
    refuses_by_name()
    kernels()
drive.finish()
