// Rules of latent attention (rules_test.cpp).
#include "runtime/plan/rules_cases.h"

using namespace mtl;
using namespace mtl::test;

namespace rules_latent_test {

namespace {

// A model with latents and one thing more.
std::function<void(TrainSpec&)> with_latents(std::function<void(TrainSpec&)> change) {
  return [change](TrainSpec& s) {
    s.model.position.type = "rope";
    s.model.bias = false;
    s.model.head_dim = 24;
    s.model.latent = {.kv_rank = 16, .rope_dim = 8};
    change(s);
  };
}

}  // namespace

TEST_CASE("rules of latent attention") {
  const std::string makes = "model.latent makes queries, keys and values of latents, and ";
  check_cases({
      {"without rotation", with_latents([](TrainSpec& s) { s.model.position.type = "none"; }), 1,
       "model.latent", "model.position.type",
       makes + "rotates a part of them, and model.position.type is none",
       "set model.position.type=rope, or set model.latent.kv_rank=0"},
      {"a part of each head", with_latents([](TrainSpec& s) { s.model.position.fraction = 0.5; }),
       1, "model.latent", "model.position.fraction",
       makes + "model.latent.rope_dim says what is rotated",
       "set model.position.fraction=1, or set model.latent.kv_rank=0"},
      {"layers that do not rotate",
       with_latents([](TrainSpec& s) { s.model.position.skip.layers = {1}; }), 1, "model.latent",
       "model.position.skip.layers", makes + "model.position.skip names layers that rotate nothing",
       "leave model.position.skip out, or set model.latent.kv_rank=0"},
      {"grouped queries", with_latents([](TrainSpec& s) { s.model.kv_heads = 3; }), 1,
       "model.latent", "model.kv_heads", makes + "every head has its own, and model.kv_heads is 3",
       "leave model.kv_heads out, or set model.latent.kv_rank=0"},
      {"norms of heads", with_latents([](TrainSpec& s) { s.model.qk_norm = true; }), 1,
       "model.latent", "model.qk_norm", makes + "the latents have norms, and model.qk_norm is true",
       "set model.qk_norm=false, or set model.latent.kv_rank=0"},
      {"biases", with_latents([](TrainSpec& s) { s.model.bias = true; }), 1, "model.latent",
       "model.qkv_bias", makes + "no projection of theirs has a bias",
       "set model.bias=false, or set model.latent.kv_rank=0"},
      {"nothing that is not rotated",
       with_latents([](TrainSpec& s) { s.model.latent.rope_dim = 24; }), 1, "model.latent",
       "model.latent.rope_dim", "model.latent.rope_dim 24 is not an even part of model.head_dim 24",
       "DeepSeek-V3 has head_dim 192 and rope_dim 64"},
      {"no pairs", with_latents([](TrainSpec& s) { s.model.latent.rope_dim = 7; }), 1,
       "model.latent", "model.latent.rope_dim",
       "model.latent.rope_dim 7 is not an even part of model.head_dim 24",
       "DeepSeek-V3 has head_dim 192 and rope_dim 64"},
      {"values that are wider than keys",
       with_latents([](TrainSpec& s) { s.model.latent.value_dim = 32; }), 1, "model.latent",
       "model.latent.value_dim", "model.latent.value_dim 32 is above model.head_dim 24",
       "DeepSeek-V3 has head_dim 192 and value_dim 128"},
  });
}

}  // namespace rules_latent_test
