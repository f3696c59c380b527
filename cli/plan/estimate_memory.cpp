// mtl estimate-memory: what a model weighs, and what training it keeps, before there is a plan.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/plan/plan_words.h"
#include "cli/run_request.h"
#include "common/error.h"
#include "common/terminal.h"
#include "runtime/metrics/format.h"
#include "runtime/model_source.h"
#include "runtime/plan/forecast/estimate.h"

namespace mtl {

namespace {

// With two digits behind the point, as accelerate has them.
std::string two_digits(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit < 5) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{:.2f} {}", bytes, units[unit]);
}

nlohmann::ordered_json to_json(const ModelSource& source, const MemoryEstimate& estimate,
                               int64_t gpus, DType compute) {
  nlohmann::ordered_json dtypes = nlohmann::ordered_json::array();
  for (const DtypeEstimate& row : estimate.dtypes) {
    dtypes.push_back({{"dtype", row.dtype},
                      {"largest_layer_bytes", row.largest_layer},
                      {"total_bytes", row.total},
                      {"training_adam_bytes", nullptr}});
    if (row.training) dtypes.back()["training_adam_bytes"] = *row.training;
  }
  nlohmann::ordered_json zero = nlohmann::ordered_json::array();
  for (const ZeroEstimate& row : estimate.zero) {
    zero.push_back({{"stage", row.stage},
                    {"weights_bytes", row.weights},
                    {"gradients_bytes", row.gradients},
                    {"optimizer_bytes", row.optimizer},
                    {"total_bytes", row.total()},
                    {"mtl_bytes", row.mtl}});
  }
  return {{"schema", "mtl.estimate-memory/1"},
          {"model", source.words},
          {"parameters", estimate.parameters},
          {"body_parameters", estimate.body_parameters},
          {"largest_layer_parameters", estimate.largest_layer},
          {"gpus", gpus},
          {"precision", compute_name(compute)},
          {"dtypes", dtypes},
          {"zero", zero}};
}

std::string text_of(const ModelSource& source, const MemoryEstimate& estimate, int64_t gpus,
                    DType compute) {
  const int64_t head = estimate.parameters - estimate.body_parameters;
  const int columns = std::clamp(terminal_columns(STDOUT_FILENO), 40, 100);
  const auto paragraph = [&](const std::string& words) {
    return wrap_text(words, columns, 0, 0) + '\n';
  };
  std::string text = source.words + '\n' +
                     paragraph(fmt::format("{} parameters ({}): {}", grouped(estimate.parameters),
                                           compact_count(static_cast<double>(estimate.parameters)),
                                           model_words(source.shape))) +
                     '\n';
  text += fmt::format("{:<10} {:>14} {:>14} {:>22}\n", "dtype", "largest layer", "total size",
                      "training using Adam");
  for (const DtypeEstimate& row : estimate.dtypes) {
    text += fmt::format("{:<10} {:>14} {:>14} {:>22}\n", row.dtype, two_digits(row.largest_layer),
                        two_digits(row.total), row.training ? two_digits(*row.training) : "-");
  }
  text += paragraph(
      fmt::format("As accelerate estimate-memory counts: batch size 1, no activations{}.",
                  head > 0 ? fmt::format("; without the output layer, which is {} more in float32",
                                         two_digits(4.0 * static_cast<double>(head)))
                           : ""));
  text +=
      '\n' +
      paragraph(fmt::format(
          "Training with Adam in {}, per GPU of {}, all parameters, no activations:",
          compute == DType::f32 ? "fp32" : fmt::format("{} mixed precision", compute_name(compute)),
          gpus));
  text += fmt::format("{:<8} {:>12} {:>12} {:>12} {:>14} {:>14}\n", "", "weights", "gradients",
                      "optimizer", "together", "in mtl");
  for (const ZeroEstimate& row : estimate.zero) {
    text +=
        fmt::format("{:<8} {:>12} {:>12} {:>12} {:>14} {:>14}\n", fmt::format("ZeRO {}", row.stage),
                    two_digits(row.weights), two_digits(row.gradients), two_digits(row.optimizer),
                    two_digits(row.total()), two_digits(row.mtl));
  }
  text += paragraph(fmt::format(
      "Bytes per parameter: {}; ZeRO 1 divides the last by {}, ZeRO 2 also the gradients, ZeRO 3 "
      "all (arXiv 1910.02054).{}",
      compute == DType::f32 ? "weights 4, gradients 4, optimizer 8"
                            : "weights 2, gradients 2, optimizer 12 (fp32 weights, two moments)",
      gpus,
      compute == DType::f32 ? ""
      : compute == DType::bf16
          ? " mtl keeps gradients in fp32, as Megatron does, and of fp32 weights "
            "the half that those in bf16 lack."
          : " mtl keeps gradients in fp32, as Megatron does."));
  text += "With activations, and tensor and pipeline parallelism: mtl plan.\n";
  return text;
}

}  // namespace

int command_estimate_memory(const Arguments& args) {
  std::vector<std::string> words;
  ModelSizes sizes;
  bool json = false;
  int64_t gpus = 8;
  std::optional<std::string> precision, family;
  CommandLine line(
      {"estimate-memory [options] MODEL", "estimate-memory --layers N --hidden N ..."},
      "Estimates the memory of a model by type, and of training it under each stage "
      "of ZeRO. MODEL is a Hugging Face folder or its config.json, a recipe, a run, or a "
      "train.yaml. Nothing is fetched and no weights are read.");
  line.example("mtl estimate-memory llama3-8b --gpus 8", "a recipe");
  line.example("mtl estimate-memory models/qwen2", "a folder with a config.json");
  line.example("mtl estimate-memory --layers 32 --hidden 4096 --heads 32 --vocab 32000",
               "sizes alone");
  line.rest("MODEL", words, "a folder, a config.json, a train.yaml, a run, or a recipe");
  line.option("gpus", "N", gpus, 1, "GPUs that the replicas' states are divided over", "8");
  line.choice("mixed_precision", {"no", "fp16", "bf16"}, precision, "what training computes in",
              "bf16");
  line.flag("json", json, "one JSON document, schema mtl.estimate-memory/1");
  line.group("Sizes instead of MODEL");
  line.option("layers", "N", sizes.layers, 1, "blocks");
  line.option("hidden", "N", sizes.hidden, 1, "width");
  line.option("heads", "N", sizes.heads, 1, "attention heads");
  line.option("kv_heads", "N", sizes.kv_heads, 1, "heads of keys and values", "heads");
  line.option("ffn", "N", sizes.ffn, 1, "width of the feed-forward block", "as in train.yaml");
  line.option("vocab", "N", sizes.vocab, 1, "token ids; wins over what MODEL says");
  line.option("seq_len", "N", sizes.seq_len, 1, "positions that are learned (gpt2)", "1024");
  line.option("experts", "N", sizes.experts, 1, "feed-forward blocks of a layer", "1");
  line.option("topk", "N", sizes.topk, 1, "experts of a token", "2");
  line.choice("family", {"llama", "gpt2"}, family, "what the blocks are made of", "llama");
  line.flag("tie_embeddings", sizes.tied, "the output layer is the embedding (llama)");
  if (!line.parse(args)) return 0;
  if (words.size() > 1) {
    throw Error(Exit::usage,
                {.code = "usage.extra",
                 .what = fmt::format("mtl estimate-memory takes one MODEL, and got {} and {}",
                                     words[0], words[1]),
                 .help = "see: mtl estimate-memory --help"});
  }
  const bool sized = sizes.layers > 0 || sizes.hidden > 0 || sizes.heads > 0;
  if (words.empty() && !sized) {
    throw Error(Exit::usage, {.code = "usage.missing",
                              .what = "mtl estimate-memory wants a MODEL, or sizes",
                              .help = "a config.json, a train.yaml, or a recipe: mtl recipes ls"});
  }
  std::vector<std::string> given;
  for (const auto& [name, is] :
       {std::pair("--layers", sizes.layers > 0), std::pair("--hidden", sizes.hidden > 0),
        std::pair("--heads", sizes.heads > 0), std::pair("--kv_heads", sizes.kv_heads > 0),
        std::pair("--ffn", sizes.ffn > 0), std::pair("--seq_len", sizes.seq_len > 0),
        std::pair("--experts", sizes.experts > 0), std::pair("--topk", sizes.topk > 0),
        std::pair("--family", family.has_value()), std::pair("--tie_embeddings", sizes.tied)}) {
    if (is) given.emplace_back(name);
  }
  if (!words.empty() && !given.empty()) {
    throw Error(Exit::usage,
                {.code = "usage.option",
                 .what = fmt::format("sizes go without a MODEL, and {} is given", words[0]),
                 .help = fmt::format("leave {} out, or the MODEL", fmt::join(given, ", "))});
  }
  sizes.gpt2 = family.value_or("llama") == "gpt2";
  const ModelSource source =
      words.empty() ? model_of_sizes(sizes) : read_model_source(words[0], sizes.vocab);
  const std::string type = precision.value_or("bf16");
  const DType compute = type == "no" ? DType::f32 : type == "fp16" ? DType::f16 : DType::bf16;
  const MemoryEstimate estimate = estimate_memory(source.shape, gpus, compute);
  print_warnings(source.warnings);
  const std::string text = json ? to_json(source, estimate, gpus, compute).dump(2) + '\n'
                                : text_of(source, estimate, gpus, compute);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

}  // namespace mtl
