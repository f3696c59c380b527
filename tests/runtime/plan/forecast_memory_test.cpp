// runtime/plan/forecast: memory against the arena that the engine allocates.
#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "runtime/plan/forecast/forecast.h"
#include "runtime/plan/forecast_cases.h"

using namespace mtl;
using namespace mtl::test;

namespace {

// Of the stage that needs most, in the arena.
const MemoryPlan& arena(const Plan& plan) {
  const auto most = std::max_element(plan.stages.begin(), plan.stages.end(),
                                     [](const StagePlan& a, const StagePlan& b) {
                                       return a.memory.total_bytes < b.memory.total_bytes;
                                     });
  return most->memory;
}

void check_agrees(const Plan& plan) {
  const MemoryForecast memory = forecast_memory(workload_of(plan), layout_of(plan));
  const auto planned = [&](MemoryCategory category) {
    return doctest::Approx(static_cast<double>(arena(plan).bytes_of_category(category)));
  };
  CHECK(memory.total == doctest::Approx(static_cast<double>(plan.peak_bytes())).epsilon(0.02));
  CHECK(memory.activations == planned(MemoryCategory::activations).epsilon(0.01));
  CHECK(memory.weights == planned(MemoryCategory::weights).epsilon(0.01));
}

}  // namespace

TEST_CASE("memory is that of the arena within 2 percent in every layout that the engine runs") {
  int checked = 0;
  double worst = 0;
  for (const bool llama : {false, true}) {
    for (const bool moe : {false, true}) {
      for (const int tp : {1, 2, 4}) {
        for (const int pp : {1, 2, 4}) {
          for (const int chunks : {1, 2, 4}) {
            for (const int zero : {0, 1, 2, 3}) {
              for (const char* mode :
                   {"none", "selective", "norms", "mlp", "some", "full", "block"}) {
                for (const auto& [dtype, cp, ep] : {std::tuple{"fp32", 1, 1},
                                                    {"bf16", 1, 1},
                                                    {"fp8", 1, 1},
                                                    {"fp32", 2, 1},
                                                    {"bf16", 2, 1},
                                                    {"fp8", 2, 1},
                                                    {"fp32", 1, 4},
                                                    {"bf16", 1, 2},
                                                    {"fp8", 1, 2}}) {
                  if (chunks > 1 && pp == 1) continue;
                  if (zero > 1 && pp > 1) continue;
                  const bool larger = zero > 1 && tp == 2;  // buckets, of several layers
                  if (moe && (!llama || tp == 4)) continue;
                  if (ep > 1 && (!moe || (pp == 4 && chunks > 1))) continue;
                  TrainSpec spec = llama ? llama_like() : gpt2_like();
                  if (cp > 1 && ((tp == 4 && !llama) || pp == 4 || chunks == 4 || zero % 2 == 0))
                    continue;
                  const int ranks = cp == 1 ? 1 : llama && tp == 2 ? 4 : 2;  // 4: copied KV heads
                  spec.parallel.cp = ranks;
                  if (cp > 1) spec.train.micro_batch = 1;
                  if (moe) spec.model.moe = mixture_of_4();
                  spec.parallel.ep = ep;
                  spec.parallel.tp = tp;
                  spec.parallel.pp = pp;
                  spec.parallel.virtual_stages = chunks;
                  spec.parallel.zero = zero;
                  if (pp > 1 && zero == 0) spec.parallel.schedule = "zb-h1";
                  if (larger) spec.parallel.bucket_mb = 100;
                  spec.precision.dtype = dtype;
                  const std::string kind = mode;
                  spec.recompute.mode = kind == "none"                      ? "none"
                                        : kind == "full" || kind == "block" ? "full"
                                                                            : "selective";
                  if (kind == "norms") spec.recompute.modules = {"norm", "mlp_act"};
                  if (kind == "mlp") spec.recompute.modules = {"mlp"};
                  if (kind == "some") {
                    spec.recompute.modules = {"norm", "mlp_act", "mlp", "core_attn"};
                    const int64_t most = spec.model.layers / (pp * chunks);
                    spec.recompute.module_layers = {{"mlp_act", std::max<int64_t>(1, most / 2)},
                                                    {"mlp", 1},
                                                    {"core_attn", most}};
                  }
                  if (kind == "block") {
                    spec.recompute.method = "block";
                    spec.recompute.layers = 1;
                  }
                  const int of_a_stage = tp * ranks * ep * 2;
                  const int copies = zero > 0 && tp < 4 && cp == 1 && ep == 1 ? 2 : 1;
                  if (copies > 1) spec.parallel.zero_ranks = of_a_stage;
                  for (const int64_t adapters : {0, 16}) {
                    spec.lora.rank = adapters;
                    const Plan plan = plan_of(spec, of_a_stage * pp * copies);
                    const MemoryForecast memory =
                        forecast_memory(workload_of(plan), layout_of(plan));
                    const auto exact = static_cast<double>(plan.peak_bytes());
                    const double error = std::abs(memory.total / exact - 1);
                    worst = std::max(worst, error);
                    CHECK_MESSAGE(error <= 0.02,
                                  fmt::format("llama {} moe {} tp {} cp {} ep {} pp {} v {} zero "
                                              "{} {} {} lora {}: {:.0f} "
                                              "for {:.0f}",
                                              llama, moe, tp, ranks, ep, pp, chunks, zero, mode,
                                              dtype, adapters, memory.total, exact));
                    const MemoryPlan& planned = arena(plan);
                    const auto near = [&](double value, MemoryCategory category) {
                      const auto is = static_cast<double>(planned.bytes_of_category(category));
                      return std::abs(value - is) <= 0.03 * is + 0.005 * exact;
                    };
                    CHECK(near(memory.weights, MemoryCategory::weights));
                    CHECK(near(memory.gradients, MemoryCategory::gradients));
                    CHECK(near(memory.optimizer, MemoryCategory::optimizer));
                    CHECK(near(memory.activations, MemoryCategory::activations));
                    ++checked;
                  }
                }
              }
            }
          }
        }
      }
    }
  }
  MESSAGE(checked << " layouts, worst " << 100 * worst << " %");
  CHECK(checked > 500);
}

TEST_CASE("whatever function a gate has, and scaled embeddings, take the same memory") {
  TrainSpec spec = llama_like();
  const Plan swiglu = plan_of(spec, 2);
  spec.model.activation = "geglu";
  spec.model.embedding_scale = 8;
  const Plan geglu = plan_of(spec, 2);
  CHECK(geglu.peak_bytes() == swiglu.peak_bytes());
  CHECK(geglu.cost.parameters == swiglu.cost.parameters);
  CHECK(geglu.cost.flops_per_token == swiglu.cost.flops_per_token);
  CHECK(forecast_memory(workload_of(geglu), layout_of(geglu)).total ==
        forecast_memory(workload_of(swiglu), layout_of(swiglu)).total);
}

TEST_CASE(
    "memory of norms behind blocks, and of all heads, is that of the arena within 2 percent") {
  for (const bool experts : {false, true}) {
    for (const char* place : {"output", "both"}) {
      for (const auto& [tp, pp, cp] : {std::tuple{1, 1, 1}, {4, 1, 1}, {2, 2, 1}, {1, 1, 4}}) {
        for (const char* dtype : {"fp32", "bf16", "fp8"}) {
          for (const char* mode : {"none", "selective", "full"}) {
            TrainSpec spec = llama_like();
            spec.model.layers = 8;
            spec.model.kv_heads = 2;  // which four ranks have copies of
            spec.model.norm.place = place;
            spec.model.qk_norm = spec.model.qk_norm_whole = true;
            if (experts) spec.model.moe = mixture_of_4();
            spec.parallel.tp = tp;
            spec.parallel.pp = pp;
            spec.parallel.cp = cp;
            spec.train.micro_batch = 2;
            spec.precision.dtype = dtype;
            spec.recompute.mode = mode;
            if (mode == std::string("selective")) spec.recompute.modules = {"norm", "mlp_act"};
            const Plan plan = plan_of(spec, tp * pp * cp * 2);
            INFO(fmt::format("{} experts {} tp {} pp {} cp {} {} {}", place, experts, tp, pp, cp,
                             dtype, mode));
            check_agrees(plan);
          }
        }
      }
    }
  }
}

TEST_CASE("memory of latent attention is that of the arena within 2 percent") {
  for (const bool experts : {false, true}) {
    for (const int64_t q_rank : {0, 384}) {
      for (const auto& [tp, pp, cp] : {std::tuple{1, 1, 1}, {4, 1, 1}, {2, 4, 1}, {1, 1, 4}}) {
        for (const char* dtype : {"fp32", "bf16", "fp8"}) {
          for (const char* mode : {"none", "selective", "latents", "full", "zb-h1"}) {
            TrainSpec spec = llama_like();
            spec.model.layers = 8;
            spec.model.kv_heads = 0;
            spec.model.head_dim = 96;
            spec.model.latent = {.kv_rank = 256, .q_rank = q_rank, .rope_dim = 32};
            if (experts) spec.model.moe = mixture_of_4();
            spec.parallel.tp = tp;
            spec.parallel.pp = pp;
            spec.parallel.cp = cp;
            spec.train.micro_batch = 2;
            spec.precision.dtype = dtype;
            if (mode == std::string("zb-h1")) {
              if (pp == 1) continue;
              spec.parallel.schedule = mode;
            } else if (mode == std::string("latents")) {
              spec.recompute.mode = "selective";
              spec.recompute.modules = {"latent_up", "core_attn"};
            } else {
              spec.recompute.mode = mode;
              if (mode == std::string("selective")) spec.recompute.modules = {"norm", "mlp_act"};
            }
            const Plan plan = plan_of(spec, tp * pp * cp * 2);
            INFO(fmt::format("q_rank {} experts {} tp {} pp {} cp {} {} {}", q_rank, experts, tp,
                             pp, cp, dtype, mode));
            check_agrees(plan);
          }
        }
      }
    }
  }
}

TEST_CASE("memory of blocks side by side is that of the arena within 2 percent") {
  for (const int tp : {1, 2}) {
    for (const int pp : {1, 2}) {
      for (const int cp : {1, 2}) {
        for (const char* dtype : {"fp32", "bf16", "fp8"}) {
          for (const char* mode : {"none", "selective", "full"}) {
            TrainSpec spec = gpt2_like();
            spec.model.activation = "gelu_exact";
            spec.model.position.type = "rope";
            spec.model.parallel_residual = true;
            spec.parallel.tp = tp;
            spec.parallel.pp = pp;
            spec.parallel.cp = cp;
            if (cp > 1) spec.train.micro_batch = 1;
            spec.precision.dtype = dtype;
            spec.recompute.mode = mode;
            const Plan plan = plan_of(spec, tp * pp * cp * 2);
            INFO(fmt::format("tp {} pp {} cp {} {} {}", tp, pp, cp, dtype, mode));
            check_agrees(plan);
          }
        }
      }
    }
  }
}

TEST_CASE("memory of virtual stages is that of their schedule: GPipe's, or in larger groups") {
  TrainSpec spec = llama_like();
  spec.parallel.pp = 2;
  spec.parallel.virtual_stages = 2;
  spec.train.micro_batch = 1;
  const auto error = [&] {
    const Plan plan = plan_of(spec, 2);
    return forecast_memory(workload_of(plan), layout_of(plan)).total /
               static_cast<double>(plan.peak_bytes()) -
           1;
  };
  CHECK(std::abs(error()) <= 0.02);
  spec.parallel.virtual_group = 8;
  CHECK(std::abs(error()) <= 0.02);
  spec.parallel.virtual_group = 0;
  spec.parallel.schedule = "gpipe";
  CHECK(std::abs(error()) <= 0.02);
  // No groups: any number of micro-batches.
  spec.train.global_batch = 33;
  const Plan plan = plan_of(spec, 2);
  CHECK(impossible(workload_of(plan), layout_of(plan)).empty());
}

TEST_CASE("small mixtures too: what lies free between tensors and at the ends of buckets counts") {
  double worst = 0;
  for (const int64_t ffn : {96, 344}) {
    for (const auto& [zero, ep, dp, pp] : {std::tuple{0, 1, 1, 1},
                                           {1, 1, 2, 2},
                                           {1, 4, 2, 2},
                                           {2, 1, 2, 1},
                                           {3, 1, 4, 1},
                                           {1, 2, 4, 1}}) {
      for (const auto& [norm, dense] :
           {std::pair{"rmsnorm", std::vector<int64_t>{}}, {"layernorm", {}}, {"rmsnorm", {0}}}) {
        TrainSpec spec = llama_like();
        spec.model.layers = 4;
        spec.model.hidden = 128;
        spec.model.heads = 4;
        spec.model.kv_heads = 2;
        spec.model.ffn = 8 * ffn;
        spec.model.norm.type = norm;
        spec.model.moe = mixture_of_4();
        spec.model.moe.experts = 8;
        spec.model.moe.ffn = ffn;
        spec.model.moe.dense_layers = dense;
        spec.model.moe.shared_ffn = 100;
        spec.train.micro_batch = 1;
        spec.train.seq_len = 128;
        spec.precision.dtype = "bf16";
        spec.parallel.zero = zero;
        spec.parallel.ep = ep;
        spec.parallel.pp = pp;
        if (zero == 3) spec.parallel.bucket_mb = 4;  // of four layers one window has three
        const Plan plan = plan_of(spec, ep * dp * pp, 1000);
        const MemoryForecast memory = forecast_memory(workload_of(plan), layout_of(plan));
        const auto exact = static_cast<double>(plan.peak_bytes());
        const double error = std::abs(memory.total / exact - 1);
        worst = std::max(worst, error);
        CHECK_MESSAGE(error <= 0.02,
                      fmt::format("ffn {} zero {} ep {} dp {} pp {} {} dense {}: {:.0f} for {:.0f}",
                                  ffn, zero, ep, dp, pp, norm, dense.size(), memory.total, exact));
      }
    }
  }
  MESSAGE("worst " << 100 * worst << " %");
}

TEST_CASE("of dense layers and mixtures as many are in a window as fit, which is not the same") {
  for (const int zero : {2, 3}) {
    for (const std::vector<int64_t>& dense :
         {std::vector<int64_t>{0, 1, 2}, {1, 3, 5}, {5, 6, 7}}) {
      TrainSpec spec = llama_like();
      spec.model.layers = 8;
      spec.model.moe = mixture_of_4();
      spec.model.moe.experts = 8;
      spec.model.moe.dense_layers = dense;
      spec.train.micro_batch = 1;
      spec.train.seq_len = 128;
      spec.precision.dtype = "bf16";
      spec.parallel.zero = zero;
      spec.parallel.bucket_mb = 100;
      const Plan plan = plan_of(spec, 4, 1000);
      const MemoryForecast memory = forecast_memory(workload_of(plan), layout_of(plan));
      const auto exact = static_cast<double>(plan.peak_bytes());
      CHECK_MESSAGE(std::abs(memory.total / exact - 1) <= 0.01,
                    fmt::format("zero {} dense from {} on: {:.0f} for {:.0f}", zero, dense.front(),
                                memory.total, exact));
    }
  }
}
