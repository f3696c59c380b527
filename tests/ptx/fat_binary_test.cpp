#include "ptx/fat_binary.h"

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "ptx/made_fat_binary.h"

using namespace mtl::ptx;

namespace {

std::vector<std::string> texts_in(FatBinary& fat) {
  return texts_of(fat.registration());
}
std::string refusal_of(FatBinary& fat) {
  try {
    texts_in(fat);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return {};
}

std::string text_of(const std::string& target) {
  return "// made by hand\n.version 9.0\n.target " + target + "\n.address_size 64\n";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a fat binary's PTX is found among machine code, as it is and packed") {
  FatBinary fat;
  CHECK(texts_in(fat).empty());
  fat.add(2, "\x7f ELF and so on");
  fat.add(1, text_of("sm_80"));
  fat.add(1, text_of("sm_90a"), true, 24);
  fat.add(2, "\x7f ELF");
  CHECK(texts_in(fat) == std::vector<std::string>{text_of("sm_80"), text_of("sm_90a")});
}

TEST_CASE("a fat binary that is read wrongly is an error that says where") {
  FatBinary fat;
  fat.add(1, text_of("sm_80"), true);
  std::string& bytes = fat.container;
  const std::string good = bytes;
  bytes[0] = 1;
  CHECK(has(refusal_of(fat), "its container begins with 0xba55ed01"));
  bytes = good;
  FatBinary::put<uint64_t>(bytes, 16 + 8, 4000);
  CHECK(has(refusal_of(fat), "entry 0 of 4000 bytes does not end in it"));
  bytes = good;
  bytes[16 + 64] = 1;
  CHECK(has(refusal_of(fat), "compressed, and not by zstd"));
  bytes = good;
  bytes[16 + 64 + 5] = static_cast<char>(bytes[16 + 64 + 5] ^ 0x7f);  // of how long it is
  CHECK(refusal_of(fat) != "");
  FatBinary empty;
  empty.add(1, "not PTX");
  CHECK(has(refusal_of(empty), "says no .version and .target"));
  empty.registered.magic = 7;
  CHECK(has(refusal_of(empty), "it begins with 0x7"));
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
