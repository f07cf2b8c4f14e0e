#!/usr/bin/env python3
"""What dump and quantize may write over: never a file of the model that they read, a folder, or what is no regular file (as root, a rename
would turn a device into a file). usage: B=build test_outputs.py"""

import os
import resource
import shutil
import stat
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LEMMA = os.path.join(ROOT, os.environ.get("B", "build"), "lemma")
FIXTURES = os.path.join(ROOT, "tests/fixtures")
passed = failed = 0
folder = tempfile.TemporaryDirectory()


def check(name, ok, detail=""):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok:
        print(f"FAILED {name}\n{detail}")


def path(name):
    return os.path.join(folder.name, name)


def lemma(*args):
    return subprocess.run([LEMMA, *args], capture_output=True, text=True, timeout=300)


def dump(model, out):
    return lemma("dump", model, "--ids", "1,2,3", "-o", out)


def quantize(model, out):
    return lemma("quantize", model, out, "f32")


def content(file):
    with open(file, "rb") as f:
        return f.read()


def refused(verb, model, out, says):
    r = verb(model, out)
    ok = r.returncode == 2 and not r.stdout and r.stderr.count("\n") == 1 and says in r.stderr
    check(f"{verb.__name__} to {os.path.basename(out)!r}", ok, f"{r.returncode} {r.stderr!r}")


def limited():
    """A file that outgrows RLIMIT_FSIZE: one line, and nothing is left beside the target."""
    place = path("limited")
    os.mkdir(place)
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))  # noqa: E731
    for verb in (["dump", os.path.join(FIXTURES, "llama"), "--ids", "1,2,3,4,5,6,7,8,9", "-o"], ["quantize", os.path.join(FIXTURES, "llama")]):
        target = os.path.join(place, "out")
        r = subprocess.run([LEMMA, *verb, target, *(["f32"] if verb[0] == "quantize" else [])], capture_output=True, text=True, timeout=60, preexec_fn=limit)
        ok = r.returncode == 2 and r.stderr.count("\n") == 1 and "File too large" in r.stderr and not os.listdir(place)
        check(f"{verb[0]} past the size limit", ok, f"{r.returncode} {r.stderr!r} {os.listdir(place)}")


def main():
    model, gguf, fifo = path("llama"), path("llama.gguf"), path("fifo")
    shutil.copytree(os.path.join(FIXTURES, "llama"), model)
    shutil.copy(os.path.join(FIXTURES, "gguf/llama.gguf"), gguf)
    os.mkfifo(fifo)
    os.symlink(os.path.join(model, "model.safetensors"), path("link"))
    os.link(gguf, path("hard"))
    before = {f: content(os.path.join(model, f)) for f in os.listdir(model)}
    for verb in (dump, quantize):
        for name in ("model.safetensors", "config.json", "generation_config.json", "../llama/model.safetensors", "../link"):
            refused(verb, model, os.path.join(model, name), "is a file that is being read")
        refused(verb, model, folder.name, "is a directory")
        refused(verb, model, fifo, "name a regular file")
        refused(verb, model, "", "empty name")
        refused(verb, model, path("no-such-folder/out"), "cannot create a file in that folder")
    refused(dump, gguf, gguf, "is a file that is being read")
    refused(dump, gguf, path("hard"), "is a file that is being read")
    check("the model is as it was", before == {f: content(os.path.join(model, f)) for f in os.listdir(model)})
    check("the FIFO is one still", stat.S_ISFIFO(os.stat(fifo).st_mode))
    check("no temporary stays", not [f for f in os.listdir(folder.name) + os.listdir(model) if ".tmp" in f])
    for verb, out in ((dump, "a.safetensors"), (quantize, "a.gguf")):
        for again in range(2):
            r = verb(model, path(out))
            check(f"{verb.__name__}: a new file, then over it", r.returncode == 0 and os.path.getsize(path(out)) > 1000, r.stderr)
    r = lemma("dump", model, "--ids-from", os.path.join(model, "oracle.safetensors"), "-o", os.path.join(model, "oracle.safetensors"))
    check("a trace over the one that it continues", r.returncode == 0, r.stderr)


def known_before():
    """What can't be written is said before anything is computed, and what is read is not written over."""
    model, oracle = os.path.join(FIXTURES, "llama"), path("oracle.safetensors")
    ids, nowhere, prompt = ("--ids", "1,2,3,4,5,6"), path("no-such-folder/out"), path("prompt.txt")
    shutil.copy(os.path.join(model, "oracle.safetensors"), oracle)
    with open(prompt, "w") as f:
        f.write("a prompt")
    for says, args in (
        ("cannot create a file in that folder", ("run", model, *ids, "--json", "--receipt", nowhere)),
        ("cannot create a file in that folder", ("ppl", model, *ids, "--save", nowhere)),
        ("no file can be made at", ("verify", model, "--html", nowhere)),
        ("no file can be made at", ("verify", model, "--html", "")),
        ("no file can be made at", ("diff", model, oracle, "--html", nowhere)),
        ("is a file that is being read", ("ppl", model, "--kl", oracle, "--save", oracle)),
        ("would write over the prompt", ("run", model, "-f", prompt, "--receipt", prompt)),
    ):
        r = lemma(*args)
        check(f"{args[0]} {args[-2:]} at once", r.returncode == 2 and not r.stdout and r.stderr.count("\n") == 1 and says in r.stderr, f"{r.returncode} {r.stdout[:200]} {r.stderr}")
    check("what was read is as it was", content(oracle) == content(os.path.join(model, "oracle.safetensors")) and content(prompt) == b"a prompt")


def page_stays():
    """A page that can't be written whole leaves the one before it, and nothing beside it."""
    place = path("pages")
    os.mkdir(place)
    page, args = os.path.join(place, "p.html"), ("verify", os.path.join(FIXTURES, "llama"), "--determinism", "off", "--html")
    first = lemma(*args, page)
    before = content(page)
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))  # noqa: E731
    r = subprocess.run([LEMMA, *args, page], capture_output=True, text=True, timeout=60, preexec_fn=limit)
    ok = first.returncode == 0 and r.returncode == 2 and "File too large" in r.stderr and content(page) == before and os.listdir(place) == ["p.html"]
    check("a page past the size limit", ok, f"{r.returncode} {r.stderr} {os.listdir(place)}")


limited()
page_stays()
main()
known_before()
print(f"{passed} passed, {failed} failed, 0 skipped")
sys.exit(failed > 0)
