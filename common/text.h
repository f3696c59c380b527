// Letters and numbers of names, keys and words that people type: ASCII only, whatever the locale.
// Other bytes, so also UTF-8's, stay as they are.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mtl {

char lower(char c);
char upper(char c);
std::string lower(std::string_view text);
std::string upper(std::string_view text);
bool contains_ignoring_case(std::string_view text, std::string_view part);

// A number that is all of the text: digits, perhaps behind a '-', of a double also "1e-3" and
// "inf"; nothing where anything else stands in it or it does not fit. Of int, int64_t, uint64_t and
// double.
template <typename Number>
std::optional<Number> to_number(std::string_view text);

// "0, 5 and 4 more": the first eight.
std::string some_of(const std::vector<std::string>& names);

// Whether a word of a shell script is a variable or a command's output and nothing else ($A, ${A},
// $1, $@, $(...), `...`): what stands there when the script runs.
bool is_shell_variable(std::string_view word);

// Without their ends; the last one with or without it.
std::vector<std::string> lines_of(const std::string& text);

}  // namespace mtl
