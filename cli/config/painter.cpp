#include "cli/config/painter.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/terminal.h"
#include "common/text.h"

namespace mtl {

namespace {

constexpr int kWidest = 100;  // texts are read best so; the file may be wider

}  // namespace

// The last column stays empty: terminals differ in what they do after it.
Painter::Painter(const Canvas& canvas) : canvas_(canvas), width_(std::max(1, canvas.columns - 1)) {}

std::string Painter::styled(const std::string& text, const char* style) const {
  if (!canvas_.color || *style == '\0' || text.empty()) return text;
  return fmt::format("\x1b[{}m{}\x1b[0m", style, text);
}

std::string Painter::line(const std::string& text, const char* style) const {
  return styled(fit_width(text, width_, canvas_.utf8), style);
}

std::vector<std::string> Painter::paragraph(const std::string& text, const char* style,
                                            int indent) const {
  const int width = std::min(width_, kWidest);
  const std::string wrapped =
      std::string(static_cast<size_t>(indent), ' ') + wrap_text(text, width, indent, indent);
  std::vector<std::string> lines;
  for (size_t start = 0; start <= wrapped.size();) {
    const size_t end = std::min(wrapped.find('\n', start), wrapped.size());
    lines.push_back(line(wrapped.substr(start, end - start), style));
    start = end + 1;
  }
  return lines;
}

std::string Painter::two(const std::string& left, const char* left_style, const std::string& right,
                         const char* right_style) const {
  const std::string first = fit_width(left, width_, canvas_.utf8);
  const int rest = width_ - display_width(first);
  const std::string second = rest > 1 ? fit_width(right, rest, canvas_.utf8) : std::string();
  return styled(first, left_style) + styled(second, right_style);
}

}  // namespace mtl
