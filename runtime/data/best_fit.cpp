#include "runtime/data/best_fit.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "runtime/data/blend.h"
#include "runtime/data/orders.h"

namespace mtl {

namespace {

// Inputs that a document has in a sequence: its last token is a target only.
int64_t inputs_of(int64_t tokens, int64_t seq_len) {
  return std::clamp<int64_t>(tokens - 1, 0, seq_len);
}

// Whether a document that is cut has a target before that.
bool learns_within(const Documents& documents, int64_t document, int64_t seq_len) {
  std::vector<int32_t> tokens(static_cast<size_t>(seq_len));
  documents.read(document, 1, tokens);
  return std::any_of(tokens.begin(), tokens.end(), is_learned);
}

// Puts pieces into boxes of the same size.
class Boxes {
 public:
  explicit Boxes(int64_t size) : by_room_(static_cast<size_t>(size)), size_(size) {}
  // The box that a piece of 1 .. size goes into.
  int32_t put(int64_t piece) {
    const auto fits = rooms_.lower_bound(piece);
    int32_t box = count_;
    int64_t room = size_;
    if (fits == rooms_.end()) {
      ++count_;
    } else {
      room = *fits;
      std::vector<int32_t>& boxes = by_room_[static_cast<size_t>(room)];
      box = boxes.back();
      boxes.pop_back();
      if (boxes.empty()) rooms_.erase(fits);
    }
    const int64_t left = room - piece;
    if (left > 0) {
      by_room_[static_cast<size_t>(left)].push_back(box);
      rooms_.insert(left);
    }
    return box;
  }
  int32_t count() const { return count_; }

 private:
  std::vector<std::vector<int32_t>> by_room_;  // of boxes that are begun; a full one is in none
  std::set<int64_t> rooms_;                    // those of by_room_ that are not empty
  int64_t size_;
  int32_t count_ = 0;
};

class BestFitSamples : public Samples {
 public:
  BestFitSamples(std::shared_ptr<const Documents> documents,
                 std::shared_ptr<const BestFitOrder> order, int64_t seq_len, int32_t padding,
                 std::optional<uint64_t> seed)
      : documents_(std::move(documents)),
        order_(std::move(order)),
        seq_len_(seq_len),
        padding_(padding),
        seed_(seed) {}

  int64_t size() const override { return seed_ ? kEndless : order_->sequences(); }

  void fill(int64_t first, int64_t count, const SampleBatch& batch) const override {
    check_samples(first, count, size());
    for (int64_t i = 0; i < count; ++i) {
      put(sequence_at(first + i), part_of(batch, count, i, 1));
    }
  }

 private:
  int64_t sequence_at(int64_t sample) const {
    const int64_t in_epoch = order_->sequences();
    if (!seed_) return sample;
    return FeistelPermutation(in_epoch, *seed_, sample / in_epoch)(sample % in_epoch);
  }

  void put(int64_t sequence, const SampleBatch& sample) const {
    std::vector<int32_t> tokens;
    int64_t at = 0;
    const auto place = [&](int64_t begin) {
      if (!sample.first_key.empty()) {
        sample.first_key[static_cast<size_t>(at)] = static_cast<int32_t>(begin);
      }
      if (!sample.positions.empty()) {
        sample.positions[static_cast<size_t>(at)] = static_cast<int32_t>(at - begin);
      }
    };
    for (int64_t d = order_->begins[static_cast<size_t>(sequence)];
         d < order_->begins[static_cast<size_t>(sequence) + 1]; ++d) {
      const int32_t document = order_->documents[static_cast<size_t>(d)];
      const int64_t inputs = inputs_of(documents_->length(document), seq_len_);
      tokens.resize(static_cast<size_t>(inputs + 1));
      documents_->read(document, 0, tokens);
      const auto part = [&](std::span<int32_t> all) {
        return all.subspan(static_cast<size_t>(at), static_cast<size_t>(inputs));
      };
      put_sample(tokens, 0, {part(sample.inputs), part(sample.targets)});
      for (const int64_t begin = at; at < begin + inputs; ++at) place(begin);
    }
    for (; at < seq_len_; ++at) {
      sample.inputs[static_cast<size_t>(at)] = padding_;
      sample.targets[static_cast<size_t>(at)] = -1;
      place(at);
    }
  }

  std::shared_ptr<const Documents> documents_;
  std::shared_ptr<const BestFitOrder> order_;
  int64_t seq_len_;
  int32_t padding_;
  std::optional<uint64_t> seed_;
};

}  // namespace

BestFitOrder best_fit_order(const Documents& documents, int64_t seq_len) {
  const int64_t count = documents.count();
  if (count > std::numeric_limits<int32_t>::max()) {
    throw Error(Exit::data,
                {.code = "data.order",
                 .what = fmt::format("data.sampler=best_fit cannot pack {} documents", count),
                 .help = "use data.sampler=feistel, which has no such limit"});
  }
  BestFitOrder order;
  // By length, the longest first; of the same length in their own order.
  std::vector<int64_t> of_length(static_cast<size_t>(seq_len) + 2, 0);
  for (int64_t d = 0; d < count; ++d) {
    const int64_t tokens = documents.length(d);
    const int64_t inputs = inputs_of(tokens, seq_len);
    if (tokens - 1 > inputs) {
      ++order.cut_documents;
      order.cut_tokens += tokens - 1 - inputs;
      order.cut_unlearned += !learns_within(documents, d, seq_len);
    }
    ++of_length[static_cast<size_t>(seq_len - inputs + 1)];
  }
  for (size_t i = 1; i < of_length.size(); ++i) of_length[i] += of_length[i - 1];
  // of_length[seq_len] documents have anything to foresee, and stand in front.
  const int64_t used = of_length[static_cast<size_t>(seq_len)];
  if (used == 0) {
    throw Error(Exit::data, {.code = "data.too_short",
                             .what = "no document has two tokens, one to see and one to foresee",
                             .help = "look at what the corpus holds: mtl data stats PREFIX"});
  }
  if (order.cut_unlearned == used) {
    throw Error(
        Exit::data,
        {.code = "data.loss",
         .what = fmt::format("no document has anything to learn within train.seq_len {}", seq_len),
         .help = "use a longer train.seq_len: mtl data preview PREFIX shows what is learned"});
  }
  std::vector<int32_t> sorted(static_cast<size_t>(count));
  for (int64_t d = 0; d < count; ++d) {
    const int64_t inputs = inputs_of(documents.length(d), seq_len);
    sorted[static_cast<size_t>(of_length[static_cast<size_t>(seq_len - inputs)]++)] =
        static_cast<int32_t>(d);
  }
  Boxes boxes(seq_len);
  std::vector<int32_t> box_of(static_cast<size_t>(used));
  for (size_t i = 0; i < box_of.size(); ++i) {
    box_of[i] = boxes.put(inputs_of(documents.length(sorted[i]), seq_len));
  }
  order.begins.assign(static_cast<size_t>(boxes.count()) + 1, 0);
  for (const int32_t box : box_of) ++order.begins[static_cast<size_t>(box) + 1];
  for (size_t i = 1; i < order.begins.size(); ++i) order.begins[i] += order.begins[i - 1];
  std::vector<int64_t> next(order.begins.begin(), order.begins.end() - 1);
  order.documents.resize(box_of.size());
  for (size_t i = 0; i < box_of.size(); ++i) {
    order.documents[static_cast<size_t>(next[static_cast<size_t>(box_of[i])]++)] = sorted[i];
  }
  return order;
}

std::unique_ptr<Samples> best_fit_samples(std::shared_ptr<const Documents> documents,
                                          std::shared_ptr<const BestFitOrder> order,
                                          int64_t seq_len, int32_t padding,
                                          std::optional<uint64_t> seed) {
  return std::make_unique<BestFitSamples>(std::move(documents), std::move(order), seq_len, padding,
                                          seed);
}

}  // namespace mtl
