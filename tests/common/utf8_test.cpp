#include "common/utf8.h"

#include <doctest/doctest.h>

using namespace mtl;

TEST_CASE("the length of a character, and none where there is none") {
  const std::string text = "a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80";
  CHECK(utf8_length(text, 0) == 1);
  CHECK(utf8_length(text, 1) == 2);
  CHECK(utf8_length(text, 3) == 3);
  CHECK(utf8_length(text, 6) == 4);
  CHECK(utf8_length(text, text.size()) == 0);
  // In its middle, cut off, overlong, half of a surrogate pair, beyond U+10FFFF, no lead byte.
  CHECK(utf8_length(text, 2) == 0);
  for (const char* none :
       {"\xE2\x82", "\xC0\xAF", "\xE0\x80\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xFF"}) {
    CAPTURE(none);
    CHECK(utf8_length(none, 0) == 0);
  }
}

TEST_CASE("from character to character, and over what is none") {
  const std::string text = "a\xC3\xA4\xE2\x82\xAC";
  CHECK(next_character(text, 0) == 1);
  CHECK(next_character(text, 1) == 3);
  CHECK(next_character(text, 3) == 6);
  CHECK(next_character(text, 6) == 6);
  CHECK(previous_character(text, 6) == 3);
  CHECK(previous_character(text, 3) == 1);
  CHECK(previous_character(text, 0) == 0);
  // Bytes that continue nothing go with what is before them.
  CHECK(next_character("\x80\x80z", 0) == 2);
  CHECK(previous_character("\x80\x80", 2) == 0);
}
