// What Hugging Face's `tokenizers` and tiktoken make of texts (tests/reference/tokenizers.json, by
// tokenizers_reference.py), and a tokenizer held against it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "runtime/data/load_tokenizer.h"
#include "runtime/data/tokenizer/unicode.h"

namespace mtl::test {

inline const std::filesystem::path kShared =
    std::filesystem::path(MTL_SOURCE_DIR) / "../shared/data";

inline const nlohmann::json& reference() {
  static const nlohmann::json made = nlohmann::json::parse(
      read_file(std::filesystem::path(MTL_SOURCE_DIR) / "tests/reference/tokenizers.json"));
  return made;
}

inline std::string from_base64(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  unsigned bits = 0, count = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<unsigned>(digits.find(c));
    count += 6;
    if (count >= 8) bytes += static_cast<char>(bits >> (count -= 8) & 0xFF);
  }
  return bytes;
}

inline std::vector<std::string> texts() {
  std::vector<std::string> decoded;
  for (const nlohmann::json& text : reference().at("texts")) decoded.push_back(from_base64(text));
  return decoded;
}

inline std::string fnv1a64(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return fmt::format("{:016x}", hash);
}

inline void check_expected(const Tokenizer& tokenizer, const nlohmann::json& expected) {
  const auto all = texts();
  REQUIRE(all.size() == expected.size());
  for (size_t i = 0; i < all.size(); ++i) {
    CAPTURE(all[i]);
    const auto ids = tokenizer.encode(all[i]);
    REQUIRE(ids.size() == expected[i][0]);
    CHECK(fnv1a64({reinterpret_cast<const char*>(ids.data()), ids.size() * 4}) ==
          expected[i][1].get<std::string>());
    std::string buffer;
    CHECK(fnv1a64(tokenizer::whole_utf8(tokenizer.decode(ids), buffer)) ==
          expected[i][2].get<std::string>());
  }
}

}  // namespace mtl::test
