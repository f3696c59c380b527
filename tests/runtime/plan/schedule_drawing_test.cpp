#include "runtime/plan/schedule/schedule_drawing.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "common/text.h"

using namespace mtl;

namespace {

struct Drawn {
  ScheduleShape shape;
  ScheduleFacts facts;
};

Drawn drawn(const ScheduleShape& shape, const ScheduleTimes& times = {}) {
  std::string problem;
  const auto facts = simulate(make_schedule(shape), shape, problem, times);
  REQUIRE_MESSAGE(facts, problem);
  return {shape, *facts};
}

size_t count_of(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

constexpr ScheduleShape kPaper = {.stages = 4, .micro_batches = 8};
constexpr ScheduleShape kPaperInterleaved = {
    .kind = ScheduleKind::interleaved, .stages = 4, .chunks = 2, .micro_batches = 8};

}  // namespace

TEST_CASE("1F1B in text is the figure of the paper") {
  const auto [shape, facts] = drawn(kPaper);
  CHECK(schedule_text(shape, facts, 100) ==
        "stage 0  0 1 2 3 - - - - - - [0 ]4 [1 ]5 [2 ]6 [3 ]7 [4 ]- [5 ]- [6 ]- [7 ]\n"
        "stage 1  - 0 1 2 - - - - [0 ]3 [1 ]4 [2 ]5 [3 ]6 [4 ]7 [5 ]- [6 ]- [7 ]- -\n"
        "stage 2  - - 0 1 - - [0 ]2 [1 ]3 [2 ]4 [3 ]5 [4 ]6 [5 ]7 [6 ]- [7 ]- - - -\n"
        "stage 3  - - - 0 [0 ]1 [1 ]2 [2 ]3 [3 ]4 [4 ]5 [5 ]6 [6 ]7 [7 ]- - - - - -\n"
        "0 forward of micro-batch 0, [0] its backward, - idle\n");
}

TEST_CASE("what ZB-H1 leaves for later stands in round brackets, and has its own colour") {
  const auto [shape, facts] = drawn({.stages = 4, .micro_batches = 5, .weights_later = true});
  CHECK(schedule_text(shape, facts, 100) ==
        "stage 0  0  1  2  3  -  -  -  [0](0)4  [1](1)[2](2)[3](3)[4](4)\n"
        "stage 1  -  0  1  2  -  -  [0]3  [1](0)4  [2](1)[3](2)[4](3)(4)\n"
        "stage 2  -  -  0  1  -  [0]2  [1]3  [2](0)4  [3](1)[4](2)(3)(4)\n"
        "stage 3  -  -  -  0  [0]1  [1]2  [2]3  [3](0)4  [4](1)(2)(3)(4)\n"
        "0 forward of micro-batch 0, [0] its backward, (0) its weights' gradients, - idle\n");
  const std::string svg = schedule_svg(shape, facts, "ZB-H1");
  CHECK(count_of(svg, "class=\"w0\"") == 4 * 5 + 1);
  CHECK(count_of(svg, ": weight_grads of micro-batch ") == 4 * 5);
  CHECK(count_of(svg, ">weights' gradients</text>") == 1);
  const auto [plain, plain_facts] = drawn({.stages = 4, .micro_batches = 5});
  CHECK(count_of(schedule_svg(plain, plain_facts, "1F1B"), "weight") == 1);  // of a font
}

TEST_CASE("chunks have letters in text and a wide line ends in dots") {
  const auto [shape, facts] = drawn(kPaperInterleaved);
  CHECK(schedule_text(shape, facts, 80) ==
        "stage 0  0a 1a 2a 3a 0b 1b 2b 3b 4a 5a 6a -  -  -  [0b  ]7a [1b  ]-  4b ...\n"
        "stage 1  -  0a 1a 2a 3a 0b 1b 2b 3b 4a -  -  [0b  ]5a [1b  ]6a [2b  ]7a ...\n"
        "stage 2  -  -  0a 1a 2a 3a 0b 1b 2b -  [0b  ]3b [1b  ]4a [2b  ]5a [3b  ]6a ...\n"
        "stage 3  -  -  -  0a 1a 2a 3a 0b [0b  ]1b [1b  ]2b [2b  ]3b [3b  ]4a [0a  ] ...\n"
        "0a forward of micro-batch 0 through chunk a, [0a] its backward, - idle\n");
}

TEST_CASE("a line is as wide as it may be and no wider") {
  const auto [shape, facts] = drawn(kPaperInterleaved);
  const std::vector<std::string> whole = lines_of(schedule_text(shape, facts, 1000));
  for (int width = 20; width <= 190; ++width) {
    const std::vector<std::string> lines = lines_of(schedule_text(shape, facts, width));
    REQUIRE(lines.size() == 5);
    for (size_t stage = 0; stage < 4; ++stage) {
      CAPTURE(width);
      CAPTURE(stage);
      const std::string& line = lines[stage];
      REQUIRE(line.size() <= static_cast<size_t>(width));
      if (whole[stage].size() <= static_cast<size_t>(width)) {
        REQUIRE(line == whole[stage]);
        continue;
      }
      REQUIRE(line.ends_with(" ..."));
      REQUIRE(line.size() > static_cast<size_t>(width) - 11);  // a backward and the dots
      REQUIRE(whole[stage].starts_with(line.substr(0, line.size() - 4)));
    }
  }
}

TEST_CASE("columns follow uneven times") {
  const auto [shape, facts] = drawn({.stages = 2, .micro_batches = 2}, {.weight = {{1}, {2}}});
  CHECK(lines_of(schedule_text(shape, facts, 100)) ==
        std::vector<std::string>{"stage 0  0 1 - - - - - [0 ]- - - - [1 ]",
                                 "stage 1  - 0   [0     ]1   [1     ]- -",
                                 "0 forward of micro-batch 0, [0] its backward, - idle"});
}

TEST_CASE("the SVG has every step and its facts") {
  const auto [shape, facts] = drawn(kPaperInterleaved);
  const std::string svg = schedule_svg(shape, facts, "a < b & c > d\n");
  CHECK(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" "));
  CHECK(svg.ends_with("</svg>\n"));
  CHECK(count_of(svg, "a &lt; b &amp; c &gt; d <") == 2);
  CHECK(count_of(svg, "<g>") == 4 * 2 * 8 * 2);
  CHECK(count_of(svg, "</g>") == 4 * 2 * 8 * 2);
  // A rectangle of each colour stands in the legend too.
  for (const char* css : {"f0", "f1", "b0", "b1"}) {
    CHECK(count_of(svg, std::string("<rect class=\"") + css) == 4 * 8 + 1);
  }
  CHECK(svg.find("stage 0: forward of micro-batch 7 through chunk 0, 16 to 17<") !=
        std::string::npos);
  CHECK(svg.find(">11 in flight<") != std::string::npos);
  CHECK(svg.find("4 stages, 2 chunks each, 8 micro-batches: bubble 18.8 % of the work") !=
        std::string::npos);
  CHECK(svg.find("prefers-color-scheme:dark") != std::string::npos);
}

TEST_CASE("the SVG of a long schedule leaves out numbers that do not fit") {
  const auto [shape, facts] =
      drawn({.kind = ScheduleKind::interleaved, .stages = 8, .chunks = 4, .micro_batches = 64});
  const std::string svg = schedule_svg(shape, facts, "long");
  CHECK(count_of(svg, "<g>") == 8 * 4 * 64 * 2);
  CHECK(count_of(svg, "class=\"n ") == 0);
}
