// init.from: the weights of others in any layout; and what does not fit is named.
#include <algorithm>

#include <doctest/doctest.h>

#include "reference_folders.h"
#include "runtime/interchange/import.h"
#include "runtime/interchange/init_from.h"
#include "support/layouts.h"
#include "support/specs.h"

using namespace mtl;
using namespace mtl::test;
namespace fs = std::filesystem;

namespace {

TrainSpec gpt2_spec() {
  TrainSpec spec = spec_with({.global_batch = 4, .micro_batch = 0, .steps = 8});
  spec.model.ffn = 64;
  spec.model.max_seq = 64;
  return spec;
}

Place nowhere(const std::string&) {
  return {};
}

std::string mismatches(const std::string& path, const ModelShape& model) {
  Diagnostics diagnostics;
  InitialWeights(path).check(model, nowhere, diagnostics);
  std::string text;
  for (const Diagnostic& d : diagnostics.all()) text += d.code + ": " + d.what + "\n";
  return text;
}

}  // namespace

TEST_CASE("every layout starts from the same weights of others") {
  const Scratch scratch;
  const auto imported =
      import_model({.source = reference_folder("llama"), .out = scratch / "run", .tokenizer = {}});
  const std::string sources[] = {reference_folder("llama").string(),
                                 reference_folder("megatron-llama").string(),
                                 (scratch / "run").string(), imported.checkpoint.string()};
  const auto expected = all_weights(open_foreign_model(reference_folder("llama")));
  for (const std::string& source : sources) {
    for (const Layout layout : {Layout{}, Layout{.tp = 2}, Layout{.tp = 2, .dp = 2, .pp = 2}}) {
      CAPTURE(source);
      GlobalTensors masters;
      run_layout(llama_spec(), 96, layout, [&](RankContext& rank) {
        rank.trainer.initialise();
        load_initial_weights(source, rank.trainer);
        collect(rank.trainer, Which::master, masters);
      });
      CHECK(masters == expected);
    }
  }
}

TEST_CASE("Megatron's fused and turned matrices in any layout") {
  const auto expected = all_weights(open_foreign_model(reference_folder("gpt2")));
  for (const Layout layout : {Layout{}, Layout{.tp = 4}, Layout{.dp = 2, .pp = 2}}) {
    GlobalTensors masters;
    run_layout(gpt2_spec(), 96, layout, [&](RankContext& rank) {
      rank.trainer.initialise();
      load_initial_weights(reference_folder("megatron-gpt2").string(), rank.trainer);
      collect(rank.trainer, Which::master, masters);
    });
    CHECK(masters == expected);
  }
}

TEST_CASE("training goes on as from the same weights set by hand") {
  const auto weights = all_weights(open_foreign_model(reference_folder("llama")));
  const auto tokens = markov_tokens(4000, 96);
  const auto losses = [&](const std::function<void(Trainer&)>& start) {
    std::vector<double> values;
    run_layout(llama_spec(), 96, {}, [&](RankContext& rank) {
      rank.trainer.initialise();
      start(rank.trainer);
      const Sampler sampler(tokens->size(), rank.plan.seq, SampleOrder::random, 3);
      for (int64_t step = 0; step < 5; ++step) {
        values.push_back(rank.trainer.step(step, *tokens, sampler, {}).loss);
      }
    });
    return values;
  };
  const auto imported = losses(
      [](Trainer& trainer) { load_initial_weights(reference_folder("llama").string(), trainer); });
  const auto by_hand = losses([&](Trainer& trainer) {
    set_masters(trainer, [&](const ParamRow& row, int64_t element) {
      return weights.at(row.name)[static_cast<size_t>(element)];
    });
  });
  CHECK(imported == by_hand);
  CHECK(imported != losses([](Trainer&) {}));
}

TEST_CASE("a vocabulary and positions may be more there than here") {
  TrainSpec spec = gpt2_spec();
  spec.model.max_seq = 32;
  const auto whole = all_weights(open_foreign_model(reference_folder("gpt2")));
  GlobalTensors masters;
  run_layout(spec, 90, {.tp = 2}, [&](RankContext& rank) {
    rank.trainer.initialise();
    load_initial_weights(reference_folder("gpt2").string(), rank.trainer);
    collect(rank.trainer, Which::master, masters);
  });
  for (const auto& [name, rows] : {std::pair("transformer.wte.weight", size_t{90}),
                                   std::pair("transformer.wpe.weight", size_t{32})}) {
    std::vector<float> first = whole.at(name);
    first.resize(rows * 32);
    CHECK(masters.at(name) == first);
  }
}

TEST_CASE("a model of another shape is refused with every difference") {
  const std::string llama = reference_folder("llama").string();
  const ModelShape good = model_shape(llama_spec(), 96);
  CHECK(mismatches(llama, good) == "");
  ModelShape bad = good;
  bad.heads = 8;
  bad.rope_base = 10000;
  bad.tie_embeddings = true;
  bad.vocab = 97;
  const std::string text = mismatches(llama, bad);
  CHECK(std::count(text.begin(), text.end(), '\n') == 4);
  CHECK(text.find("init.mismatch: model.heads is 8 here, 4 in the model") != std::string::npos);
  CHECK(text.find("model.position.base") != std::string::npos);
  CHECK(text.find("model.tie_embeddings") != std::string::npos);
  CHECK(text.find("data.tokenizer.type is of 97 tokens here, of 96") != std::string::npos);
  // A scaling that is asked for is no mistake: a context grows that way. One that is missing is.
  ModelShape scaled = good;
  scaled.rope_scaling = {.type = RopeScalingType::yarn, .factor = 2, .original_max_seq = 64};
  CHECK(mismatches(llama, scaled).starts_with("init.scaling: model.position.scaling.type is {"));
  CHECK(mismatches(reference_folder("llama-yarn").string(), good)
            .find("init.mismatch: model.position.scaling.type is not set here") !=
        std::string::npos);
  CHECK(code_of([&] { InitialWeights("/nowhere/at/all"); }) == "init.missing");
  CHECK(code_of([&] { InitialWeights(fs::temp_directory_path().string()); }) == "init.missing");
}
