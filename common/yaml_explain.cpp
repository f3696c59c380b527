#include <string>
#include <string_view>

#include <fmt/format.h>

#include "common/yaml_source.h"

namespace mtl {

namespace {

// yaml-cpp's terse message -> what a person can act on.
struct Explanation {
  std::string_view message;  // how yaml-cpp's begins
  std::string_view what;
  std::string_view help;
};
constexpr Explanation kExplanations[] = {
    {"illegal map value", "a `:` where none can stand",
     "give each `key: value` its own line, indented like its neighbours; quote a value that "
     "contains `: `"},
    {"illegal map key", "a `?` key where none can stand", "write `key: value`"},
    {"illegal block entry", "a `- ` item where none can stand",
     "put each `- item` on its own line below the key"},
    {"illegal flow end", "a closing bracket that closes nothing here",
     "check that every `[` ends with `]` and every `{` with `}`; quote text with brackets"},
    {"unknown token", "this character cannot start a value", "put the value in quotes"},
    {"unknown escape character", "unknown escape in double quotes",
     "write `\\\\` for a backslash, or use single quotes"},
    {"invalid unicode", "this escape is not a character", "write the character itself, in UTF-8"},
    {"bad character found while scanning hex", "an escape needs hexadecimal digits here",
     "write `\\\\` for a backslash, or use single quotes"},
    {"illegal EOF in scalar", "the file ends inside a quoted text", "close the quotes"},
    {"illegal document indicator in scalar", "`---` inside a quoted text", "close the quotes"},
    {"end of map not found", "this line does not fit the ones above",
     "indent all keys of a section by the same number of spaces"},
    {"end of sequence not found", "this line does not fit the list above",
     "indent all `- ` items of a list by the same number of spaces"},
    {"the referenced anchor", "anchors (`&name`) and aliases (`*name`) are not read",
     "write the value out; quote text that starts with `&` or `*`"},
};

}  // namespace

Diagnostic explain_yaml(const YAML::Exception& exception, YamlSource& source,
                        const YamlValue* open) {
  const std::string& message = exception.msg;
  const size_t offset = source.offset(exception.mark);
  Diagnostic diagnostic{.code = "yaml.syntax", .what = message, .place = source.place(offset)};

  const size_t start = source.line_start(offset);
  const std::string_view line = source.text().substr(start);
  const std::string_view indent = line.substr(0, line.find_first_not_of(" \t"));
  if (const size_t tab = indent.find('\t'); tab != std::string_view::npos) {
    diagnostic.code = "yaml.tab";
    diagnostic.what = "a tab in the indentation";
    diagnostic.place = source.place(start + tab);
    diagnostic.help = "indent with spaces";
    return diagnostic;
  }
  const bool list_open = message.starts_with("end of sequence flow");
  if ((list_open || message.starts_with("end of map flow")) && open != nullptr) {
    const char closing = list_open ? ']' : '}';
    if (line.substr(offset - start).find_first_not_of(" \t\r\n") == std::string_view::npos) {
      diagnostic.what = fmt::format("this `{}` is never closed", list_open ? '[' : '{');
      diagnostic.place = open->place;
      diagnostic.help = fmt::format("add the `{}`; separate items with commas", closing);
    } else {
      diagnostic.what = fmt::format("a `,` or `{}` is missing before this", closing);
      diagnostic.notes = {fmt::format("the bracket was opened at line {}, column {}",
                                      open->place.line, open->place.column)};
      diagnostic.help = "separate items with commas and close every bracket";
    }
    return diagnostic;
  }
  if (message.starts_with("end of map") && start + indent.size() < offset) {
    diagnostic.what = "this does not belong to the value before it";
    diagnostic.help = "quote the whole value; give each `key: value` its own line";
    return diagnostic;
  }
  for (const Explanation& explanation : kExplanations) {
    if (!message.starts_with(explanation.message)) continue;
    diagnostic.what = explanation.what;
    diagnostic.help = explanation.help;
    if (message.starts_with("the referenced anchor")) diagnostic.code = "yaml.anchor";
    return diagnostic;
  }
  diagnostic.help = "see yaml.org for what YAML allows here";
  return diagnostic;
}

}  // namespace mtl
