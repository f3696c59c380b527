// cli/plan/plan_text: a plan in words and tables, for any width and any number of ranks.
#include "cli/plan/plan_text.h"

#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "common/text.h"
#include "runtime/metrics/format.h"
#include "runtime/plan/memory/gpu_memory.h"
#include "support/specs.h"
#include "support/text.h"

using namespace mtl;

namespace {

TrainSpec small_spec() {
  TrainSpec spec = test::spec_with(
      {.layers = 8, .hidden = 256, .heads = 8, .micro_batch = 1, .seq_len = 256, .steps = 100});
  spec.model.kv_heads = 2;
  test::use_llama_blocks(spec);
  spec.precision.dtype = "bf16";
  return spec;
}

Plan plan_of(const TrainSpec& spec, int world) {
  ResolvedSpec resolved;
  resolved.spec = spec;
  Diagnostics diagnostics;
  Plan plan = make_plan(resolved, {.vocab = 65}, world, diagnostics);
  diagnostics.throw_if_errors();
  return plan;
}

std::string text_of(const TrainSpec& spec, int world, int columns) {
  return plan_text(plan_of(spec, world), columns, {});
}

using mtl::test::has;

}  // namespace

TEST_CASE("ranks are shown as ranges") {
  CHECK(ranks_text({0}) == "0");
  CHECK(ranks_text({0, 1}) == "0 1");
  CHECK(ranks_text({0, 1, 2, 3}) == "0-3");
  CHECK(ranks_text({0, 2, 4, 6}) == "0 2 4 6");
  CHECK(ranks_text({0, 1, 2, 3, 8, 9, 10, 11}) == "0-3 8-11");
  CHECK(ranks_text({0, 2, 4, 6, 8, 10, 12, 14}) == "0 2 4 6 8 10 12 14");
  CHECK(ranks_text({0, 2, 4, 6, 8, 10, 12, 14, 16}) == "0 2 4 6 8 10 12 14 ...");
}

TEST_CASE("a mixture of experts says what is active of it") {
  TrainSpec spec = small_spec();
  spec.model.ffn = 512;
  spec.model.moe.experts = 8;
  spec.model.qkv_bias = "true";
  spec.model.sliding_window = 128;
  CHECK(
      plan_text(plan_of(spec, 1), 120, {})
          .starts_with(
              R"(model       8 layers, hidden 256, 8 heads (2 KV heads), ffn 512, vocabulary 65 (128 rows in memory)
            rmsnorm, swiglu, 2 of 8 experts per token, rotary positions, window of 128 positions, no biases but of
            queries, keys and values, tied embeddings
parameters  27M (26 516 992); active 7.6M (7 642 624)
)"));
}

TEST_CASE("layers that differ are counted") {
  TrainSpec spec = small_spec();
  spec.model.sliding_window = 128;
  spec.model.full_attention.every = 4;
  spec.model.position.window_base = 500;
  spec.model.position.skip.layers = {1, 2, 5};
  spec.model.attention_scale = 0.25;
  CHECK(
      has(plan_text(plan_of(spec, 1), 200, {}),
          "rotary positions (base 500 in windows) but in 3 layers, window of 128 positions in 6 of "
          "8 layers, scores times 0.25, no biases"));
}

TEST_CASE("a plan with sequences that are divided says who has what") {
  TrainSpec spec = small_spec();
  spec.parallel.cp = 2;
  const std::string text = plan_text(plan_of(spec, 4), 80, {});
  CHECK(has(text, R"(
grid        4 ranks = 2 data x 2 context
  context    [0 1] [2 3]
  data       [0 2] [1 3]
sequence    divided: 1/2 of the tokens per rank, in attention of the heads
)"));
  CHECK(has(text, "state in 4 shards over data and context (ZeRO-1)"));
  CHECK(has(text, "\n  context         2 "));
  spec.model.heads = 8;
  spec.model.kv_heads = 4;
  spec.parallel.tp = 2;
  CHECK(has(plan_text(plan_of(spec, 4), 120, {}),
            "sequence    divided: 1/2 of the tokens per rank, in attention of the heads; parallel: "
            "1/2 of these per rank in"));
}

TEST_CASE("a plan with experts that are divided says who has what") {
  TrainSpec spec = small_spec();
  spec.model.activation = "swiglu";
  spec.model.bias = false;
  spec.model.moe.experts = 8;
  spec.parallel.ep = 2;
  const Plan plan = plan_of(spec, 4);
  const std::string text = plan_text(plan, 120, {});
  CHECK(has(text, R"(
grid        4 ranks = 2 data x 2 expert
  expert     [0 1] [2 3]
  data       [0 2] [1 3]
)"));
  const int64_t rows = 2 * plan.micro_batch * plan.seq;
  CHECK(has(text, fmt::format("experts     divided: 4 of 8 per rank, with room for {} rows of a "
                              "micro-batch ({} if all get as many)",
                              rows * 3 / 2, rows)));
  CHECK(has(text, "state in 4 shards over data and expert, that of experts in 2 (ZeRO-1)"));
}

TEST_CASE("a plan says what a person wants to know before a run") {
  TrainSpec spec = small_spec();
  spec.parallel.tp = 4;
  spec.parallel.pp = 2;
  spec.parallel.virtual_stages = 2;
  const Plan plan = plan_of(spec, 16);
  const std::string text = plan_text(plan, 80, {});
  CHECK(text.starts_with(
      R"(model       8 layers, hidden 256, 8 heads (2 KV heads), ffn 704, vocabulary 65
            (128 rows in memory)
            rmsnorm, swiglu, rotary positions, no biases, tied embeddings
parameters  5.7M (5 657 088)
grid        16 ranks = 2 pipeline x 2 data x 4 tensor
  tensor     [0-3] [4-7] [8-11] [12-15]
  data       [0 4] [1 5] [2 6] [3 7] [8 12] [9 13] [10 14] [11 15]
  pipeline   [0 8] [1 9] [2 10] [3 11] [4 12] [5 13] [6 14] [7 15]
sequence    parallel: 1/4 of the tokens per rank in norms, dropout, residual
batch       8 sequences x 256 tokens = 2 048 tokens per step; per rank 4
            micro-batches of 1 sequence; 100 steps
precision   bf16; master weights, gradients and optimizer in fp32
optimizer   adamw, state in 2 shards over data (ZeRO-1)
gradients   3 buckets per stage, at most )"));
  CHECK(has(text, R"(
layers and parameters on a rank
    stage  layers by chunk          parameters  backward keeps
        0  embedding 0-1 | 4-5         747 520)"));
  CHECK(has(text, R"(
        1  2-3 | 6-7 head              747 776)"));
  CHECK(has(text, R"(
schedule of a step: interleaved 1F1B in groups of 2, 2 stages x 2 chunks, 4
  micro-batches; bubble )"));
  CHECK(has(text, "\n  stage 1  -  0a 1a 0b [0b  ]1b [1b  ]2a [0a  ]3a [1a  ]2b [2b  ]"));

  const auto bytes = [](int64_t value) { return human_bytes(static_cast<double>(value)); };
  const auto line_with = [&](const std::string& begin) {
    for (const std::string& line : lines_of(text)) {
      if (line.starts_with(begin)) return line;
    }
    return std::string();
  };
  const MemoryPlan& memory = plan.stages[0].memory;
  CHECK(has(text, fmt::format("  {} x {}\n", memory.slots, bytes(memory.slot_bytes))));
  CHECK(line_with("        0   ").ends_with("  " + bytes(memory.total_bytes)));
  // Of the stage that has most: the other one's are not more.
  CHECK(
      has(text, fmt::format("  beside it on a GPU: {} for kernels and products; {} for messages\n",
                            bytes(gpu_memory(plan.stages[0].kernels, false).total()),
                            bytes(message_memory(plan, plan.stages[0])))));
  CHECK(has(text, "  all ranks together: " + bytes(plan.total_bytes()) + '\n'));
  // Four ranks of a ring send 3/4 of what is scattered and gathered, and twice that of what is
  // reduced.
  const LinkBytes& tensor = plan.stages[0].traffic[Link::tensor];
  const std::string line = line_with("  tensor          4       0 ");
  CHECK(has(line, "  " + bytes(tensor.all_gather) + "  "));
  CHECK(line.ends_with(
      "  " + bytes((2 * tensor.all_reduce + tensor.reduce_scatter + tensor.all_gather) * 3 / 4)));
  // Two KV heads over four ranks: pairs hold copies.
  CHECK(line_with("  kv ").starts_with("  kv              2     0-1 "));
  CHECK(has(text, "\n  data            2       0 "));
  CHECK(line_with("  loss ").starts_with("  loss            4     0-1 "));
  CHECK(line_with("  norm ").starts_with("  norm            8     0-1 "));
  CHECK(line_with("  tied ").starts_with("  tied            2     0-1 "));
}

TEST_CASE("a link with a long name stands in its columns") {
  TrainSpec spec = small_spec();
  spec.model.moe.experts = 4;
  spec.parallel.ep = 2;
  spec.parallel.zero = 1;
  spec.parallel.zero_ranks = 4;
  std::istringstream text(text_of(spec, 8, 80));
  size_t header = 0, named = 0;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("  link ")) header = line.size();
    if (line.starts_with("  expert_copies   2 ")) named = line.size();
  }
  CHECK(named > 0);
  CHECK(named == header);
}

TEST_CASE("one rank has neither links nor groups") {
  const std::string text = text_of(small_spec(), 1, 80);
  CHECK(has(text, "grid        1 rank\n"));
  CHECK_FALSE(has(text, "link"));
  CHECK_FALSE(has(text, "bubble"));
}

TEST_CASE("settings that change what runs are named") {
  TrainSpec spec = small_spec();
  CHECK(has(text_of(spec, 1, 80), "recompute   none\n"));
  spec.recompute.mode = "selective";
  spec.recompute.modules = {"core_attn", "mlp_act"};
  CHECK(has(text_of(spec, 1, 80),
            "recompute   selective: attention core, MLP activation of every layer\n"));
  spec.recompute.module_layers = {{"mlp_act", 2}};
  CHECK(has(text_of(spec, 1, 120),
            "recompute   selective: attention core of every layer; MLP activation of the first 2 "
            "layers of each chunk\n"));
  spec.recompute.module_layers = {{"mlp_act", 2}, {"core_attn", 1}};
  CHECK(has(text_of(spec, 1, 140),
            "recompute   selective: attention core of the first 1 layer of each chunk; MLP "
            "activation of the first 2 layers of each chunk\n"));
  spec.recompute.module_layers.clear();
  spec.recompute.mode = "full";
  spec.recompute.modules = {"core_attn"};
  spec.recompute.method = "block";
  spec.recompute.layers = 3;
  CHECK(has(text_of(spec, 1, 80),
            "recompute   full: the first 3 layers of each chunk, each from its input\n"));
  spec.recompute.method = "uniform";
  CHECK(
      has(text_of(spec, 1, 80), "recompute   full: all layers, each group of 3 from its input\n"));
  spec.model.position.scaling = {.type = "yarn", .factor = 4, .original_max_seq = 64};
  CHECK(has(text_of(spec, 1, 80), "rotary positions scaled as YaRN by 4, no biases"));
  spec.model.position.fraction = 0.5;
  CHECK(has(text_of(spec, 1, 100), "rotary positions scaled as YaRN by 4 on "));
  spec.model.activation = "gelu_exact";
  spec.model.parallel_residual = true;
  CHECK(has(text_of(spec, 1, 200), ", exact gelu, "));
  CHECK(has(text_of(spec, 1, 200), ", parallel residual, "));
  spec.model.activation = "geglu";
  spec.model.embedding_scale = 45.254833995939045;
  CHECK(has(text_of(spec, 1, 200), ", geglu, "));
  CHECK(has(text_of(spec, 1, 200), ", parallel residual, embeddings times 45.25, "));
  spec.model.parallel_residual = false;
  spec.model.norm.place = "output";
  CHECK(has(text_of(spec, 1, 200), "norm behind blocks, geglu, "));
  spec.model.norm.place = "both";
  spec.model.qk_norm = spec.model.qk_norm_whole = true;
  CHECK(has(text_of(spec, 1, 200), "norm before and behind blocks, geglu, "));
  CHECK(has(text_of(spec, 1, 200), ", QK-norm of all heads, "));
  spec.precision.dtype = "fp16";
  CHECK(has(text_of(spec, 1, 100),
            "precision   fp16; master weights, gradients and optimizer in "
            "fp32, dynamic loss scaling\n"));
  spec.parallel.zero = 0;
  CHECK(has(text_of(spec, 2, 80), "optimizer   adamw, whole state on every replica\n"));
  spec.parallel.tp = 2;
  spec.parallel.sp = "false";
  CHECK(has(text_of(spec, 2, 80), "sequence    not parallel"));
}

TEST_CASE("latents are named") {
  TrainSpec spec = small_spec();
  spec.model.position.type = "rope";
  spec.model.bias = false;
  spec.model.kv_heads = 0;
  spec.model.head_dim = 24;
  spec.model.latent = {.kv_rank = 20, .rope_dim = 8};
  spec.recompute.mode = "selective";
  spec.recompute.modules = {"latent_up"};
  const std::string text = text_of(spec, 1, 200);
  CHECK(has(text, " of 20 latents, "));
  CHECK(has(text, "rotary positions on 8 of 24 elements"));
  CHECK(has(text, "recompute   selective: latents' heads of every layer\n"));
}

TEST_CASE("the phases of a batch are a table") {
  TrainSpec spec = small_spec();
  spec.parallel.pp = 2;
  spec.train.batch_ramp = {{0, 2}, {10, 4}, {50, 8}};
  const std::string text = text_of(spec, 2, 80);
  CHECK(has(text,
            "     from step     sequences          tokens  micro-batches per rank    bubble\n"
            "             0             2             512                       2"));
  CHECK(has(text, "\n            50             8           2 048                       8"));
  CHECK(has(text, "schedule of the largest step: 1F1B, 2 stages, 8 micro-batches"));
}

TEST_CASE("a plan for 16 384 ranks stays readable") {
  TrainSpec spec = small_spec();
  spec.model.layers = 128;
  spec.model.hidden = 16384;
  spec.model.heads = 128;
  spec.model.kv_heads = 8;
  spec.model.ffn = 53248;
  spec.train.global_batch = 2048;
  spec.train.seq_len = 8192;
  spec.parallel.tp = 8;
  spec.parallel.pp = 16;
  spec.parallel.virtual_stages = 4;
  for (const int columns : {80, 120}) {
    CAPTURE(columns);
    const std::string text = text_of(spec, 16384, columns);
    const std::vector<std::string> lines = lines_of(text);
    CHECK(lines.size() < 100);
    for (const std::string& line : lines) {
      CAPTURE(line);
      CHECK(line.size() <= static_cast<size_t>(columns));
    }
    // What is cut says so, and stages with the same numbers share a row.
    CHECK(has(text, " ... 2 048 groups\n"));
    CHECK(has(text, "\n      0-7 "));
    CHECK(has(text, "  15  30-31 | 62-63 | 94-95 | 126-127 head"));
    CHECK(has(text, "--svg FILE"));
  }
}

TEST_CASE("of very many stages the first and the last are shown") {
  TrainSpec spec = small_spec();
  spec.model.layers = 64;
  spec.train.global_batch = 4;
  spec.parallel.pp = 64;
  const std::string text = text_of(spec, 64, 80);
  CHECK(lines_of(text).size() < 100);
  CHECK(has(text, "      ...  46 more\n       60  60 "));
  CHECK(has(text, "  ... 46 more\n  stage 60 "));
  CHECK(has(text, "       63  63 head"));
}

TEST_CASE("chunks that do not fit into the line are left out") {
  TrainSpec spec = small_spec();
  spec.model.layers = 64;
  spec.parallel.pp = 2;
  spec.parallel.virtual_stages = 32;
  const std::string text = text_of(spec, 2, 80);
  for (const std::string& line : lines_of(text)) CHECK(line.size() <= 80);
  CHECK(has(text, "        0  embedding 0 | 2 | 4 | 6 | 8 | 10 ... "));
}
