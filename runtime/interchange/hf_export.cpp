// Hugging Face folders (export.h).
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/interchange/export.h"
#include "runtime/interchange/export_source.h"
#include "runtime/interchange/hf_latent.h"
#include "runtime/interchange/hf_layout.h"
#include "runtime/interchange/hf_rope.h"
#include "runtime/interchange/hf_tokenizer.h"
#include "runtime/interchange/new_folder.h"
#include "runtime/plan/shard_table.h"

namespace mtl {

namespace {

using OrderedJson = nlohmann::ordered_json;

struct HfTensor {
  ForeignTensor layout;
  DType dtype;
  int64_t numel() const { return *volume(layout.shape); }
  int64_t bytes() const { return numel() * bytes_of(dtype); }
};

std::vector<HfTensor> tensors_of(const HfModel& model, const std::vector<ParamRow>& table,
                                 DType asked) {
  std::vector<HfTensor> tensors;
  for (ForeignTensor& layout : hf_tensors(model, table)) {
    // Biases of experts decide by small differences: transformers keeps them in f32, too.
    const bool balances = table[layout.parts.front().row].balances;
    tensors.push_back({std::move(layout), balances ? DType::f32 : asked});
  }
  return tensors;
}

// Consecutive tensors that share a file.
std::vector<std::vector<HfTensor>> into_shards(std::vector<HfTensor> tensors, int64_t most) {
  std::vector<std::vector<HfTensor>> shards(1);
  int64_t bytes = 0;
  for (HfTensor& tensor : tensors) {
    if (bytes > 0 && bytes + tensor.bytes() > most) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += tensor.bytes();
    shards.back().push_back(std::move(tensor));
  }
  return shards;
}

const char* torch_name(DType dtype) {
  return dtype == DType::bf16 ? "bfloat16" : dtype == DType::f16 ? "float16" : "float32";
}

}  // namespace

ExportReport export_hf(const ExportOptions& options) {
  ExportSource source(options.checkpoint);
  const HfModel model = hf_model_of(source.shape());
  ExportReport report{.kind = model.architecture};
  ModelShape shape = source.shape();
  std::set<std::string> ours;
  for (const ParamRow& row : shard_table(shape, false)) ours.insert(row.name);
  // GPT2LMHeadModel has all its biases: those that ours does without are zeros.
  if (shape.family() == Family::gpt2) {
    shape.bias = shape.qkv_bias = true;
    shape.norm_bias.reset();
  }
  const std::vector<ParamRow> table = shard_table(shape, false);

  const HfChat chat = hf_chat(options.chat, source.reader().tokenizer());
  NewFolder folder(options.out);
  const HfTokens tokens =
      write_hf_tokenizer(source.reader().tokenizer(), shape, chat, folder, report.warnings);
  if (const auto warning = older_rotation(shape, options.out)) report.warnings.push_back(*warning);
  if (const auto warning = unscaled_scores(shape)) report.warnings.push_back(*warning);
  folder.write("config.json",
               hf_config_of(model, tokens, torch_name(options.dtype)).dump(2) + "\n");
  OrderedJson generation = {{"_from_model_config", true}};
  if (tokens.bos) generation["bos_token_id"] = *tokens.bos;
  if (tokens.eos) generation["eos_token_id"] = *tokens.eos;
  if (chat.end && tokens.eos && *chat.end != *tokens.eos) {
    generation["eos_token_id"] = {*tokens.eos, *chat.end};
  } else if (chat.end) {
    generation["eos_token_id"] = *chat.end;
  }
  folder.write("generation_config.json", generation.dump(2) + "\n");

  const auto shards = into_shards(tensors_of({shape, model.architecture}, table, options.dtype),
                                  options.max_shard_bytes);
  const auto read = [&](const ParamRow& row) {
    return ours.contains(row.name) ? source.read(row.name, row.shape)
                                   : std::vector<float>(static_cast<size_t>(row.numel()), 0.0f);
  };
  OrderedJson weight_map;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name =
        shards.size() == 1 ? "model.safetensors"
                           : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    std::vector<SafetensorsEntry> entries;
    for (const HfTensor& tensor : shards[i]) {
      entries.push_back({.name = tensor.layout.name,
                         .dtype = std::string(safetensors_name(tensor.dtype)),
                         .shape = tensor.layout.shape});
      weight_map[tensor.layout.name] = name;
    }
    SafetensorsFile file(folder.path() / name, entries);
    for (const HfTensor& tensor : shards[i]) {
      for (const ForeignTensor& slice : slices_of(tensor.layout)) {
        file.append(to_dtype(assemble(slice, table, read), tensor.dtype, tensor.layout.name));
      }
      report.parameters += tensor.numel();
      report.bytes += tensor.bytes();
    }
    file.finish();
  }
  report.files = static_cast<int64_t>(shards.size());
  if (shards.size() > 1) {
    const OrderedJson index = {{"metadata", {{"total_size", report.bytes}}},
                               {"weight_map", weight_map}};
    folder.write("model.safetensors.index.json", index.dump(2) + "\n");
  }
  folder.commit();
  return report;
}

}  // namespace mtl
