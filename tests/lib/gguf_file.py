"""A reader of GGUF files for the tests, written from the format's description. Standard library only."""
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
