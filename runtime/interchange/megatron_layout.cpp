#include "runtime/interchange/megatron_layout.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

namespace mtl {

namespace {

class Builder {
 public:
  Builder(const ModelShape& shape, const std::vector<ParamRow>& table, const MegatronRank& rank)
      : shape_(shape), table_(table), rank_(rank) {
    for (size_t i = 0; i < table.size(); ++i) {
      by_slot_[{table[i].layer, table[i].slot}].push_back(i);
    }
  }

  std::vector<ForeignTensor> take() { return std::move(tensors_); }

  // The same on every rank.
  void whole(const std::string& name, int layer, const std::string& slot) {
    for (const size_t row : rows(layer, slot)) {
      ForeignTensor& tensor = add(name, table_[row].shape);
      tensor.replicated = true;
      tensor.parts.push_back({.row = row,
                              .rect = {Dims(table_[row].shape.size(), 0), table_[row].shape},
                              .at = Dims(table_[row].shape.size(), 0)});
    }
  }
  void norm(const std::string& name, int layer, const std::string& slot) {
    whole(name + ".weight", layer, slot + ".weight");
    whole(name + ".bias", layer, slot + ".bias");
  }
  void vocabulary(const std::string& name, int layer, const std::string& slot) {
    const int64_t first = rank_.vocab_rows * rank_.tp_rank;
    for (const size_t row : rows(layer, slot)) {
      const int64_t valid = std::clamp<int64_t>(table_[row].shape[0] - first, 0, rank_.vocab_rows);
      ForeignTensor& tensor = add(name, {rank_.vocab_rows, shape_.hidden});
      if (valid == 0) continue;
      tensor.parts.push_back(
          {.row = row, .rect = {{first, 0}, {valid, shape_.hidden}}, .at = {0, 0}});
    }
  }

  // Rows [from, from + count) of a projection's output, of the `part`th parameter of its slot.
  struct Out {
    size_t part;
    int64_t from, count;
  };
  // Outputs divided over TP: in Megatron's tensor they follow each other.
  void column(const std::string& name, int layer, const std::string& slot, int64_t in,
              const std::vector<Out>& outs) {
    int64_t out = 0;
    for (const Out& piece : outs) out += piece.count;
    for (const bool bias : {false, true}) {
      const std::vector<size_t>& found = rows(layer, slot + (bias ? ".bias" : ".weight"));
      if (found.empty()) continue;
      ForeignTensor& tensor =
          add(name + (bias ? ".bias" : ".weight"), bias ? Dims{out} : Dims{out, in});
      int64_t at = 0;
      for (const Out& piece : outs) {
        tensor.parts.push_back(part(found.at(piece.part), piece.from, piece.count, at, 0, in));
        at += piece.count;
      }
    }
  }
  // Inputs divided over TP; the bias is whole.
  void row_parallel(const std::string& name, int layer, const std::string& slot, int64_t in) {
    const int64_t part_in = in / rank_.tp;
    for (const size_t row : rows(layer, slot + ".weight")) {
      ForeignTensor& tensor = add(name + ".weight", {shape_.hidden, part_in});
      tensor.parts.push_back(part(row, 0, shape_.hidden, 0, part_in * rank_.tp_rank, part_in));
    }
    whole(name + ".bias", layer, slot + ".bias");
  }

 private:
  const std::vector<size_t>& rows(int layer, const std::string& slot) {
    return by_slot_[{layer, slot}];
  }
  ForeignTensor& add(const std::string& name, Dims shape) {
    tensors_.push_back({.name = name, .shape = std::move(shape), .parts = {}});
    return tensors_.back();
  }
  // Outputs [out, out + count) and inputs [in, in + in_count) of a projection, at output `at`.
  ForeignPart part(size_t row, int64_t out, int64_t count, int64_t at, int64_t in,
                   int64_t in_count) const {
    const ParamRow& parameter = table_[row];
    if (parameter.shape.size() == 1) return {.row = row, .rect = {{out}, {count}}, .at = {at}};
    if (parameter.out_in) {
      return {.row = row, .rect = {{out, in}, {count, in_count}}, .at = {at, 0}};
    }
    return {.row = row, .rect = {{in, out}, {in_count, count}}, .at = {at, 0}, .transposed = true};
  }

  const ModelShape& shape_;
  const std::vector<ParamRow>& table_;
  const MegatronRank& rank_;
  std::map<std::pair<int, std::string>, std::vector<size_t>> by_slot_;
  std::vector<ForeignTensor> tensors_;
};

}  // namespace

std::string megatron_obstacle(const ModelShape& shape, int64_t tp) {
  if (shape.experts > 0) return "mixtures of experts are not laid out for Megatron yet";
  if (shape.has_latents()) return "latent attention (model.latent) is not laid out for Megatron";
  if (shape.parallel_residual) {
    return "Megatron's feed-forward block reads what attention has made (model.parallel_residual)";
  }
  if (shape.norms_outputs()) return "norms behind blocks are not laid out for Megatron";
  if (shape.qk_norm_whole) {
    return "Megatron's norms of queries and keys are of each head (model.qk_norm_whole)";
  }
  if (shape.activation == Activation::geglu || shape.embedding_scale != 1) {
    return "Megatron has neither GELU as a gate nor embeddings that are scaled (model.activation, "
           "model.embedding_scale)";
  }
  if (shape.residual_scale != 1 || shape.logit_scale != 1) {
    return "Megatron scales neither what blocks add nor logits (model.residual_scale, "
           "model.logit_scale)";
  }
  if (shape.head_bias || shape.norm_bias == false) {
    return "Megatron's output layer has no bias, and its layer norms have one (model.head_bias, "
           "model.norm.bias)";
  }
  if (shape.window_rope_base > 0) {
    return "Megatron rotates all layers with one base (model.position.window_base)";
  }
  if (shape.attention_cap > 0 || shape.logit_cap > 0) {
    return "Megatron caps neither scores nor logits (model.attention_cap, model.logit_cap)";
  }
  if (shape.attention_sinks) {
    return "scores of no key are not laid out for Megatron (model.attention_sinks)";
  }
  if (shape.activation == Activation::quick_geglu || shape.glu_offset != 0 || shape.glu_clamp > 0) {
    return "gates are SwiGLU's in Megatron's layout, without offset and clamp (model.activation, "
           "model.glu_offset, model.glu_clamp)";
  }
  const RopeScaling& scaling = shape.rope_scaling;
  if (scaling.type == RopeScalingType::yarn || scaling.type == RopeScalingType::longrope) {
    return fmt::format("rotary positions scaled as '{}' are not laid out for Megatron",
                       name_of(scaling.type));
  }
  const RopeScaling llama3;  // Megatron has Llama 3.1's numbers in its code
  if (scaling.type == RopeScalingType::llama3 &&
      (scaling.low_freq_factor != llama3.low_freq_factor ||
       scaling.high_freq_factor != llama3.high_freq_factor ||
       scaling.original_max_seq != llama3.original_max_seq)) {
    return "Megatron's scaling of rotary frequencies has Llama 3.1's own numbers but for the "
           "factor";
  }
  if (shape.heads % tp != 0 || shape.kv_heads % tp != 0) {
    return fmt::format("{} heads with {} key heads do not divide by tp {}", shape.heads,
                       shape.kv_heads, tp);
  }
  if (shape.ffn % tp != 0) {
    return fmt::format("the inner width {} does not divide by tp {}", shape.ffn, tp);
  }
  return "";
}

std::vector<ForeignTensor> megatron_tensors(const ModelShape& shape,
                                            const std::vector<ParamRow>& table,
                                            const MegatronRank& rank) {
  Builder build(shape, table, rank);
  if (rank.embedding) {
    build.vocabulary("embedding.word_embeddings.weight", -1, "tokens");
    build.whole("embedding.position_embeddings.weight", -1, "positions");
  }
  const int64_t groups = shape.kv_heads / rank.tp;
  const int64_t group = shape.heads / shape.kv_heads * shape.head_dim;  // query rows of a key head
  const int64_t ffn = shape.ffn / rank.tp;
  for (int64_t i = 0; i < rank.layers; ++i) {
    const auto layer = static_cast<int>(rank.first_layer + i);
    const std::string base = fmt::format("decoder.layers.{}.", i);
    build.norm(base + "input_layernorm", layer, "attn.norm");
    std::vector<Builder::Out> qkv;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t head = rank.tp_rank * groups + g;
      if (shape.family() == Family::gpt2) {
        // One parameter: all queries, all keys, all values.
        for (int64_t part = 0; part < 3; ++part) {
          qkv.push_back({0, part * shape.query_width() + head * shape.head_dim, shape.head_dim});
        }
        continue;
      }
      qkv.push_back({0, head * group, group});
      qkv.push_back({1, head * shape.head_dim, shape.head_dim});
      qkv.push_back({2, head * shape.head_dim, shape.head_dim});
    }
    build.column(base + "self_attention.linear_qkv", layer, "attn.qkv", shape.hidden, qkv);
    build.whole(base + "self_attention.q_layernorm.weight", layer, "attn.q_norm.weight");
    build.whole(base + "self_attention.k_layernorm.weight", layer, "attn.k_norm.weight");
    build.row_parallel(base + "self_attention.linear_proj", layer, "attn.proj",
                       shape.query_width());
    build.norm(base + "pre_mlp_layernorm", layer, "mlp.norm");
    std::vector<Builder::Out> up;
    for (int64_t part = 0; part < shape.mlp_parts(); ++part) {
      up.push_back({static_cast<size_t>(part), rank.tp_rank * ffn, ffn});
    }
    build.column(base + "mlp.linear_fc1", layer, "mlp.up", shape.hidden, up);
    build.row_parallel(base + "mlp.linear_fc2", layer, "mlp.down", shape.ffn);
  }
  if (rank.head) {
    const auto head = static_cast<int>(shape.layers);
    build.norm("decoder.final_layernorm", head, "norm");
    build.vocabulary("output_layer.weight", head, "head");
  }
  return build.take();
}

}  // namespace mtl
