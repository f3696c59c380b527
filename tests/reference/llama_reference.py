#!/usr/bin/env python3
"""Reference numbers of the LLaMA family for the parity tests, from PyTorch.

Models of four layers, in the manner of gpt2_reference.py: LLaMA itself, variants with what Llama 3
and Qwen 3, Qwen 2, and Mistral add, StableLM, GPT-NeoX, Gemma, one with ALiBi, OLMo 2, one with norms on
both sides of its blocks, as Gemma 2 has them, one whose layers differ in their windows and
rotations, as those of Gemma 3 and SmolLM3, two with latent attention, as DeepSeek-V2's, and what Granite,
Command R and Phi-2 have. README.md beside this file defines every number exactly.

  llama_small.json               LLaMA: 50 steps in float64, float32 and bfloat16
  llama_small_grads.safetensors  its gradients of the first step (before clipping)
  llama_scaled.json              Llama-3 frequencies, norms of queries and keys, biases: 10 steps
  llama_qwen2.json               biases of queries, keys and values alone, tied: 10 steps
  llama_window.json              a sliding window: 10 steps
  llama_stablelm.json            LayerNorm, a quarter of every head rotated, QKV biases: 10 steps
  llama_neox.json                LayerNorm, a quarter of every head rotated, all biases, exact GELU,
                                 both blocks of a layer read its input: 10 steps
  llama_gemma.json               GELU's tanh form as a gate, scaled embeddings, tied, one key head,
                                 heads wider than hidden / heads: 10 steps
  llama_alibi.json               ALiBi, LayerNorm, GELU without a gate, one key head, tied: 10 steps
  llama_olmo2.json               norms of what the blocks give instead of what they get, norms of all
                                 queries and of all keys of a position as one: 10 steps
  llama_sandwich.json            norms of what the blocks get and of what they give, GELU's tanh form
                                 as a gate, biases, tied: 10 steps
  llama_layers.json              a window in layers 0 and 2 alone, frequencies of layers with a window,
                                 no rotation in layer 2, scores scaled otherwise: 10 steps
  llama_caps.json                capped scores and logits, as Gemma 2 has them: 10 steps
  llama_latent.json              keys and values of latents, queries of others: 10 steps
  llama_latent_plain.json        the same with queries of the stream, scores scaled otherwise: 10 steps
  llama_granite.json             what blocks add, scores, logits and embeddings are scaled, tied: 10 steps
  llama_command.json             both blocks of a layer read one LayerNorm without a bias, logits are
                                 scaled, tied: 10 steps
  llama_phi.json                 the same with biases everywhere, the head's too, GELU without a gate,
                                 half of every head rotated: 10 steps
  llama_muon.json                LLaMA with Muon: 10 steps
  llama_lora.json                adapters beside all its linears, with norms of queries and keys,
                                 tied head: 10 steps
  llama_lora_side.json           the same of GPT-NeoX's layers, whose blocks read one stream: 10
                                 steps
  llama_lora_latent.json         adapters of latent attention and of what leads out of the MLP: 10
                                 steps
"""
import math

import torch
import torch.nn.functional as F

from reference_common import (SEQ, VOCAB, adapter, compare, linear, output_folder, with_adapters,
                              write_json, write_safetensors)

# With the names of train.yaml.
LLAMA = {"layers": 4, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn": 160,
         "activation": "swiglu", "norm": {"type": "rmsnorm", "eps": 1e-5},
         "position": {"type": "rope", "base": 10000.0}, "max_seq": SEQ, "bias": False,
         "qk_norm": False, "tie_embeddings": False}
SCALED = {**LLAMA, "head_dim": 32, "bias": True, "qk_norm": True,
          "position": {"type": "rope", "base": 10000.0,
                       "scaling": {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                   "high_freq_factor": 4.0, "original_max_seq": 32}}}
QWEN2 = {**LLAMA, "qkv_bias": True, "tie_embeddings": True}
WINDOW = {**LLAMA, "sliding_window": 13}
STABLELM = {**LLAMA, "kv_heads": 4, "norm": {"type": "layernorm", "eps": 1e-5}, "qkv_bias": True,
            "position": {"type": "rope", "base": 10000.0, "fraction": 0.25}}
NEOX = {**LLAMA, "kv_heads": 4, "norm": {"type": "layernorm", "eps": 1e-5}, "bias": True,
        "activation": "gelu_exact", "parallel_residual": True,
        "position": {"type": "rope", "base": 10000.0, "fraction": 0.25}}
GEMMA = {**LLAMA, "kv_heads": 1, "head_dim": 32, "activation": "geglu", "tie_embeddings": True,
         "embedding_scale": 8.0}
ALIBI = {**LLAMA, "kv_heads": 1, "activation": "gelu", "norm": {"type": "layernorm", "eps": 1e-5},
         "position": {"type": "alibi"}, "tie_embeddings": True}
OLMO2 = {**LLAMA, "norm_place": "output", "qk_norm": True, "qk_norm_whole": True}
SANDWICH = {**LLAMA, "kv_heads": 4, "norm_place": "both", "activation": "geglu", "bias": True,
            "tie_embeddings": True}
LAYERS = {**LLAMA, "sliding_window": 13, "full_attention": {"every": 4, "layers": [1]},
          "attention_scale": 0.2,
          "position": {**SCALED["position"], "window_base": 100.0, "skip": {"every": 3, "layers": []}}}
CAPS = {**LLAMA, "attention_scale": 1.0, "attention_cap": 0.1, "logit_cap": 0.4}

LATENT = {**LLAMA, "kv_heads": 4, "head_dim": 24,
          "latent": {"kv_rank": 24, "q_rank": 40, "rope_dim": 8, "value_dim": 12, "norm_eps": 1e-6}}
LATENT_PLAIN = {**LATENT, "attention_scale": 0.3,
                "latent": {"kv_rank": 16, "q_rank": 0, "rope_dim": 8, "value_dim": 16,
                           "norm_eps": 1e-2}}
GRANITE = {**LLAMA, "embedding_scale": 6.0, "residual_scale": 0.3, "attention_scale": 0.2,
           "logit_scale": 0.25, "tie_embeddings": True}
COMMAND = {**LLAMA, "norm": {"type": "layernorm", "eps": 1e-5, "bias": False, "shared": True},
           "parallel_residual": True, "logit_scale": 0.5, "tie_embeddings": True}
PHI = {**LLAMA, "kv_heads": 4, "norm": {"type": "layernorm", "eps": 1e-5, "shared": True},
       "parallel_residual": True, "activation": "gelu", "bias": True, "head_bias": True,
       "position": {"type": "rope", "base": 10000.0, "fraction": 0.5}}
LORA = {**LLAMA, "qk_norm": True, "tie_embeddings": True,
        "lora": {"rank": 8, "alpha": 16, "targets": ["qkv", "proj", "up", "down"]}}
LORA_SIDE = {**NEOX, "lora": {"rank": 4, "alpha": 2, "targets": ["qkv", "proj", "up", "down"]}}
LORA_LATENT = {**LATENT, "lora": {"rank": 5, "alpha": 5, "targets": ["qkv", "down"]}}

# The norms of a layer where "norm_place" is that ("input" where a model does not say): before and
# behind attention, before and behind the feed-forward block.
NORMS = {"input": ("input_layernorm", None, "post_attention_layernorm", None),
         "output": (None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
         "both": ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                  "post_feedforward_layernorm")}


def norms_of(model):
    if model["norm"].get("shared"):
        return ("input_layernorm", None, None, None)
    return NORMS[model.get("norm_place", "input")]


def parameters(model):
    """(name, shape) in the order of the model; matrices are [out, in]."""
    h, f, d = model["hidden"], model["ffn"], model["head_dim"]
    q, kv = model["heads"] * d, model["kv_heads"] * d
    before, behind, before_mlp, behind_mlp = norms_of(model)

    def matrix(name, rows, columns):
        yield name + ".weight", (rows, columns)
        qkv = name.endswith(("q_proj", "k_proj", "v_proj")) and model.get("qkv_bias", False)
        if model["bias"] or qkv:
            yield name + ".bias", (rows,)

    def norm(layer, which):
        if which is None:
            return
        name = layer + which
        yield name + ".weight", (h,)
        if model["norm"]["type"] == "layernorm" and model["norm"].get("bias", True):
            yield name + ".bias", (h,)

    yield "model.embed_tokens.weight", (VOCAB, h)
    for n in range(model["layers"]):
        p = f"model.layers.{n}."
        yield from norm(p, before)
        if "latent" in model:
            yield from latent_parameters(p + "self_attn.", model)
        else:
            yield from matrix(p + "self_attn.q_proj", q, h)
            yield from matrix(p + "self_attn.k_proj", kv, h)
            yield from matrix(p + "self_attn.v_proj", kv, h)
            yield from matrix(p + "self_attn.o_proj", h, q)
        if model.get("attention_sinks"):
            yield p + "self_attn.sinks", (model["heads"],)
        if model["qk_norm"]:
            whole = model.get("qk_norm_whole", False)
            yield p + "self_attn.q_norm.weight", (q if whole else d,)
            yield p + "self_attn.k_norm.weight", (kv if whole else d,)
        yield from norm(p, behind)
        yield from norm(p, before_mlp)
        if model["activation"] in ("swiglu", "geglu", "quick_geglu"):
            yield from matrix(p + "mlp.gate_proj", f, h)
        yield from matrix(p + "mlp.up_proj", f, h)
        yield from matrix(p + "mlp.down_proj", h, f)
        yield from norm(p, behind_mlp)
    yield from norm("model.", "norm")
    if not model["tie_embeddings"]:
        yield "lm_head.weight", (VOCAB, h)
    if model.get("head_bias"):
        yield "lm_head.bias", (VOCAB,)


def latent_parameters(p, model):
    h, d, heads, latent = (model[key] for key in ("hidden", "head_dim", "heads", "latent"))
    if latent["q_rank"]:
        yield p + "q_a_proj.weight", (latent["q_rank"], h)
        yield p + "q_a_layernorm.weight", (latent["q_rank"],)
        yield p + "q_b_proj.weight", (heads * d, latent["q_rank"])
    else:
        yield p + "q_proj.weight", (heads * d, h)
    yield p + "kv_a_proj_with_mqa.weight", (latent["kv_rank"] + latent["rope_dim"], h)
    yield p + "kv_a_layernorm.weight", (latent["kv_rank"],)
    yield p + "kv_b_proj.weight", (heads * (d - latent["rope_dim"] + latent["value_dim"]),
                                   latent["kv_rank"])
    yield p + "o_proj.weight", (h, heads * latent["value_dim"])


def is_chosen(choice, layer):
    return choice is not None and (layer in choice["layers"] or (layer + 1) % choice["every"] == 0)


def has_window(model, layer):
    return "sliding_window" in model and not is_chosen(model.get("full_attention"), layer)


def frequencies(model, layer):
    """Radians per position of each of the rotations (float64)."""
    position = model["position"]
    own = has_window(model, layer) and "window_base" in position
    base = position["window_base"] if own else position["base"]
    d = int(model["head_dim"] * position.get("fraction", 1))
    if "latent" in model:
        d = model["latent"]["rope_dim"]
    plain = [base ** (-2 * i / d) for i in range(d // 2)]
    scaling = None if own else position.get("scaling")
    if scaling is None:
        return plain
    factor, original = scaling["factor"], scaling["original_max_seq"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    scaled = []
    for frequency in plain:
        turns = original * frequency / (2 * math.pi)  # over the original context
        if turns > high:
            scaled.append(frequency)
        elif turns < low:
            scaled.append(frequency / factor)
        else:
            smooth = (turns - low) / (high - low)
            scaled.append((1 - smooth) * frequency / factor + smooth * frequency)
    return scaled


def rotate(x, cos, sin):
    """Hugging Face's order: of the first elements, element i of the one half is paired with element
    i of the other; those behind them stay."""
    x, rest = x[..., :cos.shape[-1]], x[..., cos.shape[-1]:]
    first, second = x.chunk(2, dim=-1)
    return torch.cat((x * cos + torch.cat((-second, first), dim=-1) * sin, rest), dim=-1)


def rotate_neighbours(x, angles):
    """Elements 2 i and 2 i + 1 are a pair, and angles has one column for each pair."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    turn = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(pairs * turn).flatten(-2)


def rms(x, gain, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gain


def capped(x, cap):
    return cap * torch.tanh(x / cap)


def make_forward(model):
    h, d, heads, kv_heads = (model[key] for key in ("hidden", "head_dim", "heads", "kv_heads"))
    eps = model["norm"]["eps"]
    kind = model["position"]["type"]
    before, behind, before_mlp, behind_mlp = norms_of(model)
    whole = model.get("qk_norm_whole", False)
    places = torch.arange(SEQ, dtype=torch.float64)
    layers = range(model["layers"])
    turns = [kind == "rope" and not is_chosen(model["position"].get("skip"), n) for n in layers]
    angles = [torch.outer(places, torch.tensor(frequencies(model, n), dtype=torch.float64)).repeat(1, 2)
              if turns[n] else None for n in layers]
    divisor = 1 / model["attention_scale"] if "attention_scale" in model else math.sqrt(d)
    added = model.get("residual_scale", 1)
    future = torch.full((SEQ, SEQ), -math.inf, dtype=torch.float64).triu(1)
    windowed = future
    if "sliding_window" in model:  # the newest so many positions, the query's own included
        past = places[None, :] <= places[:, None] - model["sliding_window"]
        windowed = future.masked_fill(past, -math.inf)
    if kind == "alibi":
        slopes = torch.tensor([2.0 ** (-8 * (i + 1) / heads) for i in range(heads)],
                              dtype=torch.float64)
        windowed = future = future + slopes[:, None, None] * (places[None, :] - places[:, None])

    def forward(w, ids, number):
        """Mean cross-entropy (nats) over all BATCH * SEQ targets."""
        x, y = ids[:, :-1], ids[:, 1:]
        b, t = x.shape
        dtype = w["model.embed_tokens.weight"].dtype
        masks = [(windowed if has_window(model, n) else future).to(dtype) for n in layers]

        def norm(s, layer, which):
            if which is None:
                return s
            p = layer + which
            gain = number.weight(w[p + ".weight"])
            if model["norm"]["type"] == "rmsnorm":
                return number.store(rms(number.wide(s), gain, eps))
            bias = number.weight(w[p + ".bias"]) if p + ".bias" in w else None
            return number.store(F.layer_norm(number.wide(s), (h,), gain, bias, eps))

        def project(a, p):
            return (linear(number, a, w[p + ".weight"].t(), w.get(p + ".bias"))
                    + adapter(w, number, a, p, model))

        def heads_of(a, n, p, count):
            def normed(a):
                if not model["qk_norm"] or p.endswith("v"):
                    return a
                return number.wide(number.store(rms(a, number.weight(w[p + "_norm.weight"]), eps)))

            a = number.wide(project(a, p + "_proj"))
            if whole:
                a = normed(a)
            a = a.view(b, t, count, d).transpose(1, 2)
            if not whole:
                a = normed(a)
            if turns[n] and not p.endswith("v"):
                cos, sin = angles[n].cos().to(dtype), angles[n].sin().to(dtype)
                a = number.wide(number.store(rotate(a, cos, sin)))
            return a.repeat_interleave(heads // count, dim=1)

        def latent_heads(a, n, p):
            """Queries, keys and values [b, heads, t, ..] of latent attention (arXiv 2405.04434)."""
            latent = model["latent"]
            rank, turned = latent["kv_rank"], latent["rope_dim"]

            def normed(a, p):
                gain = number.weight(w[p + "_layernorm.weight"])
                return number.store(rms(number.wide(a), gain, latent["norm_eps"]))

            def apart(a, *widths):
                return number.wide(a).view(b, t, heads, -1).transpose(1, 2).split(widths, dim=-1)

            def turn(a):
                return number.wide(number.store(rotate_neighbours(a, angles[n][:, :turned // 2].to(dtype))))

            if latent["q_rank"]:
                q = project(normed(project(a, p + "q_a_proj"), p + "q_a"), p + "q_b_proj")
            else:
                q = project(a, p + "q_proj")
            plain_q, turned_q = apart(q, d - turned, turned)
            compressed, shared = project(a, p + "kv_a_proj_with_mqa").split((rank, turned), dim=-1)
            pairs = project(normed(compressed, p + "kv_a"), p + "kv_b_proj")
            plain_k, v = apart(pairs, d - turned, latent["value_dim"])
            turned_k = turn(number.wide(shared)[:, None]).expand(b, heads, t, turned)
            return (torch.cat((plain_q, turn(turned_q)), dim=-1),
                    torch.cat((plain_k, turned_k), dim=-1), v)

        s = number.store(number.weight(w["model.embed_tokens.weight"])[x])
        if "embedding_scale" in model:
            s = number.store(number.wide(s) * model["embedding_scale"])
        for n in layers:
            p = f"model.layers.{n}."
            a = norm(s, p, before)
            if "latent" in model:
                q, k, v = latent_heads(a, n, p + "self_attn.")
            else:
                q, k, v = (heads_of(a, n, p + f"self_attn.{which}", count)
                           for which, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)))
            score = q @ k.transpose(2, 3) / divisor
            if "attention_cap" in model:
                score = capped(score, model["attention_cap"])
            score = torch.softmax(score + masks[n], dim=-1)
            a = number.store((score @ v).transpose(1, 2).reshape(b, t, -1))
            read = norm(s, p, before)
            attended = s + added * norm(project(a, p + "self_attn.o_proj"), p, behind)
            parallel = model.get("parallel_residual", False)
            a = read if model["norm"].get("shared") else norm(s if parallel else attended, p,
                                                              before_mlp)
            s = attended
            up = number.wide(project(a, p + "mlp.up_proj"))
            if model["activation"] == "swiglu":
                inner = F.silu(number.wide(project(a, p + "mlp.gate_proj"))) * up
            elif model["activation"] == "geglu":
                inner = F.gelu(number.wide(project(a, p + "mlp.gate_proj")), approximate="tanh") * up
            else:
                exact = model["activation"] == "gelu_exact"
                inner = F.gelu(up, approximate="none" if exact else "tanh")
            s = s + added * norm(project(number.store(inner), p + "mlp.down_proj"), p, behind_mlp)
        s = norm(s, "model.", "norm")
        head = "model.embed_tokens" if model["tie_embeddings"] else "lm_head"
        logits = number.wide(linear(number, s, w[head + ".weight"].t(), w.get("lm_head.bias")))
        logits = logits * model.get("logit_scale", 1)
        if "logit_cap" in model:
            logits = capped(logits, model["logit_cap"])
        return F.cross_entropy(logits.reshape(-1, VOCAB), y.reshape(-1))

    return forward


def main():
    out = output_folder(__doc__)
    torch.set_num_threads(1)
    result, gradients = compare(parameters(LLAMA), make_forward(LLAMA), LLAMA, bf16=True)
    write_json(out / "llama_small.json", result)
    write_safetensors(out / "llama_small_grads.safetensors", gradients)
    for name, model in (("llama_scaled", SCALED), ("llama_qwen2", QWEN2), ("llama_window", WINDOW),
                        ("llama_stablelm", STABLELM), ("llama_neox", NEOX), ("llama_alibi", ALIBI),
                        ("llama_gemma", GEMMA), ("llama_olmo2", OLMO2),
                        ("llama_sandwich", SANDWICH), ("llama_layers", LAYERS),
                        ("llama_caps", CAPS), ("llama_latent", LATENT),
                        ("llama_latent_plain", LATENT_PLAIN), ("llama_granite", GRANITE),
                        ("llama_command", COMMAND), ("llama_phi", PHI)):
        result, _ = compare(parameters(model), make_forward(model), model, steps=10)
        write_json(out / f"{name}.json", result)
    result, _ = compare(parameters(LLAMA), make_forward(LLAMA), LLAMA, steps=10, muon=True)
    write_json(out / "llama_muon.json", result)
    for name, model in (("llama_lora", LORA), ("llama_lora_side", LORA_SIDE),
                        ("llama_lora_latent", LORA_LATENT)):
        result, _ = compare(with_adapters(parameters(model), model, out_in=True),
                            make_forward(model), model, steps=10)
        write_json(out / f"{name}.json", result)


if __name__ == "__main__":
    main()
