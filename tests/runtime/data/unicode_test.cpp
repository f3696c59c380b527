// Classes and normal forms of characters are those of Hugging Face's `tokenizers`.
#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/utf8.h"
#include "runtime/data/tokenizer/normalizer.h"
#include "runtime/data/tokenizer_reference.h"

namespace mtl {
namespace {

using nlohmann::json;
using test::fnv1a64;

TEST_CASE("every character is to us what it is to tokenizers 0.19.1") {
  // tests/reference/tokenizers_reference.py ages
  struct Class {
    const char* name;
    std::function<bool(char32_t)> holds;
    int64_t count;
    const char* hash;
  };
  std::vector<std::unique_ptr<tokenizer::Normalizer>> forms;
  for (const char* form : {"NFC", "NFD", "NFKC", "NFKD"}) {
    const json description = {{"type", form}};
    forms.push_back(tokenizer::make_normalizer(&description, "normalizer"));
  }
  const auto changes = [&](char32_t code) {
    std::string one;
    append_utf8(one, code);
    return std::any_of(forms.begin(), forms.end(), [&](const auto& form) {
      std::string normal = one;
      form->apply(normal);
      return normal != one;
    });
  };
  for (const Class& one :
       std::vector<Class>{{"marks", tokenizer::is_mark, 2097, "951a09a95873d60a"},
                          {"punctuation", tokenizer::is_punctuation, 726, "4f002fa25a3e6bb0"},
                          {"numbers", tokenizer::is_numeric, 1831, "6576eb4622b530ea"},
                          {"words", tokenizer::is_word, 139612, "664a0f1197b9864e"},
                          {"changed by normal forms", changes, 16894, "8e6a2020aa8eb9c5"}}) {
    CAPTURE(one.name);
    std::string all;
    int64_t count = 0;
    for (char32_t code = 0; code < 0x110000; ++code) {
      if ((code >= 0xD800 && code <= 0xDFFF) || !one.holds(code)) continue;
      all += fmt::format("{}{:x}", count++ > 0 ? "," : "", static_cast<uint32_t>(code));
    }
    CHECK(count == one.count);
    CHECK(fnv1a64(all) == one.hash);
  }
}

TEST_CASE("normal forms: characters that are younger than the peer's tables stay") {
  // What tokenizers 0.19.1 makes of them.
  for (const auto& [form, text, expected] : std::vector<std::array<std::string, 3>>{
           {"NFD", "a\u0345\u0898\u0334", "a\u0345\u0898\u0334"},
           {"NFD", "a\u0345\u0898\u0345\u0334", "a\u0345\u0898\u0334\u0345"},
           {"NFD", "a\u0345\U0001133b\u0334\u0323", "a\u0345\U0001133b\u0334\u0323"},
           {"NFKD", "\U00010796\u0345\u0334", "\U00010796\u0334\u0345"},
           {"NFKC", "\u32ff\u0301 \u212b", "\u32ff\u0301 \u00c5"},
           {"NFC", "\U00011935\U00011930 e\u0301", "\U00011935\U00011930 \u00e9"}}) {
    CAPTURE(form);
    const json description = {{"type", form}};
    std::string normal = text;
    tokenizer::make_normalizer(&description, "normalizer")->apply(normal);
    CHECK(normal == expected);
  }
}

}  // namespace
}  // namespace mtl
