#include "runtime/plan/recompute.h"

#include <string>

#include <doctest/doctest.h>
#include <fmt/format.h>

using namespace mtl;

namespace {

// "2:3+ 5:1" = layers 2..4 made again together, layer 5 keeps everything.
std::string drawn(const Recompute& recompute, const ChunkRange& chunk) {
  std::string text;
  for (const LayerGroup& group : layer_groups(recompute, chunk)) {
    text += fmt::format("{}{}:{}{}", text.empty() ? "" : " ", group.first_layer, group.layers,
                        group.again ? "+" : "");
  }
  return text;
}

}  // namespace

TEST_CASE("groups of layers that are made again") {
  const ChunkRange chunk{.first_layer = 3, .layers = 5};
  using Full = Recompute::Full;
  CHECK(drawn({}, chunk) == "3:1 4:1 5:1 6:1 7:1");
  CHECK(drawn({.core_attention = true, .mlp = true}, chunk) == "3:1 4:1 5:1 6:1 7:1");
  CHECK(drawn({.full = Full::uniform}, chunk) == "3:1+ 4:1+ 5:1+ 6:1+ 7:1+");
  // The last group has what is left; groups never cross chunks.
  CHECK(drawn({.full = Full::uniform, .layers = 2}, chunk) == "3:2+ 5:2+ 7:1+");
  CHECK(drawn({.full = Full::uniform, .layers = 9}, chunk) == "3:5+");
  CHECK(drawn({.full = Full::block, .layers = 2}, chunk) == "3:1+ 4:1+ 5:1 6:1 7:1");
  CHECK(drawn({.full = Full::block, .layers = 9}, chunk) == "3:1+ 4:1+ 5:1+ 6:1+ 7:1+");
  CHECK(drawn({.full = Full::uniform}, {.first_layer = 3}).empty());
}

TEST_CASE("parts that the first layers of each chunk make again") {
  const Recompute recompute = {.core_attention = 9, .mlp_activation = 3, .norms = true, .mlp = 1};
  // Of each layer: Core attention, Activation, Norms, Mlp.
  const auto parts = [](const PartsAgain& again) {
    return fmt::format("{}{}{}{}", again.core_attention ? "C" : "", again.mlp_activation ? "A" : "",
                       again.norms ? "N" : "", again.mlp ? "M" : "");
  };
  for (const int64_t first : {0, 5}) {
    std::string text;
    for (const LayerGroup& group : layer_groups(recompute, {.first_layer = first, .layers = 5})) {
      CHECK_FALSE(group.again);
      text += parts(group.parts) + " ";
    }
    CHECK(text == "CANM CAN CAN CN CN ");
  }
  std::string text;
  for (const PartsAgain& again : different_parts(recompute)) text += parts(again) + " ";
  CHECK(text == "CANM CAN CN N ");
  CHECK(different_parts({}).size() == 1);
  CHECK(different_parts({.mlp_activation = true, .norms = true}).size() == 1);
  CHECK(FirstLayers(7).of({.layers = 5}) == 5);
  CHECK(FirstLayers(3).of({.layers = 5}) == 3);
  CHECK(FirstLayers(true).of({.layers = 5}) == 5);
  CHECK(FirstLayers(false).of({.layers = 5}) == 0);
}

TEST_CASE("recompute as the settings say it") {
  TrainSpec spec;
  spec.model.layers = 12;
  CHECK(recompute_of(spec).full == Recompute::Full::none);
  CHECK_FALSE(recompute_of(spec).core_attention);

  spec.recompute.mode = "selective";
  CHECK(recompute_of(spec).core_attention);  // Megatron's default
  CHECK_FALSE(recompute_of(spec).norms);
  spec.recompute.modules = {"mlp_act", "norm"};
  CHECK_FALSE(recompute_of(spec).core_attention);
  CHECK(recompute_of(spec).mlp_activation);
  CHECK(recompute_of(spec).norms);
  CHECK_FALSE(recompute_of(spec).mlp);
  CHECK(modules_of(recompute_of(spec)) == "[norm, mlp_act]");
  spec.recompute.module_layers = {{"mlp_act", 7}};
  CHECK(recompute_of(spec).mlp_activation.count() == 7);
  CHECK(recompute_of(spec).norms.all());
  CHECK(modules_of(recompute_of(spec)) == "[norm, mlp_act: 7]");
  CHECK(modules_of({}) == "[]");

  spec.recompute.mode = "full";
  CHECK(recompute_of(spec).full == Recompute::Full::uniform);
  CHECK(recompute_of(spec).layers == 1);
  CHECK_FALSE(recompute_of(spec).norms);
  spec.recompute.method = "block";
  CHECK(recompute_of(spec).full == Recompute::Full::block);
  CHECK(recompute_of(spec).layers == 12);
  spec.recompute.layers = 3;
  spec.recompute.distribute = true;
  CHECK(recompute_of(spec).layers == 3);
  CHECK(recompute_of(spec).distribute);
}
