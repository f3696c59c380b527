// resolved.yaml: the origin of every value, and that it reads back to the same values.
#include <algorithm>
#include <map>
#include <rapidcheck.h>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "runtime/spec/load.h"
#include "runtime/spec/schema.h"
#include "runtime/spec/values.h"

using namespace mtl;
using namespace mtl::test;

namespace {

std::string values_of(const TrainSpec& train_spec) {
  std::string text;
  for (const spec::Row& row : spec::schema()) {
    text += fmt::format("{}={}\n", row.key, spec::print_value(row, train_spec));
  }
  return text;
}

}  // namespace

TEST_CASE("resolved.yaml names the origin of every value") {
  const TempDir dir;
  const Loaded loaded = load(dir, kSmallest,
                             {.train_yaml = {},
                              .default_config = {{"parallel.tp", "2"}},
                              .environment = {{"MTL_LR__MAX", "1e-3"}},
                              .overrides = {"train.eval.every=100"}});
  const std::string text = resolved_yaml(loaded.resolved);
  CHECK(text.find("\n  layers: 2  # train.yaml\n") != std::string::npos);
  CHECK(text.find("\n  ffn: auto  # built-in\n") != std::string::npos);
  CHECK(text.find(
            "\n  norm:\n    type: layernorm  # built-in\n    eps: 1e-05  # built-in\n    "
            "place: input  # built-in\n    bias: auto  # built-in\n    shared: false  # built-in\n"
            "  max_seq: auto  # built-in\n") != std::string::npos);
  CHECK(text.find("\nparallel:\n  tp: 2  # default_config.yaml\n") != std::string::npos);
  CHECK(text.find("\n  max: 0.001  # environment\n") != std::string::npos);
  CHECK(text.find("\n  eval:\n    every: 100  # command line\n") != std::string::npos);
  CHECK(text.find("\n  betas: [0.9, 0.95]  # built-in\n") != std::string::npos);
  // What a job could be given, and is not, is left out.
  const std::vector<std::string> keys = spec_keys();
  const auto shown = std::count_if(keys.begin(), keys.end(), [](const std::string& key) {
    return !key.starts_with("launch.slurm.") && !key.starts_with("launch.kubernetes.");
  });
  CHECK(std::count(text.begin(), text.end(), '#') == shown + 1);
}

TEST_CASE("what a job is given is a text or a list and written as it was") {
  const Loaded loaded = load_more(
      "launch:\n  slurm:\n    time: 1:30:00\n    partition: gpu\n    exclusive: true\n"
      "    modules: [cuda/12.4, \"a: b\"]\n    setup: echo x\n    extra: []\n");
  CHECK(texts(loaded).empty());
  const auto& slurm = loaded.resolved.spec.launch.slurm;
  CHECK(slurm.at("time") == std::vector<std::string>{"1:30:00"});
  CHECK(slurm.at("exclusive") == std::vector<std::string>{"true"});
  CHECK(slurm.at("modules") == std::vector<std::string>{"cuda/12.4", "a: b"});
  CHECK(slurm.at("setup") == std::vector<std::string>{"echo x"});
  CHECK(slurm.count("extra") == 0);
  const std::string text = resolved_yaml(loaded.resolved);
  CHECK(text.find("\n    time: \"1:30:00\"  # train.yaml\n") != std::string::npos);
  CHECK(text.find("    qos:") == std::string::npos);
  CHECK(code_of("launch.slurm.time=[1, 2]") == "config.type");
  CHECK(code_of("launch.slurm.time={a: 1}") == "config.type");
  CHECK(code_of("launch.slurm.time=") == "config.type");
  CHECK(code_of("launch.slurm.modules=[[a]]") == "config.type");
  CHECK(code_of("launch.slurm.partitoin=x") == "config.unknown_key");
}

TEST_CASE("resolved.yaml reads back to the same values, bit for bit") {
  const TempDir dir;
  CHECK(rc::check("any allowed values", [&] {
    ResolvedSpec any = load(dir, kSmallest).resolved;
    TrainSpec& s = any.spec;
    const auto unit = [] {
      return static_cast<double>(*rc::gen::inRange<int64_t>(0, int64_t{1} << 53)) * 0x1p-53;
    };
    s.lr.max = unit() + 1e-300;
    s.lr.min = unit() * 1e-200;
    s.optimizer.beta1 = unit();
    s.optimizer.beta2 = unit();
    s.optimizer.weight_decay = unit() * 100;
    s.optimizer.eps = unit() / 3 + 5e-324;
    s.data.split = {unit() * 1e12 + 1, unit()};
    s.train.steps = *rc::gen::inRange<int64_t>(1, 1'000'000'000'001);
    s.train.seed = *rc::gen::inRange<uint64_t>(0, (uint64_t{1} << 53) + 1);
    s.lr.decay = *rc::gen::inRange<int64_t>(0, 3);
    s.parallel.bucket_mb = *rc::gen::arbitrary<bool>() ? 0 : unit() + 1e-9;
    s.parallel.sp = *rc::gen::element<std::string>("auto", "true", "false");
    s.parallel.stage_balance = *rc::gen::element<std::string>("uniform", "balanced");
    s.recompute.method = *rc::gen::element<std::string>("", "uniform", "block");
    s.recompute.modules = *rc::gen::elementOf(std::vector<std::vector<std::string>>{
        {"core_attn"}, {"mlp", "norm"}, {"norm", "mlp_act", "core_attn"}});
    s.recompute.module_layers.clear();
    if (*rc::gen::arbitrary<bool>()) {
      s.recompute.module_layers[s.recompute.modules.back()] =
          *rc::gen::inRange<int64_t>(1, 100'001);
    }
    if (*rc::gen::arbitrary<bool>()) {
      s.parallel.stage_layout = *rc::gen::nonEmpty(
          rc::gen::container<std::vector<int64_t>>(rc::gen::inRange<int64_t>(0, 100)));
      s.parallel.stage_balance = "uniform";
    }
    std::map<int64_t, int64_t> ramp = *rc::gen::container<std::map<int64_t, int64_t>>(
        rc::gen::inRange<int64_t>(0, 1'000'000), rc::gen::inRange<int64_t>(1, 1000));
    if (!ramp.empty()) ramp[0] = 7;
    if (*rc::gen::arbitrary<bool>() && !ramp.empty()) {
      s.train.accumulate = ramp;
      s.train.global_batch = 0;
    } else {
      s.train.batch_ramp = ramp;
    }
    s.model.bias = *rc::gen::arbitrary<bool>();
    // A path may hold anything printable, YAML's own signs above all.
    s.data.train = "x" + *rc::gen::container<std::string>(rc::gen::oneOf(
                             rc::gen::inRange(' ', '\x7f'),
                             rc::gen::elementOf(std::string(":#'\"{}[]&*!|>%@`\\ \t"))));
    s.run.dir = *rc::gen::element<std::string>("no", "null", "1e9", "010", "é ü", "- a", "a: b",
                                               "0x1", ".5", "auto", "true", " lead", "trail ");
    const Loaded again = load(dir, resolved_yaml(any));
    for (const Diagnostic& problem : again.problems) RC_LOG(render(problem));
    RC_ASSERT(again.problems.empty());
    RC_ASSERT(values_of(again.resolved.spec) == values_of(s));
    RC_ASSERT(again.resolved.spec.lr.max == s.lr.max);
    RC_ASSERT(again.resolved.spec.train.accumulate == s.train.accumulate);
    RC_ASSERT(again.resolved.spec.train.batch_ramp == s.train.batch_ramp);
    RC_ASSERT(again.resolved.spec.parallel.stage_layout == s.parallel.stage_layout);
    RC_ASSERT(again.resolved.spec.parallel.stage_balance == s.parallel.stage_balance);
    RC_ASSERT(again.resolved.spec.recompute.modules == s.recompute.modules);
    RC_ASSERT(again.resolved.spec.recompute.module_layers == s.recompute.module_layers);
    RC_ASSERT(again.resolved.spec.data.split == s.data.split);
    RC_ASSERT(again.resolved.spec.data.train == s.data.train);
  }));
}
