// Checkpoints that earlier versions of the format wrote (tests/bwc/README.md): all of them load.
#include <filesystem>
#include <string>

#include <doctest/doctest.h>

#include "common/files.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/whole_tensor.h"

namespace mtl {
namespace {

namespace fs = std::filesystem;

TEST_CASE("checkpoints of every version of the format are read, and hold what they held") {
  const fs::path root = fs::path(MTL_SOURCE_DIR) / "tests/bwc";
  for (int64_t version = kOldestManifestVersion; version <= kManifestVersion; ++version) {
    CAPTURE(version);
    const fs::path dir = root / ("checkpoint-v" + std::to_string(version)) / "step-00000003";
    REQUIRE(fs::exists(dir));
    CHECK(nlohmann::json::parse(read_file(dir / kManifestName)).at("version") == version);
    CheckpointReader reader(dir);
    CHECK_NOTHROW(reader.verify());
    CHECK(reader.state().at("step") == 3);
    CHECK(reader.tokenizer().at("type") == "chars");
    const std::vector<TensorInfo> tensors = tensors_of(reader);
    REQUIRE(tensors.size() == 16 * 3);
    // Written by two tensor-parallel ranks and read as one.
    for (const TensorInfo& tensor : tensors) {
      std::vector<float> values(static_cast<size_t>(tensor.elements));
      read_elements(reader, tensor, DType::f32, 0, tensor.elements, values.data());
      if (tensor.name != "transformer.wte.weight") continue;
      CHECK(tensor.shape == std::vector<int64_t>{35, 8});
      // All versions are of the same run.
      CHECK(values[0] == doctest::Approx(0.014840158633887768).epsilon(1e-4));
    }
  }
}

}  // namespace
}  // namespace mtl
