#include "runtime/interchange/merge_adapters.h"

#include <algorithm>

namespace mtl {

MergeAdapters::MergeAdapters(const ModelShape& shape)
    : lora_(shape.lora), table_(shard_table(shape, false)) {
  for (const AdaptedRow& row : adapted_rows(table_)) adapters_[row.weight->name] = row;
}

const AdaptedRow* MergeAdapters::find(const std::string& name) const {
  const auto found = adapters_.find(name);
  return found == adapters_.end() ? nullptr : &found->second;
}

void MergeAdapters::merge(const std::string& name, std::vector<float>& values,
                          const Read& read) const {
  const AdaptedRow* const adapter = find(name);
  if (adapter == nullptr) return;
  const auto& [weight, a_row, b_row] = *adapter;
  const auto scale = static_cast<float>(lora_.scale());
  const std::vector<float> a = read(a_row->name, a_row->shape), b = read(b_row->name, b_row->shape);
  const int64_t rank = a_row->shape[0], in = a_row->shape[1], out = b_row->shape[0];
  std::vector<float> of_output(static_cast<size_t>(in));
  for (int64_t o = 0; o < out; ++o) {
    std::fill(of_output.begin(), of_output.end(), 0.0f);
    for (int64_t r = 0; r < rank; ++r) {
      const float factor = scale * b[static_cast<size_t>(o * rank + r)];
      const float* const row = a.data() + r * in;
      for (int64_t i = 0; i < in; ++i) of_output[static_cast<size_t>(i)] += factor * row[i];
    }
    const int64_t first = weight->out_in ? o * in : o, step = weight->out_in ? 1 : out;
    for (int64_t i = 0; i < in; ++i) {
      values[static_cast<size_t>(first + i * step)] += of_output[static_cast<size_t>(i)];
    }
  }
}

}  // namespace mtl
