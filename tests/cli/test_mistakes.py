#!/usr/bin/env python3
"""What a newcomer is likely to do wrong: each time one line that says what, where, and what to do. usage: B=build test_mistakes.py"""
import os
import shutil
import tempfile

from drive import FIXTURES, LLAMA, LLAMA_GGUF, ROOT, check, finish, lemma, refused

with tempfile.TemporaryDirectory() as folder:
    def path(name, data=None):
        p = os.path.join(folder, name)
        if data is not None:
            os.makedirs(os.path.dirname(p), exist_ok=True)
            with open(p, "wb") as f:
                f.write(data)
        return p

    gguf = open(LLAMA_GGUF, "rb").read()
    weights = open(os.path.join(LLAMA, "model.safetensors"), "rb").read()
    config = open(os.path.join(LLAMA, "config.json"), "rb").read()

    # a path that isn't there, is empty, or is an address; the verb left out
    refused("run", path("nowhere.gguf"), "-p", "a", says=["nowhere.gguf", "No such file", "check the path"])
    refused("inspect", "", says=["an empty path was given: name a file or a folder"])
    refused("run", "https://example.org/m.gguf", "-p", "a", says=["https://example.org/m.gguf", "download it, and give its path"])
    refused(LLAMA_GGUF, "-p", "a", says=[LLAMA_GGUF, f"a verb comes first: lemma run {LLAMA_GGUF} -p TEXT"])
    refused("rum", LLAMA_GGUF, says=["unknown verb 'rum'", "lemma -h"])
    # a folder that is no model's, or only a part of one
    os.mkdir(path("empty"))
    refused("run", path("empty"), "-p", "a", says=["config.json", "a GGUF file"])
    path("cache/a.gguf", gguf)
    refused("run", path("cache"), "-p", "a", says=["the folder holds GGUF files: give one of them (a.gguf)"])
    path("half/config.json", config)
    refused("run", path("half"), "--ids", "1", says=["no weights", "model.safetensors", "fetch it"])
    path("bare/model.safetensors", weights)
    refused("run", path("bare/model.safetensors"), "--ids", "1", says=["safetensors file", "give the folder"])
    # downloads that ended early, or fetched something else
    refused("run", path("cut.gguf", gguf[:-1000]), "-p", "a", says=["cut.gguf", "truncated or damaged", "download it again"])
    refused("run", path("head.gguf", gguf[:200]), "-p", "a", says=["head.gguf", "truncated or damaged"])
    path("cut/config.json", config)
    path("cut/model.safetensors", weights[:-1000])
    refused("run", path("cut"), "--ids", "1", says=["cut/model.safetensors", "truncated or damaged", "download it again"])
    refused("run", path("lfs.gguf", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), "-p", "a", says=["git lfs pull"])
    refused("run", path("page.gguf", b"<!DOCTYPE html><html></html>"), "-p", "a", says=["an HTML page"])
    # a part of a split file, alone; under another name
    part = os.path.join(ROOT, "tests/data/format/split-00002-of-00003.gguf")
    os.mkdir(path("split"))
    shutil.copy(part, path("split"))
    shutil.copy(part, path("split/part2.gguf"))
    refused("inspect", path("split/split-00002-of-00003.gguf"), says=["2 of 3 weight files missing", "split-00001-of-00003.gguf", "fetch"])
    refused("inspect", path("split/part2.gguf"), says=["one of 3 shards", "rename it back"])
    # what this build or machine doesn't have
    refused("run", LLAMA_GGUF, "-p", "a", "--lane", "int8", says=["no lane 'int8'", "use f32, i16, mixed, i8 or bf16"])
    refused("bench", LLAMA_GGUF, "--lanes", "f32,int8", says=["no lane 'int8'", "use f32, i16, mixed, i8 or bf16"])
    refused("run", LLAMA_GGUF, "-p", "a", "--backend", "cuda", says=["'cuda' is not a backend of lemma", "f64, cpu"])
    refused("run", LLAMA_GGUF, "-p", "a", "--cpu-level", "sse", says=["sse", "c, avx2"] if os.uname().machine == "x86_64" else ["sse"])
    refused("run", LLAMA_GGUF, "-p", "a", "-ngl", "99", says=["unknown option", "lemma run -h"])
    refused("chat", LLAMA_GGUF, says=["not in this build yet"])
    # prompts
    refused("run", LLAMA_GGUF, says=["give one prompt", "-p TEXT"])
    refused("run", LLAMA_GGUF, "a", says=["one argument too many", "-p TEXT"])
    refused("run", LLAMA_GGUF, "-f", path("nowhere.txt"), says=["nowhere.txt", "No such file"])
    refused("run", os.path.join(FIXTURES, "gpt2"), "--ids", ",".join(["5"] * 129), says=["the prompt has 129 tokens, the context 128", "shorten it"])
    refused("run", LLAMA, "-p", "a", says=[LLAMA, "carries no tokenizer", "add its tokenizer.json", "--ids 1,2,3"])
    r = lemma("run", LLAMA_GGUF, "-p", "", "-n", "1")
    check("an empty prompt", r.returncode == 0 or "the prompt is empty" in r.stderr and "give it something" in r.stderr, r)
    # a server that isn't there
    refused("diff", LLAMA_GGUF, "http://127.0.0.1:1", "--ids", "1,2", says=["127.0.0.1", "cannot connect", "is the server running"])
finish()
