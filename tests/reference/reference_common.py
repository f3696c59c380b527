"""What every reference run shares: the hash, initial weights, tokens, optimizer, bf16, files.

README.md beside this file defines every number; nothing here is needed by the product or its tests.
A model is a list of (name, shape) and a function forward(w, ids, number) -> loss, where `number` is
one of the formats below. A forward that has state of its own has begin(dtype), called before the
first step, and end_step(), called behind every update.
"""
import argparse
import json
import math
import pathlib
import struct

import numpy as np
import torch

SEQ, VOCAB = 64, 65
BATCH, STEPS = 12, 50
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

def is_gain(name: str) -> bool:
    return name.endswith((".ln_1.weight", ".ln_2.weight", ".ln_f.weight", "norm.weight"))


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


# ---- number formats -----------------------------------------------------------------------------

class Plain:
    """All tensors have the type of the weights."""

    @staticmethod
    def weight(w):
        return w

    @staticmethod
    def wide(x):
        return x

    @staticmethod
    def store(x):
        return x


class _Rounded(torch.autograd.Function):
    """The nearest bfloat16 values in float32; the gradient passes as it is."""

    @staticmethod
    def forward(ctx, w):
        return w.bfloat16().float()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Bf16:
    """bfloat16 weights and activations over float32 masters and gradients of weights. What is
    computed between two stores (sums of a product, a norm, softmax, the loss) is float32; a store
    rounds the activation, and on the way back its gradient."""

    @staticmethod
    def weight(w):
        return _Rounded.apply(w)

    @staticmethod
    def wide(x):
        return x.float()

    @staticmethod
    def store(x):
        return x.bfloat16()


def linear(number, x, weight, bias=None):
    """x [.., in] times weight [in, out]."""
    y = number.wide(x) @ number.weight(weight)
    return number.store(y if bias is None else y + number.weight(bias))


# ---- adapters (LoRA) ----------------------------------------------------------------------------

# Of a linear, by the end of its name: the target that stands for it, and where the first matrix of
# its adapter is, which several linears may have together.
ADAPTED = {"attn.c_attn": ("qkv", "attn.c_attn"), "attn.c_proj": ("proj", "attn.c_proj"),
           "mlp.c_fc": ("up", "mlp.c_fc"), "mlp.c_proj": ("down", "mlp.c_proj"),
           "q_proj": ("qkv", "q_proj"), "k_proj": ("qkv", "q_proj"), "v_proj": ("qkv", "q_proj"),
           "o_proj": ("proj", "o_proj"), "gate_proj": ("up", "gate_proj"),
           "up_proj": ("up", "gate_proj"), "down_proj": ("down", "down_proj"),
           **{name: ("qkv", name) for name in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa",
                                               "kv_b_proj")}}


def adapted(name, parameters):
    """(target, name of the linear that has the first matrix), or None; of the gate and what it
    multiplies where the model's parameters have a gate."""
    for end, (target, first) in ADAPTED.items():
        if name.endswith("." + end) and ".experts." not in name:
            first = name.removesuffix(end) + first
            return target, first if first + ".weight" in parameters else name
    return None


def with_adapters(parameters, model, out_in):
    """The parameters, and behind them those of the adapters that model["lora"] asks for."""
    parameters = list(parameters)
    yield from parameters
    rank, seen, by_name = model["lora"]["rank"], set(), dict(parameters)
    for name, shape in parameters:
        found = adapted(name.removesuffix(".weight"), by_name)
        if not name.endswith(".weight") or found is None or found[0] not in model["lora"]["targets"]:
            continue
        out, inner = shape if out_in else shape[::-1]
        if found[1] not in seen:
            yield found[1] + ".lora_A.weight", (rank, inner)
        seen.add(found[1])
        yield name.removesuffix(".weight") + ".lora_B.weight", (out, rank)


def adapter(w, number, x, name, model):
    """What the adapter of a linear adds to what that makes of x."""
    if name + ".lora_B.weight" not in w:
        return 0
    a = w[adapted(name, w)[1] + ".lora_A.weight"]
    narrow = linear(number, x, a.t()) * (model["lora"]["alpha"] / model["lora"]["rank"])
    return linear(number, narrow, w[name + ".lora_B.weight"].t())


# ---- training -----------------------------------------------------------------------------------

def learning_rate(step: int) -> float:
    if step < WARMUP:
        return LR_MAX * (step + 1) / WARMUP
    r = min(1.0, (step - WARMUP) / (DECAY - WARMUP))
    return LR_MIN + 0.5 * (LR_MAX - LR_MIN) * (1 + math.cos(math.pi * r))


class FullMuon(torch.optim.Muon):
    """PyTorch's Muon, which rounds matrices to bfloat16 before it orthogonalizes them, without that."""

    def step(self):
        rounded = torch.Tensor.bfloat16
        torch.Tensor.bfloat16 = lambda tensor: tensor
        try:
            super().step()
        finally:
            torch.Tensor.bfloat16 = rounded


def muon_and_adam(w):
    """Muon for the matrices of layers, with steps as long as AdamW's; AdamW for all else."""
    matrices = {name: p for name, p in w.items() if p.dim() == 2 and ".layers." in name}
    others = {name: p for name, p in w.items() if name not in matrices}
    return [FullMuon(matrices.values(), lr=LR_MAX, weight_decay=WEIGHT_DECAY, momentum=0.95,
                     nesterov=True, ns_steps=5, adjust_lr_fn="match_rms_adamw"),
            *adam_alone(others)]


def adam_alone(w):
    groups = [{"params": [p for p in w.values() if p.dim() == 2], "weight_decay": WEIGHT_DECAY},
              {"params": [p for p in w.values() if p.dim() != 2], "weight_decay": 0.0}]
    return [torch.optim.AdamW(groups, lr=LR_MAX, betas=(BETA1, BETA2), eps=ADAM_EPS)]


def trained_of(by_name):
    """Of parameters those that are trained: of adapters these alone."""
    adapters = {name: value for name, value in by_name.items() if ".lora_" in name}
    return adapters or by_name


def train(parameters, forward, dtype, steps=STEPS, number=Plain, muon=False):
    """(losses, gradient norms, first gradients, norms of the last weights) of one run. `dtype` is
    that of the weights that the optimizer holds."""
    everything = {name: torch.from_numpy(initial(name, shape)).to(dtype)
                  for name, shape in parameters}
    w = trained_of(everything)
    for p in w.values():
        p.requires_grad_()
    optimizers = muon_and_adam(w) if muon else adam_alone(w)
    losses, norms, first = [], [], {}
    getattr(forward, "begin", lambda dtype: None)(dtype)
    for step in range(steps):
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step)
            optimizer.zero_grad()
        loss = forward(everything, torch.from_numpy(windows(step)), number)
        loss.backward()
        if step == 0:
            first = {name: p.grad.numpy().copy() for name, p in w.items()}
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(w.values()), CLIP)))
        losses.append(float(loss.detach()))
        for optimizer in optimizers:
            optimizer.step()
        getattr(forward, "end_step", lambda: None)()
    final = {name: float(p.detach().double().norm()) for name, p in w.items()}
    return losses, norms, first, final


def spread(values, reference):
    """Largest relative difference."""
    return max(abs(a - b) / b for a, b in zip(values, reference))


def compare(parameters, forward, model, steps=STEPS, bf16=False, muon=False):
    """The JSON document of one model, and its first gradients (float64)."""
    parameters = list(parameters)
    loss32, norm32, grad32, final32 = train(parameters, forward, torch.float32, steps, muon=muon)
    loss64, norm64, grad64, final64 = train(parameters, forward, torch.float64, steps, muon=muon)
    per_parameter = {}
    for name, shape in trained_of(dict(parameters)).items():
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
        "model": model,
        "train": {"global_batch": BATCH, "steps": steps},
        "optimizer": {"betas": [BETA1, BETA2], "eps": ADAM_EPS, "weight_decay": WEIGHT_DECAY,
                      "clip": CLIP},
        "lr": {"max": LR_MAX, "min": LR_MIN, "warmup": WARMUP, "decay": DECAY,
               "values": [learning_rate(step) for step in range(steps)]},
        "check": {
            "fnv1a64_tokens": f"{fnv1a64('tokens'):016x}",
            "splitmix64_0": f"{int(splitmix64(np.zeros(1, dtype=np.uint64))[0]):016x}",
            "first_window_head": windows(0)[0, :16].tolist(),
            "token_sum_per_step": [int(windows(step).sum()) for step in range(steps)],
        },
        "loss": loss64,
        "grad_norm": norm64,
        "loss_fp32": loss32,
        "grad_norm_fp32": norm32,
        "noise": {
            "loss": spread(loss32, loss64),
            "grad_norm": spread(norm32, norm64),
            "grad": max(p["grad_noise"] for p in per_parameter.values()),
        },
    }
    if muon:
        result["optimizer"]["type"] = "muon"
    if bf16:
        loss16, norm16, _, _ = train(parameters, forward, torch.float32, steps, Bf16)
        result["loss_bf16"] = loss16
        result["noise_bf16"] = {"loss": spread(loss16, loss64),
                                "grad_norm": spread(norm16, norm64)}
    result["parameters"] = per_parameter
    return result, grad64


# ---- output -------------------------------------------------------------------------------------

def output_folder(description):
    """From the command line; the folder of this file unless --out says otherwise."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, help="folder to write to",
                        default=pathlib.Path(__file__).resolve().parent)
    return parser.parse_args().out


def write_json(path, result):
    path.write_text(json.dumps(result, indent=1) + "\n")
    noise = {key: value for key, value in result.items() if key.startswith("noise")}
    print(path.name, json.dumps(noise), "loss", result["loss"][0], "->", result["loss"][-1])


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, value in tensors.items():
        value = value.astype("<f4")
        header[name] = {"dtype": "F32", "shape": list(value.shape),
                        "data_offsets": [offset, offset + value.nbytes]}
        offset += value.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for value in tensors.values():
            out.write(value.astype("<f4").tobytes())
