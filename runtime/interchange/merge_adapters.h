// The model that adapters make of the one beside them: W + alpha / rank B A in place of W
// (ModelShape::lora).
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/plan/shard_table.h"

namespace mtl {

class MergeAdapters {
 public:
  // Of a model that has adapters.
  explicit MergeAdapters(const ModelShape& shape);
  MergeAdapters(const MergeAdapters&) = delete;
  MergeAdapters& operator=(const MergeAdapters&) = delete;

  using Read =
      std::function<std::vector<float>(const std::string& name, const std::vector<int64_t>& shape)>;
  // Adds to the values of a whole parameter what its adapter does, if it has one; `read` gives
  // whole parameters of the same model.
  void merge(const std::string& name, std::vector<float>& values, const Read& read) const;

  // Null where the parameter has none.
  const AdaptedRow* find(const std::string& name) const;
  const ModelShape::Lora& lora() const { return lora_; }

 private:
  ModelShape::Lora lora_;
  std::vector<ParamRow> table_;
  std::map<std::string, AdaptedRow> adapters_;  // by the weight's name
};

}  // namespace mtl
