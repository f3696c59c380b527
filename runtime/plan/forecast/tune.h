// The search for a layout: every tp, pp, virtual stages, cp, ep, ZeRO stage and micro-batch that a
// model and a number of GPUs admit, each with the recompute that it needs to fit, pruned by
// divisibility and memory, ordered by the forecast of a step.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/plan/forecast/forecast.h"

namespace mtl {

struct TuneOptions {
  bool only_run_here = false;  // leave out what this engine does not run yet
  LayoutChoice like = {};      // what is not searched is as here: FP8, and what overlaps
  int64_t max_micro_batch = 16;
  size_t best = 5;
};

struct Advice {
  Forecast forecast;
  std::string why;  // one line: what it wins by, or loses by against the first
};

struct Tuning {
  int64_t considered = 0;  // layouts whose numbers divide
  int64_t too_large = 0;   // of these, what no recompute makes fit into memory
  // With only_run_here: what this engine does not run of the layouts that were left out.
  std::set<std::string> left_out;
  // Where no layout's numbers divide: why, of data parallelism alone.
  std::string indivisible;
  std::vector<Advice> best;
  // The fastest if memory were no matter, where that is another: what it would need.
  std::optional<Advice> if_it_fitted;
  // The fastest that this engine runs, where none of `best` is one.
  std::optional<Advice> run_here;
  // The fastest with optimizer.offload=cpu, where nothing fits without.
  std::optional<Advice> offloaded;
};

// `gpus` ranks; the batch and model of `work`. Nothing in `best` if nothing fits: then
// `if_it_fitted` is what comes nearest in memory.
Tuning tune(const Workload& work, int gpus, const Cluster& cluster, const TuneOptions& options);

// Why `layout` is slower than `best`, or faster, or does not fit: "4.1 % slower: bubble 21 % of the
// step, 3 % in the best", "needs 92 GB of 78", "tp 16 spans nodes". A layout may be faster that is
// none of those looked at.
std::string verdict(const Forecast& layout, const Forecast& best, const Cluster& cluster);

// "tp 8, pp 8 x 2 chunks, dp 16, ZeRO-1, micro-batch 1, no recompute".
std::string layout_words(const LayoutChoice& layout);

// The settings of train.yaml that make it: {"parallel.tp", "8"}, ...; only of a layout that the
// engine runs.
std::vector<std::pair<std::string, std::string>> settings_of(const Workload& work,
                                                             const LayoutChoice& layout);

}  // namespace mtl
