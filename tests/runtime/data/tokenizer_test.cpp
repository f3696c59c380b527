// Tokenizers: what is encoded comes back, and nothing that is not UTF-8 gets in.
#include <functional>
#include <random>
#include <rapidcheck.h>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "common/utf8.h"
#include "runtime/data/data.h"
#include "support/text.h"

namespace mtl {
namespace {

// The one diagnostic that `call` throws.
Diagnostic thrown(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.exit() == Exit::data);
    REQUIRE(error.diagnostics().size() == 1);
    return error.diagnostics()[0];
  }
  FAIL("no Error");
  return {};
}

using mtl::test::has;

// Random text over the whole of Unicode, each length of UTF-8 equally likely.
std::string random_text(std::mt19937_64& random, size_t characters) {
  const char32_t limits[] = {0, 0x80, 0x800, 0x10000, 0x110000};
  std::string text;
  while (characters > 0) {
    const size_t kind = random() % 4;
    const char32_t c =
        limits[kind] + static_cast<char32_t>(random() % (limits[kind + 1] - limits[kind]));
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    append_utf8(text, c);
    --characters;
  }
  return text;
}

TEST_CASE("bytes: every byte string comes back") {
  const auto tokenizer = make_byte_tokenizer();
  CHECK(tokenizer->vocab_size() == 256);
  CHECK(rc::check([&](const std::string& text) {
    const auto ids = tokenizer->encode(text);
    RC_ASSERT(ids.size() == text.size());
    RC_ASSERT(tokenizer->decode(ids) == text);
  }));
  CHECK(tokenizer->encode("\xff\x80z") == std::vector<int32_t>{255, 128, 122});
}

TEST_CASE("chars: sorted distinct code points, ids in their order") {
  const auto tokenizer = make_char_tokenizer(
      "b\xC3\xA4"
      "a\n\xF0\x9F\x98\x80"
      "ab");
  CHECK(tokenizer->vocab_size() == 5);
  CHECK(tokenizer->encode("\nab\xC3\xA4\xF0\x9F\x98\x80") == std::vector<int32_t>{0, 1, 2, 3, 4});
}

TEST_CASE("chars: every text comes back, also after JSON") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    const std::string text = random_text(random, 1 + random() % 300);
    CAPTURE(seed);
    const auto tokenizer = make_char_tokenizer(text);
    const auto ids = tokenizer->encode(text);
    CHECK(tokenizer->decode(ids) == text);
    CHECK(static_cast<int64_t>(std::set(ids.begin(), ids.end()).size()) == tokenizer->vocab_size());
    const auto again = tokenizer_from_json(nlohmann::json::parse(tokenizer->to_json().dump()));
    CHECK(again->encode(text) == ids);
    CHECK(again->vocab_size() == tokenizer->vocab_size());
  }
}

TEST_CASE("utf8: every scalar value and nothing else") {
  for (char32_t c = 0; c < 0x110000; ++c) {
    std::string text;
    append_utf8(text, c);
    size_t pos = 0;
    char32_t back = 0;
    const char* why = read_utf8(text, pos, back);
    if (c >= 0xD800 && c <= 0xDFFF) {
      REQUIRE(why);
      REQUIRE(pos == 0);
    } else {
      REQUIRE(!why);
      REQUIRE(back == c);
      REQUIRE(pos == text.size());
    }
  }
}

TEST_CASE("utf8: invalid kinds are named with their offset") {
  struct Case {
    std::string bytes;
    std::string why;
  };
  const Case cases[] = {
      {"\x80", "stray continuation"},
      {"\xBF"
       "x",
       "stray continuation"},
      {"\xC0\x80", "overlong"},
      {"\xC1\xBF", "overlong"},
      {"\xE0\x9F\xBF", "overlong"},
      {"\xF0\x8F\xBF\xBF", "overlong"},
      {"\xED\xA0\x80", "surrogate"},
      {"\xED\xBF\xBF", "surrogate"},
      {"\xF4\x90\x80\x80", "above U+10FFFF"},
      {"\xF7\xBF\xBF\xBF", "above U+10FFFF"},
      {"\xF8\x88\x80\x80\x80", "never occurs"},
      {"\xFE", "never occurs"},
      {"\xFF", "never occurs"},
      {"\xC3", "truncated character at the end"},
      {"\xE2\x82", "truncated character at the end"},
      {"\xF0\x9F\x98", "truncated character at the end"},
      {"\xC3"
       "a",
       "truncated character"},
      {"\xE2\x82"
       "a",
       "truncated character"},
      {"\xF0\x9F\xC3\xA4", "truncated character"},
  };
  const auto known = make_char_tokenizer("ab\xC3\xA4");
  for (const Case& c : cases) {
    CAPTURE(c.why);
    for (const auto& diagnostic : {thrown([&] { make_char_tokenizer("ab\xC3\xA4" + c.bytes); }),
                                   thrown([&] { known->encode("ab\xC3\xA4" + c.bytes); })}) {
      CHECK(diagnostic.code == "data.utf8");
      CHECK(has(diagnostic.what, c.why));
      CHECK(has(diagnostic.what, "offset 4:"));
    }
  }
}

TEST_CASE("chars: unknown characters and ids are named") {
  const auto tokenizer = make_char_tokenizer("abc");
  auto diagnostic = thrown([&] { tokenizer->encode("ab\xE2\x82\xAC"); });
  CHECK(diagnostic.code == "data.token");
  CHECK(has(diagnostic.what, "U+20AC"));
  CHECK(has(diagnostic.what, "offset 2"));
  // Within the range of known code points, but not one of them.
  CHECK(thrown([&] { make_char_tokenizer("ac")->encode("b"); }).code == "data.token");
  for (const int32_t id : {-1, 3, INT32_MAX, INT32_MIN}) {
    diagnostic = thrown([&] { tokenizer->decode(std::vector<int32_t>{0, id}); });
    CHECK(diagnostic.code == "data.token");
    CHECK(has(diagnostic.what, std::to_string(id)));
    CHECK(has(diagnostic.what, "position 1"));
  }
  for (const int32_t id : {-1, 256, INT32_MAX}) {
    CHECK(thrown([&] { make_byte_tokenizer()->decode(std::vector<int32_t>{id}); }).code ==
          "data.token");
  }
  CHECK(thrown([&] { make_char_tokenizer(""); }).code == "data.empty");
}

TEST_CASE("tokenizer JSON: bytes round trip; anything damaged is refused") {
  using namespace std::string_literals;
  const auto bytes = tokenizer_from_json(make_byte_tokenizer()->to_json());
  CHECK(bytes->decode(bytes->encode("\x00\xFF"s)) == "\x00\xFF"s);
  const nlohmann::json good = make_char_tokenizer("abc")->to_json();
  CHECK(tokenizer_from_json(good)->vocab_size() == 3);
  const auto refused = [&](const std::string& key, const nlohmann::json& value) {
    nlohmann::json bad = good;
    bad[key] = value;
    CAPTURE(key);
    CAPTURE(value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
    CHECK(thrown([&] { tokenizer_from_json(bad); }).code == "data.tokenizer");
  };
  refused("format", "other");
  refused("format", 1);
  refused("version", 2);
  refused("version", "1");
  refused("version", nullptr);
  refused("type", "bpe");
  refused("type", 7);
  refused("type", "\xff");
  refused("characters", "");
  refused("characters", "ba");
  refused("characters", "aa");
  refused("characters", "a\xFF");
  refused("characters", 3);
  for (const auto& key : {"format", "version", "type", "characters"}) {
    nlohmann::json bad = good;
    bad.erase(key);
    CHECK(thrown([&] { tokenizer_from_json(bad); }).code == "data.tokenizer");
  }
  CHECK(thrown([&] { tokenizer_from_json(nlohmann::json::array()); }).code == "data.tokenizer");
}

}  // namespace
}  // namespace mtl
