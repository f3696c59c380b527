#include "common/yaml_edit.h"

#include <optional>

#include <fmt/format.h>

#include "common/yaml.h"

namespace mtl {

namespace {

// Bytes from the start of the text; columns count characters.
std::optional<size_t> offset_of(const std::string& text, const Place& place) {
  if (place.line < 1 || place.column < 1) return std::nullopt;
  size_t at = 0;
  for (int line = 1; line < place.line; ++line) {
    at = text.find('\n', at);
    if (at == std::string::npos) return std::nullopt;
    ++at;
  }
  for (int column = 1; column < place.column; ++column) {
    if (at >= text.size() || text[at] == '\n') return std::nullopt;
    ++at;
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) ++at;
  }
  return at;
}

// The end of a value that begins at `at` and ends on the same line; none if it does not.
std::optional<size_t> end_of_value(const std::string& text, size_t at, const YamlValue& value) {
  const size_t line_end = std::min(text.find('\n', at), text.size());
  if (value.kind == YamlValue::Kind::scalar && !value.quoted) {
    const bool as_written = text.compare(at, value.text.size(), value.text) == 0;
    return as_written ? std::optional(at + value.text.size()) : std::nullopt;
  }
  const char open = at < text.size() ? text[at] : '\0';
  if (value.kind == YamlValue::Kind::scalar && (open == '"' || open == '\'')) {
    for (size_t i = at + 1; i < line_end; ++i) {
      if (open == '"' && text[i] == '\\')
        ++i;
      else if (text[i] == open)
        return i + 1;
    }
    return std::nullopt;
  }
  if (open != '[' && open != '{') return std::nullopt;
  int depth = 0;
  for (size_t i = at; i < line_end; ++i) {
    if (text[i] == '"' || text[i] == '\'' || text[i] == '#') return std::nullopt;
    if (text[i] == '[' || text[i] == '{') ++depth;
    if ((text[i] == ']' || text[i] == '}') && --depth == 0) return i + 1;
  }
  return std::nullopt;
}

class Editor {
 public:
  Editor(std::string text, std::string file) : text_(std::move(text)), file_(std::move(file)) {}

  // False with `problem` set.
  bool set(const std::string& section, const std::string& key, const std::string& value) {
    Diagnostics diagnostics;
    const YamlValue root = parse_yaml(text_, file_, diagnostics);
    if (diagnostics.has_errors()) return fail("it cannot be read", {});
    if (root.kind != YamlValue::Kind::map) return fail("it is no mapping", root.place);
    const YamlValue* map = root.find(section);
    const std::string pair = fmt::format("{}: {}", key, value);
    if (map == nullptr) return add(root, fmt::format("{}: {{{}}}", section, pair), section, pair);
    if (map->kind == YamlValue::Kind::null) return fill(root, section, pair);
    if (map->kind != YamlValue::Kind::map) return fail("it is no mapping", map->place);
    if (const YamlValue* old = map->find(key)) return replace(*old, value);
    return insert(*map, pair);
  }

  const std::string& text() const { return text_; }
  Diagnostic problem;

 private:
  bool fail(const char* why, const Place& place) {
    problem = {.code = "yaml.edit",
               .what = fmt::format("a setting cannot be written here: {}", why),
               .place = place.line > 0 ? place : Place{file_},
               .help = "change it by hand"};
    return false;
  }

  bool replace(const YamlValue& old, const std::string& value) {
    const std::optional<size_t> at = offset_of(text_, old.place);
    // `key:` with nothing behind it has no place of its own.
    if (!at || old.kind == YamlValue::Kind::null) return fail("it has no value", old.place);
    const std::optional<size_t> end = end_of_value(text_, *at, old);
    if (!end) return fail("its value does not end on its line", old.place);
    text_.replace(*at, *end - *at, value);
    return true;
  }

  // Puts a pair first into a mapping.
  bool insert(const YamlValue& map, const std::string& pair) {
    const std::optional<size_t> at = offset_of(text_, map.place);
    if (at && *at < text_.size() && text_[*at] == '{') {
      text_.insert(*at + 1, map.entries.empty() ? pair : pair + ", ");
      return true;
    }
    if (map.entries.empty()) return fail("it is no mapping", map.place);
    const Place key = map.entries.front().key_place;
    const std::optional<size_t> first = offset_of(text_, key);
    if (!first) return fail("its keys cannot be found", key);
    const std::string indent(static_cast<size_t>(key.column - 1), ' ');
    const size_t line = *first - indent.size();
    if (text_.compare(line, indent.size(), indent) != 0) return fail("it is no block", key);
    text_.insert(line, indent + pair + '\n');
    return true;
  }

  bool add(const YamlValue& root, const std::string& flow, const std::string& section,
           const std::string& pair) {
    const std::optional<size_t> at = offset_of(text_, root.place);
    if (at && *at < text_.size() && text_[*at] == '{') {
      text_.insert(*at + 1, root.entries.empty() ? flow : flow + ", ");
      return true;
    }
    if (!root.entries.empty() && root.entries.front().key_place.column != 1) {
      return fail("its sections are indented", root.entries.front().key_place);
    }
    if (!text_.empty() && text_.back() != '\n') text_ += '\n';
    text_ += fmt::format("{}:\n  {}\n", section, pair);
    return true;
  }

  // `section:` with nothing in it.
  bool fill(const YamlValue& root, const std::string& section, const std::string& pair) {
    for (const YamlValue::Entry& entry : root.entries) {
      if (entry.key != section) continue;
      const std::optional<size_t> at = offset_of(text_, entry.key_place);
      if (!at || entry.key_place.column != 1) break;
      size_t end = text_.find('\n', *at);
      if (end == std::string::npos) {
        text_ += '\n';
        end = text_.size() - 1;
      }
      text_.insert(end + 1, fmt::format("  {}\n", pair));
      return true;
    }
    return fail("it is no mapping", {});
  }

  std::string text_, file_;
};

// Spaces apart: `[norm, mlp_act]` however it is written.
std::string shown(const YamlValue& value) {
  if (value.kind == YamlValue::Kind::list) {
    std::string text = "[";
    for (const YamlValue& item : value.items) {
      text += (text.size() > 1 ? ", " : "") + shown(item);
    }
    return text + "]";
  }
  return value.text;
}

}  // namespace

std::string set_yaml_values(const std::string& text, const std::string& file_name,
                            const std::vector<std::pair<std::string, std::string>>& settings,
                            Diagnostics& diagnostics) {
  Editor editor(text, file_name);
  for (const auto& [path, value] : settings) {
    const size_t dot = path.find('.');
    if (!editor.set(path.substr(0, dot), path.substr(dot + 1), value)) {
      editor.problem.notes.push_back(fmt::format("the setting is {}: {}", path, value));
      diagnostics.add(editor.problem);
      return text;
    }
  }
  // What was meant is what is there now.
  Diagnostics again;
  const YamlValue root = parse_yaml(editor.text(), file_name, again);
  for (const auto& [path, value] : settings) {
    const size_t dot = path.find('.');
    const YamlValue* section = root.find(path.substr(0, dot));
    const YamlValue* found = section != nullptr ? section->find(path.substr(dot + 1)) : nullptr;
    if (again.has_errors() || found == nullptr || shown(*found) != value) {
      diagnostics.add({.code = "yaml.edit",
                       .what = fmt::format("{} could not be set to {}", path, value),
                       .place = Place{file_name},
                       .help = "change it by hand"});
      return text;
    }
  }
  return editor.text();
}

}  // namespace mtl
