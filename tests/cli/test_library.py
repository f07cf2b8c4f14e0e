#!/usr/bin/env python3
"""docs/library.md: its program compiles without a warning, as installed and from the clone, and generates what `lemma run` does; its errors
are one line. usage: B=build test_library.py"""
import os
import re
import shutil
import subprocess
import tempfile

from drive import FIXTURES, LEMMA, LLAMA, LLAMA_GGUF, ROOT, check, finish, good

with open(os.path.join(ROOT, "docs/library.md"), encoding="utf-8") as f:
    page = f.read()
program = page.split("```c\n")[1].split("```\n")[0]
line = re.search(r"^    (cc .*)$", page, re.M).group(1)
library = os.path.join(os.path.dirname(LEMMA), "liblemma.a")
# the sanitized library needs the sanitizers' own
extra = ["-fsanitize=address,undefined"] if b"__asan_init" in open(library, "rb").read() else []


def runs(hello, *args):
    return subprocess.run([hello, *args], capture_output=True, timeout=60)


with tempfile.TemporaryDirectory() as folder:
    with open(os.path.join(folder, "hello.c"), "w", encoding="utf-8") as f:
        f.write(program)
    os.makedirs(os.path.join(folder, "lib"))
    os.symlink(library, os.path.join(folder, "lib/liblemma.a"))
    os.makedirs(os.path.join(folder, "include"))
    shutil.copytree(os.path.join(ROOT, "include/lemma"), os.path.join(folder, "include/lemma"))
    words = line.split()
    r = subprocess.run([*words, "-Iinclude", "-Llib", "-Wall", "-Wextra", "-Wshadow", "-Werror", *extra], capture_output=True, text=True,
                       cwd=folder, timeout=60)
    check("it compiles as the page says", r.returncode == 0, r.stderr)
    hello = os.path.join(folder, "hello")
    if r.returncode == 0:
        for prompt in ("Once upon a time", "a"):
            want = good("run", LLAMA_GGUF, "-p", prompt, "-n", 64).encode()
            r = runs(hello, LLAMA_GGUF, prompt)
            check(f"it says what lemma run does: {prompt}", r.returncode == 0 and r.stdout == want, f"{r} is not {want}")
        for args, code, says in (((LLAMA, "a"), 3, "carries no tokenizer"), (("nowhere.gguf", "a"), 2, "check the path"),
                                 ((FIXTURES, "a"), 2, "config.json"), ((LLAMA_GGUF,), 2, "usage")):
            r = runs(hello, *args)
            check(f"refused: {args}", r.returncode == code and not r.stdout and r.stderr.count(b"\n") == 1 and says.encode() in r.stderr, r)
    # C++ programs include the headers, too
    if shutil.which("c++"):
        for name in sorted(os.listdir(os.path.join(folder, "include/lemma"))):
            r = subprocess.run(["c++", "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Iinclude", "-x", "c++", "-"], text=True,
                               input=f"#include <lemma/{name}>\n", capture_output=True, cwd=folder, timeout=60)
            check(f"C++: {name}", r.returncode == 0, r.stderr)
listed = set(re.findall(r"^\| `lemma/(\w+\.h)`", page, re.M))
check("every header is in the table", listed == set(os.listdir(os.path.join(ROOT, "include/lemma"))), str(listed))
finish()
