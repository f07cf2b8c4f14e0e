#!/usr/bin/env python3
"""docs/tutorial.md: every command of it runs, and prints what stands there, numbers aside. usage: B=build test_tutorial.py"""
import os
import re
import subprocess
import tempfile

from drive import LEMMA, ROOT, check, finish

NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def blocks():
    """(command, expected lines) in order: lines indented by four, "$ " before a command."""
    out = []
    with open(os.path.join(ROOT, "docs/tutorial.md")) as f:
        for line in f.read().split("\n"):
            if line.startswith("    $ "):
                out.append((line[6:], []))
            elif line.startswith("    ") and out:
                out[-1][1].append(line[4:])
    return out


def shape(line):
    """A line without its numbers (each op's name keeps its own) and with single spaces."""
    words = [w if re.match(r"^\(?(layer|c)\.?\d", w) else NUMBER.sub("#", w) for w in line.split()]
    return " ".join("sha256:#" if w.startswith("sha256:") else w for w in words)


def same(expected, line):
    """Equal but for the numbers, and for what a "…" within a line stands for."""
    return re.fullmatch(".*".join(map(re.escape, shape(expected).split("…"))), shape(line)) is not None


def holds(expected, lines):
    """Each expected line in order; without "…" between two they follow each other. The first that doesn't, or None."""
    at, loose = 0, False
    for e in expected:
        if e.strip() == "…":
            loose = True
            continue
        while at < len(lines) and loose and not same(e, lines[at]):
            at += 1
        if at == len(lines) or not same(e, lines[at]):
            return f"{e!r}, there is {lines[at] if at < len(lines) else 'nothing more'!r}"
        at, loose = at + 1, False
    return None if loose or at == len(lines) else f"nothing more, there is {lines[at]!r}"


with tempfile.TemporaryDirectory() as folder:
    os.symlink(os.path.join(ROOT, "tests"), os.path.join(folder, "tests"))
    os.mkdir(os.path.join(folder, "build"))
    os.symlink(LEMMA, os.path.join(folder, "build/lemma"))
    mark, commands = "--- the next command ---", blocks()
    script = "".join(f"{c}\necho '{mark}'\n" for c, _ in commands)
    r = subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder, timeout=300)
    parts = r.stdout.split(mark + "\n")
check("every command ran", len(parts) == len(commands) + 1 and len(commands) > 12, f"{len(parts)} {r.stdout[-500:]}")
for (command, expected), got in zip(commands, parts):
    wrong = holds(expected, [x for x in got.split("\n") if x.strip()])
    check(command, wrong is None, f"the tutorial has {wrong}\n{got}")
everything = "".join(parts)
check("the bug's op is named", "A does not follow from its own inputs at layer.0.attn.q_rope (rope)" in everything)
check("and nothing else", everything.count("does not follow") == 3)
finish()
