#!/usr/bin/env python3
"""The peer of the last rows of tests/bench/train_cpu.cpp, on two threads:

  python3 peft_step.py [steps=4]

A training step of GPT-2 124M, 4 sequences of 1024 in bf16 by autocast: all weights by transformers,
and adapters of rank 16 beside all linears by PEFT. Needs: pip install torch transformers peft.
"""
import sys
import time

sys.path.pop(0)  # this folder, whose tokenize.py would stand for Python's own

import torch  # noqa: E402
from peft import LoraConfig, get_peft_model  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel  # noqa: E402

LINEARS = ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"]


def seconds_of_steps(adapters, steps):
    model = GPT2LMHeadModel(GPT2Config())
    if adapters:
        model = get_peft_model(model.to(torch.bfloat16), LoraConfig(
            r=16, lora_alpha=16, target_modules=LINEARS, fan_in_fan_out=True))
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    ids = torch.randint(0, 50257, (4, 1024))
    seconds = []
    for _ in range(steps):
        start = time.monotonic()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.monotonic() - start)
    return seconds


def main():
    torch.set_num_threads(2)
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    for adapters in (False, True):
        seconds = seconds_of_steps(adapters, steps)
        print(f"{'lora 16' if adapters else 'all':8} best {min(seconds):6.2f} s of {steps} steps")


if __name__ == "__main__":
    main()
