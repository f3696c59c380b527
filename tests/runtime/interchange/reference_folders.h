// The models of others in tests/reference/interchange, with the logits that their own programs gave
// (interchange_reference.py).
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/interchange/foreign_model.h"
#include "runtime/spec/train_spec.h"
#include "support/errors.h"

namespace mtl::test {

std::filesystem::path reference_folder(const std::string& name);

// The settings of the reference folder "llama".
TrainSpec llama_spec();

// What a config.json says of a model.
struct ConfigRead {
  ModelShape shape;
  std::string problems;  // "" or what is wrong, or warned of, each with the end of a line
  std::string architecture;
  bool mxfp4 = false;  // the weights of experts are
};
ConfigRead read_config(const nlohmann::json& config);
// That of a folder with other fields. null: the field is taken out; "null" is null.
ConfigRead read_config(const std::string& folder, const nlohmann::json& changes);
// A shape comes back from the config that is written of it.
void check_returns(const ModelShape& shape);

// The train.yaml beside an import of the folder says the model that was imported.
void check_import_says(const std::string& name);

using Change = std::function<void(ModelShape&)>;
// The architecture that `shape` has after `change`, or the settings that keep it from having any.
std::string family_or_keys(ModelShape shape, const Change& change);

// The bytes of every tensor of a folder, by name.
std::map<std::string, std::string> tensor_bytes(const std::filesystem::path& folder);

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
