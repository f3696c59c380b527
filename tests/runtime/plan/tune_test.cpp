// runtime/plan/tune: the advice, against the layouts that Megatron-LM's guide recommends.
#include "runtime/plan/forecast/tune.h"

#include <algorithm>
#include <string>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "runtime/plan/forecast/least_recompute.h"
#include "support/published_runs.h"

using namespace mtl;
using namespace mtl::test;

TEST_CASE("the advice is as fast as the guide's layouts or faster and says why") {
  for (const GuideRow& row : guide_rows()) {
    INFO(row.name);
    const Cluster& cluster = *find_cluster("h100-80g");
    REQUIRE(impossible(row.work, row.layout) == "");
    const Tuning tuning = tune(row.work, row.layout.world(), cluster, {});
    REQUIRE(!tuning.best.empty());
    const Forecast theirs = forecast(row.work, row.layout, cluster, software_mtl(), true);
    const Forecast& ours = tuning.best.front().forecast;
    CHECK(ours.fits);
    CHECK(ours.layout.world() == row.layout.world());
    // A guide's layout that does not fit is no rival.
    if (theirs.fits) CHECK(ours.time.total <= 1.001 * theirs.time.total);
    const std::string why = verdict(theirs, ours, cluster);
    CHECK(why != "");
    MESSAGE(fmt::format("{}: theirs {} -> {:.1f} %, {:.0f} GB; ours {} -> {:.1f} %; {}", row.name,
                        layout_words(theirs.layout), 100 * theirs.mfu, theirs.memory.total / 1e9,
                        layout_words(ours.layout), 100 * ours.mfu, why));
    for (const Advice& advice : tuning.best) {
      CHECK(advice.why != "");
      CHECK(advice.forecast.fits);
      CHECK(impossible(row.work, advice.forecast.layout) == "");
      CHECK(advice.forecast.time.total >= ours.time.total);
    }
  }
}

TEST_CASE("advice that only this engine's layouts may be") {
  for (const GuideRow& row : guide_rows()) {
    const Tuning tuning =
        tune(row.work, row.layout.world(), *find_cluster("h100-80g"), {.only_run_here = true});
    for (const Advice& advice : tuning.best) CHECK(advice.forecast.not_run.empty());
  }
  // What no layout can mend leaves none.
  LayoutChoice fp8;
  fp8.float8.on = true;
  const Tuning none = tune(guide_rows().front().work, 8, *find_cluster("a100-80g"),
                           {.only_run_here = true, .like = fp8});
  CHECK(none.considered == 0);
  CHECK(none.best.empty());
  CHECK(none.left_out.count("FP8 on a GPU that multiplies none") == 1);
}

TEST_CASE("a model that fits nowhere is said to need so much") {
  GuideRow row = guide_rows().front();
  for (const GuideRow& one : guide_rows()) {
    if (one.work.model.layers == 126) row = one;
  }
  const Tuning tuning = tune(row.work, 8, *find_cluster("h100-80g"), {});
  CHECK(tuning.best.empty());
  REQUIRE(tuning.if_it_fitted.has_value());
  CHECK(tuning.if_it_fitted->why.starts_with("needs "));
}

TEST_CASE("what does not divide is not said to be too large") {
  const Workload work = guide_rows().front().work;
  const Tuning tuning = tune(work, 61, *find_cluster("h100-80g"), {});
  CHECK(tuning.considered == 0);
  CHECK(tuning.too_large == 0);
  CHECK(tuning.best.empty());
  CHECK(tuning.indivisible.find("over 61 replicas") != std::string::npos);
}

TEST_CASE("ranks on CPUs have the memory of their machine") {
  const Workload work = guide_rows().front().work;
  const Cluster any = cpu_cluster(1e12, 1e11, 8), small = cpu_cluster(1e12, 1e11, 8, 2e9);
  LayoutChoice layout;
  layout.dp = 8;
  CHECK(forecast(work, layout, any).fits);
  const Forecast tight = forecast(work, layout, small);
  CHECK_FALSE(tight.fits);
  CHECK(verdict(tight, tight, small).ends_with(" GB of 2"));
  CHECK_FALSE(tune(work, 8, any, {}).best.empty());
  const Tuning tuning = tune(work, 8, small, {});
  CHECK(tuning.best.empty());
  REQUIRE(tuning.if_it_fitted);
  CHECK(tuning.if_it_fitted->why.starts_with("needs "));
  // What is offloaded lies there, too.
  Workload on_host = work;
  on_host.offload = true;
  const MemoryForecast memory = forecast_memory(on_host, layout);
  CHECK(memory.on_host > 0);
  CHECK(needed_memory(memory, small) == memory.total + memory.on_host);
  CHECK(needed_memory(memory, *find_cluster("h200")) == memory.total);
}

// By hand from the sizes in forecast_nccl.cpp: per channel 12 MiB of a ring and 2 per rank where a
// switch adds up; over the network 40.
TEST_CASE("what NCCL keeps is counted by the groups of a layout") {
  const Cluster& cluster = *find_cluster("h100-80g");
  const auto of = [](int tp, int pp, int ep, int dp) {
    LayoutChoice layout;
    layout.tp = tp;
    layout.pp = pp;
    layout.ep = ep;
    layout.dp = dp;
    return layout;
  };
  const auto mib = [&](const LayoutChoice& layout, bool tied = false) {
    ModelShape model;
    model.tie_embeddings = tied;
    return nccl_memory(model, layout, cluster) / (1 << 20);
  };
  CHECK(mib(of(1, 1, 1, 1)) == 0);
  CHECK(mib(of(1, 1, 1, 2)) == 16 * 12 + 2 * 12);
  // Gradients, and as numbers the loss and everybody; the norm is each rank's own.
  CHECK(mib(of(1, 1, 1, 8)) == 16 * 28 + 2 * 28);
  CHECK(mib(of(8, 1, 1, 1)) == 16 * 28 + 2 * 28);
  CHECK(mib(of(1, 1, 1, 16)) == 16 * 40 + 2 * 40);
  // Two links to one neighbour; three groups of numbers.
  CHECK(mib(of(1, 2, 1, 1)) == 2 * 8 * 12 + 3 * 12);
  CHECK(mib(of(1, 2, 1, 1), true) == 2 * 8 * 12 + 3 * 12 + 16 * 12);
  CHECK(mib(of(1, 4, 1, 1)) == 4 * 8 * 12 + 3 * 20);
  // Experts: what they exchange; the dense parameters' ranks, and those of the same experts.
  CHECK(mib(of(1, 1, 4, 2)) == 32 * 12 + 16 * 28 + 16 * 12 + 28 + 20 + 28);
  CHECK(nccl_memory({}, of(1, 1, 1, 8), cpu_cluster(1e12, 1e11, 8, 2e9)) == 0);
  const Workload work = guide_rows().front().work;
  const Forecast one = forecast(work, of(1, 1, 1, 8), cluster);
  CHECK(one.memory.nccl == nccl_memory(work.model, of(1, 1, 1, 8), cluster));
  CHECK(needed_memory(one.memory, cluster) == one.memory.total + one.memory.nccl);
}

TEST_CASE("TP over nodes is told apart") {
  const GuideRow row = guide_rows()[1];
  const Cluster& cluster = *find_cluster("h100-80g");
  LayoutChoice wide = row.layout;
  wide.tp = 16;
  wide.cp = wide.pp = 1;
  wide.dp = 4;
  wide.chunks = 1;
  wide.sequence_parallel = true;
  wide.recompute.full = Recompute::Full::uniform;
  wide.layers_of_virtual.clear();
  REQUIRE(impossible(row.work, wide) == "");
  const Forecast best = tune(row.work, 64, cluster, {}).best.front().forecast;
  CHECK(verdict(forecast(row.work, wide, cluster), best, cluster).find("spans nodes") !=
        std::string::npos);
}

TEST_CASE("what advice sets is a layout with the same forecast") {
  const GuideRow row = guide_rows().front();
  const Tuning tuning = tune(row.work, 8, *find_cluster("h100-80g"), {.only_run_here = true});
  REQUIRE(!tuning.best.empty());
  const auto settings = settings_of(row.work, tuning.best.front().forecast.layout);
  CHECK(settings.front().first == "parallel.tp");
  CHECK(settings.front().second == std::to_string(tuning.best.front().forecast.layout.tp));
}

// GPT-2 1.5B and a Llama of 16 layers on GPUs of every size between what they need with everything
// made again and with nothing: no other choice that fits is faster by more than the step from one
// layer to the next.
TEST_CASE("what is made again is what makes a layout fit and costs least") {
  const GuideRow row = guide_rows().front();
  for (const bool swiglu : {false, true}) {
    for (const auto& [pp, chunks] : {std::pair{1, 1}, {2, 1}, {2, 2}}) {
      Workload work = row.work;
      work.model.layers = 16;
      work.model.activation = swiglu ? Activation::swiglu : Activation::gelu_tanh;
      work.seq = 1024;
      work.global_batch = 64;
      LayoutChoice layout;
      layout.pp = pp;
      layout.chunks = chunks;
      layout.micro_batch = 8;
      REQUIRE(impossible(work, layout) == "");
      Cluster cluster = *find_cluster("h200");
      const auto needed = [&](const Recompute& recompute) {
        LayoutChoice with = layout;
        with.recompute = recompute;
        return needed_memory(forecast(work, with, cluster).memory, cluster);
      };
      const auto seconds = [&](const Recompute& recompute) {
        LayoutChoice with = layout;
        with.recompute = recompute;
        return forecast(work, with, cluster).time.total;
      };
      const double most = needed({}), least = needed(everything_again());
      const double first = seconds({}), last = seconds(everything_again());
      const int64_t layers = 16 / (pp * chunks);
      double before = 0;
      for (int part = 0; part <= 12; ++part) {
        const double room = most - (most - least) * part / 12;
        cluster.gpu.memory_bytes = (room + 1e9 + 1) / 0.98;
        const std::string of =
            fmt::format("swiglu {} pp {} x {}, part {}", swiglu, layout.pp, layout.chunks, part);
        CAPTURE(of);
        const auto found = least_recompute(work, layout, cluster);
        REQUIRE(found);
        CAPTURE(modules_of(*found));
        CHECK(needed(*found) <= usable_memory(cluster));
        const double time = seconds(*found);
        CHECK(time >= before);
        before = time;
        if (part == 0) CHECK(time == first);
        if (part == 12) CHECK(found->full == Recompute::Full::uniform);
        // Every other choice: norms, activations and MLPs of any numbers of layers, or whole ones.
        std::vector<Recompute> others;
        for (int64_t a = 0; a <= layers; ++a) {
          for (int64_t b = 0; b <= layers; ++b) {
            for (int64_t c = 0; c <= layers; c += std::max<int64_t>(1, layers / 4)) {
              others.push_back({.mlp_activation = a, .norms = b, .mlp = c});
            }
          }
          Recompute block = everything_again();
          block.full = Recompute::Full::block;
          block.layers = a;
          if (a > 0) others.push_back(block);
        }
        const double step = (last - first) / static_cast<double>(layers) / 2;
        for (const Recompute& other : others) {
          if (seconds(other) >= time - step) continue;
          CHECK_MESSAGE(needed(other) > usable_memory(cluster), modules_of(other)
                                                                    << " fits and is faster");
        }
      }
      cluster.gpu.memory_bytes = (0.99 * least + 1e9) / 0.98;
      CHECK_FALSE(least_recompute(work, layout, cluster));
    }
  }
}

TEST_CASE("heads are made again of latents before whole feed-forward blocks are") {
  Workload work = guide_rows().front().work;
  work.model.layers = 16;
  work.model.kv_heads = work.model.heads;
  work.model.head_dim = 192;
  work.model.latent = {.kv_rank = 512, .q_rank = 1536, .rope_dim = 64, .value_dim = 128};
  work.seq = 1024;
  work.global_batch = 64;
  LayoutChoice layout;
  layout.micro_batch = 8;
  REQUIRE(impossible(work, layout) == "");
  Cluster cluster = *find_cluster("h200");
  const auto with = [&](const Recompute& recompute) {
    LayoutChoice choice = layout;
    choice.recompute = recompute;
    return forecast(work, choice, cluster);
  };
  const auto needed = [&](const Recompute& recompute) {
    return needed_memory(with(recompute).memory, cluster);
  };
  const double most = needed({}), least = needed(everything_again());
  bool latents_alone = false, latents_and_mlp = false;
  for (int part = 0; part <= 12; ++part) {
    CAPTURE(part);
    cluster.gpu.memory_bytes = (most - (most - least) * part / 12 + 1e9 + 1) / 0.98;
    const auto found = least_recompute(work, layout, cluster);
    REQUIRE(found);
    CAPTURE(modules_of(*found));
    CHECK(needed(*found) <= usable_memory(cluster));
    if (found->latents) CHECK(found->norms.all());
    if (found->mlp) CHECK(found->latents.all());
    latents_alone = latents_alone || (found->latents && !found->mlp);
    latents_and_mlp = latents_and_mlp || (found->latents && found->mlp);
    // The same memory without latents costs more.
    for (int64_t mlps = 0; found->latents && mlps <= 16; ++mlps) {
      const Recompute other = {.mlp_activation = true, .norms = true, .mlp = mlps};
      if (needed(other) > needed(*found)) continue;
      CHECK(with(other).time.total > with(*found).time.total);
    }
  }
  CHECK(latents_alone);
  CHECK(latents_and_mlp);
}

TEST_CASE("advice says which layers make what again") {
  const Workload work = guide_rows().front().work;
  LayoutChoice layout;
  layout.dp = 8;
  layout.recompute = {.mlp_activation = 7, .norms = true};
  CHECK(layout_words(layout).ends_with(", recompute [norm, mlp_act: 7]"));
  const auto has = [&](const char* key, const char* value) {
    const auto settings = settings_of(work, layout);
    return std::count(settings.begin(), settings.end(),
                      std::pair<std::string, std::string>(key, value)) == 1;
  };
  CHECK(has("recompute.mode", "selective"));
  CHECK(has("recompute.modules", "[norm, mlp_act: 7]"));
  layout.recompute = everything_again();
  layout.recompute.full = Recompute::Full::block;
  layout.recompute.layers = 3;
  CHECK(layout_words(layout).ends_with(", full recompute of 3 layers a chunk"));
  CHECK(has("recompute.mode", "full"));
  CHECK(has("recompute.method", "block"));
  CHECK(has("recompute.layers", "3"));
}

TEST_CASE("degrees and micro-batches are divisors, not only powers of two") {
  Workload work = guide_rows().front().work;
  const Cluster& cluster = *find_cluster("h100-80g");
  work.global_batch = 9;  // one layout of a GPU divides it most: three sequences at a time
  work.seq = 1536;
  Tuning tuning = tune(work, 3, cluster, {});
  REQUIRE(!tuning.best.empty());
  CHECK(tuning.best.front().forecast.layout.micro_batch == 3);
  work.model.experts = 6;
  work.model.experts_per_token = 2;
  work.model.ffn = 2048;
  tuning = tune(work, 3, cluster, {.best = 100});
  const auto has_ep = [&](int ep) {
    return std::any_of(tuning.best.begin(), tuning.best.end(),
                       [&](const Advice& one) { return one.forecast.layout.ep == ep; });
  };
  const auto has_cp = [&](int cp) {
    return std::any_of(tuning.best.begin(), tuning.best.end(),
                       [&](const Advice& one) { return one.forecast.layout.cp == cp; });
  };
  CHECK(has_ep(1));
  CHECK(has_ep(3));
  CHECK(has_cp(3));
}

TEST_CASE("a layout that is faster than the best is said to be") {
  const Workload work = guide_rows().front().work;
  const Cluster& cluster = *find_cluster("h100-80g");
  LayoutChoice layout;
  layout.dp = 8;
  Forecast one = forecast(work, layout, cluster);
  one.fits = true;
  Forecast faster = one;
  faster.time.data = 0;
  faster.time.optimizer = 0;
  faster.time.total -= one.time.data + one.time.optimizer;
  CHECK(verdict(one, one, cluster) == "as fast");
  CHECK(verdict(faster, one, cluster).find(" % faster: optimizer 0.0 % of the step, ") !=
        std::string::npos);
  CHECK(verdict(one, faster, cluster).find(" % slower: optimizer ") != std::string::npos);
}

TEST_CASE("every batch of a ramp divides") {
  Workload work = guide_rows().front().work;
  const Cluster& cluster = *find_cluster("h100-80g");
  work.global_batch = 512;
  work.other_batches = {96, 192};
  LayoutChoice layout;
  layout.dp = 64;
  CHECK(impossible(work, layout).starts_with("a batch of 96 over 64 replicas"));
  layout.dp = 8;
  layout.micro_batch = 3;
  CHECK(impossible(work, layout).starts_with("a batch of 512"));
  layout.micro_batch = 1;
  layout.pp = 8;
  layout.chunks = 2;
  CHECK(impossible(work, layout).starts_with("12 micro-batches in groups of 8"));
  layout.chunks = 1;
  CHECK(impossible(work, layout) == "");
  Workload huge = work;
  huge.global_batch = 96 << 16;
  huge.other_batches.clear();
  CHECK(impossible(huge, layout) == "786432 micro-batches per step through 8 stages");
  const Tuning tuning = tune(work, 64, cluster, {});
  REQUIRE(!tuning.best.empty());
  for (const Advice& advice : tuning.best) {
    CHECK(96 % (advice.forecast.layout.replicas() * advice.forecast.layout.micro_batch) == 0);
  }
}

TEST_CASE("where links between nodes are slow a copy of the shards on each of them is worth it") {
  const Workload work = guide_rows().front().work;
  Cluster cluster = *find_cluster("h100-80g");
  cluster.nic_rate /= 20;
  LayoutChoice one;
  one.dp = 64;
  one.zero = 3;
  LayoutChoice copies = one;
  copies.copies = 8;
  const Forecast of_one = forecast(work, one, cluster), of_copies = forecast(work, copies, cluster);
  CHECK(of_one.micro_batches > 1);
  CHECK(of_copies.time.total < 0.7 * of_one.time.total);
  CHECK(of_copies.memory.weights > of_one.memory.weights);
  CHECK(layout_words(copies).find("ZeRO-3 in 8 copies") != std::string::npos);
  const auto settings = settings_of(work, copies);
  CHECK(std::count(settings.begin(), settings.end(),
                   std::pair<std::string, std::string>("parallel.zero_ranks", "8")) == 1);
  // And looked at.
  const Tuning with = tune(work, 64, cluster, {.only_run_here = true});
  cluster.gpus_per_node = cluster.near_domain = 64;
  CHECK(with.considered > tune(work, 64, cluster, {.only_run_here = true}).considered);
}
