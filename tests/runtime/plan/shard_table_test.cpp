// What the table says of each parameter: public name and shape, what divides it, who sums its
// gradient.
#include "runtime/plan/shard_table.h"

#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/plan/param_layout.h"
#include "runtime/plan/shape_124m.h"
#include "runtime/plan/shard_table_cases.h"

using namespace mtl;
using namespace mtl::test;

TEST_CASE("the rows of a GPT-2 carry Hugging Face's names and shapes, in forward order") {
  const auto table = shard_table(small_shape(), false);
  CHECK(table.front().name == "transformer.wte.weight");
  CHECK(table.front().shape == std::vector<int64_t>{65, 32});
  CHECK(table.back().name == "transformer.ln_f.bias");
  const ParamRow* qkv = find_row(table, 1, "attn.qkv.weight");
  REQUIRE(qkv);
  CHECK(qkv->name == "transformer.h.1.attn.c_attn.weight");
  CHECK(qkv->shape == std::vector<int64_t>{32, 96});
  CHECK(qkv->segments == 3);
  CHECK(qkv->decays);
  CHECK_FALSE(find_row(table, 0, "attn.qkv.bias")->decays);
  CHECK(find_row(table, 0, "attn.proj.bias")->replicated_over.has(Axis::tp));
  CHECK_FALSE(find_row(table, 0, "attn.proj.weight")->replicated_over.has(Axis::tp));
  // Residual projections start smaller by sqrt(2 L).
  CHECK(find_row(table, 0, "mlp.down.weight")->init_std == doctest::Approx(0.02 / 2));

  ModelShape untied = small_shape();
  untied.tie_embeddings = false;
  untied.bias = untied.qkv_bias = false;
  const auto bare = shard_table(untied, false);
  CHECK(bare.back().name == "lm_head.weight");
  CHECK(find_row(bare, 0, "attn.qkv.bias") == nullptr);
  CHECK(find_row(bare, 0, "attn.norm.bias") == nullptr);  // nanoGPT's `bias` means the norms too
  untied.position = PositionType::alibi;                  // the LLaMA family
  const auto alibi = shard_table(untied, false);
  CHECK(find_row(alibi, 0, "attn.qkv.bias") == nullptr);
  CHECK(find_row(alibi, 0, "attn.norm.bias") != nullptr);
  CHECK(find_row(alibi, static_cast<int>(untied.layers), "norm.bias") != nullptr);
  untied.norm = NormType::rmsnorm;
  CHECK(find_row(shard_table(untied, false), 0, "attn.norm.bias") == nullptr);
}

TEST_CASE("the parameters of GPT-2 124M are counted as everybody counts them") {
  int64_t total = 0;
  for (const ParamRow& row : shard_table(shape_124m(), false)) total += row.numel();
  CHECK(total == 124439808);
}

TEST_CASE("the rows of a Llama carry Hugging Face's names and shapes and share slots where fused") {
  ModelShape shape = small_llama();
  shape.qk_norm = true;
  shape.tie_embeddings = false;
  const auto table = shard_table(shape, false);
  struct Expected {
    const char *name, *slot;
    std::vector<int64_t> shape;
    int tp_axis;
    int64_t units;
  };
  const Expected layer[] = {
      {"input_layernorm", "attn.norm.weight", {32}, -1, 0},
      {"self_attn.q_proj", "attn.qkv.weight", {32, 32}, 0, 0},
      {"self_attn.k_proj", "attn.qkv.weight", {16, 32}, 0, 2},
      {"self_attn.v_proj", "attn.qkv.weight", {16, 32}, 0, 2},
      {"self_attn.q_norm", "attn.q_norm.weight", {8}, -1, 0},
      {"self_attn.k_norm", "attn.k_norm.weight", {8}, -1, 0},
      {"self_attn.o_proj", "attn.proj.weight", {32, 32}, 1, 0},
      {"post_attention_layernorm", "mlp.norm.weight", {32}, -1, 0},
      {"mlp.gate_proj", "mlp.up.weight", {128, 32}, 0, 0},
      {"mlp.up_proj", "mlp.up.weight", {128, 32}, 0, 0},
      {"mlp.down_proj", "mlp.down.weight", {32, 128}, 1, 0},
  };
  const size_t rows = std::size(layer);
  REQUIRE(table.size() == 1 + 2 * rows + 2);
  CHECK(table.front().name == "model.embed_tokens.weight");
  CHECK(table[table.size() - 2].name == "model.norm.weight");
  CHECK(table.back().name == "lm_head.weight");
  for (size_t i = 0; i < rows; ++i) {
    const ParamRow& row = table[1 + rows + i];
    CAPTURE(row.name);
    CHECK(row.name == std::string("model.layers.1.") + layer[i].name + ".weight");
    CHECK(row.layer == 1);
    CHECK(row.slot == layer[i].slot);
    CHECK(row.shape == layer[i].shape);
    CHECK(row.tp_axis == layer[i].tp_axis);
    CHECK(row.units == layer[i].units);
    CHECK(row.segments == 1);
    CHECK(row.out_in == (row.shape.size() == 2));
    CHECK(row.decays == (row.shape.size() == 2));
  }
  CHECK(find_row(table, 0, "mlp.down.weight")->init_std == doctest::Approx(0.02 / 2));
}

TEST_CASE("a Qwen2 has biases on queries and keys and values alone") {
  ModelShape shape = small_llama();
  shape.qkv_bias = true;
  std::vector<std::string> biases;
  for (const ParamRow& row : shard_table(shape, false)) {
    if (row.name.ends_with(".bias")) biases.push_back(row.name);
  }
  const std::vector<std::string> expected = {
      "model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.k_proj.bias",
      "model.layers.0.self_attn.v_proj.bias", "model.layers.1.self_attn.q_proj.bias",
      "model.layers.1.self_attn.k_proj.bias", "model.layers.1.self_attn.v_proj.bias"};
  CHECK(biases == expected);
  // The other way round: a GPT-2 it is not.
  shape = small_shape();
  shape.qkv_bias = false;
  CHECK(shape.family() == Family::llama);
  CHECK(find_row(shard_table(shape, false), 0, "attn.qkv.bias") == nullptr);
  CHECK(find_row(shard_table(shape, false), 0, "attn.proj.bias") != nullptr);
  shape.qkv_bias = true;
  CHECK(shape.family() == Family::gpt2);
  shape.sliding_window = 4;
  CHECK(shape.family() == Family::llama);
}

TEST_CASE("the rows of a Mixtral carry Hugging Face's names") {
  ModelShape shape = small_llama();
  shape.experts = 3;
  shape.experts_per_token = 2;
  for (const bool sequence_parallel : {false, true}) {
    const auto table = shard_table(shape, sequence_parallel);
    struct Expected {
      const char *name, *slot;
      std::vector<int64_t> shape;
      int tp_axis;
      bool over_tp;
    };
    const Expected block[] = {
        {"gate", "mlp.router.weight", {3, 32}, -1, true},
        {"experts.0.w1", "mlp.expert0.up.weight", {128, 32}, 0, false},
        {"experts.0.w3", "mlp.expert0.up.weight", {128, 32}, 0, false},
        {"experts.0.w2", "mlp.expert0.down.weight", {32, 128}, 1, false},
        {"experts.1.w1", "mlp.expert1.up.weight", {128, 32}, 0, false},
        {"experts.1.w3", "mlp.expert1.up.weight", {128, 32}, 0, false},
        {"experts.1.w2", "mlp.expert1.down.weight", {32, 128}, 1, false},
        {"experts.2.w1", "mlp.expert2.up.weight", {128, 32}, 0, false},
        {"experts.2.w3", "mlp.expert2.up.weight", {128, 32}, 0, false},
        {"experts.2.w2", "mlp.expert2.down.weight", {32, 128}, 1, false},
    };
    // Embedding, two layers of two norms and four projections and these, and the last norm.
    REQUIRE(table.size() == 1 + 2 * (6 + std::size(block)) + 1);
    for (size_t i = 0; i < std::size(block); ++i) {
      const ParamRow& row = table[1 + (6 + std::size(block)) + 6 + i];
      CAPTURE(row.name);
      CHECK(row.name ==
            std::string("model.layers.1.block_sparse_moe.") + block[i].name + ".weight");
      CHECK(row.slot == block[i].slot);
      CHECK(row.shape == block[i].shape);
      CHECK(row.tp_axis == block[i].tp_axis);
      CHECK(row.out_in);
      CHECK(row.decays);
      // Each TP rank has the router's gradient of its part of the experts.
      CHECK(row.grad_sum_over.has(Axis::tp) == block[i].over_tp);
    }
    CHECK(find_row(table, 1, "mlp.up.weight") == nullptr);
    CHECK(find_row(table, 0, "mlp.expert1.down.weight")->init_std == doctest::Approx(0.02 / 2));
    CHECK(find_row(table, 0, "mlp.router.weight")->init_std == doctest::Approx(0.02));
  }
}

TEST_CASE("the rows of Qwen's mixtures carry Hugging Face's names, and biases of experts a kind") {
  ModelShape shape = small_llama();
  shape.experts = 1;
  shape.experts_per_token = 1;
  shape.moe_scores = {.sigmoid = true};
  shape.shared_ffn = 48;
  shape.shared_gate = true;
  shape.expert_bias = true;
  const auto table = shard_table(shape, false);
  struct Expected {
    const char *name, *slot;
    std::vector<int64_t> shape;
    int tp_axis;
    bool over_tp, decays;
  };
  const Expected block[] = {
      {"gate.weight", "mlp.router.weight", {1, 32}, -1, true, true},
      {"gate.e_score_correction_bias", "mlp.expert_bias", {1}, -1, false, false},
      {"shared_expert.gate_proj.weight", "mlp.up.weight", {48, 32}, 0, false, true},
      {"shared_expert.up_proj.weight", "mlp.up.weight", {48, 32}, 0, false, true},
      {"shared_expert.down_proj.weight", "mlp.down.weight", {32, 48}, 1, false, true},
      {"shared_expert_gate.weight", "mlp.shared_gate.weight", {1, 32}, -1, true, true},
      {"experts.0.gate_proj.weight", "mlp.expert0.up.weight", {128, 32}, 0, false, true},
      {"experts.0.up_proj.weight", "mlp.expert0.up.weight", {128, 32}, 0, false, true},
      {"experts.0.down_proj.weight", "mlp.expert0.down.weight", {32, 128}, 1, false, true},
  };
  REQUIRE(table.size() == 1 + 2 * (6 + std::size(block)) + 1);
  for (size_t i = 0; i < std::size(block); ++i) {
    const ParamRow& row = table[1 + 6 + i];
    CAPTURE(row.name);
    CHECK(row.name == std::string("model.layers.0.mlp.") + block[i].name);
    CHECK(row.slot == block[i].slot);
    CHECK(row.shape == block[i].shape);
    CHECK(row.tp_axis == block[i].tp_axis);
    CHECK(row.grad_sum_over.has(Axis::tp) == block[i].over_tp);
    CHECK(row.decays == block[i].decays);
    CHECK(row.balances == (row.slot == "mlp.expert_bias"));
  }
  // In no bucket: it has no gradient.
  const ChunkRange all{.layers = shape.layers, .embedding = true, .head = true};
  const ParamLayout layout =
      param_layout(table, tensor_parallel(2), {all}, shape.layers, 1, 1 << 30, false);
  CHECK(layout.params.size() == table.size() - 2);
  for (const ParamPlacement& param : layout.params) CHECK_FALSE(table[param.row].balances);
  // Whose names experts have follows from the model alone.
  ModelShape mixtral = small_llama();
  mixtral.experts = 4;
  mixtral.experts_per_token = 2;
  CHECK(mixtral.names_of_mixtral());
  for (const auto& change :
       {+[](ModelShape& s) { s.qk_norm = true; }, +[](ModelShape& s) { s.qkv_bias = true; },
        +[](ModelShape& s) { s.shared_ffn = 8; },
        +[](ModelShape& s) { s.norm_place = NormPlace::output; },
        +[](ModelShape& s) { s.moe_scores.sigmoid = true; },
        +[](ModelShape& s) { s.moe_scores.normalize = false; },
        +[](ModelShape& s) { s.moe_scores.scale = 2; },
        +[](ModelShape& s) { s.moe_scores.groups = 2; },
        +[](ModelShape& s) { s.dense_layers = {0}; }}) {
    ModelShape other = mixtral;
    change(other);
    CHECK_FALSE(other.names_of_mixtral());
  }
}

TEST_CASE("dense layers between mixtures have the rows of a dense model, and its width") {
  ModelShape shape = small_llama();
  shape.layers = 3;
  shape.experts = 4;
  shape.experts_per_token = 2;
  shape.shared_ffn = 24;
  shape.dense_layers = {0, 2};
  shape.dense_layer_ffn = 80;
  CHECK_FALSE(shape.is_mixture(0));
  CHECK(shape.is_mixture(1));
  CHECK(shape.mixtures() == 1);
  CHECK(shape.mixtures_in(1, 3) == 1);
  CHECK(shape.mixtures_in(2, 3) == 0);
  const auto table = shard_table(shape, false);
  const ModelShape dense = shape.of_dense_layers();
  CHECK(dense.ffn == 80);
  const auto plain = shard_table(dense, false);
  for (const int layer : {0, 2}) {
    for (const ParamRow& row : plain) {
      if (row.layer != layer) continue;
      CAPTURE(row.name);
      const auto same = std::find_if(table.begin(), table.end(),
                                     [&](const ParamRow& r) { return r.name == row.name; });
      REQUIRE(same != table.end());
      CHECK(same->shape == row.shape);
      CHECK(same->slot == row.slot);
      CHECK(same->expert == -1);
    }
    CHECK(find_row(table, layer, "mlp.router.weight") == nullptr);
  }
  // A block for all tokens without a gate has DeepSeek's name.
  CHECK(find_row(table, 1, "mlp.down.weight")->name ==
        "model.layers.1.mlp.shared_experts.down_proj.weight");
  CHECK(find_row(table, 1, "mlp.expert3.up.weight")->shape ==
        std::vector<int64_t>{shape.ffn, shape.hidden});
}

TEST_CASE(
    "norms behind blocks have the names of OLMo 2 and Gemma 2, and of all heads a weight each") {
  ModelShape shape = small_llama();
  shape.qk_norm = shape.qk_norm_whole = true;
  const auto norms = [&] {
    std::vector<std::string> names;
    for (const ParamRow& row : shard_table(shape, false)) {
      if (row.layer == 0 && row.slot.find("norm") != std::string::npos) {
        names.push_back(row.slot + " " + row.name.substr(row.name.find("0.") + 2));
      }
    }
    return names;
  };
  shape.norm_place = NormPlace::output;
  CHECK(norms() ==
        std::vector<std::string>{"attn.q_norm.weight self_attn.q_norm.weight",
                                 "attn.k_norm.weight self_attn.k_norm.weight",
                                 "attn.norm_behind.weight post_attention_layernorm.weight",
                                 "mlp.norm_behind.weight post_feedforward_layernorm.weight"});
  shape.qk_norm = shape.qk_norm_whole = false;
  shape.norm_place = NormPlace::both;
  CHECK(norms() ==
        std::vector<std::string>{"attn.norm.weight input_layernorm.weight",
                                 "attn.norm_behind.weight post_attention_layernorm.weight",
                                 "mlp.norm.weight pre_feedforward_layernorm.weight",
                                 "mlp.norm_behind.weight post_feedforward_layernorm.weight"});
  shape.qk_norm = shape.qk_norm_whole = true;
  const auto table = shard_table(shape, false);
  const ParamRow& q = named(table, "model.layers.0.self_attn.q_norm.weight");
  const ParamRow& k = named(table, "model.layers.0.self_attn.k_norm.weight");
  CHECK(q.shape == std::vector<int64_t>{shape.query_width()});
  CHECK(k.shape == std::vector<int64_t>{shape.key_width()});
  CHECK(q.tp_axis == 0);
  CHECK(k.tp_axis == 0);
  CHECK(k.units == shape.kv_heads);
  CHECK_FALSE(q.decays);
  // Each rank has its own columns of queries; key heads may have copies.
  CHECK_FALSE(q.grad_sum_over.has(Axis::tp));
  CHECK(k.grad_sum_over.has(Axis::tp));
}

TEST_CASE("TP sums the gradients of what its ranks hold in common but use differently") {
  for (const bool sequence_parallel : {false, true}) {
    CAPTURE(sequence_parallel);
    ModelShape shape = small_llama();
    shape.qk_norm = true;
    const auto llama = shard_table(shape, sequence_parallel);
    const auto over_tp = [](const ParamRow& row) { return row.grad_sum_over.has(Axis::tp); };
    const std::string layer = "model.layers.0.";
    // Their own heads.
    CHECK(over_tp(named(llama, layer + "self_attn.q_norm.weight")));
    CHECK(over_tp(named(llama, layer + "self_attn.k_norm.weight")));
    CHECK(over_tp(named(llama, layer + "self_attn.k_proj.weight")));
    CHECK(over_tp(named(llama, layer + "self_attn.v_proj.weight")));
    CHECK_FALSE(over_tp(named(llama, layer + "self_attn.q_proj.weight")));
    CHECK_FALSE(over_tp(named(llama, layer + "self_attn.o_proj.weight")));
    CHECK_FALSE(over_tp(named(llama, "model.embed_tokens.weight")));
    // Their own tokens.
    CHECK(over_tp(named(llama, layer + "input_layernorm.weight")) == sequence_parallel);
    CHECK(over_tp(named(llama, "model.norm.weight")) == sequence_parallel);
    const auto gpt2 = shard_table(small_shape(), sequence_parallel);
    CHECK(over_tp(named(gpt2, "transformer.wpe.weight")) == sequence_parallel);
    CHECK(over_tp(named(gpt2, "transformer.h.0.attn.c_proj.bias")) == sequence_parallel);
    CHECK_FALSE(over_tp(named(gpt2, "transformer.h.0.attn.c_attn.bias")));
    for (const auto* table : {&llama, &gpt2}) {
      for (const ParamRow& row : *table) CHECK(row.grad_sum_over.has(Axis::dp));
    }
  }
}
