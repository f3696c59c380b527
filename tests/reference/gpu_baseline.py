#!/usr/bin/env python3
"""What PyTorch does with the models of bench/train_gpu, on this machine: tokens/s and peak memory.

  gpu_baseline.py [--ours FILE] [SHAPE ...]         on the GPU (default: 124m llama-8b 1.5b)
  gpu_baseline.py --device cpu --tiny [--compiled]  tries the program anywhere
  gpu_baseline.py --join FILE FILE                  ours and PyTorch's, as --json wrote them

  --ours FILE   what bench/train_gpu --json wrote: ends with one table of both and the ratios
  --json FILE   an object per row
  --seconds N   for all of it (default: no limit)

The models are plain modules of the shapes in tests/bench/gpu_runs.h, trained as people do it:
float32 weights and moments, autocast to bfloat16, attention by the faster of PyTorch's flash and
cuDNN (measured for each shape), each block and the head with its loss compiled (one compilation
serves all layers), fused AdamW with clipping. With accelerate installed there is a row of its own
for the first shape. The vocabulary is filled up to a multiple of 128 rows, as mtl does, so that no
product is slow for its odd size; parameters and FLOPs are counted without. The limits of the machine
are measured beside: a bfloat16 product of 8192^3, the rate of a copy, and attention alone, timed and
with FLOPs counted as in tests/bench/attention_gpu.cpp, on forms of there.

Every row has a process of its own: one that hangs or crashes costs no other. What does not fit the
GPU is tried again in micro-batches of half the size. Where torch.compile fails, rows are measured
without, and no bar is held against those: the line `missed` says so, and why.

Model FLOPs count causal attention once (half of the square) and recompute not at all. Memory: the
most that tensors took (allocated), and that with what the allocator kept (reserved); ours is
compared with the first.
"""
import argparse
import importlib.util
import json
import math
import os
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, replace
from pathlib import Path

import gpu_baseline_rows as rows_of
from gpu_baseline_models import SHAPES, Shape

BEGIN = time.monotonic()  # reading PyTorch in counts too
SPEED_BAR, MEMORY_BAR, PLAN_BAR = 1.25, 0.9, 0.03
# Of the time that is left at most, so that one that hangs leaves the others theirs: the limits of
# the machine, and the first row that is compiled.
LIMITS_SHARE, FIRST_SHARE = 0.25, 0.6


def gib(count):
    return f"{count / 2**30:8.1f}" if count else "       -"


def print_row(row, peak):
    mfu = row["tokens_per_s"] * row["flops_per_token"] / peak if peak else 0
    print(f"{row['shape']:12} {row['layers']:6} {row['variant']:16} {row['micro_batches']:2} x "
          f"{row['batch']:3} {row['seq']:6} {row['first_s']:9.2f} {row['step_s']:9.4f} "
          f"{row['tokens_per_s']:10.0f} "
          f"{100 * mfu:6.1f} % {gib(row['memory_bytes'])} {gib(row['reserved_bytes'])} "
          f"{row['loss']:8.3f}", flush=True)
    if row["compiled"]:
        print(f"  compiled: {row['graphs']} graphs that break {row['graph_breaks']} times",
              flush=True)


def read_rows(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines() if line.strip()]


def join(ours, theirs, head=True):
    """The table of both; returns whether every shape of theirs has a row of ours."""
    if head:
        print(f"\n{'shape':12} {'mtl':18} {'against':26} {'tokens/s':>10} {'ratio':>7} {'':14} "
              f"{'MFU %':>6} {'GiB':>7} {'ratio':>7} {'':13} {'plan':>7}")
    missing, missed = [], []
    for peer in theirs:
        mine = [row for row in ours if row["shape"] == peer["shape"]]
        if not mine:
            missing.append(peer["shape"])
        for row in mine:
            # Of a step the same tokens, by however many micro-batches, or a few less where ours are
            # no divisor (an update for less of them: that is nothing to our advantage).
            same = all(math.isclose(row[key], peer[key], rel_tol=1e-3)
                       for key in ("parameters", "seq", "flops_per_token"))
            tokens, wanted = (one["batch"] * one["micro_batches"] for one in (row, peer))
            if not same or not 0.95 * wanted <= tokens <= wanted:
                raise SystemExit(f"{peer['shape']}: the two programs train different models: "
                                 f"{row} and {peer}")
            speed = row["tokens_per_s"] / peer["tokens_per_s"]
            memory = row["memory_bytes"] / peer["memory_bytes"] if peer["memory_bytes"] else None
            off = row["memory_bytes"] / row["plan_bytes"] - 1 if row["memory_bytes"] else None
            mfu = row["tokens_per_s"] * row["flops_per_token"] / row["peak"] if row["peak"] else 0

            # PyTorch has no row in fp8, and nobody should take this one for such.
            against = peer["variant"] + (", bf16" if row["variant"].startswith("fp8") else "")
            if peer["batch"] != row["batch"]:
                against += f", {peer['batch']} a micro-batch"
            compiled = peer.get("compiled", True)

            def verdict(holds, bar, what, proves=True):
                if not proves:
                    return "(no bar)"
                if not holds:
                    missed.append(f"{row['shape']} {row['variant']} / {against}: "
                                  f"{what} (bar {bar})")
                return f"({'holds' if holds else 'MISSED'} {bar})"
            speed_words = verdict(speed >= SPEED_BAR, f"{SPEED_BAR}x", f"{speed:.2f}x tokens/s",
                                  compiled)
            words = [f"{row['shape']:12} {row['variant']:18} {against:26} "
                     f"{row['tokens_per_s']:10.0f} {speed:6.2f}x {speed_words:14} "
                     f"{100 * mfu:6.1f}"]
            if memory is None:
                words.append("memory not measured")
            else:
                bar = verdict(memory <= MEMORY_BAR, f"{MEMORY_BAR}x", f"{memory:.2f}x memory",
                              compiled)
                plan = verdict(abs(off) <= PLAN_BAR, f"{100 * PLAN_BAR:.0f} %",
                               f"{100 * off:+.1f} % memory of the plan")
                words.append(f"{gib(row['memory_bytes'])[1:]} {memory:6.2f}x {bar:13} "
                             f"{100 * off:+6.1f} % {plan}")
            print(" ".join(words), flush=True)
    for shape in missing:
        print(f"{shape}: mtl has no row")
    if head:
        if any(row["variant"].startswith("fp8") for row in ours):
            print("rows of mtl in fp8 are held against PyTorch in bf16")
        for words in missed:
            print(f"missed: {words}")
    return not missing


def do(torch, task):
    """What a process of its own does: {"row": ...}, {"limits": ...} or {"error": ...}."""
    try:
        if task["device"] == "cuda" and not torch.cuda.is_available():
            return {"error": "PyTorch sees no GPU"}
        if task["what"] == "limits":
            name = torch.cuda.get_device_name() if task["device"] == "cuda" else "cpu"
            return {"name": name, "limits": rows_of.limits(torch, task["device"])}
        if task["what"] == "attention":
            rows_of.attention(torch, task["device"], task["forms"])
            return {}
        return {"row": rows_of.train(torch, task["name"], Shape(**task["shape"]), task["device"],
                                     task["compiled"], task["accelerate"], task["choose"])}
    except Exception as error:
        fits = not any(words in str(error) for words in ("out of memory", "ALLOC_FAILED"))
        if fits:
            traceback.print_exc(limit=-12, file=sys.stdout)
        return {"error": f"{type(error).__name__}: {rows_of.first_line(error)}"[:300],
                "fits": fits}


class Processes:
    """Each task in a process of its own, which begins where PyTorch is read in already."""

    def __init__(self, torch, seconds):
        self.torch = torch
        self.end = math.inf if seconds is None else BEGIN + seconds

    def left(self):
        return self.end - time.monotonic()

    def run(self, limit_s=math.inf, **task):
        limit_s = min(limit_s, self.left())
        if limit_s <= 5:
            return {"error": "no time was left", "late": True}
        with tempfile.TemporaryDirectory() as folder:
            answer = Path(folder) / "answer"
            sys.stdout.flush()
            sys.stderr.flush()
            child = os.fork()
            if child == 0:
                self.be_child(task, answer)
            status = self.await_child(child, limit_s)
            if status is None:
                return {"error": f"not done within {limit_s:.0f} s", "late": True}
            if answer.exists():
                return json.loads(answer.read_text())
        if os.WIFSIGNALED(status):
            return {"error": f"ended by {signal.Signals(os.WTERMSIG(status)).name}"}
        return {"error": f"ended with exit code {os.waitstatus_to_exitcode(status)}"}

    def be_child(self, task, answer):
        os.setpgid(0, 0)  # what it starts (compilers) goes with it
        try:
            # Should reading PyTorch in have opened CUDA, only a new program can open it.
            if getattr(self.torch.cuda, "_is_in_bad_fork", lambda: False)():
                os.execv(sys.executable, [sys.executable, "-u", __file__, "--task",
                                          json.dumps({**task, "answer": str(answer)})])
            write_answer(answer, do(self.torch, task))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)  # the end that Python makes of itself waits for compilers

    @staticmethod
    def await_child(child, limit_s):
        """Its status, or None if it took longer. One that not even SIGKILL ends is left."""
        status, until = None, time.monotonic() + limit_s
        try:
            while status is None and time.monotonic() < until:
                done, code = os.waitpid(child, os.WNOHANG)
                status = code if done else None
                if status is None:
                    time.sleep(0.05)
        finally:  # behind a Ctrl-C as well, which it does not hear in a group of its own
            try:
                os.killpg(child, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if status is None:
            time.sleep(0.5)
            os.waitpid(child, os.WNOHANG)
        return status


def write_answer(path, answer):
    Path(f"{path}.new").write_text(json.dumps(answer))
    os.replace(f"{path}.new", path)


class Baseline:
    """Rows, and what is tried where one fails."""

    def __init__(self, processes, device, compiled):
        self.processes, self.device = processes, device
        self.why_eager = "" if compiled else "it was not asked for"
        self.proven = False  # torch.compile works here
        self.missed = []

    def row(self, name, shape, accelerate):
        title = f"{name}, accelerate" if accelerate else name
        compiled, choose, why = not self.why_eager, True, ""
        while True:
            left = self.processes.left()
            limit = left if self.proven or not compiled else FIRST_SHARE * left
            found = self.processes.run(limit, what="train", name=name, shape=asdict(shape),
                                       device=self.device, compiled=compiled,
                                       accelerate=accelerate, choose=choose)
            if "row" in found:
                self.proven = self.proven or compiled
                if why:
                    self.missed.append(f"{title}: no bar is held against PyTorch: torch.compile "
                                       f"fails: {why}")
                    if not self.proven:  # nor will the next
                        self.why_eager = why
                return found["row"]
            error = found["error"]
            if not found.get("fits", True):
                print(f"{title}: out of memory in micro-batches of {shape.batch}", flush=True)
                if shape.batch == 1:
                    self.missed.append(f"{title}: PyTorch is out of memory")
                    return None
                shape = replace(shape, batch=shape.batch // 2,
                                micro_batches=2 * shape.micro_batches)
                continue
            words = "compiled" if compiled else "not compiled"
            words += ", attention by the fastest" if choose else ", attention by PyTorch's choice"
            print(f"{title}, {words}: {error}", flush=True)
            if compiled and choose and not found.get("late"):
                choose = False
                continue
            if not compiled or self.processes.left() <= 5:
                self.missed.append(f"{title}: no row of PyTorch: {error}")
                return None
            compiled, choose, why = False, True, error


def measure(args, torch, names, shapes, ours, peak):
    """Prints every row; returns them, and the lines that say what is missed."""
    processes = Processes(torch, args.seconds)
    found = processes.run(LIMITS_SHARE * processes.left(), what="limits", device=args.device)
    if found.get("error") == "PyTorch sees no GPU":
        raise SystemExit(found["error"])
    print(f"PyTorch {torch.__version__} on {found.get('name', args.device)}")
    if "limits" in found:
        flops, rate = found["limits"]
        of_peak = f" ({100 * flops / peak:.1f} % of {peak / 1e12:.0f})" if peak else ""
        print(f"limits: matmul bf16 {flops / 1e12:.1f} TFLOP/s{of_peak}, "
              f"copy {rate / 1e9:.0f} GB/s")
    else:
        print(f"limits: {found['error']}")
    print("rows of the vocabulary: " + ", ".join(
        f"{name} {shapes[name].vocab} filled up to {shapes[name].rows}" for name in names)
        + "; FLOPs and parameters count those without filling")
    print(f"{'shape':12} {'layers':>6} {'variant':16} {'B':>8} {'T':>6} {'first s':>9} "
          f"{'median s':>9} {'tokens/s':>10} {'MFU':>8} {'alloc GiB':>8} {'kept GiB':>7} "
          f"{'loss':>7}", flush=True)
    todo = [(name, False) for name in names]
    if importlib.util.find_spec("accelerate") is not None:
        todo.append((names[0], True))
    else:
        print("accelerate is not installed: no row of its own")
    compiles = hasattr(torch, "compile") and hasattr(torch.nn.Module, "compile")
    wanted = args.device == "cuda" or args.compiled
    baseline = Baseline(processes, args.device, compiled=wanted and compiles)
    if wanted and not compiles:
        baseline.missed.append(f"no bar is held against PyTorch: {torch.__version__} has no "
                               "torch.compile")
    rows = []
    for name, accelerate in todo:
        row = baseline.row(name, shapes[name], accelerate)
        if row is None:
            continue
        rows.append(row)
        print_row(row, peak)
        if args.ours:  # at once: there may be no time for the table at the end
            join(ours, rows[-1:], head=False)
        if args.json:
            with open(args.json, "a", encoding="utf-8") as out:
                out.write(json.dumps(row) + "\n")
    return rows, baseline.missed, processes


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", metavar="SHAPE")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--compiled", action="store_true", help="on the CPU too")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--ours", metavar="FILE")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--join", nargs=2, metavar="FILE")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.join:
        return 0 if join(read_rows(args.join[0]), read_rows(args.join[1])) else 1
    if args.task:
        import torch
        task = json.loads(args.task)
        write_answer(task.pop("answer"), do(torch, task))
        return 0
    names = args.shapes or (["tiny", "tiny-llama"] if args.tiny else ["124m", "llama-8b", "1.5b"])
    for name in names:
        if name not in SHAPES:
            parser.error(f"there is no shape {name}: {', '.join(SHAPES)}")
    ours = read_rows(args.ours) if args.ours else []
    shapes = {**SHAPES, **{row["shape"]: replace(SHAPES[row["shape"]], layers=row["layers"])
                           for row in ours if row["shape"] in SHAPES}}
    peak = next((row["peak"] for row in ours if row["peak"]), 0)

    import torch
    if hasattr(torch, "compile"):
        # Once for all processes. No more of what compiles: that asks CUDA for its devices, behind
        # which no forked process can open it (Processes.be_child).
        import torch._dynamo  # noqa: F401
    rows, missed, processes = measure(args, torch, names, shapes, ours, peak)
    complete = not args.ours or join(ours, rows)
    for words in missed:
        print(f"missed: {words}")
    sys.stdout.flush()
    # Last: where time is short the rows are worth more.
    forms = rows_of.TINY_ATTENTION if args.tiny else rows_of.ATTENTION
    found = processes.run(what="attention", device=args.device, forms=forms)
    if "error" in found:
        print(f"attention alone: {found['error']}")
    return 0 if complete and {row["shape"] for row in rows} == set(names) else 1


if __name__ == "__main__":
    sys.exit(main())
