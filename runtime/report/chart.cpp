#include "runtime/report/chart.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include <fmt/format.h>

#include "common/utf8.h"

namespace mtl {

namespace {

constexpr double kLeftMargin = 54, kRightMargin = 14, kTopMargin = 10, kBottomMargin = 26;
constexpr double kMinLog = 1e-300, kLargest = 1e300;

// Numbers of one axis share a power, so that their labels line up.
struct AxisScale {
  double factor = 1;
  std::string suffix;
};

AxisScale step_of(double largest, double base, std::initializer_list<const char*> names) {
  AxisScale scale;
  double factor = 1;
  for (const char* name : names) {
    if (largest < factor) break;
    scale = {factor, name};
    factor *= base;
  }
  return scale;
}

AxisScale scale_for(Unit unit, double largest) {
  largest = std::abs(largest);
  switch (unit) {
    case Unit::count:
      return step_of(largest, 1000, {"", "k", "M", "G", "T"});
    case Unit::bytes:
      return step_of(largest, 1024, {" B", " KiB", " MiB", " GiB", " TiB"});
    case Unit::percent:
      return {0.01, " %"};
    case Unit::seconds:
      return largest < 1 ? AxisScale{0.001, " ms"} : AxisScale{1, " s"};
    case Unit::watts:
      return largest < 10000 ? AxisScale{1, " W"} : AxisScale{1000, " kW"};
    case Unit::celsius:
      return {1, " °C"};
    case Unit::megahertz:
      return {1, " MHz"};
    case Unit::number:
      return {1, ""};
    case Unit::exponent:
      break;
  }
  if (largest == 0) return {1, ""};
  const int power = static_cast<int>(std::floor(std::log10(largest)));
  if (power >= -2 && power <= 3) return {1, ""};
  return {std::pow(10, power), fmt::format("e{}", power)};
}

std::string tick_label(double value, const AxisScale& scale, int decimals) {
  if (value == 0) return "0";
  return fmt::format("{:.{}f}{}", value / scale.factor, decimals, scale.suffix);
}

// Decimals that tell numbers `apart` from each other.
int decimals_for(double apart) {
  if (!(apart > 0)) return 0;
  return std::clamp(-static_cast<int>(std::floor(std::log10(apart) + 1e-9)), 0, 9);
}

// A log axis has numbers of all sizes: each with the digits that it needs.
std::string log_label(Unit unit, double value) {
  const AxisScale scale = scale_for(unit, value);
  if (unit == Unit::number && (value >= 1e4 || value < 1e-3)) {
    const int power = static_cast<int>(std::floor(std::log10(value) + 1e-9));
    return fmt::format("{:g}e{}", value / std::pow(10, power), power);
  }
  return fmt::format("{:g}{}", value / scale.factor, scale.suffix);
}

struct ValueRange {
  double low = 0, high = 1;
};

ValueRange value_range(const Chart& chart, bool logarithmic) {
  std::vector<double> values;
  for (const ChartLine& line : chart.lines) {
    for (const CurvePoint& point : line.points) {
      // An axis has room around its values, and no number is beyond the last one.
      const double value = std::clamp(point.value, -kLargest, kLargest);
      if (!logarithmic || value > kMinLog) values.push_back(value);
    }
  }
  if (values.empty()) return logarithmic ? ValueRange{1, 10} : ValueRange{};
  std::sort(values.begin(), values.end());
  ValueRange range{values.front(), values.back()};
  // Of two values none is a peak.
  if (chart.cut_peaks && !logarithmic && values.size() > 2) {
    const auto at = [&](double part) {
      return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1))];
    };
    range.high = std::min(range.high, at(0.97) + 1.5 * (at(0.97) - at(0.03)));
  }
  if (logarithmic) {
    const double room = std::exp(0.04 * (std::log(range.high) - std::log(range.low)));
    const double factor = room > 1.0001 ? room : 2;
    return {std::max(range.low / factor, 1 / kLargest), std::min(range.high * factor, kLargest)};
  }
  double width = range.high - range.low;
  if (width < 1e-9 * std::abs(range.high)) width = std::abs(range.high) * 0.2;
  if (width == 0) width = 1;
  // An axis that nearly reaches zero shows it; else the lines fill the chart.
  const bool from_zero =
      range.low >= 0 && (range.low < 0.4 * range.high || chart.unit == Unit::bytes);
  return {from_zero ? 0 : range.low - 0.06 * width, range.high + 0.06 * width};
}

struct ChartAxes {
  double left = kLeftMargin, right = 0, top = kTopMargin, bottom = 0;
  double steps = 1;
  ValueRange range;
  bool logarithmic = false;

  double x(double step) const { return left + (right - left) * step / steps; }
  double y(double value) const {
    const auto place = [&](double v) { return logarithmic ? std::log(std::max(v, kMinLog)) : v; };
    const double part = (place(value) - place(range.low)) / (place(range.high) - place(range.low));
    return bottom - (bottom - top) * part;
  }
};

void draw_axes(std::string& svg, const ChartAxes& axes, Unit unit) {
  const auto out = std::back_inserter(svg);
  const AxisScale scale = scale_for(unit, axes.range.high);
  // Round in the unit of the labels.
  std::vector<double> ticks =
      linear_ticks(axes.range.low / scale.factor, axes.range.high / scale.factor, 5);
  const double apart = ticks.size() > 1 ? ticks[1] - ticks[0] : 0;
  for (double& tick : ticks) tick *= scale.factor;
  if (axes.logarithmic) ticks = log_ticks(axes.range.low, axes.range.high);
  for (const double tick : ticks) {
    const double y = axes.y(tick);
    fmt::format_to(out, "<line class='grid' x1='{:.0f}' x2='{:.0f}' y1='{:.1f}' y2='{:.1f}'/>",
                   axes.left, axes.right, y, y);
    fmt::format_to(out, "<text x='{:.0f}' y='{:.1f}' text-anchor='end'>{}</text>", axes.left - 8,
                   y + 4,
                   html_text(axes.logarithmic ? log_label(unit, tick)
                                              : tick_label(tick, scale, decimals_for(apart))));
  }
  fmt::format_to(out, "<line class='axis' x1='{:.0f}' x2='{:.0f}' y1='{:.1f}' y2='{:.1f}'/>",
                 axes.left, axes.right, axes.bottom, axes.bottom);
  const int wanted = static_cast<int>((axes.right - axes.left) / 80);
  const std::vector<double> steps = linear_ticks(0, axes.steps, wanted);
  const AxisScale thousands = scale_for(Unit::count, axes.steps);
  const double steps_apart = steps.size() > 1 ? steps[1] - steps[0] : 0;
  for (const double step : steps) {
    if (step != std::floor(step)) continue;
    const double x = axes.x(step);
    fmt::format_to(out, "<line class='axis' x1='{:.1f}' x2='{:.1f}' y1='{:.1f}' y2='{:.1f}'/>", x,
                   x, axes.bottom, axes.bottom + 4);
    const char* anchor = x > axes.right - 14 ? "end" : "middle";
    fmt::format_to(out, "<text x='{:.1f}' y='{:.1f}' text-anchor='{}'>{}</text>",
                   anchor[0] == 'e' ? axes.right : x, axes.bottom + 18, anchor,
                   tick_label(step, thousands, decimals_for(steps_apart / thousands.factor)));
  }
}

std::string places(const ChartAxes& axes, const std::vector<CurvePoint>& points) {
  std::string text;
  for (const CurvePoint& point : points) {
    if (axes.logarithmic && point.value <= kMinLog) continue;
    // Far outside there is nothing to see, and renderers have their limits.
    fmt::format_to(std::back_inserter(text), "{}{:.1f},{:.2f}", text.empty() ? "" : " ",
                   axes.x(static_cast<double>(point.step)),
                   std::clamp(axes.y(point.value), -1e4, 1e4));
  }
  return text;
}

void draw_line(std::string& svg, const ChartAxes& axes, const ChartLine& line) {
  const auto out = std::back_inserter(svg);
  const std::string points = places(axes, line.points);
  if (points.empty()) return;
  fmt::format_to(out, "<polyline class='line c{}{}{}' data-name='{}' points='{}'/>", line.colour,
                 line.dashed ? " dashed" : "", line.means.empty() ? "" : " faint",
                 html_text(line.name), points);
  if (!line.means.empty()) {
    fmt::format_to(out, "<polyline class='line c{}' points='{}'/>", line.colour,
                   places(axes, line.means));
  }
  if (!line.dots && line.points.size() > 1) return;
  for (const CurvePoint& point : line.points) {
    if (axes.logarithmic && point.value <= kMinLog) continue;
    fmt::format_to(out, "<circle class='dot c{}' cx='{:.1f}' cy='{:.1f}' r='3'/>", line.colour,
                   axes.x(static_cast<double>(point.step)), axes.y(point.value));
  }
}

}  // namespace

std::vector<double> linear_ticks(double low, double high, int wanted) {
  const double width = high - low;
  if (!(width > 0) || !std::isfinite(width)) return {low};
  const double rough = width / std::max(wanted, 1);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double apart = 10 * power;
  for (const double times : {1.0, 2.0, 5.0}) {
    if (times * power >= rough * 0.999) {
      apart = times * power;
      break;
    }
  }
  std::vector<double> ticks;
  for (double i = std::ceil(low / apart - 1e-9); i * apart <= high + 1e-9 * apart; ++i) {
    ticks.push_back(i * apart);
  }
  return ticks;
}

std::vector<double> log_ticks(double low, double high) {
  const double decades = std::log10(high) - std::log10(low);
  const int apart = std::max(1, static_cast<int>(std::ceil(decades / 6)));
  std::vector<double> ticks;
  for (int power = static_cast<int>(std::floor(std::log10(low))); std::pow(10, power) <= high;
       ++power) {
    for (const double times : {1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0}) {
      if (times > 1 && decades > 3) continue;
      if (times != 1 && times != 2 && times != 5 && decades > 1.2) continue;
      if ((times == 1.5 || times == 8) && decades > 0.6) continue;
      if (times == 1 && decades > 3 && power % apart != 0) continue;
      const double tick = times * std::pow(10, power);
      if (tick >= low && tick <= high) ticks.push_back(tick);
    }
  }
  // Less than a tenth apart, a line is straight anyway.
  return ticks.size() >= 2 ? ticks : linear_ticks(low, high, 4);
}

std::string unit_text(Unit unit, double value) {
  if (!std::isfinite(value)) return fmt::format("{}", std::isnan(value) ? NAN : value);
  const AxisScale scale = scale_for(unit, value);
  const double shown = value / scale.factor;
  const double size = std::abs(shown);
  if (unit == Unit::number) {
    if (size != 0 && (size < 1e-3 || size >= 1e5)) return fmt::format("{:.3g}", value);
    return fmt::format("{:.{}f}", value, size < 100 ? 4 : 1);
  }
  if (unit == Unit::exponent && scale.suffix.empty()) return fmt::format("{:.3g}", value);
  const bool whole = unit == Unit::count && scale.factor == 1 && value == std::floor(value);
  const int decimals = whole || size >= 100 ? 0 : (size >= 10 ? 1 : 2);
  return fmt::format("{:.{}f}{}", shown, decimals, scale.suffix);
}

std::string chart_svg(const Chart& chart, bool logarithmic) {
  ChartAxes axes;
  const double width = chart.wide ? 1120 : 548, height = chart.wide ? 320 : 210;
  axes.right = width - kRightMargin;
  axes.bottom = height - kBottomMargin;
  axes.logarithmic = logarithmic;
  axes.range = value_range(chart, logarithmic);
  for (const ChartLine& line : chart.lines) {
    if (!line.points.empty()) {
      axes.steps = std::max(axes.steps, static_cast<double>(line.points.back().step));
    }
  }
  const AxisScale scale = scale_for(chart.unit, axes.range.high);
  std::string svg = fmt::format(
      "<svg class='chart {}' viewBox='0 0 {:.0f} {:.0f}' role='img' aria-label='{}' "
      "data-x='{:.1f} {:.1f} {:.0f}' data-y='{:.1f} {:.1f} {:.9g} {:.9g} {}' data-unit='{:g}|{}'>",
      logarithmic ? "log" : "lin", width, height,
      html_text(chart.title + (logarithmic ? ", logarithmic" : "")), axes.left, axes.right,
      axes.steps, axes.bottom, axes.top, axes.range.low, axes.range.high, logarithmic ? 1 : 0,
      scale.factor, html_text(scale.suffix));
  draw_axes(svg, axes, chart.unit);
  // A window of its own clips what leaves the chart, without a name that two charts could share.
  svg += fmt::format(
      "<svg x='{:.0f}' y='{:.0f}' width='{:.0f}' height='{:.0f}' viewBox='{:.0f} {:.0f} {:.0f} "
      "{:.0f}'>",
      axes.left - 4, axes.top, axes.right - axes.left + 8, axes.bottom - axes.top + 4,
      axes.left - 4, axes.top, axes.right - axes.left + 8, axes.bottom - axes.top + 4);
  for (const ChartLine& line : chart.lines) draw_line(svg, axes, line);
  return svg + "</svg></svg>\n";
}

std::string html_text(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size() + text.size() / 8);
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    char32_t code = 0;
    if (read_utf8(text, at, code) != nullptr) {
      escaped += "\xEF\xBF\xBD";
      ++at;
      continue;
    }
    const bool control =
        (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7f && code < 0xa0);
    switch (code) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        if (control) {
          escaped += "\xEF\xBF\xBD";
        } else {
          escaped += text.substr(begin, at - begin);
        }
    }
  }
  return escaped;
}

}  // namespace mtl
