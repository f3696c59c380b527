// What two checkpoints differ in.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace mtl {

struct TensorDifference {
  std::string tensor;
  std::string what;  // "only in A", "only in B", "shape", "dtype", "values"
  // Of `values`: how many elements, the largest difference, and the largest relative to the larger
  // of the two. Not a number, if one of them is none and the other is.
  int64_t elements = 0;
  double max_abs = 0, max_rel = 0;
};

struct CheckpointDifference {
  // JSON Patch (RFC 6902) that makes the state of A that of B.
  nlohmann::json state = nlohmann::json::array();
  std::vector<TensorDifference> tensors;
  std::vector<std::string> extras;  // extra files that differ or are in one only
  int64_t equal_tensors = 0;
  bool none() const { return state.empty() && tensors.empty() && extras.empty(); }
};

// Reads both in pieces and verifies them on the way. `state`: compare it too. Throws Error
// (Exit::data) as CheckpointReader does.
CheckpointDifference compare(const std::filesystem::path& a, const std::filesystem::path& b,
                             bool state);

}  // namespace mtl
