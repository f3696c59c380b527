// A step of a whole cluster, executed instruction by instruction: every stage of every replica runs
// its program, messages take their time, collectives wait for the last of their group. Ranks that
// are slower than others, and what failures cost over a run.
//
// What is not simulated one by one, because it is the same: the ranks of a TP and CP group, which
// wait for each other in every layer and go as fast as the slowest of them; and replicas whose
// ranks are all as slow as those of another.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/plan/forecast/forecast.h"

namespace mtl {

struct Stragglers {
  std::vector<std::pair<int, double>> ranks;  // rank: how many times longer it computes
  // Every rank computes 1 + |x| times longer, x normal with this deviation: drawn per rank.
  double jitter = 0;
  uint64_t seed = 1;
};

struct ClusterStep {
  int gpus = 0;
  int64_t events = 0;    // passes, messages, collectives
  int replicas_run = 0;  // of `replicas`, those that differ
  int replicas = 0;
  double seconds = 0;       // of the step
  double even_seconds = 0;  // with all ranks alike
  // Per stage: the share of the step in which it neither computes nor sends.
  std::vector<double> idle;
  int slowest_replica = 0;  // the last to finish its passes
};

// The layout must be possible (forecast.h).
ClusterStep simulate_cluster(const Workload& work, const LayoutChoice& layout,
                             const Cluster& cluster, const Stragglers& stragglers = {},
                             const Software& software = software_mtl());

struct Failures {
  // Hours that a GPU runs until something stops the job. Llama 3 (arXiv 2407.21783, section 3.3.4):
  // 419 unexpected interruptions of 16 384 GPUs in 54 days, 50 700 hours.
  double mtbf_hours = 50700;
  double checkpoint_s = 60;  // that training stands still for a checkpoint
  double restart_s = 300;    // from the failure to the first step, lost steps apart
  uint64_t seed = 1;
};

struct Goodput {
  double mtbf_s = 0;      // of the job
  double interval_s = 0;  // between checkpoints: Young's sqrt(2 d M), in Daly's refinement
  int64_t interval_steps = 0;
  double expected = 0;  // share of the time that makes progress
  // One run of `run_s` of progress, failures drawn: how long it took, and how many there were.
  double simulated = 0;
  int64_t failures = 0;
  double wall_s = 0;
};

// J. Daly, "A higher order estimate of the optimum checkpoint interval" (2006), equation 37, for
// d < 2 M; else M.
double checkpoint_interval(double checkpoint_s, double mtbf_s);
Goodput goodput(int gpus, double step_s, double run_s, const Failures& failures);

}  // namespace mtl
