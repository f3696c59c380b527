// runtime/plan/forecast: what of a step is in FP8, and what that spares.
#include <string>
#include <tuple>
#include <utility>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "runtime/plan/forecast/forecast.h"
#include "runtime/plan/forecast/forecast_compute.h"
#include "runtime/plan/forecast_cases.h"

using namespace mtl;
using namespace mtl::test;

namespace {

std::pair<Workload, LayoutChoice> fp8_layer(bool llama) {
  Workload work;
  work.model = plan_of(llama ? llama_like() : gpt2_like(), 1).model;
  work.seq = 512;
  LayoutChoice layout;
  layout.micro_batch = 64;
  layout.float8.on = true;
  return {work, layout};
}

}  // namespace

TEST_CASE("fp8: passes over operands are those that no op before spares") {
  const Cluster& cluster = *find_cluster("h100-80g");
  for (const bool llama : {false, true}) {
    CAPTURE(llama);
    auto [work, layout] = fp8_layer(llama);
    const double n = 64 * 512, h = static_cast<double>(work.model.hidden);
    const double ffn = static_cast<double>(work.model.ffn);
    // Bytes by which passes of their own for the largest magnitude are more, forward and backward.
    const auto check = [&](double forward, double backward) {
      Software apart = software_mtl();
      apart.float8.found = 0;
      const PassWork ours = layer_work(work, layout, cluster, software_mtl(), {});
      const PassWork theirs = layer_work(work, layout, cluster, apart, {});
      CHECK(theirs.forward.memory_bound - ours.forward.memory_bound ==
            doctest::Approx(stream_time(cluster, 2 * n * forward)));
      CHECK(theirs.backward.memory_bound - ours.backward.memory_bound ==
            doctest::Approx(stream_time(cluster, 2 * n * backward)));
    };
    // x of QKV and up, and of down behind SwiGLU; dy of the projection and down, and of up there.
    check(2 * h + (llama ? ffn : 0), 2 * h + (llama ? 2 * ffn : 0));
    // Side by side both have the same dy, and with tensor parallelism it is no norm's.
    work.model.parallel_residual = true;
    check(2 * h + (llama ? ffn : 0), h + (llama ? 2 * ffn : 0));
    layout.tp = 2;
    check(2 * h + (llama ? ffn / 2 : 0), llama ? ffn : 0);
    work.model.parallel_residual = false;
    layout.tp = 1;
    work.model.dropout_hidden = 0.1;
    check(2 * h + (llama ? ffn : 0), llama ? 2 * ffn : 0);
    layout.tp = 2;
    layout.sequence_parallel = true;
    check(llama ? ffn / 2 : 0, llama ? ffn : 0);
  }
}

TEST_CASE("fp8: what is kept of x is not rounded again") {
  const Cluster& cluster = *find_cluster("h100-80g");
  auto [work, layout] = fp8_layer(true);
  const double n = 64 * 512, h = static_cast<double>(work.model.hidden);
  const double ffn = static_cast<double>(work.model.ffn);
  // Elements of x that are kept: a byte more forward, three less backward.
  const auto check = [&](double kept) {
    Software again = software_mtl();
    again.keeps_float8_x = false;
    const PartsAgain parts = parts_again(layout.recompute, 0);
    const PassWork ours = layer_work(work, layout, cluster, software_mtl(), parts);
    const PassWork theirs = layer_work(work, layout, cluster, again, parts);
    CHECK(ours.forward.memory_bound - theirs.forward.memory_bound ==
          doctest::Approx(stream_time(cluster, n * kept)));
    CHECK(theirs.backward.memory_bound - ours.backward.memory_bound ==
          doctest::Approx(stream_time(cluster, 3 * n * kept)));
  };
  check(2 * h + ffn);
  layout.recompute.norms = true;
  check(ffn);
  layout.recompute = {.mlp_activation = true};
  check(2 * h);
  layout.recompute = {.mlp = true};
  check(h);
  layout.recompute = {};
  layout.tp = 2;
  layout.sequence_parallel = true;
  check(ffn / 2);
}

TEST_CASE("fp8: layers and linears that stay in bf16 are forecast as such") {
  const Cluster& cluster = *find_cluster("h100-80g");
  auto [work, layout] = fp8_layer(true);
  work.global_batch = 64;
  LayoutChoice none = layout;
  none.float8 = {};
  const Forecast fp8 = forecast(work, layout, cluster), bf16 = forecast(work, none, cluster);
  CHECK(fp8.time.matmul < 0.8 * bf16.time.matmul);
  CHECK(fp8.memory.weights > bf16.memory.weights);
  // Half of the 16 layers: half of what FP8 changes.
  layout.float8.first = 5;
  layout.float8.last = 3;
  const Forecast half = forecast(work, layout, cluster);
  const auto middle = [](double a, double b) { return doctest::Approx((a + b) / 2); };
  CHECK(half.time.matmul == middle(fp8.time.matmul, bf16.time.matmul));
  CHECK(half.time.memory_bound == middle(fp8.time.memory_bound, bf16.time.memory_bound));
  CHECK(half.memory.weights == middle(fp8.memory.weights, bf16.memory.weights));
  // By stage: the first has 5 such layers of 8, and the last 3.
  LayoutChoice piped = layout;
  piped.pp = 2;
  const auto stages = stage_times(work, piped, cluster);
  CHECK(stages.front().parts.matmul > 0);
  piped.float8.first = 8;
  piped.float8.last = 0;
  const auto halves = stage_times(work, piped, cluster);
  piped.float8 = {};
  const auto plain = stage_times(work, piped, cluster);
  CHECK(halves[0].parts.matmul == doctest::Approx(plain[0].parts.matmul));
  CHECK(halves[1].parts.matmul < 0.9 * plain[1].parts.matmul);
  // Sequences of no multiple of 16: nothing is in FP8.
  Workload odd = work;
  odd.seq = 520;
  layout.float8 = {.on = true};
  CHECK(forecast(odd, layout, cluster).time.total ==
        doctest::Approx(forecast(odd, none, cluster).time.total));
  CHECK(forecast(odd, layout, cluster).memory.weights ==
        doctest::Approx(forecast(odd, none, cluster).memory.weights));
}

TEST_CASE("fp8: memory with layers and linears in bf16 is that of the arena") {
  for (const bool llama : {false, true}) {
    for (const bool moe : {false, true}) {
      for (const int pp : {1, 2, 4}) {
        for (const int zero : {1, 3}) {
          for (const char* mode : {"none", "selective", "full", "block"}) {
            for (const auto& [seq, ffn, first, last] : {std::tuple{512, 2048, 3, 2},
                                                        {512, 2048, 7, 8},
                                                        {520, 2048, 0, 1},
                                                        {512, 2056, 0, 3}}) {
              if ((zero == 3 && pp > 1) || (moe && !llama)) continue;
              TrainSpec spec = llama ? llama_like() : gpt2_like();
              if (moe) spec.model.moe = mixture_of_4();
              spec.model.ffn = ffn;
              spec.train.seq_len = seq;
              spec.parallel.pp = pp;
              spec.parallel.zero = zero;
              spec.precision.dtype = "fp8";
              spec.precision.fp8.bf16_first_layers = first;
              spec.precision.fp8.bf16_last_layers = last;
              const bool block = std::string(mode) == "block";
              spec.recompute.mode = block ? "full" : mode;
              if (block) {
                spec.recompute.method = "block";
                spec.recompute.layers = 1;
              }
              const Plan plan = plan_of(spec, 2 * pp);
              const double exact = static_cast<double>(plan.peak_bytes());
              CHECK_MESSAGE(
                  forecast_memory(workload_of(plan), layout_of(plan)).total ==
                      doctest::Approx(exact).epsilon(0.02),
                  fmt::format("llama {} moe {} pp {} zero {} {} seq {} ffn {} bf16 {} + {}", llama,
                              moe, pp, zero, mode, seq, ffn, first, last));
            }
          }
        }
      }
    }
  }
}
