// The hand-written scanners against their regular expressions, and the expressions against what
// Hugging Face's engine makes of them.
#include "runtime/data/tokenizer/scan.h"

#include <functional>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "common/utf8.h"
#include "runtime/data/tokenizer/regex.h"
#include "runtime/data/tokenizer/unicode.h"
#include "support/errors.h"

namespace mtl::tokenizer {
namespace {

using Cuts = std::vector<size_t>;

Cuts cuts_of_scanner(Scanner scanner, const std::string& text) {
  Cuts cuts;
  for (size_t at = 0; at < text.size();) cuts.push_back(at = scanner(text, at));
  return cuts;
}

Cuts cuts_of_regex(const Regex& regex, const std::string& text) {
  Cuts cuts;
  Regex::Match match(regex);
  for (size_t at = 0; match.find(text, at); at = match.end()) {
    CHECK(match.begin() == at);  // these patterns tile the text
    cuts.push_back(match.end());
  }
  return cuts;
}

std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  const Regex regex(pattern, "");
  Regex::Match match(regex);
  std::vector<std::string> found;
  for (size_t at = 0; match.find(text, at); at = std::max(match.end(), at + 1)) {
    found.push_back(text.substr(match.begin(), match.end() - match.begin()));
  }
  return found;
}

std::string refusal(const std::function<void()>& call) {
  return test::error_of(call, "data.tokenizer", Exit::data);
}

TEST_CASE("scanners cut where the regular expressions do") {
  using namespace std::string_literals;
  // Characters whose neighbours decide: every class, both cases of the contractions, newlines.
  const std::vector<std::string> alphabet = {
      " ",          " ",      " ",      "\n",     "\r",     "\t",     "\u00a0",     "\u2003",
      "\u3000",     "\u180e", "\u0085", "'",      "'",      "s",      "S",          "t",
      "re",         "RE",     "ve",     "m",      "ll",     "lL",     "d",          "D",
      "a",          "Z",      "é",      "\u017f", "\u4e2d", "\u0301", "1",          "2",
      "\u00b2",     "٣",      "Ⅷ",      "!",      ".",      "_",      "\U0001F600", "\U0001D7CE",
      "\U00020000", "\u200b", "\u2028", "\0"s};
  std::mt19937_64 random(6);
  for (const std::string_view pattern : {kGpt2Pattern, kLlama3Pattern, kQwen2Pattern}) {
    CAPTURE(pattern);
    const Scanner scanner = scanner_of(pattern);
    REQUIRE(bool(scanner));
    const Regex regex(pattern, "");
    for (int round = 0; round < 20'000; ++round) {
      std::string text;
      for (size_t length = 1 + random() % 12; length > 0; --length) {
        text += alphabet[random() % alphabet.size()];
      }
      CAPTURE(text);
      REQUIRE(cuts_of_scanner(scanner, text) == cuts_of_regex(regex, text));
    }
    // Every character, between others.
    std::string text;
    for (char32_t code = 0; code < 0x110000; ++code) {
      if (code >= 0xD800 && code <= 0xDFFF) continue;
      append_utf8(text, code);
      text += code % 3 == 0 ? " " : code % 3 == 1 ? "x" : "";
    }
    CHECK(cuts_of_scanner(scanner, text) == cuts_of_regex(regex, text));
  }
  CHECK(!bool(scanner_of("\\p{L}+")));
}

TEST_CASE("expressions mean what they mean to Hugging Face's engine") {
  // White space is White_Space: not U+180E, which PCRE2's own \s has.
  CHECK(matches("\\s+", "a \u180e\u00a0\u2028b").size() == 2);
  CHECK(matches("[^\\s]+", "a \u180e b") == std::vector<std::string>{"a", "\u180e", "b"});
  CHECK(matches("[\\S]+", "a \u180e b") == std::vector<std::string>{"a", "\u180e", "b"});
  // Words have marks and connectors, and Oniguruma's superscripts; \h is a hexadecimal digit.
  CHECK(matches("\\w+", "e\u0301_\u203f1\u00b2\u00bd\u2460") ==
        std::vector<std::string>{"e\u0301_\u203f1\u00b2\u00bd"});
  // In a class there are no superscripts of Latin-1.
  CHECK(matches("[\\w]+|[^\\w\\s]+", "10 m\u00b2 \u00b9a\u00b3\u00bc\u00bd\u00be\u24b6") ==
        std::vector<std::string>{"10", "m", "\u00b2", "\u00b9", "a", "\u00b3\u00bc\u00bd\u00be",
                                 "\u24b6"});
  CHECK(matches("\\h+", "xafG9") == std::vector<std::string>{"af", "9"});
  CHECK(matches("\\bfoo\\b", "a foo \u00b2foo") == std::vector<std::string>{"foo"});
  CHECK(matches("^a", "b\na") == std::vector<std::string>{"a"});
  CHECK(matches("\\p{Han}+", "a\u4e2d\u30fc") == std::vector<std::string>{"\u4e2d"});
  CHECK(matches("(?i:'s)", "'S'\u017f").size() == 2);
  CHECK(matches("\\p{^L}+", "a12") == std::vector<std::string>{"12"});
  CHECK(is_white_space(0x85));
  CHECK(!is_white_space(0x180E));
}

TEST_CASE("expressions that mean something else here or never end are refused") {
  for (const char* pattern :
       {"\\p{N}{1,3}+", "[a[b]]", "[[:alpha:]]", "(?m)a", "(*LIMIT_MATCH=1)a", "\\K", "\\1",
        "[\\W]", "[a&&b]", "a\\", "(", "\\p{Nonsense}", "\\pL"}) {
    CAPTURE(pattern);
    CHECK(refusal([&] { const Regex regex(pattern, "here"); }).starts_with("here: the pattern"));
  }
  CHECK(refusal([] { const Regex regex(std::string(30'000, 'a'), ""); }).find("30000") !=
        std::string::npos);
  CHECK(refusal([] {
          const Regex regex(std::string(500, '(') + "a" + std::string(500, ')'), "");
        }) != "");
  const Regex explodes("(?:a|aa)+$", "model");
  Regex::Match match(explodes);
  const std::string text(40, 'a');
  CHECK(refusal([&] { match.find(text + "c", 0); }).find("gave up") != std::string::npos);
}

TEST_CASE("what is not UTF-8 becomes U+FFFD as in Python") {
  const auto fixed = [](const std::string& text) {
    std::string buffer;
    return std::string(whole_utf8(text, buffer));
  };
  const std::string r = "\uFFFD";
  CHECK(fixed("a\xff"
              "b") == "a" + r + "b");
  CHECK(fixed("\xe2\x82") == r);  // the beginning of a character is one
  CHECK(fixed("\xe2\x82z") == r + "z");
  CHECK(fixed("\xf0\x9f\x98\xf0\x9f") == r + r);
  CHECK(fixed("\xed\xa0\x80") == r + r + r);  // a surrogate is three
  CHECK(fixed("\xc0\xaf") == r + r);          // so is each byte of an overlong form
  CHECK(fixed("\xe0\x80\xaf") == r + r + r);
  CHECK(fixed("\xf4\x90\x80\x80") == r + r + r + r);
  CHECK(fixed("\xf8\x88") == r + r);
  const std::string good = "é\u4e2d\U0001F600";
  std::string buffer;
  CHECK(whole_utf8(good, buffer).data() == good.data());
}

}  // namespace
}  // namespace mtl::tokenizer
