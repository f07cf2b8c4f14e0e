#!/usr/bin/env python3
"""usage: tools/make_random.py TYPE OUT.gguf [SEED]     (TYPE: a storage type of GGUF, or `list`)

A small llama, 256 wide, whose matrices are random blocks of one storage type: every bit pattern that the type's layout allows, under scales
that keep the weights near 0.06. For tests of storage types that no quantizer here writes. Nothing but the standard library; the same
arguments give the same file. Layouts as the GGUF format defines them.
"""
import random
import struct
import sys

HIDDEN, FFN, HEADS, KV_HEADS, VOCAB, LAYERS = 256, 512, 4, 2, 320, 2

# GGUF's number, elements and bytes of a block, and its scales: (offset, kind, typical value). h: half, f: float, b: a byte, 2^(b − 127) or so;
# m: a half in the top nibbles of four 16-bit words. The rest of a block is random bits.
TYPES = {
    "Q4_0": (2, 32, 18, [(0, "h", 0.013)]),
    "Q4_1": (3, 32, 20, [(0, "h", 0.013), (2, "h", -0.1)]),
    "Q5_0": (6, 32, 22, [(0, "h", 0.0065)]),
    "Q5_1": (7, 32, 24, [(0, "h", 0.0065), (2, "h", -0.1)]),
    "Q8_0": (8, 32, 34, [(0, "h", 0.0008)]),
    "Q8_1": (9, 32, 40, [(0, "f", 0.0008), (4, "f", 1.0)]),
    "Q2_K": (10, 256, 84, [(80, "h", 0.006), (82, "h", 0.006)]),
    "Q3_K": (11, 256, 110, [(108, "h", 0.0014)]),
    "Q4_K": (12, 256, 144, [(0, "h", 0.0003), (2, "h", 0.002)]),
    "Q5_K": (13, 256, 176, [(0, "h", 0.00015), (2, "h", 0.002)]),
    "Q6_K": (14, 256, 210, [(208, "h", 0.00006)]),
    "Q8_K": (15, 256, 292, [(0, "f", 0.0008)]),
    "IQ2_XXS": (16, 256, 66, [(0, "h", 0.0012)]),
    "IQ2_XS": (17, 256, 74, [(0, "h", 0.0012)]),
    "IQ3_XXS": (18, 256, 98, [(0, "h", 0.0004)]),
    "IQ1_S": (19, 256, 50, [(0, "h", 0.009)]),
    "IQ4_NL": (20, 32, 18, [(0, "h", 0.0009)]),
    "IQ3_S": (21, 256, 110, [(0, "h", 0.0004)]),
    "IQ2_S": (22, 256, 82, [(0, "h", 0.0012)]),
    "IQ4_XS": (23, 256, 136, [(0, "h", 0.00006)]),
    "IQ1_M": (29, 256, 56, [(48, "m", 0.009)]),
    "TQ1_0": (34, 256, 54, [(52, "h", 0.06)]),
    "TQ2_0": (35, 256, 66, [(64, "h", 0.06)]),
    "MXFP4": (39, 32, 17, [(0, "b", 121)]),
    "NVFP4": (40, 64, 36, [(0, "b", 12), (1, "b", 12), (2, "b", 12), (3, "b", 12)]),
    "F16": (1, 1, 2, [(0, "h", 0.0)]),
    "BF16": (30, 1, 2, [(0, "B", 0.0)]),
    "F32": (0, 1, 4, [(0, "f", 0.0)]),
    "F64": (28, 1, 8, [(0, "d", 0.0)]),
}


def block(rng, size, scales):
    b = bytearray(rng.randbytes(size))
    for at, kind, value in scales:
        v = rng.gauss(0, 0.06) if value == 0.0 else value if isinstance(value, int) else value * rng.uniform(0.5, 1.5)
        if kind in "hfd":
            struct.pack_into("<" + {"h": "e"}.get(kind, kind), b, at, v)
        elif kind == "B":
            b[at:at + 2] = struct.pack("<f", v)[2:]
        elif kind == "b":
            b[at] = value + rng.randrange(-2, 3)
        else:
            bits = struct.unpack("<H", struct.pack("<e", v))[0]
            for k in range(4):
                b[at + 2 * k + 1] = b[at + 2 * k + 1] & 15 | (bits >> (4 * k) & 15) << 4
    return bytes(b)


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def model(kind, seed=1):
    """The file's bytes."""
    rng = random.Random(f"{kind} {seed}")
    number, elements, size, scales = TYPES[kind]
    keys = [("general.architecture", "llama"), ("llama.block_count", LAYERS), ("llama.context_length", 8192), ("llama.embedding_length", HIDDEN),
            ("llama.feed_forward_length", FFN), ("llama.attention.head_count", HEADS), ("llama.attention.head_count_kv", KV_HEADS),
            ("llama.rope.dimension_count", HIDDEN // HEADS), ("llama.attention.layer_norm_rms_epsilon", 1e-5), ("llama.rope.freq_base", 10000.0),
            ("llama.vocab_size", VOCAB)]
    tensors = [("token_embd.weight", HIDDEN, VOCAB), ("output_norm.weight", HIDDEN, 0)]
    for i in range(LAYERS):
        kv = HIDDEN // HEADS * KV_HEADS
        rows = [("attn_norm", HIDDEN, 0), ("attn_q", HIDDEN, HIDDEN), ("attn_k", HIDDEN, kv), ("attn_v", HIDDEN, kv), ("attn_output", HIDDEN, HIDDEN),
                ("ffn_norm", HIDDEN, 0), ("ffn_gate", HIDDEN, FFN), ("ffn_up", HIDDEN, FFN), ("ffn_down", FFN, HIDDEN)]
        tensors += [(f"blk.{i}.{name}.weight", k, n) for name, k, n in rows]
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(keys))]
    for key, v in keys:
        head += [text(key)] + ([struct.pack("<I", 8), text(v)] if isinstance(v, str) else [struct.pack("<If", 6, v) if isinstance(v, float) else struct.pack("<II", 4, v)])
    data = []
    at = 0
    for name, k, n in tensors:
        if n:
            raw = b"".join(block(rng, size, scales) for _ in range(k * n // elements))
        else:
            raw = struct.pack(f"<{k}f", *(rng.uniform(0.5, 1.5) for _ in range(k)))
        head += [text(name), struct.pack("<I", 2 if n else 1), struct.pack("<QQ" if n else "<Q", *((k, n) if n else (k,))), struct.pack("<IQ", number if n else 0, at)]
        raw += bytes(-len(raw) % 32)
        data.append(raw)
        at += len(raw)
    start = b"".join(head)
    return start + bytes(-len(start) % 32) + b"".join(data)


def main(argv):
    if argv == ["list"]:
        print(" ".join(TYPES))
        return 0
    if len(argv) not in (2, 3) or argv[0] not in TYPES:
        print(__doc__.split("\n")[0] + f"\ntypes: {' '.join(TYPES)}", file=sys.stderr)
        return 2
    with open(argv[1], "wb") as f:
        f.write(model(argv[0], *argv[2:]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
