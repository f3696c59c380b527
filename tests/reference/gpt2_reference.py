#!/usr/bin/env python3
"""Reference numbers for the parity tests, from PyTorch.

A GPT-2 of four layers trained for 50 steps in float32 and in float64. A developer runs this once
(needs PyTorch and NumPy); the product and its tests never do: they read the two small files that
this writes. README.md beside this file defines every number exactly; weights and tokens come from
an integer hash, so that any other program can make the same ones without reading them.

  gpt2_small.json               hyper-parameters, losses, gradient norms, noise floor
  gpt2_small_grads.safetensors  gradients of the first step (before clipping) of every parameter
"""
import argparse
import json
import math
import pathlib
import struct

import numpy as np
import torch
import torch.nn.functional as F

LAYERS, HIDDEN, HEADS, SEQ, VOCAB = 4, 128, 4, 64, 65
BATCH, STEPS = 12, 50
NORM_EPS = 1e-5
LR_MAX, LR_MIN, WARMUP, DECAY = 1e-3, 1e-4, 5, 50
BETA1, BETA2, ADAM_EPS, WEIGHT_DECAY, CLIP = 0.9, 0.99, 1e-8, 0.1, 1.0


# ---- the hash -----------------------------------------------------------------------------------

def fnv1a64(text: str) -> int:
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def splitmix64(x: np.ndarray) -> np.ndarray:
    """The output function of splitmix64 for state x (uint64, wraps)."""
    with np.errstate(over="ignore"):
        z = x + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def stream(name: str, count: int, first: int = 0) -> np.ndarray:
    with np.errstate(over="ignore"):
        return splitmix64(np.uint64(fnv1a64(name)) + np.uint64(first)
                          + np.arange(count, dtype=np.uint64))


# ---- weights and tokens -------------------------------------------------------------------------

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


def is_gain(name: str) -> bool:
    return name.endswith((".ln_1.weight", ".ln_2.weight", ".ln_f.weight"))


def initial(name: str, shape) -> np.ndarray:
    k = (stream(name, math.prod(shape)) >> np.uint64(40)).astype(np.int64)
    value = (k - 8388608).astype(np.float64) * 2.0**-26  # exact, in [-1/8, 1/8)
    if is_gain(name):
        value += 1.0
    return value.astype(np.float32).reshape(shape)


def windows(step: int) -> np.ndarray:
    """Token ids [BATCH, SEQ + 1] of one step."""
    width = SEQ + 1
    r = stream("tokens", BATCH * width, first=step * BATCH * width).reshape(BATCH, width)
    ids = (r % np.uint64(VOCAB)).astype(np.int64)
    fresh = ((r >> np.uint64(32)) % np.uint64(4)) == 0
    for t in range(1, width):
        ids[:, t] = np.where(fresh[:, t], ids[:, t], (7 * ids[:, t - 1] + 3) % VOCAB)
    return ids


# ---- the model ----------------------------------------------------------------------------------

def forward(w, ids):
    """Mean cross-entropy (nats) over all BATCH * SEQ targets."""
    x, y = ids[:, :-1], ids[:, 1:]
    b, t = x.shape
    d = HIDDEN // HEADS
    mask = torch.full((t, t), -math.inf, dtype=w["transformer.wte.weight"].dtype).triu(1)
    s = w["transformer.wte.weight"][x] + w["transformer.wpe.weight"][:t]
    for n in range(LAYERS):
        p = f"transformer.h.{n}."
        a = F.layer_norm(s, (HIDDEN,), w[p + "ln_1.weight"], w[p + "ln_1.bias"], NORM_EPS)
        qkv = a @ w[p + "attn.c_attn.weight"] + w[p + "attn.c_attn.bias"]
        q, k, v = (z.view(b, t, HEADS, d).transpose(1, 2) for z in qkv.split(HIDDEN, dim=2))
        score = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(d) + mask, dim=-1)
        a = (score @ v).transpose(1, 2).reshape(b, t, HIDDEN)
        s = s + a @ w[p + "attn.c_proj.weight"] + w[p + "attn.c_proj.bias"]
        a = F.layer_norm(s, (HIDDEN,), w[p + "ln_2.weight"], w[p + "ln_2.bias"], NORM_EPS)
        a = F.gelu(a @ w[p + "mlp.c_fc.weight"] + w[p + "mlp.c_fc.bias"], approximate="tanh")
        s = s + a @ w[p + "mlp.c_proj.weight"] + w[p + "mlp.c_proj.bias"]
    s = F.layer_norm(s, (HIDDEN,), w["transformer.ln_f.weight"], w["transformer.ln_f.bias"],
                     NORM_EPS)
    logits = s @ w["transformer.wte.weight"].t()
    return F.cross_entropy(logits.reshape(-1, VOCAB), y.reshape(-1))


def learning_rate(step: int) -> float:
    if step < WARMUP:
        return LR_MAX * (step + 1) / WARMUP
    r = min(1.0, (step - WARMUP) / (DECAY - WARMUP))
    return LR_MIN + 0.5 * (LR_MAX - LR_MIN) * (1 + math.cos(math.pi * r))


def train(dtype):
    w = {name: torch.from_numpy(initial(name, shape)).to(dtype).requires_grad_()
         for name, shape in parameters()}
    groups = [{"params": [p for p in w.values() if p.dim() == 2], "weight_decay": WEIGHT_DECAY},
              {"params": [p for p in w.values() if p.dim() != 2], "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=LR_MAX, betas=(BETA1, BETA2), eps=ADAM_EPS)
    losses, norms, first = [], [], {}
    for step in range(STEPS):
        for group in adam.param_groups:
            group["lr"] = learning_rate(step)
        adam.zero_grad()
        loss = forward(w, torch.from_numpy(windows(step)))
        loss.backward()
        if step == 0:
            first = {name: p.grad.numpy().copy() for name, p in w.items()}
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(w.values()), CLIP)))
        losses.append(float(loss.detach()))
        adam.step()
    final = {name: float(p.detach().double().norm()) for name, p in w.items()}
    return losses, norms, first, final


# ---- output -------------------------------------------------------------------------------------

def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, value in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(value.shape),
                        "data_offsets": [offset, offset + value.nbytes]}
        offset += value.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for value in tensors.values():
            out.write(value.astype("<f4").tobytes())


def main():
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, default=here, help="folder to write to")
    out = parser.parse_args().out
    torch.set_num_threads(1)

    loss32, norm32, grad32, final32 = train(torch.float32)
    loss64, norm64, grad64, final64 = train(torch.float64)
    per_parameter = {}
    for name, shape in parameters():
        reference = grad64[name]
        per_parameter[name] = {
            "shape": list(shape),
            "initial_head": [float(v) for v in initial(name, shape).reshape(-1)[:4]],
            "grad_norm": float(np.linalg.norm(reference)),
            "grad_noise": float(np.linalg.norm(grad32[name] - reference)
                                / np.linalg.norm(reference)),
            "final_norm": final64[name],
            "final_noise": abs(final32[name] - final64[name]) / final64[name],
        }
    result = {
        "torch": torch.__version__.split("+")[0],
        "model": {"layers": LAYERS, "hidden": HIDDEN, "heads": HEADS, "ffn": 4 * HIDDEN,
                  "seq_len": SEQ, "max_seq": SEQ, "vocab": VOCAB, "norm_eps": NORM_EPS,
                  "activation": "gelu_tanh", "bias": True, "tie_embeddings": True},
        "train": {"global_batch": BATCH, "steps": STEPS},
        "optimizer": {"betas": [BETA1, BETA2], "eps": ADAM_EPS, "weight_decay": WEIGHT_DECAY,
                      "clip": CLIP},
        "lr": {"max": LR_MAX, "min": LR_MIN, "warmup": WARMUP, "decay": DECAY,
               "values": [learning_rate(step) for step in range(STEPS)]},
        "check": {
            "fnv1a64_tokens": f"{fnv1a64('tokens'):016x}",
            "splitmix64_0": f"{int(splitmix64(np.zeros(1, dtype=np.uint64))[0]):016x}",
            "first_window_head": windows(0)[0, :16].tolist(),
            "token_sum_per_step": [int(windows(step).sum()) for step in range(STEPS)],
        },
        "loss": loss64,
        "grad_norm": norm64,
        "loss_fp32": loss32,
        "grad_norm_fp32": norm32,
        "noise": {
            "loss": max(abs(a - b) / b for a, b in zip(loss32, loss64)),
            "grad_norm": max(abs(a - b) / b for a, b in zip(norm32, norm64)),
            "grad": max(p["grad_noise"] for p in per_parameter.values()),
        },
        "parameters": per_parameter,
    }
    (out / "gpt2_small.json").write_text(json.dumps(result, indent=1) + "\n")
    write_safetensors(out / "gpt2_small_grads.safetensors",
                      {name: grad64[name].astype(np.float32) for name, _ in parameters()})
    print(json.dumps(result["noise"]), "loss", loss64[0], "->", loss64[-1])


if __name__ == "__main__":
    main()
