#include "common/text.h"

#include <doctest/doctest.h>

using namespace mtl;

TEST_CASE("letters of keys change their case, other bytes stay") {
  CHECK(lower("FULL_Shard2") == "full_shard2");
  CHECK(upper("full_Shard2") == "FULL_SHARD2");
  // A capital A with an umlaut, in UTF-8 and in Latin-1.
  CHECK(lower("\xC3\x84 \xC4") == "\xC3\x84 \xC4");
  CHECK(upper("\xC3\xA4 \xE4") == "\xC3\xA4 \xE4");
}

TEST_CASE("a part is found in whatever case") {
  CHECK(contains_ignoring_case("HF_Token", "TOKEN"));
  CHECK(contains_ignoring_case("abc", ""));
  CHECK_FALSE(contains_ignoring_case("tok", "token"));
  CHECK_FALSE(contains_ignoring_case("", "x"));
}

TEST_CASE("lines with and without an end") {
  using Lines = std::vector<std::string>;
  CHECK(lines_of("").empty());
  CHECK(lines_of("a\n\nb") == Lines{"a", "", "b"});
  CHECK(lines_of("a\n\nb\n") == Lines{"a", "", "b"});
}

TEST_CASE("the first few of many names") {
  CHECK(some_of({}).empty());
  CHECK(some_of({"a", "b"}) == "a, b");
  CHECK(some_of({"1", "2", "3", "4", "5", "6", "7", "8", "9", "10"}) ==
        "1, 2, 3, 4, 5, 6, 7, 8 and 2 more");
}
