// Adapters that are trained in place of the model.
#include "runtime/spec/schema_sections.h"

namespace mtl::spec {

Section lora_section() {
  return {
      .docs =
          {
              {"lora",
               "Low-rank adapters (LoRA, arXiv 2106.09685): the model stays as it is, and beside "
               "chosen linears two narrow matrices are trained, whose product is added to theirs."},
          },
      .rows =
          {
              {.key = "lora.rank",
               .field = [](TrainSpec& s) -> Field { return &s.lora.rank; },
               .doc = "Width of the adapters; 0 = there are none, and the whole model is trained.",
               .example = "16",
               .min = 0,
               .max = 1e5,
               .known_as = {"lora_r", "lora_rank", "lora_dim", "peft_dim"}},
              {.key = "lora.alpha",
               .field = [](TrainSpec& s) -> Field { return &s.lora.alpha; },
               .doc = "What adapters add is multiplied by `lora.alpha / lora.rank`.",
               .auto_doc = "as `lora.rank`: by 1",
               .min = 0,
               .max = 1e6,
               .above_min = true,
               .known_as = {"lora_alpha", "lora_scaling"}},
              {.key = "lora.targets",
               .field = [](TrainSpec& s) -> Field {
                 return CountedWords{&s.lora.targets, nullptr};
               },
               .doc = "Which linears of a layer have one. Experts and what chooses them have none.",
               .example = "[qkv, proj]",
               .choices = {{"qkv",
                            "those that make queries, keys and values (one adapter for the three: "
                            "its first matrix is theirs together)"},
                           {"proj", "attention's output"},
                           {"up", "into the feed-forward block (gate and up together)"},
                           {"down", "out of it"}},
               .refused = {{"q_proj", "qkv", ""},
                           {"k_proj", "qkv", ""},
                           {"v_proj", "qkv", ""},
                           {"c_attn", "qkv", ""},
                           {"linear_qkv", "qkv", ""},
                           {"o_proj", "proj", ""},
                           {"linear_proj", "proj", ""},
                           {"gate_proj", "up", ""},
                           {"up_proj", "up", ""},
                           {"c_fc", "up", ""},
                           {"linear_fc1", "up", ""},
                           {"down_proj", "down", ""},
                           {"linear_fc2", "down", ""}},
               .known_as = {"target_modules", "lora_target_modules"}},
          },
      .unavailable =
          {
              {"lora.dropout", "adapters see what their linear sees"},
          },
  };
}

}  // namespace mtl::spec
