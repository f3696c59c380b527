#!/usr/bin/env python3
"""Reference numbers of a mixture of experts for the parity tests, from PyTorch.

Mixtral in the manner of llama_reference.py, of which it has everything but the feed-forward blocks.
README.md beside this file defines every number exactly.

  mixtral_small.json               10 steps in float64 and float32
  mixtral_small_grads.safetensors  gradients of the first step (before clipping), of the first
                                   layer's router and experts
  mixtral_aux.json                 the same with both losses of the router, which autograd
                                   differentiates: `loss` is all that is minimised

The logits are checked against transformers' MixtralForCausalLM where that is installed. Its
load-balancing loss is another one than ours (over all layers and the whole batch at once), so it is
not compared.
"""
import torch
import torch.nn.functional as F

import llama_reference as llama
from reference_common import (SEQ, VOCAB, compare, initial, linear, output_folder, windows,
                              write_json, write_safetensors, Plain)

MIXTRAL = {**llama.LLAMA, "layers": 3, "ffn": 48, "moe": {"experts": 4, "topk": 2, "aux_loss": 0.0,
                                                          "z_loss": 0.0}}
AUX = {**MIXTRAL, "moe": {"experts": 5, "topk": 3, "aux_loss": 0.1, "z_loss": 0.05}}


def parameters(model):
    """(name, shape) in the order of the model; matrices are [out, in]."""
    h, f = model["hidden"], model["ffn"]
    for name, shape in llama.parameters(model):
        if ".mlp." not in name:
            yield name, shape
        elif name.endswith("gate_proj.weight"):
            p = name.replace("mlp.gate_proj.weight", "block_sparse_moe.")
            yield p + "gate.weight", (model["moe"]["experts"], h)
            for e in range(model["moe"]["experts"]):
                yield p + f"experts.{e}.w1.weight", (f, h)
                yield p + f"experts.{e}.w3.weight", (f, h)
                yield p + f"experts.{e}.w2.weight", (h, f)


def feed_forward(model, w, p, a, number, losses):
    """The experts' block behind the rows a [b, t, h]; adds what the router is to minimise, a sum
    over tokens, to `losses`."""
    moe = model["moe"]
    b, t, h = a.shape
    experts, k = moe["experts"], moe["topk"]
    logits = a @ w[p + "block_sparse_moe.gate.weight"].t()
    probabilities = torch.softmax(logits, dim=-1)
    weights, chosen = torch.topk(probabilities, k, dim=-1)
    weights = weights / weights.sum(-1, keepdim=True)
    taken = F.one_hot(chosen, experts)  # [b, t, k, experts]
    out = torch.zeros_like(a)
    for e in range(experts):
        q = p + f"block_sparse_moe.experts.{e}."
        gate = linear(number, a, w[q + "w1.weight"].t())
        up = linear(number, a, w[q + "w3.weight"].t())
        down = linear(number, F.silu(gate) * up, w[q + "w2.weight"].t())
        weight = (weights * taken[..., e]).sum(-1, keepdim=True)
        out = out + weight * down
    # Of each sequence: experts / (k t^2) sum over experts of its tokens times its probabilities.
    tokens = taken.sum((1, 2)).to(a.dtype)
    balance = experts / (k * t * t) * (tokens * probabilities.sum(1)).sum(-1)
    z = torch.logsumexp(logits, -1).square()
    losses.append(moe["aux_loss"] * balance.mean() + moe["z_loss"] * z.mean())
    return out


def make_forward(model):
    def forward(w, ids, number):
        """Mean cross-entropy (nats) over all BATCH * SEQ targets, and the routers' losses."""
        losses = []
        logits = forward_logits(model, w, ids[:, :-1], number, losses)
        return F.cross_entropy(logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1)) + sum(losses)

    return forward


def forward_logits(model, w, x, number, losses):
    h, d, heads, kv_heads = (model[key] for key in ("hidden", "head_dim", "heads", "kv_heads"))
    eps = model["norm"]["eps"]
    b, t = x.shape
    dtype = w["lm_head.weight"].dtype
    places = torch.arange(t, dtype=torch.float64)
    angles = torch.outer(places, torch.tensor(llama.frequencies(model), dtype=torch.float64))
    angles = torch.cat((angles, angles), dim=-1)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    mask = torch.full((t, t), -torch.inf, dtype=dtype).triu(1)

    def heads_of(a, p, count):
        a = linear(number, a, w[p + "_proj.weight"].t()).view(b, t, count, d).transpose(1, 2)
        if not p.endswith("v"):
            a = llama.rotate(a, cos, sin)
        return a.repeat_interleave(heads // count, dim=1)

    s = w["model.embed_tokens.weight"][x]
    for n in range(model["layers"]):
        p = f"model.layers.{n}."
        a = llama.rms(s, w[p + "input_layernorm.weight"], eps)
        q, k, v = (heads_of(a, p + f"self_attn.{which}", count)
                   for which, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)))
        score = torch.softmax(q @ k.transpose(2, 3) / d**0.5 + mask, dim=-1)
        a = (score @ v).transpose(1, 2).reshape(b, t, heads * d)
        s = s + linear(number, a, w[p + "self_attn.o_proj.weight"].t())
        a = llama.rms(s, w[p + "post_attention_layernorm.weight"], eps)
        s = s + feed_forward(model, w, p, a, number, losses)
    return linear(number, llama.rms(s, w["model.norm.weight"], eps), w["lm_head.weight"].t())


def check_against_transformers(model):
    try:
        from transformers import MixtralConfig, MixtralForCausalLM
    except ImportError:
        print("transformers is not installed: nothing to compare with")
        return
    config = MixtralConfig(
        vocab_size=VOCAB, hidden_size=model["hidden"], intermediate_size=model["ffn"],
        num_hidden_layers=model["layers"], num_attention_heads=model["heads"],
        num_key_value_heads=model["kv_heads"], max_position_embeddings=SEQ,
        rms_norm_eps=model["norm"]["eps"], rope_theta=model["position"]["base"],
        num_local_experts=model["moe"]["experts"], num_experts_per_tok=model["moe"]["topk"],
        tie_word_embeddings=False, attn_implementation="eager")
    theirs = MixtralForCausalLM(config).eval()
    w = {name: torch.from_numpy(initial(name, shape)) for name, shape in parameters(model)}
    theirs.load_state_dict(w, strict=True)  # exactly their names
    x = torch.from_numpy(windows(0))[:, :-1]
    with torch.no_grad():
        ours = forward_logits(model, w, x, Plain, [])
        difference = float((theirs(x).logits - ours).abs().max())
    print("logits differ from transformers' by at most", difference)
    assert difference < 1e-4


def main():
    out = output_folder(__doc__)
    torch.set_num_threads(1)
    check_against_transformers(MIXTRAL)
    result, gradients = compare(parameters(MIXTRAL), make_forward(MIXTRAL), MIXTRAL, steps=10)
    write_json(out / "mixtral_small.json", result)
    write_safetensors(out / "mixtral_small_grads.safetensors",
                      {name: value for name, value in gradients.items()
                       if ".layers.0.block_sparse_moe." in name})
    result, _ = compare(parameters(AUX), make_forward(AUX), AUX, steps=10)
    write_json(out / "mixtral_aux.json", result)


if __name__ == "__main__":
    main()
