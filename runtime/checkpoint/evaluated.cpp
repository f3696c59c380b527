// The file beside a checkpoint that says that an evaluation which had been left is done.
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/files.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/manifest.h"

namespace mtl {

namespace fs = std::filesystem;

void add_evaluation(const fs::path& dir, nlohmann::json& state) {
  if (!state.is_object() || !state.contains(kEvaluationLeft)) return;
  std::error_code error;
  if (!fs::is_regular_file(fs::symlink_status(dir / kEvaluatedName, error))) return;
  nlohmann::json said;
  try {
    said = nlohmann::json::parse(read_file(dir / kEvaluatedName), nullptr, false);
  } catch (const Error&) {
    return;
  }
  if (!said.is_object() || !said.contains("metrics") || !said["metrics"].is_object()) return;
  state.erase(kEvaluationLeft);
  nlohmann::json& metrics = state["metrics"];
  if (!metrics.is_object()) metrics = nlohmann::json::object();
  metrics.update(said["metrics"]);
}

}  // namespace mtl
