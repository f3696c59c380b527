// runtime/plan/forecast: seconds against published runs, and of what they are made up.
#include "runtime/plan/forecast/forecast.h"

#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "runtime/plan/forecast/cluster_simulation.h"
#include "runtime/plan/forecast/forecast_compute.h"
#include "runtime/plan/forecast/tune.h"
#include "runtime/plan/forecast_cases.h"
#include "support/published_runs.h"

using namespace mtl;
using namespace mtl::test;

TEST_CASE("published runs are foreseen within 15 percent and in their order") {
  int within = 0, rows = 0, pairs = 0, ordered = 0, calibrated = 0;
  struct Row {
    std::string table;
    double published, planned;
  };
  std::vector<Row> all;
  for (const PublishedRun& run : published_runs()) {
    const Forecast plan = forecast(run.work, run.layout, cluster_of(run), run.software, true);
    const double value = predicted(run, plan);
    const double error = value / run.published - 1;
    INFO(run.table, ", ", run.name);
    CHECK(std::abs(error) < 0.25);
    within += std::abs(error) <= 0.15 ? 1 : 0;
    ++rows;
    if (run.calibrates) {
      ++calibrated;
      CHECK(std::abs(error) < 0.01);
    }
    if (run.gib > 0) CHECK(std::abs(plan.memory.total / (1 << 30) / run.gib - 1) <= 0.15);
    all.push_back({run.table, run.published, value});
  }
  CHECK(calibrated <= 2);
  CHECK(rows >= 40);
  CHECK(within * 10 >= rows * 8);
  // Rows of a table that differ by a tenth or more stand in the same order.
  for (const Row& a : all) {
    for (const Row& b : all) {
      if (a.table != b.table || a.published < 1.1 * b.published) continue;
      ++pairs;
      ordered += a.planned > b.planned ? 1 : 0;
    }
  }
  MESSAGE(within << " of " << rows << " within 15 %; " << ordered << " of " << pairs
                 << " pairs in order");
  CHECK(ordered * 20 >= pairs * 19);
}

TEST_CASE("what an H200 was measured to do is foreseen within 8 percent") {
  int calibrated = 0;
  for (const PublishedRun& run : own_runs()) {
    const Forecast plan = forecast(run.work, run.layout, cluster_of(run), run.software, true);
    const double error = predicted(run, plan) / run.published - 1;
    INFO(run.name);
    CHECK(std::abs(error) < 0.08);
    if (!run.calibrates) continue;
    ++calibrated;
    CHECK(std::abs(error) < 0.02);  // cards of one name differ by more
  }
  CHECK(calibrated == 2);
}

TEST_CASE("of windows in some layers a run is as long as its layers are") {
  TrainSpec spec = llama_like();
  spec.model.sliding_window = 64;
  spec.train.micro_batch = 1;
  const auto attention = [&](int64_t every) {
    spec.model.full_attention.every = every;
    const Plan plan = plan_of(spec, 1);
    return forecast(workload_of(plan), layout_of(plan), *find_cluster("h100-80g")).time.attention;
  };
  const double windows = attention(0);
  const double quarter = attention(4), half = attention(2);  // of 16 layers
  CHECK(windows < quarter);
  CHECK(half - windows == doctest::Approx(2 * (quarter - windows)));
  spec.model.sliding_window = 0;
  CHECK(attention(0) - windows == doctest::Approx(4 * (quarter - windows)));
}

TEST_CASE("runs on GPUs without NVLink are foreseen within 15 percent") {
  int within = 0, rows = 0, calibrated = 0;
  for (const PublishedRun& run : workstation_runs()) {
    const Forecast plan = forecast(run.work, run.layout, cluster_of(run), run.software, true);
    const double error = predicted(run, plan) / run.published - 1;
    INFO(run.table, ", ", run.name);
    CHECK(std::abs(error) < 0.2);
    within += std::abs(error) <= 0.15 ? 1 : 0;
    ++rows;
    if (!run.calibrates) continue;
    ++calibrated;
    CHECK(std::abs(error) < 0.01);
  }
  CHECK(calibrated <= 3);
  CHECK(rows >= 30);
  CHECK(within * 10 >= rows * 8);
}

TEST_CASE("a step is the sum of its parts and more of anything costs time") {
  const Plan plan = plan_of(llama_like(), 8);
  Workload work = workload_of(plan);
  work.compute = DType::bf16;
  LayoutChoice layout;
  layout.dp = 8;
  layout.micro_batch = 1;
  const Cluster& h100 = *find_cluster("h100-80g");
  const Forecast base = forecast(work, layout, h100);
  const StepTime& t = base.time;
  CHECK(t.total == doctest::Approx(t.matmul + t.attention + t.memory_bound + t.recompute +
                                   t.exposed() + t.bubble + t.optimizer));
  CHECK(base.micro_batches == 4);
  CHECK(base.mfu < base.mfu_full);
  CHECK(base.hfu == doctest::Approx(base.mfu_full));
  CHECK(base.not_run.empty());
  LayoutChoice again = layout;
  again.recompute.full = Recompute::Full::uniform;
  const Forecast full = forecast(work, again, h100);
  CHECK(full.time.recompute > 0);
  CHECK(full.time.total > t.total);
  CHECK(full.memory.activations < base.memory.activations);
  CHECK(full.hfu > full.mfu_full);
  // What recompute does again is not counted as work of the model.
  CHECK(full.mfu < base.mfu);
  LayoutChoice exposed = layout;
  exposed.overlap_data = false;
  CHECK(forecast(work, exposed, h100).time.data > t.data);
  LayoutChoice stages = layout;
  stages.dp = 2;
  stages.pp = 4;
  const Forecast piped = forecast(work, stages, h100);
  CHECK(piped.micro_batches == 16);
  CHECK(piped.time.bubble > 0);
  stages.chunks = 4;
  CHECK(forecast(work, stages, h100).time.bubble < piped.time.bubble);
  LayoutChoice context = layout;
  context.dp = 4;
  context.cp = 2;
  const Forecast heads = forecast(work, context, h100);
  CHECK(heads.time.context > 0);
  CHECK(heads.links.context > 0);
  CHECK(heads.not_run.empty());
  context.micro_batch = 2;
  const Forecast two = forecast(work, context, h100);
  CHECK(two.not_run.empty());
  CHECK(two.links.context == heads.links.context);  // of a step
  context.micro_batch = 1;
  context.tp = 8;  // and 16 heads
  context.cp = 4;
  context.dp = 1;
  const Forecast ring = forecast(work, context, h100);
  CHECK(ring.time.context > 0);
  CHECK(ring.not_run == std::vector<std::string>{"context parallelism of more ranks than heads"});
}

TEST_CASE("ZB-H1 is foreseen with a third of the bubble, but of layers that are made again") {
  const Cluster& cluster = *find_cluster("h100-80g");
  TrainSpec spec = llama_like();
  spec.train.global_batch = 128;
  for (const bool experts : {false, true}) {
    if (experts) spec.model.moe = mixture_of_4();
    Workload work = workload_of(plan_of(spec, 8));
    work.compute = DType::bf16;
    for (const auto& [chunks, tp, mode] : {std::tuple{1, 1, "none"},
                                           {4, 1, "none"},
                                           {1, 2, "none"},
                                           {1, 1, "parts"},
                                           {1, 1, "full"},
                                           {1, 1, "attention"}}) {
      CAPTURE(experts);
      CAPTURE(chunks);
      CAPTURE(tp);
      const std::string again = mode;
      CAPTURE(again);
      LayoutChoice layout;
      layout.pp = 4;
      layout.dp = 2;
      layout.tp = tp;
      layout.chunks = chunks;
      layout.micro_batch = 1;
      if (again == "parts") layout.recompute = {.mlp_activation = true, .norms = true};
      if (again == "attention") layout.recompute = {.core_attention = true};
      if (again == "full") layout.recompute.full = Recompute::Full::uniform;
      const Forecast at_once = forecast(work, layout, cluster, software_mtl(), true);
      layout.weights_later = true;
      const Forecast later = forecast(work, layout, cluster, software_mtl(), true);
      const ClusterStep simulated = simulate_cluster(work, layout, cluster);
      CHECK(later.time.total == doctest::Approx(simulated.seconds).epsilon(0.03));
      const bool leaves = again == "none" || again == "parts";
      const double part = later.time.bubble / at_once.time.bubble;
      if (leaves) {
        CHECK(part > 0.2);
        CHECK(part < 0.6);
        CHECK(forecast(work, layout, cluster).time.bubble ==
              doctest::Approx(later.time.bubble).epsilon(0.35));
        // A bubble that is small already may be worth less than what this costs.
        if (chunks == 1 && tp == 1) CHECK(later.time.total < at_once.time.total);
      } else {
        CHECK(part == doctest::Approx(1).epsilon(0.05));
      }
      // What ran beside the products is waited for.
      if (tp > 1) CHECK(later.time.tensor > at_once.time.tensor);
      CHECK(later.memory.activations > at_once.memory.activations);
    }
  }
}

TEST_CASE("what is not to run beside computation is waited for") {
  const Cluster& cluster = *find_cluster("h100-80g");
  const Plan plan = plan_of(llama_like(), 8);
  Workload work = workload_of(plan);
  work.compute = DType::bf16;
  for (const int zero : {1, 2, 3}) {
    CAPTURE(zero);
    LayoutChoice layout;
    layout.dp = 8;
    layout.zero = zero;
    const double beside = forecast(work, layout, cluster).time.data;
    LayoutChoice waits = layout;
    waits.overlap_gather = false;
    const double gathers = forecast(work, waits, cluster).time.data;
    CHECK(gathers > beside);
    waits.overlap_data = false;
    const double both = forecast(work, waits, cluster).time.data;
    CHECK(both > gathers);
    waits.overlap_gather = true;
    const double reductions = forecast(work, waits, cluster).time.data;
    CHECK(reductions > beside);
    CHECK(reductions < both);
  }
  for (const bool sp : {false, true}) {
    LayoutChoice layout;
    layout.tp = 8;
    layout.sequence_parallel = sp;
    const double beside = forecast(work, layout, cluster).time.tensor;
    layout.overlap_input = false;
    const double hidden = forecast(work, layout, cluster).time.tensor - beside;
    CHECK(hidden > 0);
    // Side by side all ranks' rows are summed once, beside one product where there are two else.
    Workload parallel = work;
    parallel.model.parallel_residual = true;
    const double waits = forecast(parallel, layout, cluster).time.tensor;
    layout.overlap_input = true;
    CHECK(waits - forecast(parallel, layout, cluster).time.tensor ==
          doctest::Approx(hidden / (sp ? 1 : 2)));
  }
  // And handed on by the search.
  LayoutChoice like;
  like.overlap_data = like.overlap_gather = like.overlap_send = like.overlap_input = false;
  const Tuning tuning = tune(work, 8, cluster, {.like = like});
  REQUIRE(!tuning.best.empty());
  for (const Advice& advice : tuning.best) {
    const LayoutChoice& layout = advice.forecast.layout;
    CHECK_FALSE(layout.overlap_data);
    CHECK_FALSE(layout.overlap_gather);
    CHECK_FALSE(layout.overlap_send);
    CHECK_FALSE(layout.overlap_input);
  }
}

TEST_CASE("tokens to the end are days and GPU hours") {
  Workload work = workload_of(plan_of(llama_like(), 8));
  work.total_tokens = 1e12;
  LayoutChoice layout;
  layout.dp = 8;
  const Forecast plan = forecast(work, layout, *find_cluster("h100-80g"));
  CHECK(plan.days == doctest::Approx(1e12 / plan.tokens_per_s / 86400));
  CHECK(plan.gpu_hours == doctest::Approx(plan.days * 24 * 8));
  CHECK(plan.tokens_per_s_gpu * 8 == doctest::Approx(plan.tokens_per_s));
}

TEST_CASE("a forecast of a run has what it does beside its steps") {
  Workload work = workload_of(plan_of(llama_like(), 8));
  work.global_batch = 128;
  work.total_tokens = 1000.0 * 128 * static_cast<double>(work.seq);
  LayoutChoice layout;
  layout.dp = 8;
  layout.recompute.full = Recompute::Full::uniform;
  const Cluster& cluster = *find_cluster("h100-80g");
  const Forecast steps = forecast(work, layout, cluster);
  CHECK(steps.run.total() == steps.run.steps);
  work.beside.steps = 1000;
  work.beside.eval_every = 100;
  work.beside.save_every = 200;
  const Forecast saved = forecast(work, layout, cluster);
  CHECK(saved.run.evaluations == 0);
  CHECK(saved.run.saves > 0);
  CHECK(saved.days == doctest::Approx(saved.run.total() / 86400));
  CHECK(saved.gpu_hours == doctest::Approx(saved.days * 24 * 8));
  // A batch forward is between a quarter (all is made again) and a third of a step.
  work.beside.eval_sets = {128};
  const Forecast evaluated = forecast(work, layout, cluster);
  CHECK(evaluated.run.steps == saved.run.steps);
  CHECK(evaluated.run.evaluations > 10 * steps.time.total * 0.2);
  CHECK(evaluated.run.evaluations < 10 * steps.time.total * 0.34);
  work.beside.texts = 8;
  work.beside.text_tokens = 100;
  work.beside.text_room = 128;
  const Forecast written = forecast(work, layout, cluster);
  CHECK(written.run.texts > 0);
  CHECK(written.run.texts < written.run.steps / 10);
  // What is written meanwhile is waited for once, and else each time.
  work.beside.async = false;
  CHECK(forecast(work, layout, cluster).run.saves > 3 * saved.run.saves);
  work.beside.async = true;
  work.beside.save_every = 1;  // the disk does not keep up
  CHECK(forecast(work, layout, cluster).run.saves > 100 * saved.run.saves);
}

TEST_CASE(
    "an activation made again is written by its derivative's op, which reads the rest anyway") {
  const Cluster& cluster = *find_cluster("h100-80g");
  const Software software = software_mtl();
  const auto values = [&](Workload work, int tp) {
    work.seq = 512;
    work.compute = DType::bf16;
    LayoutChoice layout;
    layout.micro_batch = 64;
    layout.tp = tp;
    const PartsAgain parts = {.mlp_activation = true};
    const double seconds = layer_work(work, layout, cluster, software, parts).again.memory_bound;
    const double bytes = software.elementwise * bytes_of(DType::bf16);
    return seconds / stream_time(cluster, 64.0 * 512 * bytes);
  };
  Workload llama, gpt2;
  llama.model = plan_of(llama_like(), 1).model;
  gpt2.model = plan_of(gpt2_like(), 1).model;
  const auto ffn = static_cast<double>(llama.model.ffn);
  CHECK(values(llama, 1) == doctest::Approx(ffn));
  CHECK(values(llama, 2) == doctest::Approx(ffn / 2));
  // The product has its derivative: a pass of its own, in and out.
  const auto wide = static_cast<double>(gpt2.model.ffn);
  CHECK(values(gpt2, 1) == doctest::Approx(2 * wide));
  gpt2.model.activation = Activation::gelu_exact;
  CHECK(values(gpt2, 1) == doctest::Approx(wide));
  // Of the experts that a token has and the block beside them, whose gate has to have it before.
  llama.model.experts = 8;
  llama.model.experts_per_token = 2;
  llama.model.shared_ffn = 64;
  CHECK(values(llama, 1) == doctest::Approx(2 * ffn + 64));
  llama.model.shared_gate = true;
  CHECK(values(llama, 1) == doctest::Approx(2 * ffn + 3 * 64));
}

TEST_CASE("attention costs what our kernels reach with such heads on a GPU") {
  Workload work;
  work.model = plan_of(llama_like(), 1).model;
  work.seq = 4096;
  work.compute = DType::bf16;
  LayoutChoice layout;
  const auto attention = [&](int64_t head_dim, const Cluster& cluster) {
    work.model.head_dim = head_dim;
    work.model.heads = work.model.kv_heads = 2048 / head_dim;
    const PassWork pass = layer_work(work, layout, cluster, software_mtl(), {});
    return pass.forward.attention + pass.backward.attention;
  };
  const Cluster h100 = *find_cluster("h100");
  const double slower = peak_flops(h100.gpu, DType::bf16) / peak_flops(h100.gpu, DType::f32);
  CHECK(slower > 10);
  const double narrow = attention(128, h100) - 2 * h100.kernel_s;
  CHECK(attention(512, h100) - 2 * h100.kernel_s == doctest::Approx(slower * narrow));
  // By our kernels on Hopper: wgmma has one for heads of 256, but none for capped scores.
  CHECK(attention(256, h100) - 2 * h100.kernel_s == doctest::Approx(narrow / 0.76));
  work.model.attention_cap = 50;
  CHECK(attention(256, h100) - 2 * h100.kernel_s == doctest::Approx(narrow / 0.2));
  CHECK(attention(128, h100) - 2 * h100.kernel_s == doctest::Approx(narrow / 0.4));
  work.model.attention_cap = 0;
  // On others all heads are alike.
  const Cluster a100 = *find_cluster("a100-80g");
  CHECK(attention(256, a100) == doctest::Approx(attention(128, a100)));
  // DeepSeek's.
  work.model.head_dim = 192;
  work.model.heads = work.model.kv_heads = 16;
  work.model.latent = {.kv_rank = 512, .rope_dim = 64, .value_dim = 128};
  const auto both = [&](const Cluster& cluster) {
    const PassWork pass = layer_work(work, layout, cluster, software_mtl(), {});
    return pass.forward.attention + pass.backward.attention - 2 * cluster.kernel_s;
  };
  const double seen = both(h100);
  work.compute = DType::f32;
  CHECK(both(h100) == doctest::Approx(seen * 0.9 * slower));
  work.compute = DType::bf16;
  work.model.latent = {};
  Cluster cpu = h100;
  cpu.cpu = true;
  CHECK(attention(512, cpu) == doctest::Approx(attention(128, cpu)));
}

TEST_CASE("FLOPs with attention whole are the papers' formula") {
  // arXiv 2205.05198: 72 B s L h^2 (1 + s / 6h + V / 12 h L); with everything made again
  // 2104.04473: 96 B s L h^2 (1 + s / 6h + V / 16 L h).
  ModelShape model;
  model.layers = 96;
  model.hidden = 12288;
  model.heads = model.kv_heads = 96;
  model.head_dim = 128;
  model.ffn = 4 * 12288;
  model.vocab = model.padded_vocab = 51200;
  const double s = 2048, h = 12288, l = 96, v = 51200;
  CHECK(full_flops_per_token(model, 2048) ==
        doctest::Approx(72 * l * h * h * (1 + s / (6 * h) + v / (12 * h * l))));
  LayoutChoice layout;
  layout.recompute.full = Recompute::Full::uniform;
  CHECK(hardware_flops_per_token(model, 2048, layout) ==
        doctest::Approx(96 * l * h * h * (1 + s / (6 * h) + v / (16 * l * h))));
  // Of a block, the layers that are made again: 6 of 24 on each of 4 stages.
  const double plain = full_flops_per_token(model, 2048);
  const double all_again = hardware_flops_per_token(model, 2048, layout) - plain;
  layout.recompute = {.full = Recompute::Full::block, .layers = 6};
  layout.pp = 4;
  CHECK(hardware_flops_per_token(model, 2048, layout) == doctest::Approx(plain + all_again / 4));
  layout.pp = 1;
  layout.recompute.layers = 96;
  CHECK(hardware_flops_per_token(model, 2048, layout) == doctest::Approx(plain + all_again));
}
