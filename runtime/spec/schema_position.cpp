// How positions enter the model.
#include "runtime/spec/schema_sections.h"

namespace mtl::spec {

Section position_section() {
  return {
      .docs =
          {
              {"model.position", "Positions."},
              {"model.position.skip", "Layers whose queries and keys are not rotated."},
              {"model.position.scaling", "A change of the rotary frequencies for long contexts."},
          },
      .rows =
          {
              {.key = "model.position.type",
               .field = [](TrainSpec& s) -> Field { return &s.model.position.type; },
               .doc = "How positions enter the model.",
               .choices = {{"learned", "one trained vector per position, added to the token's"},
                           {"rope", "queries and keys are rotated, as LLaMA"},
                           {"alibi", "attention falls with the distance, linearly for each head"},
                           {"none", "not at all"}},
               .refused = {{"learned_absolute", "learned", ""},
                           {"absolute", "learned", ""},
                           {"rotary", "rope", ""},
                           {"yarn", "rope", " with `model.position.scaling.type=yarn`"}},
               .known_as = {"position_embedding_type", "position_embedding", "pos_emb"}},
              {.key = "model.position.base",
               .field = [](TrainSpec& s) -> Field { return &s.model.position.base; },
               .doc = "Base of the rotary frequencies.",
               .min = 0,
               .max = 1e12,
               .above_min = true,
               .known_as = {"rotary_base", "rope_theta", "rope_base", "theta"}},
              {.key = "model.position.fraction",
               .field = [](TrainSpec& s) -> Field { return &s.model.position.fraction; },
               .doc = "Of each query and key head, what is rotated: its first elements, an even "
                      "number of them (StableLM: 0.25). The others have no position.",
               .min = 0,
               .max = 1,
               .above_min = true,
               .known_as = {"partial_rotary_factor", "rotary_percent", "rotary_pct",
                            "rope_fraction", "rope_percent", "rotary_fraction"}},
              {.key = "model.position.window_base",
               .field = [](TrainSpec& s) -> Field { return &s.model.position.window_base; },
               .doc = "Base of the rotary frequencies of layers with a window "
                      "(`model.sliding_window`), which `model.position.scaling` leaves as they are "
                      "(Gemma 3: 10000).",
               .auto_doc = "those of the other layers, scaled alike",
               .min = 0,
               .max = 1e12,
               .above_min = true,
               .known_as = {"rope_local_base_freq", "local_rope_theta", "rope_theta_local",
                            "swa_rope_theta"}},
              {.key = "model.position.skip.every",
               .field = [](TrainSpec& s) -> Field { return &s.model.position.skip.every; },
               .doc = "Of every N layers the last does not rotate queries and keys (SmolLM3: 4).",
               .auto_doc = "0: all do",
               .min = 0,
               .max = 1e5,
               .known_as = {"no_rope_freq", "no_rope_layer_interval", "nope_interval"}},
              {.key = "model.position.skip.layers",
               .field = [](TrainSpec& s) -> Field {
                 return WordOrList{&s.model.position.skip.choice, &s.model.position.skip.layers};
               },
               .doc = "More layers that rotate nothing, numbered from 0.",
               .example = "[3, 7]",
               .min = 0,
               .max = 1e5,
               .choices = {{"none", "`model.position.skip.every` decides alone"}},
               .known_as = {"no_rope_layers", "nope_layers"}},
              {.key = "model.position.scaling.type",
               .field = [](TrainSpec& s) -> Field { return &s.model.position.scaling.type; },
               .doc = "Which change.",
               .choices = {{"none", "the frequencies stay"},
                           {"linear", "all are divided by the factor (position interpolation)"},
                           {"llama3",
                            "as Llama 3.1: slow frequencies are divided by the factor, fast "
                            "ones stay"},
                           {"yarn", "as YaRN: the same by another rule, and attention scores grow"},
                           {"longrope",
                            "as Phi-3: each is divided by a factor of its own, for long texts "
                            "by another one than for short ones, and attention scores grow"}},
               .refused = {{"dynamic", "", "its frequencies follow the length of each text"},
                           {"su", "longrope", ""},
                           {"default", "none", ""},
                           {"null", "none", ""}},
               .known_as = {"rope_type", "use_rope_scaling"}},
              {.key = "model.position.scaling.factor",
               .field = [](TrainSpec& s) -> Field { return &s.model.position.scaling.factor; },
               .doc = "What frequencies are divided by: the new context over the original one.",
               .auto_doc = "8 with llama3, `model.max_seq` / `original_max_seq` with longrope; "
                           "linear and yarn have to be given it",
               .min = 1,
               .max = 1e6,
               .known_as = {"rope_scaling_factor", "rope_factor", "scale_factor"}},
              {.key = "model.position.scaling.original_max_seq",
               .field = [](TrainSpec& s) -> Field {
                 return &s.model.position.scaling.original_max_seq;
               },
               .doc = "Positions of the model before the change (llama3, yarn, longrope).",
               .auto_doc = "8192 with llama3; yarn and longrope have to be given it",
               .min = 1,
               .max = 1 << 27,
               .known_as = {"original_max_position_embeddings", "original_max_len"}},
              {.key = "model.position.scaling.low_freq_factor",
               .field = [](TrainSpec& s) -> Field {
                 return &s.model.position.scaling.low_freq_factor;
               },
               .doc = "llama3: a frequency is slow when it turns fewer times than this over "
                      "`original_max_seq`.",
               .min = 0,
               .max = 1e6,
               .above_min = true},
              {.key = "model.position.scaling.high_freq_factor",
               .field = [](TrainSpec& s) -> Field {
                 return &s.model.position.scaling.high_freq_factor;
               },
               .doc = "llama3: a frequency is fast when it turns more often than this over "
                      "`original_max_seq`; those in between are blended.",
               .min = 0,
               .max = 1e6,
               .above_min = true},
              {.key = "model.position.scaling.beta_slow",
               .field = [](TrainSpec& s) -> Field { return &s.model.position.scaling.beta_slow; },
               .doc = "yarn: a frequency is slow when it turns fewer times than this over "
                      "`original_max_seq`.",
               .min = 0,
               .max = 1e6,
               .above_min = true},
              {.key = "model.position.scaling.beta_fast",
               .field = [](TrainSpec& s) -> Field { return &s.model.position.scaling.beta_fast; },
               .doc = "yarn: a frequency is fast when it turns more often than this over "
                      "`original_max_seq`; those in between are blended.",
               .min = 0,
               .max = 1e6,
               .above_min = true},
              {.key = "model.position.scaling.truncate",
               .field = [](TrainSpec& s) -> Field { return &s.model.position.scaling.truncate; },
               .doc = "yarn: the blend begins and ends at whole pairs of a head (gpt-oss: false)."},
              {.key = "model.position.scaling.attention_factor",
               .field = [](TrainSpec& s) -> Field {
                 return &s.model.position.scaling.attention_factor;
               },
               .doc = "yarn, longrope: what rotated queries and keys are multiplied by, so that "
                      "scores grow with its square.",
               .auto_doc = "0.1 ln(`factor`) + 1; with longrope sqrt(1 + ln(`factor`) / "
                           "ln(`original_max_seq`))",
               .min = 0,
               .max = 1000,
               .above_min = true},
              {.key = "model.position.scaling.short_factor",
               .field = [](TrainSpec& s) -> Field {
                 return &s.model.position.scaling.short_factor;
               },
               .doc = "longrope: what the frequency of each pair of a head is divided by, where "
                      "`train.seq_len` (in `mtl generate`: the prompt and what is asked for) is no "
                      "more than `original_max_seq`.",
               .example = "[1, 1.1]",
               .auto_doc = "none; longrope has to be given it",
               .min = 0,
               .max = 1e6,
               .above_min = true,
               .most_items = 1 << 15},
              {.key = "model.position.scaling.long_factor",
               .field = [](TrainSpec& s) -> Field { return &s.model.position.scaling.long_factor; },
               .doc = "longrope: the same of longer texts.",
               .example = "[1, 32]",
               .auto_doc = "none; longrope has to be given it",
               .min = 0,
               .max = 1e6,
               .above_min = true,
               .most_items = 1 << 15},
          },
  };
}

}  // namespace mtl::spec
