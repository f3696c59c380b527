// Files from people who mean no good, and files that are merely broken: refused with the reason,
// and nothing in them is ever executed.
#include <cstring>
#include <fstream>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "reference_folders.h"
#include "runtime/interchange/torch_file.h"

using namespace mtl;
using namespace mtl::test;
namespace fs = std::filesystem;

namespace {

void write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

template <class T>
std::string little(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// A zip archive of stored entries.
std::string zip(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string file, directory;
  for (const auto& [name, bytes] : entries) {
    const auto at = static_cast<uint32_t>(file.size());
    const auto size = static_cast<uint32_t>(bytes.size());
    const std::string common = little<uint16_t>(0) + little<uint16_t>(0) + little<uint32_t>(0) +
                               little<uint32_t>(0) + little(size) + little(size) +
                               little(static_cast<uint16_t>(name.size())) + little<uint16_t>(0);
    file += std::string("PK\3\4") + little<uint16_t>(20) + common + name + bytes;
    directory += std::string("PK\1\2") + little<uint16_t>(20) + little<uint16_t>(20) + common +
                 little<uint16_t>(0) + little<uint16_t>(0) + little<uint16_t>(0) +
                 little<uint32_t>(0) + little(at) + name;
  }
  const auto count = static_cast<uint16_t>(entries.size());
  return file + directory + "PK\5\6" + little<uint32_t>(0) + little(count) + little(count) +
         little(static_cast<uint32_t>(directory.size())) +
         little(static_cast<uint32_t>(file.size())) + little<uint16_t>(0);
}

std::string text(const std::string& value) {
  return std::string("X") + little(static_cast<uint32_t>(value.size())) + value;
}

// {"w": a float tensor of `shape` and `strides` from element `first` of storage "0" of 4 elements}
std::string tensor_pickle(int32_t first, int32_t rows, int32_t columns, int32_t stride,
                          const std::string& storage = "FloatStorage",
                          const std::string& key = "0") {
  const auto integer = [](int32_t value) { return std::string("J") + little(value); };
  return std::string("\x80\2}", 3) + text("w") + "ctorch._utils\n_rebuild_tensor_v2\n((" +
         text("storage") + "ctorch\n" + storage + "\n" + text(key) + text("cpu") + integer(4) +
         "tQ" + integer(first) + integer(rows) + integer(columns) + "\x86" + integer(stride) +
         integer(1) + "\x86" + "\x89" + "}tRs.";
}

struct TorchFixture {
  Scratch scratch;
  // The code of the error of reading this as pytorch_model.bin.
  std::string read(const std::string& pickle, std::string* message = nullptr) const {
    write(scratch / "x.bin",
          zip({{"archive/data.pkl", pickle}, {"archive/data/0", std::string(16, '\1')}}));
    return code_of([&] { read_torch_tensors(scratch / "x.bin"); }, message);
  }
};

}  // namespace

TEST_CASE("tensors of a torch file lie inside their storage") {
  const TorchFixture fixture;
  CHECK(fixture.read(tensor_pickle(0, 2, 2, 2)) == "");
  CHECK(fixture.read(tensor_pickle(2, 1, 2, 2)) == "");
  CHECK(fixture.read(tensor_pickle(0, 1000, 1, 0)) == "");  // one row, again and again
  CHECK(fixture.read(tensor_pickle(1, 2, 2, 2)) == "import.file");
  CHECK(fixture.read(tensor_pickle(0, 2, 2, 3)) == "import.file");
  CHECK(fixture.read(tensor_pickle(4, 1, 1, 1)) == "import.file");
  CHECK(fixture.read(tensor_pickle(-1, 2, 2, 2)) == "import.file");
  CHECK(fixture.read(tensor_pickle(0, 2, 2, -2)) == "import.file");
  CHECK(fixture.read(tensor_pickle(0, INT32_MAX, INT32_MAX, INT32_MAX)) == "import.file");
  CHECK(fixture.read(tensor_pickle(0, 2, 2, 2, "FloatStorage", "1")) == "import.file");
  CHECK(fixture.read(tensor_pickle(0, 2, 2, 2, "FloatStorage", "../data/0")) == "import.file");
  // As doubles there are two.
  CHECK(fixture.read(tensor_pickle(0, 2, 2, 2, "DoubleStorage")) == "import.file");
  CHECK(fixture.read(tensor_pickle(0, 1, 2, 2, "DoubleStorage")) == "");
}

TEST_CASE("nothing in a pickle is executed and what torch.save does not write is refused") {
  const TorchFixture fixture;
  const fs::path marker = fixture.scratch / "executed";
  std::string message;
  // os.system("touch ..."): a placeholder, and no tensor.
  const std::string call = std::string("\x80\2}", 3) + text("w") + "cposix\nsystem\n" +
                           text(fmt::format("touch {}", marker.string())) + "\x85Rs.";
  CHECK(fixture.read(call, &message) == "import.file");
  CHECK(!fs::exists(marker));
  for (const std::string& bad : {
           std::string("(S'x'\nios\nsystem\n."),   // INST
           std::string("(cos\nsystem\nS'x'\no."),  // OBJ, STRING
           std::string("\x82\1."),                 // EXT1
           std::string("\x97."),                   // NEXT_BUFFER
           std::string("P0\n."),                   // PERSID
           std::string("\x80\6N."),                // a protocol to come
           std::string("."),                       // no value
           std::string("N"),                       // no end
           std::string("0."),                      // nothing to pop
           std::string("(1."),                     //
           std::string("h\5."),                    // a memo that is not there
           std::string("t."),                      // no mark
           std::string("X\xff\xff\xff\xff."),      // a length beyond the end
           std::string("\x8d\xff\xff\xff\xff\xff\xff\xff\xff."),
           std::string("\x8b\xff\xff\xff\xff."),  // a negative one
           std::string("(Nd."),                   // a key without a value
           std::string("N\x93."),                 // a global without a name
           std::string("NNR."),                   // arguments that are none
           std::string("I1x\n."),
           std::string("c"),
       }) {
    CAPTURE(nlohmann::json::binary({bad.begin(), bad.end()}).dump());
    CHECK(fixture.read(bad, &message) == "import.pickle");
    CHECK(message.find("at byte") != std::string::npos);
  }
  // A container that holds itself, and doubling by memo: no recursion, no growth.
  CHECK(fixture.read(std::string("]q\0h\0a.", 7)) == "import.file");
  std::string bomb = "]q";
  bomb += '\0';
  for (int i = 0; i < 200; ++i) bomb += "(hXhXe";
  std::replace(bomb.begin(), bomb.end(), 'X', '\0');
  CHECK(fixture.read(bomb + ".") == "import.file");
}

TEST_CASE("zip archives that are none") {
  const Scratch scratch;
  const auto read = [&](const std::string& bytes) {
    write(scratch / "x.bin", bytes);
    return code_of([&] { read_torch_tensors(scratch / "x.bin"); });
  };
  const std::string good =
      zip({{"a/data.pkl", tensor_pickle(0, 2, 2, 2)}, {"a/data/0", std::string(16, '\1')}});
  CHECK(read(good) == "");
  CHECK(read("") == "import.file");
  CHECK(read("PK\5\6") == "import.file");
  CHECK(read(std::string("\x80\2\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.")) == "import.file");
  CHECK(read(zip({})) == "import.file");
  CHECK(read(zip({{"a/data.pkl", "N."}, {"b/data.pkl", "N."}})) == "import.file");
  CHECK(read(zip({{"a/data.pkl", "N."}, {"a/data.pkl", "N."}})) == "import.file");
  CHECK(read(zip({{"a/data.pkl", tensor_pickle(0, 2, 2, 2)},
                  {"a/byteorder", "big"},
                  {"a/data/0", std::string(16, '\1')}})) == "import.file");
  // Cut anywhere, or with any byte changed, it is read or refused, and never read beyond its end.
  for (size_t length = 0; length < good.size(); ++length) {
    CHECK(read(good.substr(0, length)) == "import.file");
  }
  for (size_t at = 0; at < good.size(); ++at) {
    for (const char value : {'\0', '\x7f', '\xff'}) {
      std::string bad = good;
      bad[at] = value;
      const std::string code = read(bad);
      const bool known = code.empty() || code == "import.file" || code == "import.pickle";
      CHECK_MESSAGE(known, code);
    }
  }
}

TEST_CASE("hostile Hugging Face folders") {
  const Scratch scratch;
  const fs::path folder = scratch / "model";
  fs::copy(reference_folder("gpt2"), folder);
  const fs::path index_path = folder / "model.safetensors.index.json";
  const auto index = nlohmann::json::parse(read_file(index_path));
  std::string message;
  const auto with = [&](const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json changed = index;
    change(changed);
    write(index_path, changed.dump());
    const std::string code = code_of([&] { open_foreign_model(folder); }, &message);
    write(index_path, index.dump());
    return code;
  };
  const std::string name = "transformer.wte.weight";
  CHECK(with([](auto&) {}) == "");
  // Files elsewhere are not even looked for.
  fs::copy(folder / "model-00001-of-00008.safetensors", scratch / "outside.safetensors");
  for (const std::string& path :
       {std::string("../outside.safetensors"), (scratch / "outside.safetensors").string(),
        std::string(".."), std::string(""), std::string("a\0b", 3)}) {
    CHECK(with([&](auto& json) { json["weight_map"][name] = path; }) == "import.file");
  }
  CHECK(with([&](auto& json) { json["weight_map"][name] = 5; }) == "import.file");
  CHECK(with([&](auto& json) { json["weight_map"] = {1, 2}; }) == "import.file");
  CHECK(with([&](auto& json) { json = {1}; }) == "import.file");
  CHECK(with([&](auto& json) { json["weight_map"][name] = "no.safetensors"; }) == "import.missing");
  CHECK(with([&](auto& json) { json["weight_map"]["x"] = json["weight_map"][name]; }) ==
        "import.file");
  // A tensor in two shards.
  fs::copy(folder / "model-00001-of-00008.safetensors", folder / "again.safetensors");
  CHECK(with([&](auto& json) { json["weight_map"]["x"] = "again.safetensors"; }) == "import.file");
  CHECK(message.find("is in") != std::string::npos);
  // A shard that is not there, and one that is a folder.
  fs::rename(folder / "model-00002-of-00008.safetensors", scratch / "kept");
  CHECK(with([](auto&) {}) == "import.missing");
  fs::create_directory(folder / "model-00002-of-00008.safetensors");
  CHECK(with([](auto&) {}) == "import.unreadable");
  fs::remove(folder / "model-00002-of-00008.safetensors");
  fs::rename(scratch / "kept", folder / "model-00002-of-00008.safetensors");

  auto config = nlohmann::json::parse(read_file(folder / "config.json"));
  for (const auto& [key, value] : {std::pair("n_layer", 3), std::pair("n_inner", 63),
                                   std::pair("n_positions", 65), std::pair("vocab_size", 97)}) {
    auto changed = config;
    changed[key] = value;
    write(folder / "config.json", changed.dump());
    CHECK(with([](auto&) {}) == "import.tensor");
  }
  write(folder / "config.json", "{\"a\": 1, \"a\": 2}");
  CHECK(with([](auto&) {}) == "import.file");
  write(folder / "config.json", std::string(100'000, '['));
  CHECK(with([](auto&) {}) == "import.file");
}

TEST_CASE("damaged safetensors files are refused") {
  const Scratch scratch;
  const std::string good = read_file(reference_folder("llama") / "model.safetensors");
  const fs::path path = scratch / "model.safetensors";
  const auto read = [&](const std::string& bytes) {
    write(path, bytes);
    return code_of([&] { read_safetensors(path); });
  };
  CHECK(read(good) == "");
  CHECK(read(good.substr(0, good.size() - 1)) == "ckpt.format");
  CHECK(read(good + "x") == "ckpt.format");
  CHECK(read("") == "ckpt.format");
  CHECK(read(little(INT64_MAX) + "{}") == "ckpt.format");
  const auto one = [&](const std::string& json, size_t bytes) {
    return read(little(static_cast<uint64_t>(json.size())) + json + std::string(bytes, '\0'));
  };
  CHECK(one(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8) == "");
  CHECK(one(R"({"a":{"dtype":"F32","shape":[9223372036854775807],"data_offsets":[0,8]}})", 8) ==
        "ckpt.format");
  CHECK(one(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
            R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
            12) == "ckpt.format");
  CHECK(one(R"({"a":{"dtype":"Q4","shape":[2],"data_offsets":[0,8]}})", 8) == "ckpt.format");
}
