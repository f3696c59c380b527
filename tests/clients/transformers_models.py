"""Small models of Hugging Face's `transformers`, before and after mtl had them.

  transformers_models.py make DIR
      writes DIR/FAMILY, a folder with random weights, for every family
  transformers_models.py check DIR TEXT SEQ
      of every family: whether DIR/FAMILY-back, the model that went through mtl untrained, is the
      same, and the loss of DIR/FAMILY-trained on the bytes of TEXT in windows of SEQ
"""
import json
import sys

import numpy
import torch
import transformers
from safetensors import safe_open

ROPE = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.2)
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
# transformers before 4.51 takes the model's positions for the original ones: here they are.
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
FAMILIES = {
    "gpt2": transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, n_positions=64,
                                    initializer_range=0.2, vocab_size=256),
    "gpt_neox": transformers.GPTNeoXConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, rotary_pct=0.5, initializer_range=0.2, vocab_size=256),
    "llama": transformers.LlamaConfig(vocab_size=256, rope_scaling=YARN, **ROPE),
    "llama3": transformers.LlamaConfig(vocab_size=256, rope_scaling=LLAMA3, rope_theta=500000.0,
                                       tie_word_embeddings=True, **ROPE),
    "mistral": transformers.MistralConfig(vocab_size=256, sliding_window=8, **ROPE),
    "qwen2": transformers.Qwen2Config(vocab_size=256, **ROPE),
    "mixtral": transformers.MixtralConfig(vocab_size=256, num_local_experts=4,
                                          num_experts_per_tok=2, **ROPE),
}


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, torch_dtype=torch.float32, attn_implementation="eager").eval()


def make(folder):
    for name, config in FAMILIES.items():
        torch.manual_seed(len(name))
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        for parameter in model.parameters():  # biases and norms are not all alike
            if parameter.ndim == 1:
                parameter.data += 0.1 * torch.randn_like(parameter)
        model.save_pretrained(f"{folder}/{name}")


def logits_of(model, inputs):
    return model(inputs, use_cache=False).logits


def tensors(folder):
    with safe_open(f"{folder}/model.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def same(a, b):
    one, two = tensors(a), tensors(b)
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@torch.no_grad()
def check(folder, text, seq):
    ids = torch.from_numpy(numpy.fromfile(text, numpy.uint8).astype(numpy.int64))
    count = (len(ids) - 1) // seq
    inputs, targets = ids[:count * seq].view(count, seq), ids[1:count * seq + 1].view(count, seq)
    for name in FAMILIES:
        there, back = load(f"{folder}/{name}"), load(f"{folder}/{name}-back")
        logits = (logits_of(there, inputs[:4]) - logits_of(back, inputs[:4])).abs().max().item()
        trained = logits_of(load(f"{folder}/{name}-trained"), inputs)
        loss = torch.nn.functional.cross_entropy(trained.reshape(-1, 256).double(),
                                                 targets.reshape(-1))
        print(json.dumps({"family": name, "tensors": same(f"{folder}/{name}", f"{folder}/{name}-back"),
                          "logits": logits, "loss": loss.item()}))


if sys.argv[1] == "make":
    make(sys.argv[2])
else:
    check(sys.argv[2], sys.argv[3], int(sys.argv[4]))
