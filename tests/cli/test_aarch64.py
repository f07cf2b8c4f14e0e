#!/usr/bin/env python3
"""D5 across architectures: the AArch64 build under qemu-user computes the native build's bits, at levels c and neon, with and without the
dot-product extension. Builds build-aarch64 where it is missing or old; skipped without the cross compiler, qemu-user or the libraries.
usage: B=build test_aarch64.py"""
import os
import re
import shutil
import subprocess
import tempfile

import drive

BUILD = os.path.join(drive.ROOT, "build-aarch64")
CACHE = os.environ.get("LEMMA_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "lemma")
SYSROOT = os.path.join(CACHE, "aarch64-sysroot/usr")
QEMU = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
HYBRID = "hybrid/hybrid-q4_k_m.gguf"
RUNS = [(m, "f32") for m in ("llama", "gemma3", "gpt_oss", "deepseek_v3", "qwen3_5", HYBRID)] + [(HYBRID, lane) for lane in ("i8", "i16", "mixed")]

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


def dump(model, lane):
    path = os.path.join(drive.FIXTURES, model)
    oracle = os.path.join(path if os.path.isdir(path) else os.path.dirname(path), "oracle.safetensors")
    return ["dump", path, "--ids-from", oracle, "--lane", lane, "--threads", "1", "--hash", "-o", os.path.join(folder.name, "out.safetensors")]


def equal_hashes():
    for model, lane in RUNS:
        native = drive.good(*dump(model, lane)).strip()
        drive.check(f"native {model} {lane}", re.fullmatch(r"sha256:[0-9a-f]{64}", native), native)
        ways = [("c", "max"), ("neon", "max")] + ([("neon", "cortex-a53")] if lane != "f32" else [])
        for level, cpu in ways:
            r = qemu("lemma", *dump(model, lane), "--cpu-level", level, cpu=cpu)
            drive.check(f"{model} {lane} level {level} on {cpu}", r.returncode == 0 and r.stdout.strip() == native, f"{r.stdout}{r.stderr}, native {native}")


def refuses_by_name():
    r = qemu("lemma", *dump("llama", "f32"), "--cpu-level", "avx2")
    drive.check("avx2 is refused", r.returncode in (2, 3) and "avx2" in r.stderr and "c or neon" in r.stderr, f"{r.returncode} {r.stderr}")


def kernels():
    for name in ("product", "vector", "lane_int"):
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
    refuses_by_name()
    kernels()
drive.finish()
