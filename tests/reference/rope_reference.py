#!/usr/bin/env python3
"""Rotary frequencies of transformers' scalings, for the tests of runtime/interchange.

  rope_reference.py        writes rope.json beside this file: for every case fields of a config.json,
                           the frequencies, the factor of cos and sin, and both at one position

Needs PyTorch 1.13 or later and transformers 4.57 (4.55 does not read the factor of yarn, and 5 has
another name for the dictionary), of which nothing but its functions of frequencies is used.
"""
import json
import os
from types import SimpleNamespace

import torch
import transformers.modeling_rope_utils as rope

rope.torch = torch  # of a PyTorch that is too old for its models, transformers imports nothing
POSITION = 37

# In the shape of Phi-3-mini-128k, with shorter heads.
PHI3 = dict(
    model_type="phi3", hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    rope_theta=10000.0, max_position_embeddings=131072, original_max_position_embeddings=4096,
    rope_scaling={"type": "longrope", "short_factor": [1.05 + i / 10 for i in range(8)],
                  "long_factor": [1.08 + i ** 2 for i in range(8)]})

CASES = {
    "linear, Vicuna 16k": dict(
        head_dim=128, rope_theta=10000.0, max_position_embeddings=4096,
        rope_scaling={"type": "linear", "factor": 4.0}),
    "llama3, Llama 3.2": dict(
        head_dim=64, rope_theta=500000.0, max_position_embeddings=131072,
        rope_scaling={"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
                      "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    "yarn, Qwen 2.5": dict(
        head_dim=128, rope_theta=1000000.0, max_position_embeddings=32768,
        rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}),
    "yarn, gpt-oss": dict(
        head_dim=64, rope_theta=150000.0, max_position_embeddings=131072,
        rope_scaling={"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                      "original_max_position_embeddings": 4096, "truncate": False}),
    "yarn, DeepSeek's scales": dict(
        head_dim=64, rope_theta=10000.0, max_position_embeddings=163840,
        rope_scaling={"type": "yarn", "factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0,
                      "original_max_position_embeddings": 4096, "mscale": 1.0,
                      "mscale_all_dim": 0.707}),
    "yarn, one scale alone counts for nothing": dict(
        head_dim=16, rope_theta=10000.0, max_position_embeddings=4096,
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "mscale": 0.5,
                      "original_max_position_embeddings": 1024}),
    "yarn, factor of attention": dict(
        head_dim=32, rope_theta=10000.0, max_position_embeddings=4096,
        rope_scaling={"rope_type": "yarn", "factor": 2.0, "attention_factor": 0.75,
                      "beta_fast": 8.0, "beta_slow": 0.5,
                      "original_max_position_embeddings": 2048}),
    "yarn, original context is the model's": dict(
        head_dim=32, rope_theta=10000.0, max_position_embeddings=512,
        rope_scaling={"rope_type": "yarn", "factor": 8.0}),
    "yarn, no pair turns once": dict(
        head_dim=16, rope_theta=10000.0, max_position_embeddings=64,
        rope_scaling={"rope_type": "yarn", "factor": 16.0,
                      "original_max_position_embeddings": 4}),
    "yarn, the blend ends where it begins": dict(
        head_dim=16, rope_theta=10000.0, max_position_embeddings=64,
        rope_scaling={"rope_type": "yarn", "factor": 16.0, "beta_fast": 64.0,
                      "beta_slow": 7.0, "original_max_position_embeddings": 40}),
    "none, StableLM 2": dict(
        model_type="stablelm", hidden_size=2048, num_attention_heads=32, num_key_value_heads=32,
        rope_theta=10000.0, max_position_embeddings=4096, partial_rotary_factor=0.25,
        rope_scaling=None),
    "linear, of a part": dict(
        model_type="stablelm", hidden_size=160, num_attention_heads=2, num_key_value_heads=1,
        rope_theta=10000.0, max_position_embeddings=4096, partial_rotary_factor=0.4,
        rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "llama3, of a part": dict(
        model_type="stablelm", hidden_size=256, num_attention_heads=2, num_key_value_heads=1,
        rope_theta=500000.0, max_position_embeddings=131072, partial_rotary_factor=0.5,
        rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                      "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    "yarn, of a part": dict(
        model_type="stablelm", hidden_size=256, num_attention_heads=2, num_key_value_heads=1,
        rope_theta=10000.0, max_position_embeddings=16384, partial_rotary_factor=0.25,
        rope_scaling={"rope_type": "yarn", "factor": 4.0,
                      "original_max_position_embeddings": 4096}),
    "longrope, a short text": dict(PHI3),
    "longrope, a long text": dict(PHI3, seq_len=4097),
    "longrope, of a part, with an amplitude": dict(
        PHI3, partial_rotary_factor=0.75, seq_len=8192, rope_scaling={
            "type": "longrope", "attention_factor": 1.25,
            "short_factor": [1.0 + i / 7 for i in range(6)],
            "long_factor": [2.0 + i * i for i in range(6)]}),
    "longrope, no longer than it was": dict(PHI3, max_position_embeddings=2048),
}


def numbers(tensor):
    return [float(f"{float(x):.8g}") for x in tensor]


def main():
    cases = {}
    for name, fields in CASES.items():
        scaling = fields["rope_scaling"] or {}
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        fields = dict(fields)
        # 0: as far as the model goes, where nothing depends on the text's length.
        seq_len = fields.pop("seq_len", 0)
        config = SimpleNamespace(**{"hidden_size": 64, "num_attention_heads": 1, **fields})
        frequencies, factor = rope.ROPE_INIT_FUNCTIONS[kind](config, device="cpu", seq_len=seq_len)
        angles = POSITION * frequencies
        cases[name] = {"config": fields, "frequencies": numbers(frequencies), "factor": factor,
                       "cos": numbers(angles.cos() * factor),
                       "sin": numbers(angles.sin() * factor)}
        if kind == "longrope":
            cases[name]["seq_len"] = seq_len
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rope.json")
    with open(path, "w") as file:
        json.dump({"position": POSITION, "cases": cases}, file)
        file.write("\n")


if __name__ == "__main__":
    main()
