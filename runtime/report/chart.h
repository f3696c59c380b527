// A chart as SVG that stands by itself: axes with round numbers, lines, and what the page's script
// needs to turn a place back into a value. Colours are the page's (class c0, c1, ...).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/report/curve.h"

namespace mtl {

// How the numbers of an axis are written.
enum class Unit { number, count, percent, bytes, seconds, exponent, watts, celsius, megahertz };

struct ChartLine {
  std::string name;
  int colour = 0;
  bool dashed = false;
  bool dots = false;  // at each point; where there is only one, in any case
  std::vector<CurvePoint> points;
  std::vector<CurvePoint> means;  // drawn over the points, which are faint then; empty = no
};

struct Chart {
  std::string title;
  Unit unit = Unit::number;
  std::vector<ChartLine> lines;
  bool wide = false;
  bool log = false;        // a second axis makes sense: logarithmic, for values above zero
  bool cut_peaks = false;  // few values far above the others leave the chart at its top
};

// What of a chart is drawn on one axis, linear or logarithmic.
std::string chart_svg(const Chart& chart, bool logarithmic);

// 1, 2 or 5 times a power of ten apart, about `wanted` of them, from within [low, high].
std::vector<double> linear_ticks(double low, double high, int wanted);
// Powers of ten, and where there are few of them 2 and 5 times, or all multiples.
std::vector<double> log_ticks(double low, double high);

// 2.4131, 41.2k, 38 %, 61.4 GiB, 320 ms, 3.0e-4
std::string unit_text(Unit unit, double value);

// For text and attributes of HTML and SVG. What is no character of it (control characters, bytes
// that are not UTF-8) becomes U+FFFD.
std::string html_text(std::string_view text);

}  // namespace mtl
