// Files that belong to a checkpoint beside its tensors: listed, hashed, verified, not followed.
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include <doctest/doctest.h>

#include "common/files.h"
#include "model_fixture.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/hash.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/problem.h"
#include "runtime/checkpoint/strict_json.h"
#include "support/temp_dir.h"

namespace mtl {
namespace {

using namespace test;
namespace fs = std::filesystem;

struct SavedWithExtras {
  TempDir temp;
  std::vector<GlobalTensor> model = small_model();
  fs::path dir = checkpoint_path(temp.path() / "checkpoints", 5);
  SavedWithExtras() {
    RankTensors rank = whole_layout(model);
    fill(rank, model, 5);
    const CheckpointAttempt attempt = {dir};
    prepare_checkpoint(attempt);
    const auto chunks = write_shards(attempt, 0, rank.tensors);
    commit_checkpoint(attempt, chunks, {{"step", 5}}, {},
                      {{kTokenizerFile, "{\"type\":\"bytes\"}\n"}, {"vocab.txt", "a\nb\n"}});
  }
};

TEST_CASE("extra files: read back, and every damage to one is found and named") {
  SavedWithExtras saved;
  CheckpointReader reader(saved.dir);
  CHECK(reader.extras() == std::vector<std::string>{kTokenizerFile, "vocab.txt"});
  CHECK(reader.extra("vocab.txt") == "a\nb\n");
  CHECK(reader.tokenizer() == nlohmann::json{{"type", "bytes"}});
  CHECK(code_of([&] { reader.extra("other"); }) == "ckpt.file");
  CHECK_NOTHROW(reader.verify());
  const fs::path path = saved.dir / "vocab.txt";
  const std::string good = read_file(path);
  for (size_t i = 0; i < good.size() * 8; ++i) {
    std::string bad = good;
    bad[i / 8] = static_cast<char>(bad[i / 8] ^ (1 << i % 8));
    std::ofstream(path, std::ios::trunc) << bad;
    const Diagnostics damage = CheckpointReader(saved.dir).find_damage();
    REQUIRE(damage.all().size() == 1);
    CHECK(damage.all()[0].code == "ckpt.checksum");
    CHECK(damage.all()[0].what.find("vocab.txt") != std::string::npos);
  }
  std::ofstream(path, std::ios::trunc) << good + "x";
  CHECK(code_of([&] { CheckpointReader(saved.dir).verify(); }) == "ckpt.file");
  fs::remove(path);
  CHECK(code_of([&] { CheckpointReader(saved.dir).verify(); }) == "ckpt.file");
  // A link may lead out of the folder, whatever is at its end.
  std::ofstream(saved.temp.path() / "elsewhere") << good;
  fs::create_symlink(saved.temp.path() / "elsewhere", path);
  CHECK(code_of([&] { CheckpointReader(saved.dir).verify(); }) == "ckpt.file");
  fs::remove(path);
  std::ofstream(path, std::ios::trunc) << good;
  CHECK_NOTHROW(CheckpointReader(saved.dir).verify());
}

TEST_CASE("a shard that is a link is refused, wherever it leads") {
  SavedWithExtras saved;
  const fs::path shard = saved.dir / "model-r00000.safetensors";
  const fs::path elsewhere = saved.temp.path() / "model-r00000.safetensors";
  fs::rename(shard, elsewhere);
  fs::create_symlink(elsewhere, shard);
  const Diagnostics damage = CheckpointReader(saved.dir).find_damage();
  REQUIRE(damage.all().size() == 1);  // once for the file, not for each of its tensors
  CHECK(damage.all()[0].code == "ckpt.file");
  CHECK(damage.all()[0].what.find("symbolic link") != std::string::npos);
}

TEST_CASE("all damage of a checkpoint is found, not only the first") {
  SavedWithExtras saved;
  CheckpointReader reader(saved.dir);
  size_t spoiled = 0;
  for (const ChunkRecord& chunk : reader.chunks()) {
    if (chunk.bytes == 0) continue;
    std::fstream file(saved.dir / chunk.file, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(chunk.byte_offset);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(chunk.byte_offset);
    file.put(byte);
    ++spoiled;
  }
  CHECK(spoiled > 4);
  CHECK(CheckpointReader(saved.dir).find_damage().all().size() == spoiled);
  CHECK(CheckpointReader(saved.dir).find_damage(2).all().size() == 2);
}

TEST_CASE("manifests whose extra files make no sense") {
  SavedWithExtras saved;
  const auto good = nlohmann::json::parse(read_file(saved.dir / kManifestName));
  const auto code = [&](const std::function<void(nlohmann::json&)>& spoil) {
    nlohmann::json bad = good;
    spoil(bad);
    return code_of([&] { parse_manifest(bad.dump(), "manifest.json"); });
  };
  using Json = nlohmann::json;
  CHECK(code([](Json&) {}).empty());
  CHECK(code([](Json& j) { j.erase("extras"); }) == "ckpt.manifest");
  CHECK(code([](Json& j) { j["extras"] = 1; }) == "ckpt.manifest");
  CHECK(code([](Json& j) { j["extras"]["../x"] = j["extras"]["vocab.txt"]; }) == "ckpt.manifest");
  CHECK(code([](Json& j) { j["extras"]["/etc/passwd"] = j["extras"]["vocab.txt"]; }) ==
        "ckpt.manifest");
  CHECK(code([](Json& j) { j["extras"]["COMMITTED"] = j["extras"]["vocab.txt"]; }) ==
        "ckpt.manifest");
  CHECK(code([](Json& j) { j["extras"]["model-r00000.safetensors"] = j["extras"]["vocab.txt"]; }) ==
        "ckpt.manifest");
  CHECK(code([](Json& j) { j["extras"]["vocab.txt"]["bytes"] = -1; }) == "ckpt.manifest");
  CHECK(code([](Json& j) { j["extras"]["vocab.txt"].erase("xxh3"); }) == "ckpt.manifest");
  // Nobody allocates what a manifest says before the file has that size.
  nlohmann::json huge = good;
  huge["extras"]["vocab.txt"]["bytes"] = int64_t{1} << 61;
  const std::string text = huge.dump();
  std::ofstream(saved.dir / kManifestName, std::ios::trunc) << text;
  std::ofstream(saved.dir / kMarkerName, std::ios::trunc) << hash_text(Xxh3::of(text)) + "\n";
  CHECK(code_of([&] { CheckpointReader(saved.dir).verify(); }) == "ckpt.file");
}

}  // namespace
}  // namespace mtl
