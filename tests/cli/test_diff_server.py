#!/usr/bin/env python3
"""lemma diff MODEL http://…: a mock server that plays llama.cpp's /completion and three kinds of OpenAI-compatible /v1/completions, with the right
log-probabilities, with a fault in them, and hostile in every way. usage: B=build test_diff_server.py"""
import json
import math
import os
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
from gguf_file import Reader  # noqa: E402
from drive import LLAMA_GGUF, check, finish, good, lemma, refused, trace  # noqa: E402

IDS = [5, 17, 200, 3, 42, 99]
GREEDY = 4
folder = tempfile.TemporaryDirectory()


def answers():
    """The best 64 after each prefix of the prompt and its greedy continuation: (ids, {prefix length: [(id, logprob)]})."""
    out = os.path.join(folder.name, "t.safetensors")
    text = ",".join(map(str, IDS))
    good("dump", LLAMA_GGUF, "--ids", text, "--greedy", GREEDY, "-o", out)
    ids = IDS + trace(out)["c0.greedy"]
    good("dump", LLAMA_GGUF, "--ids", ",".join(map(str, ids)), "-o", out)
    t = trace(out)
    n = len(t["c0.top.ids"]) // len(ids)
    return ids, {i + 1: list(zip(t["c0.top.ids"][i * n:i * n + n], t["c0.top.logprobs"][i * n:i * n + n])) for i in range(len(ids))}


ALL, ROWS = answers()
PIECE = {}  # id: its bytes
kind, fault, seen = "llama", None, []


def rows(ids, k):
    if ids != ALL[:len(ids)]:
        return None
    row = [list(e) for e in ROWS[len(ids)][:k]]
    if fault == "shifted" and len(ids) == 4:  # the second best of one position becomes likelier than rounding makes it
        row[1][1] += 0.4
        total = math.log(sum(math.exp(v) for _, v in row) + 1 - sum(math.exp(v) for _, v in ROWS[len(ids)][:k]))
        row = sorted(([i, v - total] for i, v in row), key=lambda e: -e[1])
    return row


def llama(q):
    row = rows(q["prompt"], q["n_probs"])
    top = [{"id": i, "token": "?", "bytes": [63], "logprob": v} for i, v in row]
    return {"content": "?", "completion_probabilities": [dict(top[0], top_logprobs=top)]}


def openai(q):
    row = rows(q["prompt"], q["logprobs"])
    if kind == "openai_ids":
        lp = {"tokens": ["x"], "token_logprobs": [row[0][1]], "top_logprobs": [{f"token_id:{i}": v for i, v in row}]}
    elif kind == "openai_bytes":
        lp = {"content": [{"token": "?", "logprob": row[0][1], "top_logprobs": [{"token": "?", "bytes": list(PIECE[i]), "logprob": v} for i, v in row]}]}
    else:
        lp = {"tokens": ["x"], "token_logprobs": [row[0][1]], "top_logprobs": [{PIECE[i].decode(errors="replace"): v for i, v in row}]}
    return {"choices": [{"index": 0, "text": "?", "logprobs": lp, "finish_reason": "length"}]}


class Mock(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body, **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for k, v in {"Content-Type": "application/json", "Content-Length": len(data), **{k.replace("_", "-"): v for k, v in headers.items()}}.items():
            if v is not None:
                self.send_header(k, str(v))
        self.end_headers()
        self.wfile.write(data)
        self.close_connection = True

    def do_GET(self):
        if self.path.endswith("/v1/models"):
            return self.answer(200, {"data": [{"id": "the-model"}]})
        self.answer(404, {"error": "not here"})

    def do_POST(self):
        q = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        seen.append((self.path, q))
        try:
            if fault in HOSTILE:
                return HOSTILE[fault](self, q)
            if self.path.endswith("/v1/completions") and kind.startswith("openai"):
                if q.get("model") != "the-model" or (kind != "openai_ids" and "return_tokens_as_token_ids" in q) or (kind == "openai_few" and q["logprobs"] > 5):
                    return self.answer(400, {"error": {"message": "no such parameter"}})
                return self.answer(200, openai(q))
            if self.path.endswith("/completion") and kind == "llama":
                return self.answer(200, llama(q))
            self.answer(404, {"error": "no such path"})
        except (BrokenPipeError, ConnectionResetError):
            pass


def changed(f):
    """llama.cpp's answer, changed."""
    def play(self, q):
        a = llama(q)
        f(a["completion_probabilities"][0]["top_logprobs"], a)
        self.answer(200, a)
    return play


def set_first(key, value):
    return changed(lambda top, a: top[0].__setitem__(key, value))


def chunks(self, q, whole=True, size=97):
    data = json.dumps(llama(q)).encode()
    self.send_response(200)
    self.send_header("Transfer-Encoding", "chunked")
    self.end_headers()
    for at in range(0, len(data), size):
        part = data[at:at + size]
        self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
    self.wfile.write(b"0\r\n\r\n" if whole else b"")
    self.close_connection = True


def endless(self, q):
    self.send_response(200)
    self.end_headers()
    for _ in range(1 << 12):
        self.wfile.write(b" " * (1 << 16))
    self.close_connection = True


def raw(data):
    def play(self, q):
        self.wfile.write(data)
        self.close_connection = True
    return play


def cut(self, q):
    data = json.dumps(llama(q)).encode()
    self.answer(200, data[:len(data) // 2], Content_Length=len(data))


HOSTILE = {
    "cut": cut,
    "half a JSON": lambda self, q: self.answer(200, json.dumps(llama(q)).encode()[:-9]),
    "huge length": lambda self, q: self.answer(200, b"{}", Content_Length=10 ** 11),
    "length no number": lambda self, q: self.answer(200, b"{}", Content_Length="many"),
    "endless": endless,
    "slow": lambda self, q: (time.sleep(2.5), self.answer(200, llama(q))),
    "cut chunks": lambda self, q: chunks(self, q, whole=False),
    "gzip": lambda self, q: self.answer(200, b"xx", Transfer_Encoding="gzip"),
    "no HTTP": raw(b"220 smtp ready\r\n\r\n"),
    "nothing": raw(b""),
    "long header": raw(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100000),
    "status 500": lambda self, q: self.answer(500, {"error": {"message": "out of slots"}}),
    "NaN": changed(lambda top, a: top[0].__setitem__("logprob", float("nan"))),
    "null": set_first("logprob", None),
    "text": set_first("logprob", "-0.1"),
    "positive": set_first("logprob", 3.5),
    "id": set_first("id", 320),
    "negative id": set_first("id", -1),
    "id of a float": set_first("id", 1.5),
    "twice": changed(lambda top, a: top.append(dict(top[0]))),
    "more than one": changed(lambda top, a: [e.__setitem__("logprob", -0.5) for e in top]),
    "empty": changed(lambda top, a: top.clear()),
    "numbers": changed(lambda top, a: top.__setitem__(0, 5)),
    "no list": changed(lambda top, a: a["completion_probabilities"][0].__setitem__("top_logprobs", 7)),
    "old llama.cpp": changed(lambda top, a: a.__setitem__("completion_probabilities", [{"content": "x", "probs": [{"tok_str": "x", "prob": 1}]}])),
    "no probabilities": changed(lambda top, a: a.pop("completion_probabilities")),
    "deep": lambda self, q: self.answer(200, b'{"a":' * 5000),
    "list": lambda self, q: self.answer(200, []),
}
SAYS = {
    "cut": "truncated", "half a JSON": "truncated", "huge length": "larger than", "length no number": "content-length", "endless": "larger than", "slow": "more than 1 s",
    "cut chunks": "truncated", "gzip": "transfer encoding", "no HTTP": "no HTTP/1.1 server", "nothing": "closed the connection", "long header": "header is larger",
    "status 500": "out of slots", "NaN": "JSON", "null": "log-probability", "text": "log-probability", "positive": "log-probability", "id": "outside", "negative id": "outside",
    "id of a float": "outside", "twice": "twice", "more than one": "add up to", "empty": "names no token", "numbers": "no token", "no list": "no list",
    "old llama.cpp": "December 2024", "no probabilities": "December 2024", "deep": "deep", "list": "December 2024",
}

server = ThreadingHTTPServer(("127.0.0.1", 0), Mock)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
URL = f"http://127.0.0.1:{server.server_address[1]}"
LIST = ",".join(map(str, IDS))


def diff(url, *args, code=0):
    r = lemma("diff", LLAMA_GGUF, url, "--ids", LIST, "--json", *args)
    check(f"{kind} {fault} {args}: status {code}", r.returncode == code, f"{r.returncode} {r.stdout[-500:]}{r.stderr}")
    return json.loads(r.stdout) if r.stdout else {"cases": [{"rows": []}], "findings": [], "B": ""}


def dialects():
    global kind
    for kind, url, few in (("llama", URL, False), ("llama", URL + "/base/", False), ("openai_ids", URL, False), ("openai_bytes", URL + "/v1", False),
                           ("openai_texts", URL + "/v1/", True), ("openai_few", URL, True)):
        seen.clear()
        out = diff(url, "--greedy", "0" if few else GREEDY)
        rows_, case = out["cases"][0]["rows"], out["cases"][0]
        check(f"{kind}: a row for each position", len(rows_) == (len(IDS) if few else len(IDS) + GREEDY - 1), len(rows_))
        near = [r for r in rows_ if r["dlogprob"] is not None]
        check(f"{kind}: log-probabilities agree", len(near) == len(IDS) and all(r["dlogprob"] < 1e-5 and r["kl"] < 1e-6 for r in near), str(near))
        known = [r for r in rows_ if r["B"]["top"] is not None]
        check(f"{kind}: tokens agree", all(r["A"]["top"] == r["B"]["top"] for r in known) and (few or len(known) == len(rows_)), str(known))
        if not few:
            check(f"{kind}: greedy", case["greedy"] == case["greedy_equal"] == GREEDY, str(case["greedy_equal"]))
        check(f"{kind}: is named", ("llama.cpp" if kind == "llama" else "OpenAI") in out["B"] and "bfloat16" in out["B"], out["B"])
        check(f"{kind}: prompts go as ids", all(q["prompt"] == ALL[:len(q["prompt"])] for _, q in seen))


def judged():
    global kind, fault
    kind, fault = "llama", "shifted"
    out = diff(URL + ":f32", code=1)
    f = out["findings"][0] if out["findings"] else {}
    check("a fault in float32", f.get("side") == "B" and "position 3" in f.get("text", ""), str(out["findings"]))
    text = lemma("diff", LLAMA_GGUF, URL + ":f32", "--ids", LIST)
    check("the text", text.returncode == 1 and "a server (llama.cpp), taken to compute in float32" in text.stdout and "KL(B|A)" in text.stdout, text.stdout)
    r = lemma("diff", URL, LLAMA_GGUF, "--ids", LIST, "--json")
    check("as side A", r.returncode in (0, 1) and json.loads(r.stdout)["cases"][0]["rows"][3]["dlogprob"] > 0.1, r.stdout[-300:] + r.stderr)
    fault = None
    r = lemma("diff", URL, URL, "--model", LLAMA_GGUF, "--ids", LIST)
    check("two servers", r.returncode == 0 and "explained" in r.stdout.split("\n")[-2] or "identical" in r.stdout.split("\n")[-2], r.stdout[-300:] + r.stderr)
    t = os.path.join(folder.name, "side.safetensors")
    good("dump", LLAMA_GGUF, "--ids", LIST, "--greedy", GREEDY, "-o", t)
    r = lemma("diff", t, URL, "--model", LLAMA_GGUF, "--json")
    check("a trace and a server", r.returncode == 0 and json.loads(r.stdout)["cases"][0]["greedy_equal"] == GREEDY, r.stdout[-300:] + r.stderr)
    fault = "chunked"
    HOSTILE["chunked"] = lambda self, q: chunks(self, q)
    diff(URL)
    del HOSTILE["chunked"]


def hostile():
    global kind, fault
    kind = "llama"
    for fault in list(HOSTILE):
        start = time.time()
        refused("diff", LLAMA_GGUF, URL, "--ids", LIST, "--timeout", "1" if fault == "slow" else "20", says=(SAYS[fault],))
        check(f"{fault}: in time", time.time() - start < 12, time.time() - start)
    fault, kind = None, "nothing"
    refused("diff", LLAMA_GGUF, URL, "--ids", LIST, says=("status 404",))
    refused("diff", LLAMA_GGUF, "http://127.0.0.1:1", "--ids", LIST, says=("127.0.0.1", "cannot connect"))
    refused("diff", LLAMA_GGUF, "https://127.0.0.1", "--ids", LIST, says=("https",))
    for url in ("http://", "http://:80", "http://a:b", "http://a:123456", "http://a b", "http://u@h", "http://h/x?y"):
        refused("diff", LLAMA_GGUF, url, "--ids", LIST, says=(url.split(" ")[0],))
    for port in ("0", "65536", "99999", "8o80"):
        refused("diff", LLAMA_GGUF, f"http://127.0.0.1:{port}", "--ids", LIST, says=("from 1 to 65535",))
    refused("diff", URL, URL, "--ids", LIST, says=("--model",))
    refused("diff", LLAMA_GGUF, URL, says=("--ids",))


def pieces():
    """Each token's bytes: a byte-level vocabulary writes them as letters."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(b): b for b in kept}
    letters.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in kept)})
    tokens = Reader(LLAMA_GGUF).keys["tokenizer.ggml.tokens"][1]
    for i, t in enumerate(tokens):
        t = t.decode() if isinstance(t, bytes) else t
        PIECE[i] = bytes(letters[ch] for ch in t) if all(ch in letters for ch in t) else t.encode()


pieces()
dialects()
judged()
hostile()
server.shutdown()
finish()
