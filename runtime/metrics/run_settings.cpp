#include "runtime/metrics/run_settings.h"

#include <algorithm>

#include "common/text.h"

namespace mtl {

namespace {

constexpr std::string_view kComment = "  # ";

std::variant<bool, double, std::string> typed_value(std::string_view text) {
  if (text == "true" || text == "false") return text == "true";
  if (const auto number = to_number<double>(text)) return *number;
  const bool quoted = text.size() >= 2 && text.front() == text.back() &&
                      (text.front() == '"' || text.front() == '\'');
  return std::string(quoted ? text.substr(1, text.size() - 2) : text);
}

}  // namespace

std::vector<RunSetting> settings_of(std::string_view resolved_yaml) {
  std::vector<RunSetting> settings;
  std::vector<std::string> headings;  // of the sections that are open, with all above them
  while (!resolved_yaml.empty()) {
    const size_t end = std::min(resolved_yaml.find('\n'), resolved_yaml.size() - 1);
    std::string_view line = resolved_yaml.substr(0, end + 1);
    resolved_yaml.remove_prefix(end + 1);
    if (line.ends_with('\n')) line.remove_suffix(1);
    const size_t indent = line.find_first_not_of(' ');
    const size_t colon = line.find(':');
    if (indent == line.npos || line[indent] == '#' || colon == line.npos) continue;
    const size_t depth = indent / 2;
    if (depth > headings.size()) continue;
    headings.resize(depth);
    const std::string name(line.substr(indent, colon - indent));
    const std::string key = depth == 0 ? name : headings.back() + "." + name;
    if (colon + 1 == line.size()) {
      headings.push_back(key);
      continue;
    }
    const size_t comment = line.rfind(kComment);
    if (comment == line.npos || comment < colon + 2) continue;
    settings.push_back({key, std::string(line.substr(colon + 2, comment - colon - 2)),
                        std::string(line.substr(comment + kComment.size()))});
  }
  return settings;
}

std::vector<TaggedSetting> given_settings(const std::vector<RunSetting>& settings) {
  std::vector<TaggedSetting> given;
  for (const RunSetting& setting : settings) {
    if (setting.origin != "built-in") given.push_back({setting.key, typed_value(setting.value)});
  }
  return given;
}

}  // namespace mtl
