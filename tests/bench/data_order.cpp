// What an order of samples costs: making Megatron's indices for a large corpus (beside what one
// pass over the same memory costs, which is the least that anything could), blends, and the samples
// that each order gives per second.
//   build/bench/data_order [documents] [tokens per document] [sequence length]
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "runtime/data/blend.h"
#include "runtime/data/megatron_order.h"
#include "runtime/data/orders.h"

using namespace mtl;

namespace {

// Documents of different lengths, in no memory.
class ManyDocuments : public Documents {
 public:
  ManyDocuments(int64_t count, int64_t mean) {
    lengths_.resize(static_cast<size_t>(count));
    uint64_t state = 1;
    for (int32_t& length : lengths_) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      length = static_cast<int32_t>(1 + (state >> 33) % static_cast<uint64_t>(2 * mean - 1));
      tokens_ += length;
    }
  }
  int64_t count() const override { return static_cast<int64_t>(lengths_.size()); }
  int64_t tokens() const override { return tokens_; }
  int64_t length(int64_t document) const override {
    return lengths_[static_cast<size_t>(document)];
  }
  void read(int64_t, int64_t first, std::span<int32_t> out) const override {
    std::iota(out.begin(), out.end(), static_cast<int32_t>(first));
  }

 private:
  std::vector<int32_t> lengths_;
  int64_t tokens_ = 0;
};

template <typename Work>
double seconds(Work work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void samples_per_second(const char* name, const Samples& samples, int64_t seq, int64_t count) {
  std::vector<int32_t> inputs(static_cast<size_t>(seq)), targets(inputs.size());
  const double time = seconds([&] {
    for (int64_t i = 0; i < count; ++i) samples.fill(i, 1, {inputs, targets});
  });
  fmt::print("| {:10} | {:10.0f} | {:8.1f} |\n", name, static_cast<double>(count) / time,
             static_cast<double>(count * seq) / time / 1e6);
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t documents = argc > 1 ? std::atoll(argv[1]) : 1'000'000;
  const int64_t mean = argc > 2 ? std::atoll(argv[2]) : 1000;
  const int64_t seq = argc > 3 ? std::atoll(argv[3]) : 2048;
  const auto corpus = std::make_shared<const ManyDocuments>(documents, mean);
  fmt::print("{} documents, {} tokens, sequences of {}\n\n", documents, corpus->tokens(), seq);
  fmt::print(
      "| indices | samples | MB | s | one pass over as much memory, s |\n|---|---|---|---|---|\n");
  MegatronOrder order;
  for (const int64_t epochs : {1, 4}) {
    const int64_t wanted = corpus->tokens() / seq * epochs - epochs;
    const double time = seconds([&] {
      const MegatronEpochs together = megatron_epochs(*corpus, seq, wanted);
      order = megatron_order(*corpus, {.seq_len = seq, .together = together, .seed = 1234});
    });
    const size_t bytes =
        order.documents.size() * 4 + order.starts.size() * 16 + order.shuffle.size() * 4;
    std::vector<uint64_t> memory(bytes / 8, 1);
    uint64_t sum = 0;
    const double pass = seconds([&] {
      for (uint64_t& word : memory) sum += word++;
    });
    fmt::print("| megatron, {} epoch{} | {} | {:.1f} | {:.3f} | {:.4f} |\n", epochs,
               epochs == 1 ? "" : "s", order.shuffle.size(), static_cast<double>(bytes) / 1e6, time,
               pass + static_cast<double>(sum == 1));
  }
  std::vector<double> weights(10, 1);
  for (size_t i = 0; i < weights.size(); ++i) weights[i] += static_cast<double>(i);
  const std::vector<int64_t> limits(weights.size(), kEndless);
  const double blend = seconds([&] {
    const BlendIndex index(normalized(weights), 10'000'000, limits);
    if (index.size() != 10'000'000) std::abort();
  });
  fmt::print("| blend of 10 sources | 10000000 | {:.1f} | {:.3f} | |\n\n", 20.8, blend);
  fmt::print("| order | samples/s | M tokens/s |\n|---|---|---|\n");
  const int64_t count = 20'000;
  const std::shared_ptr<const TokenSource> row = document_row(corpus);
  samples_per_second("sequential", *window_samples(row, seq, SampleOrder::sequential, 1, true), seq,
                     count);
  samples_per_second("random", *window_samples(row, seq, SampleOrder::random, 1, true), seq, count);
  samples_per_second("feistel", *feistel_samples(row, seq, 1), seq, count);
  samples_per_second("megatron", *packed_samples(corpus, std::move(order), seq), seq, count);
  return 0;
}
