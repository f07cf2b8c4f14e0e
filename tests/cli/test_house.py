#!/usr/bin/env python3
"""The house's rules (tools/check-includes) and the test runner itself (tests/run), each on the tree and on small trees made to fail; and that
the pages speak of what is there."""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

from drive import ROOT, check, finish, good


def write(root, path, text, mode=0o644):
    full = os.path.join(root, path)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    with open(full, "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(full, mode)


def lint(root):
    r = subprocess.run([sys.executable, os.path.join(ROOT, "tools/check-includes"), root], capture_output=True, text=True, timeout=60)
    return r.returncode, r.stdout


HOUSE = {
    "include/lemma/lemma.h": "#include <stddef.h>\n",
    "src/base/mem.h": '#include "lemma/lemma.h"\n',
    "src/base/mem.c": '#include "base/mem.h"\nvoid *f(void) { return malloc(1); }\n',
    "src/quant/dtype.h": '#include "base/mem.h"\n#include "dtype_list.h"\n',
    "src/tensor/tensor.h": '#include "quant/dtype.h"\n',
    "src/format/source.h": '#include "tensor/tensor.h"\n#include <jansson.h>\n',
    "src/graph/program.h": '#include "tensor/tensor.h"\n#include "base/mem.h"\n#include "quant/dtype.h"\n',
    "src/backend/backend.h": '#include "graph/program.h"\n',
    "src/backend/f64/ops.h": '#include "backend/backend.h"\n',
    "src/backend/f64/run.c": '#include "ops.h"\n#include "version.h"\n',
    "src/arch/llama.c": '#include "format/source.h"\n#include "graph/program.h"\n#include "arch_list.h"\n',
    "src/lemma.c": '#include "arch/../graph/program.h"\n#include "lemma/lemma.h"\n',
    "cli/cli.h": '#include "lemma/lemma.h"\n#include <stdio.h>\n',
    "cli/main.c": '#include "cli.h"\n#include <lemma/lemma.h>\nint main(void) { printf("hello"); exit(0); }\n',
}
# what is added to the house, and the line and words of the one fault it must give; None: it is fine
CASES = [
    ("src/base/a.c", '\n#include "quant/dtype.h"\n', (2, "must not see src/quant/dtype.h")),
    ("src/base/a.c", "#include <jansson.h>\n", (1, "C library alone")),
    ("src/quant/a.c", '#include "tensor/tensor.h"\n', (1, "must not see")),
    ("src/format/a.c", '#include "graph/program.h"\n', (1, "must not see")),
    ("src/graph/a.c", '#include "format/source.h"\n', (1, "must not see")),
    ("src/sampler/a.c", '#include "tensor/tensor.h"\n', (1, "must not see")),
    ("src/kernels/avx2/a.c", '#include "../../graph/program.h"\n', (1, "must not see src/graph/program.h")),
    ("src/kernels/avx2/a.c", '/* "x */ #  include <graph/program.h>\n', (1, "must not see")),
    ("src/kernels/a.c", '#include "tensor/tensor.h"\n', None),
    ("src/kernels/a.c", '#include "dtype_list.h"\n', (1, "generated for quant")),
    ("src/verify/a.c", '#include "arch_list.h"\n', (1, "generated for arch")),
    ("src/verify/a.c", '#include "graph/program.h"\n#include "version.h"\n', None),
    ("src/base/a.c", '#include "nowhere.h"\n', (1, "is found nowhere")),
    ("src/base/a.c", '#include "cli/../../cli/cli.h"\n', (1, "does not see cli/cli.h")),
    ("src/attic/a.c", "\n", (1, "no room of the house")),
    ("cli/a.c", '#include "base/mem.h"\n', (1, "sees lemma/*.h only")),
    ("server/a.c", '#include "tensor/tensor.h"\n', (1, "sees lemma/*.h only")),
    ("include/lemma/verify.h", '#include "base/mem.h"\n', (1, "not installed")),
    ("src/base/a.c", '// #include "quant/dtype.h"\n/*\n#include "quant/dtype.h"\n*/\n', None),
    ("src/graph/a.c", "void f(void) {\n    abort();\n}\n", (2, "abort is not called")),
    ("src/graph/a.c", "/* a\n b */ int x = 'a'; void f(void) { exit (1); }\n", (2, "exit is not called")),
    ("src/graph/a.c", "void f(int x) { assert(x); }\n", (1, "assert")),
    ("src/graph/a.c", 'void f(void) { printf("x"); }\n', (1, "printf")),
    ("src/graph/a.c", 'void f(void) { fprintf(stderr, "x"); }\n', (1, "never prints")),
    ("src/graph/a.c", 'char *f(void) { return getenv("X"); }\n', (1, "getenv")),
    ("src/graph/a.c", "void f(char *a, char *b) { strcpy(a, b); }\n", (1, "strcpy")),
    ("src/graph/a.c", 'void f(char *a) { sprintf(a, "x"); }\n', (1, "sprintf")),
    ("src/graph/a.c", "int f(char *a) { return atoi(a); }\n", (1, "atoi")),
    ("src/graph/a.c", "void *f(void) { return malloc(1); }\n", (1, "memory comes from base/mem.h")),
    ("src/graph/a.c", "void f(void *p) { free(p); }\n", (1, "free")),
    ("src/graph/a.c", "void f(struct b *b) { b->free(b); (*b).free(b); lm_free(b); }\nstruct b { void (*free)(struct b *); };\n", None),
    ("src/graph/a.c", 'const char *t = "abort() \\" malloc(1)"; /* exit(1) */ // printf("x")\n_Static_assert(1, "x");\n', None),
    ("src/graph/a.c", 'void f(char *a, char *b) { snprintf(a, 4, "%s", b); my_abort(); vsnprintf(a, b); }\n', None),
    ("src/graph/a.c", "static _Atomic(float) sum;\n", (1, "floating-point atomic")),
    ("src/graph/a.c", "static _Atomic double sum;\n", (1, "floating-point atomic")),
    ("src/graph/a.c", "static _Atomic uint32_t sum;\n", None),
]


def check_rules():
    code, out = lint(ROOT)
    check("the tree keeps the rules", code == 0, out)
    with tempfile.TemporaryDirectory() as empty:
        check("an empty tree is no success", lint(empty)[0] == 1)
    for path, text, want in CASES:
        with tempfile.TemporaryDirectory() as root:
            for p, t in HOUSE.items():
                write(root, p, t)
            if text is not None:
                write(root, path, text)
            code, out = lint(root)
            lines = out.splitlines()
            if want is None:
                check(f"fine: {path}: {text!r}", code == 0 and not lines, out)
            else:
                ok = code == 1 and len(lines) == 1 and lines[0].startswith(f"{path}:{want[0]}: ") and want[1] in lines[0]
                check(f"{path}: {text!r}", ok, out or "no fault reported")


PASS = 'echo "[  PASSED  ] 3 test(s)."\n'
BAD = 'echo "[  PASSED  ] 1 test(s)." >&2\necho "[  FAILED  ] group: 2 test(s), listed below:" >&2\necho "[  FAILED  ] one"\nexit 2\n'
SKIP = 'echo "[  PASSED  ] 2 test(s)."\necho "[  SKIPPED ] 1 test(s), listed below:"\necho "[  SKIPPED ] one"\n'
DRIVER = "#!/usr/bin/env python3\n"
# programs (name: body of a shell script, None: not built), drivers (name: Python), the last line, the exit status
RUNS = [
    ("nothing", {}, {}, "0 passed, 0 failed, 0 skipped", 1),
    ("all good", {"unit/test_a": PASS, "kernels/test_b": SKIP}, {"cli/test_c": "print('x\\n4 passed, 0 failed, 1 skipped')"},
     "9 passed, 0 failed, 2 skipped", 0),
    ("two groups", {"unit/test_a": PASS + PASS}, {}, "6 passed, 0 failed, 0 skipped", 0),
    ("failures", {"unit/test_a": PASS, "unit/test_b": BAD}, {}, "4 passed, 2 failed, 0 skipped", 1),
    ("crash", {"unit/test_a": PASS, "unit/test_b": "kill -SEGV $$\n"}, {}, "3 passed, 1 failed, 0 skipped", 1),
    ("crash after the counts", {"unit/test_a": PASS + "kill -ABRT $$\n"}, {}, "3 passed, 1 failed, 0 skipped", 1),
    ("no counts", {"unit/test_a": PASS, "unit/test_b": "true\n"}, {}, "3 passed, 1 failed, 0 skipped", 1),
    ("not built", {"unit/test_a": PASS, "unit/test_b": None}, {}, "3 passed, 1 failed, 0 skipped", 1),
    ("too slow", {"unit/test_a": PASS, "unit/test_b": "sleep 60\n"}, {}, "3 passed, 1 failed, 0 skipped", 1),
    ("only skipped", {"unit/test_a": 'echo "[  PASSED  ] 0 test(s)."\necho "[  SKIPPED ] 1 test(s), listed below:"\n'}, {},
     "0 passed, 0 failed, 1 skipped", 1),
    ("driver fails", {}, {"fixtures/test_c": "print('4 passed, 1 failed, 0 skipped')\nraise SystemExit(1)"}, "4 passed, 1 failed, 0 skipped", 1),
    ("driver fails, status 0", {}, {"fixtures/test_c": "print('4 passed, 2 failed, 0 skipped')"}, "4 passed, 2 failed, 0 skipped", 1),
    ("driver raises", {}, {"cli/test_c": "print('4 passed, 0 failed, 0 skipped')\n1/0"}, "4 passed, 1 failed, 0 skipped", 1),
    ("driver is silent", {}, {"cli/test_c": "print('4 passed')"}, "0 passed, 1 failed, 0 skipped", 1),
    ("driver's surroundings", {}, {"cli/test_c": "import os\nok = os.environ['B'] == 'out' and os.environ['SHARED'] == 's h'\n"
                                   "print(f'{ok:d} passed, {not ok:d} failed, 0 skipped')"}, "1 passed, 0 failed, 0 skipped", 0),
]


def check_runner():
    for name, programs, drivers, last, code in RUNS:
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, "tests"))
            shutil.copy(os.path.join(ROOT, "tests/run"), os.path.join(root, "tests/run"))
            for p, body in programs.items():
                write(root, f"tests/{p}.c", "")
                if body is not None:
                    write(root, f"out/tests/{p}", "#!/bin/sh\n" + body, 0o755)
            for p, body in drivers.items():
                write(root, f"tests/{p}.py", DRIVER + body, 0o755)
            env = dict(os.environ, B="out", SHARED="s h", LIMIT="2" if name == "too slow" else "60")
            r = subprocess.run(["tests/run"], cwd=root, env=env, capture_output=True, text=True, timeout=120)
            lines = r.stdout.splitlines()
            ok = r.returncode == code and lines and lines[-1] == last and sum(" skipped " in x for x in lines[:-1]) == len(programs) + len(drivers)
            check(f"runner: {name}", ok, f"status {r.returncode}\n{r.stdout}{r.stderr}")


# what still has lines of over 140 columns: a file or folder that is wrapped leaves the list, none joins it
TOO_WIDE = ("src/kernels/", "src/backend/cpu/", "tests/kernels/", "src/base/threads", "src/arch/common/arch.h", "cli/bench.c", "cli/cli.h",
            "include/lemma/lemma.h")


def check_columns():
    for top in ("include", "src", "cli", "server", "tests"):
        for path in sorted(glob.glob(os.path.join(ROOT, top, "**/*.[ch]"), recursive=True)):
            name = os.path.relpath(path, ROOT)
            with open(path, encoding="utf-8") as f:
                wide = [i for i, line in enumerate(f, 1) if len(line.rstrip("\n")) > 140]
            check(f"{name}: within 140 columns", not wide or name.startswith(TOO_WIDE), f"lines {wide[:8]}")


def anchors(page):
    with open(page, encoding="utf-8") as f:
        return {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", f.read(), re.M)}


def check_pages():
    """Links lead somewhere, files that are named exist, README has the verbs that -h has, make help the Makefile's targets."""
    for page in ["README.md", "CONTRIBUTING.md", *sorted(glob.glob("docs/*.md", root_dir=ROOT))]:
        with open(os.path.join(ROOT, page), encoding="utf-8") as f:
            text = f.read()
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            file, _, anchor = target.partition("#")
            full = os.path.join(ROOT, os.path.dirname(page), file) if file else os.path.join(ROOT, page)
            check(f"{page}: {target}", os.path.exists(full) and (not anchor or anchor in anchors(full)), "leads nowhere")
        for name in set(re.findall(r"`((?:src|tools|tests|docs|cli|include)/[\w./-]*\w)", text)):
            if "NAME" not in name:
                check(f"{page}: {name}", os.path.exists(os.path.join(ROOT, name)), "no such file")
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
        there, not_there = re.split(r"^## What is not there$", f.read().split("\n## What is there\n")[1], flags=re.M)
    for verb, text in re.findall(r"^  lemma (\w+) (.*)$", good("-h"), re.M):
        check(f"README: {verb}", f"`{verb}`" in (not_there if " planned: " in text else there), f"-h says: {text}")
    with open(os.path.join(ROOT, "CONTRIBUTING.md"), encoding="utf-8") as f, open(os.path.join(ROOT, "src/arch/olmo2.c"), encoding="utf-8") as g:
        shown = "".join(x[5:] for x in f.readlines() if x.startswith("    +") and not x.startswith("    +++"))
        check("CONTRIBUTING.md's family is src/arch/olmo2.c", shown == g.read(), shown)
    with open(os.path.join(ROOT, "Makefile"), encoding="utf-8") as f:
        make = f.read()
    listed = make.split("\nhelp:\n")[1].split("\nclean:\n")[0]
    for target in re.search(r"^\.PHONY: all (.*) help FORCE$", make, re.M).group(1).split():
        if target not in ("aarch64-kernels", "fuzz-targets"):  # parts of others
            check(f"make help: {target}", re.search(rf'\b{re.escape(target)}\b', listed), "is not listed")


check_rules()
check_columns()
check_runner()
check_pages()
finish()
