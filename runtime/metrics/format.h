// Numbers as people read them in a status line, a table or a plan.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace mtl {

// 950, 4.1k, 41k, 412k, 1.2M, 124M, 7.0B, 1.4T; "nan" and "inf" as such.
std::string compact_count(double value);
// 0.4s, 42s, 3m05s, 9h12m, 3d04h; "?" when unknown (negative or not finite).
std::string compact_duration(double seconds);
// 412 GFLOP/s, 989 TFLOP/s, 7.92 PFLOP/s: three significant digits.
std::string compact_flops(double per_second);
// 512 B, 3.1 KiB, 38 MiB, 61.4 GiB: three significant digits.
std::string human_bytes(double bytes);
// 4 120: digits in groups of three.
std::string grouped(int64_t value);
// 2.9e-4: two significant digits, no padding in the exponent; 0 stays "0".
std::string short_exponent(double value);
// 0.83, 12.40; very small or large ones as 1.2e-3.
std::string short_number(double value);
// 2026-11-21T01:42:10Z
std::string utc_time(int64_t seconds_since_epoch);
std::string utc_now();

// The values as a row of `width` characters at most, high to low between the largest and the
// smallest shown, newest last; each character is the mean of an equal part of the values. Values
// that are not finite are left out.
std::string sparkline(std::span<const double> values, int width, bool utf8);

}  // namespace mtl
