#!/usr/bin/env python3
"""Reference numbers of a mixture of experts for the parity tests, from PyTorch.

Mixtral in the manner of llama_reference.py, of which it has everything but the feed-forward blocks.
README.md beside this file defines every number exactly.

  mixtral_small.json               10 steps in float64 and float32
  mixtral_small_grads.safetensors  gradients of the first step (before clipping), of the first
                                   layer's router and experts
  mixtral_aux.json                 the same with both losses of the router, which autograd
                                   differentiates: `loss` is all that is minimised
  mixture_gated.json               Qwen2's mixture: biases of queries, keys and values, weights that
                                   are not divided by their sum, a shared block behind a gate; and
                                   both losses
  mixture_balanced.json            DeepSeek-V3's way to route: sigmoids, a bias of each expert that
                                   moves with its tokens (`expert_bias`: the last ones), groups of
                                   experts, weights times a constant; a dense layer before the
                                   mixtures, a shared block, norms of queries and keys, both losses
  mixture_sinks.json               gpt-oss: sinks of attention, windows in every second layer, gates
                                   and what they multiply within bounds that both are beyond at
                                   times, biases everywhere; both losses

The logits are checked against transformers' MixtralForCausalLM, Qwen2MoeForCausalLM,
Dots1ForCausalLM and GptOssForCausalLM where these are installed. Their load-balancing loss is
another one than ours (over all layers and the whole batch at once), so it is not compared.
"""
import torch
import torch.nn.functional as F

import llama_reference as llama
from reference_common import (Plain, SEQ, VOCAB, adapter, compare, initial, linear, output_folder,
                              windows, with_adapters, write_json, write_safetensors)

MIXTRAL = {**llama.LLAMA, "layers": 3, "ffn": 48, "moe": {"experts": 4, "topk": 2, "aux_loss": 0.0,
                                                          "z_loss": 0.0}}
AUX = {**MIXTRAL, "moe": {"experts": 5, "topk": 3, "aux_loss": 0.1, "z_loss": 0.05}}
GATED = {**MIXTRAL, "qkv_bias": True,
         "moe": {"experts": 6, "topk": 2, "aux_loss": 0.1, "z_loss": 0.05, "normalize": False,
                 "shared_ffn": 80, "shared_gate": True}}
BALANCED = {**MIXTRAL, "qk_norm": True, "ffn": 80,
            "moe": {"experts": 12, "topk": 4, "aux_loss": 0.1, "z_loss": 0.05, "score": "sigmoid",
                    "ffn": 16, "dense_layers": [0], "scale": 2.5, "groups": 3, "group_topk": 2,
                    "shared_ffn": 32, "expert_bias": True, "bias_rate": 0.01}}
SINKS = {**MIXTRAL, "bias": True, "activation": "quick_geglu", "glu_offset": 1.0, "glu_clamp": 0.6,
         "attention_sinks": True, "sliding_window": 13,
         "full_attention": {"every": 2, "layers": []},
         "moe": {"experts": 6, "topk": 3, "aux_loss": 0.1, "z_loss": 0.05}}
# Experts and router have no adapters; the block beside them and the dense layer have.
LORA = {**GATED, "ffn": 80, "moe": {**GATED["moe"], "ffn": 48, "dense_layers": [1]},
        "lora": {"rank": 6, "alpha": 9, "targets": ["qkv", "proj", "up", "down"]}}


def names_of(model):
    """The experts' part of a layer's names, and those of an expert's gate, up and down."""
    moe = model["moe"]
    mixtral = not (model["qk_norm"] or model.get("qkv_bias") or moe.get("shared_ffn") or
                   model["bias"])
    if mixtral and moe.get("score", "softmax") == "softmax" and moe.get("normalize", True):
        return "block_sparse_moe.", ("w1", "w3", "w2")
    return "mlp.", ("gate_proj", "up_proj", "down_proj")


def mixtures(model):
    dense = model["moe"].get("dense_layers", [])
    return [n for n in range(model["layers"]) if n not in dense]


def router_name(model):
    return "router" if model["bias"] else "gate"


def shared_name(model):
    return "shared_expert." if model["moe"].get("shared_gate") else "shared_experts."


def parameters(model):
    """(name, shape) in the order of the model; matrices are [out, in]."""
    h, f = model["hidden"], model["moe"].get("ffn", model["ffn"])
    for name, shape in llama.parameters(model):
        if ".mlp." not in name or int(name.split(".")[2]) not in mixtures(model):
            yield name, shape
        elif name.endswith("gate_proj.weight"):
            part, (gate, up, down) = names_of(model)
            p = name.replace("mlp.gate_proj.weight", part)
            moe = model["moe"]
            router = p + router_name(model)
            yield router + ".weight", (moe["experts"], h)
            for e in range(moe["experts"]):
                yield p + f"experts.{e}.{gate}.weight", (f, h)
                yield p + f"experts.{e}.{up}.weight", (f, h)
                yield p + f"experts.{e}.{down}.weight", (h, f)
            if model["bias"]:
                yield router + ".bias", (moe["experts"],)
                for e in range(moe["experts"]):
                    yield p + f"experts.{e}.{gate}.bias", (f,)
                    yield p + f"experts.{e}.{up}.bias", (f,)
                    yield p + f"experts.{e}.{down}.bias", (h,)
            shared = moe.get("shared_ffn", 0)
            if shared:
                yield p + shared_name(model) + "gate_proj.weight", (shared, h)
                yield p + shared_name(model) + "up_proj.weight", (shared, h)
                yield p + shared_name(model) + "down_proj.weight", (h, shared)
            if moe.get("shared_gate"):
                yield p + "shared_expert_gate.weight", (1, h)


class Balance:
    """The experts' biases of a run, and the tokens of the step under way."""

    def __init__(self, model):
        self.moe = model["moe"]
        self.layers = [f"model.layers.{n}.mlp.gate.e_score_correction_bias"
                       for n in mixtures(model)] if self.moe.get("expert_bias") else []
        self.begin(torch.float64)

    def begin(self, dtype):
        self.bias = {name: torch.from_numpy(initial(name, (self.moe["experts"],))).to(dtype)
                     for name in self.layers}
        self.counts = {name: 0 for name in self.layers}

    def choose(self, layer, scores):
        """The chosen experts [b, t, k]."""
        name = f"{layer}mlp.gate.e_score_correction_bias"
        ranks = scores.detach() + (self.bias[name] if name in self.bias else 0)
        groups, best = self.moe.get("groups", 1), self.moe.get("group_topk", 1)
        if groups > 1:
            parts = ranks.unflatten(-1, (groups, -1))
            of_group = torch.topk(parts, self.moe["topk"] // best, dim=-1).values.sum(-1)
            kept = torch.zeros_like(of_group, dtype=torch.bool)
            kept.scatter_(-1, torch.topk(of_group, best, dim=-1).indices, True)
            ranks = parts.masked_fill(~kept.unsqueeze(-1), -torch.inf).flatten(-2)
        chosen = torch.topk(ranks, self.moe["topk"], dim=-1).indices
        if name in self.bias:
            self.counts[name] += torch.bincount(chosen.flatten(), minlength=self.moe["experts"])
        return chosen

    def end_step(self):
        for name, counts in self.counts.items():
            mean = counts.double().mean()
            self.bias[name] += self.moe["bias_rate"] * torch.sign(mean - counts)
            self.counts[name] = 0


def project(model, number, a, w, name):
    return (linear(number, a, w[name + ".weight"].t(), w.get(name + ".bias"))
            + adapter(w, number, a, name, model))


def gated(model, number, a, w, names):
    gate, up, down = names
    gate, up = project(model, number, a, w, gate), project(model, number, a, w, up)
    if model["activation"] == "quick_geglu":
        clamp = model["glu_clamp"]
        gate, up = gate.clamp(max=clamp), up.clamp(-clamp, clamp)
        gate = gate * torch.sigmoid(1.702 * gate)
    else:
        gate = F.silu(gate)
    return project(model, number, gate * (up + model.get("glu_offset", 0)), w, down)


def feed_forward(model, w, p, a, number, losses, balance):
    """The experts' block behind the rows a [b, t, h]; adds what the router is to minimise, a sum
    over tokens, to `losses`."""
    moe = model["moe"]
    b, t, h = a.shape
    experts, k = moe["experts"], moe["topk"]
    part, names = names_of(model)
    router = p + part + router_name(model)
    logits = a @ w[router + ".weight"].t()
    if model["bias"]:
        logits = logits + w[router + ".bias"]
    sigmoid = moe.get("score", "softmax") == "sigmoid"
    scores = torch.sigmoid(logits) if sigmoid else torch.softmax(logits, dim=-1)
    probabilities = scores / scores.sum(-1, keepdim=True)
    chosen = balance.choose(p, scores)
    weights = scores.gather(-1, chosen)
    if moe.get("normalize", True):
        weights = weights / weights.sum(-1, keepdim=True)
    weights = weights * moe.get("scale", 1)
    taken = F.one_hot(chosen, experts)  # [b, t, k, experts]
    out = torch.zeros_like(a)
    for e in range(experts):
        q = p + part + f"experts.{e}."
        weight = (weights * taken[..., e]).sum(-1, keepdim=True)
        out = out + weight * gated(model, number, a, w, [q + name for name in names])
    if moe.get("shared_ffn"):
        q = p + part + shared_name(model)
        shared = gated(model, number, a, w, [q + name for name in names])
        if moe.get("shared_gate"):
            shared = torch.sigmoid(a @ w[p + part + "shared_expert_gate.weight"].t()) * shared
        out = out + shared
    # Of each sequence: experts / (k t^2) sum over experts of its tokens times its probabilities.
    tokens = taken.sum((1, 2)).to(a.dtype)
    balance = experts / (k * t * t) * (tokens * probabilities.sum(1)).sum(-1)
    z = torch.logsumexp(logits, -1).square()
    losses.append(moe["aux_loss"] * balance.mean() + moe["z_loss"] * z.mean())
    return out


class Forward(Balance):
    def __init__(self, model):
        super().__init__(model)
        self.model = model

    def __call__(self, w, ids, number):
        """Mean cross-entropy (nats) over all BATCH * SEQ targets, and the routers' losses."""
        losses = []
        logits = forward_logits(self.model, w, ids[:, :-1], number, losses, self)
        return F.cross_entropy(logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1)) + sum(losses)


def forward_logits(model, w, x, number, losses, balance):
    h, d, heads, kv_heads = (model[key] for key in ("hidden", "head_dim", "heads", "kv_heads"))
    eps = model["norm"]["eps"]
    b, t = x.shape
    dtype = w["lm_head.weight"].dtype
    places = torch.arange(t, dtype=torch.float64)
    angles = torch.outer(places, torch.tensor(llama.frequencies(model, 0), dtype=torch.float64))
    angles = torch.cat((angles, angles), dim=-1)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    windowed = mask = torch.full((t, t), -torch.inf, dtype=dtype).triu(1)
    if "sliding_window" in model:
        past = places[None, :] <= places[:, None] - model["sliding_window"]
        windowed = mask.masked_fill(past, -torch.inf)

    def heads_of(a, p, count):
        a = project(model, number, a, w, p + "_proj")
        a = a.view(b, t, count, d).transpose(1, 2)
        if not p.endswith("v"):
            if model["qk_norm"]:
                a = llama.rms(a, w[p + "_norm.weight"], eps)
            a = llama.rotate(a, cos, sin)
        return a.repeat_interleave(heads // count, dim=1)

    s = w["model.embed_tokens.weight"][x]
    for n in range(model["layers"]):
        p = f"model.layers.{n}."
        a = llama.rms(s, w[p + "input_layernorm.weight"], eps)
        q, k, v = (heads_of(a, p + f"self_attn.{which}", count)
                   for which, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)))
        score = q @ k.transpose(2, 3) / d**0.5 + (windowed if llama.has_window(model, n) else mask)
        if model.get("attention_sinks"):
            sinks = w[p + "self_attn.sinks"].view(1, heads, 1, 1).expand(b, heads, t, 1)
            score = torch.softmax(torch.cat((score, sinks), dim=-1), dim=-1)[..., :-1]
        else:
            score = torch.softmax(score, dim=-1)
        a = (score @ v).transpose(1, 2).reshape(b, t, heads * d)
        s = s + project(model, number, a, w, p + "self_attn.o_proj")
        a = llama.rms(s, w[p + "post_attention_layernorm.weight"], eps)
        if n in mixtures(model):
            s = s + feed_forward(model, w, p, a, number, losses, balance)
        else:
            s = s + gated(model, number, a, w, [p + f"mlp.{x}_proj" for x in ("gate", "up", "down")])
    return linear(number, llama.rms(s, w["model.norm.weight"], eps), w["lm_head.weight"].t())


def together(model, w):
    """The experts' parameters as transformers has gpt-oss's: of all experts in one, [in, out], with
    the columns of gate and up in turns."""
    w = dict(w)
    experts = range(model["moe"]["experts"])

    def all_of(base, name):
        return torch.stack([w.pop(base + f"{e}.{name}") for e in experts])

    def in_turns(gate, up):
        return torch.stack((gate, up), dim=-1).flatten(-2)

    for n in mixtures(model):
        p = f"model.layers.{n}.mlp.experts."
        weights = {x: all_of(p, f"{x}_proj.weight").transpose(1, 2) for x in ("gate", "up", "down")}
        biases = {x: all_of(p, f"{x}_proj.bias") for x in ("gate", "up", "down")}
        w[p + "gate_up_proj"] = in_turns(weights["gate"], weights["up"])
        w[p + "gate_up_proj_bias"] = in_turns(biases["gate"], biases["up"])
        w[p + "down_proj"], w[p + "down_proj_bias"] = weights["down"], biases["down"]
    return w


def check_against_transformers(model):
    try:
        import transformers
    except ImportError:
        print("transformers is not installed: nothing to compare with")
        return
    moe = model["moe"]
    shape = dict(
        vocab_size=VOCAB, hidden_size=model["hidden"], num_hidden_layers=model["layers"],
        num_attention_heads=model["heads"], num_key_value_heads=model["kv_heads"],
        max_position_embeddings=SEQ, rms_norm_eps=model["norm"]["eps"],
        rope_theta=model["position"]["base"], num_experts_per_tok=moe["topk"],
        tie_word_embeddings=False, attn_implementation="eager")
    if model.get("attention_sinks"):
        theirs = transformers.GptOssForCausalLM(transformers.GptOssConfig(
            intermediate_size=model["ffn"], num_local_experts=moe["experts"],
            head_dim=model["head_dim"], sliding_window=model["sliding_window"],
            layer_types=["sliding_attention" if llama.has_window(model, n) else "full_attention"
                         for n in range(model["layers"])],
            **{**shape, "rope_scaling": {"rope_type": "default"}})).eval()
        for layer in theirs.model.layers:
            layer.mlp.experts.limit = model["glu_clamp"]
    elif moe.get("groups"):
        theirs = transformers.Dots1ForCausalLM(transformers.Dots1Config(
            intermediate_size=model["ffn"], moe_intermediate_size=moe["ffn"],
            n_routed_experts=moe["experts"], n_shared_experts=moe["shared_ffn"] // moe["ffn"],
            first_k_dense_replace=len(moe["dense_layers"]), norm_topk_prob=True,
            routed_scaling_factor=moe["scale"], n_group=moe["groups"],
            topk_group=moe["group_topk"], head_dim=model["head_dim"], sliding_window=None,
            **shape)).eval()
    elif moe.get("shared_gate"):
        theirs = transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(
            moe_intermediate_size=model["ffn"], num_experts=moe["experts"],
            shared_expert_intermediate_size=moe["shared_ffn"], norm_topk_prob=moe["normalize"],
            **shape)).eval()
    else:
        theirs = transformers.MixtralForCausalLM(transformers.MixtralConfig(
            intermediate_size=model["ffn"], num_local_experts=moe["experts"], **shape)).eval()
    w = {name: torch.from_numpy(initial(name, shape)) for name, shape in parameters(model)}
    w.update({name: bias.float() for name, bias in Balance(model).bias.items()})
    # Exactly their names.
    theirs.load_state_dict(together(model, w) if model["bias"] else w, strict=True)
    x = torch.from_numpy(windows(0))[:, :-1]
    with torch.no_grad():
        ours = forward_logits(model, w, x, Plain, [], Balance(model))
        difference = float((theirs(x).logits - ours).abs().max())
    print("logits differ from transformers' by at most", difference)
    assert difference < 1e-4


def main():
    out = output_folder(__doc__)
    torch.set_num_threads(1)
    for model in (MIXTRAL, GATED, BALANCED, SINKS):
        check_against_transformers(model)
    result, gradients = compare(parameters(MIXTRAL), Forward(MIXTRAL), MIXTRAL, steps=10)
    write_json(out / "mixtral_small.json", result)
    write_safetensors(out / "mixtral_small_grads.safetensors",
                      {name: value for name, value in gradients.items()
                       if ".layers.0.block_sparse_moe." in name})
    result, _ = compare(parameters(AUX), Forward(AUX), AUX, steps=10)
    write_json(out / "mixtral_aux.json", result)
    result, _ = compare(parameters(GATED), Forward(GATED), GATED, steps=10)
    write_json(out / "mixture_gated.json", result)
    result, _ = compare(with_adapters(parameters(LORA), LORA, out_in=True), Forward(LORA), LORA,
                        steps=10)
    write_json(out / "mixture_lora.json", result)
    result, _ = compare(parameters(SINKS), Forward(SINKS), SINKS, steps=10)
    write_json(out / "mixture_sinks.json", result)
    forward = Forward(BALANCED)
    result, _ = compare(parameters(BALANCED), forward, BALANCED, steps=10)
    result["expert_bias"] = {name: bias.tolist() for name, bias in forward.bias.items()}
    write_json(out / "mixture_balanced.json", result)


if __name__ == "__main__":
    main()
