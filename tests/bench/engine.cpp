// The parallel engine on this machine: two ranks of one thread each (dp 2, tp 2, pp 2) against one
// rank of two threads, and overlap of communication on against off, on the GPT-2 124M shape. The
// layouts take turns, round after round, so that a neighbour on the machine disturbs all alike;
// each round's ratio is taken within the round.
//   build/bench/engine [rounds=3] [steps=1] [dtype=bf16] [seq=128] [micro-batches=16]
//                      [tables=ranks,overlap]
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "best_step.h"
#include "median.h"
#include "runtime/device/cpu/calibrate.h"
#include "runtime/device/cpu/threads.h"
#include "support/specs.h"

using namespace mtl;

namespace {

constexpr int64_t kVocab = 50257;
constexpr int64_t kMicroBatch = 4;

struct Settings {
  int rounds = 3, steps = 1;
  std::string dtype = "bf16";
  int64_t seq = 128;
  int64_t micro_batches = 16;  // of one pipeline
  int64_t batch() const { return kMicroBatch * micro_batches; }
};

struct Row {
  const char* name;
  int world, threads;
  std::function<void(TrainSpec::Parallel&)> parallel;
  double bar = 0;  // of the first row's tokens/s; 0 = none
  std::vector<double> tokens_per_s = {};
};

// Of the best of a few steps.
double tokens_per_s(const Settings& settings, const Row& row) {
  ResolvedSpec resolved;
  TrainSpec& spec = resolved.spec;
  spec = test::spec_with({.layers = 12,
                          .hidden = 768,
                          .heads = 12,
                          .global_batch = settings.batch(),
                          .micro_batch = kMicroBatch,
                          .seq_len = settings.seq,
                          .steps = 1000});
  spec.model.max_seq = 1024;
  spec.precision.dtype = settings.dtype;
  row.parallel(spec.parallel);
  Diagnostics diagnostics;
  const Plan plan = make_plan(resolved, {.vocab = kVocab}, row.world, diagnostics);
  diagnostics.throw_if_errors();
  const double best = best_step_s(plan, spec, row.world, row.threads, settings.steps);
  return static_cast<double>(plan.tokens_of_step(0)) / best;
}

void measure(const Settings& settings, const char* title, std::vector<Row> rows) {
  fmt::print("\n{}\n{:<44} {:>10} {:>9} {:>7}\n", title, "layout", "tokens/s", "of first", "bar");
  for (int round = 0; round < settings.rounds; ++round) {
    for (Row& row : rows) row.tokens_per_s.push_back(tokens_per_s(settings, row));
  }
  for (const Row& row : rows) {
    std::vector<double> ratios;
    for (size_t i = 0; i < row.tokens_per_s.size(); ++i) {
      ratios.push_back(row.tokens_per_s[i] / rows.front().tokens_per_s[i]);
    }
    fmt::print("{:<44} {:>10.0f} {:>9.3f} {:>7}\n", row.name, median_of(row.tokens_per_s),
               median_of(ratios), row.bar > 0 ? fmt::format("{:.2f}", row.bar) : "");
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  if (argc > 1) settings.rounds = std::atoi(argv[1]);
  if (argc > 2) settings.steps = std::atoi(argv[2]);
  if (argc > 3) settings.dtype = argv[3];
  if (argc > 4) settings.seq = std::atoi(argv[4]);
  if (argc > 5) settings.micro_batches = std::atoi(argv[5]);
  const std::string tables = argc > 6 ? argv[6] : "ranks,overlap";
  use_threads(2);
  const DType compute = settings.dtype == "fp32" ? DType::f32 : DType::bf16;
  fmt::print(
      "GPT-2 124M, {}, {} sequences of {} per step; matmul {:.0f} GFLOP/s, memory {:.1f} "
      "GB/s (2 threads)\n",
      settings.dtype, settings.batch(), settings.seq, measure_matmul_rate(compute, 0.4) / 1e9,
      measure_memory_rate(0.2) / 1e9);
  const auto none = [](TrainSpec::Parallel&) {};
  const auto tp = [](TrainSpec::Parallel& p) { p.tp = 2; };
  // The head costs as much as five layers: an even cut would leave the first stage idle.
  const auto pp = [](TrainSpec::Parallel& p) {
    p.pp = 2;
    p.stage_balance = "balanced";
  };
  const double pipeline_bar = settings.micro_batches == 16 ? 0.80 : 0.0;
  if (tables.find("ranks") != std::string::npos) {
    measure(settings, "two ranks of one thread against one rank of two threads",
            {{"1 rank, 2 threads", 1, 2, none},
             {"dp 2 (ZeRO-1)", 2, 1, none, 0.90},
             {"dp 2 (ZeRO 0)", 2, 1, [](TrainSpec::Parallel& p) { p.zero = 0; }},
             {"tp 2 (sequence parallel)", 2, 1, tp, 0.75},
             {"tp 2 (replicated stream)", 2, 1,
              [](TrainSpec::Parallel& p) {
                p.tp = 2;
                p.sp = "false";
              }},
             {"pp 2, balanced", 2, 1, pp, pipeline_bar},
             {"pp 2, uniform", 2, 1, [](TrainSpec::Parallel& p) { p.pp = 2; }}});
  }
  if (tables.find("overlap") == std::string::npos) return 0;
  const auto off = [](TrainSpec::Parallel& p) {
    p.overlap = {.grad_reduce = false, .param_gather = "false", .p2p = false, .tp = "false"};
  };
  measure(settings, "overlap of communication and computation, off and on: data parallel",
          {{"dp 2 (ZeRO-1), off", 2, 1, off}, {"dp 2 (ZeRO-1), on", 2, 1, none}});
  measure(settings, "tensor parallel",
          {{"tp 2 (sequence parallel), off", 2, 1,
            [off](TrainSpec::Parallel& p) {
              p.tp = 2;
              off(p);
            }},
           {"tp 2 (sequence parallel), on", 2, 1, [](TrainSpec::Parallel& p) {
              p.tp = 2;
              p.overlap.tp = "true";
            }}});
  return 0;
}
