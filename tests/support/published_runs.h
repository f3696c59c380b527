// Runs that others have published, as layouts of the planner: what each table gives, and from where
// what it leaves out. Held against forecasts by tests/runtime/plan/forecast_test.cpp and
// tests/bench/planner.cpp.
#pragma once

#include <string>
#include <vector>

#include "runtime/plan/forecast/forecast.h"

namespace mtl::test {

// GPT-2's blocks, and Llama 3's with its vocabulary.
ModelShape gpt_shape(int64_t layers, int64_t hidden, int64_t heads, int64_t vocab, int64_t seq);
ModelShape llama_shape(int64_t layers, int64_t hidden, int64_t heads, int64_t ffn, int64_t seq);

struct PublishedRun {
  std::string table, name;
  Workload work;
  LayoutChoice layout;
  std::string gpu;
  Software software;
  enum class Measure { mfu_full, hfu, tokens_per_s_gpu } measure = Measure::mfu_full;
  double published = 0;  // share, or tokens/s
  double gib = 0;        // memory; 0 = not given
  bool calibrates = false;
  bool their_kernels = false;  // Cluster::others
};
// The machines of a run.
Cluster cluster_of(const PublishedRun& run);

// Micro-batch and virtual stages are the fastest that fit where a source does not give them.
std::vector<PublishedRun> published_runs();
double predicted(const PublishedRun& run, const Forecast& forecast);

// Runs that were looked at only after the model was fixed: bf16 and fp8 of Megatron-Bridge, llm.c
// and llmq. No bar is set on them; they are printed beside the others.
std::vector<PublishedRun> held_out_runs();
// llmq's on GPUs that have no NVLink (published_workstations.cpp).
std::vector<PublishedRun> workstation_runs();
// Of this program on one H200 (own_runs.cpp; docs/benchmarks/gpu-h200.md).
std::vector<PublishedRun> own_runs();

// Layouts that Megatron-LM's parallelism guide recommends.
struct GuideRow {
  std::string name;
  Workload work;
  LayoutChoice layout;
};
std::vector<GuideRow> guide_rows();

}  // namespace mtl::test
