// Adapters as PEFT has them (export.h): adapter_config.json and adapter_model.safetensors. Where
// one matrix of ours serves several linears of theirs, each gets it.
#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/interchange/export.h"
#include "runtime/interchange/export_source.h"
#include "runtime/interchange/hf_layout.h"
#include "runtime/interchange/new_folder.h"

namespace mtl {

namespace {

using OrderedJson = nlohmann::ordered_json;

// What ForeignModel::kind begins with, before the class of transformers.
constexpr std::string_view kHuggingFace = "Hugging Face ";

// Of a linear of theirs: the first matrix, and how the second is made of those of ours.
struct PeftAdapter {
  std::string linear;
  const ParamRow* a = nullptr;
  ForeignTensor b = {};
  bool conv1d = false;  // their weight is stored [in, out]
};

[[noreturn]] void fail_family(const std::string& tensor) {
  throw Error(
      Exit::data,
      {.code = "export.family",
       .what = fmt::format("PEFT has no adapter like that of '{}': it is made of parts that "
                           "the model's own files lay otherwise",
                           tensor),
       .help = "export with --format hf, which merges adapters into the model"});
}

// Nothing where the tensor has no adapter.
std::optional<PeftAdapter> adapter_of(const ForeignTensor& tensor,
                                      const std::vector<ParamRow>& table,
                                      const MergeAdapters& adapters, int64_t rank) {
  PeftAdapter found{.linear = tensor.name.substr(0, tensor.name.rfind(".weight"))};
  bool plain = false;  // a part has none
  for (const ForeignPart& part : tensor.parts) {
    const ParamRow& weight = table[part.row];
    const AdaptedRow* const adapter = adapters.find(weight.name);
    if (adapter == nullptr) {
      plain = true;
      continue;
    }
    const size_t out = weight.out_in ? 0 : 1;  // axis of ours
    const size_t theirs = part.transposed ? 1 - out : out;
    const bool whole_rows = part.rect.extent[1 - out] == weight.shape[1 - out];
    if (!whole_rows || tensor.shape.size() != 2 || (found.a != nullptr && found.a != adapter->a)) {
      fail_family(tensor.name);
    }
    found.a = adapter->a;
    found.conv1d = theirs == 1;
    found.b.shape = {tensor.shape[theirs], rank};
    found.b.parts.push_back({.row = part.row,
                             .rect = {{part.rect.offset[out], 0}, {part.rect.extent[out], rank}},
                             .at = {part.at[theirs], 0},
                             .step = part.step});
  }
  if (found.a == nullptr) return std::nullopt;
  if (plain) fail_family(tensor.name);
  return found;
}

// What tells a linear from those of other blocks in all layers: "self_attn.q_proj".
std::string target_of(const std::string& linear) {
  const size_t last = linear.rfind('.');
  return linear.substr(linear.rfind('.', last - 1) + 1);
}

}  // namespace

ExportReport export_peft(const ExportOptions& options) {
  ExportSource source(options.checkpoint);
  if (source.adapters() == nullptr) {
    throw Error(Exit::usage,
                {.code = "export.no_adapters",
                 .what = options.checkpoint.string() + " has no adapters: all of it was trained",
                 .help = "export with --format hf"});
  }
  const MergeAdapters& adapters = *source.adapters();
  HfModel model = hf_model_of(source.shape());
  ExportReport report;
  const nlohmann::json base = source.reader().state().value("base", nlohmann::json::object());
  const std::string from = base.value("from", ""), kind = base.value("kind", "");
  if (kind.starts_with(kHuggingFace)) {
    // As the model's own files call it, also where the same model goes out as another family's.
    model.architecture = kind.substr(kHuggingFace.size());
    if (model.architecture == "Gemma3ForConditionalGeneration") {
      throw Error(Exit::data, {.code = "export.family",
                               .what = "the adapters are of the text part of a Gemma 3 that sees "
                                       "pictures, and PEFT would find linears of the other part",
                               .help = "export with --format hf, which merges adapters into the "
                                       "model"});
    }
  } else {
    report.warnings.push_back(
        {.code = "export.base",
         .what = fmt::format("the adapters fit {} as mtl ckpt export --format hf writes it, and {}",
                             model.architecture,
                             from.empty() ? "what they were trained beside is not known"
                                          : from + " is no Hugging Face folder"),
         .help = "set base_model_name_or_path in adapter_config.json to such a folder",
         .severity = Diagnostic::Severity::warning});
  }
  report.kind = "PEFT adapters of " + model.architecture;
  report.files = 1;
  const std::vector<ParamRow> table = shard_table(source.shape(), false);
  // As if the weights were the adapters' second matrices.
  std::vector<ParamRow> seconds = table;
  for (ParamRow& row : seconds) {
    if (const AdaptedRow* adapter = adapters.find(row.name)) row = *adapter->b;
  }
  std::vector<PeftAdapter> linears;
  std::vector<SafetensorsEntry> entries;
  std::set<std::string> targets;
  const std::string type(safetensors_name(options.dtype));
  for (const ForeignTensor& tensor : hf_tensors(model, table)) {
    auto adapter = adapter_of(tensor, table, adapters, adapters.lora().rank);
    if (!adapter) continue;
    const std::string name = "base_model.model." + adapter->linear;
    entries.push_back({.name = name + ".lora_A.weight", .dtype = type, .shape = adapter->a->shape});
    entries.push_back({.name = name + ".lora_B.weight", .dtype = type, .shape = adapter->b.shape});
    targets.insert(target_of(adapter->linear));
    linears.push_back(std::move(*adapter));
  }
  NewFolder folder(options.out);
  const OrderedJson config = {
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path", from.empty() ? OrderedJson(nullptr) : OrderedJson(from)},
      {"r", adapters.lora().rank},
      {"lora_alpha", adapters.lora().alpha},
      {"lora_dropout", 0.0},
      {"target_modules", targets},
      {"fan_in_fan_out", linears.front().conv1d},
      {"bias", "none"},
      {"inference_mode", true}};
  folder.write("adapter_config.json", config.dump(2) + "\n");
  SafetensorsFile file(folder.path() / "adapter_model.safetensors", entries);
  for (const PeftAdapter& linear : linears) {
    const auto add = [&](const std::vector<float>& values) {
      file.append(to_dtype(values, options.dtype, linear.linear));
      report.parameters += static_cast<int64_t>(values.size());
    };
    add(source.stored(linear.a->name, linear.a->shape));
    add(assemble(linear.b, seconds,
                 [&](const ParamRow& row) { return source.stored(row.name, row.shape); }));
  }
  file.finish();
  report.bytes = report.parameters * bytes_of(options.dtype);
  folder.commit();
  return report;
}

}  // namespace mtl
