#!/usr/bin/env python3
"""Ctrl-C: every verb that can run long stops soon, with status 130 and one line that says so, and leaves no output file, half-written or not.
(Those whose own tests try it too: run, ppl, quantize.)
usage: B=build test_interrupts.py"""
import os
import signal
import subprocess
import tempfile
import time

import drive

SOON = 5.0  # seconds; far less where the machine has time for it
IDS = ",".join(str(i * 7 % 300) for i in range(400))
HYBRID = os.path.join(drive.FIXTURES, "hybrid/hybrid-q4_k_m.gguf")

folder = tempfile.TemporaryDirectory()


def path(name):
    return os.path.join(folder.name, name)


def listens(p):
    """Has it begun to catch SIGINT? False when it ended before."""
    while p.poll() is None:
        with open(f"/proc/{p.pid}/status") as f:
            caught = next(line for line in f if line.startswith("SigCgt:"))
        if int(caught.split()[1], 16) >> (signal.SIGINT - 1) & 1:
            return True
        time.sleep(0.01)
    return False


def interrupted(name, *args):
    before = sorted(os.listdir(folder.name))
    with open(path("out"), "w") as out, open(path("err"), "w") as err:
        p = subprocess.Popen([drive.LEMMA, *map(str, args)], stdout=out, stderr=err)
        ready = listens(p)
        time.sleep(0.3)
        ready = ready and p.poll() is None
        p.send_signal(signal.SIGINT)
        start = time.monotonic()
        try:
            p.wait(timeout=60)
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
        took = time.monotonic() - start
    with open(path("err")) as f:
        said = f.read()
    os.remove(path("out")), os.remove(path("err"))
    drive.check(f"{name} was at work", ready, said)
    drive.check(f"{name}: 130, soon", p.returncode == 130 and took < SOON, f"status {p.returncode} after {took:.1f} s: {said}")
    drive.check(f"{name}: one line", said.count("interrupted") == 1 and said.endswith("\n") and "Traceback" not in said, said)
    drive.check(f"{name} leaves nothing behind", sorted(os.listdir(folder.name)) == before, os.listdir(folder.name))


if not os.path.exists("/proc/self/status"):
    drive.skip("everything", "no /proc")
else:
    f64 = ("--backend", "f64", "--threads", 1)
    trace = path("trace.safetensors")
    drive.good("dump", HYBRID, "--ids", IDS, "-o", trace)
    interrupted("run", "run", HYBRID, "--ids", IDS, "-n", 100000, "--ctx", 200000, "--ignore-eos", *f64)
    interrupted("dump", "dump", HYBRID, "--ids", IDS, "--taps", "--greedy", 20000, "-o", path("dump.safetensors"), *f64)
    interrupted("verify", "verify", HYBRID, trace, "--determinism", "full", "--html", path("verify.html"))
    interrupted("verify --all", "verify", "--all", drive.FIXTURES, "--determinism", "full")
    interrupted("diff", "diff", trace, HYBRID + ":cpu:i8", "--greedy", 20000, "--html", path("diff.html"))
    interrupted("diff of two runs", "diff", HYBRID + ":cpu:i8", HYBRID, "--ids", IDS, "--greedy", 20000)
    interrupted("what a quantized file costs", "diff", os.path.join(drive.FIXTURES, "hybrid"), HYBRID, "--quant", "--per-tensor", "--ids", ",".join([IDS] * 4))
    interrupted("ppl", "ppl", HYBRID, "--ids", ",".join([IDS] * 50), "--save", path("ref.safetensors"), *f64)
    interrupted("bench", "bench", HYBRID, "-p", 512, "-n", 4000, "-r", 1000)
    interrupted("profile", "profile", HYBRID, "-p", 512, "-n", 100000)
drive.finish()
