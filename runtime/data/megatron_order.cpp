#include "runtime/data/megatron_order.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>
#include <xxhash.h>

#include <fmt/format.h>

#include "common/error.h"
#include "common/files.h"
#include "runtime/data/blend.h"
#include "runtime/data/numpy_random.h"

namespace mtl {

namespace {

// The smallest number of epochs whose tokens are enough, one more than the samples' own (the target
// of the last).
int64_t epochs_for(int64_t samples, int64_t seq_len, int64_t tokens_per_epoch) {
  __extension__ using Wide = __int128;
  const Wide needed = static_cast<Wide>(samples) * seq_len + 1;
  const Wide epochs = std::max<Wide>(1, (needed + tokens_per_epoch - 1) / tokens_per_epoch);
  if (epochs > std::numeric_limits<int32_t>::max()) {
    fail_data("data.order",
              fmt::format("{} samples of {} tokens are too many epochs of {} tokens", samples,
                          seq_len, tokens_per_epoch),
              "give more data, or data.sampler=feistel, which needs no index");
  }
  return static_cast<int64_t>(epochs);
}

void append_shuffled(std::vector<int32_t>& documents, int64_t count, int64_t epochs,
                     Mt19937& random) {
  const auto begin = static_cast<int64_t>(documents.size());
  documents.resize(static_cast<size_t>(begin + count * epochs));
  for (int64_t e = 0; e < epochs; ++e) {
    const auto from = documents.begin() + begin + e * count;
    std::iota(from, from + count, 0);
  }
  numpy_shuffle(random, documents.data() + begin, count * epochs);
}

std::vector<MegatronOrder::Start> cut(const Documents& documents, const std::vector<int32_t>& order,
                                      int64_t samples, int64_t seq_len) {
  std::vector<MegatronOrder::Start> starts;
  starts.reserve(static_cast<size_t>(samples) + 1);
  MegatronOrder::Start at;
  starts.push_back(at);
  int64_t length = documents.length(order.front());
  while (static_cast<int64_t>(starts.size()) <= samples) {
    // A sample is seq_len + 1 tokens; the next begins with its last one.
    int64_t left = seq_len + 1;
    while (left > length - at.token) {
      left -= length - at.token;
      length = documents.length(order[static_cast<size_t>(++at.position)]);
      at.token = 0;
    }
    at.token += left - 1;
    starts.push_back(at);
  }
  return starts;
}

}  // namespace

int64_t megatron_samples(const Documents& documents, int64_t seq_len, int64_t epochs) {
  return (epochs * documents.tokens() - 1) / seq_len;
}

MegatronEpochs megatron_epochs(const Documents& documents, int64_t seq_len,
                               std::optional<int64_t> samples) {
  const int64_t per_epoch = documents.tokens();
  if (per_epoch <= seq_len) {
    fail_data("data.too_short",
              fmt::format("no sample of {} + 1 tokens fits into a corpus of {} tokens", seq_len,
                          per_epoch),
              "use a shorter train.seq_len, more data, or another data.split");
  }
  MegatronEpochs together;
  if (samples) together.epochs = epochs_for(*samples, seq_len, per_epoch);
  if (together.epochs > 1) {
    const int64_t from_last = *samples - megatron_samples(documents, seq_len, together.epochs - 1);
    const auto threshold =
        static_cast<int64_t>(0.80 * static_cast<double>((per_epoch - 1) / seq_len));
    together.separate_final_epoch = from_last < threshold;
  }
  return together;
}

MegatronOrder megatron_order(const Documents& documents, const MegatronOrderOptions& options) {
  const int64_t count = documents.count(), seq = options.seq_len;
  const auto [epochs, separate] = options.together;
  const int64_t samples = megatron_samples(documents, seq, epochs);
  if (epochs > std::numeric_limits<int32_t>::max() / std::max<int64_t>(count, 1) ||
      samples >= std::numeric_limits<uint32_t>::max() - 1) {
    fail_data("data.order",
              fmt::format("{} epochs of {} documents, {} samples, are more than an index holds",
                          epochs, count, samples),
              "use data.sampler=feistel, which needs no index, or fewer steps");
  }
  MegatronOrder order;
  Mt19937 random(options.seed);
  if (separate) {
    append_shuffled(order.documents, count, epochs - 1, random);
    append_shuffled(order.documents, count, 1, random);
  } else {
    append_shuffled(order.documents, count, epochs, random);
  }
  order.starts = cut(documents, order.documents, samples, seq);
  order.shuffle.resize(static_cast<size_t>(samples));
  std::iota(order.shuffle.begin(), order.shuffle.end(), 0u);
  const int64_t first = separate ? megatron_samples(documents, seq, epochs - 1) : samples;
  numpy_shuffle(random, order.shuffle.data(), first);
  numpy_shuffle(random, order.shuffle.data() + first, samples - first);
  return order;
}

namespace {

// A file of the cache: this, the arrays one behind the other, and the XXH3 of all before it.
struct CacheHeader {
  char magic[16] = "mtl.order.2";
  uint64_t key = 0;
  int64_t documents = 0, starts = 0, shuffle = 0;
};

template <typename T>
std::string_view bytes_of_all(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::optional<MegatronOrder> read_cache(const std::filesystem::path& file, uint64_t key) {
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return std::nullopt;
  const std::string content = read_file(file);
  CacheHeader header;
  uint64_t hash = 0;
  if (content.size() < sizeof(header) + sizeof(hash)) return std::nullopt;
  std::memcpy(&header, content.data(), sizeof(header));
  std::memcpy(&hash, content.data() + content.size() - sizeof(hash), sizeof(hash));
  if (hash != XXH3_64bits(content.data(), content.size() - sizeof(hash))) return std::nullopt;
  if (std::string_view(header.magic) != CacheHeader().magic || header.key != key) {
    return std::nullopt;
  }
  MegatronOrder order;
  const char* at = content.data() + sizeof(header);
  const auto take = [&](auto& values, int64_t count) {
    values.resize(static_cast<size_t>(count));
    const size_t bytes = values.size() * sizeof(values[0]);
    std::memcpy(values.data(), at, bytes);
    at += bytes;
  };
  // The hash has been seen to be right: so are the counts.
  take(order.documents, header.documents);
  take(order.starts, header.starts);
  take(order.shuffle, header.shuffle);
  return order;
}

}  // namespace

MegatronOrder cached_megatron_order(const std::filesystem::path& folder, const std::string& key,
                                    const Documents& documents,
                                    const MegatronOrderOptions& options) {
  const std::string all =
      fmt::format("{} documents {} tokens {} seq {} epochs {} separate {} seed {}", key,
                  documents.count(), documents.tokens(), options.seq_len, options.together.epochs,
                  options.together.separate_final_epoch, options.seed);
  CacheHeader header;
  header.key = XXH3_64bits(all.data(), all.size());
  const std::filesystem::path file = folder / fmt::format("order-{:016x}.bin", header.key);
  if (std::optional<MegatronOrder> order = read_cache(file, header.key)) return *std::move(order);
  MegatronOrder order = megatron_order(documents, options);
  header.documents = static_cast<int64_t>(order.documents.size());
  header.starts = static_cast<int64_t>(order.starts.size());
  header.shuffle = static_cast<int64_t>(order.shuffle.size());
  std::string content(reinterpret_cast<const char*>(&header), sizeof(header));
  content += bytes_of_all(order.documents);
  content += bytes_of_all(order.starts);
  content += bytes_of_all(order.shuffle);
  const uint64_t hash = XXH3_64bits(content.data(), content.size());
  content.append(reinterpret_cast<const char*>(&hash), sizeof(hash));
  make_directories(folder);
  write_file_atomic(file, content);
  return order;
}

namespace {

class PackedSamples : public Samples {
 public:
  PackedSamples(std::shared_ptr<const Documents> documents, MegatronOrder order, int64_t seq_len)
      : documents_(std::move(documents)), order_(std::move(order)), seq_len_(seq_len) {}

  int64_t size() const override { return static_cast<int64_t>(order_.shuffle.size()); }

  void fill(int64_t first, int64_t count, const SampleBatch& batch) const override {
    check_samples(first, count, size());
    std::vector<int32_t> tokens(static_cast<size_t>(seq_len_ + 1));
    for (int64_t i = 0; i < count; ++i) {
      read(order_.starts[order_.shuffle[static_cast<size_t>(first + i)]], tokens);
      put_sample(tokens, i, batch);
    }
  }

 private:
  void read(MegatronOrder::Start at, std::span<int32_t> out) const {
    while (!out.empty()) {
      const int32_t document = order_.documents[static_cast<size_t>(at.position)];
      const auto count = static_cast<size_t>(std::min<int64_t>(
          static_cast<int64_t>(out.size()), documents_->length(document) - at.token));
      if (count > 0) documents_->read(document, at.token, out.first(count));
      out = out.subspan(count);
      at = {at.position + 1, 0};
    }
  }

  std::shared_ptr<const Documents> documents_;
  MegatronOrder order_;
  int64_t seq_len_;
};

}  // namespace

std::unique_ptr<Samples> packed_samples(std::shared_ptr<const Documents> documents,
                                        MegatronOrder order, int64_t seq_len) {
  return std::make_unique<PackedSamples>(std::move(documents), std::move(order), seq_len);
}

std::vector<std::pair<int64_t, int64_t>> megatron_split(const std::vector<double>& weights,
                                                        int64_t count) {
  std::vector<double> three = weights;
  three.resize(3, 0.0);
  std::vector<std::pair<int64_t, int64_t>> parts;
  double end = 0;
  for (const double share : normalized(three)) {
    const double begin = end;
    end += share;
    // Python's round: halves go to the even number.
    const auto at = [&](double part) {
      return std::min(count,
                      static_cast<int64_t>(std::nearbyint(part * static_cast<double>(count))));
    };
    parts.emplace_back(at(begin), end > begin ? at(end) : at(begin));
  }
  return parts;
}

}  // namespace mtl
