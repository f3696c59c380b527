#include "runtime/data/blend.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "runtime/data/documents.h"

namespace mtl {

namespace {

// numpy's sum of a contiguous row: up to 8 one after the other, up to 128 in eight lanes, more in
// halves.
double numpy_sum(std::span<const double> x) {
  if (x.size() < 8) {
    double sum = 0;
    for (const double value : x) sum += value;
    return sum;
  }
  if (x.size() <= 128) {
    double lanes[8];
    std::copy_n(x.begin(), 8, lanes);
    size_t i = 8;
    for (; i + 8 <= x.size(); i += 8) {
      for (size_t k = 0; k < 8; ++k) lanes[k] += x[i + k];
    }
    double sum = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
                 ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
    for (; i < x.size(); ++i) sum += x[i];
    return sum;
  }
  const size_t half = x.size() / 2 / 8 * 8;
  return numpy_sum(x.first(half)) + numpy_sum(x.subspan(half));
}

}  // namespace

std::vector<double> normalized(std::span<const double> weights) {
  const double sum = numpy_sum(weights);
  std::vector<double> result(weights.begin(), weights.end());
  for (double& weight : result) weight /= sum;
  return result;
}

std::vector<int64_t> blend_sizes(std::span<const double> normalized_weights, int64_t samples) {
  std::vector<int64_t> sizes;
  for (const double weight : normalized_weights) {
    const double target = std::ceil(static_cast<double>(samples) * weight);
    sizes.push_back(static_cast<int64_t>(std::ceil(target * (1 + 0.005))));
  }
  return sizes;
}

BlendIndex::BlendIndex(std::span<const double> normalized_weights, int64_t samples,
                       std::span<const int64_t> limits)
    : count_(static_cast<int64_t>(normalized_weights.size())) {
  std::vector<int64_t> given(normalized_weights.size(), 0);
  sources_.reserve(static_cast<size_t>(samples));
  for (int64_t k = 0; k < samples; ++k) {
    if (k % kEvery == 0) given_.insert(given_.end(), given.begin(), given.end());
    const double number = static_cast<double>(std::max<int64_t>(k, 1));
    size_t best = given.size();
    double most = std::numeric_limits<double>::lowest();
    for (size_t i = 0; i < given.size(); ++i) {
      if (given[i] >= limits[i]) continue;
      const double lag = normalized_weights[i] * number - static_cast<double>(given[i]);
      if (lag > most) {
        most = lag;
        best = i;
      }
    }
    if (best == given.size()) break;  // all sources have given what they have
    sources_.push_back(static_cast<uint16_t>(best));
    ++given[best];
  }
}

BlendIndex::Place BlendIndex::at(int64_t k) const {
  const int64_t mark = k / kEvery;
  const uint16_t source = sources_[static_cast<size_t>(k)];
  const auto begin = sources_.begin() + mark * kEvery;
  return {source, given_[static_cast<size_t>(mark * count_ + source)] +
                      std::count(begin, sources_.begin() + k, source)};
}

namespace {

class BlendedSamples : public Samples {
 public:
  BlendedSamples(std::vector<std::unique_ptr<Samples>> sources, BlendIndex index)
      : sources_(std::move(sources)), index_(std::move(index)) {}
  int64_t size() const override { return index_.size(); }
  void fill(int64_t first, int64_t count, const SampleBatch& batch) const override {
    check_samples(first, count, size());
    for (int64_t i = 0; i < count; ++i) {
      const BlendIndex::Place place = index_.at(first + i);
      sources_[static_cast<size_t>(place.source)]->fill(place.sample, 1,
                                                        part_of(batch, count, i, 1));
    }
  }

 private:
  std::vector<std::unique_ptr<Samples>> sources_;
  BlendIndex index_;
};

class SamplesInTurn : public Samples {
 public:
  explicit SamplesInTurn(std::vector<std::unique_ptr<Samples>> sources)
      : sources_(std::move(sources)) {
    for (const std::unique_ptr<Samples>& source : sources_) {
      ends_.push_back((ends_.empty() ? 0 : ends_.back()) + source->size());
    }
  }
  int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  void fill(int64_t first, int64_t count, const SampleBatch& batch) const override {
    check_samples(first, count, size());
    for (int64_t done = 0; done < count;) {
      const auto at = std::upper_bound(ends_.begin(), ends_.end(), first + done) - ends_.begin();
      const auto source = static_cast<size_t>(at);
      const int64_t begin = at == 0 ? 0 : ends_[source - 1];
      const int64_t together = std::min(count - done, ends_[source] - first - done);
      sources_[source]->fill(first + done - begin, together, part_of(batch, count, done, together));
      done += together;
    }
  }

 private:
  std::vector<std::unique_ptr<Samples>> sources_;
  std::vector<int64_t> ends_;
};

}  // namespace

std::unique_ptr<Samples> blended_samples(std::vector<std::unique_ptr<Samples>> sources,
                                         BlendIndex index) {
  return std::make_unique<BlendedSamples>(std::move(sources), std::move(index));
}

std::unique_ptr<Samples> samples_in_turn(std::vector<std::unique_ptr<Samples>> sources) {
  return std::make_unique<SamplesInTurn>(std::move(sources));
}

void check_samples(int64_t first, int64_t count, int64_t size) {
  if (first + count <= size) return;
  throw Error(
      Exit::data,
      {.code = "data.exhausted",
       .what = fmt::format("samples {}..{} are asked for, and there are {}", first,
                           first + count - 1, size),
       .help = "the order of data.sampler was made for the length of this run: make the run "
               "shorter, give weights (then a source may come round again), or use "
               "data.sampler=random or feistel, which have no end"});
}

SampleBatch part_of(const SampleBatch& batch, int64_t samples, int64_t first, int64_t count) {
  const auto part = [&](std::span<int32_t> all) {
    const size_t seq = all.size() / static_cast<size_t>(samples);
    return all.subspan(static_cast<size_t>(first) * seq, static_cast<size_t>(count) * seq);
  };
  return {part(batch.inputs), part(batch.targets), part(batch.first_key), part(batch.positions)};
}

void put_sample(std::span<const int32_t> tokens, int64_t row, const SampleBatch& batch) {
  const size_t seq = tokens.size() - 1;
  const size_t at = static_cast<size_t>(row) * seq;
  for (size_t i = 0; i < seq; ++i) {
    batch.inputs[at + i] = id_of(tokens[i]);
    batch.targets[at + i] = is_learned(tokens[i + 1]) ? tokens[i + 1] : -1;
  }
}

}  // namespace mtl
