#include "common/text.h"

#include <climits>
#include <cstdint>
#include <string>
#include <vector>

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

TEST_CASE("a number is all of a text and fits, or it is none") {
  CHECK(to_number<int>("0") == 0);
  CHECK(to_number<int>("-2147483648") == INT_MIN);
  CHECK(to_number<int64_t>("9223372036854775807") == INT64_MAX);
  CHECK(to_number<uint64_t>("18446744073709551615") == UINT64_MAX);
  CHECK(to_number<double>("-2.5e-1") == -0.25);
  for (const char* none : {"", " 1", "1 ", "+1", "--1", "0x1", "1.0", "1e3", "one", "1\n"}) {
    CAPTURE(std::string(none));
    CHECK_FALSE(to_number<int>(none));
    CHECK_FALSE(to_number<uint64_t>(none));
  }
  for (const char* none : {"", " 1", "1 ", "+1", "1e", "1.5s", "1e999"}) {
    CAPTURE(std::string(none));
    CHECK_FALSE(to_number<double>(none));
  }
  CHECK_FALSE(to_number<int>("2147483648"));
  CHECK_FALSE(to_number<int64_t>("9223372036854775808"));
  CHECK_FALSE(to_number<uint64_t>("-1"));
}

TEST_CASE("the first few of many names") {
  CHECK(some_of({}).empty());
  CHECK(some_of({"a", "b"}) == "a, b");
  CHECK(some_of({"1", "2", "3", "4", "5", "6", "7", "8", "9", "10"}) ==
        "1, 2, 3, 4, 5, 6, 7, 8 and 2 more");
}
