// Steps of this program on one H200, as gpu-check measured them (docs/benchmarks/gpu-h200.md): four
// micro-batches and an update; Llama 3 8B with 16 of its layers. The slower of two cards.
#include <array>

#include "support/published_runs.h"

namespace mtl::test {

namespace {

ModelShape gpt2(int64_t layers, int64_t hidden, int64_t heads) {
  ModelShape model = gpt_shape(layers, hidden, heads, 50304, 1024);
  model.vocab = 50257;
  return model;
}

}  // namespace

std::vector<PublishedRun> own_runs() {
  struct Row {
    const char* name;
    ModelShape model;
    int64_t seq, micro_batch;
    bool float8;
    double tokens_per_s;
    bool calibrates = false;
  };
  const ModelShape llama3 = llama_shape(16, 4096, 32, 14336, 8192);
  const std::array rows = {
      Row{"GPT-2 124M", gpt2(12, 768, 12), 1024, 32, false, 598'130},
      Row{"GPT-2 1.5B", gpt2(48, 1600, 25), 1024, 16, false, 55'380},
      Row{"Llama 3 8B's, 8192 tokens", llama3, 8192, 2, false, 21'473},
      Row{"Llama 3 8B's, 2048 tokens", llama3, 2048, 8, false, 24'284, true},
      Row{"Llama 3 8B's, 8192 tokens, fp8", llama3, 8192, 2, true, 29'796},
      Row{"Llama 3 8B's, 2048 tokens, fp8", llama3, 2048, 8, true, 35'642, true},
  };
  std::vector<PublishedRun> runs;
  for (const Row& row : rows) {
    PublishedRun run;
    run.table = "mtl, one H200";
    run.name = row.name;
    run.gpu = "h200";
    run.software = software_mtl();
    run.work.model = row.model;
    run.work.seq = row.seq;
    run.work.global_batch = 4 * row.micro_batch;
    run.layout.micro_batch = row.micro_batch;
    run.layout.float8.on = row.float8;
    run.measure = PublishedRun::Measure::tokens_per_s_gpu;
    run.published = row.tokens_per_s;
    run.calibrates = row.calibrates;
    runs.push_back(run);
  }
  return runs;
}

}  // namespace mtl::test
