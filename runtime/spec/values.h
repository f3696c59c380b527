// One value of the schema table: from YAML, to YAML, and in words.
#pragma once

#include <optional>
#include <string>

#include "common/error.h"
#include "common/yaml.h"
#include "runtime/spec/scalars.h"
#include "runtime/spec/schema.h"

namespace mtl::spec {

// Reads `value` into the row's field. Nothing when it is good; else what is wrong with it, with the
// place of the value or of the list item, and the field untouched.
std::optional<Diagnostic> read_value(const Row& row, const YamlValue& value, TrainSpec& spec);

// "a, b or c".
std::string either(const std::vector<std::string>& words);

// As YAML that read_value() reads to the same value, bit for bit.
std::string print_value(const Row& row, const TrainSpec& spec);

// "a whole number from 1 to 65536, or auto": ends "give ...".
std::string expected(const Row& row);
// "1 to 65536", "above 0, at most 1"; empty when there is none to speak of.
std::string range_text(const Row& row);
// "integer", "number", "true or false", "text", "path", "two numbers", ..., or the choices.
std::string type_text(const Row& row);
// A problem of a value of the row, as an error.
Diagnostic diagnose(const Row& row, const Place& place, Problem problem);

bool is_integer(const Field& field);
bool is_number_list(const Field& field);
// Whether `value`, of a shell's word, is a list that was written without its brackets: `95,5`.
bool lacks_brackets(const Row& row, const YamlValue& value);
// A value of `auto` is set by nobody: 0 or nothing stands in the field.
bool is_auto(const Row& row, const TrainSpec& spec);

}  // namespace mtl::spec
