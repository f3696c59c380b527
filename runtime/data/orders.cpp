#include "runtime/data/orders.h"

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <Random123/philox.h>
#include <fmt/format.h>

#include "runtime/data/blend.h"
#include "runtime/data/numpy_random.h"

namespace mtl {

namespace {

class WindowSamples : public Samples {
 public:
  WindowSamples(std::shared_ptr<const TokenSource> row, int64_t seq_len, SampleOrder order,
                uint64_t seed, bool again)
      : row_(std::move(row)),
        sampler_(row_->size(), seq_len, order, seed),
        size_(again ? kEndless : sampler_.size()) {}
  int64_t size() const override { return size_; }
  void fill(int64_t first, int64_t count, const SampleBatch& batch) const override {
    check_samples(first, count, size_);
    sampler_.fill(*row_, first, count, batch.inputs, batch.targets);
  }

 private:
  std::shared_ptr<const TokenSource> row_;
  Sampler sampler_;
  int64_t size_;
};

}  // namespace

std::unique_ptr<Samples> window_samples(std::shared_ptr<const TokenSource> row, int64_t seq_len,
                                        SampleOrder order, uint64_t seed, bool again) {
  return std::make_unique<WindowSamples>(std::move(row), seq_len, order, seed, again);
}

FeistelPermutation::FeistelPermutation(int64_t count, uint64_t seed, int64_t epoch)
    : count_(static_cast<uint64_t>(count)), seed_(seed), epoch_(static_cast<uint64_t>(epoch)) {
  while (half_bits_ < 31 && (uint64_t{1} << (2 * half_bits_)) < count_) ++half_bits_;
}

uint64_t FeistelPermutation::encrypt(uint64_t value) const {
  // Keeps these draws apart from every other use of the run's seed ("feis").
  constexpr uint32_t kStream = 0x66656973;
  constexpr uint32_t kRounds = 6;
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_, right = value & mask;
  const r123::Philox4x32::key_type key = {
      {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)}};
  for (uint32_t round = 0; round < kRounds; ++round) {
    const r123::Philox4x32::ctr_type counter = {
        {static_cast<uint32_t>(right), static_cast<uint32_t>(epoch_),
         static_cast<uint32_t>(epoch_ >> 32) * kRounds + round, kStream}};
    const uint64_t mixed = r123::Philox4x32()(counter, key)[0];
    left = std::exchange(right, (left ^ mixed) & mask);
  }
  return left << half_bits_ | right;
}

int64_t FeistelPermutation::operator()(int64_t i) const {
  auto value = static_cast<uint64_t>(i);
  do {
    value = encrypt(value);
  } while (value >= count_);
  return static_cast<int64_t>(value);
}

namespace {

class FeistelSamples : public Samples {
 public:
  FeistelSamples(std::shared_ptr<const TokenSource> row, int64_t seq_len, uint64_t seed)
      : row_(std::move(row)),
        windows_(row_->size(), seq_len, SampleOrder::sequential, seed),
        seq_len_(seq_len),
        seed_(seed) {}
  int64_t size() const override { return kEndless; }
  void fill(int64_t first, int64_t count, const SampleBatch& batch) const override {
    const int64_t in_epoch = windows_.size();
    std::vector<int32_t> tokens(static_cast<size_t>(seq_len_ + 1));
    for (int64_t i = 0; i < count; ++i) {
      const FeistelPermutation order(in_epoch, seed_, (first + i) / in_epoch);
      row_->read(windows_.offset(order((first + i) % in_epoch)), tokens);
      put_sample(tokens, i, batch);
    }
  }

 private:
  std::shared_ptr<const TokenSource> row_;
  Sampler windows_;
  int64_t seq_len_;
  uint64_t seed_;
};

class CyclicSamples : public Samples {
 public:
  explicit CyclicSamples(std::unique_ptr<Samples> base) : base_(std::move(base)) {
    if (base_->size() <= std::numeric_limits<uint32_t>::max() / 20) return;
    throw Error(Exit::data, {.code = "data.order",
                             .what = fmt::format("data.sampler=cyclic cannot permute {} samples",
                                                 base_->size()),
                             .help = "use data.sampler=feistel, which has no such limit"});
  }
  int64_t size() const override { return kEndless; }
  void fill(int64_t first, int64_t count, const SampleBatch& batch) const override {
    const int64_t in_epoch = base_->size();
    for (int64_t i = 0; i < count; ++i) {
      const auto order = order_of((first + i) / in_epoch);
      base_->fill((*order)[static_cast<size_t>((first + i) % in_epoch)], 1,
                  part_of(batch, count, i, 1));
    }
  }

 private:
  // The newest two are kept: a batch may lie in two epochs.
  std::shared_ptr<const std::vector<uint32_t>> order_of(int64_t epoch) const {
    const std::lock_guard lock(mutex_);
    auto& order = orders_[epoch];
    if (!order) {
      order = std::make_shared<const std::vector<uint32_t>>(
          torch_randperm(static_cast<uint32_t>(base_->size()), static_cast<uint64_t>(epoch)));
    }
    const auto kept = order;
    while (orders_.size() > 2) {
      orders_.erase(orders_.begin()->first == epoch ? std::prev(orders_.end()) : orders_.begin());
    }
    return kept;
  }

  std::unique_ptr<Samples> base_;
  mutable std::mutex mutex_;
  mutable std::map<int64_t, std::shared_ptr<const std::vector<uint32_t>>> orders_;
};

class DocumentSamples : public Samples {
 public:
  DocumentSamples(std::unique_ptr<Samples> samples, const DocumentOptions& options)
      : samples_(std::move(samples)), options_(options) {}
  int64_t size() const override { return samples_->size(); }
  void fill(int64_t first, int64_t count, const SampleBatch& batch) const override {
    samples_->fill(first, count, {batch.inputs, batch.targets});
    const size_t seq = batch.inputs.size() / static_cast<size_t>(std::max<int64_t>(count, 1));
    size_t begin = 0;  // of the document, within the sequence
    for (size_t i = 0; i < batch.inputs.size(); ++i) {
      const size_t at = i % seq;
      if (at == 0) begin = 0;
      if (!batch.first_key.empty()) batch.first_key[i] = static_cast<int32_t>(begin);
      if (!batch.positions.empty()) batch.positions[i] = static_cast<int32_t>(at - begin);
      if (batch.inputs[i] != options_.eod) continue;
      begin = at + 1;
      if (options_.mask_loss) batch.targets[i] = -1;
    }
  }

 private:
  std::unique_ptr<Samples> samples_;
  DocumentOptions options_;
};

}  // namespace

std::unique_ptr<Samples> feistel_samples(std::shared_ptr<const TokenSource> row, int64_t seq_len,
                                         uint64_t seed) {
  return std::make_unique<FeistelSamples>(std::move(row), seq_len, seed);
}

std::unique_ptr<Samples> cyclic_samples(std::unique_ptr<Samples> base) {
  return std::make_unique<CyclicSamples>(std::move(base));
}

std::unique_ptr<Samples> with_documents(std::unique_ptr<Samples> samples,
                                        const DocumentOptions& options) {
  return std::make_unique<DocumentSamples>(std::move(samples), options);
}

}  // namespace mtl
