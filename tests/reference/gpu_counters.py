#!/usr/bin/env python3
"""Why kernels take as long as they do: tables from what Nsight Compute has counted.

    ncu --import REPORT --page raw --csv >RAW; ncu --import REPORT --page source --csv >SOURCE
    gpu_counters.py RAW [SOURCE]

RAW has a row per launch: how busy each unit was, in percent of what it can do, and what a warp
waited for. SOURCE has every instruction with how often a warp was found at it: shares of all
samples, by kind of instruction and of the ones where most were found. Ends with 1 where RAW has
no launch."""

import csv
import re
import sys

# Of a unit the first metric that the report has: names differ between GPUs and versions.
UNITS = [
    ("issue", ["sm__issue_active.avg.pct_of_peak_sustained_elapsed",
               "smsp__issue_active.avg.pct_of_peak_sustained_active"]),
    ("tensor", ["sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
                "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
                "sm__inst_executed_pipe_tensor_op_hmma.avg.pct_of_peak_sustained_active",
                "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active"]),
    ("exp", ["sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active"]),
    ("shared", ["l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
                "l1tex__throughput.avg.pct_of_peak_sustained_active"]),
    ("L2", ["lts__throughput.avg.pct_of_peak_sustained_elapsed"]),
    ("memory", ["gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
                "dram__throughput.avg.pct_of_peak_sustained_elapsed"]),
]
DURATION = ["gpu__time_duration.sum", "gpu__time_duration_measured_user.sum"]
CLOCK = ["gpc__cycles_elapsed.avg.per_second"]
REGISTERS = ["launch__registers_per_thread"]
STALL = re.compile(r"issue_stalled_(\w+?)_per_issue_active\.ratio$")
SAMPLES = "# Samples"
REASON = re.compile(r"stall_(\w+)$")
IN_SECONDS = {"ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3,
              "msecond": 1e-3, "s": 1.0, "second": 1.0}
IN_HERTZ = {"hz": 1.0, "khz": 1e3, "mhz": 1e6, "ghz": 1e9, "cycle/second": 1.0,
            "cycle/nsecond": 1e9, "cycle/usecond": 1e6}
MOST_INSTRUCTIONS, MOST_KINDS, MOST_STALLS = 10, 7, 5


def number(text):
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def first(row, names):
    for name in names:
        value = number(row.get(name) or "")
        if value is not None:
            return name, value
    return None, None


def scaled(row, units, names, factors):
    name, value = first(row, names)
    if value is None:
        return None
    return value * factors.get(units.get(name, "").lower(), 1.0)


def short(kernel):
    """Of a demangled name what tells it from others: without arguments and namespaces."""
    kernel = re.sub(r"\(anonymous namespace\)::|<unnamed>::|^void ", "", kernel)
    kernel = re.sub(r"\((?:bool|int|unsigned int|long|signed char|char)\)", "", kernel)
    depth = 0
    for at, letter in enumerate(kernel):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            kernel = kernel[:at]
            break
    return re.sub(r"\b\w+::", "", kernel)[:76]


def lines_of(path):
    """Without what the profiler says beside its table."""
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        return [line for line in file if line.startswith('"')]


def launches(path):
    rows = csv.reader(lines_of(path))
    names = next(rows, [])
    units = dict(zip(names, next(rows, [])))
    return units, [dict(zip(names, row)) for row in rows]


def print_launch(units, row):
    seconds = scaled(row, units, DURATION, IN_SECONDS)
    hertz = scaled(row, units, CLOCK, IN_HERTZ)
    registers = first(row, REGISTERS)[1]
    shares = [first(row, names)[1] for _, names in UNITS]
    print("%8s %6s %5s  %s  %s" % (
        "-" if seconds is None else "%.1f" % (1e6 * seconds),
        "-" if hertz is None else "%.2f" % (hertz / 1e9),
        "-" if registers is None else "%d" % registers,
        " ".join("%6s" % ("-" if share is None else "%.0f" % share) for share in shares),
        short(row.get("Kernel Name", "?"))))
    stalls = {}
    for name, text in row.items():
        found, value = STALL.search(name or ""), number(text or "")
        if found and value:
            stalls[found[1]] = value
    cycles = sum(stalls.values())
    worst = sorted(stalls.items(), key=lambda stall: -stall[1])[:MOST_STALLS]
    if worst:
        print("%22s grid %s, block %s; a warp is found at: %s" % (
            "", row.get("Grid Size", "?").replace(" ", ""),
            row.get("Block Size", "?").replace(" ", ""),
            ", ".join("%s %.0f %%" % (name, 100 * value / cycles) for name, value in worst)))


def functions(path):
    """Of the source page each launch: its name, and its instructions as dictionaries."""
    kernel, names = None, None
    found = []
    for row in csv.reader(lines_of(path)):
        if row[:1] == ["Kernel Name"]:
            kernel, names = row[1], None
            found.append((kernel, []))
        elif SAMPLES in row:
            names = row
            if kernel is None:
                found.append(("?", []))
        elif names is not None and found:
            found[-1][1].append(dict(zip(names, row)))
    # ncu of CUDA 13 writes every launch twice.
    return [one for i, one in enumerate(found) if i == 0 or one != found[i - 1]]


def reasons(instructions):
    """What warps were found waiting for, most first."""
    sums = {}
    for instruction in instructions:
        for name, text in instruction.items():
            match = REASON.match(name)
            if match:
                sums[match[1]] = sums.get(match[1], 0) + (number(text) or 0)
    return sorted(sums.items(), key=lambda reason: -reason[1])


def print_function(kernel, instructions):
    for instruction in instructions:
        instruction["samples"] = number(instruction[SAMPLES]) or 0
        words = instruction.get("Source", "?").split()
        # A predicate stands first.
        words = words[1:] if words and words[0].startswith("@") else words
        instruction["kind"] = words[0] if words else "?"
    samples = sum(instruction["samples"] for instruction in instructions)
    if not samples:
        return
    print("\n%s: %d samples at %d instructions" % (short(kernel), samples, len(instructions)))
    kinds = {}
    for instruction in instructions:
        kinds.setdefault(instruction["kind"], []).append(instruction)
    most = sorted(kinds.items(), key=lambda kind: -sum(i["samples"] for i in kind[1]))
    print("  by kind: " + ", ".join(
        "%s %.1f %%" % (kind, 100 * sum(i["samples"] for i in members) / samples)
        for kind, members in most[:MOST_KINDS]))
    places = sorted(range(len(instructions)), key=lambda i: -instructions[i]["samples"])
    for place in sorted(places[:MOST_INSTRUCTIONS]):
        instruction = instructions[place]
        share = instruction["samples"] / samples
        if share < 0.005:
            continue
        why = ", ".join(name for name, count in reasons([instruction])[:2] if count)
        print("  %5.1f %%  %5d  %-60s %s" % (
            100 * share, place, " ".join(instruction.get("Source", "?").split())[:60], why))


def main():
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    units, rows = launches(sys.argv[1])
    if not rows:
        print("no launch has been counted")
        return 1
    print("%8s %6s %5s  %s  %s" % ("us", "GHz", "regs",
                                   " ".join("%6s" % name for name, _ in UNITS), "kernel"))
    for row in rows:
        print_launch(units, row)
    if len(sys.argv) == 3:
        for kernel, instructions in functions(sys.argv[2]):
            print_function(kernel, instructions)
    return 0


if __name__ == "__main__":
    sys.exit(main())
