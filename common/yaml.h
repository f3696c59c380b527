// Strict YAML reading. The tree keeps the place of every value, so that whoever interprets it can
// point at the line. Refused (each with its place): duplicate keys, merge keys `<<`,
// anchors/aliases, tags, keys that are not words, further documents, invalid UTF-8 and control
// characters, tabs as indentation, nesting beyond 64 levels, texts beyond 1 MiB. JSON text parses
// too. Columns count characters, not bytes.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"

namespace mtl {

inline constexpr size_t kYamlMaxBytes = size_t{1} << 20;

struct YamlValue {
  enum class Kind { null, scalar, list, map };
  Kind kind = Kind::null;
  std::string text;     // of a scalar, as written (without quotes)
  bool quoted = false;  // '...' or "...": a string whatever it looks like
  Place place;
  struct Entry;
  std::vector<Entry> entries;    // of a map, in file order
  std::vector<YamlValue> items;  // of a list
  const YamlValue* find(const std::string& key) const;
};

struct YamlValue::Entry {
  std::string key;
  Place key_place;
  YamlValue value;
};

// Both add to `diagnostics` (codes yaml.*) and return what could be understood.
YamlValue parse_yaml(const std::string& text, const std::string& file_name,
                     Diagnostics& diagnostics);
// A missing or unreadable file is an error with code file.missing / file.unreadable.
YamlValue read_yaml(const std::string& path, Diagnostics& diagnostics);

}  // namespace mtl
