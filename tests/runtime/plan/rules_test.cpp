// Every rule that ties settings together is a clear error at plan time: what is wrong, where, and
// the nearest values that work. The tables follow Megatron-LM's validate_args and
// TransformerConfig (rules_mesh_test.cpp, rules_step_test.cpp); here, that a mistake is reported
// once, and that what is proposed runs.
//
// What Megatron-LM checks and nothing can break here:
//  - fp16 xor bf16: there is one key, precision.dtype.
//  - cross-entropy in fp16 only with fp16: the loss is always in fp32.
//  - tp_comm_overlap needs sequence parallelism: parallel.overlap.tp works without.
//  - CUDA_DEVICE_MAX_CONNECTIONS: the order of kernels does not depend on it.
//  - save_retain_interval: checkpoint.keep_last counts checkpoints.
// Iterations xor samples, context and expert parallelism, offload to the CPU: the first table.
#include <rapidcheck.h>
#include <utility>

#include <fmt/format.h>

#include "runtime/plan/rules/nearest.h"
#include "runtime/plan/rules_cases.h"

using namespace mtl;
using namespace mtl::test;

TEST_CASE("what other trainers check between keys is refused key by key here") {
  const std::pair<const char*, const char*> cases[] = {
      // fp16 xor bf16
      {"precision.fp16=true", "config.unknown_key"},
      {"model.moe.num_experts=8", "config.unknown_key"},
      // offload to the CPU: no PP, no recompute, fewer layers than there are
      {"parallel.cpu_offloading=true", "config.unknown_key"},
      // save_retain_interval % save_interval == 0
      {"checkpoint.save_retain_interval=10", "config.unknown_key"},
      // training by iterations xor by samples
      {"train.samples=100", "config.conflict"},
      // phases without a batch
      {"train.batch_ramp={0: 0}", "config.range"},
  };
  for (const auto& [setting, code] : cases) {
    CAPTURE(setting);
    CHECK(test::code_of(setting) == code);
  }
}

TEST_CASE("mistakes are reported together and each of them once") {
  const auto codes = [](const std::function<void(TrainSpec&)>& change, int world) {
    ResolvedSpec resolved = ruled_spec();
    change(resolved.spec);
    std::vector<std::string> all;
    for (const Diagnostic& problem : problems_of(resolved, world)) all.push_back(problem.code);
    return all;
  };
  using Codes = std::vector<std::string>;
  CHECK(codes(
            [](TrainSpec& s) {
              s.model.max_seq = 8;
              s.parallel.tp = 4;
              s.parallel.pp = 3;
              s.train.micro_batch = 5;
              s.recompute.layers = 2;
              s.lr.min = 1;
            },
            4) == Codes{"model.max_seq", "mesh.heads", "mesh.layers", "batch.micro",
                        "recompute.layers", "lr.range"});
  // A degree that neither heads, KV heads nor ffn allow, in a world that it does not divide.
  CHECK(codes(
            [](TrainSpec& s) {
              s.model.kv_heads = 3;
              s.model.ffn = 100;
              s.parallel.tp = 5;
              s.parallel.sp = "true";
            },
            7) == Codes{"mesh.heads"});
  // Ranks of EP have sequences of their own.
  CHECK(codes(
            [](TrainSpec& s) {
              with_experts(s, 6);
              s.parallel.ep = 2;
              s.train.global_batch = 9;
            },
            4) == Codes{"batch.dp"});
  // What follows from a wrong number of heads is no second mistake.
  CHECK(codes(
            [](TrainSpec& s) {
              s.model.kv_heads = 5;
              s.parallel.tp = 2;
            },
            2) == Codes{"model.kv_heads"});
  CHECK(codes(
            [](TrainSpec& s) {
              s.model.heads = 32;
              s.model.position.type = "rope";
            },
            1) == Codes{"model.head_dim"});
  // Without a layout there are no replicas to divide the batch over, and no stages.
  CHECK(codes(
            [](TrainSpec& s) {
              s.parallel.pp = 3;
              s.parallel.virtual_stages = 2;
              s.recompute.mode = "full";
              s.recompute.layers = 3;
            },
            15) == Codes{"mesh.layers"});
  CHECK(codes(
            [](TrainSpec& s) {
              s.parallel.tp = 3;
              s.parallel.sp = "true";
              s.recompute.mode = "full";
              s.recompute.distribute = true;
            },
            3) == Codes{"mesh.sp"});
}

TEST_CASE("absurd degrees are errors and not overflows") {
  for (const int tp : {1, 6, 65536}) {
    for (const int pp : {1, 4, 65536}) {
      for (const int virtual_stages : {1, 1024}) {
        for (const int world : {1, 65536, 2147483647}) {
          CAPTURE(tp);
          CAPTURE(pp);
          CAPTURE(virtual_stages);
          CAPTURE(world);
          ResolvedSpec resolved = ruled_spec();
          resolved.spec.parallel.tp = tp;
          resolved.spec.parallel.pp = pp;
          resolved.spec.parallel.virtual_stages = virtual_stages;
          const bool sound = tp == 1 && virtual_stages == 1 && world == 1 && pp == 1;
          CHECK(problems_of(resolved, world).empty() == sound);
        }
      }
    }
  }
}

TEST_CASE("a stage may be left empty where its layers are given") {
  ResolvedSpec resolved = ruled_spec();
  resolved.spec.parallel.pp = 4;
  resolved.spec.parallel.stage_layout = {0, 4, 0, 0};
  CHECK(problems_of(resolved, 4).empty());
}

TEST_CASE("without replicas there is nothing to keep in shards and pipelines are as ever") {
  ResolvedSpec resolved = ruled_spec();
  resolved.spec.parallel.pp = 2;
  resolved.spec.parallel.zero = 3;
  Diagnostics diagnostics;
  const Plan plan = make_plan(resolved, {.vocab = 65}, 2, diagnostics);
  REQUIRE_FALSE(diagnostics.has_errors());
  CHECK(plan.stages[0].layout.zero == 0);
  CHECK(plan.stages[0].layout.windows.empty());
}

TEST_CASE("without a micro-batch a ramp takes the largest that divides each phase") {
  ResolvedSpec resolved = ruled_spec();
  resolved.spec.train.batch_ramp = {{0, 32}, {10, 48}, {20, 16}};
  Diagnostics diagnostics;
  const Plan plan = make_plan(resolved, {.vocab = 65}, 2, diagnostics);
  REQUIRE_FALSE(diagnostics.has_errors());
  CHECK(plan.micro_batch == 8);
}

TEST_CASE("phases that begin after the end of the run are no part of the plan") {
  ResolvedSpec resolved = ruled_spec();
  resolved.spec.train.batch_ramp = {{0, 2}, {99, 4}, {100, 8}};
  resolved.spec.train.micro_batch = 1;
  Diagnostics diagnostics;
  const Plan plan = make_plan(resolved, {.vocab = 65}, 1, diagnostics);
  REQUIRE_FALSE(diagnostics.has_errors());
  CHECK(plan.batch.phases().size() == 2);
  CHECK(plan.largest().shape.micro_batches == 4);
}

TEST_CASE("every layout that a note proposes can be planned") {
  CHECK(rc::check([] {
    ResolvedSpec resolved = ruled_spec();
    TrainSpec& spec = resolved.spec;
    spec.model.layers = *rc::gen::inRange(1, 13);
    spec.model.heads = *rc::gen::element(2, 4, 6, 12, 16);
    spec.model.hidden = spec.model.heads * 8;
    spec.model.kv_heads = spec.model.heads / *rc::gen::element(1, 1, 2);
    spec.model.ffn = *rc::gen::element(0, 96, 100);
    spec.train.global_batch = *rc::gen::element(8, 12, 32, 96);
    spec.train.micro_batch = *rc::gen::element(0, 1, 2);
    spec.parallel.tp = *rc::gen::inRange(1, 9);
    spec.parallel.pp = *rc::gen::inRange(1, 9);
    spec.parallel.virtual_stages = *rc::gen::element(1, 1, 2, 3);
    spec.parallel.sp = *rc::gen::element<std::string>("auto", "true", "false");
    spec.parallel.stage_balance = *rc::gen::element<std::string>("uniform", "balanced");
    if (*rc::gen::inRange(0, 4) == 0) spec.parallel.stage_layout = {spec.model.layers - 1, 1};
    spec.recompute.mode = *rc::gen::element<std::string>("none", "full");
    if (spec.recompute.mode == "full") spec.recompute.layers = *rc::gen::inRange(0, 4);
    const int world = *rc::gen::inRange(1, 33);

    std::string note;
    bool others = false;  // mistakes that no layout mends
    for (const Diagnostic& problem : problems_of(resolved, world)) {
      if (!problem.notes.empty()) note = problem.notes[0];
      others = others || problem.what.starts_with("train.micro_batch") ||
               problem.what.starts_with("recompute.");
    }
    RC_PRE(!note.empty() && !others);  // about one layout in four is proposed something
    RC_ASSERT(note.starts_with(fmt::format("{} process{} can be ", world, world == 1 ? "" : "es")));
    std::string rest = note.substr(note.find("tp="));
    while (!rest.empty()) {
      const size_t end = rest.find(", or ");
      std::string layout = rest.substr(0, end) + ' ';
      rest = end == std::string::npos ? "" : rest.substr(end + 5);
      ResolvedSpec other = resolved;
      while (!layout.empty()) {
        const std::string setting = layout.substr(0, layout.find(' '));
        layout.erase(0, setting.size() + 1);
        const std::string key = setting.substr(0, setting.find('='));
        const std::string value = setting.substr(setting.find('=') + 1);
        TrainSpec::Parallel& parallel = other.spec.parallel;
        if (key == "tp") parallel.tp = std::stoi(value);
        if (key == "pp") parallel.pp = std::stoi(value);
        if (key == "dp") parallel.dp = std::stoi(value);
        if (key == "virtual_stages") parallel.virtual_stages = std::stoi(value);
        if (key == "stage_layout") {
          parallel.stage_balance = value;
          parallel.stage_layout.clear();
        }
      }
      RC_ASSERT(problems_of(other, world).empty());
    }
  }));
}

TEST_CASE("values next to one that does not work") {
  CHECK(divisors(1) == std::vector<int64_t>{1});
  CHECK(divisors(36) == std::vector<int64_t>{1, 2, 3, 4, 6, 9, 12, 18, 36});
  CHECK(nearest_divisors(12, 5) == "4 or 6");
  CHECK(nearest_divisors(12, 6) == "6");
  CHECK(nearest_divisors(12, 50) == "12");
  CHECK(nearest_divisors(999'999'937, 1000) == "1 or 999999937");
  CHECK(nearest_multiples(10, 4) == "8 or 12");
  CHECK(nearest_multiples(3, 4) == "4");
  ModelShape model;
  model.heads = 24;
  model.kv_heads = 6;
  model.ffn = 96;
  CHECK(tensor_degrees(model) == std::vector<int64_t>{1, 2, 3, 6, 12, 24});
}

TEST_CASE("choices of layers change nothing without a window and rotations") {
  ResolvedSpec resolved = ruled_spec();
  TrainSpec::Model& model = resolved.spec.model;
  model.full_attention = {.every = 2, .layers = {0}};
  model.position.window_base = 100;
  model.position.skip = {.every = 2, .layers = {0}};
  const auto warnings = [&] {
    Diagnostics diagnostics;
    make_plan(resolved, {.vocab = 65}, 1, diagnostics);
    CHECK_FALSE(diagnostics.has_errors());
    return diagnostics.all().size();
  };
  CHECK(warnings() == 5);
  model.sliding_window = 3;
  CHECK(warnings() == 3);
  model.position.type = "rope";
  model.head_dim = 4;
  CHECK(warnings() == 0);
  model.sliding_window = 0;
  CHECK(warnings() == 3);
}

TEST_CASE("norms that no block reads are none to make again") {
  ResolvedSpec resolved = ruled_spec();
  TrainSpec& spec = resolved.spec;
  spec.recompute.mode = "selective";
  spec.recompute.modules = {"mlp", "norm"};
  const auto warnings = [&] {
    Diagnostics diagnostics;
    make_plan(resolved, {.vocab = 65}, 1, diagnostics);
    CHECK_FALSE(diagnostics.has_errors());
    std::string all;
    for (const Diagnostic& one : diagnostics.all()) all += one.what + "\n";
    return all;
  };
  CHECK(warnings().empty());
  spec.model.norm.place = "both";
  CHECK(warnings().empty());
  spec.model.norm.place = "output";
  CHECK(warnings() == "recompute.modules: norm has no effect: model.norm.place is output\n");
  spec.recompute.modules = {"mlp"};
  CHECK(warnings().empty());
}

TEST_CASE("what is written and changes nothing is a warning with its place") {
  ResolvedSpec resolved = ruled_spec();
  resolved.spec.optimizer.momentum = 0.5;
  resolved.spec.lr.wsd_style = "linear";
  resolved.spec.train.deterministic = false;
  Diagnostics diagnostics;
  make_plan(resolved, {.vocab = 65}, 1, diagnostics);
  CHECK_FALSE(diagnostics.has_errors());
  REQUIRE(diagnostics.all().size() == 3);
  CHECK(diagnostics.all()[0].code == "config.no_effect");
  CHECK(diagnostics.all()[1].what == "optimizer.momentum has no effect: optimizer.type is not sgd");
  resolved.spec.optimizer.type = "lion";
  resolved.spec.optimizer.eps = 1e-6;
  Diagnostics of_lion;
  make_plan(resolved, {.vocab = 65}, 1, of_lion);
  REQUIRE(of_lion.all().size() == 4);
  CHECK(of_lion.all()[2].what == "optimizer.eps has no effect: optimizer.type is lion");
  resolved.spec.optimizer.eps = 1e-8;
  resolved.spec.optimizer.type = "sgd";
  Diagnostics fewer;
  make_plan(resolved, {.vocab = 65}, 1, fewer);
  CHECK(fewer.all().size() == 2);
  resolved.spec.data.split = {80, 20};
  Diagnostics split;
  make_plan(resolved, {.vocab = 65}, 1, split);
  CHECK(split.all().size() == 2);
  resolved.spec.train.eval.generate.prompts = {"a"};  // and then both matter
  resolved.spec.train.eval.generate.tokens = 5;
  resolved.spec.train.eval.generate.temperature = 1;
  Diagnostics prompts;
  make_plan(resolved, {.vocab = 65}, 1, prompts);
  CHECK(prompts.all().size() == 2);
  resolved.spec.train.eval.generate.prompts.clear();
  Diagnostics none;
  make_plan(resolved, {.vocab = 65}, 1, none);
  CHECK(none.all().size() == 4);
  resolved.spec.train.eval.generate = {};
  resolved.spec.data.valid = "v.txt";
  Diagnostics own_valid;
  make_plan(resolved, {.vocab = 65}, 1, own_valid);
  REQUIRE(own_valid.all().size() == 3);
  CHECK(own_valid.all()[2].what.starts_with("data.split has no effect: data.valid is given"));
  ResolvedSpec ids = ruled_spec();
  ids.spec.data.cache = "cache";
  ids.spec.data.tokenizer.type = "hf";
  ids.spec.data.tokenizer.file = "tokenizer.json";
  ids.spec.checkpoint.keep_best.metric = "loss";
  ids.spec.checkpoint.keep_best.mode = "max";
  Diagnostics keys;
  make_plan(ids, {.vocab = 65}, 1, keys);
  CHECK(keys.all().size() == 3);
  ids.spec.data.vocab = 65;  // and then no tokenizer is used
  Diagnostics no_tokenizer;
  make_plan(ids, {.vocab = 65}, 1, no_tokenizer);
  REQUIRE(no_tokenizer.all().size() == 5);
  CHECK(no_tokenizer.all()[1].what.starts_with("data.tokenizer.type has no effect: data.vocab"));
  ids.spec.data.vocab = 0;
  ids.spec.data.sampler = "megatron";
  ids.spec.checkpoint.keep_best.k = 1;
  Diagnostics used;
  make_plan(ids, {.vocab = 65}, 1, used);
  CHECK(used.all().empty());
  // Of what stands between a key and its effect the outermost is named.
  ResolvedSpec mixture = ruled_spec();
  mixture.spec.model.moe.shared_ffn = 32;
  mixture.spec.model.moe.shared_gate = true;
  mixture.spec.model.moe.ffn = 32;
  mixture.spec.model.moe.every = 2;
  mixture.spec.model.moe.dense_layers = {0};
  mixture.spec.model.moe.scale = 2;
  mixture.spec.model.moe.groups = 2;
  mixture.spec.model.moe.group_topk = 2;
  Diagnostics dense;
  make_plan(mixture, {.vocab = 65}, 1, dense);
  REQUIRE(dense.all().size() == 8);
  for (const Diagnostic& said : dense.all()) {
    CHECK(said.what.ends_with(" has no effect: model.moe.experts is 0"));
  }
  ResolvedSpec all = ruled_spec();
  with_experts(all.spec, 6);
  all.spec.model.ffn = 256;
  all.spec.model.moe.ffn = 64;
  Diagnostics width;
  make_plan(all, {.vocab = 65}, 1, width);
  REQUIRE(width.all().size() == 1);
  CHECK(width.all()[0].what.starts_with("model.ffn has no effect: every layer is a mixture"));
  all.spec.model.moe.dense_layers = {0};
  Diagnostics both;
  make_plan(all, {.vocab = 65}, 1, both);
  CHECK(both.all().empty());
}

TEST_CASE("a schedule whose stages would wait for each other's full buffers is refused") {
  ResolvedSpec resolved = ruled_spec();
  TrainSpec& spec = resolved.spec;
  spec.model.layers = 4;
  spec.parallel.pp = 2;
  spec.parallel.virtual_stages = 2;
  spec.parallel.schedule = "gpipe";
  spec.train.micro_batch = 1;
  for (const auto& [batch, fits] : {std::pair{32, true}, {160, false}}) {
    spec.train.global_batch = batch;
    Diagnostics diagnostics;
    make_plan(resolved, {.vocab = 65}, 2, diagnostics);
    CHECK(diagnostics.has_errors() == !fits);
    if (!fits) CHECK(diagnostics.all().front().code == "schedule.buffers");
  }
}
