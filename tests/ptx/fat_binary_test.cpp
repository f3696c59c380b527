#include "ptx/fat_binary.h"

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>
#include <zstd.h>

#include <doctest/doctest.h>

using namespace mtl::ptx;

namespace {

// As nvcc has it: a pointer in what is registered, and in the container an entry behind the other.
struct FatBinary {
  std::string container;
  struct {
    uint32_t magic = 0x466243b1, version = 1;
    const char* container = nullptr;
    const void* other = nullptr;
  } registered;

  FatBinary() { header(0); }

  template <typename T>
  static void put(std::string& to, size_t at, T value) {
    std::memcpy(&to.at(at), &value, sizeof value);
  }
  void header(uint64_t bytes) {
    if (container.empty()) container.resize(16);
    put<uint32_t>(container, 0, 0xba55ed50);
    put<uint16_t>(container, 4, 1);
    put<uint16_t>(container, 6, 16);
    put<uint64_t>(container, 8, bytes);
  }
  // `more`: of options, which some entries have in their headers.
  void add(uint16_t kind, std::string data, bool packed = false, size_t more = 0) {
    std::string entry(64 + more, '\0');
    put<uint16_t>(entry, 0, kind);
    put<uint16_t>(entry, 2, 0x101);
    put<uint32_t>(entry, 4, static_cast<uint32_t>(entry.size()));
    if (packed) {
      std::string small(ZSTD_compressBound(data.size()), '\0');
      small.resize(ZSTD_compress(small.data(), small.size(), data.data(), data.size(), 3));
      data = small;
      put<uint32_t>(entry, 16, static_cast<uint32_t>(data.size()));
    }
    data.resize((data.size() + 7) / 8 * 8);
    put<uint64_t>(entry, 8, data.size());
    container += entry + data;
    header(container.size() - 16);
  }
  std::vector<std::string> texts() {
    registered.container = container.data();
    return texts_of(&registered);
  }
  std::string refusal() {
    try {
      texts();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return {};
  }
};

std::string text_of(const std::string& target) {
  return "// made by hand\n.version 9.0\n.target " + target + "\n.address_size 64\n";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a fat binary's PTX is found among machine code, as it is and packed") {
  FatBinary fat;
  CHECK(fat.texts().empty());
  fat.add(2,
          "\x7f"
          "ELF and so on");
  fat.add(1, text_of("sm_80"));
  fat.add(1, text_of("sm_90a"), true, 24);
  fat.add(2,
          "\x7f"
          "ELF");
  CHECK(fat.texts() == std::vector<std::string>{text_of("sm_80"), text_of("sm_90a")});
}

TEST_CASE("a fat binary that is read wrongly is an error that says where") {
  FatBinary fat;
  fat.add(1, text_of("sm_80"), true);
  std::string& bytes = fat.container;
  const std::string good = bytes;
  bytes[0] = 1;
  CHECK(has(fat.refusal(), "its container begins with 0xba55ed01"));
  bytes = good;
  FatBinary::put<uint64_t>(bytes, 16 + 8, 4000);
  CHECK(has(fat.refusal(), "entry 0 of 4000 bytes does not end in it"));
  bytes = good;
  bytes[16 + 64] = 1;
  CHECK(has(fat.refusal(), "compressed, and not by zstd"));
  bytes = good;
  bytes[16 + 64 + 5] = static_cast<char>(bytes[16 + 64 + 5] ^ 0x7f);  // of how long it is
  CHECK(fat.refusal() != "");
  FatBinary empty;
  empty.add(1, "not PTX");
  CHECK(has(empty.refusal(), "says no .version and .target"));
  empty.registered.magic = 7;
  CHECK(has(empty.refusal(), "it begins with 0x7"));
}

TEST_CASE("of several texts a GPU's is the newest that it can run") {
  const auto chosen = [](const std::vector<std::string>& targets, int capability) {
    std::vector<std::string> texts;
    for (const std::string& target : targets) texts.push_back(text_of(target));
    const std::string* const text = text_for(texts, capability);
    if (text == nullptr) return std::string("none");
    return targets.at(static_cast<size_t>(text - texts.data()));
  };
  CHECK(chosen({"sm_80", "sm_90", "sm_100"}, 90) == "sm_90");
  CHECK(chosen({"sm_100", "sm_90", "sm_80"}, 89) == "sm_80");
  CHECK(chosen({"sm_80", "sm_90"}, 120) == "sm_90");
  CHECK(chosen({"sm_90"}, 80) == "none");
  CHECK(chosen({"sm_90a"}, 90) == "sm_90a");
  CHECK(chosen({"sm_90a"}, 100) == "none");
  CHECK(chosen({"sm_90", "sm_90a"}, 90) == "sm_90a");
  CHECK(chosen({"sm_90a", "sm_90"}, 90) == "sm_90a");
}
