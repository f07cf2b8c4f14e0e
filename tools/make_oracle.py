#!/usr/bin/env python3
"""Tiny-but-real Hugging Face checkpoints with a float32 reference beside each.

usage: make_oracle.py --seed N --out DIR [--only fam,fam] [--list] [--no-probes]

For every family one folder is written:

  config.json             in the spelling the released checkpoints use (legacy rope_scaling /
                          torch_dtype, or transformers-5 rope_parameters / dtype: `style`)
  generation_config.json
  model.safetensors       (or two shards + model.safetensors.index.json), released tensor names
  oracle.safetensors      what transformers computes in float32 from exactly those weights

oracle.safetensors holds, per case K:
  cK.ids            I32[T]     prompt ids
  cK.hidden.embed   F32[T,H]   what enters decoder layer 0 (after embedding scaling / positions)
  cK.hidden.layer.i F32[T,H]   residual stream after decoder layer i (before the final norm)
  cK.hidden.norm    F32[T,H]   after the final norm
  cK.logits         F32[T,V]   after any scaling / softcap
  cK.greedy         I32[24]    generate(use_cache=True, do_sample=False), EOS never stops it
and everything else (versions, margins, noise floor, non-vacuity probes) in __metadata__.

The geometry (heads, layers, windows, lengths, vocab ...) is drawn from the seed, so two seeds
give two different model shapes per family as well as different weights.

A draw is accepted only when it is *decidable*: every argmax the reference makes (all prompt
positions and all greedy steps) wins by more than MARGIN, every top-k choice made inside the
model (MoE routing, DSA indexer) has a gap above GAP, and greedy text is not degenerate.
"""
import argparse, copy, glob, hashlib, json, math, os, random, re, shutil, sys, tempfile, time, zlib
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

torch.set_num_threads(1)          # tiny matrices: one thread is both faster and reproducible
torch.set_grad_enabled(False)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

EAGER = dict(attn_implementation="eager", experts_implementation="eager")
GREEDY = 24          # greedy tokens per case
MARGIN = 1e-3        # least accepted top1-top2 logit gap
GAP = 2e-5           # least accepted gap of an internal top-k selection
DIVERSE = 8          # least distinct tokens in each 24-token greedy text
TRIES = 40           # redraws before settling for the best one seen


# --------------------------------------------------------------------------------------------
# geometry: every choice is a function of (seed, family)
# --------------------------------------------------------------------------------------------
class Geo:
    def __init__(self, seed, family):
        self.seed = seed
        self.r = random.Random(zlib.crc32(f"{seed}/{family}".encode()))

    def pick(self, *options):
        return self.r.choice(options)

    def base(self, heads=((4, 2), (8, 2), (4, 1), (6, 2)), hidden=(64, 96, 80), hd=(16, 24, 32),
             layers=(4, 5, 6), vocab=(320, 323, 331), inter=(96, 112, 128)):
        """The fields nearly every decoder shares."""
        nh, nkv = self.pick(*heads)
        h = self.pick(*[x for x in hidden if x % nh == 0])
        return dict(vocab_size=self.pick(*vocab), hidden_size=h, num_hidden_layers=self.pick(*layers),
                    num_attention_heads=nh, num_key_value_heads=nkv, head_dim=self.pick(*hd),
                    intermediate_size=self.pick(*inter), max_position_embeddings=4096,
                    rms_norm_eps=self.pick(1e-5, 1e-6), initializer_range=0.02, use_cache=True,
                    attention_dropout=0.0, hidden_act="silu", bos_token_id=1, eos_token_id=2,
                    tie_word_embeddings=False)

    def window(self):
        return self.pick(16, 12, 20)

    def long(self, w=16):
        """A prompt length that is well past window `w`."""
        return 2 * w + self.pick(8, 5, 3)


def rope(cfg, style, theta, scaling=None, partial=None):
    """Write RoPE settings in the legacy or in the transformers-5 spelling."""
    if style == "v5":
        cfg["rope_parameters"] = {"rope_type": "default", "rope_theta": theta, **(scaling or {})}
        if partial is not None:
            cfg["rope_parameters"]["partial_rotary_factor"] = partial
    else:
        cfg["rope_theta"] = theta
        cfg["rope_scaling"] = scaling
        if partial is not None:
            cfg["partial_rotary_factor"] = partial
    return cfg


# --------------------------------------------------------------------------------------------
# non-vacuity probes: each one edits the config or the weights; the logits must then differ
# --------------------------------------------------------------------------------------------
def cfgp(**edits):
    """Probe: the same weights under an edited config."""
    def f(cfg):
        for k, v in edits.items():
            setattr(cfg, k, v)
    return ("cfg", f)


def ropep(edit):
    """Probe: edit config.rope_parameters (the loaded, standardised dict) in place."""
    return ("cfg", lambda cfg: edit(cfg.rope_parameters))


def wp(pattern, fn):
    """Probe: apply fn in place to every parameter/buffer whose name matches."""
    def f(model):
        n = 0
        for name, t in list(model.named_parameters()) + list(model.named_buffers()):
            if re.search(pattern, name):
                fn(t)
                n += 1
        assert n, pattern
    return ("w", f)


zero = lambda t: t.zero_()
one = lambda t: t.fill_(1.0)
const = lambda c: (lambda t: t.fill_(c))


class Spec:
    def __init__(self, cfg, lens, style="legacy", zero_centered=r"(?!)", gains=None, dtype="bfloat16",
                 f32=r"e_score_correction_bias", shards=1, probes=None, gen=None, real="", mxfp4=False,
                 embed_std=None, notes=None, rename=None, wrap=None, fuse=False):
        self.cfg, self.lens, self.style = cfg, lens, style
        self.zero_centered = zero_centered    # regex: norms that compute x*(1+w)
        self.gains = gains or {}              # regex -> gain, first match wins
        self.dtype, self.f32, self.shards = dtype, f32, shards
        self.probes, self.gen = probes or {}, gen or {}
        self.real, self.mxfp4 = real, mxfp4
        # a tied head echoes the input token unless the layers outweigh the embedding
        self.embed_std = embed_std or (0.3 if cfg.get("tie_word_embeddings", cfg["model_type"] == "gpt2") else 1.0)
        self.notes = notes or []
        self.rename, self.wrap, self.fuse = rename, wrap, fuse


FAMILIES = {}


def family(fn):
    FAMILIES[fn.__name__] = fn
    return fn


# ---- dense ----------------------------------------------------------------------------------
@family
def llama(g):
    c = g.base(); c.update(model_type="llama", architectures=["LlamaForCausalLM"], tie_word_embeddings=True,
                           attention_bias=False, mlp_bias=False)
    return Spec(rope(c, "legacy", 10000.0), [1, 9, g.pick(40, 37)], real="TinyLlama / SmolLM2 shape",
                probes={"rope_theta": ropep(lambda r: r.update(rope_theta=500.0)),
                        "norm_weights": wp(r"layernorm", one)})


@family
def llama3(g):
    st = "legacy" if g.seed % 2 == 1 and g.seed < 100 else "v5"
    c = g.base(hd=(16, 32)); c.update(model_type="llama", architectures=["LlamaForCausalLM"], eos_token_id=[2, 3, 5],
                                      attention_bias=False, mlp_bias=False)
    s = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
             original_max_position_embeddings=g.pick(64, 48))
    return Spec(rope(c, st, 10000.0, s), [1, 9, g.pick(72, 66)], style=st, shards=2, real="meta-llama/Llama-3.1-8B",
                gen=dict(eos_token_id=[2, 3, 5], do_sample=True, temperature=0.6, top_p=0.9),
                probes={"llama3_scaling": ropep(lambda r: (r.clear(), r.update(rope_type="default", rope_theta=10000.0)))})


@family
def mistral(g):
    w = g.window(); c = g.base(); c.update(model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=w)
    return Spec(rope(c, "legacy", 10000.0), [1, 9, g.long(w)], real="mistralai/Mistral-7B-v0.1",
                probes={"sliding_window": cfgp(sliding_window=None), "window+1": cfgp(sliding_window=w + 1)})


@family
def qwen2(g):
    c = g.base(heads=((4, 2), (8, 4), (4, 1))); c.pop("head_dim")
    c.update(model_type="qwen2", architectures=["Qwen2ForCausalLM"], tie_word_embeddings=True,
             use_sliding_window=False, sliding_window=32768, max_window_layers=21)
    return Spec(rope(c, "legacy", 1000000.0), [1, 9, g.pick(40, 35)], real="Qwen/Qwen2.5-0.5B",
                probes={"qkv_bias": wp(r"[qkv]_proj.bias", zero)})


QKN = {r"[qk]_norm": 1.6}                # with QK-norm only these weights can sharpen the attention


@family
def qwen3(g):
    c = g.base(); c.update(model_type="qwen3", architectures=["Qwen3ForCausalLM"], tie_word_embeddings=True,
                           attention_bias=False, use_sliding_window=False, sliding_window=None, max_window_layers=28)
    return Spec(rope(c, "legacy", 1000000.0), [1, 9, g.pick(40, 35)], real="Qwen/Qwen3-0.6B", gains=QKN,
                probes={"qk_norm_weights": wp(r"[qk]_norm", one)})


@family
def smollm3(g):
    c = g.base(heads=((4, 2), (8, 2), (4, 1)), layers=(5, 6)); c.pop("head_dim")
    L = c["num_hidden_layers"]; k = g.pick(2, 3)
    nope = [int((i + 1) % k != 0) for i in range(L)]          # 1 = RoPE, 0 = NoPE (as the hub spells it)
    c.update(model_type="smollm3", pad_token_id=0, architectures=["SmolLM3ForCausalLM"], tie_word_embeddings=True, attention_bias=False,
             mlp_bias=False, no_rope_layers=nope, no_rope_layer_interval=k, use_sliding_window=False, sliding_window=None)
    return Spec(rope(c, "legacy", 5000000.0), [1, 9, g.pick(40, 35)], real="HuggingFaceTB/SmolLM3-3B",
                notes=[f"no_rope_layers={nope} (1 = apply RoPE, 0 = skip)"],
                probes={"nope_layers": cfgp(no_rope_layers=[1] * L)})


@family
def granite(g):
    c = g.base(heads=((4, 2), (8, 2), (4, 1))); c.pop("head_dim")
    c.update(model_type="granite", architectures=["GraniteForCausalLM"], tie_word_embeddings=True, attention_bias=False,
             mlp_bias=False, embedding_multiplier=g.pick(3.0, 4.0), residual_multiplier=g.pick(0.5, 0.7),
             attention_multiplier=g.pick(0.09, 0.4), logits_scaling=g.pick(1.5, 0.5))
    return Spec(rope(c, "legacy", 10000.0), [1, 9, g.pick(40, 35)], real="ibm-granite/granite-3.3-2b",
                gains={r"[qk]_proj.weight": 2.2, r"(o|down)_proj": 4.0},
                probes={k: cfgp(**{k: 1.0}) for k in
                        ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")})


@family
def olmo2(g):
    c = g.base(heads=((4, 4), (4, 2), (8, 2))); c.pop("head_dim")
    c.update(model_type="olmo2", architectures=["Olmo2ForCausalLM"], attention_bias=False)
    return Spec(rope(c, "legacy", 500000.0), [1, 9, g.pick(40, 35)], real="allenai/OLMo-2-1124-7B",
                notes=["norms sit after attention / MLP only; q_norm and k_norm span the whole projection, before the head split"],
                probes={"qk_norm_weights": wp(r"[qk]_norm", one), "post_norm_weights": wp(r"post_.*norm", one)})


@family
def cohere2(g):
    w = g.window(); c = g.base(heads=((4, 2), (8, 2))); c.pop("head_dim"); c.pop("rms_norm_eps")
    c.update(model_type="cohere2", architectures=["Cohere2ForCausalLM"], tie_word_embeddings=True, layer_norm_eps=1e-5,
             logit_scale=1.5, sliding_window=w, sliding_window_pattern=4, num_hidden_layers=g.pick(5, 8), pad_token_id=0,
             attention_bias=False, order_of_interleaved_layers="local_attn_first", rotary_pct=1.0, position_embedding_type="rope_gptj")
    return Spec(rope(c, "legacy", 50000.0), [1, 9, g.long(w)], real="CohereForAI/c4ai-command-r7b-12-2024",
                notes=["parallel attention+MLP from one bias-free LayerNorm; rotary pairs are interleaved (2i,2i+1); full-attention layers use NO rope"],
                probes={"sliding_window": cfgp(sliding_window=4096), "logit_scale": cfgp(logit_scale=1.0)})


@family
def gpt2(g):
    h = g.pick(64, 96); released = g.seed >= 100          # the released file has no `transformer.` prefix
    c = dict(model_type="gpt2", architectures=["GPT2LMHeadModel"], vocab_size=g.pick(320, 323), n_embd=h, n_layer=g.pick(4, 5),
             n_head=g.pick(4, 8), n_positions=128, n_ctx=128, n_inner=None, activation_function="gelu_new",
             layer_norm_epsilon=1e-5, bos_token_id=0, eos_token_id=0, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
             initializer_range=0.02, scale_attn_weights=True)
    return Spec(c, [1, 9, g.pick(40, 35)], real="openai-community/gpt2", dtype="float32", gains={r"c_attn.weight": 1.5, r"wpe": 0.7, r"c_proj.weight": 2.5, r"bias": 0.2},
                rename=(lambda n: n.removeprefix("transformer.")) if released else None,
                notes=["F32 weights; Conv1D weights are stored [in,out]; hidden.embed includes wpe",
                       "names " + ("without" if released else "with") + " the `transformer.` prefix"],
                probes={"positions": wp(r"wpe", zero), "biases": wp(r"h\.\d+\..*bias", zero)})


@family
def starcoder2(g):
    w = g.window(); c = g.base(heads=((4, 2), (8, 2), (4, 1))); c.pop("head_dim"); c.pop("rms_norm_eps")
    c.update(model_type="starcoder2", architectures=["Starcoder2ForCausalLM"], tie_word_embeddings=True, use_bias=True,
             norm_epsilon=1e-5, hidden_act="gelu_pytorch_tanh", sliding_window=w, residual_dropout=0.0, embedding_dropout=0.0,
             mlp_type="default", norm_type="layer_norm")
    return Spec(rope(c, "legacy", 100000.0), [1, 9, g.long(w)], real="bigcode/starcoder2-3b", dtype="float16", gains={r"bias": 0.2, r"c_proj.weight|o_proj": 2.5},
                notes=["F16 weights"], probes={"sliding_window": cfgp(sliding_window=None), "norm_bias": wp(r"norm.bias", zero)})


@family
def phi3(g):
    nh, nkv = g.pick((4, 2), (4, 4), (8, 2)); h = g.pick(128, 96) if nh == 4 else 128
    om = g.pick(24, 20); pf = g.pick(0.75, 0.5); hd = h // nh; n = int(hd * pf) // 2
    c = g.base(); c.pop("head_dim")
    c.update(model_type="phi3", architectures=["Phi3ForCausalLM"], hidden_size=h, num_attention_heads=nh, num_key_value_heads=nkv,
             num_hidden_layers=4, max_position_embeddings=4096, original_max_position_embeddings=om, sliding_window=None,
             pad_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, tie_word_embeddings=True, attention_bias=False)
    s = dict(type="longrope", short_factor=[round(1.0 + 0.05 * i, 4) for i in range(n)],
             long_factor=[round(1.2 + 0.9 * i, 4) for i in range(n)])
    rope(c, "legacy", 10000.0, s, pf)
    return Spec(c, [1, 9, om, om + 16, om - 8], real="microsoft/Phi-4-mini-instruct",
                notes=[f"original_max_position_embeddings={om}: c2 has exactly that length (short factors), c3 is past it (long factors); "
                       "c4's greedy run crosses the boundary (HF then drops the cache and re-computes everything with long factors)",
                       "qkv_proj and gate_up_proj are fused tensors; attention factor sqrt(1+ln(max/orig)/ln(orig)) scales cos and sin"],
                probes={"long_vs_short": ropep(lambda r: r.update(long_factor=r["short_factor"])),
                        "short_factor": ropep(lambda r: r.update(short_factor=[1.0] * n)),
                        "attention_factor": ropep(lambda r: r.update(attention_factor=1.0))})


# ---- gemma ----------------------------------------------------------------------------------
ZC = r"norm\.weight"                     # every norm is x*(1+w)
# centre of the post-norms and of the final norm: the layers must outweigh the (tied, scaled) embedding
POST = {r"post_(attention|feedforward)_layernorm": 1.0, r"model\.norm\.weight": 2.0}
POST4 = {r"post_(attention|feedforward)_layernorm": 2.0, r"model\.norm\.weight": 3.0}


@family
def gemma2(g):
    w = g.window(); c = g.base(heads=((4, 2), (8, 4), (4, 1))); c.pop("hidden_act")
    c.update(model_type="gemma2", architectures=["Gemma2ForCausalLM"], tie_word_embeddings=True, hidden_activation="gelu_pytorch_tanh",
             hidden_act="gelu_pytorch_tanh", query_pre_attn_scalar=g.pick(8, 12), sliding_window=w, attn_logit_softcapping=4.0,
             final_logit_softcapping=4.0, attention_bias=False, pad_token_id=0, bos_token_id=2, eos_token_id=1, cache_implementation="hybrid")
    return Spec(rope(c, "legacy", 10000.0), [1, 9, g.long(w)], zero_centered=ZC, embed_std=0.1, real="google/gemma-2-2b",
                gains={r"[qk]_proj": 2.0, **POST},
                probes={"sliding_window": cfgp(sliding_window=4096), "attn_softcap": cfgp(attn_logit_softcapping=None),
                        "final_softcap": cfgp(final_logit_softcapping=None), "query_pre_attn_scalar": cfgp(query_pre_attn_scalar=64)})


@family
def gemma3(g):
    w = g.window(); L = g.pick(7, 8); c = g.base(heads=((4, 2), (4, 1), (8, 4)), inter=(96,)); c.pop("hidden_act")
    c.update(model_type="gemma3_text", architectures=["Gemma3ForCausalLM"], num_hidden_layers=L, tie_word_embeddings=True,
             hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=g.pick(16, 20), sliding_window=w, attn_logit_softcapping=None,
             final_logit_softcapping=None, attention_bias=False, pad_token_id=0, bos_token_id=2, eos_token_id=1, sliding_window_pattern=6,
             rope_theta=1000000.0, rope_local_base_freq=10000.0, rope_scaling=dict(factor=8.0, rope_type="linear"))
    # seeds above 100 use the 4B+ packaging: nested text_config and `language_model.model.` names
    wrap = None
    if g.seed >= 100:
        wrap = dict(model_type="gemma3", architectures=["Gemma3ForConditionalGeneration"], prefix="language_model.", eos_token_id=[1, 106])
    return Spec(c, [1, 9, g.long(w)], zero_centered=ZC, embed_std=0.1, wrap=wrap, gains=POST,
                real="google/gemma-3-4b-it text tower (5 local : 1 global, linear factor 8 on global only)",
                probes={"sliding_window": cfgp(sliding_window=4096), "qk_norm_weights": wp(r"[qk]_norm", zero),
                        "linear_scaling_on_global": ropep(lambda r: r["full_attention"].update(rope_type="default")),
                        "local_rope_base": ropep(lambda r: r["sliding_attention"].update(rope_theta=1e6)),
                        "query_pre_attn_scalar": cfgp(query_pre_attn_scalar=64)})


def gemma4_base(g, L, w, **kw):
    c = g.base(heads=((4, 2), (8, 4)), hd=(16, 24), inter=(96,), hidden=(64, 96)); c.pop("hidden_act")
    types = ["full_attention" if (i + 1) % 6 == 0 or i == L - 1 else "sliding_attention" for i in range(L)]
    c.update(num_hidden_layers=L, tie_word_embeddings=True, hidden_activation="gelu_pytorch_tanh",
             sliding_window=w, layer_types=types, final_logit_softcapping=4.0, attention_bias=False, pad_token_id=0, bos_token_id=2,
             eos_token_id=1, global_head_dim=32, num_kv_shared_layers=0, use_double_wide_mlp=False, attention_k_eq_v=False,
             num_global_key_value_heads=None, dtype="bfloat16", rope_parameters={
                 "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                 "full_attention": {"rope_type": "proportional", "partial_rotary_factor": g.pick(0.25, 0.5), "rope_theta": 2000.0}})
    c.update(kw)
    return c


G4N = ["norms multiply by w directly (NOT 1+w); attention scale is 1.0; v_norm is a weightless RMSNorm; each layer output is multiplied by layer_scalar",
       "global layers: head_dim=global_head_dim, 'proportional' RoPE = rotate the first partial*hd/2 of the hd/2 half-split pairs with exponents over the WHOLE hd"]
G4G = {r"[qk]_norm": 0.8, r"per_layer_model_projection": 1.0, **POST4}


@family
def gemma4(g):
    """12B / 31B style: k_eq_v on global layers, no per-layer embeddings."""
    w = g.window(); L = g.pick(7, 8)
    c = gemma4_base(g, L, w, model_type="gemma4_text", architectures=["Gemma4ForCausalLM"], attention_k_eq_v=True,
                    num_global_key_value_heads=g.pick(1, 2), hidden_size_per_layer_input=0, enable_moe_block=False)
    wrap = None
    if g.seed >= 100:
        wrap = dict(model_type="gemma4", architectures=["Gemma4ForConditionalGeneration"], prefix="model.language_model.", eos_token_id=[1, 106])
    return Spec(c, [1, 9, g.long(w)], style="v5", embed_std=0.1, gains=G4G, notes=G4N, wrap=wrap, real="google/gemma-4-31B-it text tower",
                probes={"sliding_window": cfgp(sliding_window=4096), "qk_norm_weights": wp(r"[qk]_norm", one), "layer_scalar": wp(r"layer_scalar", one),
                        "final_softcap": cfgp(final_logit_softcapping=None),
                        "proportional_rope": ropep(lambda r: r["full_attention"].update(partial_rotary_factor=1.0))})


@family
def gemma4_unified(g):
    """The same text tower under its own model_type (12B)."""
    w = g.window(); L = g.pick(6, 7)
    c = gemma4_base(g, L, w, model_type="gemma4_unified_text", architectures=["Gemma4UnifiedForCausalLM"], attention_k_eq_v=True,
                    num_global_key_value_heads=1, use_bidirectional_attention="vision")
    return Spec(c, [1, 9, g.long(w)], style="v5", embed_std=0.1, gains=G4G, notes=G4N, real="google/gemma-4-12B-it text tower",
                probes={"sliding_window": cfgp(sliding_window=4096), "layer_scalar": wp(r"layer_scalar", one)})


@family
def gemma4_e2b(g):
    """E2B / E4B style: per-layer embeddings, shared KV layers, double-wide MLP in the shared ones."""
    w = g.window(); L = g.pick(7, 8); types = ["full_attention" if i % 3 == 2 or i == L - 1 else "sliding_attention" for i in range(L)]
    c = gemma4_base(g, L, w, model_type="gemma4_text", architectures=["Gemma4ForCausalLM"], hidden_size_per_layer_input=16,
                    num_kv_shared_layers=g.pick(3, 4), use_double_wide_mlp=True, layer_types=types, enable_moe_block=False)
    c["vocab_size_per_layer_input"] = c["vocab_size"]
    return Spec(c, [1, 9, g.long(w)], style="v5", embed_std=0.1, gains=G4G, notes=G4N, real="google/gemma-4-E2B-it text tower",
                probes={"sliding_window": cfgp(sliding_window=4096), "per_layer_embeddings": wp(r"embed_tokens_per_layer.weight", zero),
                        "per_layer_context": wp(r"per_layer_model_projection", zero)})


@family
def gemma4_moe(g):
    """26B-A4B style: dense MLP and MoE block in parallel in every layer."""
    w = g.window(); L = g.pick(4, 5)
    c = gemma4_base(g, L, w, model_type="gemma4_text", architectures=["Gemma4ForCausalLM"], attention_k_eq_v=True,
                    num_global_key_value_heads=1, hidden_size_per_layer_input=0, enable_moe_block=True, num_experts=g.pick(8, 12),
                    top_k_experts=g.pick(2, 3), moe_intermediate_size=32)
    return Spec(c, [1, 9, g.long(w)], style="v5", embed_std=0.1, gains={r"router.proj": 16.0, **G4G}, notes=G4N, real="google/gemma-4-26B-A4B-it text tower",
                probes={"top_k": cfgp(top_k_experts=1), "per_expert_scale": wp(r"per_expert_scale", one), "router_scale": wp(r"router.scale", one)})


@family
def gemma3n(g):
    w = g.window(); L = g.pick(8, 9); c = g.base(heads=((4, 2), (4, 1)), hd=(16,), inter=(64,), hidden=(64,)); c.pop("hidden_act")
    types = ["full_attention" if i % 3 == 2 else "sliding_attention" for i in range(L)]
    c.update(model_type="gemma3n_text", architectures=["Gemma3nForCausalLM"], num_hidden_layers=L, tie_word_embeddings=True,
             hidden_activation="gelu_pytorch_tanh", intermediate_size=[64] * L, layer_types=types, sliding_window=w, final_logit_softcapping=4.0,
             vocab_size_per_layer_input=c["vocab_size"] - 16, hidden_size_per_layer_input=16, altup_active_idx=0, altup_coef_clip=120.0,
             altup_correct_scale=True, altup_num_inputs=g.pick(4, 3), num_kv_shared_layers=3, laurel_rank=8, attention_bias=False, pad_token_id=0,
             activation_sparsity_pattern=[0.95 if i < 3 else 0.0 for i in range(L)], bos_token_id=2, eos_token_id=1,
             rope_theta=1000000.0, rope_local_base_freq=10000.0, rope_scaling=None)
    return Spec(c, [1, 9, g.long(w)], embed_std=0.1, real="google/gemma-3n-E2B text tower", gains={r"altup.*(coefs|router)": 0.5, **POST4},
                notes=["hidden.embed / hidden.layer.i are the AltUp stack flattened to [T, altup_num_inputs*H]"],
                probes={"sliding_window": cfgp(sliding_window=4096), "sparsity": cfgp(activation_sparsity_pattern=[0.0] * L),
                        "laurel": wp(r"laurel.linear_right", zero)})


# ---- mixture of experts ---------------------------------------------------------------------
MOE = {r"experts\..*(down_proj)": 3.0, r"(router|gate)\.weight": 2.0}


@family
def mixtral(g):
    c = g.base(heads=((4, 2), (8, 2)), hidden=(64,), inter=(48, 64), layers=(4,)); c.pop("head_dim")
    c.update(model_type="mixtral", architectures=["MixtralForCausalLM"], num_local_experts=g.pick(8, 6), num_experts_per_tok=2,
             sliding_window=None, router_aux_loss_coef=0.02, output_router_logits=False, router_jitter_noise=0.0)
    return Spec(rope(c, "legacy", 1000000.0), [1, 9, g.pick(40, 33)], gains=MOE, shards=2, real="mistralai/Mixtral-8x7B-v0.1",
                probes={"top_k": cfgp(num_experts_per_tok=1)})


@family
def qwen3_moe(g):
    L = g.pick(5, 6); c = g.base(heads=((4, 2), (8, 2)), hidden=(64,), layers=(L,))
    c.update(model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], num_experts=g.pick(8, 12), num_experts_per_tok=g.pick(2, 3),
             moe_intermediate_size=32, decoder_sparse_step=2, mlp_only_layers=[3], norm_topk_prob=True, attention_bias=False,
             use_sliding_window=False, sliding_window=None, max_window_layers=L, router_aux_loss_coef=0.001, output_router_logits=False)
    sparse = [i for i in range(L) if i != 3 and (i + 1) % 2 == 0]
    return Spec(rope(c, "legacy", 1000000.0), [1, 9, g.pick(40, 35)], gains={**QKN, **MOE}, real="Qwen/Qwen3-30B-A3B (hybrid layout)",
                notes=[f"sparse layers {sparse}, all others dense (decoder_sparse_step=2, mlp_only_layers=[3])"],
                probes={"norm_topk_prob": cfgp(norm_topk_prob=False), "qk_norm_weights": wp(r"[qk]_norm", one), "top_k": cfgp(num_experts_per_tok=1)})


@family
def gpt_oss(g):
    w = g.window(); om = g.pick(64, 128); c = g.base(heads=((4, 2), (8, 2)), hidden=(64, 96), hd=(16, 32), inter=(64, 96), layers=(4,))
    c.update(model_type="gpt_oss", architectures=["GptOssForCausalLM"], num_local_experts=g.pick(8, 6), num_experts_per_tok=g.pick(2, 3),
             experts_per_token=2, sliding_window=w, layer_types=["sliding_attention", "full_attention"] * 2, attention_bias=True, swiglu_limit=1.5,
             initial_context_length=om, pad_token_id=0, router_aux_loss_coef=0.9, output_router_logits=False, rms_norm_eps=1e-5,
             max_position_embeddings=32 * om, quantization_config=dict(
                 quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]))
    c["experts_per_token"] = c["num_experts_per_tok"]
    s = dict(rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False, original_max_position_embeddings=om)
    return Spec(rope(c, "legacy", 150000.0, s), [1, 9, g.long(w)], mxfp4=True, real="openai/gpt-oss-20b",
                gains={r"router\.weight": 2.0, r"experts.down_proj$": 3.0, r"experts.gate_up_proj$": 2.0, r"bias": 0.3},
                notes=["gate/up are interleaved rows (even = gate, odd = up); gate is clamped above, up on both sides at swiglu_limit; out=(up+1)*gate*sigmoid(1.702*gate)",
                       "MXFP4: blocks U8 [E,rows,cols/32,16], low nibble first; scales U8 E8M0 bias 127", "swiglu_limit is 1.5 here (7.0 released) so that the clamp bites"],
                probes={"sliding_window": cfgp(sliding_window=4096), "sinks": wp(r"sinks", const(-1e9)), "swiglu_limit": cfgp(swiglu_limit=7.0),
                        "expert_bias": wp(r"experts.*_bias", zero), "yarn": ropep(lambda r: (r.clear(), r.update(rope_type="default", rope_theta=150000.0))),
                        "yarn_truncate": ropep(lambda r: r.update(truncate=True)), "yarn_attention_factor": ropep(lambda r: r.update(attention_factor=1.0))})


def mla(g, mt, arch, **kw):
    c = g.base(heads=((4, 4), (8, 8)), hidden=(64,), layers=(4, 5), inter=(96, 112)); c.pop("head_dim")
    c.update(model_type=mt, architectures=[arch], q_lora_rank=g.pick(48, 40), kv_lora_rank=g.pick(32, 24), qk_nope_head_dim=g.pick(16, 24),
             qk_rope_head_dim=g.pick(8, 16), v_head_dim=g.pick(16, 20), moe_intermediate_size=32, n_routed_experts=8, n_shared_experts=1,
             num_experts_per_tok=2, attention_bias=False, max_position_embeddings=512, moe_layer_freq=1, ep_size=1, pretraining_tp=1,
             rms_norm_eps=1e-3)
    c.update(kw)
    return c


MLA_G = {r"(q|q_b|kv_b)_proj.weight": 1.5, r"kv_a_proj_with_mqa": 1.5, **MOE}
MLA_N = ["rotary pairs of q_pe/k_pe are interleaved (2i,2i+1); q_a_layernorm and kv_a_layernorm use eps 1e-6 whatever rms_norm_eps says (rms_norm_eps is 1e-3 here so that this shows)"]
YARN = lambda g: dict(type="yarn", factor=g.pick(4.0, 8.0), beta_fast=32, beta_slow=1, mscale=0.8, mscale_all_dim=0.5, original_max_position_embeddings=64)


@family
def deepseek_v2(g):
    c = mla(g, "deepseek_v2", "DeepseekV2ForCausalLM", topk_method="group_limited_greedy", n_group=4, topk_group=2, n_routed_experts=g.pick(12, 16),
            n_shared_experts=2, num_experts_per_tok=3, routed_scaling_factor=g.pick(4.0, 2.5), norm_topk_prob=False, scoring_func="softmax",
            first_k_dense_replace=1, aux_loss_alpha=0.001, seq_aux=True)
    return Spec(rope(c, "legacy", 10000.0, YARN(g)), [1, 9, g.pick(40, 37)], gains=MLA_G, notes=MLA_N, real="deepseek-ai/DeepSeek-V2",
                probes={"group_limit": cfgp(topk_method="greedy"), "routed_scaling": cfgp(routed_scaling_factor=1.0),
                        "yarn": ropep(lambda r: (r.clear(), r.update(rope_type="default", rope_theta=10000.0))),
                        "mscale": ropep(lambda r: r.update(mscale=1.0, mscale_all_dim=1.0))})


@family
def deepseek_v2_lite(g):
    c = mla(g, "deepseek_v2", "DeepseekV2ForCausalLM", q_lora_rank=None, topk_method="greedy", n_group=1, topk_group=1, n_routed_experts=g.pick(8, 12),
            n_shared_experts=2, num_experts_per_tok=g.pick(3, 2), routed_scaling_factor=1.0, norm_topk_prob=False, scoring_func="softmax",
            first_k_dense_replace=1)
    s = dict(YARN(g), mscale=0.707, mscale_all_dim=0.707)
    return Spec(rope(c, "legacy", 10000.0, s), [1, 9, g.pick(40, 37)], gains=MLA_G, notes=MLA_N, real="deepseek-ai/DeepSeek-V2-Lite",
                probes={"top_k": cfgp(num_experts_per_tok=1), "mscale": ropep(lambda r: r.update(mscale=1.0, mscale_all_dim=0.0))})


@family
def deepseek_v3(g):
    c = mla(g, "deepseek_v3", "DeepseekV3ForCausalLM", topk_method="noaux_tc", n_group=4, topk_group=2, n_routed_experts=g.pick(16, 12),
            num_experts_per_tok=g.pick(3, 4), routed_scaling_factor=2.5, norm_topk_prob=True, scoring_func="sigmoid", first_k_dense_replace=g.pick(1, 2),
            num_nextn_predict_layers=0)
    return Spec(rope(c, "legacy", 10000.0, dict(YARN(g), mscale=1.0, mscale_all_dim=1.0)), [1, 9, g.pick(40, 37)], gains=MLA_G, notes=MLA_N, shards=2,
                real="deepseek-ai/DeepSeek-V3",
                probes={"e_score_correction_bias": wp(r"e_score", zero), "group_limit": cfgp(n_group=1, topk_group=1),
                        "norm_topk_prob": cfgp(norm_topk_prob=False), "mscale_all_dim": ropep(lambda r: r.update(mscale_all_dim=0.0))})


def dsa(g, mt, arch, **kw):
    return mla(g, mt, arch, index_topk=g.pick(12, 16), index_n_heads=8, index_head_dim=g.pick(24, 32), n_routed_experts=8, num_experts_per_tok=2,
               norm_topk_prob=True, routed_scaling_factor=2.5, scoring_func="sigmoid", topk_method="noaux_tc", num_nextn_predict_layers=0, **kw)


DSA_G = {r"indexer.w": 1.5, **MLA_G}


@family
def deepseek_v32(g):
    c = dsa(g, "deepseek_v32", "DeepseekV32ForCausalLM", n_group=2, topk_group=1, first_k_dense_replace=1)
    return Spec(rope(c, "legacy", 10000.0, dict(YARN(g), mscale=1.0, mscale_all_dim=1.0)), [1, 9, g.pick(40, 37)], gains=DSA_G, real="deepseek-ai/DeepSeek-V3.2-Exp",
                notes=MLA_N + ["the indexer's RoPE is half-split while the main MLA RoPE is interleaved; indexer k_norm is a LayerNorm with bias, eps 1e-6"],
                probes={"index_topk": cfgp(index_topk=4096), "indexer_k_norm": wp(r"indexer.k_norm.bias", zero)})


@family
def glm_moe_dsa(g):
    c = dsa(g, "glm_moe_dsa", "GlmMoeDsaForCausalLM", n_group=1, topk_group=1, first_k_dense_replace=2)
    L = c["num_hidden_layers"]; shared = g.seed >= 100
    c["mlp_layer_types"] = ["dense"] * 2 + ["sparse"] * (L - 2)
    if shared:                                 # GLM-5.2 style: some layers reuse the previous layer's selection
        c["indexer_types"] = ["full", "shared", "full"] + ["shared"] * (L - 3)
    c["rope_parameters"] = {"rope_type": "default", "rope_theta": 1000000.0}
    c["rope_interleave"] = True
    return Spec(c, [1, 9, g.pick(40, 37)], style="v5", gains=DSA_G, real="zai-org/GLM-5",
                notes=MLA_N + ["the indexer's RoPE is interleaved like the main one"] + (["indexer_types has 'shared' layers, which carry no indexer weights"] if shared else []),
                probes={"index_topk": cfgp(index_topk=4096), "e_score_correction_bias": wp(r"e_score", zero)})


@family
def glm4_moe(g):
    c = g.base(heads=((4, 2), (8, 2)), hidden=(64,), layers=(4, 5))
    c.update(model_type="glm4_moe", architectures=["Glm4MoeForCausalLM"], moe_intermediate_size=32, n_routed_experts=g.pick(8, 12), n_shared_experts=1,
             num_experts_per_tok=g.pick(2, 3), n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5, first_k_dense_replace=1,
             use_qk_norm=True, attention_bias=True, num_nextn_predict_layers=0)
    return Spec(rope(c, "legacy", 1000000.0, None, 0.5), [1, 9, g.pick(40, 37)], gains={**QKN, **MOE}, real="zai-org/GLM-4.6",
                notes=["rotary covers the first half of head_dim (partial_rotary_factor 0.5), half-split inside that part"],
                probes={"qk_norm_weights": wp(r"[qk]_norm", one), "e_score_correction_bias": wp(r"e_score", zero)})


# ---- hybrid linear attention ----------------------------------------------------------------
ZCQ = r"(layernorm|model\.norm|[qk]_norm)\.weight"         # x*(1+w); linear_attn.norm is plain x*w


def gdn(g, mt, arch, **kw):
    L = g.pick(4, 5, 8); c = g.base(heads=((4, 2), (4, 1)), hidden=(64,), hd=(32,), layers=(L,))
    c.update(model_type=mt, architectures=[arch], linear_conv_kernel_dim=4, linear_key_head_dim=16, linear_value_head_dim=g.pick(16, 24),
             linear_num_key_heads=2, linear_num_value_heads=g.pick(4, 6), attention_bias=False)
    c.update(kw)
    return c


GDN_G = {r"[qk]_norm": 0.6, r"linear_attn.out_proj": 2.0, r"linear_attn.in_proj_(ba|a|b)": 1.5, r"shared_expert_gate": 2.0, **MOE}
GDN_P = {"A_log": wp(r"A_log", zero), "dt_bias": wp(r"dt_bias", zero), "conv": wp(r"conv1d", const(0.5)), "partial_rotary": ropep(lambda r: r.update(partial_rotary_factor=0.5)), "rope_theta": ropep(lambda r: r.update(rope_theta=100.0)), "qk_norm_weights": wp(r"[qk]_norm", zero)}
GDN_N = ["all RMSNorms are x*(1+w) except linear_attn.norm (plain w, eps rms_norm_eps, then *silu(z)); q_proj of a full layer holds [q|gate] interleaved per head; out = attn*sigmoid(gate)",
         "q and k are L2-normalised (x*rsqrt(sum x^2 + 1e-6)) and q is scaled by 1/sqrt(dk); chunk size is 64, c2/c3 lie past it"]


@family
def qwen3_next(g):
    c = gdn(g, "qwen3_next", "Qwen3NextForCausalLM", num_experts=8, num_experts_per_tok=g.pick(2, 3), moe_intermediate_size=32, decoder_sparse_step=1,
            shared_expert_intermediate_size=32, norm_topk_prob=True, mlp_only_layers=[], full_attention_interval=4, output_router_logits=False,
            router_aux_loss_coef=0.001, use_sliding_window=False)
    return Spec(rope(c, "legacy", 10000.0, None, 0.25), [1, 9, g.pick(70, 67), 64], zero_centered=ZCQ, gains=GDN_G, real="Qwen/Qwen3-Next-80B-A3B-Instruct",
                notes=GDN_N + ["in_proj_qkvz and in_proj_ba are grouped per key head: [q(dk) k(dk) v(r*dv) z(r*dv)] and [b(r) a(r)]"], probes=GDN_P)


def q35(c, g):
    c["layer_types"] = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(c["num_hidden_layers"])]
    c.update(full_attention_interval=4, attn_output_gate=True, mamba_ssm_dtype="float32", dtype="bfloat16",
             rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25, mrope_interleaved=True, mrope_section=[2, 1, 1]))
    return c


@family
def qwen3_5(g):
    c = q35(gdn(g, "qwen3_5_text", "Qwen3_5ForCausalLM", tie_word_embeddings=g.pick(True, False)), g)
    wrap = None
    if g.seed >= 100:
        wrap = dict(model_type="qwen3_5", architectures=["Qwen3_5ForConditionalGeneration"], prefix="model.language_model.", eos_token_id=2)
    return Spec(c, [1, 9, g.pick(70, 67), 64], style="v5", zero_centered=ZCQ, gains=GDN_G, f32=r"A_log|linear_attn.norm", wrap=wrap, real="Qwen/Qwen3.5-4B text tower",
                notes=GDN_N + ["in_proj_qkv / in_proj_z / in_proj_b / in_proj_a are separate, head-major; A_log and linear_attn.norm are F32"], probes=GDN_P)


@family
def qwen3_5_moe(g):
    c = q35(gdn(g, "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", num_experts=8, num_experts_per_tok=g.pick(2, 3), moe_intermediate_size=32,
                shared_expert_intermediate_size=32), g)
    return Spec(c, [1, 9, g.pick(70, 67), 64], style="v5", zero_centered=ZCQ, gains=GDN_G, f32=r"A_log|linear_attn.norm", real="Qwen/Qwen3.5-35B-A3B text tower",
                notes=GDN_N + ["experts are stored " + ("fused as released: mlp.experts.gate_up_proj [E,2I,H] (gate rows first), mlp.experts.down_proj [E,H,I], no .weight suffix" if g.seed < 100 else "one by one")], fuse=g.seed < 100, probes=GDN_P)


# --------------------------------------------------------------------------------------------
# random weights that keep every mechanism alive
# --------------------------------------------------------------------------------------------
DEFAULT_GAINS = [(r"(q|k|q_b|W_pack|qkv)_proj.weight", 1.6), (r"lm_head", 3.0), (r"(o|down|out|c)_proj", 2.0)]


def draw(name, t, spec, gen, boost):
    """Random tensor for parameter or buffer `name`, shaped like t."""
    rn = lambda: torch.randn(t.shape, generator=gen)
    ru = lambda a, b: torch.rand(t.shape, generator=gen) * (b - a) + a
    if re.search(r"layer_scalar", name):
        return ru(0.7, 1.3)
    if re.search(r"e_score_correction_bias", name):
        return rn() * 0.15
    if re.search(r"A_log", name):
        return ru(math.log(0.3), math.log(4.0))
    if re.search(r"dt_bias", name):
        return ru(-1.5, 1.0)
    if re.search(r"sinks", name):
        return rn() * 1.5
    if re.search(r"per_expert_scale|router\.scale|correct_output_scale", name):
        return ru(0.6, 1.4)
    if re.search(r"conv1d.weight", name):
        return rn() * 0.6
    gain = next((v for k, v in spec.gains.items() if re.search(k, name)), None)
    if re.search(r"(norm|ln_\w+)\d*\.weight$", name):
        return rn() * 0.3 + (gain if gain is not None else 0.0 if re.search(spec.zero_centered, name) else 1.0)
    if name.endswith("bias"):
        return rn() * (gain if gain is not None else 0.4)
    if re.search(r"(embed_tokens\w*|wte|wpe)\.weight$", name):
        return rn() * spec.embed_std * (gain or 1.0)
    if gain is None:
        gain = next((v for k, v in DEFAULT_GAINS if re.search(k, name)), 1.0)
    if re.search(r"(o|down|out)_proj", name):
        gain *= boost
    # fan-in: last dim of a Linear; second-to-last for Conv1D and for gpt-oss experts ([.., in, out])
    fan = t.shape[-2] if re.search(r"c_(attn|proj|fc)\.weight|experts\.(gate_up|down)_proj$", name) and (spec.mxfp4 or "c_" in name) else t.shape[-1]
    return rn() * gain / math.sqrt(fan)


FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def mxfp4_quantise(w):
    """w [E, in, out] (HF layout) -> blocks U8 [E,out,in/32,16], scales U8 [E,out,in/32], and the dequantised w."""
    x = w.transpose(1, 2).contiguous()
    e, o, i = x.shape
    x = x.view(e, o, i // 32, 32)
    exp = torch.floor(torch.log2(x.abs().amax(-1).clamp_min(1e-20))) - 2        # the OCP rule: emax(e2m1) = 2
    y = x / torch.exp2(exp)[..., None]
    code = (y[..., None] - FP4).abs().argmin(-1)
    blocks = (code[..., 0::2] | (code[..., 1::2] << 4)).to(torch.uint8)          # low nibble = even column
    deq = FP4[code] * torch.exp2(exp)[..., None]
    return blocks.contiguous(), (exp + 127).to(torch.uint8).contiguous(), deq.view(e, o, i).transpose(1, 2).contiguous()


def fill(model, spec, seed, boost):
    """Draw all weights, rounded to what the file will hold. Returns extra (mxfp4) tensors for the file."""
    gen = torch.Generator().manual_seed(seed)
    store = getattr(torch, spec.dtype)
    persistent = set(model.state_dict())
    extra, seen = {}, set()
    for name, t in list(model.named_parameters()) + list(model.named_buffers()):
        if name not in persistent or t.data_ptr() in seen or t.numel() == 0:
            continue
        seen.add(t.data_ptr())
        v = draw(name, t, spec, gen, boost)
        if spec.mxfp4 and re.search(r"experts\.(gate_up|down)_proj$", name):
            extra[name + "_blocks"], extra[name + "_scales"], v = mxfp4_quantise(v)
        elif not re.search(spec.f32, name):
            v = v.to(store).float()
        t.data.copy_(v)
    return extra


# --------------------------------------------------------------------------------------------
# writing and reading the checkpoint folder
# --------------------------------------------------------------------------------------------
def write_json(path, obj):
    with open(path, "w") as f:
        json.dump(obj, f, indent=2)
        f.write("\n")


def write_configs(out, spec):
    c = dict(spec.cfg)
    key = "dtype" if spec.style == "v5" else "torch_dtype"
    c.pop("dtype", None); c[key] = spec.dtype
    c["transformers_version"] = transformers.__version__ if spec.style == "v5" else "4.51.0"
    if spec.wrap:
        c = dict(model_type=spec.wrap["model_type"], architectures=spec.wrap["architectures"], eos_token_id=spec.wrap["eos_token_id"],
                 text_config={k: v for k, v in c.items() if k not in ("architectures", "transformers_version")},
                 tie_word_embeddings=c["tie_word_embeddings"], **{key: spec.dtype}, transformers_version=c["transformers_version"])
    write_json(f"{out}/config.json", c)
    gc = dict(_from_model_config=True, bos_token_id=spec.cfg.get("bos_token_id"), eos_token_id=c.get("eos_token_id"),
              transformers_version=c["transformers_version"], **{k: v for k, v in spec.gen.items() if k != "eos_token_id"})
    if spec.cfg.get("pad_token_id") is not None:
        gc["pad_token_id"] = spec.cfg["pad_token_id"]
    write_json(f"{out}/generation_config.json", gc)


def write_weights(out, model, spec, extra):
    """Let save_pretrained choose the released names, then store with our dtypes and shards."""
    with tempfile.TemporaryDirectory() as tmp:
        model.save_pretrained(tmp, max_shard_size="1TB")
        sd = load_file(f"{tmp}/model.safetensors")
    store = getattr(torch, spec.dtype)
    sd = {k: (v if re.search(spec.f32, k) else v.to(store)) for k, v in sd.items()}
    for k in list(extra):                                   # released gpt-oss: blocks + scales instead of the matrix
        sd.pop(k.rsplit("_", 1)[0], None)
    sd.update(extra)
    if spec.fuse:                                           # one [E,..] tensor per layer, as the module holds it
        sd = {k: v for k, v in sd.items() if ".mlp.experts." not in k}
        sd.update({k: v.to(store) for k, v in model.state_dict().items() if ".mlp.experts." in k})
    if spec.wrap:                                           # multimodal packaging of the same text tower
        p = spec.wrap["prefix"]
        sd = {(p + k if p == "language_model." else k.replace("model.", p, 1) if k.startswith("model.") else k): v for k, v in sd.items()}
    if spec.rename:
        sd = {spec.rename(k): v for k, v in sd.items()}
    names = sorted(sd)
    if spec.shards == 1:
        save_file({k: sd[k].contiguous() for k in names}, f"{out}/model.safetensors", metadata={"format": "pt"})
        return
    cut, wm = (len(names) + 1) // 2, {}
    for i, part in enumerate((names[:cut], names[cut:]), 1):
        fn = f"model-{i:05d}-of-00002.safetensors"
        save_file({k: sd[k].contiguous() for k in part}, f"{out}/{fn}", metadata={"format": "pt"})
        wm.update({k: fn for k in part})
    total = sum(v.numel() * v.element_size() for v in sd.values())
    write_json(f"{out}/model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": wm})


def weights_sha256(out):
    """SHA-256 of the folder's weight files, their bytes concatenated in name order: what a trace is bound to."""
    h = hashlib.sha256()
    for p in sorted(glob.glob(f"{out}/model*.safetensors")):
        with open(p, "rb") as f:
            h.update(f.read())
    return h.hexdigest()


def text_config(out):
    """The (text) config that folder `out` describes, as transformers parses it."""
    cfg = AutoConfig.from_pretrained(out)
    cfg = cfg.get_text_config() if hasattr(cfg, "text_config") else cfg
    if hasattr(cfg, "quantization_config"):
        del cfg.quantization_config
    return cfg


def load(out, spec, cfg_edit=None):
    """Load the folder back in float32; nothing may be missing or unexpected."""
    cfg = text_config(out)
    if cfg_edit:
        cfg_edit(cfg)
    if spec.mxfp4:
        # HF would need a GPU kernel package for MXFP4; expand the blocks ourselves from the file.
        model = AutoModelForCausalLM.from_config(cfg, dtype=torch.float32, **EAGER)
        sd = load_file(f"{out}/model.safetensors")
        for k in [k for k in sd if k.endswith("_blocks")]:
            b, s = sd.pop(k).long(), sd.pop(k[:-7] + "_scales").float()
            v = torch.stack((FP4[b & 15], FP4[b >> 4]), -1).flatten(-2) * torch.exp2(s - 127)[..., None]
            sd[k[:-7]] = v.flatten(-2).transpose(1, 2)
        r = model.load_state_dict({k: v.float() for k, v in sd.items()}, strict=True)
        return model.eval()
    if spec.wrap:
        # reload through the text-only class: strip the multimodal prefix again
        with tempfile.TemporaryDirectory() as tmp:
            shutil.copytree(out, tmp, dirs_exist_ok=True, ignore=shutil.ignore_patterns("oracle*"))
            cfg.save_pretrained(tmp)
            sd = load_file(f"{tmp}/model.safetensors")
            p = spec.wrap["prefix"]
            save_file({(k[len(p):] if p == "language_model." else k.replace(p, "model.", 1)): v for k, v in sd.items()},
                      f"{tmp}/model.safetensors", metadata={"format": "pt"})
            model, info = AutoModelForCausalLM.from_pretrained(tmp, config=cfg, dtype=torch.float32, **EAGER, output_loading_info=True)
    else:
        model, info = AutoModelForCausalLM.from_pretrained(out, config=cfg, dtype=torch.float32, **EAGER, output_loading_info=True)
    if not cfg_edit:
        assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    return model.eval()


# --------------------------------------------------------------------------------------------
# running the reference
# --------------------------------------------------------------------------------------------
class TopkGap:
    """While active, records the least gap at the cut of every top-k selection made inside the model."""
    def __enter__(self):
        self.gap, self.calls, self.hits = math.inf, 0, {}
        self.old = (torch.topk, torch.Tensor.topk)
        fn = self.old[0]

        def spy(x, *a, **kw):
            k = kw.get("k", a[0] if a else None)
            if x.is_floating_point() and k < x.shape[-1]:
                v = fn(x, k + 1, dim=-1).values
                ok = (v[..., k - 1] > -1e30) & (v[..., k] > -1e30)
                if ok.any():
                    self.gap = min(self.gap, (v[..., k - 1] - v[..., k])[ok].min().item())
                    self.calls += 1
                self.hits.setdefault((x.shape[-1], k), set()).update(fn(x, *a, **kw).indices[..., :k].unique().tolist())
            return fn(x, *a, **kw)
        torch.topk = spy
        torch.Tensor.topk = spy
        return self

    def __exit__(self, *exc):
        torch.topk, torch.Tensor.topk = self.old


def parts(model):
    core = getattr(model, "model", None) or model.transformer
    return (core.h, core.ln_f) if hasattr(core, "h") else (core.layers, core.norm)


def flat(t):
    """[1,T,H] -> [T,H]; AltUp stacks [A,1,T,H] -> [T,A*H]."""
    t = t[0] if isinstance(t, tuple) else t
    if t.dim() == 4:
        return t[:, 0].permute(1, 0, 2).reshape(t.shape[2], -1).clone()
    return t[0].clone()


def forward(model, ids, want_hidden=True):
    layers, norm = parts(model)
    got, hooks = {}, []
    if want_hidden:
        hooks.append(layers[0].register_forward_pre_hook(
            lambda m, a, k: got.__setitem__("hidden.embed", flat(a[0] if a else k["hidden_states"])), with_kwargs=True))
        for i, l in enumerate(layers):
            hooks.append(l.register_forward_hook(lambda m, a, o, i=i: got.__setitem__(f"hidden.layer.{i}", flat(o))))
        hooks.append(norm.register_forward_hook(lambda m, a, o: got.__setitem__("hidden.norm", flat(o))))
    try:
        got["logits"] = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].clone()
    finally:
        for h in hooks:
            h.remove()
    return got


def greedy(model, ids):
    model.generation_config = GenerationConfig(eos_token_id=None, pad_token_id=0, bos_token_id=None)
    gc = GenerationConfig(max_new_tokens=GREEDY, do_sample=False, use_cache=True, eos_token_id=None, pad_token_id=0)
    out = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), generation_config=gc)[0].tolist()
    assert len(out) == len(ids) + GREEDY
    return out[len(ids):]


def gaps(logits):
    v = logits.sort(-1, descending=True).values
    return v[..., 0] - v[..., 1]


def run_cases(model, prompts, strict=False, gap_min=GAP):
    """All cases of one model: tensors, the worst argmax margin, and diversity of the greedy text.
    With strict=True a draw that is already undecidable at the prompts returns None early."""
    tens, margins, step_margins, divers, cached_ok = {}, [], [], [], True
    with TopkGap() as tg:
        if strict:
            if min(gaps(forward(model, ids, False)["logits"]).min().item() for ids in prompts) < MARGIN or tg.gap < gap_min:
                return None
        for k, ids in enumerate(prompts):
            got = forward(model, ids)
            g = greedy(model, ids)
            if strict and len(set(g)) < DIVERSE:
                return None
            # teacher-forced, uncached: margin of every greedy step, and cache == no cache
            if model.config.model_type == "phi3":            # longrope: the factors depend on the whole length
                full = torch.stack([forward(model, ids + g[:s], False)["logits"][-1] for s in range(GREEDY)])
            else:
                full = forward(model, ids + g, False)["logits"][len(ids) - 1:-1]
            cached_ok &= full.argmax(-1).tolist() == g
            margins += gaps(got["logits"]).tolist()
            step_margins += gaps(full).tolist()
            divers.append(len(set(g)))
            tens[f"c{k}.ids"] = torch.tensor(ids, dtype=torch.int32)
            tens.update({f"c{k}.{n}": t.float().contiguous() for n, t in got.items()})
            tens[f"c{k}.greedy"] = torch.tensor(g, dtype=torch.int32)
    return tens, margins, step_margins, divers, cached_ok, tg


def incremental(model, ids):
    """Logits of one token at a time through the cache (a second float32 route)."""
    rows, cache = [], None
    for t in ids:
        o = model(input_ids=torch.tensor([[t]]), use_cache=True, **({"cache": cache} if cache is not None else {}))
        cache = o.cache
        rows.append(o.logits[0, -1])
    return torch.stack(rows)


def sharpness(model, ids):
    """Mean over heads and late positions of the largest attention weight, next to 1/keys (a uniform row)."""
    try:
        att = [a for a in model(input_ids=torch.tensor([ids]), output_attentions=True, use_cache=False).attentions if a is not None]
        n = len(ids)
        top = torch.stack([a[0, :, n // 2:].amax(-1).mean() for a in att]).mean().item()
        return f"mean max weight {top:.3f} over {len(att)} layers, {n} keys"
    except Exception as e:
        return f"n/a ({type(e).__name__})"


def noise(model, prompts, tens):
    """How far other float32/float64 routes land from the reference: (cached, float64) max |dlogit|."""
    k = max(range(len(prompts)), key=lambda i: len(prompts[i])); ref = tens[f"c{k}.logits"]
    out = {}
    try:
        if model.config.model_type == "phi3":
            raise ValueError("the cache is rebuilt when the length passes the longrope boundary")
        out["cached_vs_full_max_dlogit"] = (incremental(model, prompts[k]) - ref).abs().max().item()
    except Exception as e:
        out["cached_vs_full_max_dlogit"] = f"n/a ({type(e).__name__}: {str(e)[:80]})"
    try:
        m64 = copy.deepcopy(model).double()
        out["float64_max_dlogit"] = (m64(input_ids=torch.tensor([prompts[k]]), use_cache=False).logits[0].float() - ref).abs().max().item()
    except Exception as e:
        out["float64_max_dlogit"] = f"n/a ({type(e).__name__})"
    return out


def run_probes(out, spec, prompts, tens):
    res = {}
    for name, (kind, fn) in spec.probes.items():
        try:
            model = load(out, spec, fn if kind == "cfg" else None)
            if kind == "w":
                fn(model)
            d = [(forward(model, p, False)["logits"] - tens[f"c{k}.logits"]).abs().max().item() for k, p in enumerate(prompts)]
            res[name] = [float(f"{x:.3g}") for x in d]
        except Exception as e:
            res[name] = f"probe failed: {type(e).__name__}: {str(e)[:160]}"
    return res


def make(name, seed, root, probes=True):
    g = Geo(seed, name)
    spec = FAMILIES[name](g)
    out = f"{root}/{name}"
    shutil.rmtree(out, ignore_errors=True); os.makedirs(out)
    write_configs(out, spec)
    cfg = text_config(out)
    model = AutoModelForCausalLM.from_config(cfg, dtype=torch.float32, **EAGER).eval()
    gap_min = 3e-5 if "linear_num_key_heads" in spec.cfg else GAP    # delta-rule states carry more rounding noise
    best = None
    for attempt in range(TRIES):
        wseed = zlib.crc32(f"{seed}/{name}/{attempt}".encode())
        boost = (1.0, 1.0, 1.0, 1.5, 0.7, 2.0)[attempt % 6]
        r = random.Random(wseed)
        prompts = [[r.randrange(cfg.vocab_size) for _ in range(n)] for n in spec.lens]
        if spec.cfg["model_type"] == "gemma3n_text":        # ids past vocab_size_per_layer_input are for other modalities
            prompts = [[t % spec.cfg["vocab_size_per_layer_input"] for t in p] for p in prompts]
        fill(model, spec, wseed, boost)
        res = run_cases(model, prompts, attempt < TRIES - 6, gap_min)
        if res is None:
            continue
        lo, gap, div = min(res[1] + res[2]), res[5].gap, min(res[3])
        floor = max([v for v in noise(model, prompts, res[0]).values() if isinstance(v, float)], default=0.0)
        clear = lo / (4 * floor + 1e-9)                      # decidable above the reference's own float32 noise?
        ok = lo > MARGIN and gap > gap_min and div >= DIVERSE and res[4] and clear > 1
        score = (ok, min(lo / MARGIN, 1) + min(gap / gap_min, 1) + min(div / DIVERSE, 1) + res[4] + min(clear, 1), lo)
        if best is None or score > best[0]:
            best = (score, wseed, boost, prompts)
        if ok:
            break
    _, wseed, boost, prompts = best
    extra = fill(model, spec, wseed, boost)
    write_weights(out, model, spec, extra)
    model = load(out, spec)                                  # the reference is computed from the file
    tens, margins, steps, divers, cached_ok, tg = run_cases(model, prompts)
    m, s = torch.tensor(margins), torch.tensor(steps)
    q = lambda t: [float(f"{x:.4g}") for x in torch.quantile(t, torch.tensor([0.0, 0.1, 0.5, 0.9])).tolist()]
    meta = dict(trace_version="1", weights_sha256=weights_sha256(out), family=name, model_type=spec.cfg["model_type"], real_config=spec.real, transformers=transformers.__version__, torch=torch.__version__,
                dtype="float32", weights_dtype=spec.dtype + (" + mxfp4" if spec.mxfp4 else ""), attn_implementation="eager", experts_implementation="eager", seed=str(seed), attempts=str(attempt + 1),
                min_margin=f"{m.min():.6g}", margin_q0_q10_q50_q90=json.dumps(q(m)), min_greedy_margin=f"{s.min():.6g}", greedy_margin_q=json.dumps(q(s)),
                greedy_distinct=json.dumps(divers), cached_equals_uncached_greedy=str(cached_ok), lens=json.dumps([len(p) for p in prompts]),
                min_internal_topk_gap="none" if tg.gap == math.inf else f"{tg.gap:.4g}", attention=sharpness(model, max(prompts, key=len)),
                experts_hit=json.dumps({f"top{k} of {n}": len(v) for (n, k), v in tg.hits.items() if n == next((spec.cfg[x] for x in ("n_routed_experts", "num_experts", "num_local_experts") if x in spec.cfg), -1)}),
                logit_std=f"{tens['c1.logits'].std():.4g}",
                **{k: (v if isinstance(v, str) else f"{v:.4g}") for k, v in noise(model, prompts, tens).items()},
                nonvacuity_max_dlogit_per_case=json.dumps(run_probes(out, spec, prompts, tens) if probes else {}), notes=json.dumps(spec.notes))
    save_file(tens, f"{out}/oracle.safetensors", metadata=meta)
    meta["bytes"] = {f: os.path.getsize(f"{out}/{f}") for f in sorted(os.listdir(out))}
    return meta


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--out", required=False)
    ap.add_argument("--only", default="")
    ap.add_argument("--list", action="store_true")
    ap.add_argument("--no-probes", action="store_true")
    a = ap.parse_args()
    if a.list:
        print(*FAMILIES, sep="\n"); return
    os.makedirs(a.out, exist_ok=True)
    mpath = f"{a.out}/MANIFEST.json"
    manifest = json.load(open(mpath)) if os.path.exists(mpath) else {}
    bad = 0
    for name in (a.only.split(",") if a.only else FAMILIES):
        t0 = time.time()
        try:
            m = make(name, a.seed, a.out, not a.no_probes)
        except Exception as e:
            bad += 1
            print(f"{name:16s} FAILED {type(e).__name__}: {str(e)[:400]}", flush=True)
            if a.only:
                raise
            continue
        manifest[name] = m
        write_json(mpath, manifest)
        print(f"{name:16s} lens={m['lens']} margin={m['margin_q0_q10_q50_q90']} greedy_min={m['min_greedy_margin']} distinct={m['greedy_distinct']} "
              f"cached={m['cached_equals_uncached_greedy']} gap={m['min_internal_topk_gap']} noise={m['cached_vs_full_max_dlogit']}/{m['float64_max_dlogit']} "
              f"tries={m['attempts']} {sum(m['bytes'].values()) // 1024}K {time.time() - t0:.0f}s\n    {m['nonvacuity_max_dlogit_per_case']}", flush=True)
    return bad


if __name__ == "__main__":
    sys.exit(main())
