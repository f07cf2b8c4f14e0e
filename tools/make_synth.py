#!/usr/bin/env python3
"""usage: make_synth.py SHAPE TOKENIZER.gguf OUT.gguf [SEED [F16|BF16]]

A GGUF file of a known model's shape with random float16 (or bfloat16) weights, for measuring speed: its text means nothing. The tokenizer, and with it the
size of the vocabulary, is copied from TOKENIZER.gguf (SmolLM2-135M-Instruct's has 49152 tokens). llama.cpp's quantizer makes other types of it.
The same arguments give the same file. Needs the packages gguf and numpy (made with gguf 0.19, numpy 2.4).
"""
import sys

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter

# arch, layers, hidden, FFN, heads, kv heads, head size, rope base
SHAPES = {
    "1b": ("llama", 16, 2048, 8192, 32, 8, 64, 500000.0),     # Llama-3.2-1B
    "3b": ("llama", 28, 3072, 8192, 24, 8, 128, 500000.0),    # Llama-3.2-3B
    "q17": ("qwen3", 28, 2048, 6144, 16, 8, 128, 1000000.0),  # Qwen3-1.7B
    "tiny": ("llama", 2, 64, 128, 4, 2, 16, 10000.0),         # for tests of this script
}


def copy_tokenizer(reader, w):
    for key, field in reader.fields.items():
        if not key.startswith("tokenizer."):
            continue
        add = {GGUFValueType.ARRAY: w.add_array, GGUFValueType.STRING: w.add_string, GGUFValueType.BOOL: w.add_bool}.get(field.types[0])
        value = field.contents()
        add(key, value) if add else w.add_uint32(key, int(value))
    return len(reader.fields["tokenizer.ggml.tokens"].data)


def write_config(w, name, shape, vocab, kind):
    arch, layers, hidden, ffn, heads, kv, size, base = shape
    w.add_name("synth-" + name)
    w.add_block_count(layers)
    w.add_context_length(8192)
    w.add_embedding_length(hidden)
    w.add_feed_forward_length(ffn)
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_key_length(size)
    w.add_value_length(size)
    w.add_rope_dimension_count(size)
    w.add_rope_freq_base(base)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_vocab_size(vocab)
    w.add_file_type({"F16": 1, "BF16": 32}[kind])
    w.add_quantization_version(2)


def tensors(shape, vocab):
    arch, layers, hidden, ffn, heads, kv, size, base = shape
    yield "token_embd.weight", (vocab, hidden)
    yield "output_norm.weight", (hidden,)
    for i in range(layers):
        rows = [("attn_norm", (hidden,)), ("attn_q", (heads * size, hidden)), ("attn_k", (kv * size, hidden)), ("attn_v", (kv * size, hidden)),
                ("attn_output", (hidden, heads * size)), ("ffn_norm", (hidden,)), ("ffn_gate", (ffn, hidden)), ("ffn_up", (ffn, hidden)),
                ("ffn_down", (hidden, ffn))]
        if arch == "qwen3":
            rows += [("attn_q_norm", (size,)), ("attn_k_norm", (size,))]
        for name, dims in rows:
            yield f"blk.{i}.{name}.weight", dims


def values(rng, dims, kind):
    if len(dims) == 1:
        return np.ones(dims, np.float32)
    a = rng.standard_normal(dims, dtype=np.float32)
    a *= np.float32(dims[1] ** -0.5)
    if kind == "F16":
        return a.astype(np.float16)
    u = a.view(np.uint32)  # to nearest even, in place
    u += ((u >> 16) & 1) + np.uint32(0x7fff)
    return (u >> 16).astype(np.uint16)


def main(argv):
    kind = argv[4] if len(argv) == 5 else "F16"
    if len(argv) not in (3, 4, 5) or argv[0] not in SHAPES or kind not in ("F16", "BF16"):
        print(__doc__.split("\n")[0] + "     shapes: " + ", ".join(SHAPES), file=sys.stderr)
        return 2
    name, tokenizer, out = argv[:3]
    rng = np.random.Generator(np.random.SFC64(int(argv[3]) if len(argv) > 3 else 1))
    w = GGUFWriter(out, SHAPES[name][0])
    vocab = copy_tokenizer(GGUFReader(tokenizer), w)
    write_config(w, name, SHAPES[name], vocab, kind)
    todo = list(tensors(SHAPES[name], vocab))
    for key, dims in todo:
        dtype = np.dtype(np.float32 if len(dims) == 1 else np.float16)
        raw = GGMLQuantizationType.BF16 if kind == "BF16" and len(dims) > 1 else None
        w.add_tensor_info(key, dims, dtype, int(np.prod(dims)) * dtype.itemsize, raw_dtype=raw)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    for _, dims in todo:  # one at a time: the larger shapes need no more memory than their largest tensor
        w.write_tensor_data(values(rng, dims, kind))
    w.close()
    print(out, "parameters:", sum(int(np.prod(dims)) for _, dims in todo))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
