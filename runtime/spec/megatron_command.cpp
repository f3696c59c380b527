// The translation of a command, and the file that it becomes.
#include "runtime/spec/megatron_command.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/spec/megatron_reader.h"

namespace mtl {

MegatronSettings settings_of_megatron(const std::vector<std::string>& words,
                                      Diagnostics& diagnostics) {
  return spec::MegatronReader(words, diagnostics).translate();
}

std::string megatron_train_yaml(const MegatronSettings& settings, const std::string& from) {
  std::string text;
  if (!from.empty()) text += fmt::format("# From {}.\n", from);
  for (const std::string& sentence : settings.open) text += fmt::format("# {}\n", sentence);
  std::vector<std::string> path;
  for (const auto& [key, value] : settings.settings) {
    std::vector<std::string> parts;
    for (size_t at = 0; at <= key.size();) {
      const size_t dot = std::min(key.find('.', at), key.size());
      parts.push_back(key.substr(at, dot - at));
      at = dot + 1;
    }
    size_t common = 0;
    while (common + 1 < parts.size() && common < path.size() && parts[common] == path[common]) {
      ++common;
    }
    for (size_t depth = common; depth + 1 < parts.size(); ++depth) {
      text += fmt::format("{:{}}{}:\n", "", depth * 2, parts[depth]);
    }
    text += fmt::format("{:{}}{}: {}\n", "", (parts.size() - 1) * 2, parts.back(), value);
    parts.pop_back();
    path = parts;
  }
  return text;
}

}  // namespace mtl
