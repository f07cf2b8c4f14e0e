#!/usr/bin/env python3
"""Writes src/quant/iq_grids.c: the codebooks of the IQ types, taken from the gguf package (MIT), which keeps them hex-packed in
the very form used here: element 0 in the lowest bits, two bits an element for vectors of 8, four bits for vectors of 4.

usage: make_iq_grids.py > src/quant/iq_grids.c      (made with gguf 0.19.0)
"""
import importlib.metadata

from gguf import quants

TABLES = [("lm_iq2_xxs_grid", quants.IQ2_XXS), ("lm_iq2_xs_grid", quants.IQ2_XS), ("lm_iq2_s_grid", quants.IQ2_S),
          ("lm_iq3_xxs_grid", quants.IQ3_XXS), ("lm_iq3_s_grid", quants.IQ3_S), ("lm_iq1_grid", quants.IQ1_S)]
PER_LINE = 16

print("/* The IQ types' codebooks, from gguf %s by tools/make_iq_grids.py: do not edit. */" % importlib.metadata.version("gguf"))
print('#include "quant/iq_grids.h"')
for name, cls in TABLES:
    raw = bytes.fromhex(cls.grid_hex.decode())
    words = ["0x%04x" % int.from_bytes(raw[i:i + 2], "little") for i in range(0, len(raw), 2)]
    assert len(words) == cls.grid_shape[0]
    print("\nconst uint16_t %s[%d] = {" % (name, len(words)))
    for i in range(0, len(words), PER_LINE):
        print("    " + ", ".join(words[i:i + PER_LINE]) + ",")
    print("};")
