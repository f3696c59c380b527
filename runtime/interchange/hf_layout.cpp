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

struct Fused {
  std::string_view first, next, whole;
};
// Phi-3's matrices, of rows of ours that follow each other.
constexpr std::array<Fused, 3> kPhi3 = {{{".q_proj.", ".k_proj.", ".qkv_proj."},
                                         {".qkv_proj.", ".v_proj.", ".qkv_proj."},
                                         {".gate_proj.", ".up_proj.", ".gate_up_proj."}}};

// Puts `tensor` behind what is there already, in one with it where Phi-3 has them so.
void add_fused(std::vector<ForeignTensor>& tensors, ForeignTensor tensor) {
  for (const Fused& fused : kPhi3) {
    if (tensors.empty() || tensor.name.find(fused.next) == std::string::npos) continue;
    ForeignTensor& before = tensors.back();
    const size_t at = before.name.find(fused.first);
    if (at == std::string::npos) continue;
    before.name.replace(at, fused.first.size(), fused.whole);
    for (ForeignPart& part : tensor.parts) {
      part.at[0] += before.shape[0];
      before.parts.push_back(std::move(part));
    }
    before.shape[0] += tensor.shape[0];
    return;
  }
  tensors.push_back(std::move(tensor));
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
  const bool fused = model.architecture == "Phi3ForCausalLM";
  for (size_t i = 0; i < table.size(); ++i) {
    const Dims origin(table[i].shape.size(), 0);
    ForeignTensor tensor = {.name = table[i].name,
                            .shape = table[i].shape,
                            .parts = {{.row = i, .rect = {origin, table[i].shape}, .at = origin}}};
    const bool norm = table[i].init == InitKind::ones;
    if (norm && model.architecture == "GemmaForCausalLM") tensor.parts[0].plus = 1;
    if (fused) {
      add_fused(tensors, std::move(tensor));
    } else {
      tensors.push_back(std::move(tensor));
    }
  }
  return tensors;
}

}  // namespace mtl
