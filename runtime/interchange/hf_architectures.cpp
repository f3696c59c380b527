#include "runtime/interchange/hf_architectures.h"

#include <map>

namespace mtl {

namespace {

const std::map<std::string, std::string>& architectures() {
  static const std::map<std::string, std::string> kArchitectures = {
      {"gpt2", "GPT2LMHeadModel"},
      {"llama", "LlamaForCausalLM"},
      {"mistral", "MistralForCausalLM"},
      {"qwen2", "Qwen2ForCausalLM"},
      {"qwen3", "Qwen3ForCausalLM"},
      {"mixtral", "MixtralForCausalLM"},
      {"qwen2_moe", "Qwen2MoeForCausalLM"},
      {"qwen3_moe", "Qwen3MoeForCausalLM"},
      {"gpt_oss", "GptOssForCausalLM"},
      {"granite", "GraniteForCausalLM"},
      {"granitemoe", "GraniteMoeForCausalLM"},
      {"granitemoeshared", "GraniteMoeSharedForCausalLM"},
      {"granitemoehybrid", "GraniteMoeHybridForCausalLM"},
      {"cohere", "CohereForCausalLM"},
      {"cohere2", "Cohere2ForCausalLM"},
      {"phi", "PhiForCausalLM"},
      {"dots1", "Dots1ForCausalLM"},
      {"deepseek_v2", "DeepseekV2ForCausalLM"},
      {"deepseek_v3", "DeepseekV3ForCausalLM"},
      {"kimi_k2", "DeepseekV3ForCausalLM"},
      {"stablelm", "StableLmForCausalLM"},
      {"gpt_neox", "GPTNeoXForCausalLM"},
      {"phi3", "Phi3ForCausalLM"},
      {"gemma", "GemmaForCausalLM"},
      {"gemma2", "Gemma2ForCausalLM"},
      {"gemma3", "Gemma3ForConditionalGeneration"},
      {"gemma3_text", "Gemma3ForCausalLM"},
      {"smollm3", "SmolLM3ForCausalLM"},
      {"olmo2", "Olmo2ForCausalLM"},
      {"olmo3", "Olmo3ForCausalLM"},
      {"olmoe", "OlmoeForCausalLM"},
      {"exaone4", "Exaone4ForCausalLM"},
      {"glm", "GlmForCausalLM"},
      {"glm4", "Glm4ForCausalLM"},
      {"glm4_moe", "Glm4MoeForCausalLM"},
      {"seed_oss", "SeedOssForCausalLM"},
      {"ernie4_5", "Ernie4_5ForCausalLM"},
      {"starcoder2", "Starcoder2ForCausalLM"}};
  return kArchitectures;
}

}  // namespace

std::optional<std::string> hf_architecture(const std::string& type) {
  const auto found = architectures().find(type);
  if (found == architectures().end()) return std::nullopt;
  return found->second;
}

std::string hf_types() {
  std::string types;
  size_t left = architectures().size();
  for (const auto& known : architectures()) {
    --left;
    types += known.first + (left > 1 ? ", " : left == 1 ? " and " : "");
  }
  return types;
}

std::optional<std::string> other_than_here(const std::string& type) {
  if (type.starts_with("gemma3n")) {
    return "vectors of a token for every layer, and layers that share keys";
  }
  if (type == "deepseek_v32") return "attention to keys that an indexer chooses";
  if (type == "olmo") return "layer norms without weights";
  if (type == "phimoe") return "layer norms beside experts that are chosen by another rule";
  return std::nullopt;
}

}  // namespace mtl
