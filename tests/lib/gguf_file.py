"""A reader and a writer of GGUF files for the tests, written from the format's description. Standard library only."""
import struct

SCALAR = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class Reader:
    """keys: name → (type, value), type (9, t) for an array of t; tensors: name → (type, dims as stored, bytes to the next tensor's start)."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.data = f.read()
        self.at = 4
        magic, version = self.data[:4], self.take("I")
        assert magic == b"GGUF" and version == 3, (magic, version)
        n_tensors, n_keys = self.take("Q"), self.take("Q")
        self.keys, self.order = {}, []
        for _ in range(n_keys):
            name = self.text().decode()
            t = self.take("I")
            assert name not in self.keys, name
            self.order.append(name)
            if t == 9:
                e, n = self.take("I"), self.take("Q")
                self.keys[name] = ((9, e), [self.value(e) for _ in range(n)])
            else:
                self.keys[name] = (t, self.value(t))
        places = []
        for _ in range(n_tensors):
            name = self.text().decode()
            dims = [self.take("Q") for _ in range(self.take("I"))]
            places.append((name, dims, self.take("I"), self.take("Q")))
        start = (self.at + 31) // 32 * 32
        self.tensors = {}
        for i, (name, dims, t, offset) in enumerate(places):
            assert offset % 32 == 0 and name not in self.tensors, name
            end = places[i + 1][3] if i + 1 < len(places) else len(self.data) - start
            self.tensors[name] = (t, dims, self.data[start + offset:start + end])

    def take(self, code):
        v = struct.unpack_from("<" + code, self.data, self.at)[0]
        self.at += struct.calcsize("<" + code)
        return v

    def text(self):
        n = self.take("Q")
        self.at += n
        return self.data[self.at - n:self.at]

    def value(self, t):
        return self.text() if t == 8 else self.take(SCALAR[t])


def write(path, keys, tensors):
    """A file of such keys and tensors; a key's value need not be one that any model has."""
    def text(b):
        b = b if isinstance(b, bytes) else b.encode()
        return struct.pack("<Q", len(b)) + b

    def value(t, v):
        return text(v) if t == 8 else struct.pack("<" + SCALAR[t], v)
    head, data = [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys))], b""
    for name, (t, v) in keys.items():
        head.append(text(name))
        if isinstance(t, tuple):
            head += [struct.pack("<IIQ", 9, t[1], len(v))] + [value(t[1], x) for x in v]
        else:
            head += [struct.pack("<I", t), value(t, v)]
    for name, (t, dims, raw) in tensors.items():
        head.append(text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, t, len(data)))
        data += raw + b"\0" * (-len(raw) % 32)
    head = b"".join(head)
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % 32) + data)
