"""The models of bench/train_gpu in PyTorch, for gpu_baseline.py: shapes, what is counted of them, and
modules. Needs PyTorch only where a module is made.
"""
import math
from dataclasses import dataclass


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


def attend(torch, q, k, v):
    """Causal attention; of queries each group has its key."""
    sdpa = getattr(torch.nn.functional, "scaled_dot_product_attention", None)
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


def heads_of(s, qkv):
    """Queries, keys and values of one product of all three."""
    b, t, _ = qkv.shape
    d = s.hidden // s.heads
    parts = qkv.split((s.heads * d, s.kv_heads * d, s.kv_heads * d), dim=-1)
    return [part.view(b, t, -1, d).transpose(1, 2) for part in parts]


def models(torch):
    """The modules, made here so that --join needs no PyTorch."""
    nn, F = torch.nn, torch.nn.functional

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
            self.s, d = s, s.hidden // s.heads
            width = (s.heads + 2 * s.kv_heads) * d
            bias = not s.llama
            norm = RMSNorm if s.llama else nn.LayerNorm
            self.norm1, self.norm2 = norm(s.hidden), norm(s.hidden)
            self.qkv = nn.Linear(s.hidden, width, bias=bias)
            self.out = nn.Linear(s.heads * d, s.hidden, bias=bias)
            self.up = nn.Linear(s.hidden, (2 if s.llama else 1) * s.ffn, bias=bias)
            self.down = nn.Linear(s.ffn, s.hidden, bias=bias)

        def forward(self, x, cos, sin):
            s = self.s
            b, t, _ = x.shape
            q, k, v = heads_of(s, self.qkv(self.norm1(x)))
            if s.llama:
                def rotate(a):
                    first, second = a.float().chunk(2, dim=-1)
                    return torch.cat((first * cos - second * sin, second * cos + first * sin),
                                     dim=-1).to(a.dtype)
                q, k = rotate(q), rotate(k)
            x = x + self.out(attend(torch, q, k, v).transpose(1, 2).reshape(b, t, -1))
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
            self.narrow = hasattr(torch, "compile")  # on the CPU older ones mix no types in a norm
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
            if self.narrow:
                h = h.to(torch.bfloat16)  # the stream between layers, as ours
            for block in self.blocks:
                h = block(h, self.cos, self.sin)
            return self.head(h, y)

    return Model
