// Rules of positions and their scalings (rules_test.cpp).
#include "runtime/plan/rules_cases.h"

using namespace mtl;
using namespace mtl::test;

TEST_CASE("rules of rotary positions") {
  check_cases({
      {"rotary positions and odd heads",
       [](TrainSpec& s) {
         s.model.position.type = "rope";
         s.model.heads = 16;
       },
       1, "model.rope", "model.heads",
       "rotary positions turn pairs of elements, and each head has 3 of them",
       "use other model.heads, so that model.hidden / model.heads is even, or give model.head_dim"},
      {"rotary positions and an odd head_dim",
       [](TrainSpec& s) {
         s.model.position.type = "rope";
         s.model.head_dim = 9;
       },
       1, "model.rope", "model.head_dim",
       "rotary positions turn pairs of elements, and each head has 9 of them",
       "use an even model.head_dim, such as 10"},
      {"rotary positions of an odd part of a head",
       [](TrainSpec& s) {
         s.model.position.type = "rope";
         s.model.position.fraction = 0.3;
         s.model.head_dim = 64;
       },
       1, "model.rope", "model.position.fraction",
       "rotary positions turn pairs of elements, and model.position.fraction 0.3 of the 64 of a "
       "head is 19",
       "use fraction=0.2813, which is 18"},
      {"rotary positions of no part of a head",
       [](TrainSpec& s) {
         s.model.position.type = "rope";
         s.model.position.fraction = 0.01;
         s.model.head_dim = 64;
       },
       1, "model.rope", "model.position.fraction",
       "rotary positions turn pairs of elements, and model.position.fraction 0.01 of the 64 of a "
       "head is 0",
       "use fraction=0.0313, which is 2"},
      {"Llama 3's scaling without rotary positions",
       [](TrainSpec& s) { s.model.position.scaling.type = "llama3"; }, 1, "model.rope",
       "model.position.scaling.type",
       "model.position.scaling changes rotary frequencies, and model.position.type learned has "
       "none",
       "set model.position.type=rope, or model.position.scaling.type=none"},
      {"Llama 3's scaling the wrong way round",
       [](TrainSpec& s) {
         s.model.position.type = "rope";
         s.model.position.scaling.type = "llama3";
         s.model.position.scaling.low_freq_factor = 4;
       },
       1, "model.rope", "model.position.scaling.low_freq_factor",
       "model.position.scaling.low_freq_factor 4 is not below high_freq_factor 4",
       "Llama 3.1 has 1 and 4"},
      {"a linear scaling that does not say by what",
       [](TrainSpec& s) {
         s.model.position.type = "rope";
         s.model.position.scaling.type = "linear";
       },
       1, "model.rope", "model.position.scaling.type",
       "linear divides frequencies by model.position.scaling.factor, which is not given",
       "give it: 4 for four times the context that the model was trained with"},
      {"YaRN that does not say what was before",
       [](TrainSpec& s) {
         s.model.position.type = "rope";
         s.model.position.scaling.type = "yarn";
         s.model.position.scaling.factor = 4;
       },
       1, "model.rope", "model.position.scaling.type",
       "yarn counts turns over model.position.scaling.original_max_seq, which is not given",
       "give it: the context that the model was trained with"},
      {"LongRoPE without factors",
       [](TrainSpec& s) {
         s.model.position.type = "rope";
         s.model.position.scaling = {.type = "longrope", .original_max_seq = 8};
         s.model.position.scaling.short_factor = {1, 1, 1, 1};
       },
       1, "model.rope", "model.position.scaling.type",
       "longrope divides by model.position.scaling.long_factor, which is not given",
       "give 4, as the model's config.json has them"},
      {"LongRoPE with factors of another model",
       [](TrainSpec& s) {
         s.model.position.type = "rope";
         s.model.position.scaling = {.type = "longrope", .original_max_seq = 8};
         s.model.position.scaling.short_factor = {1, 1, 1};
         s.model.position.scaling.long_factor = {1, 1, 1, 1};
       },
       1, "model.rope", "model.position.scaling.short_factor",
       "model.position.scaling.short_factor has 3 factors, and 4 pairs of a head are turned",
       "give 4, as the model's config.json has them"},
      {"LongRoPE that does not say what was before",
       [](TrainSpec& s) {
         s.model.position.type = "rope";
         s.model.position.scaling.type = "longrope";
         s.model.position.scaling.short_factor = {1, 1, 1, 1};
         s.model.position.scaling.long_factor = {1, 1, 1, 1};
       },
       1, "model.rope", "model.position.scaling.type",
       "longrope calls a text long beyond model.position.scaling.original_max_seq, which is not "
       "given",
       "give it: the context that the model was trained with"},
      {"LongRoPE of a model that knew one position",
       [](TrainSpec& s) {
         s.model.position.type = "rope";
         s.model.position.scaling = {.type = "longrope", .original_max_seq = 1};
         s.model.position.scaling.short_factor = {1, 1, 1, 1};
         s.model.position.scaling.long_factor = {1, 1, 1, 1};
       },
       1, "model.rope", "model.position.scaling.original_max_seq",
       "longrope's amplitude has the logarithm of model.position.scaling.original_max_seq below "
       "it, and that of 1 is 0",
       "give the context that the model was trained with"},
      {"YaRN the wrong way round",
       [](TrainSpec& s) {
         s.model.position.type = "rope";
         s.model.position.scaling = {.type = "yarn", .factor = 4, .original_max_seq = 8};
         s.model.position.scaling.beta_slow = 32;
       },
       1, "model.rope", "model.position.scaling.beta_slow",
       "model.position.scaling.beta_slow 32 is not below beta_fast 32", "YaRN has 1 and 32"},
      {"YaRN of frequencies that are all the same",
       [](TrainSpec& s) {
         s.model.position.type = "rope";
         s.model.position.base = 1;
         s.model.position.scaling = {.type = "yarn", .factor = 4, .original_max_seq = 8};
       },
       1, "model.rope", "model.position.base",
       "with model.position.base 1 no frequency is slower than another, and yarn divides the slow "
       "ones",
       "use a base above 1, such as 10000"},
  });
}

TEST_CASE("rules of layers that are chosen, and of caps") {
  check_cases({
      {"a layer that there is not",
       [](TrainSpec& s) {
         s.model.layers = 4;
         s.model.sliding_window = 8;
         s.model.full_attention.layers = {1, 4};
       },
       1, "model.layer_choice", "model.full_attention.layers",
       "model.full_attention.layers names layer 4, and the model has 4, from 0 on",
       "leave it out, or raise model.layers"},
      {"no layer with the window",
       [](TrainSpec& s) {
         s.model.layers = 4;
         s.model.sliding_window = 8;
         s.model.full_attention.every = 1;
       },
       1, "model.layer_choice", "model.full_attention.every",
       "model.full_attention leaves no layer with the window of model.sliding_window",
       "choose fewer layers, or set model.sliding_window=0"},
      {"capped scores beside ALiBi",
       [](TrainSpec& s) {
         s.model.position.type = "alibi";
         s.model.attention_cap = 50;
       },
       1, "model.attention_cap", "model.attention_cap",
       "model.attention_cap would cap scores without what ALiBi adds to them",
       "set model.attention_cap=0, or another model.position.type"},
      {"no layer that rotates",
       [](TrainSpec& s) {
         s.model.layers = 4;
         s.model.position.type = "rope";
         s.model.position.skip = {.every = 2, .layers = {0, 2}};
       },
       1, "model.layer_choice", "model.position.skip.layers",
       "model.position.skip leaves no layer that rotates queries and keys",
       "choose fewer layers, or set model.position.type=none"},
  });
}
