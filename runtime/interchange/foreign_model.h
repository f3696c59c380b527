// A model that somebody else wrote: its shape and its weights under our names.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "common/error.h"
#include "runtime/interchange/foreign_weights.h"
#include "runtime/plan/model_shape.h"

namespace mtl {

struct ForeignModel {
  std::string kind;  // "Hugging Face LlamaForCausalLM", "Megatron"
  ModelShape shape;
  ForeignWeights weights;
  std::vector<Diagnostic> warnings;
};

// By what lies in `path`: config.json (Hugging Face), or latest_checkpointed_iteration.txt or
// mp_rank_* (Megatron, `torch` format). Throws Error (Exit::data) import.missing, import.config,
// import.family, import.tensor, import.file, import.pickle, ckpt.format, ckpt.file.
ForeignModel open_foreign_model(const std::filesystem::path& path);
// Whether it is one of those at all.
bool is_foreign_model(const std::filesystem::path& path);

ForeignModel open_hf_folder(const std::filesystem::path& path);
ForeignModel open_megatron_folder(const std::filesystem::path& path);

// Tensors of a file by name. Those whose elements are no floating-point numbers only by their type.
struct ForeignTensors {
  std::map<std::string, StridedTensor> tensors;
  std::map<std::string, std::string> others;
  std::map<std::string, StridedTensor> bytes;  // those of them that are U8, of a safetensors file
};
// A safetensors file.
ForeignTensors read_safetensors(const std::filesystem::path& path);

}  // namespace mtl
