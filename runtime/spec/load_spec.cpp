// Lays the layers of settings over each other, weakest first, and checks each of them, so that a
// wrong value is told even where a stronger layer hides it.
#include <algorithm>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/files.h"
#include "common/yaml.h"
#include "runtime/spec/load_text.h"
#include "runtime/spec/suggest.h"
#include "runtime/spec/train_spec.h"
#include "runtime/spec/values.h"

namespace mtl {

namespace {

using spec::Row;

class SpecLoader {
 public:
  explicit SpecLoader(Diagnostics& diagnostics) : diagnostics_(diagnostics) {
    for (const Row& row : spec::schema()) resolved_.origins[row.key] = Origin::built_in;
  }

  void default_config(const SpecSources& sources) {
    for (const auto& [key, value] : sources.default_config) {
      apply_text(key, value, Origin::default_config,
                 Place{sources.default_config_path.empty() ? "default_config.yaml"
                                                           : sources.default_config_path});
    }
  }

  void train_yaml(const std::string& path) {
    try {
      train_text(read_file(path, kYamlMaxBytes + 1), path);
    } catch (const Error& error) {
      resolved_.file = path;
      for (const Diagnostic& diagnostic : error.diagnostics()) diagnostics_.add(diagnostic);
      complete_ = false;
    }
  }

  void train_text(std::string text, const std::string& path) {
    resolved_.file = path;
    resolved_.source = std::move(text);
    Diagnostics problems;
    const YamlValue root = parse_yaml(resolved_.source, path, problems);
    for (const Diagnostic& diagnostic : problems.all()) diagnostics_.add(diagnostic);
    complete_ = !problems.has_errors();
    apply("", root, Layer{Origin::train_yaml, std::nullopt});
  }

  void environment(const std::vector<std::pair<std::string, std::string>>& variables) {
    for (const auto& [name, value] : variables) {
      if (!name.starts_with("MTL_")) continue;
      const Row* found = nullptr;
      for (const Row& row : spec::schema()) {
        if (spec::environment_name(row.key) == name) found = &row;
      }
      const Place place{"environment variable " + name};
      if (found != nullptr) {
        apply_text(found->key, value, Origin::environment, place);
      } else if (name.find("__") != std::string::npos || spec::resembles_environment_name(name)) {
        // Other MTL_ variables are the program's own.
        const auto near = spec::nearest_environment_name(name);
        diagnostics_.add({.code = "config.environment",
                          .what = fmt::format("{} is not a setting and was ignored", name),
                          .place = place,
                          .help = near ? fmt::format("did you mean `{}`?", *near)
                                       : "unset it; settings are written MTL_<SECTION>__<KEY>",
                          .severity = Diagnostic::Severity::warning});
      }
    }
  }

  void overrides(const std::vector<std::string>& settings) {
    const Place place{"command line"};
    for (const std::string& setting : settings) {
      const size_t equals = setting.find('=');
      const std::string key = setting.substr(0, equals);
      if (equals == std::string::npos || key.empty() || key.starts_with('-')) {
        const size_t name = key.find_first_not_of('-');
        const std::string bare = name == std::string::npos ? "" : setting.substr(name);
        diagnostics_.add({.code = "config.override",
                          .what = fmt::format("`{}` is not of the form key=value", setting),
                          .place = place,
                          .help = key.starts_with('-') && equals != std::string::npos
                                      ? fmt::format("write `{}`, without dashes", bare)
                                      : "write for example `train.steps=100`"});
        continue;
      }
      apply_text(key, setting.substr(equals + 1), Origin::command_line, place);
    }
  }

  void check_required() {
    // A file that was not understood to its end would seem to lack what follows.
    if (!complete_) return;
    for (const Row& row : spec::schema()) {
      if (!row.required) continue;
      resolved_.complete &= resolved_.places.contains(row.key);
      if (given_.contains(row.key)) continue;
      missing(row, fmt::format("{} is required and not given", row.key));
    }
  }

  void check_alternatives() {
    if (!complete_) return;
    for (const spec::Alternatives& group : spec::alternatives()) {
      std::vector<std::string> set;
      bool meant = false;  // what was given badly is no longer missing
      for (const std::string& key : group.keys) {
        if (!spec::is_auto(*spec::find_row(key), resolved_.spec)) set.push_back(key);
        meant |= given_.contains(key) && !resolved_.places.contains(key);
      }
      resolved_.complete &= !group.required || !set.empty();
      if (set.empty() && group.required && !meant) {
        missing(*spec::find_row(group.keys.front()),
                fmt::format("{} is required and not given", spec::either(group.keys)));
      }
      if (set.size() > 1) contradiction(set);
    }
  }

  ResolvedSpec take() { return std::move(resolved_); }

 private:
  struct Layer {
    Origin origin;
    std::optional<Place> place;  // of all its values; nothing when each has its own
  };

  void missing(const Row& row, std::string what) {
    const auto section = section_places_.find(row.section());
    const bool has_section = section != section_places_.end();
    diagnostics_.add({.code = "config.missing",
                      .what = std::move(what),
                      .place = has_section ? section->second : Place{resolved_.file},
                      .help = has_section ? fmt::format("add `{}: {}` under `{}:`", row.name(),
                                                        row.example, row.section())
                                          : fmt::format("add the section `{}:` with `{}: {}`",
                                                        row.section(), row.name(), row.example)});
  }

  // Keys of which only one may be set. The place is that of the last one: the strongest layer, or
  // further down in the file.
  void contradiction(std::vector<std::string> keys) {
    const auto strength = [&](const std::string& key) {
      const Place place = resolved_.place_of(key);
      return std::tuple(resolved_.origins.at(key), place.line, place.column);
    };
    std::stable_sort(keys.begin(), keys.end(), [&](const std::string& a, const std::string& b) {
      return strength(a) < strength(b);
    });
    const std::string last = keys.back();
    keys.pop_back();
    std::string help = "keep one of them";
    if (resolved_.origins.at(keys.front()) != resolved_.origins.at(last)) {
      help += fmt::format("; {} comes from {}, and `{}=auto` takes it back", keys.front(),
                          resolved_.place_of(keys.front()).file, keys.front());
    }
    diagnostics_.add(
        {.code = "config.conflict",
         .what = fmt::format("{} and {} cannot be given together", fmt::join(keys, ", "), last),
         .place = resolved_.place_of(last),
         .help = help});
  }

  void add(Diagnostic diagnostic, const Layer& layer, const Place& place) {
    diagnostic.place = layer.place ? *layer.place : diagnostic.place.value_or(place);
    diagnostics_.add(std::move(diagnostic));
  }

  // A value that stands in no file of ours: its text is YAML.
  void apply_text(const std::string& key, const std::string& text, Origin origin,
                  const Place& place) {
    Diagnostics problems;
    const Row* const row = spec::find_row(key);
    YamlValue value = parse_yaml(text, place.file, problems);
    if (row != nullptr && spec::lacks_brackets(*row, value)) {
      value = parse_yaml(fmt::format("[{}]", text), place.file, problems);
    }
    if (problems.has_errors()) {
      const Diagnostic& first = problems.all().front();
      diagnostics_.add(
          {.code = first.code,
           .what = fmt::format("{}: `{}` is not valid YAML: {}", key, text, first.what),
           .place = place,
           .help = first.help});
      given_.insert(key);
      return;
    }
    // YAML reads a directive or a comment, and no value at all.
    if (value.kind == YamlValue::Kind::null && (text.starts_with('%') || text.starts_with('#'))) {
      diagnostics_.add(
          {.code = "config.override",
           .what = fmt::format("{}: `{}` is a {} in YAML, and no value", key, text,
                               text.starts_with('%') ? "directive" : "comment"),
           .place = place,
           .help = "put it in quotes within those of the shell: '" + key + "=\"...\"'"});
      given_.insert(key);
      return;
    }
    // What stands in a shell's word is meant as it stands.
    if (value.kind == YamlValue::Kind::scalar && !value.quoted &&
        text.find(" #") != std::string::npos) {
      diagnostics_.add(
          {.code = "config.override",
           .what = fmt::format("{}: in `{}` all from ` #` on would be a comment", key, text),
           .place = place,
           .help = "put it in quotes within those of the shell: '" + key + "=\"...\"'"});
      given_.insert(key);
      return;
    }
    const Layer layer{origin, place};
    if (row == nullptr && !spec::is_section(key)) {
      refuse(key, layer, place);
    } else {
      apply(key, value, layer);
    }
  }

  void refuse(const std::string& path, const Layer& layer, const Place& place) {
    spec::UnknownKey unknown = spec::unknown_key(path);
    // That the key which was meant is missing would be said twice.
    if (unknown.meant) given_.insert(*unknown.meant);
    add(std::move(unknown.diagnostic), layer, place);
  }

  // `path` is a row or a section ("" = the whole file).
  void apply(const std::string& path, const YamlValue& value, const Layer& layer) {
    if (const Row* row = spec::find_row(path)) {
      given_.insert(path);
      if (auto problem = spec::read_value(*row, value, resolved_.spec)) {
        add(std::move(*problem), layer, value.place);
      } else {
        resolved_.origins[path] = layer.origin;
        resolved_.places[path] = layer.place.value_or(value.place);
      }
      return;
    }
    if (value.kind == YamlValue::Kind::null) return;  // a section with nothing below it
    if (value.kind != YamlValue::Kind::map) {
      const std::string what =
          path.empty() ? "train.yaml holds no sections" : path + " is a section, not a value";
      add({.code = "config.type",
           .what = what,
           .help = fmt::format(
               "{}, indented: {}",
               path.empty() ? "write sections with keys below them" : "write its keys below it",
               fmt::join(spec::names_below(path), ", "))},
          layer, value.place);
      if (path.empty()) complete_ = false;
      return;
    }
    for (const YamlValue::Entry& entry : value.entries) {
      const std::string child = path.empty() ? entry.key : path + "." + entry.key;
      const bool dotted = entry.key.find('.') != std::string::npos;
      if (dotted || (spec::find_row(child) == nullptr && !spec::is_section(child))) {
        refuse(child, layer, entry.key_place);
        continue;
      }
      if (layer.origin == Origin::train_yaml) section_places_.emplace(child, entry.key_place);
      apply(child, entry.value, layer);
    }
  }

  Diagnostics& diagnostics_;
  ResolvedSpec resolved_;
  std::set<std::string> given_;  // keys that some layer names, well or badly
  std::map<std::string, Place> section_places_;
  bool complete_ = true;  // train.yaml was understood to its end
};

}  // namespace

ResolvedSpec load_spec(const SpecSources& sources, Diagnostics& diagnostics) {
  SpecLoader loader(diagnostics);
  loader.default_config(sources);
  loader.train_yaml(sources.train_yaml);
  loader.environment(sources.environment);
  loader.overrides(sources.overrides);
  loader.check_required();
  loader.check_alternatives();
  return loader.take();
}

ResolvedSpec load_spec_text(const std::string& text, const std::string& name,
                            Diagnostics& diagnostics) {
  SpecLoader loader(diagnostics);
  loader.train_text(text, name);
  loader.check_required();
  loader.check_alternatives();
  return loader.take();
}

Place ResolvedSpec::place_of(const std::string& key) const {
  const auto found = places.find(key);
  return found == places.end() ? Place{file} : found->second;
}

Origin ResolvedSpec::origin_of(const std::string& key) const {
  const auto found = origins.find(key);
  return found == origins.end() ? Origin::built_in : found->second;
}

std::string origin_name(Origin origin) {
  switch (origin) {
    case Origin::built_in:
      return "built-in";
    case Origin::default_config:
      return "default_config.yaml";
    case Origin::train_yaml:
      return "train.yaml";
    case Origin::environment:
      return "environment";
    case Origin::command_line:
      return "command line";
  }
  return {};
}

std::vector<std::string> spec_keys() {
  std::vector<std::string> keys;
  for (const Row& row : spec::schema()) keys.push_back(row.key);
  return keys;
}

}  // namespace mtl
