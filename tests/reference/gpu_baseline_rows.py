"""What gpu_baseline.py measures, each in a process of its own: a row of training steps, the limits of
the machine, and attention alone.
"""
import contextlib
import statistics
import time
from dataclasses import replace

from gpu_baseline_models import attend, flops_per_token, heads_of, models, parameters_of

WARM_UP = 2


class Clock:
    def __init__(self, torch, device):
        self.wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    def __call__(self):
        self.wait()
        return time.perf_counter()


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


# PyTorch's fast backends of attention, and what switches each (torch.backends.cuda).
BACKENDS = {"flash": ("FLASH_ATTENTION", "enable_flash_sdp"),
            "cudnn": ("CUDNN_ATTENTION", "enable_cudnn_sdp")}


def backends(torch):
    """The ways to force one, by name; PyTorch before 2.3 has no such way."""
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        return {}
    return {name: lambda backend=getattr(SDPBackend, key): sdpa_kernel(backend)
            for name, (key, _) in BACKENDS.items() if hasattr(SDPBackend, key)}


def both_ways(torch, clock, call, inputs, gradient):
    """Seconds of attention forward and backward."""
    out = call()
    return seconds_of(clock, call), seconds_of(clock, lambda: torch.autograd.grad(
        out, inputs, gradient, retain_graph=True))


def fastest_attention(torch, device, s):
    """The fastest backend for a shape; None where PyTorch has no choice."""
    clock = Clock(torch, device)
    width = (s.heads + 2 * s.kv_heads) * (s.hidden // s.heads)
    qkv = torch.randn(s.batch, s.seq, width, device=device).to(torch.bfloat16)
    inputs = [part.detach().requires_grad_() for part in heads_of(s, qkv)]
    seconds, words = {}, []
    for name, way in backends(torch).items():
        try:
            with way():
                gradient = torch.randn_like(attend(torch, *inputs))
                seconds[name] = sum(both_ways(torch, clock, lambda: attend(torch, *inputs), inputs,
                                              gradient))
            words.append(f"{name} {1e3 * seconds[name]:.3f} ms")
        except RuntimeError as error:
            words.append(f"{name} none ({first_line(error)[:80]})")
    best = min(seconds, key=seconds.get) if seconds else None
    print(f"  attention of a layer: {', '.join(words) or 'no choice'}", flush=True)
    return best


def force_attention(torch, name):
    """For this process: code that is compiled asks these switches while it is traced."""
    for switch in ("enable_flash_sdp", "enable_cudnn_sdp", "enable_mem_efficient_sdp",
                   "enable_math_sdp"):
        if hasattr(torch.backends.cuda, switch):
            getattr(torch.backends.cuda, switch)(switch == BACKENDS[name][1])


def first_line(error):
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def set_up(torch):
    """What an expert sets, by whatever name this version has for it."""
    torch.manual_seed(1)
    if hasattr(torch, "set_float32_matmul_precision"):
        torch.set_float32_matmul_precision("high")
    if hasattr(torch, "_dynamo"):
        # Where parameters are constants of the compiled code, every layer is compiled by itself.
        for name in ("recompile_limit", "cache_size_limit"):
            if hasattr(torch._dynamo.config, name):
                setattr(torch._dynamo.config, name, 64)


def graphs_of(torch):
    """How many compiled graphs there are, and where they break: two of a model, and nowhere."""
    try:
        from torch._dynamo.utils import counters
        return (int(counters["stats"]["unique_graphs"]), sum(counters["graph_break"].values()))
    except (ImportError, AttributeError, KeyError):
        return (0, 0)


def train(torch, name, s, device, compiled, accelerate, choose):
    """A row. choose: attention by its fastest backend, and not by PyTorch's own choice."""
    clock = Clock(torch, device)
    set_up(torch)
    attention = fastest_attention(torch, device, s) if choose else None
    if attention is not None:
        force_attention(torch, attention)
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with torch.device(device) if hasattr(torch, "compile") else contextlib.nullcontext():
        model = models(torch)(s, compiled)
    counted = parameters_of(replace(s, vocab=s.rows))
    assert sum(p.numel() for p in model.parameters()) == counted, name
    fused = {"fused": True} if device == "cuda" else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95),
                                  weight_decay=0.1, **fused)
    backward, autocast = lambda loss: loss.backward(), lambda: torch.autocast(
        device, dtype=torch.bfloat16)
    if accelerate:
        from accelerate import Accelerator
        accelerator = Accelerator(mixed_precision="bf16", cpu=device == "cpu")
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
        loss = loss.item()  # as ours: the host sees the loss of every step
        seconds.append(clock() - begin)
    row = {"shape": name,
           "variant": ("accelerate" if accelerate else "PyTorch") + ("" if compiled else " eager"),
           "compiled": compiled, "attention": attention or "PyTorch's choice",
           "layers": s.layers, "parameters": parameters_of(s), "batch": s.batch, "seq": s.seq,
           "micro_batches": s.micro_batches, "first_s": seconds[0],
           "step_s": statistics.median(seconds[WARM_UP:]), "loss": loss,
           "flops_per_token": flops_per_token(s), "memory_bytes": 0, "reserved_bytes": 0}
    row["tokens_per_s"] = s.tokens / row["step_s"]
    if device == "cuda":
        row["memory_bytes"] = torch.cuda.max_memory_allocated()
        row["reserved_bytes"] = torch.cuda.max_memory_reserved()
    if compiled:
        row["graphs"], row["graph_breaks"] = graphs_of(torch)
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
TINY_ATTENTION = [(1, 64, 2, 64)]


def chosen_backend(torch, q, k, v):
    """The name of what PyTorch takes by itself."""
    try:
        from torch.nn.attention import SDPBackend
        number = torch._fused_sdp_choice(q, k, v, is_causal=True)
        names = [name for name, value in SDPBackend.__members__.items() if int(value) == number]
        return names[0].lower() if names else f"backend {number}"
    except (ImportError, AttributeError, RuntimeError, TypeError) as error:
        return f"not known ({type(error).__name__})"


def attention(torch, device, forms):
    """Prints TFLOP/s of causal attention, forward and backward."""
    if not hasattr(torch.nn.functional, "scaled_dot_product_attention"):
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
                    forward, backward = both_ways(
                        torch, clock, lambda: attend(torch, q, k, v), (q, k, v), gradient)
            except RuntimeError as error:
                print(f"  {name}: none ({first_line(error)})", flush=True)
                continue
            if best is None or forward + backward < best[1] + best[2]:
                best = name, forward, backward
            print(f"  {name}: forward {2 * product / forward / 1e12:.0f}, "
                  f"backward {5 * product / backward / 1e12:.0f} TFLOP/s", flush=True)
        if best is not None:
            print(f"  the fastest: {best[0]}, forward {1e3 * best[1]:.3f} ms, "
                  f"backward {1e3 * best[2]:.3f} ms", flush=True)
