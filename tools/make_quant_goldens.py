#!/usr/bin/env python3
"""Writes tests/data/quant/goldens.bin and goldens.txt: for each storage type, blocks and their right values.

usage: make_quant_goldens.py [tests/data/quant]

The float32 values are the gguf package's own dequantize. The exact values (of which only a SHA-256 is kept, every NaN made the same) are
its formulas run with float64 in float32's place. What gguf can't dequantize (Q8_1, Q8_K, integers, F64, FP8) and MXFP4's exact values
come from the formulas below, written from the formats' descriptions. Encoded blocks are gguf's quantize.

goldens.txt, one record a line (offsets are bytes in goldens.bin, little-endian; id - means none):
    decode NAME GGUF_ID BLOCK BYTES N_BLOCKS RAW_OFFSET FLOAT32_OFFSET SHA256_OF_FLOAT64
    encode NAME N_BLOCKS FLOAT32_OFFSET RAW_OFFSET
"""
import hashlib
import importlib.metadata
import os
import sys
import types

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

# where a type's float scales stand: (offset, dtype); IQ1_M scatters its scale, the FP4 types have bytes
SCALES = {"Q4_0": [(0, "<f2")], "Q4_1": [(0, "<f2"), (2, "<f2")], "Q5_0": [(0, "<f2")], "Q5_1": [(0, "<f2"), (2, "<f2")],
          "Q8_0": [(0, "<f2")], "Q8_1": [(0, "<f4"), (4, "<f4")], "Q8_K": [(0, "<f4")], "Q2_K": [(80, "<f2"), (82, "<f2")],
          "Q3_K": [(108, "<f2")], "Q4_K": [(0, "<f2"), (2, "<f2")], "Q5_K": [(0, "<f2"), (2, "<f2")], "Q6_K": [(208, "<f2")],
          "IQ2_XXS": [(0, "<f2")], "IQ2_XS": [(0, "<f2")], "IQ2_S": [(0, "<f2")], "IQ3_XXS": [(0, "<f2")], "IQ3_S": [(0, "<f2")],
          "IQ1_S": [(0, "<f2")], "IQ4_NL": [(0, "<f2")], "IQ4_XS": [(0, "<f2")], "TQ1_0": [(52, "<f2")], "TQ2_0": [(64, "<f2")]}
ELEMENTS = {"F64": ("<f8", 28), "F32": ("<f4", 0), "F16": ("<f2", 1), "BF16": (None, 30), "I8": ("<i1", 24), "I16": ("<i2", 25),
            "I32": ("<i4", 26), "I64": ("<i8", 27), "U8": ("<u1", None), "BOOL": (None, None), "F8_E4M3": (None, None),
            "F8_E5M2": (None, None)}
NOT_HERE = {"Q1_0"}  # not a type of lemma's
rng = np.random.default_rng(20240601)


class Numpy64(types.ModuleType):
    """numpy with float64 in float32's place"""

    def __getattr__(self, name):
        return np.float64 if name == "float32" else getattr(np, name)


def gguf_exact(cls, raw):
    quants.np = Numpy64("numpy64")
    try:
        return cls.dequantize_blocks(raw)
    finally:
        quants.np = np


def own_exact(name, raw):
    """float64 values by our own reading of the format, or None where gguf's formulas serve"""
    if name == "Q8_1":  # float d, float sum, 32 signed bytes
        return raw[:, :4].copy().view("<f4").astype(np.float64) * raw[:, 8:].view(np.int8)
    if name == "Q8_K":  # float d, 256 signed bytes, 16 sums
        return raw[:, :4].copy().view("<f4").astype(np.float64) * raw[:, 4:260].view(np.int8)
    if name == "MXFP4":  # OCP E2M1 values times 2^(e-127)
        value = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6])
        return np.exp2(raw[:, :1].astype(np.float64) - 127) * value[np.concatenate([raw[:, 1:] & 15, raw[:, 1:] >> 4], axis=1)]
    if name == "BOOL":
        return (raw != 0).astype(np.float64)
    if name == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if name == "F8_E5M2":  # the upper byte of a half
        return (raw.astype(np.uint16) << 8).view(np.float16).astype(np.float64)
    if name == "F8_E4M3":
        sign, e, m = np.where(raw & 128, -1.0, 1.0), (raw >> 3 & 15).astype(np.float64), (raw & 7).astype(np.float64)
        v = sign * np.where(e == 0, m * 2.0**-9, (1 + m / 8) * np.exp2(e - 7))
        return np.where(raw & 127 == 127, np.nan, v)
    if name in ELEMENTS:
        return raw.view(ELEMENTS[name][0]).astype(np.float64)
    return None


def set_scale(name, raw, row, value):
    """value: a float for every scale of the block (the second gets another size), or the bits of a half"""
    for k, (off, dt) in enumerate(SCALES.get(name, [])):
        v = np.uint16(value).view(np.float16) if isinstance(value, int) else value * (0.37 if k else 1)
        raw[row, off:off + np.dtype(dt).itemsize] = np.frombuffer(np.array(v, dtype=dt).tobytes(), np.uint8)
    if name == "IQ1_M":
        half = value if isinstance(value, int) else int(np.float16(value).view(np.uint16))
        for k in range(4):
            raw[row, 49 + 2 * k] = (raw[row, 49 + 2 * k] & 15) | (half >> (4 * k) & 15) << 4
    if name in ("MXFP4", "NVFP4") and not isinstance(value, int):
        raw[row, :1 if name == "MXFP4" else 4] = rng.integers(118, 127) if name == "MXFP4" else rng.integers(40, 70, 4)


def blocks_for(name, block, size):
    if name in ("F8_E4M3", "F8_E5M2", "BOOL", "U8", "I8"):
        return np.arange(256, dtype=np.uint8).reshape(-1, 1)
    if block == 1:
        raw = rng.integers(0, 256, (300, size), dtype=np.uint8)
        if name in ("F16", "BF16"):  # the corners: zeros, subnormals, the largest, infinities, NaN
            corners = [0, 0x8000, 1, 0x8001, 0x3ff, 0x400, 0x7bff, 0x7c00, 0xfc00, 0x7e01, 0x7f7f, 0x7f80, 0xff80, 0x7fc1]
            raw[:len(corners)] = np.array(corners, "<u2").view(np.uint8).reshape(-1, 2)
        return raw
    raw = rng.integers(0, 256, (8, size), dtype=np.uint8)
    for row, value in enumerate([0.0123, -0.37, 57.0]):
        set_scale(name, raw, row, value)
    set_scale(name, raw, 5, 0x8003)  # a subnormal
    set_scale(name, raw, 6, 0x7c00)  # infinity
    set_scale(name, raw, 7, 0x7e00)  # NaN
    if name in ("MXFP4", "NVFP4"):
        raw[5:8, :1] = [[0], [127], [255]]
    return raw


def encode_inputs(block):
    n = max(block, 32)
    x = rng.standard_normal((15, n)).astype(np.float32)
    x[1] = 0
    x[2] = 1.75
    x[3] *= np.float32(1e-6)    # the scale is a subnormal half
    x[4] *= np.float32(3e4)
    x[5] = np.round(x[5] * 4) / 4
    x[6] = rng.integers(-127, 128, n) * np.float32(0.5)
    x[7] = np.where(rng.random(n) < 0.9, 0, x[7])
    x[8] = np.linspace(-1, 1, n)
    x[9, :2] = [2, -2]          # two peaks: the first decides the sign
    # a scale of exactly 1 for Q8_0, Q4_0, Q5_0, Q4_1, Q5_1 and halves everywhere: ties
    for row, (peak, low, high) in enumerate([(127, -127, 127), (-8, -8, 8), (-16, -16, 16), (15, 0, 15), (31, 0, 31)], 10):
        x[row] = rng.integers(low, high, n) + np.float32(0.5)
        x[row, :2] = [peak, 0]
    return np.ascontiguousarray(x.reshape(-1, block))


def main(out_dir):
    data, index = bytearray(), []

    def put(a):
        data.extend(b"\0" * (-len(data) % 8))
        at = len(data)
        data.extend(np.ascontiguousarray(a).tobytes())
        return at

    table = [(t.name, int(t), *GGML_QUANT_SIZES[t]) for t in GGMLQuantizationType if t.name not in NOT_HERE]
    table += [(n, None, 1, 1) for n, (_, i) in ELEMENTS.items() if i is None]
    for name, number, block, size in table:
        raw = blocks_for(name, block, size)
        cls = quants._type_traits.get(GGMLQuantizationType[name]) if number is not None else None
        if cls is not None:
            cls.init_grid()
        exact = own_exact(name, raw)
        if exact is None:
            exact = gguf_exact(cls, raw)
        exact = np.ascontiguousarray(exact, dtype=np.float64)
        values = exact.astype(np.float32)
        if name in ("F32", "F16"):
            values = quants.dequantize(raw, GGMLQuantizationType[name])
        elif cls is not None:
            values = cls.dequantize_blocks(raw)
        rounded = exact.astype(np.float32)
        same = (values.view(np.uint32) == rounded.view(np.uint32)) | (np.isnan(values) & np.isnan(rounded))
        assert same.all(), "%s: gguf's float32 is not the exact value rounded once" % name
        bits = np.where(np.isnan(exact), np.uint64(0x7ff8 << 48), exact.view(np.uint64))
        index.append("decode %s %s %d %d %d %d %d %s" % (name, "-" if number is None else number, block, size, len(raw), put(raw),
                                                         put(values), hashlib.sha256(bits.tobytes()).hexdigest()))
    for name in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"):
        t = GGMLQuantizationType[name]
        x = encode_inputs(GGML_QUANT_SIZES[t][0])
        raw = quants.quantize(x.reshape(-1, 32) if name[0] == "Q" else x.reshape(1, -1), t)
        index.append("encode %s %d %d %d" % (name, len(x), put(x), put(raw)))
    with open(os.path.join(out_dir, "goldens.bin"), "wb") as f:
        f.write(data)
    with open(os.path.join(out_dir, "goldens.txt"), "w") as f:
        f.write("# tools/make_quant_goldens.py, gguf %s, numpy %s\n" % (importlib.metadata.version("gguf"), np.__version__))
        f.write("\n".join(index) + "\n")
    print("%d bytes, %d records" % (len(data), len(index)))


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        main(sys.argv[1] if len(sys.argv) > 1 else "tests/data/quant")
