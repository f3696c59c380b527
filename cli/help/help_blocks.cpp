#include "cli/help/help_blocks.h"

#include <algorithm>

#include "common/terminal.h"
#include "common/text.h"

namespace mtl {

std::vector<HelpBlock> help_blocks(const std::string& text) {
  using Kind = HelpBlock::Kind;
  std::vector<HelpBlock> blocks;
  bool gap = false, open = false;  // open: the last block may go on
  const auto begin = [&](HelpBlock block) {
    block.gap = gap && !blocks.empty();
    blocks.push_back(std::move(block));
    gap = false;
    open = true;
  };
  for (const std::string& line : lines_of(text)) {
    const size_t start = line.find_first_not_of(' ');
    if (start == std::string::npos) {
      gap = true;
      open = false;
      continue;
    }
    const size_t end = line.find("  ", start);
    const Kind last = open ? blocks.back().kind : Kind::verbatim;
    if (end != std::string::npos) {
      const size_t column = line.find_first_not_of(' ', end);
      begin({.kind = Kind::row,
             .name = line.substr(start, end - start),
             .indent = start,
             .column = column,
             .text = line.substr(column)});
    } else if (start == 0) {
      if (!open || last != Kind::paragraph) begin({});
      std::string& words = blocks.back().text;
      words += (words.empty() ? "" : " ") + line;
    } else if (last == Kind::row) {
      blocks.back().text += ' ' + line.substr(start);
    } else {
      if (!open || last != Kind::verbatim) begin({.kind = Kind::verbatim});
      blocks.back().lines.push_back(line);
    }
  }
  return blocks;
}

std::string fitted_help(const std::string& text, int columns) {
  const std::vector<std::string> lines = lines_of(text);
  if (std::all_of(lines.begin(), lines.end(),
                  [&](const std::string& line) { return display_width(line) <= columns; })) {
    return text;
  }
  constexpr int kLeast = 40;
  const int width = std::max(columns, kLeast);
  std::string fitted;
  for (const HelpBlock& block : help_blocks(text)) {
    if (block.gap) fitted += '\n';
    switch (block.kind) {
      case HelpBlock::Kind::paragraph:
        fitted += wrap_text(block.text, width, 0, 0) + '\n';
        break;
      case HelpBlock::Kind::row: {
        std::string left = std::string(block.indent, ' ') + block.name;
        left.resize(std::max(block.column, left.size() + 2), ' ');
        const int column = static_cast<int>(block.column);
        fitted += left + wrap_text(block.text, width, column, static_cast<int>(left.size())) + '\n';
        break;
      }
      case HelpBlock::Kind::verbatim:
        for (const std::string& line : block.lines) fitted += line + '\n';
        break;
    }
  }
  return fitted;
}

}  // namespace mtl
