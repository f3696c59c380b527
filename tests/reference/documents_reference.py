#!/usr/bin/env python3
"""Loss and gradients of a step over packed documents, from PyTorch in float64.

The LLaMA of llama_reference.py with its weights and tokens; token EOD ends a document: positions
begin anew behind it, attention does not look back over it, and its target does not count. The loss
is the mean over what counts. Writes documents.json: loss, counted targets, norm and first elements of
each gradient.

  /usr/bin/python3 tests/reference/documents_reference.py [FOLDER]
"""
import json
import math

import torch
import torch.nn.functional as F

from llama_reference import LLAMA, frequencies, parameters, rms, rotate
from reference_common import SEQ, VOCAB, initial, output_folder, windows

EOD = 3


def main():
    out = output_folder(__doc__)
    model = LLAMA
    d, heads, kv_heads = model["head_dim"], model["heads"], model["kv_heads"]
    eps = model["norm"]["eps"]
    w = {name: torch.tensor(initial(name, shape), dtype=torch.float64, requires_grad=True)
         for name, shape in parameters(model)}
    ids = torch.tensor(windows(0))
    x, y = ids[:, :-1], ids[:, 1:].clone()
    batch = x.shape[0]
    y[x == EOD] = -100

    first = torch.zeros((batch, SEQ), dtype=torch.long)  # of each token's document
    for b in range(batch):
        begin = 0
        for t in range(SEQ):
            first[b, t] = begin
            if x[b, t] == EOD:
                begin = t + 1
    places = torch.arange(SEQ)
    hidden = (places[None, None, :] > places[None, :, None]) | (
        places[None, None, :] < first[:, :, None])
    mask = torch.zeros((batch, 1, SEQ, SEQ), dtype=torch.float64)
    mask.masked_fill_(hidden[:, None], -math.inf)
    positions = (places[None, :] - first).double()
    angles = positions[..., None] * torch.tensor(frequencies(model), dtype=torch.float64)
    angles = torch.cat((angles, angles), dim=-1)[:, None]
    cos, sin = angles.cos(), angles.sin()

    s = w["model.embed_tokens.weight"][x]
    for n in range(model["layers"]):
        p = f"model.layers.{n}."
        a = rms(s, w[p + "input_layernorm.weight"], eps)

        def of(which, count):
            z = a @ w[p + f"self_attn.{which}_proj.weight"].t()
            z = z.view(batch, SEQ, count, d).transpose(1, 2)
            if which != "v":
                z = rotate(z, cos, sin)
            return z.repeat_interleave(heads // count, dim=1)

        q, k, v = of("q", heads), of("k", kv_heads), of("v", kv_heads)
        score = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(d) + mask, dim=-1)
        a = (score @ v).transpose(1, 2).reshape(batch, SEQ, heads * d)
        s = s + a @ w[p + "self_attn.o_proj.weight"].t()
        a = rms(s, w[p + "post_attention_layernorm.weight"], eps)
        inner = F.silu(a @ w[p + "mlp.gate_proj.weight"].t()) * (a @ w[p + "mlp.up_proj.weight"].t())
        s = s + inner @ w[p + "mlp.down_proj.weight"].t()
    logits = rms(s, w["model.norm.weight"], eps) @ w["lm_head.weight"].t()
    loss = F.cross_entropy(logits.reshape(-1, VOCAB), y.reshape(-1), ignore_index=-100)
    loss.backward()
    gradients = {name: {"norm": value.grad.norm().item(),
                        "head": value.grad.reshape(-1)[:8].tolist()} for name, value in w.items()}
    total = math.sqrt(sum(g["norm"] ** 2 for g in gradients.values()))
    result = {"eod": EOD, "loss": loss.item(), "counted": int((y != -100).sum()),
              "documents": int((first != first.roll(1, 1)).sum()), "grad_norm": total,
              "gradients": gradients}
    (out / "documents.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
