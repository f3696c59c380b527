// Which rows of the table are the adapter of which matrix, and what trains beside them.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/plan/shard_table.h"
#include "runtime/plan/shard_table_cases.h"

using namespace mtl;
using namespace mtl::test;

namespace adapted_rows_test {

namespace {

struct Names {
  std::string weight, a, b;
  bool operator==(const Names&) const = default;
};

// Of layer 1, whose rows stand between those of others.
std::vector<Names> names_of(const std::vector<ParamRow>& table, const std::string& layer) {
  const auto without = [&](const std::string& name) {
    REQUIRE(name.starts_with(layer));
    return name.substr(layer.size());
  };
  std::vector<Names> names;
  for (const AdaptedRow& row : adapted_rows(table)) {
    CHECK(row.a->shape == std::vector<int64_t>{3, row.weight->shape[row.weight->out_in ? 1 : 0]});
    CHECK(row.b->shape == std::vector<int64_t>{row.weight->shape[row.weight->out_in ? 0 : 1], 3});
    CHECK(row.a->layer == row.weight->layer);
    CHECK(row.b->layer == row.weight->layer);
    CHECK((row.weight->frozen && !row.a->frozen && !row.b->frozen));
    if (row.weight->layer != 1) continue;
    names.push_back({without(row.weight->name), without(row.a->name), without(row.b->name)});
  }
  return names;
}

ModelShape::Lora everywhere() {
  return {.rank = 3, .alpha = 6, .qkv = true, .proj = true, .up = true, .down = true};
}

}  // namespace

TEST_CASE("a fused matrix of a GPT-2 has one adapter, behind its bias") {
  ModelShape shape = small_shape();
  shape.lora = everywhere();
  const std::vector<Names> expected = {
      {"attn.c_attn.weight", "attn.c_attn.lora_A.weight", "attn.c_attn.lora_B.weight"},
      {"attn.c_proj.weight", "attn.c_proj.lora_A.weight", "attn.c_proj.lora_B.weight"},
      {"mlp.c_fc.weight", "mlp.c_fc.lora_A.weight", "mlp.c_fc.lora_B.weight"},
      {"mlp.c_proj.weight", "mlp.c_proj.lora_A.weight", "mlp.c_proj.lora_B.weight"}};
  CHECK(names_of(shard_table(shape, false), "transformer.h.1.") == expected);
  shape.lora = {};
  CHECK(adapted_rows(shard_table(shape, false)).empty());
}

TEST_CASE("matrices that are one product share an A, and each has a B of its own") {
  ModelShape shape = small_llama();
  shape.qkv_bias = true;
  shape.lora = everywhere();
  const std::string qkv_a = "self_attn.q_proj.lora_A.weight", up_a = "mlp.gate_proj.lora_A.weight";
  const std::vector<Names> expected = {
      {"self_attn.q_proj.weight", qkv_a, "self_attn.q_proj.lora_B.weight"},
      {"self_attn.k_proj.weight", qkv_a, "self_attn.k_proj.lora_B.weight"},
      {"self_attn.v_proj.weight", qkv_a, "self_attn.v_proj.lora_B.weight"},
      {"self_attn.o_proj.weight", "self_attn.o_proj.lora_A.weight",
       "self_attn.o_proj.lora_B.weight"},
      {"mlp.gate_proj.weight", up_a, "mlp.gate_proj.lora_B.weight"},
      {"mlp.up_proj.weight", up_a, "mlp.up_proj.lora_B.weight"},
      {"mlp.down_proj.weight", "mlp.down_proj.lora_A.weight", "mlp.down_proj.lora_B.weight"}};
  CHECK(names_of(shard_table(shape, false), "model.layers.1.") == expected);

  shape.lora.qkv = shape.lora.up = shape.lora.down = false;
  CHECK(names_of(shard_table(shape, false), "model.layers.1.") ==
        std::vector<Names>(expected.begin() + 3, expected.begin() + 4));
}

}  // namespace adapted_rows_test
