// The models of others in tests/reference/interchange, with the logits that their own programs gave
// (interchange_reference.py).
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "runtime/interchange/foreign_model.h"
#include "support/errors.h"

namespace mtl::test {

std::filesystem::path reference_folder(const std::string& name);

// A folder of this test that is gone with it.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// Of a checkpoint of ours: the largest distance of its logits from those of `reference`'s own
// program.
double logits_distance(const std::filesystem::path& checkpoint, const std::string& reference);

// All parameters of a model, whole.
std::map<std::string, std::vector<float>> all_weights(const ForeignModel& model);
std::map<std::string, std::vector<float>> all_weights(const std::filesystem::path& checkpoint);

}  // namespace mtl::test
