#!/usr/bin/env python3
"""Writes tests/data/format: small good files by the formats' own Python packages, read back by tests/unit/test_source.c.

Made with gguf 0.19.0, safetensors 0.8.0, numpy 2.4.6. Usage: tools/make_format_data.py (from the repository root)
"""
import os

import gguf
import numpy as np
from safetensors.numpy import save_file

OUT = "tests/data/format"


def all_types():
    """One key of each value type, arrays of each, tensors of several types."""
    w = gguf.GGUFWriter(f"{OUT}/all_types.gguf", "llama")
    w.add_type("model")
    V = gguf.GGUFValueType
    for name, add, v in [("u8", w.add_uint8, 255), ("i8", w.add_int8, -128), ("u16", w.add_uint16, 65535), ("i16", w.add_int16, -32768),
                         ("u32", w.add_uint32, 2**32 - 1), ("i32", w.add_int32, -(2**31)), ("f32", w.add_float32, 0.1), ("bool", w.add_bool, True),
                         ("str", w.add_string, "é😀\n"), ("u64", w.add_uint64, 2**64 - 1), ("i64", w.add_int64, -(2**63)), ("f64", w.add_float64, 0.1)]:
        add("t." + name, v)
    for name, sub, v in [("u8", V.UINT8, [0, 255]), ("i8", V.INT8, [-1, 127]), ("i32", V.INT32, [-5, 6, 7]), ("f32", V.FLOAT32, [0.5, -2.0]),
                         ("bool", V.BOOL, [True, False, True]), ("str", V.STRING, ["a", "", "ü"]), ("u64", V.UINT64, [1, 2**63 - 1])]:
        w.add_key_value("a." + name, v, V.ARRAY, sub)
    w.add_tensor("blk.0.w", np.arange(12, dtype=np.float32).reshape(3, 4))
    w.add_tensor("h", np.arange(5, dtype=np.float16))
    w.add_tensor("q", gguf.quants.quantize(np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32), gguf.GGMLQuantizationType.Q8_0),
                 raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def split():
    """Three shards, as gguf-split names and numbers them."""
    for i in range(3):
        w = gguf.GGUFWriter(f"{OUT}/split-{i + 1:05}-of-00003.gguf", "llama" if i == 0 else "")
        if i:
            w.kv_data[0].clear()
        w.add_uint16("split.no", i)
        w.add_uint16("split.count", 3)
        w.add_int32("split.tensors.count", 4)
        for k in ([0, 1], [2], [3])[i]:
            w.add_tensor(f"t{k}", np.full(3, k, dtype=np.float32))
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()


def safetensors():
    save_file({"w": np.arange(6, dtype=np.float32).reshape(2, 3), "i": np.array([-1, 2**40], dtype=np.int64), "b": np.array([True, False]),
               "s": np.array(7, dtype=np.int32)}, f"{OUT}/all_types.safetensors", metadata={"format": "np", "é": "\"q\""})


os.makedirs(OUT, exist_ok=True)
all_types()
split()
safetensors()
