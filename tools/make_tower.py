#!/usr/bin/env python3
"""The 48-layer tower fixture (Gemma 4 12B shape, tiny widths): traces for the window-edge gate G2.

usage: make_tower.py --seed N --out DIR

Cases of 1, 9 and 1024 tokens; 1024 is the sliding window. Two traces of the same weights:
  oracle.safetensors       HF, float32, eager          (the tight reference)
  oracle-bf16.safetensors  HF, bfloat16, eager         (the noisy reference, with HF's own sdpa-vs-eager distance recorded)
Per position: the reference's top-64 ids and log-probabilities (float64 log-softmax of the logits).
"""
import argparse, json, math, os, torch
from safetensors.torch import save_file
import transformers
from transformers import AutoModelForCausalLM
import make_oracle as mo

LENS = (1, 9, 1024)


def spec(seed):
    hidden, heads, kv = (96, 4, 2) if seed < 100 else (80, 8, 4)
    types = ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(48)]
    c = dict(vocab_size=512 if seed < 100 else 480, hidden_size=hidden, num_hidden_layers=48, num_attention_heads=heads, num_key_value_heads=kv,
             head_dim=16, global_head_dim=32, num_global_key_value_heads=1, attention_k_eq_v=True, intermediate_size=128,
             max_position_embeddings=4096, rms_norm_eps=1e-6, initializer_range=0.02, use_cache=True, attention_dropout=0.0,
             attention_bias=False, tie_word_embeddings=True, hidden_activation="gelu_pytorch_tanh", sliding_window=1024,
             layer_types=types, final_logit_softcapping=30.0, pad_token_id=0, bos_token_id=2, eos_token_id=1, num_kv_shared_layers=0,
             use_double_wide_mlp=False, use_bidirectional_attention="vision", model_type="gemma4_unified_text",
             architectures=["Gemma4UnifiedForCausalLM"], rope_parameters={
                 "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                 "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0}})
    return mo.Spec(c, list(LENS), style="v5", embed_std=0.12, gains=mo.G4G, notes=mo.G4N, real="google/gemma-4-12B-it text tower")


def top(logits, k=64):
    """Ties (bfloat16 logits have many) are ordered by id, so that top.ids[:, 0] is the arg-max that everyone computes."""
    lp = torch.log_softmax(logits.double(), -1)
    v, i = torch.sort(lp, dim=-1, descending=True, stable=True)
    return lp, i[:, :k].int().contiguous(), v[:, :k].float().contiguous()


def quarters(a, b):
    hit = (a.argmax(-1) == b.argmax(-1)).float()
    return [round(q.mean().item(), 4) for q in hit.chunk(4)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    torch.manual_seed(a.seed)
    s = spec(a.seed)
    os.makedirs(a.out, exist_ok=True)
    mo.write_configs(a.out, s)
    cfg = mo.text_config(a.out)
    model = AutoModelForCausalLM.from_config(cfg, dtype=torch.float32, **mo.EAGER).eval()
    extra = mo.fill(model, s, a.seed, 1.0)
    mo.write_weights(a.out, model, s, extra)
    del model
    gen = torch.Generator().manual_seed(a.seed + 5)
    prompts = [torch.randint(3, cfg.vocab_size, (n,), generator=gen).tolist() for n in LENS]
    run = {}
    for dt in (torch.float32, torch.bfloat16):
        for attn in ("eager", "sdpa"):
            m = AutoModelForCausalLM.from_pretrained(a.out, config=mo.text_config(a.out), dtype=dt, attn_implementation=attn).eval()
            with torch.no_grad():
                run[dt, attn] = [mo.forward(m, ids, True) for ids in prompts]
                if dt == torch.float32 and attn == "eager":
                    greedy = [mo.greedy(m, ids) for ids in prompts]
            print(dt, attn, "done", flush=True)
    scale = torch.tensor(math.sqrt(cfg.hidden_size)).to(torch.bfloat16).float().item()
    for dt, name in ((torch.float32, "oracle"), (torch.bfloat16, "oracle-bf16")):
        t, meta = {}, dict(trace_version="1", weights_sha256=mo.weights_sha256(a.out), family="gemma4_unified", real_config=s.real, transformers=transformers.__version__, torch=torch.__version__,
                           dtype=str(dt).split(".")[-1], weights_dtype="bfloat16", attn_implementation="eager", seed=str(a.seed),
                           embed_scale_bf16=repr(scale), final_logit_softcapping="30.0", gate="G2")
        for k, ids in enumerate(prompts):
            got, alt = run[dt, "eager"][k], run[dt, "sdpa"][k]
            lp, i, v = top(got["logits"].float())
            lp2 = torch.log_softmax(alt["logits"].double(), -1)
            t[f"c{k}.ids"] = torch.tensor(ids, dtype=torch.int32)
            t[f"c{k}.top.ids"], t[f"c{k}.top.logprobs"] = i, v
            t[f"c{k}.logits.last"] = got["logits"][-1].float().clone()
            if dt == torch.float32:
                t[f"c{k}.greedy"] = torch.tensor(greedy[k], dtype=torch.int32)
            if len(ids) < 100:
                t.update({f"c{k}.{n}": x.float().contiguous() for n, x in got.items()})
            d = (lp2.gather(-1, i.long()) - lp.gather(-1, i.long())).abs()
            meta[f"c{k}.baseline"] = json.dumps(dict(
                what="HF sdpa vs eager, same weights, same dtype", top1=round((got["logits"].argmax(-1) == alt["logits"].argmax(-1)).float().mean().item(), 4),
                top1_by_quarter=quarters(got["logits"], alt["logits"]), max_dlogprob_top64=round(d.max().item(), 5), mean_dlogprob_top64=round(d.mean().item(), 6)))
            f32 = torch.log_softmax(run[torch.float32, "eager"][k]["logits"].double(), -1)
            meta[f"c{k}.vs_float32"] = json.dumps(dict(top1=round((f32.argmax(-1) == lp.argmax(-1)).float().mean().item(), 4),
                top1_by_quarter=quarters(f32, lp), max_dlogprob_top64=round((f32.gather(-1, i.long()) - lp.gather(-1, i.long())).abs().max().item(), 5)))
            base, f = json.loads(meta[f"c{k}.baseline"]), json.loads(meta[f"c{k}.vs_float32"])
            if dt == torch.float32:      # float32 engines agree: exact top-1, tight log-probabilities
                gate = dict(top1_min=1.0, top1_quarter_min=1.0, max_dlogprob=2e-3)
            else:                        # the worse of HF's two own distances, with a little room
                gate = dict(top1_min=round(min(base["top1"], f["top1"]) - 0.02, 4),
                            top1_quarter_min=round(min(base["top1_by_quarter"] + f["top1_by_quarter"]) - 0.05, 4),
                            max_dlogprob=round(1.25 * max(base["max_dlogprob_top64"], f["max_dlogprob_top64"]), 4))
            meta[f"c{k}.gate"] = json.dumps(gate)
        save_file(t, f"{a.out}/{name}.safetensors", metadata=meta)
        print(name, json.dumps(meta, indent=1), flush=True)


if __name__ == "__main__":
    main()
