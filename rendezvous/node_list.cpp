#include "rendezvous/node_list.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include <fmt/format.h>

#include "common/text.h"

namespace mtl {

namespace {

constexpr size_t kMaxNames = 1 << 16;  // of one list: a mistake, not a cluster

std::optional<int64_t> number(std::string_view text) {
  if (text.size() > 18 || text.starts_with('-')) return std::nullopt;
  return to_number<int64_t>(text);
}

// "01-16": the number of digits of its start is kept. False with `problem`.
bool expand_range(std::string_view range, std::vector<std::string>& out, std::string& problem) {
  const size_t dash = range.find('-');
  const std::string_view first = range.substr(0, dash);
  const std::string_view last = dash == std::string_view::npos ? first : range.substr(dash + 1);
  const auto from = number(first);
  const auto to = number(last);
  if (!from || !to) {
    problem = fmt::format("'{}' is no number or range of numbers", range);
  } else if (*to < *from) {
    problem = fmt::format("the range {} runs backwards", range);
  } else if (static_cast<size_t>(*to - *from) >= kMaxNames - std::min(out.size(), kMaxNames)) {
    problem = fmt::format("the range {} has more than {} hosts", range, kMaxNames);
  }
  if (!problem.empty()) return false;
  for (int64_t i = *from; i <= *to; ++i) out.push_back(fmt::format("{:0{}}", i, first.size()));
  return true;
}

bool is_separator(char c) {
  return c == ',' || c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

// A list comes from a scheduler, but its names go on to command lines and resolvers.
bool is_name(std::string_view text) {
  return !text.empty() && text.front() != '-' && std::all_of(text.begin(), text.end(), [](char c) {
    return isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' || c == '_';
  });
}

}  // namespace

bool expand_brackets(std::string_view text, std::vector<std::string>& names, std::string& problem) {
  std::vector<std::string> words = {""};  // before, between and behind the brackets
  std::vector<std::vector<std::string>> parts;
  size_t count = 1;
  for (size_t at = 0; at < text.size();) {
    if (text[at] != '[') {
      if (text[at] == ']') {
        problem = "a bracket is closed that was not opened";
        return false;
      }
      words.back() += text[at++];
      continue;
    }
    const size_t end = text.find(']', at);
    if (end == std::string_view::npos) {
      problem = "a bracket is not closed";
      return false;
    }
    const std::string_view list = text.substr(at + 1, end - at - 1);
    std::vector<std::string>& part = parts.emplace_back();
    for (size_t from = 0; from <= list.size();) {
      const size_t comma = std::min(list.find(',', from), list.size());
      if (!expand_range(list.substr(from, comma - from), part, problem)) return false;
      from = comma + 1;
    }
    count *= part.size();
    if (count > kMaxNames) {
      problem = fmt::format("'{}' are more than {} hosts", text, kMaxNames);
      return false;
    }
    words.emplace_back();
    at = end + 1;
  }
  std::vector<size_t> digit(parts.size());
  for (size_t i = 0; i < count; ++i) {
    std::string& name = names.emplace_back(words[0]);
    for (size_t k = 0; k < parts.size(); ++k) name += parts[k][digit[k]] + words[k + 1];
    // The next in SLURM's order: the last bracket counts, then the first, the second ...
    for (size_t turn = 0; turn < parts.size(); ++turn) {
      const size_t k = turn == 0 ? parts.size() - 1 : turn - 1;
      if (++digit[k] < parts[k].size()) break;
      digit[k] = 0;
    }
  }
  return true;
}

std::vector<std::string> expand_node_list(std::string_view text, Diagnostics& diagnostics) {
  std::vector<std::string> names;
  std::string problem;
  size_t start = 0;
  for (size_t at = 0; at < text.size() && problem.empty();) {
    if (is_separator(text[at])) {
      ++at;
      continue;
    }
    start = at;
    bool inside = false;
    for (; at < text.size() && (inside || !is_separator(text[at])); ++at) {
      if (text[at] == '[') inside = true;
      if (text[at] == ']') inside = false;
    }
    const size_t before = names.size();
    if (!expand_brackets(text.substr(start, at - start), names, problem)) break;
    if (names.size() > kMaxNames) {
      problem = fmt::format("the list has more than {} hosts", kMaxNames);
      break;
    }
    for (size_t i = before; i < names.size() && problem.empty(); ++i) {
      if (!is_name(names[i])) problem = fmt::format("'{}' is no name of a host", names[i]);
    }
  }
  if (problem.empty() && names.empty()) problem = "the list names no host";
  if (problem.empty()) return names;
  diagnostics.add({.code = "nodes.syntax",
                   .what = fmt::format("'{}' is no list of nodes: {}",
                                       text.size() > 200 ? text.substr(0, 200) : text, problem),
                   .notes = {fmt::format("in the list, at character {}", start + 1)},
                   .help = "a list of nodes looks like gpu[001-003,007],dgx-[1-2]; compare: "
                           "scontrol show hostnames"});
  return {};
}

std::vector<int> expand_counts(std::string_view text) {
  std::vector<int> counts;
  for (size_t from = 0; from <= text.size();) {
    const size_t comma = std::min(text.find(',', from), text.size());
    const std::string_view word = text.substr(from, comma - from);
    from = comma + 1;
    const size_t bracket = word.find("(x");
    const auto count = number(word.substr(0, bracket));
    std::optional<int64_t> times = 1;
    if (bracket != std::string_view::npos) {
      if (!word.ends_with(')')) return {};
      times = number(word.substr(bracket + 2, word.size() - bracket - 3));
    }
    const auto most = static_cast<int64_t>(kMaxNames - counts.size());
    if (!count || !times || *count > 1'000'000 || *times < 1 || *times > most) return {};
    counts.insert(counts.end(), static_cast<size_t>(*times), static_cast<int>(*count));
  }
  return counts;
}

}  // namespace mtl
