#include "runtime/interchange/hf_layout.h"

#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "runtime/interchange/hf_gpt_oss.h"
#include "runtime/interchange/hf_granite.h"
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
// Matrices of others, of rows of ours that follow each other. Phi-3 has them all, GLM the first.
constexpr std::array<Fused, 3> kFused = {{{".gate_proj.", ".up_proj.", ".gate_up_proj."},
                                          {".q_proj.", ".k_proj.", ".qkv_proj."},
                                          {".qkv_proj.", ".v_proj.", ".qkv_proj."}}};

// Puts `tensor` behind what is there already, in one with it where they have it so.
void add_fused(std::vector<ForeignTensor>& tensors, ForeignTensor tensor,
               std::span<const Fused> all) {
  for (const Fused& fused : all) {
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

using Words = std::pair<std::string_view, std::string_view>;
// GLM-4's names of the norms that Gemma 2 calls otherwise.
constexpr std::array<Words, 3> kGlm4 = {
    {{".post_attention_layernorm.", ".post_self_attn_layernorm."},
     {".pre_feedforward_layernorm.", ".post_attention_layernorm."},
     {".post_feedforward_layernorm.", ".post_mlp_layernorm."}}};
constexpr std::array<Words, 2> kStarcoder2 = {
    {{".mlp.up_proj.", ".mlp.c_fc."}, {".mlp.down_proj.", ".mlp.c_proj."}}};
constexpr std::array<Words, 4> kPhi = {{{".self_attn.o_proj.", ".self_attn.dense."},
                                        {".mlp.up_proj.", ".mlp.fc1."},
                                        {".mlp.down_proj.", ".mlp.fc2."},
                                        {"model.norm.", "model.final_layernorm."}}};

// The first of `words` that is in the name is replaced.
std::string renamed(std::string name, std::span<const Words> words) {
  for (const Words& word : words) {
    if (const size_t at = name.find(word.first); at != std::string::npos) {
      return name.replace(at, word.first.size(), word.second);
    }
  }
  return name;
}

// A projection to queries or keys whose turned elements have their pairs beside them (GLM, Command
// R, ERNIE 4.5): ours lie half of these elements apart.
void put_pairs_together(ForeignTensor& tensor, const ModelShape& shape) {
  const ForeignPart whole = tensor.parts.front();
  tensor.parts.clear();
  const auto add = [&](int64_t ours, int64_t theirs, int64_t rows, int64_t step) {
    ForeignPart part = whole;
    part.rect.offset[0] = ours;
    part.rect.extent[0] = rows;
    part.at[0] = theirs;
    part.step = step;
    tensor.parts.push_back(std::move(part));
  };
  const int64_t turned = shape.rotary_dim(), half = turned / 2;
  for (int64_t head = 0; head < tensor.shape[0]; head += shape.head_dim) {
    add(head, head, half, 2);
    add(head + half, head + 1, half, 2);
    if (turned < shape.head_dim) add(head + turned, head + turned, shape.head_dim - turned, 1);
  }
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
  // Whose norms have the 1 in their code.
  const bool gemma = model.architecture.starts_with("Gemma");
  const bool glm4 = model.architecture == "Glm4ForCausalLM";
  const bool glm = glm4 || model.architecture == "GlmForCausalLM";
  const size_t matrices = model.architecture == "Phi3ForCausalLM" ? kFused.size() : glm ? 1 : 0;
  const std::span<const Fused> fused = std::span(kFused).first(matrices);
  std::span<const Words> names;
  if (glm4) names = kGlm4;
  if (model.architecture == "Starcoder2ForCausalLM") names = kStarcoder2;
  if (model.architecture == "PhiForCausalLM") names = kPhi;
  const bool pairs = glm || model.architecture.starts_with("Cohere") ||
                     model.architecture == "Ernie4_5ForCausalLM";
  for (size_t i = 0; i < table.size(); ++i) {
    const Dims origin(table[i].shape.size(), 0);
    const std::string& name = table[i].name;
    ForeignTensor tensor = {.name = renamed(name, names),
                            .shape = table[i].shape,
                            .parts = {{.row = i, .rect = {origin, table[i].shape}, .at = origin}}};
    const bool norm = table[i].init == InitKind::ones;
    if (norm && gemma) tensor.parts[0].plus = 1;
    const bool turned =
        name.find(".q_proj.") != std::string::npos || name.find(".k_proj.") != std::string::npos;
    if (pairs && turned) put_pairs_together(tensor, model.shape);
    add_fused(tensors, std::move(tensor), fused);
  }
  if (model.architecture == "GptOssForCausalLM") {
    return join_experts(std::move(tensors), model.shape, model.mxfp4);
  }
  if (model.architecture.starts_with("GraniteMoe")) {
    return granite_tensors(std::move(tensors), model.shape);
  }
  return tensors;
}

}  // namespace mtl
