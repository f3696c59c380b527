// What is written from the schema table: resolved.yaml, the JSON Schema and the reference page.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "runtime/spec/spec_keys.h"
#include "runtime/spec/suggest.h"
#include "runtime/spec/train_spec.h"
#include "runtime/spec/values.h"

namespace mtl {

namespace {

using nlohmann::ordered_json;
using spec::Field;
using spec::Row;

int depth_of(const std::string& path) {
  int depth = 0;
  for (const char c : path) depth += c == '.' ? 1 : 0;
  return depth;
}

// An integral bound as an integer: validators print it as it stands.
ordered_json bound(double value) {
  if (std::abs(value) >= 0x1p63 || std::trunc(value) != value) return value;
  return static_cast<int64_t>(value);
}

void add_range(const Row& row, ordered_json& schema) {
  schema[row.above_min ? "exclusiveMinimum" : "minimum"] = bound(row.min);
  schema[row.below_max ? "exclusiveMaximum" : "maximum"] = bound(row.max);
}

ordered_json default_of(const Row& row) {
  TrainSpec built_in;
  if (spec::is_auto(row, built_in)) return "auto";
  const Field field = row.field(built_in);
  if (const auto* text = std::get_if<std::string*>(&field)) return **text;
  if (const auto* texts = std::get_if<std::vector<std::string>*>(&field)) return **texts;
  if (const auto* words = std::get_if<spec::CountedWords>(&field)) return *words->words;
  if (std::holds_alternative<spec::Passed>(field)) return ordered_json::array();
  const std::string text = spec::print_value(row, built_in);
  return std::holds_alternative<spec::WordOrList>(field) ? ordered_json(text)
                                                         : ordered_json::parse(text);
}

// `1_000` and `10k` are strings to an editor.
std::string integer_pattern(bool suffixes) {
  return fmt::format("^[0-9]+(_[0-9]+)*{}$", suffixes ? "(\\.[0-9]+)?[kKmMgG]?" : "");
}

// What an integer of the row's range may be written as.
std::vector<ordered_json> integer_schemas(const Row& row, bool suffixes) {
  ordered_json number = {{"type", "integer"}};
  add_range(row, number);
  const ordered_json text = {{"type", "string"}, {"pattern", integer_pattern(suffixes)}};
  return {number, text};
}

// The row's choices. YAML's `true` and `false` are no strings to an editor.
ordered_json word_schema(const Row& row) {
  ordered_json schema;
  for (const spec::Choice& choice : row.choices) {
    const bool boolean = choice.value == "true" || choice.value == "false";
    schema["enum"].push_back(boolean ? ordered_json(choice.value == "true")
                                     : ordered_json(choice.value));
  }
  return schema;
}

// What may be written for the row besides `auto`: one schema or several.
std::vector<ordered_json> value_schemas(const Row& row) {
  TrainSpec any;
  const Field field = row.field(any);
  if (row.is_duration) {
    return {ordered_json{{"const", 0}},
            ordered_json{{"type", "string"}, {"pattern", "^(0|[0-9]+(_[0-9]+)*[smhd])$"}}};
  }
  if (spec::is_integer(field)) return integer_schemas(row, row.suffixes);
  ordered_json integer;
  integer["anyOf"] = integer_schemas(row, false);
  if (std::holds_alternative<spec::Ramp*>(field)) {
    ordered_json map = {{"type", "object"}, {"minProperties", 1}};
    map["propertyNames"]["pattern"] = integer_pattern(row.suffixes);
    map["additionalProperties"] = integer;
    return {integer, map};
  }
  if (std::holds_alternative<spec::WordOrList>(field)) {
    return {word_schema(row), {{"type", "array"}, {"items", integer}, {"minItems", 1}}};
  }
  if (const auto* sources = std::get_if<spec::TextOrSources>(&field)) {
    const ordered_json path = {{"type", {"string", "number"}}, {"minLength", 1}};
    ordered_json weighted = {{"type", "object"}, {"additionalProperties", false}};
    weighted["required"] = ordered_json::array({"path"});
    weighted["properties"]["path"] = path;
    weighted["properties"]["weight"] = {{"type", "number"}, {"exclusiveMinimum", 0}};
    ordered_json item;
    item["anyOf"] = {path, weighted};
    const ordered_json list = {{"type", "array"}, {"items", item}, {"minItems", 1}};
    if (sources->sets == nullptr) return {path, list};
    ordered_json sets = {{"type", "object"}, {"minProperties", 1}};
    sets["propertyNames"]["pattern"] = "^[A-Za-z0-9_.-]+$";
    sets["additionalProperties"]["anyOf"] = {path, list};
    return {path, list, sets};
  }
  if (std::holds_alternative<spec::Passed>(field)) {
    const ordered_json text = {{"type", {"string", "number", "boolean"}}};
    ordered_json list = {{"type", "array"}};
    if (row.is_list) {
      list["items"] = text;
    } else {
      list["maxItems"] = 0;
    }
    ordered_json one = text;
    one["minLength"] = 1;
    return {one, list};
  }
  if (std::holds_alternative<std::vector<std::string>*>(field)) {
    ordered_json text = {{"type", {"string", "number", "boolean"}}, {"minLength", 1}};
    return {text, {{"type", "array"}, {"items", text}}};
  }
  if (const auto* words = std::get_if<spec::CountedWords>(&field)) {
    if (words->counts == nullptr) {
      return {
          {{"type", "array"}, {"items", word_schema(row)}, {"minItems", 1}, {"uniqueItems", true}}};
    }
    ordered_json counted = {{"type", "object"}, {"minProperties", 1}, {"maxProperties", 1}};
    counted["propertyNames"] = word_schema(row);
    counted["additionalProperties"] = integer;
    ordered_json item;
    item["anyOf"] = {word_schema(row), counted};
    return {{{"type", "array"}, {"items", item}, {"minItems", 1}, {"uniqueItems", true}}};
  }
  if (!row.choices.empty()) return {word_schema(row)};
  ordered_json number = {{"type", "number"}};
  add_range(row, number);
  if (spec::is_number_list(field)) {
    return {ordered_json{{"type", "array"}, {"items", number}, {"minItems", 2}, {"maxItems", 2}}};
  }
  if (std::holds_alternative<std::vector<double>*>(field)) {
    return {ordered_json{
        {"type", "array"}, {"items", number}, {"minItems", 1}, {"maxItems", row.most_items}}};
  }
  if (std::holds_alternative<double*>(field)) return {number};
  if (std::holds_alternative<bool*>(field)) return {ordered_json{{"type", "boolean"}}};
  // A name or path may look like a number.
  return {ordered_json{{"type", {"string", "number"}}, {"minLength", 1}}};
}

ordered_json row_schema(const Row& row) {
  ordered_json schema;
  schema["description"] = row.doc;
  std::vector<ordered_json> values = value_schemas(row);
  if (!row.auto_doc.empty()) {
    ordered_json word;
    word["enum"] = ordered_json::array({"auto"});
    values.push_back(word);
  }
  if (values.size() == 1) {
    schema.update(values.front());
  } else {
    schema["anyOf"] = values;
  }
  if (!row.required) schema["default"] = default_of(row);
  return schema;
}

// One of the keys must stand there; that no two do is left to the reader, which knows `auto`.
ordered_json one_required(const spec::Alternatives& group) {
  ordered_json schema;
  for (const std::string& key : group.keys) {
    ordered_json option;
    option["required"] = ordered_json::array({spec::find_row(key)->name()});
    schema["anyOf"].push_back(std::move(option));
  }
  return schema;
}

ordered_json section_schema(const std::string& section) {
  ordered_json schema;
  schema["type"] = "object";
  if (!section.empty()) schema["description"] = spec::section_doc(section);
  schema["additionalProperties"] = false;
  ordered_json required = ordered_json::array();
  for (const std::string& name : spec::names_below(section)) {
    const std::string path = section.empty() ? name : section + "." + name;
    const Row* row = spec::find_row(path);
    schema["properties"][name] = row != nullptr ? row_schema(*row) : section_schema(path);
    const bool needed =
        row != nullptr ? row->required : schema["properties"][name].contains("required");
    if (needed) required.push_back(name);
  }
  if (!required.empty()) schema["required"] = required;
  for (const spec::Alternatives& group : spec::alternatives()) {
    if (group.required && spec::find_row(group.keys.front())->section() == section) {
      schema["allOf"].push_back(one_required(group));
    }
  }
  return schema;
}

// A table cell cannot hold a bar.
std::string cell(const std::string& text) {
  std::string safe;
  for (const char c : text) safe += c == '|' ? std::string("\\|") : std::string(1, c);
  return safe;
}

// The alternatives of a key of which one is required.
const spec::Alternatives* required_alternatives(const std::string& key) {
  for (const spec::Alternatives& group : spec::alternatives()) {
    const auto& keys = group.keys;
    if (group.required && std::find(keys.begin(), keys.end(), key) != keys.end()) return &group;
  }
  return nullptr;
}

// The smallest file has these.
bool in_smallest_file(const Row& row) {
  const spec::Alternatives* group = required_alternatives(row.key);
  return row.required || (group != nullptr && group->keys.front() == row.key);
}

SpecKey words_of(const Row& row) {
  TrainSpec built_in;
  SpecKey words{.key = row.key, .doc = row.doc};
  std::string& value = words.built_in;
  value = spec::print_value(row, built_in);
  const spec::Alternatives* group = required_alternatives(row.key);
  if (row.required) {
    value = "required";
  } else if (group != nullptr) {
    value = fmt::format("one of `{}` is required", fmt::join(group->keys, "`, `"));
  } else {
    value = value == "[]" ? "" : fmt::format("`{}`", value);
    if (!row.auto_doc.empty()) value += " = " + row.auto_doc;
  }
  std::string& type = words.type;
  type = row.choices.empty() ? spec::type_text(row) : "";
  for (const spec::Choice& choice : row.choices) {
    type += fmt::format("{}`{}`", type.empty() ? "" : ", ", choice.value);
    words.values.push_back({choice.value, choice.doc});
  }
  const Field field = row.field(built_in);
  words.is_path = row.is_path || std::holds_alternative<spec::TextOrSources>(field);
  if (std::holds_alternative<bool*>(field)) words.values = {{"true", ""}, {"false", ""}};
  if (const auto* some = std::get_if<spec::CountedWords>(&field)) {
    type = fmt::format("list of some of {}{}", type,
                       some->counts == nullptr ? "" : ", or of these with integers");
  }
  if (std::holds_alternative<spec::WordOrList>(field)) type += " or a list of integers";
  if (!row.choices.empty() && !row.auto_doc.empty()) type = "`auto`, " + type;
  const bool shows_example = std::holds_alternative<spec::Ramp*>(field) ||
                             std::holds_alternative<spec::WordOrList>(field) ||
                             std::holds_alternative<spec::CountedWords>(field) ||
                             std::holds_alternative<std::vector<std::string>*>(field);
  if (shows_example) type += fmt::format(" like `{}`", row.example);
  if (const std::string range = spec::range_text(row); !range.empty()) type += ", " + range;
  if (row.suffixes) {
    type += std::holds_alternative<spec::Ramp*>(field) ? "; keys also k, M, G" : "; k, M, G";
  }
  return words;
}

std::string row_markdown(const SpecKey& key) {
  std::string doc = key.doc;
  for (const SpecKey::Value& value : key.values) {
    if (!value.doc.empty()) doc += fmt::format("<br>`{}`: {}", value.value, value.doc);
  }
  return fmt::format("| `{}` | {} | {} | {} |\n", key.key, cell(key.type), cell(key.built_in),
                     cell(doc));
}

}  // namespace

std::string resolved_yaml(const ResolvedSpec& resolved) {
  std::string text = "# Every setting of this run, and where its value came from.\n";
  std::string open;  // the section that the last line belongs to
  for (const Row& row : spec::schema()) {
    const std::string value = spec::print_value(row, resolved.spec);
    TrainSpec any;
    if (std::holds_alternative<spec::Passed>(row.field(any)) && value == "[]") continue;
    const std::string section = row.section();
    // Write the headings that this row's section does not share with the last one.
    for (size_t end = section.find('.');; end = section.find('.', end + 1)) {
      const std::string heading = section.substr(0, end);
      if (open != heading && !open.starts_with(heading + ".")) {
        text += fmt::format("{}{}:\n", std::string(2 * static_cast<size_t>(depth_of(heading)), ' '),
                            heading.substr(heading.rfind('.') + 1));
      }
      if (end == std::string::npos) break;
    }
    open = section;
    text += fmt::format("{}{}: {}  # {}\n",
                        std::string(2 * static_cast<size_t>(depth_of(row.key)), ' '), row.name(),
                        value, origin_name(resolved.origin_of(row.key)));
  }
  return text;
}

std::vector<SpecKey> described_keys() {
  std::vector<SpecKey> keys;
  for (const Row& row : spec::schema()) keys.push_back(words_of(row));
  return keys;
}

std::vector<SpecSection> described_sections() {
  std::vector<SpecSection> sections;
  for (const std::string& section : spec::sections()) {
    sections.push_back({section, spec::section_doc(section)});
  }
  return sections;
}

std::string spec_json_schema() {
  ordered_json schema = {{"$schema", "http://json-schema.org/draft-07/schema#"},
                         {"title", "train.yaml of mtl"}};
  schema.update(section_schema(""));
  return schema.dump(2) + "\n";
}

std::string spec_reference_markdown() {
  std::string text =
      "# train.yaml: what to train\n"
      "\n"
      "<!-- Generated from the schema table by test_runtime_spec with MTL_UPDATE_DOCS=1. -->\n"
      "\n"
      "Every setting, its default and its range. A key that is not on this page is an error, with\n"
      "the nearest key that is. The smallest file gives the required ones:\n"
      "\n"
      "```yaml\n";
  for (const std::string& section : spec::sections()) {
    bool headed = false;
    for (const Row& row : spec::schema()) {
      if (!in_smallest_file(row) || row.section() != section) continue;
      if (!headed) text += section + ":\n";
      headed = true;
      text += fmt::format("  {}: {}\n", row.name(), row.example);
    }
  }
  text +=
      "```\n"
      "\n"
      "A value can come from five places; the later wins, and `resolved.yaml` in the run's folder\n"
      "names the place of each:\n"
      "\n"
      "1. the default on this page\n"
      "2. `default_config.yaml`, which says where to run\n"
      "3. `train.yaml`\n"
      "4. the environment: `MTL_TRAIN__STEPS=5` is `train.steps`, `MTL_MODEL__NORM__EPS` is\n"
      "   `model.norm.eps`\n"
      "5. the command line: `train.steps=5`, `optimizer.betas=0.9,0.99`\n"
      "\n"
      "The file is YAML read strictly: duplicate keys, anchors, merge keys, tags and further\n"
      "documents are errors. Integers may be written `1_000` or `1e9`; those marked *k, M, G* "
      "also\n"
      "`10k`, `2M`, `1G` (thousands, millions, thousand millions). Numbers in quotes are text.\n"
      "A map like `{0: 8, 4: 4}` says what holds from a step or epoch on; a plain number holds\n"
      "always. `auto` is what the key is when it is not written.\n"
      "\n"
      "Editors complete and check the file with `templates/train.schema.json`: begin it with\n"
      "`# yaml-language-server: $schema=<path of train.schema.json>`.\n";
  for (const std::string& section : spec::sections()) {
    if (depth_of(section) > 0) continue;
    text += fmt::format("\n## {}\n\n{}\n\n", section, spec::section_doc(section));
    text += "| key | type and range | default | meaning |\n|---|---|---|---|\n";
    for (const Row& row : spec::schema()) {
      if (row.key.starts_with(section + ".")) text += row_markdown(words_of(row));
    }
  }
  text +=
      "\n## Not available in this version\n"
      "\n"
      "These are refused, so that no run silently does something else.\n"
      "\n"
      "| key or value | why |\n|---|---|\n";
  for (const spec::Unavailable& key : spec::unavailable()) {
    text += fmt::format("| `{}` | {} |\n", key.key, cell(key.why));
  }
  for (const Row& row : spec::schema()) {
    std::vector<std::string> values;
    for (const spec::Refused& refused : row.refused) {
      if (refused.instead.empty()) values.push_back(fmt::format("`{}`", refused.value));
    }
    if (values.empty()) continue;
    text += fmt::format("| `{}`: {} | available: {} |\n", row.key, fmt::join(values, ", "),
                        spec::type_text(row));
  }
  return text;
}

}  // namespace mtl
