// Damaged, hostile and missing files are found and named; nothing is trusted silently.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "common/files.h"
#include "model_fixture.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/hash.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/problem.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/checkpoint/strict_json.h"
#include "support/sanitized.h"
#include "support/temp_dir.h"
#include "support/text.h"

namespace mtl {
namespace {

using namespace test;
namespace fs = std::filesystem;

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

struct Saved {
  TempDir temp;
  std::vector<GlobalTensor> model = small_model();
  fs::path dir = checkpoint_path(temp.path() / "checkpoints", 5);
  Saved() {
    std::mt19937_64 random(3);
    auto ranks = random_layout(model, 2, random);
    save(dir.parent_path(), 5, model, ranks);
  }
  std::optional<Diagnostic> load() {
    return problem([&] {
      if (!intact(dir, model)) throw Error(Exit::data, Diagnostic{.code = "wrong", .what = ""});
    });
  }
  std::vector<fs::path> files() {
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(dir)) paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    return paths;
  }
};

TEST_CASE("bit flips anywhere in any file are found and named") {
  Saved saved;
  REQUIRE(!saved.load());
  const auto files = saved.files();
  REQUIRE(files.size() == 6);
  std::mt19937_64 random(9);
  for (const fs::path& path : files) {
    const std::string good = read_file(path);
    const std::string name = path.filename().string();
    for (int i = 0; i < (kSanitized ? 60 : 340); ++i) {
      std::string bad = good;
      const size_t at = random() % bad.size();
      bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
      write_text(path, bad);
      const auto found = saved.load();
      CAPTURE(name);
      CAPTURE(at);
      REQUIRE(found);
      if (name == kManifestName || name == kMarkerName) {
        CHECK(found->code == "ckpt.manifest");
        CHECK(has(found->what, "COMMITTED"));
      } else {
        CHECK(found->code == "ckpt.checksum");
        CHECK(has(found->what, name));
      }
    }
    write_text(path, good);
  }
  CHECK(!saved.load());
}

TEST_CASE("the tensor whose bytes are damaged is named") {
  Saved saved;
  const CheckpointReader reader(saved.dir);
  for (const ChunkRecord& chunk : reader.chunks()) {
    if (chunk.bytes == 0) continue;
    const fs::path path = saved.dir / chunk.file;
    const std::string good = read_file(path);
    std::string bad = good;
    bad[chunk.byte_offset + chunk.bytes - 1] ^= 1;
    write_text(path, bad);
    const auto found = saved.load();
    REQUIRE(found);
    CHECK(has(found->what, fmt::format("'{}'", chunk.tensor)));
    write_text(path, good);
  }
}

TEST_CASE("truncated, grown and missing files are found and named") {
  Saved saved;
  for (const fs::path& path : saved.files()) {
    const std::string good = read_file(path);
    const std::string name = path.filename().string();
    CAPTURE(name);
    for (const size_t size : {size_t{0}, size_t{7}, size_t{8}, good.size() / 2, good.size() - 1}) {
      write_text(path, good.substr(0, size));
      CHECK(saved.load());
    }
    write_text(path, good + "x");
    CHECK(saved.load());
    fs::remove(path);
    const auto found = saved.load();
    REQUIRE(found);
    if (name == kMarkerName) {
      CHECK(found->code == "ckpt.incomplete");
    } else if (name == kManifestName) {
      CHECK(found->code == "ckpt.manifest");
    } else {
      CHECK(found->code == "ckpt.file");
      CHECK(has(found->what, name));
    }
    fs::create_directory(path);
    CHECK(saved.load());
    fs::remove(path);
    write_text(path, good);
  }
  CHECK(!saved.load());
  CHECK(code_of([&] { CheckpointReader reader(saved.dir / "none"); }) == "ckpt.missing");
  CHECK(code_of([&] { CheckpointReader reader(saved.dir / kManifestName); }) == "ckpt.missing");
}

TEST_CASE("manifests that are committed but make no sense") {
  Saved saved;
  const auto good = nlohmann::json::parse(read_file(saved.dir / kManifestName));
  const auto commit_text = [&](const std::string& text) {
    write_text(saved.dir / kManifestName, text);
    write_text(saved.dir / kMarkerName, hash_text(Xxh3::of(text)) + "\n");
    const auto found = saved.load();
    return found ? found->code : std::string();
  };
  const auto code = [&](const std::function<void(nlohmann::json&)>& spoil) {
    nlohmann::json bad = good;
    spoil(bad);
    return commit_text(bad.dump());
  };
  using Json = nlohmann::json;
  CHECK(code([](Json&) {}).empty());
  CHECK(code([](Json& j) { j["version"] = 3; }) == "ckpt.version");
  const int64_t huge = int64_t{1} << 62;
  const std::vector<std::function<void(Json&)>> spoils = {
      [](Json& j) { j["format"] = "other"; },
      [](Json& j) { j.erase("format"); },
      [](Json& j) { j["version"] = "1"; },
      [](Json& j) { j["version"] = 1.0; },
      [](Json& j) { j.erase("state"); },
      [](Json& j) { j.erase("files"); },
      [](Json& j) { j["files"] = 3; },
      [](Json& j) { j["files"]["../x"] = j["files"]["model-r00000.safetensors"]; },
      [](Json& j) { j["files"].erase("model-r00000.safetensors"); },
      [](Json& j) { j["files"]["model-r00000.safetensors"]["header_bytes"] = 1 << 30; },
      [](Json& j) { j["files"]["model-r00000.safetensors"]["bytes"] = 64; },
      [](Json& j) { j["files"]["model-r00000.safetensors"]["header_xxh3"] = "xyz"; },
      [](Json& j) { j["tensors"] = Json::array(); },
      [](Json& j) { j["tensors"]["mask"]["dtype"] = "F99"; },
      [](Json& j) { j["tensors"]["mask"]["dtype"] = 1; },
      [](Json& j) { j["tensors"]["mask"]["shape"] = {-37}; },
      [](Json& j) { j["tensors"]["mask"]["shape"] = {37.0}; },
      [&](Json& j) {
        j["tensors"]["mask"]["shape"] = {huge, huge};
      },
      [](Json& j) { j["tensors"]["mask"]["shape"] = {UINT64_MAX}; },
      [](Json& j) { j["tensors"]["mask"]["shape"] = {5}; },
      [](Json& j) { j["tensors"]["mask"]["chunks"] = Json::array(); },
      [](Json& j) { j["tensors"]["mask"]["chunks"][0]["offset"] = {36}; },
      [](Json& j) {
        j["tensors"]["mask"]["chunks"][0]["offset"] = {0, 0};
      },
      [&](Json& j) { j["tensors"]["mask"]["chunks"][0]["offset"] = {huge}; },
      [](Json& j) { j["tensors"]["mask"]["chunks"][0]["extent"] = {1000}; },
      [](Json& j) { j["tensors"]["mask"]["chunks"][0]["bytes"] = 1; },
      [&](Json& j) { j["tensors"]["mask"]["chunks"][0]["byte_offset"] = huge; },
      [](Json& j) { j["tensors"]["mask"]["chunks"][0]["byte_offset"] = 0; },
      [](Json& j) { j["tensors"]["mask"]["chunks"][0]["xxh3"] = "0"; },
      [](Json& j) { j["tensors"]["mask"]["chunks"][0]["xxh3"] = 7; },
      [](Json& j) { j["tensors"]["mask"]["chunks"][0]["file"] = "/etc/passwd"; },
      [](Json& j) { j["tensors"]["mask"]["chunks"][0]["file"] = "../a"; },
      [](Json& j) { j["tensors"]["mask"]["chunks"][0]["file"] = ".."; },
      [](Json& j) { j["tensors"]["mask"]["chunks"][0]["file"] = "unknown"; },
      [](Json& j) { j["tensors"]["mask"]["chunks"].push_back(j["tensors"]["mask"]["chunks"][0]); },
  };
  for (size_t i = 0; i < spoils.size(); ++i) {
    CAPTURE(i);
    CHECK(code(spoils[i]) == "ckpt.manifest");
  }
  // A part that is nowhere is a hole only for whoever needs it.
  CHECK(code([](Json& j) {
          auto& chunks = j["tensors"]["conv"]["chunks"];
          REQUIRE(chunks.size() > 1);
          chunks.erase(0);
        }) == "ckpt.hole");
  CHECK(code([](Json& j) { j["tensors"].erase("conv"); }) == "ckpt.tensor");
  CHECK(commit_text("") == "ckpt.manifest");
  CHECK(commit_text("[]") == "ckpt.manifest");
  CHECK(commit_text("{\"format\":\"mtl.checkpoint\",\"format\":\"mtl.checkpoint\"}") ==
        "ckpt.manifest");
  CHECK(commit_text(std::string(200000, '[')) == "ckpt.manifest");
  CHECK(commit_text("{\"state\":" + std::string(100, '[') + std::string(100, ']') + "}") ==
        "ckpt.manifest");
  // Never a crash or another exception, whatever the bytes.
  std::mt19937_64 random(1);
  const std::string text = good.dump();
  for (int i = 0; i < 2000; ++i) {
    std::string bad = text;
    for (int edits = 1 + static_cast<int>(random() % 3); edits > 0; --edits) {
      const size_t at = random() % bad.size();
      const std::string_view bytes = "0123456789[]{}\",:-e.\\/\xff";
      switch (random() % 3) {
        case 0:
          bad[at] = bytes[random() % bytes.size()];
          break;
        case 1:
          bad.erase(at, 1 + random() % 8);
          break;
        default:
          bad.insert(at, 1 + random() % 3, bytes[random() % bytes.size()]);
      }
      if (bad.empty()) bad.push_back('{');
    }
    problem([&] { parse_manifest(bad, "manifest.json"); });
  }
}

std::string file_of(const std::string& json, size_t data_bytes,
                    std::optional<uint64_t> length = {}) {
  const uint64_t n = length.value_or(json.size());
  std::string file(8, '\0');
  std::memcpy(file.data(), &n, 8);
  return file + json + std::string(data_bytes, 'd');
}

TEST_CASE("safetensors: hostile headers") {
  struct Case {
    const char* about;
    std::string file;
  };
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const auto entry = [](const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
    return fmt::format(R"({{"a":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype, shape,
                       offsets);
  };
  const std::string max = "18446744073709551615";
  const std::vector<Case> bad = {
      {"empty file", ""},
      {"shorter than the length", "abc"},
      {"length beyond the file", file_of("{}", 0, 100)},
      {"length beyond the limit", file_of("{}", 0, 100'000'001)},
      {"length 2^64 - 1", file_of("{}", 0, UINT64_MAX)},
      {"length 2^63", file_of("{}", 0, uint64_t{1} << 63)},
      {"length 2^64 - 8", file_of("{}", 0, UINT64_MAX - 7)},
      {"no header", file_of("", 0)},
      {"spaces only", file_of("    ", 0)},
      {"leading space", file_of(" {}", 0)},
      {"not an object", file_of("[]", 0)},
      {"cut", file_of("{\"a\":", 0)},
      {"two texts", file_of("{}{}", 0)},
      {"newline behind", file_of("{}\n", 0)},
      {"NUL behind", file_of(std::string("{}\0", 3), 0)},
      {"comment", file_of("{/*x*/}", 0)},
      {"not UTF-8",
       file_of("{\"\xff\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1)},
      {"duplicate tensor", file_of("{" + a + "," + a + "}", 8)},
      {"duplicate key", file_of(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],)"
                                R"("data_offsets":[0,1]}})",
                                1)},
      {"duplicate key by escape",
       file_of("{" + a + R"(,"\u0061":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})", 16)},
      {"deep", file_of("{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}", 0)},
      {"data behind the last tensor", file_of("{" + a + "}", 9)},
      {"data missing", file_of("{" + a + "}", 7)},
      {"data without tensors", file_of("{}", 1)},
      {"hole at the start", file_of(entry("\"F32\"", "[2]", "[8,16]"), 16)},
      {"hole between", file_of("{" + a +
                                   R"(,"b":{"dtype":"U8","shape":[1],)"
                                   R"("data_offsets":[9,10]}})",
                               10)},
      {"overlap", file_of("{" + a +
                              R"(,"b":{"dtype":"F32","shape":[2],)"
                              R"("data_offsets":[4,12]}})",
                          12)},
      {"same place", file_of("{" + a +
                                 R"(,"b":{"dtype":"F32","shape":[2],)"
                                 R"("data_offsets":[0,8]}})",
                             8)},
      {"size not of the shape", file_of(entry("\"F32\"", "[3]", "[0,8]"), 8)},
      {"size not of the dtype", file_of(entry("\"F64\"", "[2]", "[0,8]"), 8)},
      {"unknown dtype", file_of(entry("\"F31\"", "[2]", "[0,8]"), 8)},
      {"dtype no string", file_of(entry("4", "[2]", "[0,8]"), 8)},
      {"negative dimension", file_of(entry("\"F32\"", "[-2]", "[0,8]"), 8)},
      {"two negative dimensions", file_of(entry("\"F32\"", "[-2,-1]", "[0,8]"), 8)},
      {"fraction", file_of(entry("\"F32\"", "[2.0]", "[0,8]"), 8)},
      {"exponent", file_of(entry("\"F32\"", "[2e0]", "[0,8]"), 8)},
      {"shape overflows to 8 bytes",
       file_of(entry("\"F32\"", "[4611686018427387905,2]", "[0,8]"), 8)},
      {"shape overflows to 0", file_of(entry("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 0)},
      {"shape 2^64 - 1", file_of(entry("\"F32\"", fmt::format("[{}]", max), "[0,8]"), 8)},
      {"shape no list", file_of(entry("\"F32\"", "2", "[0,8]"), 8)},
      {"offsets swapped", file_of(entry("\"F32\"", "[2]", "[8,0]"), 8)},
      {"offsets beyond", file_of(entry("\"F32\"", "[2]", fmt::format("[0,{}]", max)), 8)},
      {"offsets three", file_of(entry("\"F32\"", "[2]", "[0,8,8]"), 8)},
      {"offsets one", file_of(entry("\"F32\"", "[2]", "[0]"), 8)},
      {"entry no object", file_of(R"({"a":[]})", 0)},
      {"entry with more",
       file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})", 1)},
      {"entry with less", file_of(R"({"a":{"dtype":"U8","shape":[1]}})", 1)},
      {"metadata no object", file_of(R"({"__metadata__":1})", 0)},
      {"metadata no string", file_of(R"({"__metadata__":{"a":1}})", 0)},
  };
  for (const Case& c : bad) {
    CAPTURE(c.about);
    const auto found = problem([&] {
      parse_safetensors_header(c.file, static_cast<int64_t>(c.file.size()), "x.safetensors");
    });
    REQUIRE(found);
    CHECK(found->code == "ckpt.format");
    CHECK(has(found->what, "x.safetensors"));
  }
  const std::vector<Case> good = {
      {"nothing", file_of("{}", 0)},
      {"padded", file_of("{" + a + "}     ", 8)},
      {"metadata", file_of(R"({"__metadata__":{"k":"v"},)" + a + "}", 8)},
      {"scalar", file_of(entry("\"F32\"", "[]", "[0,4]"), 4)},
      {"no elements", file_of(entry("\"F32\"", "[0,5]", "[0,0]"), 0)},
      {"no elements of much", file_of(entry("\"F32\"", "[0,4611686018427387904]", "[0,0]"), 0)},
      {"empty before full", file_of(R"({"z":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)" + a +
                                        R"(,"y":{"dtype":"U8","shape":[0],"data_offsets":[8,8]}})",
                                    8)},
      {"in any order",
       file_of(R"({"z":{"dtype":"BOOL","shape":[1],"data_offsets":[8,9]},)" + a + "}", 9)},
  };
  for (const Case& c : good) {
    CAPTURE(c.about);
    CHECK(!problem([&] {
      parse_safetensors_header(c.file, static_cast<int64_t>(c.file.size()), "x.safetensors");
    }));
  }
}

TEST_CASE("safetensors: what is written is read back, whatever the names") {
  std::vector<SafetensorsEntry> entries;
  int64_t end = 0;
  for (const std::string name :
       {"a", "", "quote\"back\\slash", "line\nend", "\xC3\xA4\xF0\x9F\x98\x80", "w@0,128"}) {
    entries.push_back({name, "F32", {3, 1}, end, end + 12});
    end += 12;
  }
  const std::map<std::string, std::string> metadata = {{"format", "x"}, {"\"", "\\"}};
  const std::string header = safetensors_header(entries, metadata);
  CHECK(header.size() % 64 == 0);
  const auto parsed =
      parse_safetensors_header(header, static_cast<int64_t>(header.size()) + end, "");
  CHECK(parsed.metadata == metadata);
  CHECK(parsed.data_start == static_cast<int64_t>(header.size()));
  REQUIRE(parsed.entries.size() == entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    CHECK(parsed.entries[i].name == entries[i].name);
    CHECK(parsed.entries[i].shape == entries[i].shape);
    CHECK(parsed.entries[i].begin == entries[i].begin);
  }
}

}  // namespace
}  // namespace mtl
