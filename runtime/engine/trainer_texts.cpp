// How a trainer continues texts, in the layout that it trains in: each token is a forward pass over
// the whole texts, in evaluation's memory. Keys and values of earlier tokens are not kept: for the
// hundred tokens of a sample a pass costs about as much with them (it reads all weights, gathers
// their shards, goes through all stages), and they would need memory of their own.
#include <algorithm>

#include "runtime/checkpoint/elements_as_double.h"
#include "runtime/engine/trainer.h"

namespace mtl {

namespace {

// Texts as sequences of one length, filled up behind their ends, where no token before them looks.
class FilledTexts : public Samples {
 public:
  explicit FilledTexts(std::span<const std::vector<int32_t>> texts) : texts_(texts) {}
  int64_t size() const override { return kEndless; }
  // From the last one on, that one.
  void fill(int64_t first, int64_t count, const SampleBatch& batch) const override {
    const size_t seq = batch.inputs.size() / static_cast<size_t>(count);
    std::ranges::fill(batch.targets, -1);
    std::ranges::fill(batch.first_key, 0);
    for (size_t i = 0; i < batch.inputs.size(); ++i) {
      const size_t text = std::min(static_cast<size_t>(first) + i / seq, texts_.size() - 1);
      batch.inputs[i] = i % seq < texts_[text].size() ? texts_[text][i % seq] : 0;
      if (!batch.positions.empty()) batch.positions[i] = static_cast<int32_t>(i % seq);
    }
  }

 private:
  std::span<const std::vector<int32_t>> texts_;
};

}  // namespace

std::vector<float> Trainer::logits_of(const Chunk& chunk, const Pass& pass, int64_t row) {
  const Tensor part = chunk.logits(pass, row);
  std::vector<char> bytes(static_cast<size_t>(part.bytes()));
  device_.copy_to_host(bytes.data(), part);
  std::vector<float> own(static_cast<size_t>(part.numel()));
  for (size_t i = 0; i < own.size(); ++i) {
    own[i] =
        static_cast<float>(element_as_double(part.dtype, bytes.data(), static_cast<int64_t>(i)));
  }
  Communicator& tensor = groups_[Link::tensor];
  std::vector<float> all(own.size() * static_cast<size_t>(tensor.size()));
  if (tensor.size() > 1) {
    tensor.all_gather(Tensor(own.data(), DType::f32, {part.numel()}),
                      Tensor(all.data(), DType::f32, {static_cast<int64_t>(all.size())}));
  } else {
    all = std::move(own);
  }
  all.resize(static_cast<size_t>(plan_.model.vocab));
  return all;
}

std::vector<int32_t> Trainer::next_tokens(std::span<const std::vector<int32_t>> texts, int64_t room,
                                          const Choose& choose) {
  weights_for_reading();
  const auto count = static_cast<int64_t>(texts.size());
  const int64_t replicas = plan_.grid.replicas();
  // All make as many passes: they gather each other's shards, or send each other tokens, in each.
  const int64_t share = (count + replicas - 1) / replicas;
  const int64_t begin = plan_.grid.replica(coord_) * share;
  const FilledTexts samples(texts);
  Pass pass;
  pass.seq = plan_.tokens_of_pass(room) / plan_.grid.sizes()[Axis::cp];
  pass.losses = false;
  // One more than the token, so that the sum over the ranks is what the one has put there.
  std::vector<int32_t> next(texts.size(), 0);
  const auto choose_behind = [&](const Chunk& chunk, const Pass& done, int64_t first) {
    for (int64_t i = 0; i < done.sequences && first + i < count; ++i) {
      const auto text = static_cast<size_t>(first + i);
      // Of a divided sequence the rank has a share.
      const int64_t last =
          static_cast<int64_t>(texts[text].size()) - 1 - coord_[Axis::cp] * done.seq;
      if (last < 0 || last >= done.seq) continue;
      const std::vector<float> logits = logits_of(chunk, done, i * done.seq + last);
      if (coord_[Axis::tp] == 0) next[text] = choose(logits, text) + 1;
    }
  };
  forward_only(
      {.samples = samples, .first = begin, .end = begin + share, .behind_head = choose_behind},
      pass);
  // From the rank that has chosen to those of its part of every layer, and from each to the others
  // of its layers: by groups that every step uses, so that none is made for this.
  const Tensor chosen(next.data(), DType::i32, {count});
  if (groups_[Link::loss].size() > 1) groups_[Link::loss].all_reduce(chosen);
  if (groups_[Link::tensor].size() > 1) groups_[Link::tensor].broadcast(chosen, 0);
  for (int32_t& id : next) --id;
  return next;
}

}  // namespace mtl
