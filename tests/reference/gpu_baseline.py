#!/usr/bin/env python3
"""What PyTorch does with the models of bench/train_gpu, on this machine: tokens/s and peak memory.

  gpu_baseline.py [--ours FILE] [SHAPE ...]         on the GPU (default: 124m llama-8b 1.5b)
  gpu_baseline.py --device cpu --tiny               tries the program anywhere
  gpu_baseline.py --join FILE FILE                  ours and PyTorch's, as --json wrote them

  --ours FILE   what bench/train_gpu --json wrote: ends with one table of both and the ratios
  --json FILE   an object per row

The models are plain modules of the shapes in tests/bench/gpu_runs.h, trained as people do it:
float32 weights and moments, autocast to bfloat16, scaled_dot_product_attention, each block and the
head with its loss compiled (one compilation serves all layers), fused AdamW with clipping. With
accelerate installed there is a row of its own for the first shape. The vocabulary is filled up to a
multiple of 128 rows, as mtl does, so that no product is slow for its odd size; parameters and FLOPs
are counted without. The limits of the machine are measured beside: a bfloat16 product of 8192^3,
the rate of a copy, and scaled_dot_product_attention alone, timed and with FLOPs counted as in
tests/bench/attention_gpu.cpp, on forms of there: by the backend that PyTorch chooses and by each of
its fast ones.

Model FLOPs count causal attention once (half of the square) and recompute not at all. Memory: the
most that tensors took (allocated), and that with what the allocator kept (reserved); ours is
compared with the first.
"""
import argparse
import contextlib
import gc
import importlib.util
import json
import math
import statistics
import sys
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path

SPEED_BAR, MEMORY_BAR, PLAN_BAR = 1.25, 0.9, 0.03


@dataclass(frozen=True)
class Shape:
    llama: bool
    vocab: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    batch: int  # of a micro-batch
    seq: int
    micro_batches: int  # of a step
    steps: int

    @property
    def rows(self):
        """Of the embedding and the head."""
        return -(-self.vocab // 128) * 128

    @property
    def tokens(self):
        return self.micro_batches * self.batch * self.seq


# Those of tests/bench/gpu_runs.h; how many of its layers llama-8b has there depends on the GPU's
# memory, so that a row of ours says it.
SHAPES = {
    "tiny": Shape(False, 512, 2, 64, 4, 4, 256, 2, 64, 2, 4),
    "tiny-llama": Shape(True, 512, 2, 64, 4, 2, 160, 2, 64, 2, 4),
    "124m": Shape(False, 50257, 12, 768, 12, 12, 3072, 32, 1024, 4, 10),
    "1.5b": Shape(False, 50257, 48, 1600, 25, 25, 6400, 16, 1024, 4, 5),
    "llama-1b-4k": Shape(True, 128256, 16, 2048, 32, 8, 8192, 4, 4096, 4, 4),
    "llama-8b": Shape(True, 128256, 8, 4096, 32, 8, 14336, 2, 8192, 4, 3),
    "llama-8b-2k": Shape(True, 128256, 8, 4096, 32, 8, 14336, 8, 2048, 4, 3),
}
WARM_UP = 2


def parameters_of(s):
    d = s.hidden // s.heads
    qkv = (s.heads + 2 * s.kv_heads) * d
    if s.llama:
        layer = s.hidden * (qkv + s.heads * d + 3 * s.ffn) + 2 * s.hidden
        return s.layers * layer + 2 * s.vocab * s.hidden + s.hidden
    layer = (s.hidden * (qkv + s.heads * d + 2 * s.ffn) + qkv + s.hidden + s.ffn + s.hidden
             + 4 * s.hidden)
    return s.layers * layer + (s.vocab + s.seq) * s.hidden + 2 * s.hidden


def flops_per_token(s):
    """Forward and backward; of the causal square the half that is seen."""
    d = s.hidden // s.heads
    attention = s.hidden * (s.heads + 2 * s.kv_heads) * d + s.heads * d * s.hidden
    mlp = (3 if s.llama else 2) * s.ffn * s.hidden
    layer = 6 * (attention + mlp) + 12 * s.heads * d * s.seq / 2
    return s.layers * layer + 6 * s.hidden * s.vocab


def models(torch):
    """The modules, made here so that --join needs no PyTorch."""
    nn, F = torch.nn, torch.nn.functional

    def attend(q, k, v):
        sdpa = getattr(F, "scaled_dot_product_attention", None)
        if q.shape[1] != k.shape[1]:
            try:
                return sdpa(q, k, v, is_causal=True, enable_gqa=True)
            except TypeError:  # before 2.5
                group = q.shape[1] // k.shape[1]
                k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        if sdpa is not None:
            return sdpa(q, k, v, is_causal=True)
        # Before 2.0: enough to try the program.
        t = q.shape[2]
        score = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
        hidden = torch.ones(t, t, dtype=torch.bool, device=q.device).triu(1)
        return torch.softmax(score.masked_fill(hidden, -math.inf), dim=-1) @ v

    class RMSNorm(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))

        def forward(self, x):
            wide = x.float()
            wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
            return (wide * self.weight).to(x.dtype)

    class Block(nn.Module):
        def __init__(self, s):
            super().__init__()
            self.s, self.d = s, s.hidden // s.heads
            width = (s.heads + 2 * s.kv_heads) * self.d
            bias = not s.llama
            norm = RMSNorm if s.llama else nn.LayerNorm
            self.norm1, self.norm2 = norm(s.hidden), norm(s.hidden)
            self.qkv = nn.Linear(s.hidden, width, bias=bias)
            self.out = nn.Linear(s.heads * self.d, s.hidden, bias=bias)
            self.up = nn.Linear(s.hidden, (2 if s.llama else 1) * s.ffn, bias=bias)
            self.down = nn.Linear(s.ffn, s.hidden, bias=bias)

        def forward(self, x, cos, sin):
            s, d = self.s, self.d
            b, t, _ = x.shape
            q, k, v = self.qkv(self.norm1(x)).split(
                (s.heads * d, s.kv_heads * d, s.kv_heads * d), dim=-1)
            q = q.view(b, t, s.heads, d).transpose(1, 2)
            k = k.view(b, t, s.kv_heads, d).transpose(1, 2)
            v = v.view(b, t, s.kv_heads, d).transpose(1, 2)
            if s.llama:
                def rotate(a):
                    first, second = a.float().chunk(2, dim=-1)
                    return torch.cat((first * cos - second * sin, second * cos + first * sin),
                                     dim=-1).to(a.dtype)
                q, k = rotate(q), rotate(k)
            x = x + self.out(attend(q, k, v).transpose(1, 2).reshape(b, t, s.heads * d))
            a = self.up(self.norm2(x))
            if s.llama:
                gate, a = a.chunk(2, dim=-1)
                a = F.silu(gate) * a
            else:
                a = F.gelu(a, approximate="tanh")
            return x + self.down(a)

    class Head(nn.Module):
        def __init__(self, s, tied):
            super().__init__()
            self.norm = RMSNorm(s.hidden) if s.llama else nn.LayerNorm(s.hidden)
            self.weight = tied if tied is not None else nn.Parameter(
                0.02 * torch.randn(s.rows, s.hidden))

        def forward(self, x, y):
            logits = F.linear(self.norm(x), self.weight)
            return F.cross_entropy(logits.float().flatten(0, 1), y.flatten())

    class Model(nn.Module):
        def __init__(self, s, compiled):
            super().__init__()
            self.s = s
            self.tokens = nn.Embedding(s.rows, s.hidden)
            self.positions = None if s.llama else nn.Embedding(s.seq, s.hidden)
            self.blocks = nn.ModuleList(Block(s) for _ in range(s.layers))
            self.head = Head(s, None if s.llama else self.tokens.weight)
            for p in self.parameters():
                if p.dim() > 1:
                    nn.init.normal_(p, std=0.02)
            d = s.hidden // s.heads
            angles = torch.outer(torch.arange(s.seq).float(),
                                 500000.0 ** (-torch.arange(0, d, 2).float() / d))
            self.register_buffer("cos", angles.cos(), persistent=False)
            self.register_buffer("sin", angles.sin(), persistent=False)
            if compiled:
                for module in [*self.blocks, self.head]:
                    module.compile()

        def forward(self, x, y):
            h = self.tokens(x)
            if self.positions is not None:
                h = h + self.positions.weight[:x.shape[1]]
            if torch.is_autocast_enabled():
                h = h.to(torch.bfloat16)  # the stream between layers, as ours
            for block in self.blocks:
                h = block(h, self.cos, self.sin)
            return self.head(h, y)

    return Model


class Clock:
    def __init__(self, torch, device):
        self.wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    def __call__(self):
        self.wait()
        return time.perf_counter()


def train(torch, name, s, device, accelerate):
    model_of = models(torch)
    clock = Clock(torch, device)
    gc.collect()
    if device == "cuda":
        torch._dynamo.reset()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(1)
    if hasattr(torch, "_dynamo"):
        # Where parameters are constants of the compiled code, every layer is compiled by itself.
        torch._dynamo.config.cache_size_limit = 64
    with torch.device(device) if hasattr(torch, "compile") else contextlib.nullcontext():
        model = model_of(s, compiled=device == "cuda")
    counted = parameters_of(replace(s, vocab=s.rows))
    assert sum(p.numel() for p in model.parameters()) == counted, name
    fused = {"fused": True} if device == "cuda" else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95),
                                  weight_decay=0.1, **fused)
    backward, autocast = lambda loss: loss.backward(), lambda: torch.autocast(
        device, dtype=torch.bfloat16)
    if accelerate:
        from accelerate import Accelerator
        accelerator = Accelerator(mixed_precision="bf16")
        model, optimizer = accelerator.prepare(model, optimizer)
        backward, autocast = accelerator.backward, contextlib.nullcontext
    ids = torch.randint(s.vocab, (s.batch, s.seq + 1), device=device)
    seconds, loss = [], None
    for _ in range(WARM_UP + s.steps):
        begin = clock()
        for _ in range(s.micro_batches):
            with autocast():
                loss = model(ids[:, :-1], ids[:, 1:])
            backward(loss / s.micro_batches)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = float(loss)  # as ours: the host sees the loss of every step
        seconds.append(clock() - begin)
    row = {"shape": name, "variant": "accelerate" if accelerate else "PyTorch",
           "layers": s.layers, "parameters": parameters_of(s), "batch": s.batch, "seq": s.seq,
           "micro_batches": s.micro_batches, "first_s": seconds[0],
           "step_s": statistics.median(seconds[WARM_UP:]), "loss": loss,
           "flops_per_token": flops_per_token(s), "memory_bytes": 0, "reserved_bytes": 0}
    row["tokens_per_s"] = s.tokens / row["step_s"]
    if device == "cuda":
        row["memory_bytes"] = torch.cuda.max_memory_allocated()
        row["reserved_bytes"] = torch.cuda.max_memory_reserved()
    return row


def limits(torch, device):
    """(FLOP/s of a bfloat16 product, bytes/s of a copy, read and written)."""
    clock = Clock(torch, device)
    side, size = (8192, 4 << 30) if device == "cuda" else (256, 16 << 20)
    a, b = (torch.randn(side, side, device=device).to(torch.bfloat16) for _ in range(2))
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def best(work, count):
        seconds = []
        for _ in range(count + 2):
            begin = clock()
            work()
            seconds.append(clock() - begin)
        return min(seconds[2:])

    product = best(lambda: torch.matmul(a, b), 20)
    copied = best(lambda: target.copy_(source), 10)
    return 2 * side**3 / product, 2 * size / copied


# batch, seq, heads, head_dim: of tests/bench/attention_gpu.cpp, those without grouped queries.
ATTENTION = [(32, 1024, 12, 64), (8, 1024, 25, 64), (8, 2048, 32, 96), (1, 8192, 32, 128)]


def backends(torch):
    """What attention may be forced to, by name; PyTorch before 2.3 has no such way."""
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        return {}
    return {name: lambda backend=getattr(SDPBackend, key): sdpa_kernel(backend)
            for name, key in (("flash", "FLASH_ATTENTION"), ("cudnn", "CUDNN_ATTENTION"))
            if hasattr(SDPBackend, key)}


def chosen_backend(torch, q, k, v):
    """The name of what PyTorch takes by itself."""
    try:
        from torch.nn.attention import SDPBackend
        number = torch._fused_sdp_choice(q, k, v, is_causal=True)
        names = [name for name, value in SDPBackend.__members__.items() if int(value) == number]
        return names[0].lower() if names else f"backend {number}"
    except (ImportError, AttributeError, RuntimeError, TypeError) as error:
        return f"not known ({type(error).__name__})"


def seconds_of(clock, call):
    """Of one call: the median of rounds that the host waits for once, as in attention_gpu.cpp."""
    def round_of(calls):
        begin = clock()
        for _ in range(calls):
            call()
        return (clock() - begin) / calls
    round_of(1)
    calls = min(max(int(0.01 / round_of(1)), 1), 100)
    return statistics.median(round_of(calls) for _ in range(7))


def attention(torch, device, forms):
    """Prints TFLOP/s of causal attention, forward and backward."""
    sdpa = getattr(torch.nn.functional, "scaled_dot_product_attention", None)
    if sdpa is None:
        return print("attention alone: PyTorch before 2.0 has none")
    clock = Clock(torch, device)
    ways = {"PyTorch's choice": contextlib.nullcontext, **backends(torch)}
    for batch, seq, heads, dim in forms:
        q, k, v, gradient = (torch.randn(batch, heads, seq, dim, device=device).to(torch.bfloat16)
                             for _ in range(4))
        for x in (q, k, v):
            x.requires_grad_()
        product = batch * heads * dim * seq * seq
        form = f"attention alone, B {batch} T {seq} heads {heads} dim {dim}"
        print(f"{form}: PyTorch chooses {chosen_backend(torch, q, k, v)}", flush=True)
        best = None
        for name, way in ways.items():
            try:
                with way():
                    out = sdpa(q, k, v, is_causal=True)
                    forward = seconds_of(clock, lambda: sdpa(q, k, v, is_causal=True))
                    backward = seconds_of(clock, lambda: torch.autograd.grad(
                        out, (q, k, v), gradient, retain_graph=True))
            except RuntimeError as error:
                print(f"  {name}: none ({str(error).splitlines()[0]})", flush=True)
                continue
            if best is None or forward + backward < best[1] + best[2]:
                best = name, forward, backward
            print(f"  {name}: forward {2 * product / forward / 1e12:.0f}, "
                  f"backward {5 * product / backward / 1e12:.0f} TFLOP/s", flush=True)
        if best is not None:
            print(f"  the fastest: {best[0]}, forward {1e3 * best[1]:.3f} ms, "
                  f"backward {1e3 * best[2]:.3f} ms", flush=True)


def gib(count):
    return f"{count / 2**30:8.1f}" if count else "       -"


def print_row(row, peak):
    mfu = row["tokens_per_s"] * row["flops_per_token"] / peak if peak else 0
    print(f"{row['shape']:12} {row['layers']:6} {row['variant']:12} {row['micro_batches']:2} x "
          f"{row['batch']:3} {row['seq']:6} {row['first_s']:9.2f} {row['step_s']:9.4f} "
          f"{row['tokens_per_s']:10.0f} "
          f"{100 * mfu:6.1f} % {gib(row['memory_bytes'])} {gib(row['reserved_bytes'])} "
          f"{row['loss']:8.3f}", flush=True)


def read_rows(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines() if line.strip()]


def join(ours, theirs, head=True):
    """The table of both; returns whether every shape of theirs has a row of ours."""
    if head:
        print(f"\n{'shape':12} {'mtl':16} {'against':18} {'tokens/s':>10} {'ratio':>7} {'':14} "
              f"{'MFU %':>6} {'GiB':>7} {'ratio':>7} {'':13} {'plan':>7}")
    missing, missed = [], []
    for peer in theirs:
        mine = [row for row in ours if row["shape"] == peer["shape"]]
        if not mine:
            missing.append(peer["shape"])
        for row in mine:
            same = all(math.isclose(row[key], peer[key], rel_tol=1e-3)
                       for key in ("parameters", "batch", "seq", "micro_batches", "flops_per_token"))
            if not same:
                raise SystemExit(f"{peer['shape']}: the two programs train different models: "
                                 f"{row} and {peer}")
            speed = row["tokens_per_s"] / peer["tokens_per_s"]
            memory = row["memory_bytes"] / peer["memory_bytes"] if peer["memory_bytes"] else None
            off = row["memory_bytes"] / row["plan_bytes"] - 1 if row["memory_bytes"] else None
            mfu = row["tokens_per_s"] * row["flops_per_token"] / row["peak"] if row["peak"] else 0

            # PyTorch has no row in fp8, and nobody should take this one for such.
            against = peer["variant"] + (", bf16" if row["variant"].startswith("fp8") else "")

            def verdict(holds, bar, what):
                if not holds:
                    missed.append(f"{row['shape']} {row['variant']} / {against}: "
                                  f"{what} (bar {bar})")
                return f"({'holds' if holds else 'MISSED'} {bar})"
            speed_words = verdict(speed >= SPEED_BAR, f"{SPEED_BAR}x", f"{speed:.2f}x tokens/s")
            words = [f"{row['shape']:12} {row['variant']:16} {against:18} "
                     f"{row['tokens_per_s']:10.0f} {speed:6.2f}x {speed_words:14} "
                     f"{100 * mfu:6.1f}"]
            if memory is None:
                words.append("memory not measured")
            else:
                bar = verdict(memory <= MEMORY_BAR, f"{MEMORY_BAR}x", f"{memory:.2f}x memory")
                plan = verdict(abs(off) <= PLAN_BAR, f"{100 * PLAN_BAR:.0f} %",
                               f"{100 * off:+.1f} % memory of the plan")
                words.append(f"{gib(row['memory_bytes'])[1:]} {memory:6.2f}x {bar:13} "
                             f"{100 * off:+6.1f} % {plan}")
            print(" ".join(words))
    for shape in missing:
        print(f"{shape}: mtl has no row")
    if head:
        if any(row["variant"].startswith("fp8") for row in ours):
            print("rows of mtl in fp8 are held against PyTorch in bf16")
        for words in missed:
            print(f"missed: {words}")
    return not missing


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", metavar="SHAPE")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--ours", metavar="FILE")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--join", nargs=2, metavar="FILE")
    args = parser.parse_args()
    if args.join:
        return 0 if join(read_rows(args.join[0]), read_rows(args.join[1])) else 1
    names = args.shapes or (["tiny", "tiny-llama"] if args.tiny else ["124m", "llama-8b", "1.5b"])
    for name in names:
        if name not in SHAPES:
            parser.error(f"there is no shape {name}: {', '.join(SHAPES)}")
    ours = read_rows(args.ours) if args.ours else []
    shapes = {**SHAPES, **{row["shape"]: replace(SHAPES[row["shape"]], layers=row["layers"])
                           for row in ours if row["shape"] in SHAPES}}
    peak = next((row["peak"] for row in ours if row["peak"]), 0)

    import torch
    if args.device == "cuda" and not torch.cuda.is_available():
        print("PyTorch sees no GPU", file=sys.stderr)
        return 2
    what = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    print(f"PyTorch {torch.__version__} on {what}")
    flops, rate = limits(torch, args.device)
    of_peak = f" ({100 * flops / peak:.1f} % of {peak / 1e12:.0f})" if peak else ""
    print(f"limits: matmul bf16 {flops / 1e12:.1f} TFLOP/s{of_peak}, copy {rate / 1e9:.0f} GB/s")
    print("rows of the vocabulary: " + ", ".join(
        f"{name} {shapes[name].vocab} filled up to {shapes[name].rows}" for name in names)
        + "; FLOPs and parameters count those without filling")
    print(f"{'shape':12} {'layers':>6} {'variant':12} {'B':>8} {'T':>6} {'first s':>9} "
          f"{'median s':>9} {'tokens/s':>10} {'MFU':>8} {'alloc GiB':>8} {'kept GiB':>7} {'loss':>7}")
    todo = [(name, False) for name in names]
    if importlib.util.find_spec("accelerate") is not None:
        todo.append((names[0], True))
    else:
        print("accelerate is not installed: no row of its own")
    rows, failed = [], False
    for name, accelerate in todo:
        try:
            rows.append(train(torch, name, shapes[name], args.device, accelerate))
        except Exception as error:  # the others are worth their time all the same
            if "out of memory" in str(error):
                print(f"{name:12} out of memory", flush=True)
            else:
                traceback.print_exc(file=sys.stdout)
                print(f"{name:12} FAILED: {type(error).__name__}", flush=True)
                failed = True
            continue
        print_row(rows[-1], peak)
        if args.ours:  # at once: there may be no time for the table at the end
            join(ours, rows[-1:], head=False)
        if args.json:
            with open(args.json, "a", encoding="utf-8") as out:
                out.write(json.dumps(rows[-1]) + "\n")
    if args.ours and not join(ours, rows):
        failed = True
    # Last: where time is short the rows are worth more.
    attention(torch, args.device, [(1, 64, 2, 64)] if args.tiny else ATTENTION)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
