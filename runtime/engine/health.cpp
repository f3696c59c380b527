#include "runtime/engine/health.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <vector>

#include <fmt/format.h>

namespace mtl {

namespace {

constexpr int64_t kNothing = std::numeric_limits<int64_t>::max();

// What a rank tells the others.
struct Record {
  int64_t key;
  std::array<char, 248> text;
};

std::string layer_name(const Plan& plan, int64_t layer) {
  if (layer < 0) return "embedding";
  return layer == plan.model.layers ? "head" : fmt::format("layer {}", layer);
}

}  // namespace

NotFiniteSearch::NotFiniteSearch(const Plan& plan, int rank, Device& device)
    : plan_(plan), rank_(rank), device_(device), key_(kNothing) {
  inspect_ = [this](int64_t layer, const char* what, Tensor made) {
    if (is_new(made)) found(layer, what);
  };
}

bool NotFiniteSearch::is_new(Tensor tensor) const {
  return key_ == kNothing && tensor && !device_.all_finite(tensor);
}

void NotFiniteSearch::weights(const ParamRow& row, Tensor weights) {
  if (!is_new(weights)) return;
  key_ = -1;
  text_ = fmt::format("the weights {} on rank {}, before the step", row.name, rank_);
}

void NotFiniteSearch::gradient(const ParamRow& row, Tensor grad) {
  if (is_new(grad)) found(row.layer, "gradient of " + row.name);
}

void NotFiniteSearch::found(int64_t layer, const std::string& what) {
  const int64_t places = plan_.model.layers + 2;
  const bool forward = at_.op == Op::forward;
  const int64_t place = forward ? layer + 1 : 2 * places - (layer + 1);
  key_ = at_.micro_batch * 2 * (places + 1) + place;
  text_ = fmt::format("{}: {}, in {} of micro-batch {} on rank {}", layer_name(plan_, layer), what,
                      op_name(at_.op), at_.micro_batch, rank_);
}

std::string NotFiniteSearch::agree(Communicator& world) const {
  std::vector<Record> records(static_cast<size_t>(world.size()));
  Record& mine = records[static_cast<size_t>(world.rank())];
  mine.key = key_;
  std::strncpy(mine.text.data(), text_.c_str(), mine.text.size() - 1);
  const auto bytes = static_cast<int64_t>(sizeof(Record));
  const Tensor all(records.data(), DType::u8, {bytes * world.size()});
  world.all_gather(all.slice(world.rank() * bytes, bytes), all);
  const auto first =
      std::min_element(records.begin(), records.end(),
                       [](const Record& a, const Record& b) { return a.key < b.key; });
  if (first->key == kNothing) {
    return "running the step again gave finite numbers: a fault of the hardware, or a sum that "
           "overflowed";
  }
  return std::string("first not finite: ") + first->text.data();
}

}  // namespace mtl
