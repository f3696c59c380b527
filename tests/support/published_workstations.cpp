// llmq's own measurements (IST-DASLab/llmq: benchmarks/*.md and, of L40S and RTX 5090, its README)
// of Qwen2.5 on GPUs without NVLink: half a million tokens per step of sequences of 1024, weights
// and moments in bf16, divided over the GPUs (ZeRO-1).
#include <array>

#include <fmt/format.h>

#include "support/published_runs.h"

namespace mtl::test {

namespace {

struct Size {
  const char* name;
  int64_t layers, hidden, heads, kv_heads, ffn, vocab;
};
// config.json of each.
constexpr Size kHalf = {"0.5B", 24, 896, 14, 2, 4864, 151936};
constexpr Size kOneAndHalf = {"1.5B", 28, 1536, 12, 2, 8960, 151936};
constexpr Size kThree = {"3B", 36, 2048, 16, 2, 11008, 151936};
constexpr Size kSeven = {"7B", 28, 3584, 28, 4, 18944, 152064};

ModelShape qwen(const Size& size) {
  ModelShape model = llama_shape(size.layers, size.hidden, size.heads, size.ffn, 1024);
  model.kv_heads = size.kv_heads;
  model.vocab = model.padded_vocab = size.vocab;
  model.qkv_bias = true;
  model.tie_embeddings = size.hidden < kSeven.hidden;
  return model;
}

struct Row {
  const char* gpu;
  const Size& size;
  int gpus, micro_batch;
  bool float8;
  double tokens_per_s;  // of all GPUs
  bool calibrates = false;
};

constexpr std::array kRows = {
    Row{"rtx4090", kHalf, 1, 16, false, 39'840},
    Row{"rtx4090", kOneAndHalf, 1, 4, false, 14'070, true},
    Row{"rtx4090", kThree, 1, 4, false, 7'004},
    Row{"rtx4090", kHalf, 4, 16, false, 154'000},
    Row{"rtx4090", kOneAndHalf, 4, 8, false, 52'418},
    Row{"rtx4090", kThree, 4, 4, false, 26'003},
    Row{"rtx4090", kHalf, 1, 16, true, 47'645},
    Row{"rtx4090", kOneAndHalf, 1, 4, true, 20'330},
    Row{"rtx4090", kThree, 1, 4, true, 10'667},
    Row{"rtx4090", kHalf, 4, 16, true, 181'000},
    Row{"rtx4090", kOneAndHalf, 4, 8, true, 71'960},
    Row{"rtx4090", kThree, 4, 4, true, 38'300},
    Row{"rtx5090", kHalf, 1, 16, false, 55'000},
    Row{"rtx5090", kHalf, 1, 16, true, 69'000},
    Row{"rtx5090", kOneAndHalf, 1, 8, true, 27'000},
    Row{"rtx5090", kOneAndHalf, 4, 8, true, 107'000},
    Row{"rtx-pro-6000", kHalf, 1, 32, false, 86'200},
    Row{"rtx-pro-6000", kOneAndHalf, 1, 32, false, 32'420},
    Row{"rtx-pro-6000", kThree, 1, 16, false, 17'183},
    Row{"rtx-pro-6000", kSeven, 1, 8, false, 8'079, true},
    Row{"rtx-pro-6000", kOneAndHalf, 4, 32, false, 128'500},
    Row{"rtx-pro-6000", kSeven, 4, 8, false, 31'990},
    Row{"rtx-pro-6000", kHalf, 1, 32, true, 95'930},
    Row{"rtx-pro-6000", kOneAndHalf, 1, 32, true, 40'330},
    Row{"rtx-pro-6000", kThree, 1, 16, true, 23'100},
    Row{"rtx-pro-6000", kSeven, 1, 8, true, 11'533, true},
    Row{"rtx-pro-6000", kSeven, 4, 16, true, 46'310},
    Row{"l40s", kHalf, 1, 16, false, 42'000},
    Row{"l40s", kOneAndHalf, 1, 8, false, 17'000},
    Row{"l40s", kThree, 1, 4, false, 8'900},
    Row{"l40s", kOneAndHalf, 4, 8, false, 65'000},
    Row{"l40s", kThree, 1, 4, true, 11'000},
};

}  // namespace

std::vector<PublishedRun> workstation_runs() {
  std::vector<PublishedRun> runs;
  for (const Row& row : kRows) {
    PublishedRun run;
    run.table = fmt::format("llmq, {}", row.gpu);
    run.name = fmt::format("{}{}, {} GPU{}", row.size.name, row.float8 ? " fp8" : "", row.gpus,
                           row.gpus > 1 ? "s" : "");
    run.gpu = row.gpu;
    run.software = software_mtl();
    run.work.model = qwen(row.size);
    run.work.seq = 1024;
    run.work.global_batch = 512;
    run.layout.dp = row.gpus;
    run.layout.micro_batch = row.micro_batch;
    run.layout.float8.on = row.float8;
    run.measure = PublishedRun::Measure::tokens_per_s_gpu;
    run.published = row.tokens_per_s / row.gpus;
    run.calibrates = row.calibrates;
    runs.push_back(run);
  }
  return runs;
}

}  // namespace mtl::test
