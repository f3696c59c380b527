#include "runtime/plan/schedule/schedule_drawing.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <vector>

#include <fmt/format.h>

namespace mtl {

namespace {

// ---- text ----

// a .. z, aa, ab, ...
std::string chunk_letter(int chunk) {
  const std::string last(1, static_cast<char>('a' + chunk % 26));
  return chunk < 26 ? last : chunk_letter(chunk / 26 - 1) + last;
}

// A step in columns. Rounding keeps neighbours apart, and leaves at least one column to a step
// unless it takes no time at all.
struct Cell {
  int64_t begin = 0, end = 0;
  Op op = Op::forward;
  std::string label;

  int64_t columns() const { return end - begin; }
  // Characters of its narrowest drawing: a forward needs a space behind it.
  int64_t narrowest() const {
    return static_cast<int64_t>(label.size()) + (op == Op::forward ? 1 : 2);
  }
  std::string text(int64_t column_width) const {
    const int64_t width = columns() * column_width;
    if (op == Op::forward) return fmt::format("{:<{}}", label, width);
    return op == Op::backward ? fmt::format("[{:<{}}]", label, width - 2)
                              : fmt::format("({:<{}})", label, width - 2);
  }
};

// The steps of each stage in order of time.
std::vector<std::vector<Cell>> cells_by_stage(const ScheduleShape& shape,
                                              const ScheduleFacts& facts, double unit) {
  // Times that are halves of a unit but for the errors of their sums all round up.
  const auto column = [&](double time) { return std::llround(time / unit + 1e-6); };
  std::vector<std::vector<Cell>> rows(static_cast<size_t>(shape.stages));
  for (const Span& span : facts.spans) {
    Cell cell = {.begin = column(span.start),
                 .end = column(span.end),
                 .op = span.op,
                 .label = std::to_string(span.micro_batch)};
    if (shape.chunks > 1) cell.label += chunk_letter(span.chunk);
    if (cell.columns() > 0) rows[static_cast<size_t>(span.stage)].push_back(std::move(cell));
  }
  return rows;
}

std::string trimmed(const std::string& line) {
  return line.substr(0, line.find_last_not_of(' ') + 1);
}

// `head` and the pieces behind it; where that is wider than `width`, as many as leave room for the
// dots that say so. `next(piece)` gives false after the last.
template <typename Next>
std::string line_of(const std::string& head, size_t width, Next next) {
  static const std::string kMore = " ...";
  std::string line = head, piece;
  std::string cut = trimmed(head);
  while (next(piece)) {
    line += piece;
    const std::string shown = trimmed(line);
    if (shown.size() > width) return cut + kMore;
    if (shown.size() + kMore.size() <= width) cut = shown;
  }
  return trimmed(line);
}

// ---- SVG ----

constexpr double kLeft = 64, kRight = 92, kTop = 44, kRow = 24, kGap = 3;

struct Color {
  double red, green, blue;
};
constexpr Color kForwardDark = {29, 78, 137}, kForwardLight = {170, 205, 240};
constexpr Color kBackwardDark = {24, 105, 62}, kBackwardLight = {165, 220, 180};
constexpr Color kWeightsDark = {140, 84, 10}, kWeightsLight = {236, 200, 150};

// A step's class of style.
char class_of(Op op) {
  return op == Op::forward ? 'f' : op == Op::backward ? 'b' : 'w';
}

// Chunks go from dark to light; `part` is 0 for the first and 1 for the last.
std::string shade(Color dark, Color light, double part) {
  const auto mix = [&](double from, double to) {
    return static_cast<int>(std::lround(from + (to - from) * part));
  };
  return fmt::format("#{:02x}{:02x}{:02x}", mix(dark.red, light.red), mix(dark.green, light.green),
                     mix(dark.blue, light.blue));
}

// A single chunk has the shade in the middle of the dark half.
double chunk_part(int chunk, int chunks) {
  return chunks == 1 ? 0.2 : 1.0 * chunk / (chunks - 1);
}

std::string style(int chunks) {
  std::string css =
      "text{font:11px system-ui,sans-serif;fill:#1f2328}"
      ".title{font-size:14px;font-weight:600}"
      ".page{fill:#ffffff}.idle{fill:#e3e6ea}"
      ".n{text-anchor:middle}.light{fill:#ffffff}.dark{fill:#10151b}\n"
      "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1117}"
      ".idle{fill:#2a3038}}\n";
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const double part = chunk_part(chunk, chunks);
    css += fmt::format(".f{0}{{fill:{1}}}.b{0}{{fill:{2}}}.w{0}{{fill:{3}}}", chunk,
                       shade(kForwardDark, kForwardLight, part),
                       shade(kBackwardDark, kBackwardLight, part),
                       shade(kWeightsDark, kWeightsLight, part));
  }
  return css;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      default:
        // XML has no other control characters.
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string count_of(int n, const char* one, const char* many) {
  return fmt::format("{} {}", n, n == 1 ? one : many);
}

}  // namespace

std::string schedule_text(const ScheduleShape& shape, const ScheduleFacts& facts, int width) {
  double unit = 0;
  for (const Span& span : facts.spans) {
    const double time = span.end - span.start;
    if (time > 0 && (unit == 0 || time < unit)) unit = time;
  }
  if (unit == 0) unit = 1;  // nothing takes time
  const std::vector<std::vector<Cell>> rows = cells_by_stage(shape, facts, unit);
  int64_t column_width = 1;
  for (const std::vector<Cell>& row : rows) {
    for (const Cell& cell : row) {
      column_width =
          std::max(column_width, (cell.narrowest() + cell.columns() - 1) / cell.columns());
    }
  }
  const int64_t columns = std::llround(facts.makespan / unit + 1e-6);
  const std::string idle = fmt::format("{:<{}}", '-', column_width);
  const size_t digits = std::to_string(shape.stages - 1).size();
  std::string text;
  for (size_t stage = 0; stage < rows.size(); ++stage) {
    const std::vector<Cell>& row = rows[stage];
    size_t next_cell = 0;
    int64_t column = 0;
    const auto next = [&](std::string& piece) {
      if (column >= columns) return false;
      const bool waits = next_cell == row.size() || row[next_cell].begin > column;
      piece = waits ? idle : row[next_cell].text(column_width);
      column += waits ? 1 : row[next_cell++].columns();
      return true;
    };
    text += line_of(fmt::format("stage {:<{}}  ", stage, digits), static_cast<size_t>(width), next);
    text += '\n';
  }
  const char* through = shape.chunks > 1 ? "a" : "";
  text += fmt::format(
      "0{0} forward of micro-batch 0{1}, [0{0}] its backward, {2}- idle\n", through,
      shape.chunks > 1 ? " through chunk a" : "",
      shape.weights_later ? fmt::format("(0{}) its weights' gradients, ", through) : std::string());
  return text;
}

std::string schedule_svg(const ScheduleShape& shape, const ScheduleFacts& facts,
                         const std::string& title) {
  // Steps wide enough for their number where the whole stays near a screen's width.
  const double steps = static_cast<double>(std::max<size_t>(1, facts.spans.size()));
  double work = 0;
  for (const Span& span : facts.spans) work += span.end - span.start;
  const double average = work > 0 ? work / steps : 1;
  const double makespan = std::max(facts.makespan, average);
  const double scale = std::clamp(1280 / makespan, 4 / average, 33 / average);

  const double chart = makespan * scale;
  const double width = std::max(kLeft + chart + kRight, 560.0);
  const double bottom = kTop + shape.stages * (kRow + kGap);
  const double height = bottom + 58;
  std::string svg;
  const auto out = std::back_inserter(svg);
  fmt::format_to(out,
                 "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
                 "viewBox=\"0 0 {0:.0f} {1:.0f}\" role=\"img\">\n<title>{2}</title>\n"
                 "<style>{3}</style>\n<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n"
                 "<text class=\"title\" x=\"12\" y=\"24\">{2}</text>\n",
                 width, height, escaped(title), style(shape.chunks));

  const auto row_y = [](int stage) { return kTop + stage * (kRow + kGap); };
  for (int stage = 0; stage < shape.stages; ++stage) {
    const double text_y = row_y(stage) + kRow / 2 + 4;
    const auto at = static_cast<size_t>(stage);
    fmt::format_to(out,
                   "<text x=\"12\" y=\"{0:.1f}\">stage {1}</text><rect class=\"idle\" "
                   "x=\"{2:.1f}\" y=\"{3:.1f}\" width=\"{4:.2f}\" height=\"{5:.1f}\"/>"
                   "<text x=\"{6:.1f}\" y=\"{0:.1f}\">{7} in flight</text>\n",
                   text_y, stage, kLeft, row_y(stage), chart, kRow, kLeft + chart + 8,
                   facts.peak_in_flight[at]);
  }
  for (const Span& span : facts.spans) {
    const double x = kLeft + span.start * scale;
    const double cell = (span.end - span.start) * scale;
    const double y = row_y(span.stage);
    fmt::format_to(
        out,
        "<g><title>stage {}: {} of micro-batch {}{}, {:g} to {:g}</title>"
        "<rect class=\"{}{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\"/>",
        span.stage, op_name(span.op), span.micro_batch,
        shape.chunks > 1 ? fmt::format(" through chunk {}", span.chunk) : "", span.start, span.end,
        class_of(span.op), span.chunk, x, y,
        // A hair of the row's grey between neighbours.
        std::max(cell - 0.8, cell / 2), kRow);
    const std::string label = std::to_string(span.micro_batch);
    if (cell >= 7.0 * static_cast<double>(label.size()) + 2) {
      fmt::format_to(out, "<text class=\"n {}\" x=\"{:.2f}\" y=\"{:.1f}\">{}</text>",
                     chunk_part(span.chunk, shape.chunks) < 0.4 ? "light" : "dark", x + cell / 2,
                     y + kRow / 2 + 4, label);
    }
    svg += "</g>\n";
  }

  double x = kLeft;
  const auto legend = [&](const std::string& css, const std::string& name) {
    fmt::format_to(out,
                   "<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"12\" height=\"12\"/>"
                   "<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
                   css, x, bottom + 8, x + 16, bottom + 18, name);
    x += 28 + 6.2 * static_cast<double>(name.size());
  };
  // Of many chunks the first and the last say it all.
  for (const Op op : {Op::forward, Op::backward, Op::weight_grads}) {
    if (op == Op::weight_grads && !shape.weights_later) continue;
    const std::string name = op == Op::weight_grads ? "weights' gradients" : op_name(op);
    const char css = class_of(op);
    if (shape.chunks == 1) {
      legend(fmt::format("{}0", css), name);
      continue;
    }
    legend(fmt::format("{}0", css), name + " chunk 0");
    legend(fmt::format("{}{}", css, shape.chunks - 1), fmt::format("chunk {}", shape.chunks - 1));
  }
  legend("idle", "idle");

  fmt::format_to(out,
                 "<text x=\"{:.1f}\" y=\"{:.1f}\">{}, {}, {}: bubble {:.1f} % of the work; time to "
                 "the right</text>\n</svg>\n",
                 kLeft, bottom + 42, count_of(shape.stages, "stage", "stages"),
                 shape.chunks == 1 ? "1 chunk" : fmt::format("{} chunks each", shape.chunks),
                 count_of(shape.micro_batches, "micro-batch", "micro-batches"), 100 * facts.bubble);
  return svg;
}

}  // namespace mtl
