#!/usr/bin/env python3
"""Small models of others for the tests of runtime/interchange, with their logits.

Needs PyTorch, transformers (4.57 or later), safetensors and NumPy:

  python3 interchange_reference.py            writes interchange/ beside this file
  python3 interchange_reference.py NAME...    these of its Hugging Face folders alone ("megatron":
                                              the Megatron directories)
  python3 interchange_reference.py check DIR LOGITS.json
                                              loads a folder with transformers and compares its
                                              logits with those in LOGITS.json (of our exports)

Hugging Face folders have random weights, large enough that attention is far from uniform. The
Megatron directories are those models again, in the files that Megatron-LM's torch format has:
fused and interleaved, cut over TP 2 x PP 2, with an argparse.Namespace and what else its pickles
carry.
"""
import argparse
import collections
import importlib.util
import json
import math
import os
import shutil
import sys

import numpy
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from transformers.modeling_attn_mask_utils import AttentionMaskConverter

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "interchange")
VOCAB = 96
PROMPTS = [[5, 17, 3, 88, 41, 2], [1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 0, 60, 7, 42, 95, 31, 9]]


def llama_like(hidden=32, **more):
    return dict(vocab_size=VOCAB, hidden_size=hidden, intermediate_size=hidden * 3 // 2, num_hidden_layers=2,
                num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2, **more)


def latents():
    return dict(kv_lora_rank=12, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6)


def deepseek_like():
    config = llama_like(16)
    config["num_key_value_heads"] = config["num_attention_heads"]
    return config


def gpt_oss_like(**other):
    config = {**llama_like(16), **other}
    kinds = ["sliding_attention", "full_attention"]
    return dict(
        head_dim=8, sliding_window=4, layer_types=kinds[:config["num_hidden_layers"]],
        num_experts_per_tok=2, pad_token_id=None,
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
                      "truncate": False, "original_max_position_embeddings": 16}, **config)


def configs():
    yield "gpt2", transformers.GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4,
                                          n_positions=64, n_inner=64, bos_token_id=0,
                                          eos_token_id=0, layer_norm_epsilon=1e-5)
    yield "llama", transformers.LlamaConfig(rope_theta=5000.0, **llama_like())
    yield "llama-tied", transformers.LlamaConfig(tie_word_embeddings=True, **llama_like())
    # Transformers before 4.51 takes the model's positions for the original ones: here they are.
    yield "llama-yarn", transformers.LlamaConfig(
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        **llama_like())
    yield "mistral", transformers.MistralConfig(sliding_window=4, **llama_like())
    # Without a window, which older versions have in one of their kinds of attention alone.
    yield "phi3", transformers.Phi3Config(pad_token_id=None, **llama_like())
    yield "gemma", transformers.GemmaConfig(
        head_dim=16, hidden_activation="gelu_pytorch_tanh", **llama_like())
    yield "qwen2", transformers.Qwen2Config(rope_theta=10000.0, tie_word_embeddings=True,
                                            **llama_like())
    yield "olmo2", transformers.Olmo2Config(pad_token_id=None, rope_theta=5000.0, **llama_like())
    yield "olmoe", transformers.OlmoeConfig(pad_token_id=None, num_experts=6, num_experts_per_tok=2,
                                            **llama_like(16))
    yield "exaone4", transformers.Exaone4Config(
        sliding_window=None, layer_types=["full_attention"] * 2, **llama_like())
    # A window in the first layer alone.
    first = dict(sliding_window=4, layer_types=["sliding_attention", "full_attention"])
    yield "exaone4-windows", transformers.Exaone4Config(**first, **llama_like())
    yield "gemma2", transformers.Gemma2Config(
        head_dim=12, query_pre_attn_scalar=3, attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0, pad_token_id=None, **first, **llama_like())
    yield "gemma3", transformers.Gemma3TextConfig(
        head_dim=12, query_pre_attn_scalar=20, rope_theta=50000.0, rope_local_base_freq=100.0,
        rope_scaling={"rope_type": "linear", "factor": 4.0}, pad_token_id=None, **first,
        **llama_like())
    yield "olmo3", transformers.Olmo3Config(
        pad_token_id=None, rope_theta=5000.0, **first,
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        **llama_like())
    yield "smollm3", transformers.SmolLM3Config(
        pad_token_id=None, no_rope_layers=[1, 0], use_sliding_window=True, **first, **llama_like())
    yield "qwen3-windows", transformers.Qwen3Config(
        head_dim=8, use_sliding_window=True, sliding_window=4, max_window_layers=1, **llama_like())
    starcoder2 = llama_like()
    starcoder2["norm_epsilon"] = starcoder2.pop("rms_norm_eps")
    yield "starcoder2", transformers.Starcoder2Config(**starcoder2)
    yield "glm", transformers.GlmConfig(head_dim=8, pad_token_id=None, **llama_like())
    yield "glm4", transformers.Glm4Config(
        head_dim=12, pad_token_id=None, attention_bias=False, **llama_like())
    yield "seed-oss", transformers.SeedOssConfig(head_dim=12, pad_token_id=None, **llama_like(16))
    yield "seed-oss-biases", transformers.SeedOssConfig(
        head_dim=4, pad_token_id=None, attention_bias=False, attention_out_bias=True, mlp_bias=True,
        **llama_like(16))
    yield "ernie4-5", transformers.Ernie4_5Config(
        head_dim=12, pad_token_id=None, use_bias=True, rope_theta=5000.0, **llama_like(16))
    yield "mixtral", transformers.MixtralConfig(num_local_experts=4, num_experts_per_tok=2,
                                                sliding_window=None, **llama_like(16))
    yield "qwen2-moe", transformers.Qwen2MoeConfig(
        num_experts=6, num_experts_per_tok=2, moe_intermediate_size=12,
        shared_expert_intermediate_size=20, norm_topk_prob=False, **llama_like(16))
    yield "qwen3-moe", transformers.Qwen3MoeConfig(
        num_experts=6, num_experts_per_tok=3, moe_intermediate_size=12, norm_topk_prob=True,
        head_dim=8, **llama_like(16))
    yield "gpt-oss", transformers.GptOssConfig(num_local_experts=4, **gpt_oss_like())
    # As it is published, with experts in MXFP4.
    yield "gpt-oss-mxfp4", transformers.GptOssConfig(num_local_experts=3, **gpt_oss_like(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1))
    stablelm = llama_like()
    stablelm["layer_norm_eps"] = stablelm.pop("rms_norm_eps")
    yield "stablelm", transformers.StableLmConfig(
        rope_theta=5000.0, partial_rotary_factor=0.25, use_qkv_bias=True,
        rope_scaling={"rope_type": "linear", "factor": 2.0}, **stablelm)
    # Both blocks of a layer read one norm.
    yield "stablelm-parallel", transformers.StableLmConfig(
        use_parallel_residual=True, partial_rotary_factor=0.5, **{**stablelm, "hidden_size": 16})
    one_norm = {**stablelm, "hidden_size": 16, "pad_token_id": None}
    yield "cohere", transformers.CohereConfig(logit_scale=0.25, rope_theta=5000.0, **one_norm)
    yield "cohere2", transformers.Cohere2Config(logit_scale=0.5, head_dim=6, **first, **one_norm)
    yield "phi", transformers.PhiConfig(**{**stablelm, "hidden_size": 32})
    scales = dict(embedding_multiplier=6.0, residual_multiplier=0.3, logits_scaling=4.0,
                  attention_multiplier=0.4)
    yield "granite", transformers.GraniteConfig(
        attention_bias=True, mlp_bias=True, **scales, **llama_like(16))
    yield "granitemoe", transformers.GraniteMoeConfig(
        num_local_experts=4, num_experts_per_tok=2, tie_word_embeddings=True, **scales,
        **llama_like(16))
    yield "granitemoeshared", transformers.GraniteMoeSharedConfig(
        num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=20, **scales,
        **llama_like(16))
    # Granite 4's type without layers of Mamba and without experts.
    yield "granite4", transformers.GraniteMoeHybridConfig(
        num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=20,
        layer_types=["attention"] * 2, position_embedding_type="rope", mamba_n_heads=2, mamba_d_head=16,
        **scales, **llama_like(16))
    neox = dict(vocab_size=VOCAB, num_hidden_layers=2, num_attention_heads=4,
                max_position_embeddings=64, rotary_pct=0.5, bos_token_id=1, eos_token_id=2)
    yield "gpt-neox", transformers.GPTNeoXConfig(hidden_size=32, intermediate_size=48,
                                                 rotary_emb_base=5000, **neox)
    yield "gpt-neox-sequential", transformers.GPTNeoXConfig(
        hidden_size=16, intermediate_size=24, use_parallel_residual=False, hidden_act="gelu_new",
        tie_word_embeddings=True, **neox)
    yield "dots1", transformers.Dots1Config(
        n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=4, n_group=4, topk_group=2,
        moe_intermediate_size=12, first_k_dense_replace=1, norm_topk_prob=True,
        routed_scaling_factor=2.5, head_dim=8, sliding_window=None, **llama_like(16))
    # GLM-4.5 has norms of heads, GLM-4.5-Air has none. The latter's groups are not published.
    yield "glm4-moe", transformers.Glm4MoeConfig(
        n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=12, head_dim=8,
        use_qk_norm=True, attention_bias=True, routed_scaling_factor=2.5, **llama_like(16))
    yield "glm4-moe-air", transformers.Glm4MoeConfig(
        n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=4, n_group=4, topk_group=2,
        moe_intermediate_size=12, first_k_dense_replace=0, head_dim=8, attention_bias=True,
        norm_topk_prob=False,
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        **llama_like(16))
    # Latent attention. Beside mscale_all_dim another mscale, so that each of the two shows.
    yield "deepseek-v3", transformers.DeepseekV3Config(
        n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=4, n_group=4, topk_group=2,
        moe_intermediate_size=12, first_k_dense_replace=1, q_lora_rank=20, pad_token_id=None,
        rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
                      "mscale": 1.0, "mscale_all_dim": 0.707, "beta_fast": 32, "beta_slow": 1},
        **latents(), **deepseek_like())
    # Without experts, latents of queries and a scaling.
    yield "deepseek-v3-dense", transformers.DeepseekV3Config(
        first_k_dense_replace=2, q_lora_rank=None, rope_theta=5000.0, pad_token_id=None,
        **latents(), **deepseek_like())
    yield "deepseek-v2", transformers.DeepseekV2Config(
        n_routed_experts=6, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=12,
        first_k_dense_replace=1, routed_scaling_factor=1.5, q_lora_rank=None, pad_token_id=None,
        rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
                      "mscale": 0.707, "mscale_all_dim": 0.707},
        **latents(), **deepseek_like())
    # Whose groups have the score of one expert, where Megatron-LM's have that of two.
    yield "deepseek-v2-groups", transformers.DeepseekV2Config(
        n_routed_experts=12, n_shared_experts=2, num_experts_per_tok=4, moe_intermediate_size=12,
        topk_method="group_limited_greedy", n_group=4, topk_group=2, routed_scaling_factor=4.0,
        q_lora_rank=20, pad_token_id=None, **latents(), **deepseek_like())


def randomise(model):
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            scale = 0.25 if parameter.dim() > 1 else 0.1
            if name.endswith(("sinks", "gate_up_proj")):
                scale = 1  # sinks as large as scores, and values that gpt-oss clamps
            norm = parameter.dim() == 1 and name.endswith("weight") and \
                not model.config.model_type.startswith("gemma")  # whose norms have the 1 in their code
            parameter.copy_(scale * noise + (1 if norm else 0))
            # Values that float16 and bfloat16 hold exactly make no difference to the tests and
            # let the same model be stored in either.
            parameter.copy_(parameter.to(torch.bfloat16).float())
        for name, buffer in sorted(model.named_buffers()):
            if name.endswith("e_score_correction_bias"):
                # As large as differences of sigmoids; not negative, since transformers before 5
                # gives experts of groups that are left out a 0, which would win then.
                buffer.copy_(0.25 * torch.randn(buffer.shape, generator=generator).abs())


def window_excess():
    """How many positions more than its window says transformers' mask shows: older ones have 1."""
    if importlib.util.find_spec("transformers.masking_utils"):
        return 0  # the masks of these, whatever the old converter still says
    converter = AttentionMaskConverter(is_causal=True, sliding_window=4)
    mask = converter.to_causal_4d(1, 8, 8, dtype=torch.float32)
    return int((mask[0, 0, -1] == 0).sum()) - 4


def scale_scores(model):
    """YaRN scales all scores of a DeepSeek-V2, as DeepSeek's own code does it; transformers before
    5.24 does it of a DeepSeek-V3 alone."""
    scaling = getattr(model.config, "rope_scaling", None) or {}
    if model.config.model_type != "deepseek_v2" or not scaling.get("mscale_all_dim"):
        return
    amplitude = 0.1 * scaling["mscale_all_dim"] * math.log(scaling["factor"]) + 1
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.scaling = attention.qk_head_dim ** -0.5 * amplitude ** 2


def logits_of(model):
    model.eval()
    scale_scores(model)
    window = getattr(model.config, "sliding_window", None)
    windowed = window and getattr(model.config, "use_sliding_window", True)
    if windowed:
        model.config.sliding_window = window - window_excess()
    with torch.no_grad():
        logits = [[round(float(x), 6) for x in model(torch.tensor([ids])).logits[0, -1].double()]
                  for ids in PROMPTS]
    if windowed:
        model.config.sliding_window = window
    return logits


def pack_experts(model):
    """Experts of numbers that MXFP4 has, as transformers reads them; those tensors as they are
    published."""
    generator = torch.Generator().manual_seed(11)
    packed = {}
    for n, layer in enumerate(model.model.layers):
        for name in ("gate_up_proj", "down_proj"):
            weight = getattr(layer.mlp.experts, name)
            experts, inputs, outputs = weight.shape
            blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16),
                                   dtype=torch.uint8, generator=generator)
            scales = torch.randint(121, 126, (experts, outputs, inputs // 32), dtype=torch.uint8,
                                   generator=generator)
            scales[0, :2, 0] = torch.tensor([0, 1])  # the smallest ones
            weight.data = convert_moe_packed_tensors(blocks, scales).float()
            base = f"model.layers.{n}.mlp.experts.{name}"
            packed[base] = {f"{base}_blocks": blocks, f"{base}_scales": scales}
    return packed


def write_packed(folder, packed):
    """Puts them in the place of plain experts, which go to decoded.safetensors."""
    path = os.path.join(folder, "model.safetensors")
    tensors = load_file(path)
    save_file({name: tensors.pop(name) for name in packed},
              os.path.join(folder, "decoded.safetensors"))
    for two in packed.values():
        tensors.update(two)
    save_file(tensors, path, metadata={"format": "pt"})
    path = os.path.join(folder, "config.json")
    with open(path) as file:
        config = json.load(file)
    config["quantization_config"] = {"modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
        "quant_method": "mxfp4"}
    with open(path, "w") as out:
        json.dump(config, out, indent=2, sort_keys=True)
        out.write("\n")


def make_folders(wanted):
    for name, config in configs():
        if wanted and name not in wanted:
            continue
        config._attn_implementation = "eager"  # the sliding window is in its mask
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        randomise(model)
        packed = pack_experts(model) if name == "gpt-oss-mxfp4" else None
        folder = os.path.join(HERE, name)
        logits = logits_of(model)  # before a change of type rounds the table of rotations, too
        # GPT-2 in shards, one in bfloat16, one as pytorch_model.bin.
        if name in ("qwen2", "mistral", "llama-yarn", "phi3", "gpt-oss-mxfp4"):
            model = model.to(torch.bfloat16)
        model.save_pretrained(folder, max_shard_size="16KB" if name == "gpt2" else "1GB",
                              safe_serialization=name != "llama-tied")
        with open(os.path.join(folder, "logits.json"), "w") as out:
            json.dump({"prompts": PROMPTS, "logits": logits}, out)
        if packed:
            write_packed(folder, packed)


# Megatron -----------------------------------------------------------------------------------------

def split(tensor, parts, axis=0):
    return [part.contiguous() for part in tensor.chunk(parts, axis)]


def fuse_qkv(q, k, v, groups):
    """Rows per key head: its queries, its key, its value (each [out, ...])."""
    rows = []
    for part in zip(q.chunk(groups), k.chunk(groups), v.chunk(groups)):
        rows.extend(part)
    return torch.cat(rows)


def pad_vocab(tensor, rows):
    return torch.cat([tensor, torch.full((rows - tensor.shape[0], tensor.shape[1]), 0.125)])


def llama_tensors(source, config):
    """Megatron core's names, whole tensors; the axis that TP cuts, or None."""
    groups = config.num_key_value_heads

    def norm(ours, theirs):
        for kind in ("weight", "bias"):
            if f"{ours}.{kind}" in source:
                yield theirs + kind, source[f"{ours}.{kind}"], None

    for n in range(config.num_hidden_layers):
        old, new = f"model.layers.{n}.", f"decoder.layers.{n}."
        attention, mlp = old + "self_attn.", old + "mlp."
        # Transformer Engine has the norms inside the projections.
        yield from norm(old + "input_layernorm", new + "self_attention.linear_qkv.layer_norm_")
        for kind in ("weight", "bias"):
            if attention + "q_proj." + kind in source:
                yield new + "self_attention.linear_qkv." + kind, \
                    fuse_qkv(*[source[attention + f"{x}_proj.{kind}"] for x in "qkv"], groups), 0
        yield new + "self_attention.linear_qkv._extra_state", None, None
        yield new + "self_attention.linear_proj.weight", source[attention + "o_proj.weight"], 1
        yield from norm(old + "post_attention_layernorm", new + "mlp.linear_fc1.layer_norm_")
        yield new + "mlp.linear_fc1.weight", \
            (source[mlp + "gate_proj.weight"], source[mlp + "up_proj.weight"]), "gated"
        yield new + "mlp.linear_fc2.weight", source[mlp + "down_proj.weight"], 1
    yield from norm("model.norm", "decoder.final_layernorm.")


def gpt2_tensors(source, config):
    """The older names, in nested dicts joined by dots."""
    for n in range(config.n_layer):
        old, new = f"transformer.h.{n}.", f"encoder.layers.{n}."
        for ours, theirs in (("ln_1", "input_layernorm"), ("ln_2", "post_attention_layernorm")):
            for kind in ("weight", "bias"):
                yield f"{new}{theirs}.{kind}", source[f"{old}{ours}.{kind}"], None
        q, k, v = source[old + "attn.c_attn.weight"].t().chunk(3)
        yield new + "self_attention.query_key_value.weight", fuse_qkv(q, k, v, config.n_head), 0
        q, k, v = source[old + "attn.c_attn.bias"].chunk(3)
        yield new + "self_attention.query_key_value.bias", fuse_qkv(q, k, v, config.n_head), 0
        for ours, theirs, axis in (("attn.c_proj", "self_attention.dense", 1),
                                   ("mlp.c_fc", "mlp.dense_h_to_4h", 0),
                                   ("mlp.c_proj", "mlp.dense_4h_to_h", 1)):
            yield f"{new}{theirs}.weight", source[f"{old}{ours}.weight"].t(), axis
            yield f"{new}{theirs}.bias", source[f"{old}{ours}.bias"], 0 if axis == 0 else None
    yield "encoder.final_layernorm.weight", source["transformer.ln_f.weight"], None
    yield "encoder.final_layernorm.bias", source["transformer.ln_f.bias"], None


class Unknown:
    """Something of Megatron's own in its args."""
    def __init__(self):
        self.x = [1, 2]


def write_megatron(name, tensors, embeddings, head, args, tp, pp, layers, nest, release, dtype):
    folder = os.path.join(HERE, name)
    shutil.rmtree(folder, ignore_errors=True)
    step = "release" if release else "iter_0000500"
    padded = 56 * tp
    args = argparse.Namespace(tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp,
                              padded_vocab_size=padded, params_dtype=torch.bfloat16,
                              data_path=["a", "b"], lr=3e-4, num_experts=None, **args)
    for p in range(pp):
        ranks = [collections.OrderedDict() for _ in range(tp)]
        for old, tensor, axis in tensors:
            key = old
            if ".layers." in old:
                before, n, after = old.split(".layers.")[0], *old.split(".layers.")[1].split(".", 1)
                if int(n) * pp // layers != p:
                    continue
                key = f"{before}.layers.{int(n) % (layers // pp)}.{after}"
            elif p != pp - 1:
                continue
            if axis == "gated":
                parts = [torch.cat(pair) for pair in zip(*[split(t, tp) for t in tensor])]
            elif axis is None:
                parts = [tensor] * tp
            else:
                parts = split(tensor, tp, axis)
            for rank, part in zip(ranks, parts):
                rank[key] = part
        for t, rank in enumerate(ranks):
            for key, tensor in embeddings.items():
                if p == 0:
                    rank[key] = split(pad_vocab(tensor, padded), tp)[t] if "word" in key else tensor
            if p == pp - 1:
                rank[head[0]] = split(pad_vocab(head[1], padded), tp)[t]
            for key, tensor in rank.items():
                rank[key] = tensor if tensor is None else tensor.to(dtype)
            # Views that share a storage, and a matrix that lies transposed in memory.
            for key in list(rank):
                if key.endswith("mlp.linear_fc2.weight"):
                    rank[key] = rank[key].t().contiguous().t()
            vectors = [k for k, v in rank.items() if v is not None and v.dim() == 1]
            joined = torch.cat([torch.zeros(3, dtype=dtype)] + [rank[k] for k in vectors])
            at = 3
            for key in vectors:
                rank[key] = joined[at:at + rank[key].numel()]
                at += rank[key].numel()
            parts = f"mp_rank_{t:02}" + (f"_{p:03}" if pp > 1 else "")
            path = os.path.join(folder, step, parts)
            os.makedirs(path)
            state = {"args": args, "checkpoint_version": 3.0, "iteration": 500,
                     "model": nest(rank), "num_floating_point_operations_so_far": 1 << 70,
                     "rng_state": [{"np_rng_state": numpy.random.RandomState(1).get_state()[:1],
                                    "torch_rng_state": torch.tensor([1, 2], dtype=torch.uint8)}],
                     "opt_param_scheduler": {"max_lr": 1e-4}}
            torch.save(state, os.path.join(path, "model_optim_rng.pt"))
    with open(os.path.join(folder, "latest_checkpointed_iteration.txt"), "w") as out:
        out.write("release" if release else "500")


def flat(rank):
    return rank


def nested(rank):
    """As before Megatron core: dicts by module."""
    encoder, embedding, top = collections.OrderedDict(), {}, {}
    for key, tensor in rank.items():
        if key.startswith("encoder."):
            encoder[key[len("encoder."):]] = tensor
        elif key.startswith("embedding."):
            _, module, kind = key.split(".")
            embedding.setdefault(module, collections.OrderedDict())[kind] = tensor
        else:
            module, kind = key.split(".")
            top[module] = {kind: tensor}
    model = {"encoder": encoder}
    if embedding:
        model["embedding"] = embedding
    return {"language_model": model, **top}


def whole(name):
    folder = os.path.join(HERE, name)
    state = {}
    for file in sorted(os.listdir(folder)):
        if file.endswith(".safetensors"):
            state.update(load_file(os.path.join(folder, file)))
    return state, transformers.AutoConfig.from_pretrained(folder)


def make_megatron():
    source, config = whole("llama")
    write_megatron(
        "megatron-llama", list(llama_tensors(source, config)),
        {"embedding.word_embeddings.weight": source["model.embed_tokens.weight"]},
        ("output_layer.weight", source["lm_head.weight"]),
        dict(num_layers=2, hidden_size=32, num_attention_heads=4, group_query_attention=True,
             num_query_groups=2, kv_channels=8, ffn_hidden_size=48, max_position_embeddings=64,
             vocab_size=VOCAB, position_embedding_type="rope", rotary_base=5000,
             rotary_percent=1.0, swiglu=True, normalization="RMSNorm", norm_epsilon=1e-5,
             add_bias_linear=False, untie_embeddings_and_output_weights=True,
             add_qkv_bias=False, qk_layernorm=False, something=Unknown()),
        tp=2, pp=2, layers=2, nest=flat, release=False, dtype=torch.bfloat16)
    source, config = whole("stablelm")
    write_megatron(
        "megatron-stablelm", list(llama_tensors(source, config)),
        {"embedding.word_embeddings.weight": source["model.embed_tokens.weight"]},
        ("output_layer.weight", source["lm_head.weight"]),
        dict(num_layers=2, hidden_size=32, num_attention_heads=4, group_query_attention=True,
             num_query_groups=2, kv_channels=8, ffn_hidden_size=48, max_position_embeddings=64,
             vocab_size=VOCAB, position_embedding_type="rope", rotary_base=5000,
             rotary_percent=0.25, rotary_seq_len_interpolation_factor=2, swiglu=True,
             normalization="LayerNorm", norm_epsilon=1e-5, add_bias_linear=False,
             untie_embeddings_and_output_weights=True, add_qkv_bias=True, qk_layernorm=False),
        tp=2, pp=1, layers=2, nest=flat, release=False, dtype=torch.bfloat16)
    source, config = whole("smollm3")
    write_megatron(
        "megatron-smollm3", list(llama_tensors(source, config)),
        {"embedding.word_embeddings.weight": source["model.embed_tokens.weight"]},
        ("output_layer.weight", source["model.embed_tokens.weight"]),
        dict(num_layers=2, hidden_size=32, num_attention_heads=4, group_query_attention=True,
             num_query_groups=2, kv_channels=8, ffn_hidden_size=48, max_position_embeddings=64,
             vocab_size=VOCAB, position_embedding_type="rope", rotary_base=2000000,
             rotary_percent=1.0, swiglu=True, normalization="RMSNorm", norm_epsilon=1e-5,
             add_bias_linear=False, untie_embeddings_and_output_weights=False,
             window_size=(3, 0), window_attn_skip_freq=2, no_rope_freq=[0, 1]),
        tp=2, pp=2, layers=2, nest=flat, release=False, dtype=torch.float32)
    source, config = whole("gpt2")
    write_megatron(
        "megatron-gpt2", list(gpt2_tensors(source, config)),
        {"embedding.word_embeddings.weight": source["transformer.wte.weight"],
         "embedding.position_embeddings.weight": source["transformer.wpe.weight"]},
        ("word_embeddings_for_head.weight", source["transformer.wte.weight"]),
        dict(num_layers=2, hidden_size=32, num_attention_heads=4, kv_channels=8,
             ffn_hidden_size=64, max_position_embeddings=64, vocab_size=VOCAB,
             layernorm_epsilon=1e-5, bias_gelu_fusion=True),
        tp=2, pp=2, layers=2, nest=nested, release=True, dtype=torch.float32)


def check(folder, expected):
    """Our export, in transformers."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32,
                                                              attn_implementation="eager")
    with open(expected) as text:
        numbers = json.load(text)
    if numbers["prompts"] != PROMPTS:
        raise SystemExit("other prompts")
    theirs = torch.tensor(logits_of(model), dtype=torch.double)
    worst = float((theirs - torch.tensor(numbers["logits"], dtype=torch.double)).abs().max())
    print(f"{folder}: {type(model).__name__}, largest difference {worst:.2e}")
    return worst <= 1e-4


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "check":
        sys.exit(0 if check(sys.argv[2], sys.argv[3]) else 1)
    make_folders(sys.argv[1:])
    if sys.argv[1:] in ([], ["megatron"]):
        make_megatron()
