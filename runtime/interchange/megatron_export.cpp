// The Megatron split (export.h).
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/version.h"
#include "runtime/interchange/export.h"
#include "runtime/interchange/export_source.h"
#include "runtime/interchange/megatron_layout.h"
#include "runtime/interchange/new_folder.h"

namespace mtl {

namespace {

[[noreturn]] void fail(const std::string& what) {
  throw Error(Exit::usage, {.code = "export.split",
                            .what = what,
                            .help = "choose other degrees: --tp 1 --pp 1 always divides"});
}

// 1 for the layers that `is` says, 0 for the others.
template <class Is>
std::vector<int> flags_of(const ModelShape& shape, Is is) {
  std::vector<int> flags;
  for (int64_t layer = 0; layer < shape.layers; ++layer) flags.push_back(is(layer) ? 1 : 0);
  return flags;
}

// What Megatron calls its settings.
nlohmann::ordered_json args_of(const ModelShape& shape, const ExportOptions& options,
                               int64_t padded_vocab) {
  const char* const positions[] = {"learned_absolute", "rope", "alibi", "none"};
  nlohmann::ordered_json args = {
      {"num_layers", shape.layers},
      {"hidden_size", shape.hidden},
      {"num_attention_heads", shape.heads},
      {"group_query_attention", shape.kv_heads != shape.heads},
      {"num_query_groups", shape.kv_heads},
      {"kv_channels", shape.head_dim},
      {"ffn_hidden_size", shape.ffn},
      {"max_position_embeddings", shape.max_seq},
      {"vocab_size", shape.vocab},
      {"padded_vocab_size", padded_vocab},
      {"position_embedding_type", positions[static_cast<size_t>(shape.position)]},
      {"swiglu", shape.activation == Activation::swiglu},
      {"openai_gelu", shape.activation == Activation::gelu_tanh},
      {"bias_gelu_fusion", false},
      {"normalization", shape.norm == NormType::rmsnorm ? "RMSNorm" : "LayerNorm"},
      {"norm_epsilon", shape.norm_eps},
      {"add_bias_linear", shape.bias},
      {"add_qkv_bias", shape.qkv_bias},
      {"qk_layernorm", shape.qk_norm},
      {"untie_embeddings_and_output_weights", !shape.tie_embeddings},
      {"tensor_model_parallel_size", options.tp},
      {"pipeline_model_parallel_size", options.pp}};
  if (shape.sliding_window > 0) args["window_size"] = {shape.sliding_window - 1, 0};
  if (!shape.full_layers.empty()) {
    args["window_attn_skip_freq"] =
        flags_of(shape, [&](int64_t layer) { return shape.window_of(layer) > 0; });
  }
  if (!shape.unrotated_layers.empty()) {
    args["no_rope_freq"] = flags_of(shape, [&](int64_t layer) { return !shape.rotates(layer); });
  }
  if (shape.attention_scale > 0) args["softmax_scale"] = shape.attention_scale;
  if (shape.position == PositionType::rope) {
    args["rotary_base"] = shape.rope_base;
    args["rotary_percent"] = shape.rope_fraction;
    const RopeScaling& scaling = shape.rope_scaling;
    const bool llama3 = scaling.type == RopeScalingType::llama3;
    args["use_rope_scaling"] = llama3;
    if (llama3) args["rope_scaling_factor"] = scaling.factor;
    if (scaling.type == RopeScalingType::linear) {
      args["rotary_seq_len_interpolation_factor"] = scaling.factor;
    }
  }
  return args;
}

}  // namespace

ExportReport export_megatron_split(const ExportOptions& options) {
  ExportSource source(options.checkpoint);
  const ModelShape& shape = source.shape();
  if (const std::string obstacle = megatron_obstacle(shape, options.tp); !obstacle.empty()) {
    fail(obstacle);
  }
  if (shape.layers % options.pp != 0) {
    fail(fmt::format("{} layers do not divide by pp {}", shape.layers, options.pp));
  }
  const std::vector<ParamRow> table = shard_table(shape, false);
  // Megatron's own rule: a multiple of 128 for each rank.
  const int64_t padded = round_up(shape.vocab, shape.vocab_pad_to * options.tp);
  NewFolder folder(options.out);
  ExportReport report{.kind = fmt::format("Megatron split, tp {} x pp {}", options.tp, options.pp)};
  for (int pp = 0; pp < options.pp; ++pp) {
    for (int tp = 0; tp < options.tp; ++tp) {
      const MegatronRank rank{.tp = options.tp,
                              .tp_rank = tp,
                              .first_layer = shape.layers / options.pp * pp,
                              .layers = shape.layers / options.pp,
                              .embedding = pp == 0,
                              .head = pp == options.pp - 1,
                              .vocab_rows = padded / options.tp};
      std::vector<ForeignTensor> tensors = megatron_tensors(shape, table, rank);
      if (shape.tie_embeddings && rank.head && !rank.embedding) {
        // The last stage's copy of a tied embedding.
        const MegatronRank first{.tp = options.tp,
                                 .tp_rank = tp,
                                 .embedding = true,
                                 .head = false,
                                 .vocab_rows = rank.vocab_rows};
        ForeignTensor copy = megatron_tensors(shape, table, first).front();
        copy.name = "output_layer.weight";
        tensors.push_back(std::move(copy));
      }
      std::vector<SafetensorsEntry> entries;
      for (const ForeignTensor& tensor : tensors) {
        entries.push_back({.name = tensor.name,
                           .dtype = std::string(safetensors_name(options.dtype)),
                           .shape = tensor.shape});
      }
      const std::string name = fmt::format("pytorch_model_tp_{}_pp_{}.safetensors", tp, pp);
      SafetensorsFile file(folder.path() / name, entries);
      for (const ForeignTensor& tensor : tensors) {
        const std::vector<float> values = assemble(
            tensor, table, [&](const ParamRow& row) { return source.read(row.name, row.shape); });
        file.append(to_dtype(values, options.dtype, tensor.name));
        report.bytes += static_cast<int64_t>(values.size()) * bytes_of(options.dtype);
      }
      file.finish();
      ++report.files;
    }
  }
  for (const ParamRow& row : table) report.parameters += row.numel();
  const nlohmann::ordered_json split = {{"format", "mtl.megatron-split"},
                                        {"version", 1},
                                        {"mtl", version()},
                                        {"step", source.reader().state().value("step", 0)},
                                        {"args", args_of(shape, options, padded)}};
  folder.write("model-split.json", split.dump(2) + "\n");
  folder.commit();
  return report;
}

}  // namespace mtl
