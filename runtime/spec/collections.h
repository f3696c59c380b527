// The values of more than one part: lists and maps. Like read_value(), each returns nothing when
// the value is good; else what is wrong, with the place of the part that is, and the result
// untouched.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/yaml.h"
#include "runtime/spec/schema.h"

namespace mtl::spec {

std::optional<Diagnostic> read_pair(const Row& row, const YamlValue& value, double (&pair)[2]);
std::optional<Diagnostic> read_ramp(const Row& row, const YamlValue& value, Ramp& ramp);
std::optional<Diagnostic> read_word_or_list(const Row& row, const YamlValue& value,
                                            const WordOrList& result);
// Any texts, perhaps none; one is a list of one.
std::optional<Diagnostic> read_texts(const Row& row, const YamlValue& value,
                                     std::vector<std::string>& texts);
std::optional<Diagnostic> read_words(const Row& row, const YamlValue& value,
                                     const CountedWords& result);

// One to three numbers, the first above 0.
std::optional<Diagnostic> read_numbers(const Row& row, const YamlValue& value,
                                       std::vector<double>& numbers);
// "one to three": how many numbers the list may have.
std::string count_of_numbers(const Row& row);
std::optional<Diagnostic> read_sources(const Row& row, const YamlValue& value,
                                       const TextOrSources& result);
// An empty list is nothing.
std::optional<Diagnostic> read_passed(const Row& row, const YamlValue& value, const Passed& result);

}  // namespace mtl::spec
