#!/usr/bin/env python3
"""Writes tests/data/packed: small packed checkpoints (only the weights; no model) and the right values of their folded tensors.

usage: make_packed_goldens.py [tests/data/packed]

gpt_oss.sha256: of the folded tensors of tests/fixtures/gpt_oss, as transformers dequantizes them (float64 values, -0 made 0).
NAME/config.json, NAME/model.safetensors: the checkpoint. NAME/want.safetensors: for each packed weight its exact values in float64, by the
formulas below from codes, zero points and scales *before* they are packed. The packing itself is done here with shifts, or by
compressed_tensors. Then each authority's own dequantization of the packed tensors is compared:
    mxfp4               transformers' convert_moe_packed_tensors, in float32
    fp8                 transformers' Fp8Dequantize, where it takes the shape (it needs evenly divided blocks)
    gptq                AutoGPTQ's QuantLinear on an identity matrix, with its scales made float32
    awq                 AutoAWQ's dequantize_gemm (it rounds to float16: compared after the same rounding)
    compressed-tensors  the compressors' decompress (rounds to the scale's dtype: compared after the same rounding)
Packages made with are written to tests/data/packed/VERSIONS. AutoGPTQ and AutoAWQ need only to be importable (no GPU).
"""
import hashlib
import importlib.metadata
import json
import os
import sys

import numpy as np
import torch
from safetensors.torch import save_file

rng = np.random.default_rng(20240915)
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def out_dir():
    return sys.argv[1] if len(sys.argv) > 1 else "tests/data/packed"


def write(name, config, tensors, want):
    d = os.path.join(out_dir(), name)
    os.makedirs(d, exist_ok=True)
    with open(os.path.join(d, "config.json"), "w") as f:
        json.dump({"model_type": "none", "quantization_config": config}, f, indent=1)
    tensors = dict(tensors, **{"norm.weight": torch.ones(4)})
    save_file({k: v.contiguous() for k, v in tensors.items()}, os.path.join(d, "model.safetensors"))
    save_file({k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in want.items()}, os.path.join(d, "want.safetensors"))


def same(what, want, got, dtype=torch.float32):
    """`got` is the authority's; `want` float64, rounded once to its dtype"""
    want = torch.from_numpy(np.ascontiguousarray(want)).to(dtype).to(torch.float64)
    assert torch.equal(want, got.to(torch.float64)), what


def scales(shape, dtype):
    """realistic sizes, some negative, one zero and one subnormal half"""
    s = rng.uniform(0.001, 0.02, shape) * rng.choice([1, 1, 1, -1], shape)
    s.flat[0], s.flat[-1] = 0.0, 3 * 2.0**-24
    return torch.from_numpy(s).to(dtype)


# ---- mxfp4 ---------------------------------------------------------------------------------------------------------------------
def mxfp4():
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    e, rows, cols = 2, 3, 96
    q = rng.integers(0, 16, (e, rows, cols))
    x = rng.integers(90, 140, (e, rows, cols // 32))
    x[0, 0] = [0, 1, 252]  # the extremes that float32 holds
    blocks = (q[..., 0::2] | q[..., 1::2] << 4).astype(np.uint8).reshape(e, rows, cols // 32, 16)
    want = E2M1[q] * np.repeat(np.exp2(x.astype(np.float64) - 127), 32, axis=-1)
    tb, ts = torch.from_numpy(blocks), torch.from_numpy(x.astype(np.uint8))
    same("mxfp4", want, convert_moe_packed_tensors(tb, ts, dtype=torch.float32).transpose(1, 2))
    write("mxfp4", {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
          {"a.experts.up_blocks": tb, "a.experts.up_scales": ts, "a.experts.up_bias": torch.zeros(e, rows)}, {"a.experts.up": want})


def fixture():
    from safetensors.torch import load_file
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    t = load_file("tests/fixtures/gpt_oss/model.safetensors")
    with open(os.path.join(out_dir(), "gpt_oss.sha256"), "w") as f:
        for name in sorted(t):
            if name.endswith("_blocks"):
                v = convert_moe_packed_tensors(t[name], t[name[:-6] + "scales"], dtype=torch.float32).transpose(1, 2).double() + 0.0
                f.write(f"{name[:-7]} {hashlib.sha256(v.contiguous().numpy().tobytes()).hexdigest()}\n")


# ---- fp8 -----------------------------------------------------------------------------------------------------------------------
def f8(shape, dtype=torch.float8_e4m3fn):
    top = 0x7e if dtype == torch.float8_e4m3fn else 0x7b
    b = rng.integers(0, top + 1, shape) | rng.choice([0, 128], shape)
    return torch.from_numpy(b.astype(np.uint8)).view(dtype)


def fp8():
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize
    authority = Fp8Dequantize(None)
    br, bc = 16, 32
    t, want = {}, {}

    def add(name, w, s, s_name, grid, check):
        """grid: float64 scales of every element"""
        t[name], t[s_name] = w, s
        want[name] = w.double().numpy() * grid
        if check:
            same(name, want[name], authority._dequantize_one(w, s.reshape(1, 1) if s.dim() < 2 else s, torch.float32))

    def blocks(s, rows, cols):
        return np.repeat(np.repeat(s.double().numpy(), br, axis=-2), bc, axis=-1)[..., :rows, :cols]

    s = torch.from_numpy(rng.uniform(1e-4, 1e-2, (3, 3))).float()
    add("even.weight", w := f8((48, 96)), s, "even.weight_scale_inv", blocks(s, 48, 96), True)
    s = torch.from_numpy(rng.uniform(1e-4, 1e-2, (3, 3))).float()
    add("ragged.weight", f8((37, 80)), s, "ragged.weight_scale_inv", blocks(s, 37, 80), False)
    s = torch.from_numpy(rng.uniform(1e-4, 1e-2, (3, 2))).bfloat16()
    add("half.weight", f8((40, 64)), s, "half.weight_scale_inv", blocks(s, 40, 64), False)
    s = torch.from_numpy(rng.uniform(1e-4, 1e-2, (2, 2, 2))).float()
    add("experts.up", f8((2, 32, 64)), s, "experts.up_scale_inv", blocks(s, 32, 64), True)
    write("fp8_block", {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [br, bc], "fmt": "e4m3"}, t, want)

    t, want = {}, {}
    s = torch.tensor(0.0123)
    add("one.weight", f8((8, 64)), s, "one.weight_scale_inv", float(s), True)
    t["one.activation_scale"] = torch.tensor(0.5)
    s = torch.tensor([0.0321]).bfloat16()
    add("list.weight", f8((8, 40), torch.float8_e5m2), s, "list.weight_scale", float(s), True)
    t["list.input_scale"] = torch.tensor([0.5])
    s = torch.from_numpy(rng.uniform(1e-4, 1e-2, (8, 1))).float()
    add("rows.weight", f8((8, 64), torch.float8_e5m2), s, "rows.weight_scale", s.double().numpy(), True)
    write("fp8_static", {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}, t, want)


# ---- gptq, awq -------------------------------------------------------------------------------------------------------------------
def pack(a, axis, bits, order=None):
    """words along axis, lowest bits first"""
    per = 32 // bits
    a = np.moveaxis(a, axis, -1).reshape(*np.moveaxis(a, axis, -1).shape[:-1], -1, per).astype(np.uint64)
    if order:
        a = a[..., order]
    words = (a << (np.arange(per, dtype=np.uint64) * np.uint64(bits))).sum(-1).astype(np.uint32).view(np.int32)
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(words, -1, axis)))


def gptq_weight(rows, cols, group, bits, g_idx=None, zero=None, less=1, dtype=torch.float16):
    """zero: as stored"""
    groups = -(-cols // group)
    g = np.arange(cols) // group if g_idx is None else g_idx
    q = rng.integers(0, 1 << bits, (cols, rows))
    z = rng.integers(0, 1 << bits, (groups, rows)) if zero is None else np.full((groups, rows), zero)
    s = scales((groups, rows), dtype)
    want = ((q - (z[g] + less)) * s.double().numpy()[g]).T
    return {"qweight": pack(q, 0, bits), "qzeros": pack(z, 1, bits), "scales": s,
            "g_idx": torch.from_numpy(g.astype(np.int32))}, want


def check_gptq(t, want, bits, group):
    from auto_gptq_linear import QuantLinear
    cols, rows = t["qweight"].shape[0] * 32 // bits, t["qweight"].shape[1]
    m = QuantLinear(bits, group, cols, rows, False)
    m.qweight, m.qzeros, m.scales, m.g_idx = t["qweight"], t["qzeros"], t["scales"].float(), t["g_idx"]
    same("gptq", want, m(torch.eye(cols)).T)


def gptq():
    def case(name, config, weights, check=True):
        t, want = {}, {}
        for base, (parts, w) in weights.items():
            t.update({f"{base}.{k}": v for k, v in parts.items()})
            want[base + ".weight"] = w
            if check:
                check_gptq(parts, w, config["bits"], config["group_size"])
        write(name, dict({"quant_method": "gptq", "sym": False, "damp_percent": 0.01, "true_sequential": True}, **config), t, want)

    act = rng.permutation(96) // 32
    runs = np.repeat([2, 0, 1], 32)
    c = {"bits": 4, "group_size": 32, "desc_act": True, "checkpoint_format": "gptq"}
    case("gptq4", c, {"plain": gptq_weight(16, 96, 32, 4), "act": gptq_weight(8, 96, 32, 4, act), "runs": gptq_weight(8, 96, 32, 4, runs),
                      "wide": gptq_weight(8, 96, 32, 4, act, dtype=torch.float32)})
    case("gptq4_sym", {"bits": 4, "group_size": 64, "sym": True, "desc_act": False},
         {"a": gptq_weight(8, 128, 64, 4, zero=7), "b": gptq_weight(8, 64, 64, 4, zero=7, dtype=torch.float16)})
    parts, want = gptq_weight(8, 64, 64, 8, less=0)
    del parts["g_idx"]
    case("gptq8_v2", {"bits": 8, "group_size": -1, "desc_act": False, "checkpoint_format": "gptq_v2"}, {"a": (parts, want)}, False)
    case("gptq8", {"bits": 8, "group_size": 64, "desc_act": False}, {"a": gptq_weight(8, 64, 64, 8), "b": gptq_weight(8, 40, 64, 8)})


def awq():
    from awq_packing_utils import dequantize_gemm
    rows, cols, group = 16, 96, 32
    q, z = rng.integers(0, 16, (cols, rows)), rng.integers(0, 16, (cols // group, rows))
    s = scales((cols // group, rows), torch.float16)
    g = np.arange(cols) // group
    want = ((q - z[g]) * s.double().numpy()[g]).T
    t = {"qweight": pack(q, 1, 4, AWQ_ORDER), "qzeros": pack(z, 1, 4, AWQ_ORDER), "scales": s}
    same("awq", want, dequantize_gemm(t["qweight"], t["qzeros"], s, 4, group).T, torch.float16)
    config = {"bits": 4, "group_size": group, "zero_point": True, "version": "gemm", "modules_to_not_convert": None}
    write("awq", dict({"quant_method": "awq"}, **config),
          {f"a.{k}": v for k, v in t.items()}, {"a.weight": want})


# ---- compressed-tensors ----------------------------------------------------------------------------------------------------------
def compressed():
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    def case(folder, fmt, weights, inputs=None):
        t, want, groups = {}, {}, {}
        for i, (base, shape, args, s_shape, s_type) in enumerate(weights):
            a = QuantizationArgs(**args)
            scheme = QuantizationScheme(targets=["Linear"], weights=a)
            s = torch.from_numpy(rng.uniform(0.001, 0.02, s_shape)).to(s_type)
            state = {"weight": torch.from_numpy(rng.normal(0, 0.05, shape)).to(s_type), "weight_scale": s}
            z = np.zeros(s_shape)
            if not a.symmetric:
                z = rng.integers(-(1 << (a.num_bits - 1)), 1 << (a.num_bits - 1), s_shape)
                state["weight_zero_point"] = torch.from_numpy(z.astype(np.int8))
            c = BaseCompressor.get_value_from_registry(fmt)
            packed = c.compress(state, scheme)

            def spread(x):  # to every element
                x = np.asarray(x, np.float64)
                if x.size == 1:
                    return x.reshape(1, 1)
                if args["strategy"] == "block":
                    return np.repeat(np.repeat(x, args["block_structure"][0], 0), args["block_structure"][1], 1)[:shape[0], :shape[1]]
                return np.repeat(x, -(-shape[1] // x.shape[1]), 1)[:, :shape[1]]
            if "weight_packed" in packed:  # codes by our own reading
                words = packed["weight_packed"].numpy().view(np.uint32)
                per = 32 // a.num_bits
                q = (words[:, :, None] >> (np.arange(per, dtype=np.uint32) * a.num_bits)) & ((1 << a.num_bits) - 1)
                q = q.reshape(shape[0], -1)[:, :shape[1]].astype(np.float64) - (1 << (a.num_bits - 1))
            else:
                q = packed["weight"].double().numpy()
            want[base + ".weight"] = (q - spread(z)) * spread(s.double().numpy())
            same(base, want[base + ".weight"], c.decompress(dict(packed), scheme)["weight"], s_type)
            t.update({f"{base}.{k}": v for k, v in packed.items()})
            groups[f"group_{i}"] = json.loads(scheme.model_dump_json())
            if inputs:
                groups[f"group_{i}"]["input_activations"] = inputs
        config = {"quant_method": "compressed-tensors", "format": fmt, "quantization_status": "compressed", "ignore": ["lm_head"],
                  "config_groups": groups, "kv_cache_scheme": None, "global_compression_ratio": None, "sparsity_config": {},
                  "transform_config": {}, "version": importlib.metadata.version("compressed-tensors")}
        write(folder, config, t, want)

    b, h, f = torch.bfloat16, torch.float16, torch.float32
    int4 = {"num_bits": 4, "type": "int", "symmetric": True}
    case("ct_int4", "pack-quantized", [
        ("sym", (8, 96), dict(int4, strategy="group", group_size=32), (8, 3), b),
        ("asym", (12, 128), dict(int4, strategy="group", group_size=64, symmetric=False), (12, 2), h),
        ("channel", (8, 36), dict(int4, strategy="channel"), (8, 1), f),
        ("eight", (12, 64), dict(int4, num_bits=8, strategy="group", group_size=32, symmetric=False), (12, 2), b),
    ])
    case("ct_int4_sym", "pack-quantized", [("a", (8, 96), dict(int4, strategy="group", group_size=32), (8, 3), b)])
    int8 = {"num_bits": 8, "type": "int", "symmetric": True}
    dynamic = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    case("ct_int8", "int-quantized", [
        ("channel", (8, 64), dict(int8, strategy="channel"), (8, 1), f),
        ("asym", (8, 64), dict(int8, strategy="channel", symmetric=False), (8, 1), b),
        ("tensor", (8, 64), dict(int8, strategy="tensor"), (1,), h),
        ("odd", (4, 40), dict(int8, strategy="channel"), (4, 1), b),
    ], dynamic)
    f8a = {"num_bits": 8, "type": "float", "symmetric": True}
    case("ct_fp8", "float-quantized", [
        ("channel", (8, 64), dict(f8a, strategy="channel"), (8, 1), b),
        ("tensor", (8, 64), dict(f8a, strategy="tensor"), (1,), f),
        ("block", (32, 64), dict(f8a, strategy="block", block_structure=[16, 32]), (2, 2), f),
    ], dict(dynamic, type="float"))
    case("ct_int8_sym", "int-quantized", [("a", (8, 64), dict(int8, strategy="channel"), (8, 1), b)])


def main():
    os.makedirs(out_dir(), exist_ok=True)
    mxfp4()
    fixture()
    fp8()
    gptq()
    awq()
    compressed()
    with open(os.path.join(out_dir(), "VERSIONS"), "w") as f:
        f.write("made by tools/make_packed_goldens.py with\n")
        for p in ("numpy", "torch", "transformers", "safetensors", "compressed-tensors"):
            f.write(f"{p} {importlib.metadata.version(p)}\n")
        f.write("auto-gptq 0.7.1 (qlinear_cuda.py, as auto_gptq_linear.py)\nautoawq 0.2.9 (packing_utils.py, as awq_packing_utils.py)\n")


if __name__ == "__main__":
    main()
