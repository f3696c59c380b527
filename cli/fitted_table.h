// A table of rows under titles that fits a terminal: columns are as wide as what is in them, and
// where there is no room for all, those go that say least.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace mtl {

class FittedTable {
 public:
  struct Column {
    std::string title;
    int goes = 0;  // 0 = never; else the lower, the sooner it is left out
    // Where there is no room for all of a cell: cut to what there is, if that is so much. 0 =
    // whole.
    int least = 0;
    bool right = false;  // numbers
  };
  explicit FittedTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // As many cells as there are columns.
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  // Titles and rows, each a line; `width` 0 = as wide as it is.
  std::string text(int width, bool utf8) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace mtl
