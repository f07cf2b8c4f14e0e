#!/usr/bin/env python3
"""--html of verify and diff: what the page says, that nothing from a file becomes markup, that nothing is fetched, and how a browser sees it
(headless Chromium, light, dark, narrow and wide; skipped where there is none). usage: B=build test_html.py"""

import html.parser
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE), os.path.join(os.path.dirname(HERE), "lib")]
import trace_file as st  # noqa: E402
from drive import LLAMA, LLAMA_GGUF, check, finish, good, lemma, refused, skip  # noqa: E402

ORACLE = os.path.join(LLAMA, "oracle.safetensors")
IDS = ",".join(str((i * 6007 + i * i * 17 + 3) % 320) for i in range(40))
folder = tempfile.TemporaryDirectory()


def path(name):
    return os.path.join(folder.name, name)


def read(name):
    with open(path(name), encoding="utf-8") as f:
        return f.read()


class Page(html.parser.HTMLParser):
    """Tags and their attributes, the text, and what stands open."""

    VOID = {"meta", "br", "line", "circle", "path"}

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.open, self.bad = [], "", [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag in self.VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.bad.append(tag)

    def handle_data(self, data):
        self.text += data


ALLOWED = set("html meta title style h1 h2 p table tr th td code span div i br figure figcaption svg g line path circle text".split())


def sound(name):
    """The page is well-formed, made of harmless elements, and refers to nothing."""
    text = read(name)
    page = Page(text)
    check(f"{name}: well-formed", not page.bad and not page.open, f"{page.bad} {page.open}")
    check(f"{name}: only known elements", {t for t, _ in page.tags} <= ALLOWED, str({t for t, _ in page.tags} - ALLOWED))
    attributes = {a for _, attrs in page.tags for a in attrs}
    check(f"{name}: no handlers, links or sources", not [a for a in attributes if a.startswith("on") or a in ("src", "href", "xlink:href", "style")], str(attributes))
    check(f"{name}: nothing is fetched", not re.search(r"https?://|@import|url\(", text))
    check(f"{name}: both colour schemes, and print", "prefers-color-scheme:dark" in text and "@media print" in text)
    return page


def verify_page():
    far = path("a_folder_whose_name_is_longer_than_a_narrow_page_is_wide_" * 3)  # a path is one word: it must break, wherever the tree lies
    os.symlink(LLAMA, far)
    r = lemma("verify", far, "--html", path("verify.html"))
    check("verify", r.returncode == 0 and r.stdout.rstrip().split("\n")[-1] in read("verify.html"), r.stdout[-200:] + r.stderr)
    page = sound("verify.html")
    for says in ("c1 hidden cosine", "PROVEN", "OPEN", "needs an AArch64 machine", "layer.3", "contract version", "oracle.safetensors", "weights' sha256", "trace's sha256"):
        check(f"verify: {says}", says in page.text)
    lines = [line for line in r.stdout.split("\n") if line.startswith(("PROVEN", "OPEN", "REFUTED"))]
    check("verify: a row for each claim", len(re.findall(r'<td class="k (?:good|open|bad)">', read("verify.html"))) == len(lines), str(len(lines)))
    check("verify: a chart for each case, and the bounds", sum(t == "svg" for t, _ in page.tags) == 4)
    cells = [a["title"] for t, a in page.tags if t == "i" and "title" in a]
    check("verify: a cell for each position", len(cells) == 1 + 9 + 37 and cells[0].startswith("position 0: "), str(len(cells)))
    first = read("verify.html")
    lemma("verify", far, "--html", path("verify.html"))
    check("verify: the same run gives the same page", read("verify.html") == first)


def refuted_page():
    tensors, meta = st.read(ORACLE)
    st.put(tensors["c1.logits"], 320 * 4 + 7, st.get(tensors["c1.logits"], 320 * 4 + 7) + 30)
    st.put(tensors["c2.greedy"], 5, (st.get(tensors["c2.greedy"], 5) + 1) % 320)
    st.write(path("wrong.safetensors"), tensors, meta)
    r = lemma("verify", LLAMA, path("wrong.safetensors"), "--determinism", "off", "--html", path("refuted.html"))
    page = sound("refuted.html")
    check("refuted", r.returncode == 1 and "REFUTED" in page.text and re.search(r"position 4: we choose \d+, the trace 7", page.text), r.stdout)
    check("refuted: the position is framed", any(a.get("class", "").endswith(" x") and a["title"].startswith("position 4") for t, a in page.tags if t == "i" and "title" in a))


def diff_pages():
    bad = path("bad")
    shutil.copytree(LLAMA, bad)
    with open(os.path.join(bad, "config.json")) as f:
        text = f.read()
    with open(os.path.join(bad, "config.json"), "w") as f:
        f.write(re.sub(r'"rms_norm_eps": [^,\n]*', '"rms_norm_eps": 0.01', text))
    r = lemma("diff", LLAMA, bad, "--ids", IDS, "--html", path("diff.html"))
    page = sound("diff.html")
    check("diff", r.returncode == 1 and "Unexplained" in page.text and "layer.0.attn.norm" in page.text, r.stdout[-300:] + r.stderr)
    for says in ("What rounding does not explain", "the arbiter", "margin", "Case 0: 40 tokens", "A: what rounding explains", "from the arbiter", "its weights' sha256", "samples per lane"):
        check(f"diff: {says}", says in page.text, page.text[:200])
    check("diff: band and drift", sum(t == "path" and a.get("class") == "a" for t, a in page.tags) == 2 and sum(t == "circle" for t, _ in page.tags) > 10)
    cells = [a for t, a in page.tags if t == "i" and "title" in a]
    framed = sum(a["class"].endswith(" x") for a in cells)
    check("diff: a cell for each position, some framed", len(cells) == 40 and framed > 0, f"{len(cells)} {framed}")
    check("diff: the best few at each disputed token", len(re.findall(r"<tr><th>arbiter</th>", read("diff.html"))) == framed, str(framed))
    r = lemma("diff", LLAMA, ORACLE, "--html", path("good.html"))
    check("diff: explained", r.returncode == 0 and "Explained" in sound("good.html").text, r.stderr)


def hostile():
    """A folder's and a trace's name that would be markup. (Tokens' bytes: tests/unit/test_quality.c.)"""
    place = path("a<b>&\"'x")
    shutil.copytree(LLAMA, place)
    tensors, meta = st.read(ORACLE)
    meta["weights_sha256"] = "0" * 64
    st.write(os.path.join(place, "<img src=x onerror=1>.safetensors"), tensors, meta)
    lemma("verify", place, os.path.join(place, "<img src=x onerror=1>.safetensors"), "--html", path("hostile.html"))
    page = sound("hostile.html")
    check("hostile: shown as text", "<img src=x onerror=1>.safetensors" in page.text and "a<b>&\"'x" in page.text)


def files():
    for name, text in (("mine", "precious"), ("page", "<!doctype html><p>old")):
        with open(path(name), "w") as f:
            f.write(text)
    refused("verify", LLAMA, "--html", path("mine"), says=["mine", "no page"])
    check("what is no page is kept", read("mine") == "precious")
    refused("diff", LLAMA, ORACLE, "--html", os.path.join(LLAMA, "config.json"), says=["config.json", "no page"])
    refused("diff", LLAMA, ORACLE, "--html", folder.name, says=["no page"])
    refused("diff", LLAMA, LLAMA_GGUF, "--ids", "1,2", "--quant", "--html", path("page"), says=["--html does not go with --quant"])
    refused("verify", "--all", LLAMA, "--html", path("page"), says=["--html goes with neither"])
    r = lemma("diff", LLAMA, ORACLE, "--html", path("page"))
    check("a page is replaced", r.returncode == 0 and "lemma diff" in read("page"), r.stderr)
    r = lemma("diff", LLAMA, ORACLE, "--html", path("no/where"))
    check("a folder that isn't there", r.returncode == 2 and "no/where" in r.stderr, r.stderr)


# ---- a browser -------------------------------------------------------------------------------------------------------------------------
def pixels(file):
    """(width, height, rows of RGB bytes) of an 8-bit PNG without interlace."""
    with open(file, "rb") as f:
        data = f.read()
    at, idat = 8, b""
    while at < len(data):
        n, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack_from(">IIBB", data, at + 8)
        if kind == b"IDAT":
            idat += data[at + 8 : at + 8 + n]
        at += 12 + n
    channels = {2: 3, 6: 4}[colour]
    raw, rows, last = zlib.decompress(idat), [], bytearray(width * channels)
    for y in range(height):
        kind, line = raw[y * (width * channels + 1)], bytearray(raw[y * (width * channels + 1) + 1 : (y + 1) * (width * channels + 1)])
        for i in range(len(line)):
            a, b, c = line[i - channels] if i >= channels else 0, last[i], last[i - channels] if i >= channels else 0
            if kind == 1:
                line[i] = (line[i] + a) & 255
            elif kind == 2:
                line[i] = (line[i] + b) & 255
            elif kind == 3:
                line[i] = (line[i] + (a + b) // 2) & 255
            elif kind == 4:
                p = a + b - c
                pa, pb, pc = abs(p - a), abs(p - b), abs(p - c)
                line[i] = (line[i] + (a if pa <= pb and pa <= pc else b if pb <= pc else c)) & 255
        rows.append(line)
        last = line
    return width, height, channels, rows


def chromium(name, *args):
    return subprocess.run(
        ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage",
         f"--user-data-dir={path('profile')}", *args, "file://" + path(name)],
        capture_output=True, text=True, timeout=120, env={**os.environ, "HOME": folder.name})


def browser():
    if not shutil.which("chromium"):
        return skip("the pages in a browser", "chromium is not installed (tools/setup page)")
    for name, says in (("verify.html", "c2 greedy continuation"), ("diff.html", "layer.0.attn.norm")):
        r = chromium(name, "--dump-dom")
        check(f"{name}: the browser's DOM has the rows", says in r.stdout and "<svg" in r.stdout and r.stdout.count("<tr") > 10, r.stderr[-300:])
        for width, dark in ((390, False), (1000, True)):
            shot = path(f"{name}.{width}.png")
            r = chromium(name, f"--screenshot={shot}", f"--window-size={width},600", *(["--blink-settings=preferredColorScheme=0"] if dark else []))
            if not check(f"{name}: a picture, {width} wide", os.path.exists(shot), r.stderr[-300:]):
                continue
            w, h, channels, rows = pixels(shot)
            corner = rows[h - 1][:3]
            check(f"{name}: {'dark' if dark else 'light'} ground", (max(corner) < 60) if dark else (min(corner) > 240), str(list(corner)))
            marks = sum(abs(row[i] - corner[0]) > 60 for row in rows[::3] for i in range(0, w * channels, channels))
            check(f"{name}: something is drawn", marks > 500, str(marks))
            check(f"{name}: nothing is cut off at {width}", all(abs(row[(w - 2) * channels] - corner[0]) < 40 for row in rows), "the right edge is not empty")


verify_page()
refuted_page()
diff_pages()
hostile()
files()
browser()
folder.cleanup()
finish()
