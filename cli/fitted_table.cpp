#include "cli/fitted_table.h"

#include <algorithm>

#include "common/terminal.h"

namespace mtl {

namespace {

constexpr int kGap = 2;  // blanks between two columns

}  // namespace

std::string FittedTable::text(int width, bool utf8) const {
  std::vector<int> widths;
  for (const Column& column : columns_) widths.push_back(display_width(column.title));
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], display_width(row[i]));
  }
  std::vector<size_t> shown(columns_.size());
  for (size_t i = 0; i < shown.size(); ++i) shown[i] = i;
  const auto least = [&](size_t i) {
    return columns_[i].least > 0 ? std::min(widths[i], columns_[i].least) : widths[i];
  };
  const auto needed = [&] {
    int sum = -kGap;
    for (const size_t i : shown) sum += least(i) + kGap;
    return sum;
  };
  while (width > 0 && needed() > width) {
    const auto sooner = [&](size_t a, size_t b) {
      return columns_[a].goes > 0 && (columns_[b].goes == 0 || columns_[a].goes < columns_[b].goes);
    };
    const auto first = std::min_element(shown.begin(), shown.end(), sooner);
    if (columns_[*first].goes == 0) break;
    shown.erase(first);
  }
  // What the others leave is for those that can be cut.
  int room = width - needed();
  for (const size_t i : shown) {
    if (width == 0 || columns_[i].least == 0) continue;
    const int whole = widths[i];
    widths[i] = std::min(whole, least(i) + std::max(room, 0));
    room -= widths[i] - std::min(whole, columns_[i].least);
  }
  std::string text;
  for (size_t row = 0; row <= rows_.size(); ++row) {
    std::string line;
    for (const size_t i : shown) {
      const std::string cell =
          fit_width(row == 0 ? columns_[i].title : rows_[row - 1][i], widths[i], utf8);
      const std::string blanks(static_cast<size_t>(std::max(widths[i] - display_width(cell), 0)),
                               ' ');
      if (i != shown.front()) line.append(kGap, ' ');
      line += columns_[i].right ? blanks + cell : cell;
      if (!columns_[i].right && i != shown.back()) line += blanks;
    }
    text += (width > 0 ? fit_width(line, width, utf8) : line) + '\n';
  }
  return text;
}

}  // namespace mtl
