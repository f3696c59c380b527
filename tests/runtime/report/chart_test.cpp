// Charts: round ticks, words of numbers, and SVG that is well-formed whatever is drawn.
#include "runtime/report/chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>

#include <doctest/doctest.h>

using namespace mtl;

namespace {

// Every element of `svg` is closed where it should be.
bool is_balanced(const std::string& svg) {
  std::vector<std::string> open;
  for (size_t at = svg.find('<'); at != svg.npos; at = svg.find('<', at + 1)) {
    const size_t end = svg.find('>', at);
    if (end == svg.npos) return false;
    const std::string tag = svg.substr(at + 1, end - at - 1);
    if (tag.ends_with('/')) continue;
    const std::string name = tag.substr(0, tag.find(' '));
    if (name[0] != '/') {
      open.push_back(name);
    } else if (open.empty() || "/" + open.back() != name) {
      return false;
    } else {
      open.pop_back();
    }
  }
  return open.empty();
}

}  // namespace

TEST_CASE("ticks are round and inside the axis") {
  CHECK(linear_ticks(0, 10, 5) == std::vector<double>{0, 2, 4, 6, 8, 10});
  CHECK(linear_ticks(0.13, 0.61, 4) == std::vector<double>{0.2, 0.4, 0.6000000000000001});
  CHECK(linear_ticks(-3, 3, 3) == std::vector<double>{-2, 0, 2});
  CHECK(linear_ticks(5, 5, 4).size() == 1);
  CHECK(linear_ticks(0, 1e300, 4).size() >= 2);
  CHECK(log_ticks(1, 1000) == std::vector<double>{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000});
  CHECK(log_ticks(2.1, 4.9) == std::vector<double>{3, 4});
  const auto wide = log_ticks(1e-12, 1e12);
  CHECK(wide.size() <= 7);
  CHECK(wide.size() >= 4);
  CHECK(log_ticks(3.01, 3.02).size() >= 2);
}

TEST_CASE("numbers are said in their unit") {
  CHECK(unit_text(Unit::number, 2.41306) == "2.4131");
  CHECK(unit_text(Unit::number, 0.00001234) == "1.23e-05");
  CHECK(unit_text(Unit::count, 1983092) == "1.98M");
  CHECK(unit_text(Unit::count, 12) == "12");
  CHECK(unit_text(Unit::percent, 0.4246) == "42.5 %");
  CHECK(unit_text(Unit::bytes, 13.1 * (1 << 30)) == "13.1 GiB");
  CHECK(unit_text(Unit::seconds, 0.2413) == "241 ms");
  CHECK(unit_text(Unit::seconds, 3.24) == "3.24 s");
  CHECK(unit_text(Unit::exponent, 2.9e-4) == "2.90e-4");
  CHECK(unit_text(Unit::watts, 5400) == "5400 W");
  CHECK(unit_text(Unit::number, std::numeric_limits<double>::quiet_NaN()) == "nan");
}

TEST_CASE("a chart is well-formed, whatever its lines are") {
  const std::vector<std::vector<CurvePoint>> lines = {
      {},
      {{5, 1.0}},
      {{1, 0.0}, {2, 0.0}},
      {{1, -3.0}, {1000000, 1e300}},
      {{1, 1e-300}, {2, 1e-308}},
      {{1, 1e-290}, {2, 1e290}},
      {{1, -1.7e308}, {2, 1.7e308}},
      {{1, 2.5}, {2, 2.5}, {3, 2.5}},
      {{1, 1e9}, {2, 1e9 + 1}},
  };
  for (const auto& points : lines) {
    for (const Unit unit : {Unit::number, Unit::bytes, Unit::exponent, Unit::seconds}) {
      for (const bool logarithmic : {false, true}) {
        Chart chart{.title = "a <b> & 'c'", .unit = unit, .lines = {}};
        chart.cut_peaks = true;
        chart.lines.push_back({.name = "x\"><script>", .points = points, .means = points});
        const std::string svg = chart_svg(chart, logarithmic);
        CAPTURE(svg);
        CHECK(is_balanced(svg));
        CHECK(svg.find("<script") == svg.npos);
        CHECK(svg.find("<b>") == svg.npos);
        CHECK(svg.find("nan") == svg.npos);
        CHECK(svg.find("inf") == svg.npos);
      }
    }
  }
}

TEST_CASE("a logarithmic chart leaves out what has no logarithm") {
  Chart chart{.title = "Loss", .lines = {}};
  chart.lines.push_back({.name = "loss", .points = {{1, 0}, {2, -1}, {3, 4}, {4, 2}}, .means = {}});
  const std::string svg = chart_svg(chart, true);
  const size_t begin = svg.find(" points='") + 9;
  const std::string points = svg.substr(begin, svg.find('\'', begin) - begin);
  CHECK(std::count(points.begin(), points.end(), ',') == 2);
}

TEST_CASE("peaks leave a chart at its top, where there are enough values to say so") {
  const auto top = [](const std::vector<double>& values) {
    Chart chart{.title = "Step time", .lines = {}, .cut_peaks = true};
    chart.lines.push_back({.name = "x", .points = {}, .means = {}});
    for (const double value : values) {
      chart.lines[0].points.push_back({static_cast<int64_t>(values.size()), value});
    }
    const std::string svg = chart_svg(chart, false);
    double bottom = 0, upper = 0, low = 0, high = 0;
    const size_t at = svg.find("data-y='") + 8;
    REQUIRE(std::sscanf(svg.c_str() + at, "%lf %lf %lf %lf", &bottom, &upper, &low, &high) == 4);
    return high;
  };
  CHECK(top({100, 1, 1.1, 0.9, 1}) < 2);
  CHECK(top({100, 1}) > 100);
}

TEST_CASE("text for a page is escaped, and what is no text is marked") {
  CHECK(html_text("a<b>&\"'") == "a&lt;b&gt;&amp;&quot;&#39;");
  CHECK(html_text("größe 文") == "größe 文");
  CHECK(html_text("a\xff"
                  "b\x01") ==
        "a\xEF\xBF\xBD"
        "b\xEF\xBF\xBD");
  CHECK(html_text("two\nlines") == "two\nlines");
}
