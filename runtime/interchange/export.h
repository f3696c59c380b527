// Checkpoints of ours in the formats of others.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "common/error.h"

namespace mtl {

struct ExportOptions {
  std::filesystem::path checkpoint;  // a directory: see find_intact_checkpoint()
  std::filesystem::path out;
  DType dtype = DType::f32;  // f32, bf16, f16
  int64_t max_shard_bytes = 5'000'000'000;
  int tp = 1, pp = 1;  // of the Megatron split
  // Of a Hugging Face folder, a format of chat::load_format(): the tokenizer gets it as its chat
  // template, and generation ends where an answer does. Empty: neither.
  std::string chat = {};
};
struct ExportReport {
  std::string kind;  // "LlamaForCausalLM", "Megatron tp 2 pp 1"
  int64_t parameters = 0;
  int64_t files = 0, bytes = 0;  // of weights
  std::vector<Diagnostic> warnings = {};
};

// A Hugging Face folder: config.json, generation_config.json, model.safetensors (in shards beyond
// max_shard_bytes) and the tokenizer's files. One tensor, or one expert of it, is in memory at
// a time. Throws Error:
// export.family, export.exists, export.write, data.chat, and what CheckpointReader throws.
ExportReport export_hf(const ExportOptions& options);
// The adapters of a model alone, as PEFT loads them beside the model that they were trained beside.
// Also export.no_adapters.
ExportReport export_peft(const ExportOptions& options);
// model-split.json and a pytorch_model_tp_T_pp_P.safetensors per rank, with the names, fused
// projections and vocabulary padding of Megatron core. Also export.split: the model does not
// divide.
ExportReport export_megatron_split(const ExportOptions& options);

}  // namespace mtl
