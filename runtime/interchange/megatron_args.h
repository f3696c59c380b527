// What a checkpoint of Megatron-LM's says of its run: the 'args' beside its tensors.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/error.h"
#include "runtime/interchange/torch_file.h"
#include "runtime/plan/model_shape.h"

namespace mtl {

class MegatronArgs {
 public:
  // Fails where there are none. What mtl cannot run goes to `diagnostics`.
  MegatronArgs(const TorchFile& file, Diagnostics& diagnostics);

  // What the model computes, without its vocabulary: that follows from its tensors too.
  ModelShape shape();

  // Null where it is missing or None.
  const Pickle::Value* find(std::string_view key) const;
  int64_t size(const char* key, std::optional<int64_t> otherwise = std::nullopt);
  void refuse(const std::string& what);

 private:
  double number(const char* key, double otherwise);
  bool boolean(const char* key, bool otherwise);
  std::string text(const char* key, const std::string& otherwise);
  void require_off(const char* key, const char* why);

  void read_feed_forward(ModelShape& shape);
  void read_norm(ModelShape& shape);
  void read_positions(ModelShape& shape);
  void read_rope(ModelShape& shape);
  void read_windows(ModelShape& shape);
  // The last of every N layers, or those that a list has as `chosen`.
  std::vector<int64_t> layers_of(const char* key, int64_t layers, int64_t chosen);

  const TorchFile& file_;
  Diagnostics& diagnostics_;
  const Pickle::Value* attributes_ = nullptr;
};

}  // namespace mtl
