#!/usr/bin/env python3
"""A hybrid Gated-DeltaNet checkpoint wide enough for K-quants (rows of 256 and 512): a small stand-in for greedy parity on a 27B model.

usage: make_hybrid.py --seed N --out DIR      writes an HF folder with oracle.safetensors (float32, eager), like make_oracle.py
"""
import argparse, os, torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
import transformers
import make_oracle as mo


def spec(seed):
    c = mo.q35(dict(vocab_size=512, hidden_size=256, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=2, head_dim=32,
                    intermediate_size=512, max_position_embeddings=4096, rms_norm_eps=1e-6, initializer_range=0.02, use_cache=True,
                    attention_dropout=0.0, hidden_act="silu", bos_token_id=1, eos_token_id=2, tie_word_embeddings=False, attention_bias=False,
                    model_type="qwen3_5_text", architectures=["Qwen3_5ForCausalLM"], linear_conv_kernel_dim=4, linear_key_head_dim=32,
                    linear_value_head_dim=32, linear_num_key_heads=4, linear_num_value_heads=8), None)
    return mo.Spec(c, [22, 70, 200], style="v5", zero_centered=mo.ZCQ, gains=mo.GDN_G, f32=r"A_log|linear_attn.norm", notes=mo.GDN_N, probes={}, real="Qwen/Qwen3.6-27B shape, tiny")


def main():
    ap = argparse.ArgumentParser(); ap.add_argument("--seed", type=int, default=1); ap.add_argument("--out", required=True); a = ap.parse_args()
    torch.set_grad_enabled(False)
    s = spec(a.seed); os.makedirs(a.out, exist_ok=True); mo.write_configs(a.out, s)
    model = AutoModelForCausalLM.from_config(mo.text_config(a.out), dtype=torch.float32, **mo.EAGER).eval()
    mo.write_weights(a.out, model, s, mo.fill(model, s, a.seed, 1.0))
    model = mo.load(a.out, s)
    gen = torch.Generator().manual_seed(a.seed + 9)
    prompts = [torch.randint(3, 512, (n,), generator=gen).tolist() for n in (22, 70, 200)]
    tens, margins, steps, div, ok, _ = mo.run_cases(model, prompts)
    save_file(tens, f"{a.out}/oracle.safetensors", metadata=dict(trace_version="1", weights_sha256=mo.weights_sha256(a.out), family="qwen3_5", transformers=transformers.__version__, torch=torch.__version__, dtype="float32",
              attn_implementation="eager", seed=str(a.seed), min_margin=f"{min(margins):.5g}", min_greedy_margin=f"{min(steps):.5g}", greedy_distinct=str(div),
              **{k: (v if isinstance(v, str) else f"{v:.4g}") for k, v in mo.noise(model, prompts, tens).items()}))
    print("margins", min(margins), "greedy", min(steps), "distinct", div, "cached", ok)


if __name__ == "__main__":
    main()
