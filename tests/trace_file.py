"""Safetensors files for the tests, by the standard library alone: read, change, write. A tensor is [dtype, shape, bytearray]."""

import json
import struct

SIZE = {"F32": 4, "I32": 4}
CODE = {"F32": "f", "I32": "i"}


def read(path):
    """(tensors, metadata) of a file."""
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(n))
        data = f.read()
    meta = header.pop("__metadata__", {})
    return {k: [v["dtype"], v["shape"], bytearray(data[slice(*v["data_offsets"])])] for k, v in header.items()}, meta


def write(path, tensors, meta):
    header, at = {}, 0
    if meta:
        header["__metadata__"] = meta
    for k, (dtype, shape, data) in tensors.items():
        header[k] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            f.write(data)
    return path


def values(t):
    return list(struct.unpack(f"<{len(t[2]) // SIZE[t[0]]}{CODE[t[0]]}", t[2]))


def tensor(dtype, shape, vals):
    return [dtype, shape, bytearray(struct.pack(f"<{len(vals)}{CODE[dtype]}", *vals))]


def get(t, i):
    return struct.unpack_from("<" + CODE[t[0]], t[2], SIZE[t[0]] * i)[0]


def put(t, i, v):
    struct.pack_into("<" + CODE[t[0]], t[2], SIZE[t[0]] * i, v)
