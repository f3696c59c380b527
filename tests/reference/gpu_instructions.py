"""What our kernels cost in instructions on Hopper, from their machine code: no GPU is needed.

    pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm nvidia-cuda-cuxxfilt   # or CUDA's own
    python3 tests/reference/gpu_instructions.py build/libmtl_cuda.so

A scheduler (four per multiprocessor) issues an instruction of a warp per cycle. Those of f32 go
through at that rate, the others of integers, comparisons and conversions at half of it, exponentials
and the like at an eighth (CUDA C++ Programming Guide, throughput of native arithmetic instructions).
Against that stands what the same loop asks of the tensor cores (4,096 FLOPs per cycle and
multiprocessor in bf16) or of the memory (an H200's, at 90 %). Above 1 a loop is slower than these
allow; well below, it can hide behind them.

Of attention's loops the path is counted that a plain causal call takes past the diagonal: without
ALiBi, dropout, documents, and without a new maximum. What belongs to those is told from what it
consists of (is_rare).

Ends with 1 if kernels that ask for no fused operation have one: which of two sums of products nvcc
fuses differs from kernel to kernel, and bits with it (cuda.cmake, -fmad=false).
"""

import collections
import re
import subprocess
import sys

BYTES_PER_CYCLE = 4.32e12 / 132 / 1.83e9 / 4  # of a scheduler
HALF_RATE = set(
    "LOP3 SHF VIADD FMNMX ISETP SEL FSEL F2FP I2FP IADD3 PRMT LEA FSETP PLOP3 IMAD R2P VIMNMX".split()
)

ATTENTION = [
    ("forward, heads of 64", r"attention_forward_warpgroups<.*Bf16, 64, 64, false, false>"),
    ("forward, heads of 128", r"attention_forward_warpgroups<.*Bf16, 128, 128, false, false>"),
    ("forward, heads of 192", r"attention_forward_warpgroups<.*Bf16, 192, 128, true, false>"),
    ("forward, heads of 256", r"attention_forward_warpgroups<.*Bf16, 256, 256, true, false>"),
    ("backward, heads of 64", r"attention_backward_joint<mtl::cuda::Bf16, 64, false, false>"),
    ("backward, heads of 128", r"attention_backward_joint<mtl::cuda::Bf16, 128, false, false>"),
    ("dK, dV, heads of 96", r"attention_key_warpgroups<mtl::cuda::Bf16, 96, false>"),
    ("dQ, heads of 96", r"attention_query_warpgroups<mtl::cuda::Bf16, 96, false>"),
    ("dK, dV, heads of 192", r"attention_wide_key_warpgroups<mtl::cuda::Bf16, 192, 128>"),
    ("dQ, heads of 192", r"attention_wide_query_warpgroups<mtl::cuda::Bf16, 192, 128, false>"),
    ("dQ, heads of 256", r"attention_wide_query_warpgroups<mtl::cuda::Bf16, 256, 256, false>"),
]
MEMORY = [
    ("cross entropy: loss", r"losses_kernel<mtl::cuda::Bf16, 8, 512, false, false>"),
    ("cross entropy: gradient", r"::backward_kernel<mtl::cuda::Bf16, 8, 256, false>"),
    ("GELU", r"each_kernel<8, .*Gelu<mtl::cuda::Bf16, .*TanhForm>"),
    ("GELU backward", r"each_kernel<8, .*GeluBackward<mtl::cuda::Bf16, .*TanhForm, false>"),
    ("SwiGLU", r"swiglu_forward_kernel<mtl::cuda::Bf16, 8, false, true>"),
    ("SwiGLU backward", r"swiglu_backward_kernel<mtl::cuda::Bf16, 8, false, true, false>"),
    ("norm, residual", r"forward_rows_kernel<mtl::cuda::Bf16, 8, .*RowShape<1, 4, 256>, .*1>"),
    ("norm backward", r"backward_rows_kernel<mtl::cuda::Bf16, 8, .*RowShape<1, 4, 256>"),
    ("bias gradient", r"column_sums_kernel<8, 1, .*Rows<mtl::cuda::Bf16>"),
    ("FP8 along both ways", r"quantize_tiles_kernel<mtl::cuda::Bf16, false>"),
    ("RoPE", r"rope_kernel<mtl::cuda::Bf16, 8>"),
    ("AdamW", r"update_kernel<4, .*AdamWStep<mtl::cuda::Bf16>"),
]
# Products and sums, but neither divisions nor functions, which are made of fused operations.
NOTHING_FUSED = r"add_rows_kernel|position_backward_kernel|rope_kernel|SgdStep"


def functions(library, architecture):
    """{name: [(address, instruction)]}, names as C++ has them."""
    command = ["cuobjdump", "-sass", "-arch", architecture, library]
    try:
        code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        sys.exit("gpu_instructions.py: no cuobjdump in PATH, see the head of this file")
    found = {}
    for line in code.splitlines():
        if match := re.search(r"Function : (\S+)", line):
            body = found.setdefault(match[1], [])
        elif match := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", line):
            body.append((int(match[1], 16), match[2]))
    names = subprocess.run(["c++filt"], input="\n".join(found), capture_output=True, text=True)
    return dict(zip(names.stdout.splitlines(), found.values()))


def name_of(instruction):
    return re.sub(r"^@!?U?P\w+\s+", "", instruction).split()[0]


def target_of(instruction, kinds="BRA"):
    match = re.search(rf"\b(?:{kinds})\b.*0x([0-9a-f]+)", instruction)
    return int(match[1], 16) if match else None


def loops(body):
    """From a jump's target to the jump, innermost first. Where a barrier is asked again is no loop's
    end: that lies behind the kernel's, and jumps back."""
    ends = [
        (target_of(text), at)
        for i, (at, text) in enumerate(body)
        if not any("TRYWAIT" in before for _, before in body[max(i - 2, 0) : i])
    ]
    spans = sorted((at - to, to, at) for to, at in ends if to is not None and to < at)
    return [[one for one in body if first <= one[0] <= last] for _, first, last in spans]


def blocks(loop):
    targets = {target_of(text, "BRA|BSSY") for _, text in loop}
    block = []
    for at, text in loop:
        if at in targets and block:
            yield block
            block = []
        block.append((at, text))
        if re.search(r"\b(BRA|EXIT|RET|BSYNC)\b", text):
            yield block
            block = []
    if block:
        yield block


def count(instructions):
    return collections.Counter(name_of(text).split(".")[0] for _, text in instructions)


def is_rare(block):
    n = count(block)
    dropout = n["HGMMA"] == 0 and n["F2FP"] == 0 and n["IMAD"] + n["LOP3"] > 40
    dropout = dropout or (n["UIADD3"] >= 18 and n["HGMMA"] == 0) or n["SHFL"] == 1
    masks = n["MUFU"] == 0 and (n["FSEL"] >= 24 or n["I2FP"] > 8)
    # Once for a tile of keys or queries, not for a pair: which one it is, and its results.
    results = n["I2F"] > 0 or (n["FMUL"] == 32 and n["STSM"] + n["STS"] > 0)
    return dropout or masks or results or n["FMUL"] == len(block) or n["STG"] > 0


def cycles(n):
    return max(sum(n.values()), 2 * sum(n[one] for one in HALF_RATE), 8 * n["MUFU"])


def of_products(body):
    """The innermost loop with products: (instructions, cycles of the tensor cores, spilled)."""
    loop = next(one for one in loops(body) if count(one)["HGMMA"] >= 12)
    kept = [one for block in blocks(loop) if not is_rare(block) for one in block]
    # 64 x N x 16, of two warps per scheduler: one of each of two warpgroups.
    wide = [int(re.search(r"HGMMA\.64x(\d+)x16", text)[1]) for _, text in kept if "HGMMA" in text]
    return count(kept), sum(wide) / 2, sum(count(kept)[one] for one in ("LDL", "STL"))


def bytes_of(instructions):
    moved = 0
    for _, text in instructions:
        name = name_of(text)
        if name.startswith(("LDG", "STG")):
            sizes = [(".128", 16), (".64", 8), ("U16", 2), ("U8", 1)]
            moved += next((size for mark, size in sizes if mark in name), 4)
    return moved


def of_memory(body):
    """The innermost loop that moves most: (instructions, bytes of a lane)."""
    inner = []
    for loop in loops(body):
        if not any(loop[0][0] <= one[0][0] and one[-1][0] <= loop[-1][0] for one in inner):
            inner.append(loop)
    loop = max(inner, key=bytes_of)
    return count(loop), bytes_of(loop)


def find(code, pattern):
    body = next((body for name, body in code.items() if re.search(pattern, name)), None)
    if body is None:
        sys.exit(f"gpu_instructions.py: the library has no kernel {pattern}")
    return body


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: gpu_instructions.py LIBRARY")
    code = functions(sys.argv[1], "sm_90a")
    print(f"{'attention, a pair of tiles':28} instr.  special  spilled  tensor cores  of these")
    for title, pattern in ATTENTION:
        n, products, spilled = of_products(find(code, pattern))
        print(
            f"{title:28} {sum(n.values()):6}  {8 * n['MUFU']:7}  {spilled:7}  {products:12.0f}"
            f"  {cycles(n) / products:8.2f}"
        )
    code = functions(sys.argv[1], "sm_90")
    print(f"{'loops over elements':28} instr.  special     bytes        memory  of this")
    for title, pattern in MEMORY:
        n, moved = of_memory(find(code, pattern))
        memory = 32 * moved / BYTES_PER_CYCLE
        print(
            f"{title:28} {sum(n.values()):6}  {8 * n['MUFU']:7}  {moved:7}  {memory:12.0f}"
            f"  {cycles(n) / memory:8.2f}"
        )
    fused = [name for name, body in code.items()
             if re.search(NOTHING_FUSED, name) and count(body)["FFMA"] > 0]
    if fused:
        sys.exit(f"fused operations that nobody has asked for, in {len(fused)} kernels: {fused[0]}")


if __name__ == "__main__":
    main()
