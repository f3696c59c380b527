#include "runtime/engine/tied_embedding.h"

namespace mtl {

TiedEmbedding::TiedEmbedding(Device& device, const Arena& arena, const Parameters& parameters,
                             const VocabShard& shard)
    : device_(device),
      shard_(shard),
      slots_(arena.find("tied.slots")),
      rows_(arena.find_tensor("tied.grad")),
      ids_(arena.find_tensor("tied.ids")) {
  if (!rows_) return;
  grad_ = parameters.find(-1, "tokens").grad;
  row_of_.assign(static_cast<size_t>(shard.rows), -1);
}

void TiedEmbedding::begin_step() {
  for (const int32_t id : ids_of_rows_) row_of_[static_cast<size_t>(id - shard_.first)] = -1;
  ids_of_rows_.clear();
}

void TiedEmbedding::load(std::span<const int32_t> tokens, int slot) {
  if (!rows_) return;
  const size_t before = ids_of_rows_.size();
  host_.resize(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t local = tokens[i] - shard_.first;
    if (local < 0 || local >= shard_.valid) {
      host_[i] = -1;
      continue;
    }
    int32_t& row = row_of_[static_cast<size_t>(local)];
    if (row < 0) {
      row = static_cast<int32_t>(ids_of_rows_.size());
      ids_of_rows_.push_back(tokens[i]);
    }
    host_[i] = row;
  }
  device_.copy_from_host(slots_.in(slot).slice(0, static_cast<int64_t>(tokens.size())),
                         host_.data());
  const int64_t cols = rows_.cols(), first = static_cast<int64_t>(before);
  const auto count = static_cast<int64_t>(ids_of_rows_.size() - before);
  if (count > 0) device_.fill(rows_.slice(first * cols, count * cols), 0.0f);
}

void TiedEmbedding::merge() {
  const auto count = static_cast<int64_t>(ids_of_rows_.size());
  if (!rows_ || count == 0) return;
  const Tensor ids = ids_.slice(0, count);
  device_.copy_from_host(ids, ids_of_rows_.data());
  const Tensor rows(rows_.data, rows_.dtype, {count, rows_.cols()});
  device_.embedding_backward(ids, rows, shard_.first, grad_);
}

}  // namespace mtl
