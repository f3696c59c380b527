// runtime/plan/forecast: bytes between ranks against those of the plan.
#include <algorithm>
#include <string>
#include <tuple>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "runtime/plan/forecast/forecast.h"
#include "runtime/plan/forecast_cases.h"

using namespace mtl;
using namespace mtl::test;

TEST_CASE("bytes between replicas are those of the plan, copies of shards included") {
  for (const int zero : {0, 1, 2, 3}) {
    for (const int copies : {1, 2, 4}) {
      for (const char* wire : {"fp32", "bf16"}) {
        if (zero == 0 && (copies > 1 || std::string(wire) == "bf16")) continue;
        CAPTURE(zero);
        CAPTURE(copies);
        CAPTURE(wire);
        TrainSpec spec = llama_like();
        spec.precision.dtype = "bf16";
        spec.precision.grad_reduce = wire;
        spec.parallel.tp = 2;
        spec.parallel.zero = zero;
        if (copies > 1) spec.parallel.zero_ranks = 16 / copies;
        const Plan plan = plan_of(spec, 16);
        REQUIRE(plan.grid.sizes().copies == copies);
        double planned = 0;
        for (const Link link : {Link::data, Link::copies}) {
          planned += static_cast<double>(plan.stages.front().traffic[link].on_the_wire(
              link_ranks(link, plan.model, plan.grid.sizes())));
        }
        const double foreseen =
            forecast(workload_of(plan), layout_of(plan), *find_cluster("h100-80g")).links.data;
        // Windows still hold the layers that were read last; buckets are filled up.
        CHECK(foreseen == doctest::Approx(planned).epsilon(zero == 3 ? 0.2 : 0.02));
      }
    }
  }
}

TEST_CASE("bytes inside layers and between stages are those of the plan, stage by stage") {
  const Cluster& cluster = *find_cluster("h100-80g");
  int checked = 0;
  for (const char* mode : {"none", "core", "mlp", "some", "uniform1", "uniform3", "block2",
                           "divided", "side by side", "side by side 1", "side by side 3", "olmo",
                           "olmo 1", "olmo 3", "latent", "latent 1", "latent again"}) {
    for (const char* sp : {"auto", "false"}) {
      for (const auto& [tp, cp, ep, pp, chunks] : {std::tuple{2, 1, 1, 1, 1},
                                                   {4, 1, 1, 2, 1},
                                                   {2, 1, 1, 4, 2},
                                                   {1, 2, 1, 2, 1},
                                                   {2, 2, 1, 1, 1},
                                                   {1, 1, 4, 2, 2},
                                                   {2, 1, 2, 2, 1},
                                                   {1, 2, 2, 1, 1}}) {
        std::string kind = mode;
        const bool parallel = kind.starts_with("side"), olmo = kind.starts_with("olmo"),
                   latent = kind.starts_with("latent");
        if (parallel && ep > 1) continue;
        if (parallel || olmo || latent)
          kind = kind.ends_with("1") ? "uniform1" : kind.ends_with("3") ? "uniform3" : "none";
        if (kind == "divided" && (tp == 1 || std::string(sp) == "auto")) continue;
        TrainSpec spec = llama_like();
        spec.precision.dtype = "bf16";
        spec.train.micro_batch = 1;
        spec.parallel.tp = tp;
        spec.parallel.cp = cp;
        spec.parallel.ep = ep;
        spec.parallel.pp = pp;
        spec.parallel.virtual_stages = chunks;
        if (tp == 2 && pp > 1) spec.parallel.schedule = "zb-h1";
        spec.parallel.sp = sp;
        spec.model.parallel_residual = parallel;
        if (latent) {
          spec.model.kv_heads = 0;
          spec.model.head_dim = 96;
          spec.model.latent = {.kv_rank = 128, .q_rank = 256, .rope_dim = 32, .value_dim = 80};
          if (mode == std::string("latent again")) {
            spec.recompute.mode = "selective";
            spec.recompute.modules = {"latent_up", "core_attn"};
            spec.recompute.module_layers = {{"latent_up", 2}};
          }
        }
        if (olmo) {
          spec.model.norm.place = "output";
          spec.model.qk_norm = spec.model.qk_norm_whole = true;
        }
        if (ep > 1) {
          spec.model.moe = mixture_of_4();
        }
        if (kind == "core" || kind == "mlp" || kind == "some") {
          spec.recompute.mode = "selective";
          spec.recompute.modules = {kind == "core" ? "core_attn" : "mlp"};
          if (kind == "some") {
            spec.recompute.modules = {"core_attn", "mlp"};
            // Of 16 layers, in chunks of two at least.
            spec.recompute.module_layers = {{"core_attn", 2}, {"mlp", 1}};
          }
        } else if (kind != "none") {
          spec.recompute.mode = "full";
          spec.recompute.method = kind == "block2" ? "block" : "uniform";
          spec.recompute.layers = kind == "uniform3" || kind == "divided" ? 3 : 1;
          if (kind == "block2") spec.recompute.layers = 2;
          if (kind == "uniform3" && chunks > 1) spec.recompute.layers = 2;
          if (kind == "divided" && chunks > 1) spec.recompute.layers = 2;
          spec.recompute.distribute = kind == "divided";
        }
        const Plan plan = plan_of(spec, tp * cp * ep * pp * 2);
        const LayoutChoice layout = layout_of(plan);
        const Workload work = workload_of(plan);
        const auto stages = stage_times(work, layout, cluster);
        const auto m = static_cast<double>(plan.largest().shape.micro_batches);
        for (size_t s = 0; s < stages.size(); ++s) {
          INFO(fmt::format("{}, sp {}, tp {} cp {} ep {} pp {} x {}, stage {}", mode, sp, tp, cp,
                           ep, pp, chunks, s));
          const auto planned = [&](Link link) {
            return static_cast<double>(plan.stages[s].traffic[link].on_the_wire(
                link_ranks(link, plan.model, plan.grid.sizes())));
          };
          const auto same = [](double bytes) { return doctest::Approx(bytes).epsilon(0.01); };
          const LinkForecast& links = stages[s].links;
          CHECK(m * links.tensor == same(planned(Link::tensor)));
          CHECK(m * links.context == same(planned(Link::context)));
          CHECK(m * links.expert == same(planned(Link::experts)));
          CHECK(m * links.pipeline ==
                same(pp > 1 ? planned(Link::activations) + planned(Link::gradients) : 0));
          ++checked;
        }
        // What a run says is that of one of its stages.
        const LinkForecast of_run = forecast(work, layout, cluster).links;
        CHECK(std::any_of(stages.begin(), stages.end(), [&](const StageTimes& stage) {
          return m * stage.links.tensor == of_run.tensor &&
                 m * stage.links.pipeline == of_run.pipeline;
        }));
      }
    }
  }
  CHECK(checked > 100);
}
