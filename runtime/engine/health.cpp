#include "runtime/engine/health.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <vector>

#include <fmt/ranges.h>

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

// "rank 3", "ranks 0, 1", "ranks 0, 1, 2, 3 and 12 more".
std::string rank_names(const std::vector<int>& ranks) {
  constexpr size_t kNamed = 4;
  if (ranks.size() == 1) return fmt::format("rank {}", ranks.front());
  const size_t named = std::min(ranks.size(), kNamed);
  std::string text = fmt::format(
      "ranks {}", fmt::join(ranks.begin(), ranks.begin() + static_cast<long>(named), ", "));
  if (named < ranks.size()) text += fmt::format(" and {} more", ranks.size() - named);
  return text;
}

}  // namespace

NotFiniteSearch::NotFiniteSearch(const Plan& plan, Device& device)
    : plan_(plan), device_(device), key_(kNothing) {
  inspect_ = [this](int64_t layer, const char* what, Tensor made) {
    if (is_new(made)) found(layer, what);
  };
}

bool NotFiniteSearch::is_new(Tensor tensor) const {
  return key_ == kNothing && tensor && !device_.all_finite(tensor);
}

void NotFiniteSearch::weights(size_t row, Tensor weights) {
  const auto key = static_cast<int64_t>(row) - static_cast<int64_t>(plan_.table.size());
  // Parameters need not lie in the table's order.
  if (key >= key_ || device_.all_finite(weights)) return;
  key_ = key;
  text_ = "the weights " + plan_.table[row].name + ", before the step,";
}

void NotFiniteSearch::gradient(int64_t layer, const ParamRow& row, Tensor grad) {
  if (is_new(grad)) found(layer, "gradient of " + row.name);
}

void NotFiniteSearch::found(int64_t layer, const std::string& what) {
  const int64_t places = plan_.model.layers + 2;
  const bool forward = at_.op == Op::forward;
  const int64_t place = forward ? layer + 1 : 2 * places - (layer + 1);
  key_ = at_.micro_batch * 2 * (places + 1) + place;
  text_ = fmt::format("{}: {}, in {} of micro-batch {}", layer_name(plan_, layer), what,
                      op_name(at_.op), at_.micro_batch);
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
  std::vector<int> ranks;
  for (size_t rank = 0; rank < records.size(); ++rank) {
    const Record& other = records[rank];
    const bool same = other.key == first->key && other.text == first->text;
    if (same) ranks.push_back(static_cast<int>(rank));
  }
  return fmt::format("first not finite: {} on {}", first->text.data(), rank_names(ranks));
}

}  // namespace mtl
