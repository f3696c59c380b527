// From near to far: a sibling under another trainer's name, a sibling with a typing error, the same
// name in another section, another trainer's name anywhere, the nearest key of all.
#include "runtime/spec/suggest.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/text.h"

namespace mtl::spec {

namespace {

std::string parent_of(const std::string& path) {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

std::string last_of(const std::string& path) {
  return path.substr(path.rfind('.') + 1);
}

std::string joined(const std::string& section, const std::string& name) {
  return section.empty() ? name : section + "." + name;
}

// As a name of the table is spelt.
std::string plain(std::string name) {
  for (char& c : name) c = c == '-' ? '_' : lower(c);
  return name;
}

bool has_alias(const Row& row, const std::string& name) {
  return std::find(row.known_as.begin(), row.known_as.end(), name) != row.known_as.end();
}

bool has_word(const std::string& name, const std::string& word) {
  return ("_" + name + "_").find("_" + word + "_") != std::string::npos;
}

std::optional<std::string> meant_by(const std::string& path) {
  const std::string section = parent_of(path);
  const std::string name = plain(last_of(path));
  if (find_row(path) != nullptr || is_section(path)) return path;

  for (const Row& row : schema()) {
    if (row.section() == section && has_alias(row, name)) return row.key;
  }
  const std::vector<std::string> siblings = names_below(section);
  if (const auto near = did_you_mean(name, siblings)) return joined(section, *near);
  for (const Row& row : schema()) {
    if (row.key.ends_with("." + path)) return row.key;
  }
  for (const Row& row : schema()) {
    if (row.name() == name && row.name() != "type") return row.key;
  }
  for (const Row& row : schema()) {
    if (has_alias(row, name)) return row.key;
  }
  for (const std::string& sibling : siblings) {
    if (sibling.size() > 2 && has_word(name, sibling)) return joined(section, sibling);
  }
  if (const auto near = did_you_mean(plain(path), spec_keys())) return near;
  std::vector<std::string> names;
  for (const Row& row : schema()) names.push_back(row.name());
  if (const auto near = did_you_mean(name, names)) {
    for (const Row& row : schema()) {
      if (row.name() == *near) return row.key;
    }
  }
  return std::nullopt;
}

const Unavailable* find_unavailable(const std::string& path) {
  for (const Unavailable& known : unavailable()) {
    if (path == known.key || path.starts_with(known.key + ".")) return &known;
  }
  return nullptr;
}

std::string without_underscores(const std::string& name) {
  std::string text;
  for (const char c : name) {
    if (c != '_') text += upper(c);
  }
  return text;
}

}  // namespace

std::vector<std::string> names_below(const std::string& section) {
  const std::string prefix = section.empty() ? "" : section + ".";
  std::vector<std::string> names;
  for (const Row& row : schema()) {
    if (!row.key.starts_with(prefix)) continue;
    const std::string rest = row.key.substr(prefix.size());
    const std::string name = rest.substr(0, rest.find('.'));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

UnknownKey unknown_key(const std::string& path) {
  UnknownKey result;
  Diagnostic& diagnostic = result.diagnostic;
  diagnostic.code = "config.unknown_key";
  if (const Unavailable* known = find_unavailable(path)) {
    diagnostic.what = fmt::format("{} is not available in this version{}{}", path,
                                  known->why.empty() ? "" : ": ", known->why);
    diagnostic.help = "remove it";
    return result;
  }
  diagnostic.what = fmt::format("{} is not a setting", path);
  const std::string section = parent_of(path);
  result.meant = meant_by(path);
  if (result.meant) {
    const std::string& key = *result.meant;
    if (key == path) {
      diagnostic.help =
          fmt::format("write `{}` on a line of its own under `{}:`", last_of(key), parent_of(key));
    } else if (parent_of(key) == section) {
      diagnostic.help = fmt::format("did you mean `{}`?", last_of(key));
    } else {
      diagnostic.help =
          fmt::format("did you mean `{}`: `{}` under `{}:`?", key, last_of(key), parent_of(key));
    }
    return result;
  }
  const bool known_section = section.empty() || is_section(section);
  diagnostic.help =
      fmt::format("{} has: {}", section.empty() || !known_section ? "train.yaml" : section,
                  fmt::join(names_below(known_section ? section : ""), ", "));
  return result;
}

bool resembles_environment_name(const std::string& name) {
  return std::any_of(schema().begin(), schema().end(), [&](const Row& row) {
    return without_underscores(environment_name(row.key)) == without_underscores(name);
  });
}

std::optional<std::string> nearest_environment_name(const std::string& name) {
  std::vector<std::string> names;
  for (const Row& row : schema()) {
    names.push_back(environment_name(row.key));
    if (without_underscores(names.back()) == without_underscores(name)) return names.back();
  }
  // What precedes the last part counts as context only, not as length that excuses more errors.
  const size_t split = name.rfind("__");
  if (split == std::string::npos) return did_you_mean(name, names);
  const std::string section = name.substr(0, split + 2);
  std::vector<std::string> siblings;
  for (const std::string& known : names) {
    if (known.starts_with(section)) siblings.push_back(known.substr(section.size()));
  }
  if (const auto near = did_you_mean(name.substr(section.size()), siblings)) {
    return section + *near;
  }
  return siblings.empty() ? did_you_mean(name, names) : std::nullopt;
}

}  // namespace mtl::spec
