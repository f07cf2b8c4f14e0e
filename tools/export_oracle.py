#!/usr/bin/env python3
"""Write a trace of what Hugging Face transformers computes: DIR/oracle.safetensors, the evidence that `lemma verify` reads.

usage: export_oracle.py --model ID|DIR --out DIR [--prompt-ids-json FILE] [--prompt TEXT ...] [--greedy N] [--dtype float32|bfloat16]
                        [--hidden LIST | --full-hidden] [--taps] [--gguf FILE] [--online] [--trust-remote-code] [--threads N]

Needs torch, transformers and safetensors (checked with torch 2.13.0, transformers 5.24.0, safetensors 0.8.0); --gguf needs gguf and
accelerate too, and a family whose GGUF keys transformers knows. Works offline unless --online is given.
FILE holds one prompt (a list of token ids), a list of prompts, or {"cases": [{"ids": [...]}, ...]}. Prompts given as text follow those.

Per case K the trace holds
  cK.ids I32[T]   cK.argmax I32[T]   cK.top.ids I32[T,n]   cK.top.logprobs F32[T,n]      n = 64, or V when the vocabulary is smaller
  cK.logits F32[T,V], or cK.logits.last F32[V] when T*V is over LOGITS_MAX values
  cK.hidden.embed, cK.hidden.layer.i, cK.hidden.norm F32[T,H]
  cK.greedy I32[N], cK.greedy.logits F32[N,V]       row 0 follows the prompt; nothing stops the run early
  cK.tap.NAME F32[T,width] with --taps                                                  NAME is the name of an op in lemma's program
and __metadata__ says who made it, from which weights (SHA-256 of the weight files' bytes, concatenated in name order), in which precision,
and how far transformers' own other routes land from it (noise).

Exit status: 0 written; 2 a usage or input error (one line on stderr); 3 torch, transformers or safetensors is not installed.
"""
import argparse
import copy
import hashlib
import inspect
import json
import os
import sys

TRACE_VERSION = "1"
TOP = 64                 # log-probabilities kept per position
LOGITS_MAX = 1 << 22     # a case with more logits than this keeps only the last row
HIDDEN_MAX = 1 << 23     # a case with more hidden values than this keeps embed, first, middle, last, norm
NOISE_TOKENS = 256       # prefix of the longest case on which the noise is measured
NOISE_PARAMS = 1 << 29   # larger models skip the float64 run (it needs twice the memory)


class Bad(Exception):
    """A usage or input error: the message says what is wrong, where, and what to do."""


# ---- taps: which submodule's input or output is which op of lemma's program -------------------------------------------------------------
# suffix below a decoder layer -> [(side, name)]; a suffix that a family lacks is skipped. A name that starts with "=" is a splitter below.
TAPS = {
    "input_layernorm": [("out", "attn.norm")],
    "self_attn.q_proj": [("out", "attn.q")],
    "self_attn.k_proj": [("out", "attn.k")],
    "self_attn.v_proj": [("out", "attn.v")],
    "self_attn.q_norm": [("out", "attn.q_norm")],
    "self_attn.k_norm": [("out", "attn.k_norm")],
    "self_attn.v_norm": [("out", "attn.v_norm")],
    "self_attn.o_proj": [("in", "attn.ctx"), ("out", "attn.o")],
    "post_attention_layernorm": [("out", "ffn.norm")],
    "mlp.gate_proj": [("out", "ffn.gate")],
    "mlp.up_proj": [("out", "ffn.up")],
    "mlp.down_proj": [("in", "ffn.act"), ("out", "ffn.down")],
    # experts
    "mlp.gate": [("out", "moe.router")],
    "mlp.router": [("out", "moe.router")],
    "mlp.experts": [("out", "moe.experts")],
    "mlp.shared_expert": [("out", "moe.shared")],
    "mlp.shared_experts": [("out", "moe.shared")],
    # fused projections are taken apart, as the program has them apart
    "self_attn.qkv_proj": [("out", "=qkv")],
    "mlp.gate_up_proj": [("out", "=gate_up")],
    # latent attention and its index
    "self_attn.q_a_proj": [("out", "attn.q_a")],
    "self_attn.q_a_layernorm": [("out", "attn.q_a_norm")],
    "self_attn.q_b_proj": [("out", "attn.q")],
    "self_attn.kv_a_proj_with_mqa": [("out", "attn.kv_a")],
    "self_attn.kv_a_layernorm": [("out", "attn.kv_a_norm")],
    "self_attn.indexer.wq_b": [("out", "attn.index.q")],
    "self_attn.indexer.wk": [("out", "attn.index.k")],
    "self_attn.indexer.k_norm": [("out", "attn.index.k_norm")],
    "self_attn.indexer.weights_proj": [("out", "attn.index.w")],
    # gated delta rule
    "linear_attn.in_proj_qkv": [("out", "delta.qkv")],
    "linear_attn.in_proj_z": [("out", "delta.z")],
    "linear_attn.in_proj_b": [("out", "delta.b")],
    "linear_attn.in_proj_a": [("out", "delta.a")],
    "linear_attn.out_proj": [("in", "delta.ctx"), ("out", "delta.o")],
}
_SANDWICH = {   # norms before and after each sublayer
    "post_attention_layernorm": [("out", "attn.post_norm")],
    "pre_feedforward_layernorm": [("out", "ffn.norm")],
    "post_feedforward_layernorm": [("out", "ffn.post_norm")],
}
_PER_LAYER = {
    "per_layer_input_gate": [("out", "ple.gate")],
    "per_layer_projection": [("out", "ple.proj")],
    "post_per_layer_input_norm": [("out", "ple.norm")],
}
_GATED_Q = {"self_attn.q_proj": [("out", "=q_gate")]}
FAMILY_TAPS = {   # model_type -> what differs from TAPS
    "gemma2": _SANDWICH,
    "gemma3_text": _SANDWICH,
    "gemma3n_text": {**_SANDWICH, **_PER_LAYER, "laurel": [("out", "laurel")]},
    "gemma4_text": {**_SANDWICH, **_PER_LAYER, "router.proj": [("out", "moe.router")], "experts": [("out", "moe.experts")]},
    "gemma4_unified_text": _SANDWICH,
    "olmo2": {"post_attention_layernorm": [("out", "attn.post_norm")], "post_feedforward_layernorm": [("out", "ffn.post_norm")]},
    "qwen3_next": _GATED_Q,
    "qwen3_5_text": _GATED_Q,
    "qwen3_5_moe_text": _GATED_Q,
    "starcoder2": {"mlp.c_fc": [("out", "ffn.up")], "mlp.c_proj": [("in", "ffn.act"), ("out", "ffn.down")]},
    "gpt2": {
        "ln_1": [("out", "attn.norm")], "attn.c_attn": [("out", "=qkv")], "attn.c_proj": [("in", "attn.ctx"), ("out", "attn.o")],
        "ln_2": [("out", "ffn.norm")], "mlp.c_fc": [("out", "ffn.up")], "mlp.c_proj": [("in", "ffn.act"), ("out", "ffn.down")],
    },
}
HEADS_FIRST = {"gemma3_text"}   # families that norm q and k as [heads, T, dim]; the others as [T, heads, dim]


def first(t):
    return t[0] if isinstance(t, (tuple, list)) else t


def rows(t, n_tokens, heads_first=False):
    """A submodule's value as [T, width]; None when it has another shape (a stack of experts' inputs, say)."""
    t = first(t)
    if t.dim() == 4 and t.shape[0] == 1:
        t = t[0].transpose(0, 1) if heads_first else t[0]
    elif t.dim() == 3 and t.shape[0] == 1:
        t = t[0]
    if t.dim() < 2 or t.shape[0] != n_tokens:
        return None
    return t.reshape(n_tokens, -1).detach().float().clone()


def split_tap(kind, t, cfg):
    """Takes a fused projection's rows apart: [(name, rows), ...]."""
    nh = cfg.num_attention_heads
    nkv = getattr(cfg, "num_key_value_heads", None) or nh
    hd = getattr(cfg, "head_dim", None) or cfg.hidden_size // nh
    if kind == "=qkv":
        return list(zip(("attn.q", "attn.k", "attn.v"), t.split([nh * hd, nkv * hd, nkv * hd], -1)))
    if kind == "=gate_up":
        return list(zip(("ffn.gate", "ffn.up"), t.chunk(2, -1)))
    if kind == "=q_gate":       # per head [query | gate]
        q, g = t.reshape(t.shape[0], nh, 2, -1).unbind(2)
        return [("attn.q", q.flatten(1)), ("attn.gate", g.flatten(1))]
    raise AssertionError(kind)


# ---- the model's parts ------------------------------------------------------------------------------------------------------------------
def text_config(cfg):
    return cfg.get_text_config() if hasattr(cfg, "get_text_config") else cfg


def parts(model):
    """(decoder layers, final norm) of any decoder-only model."""
    for m in model.modules():
        for ls, nm in (("layers", "norm"), ("h", "ln_f"), ("layers", "final_layernorm")):
            if hasattr(m, ls) and hasattr(m, nm) and len(getattr(m, ls)):
                return getattr(m, ls), getattr(m, nm)
    raise Bad("no decoder layers with a final norm were found in this model; it needs an entry in parts()")


def flat(t):
    """[1,T,H] -> [T,H]; a stack of n streams [n,1,T,H] -> [T,n*H]."""
    t = first(t)
    if t.dim() == 4:
        return t[:, 0].permute(1, 0, 2).reshape(t.shape[2], -1).detach().float().clone()
    return t[0].detach().float().clone()


class Recorder:
    """Hooks that collect the hidden states and taps of one forward pass."""

    def __init__(self, model, n_tokens, hidden, taps):
        self.got, self.handles = {}, []
        self.cfg = text_config(model.config)
        layers, norm = parts(model)
        if "embed" in hidden:
            self.handles.append(layers[0].register_forward_pre_hook(
                lambda m, a, kw: self.got.__setitem__("hidden.embed", flat(a[0] if a else kw["hidden_states"])), with_kwargs=True))
        for i, layer in enumerate(layers):
            if i in hidden:
                self.handles.append(layer.register_forward_hook(lambda m, a, o, i=i: self.got.__setitem__(f"hidden.layer.{i}", flat(o))))
        if "norm" in hidden:
            self.handles.append(norm.register_forward_hook(lambda m, a, o: self.got.__setitem__("hidden.norm", flat(o))))
        if taps:
            self.tap_layers(layers, n_tokens)
            self.handles.append(layers[0].register_forward_pre_hook(
                lambda m, a, kw: self.got.__setitem__("tap.embed", flat(a[0] if a else kw["hidden_states"])), with_kwargs=True))
            self.handles.append(norm.register_forward_hook(lambda m, a, o: self.got.__setitem__("tap.norm", flat(o))))

    def tap_layers(self, layers, n_tokens):
        table = {**TAPS, **FAMILY_TAPS.get(self.cfg.model_type, {})}
        for i, layer in enumerate(layers):
            subs = dict(layer.named_modules())
            sparse = any(s in subs for s in ("mlp.gate", "mlp.router", "mlp.experts"))
            for suffix, sides in table.items():
                if suffix in subs:
                    for side, name in sides:
                        self.tap(subs[suffix], side, f"layer.{i}.", name, n_tokens)
            if sparse:
                self.tap(subs["mlp"], "out", f"layer.{i}.", "moe.out", n_tokens)
            self.handles.append(layer.register_forward_hook(lambda m, a, o, i=i: self.got.__setitem__(f"tap.layer.{i}.out", flat(o))))

    def tap(self, module, side, prefix, name, n_tokens):
        heads_first = self.cfg.model_type in HEADS_FIRST

        def keep(value):
            t = rows(value, n_tokens, heads_first)
            if t is None:
                return
            for n, v in split_tap(name, t, self.cfg) if name[0] == "=" else [(name, t)]:
                self.got[f"tap.{prefix}{n}"] = v.contiguous()
        if side == "out":
            self.handles.append(module.register_forward_hook(lambda m, a, o: keep(o)))
        else:
            self.handles.append(module.register_forward_pre_hook(lambda m, a: keep(a[0])))

    def close(self):
        for h in self.handles:
            h.remove()


# ---- input ------------------------------------------------------------------------------------------------------------------------------
def read_prompts(path):
    try:
        with open(path, encoding="utf-8") as f:
            data = json.load(f)
    except OSError as e:
        raise Bad(f"{path}: {e.strerror}; give a JSON file of token ids")
    except ValueError as e:
        raise Bad(f"{path}: not JSON ({e}); give a list of token ids, or a list of such lists")
    if isinstance(data, dict):
        data = [c.get("ids") if isinstance(c, dict) else c for c in data.get("cases", [])]
    if isinstance(data, list) and data and all(isinstance(x, int) and not isinstance(x, bool) for x in data):
        data = [data]
    if not isinstance(data, list) or not data:
        raise Bad(f"{path}: no prompts; give a list of token ids, a list of such lists, or {{\"cases\": [{{\"ids\": [...]}}]}}")
    for k, ids in enumerate(data):
        if not isinstance(ids, list) or not ids or not all(isinstance(x, int) and not isinstance(x, bool) for x in ids):
            raise Bad(f"{path}: case {k} is not a non-empty list of integers")
    return data


def check_ids(prompts, cfg, greedy):
    limit = getattr(cfg, "max_position_embeddings", None)
    for k, ids in enumerate(prompts):
        bad = next((x for x in ids if x < 0 or x >= cfg.vocab_size), None)
        if bad is not None:
            raise Bad(f"case {k}: token id {bad} is outside the vocabulary of {cfg.vocab_size}; give ids of this model's tokenizer")
        if cfg.model_type == "gpt2" and len(ids) + max(greedy - 1, 0) > limit:
            raise Bad(f"case {k}: {len(ids)} tokens and {greedy} greedy ones exceed the {limit} positions of this model")


def weight_files(args, folder):
    """The files that hold the weights, in name order."""
    if args.gguf:
        return [args.gguf]
    for index in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        p = os.path.join(folder, index)
        if os.path.exists(p):
            with open(p, encoding="utf-8") as f:
                names = sorted(set(json.load(f)["weight_map"].values()))
            lost = [n for n in names if not os.path.exists(os.path.join(folder, n))]
            if lost:
                raise Bad(f"{folder}: weight files are missing: {', '.join(lost)}")
            return [os.path.join(folder, n) for n in names]
    for name in ("model.safetensors", "pytorch_model.bin"):
        if os.path.exists(os.path.join(folder, name)):
            return [os.path.join(folder, name)]
    raise Bad(f"{folder}: holds no model.safetensors, no shards with an index, no pytorch_model.bin; give a folder with weights")


def sha256(files):
    h = hashlib.sha256()
    for p in files:
        with open(p, "rb") as f:
            while chunk := f.read(1 << 20):
                h.update(chunk)
    return h.hexdigest()


def resolve(args):
    """The folder that holds config.json (for a hub name: the cached snapshot)."""
    if args.gguf:
        if not os.path.isfile(args.gguf):
            raise Bad(f"{args.gguf}: no such file; give a GGUF file")
        return os.path.dirname(os.path.abspath(args.gguf))
    if os.path.isdir(args.model):
        if not os.path.exists(os.path.join(args.model, "config.json")):
            raise Bad(f"{args.model}: holds no config.json; give a Hugging Face model folder")
        return args.model
    if os.path.sep in args.model and args.model.count("/") != 1 or os.path.isabs(args.model) or args.model.startswith("."):
        raise Bad(f"{args.model}: no such folder")
    from huggingface_hub import snapshot_download
    try:
        wanted = ["*.json", "*.safetensors", "*.model", "*.txt", "*.py", "*.jinja"]
        return snapshot_download(args.model, local_files_only=not args.online, allow_patterns=wanted)
    except Exception as e:
        raise Bad(f"{args.model}: neither a folder nor a model in the local cache ({type(e).__name__}); check the name, or add --online")


def expand_mxfp4(model, files, torch, load_file):
    """Loads a checkpoint with MXFP4 expert weights (blocks of 32, low nibble first, E8M0 scales with bias 127), dequantized exactly."""
    lut = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    lut = torch.cat([lut, -lut])
    sd = {}
    for p in files:
        sd.update(load_file(p))
    for k in [k for k in sd if k.endswith("_blocks")]:
        b, s = sd.pop(k).long(), sd.pop(k[:-len("_blocks")] + "_scales").float()
        v = torch.stack((lut[b & 15], lut[b >> 4]), -1).flatten(-2) * torch.exp2(s - 127)[..., None]
        sd[k[:-len("_blocks")]] = v.flatten(-2).transpose(1, 2)
    dtype = next(model.parameters()).dtype
    model.load_state_dict({k: v.to(dtype) for k, v in sd.items()}, strict=True)
    return model


def load(args, folder, files):
    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM
    kw = dict(trust_remote_code=args.trust_remote_code)
    if args.gguf:
        kw["gguf_file"] = os.path.basename(args.gguf)
    try:
        cfg = AutoConfig.from_pretrained(folder, **kw)
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise Bad(f"{folder}: the config can't be used: {one_line(e)}")
    archs = getattr(cfg, "architectures", None) or []
    causal = not archs or any(a.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")) for a in archs)
    if getattr(cfg, "is_encoder_decoder", False) or not causal:
        what = ", ".join(archs) or cfg.model_type
        raise Bad(f"{folder}: {what} is not a causal language model; give one whose architecture ends in ForCausalLM")
    dtype = getattr(torch, args.dtype)
    run = dict(dtype=dtype, attn_implementation="eager", experts_implementation="eager")
    quant = getattr(cfg, "quantization_config", None)
    method = quant.get("quant_method") if isinstance(quant, dict) else getattr(quant, "quant_method", None)
    try:
        if method == "mxfp4":   # transformers itself would want a GPU kernel
            cfg = text_config(cfg)
            del cfg.quantization_config
            model = AutoModelForCausalLM.from_config(cfg, **run, trust_remote_code=args.trust_remote_code)
            return expand_mxfp4(model, files, torch, load_file).eval()
        model, info = AutoModelForCausalLM.from_pretrained(folder, **kw, **run, output_loading_info=True)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as e:
        raise Bad(f"{folder}: transformers can't load this as a causal language model: {one_line(e)}")
    lost = sorted(info["missing_keys"]) + sorted(str(x) for x in info["mismatched_keys"])
    if lost:
        raise Bad(f"{folder}: {len(lost)} weights are missing or of the wrong shape, {lost[0]} among them; the checkpoint is incomplete")
    return model.eval()


def one_line(e):
    return " ".join(str(e).split())[:300]


# ---- running ----------------------------------------------------------------------------------------------------------------------------
def forward(model, ids, hidden=(), taps=False):
    import torch
    rec = Recorder(model, len(ids), hidden, taps)
    try:
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
    finally:
        rec.close()
    if taps:
        rec.got["tap.logits"] = logits.clone()
    return logits, rec.got


def top(logits):
    """(ids, log-probabilities) of the TOP best per row; equal ones in id order. In blocks of rows: a large vocabulary's sort is heavy."""
    import torch
    n = min(TOP, logits.shape[-1])
    ids, lps = [], []
    for block in logits.split(64):
        v, i = torch.sort(block.double().log_softmax(-1), dim=-1, descending=True, stable=True)
        ids.append(i[:, :n].int())
        lps.append(v[:, :n].float())
    return torch.cat(ids), torch.cat(lps)


def greedy(model, ids, n):
    """The bare arg-max run: ids [n] and the logits that chose them [n, V]. generation_config and EOS play no part."""
    import torch
    from transformers import GenerationConfig
    model.generation_config = GenerationConfig(eos_token_id=None, pad_token_id=0, bos_token_id=None)
    gc = GenerationConfig(max_new_tokens=n, do_sample=False, use_cache=True, eos_token_id=None, pad_token_id=0, output_logits=True,
                          return_dict_in_generate=True)
    out = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), generation_config=gc)
    return out.sequences[0, len(ids):].int(), torch.cat([x.float() for x in out.logits])


def incremental(model, ids):
    """Logits of one token at a time through the cache."""
    import torch
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    rows_, cache = [], None
    for t in ids:
        o = model(input_ids=torch.tensor([[t]]), use_cache=True, **({name: cache} if cache is not None else {}))
        cache = getattr(o, name)
        rows_.append(o.logits[0, -1].float())
    return torch.stack(rows_)


def noise(model, prompts, dtype):
    """How far transformers' own other routes land from the trace: one token at a time, and in float64; max |difference of logits|."""
    ids = max(prompts, key=len)[:NOISE_TOKENS]
    out = {}
    if dtype != "float32":
        return {k: f"n/a ({dtype})" for k in ("cached_vs_full_max_dlogit", "float64_max_dlogit")}
    ref = forward(model, ids)[0]
    rope = getattr(text_config(model.config), "rope_parameters", None) or {}
    try:
        if rope.get("rope_type") == "longrope":
            raise ValueError("the factor set depends on the length")
        out["cached_vs_full_max_dlogit"] = f"{(incremental(model, ids) - ref).abs().max().item():.4g}"
    except Exception as e:
        out["cached_vs_full_max_dlogit"] = f"n/a ({type(e).__name__}: {one_line(e)[:80]})"
    try:
        if sum(p.numel() for p in model.parameters()) > NOISE_PARAMS:
            raise ValueError("the model is too large")
        out["float64_max_dlogit"] = f"{(forward(copy.deepcopy(model).double(), ids)[0] - ref).abs().max().item():.4g}"
    except Exception as e:
        out["float64_max_dlogit"] = f"n/a ({type(e).__name__}: {one_line(e)[:80]})"
    return out


def hidden_list(args, n_layers, values):
    """Which hidden states to keep: a set of "embed", "norm" and layer numbers."""
    if args.hidden:
        keep = set()
        for x in args.hidden.split(","):
            if x in ("embed", "norm"):
                keep.add(x)
            elif x.isdigit() and int(x) < n_layers:
                keep.add(int(x))
            elif x != "none":
                raise Bad(f"--hidden {x}: not embed, norm, none, or a layer below {n_layers}")
        return keep
    if args.full_hidden or values <= HIDDEN_MAX:
        return {"embed", "norm", *range(n_layers)}
    return {"embed", "norm", 0, n_layers // 2, n_layers - 1}


def run_case(model, k, ids, args):
    cfg = text_config(model.config)
    layers, _ = parts(model)
    hidden = hidden_list(args, len(layers), len(ids) * cfg.hidden_size * (len(layers) + 2))
    logits, got = forward(model, ids, hidden, args.taps)
    import torch
    t = {"ids": torch.tensor(ids, dtype=torch.int32)}
    t.update(got)
    if logits.numel() <= LOGITS_MAX:
        t["logits"] = logits
    else:
        t["logits.last"] = logits[-1].clone()
        t.pop("tap.logits", None)
    t["top.ids"], t["top.logprobs"] = top(logits)
    t["argmax"] = t["top.ids"][:, 0].clone()
    margin = (t["top.logprobs"][:, 0] - t["top.logprobs"][:, 1]).min().item() if logits.shape[-1] > 1 else float("inf")
    line = f"c{k}: {len(ids)} tokens, least margin {margin:.4g}"
    if args.greedy:
        t["greedy"], t["greedy.logits"] = greedy(model, ids, args.greedy)
        line += f", greedy {args.greedy} ({len(set(t['greedy'].tolist()))} distinct)"
    line += f", {sum(n.startswith('hidden.') for n in got)} hidden, {sum(n.startswith('tap.') for n in got)} taps"
    return {f"c{k}.{n}": v.contiguous() for n, v in t.items()}, line


def export(args):
    import torch
    import transformers
    from safetensors.torch import save_file
    torch.set_grad_enabled(False)
    if args.threads:
        torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    prompts = read_prompts(args.prompt_ids_json) if args.prompt_ids_json else []
    folder = resolve(args)
    files = weight_files(args, folder)
    model = load(args, folder, files)
    if args.prompt:
        from transformers import AutoTokenizer
        try:
            kw = {"gguf_file": os.path.basename(args.gguf)} if args.gguf else {}
            tok = AutoTokenizer.from_pretrained(folder, trust_remote_code=args.trust_remote_code, **kw)
            prompts += [tok(x)["input_ids"] for x in args.prompt]
        except Exception as e:
            raise Bad(f"{folder}: no usable tokenizer ({one_line(e)}); give token ids with --prompt-ids-json")
    check_ids(prompts, text_config(model.config), args.greedy)
    tensors = {}
    for k, ids in enumerate(prompts):
        t, line = run_case(model, k, ids, args)
        tensors.update(t)
        print(line, flush=True)
    meta = dict(trace_version=TRACE_VERSION, made_by="tools/export_oracle.py", model_type=text_config(model.config).model_type,
                transformers=transformers.__version__, torch=torch.__version__, dtype=args.dtype, attn_implementation="eager",
                experts_implementation="eager", lens=json.dumps([len(p) for p in prompts]),
                weights=json.dumps([os.path.basename(p) for p in files]),
                weights_sha256=sha256(files), **noise(model, prompts, args.dtype))
    os.makedirs(args.out, exist_ok=True)
    path = os.path.join(args.out, "oracle.safetensors")
    save_file(tensors, path + ".part", metadata=meta)
    os.replace(path + ".part", path)    # a reader never sees half a trace
    print(f"{path}: {len(prompts)} cases, {os.path.getsize(path)} bytes, noise {meta['cached_vs_full_max_dlogit']} / "
          f"{meta['float64_max_dlogit']}, weights {meta['weights_sha256'][:16]}")


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Bad(f"{message}; see --help")


def main(argv=None):
    ap = Parser(description="Write a trace of what Hugging Face transformers computes.")
    ap.add_argument("--model", help="a Hugging Face model folder, or the name of a model")
    ap.add_argument("--out", required=True, help="the folder for oracle.safetensors")
    ap.add_argument("--prompt-ids-json", metavar="FILE", help="token ids: a list, or a list of lists")
    ap.add_argument("--prompt", action="append", metavar="TEXT", help="a prompt as text (may be repeated)")
    ap.add_argument("--greedy", type=int, default=24, metavar="N", help="length of the arg-max run (default 24, 0: none)")
    ap.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    ap.add_argument("--hidden", metavar="LIST", help="which hidden states: embed, norm, none, layer numbers, comma-separated")
    ap.add_argument("--full-hidden", action="store_true", help="all hidden states, however large")
    ap.add_argument("--taps", action="store_true", help="record submodules' values as cK.tap.NAME")
    ap.add_argument("--gguf", metavar="FILE", help="dequantize this GGUF file instead of reading a folder's weights")
    ap.add_argument("--online", action="store_true", help="allow downloads")
    ap.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the model")
    ap.add_argument("--threads", type=int, default=0, metavar="N", help="torch threads (default: torch's)")
    try:
        args = ap.parse_args(argv)
        if bool(args.model) == bool(args.gguf):
            raise Bad("give either --model or --gguf")
        if not args.prompt_ids_json and not args.prompt:
            raise Bad("no prompts; give --prompt-ids-json FILE or --prompt TEXT")
        if args.greedy < 0 or args.threads < 0:
            raise Bad("--greedy and --threads can't be negative")
        if args.hidden and args.full_hidden:
            raise Bad("--hidden and --full-hidden exclude each other")
        if not args.online:
            os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
        try:
            import torch, transformers, safetensors  # noqa: F401
        except ImportError as e:
            print(f"export_oracle: {e}; install torch, transformers and safetensors", file=sys.stderr)
            return 3
        export(args)
    except Bad as e:
        print(f"export_oracle: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
