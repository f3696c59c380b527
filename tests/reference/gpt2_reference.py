#!/usr/bin/env python3
"""Reference numbers of GPT-2 for the parity tests, from PyTorch.

A GPT-2 of four layers trained for 50 steps in float64, float32 and bfloat16. A developer runs this
once (needs PyTorch and NumPy); the product and its tests never do: they read the two small files
that this writes. README.md beside this file defines every number exactly; weights and tokens come
from an integer hash, so that any other program can make the same ones without reading them.

  gpt2_small.json               hyper-parameters, losses, gradient norms, noise floor
  gpt2_small_grads.safetensors  gradients of the first step (before clipping) of every parameter
  gpt2_lora.json                adapters beside all its linears: 10 steps
"""
import math

import torch
import torch.nn.functional as F

from reference_common import (SEQ, VOCAB, adapter, compare, linear, output_folder, with_adapters,
                              write_json, write_safetensors)

LAYERS, HIDDEN, HEADS = 4, 128, 4
NORM_EPS = 1e-5


def parameters():
    """(name, shape) in the order of the model."""
    h = HIDDEN
    yield "transformer.wte.weight", (VOCAB, h)
    yield "transformer.wpe.weight", (SEQ, h)
    for n in range(LAYERS):
        p = f"transformer.h.{n}."
        yield p + "ln_1.weight", (h,)
        yield p + "ln_1.bias", (h,)
        yield p + "attn.c_attn.weight", (h, 3 * h)
        yield p + "attn.c_attn.bias", (3 * h,)
        yield p + "attn.c_proj.weight", (h, h)
        yield p + "attn.c_proj.bias", (h,)
        yield p + "ln_2.weight", (h,)
        yield p + "ln_2.bias", (h,)
        yield p + "mlp.c_fc.weight", (h, 4 * h)
        yield p + "mlp.c_fc.bias", (4 * h,)
        yield p + "mlp.c_proj.weight", (4 * h, h)
        yield p + "mlp.c_proj.bias", (h,)
    yield "transformer.ln_f.weight", (h,)
    yield "transformer.ln_f.bias", (h,)


LORA = {"rank": 6, "alpha": 9, "targets": ["qkv", "proj", "up", "down"]}


def forward(w, ids, number):
    """Mean cross-entropy (nats) over all BATCH * SEQ targets."""
    x, y = ids[:, :-1], ids[:, 1:]
    b, t = x.shape
    d = HIDDEN // HEADS
    mask = torch.full((t, t), -math.inf, dtype=w["transformer.wte.weight"].dtype).triu(1)

    def norm(s, p):
        gain, bias = number.weight(w[p + ".weight"]), number.weight(w[p + ".bias"])
        return number.store(F.layer_norm(number.wide(s), (HIDDEN,), gain, bias, NORM_EPS))

    def project(a, p):
        return (linear(number, a, w[p + ".weight"], w[p + ".bias"])
                + adapter(w, number, a, p, {"lora": LORA}))

    tokens, positions = (number.weight(w[f"transformer.{p}.weight"]) for p in ("wte", "wpe"))
    s = number.store(tokens[x] + positions[:t])
    for n in range(LAYERS):
        p = f"transformer.h.{n}."
        qkv = number.wide(project(norm(s, p + "ln_1"), p + "attn.c_attn"))
        q, k, v = (z.view(b, t, HEADS, d).transpose(1, 2) for z in qkv.split(HIDDEN, dim=2))
        score = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(d) + mask, dim=-1)
        a = number.store((score @ v).transpose(1, 2).reshape(b, t, HIDDEN))
        s = s + project(a, p + "attn.c_proj")
        a = number.wide(project(norm(s, p + "ln_2"), p + "mlp.c_fc"))
        s = s + project(number.store(F.gelu(a, approximate="tanh")), p + "mlp.c_proj")
    s = norm(s, "transformer.ln_f")
    logits = number.wide(linear(number, s, w["transformer.wte.weight"].t()))
    return F.cross_entropy(logits.reshape(-1, VOCAB), y.reshape(-1))


def main():
    out = output_folder(__doc__)
    torch.set_num_threads(1)
    model = {"layers": LAYERS, "hidden": HIDDEN, "heads": HEADS, "ffn": 4 * HIDDEN,
             "seq_len": SEQ, "max_seq": SEQ, "vocab": VOCAB, "norm_eps": NORM_EPS,
             "activation": "gelu_tanh", "bias": True, "tie_embeddings": True}
    result, gradients = compare(parameters(), forward, model, bf16=True)
    write_json(out / "gpt2_small.json", result)
    write_safetensors(out / "gpt2_small_grads.safetensors", gradients)
    model = {**model, "lora": LORA}
    result, _ = compare(with_adapters(parameters(), model, out_in=False), forward, model, steps=10)
    write_json(out / "gpt2_lora.json", result)


if __name__ == "__main__":
    main()
