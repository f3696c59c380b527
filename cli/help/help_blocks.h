// The texts of mtl help TOPIC by what their lines are, so that a narrow terminal and a manual page
// can lay them out anew.
#pragma once

#include <string>
#include <vector>

namespace mtl {

struct HelpBlock {
  enum class Kind { paragraph, row, verbatim };
  Kind kind = Kind::paragraph;
  std::string name = {};  // of a row: what stands on its left
  size_t indent = 0;      // of a row, and where its text begins
  size_t column = 0;
  std::string text = {};                // of a paragraph or a row, in one line
  std::vector<std::string> lines = {};  // verbatim
  bool gap = false;                     // an empty line is before it
};

// A paragraph begins at the margin, a row has two blanks or more between its sides and goes on
// below, and what else is indented stays as it is.
std::vector<HelpBlock> help_blocks(const std::string& text);

// The text as it is, where its lines fit into so many columns; else filled anew.
std::string fitted_help(const std::string& text, int columns);

}  // namespace mtl
