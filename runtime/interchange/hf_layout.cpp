#include "runtime/interchange/hf_layout.h"

#include <array>
#include <string_view>
#include <utility>

#include "runtime/interchange/megatron_layout.h"

namespace mtl {

namespace {

std::string neox_name(std::string name) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kWords = {
      {{"decoder.final_layernorm.", "gpt_neox.final_layer_norm."},
       {"decoder.", "gpt_neox."},
       {"embedding.word_embeddings.", "gpt_neox.embed_in."},
       {"output_layer.", "embed_out."},
       {".self_attention.linear_qkv.", ".attention.query_key_value."},
       {".self_attention.linear_proj.", ".attention.dense."},
       {".pre_mlp_layernorm.", ".post_attention_layernorm."},
       {".linear_fc1.", ".dense_h_to_4h."},
       {".linear_fc2.", ".dense_4h_to_h."}}};
  for (const auto& word : kWords) {
    if (const size_t at = name.find(word.first); at != std::string::npos) {
      name.replace(at, word.first.size(), word.second);
    }
  }
  return name;
}

}  // namespace

std::vector<ForeignTensor> hf_tensors(const HfModel& model, const std::vector<ParamRow>& table) {
  std::vector<ForeignTensor> tensors;
  if (model.architecture == "GPTNeoXForCausalLM") {
    const MegatronRank whole{.layers = model.shape.layers, .vocab_rows = model.shape.vocab};
    tensors = megatron_tensors(model.shape, table, whole);
    for (ForeignTensor& tensor : tensors) tensor.name = neox_name(std::move(tensor.name));
    return tensors;
  }
  for (size_t i = 0; i < table.size(); ++i) {
    const Dims origin(table[i].shape.size(), 0);
    tensors.push_back({.name = table[i].name,
                       .shape = table[i].shape,
                       .parts = {{.row = i, .rect = {origin, table[i].shape}, .at = origin}}});
  }
  return tensors;
}

}  // namespace mtl
