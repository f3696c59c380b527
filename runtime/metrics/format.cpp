#include "runtime/metrics/format.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <vector>

#include <fmt/format.h>

namespace mtl {

namespace {

// Three significant digits without an exponent: 4.12, 41.2, 412.
std::string three_digits(double value) {
  if (value >= 99.95) return fmt::format("{:.0f}", value);
  if (value >= 9.995) return fmt::format("{:.1f}", value);
  return fmt::format("{:.2f}", value);
}

}  // namespace

std::string compact_count(double value) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  if (value < 0) return '-' + compact_count(-value);
  if (value < 999.5) return fmt::format("{:.0f}", value);
  constexpr std::array<const char*, 6> kUnits = {"", "k", "M", "B", "T", "P"};
  size_t unit = 0;
  // 999.5k would print as 1000k: it is 1.0M.
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.{}f}{}", value, value < 9.95 ? 1 : 0, kUnits[unit]);
}

std::string compact_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds < 9.95) return fmt::format("{:.1f}s", seconds);
  if (seconds > 1e11) return "?";
  const auto total = static_cast<int64_t>(std::llround(seconds));
  if (total < 60) return fmt::format("{}s", total);
  if (total < 3600) return fmt::format("{}m{:02}s", total / 60, total % 60);
  if (total < 86400) return fmt::format("{}h{:02}m", total / 3600, total / 60 % 60);
  return fmt::format("{}d{:02}h", total / 86400, total / 3600 % 24);
}

std::string compact_flops(double per_second) {
  constexpr std::array<const char*, 5> kUnits = {"MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s",
                                                 "EFLOP/s"};
  size_t unit = 0;
  double value = per_second / 1e6;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return three_digits(value) + ' ' + kUnits[unit];
}

std::string human_bytes(double bytes) {
  if (bytes < 1024) return fmt::format("{:.0f} B", bytes);
  constexpr std::array<const char*, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  bytes /= 1024;
  while (bytes >= 1023.5 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return three_digits(bytes) + ' ' + kUnits[unit];
}

std::string grouped(int64_t value) {
  std::string digits = std::to_string(value);
  const size_t sign = value < 0 ? 1 : 0;
  for (size_t end = digits.size(); end > sign + 3; end -= 3) digits.insert(end - 3, 1, ' ');
  return digits;
}

std::string short_exponent(double value) {
  if (value == 0) return "0";
  std::string text = fmt::format("{:.1e}", value);
  const size_t e = text.find('e');
  if (e == std::string::npos) return text;  // nan, inf
  const int exponent = std::stoi(text.substr(e + 1));
  return fmt::format("{}e{}", text.substr(0, e), exponent);
}

std::string short_number(double value) {
  const double size = std::abs(value);
  if (size == 0 || (size >= 0.0995 && size < 1e5) || !std::isfinite(value)) {
    return fmt::format("{:.2f}", value);
  }
  return short_exponent(value);
}

std::string utc_time(int64_t seconds_since_epoch) {
  const auto time = static_cast<std::time_t>(seconds_since_epoch);
  std::tm parts{};
  gmtime_r(&time, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

std::string utc_now() {
  return utc_time(static_cast<int64_t>(std::time(nullptr)));
}

std::string sparkline(std::span<const double> values, int width, bool utf8) {
  constexpr std::array<const char*, 8> kBlocks = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  constexpr std::array<const char*, 8> kAscii = {"_", ".", "-", "=", "+", "*", "%", "#"};
  std::vector<double> finite;
  std::copy_if(values.begin(), values.end(), std::back_inserter(finite),
               [](double value) { return std::isfinite(value); });
  if (finite.empty() || width <= 0) return "";
  const size_t columns = std::min(finite.size(), static_cast<size_t>(width));
  std::vector<double> means(columns);
  for (size_t i = 0; i < columns; ++i) {
    const size_t first = finite.size() * i / columns;
    const size_t last = finite.size() * (i + 1) / columns;
    double sum = 0;
    for (size_t j = first; j < last; ++j) sum += finite[j];
    means[i] = sum / static_cast<double>(last - first);
  }
  const auto [low, high] = std::minmax_element(means.begin(), means.end());
  const double range = *high - *low;
  std::string line;
  for (double mean : means) {
    const double part = range > 0 ? (mean - *low) / range : 0.0;
    const auto level = static_cast<size_t>(std::lround(part * 7));
    line += utf8 ? kBlocks[level] : kAscii[level];
  }
  return line;
}

}  // namespace mtl
