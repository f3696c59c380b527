// The engine on a device whose memory the host cannot touch: the same bits as on the CPU, from the
// first weights to a resumed run, an evaluation, a diverged step and generated text.
#include <cmath>
#include <limits>

#include <doctest/doctest.h>

#include "runtime/checkpoint/elements.h"
#include "runtime/engine/calibrate.h"
#include "runtime/engine/checkpointing.h"
#include "runtime/engine/solo_model.h"
#include "support/guarded_device.h"
#include "support/layouts.h"
#include "support/save_checkpoint.h"
#include "support/specs.h"
#include "support/temp_dir.h"

using namespace mtl;
using namespace mtl::test;

namespace device_memory_test {

namespace {

constexpr int64_t kVocab = 65;

TrainSpec gpt2_spec(const std::string& dtype) {
  TrainSpec spec = spec_with({.global_batch = 4});
  spec.precision.dtype = dtype;
  spec.precision.loss_scale.window = 4;
  spec.model.dropout = {0.1, 0.1};
  return spec;
}

TrainSpec llama_spec(const std::string& dtype) {
  TrainSpec spec = gpt2_spec(dtype);
  spec.model.dropout = {};
  spec.model.kv_heads = 2;
  spec.model.ffn = 80;
  use_llama_blocks(spec);
  spec.model.qk_norm = true;
  spec.model.tie_embeddings = false;
  spec.optimizer.type = "sgd";
  return spec;
}

TrainSpec neox_spec(const std::string& dtype) {
  TrainSpec spec = gpt2_spec(dtype);
  spec.model.activation = "gelu_exact";
  spec.model.position.type = "rope";
  spec.model.parallel_residual = true;
  return spec;
}

TrainSpec command_spec(const std::string& dtype) {
  TrainSpec spec = llama_spec(dtype);
  spec.model.parallel_residual = spec.model.norm.shared = true;
  spec.model.residual_scale = 0.6;
  spec.model.logit_scale = 0.5;
  spec.model.head_bias = true;
  return spec;
}

TrainSpec olmo_spec(const std::string& dtype) {
  TrainSpec spec = llama_spec(dtype);
  spec.model.norm.place = "output";
  spec.model.qk_norm_whole = true;
  spec.model.dropout = {0.1, 0.1};
  // At first blocks make little, and their norms divide gradients by it: in fp16 beyond its range,
  // with the usual scale, for more steps than there are here.
  spec.precision.loss_scale.initial = 64;
  return spec;
}

TrainSpec latent_spec(const std::string& dtype) {
  TrainSpec spec = llama_spec(dtype);
  spec.model.kv_heads = 0;
  spec.model.qk_norm = false;
  spec.model.head_dim = 24;
  spec.model.latent = {.kv_rank = 16, .q_rank = 24, .rope_dim = 8};
  return spec;
}

TrainSpec mixtral_spec(const std::string& dtype) {
  TrainSpec spec = llama_spec(dtype);
  spec.model.moe = {.experts = 4,
                    .topk = 2,
                    .aux_loss = 0.01,
                    .z_loss = 0.001,
                    .score = "sigmoid",
                    .shared_ffn = 48,
                    .shared_gate = true,
                    .expert_bias = true};
  return spec;
}

// All that a short run gives away.
struct Story {
  std::vector<double> losses, norms;
  double valid = 0;
  GlobalTensors master;
  std::map<std::string, GlobalTensors> moments;
  std::string diverged;
  bool operator==(const Story&) const = default;
};

// Three steps, a checkpoint, another trainer that loads it, two more steps, an evaluation; then a
// weight that is no number.
Story story_of(const TrainSpec& spec, const std::filesystem::path& dir,
               const MakeDevice& make_device) {
  const auto source = markov_tokens(5'000, kVocab);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, 1);
  Story story;
  const auto steps = [&](RankContext& rank, int64_t first, int64_t end) {
    for (int64_t step = first; step < end; ++step) {
      const StepResult result = rank.trainer.step(step, *source, sampler, {});
      story.losses.push_back(result.loss);
      story.norms.push_back(result.grad_norm);
    }
  };
  const auto run = [&](const std::function<void(RankContext&)>& body) {
    run_layout(spec, kVocab, {}, body, 0, {}, make_device);
  };
  run([&](RankContext& rank) {
    rank.trainer.initialise();
    steps(rank, 0, 3);
    save_checkpoint({dir}, {{"step", 3}}, 0, rank.trainer, rank.plan, rank.world);
  });
  run([&](RankContext& rank) {
    load_checkpoint(dir, rank.trainer);
    steps(rank, 3, 5);
    story.valid = rank.trainer.evaluate(*source, 6);
    collect(rank.trainer, Which::master, story.master);
    collect_moments(rank.trainer, story.moments);
  });
  try {
    run([&](RankContext& rank) {
      rank.trainer.initialise();
      set_masters(rank.trainer, [](const ParamRow& row, int64_t) {
        return row.layer == 1 ? std::numeric_limits<float>::quiet_NaN() : 0.01f;
      });
      rank.trainer.step(0, *source, sampler, {});
    });
  } catch (const Error& error) {
    story.diverged = error.what();
  }
  return story;
}

// What a device has counted in one step of one rank.
int64_t in_a_step(const TrainSpec& spec, int64_t (GuardedDevice::*counted)() const) {
  int64_t count = 0;
  const GuardedDevice* device = nullptr;
  const auto source = markov_tokens(5'000, kVocab);
  const Sampler sampler(source->size(), spec.train.seq_len, SampleOrder::random, 1);
  run_layout(
      spec, kVocab, {},
      [&](RankContext& rank) {
        rank.trainer.initialise();
        rank.trainer.step(0, *source, sampler, {});
        count = (device->*counted)();
      },
      0, {},
      [&](int) {
        auto made = std::make_unique<GuardedDevice>();
        device = made.get();
        return made;
      });
  return count;
}

}  // namespace

TEST_CASE("a device that the host cannot look into trains, saves, resumes and evaluates") {
  const TempDir folder;
  int number = 0;
  for (const char* dtype : {"fp32", "bf16", "fp16", "fp8"}) {
    for (const TrainSpec& spec :
         {gpt2_spec(dtype), llama_spec(dtype), neox_spec(dtype), command_spec(dtype),
          olmo_spec(dtype), latent_spec(dtype), mixtral_spec(dtype)}) {
      CAPTURE(dtype);
      CAPTURE(spec.model.activation);
      const auto dir = [&] { return folder.path() / std::to_string(++number) / "step-00000003"; };
      const Story cpu = story_of(spec, dir(), [](int) { return make_cpu_device(1); });
      const Story guarded =
          story_of(spec, dir(), [](int) { return std::make_unique<GuardedDevice>(); });
      CHECK(cpu.losses == guarded.losses);
      CHECK(cpu.norms == guarded.norms);
      CHECK(cpu.valid == guarded.valid);
      CHECK(cpu.master == guarded.master);
      CHECK(cpu.moments == guarded.moments);
      CHECK(cpu.diverged == guarded.diverged);
      CHECK(cpu.losses.size() == 5);
      CHECK(guarded.diverged.find("loss.nan") != std::string::npos);
    }
  }
}

TEST_CASE("a norm never lies over what its residual addition reads") {
  const auto additions = [](const TrainSpec& spec) {
    return in_a_step(spec, &GuardedDevice::additions);
  };
  for (TrainSpec spec : {gpt2_spec("bf16"), mixtral_spec("bf16"), neox_spec("bf16")}) {
    // Two micro-batches; all norms but the first follow an addition, and side by side the second of
    // a layer does not.
    spec.model.layers = 5;
    const int64_t second = spec.model.parallel_residual ? 0 : 5;
    CHECK(additions(spec) == 2 * (5 + second));
    spec.recompute.mode = "selective";
    for (const char* module : {"core_attn", "mlp_act", "norm", "mlp"}) {
      spec.recompute.modules = {module};
      if (module == std::string("mlp_act")) spec.recompute.modules.push_back("norm");
      CHECK(additions(spec) == 2 * (5 + second));
    }
    spec.recompute = {.mode = "full"};
    for (const int layers : {1, 2, 3}) {
      CAPTURE(layers);
      spec.recompute.layers = layers;
      // In backward a layer's second norm again, and the first of those that begin no group.
      const int64_t groups = (5 + layers - 1) / layers;
      CHECK(additions(spec) == 2 * (5 + 2 * second + 5 - groups));
    }
  }
}

TEST_CASE("an activation made again is made by the op that takes its derivative") {
  const auto check = [](const TrainSpec& spec, int64_t forward, int64_t again) {
    CAPTURE(spec.model.activation);
    CHECK(in_a_step(spec, &GuardedDevice::activations) == forward);
    CHECK(in_a_step(spec, &GuardedDevice::activations_again) == again);
  };
  // Two micro-batches of five layers.
  for (TrainSpec spec : {llama_spec("bf16"), neox_spec("bf16"), mixtral_spec("bf16")}) {
    for (const bool gate : {false, true}) {
      const bool mixture = spec.model.moe.experts > 0;
      if (gate && !mixture) continue;
      CAPTURE(gate);
      spec.model.layers = 5;
      spec.model.moe.shared_gate = gate;
      const int64_t blocks = mixture ? 2 : 1, before = gate ? 1 : 0;
      spec.recompute = {.mode = "selective", .modules = {"norm"}};
      check(spec, 10 * blocks, 0);
      for (const std::string module : {"mlp_act", "mlp"}) {
        CAPTURE(module);
        spec.recompute.modules = {module};
        check(spec, 10 * (blocks + before), 10 * (blocks - before));
      }
      // The layers that end no group are forwarded again whole.
      spec.recompute = {.mode = "full"};
      for (const int layers : {1, 2, 3}) {
        CAPTURE(layers);
        spec.recompute.layers = layers;
        const int64_t groups = (5 + layers - 1) / layers;
        check(spec, 2 * ((5 + 5 - groups) * blocks + groups * before),
              2 * groups * (blocks - before));
      }
    }
  }
}

TEST_CASE("a device that the host cannot look into continues a text") {
  const TempDir folder;
  const auto dir = folder.path() / "step-00000001";
  TrainSpec spec = llama_spec("fp32");
  ModelShape shape;
  run_layout(spec, kVocab, {}, [&](RankContext& rank) {
    rank.trainer.initialise();
    save_checkpoint({dir}, {{"step", 1}}, 0, rank.trainer, rank.plan, rank.world);
    shape = rank.plan.model;
  });
  const std::vector<int32_t> ids = {3, 1, 4, 1, 5, 9, 2, 6};
  const auto logits = [&](Device& device) {
    SoloModel model(shape, device, static_cast<int64_t>(ids.size()));
    CheckpointReader reader(dir);
    model.load(reader);
    std::vector<float> all = model.next_logits(std::span(ids).first(5), 0);
    const std::vector<float> last = model.next_logits(ids, 5);
    all.insert(all.end(), last.begin(), last.end());
    return all;
  };
  const auto cpu = make_cpu_device(1);
  GuardedDevice guarded;
  CHECK(logits(*cpu) == logits(guarded));
  CHECK(guarded.ops() > 0);
  CHECK(measured_matmul_rate(guarded, DType::f32, 0.001) > 0);
}

TEST_CASE("elements elsewhere are copied in pieces of bounded size") {
  std::vector<int32_t> memory(1000);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<int32_t>(i);
  int64_t largest = 0, copies = 0;
  CheckpointTensor tensor;
  tensor.dtype = DType::i32;
  tensor.count = 1000;
  tensor.fetch = [&](int64_t at, int64_t n, void* to) {
    REQUIRE(at >= 0);
    REQUIRE(at + n <= 1000);
    largest = std::max(largest, n);
    ++copies;
    std::copy_n(memory.begin() + at, n, static_cast<int32_t*>(to));
  };
  tensor.store = [&](int64_t at, int64_t n, const void* from) {
    REQUIRE(at >= 0);
    REQUIRE(at + n <= 1000);
    largest = std::max(largest, n);
    ++copies;
    std::copy_n(static_cast<const int32_t*>(from), n, memory.begin() + at);
  };
  const auto read = [](ElementReader& reader, int64_t at, int64_t count) {
    std::vector<int32_t> values;
    reader.read(at, count, [&](std::string_view bytes) {
      const size_t before = values.size();
      values.resize(before + bytes.size() / 4);
      std::memcpy(values.data() + before, bytes.data(), bytes.size());
    });
    return values;
  };
  const auto part = [&](int64_t at, int64_t count) {
    return std::vector<int32_t>(memory.begin() + at, memory.begin() + at + count);
  };
  ElementReader reader(tensor, 64 * 4 + 3);
  CHECK(read(reader, 0, 1000) == part(0, 1000));
  CHECK(largest == 64);
  CHECK(copies == 16);
  copies = 0;
  CHECK(read(reader, 900, 10) == part(900, 10));  // fetched with what follows
  CHECK(read(reader, 930, 34) == part(930, 34));
  CHECK(copies == 1);
  CHECK(read(reader, 990, 10) == part(990, 10));
  CHECK(read(reader, 5, 0).empty());

  // Runs with gaps, the one longer than a piece; what is between them stays.
  std::vector<int32_t> expected = memory, from(300);
  for (size_t i = 0; i < from.size(); ++i) from[i] = -1 - static_cast<int32_t>(i);
  largest = copies = 0;
  ElementWriter writer(tensor, 64 * 4 + 3);
  const auto write = [&](int64_t at, size_t count) {
    writer.write(at, {reinterpret_cast<const char*>(from.data()), count * 4});
    std::copy_n(from.begin(), count, expected.begin() + at);
  };
  write(10, 20);
  write(30, 20);  // goes on
  write(60, 10);
  write(100, 300);
  write(2, 3);
  writer.flush();
  writer.flush();
  CHECK(memory == expected);
  CHECK(largest == 64);
  CHECK(copies == 1 + 1 + 5 + 1);
}

}  // namespace device_memory_test
