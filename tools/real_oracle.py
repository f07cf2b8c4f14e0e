#!/usr/bin/env python3
"""Float32 transformers reference over the dequantised weights of the two small real GGUF files.

usage: real_oracle.py MODEL_DIR OUT_DIR [smollm2|gemma3 ...] [--noise]

MODEL_DIR holds smollm2-135m-instruct-q4_1.gguf and gemma3-270m-q4_k_m.gguf (where they come from: tests/fixtures/DATA.md).

OUT_DIR/<name>/oracle.safetensors, prompt k = c0..c3:
  cK.ids I32[T]   cK.argmax I32[T]   cK.top.ids I32[T,64]   cK.top.logprobs F32[T,64]
  cK.logits.last F32[V]   cK.greedy I32[32]
  cK.hidden.{embed,layer.i ...,norm} F32[T,H] for the short prompts (i = 0, middle, last)
"""
import argparse, hashlib, json, os
import torch, transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

torch.set_grad_enabled(False)
torch.set_num_threads(2)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

MODELS = {"smollm2-135m": "smollm2-135m-instruct-q4_1.gguf", "gemma3-270m": "gemma3-270m-q4_k_m.gguf"}
PARA = ("The lighthouse keeper counted the ships twice each evening, once when the lamp was lit and once when the fog came in. "
        "He wrote the numbers in a narrow ledger with a pencil that he sharpened on the stair. In the year {y} there were {n} wrecks "
        "on the northern reef, and nobody in the village of Port-{v} could agree on the reason: some blamed the tide tables, others the "
        "new charts, and a few, quietly, the keeper himself. ")
PROMPTS = [
    ("english", "The water cycle describes how water moves between the oceans, the atmosphere and the land. First,"),
    ("code", "def quicksort(xs):\n    if len(xs) <= 1:\n        return xs\n    pivot = xs[len(xs) // 2]\n    left = [x for x in xs if x < pivot]\n"),
    ("multilingual", "Grüße aus Köln! 今日は天気がいいですね。 Привет, мир 🌍👩‍🚀 — العربية جميلة. ¿Cómo estás? ไทย"),
    ("long", "".join(PARA.format(y=1861 + 7 * i, n=3 + (5 * i) % 11, v="ABCDEFGH"[i % 8]) for i in range(8)) + "When the inspector finally arrived, he asked"),
]


def load(d, f, **kw):
    return AutoModelForCausalLM.from_pretrained(d, gguf_file=f, **kw).eval()


def reference(name, d, out):
    f = MODELS[name]
    tok = AutoTokenizer.from_pretrained(d, gguf_file=f)
    model = load(d, f, dtype=torch.float32, attn_implementation="eager")
    core, L = model.model, model.config.num_hidden_layers
    os.makedirs(f"{out}/{name}", exist_ok=True)
    tens, meta = {}, {}
    for k, (tag, text) in enumerate(PROMPTS):
        ids = tok(text)["input_ids"]
        got, hooks = {}, []
        if len(ids) < 200:
            hooks.append(core.layers[0].register_forward_pre_hook(lambda m, a, kw: got.__setitem__("embed", (a[0] if a else kw["hidden_states"])[0].clone()), with_kwargs=True))
            for i in sorted({0, L // 2, L - 1}):
                hooks.append(core.layers[i].register_forward_hook(lambda m, a, o, i=i: got.__setitem__(f"layer.{i}", (o[0] if isinstance(o, tuple) else o)[0].clone())))
            hooks.append(core.norm.register_forward_hook(lambda m, a, o: got.__setitem__("norm", o[0].clone())))
        logits = model(input_ids=torch.tensor([ids])).logits[0]
        for h in hooks:
            h.remove()
        tv, ti, mar = [], [], []
        for row in logits.split(64):
            lp = row.double().log_softmax(-1)
            v, i = lp.topk(64, -1)
            tv.append(v.float()); ti.append(i.int()); mar.append((v[:, 0] - v[:, 1]).float())
        mar = torch.cat(mar)
        model.generation_config = GenerationConfig(eos_token_id=None, pad_token_id=0)
        g = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                           generation_config=GenerationConfig(max_new_tokens=32, do_sample=False, eos_token_id=None, pad_token_id=0))[0, len(ids):]
        tens.update({f"c{k}.ids": torch.tensor(ids, dtype=torch.int32), f"c{k}.argmax": torch.cat(ti)[:, 0].contiguous(), f"c{k}.top.ids": torch.cat(ti),
                     f"c{k}.top.logprobs": torch.cat(tv), f"c{k}.logits.last": logits[-1].clone(), f"c{k}.greedy": g.int()})
        tens.update({f"c{k}.hidden.{n}": t for n, t in got.items()})
        nll = -logits[:-1].double().log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None]).mean().item()
        meta[f"c{k}.tag"], meta[f"c{k}.text"], meta[f"c{k}.tokens"] = tag, text, str(len(ids))
        meta[f"c{k}.min_margin"], meta[f"c{k}.mean_nll"], meta[f"c{k}.greedy_text"] = f"{mar.min():.5g}", f"{nll:.5f}", tok.decode(g)
        print(name, tag, len(ids), ids[:6], f"min margin {mar.min():.4g} nll {nll:.4f}", repr(tok.decode(g))[:150], flush=True)
        assert (k != 3) or len(ids) > 600
    meta.update(trace_version="1", gguf=f, weights_sha256=hashlib.sha256(open(f"{d}/{f}", "rb").read()).hexdigest(), transformers=transformers.__version__, torch=torch.__version__,
                dtype="float32 (dequantised by gguf-py through transformers)", attn_implementation="eager",
                config=json.dumps(model.config.to_dict(), default=str))
    save_file({k: v.contiguous() for k, v in tens.items()}, f"{out}/{name}/oracle.safetensors", metadata=meta)
    print(name, os.path.getsize(f"{out}/{name}/oracle.safetensors"), "bytes", flush=True)


def noise(name, d, out):
    """How far apart transformers' own back ends are on the same weights."""
    f = MODELS[name]; tok = AutoTokenizer.from_pretrained(d, gguf_file=f)
    ids = [tok(t)["input_ids"] for _, t in PROMPTS]
    runs = {}
    for tag, dt, at in (("f32/eager", torch.float32, "eager"), ("f32/sdpa", torch.float32, "sdpa"), ("bf16/eager", torch.bfloat16, "eager"), ("bf16/sdpa", torch.bfloat16, "sdpa")):
        m = load(d, f, dtype=dt, attn_implementation=at)
        runs[tag] = [m(input_ids=torch.tensor([x])).logits[0].double().log_softmax(-1) for x in ids]
        if tag == "f32/eager":                    # one token at a time through the cache
            rows, cache = [], None
            for t in ids[0] :
                o = m(input_ids=torch.tensor([[t]]), use_cache=True, **({"cache": cache} if cache is not None else {}))
                cache = o.cache; rows.append(o.logits[0, -1].double().log_softmax(-1))
            runs["f32/eager incremental (p0)"] = [torch.stack(rows)]
        del m
    res = []
    for a, b in (("f32/eager", "f32/sdpa"), ("f32/eager", "f32/eager incremental (p0)"), ("f32/eager", "bf16/eager"), ("f32/eager", "bf16/sdpa"), ("bf16/eager", "bf16/sdpa")):
        agree = n = 0; mx = mt = 0.0; kl = 0.0
        for x, y in zip(runs[a], runs[b]):
            agree += (x.argmax(-1) == y.argmax(-1)).sum().item(); n += len(x)
            d_ = (x - y).abs(); mx = max(mx, d_.max().item())
            ti = x.topk(64, -1).indices; mt = max(mt, d_.gather(-1, ti).max().item())
            kl += (x.exp() * (x - y)).sum().item()
        res.append(dict(a=a, b=b, positions=n, top1_agree=agree, top1_pct=round(100 * agree / n, 3), max_dlogprob=mx, max_dlogprob_top64=mt, mean_kl=kl / n))
        print(name, res[-1], flush=True)
    json.dump(res, open(f"{out}/{name}/noise_floor.json", "w"), indent=1)


if __name__ == "__main__":
    ap = argparse.ArgumentParser(); ap.add_argument("models"); ap.add_argument("out"); ap.add_argument("names", nargs="*"); ap.add_argument("--noise", action="store_true")
    a = ap.parse_args()
    for n in MODELS:
        if not a.names or any(x in n for x in a.names):
            reference(n, a.models, a.out)
            if a.noise and "smollm2" in n:
                noise(n, a.models, a.out)
