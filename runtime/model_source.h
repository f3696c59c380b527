// The shape of a model from whatever a person has of it: a Hugging Face config.json, a recipe, a
// train.yaml, a run, or only its sizes. No weights and no data are read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/error.h"
#include "runtime/plan/model_shape.h"

namespace mtl {

struct ModelSource {
  std::string words;  // "Hugging Face LlamaForCausalLM of DIR/config.json", "recipe llama3-8b"
  ModelShape shape;
  std::vector<Diagnostic> warnings;
};

// `model`: a path, or the name of a recipe where there is no such path. `vocab` > 0 wins over what
// is found. Throws Error: estimate.model (Exit::usage: nothing of that name), estimate.vocab
// (Exit::config: only the tokenizer would say how many token ids there are), import.config,
// import.family, import.file, and those of train.yaml.
ModelSource read_model_source(const std::string& model, int64_t vocab);

// 0 = not said: kv_heads as heads, ffn as train.yaml's default.
struct ModelSizes {
  int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, ffn = 0, vocab = 0, seq_len = 0;
  int64_t experts = 0, topk = 0;  // topk: 2
  bool gpt2 = false;              // learned positions, GELU, biases, tied embeddings; else as Llama
  bool tied = false;              // of Llama's kind: embeddings
};
// Throws Error (Exit::usage) estimate.sizes with everything that is missing, does not divide,
// or is more than train.yaml takes.
ModelSource model_of_sizes(const ModelSizes& sizes);

}  // namespace mtl
