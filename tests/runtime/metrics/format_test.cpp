// runtime/metrics/format: numbers as people read them.
#include "runtime/metrics/format.h"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "common/terminal.h"

using namespace mtl;

namespace {
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
}  // namespace

TEST_CASE("counts are short and never show 1000 of a unit") {
  const std::vector<std::pair<double, const char*>> table = {
      {0, "0"},         {950, "950"},       {999.4, "999"},   {999.6, "1.0k"},
      {4120, "4.1k"},   {41200, "41k"},     {412000, "412k"}, {999499, "999k"},
      {999600, "1.0M"}, {1.2e6, "1.2M"},    {124e6, "124M"},  {7e9, "7.0B"},
      {1.4e12, "1.4T"}, {-412000, "-412k"}, {kNan, "nan"},    {kInf, "inf"},
  };
  for (const auto& [value, text] : table) {
    CAPTURE(value);
    CHECK(compact_count(value) == text);
  }
}

TEST_CASE("durations carry over to the next unit") {
  const std::vector<std::pair<double, const char*>> table = {
      {0, "0.0s"},    {0.42, "0.4s"},    {9.96, "10s"},    {59.4, "59s"},    {59.6, "1m00s"},
      {185, "3m05s"}, {3599.6, "1h00m"}, {33120, "9h12m"}, {86400, "1d00h"}, {273600, "3d04h"},
      {-1, "?"},      {kNan, "?"},       {kInf, "?"},      {1e300, "?"},
  };
  for (const auto& [value, text] : table) {
    CAPTURE(value);
    CHECK(compact_duration(value) == text);
  }
}

TEST_CASE("bytes have three digits") {
  CHECK(compact_flops(2.5e6) == "2.50 MFLOP/s");
  CHECK(compact_flops(412.3e9) == "412 GFLOP/s");
  CHECK(compact_flops(989.4e12) == "989 TFLOP/s");
  CHECK(compact_flops(999.9e12) == "1.00 PFLOP/s");
  CHECK(compact_flops(16384 * 989.4e12) == "16.2 EFLOP/s");
  CHECK(human_bytes(512) == "512 B");
  CHECK(human_bytes(1024) == "1.00 KiB");
  CHECK(human_bytes(38.0 * 1024 * 1024) == "38.0 MiB");
  CHECK(human_bytes(1023.9 * 1024) == "1.00 MiB");
  CHECK(human_bytes(61.44 * 1024 * 1024 * 1024) == "61.4 GiB");
  CHECK(human_bytes(400.4 * 1024 * 1024 * 1024) == "400 GiB");
}

TEST_CASE("integers are grouped, exponents are short") {
  CHECK(grouped(0) == "0");
  CHECK(grouped(999) == "999");
  CHECK(grouped(4120) == "4 120");
  CHECK(grouped(1234567) == "1 234 567");
  CHECK(grouped(-123456) == "-123 456");
  CHECK(short_exponent(2.9e-4) == "2.9e-4");
  CHECK(short_exponent(0) == "0");
  CHECK(short_exponent(1e-10) == "1.0e-10");
  CHECK(short_exponent(1.0) == "1.0e0");
  CHECK(short_exponent(kNan) == "nan");
  CHECK(short_number(0.83) == "0.83");
  CHECK(short_number(0) == "0.00");
  CHECK(short_number(0.0012) == "1.2e-3");
  CHECK(short_number(1234.5) == "1234.50");
  CHECK(short_number(1.2e7) == "1.2e7");
  CHECK(short_number(kInf) == "inf");
}

TEST_CASE("times are UTC") {
  CHECK(utc_time(0) == "1970-01-01T00:00:00Z");
  CHECK(utc_time(1795225330) == "2026-11-21T01:42:10Z");
}

TEST_CASE("a sparkline spans its values, newest last") {
  const std::vector<double> falling = {8, 7, 6, 5, 4, 3, 2, 1};
  CHECK(sparkline(falling, 8, true) == "█▇▆▅▄▃▂▁");
  CHECK(sparkline(falling, 4, true) == "█▆▃▁");
  CHECK(sparkline(falling, 8, false) == "#%*+=-._");
  CHECK(sparkline(std::vector<double>{3, 3, 3}, 8, true) == "▁▁▁");
  CHECK(sparkline(std::vector<double>{}, 8, true).empty());
  CHECK(sparkline(falling, 0, true).empty());
  CHECK(sparkline(std::vector<double>{2, kNan, 1, kInf}, 8, true) == "█▁");
  CHECK(sparkline(std::vector<double>{kNan}, 8, true).empty());
  for (int n = 1; n < 40; ++n) {
    std::vector<double> values;
    for (int i = 0; i < n; ++i) values.push_back(std::sin(i));
    CAPTURE(n);
    CHECK(display_width(sparkline(values, 8, true)) == std::min(n, 8));
  }
}
