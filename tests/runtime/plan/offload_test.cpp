// optimizer.offload: what the plan moves to the host, what the forecast says of it, and who needs
// the host's memory for what.
#include <cmath>

#include <doctest/doctest.h>

#include "common/error.h"
#include "runtime/plan/forecast/forecast.h"
#include "runtime/plan/micro_batch.h"
#include "runtime/run.h"
#include "runtime/run_directory.h"
#include "support/specs.h"
#include "support/temp_dir.h"

using namespace mtl;

namespace {

TrainSpec spec_of(int zero, const char* dtype, const char* optimizer) {
  TrainSpec spec =
      test::spec_with({.layers = 4, .hidden = 512, .global_batch = 0, .seq_len = 64, .steps = 10});
  spec.parallel.zero = zero;
  spec.precision.dtype = dtype;
  spec.optimizer.type = optimizer;
  return spec;
}

Plan plan_of(TrainSpec spec, bool offload, int world = 4) {
  ResolvedSpec resolved;
  spec.train.global_batch = 4 * world;
  spec.optimizer.offload = offload ? "cpu" : "none";
  resolved.spec = spec;
  Diagnostics diagnostics;
  Plan plan = make_plan(resolved, {.vocab = 1000}, world, diagnostics);
  diagnostics.throw_if_errors();
  return plan;
}

bool is_state(const std::string& name) {
  return name == "master" || name == "moments" || name == "second_moments";
}

}  // namespace

TEST_CASE("offload moves the optimizer's state to the host, and nothing else") {
  for (const int zero : {0, 1, 2, 3}) {
    for (const char* dtype : {"fp32", "bf16"}) {
      for (const char* optimizer : {"adamw", "sgd"}) {
        CAPTURE(zero);
        CAPTURE(std::string(dtype));
        CAPTURE(std::string(optimizer));
        const TrainSpec spec = spec_of(zero, dtype, optimizer);
        const Plan plan = plan_of(spec, true), before = plan_of(spec, false);
        const MemoryPlan& memory = plan.stages[0].memory;
        const MemoryPlan& whole = before.stages[0].memory;
        const int64_t state = whole.bytes_of_category(MemoryCategory::optimizer);
        CHECK(state > 0);
        CHECK(whole.host_bytes == 0);
        CHECK(memory.host_bytes == state);
        CHECK(memory.total_bytes == whole.total_bytes - state);
        CHECK(memory.bytes_of_category(MemoryCategory::optimizer) == 0);
        REQUIRE(memory.buffers.size() == whole.buffers.size());
        int64_t end = 0;
        for (size_t i = 0; i < memory.buffers.size(); ++i) {
          const BufferPlan& buffer = memory.buffers[i];
          CAPTURE(buffer.name);
          CHECK(buffer.on_host == is_state(buffer.name));
          CHECK(buffer.name == whole.buffers[i].name);
          CHECK(buffer.bytes == whole.buffers[i].bytes);
          if (!buffer.on_host) continue;
          CHECK(buffer.offset >= end);
          CHECK(buffer.offset % 256 == 0);
          end = buffer.offset + buffer.bytes;
        }
        CHECK(end <= memory.host_bytes);
        CHECK(plan.peak_bytes() == before.peak_bytes() - state);
        CHECK(plan.host_bytes() == before.host_bytes() + 4 * state);
        CHECK(bytes_of_rank(plan, true) == bytes_of_rank(before, true));
      }
    }
  }
}

TEST_CASE("the forecast knows what is offloaded and what PCIe costs") {
  const Cluster& h100 = *find_cluster("h100");
  for (const int zero : {0, 1, 3}) {
    CAPTURE(zero);
    const TrainSpec spec = spec_of(zero, "bf16", "adamw");
    const Plan plan = plan_of(spec, true);
    const Workload work = workload_of(plan);
    CHECK(work.offload);
    const MemoryForecast memory = forecast_memory(work, layout_of(plan));
    CHECK(memory.optimizer == 0);
    CHECK(std::abs(memory.total / static_cast<double>(plan.peak_bytes()) - 1) < 0.02);
    const auto host = static_cast<double>(plan.stages[0].memory.host_bytes);
    CHECK(std::abs(memory.on_host / host - 1) < 0.03);

    Workload on_gpu = work;
    on_gpu.offload = false;
    const double slow = forecast(work, layout_of(plan), h100).time.optimizer;
    const double fast = forecast(on_gpu, layout_of(plan), h100).time.optimizer;
    // All of it comes and goes back, at the same time.
    const double pcie = memory.on_host / (h100.gpu.host_rate * h100.host_share);
    CHECK(slow > pcie);
    CHECK(slow < pcie + fast);
  }
  // 63 GB/s each way.
  CHECK(h100.gpu.host_rate == doctest::Approx(63.0e9).epsilon(0.001));
  CHECK(find_cluster("a100")->gpu.host_rate == doctest::Approx(31.5e9).epsilon(0.001));
}

TEST_CASE("ranks on GPUs need the host's memory for what lies there alone") {
  const test::TempDir dir;
  std::string text;
  for (int i = 0; i < 400; ++i) text += "Many hands make light work, said the first rank.\n";
  const std::string corpus = dir.file("corpus.txt", text);
  const auto run_of = [&](const std::string& model, const std::string& rest) {
    RunRequest request;
    request.sources.train_yaml = dir.file(
        "train.yaml", "model: " + model + "\n" + rest +
                          "train: {global_batch: 1, seq_len: 64, steps: 3}\nrun: {dir: " +
                          (dir.path() / "runs").string() + "}\ndata:\n  train: " + corpus + "\n");
    return check_run(request);
  };
  const auto refused = [&](const CheckedRun& run, bool on_host) -> std::string {
    try {
      open_run(run, on_host);
      return "";
    } catch (const Error& error) {
      CHECK(error.exit() == Exit::out_of_memory);
      const Diagnostic& why = error.diagnostics().front();
      CHECK(why.code == "memory.host");
      return why.what + "\n" + why.notes.front() + "\n" + why.help;
    }
  };
  const auto says = [](const std::string& why, const char* words) {
    return why.find(words) != std::string::npos;
  };
  const std::string huge = "{layers: 200, hidden: 32768, heads: 128}";
  const CheckedRun whole = run_of(huge, "checkpoint: {async: false}\n");
  CHECK(says(refused(whole, true), "optimizer"));
  CHECK(refused(whole, false) == "");
  const CheckedRun copied = run_of(huge, "");
  CHECK(says(refused(copied, false), "beside the GPUs"));
  CHECK(says(refused(copied, false), "checkpoint.async=false"));
  const CheckedRun offloaded =
      run_of(huge, "checkpoint: {async: false}\noptimizer: {offload: cpu}\n");
  CHECK(says(refused(offloaded, false), "offloaded state"));
  CHECK(says(refused(offloaded, false), "optimizer.offload=none"));
  const CheckedRun small =
      run_of("{layers: 2, hidden: 64, heads: 4}", "optimizer: {offload: cpu}\n");
  CHECK(refused(small, false) == "");
  CHECK(refused(small, true) == "");
}
