#include "ptx/past.h"

#include <bit>

#include <fmt/format.h>

namespace mtl::ptx {

namespace {

std::string in_one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const bool is_space = c == ' ' || c == '\t' || c == '\n';
    if (!is_space) {
      line += c;
    } else if (!line.empty() && line.back() != ' ') {
      line += ' ';
    }
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

}  // namespace

std::string quoted(const Instruction& instruction) {
  return fmt::format("line {} ({})", instruction.line, in_one_line(instruction.text));
}

std::string_view deed_of(const Past& past) {
  if (past.event.actor == Actor::product) return "multiplies";
  const bool copies = past.event.actor != Actor::lane;
  switch (past.access) {
    case Access::read:
      return copies ? "copies from" : "reads";
    case Access::write:
      return copies ? "copies to" : "writes";
    case Access::atomic:
      break;
  }
  return copies ? "adds to" : "changes";
}

std::string doer_of(const Past& past) {
  std::string text = fmt::format("warp {}", past.event.warp);
  if (past.event.actor == Actor::product) return text;
  const Mask lanes = past.event.lanes;
  text += fmt::format(" lane {}", std::countr_zero(lanes));
  if (const int more = std::popcount(lanes) - 1; more > 0) text += fmt::format(" (and {})", more);
  return text;
}

}  // namespace mtl::ptx
