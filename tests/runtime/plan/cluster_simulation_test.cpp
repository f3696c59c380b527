// runtime/plan/cluster_simulation: a step of many ranks, slow ones, and failures.
#include "runtime/plan/forecast/cluster_simulation.h"

#include <cmath>

#include <doctest/doctest.h>

#include "support/published_runs.h"

using namespace mtl;
using namespace mtl::test;

namespace {

PublishedRun llama_16k() {
  for (const PublishedRun& run : published_runs()) {
    if (run.name == "16 384 GPUs") return run;
  }
  FAIL("no such run");
  return {};
}

}  // namespace

TEST_CASE("a step of 16384 GPUs takes what is foreseen") {
  const PublishedRun run = llama_16k();
  const Cluster cluster = cluster_of(run);
  const ClusterStep step = simulate_cluster(run.work, run.layout, cluster);
  CHECK(step.gpus == 16384);
  CHECK(step.replicas == 128);
  CHECK(step.replicas_run == 1);
  CHECK(step.seconds == doctest::Approx(step.even_seconds));
  // The forecast has filling and draining in closed form.
  const Forecast plan = forecast(run.work, run.layout, cluster, software_mtl(), true);
  CHECK(step.seconds == doctest::Approx(plan.time.total).epsilon(0.03));
  // 128 replicas x 16 stages, 16 micro-batches in 8 chunks: two passes each, and messages.
  CHECK(step.events > 128 * 16 * 16 * 8 * 2);
}

TEST_CASE("one slow rank slows the step and jitter more so") {
  const PublishedRun run = llama_16k();
  const Cluster cluster = cluster_of(run);
  const ClusterStep even = simulate_cluster(run.work, run.layout, cluster);
  Stragglers one;
  // tp 3, replica 5, stage 7.
  const int rank = 3 + 8 * (5 + 128 * 7);
  one.ranks = {{rank, 1.5}};
  const ClusterStep slow = simulate_cluster(run.work, run.layout, cluster, one);
  CHECK(slow.replicas_run == 2);
  CHECK(slow.slowest_replica == 5);
  CHECK(slow.seconds > 1.3 * even.seconds);
  CHECK(slow.seconds < 1.5 * even.seconds);
  CHECK(slow.even_seconds == doctest::Approx(even.seconds));
  Stragglers all;
  all.jitter = 0.02;
  const ClusterStep jitter = simulate_cluster(run.work, run.layout, cluster, all);
  CHECK(jitter.replicas_run == 128);
  CHECK(jitter.seconds > 1.02 * even.seconds);
  const ClusterStep again = simulate_cluster(run.work, run.layout, cluster, all);
  CHECK(again.seconds == jitter.seconds);
  all.seed = 2;
  CHECK(simulate_cluster(run.work, run.layout, cluster, all).seconds != jitter.seconds);
}

TEST_CASE("ranks of expert parallelism are as slow as the slowest of them") {
  Workload work;
  work.model.layers = 8;
  work.model.hidden = 4096;
  work.model.heads = work.model.kv_heads = 32;
  work.model.head_dim = 128;
  work.model.ffn = 14336;
  work.model.experts = 8;
  work.model.experts_per_token = 2;
  work.seq = 4096;
  work.global_batch = 64;
  LayoutChoice layout;
  layout.pp = 2;
  layout.ep = 4;
  layout.dp = 2;
  const Cluster& cluster = *find_cluster("h100-80g");
  const ClusterStep even = simulate_cluster(work, layout, cluster);
  // Replica 1 is slow at the first stage, and replica 2, which has its other experts, at the last:
  // rank = replica + 8 x stage.
  Stragglers both;
  both.ranks = {{1, 1.5}, {2 + 8, 1.5}};
  const ClusterStep together = simulate_cluster(work, layout, cluster, both);
  CHECK(together.replicas_run == 2);
  CHECK(together.slowest_replica == 0);
  // Those of one replica: both stages.
  Stragglers one;
  one.ranks = {{1, 1.5}, {1 + 8, 1.5}};
  CHECK(together.seconds == simulate_cluster(work, layout, cluster, one).seconds);
  CHECK(together.seconds > 1.3 * even.seconds);
}

TEST_CASE("sends that wait make a pipeline slower") {
  PublishedRun run = llama_16k();
  const Cluster cluster = cluster_of(run);
  const double overlapped = simulate_cluster(run.work, run.layout, cluster).seconds;
  run.layout.overlap_send = false;
  CHECK(simulate_cluster(run.work, run.layout, cluster).seconds > overlapped);
}

TEST_CASE("checkpoints are written as often as Young and Daly say") {
  // Young: sqrt(2 x 60 x 36000) = 2078; Daly's terms take little away.
  CHECK(checkpoint_interval(60, 36000) == doctest::Approx(2078.5 * 1.0097 - 60).epsilon(0.002));
  CHECK(checkpoint_interval(100, 40) == 40);
  // It is the best: more or less often is worse.
  Failures failures;
  failures.mtbf_hours = 1000;
  const Goodput best = goodput(100, 1, 0, failures);
  CHECK(best.mtbf_s == doctest::Approx(36000));
  for (const double factor : {0.5, 2.0}) {
    const double interval = best.interval_s * factor;
    const double share = interval / (best.mtbf_s * std::exp(failures.restart_s / best.mtbf_s) *
                                     std::expm1((interval + failures.checkpoint_s) / best.mtbf_s));
    CHECK(share < best.expected);
  }
}

TEST_CASE("a run with failures takes what is expected of it") {
  Failures failures;  // Llama 3's: 16 384 GPUs, one every three hours
  const Goodput one = goodput(16384, 5, 54 * 86400.0, failures);
  CHECK(one.mtbf_s / 3600 == doctest::Approx(3.09).epsilon(0.01));
  CHECK(one.failures > 300);
  CHECK(one.failures < 600);
  CHECK(one.simulated == doctest::Approx(one.expected).epsilon(0.02));
  CHECK(one.expected > 0.85);  // "higher than 90 %" there, with faster restarts
  failures.restart_s = 3000;
  CHECK(goodput(16384, 5, 54 * 86400.0, failures).expected < one.expected);
}
