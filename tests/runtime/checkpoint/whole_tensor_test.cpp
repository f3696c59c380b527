// Tensors read in pieces of any size, and what the commands that stream them make of it.
#include "runtime/checkpoint/whole_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "common/files.h"
#include "model_fixture.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/compare.h"
#include "runtime/checkpoint/elements_as_double.h"
#include "runtime/checkpoint/rewrite.h"
#include "runtime/checkpoint/shard_files.h"
#include "runtime/checkpoint/write_parts.h"
#include "runtime/plan/model_shape.h"
#include "support/temp_dir.h"

namespace mtl {
namespace {

using namespace test;
namespace fs = std::filesystem;

TEST_CASE("whole tensors: any range of elements, whatever layout wrote them") {
  const auto model = small_model();
  for (uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    TempDir dir;
    auto writers = random_layout(model, 1 + static_cast<int>(random() % 4), random);
    save(dir.path() / "checkpoints", 7, model, writers);
    CheckpointReader reader(checkpoint_path(dir.path() / "checkpoints", 7));
    const std::vector<TensorInfo> tensors = tensors_of(reader);
    REQUIRE(tensors.size() == model.size());
    for (const TensorInfo& tensor : tensors) {
      const auto found = std::find_if(model.begin(), model.end(),
                                      [&](const auto& t) { return t.name == tensor.name; });
      REQUIRE(found != model.end());
      const std::vector<char> truth = true_bytes(*found, 7);
      const auto element = static_cast<int64_t>(bytes_of(found->dtype));
      CHECK(tensor.optimizer == found->optimizer);
      for (int i = 0; i < 20; ++i) {
        const auto size = static_cast<uint64_t>(tensor.elements);
        const auto at = static_cast<int64_t>(size == 0 ? 0 : random() % size);
        const auto n =
            static_cast<int64_t>(size == 0 ? 0 : 1 + random() % (size - static_cast<uint64_t>(at)));
        std::vector<char> bytes(static_cast<size_t>(n * element));
        read_elements(reader, tensor, found->dtype, at, n, bytes.data());
        CHECK(std::equal(bytes.begin(), bytes.end(), truth.begin() + at * element));
      }
    }
  }
}

// A checkpoint of one f32 tensor.
void write_one(const fs::path& dir, std::vector<float> values, int64_t step,
               const nlohmann::json& more = nlohmann::json::object(),
               const std::vector<ExtraFile>& extras = {}) {
  CheckpointTensor tensor;
  tensor.name = "w";
  tensor.shape = tensor.local_shape = {static_cast<int64_t>(values.size())};
  tensor.rects = {{{0}, {0}, tensor.shape}};
  tensor.data = values.data();
  tensor.count = tensor.shape[0];
  nlohmann::json state = {{"step", step}};
  state.update(more);
  write_new_checkpoint(dir, state, extras, {{tensor}});
}

TEST_CASE("compare: differences are counted and measured, and a NaN is never small") {
  TempDir dir;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  write_one(dir.path() / "a", {1, 2, 3, nan, 0}, 1);
  write_one(dir.path() / "b", {1, 2.5, 3, nan, 1e-3F}, 2);
  write_one(dir.path() / "c", {1, nan, 3, nan, 0}, 1);
  write_one(dir.path() / "d", {1, 2}, 1);
  CHECK(compare(dir.path() / "a", dir.path() / "a", true).none());
  const auto ab = compare(dir.path() / "a", dir.path() / "b", true);
  REQUIRE(ab.tensors.size() == 1);
  CHECK(ab.tensors[0].elements == 2);
  CHECK(ab.tensors[0].max_abs == doctest::Approx(0.5));
  CHECK(ab.tensors[0].max_rel == doctest::Approx(1.0));
  REQUIRE(ab.state.size() == 1);
  CHECK(ab.state[0].at("path") == "/step");
  CHECK(compare(dir.path() / "a", dir.path() / "b", false).state.empty());
  CHECK(std::isnan(compare(dir.path() / "a", dir.path() / "c", true).tensors.at(0).max_abs));
  CHECK(compare(dir.path() / "a", dir.path() / "d", true).tensors.at(0).what == "shape");
  CHECK_THROWS_AS(write_one(dir.path() / "a", {1}, 1), Error);
}

TEST_CASE("average: summed in double precision, written whole or not at all") {
  TempDir dir;
  write_one(dir.path() / "a", {1, 16777216, 0.1F}, 1);
  write_one(dir.path() / "b", {2, 1, 0.2F}, 2);
  write_one(dir.path() / "c", {6, 1, 0.3F}, 3,
            {{"metrics", {{"loss", 2}}}, {kEvaluationLeft, kNotEvaluated}});
  write_one(dir.path() / "other", {6, 1}, 3);
  const std::vector<fs::path> three = {dir.path() / "a", dir.path() / "b", dir.path() / "c"};
  average_checkpoints(three, dir.path() / "mean");
  CheckpointReader reader(dir.path() / "mean");
  std::vector<float> mean(3);
  read_elements(reader, tensors_of(reader).at(0), DType::f32, 0, 3, mean.data());
  CHECK(mean[0] == 3);
  CHECK(mean[1] == static_cast<float>(16777218.0 / 3));  // in f32 the two ones would be lost
  CHECK(reader.state().at("average_of").size() == 3);
  for (const char* of_one : {"metrics", kEvaluationLeft}) {
    CHECK_FALSE(reader.state().contains(of_one));
  }
  try {
    average_checkpoints({dir.path() / "a", dir.path() / "other"}, dir.path() / "x");
    FAIL("averaged two models");
  } catch (const Error& error) {
    CHECK(error.diagnostics()[0].code == "ckpt.shape");
  }
  size_t entries = 0;
  for (const auto& ignored : fs::directory_iterator(dir.path())) entries += ignored.exists();
  CHECK(entries == 5);  // nothing half written is left
}

TEST_CASE("average: of one model, though other weights may have the same shapes") {
  TempDir dir;
  ModelShape shape;
  shape.heads = shape.kv_heads = 4;
  const auto write = [&](const char* name, const char* tokenizer) {
    write_one(dir.path() / name, {1, 2}, 1, {{"model", to_json(shape)}},
              {{kTokenizerFile, tokenizer}});
  };
  const auto refused = [&](const char* name) -> std::string {
    try {
      average_checkpoints({dir.path() / "a", dir.path() / name},
                          dir.path() / (std::string(name) + "-mean"));
      return "";
    } catch (const Error& error) {
      CHECK(error.diagnostics()[0].code == "ckpt.shape");
      return error.diagnostics()[0].what;
    }
  };
  write("a", "1");
  write("other-text", "2");
  shape.max_seq = 7;  // the same weights go on to other lengths
  write("longer", "1");
  shape.heads = shape.kv_heads = 8;
  write("heads", "1");
  CHECK(refused("longer") == "");
  CHECK(refused("heads").ends_with("not of the same model: model.heads is 4 and 8"));
  CHECK(refused("other-text").ends_with("their tokenizers differ"));
}

TEST_CASE("merge: weights alone, in the type that is asked for, nearest even") {
  TempDir dir;
  // 1 + 2^-8 lies between two bf16 numbers, as does 1 + 3 * 2^-8; ties go to even.
  const float nan = std::numeric_limits<float>::quiet_NaN();
  write_one(dir.path() / "a", {1 + 0x1p-8F, 1 + 0x1.8p-7F, -2, 3.39e38F, nan}, 1);
  const auto files = merge_weights(dir.path() / "a", dir.path() / "m.safetensors", DType::bf16, 0);
  REQUIRE(files.size() == 1);
  const ShardStart start = read_shard_start(files[0]);
  REQUIRE(start.header.entries.size() == 1);
  CHECK(start.header.entries[0].name == "w");
  CHECK(start.header.entries[0].dtype == "BF16");
  const std::string text = read_file(files[0]);
  std::vector<uint16_t> bits(5);
  std::memcpy(bits.data(), text.data() + start.header.data_start, 10);
  CHECK(bits[0] == 0x3f80);
  CHECK(bits[1] == 0x3f82);
  CHECK(bits[2] == 0xc000);
  CHECK(std::isnan(element_as_double(DType::bf16, bits.data(), 4)));
}

TEST_CASE("merge: weights that fp16 cannot hold are an error, and nothing is left") {
  TempDir dir;
  const float infinity = std::numeric_limits<float>::infinity();
  write_one(dir.path() / "near", {65519, -65519, infinity}, 1);
  CHECK(merge_weights(dir.path() / "near", dir.path() / "near.st", DType::f16, 0).size() == 1);
  for (const float value : {65520.0F, -1e5F}) {
    const std::string name = fmt::format("far{}", value);
    write_one(dir.path() / name, {1, value}, 1);
    try {
      merge_weights(dir.path() / name, dir.path() / "m.safetensors", DType::f16, 0);
      FAIL("written");
    } catch (const Error& error) {
      CHECK(error.diagnostics()[0].code == "ckpt.range");
      CHECK(error.diagnostics()[0].what.starts_with(fmt::format("'w' has a weight of {}", value)));
    }
    CHECK(!fs::exists(dir.path() / "m.safetensors"));
    CHECK(merge_weights(dir.path() / name, dir.path() / (name + ".st"), DType::bf16, 0).size() ==
          1);
  }
}

TEST_CASE("merge: what is there already stays, and is not mixed with other weights") {
  TempDir dir;
  CheckpointTensor tensor;
  std::vector<float> values(100, 1), far(100, 1e5F);
  std::vector<CheckpointTensor> tensors;
  for (const char* name : {"a", "b"}) {
    tensor.name = name;
    tensor.shape = tensor.local_shape = {100};
    tensor.rects = {{{0}, {0}, tensor.shape}};
    tensor.data = values.data();
    tensor.count = 100;
    tensors.push_back(tensor);
  }
  // The second of two files is not written, and the first does not stay.
  tensors[1].data = far.data();
  write_new_checkpoint(dir.path() / "far", {{"step", 1}}, {}, {tensors});
  fs::create_directory(dir.path() / "empty");
  CHECK_THROWS_AS(
      merge_weights(dir.path() / "far", dir.path() / "empty/m.safetensors", DType::f16, 300),
      Error);
  CHECK(fs::is_empty(dir.path() / "empty"));
  fs::remove_all(dir.path() / "far");
  tensors[1].data = values.data();
  write_new_checkpoint(dir.path() / "model", {{"step", 1}}, {}, {tensors});
  const auto files_of_merge = [&](const char* out, int64_t most) -> size_t {
    try {
      return merge_weights(dir.path() / "model", dir.path() / out, std::nullopt, most).size();
    } catch (const Error& error) {
      CHECK(error.exit() == Exit::usage);
      CHECK(error.diagnostics()[0].code == "ckpt.exists");
      return 0;
    }
  };
  CHECK(files_of_merge("model/manifest.json", 0) == 0);
  CHECK(files_of_merge("whole/m.safetensors", 0) == 1);
  CHECK(files_of_merge("whole/m.safetensors", 0) == 0);
  CHECK(files_of_merge("whole/m.safetensors", 500) == 0);
  CHECK(files_of_merge("parts/m.safetensors", 500) == 3);
  CHECK(files_of_merge("parts/m.safetensors", 500) == 0);
  CHECK(files_of_merge("parts/m.safetensors", 0) == 0);
  fs::remove(dir.path() / "parts/m.safetensors.index.json");
  CHECK(files_of_merge("parts/m.safetensors", 500) == 0);
  size_t entries = 0;
  for (const auto& file : fs::recursive_directory_iterator(dir.path())) {
    entries += !file.is_directory();
  }
  CHECK(entries == 3 + 1 + 2);  // the checkpoint's, and nothing half written
}

}  // namespace
}  // namespace mtl
